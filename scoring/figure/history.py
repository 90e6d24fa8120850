"""`python -m scoring history`: runs kept in one SQLite file, their trend, and whether a new result is lower."""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from runlog.digits import counted, percent, six_digits
from runlog.text import csv_text, safe_lines, visible
from scoring.export import to_parquet
from scoring.figure import spread
from scoring.figure.calibration import smallest_difference
from scoring.figure.history_file import (
    COLUMNS,
    Row,
    Series,
    add,
    hosts_of_past,
    last_other_runs,
    opened,
    row_of,
    rows_of,
)
from scoring.figure.levels import hosts_of_runs, in_words, levels_of_repetition, runs_or_host_means
from scoring.figure.mean_ratio import Runs, interval_of_means
from scoring.figure.options import add_score_options, add_system_option, protocol_of
from scoring.figure.score import Score, score
from scoring.importers import count, read_records
from scoring.record import InputError

MIN_RUNS = 3  # of the past, for a verdict
LOWER = "LOWER"  # the verdict that `check` fails on
PAGE = Path(__file__).with_name("history.html")
PAGE_START = "<!doctype html><meta charset=utf-8><title>History</title>"  # by which its pages are known


def interval_of_new_to_past(past: Runs, new: Runs) -> tuple[float, float] | None:
    """Return the 95 % interval of the ratio mean(new) / mean(past) of the throughputs of two sets of runs.

    Args:
        past: The throughputs of earlier runs, and the host of each if known.
        new: The throughputs of the new runs of the same system, and the host of each if known. At least one.

    Returns:
        The bounds (low, high); None if the past runs are fewer than 3 (MIN_RUNS), or of only 2 hosts.
    """
    past_values = runs_or_host_means(past.values, past.hosts)
    past_mean = past_values.mean_of_runs
    if past_mean is None or len(past_values.values) < MIN_RUNS:
        return None
    if len(new.values) > 1:
        return interval_of_means(past, new, are_of_one_system=True).bounds

    # A single new run shows no spread: the width comes from the past alone.
    [new_value] = new.values
    return spread.single_value_interval(
        ratio=new_value / past_mean.value,
        relative_sd=spread.relative_sd(past_values.values),
        freedom=past_mean.freedom,
        count=past_values.effective_count,  # how many past values; less if they are means of unequal numbers of runs
        other_count=1,  # the new run
    )


def trend_of(rows: Sequence[Row], result: Score, system: str | None) -> list[Row]:
    """Return the runs of a history that a new result can be compared with: the same system, work and protocol.

    Args:
        rows: All runs of the history, oldest first.
        result: The score of the new runs.
        system: Name of the machine, as the user gave it; None takes it from the logs of the new runs.

    Returns:
        The rows of the same system, workload, precision and protocol, in the order of `rows`; empty if there are none.
        The new runs may be among them.

    Raises:
        InputError: The new runs differ in these facts, or name no machine.
    """
    series = _series_of_all([row_of(result, index, system) for index in range(len(result.records))])
    return [row for row in rows if row.series == series]


def _series_of_all(new_rows: Sequence[Row]) -> Series:
    """Return the facts that all new runs agree in: system, workload, precision and protocol.

    Args:
        new_rows: The new runs as rows of the history, at least one.

    Raises:
        InputError: Two runs differ in one of these facts.
    """
    first = new_rows[0]
    for row in new_rows:
        if row.series != first.series:
            both = f"{first.series} in {first.file} and {row.series} in {row.file}"
            raise InputError(f"the new runs are of two series ({both}); check each by itself")
    return first.series


class Judgement(NamedTuple):
    """The verdict on a new result, compared with the past ones."""

    is_lower: bool
    text: str  # what is printed: the verdict, the new figure and what it was compared with


def check(past: Sequence[Row], hosts: Sequence[str] | None, result: Score) -> Judgement:
    """Return whether the throughput of new runs is lower than that of the past runs, with a line for the user.

    Args:
        past: The earlier runs of the same system, work and protocol, in images/s.
        hosts: Name of the host of each past run; None if not known.
        result: The score of the new runs.
    """
    past_runs = Runs([row.images_per_s for row in past], hosts)
    new_runs = Runs([run.value for run in result.runs], hosts_of_runs(result.records))
    new_mean = statistics.fmean(new_runs.values)
    new_figure = f"{six_digits(new_mean)} {result.unit} over {in_words(result.levels)}"
    interval = interval_of_new_to_past(past_runs, new_runs)  # of the ratio mean(new runs) / mean(past runs)
    if interval is None:
        return _cannot_be_told(new_figure, _too_few_in_words(past_runs))
    if spread.has_no_width(interval):
        return _cannot_be_told(new_figure, "the figures have too few digits to tell how far runs lie apart")

    ratio = new_mean / statistics.fmean(past_runs.values)
    low, high = interval
    verdict = _verdict(ratio, high)  # LOWER, or why the throughput is not called lower
    counted_past = _past_levels_in_words(past_runs)
    compared = f"{ratio:.4f} of the last {len(past)}, 95 % {low:.4f} to {high:.4f} ({counted_past})"
    return Judgement(is_lower=verdict == LOWER, text=f"{verdict}: {new_figure}; {compared}")


def _cannot_be_told(new_figure: str, reason: str) -> Judgement:
    """Return the verdict on a new result that cannot be compared with the past. It is not called lower."""
    return Judgement(is_lower=False, text=f"cannot be told: {new_figure}; {reason}")


def _past_levels_in_words(past: Runs) -> str:
    """Return how many past runs and hosts there are, and how far they vary: "10 runs +-0.31%; one host".

    Args:
        past: The throughputs of the past runs, and the host of each if known.
    """
    no_rates: list[Sequence[float]] = []  # the history keeps no windows
    levels = levels_of_repetition(past.values, no_rates, past.hosts)
    return in_words([levels.run, levels.host])


def _too_few_in_words(past: Runs) -> str:
    """Return why the past runs are too few for a verdict, such as "the 4 earlier runs are of 2 hosts, 3 are needed".

    Hosts are counted if there are several and some host ran more than once, otherwise runs.

    Args:
        past: The throughputs of the past runs, and the host of each if known. `interval_of_new_to_past` has found them
            too few.
    """
    runs = len(past.values)
    past_values = runs_or_host_means(past.values, past.hosts)
    if past_values.are_hosts:
        return f"the {runs} earlier runs are of {len(past_values.values)} hosts, {MIN_RUNS} are needed"
    # "of it": of the system, whose new figure stands before this text in the printed line
    return f"the history holds {counted(runs, 'earlier run')} of it, {MIN_RUNS} are needed"


def _verdict(ratio: float, high: float) -> str:
    """Return in words whether a new throughput is lower than the past one.

    It is LOWER if the whole interval of the ratio is below 1, and if the throughput is lower by at least as much as
    hosts of one kind (like hosts) differ (`smallest_difference`).

    Args:
        ratio: The mean of the new runs / the mean of the past runs.
        high: The upper bound of the 95 % interval of this ratio.
    """
    if high >= 1:
        return "not shown to be lower"
    lower_by = -math.log(ratio)  # about 1 - ratio
    if lower_by < smallest_difference():
        return f"not called lower: like hosts differ by up to {percent(smallest_difference())}"
    return LOWER


def page(rows: Sequence[Row]) -> str:
    """Return the HTML page of a history, with a chart of the throughput for each series of repeated runs.

    A series is made of the runs that agree in system, workload, precision and protocol.

    Args:
        rows: All runs of the history, oldest first.
    """
    # `finalize`: each value passes `visible`, which escapes what does not print, before it is escaped for HTML.
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
        if name in ("add", "check"):  # `show` and `export` write every run as it was added
            add_system_option(action)
            add_score_options(action, protocol="window")
        if name == "check":
            action.add_argument("--last", type=count, default=10, help="against so many runs (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Run one action of the command `history`: add, check, show or export.

    Args:
        args: The parsed options of `add_arguments`. `action` is the action.

    Returns:
        The exit status: 1 if `check` finds a lower result, else 0.

    Raises:
        InputError: The logs, the history or the output file cannot be used.
    """
    if args.action == "add":
        return _add_runs(args)
    if args.action == "check":
        return _check_runs(args)
    return _write_history(args)


def _write_history(args: argparse.Namespace) -> int:
    """Write all runs of the history to one file: as an HTML page (`show`), or as a table (`export`).

    Args:
        args: The parsed command line: `action` is "show" or "export", `file` the history, and `logs` the name of the
            output file. A page without a name is written to history.html.

    Returns:
        The exit status, which is 0.

    Raises:
        InputError: There is no history that can be used, several output files are named, or none for a table. Also if
            the output file has a wrong suffix, or exists and must not be replaced.
    """
    output = _output_file(args)
    with opened(args.file) as connection:
        rows = rows_of(connection)
    if args.action == "show":
        _refuse_to_overwrite(output, [".html"], PAGE_START)
        output.write_text(page(rows), encoding="utf-8")
    else:
        _write_table(rows, output)
    print(f"{counted(len(rows), 'run')} in {output}")
    return 0


def _output_file(args: argparse.Namespace) -> Path:
    """Return the file that `show` or `export` is to write.

    Args:
        args: The parsed command line. `logs` has the words after the action, which other actions take as logs.

    Returns:
        The path. A page without a name is history.html.

    Raises:
        InputError: Several files are named, or `export` names none.
    """
    names = args.logs  # the words after the action: other actions take them as logs
    if len(names) == 1:
        return Path(names[0])
    if not names and args.action == "show":
        return Path("history.html")
    raise InputError(f"history {args.action} writes one file: name it")


def _write_table(rows: Sequence[Row], output: Path) -> None:
    """Write the runs of a history as a table: Parquet if the file ends in .parquet, else CSV.

    Args:
        rows: The runs.
        output: The file to write, .parquet or .csv.

    Raises:
        InputError: For a name that ends in .parquet: the file exists already, its folder is missing or pyarrow is not
            installed. For any other name: it does not end in .csv, or the file exists and was not written by this
            command.
        OSError: The file cannot be written, such as a .csv file whose folder is missing.
    """
    if output.suffix == ".parquet":
        to_parquet([vars(row) for row in rows], output)  # refuses a file that exists
        return
    _refuse_to_overwrite(output, [".csv", ".parquet"], ",".join(COLUMNS))
    output.write_text(csv_text(COLUMNS, map(vars, rows)), encoding="utf-8", newline="")


def _score_of_runs(args: argparse.Namespace) -> Score:
    """Return the score of the logs that the command line names, as the mean of their throughputs.

    One run is enough, whatever the protocol says, because the history keeps single runs.

    Args:
        args: The parsed command line: the logs, and the options of `add_score_options` and `add_system_option`.

    Raises:
        InputError: No log is given, the protocol measures training times, or the logs do not fit the protocol or each
            other.
    """
    if not args.logs:
        raise InputError(f"history {args.action}: no log given; name the logs of one system")
    protocol = protocol_of(args)
    if protocol.figure != "throughput":
        raise InputError(f"protocol {protocol.name} measures no throughput, which a history is made of")
    # An olympic mean would refuse a single run.
    protocol_of_any_runs = dataclasses.replace(protocol, runs=1, over_runs="mean")
    return score(read_records(args), protocol_of_any_runs, skip=args.skip, system=args.system)


def _add_runs(args: argparse.Namespace) -> int:
    """Add the runs of the logs to the history, and print how many are new or replaced.

    Args:
        args: The parsed command line: the logs, `file` (the history, which is made if it does not exist), and the
            options that score the logs.

    Returns:
        The exit status, which is 0.

    Raises:
        InputError: The logs cannot be scored, or the history cannot be used.
    """
    result = _score_of_runs(args)
    with opened(args.file, new=True) as connection:
        added = add(connection, result, args.system)
    replaced = ""
    if added.corrected:
        replaced = f", and {added.corrected} took the place of what it said"
    runs = counted(len(result.records), "run")
    are_new = "is new" if len(result.records) == 1 else "are new"
    print(f"{added.new} of {runs} {are_new} in {args.file}{replaced}")
    return 0


def _check_runs(args: argparse.Namespace) -> int:
    """Print whether the throughput of new runs is lower than that of the last comparable runs in a history file.

    Comparable runs are those of the same system, workload, precision and protocol. Nothing is added to the history.

    Args:
        args: The parsed command line: `logs` (of the new runs), `file` (the history), `last` (the most runs of the
            history to compare with), `system` (name of the machine; None takes it from the logs), and the options of
            `add_score_options`.

    Returns:
        The exit status: 1 if the throughput of the new runs is lower, else 0.

    Raises:
        InputError: In one of these cases:

            - The logs cannot be scored, or a run's rate is too high to be kept.
            - The new runs differ in system, workload, precision or protocol.
            - Neither `system` nor the logs name the machine.
            - The history file does not exist or cannot be used.
        OSError: A log, or the protocol's file that the user names, cannot be read.
    """
    result = _score_of_runs(args)  # the new runs
    with opened(args.file) as connection:
        trend = trend_of(rows_of(connection), result, args.system)  # all comparable runs of the history
        past = last_other_runs(connection, trend, result.records, most=args.last)  # without the new runs themselves
    # `check` needs the hosts, because runs of one host are not independent repeats.
    hosts = hosts_of_past(past) if past else None
    judgement = check([run.row for run in past], hosts, result)
    print(safe_lines([judgement.text]))
    return int(judgement.is_lower)


def _refuse_to_overwrite(output: Path, suffixes: Sequence[str], start: str) -> None:
    """Raise an error if a file that is to be written has a wrong suffix, or was not written by this command.

    Args:
        output: The file to write. It need not exist.
        suffixes: The suffixes of which it must have one, such as ".csv".
        start: The text with which each file of this command begins.

    Raises:
        InputError: The suffix is another, or the file exists and begins otherwise.
    """
    if output.suffix not in suffixes:
        raise InputError(f"{output}: name a {' or '.join(suffixes)} file to write to")
    if output.exists() and not output.read_bytes().startswith(start.encode()):
        raise InputError(f"{output}: is there already, and not written by this command; name another file")
