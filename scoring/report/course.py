"""Sections on what the runs did: loss, quality and time to train; memory and power; variance."""

import functools
import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from runlog.run import real
from runlog.text import visible
from scoring.figure.run import positions
from scoring.figure.standing import standing_of
from scoring.figure.window_warnings import over_median
from scoring.record import Quality, Record, Window
from scoring.report import blocks, plots
from scoring.report.blocks import Column, Figure, Inline, Paragraph, Section, Text, at_line, field, run_link
from scoring.report.brief import figure_of, of_group
from scoring.report.content import NOT_MEASURED, Group, Report, ReportedRun
from scoring.report.text import bounds, interval, number, percent

SHOWN_VALUES = 400  # of a curve


def training(report: Report) -> Section:
    """Loss, quality and the time from run_start to run_stop."""
    parts: list[Any] = [_loss(report), _quality(report)]
    trained = [run for run in report.runs if run.record.mode != "throughput"]
    timed = [run for run in trained if run.record.format == "mllog" or run.record.run_time_s is not None]
    columns: list[Column[ReportedRun]] = [
        Column("run", run_link),
        Column("time to train", _time_to_train, numeric=True),
        Column("of it in training steps", _training_share, numeric=True),
        Column("status", lambda run: field(run, "status")),
    ]
    if timed:
        parts.append(blocks.table("Time from run_start to run_stop", timed, columns, id="times"))
    gist = ", ".join(_run_time(run.record) for run in timed[:5])
    return Section(key="training", title="Loss and quality", gist=gist, blocks=parts)


def _time_to_train(run: ReportedRun) -> Inline:
    if run.record.run_time_s is None:
        return NOT_MEASURED
    ends = [at_line(run, run.record.field_lines.get(name), name[:-2]) for name in ("run_start_s", "run_stop_s")]
    return [field(run, "run_stop_s", _run_time(run.record)), ", ", ends[0], " to ", ends[1]]


class _Curve(NamedTuple):
    """One quantity over the windows of a run that have it."""

    run: ReportedRun
    points: list[tuple[float, float]]  # over the steps done, or the printed rows
    windows: list[Window]

    @property
    def series(self) -> tuple[str, list[tuple[float, float]]]:
        """The values as a plot takes them, thinned."""
        return f"run {self.run.number}", self.points[:: max(1, len(self.points) // SHOWN_VALUES)]

    def value(self, at: int) -> Inline:
        """The value of that index, as a link to its line."""
        return at_line(self.run, self.windows[at].line, f"{self.points[at][1]:.4g}")


def _curves(report: Report, read: Callable[[Window], float | None]) -> tuple[list[_Curve], str]:
    """The finite values of each run that has any, and what their axis counts."""
    found = []
    by_step = True
    for run in report.runs:
        done = positions(run.record)
        by_step = by_step and None not in done
        at = range(1, len(done) + 1) if None in done else done
        rows = [(x, y, w) for x, w in zip(at, run.record.windows, strict=True) if (y := read(w)) is not None]
        finite = [(float(x or 0), y, w) for x, y, w in rows if math.isfinite(y)]
        if finite:
            found.append(_Curve(run, [(x, y) for x, y, _ in finite], [w for _, _, w in finite]))
    return found, "step" if by_step else "printed row"


def _loss(report: Report) -> Figure | Paragraph:
    curves, axis = _curves(report, lambda window: window.loss)
    if not curves:
        return Paragraph(text=f"Loss: {NOT_MEASURED}; the logs print none.", absent=True)
    words = (f"run {c.run.number} from {c.points[0][1]:.4g} to {c.points[-1][1]:.4g}" for c in curves)
    columns: list[Column[_Curve]] = [
        Column("run", lambda curve: run_link(curve.run)),
        Column("first", lambda curve: curve.value(0), numeric=True),
        Column("last", lambda curve: curve.value(-1), numeric=True),
    ]
    return Figure(
        name="loss",
        title="Training loss",
        caption=f"Loss: {'; '.join(words)}.",
        draw=functools.partial(plots.lines, series=[curve.series for curve in curves], x=axis, y="loss"),
        numbers=blocks.table("Loss at both ends", curves, columns),
    )


def _quality(report: Report) -> Figure | Paragraph:
    judged = [run for run in report.runs if run.record.quality]
    if not judged:
        return Paragraph(text=f"Quality: {NOT_MEASURED}; the logs hold no evaluation.", absent=True)
    targets = {run.target for run in judged}
    target = targets.pop() if len(targets) == 1 else None
    names = sorted({quality.name for run in judged for quality in run.record.quality})
    series = []
    for run in judged:
        for kind in names:
            numbered = enumerate(run.record.quality, 1)
            points = [(float(at if q.epoch is None else q.epoch), q.value) for at, q in numbered if q.name == kind]
            label = f" {visible(kind, 40)}" if len(names) > 1 else ""
            series += [(f"run {run.number}{label}", points)] if points else []
    words = "; ".join(
        f"{name} {' to '.join(f'{value:.4g}' for _, value in dict.fromkeys((points[0], points[-1])))}"
        for name, points in series
    )
    reach = f"; target {target:g}" if target is not None else ""
    columns: list[Column[tuple[ReportedRun, Quality]]] = [
        Column("run", lambda row: run_link(row[0])),
        Column("measure", lambda row: row[1].name),
        Column("epoch", lambda row: "not said" if row[1].epoch is None else str(row[1].epoch), numeric=True),
        Column("value", lambda row: at_line(row[0], row[1].line, f"{row[1].value:.6g}"), numeric=True),
    ]
    evaluations = [(run, quality) for run in judged for quality in run.record.quality]
    y = visible(names[0], 40) if len(names) == 1 else "quality"
    return Figure(
        name="quality",
        title="Quality after each evaluation",
        caption=f"{' and '.join(names)}, first and last: {words}{reach}.",
        draw=functools.partial(plots.lines, series=series, x="epoch", y=y, target=target),
        numbers=blocks.table("Every evaluation", evaluations, columns),
    )


def telemetry(report: Report) -> Section:
    """GPU memory, power, energy and temperature, where the logs have them."""
    slowest = "of the slowest rank beyond the median one"
    panels = [
        _telemetry_figure(report, "memory", "GPU memory", "MiB", lambda window: window.gpu_memory_mib),
        _telemetry_figure(report, "power", "Power", "W", lambda window: window.power_w),
        _telemetry_figure(report, "compute", f"Computation {slowest}", "% of the time", _beyond("compute")),
        _telemetry_figure(report, "data_wait", f"Wait for input {slowest}", "% of the time", _beyond("data_wait")),
    ]
    columns: list[Column[ReportedRun]] = [
        Column("run", run_link),
        Column("most GPU memory", _most_memory, numeric=True),
        Column("mean power while measured", _mean_power, numeric=True),
        Column("energy an image", _joules, numeric=True),
        Column("highest GPU temperature", _temperature, numeric=True),
    ]
    table = blocks.table("Memory, power and temperature, where the log has them", report.runs, columns)
    drawn = [panel for panel in panels if panel]
    gist = "" if drawn else NOT_MEASURED
    return Section(key="telemetry", title="Ranks, memory, power, temperature", gist=gist, blocks=[*drawn, table])


def _beyond(kind: str) -> Callable[[Window], float | None]:
    return lambda window: None if (share := over_median(window, kind)) is None else 100 * share


def _most_memory(run: ReportedRun) -> Inline:
    used = [(w.gpu_memory_mib, w.line) for w in run.record.windows if w.gpu_memory_mib is not None]
    return at_line(run, max(used)[1], f"{number(max(used)[0])} MiB") if used else NOT_MEASURED


def _mean_power(run: ReportedRun) -> Inline:
    watts = [w.power_w for w in run.measured if w.power_w is not None]
    return [f"{number(statistics.fmean(watts))} W, lines ", blocks.lines_of(run)] if watts else NOT_MEASURED


def _temperature(run: ReportedRun) -> Inline:
    degrees = real(run.record.telemetry.get("peak_gpu_temperature_c"))
    line = run.record.field_lines.get("telemetry")
    return at_line(run, line, f"{number(degrees)} °C") if degrees is not None else NOT_MEASURED


def _telemetry_figure(
    report: Report, name: str, title: str, unit: str, read: Callable[[Window], float | None]
) -> Figure | None:
    curves, axis = _curves(report, read)
    if not curves:
        return None
    most = (f"run {c.run.number} up to {number(max(y for _, y in c.points))} {unit}" for c in curves)
    draw = functools.partial(plots.lines, series=[c.series for c in curves], x=axis, y=unit, from_zero=True)
    return Figure(name=name, title=title, caption=f"{title}: {'; '.join(most)}.", draw=draw)


def variance(report: Report) -> Section:
    """How far runs and windows lie apart."""
    scored = [group for group in report.groups if group.score is not None]
    if not scored:
        nothing = Paragraph(text="Not measured: there is no figure.", absent=True)
        return Section(key="variance", title="Variance", gist=NOT_MEASURED, blocks=[nothing])
    columns: list[Column[Group]] = [
        Column("system", lambda group: group.name),
        Column("figure", lambda group: of_group(group, figure_of(group)), numeric=True),
        Column("range of runs", _range),
        Column("standard deviation", _deviation),
        Column("95 % interval", _interval),
        Column("ms a step: 5, 50, 95 % of windows", _step_quantiles),
    ]
    table = blocks.table("Spread of each figure", scored, columns)
    result = report.headline.score
    gist = ""
    if result is not None and result.spread is not None and result.value:
        gist = f"standard deviation {percent(result.spread / result.value)} over {result.spread_over}"
    return Section(key="variance", title="Variance", gist=gist, blocks=[table])


def _range(group: Group) -> Inline:
    finite = [run.figure.value for run in group.runs if run.figure and math.isfinite(run.figure.value)]
    return of_group(group, bounds(finite)) if len(finite) > 1 else "one run"


def _deviation(group: Group) -> Inline:
    assert group.score is not None
    spread, value = group.score.spread, group.score.value
    if spread is None:
        return NOT_MEASURED
    share = f" ({percent(spread / value)})" if value else ""
    return of_group(group, f"{number(spread)}{share} over {group.score.spread_over}")


def _interval(group: Group) -> Inline:
    assert group.score is not None
    method = Text(text=f" {group.score.interval_method}", look="small")
    return [of_group(group, interval(group.score.interval_95)), method]


def _step_quantiles(group: Group) -> Inline:
    times = sorted(t for run in group.runs for w in run.measured if (t := w.step_s) is not None)
    quantiles = (times[int(share * len(times))] for share in (0.05, 0.5, 0.95))
    return of_group(group, " / ".join(number(q * 1000) for q in quantiles)) if times else NOT_MEASURED


def _run_time(record: Record) -> str:
    """From run_start to run_stop."""
    if record.run_time_s is None:
        return NOT_MEASURED
    factor, unit = plots.time_unit(record.run_time_s)
    return f"{number(record.run_time_s / factor)} {unit}"


def _training_share(run: ReportedRun) -> Inline:
    """How much of the run's time its training windows take; the rest is evaluation, checkpoints and set-up."""
    windows, run_s = run.record.windows, run.record.run_time_s
    seconds = [window.seconds for window in windows if window.seconds is not None]
    if not run_s or run_s <= 0 or len(seconds) != len(windows) or not seconds:
        return NOT_MEASURED
    return at_line(run, windows[0].line, percent(math.fsum(seconds) / run_s))


# MLPerf_Results_Messaging_Guidelines.adoc: "no other proxy power metric should be used"
NO_POWER_METRIC = "not given: next to an MLPerf result only power by the rules of MLPerf Power may stand"


def _joules(run: ReportedRun) -> Inline:
    """Energy of an image in the measured windows, from power and time of each; of an MLPerf result none is given."""
    standing = standing_of([run.record])
    if standing is not None and standing.uses_the_name:
        return NO_POWER_METRIC
    known = [(w.power_w, w.seconds, w.images) for w in run.measured if w.power_w is not None and w.seconds and w.images]
    if not known or len(known) != len(run.measured):
        return NOT_MEASURED
    joules = math.fsum(p * s for p, s, _ in known) / math.fsum(i for _, _, i in known)
    return at_line(run, run.measured[0].line, f"{number(joules)} J")
