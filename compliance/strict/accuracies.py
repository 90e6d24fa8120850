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
_MIN_VALUES = 3  # different accuracies; one may be a whole number of 50,000 samples by a chance of 5 %
_MAX_COUNT_ERROR = 0.012  # of accuracy * samples, if the accuracy is in single precision
_CHANCE_OF_WHOLE = 2 * _MAX_COUNT_ERROR  # that accuracy * a wrong number is a whole number within this error: 2.4 %
_MAX_CHANCE = 1e-3  # that some number of samples fits all accuracies by coincidence


# --- the data set ---


class StatedData(Enum):
    """Which data set a run is on, by the train_samples and eval_samples that its log states."""

    BENCHMARK = auto()  # the benchmark's: both numbers are those of this data set
    WRONG_EVAL_SAMPLES = auto()  # the benchmark's, as the accuracies show, but the stated eval_samples is wrong
    OTHER = auto()  # another one, or the log does not state both numbers

    @property
    def is_of_benchmark(self) -> bool:
        """Whether the run is on the benchmark's data set, whether or not it states the right numbers."""
        return self in (StatedData.BENCHMARK, StatedData.WRONG_EVAL_SAMPLES)


def stated_data(run: LoggedRun, benchmark: Benchmark) -> StatedData:
    """Return which data set a run is on, by the train_samples and eval_samples that its log states.

    Args:
        run: The facts that the log states of the run.
        benchmark: The benchmark that the run is of, with the right numbers of samples.

    Returns:
        BENCHMARK if both numbers are those of the benchmark, WRONG_EVAL_SAMPLES if the accuracies of a ResNet run show
        that only the stated eval_samples is wrong, otherwise OTHER.
    """
    train_samples = run.first_event(schema.TRAIN_SAMPLES).value  # None if the log does not state train_samples
    eval_samples = run.first_event(schema.EVAL_SAMPLES).value  # None if the log does not state eval_samples
    if train_samples != benchmark.train_samples or not is_count(eval_samples):
        return StatedData.OTHER
    if _is_eval_samples_but_for_padding(eval_samples, benchmark, run.global_batch):
        return StatedData.BENCHMARK
    if benchmark.name != "resnet":  # its accuracy may not be a share of the samples, such as a mean IoU
        return StatedData.OTHER
    # Some ResNet logs state a number of batches as eval_samples, such as 196.
    is_only_stated_wrongly = _fit_real_samples_only(run.evaluations, real=benchmark.eval_samples, stated=eval_samples)
    return StatedData.WRONG_EVAL_SAMPLES if is_only_stated_wrongly else StatedData.OTHER


def _is_eval_samples_but_for_padding(stated: float, benchmark: Benchmark, batch: int | None) -> bool:
    """Return whether a log of a run on the benchmark's data set may state this number of evaluation samples.

    Some runs count the padding that fills the last batch, so the number may be above the benchmark's by less than one
    global batch.

    Args:
        stated: The eval_samples that the log states.
        benchmark: The benchmark, with the right number of evaluation samples.
        batch: Samples of a step on all devices. None if the log does not state them: then only the benchmark's number
            will do.
    """
    excess = stated - benchmark.eval_samples
    if batch is None:
        return excess == 0
    return 0 <= excess < batch


def _fit_real_samples_only(evaluations: Sequence[Evaluation], *, real: int, stated: float) -> bool:
    """Return whether accuracies were counted on the real number of samples, and not on the stated one.

    An accuracy times the number of samples is a whole number if that number is right: 0.76002 * 50,000 is 38,001. A
    wrong number may fit a few accuracies by chance.

    Args:
        evaluations: The run's evaluations, with their accuracies.
        real: The benchmark's number of evaluation samples.
        stated: The eval_samples that the log states.

    Returns:
        Whether all accuracies fit `real`, and not all fit `stated`. False if there are fewer than _MIN_VALUES
        different accuracies.
    """
    accuracies = {evaluation.value for evaluation in evaluations}
    if len(accuracies) < _MIN_VALUES:
        return False
    return are_shares_of_samples(accuracies, real) and not are_shares_of_samples(accuracies, stated)


# --- the schedule ---


def check_schedule(run: LoggedRun, order: RunOrder, *, exact: bool, collector: FindingCollector) -> None:
    """Report where the evaluations of a ResNet run break the schedule of MLPerf: one evaluation every 4 epochs.

    Args:
        run: The facts that the log states of the run, with its evaluations.
        order: The epochs of the run. It must have followed all events of the log.
        exact: Whether an early evaluation is reported, too, and not only one that is late or missing at the end.
        collector: Gets each breach of the rule `eval-schedule`, and has its bounds.
    """
    period = int(collector.strict_rules[SCHEDULE].bounds["epochs"])  # 4
    is_on_schedule_by_counting = _are_counted_epochs_on_schedule(run, order, period)
    do_stated_epochs_leap = _do_stated_epochs_leap(run.evaluations, period)
    # A run that was evaluated after each 4 epochs, by the count of the epochs in its log, may number them wrongly: as
    # 5, 9 and 13. This passes, because no number is more than 4 above the one before. With the numbers 4, 8 and 16
    # the run says itself that an evaluation is missing.
    if is_on_schedule_by_counting and not do_stated_epochs_leap:
        return
    _check_stated_epochs(run, order.last_epoch, period, exact=exact, collector=collector)


def _are_counted_epochs_on_schedule(run: LoggedRun, order: RunOrder, period: int) -> bool:
    """Return whether the run was evaluated every `period` epochs, by the log's count of epochs.

    The first evaluation may come earlier, and the run may end before the next one is due. For a period of 4 and a run
    of 14 epochs:

        evaluations after 3, 7 and 11 epochs  -> True
        evaluations after 4, 8 and 13 epochs  -> False

    Args:
        run: The facts that the log states of the run. Evaluations before the first epoch are left out.
        order: The epochs of the run, with their number at the end.
        period: Epochs from one evaluation to the next.

    Returns:
        Whether it was. False, too, if fewer than two evaluations are left, because they show no schedule.
    """
    counts = [evaluation.epochs_counted for evaluation in run.evaluations if evaluation.epochs_counted > 0]
    if len(counts) < 2:
        return False
    gaps = [next_count - count for count, next_count in itertools.pairwise(counts)]
    epochs_after_last = order.epochs_counted - counts[-1]
    is_first_in_time = counts[0] <= period
    are_gaps_right = all(gap == period for gap in gaps)
    is_none_missing_at_end = epochs_after_last < period
    return is_first_in_time and are_gaps_right and is_none_missing_at_end


def _do_stated_epochs_leap(evaluations: Sequence[Evaluation], period: int) -> bool:
    """Return whether any evaluation states an epoch more than `period` epochs after the evaluation before it.

    Args:
        evaluations: The run's evaluations, in the order of the log.
        period: Epochs from one evaluation to the next.
    """
    return any(after.epoch - before.epoch > period for before, after in itertools.pairwise(evaluations))


def _check_stated_epochs(
    run: LoggedRun, last_epoch: int | None, period: int, *, exact: bool, collector: FindingCollector
) -> None:
    """Report where the epochs that a run's evaluations state break the schedule: too far apart, or none at the end.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained. If it is None, the end of the run is not checked.
        period: The most epochs from one evaluation to the next.
        exact: Whether less than `period` epochs from one evaluation to the next are reported, too.
        collector: Gets each breach of the rule `eval-schedule`.
    """
    evaluations = [evaluation for evaluation in run.evaluations if evaluation.epoch != 0]  # 0: before any training
    if not evaluations:
        return
    _check_gaps_of_stated_epochs(evaluations, period, exact=exact, collector=collector)
    _report_if_not_all_kept(run.number_of_events(schema.EVAL_ACCURACY), collector)
    last = evaluations[-1]
    if last_epoch is not None and last_epoch - last.epoch >= period:
        actual = f"the last evaluation is of epoch {last.epoch}, the last epoch {last_epoch}"
        collector.add_breach(SCHEDULE, last.line, actual)


def _report_if_not_all_kept(count: int, collector: FindingCollector) -> None:
    """Report more evaluations than were kept, because the schedule of the whole run is not known then.

    Args:
        count: How many evaluations the log has.
        collector: Gets the breach of the rule `eval-schedule`.
    """
    if count > EVENTS_KEPT:
        collector.add_breach(SCHEDULE, None, f"{count} evaluations")


def _check_gaps_of_stated_epochs(
    evaluations: Sequence[Evaluation], period: int, *, exact: bool, collector: FindingCollector
) -> None:
    """Report each evaluation that comes too many epochs after the one before, or with `exact` too few.

    The epochs are those that the evaluations state.

    Args:
        evaluations: The run's evaluations, in the order of the log; at least one. The first may be of any epoch up to
            `period`.
        period: The most epochs from one evaluation to the next.
        exact: Whether fewer epochs than `period` between two evaluations are a breach, too.
        collector: Gets each breach of the rule `eval-schedule`.
    """
    first = evaluations[0]
    if first.epoch > period:
        collector.add_breach(SCHEDULE, first.line, f"the first evaluation is of epoch {first.epoch}")
    for before, after in itertools.pairwise(evaluations):
        gap = after.epoch - before.epoch
        is_too_late = gap > period
        is_too_early = exact and gap < period
        if is_too_late or is_too_early:
            actual = f"an evaluation of epoch {after.epoch}, {gap} after the one before"
            collector.add_breach(SCHEDULE, after.line, actual)


# --- whole numbers of samples ---


def check_samples(run: LoggedRun, samples: int, collector: FindingCollector) -> None:
    """Report a run whose accuracies were counted on more or fewer samples than the evaluation set has.

    An accuracy is the number of right samples over all samples, as 0.76002 is 38,001 of 50,000.

    Args:
        run: The facts that the log states of the run.
        samples: The size of the evaluation set, such as 50,000.
        collector: Gets a breach of the rule `eval-samples`: a warning if padding was counted, an error if samples were
            left out.
    """
    misfits = [evaluation for evaluation in run.evaluations if not are_shares_of_samples([evaluation.value], samples)]
    if not misfits:
        return
    first_line = misfits[0].line
    samples_counted = _find_number_of_samples(run, samples)
    if samples_counted is None:  # such accuracies may be means of the workers' accuracies, which no rule forbids
        return
    whole = f"the accuracies are whole numbers of {samples_counted} samples"
    if samples_counted > samples:
        actual = f"{whole}: {samples_counted - samples} of padding count"
        collector.add_breach(SAMPLES, first_line, actual, severity="warning")
    elif samples_counted < samples:
        actual = f"{whole}: {samples - samples_counted} of {samples} are left out"
        collector.add_breach(SAMPLES, first_line, actual)
    # They may be equal in a small set, because the search allows a larger error: nothing is wrong then.


def _find_number_of_samples(run: LoggedRun, samples: int) -> int | None:
    """Return on how many samples a run was evaluated: the least number near the set's size that fits all accuracies.

    A number of samples fits an accuracy if accuracy * number is a whole number of right samples, such as 0.76002 *
    50,000 is 38,001.

    Args:
        run: The facts that the log states of the run: its accuracies and its global batch.
        samples: The size of the evaluation set.

    Returns:
        The number. None if none fits, or if it cannot be told.
    """
    batch = run.global_batch
    if batch is None or batch > samples:  # not known, or larger than the whole set: any number may be right
        return None
    possible_numbers = _possible_numbers_of_samples(samples, batch)
    accuracies = {evaluation.value for evaluation in run.evaluations}
    chance = _chance_of_coincidental_fit(len(possible_numbers), len(accuracies))
    if chance >= _MAX_CHANCE:  # so few accuracies that a wrong number may fit them all
        return None
    for number in possible_numbers:  # from the least one on
        if _are_all_whole(accuracies, number, _MAX_COUNT_ERROR):
            return number
    return None


def _possible_numbers_of_samples(samples: int, batch: int) -> range:
    """Return on how many samples a run may have evaluated: its last batch may be dropped, or padded to a full one.

    Args:
        samples: The size of the evaluation set.
        batch: Samples of a step on all devices.
    """
    least = max(samples - batch, 1)
    most = samples + batch - 1
    return range(least, most + 1)


def _chance_of_coincidental_fit(candidates: int, values: int) -> float:
    """Return a bound on the chance that at least one wrong number of samples fits all accuracies by coincidence.

    A number fits an accuracy if accuracy * number is whole, within _MAX_COUNT_ERROR. A wrong number fits one accuracy
    with the chance _CHANCE_OF_WHOLE, so by the union bound

        chance <= candidates * _CHANCE_OF_WHOLE ** values

    Args:
        candidates: How many numbers of samples are tried.
        values: How many different accuracies the run has.
    """
    chance_of_one_candidate = _CHANCE_OF_WHOLE**values
    return candidates * chance_of_one_candidate


def are_shares_of_samples(accuracies: Iterable[float], samples: float) -> bool:
    """Return whether each accuracy can be a whole number of right samples over all samples.

    accuracy * samples must be a whole number, but for a tolerance, in samples:

        tolerance = max(0.01, samples * 5e-7)

    An accuracy with six digits is wrong by up to 5e-7. For 50,000 samples the tolerance is 0.025. From a million
    samples on it is 0.5 or more, so any accuracy will do.

    Args:
        accuracies: Shares of right samples, such as 0.76002.
        samples: The number of samples on which they are said to be counted, such as 50,000.
    """
    tolerance = max(0.01, samples * _ROUNDING_ERROR)
    return _are_all_whole(accuracies, samples, tolerance)


def _are_all_whole(accuracies: Iterable[float], samples: float, tolerance: float) -> bool:
    """Return whether each accuracy, times a number of samples, is nearly a whole number of right samples.

    Args:
        accuracies: Shares of right samples, such as 0.76002.
        samples: The number of samples, such as 50,000.
        tolerance: How far each product may be from a whole number.
    """
    return all(_is_whole(accuracy * samples, tolerance) for accuracy in accuracies)


def _is_whole(count: float, tolerance: float) -> bool:
    """Return whether a count is nearly a whole number.

    Args:
        count: The count, such as an accuracy times the number of samples.
        tolerance: How far it may be from a whole number. With 0.5 or more, any count will do.
    """
    if tolerance >= 0.5:  # asked first: a count of 10^18 samples may be infinite, which cannot be rounded
        return True
    return abs(count - round(count)) <= tolerance


# --- the curve ---


def check_curve(evaluations: Sequence[Evaluation], target: float, collector: FindingCollector) -> None:
    """Report accuracies that no training of ResNet-50 gives: a best one that is too high, or an unlikely rise.

    The rise to the target is only checked if the run reached it, and had at least as many evaluations until then as the
    rule `accuracy-curve` asks for (5).

    Args:
        evaluations: The run's evaluations, in the order of the log.
        target: The accuracy at which the run was to end, such as 0.759.
        collector: Gets each breach of the rule `accuracy-curve`, and has its bounds.
    """
    bounds = collector.strict_rules[CURVE].bounds
    _check_best(evaluations, bounds["most_accurate"], "top-1", "ResNet-50", collector)
    index = index_of_target(evaluations, target)
    if index is None:
        return
    up_to_target = evaluations[: index + 1]
    least_evaluations = bounds["evaluations"]  # above 2, which `_check_rise_to_target` needs
    if len(up_to_target) >= least_evaluations:
        _check_rise_to_target(up_to_target, target, collector)


def check_best_miou(evaluations: Sequence[Evaluation], collector: FindingCollector) -> None:
    """Report a mean IoU on Cityscapes that no training of FCN-HRNetW18 reaches.

    Args:
        evaluations: The run's evaluations, in the order of the log.
        collector: Gets the breach of the rule `accuracy-curve`, and has its bounds.
    """
    bounds = collector.strict_rules[CURVE].bounds
    _check_best(evaluations, bounds["most_miou"], "an mIoU of", "FCN-HRNetW18", collector)


def _check_best(
    evaluations: Sequence[Evaluation], most: float, metric: str, model: str, collector: FindingCollector
) -> None:
    """Report the best accuracy of a run if no training of the model reaches it.

    Args:
        evaluations: The run's evaluations, in the order of the log.
        most: The highest accuracy that is possible.
        metric: What stands before the accuracy in the message, such as "top-1".
        model: The name of the model.
        collector: Gets the breach of the rule `accuracy-curve`.
    """
    best = max(evaluations, key=lambda evaluation: evaluation.value, default=None)
    if best is not None and best.value > most:
        actual = f"{metric} {six_digits(best.value)}; none of {model}'s is over {most}"
        collector.add_breach(CURVE, best.line, actual)


def _check_rise_to_target(evaluations: Sequence[Evaluation], target: float, collector: FindingCollector) -> None:
    """Report a run that comes to its target too suddenly, or else one whose accuracies rise too seldom.

    Args:
        evaluations: At least two evaluations, in the order of the log. The last one is the first that reached the
            target.
        target: The accuracy at which the run was to end.
        collector: Gets the breach of the rule `accuracy-curve`, and has its bounds.
    """
    bounds = collector.strict_rules[CURVE].bounds
    last_but_one = evaluations[-2]
    last = evaluations[-1]
    least_before_last = target - bounds["last_rise"]  # 0.3 below the target
    rising_share = _share_of_rises([evaluation.value for evaluation in evaluations])
    least_rising_share = bounds["share_of_rises"]  # 0.6
    if last_but_one.value < least_before_last:
        actual = f"{six_digits(last_but_one.value)} at one evaluation, {six_digits(last.value)} at the next"
        collector.add_breach(CURVE, last.line, actual)
    elif rising_share < least_rising_share:
        actual = f"{percent(rising_share, decimals=0)} of its evaluations are better than the one before"
        collector.add_breach(CURVE, last.line, actual)


def _share_of_rises(values: Sequence[float]) -> float:
    """Return the share of the values after the first that are greater than the one before: 2/3 for [1, 2, 2, 3].

    Args:
        values: At least two values, in their order.
    """
    rises = sum(after > before for before, after in itertools.pairwise(values))
    return rises / (len(values) - 1)


def index_of_target(evaluations: Sequence[Evaluation], target: float) -> int | None:
    """Return the index of the first evaluation that reached the target; None if none did.

    Args:
        evaluations: The run's evaluations, in the order of the log.
        target: The accuracy, or other quality, at which the run was to end.
    """
    for index, evaluation in enumerate(evaluations):
        if evaluation.value >= target:
            return index
    return None
