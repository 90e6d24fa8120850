"""Whether a Python can run `python -m scoring` and its like. An older Python, from 3.6 on, has to read this file."""

import importlib.util
import sys

OLDEST = (3, 10)
PACKAGES = ("yaml",)  # without which no command works
PACKAGES_OF_TOOLS = ("yaml", "rich")
WHAT_TO_DO = (
    "use .venv/bin/python, which ./run_and_time.sh sets up, or `pip install .` into a venv of Python 3.10 or newer"
)


def refuse_unfit(package: str) -> None:
    """Print one line and exit with status 2 if a command `python -m PACKAGE` was started by an unfit Python.

    A Python is unfit if it is older than 3.10 (OLDEST), or if it lacks a package that the command needs. Call this
    function in the `__init__.py` of PACKAGE, which Python runs before the command itself. If a program only imports
    PACKAGE, nothing happens.

    Args:
        package: PACKAGE, such as "scoring"; "tools" for commands such as `python -m tools.doctor`, which need the
            package rich as well.

    Raises:
        SystemExit: The Python is unfit.
    """
    # Python sets sys.argv[0] to "-m" while `python -m` imports the package of its command, and only then to the
    # path of the command. A program that imports PACKAGE later finds its own path there.
    is_started_by_m = sys.argv[:1] == ["-m"]
    if not is_started_by_m:
        return
    # "is Python 3.9", "lacks the package yaml", or an empty text if this Python is fit
    reason = _reason_why_unfit(PACKAGES_OF_TOOLS if package == "tools" else PACKAGES)
    if reason:
        print(f"python -m {_started_module(package)}: {sys.executable} {reason}: {WHAT_TO_DO}", file=sys.stderr)
        sys.exit(2)


def _reason_why_unfit(needed_packages: "tuple[str, ...]") -> str:
    """Return why this Python cannot run a command, such as "lacks the package numpy"; an empty text if it can.

    Args:
        needed_packages: Names of the packages that the command imports.
    """
    if sys.version_info[:2] < OLDEST:
        return f"is Python {sys.version_info[0]}.{sys.version_info[1]}"
    for name in needed_packages:
        if importlib.util.find_spec(name) is None:
            return f"lacks the package {name}"
    return ""


def _started_module(package: str) -> str:
    """Return the module that is being started, such as "tools.doctor".

    Args:
        package: The package that is returned if Python does not tell the module, as none before 3.10 does.
    """
    words = getattr(sys, "orig_argv", [])
    if "-m" not in words[:-1]:
        return package
    return str(words[words.index("-m") + 1])
