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

import jinja2

from runlog.text import csv_text, safe_lines, visible
from scoring.export import to_parquet
from scoring.figure import spread
from scoring.figure.calibration import smallest_difference
from scoring.figure.levels import hosts_of_nodes, hosts_of_runs, in_words, independent_values, levels
from scoring.figure.score import Score, add_score_options, add_system_option, protocol_of, score
from scoring.importers import count, jsonable, read_records
from scoring.record import InputError, Record, nodes_of_header, section

LEAST_RUNS = 3  # of the past, for a verdict
VERSION = 1  # of the file; one made before versions has 0 and the same form
MOST_IMAGES_PER_S = 1e15
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
        """The facts that must agree for runs to be repeats in time."""
        return Series(system=self.system, workload=self.workload, precision=self.precision, protocol=self.protocol)


COLUMNS = [field.name for field in dataclasses.fields(Row)]
TABLE = f"CREATE TABLE IF NOT EXISTS run ({', '.join(COLUMNS)}, record BLOB, PRIMARY KEY (sha256, protocol))"


def row_of(result: Score, index: int, system: str | None) -> Row:
    """One run of a score as a row; `system` names the machine where the log does not.

    Raises InputError where nothing does: two machines must never share a trend.
    """
    record = result.records[index]
    seconds, date_of = _date_of(record)
    machine = system or record.machine
    if machine is None:
        raise InputError(f"{record.file}: the log does not say its hardware; name the machine by --system")
    commit = section(record, "source").get("commit")
    segment = ""
    if record.segment:
        segment = f", lines {record.segment[0]} to {record.segment[1]}"
    texts = {
        "sha256": record.sha256 + segment,
        "file": os.fsencode(Path(record.file).resolve()).decode("utf-8", "backslashreplace"),
        "date": datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds"),
        "date_of": date_of,
        "revision": str(commit) if commit else None,
        "system": f"{machine}, {record.devices or 'unknown'} devices, {record.framework_name}",
        "workload": f"{record.model or 'model unsaid'}, batch {record.global_batch or 'unsaid'}",
        "precision": record.math_mode or record.precision or "precision unsaid",
        "protocol": f"{result.protocol.name}: {result.protocol.describe()}",
        "unit": result.unit,
    }
    storable = {}
    for name, text in texts.items():
        storable[name] = text and text.encode("utf-8", "backslashreplace").decode()
    return Row(images_per_s=result.runs[index].value, **storable)  # type: ignore[arg-type]


def _date_of(record: Record) -> tuple[float, str]:
    """Unix time of the run's start, and what says it; stamps in text are local, and count from year 1."""
    candidates = [(record.run_start_s, "run_start")]
    if record.windows and record.windows[0].end_s is not None:
        stamp = record.windows[0].end_s
        days_before_1970 = datetime.date(1970, 1, 1).toordinal()
        candidates += [(stamp, "first_row"), (stamp - days_before_1970 * 86_400, "first_row")]
    for seconds, source in candidates:
        if seconds is not None and 1e9 < seconds < 1e10:
            return seconds, source
    return Path(record.file).stat().st_mtime, "file"


@contextmanager
def opened(path: Path, *, new: bool = False) -> Iterator[sqlite3.Connection]:
    """The history's file; made only where runs are added. Raises InputError for what is no history."""
    if not new and not path.is_file():
        raise InputError(f"{path}: no history there; make it with `history add LOG...`, or give --file")
    mode = "rwc" if new else "ro"
    address = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode={mode}"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection, connection:
            _be_ours(connection, path, new)
            yield connection
    except sqlite3.Error as error:
        fix = "another process writes to it: try again" if "locked" in str(error) else "name another by --file"
        raise InputError(f"{path}: not a history that can be used ({error}); {fix}") from error


def _be_ours(connection: sqlite3.Connection, path: Path, new: bool) -> None:
    """Make the table in a new file. Raises InputError for a file of something else, or of a later version."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if new and not tables and version == 0:
        connection.execute(TABLE)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    columns = [column for _, column, *_ in connection.execute("PRAGMA table_info(run)")]
    if version > VERSION:
        raise InputError(f"{path}: a history of version {version}; this code knows {VERSION}: use a newer one")
    if columns != [*COLUMNS, "record"]:
        holds = f"columns {', '.join(columns)}" if columns else f"tables {', '.join(tables) or 'none'}"
        raise InputError(f"{path}: a SQLite file, but no history ({holds}); name another by --file")


def rows_of(connection: sqlite3.Connection) -> list[Row]:
    """All runs, oldest first. Raises InputError for a row that another program altered."""
    found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM run ORDER BY date, sha256")
    rows = [Row(*values) for values in found]
    for row in rows:
        for name, value in vars(row).items():
            good = isinstance(value, str) or (name == "revision" and value is None)
            if name == "images_per_s":
                good = isinstance(value, float) and 0 < value < MOST_IMAGES_PER_S
            if not good:
                raise InputError(f"history: the run of SHA-256 {row.sha256!s:.12} has {name} {value!r}; delete its row")
    return rows


def add(connection: sqlite3.Connection, result: Score, system: str | None) -> tuple[int, int]:
    """Add a score's runs. Returns how many are new, and how many took the place of a row that said otherwise."""
    known = {(row.sha256, row.protocol): row for row in rows_of(connection)}
    new = 0
    corrected = 0
    for index, record in enumerate(result.records):
        row = row_of(result, index, system)
        old = known.get((row.sha256, row.protocol))
        if old is None:
            new += 1
        elif dataclasses.replace(old, file=row.file, date=row.date) == row:
            continue
        else:
            corrected += 1
        values = [*vars(row).values(), zlib.compress(json.dumps(jsonable(record)).encode())]
        places = ", ".join("?" * len(values))
        connection.execute(f"INSERT OR REPLACE INTO run VALUES ({places})", values)
    return new, corrected


def ratio(past: Sequence[float], new: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the new mean over the past one; None where too few runs say how far they lie apart."""
    base = spread.mean_of(past)
    if base is None or len(past) < LEAST_RUNS:
        return None
    other = spread.mean_of(new)
    if other is not None:
        return spread.ratio_interval(base, other)
    deviation = base.error * math.sqrt(len(past)) / base.value
    return spread.single_run_interval(new[0] / base.value, deviation, base.freedom, (len(past), 1))


def last_of_trend(rows: Sequence[Row], result: Score, last: int, system: str | None) -> list[Row]:
    """The `last` rows of the trend of a new result, oldest first, without the new runs themselves.

    Raises InputError where the new runs are of two trends.
    """
    new = [row_of(result, index, system) for index in range(len(result.records))]
    series = new[0].series
    for row in new:
        if row.series != series:
            both = f"{series} in {new[0].file} and {row.series} in {row.file}"
            raise InputError(f"the new runs are of two series ({both}); check each by itself")
    known = {row.sha256 for row in new}
    past = [row for row in rows if row.series == series and row.sha256 not in known]
    return past[-last:]


def hosts_of_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> list[str] | None:
    """The host that the record of each row names; None where one of them names none.

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


def check(past: Sequence[Row], hosts: Sequence[str] | None, result: Score) -> tuple[bool, str]:
    """Tell whether a new result is lower than the `past` runs of its trend, and what is said of it.

    `hosts` names the host of each past run, None where that is not known. Where past runs or new ones name two hosts or
    more, these are the repeats. What like hosts may differ by is not called lower.
    """
    past_values = [row.images_per_s for row in past]
    new_values = [run.value for run in result.runs]
    past_repeats = independent_values(past_values, hosts)
    new_repeats = independent_values(new_values, hosts_of_runs(result.records))
    mean = statistics.fmean(new_values)
    figure = f"{mean:.6g} {result.unit} over {in_words(result.levels)}"
    bounds = ratio(past_repeats, new_repeats)
    if bounds is None:
        few = f"the history holds {len(past)} earlier runs of it, {LEAST_RUNS} are needed"
        if len(past_repeats) < LEAST_RUNS <= len(past):
            few = f"the {len(past)} earlier runs are of {len(past_repeats)} hosts, {LEAST_RUNS} are needed"
        return False, f"cannot be told: {figure}; {few}"

    share = mean / statistics.fmean(past_values)
    in_doubt = bounds[1] >= 1
    matters = -math.log(share) >= smallest_difference()
    verdict = "LOWER" if matters and not in_doubt else "not shown to be lower"
    if not matters and not in_doubt:
        verdict = f"not called lower: like hosts differ by up to {smallest_difference():.1%}"
    earlier = in_words(levels(past_values, [], hosts)[1:])
    compared = f"{share:.4f} of the last {len(past)}, 95 % {bounds[0]:.4f} to {bounds[1]:.4f} ({earlier})"
    return verdict == "LOWER", f"{verdict}: {figure}; {compared}"


def page(rows: Sequence[Row]) -> str:
    """The trend of each series as one static page: runs from zero up, and a line where the commit changes."""
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
    """Do it. Returns 1 where `check` finds a lower result."""
    if args.action in ("add", "check"):
        return _logs(args)
    if len(args.logs) > 1 or (args.action == "export" and not args.logs):
        raise InputError(f"history {args.action} writes one file: name it")
    with opened(args.file) as connection:
        rows = rows_of(connection)
    out = Path(args.logs[0] if args.logs else "history.html")
    if args.action == "show":
        _keep_others(out, ".html", PAGE_START)
        out.write_text(page(rows), encoding="utf-8")
    elif out.suffix == ".parquet":
        to_parquet([vars(row) for row in rows], out)
    else:
        _keep_others(out, ".csv", ",".join(COLUMNS))
        out.write_text(csv_text(COLUMNS, map(vars, rows)), encoding="utf-8", newline="")
    print(f"{len(rows)} runs in {out}")
    return 0


def _logs(args: argparse.Namespace) -> int:
    if not args.logs:
        raise InputError(f"history {args.action} takes logs of one system")
    protocol = protocol_of(args)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {protocol.name} measures no throughput, of which a history is")
    protocol = dataclasses.replace(protocol, runs=1, over_runs="mean")  # runs come one by one; a trend is of means
    result = score(read_records(args), protocol, skip=args.skip, system=args.system)
    if args.action == "add":
        with opened(args.file, new=True) as connection:
            new, corrected = add(connection, result, args.system)
        replaced = f", and {corrected} took the place of what it said" if corrected else ""
        print(f"{new} of {len(result.records)} runs are new in {args.file}{replaced}")
        return 0
    with opened(args.file) as connection:
        past = last_of_trend(rows_of(connection), result, args.last, args.system)
        hosts = hosts_of_rows(connection, past) if past else None
    lower, text = check(past, hosts, result)
    print(safe_lines([text]))
    return int(lower)


def _keep_others(out: Path, suffix: str, start: str) -> None:
    """Raises InputError where writing to `out` would cost a file that this command did not write."""
    if out.suffix != suffix:
        raise InputError(f"{out}: name a {suffix} file to write to")
    if out.exists() and not out.read_bytes().startswith(start.encode()):
        raise InputError(f"{out}: is there already, and not written by this command; name another file")
