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
from typing import Any, BinaryIO, NamedTuple, cast

from runlog.digits import six_digits
from runlog.reader import open_log
from runlog.text import safe_lines
from scoring.importers import checks, dllogger, gluoncv, keras, mllog, mmseg, oneflow, paddle, paddleclas
from scoring.importers.evidence import Fact
from scoring.importers.lines import Lines, Span
from scoring.importers.table import Table
from scoring.record import FACTS, Check, InputError, Record

MOST = 10**9  # no number of devices, images or runs lies beyond
_FIELDS = {field.name for field in dataclasses.fields(Record)}

FORMATS: dict[str, type[Table]] = {
    "mllog": mllog.MLLog,
    "paddleclas_static": paddleclas.Static,
    "paddleclas_dygraph": paddleclas.Dygraph,
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
    "mmseg": mmseg.MMSeg,
}


class Fingerprint(NamedTuple):
    """The digest and the size that identify the text of a log."""

    sha256: str
    lines: int  # an unfinished last line included


def recognise(path: str | os.PathLike[str]) -> str:
    """Return the name in FORMATS of the format of the log at `path`.

    It is the format whose rows the log holds: the lines that a program prints of its training steps. All lines are
    read, as the log may hold rows of a second format. Raises InputError where it does, and where it holds no row of a
    known format.
    """
    first_lines: dict[str, int] = {}  # the line of the first row, by the format's name
    number = 0
    with _open_unpacked(path) as stream:
        for number, text in enumerate(Lines(stream).texts(), 1):
            for name, table in FORMATS.items():
                if name in first_lines:
                    continue
                text_in_each_row = table.clue or table.marker  # sought first: that is faster than the row's pattern
                row_pattern = table.recognised_by or table.row
                if text_in_each_row in text and row_pattern.search(text) is not None:
                    first_lines[name] = number

    if not first_lines:
        raise InputError(f"{path}: no line of a known format in {number} lines; known are {', '.join(FORMATS)}")
    if len(first_lines) > 1:
        where = ", ".join(f"{name} (line {line})" for name, line in first_lines.items())
        raise InputError(f"{path}: lines of more than one format: {where}; say which one with --format")
    [name] = first_lines
    return name


@contextlib.contextmanager
def _open_unpacked(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open the log at `path` and yield a stream of its bytes, which unpacks it if its first bytes are those of gzip.

    Raises InputError where the log is no file that can be read. A broken gzip file is found as the stream is read, so
    that InputError may come from the body of the `with` too.
    """
    try:
        raw = open_log(path)
    except ValueError as error:
        raise InputError(str(error)) from None

    with raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            if is_gzip:
                yield cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            else:
                yield io.BufferedReader(cast(io.RawIOBase, raw))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: a broken gzip file ({error}); unpack what can be saved with `zcat`") from None


def _fingerprint(path: str | os.PathLike[str]) -> Fingerprint:
    """Return the SHA-256 and the number of lines of a log's text after unpacking.

    A last line that does not end with a newline counts as a line.
    """
    digest = hashlib.sha256()
    newlines = 0
    last_byte = b"\n"
    with _open_unpacked(path) as stream:
        while data := stream.read(1 << 17):
            digest.update(data)
            newlines += data.count(b"\n")
            last_byte = data[-1:]

    lines = newlines
    if last_byte != b"\n":
        lines += 1
    return Fingerprint(digest.hexdigest(), lines)


def read_record(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    devices: int | None = None,
    batch_per_device: int | None = None,
    segment: int | None = None,
) -> Record:
    """Return the run that the log at `path` tells of. The log is streamed: only its rows are held in memory.

    `devices` and `batch_per_device` stand in for what the log does not say; where it says otherwise they win,
    and the record tells so. Raises InputError for a log of no known format, without any row, of anything but images,
    or of several runs where `segment` does not say which of them, from 1.
    """
    name = format or recognise(path)
    if name not in FORMATS:
        raise InputError(f"no format {name!r}; known are {', '.join(FORMATS)}")

    whole: Span = (1, None)
    table = _read(path, name, whole)
    fingerprint = _fingerprint(path)
    span = _one_run(path, table.lines.runs(table.restarts), fingerprint.lines, segment)
    if span != whole:
        table = _read(path, name, span)

    given = _override_by_options(table, {"devices": devices, "batch_per_device": batch_per_device})
    _derive_devices_or_batch(table)
    facts = {field: fact for field, fact in table.said.items() if field in _FIELDS}
    record = Record(
        file=os.fspath(path),
        sha256=fingerprint.sha256,
        lines=fingerprint.lines,
        segment=None if span == whole else (span[0], span[1] or fingerprint.lines),
        format=name,
        windows=tuple(table.windows),
        epochs=tuple(table.epochs),
        quality=tuple(table.qualities),
        evaluations=tuple(table.evaluation_spans),
        truncated=table.truncated,
        software=table.software,
        field_lines={field: fact.line for field, fact in facts.items() if fact.line},
        from_options=given,
        checks=tuple(table.checks),
        header=table.header,
        **{field: fact.value for field, fact in facts.items()},
    )
    _complete_windows(record)
    if not record.windows and record.run_start_s is None:  # a run that began and came to nothing is one, the worst
        raise InputError(f"{path}: a {name} log without one training row: nothing was measured")
    return dataclasses.replace(
        record,
        checks=(*table.checks, *checks.of_record(record)),
        problems=(*table.problems, *checks.problems(record)),
    )


def _read(path: str | os.PathLike[str], name: str, span: Span) -> Table:
    """Return the reader of the format `name` after it has read the lines of `span`."""
    with _open_unpacked(path) as raw:
        table = FORMATS[name](Lines(raw, span))
        try:
            table.read()
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return table


def _one_run(path: str | os.PathLike[str], runs: Sequence[Span], lines: int, segment: int | None) -> Span:
    """Return the lines of the run that `segment` says, or of the only one. Raises InputError where it is not clear."""
    spans = [f"{number}: lines {first} to {last or lines}" for number, (first, last) in enumerate(runs, 1)]
    if segment is None and len(runs) > 1:
        more = f", and {len(runs) - 6} more; of several ranks' rows, keep one rank's" if len(runs) > 6 else ""
        raise InputError(
            f"{path}: {len(runs)} runs in one log ({'; '.join(spans[:6])}{more}): score one of them with --segment N"
        )
    if segment is not None and segment > len(runs):
        raise InputError(f"{path}: no run {segment}: the log holds {len(runs)} ({'; '.join(spans[:6])})")
    return runs[(segment or 1) - 1]


def _override_by_options(table: Table, options: dict[str, int | None]) -> tuple[str, ...]:
    """Put the values of the command line's options in the place of what the log says, and return the changed fields.

    `options` holds the value by the name of the record's field; None where the option is not given. An option that
    says the same as the log changes nothing. One that contradicts the log is noted in `table.problems` too.
    """
    changed = []
    for field, value in options.items():
        if value is None:
            continue
        logged = table.said.get(field)
        if logged is not None and logged.value == value:
            continue
        if logged is not None:  # put first: of many problems only the first are shown
            table.problems.insert(0, f"line {logged.line}: the log says {field} {logged.value}, the options {value}")
        table.said[field] = Fact(value, 0)  # no line of the log states it
        changed.append(field)
    return tuple(changed)


def _derive_devices_or_batch(table: Table) -> None:
    """Work out devices or batch_per_device where the log says only the other one, and the batch of all devices.

    The batch of all devices is divided by the one that is known, which gives the other; nothing is set where that
    leaves a remainder. Where the log says all three, a check of whether they agree is added to `table.checks`.
    """
    batch_of_all = table.value("batch_of_all")
    devices = table.value("devices")
    batch = table.value("batch_per_device")
    if not batch_of_all:
        return

    line = table.said["batch_of_all"].line
    if devices and batch:
        lines = sorted({str(table.said[name].line) for name in ("devices", "batch_per_device")})  # it may be one line
        of_all = f"line {line}: {batch_of_all} over all devices"
        of_each = f"line {' and '.join(lines)}: {devices} devices x {batch}"
        table.checks.append(Check(what="batch", ways=(of_all, of_each), agree=devices * batch == batch_of_all))
    elif devices and batch_of_all % devices == 0:
        table.set_once("batch_per_device", batch_of_all // devices, line)
    elif batch and batch_of_all % batch == 0:
        table.set_once("devices", batch_of_all // batch, line)


def _complete_windows(record: Record) -> None:
    """Set the steps of the first row where the next row tells them, and each row's images where the batch is known."""
    if len(record.windows) > 1:
        _complete_first_window(record)
    batch = record.global_batch
    for window in record.windows:
        if batch is not None and window.images is None and window.steps is not None:
            window.images = window.steps * batch


def _complete_first_window(record: Record) -> None:
    """Set steps and seconds of the first row where its counter equals the interval of the second.

    The run then began with it, and it has as many steps. Its time is a mean over a step, from which seconds follow.
    """
    first, second = record.windows[:2]
    if first.steps is not None or first.step is None or first.step + 1 - record.first_step != second.steps:
        return
    first.steps = second.steps
    if first.printed_step_time_s is not None and second.seconds is not None:
        first.seconds = first.printed_step_time_s * second.steps


def count(text: str) -> int:
    """Return a whole number over 0, and below any that would overflow. Raises ValueError for another text."""
    value = int(text)
    if not 0 < value < MOST:
        raise ValueError(text)
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring import`."""
    parser.add_argument("logs", nargs="+", metavar="LOG")
    add_log_options(parser)
    parser.add_argument("--json", action="store_true", help="the whole record, one JSON list")


def add_log_options(parser: argparse.ArgumentParser, kind: Callable[[str], Any] = count) -> None:
    """Add the options that say what a log does not; `kind` reads the numbers."""
    parser.add_argument("--devices", type=kind, help="devices of the run, where the log does not say")
    parser.add_argument("--batch", type=kind, help="images a step of one device, where the log does not say")
    parser.add_argument("--segment", type=count, metavar="N", help="of a log that holds several runs, the Nth")
    parser.add_argument("--format", choices=sorted(FORMATS), help="read as this format, without recognition")


def read_records(args: argparse.Namespace) -> list[Record]:
    """Return the record of each of the command line's logs, as its options say."""
    records = []
    for path in args.logs:
        record = read_record(
            path, format=args.format, devices=args.devices, batch_per_device=args.batch, segment=args.segment
        )
        records.append(record)
    return records


def main(args: argparse.Namespace) -> int:
    """Print what each log says, as JSON or in lines. Returns 0."""
    records = read_records(args)
    if args.json:
        sys.stdout.writelines(_json_text(records))
    else:
        for record in records:
            print(safe_lines(record_lines(record)))
    return 0


def _json_text(records: Sequence[Record]) -> Iterator[str]:
    """Yield the records as one JSON list in many pieces of text, so that no text of the whole has to be held in memory.

    A log may have a million rows, its windows. So a record is put together by hand: its other fields come first as one
    piece without the closing brace, then the list `windows` with a piece and a line for each window.
    """
    yield "["
    for record_index, record in enumerate(records):
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        windows = fields.pop("windows")
        other_fields = json.dumps(jsonable(fields)).removesuffix("}")
        comma = "," if record_index > 0 else ""
        yield f'{comma}\n{other_fields}, "windows": ['
        for window_index, window in enumerate(windows):
            comma = "," if window_index > 0 else ""
            yield f"{comma}\n {json.dumps(jsonable(window))}"
        yield "]}"
    yield "\n]\n"


def jsonable(value: Any) -> Any:
    """Return `value` with numbers that JSON does not have (NaN, infinity) as text, and dataclasses as tables."""
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
    """Return a record as lines to print, each with a name and a fact: `  devices          8  (line 12)`.

    What is not in the record has no line, but for the facts of FACTS and the status, which are then `not said`. Control
    characters that come from the log are escaped.
    """
    lines = [f"{record.file}  ({record.format}, {record.lines} lines, sha256 {record.sha256[:12]})"]

    def show(name: str, text: str) -> None:
        lines.append(f"  {name:17}{text}")

    if record.segment is not None:
        first_line, last_line = record.segment
        show("this run", f"lines {first_line} to {last_line}")
    for name in (*FACTS, "status"):
        show(name, _fact_text(record, name))
    show("windows", _windows_text(record))
    if record.run_time_s is not None:
        show("run time", f"{record.run_time_s / 60:.3f} min")
    if record.quality:
        last = record.quality[-1]
        show("quality", f"{last.name} {six_digits(last.value)}  (line {last.line})")
    for check in record.checks:
        show(_check_word(check), str(check))
    if record.truncated:
        show("truncated", "the log ends before its run does")
    for problem in record.problems:
        show("problem", f"{problem!a}")
    return lines


def _fact_text(record: Record, name: str) -> str:
    """Return the field `name` of a record as text with where it comes from: `8  (line 12)`, or `not said`.

    It comes from the options of the command line, from a line of the log, or else from what the log's format implies.
    """
    value = getattr(record, name)
    if value is None:
        return "not said"
    where = "by its format"
    if name in record.from_options:
        where = "from the options"
    elif name in record.field_lines:
        where = f"line {record.field_lines[name]}"
    in_quotes = ascii(str(value))  # control characters are escaped, as in Python's own form
    without_quotes = in_quotes[1:-1]
    return f"{without_quotes}  ({where})"


def _windows_text(record: Record) -> str:
    """Return how many windows there are, on which lines, what their rates are over, and of how many devices."""
    span = f", lines {record.windows[0].line} to {record.windows[-1].line}" if record.windows else ""
    kind = "running averages of the epoch" if record.cumulative else "each of its own steps"
    scope = "one device" if record.rate_scope == "device" else "all devices"
    return f"{len(record.windows)}{span}; {kind}; rates of {scope}"


def _check_word(check: Check) -> str:
    """Return the word for how a check came out."""
    if check.one_sided:
        return "NOT CHECKED"
    return "checked" if check.agree else "DISAGREE"
