"""Ctrl-C in a command that reads a long log, and the words with which a job ends."""

import argparse
import signal
import sys
from pathlib import Path

import psutil
import pytest

from launch import trial
from runlog.writer import close_log_of_killed_run
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


def test_a_job_whose_output_nobody_reads_says_so_and_what_its_log_says(tmp_path: Path) -> None:
    """It was said to be stopped by a signal that nobody had sent."""
    log = tmp_path / "result_0.txt"
    log.write_text("a line\n")
    saved = close_log_of_killed_run(log, "stopped by signal TERM after step 17")
    one = trial.Trial(argparse.Namespace(result=log, nodes=1, limit=0))
    one.stderr.write_text("[n1:7] prterun: SIGPIPE detected - aborting\n")
    said = trial.end_failed(one, 1, 0.0)
    assert said.startswith("what reads the job's output has ended, ") and said.endswith(f"; {saved}")
    one.stderr.write_text("error: another\n")
    assert trial.end_failed(one, 1, 0.0) == saved


def test_a_reason_with_a_name_that_is_no_utf_8_is_passed_on(tmp_path: Path) -> None:
    """Of a damaged image with a name in Latin-1 the job ended in a traceback, and its table did not say why."""
    reason = "\udcff.jpeg: cannot be decoded"
    trial.report(tmp_path / "said", reason)
    assert (tmp_path / "said").read_text() == r"\udcff.jpeg: cannot be decoded"
    close = [sys.executable, "-m", "runlog", "close", str(tmp_path / "result_0.txt"), reason]
    done = jobs.run(close, PYTHONIOENCODING="utf-8:strict")  # as where the locale is not C
    assert (done.returncode, done.stdout) == (0, "\\udcff.jpeg: cannot be decoded\n"), done.stderr
