"""The first screen: what ran, its figure, how far it stands, all runs in one plot, and what to do next."""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from runlog.text import visible
from scoring.report import plots
from scoring.report.blocks import (
    Figure,
    Inline,
    Paragraph,
    Table,
    Text,
    Tile,
    absent,
    at_line,
    field,
    lines_of,
    run_link,
)
from scoring.report.content import Check, Group, Report, ReportedRun, nodes_of, section, timeline
from scoring.report.text import interval, number

MOST_OVERLAID = 16  # runs in one plot: more have no marker and dash of their own
# What each state of a check looks like: a mark that is told apart without colour, and its word.
STATES = {
    "good": ("✓", "good"),
    "doubt": ("!", "doubt"),
    "bad": ("✕", "bad"),
    "unknown": ("?", "open"),
    "none": ("–", "not applicable"),
}


@dataclass(frozen=True, kw_only=True)
class Brief:
    """The first screen, and the tables that belong to it."""

    title: str
    headline: str
    facts: Sequence[tuple[str, Inline]]
    state: str
    verdict: str
    tiles: Sequence[Tile]
    checks: Sequence[Check]
    steps: Sequence[str]  # to take next
    plot: Figure | Paragraph
    tables: Sequence[Table]


def brief(report: Report) -> Brief:
    """The first screen of a report."""
    group = report.headline
    state, text = report.verdict
    steps = [check.todo for check in report.checks if check.todo]
    return Brief(
        title=group.name if len(report.groups) == 1 else f"{group.name}, and {len(report.groups) - 1} more",
        headline=figure_of(group),
        facts=_facts(report, group),
        state=state,
        verdict=f"{text}.",
        tiles=_tiles(group),
        checks=report.checks,
        steps=list(dict.fromkeys(steps)) or ["Nothing is open: package it, or compare it with others."],
        plot=overlay(report),
        tables=_tables(report),
    )


def figure_of(group: Group) -> str:
    """The figure with its unit."""
    return _with_unit(group.score.value, group.score.unit) if group.score else "no figure"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}" if math.isfinite(value) else number(value)


def _facts(report: Report, group: Group) -> list[tuple[str, Inline]]:
    run = group.runs[0]
    organisation, at = run.said.get("submission_org", (None, None))
    starts = sorted(started for r in group.runs if (started := r.said.get("start_s", (None, 0))[0]) is not None)
    days = dict.fromkeys(day for start in starts if (day := _day(start)))
    commit, at_commit = section(run.record, "source").get("commit"), run.header_lines.get("source")
    dirty = " with uncommitted changes" if section(run.record, "source").get("dirty") else ""
    return [
        ("system", hardware(run)),
        ("date", " to ".join([*days][:1] + [*days][1:][-1:]) or absent("not said")),
        ("organisation", at_line(run, at, visible(organisation, 80)) if organisation else absent("not said")),
        ("commit", at_line(run, at_commit, str(commit)[:12] + dirty) if commit else absent("not said")),
        ("framework", field(run, "framework")),
        ("protocol", f"{report.protocol.name}: {report.protocol.describe()}"),
    ]


def _day(unix_s: float) -> str:
    """The day in UTC; empty for a time stamp that is none."""
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return ""


def hardware(run: ReportedRun) -> Inline:
    """The devices that ran in a few words, else the platform that the log names."""
    names: Counter[str] = Counter()
    for node in nodes_of(run.record):
        gpus = node.get("gpus")
        if section(run.record, "hardware").get("device") == "cpu":
            names[f"{node.get('cpu') or 'CPU'}, {node.get('cores', '?')} cores"] += 1
        elif isinstance(gpus, list):
            names.update(str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict))
    platform, line = run.said.get("submission_platform", (None, None))
    found = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())
    shown = "; ".join(text for text in (visible(platform, 60) if platform else "", visible(found, 160)) if text)
    return at_line(run, line or run.header_lines.get("hardware"), shown) if shown else absent("not said")


def _tiles(group: Group) -> list[Tile]:
    result = group.score
    tiles = []
    if result is None:
        tiles.append(Tile(value="no figure", unit="", text=group.problem or ""))
    else:
        bounds = f"{interval(result.interval_95)} ({result.interval_method})" if result.interval_95 else ""
        link = Text(text="From these lines", href="runs")
        text = [f"95 % interval {bounds or result.interval_method}. ", link]
        tiles.append(Tile(value=number(result.value), unit=result.unit, text=text))
        runs = f"{len(result.runs)} run{'s' * (len(result.runs) > 1)}"
        spread = f"standard deviation {number(result.spread)} over {result.spread_over}" if result.spread else ""
        tiles.append(Tile(value=runs, unit="", text=spread))
    times = [run.record.run_time_s for run in group.runs if run.record.run_time_s is not None]
    if times and group.record.mode != "throughput" and (result is None or result.unit != "minutes"):
        factor, unit = plots.time_unit(max(times))
        kind = "run_start to run_stop" + (f", median of {len(times)} runs" if len(times) > 1 else "")
        text = [f"time to train: {kind}. ", Text(text="From these lines", href="times")]
        tiles.append(Tile(value=number(statistics.median(times) / factor), unit=unit, text=text))
    final = [(run.record.quality[-1], run) for run in group.runs if run.record.quality]
    if final:
        worst, of_run = min(final, key=lambda item: item[0].value)
        which = "final" if len(final) == 1 else f"lowest final of {len(final)} runs"
        text = [f"{worst.name}, {which}: ", at_line(of_run, worst.line)]
        tiles.append(Tile(value=f"{worst.value:.4g}", unit="", text=text))
    return tiles


def overlay(report: Report) -> Figure | Paragraph:
    """All runs in one plot, as far as they share an axis."""
    drawn = [(run, *timeline(run)) for run in report.runs]
    drawn = [(run, points, axis) for run, points, axis in drawn if points]
    if not drawn:
        return Paragraph(text=NO_RATES, absent=True)
    axis = drawn[0][2]
    shared = [(run, points) for run, points, own in drawn if own == axis][:MOST_OVERLAID]
    words = []
    for run, points in shared:
        rates = [point.images_per_s for point in points]
        words.append(f"run {run.number} {number(min(rates))} to {number(max(rates))}")
    left_out = len(report.runs) - len(shared)
    caption = f"Throughput in {unit_of(shared[0][0])}: {'; '.join(words)}" + (
        f"; {left_out} more below" if left_out else ""
    )
    one_figure = len(report.groups) == 1 and report.protocol.figure == "throughput" and report.headline.score
    return Figure(
        name="overlay",
        title="Throughput of all runs over time" if len(shared) > 1 else "Throughput over time",
        caption=f"{caption}.",
        draw=functools.partial(
            plots.throughput,
            runs=[(_label(report, run), points) for run, points in shared],
            axis=axis,
            unit=unit_of(shared[0][0]),
            value=report.headline.score.value if one_figure and report.headline.score else None,
        ),
    )


def _label(report: Report, run: ReportedRun) -> str:
    """A run in a legend, with its devices where the runs differ in them."""
    of_devices = f" ({run.record.devices} dev.)" if len(report.groups) > 1 and run.record.devices else ""
    return f"run {run.number}{of_devices}"


NO_RATES = "Throughput over time: not shown; the logs have neither rates nor images and seconds (give --batch)."


def unit_of(run: ReportedRun) -> str:
    """What the rates of a run's windows are in."""
    return "images/s per device" if run.record.rate_scope == "device" and run.record.devices is None else "images/s"


def _tables(report: Report) -> list[Table]:
    units = {run.number: group.score.unit if group.score else "" for group in report.groups for run in group.runs}
    head = ["run", "figure", "devices", "batch a device", "precision", "windows", "log lines", "log"]
    rows = [
        [
            run_link(run),
            _with_unit(run.figure.value, units[run.number]) if run.figure else "no figure",
            field(run, "devices"),
            field(run, "batch_per_device"),
            field(run, "precision"),
            str(run.figure.windows) if run.figure else "",
            lines_of(run, run.figure.first_line, run.figure.last_line) if run.figure else "",
            run.record.file,
        ]
        for run in report.runs
    ]
    caption = "Each run under the protocol, and the lines that its figure comes from"
    tables = [Table(caption=caption, head=head, rows=rows, numeric=(1, 2, 3, 5), id="runs")]
    if len(report.groups) > 1:
        head = ["system and shape", "figure", "95 % interval", "runs", "note"]
        rows = [
            [
                group.name,
                figure_of(group),
                interval(group.score.interval_95) if group.score else "",
                str(len(group.runs)),
                group.problem or "",
            ]
            for group in report.groups
        ]
        tables.append(Table(caption="Each shape's figure", head=head, rows=rows, numeric=(1, 3)))
    if report.doubts:
        by_file = {run.record.file: run for run in report.runs}
        rows = [
            [doubt.rule.replace("_", " "), doubt.message, _where(by_file.get(doubt.file or ""), doubt.line)]
            for doubt in report.doubts
        ]
        head = ["doubt", "what it means here", "where"]
        tables.append(Table(caption="Doubts about the figures", head=head, rows=rows))
    return tables


def _where(run: ReportedRun | None, line: int | None) -> Inline:
    """Where a doubt points."""
    if run is None:
        return ""
    return [run_link(run), ", ", at_line(run, line)] if line is not None else run_link(run)
