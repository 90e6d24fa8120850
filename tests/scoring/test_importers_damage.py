"""What real logs are known for: other bytes, prefixes, rows that are cut or broken, no rows."""

import functools
import gzip
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from scoring.importers import read_record, recognise
from scoring.record import InputError
from tests.scoring import samples
from tests.scoring.test_importers import read, run, same_rows

OTHER_BYTES = b"\n\x00\xff\xfe W0802 device: \x00. caf\xe9\n"
# None of them is a row of any format.
OTHER_LINES = [b"LAUNCH INFO --ips=10.0.0.1,10.0.0.2", b"infer_imgs: docs/demo.jpg ips: 100", b"train.ips", b"epoch:"]
OTHER_LINES += [b"W0602 16:17:05 2674 gpu_context.cc:278] Please NOTE: ips: 12 samples", b"step 12: loss 3.2, ips: 44"]
OTHER_LINES += [b":::MLLOG", b"\x00\x00", b"\xff\x7f"]
PREFIXES = ["[1,0]<stdout>:", "[prterun-h-1@1,0]<stdout>: ", "0: ", "worker-0  | ", "2023-07-28T07:50:00.123Z "]
PREFIXES += ["\x1b[36m", "\x1b[1;31m", "\x1b[38;5;208m", "\x1b]0;title\x07", "\x1b[2K"]


def prefixed(text: bytes, prefix: str) -> bytes:
    lines = text.replace(b"[1,0]<stdout>:", b"").splitlines()
    return b"".join(prefix.encode() + line + b"\x1b[0m" * (prefix[0] == "\x1b") + b"\n" for line in lines)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "other bytes between lines": lambda text: text.replace(b"\n", OTHER_BYTES),
    "lines of other processes": lambda text: b"".join(
        b"%s\n%s\n" % pair for pair in zip(text.splitlines(), itertools.cycle(OTHER_LINES), strict=False)
    ),
    **{f"prefix {prefix!r}": functools.partial(prefixed, prefix=prefix) for prefix in PREFIXES},
    "NUL bytes": lambda text: text.replace(b"loss", b"lo\x00ss"),
    "two bytes a character, as Windows' shell redirects": lambda text: text.decode().encode("utf-16-le"),
    "CR LF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR CR LF": lambda text: text.replace(b"\n", b"\r\r\n"),
    "each line twice": lambda text: b"".join(line + line for line in text.splitlines(keepends=True)),
    "NaN losses": lambda text: re.sub(rb"(loss\"?\s?:?\s*)\d+\.\d+", rb"\1nan", text),
}
NO_JSON = {"NUL bytes", "two bytes a character, as Windows' shell redirects", "each line twice", "NaN losses"}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_the_same_in_any_bytes(tmp_path: Path, name: str, change: str) -> None:
    if name == "mllog" and change in NO_JSON:  # such an event is the checker's business
        return
    text = samples.WRITERS[name](run())
    clean, changed = read(tmp_path, text, name), read(tmp_path, CHANGES[change](text.encode()), name)
    assert same_rows(clean, changed)
    assert (clean.format, clean.global_batch) == (changed.format, changed.global_batch)


@pytest.mark.parametrize(
    "prefix", ["[1,{}]<stdout>:", "[prterun-host-1@1,{}]<stdout>: ", "Mon Jul 31 09:00:37 2023[1,{}]<stdout>:"]
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


# An MLLOG event broken in two is no event: the checker reports it. The others' rows are of two lines, or two fields.
@pytest.mark.parametrize(
    "name", sorted(set(samples.WRITERS) - {"mllog", "nvidia_nvlog", "nvidia_mxnet_speed", "gluoncv"})
)
def test_warning_inside_a_row(tmp_path: Path, name: str) -> None:
    """Another process writes into the middle of a row: the row's own fields still stand on one line or the next."""
    text = samples.WRITERS[name](run())
    clean = read(tmp_path, text, name)
    lines = text.splitlines()
    where = clean.windows[4].line - 1
    words = {"mmseg": "eta", "oneflow": "top_1", "paddle18": "acc1", "nvidia_tensorflow": "total_ips"}
    words |= {"nvidia_json": '"data"', "mmcv_json": '"memory"', "keras": "between"}
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
        assert part.truncated is (None if name in ("paddle18", "oneflow", "mmcv_json") else True)
        found = [(w.step, w.epoch, w.printed_rate, w.printed_step_time_s) for w in part.windows]
        assert found in (rows[:11], rows[:12]), row[:left]


def test_unknown_format(tmp_path: Path) -> None:
    text = "LAUNCH --ips=10.0.0.1\ninfer_imgs: 5\nips: 300 samples/sec.\n"
    with pytest.raises(InputError, match="no line of a known format in 3 lines"):
        recognise(samples.write(tmp_path, "resnet50_b128_fp32.log", text))


def test_a_very_long_line_is_one(tmp_path: Path) -> None:
    text = samples.paddleseg(run())
    long = read(tmp_path, "x" * 200_000 + "\n" + text)
    assert long.lines == len(text.splitlines()) + 1
    assert [window.line - 1 for window in long.windows] == [window.line for window in read(tmp_path, text).windows]


def test_few_rows_far_down_a_long_log_are_found(tmp_path: Path) -> None:
    other = "other text of a job\n" * 100_000
    assert recognise(samples.write(tmp_path, "x.log", other + samples.paddleseg(run()) + other)) == "paddleseg"


def test_ambiguous_format_names_the_lines(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "x.log", samples.paddleseg(run()) + samples.oneflow(run()))
    with pytest.raises(InputError, match=r"paddleseg \(line 12\), oneflow \(line 41\); say which one with --format"):
        recognise(path)
    assert read_record(path, format="oneflow").format == "oneflow"


def test_log_without_a_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without one training row"):
        read(tmp_path, "train: epoch 0, iter 20, samples/s: -1\n", format="oneflow")


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
