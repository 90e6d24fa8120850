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
    """Something in a log that tells its run from any other: what it is, and its value."""

    what: str
    value: tuple[object, ...]


def marks(run: LoggedRun) -> list[Mark]:
    """Return up to three marks that tell a run from any other: a second run with one of them is a copy.

    - `run` has its start, its end and its accuracies; a log without a start has no such mark.
    - `times` has the durations of its epochs, evaluations and other parts, if 10 of them at least are different; those
      of 0, which a coarse clock gives, count for none.
    - `accuracies` has these alone, if 5 of them at least are different. Fewer may be equal by chance.
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
    """Return the words for what shows that two runs of one submission are the same, such as `its times are`.

    Empty where nothing does. `ours` says whether the benchmark is one of this project's: there equal times, equal
    accuracies or an equal start suffice. Logs of other benchmarks may hold few accuracies and coarse times, so both
    must be equal.
    """
    marks_of_other = marks(other)
    equal_marks = {mark.what for mark in marks(run) if mark in marks_of_other}
    if "run" in equal_marks:
        return "its start, end and accuracies are"
    if equal_marks == {"times", "accuracies"}:
        return "its times and accuracies are"
    if not ours:
        return ""
    if run.start_ms is not None and run.start_ms == other.start_ms:
        return f"run_start {run.start_ms} is"
    if equal_marks:
        [what] = equal_marks  # `times` or `accuracies`, as both together are handled above
        return f"its {what} are"
    return ""


def resemblance(run: LoggedRun, other: LoggedRun, least_power: float) -> str:
    """Return the words for what two runs of this project's benchmarks share more often than trainings do, else empty.

    Compared are the counts of right images, the intervals and the losses, and the first of them that is shared is
    returned. Equal intervals are no accident where their chance is less than 10 to the power of -`least_power`.
    """
    return _equal_counts(run, other) or _equal_intervals(run, other, least_power) or _equal_losses(run, other)


# --- counts of right images ---


def _equal_counts(run: LoggedRun, other: LoggedRun) -> str:
    """Return the words for how often two ResNet runs count equally many right images; empty if chance explains it.

    The words are, for instance, "5 of 9 counts of right images are". Compared are the counts of the n-th evaluations,
    and then the rises of the counts from one evaluation to the next: these stay equal where a copied curve was moved up
    or down as a whole. A value that the runs share at several places counts once, as a run that diverged finds the same
    images each time.
    """
    samples = run.stated_count(schema.EVAL_SAMPLES)
    if not samples or run.stated_text(schema.SUBMISSION_BENCHMARK) != "resnet":
        return ""
    evaluations = min(len(run.evaluations), len(other.evaluations))
    accuracies = [evaluation.value for evaluation in run.evaluations[:evaluations]]
    other_accuracies = [evaluation.value for evaluation in other.evaluations[:evaluations]]
    chance = _chance_of_equal_counts([*accuracies, *other_accuracies], samples)
    if chance is None:
        return ""

    counts = [round(accuracy * samples) for accuracy in accuracies]
    other_counts = [round(accuracy * samples) for accuracy in other_accuracies]
    for what, series, other_series in (
        ("counts", counts, other_counts),
        ("rises", _rises(counts), _rises(other_counts)),
    ):
        equal = len(_values_at_same_place(series, other_series))
        if equal >= _least_beyond_chance(len(series), chance):
            return f"{equal} of {len(series)} {what} of right images are"
    return ""


def _chance_of_equal_counts(accuracies: Sequence[float], samples: int) -> float | None:
    """Return the chance, at most, by which two runs of such accuracies count equally many right images at one place.

    Two counts of N images at accuracy a differ with a variance of N a (1 - a) / 2 or more, a quarter of that of
    independent errors. So they are equal by a chance of 1 / sqrt(pi N a (1 - a)) at most, which is 0.006 for 50,000
    images at an accuracy of 0.76. (Of 13,332 pairs of counts in 140 published submissions 16 are equal, 0.0012, and no
    two runs have two.)

    None where the bound is 1 or more, where there are no accuracies, and where one is not between 0 and 1.
    """
    if not accuracies or min(accuracies) < 0 or max(accuracies) > 1:
        return None
    mean = sum(accuracies) / len(accuracies)
    square_of_inverse_chance = math.pi * samples * mean * (1 - mean)
    if square_of_inverse_chance <= 1:
        return None
    return square_of_inverse_chance**-0.5


def _values_at_same_place(series: Sequence[int], other_series: Sequence[int]) -> set[int]:
    """Return the distinct values that two series have at the same place: {2} for [1, 2, 2] and [0, 2, 2]."""
    return {value for value, other in zip(series, other_series, strict=True) if value == other}


def _rises(counts: Sequence[int]) -> list[int]:
    """Return the difference of each count and the one before it."""
    return [after - before for before, after in itertools.pairwise(counts)]


def _least_beyond_chance(places: int, chance: float) -> int:
    """Return the least number of equal places, 3 or more, that fewer than one submission of 1,000 has by chance.

    `chance` is that of one place of `places`, in two runs; a submission has ten pairs of runs. The number is
    `places + 1`, which is never reached, where even all places may be equal by chance.
    """
    for count in range(LEAST_SERIES, places + 1):
        chance_of_two_runs = math.comb(places, count) * chance**count  # at most
        if _PAIRS_OF_RUNS * chance_of_two_runs < _CHANCE_OF_COUNTS:
            return count
    return places + 1


# --- intervals ---


class _Coincidences(NamedTuple):
    """How many intervals of one kind two runs have equal, of how many, and the chance of one by accident."""

    equal: int
    places: int
    chance: float

    @property
    def power(self) -> float:
        """Return minus the natural logarithm of the chance of so many or more, by Chernoff's bound."""
        if not self.places or self.equal <= self.places * self.chance:
            return 0.0
        share = self.equal / self.places
        power = self.equal * math.log(share / self.chance)
        if self.equal < self.places:
            power += (self.places - self.equal) * math.log((1 - share) / (1 - self.chance))
        return power


def _equal_intervals(run: LoggedRun, other: LoggedRun, least_power: float) -> str:
    """Return the words for how many intervals of two runs are equal to the clock's tick; empty if chance explains it.

    The n-th epoch of one run is compared with the n-th of the other, and so are blocks, evaluations and windows. The
    chance of so many equal ones is computed for each of these kinds; the product of the chances must be no more than 10
    to the power of -`least_power`. The power of a kind is minus the logarithm of its chance, so the powers are added.
    """
    equal = 0
    places = 0
    power = 0.0
    for kind in sorted({name for name, _ in run.intervals}):
        coincidences = _coincidences(run.durations(kind), other.durations(kind))
        equal += coincidences.equal
        places += coincidences.places
        power += coincidences.power
    if equal >= LEAST_SERIES and power >= least_power * math.log(10):
        return f"{equal} of {places} intervals are, to the clock's tick,"
    return ""


def _coincidences(intervals: Sequence[float], others: Sequence[float]) -> _Coincidences:
    """Count the places at which two runs have equal intervals, and estimate the chance of that at one place.

    Places with an interval of no time in either run are left out. The chance is the share of equal ones among pairs of
    intervals, one of each run, that lie one to three places apart: these are equal by accident alone, and are about as
    long even in a run that becomes slower. One equal pair and one unequal pair are added to those that were counted
    (Laplace's rule of succession), so that the chance is never 0.
    """
    count = min(len(intervals), len(others))
    places = [place for place in range(count) if intervals[place] > 0 and others[place] > 0]
    equal = sum(intervals[place] == others[place] for place in places)
    pairs = 0
    equal_pairs = 0
    for place in places:
        first_neighbour = max(0, place - _NEIGHBOURS)
        last_neighbour = min(count - 1, place + _NEIGHBOURS)
        for neighbour in range(first_neighbour, last_neighbour + 1):
            if neighbour != place:
                pairs += 2
                equal_pairs += intervals[place] == others[neighbour]
                equal_pairs += intervals[neighbour] == others[place]
    return _Coincidences(equal=equal, places=len(places), chance=(equal_pairs + 1) / (pairs + 2))


# --- losses ---


def _equal_losses(run: LoggedRun, other: LoggedRun) -> str:
    """Return the words for how many losses of step windows two runs have at the same place; empty for fewer than 3.

    A loss has 24 bits, so that even three equal ones are no accident.
    """
    pairs = list(zip(run.losses, other.losses, strict=False))
    equal_losses = {loss for loss, other_loss in pairs if loss == other_loss and loss is not None}
    if len(equal_losses) < LEAST_SERIES:
        return ""
    return f"{len(equal_losses)} of {len(pairs)} losses of step_windows are"


# --- seeds, and the ends of all runs ---


def seed_key(seed: Event, ruleset: Ruleset, benchmark: str) -> tuple[str, ...] | None:
    """Return the key under which a seed is compared with those of other runs: no two runs may have the same key.

    For this project's benchmarks it is the number alone, so that `7`, `"+7"` and `7.0` are one seed. For others it is
    the number with the file and the line that logged it. None for an event without a value, and for benchmarks that are
    not this project's in rounds whose rules do not ask for different seeds yet.
    """
    value = seed.value
    if value is None:
        return None
    is_fraction = isinstance(value, float) and not value.is_integer()
    number = None if is_fraction else whole_seed(value)  # int() would make 7 of 7.5
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
    """Return the accuracy at which `least` runs of a submission end, or more; None where there is none.

    None, too, where all accuracies of all runs are rounded to four digits: such ones may well be equal by chance.
    """
    last_accuracies = [run.evaluations[-1].value for run in runs if run.evaluations]
    all_evaluations = itertools.chain.from_iterable(run.evaluations for run in runs)
    are_all_rounded = all(_has_four_digits(evaluation.value) for evaluation in all_evaluations)
    if not last_accuracies or are_all_rounded:
        return None
    accuracy, count = Counter(last_accuracies).most_common(1)[0]
    return accuracy if count >= least else None


def _has_four_digits(accuracy: float) -> bool:
    """Return whether an accuracy has no more than four digits behind its point."""
    return abs(round(accuracy, 4) - accuracy) <= 1e-7
