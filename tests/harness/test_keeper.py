"""The writing of checkpoints by a run, and what a program gets back; whole runs: test_going_on.py."""

import dataclasses
import errno
import os
import re
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from paddle import static

from harness import state
from harness.hooks import checkpoint, checkpoint_file, resume
from harness.hooks.checkpoint_file import Position
from harness.job import with_values
from harness.progress import Timing
from harness.ranks import Ranks
from runlog.errors import RunError
from tests import jobs
from tests.harness.checkpoints import POSITION, RUN, job, keeper, save
from tests.program import programs


@pytest.fixture(scope="module")
def one_rank() -> Ranks:
    """The only rank of a job of one."""
    return Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")


@pytest.fixture(scope="module")
def built() -> Iterator[programs.Built]:
    """A training program with its state in Paddle's scope: weights, BN statistics, momentum."""
    made = programs.build()
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(made.startup)
        yield made


def test_the_last_k_are_kept_and_hold_the_state(tmp_path, one_rank, built):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / ".step_000000010.safetensors.tmp").write_bytes(b"of a run that was killed as it wrote")
    made = keeper(one_rank, folder, tmp_path / "result_0.txt", checkpoint_keep=2)
    with made:
        for epoch in (1, 2, 3):
            made.epoch_ended(built.main, epoch)
            made._wait_for_writer()
    assert [p.name for p in sorted(folder.iterdir())] == ["step_000000020.safetensors", "step_000000030.safetensors"]
    arrays, metadata = checkpoint_file.read(folder / "step_000000030.safetensors")
    assert metadata["position"] == dataclasses.asdict(
        Position(step=30, epoch=4, epoch_step=0, seed=7, global_batch=32, ranks=1)
    )
    own = state.statistics_names(built.main)
    kept = {(f"rank0/{name}" if name in own else name): np.array(tensor) for name, tensor in state.tensors(built.main)}
    assert len(own) == 2 * built.kinds("batch_norm")[0] and any("velocity" in name for name in kept)
    assert set(arrays) == set(kept) and all(np.array_equal(arrays[name], kept[name]) for name in kept)
    (event, *_) = jobs.values(tmp_path / "result_0.txt", "checkpoint")[-1:]
    assert event["step"] == 30 and event["blocked_s"] >= 0


def test_a_run_that_goes_on_keeps_the_last_k_of_all(tmp_path, one_rank, built):
    folder = tmp_path / "kept"
    for step in (10, 20):
        save(folder, step)
    start = resume.find(job(folder), one_rank, RUN)
    made = keeper(one_rank, folder, tmp_path / "result_0.resumed_1.txt", start, checkpoint_keep=2)
    with made:
        made.epoch_ended(built.main, 3)
    assert [p.name for p in sorted(folder.iterdir())] == ["step_000000020.safetensors", "step_000000030.safetensors"]


def test_restore_gives_the_state_back(tmp_path, one_rank, built):
    """Of a run of two ranks, on one: its BN statistics are the mean of theirs, all else is as it was."""
    own = state.statistics_names(built.main)
    before = {name: np.array(tensor) for name, tensor in state.tensors(built.main)}
    arrays = {name: value + 1 for name, value in before.items() if name not in own}
    for rank in (0, 1):
        arrays |= {f"rank{rank}/{name}": before[name] + 10 * rank for name in own}
    position = dataclasses.replace(POSITION, step=3)
    resume.restore(resume.Start(position=position, path="a", arrays=arrays), built, one_rank)
    after = {name: np.array(tensor) for name, tensor in state.tensors(built.main)}
    assert all(np.array_equal(after[name], before[name] + (5 if name in own else 1)) for name in before)
    assert built.schedule.last_epoch == 3 and built.schedule() == programs.SCHEDULE(3)
    del arrays[next(name for name in arrays if "velocity" in name)]
    with pytest.raises(ValueError, match=r"a: has no .*velocity.* of this program's shape"):
        resume.restore(resume.Start(position=position, path="a", arrays=arrays), built, one_rank)


LAUNCHED, CAPTURED = "", "cuda_graph=1"
WHOLE_TILES = ((32, 2), (64, 2))  # of the channels of resnet_unit
SCALE = {"loss_scaling_0", "num_good_steps_0", "num_bad_steps_0"}


@pytest.mark.parametrize(
    ("before", "after"),
    [(CAPTURED, LAUNCHED), (LAUNCHED, CAPTURED), (f"{CAPTURED},resnet_unit=1", LAUNCHED), (LAUNCHED, LAUNCHED)],
)
def test_a_captured_training_goes_on_without_capture_and_the_other_way(
    before: str, after: str, one_rank: Ranks, capfd: pytest.CaptureFixture[str]
) -> None:
    """All but the loss scale is the checkpoint's: a captured step has a fixed one, of which nothing is counted."""
    position = dataclasses.replace(POSITION, ranks=1)
    states: list[dict[str, np.ndarray]] = []
    for value, knobs in ((7.0, before), (5.0, after)):
        program = programs.build(name="amp_o2", device="gpu", ranks=8, knobs=knobs, stages=WHOLE_TILES)
        with static.scope_guard(static.Scope()):
            for variable in program.main.list_vars():
                if variable.persistable and not variable.is_data:
                    filled = np.full(variable.shape, value, np.float32)
                    static.global_scope().var(variable.name).get_tensor().set(filled, paddle.CPUPlace())
            if states:
                start = resume.Start(position=position, path="a", arrays=states[0])
                resume.restore(start, program, one_rank)
            own = {f"rank0/{name}": value.copy() for name, value in state.statistics(program.main)}
            states.append(own | {name: value.copy() for name, value in state.shared_values(program.main)})
    changed = before.partition(",")[0] != after
    assert (SCALE & {*states[0]} == SCALE) == (before == LAUNCHED), "what this is about"
    for name, restored in states[1].items():
        assert np.all(restored == (5 if changed and name in SCALE else 7)), name
    warned = "loss scale, this one has a" in capfd.readouterr().err
    assert warned == changed


def test_minutes_and_a_signal_are_noticed_at_a_window(tmp_path, one_rank, built):
    made = keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt", checkpoint_epochs=0, checkpoint_minutes=1)
    before = signal.getsignal(signal.SIGTERM)
    with made:
        made.run_begins()
        assert made.window_ends(built.main, Timing(), step=3, epoch=1) == 0.0
        made._last_checkpoint_s -= 61
        made.run_begins()  # of a later epoch
        assert made.window_ends(built.main, Timing(), step=14, epoch=2) > 0.0
        made._wait_for_writer()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(RunError, match=r"stopped by signal TERM after step 17; the last good checkpoint is .*017"):
            made.window_ends(built.main, Timing(), step=17, epoch=2)
    assert signal.getsignal(signal.SIGTERM) == before
    _, metadata = checkpoint_file.read(tmp_path / "kept" / "step_000000014.safetensors")
    assert (metadata["position"]["epoch"], metadata["position"]["epoch_step"]) == (2, 4)


def test_minutes_count_from_the_first_step(tmp_path, one_rank, built, monkeypatch):
    """Before it a run asks GPUs and flushes caches, and its log has not begun: the check could not count that time."""
    clock = mock.Mock(spec=time.monotonic, return_value=0.0)
    monkeypatch.setattr(checkpoint, "time", mock.Mock(spec=time, wraps=time, monotonic=clock))
    with keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt", checkpoint_minutes=1) as made:
        clock.return_value = 59.0
        made.run_begins()
        clock.return_value = 118.0
        assert made.window_ends(built.main, Timing(), step=3, epoch=1) == 0.0
        clock.return_value = 119.0
        assert made.window_ends(built.main, Timing(), step=4, epoch=1) > 0.0


def test_a_step_has_one_checkpoint_where_it_is_due_by_minutes_and_after_the_epoch(tmp_path, one_rank, built):
    log = tmp_path / "result_0.txt"
    with keeper(one_rank, tmp_path / "kept", log, checkpoint_epochs=2, checkpoint_minutes=1) as made:
        made.run_begins()
        for epoch in (1, 2):
            made._last_checkpoint_s -= 61
            waited_s = made.window_ends(built.main, Timing(), step=10 * epoch, epoch=epoch)
            assert (waited_s > 0) == (epoch == 1)
            made._wait_for_writer()
            made.epoch_ended(built.main, epoch)
    assert [event["step"] for event in jobs.values(log, "checkpoint")] == [10, 20]


def test_a_step_that_is_written_again_leaves_its_file(tmp_path, one_rank, built):
    """A run that a signal ended at an epoch's last step goes on by its evaluation, and a checkpoint is due after it."""
    folder = tmp_path / "kept"
    start = resume.find(job(save(folder, 10, epoch=1, epoch_step=10).parent), one_rank, RUN)
    with keeper(one_rank, folder, tmp_path / "result_0.resumed_1.txt", start, checkpoint_keep=1) as made:
        made.epoch_ended(built.main, 1)
        assert made.last_good.startswith(f"the last good checkpoint is {folder}/step_000000010.safetensors")
        assert [path.name for path in folder.glob("step_*")] == ["step_000000010.safetensors"]


def test_a_broken_state_is_never_written(tmp_path, one_rank, built, capfd):
    _, tensor = next(iter(state.tensors(built.main)))
    good = np.array(tensor)
    try:
        tensor.set(np.full_like(good, np.nan), paddle.CPUPlace())
        with keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt") as made:
            made.epoch_ended(built.main, 1)
    finally:
        tensor.set(good, paddle.CPUPlace())
    assert not any((tmp_path / "kept").iterdir())
    warning = "warning: checkpoint not written: .* is not finite"
    assert re.search(warning, capfd.readouterr().err)
    assert re.search(warning, (tmp_path / "result_0.txt").read_text())


def test_a_full_disk_refuses_no_run_but_one_that_cannot_be_written_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full one may have room by the time of the first checkpoint. On NFS the server alone knows what root may do."""
    settings = with_values(job(tmp_path / "kept"), checkpoint_epochs=1)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
        refused = mock.Mock(side_effect=OSError(number, os.strerror(number)))
        monkeypatch.setattr(tempfile, "TemporaryFile", refused)
        if number == errno.EACCES:
            with pytest.raises(ValueError, match=rf"CHECKPOINT_DIR={tmp_path}/kept: permission denied: ask its owner"):
                checkpoint.require_writable(settings)
        else:
            checkpoint.require_writable(settings)
        assert refused.called


def test_a_disk_that_takes_nothing_costs_the_checkpoint_and_not_the_run(tmp_path, one_rank, built, capfd, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=full))
    with keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt") as made:
        made.epoch_ended(built.main, 1)
        made._wait_for_writer()
        assert made.window_ends(built.main, Timing(), step=11, epoch=2) == 0.0
        assert [path.name for path in (tmp_path / "kept").iterdir()] == [checkpoint_file.LOCK], "nothing half written"
        monkeypatch.setattr(os, "unlink", mock.Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    assert "warning: checkpoint not written: [Errno 28] No space left on device" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (ValueError("of no type\nthat a file has"), "ValueError: of no type that a file has"),
    ],
)
def test_any_error_of_the_writing_is_told_and_costs_no_run(
    error: Exception,
    said: str,
    tmp_path: Path,
    one_rank: Ranks,
    built: programs.Built,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tmp_path / "result_0.txt"
    with keeper(one_rank, tmp_path / "kept", log) as made:
        with monkeypatch.context() as broken:
            broken.setattr(checkpoint, "write", mock.Mock(side_effect=error))
            made.epoch_ended(built.main, 1)
            assert made.last_good == "there is no checkpoint of this run"
        assert made.window_ends(built.main, Timing(), step=11, epoch=2) == 0.0
        warning = f"warning: checkpoint not written: {said}\n"
        assert capfd.readouterr() == (warning, warning) and warning in log.read_text()
        [failed] = jobs.values(log, "checkpoint_failed")
        assert failed["step"] == 10 and 0 < failed["blocked_s"] < jobs.LIMIT_S
        made.epoch_ended(built.main, 2)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step_000000020.safetensors"]


@pytest.mark.parametrize(
    ("broken", "error", "said"),
    [
        ("threading.Thread.start", RuntimeError("can't start new thread"), "RuntimeError: can't start new thread"),
        ("numpy.empty_like", MemoryError("Unable to allocate 97.5 MiB"), "MemoryError: Unable to allocate 97.5 MiB"),
        ("harness.state.statistics", MemoryError("Unable to allocate 2 KiB"), "MemoryError: Unable to allocate 2 KiB"),
    ],
)
def test_a_checkpoint_that_cannot_be_begun_is_told_and_costs_no_run(
    broken: str,
    error: Exception,
    said: str,
    tmp_path: Path,
    one_rank: Ranks,
    built: programs.Built,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "result_0.txt"
    with keeper(one_rank, tmp_path / "kept", log) as made:
        with mock.patch(broken, side_effect=error):
            made.epoch_ended(built.main, 1)
        assert made.last_good == "there is no checkpoint of this run"
        warning = f"warning: checkpoint not written: {said}\n"
        assert capfd.readouterr() == (warning, warning) and warning in log.read_text()
        [failed] = jobs.values(log, "checkpoint_failed")
        assert failed["step"] == 10 and 0 < failed["blocked_s"] < jobs.LIMIT_S
        made.epoch_ended(built.main, 2)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step_000000020.safetensors"]


def test_what_fails_once_a_checkpoint_is_written_is_told_as_such(tmp_path, one_rank, built, capfd):
    folder = tmp_path / "kept"
    fsync = os.fsync

    def refusing_folders(number: int) -> Any:
        """The answer of a disk that fails at a folder alone."""
        return mock.patch.object(os, "fsync", lambda opened: fail(opened, number))

    def fail(opened: int, number: int) -> None:
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(opened)

    with keeper(one_rank, folder, tmp_path / "result_0.txt", checkpoint_keep=1) as made:
        with refusing_folders(errno.EINVAL):  # of a file system that cannot flush a folder
            made.epoch_ended(built.main, 1)
            assert made.last_good.startswith(f"the last good checkpoint is {folder}/step_000000010.safetensors")
            made.epoch_ended(built.main, 2)
            assert made.last_good.startswith(f"the last good checkpoint is {folder}/step_000000020.safetensors")
        assert not (folder / "step_000000010.safetensors").exists() and capfd.readouterr().err == ""
        with refusing_folders(errno.EIO):
            made.epoch_ended(built.main, 3)
            assert made.last_good.startswith(f"the last good checkpoint is {folder}/step_000000030.safetensors")
        made.epoch_ended(built.main, 4)
    why = "older checkpoints may be left: [Errno 5] Input/output error"
    assert capfd.readouterr().err == f"warning: step_000000030.safetensors is written, but {why}\n"
    assert [path.name for path in folder.iterdir()] == ["step_000000040.safetensors"]
    assert [event["step"] for event in jobs.values(tmp_path / "result_0.txt", "checkpoint")] == [10, 20, 30, 40]


def test_no_step_waits_for_the_disk(tmp_path, one_rank, built, monkeypatch, capfd):
    """On a disk that stands still training goes on, past the next checkpoint too, which is left out with a warning."""
    goes, write = threading.Event(), checkpoint.write

    def slow(*arguments: Any) -> int:
        assert goes.wait(jobs.LIMIT_S)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write", slow)
    made = keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt")
    with made:
        made.epoch_ended(built.main, 1)
        assert made.window_ends(built.main, Timing(), step=11, epoch=2) == 0.0
        made.epoch_ended(built.main, 2)
        assert not (tmp_path / "kept" / "step_000000010.safetensors").exists(), "still being written"
        goes.set()
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["step_000000010.safetensors"]
    warning = "warning: checkpoint of step 20 left out: the one before is still being written\n"
    assert capfd.readouterr().err == warning and warning in (tmp_path / "result_0.txt").read_text()
