"""`python -m scoring <command>`: throughput, comparison, reports and planning from logs."""

import argparse
import importlib
import io
import os
import sys

from runlog import named_files
from runlog.completion import complete
from runlog.text import MOST_OF_A_LINE, called, visible
from scoring.commands import COMMANDS
from scoring.record import InputError, TooFewRunsError


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns 0 done, 1 the check failed, 2 wrong use or bad input."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log's text may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog=called("scoring"), description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = argv[0] if argv else None
    for name, (module_name, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == wanted:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(main=module.main)
    complete(parser)
    args = parser.parse_args(argv)
    try:
        named_files.check_options(args)
        return args.main(args)
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except TooFewRunsError as error:
        text, code = str(error), 1
    except (InputError, named_files.UnusableError) as error:
        text, code = str(error), 2
    except OSError as error:
        text, code = named_files.explain(error), 2
    print(f"{called('scoring')} {wanted}: {visible(text, MOST_OF_A_LINE)}", file=sys.stderr)  # a path may hold anything
    return code


if __name__ == "__main__":
    sys.exit(main())
