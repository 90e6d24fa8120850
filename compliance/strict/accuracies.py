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
    """Return whether a run states the numbers of samples of the benchmark's data set.

    The number of evaluation samples may be larger by less than a global batch, which counts padding.
    """
    samples = run.of(schema.EVAL_SAMPLES).value
    if run.of(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(samples, COUNT):
        return False
    padding = samples - benchmark.eval_samples
    return 0 <= padding < max(run.count(schema.GLOBAL_BATCH_SIZE), 1)


def counts_batches(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Return whether a run on the benchmark's data set has stated batches, or another number, as its eval_samples.

    Its accuracies show it: they are whole numbers of the benchmark's samples, and not of the stated ones.
    """
    samples = run.of(schema.EVAL_SAMPLES).value
    if run.of(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(samples, COUNT):
        return False
    values = {evaluation.value for evaluation in run.evaluations}
    if len(values) < _LEAST_VALUES or not all_whole(values, benchmark.eval_samples):
        return False
    return not all_whole(values, samples)


# --- the schedule ---


def check_schedule(run: LoggedRun, order: RunOrder, *, exact: bool, collected: Collected) -> None:
    """Collect the evaluations of a closed ResNet run that are off the schedule, by the epochs that they state.

    There must be one every 4 epochs, the first of them after epoch 1, 2, 3 or 4, and none may be missing at the end.
    Evaluations more often than that are a breach only where `exact` is true. A run that numbers its epochs in a way of
    its own is on the schedule if its events started or announced as many epochs between the evaluations.
    """
    period = int(collected.strict[SCHEDULE].bounds["epochs"])
    evaluations = [evaluation for evaluation in run.evaluations if evaluation.epoch != 0]  # 0: of the initial weights
    if not evaluations or _is_on_schedule_by_counts(run, order, period):
        return
    first = evaluations[0]
    if first.epoch > period:
        collected.breach(SCHEDULE, first.line, f"the first evaluation is of epoch {first.epoch}")
    for before, after in itertools.pairwise(evaluations):
        gap = after.epoch - before.epoch
        if gap > period or (exact and gap != period):
            actual = f"an evaluation of epoch {after.epoch}, {gap} after the one before"
            collected.breach(SCHEDULE, after.line, actual)
    count = run.number(schema.EVAL_ACCURACY)
    if count > EVENTS_KEPT:  # of which some were not kept, so nobody looked at them
        collected.breach(SCHEDULE, None, f"{count} evaluations")
    last = evaluations[-1]
    if order.last_epoch is not None and order.last_epoch - last.epoch >= period:
        actual = f"the last evaluation is of epoch {last.epoch}, the last epoch {order.last_epoch}"
        collected.breach(SCHEDULE, last.line, actual)


def _is_on_schedule_by_counts(run: LoggedRun, order: RunOrder, period: int) -> bool:
    """Return whether evaluations are on the schedule by the epochs that were started before them, whatever the labels.

    There must be `period` of them between two evaluations, no more before the first one, and fewer after the last one.
    The labels may then be shifted, but two evaluations in turn may not be labelled more than `period` apart.
    """
    epochs_started = [evaluation.trained for evaluation in run.evaluations if evaluation.trained]
    if len(epochs_started) < 2:
        return False
    gaps = {after - before for before, after in itertools.pairwise(epochs_started)}
    labelled_gaps = [after.epoch - before.epoch for before, after in itertools.pairwise(run.evaluations)]
    started_after_last = order.epochs_counted - epochs_started[-1]

    is_regular = gaps == {period}
    is_whole = epochs_started[0] <= period and started_after_last < period
    return is_regular and is_whole and max(labelled_gaps) <= period


# --- whole numbers of samples ---


def check_samples(run: LoggedRun, samples: int, collected: Collected) -> None:
    """Collect a breach where a run's accuracies were not counted on `samples` samples, the size of the evaluation set.

    An accuracy is the number of right samples over all: 0.76002 is 38,001 of 50,000. Where 0.76002 times `samples` is
    no whole number, another number of samples is looked for that makes all accuracies whole. If it is smaller than
    `samples`, some were left out, which is an error. If it is larger, the last batch may have been padded, which just
    warns. If there is none, the accuracies are means over the workers' shares, which no rule forbids.
    """
    unexplained = [evaluation for evaluation in run.evaluations if not all_whole([evaluation.value], samples)]
    if not unexplained:
        return
    counted = _find_number_of_samples(run, samples)
    if counted is None:
        return
    whole = f"the accuracies are whole numbers of {counted} samples"
    line = unexplained[0].line
    if counted > samples:
        actual = f"{whole}: {counted - samples} of padding count"
        collected.breach(SAMPLES, line, actual, severity="warning")
    else:
        collected.breach(SAMPLES, line, f"{whole}: {samples - counted} of {samples} are left out")


def _find_number_of_samples(run: LoggedRun, samples: int) -> int | None:
    """Return the least number near `samples` that makes every accuracy of a run a whole number of right samples.

    The candidates reach from a global batch below `samples` to one above it. Return None where none of them fits, or
    where the accuracies are so few that some candidate may fit by accident: a wrong number comes within the tolerance
    of a whole one with a chance of 2.4 % (0.012 below and above it) for each different accuracy.
    """
    batch = run.global_batch or 0
    if batch > samples:
        batch = 0
    candidates = range(max(samples - batch, 1), samples + batch)

    values = {evaluation.value for evaluation in run.evaluations}
    chance_of_one = (2 * _COUNT_TOLERANCE) ** len(values)
    chance_of_any = len(candidates) * chance_of_one  # at most
    if chance_of_any >= _CHANCE:
        return None

    for candidate in candidates:
        if all(_is_whole(value * candidate, _COUNT_TOLERANCE) for value in values):
            return candidate
    return None


def all_whole(values: Iterable[float], samples: float) -> bool:
    """Return whether accuracies, which are written with six digits, are whole numbers of `samples` samples."""
    tolerance = max(0.01, samples * _ROUNDED)
    return all(_is_whole(value * samples, tolerance) for value in values)


def _is_whole(count: float, tolerance: float) -> bool:
    # any count is within half; that of 10^18 samples may be infinite, which has no whole number
    return tolerance >= 0.5 or abs(count - round(count)) <= tolerance


# --- the curve ---


def check_curve(evaluations: Sequence[Evaluation], target: float, collected: Collected) -> None:
    """Collect what no training of ResNet-50 shows in its accuracies, by the bounds of the rule `accuracy-curve`.

    No accuracy may be over 0.8. Where a run took at least five evaluations to reach `target`, the last of them may not
    be a leap, and most must be better than the one before.
    """
    bounds = collected.strict[CURVE].bounds
    best = max(evaluations, key=lambda evaluation: evaluation.value, default=None)
    if best is not None and best.value > bounds["most_accurate"]:
        actual = f"top-1 {best.value:.6g}; none of ResNet-50's is over {bounds['most_accurate']}"
        collected.breach(CURVE, best.line, actual)

    place = place_of_target(evaluations, target)
    if place is None or place + 1 < bounds["evaluations"]:
        return
    values = [evaluation.value for evaluation in evaluations[: place + 1]]  # up to the target
    line = evaluations[place].line
    before_last = values[-2]
    is_a_leap = before_last < target - bounds["last_rise"]
    rises = 0
    for before, after in itertools.pairwise(values):
        if after > before:
            rises += 1
    share_of_rises = rises / (len(values) - 1)
    if is_a_leap:
        collected.breach(CURVE, line, f"{before_last:.6g} at one evaluation, {values[-1]:.6g} at the next")
    elif share_of_rises < bounds["share_of_rises"]:
        collected.breach(CURVE, line, f"{share_of_rises:.0%} of its evaluations are better than the one before")


def place_of_target(evaluations: Sequence[Evaluation], target: float) -> int | None:
    """Return the place of the first evaluation that reached the target; None if none did."""
    for place, evaluation in enumerate(evaluations):
        if evaluation.value >= target:
            return place
    return None
