"""Before a job begins: launch/setup.sh on machines that lack something, and on one that has all; the lock for each
Python, and its SBOM.
"""

import hashlib
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launch import by_uv
from tests import jobs
from tests.jobs import need, printed, refused

TOOLS = (
    *(
        "bash",
        "cat",
        "chmod",
        "cut",
        "df",
        "dirname",
        "echo",
        "env",
        "flock",
        "grep",
        "head",
        "mkdir",
        "mv",
        "realpath",
        "rm",
    ),
    *("sed", "setpriv", "sha256sum", "sleep", "tail", "uname", "xargs"),
)
NO_WHEEL = "ERROR: Could not find a version that satisfies the requirement absl-py (from versions: none)"
VENV = f"python3.{sys.version_info.minor}-venv"  # Debian's package, for the Python that the stand-ins are
RETRYING = "WARNING: Retrying (Retry(total=4)) after connection broken by "


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is not set up, and a PATH with the usual tools but no Python."""
    folder = tmp_path / "a&check|out"  # as sed reads them, no plain letters
    (folder / "launch").mkdir(parents=True)
    for name in ("setup.sh", "common.sh", "by_uv.py"):
        shutil.copy(jobs.REPOSITORY / "launch" / name, folder / "launch")
    shutil.copytree(jobs.REPOSITORY / "locks", folder / "locks")
    (folder / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (folder / "bin" / tool).symlink_to(found)
    return folder


def program(checkout: Path, name: str, script: str) -> None:
    path = checkout / "bin" / name
    path.unlink(missing_ok=True)
    jobs.script(path, f"#!/bin/bash\n{script}\n")


def setup(checkout: Path, *locks: str, **variables: str) -> subprocess.CompletedProcess[str]:
    told = [f"{name}={value}" for name, value in {"PATH": f"{checkout}/bin", **variables}.items()]
    return jobs.run(["env", "-i", *told, "bash", "launch/setup.sh", *locks], cwd=checkout)


def python(checkout: Path, before: str = "") -> None:
    """This machine's own, as Python 3.11, after the lines `before`."""
    program(checkout, "python3.11", f'{before}\nexec {sys.executable} "$@"')


def venv(checkout: Path, made: str) -> None:
    """A Python whose environments are made by these lines."""
    python(checkout, f'[[ "$*" != "-m venv .venv.new" ]] || {{\n{made}\nexit\n}}')


def test_only_locks_that_are_there_are_installed(checkout: Path) -> None:
    """And no option is taken for one."""
    assert "usage: launch/setup.sh [LOCK...]" in setup(checkout, "--help").stdout
    refused(setup(checkout, "runn"), "no lock 'runn': give one or more of bench cuda dev ")
    refused(setup(checkout, "../locks/run"), "no lock '../locks/run'")
    assert setup(checkout, "--dry-run", "run", "dev").stdout == "setup: to be installed into .venv: run dev\n"
    assert not list(checkout.glob(".venv*"))


def test_a_checkout_that_cannot_be_written_is_told_in_one_line(checkout: Path) -> None:
    """The line of bash stood before it: ".venv.lock: Permission denied". Root may write all but onto a folder."""
    (checkout / ".venv.lock").mkdir()
    refused(setup(checkout), f"{checkout} cannot be written: clone it to a folder of your own")
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to("/root/none/python3")
    refused(setup(checkout), ".venv/bin/python is a link to /root/none/python3, which is absent or which you may not")


def test_cuda_12_takes_a_lock_of_its_own_and_a_venv_of_its_own(checkout: Path) -> None:
    refused(setup(checkout, CUDA="13"), "CUDA=13: must be 11 or 12, or unset")
    refused(setup(checkout, CUDA="12"), "CUDA=12: locks/run12.lock is not here: make it by launch/lock.sh cuda12")
    for file in ("locks/run12.lock", ".venv/run.sha256"):
        (checkout / file).parent.mkdir(exist_ok=True)
        (checkout / file).write_text("")
    refused(setup(checkout, CUDA="12"), "CUDA=12: .venv has the packages for CUDA 11: remove it first")
    (checkout / ".venv/run.sha256").unlink()
    refused(
        setup(checkout, CUDA="12"), "3.12 is needed to train, as Paddle 2.6.2 has wheels for these only; found: none."
    )


def lacking(module: str) -> str:
    """Lines of a Python that cannot import it; what setup.sh asks first of a Python goes well."""
    return f'[[ "$2" == *{module}* && "$2" != *version_info* && "$2" != *libc_ver* ]] && exit 1'


def with_libc(found: str) -> str:
    return f'[[ "$2" != *libc_ver* ]] || set -- -c "import platform; platform.libc_ver = lambda: {found}\n$2"'


APT = {"apt-get": ""}
NO_PYTHON = "exit 127"
ARM = {"uname": '[[ "$1" == -m ]] && echo aarch64 || echo Linux'}
OTHERS = "; where the system's packages have none: `uv py"


@pytest.mark.parametrize(
    ("before", "programs", "message"),
    [
        (NO_PYTHON, {"python3": "echo 3.13", "dnf": ""}, f"found: 3.13. Install one (dnf install python3.11{OTHERS}"),
        (NO_PYTHON, {"python3": "echo 3.13", **APT}, f"(apt-get install python3.11 python3.11-venv{OTHERS}"),
        (NO_PYTHON, APT, f"found: none. Install one (apt-get install python3 python3-venv{OTHERS}"),
        (lacking("ensurepip"), APT, f"python3.11 has no venv module, and Paddle needs it: apt-get install {VENV}"),
        (lacking("libgomp"), APT, "libgomp.so.1 is not here, and Paddle needs it: apt-get install libgomp1"),
        (lacking("libgomp"), {"dnf": ""}, "libgomp.so.1 is not here, and Paddle needs it: dnf install libgomp"),
        (lacking("libgomp"), {"zypper": ""}, "libgomp.so.1 is not here, and Paddle needs it: zypper install libgomp1"),
        (lacking("libgomp"), {"pacman": ""}, "libgomp.so.1 is not here, and Paddle needs it: pacman -S gcc-libs"),
        (lacking("libgomp"), {}, "your system's package manager (Debian's names: libgomp1)"),
        (lacking("import"), APT, f"apt-get install {VENV} libgomp1"),
        (with_libc("('', '')"), APT, "Paddle and its packages need glibc 2.28 or newer"),
        (with_libc("('glibc', '2.27')"), APT, "Paddle and its packages need glibc 2.28 or newer"),
        ("", ARM, "Linux on aarch64: Paddle's wheel exists for Linux"),
        ("", {"df": "echo Avail; echo 3000000"}, "3 GB free in"),
        ("", {"flock": None, **APT}, "flock is not here, and set-up needs it: apt-get install util-linux"),
        ("", {"setpriv": None, **APT}, "setpriv is not here, and set-up needs it: apt-get install util-linux"),
        ("", {"xargs": None, **APT}, "xargs is not here, and set-up needs it: apt-get install findutils"),
    ],
)
def test_what_a_machine_lacks_is_said_before_the_download(
    checkout: Path, before: str, programs: dict[str, str | None], message: str
) -> None:
    """`before` are lines of its Python; its `programs` are these, or missing."""
    python(checkout, before)
    for name, script in programs.items():
        if script is None:
            (checkout / "bin" / name).unlink()
        else:
            program(checkout, name, script)
    refused(setup(checkout), message)
    assert not list(checkout.glob(".venv/*"))


# An environment with a pip that fails with the lines of the file `said`.
NO_PIP = f"""mkdir -p .venv.new/bin; echo "#!/bin/bash" >.venv.new/bin/python
echo "$PWD/.venv.new" >.venv.new/pyvenv.cfg
echo '[[ "$*" != *--version ]] || exit 0; cat said; exit 1' >>.venv.new/bin/python
{shutil.which("chmod")} +x .venv.new/bin/python"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ERROR: no wheel of x", "ERROR: no wheel of x; all of it is in .venv/run.log"),
        (f"{RETRYING}NewConnectionError(Temporary failure in name resolution)", "no network: the package index of pip"),
        (f"{RETRYING}NewConnectionError(Connection refused)", "index of pip does not answer: set PIP_INDEX_URL"),
        (f"{RETRYING}ProxyError('Cannot connect to proxy.')", "the proxy p:1 does not answer: set HTTPS_PR"),
        (f"{RETRYING}SSLError(CERTIFICATE_VERIFY_FAILED)", "is not trusted here, as behind a proxy: set PIP_C"),
        (f"{RETRYING}SSLError(CERTIFICATE_VERIFY_FAILED: certificate has expired)", "is not valid today, which is "),
        (NO_WHEEL, "the package index of pip has no absl-py: set PIP_INDEX_URL to one that has"),
        ("ERROR: [Errno 28] No space left on device", "7 GB are needed for .venv: free some or clone elsewhere"),
    ],
)
def test_why_pip_failed_is_told_apart(checkout: Path, line: str, message: str) -> None:
    (checkout / "said").write_text(f"{line}\n{NO_WHEEL if line.startswith(RETRYING) else ''}\n")
    venv(checkout, NO_PIP)
    refused(setup(checkout, HTTPS_PROXY="p:1"), message)
    assert not (checkout / ".venv.new").exists() and not (checkout / ".venv.tmp").exists()


SMALL, PARTS = ("small0", "small1", "small2"), 20


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Makes a wheel of a package, version 1.0; its line of a lock."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (
                0o100755 if "/scripts/" in file else 0o100644
            ) << 16  # a plain file, by zip's own bits
            archive.writestr(entry, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(params=["uv", "pip"])
def own_wheels(checkout: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """A lock of three small packages, and the variables by which pip finds them; uv is to be had, or is not.

    An environment here has its pip from elsewhere: to install it takes seconds, and is Python's own affair.
    """
    folder = checkout / "wheels"
    folder.mkdir()
    parts = {f"part{part}.py": f"VALUE = {part}\n" * 50 for part in range(PARTS)}
    # Not named as the wheel, as DALI's folder of scripts.
    tool = {f"{SMALL[0]}-1.0-7.data/scripts/tool": f"#!python\nimport {SMALL[0]}.part1\n"}
    lines = []
    for name in SMALL:
        files = {f"{name}/{part}": text for part, text in parts.items()}
        lines.append(wheel(folder, name, files | tool if name == SMALL[0] else files))
    (checkout / "locks/run.lock").write_text("".join(lines))
    if request.param == "uv":
        own_uv = Path(sys.executable).with_name("uv")
        need(own_uv.exists(), f"{own_uv}: launch/setup.sh run dev installs it")
        uv = wheel(folder, "uv", {"uv-1.0.data/scripts/uv": f'#!/bin/bash\nexec {own_uv} "$@"\n'})
        (checkout / "locks/uv.lock").write_text(uv)
    pip = importlib.util.find_spec("pip")
    assert pip and pip.origin
    (checkout / "pip").symlink_to(Path(pip.origin).parent)
    venv(
        checkout,
        f"{sys.executable} -m venv --without-pip .venv.new || exit\n"
        f"for folder in .venv.new/lib/*/site-packages; do echo '{checkout}' >$folder/pip.pth; done",
    )
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull, "HOME": str(checkout)}


def installers(checkout: Path) -> set[str]:
    """The tools that installed the packages."""
    return {path.read_text().strip() for path in checkout.glob(".venv/lib/python3*/site-packages/small*/INSTALLER")}


def works(checkout: Path) -> bool:
    """Whether each part of each package is there with its script, and nothing else."""
    imports = "; ".join(f"import {name}.part{part}" for name in SMALL for part in range(PARTS))
    done = subprocess.run([checkout / ".venv/bin/python", "-c", imports], capture_output=True, check=False)
    script = subprocess.run([checkout / ".venv/bin/tool"], capture_output=True, check=False)
    return (done.returncode, script.returncode) == (0, 0) and not list(checkout.glob(".venv.[nt]*"))


def test_the_next_start_mends_what_a_cut_one_left(
    checkout: Path, own_wheels: dict[str, str], request: pytest.FixtureRequest
) -> None:
    # An environment without pip, as a start that was cut left before it was made beside its place.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    (checkout / ".venv.new/bin").mkdir(parents=True)
    assert setup(checkout, **own_wheels).returncode == 0
    assert works(checkout)
    assert installers(checkout) == {request.node.callspec.params["own_wheels"]}
    assert f"{checkout}/.venv" in (checkout / ".venv/bin/activate").read_text()
    # A package that pip would take for installed.
    (packages,) = checkout.glob(".venv/lib/python3*/site-packages")
    (packages / "small1-1.0.dist-info/RECORD").unlink()
    (packages / "small1/part7.py").unlink()
    (packages / "~mall0").mkdir()
    # And one that has all its names, cut before its last file.
    (packages / "small2/part9.py").unlink()
    (checkout / ".venv/run.begun").touch()
    (checkout / ".venv/run.sha256").unlink()
    assert setup(checkout, **own_wheels).returncode == 0
    assert works(checkout) and not (packages / "~mall0").exists()


def test_a_start_that_is_killed_when_all_is_installed(checkout: Path, own_wheels: dict[str, str]) -> None:
    """The next one finds all installed, and cleans nothing up."""
    program(checkout, "rm", f'[[ -e .venv/run.sha256 ]] || exec {shutil.which("rm")} "$@"; kill -9 $PPID')
    assert setup(checkout, **own_wheels).returncode == -signal.SIGKILL
    assert setup(checkout, **own_wheels).returncode == 0
    assert works(checkout)


PIP_SAYS = """\
global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://global.example/simple'
install.index-url='https://user:password@install.example/simple'
install.no-index='false'
:env:.default-timeout='7'
:env:.find-links='/wheels /more'
global.trusted-host='a.example'
list.index-url='https://of-another-command.example'
"""


def test_uv_is_told_what_pip_is_set_to() -> None:
    settings = by_uv.parse(PIP_SAYS)
    told = by_uv.uv_variables(settings, {"CURL_CA_BUNDLE": "/site.pem"})
    assert told == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://user:password@install.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_HTTP_TIMEOUT": "7",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "a.example",
        "SSL_CERT_FILE": "/site.pem",
    }
    assert not [
        word for word in by_uv.uv_command(settings, "run.lock", []) if "example" in word or word == "--no-index"
    ]


def test_of_several_settings_of_pip_the_environments_counts_and_then_that_of_install() -> None:
    assert by_uv.parse(":env:.timeout='1'\ninstall.timeout='2'\nglobal.timeout='3'\n") == {"timeout": "1"}
    assert by_uv.parse("install.timeout='2'\nglobal.timeout='3'\n") == {"timeout": "2"}


def test_uv_has_the_proxy_and_the_certificates_of_pip(tmp_path: Path) -> None:
    settings = by_uv.parse(f"global.proxy='http://p:1'\n:env:.cert='{tmp_path}'\n:env:.no-index='1'\n")
    told = by_uv.uv_variables(settings, {"CURL_CA_BUNDLE": "/site.pem"})
    assert told["HTTPS_PROXY"] == told["HTTP_PROXY"] == "http://p:1"
    assert told["SSL_CERT_DIR"] == str(tmp_path) and "SSL_CERT_FILE" not in told
    assert "--no-index" in by_uv.uv_command(settings, "run.lock", [])


def test_where_the_users_pip_installs_is_not_where_this_does(checkout: Path, own_wheels: dict[str, str]) -> None:
    elsewhere = "".join(f"{option} = {checkout}/x\n" for option in ("target", "prefix", "root"))
    (checkout / "pip.conf").write_text(f"[install]\nuser = true\n{elsewhere}[global]\nrequire-virtualenv = true\n")
    done = setup(checkout, **own_wheels | {"PIP_CONFIG_FILE": str(checkout / "pip.conf")})
    assert (done.returncode, done.stderr) == (0, "")
    assert works(checkout) and not (checkout / "x").exists()


def test_of_two_first_starts_the_second_waits(checkout: Path, own_wheels: dict[str, str]) -> None:
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: setup(checkout, **own_wheels), range(2)))
    assert [one.returncode for one in done] == [0, 0], done
    assert "waiting for it" in "".join(one.stdout for one in done)
    assert "".join(one.stdout for one in done).count("installing locks/run.lock") == 1
    assert works(checkout)


CUTS = 6  # by uv, and as many by pip


@pytest.mark.slow
@pytest.mark.ci
def test_a_start_that_is_cut_anywhere(checkout: Path, own_wheels: dict[str, str]) -> None:
    """At random moments, spread over the whole of an undisturbed start, by each signal in turn."""
    begin = time.monotonic()
    assert setup(checkout, **own_wheels).returncode == 0
    whole_s = time.monotonic() - begin
    cut = 0
    numbers = itertools.cycle((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    while cut < CUTS:
        shutil.rmtree(checkout / ".venv")
        command = ["env", "--default-signal=INT", "bash", "launch/setup.sh"]
        environment = {"PATH": f"{checkout}/bin"} | own_wheels
        child = subprocess.Popen(command, cwd=checkout, env=environment, start_new_session=True)
        time.sleep((cut + random.random()) / CUTS * whole_s)
        if child.poll() is None:  # Ctrl-C goes to all that it started, the others to it alone
            number = next(numbers)
            (os.killpg if number == signal.SIGINT else os.kill)(child.pid, number)
            cut += 1
        else:
            whole_s *= 0.8  # the first start took longer
        child.wait()
        again = setup(checkout, **own_wheels)
        assert again.returncode == 0, (cut, again.stderr)
        assert works(checkout), cut


def test_a_set_up_checkout_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)
    program(checkout, "../.venv/bin/python", "exit 1")
    for lock in ("run", "dev"):
        digest = hashlib.sha256((checkout / f"locks/{lock}.lock").read_bytes()).hexdigest()
        (checkout / f".venv/{lock}.sha256").write_text(f"{digest}  -\n")
    done = setup(checkout, "run", "dev")  # there is no Python: any work would fail
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (checkout / "locks/run.lock").open("a") as lock_file:
        lock_file.write("# another lock\n")
    assert setup(checkout, "run").returncode == 2


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12"])
def test_the_lock_has_a_wheel_of_everything_for(version: str, tmp_path: Path) -> None:
    """Needs the package index, as set-up does."""
    install = ("uv", "pip", "install", "--dry-run", "--no-deps", "--only-binary", ":all:", "--require-hashes")
    where = ("--target", str(tmp_path), "--python-version", version, "--requirement", "locks/run.lock")
    done = jobs.run([*install, *where], PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "paddlepaddle-gpu==2.6.2" in done.stderr


def test_every_package_of_the_locks_and_each_hash_is_in_the_bill_of_materials(tmp_path: Path) -> None:
    """Of the image, by cyclonedx-py."""
    tool = jobs.REPOSITORY / ".venv/bin/cyclonedx-py"
    need(tool.exists(), f"{tool}: launch/setup.sh run dev installs it")
    printed("launch/sbom.sh", str(tmp_path / "sbom.json"))
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    locks = "".join((jobs.REPOSITORY / f"locks/{name}.lock").read_text() for name in ("run", "cuda"))
    purls = {f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^(\S+)==(\S+)", locks, re.M)}
    assert {component["purl"] for component in found["components"]} == purls
    references = [reference for component in found["components"] for reference in component["externalReferences"]]
    hashes = {entry["content"] for reference in references for entry in reference.get("hashes", ())}
    assert hashes == set(re.findall(r"--hash=sha256:(\w+)", locks))


@pytest.mark.parametrize(("failure", "tries"), [("exit 1", 3), ("exit 130", 1), ('mkdir -p "$3/usr"; exit 1', 1)])
def test_only_a_mirror_that_fails_is_asked_again_for_the_images_base(tmp_path: Path, failure: str, tries: int) -> None:
    """Not if the user ended debootstrap, or if it has all packages: it cannot unpack them twice in one folder."""
    jobs.script(tmp_path / "debootstrap", f"#!/bin/sh\necho asked >>{tmp_path}/calls\n{failure}\n")
    jobs.script(tmp_path / "id", "#!/bin/sh\necho 0\n")
    jobs.script(tmp_path / "sleep", "#!/bin/sh\n")
    command = ["launch/base_image.sh", "--mirror", "http://mirror.invalid/debian", "--root", str(tmp_path / "root")]
    done = jobs.run(command, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "base_image.sh: debootstrap failed (mirror http://mirror.invalid/debian)" in done.stderr
    assert (tmp_path / "calls").read_text() == "asked\n" * tries
