"""Signals that come before what they are meant for: before a job is read, a trial begins, or its container starts."""

import functools
import os
import re
import signal
from pathlib import Path

import pytest

from tests import jobs

ENDLESS = {**jobs.TINY, "MEASURED_STEPS": "100000", "PRINT_STEPS": "1"}
# {the signal: exit status of the job}
STATUS_AFTER = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("option", ["--shell", "--json"])  # which --dry-run asks for in this order
def test_ctrl_c_as_a_job_is_read_ends_it_without_pythons_words(tmp_path: Path, option: str) -> None:
    """It printed where Python was in loading its modules, in 20 lines."""
    begun = tmp_path / "begun"
    sleeps = f"pathlib.Path({str(begun)!r}).touch(); time.sleep(2)"
    slow = f"import pathlib, sys, time\nif {option!r} in sys.argv: {sleeps}\n"
    describe = jobs.REPOSITORY / "harness" / "describe.py"
    checkout = jobs.checkout(tmp_path / "checkout", "harness", describe=slow + describe.read_text())
    job = jobs.run_and_time("--dry-run", cwd=checkout, start=functools.partial(jobs.begin, together=True))
    jobs.until(begun.exists, job, every_s=0.01)
    os.killpg(job.pid, signal.SIGINT)
    assert job.communicate(timeout=jobs.LIMIT_S)[0] == ""
    assert job.returncode == -signal.SIGINT


def test_ctrl_c_as_a_trial_begins_ends_it_without_pythons_words(tmp_path: Path) -> None:
    """The program that keeps a trial showed where Python was in loading its modules."""
    begun = tmp_path / "begun"
    checkout = jobs.standing_in(tmp_path / "checkout")
    loads_slowly = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(1)\n"
    program = checkout / "launch" / "trial.py"
    program.write_text(loads_slowly + program.read_text())
    job = jobs.run_and_time(start=jobs.begin, cwd=checkout, **{**ENDLESS, "LOGDIR": tmp_path / "logs"})
    jobs.until(begun.exists, job, every_s=0.01)
    job.send_signal(signal.SIGINT)
    # On a loaded machine the trial has its log by the time that the signal reaches it.
    log = r"( \(log \S+, messages \S+\))?"
    assert re.fullmatch(f"error: stopped by signal INT{log}\n", job.communicate(timeout=jobs.LIMIT_S)[1])
    assert job.returncode == 130


def test_a_signal_that_comes_before_the_trial_ends_it_as_it_begins(tmp_path: Path) -> None:
    """It was lost, and the job trained to its end."""
    begun = tmp_path / "begun"
    checkout = jobs.standing_in(tmp_path / "checkout")
    script = checkout / "launch" / "trials.sh"
    first_line = "run_trial() { # RESULT MODULE [ARGUMENTS]\n"
    starts_slowly = f"{first_line}  touch {begun}; sleep 1\n"
    assert first_line in script.read_text()
    script.write_text(script.read_text().replace(first_line, starts_slowly))
    job = jobs.run_and_time(start=jobs.begin, cwd=checkout, **{**ENDLESS, "LOGDIR": tmp_path / "logs"})
    jobs.until(begun.exists, job, every_s=0.01)
    job.send_signal(signal.SIGTERM)
    assert "error: stopped by signal TERM" in job.communicate(timeout=jobs.LIMIT_S)[1]
    assert job.returncode == 143


# An engine whose container says which signal it got, and ends by it.
DOCKER = """#!/usr/bin/env bash
cd "$(dirname "$0")"
case $1 in
  image) echo sha256:0 ;;
  run)
    trap 'echo "stopped by signal TERM" >&2; exit 143' TERM
    trap 'echo "stopped by signal HUP" >&2; exit 129' HUP
    echo $$ >pid
    while :; do sleep 0.05; done
    ;;
  stop) kill -TERM "$(<pid)" ;;
  kill) if [[ $2 == --signal ]]; then kill -"$3" "$(<pid)"; else kill -KILL "$(<pid)"; fi ;;
  wait) while kill -0 "$(<pid)"; do sleep 0.05; done ;;
esac
"""


def signal_a_container(sent: signal.Signals, folder: Path, engine: str, *, once: str) -> None:
    """A launcher whose `engine` has written the file `once` gets the signal: its job says so, and it ends by it."""
    jobs.script(folder / "docker", engine)
    launcher = jobs.begin(["launch/container_node.sh"], CONT="img", LOGDIR=str(folder / "logs"))
    jobs.until((folder / once).exists, launcher)
    launcher.send_signal(sent)
    _, stderr = launcher.communicate(timeout=jobs.LIMIT_S)
    assert launcher.returncode == STATUS_AFTER[sent]
    assert stderr == f"stopped by signal {sent.name.removeprefix('SIG')}\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_in_a_container_is_told_of_the_signal_that_its_launcher_got(
    sent: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    signal_a_container(sent, tmp_path, DOCKER, once="pid")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_container_that_has_not_started_yet_is_told_of_the_signal_once_it_has(
    sent: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's `stop` does nothing for it, `kill` fails, and then the job went on."""
    starts_late = DOCKER.replace("    trap 'echo", "    touch made; sleep 1\n    trap 'echo", 1)
    not_yet = "[[ -e pid || $1 != stop ]] || exit 0\n[[ -e pid || $1 != kill ]] || exit 1\ncase $1 in\n"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    signal_a_container(sent, tmp_path, starts_late.replace("case $1 in\n", not_yet), once="made")
