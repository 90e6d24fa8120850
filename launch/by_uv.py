"""Installs a lock by uv, from the index, with the certificates and by the proxy that the user's pip is set to.

    .venv/bin/python launch/by_uv.py LOCK [UV'S OPTIONS...]

Called by launch/setup.sh, in a process that becomes uv: its signals and its exit status are uv's. The settings are
handed over as environment variables, since the URL of an index may hold a password and any user can read a process's
options.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

# pip's settings, the last one wins: those of every command, of `pip install`, and of the environment.
SECTIONS = ("global", "install", ":env:")

# {pip's setting: uv's variable} where uv takes the value as it is
SAME_VALUE = {
    "index-url": "UV_DEFAULT_INDEX",
    "client-cert": "SSL_CLIENT_CERT",
    "default-timeout": "UV_HTTP_TIMEOUT",  # another name of pip's for the next one
    "timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}

# {pip's setting: (uv's variable, what separates its values)}; pip's values are separated by spaces or line ends
LISTS = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}

# Where Linux distributions keep the certificates that the whole system trusts.
SYSTEM_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def parse(config_list: str) -> dict[str, str]:
    """Return the settings of pip by name, from the output of `pip config list`.

    A line of the output is as below, with a Python literal, and gives {"index-url": "https://pypi.org/simple"}:

        global.index-url='https://pypi.org/simple'

    Args:
        config_list: The output. Only settings of SECTIONS count; if several of these have a setting, the last one does.
    """
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in config_list.splitlines():
        key, _, literal = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in by_section:  # the others are for other commands of pip
            by_section[section][name] = str(ast.literal_eval(literal))

    settings: dict[str, str] = {}
    for section in SECTIONS:
        settings |= by_section[section]
    return settings


def certificates(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes uv trust the certificates that pip trusts, as {"SSL_CERT_FILE": "/my/ca.crt"}.

    Args:
        settings: pip's settings by name. "cert" is a file or a folder of certificates.
        environment: This process's environment. Without "cert" its REQUESTS_CA_BUNDLE counts, or its CURL_CA_BUNDLE.

    Returns:
        The variable, which may also have uv use the system's certificates. {} if neither the user nor the system has a
        file of them; uv then trusts those of Mozilla.
    """
    path = settings.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    if path:
        variable = "SSL_CERT_DIR" if Path(path).is_dir() else "SSL_CERT_FILE"
        return {variable: path}

    if any(Path(bundle).is_file() for bundle in SYSTEM_CERTIFICATES):
        return {"UV_SYSTEM_CERTS": "1"}
    return {}  # uv has Mozilla's certificates built in


def uv_variables(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make uv install from where pip would, with pip's proxy.

    They also make uv trust the certificates that pip trusts.

    Args:
        settings: pip's settings by name, as `parse` returns them.
        environment: This process's environment, which may name certificates, too.
    """
    # pip takes a package from any index that has it, and so must uv. That is safe: a lock has each package's hash.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}

    for name, variable in SAME_VALUE.items():
        if settings.get(name):
            variables[variable] = settings[name]

    for name, (variable, separator) in LISTS.items():
        values = settings.get(name, "").split()
        if values:
            variables[variable] = separator.join(values)

    if settings.get("keyring-provider") == "subprocess":
        variables["UV_KEYRING_PROVIDER"] = "subprocess"
    if settings.get("proxy"):
        variables |= {"HTTP_PROXY": settings["proxy"], "HTTPS_PROXY": settings["proxy"]}

    return variables | certificates(settings, environment)


def uv_command(settings: Mapping[str, str], lock: str, options: Sequence[str]) -> list[str]:
    """Return uv's command line, which installs exactly the wheels of a lock, each with a hash that the lock has.

    Args:
        settings: pip's settings by name. "no-index" keeps uv from asking an index.
        lock: Path of the lock file.
        options: Further options of uv.
    """
    words = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable, "--no-config"]
    words += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--compile-bytecode"]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        words.append("--no-index")
    return [*words, *options, "--requirement", lock]


def main() -> NoReturn:
    """Become uv, which installs the lock that the command line names. Exits with status 1 if pip fails.

    uv's settings come from pip's settings alone: the user's own variables for uv are removed, except UV_CACHE_DIR.
    """
    config_list = [sys.executable, "-m", "pip", "config", "list"]
    pip = subprocess.run(config_list, stdout=subprocess.PIPE, text=True, check=False)
    if pip.returncode != 0:
        sys.exit(1)

    settings = parse(pip.stdout)
    words = uv_command(settings, sys.argv[1], sys.argv[2:])
    kept_variables = {}
    for name, value in os.environ.items():
        might_install_elsewhere = name.startswith("UV_") and name != "UV_CACHE_DIR"
        if not might_install_elsewhere:
            kept_variables[name] = value
    os.execve(words[0], words, kept_variables | uv_variables(settings, os.environ))


if __name__ == "__main__":
    main()
