"""The doctor's try of mpirun on its own machine."""

import socket
import sys
from pathlib import Path

import pytest

from tests import jobs
from tools.doctor.__main__ import mpirun_failure


def test_mpirun_is_tried_where_a_job_has_its_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TMPDIR that cannot be written is what fails a job, whether Python finds another folder or none."""
    no_folder = tmp_path / "file"
    no_folder.touch()
    monkeypatch.delenv("PRTE_MCA_prte_tmpdir_base", raising=False)
    monkeypatch.setenv("TMPDIR", str(no_folder))
    assert str(no_folder) in mpirun_failure()


def test_mpirun_is_tried_without_the_nodes_of_a_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_nodes = tmp_path / "nodes"
    other_nodes.write_text("n1.invalid\nn2.invalid\n")
    for name, value in {"JOBID": "7", "ENVIRONMENT": "PBS_BATCH", "NODEFILE": str(other_nodes)}.items():
        monkeypatch.setenv(f"PBS_{name}", value)
    monkeypatch.setenv("PRTE_MCA_prte_default_hostfile", str(other_nodes))
    assert mpirun_failure() == ""


def test_mpirun_is_tried_with_its_own_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of another MPI names its folder of libraries; the doctor then told the user to install Open MPI."""
    (tmp_path / "libpmix.so.2").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert mpirun_failure() == ""


def test_ranks_that_do_not_reach_each_other_end() -> None:
    """As where a firewall stands between the nodes: the doctor waited for ever."""
    lines = [
        "import time, types",
        "from tools.doctor.__main__ import _meet",
        "_meet(types.SimpleNamespace(Barrier=lambda: None), 60)",
        "_meet(types.SimpleNamespace(Barrier=lambda: time.sleep(600)), 1)",
    ]
    done = jobs.run([sys.executable, "-c", "\n".join(lines)])
    assert done.returncode == 1
    assert "has met no other rank by MPI for 1 s: let the nodes reach each other at all TCP ports" in done.stderr


@pytest.mark.xdist_group("ranks")
def test_an_error_of_one_rank_ends_the_doctor_of_all(tmp_path: Path) -> None:
    """The others waited for it for ever, as where a library that looks at an image fails."""
    lines = [
        "from unittest import mock",
        "from harness.job import job_of",
        "from tools.doctor import __main__ as doctor",
        "with mock.patch.object(doctor, 'probe', side_effect=RuntimeError('no colour planes')):",
        "    doctor.over_mpi(job_of(dgxngpu=2))",
    ]
    script = tmp_path / "doctor.py"
    script.write_text("\n".join(lines))
    done = jobs.on_ranks(2, str(script))
    assert done.returncode != 0
    assert f"error: {socket.gethostname()}: RuntimeError: no colour planes\n" in done.stderr
