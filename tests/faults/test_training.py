"""What befalls a run: a rank hangs, a weight turns to NaN, the clock is set back, hours pass, the disk is full."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from runlog.errors import RunError
from runlog.writer import RunLog
from tests import jobs
from tests.faults.test_kill import start
from tests.harness import small
from tests.jobs import in_namespaces, need
from tests.scoring.pages import write_log

pytestmark = [pytest.mark.slow, pytest.mark.ci]
HANGS = pytest.mark.xdist_group("hangs")  # most of their time these wait: other tests may have the cores then
RANKS = pytest.mark.xdist_group("ranks")

# ---- the watchdog ends a run that hangs with the stacks of every rank

LIMIT_S = 60  # over set-up's longest silence on a busy machine
STANDING_IN_S = 10  # of the stand-in, which is never silent for long


def stacks(said: str, rank: int) -> str:
    return "\n".join(line for line in said.splitlines() if line.startswith(f"[rank {rank}] "))


@HANGS
def test_reader_that_hangs(tmp_path):
    """An image becomes a FIFO during the run: opening it waits for a writer that never comes."""
    data, logdir = small.data_set(tmp_path / "data"), tmp_path / "logs"
    log = logdir / "CPU/rn50/result_0.txt"
    job = start(logdir, data, HANG_TIMEOUT_S=LIMIT_S, MAX_EPOCHS=1000)
    jobs.until(lambda: "step_window" in jobs.text(log), job)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").replace(data / "train" / "07.jpeg")
    _, said = job.communicate(timeout=jobs.LIMIT_S)
    reason = jobs.abort_reason(log)
    assert job.returncode == 1 and said.startswith(f"error: {reason}") and said.count("\n") == 1
    hang = rf"rank \d on \S+ hangs: no progress for {LIMIT_S} s while (reading the input of|computing) step \d+"
    assert re.fullmatch(hang, reason)
    messages = log.with_suffix(".stderr").read_text()
    assert "fromfile" in messages or "_read" in messages, "the stack of the reading thread"
    assert all("harness/loop.py" in stacks(messages, rank) for rank in (0, 1)), "the stack of every rank"
    assert jobs.processes(logdir) == []


@HANGS
def test_rank_that_hangs(tmp_path, standing_in):
    """A stopped process is the hardest kind of hang: it cannot write its own stack, the others can."""
    logdir = tmp_path / "logs"
    log = logdir / "CPU/rn50/result_0.txt"
    job = start(logdir, tmp_path, cwd=standing_in, HANG_TIMEOUT_S=STANDING_IN_S, MAX_EPOCHS=1000)
    jobs.until(lambda: jobs.text(log).count("step_window") >= 2, job)
    hung = jobs.rank_of(logdir, 1)
    hung.send_signal(signal.SIGSTOP)
    job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode == 1
    assert f"hangs: no progress for {STANDING_IN_S} s while computing step" in jobs.abort_reason(log)
    assert "train.py" in stacks(log.with_suffix(".stderr").read_text(), 0)
    assert not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE, "no orphan"
    assert jobs.processes(logdir) == []


# ---- after the first epoch


BACK_S = 3600
# The job as it is, but for what `happens`.
SCRIPT = """
import sys
import time
from unittest import mock
import numpy as np
began_s, back_s = time.time() - time.monotonic(), 0
time.time = lambda: began_s + time.monotonic() - back_s  # whatever this machine's own clock does meanwhile
from harness import __main__ as rank
from harness import state
from harness.hooks import checkpoint
ended = checkpoint.Keeper.epoch_ended
def epoch_ended(self, main, epoch):
    global back_s
    ended(self, main, epoch)
{happens}
with mock.patch.object(checkpoint.Keeper, "epoch_ended", epoch_ended):
    sys.exit(rank.main())
"""
SET_BACK = f"    back_s = {BACK_S}"  # somebody sets the clock
SET_BACK_AT_THE_END = f"""  # somebody sets the clock during the next evaluation, which is the last
    from harness import train
    evaluated = train.evaluate_all
    def evaluate_all(*of_run):
        global back_s
        quality = evaluated(*of_run)
        back_s = {BACK_S}
        return quality
    train.evaluate_all = evaluate_all
"""
SPOIL = """  # a bad memory cell
    from paddle import CPUPlace
    for name, tensor in state.tensors(main):
        if len(tensor.shape()) == 2:  # the classifier: an earlier NaN may hide behind a ReLU, which gives 0 for it
            value = np.array(tensor)
            value[0, 0] = np.nan
            tensor.set(value, CPUPlace())
"""


def train(folder: Path, happens: str, **more: int) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A training run to its end, and its log."""
    script, log = folder / "script.py", folder / "result_0.txt"
    script.write_text(SCRIPT.format(happens=happens))
    settings = {**small.TRAINING, "DATADIR": small.data_set(folder / "data"), **more}
    return jobs.on_ranks(2, str(script), cwd=small.checkout(), RESULT_FILE=log, **settings), log


@RANKS
def test_nan_names_step_and_checkpoint(tmp_path: Path) -> None:
    done, log = train(tmp_path, SPOIL, CHECKPOINT_EPOCHS=1)
    assert done.returncode == 1
    kept = tmp_path / "result_0.checkpoints" / "step_000000010.safetensors"
    reason = (
        "loss is nan at step 11: lower the learning rate or look at the data; "
        f"the last good checkpoint is {kept}, from which RESUME=auto goes on"
    )
    assert f"error: {reason}" in done.stderr, done.stderr[-2000:]
    assert jobs.values(log, "abort_reason") == [reason] and kept.is_file()
    assert jobs.values(log, "step_window")[-1]["loss"] is None


@RANKS
def test_a_clock_set_back(tmp_path: Path) -> None:
    """Durations stay right, the log says it, the checker refuses the log."""
    done, log = train(tmp_path, SET_BACK)
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr[-2000:]
    events = jobs.mllog(log)
    assert events[-1]["time_ms"] < events[0]["time_ms"], "the clock was set"
    (noticed,) = [event for event in events if event["key"] == "clock_set"]
    assert noticed["value"] == pytest.approx(-BACK_S, abs=1) and noticed["metadata"]["step"] == 11
    windows = jobs.values(log, "step_window")
    assert len(windows) == 2 * small.STEPS_PER_EPOCH and all(0 < window["time_s"] < BACK_S for window in windows)
    status, checked = jobs.checked(log)
    assert status == 1 and "time-order" in {finding["rule"] for finding in checked["findings"]}


@RANKS
def test_a_clock_set_back_in_the_last_evaluation(tmp_path: Path) -> None:
    """No window of steps follows it."""
    _, log = train(tmp_path, SET_BACK_AT_THE_END)
    (noticed,) = [event for event in jobs.mllog(log) if event["key"] == "clock_set"]
    assert noticed["value"] == pytest.approx(-BACK_S, abs=1)
    assert noticed["metadata"]["step"] == 2 * small.STEPS_PER_EPOCH


# ---- a long run keeps its memory, file handles and threads, by its own telemetry


EPOCHS = int(os.environ.get("SOAK_EPOCHS", "36"))  # with an evaluation and a checkpoint each; 0.6 to 3 seconds
GROWTH = {"rss_mib": 20, "open_files": 0, "threads": 0}


@RANKS
def test_soak_keeps_memory_and_handles_flat(tmp_path):
    data = small.data_set(tmp_path / "data")
    settings = {"MAX_EPOCHS": EPOCHS, "CHECKPOINT_EPOCHS": 1, "PRINT_STEPS": 5, "DATADIR": data, "LOGDIR": tmp_path}
    done = jobs.run_and_time(timeout_s=60 + 30 * EPOCHS, cwd=small.checkout(), **{**small.TRAINING, **settings})
    log = tmp_path / "CPU/rn50/result_0.txt"
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr
    assert len(jobs.values(log, "eval_accuracy")) == EPOCHS and len(jobs.values(log, "checkpoint")) >= EPOCHS // 2
    (path,) = tmp_path.rglob("*.telemetry.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    # By epochs, not by time, of which the start takes another share on each machine: pools and caches are full then.
    begin_s = [event["time_ms"] for event in jobs.mllog(log) if event["key"] == "epoch_stop"][EPOCHS // 4 - 1] / 1000
    settled = [sample["process"] for sample in samples if sample["time_s"] > begin_s]
    third = len(settled) // 3
    assert third >= 3
    for name, most in GROWTH.items():
        # The least of many: a checkpoint on its way holds memory, a file and a thread for a moment.
        first, last = (min(sample[name] for sample in part) for part in (settled[:third], settled[-third:]))
        assert last <= first + most, f"{name} grows from {first} to {last}"


# ---- a full disk, a log folder that is gone or read-only: the run says so and ends in order, or does without


def on_a_disk_of(size: str, folder: Path, *command: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """A command that sees a file system of its own at `folder`; what it leaves there is copied to `folder`.seen."""
    seen = folder.with_name(f"{folder.name}.seen")
    script = f'mount -t tmpfs -o size={size} none {folder} && "$@"; status=$?; cp -a {folder} {seen}; exit $status'
    isolated = [*in_namespaces("--mount"), "bash", "-c", script, "bash", *command]
    return jobs.run(isolated, PYTHONPATH=str(jobs.REPOSITORY), **variables)


@RANKS
def test_a_line_without_room_ends_the_run():
    says = "^/dev/full: cannot write the log: No space left on device: free some of its disk, or set LOGDIR to another$"
    with pytest.raises(RunError, match=says):
        RunLog(Path("/dev/full"), append=True).text("a line")


@RANKS
def test_a_checkpoint_without_room_costs_no_run(tmp_path):
    """100 MiB hold log and telemetry and half a checkpoint: the run goes on to its own end, its log is whole."""
    logdir = tmp_path / "logs"
    logdir.mkdir()
    data = small.data_set(tmp_path / "data")
    settings = {**small.TRAINING, "MAX_EPOCHS": 1, "CHECKPOINT_EPOCHS": 1, "DATADIR": data, "LOGDIR": logdir}
    done = on_a_disk_of("100m", logdir, "./run_and_time.sh", **settings)
    log = tmp_path / "logs.seen/CPU/rn50/result_0.txt"
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr
    warning = "warning: checkpoint not written: "
    assert warning in log.read_text() and warning in done.stdout, "who looks at the terminal learns of it in time"
    assert "MiB left" in log.with_suffix(".stderr").read_text()
    assert not list(log.parent.rglob("*step_*"))


@RANKS
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


@RANKS
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


@RANKS
def test_a_report_without_room_is_not_half_there(tmp_path):
    disk, log = tmp_path / "disk", write_log(tmp_path / "result_0.txt")
    disk.mkdir()
    command = (sys.executable, "-m", "scoring", "report", str(log), "--html", f"{disk}/report.html")
    done = on_a_disk_of("8k", disk, *command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{disk}/report.html: no space left on its disk" in done.stderr
    assert list((tmp_path / "disk.seen").iterdir()) == []


@RANKS
def test_the_report_of_a_job_without_room_is_not_half_there(tmp_path):
    disk, log = tmp_path / "disk", write_log(tmp_path / "result_0.txt")
    disk.mkdir()
    copy_and_run = f'cp {log} {disk} && exec "$@"'
    summarize = (sys.executable, "-m", "tools.summarize", f"{disk}/result_0.txt")
    done = on_a_disk_of("60k", disk, "bash", "-c", copy_and_run, "bash", *summarize)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{disk}/report.html: no space left on its disk" in done.stderr
    assert not (tmp_path / "disk.seen/report.html").exists()


@RANKS
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


@RANKS
@pytest.mark.parametrize("made", [False, True], ids=["no-folder", "with-folder"])
def test_a_read_only_checkpoint_folder_is_wrong_use(tmp_path: Path, made: bool) -> None:
    """Before a night's training of which nothing would be kept; for root too."""
    disk = tmp_path / "disk"
    disk.mkdir()
    folder = disk if made else disk / "new"
    settings = {**small.TRAINING, "DGXNGPU": 1, "DATADIR": small.data_set(tmp_path / "data"), "CHECKPOINT_DIR": folder}
    script = f"mount -o remount,ro {disk} && ./run_and_time.sh"
    done = on_a_disk_of("1m", disk, "bash", "-c", script, **settings, LOGDIR=tmp_path / "logs")
    said = f"error: CHECKPOINT_DIR={folder}: its file system cannot be written: name another path"
    assert done.returncode == 2 and said in done.stderr, done.stderr


@RANKS
def test_a_path_that_the_system_refuses_to_look_at(tmp_path: Path) -> None:
    """As root, whom no permission stops: a name that is too long for a folder."""
    data = small.data_set(tmp_path / "data")
    (data / "train_list.txt").write_text(f"{'x' * 300}/a.jpeg 0\n")
    done = small.train(tmp_path / "result_0.txt", data, ranks=1)
    said = "this path is longer than the system allows: name a shorter one"
    assert f"error: {data}/{'x' * 300}: {said}\n" in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 2
