"""`python -m scoring history`: runs kept in one SQLite file, their trend, and whether a new result is lower."""

import argparse
import dataclasses
import datetime
import json
import math
import os
import sqlite3
import statistics
import urllib.parse
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import jinja2

from runlog.text import csv_text, safe_lines, visible
from scoring.export import to_parquet
from scoring.figure import spread
from scoring.figure.calibration import smallest_difference
from scoring.figure.levels import hosts_of_nodes, hosts_of_runs, in_words, independent_values, levels
from scoring.figure.run_start import start_of
from scoring.figure.score import Score, add_score_options, add_system_option, protocol_of, score
from scoring.importers import count, jsonable, read_records
from scoring.record import InputError, nodes_of_header, section

LEAST_RUNS = 3  # of the past, for a verdict
VERSION = 1  # of the file; one made before versions has 0 and the same form
MOST_IMAGES_PER_S = 1e15
LOWER = "LOWER"  # the verdict that `check` fails on
PAGE = Path(__file__).with_name("history.html")
PAGE_START = "<!doctype html><meta charset=utf-8><title>History</title>"  # by which its pages are known


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

    sha256: str  # of the log, with the run's lines where it holds several
    file: str
    date: str  # UTC
    date_of: str  # "run_start", "first_row", or "file" where the log has no calendar
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


class Added(NamedTuple):
    """The numbers of runs that were written into the history."""

    new: int
    corrected: int  # those whose row said otherwise before


COLUMNS = [field.name for field in dataclasses.fields(Row)]
TABLE = f"CREATE TABLE IF NOT EXISTS run ({', '.join(COLUMNS)}, record BLOB, PRIMARY KEY (sha256, protocol))"


def row_of(result: Score, index: int, system: str | None) -> Row:
    """Return the history's row of one run of a score, the one at `index`.

    `system` names the machine where the log does not. Raises InputError where neither does: runs of two machines must
    never share a trend.
    """
    record = result.records[index]
    started = start_of(record)
    date = datetime.datetime.fromtimestamp(started.seconds, datetime.timezone.utc)
    machine = system or record.machine
    if machine is None:
        raise InputError(f"{record.file}: the log does not say its hardware; name the machine by --system")
    commit = section(record, "source").get("commit")
    segment = ""
    if record.segment:
        first_line, last_line = record.segment
        segment = f", lines {first_line} to {last_line}"
    return Row(
        sha256=record.sha256 + segment,
        file=os.fsencode(Path(record.file).resolve()).decode("utf-8", "backslashreplace"),
        date=date.isoformat(timespec="seconds"),
        date_of=started.source,
        revision=_storable(str(commit)) if commit else None,
        system=_storable(f"{machine}, {record.devices or 'unknown'} devices, {record.framework_name}"),
        workload=_storable(f"{record.model or 'model unsaid'}, batch {record.global_batch or 'unsaid'}"),
        precision=_storable(record.math_mode or record.precision or "precision unsaid"),
        protocol=_storable(f"{result.protocol.name}: {result.protocol.describe()}"),
        images_per_s=result.runs[index].value,
        unit=result.unit,
    )


def _storable(text: str) -> str:
    """Return a log's text without what UTF-8 cannot hold, which SQLite refuses: it stands there as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextmanager
def opened(path: Path, *, new: bool = False) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the history's file; what was written is kept if no error ends it.

    With `new` the file is made if it is not there, and may be written to. Else it is opened for reading. Raises
    InputError for a file that is not there, is no history, or is locked by another process.
    """
    if not new and not path.is_file():
        raise InputError(f"{path}: no history there; make it with `history add LOG...`, or give --file")
    mode = "rwc" if new else "ro"
    address = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode={mode}"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection, connection:
            if new:
                _make_table(connection)
            _refuse_other_files(connection, path)
            yield connection
    except sqlite3.Error as error:
        fix = "another process writes to it: try again" if "locked" in str(error) else "name another by --file"
        raise InputError(f"{path}: not a history that can be used ({error}); {fix}") from error


def _make_table(connection: sqlite3.Connection) -> None:
    """Make the history's table in a file that is still empty."""
    if not _tables(connection) and _version(connection) == 0:
        connection.execute(TABLE)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _refuse_other_files(connection: sqlite3.Connection, path: Path) -> None:
    """Raise InputError for a SQLite file that is no history, or that a later version of this code wrote.

    A history has a table `run`, whose columns are the fields of Row and then `record`, which holds the whole record.
    """
    version = _version(connection)
    if version > VERSION:
        raise InputError(f"{path}: a history of version {version}; this code knows {VERSION}: use a newer one")

    columns = _columns_of_run(connection)
    if columns == [*COLUMNS, "record"]:
        return
    holds = f"columns {', '.join(columns)}"
    if not columns:
        holds = f"tables {', '.join(_tables(connection)) or 'none'}"
    raise InputError(f"{path}: a SQLite file, but no history ({holds}); name another by --file")


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]


def _columns_of_run(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the columns of the table `run`; none where there is no such table."""
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('run')")]


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def rows_of(connection: sqlite3.Connection) -> list[Row]:
    """Return all runs of the history, oldest first. Raises InputError for a row that another program altered."""
    found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM run ORDER BY date, sha256")
    rows = [Row(*values) for values in found]
    for row in rows:
        for name, value in vars(row).items():
            if not _is_storable(name, value):
                raise InputError(f"history: the run of SHA-256 {row.sha256!s:.12} has {name} {value!r}; delete its row")
    return rows


def _is_storable(column: str, value: object) -> bool:
    """Tell whether a value is one that `add` writes into a column: SQLite itself takes any type."""
    if column == "images_per_s":
        return isinstance(value, float) and 0 < value < MOST_IMAGES_PER_S
    if column == "revision" and value is None:
        return True
    return isinstance(value, str)


def add(connection: sqlite3.Connection, result: Score, system: str | None) -> Added:
    """Add the runs of a score to the history, and return how many rows are new or changed.

    A run is known by its log's digest and the protocol. The row of a known run is replaced where what it says differs,
    but for the log's place and the date, which may be that of the file.
    """
    rows_there = {(row.sha256, row.protocol): row for row in rows_of(connection)}
    new = 0
    corrected = 0
    for index, record in enumerate(result.records):
        row = row_of(result, index, system)
        old = rows_there.get((row.sha256, row.protocol))
        if old is None:
            new += 1
        elif dataclasses.replace(old, file=row.file, date=row.date) == row:
            continue
        else:
            corrected += 1
        packed_record = zlib.compress(json.dumps(jsonable(record)).encode())
        values = [*vars(row).values(), packed_record]
        places = ", ".join("?" * len(values))
        connection.execute(f"INSERT OR REPLACE INTO run VALUES ({places})", values)
    return Added(new, corrected)


def ratio(past: Sequence[float], new: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the new mean over the past one, as (low, high).

    One new run alone does not tell how far runs lie apart: then the past runs tell it for both. Returns None where
    there are fewer than LEAST_RUNS past values.
    """
    base = spread.mean_of(past)
    if base is None or len(past) < LEAST_RUNS:
        return None
    other = spread.mean_of(new)
    if other is not None:
        return spread.ratio_interval(base, other)
    deviation = base.error * math.sqrt(len(past)) / base.value
    return spread.single_run_interval(new[0] / base.value, deviation, base.freedom, (len(past), 1))


def last_of_trend(rows: Sequence[Row], result: Score, last: int, system: str | None) -> list[Row]:
    """Return the `last` rows of the trend that a new result belongs to, oldest first.

    `rows` are all of the history, oldest first. The new runs themselves are left out if they were added before. Raises
    InputError where the new runs are of two trends.
    """
    new_rows = [row_of(result, index, system) for index in range(len(result.records))]
    series = new_rows[0].series
    for row in new_rows:
        if row.series != series:
            both = f"{series} in {new_rows[0].file} and {row.series} in {row.file}"
            raise InputError(f"the new runs are of two series ({both}); check each by itself")
    new_digests = {row.sha256 for row in new_rows}
    past = [row for row in rows if row.series == series and row.sha256 not in new_digests]
    return past[-last:]


def hosts_of_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> list[str] | None:
    """Return the host of each row, as the stored record of its run names it; None where one of them names none.

    Raises InputError for a record that another program altered.
    """
    hosts = []
    for row in rows:
        key = [row.sha256, row.protocol]
        (packed,) = connection.execute("SELECT record FROM run WHERE sha256 = ? AND protocol = ?", key).fetchone()
        try:
            record = json.loads(zlib.decompress(packed))
            host = hosts_of_nodes(nodes_of_header(record["header"]), record["nodes"])
        except (zlib.error, ValueError, TypeError, KeyError, AttributeError):
            says = "has a record that cannot be read; delete its row"
            raise InputError(f"history: the run of SHA-256 {row.sha256:.12} {says}") from None
        if host is None:
            return None
        hosts.append(host)
    return hosts


class Judgement(NamedTuple):
    """The verdict on a new result beside the past ones."""

    is_lower: bool
    text: str  # what is printed: the verdict, the new figure and what it was compared with


def check(past: Sequence[Row], hosts: Sequence[str] | None, result: Score) -> Judgement:
    """Return the verdict whether a new result is lower than the `past` runs of its trend, with a line that says why.

    `hosts` names the host of each past run, and is None where that is not known. Runs on one host lie closer together
    than hosts do: where the past runs or the new ones name two hosts or more, the means of the hosts are compared.
    """
    past_values = [row.images_per_s for row in past]
    new_values = [run.value for run in result.runs]
    past_repeats = independent_values(past_values, hosts)
    new_repeats = independent_values(new_values, hosts_of_runs(result.records))
    new_mean = statistics.fmean(new_values)
    figure = f"{new_mean:.6g} {result.unit} over {in_words(result.levels)}"

    interval = ratio(past_repeats, new_repeats)
    if interval is None:
        return Judgement(False, f"cannot be told: {figure}; {_too_few(len(past), len(past_repeats))}")
    if spread.has_no_width(interval):
        return Judgement(
            False, f"cannot be told: {figure}; the figures have too few digits to tell how far runs lie apart"
        )

    share = new_mean / statistics.fmean(past_values)
    low, high = interval
    verdict = _verdict(share, high)
    earlier_levels = in_words(levels(past_values, [], hosts)[1:])  # runs and hosts; the windows are not kept
    compared = f"{share:.4f} of the last {len(past)}, 95 % {low:.4f} to {high:.4f} ({earlier_levels})"
    return Judgement(verdict == LOWER, f"{verdict}: {figure}; {compared}")


def _too_few(runs: int, repeats: int) -> str:
    """Return in words that the past does not suffice: too few runs, or enough `runs` on too few hosts.

    `repeats` is the number of independent values that the past runs make: that of the runs, or of their hosts.
    """
    if repeats < LEAST_RUNS <= runs:
        return f"the {runs} earlier runs are of {repeats} hosts, {LEAST_RUNS} are needed"
    return f"the history holds {runs} earlier runs of it, {LEAST_RUNS} are needed"


def _verdict(share: float, high: float) -> str:
    """Return LOWER where a new mean is lower than the past one beyond doubt and by more than like hosts differ.

    `share` is the new mean over the past one, `high` the upper end of its 95 % interval. Else the text says which of
    the two is not so.
    """
    if high >= 1:
        return "not shown to be lower"
    if -math.log(share) < smallest_difference():
        return f"not called lower: like hosts differ by up to {smallest_difference():.1%}"
    return LOWER


def page(rows: Sequence[Row]) -> str:
    """Return the HTML page of all trends: each series' runs from zero up, and a line where the commit changes."""
    environment = jinja2.Environment(
        autoescape=True, finalize=visible, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    trends: dict[Series, list[Row]] = {}
    for row in rows:
        trends.setdefault(row.series, []).append(row)
    return environment.from_string(PAGE.read_text("utf-8")).render(trends=trends)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, metavar, text in (
        ("add", "LOG", "keep runs"),
        ("show", "PAGE", "write their trend (default: history.html)"),
        ("check", "LOG", "whether new runs are lower"),
        ("export", "FILE", "write all of them as a table: .csv, or .parquet with the extra [export]"),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("logs", nargs="*", metavar=metavar)
        action.add_argument("--file", type=Path, default=Path("history.sqlite"), help="default: %(default)s")
        action.add_argument("--last", type=count, default=10, help="check: against so many runs (default: %(default)s)")
        add_system_option(action)
        add_score_options(action, protocol="window")


def main(args: argparse.Namespace) -> int:
    """Run one action of `history`: add, check, show or export. Returns 1 where `check` finds a lower result, else 0."""
    if args.action == "add":
        return _add_runs(args)
    if args.action == "check":
        return _check_runs(args)
    if len(args.logs) > 1 or (args.action == "export" and not args.logs):
        raise InputError(f"history {args.action} writes one file: name it")
    with opened(args.file) as connection:
        rows = rows_of(connection)
    out = Path(args.logs[0] if args.logs else "history.html")
    if args.action == "show":
        _refuse_to_overwrite(out, ".html", PAGE_START)
        out.write_text(page(rows), encoding="utf-8")
    elif out.suffix == ".parquet":
        to_parquet([vars(row) for row in rows], out)
    else:
        _refuse_to_overwrite(out, ".csv", ",".join(COLUMNS))
        out.write_text(csv_text(COLUMNS, map(vars, rows)), encoding="utf-8", newline="")
    print(f"{len(rows)} runs in {out}")
    return 0


def _score_of_runs(args: argparse.Namespace) -> Score:
    """Return the score of the logs, with the throughput of each run; a trend is of means of single runs.

    Raises InputError where no logs are given, or where the protocol measures something else.
    """
    if not args.logs:
        raise InputError(f"history {args.action} takes logs of one system")
    protocol = protocol_of(args)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {protocol.name} measures no throughput, of which a history is")
    protocol = dataclasses.replace(protocol, runs=1, over_runs="mean")
    return score(read_records(args), protocol, skip=args.skip, system=args.system)


def _add_runs(args: argparse.Namespace) -> int:
    """Add the runs of the logs to the history, and print how many are new. Returns 0."""
    result = _score_of_runs(args)
    with opened(args.file, new=True) as connection:
        added = add(connection, result, args.system)
    replaced = ""
    if added.corrected:
        replaced = f", and {added.corrected} took the place of what it said"
    print(f"{added.new} of {len(result.records)} runs are new in {args.file}{replaced}")
    return 0


def _check_runs(args: argparse.Namespace) -> int:
    """Compare the runs of the logs with the last ones of their trend, and print the verdict. Returns 1 where lower."""
    result = _score_of_runs(args)
    with opened(args.file) as connection:
        past = last_of_trend(rows_of(connection), result, args.last, args.system)
        hosts = hosts_of_rows(connection, past) if past else None
    judgement = check(past, hosts, result)
    print(safe_lines([judgement.text]))
    return int(judgement.is_lower)


def _refuse_to_overwrite(out: Path, suffix: str, start: str) -> None:
    """Raise InputError where writing to `out` would cost a file that this command did not write.

    Its own files have this suffix, and begin with the text `start`.
    """
    if out.suffix != suffix:
        raise InputError(f"{out}: name a {suffix} file to write to")
    if out.exists() and not out.read_bytes().startswith(start.encode()):
        raise InputError(f"{out}: is there already, and not written by this command; name another file")
