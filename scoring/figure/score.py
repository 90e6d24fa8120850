"""From runs to one figure under a protocol: `score`, a pure function. `score_command.py` prints it."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compliance.mlperf import Standing
from runlog.digits import percent, significant
from runlog.json_types import JsonObject
from runlog.stats import median_set, olympic_mean
from runlog.verdict import Verdict
from scoring.figure import in_step, intervals, spread, warnings, window_warnings
from scoring.figure.levels import Level, hosts_of_runs, levels_of_repetition, runs_or_host_means
from scoring.figure.limits import images_per_joule, utilization
from scoring.figure.protocols import Protocol
from scoring.figure.rates import are_rates_of_one_device
from scoring.figure.repeats import refuse_unless_repeats
from scoring.figure.run import RunFigure, run_figure
from scoring.figure.run_count import message_of_missing_runs, refuse_if_no_mean, with_runs_of_benchmark
from scoring.figure.standing import standing_of
from scoring.figure.warnings import warning
from scoring.importers.checks import has_second_clock
from scoring.record import InputError, Record, TooFewRunsError

WANTED_SHARE = 0.01  # half-width of an interval for which `score` says how many runs it takes


@dataclass(frozen=True, kw_only=True)
class Score:
    """A figure, and how far to trust it."""

    value: float  # NaN if there is no figure
    unit: str
    protocol: Protocol
    runs: tuple[RunFigure, ...]
    spread: float | None = None  # sample standard deviation, in the unit
    interval_95: tuple[float, float] | None = None
    interval_method: str = "none: no figure"
    repeat_interval_95: tuple[float, float] | None = None  # of one run: where another run of the system lies
    warnings: tuple[Verdict, ...] = ()
    records: tuple[Record, ...] = dataclasses.field(default=(), repr=False)
    chosen: str = ""  # which of more runs than MLPerf asks for are scored

    @property
    def spread_over(self) -> str:
        return "windows" if len(self.runs) == 1 else "runs"

    @property
    def run_interval_95(self) -> tuple[float, float] | None:
        """The interval of one run, in which the mean of the whole run lies; None for several runs."""
        return self.interval_95 if len(self.runs) == 1 else None

    @property
    def hosts(self) -> list[str] | None:
        """The hosts that the runs name, each once; None if a log does not name all of its hosts."""
        named = hosts_of_runs(self.records)
        return None if named is None else list(dict.fromkeys(named))

    @property
    def levels(self) -> tuple[Level, ...]:
        """How many windows, runs and hosts were measured, and how far each of these vary."""
        values = [run.value for run in self.runs]
        return levels_of_repetition(values, [run.rates for run in self.runs], hosts_of_runs(self.records))

    @property
    def median_window_rate(self) -> float | None:
        """The figure with the median window rate in place of each run's figure; None if a run has no such rates."""
        if not all(run.rates for run in self.runs):
            return None
        return over_runs([statistics.median(run.rates) for run in self.runs], self.protocol)

    @property
    def one_clock(self) -> list[str]:
        """The logs whose times are not confirmed by a second clock in the log."""
        return [record.file for record in self.records if not has_second_clock(record)]

    @property
    def flops_utilization(self) -> float | None:
        """Share of the cards' peak FLOP/s that the figure takes (MFU).

        None if the figure is per device or a time, or if the peak, the FLOPs of an image or the devices are not known.
        """
        return utilization(self.records, self.value) if self.unit == "images/s" else None

    @property
    def images_per_joule(self) -> float | None:
        """Images per joule; None if a log does not give its energy, and always None for MLPerf results.

        Next to an MLPerf result only power that was measured by the rules of MLPerf may stand.
        """
        if self.standing is not None and self.standing.uses_the_name:
            return None
        return images_per_joule(self.records)

    @property
    def efficiency_in_words(self) -> list[str]:
        """How well the runs use the machine, in words: the share of its peak FLOP/s, and the images per joule.

        What is not known is left out, and so are the images per joule of an MLPerf result.
        """
        texts = []
        if self.flops_utilization is not None:
            texts.append(f"{percent(self.flops_utilization)} of the cards' peak FLOP/s (MFU)")
        if self.images_per_joule is not None:
            texts.append(f"{significant(self.images_per_joule, digits=3)} images/J")
        return texts

    @property
    def more_runs_for_1_percent(self) -> int | None:
        """How many runs to add for a 95 % interval of +-1 %, by the spread of these; None without such a spread.

        The number must be settled before the further runs are seen (Stein, Annals of Mathematical Statistics 16, 1945).
        If one stops as soon as the interval looks narrow, it holds the true figure too seldom.
        """
        if self.interval_95 is None or len(self.runs) < 2:
            return None
        half_width = spread.half_width(self.interval_95)
        # The width falls with the root of the number of runs.
        return max(0, math.ceil(len(self.runs) * ((half_width / WANTED_SHARE) ** 2 - 1)))

    @property
    def is_over_hosts(self) -> bool:
        """Whether the means of several hosts, and not the runs, are the repeats that make the interval of a mean."""
        values = [run.value for run in self.runs]
        return self.protocol.over_runs == "mean" and runs_or_host_means(values, hosts_of_runs(self.records)).are_hosts

    @functools.cached_property
    def standing(self) -> Standing | None:
        """Whether the figure is an MLPerf result; None if no log has the form of MLPerf logs."""
        return standing_of(self.records)

    @property
    def shown_unit(self) -> str:
        """The unit, with the word that the figure is unverified if it is an MLPerf result."""
        return self.unit if self.standing is None else self.standing.unit(self.unit)

    @property
    def footnotes(self) -> list[str]:
        """The notes that must stand with the figure where no verified result stands next to it."""
        return self.footnotes_where_shown(next_to_verified=False)

    def footnotes_where_shown(self, *, next_to_verified: bool) -> list[str]:
        """Return the notes that must stand with the figure if its result uses the name of MLPerf.

        The metric of MLPerf is the time to train. So the notes of a throughput also say that images/s is a metric that
        is only derived from the logs.

        Args:
            next_to_verified: Whether the figure is shown next to results that MLCommons verified.

        Returns:
            The notes. Empty if no log has the form of MLPerf logs (there is no `standing`), or if the result does not
            use the name of MLPerf (`Standing.footnotes` decides).
        """
        if self.standing is None:  # no log has the form of MLPerf logs
            return []
        derived = "images/s" if self.protocol.figure == "throughput" else ""
        return self.standing.footnotes(derived_metric=derived, next_to_verified=next_to_verified)

    @property
    def rule(self) -> str:
        """The protocol in words, and which runs were chosen if there were more than it asks for."""
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
    """Return one figure for several runs: the median, the olympic mean or the mean of their figures.

    Args:
        values: The figure of each run, in images/s or minutes; infinite for a run that did not converge.
        protocol: The rules of the score. `over_runs` names the average, and an olympic mean drops `dropped_runs` values
            at each end.
    """
    if protocol.over_runs == "median":
        return float(statistics.median(values))
    if protocol.over_runs == "olympic_mean":
        return olympic_mean(values, protocol.dropped_runs)
    return statistics.fmean(values)


def score(
    records: Sequence[Record], protocol: Protocol, *, skip: int | None = None, system: str | None = None
) -> Score:
    """Return the throughput or training time of one or several runs of one system, with intervals and warnings.

    Args:
        records: The runs as read from their logs: repeats of one system, each run once.
        protocol: The rules of the score: the warm-up to drop, how to average, and how many runs are asked for.
        skip: The value of the option --skip, which replaces the protocol's warm-up: a number of windows (printed rows)
            or, for some protocols, of something else (see `run_figure`). None takes the protocol's warm-up.
        system: Name of the machine, as the user gave it. If None, logs that name no machine get a warning.

    Raises:
        InputError: There are no runs, they are not repeats of one system, or they do not fit the protocol. If the
            warm-up leaves nothing of a run, it is a NothingMeasuredError.
        TooFewRunsError: The runs, or those that converged, are too few. Its `partial` is their score, if they have one.
    """
    if not records:
        raise InputError("no runs to score; give the logs of one system")
    refuse_unless_repeats(records)
    protocol = with_runs_of_benchmark(protocol, records)  # the number of runs may depend on the benchmark of the logs
    chosen = _chosen_runs(records, protocol, skip)  # the runs that are scored, each measured as one figure
    unit = _unit(chosen.records, protocol)
    refuse_if_no_mean(chosen.figures, protocol, unit)

    # The score shows its protocol in words. With `skip`, the words must say this warm-up, not the protocol's own.
    shown_protocol = protocol if skip is None else protocol.skipping(skip)
    without_warnings = _score_and_intervals(chosen, shown_protocol, unit)
    missing_runs = message_of_missing_runs(chosen.figures, protocol, unit)  # None if there are enough runs
    shown_warnings = _warnings(without_warnings, missing_runs, machine_is_named=bool(system))
    result = dataclasses.replace(without_warnings, warnings=tuple(shown_warnings))
    if missing_runs is not None:  # raised last, because the error carries the score of the runs that there are
        raise TooFewRunsError(missing_runs, partial=result)
    return result


def score_without_figure(rule: str, error: Exception, protocol: Protocol, records: Sequence[Record]) -> Score:
    """Return a score without a figure (NaN), which carries the reason as its only warning.

    Args:
        rule: Name of the warning, such as "too_few_runs".
        error: Why there is no figure. Its message becomes the text of the warning.
        protocol: The rules by which runs become one figure. It gives the unit.
        records: What was read from the log of each run.

    Returns:
        A score in which each run has the value NaN, too, and refers to all lines of its log.
    """
    runs = []
    for record in records:
        runs.append(RunFigure(file=record.file, value=math.nan, windows=0, first_line=1, last_line=record.lines))
    return Score(
        value=math.nan,
        unit=protocol.unit,
        protocol=protocol,
        runs=tuple(runs),
        warnings=(warning(rule, str(error)),),
        records=tuple(records),
    )


class _ScoredRun(NamedTuple):
    """A run and its figure."""

    record: Record
    figure: RunFigure


class _ChosenRuns(NamedTuple):
    """The runs that are scored, each with its figure."""

    runs: Sequence[_ScoredRun]
    in_words: str  # which of more runs they are; empty if they are all runs

    @property
    def records(self) -> list[Record]:
        """The runs' records."""
        return [run.record for run in self.runs]

    @property
    def figures(self) -> list[RunFigure]:
        """The runs' figures."""
        return [run.figure for run in self.runs]


def _chosen_runs(records: Sequence[Record], protocol: Protocol, skip: int | None) -> _ChosenRuns:
    """Return the runs to score, each with its figure: all of them, or the one set of runs that MLPerf scores.

    If there are more runs than MLPerf asks for, it scores the set of consecutive runs whose score is the median of all
    such sets (`_median_set_of_runs`).

    Args:
        records: The runs as read from their logs.
        protocol: The rules of the score. `runs` is the number of runs that it asks for.
        skip: The value of the option --skip; None takes the protocol's warm-up.

    Returns:
        The runs, and words that say which of all runs they are; the words are empty if these are all.

    Raises:
        InputError: A run does not fit the protocol.
    """
    if protocol.scores_one_set and len(records) > protocol.runs:
        return _median_set_of_runs(records, protocol, skip)
    return _ChosenRuns(_scored_runs(records, protocol, skip), "")  # "": these are all runs


def _median_set_of_runs(records: Sequence[Record], protocol: Protocol, skip: int | None) -> _ChosenRuns:
    """Return the set of consecutive runs whose score is the median among all such sets, as MLPerf wants.

    A set has as many runs as the protocol asks for: 7 runs, in the order of their start, make three sets of 5.

    Args:
        records: The runs as read from their logs, in any order; more than the protocol asks for.
        protocol: The rules of the score. `runs` is the number of runs of a set.
        skip: The value of the option --skip; None takes the protocol's warm-up.

    Returns:
        The set's runs, each with its figure, and words that say which of all runs they are.

    Raises:
        InputError: A run has no start, or does not fit the protocol.
    """
    by_start = sorted(records, key=lambda record: record.run_start_s or 0.0)  # the next line refuses a missing start
    runs = _scored_runs(by_start, protocol, skip)

    def figure_of_set(runs_of_set: Sequence[_ScoredRun]) -> float:
        return over_runs([run.figure.value for run in runs_of_set], protocol)

    median_runs, which_in_words = median_set(runs, protocol.runs, figure_of_set)
    return _ChosenRuns(median_runs, which_in_words)


def _scored_runs(records: Sequence[Record], protocol: Protocol, skip: int | None) -> list[_ScoredRun]:
    """Return each run with its figure under the protocol."""
    return [_ScoredRun(record, run_figure(record, protocol, skip=skip)) for record in records]


def _score_and_intervals(chosen: _ChosenRuns, protocol: Protocol, unit: str) -> Score:
    """Return the score of some runs: one figure over all of them, with its intervals but without warnings.

    Args:
        chosen: The runs to score, each with its figure.
        protocol: The rules of the score. `over_runs` says how the figures of the runs become one.
        unit: Unit of the figures, such as "images/s", "images/s per device" or "minutes".
    """
    figures = chosen.figures
    if len(figures) == 1:
        estimated = intervals.intervals_of_one_run(figures[0], chosen.records[0], protocol)
    else:
        estimated = intervals.intervals_of_several_runs(figures, chosen.records, protocol)
    return Score(
        value=over_runs([figure.value for figure in figures], protocol),
        unit=unit,
        protocol=protocol,
        runs=tuple(figures),
        spread=estimated.deviation,
        interval_95=estimated.interval_95,
        interval_method=estimated.method,
        repeat_interval_95=estimated.repeat_95,
        records=tuple(chosen.records),
        chosen=chosen.in_words,
    )


def _unit(records: Sequence[Record], protocol: Protocol) -> str:
    """Return the unit of the figure, such as "images/s", "images/s per device" or "minutes".

    Args:
        records: The runs as read from their logs. If one neither says how many devices ran nor prints rates of all
            devices, a throughput is per device.
        protocol: The rules of the score.
    """
    return f"{protocol.unit} per device" if _is_per_device(records, protocol) else protocol.unit


def _is_per_device(records: Sequence[Record], protocol: Protocol) -> bool:
    """Return whether the figure is the throughput of one device, because a log does not say how many devices ran.

    Args:
        records: The runs as read from their logs. One that prints rates of all devices need not say how many they are.
        protocol: The rules of the score. A training time is never per device.
    """
    return protocol.figure == "throughput" and any(are_rates_of_one_device(record) for record in records)


def _warnings(result: Score, missing_runs: str | None, *, machine_is_named: bool) -> Iterator[Verdict]:
    """Yield the warnings about a score, in the order in which they are shown.

    Args:
        result: The score, which has no warnings yet.
        missing_runs: Message that the runs are fewer than the protocol asks for; None if they are enough.
        machine_is_named: Whether the user named the machine, so that the logs need not.

    Yields:
        One warning at a time, each with a stable name such as "too_few_runs".
    """
    measures_throughput = result.protocol.figure == "throughput"
    for record in result.records:
        yield from warnings.warn_of_import_findings(record)
    if _is_per_device(result.records, result.protocol):
        message = "the log does not say how many devices ran: the figure is of one; give --devices"
        yield warning("devices_unknown", message)
    if missing_runs is not None:
        yield warning("too_few_runs", missing_runs)
    elif len(result.runs) == 1 and measures_throughput:
        yield warning("too_few_runs", "one run: run-to-run spread cannot be estimated from one run")

    if measures_throughput:
        yield from _warnings_of_throughput(result)
    else:
        yield from _warnings_of_run_time(result)
    yield from warnings.warn_of_mixed_settings(result.records)
    if not machine_is_named:
        yield from warnings.warn_if_machine_is_unknown(result.records)
    yield from in_step.warn_of_ranks_as_runs(result.records)


def _warnings_of_throughput(result: Score) -> Iterator[Verdict]:
    """Yield the warnings about a throughput: about its interval, each run and its windows, and all runs together.

    Args:
        result: The score, in images/s.
    """
    yield from warnings.warn_if_interval_is_wide(result.value, result.interval_95)
    # A mean of rates, of windows (printed rows) or of runs, may be too high, which gives a warning of its own.
    averages_window_rates = result.protocol.over_steps in ("mean_of_printed_rates", "mean_of_rates")
    averages_run_rates = result.protocol.over_runs == "mean"
    is_by_stamps = result.protocol.over_steps == "between_stamps"  # images / the time between two time stamps
    for record, run in zip(result.records, result.runs, strict=True):
        lines = (run.first_line, run.last_line)
        yield from warnings.warn_if_other_rates_differ(record, run.value, lines, is_by_stamps=is_by_stamps)
        yield from window_warnings.warn_about_windows(record, run.chosen, averages_window_rates)

    run_rates = [run.value for run in result.runs]
    yield from warnings.warn_of_outlying_run(result.records, run_rates, result.unit)
    if averages_run_rates:
        yield from warnings.warn_if_mean_of_run_rates_is_high(run_rates)


def _warnings_of_run_time(result: Score) -> Iterator[Verdict]:
    """Yield the warnings about a training time: for each run that did not converge, then for an outlying run.

    Args:
        result: The score, in minutes.
    """
    for record, run in zip(result.records, result.runs, strict=True):
        did_not_converge = not math.isfinite(run.value)
        if did_not_converge:
            end = "the log has no run_stop" if record.run_stop_s is None else f"run_stop says {record.status!r}"
            message = f"{end}: the run did not converge and counts as the worst"
            yield warning("not_converged", message, record, run.last_line)
    # How long each run took, whether it converged or not; a run without a stop is infinite, and left out
    minutes_to_stop = [_minutes_to_end(record, run) for record, run in zip(result.records, result.runs, strict=True)]
    yield from warnings.warn_of_outlying_run(result.records, minutes_to_stop, result.unit)


def _minutes_to_end(record: Record, run: RunFigure) -> float:
    """Return how long a run took in minutes, whether it reached its target or not.

    Args:
        record: The run as read from its log.
        run: The figure of the run: the minutes to its target; infinite if it did not reach the target.

    Returns:
        The minutes; infinite if the end of the run is not known.
    """
    did_not_converge = math.isinf(run.value)
    if did_not_converge and record.run_time_s:
        return record.run_time_s / 60
    return run.value
