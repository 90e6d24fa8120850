"""Processes that may hang: when they are killed, and that nothing is left of them."""

import signal
import subprocess
from pathlib import Path

import pytest

from harness import child
from tests import jobs


def test_a_silent_child_is_killed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it first: this one would end by itself before END_S is over."""
    kills = []
    kill = subprocess.Popen.kill

    def kill_and_count(process: subprocess.Popen[bytes]) -> None:
        kills.append(process.returncode)
        kill(process)

    monkeypatch.setattr(subprocess.Popen, "kill", kill_and_count)
    monkeypatch.setattr(child, "END_S", jobs.LIMIT_S)
    (tmp_path / "silent.py").write_text("import time\nprint('{}', flush=True)\ntime.sleep(5)\n")
    said = child.talk(tmp_path / "silent.py", environ={}, silent_s=0.5)
    assert said.hang_or_death == "no answer in 0.5 s" and len(kills) == 1


def test_a_killed_child_that_had_closed_its_output_leaves_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[subprocess.Popen[bytes]] = []  # held here, as Python may reap one that nobody holds
    kill = subprocess.Popen.kill

    def kill_and_hold(process: subprocess.Popen[bytes]) -> None:
        killed.append(process)
        kill(process)

    monkeypatch.setattr(subprocess.Popen, "kill", kill_and_hold)
    (tmp_path / "closing.py").write_text("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)\n")
    said = child.talk(tmp_path / "closing.py", environ={}, silent_s=2)
    assert said.hang_or_death == "no answer in 2 s"
    (process,) = killed
    assert process.returncode == -signal.SIGKILL, "its status was read, so it is gone"


@pytest.mark.parametrize(("status", "said"), [(0, ""), (3, "ended with status 3: {}")])
def test_a_child_that_has_ended_is_not_taken_to_hang_by_what_it_leaves_behind(
    tmp_path: Path, status: int, said: str
) -> None:
    """What it started keeps its output open, and is silent."""
    script = "import subprocess, sys\nprint('{}', flush=True)\nsubprocess.Popen(['sleep', '4'])\n"
    (tmp_path / "parent.py").write_text(f"{script}sys.exit({status})\n")
    talk = child.talk(tmp_path / "parent.py", environ=None, silent_s=2)
    assert talk.hang_or_death == said and talk.lines == ("{}",)


def test_the_death_by_a_signal_without_a_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\nos.kill(os.getpid(), 40)\n")
    assert child.talk(tmp_path / "dies.py", environ=None, silent_s=20).hang_or_death == "ended by signal 40"
