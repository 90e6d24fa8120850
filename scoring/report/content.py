"""The content of a report, as plain values: groups of runs and their figures, step times, scaling, verdict."""

import itertools
import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runlog.run import real
from runlog.verdict import Verdict
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure, rate_of
from scoring.figure.score import Score
from scoring.importers.text import work
from scoring.published.table import Published
from scoring.record import Record, Window, config_of

NOT_MEASURED = "not measured"
SHOWN_POINTS = 120  # of a curve or a table of windows; neighbours of a longer run are put together


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """One log of the report."""

    number: int  # 1-based, in the order given
    record: Record
    header_lines: dict[str, int] = field(default_factory=dict)  # section: line
    preamble: dict[str, tuple[Any, int]] = field(default_factory=dict)  # logged once before run_start: value, line
    figure: RunFigure | None = None
    span: tuple[int, int] = (1, 0)  # first and last line that may hold a measured window
    findings: dict[str, Any] | None = None  # the file's entry of `python -m compliance check --json`

    @property
    def measured(self) -> list[Window]:
        """The windows that the figure comes from."""
        first, last = self.span
        return [w for w in self.record.windows if first <= w.line <= last and w.phase != "warmup"]

    @property
    def seed(self) -> tuple[int, int] | None:
        """The run's seed and its line."""
        value, line = self.preamble.get("seed", (None, 0))
        return (value, line) if isinstance(value, int) else None

    @property
    def target(self) -> float | None:
        """Quality that the run's recipe asks for, where its header says."""
        settings = config_of(self.record).items()
        named = (real(entry.get("value")) for name, entry in settings if name.startswith("RECIPE.target_"))
        return next((target for target in named if target is not None), None)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Where the time of one step goes, in seconds; None where it is not known."""

    total_s: float
    data_wait_s: float | None
    all_reduce_s: float | None
    all_reduce_note: str
    rest: str  # what `rest_s` is: computation, and what could not be told from it

    @property
    def rest_s(self) -> float:
        """Seconds left for computation (and for all that is not known apart)."""
        return self.total_s - (self.data_wait_s or 0.0) - (self.all_reduce_s or 0.0)


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
        """The first run's record, for what all runs of the group share."""
        return self.runs[0].record


@dataclass(frozen=True)
class ScalingRow:
    """One device count beside the smallest one of the same system."""

    group: Group
    devices: int
    images_per_s: float
    speedup: float
    speedup_95: tuple[float, float] | None
    efficiency: float  # speedup by devices over the base's


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A published table's throughput over device counts, from one device on."""

    label: str
    rows: tuple[Published, ...]

    def efficiency(self, row: Published) -> float:
        """Speedup by devices of a row, against the one device."""
        return row.value / self.rows[0].value / (row.devices or 1)


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that any form of the report says."""

    groups: tuple[Group, ...]
    protocol: Protocol
    checks: tuple[Verdict, ...]
    verdict: tuple[str, str]  # status of the whole, and what it means
    scaling: tuple[tuple[ScalingRow, ...], ...]  # one table a system with two device counts or more
    curves: tuple[Curve, ...]
    curves_note: str
    mixture: tuple[Verdict, ...]  # of runs that stand side by side in one scaling table
    logs: Mapping[str, os.PathLike[str]]  # by a record's file, the path to read where that is another

    @property
    def runs(self) -> list[ReportedRun]:
        """The runs of all groups, in the order given."""
        return sorted((run for group in self.groups for run in group.runs), key=lambda run: run.number)

    @property
    def folder(self) -> str:
        """The folder that holds the logs given by absolute paths, with `/`; a page does not show it."""
        folders = [file.parent for run in self.runs if (file := Path(run.record.file)).is_absolute()]
        common = os.path.commonpath(folders) if folders else "/"
        return "" if common == "/" else f"{common}/"

    @property
    def headline(self) -> Group:
        """The group of the first figure: the one of the most devices."""
        return max(self.groups, key=lambda group: (group.score is not None, group.record.devices or 0))

    @property
    def warnings(self) -> list[Verdict]:
        """The warnings of all scores and scaling tables, each once."""
        of_scores = [warning for group in self.groups if group.score for warning in group.score.warnings]
        return list({(w.check, w.found, w.where): w for w in (*of_scores, *self.mixture)}.values())


# --------------------------------------------------------------------------------------------------- windows


@dataclass(frozen=True)
class Point:
    """One window, or neighbours put together, of a curve over time."""

    start: float
    end: float
    images_per_s: float
    measured: bool
    windows: tuple[Window, ...]


def timeline(run: ReportedRun) -> tuple[list[Point], str]:
    """Throughput of a run over time, and what its axis counts: `s` since run_start or the first window, or `step`."""
    record = run.record
    rated = [(w, r) for w in record.windows if (r := rate_of(record, w)) is not None and 0 < r < math.inf]
    if not rated:
        return [], "s"
    axis, spans = _spans([w for w, _ in rated], record)
    lines = {w.line for w in run.measured}
    rows = [(w.line in lines, w, rate, span) for (w, rate), span in zip(rated, spans, strict=True)]
    size = math.ceil(len(rows) / SHOWN_POINTS)
    points: list[Point] = []
    for measured, part in itertools.groupby(rows, key=operator.itemgetter(0)):
        alike = list(part)
        for at in range(0, len(alike), size):
            _, windows, rates, ends = zip(*alike[at : at + size], strict=True)
            weights = work(windows)
            units = math.fsum(weight / rate for weight, rate in zip(weights, rates, strict=True))
            mean = sum(weights) / units  # times of like work add up
            points.append(Point(ends[0][0], ends[-1][1], mean, measured, windows))
    return points, axis


def _spans(windows: Sequence[Window], record: Record) -> tuple[str, list[tuple[float, float]]]:
    """(start, end) of each window on the axis that the log allows."""
    ends = [w.end_s for w in windows if w.end_s is not None]
    if len(ends) == len(windows) and ends == sorted(ends) and ends[0] != ends[-1]:
        begins = [end - (w.seconds or 0.0) for end, w in zip(ends, windows, strict=True)]
        origin = record.run_start_s if record.run_start_s is not None else begins[0]
        return "s", [(begin - origin, end - origin) for begin, end in zip(begins, ends, strict=True)]
    lengths = [w.seconds for w in windows if w.seconds is not None]
    if len(lengths) == len(windows):
        return "s", list(itertools.pairwise(itertools.accumulate(lengths, initial=0.0)))
    steps = [w.step for w in windows if w.step is not None]
    if len(steps) == len(windows) and steps == sorted(set(steps)):
        return "step", [(float(step - (w.steps or 0)), float(step)) for step, w in zip(steps, windows, strict=True)]
    return "row", [(float(at), at + 1.0) for at in range(len(windows))]
