"""The pace of a run: no epoch or evaluation is far faster than a training can be.

A slow epoch condemns no other: a machine may throttle, storage may stall, data may be read again.
"""

import math
import statistics
from collections.abc import Sequence

from compliance.logged_run import LoggedRun
from compliance.rules import Benchmark, Collected
from compliance.strict.run_order import RunOrder, TrainedPart
from runlog import schema

RULE = "epoch-time"


def check_pace(run: LoggedRun, order: RunOrder, benchmark: Benchmark, collected: Collected) -> None:
    """Collect breaches of `epoch-time` in a run that has ended."""
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
    """The epochs of under `share` of the median that have a slower epoch somewhere before and after them.

    Fast ones at the start or the end are a machine's before it throttles, or after.
    """
    if len(trained) < least_epochs:
        return []
    median_ms = statistics.median_high(part.epoch_ms for part in trained)
    if median_ms < least_median_ms:  # epochs that short overlap
        return []
    slower = [place for place, part in enumerate(trained) if part.epoch_ms >= share * median_ms]
    inside = trained[slower[0] : slower[-1]]
    return [part for part in inside if part.epoch_ms < share * median_ms]


def _check_steps(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collected: Collected) -> None:
    """No step of ResNet is shorter than its 500 kernels, by the run's time, its median epoch and its fastest one."""
    samples = run.count(schema.TRAIN_SAMPLES)
    batch = run.count(schema.GLOBAL_BATCH_SIZE)
    if not samples or not batch or run.stop is None:
        return
    epochs_ms = sorted(part.epoch_ms for part in trained) or [math.inf]
    for bound, epoch_ms, by in (
        ("mean_step_ms", _mean_epoch_ms(run, order) or math.inf, "the run's time and epochs"),
        ("median_step_ms", epochs_ms[len(epochs_ms) // 2], "the median epoch"),
        ("epoch_step_ms", epochs_ms[0], "the fastest epoch"),
    ):
        step_ms = epoch_ms / samples * batch
        if step_ms < collected.strict[RULE].bounds[bound]:
            actual = f"{step_ms:.3g} ms a step of {batch} images, by {by}"
            collected.breach(RULE, run.stop.line, actual)


def _check_evaluations(run: LoggedRun, order: RunOrder, trained: Sequence[TrainedPart], collected: Collected) -> None:
    """No evaluation is far faster than the fastest training of as many images."""
    samples = run.count(schema.TRAIN_SAMPLES)
    evaluated = run.count(schema.EVAL_SAMPLES)
    least_ms = min(run.durations(schema.EVAL_STOP.key), default=0.0)
    epoch_ms = min((part.epoch_ms for part in trained), default=_mean_epoch_ms(run, order))
    training_ms = epoch_ms / samples * evaluated
    if run.stop is not None and 0 < least_ms < collected.strict[RULE].bounds["share_of_training"] * training_ms:
        actual = f"an evaluation of {least_ms:.10g} ms; {evaluated} images of training take {training_ms:.4g} ms"
        collected.breach(RULE, run.stop.line, actual)


def _mean_epoch_ms(run: LoggedRun, order: RunOrder) -> float:
    """The run's time over its epochs, in ms; 0 where the log does not say."""
    if run.stop is None or run.start_ms is None or not order.last_epoch:
        return 0.0
    return (run.stop.time_ms - run.start_ms) / order.last_epoch
