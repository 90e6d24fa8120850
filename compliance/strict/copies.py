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
_CHANCE_OF_COUNTS = 1e-3  # at most, of a submission of 5 runs
_PAIRS_OF_RUNS = 10  # in a submission of 5 runs


class Mark(NamedTuple):
    """Something of a run that no other run has: its kind, and its value."""

    what: str
    value: tuple[object, ...]


def marks(run: LoggedRun) -> list[Mark]:
    """Return what tells a run from any other, as far as its log states it.

    There are up to three marks: `run`, its start, end and accuracies; `times`, all its intervals; and `accuracies`. A
    few times or accuracies may be equal by chance, so these two need 10 and 5 different values.
    """
    accuracies = tuple(evaluation.value for evaluation in run.evaluations)
    times = tuple(run.intervals.values())
    marks_of_run = []
    if run.start_ms is not None:
        marks_of_run.append(Mark("run", (run.start_ms, run.stop_ms, *accuracies)))
    if len(set(times) - {0.0}) >= _DISTINCT_TIMES:
        marks_of_run.append(Mark("times", times))
    if len(set(accuracies)) >= _DISTINCT_ACCURACIES:
        marks_of_run.append(Mark("accuracies", accuracies))
    return marks_of_run


def shared_mark(run: LoggedRun, other: LoggedRun, *, ours: bool) -> str:
    """Say which mark shows that two runs of one submission are the same run, such as `its times are`; empty where none.

    `ours` is whether the benchmark is one of this project's, where equal times, equal accuracies or an equal start
    suffice. Elsewhere a log may hold few accuracies and coarse times, so that both must be equal.
    """
    marks_of_other = marks(other)
    equal_kinds = {mark.what for mark in marks(run) if mark in marks_of_other}
    if "run" in equal_kinds:
        return "its start, end and accuracies are"
    if equal_kinds == {"times", "accuracies"}:
        return "its times and accuracies are"
    if not ours:
        return ""
    if run.start_ms is not None and run.start_ms == other.start_ms:
        return f"run_start {run.start_ms} is"
    if equal_kinds:
        [kind] = equal_kinds
        return f"its {kind} are"
    return ""


def resemblance(run: LoggedRun, other: LoggedRun, least_power: float) -> str:
    """Say what two runs of this project's benchmarks share at more places than trainings do; empty if nothing.

    Compared are the counts of right images, the intervals and the losses. `least_power` is minus the decimal logarithm
    of the chance from which on equal intervals are no accident.
    """
    return _equal_counts(run, other) or _equal_intervals(run, other, least_power) or _equal_losses(run, other)


# --- counts of right images ---


def _equal_counts(run: LoggedRun, other: LoggedRun) -> str:
    """Say at how many evaluations two ResNet runs found equally many right images; empty where chance explains it.

    The answer reads, for instance, "5 of 9 counts of right images are". Compared are the counts at the same evaluation,
    and the rises from one evaluation to the next, which a curve that was moved as a whole keeps. Each value counts
    once, as a run that diverged finds the same images each time.
    """
    samples = run.count(schema.EVAL_SAMPLES)
    if not samples or run.text(schema.SUBMISSION_BENCHMARK) != "resnet":
        return ""
    places = min(len(run.evaluations), len(other.evaluations))
    mine = [evaluation.value for evaluation in run.evaluations[:places]]
    others = [evaluation.value for evaluation in other.evaluations[:places]]
    chance = _chance_of_equal_counts([*mine, *others], samples)
    if chance is None:
        return ""

    my_counts = [round(value * samples) for value in mine]
    other_counts = [round(value * samples) for value in others]
    for what, my_series, other_series in (
        ("counts", my_counts, other_counts),
        ("rises", _rises(my_counts), _rises(other_counts)),
    ):
        equal = len(_equal_values(my_series, other_series))
        if equal >= _least_beyond_chance(len(my_series), chance):
            return f"{equal} of {len(my_series)} {what} of right images are"
    return ""


def _chance_of_equal_counts(accuracies: Sequence[float], samples: int) -> float | None:
    """Return the chance, at most, by which two runs of such accuracies count equally many right images at one place.

    Two counts of N images at accuracy a differ with a variance of N a (1 - a) / 2 or more, a quarter of that of
    independent errors. So they are equal by a chance of 1 / sqrt(pi N a (1 - a)) at most: 0.006 of 50,000 images at
    0.76. (Of 13,332 pairs of places in 140 published submissions 16 are equal, 0.0012, and no two runs have two.)
    None where that bounds nothing, or a value is no share.
    """
    if not accuracies or min(accuracies) < 0 or max(accuracies) > 1:
        return None
    mean = sum(accuracies) / len(accuracies)
    variance = math.pi * samples * mean * (1 - mean)
    return variance**-0.5 if variance > 1 else None


def _equal_values(mine: Sequence[int], others: Sequence[int]) -> set[int]:
    """Return the distinct values that two series have at the same place."""
    return {value for value, other in zip(mine, others, strict=True) if value == other}


def _rises(counts: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(counts)]


def _least_beyond_chance(places: int, chance: float) -> int:
    """Return the least number of equal places, 3 or more, that at most one submission of 1,000 has by chance.

    `chance` is that of one place. The number is larger than `places` where even all of them may be equal by chance.
    """
    for count in range(LEAST_SERIES, places + 1):
        if _PAIRS_OF_RUNS * math.comb(places, count) * chance**count < _CHANCE_OF_COUNTS:
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
    """Say how many intervals of two runs are equal to the clock's tick; empty where chance explains it.

    The n-th epoch of one run is compared with the n-th of the other, and so are blocks, evaluations and windows. The
    power of a kind is minus the logarithm of the chance of as many equal ones; together they must have `least_power`,
    in decimal logarithms.
    """
    equal = 0
    places = 0
    power = 0.0
    for kind in sorted({name for name, _ in run.intervals}):
        of_kind = _coincidences(run.durations(kind), other.durations(kind))
        equal += of_kind.equal
        places += of_kind.places
        power += of_kind.power
    if equal >= LEAST_SERIES and power >= least_power * math.log(10):
        return f"{equal} of {places} intervals are, to the clock's tick,"
    return ""


def _coincidences(mine: Sequence[float], others: Sequence[float]) -> _Coincidences:
    """Count the places at which two runs have equal intervals, and estimate the chance of that at one place.

    Places with an interval of no time are left out. The chance is learnt from pairs of one interval of each run that
    lie one to three places apart: these are equal by accident alone, and a run that grows slower moves them little. So
    it is the share of equal ones among these pairs. One equal pair is added to what was counted (and another pair, as
    in Laplace's rule of succession), so that the chance is never 0.
    """
    count = min(len(mine), len(others))
    places = [place for place in range(count) if mine[place] > 0 and others[place] > 0]
    equal = sum(mine[place] == others[place] for place in places)
    pairs = 0
    equal_pairs = 0
    for place in places:
        for neighbour in range(max(0, place - _NEIGHBOURS), min(count, place + _NEIGHBOURS + 1)):
            if neighbour == place:
                continue
            for one, other in ((mine[place], others[neighbour]), (mine[neighbour], others[place])):
                pairs += 1
                equal_pairs += one == other
    return _Coincidences(equal=equal, places=len(places), chance=(equal_pairs + 1) / (pairs + 2))


# --- losses ---


def _equal_losses(run: LoggedRun, other: LoggedRun) -> str:
    """Say how many losses of step windows, of 24 bits each, two runs have at the same place; empty for fewer than 3."""
    pairs = list(zip(run.losses, other.losses, strict=False))
    equal_losses = {mine for mine, theirs in pairs if mine == theirs and mine is not None}
    return (
        f"{len(equal_losses)} of {len(pairs)} losses of step_windows are" if len(equal_losses) >= LEAST_SERIES else ""
    )


# --- seeds, and the ends of all runs ---


def seed_key(seed: Event, ruleset: Ruleset, benchmark: str) -> tuple[str, ...] | None:
    """Return what no two runs of a submission may share of a logged seed; None where no text of the round asks for it.

    For this project's benchmarks it is the number alone, so that `7`, `"+7"` and `7.0` are one seed. For others it is
    the number with the file and the line that logged it, from the round on whose text says so.
    """
    value = seed.value
    if value is None:
        return None
    is_fraction = isinstance(value, float) and not value.is_integer()
    number = None if is_fraction else whole_seed(value)
    text = str(value if number is None else number)
    if benchmark in ruleset.benchmarks:
        return (text,)
    if ruleset.version >= ruleset.strict["seed-present"].since:
        return (text, str(seed.metadata.get("file")), str(seed.metadata.get("lineno")))
    return None


def whole_seed(value: object) -> int | None:
    """Return a seed as seed_checker takes it, by int(); None where that fails."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


def accuracy_of_many(runs: Sequence[LoggedRun], least: int) -> float | None:
    """Return the accuracy at which `least` runs of a submission end; None where they end apart.

    None, too, where no accuracy has more than four digits: those are equal by chance.
    """
    last_accuracies = []
    is_finer = False
    for run in runs:
        for evaluation in run.evaluations:
            is_finer = is_finer or abs(round(evaluation.value, 4) - evaluation.value) > 1e-7
        last_accuracies += [evaluation.value for evaluation in run.evaluations[-1:]]
    if not last_accuracies or not is_finer:
        return None
    value, count = Counter(last_accuracies).most_common(1)[0]
    return value if count >= least else None
