"""The widths of the intervals of one run, fitted on published runs and tried on systems that they were not fitted on.

A case is an interval that may hold or not: a stretch of windows of a run and the mean of that whole run, or a run and
the figure of another run of the system. A width is fitted so that TARGET of the cases hold at each number of windows,
every system counting alike. The systems are halved. What a table shows of each half was fitted on the other one.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.published_runs import PublishedRun
from program.arrays import Array
from scoring.figure import series, spread
from scoring.figure.calibration import EPOCHS, ROWS, Width, width_for

TARGET = 0.96  # widths hold a little less often on systems that they were not fitted on
COUNTS = (10, 15, 20, 30, 40, 60, 100, 200, 400)  # windows of a stretch
BRACKETS = (10, 20, 40)  # a width holds from so many windows on, to the next one
STRETCHES = 8  # of a run, evenly chosen
LONGER = 1.5  # times as long as a stretch a run is at least
MIN_SHARES = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02)
POWERS = (1.0, 0.9, 0.8, 0.7, 0.6)
MIN_SYSTEMS = 20  # for a width of their own
LIKE_HOSTS = 0.975  # of the pairs of like hosts lie closer than the smallest difference that matters
KINDS = (ROWS, EPOCHS)
ALL_SOURCES = "all"


class Case(NamedTuple):
    """An interval that may hold or not."""

    source: str
    machine: str
    system: str
    kind: str
    windows: int  # of which the interval is made
    scale: float  # that the width is a multiple of
    error: float  # distance from the figure to what the interval should hold, on the scale of logarithms


def run_cases(runs: Sequence[PublishedRun]) -> Iterator[Case]:
    """Stretches of each run, beside the mean of the whole run; the scale is the deviation of the stretch's windows."""
    for run in runs:
        length = len(run.images)
        for count in COUNTS:
            if length < LONGER * count:
                break
            starts = np.unique(np.linspace(0, length - count, STRETCHES).astype(int))
            for start in starts.tolist():
                scale = spread.relative_sd(run.times(start, count).tolist())
                yield _case(run, count, scale, run.part_figure(start, count) / run.figure)


def repeat_cases(runs: Sequence[PublishedRun]) -> Iterator[Case]:
    """Pairs of repeats of one system, as long as the shorter of both and cut off at each number of windows.

    The scale is half the width of the interval that the windows of the one run give.
    """
    for repeats in _grouped(runs, "repeats_of").values():
        halves = [_Halves(run) for run in repeats]
        for one, other in itertools.permutations(range(len(repeats)), 2):
            run = repeats[one]
            length = min(len(run.images), len(repeats[other].images))
            counts = {count for count in COUNTS if count <= length}
            if length >= COUNTS[0]:
                counts.add(length)
            for count in sorted(counts):
                scale = halves[one].of(count)
                if scale is not None:
                    ratio = repeats[other].part_figure(0, count) / run.part_figure(0, count)
                    yield _case(run, count, scale, ratio)


def _case(run: PublishedRun, count: int, scale: float, ratio: float) -> Case:
    """A case of `count` windows of a run; `ratio` is the figure over what the interval should hold, or the inverse."""
    return Case(
        source=run.source,
        machine=run.machine,
        system=run.system,
        kind=run.kind,
        windows=count,
        scale=scale,
        error=abs(math.log(ratio)),
    )


class _Halves:
    """Half the widths of the intervals that the first windows of a run give, each reckoned once."""

    def __init__(self, run: PublishedRun) -> None:
        self.run = run
        self.known: dict[int, float | None] = {}

    def of(self, count: int) -> float | None:
        """Half the width of the first `count` windows, on the scale of logarithms; None of too uneven ones."""
        if count not in self.known:
            interval = series.series_interval(self.run.times(0, count).tolist())
            self.known[count] = None if interval is None else spread.half_width(interval)
        return self.known[count]


def _grouped(runs: Iterable[PublishedRun], field: str) -> dict[str, list[PublishedRun]]:
    """The runs by a field that is not None."""
    by_value: dict[str, list[PublishedRun]] = {}
    for run in runs:
        value = getattr(run, field)
        if value is not None:
            by_value.setdefault(value, []).append(run)
    return by_value


# ---- fitting


def fitted(cases: Sequence[Case]) -> dict[str, list[Width]]:
    """The widths by kind and numbers of windows; where too few systems have so many, those of fewer windows hold on."""
    by_kind: dict[str, list[Width]] = {}
    for kind in KINDS:
        by_kind[kind] = []
        for first, after in itertools.zip_longest(BRACKETS, BRACKETS[1:]):
            of_bracket = []
            for case in cases:
                if case.kind == kind and first <= case.windows and (after is None or case.windows < after):
                    of_bracket.append(case)
            if len({case.system for case in of_bracket}) >= MIN_SYSTEMS:
                by_kind[kind].append(_fitted_width(of_bracket, first))
    return by_kind


def _fitted_width(cases: Sequence[Case], first: int) -> Width:
    """The width of the least mean logarithm with which TARGET of the cases hold at each number of windows."""
    narrowest: Width | None = None
    least = math.inf
    scales = np.array([case.scale for case in cases])
    weights = _weights(cases)
    for power, least_share in itertools.product(POWERS, MIN_SHARES):
        factor = max(_factor(of_count, power, least_share) for of_count in _by_count(cases).values())
        width = Width(windows=first, factor=round(factor + 0.005, 2), power=power, least_share=least_share)
        halves = np.maximum(width.factor * scales**power, least_share)
        logarithm = float((weights * np.log(halves)).sum())
        if logarithm < least:
            least = logarithm
            narrowest = width
    assert narrowest is not None
    return narrowest


def _factor(cases: Sequence[Case], power: float, least_share: float) -> float:
    """The least factor with which TARGET of the cases hold, every system counting alike."""
    needed = []
    for case in cases:
        factor = 0.0
        if case.error > least_share:
            factor = case.error / max(case.scale, 1e-9) ** power
        needed.append(factor)
    order = np.argsort(needed)
    held = np.cumsum(_weights(cases)[order])
    at = min(int(np.searchsorted(held, TARGET)), len(order) - 1)
    return float(needed[order[at]])


def _by_count(cases: Sequence[Case]) -> dict[int, list[Case]]:
    """The cases by the greatest of COUNTS that is not over their number of windows."""
    by_count: dict[int, list[Case]] = {}
    for case in cases:
        count = max(count for count in COUNTS if count <= case.windows)
        by_count.setdefault(count, []).append(case)
    return by_count


def _weights(cases: Sequence[Case]) -> Array:
    """A weight for each case, the same in all for each system; they add up to 1."""
    systems: dict[str, int] = {}
    for case in cases:
        systems[case.system] = systems.get(case.system, 0) + 1
    return np.array([1 / (systems[case.system] * len(systems)) for case in cases])


# ---- on systems that are on neither side


class Coverage(NamedTuple):
    """The share of some cases whose intervals hold."""

    held: float  # share of the cases, every system counting alike
    systems: int
    half_width: float  # median, as a share of the figure


def held_out(cases: Sequence[Case]) -> dict[str, dict[int, Coverage]]:
    """The coverage by source and number of windows, each half of the systems judged by the widths of the other."""
    machines = _machines_of_first_half(cases)
    first = [case for case in cases if case.machine in machines]
    second = [case for case in cases if case.machine not in machines]
    holds: dict[str, dict[int, list[tuple[Case, float]]]] = {}
    for of_fit, tried in ((first, second), (second, first)):
        widths = fitted(of_fit)
        for count, of_count in _by_count(tried).items():
            for case in of_count:
                width = width_for(widths[case.kind], case.windows)
                if width is not None:
                    for source in (case.source, f"{ALL_SOURCES} {case.kind}"):
                        by_count = holds.setdefault(source, {})
                        by_count.setdefault(count, []).append((case, width.half_width(case.scale)))
    found: dict[str, dict[int, Coverage]] = {}
    for source in sorted(holds):
        found[source] = {count: _coverage(holds[source][count]) for count in sorted(holds[source])}
    return found


def _coverage(judged: Sequence[tuple[Case, float]]) -> Coverage:
    cases = [case for case, _ in judged]
    halves = np.array([half for _, half in judged])
    errors = np.array([case.error for case in cases])
    held = float((_weights(cases) * (errors <= halves)).sum())
    return Coverage(held=held, systems=len({case.system for case in cases}), half_width=float(np.median(halves)))


def _machines_of_first_half(cases: Sequence[Case]) -> set[str]:
    """Every other machine of each source, in an order by chance; what ran on one machine is on one side."""
    machines: dict[str, set[str]] = {}
    for case in cases:
        machines.setdefault(case.source, set()).add(case.machine)
    first: set[str] = set()
    for names in machines.values():
        first.update(sorted(names, key=_chance)[::2])
    return first


def _chance(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


# ---- like hosts


def like_host_ratios(runs: Sequence[PublishedRun]) -> list[float]:
    """The distances, on the scale of logarithms, of the means of each two hosts of one machine model and benchmark."""
    distances = []
    for like in _grouped(runs, "like_hosts").values():
        means = []
        for of_host in _grouped(like, "system").values():
            means.append(float(np.mean([run.figure for run in of_host])))
        for one, other in itertools.combinations(means, 2):
            distances.append(abs(math.log(one / other)))
    return distances


def smallest_difference(distances: Sequence[float]) -> float:
    """The share, rounded up to a tenth of a percent, below which LIKE_HOSTS of the pairs of like hosts lie."""
    return math.ceil(float(np.quantile(distances, LIKE_HOSTS)) * 1000) / 1000
