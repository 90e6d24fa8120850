"""Whether a candidate is faster than the base, and trains the same."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from program.arrays import Array
from runlog.digits import significant
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure import spread
from scoring.record import Record
from tools.tune.candidates import BASE, Candidate
from tools.tune.runs import Measured, rate

# A candidate's loss may differ from the base's by this many times the difference of the control, plus this share of it.
CONTROL_FACTOR = 10.0
LOSS_ROUNDING = 1e-6

Verdicts = dict[Candidate, Verdict]


def losses(runs: Sequence[Record]) -> Array:
    """Return the losses of runs, shape [runs, windows]. A loss is NaN if its window of steps has none.

    Args:
        runs: What the logs say. All have equally many windows.
    """
    rows = []
    for run in runs:
        rows.append([window.loss for window in run.windows])
    return np.array(rows, dtype=float)


def allowed_loss(runs: Sequence[Record]) -> Array:
    """Return for each window of training steps how far a candidate's loss may be from the base's.

    How far the losses of these runs are apart shows how much rounding alone changes a loss. A candidate may differ by
    CONTROL_FACTOR (10) times as much, plus the share LOSS_ROUNDING (1e-6) of the loss.

    Args:
        runs: At least two runs: first those of the base, the user's own job, then that of the control, which is the
            base with an input that differs by a rounding error.

    Returns:
        The allowed differences from the loss of the first run, shape [windows].
    """
    losses_by_run = losses(runs)  # a row for each run, a column for each window
    losses_of_first = losses_by_run[0]
    by_rounding = np.abs(losses_by_run[1:] - losses_of_first).max(axis=0)  # the largest difference in each window
    # Rounding errors grow from step to step, so a window must not allow less than the windows before it.
    by_rounding_so_far = np.maximum.accumulate(by_rounding)
    return np.array(CONTROL_FACTOR * by_rounding_so_far + LOSS_ROUNDING * np.abs(losses_of_first))


def judge_candidates(measured: Measured, base_runs: Sequence[Record], allowed: Array) -> Verdicts:
    """Return a verdict on each change to the user's job that was tried, and first one on the unchanged job (BASE).

    Args:
        measured: The runs of each candidate (a change that was tried), or why it failed. The runs of BASE and of the
            control must have been taken out, because all in `measured` are compared with BASE.
        base_runs: The unchanged job's run of each turn.
        allowed: How far a loss may be from the unchanged job's, for each window of steps.

    Returns:
        The verdicts by candidate. BASE is ok, with its speed. A candidate that ran is fatal if its losses differ too
        much, else ok if it is faster, a warning if slower, and unknown if neither is shown. One that failed is fatal.
    """
    base_rates = [rate(run) for run in base_runs]  # images/s of each turn
    base_verdict = Verdict(
        check=BASE.name, status=OK, found=mean_and_range(base_rates), figures={"images_per_s": base_rates}
    )
    verdicts = {BASE: base_verdict}
    for candidate, runs in measured.runs.items():
        verdicts[candidate] = judge_candidate(candidate.name, runs, base_runs, allowed)  # by its losses and its speed
    for candidate, reason in measured.failures.items():
        verdicts[candidate] = Verdict(check=candidate.name, status=FATAL, found=f"refused: {reason}")
    return verdicts


class _SpeedRatio(NamedTuple):
    """A candidate's images/s over the base's, and the 95 % interval of this ratio."""

    mean: float
    low: float
    high: float


def judge_candidate(name: str, runs: Sequence[Record], base_runs: Sequence[Record], allowed: Array) -> Verdict:
    """Return the verdict on a candidate by its losses and its speed, both compared with those of the base.

    The base is the user's own job without changes.

    Args:
        name: The name of the candidate, for the verdict.
        runs: The candidate's run of each turn, at least two.
        base_runs: The base's run of each turn.
        allowed: How far a loss may be from the base's, for each window of steps.

    Returns:
        Fatal if a loss is farther off than allowed. Otherwise ok if the candidate is faster, a warning if it is slower,
        and unknown if neither is shown.
    """
    rates = [rate(run) for run in runs]
    ratio = _speed_ratio(rates, [rate(run) for run in base_runs])
    excess = _loss_excess(runs, base_runs, allowed)  # the largest difference of a loss over the allowed one
    outcome = _outcome(excess, ratio)
    speed = f"{mean_and_range(rates)}; {ratio.mean:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) of the base"
    return Verdict(
        check=name,
        status=outcome.status,
        found=f"{speed}; loss {significant(excess, digits=2)}: {outcome.words}",
        figures={
            "images_per_s": rates,  # of each turn
            "ratio": ratio.mean,  # of the speed to the base's
            "interval_95": (ratio.low, ratio.high),
            "loss_excess": excess,
        },
    )


def _speed_ratio(rates: Sequence[float], base_rates: Sequence[float]) -> _SpeedRatio:
    """Return how many times as fast as the base (the unchanged job) a candidate is, with the 95 % interval.

    Only the rates of the same turn are compared. The mean is the geometric one of the turns' ratios, exp(mean of
    log(rate / base rate)). The interval is that of Student's t for the logarithms.

    Args:
        rates: The candidate's images/s in each turn, at least two.
        base_rates: The base's images/s in each turn.
    """
    logs = [math.log(rate_of_turn / base) for rate_of_turn, base in zip(rates, base_rates, strict=True)]
    interval_of_logs = spread.t_interval(logs)
    assert interval_of_logs is not None, "two turns or more are run"
    low, high = interval_of_logs
    return _SpeedRatio(mean=math.exp(statistics.fmean(logs)), low=math.exp(low), high=math.exp(high))


def _loss_excess(runs: Sequence[Record], base_runs: Sequence[Record], allowed: Array) -> float:
    """Return the largest difference of a loss from the base's, divided by the allowed one; infinity if a loss is NaN.

    Above 1 a loss differs by more than is allowed.

    Args:
        runs: The candidate's run of each turn.
        base_runs: The runs of the base, the unchanged job. Only the first one counts.
        allowed: The allowed difference for each window of steps.
    """
    # One run of the base stands for all: they have the same seed, so their losses are nearly equal.
    first_base_losses = losses(base_runs[:1])  # [1, windows]
    excesses = np.abs(losses(runs) - first_base_losses) / allowed  # [runs, windows]
    return math.inf if np.isnan(excesses).any() else float(excesses.max())


class _Outcome(NamedTuple):
    """The result of comparing a candidate with the base: the status of a verdict, and the same in words."""

    status: str
    words: str


def _outcome(loss_excess: float, ratio: _SpeedRatio) -> _Outcome:
    """Return whether a candidate is refused, faster, slower or neither, as a status with words.

    Args:
        loss_excess: The largest difference of a loss from the base's, divided by the allowed one. Above 1 it is
            refused.
        ratio: The candidate's speed over the base's, with the 95 % interval. It is faster or slower only if the whole
            interval is above 1 or below 1.
    """
    if loss_excess > 1:
        words = f"refused: its losses differ by {significant(loss_excess, digits=3)} times what is allowed"
        return _Outcome(FATAL, words)
    if ratio.low > 1:  # the whole interval is above 1
        return _Outcome(OK, "faster")
    if ratio.high < 1:
        return _Outcome(WARNING, "slower")
    return _Outcome(UNKNOWN, "no difference shown")


def mean_and_range(images_per_s: Sequence[float]) -> str:
    """Return mean and range of several rates as text: "403.20 (401.10 to 405.90)"."""
    mean = statistics.fmean(images_per_s)
    return f"{mean:.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def better(verdicts: Verdicts) -> list[Candidate]:
    """Return the candidates whose verdict says that they are faster than the base, the fastest first."""
    faster = [candidate for candidate, verdict in verdicts.items() if verdict.status == OK and candidate != BASE]
    return sorted(faster, key=lambda candidate: -verdicts[candidate].figures["ratio"])


def finalists(verdicts: Verdicts) -> list[Candidate]:
    """Return at most two candidates to measure again: the fastest, and a new one that joins the fastest with others.

    Only candidates that are faster than BASE, the user's unchanged job, count. Two that set the same option, for
    example, cannot be joined.

    Args:
        verdicts: The verdict on each candidate (a change to the job) and on BASE.
    """
    faster_than_base = better(verdicts)  # the fastest first
    joinable = _compatible(faster_than_base)  # the fastest, then each that can be joined with all before it
    if not joinable:
        return []
    fastest = joinable[0]
    if len(joinable) == 1:
        return [fastest]
    joined = _joined(joinable)  # a new candidate with the changes of all in `joinable`
    return [fastest, joined]


def _compatible(fastest_first: Sequence[Candidate]) -> list[Candidate]:
    """Return the fastest candidate, and each slower one that excludes none of those that are returned before it."""
    compatible: list[Candidate] = []
    for candidate in fastest_first:
        if not any(candidate.excludes(faster) for faster in compatible):
            compatible.append(candidate)
    return compatible


def _joined(compatible: Sequence[Candidate]) -> Candidate:
    """Return one candidate with the knobs and variables of several that do not exclude each other."""
    knobs: list[str] = []
    variables: list[tuple[str, str]] = []
    for candidate in compatible:
        knobs += candidate.knobs
        variables += candidate.variables
    name = " + ".join(candidate.name for candidate in compatible)
    return Candidate(name=name, knobs=tuple(knobs), variables=tuple(variables))


def batch_verdict(name: str, runs: Sequence[Record]) -> Verdict:
    """Return a verdict of status ok that states the speed and the GPU memory of a batch size.

    Args:
        name: The name of the check, such as "BATCHSIZE=64".
        runs: The run of each turn with that size. The speed is their mean, with a 95 % interval for two or more. The
            memory is the largest of all runs; a CPU reports none.
    """
    rates = [rate(run) for run in runs]
    interval = spread.t_interval(rates)
    interval_words = "no interval: one turn"
    if interval is not None:
        interval_words = f"95 % interval over the turns {interval[0]:.2f} to {interval[1]:.2f}"

    memory_mib = _largest_gpu_memory_mib(runs)
    memory_words = "GPU memory not measured"
    if memory_mib is not None:
        memory_words = f"{memory_mib:.0f} MiB of GPU memory"
    found = f"{statistics.fmean(rates):.2f} images/s, {interval_words}, {memory_words}"
    return Verdict(check=name, status=OK, found=found)


def _largest_gpu_memory_mib(runs: Sequence[Record]) -> float | None:
    """Return the largest GPU memory in the measured windows of all runs, in MiB; None if no window has it."""
    memories_mib: list[float] = []
    for run in runs:
        for window in run.windows:
            if window.phase == "measured" and window.gpu_memory_mib is not None:
                memories_mib.append(window.gpu_memory_mib)
    return max(memories_mib, default=None)
