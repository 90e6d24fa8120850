"""The first screen: what ran, its figure, whether it stands, and all runs in a table; `overlay.py` has its plots."""

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from runlog.text import visible
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure.score import Score
from scoring.record import nodes_of, section
from scoring.report import blocks, plots
from scoring.report.blocks import NOT_SAID, Cell, Inline, Table, Text, field, link_to_line
from scoring.report.content import NOT_LOGGED, Group, Report, ReportedRun
from scoring.report.text import counted, four_digits, interval_in_words, number

MOST_NAMED = 8  # systems in the title
COMMIT_DIGITS = 12
# What each status looks like: a mark that is told apart without colour, and its word.
NO_STATUS = "none"  # of a check that does not apply
STATUSES = {OK: ("✓", "ok"), WARNING: ("!", "warning"), FATAL: ("✕", "fatal"), UNKNOWN: ("?", "open")}
STATUSES[NO_STATUS] = ("–", "not applicable")


def first_ones_in_words(texts: Sequence[str]) -> str:
    """Return the texts of the first systems in one, and how many more there are."""
    named = list(texts[:MOST_NAMED])
    if len(texts) > MOST_NAMED:
        named.append(f"and {len(texts) - MOST_NAMED} more")
    return "; ".join(named)


def figure_of(group: Group) -> str:
    """Return a group's figure with its unit, which says "unverified" for an MLPerf result."""
    if group.score is None:
        return "no figure"
    return _with_unit(group.score.value, group.score.shown_unit)


def _with_unit(value: float, unit: str) -> str:
    """Return a figure with its unit; without one where it is in words, as it is not finite."""
    if not math.isfinite(value):
        return number(value)
    return f"{number(value)} {unit}"


def link_to_runs(group: Group, text: str) -> Inline:
    """Return a number of a group's runs as a link to its source: the lines of one run, or the table of several."""
    if len(group.runs) > 1:
        return Text(text=text, href="runs")
    run = group.runs[0]
    if run.figure is None:
        return text
    return link_to_line(run, run.figure.first_line, text)


# ---- what ran, when and where


def facts(report: Report) -> list[tuple[str, Inline]]:
    """Return what ran, when and where, as the names and values that stand on top of the page.

    Organisation, commit and framework are those of the first run of the headline, the group whose figure stands first.
    Where that figure is in the form of MLPerf, what the rules of MLPerf let it be called and its data set come before
    all.
    """
    run = report.headline.runs[0]
    mlperf_facts: list[tuple[str, Inline]] = []
    run_counts = [len(group.runs) for group in report.groups]
    standing = report.headline.score.standing if report.headline.score else None  # whether it is an MLPerf result
    if standing is not None:
        mlperf_facts = [("result", standing.name), ("data set", standing.dataset_in_words)]
    return [
        *mlperf_facts,
        ("system", _systems(report.groups)),
        ("date", _dates(report.runs)),
        ("organisation", _organisation(run)),
        ("commit", _commit(run)),
        ("framework", field(run, "framework")),
        ("protocol", f"{report.protocol.name}: {report.protocol.describe(run_counts)}"),
    ]


def _systems(groups: Sequence[Group]) -> Inline:
    """Return the hardware of each group, every machine once."""
    systems: dict[object, Inline] = {}  # by their text; the last link to a text stands
    for group in groups:
        machine = hardware(group.runs[0])
        if machine:
            systems[getattr(machine, "text", machine)] = machine
    return _joined(list(systems.values()), "; ") or NOT_SAID


def _dates(runs: Sequence[ReportedRun]) -> Inline:
    """Return the day on which the runs began, or the first and the last of several: "2024-05-01 to 2024-05-03".

    Each day is a link to the line that says it, in the log of the run that began last on that day. Days are in UTC.
    Where no log says when its run began, the text is "not said".
    """
    starts = []
    for run in runs:
        start = run.preamble.get("start_s", NOT_LOGGED)  # the time of the log's first event
        if start.line is not None and _day(start.value):
            starts.append(_Start(start.value, start.line, run))
    starts.sort(key=_time_and_line)

    link_of_day: dict[str, Inline] = {}  # a later start on the same day replaces the link
    for start_of_run in starts:
        day = _day(start_of_run.unix_s)
        link_of_day[day] = link_to_line(start_of_run.run, start_of_run.line, day)
    links = list(link_of_day.values())
    if len(links) > 2:
        links = [links[0], links[-1]]  # the first and the last day, which are all where there are two or fewer
    return _joined(links, " to ") or NOT_SAID


class _Start(NamedTuple):
    """When a run began, and the line that says it."""

    unix_s: float
    line: int
    run: ReportedRun


def _time_and_line(start: _Start) -> tuple[float, int]:
    """Return the key by which starts are sorted."""
    return start.unix_s, start.line


def _organisation(run: ReportedRun) -> Inline:
    """Return the organisation that the log names."""
    organisation = run.preamble.get("submission_org", NOT_LOGGED)
    if not organisation.value:
        return NOT_SAID
    return link_to_line(run, organisation.line, visible(organisation.value, 80))


def _commit(run: ReportedRun) -> Inline:
    """Return the commit of the run's source tree, and whether the tree had changes that it does not hold."""
    source = section(run.record, "source")
    if not source.get("commit"):
        return NOT_SAID
    commit = str(source["commit"])[:COMMIT_DIGITS]
    if source.get("dirty"):
        commit += " with uncommitted changes"
    return link_to_line(run, run.header_lines.get("source"), commit)


def _joined(items: Sequence[Inline], between: str) -> list[Inline]:
    """Return the items with `between` between them."""
    joined: list[Inline] = []
    for item in items:
        if joined:
            joined.append(between)
        joined.append(item)
    return joined


def _day(unix_s: float) -> str:
    """Return the day in UTC; empty for a number that is no time."""
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return ""


def hardware(run: ReportedRun) -> Inline:
    """Return the platform that the log names, and the devices of each kind of node; empty where it says neither."""
    platform = run.preamble.get("submission_platform", NOT_LOGGED)
    devices = run.record.machine if nodes_of(run.record) else None
    shown = "; ".join(visible(text, 160) for text in (platform.value, devices) if text)
    if not shown:
        return ""
    return link_to_line(run, platform.line or run.header_lines.get("hardware"), shown)


# ---- the tiles


class Tile(NamedTuple):
    """A value that is set large, its unit, and what it is."""

    value: Inline
    unit: str
    text: Inline


def tiles(report: Report) -> list[Tile]:
    """Return the tiles, the few values that the page sets large, of the headline: the group whose figure stands first.

    They are its figure, number of runs, time to train and final quality. Without a figure, one tile that says why takes
    the place of the first two. Time and quality have no tile where the logs do not say them.
    """
    group = report.headline
    name_before_text = f"{group.name}: " if len(report.groups) > 1 else ""
    shown = []
    if group.score is None:
        shown.append(Tile("no figure", "", name_before_text + (group.problem or "")))
    else:
        shown.append(_figure_tile(group, group.score, name_before_text))
        shown.append(_runs_tile(group, group.score))
    for tile in (_time_tile(group), _quality_tile(group)):
        if tile is not None:
            shown.append(tile)
    return shown


def _figure_tile(group: Group, score: Score, name_before_text: str) -> Tile:
    """Return the tile of a figure, with its interval."""
    bounds = score.interval_method
    if score.interval_95:
        bounds = f"{interval_in_words(score.interval_95)} ({score.interval_method})"
    doubt = ""
    if score.one_clock and score.protocol.figure == "throughput":
        doubt = " One clock: nothing else in the log confirms the times."
    figure = link_to_runs(group, number(score.value))
    return Tile(figure, score.shown_unit, f"{name_before_text}95 % interval {bounds}.{doubt}")


def _runs_tile(group: Group, score: Score) -> Tile:
    """Return the tile of a figure's number of runs, with their spread and what limits it."""
    limits = list(score.limits)
    if score.spread:
        limits.insert(0, f"standard deviation {number(score.spread)} over {score.spread_over}")
    runs = Text(text=counted(len(score.runs), "run"), href="runs")
    return Tile(runs, "", link_to_runs(group, "; ".join(limits)))


def _time_tile(group: Group) -> Tile | None:
    """Return the tile of the time to train of a group of runs, from run_start to run_stop: their median.

    A run counts whose log says that it ended with success, or does not say how it ended. Where other runs have such a
    time too, the tile's text says of how many the counted ones are. None where no log says such a time, where the runs
    measured throughput alone, or where the group's figure is that time already.
    """
    figure_is_that_time = group.score is not None and group.score.unit == "minutes"
    if group.record.mode == "throughput" or figure_is_that_time:
        return None
    timed = [run.record for run in group.runs if run.record.run_time_s is not None]
    not_aborted = [record for record in timed if record.status in (None, "success")]
    times_s = [record.run_time_s for record in not_aborted if record.run_time_s is not None]
    if not times_s:
        return None

    of_which_runs = ""
    if len(times_s) > 1:
        of_which_runs = f", median of {len(times_s)} runs"
    if len(not_aborted) < len(timed):
        of_which_runs += f" that ended with success, of {len(timed)}"
    unit = plots.time_unit(max(times_s))
    median = Text(text=number(statistics.median(times_s) / unit.seconds), href="times")
    return Tile(median, unit.name, f"time to train: run_start to run_stop{of_which_runs}.")


def _quality_tile(group: Group) -> Tile | None:
    """Return the tile of the lowest final quality; None where no log has an evaluation."""
    evaluated = [run for run in group.runs if run.record.quality]
    if not evaluated:
        return None
    worst = min(evaluated, key=_final_quality)
    final = worst.record.quality[-1]
    which = "final" if len(evaluated) == 1 else f"lowest final of {len(evaluated)} runs"
    return Tile(link_to_line(worst, final.line, four_digits(final.value)), "", f"{final.name}, {which}")


def _final_quality(run: ReportedRun) -> float:
    """Return the quality of a run's last evaluation."""
    return run.record.quality[-1].value


# ---- the tables


def tables(report: Report) -> list[Table]:
    """Return the tables of the first screen: the runs, the systems where there are several, and the warnings if any."""
    unit_by_run: dict[int, str] = {}  # the unit of a run's figure, by the run's number; none without a figure
    for group in report.groups:
        if group.score:
            unit_by_run.update({run.number: group.score.shown_unit for run in group.runs})
    caption = "Each run under the protocol, and the lines that its figure comes from"
    rows = [_cells_of_run(run, unit_by_run.get(run.number, "")) for run in report.runs]
    shown = [blocks.table(caption, rows, id="runs")]
    if len(report.groups) > 1:
        systems = [_cells_of_group(group) for group in report.groups]
        shown.append(blocks.table("Each system's figure", systems))
    if report.warnings:
        run_by_file = {run.record.file: run for run in report.runs}
        warnings = [_cells_of_warning(warning, run_by_file) for warning in report.warnings]
        shown.append(blocks.table("Warnings about the figures", warnings))
    return shown


def _cells_of_run(run: ReportedRun, unit: str) -> list[Cell]:
    """Return the row of a run in the table of runs.

    `unit` is the unit of the run's figure, such as "images/s" or "minutes"; it is not shown where the run has no
    figure.
    """
    return [
        Cell("run", blocks.run_link(run)),
        Cell("figure", _figure(run, unit), numeric=True),
        Cell("devices", field(run, "devices"), numeric=True),
        Cell("batch a device", field(run, "batch_per_device"), numeric=True),
        Cell("precision", field(run, "precision")),
        Cell("windows", _windows(run), numeric=True),
        Cell("log lines", blocks.links_to_figure_lines(run)),
        Cell("log", run.record.file),
    ]


def _cells_of_group(group: Group) -> list[Cell]:
    """Return the row of a system."""
    bounds = interval_in_words(group.score.interval_95) if group.score else ""
    return [
        Cell("system and shape", group.name),
        Cell("figure", link_to_runs(group, figure_of(group)), numeric=True),
        Cell("95 % interval", link_to_runs(group, bounds)),
        Cell("runs", Text(text=str(len(group.runs)), href="runs"), numeric=True),
        Cell("note", group.problem or ""),
    ]


def _cells_of_warning(warning: Verdict, run_by_file: Mapping[str, ReportedRun]) -> list[Cell]:
    """Return the row of a warning."""
    return [
        Cell("warning", warning.check.replace("_", " ")),
        Cell("what it means here", warning.found),
        Cell("where", _where(warning, run_by_file)),
    ]


def _figure(run: ReportedRun, unit: str) -> Inline:
    """Return a run's figure with its unit, as a link to its first line."""
    if run.figure is None:
        return "no figure"
    return link_to_line(run, run.figure.first_line, _with_unit(run.figure.value, unit))


def _windows(run: ReportedRun) -> Inline:
    """Return how many windows a run's figure comes from, as a link to the first of them."""
    if run.figure is None:
        return "no figure"
    return link_to_line(run, run.figure.first_line, str(run.figure.windows))


def _where(warning: Verdict, run_by_file: Mapping[str, ReportedRun]) -> Inline:
    """Return links to the run and the line that a warning is about; empty where it is about no single run."""
    run = run_by_file.get(warning.figures["file"] or "")
    line = warning.figures["line"]
    if run is None:
        return ""
    if line is None:
        return blocks.run_link(run)
    return [blocks.run_link(run), ", ", link_to_line(run, line)]
