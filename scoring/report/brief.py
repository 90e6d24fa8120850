"""The first screen: what ran, its figure, how far it stands, all runs in one plot, and what to do next."""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from runlog.text import visible
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure.run import RunFigure
from scoring.record import nodes_of, section
from scoring.report import blocks, plots
from scoring.report.blocks import NOT_SAID, Column, Figure, Inline, Paragraph, Table, Text, at_line, field
from scoring.report.content import Group, Point, Report, ReportedRun, timeline
from scoring.report.text import bounds, counted, interval, number

MOST_OVERLAID = 16  # runs in one plot: more have no marker and dash of their own
MOST_NAMED = 8  # systems in the title
# What each status looks like: a mark that is told apart without colour, and its word.
NO_STATUS = "none"  # of a check that does not apply
STATUSES = {OK: ("✓", "ok"), WARNING: ("!", "warning"), FATAL: ("✕", "fatal"), UNKNOWN: ("?", "open")}
STATUSES[NO_STATUS] = ("–", "not applicable")


def of_all(texts: Sequence[str]) -> str:
    """One text a system; of many only the first ones."""
    more = [f"and {len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return "; ".join([*texts[:MOST_NAMED], *more])


def figure_of(group: Group) -> str:
    """The figure with its unit, and "unverified" where it is of an MLPerf result."""
    return _with_unit(group.score.value, group.score.shown_unit) if group.score else "no figure"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}" if math.isfinite(value) else number(value)


def of_group(group: Group, text: str) -> Inline:
    """A number of a group's runs, as a link to where it comes from: the lines of one run, the table of several."""
    run = group.runs[0]
    if len(group.runs) > 1:
        return Text(text=text, href="runs")
    return at_line(run, run.figure.first_line, text) if run.figure else text


def facts(report: Report) -> list[tuple[str, Inline]]:
    """Return what ran, when and where from."""
    run = report.headline.runs[0]
    organisation, at = run.preamble.get("submission_org", (None, None))
    starts = sorted((*start, run) for run in report.runs if (start := run.preamble.get("start_s")) and _day(start[0]))
    days = {_day(start): at_line(run, line, _day(start)) for start, line, run in starts}
    source, at_source = section(run.record, "source"), run.header_lines.get("source")
    dirty = " with uncommitted changes" if source.get("dirty") else ""
    commit = f"{str(source['commit'])[:12]}{dirty}" if source.get("commit") else ""
    systems = {getattr(found, "text", found): found for g in report.groups if (found := hardware(g.runs[0]))}
    dates = [day for at, day in enumerate(days.values()) if at in (0, len(days) - 1)]
    result = report.headline.score.standing if report.headline.score else None
    named = [] if result is None else [("result", result.name), ("data set", result.dataset_in_words)]
    return [
        *named,
        ("system", _joined(list(systems.values()), "; ") or NOT_SAID),
        ("date", _joined(dates, " to ") or NOT_SAID),
        ("organisation", at_line(run, at, visible(organisation, 80)) if organisation else NOT_SAID),
        ("commit", at_line(run, at_source, commit) if commit else NOT_SAID),
        ("framework", field(run, "framework")),
        ("protocol", f"{report.protocol.name}: {report.protocol.describe()}"),
    ]


def _joined(items: Sequence[Inline], between: str) -> list[Inline]:
    return [part for item in items for part in (between, item)][1:]


def _day(unix_s: float) -> str:
    """The day in UTC; empty for a time stamp that is none."""
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return ""


def hardware(run: ReportedRun) -> Inline:
    """The platform that the log names, and the devices of each kind of node."""
    platform, line = run.preamble.get("submission_platform", (None, None))
    devices = run.record.machine if nodes_of(run.record) else None
    shown = "; ".join(visible(text, 160) for text in (platform, devices) if text)
    return at_line(run, line or run.header_lines.get("hardware"), shown) if shown else ""


def tiles(report: Report) -> list[tuple[Inline, str, Inline]]:
    """Return what is set large, with unit and name: the headline's figure, its runs, their time and quality."""
    group, result = report.headline, report.headline.score
    system = f"{group.name}: " if len(report.groups) > 1 else ""
    shown: list[tuple[Inline, str, Inline]] = [("no figure", "", system + (group.problem or ""))]
    if result is not None:
        method = result.interval_method
        bounds = f"{interval(result.interval_95)} ({method})" if result.interval_95 else method
        one_clock = result.one_clock and result.protocol.figure == "throughput"
        doubt = " One clock: nothing else in the log confirms the times." if one_clock else ""
        figure = of_group(group, number(result.value))
        spread = [f"standard deviation {number(result.spread)} over {result.spread_over}"] if result.spread else []
        runs = Text(text=counted(len(result.runs), "run"), href="runs")
        shown = [
            (figure, result.shown_unit, f"{system}95 % interval {bounds}.{doubt}"),
            (runs, "", of_group(group, "; ".join([*spread, *result.limits]))),
        ]
    timed = [run.record for run in group.runs if run.record.run_time_s is not None]
    ended = [record for record in timed if record.status in (None, "success")]  # an aborted run has no time to train
    times = [record.run_time_s for record in ended if record.run_time_s is not None]
    if times and group.record.mode != "throughput" and (result is None or result.unit != "minutes"):
        factor, unit = plots.time_unit(max(times))
        several = f", median of {len(times)} runs" if len(times) > 1 else ""
        if len(ended) < len(timed):
            several += f" that ended with success, of {len(timed)}"
        middle = Text(text=number(statistics.median(times) / factor), href="times")
        shown.append((middle, unit, f"time to train: run_start to run_stop{several}."))
    final = [(run.record.quality[-1], run) for run in group.runs if run.record.quality]
    if final:
        worst, of_run = min(final, key=lambda item: item[0].value)
        which = "final" if len(final) == 1 else f"lowest final of {len(final)} runs"
        shown.append((at_line(of_run, worst.line, f"{worst.value:.4g}"), "", f"{worst.name}, {which}"))
    return shown


def overlay(report: Report) -> Figure | Paragraph:
    """All runs in one plot from zero, as far as they share an axis."""
    return _overlay(report, from_zero=True) or Paragraph(text=NO_RATES, absent=True)


def zoomed(report: Report) -> list[Figure]:
    """Return a plot of the runs as high as their measured windows differ; none where no window was measured."""
    figure = _overlay(report, from_zero=False)
    return [figure] if figure else []


def _overlay(report: Report, *, from_zero: bool) -> Figure | None:
    """The plot of all runs that share the first one's axis; None where no run has rates.

    The zoomed plot has the measured windows alone: the warm-up would press them flat.
    """
    drawn: list[tuple[ReportedRun, list[Point], str]] = []
    for run in report.runs:
        points, axis = timeline(run)
        if not from_zero:
            points = [point for point in points if point.measured]
        if points:
            drawn.append((run, points, axis))
    if not drawn:
        return None

    first_run, _, axis = drawn[0]
    unit = unit_of(first_run)
    shared = [(run, points) for run, points, own_axis in drawn if own_axis == axis][:MOST_OVERLAID]
    ranges = []
    for run, points in shared:
        ranges.append(f"run {run.number} {bounds(point.images_per_s for point in points)}")
    left_out = f"; {len(report.runs) - len(shared)} more below" if len(report.runs) > len(shared) else ""

    one_figure = report.headline.score if len(report.groups) == 1 and report.protocol.figure == "throughput" else None
    title = "Throughput of all runs over time" if len(shared) > 1 else "Throughput over time"
    head = f"Throughput in {unit}" if from_zero else f"Measured windows in {unit}, on an axis that does not start at 0"
    return Figure(
        name="overlay" if from_zero else "overlay-zoomed",
        title=title if from_zero else f"{title}, measured windows enlarged",
        caption=f"{head}: {'; '.join(ranges)}{left_out}.",
        draw=functools.partial(
            plots.throughput,
            runs=[(_label(report, run), points) for run, points in shared],
            axis=axis,
            unit=unit,
            value=one_figure.value if one_figure else None,
            from_zero=from_zero,
        ),
    )


def _label(report: Report, run: ReportedRun) -> str:
    """A run in a legend, with its devices where the runs differ in them."""
    of_devices = f" ({run.record.devices} dev.)" if len(report.groups) > 1 and run.record.devices else ""
    return f"run {run.number}{of_devices}"


NO_RATES = "Throughput over time: not shown; the logs have neither rates nor images and seconds (give --batch)."


def unit_of(run: ReportedRun) -> str:
    """Return the unit of the rates of a run's windows."""
    return "images/s per device" if run.record.rate_scope == "device" and run.record.devices is None else "images/s"


def tables(report: Report) -> list[Table]:
    """Each run, each system where there are several, and the warnings."""
    units = {run.number: group.score.shown_unit for group in report.groups if group.score for run in group.runs}
    of_runs: list[Column[ReportedRun]] = [
        Column("run", blocks.run_link),
        Column("figure", lambda run: _figure(run, lambda figure: _with_unit(figure.value, units[run.number])), True),
        Column("devices", lambda run: field(run, "devices"), numeric=True),
        Column("batch a device", lambda run: field(run, "batch_per_device"), numeric=True),
        Column("precision", lambda run: field(run, "precision")),
        Column("windows", lambda run: _figure(run, lambda figure: str(figure.windows)), numeric=True),
        Column("log lines", blocks.lines_of),
        Column("log", lambda run: run.record.file),
    ]
    of_groups: list[Column[Group]] = [
        Column("system and shape", lambda group: group.name),
        Column("figure", lambda group: of_group(group, figure_of(group)), numeric=True),
        Column("95 % interval", _interval),
        Column("runs", lambda group: Text(text=str(len(group.runs)), href="runs"), numeric=True),
        Column("note", lambda group: group.problem or ""),
    ]
    of_warnings: list[Column[Verdict]] = [
        Column("warning", lambda warning: warning.check.replace("_", " ")),
        Column("what it means here", lambda warning: warning.found),
        Column("where", functools.partial(_where, {run.record.file: run for run in report.runs})),
    ]
    caption = "Each run under the protocol, and the lines that its figure comes from"
    shown = [blocks.table(caption, report.runs, of_runs, id="runs")]
    if len(report.groups) > 1:
        shown.append(blocks.table("Each system's figure", report.groups, of_groups))
    if report.warnings:
        shown.append(blocks.table("Warnings about the figures", report.warnings, of_warnings))
    return shown


def _interval(group: Group) -> Inline:
    return of_group(group, interval(group.score.interval_95) if group.score else "")


def _figure(run: ReportedRun, shown: Callable[[RunFigure], str]) -> Inline:
    """Something of a run's figure, as a link to its first line."""
    return at_line(run, run.figure.first_line, shown(run.figure)) if run.figure else "no figure"


def _where(by_file: Mapping[str, ReportedRun], warning: Verdict) -> Inline:
    run, line = by_file.get(warning.figures["file"] or ""), warning.figures["line"]
    if run is None:
        return ""
    return [blocks.run_link(run), ", ", at_line(run, line)] if line is not None else blocks.run_link(run)
