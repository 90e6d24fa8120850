"""The pace of a run: no epoch or evaluation is far faster than a training can be.

A slow epoch condemns no other: a machine may throttle, storage may stall, data may be read again.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.rules import Benchmark, FindingCollector
from compliance.strict.run_order import RunOrder, TrainedPart
from runlog import schema
from runlog.digits import significant

RULE = "epoch-time"


def check_pace(run: LoggedRun, order: RunOrder, benchmark: Benchmark, collector: FindingCollector) -> None:
    """Collect the breaches of `epoch-time`: epochs, steps and evaluations that are faster than a training can be.

    The log must have been read to its end. Epochs are compared with each other in every benchmark. The times of a step
    and of an evaluation have bounds for ResNet alone, that of an evaluation only where the data set is the benchmark's.
    """
    bounds = collector.strict_rules[RULE].bounds
    trained = [part for part in order.trained if part.epoch_ms > 0]
    fast_epochs = _fast_between_slower(trained, bounds["epochs"], bounds["median_ms"], bounds["share_of_median"])
    if fast_epochs:
        median_ms = statistics.median_high(part.epoch_ms for part in trained)
        how_many = f"{len(fast_epochs)} of {len(trained)} epochs"
        actual = f"{how_many} take under 1/8 of the median, {significant(median_ms, digits=10)} ms, between slower ones"
        collector.add_breach(RULE, fast_epochs[0].line, actual)
    if benchmark.name == "resnet":
        _check_steps(run, order, trained, collector)
        if run.stated_count(schema.TRAIN_SAMPLES) == benchmark.train_samples:
            _check_evaluations(run, order, trained, collector)


def _fast_between_slower(
    trained: Sequence[TrainedPart], least_epochs: float, least_median_ms: float, share: float
) -> list[TrainedPart]:
    """Return the epochs that took less than `share` of the median, and have slower ones before and after them.

    Fast ones at the start or the end of the run are left out: a machine may be faster before it throttles, or after.
    Empty for a run of fewer than `least_epochs` epochs, and for one whose median is below `least_median_ms`: times so
    short are no evidence.
    """
    if len(trained) < least_epochs:
        return []
    median_ms = statistics.median_high(part.epoch_ms for part in trained)
    if median_ms < least_median_ms:
        return []
    # Never empty, as the median is that of one of the epochs.
    slower_indices = [index for index, part in enumerate(trained) if part.epoch_ms >= share * median_ms]
    first_slower = slower_indices[0]
    last_slower = slower_indices[-1]
    return [part for part in trained[first_slower:last_slower] if part.epoch_ms < share * median_ms]


class _EpochTime(NamedTuple):
    """A time that an epoch took, where it comes from in words, and the name of the rule's bound for a step of it."""

    epoch_ms: float
    origin: str
    bound: str


def _check_steps(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collector: FindingCollector) -> None:
    """Collect a breach where a training step of ResNet takes less time than to launch its 500 kernels.

    A log does not state the time of a step, so it is computed as the time of an epoch over its steps. An epoch has up
    to three times, each with a bound of its own: the run's time over its epochs, the median epoch and the fastest one.
    Nothing is collected for a log that lacks train_samples, global_batch_size or run_stop.
    """
    samples = run.stated_count(schema.TRAIN_SAMPLES)
    batch = run.stated_count(schema.GLOBAL_BATCH_SIZE)
    if not samples or not batch or run.stop is None:
        return
    for time in _times_of_an_epoch(run, order, trained):
        step_ms = time.epoch_ms / samples * batch
        least_ms = collector.strict_rules[RULE].bounds[time.bound]
        if step_ms < least_ms:
            actual = f"{significant(step_ms, digits=3)} ms a step of {batch} images, by {time.origin}"
            collector.add_breach(RULE, run.stop.line, actual)


def _times_of_an_epoch(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart]) -> list[_EpochTime]:
    """Return the mean, median and least time of an epoch, each with the name of its bound in the rule `epoch-time`.

    The mean is left out where the log does not state the run's time and epochs. The others are left out where no epoch
    was timed; `trained` has those that were.
    """
    times = []
    mean_ms = _mean_epoch_ms(run, order)
    if mean_ms:
        times.append(_EpochTime(mean_ms, "the run's time and epochs", bound="mean_step_ms"))
    if trained:
        epochs_ms = sorted(part.epoch_ms for part in trained)
        median_ms = statistics.median_high(epochs_ms)
        times.append(_EpochTime(median_ms, "the median epoch", bound="median_step_ms"))
        times.append(_EpochTime(epochs_ms[0], "the fastest epoch", bound="epoch_step_ms"))
    return times


def _check_evaluations(
    run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collector: FindingCollector
) -> None:
    """Collect an evaluation that is far faster than the fastest training of as many images."""
    samples = run.stated_count(schema.TRAIN_SAMPLES)
    evaluated = run.stated_count(schema.EVAL_SAMPLES)
    least_ms = min(run.durations(schema.EVAL_STOP.key), default=0.0)
    epoch_ms = min((part.epoch_ms for part in trained), default=_mean_epoch_ms(run, order))
    training_ms = epoch_ms / samples * evaluated
    if run.stop is not None and 0 < least_ms < collector.strict_rules[RULE].bounds["share_of_training"] * training_ms:
        training_takes = f"{evaluated} images of training take {significant(training_ms, digits=4)} ms"
        actual = f"an evaluation of {significant(least_ms, digits=10)} ms; {training_takes}"
        collector.add_breach(RULE, run.stop.line, actual)


def _mean_epoch_ms(run: LoggedRun, order: RunOrder) -> float:
    """Return the run's time over its epochs, in ms; 0 where the log does not say."""
    if run.stop is None or run.start_ms is None or not order.last_epoch:
        return 0.0
    return (run.stop.time_ms - run.start_ms) / order.last_epoch
