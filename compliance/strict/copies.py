"""Whether two runs are one: what they share beyond what two trainings can.

Probabilities are compared with what was measured on published ResNet runs, and asked of no other benchmark: there, runs
are one only where all that they state is equal.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.rules import Ruleset
from runlog import schema
from runlog.reader import Event

LEAST_SERIES = 3  # equal values, at least, that make a series
_DISTINCT_TIMES = 10  # of the intervals of a run, at least, that tell it from others
_DISTINCT_ACCURACIES = 5
_NEIGHBOURS = 3  # places before and after, whose times show by which chance two are equal
_CHANCE_OF_COUNTS = 1e-3  # at most, of a submission of 5 runs, which are 10 pairs


class Mark(NamedTuple):
    """Something of a run that no other run has: its kind, and its value."""

    what: str
    value: tuple[object, ...]


def marks(run: LoggedRun) -> list[Mark]:
    """Marks that tell a run from any other: its start, end and accuracies; its times, or accuracies, if many."""
    accuracies = tuple(one.value for one in run.evaluations)
    times = tuple(run.intervals.values())
    found = []
    if run.start_ms is not None:
        found.append(Mark("run", (run.start_ms, run.stop_ms, *accuracies)))
    if len(set(times) - {0.0}) >= _DISTINCT_TIMES:
        found.append(Mark("times", times))
    if len(set(accuracies)) >= _DISTINCT_ACCURACIES:
        found.append(Mark("accuracies", accuracies))
    return found


def shared_mark(run: LoggedRun, other: LoggedRun, *, ours: bool) -> str:
    """Name what makes two runs of one submission one by itself; empty where nothing does.

    Outside this project's benchmarks accuracies may be few and times coarse, so both must be equal.
    """
    equal = {mark.what for mark in marks(run)} & {mark.what for mark in marks(other)}
    others = dict(marks(other))
    same = [what for what, value in marks(run) if what in equal and others[what] == value]
    if "run" in same:
        return "its start, end and accuracies are"
    if "times" in same and "accuracies" in same:
        return "its times and accuracies are"
    if ours and run.start_ms is not None and run.start_ms == other.start_ms:
        return f"run_start {run.start_ms} is"
    if ours and same:
        return f"its {same[0]} are"
    return ""


def resemblance(run: LoggedRun, other: LoggedRun, least_power: float) -> str:
    """Say what two runs of this project's benchmarks share at more places than trainings do; empty if nothing.

    `least_power`: minus the decimal logarithm of the chance of equal intervals from which on they are no accident.
    """
    return _equal_counts(run, other) or _equal_intervals(run, other, least_power) or _equal_losses(run, other)


# --- counts of right images ---


def _equal_counts(run: LoggedRun, other: LoggedRun) -> str:
    """Counts of right images, or their rises, that are equal at more evaluations than chance explains.

    Two counts of N images at accuracy a differ with a variance of N a (1 - a) / 2 or more, a quarter of that of
    independent errors. So one place is equal by a chance of 1 / sqrt(pi N a (1 - a)) at most: 0.006 of 50,000 images
    at 0.76. (Of 13,332 pairs of places in 140 published submissions 16 are equal, 0.0012, and no two runs have two.)
    A value counts once: a run that diverged always finds the same images. A curve that was moved has the same rises.
    """
    samples = run.count(schema.EVAL_SAMPLES)
    places = min(len(run.evaluations), len(other.evaluations))
    mine = [one.value for one in run.evaluations[:places]]
    others = [one.value for one in other.evaluations[:places]]
    shares = all(0 <= value <= 1 for value in mine + others)
    if not places or not shares or not samples or run.text(schema.SUBMISSION_BENCHMARK) != "resnet":
        return ""
    mean = (sum(mine) + sum(others)) / places / 2
    variance = math.pi * samples * mean * (1 - mean)
    if variance <= 1:
        return ""
    chance = variance**-0.5
    my_counts = [round(value * samples) for value in mine]
    other_counts = [round(value * samples) for value in others]
    for what, one, two in (
        ("counts", my_counts, other_counts),
        ("rises", _rises(my_counts), _rises(other_counts)),
    ):
        same = {mine for mine, theirs in zip(one, two, strict=True) if mine == theirs}
        if len(same) >= _most_by_chance(len(one), chance):
            return f"{len(same)} of {len(one)} {what} of right images are"
    return ""


def _rises(counts: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(counts)]


def _most_by_chance(places: int, chance: float) -> int:
    """The least number of equal places, 3 or more, that no more than one submission of 1,000 has by chance."""
    for count in range(LEAST_SERIES, places + 1):
        if 10 * math.comb(places, count) * chance**count < _CHANCE_OF_COUNTS:
            return count
    return places + 1


# --- intervals ---


class _Coincidences(NamedTuple):
    """Equal ones among the intervals of one kind, and the chance of one such."""

    equal: int
    places: int
    chance: float

    @property
    def power(self) -> float:
        """Minus the natural logarithm of the chance of so many or more, by Chernoff's bound of the binomial tail."""
        if not self.places or self.equal <= self.places * self.chance:
            return 0.0
        share = self.equal / self.places
        power = self.equal * math.log(share / self.chance)
        if self.equal < self.places:
            power += (self.places - self.equal) * math.log((1 - share) / (1 - self.chance))
        return power


def _equal_intervals(run: LoggedRun, other: LoggedRun, least_power: float) -> str:
    """Intervals of two runs at one place, equal to the clock's tick, that chance does not explain."""
    equal = places = 0
    power = 0.0
    for kind in sorted({name for name, _ in run.intervals}):
        found = _coincidences(run.durations(kind), other.durations(kind))
        power += found.power
        equal += found.equal
        places += found.places
    if equal >= LEAST_SERIES and power >= least_power * math.log(10):
        return f"{equal} of {places} intervals are, to the clock's tick,"
    return ""


def _coincidences(mine: Sequence[float], others: Sequence[float]) -> _Coincidences:
    """Count equal intervals. Intervals of no time do not count.

    The chance that two are equal is counted among intervals some places apart: a trend of the run hardly changes it.
    """
    count = min(len(mine), len(others))
    equal = places = near = tries = 0
    for place in range(count):
        if mine[place] <= 0 or others[place] <= 0:
            continue
        places += 1
        equal += mine[place] == others[place]
        for neighbour in range(max(0, place - _NEIGHBOURS), min(count, place + _NEIGHBOURS + 1)):
            if neighbour != place:
                tries += 2
                near += (mine[place] == others[neighbour]) + (mine[neighbour] == others[place])
    return _Coincidences(equal=equal, places=places, chance=(near + 1) / (tries + 2))


# --- losses ---


def _equal_losses(run: LoggedRun, other: LoggedRun) -> str:
    """Losses of step windows, of 24 bits each, that are equal at one place."""
    pairs = list(zip(run.losses, other.losses, strict=False))
    same = {one for one, two in pairs if one == two and one is not None}
    return f"{len(same)} of {len(pairs)} losses of step_windows are" if len(same) >= LEAST_SERIES else ""


# --- seeds, hosts, and the ends of all runs ---


def seed_key(seed: Event, ruleset: Ruleset, benchmark: str) -> tuple[str, ...] | None:
    """Make what no two runs may share of a logged seed; None where no text of the round asks for it.

    For this project's benchmarks it is the number, for others the number and the line that logged it.
    """
    value = seed.value
    if value is None:
        return None
    if not isinstance(value, float) or value.is_integer():
        number = whole_seed(value)
        value = value if number is None else number
    if benchmark in ruleset.benchmarks:
        return (str(value),)
    if ruleset.version >= ruleset.strict["seed-present"].since:
        return (str(value), str(seed.metadata.get("file")), str(seed.metadata.get("lineno")))
    return None


def whole_seed(value: object) -> int | None:
    """A seed as seed_checker takes it, by int(); None where that fails."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


def accuracy_of_many(runs: Sequence[LoggedRun], least: int) -> float | None:
    """The accuracy at which `least` runs of a submission end; None if none is, or accuracies have four digits."""
    last: list[float] = []
    finer = False
    for run in runs:
        finer = finer or any(abs(round(one.value, 4) - one.value) > 1e-7 for one in run.evaluations)
        last += [one.value for one in run.evaluations[-1:]]
    if not last or not finer:
        return None
    value, count = Counter(last).most_common(1)[0]
    return value if count >= least else None
