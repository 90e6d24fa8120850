"""The pace of a run: no epoch or evaluation may be far faster than a training can be.

A slow epoch does not make the others suspect: a machine may throttle, storage may stall, data may be read again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.rules import Benchmark, FindingCollector
from compliance.strict.parts import TimedEvaluation, TrainedPart
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.digits import four_digits, significant, six_digits

RULE = "epoch-time"


def check_pace(run: LoggedRun, order: RunOrder, benchmark: Benchmark, collector: FindingCollector) -> None:
    """Report epochs, and in a ResNet run also steps and evaluations, that are faster than they can be.

    An epoch is compared with the median epoch, a step with fixed bounds, and an evaluation with the time in which
    the run trained on as many images. Call it once the whole log has been read.

    Args:
        run: The facts that the log states of the run.
        order: The times of the run's epochs and of its shortest evaluation.
        benchmark: The benchmark of the run.
        collector: Gets each breach of the rule `epoch-time`, and has its bounds.
    """
    # The first epoch of a resumed run may have begun in another log.
    whole_epochs = order.trained[1:] if run.is_resumed else order.trained
    trained = [part for part in whole_epochs if part.epoch_ms > 0]  # a coarse clock may show 0
    _check_epochs(trained, collector)
    if benchmark.name != "resnet":  # the bounds of steps and of evaluations are of ResNet runs
        return
    _check_steps(run, order, trained, collector)
    # Evaluations are only held against a training on the benchmark's number of images.
    if run.stated_count(schema.TRAIN_SAMPLES) != benchmark.train_samples:
        return
    epoch_ms = _epoch_ms_to_compare(run, order, trained)  # the fastest epoch, or the mean; None: neither is known
    if epoch_ms is not None and epoch_ms > 0:
        training_ms_per_image = epoch_ms / benchmark.train_samples
        _check_evaluations(run, order.shortest_evaluation, training_ms_per_image, collector)


def _check_epochs(trained: Sequence[TrainedPart], collector: FindingCollector) -> None:
    """Report a breach if epochs in the middle of a run were far faster than the median epoch.

    Fast epochs at the start or the end of a run are allowed, because a machine may be faster before it throttles.

    Args:
        trained: The times of the epochs, in their order.
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
    middle = _without_fast_ends(trained, least_usual_ms)
    fast_epochs = [part for part in middle if part.epoch_ms < least_usual_ms]
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
    """An estimate of the time of an epoch, its origin in words, and the least time that a step may take by it."""

    epoch_ms: float
    origin: str
    least_step_ms: float


def _check_steps(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collector: FindingCollector) -> None:
    """Report that the steps of a run took less time than a step can take: once for each estimate that shows it.

    A log does not state the time of a step, so it is computed from that of an epoch. For instance, an epoch of
    1,000,000 images that takes 20,000 ms takes 0.02 ms an image, and 10.24 ms a step of 512 images.

    Args:
        run: The facts that the log states of the run. Nothing is checked if the log lacks train_samples,
            global_batch_size or run_stop.
        order: The run's epochs, with the number of the last one.
        trained: The times of the epochs, each above 0; without the first epoch of a resumed run.
        collector: Gets each breach of the rule `epoch-time`, and has its bounds.
    """
    samples = run.stated_count(schema.TRAIN_SAMPLES)  # 0 if it is not stated
    batch = run.stated_count(schema.GLOBAL_BATCH_SIZE)  # 0 if it is not stated
    if samples == 0 or batch == 0 or run.stop is None:
        return
    bounds = collector.strict_rules[RULE].bounds
    for estimate in _estimated_epoch_times(run, order, trained, bounds):
        image_ms = estimate.epoch_ms / samples
        step_ms = image_ms * batch
        if step_ms < estimate.least_step_ms:
            actual = f"{significant(step_ms, digits=3)} ms a step of {batch} images, by {estimate.origin}"
            collector.add_breach(RULE, run.stop.line, actual)


def _estimated_epoch_times(
    run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], bounds: Mapping[str, float]
) -> list[_EpochTime]:
    """Return up to three estimates of the time of an epoch: the mean over the run, the median and the fastest epoch.

    With each estimate comes a bound, with which the caller compares the time of a step that follows from it.

    Args:
        run: The facts that the log states of the run.
        order: The run's epochs, with the number of the last one.
        trained: The times of the epochs that count. If there are none, only the mean over the run is left.
        bounds: The bounds of the rule `epoch-time`: for each estimate the least time of a step, such as 1 ms by the
            mean, 0.7 ms by the median and 0.25 ms by the fastest epoch. They differ as in published runs, whose
            fastest epoch gives a shorter step than the mean over the run.
    """
    estimates = []
    mean_ms = _mean_epoch_ms(run, order)  # None if it is not known, as in a resumed run
    if mean_ms is not None:
        estimates.append(_EpochTime(mean_ms, "the run's time and epochs", bounds["mean_step_ms"]))
    if trained:
        fastest_ms = min(part.epoch_ms for part in trained)
        estimates.append(_EpochTime(_median_epoch_ms(trained), "the median epoch", bounds["median_step_ms"]))
        estimates.append(_EpochTime(fastest_ms, "the fastest epoch", bounds["epoch_step_ms"]))
    return estimates


def _check_evaluations(
    run: LoggedRun, shortest: TimedEvaluation | None, training_ms_per_image: float, collector: FindingCollector
) -> None:
    """Report a breach if the shortest evaluation took far less time than training takes on as many images.

    For instance, training takes 40 s on 50,000 images. An evaluation of these must take at least 1.2 s, if the bound
    `share_of_training` is 0.03.

    Args:
        run: The facts that the log states of the run. Nothing is checked if the log lacks eval_samples or run_stop.
        shortest: The time of the shortest evaluation, which may be 0 by a coarse clock. None if there was none.
        training_ms_per_image: The time that training takes on an image, in milliseconds.
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


def _epoch_ms_to_compare(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart]) -> float | None:
    """Return the time of a run's fastest epoch, in milliseconds; without times of epochs, the mean time of an epoch.

    Args:
        run: The facts that the log states of the run.
        order: The run's epochs, with the number of the last one.
        trained: The times of the epochs, each above 0; without the first epoch of a resumed run. May be empty.

    Returns:
        The time. None if there are no times of epochs, and the mean is not known either.
    """
    if trained:
        return min(part.epoch_ms for part in trained)
    return _mean_epoch_ms(run, order)


def _mean_epoch_ms(run: LoggedRun, order: RunOrder) -> float | None:
    """Return the run's time over its number of epochs, in milliseconds.

    Args:
        run: The facts that the log states of the run.
        order: The run's epochs, with the number of the last one.

    Returns:
        The mean. None if the log lacks the start, the end or a last epoch, or if the two times are equal.
    """
    if run.is_resumed:  # the log has only some of the epochs
        return None
    if run.stop is None or run.start_ms is None or not order.last_epoch:
        return None
    run_ms = run.stop.time_ms - run.start_ms
    if run_ms == 0:  # by a coarse clock
        return None
    return run_ms / order.last_epoch
