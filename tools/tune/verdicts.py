"""What a search for a strategy takes for better: candidates beside the base of the same turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from program import strategy
from scoring.figure import spread
from tools.tune.candidates import Candidate
from tools.tune.runs import Measured

# A loss may differ from the base's by so many times what the control's does, and by a rounding of its own.
CONTROL_FACTOR, LOSS_ROUNDING = 10.0, 1e-6


@dataclass(frozen=True, kw_only=True)
class CandidateVerdict:
    """A candidate beside the base."""

    images_per_s: tuple[float, ...]  # one a turn
    ratio: float  # geometric mean over the turns of its images/s over the base's
    interval_95: tuple[float, float]
    loss_excess: float  # largest difference of a loss over the allowed one; above 1, as inf of a nan, it trains wrongly

    @property
    def is_better(self) -> bool:
        """Whether it is faster beyond doubt and trains the same."""
        return self.interval_95[0] > 1.0 and self.loss_excess <= 1.0

    def __str__(self) -> str:
        low, high = self.interval_95
        said = "faster" if low > 1 else "slower" if high < 1 else "no difference shown"
        if self.loss_excess > 1:
            said = f"refused: its losses differ by {self.loss_excess:.3g} times what is allowed"
        return (
            f"{shown(self.images_per_s)}; "
            f"{self.ratio:.4f} ({low:.4f} to {high:.4f}) of the base; loss {self.loss_excess:.2g}: {said}"
        )


def shown(images_per_s: Sequence[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(images_per_s):9.2f} ({min(images_per_s):.2f} to {max(images_per_s):.2f})"


def allowed_loss(runs: Sequence[Measured], controls: Sequence[Measured]) -> list[float]:
    """By how much a loss may differ from that of the first of the base's `runs`, window by window."""
    first, so_far, allowed = runs[0].losses, 0.0, []
    for window, loss in enumerate(first):
        moved = [abs(run.losses[window] - loss) for run in (*runs[1:], *controls)]
        so_far = max(so_far, *moved)
        allowed.append(CONTROL_FACTOR * so_far + LOSS_ROUNDING * abs(loss))
    return allowed


def judge_candidate(runs: Sequence[Measured], base: Sequence[Measured], allowed: Sequence[float]) -> CandidateVerdict:
    """A candidate's runs beside the base's of the same turns."""
    logs = [math.log(run.images_per_s / of_base.images_per_s) for run, of_base in zip(runs, base, strict=True)]
    interval = spread.t_interval(logs)
    assert interval is not None, "two turns or more are taken"
    excesses = [
        abs(loss - expected) / limit
        for run in runs
        for loss, expected, limit in zip(run.losses, base[0].losses, allowed, strict=True)
    ]
    return CandidateVerdict(
        images_per_s=tuple(run.images_per_s for run in runs),
        ratio=math.exp(statistics.fmean(logs)),
        interval_95=(math.exp(interval[0]), math.exp(interval[1])),
        loss_excess=math.inf if any(map(math.isnan, excesses)) else max(excesses),  # max may pass over a nan
    )


def finalists(verdicts: dict[Candidate, CandidateVerdict]) -> list[Candidate]:
    """What is measured again: the best of those that are better, and all of them that go together as one."""
    better = sorted((c for c, v in verdicts.items() if v.is_better), key=lambda c: -verdicts[c].ratio)
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
