"""The panel that a plot is drawn on: its axes, the look of its lines and their legend.

It has no width or height, and is about as wide as a phone, where its text still measures 11 px. The legend is data,
which the page sets as text below: no curve hides under it. Series differ in marker, dash and colour.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scoring.report.svg import INK, MUTED, SERIES_COLORS, VARIABLES

WIDTH_INCHES = 4.4  # 317 points
HEIGHT_INCHES = 2.6  # 187 points
LEFT_INCHES = 0.6  # room around the axes; on the left for labels of up to six characters
CHARACTER_INCHES = 0.09  # of a longer label
RIGHT_INCHES = 0.12
BELOW_INCHES = 0.55
ABOVE_INCHES = 0.3


class Marker(NamedTuple):
    """A marker of a series: matplotlib's name for it, and the characters that show it in the legend."""

    name: str
    full: str
    hollow: str


MARKERS = (  # as many as SERIES_COLORS, because one index chooses a colour and its marker
    Marker("o", "●", "○"),
    Marker("s", "■", "□"),
    Marker("^", "▲", "△"),
    Marker("D", "◆", "◇"),
    Marker("v", "▼", "▽"),
    Marker("P", "✚", "✙"),
    Marker("X", "✖", "✕"),
    Marker("*", "★", "☆"),
)
MAX_LINES = 2 * len(MARKERS)  # of a plot of runs: the legend shows full and hollow markers, and no dashes
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
DASHED = (0, (5, 2))
GREATEST_DRAWN = 1e15  # values beyond are not drawn, because no axis has ticks for them
MAX_MARKERS = 60  # on the first line of a plot
MAX_MARKERS_OF_LATER_LINES = 12
DEFAULT_FORMATTERS = ("ScalarFormatter", "LogFormatterSciNotation")  # matplotlib's, of a linear and a logarithmic axis


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
        """Set the panel's height, and the room around its axes.

        Args:
            height_inches: Height of the drawing, in inches.
        """
        self.figure.set_size_inches(WIDTH_INCHES, height_inches)
        left = LEFT_INCHES / WIDTH_INCHES
        bottom = BELOW_INCHES / height_inches
        width = 1 - (LEFT_INCHES + RIGHT_INCHES) / WIDTH_INCHES
        height = 1 - (BELOW_INCHES + ABOVE_INCHES) / height_inches
        self.axes.set_position((left, bottom, width, height))

    def add_to_legend(self, mark: str, color: str, label: str) -> None:
        """Add an entry to the legend, once.

        Args:
            mark: Character that shows the line's marker.
            color: Colour of the line, one of those that stand for a variable of the page (see svg.py).
            label: Text of the entry.
        """
        entry = LegendEntry(mark, VARIABLES[color], label)
        if entry not in self.legend:
            self.legend.append(entry)

    def draw_series(self, style_index: int, label: str, points: Sequence[tuple[float, float]], **style: Any) -> None:
        """Draw a line through points, and add it to the legend.

        Args:
            style_index: Number of the line in the plot, from 0, which chooses its colour, marker and dash.
            label: Text of the line in the legend.
            points: Pairs (x, y). A value beyond GREATEST_DRAWN becomes a gap.
            style: Arguments of matplotlib's `plot`, such as `linewidth=2.4`, that replace this look on the drawing, but
                not in the legend.
        """
        chosen = _style_of_series(style_index)
        most_markers = MAX_MARKERS if style_index == 0 else MAX_MARKERS_OF_LATER_LINES
        line_style: dict[str, Any] = {
            "color": chosen.color,
            "marker": chosen.marker.name,
            "markerfacecolor": chosen.marker_fill,
            "linestyle": chosen.dash,
            "markevery": math.ceil(len(points) / most_markers),  # 3: every third point has a marker
            **style,
        }
        xs = [x for x, _ in points]
        ys = [_drawable(y) for _, y in points]
        self.axes.plot(xs, ys, **line_style)
        self.add_to_legend(chosen.legend_mark, chosen.color, label)

    def draw_level(self, y: float) -> None:
        """Draw a dashed level over the whole width."""
        self.axes.axhline(y, color=INK, linestyle=DASHED, linewidth=1.1)

    def name_axes(self, *, x: str, y: str) -> None:
        """Write the names of both axes and the numbers at their ticks.

        Call this after the vertical axis has its range, on which its numbers depend. If these are long, the left end of
        the axes is moved inwards to make room for them.

        Args:
            x: Name of the horizontal axis, written below it.
            y: Name of the vertical axis, written horizontally above the axes. The text starts near the left edge of the
                drawing, to the left of the axes.
        """
        self.axes.set_xlabel(x)
        self._label_ticks()  # numbers such as "12,000" or "1.5 M"
        self._make_room_for_labels()  # after the numbers are known, and before the place of `y`: it moves the axes
        # With transAxes, a place is given in widths and heights of the axes: (0, 0) is their lower left corner and
        # (1, 1) their upper right one. The left edge of the drawing is left of the axes, at -0.16 for example.
        left = self._left_edge_in_widths_of_axes() + 0.015
        above_axes = 1.04
        self.axes.text(left, above_axes, y, transform=self.axes.transAxes, color=MUTED, ha="left", va="bottom")

    def _left_edge_in_widths_of_axes(self) -> float:
        """Return where the left edge of the drawing is, in widths of the axes from their own left edge: below 0."""
        axes_in_drawing = self.axes.get_position()  # in shares of the drawing
        return float(-axes_in_drawing.x0 / axes_in_drawing.width)

    def _label_ticks(self) -> None:
        """Label the ticks of both axes by `_tick_label`, except on an axis that a plot gave a formatter of its own."""
        from matplotlib.ticker import FuncFormatter

        for axis in (self.axes.xaxis, self.axes.yaxis):
            name_of_formatter = type(axis.get_major_formatter()).__name__
            if name_of_formatter in DEFAULT_FORMATTERS:
                axis.set_major_formatter(FuncFormatter(_tick_label))

    def _make_room_for_labels(self) -> None:
        """Move the left end of the axes inwards if a label of the vertical axis has more than six characters."""
        low, high = self.axes.get_ylim()
        label_of = self.axes.yaxis.get_major_formatter()
        longest = 6
        for tick in self.axes.get_yticks():
            if low <= tick <= high:
                longest = max(longest, len(label_of(tick)))
        more_room = (longest - 6) * CHARACTER_INCHES / WIDTH_INCHES
        box = self.axes.get_position()  # in shares of the drawing
        self.axes.set_position((box.x0 + more_room, box.y0, box.width - more_room, box.height))

    def start_at_zero(self, values: Sequence[float]) -> None:
        """Let the vertical axis begin at 0, so that a small dip looks small, and end above the highest value.

        Args:
            values: The values that are drawn. Those beyond GREATEST_DRAWN do not count.
        """
        highest = max((value for value in values if value < GREATEST_DRAWN), default=0)
        self.axes.set_ylim(0, highest * 1.12 or 1)

    def enclose(self, values: Sequence[float]) -> None:
        """Let the vertical axis span the values, with a tenth of their range as room below and above.

        Args:
            values: The values that are drawn. Those beyond GREATEST_DRAWN do not count.
        """
        drawn = [value for value in values if abs(value) < GREATEST_DRAWN]
        low = min(drawn, default=0.0)
        high = max(drawn, default=1.0)
        room = 0.1 * (high - low) or 0.001 * abs(high) or 1.0  # equal values have no range; they may all be 0
        self.axes.set_ylim(low - room, high + room)


class _SeriesStyle(NamedTuple):
    """The look of a line: its colour, its marker, whether that is hollow, and its dash as matplotlib has it."""

    color: str
    marker: Marker
    is_hollow: bool
    dash: Any

    @property
    def marker_fill(self) -> str | None:
        """Return the colour inside the marker as matplotlib has it: "none", or None for the colour of the line."""
        return "none" if self.is_hollow else None

    @property
    def legend_mark(self) -> str:
        """Return the character that shows the marker in the legend."""
        return self.marker.hollow if self.is_hollow else self.marker.full


def _style_of_series(style_index: int) -> _SeriesStyle:
    """Return the look of a line by its number in the plot.

    A round is one line of each colour of SERIES_COLORS. The next round has the same colours and markers, but another
    dash, and every second round has hollow markers. So no two of the first 32 lines look the same.

    Args:
        style_index: Number of the line, from 0.
    """
    round_number = style_index // len(SERIES_COLORS)
    index_in_round = style_index % len(SERIES_COLORS)
    return _SeriesStyle(
        color=SERIES_COLORS[index_in_round],
        marker=MARKERS[index_in_round],
        is_hollow=round_number % 2 == 1,
        dash=DASHES[round_number % len(DASHES)],
    )


def _drawable(y: float) -> float:
    """Return a value to draw, or NaN, which is drawn as a gap, if the value is beyond GREATEST_DRAWN."""
    return y if abs(y) < GREATEST_DRAWN else math.nan


def _tick_label(value: float, _: object) -> str:
    """Return the label of a tick on an axis, hardly rounded and in k or M from 100,000 on.

    On a short axis, ticks may differ in their last digits alone. 1,500,000 gives "1.5 M", 1,000,200 gives "1.0002 M",
    250,000 gives "250 k", 12,000 gives "12,000" and 0.5 gives "0.5".

    Args:
        value: Place of the tick.
        _: Number of the tick, which matplotlib gives as well; not used.
    """
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.10g} M"
    if size >= 1e5:
        return f"{value / 1e3:.10g} k"
    return format(value, ",.10g")
