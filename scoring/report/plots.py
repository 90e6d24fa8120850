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

from runlog.digits import four_digits, six_digits
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
SERIES_COLORS = ("#010201", "#010202", "#010203", "#010204", "#010205", "#010206", "#010207", "#010208")
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface"}
_VARIABLES.update({color: f"series-{number}" for number, color in enumerate(SERIES_COLORS, 1)})
MARKERS = {  # {matplotlib's marker: the characters that show it in the legend, full and hollow}
    "o": ("●", "○"),
    "s": ("■", "□"),
    "^": ("▲", "△"),
    "D": ("◆", "◇"),
    "v": ("▼", "▽"),
    "P": ("✚", "✙"),
    "X": ("✖", "✕"),
    "*": ("★", "☆"),
}
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
DASHED = (0, (5, 2))
DOTTED = (0, (1, 1.5))
GREATEST_DRAWN = 1e15  # values beyond are not drawn, because no axis has ticks for them
MOST_MARKERS = 60  # on the first line of a plot
MOST_MARKERS_OF_LATER_LINES = 12
MOST_TICKS = 8  # of device counts
DEFAULT_FORMATTERS = ("ScalarFormatter", "LogFormatterSciNotation")  # matplotlib's, of a linear and a logarithmic axis

_UP_TO_END_OF_SVG_TAG = re.compile(r'.*?<svg[^>]*(?P<view_box>viewBox="[^"]*")[^>]*>', re.DOTALL)
_START_OF_ID_OR_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')

Points: TypeAlias = Sequence[tuple[float, float]]  # x and y of each
NamedPoints: TypeAlias = tuple[str, Points]  # a label, and the points
Series: TypeAlias = Sequence[NamedPoints]


class LegendEntry(NamedTuple):
    """A mark, the page's variable for its colour, and its label."""

    mark: str
    variable: str
    label: str


@dataclass(kw_only=True)
class Plot:
    """One panel: matplotlib's figure and axes to draw on, and then the finished SVG and legend."""

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

    def add_to_legend(self, mark: str, color: str, label: str) -> None:
        """Add an entry to the legend, once."""
        entry = LegendEntry(mark, _VARIABLES[color], label)
        if entry not in self.legend:
            self.legend.append(entry)

    def draw_series(self, style_index: int, label: str, points: Sequence[tuple[float, float]], **style: Any) -> None:
        """Draw a line through points (x, y), and add it to the legend, which has equal entries only once.

        `style_index` counts the lines of a plot from 0 and chooses a colour and a marker. After the last colour the
        colours begin again, with hollow markers and another dash. `style` replaces any of this, by the names of
        matplotlib's `plot`.

        A long line has markers at some of its points only. Later lines have fewer of them than the first line, so that
        lines do not hide each other.
        """
        round_number = style_index // len(SERIES_COLORS)
        is_hollow = round_number % 2 == 1
        color = SERIES_COLORS[style_index % len(SERIES_COLORS)]
        marker = list(MARKERS)[style_index % len(MARKERS)]
        full_legend_mark, hollow_legend_mark = MARKERS[marker]
        line_style: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "markerfacecolor": "none" if is_hollow else None,
            "linestyle": DASHES[round_number % len(DASHES)],
        }
        line_style.update(style)

        # Later lines have fewer markers, so that lines do not hide each other.
        most_markers = MOST_MARKERS if style_index == 0 else MOST_MARKERS_OF_LATER_LINES
        points_per_marker = math.ceil(len(points) / most_markers)
        xs = [x for x, _ in points]
        ys = [_drawable(y) for _, y in points]
        self.axes.plot(xs, ys, markevery=points_per_marker, **line_style)
        self.add_to_legend(hollow_legend_mark if is_hollow else full_legend_mark, color, label)

    def draw_level(self, y: float) -> None:
        """Draw a dashed level over the whole width."""
        self.axes.axhline(y, color=INK, linestyle=DASHED, linewidth=1.1)

    def name_axes(self, *, x: str, y: str = "") -> None:
        """Name the axes, and label their ticks by `_tick_label`, unless an axis has a formatter of its own.

        The name of the vertical axis stands above the axis, at the left edge of the panel, so that the text is
        horizontal.
        """
        from matplotlib.ticker import FuncFormatter

        self.axes.set_xlabel(x)
        # In the axes' coordinates the axes span 0 to 1, and the panel begins at a negative number.
        position = self.axes.get_position()
        left_edge_of_panel = -position.x0 / position.width
        margin = 0.015
        above_axes = 1.04
        self.axes.text(
            left_edge_of_panel + margin,
            above_axes,
            y,
            transform=self.axes.transAxes,
            color=MUTED,
            ha="left",
            va="bottom",
        )
        for axis in (self.axes.xaxis, self.axes.yaxis):
            if type(axis.get_major_formatter()).__name__ in DEFAULT_FORMATTERS:
                axis.set_major_formatter(FuncFormatter(_tick_label))

    def start_at_zero(self, values: Sequence[float]) -> None:
        """Let the vertical axis begin at 0, so that a small dip looks small, and end above the highest value."""
        highest = max((value for value in values if value < GREATEST_DRAWN), default=0)
        self.axes.set_ylim(0, highest * 1.12 or 1)

    def enclose(self, values: Sequence[float]) -> None:
        """Let the vertical axis span the values, with a tenth of their range as room below and above."""
        drawn = [value for value in values if abs(value) < GREATEST_DRAWN]
        low = min(drawn, default=0.0)
        high = max(drawn, default=1.0)
        room = 0.1 * (high - low) or 0.001 * abs(high) or 1.0  # equal values have no range; they may all be 0
        self.axes.set_ylim(low - room, high + room)


def _drawable(y: float) -> float:
    """Return a value to draw, or NaN, which is drawn as a gap, if the value is beyond GREATEST_DRAWN."""
    return y if abs(y) < GREATEST_DRAWN else math.nan


@functools.cache
def _matplotlib() -> Any:
    """Import matplotlib and apply the page's settings, at the first plot; return the module."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns if it cannot write to the home folder
    import matplotlib
    import matplotlib.figure

    matplotlib.rc_file(Path(__file__).with_name("plots.mplstyle"))
    return matplotlib


def drawn(figure: Figure) -> Plot:
    """Draw a figure of the page, and return the plot with its SVG and legend."""
    canvas = _matplotlib().figure.Figure()
    drawing = Plot(figure=canvas, axes=canvas.add_axes((0, 0, 1, 1)))
    drawing.size()
    figure.draw(drawing)
    stream = io.StringIO()
    canvas.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type", "Format")))
    drawing.svg = _for_page(stream.getvalue(), figure)
    return drawing


def _for_page(svg: str, figure: Figure) -> str:
    """Adapt matplotlib's SVG to the page. These parts are replaced, in this order:

    - The metadata is removed.
    - Ids, and the references to them, begin with the figure's name, so that two plots of a page share no id:
      `url(#clip)` -> `url(#loss-clip)`
    - Colours become variables of the page: `#010101` -> `var(--ink)`
    - Fonts keep only their size: `font: 11px 'DejaVu Sans'` -> `font-size: 11px`
    - All text up to the end of the tag `<svg ...>` becomes a tag with a title and a description for screen readers.
    """
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Two plots of a page must not share an id. `\g<1>` is the start itself.
    text = _START_OF_ID_OR_REFERENCE.sub(rf"\g<1>{figure.name}-", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    svg_tag = _UP_TO_END_OF_SVG_TAG.match(text)
    assert svg_tag is not None, "matplotlib's SVG has a viewBox"
    return _svg_head(svg_tag["view_box"], figure) + text[svg_tag.end() :]


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
    """Return the unit to show times up to `longest_s` seconds in: h from 3 hours, min from 5 minutes, else s."""
    if longest_s >= 3 * 3600:
        return TimeUnit(3600.0, "h")
    if longest_s >= 300:
        return TimeUnit(60.0, "min")
    return TimeUnit(1.0, "s")


def _tick_label(value: float, _: object) -> str:
    """Return the label of a tick in about six characters, which is the room beside the axis.

    1,500,000 -> "1.5 M", 250,000 -> "250 k", 12,000 -> "12,000", 0.5 -> "0.5"
    """
    size = abs(value)
    if size >= 1e6:
        return f"{four_digits(value / 1e6)} M"
    if size >= 1e5:
        return f"{four_digits(value / 1e3)} k"
    if size >= 1000 or value == int(value):
        return format(value, ",.0f")
    return format(value, ".10g")


def throughput(
    drawing: Plot,
    *,
    runs: Sequence[tuple[str, Sequence[Point]]],
    axis_unit: str,
    unit: str,
    level: float | None,
    starts_at_zero: bool = True,
) -> None:
    """Draw the throughput of one or several runs over time, a line for each. The warm-up is grey with hollow markers.

    `runs` has the label and points of each. `axis_unit` is "s", "step" or "row". `level` is drawn as a dashed line.
    """
    is_single = len(runs) == 1
    axis_name, shown_unit_size = _shown_axis(axis_unit, longest=max(points[-1].end for _, points in runs))
    shown_values: list[float] = []
    for style_index, (label, points) in enumerate(runs):
        shown_label = "measured" if is_single else label
        _draw_run(drawing, style_index, shown_label, points, shown_unit_size, shaded=is_single)
        shown_values += [point.images_per_s for point in points]
    if level is not None:
        drawing.draw_level(level)
        drawing.add_to_legend("╌", INK, "figure of the run" if is_single else "figure")
        shown_values.append(level)
    if starts_at_zero:
        drawing.start_at_zero(shown_values)
        starts = [points[0].start / shown_unit_size for _, points in runs]
        drawing.axes.set_xlim(left=min(0.0, *starts))  # a run's first window may begin before run_start, which is 0
    else:
        drawing.enclose(shown_values)
    drawing.name_axes(x=axis_name, y=unit)


def _shown_axis(axis_unit: str, longest: float) -> tuple[str, float]:
    """Return the name of the horizontal axis, and the size of its unit in `axis_unit`: 60 for an axis in minutes.

    `longest` is the end of the axis in `axis_unit`, which is "s", "step" or "row".
    """
    if axis_unit != "s":
        return axis_unit, 1.0
    time = time_unit(longest)
    return f"time in {time.name}", time.seconds


def _draw_run(
    drawing: Plot, style_index: int, label: str, points: Sequence[Point], shown_unit_size: float, *, shaded: bool
) -> None:
    """Draw a run's rates over time: its measured points as a line named `label`, the others grey and hollow.

    A point is drawn at the middle between its start and end. `shown_unit_size` is the unit of the axis, in the unit of
    the points: 60 for an axis in minutes and points in seconds. `style_index` chooses the line's colour and marker.
    With `shaded` the background of each measured part is shaded.
    """
    for stretch in stretches(points):  # successive points, all of them measured or none
        middles = [((point.start + point.end) / 2 / shown_unit_size, point.images_per_s) for point in stretch]
        if stretch[0].measured:
            drawing.draw_series(style_index, label, middles)  # the legend shows a repeated label once
            if shaded:
                start = stretch[0].start / shown_unit_size
                end = stretch[-1].end / shown_unit_size
                drawing.axes.axvspan(start, end, color=SERIES_COLORS[0], alpha=0.1, linewidth=0)
        else:
            marker = "o" if len(middles) <= MOST_MARKERS else None  # more would hide the line
            xs = [x for x, _ in middles]
            ys = [y for _, y in middles]
            drawing.axes.plot(xs, ys, marker=marker, color=MUTED, markerfacecolor="none", linewidth=0.8)
            drawing.add_to_legend("○", MUTED, "warm-up or not measured")


def lines(
    drawing: Plot, *, series: Series, x: str, y: str, target: float | None = None, starts_at_zero: bool = False
) -> None:
    """Draw a line through each of several series of points, over whole numbers such as steps or epochs.

    `x` and `y` name the axes. `target` is a value to reach. It is drawn as a dashed level, unless it is None or beyond
    GREATEST_DRAWN. The vertical axis starts at 0 if `starts_at_zero` is set.
    """
    from matplotlib.ticker import MaxNLocator

    for style_index, (label, points) in enumerate(series):
        drawing.draw_series(style_index, label, points)
    if target is not None and abs(target) < GREATEST_DRAWN:
        drawing.draw_level(target)
        drawing.add_to_legend("╌", INK, f"target {six_digits(target)}")
    if starts_at_zero:
        drawing.start_at_zero(_values_of(series))
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

    `y` names the vertical axis. With `is_logarithmic` that axis is logarithmic, for throughput. Otherwise it starts at
    0 and has a level at 100 %, for efficiency.

    `first_published_style` chooses the colour and marker of the first published curve; the next curves have the next
    numbers. Pass the same number for both plots, so that a published curve looks the same in both.
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
    else:
        drawing.axes.axhline(100, color=MUTED, linewidth=0.8)
        drawing.start_at_zero([100.0, *values])
    device_counts: set[float] = set()
    for _, points in all_series:
        device_counts.update(devices for devices, _ in points)
    _set_device_counts(drawing, sorted(device_counts))
    drawing.name_axes(x="devices", y=y)


def _set_logarithmic(drawing: Plot, values: Sequence[float]) -> None:
    """Let the vertical axis be logarithmic around the values, with more ticks per decade if it spans fewer decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low = min(values) / 1.25  # room below and above the curves
    high = max(values) * 1.25
    ticks_per_decade: tuple[int, ...] = (1,)  # each is multiplied by the powers of ten
    if high / low < 15:  # about one decade
        ticks_per_decade = (1, 2, 3, 5, 7)
    elif high / low < 200:  # about two decades
        ticks_per_decade = (1, 3)
    axes = drawing.axes
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=ticks_per_decade))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _set_device_counts(drawing: Plot, device_counts: Sequence[float]) -> None:
    """Let the horizontal axis be logarithmic to base 2, with ticks at the device counts.

    `device_counts` are in ascending order. If there are more than MOST_TICKS, only some have a tick. A single count
    stands in the middle of the axis.
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
    """Return at most MOST_TICKS of the device counts, always with the first and the last one.

    Every other count is left out until the rest fits.
    """
    ticks = list(device_counts)
    while len(ticks) > MOST_TICKS:
        every_other = ticks[:-1:2]
        ticks = [*every_other, ticks[-1]]
    return ticks
