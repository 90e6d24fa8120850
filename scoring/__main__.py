"""`python -m scoring <command>`: throughput, comparison, reports and planning from logs."""

import argparse
import importlib
import io
import sys

from runlog import named_files
from runlog.completion import complete
from runlog.errors import drop_output
from runlog.text import MOST_OF_A_LINE, called, visible
from scoring.commands import COMMANDS
from scoring.record import InputError, TooFewRunsError


def main(argv: list[str] | None = None) -> int:
    """Run the command that the first argument names, and return its exit status.

    - The command ends: the status that it returns.
    - The reader of the output has closed the pipe, as `| head` does: 0.
    - There are too few runs for a score: 1, and one line on stderr.
    - A wrong argument, or a file that cannot be read or written: 2, and one line on stderr.

    `argv` are the words after the program's name; None means those of this process. If a shell asks for completions,
    it is answered, and the process ends.
    """
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log's text may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    name = argv[0] if argv else None  # a command's name, if it is one; the parser rejects anything else
    parser = _parser(name)
    complete(parser)  # if a shell asks for completions, this answers it and ends the process
    args = parser.parse_args(argv)
    try:
        named_files.check_options(args)
        status: int = args.main(args)
        return status
    except BrokenPipeError:  # the reader of the output has enough, as in `| head`
        drop_output()
        return 0
    except TooFewRunsError as error:
        text = str(error)
        status = 1
    except (InputError, named_files.UnusableError) as error:
        text = str(error)
        status = 2
    except OSError as error:
        text = named_files.explain(error)
        status = 2
    print(f"{called('scoring')} {name}: {visible(text, MOST_OF_A_LINE)}", file=sys.stderr)  # a path may hold anything
    return status


def _parser(chosen_name: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands. Only the chosen command has its options and its `main`.

    Only that command's module is imported, because some take long to import. None, or a word that is not a command,
    chooses no command.
    """
    parser = argparse.ArgumentParser(prog=called("scoring"), description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == chosen_name:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    return parser


if __name__ == "__main__":
    sys.exit(main())
