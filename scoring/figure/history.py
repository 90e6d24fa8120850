"""`python -m scoring history`: runs kept in one SQLite file, their trend, and whether a new result is lower."""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from runlog.digits import percent, six_digits
from runlog.text import csv_text, safe_lines, visible
from scoring.export import to_parquet
from scoring.figure import spread
from scoring.figure.calibration import smallest_difference
from scoring.figure.history_file import COLUMNS, Row, Series, add, hosts_of_rows, opened, row_of, rows_of
from scoring.figure.levels import hosts_of_runs, in_words, independent_values, levels_of_repetition
from scoring.figure.options import add_score_options, add_system_option, protocol_of
from scoring.figure.score import Score, score
from scoring.importers import count, read_records
from scoring.record import InputError

LEAST_RUNS = 3  # of the past, for a verdict
LOWER = "LOWER"  # the verdict that `check` fails on
PAGE = Path(__file__).with_name("history.html")
PAGE_START = "<!doctype html><meta charset=utf-8><title>History</title>"  # by which its pages are known


def ratio_interval(past: Sequence[float], new: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the ratio of two means, the new runs' over the past runs', as (low, high).

    One new run alone does not tell how far runs lie apart: then the past runs tell it for both. Returns None where
    there are fewer than LEAST_RUNS past values.
    """
    past_mean = spread.mean_of(past)
    if past_mean is None or len(past) < LEAST_RUNS:
        return None
    new_mean = spread.mean_of(new)  # None for a single run
    if new_mean is not None:
        return spread.ratio_interval(past_mean, new_mean)
    relative_sd = spread.relative_sd(past)
    return spread.single_run_interval(new[0] / past_mean.value, relative_sd, past_mean.freedom, (len(past), 1))


def last_of_trend(rows: Sequence[Row], result: Score, last: int, system: str | None) -> list[Row]:
    """Return the `last` rows of the trend that a new result belongs to, oldest first.

    A trend is the rows of one `Series`: same system, workload, precision and protocol. `rows` are all of the history,
    oldest first. The new runs themselves are left out if they were added before; `system` names their machine where
    the logs do not. Raises InputError where the new runs are of two trends, or where nothing names their machine.
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


class Judgement(NamedTuple):
    """The verdict on a new result beside the past ones."""

    is_lower: bool
    text: str  # what is printed: the verdict, the new figure and what it was compared with


def check(past: Sequence[Row], hosts: Sequence[str] | None, result: Score) -> Judgement:
    """Return the verdict whether a new result is lower than the `past` runs of its trend, with a line that says why.

    `hosts` names the host of each past run, and is None where that is not known. Runs on one host lie closer together
    than hosts do: where the past runs or the new ones name two hosts or more, the means of the hosts are compared.
    The verdict is `cannot be told`, and counts as not lower, where the past runs (or their hosts) are too few, or where
    all runs print one and the same figure.
    """
    past_values = [row.images_per_s for row in past]
    new_values = [run.value for run in result.runs]
    independent_past = independent_values(past_values, hosts)
    independent_new = independent_values(new_values, hosts_of_runs(result.records))
    new_mean = statistics.fmean(new_values)
    figure = f"{six_digits(new_mean)} {result.unit} over {in_words(result.levels)}"

    interval = ratio_interval(independent_past, independent_new)
    if interval is None:
        return Judgement(False, f"cannot be told: {figure}; {_too_few_in_words(len(past), len(independent_past))}")
    if spread.has_no_width(interval):
        says = "the figures have too few digits to tell how far runs lie apart"
        return Judgement(False, f"cannot be told: {figure}; {says}")

    share = new_mean / statistics.fmean(past_values)
    low, high = interval
    verdict = _verdict(share, high)
    past_levels = levels_of_repetition(past_values, [], hosts)
    earlier_levels = in_words(past_levels[1:])  # of runs and hosts: the history keeps no windows
    compared = f"{share:.4f} of the last {len(past)}, 95 % {low:.4f} to {high:.4f} ({earlier_levels})"
    return Judgement(verdict == LOWER, f"{verdict}: {figure}; {compared}")


def _too_few_in_words(runs: int, repeats: int) -> str:
    """Return in words that the past does not suffice: too few runs, or enough `runs` on too few hosts.

    `repeats` is the number of independent values that the past runs make: that of the runs, or of their hosts.
    """
    if repeats < LEAST_RUNS <= runs:
        return f"the {runs} earlier runs are of {repeats} hosts, {LEAST_RUNS} are needed"
    return f"the history holds {runs} earlier runs of it, {LEAST_RUNS} are needed"


def _verdict(share: float, high: float) -> str:
    """Return LOWER where a new mean is lower than the past one beyond doubt, and by more than like hosts differ.

    Where it is not, the text returned says which of the two is not so. `share` is the new mean over the past one, and
    `high` the upper end of its 95 % interval.
    """
    if high >= 1:
        return "not shown to be lower"
    if -math.log(share) < smallest_difference():
        return f"not called lower: like hosts differ by up to {percent(smallest_difference())}"
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
    return _write_runs(args)


def _write_runs(args: argparse.Namespace) -> int:
    """Write all runs of the history to one file, as a page (`show`) or as a table (`export`). Returns 0.

    The file is the argument where other actions have the logs; a page needs none, and is then history.html. A table is
    Parquet or CSV, by the file's suffix. Raises InputError for two files, for a table without one, for a file that
    something else wrote, and for a Parquet file that is there already.
    """
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
    """Return the score of the logs that the options name, with the throughput of each run.

    However many runs the protocol asks for, one is enough here: a history keeps single runs, and compares their means.
    Raises InputError where no logs are given, or where the protocol does not measure throughput.
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
