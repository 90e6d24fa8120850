"""Reference convergence points and the score of a submission, as mlperf-logging's rcp_checker and
result_summarizer compute them, without their imports (numpy, scipy, pandas)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compliance.official import rule_files
from runlog.stats import olympic_mean, t_cdf

SIGNIFICANCE = 0.05  # rcp_checker: alpha of the one-sided t-test
TOLERANCE_EPOCHS = 0.0001  # rcp_checker: where its search for the least mean ends
NOT_CONVERGED = 1e9  # rcp_checker: epochs of a run without success


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """How many epochs the reference needs at one global batch; interpolated ones have no hyperparameters."""

    global_batch: int
    mean_epochs: float
    std_epochs: float
    least_epochs: float  # a lower mean of a submission is rejected
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """The test of one submission against the points. `scaling` multiplies its minutes."""

    passed: bool
    reason: str
    mean_epochs: float | None = None
    point: ReferencePoint | None = None
    scaling: float = 1.0


def reference_points(file: str, ruleset: str, runs: int) -> list[ReferencePoint]:
    """The pruned points of a benchmark, by batch, for submissions of `runs` runs.

    A point is pruned where its neighbours' interpolation converges faster, or where a larger batch does.
    """
    points = []
    for record in rule_files.reference_points(file, ruleset).values():
        epochs = sorted(record["Epochs to converge"])
        mean, center = olympic_mean(epochs), sum(epochs) / len(epochs)
        std = math.sqrt(sum((value - center) ** 2 for value in epochs) / len(epochs))
        points.append(
            ReferencePoint(
                global_batch=record["BS"],
                mean_epochs=mean,
                std_epochs=std,
                least_epochs=_least_mean(mean, std, len(epochs) - 2, runs),
                hyperparameters=record["Hyperparams"],
            )
        )
    points.sort(key=lambda point: point.global_batch)
    fastest = min(points, key=lambda point: point.mean_epochs)
    points = [point for point in points if point.global_batch >= fastest.global_batch]
    index = 1
    while index < len(points) - 1:
        between = interpolate(points[index].global_batch, points[index - 1], points[index + 1], runs)
        if points[index].mean_epochs > between.mean_epochs:
            del points[index]
        else:
            index += 1
    return points


def interpolate(batch: int, low: ReferencePoint, high: ReferencePoint, runs: int) -> ReferencePoint:
    """The point at `batch` on the line from `low` to `high`."""

    def at(low_value: float, high_value: float) -> float:  # numpy.interp, operation by operation
        slope = (high_value - low_value) / (high.global_batch - low.global_batch)
        return slope * (batch - low.global_batch) + low_value

    mean, std = at(low.mean_epochs, high.mean_epochs), at(low.std_epochs, high.std_epochs)
    least = _least_mean(mean, std, runs * 2, runs)
    return ReferencePoint(global_batch=batch, mean_epochs=mean, std_epochs=std, least_epochs=least)


def point_at(batch: int, points: Sequence[ReferencePoint], runs: int) -> tuple[ReferencePoint, str] | None:
    """Of points by batch the one that a global batch is held to, and which it is; None above the largest."""
    low = [point for point in points if point.global_batch < batch]
    high = points[len(low) :]
    if not high:
        return None
    if high[0].global_batch == batch:
        return high[0], "reference point"
    if low:
        return interpolate(batch, low[-1], high[0], runs), "interpolated reference point"
    return high[0], f"reference point of the least batch, {high[0].global_batch}"


def against_points(epochs: Sequence[float], batch: int, points: Sequence[ReferencePoint], runs: int) -> Convergence:
    """Whether runs that took `epochs` at the global batch converge no faster than the reference could.

    A run without success counts NOT_CONVERGED epochs; one such run is dropped by the olympic mean.
    """
    if sum(value >= NOT_CONVERGED for value in epochs) > 1:
        return Convergence(passed=False, reason="more than one run did not converge")
    if len(epochs) < 3:
        return Convergence(passed=False, reason=f"{len(epochs)} runs: no olympic mean of fewer than 3")
    found = point_at(batch, points, runs)
    if found is None:
        return Convergence(passed=False, reason=f"no reference point for a global batch of {batch}")
    point, how = found
    mean = olympic_mean(epochs)
    passed = mean >= point.mean_epochs / (point.mean_epochs / point.least_epochs)  # as rcp_checker divides
    factor = point.mean_epochs / mean
    scaling = factor if passed and mean < point.mean_epochs else 1.0
    return Convergence(passed=passed, reason=how, mean_epochs=mean, point=point, scaling=scaling)


def _least_mean(mean: float, std: float, reference_runs: int, runs: int) -> float:
    """The lowest olympic mean that a one-sided test, Student's t of equal `std`, does not tell from the reference's."""
    if std == 0:
        return mean
    error = std * math.sqrt(1 / reference_runs + 1 / (runs - 2))
    low, high = 0.0, mean
    while high - low > TOLERANCE_EPOCHS:
        middle = (low + high) / 2
        if t_cdf((middle - mean) / error, reference_runs + runs - 4) > SIGNIFICANCE:
            high = middle
        else:
            low = middle
    return (low + high) / 2
