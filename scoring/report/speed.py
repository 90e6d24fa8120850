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
from scoring.report.brief import NO_RATES, of_group, unit_of
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
from scoring.report.text import bounds, interval, number, percent

SHOWN_PANELS = 6  # plots of one kind; more are folded

# ---- throughput over time


def throughput(report: Report) -> Section:
    """Return each run's throughput over time, and its windows."""
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
    """Return the plots of several runs, the later ones folded; of one run, which is plotted above, its windows."""
    if not figures:
        return []
    if len(figures) == 1:
        windows = figures[0].numbers
        assert windows is not None
        return [Paragraph(text=figures[0].caption), Fold(summary="its windows", blocks=[windows])]
    parts: list[Block] = [*figures[:SHOWN_PANELS]]
    more = figures[SHOWN_PANELS:]
    if more:
        parts.append(Fold(summary=f"{len(more)} more runs", blocks=more))
    return parts


def _run_figure(report: Report, run: ReportedRun, line: Timeline) -> Figure:
    """Return the plot of one run's throughput, with the table of its windows."""
    points, axis = line
    unit = unit_of(run)
    windows = sum(len(point.windows) for point in points)
    together = ", neighbours put together" if windows > len(points) else ""
    value = None
    if run.figure and report.protocol.figure == "throughput":
        value = run.figure.value
    rates = bounds(point.images_per_s for point in points)
    span = _measured_span(points)
    measured = f"; measured from {span} {axis}" if span else ""
    rows = [_cells_of_point(run, point, axis, unit) for point in points]
    return Figure(
        name=f"throughput-{run.number}",
        title=f"Throughput of run {run.number} over time",
        caption=f"Run {run.number}: {rates} {unit} over {windows} windows{measured}.",
        draw=functools.partial(
            plots.throughput, runs=[(f"run {run.number}", points)], axis=axis, unit=unit, value=value
        ),
        numbers=blocks.table(f"Windows of run {run.number}{together}", rows),
    )


def _measured_span(points: Sequence[Point]) -> str:
    """Return where on the axis the measured points begin and end; empty where none was measured."""
    measured = [point for point in points if point.measured]
    if not measured:
        return ""
    return f"{_axis_value(measured[0].start)} to {_axis_value(measured[-1].end)}"


def _cells_of_point(run: ReportedRun, point: Point, axis: str, unit: str) -> list[Cell]:
    """Return the row of a point in the table of a run's windows."""
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
    """Return the parts of a mean step, for each shape."""
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
    """Return the device counts compared with each other and with the published tables."""
    parts: list[Block] = [Paragraph(text=report.curves_note)]
    if not report.scaling:
        text = "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more."
        parts.append(Paragraph(text=text, absent=True))
    if report.scaling or report.curves:
        parts += _scaling_figures(report)
    for at, rows in enumerate(report.scaling, 1):
        which = f" of system {at}" if len(report.scaling) > 1 else ""
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
    """Return the row of one device count."""
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
    """Return throughput and efficiency by devices: this report's curves beside the published ones."""
    our_rates = [_rates_of_rows(rows) for rows in report.scaling]
    if not our_rates:
        our_rates = _single_rates(report.groups)
    names = ["this report"]
    if len(our_rates) != 1:
        names = [f"this report, {at}" for at in range(1, len(our_rates) + 1)]

    rates = _ByDevices(
        name="scaling",
        caption="Throughput by number of devices: both axes logarithmic; dotted: published.",
        unit="images/s",
        axis="images/s",
        ours=list(zip(names, our_rates, strict=True)),
        published=[(curve.label, _rates_of(curve)) for curve in report.curves],
    )
    our_shares = [(name, _shares_of_rows(rows)) for name, rows in zip(names, report.scaling, strict=False)]
    shares = _ByDevices(
        name="efficiency",
        caption="Scaling efficiency by number of devices: speedup by devices, each against its own smallest count.",
        unit="%",
        axis="efficiency in % of the smallest count",
        ours=our_shares,  # none of a system with one device count
        published=[(curve.label, _shares_of(curve)) for curve in report.curves],
    )
    first_color = len(names) or 1
    return [_by_devices(rates, first_color), _by_devices(shares, first_color)]


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


def _by_devices(figure: _ByDevices, first_color: int) -> Figure:
    """Return the plot of a figure, whose published curves take their colours from the index `first_color` on."""
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
        first=first_color,
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
    """Return the row of one published figure."""
    memory = row.accelerator_memory_gib or "? "
    of_log = "" if row.log_value is None else f"its own log gives {number(row.log_value)}"
    return [
        Cell("source", row.source),
        Cell("framework", row.framework),
        Cell("accelerator", f"{row.accelerator}, {memory} GB"),
        Cell("batch", str(row.batch_per_device or "not said"), numeric=True),
        Cell("devices", str(row.devices), numeric=True),
        Cell("images/s", row.printed, numeric=True),
        Cell("efficiency", percent(curve.efficiency(row)), numeric=True),
        Cell("note", of_log),
        Cell("row", f"published.csv:{row.line}"),
    ]
