"""The parser of a command's words, whose errors are one line."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from runlog.errors import RunError, print_to_reader
from runlog.text import MAX_LINE_CHARS, visible

_EMPTY = re.compile("(--[^=]+=)?")  # a word, or the value of an option in it


class Parser(argparse.ArgumentParser):
    """A parser that answers wrong words with one line. Python's own puts the usage above it, which may take ten."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the options of the command line; if it has an unknown one, end the process with status 2.

        Otherwise the parser of all commands would tell of a command's unknown option, and name its own --help, which
        does not list the options of that command.

        Args:
            args: Words of the command line, as in argparse.
            namespace: Object that takes the options, as in argparse.

        Returns:
            The options, and an empty list, where argparse has the unknown words.
        """
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def print_help(self, file: Any = None) -> None:
        """Print the text of --help. If it cannot be written, as on a full disk, end the process with status 1.

        Args:
            file: File for the text, as in argparse; None: the standard output.
        """
        if file is not None:
            super().print_help(file)
            return
        try:
            print_to_reader(self.format_help(), end="")
        except RunError as error:
            self.exit(1, f"{self.prog}: {error}\n")

    def error(self, message: str) -> NoReturn:
        """End the process with status 2, and with a line that says what is wrong and where the options are listed.

        Args:
            message: What is wrong with the words on the command line.
        """
        self.exit(2, f"{self.prog}: {visible(message, MAX_LINE_CHARS)}; see {self.prog} --help\n")


def refuse_empty_words(parser: Parser, words: Sequence[str]) -> None:
    """End the process with status 2 if a word of the command line is empty, as "$LOG" is where LOG is not set.

    As a path, an empty word would be the current folder. The value in --out="$OUT" counts as a word of its own.

    Args:
        parser: The parser of the command.
        words: The words of the command line.
    """
    for number, word in enumerate(words):
        if not _EMPTY.fullmatch(word):
            continue
        where = word or (f"behind {words[number - 1]}" if number > 0 else "the first")  # as "--out=" or "behind --out"
        parser.error(f"an argument is empty ({where}), as where a variable is not set: give it, or leave it out")
