"""Options that commands about figures have in common: those that choose a protocol and say what logs leave out."""

import argparse
from collections.abc import Callable
from typing import Any

from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.importers import add_log_options, count
from scoring.record import InputError


def add_system_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --system, which names the machine if the logs do not."""
    parser.add_argument("--system", metavar="NAME", help="the machine, where the logs do not say their hardware")


def add_score_options(
    parser: argparse.ArgumentParser,
    convert: Callable[[str], Any] = count,
    protocol: str | None = None,
    default_in_words: str = "",
) -> None:
    """Add the options of commands that score logs: --protocol, --skip, --runs, --devices, --batch, --segment, --format.

    A command gives `protocol` if --protocol has a default. It gives `default_in_words` if it chooses a protocol later
    where the user gives none. If it gives neither, the user must give --protocol.

    Args:
        parser: The parser of the command.
        convert: Function that turns the text of --devices or --batch into a value: `count` for the one number of a
            single system, `counts` for a list with a number for each of several systems.
        protocol: The default of --protocol, such as "window".
        default_in_words: How the command chooses, for the help, such as "window, or ...".
    """
    _add_protocol_option(parser, protocol, shown_default=protocol or default_in_words)
    add_skip_option(parser)
    parser.add_argument("--runs", type=count, metavar="N", help="ask for N runs, not the protocol's number")
    # Any other function than `count` reads a list, so the help of --devices and --batch shows N,... in place of N.
    add_log_options(parser, convert, of_several_systems=convert is not count)


def add_skip_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --skip, whose number means what the protocol counts.

    Args:
        parser: The parser of the command.
    """
    text = "drop N windows (epochs), not the protocol's number; between stamps: start at the Nth stamp"
    parser.add_argument("--skip", type=whole, metavar="N", help=text)


def _add_protocol_option(parser: argparse.ArgumentParser, default: str | None, shown_default: str) -> None:
    """Add the option --protocol to the parser of a command; the option is required if the command has no default.

    A command is of one of three kinds:

        default     shown_default       if the user does not give --protocol
        "window"    "window"            the protocol "window" is taken
        None        "window, or ..."    the command itself chooses a protocol later, as `shown_default` says
        None        ""                  the parser reports an error, because --protocol is required

    Args:
        parser: The parser of the command.
        default: The value of the option if the user does not give the option.
        shown_default: The default in words, for the help; empty if the command has no default.
    """
    text = "a name, or a YAML file of your own"
    if shown_default:
        text += f" (default: {shown_default})"
    is_required = not shown_default  # `default` does not tell: it is None, too, if the command chooses later
    parser.add_argument("--protocol", required=is_required, default=default, metavar="P", help=text)


def counts(text: str) -> list[int]:
    """Return the numbers of an option's text: [8] of "8", [1, 8, 32] of "1,8,32".

    Args:
        text: The option's value.

    Raises:
        ArgumentTypeError: A part of the text is not a whole number above 0.
    """
    return [count(item) for item in text.split(",")]


def whole(text: str) -> int:
    """Return the whole number in an option's text, such as "5".

    Args:
        text: The option's value.

    Raises:
        ArgumentTypeError: The text is not a whole number, or one below 0.
    """
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 0 or above")
    return value


def protocol_of(args: argparse.Namespace) -> Protocol:
    """Return the measurement protocol that the options --protocol and --runs choose.

    Args:
        args: The parsed options of `add_score_options`.

    Raises:
        InputError: There is no protocol of that name, its file is invalid, or --runs is too few for an olympic mean,
            which drops two runs.
        OSError: The file that --protocol names cannot be read.
    """
    protocol = protocols.find(args.protocol)
    if args.runs is not None:
        if protocol.over_runs == "olympic_mean" and args.runs < 3:
            raise InputError("an olympic mean drops two runs: --runs must be 3 or more")
        protocol = protocol.asking(args.runs)
    return protocol
