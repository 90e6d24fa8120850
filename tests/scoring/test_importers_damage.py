"""What real logs are known for: other bytes, prefixes, rows that are cut or broken, no rows."""

import bz2
import dataclasses
import functools
import gzip
import itertools
import json
import lzma
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compliance.__main__ import main as compliance
from scoring.figure import protocols
from scoring.figure.score import score
from scoring.importers import FORMATS, jsonable, read_record, recognise
from scoring.importers.show import record_lines
from scoring.record import InputError, TooFewRunsError
from tests import jobs
from tests.scoring import samples
from tests.scoring.test_importers import read, run, same_rows

OTHER_BYTES = b"\n\x00\xff\xfe W0802 device: \x00. caf\xe9\n"
# None of them is a row of any format.
OTHER_LINES = [b"LAUNCH INFO --ips=10.0.0.1,10.0.0.2", b"infer_imgs: docs/demo.jpg ips: 100", b"train.ips", b"epoch:"]
OTHER_LINES += [b"W0602 16:17:05 2674 gpu_context.cc:278] Please NOTE: ips: 12 samples", b"step 12: loss 3.2, ips: 44"]
OTHER_LINES += [b":::MLLOG", b"\x00\x00", b"\xff\x7f"]
PREFIXES = ["[1,0]<stdout>:", "[prterun-h-1@1,0]<stdout>: ", "0: ", "worker-0  | ", "2023-07-28T07:50:00.123Z "]
PREFIXES += ["[2023-07-28 07:50:00] "]
PREFIXES += ["\x1b[36m", "\x1b[1;31m", "\x1b[38;5;208m", "\x1b]0;title\x07", "\x1b[2K"]


def prefixed(text: bytes, prefix: str) -> bytes:
    lines = text.replace(b"[1,0]<stdout>:", b"").splitlines()
    return b"".join(prefix.encode() + line + b"\x1b[0m" * (prefix[0] == "\x1b") + b"\n" for line in lines)


def as_docker_keeps_it(text: bytes) -> bytes:
    entries = [
        {"log": line, "stream": "stderr", "time": "2023-07-28T07:50:00.1Z"} for line in text.decode().splitlines(True)
    ]
    return b"".join(json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in entries)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "other bytes between lines": lambda text: text.replace(b"\n", OTHER_BYTES),
    "lines of other processes": lambda text: b"".join(
        b"%s\n%s\n" % pair for pair in zip(text.splitlines(), itertools.cycle(OTHER_LINES), strict=False)
    ),
    **{f"prefix {prefix!r}": functools.partial(prefixed, prefix=prefix) for prefix in PREFIXES},
    "NUL bytes": lambda text: text.replace(b"loss", b"lo\x00ss"),
    "two bytes a character, as Windows' shell redirects": lambda text: text.decode().encode("utf-16-le"),
    "CR LF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR": lambda text: text.replace(b"\n", b"\r"),
    "CR CR LF": lambda text: text.replace(b"\n", b"\r\r\n"),
    "docker's file of a container": as_docker_keeps_it,
    "colours as tput ends them": lambda text: text.replace(b"\n", b"\x1b(B\x1b[m\n"),
    "each line twice": lambda text: b"".join(line + line for line in text.splitlines(keepends=True)),
    "NaN losses": lambda text: re.sub(rb"(loss\"?\s?:?\s*)\d+\.\d+", rb"\1nan", text),
}
NO_JSON = {
    "NUL bytes",
    "colours as tput ends them",
    "two bytes a character, as Windows' shell redirects",
    "each line twice",
    "NaN losses",
    "docker's file of a container",
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_the_same_in_any_bytes(tmp_path: Path, name: str, change: str) -> None:
    if name == "mllog" and change in NO_JSON:  # such an event is the checker's business
        return
    text = samples.WRITERS[name](run())
    clean, changed = read(tmp_path, text, name), read(tmp_path, CHANGES[change](text.encode()), name)
    assert same_rows(clean, changed)
    assert (clean.format, clean.global_batch) == (changed.format, changed.global_batch)


@pytest.mark.parametrize("key", ["log", "message", "MESSAGE", "line", "textPayload"])
def test_lines_in_the_json_of_a_collector_are_read(tmp_path: Path, name: str, key: str) -> None:
    if name == "mllog":  # the checker reads events as they were printed
        return
    text = samples.WRITERS[name](run())
    entries = [json.dumps({"time": "2023-07-28T07:50:00.1Z", "n": 1, key: line}) for line in text.splitlines()]
    plain, collected = read(tmp_path, text, name), read(tmp_path, "\n".join([*entries, '{"n": 1}', ""]), name)
    assert same_rows(plain, collected)
    for field in ("devices", "batch_per_device", "model", "precision", "truncated", "summary_rate"):
        assert getattr(collected, field) == getattr(plain, field)


@pytest.mark.parametrize(
    "prefix",
    [
        *("[1,{}]<stdout>:", "[prterun-host-1@1,{}]<stdout>: ", "Mon Jul 31 09:00:37 2023[1,{}]<stdout>:"),
        *("[1,{}][host-1:4711]<stdout>: ", "[{}]<stdout>:"),
    ],
)
def test_mpirun_prefixes_and_ranks(tmp_path: Path, name: str, prefix: str) -> None:
    """Only rank 0's rows count, whatever the other ranks print, and in whatever order."""
    text = samples.WRITERS[name](run())
    clean = read(tmp_path, text, name)
    tagged = []
    for line in text.splitlines():
        bare = line.replace("[1,0]<stdout>:", "").replace("[1,0]<stderr>:", "")
        if name != "mllog":  # in an MLLOG log only rank 0 speaks
            tagged.append(prefix.format(1) + bare.replace("ips : 5", "ips : 1").replace("ips: 6", "ips: 1"))
        tagged.append(prefix.format(0) + bare)
    assert same_rows(clean, read(tmp_path, "\n".join(tagged) + "\n", name))


@pytest.mark.parametrize("prefix", ["{}: ", "[1,{}]<stdout>:", "[1,mpirank:{},algo-1]<stdout>:"])
def test_an_mllog_log_of_two_ranks_is_one_run(tmp_path: Path, prefix: str) -> None:
    """Each rank logs the whole run, and the lower one counts. What a rank logs alone counts, too."""
    text = samples.WRITERS["mllog"](run())
    clean = read(tmp_path, text, "mllog")
    tagged = []
    for line in text.splitlines():
        if ":::MLLOG" in line and "eval_accuracy" not in line:
            tagged.append(prefix.format(1) + line.replace('"images": ', '"images": 1'))
        tagged.append(prefix.format(2 if "eval_accuracy" in line else 0) + line)
    both = read(tmp_path, "\n".join(tagged) + "\n", "mllog")
    assert same_rows(clean, both)
    assert both.segment is None and both.problems == clean.problems
    assert [quality.value for quality in both.quality] == [quality.value for quality in clean.quality]


# An MLLOG event broken in two is not an event: the checker reports it. The others' rows are of two lines, or two
# fields.
@pytest.mark.parametrize(
    "name", sorted(set(samples.WRITERS) - {"mllog", "nvidia_nvlog", "nvidia_mxnet_speed", "gluoncv"})
)
def test_warning_inside_a_row(tmp_path: Path, name: str) -> None:
    """Another process writes into the middle of a row: the row's own fields still stand on one line or the next."""
    text = samples.WRITERS[name](run())
    clean = read(tmp_path, text, name)
    lines = text.splitlines()
    where = clean.windows[4].line - 1
    words = {
        "mmseg": "eta",
        "mm_epochs": "eta",
        "oneflow": "top_1",
        "paddle18": "acc1",
        "nvidia_tensorflow": "total_ips",
    }
    words |= {"nvidia_json": '"data"', "keras": "between"}
    word = words.get(name, "train.loss" if name.startswith("nvidia") else "l")
    head, tail = lines[where].split(f" {word}", 1)
    for broken in (
        f"{head} W0602 16:17:19.169394  2674 fuse_pass.cc:76] Find all_reduce operators: 161.  {word}{tail}",
        f"{head}W0602 16:17:19.169394  2674 fuse_pass.cc:76] Find all_reduce operators: 161.\n {word}{tail}",
    ):
        text = "\n".join([*lines[:where], broken, *lines[where + 1 :]]) + "\n"
        assert same_rows(clean, read(tmp_path, text, name)), broken


def test_unusable_rates_are_no_rates(tmp_path: Path) -> None:
    text = samples.oneflow(run()).splitlines()
    text[6] = text[6].replace("samples/s: ", "samples/s: -1 was ")
    text.append("train: epoch 0, iter 9999, loss: 1.0, top_1: 0, top_k: 0, samples/s: nan")
    record = read(tmp_path, "\n".join(text))
    assert 9999 not in [window.step for window in record.windows]
    assert all(window.printed_rate and window.printed_rate > 0 for window in record.windows)


def test_truncated_log_yields_what_it_holds(tmp_path: Path, name: str) -> None:
    text = samples.WRITERS[name](run())
    whole = read(tmp_path, text, name)
    lines = text.splitlines(keepends=True)
    before, row = "".join(lines[: whole.windows[11].line - 1]), lines[whole.windows[11].line - 1]
    rows = [(w.step, w.epoch, w.printed_rate, w.printed_step_time_s) for w in whole.windows]
    for left in range(len(row)):
        part = read(tmp_path, before + row[:left], name)
        assert part.truncated is (None if name in ("paddle18", "oneflow") else True)
        found = [(w.step, w.epoch, w.printed_rate, w.printed_step_time_s) for w in part.windows]
        assert found in (rows[:11], rows[:12]), row[:left]


def test_no_number_is_half_of_one_where_the_log_is_cut(tmp_path: Path, name: str) -> None:
    """A loss of 2.6 was read of 2.6493, an accuracy of 0.7 of 0.7123, a memory of 1 MiB of 13479."""
    text = samples.WRITERS[name](samples.run_of(samples.steady(40), epoch_steps=20))
    whole = read(tmp_path, text, name)
    last_row = whole.windows[-1]
    ends_within_number = [found.end() for found in re.finditer(r"[\d.](?=[\d.])", text)]
    row_begins = sum(map(len, text.splitlines(keepends=True)[: last_row.line - 1]))
    for end in filter(row_begins.__lt__, ends_within_number):
        cut = read(tmp_path, text[:end], name)
        assert {*cut.quality} <= {*whole.quality} and cut.summary_rate in (None, whole.summary_rate)
        if cut.windows[-1].line == last_row.line:
            stated = {field: value for field, value in dataclasses.asdict(cut.windows[-1]).items() if value is not None}
            assert stated.items() <= dataclasses.asdict(last_row).items()


def test_a_log_that_ends_with_the_last_but_one_epoch_is_truncated(tmp_path: Path) -> None:
    text = samples.WRITERS["paddleclas_dygraph"](run())
    assert read(tmp_path, text).truncated is False and "epochs : 2" in text
    assert read(tmp_path, text.replace("epochs : 2", "epochs : 3")).truncated is True


def test_rows_have_the_last_word_over_a_configured_batch(tmp_path: Path) -> None:
    text = samples.WRITERS["paddleclas_static"](run())
    assert "batch_size : 32" in text
    record = read(tmp_path, text.replace("batch_size : 32", "batch_size : 64"))
    assert record.batch_per_device == 32
    [check] = [check for check in record.checks if check.what == "batch" and not check.agree]
    assert "the configuration, 64" in str(check) and "rate x step time, 32 a device" in str(check)


@pytest.mark.parametrize(("factor", "may_be_of_all"), [(8, True), (4, False)])
def test_a_rate_that_may_be_of_all_devices_is_told_of(tmp_path: Path, factor: int, may_be_of_all: bool) -> None:
    text = samples.WRITERS["paddleseg"](run())
    larger = re.sub(r"(?<=ips: )[\d.]+", lambda rate: f"{float(rate[0]) * factor:.4f}", text)
    log = samples.write(tmp_path, "a.log", larger)
    status, result, _ = samples.command("score", log, "--protocol", "window", "--skip", "0")
    [message] = [warning["message"] for warning in result["warnings"] if warning["rule"] == "ways_disagree"]
    assert (status, f"rate x step time, {32 * factor} a device" in message) == (0, True)
    assert ("or the rate is of all 8 devices" in message) is may_be_of_all


@pytest.mark.parametrize(
    ("text", "count"),
    [("LAUNCH --ips=10.0.0.1\ninfer_imgs: 5\nips: 300 samples/sec.\n", "3 lines"), ("infer_imgs: 5\n", "1 line")],
)
def test_unknown_format(tmp_path: Path, text: str, count: str) -> None:
    with pytest.raises(InputError, match=f"no line of a known format in {count};"):
        recognise(samples.write(tmp_path, "resnet50_b128_fp32.log", text))


def test_a_very_long_line_is_one(tmp_path: Path) -> None:
    text = samples.paddleseg(run())
    long = read(tmp_path, "x" * 200_000 + "\n" + text)
    assert long.lines == len(text.splitlines()) + 1
    assert [window.line - 1 for window in long.windows] == [window.line for window in read(tmp_path, text).windows]


def test_a_row_behind_a_progress_bar_is_read(tmp_path: Path) -> None:
    """Keras draws its bar anew on one line, and a row is printed where the bar stands."""
    text = samples.keras(run())
    bar = "".join(f"{step}/9999 [=====>.......] - ETA: 9:59 - loss: 6.9: 1.25\r" for step in range(6000))
    with_bars = re.sub(r"(?m)^(?=I\d{4} )", lambda _: bar, text)
    assert len(bar) > 200_000 and with_bars != text
    record = read(tmp_path, with_bars)
    assert same_rows(record, read(tmp_path, text)) and not record.problems
    head, figures = text.splitlines()[-2].replace(" 240", " 250").split(" seconds, ")
    assert same_rows(record, read(tmp_path, f"{text}{head} seconds, {bar}{figures}\n"))  # not across what is left out


def test_few_rows_far_down_a_long_log_are_found(tmp_path: Path) -> None:
    other = "other text of a job\n" * 100_000
    assert recognise(samples.write(tmp_path, "x.log", other + samples.paddleseg(run()) + other)) == "paddleseg"


def test_ambiguous_format_names_the_lines(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "x.log", samples.paddleseg(run()) + samples.oneflow(run()))
    with pytest.raises(InputError, match=r"paddleseg \(line 12\), oneflow \(line 43\); say which one with --format"):
        recognise(path)
    assert read_record(path, format="oneflow").format == "oneflow"


def test_log_without_a_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without one training row"):
        read(tmp_path, "train: epoch 0, iter 20, samples/s: -1\n", format="oneflow")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_an_mllog_log_in_utf_16_is_refused_by_that_name(tmp_path: Path, encoding: str) -> None:
    """PowerShell's `>` writes such files, with a byte-order mark and Windows' line ends."""
    log = tmp_path / "result_0.txt"
    log.write_bytes(f"\ufeff{samples.mllog(run())}".replace("\n", "\r\n").encode(encoding))
    said = r"the file is UTF-16, .*: convert it with `iconv -f UTF-16 -t UTF-8`"
    with pytest.raises(InputError, match=rf"nothing was measured; line 1: {said}$"):
        read_record(log)
    status, out, error = jobs.called(compliance, "check", log)
    assert (status, error) == (1, "")
    assert re.search(said, out)


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, lambda text: gzip.compress(bz2.compress(text))])
def test_a_packed_log_is_said_to_be_packed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(pack(samples.paddleseg(run()).encode()))
    with pytest.raises(InputError, match="the file is packed: unpack it first"):
        read_record(path)


def test_gzip(tmp_path: Path, name: str) -> None:
    text = samples.WRITERS[name](run())
    packed = gzip.compress(text.encode())
    plain, unpacked = read(tmp_path, text, name), read(tmp_path, packed, name)
    assert (unpacked.format, unpacked.windows, unpacked.sha256) == (plain.format, plain.windows, plain.sha256)
    for broken in (packed[:-30], packed[:40] + b"x" * 40 + packed[80:]):
        with pytest.raises(InputError, match="a broken gzip file"):
            read(tmp_path, broken, name)


def test_not_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    for place in (tmp_path, fifo, "/dev/zero"):
        with pytest.raises((InputError, OSError)):
            read_record(place)


# ---- any bytes whatever: an importer makes a record or says in one line why not

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
@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
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
        "mm_epochs": "Epoch [1][1/1] time: 1 data_time: 1 memory: 1 ",
        "keras": "1/1 - 1s - loss: 1 ",
    }
    piece = pieces.get(name, "DLL Epoch: 0 Iteration: 1  train.loss : 1 train: epoch 0, iter 1, loss: 1 (0, 1) ")
    tail = piece.split(" ", 3)[-1]
    path = tmp_path / "a.log"
    path.write_text((piece * 3000 + "\n") * 3 + piece + tail * 3000 + "\n")
    survive(path, name)


@pytest.mark.parametrize("name", ["precision", "framework"])
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_text_of_run_summary_states_nothing(tmp_path: Path, name: str, blank: str) -> None:
    text, count = re.subn(rf'("{name}": )"[^"]+"', rf'\1"{blank}"', samples.mllog(run()))
    assert count == 1
    record = read(tmp_path, text)
    assert getattr(record, name) is None
    assert [problem for problem in record.problems if f"{name} is '{blank}', which cannot be read" in problem]


def test_a_time_stamp_beyond_all_numbers(tmp_path: Path) -> None:
    """It is read as infinite, and contradicts the times of the rows."""
    text = samples.WRITERS["keras"](samples.run_of(samples.steady(60)))
    huge = re.sub(r"(batch_index: 20, timestamp: )\d+", lambda stamp: stamp[1] + "9" * 400, text)
    record = read_record(samples.write(tmp_path, "log", huge))
    assert len(record.windows) == 6


def test_a_record_shows_names_in_their_own_script_and_no_control_characters(tmp_path: Path) -> None:
    text = samples.WRITERS["mllog"](run()).replace("resnet50_v1.5", "\u6b8b\u5dee\u7f51\u7edc\\u001b[31m\\u202e")
    record = read(tmp_path, text, "mllog")
    assert record.model == "\u6b8b\u5dee\u7f51\u7edc\x1b[31m\u202e"
    [model] = [line for line in record_lines(record) if line.startswith("  model ")]
    assert "\u6b8b\u5dee\u7f51\u7edc\\x1b[31m\\u202e  (line " in model
