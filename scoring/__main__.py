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
    """Run the command that the first argument names. Returns its exit status: 0 done, 1 a check failed, 2 wrong use.

    `argv` are the words after the program's name; None means those of this process. Only the module of the named
    command is loaded, as some take long to import. An error of the user or of a file becomes one line on stderr. A
    reader of the output who stops early, as `| head` does, ends it without an error.
    """
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log's text may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    name = argv[0] if argv else None
    parser = _parser(name)
    complete(parser)  # answers a shell that asks how the command line may go on
    args = parser.parse_args(argv)
    try:
        named_files.check_options(args)
        return args.main(args)
    except BrokenPipeError:
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


def _parser(loaded: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands, of which `loaded` alone has its own options and its `main`."""
    parser = argparse.ArgumentParser(prog=called("scoring"), description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == loaded:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    return parser


if __name__ == "__main__":
    sys.exit(main())
