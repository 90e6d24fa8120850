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
    """End this process with one line if it is `python -m PACKAGE` by a Python that is too old or lacks a package.

    Call it in the package's `__init__.py`, which is read first. A program that imports the package is let pass.

    Args:
        package: The package, as "scoring", or "tools" for all of its modules.

    Raises:
        SystemExit: The Python is unfit, status 2.
    """
    # Python puts "-m" there while it looks for the module to start, and the path of the module when it has found it. So
    # it stands there only while the package that was named after -m is imported.
    is_started = sys.argv[:1] == ["-m"]
    if not is_started:
        return
    reason = ""
    if sys.version_info[:2] < OLDEST:
        reason = f"is Python {sys.version_info[0]}.{sys.version_info[1]}"
    for name in PACKAGES_OF_TOOLS if package == "tools" else PACKAGES:
        if not reason and importlib.util.find_spec(name) is None:
            reason = f"lacks the package {name}"
    if reason:
        print(f"python -m {_started_module(package)}: {sys.executable} {reason}: {WHAT_TO_DO}", file=sys.stderr)
        sys.exit(2)


def _started_module(package: str) -> str:
    """Return the module that is being started, as "tools.doctor".

    Args:
        package: The package that is returned if Python does not tell the module, as none before 3.10 does.
    """
    words = getattr(sys, "orig_argv", [])
    if "-m" not in words[:-1]:
        return package
    return str(words[words.index("-m") + 1])
