"""The first screen: what ran, its figure, whether it stands, and all runs in a table; `overlay.py` has its plots."""

import math
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from runlog.digits import beside_limit, counted
from runlog.text import visible
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure.score import Score
from scoring.record import nodes_of, recipe_target, section
from scoring.report import blocks
from scoring.report.blocks import NOT_SAID, Cell, Inline, Table, Text, field, link_to_line
from scoring.report.content import NOT_LOGGED, Group, Report, ReportedRun, runs_of
from scoring.report.text import interval_in_words, number, time_unit

MAX_NAMED = 8  # systems in the title, and runs that a warning is about
COMMIT_DIGITS = 12
# What each status looks like: a mark that is told apart without colour, and its word.
NO_STATUS = "none"  # of a check that does not apply
STATUSES = {OK: ("✓", "ok"), WARNING: ("!", "warning"), FATAL: ("✕", "fatal"), UNKNOWN: ("?", "unknown")}
STATUSES[NO_STATUS] = ("–", "not applicable")


def first_ones_in_words(texts: Sequence[str]) -> str:
    """Join the first few texts, and say how many more there are: "a; b; and 2 more".

    Args:
        texts: A text for each group of repeated runs, such as its name. The first eight (MAX_NAMED) are shown.
    """
    named = list(texts[:MAX_NAMED])
    if len(texts) > MAX_NAMED:
        named.append(f"and {len(texts) - MAX_NAMED} more")
    return "; ".join(named)


def figure_of(group: Group) -> str:
    """Return a group's figure with its unit, such as "9,873.0 images/s".

    Args:
        group: A group of repeated runs.

    Returns:
        The figure, or "no figure". The unit of an MLPerf result says that the result is unverified.
    """
    if group.score is None:
        return "no figure"
    return _with_unit(group.score.value, group.score.shown_unit)


def _with_unit(value: float, unit: str) -> str:
    """Return a figure with its unit, such as "9,873.0 images/s".

    Args:
        value: The figure. An infinite one is words, such as "did not converge", and has no unit.
        unit: The unit.
    """
    if not math.isfinite(value):
        return number(value)
    return f"{number(value)} {unit}"


def link_to_runs(group: Group, text: str) -> Inline:
    """Return a text about a group's runs as a link to the table of runs, or to the log if there is a single run.

    Args:
        group: A group of repeated runs.
        text: The text.

    Returns:
        The link. A single run without a figure has no line to link to, so its text is plain.
    """
    if len(group.runs) > 1:
        return Text(text=text, href="runs")
    run = group.runs[0]
    if run.figure is None:
        return text
    return link_to_line(run, run.figure.first_line, text)


# ---- what ran, when and where


def facts(report: Report) -> list[tuple[str, Inline]]:
    """Return the (name, value) pairs at the top of the report: what ran, when, on which system, how it was scored.

    Args:
        report: The report's content.

    Returns:
        Pairs such as ("organisation", "Example Ltd"). A value is plain text, or pieces of text that may link to the log
        line they come from. For MLPerf logs the pairs start with "result", the name that the rules of MLPerf let the
        result have, and "data set".
    """
    runs = [*report.headline.runs, *report.runs]  # the group whose figure the page shows first is named first
    run_counts = [len(group.runs) for group in report.groups]
    mlperf_facts: list[tuple[str, Inline]] = []
    score = report.headline.score
    standing = score.standing if score else None  # None also if the logs are not MLPerf logs
    if standing is not None:
        mlperf_facts = [("result", standing.name), ("data set", standing.dataset_in_words)]
    return [
        *mlperf_facts,
        ("system", _systems(report.groups)),
        ("date", _dates(report.runs)),
        ("organisation", _each_once([_organisation(run) for run in runs])),
        ("commit", _each_once([_commit(run) for run in runs])),
        ("framework", _each_once([_framework(run) for run in runs])),
        ("protocol", f"{report.protocol.name}: {report.protocol.describe(run_counts)}"),
    ]


def _systems(groups: Sequence[Group]) -> Inline:
    """Return the hardware of the groups, each machine once; "not said" if no log says it."""
    machines = [hardware(group.runs[0]) for group in groups]
    return _each_once([machine for machine in machines if machine])


def _each_once(values: Sequence[Inline]) -> Inline:
    """Return what several runs say of one thing, such as their frameworks, each value once and joined by semicolons.

    Args:
        values: The value of each run, as a link to its line or as plain text; NOT_SAID if the run does not say it.

    Returns:
        The values in their order; "not said" if there are none.
    """
    value_by_text: dict[object, Inline] = {}
    for value in values:
        text = value.text if isinstance(value, Text) else value
        if text not in value_by_text:  # of several links with the same text, the first is kept
            value_by_text[text] = value
    if not value_by_text:
        return NOT_SAID
    return _joined(list(value_by_text.values()), "; ")


class _Start(NamedTuple):
    """When a run began, and the line of its log that says it."""

    unix_s: float
    line: int
    run: ReportedRun


def _dates(runs: Sequence[ReportedRun]) -> Inline:
    """Return the day on which the runs began, or the first and the last day: "2024-05-01 to 2024-05-03".

    Args:
        runs: The runs of the report.

    Returns:
        Days in UTC, each a link to a line of a log that says it; "not said" if no log has a valid time.
    """
    starts = _starts_in_order(runs)
    if not starts:
        return NOT_SAID
    first_day = day_of(starts[0].unix_s)
    last_day = day_of(starts[-1].unix_s)
    if first_day == last_day:
        return [_link_to_day(last_day, starts)]
    return [_link_to_day(first_day, starts), " to ", _link_to_day(last_day, starts)]


def _starts_in_order(runs: Sequence[ReportedRun]) -> list[_Start]:
    """Return when the runs began, in ascending order.

    Args:
        runs: The runs of the report.

    Returns:
        The starts, each with the run and the line of its log. A run whose log does not say its start by a valid time is
        left out.
    """
    starts = []
    for run in runs:
        start = run.start
        if start.line is None:  # the log does not say it
            continue
        is_valid_time = day_of(start.value) != ""
        if is_valid_time:
            starts.append(_Start(unix_s=start.value, line=start.line, run=run))
    return sorted(starts, key=_time_and_line)


def _time_and_line(start: _Start) -> tuple[float, int]:
    """Return the key to sort starts by."""
    return start.unix_s, start.line


def _organisation(run: ReportedRun) -> Inline:
    """Return the organisation that the log names, as a link to its line, or "not said"."""
    organisation = run.preamble.get("submission_org", NOT_LOGGED)
    if not organisation.value:
        return NOT_SAID
    return link_to_line(run, organisation.line, visible(organisation.value, 80))


def _framework(run: ReportedRun) -> Inline:
    """Return the framework that the log names, as a link to its line, or "not said"."""
    framework = run.record.framework
    shown = None if framework is None else visible(framework, 80)
    return field(run, "framework", shown)


def _commit(run: ReportedRun) -> Inline:
    """Return the commit of the run's source tree, with a note if the tree had uncommitted changes; or "not said"."""
    source = section(run.record, "source")
    if not source.get("commit"):
        return NOT_SAID
    commit = str(source["commit"])[:COMMIT_DIGITS]
    if source.get("dirty"):
        commit += " with uncommitted changes"
    return link_to_line(run, run.header_lines.get("source"), commit)


def _joined(items: Sequence[Inline], separator: str) -> list[Inline]:
    """Return the items with `separator` between them."""
    joined: list[Inline] = []
    for item in items:
        if joined:
            joined.append(separator)
        joined.append(item)
    return joined


def day_of(unix_s: float) -> str:
    """Return the day of a time in UTC, such as "2024-05-01".

    Args:
        unix_s: Seconds since 1970-01-01 UTC.

    Returns:
        The day; empty for a number that is not a valid time.
    """
    try:
        return datetime.fromtimestamp(unix_s, tz=timezone.utc).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return ""


def hardware(run: ReportedRun) -> Inline:
    """Return the hardware of a run: the platform that the log names, and the devices of each kind of node.

    Args:
        run: A run of the report.

    Returns:
        Text such as "DGXA100; 8 x A100", as a link to a line of the log if that is known; empty if the log says
        neither.
    """
    platform = run.preamble.get("submission_platform", NOT_LOGGED)
    # In a log that describes no nodes, `machine` is the platform, which must not be shown twice.
    devices = run.record.machine if nodes_of(run.record) else None
    shown = "; ".join(visible(text, 160) for text in (platform.value, devices) if text)
    if not shown:
        return ""
    line = platform.line or run.header_lines.get("hardware")  # the first that is known
    return link_to_line(run, line, shown)


# ---- the tiles


class Tile(NamedTuple):
    """A value that the page shows large, its unit, and a text on what it is."""

    value: Inline
    unit: str
    text: Inline


def tiles(report: Report) -> list[Tile]:
    """Return the few values that the page shows large, on tiles.

    Args:
        report: The content of the report. All values are of one group of runs, `report.headline`. It is the group with
            most devices; groups with a figure come before groups without one.

    Returns:
        The figure and its number of runs, or one tile that says why there is no figure; then the time to train and the
        quality, if the logs have them. The time is left out if it is the figure, or if only throughput was measured.
    """
    group = report.headline
    name_prefix = f"{group.name}: " if len(report.groups) > 1 else ""
    shown = []
    if group.score is None:
        shown.append(Tile("no figure", unit="", text=name_prefix + (group.problem or "")))
    else:
        shown.append(_figure_tile(group, group.score, name_prefix))
        shown.append(_runs_tile(group, group.score))
    for tile in (_time_tile(group), _quality_tile(group)):
        if tile is not None:
            shown.append(tile)
    return shown


def _figure_tile(group: Group, score: Score, name_prefix: str) -> Tile:
    """Return the tile of a group's figure, whose text is its 95 % interval and any doubt about its times.

    - with an interval: "95 % interval 9,812.0 to 9,934.0 (from 40 windows of one run)."
    - without one: "95 % interval none: fewer than 10 windows of one run."

    Args:
        group: A group of repeated runs.
        score: Figure of the group, with its 95 % interval, if any.
        name_prefix: Begins the text: the group's name with a colon and a space, or empty.
    """
    if score.interval_95 is None:
        why_none = score.interval_method  # "none: fewer than 10 windows of one run"
        interval = why_none
    else:
        method = score.interval_method  # "from 40 windows of one run"
        interval = f"{interval_in_words(score.interval_95)} ({method})"
    text = f"{name_prefix}95 % interval {interval}."
    logs_without_second_clock = score.one_clock
    if logs_without_second_clock and score.protocol.figure == "throughput":
        text += " One clock: nothing else in the log confirms the times."
    return Tile(link_to_runs(group, number(score.value)), score.shown_unit, text)


def _runs_tile(group: Group, score: Score) -> Tile:
    """Return the tile with the number of runs of a group, and a text on the group's spread and efficiency.

    The text is, for example, "standard deviation 21.4 over runs; 35.2% of the cards' peak FLOP/s (MFU); 2.41 images/J".
    What is not known is left out.

    Args:
        group: A group of repeated runs.
        score: Figure of the group.
    """
    texts = []
    if score.spread:
        texts.append(f"standard deviation {number(score.spread)} over {score.spread_over}")
    texts += score.efficiency_in_words
    runs = Text(text=counted(len(score.runs), "run"), href="runs")
    return Tile(runs, unit="", text=link_to_runs(group, "; ".join(texts)))


def _link_to_day(day: str, starts: Sequence[_Start]) -> Inline:
    """Return a day as a link to the log line of the last start on that day.

    Args:
        day: A day in UTC, such as "2024-05-01", on which a run started.
        starts: Starts of the runs, in ascending order.
    """
    starts_on_day = [start for start in starts if day_of(start.unix_s) == day]
    last_start = starts_on_day[-1]
    return link_to_line(last_start.run, last_start.line, day)


def _time_tile(group: Group) -> Tile | None:
    """Return the tile of a group's time to train: the median time from run_start to run_stop, without failed runs.

    Args:
        group: A group of repeated runs.

    Returns:
        The tile. None if the runs measured throughput alone. None if the time to train is the group's figure, which has
        a tile of its own. None if no run has a time, apart from failed ones.
    """
    figure_is_time_to_train = group.score is not None and group.score.unit == "minutes"
    if group.record.mode == "throughput" or figure_is_time_to_train:
        return None
    failed = [run for run in group.runs if run.has_failed]
    others = [run for run in group.runs if not run.has_failed]
    times_s = _run_times_s(others)
    if not times_s:
        return None

    unit = time_unit(max(times_s))
    median = Text(text=number(statistics.median(times_s) / unit.seconds), href="times")
    which_runs = _counted_runs_in_words(len(times_s), failed_runs=len(_run_times_s(failed)))
    return Tile(median, unit.name, f"time to train: run_start to run_stop{which_runs}.")


def _run_times_s(runs: Sequence[ReportedRun]) -> list[float]:
    """Return the times to train of the runs that have one, in seconds."""
    return [run.record.time_to_train_s for run in runs if run.record.time_to_train_s is not None]


def _counted_runs_in_words(counted_runs: int, failed_runs: int) -> str:
    """Return the end of a sentence on a time to train, which says from how many runs the time is.

        1 run, none failed     ""
        3 runs, none failed    ", median of 3 runs"
        1 run, and 1 failed    ", 1 run that ended with success, of 2"
        3 runs, and 2 failed   ", median of 3 runs that ended with success, of 5"

    Args:
        counted_runs: Number of runs that count, at least 1.
        failed_runs: Number of runs with a time that failed.
    """
    is_only_run = counted_runs == 1 and failed_runs == 0
    if is_only_run:
        return ""
    runs = counted(counted_runs, "run")
    if counted_runs > 1:
        runs = f"median of {runs}"
    if failed_runs == 0:
        return f", {runs}"
    return f", {runs} that ended with success, of {counted_runs + failed_runs}"


def _quality_tile(group: Group) -> Tile | None:
    """Return the tile of the lowest final quality of a group's runs; None if no log has an evaluation."""
    evaluated = [run for run in group.runs if run.record.quality]
    if not evaluated:
        return None
    worst = min(evaluated, key=_final_quality)
    final = worst.record.quality[-1]
    which = "final" if len(evaluated) == 1 else f"lowest final of {len(evaluated)} runs"
    quality = beside_limit(final.value, recipe_target(worst.record), kind="g")
    value = link_to_line(worst, final.line, quality)
    return Tile(value, unit="", text=f"{final.name}, {which}")


def _final_quality(run: ReportedRun) -> float:
    """Return the quality of a run's last evaluation."""
    return run.record.quality[-1].value


# ---- the tables


def tables(report: Report) -> list[Table]:
    """Return the tables of the first screen: the runs, the systems if there are several, and any warnings.

    Args:
        report: The content of the report.
    """
    caption = "Each run under the protocol, and the lines that its figure comes from"
    unit_by_run = _unit_by_run(report.groups)
    rows = [_cells_of_run(run, unit_by_run.get(run.number, "")) for run in report.runs]
    shown = [blocks.table(caption, rows, id="runs")]
    if len(report.groups) > 1:
        systems = [_cells_of_group(group) for group in report.groups]
        shown.append(blocks.table("Each system's figure", systems))
    if report.warnings:
        warnings = [_cells_of_warning(warning, report) for warning in report.warnings]
        shown.append(blocks.table("Warnings about the figures", warnings))
    return shown


def _unit_by_run(groups: Sequence[Group]) -> dict[int, str]:
    """Return the unit of each run's figure, such as "images/s", by the run's number in the report.

    Args:
        groups: Groups of repeated runs. The runs of a group without a figure are left out.
    """
    unit_by_run: dict[int, str] = {}
    for group in groups:
        if group.score:
            for run in group.runs:
                unit_by_run[run.number] = group.score.shown_unit
    return unit_by_run


def _cells_of_run(run: ReportedRun, unit: str) -> list[Cell]:
    """Return the row of a run in the table of runs.

    Args:
        run: A run of the report.
        unit: Unit of the run's figure, such as "images/s" or "minutes"; empty if it has none.
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
    """Return the row of a group in the table of systems."""
    bounds = interval_in_words(group.score.interval_95) if group.score else ""
    return [
        Cell("system and shape", group.name),
        Cell("figure", link_to_runs(group, figure_of(group)), numeric=True),
        Cell("95 % interval", link_to_runs(group, bounds)),
        Cell("runs", Text(text=str(len(group.runs)), href="runs"), numeric=True),
        Cell("note", group.problem or ""),
    ]


def _cells_of_warning(warning: Verdict, report: Report) -> list[Cell]:
    """Return the row of a warning in the table of warnings."""
    return [
        Cell("warning", warning.check.replace("_", " ")),
        Cell("what it means here", warning.found),
        Cell("where", _where(warning, report)),
    ]


def _figure(run: ReportedRun, unit: str) -> Inline:
    """Return a run's figure with its unit, as a link to the first line that it comes from; or "no figure".

    Args:
        run: A run of the report.
        unit: Unit of the figure, such as "images/s" or "minutes".
    """
    if run.figure is None:
        return "no figure"
    return link_to_line(run, run.figure.first_line, _with_unit(run.figure.value, unit))


def _windows(run: ReportedRun) -> Inline:
    """Return how many windows a run's figure comes from, as a link to the first of them; or "no figure"."""
    if run.figure is None:
        return "no figure"
    return link_to_line(run, run.figure.first_line, str(run.figure.windows))


def _where(warning: Verdict, report: Report) -> Inline:
    """Return links to what a warning is about: a line of a log, a run, or the runs of some groups.

    - The warning names no log: the runs of the groups that have the warning. Empty if all groups have it, because it is
      then about the whole report, or if no group has it, as for a warning about a scaling table.
    - The warning names a log, but no line: "run 2".
    - The warning names a line of a log: "run 2, line 17".

    Args:
        warning: The warning, of a group's score or of a scaling table.
        report: The content of the report.
    """
    # Path of the log and number of the line that the warning names; None if it names none.
    file = warning.figures["file"]
    line = warning.figures["line"]
    if file is None:
        return _runs_of_groups_with(warning, report)  # empty if all groups have the warning, or none
    run_by_file = {run.record.file: run for run in report.runs}
    run = run_by_file[file]
    if line is None:
        return blocks.run_link(run)
    return [blocks.run_link(run), ", ", link_to_line(run, line)]


def _runs_of_groups_with(warning: Verdict, report: Report) -> Inline:
    """Return links to the runs of the groups whose scores have a warning.

    Args:
        warning: The warning.
        report: The content of the report.

    Returns:
        Links to the first eight runs, and how many more there are. Empty if the warning is about the whole report.
    """
    groups = [group for group in report.groups if group.score and warning in group.score.warnings]
    is_about_all_groups = len(groups) == len(report.groups)
    is_about_scaling = not groups  # a warning about a scaling table is in no score
    if is_about_all_groups or is_about_scaling:
        return ""
    runs = runs_of(groups)
    links: list[Inline] = [blocks.run_link(run) for run in runs[:MAX_NAMED]]
    if len(runs) > MAX_NAMED:
        links.append(f"and {len(runs) - MAX_NAMED} more")
    return _joined(links, ", ")
