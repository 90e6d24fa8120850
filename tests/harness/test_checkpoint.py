"""Checkpoints: the file, the choice of one to go on from, and the keeper; whole runs: test_going_on.py."""

import dataclasses
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from paddle import static

from harness import env, state
from harness.hooks import checkpoint, checkpoint_file, resume
from harness.hooks.checkpoint_file import Position
from harness.job import job_of, with_values
from harness.progress import Progress, Timing
from harness.ranks import Ranks
from runlog.errors import RunError
from runlog.writer import RunLog
from tests import jobs
from tests.program import programs

ARRAYS = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.array([1.5, -2.0], dtype=np.float16),
    "steps": np.array([7], dtype=np.int64),
    "scalar": np.array(2.5, dtype=np.float32),
    "flag": np.array([True, False]),
    "nothing": np.zeros((0, 3), dtype=np.float32),
}
RUN = {"workload": "rn50", "recipe": "digits_small"}
POSITION = Position(step=10, epoch=2, epoch_step=0, seed=7, global_batch=32, ranks=2)
METADATA = {"position": dataclasses.asdict(POSITION), "run": RUN}


@pytest.fixture(scope="module")
def one_rank() -> Ranks:
    """The only rank of a job of one."""
    return Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")


def job(folder: Path, **changes: object) -> env.Job:
    return job_of(dgxngpu=1, batchsize=32, resume="auto", checkpoint_dir=str(folder), **changes)  # type: ignore[arg-type]


# ---- the file


def test_file_gives_back_what_it_got(tmp_path):
    path = tmp_path / "a.safetensors"
    checkpoint_file.write(path, ARRAYS, METADATA)
    arrays, metadata = checkpoint_file.read(path)
    assert metadata == METADATA and list(arrays) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        assert np.array_equal(arrays[name], array)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    # By the format's definition alone: length, JSON, bytes (huggingface/safetensors, README).
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0 and all(isinstance(text, str) for text in header.pop("__metadata__").values())
    begin, end = header["weight"]["data_offsets"]
    assert header["weight"]["dtype"] == "F32" and header["weight"]["shape"] == [3, 4]
    assert np.array_equal(np.frombuffer(data[8 + length :][begin:end], np.float32).reshape(3, 4), ARRAYS["weight"])
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - 8 - length


def test_every_damage_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    checkpoint_file.write(path, ARRAYS, METADATA)
    good = path.read_bytes()
    for at in range(len(good)):
        for damaged in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            path.write_bytes(damaged)
            try:
                checkpoint_file.read(path)
            except ValueError:
                continue
            # Trailing blanks of the header and its length are not what the checksum is about.
            assert good[at : at + 1] == b" ", f"byte {at} was damaged unnoticed"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 8, b"\xff" * 64, b"\x80\x04\x95" + b"." * 50, (2).to_bytes(8, "little") + b"[]"]
    + [
        (n := len(text)).to_bytes(8, "little") + text
        for text in (b"{}", b'{"__metadata__":{}}', b"[" * 4000, b"\xff" * 9)
    ],
)
def test_foreign_file_is_refused(tmp_path, data):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError):
        checkpoint_file.read(path)


# ---- which one to go on from


def save(folder: Path, step: int, *, run: dict[str, str] = RUN, **changes: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:09d}.safetensors"
    position = dataclasses.replace(POSITION, step=step, **changes)
    checkpoint_file.write(path, ARRAYS, {"position": dataclasses.asdict(position), "run": run})
    return path


def test_the_newest_good_one_is_taken(tmp_path, one_rank, capfd):
    old, damaged = save(tmp_path, 10), save(tmp_path, 200)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (tmp_path / ".step_000000300.safetensors.tmp").write_bytes(b"half")
    start = resume.find(job(tmp_path), one_rank, RUN)
    assert start.path == str(old) and start.position == dataclasses.replace(POSITION, step=10)
    skipped = f"{damaged}: damaged, its checksum is wrong: skipped"
    assert start.notes == (skipped,) and f"warning: {skipped}" in capfd.readouterr().err
    assert damaged.exists(), "nothing is thrown away"


def test_where_all_are_damaged_the_user_is_told_to_move_them(tmp_path, one_rank, capfd):
    damaged = save(tmp_path, 10)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ValueError, match="no checkpoint in it is whole: move them away to start at step 0"):
        resume.find(job(tmp_path), one_rank, RUN)
    said = capfd.readouterr().err
    assert f"warning: {damaged}: damaged" in said and "starting at step 0" not in said
    assert damaged.exists(), "nothing is thrown away"


def test_a_trial_does_not_go_on_from_the_checkpoint_of_another(tmp_path, one_rank):
    """Of several trials, whose checkpoints CHECKPOINT_DIR holds."""
    of_first, of_second = (
        job(tmp_path, nexp=2, result_file=str(tmp_path / "logs" / name))
        for name in ("result_0.resumed_1.txt", "result_1.txt")
    )
    saved = save(tmp_path / "result_0.checkpoints", 10)
    assert resume.find(of_first, one_rank, RUN).path == str(saved)
    assert not resume.find(of_second, one_rank, RUN).is_from_checkpoint
    with pytest.raises(ValueError, match="checkpoints are never overwritten"):
        keeper_of(with_values(of_first, resume="no"), one_rank, tmp_path / "first.txt")
    keeper_of(with_values(of_second, resume="no"), one_rank, tmp_path / "second.txt")


def test_a_folder_is_of_one_run_at_a_time(tmp_path, one_rank):
    """Two runs that begin at once would write over each other's checkpoints, which have equal names."""
    code = "import sys; from pathlib import Path; from harness.hooks import checkpoint_file\n"
    code += "lock = checkpoint_file.hold(Path(sys.argv[1]), patience_s=0); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "new")]
    with subprocess.Popen(command, cwd=jobs.REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"held\n"
        half_written = tmp_path / "new/.step_000000300.safetensors.tmp"
        half_written.write_bytes(b"half")
        with pytest.raises(ValueError, match="another run writes its checkpoints there"):
            keeper(one_rank, tmp_path / "new", tmp_path / "first.txt")
        assert half_written.exists(), "the other run is about to rename it"
        threading.Timer(1.5, other.kill).start()  # as the server of NFS, which learns late that a node is lost
        checkpoint_file.hold(tmp_path / "new", patience_s=jobs.LIMIT_S).close()
        other.communicate()
    kept = keeper(one_rank, tmp_path / "new", tmp_path / "second.txt")
    assert not half_written.exists()
    kept.close()


def test_none_means_the_beginning(tmp_path, one_rank):
    start = resume.find(job(tmp_path / "no"), one_rank, RUN)
    assert start.notes == (f"RESUME=auto: {tmp_path / 'no'} has no good checkpoint: starting at step 0",)
    assert dataclasses.replace(start, notes=()) == resume.FROM_STEP_0
    save(tmp_path, 10)
    assert resume.find(with_values(job(tmp_path), resume="no"), one_rank, RUN) == resume.FROM_STEP_0


def test_a_checkpoint_of_another_run_is_refused(tmp_path, one_rank):
    save(tmp_path, 10)
    with pytest.raises(ValueError, match=r"of another run \(recipe 'digits_small' there, 'mlperf_lars' here\)"):
        resume.find(job(tmp_path), one_rank, RUN | {"recipe": "mlperf_lars"})
    with pytest.raises(ValueError, match=r"of another run \(recipe 'digits_small' there, None here\)"):
        resume.find(job(tmp_path), one_rank, {"workload": "rn50"})
    with pytest.raises(ValueError, match=r"had 32 images a step, this one has 64: .* BATCHSIZE=32 for 1 ranks"):
        resume.find(with_values(job(tmp_path), batchsize=64), one_rank, RUN)
    with pytest.raises(ValueError, match=r"5 ranks cannot share them evenly: take a number of ranks that divides 32"):
        resume.find(with_values(job(tmp_path), dgxngpu=5), dataclasses.replace(one_rank, size=5), RUN)
    with pytest.raises(ValueError, match="had SEED=7"):
        resume.find(job(tmp_path, seed=8), one_rank, RUN)
    assert resume.find(job(tmp_path, seed=7), one_rank, RUN).position.step == 10
    with pytest.raises(ValueError, match="checkpoints are never overwritten"):
        keeper(one_rank, tmp_path, tmp_path / "log.txt")


def test_what_a_checkpoint_does_not_know_of_its_run_does_not_count(tmp_path, one_rank):
    save(tmp_path, 10)
    known = RUN | {"train_sha256": "a" * 64}
    assert resume.find(job(tmp_path), one_rank, known).notes == ()
    save(tmp_path, 20, run=known)
    assert resume.find(job(tmp_path), one_rank, known).notes == ()
    assert resume.find(job(tmp_path), one_rank, RUN | {"train_sha256": None}).notes == ()


# ---- the keeper, on a small program


@pytest.fixture(scope="module")
def built() -> Iterator[programs.Built]:
    """A training program with its state in Paddle's scope: weights, BN statistics, momentum."""
    made = programs.build()
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(made.startup)
        yield made


def keeper(
    one_rank, folder: Path, log: Path, start: resume.Start = resume.FROM_STEP_0, **changes: object
) -> checkpoint.Keeper:
    settings = {"resume": "no", "checkpoint_epochs": 1, **changes}
    return keeper_of(with_values(job(folder), **settings), one_rank, log, start)  # type: ignore[arg-type]


def keeper_of(
    settings: env.Job, one_rank: Ranks, log: Path, start: resume.Start = resume.FROM_STEP_0
) -> checkpoint.Keeper:
    shown = Progress("plain", 100)
    return checkpoint.Keeper(
        settings, one_rank, RunLog(log), shown, start=start, identity=RUN, seed=7, steps_per_epoch=10
    )


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
    states = []
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
    for name, value in states[1].items():
        assert np.all(value == (5 if changed and name in SCALE else 7)), name
    warned = "loss scale, this one has a" in capfd.readouterr().err
    assert warned == changed


def test_minutes_and_a_signal_are_noticed_at_a_window(tmp_path, one_rank, built):
    made = keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt", checkpoint_epochs=0, checkpoint_minutes=1)
    before = signal.getsignal(signal.SIGTERM)
    with made:
        assert made.window_ends(built.main, Timing(), step=3, epoch=1) == 0.0
        made._last_checkpoint_s -= 61
        assert made.window_ends(built.main, Timing(), step=14, epoch=2) > 0.0
        made._wait_for_writer()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(RunError, match=r"stopped by signal TERM after step 17; the last good checkpoint is .*017"):
            made.window_ends(built.main, Timing(), step=17, epoch=2)
    assert signal.getsignal(signal.SIGTERM) == before
    _, metadata = checkpoint_file.read(tmp_path / "kept" / "step_000000014.safetensors")
    assert (metadata["position"]["epoch"], metadata["position"]["epoch_step"]) == (2, 4)


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
        made.epoch_ended(built.main, 2)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step_000000020.safetensors"]


def test_no_step_waits_for_the_disk(tmp_path, one_rank, built, monkeypatch):
    """On a disk that stands still training goes on, past the next checkpoint too, which is then left out."""
    goes, write = threading.Event(), checkpoint.write

    def slow(*arguments: Any) -> None:
        assert goes.wait(jobs.LIMIT_S)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write", slow)
    made = keeper(one_rank, tmp_path / "kept", tmp_path / "result_0.txt")
    with made:
        made.epoch_ended(built.main, 1)
        assert made.window_ends(built.main, Timing(), step=11, epoch=2) == 0.0
        made.epoch_ended(built.main, 2)
        assert not (tmp_path / "kept" / "step_000000010.safetensors").exists(), "still being written"
        goes.set()
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["step_000000010.safetensors"]
    assert "checkpoint of step 20 left out" in (tmp_path / "result_0.txt").read_text()
