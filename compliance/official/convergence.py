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
    """The reference convergence points of a benchmark. Raises NoReferenceError where mlperf-logging tests none."""
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
    points = [_point(record, runs, _allowed_samples(benchmark, ruleset)) for record in records.values()]
    points.sort(key=lambda point: point.global_batch)
    return ReferenceSet(
        benchmark=benchmark,
        ruleset=ruleset,
        unit=unit_of(benchmark, ruleset),
        runs=runs,
        all_points=tuple(points),
        points=_pruned(points, runs),
    )


def unit_of(benchmark: str, ruleset: str) -> str:
    """The unit in which the convergence of a benchmark is counted."""
    if benchmark == STABLE_DIFFUSION:
        return "steps" if ruleset == "3.1.0" else "samples"
    return "samples" if benchmark in COUNTED_IN_SAMPLES | _EPOCHS_ARE_SAMPLES else "epochs"


def against_reference(
    values: Sequence[float], batch: int, reference: ReferenceSet, points: Sequence[ReferencePoint] | None = None
) -> Convergence:
    """Whether runs that took `values` to the target at the global batch converge no faster than the reference could.

    `points` takes the place of the reference's pruned points. A run without success counts NOT_CONVERGED.
    """
    dropped = reference.runs.dropped
    failed = [value for value in values if value >= NOT_CONVERGED]
    if len(failed) > dropped:
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
    passed = mean >= point.mean / (point.mean / point.least)  # as rcp_checker divides
    faster = mean < point.mean
    scaling = point.mean / mean if passed and faster else 1.0
    return Convergence(passed=passed, reason=held_to.reason, mean=mean, point=point, scaling=scaling)


def point_at(batch: int, points: Sequence[ReferencePoint], reference: ReferenceSet) -> HeldTo | None:
    """The one of `points` (by batch) that a global batch is held to; None above the largest."""
    lower = [point for point in points if point.global_batch < batch]
    higher = points[len(lower) :]
    if not higher:
        return None
    nearest = higher[0]
    if nearest.global_batch == batch:
        return HeldTo(point=nearest, reason="reference point")
    if not lower:
        return HeldTo(point=nearest, reason=f"reference point of the least batch, {nearest.global_batch}")
    between = _interpolated(batch, lower[-1], nearest, reference.runs)
    allowed = _allowed_samples(reference.benchmark, reference.ruleset)
    if allowed:
        between = replace(between, least=between.least - allowed)
    return HeldTo(point=between, reason="interpolated reference point")


def lower_envelope(reference: ReferenceSet) -> tuple[ReferencePoint, ...]:
    """The lower convex envelope of all points from the fastest one's batch on.

    rcp_checker's pruning means it and misses it: it compares each point with its neighbours once and never again
    after a later point went (its own comment says so; mlcommons/logging #368).
    """
    fastest = min(reference.all_points, key=lambda point: point.mean)
    hull: list[ReferencePoint] = []
    for point in reference.all_points:
        if point.global_batch < fastest.global_batch:
            continue
        while len(hull) >= 2 and _is_above_line(hull[-1], hull[-2], point):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def _is_above_line(point: ReferencePoint, low: ReferencePoint, high: ReferencePoint) -> bool:
    return point.mean > _between(point.global_batch, low.global_batch, high.global_batch, low.mean, high.mean)


def _allowed_samples(benchmark: str, ruleset: str) -> int:
    since, samples = ALLOWED_SAMPLES.get(benchmark, ("", 0))
    return samples if ruleset >= since else 0


def _point(record: Mapping[str, Any], runs: SubmissionRuns, allowed: int) -> ReferencePoint:
    """A record of the reference's runs as a point; like rcp_checker, it drops by the record's own benchmark name."""
    values = sorted(record["Epochs to converge"] if "Epochs to converge" in record else record["samples to converge"])
    dropped = rounds.dropped_runs(record["Benchmark"])
    kept = values[dropped : len(values) - dropped]
    mean = _numpy_sum(kept) / len(kept)
    std = _numpy_std(values)
    least = _least_mean(mean, std, len(values) - 2 * dropped, runs.runs)
    return ReferencePoint(
        global_batch=record["BS"],
        mean=mean,
        std=std,
        least=least - allowed,
        hyperparameters=record["Hyperparams"],
    )


def _pruned(points: Sequence[ReferencePoint], runs: SubmissionRuns) -> tuple[ReferencePoint, ...]:
    """The points that rcp_checker keeps: from the fastest one's batch on, less those slower than the line between
    their neighbours. One pass, in which a removed point's place is taken by the next one."""
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
    """The point at `batch` on the line from `low` to `high`."""
    mean = _between(batch, low.global_batch, high.global_batch, low.mean, high.mean)
    std = _between(batch, low.global_batch, high.global_batch, low.std, high.std)
    return ReferencePoint(
        global_batch=batch, mean=mean, std=std, least=_least_mean(mean, std, runs.runs * 2, runs.runs)
    )


def _between(batch: int, low_batch: int, high_batch: int, low: float, high: float) -> float:
    """The value at `batch` on the line from `low` to `high`, as numpy.interp computes it, operation by operation."""
    return (high - low) / (high_batch - low_batch) * (batch - low_batch) + low


def _least_mean(mean: float, std: float, reference_runs: int, runs: int) -> float:
    """The lowest olympic mean that a one-sided test, Student's t of equal `std`, does not tell from the reference's.

    rcp_checker takes two runs off a submission's number, of unet3d too, which drops eight.
    """
    if std == 0:
        return mean
    error = std * math.sqrt(1 / reference_runs + 1 / (runs - 2))
    low = 0.0
    high = mean
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        if t_cdf((middle - mean) / error, reference_runs + runs - 4) > SIGNIFICANCE:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _numpy_std(values: Sequence[float]) -> float:
    """numpy.std: of the population."""
    mean = _numpy_sum(values) / len(values)
    squares = [(value - mean) * (value - mean) for value in values]
    return math.sqrt(_numpy_sum(squares) / len(values))


def _numpy_sum(values: Sequence[float]) -> float:
    """The sum of up to 128 numbers in the order in which numpy adds them: eight partial sums, then the rest."""
    whole = len(values) - len(values) % 8
    if not whole:
        total = 0.0
        for value in values:
            total += value
        return total
    partial = [float(value) for value in values[:8]]
    for index in range(8, whole):
        partial[index % 8] += values[index]
    left = (partial[0] + partial[1]) + (partial[2] + partial[3])
    right = (partial[4] + partial[5]) + (partial[6] + partial[7])
    total = left + right
    for value in values[whole:]:
        total += value
    return total
