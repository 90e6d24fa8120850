"""The parser of a command's words, whose errors are one line."""

import argparse
from typing import NoReturn

from runlog.text import MOST_OF_A_LINE, visible


class Parser(argparse.ArgumentParser):
    """A parser that answers wrong words with one line. Python's own puts the usage above it, which may take ten."""

    def error(self, message: str) -> NoReturn:
        """End the process with status 2, and with a line that says what is wrong and where the options are listed.

        Args:
            message: What is wrong with the words on the command line.
        """
        self.exit(2, f"{self.prog}: {visible(message, MOST_OF_A_LINE)}; see {self.prog} --help\n")
