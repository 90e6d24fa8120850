"""Whether one run is a copy of another: what they share beyond what two trainings can.

The chances were measured on published ResNet runs, so resemblance is asked of this project's benchmarks alone. Runs of
other benchmarks are copies only if all that they state is equal.
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

LEAST_EQUAL_VALUES = 3  # of two runs, to be no accident
_LEAST_DISTINCT_TIMES = 10  # by which a run is recognised
_LEAST_DISTINCT_ACCURACIES = 5  # by which a run is recognised
_NEIGHBOURS = 3  # places on each side of a place, to estimate the chance that two intervals are equal
_MOST_CHANCE_OF_COUNTS = 1e-3  # that a submission of 5 runs has so many equal counts
_PAIRS_OF_RUNS = 10  # in a submission of 5 runs


class Mark(NamedTuple):
    """Values by which a run is recognised: what they are, and the values themselves."""

    what: str
    value: tuple[object, ...]


def marks(run: LoggedRun) -> list[Mark]:
    """Return the marks by which a run is recognised: another run with an equal mark is a copy.

    - `run`: the start, the end and the accuracies together. Left out if the log states no start.
    - `times`: the durations of the epochs, evaluations and other parts. Left out if there are fewer than 10 different
      durations above 0, because a coarse clock makes equal ones.
    - `accuracies`: left out if there are fewer than 5 different ones, because these may be equal by chance.
    """
    accuracies = tuple(evaluation.value for evaluation in run.evaluations)
    times = tuple(run.intervals.values())
    marks_of_run = []
    if run.start_ms is not None:
        marks_of_run.append(Mark("run", (run.start_ms, run.stop_ms, *accuracies)))
    if len(set(times) - {0.0}) >= _LEAST_DISTINCT_TIMES:
        marks_of_run.append(Mark("times", times))
    if len(set(accuracies)) >= _LEAST_DISTINCT_ACCURACIES:
        marks_of_run.append(Mark("accuracies", accuracies))
    return marks_of_run


def describe_equal_marks(run: LoggedRun, other: LoggedRun, *, ours: bool) -> str:
    """Return words for what shows that one run of a submission is a copy of another; "" if nothing does.

    The text begins a sentence that the caller ends: "its times are" + "those of result_1.txt". It names the first of
    these that is equal in both runs:

    - start, end and accuracies together
    - times and accuracies together
    - the start alone
    - the times alone
    - the accuracies alone

    The last three count only if the benchmark is one of this project's (`ours`). Logs of other benchmarks may hold few
    accuracies and coarse times, which are equal more easily.
    """
    marks_of_other = marks(other)
    equal_marks = {mark.what for mark in marks(run) if mark in marks_of_other}
    are_times_equal = "times" in equal_marks
    are_accuracies_equal = "accuracies" in equal_marks
    if "run" in equal_marks:
        return "its start, end and accuracies are"
    if are_times_equal and are_accuracies_equal:
        return "its times and accuracies are"
    if not ours:
        return ""
    if run.start_ms is not None and run.start_ms == other.start_ms:
        return f"run_start {run.start_ms} is"
    if are_times_equal:
        return "its times are"
    if are_accuracies_equal:
        return "its accuracies are"
    return ""


def describe_resemblance(run: LoggedRun, other: LoggedRun, least_digits: float) -> str:
    """Return in words the first suspicious likeness of two runs; "" if there is none. Compared are, in this order:

    - the counts of right (correctly classified) images in the evaluations
    - the intervals: the durations of epochs and other parts. Equal ones are reported only if the chance of so many
      equal intervals is at most 10 ** -`least_digits`.
    - the losses of the step_windows

    The text begins a sentence that the caller ends: "3 of 9 losses of step_windows are" + "those of result_1.txt".
    Call it only for this project's benchmarks, because the chances were measured there.
    """
    return (
        _describe_equal_counts(run, other)
        or _describe_equal_intervals(run, other, least_digits)
        or _describe_equal_losses(run, other)
    )


# --- counts of right images ---


def _describe_equal_counts(run: LoggedRun, other: LoggedRun) -> str:
    """Describe suspiciously equal evaluations of two ResNet runs, by their counts of correctly classified images.

    The counts are compared first, then their rises from one evaluation to the next: equal rises show a copied curve
    that was moved up or down. The text begins a sentence that the caller ends: "5 of 9 counts of right images are" +
    "those of result_1.txt". It is "" if

    - the benchmark is another one, or the log does not state eval_samples,
    - there is no estimate of how easily counts are equal by chance, or
    - chance explains the equal counts, and the equal rises, too.
    """
    samples = run.stated_count(schema.EVAL_SAMPLES)
    if not samples or run.stated_text(schema.SUBMISSION_BENCHMARK) != "resnet":
        return ""
    evaluations = min(len(run.evaluations), len(other.evaluations))
    accuracies = [evaluation.value for evaluation in run.evaluations[:evaluations]]
    other_accuracies = [evaluation.value for evaluation in other.evaluations[:evaluations]]
    chance_of_one = _chance_of_equal_counts([*accuracies, *other_accuracies], samples)
    if chance_of_one is None:
        return ""

    counts = [round(accuracy * samples) for accuracy in accuracies]
    other_counts = [round(accuracy * samples) for accuracy in other_accuracies]
    equal_counts = _number_of_equal_values(counts, other_counts)
    if _is_beyond_chance(equal_counts, len(counts), chance_of_one):
        return f"{equal_counts} of {len(counts)} counts of right images are"
    rises = _rises(counts)
    equal_rises = _number_of_equal_values(rises, _rises(other_counts))
    # Rises vary more than counts, so they are equal by chance more rarely than `chance_of_one`.
    if _is_beyond_chance(equal_rises, len(rises), chance_of_one):
        return f"{equal_rises} of {len(rises)} rises of right images are"
    return ""


def _chance_of_equal_counts(accuracies: Sequence[float], samples: int) -> float | None:
    """Estimate, rather too high, the chance that two runs count equally many right images in one evaluation.

        chance = 1 / sqrt(2 pi v), where v = N a (1 - a) / 2

    N is `samples`, and a is the mean of `accuracies`. The difference of the two counts is taken as normal, with mean 0
    and variance v; the formula is its density at 0. If the errors of the runs were independent, the variance would be
    2 N a (1 - a). Two runs err on many of the same images, so it is smaller: v is a quarter of that. For N = 50,000 and
    a = 0.76 the chance is 0.006. In published submissions, 16 of 13,332 counts are equal: 0.0012.

    None if the formula gives no chance below 1, if there are no accuracies, or if one is not between 0 and 1.
    """
    if not accuracies or min(accuracies) < 0 or max(accuracies) > 1:
        return None
    mean = sum(accuracies) / len(accuracies)
    variance = samples * mean * (1 - mean) / 2
    square_of_inverse_chance = 2 * math.pi * variance
    if square_of_inverse_chance <= 1:
        return None
    chance: float = square_of_inverse_chance**-0.5
    return chance


def _number_of_equal_values(series: Sequence[int], other_series: Sequence[int]) -> int:
    """Return how many distinct values two series have at the same place: 1 for [1, 2, 2] and [0, 2, 2].

    A value counts once, because a run that diverged finds the same images each time.
    """
    return len({value for value, other in zip(series, other_series, strict=True) if value == other})


def _rises(counts: Sequence[int]) -> list[int]:
    """Return the difference of each count and the one before it."""
    return [after - before for before, after in itertools.pairwise(counts)]


def _is_beyond_chance(equal: int, places: int, chance_of_one: float) -> bool:
    """Return whether two runs have more equal values than chance explains: `equal` ones at `places` places.

    `chance_of_one` is the chance that they are equal at one place. There must be LEAST_EQUAL_VALUES equal ones or more,
    and the chance that any two runs of a submission have so many must be below _MOST_CHANCE_OF_COUNTS.
    """
    if equal < LEAST_EQUAL_VALUES:
        return False
    log_of_chance = math.log(_PAIRS_OF_RUNS) + _log_of_chance_of_equal_values(equal, places, chance_of_one)
    return log_of_chance < math.log(_MOST_CHANCE_OF_COUNTS)


def _log_of_chance_of_equal_values(equal: int, places: int, chance_of_one: float) -> float:
    """Return the natural logarithm of a bound on the chance that two runs are equal at `equal` of `places` places.

        chance <= C(places, equal) * chance_of_one ** equal

    This is the union bound over all choices of `equal` places. The logarithm is taken because the binomial coefficient
    C may be too large for a float.
    """
    return math.log(math.comb(places, equal)) + equal * math.log(chance_of_one)


# --- intervals ---


class _EqualIntervals(NamedTuple):
    """How many of the compared intervals of one kind are equal in two runs, and the chance of one pair to be equal."""

    equal: int
    compared: int
    chance_of_one: float

    @property
    def digits_against_chance(self) -> float:
        """The digits d by which chance is excluded: so many equal intervals have a chance of at most 10 ** -d.

        Chernoff's bound: of n compared intervals, each equal with the chance c, a share s or more are equal with a
        chance of at most exp(-n KL), where KL = s ln(s / c) + (1 - s) ln((1 - s) / (1 - c)). So d = n KL / ln(10).

        0 if no more intervals are equal than chance would give.
        """
        expected = self.compared * self.chance_of_one
        if self.equal <= expected:
            return 0.0
        unequal = self.compared - self.equal
        share = self.equal / self.compared
        digits_of_equal = self.equal * math.log10(share / self.chance_of_one)
        if unequal == 0:  # then the second term of KL is 0
            return digits_of_equal
        return digits_of_equal + unequal * math.log10((1 - share) / (1 - self.chance_of_one))


def _describe_equal_intervals(run: LoggedRun, other: LoggedRun, least_digits: float) -> str:
    """Describe suspiciously equal durations (intervals) of the epochs, blocks, evaluations and windows of two runs.

    The text begins a sentence that the caller ends: "51 of 90 intervals are, to the clock's tick," + "those of
    result_1.txt". It is "" if fewer than LEAST_EQUAL_VALUES intervals are equal, or if the chance of so many equal
    intervals is above 10 ** -`least_digits`.

    The n-th interval of a kind in one run is compared with the n-th of this kind in the other.
    """
    kinds = sorted({kind for kind, _ in run.intervals})
    compared_kinds = [_compare_intervals(run.durations(kind), other.durations(kind)) for kind in kinds]
    equal = sum(of_kind.equal for of_kind in compared_kinds)
    compared = sum(of_kind.compared for of_kind in compared_kinds)
    # The chances of the kinds are multiplied, so their digits are added.
    digits_against_chance = sum(of_kind.digits_against_chance for of_kind in compared_kinds)
    if equal < LEAST_EQUAL_VALUES or digits_against_chance < least_digits:
        return ""
    return f"{equal} of {compared} intervals are, to the clock's tick,"


def _compare_intervals(intervals: Sequence[float], others: Sequence[float]) -> _EqualIntervals:
    """Count the equal intervals of two runs, place by place, and estimate the chance of one equality by accident.

    A place is left out if either run has an interval of 0 there: its clock is too coarse to show the time.
    """
    count = min(len(intervals), len(others))
    places = [place for place in range(count) if intervals[place] > 0 and others[place] > 0]
    equal = sum(intervals[place] == others[place] for place in places)
    chance_of_one = _chance_of_equal_neighbours(intervals[:count], others[:count], places)
    return _EqualIntervals(equal=equal, compared=len(places), chance_of_one=chance_of_one)


def _chance_of_equal_neighbours(intervals: Sequence[float], others: Sequence[float], places: Sequence[int]) -> float:
    """Return the share of equal pairs of an interval of one run and a neighbour of it in the other run.

    The intervals at `places` are compared with those up to _NEIGHBOURS places away. These are similarly long, and equal
    by accident only. So the share is the chance that two intervals at the same place are equal by accident. A neighbour
    of 0 is unequal to any of them.

    One equal and one unequal pair are added (Laplace's rule of succession), so that the chance is never 0.
    """
    pairs = 0
    equal_pairs = 0
    for place in places:
        for neighbour in _places_around(place, len(intervals)):
            # Most pairs are met from both of their ends, which hardly changes the share.
            pairs += 2
            equal_pairs += intervals[place] == others[neighbour]
            equal_pairs += others[place] == intervals[neighbour]
    return (equal_pairs + 1) / (pairs + 2)


def _places_around(place: int, count: int) -> list[int]:
    """Return the places up to _NEIGHBOURS away from `place`, without itself, in a series of `count` places."""
    first = max(0, place - _NEIGHBOURS)
    last = min(count - 1, place + _NEIGHBOURS)
    return [*range(first, place), *range(place + 1, last + 1)]


# --- losses ---


def _describe_equal_losses(run: LoggedRun, other: LoggedRun) -> str:
    """Return how many losses are equal in the n-th step windows of two runs.

    The text begins a sentence that the caller ends: "9 of 20 losses of step_windows are" + "those of result_1.txt". It
    is empty if fewer than 3 different losses are equal. A loss has 24 bits, so even three equal ones are no accident.
    """
    pairs = list(zip(run.losses, other.losses, strict=False))
    equal_losses = {loss for loss, other_loss in pairs if loss == other_loss and loss is not None}
    if len(equal_losses) < LEAST_EQUAL_VALUES:  # a loss has 24 bits, so even three equal ones are no accident
        return ""
    return f"{len(equal_losses)} of {len(pairs)} losses of step_windows are"


# --- seeds, and the ends of all runs ---


def seed_key(seed: Event, ruleset: Ruleset, benchmark: str) -> tuple[str, ...] | None:
    """Return what no two runs of a submission may have in common of their seeds. None: the seed may be any.

    - The event has no value: None.
    - The benchmark is one of this project's: the text of the seed.
    - Another benchmark, in a round whose rules demand different seeds: the text of the seed, and the file and the line
      of code that logged it.
    - Another benchmark, in an older round: None.

    The text of a whole number is the same however it is written: `7`, `"+7"` and `7.0` give "7".
    """
    if seed.value is None:
        return None
    text = _text_of_seed(seed.value)
    is_benchmark_of_ours = benchmark in ruleset.benchmarks
    if is_benchmark_of_ours:
        return (text,)
    # The rule seed-present rests on the same text of MLPerf as the demand for different seeds.
    first_ruleset_with_demand = ruleset.strict["seed-present"].since
    if ruleset.version < first_ruleset_with_demand:
        return None
    return (text, str(seed.metadata.get("file")), str(seed.metadata.get("lineno")))


def _text_of_seed(value: object) -> str:
    """Return the text of a seed: "7" for 7, "+7" and 7.0. Any value that is not a whole number keeps its own text."""
    is_fraction = isinstance(value, float) and not value.is_integer()
    if is_fraction:  # such as 7.5, which whole_seed would round down
        return str(value)
    number = whole_seed(value)
    return str(value) if number is None else str(number)


def whole_seed(value: object) -> int | None:
    """Return a seed as an int, converted by int() as seed_checker does; None if that fails."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


def shared_last_accuracy(runs: Sequence[LoggedRun], least_runs: int) -> float | None:
    """Return the accuracy at which `least_runs` or more runs of a submission end, which is a sign of copied logs.

    None if there is no such accuracy. None, too, if all accuracies in these logs are rounded to four digits: such
    values may well be equal by chance.
    """
    last_accuracies = [run.evaluations[-1].value for run in runs if run.evaluations]
    all_evaluations = itertools.chain.from_iterable(run.evaluations for run in runs)
    are_all_rounded = all(_has_four_digits(evaluation.value) for evaluation in all_evaluations)
    if not last_accuracies or are_all_rounded:
        return None
    accuracy, count = Counter(last_accuracies).most_common(1)[0]
    return accuracy if count >= least_runs else None


def _has_four_digits(accuracy: float) -> bool:
    """Return whether an accuracy has no more than four decimals."""
    return abs(round(accuracy, 4) - accuracy) <= 1e-7
