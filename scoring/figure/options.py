"""Options that commands about figures have in common: those that choose a protocol and say what logs leave out."""

import argparse
from collections.abc import Callable
from typing import Any

from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.importers import add_log_options, count
from scoring.record import InputError


def add_system_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the machine where logs do not."""
    parser.add_argument("--system", metavar="NAME", help="the machine, where the logs do not say their hardware")


def add_score_options(
    parser: argparse.ArgumentParser, kind: Callable[[str], Any] = count, protocol: str | None = None, without: str = ""
) -> None:
    """Add the options that choose a protocol, and those that say what logs leave out.

    `kind` turns the text of --devices and --batch into their value. `protocol` is the name of the default protocol.
    Without a default the user must give --protocol, but where `without` is given: it says in the help what is done
    when the option is left out.
    """
    default_in_words = protocol or without
    text = "a name, or a YAML file of your own"
    if default_in_words:
        text += f" (default: {default_in_words})"
    is_required = not default_in_words
    parser.add_argument("--protocol", required=is_required, default=protocol, metavar="P", help=text)
    parser.add_argument("--skip", type=whole, metavar="N", help="drop N windows (epochs), not the protocol's number")
    parser.add_argument("--runs", type=count, metavar="N", help="ask for N runs, not the protocol's number")
    add_log_options(parser, kind)


def counts(text: str) -> list[int]:
    """Return the numbers of an option's text: [8] of `8`, [1, 8, 32] of `1,8,32`."""
    return [count(item) for item in text.split(",")]


def whole(text: str) -> int:
    """Return the whole number that an option's text is. Raises ValueError where it is none, or below 0."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def protocol_of(args: argparse.Namespace) -> Protocol:
    """Return the protocol that the options choose. Raises InputError for none of that name, or for too few runs."""
    protocol = protocols.find(args.protocol)
    if args.runs is not None:
        if protocol.over_runs == "olympic_mean" and args.runs < 3:
            raise InputError("an olympic mean drops two runs: --runs must be 3 or more")
        protocol = protocol.asking(args.runs)
    return protocol
