"""Any bytes whatever: an importer makes a record or says in one line why not. It never dies and never hangs."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoring.figure import protocols
from scoring.figure.score import score
from scoring.importers import FORMATS, jsonable, read_record, record_lines
from scoring.record import InputError, TooFewRunsError
from tests.scoring import samples

SETTINGS = settings(
    max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
)
BITS = [
    b"\n", b"\r", b"\x00", b"\x1b[31m", b"[1,0]<stdout>:", b"[1,9999999999999]<stderr>:", b"\xff\xfe", b":::MLLOG ",
    b"nan", b"inf", b"-1", b"0", b"9" * 400, b"1e999", b"0.0.0", b"..", b"None", "\u0663".encode(), b" " * 3000,
    b"{", b"}", "\u00b2".encode(),
    b"epoch:0 train step:0 ", b"batch_cost: 0 s,", b"ips: 0 samples/sec.", b"[TRAIN] epoch: 0, iter: 0/0, ",
    b"Iter [0/0]", b"Iteration: 0 ", b"train: epoch 0, iter 0, ", b"train batch 0]", b"DLL 0000-00-00 00:00:00.0 - ",
]  # fmt: skip


def survive(path: Path, name: str | None) -> None:
    """Import and score under every protocol; only the errors meant for a user may come."""
    try:
        record = read_record(path, format=name, devices=8, batch_per_device=32)
    except InputError as error:
        assert "\n" not in str(error)
        return
    record_lines(record)
    jsonable(record)
    for protocol in protocols.load().values():
        for skip in (None, 0):
            try:
                result = score([record], protocol, skip=skip)
            except (InputError, TooFewRunsError):
                continue
            assert 0 < result.value < float("inf")


@given(
    data=st.lists(st.one_of(st.sampled_from(BITS), st.binary(max_size=40)), max_size=60),
    name=st.sampled_from(sorted(FORMATS)),
)
@SETTINGS
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: list[bytes], name: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.log"
    path.write_bytes(b"".join(data))
    survive(path, None)
    survive(path, name)


def mutated(text: bytes, draw: random.Random, more: Sequence[bytes] = ()) -> bytes:
    """A log with bytes replaced, removed, repeated and foreign pieces put in."""
    data = bytearray(text)
    for _ in range(draw.randrange(1, 30)):
        at = draw.randrange(len(data) + 1)
        digit = next((index for index in range(at, min(at + 40, len(data))) if 48 <= data[index] <= 57), at)
        first, last, piece = draw.choice(
            (
                (at, at, draw.choice((*BITS, *more))),
                (at, at + draw.randrange(1, 60), b""),
                (at, at + 1, bytes([draw.randrange(256)])),
                (at, at, data[at : at + draw.randrange(300)]),
                (digit, digit + 1, bytes([draw.choice(b"0123456789.-e")])),
            )
        )
        data[first:last] = piece
    return bytes(data)


@pytest.mark.parametrize("name", sorted(samples.WRITERS))
def test_changed_logs(tmp_path: Path, name: str) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(130), epoch_steps=65)).encode()
    draw = random.Random(name)
    path = tmp_path / "a.log"
    for _ in range(8):
        path.write_bytes(mutated(text, draw))
        survive(path, None)
        survive(path, name)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_rows_made_to_take_long(tmp_path: Path, name: str) -> None:
    """Pieces of rows by the thousand on one line: the search for a row stays short."""
    pieces = {
        "paddleclas_static": "epoch:0 train step:1 loss: 1 batch_cost: 1 s, reader_cost: 1 s, ",
        "paddleclas_dygraph": "[Train][Epoch 1/1][Iter: 1/1] loss: 1 batch_cost: 1s, reader_cost: 1, ",
        "paddleseg": "[TRAIN] epoch: 1, iter: 1/1, loss: 1 batch_cost: 1, reader_cost: 1, ",
        "mmseg": "Iter [1/1] time: 1 data_time: 1 memory: 1 ",
    }
    piece = pieces.get(name, "DLL Epoch: 0 Iteration: 1  train.loss : 1 train: epoch 0, iter 1, loss: 1 (0, 1) ")
    tail = piece.split(" ", 3)[-1]
    path = tmp_path / "a.log"
    path.write_text((piece * 3000 + "\n") * 3 + piece + tail * 3000 + "\n")
    survive(path, name)
