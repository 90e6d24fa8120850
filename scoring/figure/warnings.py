"""Warnings about a figure: what makes it less than it looks. Those about the windows are in window_warnings.py."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from runlog.digits import percent, percent_above, significant, six_digits
from runlog.json_types import JsonObject
from runlog.verdict import WARNING, Verdict
from scoring.figure.spread import outlier
from scoring.importers.checks import CLOCKS_AGREE_WITHIN, EPOCHS_AND_RUN, MAX_PLAUSIBLE_RATIO, seconds_of_row
from scoring.importers.run_time import run_rate
from scoring.record import Record

RATE_GAP_SHARE = 0.001
OUTLIER_SHARE = 0.01
UNSTEADY_SHARE = 0.02
SUMMARY_SHARE = 0.02
WARM_UP_SHARE = 0.25  # by which a figure may lie off the whole run's, for the warm-up that its protocol leaves out
MOST_PACKAGES = 5  # that a warning lists


def warning(rule: str, message: str, record: Record | None = None, line: int | None = None) -> Verdict:
    """Return a warning with the stable name `rule`, about a run and a line of its log where they are given."""
    file = record.file if record else None
    where = file or ""
    if line is not None:
        where += f":{line}"
    return Verdict(check=rule, status=WARNING, found=message, where=where, figures={"file": file, "line": line})


def as_json(warnings: Iterable[Verdict]) -> list[JsonObject]:
    """Return warnings as plain values: a list of {rule, message, file, line}."""
    return [{"rule": one.check, "message": one.found, **one.figures} for one in warnings]


def of_summary(record: Record, value: float, lines: tuple[int, int]) -> Iterator[Verdict]:
    """Warn where a run's figure lies far off what the same log says of the speed in another way.

    `value` is the figure in images/s, `lines` the first and last line that it is made of. The other ways are the times
    of the same rows, the time of the whole run, and the figure that the log closes with.
    """
    first_line, last_line = lines
    figure_of_lines = f"the figure, of lines {first_line} to {last_line}, is"
    yield from _of_same_rows(record, value, lines, figure_of_lines)
    yield from _of_whole_run(record, value, last_line)
    yield from _of_closing_figure(record, value, figure_of_lines)


def _of_same_rows(record: Record, value: float, lines: tuple[int, int], figure_of_lines: str) -> Iterator[Verdict]:
    """Warn if a figure and that of the same rows' own times differ by more than a factor of MAX_PLAUSIBLE_RATIO.

    `figure_of_lines` is the start of the message, such as "the figure, of lines 12 to 480, is". There is no warning
    where the rows do not tell their times.
    """
    first_line, last_line = lines
    rate_of_rows = _rate_by_rows(record, first_line, last_line)
    if rate_of_rows is not None and not 1 / MAX_PLAUSIBLE_RATIO <= value / rate_of_rows <= MAX_PLAUSIBLE_RATIO:
        times_too_much = significant(value / rate_of_rows, digits=3)
        message = (
            f"{figure_of_lines} {times_too_much} times what the same rows' own times make, "
            f"{six_digits(rate_of_rows)}: the clock was set, or the run stood still in between"
        )
        yield warning("rows_disagree", message, record, last_line)


def _of_whole_run(record: Record, value: float, last_line: int) -> Iterator[Verdict]:
    """Warn where a figure lies off the rate of the whole run by more than warm-up explains, WARM_UP_SHARE.

    Where the importer has already found that the epochs and the whole run disagree, they are not compared again. There
    is no warning either where the log does not tell the time of the whole run.
    """
    whole_run = run_rate(record)
    is_said_by_check = any(check.what == EPOCHS_AND_RUN and not check.agree for check in record.checks)
    if whole_run is not None and not is_said_by_check:
        off = value / whole_run.images_per_s - 1
        if abs(off) > WARM_UP_SHARE:
            message = (
                f"the figure, {six_digits(value)}, is {off:+.1%} off the whole run's: {whole_run.text}, warm-up "
                "included"
            )
            yield warning("ways_disagree", message, record, last_line)


def _of_closing_figure(record: Record, value: float, figure_of_lines: str) -> Iterator[Verdict]:
    """Warn where a figure lies off the images/s that the log closes with by more than SUMMARY_SHARE.

    `figure_of_lines` is the start of the message, such as "the figure, of lines 12 to 480, is". There is no warning
    where the log closes with no figure, or with that of one device.
    """
    if record.summary_rate is not None and record.rate_scope == "global":
        off = value / record.summary_rate - 1
        if abs(off) > SUMMARY_SHARE:
            message = (
                f"{figure_of_lines} {off:+.1%} off the log's own summary {six_digits(record.summary_rate)}, which has "
                "a rule of its own: see the protocol summary"
            )
            yield warning("own_summary_differs", message, record, record.field_lines["summary_rate"])


def _rate_by_rows(record: Record, first_line: int, last_line: int) -> float | None:
    """Return the images/s of the rows after line `first_line` up to line `last_line`, by the rows' own times.

    The row of the first line is not among them: a figure between two stamps begins at its end. The rate is all steps
    times the batch, over all seconds. It is that of all devices, or of one where the log prints rates of one and does
    not say how many devices there are. Returns None where a row does not tell its steps and time, where there is no
    row, or where the log does not say the batch.
    """
    batch = record.global_batch
    if not batch and record.rate_scope == "device":
        batch = record.batch_per_device

    steps = 0
    seconds = 0.0
    for window in record.windows:
        is_in_range = first_line < window.line <= last_line
        if not is_in_range:
            continue
        window_s = seconds_of_row(record, window)
        if not window.steps or not window_s:
            return None
        steps += window.steps
        seconds += window_s

    if not batch or not seconds:
        return None
    return steps * batch / seconds


def of_interval(value: float, interval: tuple[float, float] | None) -> Iterator[Verdict]:
    """Warn of a figure whose 95 % interval reaches more than 2 % of it to each side."""
    if interval is None:
        return
    low, high = interval
    half_width = (high - low) / 2 / value  # as a share of the figure
    if half_width > UNSTEADY_SHARE:
        share = percent_above(half_width, UNSTEADY_SHARE)
        message = (
            f"half the width of the 95 % interval is {share} of the figure (over {percent(UNSTEADY_SHARE, decimals=0)})"
        )
        yield warning("wide_interval", message)


def of_efficiency(name: str, efficiency: float) -> Iterator[Verdict]:
    """Warn of an efficiency over 1 by more than clocks differ: a device that does more among many than among few."""
    if efficiency <= 1 + CLOCKS_AGREE_WITHIN:
        return
    message = f"{name}: {efficiency:.2f} times as much a device as the base: a clock, a count of devices or the machine"
    message += " is another than it seems"
    if efficiency > MAX_PLAUSIBLE_RATIO:
        message += "; no efficiency is given, as it is 1 at most"
    yield warning("over_linear", message)


def of_record(record: Record) -> Iterator[Verdict]:
    """Warn of what the importer of a log found: text that it could not read, contradictions, and TF32 called FP32."""
    for problem in record.problems[:3]:
        yield warning("option_contradicts_log" if "the options" in problem else "log_problem", problem, record)
    for check in record.checks:
        if not check.agree and not check.one_sided:
            yield warning("ways_disagree", str(check), record)
    if record.math_mode == "tf32" and record.precision == "fp32":
        message = "FP32 here is TF32: not to be compared with FP32 of older devices"
        yield warning("tf32", message, record, record.field_lines.get("math_mode"))


def of_runs(records: Sequence[Record], values: Sequence[float], unit: str) -> Iterator[Verdict]:
    """Warn of the run that does not belong to the others by Grubbs' test, if it is over 1 % off the median too."""
    finite = [(record, value) for record, value in zip(records, values, strict=True) if math.isfinite(value)]
    index = outlier([value for _, value in finite])
    if index is None:
        return
    record, value = finite[index]
    middle = statistics.median(value for _, value in finite)
    if abs(value - middle) > OUTLIER_SHARE * abs(middle):
        message = f"{six_digits(value)} {unit} lies far from the median {six_digits(middle)} of the runs"
        yield warning("outlying_run", message, record)


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
    """Warn of a mean of runs' rates that lies above their images over their time by more than 0.1 %."""
    gap = statistics.fmean(rates) * statistics.fmean(1 / rate for rate in rates) - 1
    if gap > RATE_GAP_SHARE:
        yield warning(
            "rates_averaged",
            f"the mean of the runs' rates is {percent(gap, decimals=2)} above their images over their time",
        )


def of_mixture(records: Sequence[Record]) -> Iterator[Verdict]:
    """Warn of runs set side by side that differ in model, batch, precision, math mode or software.

    A run whose log does not say one of them is taken to agree. The precision is an exception: see `_different_values`.
    Of different software the first MOST_PACKAGES packages are named.
    """
    for rule, name, field in (
        ("mixed_model", "model", "model"),
        ("mixed_batch", "batch of one device", "batch_per_device"),
        ("mixed_precision", "precision", "precision"),
        ("mixed_math_mode", "math mode", "math_mode"),
    ):
        values = _different_values(records, field)
        if len(values) > 1:
            yield warning(rule, f"{name} differs: {', '.join(values)}")

    different = []
    for name, versions in sorted(_versions(records).items()):
        if len(versions) > 1:
            different.append(f"{name} {' and '.join(sorted(versions))}")
    if different:
        yield warning("mixed_software", f"software differs: {'; '.join(different[:MOST_PACKAGES])}")


def _different_values(records: Sequence[Record], field: str) -> list[str]:
    """Return the different values that the records have in a field, sorted, as text; empty where none says it.

    Values that differ in case or punctuation alone are one, such as `ResNet-50` and `resnet50`; the last of them is
    returned. A log that does not say its precision may be of FP32: beside logs of half precision alone it counts as a
    value of its own, `not said`.
    """
    values = [getattr(record, field) for record in records if getattr(record, field)]
    by_letters = {}  # {its letters and digits: a value}
    for value in values:
        letters = "".join(character for character in str(value).lower() if character.isalnum())
        by_letters[letters] = value
    some_say_nothing = len(values) < len(records)
    if field == "precision" and values and some_say_nothing and "fp32" not in values:
        by_letters["unsaid"] = "not said"
    return [str(value) for value in sorted(by_letters.values())]


def _versions(records: Sequence[Record]) -> dict[str, set[str]]:
    """Return the versions of each package that the records name, the framework among them."""
    versions: dict[str, set[str]] = {}
    for record in records:
        name, _, version = (record.framework or "").rpartition(" ")
        if name:
            versions.setdefault(name, set()).add(version)
        for package, text in record.software.items():
            versions.setdefault(package, set()).add(text)
    return versions
