"""A full disk, a log folder that is gone or read-only: the run says so and ends in order, or does without."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runlog.writer import RunLog
from tests import jobs
from tests.faults.test_kill import start
from tests.harness import small
from tests.jobs import in_namespaces, need
from tests.scoring.pages import write_log

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]


def on_a_disk_of(size: str, folder: Path, *command: str, **variables: str | int) -> subprocess.CompletedProcess[str]:
    """A command that sees a file system of its own at `folder`; what it leaves there is copied to `folder`.seen."""
    seen = folder.with_name(f"{folder.name}.seen")
    script = f'mount -t tmpfs -o size={size} none {folder} && "$@"; status=$?; cp -a {folder} {seen}; exit $status'
    isolated = [*in_namespaces("--mount"), "bash", "-c", script, "bash", *command]
    return jobs.run(isolated, PYTHONPATH=str(jobs.REPOSITORY), **variables)


def test_a_line_without_room_ends_the_run():
    with pytest.raises(OSError, match=r"^/dev/full: cannot write the log: \[Errno 28\] No space left on device$"):
        RunLog(Path("/dev/full"), append=True).text("a line")


def test_a_checkpoint_without_room_costs_no_run(tmp_path):
    """100 MiB hold log and telemetry and half a checkpoint: the run goes on to its own end, its log is whole."""
    logdir = tmp_path / "logs"
    logdir.mkdir()
    data = small.data_set(tmp_path / "data")
    settings = {**small.TRAINING, "MAX_EPOCHS": 1, "CHECKPOINT_EPOCHS": 1, "DATADIR": data, "LOGDIR": logdir}
    done = on_a_disk_of("100m", logdir, "./run_and_time.sh", **settings)
    log = tmp_path / "logs.seen/CPU/rn50/result_0.txt"
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr
    assert "warning: checkpoint not written: " in log.read_text()
    assert "MiB left" in log.with_suffix(".stderr").read_text()
    assert not list(log.parent.rglob("*step_*"))


def test_a_log_folder_that_is_removed_ends_the_run(tmp_path, standing_in):
    logdir = tmp_path / "logs"
    job = start(logdir, tmp_path, cwd=standing_in, MODE="throughput", MEASURED_STEPS=100_000)
    jobs.until(lambda: jobs.trains(logdir / "CPU/rn50/result_0.txt"), job)
    shutil.rmtree(logdir)
    _, said = job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode == 1
    assert said == f"error: {logdir}/CPU/rn50 was removed during the run\n"
    assert jobs.processes(logdir) == [] and not logdir.exists()


TURN = """
truncate --size 64M "$1.image"
mkfs.ext4 -q "$1.image"
mount -o loop,errors=remount-ro "$1.image" "$1"
./run_and_time.sh &
until grep -qs step_window "$1/CPU/rn50/result_0.txt"; do sleep 0.1; kill -0 "$!"; done
echo 1 >"/sys/fs/ext4/$(basename "$(findmnt --noheadings --output SOURCE "$1")")/trigger_fs_error"
wait "$!"
"""


def test_a_disk_that_turns_read_only_ends_the_run(tmp_path, standing_in):
    """As ext4 does after an error of the disk: files that are open cannot be written any more."""
    need(os.geteuid() == 0, "root mounts a file system")
    logdir = tmp_path / "logs"
    logdir.mkdir()
    command = ["unshare", "--mount", "bash", "-ec", TURN, "bash", str(logdir)]
    done = jobs.run(command, cwd=standing_in, LOGDIR=logdir, **{**jobs.TINY, "MEASURED_STEPS": 100_000})
    assert done.returncode == 1
    words = f"what it said is in {logdir}/CPU/rn50/result_0.stderr"
    said = f"error: a rank ended with status 1; {words}; the log cannot be closed as aborted: Read-only file system ("
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert jobs.processes(logdir) == []


def test_a_report_without_room_is_not_half_there(tmp_path):
    disk, log = tmp_path / "disk", write_log(tmp_path / "result_0.txt")
    disk.mkdir()
    command = (sys.executable, "-m", "scoring", "report", str(log), "--html", f"{disk}/report.html")
    done = on_a_disk_of("8k", disk, *command)
    assert done.returncode != 0 and "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert list((tmp_path / "disk.seen").iterdir()) == []


@pytest.mark.parametrize("made", [False, True], ids=["no-folder", "with-folder"])
def test_a_read_only_log_folder_is_wrong_use(tmp_path, made):
    """For root too, whom no permission stops."""
    logdir = tmp_path / "logs"
    logdir.mkdir()
    prepare = f"mkdir -p {logdir}/CPU/rn50; " if made else ""
    script = f"{prepare}mount -o remount,ro {logdir} && ./run_and_time.sh"
    done = on_a_disk_of("1m", logdir, "bash", "-c", script, LOGDIR=logdir, **jobs.TINY)
    said = f"error: {logdir}/CPU/rn50 cannot be written: set LOGDIR to a writable folder with room in it\n"
    assert (done.returncode, done.stderr) == (2, said)
