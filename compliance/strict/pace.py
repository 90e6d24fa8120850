"""The pace of a run: no epoch or evaluation is far faster than a training can be.

A slow epoch condemns no other: a machine may throttle, storage may stall, data may be read again.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.rules import Benchmark, Collected
from compliance.strict.run_order import RunOrder, TrainedPart
from runlog import schema

RULE = "epoch-time"


def check_pace(run: LoggedRun, order: RunOrder, benchmark: Benchmark, collected: Collected) -> None:
    """Collect the breaches of `epoch-time`: epochs, steps and evaluations that are faster than a training can be.

    The run must have ended. Epochs are compared with each other in every benchmark; the times of a step and of an
    evaluation have bounds for ResNet alone, that of an evaluation only where the data set is the benchmark's.
    """
    bounds = collected.strict[RULE].bounds
    trained = [part for part in order.trained if part.epoch_ms > 0]
    fast = _fast_between_slower(trained, bounds["epochs"], bounds["median_ms"], bounds["share_of_median"])
    if fast:
        median_ms = statistics.median_high(part.epoch_ms for part in trained)
        few = f"{len(fast)} of {len(trained)} epochs"
        actual = f"{few} take under 1/8 of the median, {median_ms:.10g} ms, between slower ones"
        collected.breach(RULE, fast[0].line, actual)
    if benchmark.name == "resnet":
        _check_steps(run, order, trained, collected)
        if run.count(schema.TRAIN_SAMPLES) == benchmark.train_samples:
            _check_evaluations(run, order, trained, collected)


def _fast_between_slower(
    trained: Sequence[TrainedPart], least_epochs: float, least_median_ms: float, share: float
) -> list[TrainedPart]:
    """Return the epochs of under `share` of the median that have a slower epoch somewhere before and after them.

    Fast ones at the start or the end are left out: they are a machine's before it throttles, or after. Runs of fewer
    than `least_epochs` epochs, or of epochs so short that they overlap, have none.
    """
    if len(trained) < least_epochs:
        return []
    median_ms = statistics.median_high(part.epoch_ms for part in trained)
    if median_ms < least_median_ms:
        return []
    slower_places = [place for place, part in enumerate(trained) if part.epoch_ms >= share * median_ms]
    between_slower = trained[slower_places[0] : slower_places[-1]]
    return [part for part in between_slower if part.epoch_ms < share * median_ms]


class _EpochTime(NamedTuple):
    """A time of an epoch, where it comes from, and the bound of the rule for a step of it."""

    epoch_ms: float
    origin: str
    bound: str


def _check_steps(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collected: Collected) -> None:
    """Collect a breach where a training step of ResNet is shorter than launching its 500 kernels takes.

    A log states no step's time, so it is computed as an epoch's time over its steps. There are up to three times of an
    epoch, each with a bound of its own: the run's time over its epochs, the median epoch and the fastest one.
    """
    samples = run.count(schema.TRAIN_SAMPLES)
    batch = run.count(schema.GLOBAL_BATCH_SIZE)
    if not samples or not batch or run.stop is None:
        return
    for time in _times_of_an_epoch(run, order, trained):
        step_ms = time.epoch_ms / samples * batch
        if step_ms < collected.strict[RULE].bounds[time.bound]:
            actual = f"{step_ms:.3g} ms a step of {batch} images, by {time.origin}"
            collected.breach(RULE, run.stop.line, actual)


def _times_of_an_epoch(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart]) -> list[_EpochTime]:
    """Return the mean, median and least time of an epoch, as far as the log has them."""
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


def _check_evaluations(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collected: Collected) -> None:
    """Collect an evaluation that is far faster than the fastest training of as many images."""
    samples = run.count(schema.TRAIN_SAMPLES)
    evaluated = run.count(schema.EVAL_SAMPLES)
    least_ms = min(run.durations(schema.EVAL_STOP.key), default=0.0)
    epoch_ms = min((part.epoch_ms for part in trained), default=_mean_epoch_ms(run, order))
    training_ms = epoch_ms / samples * evaluated
    if run.stop is not None and 0 < least_ms < collected.strict[RULE].bounds["share_of_training"] * training_ms:
        actual = f"an evaluation of {least_ms:.10g} ms; {evaluated} images of training take {training_ms:.4g} ms"
        collected.breach(RULE, run.stop.line, actual)


def _mean_epoch_ms(run: LoggedRun, order: RunOrder) -> float:
    """Return the run's time over its epochs, in ms; 0 where the log does not say."""
    if run.stop is None or run.start_ms is None or not order.last_epoch:
        return 0.0
    return (run.stop.time_ms - run.start_ms) / order.last_epoch
