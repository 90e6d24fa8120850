"""Sections on speed: throughput over time, where a step's time goes, and scaling."""

import functools
import statistics
from collections.abc import Sequence
from typing import Any

from runlog.run import real
from scoring.figure import warnings
from scoring.importers.checks import REFUSED
from scoring.record import section
from scoring.report import blocks, plots
from scoring.report.blocks import Column, Figure, Fold, Inline, Paragraph, Section, Table, Text, field
from scoring.report.brief import NO_RATES, of_group, unit_of
from scoring.report.content import NOT_MEASURED, Group, Point, Report, ReportedRun, ScalingRow, StepTime, timeline
from scoring.report.text import bounds, interval, number, percent

SHOWN_PANELS = 6  # plots of one kind; more are folded


def throughput(report: Report) -> Section:
    """Each run's throughput over time, and its windows."""
    drawn = [(run, *timeline(run)) for run in report.runs]
    figures = [_run_figure(report, run, points, axis) for run, points, axis in drawn if points]
    parts: list[Any] = []
    if len(figures) > 1:
        parts += figures[:SHOWN_PANELS]
        if more := figures[SHOWN_PANELS:]:
            parts.append(Fold(summary=f"{len(more)} more runs", blocks=more))
    elif figures and figures[0].numbers:
        parts += [Paragraph(text=figures[0].caption), Fold(summary="its windows", blocks=[figures[0].numbers])]
    parts += [Paragraph(text=f"Run {run.number}: {NO_RATES}", absent=True) for run, points, _ in drawn if not points]
    rates = [point.images_per_s for _, points, _ in drawn for point in points if point.measured]
    gist = f"measured windows {bounds(rates)} images/s" if rates else NOT_MEASURED
    return Section(key="throughput", title="Throughput over time", gist=gist, blocks=parts)


def _run_figure(report: Report, run: ReportedRun, points: Sequence[Point], axis: str) -> Figure:
    unit = unit_of(run)
    measured = [point for point in points if point.measured]
    ends = f"{_axis_value(measured[0].start)} to {_axis_value(measured[-1].end)}" if measured else ""
    windows = sum(len(point.windows) for point in points)
    rates = bounds(point.images_per_s for point in points)
    span = f"; measured from {ends} {axis}" if ends else ""
    what = f"in {axis}" if axis == "s" else f"({axis})"
    columns: list[Column[Point]] = [
        Column("lines", lambda point: blocks.between(run, point.windows[0].line, point.windows[-1].line)),
        Column("last step", lambda point: "" if (step := point.windows[-1].step) is None else str(step), numeric=True),
        Column(f"start {what}", lambda point: _axis_value(point.start), numeric=True),
        Column(f"end {what}", lambda point: _axis_value(point.end), numeric=True),
        Column(unit, lambda point: number(point.images_per_s), numeric=True),
        Column("ms a step", _milliseconds, numeric=True),
        Column("measured", lambda point: "yes" if point.measured else "no"),
    ]
    together = ", neighbours put together" if windows > len(points) else ""
    of_figure = run.figure.value if run.figure and report.protocol.figure == "throughput" else None
    return Figure(
        name=f"throughput-{run.number}",
        title=f"Throughput of run {run.number} over time",
        caption=f"Run {run.number}: {rates} {unit} over {windows} windows{span}.",
        draw=functools.partial(
            plots.throughput, runs=[(f"run {run.number}", points)], axis=axis, unit=unit, value=of_figure
        ),
        numbers=blocks.table(f"Windows of run {run.number}{together}", points, columns),
    )


def step_time(report: Report) -> Section:
    """The parts of a mean step, of each shape."""
    title = "Where a step's time goes"
    timed = [(group, group.step_time) for group in report.groups if group.step_time is not None]
    if not timed:
        text = f"{NOT_MEASURED.capitalize()}: the logs hold no step times."
        return Section(key="step", title=title, gist=NOT_MEASURED, blocks=[Paragraph(text=text, absent=True)])
    columns: list[Column[tuple[Group, StepTime]]] = [
        Column("system", lambda row: row[0].name),
        Column("step, ms", lambda row: of_group(row[0], number(row[1].total_s * 1000)), numeric=True),
        Column("computation and rest, ms", lambda row: _part(row, row[1].rest_s, ""), numeric=True),
        Column("all-reduce, ms", lambda row: _part(row, row[1].all_reduce_s, "not estimated"), numeric=True),
        Column("data wait, ms", lambda row: _part(row, row[1].data_wait_s, NOT_MEASURED), numeric=True),
        Column("note", _all_reduce_note),
    ]
    table = blocks.table("Parts of a mean step of the measured windows", timed, columns)
    return Section(key="step", title=title, gist=f"{number(timed[-1][1].total_s * 1000)} ms a step", blocks=[table])


def _part(row: tuple[Group, StepTime], seconds: float | None, otherwise: str) -> Inline:
    group, step = row
    if seconds is None:
        return otherwise
    return of_group(group, f"{number(seconds * 1000)} ({percent(seconds / step.total_s)})")


def _all_reduce_note(row: tuple[Group, StepTime]) -> str:
    group, step = row
    size = real(section(group.record, "program").get("all_reduce_mib")) or 0.0
    summed = f" ({size:,.1f} MiB of gradients are summed in a step)" if size > 0 and group.record.devices != 1 else ""
    return step.all_reduce_note + summed


def _efficiency(row: ScalingRow) -> str:
    return percent(row.efficiency) if row.efficiency <= REFUSED else "no figure: at most 100 %"


def scaling(report: Report) -> Section:
    """Device counts against each other and beside the published tables."""
    parts: list[Any] = [Paragraph(text=report.curves_note)]
    if not report.scaling:
        text = "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more."
        parts.append(Paragraph(text=text, absent=True))
    if report.scaling or report.curves:
        parts += _scaling_figures(report)
    columns: list[Column[ScalingRow]] = [
        Column("system", lambda row: row.group.name),
        Column("devices", lambda row: field(row.group.runs[0], "devices"), numeric=True),
        Column("images/s", lambda row: of_group(row.group, number(row.images_per_s)), numeric=True),
        Column("speedup", lambda row: of_group(row.group, number(row.speedup)), numeric=True),
        Column("95 % interval", _speedup_interval),
        Column("efficiency", lambda row: of_group(row.group, _efficiency(row)), numeric=True),
        Column("runs", lambda row: Text(text=str(len(row.group.runs)), href="runs"), numeric=True),
    ]
    for at, rows in enumerate(report.scaling, 1):
        which = f" of system {at}" if len(report.scaling) > 1 else ""
        caption = f"Speedup and efficiency{which}, against its own {rows[0].devices} device(s)"
        parts.append(blocks.table(caption, rows, columns))
        doubts = [doubt for row in rows for doubt in warnings.of_efficiency(row.group.name, row.efficiency)]
        parts += [Paragraph(text=f"{doubt.found}.") for doubt in doubts]
    if report.curves:
        parts.append(Fold(summary="published figures beside", blocks=[_published(report)], in_markdown=True))
    gist = "; ".join(f"{_efficiency(rows[-1])} on {rows[-1].devices} devices" for rows in report.scaling)
    gist = gist or f"efficiency {NOT_MEASURED}"
    return Section(key="scaling", title="Scaling and efficiency", gist=gist, blocks=parts)


def _speedup_interval(row: ScalingRow) -> Inline:
    if row.speedup_95 is None:
        return "base" if row.speedup == 1 else "none"
    return of_group(row.group, interval(row.speedup_95))


def _scaling_figures(report: Report) -> list[Figure]:
    """Throughput and efficiency by devices: this report's curves beside the published ones."""
    ours = [[(row.devices, row.images_per_s) for row in rows] for rows in report.scaling]
    if not ours:
        scored = [(group.record.devices, group.score) for group in report.groups]
        ours = [[(n, score.value)] for n, score in scored if n and score and score.unit == "images/s"]
    names = ["this report"] if len(ours) == 1 else [f"this report, {at}" for at in range(1, len(ours) + 1)]
    theirs = [(curve.label, [(row.devices or 1, row.value) for row in curve.rows]) for curve in report.curves]
    rates = "Throughput by number of devices: both axes logarithmic; dotted: published."
    figures = [_by_devices("scaling", rates, "images/s", names, ours, theirs, "images/s")]
    ours = [[(row.devices, 100 * row.efficiency) for row in rows] for rows in report.scaling]
    others = [(c.label, [(row.devices or 1, 100 * c.efficiency(row)) for row in c.rows]) for c in report.curves]
    shares = "Scaling efficiency by number of devices: speedup by devices, each against its own smallest count."
    axis = "efficiency in % of the smallest count"
    return [*figures, _by_devices("efficiency", shares, "%", names, ours, others, axis)]


def _by_devices(
    name: str, caption: str, unit: str, names: list[str], ours: list[Any], theirs: plots.Series, axis: str
) -> Figure:
    mine = list(zip(names, ours, strict=False))  # of one device count there is no efficiency
    words = "; ".join(
        f"{label}: " + ", ".join(f"{number(value)} {unit} on {devices}" for devices, value in points)
        for label, points in (*mine, *theirs)
    )
    look: dict[str, Any] = {"y": axis, "logarithmic": name == "scaling", "first": len(names) or 1}
    draw = functools.partial(plots.scaling, ours=mine, published=theirs, **look)
    return Figure(name=name, title=caption.split(":")[0], caption=caption, words=words, draw=draw)


def _published(report: Report) -> Table:
    columns: list[Column[Any]] = [
        Column("source", lambda one: one[1].source),
        Column("framework", lambda one: one[1].framework),
        Column("accelerator", lambda one: f"{one[1].accelerator}, {one[1].accelerator_memory_gib or '? '} GB"),
        Column("batch", lambda one: str(one[1].batch_per_device or "not said"), numeric=True),
        Column("devices", lambda one: str(one[1].devices), numeric=True),
        Column("images/s", lambda one: one[1].printed, numeric=True),
        Column("efficiency", lambda one: percent(one[0].efficiency(one[1])), numeric=True),
        Column("note", lambda one: f"its own log gives {number(v)}" if (v := one[1].log_value) is not None else ""),
        Column("row", lambda one: f"published.csv:{one[1].line}"),
    ]
    rows = [(curve, row) for curve in report.curves for row in curve.rows]
    return blocks.table("Published figures, as printed", rows, columns)


def _axis_value(value: float) -> str:
    """A place on the axis of time or steps."""
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"


def _milliseconds(point: Point) -> str:
    """Mean step time."""
    known = [time for window in point.windows if (time := window.step_s) is not None]
    return number(statistics.fmean(known) * 1000) if known and len(known) == len(point.windows) else "not said"
