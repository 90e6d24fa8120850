"""Whether one run is a copy of another: what they share beyond what two trainings can.

The chances were measured on published ResNet runs, so resemblance is asked of this project's benchmarks alone. Runs of
other benchmarks are copies only if all that they state is equal.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.rules import Ruleset
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event

MIN_EQUAL_VALUES = 3  # of two runs, not to be a coincidence
_MIN_DISTINCT_TIMES = 10  # by which a run is recognised
_MIN_DISTINCT_ACCURACIES = 5  # by which a run is recognised
_MIN_PRECISE_ACCURACIES = 3  # by which it is recognised, too, if none is rounded or a share of counted samples
_PRECISE_DIGITS = 10
# Their accuracies are numbers of right answers over that of the samples, of which two runs may well have equal ones.
_BENCHMARKS_THAT_COUNT = frozenset({"resnet", "hrnet", "bert", "gnn", "minigo", "rgat"})
_MIN_SECONDS_OF_COURSE = 3  # by which a run is recognised; of 4,256 published pairs the most had two equal times
_BENCHMARKS_WITH_OTHER_SIGNS = frozenset({"resnet", "hrnet"})  # `describe_equal_mark` and `describe_resemblance`
_NEIGHBOURS = 3  # places on each side of a place, to estimate the chance that two intervals are equal
_MAX_CHANCE_OF_COUNTS = 1e-3  # that a submission of 5 runs has so many equal counts
_PAIRS_OF_RUNS = 10  # in a submission of 5 runs
_MIN_LOSSES = 20  # of two runs, to compare their scatter
_MIN_LEARNT_ACCURACY = 0.5  # of ResNet on ImageNet, far over that of a run that diverged
# The first ruleset in which MLPerf demands it of all benchmarks: training_rules.adoc, section Random numbers.
_FIRST_RULESET_OF_DIFFERENT_SEEDS = "4.1.0"


_WHOLE_RUN = "run"
_COURSE = "times since the start"
_TIMES = "times"
_ACCURACIES = "accuracies"


class Mark(NamedTuple):
    """Values by which a run is recognised, and what they are, such as `times`."""

    what: str
    value: tuple[object, ...]


def marks(run: LoggedRun) -> list[Mark]:
    """Return values by which a run is recognised: another run with an equal mark may be a copy.

    Args:
        run: The facts that the log states of the run.

    Returns:
        Up to four marks: of the whole run (its start, end and accuracies), of its course (the times from its start to
        its end and each accuracy, and of all intervals), of its times (the durations of all intervals, such as epochs),
        and of its accuracies.
    """
    accuracies = _accuracies(run)
    times = tuple(run.intervals.values())
    marks_of_run = []
    if run.start_ms is not None:
        marks_of_run.append(Mark(_WHOLE_RUN, (run.start_ms, run.stop_ms, *accuracies)))
    course = _times_since_start(run)
    if _is_recognisable_course(course, run):
        marks_of_run.append(Mark(_COURSE, (*course, *times)))
    # Few different values are not a mark, because they may be equal by chance or by a coarse clock.
    distinct_times = set(times) - {0.0}  # a coarse clock may state 0 for any short time
    if len(distinct_times) >= _MIN_DISTINCT_TIMES:
        marks_of_run.append(Mark(_TIMES, times))
    if _are_recognisable(accuracies, run):
        marks_of_run.append(Mark(_ACCURACIES, accuracies))
    return marks_of_run


def _accuracies(run: LoggedRun) -> tuple[float, ...]:
    """Return all accuracies of a run; of maskrcnn, whose events have two, those of the boxes and of the masks.

    Args:
        run: The facts that the log states of the run.
    """
    accuracies: list[float] = []
    for event in run.all_events[schema.EVAL_ACCURACY.key]:
        is_table = isinstance(event.value, dict)
        metrics = event.value.values() if is_table else [event.value]
        accuracies += [float(metric) for metric in metrics if is_number(metric)]
    return tuple(accuracies)


def _are_recognisable(accuracies: Sequence[float], run: LoggedRun) -> bool:
    """Return whether a run is recognised by its accuracies: by five, or by three of many digits.

    Args:
        accuracies: All accuracies of the run.
        run: The facts that the log states of the run.
    """
    distinct = set(accuracies)
    if len(distinct) >= _MIN_DISTINCT_ACCURACIES:
        return True
    if run.stated_text(schema.SUBMISSION_BENCHMARK) in _BENCHMARKS_THAT_COUNT:
        return False
    are_precise = all(_digits(accuracy) >= _PRECISE_DIGITS for accuracy in distinct)
    return are_precise and len(distinct) >= _MIN_PRECISE_ACCURACIES


def _digits(number: float) -> int:
    """Return how many decimal digits the text of a number has, such as 3 for 0.759."""
    return len(repr(number).lstrip("-0.").replace(".", ""))


def _times_since_start(run: LoggedRun) -> list[int]:
    """Return the milliseconds from a run's start to its end and to each accuracy; none if it lacks start or end.

    Args:
        run: The facts that the log states of the run.
    """
    if run.start_ms is None or run.stop_ms is None:
        return []
    ends_ms = [run.stop_ms, *[event.time_ms for event in run.all_events[schema.EVAL_ACCURACY.key]]]
    return [round(end_ms - run.start_ms) for end_ms in ends_ms]


def _is_recognisable_course(since_start_ms: Sequence[int], run: LoggedRun) -> bool:
    """Return whether no other run ends and is evaluated at the same milliseconds after its start.

    Args:
        since_start_ms: The times, in milliseconds.
        run: The facts that the log states of the run.
    """
    is_clock_coarse = run.tick_ms > 1
    if is_clock_coarse or run.stated_text(schema.SUBMISSION_BENCHMARK) in _BENCHMARKS_WITH_OTHER_SIGNS:
        return False
    seconds = {time_ms // 1000 for time_ms in since_start_ms if time_ms >= 1000}
    return len(seconds) >= _MIN_SECONDS_OF_COURSE


def describe_same_run(run: LoggedRun, other: LoggedRun, name_of_other: str) -> str:
    """Return a sentence that says that two logs, of any benchmark, are of one run; "" if too little is equal for this.

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
        name_of_other: The name of the other log for the sentence, such as "result_1.txt".

    Returns:
        The sentence, such as "its times and accuracies are those of result_1.txt", or "".
    """
    equal_marks = _names_of_equal_marks(run, other)
    if _WHOLE_RUN in equal_marks:
        return f"its start, end and accuracies are those of {name_of_other}"
    if _TIMES in equal_marks and _ACCURACIES in equal_marks:  # equal durations alone show nothing
        return f"its times and accuracies are those of {name_of_other}"
    if _COURSE in equal_marks:
        return f"its times since run_start are those of {name_of_other}"
    # With the same seed a program may repeat a run to the digit, so equal accuracies show nothing then.
    if _ACCURACIES in equal_marks and _are_seeds_different(run, other):
        return f"its accuracies are those of {name_of_other}, which has another seed"
    return ""


def _are_seeds_different(run: LoggedRun, other: LoggedRun) -> bool:
    """Return whether both logs state seeds, and not the same ones.

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
    """
    seeds = _texts_of_seeds(run)
    seeds_of_other = _texts_of_seeds(other)
    return bool(seeds) and bool(seeds_of_other) and seeds != seeds_of_other


def _texts_of_seeds(run: LoggedRun) -> set[str]:
    return {_text_of_seed(seed.value) for seed in run.all_events[schema.SEED.key] if seed.value is not None}


def describe_equal_mark(run: LoggedRun, other: LoggedRun, name_of_other: str) -> str:
    """Return a sentence on the first sign that one log is a copy of another; "" if there is none.

    Call this only for this project's benchmarks. Logs of other benchmarks have coarser times and fewer accuracies, so
    one equal sign does not show a copy.

    Args:
        run: The facts that the one log states.
        other: The facts that the other log states.
        name_of_other: The name of the other log for the sentence, such as "result_1.txt".

    Returns:
        The sentence, such as "its times are those of result_1.txt", or "".
    """
    if run.start_ms is not None and run.start_ms == other.start_ms:
        return f"run_start {run.start_ms} is that of {name_of_other}"
    equal_marks = _names_of_equal_marks(run, other)
    if _TIMES in equal_marks:
        return f"its times are those of {name_of_other}"
    if _ACCURACIES in equal_marks:
        return f"its accuracies are those of {name_of_other}"
    return ""


def _names_of_equal_marks(run: LoggedRun, other: LoggedRun) -> set[str]:
    """Return which kinds of marks two runs share: any of _WHOLE_RUN, _COURSE, _TIMES and _ACCURACIES (see `marks`).

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
    """
    marks_of_other = marks(other)
    return {mark.what for mark in marks(run) if mark in marks_of_other}


def describe_resemblance(run: LoggedRun, other: LoggedRun, name_of_other: str, *, most_chance: float) -> str:
    """Return a sentence on the first suspicious likeness of two runs; "" if there is none.

    Evaluations are compared first, then durations, then losses. Call it only for this project's benchmarks, because the
    chances were measured there.

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
        name_of_other: How the sentence calls the other log.
        most_chance: The largest chance of a coincidence that is still suspicious. It is used for durations alone: a
            number of equal ones is suspicious if coincidence makes so many equal with this chance or less.
    """
    return (
        _describe_equal_evaluations(run, other, name_of_other)
        or _describe_equal_intervals(run, other, name_of_other, most_chance)
        or _describe_equal_losses(run, other, name_of_other)
    )


# --- counts of right images ---


def _describe_equal_evaluations(run: LoggedRun, other: LoggedRun, name_of_other: str) -> str:
    """Return a sentence on suspiciously equal evaluations of two ResNet runs; "" if there are none.

    The two runs are compared evaluation by evaluation: first their counts of right (correctly classified) images, then
    the rises of these counts from one evaluation to the next. If somebody copied a run and added 10 to each count, no
    count is equal, but all rises are.

    Args:
        run: The facts of the one log. Nothing is compared unless it is of ResNet and states eval_samples.
        other: The facts of another log of the same submission, so of the same benchmark.
        name_of_other: How the sentence calls the other log.
    """
    samples = run.stated_count(schema.EVAL_SAMPLES)  # 0 if it is not stated
    is_resnet = run.stated_text(schema.SUBMISSION_BENCHMARK) == "resnet"
    if not is_resnet or samples == 0:
        return ""
    compared = min(len(run.evaluations), len(other.evaluations))
    accuracies = [evaluation.value for evaluation in run.evaluations[:compared]]
    other_accuracies = [evaluation.value for evaluation in other.evaluations[:compared]]
    chance = _chance_of_equal_counts([*accuracies, *other_accuracies], samples)
    if chance is None:  # it cannot be estimated
        return ""
    counts = [round(accuracy * samples) for accuracy in accuracies]  # 38,001 for 0.76002 of 50,000 samples
    other_counts = [round(accuracy * samples) for accuracy in other_accuracies]
    on_counts = _describe_equal_series("counts of right images", counts, other_counts, chance, name_of_other)
    if on_counts:
        return on_counts
    # Two rises are equal by coincidence less often than two counts, because a difference of two counts varies more than
    # one count. So the chance of the counts is too high for rises, which is on the safe side.
    rises = _rises(counts)
    other_rises = _rises(other_counts)
    return _describe_equal_series("rises of right images", rises, other_rises, chance, name_of_other)


def _describe_equal_series(
    what: str, series: Sequence[int], other_series: Sequence[int], chance_of_one: float, name_of_other: str
) -> str:
    """Return a sentence such as "5 of 9 counts of right images are those of result_1.txt"; "" if chance explains it.

    Args:
        what: What the numbers are, such as "counts of right images".
        series: The numbers of the one run.
        other_series: As many numbers of the other run.
        chance_of_one: The chance that the two numbers at one place are equal by coincidence.
        name_of_other: How the sentence calls the other log.
    """
    equal = _number_of_equal_values(series, other_series)
    if _is_beyond_chance(equal, len(series), chance_of_one):
        return f"{equal} of {len(series)} {what} are those of {name_of_other}"
    return ""


def _chance_of_equal_counts(accuracies: Sequence[float], samples: int) -> float | None:
    """Return a high estimate of the chance that two runs count equally many right images in one evaluation.

    It is 0.006 for an accuracy of 0.76 on 50,000 samples. In published submissions, 0.0012 of the pairs of counts are
    equal. A high estimate is on the safe side: two runs are called copies if more counts are equal than it explains.

    Args:
        accuracies: The accuracies of both runs; their mean is taken.
        samples: The size of the evaluation set.

    Returns:
        The chance. None if it cannot be estimated, as for no accuracies or very few samples.
    """
    if not accuracies or min(accuracies) < 0 or max(accuracies) > 1:
        return None
    mean = sum(accuracies) / len(accuracies)
    variance = _variance_of_difference(mean, samples)
    # The difference of the two counts is taken as normally distributed around 0. The chance of the whole number 0 is
    # then about the density at 0, which is 1 / sqrt(2 pi variance).
    inverse_of_chance = math.sqrt(2 * math.pi * variance)
    if inverse_of_chance <= 1:  # the density is 1 or more: the distribution is too narrow for the approximation
        return None
    return 1 / inverse_of_chance


def _variance_of_difference(accuracy: float, samples: int) -> float:
    """Return the variance of the difference between two runs' counts of right images, if their accuracy is the same.

        variance = 2 * samples * accuracy * (1 - accuracy) / 4

    Without the / 4 it would be the variance for two independent binomial counts. Two runs err on many of the same
    images, so their counts differ less. That the variance is a quarter is an assumption on the safe side: it makes
    equal counts more likely by chance (`_chance_of_equal_counts`), so it takes more of them to call two runs copies.

    Args:
        accuracy: The share of right images, from 0 to 1.
        samples: The size of the evaluation set.
    """
    variance_of_count = samples * accuracy * (1 - accuracy)  # of a binomial distribution
    variance_if_independent = 2 * variance_of_count
    return variance_if_independent / 4


def _number_of_equal_values(series: Sequence[int], other_series: Sequence[int]) -> int:
    """Return how many distinct values two series have at the same place: 1 for [1, 2, 2] and [0, 2, 2].

    A value counts once, because a run that diverged finds the same images each time.

    Args:
        series: The numbers of the one run.
        other_series: As many numbers of the other run.
    """
    equal_values = {value for value, other in zip(series, other_series, strict=True) if value == other}
    return len(equal_values)


def _rises(counts: Sequence[int]) -> list[int]:
    """Return the difference of each count and the one before it."""
    return [after - before for before, after in itertools.pairwise(counts)]


def _is_beyond_chance(equal: int, compared: int, chance_of_one: float) -> bool:
    """Return whether two runs have more equal numbers, such as counts of right images, than chance explains.

    Args:
        equal: How many distinct numbers are equal in both runs, such as 5.
        compared: How many numbers of the one run were compared with the other, each with the one at its place, such
            as 9.
        chance_of_one: The chance that two such numbers are equal by coincidence.
    """
    if equal < MIN_EQUAL_VALUES:
        return False
    log_of_chance_for_pair = _log_of_chance_of_equal_values(equal, compared, chance_of_one)
    # Any of the 10 pairs in a submission of 5 runs may be equal by coincidence, so the chance is multiplied by 10,
    # which is Bonferroni's correction.
    log_of_chance = math.log(_PAIRS_OF_RUNS) + log_of_chance_for_pair
    return log_of_chance < math.log(_MAX_CHANCE_OF_COUNTS)


def _log_of_chance_of_equal_values(equal: int, compared: int, chance_of_one: float) -> float:
    """Return the natural logarithm of a bound on the chance that two runs are equal at so many places.

        chance <= C(compared, equal) * chance_of_one ** equal

    This is the union bound. It is a logarithm because the binomial coefficient C may be too large for a float.

    Args:
        equal: At how many places the two runs are equal.
        compared: How many places were compared.
        chance_of_one: The chance that they are equal at one place.
    """
    return math.log(math.comb(compared, equal)) + equal * math.log(chance_of_one)


def describe_near_accuracies(
    run: LoggedRun, other: LoggedRun, name_of_other: str, *, most_difference: float, least_evaluations: int
) -> str:
    """Return a sentence if two closed ResNet runs are about as accurate in all their evaluations; "" if they are not.

    A copy whose accuracies were each changed a little is found so. Two trainings differ by more in early evaluations.

    Args:
        run: The facts of the one log. Nothing is compared unless it is of ResNet, in the closed division.
        other: The facts of another log of the same submission.
        name_of_other: How the sentence calls the other log.
        most_difference: How far two accuracies may be apart to be near, such as 0.002.
        least_evaluations: How many must be near; with fewer evaluations nothing is compared.
    """
    is_resnet = run.stated_text(schema.SUBMISSION_BENCHMARK) == "resnet"
    is_closed = run.stated_text(schema.SUBMISSION_DIVISION) == "closed"
    compared = min(len(run.evaluations), len(other.evaluations))
    if not is_resnet or not is_closed or compared < least_evaluations:
        return ""
    best_accuracy = max(evaluation.value for evaluation in run.evaluations[:compared])
    if best_accuracy < _MIN_LEARNT_ACCURACY:  # runs that diverged are all about as accurate
        return ""
    pairs = zip(run.evaluations[:compared], other.evaluations[:compared], strict=True)
    for evaluation, other_evaluation in pairs:
        if abs(evaluation.value - other_evaluation.value) > most_difference:
            return ""
    return f"none of its {compared} first accuracies differs by over {most_difference} from that of {name_of_other}"


# --- intervals ---


class _EqualIntervals(NamedTuple):
    """How many of the compared intervals of one kind are equal in two runs, and the chance of one pair to be equal."""

    equal: int
    compared: int
    chance_of_one: float

    @property
    def most_chance_of_coincidence(self) -> float:
        """Chernoff's upper bound on the chance that so many intervals, or more, are equal by coincidence.

            chance <= exp(-n D(s, c))

        n is the number of intervals, c the chance of one, and s, above c, the share that is equal. D is `_divergence`.
        """
        if self.equal <= self.compared * self.chance_of_one:  # no more than chance gives on average
            return 1.0
        share = self.equal / self.compared
        return math.exp(-self.compared * _divergence(share, self.chance_of_one))


def _divergence(share: float, chance: float) -> float:
    """Return the Kullback-Leibler divergence of a share s from a chance c, in nats.

    D(s, c) = s ln(s / c) + (1 - s) ln((1 - s) / (1 - c))

    Args:
        share: The share of equal intervals, above 0 and up to 1.
        chance: The chance that one pair of intervals is equal, between 0 and 1.
    """
    term_of_equal = share * math.log(share / chance)
    if share == 1:  # the second term is 0 then
        return term_of_equal
    return term_of_equal + (1 - share) * math.log((1 - share) / (1 - chance))


def _describe_equal_intervals(run: LoggedRun, other: LoggedRun, name_of_other: str, most_chance: float) -> str:
    """Return a sentence on suspiciously equal intervals of two runs; "" if there are none.

    An interval is the duration of an epoch, a block of epochs, an evaluation or a window of steps. It is only compared
    with others of its kind.

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
        name_of_other: How the sentence calls the other log.
        most_chance: The intervals are suspicious if coincidence makes so many equal with at most this chance.
    """
    kinds = sorted({kind for kind, _ in run.intervals})
    durations_by_kind = [(run.durations(kind), other.durations(kind)) for kind in kinds]
    # Hardly any pair of runs gets beyond this count. The chance of a coincidence takes ten times as long.
    equal = sum(_number_of_equal_intervals(intervals, others) for intervals, others in durations_by_kind)
    if equal < MIN_EQUAL_VALUES:
        return ""
    by_kind = [_compare_intervals(intervals, others) for intervals, others in durations_by_kind]
    compared = sum(of_kind.compared for of_kind in by_kind)
    # The kinds are taken as independent, so the chances that so many of each are equal by coincidence are multiplied.
    chance = math.prod(of_kind.most_chance_of_coincidence for of_kind in by_kind)
    if chance > most_chance:
        return ""
    return f"{equal} of {compared} intervals are, to the clock's tick, those of {name_of_other}"


def _number_of_equal_intervals(intervals: Sequence[float], others: Sequence[float]) -> int:
    """Return at how many places two runs have equal intervals. Those of 0 do not count.

    Args:
        intervals: Durations of one kind in the one run, in the order of its log.
        others: Durations of the same kind in the other run. The longer series is cut to the length of the shorter.
    """
    return sum(interval == other > 0 for interval, other in zip(intervals, others, strict=False))


def _compare_intervals(intervals: Sequence[float], others: Sequence[float]) -> _EqualIntervals:
    """Count the equal intervals of two runs, place by place, and estimate the chance of one equality by coincidence.

    A place is left out if either run has an interval of 0 there, because its clock is too coarse to show the time.

    Args:
        intervals: Durations of one kind in the one run, in the order of its log.
        others: Durations of the same kind in the other run. The longer series is cut to the length of the shorter.

    Returns:
        How many intervals are equal, how many were compared, and the chance of one equality.
    """
    count = min(len(intervals), len(others))
    places = [place for place in range(count) if intervals[place] > 0 and others[place] > 0]
    equal = _number_of_equal_intervals(intervals, others)
    chance_of_one = _chance_of_equal_neighbours(intervals[:count], others[:count], places)
    return _EqualIntervals(equal=equal, compared=len(places), chance_of_one=chance_of_one)


def _chance_of_equal_neighbours(intervals: Sequence[float], others: Sequence[float], places: Sequence[int]) -> float:
    """Return an estimate of the chance that two runs have an equal interval at one place by coincidence.

    The estimate is how often an interval of one run equals one of the other at a neighbouring place, up to _NEIGHBOURS
    (3) places before or after. Such intervals have about the same length as those at one place, so coincidence makes
    them equal about as often. A copy makes only those at one place equal.

    Args:
        intervals: Durations of one kind in the one run.
        others: As many durations of the same kind in the other run.
        places: The indices that are looked at.
    """
    pairs = 0
    equal_pairs = 0
    for place in places:
        for neighbour in _places_around(place, len(intervals)):  # without the place itself
            # The interval of each run is compared with the neighbour in the other run.
            pairs += 2
            equal_pairs += intervals[place] == others[neighbour]  # True counts as 1
            equal_pairs += others[place] == intervals[neighbour]
    # One equal and one unequal pair are added, so that the chance is above 0 and below 1.
    return (equal_pairs + 1) / (pairs + 2)


def _places_around(place: int, count: int) -> list[int]:
    """Return the places up to _NEIGHBOURS away from a place, without itself.

    Args:
        place: An index of the series.
        count: The length of the series. Places outside it are left out.
    """
    first = max(0, place - _NEIGHBOURS)
    last = min(count - 1, place + _NEIGHBOURS)
    return [*range(first, place), *range(place + 1, last + 1)]


# --- losses ---


def _describe_equal_losses(run: LoggedRun, other: LoggedRun, name_of_other: str) -> str:
    """Return a sentence such as "9 of 20 losses of step_windows are those of result_1.txt"; "" if too few are equal.

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
        name_of_other: How the sentence calls the other log.
    """
    equal = sum(loss == other_loss for loss, other_loss in _pairs_of_losses(run, other))
    # A loss is in single precision, of 24 bits, so coincidence hardly makes even MIN_EQUAL_VALUES (3) of them equal.
    if equal < MIN_EQUAL_VALUES:
        return ""
    windows = min(len(run.first_losses), len(other.first_losses))
    return f"{equal} of {windows} losses of step_windows are those of {name_of_other}"


def _pairs_of_losses(run: LoggedRun, other: LoggedRun) -> list[tuple[float, float]]:
    """Return the two losses of the n-th windows of two runs, for each n: those that are known, and not coarse in both.

    Losses that recur in their run are coarse: near 0 they are small multiples of the last digit, and those of a
    run that diverged may be multiples of 4. Two runs have equal ones by coincidence.

    Args:
        run: The facts of the one log.
        other: The facts of the other log, which may have fewer windows.
    """
    counts = Counter(run.first_losses)
    other_counts = Counter(other.first_losses)
    pairs = []
    for loss, other_loss in zip(run.first_losses, other.first_losses, strict=False):
        if loss is None or other_loss is None:  # not read
            continue
        are_coarse = counts[loss] > 1 and other_counts[other_loss] > 1
        if not are_coarse:
            pairs.append((loss, other_loss))
    return pairs


def describe_near_losses(run: LoggedRun, other: LoggedRun, name_of_other: str, *, most_share: float) -> str:
    """Return a sentence if the losses of two runs differ by far less than losses scatter; "" if they do not.

    A copy whose losses were each changed a little is found so. Two trainings with other seeds see other images in each
    step, so their losses differ at least as much as those of one run scatter from window to window.

        difference = median |log a - log b| / sqrt(2), over the windows
        scatter    = median |second difference of the log of the losses| / sqrt(6), over both runs

    Both are the standard deviation of one loss, but for a factor, if the losses scatter independently.

    Args:
        run: The facts of the one log.
        other: The facts of the other log.
        name_of_other: How the sentence calls the other log.
        most_share: The largest difference, as a share of the scatter, that shows a copy, such as 0.1.
    """
    logs: list[float] = []
    other_logs: list[float] = []
    for loss, other_loss in _pairs_of_losses(run, other):
        if loss > 0 and other_loss > 0:
            logs.append(math.log(loss))
            other_logs.append(math.log(other_loss))
    if len(logs) < _MIN_LOSSES:
        return ""
    median_difference = _median([abs(log - other_log) for log, other_log in zip(logs, other_logs, strict=True)])
    difference = median_difference / math.sqrt(2)
    scatter = _median([*_second_differences(logs), *_second_differences(other_logs)]) / math.sqrt(6)
    if difference > most_share * scatter:
        return ""
    return f"its losses are those of {name_of_other} within {six_digits(100 * median_difference)} %"


def _median(values: Sequence[float]) -> float:
    """Return the median of at least one value, and of two in the middle the larger one."""
    return sorted(values)[len(values) // 2]


def _second_differences(series: Sequence[float]) -> list[float]:
    """Return the sizes of the second differences |x[i] - 2 x[i+1] + x[i+2]|, which a steady rise or fall leaves 0."""
    return [
        abs(first - 2 * second + third) for first, second, third in zip(series, series[1:], series[2:], strict=False)
    ]


# --- seeds, and the ends of all runs ---


def seed_key(seed: Event, ruleset: Ruleset, benchmark: str) -> tuple[str, ...] | None:
    """Return the key by which a seed is compared with seeds of other runs, such as ("7",); None if it need not differ.

    Two runs of a submission must not have seeds of equal keys. For this project's benchmarks the key is the text of the
    seed, for others also its place in the code.

    Args:
        seed: An event `seed` of a log, such as one with the value 7.
        ruleset: The rules by which the submission is checked, with this project's benchmarks.
        benchmark: The name of the submission's benchmark, such as "resnet".
    """
    if seed.value is None:
        return None
    is_benchmark_of_ours = benchmark in ruleset.benchmarks
    if is_benchmark_of_ours:
        return (_text_of_seed(seed.value),)
    # The versions, such as "4.0.0", are compared as texts, which is right while each of their numbers has one digit.
    must_seeds_differ = ruleset.version >= _FIRST_RULESET_OF_DIFFERENT_SEEDS  # 4.1.0
    if not must_seeds_differ:
        return None
    # Other projects log several seeds in one run, at several places of their code, such as line 120 of "train.py".
    file_of_code = str(seed.metadata.get("file"))
    line_of_code = str(seed.metadata.get("lineno"))
    number = whole_seed(seed.value)  # 7 for 7.5, as the official seed_checker compares them
    text = _text_of_seed(seed.value) if number is None else str(number)
    return (text, file_of_code, line_of_code)


def _text_of_seed(value: object) -> str:
    """Return the text of a seed: "7" for 7, "+7" and 7.0. Fractions, and values that int() refuses, keep their text.

    Args:
        value: The value of an event `seed`, of any type of JSON.
    """
    is_fraction = isinstance(value, float) and not value.is_integer()
    if is_fraction:  # such as 7.5, which whole_seed would round down
        return str(value)
    number = whole_seed(value)
    return str(value) if number is None else str(number)


def whole_seed(value: object) -> int | None:
    """Return a seed as an int, converted by int() as the official seed_checker does; None if that fails.

    Args:
        value: The value of an event `seed`, of any type of JSON. 7.5 gives 7.
    """
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


def shared_last_accuracy(runs: Sequence[LoggedRun], least_runs: int) -> float | None:
    """Return the accuracy at which several runs of a submission end, which is a sign of copied logs.

    Args:
        runs: The facts of the logs of the submission.
        least_runs: How many runs must end with the same accuracy.

    Returns:
        The accuracy at which most runs end. None if fewer than `least_runs` end with it, or if no accuracy of the runs
        has more than four decimals, because rounded accuracies may well be equal by chance.
    """
    last_accuracies = [run.evaluations[-1].value for run in runs if run.evaluations]
    if not last_accuracies:
        return None
    # All accuracies are looked at, not only the last ones: they show how the runs log them.
    all_evaluations = itertools.chain.from_iterable(run.evaluations for run in runs)
    are_all_rounded = all(_has_four_digits(evaluation.value) for evaluation in all_evaluations)
    if are_all_rounded:
        return None
    [(most_common, count)] = Counter(last_accuracies).most_common(1)
    is_shared = count >= least_runs
    return most_common if is_shared else None


def _has_four_digits(accuracy: float) -> bool:
    """Return whether an accuracy has no more than four decimals."""
    return abs(round(accuracy, 4) - accuracy) <= 1e-7
