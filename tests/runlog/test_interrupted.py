"""Ctrl-C in a command that reads a long log."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests import jobs, make_log


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (("scoring", "score", "--protocol", "window"), "python -m scoring score"),
        (("compliance", "check"), "compliance check"),
    ],
    ids=["scoring", "compliance"],
)
def test_ctrl_c_is_told_in_one_line(tmp_path: Path, words: tuple[str, ...], called: str) -> None:
    """It was a traceback."""
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.run(seed=5) + "a line of a library\n" * 3_000_000)
    job = jobs.begin([sys.executable, "-m", *words, str(log)])
    process = psutil.Process(job.pid)
    jobs.until(lambda: str(log) in [file.path for file in process.open_files()], job, every_s=0.01)
    job.send_signal(signal.SIGINT)
    _, stderr = job.communicate(timeout=jobs.LIMIT_S)
    assert (job.returncode, stderr) == (130, f"{called}: stopped by signal INT\n")
