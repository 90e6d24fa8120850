"""Starts real jobs for tests: by the user's command, or a script of a test on the ranks of a job; and what a test
needs that a machine may lack.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT_S = 600  # of what takes seconds: a hang meets it, a slow and busy machine does not
STAND_IN = REPOSITORY / "tests" / "stand_in.py"  # of a rank's training
# A job that takes seconds: a few steps at 32 x 32 pixels, a window each step, the same samples every time.
TINY: dict[str, Any] = {"MODE": "throughput", "IMAGE_SIZE": "32", "WARMUP_STEPS": "1", "MEASURED_STEPS": "3"}
TINY |= {"PRINT_STEPS": "1", "SEED": "7", "CLEAR_CACHES": "0", "PROGRESS": "plain"}
MPIRUN_FOLDER = tempfile.TemporaryDirectory(prefix="mpirun.")  # what a killed one leaves in /tmp may stop another
JOB_PREFIXES = ("JOB_", "OMPI_", "PMIX_", "PRTE_", "PADDLE_")


def environment(**variables: object) -> dict[str, str]:
    """This process's environment without what another job left in it, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(JOB_PREFIXES)}
    kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    kept |= {"PRTE_MCA_prte_tmpdir_base": MPIRUN_FOLDER.name}
    return kept | {name: str(value) for name, value in variables.items()}


def checkout(folder: Path, room: str = "paddle_rn50", **changed: str) -> Path:
    """Makes a checkout of links to this one; modules of `room` that are named in `changed` have another text.

    Scripts go by their own real path, so they are copies.
    """
    package = folder / room
    package.mkdir(parents=True)
    for path in REPOSITORY.iterdir():
        if path.name == "launch":
            shutil.copytree(path, folder / path.name)
        elif path.name == "run_and_time.sh":
            shutil.copy2(path, folder)
        elif path.name != package.name:
            (folder / path.name).symlink_to(path)
    for path in (REPOSITORY / package.name).iterdir():
        if path.stem in changed:
            (package / path.name).write_text(changed[path.stem])
        else:
            (package / path.name).symlink_to(path)
    return folder


def standing_in(folder: Path) -> Path:
    """Makes a checkout whose ranks train nothing (tests/stand_in.py)."""
    return checkout(folder, "harness", train=STAND_IN.read_text())


def _settings(cwd: Path, variables: dict[str, object]) -> dict[str, Any]:
    return {"env": environment(**variables), "cwd": cwd, "stdin": subprocess.DEVNULL, "text": True}


def run(
    command: Sequence[str], *, timeout_s: float = LIMIT_S, cwd: Path = REPOSITORY, **variables: object
) -> subprocess.CompletedProcess[str]:
    """A command, to its end, with `variables` in a clean environment."""
    settings = _settings(cwd, variables)
    return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, **settings)


class Done(NamedTuple):
    """How a command that was called ended."""

    returncode: int
    stdout: str
    stderr: str


def called(main: Callable[[], int], *arguments: object, **variables: object) -> Done:
    """The same of a command of Python, called in this process, as to start one takes seconds."""
    argv, out, err = [main.__module__, *map(str, arguments)], io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main()
        except SystemExit as ended:  # argparse's
            status = int(ended.code or 0)
    return Done(status, out.getvalue(), err.getvalue())


def need(found: bool, what: str) -> None:
    """Skips a test where a tool is absent, and fails it where skips are failures (TESTS_MUST_NOT_SKIP=1)."""
    if not found:
        import pytest  # which benchmarks/training.py does without

        if os.environ.get("TESTS_MUST_NOT_SKIP") == "1":
            pytest.fail(what)
        pytest.skip(what)


def in_namespaces(*kinds: str) -> list[str]:
    """What begins a command in namespaces of its own, by a user without rights; some systems forbid it."""
    inside = ["unshare", "--user", "--map-root-user", *kinds]
    allowed = run([*inside, "true"]).returncode == 0
    need(allowed, "users may not make namespaces here")
    return inside


def printed(*command: str, **variables: Any) -> str:
    """What a command that succeeds prints."""
    done = run(command, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done: Done | subprocess.CompletedProcess[str], said: str) -> None:
    """Exit status 2, and one line."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


def resolved(stdout: str) -> dict[str, Any]:
    """The configuration that a dry run prints."""
    return json.JSONDecoder().raw_decode(stdout[stdout.index("\n{\n") + 1 :])[0]


def begin(
    command: Sequence[str], *, cwd: Path = REPOSITORY, together: bool = False, **variables: object
) -> subprocess.Popen[str]:
    """A command, begun, its stderr in a pipe, or all that it says `together` on its stdout.

    In a session of its own, so that a test can end all of it. It heeds SIGINT also where the tests run in a shell's
    background, which ignores it.
    """
    stdout, stderr = (subprocess.PIPE, subprocess.STDOUT) if together else (subprocess.DEVNULL, subprocess.PIPE)
    whole = ["env", "--default-signal=INT", *command]
    return subprocess.Popen(whole, stdout=stdout, stderr=stderr, start_new_session=True, **_settings(cwd, variables))


def checked(log: Path) -> tuple[int, dict[str, Any]]:
    """Exit status of `compliance check`, and what it says of this log."""
    done = run([sys.executable, "-m", "compliance", "check", str(log), "--json"])
    report: dict[str, Any] = json.loads(done.stdout)["files"][0]
    return done.returncode, report


def run_and_time(*arguments: str, cwd: Path = REPOSITORY, start: Any = run, **options: Any) -> Any:
    """`./run_and_time.sh` as a user starts it; `start` is run or begin, whose options these are."""
    return start([str(cwd / "run_and_time.sh"), *arguments], cwd=cwd, **options)


def until(
    met: Callable[[], bool],
    job: subprocess.Popen[str] | None = None,
    *,
    within_s: float = LIMIT_S,
    every_s: float = 0.05,
    why: Callable[[], object] = str,
) -> None:
    """Waits for what must come in time, and before `job` ends; where it does not come `why` is said."""
    deadline = time.monotonic() + within_s
    while not met():
        if job and job.poll() is not None:
            raise AssertionError(f"it ended with status {job.returncode}: {job.communicate()}")
        assert time.monotonic() < deadline, f"not within {within_s} s: {why()}"
        time.sleep(every_s)


def text(log: Path) -> str:
    """Of a log so far; one that is not there yet has none."""
    return log.read_text(errors="replace") if log.is_file() else ""


def trains(log: Path) -> bool:
    """Whether the first steps are in the log."""
    return "step_window" in text(log)


def mpirun(ranks: int, *command: str) -> list[str]:
    """A Python command on so many ranks of this machine."""
    return [
        str(Path(sys.executable).with_name("mpirun")),
        *("--mca", "pml", "ob1", "--mca", "btl", "self,sm"),  # as launch/trials.sh has it on one node
        *("-n", str(ranks), "--bind-to", "none", "--map-by", f"ppr:{ranks}:node:OVERSUBSCRIBE"),
        *(sys.executable, *command),
    ]


def on_ranks(ranks: int, *command: str, cwd: Path = REPOSITORY, start: Any = run, **options: Any) -> Any:
    """A Python command (`-m module` or a script with arguments) on the ranks of a job here; `start` is run or begin."""
    return start(mpirun(ranks, *command), cwd=cwd, DGXNGPU=ranks, PYTHONPATH=str(cwd), **options)


def script(path: Path, text: str) -> Path:
    """A program of a test."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def local_ssh(path: Path, *, unless: str = "false") -> Path:
    """An ssh that takes this machine for every host, but where the shell's condition `unless` holds."""
    return script(path, f'#!/usr/bin/env bash\nif {unless}; then exit 255; fi\nexec bash -c "${{@: -1}}"\n')


def processes(logdir: Path) -> list[psutil.Process]:
    """Living processes of the job that writes to `logdir`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LOGDIR") == str(logdir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def kill_at_once(find: Callable[[], list[psutil.Process]]) -> None:
    """Kills all processes of a job at one moment, as a node that loses its power: none sees another's end.

    The youngest first: Linux wakes what is stopped in a process group whose last parent outside it ends.
    """
    stopped: set[psutil.Process] = set()
    while left := set(find()) - stopped:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped |= left
    for process in sorted(stopped, key=lambda process: (process.create_time(), process.pid), reverse=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def launcher_of(logdir: Path) -> psutil.Process:
    """The job's mpirun."""
    (found,) = (process for process in processes(logdir) if process.name() in ("mpirun", "prterun"))
    return found


def rank_of(logdir: Path, rank: int) -> psutil.Process:
    """A rank of the job, whose own helpers have its environment too."""
    (found,) = (p for p in launcher_of(logdir).children() if p.environ().get("OMPI_COMM_WORLD_RANK") == str(rank))
    return found


def abort_reason(log: Path) -> str:
    """The reason in a log that must end with run_stop aborted."""
    events = mllog(log)
    assert [e["key"] for e in events[-2:]] == ["abort_reason", "run_stop"]
    assert events[-1]["metadata"]["status"] == "aborted"
    assert sum(e["key"] == "run_stop" for e in events) == 1
    assert events[-2]["value"]
    return str(events[-2]["value"])


def mllog(log: Path) -> list[dict[str, Any]]:
    """The MLLOG events of a log, read plainly and apart from the project's own reader."""
    lines = log.read_text().splitlines()
    return [json.loads(line.partition(":::MLLOG ")[2]) for line in lines if line.startswith(":::MLLOG ")]


def values(log: Path, key: str) -> list[Any]:
    """Values of the events of `key`, in order."""
    return [event["value"] for event in mllog(log) if event["key"] == key]


def losses(log: Path) -> list[float]:
    """Loss of each window."""
    return [window["loss"] for window in values(log, "step_window")]
