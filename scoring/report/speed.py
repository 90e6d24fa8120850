"""Sections on speed: throughput over time, where a step's time goes, and scaling."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import Any

from scoring.report import plots
from scoring.report.blocks import Figure, Fold, Inline, Paragraph, Section, Table, from_lines, lines_of
from scoring.report.brief import NO_RATES, unit_of
from scoring.report.content import NOT_MEASURED, Group, Point, Report, ReportedRun, StepTime, seconds_per_step, timeline
from scoring.report.step_time import all_reduce_mib
from scoring.report.text import interval, number, percent

SHOWN_PANELS = 6  # plots of one kind; more are folded


def throughput(report: Report) -> Section:
    """Each run's throughput over time, and its windows."""
    drawn = [(run, *timeline(run)) for run in report.runs]
    figures = [_run_figure(report, run, points, axis) for run, points, axis in drawn if points]
    blocks: list[Any] = []
    if len(figures) > 1:
        blocks += figures[:SHOWN_PANELS]
        if more := figures[SHOWN_PANELS:]:
            blocks.append(Fold(summary=f"{len(more)} more runs", blocks=more))
    elif figures and figures[0].numbers:
        blocks += [Paragraph(text=figures[0].caption), Fold(summary="its windows", blocks=[figures[0].numbers])]
    blocks += [Paragraph(text=f"Run {run.number}: {NO_RATES}", absent=True) for run, points, _ in drawn if not points]
    rates = [point.images_per_s for _, points, _ in drawn for point in points if point.measured]
    gist = f"measured windows {number(min(rates))} to {number(max(rates))} images/s" if rates else NOT_MEASURED
    return Section(key="throughput", title="Throughput over time", gist=gist, blocks=blocks)


def _run_figure(report: Report, run: ReportedRun, points: Sequence[Point], axis: str) -> Figure:
    unit = unit_of(run)
    rates = [point.images_per_s for point in points]
    measured = [point for point in points if point.measured]
    span = ""
    if measured:
        span = f"; measured from {_axis_value(measured[0].start)} to {_axis_value(measured[-1].end)} {axis}"
    windows = sum(len(point.windows) for point in points)
    caption = f"Run {run.number}: {number(min(rates))} to {number(max(rates))} {unit} over {windows} windows{span}."
    rows: list[list[Inline]] = [
        [
            lines_of(run, point.windows[0].line, point.windows[-1].line),
            "" if point.windows[-1].step is None else str(point.windows[-1].step),
            _axis_value(point.start),
            _axis_value(point.end),
            number(point.images_per_s),
            _milliseconds([seconds_per_step(window) for window in point.windows]),
            "yes" if point.measured else "no",
        ]
        for point in points
    ]
    together = ", neighbours put together" if windows > len(points) else ""
    what = f"in {axis}" if axis == "s" else f"({axis})"
    head = ["lines", "last step", f"start {what}", f"end {what}", unit, "ms a step", "measured"]
    of_figure = run.figure.value if run.figure and report.protocol.figure == "throughput" else None
    return Figure(
        name=f"throughput-{run.number}",
        title=f"Throughput of run {run.number} over time",
        caption=caption,
        draw=functools.partial(
            plots.throughput, runs=[(f"run {run.number}", points)], axis=axis, unit=unit, value=of_figure
        ),
        numbers=Table(caption=f"Windows of run {run.number}{together}", head=head, rows=rows, numeric=(1, 2, 3, 4, 5)),
    )


def step_time(report: Report) -> Section:
    """The parts of a mean step, of each shape."""
    title = "Where a step's time goes"
    timed = [(group, group.step_time) for group in report.groups if group.step_time is not None]
    if not timed:
        text = f"{NOT_MEASURED.capitalize()}: the logs hold no step times."
        return Section(key="step", title=title, gist=NOT_MEASURED, blocks=[Paragraph(text=text, absent=True)])
    counts = {group.record.devices for group, _ in timed}
    distinct = len(counts) == len(timed) and None not in counts
    bars, rows, words = [], [], []
    for at, (group, step) in enumerate(timed, 1):
        shares = [("rest", step.rest, step.rest_s * 1000)]
        if step.all_reduce_s:
            shares.append(("exchange", "all-reduce (estimate)", step.all_reduce_s * 1000))
        if step.data_wait_s is not None:
            shares.append(("wait", "data wait", step.data_wait_s * 1000))
        name = (f"{group.record.devices} dev." if group.record.devices else f"{at}") if len(timed) > 1 else ""
        bars.append((name, shares))
        words.append(f"{name or group.name}: " + ", ".join(f"{part} {number(value)} ms" for _, part, value in shares))
        rows.append(_step_row(group, step, group.name if distinct or len(timed) == 1 else f"{at}: {group.name}"))
    head = ["system", "step, ms", "computation and rest, ms", "all-reduce, ms", "data wait, ms", "from lines", "note"]
    figure = Figure(
        name="step-times",
        title=title,
        caption=f"Mean step of the measured windows. {'; '.join(words)}.",
        draw=functools.partial(plots.step_times, bars=bars),
    )
    table = Table(caption="Parts of a mean step", head=head, rows=rows, numeric=(1, 2, 3, 4))
    gist = f"{number(timed[-1][1].total_s * 1000)} ms a step"
    return Section(key="step", title=title, gist=gist, blocks=[figure, table])


def _step_row(group: Group, step: StepTime, name: str) -> list[Inline]:
    def part(seconds: float | None, absent: str) -> str:
        return absent if seconds is None else f"{number(seconds * 1000)} ({percent(seconds / step.total_s)})"

    devices = group.record.devices
    size = all_reduce_mib(group.record) if devices is None or devices > 1 else None
    note = step.all_reduce_note + (f" ({size:,.1f} MiB of gradients are summed in a step)" if size else "")
    times = [part(step.rest_s, ""), part(step.all_reduce_s, "not estimated"), part(step.data_wait_s, NOT_MEASURED)]
    return [name, number(step.total_s * 1000), *times, from_lines(group.runs), note]


def scaling(report: Report) -> Section:
    """Device counts against each other and beside the published tables."""
    blocks: list[Any] = [Paragraph(text=report.curves_note)]
    if not report.scaling:
        text = "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more."
        blocks.append(Paragraph(text=text, absent=True))
    if report.scaling or report.curves:
        blocks += _scaling_figures(report)
    for at, rows in enumerate(report.scaling, 1):
        which = f" of system {at}" if len(report.scaling) > 1 else ""
        blocks.append(
            Table(
                caption=f"Speedup and efficiency{which}, against its own {rows[0].devices} device(s)",
                head=["devices", "images/s", "speedup", "95 % interval", "efficiency", "runs", "from lines"],
                rows=[
                    [
                        str(row.devices),
                        number(row.images_per_s),
                        number(row.speedup),
                        interval(row.speedup_95, "base" if row is rows[0] else "none"),
                        percent(row.efficiency),
                        str(len(row.group.runs)),
                        from_lines(row.group.runs),
                    ]
                    for row in rows
                ],
                numeric=(0, 1, 2, 4, 5),
            )
        )
    if report.curves:
        blocks.append(Fold(summary="published figures beside", blocks=[_published(report)], in_markdown=True))
    last = report.scaling[0][-1] if report.scaling else None
    gist = f"{percent(last.efficiency)} on {last.devices} devices" if last else f"efficiency {NOT_MEASURED}"
    return Section(key="scaling", title="Scaling and efficiency", gist=gist, blocks=blocks)


def _scaling_figures(report: Report) -> list[Figure]:
    scored = [g for g in report.groups if g.score and g.record.devices and g.score.unit == "images/s"]
    own = [[(row.devices, row.images_per_s) for row in rows] for rows in report.scaling]
    own = own or [[(g.record.devices or 1, g.score.value)] for g in scored if g.score]
    names = ["this report" if len(own) == 1 else f"this report, {at}" for at in range(1, len(own) + 1)]
    shares = [[(row.devices, row.efficiency * 100) for row in rows] for rows in report.scaling]
    published = [(curve.label, [(row.devices or 1, row.value) for row in curve.rows]) for curve in report.curves]
    published_shares = [
        (curve.label, [(row.devices or 1, curve.efficiency(row) * 100) for row in curve.rows])
        for curve in report.curves
    ]

    def figure(name: str, caption: str, unit: str, ours: Any, theirs: Any, **how: Any) -> Figure:
        words = "; ".join(
            f"{label}: " + ", ".join(f"{number(value)} {unit} on {devices}" for devices, value in points)
            for label, points in [*ours, *theirs]
        )
        draw = functools.partial(plots.scaling, ours=ours, published=theirs, first=len(names) or 1, **how)
        return Figure(name=name, title=caption.split(":")[0], caption=caption, words=words, draw=draw)

    rates_caption = "Throughput by number of devices: both axes logarithmic; dotted: published."
    shares_caption = "Scaling efficiency by number of devices: speedup by devices, each against its own smallest count."
    rates = list(zip(names, own, strict=True))
    return [
        figure("scaling", rates_caption, "images/s", rates, published, y="images/s", logarithmic=True),
        figure(
            "efficiency",
            shares_caption,
            "%",
            list(zip(names, shares, strict=False)),
            published_shares,
            y="efficiency in % of the smallest count",
            logarithmic=False,
        ),
    ]


def _published(report: Report) -> Table:
    rows = [
        [
            row.source,
            row.framework,
            f"{row.accelerator}, {row.accelerator_memory_gib or '? '} GB",
            str(row.batch_per_device or "not said"),
            str(row.devices),
            row.printed,
            percent(curve.efficiency(row)),
            f"its own log gives {number(row.log_value)}" if row.log_value is not None else "",
            f"published.csv:{row.line}",
        ]
        for curve in report.curves
        for row in curve.rows
    ]
    head = ["source", "framework", "accelerator", "batch", "devices", "images/s", "efficiency", "note", "row"]
    return Table(caption="Published figures, as printed", head=head, rows=rows, numeric=(3, 4, 5, 6))


def _axis_value(value: float) -> str:
    """A place on the axis of time or steps."""
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"


def _milliseconds(times: Sequence[float | None]) -> str:
    """Mean of step times."""
    known = [time for time in times if time is not None]
    return number(statistics.fmean(known) * 1000) if known and len(known) == len(times) else "not said"
