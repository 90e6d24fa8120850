"""`python -m scoring <command>`: throughput, comparison, reports and planning from logs."""

import argparse
import importlib
import io
import sys

from runlog import completion, named_files, text
from runlog.errors import drop_output
from runlog.options import Parser
from scoring.commands import COMMANDS
from scoring.record import InputError, TooFewRunsError


def main(argv: list[str] | None = None) -> int:
    """Run the command that the first argument names, and return its exit status.

    `argv` are the words after the program's name; None takes those of this process. The status is 2 for an argument or
    file that cannot be used, 1 for too few runs, and 0 if a reader closes the pipe. Otherwise it is the command's own.
    """
    words = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log's text may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    name = words[0] if words else None  # a command's name, if it is one; the parser rejects anything else
    parser = _parser(name)
    completion.complete(parser)  # ends the process if a shell asks for completions
    options = parser.parse_args(words)
    try:
        named_files.check_options(options)
        status: int = options.main(options)
        return status
    except BrokenPipeError:  # a reader of the output, such as `| head`, has closed the pipe
        drop_output()
        return 0
    except TooFewRunsError as error:
        _print_error(name, str(error))
        return 1
    except (InputError, named_files.UnusableError) as error:
        _print_error(name, str(error))
        return 2
    except OSError as error:
        _print_error(name, named_files.explain(error))
        return 2


def _print_error(command: str | None, error: str) -> None:
    """Print an error of a command as one line on stderr, made safe to print: a path in it may hold anything."""
    program = text.called("scoring")  # as the user called it
    print(f"{program} {command}: {text.visible(error, text.MOST_OF_A_LINE)}", file=sys.stderr)


def _parser(chosen_name: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands, in which only the command `chosen_name` has its options and its `main`.

    The modules of the other commands are not imported, because some take long to import. If `chosen_name` is None or no
    command's name, no module is imported.
    """
    parser = Parser(prog=text.called("scoring"), description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        if name == chosen_name:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    return parser


if __name__ == "__main__":
    sys.exit(main())
