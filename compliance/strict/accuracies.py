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
_ROUNDING_ERROR = 5e-7  # of an accuracy that is written with six digits; single precision is finer
_LEAST_VALUES = 3  # different accuracies; one may be a whole number of 50,000 samples by a chance of 5 %
_MOST_COUNT_ERROR = 0.012  # of accuracy * samples, if the accuracy is in single precision
_CHANCE_OF_WHOLE = 2 * _MOST_COUNT_ERROR  # that accuracy * a wrong number is a whole number within this error: 2.4 %
_MOST_CHANCE = 1e-3  # that some number of samples fits all accuracies by accident


# --- the data set ---


def states_benchmark_data(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Return whether a run states the numbers of samples of the benchmark's data set.

    eval_samples may be larger by less than a global batch, because some runs count the padding of the last batch.
    """
    eval_samples = run.first_event(schema.EVAL_SAMPLES).value
    if run.first_event(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(eval_samples, COUNT):
        return False
    excess: int = eval_samples - benchmark.eval_samples
    padding_limit: int = max(run.stated_count(schema.GLOBAL_BATCH_SIZE), 1)  # 1, no padding, if the log has no batch
    return 0 <= excess < padding_limit


def states_wrong_eval_samples(run: LoggedRun, benchmark: Benchmark) -> bool:
    """Return whether a run's accuracies show that it used the benchmark's data set, but states a wrong eval_samples.

    For instance, it states the number of batches. An accuracy fits a number of samples if accuracy * number is whole.
    All accuracies must fit the benchmark's number, and not all of them the stated one. The answer is also False if

    - train_samples is not the benchmark's, or eval_samples is not a whole number above 0, or
    - there are fewer than three different accuracies, because these may fit by chance.
    """
    stated_samples = run.first_event(schema.EVAL_SAMPLES).value
    if run.first_event(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not has_type(stated_samples, COUNT):
        return False
    values = {evaluation.value for evaluation in run.evaluations}
    if len(values) < _LEAST_VALUES:
        return False
    fits_benchmark = are_shares_of_samples(values, benchmark.eval_samples)
    return fits_benchmark and not are_shares_of_samples(values, stated_samples)


# --- the schedule ---


def check_schedule(run: LoggedRun, order: RunOrder, *, exact: bool, collector: FindingCollector) -> None:
    """Report the evaluations of a closed ResNet run that are off the schedule: one every 4 epochs.

    There are two ways to count. The epochs that started from each evaluation to the next are counted first. If there
    were always 4, the run is on schedule, whatever epochs its evaluations state. Some such runs state epochs 3, 6 and
    10 for the evaluations after 4, 8 and 12 epochs.

    Otherwise the stated epochs are checked. Nothing is reported if there are no evaluations. A breach is

    - a first evaluation after epoch 4,
    - more than 4 epochs from one evaluation to the next; if `exact` is true, also fewer than 4,
    - more than EVENTS_KEPT evaluations, because the others were not kept and cannot be checked, and
    - 4 or more epochs after the last evaluation.
    """
    period = int(collector.strict_rules[SCHEDULE].bounds["epochs"])
    evaluations = [evaluation for evaluation in run.evaluations if evaluation.epoch != 0]  # 0: of the initial weights
    # The started epochs come first: some runs state epochs 3, 6 and 10 for the evaluations after 4, 8 and 12 epochs.
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
    if count > EVENTS_KEPT:  # the others were not kept and cannot be checked
        collector.add_breach(SCHEDULE, None, f"{count} evaluations")
    last = evaluations[-1]
    if order.last_epoch is not None and order.last_epoch - last.epoch >= period:
        actual = f"the last evaluation is of epoch {last.epoch}, the last epoch {order.last_epoch}"
        collector.add_breach(SCHEDULE, last.line, actual)


def _is_on_schedule_by_started_epochs(run: LoggedRun, order: RunOrder, period: int) -> bool:
    """Return whether a run is on schedule by the number of epochs that it started before each evaluation.

    The first three conditions leave out evaluations before the first epoch:

    - At least two evaluations are left, and exactly `period` epochs were started from one to the next.
    - At most `period` epochs were started before the first evaluation.
    - Fewer than `period` epochs were started after the last evaluation.
    - The stated epoch numbers of all evaluations grow by at most `period` from one evaluation to the next.
    """
    started_before = [evaluation.epochs_started for evaluation in run.evaluations if evaluation.epochs_started > 0]
    if len(started_before) < 2:
        return False
    started_between = [after - before for before, after in itertools.pairwise(started_before)]
    started_after_last = order.epochs_counted - started_before[-1]
    stated_gaps = [after.epoch - before.epoch for before, after in itertools.pairwise(run.evaluations)]

    is_regular = all(started == period for started in started_between)
    is_start_right = started_before[0] <= period
    is_end_right = started_after_last < period
    return is_regular and is_start_right and is_end_right and max(stated_gaps) <= period


# --- whole numbers of samples ---


def check_samples(run: LoggedRun, samples: int, collector: FindingCollector) -> None:
    """Report a breach if a run's accuracies were not counted on `samples` samples, the size of the evaluation set.

    An accuracy is the number of right samples over all samples: 0.76002 is 38,001 of 50,000. If accuracy * `samples` is
    not always a whole number, this function looks for the number that makes it whole for all accuracies:

    - The number is larger than `samples`: the padding of the last batch was counted. This is a warning.
    - The number is smaller: samples were left out. This is an error.
    - No number is found: the accuracies are means over the workers' accuracies, which no rule forbids.
    """
    not_whole = [evaluation for evaluation in run.evaluations if not are_shares_of_samples([evaluation.value], samples)]
    if not not_whole:
        return
    counted = _find_number_of_samples(run, samples)
    if counted is None:  # the accuracies are means over the workers' accuracies, which no rule forbids
        return
    whole = f"the accuracies are whole numbers of {counted} samples"
    line = not_whole[0].line
    if counted > samples:
        actual = f"{whole}: {counted - samples} of padding count"
        collector.add_breach(SAMPLES, line, actual, severity="warning")
    else:
        collector.add_breach(SAMPLES, line, f"{whole}: {samples - counted} of {samples} are left out")


def _find_number_of_samples(run: LoggedRun, samples: int) -> int | None:
    """Return the least number near `samples` that makes accuracy * number whole for all accuracies of a run.

    The candidates are the numbers from `samples` - batch up to, but not including, `samples` + batch. A run that drops
    its last, incomplete batch counts up to a batch less, and a run that pads this batch counts up to a batch more.
    Return None if

    - the log states no global batch, or one larger than `samples`,
    - the accuracies are so few that a candidate may fit them by accident, or
    - no candidate fits them.
    """
    batch = run.global_batch
    if batch is None or batch > samples:
        return None
    # A run that drops its last, incomplete batch counts up to a batch less. One that pads it counts up to a batch more.
    candidates = range(max(samples - batch, 1), samples + batch)

    values = {evaluation.value for evaluation in run.evaluations}
    chance_of_one = _CHANCE_OF_WHOLE ** len(values)  # that one wrong candidate fits all accuracies
    chance_of_any = len(candidates) * chance_of_one  # at most
    if chance_of_any >= _MOST_CHANCE:
        return None

    for candidate in candidates:
        if all(_is_whole(value * candidate, _MOST_COUNT_ERROR) for value in values):
            return candidate
    return None


def are_shares_of_samples(accuracies: Iterable[float], samples: float) -> bool:
    """Return whether each accuracy can be a whole number of right samples over `samples`.

    accuracy * samples must be whole, within the error that rounding an accuracy to six digits makes.
    """
    tolerance = max(0.01, samples * _ROUNDING_ERROR)
    return all(_is_whole(accuracy * samples, tolerance) for accuracy in accuracies)


def _is_whole(count: float, tolerance: float) -> bool:
    """Return whether a count is within `tolerance` of a whole number; always true for a tolerance of 0.5 or more."""
    # The tolerance comes first: a count of 10^18 samples may be infinite, which cannot be rounded.
    return tolerance >= 0.5 or abs(count - round(count)) <= tolerance


# --- the curve ---


def check_curve(evaluations: Sequence[Evaluation], target: float, collector: FindingCollector) -> None:
    """Report accuracies that no training of ResNet-50 gives, by the bounds of the rule `accuracy-curve`.

    - The best accuracy is always checked.
    - The evaluations up to the first one at `target` are checked if there are at least `bounds["evaluations"]` of them.
      They are not checked if no evaluation reached the target.
    """
    bounds = collector.strict_rules[CURVE].bounds
    best = max(evaluations, key=lambda evaluation: evaluation.value, default=None)
    if best is not None and best.value > bounds["most_accurate"]:
        actual = f"top-1 {six_digits(best.value)}; none of ResNet-50's is over {bounds['most_accurate']}"
        collector.add_breach(CURVE, best.line, actual)

    index = index_of_target(evaluations, target)
    if index is not None and index + 1 >= bounds["evaluations"]:
        _check_way_to_target(evaluations[: index + 1], target, collector)


def _check_way_to_target(evaluations: Sequence[Evaluation], target: float, collector: FindingCollector) -> None:
    """Report a leap to the target, or too few rises on the way. The last of the `evaluations` reached the target."""
    bounds = collector.strict_rules[CURVE].bounds
    values = [evaluation.value for evaluation in evaluations]
    line = evaluations[-1].line
    value_before_last = values[-2]
    pairs = list(itertools.pairwise(values))
    rises = [after for before, after in pairs if after > before]
    share_of_rises = len(rises) / len(pairs)
    leaps_to_target = value_before_last < target - bounds["last_rise"]
    if leaps_to_target:
        actual = f"{six_digits(value_before_last)} at one evaluation, {six_digits(values[-1])} at the next"
        collector.add_breach(CURVE, line, actual)
    elif share_of_rises < bounds["share_of_rises"]:
        actual = f"{percent(share_of_rises, decimals=0)} of its evaluations are better than the one before"
        collector.add_breach(CURVE, line, actual)


def index_of_target(evaluations: Sequence[Evaluation], target: float) -> int | None:
    """Return the index of the first evaluation that reached the target; None if none did."""
    for index, evaluation in enumerate(evaluations):
        if evaluation.value >= target:
            return index
    return None
