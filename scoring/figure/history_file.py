"""The file of `python -m scoring history`: a SQLite table with a row for each run."""

import dataclasses
import datetime
import json
import math
import os
import sqlite3
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from runlog.text import encodable
from scoring.figure.levels import hosts_of_nodes
from scoring.figure.run_start import start_of
from scoring.figure.score import Score
from scoring.importers import jsonable
from scoring.record import InputError, Record, Window, nodes_of_header, section

VERSION = 1  # of the file; one made before versions has 0 and the same form
MAX_IMAGES_PER_S = 1e15
SAME_RATE_WITHIN = 1e-9  # relative: below it, two versions added the same times in another order


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """The facts that the runs of one trend have in common."""

    system: str
    workload: str
    precision: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.system}, {self.workload}, {self.precision}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One run of the history; the record itself stays in the file, as zlib-packed JSON."""

    sha256: str  # of the log, with the run's lines if the log holds several
    file: str
    date: str  # UTC
    date_of: str  # "run_start", "first_row", or "file" if the log has no calendar
    revision: str | None  # commit of the code that ran
    system: str
    workload: str
    precision: str
    protocol: str
    images_per_s: float
    unit: str

    @property
    def series(self) -> "Series":
        """Return the facts that must agree for runs to be repeats in time."""
        return Series(system=self.system, workload=self.workload, precision=self.precision, protocol=self.protocol)


class AlteredRowError(Exception):
    """A row of the history has a value that this code cannot have written. The text says which row, and what to do."""


class Added(NamedTuple):
    """The numbers of runs that were written into the history."""

    new: int
    corrected: int  # runs that replaced an older row


# Texts of SQLite about errors that do not come from what the file holds, and what to do about each.
_FIXES = {
    "is locked": "another process writes to it: try again",
    "disk is full": "make room on its disk",
    "readonly database": "make the file and its folder writable, or name another by --file",
    "unable to open": "see that it is a file in a folder that is there and open to you, or name another by --file",
    "disk I/O error": "see whether its disk can be read and written, or name another by --file",
}
COLUMNS = [field.name for field in dataclasses.fields(Row)]
TABLE = f"CREATE TABLE IF NOT EXISTS run ({', '.join(COLUMNS)}, record BLOB, PRIMARY KEY (sha256, protocol))"


def row_of(result: Score, index: int, system: str | None) -> Row:
    """Return one run of a score as a row of the history file.

    Unknown facts are said in words, such as "batch unsaid". Only an unknown revision is None.

    Args:
        result: The score that holds the run.
        index: Which run of the score, counted from 0.
        system: Name of the machine, as the user gave it; None takes it from the log.

    Raises:
        InputError: Neither `system` nor the log names the machine, or the run's rate is too high to be kept.
    """
    record = result.records[index]
    started = start_of(record)
    date = datetime.datetime.fromtimestamp(started.seconds, datetime.timezone.utc)
    machine = system or record.machine
    if machine is None:  # runs of two machines must never share a trend
        raise InputError(f"{record.file}: the log does not say its hardware; name the machine by --system")
    images_per_s = result.runs[index].value
    if images_per_s >= MAX_IMAGES_PER_S:
        most = f"a history keeps rates below {MAX_IMAGES_PER_S:.0e}"
        raise InputError(f"{record.file}: {images_per_s:g} {result.unit}: {most}; correct the log or --batch")
    commit = section(record, "source").get("commit")
    return Row(
        sha256=_identity_of_run(record),
        file=_path_as_text(record.file),
        date=date.isoformat(timespec="seconds"),
        date_of=started.source,
        revision=encodable(str(commit)) if commit else None,
        system=encodable(f"{machine}, {_devices_in_words(record)}, {record.framework_name}"),
        workload=encodable(_work_in_words(record)),
        precision=encodable(record.math_mode or record.precision or "precision unsaid"),
        protocol=encodable(f"{result.protocol.name}: {result.protocol.describe()}"),
        images_per_s=images_per_s,
        unit=result.unit,
    )


def _devices_in_words(record: Record) -> str:
    """Return how many devices a run had, and on how many nodes if the log says several: "16 devices on 2 nodes"."""
    devices = f"{record.devices or 'unknown'} devices"
    if record.nodes and record.nodes > 1:
        devices += f" on {record.nodes} nodes"
    return devices


def _work_in_words(record: Record) -> str:
    """Return what a run trained: its model, batch and, if the log says it, its data."""
    work = f"{record.model or 'model unsaid'}, batch {record.global_batch or 'unsaid'}"
    return work if record.data is None else f"{work}, {record.data}"


def _identity_of_run(record: Record) -> str:
    """Return the text by which the history knows a run: the digest of its log.

    The runs of one log share its digest, so their lines are added to it.

    Args:
        record: The run as read from its log.
    """
    if not record.segment:
        return record.sha256
    first_line, last_line = record.segment
    return f"{record.sha256}, lines {first_line} to {last_line}"


def _path_as_text(file: str) -> str:
    """Return the absolute path of a file. Bytes of its name that are not UTF-8 become escapes, such as `\\xff`."""
    return os.fsencode(Path(file).resolve()).decode("utf-8", "backslashreplace")


@contextmanager
def opened(path: Path, *, new: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the history's SQLite file for a `with` block, and close it at the end of the block.

    Args:
        path: The history file.
        new: Whether the block may write. A file that does not exist is then made, and what the block writes is
            committed at its end, or rolled back on an error. Otherwise the file can only be read.

    Yields:
        The connection to the file.

    Raises:
        InputError: The file does not exist (without `new`), cannot be used or is not a history, or the block raises an
            error of SQLite or AlteredRowError. The text begins with the path.
    """
    if not new and not path.is_file():
        raise InputError(f"{path}: no history there; make it with `history add LOG...`, or give --file")
    if path.exists() and not (path.is_file() or path.is_dir()):  # SQLite would say that /dev/null is locked
        raise InputError(f"{path}: is not a file that can hold a history; name another by --file")
    try:
        with closing(_connect(path, may_write=new)) as connection:
            if new:
                _make_table_if_empty(connection)
            _refuse_other_files(connection, path)
            with connection:  # commits at the end of the block, or rolls back on an error
                yield connection
    except AlteredRowError as error:
        raise InputError(f"{path}: {error}") from error
    except sqlite3.Error as error:  # it may also come from the caller's block
        raise InputError(f"{path}: {_explained(error)}") from error


def _explained(error: sqlite3.Error) -> str:
    """Return in words what an error of SQLite means for the user, and what to do about it.

    Either the file cannot be used, for example because its disk is full, or it holds no history. The error's text tells
    which: before Python 3.11 such errors have no code.

    Args:
        error: The error that SQLite raised.
    """
    message = str(error)
    if isinstance(error, sqlite3.OperationalError):
        for part_of_message, fix in _FIXES.items():
            if part_of_message in message:
                return f"SQLite cannot use the file ({message}); {fix}"
    return f"not a history that can be used ({message}); name another by --file"


def _connect(path: Path, *, may_write: bool) -> sqlite3.Connection:
    """Connect to a file of SQLite. If it may be written to, it is also made if it does not exist."""
    mode = "rwc" if may_write else "ro"  # of SQLite: read, write and create, or read only
    quoted_path = urllib.parse.quote(os.fsencode(path.absolute()))
    return sqlite3.connect(f"file:{quoted_path}?mode={mode}", uri=True)


def _make_table_if_empty(connection: sqlite3.Connection) -> None:
    """Make the history's table if the file is still empty. Any other file stays as it is."""
    if not _tables(connection) and _version(connection) == 0:
        connection.execute(TABLE)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _refuse_other_files(connection: sqlite3.Connection, path: Path) -> None:
    """Raise an error if a SQLite file is not a history, or if a later version of this code wrote it.

    A history has a table `run`. Its columns are the fields of Row, followed by `record`.

    Args:
        connection: The open file.
        path: Path of the file, for the error.

    Raises:
        InputError: The file is not a history, or has a version above VERSION.
    """
    version = _version(connection)
    if version > VERSION:
        raise InputError(f"{path}: a history of version {version}; this code knows {VERSION}: use a newer one")

    columns = _columns_of_run(connection)
    if columns == [*COLUMNS, "record"]:
        return
    if not columns:
        tables = ", ".join(_tables(connection)) or "none"
        raise InputError(f"{path}: a SQLite file, but no history (tables {tables}); name another by --file")
    names = ", ".join(columns)
    raise InputError(f"{path}: a SQLite file, but no history (columns {names}); name another by --file")


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the file's tables and of its other parts, such as indexes; none for an empty file."""
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]


def _columns_of_run(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the columns of the table `run`; none if there is no such table."""
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('run')")]


def _version(connection: sqlite3.Connection) -> int:
    """Return the version of the history's format that the file has; 0 for a file that says none."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def rows_of(connection: sqlite3.Connection) -> list[Row]:
    """Return all runs of the history, oldest first.

    Args:
        connection: The history file.

    Raises:
        AlteredRowError: A row has a value that this code cannot have written.
    """
    stored_rows = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM run ORDER BY date, sha256")
    rows = [Row(*values) for values in stored_rows]
    for row in rows:
        for name, value in vars(row).items():
            if not _is_valid(name, value):
                raise AlteredRowError(f"the run of SHA-256 {row.sha256!s:.12} has {name} {value!r}; delete its row")
    return rows


def _is_valid(column: str, value: object) -> bool:
    """Return whether this code can have written a value into a column. SQLite itself does not check types.

    Args:
        column: Name of the column, which is a field of Row.
        value: The value that the file has there.
    """
    if column == "images_per_s":
        return isinstance(value, float) and 0 < value < MAX_IMAGES_PER_S
    if column == "revision" and value is None:
        return True
    return isinstance(value, str)


def add(connection: sqlite3.Connection, result: Score, system: str | None) -> Added:
    """Add the runs of a score to the history, and return how many rows are new or changed.

    A new row takes the place of the stored rows of the same run and protocol. A row that says nothing new is not
    written.

    Args:
        connection: The history file, open for writing.
        result: The score that holds the runs.
        system: Name of the machine, as the user gave it; None takes it from the logs.

    Raises:
        InputError: No machine is named, or a rate is too high to be kept.
        AlteredRowError: A row or record in the file cannot be read.
    """
    new_rows = [row_of(result, index, system) for index in range(len(result.records))]
    rows_to_replace = _rows_to_replace(connection, new_rows, result.records)
    new = 0
    corrected = 0
    for row, record, olds in zip(new_rows, result.records, rows_to_replace, strict=True):
        says_nothing_new = len(olds) == 1 and _say_the_same(olds[0], row)
        if says_nothing_new:
            continue
        if olds:
            corrected += 1
        else:
            new += 1
        # An old row of the run may have another digest, from when the log was shorter. So it is deleted by its own.
        for old in olds:
            connection.execute("DELETE FROM run WHERE sha256 = ? AND protocol = ?", [old.sha256, old.protocol])
        _write_row(connection, row, record)
    return Added(new, corrected)


def _rows_to_replace(
    connection: sqlite3.Connection, new_rows: Sequence[Row], records: Sequence[Record]
) -> list[list[Row]]:
    """Return for each new row the stored rows that it is to replace, because they are of the same run and protocol.

    Args:
        connection: The history file.
        new_rows: The rows that are to be added.
        records: What was read from the log of each new row, in the same order.

    Returns:
        A list of old rows for each new row. It is empty for a new run, and has more than one row only if the history
        holds the run more than once.

    Raises:
        AlteredRowError: A row or record in the file cannot be read.
    """
    rows_to_replace: list[list[Row]] = [[] for _ in new_rows]  # filled old row by old row, to read each only once
    for old in rows_of(connection):
        a_new_row_is_of_its_series = any(new.series == old.series for new in new_rows)
        old_record = _record_of_row(connection, old) if a_new_row_is_of_its_series else None
        for new, record, replaced in zip(new_rows, records, rows_to_replace, strict=True):
            is_of_same_log = (old.sha256, old.protocol) == (new.sha256, new.protocol)
            # Another log may be of the same run: one that was shorter, because it was added before the run ended. A
            # series has one system, workload, precision and protocol.
            is_of_same_series = old.series == new.series
            is_of_same_run = is_of_same_series and old_record is not None and record.is_of_same_run(old_record)
            if is_of_same_log or is_of_same_run:
                replaced.append(old)
    return rows_to_replace


class PastRun(NamedTuple):
    """A run of the history: its row, and its record with what tells runs and their hosts apart."""

    row: Row
    record: Record


def last_other_runs(
    connection: sqlite3.Connection, rows: Sequence[Row], records: Sequence[Record], *, most: int
) -> list[PastRun]:
    """Return the last earlier runs of a history, without those that are among the new runs.

    Args:
        connection: The history file.
        rows: Earlier runs of the same system, workload, precision and protocol, oldest first.
        records: What was read from the logs of the new runs.
        most: The greatest number of runs to return, such as 10.

    Returns:
        Up to `most` runs, oldest first; empty if there are none.

    Raises:
        AlteredRowError: A stored record that is looked at cannot be read.
    """
    newest_first: list[PastRun] = []
    for row in reversed(rows):
        if len(newest_first) == most:
            break
        stored = _record_of_row(connection, row)
        if not any(record.is_of_same_run(stored) for record in records):
            newest_first.append(PastRun(row, stored))
    return newest_first[::-1]


def _say_the_same(old: Row, row: Row) -> bool:
    """Return whether two rows agree in all but the log's path and date, and the last digits of the rate.

    The path and the date may change if the log is copied, and the last digits of the rate with the version of this
    code (SAME_RATE_WITHIN).
    """
    are_rates_equal = math.isclose(old.images_per_s, row.images_per_s, rel_tol=SAME_RATE_WITHIN)
    return (
        are_rates_equal and dataclasses.replace(old, file=row.file, date=row.date, images_per_s=row.images_per_s) == row
    )


def _write_row(connection: sqlite3.Connection, row: Row, record: Record) -> None:
    """Write a run into the history. It replaces the row of the same digest and protocol, if any.

    Args:
        connection: The history file, open for writing.
        row: The columns of the run.
        record: What was read from the run's log. It is kept as packed JSON.
    """
    packed_record = zlib.compress(json.dumps(jsonable(record)).encode())
    values = [*vars(row).values(), packed_record]
    placeholders = ", ".join("?" * len(values))
    connection.execute(f"INSERT OR REPLACE INTO run VALUES ({placeholders})", values)


def hosts_of_past(runs: Sequence[PastRun]) -> list[str] | None:
    """Return the name of the host that each past run ran on, or None if that is not known for every run.

    Args:
        runs: Earlier runs from the history file. Each has the record of its log, whose header may name the run's nodes.

    Returns:
        One text for each run, in the order of `runs`: "node1", or "node1, node2" (sorted) for a run on several hosts.
        None if any run's log names fewer hosts than the run had nodes, or none at all.
    """
    hosts = []
    for run in runs:
        hosts_of_run = hosts_of_nodes(nodes_of_header(run.record.header), run.record.nodes)
        if hosts_of_run is None:
            return None
        hosts.append(hosts_of_run)
    return hosts


def _record_of_row(connection: sqlite3.Connection, row: Row) -> Record:
    """Return the record of a run in the history, with only what tells runs and their hosts apart.

    A record is what was read from the run's log. The history keeps it as JSON, packed by zlib.

    Args:
        connection: The history file.
        row: The row of the run. It must be in the file.

    Raises:
        AlteredRowError: The record cannot be read.
    """
    key = [row.sha256, row.protocol]
    [packed_record] = connection.execute("SELECT record FROM run WHERE sha256 = ? AND protocol = ?", key).fetchone()
    try:
        stored = json.loads(zlib.decompress(packed_record))
        return Record(
            file=row.file,
            sha256=stored["sha256"],
            lines=stored["lines"],
            segment=None if stored["segment"] is None else tuple(stored["segment"]),
            format=stored["format"],
            nodes=stored["nodes"],
            run_start_s=stored["run_start_s"],
            windows=tuple(_window_of(window) for window in stored["windows"]),
            header=dict(stored["header"]),
        )
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError):
        says = "has a record that cannot be read; delete its row"
        raise AlteredRowError(f"the run of SHA-256 {row.sha256:.12} {says}") from None


def _window_of(stored: Mapping[str, Any]) -> Window:
    """Return a window of a stored run, with only what tells runs apart.

    Args:
        stored: The window (what one printed row of a log covers) as JSON has it.

    Raises:
        KeyError: A field that tells runs apart is missing.
    """
    return Window(
        line=stored["line"],
        step=stored["step"],
        epoch=stored["epoch"],
        printed_rate=stored["printed_rate"],
        printed_step_time_s=stored["printed_step_time_s"],
        end_s=stored["end_s"],
        loss=stored["loss"],  # a text if it was NaN
    )
