"""Whether a candidate is faster than the base, and trains the same."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from program.arrays import Array
from runlog.digits import significant
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure import spread
from scoring.record import Record
from tools.tune.candidates import BASE, Candidate
from tools.tune.runs import Measured, rate

# A loss may differ from the base's by so many times what the control's does, and by a rounding of its own.
CONTROL_FACTOR = 10.0
LOSS_ROUNDING = 1e-6

Verdicts = dict[Candidate, Verdict]


def losses(runs: Sequence[Record]) -> Array:
    """Return the losses of runs, [runs, windows]; NaN if a window has none."""
    rows = []
    for run in runs:
        rows.append([window.loss for window in run.windows])
    return np.array(rows, dtype=float)


def allowed_loss(runs: Sequence[Record]) -> Array:
    """Return by how much a candidate's loss may differ from the base's, by window of steps.

    `runs` are the base's and the control's, a run of the base first. The control's input differs by a rounding, so what
    their losses differ by up to a window is what rounding does. A candidate may differ by CONTROL_FACTOR times that,
    and by LOSS_ROUNDING of the loss.
    """
    first, *others = losses(runs)
    difference_by_window = np.abs(others - first).max(axis=0)
    largest_so_far = np.maximum.accumulate(difference_by_window)
    return np.array(CONTROL_FACTOR * largest_so_far + LOSS_ROUNDING * np.abs(first))


def judge(measured: Measured, base: Sequence[Record], allowed: Array) -> Verdicts:
    """Return a verdict on the base and on each candidate of `measured`; `base` are the base's runs of the same turns.

    The base is ok, and a candidate that failed is fatal. Any other is judged by its speed and its losses, as
    `judge_candidate` says. `allowed` has how far a loss may be from the base's, by window.
    """
    rates = [rate(run) for run in base]
    verdicts = {BASE: Verdict(check=BASE.name, status=OK, found=shown(rates), figures={"images_per_s": rates})}
    for candidate, runs in measured.runs.items():
        verdicts[candidate] = judge_candidate(candidate.name, runs, base, allowed)
    for candidate, reason in measured.failures.items():
        verdicts[candidate] = Verdict(check=candidate.name, status=FATAL, found=f"refused: {reason}")
    return verdicts


def judge_candidate(name: str, runs: Sequence[Record], base: Sequence[Record], allowed: Array) -> Verdict:
    """Compare a candidate's runs with the base's runs of the same turns, and return the verdict on it.

    It is fatal if its losses differ too much from the base's. Else it goes by the 95 % interval of its speed: ok if the
    candidate is surely faster, a warning if it is surely slower, and unknown if neither is shown. `allowed` has how far
    a loss may be from the base's, by window.

    The verdict's figures are:

    - `images_per_s`, of each turn;
    - `ratio`, the candidate's images/s over the base's, as the geometric mean over the turns, and its `interval_95`;
    - `loss_excess`, the largest difference of a loss over the allowed one, infinite for a NaN: above 1 is too much.
    """
    rates = [rate(run) for run in runs]
    log_ratios = []
    for own_rate, base_run in zip(rates, base, strict=True):
        log_ratios.append(math.log(own_rate / rate(base_run)))
    log_interval = spread.t_interval(log_ratios)
    assert log_interval is not None, "two turns or more are taken"
    ratio = math.exp(statistics.fmean(log_ratios))
    low = math.exp(log_interval[0])
    high = math.exp(log_interval[1])

    first_of_base = losses(base[:1])  # as in `allowed_loss`; all runs have one seed, so its others are nearly the same
    excesses = np.abs(losses(runs) - first_of_base) / allowed  # [runs, windows]
    excess = math.inf if np.isnan(excesses).any() else float(excesses.max())
    if excess > 1:
        status = FATAL
        outcome = f"refused: its losses differ by {significant(excess, digits=3)} times what is allowed"
    elif low > 1:
        status = OK
        outcome = "faster"
    elif high < 1:
        status = WARNING
        outcome = "slower"
    else:
        status = UNKNOWN
        outcome = "no difference shown"
    return Verdict(
        check=name,
        status=status,
        found=f"{shown(rates)}; {ratio:.4f} ({low:.4f} to {high:.4f}) of the base; loss {excess:.2g}: {outcome}",
        figures={"images_per_s": rates, "ratio": ratio, "interval_95": (low, high), "loss_excess": excess},
    )


def shown(images_per_s: Sequence[float]) -> str:
    """Return mean and range of several rates as text: "403.20 (401.10 to 405.90)"."""
    mean = statistics.fmean(images_per_s)
    return f"{mean:.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def better(verdicts: Verdicts) -> list[Candidate]:
    """Return the candidates that are faster than the base, the fastest first."""
    faster = [candidate for candidate, verdict in verdicts.items() if verdict.status == OK and candidate != BASE]
    return sorted(faster, key=lambda candidate: -verdicts[candidate].figures["ratio"])


def finalists(verdicts: Verdicts) -> list[Candidate]:
    """Return what is measured again: the fastest candidate, and all that can go together as one; [] if none is better.

    From the fastest on, a candidate is joined unless it excludes one that is joined already. If none can be joined
    with the fastest, that alone is measured again.
    """
    together: list[Candidate] = []
    for candidate in better(verdicts):
        if not any(candidate.excludes(other) for other in together):
            together.append(candidate)
    if len(together) < 2:
        return together
    return [together[0], _joined(together)]


def _joined(together: Sequence[Candidate]) -> Candidate:
    """Make one candidate of several."""
    knobs: list[str] = []
    variables: list[tuple[str, str]] = []
    for candidate in together:
        knobs += candidate.knobs
        variables += candidate.variables
    name = " + ".join(candidate.name for candidate in together)
    return Candidate(name=name, knobs=tuple(knobs), variables=tuple(variables))


def batch_verdict(name: str, runs: Sequence[Record]) -> Verdict:
    """Return the verdict on a batch size, which is always ok: its rate over the turns, and the GPU memory that it took.

    The rate is the mean, with a 95 % interval if there were two turns or more. The memory is the most of any
    measured window of steps, or "not measured" if no window has it, as on a CPU.
    """
    rates = [rate(run) for run in runs]
    interval = spread.t_interval(rates)
    within = "no interval: one turn"
    if interval is not None:
        within = f"95 % interval over the turns {interval[0]:.2f} to {interval[1]:.2f}"

    held_mib: list[float] = []
    for run in runs:
        for window in run.windows:
            if window.phase == "measured" and window.gpu_memory_mib is not None:
                held_mib.append(window.gpu_memory_mib)
    memory = "GPU memory not measured"
    if held_mib:
        memory = f"{max(held_mib):.0f} MiB of GPU memory"
    return Verdict(check=name, status=OK, found=f"{statistics.fmean(rates):.2f} images/s, {within}, {memory}")
