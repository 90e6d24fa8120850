"""Checks of a log against itself: each compares two ways in which the log states one figure.

A function of CHECKS makes one comparison, such as of printed rates with time stamps. It returns None if the log lacks
one of the two ways. A row is a line that a program prints of its training steps; it becomes a Window of the record.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from runlog.digits import significant, six_digits
from scoring.importers.run_time import rate_of_whole_time, rows_of_epochs
from scoring.importers.text import lines_in_words, total
from scoring.record import Check, Record, Window

MAX_PLAUSIBLE_RATIO = 1.5  # no pause explains that two figures differ by a larger factor: one of them is wrong
AGREES_WITHIN = 0.02  # two figures agree if their ratio is 1 within this, beyond the rounding of their digits
CLOCKS_AGREE_WITHIN = 0.05  # the same for two clocks: evaluations that no line marks lie between epochs
PAUSE_RATIO = 1.5  # a gap between rows that is longer than usual by more than this factor is a pause
TWO_STAMPS_ERROR_S = 2.0  # the error of the time between two stamps of whole seconds
EPOCHS_AND_RUN = "epochs against the run's time"  # the check that a warning about the run's time would repeat
# Names of the checks that compare a figure with another clock. A record with one of them has a second clock.
CLOCK_CHECKS = (
    "time",
    "steps, batch and rate against time",
    "time with pauses",
    EPOCHS_AND_RUN,
    "rates against the epochs' time",
)


class Gap(NamedTuple):
    """The time from one row to the next, by two clocks."""

    clock_s: float  # difference of the two time stamps
    row_s: float  # what the later row's own figures say
    row: Window  # the later row


def checks_of_record(record: Record) -> list[Check]:
    """Return the results of all comparisons in CHECKS. A comparison for which the log lacks a figure gives none."""
    checks = []
    for compare in CHECKS:
        check = compare(record)
        if check is not None:
            checks.append(check)
    return checks


def has_second_clock(record: Record) -> bool:
    """Return whether a check of the record compares its times with a second clock."""
    return any(check.what in CLOCK_CHECKS for check in record.checks)


def _check_of_ratio(
    name: str, first_way: str, second_way: str, *, ratio: float, rounding: float = 0.0, refusable: bool = True
) -> Check:
    """Return the check `name` of two figures, given `ratio`, the one figure divided by the other.

    `first_way` and `second_way` say in words what the two figures are. The check has one of three results:

    - agree: |ratio - 1| <= tolerance, which is CLOCKS_AGREE_WITHIN for CLOCK_CHECKS and AGREES_WITHIN for others;
    - refused: the ratio is above MAX_PLAUSIBLE_RATIO or below its inverse, so the log supports no figure of speed;
    - neither: the figures differ, but not that far.

    Both limits are widened by `rounding`, the error of the ratio from rounded digits in the log. A check that is not
    `refusable` only informs: it is never refused.
    """
    compares_clocks = name in CLOCK_CHECKS
    tolerance = CLOCKS_AGREE_WITHIN if compares_clocks else AGREES_WITHIN
    agree = abs(ratio - 1) <= tolerance + rounding
    is_plausible = 1 / MAX_PLAUSIBLE_RATIO - rounding <= ratio <= MAX_PLAUSIBLE_RATIO + rounding
    return Check(what=name, ways=(first_way, second_way), agree=agree, refused=refusable and not is_plausible)


def rows_with_clock_set_back(windows: Sequence[Window]) -> list[tuple[Window, Window]]:
    """Return the pairs of successive rows in which the later row has the earlier time stamp.

    Between the two rows the clock was set back. Rows without a time stamp are skipped.
    """
    stamped = [window for window in windows if window.end_s is not None]
    pairs = []
    for before, row in itertools.pairwise(stamped):
        if (row.end_s or 0.0) < (before.end_s or 0.0):  # `or` is for the types: all of these rows have a stamp
            pairs.append((before, row))
    return pairs


def problems_of_time_stamps(record: Record) -> list[str]:
    """Return a sentence that the clock was set back, if the time stamps show that; else an empty list.

    The sentence describes the first such place and counts the others.
    """
    pairs = rows_with_clock_set_back(record.windows)
    if not pairs:
        return []
    before, row = pairs[0]
    back_s = (before.end_s or 0.0) - (row.end_s or 0.0)
    more = f", and {len(pairs) - 1} more such rows" if len(pairs) > 1 else ""
    back = f"{six_digits(back_s)} s before that of line {before.line}{more}"
    return [f"line {row.line}: its time stamp is {back}: the clock was set"]


def seconds_of_row(record: Record, window: Window) -> float | None:
    """Return how many seconds the steps of a row took by its own figures, or None if a figure is missing.

    - A row that states its seconds: these.
    - A row that prints the images/s of all devices: its images / that rate.
    - A row that prints the images/s of one device: its steps x the batch of one device / that rate.
    """
    if window.seconds:
        return window.seconds
    if not window.printed_rate:
        return None

    images: float | None = None
    if record.rate_scope == "global":
        images = window.images
    elif window.steps and record.batch_per_device:
        images = window.steps * record.batch_per_device
    return images / window.printed_rate if images else None


def _gaps_of_training(record: Record) -> list[Gap]:
    """Return a Gap for each two successive rows between which only training happened.

    A Gap holds the time between the two rows by the clock and by the later row's own figures. The two times should
    agree, so these pairs are left out:

    - A time stamp or the later row's own time is missing.
    - The clock was set back between the rows.
    - The rows are of two epochs: between epochs, programs evaluate and save the model.
    - An evaluation is printed between the rows.
    """
    evaluation_lines = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        row_s = seconds_of_row(record, row)
        if before.end_s is None or row.end_s is None or not row_s:
            continue

        clock_s = row.end_s - before.end_s
        is_within_epoch = before.epoch == row.epoch
        has_evaluation = _has_line_between(evaluation_lines, before.line, row.line)
        if clock_s >= 0 and is_within_epoch and not has_evaluation:
            gaps.append(Gap(clock_s, row_s, row))
    return gaps


def _has_line_between(ascending_lines: Sequence[int], first: int, last: int) -> bool:
    """Return whether one of the line numbers, which are in ascending order, is above `first` and at most `last`."""
    count_up_to_first = bisect.bisect(ascending_lines, first)
    count_up_to_last = bisect.bisect(ascending_lines, last)
    return count_up_to_last > count_up_to_first


def _check_time_stamps(record: Record) -> Check | None:
    """Compare the time between the rows' stamps with the time by the rows' own figures, both without pauses.

    The rows' own figures are their step times if the log prints these, otherwise steps x batch / rate. Returns None if
    there are fewer than two gaps between rows, or if all gaps are pauses (see `_without_pauses`).
    """
    gaps = _gaps_of_training(record)
    if len(gaps) < 2:
        return None

    has_whole_seconds = all(gap.clock_s == int(gap.clock_s) for gap in gaps)
    last_digit_s = 1.0 if has_whole_seconds else 0.01  # a fraction of a second has at least two digits
    kept = _without_pauses(gaps, last_digit_s)
    if not kept:
        return None

    prints_step_times = record.windows[-1].seconds is not None  # of the last row: the first may not say its seconds
    if prints_step_times:
        name = "time"
        own_figures = "their step times"
    else:
        name = "steps, batch and rate against time"
        own_figures = "steps x batch / rate"

    stamps_s = math.fsum(gap.clock_s for gap in kept)
    rows_s = math.fsum(gap.row_s for gap in kept)
    lines = lines_in_words([gap.row for gap in kept])
    # Pauses cut the rows into stretches. Each stretch is uncertain by one last digit of the stamps.
    pauses = len(gaps) - len(kept)
    stretches = pauses + 1
    return _check_of_ratio(
        name,
        f"{lines}: time stamps, {six_digits(stamps_s)} s",
        f"{lines}: {own_figures}, {six_digits(rows_s)} s",
        ratio=stamps_s / rows_s,
        rounding=last_digit_s * stretches / rows_s,
    )


def _without_pauses(gaps: Sequence[Gap], last_digit_s: float) -> list[Gap]:
    """Return the gaps between rows that are not pauses.

    A pause is an evaluation, a checkpoint or a stall. A gap is a pause if

        clock_s > PAUSE_RATIO * max(1, usual clock_s / row_s) * row_s + 2 * last_digit_s

    The usual ratio is at least 1, because a gap no longer than its row is never a pause. The last term is the error of
    the two time stamps, whose last digit stands for `last_digit_s` seconds.
    """
    usual_ratio = max(1.0, _usual_ratio(gaps, last_digit_s))
    kept = []
    for gap in gaps:
        longest_s = PAUSE_RATIO * usual_ratio * gap.row_s + 2 * last_digit_s
        if gap.clock_s <= longest_s:
            kept.append(gap)
    return kept


def _usual_ratio(gaps: Sequence[Gap], last_digit_s: float) -> float:
    """Return the usual ratio of a gap's time by the clock to its time by the row.

    The last digit of the time stamps stands for `last_digit_s` seconds.

    - If a usual row takes at least two such units: the median of the ratios of all gaps.
    - If rows are shorter, single ratios are mostly rounding: the ratio of the sums over nine tenths of the gaps. The
      tenth that exceeds its rows most is left out, because it may hold pauses.
    """
    usual_row_s = statistics.median(gap.row_s for gap in gaps)
    if usual_row_s >= 2 * last_digit_s:
        return statistics.median(gap.clock_s / gap.row_s for gap in gaps)
    shortest = sorted(gaps, key=_excess_s)[: math.ceil(0.9 * len(gaps))]
    return math.fsum(gap.clock_s for gap in shortest) / math.fsum(gap.row_s for gap in shortest)


def _excess_s(gap: Gap) -> float:
    """Return by how many seconds a gap is longer by the clock than by its row."""
    return gap.clock_s - gap.row_s


def _check_pauses(record: Record) -> Check | None:
    """Report time between rows that no row accounts for: compare stamps, pauses included, with the rows' own times.

    The check only informs and never refuses a figure, because figures of speed leave pauses out. Returns None if there
    are fewer than two gaps between rows, or if the stamps' time is not clearly longer than the rows' time. It is so if
    it is longer by more than CLOCKS_AGREE_WITHIN and TWO_STAMPS_ERROR_S together. Gaps between epochs do not count.
    """
    gaps = _gaps_of_training(record)
    if len(gaps) < 2:
        return None
    rows_s = math.fsum(gap.row_s for gap in gaps)
    stamps_s = math.fsum(gap.clock_s for gap in gaps)
    has_pauses = stamps_s - TWO_STAMPS_ERROR_S > (1 + CLOCKS_AGREE_WITHIN) * rows_s
    if not has_pauses:
        return None

    lines = lines_in_words([gap.row for gap in gaps])
    return _check_of_ratio(
        "time with pauses",
        f"{lines}: time stamps, {six_digits(stamps_s)} s, with pauses of which no line tells",
        f"{lines}: the rows' own times, {six_digits(rows_s)} s",
        ratio=stamps_s / rows_s,
        refusable=False,
    )


def _check_run_time(record: Record) -> Check | None:
    """Compare the images/s by the epochs' printed durations with the images/s by the log's clock, without evaluations.

    The clock's time runs from the first epoch to the last one, or over the whole run (see `rate_of_whole_time`). The
    two differ if the stamps of an epoch are those of its launch on the devices, while the work is waited for at an
    evaluation. The largest MLPerf runs print 5.8 times the images/s that the clock shows.

    Returns None if the rows are not whole epochs, or if the clock was set so that no time is left.
    """
    rows = rows_of_epochs(record)
    if not rows:
        return None

    durations_s = total(rows, "seconds")
    rate_by_durations = total(rows, "images") / durations_s
    by_clock = rate_of_whole_time(record, rows, rate_by_durations)
    if by_clock is None:
        return None

    durations = f"{six_digits(durations_s)} s, which is {six_digits(rate_by_durations)} images/s"
    return _check_of_ratio(
        EPOCHS_AND_RUN,
        by_clock.text,
        f"{lines_in_words(rows)}: the epochs' own times, {durations}",
        ratio=rate_by_durations / by_clock.images_per_s,
    )


def _check_epoch_summaries(record: Record) -> Check | None:
    """Compare the mean rate that rows print with the mean rate of the epochs' summaries, which have another clock.

    Both are means over time:

    - of rows: sum of steps / sum of (steps / rate), because the constant batch cancels out;
    - of summaries: sum of (seconds x rate) / sum of seconds.

    Only epochs with both a summary and rows that print a rate are compared. Returns None if there are none.
    """
    summaries = {epoch.epoch: epoch for epoch in record.epochs if epoch.seconds and epoch.printed_rate}
    rows = [row for row in _rows_with_rates(record) if row.epoch in summaries]
    if not rows:
        return None

    epoch_numbers = dict.fromkeys(row.epoch for row in rows)  # each once, in order; a set would lose the order
    epochs = [summaries[number] for number in epoch_numbers]
    epochs_s = total(epochs, "seconds")
    # Below, `or` is only for the type checker: all of these rows and epochs have the figures.
    epochs_rate = math.fsum((epoch.seconds or 0.0) * (epoch.printed_rate or 0.0) for epoch in epochs) / epochs_s
    steps_over_rates = math.fsum((row.steps or 0) / (row.printed_rate or 1.0) for row in rows)
    rows_rate = total(rows, "steps") / steps_over_rates
    return _check_of_ratio(
        "rates against the epochs' time",
        f"{lines_in_words(epochs)}: the epochs' own {six_digits(epochs_s)} s, {six_digits(epochs_rate)} images/s",
        f"{lines_in_words(rows)}: their rates, {six_digits(rows_rate)} images/s",
        ratio=rows_rate / epochs_rate,
    )


def _rows_with_rates(record: Record) -> list[Window]:
    """Return the rows that print a step and a rate, and whose number of steps is known. Rows of whole epochs do not."""
    rows = []
    for window in record.windows:
        if window.step is not None and window.steps and window.printed_rate:
            rows.append(window)
    return rows


def _check_counted_images(record: Record) -> Check | None:
    """Compare the images that our own program counts over all windows with steps x batch of all devices.

    Returns None in these cases:

    - The images of a window could not be read. The log then has a check that says so.
    - The log is another program's: its windows have no phase such as "train". Its images were computed from the steps,
      so a comparison would say nothing.
    - The batch of all devices is unknown.
    """
    has_unreadable_images = any(check.what == "images" and check.one_sided for check in record.checks)
    if has_unreadable_images:
        return None
    windows = [window for window in record.windows if window.phase is not None and window.images and window.steps]
    batch = record.global_batch
    if not windows or not batch:
        return None

    images = total(windows, "images")
    steps = int(total(windows, "steps"))
    return _check_of_ratio(
        "images",
        f"{lines_in_words(windows)}: counted, {images:.0f}",
        f"{lines_in_words(windows)}: steps x batch of all devices, {steps} x {batch}",
        ratio=images / (steps * batch),
    )


def _check_printed_rates(record: Record) -> Check | None:
    """Compare the mean rate that rows print with the total of the rows' images over the total of their seconds.

    Rows with all three figures are the epochs of MLPerf logs. The mean of the printed rates is one over time: sum of
    images / sum of (images / rate). Returns None if no row has all three figures, or if rates are those of one device.
    """
    rows = [window for window in record.windows if window.printed_rate and window.images and window.seconds]
    if record.rate_scope != "global" or not rows:
        return None

    images = total(rows, "images")
    # `or` is only for the type checker: all of these rows have both figures.
    seconds_by_rates = math.fsum((row.images or 0.0) / (row.printed_rate or 1.0) for row in rows)
    printed_rate = images / seconds_by_rates
    measured_rate = images / total(rows, "seconds")
    ratio = measured_rate / printed_rate
    return _check_of_ratio(
        "rate",
        f"line {rows[0].line} and {len(rows) - 1} more: the printed rates, {six_digits(printed_rate)} images/s",
        f"images / time, {six_digits(measured_rate)} images/s, {significant(ratio, digits=4)} times the printed ones",
        ratio=ratio,
    )


def _check_batch(record: Record) -> Check | None:
    """Compare the batch of one device with the median of rate x step time over the rows.

    Returns None in these cases:

    - The rates are those of all devices.
    - No row prints both a rate and a step time, or the batch is unknown.
    - The log states the batch and the rows agree. A batch from the command line is always reported.
    """
    rows = [window for window in record.windows if window.printed_rate and window.printed_step_time_s]
    batch = record.batch_per_device
    if record.rate_scope != "device" or not rows or not batch:
        return None

    # `or` is only for the type checker: all of these rows have both figures.
    products = [(row.printed_rate or 0.0) * (row.printed_step_time_s or 0.0) for row in rows]
    batch_by_rows = statistics.median(products)
    is_from_options = "batch_per_device" in record.from_options
    rows_agree = abs(batch_by_rows / batch - 1) <= AGREES_WITHIN
    if rows_agree and not is_from_options:
        return None

    source = "the options" if is_from_options else f"line {record.field_lines['batch_per_device']}"
    return _check_of_ratio(
        "batch",
        f"{source}: {batch} a device",
        f"{lines_in_words(rows)}: rate x step time, {significant(batch_by_rows, digits=4)} a device at the median",
        ratio=batch_by_rows / batch,
    )


def _check_summary_rate(record: Record) -> Check | None:
    """Compare the rate that the log closes with and the average of the rates that its rows print.

    Logs do not say how they average. So the closing rate is compared with the nearest of mean, harmonic mean and
    median. Returns None if the log has no closing rate, or fewer than two rows with a rate.
    """
    rates = [window.printed_rate for window in record.windows if window.printed_rate]
    summary_rate = record.summary_rate
    if summary_rate is None or len(rates) < 2:
        return None

    averages = {
        "mean": statistics.fmean(rates),
        "harmonic mean": statistics.harmonic_mean(rates),
        "median": statistics.median(rates),
    }
    nearest = min(averages, key=lambda name: abs(averages[name] - summary_rate))
    return _check_of_ratio(
        "rate",
        f"line {record.field_lines['summary_rate']}: the log's own summary, {six_digits(summary_rate)} images/s",
        f"{lines_in_words(record.windows)}: {nearest} of the rates, {six_digits(averages[nearest])} images/s",
        ratio=averages[nearest] / summary_rate,
    )


# In the order in which the checks are shown.
CHECKS = (
    _check_time_stamps,
    _check_pauses,
    _check_run_time,
    _check_epoch_summaries,
    _check_counted_images,
    _check_printed_rates,
    _check_batch,
    _check_summary_rate,
)
