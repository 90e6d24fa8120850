"""What a report says, as plain values: groups of runs, verdict, step time, scaling. Pure but for reading of logs."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compliance.log import Event, Header, read_log
from scoring import hazards, protocols, scale
from scoring.protocols import Protocol
from scoring.published import Published
from scoring.record import InputError, Record, Window
from scoring.report.text import visible
from scoring.score import RunFigure, Score, TooFewRunsError, score

NOT_MEASURED = "not measured"
SHOWN_POINTS = 120  # of a curve or a table of windows; neighbours of a longer run are put together
PREAMBLE_ENTRIES = 5000  # entries of a log in which header and seed are looked for


@dataclass(frozen=True, kw_only=True)
class Run:
    """One log of the report."""

    number: int  # 1-based, in the order given
    record: Record
    header_lines: dict[str, int]  # section: line
    seed: tuple[int, int] | None  # value and line
    figure: RunFigure | None = None
    span: tuple[int, int] = (1, 0)  # first and last line that may hold a measured window
    findings: dict[str, Any] | None = None  # the file's entry of `python -m compliance check --json`

    @property
    def measured(self) -> list[Window]:
        """The windows that the figure comes from."""
        first, last = self.span
        return [w for w in self.record.windows if first <= w.line <= last and w.phase != "warmup"]

    @property
    def target(self) -> float | None:
        """Quality that the run's recipe asks for, where its header says."""
        for name, entry in config_of(self.record).items():
            if name.startswith("RECIPE.target_") and isinstance(entry.get("value"), int | float):
                return float(entry["value"])
        return None


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Where the time of one step goes, in seconds; None where it is not known."""

    total_s: float
    data_wait_s: float | None
    all_reduce_s: float | None
    all_reduce_note: str
    rest: str  # what `rest_s` is: computation, and what could not be told from it

    @property
    def rest_s(self) -> float:
        """What is left for computation (and for all that is not known apart)."""
        return self.total_s - (self.data_wait_s or 0.0) - (self.all_reduce_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Repeated runs of one system at one shape, and their figure."""

    name: str
    runs: tuple[Run, ...]
    score: Score | None
    problem: str | None  # why there is no figure, or not the one that the protocol asks for
    step_time: StepTime | None = None

    @property
    def record(self) -> Record:
        """Of the first run, for what all runs of the group share."""
        return self.runs[0].record


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One device count beside the smallest one of the same system."""

    group: Group
    devices: int
    images_per_s: float
    speedup: float
    speedup_95: tuple[float, float] | None
    efficiency: float  # speedup by devices over the base's


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A published table's throughput over device counts."""

    label: str
    rows: tuple[Published, ...]

    @property
    def base(self) -> Published:
        """Row of the fewest devices."""
        return self.rows[0]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the verdict; `state` is good, doubt, bad, unknown or none (not applicable)."""

    state: str
    subject: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that any form of the report says."""

    groups: tuple[Group, ...]
    protocol: Protocol
    checks: tuple[Check, ...]
    scaling: tuple[tuple[ScalingRow, ...], ...]  # one table a system with two device counts or more
    curves: tuple[Curve, ...]
    curves_note: str
    mixture: tuple[hazards.Warning_, ...]  # of runs that stand side by side in one scaling table

    @property
    def runs(self) -> list[Run]:
        """Of all groups, in the order given."""
        return sorted((run for group in self.groups for run in group.runs), key=lambda run: run.number)

    @property
    def headline(self) -> Group:
        """The group of the first figure: the one of the most devices."""
        return max(self.groups, key=lambda group: (group.score is not None, group.record.devices or 0))

    @property
    def verdict(self) -> tuple[str, str]:
        """The worst state of the checks, and what it means."""
        doubts = sum(check.state == "doubt" for check in self.checks)
        states = {check.state for check in self.checks}
        if "bad" in states:
            return "bad", "This result does not stand"
        if "unknown" in states:
            return "unknown", "Not yet shown to be publishable"
        if doubts:
            return "doubt", f"The result stands, with {doubts} reservation{'s' * (doubts > 1)}"
        return "good", "The result stands"


def config_of(record: Record) -> dict[str, dict[str, Any]]:
    """The resolved configuration of our own logs: name to value and origin; empty without one."""
    config = record.header.get("config")
    if not isinstance(config, dict):
        return {}
    return {str(name): entry for name, entry in config.items() if isinstance(entry, dict)}


def section(record: Record, name: str) -> dict[str, Any]:
    """A header section that is a table; empty without one."""
    found = record.header.get(name)
    return found if isinstance(found, dict) else {}


# ------------------------------------------------------------------------------------------------- reading


def preamble(record: Record) -> tuple[dict[str, int], tuple[int, int] | None]:
    """Lines of the header's sections and the run's seed with its line, from an MLLOG log up to run_start."""
    lines: dict[str, int] = {}
    seed = None
    if record.format != "mllog":
        return lines, None
    for entry in itertools.islice(read_log(record.file), PREAMBLE_ENTRIES):
        if isinstance(entry, Header):
            lines.setdefault(entry.section, entry.line)
        elif isinstance(entry, Event):
            if entry.key == "run_start":
                break
            if entry.key == "seed" and isinstance(entry.value, int) and seed is None:
                seed = (entry.value, entry.line)
    return lines, seed


def read_findings(path: str, records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Each run's entry of `python -m compliance check --json`, by the run's file.

    Raises InputError for a file that is none, or that speaks of other logs.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))["files"]
        by_file = {os.path.realpath(entry["file"]): entry for entry in entries}
        for entry in entries:
            if entry["verdict"] not in ("pass", "fail") or not all(
                {"rule", "severity", "line", "expected", "actual", "fix"} <= set(finding)
                and type(finding["line"]) in (int, type(None))
                for finding in entry["findings"]
            ):
                raise KeyError
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: no findings; make the file with `python -m compliance check --json LOG... > {path}`"
        ) from None
    found = {}
    for record in records:
        entry = by_file.pop(os.path.realpath(record.file), None)
        if entry is not None:
            found[record.file] = entry
    if by_file:
        raise InputError(
            f"{path}: speaks of {next(iter(by_file))}, which is no run of this report; check the same logs"
        )
    return found


# ------------------------------------------------------------------------------------------------ building


def build(
    records: Sequence[Record],
    protocol: Protocol | None,
    *,
    skip: int | None,
    findings: dict[str, dict[str, Any]],
    published: Sequence[Published],
) -> Report:
    """The report of `records`; without a protocol, `window` over as many runs as each system has."""
    digests: dict[str, str] = {}
    for record in records:
        if record.sha256 in digests:
            raise InputError(f"{record.file} and {digests[record.sha256]} are the same log: one run counts once")
        digests[record.sha256] = record.file
    by_system: dict[tuple[Any, ...], list[Run]] = {}
    for number, record in enumerate(records, 1):
        lines, seed = preamble(record)
        run = Run(number=number, record=record, header_lines=lines, seed=seed, findings=findings.get(record.file))
        by_system.setdefault((*_system(record), record.devices, record.nodes), []).append(run)
    groups = [_scored(runs, protocol, skip) for runs in by_system.values()]
    groups.sort(key=lambda group: group.record.devices or 0)
    series: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        series.setdefault(_system(group.record), []).append(group)
    timed: list[Group] = []
    scaling, mixture = [], []
    for members in series.values():
        members = _with_step_times(members)
        timed.extend(members)
        if len(rows := _scaling(members)) > 1:
            scaling.append(tuple(rows))
            mixture.extend(hazards.of_mixture([run.record for member in members for run in member.runs]))
    # Of the largest shape that has any: the others are its smaller ones, or of models without published figures.
    beside = [curves(group.record, published) for group in reversed(timed)]
    chosen, note = next((found for found in beside if found[0]), beside[0])
    named = protocol or _window(timed[-1].runs)
    return Report(
        groups=tuple(timed),
        protocol=named if skip is None else named.skipping(skip),
        checks=tuple(_checks(timed, named)),
        scaling=tuple(scaling),
        curves=tuple(chosen),
        curves_note=note,
        mixture=tuple(mixture),
    )


def _system(record: Record) -> tuple[Any, ...]:
    """What runs of one system share, whatever their number of devices."""
    framework = record.framework.split()[0] if record.framework else None
    return framework, record.model, record.batch_per_device, record.precision, record.math_mode, record.mode


def _name(record: Record) -> str:
    parts = [
        visible(record.model, 80) if record.model else None,
        f"{record.devices} device{'s' * (record.devices != 1)}" if record.devices else None,
        f"on {record.nodes} nodes" if record.nodes and record.nodes > 1 else None,
        f"batch {record.batch_per_device} a device" if record.batch_per_device else None,
        visible(record.precision, 40) if record.precision else None,
        "TF32" if record.math_mode == "tf32" and record.precision == "fp32" else None,
    ]
    return ", ".join(part for part in parts if part) or record.format


def _window(runs: Sequence[Run]) -> Protocol:
    """The protocol where none is asked for: all steps after warm-up, over the runs that there are."""
    return replace(protocols.find("window"), runs=len(runs))


def _scored(runs: list[Run], protocol: Protocol | None, skip: int | None) -> Group:
    wanted = protocol or _window(runs)
    result, problem = None, None
    try:
        result = score([run.record for run in runs], wanted, skip=skip)
    except TooFewRunsError as error:
        result, problem = error.partial, str(error)
    except InputError as error:
        problem = str(error)
    if result is not None:
        runs = [
            replace(run, figure=figure, span=_span(run.record, figure, wanted))
            for run, figure in zip(runs, result.runs, strict=True)
        ]
    return Group(name=_name(runs[0].record), runs=tuple(runs), score=result, problem=problem)


def _span(record: Record, figure: RunFigure, protocol: Protocol) -> tuple[int, int]:
    """First and last line of the windows that the figure speaks of."""
    first = figure.first_line
    if protocol.over_steps == "between_stamps":
        first += 1  # the row of the first stamp ends before the measurement begins
    elif protocol.over_steps == "epoch_rates":  # an epoch's row follows its windows
        first = max((epoch.line for epoch in record.epochs if epoch.line < first), default=0) + 1
    return first, figure.last_line


def global_scale(record: Record) -> int:
    """Factor on a printed rate that makes it that of all devices (1 where they are not known)."""
    return 1 if record.rate_scope == "global" else record.devices or 1


def rate(record: Record, window: Window) -> float | None:
    """images/s of all devices in a window; None where the log does not hold what it takes, or nonsense."""
    found = window.images_per_s
    if found is None and window.printed_rate is not None:
        found = window.printed_rate * global_scale(record)
    elif found is None and window.printed_step_time_s and record.batch_per_device:
        found = record.batch_per_device * (record.devices or 1) / window.printed_step_time_s
    return found if found is not None and 0 < found < math.inf else None


def seconds_per_step(window: Window) -> float | None:
    """Step time of a window in seconds."""
    if window.seconds is not None and window.steps:
        return window.seconds / window.steps
    return window.printed_step_time_s


@dataclass(frozen=True, kw_only=True)
class Point:
    """One window, or neighbours put together, of a curve over time."""

    start: float
    end: float
    images_per_s: float
    measured: bool
    windows: tuple[Window, ...]


def timeline(run: Run) -> tuple[list[Point], str]:
    """Throughput of a run over time, and what its axis counts: `s` since run_start or the first window, or `step`."""
    record = run.record
    rated = [(w, r) for w in record.windows if (r := rate(record, w)) is not None]
    if not rated:
        return [], "s"
    measured = {w.line for w in run.measured}
    axis, spans = _spans([w for w, _ in rated], record)
    points: list[Point] = []
    for is_measured, part in itertools.groupby(
        zip(rated, spans, strict=True), key=lambda item: item[0][0].line in measured
    ):
        members = list(part)
        size = math.ceil(len(members) * len(rated) / (SHOWN_POINTS * len(members)))
        for at in range(0, len(members), size):
            chunk = members[at : at + size]
            rates = [r for (_, r), _ in chunk]
            points.append(
                Point(
                    start=chunk[0][1][0],
                    end=chunk[-1][1][1],
                    images_per_s=len(rates) / math.fsum(1 / r for r in rates),  # windows of like work: times add up
                    measured=is_measured,
                    windows=tuple(w for (w, _), _ in chunk),
                )
            )
    return points, axis


def _spans(windows: Sequence[Window], record: Record) -> tuple[str, list[tuple[float, float]]]:
    """(start, end) of each window on the axis that the log allows."""
    ends = [w.end_s for w in windows if w.end_s is not None]
    if len(ends) == len(windows) and ends == sorted(ends) and ends[0] != ends[-1]:
        begins = [end - (w.seconds or 0.0) for end, w in zip(ends, windows, strict=True)]
        origin = record.run_start_s if record.run_start_s is not None else begins[0]
        return "s", [(begin - origin, end - origin) for begin, end in zip(begins, ends, strict=True)]
    lengths = [w.seconds for w in windows if w.seconds is not None]
    if len(lengths) == len(windows):
        return "s", list(itertools.pairwise(itertools.accumulate(lengths, initial=0.0)))
    steps = [w.step for w in windows if w.step is not None]
    if len(steps) == len(windows) and steps == sorted(set(steps)):
        return "step", [(float(step - (w.steps or 0)), float(step)) for step, w in zip(steps, windows, strict=True)]
    return "row", [(float(at), at + 1.0) for at in range(len(windows))]


# ----------------------------------------------------------------------------------------- time of a step


def _with_step_times(groups: list[Group]) -> list[Group]:
    """Step times with the all-reduce apart, where the group's own runs at other device counts tell it."""
    totals = [_step_total(group) for group in groups]
    model, note = _all_reduce_model(groups, [total for total, _ in totals])
    found = []
    for group, (total, wait) in zip(groups, totals, strict=True):
        if total is None:
            found.append(group)
            continue
        exposed, why, rest = _all_reduce(group.record, model, note)
        if exposed is not None:
            exposed = min(exposed, total - (wait or 0.0))
        rest += " and data wait" if wait is None else ""
        step = StepTime(total_s=total, data_wait_s=wait, all_reduce_s=exposed, all_reduce_note=why, rest=rest)
        found.append(replace(group, step_time=step))
    return found


def _all_reduce(record: Record, model: scale.Model | None, why_none: str) -> tuple[float | None, str, str]:
    """(exposed all-reduce time of a step in seconds, how it is known or why not, what the rest of the step is)."""
    devices, nodes = record.devices, record.nodes or 1
    if devices == 1:
        return 0.0, "one device: nothing to exchange", "computation"
    if model is None or devices is None:
        return None, why_none, "computation and all-reduce"
    within, between = model.all_reduce_s(nodes, devices // nodes)
    if len(model.devices_per_node) > 1:
        why = "estimated by the scaling model fitted on the device counts of this report"
        return within + between, why, "computation"
    if nodes == 1:
        why = "not estimated: all runs have as many devices a node, which hides the exchange within it"
        return None, why, "computation and all-reduce"
    why = "estimated between nodes only, by the scaling model fitted on the node counts of this report"
    return between, why, "computation and all-reduce in a node"


def _step_total(group: Group) -> tuple[float | None, float | None]:
    """Mean step time and mean wait for data in seconds over the measured windows of all runs."""
    windows = [w for run in group.runs for w in run.measured]
    timed = [(w.seconds, w.steps, w.data_wait_s) for w in windows if w.seconds is not None and w.steps]
    if windows and len(timed) == len(windows):
        steps = sum(steps for _, steps, _ in timed)
        waits = [wait for _, _, wait in timed if wait is not None]
        wait = math.fsum(waits) / steps if len(waits) == len(timed) else None
        return math.fsum(seconds for seconds, _, _ in timed) / steps, wait
    printed = [w.printed_step_time_s for w in windows if w.printed_step_time_s is not None]
    if windows and len(printed) == len(windows):
        return statistics.fmean(printed), None
    batch = group.record.global_batch
    if group.score is not None and group.score.unit == "images/s" and batch and group.score.value > 0:
        return batch / group.score.value, None
    return None, None


def all_reduce_mib(record: Record) -> float | None:
    """Gradients that a step sums, in MiB: from the log's header or the model's parameters; None if neither says."""
    counted = section(record, "program").get("all_reduce_mib")
    if isinstance(counted, int | float) and not isinstance(counted, bool) and counted > 0:
        return float(counted)
    try:
        return scale.gradient_bytes(record.model or "", record.precision) / 2**20
    except InputError:
        return None


def _all_reduce_model(groups: Sequence[Group], totals: Sequence[float | None]) -> tuple[scale.Model | None, str]:
    """The scaling model through the groups' step times, or why there is none."""
    record = groups[0].record
    if section(record, "hardware").get("device") == "cpu":
        return None, "not estimated: ranks on a CPU share its cores, so that computation itself slows with each rank"
    points = [
        scale.Point(
            nodes=group.record.nodes or 1,
            devices_per_node=group.record.devices // (group.record.nodes or 1),
            step_time_s=total,
        )
        for group, total in zip(groups, totals, strict=True)
        if group.record.devices and total
    ]
    if len({point.devices for point in points}) < 2:
        return None, "not estimated: runs of one device count cannot tell it from computation; add runs of another"
    size_mib = all_reduce_mib(record)
    if size_mib is None:
        return None, "not estimated: the log does not say how many bytes a step exchanges"
    network = scale.Network(bandwidth_bytes_per_s=scale.PUBLISHED_NETWORK_GBIT_S * scale.GIGABIT_PER_S)
    model = scale.fit(points, all_reduce_bytes=size_mib * 2**20, network=network, topology="hierarchical")
    return model, ""


# -------------------------------------------------------------------------------------------------- scaling


def _scaling(groups: Sequence[Group]) -> list[ScalingRow]:
    scored = [
        (group, group.record.devices, group.score)
        for group in groups
        if group.score is not None and group.record.devices and group.score.unit == "images/s"
    ]
    if not scored:
        return []
    base, base_devices, base_score = scored[0]
    rows = []
    for group, devices, figure in scored:
        speedup = figure.value / base_score.value
        interval = None
        if figure.interval_95 and base_score.interval_95 and group is not base:
            halves = [
                (s.interval_95[1] - s.interval_95[0]) / 2 / s.value for s in (figure, base_score) if s.interval_95
            ]
            half = math.hypot(*halves) * speedup
            interval = (speedup - half, speedup + half)
        rows.append(
            ScalingRow(
                group=group,
                devices=devices,
                images_per_s=figure.value,
                speedup=speedup,
                speedup_95=interval,
                efficiency=speedup / (devices / base_devices),
            )
        )
    return rows


def _ratio_interval(ratio: float, above: tuple[float, float], below: tuple[float, float]) -> tuple[float, float] | None:
    """Interval of a quotient from those of its parts, taken as independent; None where one reaches 0."""
    if min(*above, *below) <= 0:
        return None
    half = math.hypot(*(math.log(high / low) / 2 for low, high in (above, below)))
    return ratio * math.exp(-half), ratio * math.exp(half)


def _family(model: str | None) -> str | None:
    name = (model or "").lower()
    if "hrnet" in name:
        return "hrnet"
    return "resnet" if "resnet" in name else None


def _precision(precision: str | None, math_mode: str | None) -> str | None:
    if precision in (None, "fp32", "tf32"):
        return "tf32" if "tf32" in (precision, math_mode) else precision
    return "amp"


def curves(record: Record, published: Sequence[Published]) -> tuple[list[Curve], str]:
    """Published tables of the same model and precision that start at one device, and what was chosen or why none."""
    family, precision = _family(record.model), _precision(record.precision, record.math_mode)
    if family is None or precision is None:
        what = "model" if family is None else "precision"
        return [], f"No published curves beside it: the log does not say a {what} that the published table knows."
    found: dict[tuple[Any, ...], dict[int, Published]] = {}
    for row in published:
        copied = row.note is not None and row.note.startswith("copied")
        same = _family(row.model) == family and _precision(row.precision, row.math_mode) == precision
        if row.metric != "throughput" or row.devices is None or copied or not same:
            continue
        key = (row.table, row.framework.split(" 2.5")[0], row.accelerator, row.batch_per_device, row.strategy)
        found.setdefault(key, {}).setdefault(row.devices, row)
    chosen = []
    for (_, framework, accelerator, batch, strategy), rows in found.items():
        if 1 not in rows or len(rows) < 2:
            continue
        ordered = tuple(rows[devices] for devices in sorted(rows))
        name, _, by = framework.removeprefix("NGC ").removesuffix(")").split(".post")[0].partition(" (")
        if by:  # such as `Paddle (NVIDIA)`
            name = f"{by} {name}" if len(by) < 8 else by
        mixed = " mixed" if len({row.framework for row in ordered}) > 1 else ""  # of software versions
        batch_text = f"bs{batch}" if batch else None
        label = " ".join(part for part in (name + mixed, accelerator, batch_text, strategy) if part)
        chosen.append(Curve(label=label, rows=ordered))
    note = f"Published tables of {'FCN-HRNetW18' if family == 'hrnet' else 'ResNet-50'} at {precision}."
    image_size = config_of(record).get("RECIPE.image_size", {}).get("value")
    if section(record, "dataset") and (image_size != 224 or section(record, "dataset").get("synthetic")):
        name = section(record, "dataset").get("name", "other data")
        note += (
            f" They were measured on full-size images; these runs on {name}"
            f"{f' at {image_size} px' if isinstance(image_size, int) else ''}: compare the efficiency, not images/s."
        )
    return chosen, note


# -------------------------------------------------------------------------------------------------- verdict


def _checks(groups: Sequence[Group], protocol: Protocol) -> Iterable[Check]:
    runs = [run for group in groups for run in group.runs]
    yield _compliance(runs)
    yield from _training(runs, protocol)
    yield _measurement(groups)
    dirty = [run for run in runs if section(run.record, "source").get("dirty") is True]
    if dirty:
        text = f"{_of(dirty, runs)} came from a source tree with uncommitted changes: the commit does not say what ran"
        yield Check(state="doubt", subject="Provenance", text=text)


def _of(some: Sequence[Run], runs: Sequence[Run]) -> str:
    if len(some) == len(runs):
        return "the run" if len(runs) == 1 else f"all {len(runs)} runs"
    return f"run{'s' * (len(some) > 1)} {', '.join(str(run.number) for run in some)}"


def _compliance(runs: Sequence[Run]) -> Check:
    checked = [run for run in runs if run.findings is not None]
    failed = [run for run in checked if run.findings and run.findings["verdict"] == "fail"]
    if failed:
        errors = sum(finding["severity"] == "error" for run in failed for finding in (run.findings or {})["findings"])
        text = f"{_of(failed, runs)} failed the check, {errors} error{'s' * (errors != 1)}"
        return Check(state="bad", subject="Compliance", text=text)
    owed = [run for run in runs if run.record.format == "mllog" and run.record.mode != "throughput"]
    missing = [run for run in owed if run.findings is None]
    if missing:
        text = f"not checked: {_of(missing, runs)}; give what `python -m compliance check --json` finds by --findings"
        return Check(state="unknown", subject="Compliance", text=text)
    if checked:
        return Check(state="good", subject="Compliance", text=f"{_of(checked, runs)} passed the check")
    text = "runs that measure throughput are no training results; there is no MLPerf log to check"
    return Check(state="none", subject="Compliance", text=text)


def _training(runs: Sequence[Run], protocol: Protocol) -> Iterable[Check]:
    trained = [run for run in runs if run.record.status is not None and run.record.mode != "throughput"]
    stopped = [run for run in trained if run.record.status != "success"]
    cut = [run for run in runs if run.record.truncated and run.record.format == "mllog"]  # others: a doubt of the score
    if cut:
        yield Check(state="bad", subject="Run", text=f"truncated: {_of(cut, runs)}; the log ends before the run does")
    if stopped:
        text = f"{_of(stopped, runs)} ended without success ({stopped[0].record.status})"
        allowed = 1 if protocol.over_runs == "olympic_mean" and len(trained) >= protocol.runs else 0
        yield Check(state="doubt" if len(stopped) <= allowed else "bad", subject="Quality", text=text)
    elif trained and all(run.record.quality for run in trained):
        last = [run.record.quality[-1] for run in trained]
        worst = min(last, key=lambda quality: quality.value)
        targets = {run.target for run in trained}
        target = targets.pop() if len(targets) == 1 else None
        reached = f", target {target:g}" if target is not None else ""
        text = f"{_of(trained, runs)} ended with success; lowest final {worst.name} {worst.value:.4g}{reached}"
        below = target is not None and worst.value < target
        yield Check(state="bad" if below else "good", subject="Quality", text=text)


def _measurement(groups: Sequence[Group]) -> Check:
    problems = [group.problem for group in groups if group.problem]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Check(state="bad", subject="Measurement", text=problems[0] + more)
    rules = sorted({warning.rule for group in groups if group.score for warning in group.score.warnings})
    if rules:
        text = f"{len(rules)} kind{'s' * (len(rules) > 1)} of doubt: {', '.join(rules).replace('_', ' ')}"
        return Check(state="doubt", subject="Measurement", text=text)
    return Check(state="good", subject="Measurement", text="no doubt found")
