"""Sections on speed: throughput over time, where a step's time goes, and scaling."""

import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runlog.digits import counted
from runlog.run import real
from scoring.figure import warnings
from scoring.published.table import Published
from scoring.record import section
from scoring.report import blocks, plots
from scoring.report.blocks import Block, Cell, Figure, Fold, Inline, Paragraph, Section, Table, Text, field
from scoring.report.brief import link_to_runs
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
from scoring.report.overlay import unit_of_rates, why_no_plot
from scoring.report.text import efficiency_in_words, interval_in_words, number, range_in_words, short_percent

SHOWN_PANELS = 6  # plots of one kind; more are folded

# ---- throughput over time


def throughput(report: Report) -> Section:
    """Return the section of the report on each run's throughput over time: a plot with a table of its windows.

    The words next to the section's title give the range of the measured rates of all runs, in each unit.

    Args:
        report: The content of the report.

    Returns:
        The section. A run without rates has a sentence instead of a plot.
    """
    rates_by_run = {run.number: timeline(run) for run in report.runs}
    plots_of_runs = []
    sentences: list[Block] = []
    for run in report.runs:
        rates = rates_by_run[run.number]
        if rates.points:
            plots_of_runs.append(_plot_of_run(report, run, rates))
        else:
            sentences.append(Paragraph(text=f"Run {run.number}: {why_no_plot([run])}", absent=True))
    gist = _measured_rates_in_words(report.runs, rates_by_run)
    parts = [*_plot_blocks(plots_of_runs), *sentences]
    return Section(key="throughput", title="Throughput over time", gist=gist, blocks=parts)


def _measured_rates_in_words(runs: Sequence[ReportedRun], rates_by_run: Mapping[int, Timeline]) -> str:
    """Return the range of the measured rates of all runs, in each unit; "not measured" if there are none.

    Args:
        runs: The runs of the report.
        rates_by_run: Throughput of each run over time, by the run's number.
    """
    rates_by_unit: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        points = rates_by_run[run.number].points
        if points:
            rates_by_unit[unit_of_rates(run)] += [point.images_per_s for point in points if point.measured]
    ranges = [f"{range_in_words(rates)} {unit}" for unit, rates in rates_by_unit.items() if rates]
    return f"measured windows {', '.join(ranges)}" if ranges else NOT_MEASURED


def _plot_blocks(figures: Sequence[Figure]) -> list[Block]:
    """Return the parts of the page that show the runs' plots: the first SHOWN_PANELS of them, and the others folded.

    Of a single plot, only the caption and the table are shown, because the page begins with a plot of the same run.

    Args:
        figures: A plot for each run, with a table of its windows.

    Returns:
        The parts; empty without a plot.
    """
    if not figures:
        return []
    if len(figures) == 1:
        table_of_windows = figures[0].numbers
        assert table_of_windows is not None  # `_plot_of_run` gives each plot one
        return [Paragraph(text=figures[0].caption), Fold(summary="its windows", blocks=[table_of_windows])]
    parts: list[Block] = [*figures[:SHOWN_PANELS]]
    folded = figures[SHOWN_PANELS:]
    if folded:
        parts.append(Fold(summary=counted(len(folded), "more run"), blocks=folded))
    return parts


def _plot_of_run(report: Report, run: ReportedRun, rates_over_time: Timeline) -> Figure:
    """Return the plot of one run's throughput, with a caption and the table of what it draws.

    Args:
        report: The content of the report. If its protocol measures throughput, the run's figure is a horizontal line.
        run: The run.
        rates_over_time: Throughput of the run, at least one point. A point is a window, which is the steps between two
            printed rows of the log, or several neighbouring windows put together.
    """
    points = rates_over_time.points
    axis_unit = rates_over_time.axis_unit  # "s", "step" or "row"
    rate_unit = unit_of_rates(run)
    scored_rate = None  # drawn as a horizontal line
    if report.protocol.figure == "throughput" and run.figure is not None:
        scored_rate = run.figure.value
    window_count = sum(len(point.windows) for point in points)
    table_caption = f"Windows of run {run.number}"
    if window_count > len(points):
        table_caption += ", neighbours put together"
    runs = [plots.RunOfPlot(f"run {run.number}", points)]
    return Figure(
        name=f"throughput-{run.number}",
        title=f"Throughput of run {run.number} over time",
        caption=_caption_of_run(run, points, window_count, axis_unit),
        draw=functools.partial(
            plots.throughput, runs=runs, axis_unit=axis_unit, rate_unit=rate_unit, score=scored_rate
        ),
        numbers=blocks.table(table_caption, [_cells_of_point(run, point, axis_unit, rate_unit) for point in points]),
    )


def _measured_span(points: Sequence[Point]) -> str:
    """Return where the measured points of a plot begin and end on the axis, such as "120 to 900".

    Args:
        points: Throughput of a run over time. Measured points count for the run's figure.

    Returns:
        The text; empty if no point is measured.
    """
    measured = [point for point in points if point.measured]
    if not measured:
        return ""
    return f"{_place_on_axis(measured[0].start)} to {_place_on_axis(measured[-1].end)}"


def _caption_of_run(run: ReportedRun, points: Sequence[Point], window_count: int, axis_unit: str) -> str:
    """Return the caption of the plot of a run's throughput.

    For example, "Run 1: 340.1 to 352.8 images/s over 40 windows; measured from 120 to 900 s."

    Args:
        run: The run.
        points: Throughput of the run over time, at least one point.
        window_count: Number of windows that the points stand for.
        axis_unit: What the points' starts and ends count: "s", "step" or "row".
    """
    range_of_rates = range_in_words(point.images_per_s for point in points)
    caption = f"Run {run.number}: {range_of_rates} {unit_of_rates(run)} over {counted(window_count, 'window')}"
    measured_span = _measured_span(points)
    if measured_span:
        caption += f"; measured from {measured_span} {axis_unit}"
    return f"{caption}."


def _cells_of_point(run: ReportedRun, point: Point, axis_unit: str, rate_unit: str) -> list[Cell]:
    """Return the row of a point in the table of a run's windows. A point is a window, or several put together.

    Args:
        run: The run, for links to the lines of its log.
        point: Part of the run with its throughput.
        axis_unit: What the point's start and end count: "s", "step" or "row".
        rate_unit: Unit of the throughput, such as "images/s".
    """
    first = point.windows[0]
    last = point.windows[-1]
    last_step = "" if last.step is None else str(last.step)
    axis_suffix = "in s" if axis_unit == "s" else f"({axis_unit})"
    return [
        Cell("lines", blocks.links_to_lines(run, first.line, last.line)),
        Cell("last step", last_step, numeric=True),
        Cell(f"start {axis_suffix}", _place_on_axis(point.start), numeric=True),
        Cell(f"end {axis_suffix}", _place_on_axis(point.end), numeric=True),
        Cell(rate_unit, number(point.images_per_s), numeric=True),
        Cell("ms a step", _milliseconds(point), numeric=True),
        Cell("measured", "yes" if point.measured else "no"),
    ]


def _place_on_axis(value: float) -> str:
    """Return a place on the axis of time or steps as text: 1200.0 -> `1,200`, 61.25 -> `61.2`."""
    if value == int(value):
        return format(int(value), ",")
    return format(value, ",.1f")


def _milliseconds(point: Point) -> str:
    """Return the mean step time of a point's windows in milliseconds.

    Args:
        point: A window, which is the steps between two printed rows of the log, or several neighbouring ones.

    Returns:
        The time; "not said" unless all of the windows say it.
    """
    times_s: list[float] = values_of(point.windows, "step_s")
    all_say_it = len(times_s) == len(point.windows)
    if not times_s or not all_say_it:
        return "not said"
    return number(statistics.fmean(times_s) * 1000)


# ---- where a step's time goes


def step_time(report: Report) -> Section:
    """Return the section of the report on where a mean step's time goes: computation, all-reduce and wait for data.

    Args:
        report: The content of the report.

    Returns:
        The section: a table with a row for each group of repeated runs with a step time. If no group has one, a
        sentence says so.
    """
    title = "Where a step's time goes"
    rows = []
    gist = NOT_MEASURED
    for group in report.groups:
        if group.step_time is not None:
            rows.append(_cells_of_step(group, group.step_time))
            gist = f"{number(group.step_time.total_s * 1000)} ms a step"  # in the end that of the last group
    if not rows:
        text = f"{NOT_MEASURED.capitalize()}: the logs hold no step times."
        return Section(key="step", title=title, gist=gist, blocks=[Paragraph(text=text, absent=True)])
    table = blocks.table("Parts of a mean step of the measured windows", rows)
    return Section(key="step", title=title, gist=gist, blocks=[table])


def _cells_of_step(group: Group, step: StepTime) -> list[Cell]:
    """Return the row of a group in the table of steps: its mean step, and the parts of it."""
    return [
        Cell("system", group.name),
        Cell("step, ms", link_to_runs(group, number(step.total_s * 1000)), numeric=True),
        Cell("computation and rest, ms", _part(group, step, step.rest_s, ""), numeric=True),
        Cell("all-reduce, ms", _part(group, step, step.all_reduce_s, "not estimated"), numeric=True),
        Cell("data wait, ms", _part(group, step, step.data_wait_s, NOT_MEASURED), numeric=True),
        Cell("note", _all_reduce_note(group, step)),
    ]


def _part(group: Group, step: StepTime, seconds: float | None, otherwise: str) -> Inline:
    """Return a part of a step in milliseconds and as a share of the step, such as "12.30 (8.10%)".

    Args:
        group: The group of repeated runs that the step is of.
        step: The mean step.
        seconds: Length of the part; None if it is not known.
        otherwise: Text to return if the part is not known.
    """
    if seconds is None:
        return otherwise
    return link_to_runs(group, f"{number(seconds * 1000)} ({short_percent(seconds / step.total_s)})")


def _all_reduce_note(group: Group, step: StepTime) -> str:
    """Return how the time of the all-reduce is known, and how many MiB it sums if the log says it.

    Args:
        group: A group of repeated runs. On one device, no size is said.
        step: Parts of its mean step.
    """
    size_mib = real(section(group.record, "program").get("all_reduce_mib")) or 0.0
    if size_mib <= 0 or group.record.devices == 1:
        return step.all_reduce_note
    return f"{step.all_reduce_note} ({format(size_mib, ',.1f')} MiB of gradients are summed in a step)"


# ---- scaling


def scaling(report: Report) -> Section:
    """Return the report's section on scaling: how throughput grows with the number of devices.

    The section has plots, a table for each system that was run on several numbers of devices or nodes, and a table of
    published figures to compare with.

    Args:
        report: The content of the report. `report.scaling` has the rows of each such system, by ascending number of
            devices, and `report.curves` has the published figures. Each may be empty.
    """
    parts: list[Block] = [Paragraph(text=report.curves_note)]  # which published figures are shown, or why none are
    if not report.scaling:
        text = "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more."
        parts.append(Paragraph(text=text, absent=True))
    if report.scaling or report.curves:
        parts += _scaling_figures(report)  # two plots over the number of devices: throughput and efficiency
    for system_number, rows in enumerate(report.scaling, 1):
        of_system = f" of system {system_number}" if len(report.scaling) > 1 else ""  # for the caption
        parts += _scaling_table(rows, of_system)  # with a sentence on each efficiency that is too good to be true
    if report.curves:
        # The summary is the text to click on, which opens the table.
        parts.append(Fold(summary="published figures beside", blocks=[_published(report.curves)], in_markdown=True))

    rows_of_most_devices = [rows[-1] for rows in report.scaling]  # a row for each system
    # The words next to the section's title, such as "95.2% on 16 devices"
    gist = "; ".join(f"{efficiency_in_words(row.efficiency)} on {row.devices} devices" for row in rows_of_most_devices)
    if not gist:
        gist = f"efficiency {NOT_MEASURED}"
    return Section(key="scaling", title="Scaling and efficiency", gist=gist, blocks=parts)


def _scaling_table(rows: Sequence[ScalingRow], of_system: str) -> list[Block]:
    """Return the table of one system's device counts, and a sentence on each device that does too much to be true.

    Args:
        rows: A row for each group of runs, by ascending number of devices.
        of_system: End of the caption, " of system 2"; empty if the report has only one system.
    """
    caption = f"Speedup and efficiency{of_system}, against its own {counted(rows[0].devices, 'device')}"
    parts: list[Block] = [blocks.table(caption, [_cells_of_scaling(row, is_base=row is rows[0]) for row in rows])]
    for row in rows:
        for doubt in warnings.warn_if_over_linear(row.group.name, row.rate_of_a_device):
            parts.append(Paragraph(text=f"{doubt.found}."))
    return parts


def _cells_of_scaling(row: ScalingRow, *, is_base: bool) -> list[Cell]:
    """Return the row of a group of runs in a system's scaling table.

    Speedup and efficiency compare the group with the smallest number of devices that the system was run on.

    Args:
        row: The values of the row.
        is_base: Whether the group itself has the smallest number of devices.
    """
    group = row.group
    return [
        Cell("system", group.name),
        Cell("devices", field(group.runs[0], "devices"), numeric=True),
        Cell("images/s", link_to_runs(group, number(row.images_per_s)), numeric=True),
        Cell("speedup", link_to_runs(group, number(row.speedup)), numeric=True),
        Cell("95 % interval", _speedup_interval(row, is_base=is_base)),
        Cell("efficiency", link_to_runs(group, efficiency_in_words(row.efficiency)), numeric=True),
        Cell("runs", Text(text=str(len(group.runs)), href="runs"), numeric=True),
    ]


def _speedup_interval(row: ScalingRow, *, is_base: bool) -> Inline:
    """Return the 95 % interval of a speedup as text.

    Args:
        row: A row of a system's scaling table.
        is_base: Whether it has the smallest number of devices, with which the others are compared.

    Returns:
        The interval; "base" for the base, which is not compared with itself; "none" if the interval is not known.
    """
    if is_base:
        return "base"
    if row.speedup_95 is not None:
        return link_to_runs(row.group, interval_in_words(row.speedup_95))
    return "none"


class _PlotByDevices(NamedTuple):
    """A plot over the number of devices: its texts, and the curves of this report and of published tables."""

    name: str
    caption: str
    unit: str  # of the values, in words
    axis: str  # the name of the vertical axis
    is_logarithmic: bool  # whether that axis is; if not, it starts at 0
    ours: plots.Series
    published: plots.Series


def _scaling_figures(report: Report) -> list[Figure]:
    """Return two plots over the number of devices, throughput and efficiency, with our curves and published ones.

    A published curve has the same style, which is a colour and a marker, in both plots.

    Args:
        report: The content of the report.
    """
    our_rates = _our_rates(report)
    first_published_style = len(our_rates)  # styles are numbered from 0, ours first
    if not our_rates:
        first_published_style = 1  # style 0 stays free: in other reports it is that of "this report"
    return [
        _throughput_figure(report, our_rates, first_published_style),
        _efficiency_figure(report, first_published_style),
    ]


def _our_rates(report: Report) -> list[plots.Points]:
    """Return the curves of this report in the plot of throughput over the number of devices.

    Args:
        report: The content of the report.

    Returns:
        Points (devices, images/s) for each system that was run on several numbers of devices or nodes. If there is no
        such system, each group of runs with a throughput in images/s and a known number of devices is a curve of one
        point.
    """
    if report.scaling:
        return [_rates_of_rows(rows) for rows in report.scaling]
    return _single_rates(report.groups)


def _with_names(curves: Sequence[plots.Points]) -> plots.Series:
    """Return this report's curves with their names in a legend: "this report", or "this report, 2" if several."""
    if len(curves) == 1:
        return [("this report", curves[0])]
    return [(f"this report, {number_of_curve}", points) for number_of_curve, points in enumerate(curves, 1)]


def _throughput_figure(report: Report, our_rates: Sequence[plots.Points], first_published_style: int) -> Figure:
    """Return the plot of throughput over the number of devices, with the curves of our systems and published ones.

    Args:
        report: The content of the report.
        our_rates: Pairs of the number of devices and images/s: a curve for each of our systems, or for each group of
            runs if no system was run on several numbers of devices.
        first_published_style: Number of the colour and marker of the first published curve.
    """
    published_in_words = "; dotted: published" if report.curves else ""
    plot = _PlotByDevices(
        name="scaling",
        caption=f"Throughput by number of devices: both axes logarithmic{published_in_words}.",
        unit="images/s",
        axis="images/s",
        is_logarithmic=True,
        ours=_with_names(our_rates),
        published=[(curve.label, _rates_of(curve)) for curve in report.curves],
    )
    return _figure_by_devices(plot, first_published_style)


def _efficiency_figure(report: Report, first_published_style: int) -> Figure:
    """Return the plot of scaling efficiency over the number of devices, with our systems and published ones.

    The efficiency, in percent, is 100 * speedup / (devices / smallest devices), where the speedup is over the smallest
    number of devices of the same system.

    Args:
        report: The content of the report.
        first_published_style: Number of the colour and marker of the first published curve.
    """
    our_efficiencies = [_efficiencies_of_rows(rows) for rows in report.scaling]
    plot = _PlotByDevices(
        name="efficiency",
        caption="Scaling efficiency by number of devices: speedup by devices, each against its own smallest count.",
        unit="%",
        axis="efficiency in % of the smallest count",
        is_logarithmic=False,
        ours=_with_names(our_efficiencies),
        published=[(curve.label, _efficiencies_of(curve)) for curve in report.curves],
    )
    return _figure_by_devices(plot, first_published_style)


def _single_rates(groups: Sequence[Group]) -> list[plots.Points]:
    """Return a curve of a single point for each group: its devices and images/s, if it has both."""
    curves: list[plots.Points] = []
    for group in groups:
        if group.record.devices and group.score and group.score.unit == "images/s":
            curves.append([(group.record.devices, group.score.value)])
    return curves


def _rates_of(curve: Curve) -> list[tuple[float, float]]:
    """Return the devices and images/s of a published curve."""
    return [(row.devices or 1, row.value) for row in curve.rows]


def _efficiencies_of(curve: Curve) -> list[tuple[float, float]]:
    """Return the devices and the efficiency in percent of a published curve."""
    return [(row.devices or 1, 100 * curve.efficiency(row)) for row in curve.rows]


def _rates_of_rows(rows: Sequence[ScalingRow]) -> list[tuple[int, float]]:
    """Return the devices and images/s of a system of this report."""
    return [(row.devices, row.images_per_s) for row in rows]


def _efficiencies_of_rows(rows: Sequence[ScalingRow]) -> list[tuple[float, float]]:
    """Return the devices and the efficiency in percent of a system of this report, where it has one."""
    return [(row.devices, 100 * row.efficiency) for row in rows if row.efficiency is not None]


def _figure_by_devices(plot: _PlotByDevices, first_published_style: int) -> Figure:
    """Return a plot over the number of devices, with all its values in words for screen readers.

    Args:
        plot: The curves of the plot and its texts.
        first_published_style: Number of the colour and marker of the first published curve. The next published curves
            have the next numbers.
    """
    words = []
    for label, points in (*plot.ours, *plot.published):
        values = [f"{number(value)} {plot.unit} on {devices}" for devices, value in points]
        words.append(f"{label}: {', '.join(values)}")
    draw = functools.partial(
        plots.scaling,
        ours=plot.ours,
        published=plot.published,
        y=plot.axis,
        is_logarithmic=plot.is_logarithmic,
        first_published_style=first_published_style,
    )
    title, _, _ = plot.caption.partition(":")  # what comes before the first colon
    return Figure(name=plot.name, title=title, caption=plot.caption, words="; ".join(words), draw=draw)


def _published(curves: Sequence[Curve]) -> Table:
    """Return the table of the published figures."""
    rows = []
    for curve in curves:
        for row in curve.rows:
            rows.append(_cells_of_published(curve, row))
    return blocks.table("Published figures, as printed", rows)


def _cells_of_published(curve: Curve, figure: Published) -> list[Cell]:
    """Return the row of one published figure, with the line of published.csv that the figure comes from.

    Args:
        curve: The published table that has the figure. The efficiency compares the figure with the table's figure on
            one device.
        figure: The published figure.
    """
    memory = "?"
    if figure.accelerator_memory_gib is not None:
        memory = str(figure.accelerator_memory_gib)
    batch = "not said"
    if figure.batch_per_device is not None:
        batch = str(figure.batch_per_device)
    note = ""
    if figure.log_value is not None:  # the publisher's log gives another figure than the table
        note = f"its own log gives {number(figure.log_value)}"
    return [
        Cell("source", figure.source),
        Cell("framework", figure.framework),
        Cell("accelerator", f"{figure.accelerator}, {memory} GB"),
        Cell("batch", batch, numeric=True),
        Cell("devices", str(figure.devices), numeric=True),
        Cell("images/s", figure.printed, numeric=True),
        Cell("efficiency", short_percent(curve.efficiency(figure)), numeric=True),
        Cell("note", note),
        Cell("row", f"published.csv:{figure.line}"),
    ]
