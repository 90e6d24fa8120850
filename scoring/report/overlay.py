"""The plots of the first screen: the throughput of all runs over time, from zero and enlarged."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scoring.report import plots
from scoring.report.blocks import Figure, Paragraph
from scoring.report.content import Point, Report, ReportedRun, timeline
from scoring.report.panel import MAX_LINES, Plot
from scoring.report.text import range_in_words

NO_RATES = "Throughput over time: not shown; the logs have neither rates nor images and seconds (give --batch)."
NO_ROWS = "Throughput over time: not shown; the logs have no row of training figures."


class _DrawnRun(NamedTuple):
    """A run in the plot of all runs."""

    run: ReportedRun
    style_index: int  # chooses its colour and marker, which are the same in all plots
    points: list[Point]  # those of its throughput that are drawn
    axis_unit: str  # what the points' starts and ends count: "s", "step" or "row"


def figures(report: Report) -> list[Figure | Paragraph]:
    """Return the plots at the top of the page, which show the throughput of the runs over time.

    Args:
        report: The content of the report.

    Returns:
        One or two elements:

        - a plot of whole runs, with a vertical axis that starts at 0; if no log has rates, a paragraph that says so
        - a plot of the measured windows alone, with a vertical axis that does not start at 0; left out if no window
          with a rate was measured
    """
    runs_with_rates: list[_DrawnRun] = []
    for run in report.runs:
        points, axis_unit = timeline(run)  # the throughput over time; no points if the log has no rates
        if points:
            style_index = len(runs_with_rates)  # 0 for the first run with rates, then 1 and so on
            runs_with_rates.append(_DrawnRun(run, style_index, points, axis_unit))
    plot_or_paragraph = _plot_from_zero(report, runs_with_rates)  # the paragraph if `runs_with_rates` is empty
    # `_plot_of_measured_windows` returns a list of one plot or of none.
    return [plot_or_paragraph, *_plot_of_measured_windows(report, runs_with_rates)]


def _plot_from_zero(report: Report, runs: Sequence[_DrawnRun]) -> Figure | Paragraph:
    """Return a plot of the runs' throughput over time, with a vertical axis from 0; a paragraph if no run has rates.

    The first run sets the units of the plot, such as images/s over seconds. A run in other units, such as images/s over
    steps, is left out. Of the remaining runs, the first 16 (MAX_LINES) are drawn.

    Args:
        report: The content of the report.
        runs: The runs whose logs have rates, in the order of the report.

    Returns:
        The plot. If `runs` is empty, a paragraph that says why there is no plot.
    """
    drawn_runs = _with_points_on_same_axes(runs)  # at most 16 runs with the units of the first
    if not drawn_runs:
        return Paragraph(text=why_no_plot(report.runs), absent=True)
    unit = unit_of_rates(drawn_runs[0].run)
    return Figure(
        name="overlay",
        title=_title(drawn_runs),
        caption=f"Throughput in {unit}: {_ranges_in_words(report, drawn_runs)}.",
        draw=_draw_function(report, drawn_runs, starts_at_zero=True),
    )


def why_no_plot(runs: Sequence[ReportedRun]) -> str:
    """Return why the throughput of runs over time cannot be drawn, with what to do if something can be done."""
    some_log_has_rows = any(run.record.windows for run in runs)
    return NO_RATES if some_log_has_rows else NO_ROWS


def _plot_of_measured_windows(report: Report, runs: Sequence[_DrawnRun]) -> list[Figure]:
    """Return a plot of the throughput in the measured windows alone, with a vertical axis that does not start at 0.

    A window is the steps between two printed rows of a log. The plot leaves out the warm-up, and the room between 0 and
    the lowest rate, so small differences between the windows can be seen.

    Args:
        report: The content of the report.
        runs: The runs whose logs have rates.

    Returns:
        A list with the plot; an empty list if no window with a rate was measured.
    """
    measured_parts = [_measured_part(run) for run in runs]  # each run with the points of its measured windows only
    drawn_runs = _with_points_on_same_axes(measured_parts)  # at most 16 of those with points, with equal axes
    if not drawn_runs:
        return []
    unit = unit_of_rates(drawn_runs[0].run)
    head = f"Measured windows in {unit}, on an axis that does not start at 0"
    return [
        Figure(
            name="overlay-zoomed",
            title=f"{_title(drawn_runs)}, measured windows enlarged",
            caption=f"{head}: {_ranges_in_words(report, drawn_runs)}.",
            draw=_draw_function(report, drawn_runs, starts_at_zero=False),
        )
    ]


def _measured_part(drawn: _DrawnRun) -> _DrawnRun:
    """Return a run to draw with its measured points only."""
    return drawn._replace(points=[point for point in drawn.points if point.measured])


def _with_points_on_same_axes(runs: Sequence[_DrawnRun]) -> list[_DrawnRun]:
    """Return the runs to draw in one plot: those with points and with the same axes as the first run with points.

    The horizontal axis of a run counts seconds, steps or rows. The vertical axis of a run counts images/s or images/s
    per device.

    Args:
        runs: Runs, each with the points of its throughput. The points of a run may be an empty list.

    Returns:
        The first of these runs, at most 16 (MAX_LINES); an empty list if no run has points.
    """
    with_points = [run for run in runs if run.points]
    if not with_points:
        return []
    axes = _axes_of(with_points[0])  # for example ("s", "images/s")
    on_same_axes = [run for run in with_points if _axes_of(run) == axes]
    return on_same_axes[:MAX_LINES]


def _axes_of(drawn: _DrawnRun) -> tuple[str, str]:
    """Return what the horizontal axis of a run counts, and the unit of its rates."""
    return drawn.axis_unit, unit_of_rates(drawn.run)


def _title(drawn_runs: Sequence[_DrawnRun]) -> str:
    """Return the title of a plot of one or several runs."""
    return "Throughput of all runs over time" if len(drawn_runs) > 1 else "Throughput over time"


def _ranges_in_words(report: Report, drawn_runs: Sequence[_DrawnRun]) -> str:
    """Return the lowest and the highest rate of each run of a plot, and how many runs of the report are not in it.

    Args:
        report: The content of the report.
        drawn_runs: The runs of the plot, with the points that are drawn.
    """
    ranges = "; ".join(_range_of(drawn.run, drawn.points) for drawn in drawn_runs)
    runs_not_in_plot = len(report.runs) - len(drawn_runs)
    if runs_not_in_plot > 0:
        return f"{ranges}; {runs_not_in_plot} more below"
    return ranges


def _draw_function(report: Report, drawn_runs: Sequence[_DrawnRun], *, starts_at_zero: bool) -> Callable[[Plot], None]:
    """Return a function that draws the runs' throughput on a plot, which is called when the page is written as HTML.

    Args:
        report: The content of the report.
        drawn_runs: Runs with the points to draw, at least one. All have the same axes.
        starts_at_zero: Whether the vertical axis begins at 0. Otherwise it only spans the rates and the score.
    """
    first = drawn_runs[0]  # all have its axis unit and its unit of rates
    return functools.partial(
        plots.throughput,
        runs=[plots.RunOfPlot(_label(report, drawn.run), drawn.points, drawn.style_index) for drawn in drawn_runs],
        axis_unit=first.axis_unit,
        rate_unit=unit_of_rates(first.run),
        score=_score_of_only_group(report),  # a dashed line; None if the report has several groups of repeated runs
        starts_at_zero=starts_at_zero,
    )


def _range_of(run: ReportedRun, points: Sequence[Point]) -> str:
    """Return the lowest and the highest rate of a run in words: "run 1 340.1 to 352.8"."""
    return f"run {run.number} {range_in_words(point.images_per_s for point in points)}"


def _score_of_only_group(report: Report) -> float | None:
    """Return the score of a report with a single group of repeated runs, for a plot to show as a horizontal line.

    Args:
        report: The content of the report.

    Returns:
        The score; None if there are several groups, if the scores are not throughputs, or if there is no score.
    """
    score = report.headline.score
    is_only_group = len(report.groups) == 1
    is_throughput = report.protocol.figure == "throughput"
    if is_only_group and is_throughput and score is not None:
        return score.value
    return None


def _label(report: Report, run: ReportedRun) -> str:
    """Return a run's name in a legend, with its number of devices if the report has several groups of runs."""
    if len(report.groups) > 1 and run.record.devices:
        return f"run {run.number} ({run.record.devices} dev.)"
    return f"run {run.number}"


def unit_of_rates(run: ReportedRun) -> str:
    """Return the unit of a run's rates as the page shows them: "images/s" of all devices, or "images/s per device".

    Args:
        run: A run of the report. The rates are per device only if the log gives them so, and not the number of devices.
    """
    if run.record.rate_scope == "device" and run.record.devices is None:
        return "images/s per device"
    return "images/s"
