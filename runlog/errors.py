"""How a command ends when it cannot go on: ValueError for wrong use, RunError for a failed run."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec

from runlog.text import visible

_P = ParamSpec("_P")

INTERRUPTED = "stopped by signal INT"  # why a run ended by KeyboardInterrupt
INTERRUPTED_STATUS = 128 + signal.SIGINT  # the exit status then, for example of a shell


class RunError(Exception):
    """A run failed at what it was rightly asked to do; the message is one line with what, where and what to do."""


def one_line(main: Callable[_P, int]) -> Callable[_P, int]:
    """Decorate a command's `main` so that an error ends it with one line on stderr and an exit status.

    Args:
        main: The function, which returns an exit status.

    Returns:
        A function with the same arguments, which returns the exit status of `main`. For a ValueError (wrong use) it
        prints "error: ..." and returns 2, for a RunError (a failed run) 1. After Ctrl-C it prints INTERRUPTED and
        returns 130, as a shell would. Other exceptions are not caught.
    """

    @functools.wraps(main)
    def main_in_one_line(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except ValueError as error:
            print(f"error: {message_of(error)}", file=sys.stderr)
            return 2
        except RunError as error:
            print(f"error: {message_of(error)}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(INTERRUPTED, file=sys.stderr)
            return INTERRUPTED_STATUS

    return main_in_one_line


def message_of(error: BaseException) -> str:
    """Return the message of an error on one line; the name of its class if the message is empty.

    Spaces within a line stay as they are: a path may have several in a row, or Unicode's. Other characters that do not
    print are escaped, because the name of a file may hold a command to the terminal.

    Args:
        error: The error.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line)
    safe_text = "".join(character if character.isspace() else visible(character) for character in text)
    return safe_text or type(error).__name__


def drop_output() -> None:
    """Send everything that is still to be printed to /dev/null. Call this where the output cannot be written.

    Otherwise Python flushes stdout again when it ends, and prints a second error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_to_reader(text: str, *, end: str = "\n") -> None:
    """Print a text and flush it. If the reader has closed the pipe, as `| head` does, drop the output silently.

    Args:
        text: The text.
        end: What is printed behind it.

    Raises:
        RunError: The output cannot be written, as on a full disk.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        raise RunError(f"the output cannot be written ({error.strerror}): name another file for it") from error


def flush_output() -> None:
    """Flush what was printed, so that a command, and not Python at its end, tells what becomes of it.

    If the reader has closed the pipe, the output is dropped silently.

    Raises:
        RunError: The output cannot be written, as on a full disk.
    """
    print_to_reader("", end="")
