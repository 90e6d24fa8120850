"""The evaluations of a run: when they were done, on how many samples, and whether a training has such a curve."""

import itertools
from collections.abc import Iterable, Sequence

from compliance.logged_run import COUNT, EVENTS_KEPT, Evaluation, LoggedRun, has_type
from compliance.rules import Benchmark, FindingCollector
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.digits import percent, six_digits

SCHEDULE = "eval-schedule"
SAMPLES = "eval-samples"
CURVE = "accuracy-curve"
_ROUNDED = 5e-7  # an accuracy of six digits; single precision is finer
_LEAST_VALUES = 3  # each is a whole number of 50,000 by a chance of 5 %
_COUNT_TOLERANCE = 0.012  # of a count of images, by an accuracy in single precision
_CHANCE = 1e-3  # at most, that some count of samples fits all accuracies by accident


# --- the data set ---


def states_benchmark_data(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Return whether a run states the numbers of samples of the benchmark's data set.

    The number of evaluation samples may be larger by less than a global batch, which counts padding.
    """
    samples = run.first_event(schema.EVAL_SAMPLES).value
    if run.first_event(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(samples, COUNT):
        return False
    padding = samples - benchmark.eval_samples
    return 0 <= padding < max(run.stated_count(schema.GLOBAL_BATCH_SIZE), 1)


def states_wrong_eval_samples(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Return whether a run on the benchmark's data set states a wrong eval_samples, as those do that count batches.

    Its accuracies show that: each is a whole number of right samples out of those of the benchmark, and not out of the
    stated ones. False where there are fewer than three different accuracies, which may be so by chance.
    """
    samples = run.first_event(schema.EVAL_SAMPLES).value
    if run.first_event(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(samples, COUNT):
        return False
    values = {evaluation.value for evaluation in run.evaluations}
    if len(values) < _LEAST_VALUES or not are_whole_numbers_of(values, benchmark.eval_samples):
        return False
    return not are_whole_numbers_of(values, samples)


# --- the schedule ---


def check_schedule(run: LoggedRun, order: RunOrder, *, exact: bool, collector: FindingCollector) -> None:
    """Collect the evaluations of a closed ResNet run that are off the schedule, by the epochs that they state.

    There must be one every 4 epochs, the first of them after epoch 1, 2, 3 or 4, and none may be missing at the end.
    Evaluations more often than that are a breach only where `exact` is true. A run that numbers its epochs in a way of
    its own is on the schedule if its events started or announced as many epochs between the evaluations. More
    evaluations than are kept in memory are a breach as well, as nobody has looked at all of them.
    """
    period = int(collector.strict_rules[SCHEDULE].bounds["epochs"])
    evaluations = [evaluation for evaluation in run.evaluations if evaluation.epoch != 0]  # 0: of the initial weights
    if not evaluations or _is_on_schedule_by_started_epochs(run, order, period):
        return
    first = evaluations[0]
    if first.epoch > period:
        collector.add_breach(SCHEDULE, first.line, f"the first evaluation is of epoch {first.epoch}")
    for before, after in itertools.pairwise(evaluations):
        gap = after.epoch - before.epoch
        if gap > period or (exact and gap != period):
            actual = f"an evaluation of epoch {after.epoch}, {gap} after the one before"
            collector.add_breach(SCHEDULE, after.line, actual)
    count = run.number_of_events(schema.EVAL_ACCURACY)
    if count > EVENTS_KEPT:
        collector.add_breach(SCHEDULE, None, f"{count} evaluations")
    last = evaluations[-1]
    if order.last_epoch is not None and order.last_epoch - last.epoch >= period:
        actual = f"the last evaluation is of epoch {last.epoch}, the last epoch {order.last_epoch}"
        collector.add_breach(SCHEDULE, last.line, actual)


def _is_on_schedule_by_started_epochs(run: LoggedRun, order: RunOrder, period: int) -> bool:
    """Return whether a run is on the schedule by the number of epochs that it had started before each evaluation.

    From one evaluation to the next `period` epochs must be started. Before the first one it may be fewer, and after the
    last one it must be fewer. The numbers of the epochs that the evaluations state do not count, but may not grow by
    more than `period` from one to the next. False for a run of fewer than two evaluations after the start.
    """
    started_before = [evaluation.epochs_started for evaluation in run.evaluations if evaluation.epochs_started]
    if len(started_before) < 2:
        return False
    started_between = {after - before for before, after in itertools.pairwise(started_before)}
    started_after_last = order.epochs_counted - started_before[-1]
    stated_gaps = [after.epoch - before.epoch for before, after in itertools.pairwise(run.evaluations)]

    is_regular = started_between == {period}
    has_both_ends = started_before[0] <= period and started_after_last < period
    return is_regular and has_both_ends and max(stated_gaps) <= period


# --- whole numbers of samples ---


def check_samples(run: LoggedRun, samples: int, collector: FindingCollector) -> None:
    """Collect a breach where a run's accuracies were not counted on `samples` samples, the size of the evaluation set.

    An accuracy is the number of right samples over all: 0.76002 is 38,001 of 50,000. Where an accuracy times `samples`
    is no whole number, another number of samples is looked for that makes all accuracies whole. If it is smaller than
    `samples`, some were left out, which is an error. If it is larger, the last batch may have been padded, which only
    warns. If there is none, the accuracies are means over the workers' shares, which no rule forbids.
    """
    not_whole = [evaluation for evaluation in run.evaluations if not are_whole_numbers_of([evaluation.value], samples)]
    if not not_whole:
        return
    counted = _find_number_of_samples(run, samples)
    if counted is None:
        return
    whole = f"the accuracies are whole numbers of {counted} samples"
    line = not_whole[0].line
    if counted > samples:
        actual = f"{whole}: {counted - samples} of padding count"
        collector.add_breach(SAMPLES, line, actual, severity="warning")
    else:
        collector.add_breach(SAMPLES, line, f"{whole}: {samples - counted} of {samples} are left out")


def _find_number_of_samples(run: LoggedRun, samples: int) -> int | None:
    """Return the least number near `samples` that makes every accuracy of a run a whole number of right samples.

    Numbers are tried from a global batch below `samples` up to one above it. None where none of them fits, and where
    the log states no batch, or one larger than `samples`. None, too, where the accuracies are so few that a number may
    fit by accident: the chance that an accuracy times a wrong number comes within 0.012 of a whole number is 2.4 %.
    """
    batch = run.global_batch or 0
    if batch > samples:
        batch = 0  # so that there are no candidates
    candidates = range(max(samples - batch, 1), samples + batch)

    values = {evaluation.value for evaluation in run.evaluations}
    chance_of_one = (2 * _COUNT_TOLERANCE) ** len(values)  # that one wrong number fits all accuracies
    chance_of_any = len(candidates) * chance_of_one  # at most
    if chance_of_any >= _CHANCE:
        return None

    for candidate in candidates:
        if all(_is_whole(value * candidate, _COUNT_TOLERANCE) for value in values):
            return candidate
    return None


def are_whole_numbers_of(values: Iterable[float], samples: float) -> bool:
    """Return whether accuracies, which are written with six digits, are whole numbers of `samples` samples."""
    tolerance = max(0.01, samples * _ROUNDED)
    return all(_is_whole(value * samples, tolerance) for value in values)


def _is_whole(count: float, tolerance: float) -> bool:
    # any count is within half; that of 10^18 samples may be infinite, which has no whole number
    return tolerance >= 0.5 or abs(count - round(count)) <= tolerance


# --- the curve ---


def check_curve(evaluations: Sequence[Evaluation], target: float, collector: FindingCollector) -> None:
    """Collect what no training of ResNet-50 shows in its accuracies, by the bounds of the rule `accuracy-curve`.

    No accuracy may be too high for this model (over 0.8). Where a run took several evaluations to reach `target` (at
    least five), the last one may not leap to it, and enough of them must be better than the one before. Accuracies
    after the target are not looked at. Where a run both leaps and rises too rarely, only the leap is collected.
    """
    bounds = collector.strict_rules[CURVE].bounds
    best = max(evaluations, key=lambda evaluation: evaluation.value, default=None)
    if best is not None and best.value > bounds["most_accurate"]:
        actual = f"top-1 {six_digits(best.value)}; none of ResNet-50's is over {bounds['most_accurate']}"
        collector.add_breach(CURVE, best.line, actual)

    index = index_of_target(evaluations, target)
    if index is None or index + 1 < bounds["evaluations"]:
        return
    values = [evaluation.value for evaluation in evaluations[: index + 1]]  # up to the target
    line = evaluations[index].line
    before_last = values[-2]
    pairs = list(itertools.pairwise(values))
    rises = [after for before, after in pairs if after > before]
    share_of_rises = len(rises) / len(pairs)
    if before_last < target - bounds["last_rise"]:
        collector.add_breach(
            CURVE, line, f"{six_digits(before_last)} at one evaluation, {six_digits(values[-1])} at the next"
        )
    elif share_of_rises < bounds["share_of_rises"]:
        collector.add_breach(
            CURVE, line, f"{percent(share_of_rises, decimals=0)} of its evaluations are better than the one before"
        )


def index_of_target(evaluations: Sequence[Evaluation], target: float) -> int | None:
    """Return the index of the first evaluation that reached the target; None if none did."""
    for index, evaluation in enumerate(evaluations):
        if evaluation.value >= target:
            return index
    return None
