"""Systems side by side: ratio, speedup and efficiency against the first, and whether they really differ."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from compliance import mlperf
from runlog.json_types import JsonObject
from runlog.verdict import Verdict
from scoring.figure import medians, spread, warnings
from scoring.figure.calibration import smallest_difference
from scoring.figure.levels import IndependentValues, hosts_of_runs
from scoring.figure.mean_ratio import (
    RatioInterval,
    Runs,
    host_means_against_one_host,
    interval_by_spread_of_hosts,
    interval_of_means,
)
from scoring.figure.protocols import Protocol
from scoring.figure.repeats import refuse_same_run_twice
from scoring.figure.score import Score
from scoring.importers.checks import MAX_PLAUSIBLE_RATIO
from scoring.record import InputError, Record

# Two logs of one system agree in these facts, if both give them.
FACTS_OF_ONE_SYSTEM = ("model", "data", "mode", "nodes", "precision", "math_mode")


@dataclass(frozen=True)
class BetweenRuns:
    """The spread between single runs of a system, which a single run does not show."""

    relative_sd: float  # standard deviation as a share of the mean
    freedom: int  # degrees of freedom of that deviation
    source: str  # where it is known from, in words


@dataclass(frozen=True, kw_only=True)
class Row:
    """The comparison of one system with the base, which is the first system. The base has a row too."""

    name: str
    devices: int | None
    score: Score
    ratio: float  # figure / figure of the base
    ratio_interval_95: tuple[float, float] | None
    basis: str  # what the interval is made of
    different: bool | None  # from the base; None: there is no interval of the ratio to tell it by
    speedup: float  # over 1 is faster than the base, for times too
    efficiency: float | None  # speedup / (devices / devices of the base), at the same precision; of other devices only


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Systems under one protocol; the first row is the base."""

    protocol: Protocol
    rows: tuple[Row, ...]
    warnings: tuple[Verdict, ...]

    @property
    def footnotes(self) -> list[str]:
        """Return the notes that must stand with the compared figures, each once.

        They are the notes of all systems' scores. If some scores are MLPerf results and others are not, a note is added
        that they are not comparable.
        """
        notes = []
        for row in self.rows:
            notes += row.score.footnotes
        are_mlperf_results = {_is_mlperf_result(row.score) for row in self.rows}
        if are_mlperf_results == {True, False}:
            notes.append(mlperf.NOT_COMPARABLE)
        return mlperf.notes_in_order(notes)  # without repeats

    def to_json(self) -> JsonObject:
        return {
            "protocol": self.protocol.name,
            "base": self.rows[0].name,
            "smallest_difference": smallest_difference(),
            "rows": [vars(row) | {"score": row.score.to_json()} for row in self.rows],
            "warnings": warnings.as_json(self.warnings),
            "footnotes": self.footnotes,
        }


def compare(named_scores: Sequence[tuple[str, Score]], given_spread: BetweenRuns | None = None) -> Comparison:
    """Return a row for each of several systems, with the ratio of its figure to that of the first one, the base.

    Args:
        named_scores: For each system its name and its score. All scores are in one unit and by one protocol.
        given_spread: How far single runs of a system lie apart, as the user says it. None estimates it from the scores.

    Returns:
        The comparison: the rows in the given order, and the warnings.

    Raises:
        InputError: There are fewer than two systems, figures of different units or protocols, or a run is given twice
            or in two parts.
    """
    _refuse_other_kinds_of_figures(named_scores)
    scores = [result for _, result in named_scores]
    records = list(itertools.chain.from_iterable(result.records for result in scores))
    refuse_same_run_twice(records)

    base = scores[0]
    shown_warnings = list(warnings.warn_of_mixed_settings(records))
    rows = []
    for name, result in named_scores:
        between_runs = given_spread or spread_between_runs(base, result, scores)
        row = _row(name, base, result, between_runs)
        if row.efficiency is not None:
            shown_warnings += warnings.warn_if_over_linear(name, row.efficiency)
        rows.append(_without_implausible_efficiency(row))
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(shown_warnings))


def _without_implausible_efficiency(row: Row) -> Row:
    """Return a row of the comparison without its scaling efficiency if that is too high to be true: over 1.5."""
    if row.efficiency is not None and row.efficiency > MAX_PLAUSIBLE_RATIO:
        return dataclasses.replace(row, efficiency=None)
    return row


def _is_mlperf_result(score: Score) -> bool:
    """Return whether a score counts as an MLPerf result in the notes."""
    return score.standing is not None and score.standing.uses_the_name


def _refuse_other_kinds_of_figures(named_scores: Sequence[tuple[str, Score]]) -> None:
    """Raise an error if there are fewer than two systems, or if their figures are of different kinds.

    Args:
        named_scores: For each system its name and its score.

    Raises:
        InputError: There are fewer than two systems, or their scores differ in unit or protocol.
    """
    if len(named_scores) < 2:
        raise InputError("give two systems or more")
    kinds = {(result.unit, result.protocol) for _, result in named_scores}
    if len(kinds) > 1:
        shown = ", ".join(f"{name}: {result.unit} by {result.protocol.name}" for name, result in named_scores)
        is_of_one_device = any(result.unit.endswith(" per device") for _, result in named_scores)
        what_to_do = "; give the devices that a log does not say, as --devices 1,8" if is_of_one_device else ""
        raise InputError(f"figures of different unit or protocol cannot be compared ({shown}){what_to_do}")


def _row(name: str, base: Score, result: Score, between_runs: BetweenRuns | None) -> Row:
    """Return the row that compares the figure of one system with the figure of the base, which is the first system.

    Args:
        name: Name of the system, for display.
        base: The score of the base.
        result: The score of the system. It may be the base's own, whose ratio has no interval.
        between_runs: How far single runs of the system lie apart. Only a single run needs it. None if not known.
    """
    ratio = result.value / base.value
    interval = _BASE_ITSELF if result is base else ratio_interval(base, result, between_runs)
    speedup = _speedup(ratio, result.protocol)
    return Row(
        name=name,
        devices=result.records[0].devices,
        score=result,
        ratio=ratio,
        ratio_interval_95=interval.bounds,
        basis=interval.basis,
        different=_is_different(ratio, interval.bounds),
        speedup=speedup,
        efficiency=_efficiency(base, result, speedup),
    )


def _speedup(ratio: float, protocol: Protocol) -> float:
    """Return how many times as fast as the base a system is.

    Args:
        ratio: The system's figure / the figure of the base.
        protocol: The rules of the figures, which are times or throughputs. A time of twice the base's is half as fast.
    """
    if protocol.figure == "run_time":
        return 1 / ratio  # twice the time is half as fast
    return ratio


def _is_different(ratio: float, interval: tuple[float, float] | None) -> bool | None:
    """Return whether two figures differ; None without an interval of their ratio.

    They differ if the interval excludes 1, and if the ratio is off 1 by as much as hosts of one kind differ, or more.

    Args:
        ratio: The ratio of the two figures.
        interval: Its 95 % interval (low, high); None if not known.
    """
    if interval is None:
        return None
    is_large_enough = abs(math.log(ratio)) >= smallest_difference()
    return is_large_enough and excludes_1(interval)


def excludes_1(interval: tuple[float, float]) -> bool:
    """Return whether 1 lies outside an interval (low, high)."""
    low, high = interval
    return low > 1 or high < 1


def _efficiency(base: Score, other: Score, speedup: float) -> float | None:
    """Return the scaling efficiency, such as 0.75 for 6 times the speed on 8 times the devices.

    Args:
        base: The score of the first system.
        other: The score that is compared with it.
        speedup: How many times as fast as the base the other system is.

    Returns:
        The efficiency. None on as many devices as the base's, where nothing is scaled; if a log does not say its
        devices; or if the systems are known to differ in more than devices: the speedup then has other causes too.
    """
    base_devices = base.records[0].devices
    devices = other.records[0].devices
    if not base_devices or not devices or devices == base_devices or _differ_in_more_than_devices(base, other):
        return None
    return speedup * base_devices / devices


def _differ_in_more_than_devices(base: Score, other: Score) -> bool:
    """Return whether the runs of two scores differ in the framework or in a setting, such as the precision.

    If the runs differ so, the number of devices is not the only cause of a difference in speed. The settings are the
    model, its data, the batch of one device, the precision and the math mode. The versions of the software may differ.

    Args:
        base: The score of the first system.
        other: The score that is compared with `base`.
    """
    records = (*base.records, *other.records)  # two runs of the same score may differ, too
    # As {"mixed_precision", "mixed_software"}: there is one warning for each setting in which some runs differ.
    mixed_settings = {warning.check for warning in warnings.warn_of_mixed_settings(records)}
    mixed_settings.discard("mixed_software")  # other versions of a package
    frameworks = {record.framework_name for record in records if record.framework}  # without their versions
    return bool(mixed_settings) or len(frameworks) > 1


def spread_between_runs(base: Score, other: Score, scores: Sequence[Score]) -> BetweenRuns | None:
    """Return how far runs of the system that two scores are of lie apart, as a relative standard deviation.

    Each run is compared with the mean of its own score. The deviation is pooled over all scores of this system that
    have several runs, all converged.

    Args:
        base: The score of the first system.
        other: The score that is compared with `base`.
        scores: All scores that may show the deviation, `base` and `other` among them.

    Returns:
        The deviation, with its degrees of freedom and its source in words. None if it is not known or must not be used.
    """
    is_one_host_against_several = _host_means_if_of_one_system(base, other) is not None
    if is_one_host_against_several:
        return None  # hosts lie further apart than the runs of one host, so the spread of the hosts must be used
    repeated = [candidate for candidate in scores if _has_several_runs_of_their_system(candidate, base, other)]
    if not _are_all_of_one_system([base, other, *repeated]):
        return None  # `base` and `other` are of two systems, or two of `repeated` do not agree with each other
    values_by_score = [_run_values(score) for score in repeated]
    pooled = spread.pooled_sd(values_by_score)
    if pooled is None:
        return None  # no score of this system has several runs
    runs = sum(len(values) for values in values_by_score)
    return BetweenRuns(pooled.relative_sd, pooled.freedom, f"the spread of {runs} runs of this system")


def _has_several_runs_of_their_system(candidate: Score, base: Score, other: Score) -> bool:
    """Return whether a score has several runs of the system of two other scores, and all of these runs converged.

    Args:
        candidate: The score.
        base: A score that must be of the candidate's system.
        other: A second such score. It is not compared with `base` here.
    """
    is_of_their_system = _are_of_one_system(candidate, base) and _are_of_one_system(candidate, other)
    return is_of_their_system and len(candidate.runs) > 1 and _all_converged(candidate)


def _are_all_of_one_system(scores: Sequence[Score]) -> bool:
    """Return whether each two of the scores are of one system.

    A score that gives no precision agrees with one of FP32 and with one of FP16, but these two do not agree.
    """
    return all(_are_of_one_system(one, another) for one, another in itertools.combinations(scores, 2))


def _are_of_one_system(one: Score, other: Score) -> bool:
    """Return whether the runs of two scores are repeats of one system.

    They must be of one kind of system (see `_agree_but_for_hosts`), and their logs must describe the same hardware or
    none. Only the first log of each score is asked for its hardware.
    """
    hardware = one.records[0].header.get("hardware")
    return hardware == other.records[0].header.get("hardware") and _agree_but_for_hosts(one, other)


def _agree_but_for_hosts(one: Score, other: Score) -> bool:
    """Return whether the runs of two scores are of one kind of system, perhaps on different hosts.

    Args:
        one: A score. Its first log stands for all of its runs, which are repeats.
        other: The score to compare it with.

    Returns:
        True if both give the number of devices and the global batch and agree in these, if they agree in the machine
        (or neither names it), and if they do not contradict each other in FACTS_OF_ONE_SYSTEM, such as the model.
    """
    record = one.records[0]  # stands for all runs of the score, which are repeats
    other_record = other.records[0]
    if record.devices is None or record.devices != other_record.devices:
        return False
    if record.global_batch is None or record.global_batch != other_record.global_batch:
        return False
    if record.machine != other_record.machine:
        return False
    return not any(_contradict(one, other, name) for name in FACTS_OF_ONE_SYSTEM)


def _contradict(one: Score, other: Score, name: str) -> bool:
    """Return whether the logs of two scores both give the fact `name`, and differ in it."""
    value = _first_known(one.records, name)
    other_value = _first_known(other.records, name)
    return value is not None and other_value is not None and value != other_value


def _first_known(records: Sequence[Record], name: str) -> object:
    """Return the value of a field in the first log that gives it; None if no log does.

    Args:
        records: The runs of one score, as read from their logs.
        name: Name of a field of Record, such as "precision".
    """
    for record in records:
        value: object = getattr(record, name)
        if value is not None:
            return value
    return None


_BASE_ITSELF = RatioInterval(None, "the base itself")
_SINGLE_RUN_OF_UNKNOWN_SPREAD = RatioInterval(
    None, "one run: how far its repeats lie apart is unknown (--between-runs-sd, or several runs of a system)"
)


def ratio_interval(base: Score, other: Score, between_runs: BetweenRuns | None = None) -> RatioInterval:
    """Return the 95 % interval of the ratio of two scores' figures, other / base, or why there is none.

    An interval without width would wrongly say that the ratio is exact, so it counts as none.

    Args:
        base: The score in the denominator.
        other: The score in the numerator.
        between_runs: How far single runs of a system lie apart. Only a single run needs it. None if not known.

    Returns:
        The interval, with words that say how it was made. Without an interval, its `bounds` are None and its words say
        why.
    """
    interval = _interval_by_protocol(base, other, between_runs)
    if interval.bounds is not None and spread.has_no_width(interval.bounds):
        return RatioInterval(None, "the runs' figures have too few digits to tell how far they lie apart")
    return interval


def _interval_by_protocol(base: Score, other: Score, between_runs: BetweenRuns | None) -> RatioInterval:
    """Return the 95 % interval of the ratio of two scores' figures, other / base, by the method that fits the runs.

    The method depends on how many runs there are and on how they are averaged: median, olympic mean or mean.

    Args:
        base: The score in the denominator.
        other: The score in the numerator. It is by the protocol of `base`.
        between_runs: How far single runs of a system lie apart. Only a single run needs it. None if not known.

    Returns:
        The interval, with words that say how it was made. Without an interval, its `bounds` are None and its words say
        why.
    """
    if len(base.runs) < 2 or len(other.runs) < 2:
        return _interval_of_single_run(base, other, between_runs)
    if base.protocol.over_runs == "median":
        return _interval_of_medians(base, other)
    if base.protocol.over_runs == "olympic_mean":
        return _interval_of_olympic_means(base, other)
    return _interval_of_means(base, other)


def _interval_of_medians(base: Score, other: Score) -> RatioInterval:
    """Return the 95 % interval of the ratio of two medians of runs, by ordered quotients."""
    over = f"over {len(base.runs)} and {len(other.runs)} runs"
    bounds = medians.median_ratio_interval(_run_values(base), _run_values(other))
    if bounds is None:
        return RatioInterval(None, f"too few runs {over} for ordered quotients")
    return RatioInterval(bounds, f"ordered quotients {over}")


def _interval_of_olympic_means(base: Score, other: Score) -> RatioInterval:
    """Return the 95 % interval of the ratio of two olympic means of runs, by Yuen's standard errors."""
    over = f"over {len(base.runs)} and {len(other.runs)} runs"
    dropped = base.protocol.dropped_runs
    base_mean = spread.olympic_mean_of(_run_values(base), dropped=dropped)
    other_mean = spread.olympic_mean_of(_run_values(other), dropped=dropped)
    if base_mean is None or other_mean is None:
        return RatioInterval(None, f"too few runs {over} for an olympic mean's interval")
    whose_t = spread.name_of_ratio_t(base_mean, other_mean)
    return RatioInterval(spread.mean_ratio_interval(base_mean, other_mean), f"{whose_t} by Yuen's errors {over}")


def _interval_of_single_run(base: Score, other: Score, between_runs: BetweenRuns | None) -> RatioInterval:
    """Return the 95 % interval of the ratio other / base, if at least one of the two scores has a single run.

    A single run does not show how far its repeats would lie apart. So the width comes from the spread of other runs of
    the system, or from the spread of its hosts.

    Args:
        base: The score in the denominator.
        other: The score in the numerator. It is by the protocol of `base`.
        between_runs: How far single runs of the system lie apart, with the source in words. None if not known.

    Returns:
        The interval, with words that say how it was made. Without an interval, its `bounds` are None and its words say
        why.
    """
    reason = _why_no_interval_of_single_run(base, other)
    if reason is not None:
        return RatioInterval(None, reason)
    ratio = other.value / base.value
    if between_runs is not None:
        bounds = spread.single_value_interval(
            ratio=ratio,
            relative_sd=between_runs.relative_sd,
            freedom=between_runs.freedom,
            count=len(base.runs),
            other_count=len(other.runs),
        )
        return RatioInterval(bounds, f"one run against {_most_runs(base, other)}: {between_runs.source}")

    host_means = _host_means_if_of_one_system(base, other)
    if host_means is not None:  # one score is of one host, and the other of several hosts of the same system
        return interval_by_spread_of_hosts(ratio, host_means)
    return _SINGLE_RUN_OF_UNKNOWN_SPREAD


def _most_runs(base: Score, other: Score) -> int:
    """Return how many runs the score with more runs has."""
    return max(len(base.runs), len(other.runs))


def _why_no_interval_of_single_run(base: Score, other: Score) -> str | None:
    """Return why the ratio of two scores has no interval, where one of them is of a single run.

    Args:
        base: The first score. At least one of `base` and `other` has a single run.
        other: The score that is compared with `base`, by the same protocol.

    Returns:
        The reason in words; None if the ratio may have an interval.
    """
    if not (_all_converged(base) and _all_converged(other)):
        return "one of the runs did not converge: its figure is infinite"
    most_runs = _most_runs(base, other)
    is_one_against_several = most_runs > 1
    over_runs = base.protocol.over_runs  # how the several runs are averaged
    # Only a standard deviation is known. The error of a mean follows from it, but not that of a median or of an olympic
    # mean.
    if is_one_against_several and over_runs != "mean":
        figures = f"{over_runs.replace('_', ' ')}s"  # medians, olympic means
        reason = f"single runs do not show how far {figures} lie apart (give several runs of each system)"
        return f"one run against {most_runs}: {reason}"
    return None


def _interval_of_means(base: Score, other: Score) -> RatioInterval:
    """Return the 95 % interval of the ratio of two means of runs. Each side has two runs or more."""
    return interval_of_means(_runs_of(base), _runs_of(other), are_of_one_system=_agree_but_for_hosts(base, other))


def _host_means_if_of_one_system(base: Score, other: Score) -> IndependentValues | None:
    """Return the mean figure of each of several hosts of a system, if one score is of these and the other of one host.

    For example, `base` ran on node1, and `other` ran on node2 and node3: the result is the mean of node2 and the mean
    of node3. If `base` is the score with several hosts, the result is the means of its hosts.

    Args:
        base: A score.
        other: The score that is compared with `base`.

    Returns:
        The means, with the number of runs of each. None for other hosts, if a log does not name its hosts, or if the
        scores are not known to be of one system (`_agree_but_for_hosts`).
    """
    if not _agree_but_for_hosts(base, other):
        return None
    return host_means_against_one_host(_runs_of(base), _runs_of(other))


def _all_converged(score: Score) -> bool:
    """Return whether all runs of a score reached their target."""
    return all(math.isfinite(value) for value in _run_values(score))


def _run_values(score: Score) -> list[float]:
    """Return the figure of each run of a score; infinite for a run that did not converge."""
    return [run.value for run in score.runs]


def _runs_of(score: Score) -> Runs:
    """Return the runs of a score, as the interval of a ratio of means takes them."""
    return Runs(_run_values(score), hosts_of_runs(score.records))
