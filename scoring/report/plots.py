"""Plots as inline SVG: colours are the page's own variables, so that they follow dark and light mode.

Each function returns an SVG without width or height, of one panel: a phone shows it at full width, with its text
still readable. Series differ in marker and dash as well as in colour.
"""

from __future__ import annotations

import functools
import html
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scoring.report.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (5.0, 3.1)  # 360 x 223 points: about a phone's width, so text keeps its size there

# Colours that stand for the page's variables (page.css); no two are equal, none is used otherwise.
INK, MUTED, GRID, SURFACE = "#010101", "#010102", "#010103", "#010104"
SERIES = tuple(f"#0102{number:02x}" for number in range(1, 9))
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", SURFACE: "--surface"} | {
    color: f"--series-{number}" for number, color in enumerate(SERIES, 1)
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_DEVICES = 20  # of a topology that is drawn
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
PUBLISHED_DASH = (0, (1, 1.5))

_COLOR = re.compile("|".join(_VARIABLES))
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def style(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series of that index, from 0."""
    return {
        "color": SERIES[index % len(SERIES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
        "markerfacecolor": "none" if index // len(SERIES) % 2 else None,
    }


@functools.cache
def _matplotlib() -> Any:
    """Matplotlib with the page's settings; imported by the first plot."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.backends.backend_svg
    import matplotlib.figure

    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",  # text stays text: selectable, and in the page's font
            "svg.hashsalt": "report",  # the same input gives the same bytes
            "font.size": 10.5,
            "text.color": INK,
            "axes.labelcolor": MUTED,
            "axes.edgecolor": MUTED,
            "axes.facecolor": "none",
            "axes.labelsize": 10.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.8,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "ytick.major.size": 0,
            "lines.linewidth": 1.6,
            "lines.markersize": 4,
            "legend.frameon": False,
            "legend.fontsize": 9.5,
            "figure.facecolor": "none",
            "text.parse_math": False,
            "path.simplify": True,
        }
    )
    return matplotlib


class Plot:
    """One panel while it is drawn; `svg` holds it afterwards."""

    def __init__(self, *, name: str, title: str, description: str, height: float, top: float) -> None:
        self.figure = _matplotlib().figure.Figure(figsize=(SIZE_INCHES[0], height))
        self.axes: Axes = self.figure.add_axes((0.135, 0.6 / height, 0.835, 1 - (0.6 + top) / height))
        self.name, self.title, self.description = name, title, description
        self.svg = ""

    def label(self, *, x: str, y: str) -> None:
        """Names of the axes with their units; the vertical one stands above its axis, to be read level."""
        self.axes.set_xlabel(x)
        self.axes.text(-0.125, 1.035, y, transform=self.axes.transAxes, color=MUTED, ha="left", va="bottom")

    def legend(self, **options: Any) -> None:
        """Names of the series."""
        self.axes.legend(labelcolor=INK, handlelength=2.2, borderaxespad=0.2, **options)

    def finish(self) -> None:
        """Make the SVG."""
        stream = io.StringIO()
        self.figure.savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None}
        )
        text = stream.getvalue()
        text = re.sub(r"\A.*?(?=<svg)", "", text, flags=re.DOTALL)
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
        text = _ID.sub(lambda match: f"{match[1]}{self.name}-", text)  # several plots share one page
        text = _COLOR.sub(lambda match: f"var({_VARIABLES[match[0]]})", text)
        text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
        view = re.search(r'viewBox="[^"]*"', text)
        assert view is not None
        head = (
            f'<svg class="plot" xmlns:xlink="http://www.w3.org/1999/xlink" {view[0]} role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-description">'
            f'<title id="{self.name}-title">{html.escape(visible(self.title))}</title>'
            f'<desc id="{self.name}-description">{html.escape(visible(self.description, 10_000))}</desc>'
        )
        self.svg = re.sub(r"\A<svg[^>]*>", lambda _: head, text)


@contextmanager
def plot(
    *, name: str, title: str, description: str, height: float = SIZE_INCHES[1], top: float = 0.35
) -> Iterator[Plot]:
    """A panel to draw on; `description` is its text alternative."""
    drawing = Plot(name=name, title=title, description=description, height=height, top=top)
    yield drawing
    drawing.finish()


def time_unit(longest_s: float) -> tuple[float, str]:
    """Seconds of the unit that suits an axis of that length, and its name."""
    if longest_s >= 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if longest_s >= 300 else (1.0, "s")


def zero_based(axes: Axes, values: Sequence[float], *, room: float = 0.12) -> None:
    """A vertical axis from 0, so that a small dip looks small, with room on top."""
    axes.set_ylim(0, max(values) * (1 + room) or 1)


def device_axis(axes: Axes, devices: Sequence[int]) -> None:
    """A logarithmic axis of device counts with those counts as ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = sorted(set(devices))
    while len(ticks) > 8:  # keep both ends
        ticks = [*ticks[:-1:2], ticks[-1]]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    if len(ticks) == 1:
        axes.set_xlim(ticks[0] / 2, ticks[0] * 2)


def thousands(axis: Any) -> None:
    """Tick labels with separators."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(_tick))


def _tick(value: float, _: object) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.10g}"


def throughput(
    *,
    name: str,
    title: str,
    description: str,
    points: Sequence[tuple[float, float, float, bool]],
    axis: str,
    unit: str,
    value: float | None,
) -> str:
    """Throughput over time: (start, end, rate, measured) of each point; the measured part is shaded."""
    with plot(name=name, title=title, description=description) as drawing:
        axes = drawing.axes
        factor, time = time_unit(points[-1][1]) if axis == "s" else (1.0, axis)
        mark = "o" if len(points) <= 60 else None
        for measured, part in itertools.groupby(enumerate(points), key=lambda item: item[1][3]):
            members = [point for _, point in part]
            middle = [(point[0] + point[1]) / 2 / factor for point in members]
            color = SERIES[0] if measured else MUTED
            face = color if measured else "none"
            label = "measured" if measured else "warm-up or not measured"
            axes.plot(
                middle,
                [point[2] for point in members],
                color=color,
                marker=mark,
                markerfacecolor=face,
                linewidth=1.6 if measured else 1.0,
                label=label if label not in axes.get_legend_handles_labels()[1] else None,
            )
            if measured:
                start, end = members[0][0] / factor, members[-1][1] / factor
                axes.axvspan(start, end, color=SERIES[0], alpha=0.1, linewidth=0)
                for edge in (start, end):
                    axes.axvline(edge, color=SERIES[0], linewidth=0.8)
        if value is not None:
            axes.axhline(value, color=SERIES[1], linestyle=(0, (5, 2)), linewidth=1.2, label="figure of the run")
        zero_based(axes, [point[2] for point in points] + ([value] if value is not None else []))
        axes.set_xlim(left=min(0.0, points[0][0] / factor))
        thousands(axes.yaxis)
        drawing.label(x=f"time in {time}" if axis == "s" else axis, y=unit)
        drawing.legend(loc="lower right")
    return drawing.svg


def lines(
    *,
    name: str,
    title: str,
    description: str,
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    x: str,
    y: str,
    target: float | None = None,
    from_zero: bool = False,
    whole_x: bool = False,
    markers: bool = True,
) -> str:
    """Named series of (x, y), and a level to reach."""
    with plot(name=name, title=title, description=description) as drawing:
        axes = drawing.axes
        for index, (label, points) in enumerate(series):
            look = style(index) if markers else style(index) | {"marker": None}
            axes.plot([p[0] for p in points], [p[1] for p in points], label=label, **look)
        if target is not None:
            axes.axhline(target, color=INK, linestyle=(0, (5, 2)), linewidth=1.1, label=f"target {target:g}")
        if from_zero:
            zero_based(axes, [p[1] for _, points in series for p in points])
        if whole_x:
            from matplotlib.ticker import MaxNLocator

            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        thousands(axes.xaxis)
        thousands(axes.yaxis)
        drawing.label(x=x, y=y)
        if len(series) > 1 or target is not None:
            drawing.legend(loc="best", ncols=2 if len(series) > 6 else 1)
    return drawing.svg


def step_times(
    *,
    name: str,
    title: str,
    description: str,
    bars: Sequence[tuple[str, Sequence[tuple[str, str, float]]]],
) -> str:
    """One bar a group, of (kind, name, milliseconds) parts; kinds are rest, exchange and wait, in that order."""
    looks = {"rest": (("", 0), ("", 2), ("", 4), ("", 5)), "exchange": (("....", 3),), "wait": (("////", 1),)}
    parts = [
        (kind, part, look)
        for kind, known in looks.items()
        for part, look in zip(
            dict.fromkeys(part for _, shares in bars for k, part, _ in shares if k == kind), known, strict=False
        )
    ]
    columns = 1 if any(len(part) > 26 for _, part, _ in parts) else 2
    rows = -(-len(parts) // columns)  # of the legend
    height = 1.0 + 0.2 * rows + 0.36 * len(bars)
    with plot(name=name, title=title, description=description, height=height, top=0.2 + 0.2 * rows) as drawing:
        axes = drawing.axes
        left = [0.0] * len(bars)
        for kind, part, (hatch, color) in parts:
            width = [sum(value for k, n, value in shares if (k, n) == (kind, part)) for _, shares in bars]
            axes.barh(
                range(len(bars)),
                width,
                left=left,
                height=0.6,
                color=SERIES[color],
                edgecolor=SURFACE,
                hatch=hatch,
                linewidth=0.8,
                label=part,
            )
            left = [start + more for start, more in zip(left, width, strict=True)]
        axes.set_yticks(range(len(bars)), [label for label, _ in bars])
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        thousands(axes.xaxis)
        drawing.label(x="time of a step in ms", y="")
        axes.legend(labelcolor=INK, loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncols=columns, columnspacing=1.2)
    return drawing.svg


def is_topology(found: Any) -> bool:
    """Whether a log's `topology` is a matrix of links that can be drawn."""
    if not isinstance(found, dict):
        return False
    names, links = found.get("devices"), found.get("links")
    return (
        isinstance(names, list)
        and isinstance(links, list)
        and 1 < len(names) == len(links) <= MOST_DEVICES
        and all(isinstance(row, list) and len(row) == len(names) for row in links)
        and all(isinstance(text, str) and len(text) < 12 for row in [names, *links] for text in row)
    )


def topology(*, name: str, title: str, description: str, names: Sequence[str], links: Sequence[Sequence[str]]) -> str:
    """The matrix of links between devices; near links are darker, each cell says its link in words."""
    from matplotlib.patches import Rectangle

    nearness = {"NV": 0.6, "PIX": 0.4, "PXB": 0.32, "PHB": 0.22, "NODE": 0.14, "SYS": 0.06}
    size = len(names)
    font = 10 if size <= 9 else 8
    height = 0.7 + 0.3 * size
    with plot(name=name, title=title, description=description, height=height, top=0.05) as drawing:
        axes = drawing.axes
        for row, entries in enumerate(links):
            for column, link in enumerate(entries):
                if link != "X":
                    alpha = nearness.get(link.rstrip("0123456789"), 0.0)
                    axes.add_patch(
                        Rectangle((column - 0.5, row - 0.5), 1, 1, color=SERIES[0], alpha=alpha, linewidth=0)
                    )
                    axes.text(column, row, visible(link), ha="center", va="center", color=INK, fontsize=font)
        labels = [visible(text) for text in names]
        axes.set_xticks(range(size), labels, rotation=0 if size <= 9 else 60, fontsize=font)
        axes.set_yticks(range(size), labels, fontsize=font)
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(size - 0.5, -0.5)
        axes.grid(visible=False)
    return drawing.svg


def scaling(
    *,
    name: str,
    title: str,
    description: str,
    ours: Sequence[tuple[str, Sequence[tuple[int, float]]]],
    published: Sequence[tuple[str, Sequence[tuple[int, float]]]],
    y: str,
    logarithmic: bool,
    first: int,
) -> str:
    """Ours bold, the published ones thin and dotted, over the device count; their colours start at index `first`."""
    with plot(name=name, title=title, description=description, height=4.3) as drawing:
        axes = drawing.axes
        for index, (label, points) in enumerate(published):
            look = style(index + first) | {"linestyle": PUBLISHED_DASH, "linewidth": 1.1, "markersize": 3.5}
            axes.plot(*zip(*points, strict=True), label=label, **look)
        for index, (label, points) in enumerate(ours):
            axes.plot(*zip(*points, strict=True), label=label, **(style(index) | {"linewidth": 2.4, "markersize": 7}))
        if logarithmic:
            from matplotlib.ticker import LogLocator, NullFormatter

            values = [value for _, points in (*ours, *published) for _, value in points]
            low, high = min(values) / 1.25, max(values) * 1.25
            subs = (1, 2, 3, 5, 7) if high / low < 15 else (1, 3) if high / low < 200 else (1,)
            axes.set_yscale("log")
            axes.set_ylim(low, high)
            axes.yaxis.set_major_locator(LogLocator(subs=subs))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.axhline(100, color=MUTED, linewidth=0.8)
            zero_based(axes, [100.0] + [value for _, points in (*ours, *published) for _, value in points])
        device_axis(axes, [devices for _, points in (*ours, *published) for devices, _ in points])
        thousands(axes.yaxis)
        drawing.label(x="devices", y=y)
        handles, labels = axes.get_legend_handles_labels()
        count = len(published)
        order = [*range(count, len(labels)), *range(count)]
        rows = -(-len(labels) // 2)
        height = 4.3 + 0.19 * rows  # the legend below takes its own room
        drawing.figure.set_size_inches(SIZE_INCHES[0], height)
        bottom = (0.62 + 0.19 * rows) / height
        axes.set_position((0.135, bottom, 0.835, 1 - bottom - 0.35 / height))
        axes.legend(
            [handles[index] for index in order],
            [labels[index] for index in order],
            labelcolor=INK,
            loc="upper left",
            bbox_to_anchor=(-0.17, -0.42 / (height * (1 - bottom) - 0.35)),
            ncols=2,
            columnspacing=0.6,
            handlelength=1.6,
            handletextpad=0.4,
            fontsize=8.5,
        )
    return drawing.svg


def variance(
    *,
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[str, Sequence[float], float]],
    value: float,
    interval: tuple[float, float] | None,
    unit: str,
) -> str:
    """Each run's windows as dots and its figure as a mark; the interval of the whole as a band."""
    with plot(name=name, title=title, description=description, height=1.2 + 0.36 * len(rows)) as drawing:
        axes = drawing.axes
        if interval is not None:
            axes.axvspan(*interval, color=SERIES[1], alpha=0.15, linewidth=0, label="95 % interval")
        axes.axvline(value, color=SERIES[1], linestyle=(0, (5, 2)), linewidth=1.2, label="figure")
        for index, (_, rates, figure) in enumerate(rows):
            first = index == 0
            if len(rates) > 1:
                offsets = [index + 0.22 * ((at % 5) / 2 - 1) for at in range(len(rates))]  # so that dots do not hide
                axes.plot(
                    rates,
                    offsets,
                    linestyle="none",
                    marker="o",
                    markersize=2.6,
                    color=SERIES[0],
                    alpha=0.55,
                    label="a window" if first else None,
                )
            axes.plot(
                [figure],
                [index],
                linestyle="none",
                marker="D",
                markersize=7,
                color=INK,
                markeredgecolor=SURFACE,
                label="a run" if first else None,
            )
        axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.08)
        thousands(axes.xaxis)
        drawing.label(x=unit, y="")
        axes.legend(labelcolor=INK, loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncols=4, columnspacing=1.1)
    return drawing.svg
