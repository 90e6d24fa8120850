"""Warnings about a figure: what makes it less than it looks. Those about the windows are in window_warnings.py."""

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence

from runlog.digits import percent, percent_above, significant, six_digits
from runlog.json_types import JsonObject
from runlog.verdict import WARNING, Verdict
from scoring.figure.spread import outlier
from scoring.importers.checks import CLOCKS_AGREE_WITHIN, EPOCHS_AND_RUN, MAX_PLAUSIBLE_RATIO
from scoring.importers.gaps import seconds_of_row
from scoring.importers.run_time import run_rate
from scoring.record import Record

MAX_RATE_GAP = 0.001  # by which a mean of rates may lie above all images over all time
MIN_OUTLIER_DISTANCE = 0.01  # of an outlying run from the median run, as a share of it
MAX_HALF_WIDTH = 0.02  # of a figure's 95 % interval, as a share of the figure
MAX_SUMMARY_GAP = 0.02  # by which a figure may differ from the one that the log closes with
MAX_WARM_UP_GAP = 0.25  # by which a figure may differ from the whole run's, whose rate includes the warm-up
MAX_PACKAGES = 5  # that a warning lists
MAX_PROBLEMS = 3  # of a log that are shown


def warning(rule: str, message: str, record: Record | None = None, line: int | None = None) -> Verdict:
    """Return a warning about a figure.

    Args:
        rule: Stable name of the warning, such as "too_few_runs".
        message: What was found, for the user.
        record: The run that the warning is about; None if it is about no single run.
        line: The line of the run's log that shows it, counted from 1; None without such a place.
    """
    file = record.file if record else None
    where = file or ""
    if line is not None:
        where += f":{line}"
    return Verdict(check=rule, status=WARNING, found=message, where=where, figures={"file": file, "line": line})


def as_json(warnings: Iterable[Verdict]) -> list[JsonObject]:
    """Return warnings as dictionaries for JSON, with the keys rule, message, file and line.

    Args:
        warnings: The warnings, as `warning` makes them.
    """
    return [{"rule": one.check, "message": one.found, **one.figures} for one in warnings]


def warn_if_other_rates_differ(
    record: Record, value: float, lines: tuple[int, int], *, is_by_stamps: bool
) -> Iterator[Verdict]:
    """Yield a warning for each other rate of the same log that differs too much from a run's throughput.

    Compared are the rate of the same rows by the times that they print, the rate of the whole run, and the rate that
    the log closes with. A rate that the log does not give is left out.

    Args:
        record: The run as read from its log.
        value: The run's throughput in images/s.
        lines: The first and the last line of the log that the throughput comes from.
        is_by_stamps: Whether the throughput was measured between the time stamps of these two lines.
    """
    first_line, last_line = lines
    message_start = f"the figure, of lines {first_line} to {last_line}, is"
    if is_by_stamps:
        yield from _warn_if_stamps_are_coarse(record, lines)
    yield from _warn_if_rows_disagree(record, value, lines, message_start, is_by_stamps=is_by_stamps)
    yield from _warn_if_whole_run_disagrees(record, value, last_line)
    yield from _warn_if_closing_figure_disagrees(record, value, message_start)


def _warn_if_rows_disagree(
    record: Record, value: float, lines: tuple[int, int], message_start: str, *, is_by_stamps: bool
) -> Iterator[Verdict]:
    """Yield a warning if a throughput is far off the rate of the same rows by the steps and times that the rows print.

    The warning names a likely cause. There is none if the rate of the rows is not known.

    Args:
        record: The run as read from its log.
        value: The run's throughput in images/s.
        lines: The first and the last line of the log that the throughput comes from.
        message_start: Beginning of the message, such as "the figure, of lines 12 to 480, is".
        is_by_stamps: Whether the throughput was measured between the time stamps of these two lines.
    """
    first_line, last_line = lines
    rate_of_rows = _rate_by_rows(record, first_line, last_line)
    if rate_of_rows is None:
        return
    ratio = value / rate_of_rows
    cause = _cause_of_other_rate(record, ratio, lines, is_by_stamps=is_by_stamps)
    if cause is None:
        return
    # "the figure, of lines 12 to 480, is 0.62 times what the same rows' own times make, 2540: the clock ..."
    message = (
        f"{message_start} {significant(ratio, digits=3)} times what the same rows' own times make, "
        f"{six_digits(rate_of_rows)}: {cause}"
    )
    yield warning("rows_disagree", message, record, last_line)


def _cause_of_other_rate(record: Record, ratio: float, lines: tuple[int, int], *, is_by_stamps: bool) -> str | None:
    """Return in words why a throughput is so far off the rate by the times that the same rows print.

    Args:
        record: The run as read from its log.
        ratio: The throughput / the rate by the times that the rows print.
        lines: The first and the last line of the log that the throughput comes from.
        is_by_stamps: Whether the throughput was measured between the time stamps of these two lines.

    Returns:
        The cause; None if the two rates are not far enough apart for a warning.
    """
    if is_by_stamps:  # the two times of the same rows should agree within about 5 %
        cause = _cause_by_stamps(record, ratio, lines)
        if cause is not None:
            return cause
    is_plausible = 1 / MAX_PLAUSIBLE_RATIO <= ratio <= MAX_PLAUSIBLE_RATIO  # up to 1.5 times as high or as low
    if not is_plausible:
        return "the clock was set, or the run stood still in between"
    return None


def _cause_by_stamps(record: Record, ratio: float, lines: tuple[int, int]) -> str | None:
    """Return in words why the rate between two time stamps differs from the rate by the times that the rows print.

    Args:
        record: The run as read from its log.
        ratio: The rate between the stamps / the rate by the times that the rows print.
        lines: The lines of the two stamps.

    Returns:
        The cause; None if the two rates agree within about 5 %, or if no cause is known.
    """
    first_line, last_line = lines
    most_gap = CLOCKS_AGREE_WITHIN + _rounding_of_stamps(record, first_line, last_line)  # 5 %, and the rounding
    is_faster_by_stamps = ratio > 1 + most_gap
    is_slower_by_stamps = ratio < 1 - most_gap
    if is_faster_by_stamps:  # no pause makes a run faster, so one of the two times is wrong
        return "the clock was set, or the rows' times are not of all their steps"
    epochs = {row.epoch for row in record.windows if first_line <= row.line <= last_line}
    an_epoch_ended = len(epochs) > 1
    if is_slower_by_stamps and an_epoch_ended:
        # For example, an epoch has 105 steps, and a row follows every 10. Then its last 5 steps are in no row, so they
        # are not counted as steps. But their time lies between the stamps, and so does that of the evaluation.
        return "an epoch ended in between: its steps after its last row are not counted, its evaluation is"
    return None  # within an epoch, any pause may make the rate between the stamps lower


def _rounding_of_stamps(record: Record, first_line: int, last_line: int) -> float:
    """Return by what share the time between the stamps of two rows may be off, because they are whole seconds.

    Args:
        record: The run as read from its log.
        first_line: The line of the earlier row.
        last_line: The line of the later row. Both rows have stamps, and the later stamp is the greater.

    Returns:
        1 second / the time from the least stamp to the greatest; 0 if some stamp of these rows is not a whole second.
    """
    rows = [row for row in record.windows if first_line <= row.line <= last_line]
    stamps = [row.end_s for row in rows if row.end_s is not None]
    are_whole_seconds = all(stamp.is_integer() for stamp in stamps)
    return 1 / (max(stamps) - min(stamps)) if are_whole_seconds else 0.0


def _warn_if_stamps_are_coarse(record: Record, lines: tuple[int, int]) -> Iterator[Verdict]:
    """Yield a warning if whole seconds leave the time between two stamps open by over 2 % (MAX_HALF_WIDTH).

    Steps of 0.05 s make 100 steps in 5 s, and two stamps may be 4, 5 or 6 s apart.

    Args:
        record: The run as read from its log.
        lines: The lines of the two stamps.
    """
    first_line, last_line = lines
    share_open = _rounding_of_stamps(record, first_line, last_line)
    if share_open > MAX_HALF_WIDTH:
        share = percent_above(share_open, MAX_HALF_WIDTH)
        limit = percent(MAX_HALF_WIDTH, decimals=0)
        says = "are whole seconds and so near to each other that rounding may put the figure off by up to"
        message = f"the stamps of lines {first_line} and {last_line} {says} {share} (over {limit})"
        yield warning("coarse_stamps", message, record, last_line)


def _warn_if_whole_run_disagrees(record: Record, value: float, last_line: int) -> Iterator[Verdict]:
    """Yield a warning if a throughput differs from the rate of the whole run by more than warm-up explains.

    Warm-up may explain 25 % (MAX_WARM_UP_GAP). There is no warning if the rate of the whole run is not known, or if
    the importer has already reported that the time of the whole run and the times of its epochs disagree.

    Args:
        record: The run as read from its log.
        value: The run's throughput in images/s, measured by a protocol. The rate of the whole run includes the warm-up.
        last_line: The last line of the log that the throughput comes from, to which the warning points.
    """
    whole_run = run_rate(record)
    if whole_run is None or _importer_found_other_run_time(record):
        return
    gap = value / whole_run.images_per_s - 1
    if abs(gap) > MAX_WARM_UP_GAP:
        message = (
            f"the figure, {six_digits(value)}, is {gap:+.1%} off the whole run's: {whole_run.text}, warm-up included"
        )
        yield warning("ways_disagree", message, record, last_line)


def _importer_found_other_run_time(record: Record) -> bool:
    """Return whether the importer found that the time of the whole run and the times of its epochs disagree.

    Args:
        record: The run as read from its log, with the comparisons that the importer made.
    """
    return any(check.what == EPOCHS_AND_RUN and not check.agree for check in record.checks)


def _warn_if_closing_figure_disagrees(record: Record, value: float, message_start: str) -> Iterator[Verdict]:
    """Yield a warning if a throughput is over 2 % (MAX_SUMMARY_GAP) off the rate that the log states at its end.

    Only a stated rate of all devices together is compared.

    Args:
        record: The run as read from its log.
        value: The run's throughput in images/s.
        message_start: Beginning of the message, such as "the figure, of lines 12 to 480, is".
    """
    closing_rate = record.summary_rate
    prints_rates_of_all_devices = record.rate_scope == "global"
    if closing_rate is None or not prints_rates_of_all_devices:
        return
    gap = value / closing_rate - 1
    if abs(gap) > MAX_SUMMARY_GAP:
        message = (
            f"{message_start} {gap:+.1%} off the log's own summary {six_digits(closing_rate)}, which has "
            "a rule of its own: see the protocol summary"
        )
        yield warning("own_summary_differs", message, record, record.field_lines["summary_rate"])


def _rate_by_rows(record: Record, first_line: int, last_line: int) -> float | None:
    """Return the images/s of some rows by the steps and the times that they print: all steps * batch / all seconds.

    Args:
        record: The run as read from its log.
        first_line: The line of the row before the first row that counts.
        last_line: The line of the last row.

    Returns:
        The rate; None if there are no rows, a row's steps or time are not known, or the batch is not known.
    """
    batch = _batch_of_figure(record)
    if not batch:
        return None
    steps = 0
    seconds = 0.0
    # A throughput between time stamps begins at the stamp of the row at `first_line`, when the steps of this row are
    # over. So this row does not count. A throughput of windows begins before that row, which is left out all the same.
    rows = [row for row in record.windows if first_line < row.line <= last_line]
    for row in rows:
        seconds_of_steps = seconds_of_row(record, row)  # the time that it prints, or its images / its printed rate
        if not row.steps or not seconds_of_steps:
            return None
        steps += row.steps
        seconds += seconds_of_steps
    return steps * batch / seconds if seconds else None


def _batch_of_figure(record: Record) -> int | None:
    """Return how many images of a step a run's throughput counts: those of all devices, if their number is known.

    Args:
        record: The run as read from its log.

    Returns:
        The batch of all devices. If it is not known and the log prints rates of one device, the batch of one device.
        None if these are not known.
    """
    if record.global_batch:
        return record.global_batch
    prints_rates_of_one_device = record.rate_scope == "device"
    if prints_rates_of_one_device:  # which cannot become a throughput of all devices, because their number is not known
        return record.batch_per_device
    return None


def warn_if_interval_is_wide(value: float, interval: tuple[float, float] | None) -> Iterator[Verdict]:
    """Yield a warning if half the width of a figure's 95 % interval is over 2 % (MAX_HALF_WIDTH) of the figure.

    Args:
        value: The figure, such as a throughput in images/s.
        interval: The bounds (low, high) in the unit of the figure. Without an interval (None) there is no warning.
    """
    if interval is None:
        return
    low, high = interval
    half_width_share = (high - low) / 2 / value
    if half_width_share > MAX_HALF_WIDTH:
        share = percent_above(half_width_share, MAX_HALF_WIDTH)
        limit = percent(MAX_HALF_WIDTH, decimals=0)
        message = f"half the width of the 95 % interval is {share} of the figure (over {limit})"
        yield warning("wide_interval", message)


def warn_if_over_linear(name: str, efficiency: float) -> Iterator[Verdict]:
    """Yield a warning if a system's scaling efficiency is over 1.05, which is too good to be true.

    At an efficiency of 1, each device of the system does as much work as each device of the base system. Two clocks may
    be 5 % apart (CLOCKS_AGREE_WITHIN). An efficiency above 1.05 shows that something is wrong: a clock, the number of
    devices, or the machine that a log names. Above 1.5 (MAX_PLAUSIBLE_RATIO), the warning adds that no efficiency is
    given.

    Args:
        name: Name of the system.
        efficiency: The system's speedup over the base system / the ratio of their numbers of devices. For example, 4
            times the speed on 8 times the devices is 0.5.
    """
    if efficiency <= 1 + CLOCKS_AGREE_WITHIN:
        return
    # "B: 1.20 times as much a device as the base": a device of B seems to do 1.2 times the work of a base device.
    message = (
        f"{name}: {efficiency:.2f} times as much a device as the base: a clock, a count of devices or the machine is "
        "another than it seems"
    )
    if efficiency > MAX_PLAUSIBLE_RATIO:
        message += "; no efficiency is given, as it is 1 at most"
    yield warning("over_linear", message)


def warn_of_import_findings(record: Record) -> Iterator[Verdict]:
    """Yield the warnings about what the importer found in a log: problems, contradictions, and FP32 that is TF32.

    A contradiction is a check that failed. A check compares two or more ways in which the log states one figure, such
    as its rates and its time stamps.

    Args:
        record: The run as read from its log. At most 3 (MAX_PROBLEMS) of its problems are shown.
    """
    for problem in record.problems[:MAX_PROBLEMS]:
        yield warning(_rule_of_problem(problem), problem, record)
    for check in record.checks:
        was_compared = not check.one_sided  # else one of the ways is missing or cannot be read
        if was_compared and not check.agree:
            yield warning("ways_disagree", str(check), record)
    if record.math_mode == "tf32" and record.precision == "fp32":
        message = "FP32 here is TF32: not to be compared with FP32 of older devices"
        yield warning("tf32", message, record, record.field_lines.get("math_mode"))


def _rule_of_problem(problem: str) -> str:
    """Return the name of the warning about a problem that the importer found in a log.

    Args:
        problem: The importer's text, such as "line 3: the log says devices 8, the options 4" for an option that the log
            contradicts.

    Returns:
        "option_contradicts_log" for such a text, else "log_problem".
    """
    return "option_contradicts_log" if "the options" in problem else "log_problem"


def warn_of_outlying_run(records: Sequence[Record], values: Sequence[float], unit: str) -> Iterator[Verdict]:
    """Yield a warning if one of several runs is an outlier, and over 1 % away from the median of the runs.

    An outlier is found by Grubbs' test; 1 % is MIN_OUTLIER_DISTANCE.

    Args:
        records: The runs as read from their logs.
        values: The figure of each run. Infinite ones (runs that did not converge) are left out.
        unit: Unit of the figures, such as "images/s" or "minutes".
    """
    finite_values = []
    their_records = []
    for record, value in zip(records, values, strict=True):
        if math.isfinite(value):
            finite_values.append(value)
            their_records.append(record)
    index = outlier(finite_values)
    if index is None:
        return
    value = finite_values[index]
    median = statistics.median(finite_values)
    if abs(value - median) > MIN_OUTLIER_DISTANCE * abs(median):
        message = f"{six_digits(value)} {unit} lies far from the median {six_digits(median)} of the runs"
        yield warning("outlying_run", message, their_records[index])


def warn_if_machine_is_unknown(records: Sequence[Record]) -> Iterator[Verdict]:
    """Yield a warning if there are several runs and some logs do not name their machine.

    Such runs may be of different machines. The warning points to the first log that names none.

    Args:
        records: The runs as read from their logs.
    """
    silent_records = [record for record in records if record.machine is None]
    if len(records) < 2 or not silent_records:
        return

    message = (
        f"{len(silent_records)} of {len(records)} logs do not say their hardware, so the runs may be of different "
        "machines; if they are of one, name it by `score --system NAME`"
    )
    yield warning("system_unsaid", message, silent_records[0])


def warn_if_mean_of_run_rates_is_high(rates: Sequence[float]) -> Iterator[Verdict]:
    """Yield a warning if the mean of the runs' rates is over 0.1 % (MAX_RATE_GAP) above their harmonic mean.

    For 100 and 300 images/s the mean is 200. But 300 images in each run take 3 s and 1 s: 600 images in 4 s are 150
    images/s, the harmonic mean.

    Args:
        rates: The images/s of each run.
    """
    mean_rate = statistics.fmean(rates)
    harmonic_mean = 1 / statistics.fmean(1 / rate for rate in rates)  # the images over the time of equally long runs
    gap = mean_rate / harmonic_mean - 1
    if gap > MAX_RATE_GAP:
        message = f"the mean of the runs' rates is {percent(gap, decimals=2)} above their images over their time"
        yield warning("rates_averaged", message)


def warn_of_mixed_settings(records: Sequence[Record]) -> Iterator[Verdict]:
    """Yield a warning for each setting in which runs differ: model, data, batch, precision, math mode, then software.

    A log that does not give a setting agrees with the others. The one exception is the precision, because a log that
    names none may be of FP32 (see `_different_values`):

    - no precision and FP32: they agree
    - no precision and FP16: they differ

    Args:
        records: The runs as read from their logs.
    """
    for rule, field, field_in_words in (
        ("mixed_model", "model", "model"),
        ("mixed_data", "data", "data"),
        ("mixed_batch", "batch_per_device", "batch of one device"),
        ("mixed_precision", "precision", "precision"),
        ("mixed_math_mode", "math_mode", "math mode"),
    ):
        values = _different_values(records, field)
        if len(values) > 1:
            yield warning(rule, f"{field_in_words} differs: {', '.join(values)}")
    different_packages = _packages_of_several_versions(records)
    if different_packages:
        yield warning("mixed_software", f"software differs: {'; '.join(different_packages[:MAX_PACKAGES])}")


def _packages_of_several_versions(records: Sequence[Record]) -> list[str]:
    """Return the packages that have several versions in the runs, sorted by name: "paddle 2.4.1 and 2.4.2".

    Args:
        records: The runs as read from their logs.
    """
    packages = []
    for package, versions in sorted(_versions_by_package(records).items()):
        if len(versions) > 1:
            packages.append(f"{package} {' and '.join(sorted(versions))}")
    return packages


def _different_values(records: Sequence[Record], field: str) -> list[str]:
    """Return the different values that several runs have in a field, as sorted texts: ["64", "128"].

    Args:
        records: The runs as read from their logs.
        field: Name of a field of Record, such as "precision".

    Returns:
        The values, with "not said" for logs that name no precision beside logs of others than FP32. Empty if no run has
        a value in the field.
    """
    values = [getattr(record, field) for record in records if getattr(record, field)]
    # Texts that differ only in case, spaces or punctuation, such as "resnet50" and "ResNet-50", count as one value. The
    # last one is returned.
    value_by_letters = {_letters_and_digits(value): value for value in values}  # {"resnet50": "ResNet-50"}
    different_values = list(value_by_letters.values())

    # A log without a value agrees with any other. But one that names no precision may be of FP32, and so differ from
    # logs of "fp16".
    some_logs_are_silent = len(values) < len(records)
    if field == "precision" and some_logs_are_silent and _names_only_others_than_fp32(value_by_letters.keys()):
        different_values.append("not said")
    # Sorted before they become texts, so that batch 64 comes before 128.
    return [str(value) for value in sorted(different_values)]


def _letters_and_digits(value: object) -> str:
    """Return a value's text in lower case, without spaces and punctuation: "resnet50" for "ResNet-50".

    Args:
        value: A text or a number.
    """
    return "".join(character for character in str(value).lower() if character.isalnum())


def _names_only_others_than_fp32(named_precisions: Collection[str]) -> bool:
    """Return whether some logs name precisions, and none of these is FP32.

    A log without a precision, whose run may be in FP32, then differs from these logs.

    Args:
        named_precisions: The different precisions that the logs name, such as "fp16".
    """
    return len(named_precisions) > 0 and "fp32" not in named_precisions


def _versions_by_package(records: Sequence[Record]) -> dict[str, set[str]]:
    """Return the versions of each software package that some runs name, including the framework.

    Args:
        records: The runs as read from their logs.

    Returns:
        {package: its different versions}; empty if no log names any.
    """
    versions: dict[str, set[str]] = {}
    for record in records:
        framework, _, framework_version = (record.framework or "").rpartition(" ")  # of "paddle 2.4.1"
        if framework:  # empty if the log names no framework, or no version of it
            versions.setdefault(framework, set()).add(framework_version)
        for package, version in record.software.items():
            versions.setdefault(package, set()).add(version)
    return versions
