"""Sections on speed: throughput over time, where a step's time goes, and scaling."""

import functools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from runlog.run import real
from scoring.figure import warnings
from scoring.importers.checks import REFUSED
from scoring.published.table import Published
from scoring.record import section
from scoring.report import blocks, plots
from scoring.report.blocks import Block, Cell, Figure, Fold, Inline, Paragraph, Section, Table, Text, field
from scoring.report.brief import of_group
from scoring.report.content import (
    NOT_MEASURED,
    Curve,
    Group,
    Point,
    Report,
    ReportedRun,
    ScalingRow,
    StepTime,
    Timeline,
    timeline,
    values_of,
)
from scoring.report.overlay import NO_RATES, unit_of
from scoring.report.text import bounds, interval, number, percent

SHOWN_PANELS = 6  # plots of one kind; more are folded

# ---- throughput over time


def throughput(report: Report) -> Section:
    """Return the section on each run's throughput over time: its plot, and the table of its windows.

    A run whose log has no rates has a sentence that says so.
    """
    figures: list[Figure] = []
    without_rates: list[Block] = []
    measured_rates: list[float] = []
    for run in report.runs:
        line = timeline(run)
        if not line.points:
            without_rates.append(Paragraph(text=f"Run {run.number}: {NO_RATES}", absent=True))
            continue
        figures.append(_run_figure(report, run, line))
        measured_rates += [point.images_per_s for point in line.points if point.measured]

    gist = NOT_MEASURED
    if measured_rates:
        gist = f"measured windows {bounds(measured_rates)} images/s"
    parts = [*_shown_figures(figures), *without_rates]
    return Section(key="throughput", title="Throughput over time", gist=gist, blocks=parts)


def _shown_figures(figures: Sequence[Figure]) -> list[Block]:
    """Return what the section shows of the runs' plots.

    Of several runs that is the first SHOWN_PANELS plots, and the others folded. The plot of a single run stands on top
    of the page already: of it that is the caption, and the table of its windows folded.
    """
    if not figures:
        return []
    if len(figures) == 1:
        table_of_windows = figures[0].numbers
        assert table_of_windows is not None
        return [Paragraph(text=figures[0].caption), Fold(summary="its windows", blocks=[table_of_windows])]
    parts: list[Block] = [*figures[:SHOWN_PANELS]]
    more = figures[SHOWN_PANELS:]
    if more:
        parts.append(Fold(summary=f"{len(more)} more runs", blocks=more))
    return parts


def _run_figure(report: Report, run: ReportedRun, line: Timeline) -> Figure:
    """Return the plot of one run's throughput, with the table of its windows and a caption with its range.

    The run's figure is drawn as a level where the report's figure is a throughput.
    """
    points, axis = line
    unit = unit_of(run)
    figure = None
    if run.figure and report.protocol.figure == "throughput":
        figure = run.figure.value

    window_count = sum(len(point.windows) for point in points)
    caption = f"Run {run.number}: {bounds(point.images_per_s for point in points)} {unit} over {window_count} windows"
    measured_span = _measured_span(points)
    if measured_span:
        caption += f"; measured from {measured_span} {axis}"

    table_caption = f"Windows of run {run.number}"
    if window_count > len(points):
        table_caption += ", neighbours put together"
    named_points = [(f"run {run.number}", points)]
    return Figure(
        name=f"throughput-{run.number}",
        title=f"Throughput of run {run.number} over time",
        caption=f"{caption}.",
        draw=functools.partial(plots.throughput, runs=named_points, axis=axis, unit=unit, value=figure),
        numbers=blocks.table(table_caption, [_cells_of_point(run, point, axis, unit) for point in points]),
    )


def _measured_span(points: Sequence[Point]) -> str:
    """Return where on the axis the measured points begin and end; empty where none was measured."""
    measured = [point for point in points if point.measured]
    if not measured:
        return ""
    return f"{_axis_value(measured[0].start)} to {_axis_value(measured[-1].end)}"


def _cells_of_point(run: ReportedRun, point: Point, axis: str, unit: str) -> list[Cell]:
    """Return the row of a point in the table of a run's windows: a window, or several put together.

    `axis` is what its start and end count, seconds ("s") or steps; `unit` is that of the rate.
    """
    first = point.windows[0]
    last = point.windows[-1]
    last_step = "" if last.step is None else str(last.step)
    in_unit = "in s" if axis == "s" else f"({axis})"
    return [
        Cell("lines", blocks.between(run, first.line, last.line)),
        Cell("last step", last_step, numeric=True),
        Cell(f"start {in_unit}", _axis_value(point.start), numeric=True),
        Cell(f"end {in_unit}", _axis_value(point.end), numeric=True),
        Cell(unit, number(point.images_per_s), numeric=True),
        Cell("ms a step", _milliseconds(point), numeric=True),
        Cell("measured", "yes" if point.measured else "no"),
    ]


def _axis_value(value: float) -> str:
    """Return a place on the axis of time or steps."""
    if value == int(value):
        return format(int(value), ",")
    return format(value, ",.1f")


def _milliseconds(point: Point) -> str:
    """Return the mean step time of a point's windows in milliseconds, where all of them say it."""
    times: list[float] = values_of(point.windows, "step_s")
    if not times or len(times) != len(point.windows):
        return "not said"
    return number(statistics.fmean(times) * 1000)


# ---- where a step's time goes


def step_time(report: Report) -> Section:
    """Return the section with a table of where a mean step's time goes, a row for each group of repeated runs.

    The gist is the step of the last group. Where no log says step times, a sentence takes the table's place.
    """
    title = "Where a step's time goes"
    rows = []
    gist = NOT_MEASURED
    for group in report.groups:
        if group.step_time is not None:
            rows.append(_cells_of_step(group, group.step_time))
            gist = f"{number(group.step_time.total_s * 1000)} ms a step"
    if not rows:
        text = f"{NOT_MEASURED.capitalize()}: the logs hold no step times."
        return Section(key="step", title=title, gist=gist, blocks=[Paragraph(text=text, absent=True)])
    table = blocks.table("Parts of a mean step of the measured windows", rows)
    return Section(key="step", title=title, gist=gist, blocks=[table])


def _cells_of_step(group: Group, step: StepTime) -> list[Cell]:
    """Return the row of a shape: its mean step, and the parts of it."""
    return [
        Cell("system", group.name),
        Cell("step, ms", of_group(group, number(step.total_s * 1000)), numeric=True),
        Cell("computation and rest, ms", _part(group, step, step.rest_s, ""), numeric=True),
        Cell("all-reduce, ms", _part(group, step, step.all_reduce_s, "not estimated"), numeric=True),
        Cell("data wait, ms", _part(group, step, step.data_wait_s, NOT_MEASURED), numeric=True),
        Cell("note", _all_reduce_note(group, step)),
    ]


def _part(group: Group, step: StepTime, seconds: float | None, otherwise: str) -> Inline:
    """Return a part of a step in milliseconds and as a share; `otherwise` where it is not known."""
    if seconds is None:
        return otherwise
    return of_group(group, f"{number(seconds * 1000)} ({percent(seconds / step.total_s)})")


def _all_reduce_note(group: Group, step: StepTime) -> str:
    """Return how the time of the all-reduce is known, and how much data it sums."""
    size_mib = real(section(group.record, "program").get("all_reduce_mib")) or 0.0
    if size_mib <= 0 or group.record.devices == 1:
        return step.all_reduce_note
    return f"{step.all_reduce_note} ({format(size_mib, ',.1f')} MiB of gradients are summed in a step)"


# ---- scaling


def scaling(report: Report) -> Section:
    """Return the section that compares numbers of devices with each other and with published tables.

    It has the plots of both, a table for each system that was run on two numbers of devices or more, and the published
    figures folded. What cannot be compared is said in a sentence.
    """
    parts: list[Block] = [Paragraph(text=report.curves_note)]
    if not report.scaling:
        text = "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more."
        parts.append(Paragraph(text=text, absent=True))
    if report.scaling or report.curves:
        parts += _scaling_figures(report)
    for system, rows in enumerate(report.scaling, 1):
        which = f" of system {system}" if len(report.scaling) > 1 else ""
        parts += _scaling_table(rows, which)
    if report.curves:
        parts.append(Fold(summary="published figures beside", blocks=[_published(report.curves)], in_markdown=True))

    largest = [rows[-1] for rows in report.scaling]
    gist = "; ".join(f"{_efficiency(row)} on {row.devices} devices" for row in largest)
    if not gist:
        gist = f"efficiency {NOT_MEASURED}"
    return Section(key="scaling", title="Scaling and efficiency", gist=gist, blocks=parts)


def _scaling_table(rows: Sequence[ScalingRow], which: str) -> list[Block]:
    """Return the table of one system's device counts, and the doubts about their efficiency."""
    caption = f"Speedup and efficiency{which}, against its own {rows[0].devices} device(s)"
    parts: list[Block] = [blocks.table(caption, [_cells_of_scaling(row) for row in rows])]
    for row in rows:
        for doubt in warnings.of_efficiency(row.group.name, row.efficiency):
            parts.append(Paragraph(text=f"{doubt.found}."))
    return parts


def _cells_of_scaling(row: ScalingRow) -> list[Cell]:
    """Return the row of one number of devices in a system's scaling table.

    Speedup and efficiency are against the smallest number of devices that the system was run on.
    """
    group = row.group
    return [
        Cell("system", group.name),
        Cell("devices", field(group.runs[0], "devices"), numeric=True),
        Cell("images/s", of_group(group, number(row.images_per_s)), numeric=True),
        Cell("speedup", of_group(group, number(row.speedup)), numeric=True),
        Cell("95 % interval", _speedup_interval(row)),
        Cell("efficiency", of_group(group, _efficiency(row)), numeric=True),
        Cell("runs", Text(text=str(len(group.runs)), href="runs"), numeric=True),
    ]


def _efficiency(row: ScalingRow) -> str:
    """Return the efficiency as a percentage; none where it is more than noise can explain."""
    if row.efficiency > REFUSED:
        return "no figure: at most 100 %"
    return percent(row.efficiency)


def _speedup_interval(row: ScalingRow) -> Inline:
    """Return the interval of a speedup, or why there is none."""
    if row.speedup_95 is not None:
        return of_group(row.group, interval(row.speedup_95))
    return "base" if row.speedup == 1 else "none"


class _ByDevices(NamedTuple):
    """A figure of systems by their number of devices: a plot's texts, and the curves of both origins."""

    name: str
    caption: str
    unit: str
    axis: str
    ours: plots.Series
    published: plots.Series


def _scaling_figures(report: Report) -> list[Figure]:
    """Return two plots over the number of devices, throughput and efficiency, with published curves beside ours."""
    # Where no system was run on two numbers of devices, each system is a single point.
    rates = [_rates_of_rows(rows) for rows in report.scaling] or _single_rates(report.groups)
    first_published = len(rates) or 1  # the number of the style of the first published curve: ours come before
    return [_throughput_figure(report, rates, first_published), _efficiency_figure(report, first_published)]


def _named(curves: Sequence[plots.Points]) -> plots.Series:
    """Return this report's curves with their names in a legend: `this report`, and numbered where there are several."""
    if len(curves) == 1:
        return [("this report", curves[0])]
    return [(f"this report, {number_of_curve}", points) for number_of_curve, points in enumerate(curves, 1)]


def _throughput_figure(report: Report, rates: Sequence[plots.Points], first_published: int) -> Figure:
    """Return the plot of throughput over the number of devices: `rates` of our systems, then the published curves."""
    figure = _ByDevices(
        name="scaling",
        caption="Throughput by number of devices: both axes logarithmic; dotted: published.",
        unit="images/s",
        axis="images/s",
        ours=_named(rates),
        published=[(curve.label, _rates_of(curve)) for curve in report.curves],
    )
    return _by_devices(figure, first_published)


def _efficiency_figure(report: Report, first_published: int) -> Figure:
    """Return the plot of scaling efficiency, in percent, over the number of devices.

    It has a curve for each system of this report that was run on two numbers of devices or more, and then the published
    curves. `first_published` is the number of the style of the first published one, which is that of the plot of
    throughput: so a curve has the same colour in both.
    """
    shares = [_shares_of_rows(rows) for rows in report.scaling]
    figure = _ByDevices(
        name="efficiency",
        caption="Scaling efficiency by number of devices: speedup by devices, each against its own smallest count.",
        unit="%",
        axis="efficiency in % of the smallest count",
        ours=_named(shares),
        published=[(curve.label, _shares_of(curve)) for curve in report.curves],
    )
    return _by_devices(figure, first_published)


def _single_rates(groups: Sequence[Group]) -> list[list[tuple[int, float]]]:
    """Return the throughput of each system that has it at one device count alone."""
    curves = []
    for group in groups:
        if group.record.devices and group.score and group.score.unit == "images/s":
            curves.append([(group.record.devices, group.score.value)])
    return curves


def _rates_of(curve: Curve) -> list[tuple[float, float]]:
    """Return the devices and images/s of a published curve."""
    return [(row.devices or 1, row.value) for row in curve.rows]


def _shares_of(curve: Curve) -> list[tuple[float, float]]:
    """Return the devices and the efficiency in percent of a published curve."""
    return [(row.devices or 1, 100 * curve.efficiency(row)) for row in curve.rows]


def _rates_of_rows(rows: Sequence[ScalingRow]) -> list[tuple[int, float]]:
    """Return the devices and images/s of a system of this report."""
    return [(row.devices, row.images_per_s) for row in rows]


def _shares_of_rows(rows: Sequence[ScalingRow]) -> list[tuple[float, float]]:
    """Return the devices and the efficiency in percent of a system of this report."""
    return [(row.devices, 100 * row.efficiency) for row in rows]


def _by_devices(figure: _ByDevices, first_published: int) -> Figure:
    """Return a plot over the number of devices, with all its values as words for screen readers.

    `first_published` is the number of the style that the first published curve has; the next ones follow.
    """
    words = []
    for label, points in (*figure.ours, *figure.published):
        values = [f"{number(value)} {figure.unit} on {devices}" for devices, value in points]
        words.append(f"{label}: {', '.join(values)}")
    draw = functools.partial(
        plots.scaling,
        ours=figure.ours,
        published=figure.published,
        y=figure.axis,
        logarithmic=figure.name == "scaling",
        first=first_published,
    )
    title, _, _ = figure.caption.partition(":")
    return Figure(name=figure.name, title=title, caption=figure.caption, words="; ".join(words), draw=draw)


def _published(curves: Sequence[Curve]) -> Table:
    """Return the table of the published figures."""
    rows = []
    for curve in curves:
        for row in curve.rows:
            rows.append(_cells_of_published(curve, row))
    return blocks.table("Published figures, as printed", rows)


def _cells_of_published(curve: Curve, row: Published) -> list[Cell]:
    """Return the row of one published figure, with the row of published.csv that it comes from.

    The figure is as printed by its publisher; where the publisher's own log gives another, a note says which.
    """
    memory = row.accelerator_memory_gib or "? "
    note = "" if row.log_value is None else f"its own log gives {number(row.log_value)}"
    return [
        Cell("source", row.source),
        Cell("framework", row.framework),
        Cell("accelerator", f"{row.accelerator}, {memory} GB"),
        Cell("batch", str(row.batch_per_device or "not said"), numeric=True),
        Cell("devices", str(row.devices), numeric=True),
        Cell("images/s", row.printed, numeric=True),
        Cell("efficiency", percent(curve.efficiency(row)), numeric=True),
        Cell("note", note),
        Cell("row", f"published.csv:{row.line}"),
    ]
