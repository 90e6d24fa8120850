"""mlperf-logging's own tools, each run in a process of its own, its text read and not its exit status alone."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compliance.findings import printable
from compliance.rules import RULES

TIMEOUT_S = 600  # the official parser's time grows with the square of a line's length


def run_tool(tool: str, arguments: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> tuple[int | None, str]:
    """Exit status (None: no end within `timeout_s`) and all text of `python -m mlperf_logging.<tool>`.

    It runs in a folder of its own, since the tools write into the working directory.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"mlperf_logging.{tool}", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                env=os.environ | {"PYTHONSAFEPATH": "1"},
            )
        except subprocess.TimeoutExpired as error:
            return None, (error.stdout or b"").decode("utf-8", "replace")
    return done.returncode, done.stdout.decode("utf-8", "replace")


def check_log(path: Path, ruleset: str, benchmark: str) -> tuple[bool, list[str]]:
    """The official checker's verdict on one log, and its first messages."""
    arguments = ["--usage", "training", "--ruleset", ruleset, "--log_output", "out.log"]
    config = RULES / f"training_{ruleset}" / f"official_{benchmark}.yaml"
    if re.fullmatch(r"\w+", benchmark) and config.is_file():
        arguments += ["--config", str(config.resolve())]
    status, text = run_tool("compliance_checker", [*arguments, str(path.resolve())])
    if status is None:
        return False, [f"no verdict within {TIMEOUT_S} s"]
    if status == 0 and "INFO - SUCCESS" in text:
        return True, []
    messages = [
        printable(line.strip())
        for line in text.splitlines()
        if re.search(r"Required|CHECK for|failed test|Failed|Error|No log lines|parsing errors|\^\^", line)
    ]
    return False, messages[:20]
