"""`paddle-reference COMMAND`: the project's commands under one name.

Those of the first list need what `pip install .` brings. Those of the second train, or look at what trains: they need a
checkout and the packages of [train]. In a checkout each is also to be had as `python -m MODULE`.
"""

import argparse
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from compliance import COMMANDS as COMPLIANCE
from runlog import completion
from runlog.errors import one_line, print_to_reader
from scoring.commands import COMMANDS as SCORING

# {command: (module with `main() -> int`, what it does)}
PUBLISHING = {
    **{name: ("compliance.__main__", what) for name, what in COMPLIANCE.items()},
    **{name: ("scoring.__main__", what) for name, (_, what) in SCORING.items()},
    "watch": ("tools.watch", "the newest run under a folder, while it goes on"),
}
WITH_SUBCOMMANDS = ("compliance.__main__", "scoring.__main__")  # modules that read the command's name by themselves
TRAINING = {
    "doctor": ("tools.doctor.__main__", "what will fail in a run, before it"),
    "inspect": ("tools.inspect", "the training program of a configuration, without a GPU"),
    "tune": ("tools.tune.__main__", "search the fastest strategy of this machine"),
    "acceptance": ("tools.acceptance.__main__", "report on what ./run_and_time.sh --acceptance ran"),
    "fleet": ("tools.fleet.__main__", "name the slow node by what ./run_and_time.sh --fleet measured"),
    "pack": ("tools.pack", "make RecordIO of an image folder"),
}


def usage() -> str:
    """Return the text of --help: every command with what it does."""
    lines = ["usage: paddle-reference COMMAND ...       its options: paddle-reference COMMAND --help", ""]
    lines += _listed(PUBLISHING)
    lines += ["", "in a checkout, with the packages of [train]:"]
    lines += _listed(TRAINING)
    lines += ["", "  --version"]
    return "\n".join(lines)


def _listed(commands: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return a line for each command: its name and what it does, in two columns.

    Args:
        commands: (module, what it does) by the command's name.
    """
    return [f"  {name:15}{what}" for name, (_, what) in commands.items()]


def version() -> str:
    """Return the name and version of the installed package; if none is installed, those of this checkout."""
    try:
        return f"paddle-reference {metadata.version('paddle-reference-submission')}"
    except metadata.PackageNotFoundError:
        project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        found = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
        return f"paddle-reference {found[1] if found else 'of an unknown version'}, a checkout"


@one_line
def main() -> int:
    """Run the command that the first word of the command line names, and return its exit status.

    The status is 2 for an unknown command, or for one whose packages are missing. Without any word, the list of
    commands is printed. If a shell asks for completions, it is answered instead.
    """
    if completion.is_asked():
        return answer_completion()
    name, *options = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print_to_reader(usage())
        return 0
    if name == "--version":
        print_to_reader(version())
        return 0
    commands = PUBLISHING | TRAINING
    if name not in commands:
        print(f"error: {name}: no such command: use one of {', '.join(commands)}", file=sys.stderr)
        return 2

    return run(name, options)


def answer_completion() -> int:
    """Print the completions that a user asks a shell for with Tab, and end the process.

    `paddle-reference wa<Tab>` completes the name of a command, and `paddle-reference watch --on<Tab>` completes the
    options of the command `watch`. In both cases the process ends inside, and this function does not return.

    Returns:
        The exit status, only if nothing can be completed: 2 for an unknown command, or the status of a command that
        ended before its parser could print, such as 2 for a missing package.

    Raises:
        ValueError: The shell does not say where the cursor is.
    """
    words = completion.words_before_cursor()  # ["paddle-reference", "watch"] for `paddle-reference watch --on<Tab>`
    if len(words) < 2:  # only the program's own name
        _complete_command_name()  # ends the process, so the lines below need no `else`
    name = words[1]  # "watch"
    is_known = name in PUBLISHING | TRAINING  # the tables of all commands
    return _complete_options(name) if is_known else 2


def _complete_command_name() -> NoReturn:
    """Print the completions of a command's name for the shell that asks for them, and end the process."""
    parser = argparse.ArgumentParser(prog="paddle-reference")
    parser.add_argument("command", choices=list(PUBLISHING | TRAINING))
    parser.add_argument("--version", action="version")
    completion.complete(parser)  # ends the process, because a shell asks
    raise AssertionError("no shell asks for completions")


def _complete_options(name: str) -> int:
    """Print the completions of a command's options for the shell that asks for them, and end the process.

    Only the command's own argument parser knows the options. So the command is started: its parser sees that a shell
    asks, prints the completions and ends the process.

    Args:
        name: Name of the command, such as "watch".

    Returns:
        The exit status, only if the command ends before its parser prints: 2 if a package is missing, for example.
    """
    # The parser reads the user's line from the environment (COMP_LINE), so no options are passed on. It takes the first
    # word of `paddle-reference watch --on` for the program's name, and all words behind as arguments.
    if not _has_subcommands(name):
        # The parser of `watch` has no argument "watch". So the second word is to count as the program's name, which a
        # variable of the environment says. A parser with subcommands reads the command's name itself.
        completion.hide_words_from_parser(2)
    return run(name, options=[])  # ends the process inside, unless the command ends before its parser is asked


def _has_subcommands(name: str) -> bool:
    """Return whether the module of a command serves other commands, too, and so reads the command's name by itself.

    Args:
        name: Name of the command, such as "watch".
    """
    module, _ = (PUBLISHING | TRAINING)[name]
    return module in WITH_SUBCOMMANDS


def run(name: str, options: list[str]) -> int:
    """Run a command of this project, and return its exit status.

    If a package is missing, an error that names it is printed, and the status is 2. A command of TRAINING needs Paddle
    even if it does not import it.

    Args:
        name: Name of the command, a key of PUBLISHING or TRAINING.
        options: The words on the command line after the name.
    """
    _set_arguments(name, options)
    module, _ = (PUBLISHING | TRAINING)[name]
    try:
        if name in TRAINING:
            _require_paddle()
        return int(importlib.import_module(module).main())
    except ModuleNotFoundError as missing:
        print(
            f"error: {name} needs the package {missing.name}: in a checkout pip install -e '.[train]' brings it, "
            "or launch/setup.sh",
            file=sys.stderr,
        )
        return 2


def _require_paddle() -> None:
    """Raise ModuleNotFoundError if Paddle is not installed. It is only looked for, not imported."""
    if importlib.util.find_spec("paddle") is None:
        raise ModuleNotFoundError(name="paddle")


def _set_arguments(name: str, options: list[str]) -> None:
    """Set `sys.argv`, the program's name and its arguments, to what the parser of a command expects.

    A parser with subcommands reads the command's name as the first argument. For any other parser, the name becomes a
    part of the program's name, which messages show:

        command line                       with subcommands    sys.argv
        paddle-reference report run.txt    yes                 ["/usr/bin/paddle-reference", "report", "run.txt"]
        paddle-reference watch results     no                  ["paddle-reference watch", "results"]

    Args:
        name: Name of the command, such as "watch".
        options: The words on the command line after the name.
    """
    if _has_subcommands(name):
        sys.argv[1:] = [name, *options]  # sys.argv[0], the program's name, stays as it is
    else:
        sys.argv[:] = [f"paddle-reference {name}", *options]  # replaces sys.argv[0], too


if __name__ == "__main__":
    sys.exit(main())
