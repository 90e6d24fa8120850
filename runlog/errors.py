"""How a command ends when it cannot go on: ValueError for wrong use, RunError for a failed run."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


class RunError(Exception):
    """A run failed at what it was rightly asked to do; the message is one line with what, where and what to do."""


def one_line(main: Callable[_P, int]) -> Callable[_P, int]:
    """Make a command end with 2 for wrong use and 1 for a failed run, after one line on stderr that says why."""

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
