"""Plots as inline SVG: colours are the page's own variables, so that they follow dark and light mode.

`panel.py` has the panel that each of them is drawn on.
"""

import functools
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from runlog.digits import six_digits
from scoring.report.blocks import Figure
from scoring.report.content import Point, stretches
from scoring.report.panel import GREATEST_DRAWN, MAX_LINES, MAX_MARKERS, Plot
from scoring.report.svg import INK, MUTED, SERIES_COLORS, for_page
from scoring.report.text import time_unit

DOTTED = (0, (1, 1.5))
MAX_TICKS = 8  # of device counts

Points: TypeAlias = Sequence[tuple[float, float]]  # x and y of each
NamedPoints: TypeAlias = tuple[str, Points]  # a label, and the points
Series: TypeAlias = Sequence[NamedPoints]


class RunOfPlot(NamedTuple):
    """A run in a plot of throughput over time."""

    label: str
    points: Sequence[Point]
    style_index: int = 0  # of the run's line: it chooses the colour and the marker


@functools.cache
def _matplotlib() -> Any:
    """Import matplotlib and apply the page's settings, at the first plot; return the module."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns if it cannot write to the home folder
    import matplotlib
    import matplotlib.figure

    matplotlib.rc_file(Path(__file__).with_name("plots.mplstyle"))
    return matplotlib


def drawn(figure: Figure) -> Plot:
    """Draw a figure of the page, and return the plot with its SVG and its legend.

    Args:
        figure: The figure, with the function that draws it into a plot and adds the entries of the legend.
    """
    canvas = _matplotlib().figure.Figure()
    drawing = Plot(figure=canvas, axes=canvas.add_axes((0, 0, 1, 1)))
    drawing.size()  # sets the usual height, and moves the axes to leave room for their labels
    figure.draw(drawing)
    stream = io.StringIO()
    left_out: dict[str, None] = dict.fromkeys(("Date", "Creator", "Type", "Format"))  # of matplotlib and the time
    canvas.savefig(stream, format="svg", metadata=left_out)
    drawing.svg = for_page(stream.getvalue(), figure.name, figure.title, description=figure.words or figure.caption)
    return drawing


def throughput(
    drawing: Plot,
    *,
    runs: Sequence[RunOfPlot],
    axis_unit: str,
    rate_unit: str,
    score: float | None,
    starts_at_zero: bool = True,
) -> None:
    """Draw the throughput of one or several runs over time, a line for each.

    Args:
        drawing: The plot to draw on.
        runs: The runs with their points, at least one run, each with at least one point.
        axis_unit: What the horizontal axis counts: "s", "step" or "row".
        rate_unit: Unit of the throughput, such as "images/s".
        score: The throughput of all the runs together, in `rate_unit`, for a dashed horizontal line; None for no line.
        starts_at_zero: Whether the vertical axis begins at 0. Otherwise it only spans the rates and the score.
    """
    axis = _shown_axis(axis_unit, longest=max(run.points[-1].end for run in runs))  # may show seconds as minutes
    is_single = len(runs) == 1
    for run in runs:
        shown_run = run._replace(label="measured") if is_single else run  # the legend need not name a single run
        _draw_run(drawing, shown_run, axis, shaded=is_single)
    shown_rates = _rates_of(runs)
    if score is not None:
        drawing.draw_level(score)
        drawing.add_to_legend("╌", INK, "figure of the run" if is_single else "figure")
        shown_rates = [*shown_rates, score]

    if starts_at_zero:
        drawing.start_at_zero(shown_rates)
        first_start = min(axis.place(run.points[0].start) for run in runs)
        drawing.axes.set_xlim(left=min(0.0, first_start))  # a point may begin before run_start, which is at 0
    else:
        drawing.enclose(shown_rates)
    drawing.name_axes(x=axis.name, y=rate_unit)


def _rates_of(runs: Sequence[RunOfPlot]) -> list[float]:
    """Return the rates of all points of several runs."""
    rates: list[float] = []
    for run in runs:
        rates += [point.images_per_s for point in run.points]
    return rates


class _ShownAxis(NamedTuple):
    """The horizontal axis of a plot over time, which may show minutes of points that count seconds."""

    name: str
    unit_size: float  # of the axis, in the unit of the points: 60 for minutes and seconds

    def place(self, of_point: float) -> float:
        """Return a start or an end of a point, in the unit of the axis."""
        return of_point / self.unit_size


def _shown_axis(axis_unit: str, longest: float) -> _ShownAxis:
    """Return the horizontal axis of a plot over time, with its name and its unit.

    Args:
        axis_unit: What the starts and ends of the points count: "s", "step" or "row".
        longest: End of the axis in `axis_unit`. From 300 s on, seconds are shown as minutes, and from 3 hours on as
            hours.
    """
    if axis_unit != "s":
        return _ShownAxis(axis_unit, 1.0)
    time = time_unit(longest)
    return _ShownAxis(f"time in {time.name}", time.seconds)


def _draw_run(drawing: Plot, run: RunOfPlot, axis: _ShownAxis, *, shaded: bool) -> None:
    """Draw a run's rates over time: its measured points as a line with its label, the others grey and hollow.

    A point is drawn in the middle between its start and its end.

    Args:
        drawing: The plot to draw on.
        run: The run with its points, its label and the number of its colour and marker.
        axis: The horizontal axis. It converts the starts and ends of the points to its own unit, such as seconds to
            minutes.
        shaded: Whether the background of each measured part is shaded.
    """
    for stretch in stretches(run.points):  # successive points, all of them measured or none
        middles = [(axis.place((point.start + point.end) / 2), point.images_per_s) for point in stretch]
        if stretch[0].measured:
            drawing.draw_series(run.style_index, run.label, middles)  # the legend shows a repeated label once
            if shaded:
                _shade(drawing, start=axis.place(stretch[0].start), end=axis.place(stretch[-1].end))
        else:
            _draw_unmeasured(drawing, middles)


def _shade(drawing: Plot, *, start: float, end: float) -> None:
    """Shade the background between two places of the horizontal axis."""
    drawing.axes.axvspan(start, end, color=SERIES_COLORS[0], alpha=0.1, linewidth=0)


def _draw_unmeasured(drawing: Plot, points: Points) -> None:
    """Draw a grey line through points (x, y), with hollow markers unless these are so many that they hide the line."""
    marker = "o" if len(points) <= MAX_MARKERS else None
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    drawing.axes.plot(xs, ys, marker=marker, color=MUTED, markerfacecolor="none", linewidth=0.8)
    drawing.add_to_legend("○", MUTED, "warm-up or not measured")


def lines(
    drawing: Plot, *, series: Series, x: str, y: str, target: float | None = None, starts_at_zero: bool = False
) -> None:
    """Draw a line through each of several series of points, over whole numbers such as steps or epochs.

    Only the first 16 (MAX_LINES) series are drawn, because the marks of others would repeat. The legend says how many
    are not drawn.

    Args:
        drawing: The plot to draw on.
        series: Label and points (x, y) of each line.
        x: Name of the horizontal axis.
        y: Name of the vertical axis.
        target: Value to reach, drawn as a dashed level; None if there is none.
        starts_at_zero: Whether the vertical axis begins at 0.
    """
    from matplotlib.ticker import MaxNLocator

    drawn_series = series[:MAX_LINES]
    for style_index, (label, points) in enumerate(drawn_series):
        drawing.draw_series(style_index, label, points)
    not_drawn = len(series) - len(drawn_series)
    if not_drawn > 0:
        drawing.add_to_legend("…", MUTED, f"{not_drawn} more not drawn")
    if target is not None and abs(target) < GREATEST_DRAWN:
        drawing.draw_level(target)
        drawing.add_to_legend("╌", INK, f"target {six_digits(target)}")
    if starts_at_zero:
        drawing.start_at_zero(_values_of(drawn_series))
    drawing.axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    drawing.name_axes(x=x, y=y)


def _values_of(series: Series) -> list[float]:
    """Return the y values of all points of several series."""
    values: list[float] = []
    for _, points in series:
        values += [value for _, value in points]
    return values


def scaling(
    drawing: Plot, *, ours: Series, published: Series, y: str, is_logarithmic: bool, first_published_style: int
) -> None:
    """Draw throughput or efficiency over the number of devices: our curves bold, published ones thin and dotted.

    Args:
        drawing: The plot to draw on.
        ours: Label and points (devices, value) of each of our curves. Their colours and markers have the numbers from 0
            on.
        published: Label and points of each published curve.
        y: Name of the vertical axis.
        is_logarithmic: Whether the vertical axis is logarithmic, as for throughput. Otherwise it starts at 0, for an
            efficiency in percent, and has a line at 100.
        first_published_style: Number of the colour and marker of the first published curve.
    """
    drawing.size(height_inches=3.2)  # higher than other plots, because it has many curves
    for style_index, (label, points) in enumerate(ours):
        drawing.draw_series(style_index, label, points, linewidth=2.4, markersize=7, zorder=3)
    for style_index, (label, points) in enumerate(published, start=first_published_style):
        drawing.draw_series(style_index, label, points, linestyle=DOTTED, linewidth=1.1)
    all_series = (*ours, *published)
    values = _values_of(all_series)
    if is_logarithmic:
        _set_logarithmic(drawing, values)
    else:  # an efficiency in percent
        drawing.axes.axhline(100, color=MUTED, linewidth=0.8)
        drawing.start_at_zero([100.0, *values])
    _set_device_counts(drawing, _device_counts_of(all_series))
    drawing.name_axes(x="devices", y=y)


def _device_counts_of(series: Series) -> list[float]:
    """Return the x values of all points, which are numbers of devices, each once and in ascending order."""
    device_counts: set[float] = set()
    for _, points in series:
        device_counts.update(devices for devices, _ in points)
    return sorted(device_counts)


def _set_logarithmic(drawing: Plot, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic, with room below and above the values, and with two ticks or more.

    Args:
        drawing: The plot.
        values: All values that are drawn, above 0, at least one.
    """
    from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullFormatter

    low = min(values) / 1.25
    high = max(values) * 1.25
    axes = drawing.axes
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    span = high / low
    locator: Locator
    if span < 4:  # ticks as on a linear axis: from 310 to 490, say, there is no 1, 2, 3, 5 or 7 times a power of ten
        locator = MaxNLocator(nbins=6, steps=(1, 2, 5, 10))
    elif span < 15:  # about one decade
        locator = LogLocator(subs=(1, 2, 3, 5, 7))  # ticks at these multiples of each power of ten
    elif span < 200:  # about two decades
        locator = LogLocator(subs=(1, 3))
    else:
        locator = LogLocator(subs=(1,))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_minor_formatter(NullFormatter())


def _set_device_counts(drawing: Plot, device_counts: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic to base 2, with ticks at device counts.

    Args:
        drawing: The plot.
        device_counts: The numbers of devices that are drawn, in ascending order. If there are many, only some have a
            tick. A single one stands in the middle of the axis.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    axes = drawing.axes
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_thinned_out(device_counts)))
    axes.xaxis.set_minor_locator(NullLocator())
    if len(device_counts) == 1:
        only = device_counts[0]
        axes.set_xlim(only / 2, only * 2)


def _thinned_out(device_counts: Sequence[float]) -> list[float]:
    """Return at most MAX_TICKS of the device counts, always with the first and the last one.

    Every other count is left out until the rest fits.

    Args:
        device_counts: Numbers of devices, in ascending order.
    """
    ticks = list(device_counts)
    while len(ticks) > MAX_TICKS:
        every_other = ticks[:-1:2]
        ticks = [*every_other, ticks[-1]]
    return ticks
