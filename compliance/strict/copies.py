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
    - times or accuracies alone

    The last two count only if the benchmark is one of this project's (`ours`). Logs of other benchmarks may hold few
    accuracies and coarse times, which are equal more easily.
    """
    marks_of_other = marks(other)
    equal_marks = {mark.what for mark in marks(run) if mark in marks_of_other}
    if "run" in equal_marks:  # the mark of start, end and accuracies together
        return "its start, end and accuracies are"
    if equal_marks == {"times", "accuracies"}:
        return "its times and accuracies are"
    if not ours:  # such logs may hold few accuracies and coarse times, which are equal more easily
        return ""
    if run.start_ms is not None and run.start_ms == other.start_ms:
        return f"run_start {run.start_ms} is"
    if equal_marks:
        [equal_mark] = equal_marks  # `times` or `accuracies`: both together are handled above
        return f"its {equal_mark} are"
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
    """Describe suspiciously equal evaluations of two ResNet runs, by their numbers of correctly classified images.

    These numbers are compared first, then their rises from one evaluation to the next. Equal rises show a copied curve
    that was moved up or down. The text begins a sentence that the caller ends: "5 of 9 counts of right images are" +
    "those of result_1.txt". It is "" if

    - chance explains the equal numbers and the equal rises,
    - the log does not state eval_samples, or
    - the benchmark is another one.

    A value that is equal in several places counts once, because a run that diverged finds the same images each time.
    """
    samples = run.stated_count(schema.EVAL_SAMPLES)
    if not samples or run.stated_text(schema.SUBMISSION_BENCHMARK) != "resnet":
        return ""
    evaluations = min(len(run.evaluations), len(other.evaluations))
    accuracies = [evaluation.value for evaluation in run.evaluations[:evaluations]]
    other_accuracies = [evaluation.value for evaluation in other.evaluations[:evaluations]]
    # A bound on the chance that the two runs agree in one evaluation.
    chance_of_one = _chance_of_equal_counts([*accuracies, *other_accuracies], samples)
    if chance_of_one is None:  # there is no bound on the chance for such accuracies
        return ""

    counts = [round(accuracy * samples) for accuracy in accuracies]
    other_counts = [round(accuracy * samples) for accuracy in other_accuracies]
    for what, series, other_series in (
        ("counts", counts, other_counts),
        ("rises", _rises(counts), _rises(other_counts)),  # they vary more than counts, so the bound holds
    ):
        # A value counts once, because a run that diverged finds the same images each time.
        equal = len(_values_at_same_place(series, other_series))
        if equal >= _least_beyond_chance(len(series), chance_of_one):
            return f"{equal} of {len(series)} {what} of right images are"
    return ""


def _chance_of_equal_counts(accuracies: Sequence[float], samples: int) -> float | None:
    """Return an upper bound on the chance that two runs count equally many right images in one evaluation.

        bound = 1 / sqrt(pi N a (1 - a))

    N is `samples`, and a is the mean of `accuracies`. None if the formula gives no chance below 1, if there are no
    accuracies, or if one is not between 0 and 1.
    """
    if not accuracies or min(accuracies) < 0 or max(accuracies) > 1:
        return None
    mean = sum(accuracies) / len(accuracies)
    # If the errors of two runs are independent, the difference of their counts has the variance 2 N a (1 - a). Two runs
    # err on many of the same images, so the difference varies less. We take a quarter: v = N a (1 - a) / 2.
    # A normal difference is 0 with the chance 1 / sqrt(2 pi v), and 2 pi v = pi N a (1 - a).
    # For N = 50,000 and a = 0.76 the bound is 0.006. In published submissions, 16 of 13,332 counts are equal: 0.0012.
    square_of_inverse_chance = math.pi * samples * mean * (1 - mean)
    if square_of_inverse_chance <= 1:
        return None
    chance: float = square_of_inverse_chance**-0.5
    return chance


def _values_at_same_place(series: Sequence[int], other_series: Sequence[int]) -> set[int]:
    """Return the distinct values that two series have at the same place: {2} for [1, 2, 2] and [0, 2, 2]."""
    return {value for value, other in zip(series, other_series, strict=True) if value == other}


def _rises(counts: Sequence[int]) -> list[int]:
    """Return the difference of each count and the one before it."""
    return [after - before for before, after in itertools.pairwise(counts)]


def _least_beyond_chance(places: int, chance: float) -> int:
    """Return the least number of equal values of two runs that chance does not explain.

    The values of the runs are compared at `places` positions. `chance` is the chance that they are equal at one of
    them. The number is at least 3. It is so high that in fewer than one submission in 1,000 any pair of runs reaches
    it by chance. A submission has 5 runs, and so ten pairs. If chance explains equal values at all `places`, the
    number is `places` + 1, which is never reached.
    """
    for count in range(LEAST_EQUAL_VALUES, places + 1):
        chance_of_two_runs = math.comb(places, count) * chance**count  # an upper bound (union bound)
        if _PAIRS_OF_RUNS * chance_of_two_runs < _MOST_CHANCE_OF_COUNTS:
            return count
    return places + 1


# --- intervals ---


class _EqualIntervals(NamedTuple):
    """How many of the compared intervals of one kind are equal in two runs, and the chance of one pair to be equal."""

    equal: int
    compared: int
    chance_of_one: float

    @property
    def log_of_inverse_chance(self) -> float:
        """Return the natural logarithm of 1 / p. p is the chance that so many intervals or more are equal by accident.

        p is bounded by Chernoff's bound, p <= exp(-n KL(s || c)), with the n compared intervals, the share s of the
        equal ones, and the chance c of one. KL(s || c) is s log(s / c) + (1 - s) log((1 - s) / (1 - c)).

        0 if no more intervals are equal than chance would give.
        """
        if not self.compared or self.equal <= self.compared * self.chance_of_one:  # as many as chance gives
            return 0.0
        share = self.equal / self.compared
        unequal = self.compared - self.equal
        log_of_inverse = self.equal * math.log(share / self.chance_of_one)  # n * the first term of KL
        if unequal:  # else the second term is 0
            log_of_inverse += unequal * math.log((1 - share) / (1 - self.chance_of_one))
        return log_of_inverse


def _describe_equal_intervals(run: LoggedRun, other: LoggedRun, least_digits: float) -> str:
    """Describe suspiciously equal durations (intervals) of the epochs, blocks, evaluations and windows of two runs.

    The text begins a sentence that the caller ends: "51 of 90 intervals are, to the clock's tick," + "those of
    result_1.txt". It is "" if fewer than 3 intervals are equal, or if the chance of so many equal intervals is above
    10 ** -`least_digits`.

    The n-th interval of a kind in one run is compared with the n-th in the other. The chances of the kinds are
    multiplied: their logarithms are added.
    """
    equal = 0
    compared = 0
    log_of_inverse_chance = 0.0  # natural logarithm, of all kinds together
    for kind in sorted({name for name, _ in run.intervals}):
        of_kind = _compare_intervals(run.durations(kind), other.durations(kind))
        equal += of_kind.equal
        compared += of_kind.compared
        log_of_inverse_chance += of_kind.log_of_inverse_chance  # the chances of the kinds are multiplied
    is_beyond_chance = log_of_inverse_chance >= least_digits * math.log(10)
    if equal >= LEAST_EQUAL_VALUES and is_beyond_chance:
        return f"{equal} of {compared} intervals are, to the clock's tick,"
    return ""


def _compare_intervals(intervals: Sequence[float], others: Sequence[float]) -> _EqualIntervals:
    """Count the equal intervals of two runs, place by place, and estimate the chance of one equality by accident.

    For the chance, each interval of one run is compared with the intervals of the other run up to _NEIGHBOURS places
    away. These are similarly long, and equal by accident only. The chance is the share of equal pairs among them.

    A place is left out if either run has an interval of 0 there. As a neighbour of another place, it counts as unequal.
    """
    count = min(len(intervals), len(others))
    places = [place for place in range(count) if intervals[place] > 0 and others[place] > 0]
    equal = sum(intervals[place] == others[place] for place in places)
    pairs = 0  # of an interval and a neighbour in the other run
    equal_pairs = 0
    for place in places:
        first_neighbour = max(0, place - _NEIGHBOURS)
        last_neighbour = min(count - 1, place + _NEIGHBOURS)
        for neighbour in range(first_neighbour, last_neighbour + 1):
            if neighbour != place:
                # Most pairs are met twice, once from each of their ends. This hardly changes the share.
                pairs += 2
                equal_pairs += intervals[place] == others[neighbour]
                equal_pairs += intervals[neighbour] == others[place]
    # One equal and one unequal pair are added (Laplace's rule of succession), so that the chance is never 0.
    chance_of_one = (equal_pairs + 1) / (pairs + 2)
    return _EqualIntervals(equal=equal, compared=len(places), chance_of_one=chance_of_one)


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
    """Return the key of a seed: no two runs may have seeds of an equal key. None: the seed is not compared.

    - The event has no value: None.
    - The benchmark is one of this project's: the seed's text.
    - Another benchmark, and the rules of the round ask for different seeds: the seed's text, and the file and the line
      of code that logged it.
    - Another benchmark in an older round: None.

    The text of a whole number is the same however it is written: `7`, `"+7"` and `7.0` give "7".
    """
    if seed.value is None:
        return None
    text = _text_of_seed(seed.value)
    is_benchmark_of_ours = benchmark in ruleset.benchmarks
    if is_benchmark_of_ours:
        return (text,)
    must_seeds_differ = ruleset.version >= ruleset.strict["seed-present"].since
    if must_seeds_differ:
        return (text, str(seed.metadata.get("file")), str(seed.metadata.get("lineno")))
    return None


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
