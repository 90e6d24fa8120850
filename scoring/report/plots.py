"""Plots as inline SVG: colours are the page's own variables, so that they follow dark and light mode.

Each drawing is one panel without width or height, about as wide as a phone, where its text still measures 11 px. The
legend is data, which the page sets as text below: no curve hides under it. Series differ in marker, dash and colour.
"""

import functools
import html
import io
import itertools
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runlog.text import visible
from scoring.report.blocks import Figure
from scoring.report.content import Point

WIDTH_INCHES, HEIGHT_INCHES = 4.4, 2.6  # 317 x 187 points

# Colours that stand for the page's variables (page.css); no two are equal, none is used otherwise.
INK, MUTED, GRID, SURFACE = "#010101", "#010102", "#010103", "#010104"
SERIES = tuple(f"#0102{number:02x}" for number in range(1, 9))
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface"} | {
    color: f"series-{number}" for number, color in enumerate(SERIES, 1)
}
MARKERS = {"o": "●○", "s": "■□", "^": "▲△", "D": "◆◇", "v": "▼▽", "P": "✚✙", "X": "✖✕", "*": "★☆"}  # full and hollow
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
DASHED, DOTTED = (0, (5, 2)), (0, (1, 1.5))
MOST = 1e15  # of a value that is drawn

_COLOR = re.compile("|".join(_VARIABLES))
_ID = re.compile(r'(\bid="|href="#|url\(#)')

Series = Sequence[tuple[str, Sequence[tuple[float, float]]]]


@dataclass(kw_only=True)
class Plot:
    """One panel: what is drawn on, and afterwards its SVG and legend."""

    figure: Any
    axes: Any
    svg: str = ""
    legend: list[tuple[str, str, str]] = field(default_factory=list)  # mark, variable of its colour, label

    def size(self, height: float = HEIGHT_INCHES) -> None:
        """The panel's height, and the room around its axes, in inches."""
        self.figure.set_size_inches(WIDTH_INCHES, height)
        width = WIDTH_INCHES
        self.axes.set_position((0.6 / width, 0.55 / height, 1 - (0.6 + 0.12) / width, 1 - (0.55 + 0.3) / height))

    def key(self, mark: str, color: str, label: str) -> None:
        """Add an entry to the legend, once."""
        if (entry := (mark, _VARIABLES[color], label)) not in self.legend:
            self.legend.append(entry)

    def series(self, index: int, label: str, points: Sequence[tuple[float, float]], **look: Any) -> None:
        """A line with the marker, colour and dash of the series of that index, from 0."""
        marker, hollow = list(MARKERS)[index % len(MARKERS)], index // len(SERIES) % 2
        color, dash = SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]
        usual = {"color": color, "marker": marker, "linestyle": dash, "markerfacecolor": "none" if hollow else None}
        points = [(x, y if abs(y) < MOST else math.nan) for x, y in points]  # no axis has ticks beyond
        every = -(-len(points) // (60 if index == 0 else 12))  # markers of a long line stand apart
        self.axes.plot(*zip(*points, strict=True), markevery=every, **(usual | look))
        self.key(MARKERS[marker][hollow], color, label)

    def label(self, *, x: str, y: str = "") -> None:
        """Names of the axes with their units; the vertical one stands above its axis, to be read level."""
        from matplotlib.ticker import FuncFormatter

        self.axes.set_xlabel(x)
        left = -self.axes.get_position().x0 / self.axes.get_position().width + 0.015
        self.axes.text(left, 1.04, y, transform=self.axes.transAxes, color=MUTED, ha="left", va="bottom")
        for axis in (self.axes.xaxis, self.axes.yaxis):
            if type(axis.get_major_formatter()).__name__ in ("ScalarFormatter", "LogFormatterSciNotation"):
                axis.set_major_formatter(FuncFormatter(_tick))

    def from_zero(self, values: Sequence[float]) -> None:
        """A vertical axis from 0, so that a small dip looks small, with room on top."""
        self.axes.set_ylim(0, max((value for value in values if value < MOST), default=0) * 1.12 or 1)

    def close_to(self, values: Sequence[float]) -> None:
        """Set a vertical axis that holds just the values, with room of a tenth of their range on both sides."""
        drawn = [value for value in values if abs(value) < MOST]
        low, high = min(drawn, default=0.0), max(drawn, default=1.0)
        room = 0.1 * (high - low) or 0.001 * abs(high) or 1.0
        self.axes.set_ylim(low - room, high + room)


@functools.cache
def _matplotlib() -> Any:
    """Matplotlib with the page's settings; imported by the first plot."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # in a read-only home it does with a folder of its own
    import matplotlib
    import matplotlib.figure

    matplotlib.rc_file(Path(__file__).with_name("plots.mplstyle"))
    return matplotlib


def drawn(figure: Figure) -> Plot:
    """The plot of a figure of the page, whose ids begin with its name; its words are the text alternative."""
    canvas = _matplotlib().figure.Figure()
    drawing = Plot(figure=canvas, axes=canvas.add_axes((0, 0, 1, 1)))
    drawing.size()
    figure.draw(drawing)
    stream = io.StringIO()
    canvas.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type", "Format")))
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", stream.getvalue(), flags=re.DOTALL)
    text = _ID.sub(lambda match: f"{match[1]}{figure.name}-", text)
    text = _COLOR.sub(lambda match: f"var(--{_VARIABLES[match[0]]})", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    words = html.escape(visible(figure.words or figure.caption, 10_000))
    drawing.svg = re.sub(
        r'\A.*?<svg[^>]*(viewBox="[^"]*")[^>]*>',
        lambda head: (
            f'<svg class="plot" xmlns:xlink="http://www.w3.org/1999/xlink" {head[1]} role="img" '
            f'aria-labelledby="{figure.name}-title {figure.name}-description">'
            f'<title id="{figure.name}-title">{html.escape(visible(figure.title))}</title>'
            f'<desc id="{figure.name}-description">{words}</desc>'
        ),
        text,
        flags=re.DOTALL,
    )
    return drawing


def time_unit(longest_s: float) -> tuple[float, str]:
    """Seconds of the unit that suits an axis of that length, and its name."""
    if longest_s >= 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if longest_s >= 300 else (1.0, "s")


def _tick(value: float, _: object) -> str:
    if abs(value) >= 1e5:  # the axis has room for six characters
        return f"{value / 1e6:.4g} M" if abs(value) >= 1e6 else f"{value / 1e3:.4g} k"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.10g}"


def throughput(
    drawing: Plot,
    *,
    runs: Sequence[tuple[str, Sequence[Point]]],
    axis: str,
    unit: str,
    value: float | None,
    from_zero: bool = True,
) -> None:
    """Draw throughput of runs over time; what was not measured is hollow and grey, one run's measured part shaded.

    The vertical axis starts at 0, or else it holds just the rates and the figure.
    """
    axes = drawing.axes
    factor, time = time_unit(max(points[-1].end for _, points in runs)) if axis == "s" else (1.0, axis)
    for index, (label, points) in enumerate(runs):
        for measured, part in itertools.groupby(points, key=lambda point: point.measured):
            members = list(part)
            middle = [((point.start + point.end) / 2 / factor, point.images_per_s) for point in members]
            if not measured:
                look = {"color": MUTED, "markerfacecolor": "none", "linewidth": 0.8}
                axes.plot(*zip(*middle, strict=True), marker="o" if len(middle) <= 60 else None, **look)
                drawing.key("○", MUTED, "warm-up or not measured")
                continue
            drawing.series(index, label if len(runs) > 1 else "measured", middle)
            if len(runs) == 1:
                start, end = members[0].start / factor, members[-1].end / factor
                axes.axvspan(start, end, color=SERIES[0], alpha=0.1, linewidth=0)
    if value is not None:
        axes.axhline(value, color=INK, linestyle=DASHED, linewidth=1.1)
        drawing.key("╌", INK, "figure of the run" if len(runs) == 1 else "figure")
    rates = [point.images_per_s for _, points in runs for point in points]
    values = rates if value is None else [*rates, value]
    if from_zero:
        drawing.from_zero(values)
        axes.set_xlim(left=min(0.0, *(points[0].start / factor for _, points in runs)))
    else:
        drawing.close_to(values)
    drawing.label(x=f"time in {time}" if axis == "s" else axis, y=unit)


def lines(
    drawing: Plot, *, series: Series, x: str, y: str, target: float | None = None, from_zero: bool = False
) -> None:
    """Named series of (x, y) over whole numbers, and a level to reach."""
    from matplotlib.ticker import MaxNLocator

    for index, (label, points) in enumerate(series):
        drawing.series(index, label, points)
    if target is not None and abs(target) < MOST:
        drawing.axes.axhline(target, color=INK, linestyle=DASHED, linewidth=1.1)
        drawing.key("╌", INK, f"target {target:g}")
    if from_zero:
        drawing.from_zero([p[1] for _, points in series for p in points])
    drawing.axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    drawing.label(x=x, y=y)


def scaling(drawing: Plot, *, ours: Series, published: Series, y: str, logarithmic: bool, first: int) -> None:
    """Ours bold, the published ones thin and dotted, over the device count; their colours start at index `first`."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

    drawing.size(3.2)
    axes = drawing.axes
    for index, (label, points) in enumerate(ours):
        drawing.series(index, label, points, linewidth=2.4, markersize=7, zorder=3)
    for index, (label, points) in enumerate(published):
        drawing.series(index + first, label, points, linestyle=DOTTED, linewidth=1.1)
    points = [point for _, some in (*ours, *published) for point in some]
    values = [value for _, value in points]
    if logarithmic:
        low, high = min(values) / 1.25, max(values) * 1.25
        subs = (1, 2, 3, 5, 7) if high / low < 15 else (1, 3) if high / low < 200 else (1,)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.axhline(100, color=MUTED, linewidth=0.8)
        drawing.from_zero([100.0, *values])
    ticks = sorted({devices for devices, _ in points})
    while len(ticks) > 8:  # keep both ends
        ticks = [*ticks[:-1:2], ticks[-1]]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    if len(ticks) == 1:
        axes.set_xlim(ticks[0] / 2, ticks[0] * 2)
    drawing.label(x="devices", y=y)
