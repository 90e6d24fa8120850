"""`python -m scoring` in the tests' own process: half a second less a call."""

import contextlib
import io
from collections.abc import Callable
from typing import Any, NamedTuple

from scoring.__main__ import main

Command = Callable[..., tuple[int, dict[str, Any], str]]  # exit code, parsed output, standard error


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def scoring(*arguments: object) -> Done:
    """The command with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
