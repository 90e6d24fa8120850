"""Reference convergence points and the test of a submission against them, as mlperf-logging's rcp_checker computes it.

A reference converged at some global batches in so many epochs (or samples). A submission that needs fewer than the
reference could by chance is refused; one that needs fewer than its mean has its minutes scaled up. Sums are added in
numpy's order, so that every figure equals the tool's to the last digit, without its imports (numpy, scipy, pandas).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compliance.official import rounds, rule_files
from compliance.official.rounds import SubmissionRuns
from runlog.stats import t_cdf

SIGNIFICANCE = 0.05  # rcp_checker: alpha of the one-sided t-test
TOLERANCE = 0.0001  # rcp_checker: where its search for the least mean ends
NOT_CONVERGED = 1e9  # rcp_checker: epochs of a run without success
# rcp_checker, _eval_submission_record: from v5.0 on a result of llama31_405b may be so many samples faster
ALLOWED_SAMPLES = {"llama31_405b": ("5.0.0", 46_080)}
# rcp_checker, read_submission_file: the benchmarks whose evaluations name the samples trained on, not the epoch
COUNTED_IN_SAMPLES = frozenset(
    {"llama2_70b_lora", "flux1", "llama31_405b", "llama31_8b", "gpt_oss_20b", "deepseekv3_671b", "qwen35_397b_grpo"}
    | {"dlrmv4"}
)
_EPOCHS_ARE_SAMPLES = frozenset({"bert"})  # its logs write samples as epoch_num
STABLE_DIFFUSION = "stable_diffusion"


class NoReferenceError(ValueError):
    """There is nothing that a submission could be tested against; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """How far the reference trains at one global batch, in the unit of its set; interpolated ones have no
    hyperparameters."""

    global_batch: int
    mean: float
    std: float
    least: float  # a lower mean of a submission is refused
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReferenceSet:
    """The points of one benchmark in one round, by global batch."""

    benchmark: str
    ruleset: str
    unit: str  # epochs, samples or steps
    runs: SubmissionRuns  # for which rcp_checker tests
    all_points: tuple[ReferencePoint, ...]
    points: tuple[ReferencePoint, ...]  # those that rcp_checker's pruning leaves


@dataclass(frozen=True, kw_only=True)
class HeldTo:
    """The point that a global batch is held to, and which it is in words."""

    point: ReferencePoint
    reason: str


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """The test of one submission against the points. `scaling` multiplies its minutes."""

    passed: bool
    reason: str
    mean: float | None = None  # of the submission's runs
    point: ReferencePoint | None = None
    scaling: float = 1.0


@functools.cache
def reference_set(benchmark: str, ruleset: str) -> ReferenceSet:
    """Return the reference convergence points of a benchmark in a ruleset, such as 4.0.0, sorted by batch.

    Such a point says how far the reference trained, at one global batch, until it reached the target. Raises
    NoReferenceError where mlperf-logging has none, or its rcp_checker cannot test the benchmark.
    """
    try:
        records = rule_files.reference_points(f"rcps_{benchmark}.json", ruleset)
    except KeyError:
        tool = f"mlperf-logging {rule_files.VERSION}"
        raise NoReferenceError(f"{tool} has no reference points of {benchmark} for ruleset {ruleset}") from None
    count = rounds.runs_in_convergence_test(benchmark)
    if count is None:
        raise NoReferenceError(
            f"rcp_checker of mlperf-logging {rule_files.VERSION} knows no number of runs of {benchmark} and ends"
        )
    runs = SubmissionRuns(runs=count, dropped=rounds.dropped_runs(benchmark))
    points = [_point_of_record(record, runs, _allowed_samples(benchmark, ruleset)) for record in records.values()]
    points.sort(key=lambda point: point.global_batch)
    return ReferenceSet(
        benchmark=benchmark,
        ruleset=ruleset,
        unit=unit_of(benchmark, ruleset),
        runs=runs,
        all_points=tuple(points),
        points=_points_kept_by_tool(points, runs),
    )


def unit_of(benchmark: str, ruleset: str) -> str:
    """Return the unit in which the convergence of a benchmark is counted: epochs, samples or steps."""
    if benchmark == STABLE_DIFFUSION:
        return "steps" if ruleset == "3.1.0" else "samples"
    return "samples" if benchmark in COUNTED_IN_SAMPLES | _EPOCHS_ARE_SAMPLES else "epochs"


def against_reference(
    values: Sequence[float], batch: int, reference: ReferenceSet, points: Sequence[ReferencePoint] | None = None
) -> Convergence:
    """Test whether the runs of a submission converge no faster than the reference could.

    `values` are the epochs (or samples) that each run took to the target at the global batch `batch`; NOT_CONVERGED for
    a run that did not reach it. The submission passes if their mean, without the fastest and the slowest, is no lower
    than the least mean of the reference at this batch. A mean that passes and is lower than the reference's own makes
    the result's `scaling` larger than 1, by which the minutes are multiplied.

    The submission fails, too, if too many of its runs did not converge, if they are too few for such a mean, or if the
    batch is larger than any of the reference. `points` takes the place of `reference.points`.
    """
    dropped = reference.runs.dropped
    not_converged = [value for value in values if value >= NOT_CONVERGED]
    if len(not_converged) > dropped:
        allowed = "one run" if dropped == 1 else f"{dropped} runs"
        return Convergence(passed=False, reason=f"more than {allowed} did not converge")
    kept = sorted(values)[dropped : len(values) - dropped]
    if not kept:
        least = 2 * dropped + 1
        return Convergence(passed=False, reason=f"{len(values)} runs: no olympic mean of fewer than {least}")
    held_to = point_at(batch, reference.points if points is None else points, reference)
    if held_to is None:
        return Convergence(passed=False, reason=f"no reference point for a global batch of {batch}")

    point = held_to.point
    mean = _numpy_sum(kept) / len(kept)
    least_mean = point.mean / (point.mean / point.least)  # not point.least: rcp_checker divides, which may round
    passed = mean >= least_mean
    scaling = 1.0
    if passed and mean < point.mean:
        scaling = point.mean / mean
    return Convergence(passed=passed, reason=held_to.reason, mean=mean, point=point, scaling=scaling)


def point_at(batch: int, points: Sequence[ReferencePoint], reference: ReferenceSet) -> HeldTo | None:
    """Return the reference point with which a submission of a global batch is compared, and a word on which it is.

    `points` are those of `reference`, or some of them, sorted by batch. The point is the one at this batch. For a batch
    between two of them it is interpolated on the line between these, for a batch below all of them it is the first.
    None for a batch above all of them.
    """
    lower = [point for point in points if point.global_batch < batch]
    equal_or_higher = [point for point in points if point.global_batch >= batch]
    if not equal_or_higher:
        return None
    next_point = equal_or_higher[0]
    if next_point.global_batch == batch:
        return HeldTo(point=next_point, reason="reference point")
    if not lower:
        return HeldTo(point=next_point, reason=f"reference point of the least batch, {next_point.global_batch}")
    between = _interpolated(batch, lower[-1], next_point, reference.runs)
    allowed = _allowed_samples(reference.benchmark, reference.ruleset)
    if allowed:  # the points of the reference have it taken off already
        between = replace(between, least=between.least - allowed)
    return HeldTo(point=between, reason="interpolated reference point")


def lower_envelope(reference: ReferenceSet) -> tuple[ReferencePoint, ...]:
    """Return the lower convex envelope of the reference points: those that lie above no line between two others.

    In the plane, a point's x is its batch and its y the mean epochs to the target. Points of a smaller batch than that
    of the point with the fewest epochs are left out. rcp_checker is meant to keep the same points, but keeps some above
    the envelope: it compares each point with its neighbours once, and not again after a later point was dropped
    (mlcommons/logging #368).
    """
    fastest = min(reference.all_points, key=lambda point: point.mean)
    envelope: list[ReferencePoint] = []
    for point in reference.all_points:  # sorted by batch
        if point.global_batch < fastest.global_batch:
            continue
        # Drop the points that lie above the line from the point before them to this one.
        while len(envelope) >= 2 and _is_above_line(envelope[-1], envelope[-2], point):
            envelope.pop()
        envelope.append(point)
    return tuple(envelope)


def _is_above_line(point: ReferencePoint, low: ReferencePoint, high: ReferencePoint) -> bool:
    """Return whether a point's mean lies above the line between the points of a lower and a higher batch."""
    return point.mean > _value_on_line(point.global_batch, low.global_batch, high.global_batch, low.mean, high.mean)


def _allowed_samples(benchmark: str, ruleset: str) -> int:
    """Return by how many samples a result of the benchmark may be faster than the least mean; 0 for most."""
    since, samples = ALLOWED_SAMPLES.get(benchmark, ("", 0))
    return samples if ruleset >= since else 0


def _point_of_record(record: Mapping[str, Any], runs: SubmissionRuns, allowed: int) -> ReferencePoint:
    """Return the reference point of a record, which has the reference's runs at one global batch.

    The point's mean is that of the epochs (or samples) of these runs, without the fastest and the slowest. Its standard
    deviation is that of all of them. Its least mean is the lowest that a submission may have, which depends on the
    number of the submission's `runs`, less the samples by which the benchmark is `allowed` to be faster.
    """
    unit = "Epochs to converge" if "Epochs to converge" in record else "samples to converge"
    values = sorted(record[unit])
    dropped = rounds.dropped_runs(record["Benchmark"])  # by the record's own name of it, as rcp_checker does
    kept = values[dropped : len(values) - dropped]
    mean = _numpy_sum(kept) / len(kept)
    std = _numpy_std(values)
    least = _least_mean(mean, std, len(kept), runs.runs)
    return ReferencePoint(
        global_batch=record["BS"],
        mean=mean,
        std=std,
        least=least - allowed,
        hyperparameters=record["Hyperparams"],
    )


def _points_kept_by_tool(points: Sequence[ReferencePoint], runs: SubmissionRuns) -> tuple[ReferencePoint, ...]:
    """Return those of the reference points that rcp_checker keeps. They are sorted by batch, as `points` are.

    Dropped are points of a smaller batch than that of the point with the least mean, and those whose mean is above the
    line between the points before and after them. As in that tool this is one pass: no point is looked at again after a
    later one was dropped.
    """
    fastest = min(points, key=lambda point: point.mean)
    kept = [point for point in points if point.global_batch >= fastest.global_batch]
    index = 1
    while index < len(kept) - 1:
        between = _interpolated(kept[index].global_batch, kept[index - 1], kept[index + 1], runs)
        if kept[index].mean > between.mean:
            del kept[index]
        else:
            index += 1
    return tuple(kept)


def _interpolated(batch: int, low: ReferencePoint, high: ReferencePoint, runs: SubmissionRuns) -> ReferencePoint:
    """Return the point at `batch` on the line from `low` to `high`."""
    mean = _value_on_line(batch, low.global_batch, high.global_batch, low.mean, high.mean)
    std = _value_on_line(batch, low.global_batch, high.global_batch, low.std, high.std)
    return ReferencePoint(
        global_batch=batch, mean=mean, std=std, least=_least_mean(mean, std, runs.runs * 2, runs.runs)
    )


def _value_on_line(batch: int, low_batch: int, high_batch: int, low: float, high: float) -> float:
    """Return the value at `batch` on the line from `low` to `high`, computed in the order of numpy.interp."""
    return (high - low) / (high_batch - low_batch) * (batch - low_batch) + low


def _least_mean(mean: float, std: float, reference_runs: int, runs: int) -> float:
    """Return the lowest mean of a submission that may still be the reference's mean by chance.

    The two means are compared by Student's t-test, one-sided, with the same standard deviation `std` of both. `mean` is
    the reference's, of `reference_runs` runs, and `runs` those of a submission. The lowest mean is found by halving an
    interval, as rcp_checker does, to within 0.0001.
    """
    if std == 0:
        return mean
    counted_runs = runs - 2  # as rcp_checker counts them, of unet3d too, whose mean leaves out eight
    error = std * math.sqrt(1 / reference_runs + 1 / counted_runs)
    degrees_of_freedom = reference_runs + counted_runs - 2
    low = 0.0
    high = mean
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        is_by_chance = t_cdf((middle - mean) / error, degrees_of_freedom) > SIGNIFICANCE
        if is_by_chance:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _numpy_std(values: Sequence[float]) -> float:
    """Return the standard deviation of the population, as numpy.std computes it."""
    mean = _numpy_sum(values) / len(values)
    squares = [(value - mean) * (value - mean) for value in values]
    return math.sqrt(_numpy_sum(squares) / len(values))


def _numpy_sum(values: Sequence[float]) -> float:
    """Return the sum of up to 128 numbers, added in the order in which numpy adds them, so that it has the same digits.

    The numbers are taken in rows of eight, and each column is summed by itself: of 0 to 19, the first column is 0 + 8.
    The eight sums are added in pairs, and those in pairs again. The numbers that fill no row are added at the end, one
    by one.
    """
    in_rows = len(values) - len(values) % 8
    total = 0.0
    if in_rows:
        columns = [float(value) for value in values[:8]]
        for index in range(8, in_rows):
            columns[index % 8] += values[index]
        left = (columns[0] + columns[1]) + (columns[2] + columns[3])
        right = (columns[4] + columns[5]) + (columns[6] + columns[7])
        total = left + right
    for value in values[in_rows:]:
        total += value
    return total
