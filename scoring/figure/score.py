"""From runs to one figure under a protocol: `score`, a pure function, and `python -m scoring score`."""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compliance.mlperf import Standing
from runlog.digits import percent, significant
from runlog.json_types import JsonObject
from runlog.stats import median_set, olympic_mean
from runlog.text import called, safe_lines
from runlog.verdict import Verdict, as_text
from scoring.figure import intervals, protocols, spread, warnings, window_warnings
from scoring.figure.levels import Level, hosts_of_runs, in_words, levels_of_repetition
from scoring.figure.limits import images_per_joule, utilization
from scoring.figure.options import add_score_options, add_system_option, protocol_of
from scoring.figure.protocols import Protocol
from scoring.figure.rates import devices_in_rate
from scoring.figure.repeats import refuse_unless_repeats
from scoring.figure.run import RunFigure, run_figure
from scoring.figure.run_count import missing_runs, refuse_if_no_mean, with_runs_of_benchmark
from scoring.figure.standing import standing_of
from scoring.figure.warnings import warning
from scoring.importers import jsonable, read_records
from scoring.importers.checks import has_second_clock
from scoring.record import InputError, NothingMeasuredError, Record, TooFewRunsError, section

WANTED_SHARE = 0.01  # half-width of an interval for which `score` says how many runs it takes
MOST_MORE_RUNS = 50  # that `score` asks a user for; beyond these it says that the goal is out of reach


@dataclass(frozen=True, kw_only=True)
class Score:
    """A figure, and how far to trust it."""

    value: float  # not a number where there is none
    unit: str
    protocol: Protocol
    runs: tuple[RunFigure, ...]
    spread: float | None = None  # sample standard deviation, in the unit
    interval_95: tuple[float, float] | None = None
    interval_method: str = "none: no figure"
    run_interval_95: tuple[float, float] | None = None  # of one run: where the mean of the whole run lies
    repeat_interval_95: tuple[float, float] | None = None  # of one run: where another run of the system lies
    warnings: tuple[Verdict, ...] = ()
    records: tuple[Record, ...] = dataclasses.field(default=(), repr=False)
    chosen: str = ""  # which of more runs than MLPerf asks for are scored

    @property
    def spread_over(self) -> str:
        return "windows" if len(self.runs) == 1 else "runs"

    @property
    def hosts(self) -> list[str] | None:
        """The hosts that the runs name, each once; None where a log does not name all of its hosts."""
        named = hosts_of_runs(self.records)
        return None if named is None else list(dict.fromkeys(named))

    @property
    def levels(self) -> tuple[Level, ...]:
        """How far windows, runs and hosts lie apart."""
        values = [run.value for run in self.runs]
        return levels_of_repetition(values, [run.rates for run in self.runs], hosts_of_runs(self.records))

    @property
    def median_window_rate(self) -> float | None:
        """The figure with each run's median of window rates in the place of its own; None where rows have no rates."""
        if not all(run.rates for run in self.runs):
            return None
        return over_runs([statistics.median(run.rates) for run in self.runs], self.protocol)

    @property
    def one_clock(self) -> list[str]:
        """The logs whose times nothing else in them confirms."""
        return [record.file for record in self.records if not has_second_clock(record)]

    @property
    def flops_utilization(self) -> float | None:
        """Share of the cards' peak that the figure's FLOPs take (MFU)."""
        return utilization(self.records, self.value) if self.unit == "images/s" else None

    @property
    def images_per_joule(self) -> float | None:
        """Images a joule; None for MLPerf results, next to which only power measured by MLPerf rules may stand."""
        if self.standing is not None and self.standing.uses_the_name:
            return None
        return images_per_joule(self.records)

    @property
    def limits(self) -> list[str]:
        """Say the limits that are known, in words."""
        said = []
        if self.flops_utilization is not None:
            said.append(f"{percent(self.flops_utilization)} of the cards' peak FLOP/s (MFU)")
        if self.images_per_joule is not None:
            said.append(f"{significant(self.images_per_joule, digits=3)} images/J")
        return said

    @property
    def more_runs_for_1_percent(self) -> int | None:
        """Runs to add for a 95 % interval of +-1 %, by the spread of these; None where that says nothing of repeats.

        Two stages (Stein, Annals of Mathematical Statistics 16, 1945): how many there will be is settled here, whatever
        the further ones show. Stopping as soon as an interval looks narrow makes intervals that hold too seldom.
        """
        if self.interval_95 is None or len(self.runs) < 2:
            return None
        half = spread.half_share(self.interval_95)
        return max(0, math.ceil(len(self.runs) * ((half / WANTED_SHARE) ** 2 - 1)))

    @functools.cached_property
    def standing(self) -> Standing | None:
        """Whether the figure is of an MLPerf result; None where no log has the form of MLPerf logs."""
        return standing_of(self.records)

    @property
    def shown_unit(self) -> str:
        """The unit, and that the figure is unverified where it is of an MLPerf result."""
        return self.unit if self.standing is None else self.standing.unit(self.unit)

    @property
    def footnotes(self) -> list[str]:
        """The notes that must stand with the figure."""
        return self.notes(next_to_verified=False)

    def notes(self, *, next_to_verified: bool) -> list[str]:
        """The notes that must stand with the figure, alone or next to results that MLCommons verified."""
        if self.standing is None:
            return []
        derived = "images/s" if self.protocol.figure == "throughput" else ""
        return self.standing.footnotes(derived_metric=derived, next_to_verified=next_to_verified)

    @property
    def rule(self) -> str:
        """The protocol in words, with the runs that went in where they are more than it asks for."""
        rule = self.protocol.describe([len(self.runs)])
        return f"{rule}; {self.chosen}" if self.chosen else rule

    def to_json(self) -> JsonObject:
        sources = []
        for run in self.runs:
            lines = {"first_line": run.first_line, "last_line": run.last_line}
            sources.append({"file": run.file, **lines, "value": _or_none(run.value)})
        checked = []
        for record in self.records:
            checked += [{"file": record.file, **vars(check)} for check in record.checks]
        return {
            "value": _or_none(self.value),
            "runs": len(self.runs),
            "windows": sum(run.windows for run in self.runs),
            "unit": self.unit,
            "spread": self.spread,
            "spread_over": self.spread_over,
            "interval_95": self.interval_95,
            "interval_method": self.interval_method,
            "run_interval_95": self.run_interval_95,
            "repeat_interval_95": self.repeat_interval_95,
            "levels": [vars(level) for level in self.levels],
            "hosts": self.hosts,
            "one_clock": self.one_clock,
            "footnotes": self.footnotes,
            "median_window_rate": self.median_window_rate,
            "flops_utilization": self.flops_utilization,
            "images_per_joule": self.images_per_joule,
            "more_runs_for_1_percent": self.more_runs_for_1_percent,
            "result": None if self.standing is None else self.standing.as_dict(),
            "protocol": self.protocol.name,
            "protocol_rule": self.rule,
            "warnings": warnings.as_json(self.warnings),
            "sources": sources,
            "checked": checked,
        }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def over_runs(values: Sequence[float], protocol: Protocol) -> float:
    """Return the figure of several runs: the mean, median or olympic mean of theirs, as the protocol says."""
    if protocol.over_runs == "median":
        return float(statistics.median(values))
    if protocol.over_runs == "olympic_mean":
        return olympic_mean(values, protocol.dropped_runs)
    return statistics.fmean(values)


def score(
    records: Sequence[Record], protocol: Protocol, *, skip: int | None = None, system: str | None = None
) -> Score:
    """Return the figure of one or several runs of one system under `protocol`, with its intervals and warnings.

    `skip` is how many windows of each run are dropped at the start, instead of the protocol's own number. `system`
    names the machine of all the runs; where neither it nor the logs do, several runs have a warning.

    Raises InputError for no runs, for runs that are not repeats of one system, and where a run does not hold what the
    protocol asks for. Raises TooFewRunsError for fewer runs than the protocol asks for, or too few that converged; the
    error's `partial` is then the score of those that there are, if they make one.
    """
    if not records:
        raise InputError("no runs to score; give the logs of one system")
    refuse_unless_repeats(records)
    protocol = with_runs_of_benchmark(protocol, records)
    records, chosen = _scored_runs(records, protocol)

    runs = [run_figure(record, protocol, skip=skip) for record in records]
    unit = _unit(records, protocol)
    missing = missing_runs(runs, protocol, unit)
    refuse_if_no_mean(runs, protocol, missing)
    if len(runs) == 1:
        estimated = intervals.intervals_of_one_run(runs[0], records[0], protocol)
    else:
        estimated = intervals.intervals_of_several_runs(runs, records, protocol)
    result = Score(
        value=over_runs([run.value for run in runs], protocol),
        unit=unit,
        protocol=protocol if skip is None else protocol.skipping(skip),
        runs=tuple(runs),
        spread=estimated.deviation,
        interval_95=estimated.interval_95,
        interval_method=estimated.method,
        run_interval_95=estimated.run_95,
        repeat_interval_95=estimated.repeat_95,
        records=tuple(records),
        chosen=chosen,
    )
    shown_warnings = list(_warnings(result, missing))
    if not system:
        shown_warnings += warnings.warn_if_machine_is_unknown(records)
    result = dataclasses.replace(result, warnings=tuple(shown_warnings))
    if missing is not None:
        raise TooFewRunsError(missing, result)
    return result


def _scored_runs(records: Sequence[Record], protocol: Protocol) -> tuple[Sequence[Record], str]:
    """Return the runs that are scored, and a text that says which they are; the text is empty where all are scored.

    A protocol that times whole runs scores as many as it asks for. Where there are more, they are put in the order of
    their starts, and each so many that follow one another are a set: by the rule of MLPerf `median_set` takes the one
    with the median figure. A protocol of one or two runs scores all: that rule is for three or more.
    """
    if protocol.figure != "run_time" or protocol.runs <= 2 or len(records) <= protocol.runs:
        return records, ""

    def figure_of(runs: Sequence[Record]) -> float:
        return over_runs([run_figure(record, protocol).value for record in runs], protocol)

    by_start = sorted(records, key=lambda record: record.run_start_s or 0.0)  # without a start `figure_of` raises
    return median_set(by_start, protocol.runs, figure_of)


def _unit(records: Sequence[Record], protocol: Protocol) -> str:
    """Return the unit of the figure, which is that of one device where a log does not say how many devices ran."""
    if protocol.figure == "throughput" and any(devices_in_rate(record) is None for record in records):
        return f"{protocol.unit} per device"
    return protocol.unit


def _warnings(result: Score, missing: str | None) -> Iterator[Verdict]:
    """Yield warnings about all that makes the figure less than it looks, in the order in which they are shown.

    `missing` says that the protocol asks for more runs than there are; None where there are enough.
    """
    protocol = result.protocol
    for record in result.records:
        yield from warnings.warn_of_import_findings(record)
    if result.unit != protocol.unit:
        message = "the log does not say how many devices ran: the figure is of one; give --devices"
        yield warning("devices_unknown", message)
    if missing is None and len(result.runs) == 1 and protocol.figure == "throughput":
        missing = "one run: run-to-run spread cannot be estimated from one run"
    if missing is not None:
        yield warning("too_few_runs", missing)

    if protocol.figure == "throughput":
        yield from _warnings_of_throughput(result)
    else:
        yield from _warnings_of_run_time(result)
    yield from warnings.warn_of_mixed_settings(result.records)


def _warnings_of_throughput(result: Score) -> Iterator[Verdict]:
    """Yield warnings about images/s: its interval, each run and its windows, then the runs beside each other.

    A mean of rates lies above all images over all time. So means of windows' rates, and the mean of the runs' own
    figures, have warnings that other averages do not need.
    """
    protocol = result.protocol
    averages_rates = protocol.over_steps in ("mean_of_printed_rates", "mean_of_rates")
    yield from warnings.warn_if_interval_is_wide(result.value, result.interval_95)
    for record, run in zip(result.records, result.runs, strict=True):
        yield from warnings.warn_if_other_rates_differ(record, run.value, (run.first_line, run.last_line))
        yield from window_warnings.warn_about_windows(record, run.chosen, averages_rates)

    rates = [run.value for run in result.runs]
    yield from warnings.warn_of_outlying_run(result.records, rates, result.unit)
    if protocol.over_runs == "mean":
        yield from warnings.warn_if_mean_of_rates_is_high(rates)


def _warnings_of_run_time(result: Score) -> Iterator[Verdict]:
    """Yield warnings about minutes to the target: runs that did not converge, then one unlike the others."""
    minutes = []
    for record, run in zip(result.records, result.runs, strict=True):
        minutes.append(_minutes_to_end(record, run))
        if not math.isfinite(run.value):
            end = "the log has no run_stop" if record.run_stop_s is None else f"run_stop says {record.status!r}"
            message = f"{end}: the run did not converge and counts as the worst"
            yield warning("not_converged", message, record, run.last_line)
    yield from warnings.warn_of_outlying_run(result.records, minutes, result.unit)


def _minutes_to_end(record: Record, run: RunFigure) -> float:
    """Return how long a run took, in minutes, whether it converged or not; infinite where its end is not known."""
    if math.isinf(run.value) and record.run_time_s:
        return record.run_time_s / 60
    return run.value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", metavar="LOG", help="logs of repeated runs of one system")
    add_score_options(parser)
    add_system_option(parser)
    parser.add_argument("--json", action="store_true")
    parser.epilog = "Protocols: " + "; ".join(
        f"{name}: {protocol.describe()}" for name, protocol in protocols.load().items()
    )


def main(args: argparse.Namespace) -> int:
    """Print the score of the logs, as lines or as JSON. Returns 1 where it has too few runs, else 0.

    Too few runs print a line on stderr, and as JSON the score of those that there are. Runs that were all resumed near
    their ends, and finished, print a score without a figure: what was left of them is warm-up, which is no mistake.
    """
    protocol = protocol_of(args)
    records = read_records(args)
    try:
        shown = score(records, protocol, skip=args.skip, system=args.system)
        status = 0
    except TooFewRunsError as error:
        print(safe_lines([f"{called('scoring')} score: {error}"]), file=sys.stderr)
        shown = error.partial or _score_without_figure("too_few_runs", error, protocol, records)
        status = 1
    except NothingMeasuredError as error:
        if args.skip is not None or not all(_was_resumed_to_end(record) for record in records):
            raise
        shown = _score_without_figure("nothing_measured", error, protocol, records)
        status = 0
    if args.json:
        print(json.dumps(jsonable(shown.to_json()), indent=1))
    elif status == 0:
        print(safe_lines(score_lines(shown)))
    return status


def _was_resumed_to_end(record: Record) -> bool:
    """Tell whether a log is of a run that was resumed from a checkpoint and then finished."""
    return record.status == "success" and section(record, "run_summary").get("resumed") is True


def _score_without_figure(rule: str, error: Exception, protocol: Protocol, records: Sequence[Record]) -> Score:
    """Return a score whose figure is not a number, with the reason `error` as a warning named `rule`."""
    runs = [RunFigure(file=r.file, value=math.nan, windows=0, first_line=1, last_line=r.lines) for r in records]
    return Score(
        value=math.nan,
        unit=protocol.unit,
        protocol=protocol,
        runs=tuple(runs),
        warnings=(warning(rule, str(error)),),
        records=tuple(records),
    )


def _interval_rows(result: Score) -> list[tuple[str, str]]:
    """Return the rows of `score` that show the 95 % intervals, as (name, text).

    A single run may have two: where its own mean lies, and where another run of the system would lie. Several runs
    have one. Where there is none, the row says why.
    """
    if result.interval_95 is None:
        return [("95 % interval", result.interval_method)]  # such as "none: fewer than 8 windows of one run"
    low, high = result.interval_95
    if result.repeat_interval_95 is None:
        return [("95 % interval", f"{low:.3f} to {high:.3f}   ({result.interval_method})")]
    repeat_low, repeat_high = result.repeat_interval_95
    return [
        ("this run", f"{low:.3f} to {high:.3f}   (95 % interval of its mean, {result.interval_method})"),
        ("another run", f"{repeat_low:.3f} to {repeat_high:.3f}   (95 % interval of another run of this system)"),
    ]


def _more_runs_in_words(more_runs: int | None) -> str:
    """Return how many runs to add for an interval of +-1 %, or that no number will do; empty for None and for 0."""
    if not more_runs:
        return ""
    if more_runs > MOST_MORE_RUNS:
        return "too noisy for a goal of 1 %"
    return f"{more_runs} more runs, all of them counted, by the spread of these"


def _row_of_run(run: RunFigure) -> tuple[str, str]:
    """Return the row of one run of a score: its figure, and the lines of its log that the figure comes from."""
    shown = "did not converge" if math.isinf(run.value) else f"{run.value:.3f}"
    windows = f", {run.windows} windows" if run.windows > 1 else ""
    return "run", f"{shown}   {run.file}:{run.first_line}-{run.last_line}{windows}"


def score_lines(result: Score) -> list[str]:
    """Return the lines that `score` prints: the figure, a row for each fact that is known, warnings and footnotes.

    A row is the name of a fact and the fact: `  spread         1.234 (standard deviation over runs)`.
    """
    figure = "no figure" if math.isnan(result.value) else f"{result.value:.3f} {result.shown_unit}"
    rows = _interval_rows(result)
    more_runs = _more_runs_in_words(result.more_runs_for_1_percent)
    if more_runs:
        rows.append(("for +-1 %", more_runs))
    if result.median_window_rate is not None:
        rows.append(("median", f"{result.median_window_rate:.3f} (of the window rates)"))
    rows += [("limit", text) for text in result.limits]
    if result.spread is not None:
        rows.append(("spread", f"{result.spread:.3f} (standard deviation over {result.spread_over})"))
    rows.append(("levels", in_words(result.levels)))
    rows += [_row_of_run(run) for run in result.runs]
    if result.one_clock and result.protocol.figure == "throughput":
        rows.append(("one clock", f"nothing else in {', '.join(result.one_clock)} confirms the times"))
    if result.standing is not None:
        rows.append(("result", result.standing.name))
        rows.append(("data set", f"{result.standing.dataset_in_words}; target {result.standing.target_in_words}"))
    lines = [f"{figure}   protocol {result.protocol.name}: {result.rule}"]
    lines += [f"  {name:15}{text}" for name, text in rows]
    lines += [f"  {line}" for line in as_text(result.warnings).splitlines()]
    return lines + result.footnotes
