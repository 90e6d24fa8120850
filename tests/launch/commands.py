"""What a launcher's command prints, and how it refuses wrong use."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests import jobs


def printed(*command: str, **variables: str) -> str:
    """What a command that succeeds prints."""
    done = jobs.run(command, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resolved(stdout: str) -> dict[str, Any]:
    """The configuration that a dry run prints."""
    return json.JSONDecoder().raw_decode(stdout[stdout.index("\n{\n") + 1 :])[0]


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    """Exit status 2, and one line."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr
