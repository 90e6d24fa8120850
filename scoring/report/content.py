"""The content of a report, as plain values: groups of runs and their figures, step times, scaling, verdict."""

import itertools
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from runlog.json_types import JsonObject
from runlog.verdict import Verdict
from scoring.figure.protocols import Protocol
from scoring.figure.rates import rate_of
from scoring.figure.run import RunFigure
from scoring.figure.score import Score
from scoring.importers.checks import MAX_PLAUSIBLE_RATIO
from scoring.importers.text import steps_as_weights, weighted_mean
from scoring.published.table import Published
from scoring.record import Record, Window, recipe_target

NOT_MEASURED = "not measured"
SHORT_STEP_SHARE = 0.05  # of the measured windows: they have shorter steps than `short_s`
LONG_STEP_SHARE = 0.95  # of the measured windows: they have shorter steps than `long_s`
SHOWN_SECONDS = 0.05  # less than this is shown as 0.0 s; stamps are of whole milliseconds
SHOWN_POINTS = 120  # of a curve or a table of windows; neighbours of a longer run are put together


@dataclass(frozen=True)
class Logged:
    """A value of a log and its line; both are None if the log does not say it."""

    value: Any
    line: int | None


NOT_LOGGED = Logged(None, None)


class Seed(NamedTuple):
    """The seed of a run and the line that says it."""

    value: int
    line: int | None


def values_of(windows: Iterable[Window], name: str) -> list[Any]:
    """Return the values of one field of some windows.

    Args:
        windows: Parts of runs between two printed rows of the log.
        name: Name of the field of `Window`, such as "loss".

    Returns:
        The values, in the order of the windows. Windows that do not say it are left out.
    """
    values = []
    for window in windows:
        value = getattr(window, name)
        if value is not None:
            values.append(value)
    return values


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """One log of the report."""

    number: int  # 1-based, in the order given
    record: Record
    path: str | os.PathLike[str]  # where to read the log, which may not be at the record's `file`
    given_folder: str | None = None  # that the log was found in; None: it was given by itself
    header_lines: dict[str, int] = field(default_factory=dict)  # section: line
    start: Logged = NOT_LOGGED  # the time of the log's first event, in Unix seconds
    preamble: dict[str, Logged] = field(default_factory=dict)  # events before run_start, by their keys
    figure: RunFigure | None = None
    span: tuple[int, int] = (1, 0)  # first and last line that may hold a measured window
    findings: JsonObject | None = None  # the file's entry of `python -m compliance check --json`

    @property
    def has_failed(self) -> bool:
        """Return whether the log says that its run ended without success."""
        return self.record.status not in (None, "success")  # None: the log does not say it

    def is_measured(self, window: Window) -> bool:
        """Return whether the figure of the run comes from a window, among others.

        Args:
            window: A window of the run.
        """
        first_line, last_line = self.span
        return first_line <= window.line <= last_line and window.phase != "warmup"

    @property
    def measured(self) -> list[Window]:
        """Return the windows that the figure comes from."""
        return [window for window in self.record.windows if self.is_measured(window)]

    @property
    def mean_power_w(self) -> float | None:
        """Return the mean power over the time of the measured windows, in W; None if no window says both."""
        watts = []
        seconds = []
        for window in self.measured:
            if window.power_w is not None and window.seconds:
                watts.append(window.power_w)
                seconds.append(window.seconds)
        return weighted_mean(watts, seconds) if watts else None

    @property
    def seed(self) -> Seed | None:
        """Return the run's seed and its line; None if the log has no seed that is a whole number."""
        seed = self.preamble.get("seed", NOT_LOGGED)
        if not isinstance(seed.value, int):
            return None
        return Seed(seed.value, seed.line)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The parts of the time of one step, in seconds; None for a part that is not known."""

    total_s: float
    data_wait_s: float | None
    all_reduce_s: float | None
    all_reduce_note: str
    rest: str  # what `rest_s` is: computation, and what could not be told from it

    @property
    def rest_s(self) -> float:
        """Return the seconds of a step that are left for computation and for the parts that are not known."""
        return self.total_s - (self.data_wait_s or 0.0) - (self.all_reduce_s or 0.0)


class StepQuantiles(NamedTuple):
    """How long the steps of a group's measured windows take, each window with its mean step."""

    short_s: float  # 5 % of the windows have shorter steps
    median_s: float
    long_s: float  # 95 % of the windows have shorter steps: the 96th of 100 times, and the longest of at most 20


@dataclass(frozen=True, kw_only=True)
class Group:
    """Repeated runs of one system at one shape, and their figure."""

    name: str
    runs: tuple[ReportedRun, ...]
    score: Score | None
    problem: str | None  # why there is no figure, or not the one that the protocol asks for
    step_time: StepTime | None = None

    @property
    def record(self) -> Record:
        """Return the first run's record. Use it for what all runs of the group share."""
        return self.runs[0].record

    @property
    def measured(self) -> list[Window]:
        """Return the measured windows of all runs, run by run."""
        return list(itertools.chain.from_iterable(run.measured for run in self.runs))

    @property
    def step_quantiles(self) -> StepQuantiles | None:
        """Return how long the steps of the measured windows take; None if no window says it."""
        times_s: list[float] = sorted(values_of(self.measured, "step_s"))
        if not times_s:
            return None
        return StepQuantiles(
            short_s=times_s[int(SHORT_STEP_SHARE * len(times_s))],
            median_s=statistics.median(times_s),
            long_s=times_s[int(LONG_STEP_SHARE * len(times_s))],
        )


def runs_of(groups: Iterable[Group]) -> list[ReportedRun]:
    """Return the runs of all the groups, group by group."""
    return list(itertools.chain.from_iterable(group.runs for group in groups))


def shared_target(runs: Iterable[ReportedRun]) -> float | None:
    """Return the quality that all of some runs train to, such as an accuracy of 0.759.

    Args:
        runs: The runs.

    Returns:
        The target; None if the targets differ, or if a log does not say its own.
    """
    targets = {recipe_target(run.record) for run in runs}
    if len(targets) == 1:
        return targets.pop()
    return None


def warnings_of_scores(groups: Iterable[Group]) -> list[Verdict]:
    """Return the warnings of all groups' scores. A group without a score has none."""
    warnings: list[Verdict] = []
    for group in groups:
        if group.score:
            warnings += group.score.warnings
    return warnings


@dataclass(frozen=True)
class ScalingRow:
    """One device count compared with the smallest one of the same system."""

    group: Group
    devices: int
    images_per_s: float
    speedup: float
    speedup_95: tuple[float, float] | None
    rate_of_a_device: float  # over that of the base: 0.9 for 1.8 times the throughput on 2 times the devices

    @property
    def efficiency(self) -> float | None:
        """The scaling efficiency, which is the rate of a device over the base's; None if it is too high to be true."""
        return None if self.rate_of_a_device > MAX_PLAUSIBLE_RATIO else self.rate_of_a_device


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A published table's throughput over device counts, from one device on."""

    label: str
    rows: tuple[Published, ...]

    def efficiency(self, row: Published) -> float:
        """Return the speedup of a row over one device, divided by the row's devices: 1.8 on 2 devices -> 0.9."""
        return row.value / self.rows[0].value / (row.devices or 1)


class Overall(NamedTuple):
    """The status of all checks together, and what it means."""

    status: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that any form of the report says."""

    groups: tuple[Group, ...]
    protocol: Protocol
    checks: tuple[Verdict, ...]
    verdict: Overall
    scaling: tuple[tuple[ScalingRow, ...], ...]  # one table a system with two device counts or more
    curves: tuple[Curve, ...]
    curves_note: str
    mixture: tuple[Verdict, ...]  # warnings about the scaling tables

    @property
    def runs(self) -> list[ReportedRun]:
        """Return the runs of all groups, in the order given."""
        return sorted(runs_of(self.groups), key=_number_of)

    @property
    def folder(self) -> str:
        """Return the deepest folder that holds all logs given by absolute paths, ending in `/`: "/data/logs/".

        The page leaves this folder out of the paths that it shows.

        Returns:
            The folder. It is empty if no log has an absolute path, or if only `/` holds them all.
        """
        files = [Path(run.record.file) for run in self.runs]
        folders = [file.parent for file in files if file.is_absolute()]
        if not folders:
            return ""
        common = os.path.commonpath(folders)
        if common == "/":
            return ""
        return f"{common}/"

    @property
    def headline(self) -> Group:
        """Return the group whose figure the page shows first: of those that have one, the one with most devices."""
        return max(self.groups, key=_prominence)

    @property
    def warnings(self) -> list[Verdict]:
        """Return the warnings of all scores and scaling tables. Equal ones are returned once."""
        warnings = [*warnings_of_scores(self.groups), *self.mixture]
        each_once = {(warning.check, warning.found, warning.where): warning for warning in warnings}
        return list(each_once.values())


def _number_of(run: ReportedRun) -> int:
    """Return the number of a run, to sort runs by."""
    return run.number


def _prominence(group: Group) -> tuple[bool, int]:
    """Return a key that is greatest for the headline: a group with a figure first, then one with more devices."""
    return group.score is not None, group.record.devices or 0


# --------------------------------------------------------------------------------------------------- windows


@dataclass(frozen=True)
class Point:
    """One window, or neighbours put together, of a curve over time."""

    start: float
    end: float
    images_per_s: float
    measured: bool
    windows: tuple[Window, ...]


class Timeline(NamedTuple):
    """Throughput of a run over time, and what its axis counts: `s`, `step` or `row`.

    Seconds are since run_start, or since the first window if the log has no run_start.
    """

    points: list[Point]
    axis_unit: str


class _RatedWindow(NamedTuple):
    """A window with its rate, its start and end on the axis, and whether it counts for the run's figure."""

    window: Window
    images_per_s: float
    start: float
    end: float
    measured: bool


_Measurable = TypeVar("_Measurable", Point, _RatedWindow)


class _Axis(NamedTuple):
    """The unit that an axis counts, and the start and end of each window on it."""

    unit: str
    spans: list[tuple[float, float]]


def timeline(run: ReportedRun) -> Timeline:
    """Return the throughput of a run over time as points to draw.

    A point is one window, which is the steps between two printed rows of the log. In a long run several neighbouring
    windows share a point, so that there are about 120 points (SHOWN_POINTS) or fewer. A measured window, which counts
    for the run's figure, shares no point with one that does not.

    Args:
        run: A run of the report.

    Returns:
        The points, and what their starts and ends count: "s", "step" or "row". There are no points if the log has no
        rates.
    """
    rates = _finite_rates(run.record)
    if not rates:
        return Timeline([], "s")
    axis = _axis([window for window, _ in rates], run.record)
    rated_windows = []
    for (window, rate), (start, end) in zip(rates, axis.spans, strict=True):
        rated_windows.append(_RatedWindow(window, rate, start, end, measured=run.is_measured(window)))
    return Timeline(_as_points(rated_windows), axis.unit)


def _finite_rates(record: Record) -> list[tuple[Window, float]]:
    """Return the windows of a run that have a finite rate above 0, each with this rate.

    Args:
        record: The run as its log describes it.

    Returns:
        Pairs of a window, which is the steps between two printed rows of the log, and its rate in images/s.
    """
    rates = []
    for window in record.windows:
        rate = rate_of(record, window)
        if rate is not None and 0 < rate < math.inf:
            rates.append((window, rate))
    return rates


def _as_points(rated_windows: Sequence[_RatedWindow]) -> list[Point]:
    """Return windows as points to draw. If there are more than SHOWN_POINTS windows, neighbours share a point.

    Each stretch of measured or of other windows has points of its own, so there may be a few more than SHOWN_POINTS:
    at most one more for each stretch.

    Args:
        rated_windows: Windows of one run in their order, with their rates.
    """
    windows_per_point = math.ceil(len(rated_windows) / SHOWN_POINTS)
    points = []
    for stretch in stretches(rated_windows):  # successive windows, all of them measured or none
        for first in range(0, len(stretch), windows_per_point):
            points.append(_as_one_point(stretch[first : first + windows_per_point]))
    return points


def stretches(items: Sequence[_Measurable]) -> list[list[_Measurable]]:
    """Split windows or points into lists of successive ones that are all measured or all not measured.

    The order is kept: measured, measured, not, measured gives [measured, measured], [not], [measured].

    Args:
        items: Windows or points of one run. `measured` says of each whether it counts for the run's figure.
    """
    lists: list[list[_Measurable]] = []
    for item in items:
        continues_last_list = bool(lists) and lists[-1][-1].measured == item.measured
        if continues_last_list:
            lists[-1].append(item)
        else:
            lists.append([item])
    return lists


def _as_one_point(neighbours: Sequence[_RatedWindow]) -> Point:
    """Return one point for neighbouring windows, with the mean of their rates over time.

    A window takes time in proportion to its steps divided by its rate. If a window does not say its steps, each counts
    as one.

    Args:
        neighbours: Successive windows, all measured or none, at least one.
    """
    windows = tuple(rated.window for rated in neighbours)
    steps = steps_as_weights(windows)
    steps_over_rates = math.fsum(count / rated.images_per_s for count, rated in zip(steps, neighbours, strict=True))
    return Point(
        start=neighbours[0].start,
        end=neighbours[-1].end,
        images_per_s=sum(steps) / steps_over_rates,
        measured=neighbours[0].measured,  # as all of them
        windows=windows,
    )


def _axis(windows: Sequence[Window], record: Record) -> _Axis:
    """Return the horizontal axis of a plot of windows: its unit, and each window's start and end on it.

    The first of these that the log allows is taken:

    - "s", by the times at which the windows ended
    - "s", by how long each window took, one after the other from 0 on
    - "step", by the last step of each window
    - "row", by its place in the list from 0 on

    Args:
        windows: Windows of one run in their order.
        record: The run as its log describes it. If it says when the run started, the end times are counted from there.
    """
    axis = _axis_of_end_times(windows, record) or _axis_of_lengths(windows) or _axis_of_steps(windows)
    if axis is not None:
        return axis
    spans_of_rows = [(float(index), index + 1.0) for index in range(len(windows))]
    return _Axis("row", spans_of_rows)


def _axis_of_end_times(windows: Sequence[Window], record: Record) -> _Axis | None:
    """Return a horizontal axis of the times at which windows ended.

    Args:
        windows: Windows of one run in their order.
        record: The run as its log describes it. If it says when the run started, the times are counted from there.

    Returns:
        The axis; None unless all windows say their end, and the times never go back and are not all equal.
    """
    ends_s: list[float] = values_of(windows, "end_s")
    all_say_it = len(ends_s) == len(windows)
    times_go_on = ends_s == sorted(ends_s) and len(set(ends_s)) > 1
    if all_say_it and times_go_on:
        return _Axis("s", _spans_of_time(windows, ends_s, record.run_start_s))
    return None


def _axis_of_lengths(windows: Sequence[Window]) -> _Axis | None:
    """Return a horizontal axis of the time that each window took, one after the other from 0 s on.

    Args:
        windows: Windows of one run in their order.

    Returns:
        The axis; None unless all windows say their time.
    """
    lengths_s: list[float] = values_of(windows, "seconds")
    if len(lengths_s) != len(windows):
        return None
    bounds_s = itertools.accumulate(lengths_s, initial=0.0)  # the start of the first window, then the end of each
    return _Axis("s", list(itertools.pairwise(bounds_s)))


def _axis_of_steps(windows: Sequence[Window]) -> _Axis | None:
    """Return a horizontal axis of the steps at which windows ended.

    Args:
        windows: Windows of one run in their order.

    Returns:
        The axis; None unless all windows say their last step, and each step is a later one.
    """
    steps: list[int] = values_of(windows, "step")
    all_say_it = len(steps) == len(windows)
    steps_rise = steps == sorted(set(steps))
    if all_say_it and steps_rise:
        return _Axis("step", _spans_of_steps(windows, steps))
    return None


def _spans_of_time(
    windows: Sequence[Window], ends: Sequence[float], run_start_s: float | None
) -> list[tuple[float, float]]:
    """Return the start and the end of each window in seconds since the start of the run.

    Args:
        windows: Windows of one run. One that does not say how long it took starts at its end.
        ends: Time stamp at the end of each window, in seconds.
        run_start_s: Time stamp of the start of the run. None: the start of the first window takes its place.

    Returns:
        A pair for each window. A window that seems to start less than SHOWN_SECONDS before the run starts at 0, because
        stamps are rounded.
    """
    begins = [end - (window.seconds or 0.0) for end, window in zip(ends, windows, strict=True)]
    origin = begins[0] if run_start_s is None else run_start_s
    spans = []
    for begin, end in zip(begins, ends, strict=True):
        start = begin - origin
        is_before_run_by_rounding = -SHOWN_SECONDS < start < 0
        if is_before_run_by_rounding:
            start = 0.0
        spans.append((start, end - origin))
    return spans


def _spans_of_steps(windows: Sequence[Window], steps: Sequence[int]) -> list[tuple[float, float]]:
    """Return the step before each window and the step at its end.

    Args:
        windows: Windows of one run. If one does not say its number of steps, both of its steps are that at its end.
        steps: Last step of each window.
    """
    return [(float(step - (window.steps or 0)), float(step)) for step, window in zip(steps, windows, strict=True)]
