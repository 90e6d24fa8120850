"""Completes the words of a command in the user's shell, by argcomplete.

`eval "$(register-python-argcomplete paddle-reference)"` has bash call the command when the user asks for the next word.
It then finds the line in COMP_LINE and the cursor in COMP_POINT, answers on file descriptor 8, and does nothing else.
"""

import argparse
import os

# argcomplete's: the number of the word of the line that is the program's name
PROGRAM_IS_WORD = "_ARGCOMPLETE"


def is_asked() -> bool:
    """Tell whether a shell asks for the next word."""
    return PROGRAM_IS_WORD in os.environ


def words_before_cursor() -> list[str]:
    """Return the words of the shell's line that stand before the one at the cursor, the program's name first."""
    line = os.environ.get("COMP_LINE", "")
    point = os.environ.get("COMP_POINT", "")
    before = line[: int(point)] if point.isdigit() else line
    words = before.split()
    if words and not before[-1].isspace():
        words.pop()
    return words


def count_as_program(word: int) -> None:
    """Take this word of the line, counted from 1, for the program's name: the parser knows those behind it."""
    os.environ[PROGRAM_IS_WORD] = str(word)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for the next word of this parser, and end the process; return where none asks."""
    if is_asked():
        import argcomplete  # which no other start of a command waits for

        argcomplete.autocomplete(parser)
