"""Reads anyone's training log into a record: `read_record`, and `python -m scoring import`.

The format is recognised from the text, never from the path. One module a source; each is a pure function from
the log's lines to what they say.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from runlog.reader import open_log
from runlog.text import safe_lines
from scoring.importers import checks, dllogger, gluoncv, keras, mllog, mmseg, oneflow, paddle18, paddleclas, paddleseg
from scoring.importers.lines import HashingStream, Lines, Span, Stream, clean
from scoring.importers.table import Table
from scoring.importers.text import Draft, RowPattern
from scoring.record import Check, InputError, Record, Window

LOOK_BYTES = 1 << 20
MOST = 10**9  # of anything that is counted


class Format(NamedTuple):
    """How a log is recognised and read."""

    clue: bytes  # stands in every row of the format
    row: RowPattern  # what a line with the clue must be
    read: Callable[[Lines], Draft]
    segmentation: bool = False  # its program trains segmentation networks alone


def _of(clue: bytes, table: Table, *, segmentation: bool = False) -> Format:
    return Format(clue, table.row, table.read, segmentation)


_MLLOG_ROW = RowPattern(re.compile(r":::MLLOG \{"), ())
FORMATS = {
    "mllog": Format(b":::MLLOG", _MLLOG_ROW, mllog.read),
    "paddleclas_static": _of(b"train step:", paddleclas.STATIC),
    "paddleclas_dygraph": _of(b"[Train][Epoch ", paddleclas.DYGRAPH),
    "paddleseg": _of(b"[TRAIN] epoch", paddleseg.TABLE, segmentation=True),
    "paddle18": _of(b"train batch ", paddle18.TABLE),
    "oneflow": _of(b"samples/s: ", oneflow.TABLE),
    "nvidia_pytorch": _of(b"train.total_ips", dllogger.PYTORCH),
    "nvidia_tensorflow": _of(b" total_ips", dllogger.TENSORFLOW),
    "nvidia_mxnet": _of(b"train.ips", dllogger.MXNET),
    "nvidia_mxnet_speed": _of(b" samples/sec\tLR: ", dllogger.SPEED),
    "nvidia_paddle": _of(b"train.batch_time", dllogger.PADDLE),
    "nvidia_json": _of(b"DLLL {", dllogger.JSON),
    "nvidia_nvlog": Format(b":::NVLOG", dllogger.NVLOG_RATE, dllogger.NVLOG.read),  # a row has two lines
    "gluoncv": _of(b"\tSpeed: ", gluoncv.TABLE),
    "keras": _of(b"keras_utils.py", keras.TABLE),
    "mmcv_json": _of(b'"data_time": ', mmseg.JSON_TABLE, segmentation=True),
    "mmseg": _of(b"data_time: ", mmseg.TABLE, segmentation=True),
}


def recognise(path: str | os.PathLike[str]) -> str:
    """The format of the log at `path`. Raises InputError for a log of no known format, or of two."""
    found: dict[str, int] = {}
    newlines = 0
    rest = b""
    with _opened(path) as stream:
        while chunk := stream.read(LOOK_BYTES):
            data = rest + chunk
            cut = data.rfind(b"\n") + 1 or (len(data) if len(data) > LOOK_BYTES else 0)
            data, rest = data[:cut], data[cut:]
            _look(data, newlines, found)
            newlines += data.count(b"\n")
    _look(rest, newlines, found)
    if not found:
        lines = newlines + bool(rest)
        raise InputError(f"{path}: no line of a known format in {lines} lines; known are {', '.join(FORMATS)}")
    if len(found) > 1:
        where = ", ".join(f"{name} (line {line})" for name, line in sorted(found.items(), key=lambda item: item[1]))
        raise InputError(f"{path}: lines of more than one format: {where}; say which one with --format")
    return next(iter(found))


def _look(data: bytes, newlines: int, found: dict[str, int]) -> None:
    """Note the formats of which `data` holds a row; `newlines` stand before it."""
    data = data.translate(None, b"\x00") if b"\x00" in data else data
    for name, form in FORMATS.items():
        at = -1 if name in found else data.find(form.clue)
        while at >= 0:
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            line = data[start : end if end >= 0 else len(data)]
            if form.row.search(clean(line)) is not None:
                found[name] = newlines + data.count(b"\n", 0, at) + 1
                break
            at = data.find(form.clue, end) if end >= 0 else -1


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Stream]:
    """The bytes of the log at `path`, unpacked if it is a gzip file."""
    try:
        raw = open_log(path)
    except ValueError as error:
        raise InputError(str(error)) from None
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            yield gzip.GzipFile(fileobj=raw) if packed else raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: a broken gzip file ({error}); unpack what can be saved with `zcat`") from None


def read_record(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    devices: int | None = None,
    batch_per_device: int | None = None,
    segment: int | None = None,
) -> Record:
    """The run that the log at `path` tells of, in one streaming pass after recognition.

    `devices` and `batch_per_device` stand in for what the log does not say; where it says otherwise they win,
    and the record tells so. Raises InputError for a log of no known format, without any row, or of several runs
    where `segment` does not say which of them, from 1.
    """
    name = format or recognise(path)
    if name not in FORMATS:
        raise InputError(f"no format {name!r}; known are {', '.join(FORMATS)}")
    with _opened(path) as raw:
        stream = HashingStream(raw)
        lines = Lines(stream)
        try:
            draft = FORMATS[name].read(lines)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    span = _one_run(path, lines.runs(draft.restarts), stream.lines, segment)
    if span != lines.span:
        with _opened(path) as raw:
            draft = FORMATS[name].read(Lines(raw, span))
    given = _take_options(draft, {"devices": devices, "batch_per_device": batch_per_device})
    record = Record(
        file=os.fspath(path),
        sha256=stream.sha256,
        lines=stream.lines,
        segment=None if span == lines.span else (span[0], span[1] or stream.lines),
        format=name,
        epochs=tuple(draft.epochs),
        quality=tuple(draft.quality),
        truncated=draft.truncated,
        software=draft.software,
        field_lines={field: fact.line for field, fact in draft.facts.items() if fact.line},
        from_options=given,
        problems=tuple(draft.problems),
        header=draft.header,
        **{field: fact.value for field, fact in draft.facts.items()},  # type: ignore[arg-type]
    )
    record = dataclasses.replace(record, windows=_windows(draft, record))
    record = dataclasses.replace(
        record,
        checks=(*draft.checks, *checks.of_record(record)),
        problems=(*record.problems, *checks.problems(record)),
    )
    if not record.windows and record.run_start_s is None:  # a run that began and came to nothing is the worst
        raise InputError(f"{path}: a {name} log without one training row: nothing was measured")
    return record


def _one_run(path: str | os.PathLike[str], runs: Sequence[Span], lines: int, segment: int | None) -> Span:
    """The lines of the run that `segment` says, or of the only one. Raises InputError where it is not clear."""
    if segment is None and len(runs) == 1:
        return runs[0]
    told = [f"{number}: lines {first} to {last or lines}" for number, (first, last) in enumerate(runs, 1)]
    if segment is None:
        more = f", and {len(runs) - 6} more; of several ranks' rows, keep one rank's" if len(runs) > 6 else ""
        raise InputError(
            f"{path}: {len(runs)} runs in one log ({'; '.join(told[:6])}{more}): score one of them with --segment N"
        )
    if segment > len(runs):
        raise InputError(f"{path}: no run {segment}: the log holds {len(runs)} ({'; '.join(told[:6])})")
    return runs[segment - 1]


def _take_options(draft: Draft, options: dict[str, int | None]) -> tuple[str, ...]:
    """Put what the command line says in the place of what the log says; the fields that it gave.

    Devices, the batch of one and that of all: two of them make the third.
    """
    given = []
    for field, value in options.items():
        said = draft.facts.get(field)
        if value is None or (said is not None and said.value == value):
            continue
        if said is not None:  # of many problems only the first are shown
            draft.problems.insert(0, f"line {said.line}: the log says {field} {said.value}, the options {value}")
            del draft.facts[field]
        draft.fact(field, value)
        given.append(field)
    whole, devices, batch = (draft.said(name) for name in ("batch_of_all", "devices", "batch_per_device"))
    said_both = devices is not None and batch is not None
    if isinstance(whole, int):
        line = draft.facts["batch_of_all"].line
        if isinstance(devices, int) and whole % devices == 0:
            draft.fact("batch_per_device", whole // devices, line)
        if isinstance(batch, int) and whole % batch == 0:
            draft.fact("devices", whole // batch, line)
        devices, batch = draft.said("devices"), draft.said("batch_per_device")
        if isinstance(devices, int) and isinstance(batch, int) and said_both:
            places = " and ".join(sorted({str(draft.facts[name].line) for name in ("devices", "batch_per_device")}))
            ways = (f"line {line}: {whole} over all devices", f"line {places}: {devices} devices x {batch}")
            draft.checks.append(Check(what="batch", ways=ways, agree=devices * batch == whole))
    return tuple(given)


def _windows(draft: Draft, record: Record) -> tuple[Window, ...]:
    """The rows; images follow from steps where the global batch is known."""
    windows = draft.windows
    if len(windows) > 1 and windows[0].steps is None and windows[0].step is not None:
        first, steps = windows[0], windows[1].steps
        # Where the first row's counter equals the interval of the next, the run began there: it has as many steps.
        if windows[0].step + 1 - record.first_step == steps:
            step_time = first.printed_step_time_s
            first.steps = steps
            # One row's times are means a step: seconds follow as in the other rows.
            if step_time is not None and windows[1].seconds is not None:
                first.seconds = step_time * steps
    batch = record.global_batch
    for window in windows:
        if batch is not None and window.images is None and window.steps is not None:
            window.images = window.steps * batch
    return tuple(windows)


def count(text: str) -> int:
    """A whole number over 0, and below any that would overflow."""
    value = int(text)
    if not 0 < value < MOST:
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
    parser.add_argument("--segment", type=count, metavar="N", help="of a log that holds several runs, the Nth")
    parser.add_argument("--format", choices=sorted(FORMATS), help="read as this format, without recognition")


def read_records(args: argparse.Namespace) -> list[Record]:
    """The record of each of the command line's logs, as its options say."""
    return [
        read_record(path, format=args.format, devices=args.devices, batch_per_device=args.batch, segment=args.segment)
        for path in args.logs
    ]


def main(args: argparse.Namespace) -> int:
    """Print what each log says."""
    records = read_records(args)
    if args.json:
        sys.stdout.writelines(_json_text(records))
        return 0
    for record in records:
        print(safe_lines(record_lines(record)))
    return 0


def _json_text(records: Sequence[Record]) -> Iterator[str]:
    """A list of records, in pieces: a million rows as one text would take gigabytes."""
    yield "["
    for at, record in enumerate(records):
        yield ",\n{" if at else "\n{"
        for place, field in enumerate(dataclasses.fields(record)):
            yield f"{',' if place else ''}\n {json.dumps(field.name)}: "
            value = getattr(record, field.name)
            if isinstance(value, tuple) and value:
                yield from (f"{',' if row else '['}\n  {json.dumps(jsonable(item))}" for row, item in enumerate(value))
                yield "]"
            else:
                yield json.dumps(jsonable(value))
        yield "\n}"
    yield "\n]\n"


def jsonable(value: Any) -> Any:
    """`value` with what JSON lacks (NaN, infinity) as text, and dataclasses as tables."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def record_lines(record: Record) -> list[str]:
    """The record in lines for a reader; log text is shown with control characters escaped."""
    lines = [f"{record.file}  ({record.format}, {record.lines} lines, sha256 {record.sha256[:12]})"]
    if record.segment is not None:
        lines.append(f"  {'this run':17}lines {record.segment[0]} to {record.segment[1]}")
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
    span = f", lines {record.windows[0].line} to {record.windows[-1].line}" if record.windows else ""
    kind = "running averages of the epoch" if record.cumulative else "each of its own steps"
    scope = "one device" if record.rate_scope == "device" else "all devices"
    lines.append(f"  {'windows':17}{len(record.windows)}{span}; {kind}; rates of {scope}")
    if record.run_time_s is not None:
        lines.append(f"  {'run time':17}{record.run_time_s / 60:.3f} min")
    if record.quality:
        last = record.quality[-1]
        lines.append(f"  {'quality':17}{last.name} {last.value:g}  (line {last.line})")
    for check in record.checks:
        lines.append(f"  {'checked' if check.agree else 'DISAGREE':17}{check}")
    if record.truncated:
        lines.append(f"  {'truncated':17}the log ends before its run does")
    lines.extend(f"  problem          {problem!a}" for problem in record.problems)
    return lines
