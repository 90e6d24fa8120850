"""Reference convergence points and the test of a submission against them, as mlperf-logging's rcp_checker computes it.

A reference point says how many epochs (or samples) the reference needed to converge at one global batch. A submission
that needs fewer than the reference could by chance is refused. One that needs fewer than the reference's mean has its
minutes scaled up. Sums are added in numpy's order, so that every figure equals the tool's to the last digit, without
its imports (numpy, scipy, pandas).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compliance.official import rounds, rule_files
from compliance.official.rounds import SubmissionRuns
from runlog.digits import counted
from runlog.stats import t_cdf

SIGNIFICANCE = 0.05  # rcp_checker: alpha of the one-sided t-test
# rcp_checker: it takes the fastest and the slowest run of a submission as dropped; also for unet3d, which drops eight
_RUNS_NOT_COUNTED_IN_TEST = 2
TOLERANCE = 0.0001  # rcp_checker: the width of the interval at which its search ends
NOT_CONVERGED = 1e9  # rcp_checker: epochs of a run without success; it sorts them by this number, too
# rcp_checker, _eval_submission_record: from this ruleset on, a result may converge this many samples earlier
ALLOWED_SAMPLES = {"llama31_405b": ("5.0.0", 46_080)}
# rcp_checker, read_submission_file: the benchmarks whose evaluations name the samples trained on, not the epoch
COUNTED_IN_SAMPLES = frozenset(
    {"llama2_70b_lora", "flux1", "llama31_405b", "llama31_8b", "gpt_oss_20b", "deepseekv3_671b", "qwen35_397b_grpo"}
    | {"dlrmv4"}
)
_EPOCHS_ARE_SAMPLES = frozenset({"bert"})  # its logs write samples as epoch_num
_EPOCHS_ARE_TOKENS = frozenset({"gpt3"})
STABLE_DIFFUSION = "stable_diffusion"


class NoReferenceError(ValueError):
    """There is nothing that a submission could be tested against; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """How many epochs (or samples) the reference needed to converge at one global batch.

    `std` is the standard deviation of the reference's runs. An interpolated point has no hyperparameters.
    """

    global_batch: int
    mean: float
    std: float
    least: float  # the lowest mean of a submission that passes, by a t-test and a tolerance
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


class ReferenceSet(NamedTuple):
    """The reference points of one benchmark in one round, sorted by global batch."""

    benchmark: str
    ruleset: str
    unit: str  # epochs, samples or steps
    runs: SubmissionRuns  # of a submission that rcp_checker tests
    all_points: tuple[ReferencePoint, ...]
    points: tuple[ReferencePoint, ...]  # those that rcp_checker's pruning leaves


class ChosenPoint(NamedTuple):
    """The reference point that a submission is compared with, and in words which one it is."""

    point: ReferencePoint
    reason: str


class Convergence(NamedTuple):
    """The outcome of testing one submission against the reference points. `scaling` multiplies its minutes."""

    passed: bool
    reason: str
    mean: float | None = None  # of the submission's runs
    point: ReferencePoint | None = None
    scaling: float = 1.0


@functools.cache
def reference_set(benchmark: str, ruleset: str) -> ReferenceSet:
    """Return the reference convergence points of a benchmark in one round of MLPerf, sorted by global batch.

    A point is for one global batch. It says how many epochs (or samples) the reference needed to converge, and how few
    the runs of a submission may need on average to pass rcp_checker, the official test of convergence. The set has all
    points, and those that rcp_checker keeps (see `_points_kept_by_tool`).

    Args:
        benchmark: The name of the benchmark, such as "resnet".
        ruleset: The version of the rules of the round, such as 4.0.0.

    Raises:
        NoReferenceError: mlperf-logging has no points, or its rcp_checker states no number of runs of the benchmark.
            Without this number, rcp_checker itself ends with an error.
    """
    tool = f"mlperf-logging {rule_files.VERSION}"
    try:
        records = rule_files.reference_points(f"rcps_{benchmark}.json", ruleset)
    except KeyError:
        raise NoReferenceError(f"{tool} has no reference points of {benchmark} for ruleset {ruleset}") from None
    submission_runs = rounds.runs_in_convergence_test(benchmark)
    if submission_runs is None:
        raise NoReferenceError(f"rcp_checker of {tool} knows no number of runs of {benchmark} and ends")
    allowed_samples = _allowed_samples(benchmark, ruleset)  # by which the least mean is lowered; mostly 0
    all_points = [_point_of_record(record, submission_runs, allowed_samples) for record in records.values()]
    all_points.sort(key=lambda point: point.global_batch)
    return ReferenceSet(
        benchmark=benchmark,
        ruleset=ruleset,
        unit=unit_of(benchmark, ruleset),
        runs=SubmissionRuns(runs=submission_runs, dropped=rounds.dropped_runs(benchmark)),
        all_points=tuple(all_points),
        points=_points_kept_by_tool(all_points),
    )


def unit_of(benchmark: str, ruleset: str) -> str:
    """Return the unit in which a benchmark's convergence is counted in a ruleset: epochs, samples, steps or tokens.

    Args:
        benchmark: The name of the benchmark, such as "resnet".
        ruleset: The version of the rules, such as 4.0.0.
    """
    if benchmark == STABLE_DIFFUSION:
        return "steps" if ruleset == "3.1.0" else "samples"
    if benchmark in _EPOCHS_ARE_TOKENS:
        return "tokens"
    is_in_samples = benchmark in COUNTED_IN_SAMPLES or benchmark in _EPOCHS_ARE_SAMPLES
    return "samples" if is_in_samples else "epochs"


def against_reference(
    values: Sequence[float], batch: int, reference: ReferenceSet, points: Sequence[ReferencePoint]
) -> Convergence:
    """Test whether the runs of a submission converge no faster than the reference could by chance.

    Their olympic mean, without the fastest and slowest runs, is compared with the reference point for their batch.

    Args:
        values: The epochs (or samples) that each run needed, and the large number NOT_CONVERGED for a run without
            success.
        batch: The global batch of the runs.
        reference: The reference points of the benchmark, and the number of runs that are dropped at each end.
        points: The points of `reference` that the runs may be compared with, sorted by batch: those that rcp_checker
            keeps, for instance.

    Returns:
        The outcome, and the factor for the minutes of the submission.
    """
    dropped = reference.runs.dropped  # so many of the fastest runs, and as many of the slowest
    # A run that converged may have a larger number: gpt3 counts tokens, over 1e9 of them.
    not_converged = [value for value in values if value == NOT_CONVERGED]
    if len(not_converged) > dropped:
        allowed = "one run" if dropped == 1 else f"{dropped} runs"
        return Convergence(passed=False, reason=f"more than {allowed} did not converge")
    # No run without success is left after this: by their number of epochs they are the slowest, or of gpt3 the fastest.
    kept = _without_fastest_and_slowest(values, dropped)
    if not kept:
        least_runs = 2 * dropped + 1
        runs = counted(len(values), "run")
        return Convergence(passed=False, reason=f"{runs}: no olympic mean of fewer than {least_runs}")
    chosen = point_at(batch, points, reference)
    if chosen is None:
        return Convergence(passed=False, reason=f"no reference point for a global batch of {batch}")
    return _judge_mean(_numpy_mean(kept), chosen)


def _without_fastest_and_slowest(values: Sequence[float], dropped: int) -> list[float]:
    """Return the values sorted, without some of the smallest and as many of the largest ones.

    Args:
        values: The epochs (or samples) that each run needed.
        dropped: How many are left out at each end.
    """
    return sorted(values)[dropped : len(values) - dropped]


def _judge_mean(mean: float, chosen: ChosenPoint) -> Convergence:
    """Return whether a submission did not converge suspiciously fast, and the factor for its minutes.

    For instance, a mean of 40 epochs against a reference of 42 passes if the least mean is 39, with the factor 42 / 40.

    Args:
        mean: The mean epochs (or samples) with which the runs of the submission converged.
        chosen: The reference point that they are compared with.
    """
    point = chosen.point
    passed = mean >= _least_mean_as_rounded_by_tool(point)  # with fewer epochs they converged too fast for chance
    is_faster_than_reference = mean < point.mean
    scaling = 1.0
    if passed and is_faster_than_reference:
        scaling = point.mean / mean  # above 1, so that a lucky draw gains nothing
    return Convergence(passed=passed, reason=chosen.reason, mean=mean, point=point, scaling=scaling)


def _least_mean_as_rounded_by_tool(point: ReferencePoint) -> float:
    """Return the least mean with which a submission passes at a point, rounded as in rcp_checker.

    rcp_checker does not store the least mean, but the quotient mean / least. It divides the mean by this quotient
    again, so that the result may differ from `point.least` in its last digit.

    Args:
        point: The reference point, with its mean and the least mean that passes.
    """
    max_speedup = point.mean / point.least
    return point.mean / max_speedup


def point_at(batch: int, points: Sequence[ReferencePoint], reference: ReferenceSet) -> ChosenPoint | None:
    """Return the reference point that runs with a global batch are compared with, and why this one.

    It is the point of this batch. If there is none, it is interpolated between the next lower and the next higher one.
    For a batch below all points it is the lowest point.

    Args:
        batch: The global batch of the runs.
        points: All points of `reference` or some of them, sorted by batch.
        reference: The reference points of the benchmark, needed to interpolate.

    Returns:
        The point, and in words which one it is. None for a batch above all points.
    """
    lower = [point for point in points if point.global_batch < batch]
    equal_or_higher = [point for point in points if point.global_batch >= batch]
    if not equal_or_higher:
        return None
    next_point = equal_or_higher[0]
    if next_point.global_batch == batch:
        return ChosenPoint(point=next_point, reason="reference point")
    if not lower:
        return ChosenPoint(point=next_point, reason=f"reference point of the least batch, {next_point.global_batch}")
    between = _interpolated(batch, lower[-1], next_point, reference)
    return ChosenPoint(point=between, reason="interpolated reference point")


def lower_envelope(reference: ReferenceSet) -> tuple[ReferencePoint, ...]:
    """Return the reference points on their lower convex envelope, sorted by batch.

    Of the means 40, 44 and 46 epochs at the batches 1, 2 and 3, the second is dropped: the straight line from the first
    to the third point has 43 epochs there.

    Args:
        reference: The reference points of a benchmark, with all points sorted by batch.
    """
    fastest = min(reference.all_points, key=lambda point: point.mean)
    envelope: list[ReferencePoint] = []
    for point in reference.all_points:
        if point.global_batch < fastest.global_batch:  # as rcp_checker leaves such a point out
            continue
        # While the last point of the envelope lies above the line from the point before it to the new point, drop it.
        # rcp_checker compares each point with its neighbours only once, so rcp_checker keeps some points that lie above
        # the envelope (mlcommons/logging #368).
        while len(envelope) >= 2 and _is_above_line(envelope[-1], low=envelope[-2], high=point):
            envelope.pop()
        envelope.append(point)
    return tuple(envelope)


def _is_above_line(point: ReferencePoint, *, low: ReferencePoint, high: ReferencePoint) -> bool:
    """Return whether a point's mean lies above the line between the points of a lower and a higher batch.

    Args:
        point: The reference point in the middle.
        low: The point of the lower batch.
        high: The point of the higher batch.
    """
    return point.mean > _value_on_line(point.global_batch, low.global_batch, high.global_batch, low.mean, high.mean)


def _allowed_samples(benchmark: str, ruleset: str) -> int:
    """Return by how many samples a submission's mean may be below the limit of rcp_checker's t-test and still pass.

    Args:
        benchmark: The name of the benchmark, such as "resnet".
        ruleset: The version of the rules, such as 5.0.0.

    Returns:
        46,080 for llama31_405b from ruleset 5.0.0 on; 0 for any other.
    """
    if benchmark not in ALLOWED_SAMPLES:
        return 0
    since, samples = ALLOWED_SAMPLES[benchmark]
    is_in_force = rule_files.numbers_of_version(ruleset) >= rule_files.numbers_of_version(since)
    return samples if is_in_force else 0


def _point_of_record(record: Mapping[str, Any], submission_runs: int, allowed_samples: int) -> ReferencePoint:
    """Return the reference point for one global batch, computed from the reference's runs as rcp_checker does.

    Args:
        record: A record of mlperf-logging's file of reference points, with the batch, the epochs (or samples) of each
            run and the hyperparameters.
        submission_runs: How many runs a submission has. The limit of the t-test depends on this number.
        allowed_samples: By how many samples a submission's mean may be below the limit of the t-test and still pass.
            The number is 0 for all benchmarks that count epochs.
    """
    field_of_runs = "Epochs to converge" if "Epochs to converge" in record else "samples to converge"
    all_runs = sorted(record[field_of_runs])  # the epochs (or samples) of each run
    # As in rcp_checker, the benchmark is the one that the record names, which may differ from the submission's.
    kept_runs = _without_fastest_and_slowest(all_runs, rounds.dropped_runs(record["Benchmark"]))
    mean_of_kept = _numpy_mean(kept_runs)
    std_of_all = _numpy_std(all_runs)  # as in rcp_checker, although all else is of the kept runs
    least = _least_mean_by_t_test(
        mean_of_kept, std_of_all, reference_runs=len(kept_runs), submission_runs=submission_runs
    )
    return ReferencePoint(
        global_batch=record["BS"],
        mean=mean_of_kept,
        std=std_of_all,
        least=least - allowed_samples,
        hyperparameters=record["Hyperparams"],
    )


def _points_kept_by_tool(points: Sequence[ReferencePoint]) -> tuple[ReferencePoint, ...]:
    """Return the reference points that rcp_checker keeps, sorted by batch.

    It drops the points with a smaller batch than the fastest point has, and then each point above the line between its
    neighbours. As in rcp_checker this is one pass: a point that was kept is not looked at again.

    Args:
        points: All points of a benchmark, sorted by batch; at least one.
    """
    fastest = min(points, key=lambda point: point.mean)
    kept = [point for point in points if point.global_batch >= fastest.global_batch]
    index = 1
    while index < len(kept) - 1:
        if _is_above_line(kept[index], low=kept[index - 1], high=kept[index + 1]):
            del kept[index]  # the next point then has this index
        else:
            index += 1
    return tuple(kept)


def _interpolated(batch: int, low: ReferencePoint, high: ReferencePoint, reference: ReferenceSet) -> ReferencePoint:
    """Return a reference point for a global batch that lies between the batches of two points, as rcp_checker does.

    Its mean and its standard deviation are interpolated linearly. From them a t-test gives the least mean that passes.

    Args:
        batch: The global batch.
        low: The point of the next lower batch.
        high: The point of the next higher batch.
        reference: The set that both points are from.
    """
    mean = _value_on_line(batch, low.global_batch, high.global_batch, low.mean, high.mean)
    std = _value_on_line(batch, low.global_batch, high.global_batch, low.std, high.std)
    runs_of_submission = reference.runs.runs
    # The t-test needs a number of runs, and an interpolated point has none. rcp_checker takes twice the submission's.
    runs_of_reference = 2 * runs_of_submission
    least = _least_mean_by_t_test(mean, std, reference_runs=runs_of_reference, submission_runs=runs_of_submission)
    allowed_samples = _allowed_samples(reference.benchmark, reference.ruleset)  # 0 for all but one benchmark
    return ReferencePoint(global_batch=batch, mean=mean, std=std, least=least - allowed_samples)


def _value_on_line(batch: int, low_batch: int, high_batch: int, low: float, high: float) -> float:
    """Return the value at a batch on the line between two points, computed in the order of numpy.interp.

    Args:
        batch: The batch for which the value is wanted.
        low_batch: The batch of the one point.
        high_batch: The batch of the other point.
        low: The value of the one point.
        high: The value of the other point.
    """
    slope = (high - low) / (high_batch - low_batch)
    return slope * (batch - low_batch) + low


def _least_mean_by_t_test(mean: float, std: float, *, reference_runs: int, submission_runs: int) -> float:
    """Return the lowest mean epochs (or samples) with which the runs of a submission pass a t-test.

    They pass if the reference's runs could have such a low mean, or a lower one, by a chance of more than SIGNIFICANCE
    (5 %). The lower the mean, the smaller this chance: with a reference of 42 epochs, 41 may pass and 30 fail. So
    bisection finds the limit, as in rcp_checker.

    Args:
        mean: The mean epochs (or samples) of the reference.
        std: The standard deviation of the reference.
        reference_runs: How many runs of the reference count.
        submission_runs: How many runs a submission has. Its fastest and slowest one do not count in the t-test.
    """
    if std == 0:  # all runs of the reference are equal, so any mean below theirs is too fast
        return mean
    counted_runs = submission_runs - _RUNS_NOT_COUNTED_IN_TEST
    # The limit lies between `fails`, a mean that is too low to pass, and `passes`, one that passes.
    fails = 0.0
    passes = mean
    while passes - fails > TOLERANCE:
        middle = (fails + passes) / 2
        p_value = _p_value_of_lower_mean(middle, mean, std, lower_count=counted_runs, reference_count=reference_runs)
        if p_value > SIGNIFICANCE:
            passes = middle
        else:
            fails = middle
    return (fails + passes) / 2


def _p_value_of_lower_mean(
    lower_mean: float, mean: float, std: float, *, lower_count: int, reference_count: int
) -> float:
    """Return the chance that runs like the reference's have a mean as low as a given one, or lower.

    This is a one-sided Student's t-test for two means, with one standard deviation for both samples:

        t = (lower_mean - mean) / (std * sqrt(1 / reference_count + 1 / lower_count))

    Args:
        lower_mean: The given mean, of epochs (or samples).
        mean: The mean of the reference's runs.
        std: The standard deviation of both samples, above 0.
        lower_count: How many runs have the given mean.
        reference_count: How many runs the reference has.
    """
    standard_error = std * math.sqrt(1 / reference_count + 1 / lower_count)
    t = (lower_mean - mean) / standard_error
    degrees_of_freedom = reference_count + lower_count - 2
    return t_cdf(t, degrees_of_freedom)


def _numpy_mean(values: Sequence[float]) -> float:
    """Return the mean, with the same digits as numpy.mean."""
    return _numpy_sum(values) / len(values)


def _numpy_std(values: Sequence[float]) -> float:
    """Return the standard deviation of the population, as numpy.std computes it."""
    mean = _numpy_mean(values)
    squares = [(value - mean) * (value - mean) for value in values]
    return math.sqrt(_numpy_sum(squares) / len(values))


def _numpy_sum(values: Sequence[float]) -> float:
    """Return the sum of up to 128 numbers, added in numpy's order, so that it has the same digits as numpy.sum.

    The numbers are written in rows of eight. The full rows are summed first. Then the numbers of the last row, if it is
    not full, are added one after the other.

    Args:
        values: The numbers.
    """
    count_in_full_rows = len(values) - len(values) % 8
    total = _sum_of_full_rows(values[:count_in_full_rows])
    for value in values[count_in_full_rows:]:
        total += value
    return total


def _sum_of_full_rows(values: Sequence[float]) -> float:
    """Return the sum of rows of eight numbers: first each column is summed, then these sums are added in pairs.

    numpy adds in this order. Sums of floats in another order may differ in their last digits.

    Args:
        values: The numbers, row after row; a multiple of eight.
    """
    columns = [0.0] * 8
    for index, value in enumerate(values):
        columns[index % 8] += value
    left = (columns[0] + columns[1]) + (columns[2] + columns[3])
    right = (columns[4] + columns[5]) + (columns[6] + columns[7])
    return left + right
