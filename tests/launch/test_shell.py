"""The shell that a job is started from: what its user, modules and cluster have set there is not the job's."""

import sys
from pathlib import Path

import pytest

from tests import jobs

SHADOW = "raise ImportError('a module of the shell')"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with modules that hide Python's and the packages', and a link to the launcher."""
    for name in ("json", "numpy", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(SHADOW)
    (tmp_path / "launch").mkdir()
    (tmp_path / "go").symlink_to(jobs.REPOSITORY / "run_and_time.sh")
    return tmp_path


@pytest.mark.parametrize("command", ["./go", "sh ./go"])
def test_a_job_is_the_same_from_any_shell(elsewhere: Path, command: str) -> None:
    """Called through a link, from a folder that has a launch/ of its own."""
    shell = {"PYTHONPATH": str(elsewhere), "PYTHONHOME": "/usr/nowhere", "PYTHONSAFEPATH": "1", "PYTHONINSPECT": "1"}
    shell |= {"PYTHONPROFILEIMPORTTIME": "1", "CDPATH": str(elsewhere), "HOME": "/proc/nowhere", "POSIXLY_CORRECT": "1"}
    done = jobs.run([*command.split(), "--dry-run"], cwd=elsewhere, **shell)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", jobs.run_and_time("--dry-run").stdout)


def test_a_job_needs_nothing_of_its_shell(standing_in: Path, tmp_path: Path) -> None:
    """No HOME, PATH or TERM, as in a service's unit; neither stdin nor stdout; files for their owner alone.

    What a cluster has set for its own MPI and batch jobs is not the job's.
    """
    cluster = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "openib", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1"}
    job = [f"{name}={value}" for name, value in {**jobs.TINY, **cluster, "LOGDIR": tmp_path}.items()]
    script = f"umask 077; exec {standing_in}/run_and_time.sh <&- >&-"
    done = jobs.run(["env", "-i", *job, "/bin/bash", "-c", script], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_tool_needs_nothing_of_its_shell() -> None:
    done = jobs.run(["env", "-i", sys.executable, "-c", "from harness import ranks; print(ranks.MPI.COMM_WORLD.size)"])
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_tmpdir_that_cannot_be_written_is_refused(folder: str) -> None:
    done = jobs.run_and_time("--dry-run", TMPDIR=folder)
    said = f"error: {folder} is no folder that can be written: set TMPDIR to one that is\n"
    assert (done.returncode, done.stderr) == (2, said)
