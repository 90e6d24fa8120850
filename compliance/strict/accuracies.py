"""The evaluations of a run: when they were done, on how many samples, and whether a training has such a curve."""

import itertools
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from compliance.logged_run import EVENTS_KEPT, Evaluation, LoggedRun, is_count
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


class StatedData(Enum):
    """Whether a run is on the benchmark's data set, by the numbers of samples that it states."""

    BENCHMARK = auto()  # it states the numbers of the benchmark's data set
    WRONG_EVAL_SAMPLES = auto()  # it is on that data set, as its accuracies show, but states a wrong eval_samples
    OTHER = auto()  # it states other numbers, or none


def stated_data(run: LoggedRun, benchmark: Benchmark) -> StatedData:
    """Return whether a run is on the benchmark's data set, by the numbers of samples that it states.

    Any benchmark has the answers BENCHMARK and OTHER. ResNet alone has WRONG_EVAL_SAMPLES, too, because its accuracies
    are shares of the samples.
    """
    eval_samples = run.first_event(schema.EVAL_SAMPLES).value
    if run.first_event(schema.TRAIN_SAMPLES).value != benchmark.train_samples or not is_count(eval_samples):
        return StatedData.OTHER
    if _can_be_eval_samples(eval_samples, benchmark, run.global_batch):
        return StatedData.BENCHMARK
    if benchmark.name == "resnet" and _show_wrong_eval_samples(run.evaluations, eval_samples, benchmark.eval_samples):
        return StatedData.WRONG_EVAL_SAMPLES
    return StatedData.OTHER


def _can_be_eval_samples(stated: float, benchmark: Benchmark, batch: int | None) -> bool:
    """Return whether a run may state this eval_samples if it evaluates the benchmark's data set.

    It may be larger by less than a global `batch`, because some runs count the padding of the last batch. If the log
    states no batch (None), it must be the benchmark's number.
    """
    excess = stated - benchmark.eval_samples
    if batch is None:
        return excess == 0
    return 0 <= excess < batch


def _show_wrong_eval_samples(evaluations: Sequence[Evaluation], stated_samples: float, samples: int) -> bool:
    """Return whether accuracies were counted on `samples` samples, and not on the `stated_samples`.

    An accuracy is the number of right samples over all samples, so accuracy * `samples` must be whole for each, and
    accuracy * `stated_samples` must not be whole for some. A run may have stated its number of batches, for instance.
    Fewer than _LEAST_VALUES different accuracies show nothing: they may be whole by chance.
    """
    values = {evaluation.value for evaluation in evaluations}
    if len(values) < _LEAST_VALUES:
        return False
    fits_stated = are_shares_of_samples(values, stated_samples)
    return are_shares_of_samples(values, samples) and not fits_stated


# --- the schedule ---


def check_schedule(run: LoggedRun, order: RunOrder, *, exact: bool, collector: FindingCollector) -> None:
    """Report the evaluations of a closed ResNet run that are off the schedule: one every 4 epochs.

    If the epochs that were started before each evaluation are on schedule, the run is, whatever epochs its evaluations
    state: some runs state epochs 3, 6 and 10 for the evaluations after 4, 8 and 12 epochs. Otherwise the stated epochs
    must be on schedule.

    `exact`: more frequent evaluations are a breach, too. An evaluation of epoch 0, of the initial weights, is left out.
    """
    period = int(collector.strict_rules[SCHEDULE].bounds["epochs"])  # 4
    if _is_on_schedule_by_started_epochs(run, order, period):
        return
    evaluations = [evaluation for evaluation in run.evaluations if evaluation.epoch != 0]
    if not evaluations:
        return
    _check_gaps_of_stated_epochs(evaluations, period, exact=exact, collector=collector)
    count = run.number_of_events(schema.EVAL_ACCURACY)
    if count > EVENTS_KEPT:  # the others were not kept and cannot be checked
        collector.add_breach(SCHEDULE, None, f"{count} evaluations")
    last = evaluations[-1]
    if order.last_epoch is not None and order.last_epoch - last.epoch >= period:
        actual = f"the last evaluation is of epoch {last.epoch}, the last epoch {order.last_epoch}"
        collector.add_breach(SCHEDULE, last.line, actual)


def _check_gaps_of_stated_epochs(
    evaluations: Sequence[Evaluation], period: int, *, exact: bool, collector: FindingCollector
) -> None:
    """Report evaluations that come too late, by the epochs that they state. There must be one evaluation at least.

    - The first one must be of epoch `period` or earlier.
    - From each one to the next there must be at most `period` epochs; if `exact`, neither more nor fewer.
    """
    first = evaluations[0]
    if first.epoch > period:
        collector.add_breach(SCHEDULE, first.line, f"the first evaluation is of epoch {first.epoch}")
    for before, after in itertools.pairwise(evaluations):
        gap = after.epoch - before.epoch
        is_too_early = exact and gap < period
        if gap > period or is_too_early:
            actual = f"an evaluation of epoch {after.epoch}, {gap} after the one before"
            collector.add_breach(SCHEDULE, after.line, actual)


def _is_on_schedule_by_started_epochs(run: LoggedRun, order: RunOrder, period: int) -> bool:
    """Return whether a run is on schedule by the epochs that it started. All of these must hold:

    - The epochs that its evaluations state never grow by more than `period` from one to the next.
    - At least two evaluations came after the start of the first epoch. The next conditions are about these.
    - At most `period` epochs were started before the first of them.
    - Exactly `period` epochs were started from each one to the next.
    - Fewer than `period` epochs were started after the last one.
    """
    for before, after in itertools.pairwise(run.evaluations):
        if after.epoch - before.epoch > period:
            return False
    # Of each evaluation after the first start of an epoch: how many epochs were started before it.
    started = [evaluation.epochs_started for evaluation in run.evaluations if evaluation.epochs_started > 0]
    if len(started) < 2 or started[0] > period:
        return False
    for started_before, started_after in itertools.pairwise(started):
        if started_after - started_before != period:
            return False
    started_after_last = order.epochs_counted - started[-1]
    return started_after_last < period


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

    Near is less than a global batch more, or up to a batch less. A run that pads its last, incomplete batch counts up
    to a batch more, and one that drops this batch counts up to a batch less. Return None if

    - the log states no global batch, or one larger than `samples`,
    - the accuracies are so few that some number near `samples` may fit them by accident, or
    - no such number fits them.
    """
    batch = run.global_batch
    if batch is None or batch > samples:
        return None
    candidates = range(max(samples - batch, 1), samples + batch)
    values = {evaluation.value for evaluation in run.evaluations}
    if _chance_of_accidental_fit(len(candidates), len(values)) >= _MOST_CHANCE:
        return None
    for candidate in candidates:
        if all(_is_whole(value * candidate, _MOST_COUNT_ERROR) for value in values):
            return candidate
    return None


def _chance_of_accidental_fit(candidates: int, values: int) -> float:
    """Return a bound on the chance that a wrong one of some candidates makes value * candidate whole for all values.

    One candidate makes one value whole by accident with the chance _CHANCE_OF_WHOLE, and `values` different ones with
    _CHANCE_OF_WHOLE ** `values`. The chance that any of the `candidates` does so is at most their number times as large
    (union bound).
    """
    chance_of_one_candidate = _CHANCE_OF_WHOLE**values
    return candidates * chance_of_one_candidate


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

    - The best accuracy must not be too high.
    - If an evaluation reached the target, the evaluations up to it must rise as in a training. They are not checked if
      there are fewer than the bound `evaluations`, which is above 2.
    """
    bounds = collector.strict_rules[CURVE].bounds
    best = max(evaluations, key=lambda evaluation: evaluation.value, default=None)
    if best is not None and best.value > bounds["most_accurate"]:
        actual = f"top-1 {six_digits(best.value)}; none of ResNet-50's is over {bounds['most_accurate']}"
        collector.add_breach(CURVE, best.line, actual)

    index = index_of_target(evaluations, target)
    if index is None:
        return
    way_to_target = evaluations[: index + 1]
    if len(way_to_target) >= bounds["evaluations"]:
        _check_way_to_target(way_to_target, target, collector)


def _check_way_to_target(way: Sequence[Evaluation], target: float, collector: FindingCollector) -> None:
    """Report the first of these in the evaluations up to the one that reached the target, at least two:

    - The last one leaps to the target: the one before is below it by more than the bound `last_rise`.
    - Too few evaluations are better than the one before: a share below the bound `share_of_rises`.
    """
    bounds = collector.strict_rules[CURVE].bounds
    last_but_one = way[-2]
    last = way[-1]
    share_of_rises = _share_of_rises([evaluation.value for evaluation in way])
    if last_but_one.value < target - bounds["last_rise"]:
        actual = f"{six_digits(last_but_one.value)} at one evaluation, {six_digits(last.value)} at the next"
        collector.add_breach(CURVE, last.line, actual)
    elif share_of_rises < bounds["share_of_rises"]:
        actual = f"{percent(share_of_rises, decimals=0)} of its evaluations are better than the one before"
        collector.add_breach(CURVE, last.line, actual)


def _share_of_rises(values: Sequence[float]) -> float:
    """Return the share of the values, without the first one, that are greater than the one before; at least two."""
    rises = sum(after > before for before, after in itertools.pairwise(values))
    return rises / (len(values) - 1)


def index_of_target(evaluations: Sequence[Evaluation], target: float) -> int | None:
    """Return the index of the first evaluation that reached the target; None if none did."""
    for index, evaluation in enumerate(evaluations):
        if evaluation.value >= target:
            return index
    return None
