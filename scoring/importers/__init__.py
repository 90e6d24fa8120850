"""Reads anyone's training log into a record: `read_record`, and `python -m scoring import`.

The format is recognised from the text, never from the path. One module a family of tools.
"""

import argparse
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from runlog.reader import open_log
from runlog.text import safe_lines
from scoring.importers import checks, dllogger, gluoncv, keras, mllog, mmseg, oneflow, paddle
from scoring.importers.lines import Lines, Span
from scoring.importers.table import Fact, Table
from scoring.record import FACTS, Check, InputError, Record

MOST = 10**9  # of anything that is counted
_FIELDS = {field.name for field in dataclasses.fields(Record)}

FORMATS: dict[str, type[Table]] = {
    "mllog": mllog.MLLog,
    "paddleclas_static": paddle.Static,
    "paddleclas_dygraph": paddle.Dygraph,
    "paddleseg": paddle.PaddleSeg,
    "paddle18": paddle.Paddle18,
    "oneflow": oneflow.OneFlow,
    "nvidia_pytorch": dllogger.PyTorch,
    "nvidia_tensorflow": dllogger.TensorFlow,
    "nvidia_mxnet": dllogger.MXNet,
    "nvidia_mxnet_speed": dllogger.MXNetSpeed,
    "nvidia_paddle": dllogger.Paddle,
    "nvidia_json": dllogger.Json,
    "nvidia_nvlog": dllogger.NvLog,
    "gluoncv": gluoncv.GluonCV,
    "keras": keras.Keras,
    "mmcv_json": mmseg.MMCVJson,
    "mmseg": mmseg.MMSeg,
}


def recognise(path: str | os.PathLike[str]) -> str:
    """The format of the log at `path`. Raises InputError for a log of no known format, or of two."""
    rows = [(name, one.clue or one.marker, one.recognised_by or one.row) for name, one in FORMATS.items()]
    found: dict[str, int] = {}
    number = 0
    with _opened(path) as stream:
        for number, text in enumerate(Lines(stream).texts(), 1):
            for name, clue, row in rows:
                if clue in text and name not in found and row.search(text) is not None:
                    found[name] = number
    if not found:
        raise InputError(f"{path}: no line of a known format in {number} lines; known are {', '.join(FORMATS)}")
    if len(found) > 1:
        where = ", ".join(f"{name} (line {line})" for name, line in found.items())
        raise InputError(f"{path}: lines of more than one format: {where}; say which one with --format")
    return next(iter(found))


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The bytes of the log at `path`, unpacked if it is a gzip file."""
    try:
        raw = open_log(path)
    except ValueError as error:
        raise InputError(str(error)) from None
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw) if packed else io.BufferedReader(cast(io.RawIOBase, raw)))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: a broken gzip file ({error}); unpack what can be saved with `zcat`") from None


def _fingerprint(path: str | os.PathLike[str]) -> tuple[str, int]:
    """SHA-256 and lines of the log's text, an unfinished last line included."""
    digest, newlines, last = hashlib.sha256(), 0, b"\n"
    with _opened(path) as stream:
        while data := stream.read(1 << 17):
            digest.update(data)
            newlines, last = newlines + data.count(b"\n"), data[-1:]
    return digest.hexdigest(), newlines + (last != b"\n")


def read_record(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    devices: int | None = None,
    batch_per_device: int | None = None,
    segment: int | None = None,
) -> Record:
    """The run that the log at `path` tells of, streamed: memory is that of its rows.

    `devices` and `batch_per_device` stand in for what the log does not say; where it says otherwise they win,
    and the record tells so. Raises InputError for a log of no known format, without any row, or of several runs
    where `segment` does not say which of them, from 1.
    """
    name = format or recognise(path)
    if name not in FORMATS:
        raise InputError(f"no format {name!r}; known are {', '.join(FORMATS)}")
    whole: Span = (1, None)
    table = _read(path, name, whole)
    sha256, line_count = _fingerprint(path)
    span = _one_run(path, table.lines.runs(table.restarts), line_count, segment)
    if span != whole:
        table = _read(path, name, span)
    given = _take_options(table, {"devices": devices, "batch_per_device": batch_per_device})
    _complete_batch(table)
    facts = {field: fact for field, fact in table.said.items() if field in _FIELDS}
    record = Record(
        file=os.fspath(path),
        sha256=sha256,
        lines=line_count,
        segment=None if span == whole else (span[0], span[1] or line_count),
        format=name,
        windows=tuple(table.windows),
        epochs=tuple(table.epochs),
        quality=tuple(table.qualities),
        truncated=table.truncated,
        software=table.software,
        field_lines={field: fact.line for field, fact in facts.items() if fact.line},
        from_options=given,
        header=table.header,
        **{field: fact.value for field, fact in facts.items()},
    )
    _complete_windows(record)
    if not record.windows and record.run_start_s is None:  # a run that began and came to nothing is the worst
        raise InputError(f"{path}: a {name} log without one training row: nothing was measured")
    return dataclasses.replace(
        record,
        checks=(*table.checks, *checks.of_record(record)),
        problems=(*table.problems, *checks.problems(record)),
    )


def _read(path: str | os.PathLike[str], name: str, span: Span) -> Table:
    """What the lines of `span` say in the format of that name."""
    with _opened(path) as raw:
        table = FORMATS[name](Lines(raw, span))
        try:
            table.read()
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return table


def _one_run(path: str | os.PathLike[str], runs: Sequence[Span], lines: int, segment: int | None) -> Span:
    """The lines of the run that `segment` says, or of the only one. Raises InputError where it is not clear."""
    spans = [f"{number}: lines {first} to {last or lines}" for number, (first, last) in enumerate(runs, 1)]
    if segment is None and len(runs) > 1:
        more = f", and {len(runs) - 6} more; of several ranks' rows, keep one rank's" if len(runs) > 6 else ""
        raise InputError(
            f"{path}: {len(runs)} runs in one log ({'; '.join(spans[:6])}{more}): score one of them with --segment N"
        )
    if segment is not None and segment > len(runs):
        raise InputError(f"{path}: no run {segment}: the log holds {len(runs)} ({'; '.join(spans[:6])})")
    return runs[(segment or 1) - 1]


def _take_options(table: Table, options: dict[str, int | None]) -> tuple[str, ...]:
    """Put what the command line says in the place of what the log says; the fields that it gave."""
    given = []
    for field, value in options.items():
        logged = table.said.get(field)
        if value is None or (logged is not None and logged.value == value):
            continue
        if logged is not None:  # of many problems only the first are shown
            table.problems.insert(0, f"line {logged.line}: the log says {field} {logged.value}, the options {value}")
        table.said[field] = Fact(value, 0)
        given.append(field)
    return tuple(given)


def _complete_batch(table: Table) -> None:
    """Devices, the batch of one and that of all: two of them make the third; three are a check."""
    total, devices, batch = (table.value(name) for name in ("batch_of_all", "devices", "batch_per_device"))
    if not total:
        return
    line = table.said["batch_of_all"].line
    if devices and batch:
        places = " and ".join(sorted({str(table.said[name].line) for name in ("devices", "batch_per_device")}))
        ways = (f"line {line}: {total} over all devices", f"line {places}: {devices} devices x {batch}")
        table.checks.append(Check(what="batch", ways=ways, agree=devices * batch == total))
    elif devices and total % devices == 0:
        table.say("batch_per_device", total // devices, line)
    elif batch and total % batch == 0:
        table.say("devices", total // batch, line)


def _complete_windows(record: Record) -> None:
    """Steps of the first row, where the next tells them, and images where the global batch is known."""
    if len(record.windows) > 1:
        first, second = record.windows[:2]
        # Where the first row's counter equals the interval of the next, the run began there: it has as many steps.
        if first.steps is None and first.step is not None and first.step + 1 - record.first_step == second.steps:
            first.steps = second.steps
            # One row's times are means a step: seconds follow as in the other rows.
            if first.printed_step_time_s is not None and second.seconds is not None:
                first.seconds = first.printed_step_time_s * second.steps
    for window in record.windows:
        if record.global_batch is not None and window.images is None and window.steps is not None:
            window.images = window.steps * record.global_batch


def count(text: str) -> int:
    """A whole number over 0, and below any that would overflow."""
    value = int(text)
    if not 0 < value < MOST:
        raise ValueError(text)
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    records = read_records(args)
    if args.json:
        sys.stdout.writelines(_json_text(records))
    else:
        print("\n".join(safe_lines(record_lines(record)) for record in records))
    return 0


def _json_text(records: Sequence[Record]) -> Iterator[str]:
    """A list of records, a row at a time: a million as one text would take gigabytes."""
    yield "["
    for at, record in enumerate(records):
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        windows = fields.pop("windows")
        yield f'{"," if at else ""}\n{json.dumps(jsonable(fields))[:-1]}, "windows": ['
        yield from (f"{',' if row else ''}\n {json.dumps(jsonable(window))}" for row, window in enumerate(windows))
        yield "]}"
    yield "\n]\n"


def jsonable(value: Any) -> Any:
    """`value` with what JSON lacks (NaN, infinity) as text, and dataclasses as tables."""
    if isinstance(value, float) and not math.isfinite(value):
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
    shown: list[tuple[str, str]] = []
    if record.segment is not None:
        shown.append(("this run", f"lines {record.segment[0]} to {record.segment[1]}"))
    for name in (*FACTS, "status"):
        value = getattr(record, name)
        where = f"line {record.field_lines[name]}" if name in record.field_lines else "by its format"
        where = "from the options" if name in record.from_options else where
        shown.append((name, "not said" if value is None else f"{str(value)!a}"[1:-1] + f"  ({where})"))
    span = f", lines {record.windows[0].line} to {record.windows[-1].line}" if record.windows else ""
    kind = "running averages of the epoch" if record.cumulative else "each of its own steps"
    scope = "one device" if record.rate_scope == "device" else "all devices"
    shown.append(("windows", f"{len(record.windows)}{span}; {kind}; rates of {scope}"))
    if record.run_time_s is not None:
        shown.append(("run time", f"{record.run_time_s / 60:.3f} min"))
    shown += [("quality", f"{last.name} {last.value:g}  (line {last.line})") for last in record.quality[-1:]]
    shown += [("checked" if check.agree else "DISAGREE", str(check)) for check in record.checks]
    shown += [("truncated", "the log ends before its run does")] * bool(record.truncated)
    shown += [("problem", f"{problem!a}") for problem in record.problems]
    head = f"{record.file}  ({record.format}, {record.lines} lines, sha256 {record.sha256[:12]})"
    return [head, *(f"  {name:17}{text}" for name, text in shown)]
