"""Sections on what the runs did: loss, quality and time to train; memory and power; variance."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard

from runlog.digits import four_digits
from runlog.run import real
from scoring.figure.levels import level_in_words
from scoring.figure.score import Score
from scoring.figure.selection import steps_done_by_window
from scoring.figure.standing import standing_of
from scoring.figure.stragglers import slowest_rank_lag
from scoring.record import Record, Window
from scoring.report import blocks, plots, quality
from scoring.report.blocks import Block, Cell, Figure, Inline, Paragraph, Section, Text, field, link_to_line, run_link
from scoring.report.brief import figure_of, link_to_runs
from scoring.report.content import NOT_MEASURED, Group, Report, ReportedRun, values_of
from scoring.report.text import duration_in_words, interval_in_words, number, range_in_words, short_percent

SHOWN_VALUES = 400  # of a curve
NAMED_TIMES = 5  # times to train in a section's gist, the words next to its title


# ---- loss, quality and time to train


def training(report: Report) -> Section:
    """Return the section of the report on loss, quality and the time from run_start to run_stop.

    Args:
        report: The content of the report.

    Returns:
        The section. Its table of times is left out if it would have no row.
    """
    parts: list[Block] = [_loss(report), quality.figure(report)]
    runs_in_table = [run for run in report.runs if _belongs_in_table_of_times(run)]
    if runs_in_table:
        rows = [_cells_of_training(run) for run in runs_in_table]
        parts.append(blocks.table("Time from run_start to run_stop", rows, id="times"))
    gist = _times_in_words(runs_in_table)
    return Section(key="training", title="Loss and quality", gist=gist, blocks=parts)


def _times_in_words(runs: Sequence[ReportedRun]) -> str:
    """Return the times to train of the first NAMED_TIMES runs, and how many more runs there are."""
    times = [_time_in_words(run) for run in runs[:NAMED_TIMES]]
    if len(runs) > NAMED_TIMES:
        times.append(f"and {len(runs) - NAMED_TIMES} more")
    return ", ".join(times)


def _belongs_in_table_of_times(run: ReportedRun) -> bool:
    """Return whether a run has a row in the table of times to train.

    - A run that measured throughput alone has none.
    - A run with an MLPerf log has one in any case. Such a log must say the time, so the row shows if it does not.
    - Any other run has one if its log says the time.

    Args:
        run: A run of the report.
    """
    if run.record.mode == "throughput":
        return False
    return run.record.format == "mllog" or run.record.run_time_s is not None


def _cells_of_training(run: ReportedRun) -> list[Cell]:
    """Return the row of a run in the table of times to train."""
    return [
        Cell("run", run_link(run)),
        Cell("time to train", _time_to_train(run), numeric=True),
        Cell("of it in training steps", _training_share(run), numeric=True),
        Cell("status", field(run, "status")),
    ]


def _time_to_train(run: ReportedRun) -> Inline:
    """Return the time that a run took from run_start to run_stop, with links to both lines of its log.

    Args:
        run: A run of the report.

    Returns:
        A text. A failed run is one that ended without success.

        - The time is not known, as for a resumed run: "none" if the run failed, else "not measured".
        - The run failed after a known time: "none after 31.20 min, run_start to run_stop".
        - Otherwise: "31.20 min, run_start to run_stop".
    """
    if run.record.time_to_train_s is None:
        return _time_in_words(run)
    lines = run.record.field_lines
    start = link_to_line(run, lines.get("run_start_s"), "run_start")
    stop = link_to_line(run, lines.get("run_stop_s"), "run_stop")
    time = field(run, "run_stop_s", duration_in_words(run.record.time_to_train_s))
    before_time = ["none after "] if run.has_failed else []
    return [*before_time, time, ", ", start, " to ", stop]


def _time_in_words(run: ReportedRun) -> str:
    """Return the time to train in words: "31.20 min"; "none" for a run that failed, or "not measured"."""
    if run.has_failed:
        return "none"
    if run.record.time_to_train_s is None:
        return NOT_MEASURED
    return duration_in_words(run.record.time_to_train_s)


def _training_share(run: ReportedRun) -> Inline:
    """Return the share of a run's time that its training windows take. Evaluation and set-up take the rest.

    Args:
        run: A run of the report.

    Returns:
        A percentage that links to the line of the first window. "not measured" unless the log has the run's time, and
        at least one window, and the time of each window.
    """
    windows = run.record.windows
    run_s = run.record.run_time_s
    if run_s is None or run_s <= 0:
        return NOT_MEASURED
    seconds: list[float] = values_of(windows, "seconds")
    all_say_it = len(seconds) == len(windows)
    if not seconds or not all_say_it:
        return NOT_MEASURED
    return link_to_line(run, windows[0].line, short_percent(math.fsum(seconds) / run_s))


class _Curve(NamedTuple):
    """One quantity of a run, over those of its windows that say it."""

    run: ReportedRun
    points: list[tuple[float, float]]  # over the steps done, or the printed rows
    windows: list[Window]

    @property
    def series(self) -> plots.NamedPoints:
        """Return the run's name and its points for a plot; of 800 or more, 400 to 600 at equal distances."""
        every = max(1, len(self.points) // SHOWN_VALUES)
        return f"run {self.run.number}", self.points[::every]

    @property
    def values(self) -> list[float]:
        """Return the values of the points."""
        return [value for _, value in self.points]

    def linked_value(self, index: int) -> Inline:
        """Return the value at an index, such as 0 or -1 for the last, as a link to its line."""
        return link_to_line(self.run, self.windows[index].line, four_digits(self.values[index]))


class _Curves(NamedTuple):
    """The curves of a report's runs, and what their axis counts."""

    curves: list[_Curve]
    axis: str


def _curves_over_windows(report: Report, read: Callable[[Window], float | None]) -> _Curves:
    """Return a curve of one quantity, such as the loss, for each run that has a finite value of it.

    A curve has a point for each window, which is the steps between two printed rows of a log.

    Args:
        report: The content of the report.
        read: Returns the quantity of a window, or None if the log does not say it. A window without a finite value has
            no point.

    Returns:
        The curves, and the name of their common axis: "step" or "printed row".
    """
    runs = [run for run in report.runs if _has_values(run, read)]
    steps_of_runs = [_steps_done(run.record) for run in runs]  # for each run a number for each window, or None
    known_steps = [steps for steps in steps_of_runs if steps is not None]
    places_of_runs: Sequence[Sequence[int]]  # on the horizontal axis, for each window of each run
    if len(known_steps) == len(runs):
        axis = "step"
        places_of_runs = known_steps
    else:  # the steps of some run are not known, and all must share one axis
        axis = "printed row"
        places_of_runs = [range(1, len(run.record.windows) + 1) for run in runs]
    curves = [_curve_of_run(run, places, read) for run, places in zip(runs, places_of_runs, strict=True)]
    return _Curves(curves, axis)


def _has_values(run: ReportedRun, read: Callable[[Window], float | None]) -> bool:
    """Return whether any window of a run has a finite value of a quantity, such as the loss.

    Args:
        run: A run of the report.
        read: Returns the quantity of a window, or None if the log does not say it.
    """
    return any(_is_finite(read(window)) for window in run.record.windows)


def _is_finite(value: float | None) -> TypeGuard[float]:
    """Return whether there is a value, and it is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def _curve_of_run(run: ReportedRun, places: Sequence[int], read: Callable[[Window], float | None]) -> _Curve:
    """Return the curve of one quantity over a run's windows, without the windows that have no finite value.

    Args:
        run: A run of the report.
        places: Place of each window of the run on the horizontal axis.
        read: Returns the quantity of a window, or None if the log does not say it.
    """
    points = []
    windows = []
    for place, window in zip(places, run.record.windows, strict=True):
        value = read(window)
        if _is_finite(value):
            points.append((float(place), value))
            windows.append(window)
    return _Curve(run, points, windows)


def _steps_done(record: Record) -> list[int] | None:
    """Return how many steps of a run were done at the end of each window.

    Args:
        record: The run as its log describes it. A window is the steps between two printed rows of the log.

    Returns:
        A number for each window; None unless all of these are known.
    """
    known = [steps for steps in steps_done_by_window(record) if steps is not None]
    return known if len(known) == len(record.windows) else None


def _loss(report: Report) -> Figure | Paragraph:
    """Return the plot of each run's training loss, with a table of its first and last value.

    Args:
        report: The content of the report.

    Returns:
        The plot. If no log prints a loss, a sentence that says so.
    """
    curves, axis = _curves_over_windows(report, _loss_of)
    if not curves:
        return Paragraph(text=f"Loss: {NOT_MEASURED}; the logs print none.", absent=True)
    first_and_last = []
    for curve in curves:
        first = four_digits(curve.values[0])
        last = four_digits(curve.values[-1])
        first_and_last.append(f"run {curve.run.number} from {first} to {last}")
    return Figure(
        name="loss",
        title="Training loss",
        caption=f"Loss: {'; '.join(first_and_last)}.",
        draw=functools.partial(plots.lines, series=[curve.series for curve in curves], x=axis, y="loss"),
        numbers=blocks.table("Loss at both ends", [_cells_of_loss(curve) for curve in curves]),
    )


def _loss_of(window: Window) -> float | None:
    """Return the loss of a window."""
    return window.loss


def _cells_of_loss(curve: _Curve) -> list[Cell]:
    """Return the row of a run in the table of losses."""
    return [
        Cell("run", run_link(curve.run)),
        Cell("first", curve.linked_value(0), numeric=True),
        Cell("last", curve.linked_value(-1), numeric=True),
    ]


# ---- memory, power, temperature, and ranks that are slow


def telemetry(report: Report) -> Section:
    """Return the section of the report on GPU memory, power, energy, temperature and slow ranks.

    Args:
        report: The content of the report.

    Returns:
        The section: a plot for each quantity that a log says of its windows (memory, power, and by how much the slowest
        rank computes or waits for input longer than the median one), and a table with a row for each run.
    """
    slowest = "of the slowest rank beyond the median one"  # how much longer it takes than the median rank
    figures = [  # None: no log has the quantity
        _telemetry_figure(report, "memory", "GPU memory", "MiB", _memory_mib),
        _telemetry_figure(report, "power", "Power", "W", _power_w),
        _telemetry_figure(report, "compute", f"Computation {slowest}", "% of the time", _slow_compute_percent),
        _telemetry_figure(report, "data_wait", f"Wait for input {slowest}", "% of the time", _slow_wait_percent),
    ]
    drawn = [figure for figure in figures if figure]
    rows = [_cells_of_telemetry(run) for run in report.runs]
    table = blocks.table("Memory, power and temperature, where the log has them", rows)
    gist = "" if drawn else NOT_MEASURED
    return Section(key="telemetry", title="Ranks, memory, power, temperature", gist=gist, blocks=[*drawn, table])


def _cells_of_telemetry(run: ReportedRun) -> list[Cell]:
    """Return the row of a run in the table of memory, power and temperature."""
    return [
        Cell("run", run_link(run)),
        Cell("most GPU memory", _most_memory(run), numeric=True),
        Cell("mean power while measured", _mean_power(run), numeric=True),
        Cell("energy an image", _energy_of_an_image(run), numeric=True),
        Cell("highest GPU temperature", _temperature(run), numeric=True),
    ]


def _memory_mib(window: Window) -> float | None:
    """Return the GPU memory of a window in MiB."""
    return window.gpu_memory_mib


def _power_w(window: Window) -> float | None:
    """Return the power of a window in W."""
    return window.power_w


def _slow_compute_percent(window: Window) -> float | None:
    """Return by how much of the time the slowest rank computes longer than the median one, in percent."""
    share = slowest_rank_lag(window, "compute")
    return None if share is None else 100 * share


def _slow_wait_percent(window: Window) -> float | None:
    """Return by how much of the time the slowest rank waits longer for input than the median one, in percent."""
    share = slowest_rank_lag(window, "data_wait")
    return None if share is None else 100 * share


def _telemetry_figure(
    report: Report, name: str, title: str, unit: str, read: Callable[[Window], float | None]
) -> Figure | None:
    """Return the plot of one quantity, such as the power, over the windows of each run.

    Args:
        report: The content of the report.
        name: Short name, such as "power", with which the ids in the SVG begin.
        title: Title of the plot.
        unit: Unit of the quantity, such as "W".
        read: Returns the quantity of a window in `unit`, or None if the log does not say it.

    Returns:
        The plot; None if no log has the quantity.
    """
    curves, axis = _curves_over_windows(report, read)
    if not curves:
        return None
    highest = "; ".join(f"run {curve.run.number} up to {number(max(curve.values))} {unit}" for curve in curves)
    series = [curve.series for curve in curves]
    draw = functools.partial(plots.lines, series=series, x=axis, y=unit, starts_at_zero=True)
    return Figure(name=name, title=title, caption=f"{title}: {highest}.", draw=draw)


def _most_memory(run: ReportedRun) -> Inline:
    """Return the most GPU memory that any window of a run used, in MiB.

    Args:
        run: A run of the report.

    Returns:
        The memory, as a link to the last log line with that value; "not measured" if no line says the memory.
    """
    most_mib = -math.inf
    line_of_most = None
    for window in run.record.windows:
        used_mib = window.gpu_memory_mib
        if used_mib is not None and used_mib >= most_mib:
            most_mib = used_mib
            line_of_most = window.line
    if line_of_most is None:
        return NOT_MEASURED
    return link_to_line(run, line_of_most, f"{number(most_mib)} MiB")


def _mean_power(run: ReportedRun) -> Inline:
    """Return the mean power of the measured windows, with links to their lines; or "not measured"."""
    if run.mean_power_w is None:
        return NOT_MEASURED
    return [f"{number(run.mean_power_w)} W, lines ", blocks.links_to_figure_lines(run)]


def _temperature(run: ReportedRun) -> Inline:
    """Return the highest temperature that any GPU had in the run, as a link to its line; or "not measured"."""
    degrees_c = real(run.record.telemetry.get("peak_gpu_temperature_c"))
    if degrees_c is None:
        return NOT_MEASURED
    return link_to_line(run, run.record.field_lines.get("telemetry"), f"{number(degrees_c)} °C")


# MLPerf_Results_Messaging_Guidelines.adoc: "no other proxy power metric should be used"
NO_POWER_METRIC = "not given: next to an MLPerf result only power by the rules of MLPerf Power may stand"


def _energy_of_an_image(run: ReportedRun) -> Inline:
    """Return the energy per image in J: power times time over the measured windows, divided by their images.

    The guidelines of MLPerf allow no other power figure next to an MLPerf result than one by the rules of MLPerf Power.

    Args:
        run: A run of the report.

    Returns:
        The energy, as a link to the first measured line; "not measured" unless each measured window says its power, its
        time and its images. If the run's figure is called an MLPerf result, the text says why no energy is shown.
    """
    standing = standing_of([run.record])  # None if the log is not an MLPerf log
    if standing is not None and standing.uses_the_name:
        return NO_POWER_METRIC
    joules: list[float] = []
    images: list[float] = []
    for window in run.measured:
        if window.power_w is None or not window.seconds or not window.images:
            return NOT_MEASURED
        joules.append(window.power_w * window.seconds)
        images.append(window.images)
    if not joules:
        return NOT_MEASURED
    joules_per_image = math.fsum(joules) / math.fsum(images)
    return link_to_line(run, run.measured[0].line, f"{number(joules_per_image)} J")


# ---- variance


def variance(report: Report) -> Section:
    """Return the section of the report on how far windows, runs and hosts differ, in two tables.

    Args:
        report: The content of the report.

    Returns:
        The section. Both tables have a row for each group of repeated runs with a figure. If no group has a figure, a
        sentence says so.
    """
    rows = []
    level_rows = []
    for group in report.groups:
        if group.score is not None:
            rows.append(_cells_of_variance(group, group.score))
            level_rows.append(_cells_of_levels(group, group.score))
    if not rows:
        nothing = Paragraph(text="Not measured: there is no figure.", absent=True)
        return Section(key="variance", title="Variance", gist=NOT_MEASURED, blocks=[nothing])
    table = blocks.table("Spread of each figure", rows)
    by_level = blocks.table(
        "How far windows of a run, runs of a host, and hosts lie apart, by their standard deviation as a share of "
        "their mean",
        level_rows,
    )
    gist = _deviation_in_words(report.headline.score)  # shown next to the section's title
    return Section(key="variance", title="Variance", gist=gist, blocks=[table, by_level])


def _deviation_in_words(figure: Score | None) -> str:
    """Return the standard deviation of a figure as a share of it: "standard deviation 0.41% over windows".

    Args:
        figure: The figure of a group of repeated runs; None if it has none.

    Returns:
        The words; empty if the deviation is unknown or the figure is 0.
    """
    if figure is None or figure.spread is None or not figure.value:
        return ""
    return f"standard deviation {short_percent(figure.spread / figure.value)} over {figure.spread_over}"


def _cells_of_variance(group: Group, score: Score) -> list[Cell]:
    """Return the row of a group in the table of spreads."""
    return [
        Cell("system", group.name),
        Cell("figure", link_to_runs(group, figure_of(group)), numeric=True),
        Cell("range of runs", _range(group)),
        Cell("standard deviation", _deviation(group, score)),
        Cell("95 % interval", _interval(group, score)),
        Cell("ms a step: 5, 50, 95 % of windows", _step_quantiles(group)),
    ]


def _cells_of_levels(group: Group, score: Score) -> list[Cell]:
    """Return a group's row in the table of how many windows, runs and hosts were measured, and how far they scatter.

        system                      windows               runs              hosts
        resnet50_v1.5, 8 devices    40 windows +-1.20%    3 runs +-0.31%    one host

    Args:
        group: A group of repeated runs.
        score: The figure of the group. Each of its levels has the standard deviation as a share of the mean, or why
            there is none.
    """
    cells = [Cell("system", group.name)]
    for level in score.levels:  # window, run and host
        cells.append(Cell(f"{level.name}s", link_to_runs(group, level_in_words(level))))
    return cells


def _range(group: Group) -> Inline:
    """Return the lowest and the highest figure of a group's runs.

    Args:
        group: A group of repeated runs. The figure of a run that did not converge is infinite.

    Returns:
        The range; "one run" if fewer than two figures are finite.
    """
    figures = [run.figure.value for run in group.runs if run.figure]
    finite = [value for value in figures if math.isfinite(value)]
    if len(finite) < 2:
        return "one run"
    return link_to_runs(group, range_in_words(finite))


def _deviation(group: Group, score: Score) -> Inline:
    """Return the standard deviation of a figure, its share of the figure, and what it is taken over.

    Args:
        group: A group of repeated runs.
        score: Figure of the group.

    Returns:
        Text such as "40.20 (0.41% of the figure) over windows"; "not measured" if the deviation is not known.
    """
    if score.spread is None:
        return NOT_MEASURED
    share = f" ({short_percent(score.spread / score.value)} of the figure)" if score.value else ""
    return link_to_runs(group, f"{number(score.spread)}{share} over {score.spread_over}")


def _interval(group: Group, score: Score) -> Inline:
    """Return the 95 % interval of a figure and how it was made; without one, why there is none.

    Args:
        group: A group of repeated runs.
        score: Figure of the group.
    """
    if score.interval_95 is None:
        return score.interval_method
    method = Text(text=f" {score.interval_method}", look="small")
    return [link_to_runs(group, interval_in_words(score.interval_95)), method]


def _step_quantiles(group: Group) -> Inline:
    """Return a short, the median and a long step time of the measured windows in ms: "98.10 / 99.02 / 103.40".

    Args:
        group: A group of repeated runs.

    Returns:
        The times: 5 % of the windows have shorter steps than the first, 95 % shorter ones than the last. "not measured"
        if no window says its step time.
    """
    quantiles = group.step_quantiles
    if quantiles is None:
        return NOT_MEASURED
    return link_to_runs(group, " / ".join(number(time_s * 1000) for time_s in quantiles))
