"""`python -m scoring history`: runs kept in one SQLite file, their trend, and whether a new result is lower."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime
import html
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
from typing import Any

from runlog import stats
from runlog.text import cell, safe_lines, visible
from scoring.figure import spread
from scoring.figure.compare import SINGLE_RUNS
from scoring.figure.score import Score, add_score_options, protocol_of, score
from scoring.importers import count, jsonable, read_record
from scoring.record import InputError, Record

LEAST_RUNS = 3  # of the past, for a verdict
VERSION = 1  # of the file; one made before versions has 0 and the same form
MOST_IMAGES_PER_S = 1e15
COLUMNS = "sha256, file, date, date_of, revision, system, workload, precision, protocol, images_per_s, unit"
TABLE = f"""CREATE TABLE IF NOT EXISTS run ({COLUMNS}, record BLOB, PRIMARY KEY (sha256, protocol))"""


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    def series(self) -> tuple[str, str, str, str]:
        """What must agree for runs to be repeats in time."""
        return self.system, self.workload, self.precision, self.protocol


def row_of(result: Score, index: int, system: str | None) -> Row:
    """One run of a score as a row; `system` names the machine where the log does not.

    Raises InputError where nothing does: two machines must never share a trend.
    """
    record, run = result.records[index], result.runs[index]
    seconds, date_of = _date_of(record)
    machine = system or record.machine
    if machine is None:
        raise InputError(f"{record.file}: the log does not say its hardware; name the machine by --system")
    source = record.header.get("source")
    row = Row(
        sha256=record.sha256 + (f", lines {record.segment[0]} to {record.segment[1]}" if record.segment else ""),
        file=os.fsencode(Path(record.file).resolve()).decode("utf-8", "backslashreplace"),
        date=datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds"),
        date_of=date_of,
        revision=str(source["commit"]) if isinstance(source, dict) and source.get("commit") else None,
        system=f"{machine}, {record.devices or 'unknown'} devices, {record.framework_name}",
        workload=f"{record.model or 'model unsaid'}, batch {record.global_batch or 'unsaid'}",
        precision=record.math_mode or record.precision or "precision unsaid",
        protocol=f"{result.protocol.name}: {result.protocol.describe()}",
        images_per_s=run.value,
        unit=result.unit,
    )
    texts = {name: value for name, value in vars(row).items() if isinstance(value, str)}
    storable: dict[str, Any] = {name: text.encode("utf-8", "backslashreplace").decode() for name, text in texts.items()}
    return dataclasses.replace(row, **storable)


def _date_of(record: Record) -> tuple[float, str]:
    """Unix time of the run's start, and what says it; stamps in text are local, and count from year 1."""
    first = record.windows[0].end_s if record.windows else None
    text = first - datetime.date(1970, 1, 1).toordinal() * 86_400 if first is not None else None
    for seconds, source in ((record.run_start_s, "run_start"), (first, "first_row"), (text, "first_row")):
        if seconds is not None and 1e9 < seconds < 1e10:
            return seconds, source
    return Path(record.file).stat().st_mtime, "file"


@contextmanager
def opened(path: Path, *, new: bool = False) -> Iterator[sqlite3.Connection]:
    """The history's file; made only where runs are added. Raises InputError for what is no history."""
    if not new and not path.is_file():
        raise InputError(f"{path}: no history there; make it with `history add LOG...`, or give --file")
    address = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode={'rwc' if new else 'ro'}"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection, connection:
            _be_ours(connection, path, new)
            yield connection
    except sqlite3.OperationalError as error:
        busy = "; another process writes to it: try again" if "locked" in str(error) else ""
        raise InputError(f"{path}: not a history that can be used ({error}){busy}") from error
    except sqlite3.Error as error:
        raise InputError(f"{path}: not a history that can be used ({error}); name another by --file") from error


def _be_ours(connection: sqlite3.Connection, path: Path, new: bool) -> None:
    """Make the table in a new file. Raises InputError for a file of something else, or of a later version."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name") if name]
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not tables and version == 0:
        if not new:
            raise InputError(f"{path}: an empty file; make a history of it with `history add LOG...`")
        connection.execute(TABLE)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    columns = [column for _, column, *_ in connection.execute("PRAGMA table_info(run)")]
    if version > VERSION:
        raise InputError(f"{path}: a history of version {version}; this code knows {VERSION}: use a newer one")
    if columns != [*COLUMNS.split(", "), "record"]:
        holds = f"columns {', '.join(columns)}" if columns else f"tables {', '.join(tables)}"
        raise InputError(f"{path}: a SQLite file, but no history ({holds}); name another by --file")


def rows_of(connection: sqlite3.Connection) -> list[Row]:
    """All runs, oldest first. Raises InputError for a row that another program altered."""
    names = COLUMNS.split(", ")
    found = connection.execute(f"SELECT {COLUMNS} FROM run ORDER BY date, sha256").fetchall()
    return [_sound(Row(**dict(zip(names, values, strict=True)))) for values in found]


def _sound(row: Row) -> Row:
    """The row, if its cells are what `add` writes."""
    for name, value in vars(row).items():
        if name == "images_per_s":
            good = isinstance(value, float) and 0 < value < MOST_IMAGES_PER_S
        else:
            good = isinstance(value, str) or (name == "revision" and value is None)
        if not good:
            raise InputError(f"history: the run of SHA-256 {row.sha256!s:.12} has {name} {value!r}; delete its row")
    return row


def add(connection: sqlite3.Connection, result: Score, system: str | None) -> tuple[int, int]:
    """Add a score's runs. Returns how many are new, and how many took the place of a row that said otherwise."""
    known = {(row.sha256, row.protocol): row for row in rows_of(connection)}
    new = corrected = 0
    names = COLUMNS.split(", ")
    for index, record in enumerate(result.records):
        row = row_of(result, index, system)
        old = known.get((row.sha256, row.protocol))
        if old is not None and dataclasses.replace(old, file=row.file, date=row.date) == row:
            continue
        new, corrected = new + (old is None), corrected + (old is not None)
        packed = zlib.compress(json.dumps(jsonable(record.to_json())).encode())
        values = [getattr(row, name) for name in names] + [packed]
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT OR REPLACE INTO run VALUES ({marks})", values)
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
    half = stats.t_quantile(base.freedom, SINGLE_RUNS) * deviation * math.sqrt(1 + 1 / len(past))
    return new[0] / base.value * math.exp(-half), new[0] / base.value * math.exp(half)


def check(rows: Sequence[Row], result: Score, last: int, system: str | None) -> tuple[bool, str]:
    """(whether the new result is lower than the last ones, what is said of it)."""
    new = [row_of(result, index, system) for index in range(len(result.records))]
    for row in new:
        if row.series != new[0].series:
            said = " and ".join(f"{' | '.join(r.series[:3])} in {r.file}" for r in (new[0], row))
            raise InputError(f"the new runs are of two series ({said}); check each by itself")
    known = {row.sha256 for row in new}
    past = [row.images_per_s for row in rows if row.series == new[0].series and row.sha256 not in known][-last:]
    values = [row.images_per_s for row in new]
    said = f"{statistics.fmean(values):.6g} {result.unit} over {len(values)} runs of {', '.join(new[0].series[:3])}"
    bounds = ratio(past, values)
    if bounds is None:
        return (
            False,
            f"cannot be told: {said}; the history holds {len(past)} earlier runs of it, {LEAST_RUNS} are needed",
        )
    verdict = "LOWER" if bounds[1] < 1 else "not shown to be lower"
    share = statistics.fmean(values) / statistics.fmean(past)
    return bounds[1] < 1, (
        f"{verdict}: {said}; {share:.4f} of the last {len(past)}, 95 % {bounds[0]:.4f} to {bounds[1]:.4f}"
    )


# ---------------------------------------------------------------------------------------------------- page

STYLE = "body{font:16px sans-serif;max-width:60rem;margin:auto;padding:1rem}svg{width:100%;height:auto}"
STYLE += "div{overflow-x:auto}td,th{padding:.1rem .6rem;text-align:left;white-space:nowrap}text{font-size:12px}"


PAGE_START = "<!doctype html><meta charset=utf-8><title>History</title>"


def page(rows: Sequence[Row]) -> str:
    """The trend of each series as one static page."""
    parts = [f"{PAGE_START}<style>{STYLE}</style><h1>History</h1>"]
    for series in dict.fromkeys(row.series for row in rows):
        own = [row for row in rows if row.series == series]
        parts.append(f"<h2>{_text(' | '.join(series[:3]))}</h2><p>{_text(series[3])}</p>{_plot(own)}")
        of = {"file": " (file)", "first_row": " (first row)"}
        cells = "".join(
            f"<tr><td>{_text(row.date[:16])}{of.get(row.date_of, '')}<td>{_text((row.revision or '-')[:12])}"
            f"<td>{row.images_per_s:.2f}<td>{_text(row.file)}<td>{_text(row.sha256[:12])}"
            for row in reversed(own)
        )
        head = f"<tr><th>date, UTC<th>commit<th>{_text(own[0].unit)}<th>log<th>SHA-256"
        parts.append(f"<details><summary>{len(own)} runs</summary><div><table>{head}{cells}</table></div></details>")
    return "\n".join(parts)


def _text(value: object) -> str:
    return html.escape(visible(value))


def _plot(rows: Sequence[Row]) -> str:
    """Runs in their order from zero up; a line stands where the commit changes."""
    top = 1.1 * max(row.images_per_s for row in rows)
    step = 580 / max(1, len(rows) - 1)
    drawn = []
    for at, row in enumerate(rows):
        x, y = 60 + at * step, 200 - 190 * row.images_per_s / top
        if at and row.revision != rows[at - 1].revision:
            drawn.append(f'<path d="M{x - step / 2:.1f} 10V200" stroke="#888" stroke-dasharray="3"/>')
        words = _text(f"{row.images_per_s:.2f} {row.unit}, {row.date}, {row.revision or 'no commit'}")
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#1f5fa8"><title>{words}</title></circle>')
    axis = f'<path d="M50 10V200H650" fill="none" stroke="#444"/><text x="0" y="20">{top / 1.1:.5g}</text>'
    dates = ((50, rows[0].date[:10]), (580, rows[-1].date[:10]))
    ends = "".join(f'<text x="{x}" y="218">{_text(date)}</text>' for x, date in dates)
    return f'<svg viewBox="0 0 660 225" role="img">{axis}<text x="35" y="204">0</text>{ends}{"".join(drawn)}</svg>'


# ------------------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring history`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, metavar, text in (
        ("add", "LOG", "keep runs"),
        ("show", "PAGE", "write their trend (default: history.html)"),
        ("check", "LOG", "whether new runs are lower"),
        ("export", "CSV", "write all of them as a table"),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("paths", nargs="*", metavar=metavar)
        action.add_argument("--file", type=Path, default=Path("history.sqlite"), help="default: %(default)s")
        action.add_argument("--last", type=count, default=10, help="check: against so many runs (default: %(default)s)")
        action.add_argument("--system", metavar="NAME", help="the machine, where the logs do not say their hardware")
        add_score_options(action, protocol="window")


def main(args: argparse.Namespace) -> int:
    """Do it. Returns 1 where `check` finds a lower result."""
    if args.action in ("add", "check"):
        return _logs(args)
    if len(args.paths) > 1 or (args.action == "export" and not args.paths):
        raise InputError(f"history {args.action} writes one file: name it")
    with opened(args.file) as connection:
        rows = rows_of(connection)
    out = Path(args.paths[0] if args.paths else "history.html")
    if args.action == "show":
        _keep_others(out, args.file, ".html", PAGE_START)
        out.write_text(page(rows), encoding="utf-8")
    else:
        _keep_others(out, args.file, ".csv", COLUMNS.replace(", ", ","))
        _export(rows, out)
    print(f"{len(rows)} runs in {out}")
    return 0


def _logs(args: argparse.Namespace) -> int:
    if not args.paths:
        raise InputError(f"history {args.action} takes logs of one system")
    protocol = protocol_of(args)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {protocol.name} measures no throughput, of which a history is")
    protocol = dataclasses.replace(protocol, runs=1, over_runs="mean")  # runs come one by one; a trend is of means
    records: list[Record] = [
        read_record(log, format=args.format, devices=args.devices, batch_per_device=args.batch, segment=args.segment)
        for log in args.paths
    ]
    result = score(records, protocol, skip=args.skip)
    if args.action == "add":
        with opened(args.file, new=True) as connection:
            new, corrected = add(connection, result, args.system)
        replaced = f", and {corrected} took the place of what it said" if corrected else ""
        print(f"{new} of {len(records)} runs are new in {args.file}{replaced}")
        return 0
    with opened(args.file) as connection:
        lower, said = check(rows_of(connection), result, args.last, args.system)
    print(safe_lines([said]))
    return int(lower)


def _keep_others(out: Path, history: Path, suffix: str, start: str) -> None:
    """Raises InputError where writing to `out` would cost a file that this command did not write."""
    if out.suffix != suffix:
        raise InputError(f"{out}: name a {suffix} file to write to")
    if not out.exists():
        return
    with out.open("rb") as file:
        ours = file.read(len(start)) == start.encode()
    if not ours or out.samefile(history):
        raise InputError(f"{out}: is there already, and not written by this command; name another file")


def _export(rows: Sequence[Row], out: Path) -> None:
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS.split(", "))
        table.writeheader()
        table.writerows({name: cell(value) for name, value in vars(row).items()} for row in rows)
