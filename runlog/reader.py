"""The reader of result logs: MLLOG events, header sections and what is wrong with the text, in file order.

One pass, bounded memory, any bytes. An event that the official parser of mlperf-logging cannot read, or reads
differently from what is written (it keeps the last of two events on a line, the last of two equal JSON keys),
comes out as a `Problem`, so that no reader of this stream sees more or less than it.
"""

import codecs
import functools
import os
import re
import stat
import sys
import typing
from collections.abc import Iterator
from io import BytesIO, FileIO
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from runlog import schema
from runlog.json_types import JsonObject
from runlog.strict_json import DuplicateKeyError, parse_json, scan_value

TOKEN = b":::MLLOG"  # begins an event
_TOKEN_AND_SPACE = ":::MLLOG "  # as the official parser wants it before the JSON
_OLD_EVENT = re.compile(rb":::MLPv0\.|:::MLL ")  # v0.5 and v0.6 wrote their events so
HEADER = b"# {"  # begins a section of the header
BLOCK_BYTES = 1 << 20  # read at a time
_LINE_ENDS = (b"\n", b"\r")
MAX_LINE_BYTES = 1 << 20  # a longer line is not an event: mlperf-logging writes some hundred bytes
EVENT_TYPES = frozenset({"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"})
_NO_TYPE = f"event_type is none of {', '.join(sorted(EVENT_TYPES))}"
_ANSI_RESET = ("\x1b[0m", "\x1b[m", "\x1b[K")
PACKED = (b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"PK\3\4", b"\x28\xb5\x2f\xfd")  # gzip, xz, bzip2, zip, zstd
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LARGEST_FLOAT = 1e300  # of a whole number that is taken as one: a float ends at 1.8e308
LONGEST_PREFIX = 200  # bytes of what a launcher puts before a line; names of a pod and a container have up to 63 each
# The tag of a launcher before a line: mpirun's `[1,3]<stdout>`, newer ones' `[prterun-host-1@1,3]<stdout>` and
# `[1,3][host:4711]<stdout>` with the process, SageMaker's `[1,mpirank:3,algo-1]<stdout>`, Gloo's `[3]<stdout>`. The
# group is the rank.
RANK_TAG = (
    r"\[(?:(?:[\w.-]+@)?\d{1,9},)?(?:mpirank:)?(\d{1,9})(?:,[\w.-]{1,60})?\](?:\[[\w.-]+:\d{1,9}\])?"
    r"<std(?:out|err|diag)>"
)
_RANK = re.compile(
    rb"(?:.*%b:?|\s*\[\d+,(\d+)\]:?|\s*\[?(?:rank ?|default)?(\d+)\]?:)\s*\Z" % RANK_TAG.encode(), re.DOTALL
)

# A time that a container's log, `docker compose logs -t` or a logger puts before a line.
# Kubernetes' files of containers have the stream behind it.
_TIME_STAMP = re.compile(
    rb"(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[-+]\d\d:?\d\d)?(?: std(?:out|err) F(?= |$))?"
)
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_ENDS_OF_LABELS = (":", "]", ">", "|", ")", " -")  # the last two of Ray's `(pid=4711)` and a logger's ` - INFO - `
# Names of a pod and its container, the date or seconds of `ts`, or a level, such as `INFO`.
_NAMES = re.compile(r"[\w./-]+(?: +[\w./-]+){0,2}")


class Event(NamedTuple):
    """One MLLOG event. `time_ms` is Unix time; `line` counts from 1; `offset` is the byte where it starts.

    `event_type` is empty if the log has none of EVENT_TYPES; a `Problem` reports that, too. `rank` is the rank that a
    launcher's prefix names (mpirun's `[1,3]<stdout>:`, srun's `3: `), None without such a prefix. `label` is the text
    before the event without time stamps, such as `node02:` of a host or `trainer-3  |` of a container, mostly empty.
    """

    key: str
    value: Any
    metadata: JsonObject
    time_ms: int | float
    event_type: str
    line: int
    offset: int
    rank: int | None = None
    label: str = ""


class Header(NamedTuple):
    """One `# {"<section>": ...}` line of provenance."""

    section: str
    value: Any
    line: int


class Problem(NamedTuple):
    """Text that claims to be an event, but is not exactly one valid event.

    `kind` is one of: json, fields, duplicate-key, encoding, trailing-text, several-events, oversized, nul, time-text,
    and event-type, which no other reader asks for.
    """

    kind: str
    message: str
    line: int
    text: str  # start of the text, unescaped: never print it raw


Entry = Event | Header | Problem
T = TypeVar("T")


hints_of = functools.cache(typing.get_type_hints)  # it compiles text each time


def from_json(kind: type[T], value: Any) -> T | None:
    """Make a named tuple of the schema from a JSON value that was read from a log; None if the value does not fit.

    The value fits if it is a JSON object whose fields have the declared types. A field that is absent counts as None,
    and other keys than the fields are ignored.

    Args:
        kind: A named tuple of `runlog/schema.py`, such as `Format`.
        value: The value of an event or a header section, as JSON has it.
    """
    if not isinstance(value, dict):
        return None
    fields = {}
    for name, hint in hints_of(kind).items():  # type: ignore[arg-type]
        item = value.get(name)  # None if it is absent, as some are in older logs
        if not _is_of_type(item, hint):
            return None
        fields[name] = item
    return kind(**fields)


def other_format(section: Any) -> schema.Format | None:
    """Return the form that a log states of itself, if it is not the one that this code writes.

    Args:
        section: The value of the header section `log`, such as {"format": "paddle-reference-log", "version": 1}.

    Returns:
        The stated form; None if it is that of the schema, or if the section states none.
    """
    stated = from_json(schema.Format, section)
    return None if stated == schema.Format() else stated


def _is_of_type(item: Any, hint: Any) -> bool:
    """Return whether an item of JSON is of a declared type.

    An int below LARGEST_FLOAT also counts as a float, because JSON may have 2 for the float 2.0. It stays an int.

    Args:
        item: A value from JSON.
        hint: The type, which may be a union such as `float | None`.
    """
    allowed_types = typing.get_args(hint) or (hint,)  # the members of a union, or the plain type
    is_int_in_range = type(item) is int and abs(item) < LARGEST_FLOAT
    if is_int_in_range and float in allowed_types:
        return True
    return type(item) in allowed_types


def settings_of(config: Any) -> JsonObject:
    """Return the values of a run's configuration by name: {"SEED": {"value": 1}} -> {"SEED": 1}.

    Args:
        config: The value of a log's header section `config`, or anything else that stands there.

    Returns:
        The values. An entry that is not a JSON object is left out. If `config` is not one, the result is empty.
    """
    if not isinstance(config, dict):
        return {}
    return {name: entry.get("value") for name, entry in config.items() if isinstance(entry, dict)}


class HeldLog(PosixPath):
    """The path of a log whose bytes are held in memory: `open_log` returns them and does not open the file again."""

    data: bytes | None = None  # None in a path that was derived from this one, such as its parent

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "HeldLog":
        """Read a log into memory, and return its path with the bytes in the attribute `data`.

        A HeldLog is a path like any other, but whatever reads it by `open_log` gets these bytes: several readers see
        the same log even if the file is changed in between.

        Args:
            path: Path of the log.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a regular file.
        """
        held = cls(path)
        with open_log(Path(path)) as stream:
            held.data = stream.read()
        return held


class _OpenLog(FileIO):
    """A log that is open for reading bytes. An error of its disk names the log, which the system's own does not."""

    def __init__(self, handle: int, path: str | os.PathLike[str]) -> None:
        super().__init__(handle, "rb")
        self._path = os.fspath(path)

    def read(self, size: int | None = -1, /) -> Any:
        """Read bytes, at most `size`; all that are left if it is -1 or None."""
        try:
            return super().read(size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def readinto(self, buffer: Any, /) -> Any:
        """Read bytes into a buffer, and return how many; a reader that buffers calls this in place of `read`."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error


def open_log(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a log for reading bytes.

    Args:
        path: Path of the log. For a `HeldLog` with bytes in memory, the file is not opened again.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The path leads to something that is not a regular file, such as a folder or a pipe.
    """
    if isinstance(path, HeldLog) and path.data is not None:
        return BytesIO(path.data)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not wait
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path}: not a regular file; give the text file of one run")
    return _OpenLog(handle, path)


def ends_with_line_end(path: str | os.PathLike[str]) -> bool:
    """Return whether a log ends with a line feed or a carriage return, as a log that was cut off seldom does.

    True for an empty log.

    Args:
        path: The path of the log.

    Raises:
        OSError: The log cannot be read.
        ValueError: It is not a regular file.
    """
    with open_log(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - 1, 0))
        return stream.read(1) in (b"", *_LINE_ENDS)


def has_old_events(path: str | os.PathLike[str]) -> bool:
    """Return whether a log has events of MLPerf v0.5 or v0.6, whose forms are not read.

    Args:
        path: Path of the log.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The path leads to something that is not a regular file, such as a folder or a pipe.
    """
    end_of_block = b""  # of the block before: an event may begin there
    with open_log(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            if _OLD_EVENT.search(end_of_block + block) is not None:
                return True
            end_of_block = block[-len(":::MLPv0") :]
    return False


def read_log(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yield the events, header sections and problems of a log file, in the order of its lines.

    Args:
        path: Path of the log.

    Yields:
        An Event (a `:::MLLOG` line), a Header (a line `# {"<section>": value}`), or a Problem: text that claims to be
        an event, but is not exactly one valid event.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is not a regular file.
    """
    with open_log(path) as stream:
        yield from read_stream(stream)


def read_text(text: str | bytes) -> Iterator[Entry]:
    """Yield the events, header sections and problems of a log in memory, in the order of its lines.

    Args:
        text: The whole log. A `str` is taken as UTF-8.

    Yields:
        An Event (a `:::MLLOG` line), a Header (a line `# {"<section>": value}`), or a Problem: text that claims to be
        an event, but is not exactly one valid event.
    """
    data = text.encode() if isinstance(text, str) else text
    yield from read_stream(BytesIO(data))


def read_stream(stream: BinaryIO) -> Iterator[Entry]:
    """Yield the events, header sections and problems of an open log, in the order of its lines.

    A line ends with a line feed (LF), a carriage return (CR), as progress bars write, or CR and LF together. The number
    of a line is 1 plus the LFs before the line: a CR b LF c CR LF d are four lines, of the numbers 1, 1, 2 and 3.

    The stream is read in blocks, so that a file of any size takes little memory. The beginning of a line that goes on
    in the next block is kept until the line ends, but shortened if it is over MAX_LINE_BYTES. An event on a line over
    MAX_LINE_BYTES is not parsed, and gives a Problem.

    Args:
        stream: The log, open for reading bytes, at its beginning.

    Yields:
        An Event (a `:::MLLOG` line), a Header (a line `# {"<section>": value}`), or a Problem: text that claims to be
        an event, but is not exactly one valid event. The first NUL byte gives a Problem, too, before the entries of its
        block.
    """
    # Of the line that is being read, which may have begun in an earlier block:
    line_number = 1
    line_start = 0  # offset in the stream of its first byte
    line_before = b""  # what earlier blocks hold of it
    bytes_read = 0  # offset in the stream of the end of the last piece
    saw_nul = False
    while block := stream.read(BLOCK_BYTES):
        if not saw_nul and b"\0" in block:
            saw_nul = True
            yield _nul_problem(block, line_number, is_start=bytes_read == 0)
        for piece in block.splitlines(keepends=True):  # of bytes: it splits only behind line feeds and carriage returns
            bytes_read += len(piece)
            line = line_before + piece
            if not piece.endswith(_LINE_ENDS):  # the block ends here: the line may go on in the next one
                line_before = _kept_of_open_line(line)
                continue
            if TOKEN in line or HEADER in line:  # saves the call for most lines: `_entries` looks for both itself
                yield from _entries(line, line_number, line_start)
            # If a block ends between a CR and its LF, the CR ends the line, and the LF is the first piece of the next
            # block: an empty line, which raises the number.
            if piece.endswith(b"\n"):
                line_number += 1
            line_start = bytes_read
            line_before = b""
    yield from _entries(line_before, line_number, line_start)  # the last line may lack a line feed


def _kept_of_open_line(text: bytes) -> bytes:
    """Return a line whose end is not read yet, shortened if the line has over MAX_LINE_BYTES, to save memory.

    An event on so long a line is not parsed. So the result need only show that the line is too long, and whether an
    event's token (`:::MLLOG`) is on the line. The caller puts the rest of the line behind the result.

    Args:
        text: The line so far, which may have been shortened before, with the last block.
    """
    if len(text) <= MAX_LINE_BYTES:
        return text
    # The space keeps apart what is not adjacent in the line. Without it "...:::ML" and "LOG..." would form a token.
    beginning = text[:MAX_LINE_BYTES] + b" "
    if TOKEN in text:
        return beginning + TOKEN
    # The line may go on with the rest of a token, such as "G" behind ":::MLLO". So as many bytes are kept as a token
    # has.
    end = text[-len(TOKEN) :]
    return beginning + end


def _nul_problem(block: bytes, line: int, *, is_start: bool) -> Problem:
    """Return the Problem of the first NUL byte in a log, which is then no plain text.

    Args:
        block: The bytes of the log that hold the NUL byte.
        line: The line on which the block begins, counted from 1.
        is_start: Whether the block is the start of the file, which shows if the file is compressed or UTF-16.
    """
    message = "a NUL byte: the file is not text"
    if is_start and block.startswith(_UTF_16_MARKS):
        message = "the file is UTF-16, as PowerShell's > writes it: convert it with `iconv -f UTF-16 -t UTF-8`"
    if is_start and block.startswith(PACKED):
        message = "the file is packed: unpack it first"
    lines_before = block.count(b"\n", 0, block.find(b"\0"))
    return Problem("nul", message, line + lines_before, "")


def _entries(raw: bytes, line: int, offset: int) -> Iterator[Entry]:
    """Yield what one line of a log holds: its events and their Problems, or else the section of a header line.

    A line over MAX_LINE_BYTES gives only a Problem if it holds an event, and nothing if it holds none.

    Args:
        raw: The bytes of the line, with or without its line end.
        line: The number of the line, counted from 1.
        offset: Position of the line's first byte in the file.
    """
    text = raw.rstrip(b"\r\n")
    event_starts = [token.start() for token in re.finditer(TOKEN, text)]
    if not event_starts:
        header = _header(text, line)
        if header is not None:
            yield header
        return
    if len(text) > MAX_LINE_BYTES:
        yield Problem("oversized", f"an event on a line over {MAX_LINE_BYTES} bytes", line, _shown(text))
        return

    text_before_events = text[: event_starts[0]]
    prefix = _prefix_of(text_before_events)
    if len(event_starts) > 1:  # this is a Problem, but all of the events are read
        message = "several events on one line: the official parser reads the last alone"
        yield Problem("several-events", message, line, _shown(text[event_starts[0] :]))
    event_ends = [*event_starts[1:], len(text)]  # an event ends where the next one begins, the last one with the line
    for start, end in zip(event_starts, event_ends, strict=True):
        yield from _event(text[start:end], line, offset + start, prefix)


class _Prefix(NamedTuple):
    """The writer of an event by the text before it on its line: `rank` and `label` of an Event."""

    rank: int | None = None
    label: str = ""


def _prefix_of(text: bytes) -> _Prefix:
    """Return the rank that a launcher's prefix of a line names, 3 for mpirun's "[1,3]<stdout>:", and its label.

    Args:
        text: The bytes of the line before its first event. If they are over LONGEST_PREFIX, they are not a prefix.
    """
    if text == b"" or len(text) > LONGEST_PREFIX:
        return _Prefix()
    label = sys.intern(_TIME_STAMP.sub(b"", text).strip().decode("utf-8", "replace"))  # one text for all its events
    match = _RANK.match(text)
    if match is None:
        return _Prefix(label=label)
    assert match.lastindex is not None, "each form has a group, of which one alone is set"
    return _Prefix(int(match[match.lastindex]), label)


def _shown(text: bytes) -> str:
    """Return the first 200 bytes of a text, decoded, for the `text` of a Problem."""
    return text[:200].decode("utf-8", "replace")


def _header(raw: bytes, line: int) -> Header | None:
    """Return the header section that a line of a log holds; None for any other line.

    A header line is `# {"<section>": value}`. A file's byte-order mark, or the label of a launcher, container or host
    such as "[1,0]<stdout>:", may stand before the `#`. A line over MAX_LINE_BYTES gives None, because
    `read_stream` may have kept only a part of the line.

    Args:
        raw: The bytes of the line without its line end.
        line: The number of the line, counted from 1.
    """
    start = raw.find(HEADER)
    if start < 0 or len(raw) > MAX_LINE_BYTES:
        return None
    raw = _COLOUR.sub(b"", raw)
    start = raw.find(HEADER)
    prefix = raw[:start].removeprefix(_BYTE_ORDER_MARK).strip()
    may_stand_there = prefix == b"" or _is_label(prefix)
    if not may_stand_there:
        return None
    comment = raw[start:]
    try:
        sections = parse_json(comment.removeprefix(b"# ").decode())
    except ValueError:  # an ordinary comment
        return None
    if not isinstance(sections, dict) or len(sections) != 1:
        return None
    [(section, value)] = sections.items()
    return Header(section, value, line)


def _is_label(prefix: bytes) -> bool:
    """Return whether a text before a line can be what a launcher puts there, such as "[1,0]<stdout>:" or "node01:".

    Without time stamps it is empty, ends with one of _ENDS_OF_LABELS, or has up to three names, as stern's "pod
    container". It has at most LONGEST_PREFIX bytes.

    Args:
        prefix: The bytes before the line, without spaces at both ends; not empty.
    """
    if len(prefix) > LONGEST_PREFIX:
        return False
    label = _prefix_of(prefix).label
    has_time_stamps_alone = label == ""
    return has_time_stamps_alone or label.endswith(_ENDS_OF_LABELS) or _NAMES.fullmatch(label) is not None


class _RawEvent(NamedTuple):
    """The text of an event from its TOKEN on, up to the next TOKEN or the end of the line, and where it stands."""

    text: str
    line: int
    offset: int
    prefix: _Prefix

    def problem(self, kind: str, message: str) -> Problem:
        """Return a Problem of this text.

        Args:
            kind: Which kind of fault it is, such as "json" or "trailing-text"; `Problem` lists them.
            message: What is wrong, in words.
        """
        return Problem(kind, message, self.line, self.text[:200])


def _event(raw: bytes, line: int, offset: int, prefix: _Prefix) -> Iterator[Entry]:
    """Yield a Problem for each thing that is wrong with an event in a log, then the Event, if one can be read.

    Args:
        raw: The bytes of the event. They begin with `:::MLLOG`.
        line: The number of the event's line, counted from 1.
        offset: Position of the event's first byte in the file.
        prefix: What the text before the first event on the line says of the writer.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        yield Problem("encoding", f"not UTF-8 at byte {error.start} of the event", line, _shown(raw))
        text = raw.decode("utf-8", "replace")  # it is read all the same
    yield from _event_of_text(_RawEvent(text, line, offset, prefix))


def _event_of_text(raw: _RawEvent) -> Iterator[Entry]:
    """Yield the Problems of the text of an event, then the Event, if one can be read.

    No Event is read from a text without a space after `:::MLLOG`, with invalid JSON, or with a key given twice. Text
    behind the JSON is a Problem, but does not keep the Event from being read.

    Args:
        raw: The text of the event, and where it stands in the log.
    """
    if not raw.text.startswith(_TOKEN_AND_SPACE):
        yield raw.problem("json", "no space after :::MLLOG: the official parser overlooks it")
        return
    try:
        value, end = scan_value(raw.text, len(_TOKEN_AND_SPACE))
    except DuplicateKeyError as error:
        yield raw.problem("duplicate-key", str(error))
        return
    except ValueError as error:
        yield raw.problem("json", f"no JSON object: {error}")
        return

    trailing = _kind_of_trailing_text(raw.text[end:])
    if trailing:
        yield raw.problem("trailing-text", f"{trailing} follows the event: the official parser rejects the line")
    yield from _event_of_json(raw, value)


def _event_of_json(raw: _RawEvent, fields: Any) -> Iterator[Entry]:
    """Yield the Problems of an event's JSON value, then the Event, if one can be read.

    Args:
        raw: The text of the event, and where it stands in the log.
        fields: The JSON value: an object with "key", "value", "metadata", "time_ms" and "event_type" if it is right.

    Yields:
        A Problem or the Event. An Event whose type is unknown has an empty `event_type`.
    """
    fault = _fault_of_form(fields)
    if fault:
        yield raw.problem("fields", fault)
        return

    event_type = fields.get("event_type")
    is_known_type = type(event_type) is str and event_type in EVENT_TYPES
    if not is_known_type:
        yield raw.problem("event-type", _NO_TYPE)
        event_type = ""
    time_ms = _number_of_time(fields["time_ms"])
    fault = _fault_of_values(fields, time_ms)
    if fault:
        yield raw.problem("fields", fault)
        return
    if type(fields["time_ms"]) is str:
        yield raw.problem("time-text", "time_ms is a text: the official parser takes its number")
    yield Event(
        key=fields["key"],
        value=fields["value"],
        metadata=fields["metadata"],
        time_ms=time_ms,
        event_type=event_type,
        line=raw.line,
        offset=raw.offset,
        rank=raw.prefix.rank,
        label=raw.prefix.label,
    )


def _fault_of_form(fields: Any) -> str:
    """Return what is wrong with the form of an event's JSON value: it is not an object, or a field is missing.

    Args:
        fields: The JSON value, of any type.

    Returns:
        The fault in words; empty if there is none.
    """
    if type(fields) is not dict:
        return "not a JSON object"
    for name in ("key", "value", "metadata", "time_ms"):
        if name not in fields:
            return f"the field {name!r} is missing"
    return ""


def _kind_of_trailing_text(rest: str) -> str:
    """Return in words what follows an event on its line.

    Args:
        rest: The text after the event's JSON.

    Returns:
        "text" or "a colour code"; empty if only spaces and tabs follow.
    """
    rest = rest.strip(" \t")
    if not rest:
        return ""
    for code in _ANSI_RESET:
        rest = rest.replace(code, "")
    has_only_colour_codes = rest.strip() == ""
    return "a colour code" if has_only_colour_codes else "text"


def _number_of_time(time_ms: Any) -> Any:
    """Return the number in a time that is a text, as the official parser reads it; any other time as it is.

    Args:
        time_ms: The time of an event, of any type: "1500" gives 1500.0, and "soon" stays a text.
    """
    if type(time_ms) is not str:
        return time_ms
    try:
        return float(time_ms)
    except ValueError:
        return time_ms


def _fault_of_values(fields: dict[str, Any], time_ms: Any) -> str:
    """Return what is wrong with the values of an event's fields: its time, its key or its metadata.

    Args:
        fields: The fields of the event. All that an event needs must be there.
        time_ms: The event's time, converted by `_number_of_time`.

    Returns:
        The fault in words; empty if there is none.
    """
    is_number = type(time_ms) in (int, float)
    if not is_number or not -(2**63) < time_ms < 2**63:
        return "time_ms is not a number of 64 bits"
    if type(fields["key"]) is not str:
        return "key is not text"
    if type(fields["metadata"]) is not dict:
        return "metadata is not a JSON object"
    return ""
