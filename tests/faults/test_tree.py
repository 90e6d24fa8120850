"""kill -9 of each process of a job in turn, the tree as the system shows it: nothing stays, the log says why."""

import re
import signal
from pathlib import Path

import psutil
import pytest

from tests import jobs
from tests.launch.test_faults import aborted, start

pytestmark = pytest.mark.xdist_group("ranks")
# {a word of the command: the reason in the log}
TREE = {
    "run_and_time.sh": r"run_and_time.sh was killed: stopped by signal HUP",
    "launch/trials.sh": r"launch/trials.sh was killed: stopped by signal HUP",
    "launch.trial": r"launch/trial.py was ended by signal 9",
    "mpirun": r"mpirun was ended by signal 9",
    "-m harness": r"process rank \d with PID \d+ on node \S+ exited on signal 9 \(Killed\)",
}


def role_of(process: psutil.Process) -> str:
    """The word of TREE that the process's own command has."""
    if process.name() in ("mpirun", "prterun"):
        return "mpirun"
    line = " ".join(process.cmdline())
    return next((word for word in TREE if word in line.partition(" -- ")[0]), line)


@pytest.mark.parametrize("role", TREE)
def test_nothing_stays_of_a_job_when_one_process_is_killed(standing_in: Path, tmp_path: Path, role: str) -> None:
    job = start(standing_in, tmp_path, TMPDIR=tmp_path)
    tree = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    assert {role_of(process) for process in tree} == set(TREE)
    segments = [Path(m.path) for m in jobs.rank_of(tmp_path, 0).memory_maps() if m.path.startswith("/dev/shm/")]
    assert segments and all(path.exists() for path in segments)
    tree[[role_of(process) for process in tree].index(role)].send_signal(signal.SIGKILL)
    job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode != 0
    jobs.until(lambda: not jobs.processes(tmp_path), why=lambda: jobs.processes(tmp_path))
    assert re.fullmatch(TREE[role], aborted(tmp_path))
    segments += [path.parent for path in segments if path.parent.name.startswith("ranks.")]
    assert [path for path in (*tmp_path.iterdir(), *segments) if path.exists() and path.name != "CPU"] == []
