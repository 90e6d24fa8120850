"""How a command ends when it cannot go on: ValueError for wrong use, RunError for a failed run."""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


class RunError(Exception):
    """A run failed at what it was rightly asked to do; the message is one line with what, where and what to do."""


def one_line(main: Callable[_P, int]) -> Callable[_P, int]:
    """Decorate a command's `main` so that an error is printed as one line, `error: ...` on stderr.

    The exit status that is returned in its place is 2 for a ValueError, which is wrong use, and 1 for a RunError, which
    is a failed run. Any other error passes as it is.
    """

    @functools.wraps(main)
    def main_in_one_line(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except RunError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    return main_in_one_line


def message_of(error: BaseException) -> str:
    """Return an error's message on one line; the name of its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def drop_output() -> None:
    """Have what is still to be printed go nowhere, where its reader is gone: Python flushes it once more as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_to_reader(text: str) -> None:
    """Print a text at once, and end quietly where its reader has seen enough and is gone, as in `... | head`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_output()
