"""The report as one self-contained HTML page: no script, nothing fetched, every text from a log escaped.

Each number that stands in a log is a link to the quoted line at the end of the page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from scoring.record import Record, Window
from scoring.report import plots
from scoring.report.commands import commands
from scoring.report.content import (
    NOT_MEASURED,
    Group,
    Point,
    Report,
    Run,
    all_reduce_mib,
    rate,
    seconds_per_step,
    section,
    timeline,
)
from scoring.report.markup import Child, Html, figure, flat, table, tag, tile
from scoring.report.text import interval, number, percent, visible
from scoring.score import positions

# What each state of a check looks like: a mark that is told apart without colour, and its word.
STATES = {
    "good": ("✓", "good"),
    "doubt": ("!", "doubt"),
    "bad": ("✕", "bad"),
    "unknown": ("?", "open"),
    "none": ("–", "not applicable"),
}
QUOTED_CHARS = 600  # of a log line; a longer one is cut, and says so
OPEN_PANELS = 6  # plots of runs that stand open; those of more runs are folded


class Page:
    """The page of one report; it collects the log lines that it links to."""

    def __init__(self, report: Report, command: Sequence[str]) -> None:
        self.report = report
        self.command = command
        self.wanted: dict[int, set[int]] = {run.number: set() for run in report.runs}
        self.by_file = {run.record.file: run for run in report.runs}

    # ------------------------------------------------------------------------------------------- links

    def line(self, run: Run, line: int | None, shown: Child = None) -> Child:
        """`shown` (or the line's number) as a link to the quoted line; plain where no line is known."""
        if line is None or not 1 <= line <= run.record.lines:
            return shown
        self.wanted[run.number].add(line)
        what = shown if shown is not None else f"line {line}"
        return tag("a", what, href=f"#run-{run.number}-line-{line}", title=f"{run.record.file}:{line}")

    def span(self, run: Run, first: int, last: int) -> Child:
        """Links to the first and the last of several lines."""
        if first == last:
            return self.line(run, first, f"{first}")
        return [self.line(run, first, f"{first}"), "–", self.line(run, last, f"{last}")]

    def field(self, run: Run, name: str, shown: Child = None) -> Child:
        """A field of the record, linked to the line that says it, with its other origin named."""
        value = getattr(run.record, name)
        if value is None:
            return tag("span", "not said", class_="absent")
        shown = str(value) if shown is None else shown
        if name in run.record.from_options:
            return [shown, tag("small", " (from the command line)")]
        return self.line(run, run.record.field_lines.get(name), shown)

    # ------------------------------------------------------------------------------------------- parts

    def render(self, read_lines: Callable[[str, set[int]], dict[int, str]]) -> str:
        """The whole page; `read_lines(file, lines)` gives the text of a log's lines."""
        sections = [
            ("verdict", "Verdict", self.verdict()),
            ("throughput", "Throughput over time", self.throughput()),
            ("step", "Where a step's time goes", self.step_time()),
            ("scaling", "Scaling and efficiency", self.scaling()),
            ("training", "Loss and quality", self.training()),
            ("telemetry", "Memory, power, temperature", self.telemetry()),
            ("variance", "Variance", self.variance()),
            ("compliance", "Compliance", self.compliance()),
            ("provenance", "Provenance", self.provenance()),
            ("reproduce", "Reproduce it", self.reproduce()),
        ]
        sections.append(("lines", "Quoted log lines", self.quoted(read_lines)))  # last: all links are known now
        group = self.report.headline
        title = f"{headline_text(group)} – {group.name}"
        body = [
            tag("header", tag("p", "Benchmark report", class_="over"), tag("h1", group.name)),
            tag("nav", [tag("a", name, href=f"#{key}") for key, name, _ in sections], aria_label="Sections"),
            tag(
                "main",
                [tag("section", tag("h2", name), content, id=key, class_="part") for key, name, content in sections],
            ),
            tag("footer", "Made by ", tag("code", "python -m scoring report"), " from the logs alone."),
        ]
        css = resources.files("scoring.report").joinpath("page.css").read_text(encoding="utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{flat([title])}</title>\n<style>\n{css}</style>\n</head>\n"
            f"<body>\n{flat(body)}\n</body>\n</html>\n"
        )

    def verdict(self) -> list[Child]:
        report, group = self.report, self.report.headline
        state, text = report.verdict
        result = group.score
        tiles: list[Child] = []
        if result is not None:
            between = f"{interval(result.interval_95)} ({result.interval_method})"
            bounds = f"95 % interval {between if result.interval_95 else result.interval_method}"
            runs = f"{len(result.runs)} run{'s' * (len(result.runs) > 1)}"
            tiles.append(
                tile(
                    number(result.value),
                    result.unit,
                    [bounds, ". ", tag("a", "From these lines", href="#runs")],
                    main=True,
                )
            )
            tiles.append(tile(runs, "", f"protocol {result.protocol.name}: {result.protocol.describe()}"))
        else:
            tiles.append(tile("no figure", "", group.problem or "", main=True))
        times = [run.record.run_time_s for run in group.runs if run.record.run_time_s is not None]
        if times and group.record.mode != "throughput" and (result is None or result.unit != "minutes"):
            factor, unit = plots.time_unit(max(times))
            kind = "run_start to run_stop" + (f", median of {len(times)} runs" if len(times) > 1 else "")
            tiles.append(
                tile(
                    number(statistics.median(times) / factor),
                    unit,
                    [f"time to train: {kind}. ", tag("a", "From these lines", href="#times")],
                )
            )
        final = [(run.record.quality[-1], run) for run in group.runs if run.record.quality]
        if final:
            worst, of_run = min(final, key=lambda item: item[0].value)
            which = "final" if len(final) == 1 else f"lowest final of {len(final)} runs"
            link = self.line(of_run, worst.line)
            tiles.append(tile(f"{worst.value:.4g}", "", [f"{worst.name}, {which}: ", link]))
        checks = [
            tag(
                "li",
                tag("span", STATES[check.state][0], class_=f"mark {check.state}", aria_hidden="true"),
                tag(
                    "div",
                    tag("strong", f"{check.subject}: {STATES[check.state][1]}"),
                    tag("p", check.text[:1].upper() + check.text[1:]),
                ),
            )
            for check in report.checks
        ]
        rows = []
        member_of = {run.number: member for member in report.groups for run in member.runs}
        for run in report.runs:
            member = member_of[run.number]
            rows.append(
                [
                    self.run_name(run),
                    number(run.figure.value, "no figure") if run.figure else "no figure",
                    member.score.unit if member.score else "",
                    self.field(run, "devices"),
                    self.field(run, "batch_per_device"),
                    self.field(run, "precision"),
                    str(run.figure.windows) if run.figure else "",
                    self.span(run, run.figure.first_line, run.figure.last_line) if run.figure else "",
                    visible(run.record.file),
                ]
            )
        warnings = [
            [warning.rule.replace("_", " "), warning.message, self.at(warning.file, warning.line)]
            for warning in self.warnings()
        ]
        return [
            tag(
                "p",
                tag("span", STATES[state][0], class_=f"mark {state}", aria_hidden="true"),
                tag("strong", f"{text}."),
                class_=f"banner {state}",
            ),
            tag("div", tiles, class_="tiles"),
            tag("ul", checks, class_="checks"),
            table(
                ["run", "figure", "unit", "devices", "batch a device", "precision", "windows", "log lines", "log"],
                rows,
                caption="Each run under the protocol, and the lines that its figure comes from",
                numeric=(1, 3, 4, 6),
                id="runs",
            ),
            self.group_table(),
            table(["doubt", "what it means here", "where"], warnings, caption="Doubts about the figures")
            if warnings
            else None,
        ]

    def warnings(self) -> list[Any]:
        """Of all scores and scaling tables, each once."""
        own = [warning for group in self.report.groups if group.score for warning in group.score.warnings]
        return list(dict.fromkeys([*own, *self.report.mixture]))

    def at(self, file: str | None, line: int | None) -> Child:
        """Where a warning points."""
        run = self.by_file.get(file) if file is not None else None
        if run is None:
            return ""
        return [self.run_name(run), ", ", self.line(run, line)] if line is not None else self.run_name(run)

    def group_table(self) -> Child:
        if len(self.report.groups) < 2:
            return None
        rows = [
            [
                group.name,
                number(group.score.value) if group.score else "no figure",
                group.score.unit if group.score else "",
                interval(group.score.interval_95) if group.score else "",
                str(len(group.runs)),
                group.problem or "",
            ]
            for group in self.report.groups
        ]
        head = ["system and shape", "figure", "unit", "95 % interval", "runs", "note"]
        return table(head, rows, caption="Each shape's figure", numeric=(1, 4))

    def run_name(self, run: Run) -> Child:
        return tag("a", f"run {run.number}", href=f"#run-{run.number}")

    def throughput(self) -> list[Child]:
        drawn: list[Child] = []
        for run in self.report.runs:
            points, axis = timeline(run)
            if not points:
                text = f"Run {run.number}: not shown; the log has neither rates nor images and seconds (give --batch)."
                drawn.append(tag("p", text, class_="absent"))
                continue
            drawn.append(self.run_plot(run, points, axis))
        shown, folded = drawn[:OPEN_PANELS], drawn[OPEN_PANELS:]
        more = tag("summary", f"{len(folded)} more runs")
        return [
            tag("div", shown, class_="panels"),
            tag("details", more, tag("div", folded, class_="panels")) if folded else None,
        ]

    def run_plot(self, run: Run, points: Sequence[Point], axis: str) -> Html:
        unit = "images/s"
        if run.record.rate_scope == "device" and run.record.devices is None:
            unit += " per device"
        rates = [point.images_per_s for point in points]
        of_figure = run.figure.value if run.figure and self.report.protocol.figure == "throughput" else None
        measured = [point for point in points if point.measured]
        span = ""
        if measured:
            counted = "s" if axis == "s" else ""
            span = (
                f"; measured from {axis_value(measured[0].start)} to {axis_value(measured[-1].end)} {counted or axis}"
            )
        text = (
            f"Run {run.number}: {number(min(rates))} to {number(max(rates))} {unit} over "
            f"{sum(len(point.windows) for point in points)} windows{span}"
        )
        svg = plots.throughput(
            name=f"throughput-{run.number}",
            title=f"Throughput of run {run.number} over time",
            description=text,
            points=[(point.start, point.end, point.images_per_s, point.measured) for point in points],
            axis=axis,
            unit=unit,
            value=of_figure,
        )
        together = any(len(point.windows) > 1 for point in points)
        rows = [
            [
                self.span(run, point.windows[0].line, point.windows[-1].line),
                "" if point.windows[-1].step is None else str(point.windows[-1].step),
                axis_value(point.start),
                axis_value(point.end),
                number(point.images_per_s),
                milliseconds([seconds_per_step(window) for window in point.windows]),
                "yes" if point.measured else "no",
            ]
            for point in points
        ]
        caption = f"Windows of run {run.number}" + (", neighbours put together" if together else "")
        what = f"in {axis}" if axis == "s" else f"({axis})"
        head = ["lines", "last step", f"start {what}", f"end {what}", unit, "ms a step", "measured"]
        return figure(svg, f"{text}.", table(head, rows, caption=caption, numeric=(1, 2, 3, 4, 5)))

    def step_time(self) -> list[Child]:
        timed = [(group, group.step_time) for group in self.report.groups if group.step_time is not None]
        if not timed:
            return [tag("p", f"{NOT_MEASURED.capitalize()}: the logs hold no step times.", class_="absent")]
        bars, rows = [], []
        counts = {group.record.devices for group, _ in timed}
        distinct = len(timed) > 1 and len(counts) == len(timed) and None not in counts
        for at, (group, step) in enumerate(timed, 1):
            shares: list[tuple[str, str, float]] = [("rest", step.rest, step.rest_s * 1000)]
            if step.all_reduce_s:
                shares.append(("exchange", "all-reduce (estimate)", step.all_reduce_s * 1000))
            if step.data_wait_s is not None:
                shares.append(("wait", "data wait", step.data_wait_s * 1000))
            devices = group.record.devices
            bars.append(
                (f"{devices} dev." if devices and len(timed) > 1 else f"{at}" if len(timed) > 1 else "", shares)
            )
            size = all_reduce_mib(group.record) if devices is None or devices > 1 else None
            note = step.all_reduce_note + (f" ({size:,.1f} MiB of gradients are summed in a step)" if size else "")
            rows.append(
                [
                    group.name if distinct or len(timed) == 1 else f"{at}: {group.name}",
                    number(step.total_s * 1000),
                    f"{number(step.rest_s * 1000)} ({percent(step.rest_s / step.total_s)})",
                    "not estimated"
                    if step.all_reduce_s is None
                    else f"{number(step.all_reduce_s * 1000)} ({percent(step.all_reduce_s / step.total_s)})",
                    NOT_MEASURED
                    if step.data_wait_s is None
                    else f"{number(step.data_wait_s * 1000)} ({percent(step.data_wait_s / step.total_s)})",
                    [self.measured_lines(run) for run in group.runs],
                    note,
                ]
            )
        words = [
            f"{name or group.name}: " + ", ".join(f"{part} {number(value)} ms" for _, part, value in shares)
            for (name, shares), (group, _) in zip(bars, timed, strict=True)
        ]
        svg = plots.step_times(
            name="step-times", title="Where a step's time goes", description="; ".join(words), bars=bars
        )
        head = [
            "system",
            "step, ms",
            "computation and rest, ms",
            "all-reduce, ms",
            "data wait, ms",
            "from lines",
            "note",
        ]
        return [
            tag(
                "div",
                figure(svg, "Mean step of the measured windows. " + "; ".join(words) + "."),
                class_="panels",
            ),
            table(head, rows, caption="Parts of a mean step", numeric=(1, 2, 3, 4)),
        ]

    def measured_lines(self, run: Run) -> Child:
        if run.figure is None:
            return None
        return [self.run_name(run), ": ", self.span(run, run.figure.first_line, run.figure.last_line), " "]

    def scaling(self) -> list[Child]:
        report = self.report
        scored = [g for g in report.groups if g.score and g.record.devices and g.score.unit == "images/s"]
        parts: list[Child] = [tag("p", report.curves_note)]
        if not report.scaling:
            text = "Efficiency of these runs: not measured. It takes runs of one system at two device counts or more."
            parts.append(tag("p", text, class_="absent"))
        published = [(curve.label, [(row.devices or 1, row.value) for row in curve.rows]) for curve in report.curves]
        shown = [[(row.devices, row.images_per_s) for row in rows] for rows in report.scaling]
        if not shown and scored:
            shown = [[(group.record.devices or 1, group.score.value)] for group in scored if group.score]
        names = ["this report" if len(shown) == 1 else f"this report, {at}" for at in range(1, len(shown) + 1)]
        ours = list(zip(names, shown, strict=True))
        if ours or published:
            rates = plots.scaling(
                name="scaling",
                title="Throughput by number of devices",
                description=words_of(ours + published, "images/s"),
                ours=ours,
                published=published,
                y="images/s",
                logarithmic=True,
                first=len(names) or 1,
            )
            panels = [figure(rates, "Throughput by number of devices, both axes logarithmic; dotted: published.")]
            own_shares = [
                (name, [(row.devices, row.efficiency * 100) for row in rows])
                for name, rows in zip(names, report.scaling, strict=False)
            ]
            shares = [
                (curve.label, [(row.devices or 1, efficiency(curve.base, row) * 100) for row in curve.rows])
                for curve in report.curves
            ]
            if own_shares or shares:
                svg = plots.scaling(
                    name="efficiency",
                    title="Scaling efficiency by number of devices",
                    description=words_of(own_shares + shares, "%"),
                    ours=own_shares,
                    published=shares,
                    y="efficiency in % of the smallest count",
                    logarithmic=False,
                    first=len(names) or 1,
                )
                panels.append(figure(svg, "Efficiency: speedup by devices, each against its own smallest count."))
            parts.append(tag("div", panels, class_="panels"))
        for at, rows in enumerate(report.scaling, 1):
            base = rows[0]
            parts.append(
                table(
                    ["devices", "images/s", "speedup", "95 % interval", "efficiency", "runs", "from lines"],
                    [
                        [
                            str(row.devices),
                            number(row.images_per_s),
                            number(row.speedup),
                            interval(row.speedup_95, "base" if row is base else "none"),
                            percent(row.efficiency),
                            str(len(row.group.runs)),
                            [self.measured_lines(run) for run in row.group.runs],
                        ]
                        for row in rows
                    ],
                    caption=f"Speedup and efficiency of {names[at - 1]}, against its own {base.devices} device(s)",
                    numeric=(0, 1, 2, 4, 5),
                )
            )
        if report.curves:
            rows_published: list[Sequence[Child]] = [
                [
                    row.source,
                    row.framework,
                    f"{row.accelerator}, {row.accelerator_memory_gib or '? '} GB",
                    str(row.batch_per_device or "not said"),
                    str(row.devices),
                    row.printed,
                    percent(efficiency(curve.base, row)),
                    f"its own log gives {number(row.log_value)}" if row.log_value is not None else "",
                    f"published.csv:{row.line}",
                ]
                for curve in report.curves
                for row in curve.rows
            ]
            head = ["source", "framework", "accelerator", "batch", "devices", "images/s", "efficiency", "note", "row"]
            folded = table(head, rows_published, caption="Published figures, as printed", numeric=(3, 4, 5, 6))
            parts.append(tag("details", tag("summary", "published figures beside"), folded))
        return parts

    def training(self) -> list[Child]:
        panels: list[Child] = []
        losses = [(f"run {run.number}", run, loss_points(run)) for run in self.report.runs]
        losses = [(name, run, points) for name, run, points in losses if points]
        if losses:
            by_step = all(None not in positions(run.record) for _, run, _ in losses)
            words = "; ".join(
                f"{name} from {points[0][1]:.4g} to {points[-1][1]:.4g} in {len(points)} values"
                for name, _, points in losses
            )
            svg = plots.lines(
                name="loss",
                title="Training loss",
                description=words,
                series=[(name, points) for name, _, points in losses],
                x="step" if by_step else "printed row",
                y="loss",
                whole_x=True,
                markers=len(losses[0][2]) <= 60,
            )
            rows = [
                [
                    self.run_name(run),
                    *(self.line(run, window.line, f"{window.loss:.4g}") for window in ends(with_loss(run))),
                ]
                for _, run, _ in losses
            ]
            data = table(["run", "first", "last"], rows, caption="Loss at both ends", numeric=(1, 2))
            panels.append(figure(svg, f"Loss: {words}.", data))
        else:
            panels.append(tag("p", f"Loss: {NOT_MEASURED}; the logs print none.", class_="absent"))
        judged = [(f"run {run.number}", run) for run in self.report.runs if run.record.quality]
        if judged:
            targets = {run.target for _, run in judged}
            target = targets.pop() if len(targets) == 1 else None
            names = sorted({quality.name for _, run in judged for quality in run.record.quality})
            series = [
                (
                    f"{name} {visible(kind, 40)}" if len(names) > 1 else name,
                    [(quality_x(at, q), q.value) for at, q in enumerate(run.record.quality, 1) if q.name == kind],
                )
                for name, run in judged
                for kind in names
            ]
            series = [(name, points) for name, points in series if points]
            words = "; ".join(f"{name}: {', '.join(f'{value:.4g}' for _, value in ends(p))}" for name, p in series)
            reach = f", target {target:g}" if target is not None else ""
            svg = plots.lines(
                name="quality",
                title="Quality after each evaluation",
                description=f"First and last value of {' and '.join(names)}: {words}{reach}",
                series=series,
                x="epoch",
                y=visible(names[0], 40) if len(names) == 1 else "quality",
                target=target,
                whole_x=True,
            )
            rows = [
                [
                    self.run_name(run),
                    quality.name,
                    "not said" if quality.epoch is None else str(quality.epoch),
                    self.line(run, quality.line, f"{quality.value:.6g}"),
                ]
                for _, run in judged
                for quality in run.record.quality
            ]
            data = table(["run", "measure", "epoch", "value"], rows, caption="Every evaluation", numeric=(2, 3))
            panels.append(figure(svg, f"Quality, first and last: {words}{reach}.", data))
        else:
            panels.append(tag("p", f"Quality: {NOT_MEASURED}; the logs hold no evaluation.", class_="absent"))
        rows = [
            [
                self.run_name(run),
                self.field(run, "run_stop_s", run_time(run.record)) if run.record.run_time_s else NOT_MEASURED,
                [
                    self.line(run, run.record.field_lines.get(name), name[:-2] + " ")
                    for name in ("run_start_s", "run_stop_s")
                ]
                if run.record.run_time_s
                else "",
                training_share(run.record),
                self.field(run, "status"),
            ]
            for run in self.report.runs
            if (run.record.format == "mllog" or run.record.run_time_s is not None) and run.record.mode != "throughput"
        ]
        head = ["run", "time to train", "from", "of it in training steps", "status"]
        return [
            tag("div", panels, class_="panels"),
            table(head, rows, caption="Time from run_start to run_stop", numeric=(1, 3), id="times") if rows else None,
        ]

    def telemetry(self) -> list[Child]:
        panels: list[Child] = []
        kinds: tuple[tuple[str, str, Callable[[Window], float | None], str], ...] = (
            ("memory", "GPU memory", lambda window: window.gpu_memory_mib, "MiB"),
            ("power", "Power", lambda window: window.power_w, "W"),
        )
        for name, title, read, unit in kinds:
            series, most = [], []
            for run in self.report.runs:
                windows = enumerate(run.record.windows, 1)
                got = [(float(w.step or at), value) for at, w in windows if (value := read(w)) is not None]
                if got:
                    series.append((f"run {run.number}", got[:: max(1, len(got) // 400)]))
                    most.append(f"run {run.number} up to {number(max(value for _, value in got))} {unit}")
            if series:
                words = "; ".join(most)
                svg = plots.lines(
                    name=name,
                    title=title,
                    description=words,
                    series=series,
                    x="step",
                    y=unit,
                    from_zero=True,
                    whole_x=True,
                    markers=len(series[0][1]) <= 60,
                )
                panels.append(figure(svg, f"{title}: {words}."))
        rows = [
            [
                self.run_name(run),
                self.peak(run, lambda window: window.gpu_memory_mib, "MiB"),
                self.mean_power(run),
                joules(run),
                self.temperature(run),
            ]
            for run in self.report.runs
        ]
        head = ["run", "most GPU memory", "mean power while measured", "energy an image", "highest GPU temperature"]
        return [
            tag("div", panels, class_="panels") if panels else None,
            table(head, rows, caption="Memory, power and temperature, where the log has them", numeric=(1, 2, 3, 4)),
        ]

    def peak(self, run: Run, read: Callable[[Window], float | None], unit: str) -> Child:
        found = [(value, window.line) for window in run.record.windows if (value := read(window)) is not None]
        if not found:
            return NOT_MEASURED
        value, line = max(found)
        return self.line(run, line, f"{number(value)} {unit}")

    def temperature(self, run: Run) -> Child:
        found = run.record.telemetry.get("peak_gpu_temperature_c")
        if isinstance(found, bool) or not isinstance(found, int | float):
            return NOT_MEASURED
        return self.line(run, run.record.field_lines.get("telemetry"), f"{number(float(found))} °C")

    def mean_power(self, run: Run) -> Child:
        watts = [window.power_w for window in run.measured if window.power_w is not None]
        return [f"{number(statistics.fmean(watts))} W, ", self.measured_lines(run)] if watts else NOT_MEASURED

    def variance(self) -> list[Child]:
        panels: list[Child] = []
        rows = []
        for at, group in enumerate(self.report.groups, 1):
            result = group.score
            if result is None:
                continue
            runs = [(run, run.figure) for run in group.runs if run.figure and math.isfinite(run.figure.value)]
            finite = [figure_.value for _, figure_ in runs]
            share = result.spread / result.value if result.spread is not None and result.value else None
            low, high = (min(finite), max(finite)) if finite else (math.nan, math.nan)
            per_step = [t for run in group.runs for w in run.measured if (t := seconds_per_step(w)) is not None]
            rows.append(
                [
                    group.name,
                    number(result.value),
                    result.unit,
                    str(len(result.runs)),
                    f"{number(low)} to {number(high)}" if len(finite) > 1 else "one run",
                    f"{number(result.spread)} over {result.spread_over}" if result.spread is not None else NOT_MEASURED,
                    percent(share),
                    [interval(result.interval_95), tag("small", f" {result.interval_method}")],
                    " / ".join(number(q * 1000) for q in quantiles(per_step)) if per_step else NOT_MEASURED,
                    [self.measured_lines(run) for run in group.runs],
                ]
            )
            if not finite or not math.isfinite(result.value):
                continue
            drawn = [
                (f"run {run.number}", window_rates(run) if result.unit == "images/s" else [], figure_.value)
                for run, figure_ in runs
            ]
            words = f"{group.name}: {', '.join(number(value) for value in finite)} {result.unit}" + (
                f"; 95 % interval {interval(result.interval_95)}" if result.interval_95 else ""
            )
            svg = plots.variance(
                name=f"variance-{at}",
                title=f"Spread of {group.name}",
                description=words,
                rows=drawn,
                value=result.value,
                interval=result.interval_95,
                unit=result.unit,
            )
            panels.append(figure(svg, f"{words}. Dots: windows; diamonds: runs."))
        head = ["system", "figure", "unit", "runs", "range of runs", "standard deviation", "of the figure"]
        head += ["95 % interval", "ms a step: 5, 50, 95 % of windows", "from lines"]
        if not rows:
            return [tag("p", "Not measured: there is no figure.", class_="absent")]
        return [
            tag("div", panels[:OPEN_PANELS], class_="panels"),
            tag("details", tag("summary", "more systems"), tag("div", panels[OPEN_PANELS:], class_="panels"))
            if len(panels) > OPEN_PANELS
            else None,
            table(head, rows, caption="How far repeats and windows lie apart", numeric=(1, 3, 6)),
        ]

    def compliance(self) -> list[Child]:
        parts: list[Child] = []
        rows: list[Sequence[Child]] = []
        passed_over: list[Sequence[Child]] = []
        for run in self.report.runs:
            if run.findings is None:
                parts.append(tag("p", "Not checked: ", self.run_name(run), ".", class_="absent"))
                continue
            found = run.findings["findings"]
            errors = sum(finding["severity"] == "error" for finding in found)
            state = "good" if run.findings["verdict"] == "pass" else "bad"
            official = run.findings.get("official")
            said = f"; official checker: {official.get('verdict')}" if isinstance(official, dict) else ""
            text = f"{run.findings['verdict']}, {errors} error{'s' * (errors != 1)}{said}"
            mark = tag("span", STATES[state][0], class_=f"mark {state}", aria_hidden="true")
            parts.append(tag("p", mark, self.run_name(run), f": {text}"))
            for finding in found:
                target = passed_over if finding["severity"] == "info" else rows
                line = finding["line"] if isinstance(finding["line"], int) else None
                target.append(
                    [
                        self.run_name(run),
                        finding["severity"],
                        tag("code", str(finding["rule"])),
                        self.line(run, line) if line is not None else "",
                        str(finding["expected"]),
                        str(finding["actual"]),
                        str(finding["fix"]),
                    ]
                )
        head = ["run", "severity", "rule", "line", "expected", "actual", "what to do"]
        if rows:
            parts.append(table(head, rows, caption="Errors and warnings"))
        elif any(run.findings is not None for run in self.report.runs):
            parts.append(tag("p", "No error and no warning."))
        if passed_over:
            notes = table(head[:-1], [row[:-1] for row in passed_over], caption="Notes")
            parts.append(tag("details", tag("summary", f"{len(passed_over)} notes"), notes))
        return parts

    def topologies(self, run: Run, hardware: Any) -> list[Child]:
        """How the GPUs of each node are linked; nodes that are alike are drawn once."""
        alike: dict[str, tuple[Any, list[str]]] = {}
        nodes = hardware.get("nodes") if isinstance(hardware, dict) else None
        for node in nodes if isinstance(nodes, list) else []:
            if isinstance(node, dict) and plots.is_topology(found := node.get("topology")):
                alike.setdefault(repr(found), (found, []))[1].append(str(node.get("host")))
        if not alike:
            return [tag("p", f"Topology of the GPUs: {NOT_MEASURED}.", class_="absent")]
        drawn: list[Child] = []
        for at, (found, hosts) in enumerate(alike.values(), 1):
            names, links = found["devices"], found["links"]
            words = "; ".join(
                f"{name} to {', '.join(f'{to} {link}' for to, link in zip(names, row, strict=True) if link != 'X')}"
                for name, row in zip(names, links, strict=True)
            )
            where = f"{len(hosts)} node{'s' * (len(hosts) > 1)}: {visible(', '.join(hosts[:4]))}"
            svg = plots.topology(
                name=f"topology-{run.number}-{at}",
                title="Topology of the GPUs",
                description=words,
                names=names,
                links=links,
            )
            caption = (
                f"Links between GPUs and network cards, as nvidia-smi names them; {where}. NV: NVLinks; PIX, PXB: "
                "PCIe switches; PHB: host bridge; NODE: within a socket; SYS: between sockets."
            )
            drawn.append(figure(svg, caption))
        return drawn

    def provenance(self) -> list[Child]:
        parts: list[Child] = []
        fields = (
            "framework",
            "model",
            "devices",
            "nodes",
            "batch_per_device",
            "precision",
            "math_mode",
            "mode",
            "status",
        )
        shown: dict[str, int] = {}  # tables of earlier runs: their text and number
        absent = tag("span", "not said", class_="absent")
        for run in self.report.runs:
            record = run.record
            facts: list[tuple[str, Child]] = [
                ("log", tag("code", record.file)),
                ("SHA-256 of the log", tag("code", record.sha256)),
                ("read as", f"{record.format}, {record.lines:,} lines"),
                *((name.replace("_", " "), self.field(run, name)) for name in fields),
                ("seed", self.line(run, run.seed[1], str(run.seed[0])) if run.seed else absent),
            ]
            source = section(record, "source")
            if source:
                at, dirty = run.header_lines.get("source"), str(source.get("dirty"))
                facts += [
                    ("commit", self.line(run, at, str(source.get("commit")))),
                    ("uncommitted changes", self.line(run, at, {"True": "yes", "False": "no"}.get(dirty, "not said"))),
                    ("lock file SHA-256", self.line(run, at, str(source.get("lock_sha256")))),
                    ("image digest", self.line(run, at, str(source.get("image_digest") or "no image"))),
                ]
            for problem in record.problems:
                facts.append(("problem in the text", problem))
            items = [[tag("dt", name), tag("dd", value)] for name, value in facts]
            tables = []
            for name, title in (
                ("hardware", "Hardware"),
                ("dataset", "Data set"),
                ("packages", "Packages"),
                ("config", "Configuration"),
                ("program", "Training program"),
            ):
                if not (content := record.header.get(name)):
                    continue
                text = f"{name}{content!r}"
                link = self.line(run, run.header_lines.get(name))
                if text in shown:
                    tables.append(tag("p", f"{title}: the same as of run {shown[text]} (", link or "header", ")."))
                    continue
                shown[text] = run.number
                if name == "hardware":
                    tables += [tag("div", self.topologies(run, content), class_="panels")]
                tables.append(
                    tag(
                        "details",
                        tag("summary", f"{title} of run {run.number}"),
                        tag("p", link),
                        header_table(name, content),
                    )
                )
            heading = tag("h3", f"Run {run.number}", id=f"run-{run.number}")
            parts.append(tag("article", heading, tag("dl", items), tables))
        return [tag("div", parts, class_="cards")]

    def reproduce(self) -> list[Child]:
        return [
            tag("p", text)
            if not code
            else [tag("p", text), tag("pre", Html("\n".join(flat([row]) for row in code.split("\n"))), tabindex="0")]
            for text, code in commands(self.report, self.command)
        ]

    def quoted(self, read_lines: Callable[[str, set[int]], dict[int, str]]) -> list[Child]:
        parts: list[Child] = [tag("p", "The lines that the numbers above come from, as they stand in the logs.")]
        for run in self.report.runs:
            wanted = self.wanted[run.number]
            texts = read_lines(run.record.file, wanted)
            items = [
                tag(
                    "li",
                    tag("span", f"{line}", class_="n"),
                    tag("code", visible(texts.get(line, ""), QUOTED_CHARS)),
                    id=f"run-{run.number}-line-{line}",
                )
                for line in sorted(wanted)
            ]
            parts.append(tag("h3", self.run_name(run), ": ", tag("code", run.record.file)))
            parts.append(tag("ol", items, class_="lines") if items else tag("p", "none"))
        return parts


# ------------------------------------------------------------------------------------------------- helpers


def headline_text(group: Group) -> str:
    """The first figure in a few words."""
    return f"{number(group.score.value)} {group.score.unit}" if group.score else "no figure"


def axis_value(value: float) -> str:
    """A place on the axis of time or steps."""
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"


def milliseconds(times: Sequence[float | None]) -> str:
    """Mean of step times."""
    known = [time for time in times if time is not None]
    return number(statistics.fmean(known) * 1000) if known and len(known) == len(times) else "not said"


def ends(items: Sequence[Any]) -> list[Any]:
    """First and last of a sequence that is not empty."""
    return [items[0], items[-1]]


def with_loss(run: Run) -> list[Window]:
    """Windows with a finite loss."""
    return [w for w in run.record.windows if w.loss is not None and math.isfinite(w.loss)]


def loss_points(run: Run) -> list[tuple[float, float]]:
    """(steps done, or row; loss), thinned to what a plot can show."""
    done = positions(run.record)
    by_row = None in done
    points = [
        (float(at if by_row else step or 0), window.loss)
        for at, (window, step) in enumerate(zip(run.record.windows, done, strict=True), 1)
        if window.loss is not None and math.isfinite(window.loss)
    ]
    return points[:: max(1, len(points) // 400)]


def quality_x(at: int, quality: Any) -> float:
    """Where an evaluation stands on the axis of epochs."""
    return float(quality.epoch if quality.epoch is not None else at)


def window_rates(run: Run) -> list[float]:
    """Rates of the measured windows, at most 200, evenly chosen."""
    rates = [r for window in run.measured if (r := rate(run.record, window)) is not None]
    return rates[:: max(1, -(-len(rates) // 200))]


def quantiles(values: Sequence[float]) -> list[float]:
    """5, 50 and 95 % quantile, of the values themselves."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.05, 0.5, 0.95)]


def efficiency(base: Any, row: Any) -> float:
    """Speedup by devices of a published row."""
    return (row.value / base.value) / (row.devices / base.devices)


def words_of(series: Sequence[tuple[str, Sequence[tuple[int, float]]]], unit: str) -> str:
    """Curves over the device count in words."""
    return "; ".join(
        f"{label}: " + ", ".join(f"{number(value)} {unit} on {devices}" for devices, value in points)
        for label, points in series
    )


def run_time(record: Record) -> str:
    """From run_start to run_stop."""
    if record.run_time_s is None:
        return NOT_MEASURED
    factor, unit = plots.time_unit(record.run_time_s)
    return f"{number(record.run_time_s / factor)} {unit}"


def training_share(record: Record) -> str:
    """How much of the run's time its training windows take; the rest is evaluation, checkpoints and set-up."""
    seconds = [window.seconds for window in record.windows if window.seconds is not None]
    if not record.run_time_s or record.run_time_s <= 0 or len(seconds) != len(record.windows) or not seconds:
        return NOT_MEASURED
    return percent(math.fsum(seconds) / record.run_time_s)


def joules(run: Run) -> str:
    """Energy of an image in the measured windows, from power and time of each."""
    windows = run.measured
    known = [(w.power_w, w.seconds, w.images) for w in windows if w.power_w is not None and w.seconds and w.images]
    if not windows or len(known) != len(windows):
        return NOT_MEASURED
    return f"{number(math.fsum(p * s for p, s, _ in known) / math.fsum(i for _, _, i in known))} J"


def header_table(name: str, content: Any) -> Html:
    """A section of the log's header."""
    if name == "config" and isinstance(content, dict):
        rows: list[Sequence[Child]] = [
            [tag("code", str(key)), str(entry.get("value")), str(entry.get("origin"))]
            for key, entry in content.items()
            if isinstance(entry, dict)
        ]
        return table(["name", "value", "set by"], rows, caption="Resolved configuration")
    pairs = [[tag("code", key), value] for key, value in leaves(content)]
    return table(["name", "value"], pairs, caption=name.capitalize())


def leaves(content: Any, path: str = "") -> list[tuple[str, str]]:
    """A nested value as (path, text) pairs."""
    if isinstance(content, dict) and content:
        return [pair for key, value in content.items() for pair in leaves(value, f"{path}.{key}" if path else str(key))]
    if isinstance(content, list) and any(isinstance(item, dict | list) for item in content):
        return [pair for at, value in enumerate(content) for pair in leaves(value, f"{path}[{at}]")]
    return [(path, str(content))]
