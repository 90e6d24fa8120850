"""Sections on what the runs did: loss, quality and time to train; memory and power; variance."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from runlog.run import real
from runlog.text import visible
from scoring.figure.score import positions
from scoring.record import Record, Window
from scoring.report import plots
from scoring.report.blocks import (
    Figure,
    Fold,
    Inline,
    Paragraph,
    Section,
    Table,
    Text,
    at_line,
    field,
    from_lines,
    run_link,
)
from scoring.report.brief import figure_of
from scoring.report.content import NOT_MEASURED, Group, Report, ReportedRun, quantiles, seconds_per_step
from scoring.report.speed import SHOWN_PANELS
from scoring.report.text import interval, number, percent

SHOWN_VALUES = 400  # of a curve


def training(report: Report) -> Section:
    """Loss, quality and the time from run_start to run_stop."""
    blocks: list[Any] = [_loss(report), _quality(report)]
    gist = []
    rows: list[list[Inline]] = []
    for run in report.runs:
        record = run.record
        if record.mode == "throughput" or (record.format != "mllog" and record.run_time_s is None):
            continue
        times = [at_line(run, record.field_lines.get(name), name[:-2] + " ") for name in ("run_start_s", "run_stop_s")]
        known = record.run_time_s is not None
        rows.append(
            [
                run_link(run),
                field(run, "run_stop_s", _run_time(record)) if known else NOT_MEASURED,
                times if known else "",
                _training_share(record),
                field(run, "status"),
            ]
        )
        gist.append(_run_time(record))
    if rows:
        head = ["run", "time to train", "from", "of it in training steps", "status"]
        caption = "Time from run_start to run_stop"
        blocks.append(Table(caption=caption, head=head, rows=rows, numeric=(1, 3), id="times"))
    return Section(key="training", title="Loss and quality", gist=", ".join(gist[:5]), blocks=blocks)


def _loss(report: Report) -> Figure | Paragraph:
    series, rows, words = [], [], []
    by_step = all(None not in positions(run.record) for run in report.runs)
    for run in report.runs:
        done = positions(run.record)
        found = [
            (float((step or 0) if None not in done else at), window)
            for at, (window, step) in enumerate(zip(run.record.windows, done, strict=True), 1)
            if window.loss is not None and math.isfinite(window.loss)
        ]
        if found:
            first, last = found[0][1], found[-1][1]
            series.append((f"run {run.number}", [(x, w.loss) for x, w in _thinned(found)]))
            words.append(f"run {run.number} from {first.loss:.4g} to {last.loss:.4g}")
            rows.append([run_link(run), *(at_line(run, w.line, f"{w.loss:.4g}") for w in (first, last))])
    if not series:
        return Paragraph(text=f"Loss: {NOT_MEASURED}; the logs print none.", absent=True)
    return Figure(
        name="loss",
        title="Training loss",
        caption=f"Loss: {'; '.join(words)}.",
        draw=functools.partial(plots.lines, series=series, x="step" if by_step else "printed row", y="loss"),
        numbers=Table(caption="Loss at both ends", head=["run", "first", "last"], rows=rows, numeric=(1, 2)),
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
    rows = [
        [
            run_link(run),
            quality.name,
            "not said" if quality.epoch is None else str(quality.epoch),
            at_line(run, quality.line, f"{quality.value:.6g}"),
        ]
        for run in judged
        for quality in run.record.quality
    ]
    y = visible(names[0], 40) if len(names) == 1 else "quality"
    return Figure(
        name="quality",
        title="Quality after each evaluation",
        caption=f"{' and '.join(names)}, first and last: {words}{reach}.",
        draw=functools.partial(plots.lines, series=series, x="epoch", y=y, target=target),
        numbers=Table(caption="Every evaluation", head=["run", "measure", "epoch", "value"], rows=rows, numeric=(2, 3)),
    )


def telemetry(report: Report) -> Section:
    """GPU memory, power, energy and temperature, where the logs have them."""
    panels = [
        _telemetry_figure(report, "memory", "GPU memory", "MiB", lambda window: window.gpu_memory_mib),
        _telemetry_figure(report, "power", "Power", "W", lambda window: window.power_w),
    ]
    rows = []
    for run in report.runs:
        used = [(w.gpu_memory_mib, w.line) for w in run.record.windows if w.gpu_memory_mib is not None]
        most, at = max(used, default=(None, None))
        watts = [w.power_w for w in run.measured if w.power_w is not None]
        mean_w = statistics.fmean(watts) if watts else None
        degrees = real(run.record.telemetry.get("peak_gpu_temperature_c"))
        rows.append(
            [
                run_link(run),
                at_line(run, at, f"{number(most)} MiB") if used else NOT_MEASURED,
                [f"{number(mean_w)} W, ", from_lines([run])] if watts else NOT_MEASURED,
                _joules(run),
                at_line(run, run.record.field_lines.get("telemetry"), f"{number(degrees)} °C")
                if degrees is not None
                else NOT_MEASURED,
            ]
        )
    head = ["run", "most GPU memory", "mean power while measured", "energy an image", "highest GPU temperature"]
    caption = "Memory, power and temperature, where the log has them"
    table = Table(caption=caption, head=head, rows=rows, numeric=(1, 2, 3, 4))
    drawn = [panel for panel in panels if panel]
    gist = "" if drawn else NOT_MEASURED
    return Section(key="telemetry", title="Memory, power, temperature", gist=gist, blocks=[*drawn, table])


def _telemetry_figure(
    report: Report, name: str, title: str, unit: str, read: Callable[[Window], float | None]
) -> Figure | None:
    series, most = [], []
    for run in report.runs:
        windows = enumerate(run.record.windows, 1)
        got = [(float(w.step or at), value) for at, w in windows if (value := read(w)) is not None]
        if got:
            series.append((f"run {run.number}", _thinned(got)))
            most.append(f"run {run.number} up to {number(max(value for _, value in got))} {unit}")
    if not series:
        return None
    draw = functools.partial(plots.lines, series=series, x="step", y=unit, from_zero=True)
    return Figure(name=name, title=title, caption=f"{title}: {'; '.join(most)}.", draw=draw)


def variance(report: Report) -> Section:
    """How far runs and windows lie apart."""
    rows, figures = [], []
    for at, group in enumerate(report.groups, 1):
        if group.score is not None:
            rows.append(_variance_row(group))
            figures += _variance_figure(at, group)
    title, gist = "Variance", ""
    if not rows:
        text = "Not measured: there is no figure."
        return Section(key="variance", title=title, gist=NOT_MEASURED, blocks=[Paragraph(text=text, absent=True)])
    head = ["system", "figure", "runs", "range of runs", "standard deviation", "of the figure"]
    head += ["95 % interval", "ms a step: 5, 50, 95 % of windows", "from lines"]
    blocks: list[Any] = list(figures[:SHOWN_PANELS])
    if more := figures[SHOWN_PANELS:]:
        blocks.append(Fold(summary="more systems", blocks=more))
    result = report.headline.score
    if result is not None and result.spread is not None and result.value:
        gist = f"standard deviation {percent(result.spread / result.value)} over {result.spread_over}"
    blocks.append(Table(caption="Spread of each figure", head=head, rows=rows, numeric=(1, 2)))
    return Section(key="variance", title=title, gist=gist, blocks=blocks)


def _variance_row(group: Group) -> list[Inline]:
    result = group.score
    assert result is not None
    finite = [run.figure.value for run in group.runs if run.figure and math.isfinite(run.figure.value)]
    times = [t for run in group.runs for w in run.measured if (t := seconds_per_step(w)) is not None]
    spread = result.spread
    return [
        group.name,
        figure_of(group),
        str(len(result.runs)),
        f"{number(min(finite))} to {number(max(finite))}" if len(finite) > 1 else "one run",
        f"{number(spread)} over {result.spread_over}" if spread is not None else NOT_MEASURED,
        percent(spread / result.value if spread is not None and result.value else None),
        [interval(result.interval_95), Text(text=f" {result.interval_method}", look="small")],
        " / ".join(number(q * 1000) for q in quantiles(times)) if times else NOT_MEASURED,
        from_lines(group.runs),
    ]


def _variance_figure(at: int, group: Group) -> list[Figure]:
    result = group.score
    runs = [(run, run.figure.value) for run in group.runs if run.figure and math.isfinite(run.figure.value)]
    if result is None or not runs or not math.isfinite(result.value):
        return []
    rows = []
    for run, value in runs:
        rates = run.figure.rates if run.figure else ()
        few = rates[:: max(1, -(-len(rates) // 200))]
        rows.append((f"run {run.number}", few if result.unit == "images/s" else [], value))
    words = f"{group.name}: {', '.join(number(value) for _, value in runs)} {result.unit}"
    if result.interval_95:
        words += f"; 95 % interval {interval(result.interval_95)}"
    draw = functools.partial(
        plots.variance, rows=rows, value=result.value, interval=result.interval_95, unit=result.unit
    )
    caption = f"{words}. Dots: what a run's figure is made of; diamonds: runs."
    return [Figure(name=f"variance-{at}", title=f"Spread of {group.name}", caption=caption, draw=draw)]


def _thinned(points: Sequence[Any]) -> list[Any]:
    return list(points[:: max(1, len(points) // SHOWN_VALUES)])


def _run_time(record: Record) -> str:
    """From run_start to run_stop."""
    if record.run_time_s is None:
        return NOT_MEASURED
    factor, unit = plots.time_unit(record.run_time_s)
    return f"{number(record.run_time_s / factor)} {unit}"


def _training_share(record: Record) -> str:
    """How much of the run's time its training windows take; the rest is evaluation, checkpoints and set-up."""
    seconds = [window.seconds for window in record.windows if window.seconds is not None]
    if not record.run_time_s or record.run_time_s <= 0 or len(seconds) != len(record.windows) or not seconds:
        return NOT_MEASURED
    return percent(math.fsum(seconds) / record.run_time_s)


def _joules(run: ReportedRun) -> str:
    """Energy of an image in the measured windows, from power and time of each."""
    known = [(w.power_w, w.seconds, w.images) for w in run.measured if w.power_w is not None and w.seconds and w.images]
    if not known or len(known) != len(run.measured):
        return NOT_MEASURED
    return f"{number(math.fsum(p * s for p, s, _ in known) / math.fsum(i for _, _, i in known))} J"
