"""Plots as inline SVG: colours are the page's own variables, so that they follow dark and light mode.

Each drawing is one panel without width or height, about as wide as a phone, where its text still measures 11 px. The
legend is data, which the page sets as text below: no curve hides under it. Series differ in marker, dash and colour.
"""

import functools
import html
import io
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from runlog.text import visible
from scoring.report.blocks import Figure
from scoring.report.content import Point, stretches

WIDTH_INCHES = 4.4  # 317 points
HEIGHT_INCHES = 2.6  # 187 points
LEFT_INCHES = 0.6  # room around the axes
RIGHT_INCHES = 0.12
BELOW_INCHES = 0.55
ABOVE_INCHES = 0.3

# Colours that stand for the page's variables (page.css); no two are equal, none is used otherwise.
INK = "#010101"
MUTED = "#010102"
GRID = "#010103"
SURFACE = "#010104"
SERIES = ("#010201", "#010202", "#010203", "#010204", "#010205", "#010206", "#010207", "#010208")
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface"}
_VARIABLES.update({color: f"series-{number}" for number, color in enumerate(SERIES, 1)})
MARKERS = {"o": "●○", "s": "■□", "^": "▲△", "D": "◆◇", "v": "▼▽", "P": "✚✙", "X": "✖✕", "*": "★☆"}  # full and hollow
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
DASHED = (0, (5, 2))
DOTTED = (0, (1, 1.5))
MOST = 1e15  # no axis has ticks for values beyond
MOST_MARKERS = 60  # on the first line of a plot
MOST_MARKERS_OF_LATER_LINES = 12
MOST_TICKS = 8  # of device counts

_HEAD = re.compile(r'.*?<svg[^>]*(?P<view_box>viewBox="[^"]*")[^>]*>', re.DOTALL)
_ID = re.compile(r'(\bid="|href="#|url\(#)')

NamedPoints: TypeAlias = tuple[str, Sequence[tuple[float, float]]]  # a label, and (x, y) of each point
Series: TypeAlias = Sequence[NamedPoints]


class LegendEntry(NamedTuple):
    """A mark, the page's variable for its colour, and its label."""

    mark: str
    variable: str
    label: str


@dataclass(kw_only=True)
class Plot:
    """One panel: what is drawn on, and afterwards its SVG and legend."""

    figure: Any
    axes: Any
    svg: str = ""
    legend: list[LegendEntry] = field(default_factory=list)

    def size(self, height_inches: float = HEIGHT_INCHES) -> None:
        """Set the panel's height, and the room around its axes."""
        self.figure.set_size_inches(WIDTH_INCHES, height_inches)
        left = LEFT_INCHES / WIDTH_INCHES
        bottom = BELOW_INCHES / height_inches
        width = 1 - (LEFT_INCHES + RIGHT_INCHES) / WIDTH_INCHES
        height = 1 - (BELOW_INCHES + ABOVE_INCHES) / height_inches
        self.axes.set_position((left, bottom, width, height))

    def key(self, mark: str, color: str, label: str) -> None:
        """Add an entry to the legend, once."""
        entry = LegendEntry(mark, _VARIABLES[color], label)
        if entry not in self.legend:
            self.legend.append(entry)

    def series(self, index: int, label: str, points: Sequence[tuple[float, float]], **look: Any) -> None:
        """Draw a line with the marker, colour and dash of the series of that index, from 0."""
        cycle = index // len(SERIES)  # how often the colours were used up before
        marker = list(MARKERS)[index % len(MARKERS)]
        color = SERIES[index % len(SERIES)]
        is_hollow = cycle % 2 == 1
        usual: dict[str, Any] = {"color": color, "marker": marker, "linestyle": DASHES[cycle % len(DASHES)]}
        usual["markerfacecolor"] = "none" if is_hollow else None
        most_markers = MOST_MARKERS if index == 0 else MOST_MARKERS_OF_LATER_LINES
        every = math.ceil(len(points) / most_markers)  # markers of a long line stand apart
        xs = [x for x, _ in points]
        ys = [_drawable(y) for _, y in points]
        self.axes.plot(xs, ys, markevery=every, **(usual | look))
        self.key(MARKERS[marker][is_hollow], color, label)

    def level(self, y: float) -> None:
        """Draw a dashed level over the whole width."""
        self.axes.axhline(y, color=INK, linestyle=DASHED, linewidth=1.1)

    def label(self, *, x: str, y: str = "") -> None:
        """Name the axes with their units; the vertical name is above its axis, so that it is read level."""
        from matplotlib.ticker import FuncFormatter

        self.axes.set_xlabel(x)
        position = self.axes.get_position()
        left = -position.x0 / position.width + 0.015
        self.axes.text(left, 1.04, y, transform=self.axes.transAxes, color=MUTED, ha="left", va="bottom")
        for axis in (self.axes.xaxis, self.axes.yaxis):
            if type(axis.get_major_formatter()).__name__ in ("ScalarFormatter", "LogFormatterSciNotation"):
                axis.set_major_formatter(FuncFormatter(_tick))

    def from_zero(self, values: Sequence[float]) -> None:
        """Set a vertical axis from 0, so that a small dip looks small, with room on top."""
        highest = max((value for value in values if value < MOST), default=0)
        self.axes.set_ylim(0, highest * 1.12 or 1)

    def close_to(self, values: Sequence[float]) -> None:
        """Set a vertical axis that holds just the values, with room of a tenth of their range on both sides."""
        drawn = [value for value in values if abs(value) < MOST]
        low = min(drawn, default=0.0)
        high = max(drawn, default=1.0)
        room = 0.1 * (high - low) or 0.001 * abs(high) or 1.0
        self.axes.set_ylim(low - room, high + room)


def _drawable(y: float) -> float:
    """Return a value that an axis has ticks for; a gap, which is drawn as nothing, for any other."""
    return y if abs(y) < MOST else math.nan


@functools.cache
def _matplotlib() -> Any:
    """Return matplotlib with the page's settings; the first plot imports it."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # in a read-only home it does with a folder of its own
    import matplotlib
    import matplotlib.figure

    matplotlib.rc_file(Path(__file__).with_name("plots.mplstyle"))
    return matplotlib


def drawn(figure: Figure) -> Plot:
    """Draw a figure of the page; ids in its SVG begin with its name, and its words are the text alternative."""
    canvas = _matplotlib().figure.Figure()
    drawing = Plot(figure=canvas, axes=canvas.add_axes((0, 0, 1, 1)))
    drawing.size()
    figure.draw(drawing)
    stream = io.StringIO()
    canvas.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type", "Format")))
    drawing.svg = _for_page(stream.getvalue(), figure)
    return drawing


def _for_page(svg: str, figure: Figure) -> str:
    """Return matplotlib's SVG with the page's colours and fonts, ids of its own, a title and a description."""
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    text = _ID.sub(rf"\g<1>{figure.name}-", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    head = _HEAD.match(text)
    assert head is not None, "matplotlib's SVG has a viewBox"
    return _svg_head(head["view_box"], figure) + text[head.end() :]


def _svg_head(view_box: str, figure: Figure) -> str:
    """Return the opening tag of a figure's SVG, with the title and the description that screen readers read."""
    words = html.escape(visible(figure.words or figure.caption, 10_000))
    return (
        f'<svg class="plot" xmlns:xlink="http://www.w3.org/1999/xlink" {view_box} role="img" '
        f'aria-labelledby="{figure.name}-title {figure.name}-description">'
        f'<title id="{figure.name}-title">{html.escape(visible(figure.title))}</title>'
        f'<desc id="{figure.name}-description">{words}</desc>'
    )


class TimeUnit(NamedTuple):
    """A unit of time: its seconds and its name."""

    seconds: float
    name: str


def time_unit(longest_s: float) -> TimeUnit:
    """Return the unit that suits an axis of that length."""
    if longest_s >= 3 * 3600:
        return TimeUnit(3600.0, "h")
    if longest_s >= 300:
        return TimeUnit(60.0, "min")
    return TimeUnit(1.0, "s")


def _tick(value: float, _: object) -> str:
    """Return the label of a tick, for which the axis has room for six characters."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g} M"
    if size >= 1e5:
        return f"{value / 1e3:.4g} k"
    if size >= 1000 or value == int(value):
        return format(value, ",.0f")
    return format(value, ".10g")


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

    `runs` has the label and the points of each, `value` is a level to show. The vertical axis starts at 0, or else it
    holds just the rates and the figure.
    """
    points_of_all: list[Point] = []
    for _, points in runs:
        points_of_all += points
    name = axis
    scale = 1.0  # of the points' unit in one unit of the axis
    if axis == "s":
        time = time_unit(max(points[-1].end for _, points in runs))
        scale = time.seconds
        name = f"time in {time.name}"

    for index, (label, points) in enumerate(runs):
        _draw_run(drawing, index, label if len(runs) > 1 else "measured", points, scale, shaded=len(runs) == 1)
    values = [point.images_per_s for point in points_of_all]
    if value is not None:
        drawing.level(value)
        drawing.key("╌", INK, "figure of the run" if len(runs) == 1 else "figure")
        values.append(value)
    if from_zero:
        drawing.from_zero(values)
        drawing.axes.set_xlim(left=min(0.0, *(points[0].start / scale for _, points in runs)))
    else:
        drawing.close_to(values)
    drawing.label(x=name, y=unit)


def _draw_run(drawing: Plot, index: int, label: str, points: Sequence[Point], scale: float, *, shaded: bool) -> None:
    """Draw the stretches of a run one by one: each is measured as a whole, or not at all."""
    for stretch in stretches(points):
        middles = [((point.start + point.end) / 2 / scale, point.images_per_s) for point in stretch]
        if not stretch[0].measured:
            marker = "o" if len(middles) <= MOST_MARKERS else None
            xs = [x for x, _ in middles]
            ys = [y for _, y in middles]
            drawing.axes.plot(xs, ys, marker=marker, color=MUTED, markerfacecolor="none", linewidth=0.8)
            drawing.key("○", MUTED, "warm-up or not measured")
            continue
        drawing.series(index, label, middles)
        if shaded:
            start = stretch[0].start / scale
            end = stretch[-1].end / scale
            drawing.axes.axvspan(start, end, color=SERIES[0], alpha=0.1, linewidth=0)


def lines(
    drawing: Plot, *, series: Series, x: str, y: str, target: float | None = None, from_zero: bool = False
) -> None:
    """Draw named series of (x, y) over whole numbers, and a level to reach."""
    from matplotlib.ticker import MaxNLocator

    for index, (label, points) in enumerate(series):
        drawing.series(index, label, points)
    if target is not None and abs(target) < MOST:
        drawing.level(target)
        drawing.key("╌", INK, f"target {target:g}")
    if from_zero:
        drawing.from_zero(_values_of(series))
    drawing.axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    drawing.label(x=x, y=y)


def _values_of(series: Series) -> list[float]:
    """Return the values of all points of several series."""
    values: list[float] = []
    for _, points in series:
        values += [value for _, value in points]
    return values


def scaling(drawing: Plot, *, ours: Series, published: Series, y: str, logarithmic: bool, first: int) -> None:
    """Draw our curves bold over the device count, the published ones thin and dotted, in colours from `first` on."""
    drawing.size(3.2)
    for index, (label, points) in enumerate(ours):
        drawing.series(index, label, points, linewidth=2.4, markersize=7, zorder=3)
    for index, (label, points) in enumerate(published):
        drawing.series(index + first, label, points, linestyle=DOTTED, linewidth=1.1)
    all_series = (*ours, *published)
    values = _values_of(all_series)
    if logarithmic:
        _set_logarithmic(drawing, values)
    else:
        drawing.axes.axhline(100, color=MUTED, linewidth=0.8)
        drawing.from_zero([100.0, *values])
    counts: set[float] = set()
    for _, points in all_series:
        counts.update(devices for devices, _ in points)
    _set_device_counts(drawing, sorted(counts))
    drawing.label(x="devices", y=y)


def _set_logarithmic(drawing: Plot, values: Sequence[float]) -> None:
    """Set a logarithmic vertical axis around the values, with the more ticks a decade the fewer decades it has."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low = min(values) / 1.25
    high = max(values) * 1.25
    subs: tuple[int, ...] = (1,)
    if high / low < 15:
        subs = (1, 2, 3, 5, 7)
    elif high / low < 200:
        subs = (1, 3)
    axes = drawing.axes
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _set_device_counts(drawing: Plot, ticks: list[float]) -> None:
    """Set a horizontal axis in powers of two, with a tick for each device count as far as there is room."""
    from matplotlib.ticker import FixedLocator, NullLocator

    while len(ticks) > MOST_TICKS:  # leave out every other one, but keep both ends
        ticks = [*ticks[:-1:2], ticks[-1]]
    axes = drawing.axes
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    if len(ticks) == 1:
        axes.set_xlim(ticks[0] / 2, ticks[0] * 2)
