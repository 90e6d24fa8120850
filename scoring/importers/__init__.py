"""Reads anyone's training log into a record: `read_record`, and `python -m scoring import`.

The format is recognised from the text, never from the path. One module a source; each is a pure function from
the log's lines to what they say.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from compliance.log import open_log
from scoring.importers import dllogger, mllog, mmseg, oneflow, paddle18, paddleclas, paddleseg
from scoring.importers.text import Builder, HashingStream, Lines, clean
from scoring.record import InputError, Record


class Format(NamedTuple):
    """How a log is recognised and read."""

    clue: bytes  # stands in every row of the format; looked for where `family` is met, if that is set
    row: re.Pattern[str]  # what a line with the clue must match
    read: Callable[[Any], Builder]
    family: bytes = b""  # stands in the rows of several formats, so that one search serves them all


DLL = b"ips : "
LOOK_BYTES = 1 << 20
SURE_CHUNKS = 16  # of a longer log every eighth MiB is looked at, so that it takes little time

FORMATS = {
    "mllog": Format(b":::MLLOG", re.compile(r":::MLLOG \{"), mllog.read),
    "paddleclas_static": Format(b"train step:", paddleclas.STATIC_HEAD, paddleclas.read_static),
    "paddleclas_dygraph": Format(b"[Train][Epoch ", paddleclas.DYGRAPH_HEAD, paddleclas.read_dygraph),
    "paddleseg": Format(b"[TRAIN] epoch", paddleseg.HEAD, paddleseg.read),
    "paddle18": Format(b"train batch ", paddle18.HEAD, paddle18.read),
    "oneflow": Format(b"samples/s: ", oneflow.ROW, oneflow.read),
    "nvidia_pytorch": Format(b"train.total_ips", dllogger.PYTORCH_ROW, dllogger.read_pytorch, DLL),
    "nvidia_tensorflow": Format(b" total_ips", dllogger.TENSORFLOW_ROW, dllogger.read_tensorflow, DLL),
    "nvidia_mxnet": Format(
        b"train.ips",
        re.compile(r"Epoch: \d+ Iteration: \d+ (?!.*train\.batch_time).*\btrain\.ips : "),
        dllogger.read_mxnet,
        DLL,
    ),
    "nvidia_paddle": Format(
        b"train.batch_time",
        re.compile(r"Epoch: \d+ Iteration: \d+ (?=.*\btrain\.ips : ).*\btrain\.batch_time : "),
        dllogger.read_paddle,
        DLL,
    ),
    "mmseg": Format(b"data_time: ", mmseg.ROW, mmseg.read),
}


def recognise(path: str | os.PathLike[str]) -> str:
    """The format of the log at `path`. Raises InputError for a log of no known format, or of two."""
    found, lines = _formats(path, every=8)
    if not found:
        found, lines = _formats(path, every=1)
    if not found:
        raise InputError(f"{path}: no line of a known format in {lines} lines; known are {', '.join(FORMATS)}")
    if len(found) > 1:
        where = ", ".join(f"{name} (line {line})" for name, line in sorted(found.items(), key=lambda item: item[1]))
        raise InputError(f"{path}: lines of more than one format: {where}; say which one with --format")
    return next(iter(found))


def _formats(path: str | os.PathLike[str], *, every: int) -> tuple[dict[str, int], int]:
    """The formats met with the line of each, and the number of lines; of a long log each `every`th MiB is looked at."""
    found: dict[str, int] = {}
    newlines = 0
    rest = b""
    chunks = 0
    with _opened(path) as stream:
        while chunk := stream.read(LOOK_BYTES):
            chunks += 1
            if chunks > SURE_CHUNKS and chunks % every:
                newlines += chunk.count(b"\n")
                rest = b""
                continue
            data = rest + chunk
            cut = data.rfind(b"\n") + 1 or (len(data) if len(data) > LOOK_BYTES else 0)
            data, rest = data[:cut], data[cut:]
            _look(data, newlines, found)
            newlines += data.count(b"\n")
        _look(rest, newlines, found)
    return found, newlines + bool(rest)


def _look(data: bytes, newlines: int, found: dict[str, int]) -> None:
    """Note the formats of which `data` holds a row; `newlines` stand before it."""
    data = data.translate(None, b"\x00") if b"\x00" in data else data
    families = {form.family: form.family in data for form in FORMATS.values()}
    for name, form in FORMATS.items():
        if name in found or not families[form.family]:
            continue
        at = data.find(form.clue)
        while at >= 0:
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            line = data[start : end if end >= 0 else len(data)]
            if form.row.search(clean(line)):
                found[name] = newlines + data.count(b"\n", 0, at) + 1
                break
            at = data.find(form.clue, end) if end >= 0 else -1


def _opened(path: str | os.PathLike[str]) -> Any:
    try:
        return open_log(path)
    except ValueError as error:
        raise InputError(str(error)) from None


def read_record(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    devices: int | None = None,
    batch_per_device: int | None = None,
) -> Record:
    """The run that the log at `path` tells of, in one streaming pass after recognition.

    `devices` and `batch_per_device` stand in for what the log does not say; where it says otherwise they win,
    and the record tells so. Raises InputError for a log of no known format or without any row.
    """
    name = format or recognise(path)
    if name not in FORMATS:
        raise InputError(f"no format {name!r}; known are {', '.join(FORMATS)}")
    with _opened(path) as raw:
        stream = HashingStream(raw)
        collects = gc.isenabled()
        gc.disable()  # there are millions of short-lived tuples and no cycle: a fifth of the time for nothing
        try:
            build = FORMATS[name].read(stream if name == "mllog" else Lines(stream))
        finally:
            if collects:
                gc.enable()
    return _record(path, name, build, stream, devices, batch_per_device)


def _record(
    path: str | os.PathLike[str],
    name: str,
    build: Builder,
    stream: HashingStream,
    devices: int | None,
    batch_per_device: int | None,
) -> Record:
    facts = dict(build.facts)
    given = []
    for field, value in (("devices", devices), ("batch_per_device", batch_per_device)):
        if value is None or facts.get(field) == value:
            continue
        if field in facts:
            said = f"line {build.lines.get(field, 0)}: the log says {field} {facts[field]}, the options {value}"
            build.problems.insert(0, said)  # of many problems only the first are shown
        facts[field] = value
        build.lines.pop(field, None)
        given.append(field)
    global_batch = facts.pop("global_batch", None)
    if global_batch is not None and facts.get("devices") and global_batch % facts["devices"] == 0:
        facts.setdefault("batch_per_device", global_batch // facts["devices"])
    known = {field.name for field in dataclasses.fields(Record)}
    record = Record(
        file=os.fspath(path),
        sha256=stream.sha256,
        lines=stream.lines,
        format=name,
        epochs=tuple(build.epochs),
        quality=tuple(build.quality),
        truncated=build.truncated,
        software=build.software,
        field_lines={field: line for field, line in build.lines.items() if line and field in known},
        from_options=tuple(given),
        problems=tuple(build.problems),
        header=build.header,
        **facts,
    )
    _fill_first_window(build, record.first_step)
    windows = build.windows(record.global_batch)
    if not windows and record.run_time_s is None:
        raise InputError(f"{path}: a {name} log without one training row: nothing was measured")
    return dataclasses.replace(record, windows=windows)


def _fill_first_window(build: Builder, first_step: int) -> None:
    """Where the first row's counter equals the interval of the next, the run began there: it has as many steps."""
    if len(build.rows) < 2 or build.rows[0][3] is not None:
        return
    first, second = build.rows[0], build.rows[1]
    step, step_time, steps, seconds = first[1], first[8], second[3], second[5]
    if step is None or step + 1 - first_step != steps:
        return
    # One row's times are means a step: seconds follow as in the other rows.
    took = step_time * steps if step_time is not None and seconds is not None else None
    build.rows[0] = (*first[:3], steps, first[4], took, *first[6:])


def count(text: str) -> int:
    """A whole number over 0."""
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring import`."""
    parser.add_argument("logs", nargs="+", metavar="LOG")
    add_log_options(parser)
    parser.add_argument("--json", action="store_true", help="the whole record, one JSON list")


def add_log_options(parser: argparse.ArgumentParser, kind: Callable[[str], Any] = count) -> None:
    """Options that say what a log does not; `kind` reads the numbers."""
    parser.add_argument("--devices", type=kind, help="devices of the run, where the log does not say")
    parser.add_argument("--batch", type=kind, help="images a step of one device, where the log does not say")
    parser.add_argument("--format", choices=sorted(FORMATS), help="read as this format, without recognition")


def main(args: argparse.Namespace) -> int:
    """Print what each log says."""
    records = [
        read_record(path, format=args.format, devices=args.devices, batch_per_device=args.batch) for path in args.logs
    ]
    if args.json:
        print(json.dumps([jsonable(record.to_json()) for record in records], indent=1))
        return 0
    for record in records:
        print("\n".join(describe(record)))
    return 0


def jsonable(value: Any) -> Any:
    """`value` with what JSON lacks (NaN, infinity) as text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def describe(record: Record) -> list[str]:
    """The record in lines for a reader; log text is shown with control characters escaped."""
    lines = [f"{record.file}  ({record.format}, {record.lines} lines, sha256 {record.sha256[:12]})"]
    for name in ("framework", "model", "devices", "nodes", "batch_per_device", "precision", "math_mode", "status"):
        value = getattr(record, name)
        if name in record.from_options:
            where = "from the options"
        elif name in record.field_lines:
            where = f"line {record.field_lines[name]}"
        else:
            where = "by its format"
        shown = "not said" if value is None else f"{str(value)!a}"[1:-1] + f"  ({where})"
        lines.append(f"  {name:17}{shown}")
    rows = sum(window.rows for window in record.windows)
    span = f", lines {record.windows[0].line} to {record.windows[-1].line}" if record.windows else ""
    kind = "running averages of the epoch" if record.cumulative else "each of its own steps"
    scope = "one device" if record.rate_scope == "device" else "all devices"
    lines.append(f"  {'windows':17}{rows}{span}; {kind}; rates of {scope}")
    if record.run_time_s is not None:
        lines.append(f"  {'run time':17}{record.run_time_s / 60:.3f} min")
    if record.quality:
        last = record.quality[-1]
        lines.append(f"  {'quality':17}{last.name} {last.value:g}  (line {last.line})")
    if record.truncated:
        lines.append(f"  {'truncated':17}the log ends before its run does")
    lines.extend(f"  problem          {problem!a}" for problem in record.problems)
    return lines
