"""Warnings about a figure: what makes it less than it looks. Those about the windows are in window_warnings.py."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from runlog.verdict import WARNING, Verdict
from scoring.figure.spread import outlier
from scoring.importers.checks import CLOCK_AGREES, EPOCHS_AND_RUN, REFUSED, row_s, run_rate
from scoring.record import Record

RATE_GAP_SHARE = 0.001
OUTLIER_SHARE = 0.01
UNSTEADY_SHARE = 0.02
SUMMARY_SHARE = 0.02


def warning(rule: str, message: str, record: Record | None = None, line: int | None = None) -> Verdict:
    """A warning by its stable name, about a run where there is a `record`, about one of its lines where there is."""
    file = record.file if record else None
    where = file or ""
    if line is not None:
        where += f":{line}"
    return Verdict(check=rule, status=WARNING, found=message, where=where, figures={"file": file, "line": line})


def as_json(warnings: Iterable[Verdict]) -> list[dict[str, Any]]:
    """A list of {rule, message, file, line}."""
    return [{"rule": one.check, "message": one.found, **one.figures} for one in warnings]


def of_summary(record: Record, value: float, lines: tuple[int, int]) -> Iterator[Verdict]:
    """A figure far off the rows that it is of, or off the run's time, or by over 2 % off the log's summary."""
    of_lines = f"the figure, of lines {lines[0]} to {lines[1]}, is"
    by_rows = _rate_by_rows(record, lines)
    if by_rows is not None and not 1 / REFUSED <= value / by_rows <= REFUSED:
        message = (
            f"{of_lines} {value / by_rows:.3g} times what the same rows' own times make, {by_rows:.6g}: the clock "
            "was set, or the run stood still in between"
        )
        yield warning("rows_disagree", message, record, lines[1])
    run = run_rate(record)
    said = any(check.what == EPOCHS_AND_RUN and not check.agree for check in record.checks)
    if run is not None and not said and abs(value / run[1] - 1) > CLOCK_AGREES:
        message = (
            f"the figure, {value:.6g}, is {value / run[1] - 1:+.1%} off the whole run's: {run[0]}, warm-up included"
        )
        yield warning("ways_disagree", message, record, lines[1])
    summary = record.summary_rate if record.rate_scope == "global" else None
    if summary is not None and abs(value / summary - 1) > SUMMARY_SHARE:
        message = (
            f"{of_lines} {value / summary - 1:+.1%} off the log's own summary {summary:.6g}, which has a rule of its "
            "own: see the protocol summary"
        )
        yield warning("own_summary_differs", message, record, record.field_lines["summary_rate"])


def _rate_by_rows(record: Record, lines: tuple[int, int]) -> float | None:
    """images/s by the own times of the rows between two lines; None where a row has none, or the batch is unknown."""
    batch = record.global_batch or (record.batch_per_device if record.rate_scope == "device" else None)
    steps = 0
    seconds = 0.0
    for window in record.windows:
        if lines[0] < window.line <= lines[1]:
            time = row_s(record, window)
            if not window.steps or not time:
                return None
            steps += window.steps
            seconds += time
    return steps * batch / seconds if batch and seconds else None


def of_interval(value: float, interval: tuple[float, float] | None) -> Iterator[Verdict]:
    """Warn of a figure that its own interval leaves open by more than 2 %."""
    half = (interval[1] - interval[0]) / 2 / value if interval is not None else 0.0
    if half > UNSTEADY_SHARE:
        message = f"half the width of the 95 % interval is {half:.1%} of the figure (over {UNSTEADY_SHARE:.0%})"
        yield warning("wide_interval", message)


def of_efficiency(name: str, efficiency: float) -> Iterator[Verdict]:
    """A device that does more among many than among few, by more than clocks may differ."""
    if efficiency <= 1 + CLOCK_AGREES:
        return
    message = f"{name}: {efficiency:.2f} times as much a device as the base: a clock, a count of devices or the machine"
    message += " is another than it seems"
    if efficiency > REFUSED:
        message += "; no efficiency is given, as it is 1 at most"
    yield warning("over_linear", message)


def of_record(record: Record) -> Iterator[Verdict]:
    """Warnings about a run as a whole."""
    for problem in record.problems[:3]:
        yield warning("option_contradicts_log" if "the options" in problem else "log_problem", problem, record)
    for check in record.checks:
        if not check.agree and not check.one_sided:
            yield warning("ways_disagree", str(check), record)
    if record.math_mode == "tf32" and record.precision == "fp32":
        message = "FP32 here is TF32: not to be compared with FP32 of older devices"
        yield warning("tf32", message, record, record.field_lines.get("math_mode"))


def of_runs(records: Sequence[Record], values: Sequence[float], unit: str) -> Iterator[Verdict]:
    """The run that does not belong to the others by Grubbs' test, if it is over 1 % off the median too."""
    finite = [(record, value) for record, value in zip(records, values, strict=True) if math.isfinite(value)]
    at = outlier([value for _, value in finite])
    if at is None:
        return
    record, value = finite[at]
    middle = statistics.median(value for _, value in finite)
    if abs(value - middle) > OUTLIER_SHARE * abs(middle):
        yield warning("outlying_run", f"{value:.6g} {unit} lies far from the median {middle:.6g} of the runs", record)


def of_unsaid_machine(records: Sequence[Record]) -> Iterator[Verdict]:
    """Warn that runs are put together of which nothing says that they ran on one machine."""
    silent = [record for record in records if record.machine is None]
    if len(records) < 2 or not silent:
        return

    message = (
        f"{len(silent)} of {len(records)} logs do not say their hardware, so the runs may be of different machines; "
        "if they are of one, name it by `score --system NAME`"
    )
    yield warning("system_unsaid", message, silent[0])


def of_mean(rates: Sequence[float]) -> Iterator[Verdict]:
    """A mean of runs' rates that lies above their images over their time by more than 0.1 %."""
    gap = statistics.fmean(rates) * statistics.fmean(1 / rate for rate in rates) - 1
    if gap > RATE_GAP_SHARE:
        yield warning("rates_averaged", f"the mean of the runs' rates is {gap:.2%} above their images over their time")


def of_mixture(records: Sequence[Record]) -> Iterator[Verdict]:
    """Models, batches, software, math modes and precisions that differ between runs that are set side by side."""
    for rule, name, field in (
        ("mixed_model", "model", "model"),
        ("mixed_batch", "batch of one device", "batch_per_device"),
        ("mixed_precision", "precision", "precision"),
        ("mixed_math_mode", "math mode", "math_mode"),
    ):
        values = [getattr(record, field) for record in records if getattr(record, field)]
        spelled = {}  # a model may be written in many ways
        for value in values:
            spelled["".join(filter(str.isalnum, str(value).lower()))] = value
        if field == "precision" and spelled and "fp32" not in values and len(values) < len(records):
            spelled["unsaid"] = "not said"  # it may be FP32 beside the half precision of the others
        if len(spelled) > 1:
            yield warning(rule, f"{name} differs: {', '.join(map(str, sorted(spelled.values())))}")
    different = []
    for name, versions in sorted(_versions(records).items()):
        if len(versions) > 1:
            different.append(f"{name} {' and '.join(sorted(versions))}")
    if different:
        yield warning("mixed_software", f"software differs: {'; '.join(different[:5])}")


def _versions(records: Sequence[Record]) -> dict[str, set[str]]:
    """The versions of each package that the records name, the framework among them."""
    versions: dict[str, set[str]] = {}
    for record in records:
        name, _, version = (record.framework or "").rpartition(" ")
        if name:
            versions.setdefault(name, set()).add(version)
        for package, text in record.software.items():
            versions.setdefault(package, set()).add(text)
    return versions
