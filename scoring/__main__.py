"""`python -m scoring <command>`: throughput, comparison, reports and planning from logs."""

import importlib
import io
import sys

from runlog import completion, interpreter, named_files, text
from runlog.errors import INTERRUPTED, INTERRUPTED_STATUS, RunError, drop_output, flush_output
from runlog.options import Parser, refuse_empty_words
from scoring.commands import COMMANDS
from scoring.record import InputError, TooFewRunsError


def main(argv: list[str] | None = None) -> int:
    """Run the command of `python -m scoring` that the first argument names, such as `score`, and return an exit status.

    Words that the parser rejects end the process at once, with status 2.

    Args:
        argv: Words after the program's name, as ["score", "run.log"]. None takes the words of this process.

    Returns:
        The exit status, in the order of the code:

        - 2: the command needs a package that is not installed
        - the status that the command returns, usually 0: no error occurred
        - 0: a reader of the output, such as `head`, closed the pipe while the command printed
        - 1: there are too few runs
        - 2: a file, a value or the output cannot be used
        - 130: the user pressed Ctrl-C
    """
    words = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log's text may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    name = words[0] if words else None  # a command's name, if it is one; the parser rejects anything else
    try:
        parser = _parser(name)  # imports the module of the command, and so the packages that the command needs
    except ModuleNotFoundError as missing:
        _print_error(name, f"needs the package {missing.name}: {interpreter.WHAT_TO_DO}")
        return 2
    completion.complete(parser)  # ends the process if a shell asks for completions
    refuse_empty_words(parser, words)
    options = parser.parse_args(words)
    try:
        named_files.check_options(options)
        status: int = options.main(options)
        flush_output()
        return status
    except BrokenPipeError:  # a reader of the output, such as `| head`, has closed the pipe
        drop_output()
        return 0
    except TooFewRunsError as error:
        _print_error(name, str(error))
        return 1
    except (InputError, RunError, named_files.UnusableError) as error:
        _print_error(name, str(error))
        return 2
    except OSError as error:
        _print_error(name, named_files.explain(error))
        return 2
    except KeyboardInterrupt:
        _print_error(name, INTERRUPTED)
        return INTERRUPTED_STATUS


def _print_error(command: str | None, error: str) -> None:
    """Print an error of a command as one line on stderr, made safe to print: a path in it may hold anything.

    Args:
        command: Name of the command, such as "score".
        error: Text of the error.
    """
    program = text.called("scoring")  # as the user called it
    print(f"{program} {command}: {text.visible(error, text.MAX_LINE_CHARS)}", file=sys.stderr)


def _parser(chosen_name: str | None) -> Parser:
    """Return the parser of all commands, in which only one command has its options and its function `main`.

    The modules of the other commands are not imported, because some take long to import.

    Args:
        chosen_name: Name of this one command, such as "score". If it is None or no command's name, no module is
            imported.

    Raises:
        ModuleNotFoundError: A package of this command is not installed.
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
