"""The plots of the first screen: the throughput of all runs over time, from zero and enlarged."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scoring.report import plots
from scoring.report.blocks import Figure, Paragraph
from scoring.report.content import Point, Report, ReportedRun, timeline
from scoring.report.text import bounds

MOST_OVERLAID = 16  # runs in one plot: more have no marker and dash of their own
NO_RATES = "Throughput over time: not shown; the logs have neither rates nor images and seconds (give --batch)."


class _Drawn(NamedTuple):
    """A run in the plot of all runs."""

    run: ReportedRun
    points: list[Point]
    axis: str


def figures(report: Report) -> list[Figure | Paragraph]:
    """Return the plots of the first screen: the throughput of the runs over time from zero, then enlarged."""
    runs = []
    for run in report.runs:
        points, axis = timeline(run)
        runs.append(_Drawn(run, points, axis))
    return [_from_zero(report, runs), *_enlarged(report, runs)]


def _from_zero(report: Report, runs: Sequence[_Drawn]) -> Figure | Paragraph:
    """Return a plot of the runs' throughput over time, from zero; a sentence where the logs have no rates."""
    drawn_runs = _on_one_axis(runs)
    if not drawn_runs:
        return Paragraph(text=NO_RATES, absent=True)
    unit = unit_of(drawn_runs[0].run)
    return Figure(
        name="overlay",
        title=_title(drawn_runs),
        caption=f"Throughput in {unit}: {_ranges_in_words(report, drawn_runs)}.",
        draw=_draw_function(report, drawn_runs, starts_at_zero=True),
    )


def _enlarged(report: Report, runs: Sequence[_Drawn]) -> list[Figure]:
    """Return a plot of the runs' measured windows alone, in a list; an empty list where no window was measured.

    Its vertical axis spans their rates alone, so that small differences show. An axis that reached from 0, or to the
    rates of the warm-up, would hide them.
    """
    with_measured_points = []
    for drawn in runs:
        measured = [point for point in drawn.points if point.measured]
        with_measured_points.append(drawn._replace(points=measured))
    drawn_runs = _on_one_axis(with_measured_points)
    if not drawn_runs:
        return []
    unit = unit_of(drawn_runs[0].run)
    head = f"Measured windows in {unit}, on an axis that does not start at 0"
    return [
        Figure(
            name="overlay-zoomed",
            title=f"{_title(drawn_runs)}, measured windows enlarged",
            caption=f"{head}: {_ranges_in_words(report, drawn_runs)}.",
            draw=_draw_function(report, drawn_runs, starts_at_zero=False),
        )
    ]


def _on_one_axis(runs: Sequence[_Drawn]) -> list[_Drawn]:
    """Return the runs that have points on the same axis as the first one that has any, MOST_OVERLAID at most."""
    with_points = [drawn for drawn in runs if drawn.points]
    if not with_points:
        return []
    axis = with_points[0].axis
    return [drawn for drawn in with_points if drawn.axis == axis][:MOST_OVERLAID]


def _title(drawn_runs: Sequence[_Drawn]) -> str:
    return "Throughput of all runs over time" if len(drawn_runs) > 1 else "Throughput over time"


def _ranges_in_words(report: Report, drawn_runs: Sequence[_Drawn]) -> str:
    """Return the least and the greatest rate of each run of a plot, and how many runs are not in it."""
    ranges = "; ".join(_range_of(drawn.run, drawn.points) for drawn in drawn_runs)
    not_shown = len(report.runs) - len(drawn_runs)
    return f"{ranges}; {not_shown} more below" if not_shown else ranges


def _draw_function(
    report: Report, drawn_runs: Sequence[_Drawn], *, starts_at_zero: bool
) -> Callable[[plots.Plot], None]:
    """Return the function that draws the plot of several runs, on a vertical axis from 0 or around the rates alone."""
    return functools.partial(
        plots.throughput,
        runs=[(_label(report, drawn.run), drawn.points) for drawn in drawn_runs],
        axis=drawn_runs[0].axis,
        unit=unit_of(drawn_runs[0].run),
        value=_only_figure(report),
        from_zero=starts_at_zero,
    )


def _range_of(run: ReportedRun, points: Sequence[Point]) -> str:
    """Return the least and the greatest rate of a run in words."""
    return f"run {run.number} {bounds(point.images_per_s for point in points)}"


def _only_figure(report: Report) -> float | None:
    """Return the throughput of a report of one system, which the plot shows as a level; None of several systems."""
    score = report.headline.score
    if len(report.groups) != 1 or report.protocol.figure != "throughput" or score is None:
        return None
    return score.value


def _label(report: Report, run: ReportedRun) -> str:
    """Return a run's name in a legend, with its devices where the runs differ in them."""
    if len(report.groups) > 1 and run.record.devices:
        return f"run {run.number} ({run.record.devices} dev.)"
    return f"run {run.number}"


def unit_of(run: ReportedRun) -> str:
    """Return the unit of the rates of a run's windows."""
    if run.record.rate_scope == "device" and run.record.devices is None:
        return "images/s per device"
    return "images/s"
