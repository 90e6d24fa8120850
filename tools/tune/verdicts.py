"""What a search for a strategy takes for better: candidates beside the base of the same turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from program import strategy
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure import spread
from tools.tune.candidates import Candidate
from tools.tune.runs import Measured

# A loss may differ from the base's by so many times what the control's does, and by a rounding of its own.
CONTROL_FACTOR, LOSS_ROUNDING = 10.0, 1e-6


def shown(images_per_s: Sequence[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(images_per_s):.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def allowed_loss(runs: Sequence[Measured], controls: Sequence[Measured]) -> list[float]:
    """By how much a loss may differ from that of the first of the base's `runs`, window by window."""
    first, so_far, allowed = runs[0].losses, 0.0, []
    for window, loss in enumerate(first):
        moved = [abs(run.losses[window] - loss) for run in (*runs[1:], *controls)]
        so_far = max(so_far, *moved)
        allowed.append(CONTROL_FACTOR * so_far + LOSS_ROUNDING * abs(loss))
    return allowed


def judge_candidate(name: str, runs: Sequence[Measured], base: Sequence[Measured], allowed: Sequence[float]) -> Verdict:
    """A candidate's runs beside the base's of the same turns: ok if it is faster beyond doubt and trains the same.

    Its figures: `ratio`, the geometric mean over the turns of its images/s over the base's, with its `interval_95`;
    `loss_excess`, the largest difference of a loss over the allowed one: above 1, inf of a NaN, it trains wrongly.
    """
    rates = [run.images_per_s for run in runs]
    logs = [math.log(rate / of_base.images_per_s) for rate, of_base in zip(rates, base, strict=True)]
    interval = spread.t_interval(logs)
    assert interval is not None, "two turns or more are taken"
    ratio, low, high = (math.exp(log) for log in (statistics.fmean(logs), *interval))
    excesses = [
        abs(loss - expected) / limit
        for run in runs
        for loss, expected, limit in zip(run.losses, base[0].losses, allowed, strict=True)
    ]
    excess = math.inf if any(map(math.isnan, excesses)) else max(excesses)  # max may pass over a NaN
    if excess > 1:
        status, verdict = FATAL, f"refused: its losses differ by {excess:.3g} times what is allowed"
    elif low > 1:
        status, verdict = OK, "faster"
    else:
        status, verdict = (WARNING, "slower") if high < 1 else (UNKNOWN, "no difference shown")
    found = f"{shown(rates)}; {ratio:.4f} ({low:.4f} to {high:.4f}) of the base; loss {excess:.2g}: {verdict}"
    figures = {"images_per_s": rates, "ratio": ratio, "interval_95": (low, high), "loss_excess": excess}
    return Verdict(check=name, status=status, found=found, figures=figures)


def finalists(verdicts: dict[Candidate, Verdict]) -> list[Candidate]:
    """What is measured again: the best of those that are better, and all of them that go together as one."""
    better = sorted((c for c, v in verdicts.items() if v.status == OK), key=lambda c: -verdicts[c].figures["ratio"])
    taken: list[Candidate] = []
    for candidate in better:
        if not any(candidate.touches & other.touches or strategy.AUTO in candidate.knobs for other in taken):
            taken.append(candidate)
    if len(taken) < 2 or strategy.AUTO in taken[0].knobs:
        return taken[:1]
    together = Candidate(
        name=" + ".join(c.name for c in taken),
        knobs=tuple(knob for c in taken for knob in c.knobs),
        variables=tuple(pair for c in taken for pair in c.variables),
    )
    return [taken[0], together]
