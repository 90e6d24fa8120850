"""Completes the words of a command in the user's shell, by argcomplete.

`eval "$(register-python-argcomplete paddle-reference)"` has bash call the command when the user asks for the next word.
It then finds the line in COMP_LINE and the cursor in COMP_POINT, answers on file descriptor 8, and does nothing else.
"""

import argparse
import os

# argcomplete's: the number of the word of the line that is the program's name
PROGRAM_IS_WORD = "_ARGCOMPLETE"


def is_asked() -> bool:
    """Return whether a shell started this process to ask for the next word."""
    return PROGRAM_IS_WORD in os.environ


def words_before_cursor() -> list[str]:
    """Return the complete words before the cursor on the shell's command line, the program's name first.

    A shell asks for completions by starting the program with its line in COMP_LINE and its cursor in COMP_POINT.

    Returns:
        The words. The word at the cursor is left out: `paddle-reference watch lo<Tab>` -> ["paddle-reference",
        "watch"].

    Raises:
        ValueError: COMP_POINT is not a whole number, so the cursor is not known.
    """
    line = os.environ.get("COMP_LINE", "")
    before_cursor = line[: _cursor()]
    words = before_cursor.split()
    if words and not before_cursor[-1].isspace():
        words.pop()  # the word at the cursor is not complete
    return words


def _cursor() -> int:
    """Return the index of the cursor in the shell's line. Raises ValueError if COMP_POINT is not a whole number."""
    text = os.environ.get("COMP_POINT", "")
    if not text.isdecimal():
        raise ValueError(f"COMP_POINT={text!r}: must be a whole number, as the shell sets it: unset {PROGRAM_IS_WORD}")
    return int(text)


def hide_words_from_parser(count: int) -> None:
    """Hide the first words of the shell's line from the parser that `complete` asks.

    Call this before `complete`. For `paddle-reference watch --on<Tab>` and 2, the parser of `watch` completes `--on`.

    Args:
        count: How many words to hide, the program's name included.
    """
    os.environ[PROGRAM_IS_WORD] = str(count)  # argcomplete leaves out the words up to the program's name


def complete(parser: argparse.ArgumentParser) -> None:
    """If a shell asks for completions, answer with those of a parser and end the process; otherwise do nothing.

    If the shell does not say where the cursor is, the process ends with status 2 and one line on stderr.

    Args:
        parser: The parser of the command, whose options and arguments are the completions.
    """
    if is_asked():
        try:
            _cursor()
        except ValueError as error:  # argcomplete would end with a traceback
            parser.exit(2, f"{parser.prog}: {error}\n")
        import argcomplete  # slow to import, so only here

        argcomplete.autocomplete(parser)
