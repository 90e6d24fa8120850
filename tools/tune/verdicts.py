"""Whether a candidate is faster than the base, and trains the same."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from program.arrays import Array
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
    """Return the losses of runs, [runs, windows]; NaN where a window has none."""
    rows = []
    for run in runs:
        rows.append([window.loss for window in run.windows])
    return np.array(rows, dtype=float)


def allowed_loss(runs: Sequence[Record]) -> Array:
    """Return by how much a candidate's loss may differ from the base's, by window.

    `runs` are the base's and the control's, the first of the base first. What their losses differ by up to a window
    is what rounding does; a candidate may differ by CONTROL_FACTOR times that.
    """
    first, *others = losses(runs)
    largest_so_far = np.maximum.accumulate(np.abs(others - first).max(axis=0))
    return np.array(CONTROL_FACTOR * largest_so_far + LOSS_ROUNDING * np.abs(first))


def judge(measured: Measured, base: Sequence[Record], allowed: Array) -> Verdicts:
    """Judge the base and every other candidate that was measured in the same turns."""
    rates = [rate(run) for run in base]
    verdicts = {BASE: Verdict(check=BASE.name, status=OK, found=shown(rates), figures={"images_per_s": rates})}
    for candidate, runs in measured.runs.items():
        verdicts[candidate] = judge_candidate(candidate.name, runs, base, allowed)
    for candidate, reason in measured.failures.items():
        verdicts[candidate] = Verdict(check=candidate.name, status=FATAL, found=f"refused: {reason}")
    return verdicts


def judge_candidate(name: str, runs: Sequence[Record], base: Sequence[Record], allowed: Array) -> Verdict:
    """Compare a candidate's runs with the base's runs of the same turns, and return the verdict on it.

    It is ok if the candidate is surely faster and trains the same. It is a warning if it is slower, unknown if no
    difference is shown, and fatal if its losses differ too much. `allowed` has how far a loss may be from the base's,
    by window.

    The verdict's figures: `ratio`, the geometric mean over the turns of the candidate's images/s over the base's, with
    its `interval_95`; `loss_excess`, the largest difference of a loss over the allowed one, infinite for a NaN: above 1
    the candidate trains wrongly.
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

    differences = np.abs(losses(runs) - losses(base[:1])) / allowed
    excess = math.inf if np.isnan(differences).any() else float(differences.max())
    if excess > 1:
        status = FATAL
        outcome = f"refused: its losses differ by {excess:.3g} times what is allowed"
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
    """Return mean and range in words."""
    mean = statistics.fmean(images_per_s)
    return f"{mean:.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def better(verdicts: Verdicts) -> list[Candidate]:
    """Return the candidates that are faster than the base, the fastest first."""
    faster = [candidate for candidate, verdict in verdicts.items() if verdict.status == OK and candidate != BASE]
    return sorted(faster, key=lambda candidate: -verdicts[candidate].figures["ratio"])


def finalists(verdicts: Verdicts) -> list[Candidate]:
    """Return what is measured again: the fastest candidate, and all that can go together with it as one."""
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

    The rate has a 95 % interval where there were two turns or more. The memory is the most of any measured window.
    """
    rates = [rate(run) for run in runs]
    interval = spread.t_interval(rates)
    within = "no interval: one turn"
    if interval is not None:
        within = f"95 % interval over the turns {interval[0]:.2f} to {interval[1]:.2f}"

    peak_mib: float | None = None
    for run in runs:
        for window in run.windows:
            held_mib = window.gpu_memory_mib
            if window.phase == "measured" and held_mib is not None:
                peak_mib = max(held_mib, peak_mib or 0.0)
    memory = "GPU memory not measured" if peak_mib is None else f"{peak_mib:.0f} MiB of GPU memory"
    return Verdict(check=name, status=OK, found=f"{statistics.fmean(rates):.2f} images/s, {within}, {memory}")
