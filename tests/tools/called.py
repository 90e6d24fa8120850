"""Commands of tools/ called in the tests' own process: to start one takes seconds."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from unittest import mock

from tests import jobs


def called(main: Callable[[], int], *arguments: object, **variables: str | int) -> subprocess.CompletedProcess[str]:
    """What the command `main` says and how it ends, with `variables` in a clean environment."""
    argv, out, err = [main.__module__, *map(str, arguments)], io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, jobs.environment(**variables), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main()
        except SystemExit as ended:  # argparse's
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(argv, status, out.getvalue(), err.getvalue())
