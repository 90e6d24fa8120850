"""Whether two runs are one: what is equal in both, and how likely chance gives so much."""

import itertools
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compliance.check import LoggedRun
from compliance.logged_run import COUNT, has_type
from runlog import schema

LEAST_POWER = 9  # of ten: equal intervals of a lower chance are no accident
LEAST_POWER_SCALED = 12  # the same of scaled ones; of 2,050 pairs of published runs the least likely has 1 in 10^8.7
MOST_OFF = 4  # images, of a count that was altered a little
LEAST_DISTINCT = 10  # values of the same intervals in another order; of those pairs, 3 but in the one copy
_TICKS = {"step_window": 1e-6}  # of the clock: seconds; other kinds are in milliseconds
LEAST_SERIES = 3  # shorter series of accuracies may be equal by chance


def alike(run: LoggedRun, other: LoggedRun) -> str:
    """What is equal at more places of two runs than chance explains; empty if nothing is.

    Two counts of right images, of N at accuracy a, differ with a variance of N a (1 - a) / 2 or more, a quarter of that
    of independent errors. So one place is equal by a chance of 1 / sqrt(pi N a (1 - a)) at most: 0.006 of 50,000 images
    at 0.76. (Of 13,332 pairs of places in 140 published submissions 16 are equal, 0.0012, and no two runs have two.)
    A value counts once: a run that diverged always finds the same images. A curve that was moved has the same rises;
    where some images are added or taken away, so many more counts are equal by chance.
    """
    samples = run.first_value(schema.EVAL_SAMPLES)
    pairs = [(one.value, two.value) for one, two in zip(run.evaluations, other.evaluations, strict=False)]
    shares = bool(pairs) and all(0 <= value <= 1 for pair in pairs for value in pair)
    if shares and run.first_value(schema.SUBMISSION_BENCHMARK) == "resnet" and has_type(samples, COUNT):
        mean = sum(map(sum, pairs)) / len(pairs) / 2
        variance = math.pi * samples * mean * (1 - mean)
        counts = [[round(value * samples) for value in values] for values in zip(*pairs, strict=True)]
        rises = [[after - before for before, after in itertools.pairwise(series)] for series in counts]
        for off, how in ((0, ""), (MOST_OFF, f", to {MOST_OFF} images,")):
            for (mine, others), what in ((counts, "counts of right images"), (rises, "rises of right images")):
                same = {one for one, two in zip(mine, others, strict=True) if abs(one - two) <= off}
                if variance > 1 and len(same) >= _most_by_chance(len(mine), (2 * off + 1) * variance**-0.5):
                    return f"{len(same)} of {len(mine)} {what}{how} are those of"
    if times := _same_intervals(run.intervals, other.intervals):
        return times
    losses = list(zip(run.losses, other.losses, strict=False))
    same = {one for one, two in losses if one == two and one is not None}
    if len(same) >= LEAST_SERIES:  # of 24 bits each
        return f"{len(same)} of {len(losses)} losses of step_windows are those of"
    return ""


def _same_intervals(one: Mapping[tuple[str, int], float], two: Mapping[tuple[str, int], float]) -> str:
    """Intervals of two runs, of one place and kind, that are equal to the clock's tick, where chance explains no such.

    The chance that two are equal is counted: the share of equal ones among intervals of a kind at different places.
    How many equal ones it gives is bounded by Chernoff's bound of the binomial tail. (Of 2,050 pairs of published runs
    the least likely has 1 in 10^6; the one copy has 1 in 10^78.) The same is asked of intervals times a factor.
    """
    kinds = sorted({name for name, _ in one})
    series = {kind: [[ms for (name, _), ms in run.items() if name == kind] for run in (one, two)] for kind in kinds}
    for mine, others in series.values():
        if mine != others and sorted(mine) == sorted(others) and len(set(mine)) >= LEAST_DISTINCT:
            return f"{len(mine)} intervals, in another order, are those of"
    for least, how in ((LEAST_POWER, ""), (LEAST_POWER_SCALED, ", times a factor")):
        places = equal = 0
        log_chance = 0.0
        for kind, (mine, others) in series.items():
            same, count, chance = _equal(mine, others, tick=_TICKS.get(kind, 1.0) if how else 0.0)
            if same > count * chance:
                log_chance += _log_tail(same, count, chance)
                places, equal = places + count, equal + same
        if equal >= LEAST_SERIES and log_chance >= least * math.log(10):
            by_chance = f"by chance in 1 of 10^{math.floor(log_chance / math.log(10))} pairs of runs"
            return f"{equal} of {places} intervals{how}, to the clock's tick ({by_chance}), are those of"
    return ""


def _equal(mine: Sequence[float], others: Sequence[float], *, tick: float) -> tuple[int, int, float]:
    """How many are equal, of how many, and by which chance one is; with a `tick` to it, by the factor of the sums."""
    count = min(len(mine), len(others))
    if tick and (total := sum(others[:count])) > 0:
        others = [sum(mine[:count]) / total * value for value in others]
    same = sum(abs(one - two) <= tick for one, two in zip(mine, others, strict=False))
    ordered = sorted(others)
    near = sum(bisect_right(ordered, one + tick) - bisect_left(ordered, one - tick) for one in mine)
    return same, count, (max(near - same, 0) + 1) / (len(mine) * len(others) - count + 1) if count else 1.0


def _log_tail(same: int, count: int, chance: float) -> float:
    """Minus the logarithm of the chance of `same` equal ones of `count` or more, by Chernoff's bound."""
    share = same / count
    log = same * math.log(share / chance)
    return log + (count - same) * math.log((1 - share) / (1 - chance)) if same < count else log


def _most_by_chance(places: int, chance: float) -> int:
    """So many equal places, 3 at least, one submission of a thousand has by chance: of 5 runs, which are 10 pairs."""
    counts = range(LEAST_SERIES, places + 1)
    return next((n for n in counts if 10 * math.comb(places, n) * chance**n < 1e-3), places + 1)


def of_its_own(run: LoggedRun) -> Iterator[tuple[str, str, Any, int | None]]:
    """Rule, name, value and line of what is a run's own."""
    for value, line in run.seeds:
        whole = value.is_integer() if isinstance(value, float) else re.fullmatch(r"\s*\d{1,19}\s*", str(value))
        yield "seeds-differ", "seed", int(value) if whole else value, line
    if run.start_ms is not None:
        yield "runs-differ", "run_start", run.start_ms, run.lines.get(schema.RUN_START.key)
    if len(run.evaluations) >= LEAST_SERIES:
        accuracies = [evaluation.value for evaluation in run.evaluations]
        yield "runs-differ", "the series of accuracies", accuracies, run.evaluations[0].line
