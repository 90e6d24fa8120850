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
    """Return the words of the shell's line that stand before the one at the cursor, the program's name first.

    Raises ValueError where the shell does not say where the cursor is.
    """
    line = os.environ.get("COMP_LINE", "")
    before = line[: _cursor()]
    words = before.split()
    if words and not before[-1].isspace():
        words.pop()  # the word at the cursor
    return words


def _cursor() -> int:
    """Return the index of the cursor in the shell's line. Raises ValueError where COMP_POINT is no whole number."""
    text = os.environ.get("COMP_POINT", "")
    if not text.isdecimal():
        raise ValueError(f"COMP_POINT={text!r}: must be a whole number, as the shell sets it: unset {PROGRAM_IS_WORD}")
    return int(text)


def count_as_program(word: int) -> None:
    """Take this word of the line, counted from 1, for the program's name: the parser knows those behind it."""
    os.environ[PROGRAM_IS_WORD] = str(word)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for the next word of this parser, and end the process; return where none asks.

    Raises ValueError where the shell does not say where the cursor is.
    """
    if is_asked():
        _cursor()  # argcomplete would end with a traceback
        import argcomplete  # which no other start of a command waits for

        argcomplete.autocomplete(parser)
