"""Reads anyone's training log into a record: `read_record`, and `python -m scoring import`.

The format is recognised from the text, never from the path. Each family of tools has a module of its own.
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
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from runlog.digits import counted
from runlog.reader import PACKED, has_old_events, open_log
from runlog.schema import RankTimes
from runlog.text import safe_lines
from scoring.importers import checks, dllogger, gluoncv, keras, mllog, mmseg, oneflow, paddle, paddleclas
from scoring.importers.evidence import Fact
from scoring.importers.lines import LineRange, Lines
from scoring.importers.show import record_lines
from scoring.importers.table import FormatReader
from scoring.importers.text import RowPattern
from scoring.importers.windows import complete_windows
from scoring.record import Check, InputError, NoRunError, Record

MAX_NUMBER = 10**9  # no number of devices, images or runs is this large
MAX_RUNS_SHOWN = 6  # in an error about the runs of a log
_FIELDS = {field.name for field in dataclasses.fields(Record)}
_WHOLE_LOG: LineRange = (1, None)  # from the first line to the end

FORMATS: dict[str, type[FormatReader]] = {
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
    "mm_epochs": mmseg.MMEpochs,
}


class Fingerprint(NamedTuple):
    """The digest and the size that identify the text of a log."""

    sha256: str
    lines: int  # an unfinished last line included


class RowSign(NamedTuple):
    """The sign by which a line is recognised as a row of a format: the line holds the text, and the pattern matches."""

    text: str  # sought first, because the pattern is slow
    pattern: RowPattern


class FoundFormats(NamedTuple):
    """The formats of which a log holds a row."""

    first_line_by_name: dict[str, int]  # the line of a format's first row, by its name in FORMATS
    lines: int  # of the whole log


def recognise(path: str | os.PathLike[str]) -> str:
    """Return the name of the format of a training log, by the rows of training figures that it holds.

    Args:
        path: The log, which may be a gzip file. Nothing is taken from its name.

    Returns:
        A key of FORMATS, such as "paddleseg".

    Raises:
        InputError: The log has rows of no known format or of several, is not a regular file, or is a damaged gzip file.
        OSError: The log cannot be opened.
    """
    with open_unpacked(path) as stream:
        found = _find_formats(Lines(stream).texts())
    if not found.first_line_by_name:
        raise NoRunError(f"{path}: {_why_no_format(path, found.lines)}")
    if len(found.first_line_by_name) > 1:
        where = ", ".join(f"{name} (line {first_line})" for name, first_line in found.first_line_by_name.items())
        raise InputError(f"{path}: lines of more than one format: {where}; say which one with --format")
    [only_name] = found.first_line_by_name
    return only_name


def _find_formats(texts: Iterable[str]) -> FoundFormats:
    """Return the formats of which a log holds a row of training figures.

    Args:
        texts: The lines of the log. All of them are read, because rows of a second format may follow.
    """
    signs_to_find = {name: _sign_of_row(format) for name, format in FORMATS.items()}
    first_line_by_name: dict[str, int] = {}
    lines = 0
    for text in texts:
        lines += 1
        for name in _formats_of_row(text, signs_to_find):
            first_line_by_name[name] = lines
            del signs_to_find[name]  # further rows of a format tell nothing more
    return FoundFormats(first_line_by_name, lines)


def _why_no_format(path: str | os.PathLike[str], lines: int) -> str:
    """Return in words why a log has no row of a known format.

    Args:
        path: The log.
        lines: Number of its lines.
    """
    if _is_packed(path):
        return "the file is packed: unpack it first"
    if has_old_events(path):
        return "no line of a known format; events of MLPerf v0.5 and v0.6 have forms that are not read"
    return f"no line of a known format in {counted(lines, 'line')}; known are {', '.join(FORMATS)}"


def _sign_of_row(format: type[FormatReader]) -> RowSign:
    """Return how a line is recognised as a row of training figures of one log format.

    Args:
        format: Class of the format. It may have a text or a pattern that is for recognition only. Otherwise the text or
            the pattern of its rows is used.
    """
    return RowSign(text=format.row_clue or format.row_marker, pattern=format.recognised_by or format.row_pattern)


def _formats_of_row(text: str, signs: Mapping[str, RowSign]) -> list[str]:
    """Return the names of the formats that have a line as a row of training figures, mostly none or one.

    Args:
        text: The line.
        signs: How a row of each format is recognised, by the format's name.
    """
    return [name for name, sign in signs.items() if sign.text in text and sign.pattern.search(text) is not None]


@contextlib.contextmanager
def open_unpacked(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a log and yield a stream of its bytes, unpacked if it is a gzip file.

    Args:
        path: The log. Its first two bytes show whether it is a gzip file.

    Yields:
        The stream, which is closed when the `with` block ends.

    Raises:
        InputError: The log is not a regular file, or is found to be a damaged gzip file while it is read.
        OSError: The log cannot be opened.
    """
    try:
        raw = open_log(path)
    except ValueError as error:
        raise InputError(str(error)) from None

    with raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:  # around the body of the `with`, too: it reads the stream
            if is_gzip:
                yield cast(BinaryIO, gzip.GzipFile(fileobj=raw))
            else:
                yield io.BufferedReader(cast(io.RawIOBase, raw))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: a broken gzip file ({error}); unpack what can be saved with `zcat`") from None


def _is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a log is a file of xz, bzip2, zip or zstd, or a gzip file of one of these.

    Args:
        path: The log.
    """
    with open_unpacked(path) as stream:
        return stream.read(8).startswith(PACKED)


def _fingerprint(path: str | os.PathLike[str]) -> Fingerprint:
    """Return the SHA-256 and the number of lines of the text of a log, after unpacking.

    Args:
        path: The log, which may be a gzip file. A last line without a newline counts as a line.

    Raises:
        InputError: The log is not a regular file, or is a damaged gzip file.
        OSError: The log cannot be opened.
    """
    digest = hashlib.sha256()
    line_feeds = 0
    carriage_returns = 0
    last_byte = b""
    with open_unpacked(path) as stream:
        while data := stream.read(1 << 17):
            digest.update(data)
            line_feeds += data.count(b"\n")
            carriage_returns += data.count(b"\r")
            last_byte = data[-1:]

    lines = line_feeds or carriage_returns  # without any line feed, lines end with carriage returns
    line_end = b"\n" if line_feeds else b"\r"
    if last_byte not in (b"", line_end):
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
    """Return what a training log says of one run: its training figures, settings, evaluations, problems and checks.

    Args:
        path: The log, which may be a gzip file.
        format: Name of its format, a key of FORMATS. None recognises it from the text.
        devices: Number of devices, in place of what the log says. None keeps that.
        batch_per_device: Images of a step on one device, in place of what the log says. None keeps that.
        segment: Which run of a log that holds several; counts from 1. None requires that there is just one.

    Raises:
        InputError: No single run can be scored. For example, the format is unknown, or the log holds several runs and
            `segment` is None.
        OSError: The log cannot be opened.
    """
    name = format or recognise(path)
    if name not in FORMATS:
        raise InputError(f"no format {name!r}; known are {', '.join(FORMATS)}")

    fingerprint = _fingerprint(path)
    reader = _read_run(path, name, segment, lines_of_log=fingerprint.lines)

    # Options first: what the log does not state is derived from them, too. The windows are completed by all of it.
    from_options = _override_by_options(reader, {"devices": devices, "batch_per_device": batch_per_device})
    _derive_devices_or_batch(reader)
    record = _record_of_reader(reader, os.fspath(path), name, fingerprint, from_options=from_options)
    complete_windows(record)
    _require_run(record)
    return dataclasses.replace(
        record,
        checks=(*record.checks, *checks.checks_of_record(record)),
        problems=(*record.problems, *checks.problems_of_time_stamps(record)),
    )


def _require_run(record: Record) -> None:
    """Raise NoRunError if a log has no row of training figures and does not say that a run began.

    Args:
        record: What the log says.
    """
    has_begun = record.run_start_s is not None  # a run that began and failed before its first row is still a run
    if record.windows or has_begun:
        return
    reason = "".join(f"; {problem}" for problem in record.problems[:1])
    raise NoRunError(f"{record.file}: a {record.format} log without one training row: nothing was measured{reason}")


def _read_run(path: str | os.PathLike[str], name: str, segment: int | None, *, lines_of_log: int) -> FormatReader:
    """Read one run of a log, and return the reader that holds what its lines say.

    Args:
        path: The log, which may be a gzip file.
        name: Name of its format, a key of FORMATS.
        segment: Which run of a log that holds several; counts from 1. None requires that there is just one.
        lines_of_log: Number of lines of the whole log.

    Raises:
        InputError: There is no such run, there are several and `segment` is None, or the lines cannot be scored.
    """
    whole_log = _read(path, name, _WHOLE_LOG)  # only its rows show which runs it holds
    runs = whole_log.lines.runs(whole_log.restarts)
    span = _span_of_run(path, runs, lines_of_log, segment)
    # A part is read again, so that nothing of the other runs is in the result.
    return whole_log if span == _WHOLE_LOG else _read(path, name, span)


def _record_of_reader(
    reader: FormatReader, file: str, format: str, fingerprint: Fingerprint, *, from_options: tuple[str, ...]
) -> Record:
    """Return the record of a run from the reader that has read its lines.

    The reader's facts are the values that the log states, by name. A fact with the name of a field of Record (_FIELDS),
    such as `devices`, fills that field. Any other fact served only the reader and is left out: from "trainers", a word
    of Paddle's launcher, the reader has set `devices`.

    Args:
        reader: The reader.
        file: Path of the log.
        format: Name of its format, a key of FORMATS.
        fingerprint: SHA-256 and number of lines of the whole log.
        from_options: Names of the fields that the command line has set, such as ("devices",).
    """
    facts = {name: fact for name, fact in reader.facts_by_name.items() if name in _FIELDS}
    values_by_field = {name: fact.value for name, fact in facts.items()}
    return Record(
        file=file,
        sha256=fingerprint.sha256,
        lines=fingerprint.lines,
        segment=_segment_of(reader.lines.span, fingerprint.lines),
        format=format,
        windows=tuple(reader.windows),
        epochs=tuple(reader.epochs),
        quality=tuple(reader.qualities),
        evaluations=tuple(reader.evaluation_spans),
        truncated=reader.truncated,
        software=reader.software,
        field_lines={name: fact.line for name, fact in facts.items() if fact.line > 0},  # 0: no line states it
        from_options=from_options,
        problems=tuple(reader.problems),
        checks=tuple(reader.checks),
        header=reader.header,
        **values_by_field,
    )


def _segment_of(span: LineRange, lines: int) -> tuple[int, int] | None:
    """Return the first and the last line of a run, or None if the run is the whole log.

    Args:
        span: First and last line of the run, where None as the last line stands for the end of the log.
        lines: Number of lines of the log.
    """
    if span == _WHOLE_LOG:
        return None
    first_line, last_line = span
    return first_line, lines if last_line is None else last_line


def _read(path: str | os.PathLike[str], name: str, span: LineRange) -> FormatReader:
    """Read some lines of a log, and return the reader that holds what they say.

    Args:
        path: The log, which may be a gzip file.
        name: Name of its format, a key of FORMATS.
        span: First and last line to read, from 1. None as the last line stands for the end of the log.

    Raises:
        InputError: The lines cannot be scored, or the file is not a regular file or a damaged gzip file. The text
            begins with the path.
        OSError: The log cannot be opened.
    """
    with open_unpacked(path) as stream:
        reader = FORMATS[name](Lines(stream, span))
        try:
            reader.read()
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return reader


def _span_of_run(path: str | os.PathLike[str], runs: Sequence[LineRange], lines: int, number: int | None) -> LineRange:
    """Return the first and the last line of the run that the user asks for.

    Args:
        path: The log, for the error.
        runs: First and last line of each run in the log, where None as the last line stands for the end of the log.
        lines: Number of lines of the log.
        number: Which of `runs`; counts from 1. None stands for the only one.

    Raises:
        InputError: The log has no run of this number, or `number` is None and there are several.
    """
    if number is None and len(runs) == 1:
        return runs[0]
    shown = _runs_in_words(runs, lines)  # for the error
    if number is None:
        more = _further_runs_in_words(runs)
        raise InputError(f"{path}: {len(runs)} runs in one log ({shown}{more}): score one of them with --segment N")
    if not 1 <= number <= len(runs):
        raise InputError(f"{path}: no run {number}: the log holds {len(runs)} ({shown})")
    return runs[number - 1]


def _runs_in_words(runs: Sequence[LineRange], lines: int) -> str:
    """Return the first runs of a log in words, for an error: `1: lines 1 to 311; 2: lines 312 to 640`.

    Args:
        runs: First and last line of each run. At most MAX_RUNS_SHOWN are named. None as the last line stands for the
            end of the log.
        lines: Number of lines of the log.
    """
    texts = []
    for number, (first_line, last_line) in enumerate(runs[:MAX_RUNS_SHOWN], 1):
        end = lines if last_line is None else last_line
        texts.append(f"{number}: lines {first_line} to {end}")
    return "; ".join(texts)


def _further_runs_in_words(runs: Sequence[LineRange]) -> str:
    """Return the end of an error's list of runs, which counts the runs that the list leaves out.

    So many runs may be a single one, whose rows several ranks wrote: where the rank changes, the step goes back. So the
    text also advises to keep the rows of one rank.

    Args:
        runs: All runs of the log. If the list names all of them, the text is empty.
    """
    further = len(runs) - MAX_RUNS_SHOWN
    return f", and {further} more; of several ranks' rows, keep one rank's" if further > 0 else ""


def _override_by_options(reader: FormatReader, options: dict[str, int | None]) -> tuple[str, ...]:
    """Replace values that the log states by the values of command-line options.

    If an option contradicts the log, that becomes a problem of the record, in front of the others.

    Args:
        reader: The reader that has read the log. Its values are changed.
        options: Value of each option by the name of the field: {"devices": 8, "batch_per_device": None}. None stands
            for an option that is not given.

    Returns:
        Names of the fields that an option has set, such as ("devices",). A field for which the log states the same
        value as the option is left out.
    """
    changed = []
    for field, value in options.items():
        logged = reader.facts_by_name.get(field)
        if value is None or (logged is not None and logged.value == value):
            continue

        if logged is not None:
            problem = f"line {logged.line}: the log says {field} {logged.value}, the options {value}"
            reader.problems.insert(0, problem)  # in front: if there are many problems, only the first are shown
        reader.facts_by_name[field] = Fact(value, line=0)  # no line of the log states it
        changed.append(field)
    return tuple(changed)


def _derive_devices_or_batch(reader: FormatReader) -> None:
    """Derive the number of devices or the batch size of one device from the other one, if the log states the total.

    The batch size of all devices is devices x batch size of one device. If all three are known, a check records whether
    they agree. Nothing is derived if the division leaves a remainder.

    Args:
        reader: The reader that has read the log. The derived value is added to its values.
    """
    batch_of_all = reader.value("batch_of_all")
    if not batch_of_all:
        return

    devices = reader.value("devices")
    batch = reader.value("batch_per_device")
    line = reader.facts_by_name["batch_of_all"].line  # the source of what is derived
    if devices and batch:  # nothing to derive
        places = {_place_of(reader.facts_by_name[name]) for name in ("devices", "batch_per_device")}  # may be one
        of_all = f"line {line}: {batch_of_all} over all devices"
        of_each = f"{' and '.join(sorted(places))}: {devices} devices x {batch}"
        reader.checks.append(Check(what="batch", ways=(of_all, of_each), agree=devices * batch == batch_of_all))
    elif devices and batch_of_all % devices == 0:
        reader.set_if_unset("batch_per_device", batch_of_all // devices, line)
    elif batch and batch_of_all % batch == 0:
        reader.set_if_unset("devices", batch_of_all // batch, line)


def _place_of(fact: Fact) -> str:
    """Return where a value stands, for a message: "line 9", or "the options" of the command line."""
    return f"line {fact.line}" if fact.line else "the options"


def count(text: str) -> int:
    """Return the text of a command-line option as a whole number above 0 and below MAX_NUMBER.

    Args:
        text: The text, such as "8".

    Raises:
        ArgumentTypeError: The text is no such number.
    """
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < MAX_NUMBER:
        says = "must be a whole number above 0" if value <= 0 else f"must be below {MAX_NUMBER}"
        raise argparse.ArgumentTypeError(f"{text!r}: {says}")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m scoring import`."""
    parser.add_argument("logs", nargs="+", metavar="LOG")
    add_log_options(parser)
    parser.add_argument("--json", action="store_true", help="the whole record, one JSON list")


def add_log_options(
    parser: argparse.ArgumentParser, kind: Callable[[str], Any] = count, *, of_several_systems: bool = False
) -> None:
    """Add the options --devices, --batch, --segment and --format, for what a log may not say itself.

    Args:
        parser: Parser of the command that gets the options.
        kind: Function that converts the texts of --devices and --batch.
        of_several_systems: Whether these two may state a number for each of several systems, such as `8,64`.
    """
    numbers = "N,..." if of_several_systems else "N"
    of_each = " (8,64: of two systems)" if of_several_systems else ""
    devices = f"devices of the run, where the log does not say{of_each}"
    batch = f"images a step of one device, where the log does not say{of_each}"
    parser.add_argument("--devices", type=kind, metavar=numbers, help=devices)
    parser.add_argument("--batch", type=kind, metavar=numbers, help=batch)
    parser.add_argument("--segment", type=count, metavar="N", help="of a log that holds several runs, the Nth")
    parser.add_argument("--format", choices=sorted(FORMATS), help="read as this format, without recognition")


def read_records(args: argparse.Namespace) -> list[Record]:
    """Return what each log on the command line says.

    Args:
        args: Options of the command: `logs`, and those that `add_log_options` adds.

    Raises:
        InputError: A log cannot be scored as a single run.
        OSError: A log cannot be opened.
    """
    records = []
    for path in args.logs:
        record = read_record(
            path, format=args.format, devices=args.devices, batch_per_device=args.batch, segment=args.segment
        )
        records.append(record)
    return records


def main(args: argparse.Namespace) -> int:
    """Print what each log on the command line says, as JSON or as lines of text.

    Args:
        args: Options of the command: `logs`, `json`, and those that `add_log_options` adds.

    Returns:
        The exit status, always 0.

    Raises:
        InputError: A log cannot be scored as a single run.
        OSError: A log cannot be opened.
    """
    records = read_records(args)
    if args.json:
        for piece in _json_text(records):
            print(piece, end="")
    else:
        for record in records:
            print(safe_lines(record_lines(record)))
    return 0


def _json_text(records: Sequence[Record]) -> Iterator[str]:
    """Yield records as one JSON list, in many pieces of text.

    The text of a whole record is never held in memory, because a log may have a million rows of training figures.

    Args:
        records: The records. Each becomes an object with a member for each field.
    """
    yield "["
    for record_index, record in enumerate(records):
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        windows = fields.pop("windows")
        other_fields = json.dumps(jsonable(fields)).removesuffix("}")  # left open, for the windows
        comma = "," if record_index > 0 else ""
        yield f'{comma}\n{other_fields}, "windows": ['
        for window_index, window in enumerate(windows):
            comma = "," if window_index > 0 else ""
            yield f"{comma}\n {json.dumps(jsonable(window))}"
        yield "]}"
    yield "\n]\n"


def jsonable(value: Any) -> Any:
    """Return a value in types that JSON has.

    Args:
        value: Any value. NaN and infinity become text, such as "nan". A dataclass or the ranks' times become a
            dictionary of its fields, keys become text, and tuples become lists. All else stays as it is.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, RankTimes):
        return {name: jsonable(item) for name, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value
