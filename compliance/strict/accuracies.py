"""The evaluations of a run: when they were done, on how many samples, and whether a training has such a curve."""

import itertools
from collections.abc import Iterable, Sequence

from compliance.logged_run import COUNT, EVENTS_KEPT, Evaluation, LoggedRun, has_type
from compliance.rules import Benchmark, Collected
from compliance.strict.run_order import RunOrder
from runlog import schema

SCHEDULE = "eval-schedule"
SAMPLES = "eval-samples"
CURVE = "accuracy-curve"
_ROUNDED = 5e-7  # an accuracy of six digits; single precision is finer
_LEAST_VALUES = 3  # each is a whole number of 50,000 by a chance of 5 %
_COUNT_TOLERANCE = 0.012  # of a count of images, by an accuracy in single precision
_CHANCE = 1e-3  # at most, that some count of samples fits all accuracies by accident


# --- the data set ---


def is_own_data(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Whether a run is on the benchmark's data set; eval_samples may count padding."""
    samples = run.of(schema.EVAL_SAMPLES).value
    if run.of(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(samples, COUNT):
        return False
    padding = samples - benchmark.eval_samples
    return 0 <= padding < max(run.count(schema.GLOBAL_BATCH_SIZE), 1)


def counts_batches(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Whether eval_samples is no number of samples, as the accuracies are whole numbers of the benchmark's."""
    samples = run.of(schema.EVAL_SAMPLES).value
    if run.of(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(samples, COUNT):
        return False
    values = {one.value for one in run.evaluations}
    if len(values) < _LEAST_VALUES or not all_whole(values, benchmark.eval_samples):
        return False
    return not all_whole(values, samples)


# --- the schedule ---


def check_schedule(run: LoggedRun, order: RunOrder, *, exact: bool, collected: Collected) -> None:
    """Collect evaluations off the schedule; without `exact` more of them are no breach.

    By their numbers, unless as many epochs were started or announced between them as the schedule asks for.
    """
    period = int(collected.strict[SCHEDULE].bounds["epochs"])
    if _is_on_schedule_by_counts(run, order, period):
        return
    previous = None
    for evaluation in run.evaluations:
        epoch = evaluation.epoch
        line = evaluation.line
        if epoch == 0:
            continue  # of the initial weights
        if previous is None and epoch > period:
            collected.breach(SCHEDULE, line, f"the first evaluation is of epoch {epoch}")
        elif previous is not None and (epoch - previous > period or (exact and epoch - previous != period)):
            collected.breach(SCHEDULE, line, f"an evaluation of epoch {epoch}, {epoch - previous} after the one before")
        previous = epoch

    count = run.number(schema.EVAL_ACCURACY)
    if count > EVENTS_KEPT:
        collected.breach(SCHEDULE, None, f"{count} evaluations")
    if previous is not None and order.last_epoch is not None and order.last_epoch - previous >= period:
        actual = f"the last evaluation is of epoch {previous}, the last epoch {order.last_epoch}"
        collected.breach(SCHEDULE, run.evaluations[-1].line, actual)


def _is_on_schedule_by_counts(run: LoggedRun, order: RunOrder, period: int) -> bool:
    counts = [one.trained for one in run.evaluations if one.trained]
    if len(counts) < 2:
        return False
    steps = {after - before for before, after in itertools.pairwise(counts)}
    gaps = [after.epoch - before.epoch for before, after in itertools.pairwise(run.evaluations)]
    left = order.epochs_counted - counts[-1]
    return steps == {period} and counts[0] <= period and left < period and max(gaps) <= period


# --- whole numbers of samples ---


def check_samples(run: LoggedRun, samples: int, collected: Collected) -> None:
    """Collect accuracies of fewer than `samples` samples; those of more, as padding counts, only warn."""
    off = [one for one in run.evaluations if not all_whole([one.value], samples)]
    if not off:
        return
    counted = _samples_counted(run, samples)
    if counted is None:  # means over workers' shares, of which no text speaks
        return
    of = f"the accuracies are whole numbers of {counted} samples"
    if counted > samples:
        actual = f"{of}: {counted - samples} of padding count"
        collected.breach(SAMPLES, off[0].line, actual, severity="warning")
    else:
        collected.breach(SAMPLES, off[0].line, f"{of}: {samples - counted} of {samples} are left out")


def _samples_counted(run: LoggedRun, samples: int) -> int | None:
    """The number of samples, a batch more or less, of which all accuracies are whole; None if one may fit by chance."""
    batch = run.global_batch or 0
    if batch > samples:
        batch = 0
    candidates = range(max(samples - batch, 1), samples + batch)
    values = {one.value for one in run.evaluations}
    if len(candidates) * (2 * _COUNT_TOLERANCE) ** len(values) >= _CHANCE:
        return None
    for count in candidates:
        if all(_is_whole(value * count, _COUNT_TOLERANCE) for value in values):
            return count
    return None


def all_whole(values: Iterable[float], samples: float) -> bool:
    """Whether accuracies are whole numbers of `samples`, to six digits."""
    tolerance = max(0.01, samples * _ROUNDED)
    return all(_is_whole(value * samples, tolerance) for value in values)


def _is_whole(count: float, tolerance: float) -> bool:
    # any count is within half; that of 10^18 samples may be infinite, which has no whole number
    return tolerance >= 0.5 or abs(count - round(count)) <= tolerance


# --- the curve ---


def check_curve(evaluations: Sequence[Evaluation], target: float, collected: Collected) -> None:
    """Collect what no training has: an accuracy too high, a last rise too large, too few rises up to the target."""
    bounds = collected.strict[CURVE].bounds
    best = max(evaluations, key=lambda one: one.value, default=None)
    if best is not None and best.value > bounds["most_accurate"]:
        actual = f"top-1 {best.value:.6g}; none of ResNet-50's is over {bounds['most_accurate']}"
        collected.breach(CURVE, best.line, actual)

    curve = _up_to_target(evaluations, target)
    if len(curve) < bounds["evaluations"]:
        return
    values = [one.value for one in curve]
    rises = sum(after > before for before, after in itertools.pairwise(values)) / (len(values) - 1)
    if values[-2] < target - bounds["last_rise"]:
        collected.breach(CURVE, curve[-1].line, f"{values[-2]:.6g} at one evaluation, {values[-1]:.6g} at the next")
    elif rises < bounds["share_of_rises"]:
        actual = f"{rises:.0%} of its evaluations are better than the one before"
        collected.breach(CURVE, curve[-1].line, actual)


def _up_to_target(evaluations: Sequence[Evaluation], target: float) -> Sequence[Evaluation]:
    """The evaluations to the first that reached the target; none if none did."""
    for place, evaluation in enumerate(evaluations):
        if evaluation.value >= target:
            return evaluations[: place + 1]
    return []
