"""Runs that fail on the way: a closed log, the right exit status and reason, no process left.

A rank that trains nothing (tests/stand_in.py) serves where the launcher is asked; one test of each kind trains.
"""

import argparse
import contextlib
import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch import trial
from runlog import schema
from runlog.writer import open_log
from tests import jobs, make_log
from tests.harness import small
from tests.jobs import in_namespaces, need

TRAINS = pytest.mark.xdist_group("ranks")
ENDLESS = {**jobs.TINY, "MEASURED_STEPS": "100000", "PRINT_STEPS": "1"}


def start(checkout: Path, logdir: Path, **variables: str | int) -> subprocess.Popen[str]:
    """A job under way: its first step is in the log."""
    job = jobs.run_and_time(start=jobs.begin, cwd=checkout, **{**ENDLESS, "LOGDIR": logdir, **variables})
    jobs.until(lambda: jobs.trains(logdir / "CPU/rn50/result_0.txt"), job)
    return job


def aborted(logdir: Path) -> str:
    return jobs.abort_reason(logdir / "CPU/rn50/result_0.txt")


def ended(job: subprocess.Popen[str], logdir: Path) -> str:
    """What a job that was hurt said on stderr; it has ended, and all its processes."""
    stderr = job.communicate(timeout=jobs.LIMIT_S)[1]
    jobs.until(lambda: not jobs.processes(logdir), why=lambda: jobs.processes(logdir))
    assert stderr.count("\n") == 1, stderr
    return stderr


# {the signal: exit status of the job}
STATUS_AFTER = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}
QUICK = (("training", signal.SIGINT), ("training", signal.SIGKILL))
IN_CI = (("training", signal.SIGTERM), ("training", signal.SIGHUP))
# {the signal: why the log says that the run ended}
REASONS = {sent: f"stopped by signal {sent.name.removeprefix('SIG')}" for sent in STATUS_AFTER}
REASONS[signal.SIGKILL] = r"run_and_time.sh was killed$|stopped by the end of its launcher after step \d+$"


def phase_and_signal(*phases: str) -> list[Any]:
    """Return a parameter for each phase and signal; all but two are slow."""
    found = []
    for phase in phases:
        for sent in STATUS_AFTER:
            marks = [] if (phase, sent) in QUICK else [pytest.mark.slow]
            if (phase, sent) in IN_CI:
                marks.append(pytest.mark.ci)
            found.append(pytest.param(phase, sent, marks=marks, id=f"{phase}-{sent.name}"))
    return found


@pytest.mark.parametrize(("phase", "sent"), phase_and_signal("set-up", "training", "evaluation"))
def test_a_signal_ends_the_job_in_any_phase(
    standing_in: Path, tmp_path: Path, phase: str, sent: signal.Signals
) -> None:
    """That one which trains saves before it ends, tests/harness/test_going_on.py shows."""
    begins = {"set-up": "init_start", "training": "step_window", "evaluation": "eval_start"}[phase]
    log = tmp_path / "CPU/rn50/result_0.txt"
    job = jobs.run_and_time(start=jobs.begin, cwd=standing_in, **{**small.TRAINING, "LOGDIR": tmp_path})
    jobs.until(lambda: begins in jobs.text(log), job, every_s=0.01)
    job.send_signal(sent)
    reason = REASONS[sent]
    assert re.search(reason.replace("$", r"\b"), ended(job, tmp_path))
    assert job.returncode == STATUS_AFTER[sent]
    assert re.match(reason, aborted(tmp_path))


def runs(module: str, logdir: Path) -> bool:
    """Whether the job that writes to `logdir` has come to a Python of this module."""
    for process in jobs.processes(logdir):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if command and command[0].endswith("python") and module in command:
                return True
    return False


@pytest.mark.parametrize(("phase", "sent"), phase_and_signal("report"))
def test_a_signal_while_the_report_is_made_leaves_the_run_as_it_is(
    standing_in: Path, tmp_path: Path, phase: str, sent: signal.Signals
) -> None:
    """The report comes all the same: who ends the job waits for a second."""
    job = jobs.run_and_time(start=jobs.begin, cwd=standing_in, **{**jobs.TINY, "LOGDIR": tmp_path})
    jobs.until(lambda: runs("tools.summarize", tmp_path), job, every_s=0.01)
    job.send_signal(sent)
    _, stderr = job.communicate(timeout=jobs.LIMIT_S)
    assert (job.returncode, stderr) == (-9 if sent == signal.SIGKILL else 0, "")
    jobs.until(lambda: not jobs.processes(tmp_path), why=lambda: jobs.processes(tmp_path))
    folder = tmp_path / "CPU/rn50"
    assert jobs.mllog(folder / "result_0.txt")[-1]["metadata"]["status"] == "success"
    page = folder / "report.html"
    assert page.read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_check_ends_at_a_signal_and_leaves_nothing(standing_in: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """Ctrl-C was ignored until the doctor had ended by itself, which waits for a driver that hangs."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    settings = {"LOGDIR": tmp_path, "TMPDIR": folder, "DGXNGPU": 1}
    job = jobs.run_and_time("--check", start=jobs.begin, cwd=standing_in, **settings)
    jobs.until(lambda: runs("tools.doctor", tmp_path), job, every_s=0.01)
    job.send_signal(sent)
    _, stderr = job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode == STATUS_AFTER[sent]
    assert stderr.endswith(f"error: stopped by signal {sent.name.removeprefix('SIG')}\n")
    jobs.until(lambda: not jobs.processes(tmp_path), why=lambda: jobs.processes(tmp_path))
    assert not [*folder.iterdir()]


@pytest.mark.parametrize(
    ("windows_s", "nodes", "in_container", "limit_s"),
    [
        ([], 1, False, 10),
        ([3.5, 2.0], 1, False, 10),
        ([14.25, 12.0], 1, False, 28.5),
        ([14.25], 2, False, 10),
        ([14.25], 1, True, 10),
    ],
)
def test_a_stopped_job_may_end_its_window_and_save(
    windows_s: list[float], nodes: int, in_container: bool, limit_s: float, tmp_path: Path
) -> None:
    with open_log(tmp_path / "log.txt") as log:
        for step, seconds in enumerate(windows_s, 1):
            values = {"data_wait_s": 0.5, "loss": 2.5, "gpu_memory_mib": None, "power_w": None}
            window = schema.StepWindow(steps=1, images=8, time_s=seconds, **values)  # type: ignore[arg-type]
            log.event(schema.STEP_WINDOW, window, schema.InWindow(step=step, epoch_num=1, phase="train"))
    assert trial.time_to_end_s(tmp_path / "log.txt", nodes=nodes, in_container=in_container) == limit_s


@pytest.mark.slow
@TRAINS
def test_a_stopped_job_goes_on_and_the_table_is_of_the_log_that_it_then_wrote(tmp_path: Path) -> None:
    logdir, data = tmp_path / "logs", small.data_set(tmp_path / "data")
    for listed in data.glob("*_list.txt"):  # one class is learnt in an epoch; of more steps than the score leaves out
        listed.write_text(re.sub(r"\d+$", "0", listed.read_text(), flags=re.M) * 2)
    settings = {**small.TRAINING, "DGXNGPU": 1, "DATADIR": data}
    job = start(small.checkout(), logdir, **settings)
    job.send_signal(signal.SIGTERM)
    ended(job, logdir)
    assert "RESUME=auto goes on" in aborted(logdir)
    done = jobs.run_and_time(cwd=small.checkout(), **settings, LOGDIR=str(logdir), RESUME="auto")
    resumed = logdir / "CPU/rn50/result_0.resumed_1.txt"
    assert re.search(r"^quality +1\.0000 top-1 *$", done.stdout, re.M), done.stdout + done.stderr
    assert re.search(rf"^log +{resumed} *$", done.stdout, re.M), done.stdout
    assert done.stderr == ""
    assert done.returncode == 1 and f"{resumed}:" in done.stdout and "run-mode" in done.stdout  # it is not a result


@pytest.mark.slow
@pytest.mark.ci
@TRAINS
def test_a_corrupt_image_is_named(tmp_path: Path) -> None:
    data, logdir = small.data_set(tmp_path / "data"), tmp_path / "logs"
    victim = data / "train" / "07.jpeg"
    victim.write_bytes(victim.read_bytes()[:200])
    done = jobs.run_and_time(cwd=small.checkout(), **ENDLESS, LOGDIR=logdir, DATADIR=data)
    assert done.returncode == 1
    assert str(victim) in done.stderr
    assert "cannot be decoded" in done.stderr
    assert done.stderr.count("\n") == 1
    assert str(victim) in aborted(logdir)


PRINTS = """
import os

from harness import ranks
from runlog.errors import RunError


def main(job, origins):
    me = ranks.start(job.cluster)
    print(f"words of rank {me.rank}")
    os.write(1, b"C++ Traceback (most recent call last):\\n")  # as Paddle does, by std::cout
    me.comm.Barrier()
    raise RunError("nothing to train")
"""


def test_what_libraries_print_goes_to_the_file_of_messages(tmp_path: Path) -> None:
    printing = jobs.checkout(tmp_path / "checkout", "harness", train=PRINTS)
    logdir = tmp_path / "logs"
    done = jobs.run_and_time(cwd=printing, **jobs.TINY, LOGDIR=logdir)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "words of rank 0\n" in done.stdout and "C++" not in done.stdout
    messages = (logdir / "CPU/rn50/result_0.stderr").read_text()
    assert "C++ Traceback (most recent call last):\n" in messages


@pytest.mark.slow
@pytest.mark.ci
def test_a_full_disk_ends_the_run(standing_in: Path, tmp_path: Path) -> None:
    """The log's folder is a file system of 24 KiB: the header fits, the windows soon do not."""
    script = f"mount -t tmpfs -o size=24k none {tmp_path} && exec {standing_in}/run_and_time.sh"
    isolated = [*in_namespaces("--mount"), "bash", "-c", script]
    done = jobs.run(isolated, LOGDIR=tmp_path, **ENDLESS)
    assert done.returncode == 1, done.stderr
    assert "No space left on device: free some of its disk, or set LOGDIR to another" in done.stderr
    assert done.stderr.count("No space") == 1, "the reason stands once"
    assert not jobs.processes(tmp_path)


@pytest.mark.parametrize("limit_kib", [4, 1000], ids=["mpirun", "rank"])
def test_files_that_may_not_grow_are_told(standing_in: Path, tmp_path: Path, limit_kib: int) -> None:
    limited = ["bash", "-c", f"ulimit -f {limit_kib} && exec {standing_in}/run_and_time.sh"]
    done = jobs.run(limited, LOGDIR=tmp_path, **ENDLESS)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f": raise the limit on the size of files (ulimit -f), which is {limit_kib} KiB\n" in done.stderr


@pytest.mark.parametrize(
    ("folder", "size", "says"),
    [
        ("/dev/shm", "1m", "MPI has too little room in /dev/shm, of which a rank takes 16 MiB: make room"),
        ("TMPDIR", "64k", "mpirun cannot write into {TMPDIR}: make room there, or set TMPDIR to another folder"),
    ],
)
def test_too_little_room_for_mpi_is_told(standing_in: Path, tmp_path: Path, folder: str, size: str, says: str) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    script = f"mount -t tmpfs -o size={size} none {folder.replace('TMPDIR', str(own))} && exec ./run_and_time.sh"
    isolated = [*in_namespaces("--mount"), "bash", "-c", script]
    done = jobs.run(isolated, cwd=standing_in, LOGDIR=tmp_path / "logs", TMPDIR=own, **ENDLESS)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: {says.format(TMPDIR=own)}")


# Starts a command as one of the first processes of a system, all of whose ids mpiruns have had that were killed.
IDS_IN_USE = """
host="$(uname -n)"
mkdir -p "$TMPDIR"/ompi.{1..999} && touch "$TMPDIR"/ompi.{1..999}/"pmix.$host.tool"
exec "$@"
"""


@pytest.mark.parametrize("arguments", [(), ("--check",)], ids=["training", "check"])
def test_what_a_killed_mpirun_has_left_does_not_stop_a_new_one_of_the_same_process_id(
    standing_in: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    of_a_new_system = in_namespaces("--pid", "--fork", "--mount-proc")
    command = [*of_a_new_system, "bash", "-euc", IDS_IN_USE, "bash", "./run_and_time.sh", *arguments]
    folder = tmp_path / "tmp"
    done = jobs.run(command, cwd=standing_in, **jobs.TINY, LOGDIR=tmp_path, TMPDIR=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert not [path for path in folder.iterdir() if not path.name.startswith("ompi.")]


@pytest.mark.slow
@pytest.mark.ci
def test_trials_that_are_left_follow_a_lost_one_and_the_good_ones_are_scored(standing_in: Path, tmp_path: Path) -> None:
    job = {**jobs.TINY, "DGXNGPU": "1", "LOGDIR": str(tmp_path), "ON_FAILURE": "go_on"}
    assert jobs.run_and_time(cwd=standing_in, **job).returncode == 0
    first = tmp_path / "CPU" / "rn50" / "result_0.txt"
    lines = first.read_text().splitlines(keepends=True)
    lost = first.with_name("result_1.txt")
    lost.write_text("".join(lines[: next(n for n, line in enumerate(lines) if '"step_window"' in line)]))
    before = first.read_bytes()
    told = tmp_path / "end_reason"
    done = jobs.run_and_time(cwd=standing_in, **job, NEXP="3", KEEP_TRIALS="1", END_REASON_FILE=str(told))
    assert told.read_text() == "its first node was lost\n"  # as launch/nodes.py has it told to the other nodes
    assert done.returncode == 1, done.stderr
    assert "trial 1 aborted: its first node was lost\n" in done.stdout
    assert "result_0.txt" in done.stdout and "result_2.txt" in done.stdout
    assert first.read_bytes() == before and jobs.abort_reason(lost) == "its first node was lost"
    stop = [event for event in jobs.mllog(first.with_name("result_2.txt")) if event["key"] == "run_stop"]
    assert stop[0]["metadata"]["status"] == "success"


@pytest.mark.parametrize("kept", ["0", "1"])  # 1: by a launcher that lost a node
def test_a_trial_that_has_succeeded_is_not_gone_on_with(standing_in: Path, tmp_path: Path, kept: str) -> None:
    first = tmp_path / "CPU" / "rn50" / "result_0.txt"
    first.parent.mkdir(parents=True)
    first.write_text(make_log.run(seed=5))
    first.with_name("result_1.txt").write_text(first.read_text().partition('"run_stop"')[0])
    job = {**jobs.TINY, "MODE": "train", "NEXP": "2", "MAX_EPOCHS": "1", "RESUME": "auto", "KEEP_TRIALS": kept}
    done = jobs.run_and_time(cwd=standing_in, **job, LOGDIR=tmp_path, ON_FAILURE="go_on")
    assert f"trial 0 has succeeded before, in {first}: it is not run again\n" in done.stdout, done.stderr
    assert "trial 1 aborted: " in done.stdout and "below the target" in done.stdout
    assert sorted(path.name for path in first.parent.glob("*.resumed_*.txt")) == ["result_1.resumed_1.txt"]


def test_a_machine_without_a_loopback_is_told_so(standing_in: Path, tmp_path: Path) -> None:
    need(os.geteuid() == 0, "a network namespace of one's own needs root")
    command = ["unshare", "--net", "./run_and_time.sh"]
    done = jobs.run(command, cwd=standing_in, LOGDIR=tmp_path, **jobs.TINY)
    said = "error: no network interface is up here, and ranks meet over the loopback: ip link set lo up"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and done.stderr.startswith(said)


# What launch/trial.py says where several words on a trial's end may be to blame.
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
        (
            ["there is not enough space for /dev/shm/ranks.1/sm_segment", "*** An error occurred in MPI_Init_thread"],
            0,
            "MPI has too little room in /dev/shm, .*: make room .*",
        ),
        (["*** An error occurred in MPI_Init_thread"], 0, "MPI could not start on a rank; what it said is in .*"),
        (
            ["[n1:7] PMIX ERROR: PMIX_ERR_FILE_WRITE_FAILURE in file"],
            0,
            "mpirun cannot write into .*: make room there.*",
        ),
        (["prterun: SIGPIPE detected", "error: stopped by TERM; saved"], 0, "what reads the job's output has .*"),
        (["prterun: SIGPIPE detected", KILLED.format(15, "Terminated")], 0, "what reads the job's output has .*"),
        (["unable to create the desired directory"], 0, "mpirun cannot write into .*, or set TMPDIR to another folder"),
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


@pytest.mark.parametrize(("ends", "status"), [("exit 14", 14), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_the_status_of_a_trial_is_mpiruns_or_that_of_the_signal_that_ended_it(
    tmp_path: Path, ends: str, status: int
) -> None:
    command = ["sh", "-c", ends]
    one = trial.Trial(argparse.Namespace(result=tmp_path / "result_0.txt", nodes=2, limit=0, command=command))
    with one.stderr.open("wb") as messages:
        assert one.run(messages) == status


@pytest.mark.parametrize("is_read", [True, False])
def test_an_mpirun_that_does_not_end_with_its_ranks_is_killed_unless_its_output_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """Open MPI 5.0.11 waited for ever where ranks ended in MPI_Init, but it also waits for a pager such as less."""
    monkeypatch.setattr(trial, "ALONE_S", 0.5)
    monkeypatch.setattr(trial, "LOOK_S", 0.1)
    monkeypatch.delenv("ABORT_REASON_FILE", raising=False)
    reader_of = ["cat"] if is_read else ["sleep", "600"]
    with subprocess.Popen(reader_of, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        monkeypatch.setattr(trial, "STDOUT", reader.stdin.fileno())
        os.write(reader.stdin.fileno(), bytes(fcntl.fcntl(reader.stdin, fcntl.F_GETPIPE_SZ)))
        mpirun = "import subprocess, time; subprocess.run(['sleep', '1']); time.sleep(3)"
        command = [sys.executable, "-c", mpirun]
        one = trial.Trial(argparse.Namespace(result=tmp_path / "result_0.txt", nodes=1, limit=0, command=command))
        with one.stderr.open("wb") as messages:
            status = one.run(messages)
        reader.kill()
    assert (status, one.mpirun_hung) == ((1, True) if is_read else (0, False))
    assert not is_read or one.reason(status).startswith("mpirun did not end with its ranks, and was killed; what they")


def test_a_trials_name_is_one_jobs_and_no_link(tmp_path: Path) -> None:
    stderr = tmp_path / "results" / "result_0.stderr"
    with trial.open_messages(stderr) as held:
        held.write(b"words of the first")
        held.flush()
        with pytest.raises(FileExistsError, match="is of another job, which is at work there"):
            trial.open_messages(stderr)
        assert stderr.read_text() == "words of the first"
    with trial.open_messages(stderr):  # of a trial that ended before it had a log
        assert stderr.read_text() == ""
    link, precious = tmp_path / "result_1.stderr", tmp_path / "precious"
    precious.write_text("mine")
    link.symlink_to(precious)
    with pytest.raises(FileExistsError, match="is a link, or no plain file: remove it, or set LOGDIR"):
        trial.open_messages(link)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_log_that_is_no_file_is_said_not_to_be_closed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    log = tmp_path / "result_0.txt"
    close = [sys.executable, "-m", "runlog", "close", str(log), "its node was lost"]
    done = jobs.run(close)
    assert (done.returncode, done.stdout) == (0, "its node was lost\n"), "where nothing is, nothing is to be closed"
    make(log)
    done = jobs.run(close)
    why = f"the log cannot be closed as aborted: {log}: not a regular file; give the text file of one run"
    assert (done.returncode, done.stdout, done.stderr) == (1, f"its node was lost; {why}\n", "")


TRIAL = "launch.trial {log} --nodes 1 --launcher {launcher} --reason /dev/null -- sh -c"


@pytest.mark.parametrize(
    "command",
    ["runlog close {log} 'its node was lost'", TRIAL + " 'echo error: its node was lost >&2; exit 3'"],
    ids=["close", "trial"],
)
def test_a_log_without_room_for_its_end_says_why(tmp_path: Path, command: str) -> None:
    """Its file may not grow, which the system refuses as it does on a full disk."""
    log = tmp_path / "result_0.txt"
    log.write_text("a line\n")
    words = shlex.split(command.format(log=log, launcher=os.getpid()))
    done = jobs.run(["prlimit", f"--fsize={log.stat().st_size + 100}", sys.executable, "-m", *words])
    why = f"{log}: cannot write the log: File too large: raise the limit on the size of files (ulimit -f)"
    said = done.stdout + done.stderr
    assert f"its node was lost; the log cannot be closed as aborted: {why}" in said
    assert (done.returncode, said.count("\n")) == (1, 1)
