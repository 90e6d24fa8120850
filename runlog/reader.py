"""The reader of result logs: MLLOG events, header sections and what is wrong with the text, in file order.

One pass, bounded memory, any bytes. An event that the official parser of mlperf-logging cannot read, or reads
differently from what is written (it keeps the last of two events on a line, the last of two equal JSON keys),
comes out as a `Problem`, so that no reader of this stream sees more or less than it.
"""

import functools
import json
import os
import re
import stat
import typing
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from runlog.json_types import JsonObject

TOKEN = b":::MLLOG"
HEADER = b"# {"
BLOCK_BYTES = 1 << 20  # read at a time
MAX_LINE_BYTES = 1 << 20  # a longer line is no event: mlperf-logging writes some hundred bytes
MAX_NESTING = 50  # well below the recursion limit at which the official parser dies
EVENT_TYPES = frozenset({"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"})
_NO_TYPE = f"event_type is none of {', '.join(sorted(EVENT_TYPES))}"
_ANSI_RESET = ("\x1b[0m", "\x1b[m", "\x1b[K")
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"PK\3\4", b"\x28\xb5\x2f\xfd")  # gzip, xz, bzip2, zip, zstd
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LARGEST_FLOAT = 1e300  # of a whole number that is taken as one: a float ends at 1.8e308
LONGEST_PREFIX = 80  # bytes of what a launcher puts before a line
_RANK = re.compile(rb"\s*(?:\[\d+,(\d+)\](?:<std\w+>)?:?|\[?(?:rank ?)?(\d+)\]?:)\s*\Z")


class Event(NamedTuple):
    """One MLLOG event. `time_ms` is Unix time; `line` counts from 1; `offset` is the byte where it starts.

    `event_type` is empty where it is none of EVENT_TYPES; a `Problem` says so, too. `rank` is that of a launcher's
    prefix (mpirun's `[1,3]<stdout>:`, srun's `3: `), None without one.
    """

    key: str
    value: Any
    metadata: JsonObject
    time_ms: int | float
    event_type: str
    line: int
    offset: int
    rank: int | None = None


class Header(NamedTuple):
    """One `# {"<section>": ...}` line of provenance."""

    section: str
    value: Any
    line: int


class Problem(NamedTuple):
    """Text that claims to be an event and cannot be taken as one, or not as one alone.

    `kind` is one of: json, fields, duplicate-key, encoding, trailing-text, several-events, oversized, nul, and
    event-type, which no other reader asks for.
    """

    kind: str
    message: str
    line: int
    text: str  # start of the text, unescaped: never print it raw


Entry = Event | Header | Problem
T = TypeVar("T")


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKeyError(f"the JSON key {max(names, key=names.count)!r} is given twice")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_scan = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).raw_decode
_TOO_DEEP = f"nested more than {MAX_NESTING} deep"
_SPACES = re.compile(r"[ \t\n\r]*")  # JSON's
hints_of = functools.cache(typing.get_type_hints)  # it compiles text each time


def parse_json(text: str) -> Any:
    """Return the value of a JSON text that holds nothing else.

    Raises ValueError for what the format does not allow, NaN, Infinity, a key given twice and nesting over MAX_NESTING.
    """
    value, end = _scan_value(text, 0)
    if text[end:].strip():
        raise ValueError(f"text after the JSON value, at character {end}")
    return value


def _scan_value(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at index `start` of a text, and the index behind its end.

    Spaces may stand before the value, and any text may follow it: `{"a": 1} more` from 0 on -> ({"a": 1}, 8).

    Raises ValueError for what the format does not allow, NaN, Infinity, a key given twice and nesting over MAX_NESTING.
    """
    spaces = _SPACES.match(text, start)
    assert spaces  # it matches where there are none, too
    try:
        value, end = _scan(text, spaces.end())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    has_many_brackets = text.count("{") + text.count("[") > MAX_NESTING  # a cheap test, as nearly no line has
    if has_many_brackets and _is_deeper(value, MAX_NESTING):
        raise ValueError(_TOO_DEEP)
    return value, end


def _is_deeper(value: Any, depth: int) -> bool:
    """Tell whether a JSON value has lists and objects nested more than `depth` deep: [[1]] is nested 2 deep.

    An empty list or object counts as a plain value, without a depth of its own. The nesting is followed level by level,
    as a recursion would fail at the depth that is looked for.
    """
    items = [value]  # of one level; at first that of the whole value
    for _ in range(depth + 1):
        inner_items: list[Any] = []
        for item in items:
            if isinstance(item, dict):
                inner_items += item.values()
            elif isinstance(item, list):
                inner_items += item
        items = inner_items
    return len(items) > 0


def table_of(kind: type[T], value: Any) -> T | None:
    """Return an event's value, which is a JSON object, as an instance of the schema's dataclass `kind`.

    None is returned where it does not fit: where it is no object, or a field has a value of none of its declared types.
    A whole number serves as a float, if a float can hold it. A field that may be None may be absent, too, as older logs
    do not have all of them; one that the dataclass does not have is left out.
    """
    if not isinstance(value, dict):
        return None
    fields = {}
    for name, hint in hints_of(kind).items():  # type: ignore[arg-type]
        item = value.get(name)
        allowed_types = typing.get_args(hint) or (hint,)  # of `float | None` both
        is_whole_float = float in allowed_types and type(item) is int and abs(item) < LARGEST_FLOAT
        if type(item) not in allowed_types and not is_whole_float:
            return None
        fields[name] = item
    return kind(**fields)


def settings_of(config: Any) -> JsonObject:
    """Return the values of a header's configuration by name; what is no setting is left out."""
    if not isinstance(config, dict):
        return {}
    return {name: entry.get("value") for name, entry in config.items() if isinstance(entry, dict)}


class HeldLog(PosixPath):
    """The path of a log that was read once: `open_log` gives the bytes read then, and does not open the file again."""

    data: bytes | None = None  # None: of a path that was made from this one

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "HeldLog":
        """Read the log at `path`. Raises OSError if it cannot be read, ValueError if it is no regular file."""
        held = cls(path)
        with open_log(Path(path)) as stream:
            held.data = stream.read()
        return held


def open_log(path: str | os.PathLike[str]) -> BinaryIO:
    """Open `path` for reading bytes. Raises OSError if it cannot be read, ValueError if it is no regular file."""
    if isinstance(path, HeldLog) and path.data is not None:
        return BytesIO(path.data)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not wait
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path}: not a regular file; give the text file of one run")
    return os.fdopen(handle, "rb", buffering=0)


def read_log(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yield events, header sections and problems of the log at `path`, in file order. Raises as `open_log` does."""
    with open_log(path) as stream:
        yield from read_stream(stream)


def read_text(text: str | bytes) -> Iterator[Entry]:
    """Yield events, header sections and problems of a log in memory, in its order."""
    data = text.encode() if isinstance(text, str) else text
    yield from read_stream(BytesIO(data))


def read_stream(stream: BinaryIO) -> Iterator[Entry]:
    """Yield events, header sections and problems of an open binary stream, in its order.

    The stream is read by blocks, so that a file of any size takes little memory. The line that a block breaks off waits
    for the next block; of one that is too long for an event only the beginning is kept. Lines are counted by line
    feeds; a carriage return alone, as a progress bar writes it, ends the text of an event, too. The first NUL byte of
    the stream is a problem; those after it are not.
    """
    unfinished = b""  # the line that the last block broke off
    line = 1  # number of the line at which `unfinished` begins
    offset = 0  # place in the stream at which `unfinished` begins
    saw_nul = False
    while block := stream.read(BLOCK_BYTES):
        if not saw_nul and b"\0" in block:
            saw_nul = True
            is_start = offset == 0 and not unfinished
            yield _nul_problem(block, line, is_start=is_start)
        data = unfinished + block
        end_of_lines = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        for whole_line in data[:end_of_lines].splitlines(keepends=True):
            yield from _entries(whole_line, line, offset)
            if whole_line.endswith(b"\n"):
                line += 1
            offset += len(whole_line)
        unfinished = data[end_of_lines:]
        if len(unfinished) > MAX_LINE_BYTES:
            shortened = _shortened(unfinished)
            offset += len(unfinished) - len(shortened)
            unfinished = shortened
    # The last line, whose end is that of the stream.
    yield from _entries(unfinished, line, offset)


def _shortened(unfinished: bytes) -> bytes:
    """Return the beginning of an unfinished line that is too long for an event, and TOKEN behind it where it has one.

    Of a line without TOKEN the last bytes stand there, as TOKEN may begin in them and end in the next block.
    """
    end = TOKEN if TOKEN in unfinished else unfinished[-len(TOKEN) :]
    return unfinished[:MAX_LINE_BYTES] + b" " + end


def _nul_problem(chunk: bytes, line: int, *, is_start: bool) -> Problem:
    """Return the Problem of the first NUL byte in a chunk, whose first byte is on the line of that number.

    At the start of a file (`is_start`) a packed file is recognized and named as such.
    """
    message = "a NUL byte: the file is no text"
    if is_start and chunk.startswith(_PACKED):
        message = "the file is packed: unpack it first"
    lines_before = chunk.count(b"\n", 0, chunk.find(b"\0"))
    return Problem("nul", message, line + lines_before, "")


def _entries(raw: bytes, line: int, offset: int) -> Iterator[Entry]:
    """Yield what a line of a log holds: the Header of a header line, or each Event; nothing for any other line.

    `raw` is the line with its end, `line` its number, and `offset` the place of its first byte in the file. An event
    begins with TOKEN, and ends with the line or where another one begins. What stands before the first is a launcher's
    prefix, which may name the rank that wrote the line.

    What is wrong with an event is yielded as a Problem before it. There is a Problem, too, where a line has several
    events, and one in place of the events of a line over MAX_LINE_BYTES.
    """
    raw = raw.rstrip(b"\r\n")
    starts = [token.start() for token in re.finditer(TOKEN, raw)]  # of the events
    if not starts:
        header = _header(raw, line)
        if header is not None:
            yield header
        return
    if len(raw) > MAX_LINE_BYTES:
        yield Problem("oversized", f"an event on a line over {MAX_LINE_BYTES} bytes", line, _shown(raw))
        return

    first_start = starts[0]
    rank = _rank_of(raw[:first_start])
    if len(starts) > 1:
        message = "several events on one line: the official parser reads the last alone"
        yield Problem("several-events", message, line, _shown(raw[first_start:]))
    ends = [*starts[1:], len(raw)]
    for start, end in zip(starts, ends, strict=True):
        yield from _event(raw[start:end], line, offset + start, rank)


def _rank_of(prefix: bytes) -> int | None:
    """Return the rank that a launcher's prefix of a line names, as 3 in mpirun's `[1,3]<stdout>:`; else None."""
    launchers = _RANK.match(prefix) if len(prefix) <= LONGEST_PREFIX else None
    if launchers is None:
        return None
    of_mpirun, of_others = launchers.groups()
    return int(of_mpirun or of_others)


def _shown(text: bytes) -> str:
    """Return the start of a text, as a Problem shows it."""
    return text[:200].decode("utf-8", "replace")


def _header(raw: bytes, line: int) -> Header | None:
    """Return the section of a header line, `# {"<section>": value}`; None for any other line.

    `raw` is the line without its end. Before the # may stand the byte-order mark of a file, or a launcher's prefix of
    less than LONGEST_PREFIX bytes, as mpirun's `[1,0]<stdout>:`. With more than MAX_LINE_BYTES from the # on, or where
    the JSON is damaged or no object of one key, the line is no header.
    """
    start = raw.find(HEADER)
    if start < 0:
        return None
    prefix = raw[:start].removeprefix(_BYTE_ORDER_MARK).strip()
    comment = raw[start:]
    is_bracketed = prefix.startswith(b"[") and prefix.endswith((b":", b"]", b">"))
    is_launcher_prefix = is_bracketed and len(prefix) < LONGEST_PREFIX
    if (prefix and not is_launcher_prefix) or len(comment) > MAX_LINE_BYTES:
        return None
    try:
        sections = parse_json(comment.removeprefix(b"# ").decode())
    except ValueError:
        return None
    if not isinstance(sections, dict) or len(sections) != 1:
        return None
    [(section, value)] = sections.items()
    return Header(section, value, line)


def _event(raw: bytes, line: int, offset: int, rank: int | None) -> list[Entry]:
    """Return what is wrong with the event in `raw`, a Problem each, and behind them the Event.

    `raw` begins with TOKEN, and ends with its line or where another TOKEN begins. The Event is there if one can be read
    from it: bytes that are not UTF-8, text behind the JSON and an unknown event_type leave it, any other problem does
    not. `rank` is that of the launcher's prefix.
    """
    entries: list[Entry] = []
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        entries.append(Problem("encoding", f"not UTF-8 at byte {error.start} of the event", line, _shown(raw)))
        text = raw.decode("utf-8", "replace")

    def problem(kind: str, message: str) -> list[Entry]:
        """Note a problem, and return all entries so far."""
        entries.append(Problem(kind, message, line, text[:200]))
        return entries

    if not text.startswith(":::MLLOG "):
        return problem("json", "no space after :::MLLOG: the official parser overlooks it")
    try:
        fields, end = _scan_value(text, len(":::MLLOG "))
    except _DuplicateKeyError as error:
        return problem("duplicate-key", str(error))
    except ValueError as error:
        return problem("json", f"no JSON object: {error}")
    rest = text[end:].strip(" \t")
    if rest:
        for code in _ANSI_RESET:
            rest = rest.replace(code, "")
        trailing = "text" if rest.strip() else "a colour code"
        problem("trailing-text", f"{trailing} follows the event: the official parser rejects the line")
    if type(fields) is not dict:
        return problem("fields", "not a JSON object")
    try:
        key = fields["key"]
        value = fields["value"]
        metadata = fields["metadata"]
        time_ms = fields["time_ms"]
    except KeyError as error:
        return problem("fields", f"the field {error} is missing")
    event_type = fields.get("event_type")
    if type(event_type) is not str or event_type not in EVENT_TYPES:
        problem("event-type", _NO_TYPE)
        event_type = ""
    if type(time_ms) not in (int, float) or not -(2**63) < time_ms < 2**63:
        return problem("fields", "time_ms is no number of 64 bits")
    if type(key) is not str:
        return problem("fields", "key is no text")
    if type(metadata) is not dict:
        return problem("fields", "metadata is no JSON object")
    return [*entries, Event(key, value, metadata, time_ms, event_type, line, offset, rank)]
