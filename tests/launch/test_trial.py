"""launch/trial.py: which of several words on a trial's end is to blame, and whose a trial's files are."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from launch import trial

KILLED = "prterun noticed that process rank 1 with PID 17\non node n1 exited on signal {} ({})."
PEER = "error: ExternalError: gloo: Connection reset by peer"
OWN = "error: data/a.jpg cannot be decoded"
OF_KILL = r"process rank 1 with PID 17 on node n1 exited on signal {} .*"


@pytest.mark.parametrize(
    ("lines", "kills", "reason"),
    [
        ([PEER, KILLED.format(9, "Killed")], 1, "out of memory at BATCHSIZE=16: the kernel of .* killed a rank: .*"),
        ([PEER, KILLED.format(9, "Killed")], 0, OF_KILL.format(9)),
        ([PEER, OWN, KILLED.format(9, "Killed")], 0, OF_KILL.format(9)),
        ([PEER, KILLED.format(7, "Bus error")], 0, OF_KILL.format(7) + "--shm-size.*"),
        ([PEER, OWN, KILLED.format(6, "Aborted")], 0, "data/a.jpg cannot be decoded"),
        ([PEER, KILLED.format(6, "Aborted")], 0, OF_KILL.format(6)),
        (["error: NCCL error: unhandled system error", OWN], 0, "data/a.jpg cannot be decoded"),
        ([PEER], 0, "ExternalError: gloo: Connection reset by peer"),
        (["[n1:0] *** MPI_ERRORS_ARE_FATAL"], 0, "a rank was lost, of which another one heard before mpirun did; .*"),
        (["Traceback"], 0, "a rank ended with status 14; what it said is in .*"),
        (["OpenBLAS: pthread_create failed"], 0, "a rank ended with status 14; .*: raise the limit on processes .*"),
        (["error: input failed: can't start new thread"], 0, "input .* thread: raise the limit on processes .*"),
        ([], 0, "mpirun ended with status 14, and no rank said why: it may have lost its connection to a node"),
    ],
)
def test_who_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], kills: int, reason: str
) -> None:
    monkeypatch.delenv("ABORT_REASON_FILE", raising=False)
    monkeypatch.setenv("BATCHSIZE", "16")
    monkeypatch.setattr(trial, "memory_kills", lambda: 3)
    one = trial.Trial(argparse.Namespace(result=tmp_path / "result_0.txt", nodes=2))
    monkeypatch.setattr(trial, "memory_kills", lambda: 3 + kills)
    one.stderr.write_text("\n".join(lines))
    assert re.fullmatch(reason, one.reason(14))


def test_a_trials_name_is_one_jobs_and_no_link(tmp_path: Path) -> None:
    stderr = tmp_path / "results" / "result_0.stderr"
    with trial.take(stderr) as held:
        held.write(b"words of the first")
        held.flush()
        with pytest.raises(FileExistsError, match="is of another job, which is at work there"):
            trial.take(stderr)
        assert stderr.read_text() == "words of the first"
    with trial.take(stderr):  # of a trial that ended before it had a log
        assert stderr.read_text() == ""
    link, precious = tmp_path / "result_1.stderr", tmp_path / "precious"
    precious.write_text("mine")
    link.symlink_to(precious)
    with pytest.raises(FileExistsError, match="is a link, or no plain file: remove it, or set LOGDIR"):
        trial.take(link)
    assert precious.read_text() == "mine"
