"""The pace of a run: no epoch or evaluation may be far faster than a training can be.

A slow epoch does not make the others suspect: a machine may throttle, storage may stall, data may be read again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.rules import Benchmark, FindingCollector
from compliance.strict.parts import TimedEvaluation, TrainedPart
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.digits import four_digits, significant, six_digits

RULE = "epoch-time"


def check_pace(run: LoggedRun, order: RunOrder, benchmark: Benchmark, collector: FindingCollector) -> None:
    """Report epochs, steps and evaluations that are faster than a training can be, by the rule `epoch-time`.

    Call it once the whole log has been read. Steps and evaluations are only checked in a ResNet run, and evaluations
    only if it trains on the benchmark's number of images.

    Args:
        run: The facts that the log states of the run.
        order: The times of the run's epochs and of its shortest evaluation.
        benchmark: The benchmark of the run.
        collector: Gets each breach, and has the bounds of the rule.
    """
    whole_epochs = order.trained[1:] if run.is_resumed else order.trained  # the first may have begun in another log
    trained = [part for part in whole_epochs if part.epoch_ms > 0]  # a coarse clock may show 0
    _check_epochs(trained, collector)
    if benchmark.name != "resnet":
        return
    _check_steps(run, order, trained, collector)
    fastest_epoch_ms = _fastest_epoch_ms(run, order, trained)  # 0 if it is not known
    has_images_of_benchmark = run.stated_count(schema.TRAIN_SAMPLES) == benchmark.train_samples
    if fastest_epoch_ms > 0 and has_images_of_benchmark:
        training_ms_per_image = fastest_epoch_ms / benchmark.train_samples
        _check_evaluations(run, order.shortest_evaluation, training_ms_per_image, collector)


def _check_epochs(trained: Sequence[TrainedPart], collector: FindingCollector) -> None:
    """Report a breach if some epochs between slower ones were far faster than the median epoch.

    Fast epochs at the start or the end of a run are allowed, because a machine may be faster before it throttles.

    Args:
        trained: The times of the epochs, in their order. Nothing is checked if they are few (under 8) or very short (a
            median under 1 s).
        collector: Gets the breach of the rule `epoch-time`, and has its bounds.
    """
    bounds = collector.strict_rules[RULE].bounds
    has_few_epochs = len(trained) < bounds["epochs"]
    if has_few_epochs:
        return
    median_ms = _median_epoch_ms(trained)
    are_epochs_very_short = median_ms < bounds["median_ms"]
    if are_epochs_very_short:
        return
    least_usual_ms = bounds["share_of_median"] * median_ms
    between_slower_ones = _without_fast_ends(trained, least_usual_ms)
    fast_epochs = [part for part in between_slower_ones if part.epoch_ms < least_usual_ms]
    if fast_epochs:
        how_many = f"{len(fast_epochs)} of {len(trained)} epochs"
        share = six_digits(bounds["share_of_median"])
        actual = f"{how_many} take under {share} of the median, {significant(median_ms, digits=10)} ms"
        collector.add_breach(RULE, fast_epochs[0].line, f"{actual}, between slower ones")


def _median_epoch_ms(trained: Sequence[TrainedPart]) -> float:
    """Return the median time of epochs, in milliseconds; of two in the middle the longer.

    Python's `statistics` has a function for it, but its import takes as long as the check of a hundred events.

    Args:
        trained: The times of the epochs; at least one.
    """
    times_ms = sorted(part.epoch_ms for part in trained)
    return times_ms[len(times_ms) // 2]


def _without_fast_ends(trained: Sequence[TrainedPart], least_usual_ms: float) -> Sequence[TrainedPart]:
    """Return the epochs from the first to the last one that was not fast; empty if all were.

    Args:
        trained: The times of the epochs, in their order.
        least_usual_ms: An epoch that took less is fast, in milliseconds.
    """
    usual_indices = [index for index, part in enumerate(trained) if part.epoch_ms >= least_usual_ms]
    if not usual_indices:
        return []
    return trained[usual_indices[0] : usual_indices[-1] + 1]


class _EpochTime(NamedTuple):
    """An estimate of the time of an epoch, and its origin in words.

    `bound_name` names the bound of the rule `epoch-time` that holds for the estimate: the least time of a step, in ms.
    """

    epoch_ms: float
    origin: str
    bound_name: str


def _check_steps(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collector: FindingCollector) -> None:
    """Report a breach for each estimate by which a step of the run took less time than a step can take.

    A log does not state the time of a step, so the time is computed from that of an epoch. For instance, an epoch of
    1,000,000 images that takes 20,000 ms takes 0.02 ms an image, and 10.24 ms a step of 512 images.

    Up to three estimates of the time of an epoch are used. For each, the rule `epoch-time` has a least time of a step:

        estimate of the time of an epoch             bound with the least time of a step
        the run's time over its number of epochs     mean_step_ms
        the median time of the epochs                median_step_ms
        the time of the fastest epoch                epoch_step_ms

    Args:
        run: The facts that the log states of the run. Nothing is checked if the log lacks train_samples,
            global_batch_size or run_stop.
        order: The run's epochs, with the number of the last one.
        trained: The times of the epochs, each above 0; without the first epoch of a resumed run.
        collector: Gets each breach of the rule `epoch-time`, and has these bounds by their names, in milliseconds.
    """
    samples = run.stated_count(schema.TRAIN_SAMPLES)  # 0 if it is not stated
    batch = run.stated_count(schema.GLOBAL_BATCH_SIZE)  # 0 if it is not stated
    if samples == 0 or batch == 0 or run.stop is None:
        return
    for estimate in _estimated_epoch_times(run, order, trained):
        image_ms = estimate.epoch_ms / samples
        step_ms = image_ms * batch
        least_step_ms = collector.strict_rules[RULE].bounds[estimate.bound_name]  # such as "median_step_ms": 0.7
        if step_ms < least_step_ms:
            actual = f"{significant(step_ms, digits=3)} ms a step of {batch} images, by {estimate.origin}"
            collector.add_breach(RULE, run.stop.line, actual)


def _estimated_epoch_times(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart]) -> list[_EpochTime]:
    """Return up to three estimates of the time of an epoch, each with the name of its bound for `_check_steps`.

    They are, in this order:

    - the time of the run over its number of epochs;
    - the median time of the epochs;
    - the time of the fastest epoch.

    `bound_name` is a key of the bounds of the rule `epoch-time`: the least time that a step may take by this estimate.
    Each has a bound of its own, because in published runs the least step times by the three lie far apart.

    Args:
        run: The facts that the log states of the run. Without its start, its end or a last epoch, the first estimate is
            left out; likewise for a resumed run.
        order: The run's epochs, with the number of the last one.
        trained: The times of the epochs that count. If there are none, the last two estimates are left out.
    """
    estimates = []
    mean_ms = _mean_epoch_ms(run, order)  # 0 if it is not known
    if mean_ms != 0:
        estimates.append(_EpochTime(mean_ms, "the run's time and epochs", bound_name="mean_step_ms"))
    if trained:
        median_ms = _median_epoch_ms(trained)
        fastest_ms = min(part.epoch_ms for part in trained)
        estimates.append(_EpochTime(median_ms, "the median epoch", bound_name="median_step_ms"))
        estimates.append(_EpochTime(fastest_ms, "the fastest epoch", bound_name="epoch_step_ms"))
    return estimates


def _check_evaluations(
    run: LoggedRun, shortest: TimedEvaluation | None, training_ms_per_image: float, collector: FindingCollector
) -> None:
    """Report a breach if the shortest evaluation took far less time than training takes on as many images.

    An evaluation must take at least a share of the time in training, the bound `share_of_training`. For instance, an
    evaluation of 50,000 images, which take 40 s in training, must take at least 1.2 s if the share is 0.03.

    Nothing is checked if

    - the log does not state eval_samples, the number of images;
    - the log has no run_stop, whose line a breach blames;
    - the log has no evaluation, or the shortest took 0 ms (or less) by the log's clock.

    Args:
        run: The facts that the log states of the run.
        shortest: The time of the shortest evaluation. None if there was no evaluation.
        training_ms_per_image: The time of an image in the fastest epoch, in milliseconds.
        collector: Gets the breach of the rule `epoch-time`, and has the bound.
    """
    images = run.stated_count(schema.EVAL_SAMPLES)  # 0 if it is not stated
    if images == 0 or run.stop is None:
        return
    if shortest is None or shortest.took_ms <= 0:
        return
    training_ms = training_ms_per_image * images
    least_ms = collector.strict_rules[RULE].bounds["share_of_training"] * training_ms
    if shortest.took_ms < least_ms:
        training_takes = f"{images} images of training take {four_digits(training_ms)} ms"
        actual = f"an evaluation of {significant(shortest.took_ms, digits=10)} ms; {training_takes}"
        collector.add_breach(RULE, run.stop.line, actual)


def _fastest_epoch_ms(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart]) -> float:
    """Return the time of a run's fastest epoch, in milliseconds; without times of epochs, the mean time of an epoch.

    The mean is the run's time over its number of epochs. If the mean is needed and not known, the result is 0.

    Args:
        run: The facts that the log states of the run.
        order: The run's epochs, with the number of the last one.
        trained: The times of the epochs, each above 0; without the first epoch of a resumed run. May be empty.
    """
    if trained:
        return min(part.epoch_ms for part in trained)
    return _mean_epoch_ms(run, order)  # 0 if it is not known


def _mean_epoch_ms(run: LoggedRun, order: RunOrder) -> float:
    """Return the run's time over its number of epochs, in milliseconds.

    Args:
        run: The facts that the log states of the run.
        order: The run's epochs, with the number of the last one.

    Returns:
        The mean; 0 if the log lacks the start, the end or a last epoch, or if the run was resumed, so that the log is
        not of all epochs.
    """
    if run.is_resumed or run.stop is None or run.start_ms is None:
        return 0.0
    if order.last_epoch is None or order.last_epoch == 0:
        return 0.0
    return (run.stop.time_ms - run.start_ms) / order.last_epoch
