"""How a command ends when it cannot go on: ValueError for wrong use, RunError for a failed run."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


class RunError(Exception):
    """A run failed at what it was rightly asked to do; the message is one line with what, where and what to do."""


def one_line(main: Callable[_P, int]) -> Callable[_P, int]:
    """Decorate a command's `main` so that an error is one line on stderr and an exit status.

    A ValueError, for wrong use, becomes 2, and a RunError, for a failed run, 1. Any other error passes as it is.
    """

    @functools.wraps(main)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except RunError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    return called
