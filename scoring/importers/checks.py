"""Comparisons of what a log says in two ways: each figure against a clock that it was not made of, or another print.

A row of `CHECKS` is a function that compares the two ways; it returns None where the log does not have both.
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

REFUSED = 1.5  # a factor that no pause explains: one of the two is wrong
AGREES = 0.02  # share by which two ways may differ beyond what their print rounds off
CLOCK_AGREES = 0.05  # share by which two clocks may differ: evaluations that no line marks lie between epochs
PAUSE = 1.5  # a gap between two rows longer than this factor is an evaluation, a checkpoint or a stall
TWO_STAMPS_S = 2.0  # two stamps of whole seconds may be off by so much together
EPOCHS_AND_RUN = "epochs against the run's time"  # the check that a warning about the run's time would repeat
CLOCKS = (  # checks that set a figure against another clock: a record with one of these has a second clock
    "time",
    "steps, batch and rate against time",
    "time with pauses",
    EPOCHS_AND_RUN,
    "rates against the epochs' time",
)


class Gap(NamedTuple):
    """The time from one row to the next."""

    clock_s: float  # by their time stamps
    row_s: float  # by the later row itself: what it says of its own time
    row: Window  # the later row


def of_record(record: Record) -> list[Check]:
    """Return the checks of all comparisons for which the log holds both ways."""
    checks = []
    for compare in CHECKS:
        check = compare(record)
        if check is not None:
            checks.append(check)
    return checks


def has_second_clock(record: Record) -> bool:
    """Tell whether one of the record's checks compares its times with a second clock."""
    return any(check.what in CLOCKS for check in record.checks)


def _check_of_ratio(
    what: str, first: str, second: str, *, ratio: float, rounding: float = 0.0, refusable: bool = True
) -> Check:
    """Return the check named `what` of two figures, which are given in words and by their ratio, one over the other.

    The two agree where the ratio is 1 within CLOCK_AGREES for the checks of CLOCKS, and within AGREES for others. Where
    they lie apart by more than a factor of REFUSED the check refuses a figure, if it is `refusable`. The printed digits
    leave the ratio open by `rounding`, which widens both limits.
    """
    tolerance = CLOCK_AGREES if what in CLOCKS else AGREES
    agree = abs(ratio - 1) <= tolerance + rounding
    is_close = 1 / REFUSED - rounding <= ratio <= REFUSED + rounding
    return Check(what=what, ways=(first, second), agree=agree, refused=refusable and not is_close)


def rows_with_clock_set_back(windows: Sequence[Window]) -> list[tuple[Window, Window]]:
    """Return pairs of successive rows between which the clock was set back: the later row has the earlier time stamp.

    Rows without a time stamp are passed over.
    """
    stamped = [window for window in windows if window.end_s is not None]
    pairs = []
    for before, row in itertools.pairwise(stamped):
        if (row.end_s or 0.0) < (before.end_s or 0.0):
            pairs.append((before, row))
    return pairs


def problems(record: Record) -> list[str]:
    """Return what is impossible in the time stamps, in words; only the first of several is described."""
    pairs = rows_with_clock_set_back(record.windows)
    if not pairs:
        return []
    before, row = pairs[0]
    back_s = (before.end_s or 0.0) - (row.end_s or 0.0)
    more = f", and {len(pairs) - 1} more such rows" if len(pairs) > 1 else ""
    back = f"{six_digits(back_s)} s before that of line {before.line}{more}"
    return [f"line {row.line}: its time stamp is {back}: the clock was set"]


def seconds_of_row(record: Record, window: Window) -> float | None:
    """Return how many seconds a row's steps took by what the row itself says; None where that does not tell.

    These are the seconds that the row says, or else its images over the images/s that it prints. A rate of one device
    (the record's `rate_scope`) is held against the images of one device: steps x batch.
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
    """Return the time from each row to the next, by the clock and by the later row itself, where the two should agree.

    They should where nothing happened between the two rows but the steps of the later one. So four kinds of pairs are
    left out: with an evaluation in between; of two epochs, as the model is evaluated and saved between them; with a
    clock that was set back; and with a time stamp or the later row's own time missing.
    """
    evaluation_lines = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        own_s = seconds_of_row(record, row)
        if before.end_s is None or row.end_s is None or not own_s:
            continue

        clock_s = row.end_s - before.end_s
        has_evaluation = _has_line_between(evaluation_lines, before.line, row.line)
        is_within_epoch = before.epoch == row.epoch
        if clock_s >= 0 and is_within_epoch and not has_evaluation:
            gaps.append(Gap(clock_s, own_s, row))
    return gaps


def _has_line_between(ascending_lines: Sequence[int], first: int, last: int) -> bool:
    """Tell whether one of the lines, which are in ascending order, lies behind line `first` and not behind `last`."""
    count_up_to_first = bisect.bisect(ascending_lines, first)
    count_up_to_last = bisect.bisect(ascending_lines, last)
    return count_up_to_last > count_up_to_first


def _check_time_stamps(record: Record) -> Check | None:
    """Compare the time between the rows' stamps with the rows' own times, or with steps x batch / rate without those.

    Pauses between two rows are left out of both (`_without_pauses`). The last digit of the stamps leaves some of the
    time open, once for the whole and once for each pause. Returns None for fewer than two gaps between rows, and where
    all of them are pauses.
    """
    gaps = _gaps_of_training(record)
    if len(gaps) < 2:
        return None

    has_whole_seconds = all(gap.clock_s == int(gap.clock_s) for gap in gaps)
    digit_s = 1.0 if has_whole_seconds else 0.01  # any fraction is taken to have hundredths at least
    kept = _without_pauses(gaps, digit_s)
    if not kept:
        return None

    what = "steps, batch and rate against time"
    own_times = "steps x batch / rate"
    rows_say_seconds = record.windows[-1].seconds is not None  # the first row alone may not say how long it took
    if rows_say_seconds:
        what = "time"
        own_times = "their step times"
    stamps_s = math.fsum(gap.clock_s for gap in kept)
    rows_s = math.fsum(gap.row_s for gap in kept)
    lines = lines_in_words([gap.row for gap in kept])
    pauses = len(gaps) - len(kept)
    return _check_of_ratio(
        what,
        f"{lines}: time stamps, {six_digits(stamps_s)} s",
        f"{lines}: {own_times}, {six_digits(rows_s)} s",
        ratio=stamps_s / rows_s,
        rounding=digit_s * (1 + pauses) / rows_s,
    )


def _without_pauses(gaps: Sequence[Gap], digit_s: float) -> list[Gap]:
    """Return the gaps between rows that are no pauses.

    A pause is more than PAUSE times as long by the clock as it should be by the later row's own time. It should be as
    many times that as gaps usually are, and once at least, as a gap no longer than its row is no pause. Each of the two
    stamps may be off by their last digit, `digit_s`.
    """
    usual_ratio = max(1.0, _usual_ratio(gaps, digit_s))
    kept = []
    for gap in gaps:
        longest_s = PAUSE * usual_ratio * gap.row_s + 2 * digit_s
        if gap.clock_s <= longest_s:
            kept.append(gap)
    return kept


def _usual_ratio(gaps: Sequence[Gap], digit_s: float) -> float:
    """Return how many times the seconds of its row a gap usually takes by the clock.

    It is the median of the gaps. Where the stamps' digit is coarse beside the rows, single gaps are lost in rounding:
    then it is that of the shortest nine tenths of them together.
    """
    if statistics.median(gap.row_s for gap in gaps) >= 2 * digit_s:
        return statistics.median(gap.clock_s / gap.row_s for gap in gaps)
    shortest = sorted(gaps, key=_excess_s)[: math.ceil(0.9 * len(gaps))]
    return math.fsum(gap.clock_s for gap in shortest) / math.fsum(gap.row_s for gap in shortest)


def _excess_s(gap: Gap) -> float:
    """Return how much longer a gap is by the clock than by its row, in seconds."""
    return gap.clock_s - gap.row_s


def _check_pauses(record: Record) -> Check | None:
    """Compare the time between the rows' stamps, pauses included, with the rows' own times, within epochs.

    Returns None for fewer than two gaps between rows, and where the stamps' time is not clearly longer: by more than
    two clocks may differ (CLOCK_AGREES) and two stamps may be off (TWO_STAMPS_S). Pauses are shown but refuse no
    figure, as a figure of throughput leaves them out.
    """
    gaps = _gaps_of_training(record)
    rows_s = math.fsum(gap.row_s for gap in gaps)
    stamps_s = math.fsum(gap.clock_s for gap in gaps)
    has_pauses = stamps_s - TWO_STAMPS_S > (1 + CLOCK_AGREES) * rows_s  # the first and the last stamp may be off
    if len(gaps) < 2 or not has_pauses:
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
    """Compare the images/s of the epochs' own times with those of the whole time that they took, without evaluations.

    Where the program runs ahead of the devices an epoch's own stamps are those of its launch, and the work is waited
    for at an evaluation: the largest MLPerf runs print 5.8 times the images/s that their time makes. Returns None for
    logs of other rows than epochs, and where the clock was set.
    """
    rows = rows_of_epochs(record)
    if not rows:
        return None
    own_s = total(rows, "seconds")
    own_rate = total(rows, "images") / own_s
    whole = rate_of_whole_time(record, rows, own_rate)
    if whole is None:
        return None
    lines = lines_in_words(rows)
    own_times = f"{lines}: the epochs' own times, {six_digits(own_s)} s, which is {six_digits(own_rate)} images/s"
    return _check_of_ratio(EPOCHS_AND_RUN, whole.text, own_times, ratio=own_rate / whole.images_per_s)


def _check_epoch_summaries(record: Record) -> Check | None:
    """Compare the rates that the rows print with those of the epochs' summaries, whose time is another clock.

    Both are the mean over time. The time of a row is its steps over its rate, that of a summary its seconds. Epochs
    that lack a summary or rows with a rate are left out; None is returned where no epoch is left.
    """
    summaries = {epoch.epoch: epoch for epoch in record.epochs if epoch.seconds and epoch.printed_rate}
    rows = [row for row in _rows_with_rates(record) if row.epoch in summaries]
    if not rows:
        return None

    # In what follows `or` is for the types alone: all of these epochs and rows have what is read of them.
    epoch_numbers = dict.fromkeys(row.epoch for row in rows)  # each once, in order; a set would lose the order
    epochs = [summaries[number] for number in epoch_numbers]
    epochs_s = total(epochs, "seconds")
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
    """Return the rows that print a rate and say their steps; a row of a whole epoch, which has no step, is left out."""
    rows = []
    for window in record.windows:
        if window.step is not None and window.steps and window.printed_rate:
            rows.append(window)
    return rows


def _check_counted_images(record: Record) -> Check | None:
    """Compare the images that our own logs count in each window with the images of its steps: steps x batch.

    Other logs count no images: theirs were computed from the steps, and would agree with themselves. So None is
    returned for other logs, which are told by windows without a phase ("train", "warmup"); for a log with a window
    whose images cannot be read, which has a one-sided check already; and where the batch is not known.
    """
    has_unreadable_images = any(check.what == "images" and check.one_sided for check in record.checks)
    if has_unreadable_images:
        return None
    rows = [window for window in record.windows if window.phase is not None and window.images and window.steps]
    batch = record.global_batch
    if not rows or not batch:
        return None

    images = total(rows, "images")
    steps = int(total(rows, "steps"))
    return _check_of_ratio(
        "images",
        f"{lines_in_words(rows)}: counted, {images:.0f}",
        f"{lines_in_words(rows)}: steps x batch of all devices, {steps} x {batch}",
        ratio=images / (steps * batch),
    )


def _check_printed_rates(record: Record) -> Check | None:
    """Compare the rates that rows print with the rows' images over their seconds, as epochs of MLPerf logs have both.

    The printed rates are averaged over time: by its printed rate a row took images / rate seconds. Returns None where
    no row has a rate, images and seconds, and where the rates are those of one device.
    """
    rows = [window for window in record.windows if window.printed_rate and window.images and window.seconds]
    if record.rate_scope != "global" or not rows:
        return None

    images = total(rows, "images")
    # `or` is for the types alone: all of these rows have both.
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
    """Compare the batch of one device with rate x step time of the rows, in formats whose rates are of one device.

    Returns None where a row, the batch or such rates are missing. Returns None too where the log states the batch and
    the rows agree: the format's reader has recorded that. A batch that the command line gave is always compared.
    """
    rows = [window for window in record.windows if window.printed_rate and window.printed_step_time_s]
    batch = record.batch_per_device
    if record.rate_scope != "device" or not rows or not batch:
        return None

    # `or` is for the types alone: all of these rows have both.
    images = statistics.median((row.printed_rate or 0.0) * (row.printed_step_time_s or 0.0) for row in rows)
    is_from_options = "batch_per_device" in record.from_options
    rows_agree = abs(images / batch - 1) <= AGREES
    if rows_agree and not is_from_options:
        return None
    where = "the options" if is_from_options else f"line {record.field_lines['batch_per_device']}"
    return _check_of_ratio(
        "batch",
        f"{where}: {batch} a device",
        f"{lines_in_words(rows)}: rate x step time, {significant(images, digits=4)} a device at the median",
        ratio=images / batch,
    )


def _check_summary_rate(record: Record) -> Check | None:
    """Compare the figure that the log closes with and the average of the rates that its rows print.

    Logs do not say which average theirs is: of mean, harmonic mean and median the one nearest to it is compared.
    Returns None for a log without a closing figure, or with fewer than two rates.
    """
    rates = [window.printed_rate for window in record.windows if window.printed_rate]
    summary = record.summary_rate
    if summary is None or len(rates) < 2:
        return None

    averages = {
        "mean": statistics.fmean(rates),
        "harmonic mean": statistics.harmonic_mean(rates),
        "median": statistics.median(rates),
    }
    nearest = min(averages, key=lambda name: abs(averages[name] - summary))
    return _check_of_ratio(
        "rate",
        f"line {record.field_lines['summary_rate']}: the log's own summary, {six_digits(summary)} images/s",
        f"{lines_in_words(record.windows)}: {nearest} of the rates, {six_digits(averages[nearest])} images/s",
        ratio=averages[nearest] / summary,
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
