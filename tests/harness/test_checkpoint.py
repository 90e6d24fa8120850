"""Checkpoints: the file, and the choice of one to go on from; writing: test_keeper.py; whole runs: test_going_on.py."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from harness.hooks import checkpoint, checkpoint_file, resume
from harness.job import job_of, with_values
from harness.ranks import Ranks
from tests import jobs
from tests.harness.checkpoints import ARRAYS, METADATA, POSITION, RUN, job, keeper, keeper_of, save


@pytest.fixture(scope="module")
def one_rank() -> Ranks:
    """The only rank of a job of one."""
    return Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")


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


@contextlib.contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Hold a folder of checkpoints as the run of another process does."""
    code = "import sys; from pathlib import Path; from harness.hooks import checkpoint_file\n"
    code += "lock = checkpoint_file.hold(Path(sys.argv[1]), patience_s=0, say=print)\n"
    code += "print('held', flush=True); sys.stdin.read()\n"
    code += "checkpoint_file.let_go(lock)"
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, cwd=jobs.REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"held\n"
        yield other  # and end it after that, by closing its standard input


def test_a_folder_is_of_one_run_at_a_time(tmp_path, one_rank):
    """Two runs that begin at once would write over each other's checkpoints, which have equal names."""
    with held(tmp_path / "new") as other:
        half_written = tmp_path / "new/.step_000000300.safetensors.tmp"
        half_written.write_bytes(b"half")
        with pytest.raises(ValueError, match="another run writes its checkpoints there"):
            keeper(one_rank, tmp_path / "new", tmp_path / "first.txt")
        assert half_written.exists(), "the other run is about to rename it"
        threading.Timer(1.5, other.kill).start()  # as the server of NFS, which learns late that a node is lost
        said: list[str] = []
        checkpoint_file.hold(tmp_path / "new", patience_s=jobs.LIMIT_S, say=said.append).close()
        [line] = said
        assert line.endswith(f"another run writes its checkpoints there: waiting {jobs.LIMIT_S:.0f} s for its end")
    kept = keeper(one_rank, tmp_path / "new", tmp_path / "second.txt")
    assert not half_written.exists()
    kept.close()


def test_who_waits_for_a_folder_holds_it_against_a_third_run(tmp_path):
    """The run before removes its lock file at its end, while the next one has it open."""
    with held(tmp_path / "new") as other:
        assert other.stdin is not None
        threading.Timer(0.5, other.stdin.close).start()
        mine = checkpoint_file.hold(tmp_path / "new", patience_s=jobs.LIMIT_S, say=print)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [checkpoint_file.LOCK]
    checkpoint_file.let_go(mine)


def test_a_folder_next_to_the_log_is_of_one_run_and_goes_if_it_stays_empty(tmp_path, one_rank, monkeypatch):
    """As without CHECKPOINT_DIR, where a second job with RESUME=auto writes a log of its own."""
    monkeypatch.setattr(checkpoint, "PATIENCE_S", 0.0)
    first, second = (
        job_of(dgxngpu=1, batchsize=32, resume="auto", checkpoint_epochs=1, result_file=str(tmp_path / name))
        for name in ("result_0.txt", "result_0.resumed_1.txt")
    )
    folder = tmp_path / "result_0.checkpoints"
    with held(folder):
        refusal = f"{folder}: another run writes its checkpoints there: wait for its end, set CHECKPOINT_DIR"
        with pytest.raises(ValueError, match=refusal):
            keeper_of(second, one_rank, tmp_path / "result_0.resumed_1.txt")
    keeper_of(first, one_rank, tmp_path / "result_0.txt").close()
    assert not folder.exists()
    saved = save(folder, 10)
    keeper_of(first, one_rank, tmp_path / "result_0.resumed_2.txt", resume.find(first, one_rank, RUN)).close()
    assert list(folder.iterdir()) == [saved]


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


@pytest.mark.parametrize(("name", "did"), [("train_sha256", "trained"), ("eval_sha256", "evaluated")])
def test_other_files_of_either_part_are_noted(name: str, did: str, tmp_path, one_rank):
    """Of other evaluation files, by which a run reached its target, nothing was said."""
    save(tmp_path, 10, run=RUN | {name: "a" * 64})
    [note] = resume.find(job(tmp_path), one_rank, RUN | {name: "b" * 64}).notes
    assert f"its run {did} on other files: names, sizes or labels differ" in note


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"train_order": "files bb"}, ["its run numbered the training files in another order, as where a list"]),
        ({"train_order": "files bb", "train_sha256": "b" * 64}, ["its run trained on other files"]),
        ({"train_order": "recordio bb"}, []),  # in the order of the files that they were packed from
        ({"train_order": None}, []),
    ],
)
def test_files_in_another_order_are_noted(changed, said, tmp_path, one_rank):
    """Of the epoch in which the run was stopped some would be trained on twice, and nothing was said."""
    known = RUN | {"train_order": "files aa", "train_sha256": "a" * 64}
    save(tmp_path, 10, run=known)
    notes = resume.find(job(tmp_path), one_rank, known | changed).notes
    assert [words in note for note, words in zip(notes, said, strict=True)] == [True] * len(said)


def test_batch_norm_over_other_images_is_noted(tmp_path, one_rank):
    """As by STRATEGY=gradient_merge=2, or on twice as many ranks: the run went on otherwise, without a word."""
    saved = save(tmp_path, 10, run=RUN | {"bn_span": 32})
    assert resume.find(job(tmp_path), one_rank, RUN | {"bn_span": 32}).notes == ()
    said = f"{saved}: its run took the statistics of batch norm over 32 images, this one takes them over 16: the losses"
    assert resume.find(job(tmp_path), one_rank, RUN | {"bn_span": 16}).notes == (
        f"{said} will differ from those of one straight run",
    )
    save(tmp_path, 20)  # by a release that did not say it
    assert resume.find(job(tmp_path), one_rank, RUN | {"bn_span": 16}).notes == ()
