"""Checks of a log against itself: each compares two ways in which the log states one figure.

A function of CHECKS makes one comparison, such as of printed rates with time stamps. It returns None if the log does
not have both ways. A row is a line that a program prints of its training steps; it becomes a Window of the record.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from runlog.digits import four_digits, six_digits
from scoring.importers.gaps import Gap, gaps_of_training, without_pauses
from scoring.importers.run_time import (
    evaluated_within_epochs_s,
    rate_by_durations,
    rows_of_epochs,
    training_rate_by_clock,
)
from scoring.importers.text import first_line_in_words, lines_in_words, total
from scoring.record import Check, Record, Window

MAX_PLAUSIBLE_RATIO = 1.5  # no pause explains that two figures differ by a larger factor: one of them is wrong
AGREES_WITHIN = 0.02  # two figures agree if their ratio is 1 within this, beyond the rounding of their digits
CLOCKS_AGREE_WITHIN = 0.05  # the same for two clocks: evaluations that no line marks lie between epochs
OTHER_BATCH_FROM = 0.1  # a row is of another batch than usual if its rate x step time differs by a larger share
FEW_OTHER_BATCHES = 0.02  # share of the rows; so few of another batch need no warning
MAX_OTHER_BATCHES = 0.25  # share of the rows; with more, the log has no single batch size
TWO_STAMPS_ERROR_S = 2.0  # the error of the time between two stamps of whole seconds
EPOCHS_AND_RUN = "epochs against the run's time"  # the check that a warning about the run's time would repeat
# Names of the checks that compare a figure with another clock. A record with one of them has a second clock.
CLOCK_CHECKS = (
    "time",
    "steps, batch and rate against time",
    "time with pauses",
    EPOCHS_AND_RUN,
    "rates against the epochs' time",
    "rates against the blocks' time",
)


def checks_of_record(record: Record) -> list[Check]:
    """Return the results of all comparisons in CHECKS, each between two ways in which a log states one figure.

    Args:
        record: What the log says. A comparison for which it lacks a figure gives no result.
    """
    checks = []
    for compare in CHECKS:
        check = compare(record)
        if check is not None:
            checks.append(check)
    return checks


def has_second_clock(record: Record) -> bool:
    """Return whether a check compares the times in a log with a second clock, such as its time stamps.

    Args:
        record: What the log says, with its checks.
    """
    return any(check.what in CLOCK_CHECKS for check in record.checks)


def _check_of_ratio(
    name: str, first_way: str, second_way: str, *, ratio: float, rounding: float = 0.0, refusable: bool = True
) -> Check:
    """Return the result of comparing two figures of a log by their ratio.

    The figures agree if they differ by at most 2 %, or 5 % in a check of clocks (CLOCK_CHECKS). If they are over 1.5
    times apart (MAX_PLAUSIBLE_RATIO), one of them must be wrong, and the log is refused.

    Args:
        name: Name of the check, such as "rate".
        first_way: The first figure in words, with its lines in the log.
        second_way: The second figure in words.
        ratio: One figure divided by the other.
        rounding: By how much rounded digits may change the ratio.
        refusable: False if both figures may be right however far they are apart, as with and without pauses.
    """
    tolerance = CLOCKS_AGREE_WITHIN if name in CLOCK_CHECKS else AGREES_WITHIN
    agree = abs(ratio - 1) <= tolerance + rounding
    one_is_wrong = refusable and not _is_plausible(ratio, rounding)
    return Check(what=name, ways=(first_way, second_way), agree=agree, refused=one_is_wrong)


def _is_plausible(ratio: float, rounding: float) -> bool:
    """Return whether two figures of a log may differ by a factor. If not, one of the figures is wrong.

    Args:
        ratio: One figure divided by the other.
        rounding: By how much rounded digits may change the ratio.
    """
    return 1 / MAX_PLAUSIBLE_RATIO - rounding <= ratio <= MAX_PLAUSIBLE_RATIO + rounding


def rows_with_clock_set_back(windows: Sequence[Window]) -> list[tuple[Window, Window]]:
    """Return the pairs of successive rows between which the clock was set back.

    Args:
        windows: Rows of training figures, in the order of the log. Rows without a time stamp are skipped.

    Returns:
        Pairs of rows in which the later row has the earlier time stamp.
    """
    stamped = [window for window in windows if window.end_s is not None]
    pairs = []
    for before, row in itertools.pairwise(stamped):
        if (row.end_s or 0.0) < (before.end_s or 0.0):  # `or` is for the types: all of these rows have a stamp
            pairs.append((before, row))
    return pairs


def problems_of_time_stamps(record: Record) -> list[str]:
    """Return a sentence that the clock was set back during the run, if the time stamps show that.

    Args:
        record: What the log says.

    Returns:
        A list of one sentence, which describes the first such place and counts the others. The list is empty if there
        is no such place.
    """
    pairs = rows_with_clock_set_back(record.windows)
    if not pairs:
        return []
    before, row = pairs[0]
    back_s = (before.end_s or 0.0) - (row.end_s or 0.0)
    more = f", and {len(pairs) - 1} more such rows" if len(pairs) > 1 else ""
    back = f"{six_digits(back_s)} s before that of line {before.line}{more}"
    return [f"line {row.line}: its time stamp is {back}: the clock was set"]


def _check_time_stamps(record: Record) -> Check | None:
    """Compare the time between printed rows by their time stamps with the time that the rows themselves state.

    Both are sums over the gaps between successive rows of an epoch in which no evaluation and no pause lies.

    Args:
        record: What the log says. Its `windows` are the rows of training figures.

    Returns:
        The result. None if there are fewer than two gaps, or if all of them have a pause.
    """
    gaps = gaps_of_training(record)
    if len(gaps) < 2:
        return None
    stamp_resolution_s = _stamp_resolution_s(gaps)
    kept = without_pauses(gaps, stamp_resolution_s)
    if not kept:
        return None

    times = _times_of_gaps(kept, stamp_resolution_s)  # the two sums, and the error of the one by stamps
    lines = lines_in_words([gap.row for gap in kept])
    rows_print_step_times = record.windows[-1].seconds is not None  # by the last row: the first one may lack them
    if rows_print_step_times:
        name = "time"
        figures_of_rows = "their step times"
    else:
        name = "steps, batch and rate against time"
        figures_of_rows = "steps x batch / rate"
    return _check_of_ratio(
        name,
        f"{lines}: time stamps, {six_digits(times.by_stamps_s)} s",
        f"{lines}: {figures_of_rows}, {six_digits(times.by_rows_s)} s",
        ratio=times.by_stamps_s / times.by_rows_s,
        rounding=times.stamps_error_s / times.by_rows_s,
    )


class _TimesOfGaps(NamedTuple):
    """The time of all gaps between printed rows, by two clocks."""

    by_stamps_s: float
    by_rows_s: float  # by the figures of the later row of each gap
    stamps_error_s: float  # by how much the time by the stamps may be off, because they are rounded


def _times_of_gaps(gaps: Sequence[Gap], stamp_resolution_s: float) -> _TimesOfGaps:
    """Return the sum of gaps between printed rows by their time stamps and by the rows' own figures.

    In a stretch of gaps without a break, the sum by the stamps is the last stamp less the first one. So only these two
    are rounded, and the sum is off by about one digit of a stamp for each stretch, not for each gap.

    Args:
        gaps: The gaps, at least one, in the order of the log.
        stamp_resolution_s: Seconds for which the last digit of a time stamp stands, such as 0.01.
    """
    return _TimesOfGaps(
        by_stamps_s=math.fsum(gap.clock_s for gap in gaps),
        by_rows_s=math.fsum(gap.row_s for gap in gaps),
        stamps_error_s=stamp_resolution_s * _stretches_of_gaps(gaps),
    )


def _stretches_of_gaps(gaps: Sequence[Gap]) -> int:
    """Return how many stretches without a break some gaps between printed rows form.

    Args:
        gaps: The gaps, at least one, in the order of the log. A break is where one was left out, as for a pause.
    """
    stretches = 1
    for earlier, later in itertools.pairwise(gaps):
        begins_where_earlier_ends = later.before is earlier.row
        if not begins_where_earlier_ends:
            stretches += 1
    return stretches


def _stamp_resolution_s(gaps: Sequence[Gap]) -> float:
    """Return how many seconds the last digit of a log's time stamps stands for: 1 or 0.01.

    Args:
        gaps: Gaps between printed rows. If all are whole seconds by the time stamps, the result is 1.
    """
    has_whole_seconds = all(gap.clock_s.is_integer() for gap in gaps)  # False for an infinite time
    return 1.0 if has_whole_seconds else 0.01  # logs with fractions of a second print two digits or more


def _check_pauses(record: Record) -> Check | None:
    """Report pauses of the program between printed rows of one epoch, if the time stamps show any.

    There are pauses if the stamps show over 5 % more time than the rows' own times. By stamps that may be off by 4 s,
    110 s for rows of 100 s are enough: 106 s is more than 105 s. The log is not refused for pauses, because its figures
    are by the rows' own times.

    Args:
        record: What the log says. Its `windows` are the rows of training figures.

    Returns:
        The result, or None if the stamps show no pauses or if there are fewer than two gaps between rows.
    """
    gaps = gaps_of_training(record)
    if len(gaps) < 2:
        return None
    times = _times_of_gaps(gaps, _stamp_resolution_s(gaps))
    stamps_error_s = max(TWO_STAMPS_ERROR_S, times.stamps_error_s)
    least_by_stamps_s = times.by_stamps_s - stamps_error_s
    most_without_pauses_s = (1 + CLOCKS_AGREE_WITHIN) * times.by_rows_s
    has_pauses = least_by_stamps_s > most_without_pauses_s
    if not has_pauses:
        return None

    lines = lines_in_words([gap.row for gap in gaps])
    return _check_of_ratio(
        "time with pauses",
        f"{lines}: time stamps, {six_digits(times.by_stamps_s)} s, with pauses or a clock set ahead",
        f"{lines}: the rows' own times, {six_digits(times.by_rows_s)} s",
        ratio=times.by_stamps_s / times.by_rows_s,
        refusable=False,
    )


def _check_run_time(record: Record) -> Check | None:
    """Compare the images/s by the seconds that the epochs of a log state with the images/s by the log's clock.

    Some programs log the end of an epoch when its work is launched on the devices, and not when the work is done. The
    rate by the epochs' seconds is then too high, in the largest MLPerf runs 5.8 times the rate by the clock.

    Args:
        record: What the log says.

    Returns:
        The result. None if its `windows` are not whole epochs, or if the clock was set back, so that no positive time
        is left.
    """
    epochs = rows_of_epochs(record)  # none if the windows are not whole epochs
    if not epochs:
        return None
    clock_rate = training_rate_by_clock(record, epochs)
    if clock_rate is None:
        return None

    stated_s = total(epochs, "seconds")
    stated_rate = rate_by_durations(epochs)
    stated_in_words = f"{six_digits(stated_s)} s, which is {six_digits(stated_rate)} images/s"
    return _check_of_ratio(
        EPOCHS_AND_RUN,
        clock_rate.text,
        f"{lines_in_words(epochs)}: the epochs' own times, {stated_in_words}",
        ratio=stated_rate / clock_rate.images_per_s,
    )


def _check_evaluations_within_epochs(record: Record) -> Check | None:
    """Compare the images/s of epochs with and without the time of the evaluations that are marked within them.

    If epochs of 100 s have evaluations of 20 s in them, the two are images / 100 s and images / 80 s. No line says
    whether training stood still during the evaluations. So either may be the true speed, and the log is never refused.

    Args:
        record: What the log says: its epochs, as `windows`, and the start and end of each evaluation.

    Returns:
        The result. None if the windows are not whole epochs, if no evaluation is marked within them, or if evaluations
        take all of their time.
    """
    epochs = rows_of_epochs(record)  # none if the windows are not whole epochs
    evaluated_s = evaluated_within_epochs_s(record, epochs)
    if evaluated_s == 0:
        return None
    epochs_s = total(epochs, "seconds")
    trained_s = epochs_s - evaluated_s
    if trained_s <= 0:
        return None

    lines = lines_in_words(epochs)
    rate_with = rate_by_durations(epochs)  # images / all seconds, as the figure counts them
    rate_without = rate_with * epochs_s / trained_s
    with_evaluations = f"the epochs' own times, {six_digits(epochs_s)} s, which is {six_digits(rate_with)} images/s"
    without_evaluations = (
        f"without the {six_digits(evaluated_s)} s of evaluations that are marked within epochs, "
        f"{six_digits(rate_without)} images/s if training stood still meanwhile; "
        "the figure counts that time as training"
    )
    return _check_of_ratio(
        "evaluations within epochs",
        f"{lines}: {with_evaluations}",
        without_evaluations,
        ratio=rate_without / rate_with,
        refusable=False,
    )


def check_evaluations_within_rows(rows: Sequence[Window], rows_with_evaluation: Sequence[Window]) -> Check:
    """Compare the mean step time of all rows with that of the rows whose times take in no evaluation.

    No line says how long an evaluation took, so that a figure of the rows counts its time as training. The log is not
    refused for that.

    Args:
        rows: Rows of training figures. Those without steps or seconds are skipped.
        rows_with_evaluation: Some of them, at least one, whose times take in an evaluation. Another one has steps and
            seconds.
    """
    timed = [row for row in rows if row.seconds and row.steps]
    lines_with_evaluation = [row.line for row in rows_with_evaluation]
    left_out = set(lines_with_evaluation)  # to look up fast, as a log may have a million rows
    others = [row for row in timed if row.line not in left_out]
    step_s = total(timed, "seconds") / total(timed, "steps")
    other_step_s = total(others, "seconds") / total(others, "steps")
    return _check_of_ratio(
        "evaluations within rows",
        f"{lines_in_words(timed)}: the rows' own times, {six_digits(step_s)} s a step",
        f"without the rows of {first_line_in_words(lines_with_evaluation)}, whose times take in an evaluation, "
        f"{six_digits(other_step_s)} s a step; a figure of all rows counts that time as training",
        ratio=step_s / other_step_s,
        refusable=False,
    )


def _check_epoch_summaries(record: Record) -> Check | None:
    """Compare the mean of the rates of rows that are printed every few steps with that of the summaries of epochs.

    Two rows of 10 steps print 200 and 300 images/s, and the summary of their epoch 250. Then the harmonic mean of 200
    and 300 is compared with that of 250 and 250. Rows of more steps weigh more.

    Args:
        record: What the log says. Its `windows` are the rows, and its `epochs` are the summaries.

    Returns:
        The result for the epochs that have both rows and a summary. None if there is no such epoch.
    """
    all_summaries = _summaries_with_rates(record)
    summary_of_epoch = {summary.epoch: summary for summary in all_summaries}
    rows = [row for row in _rows_with_rates(record) if row.epoch in summary_of_epoch]
    if not rows:
        return None

    steps = [row.steps or 0 for row in rows]  # all of these rows have steps
    rows_rate = _harmonic_mean([_printed_rate(row) for row in rows], steps)
    summaries_rate = _harmonic_mean([_printed_rate(summary_of_epoch[row.epoch]) for row in rows], steps)
    compared_epochs = {row.epoch for row in rows}
    summaries = [summary for summary in all_summaries if summary.epoch in compared_epochs]
    return _check_of_ratio(
        "rates against the epochs' time",  # a summary's rate is by the time of its epoch
        f"{lines_in_words(summaries)}: the epochs' own rates, {six_digits(summaries_rate)} images/s",
        f"{lines_in_words(rows)}: their rates, {six_digits(rows_rate)} images/s",
        ratio=rows_rate / summaries_rate,
    )


def _printed_rate(window: Window) -> float:
    """Return the images/s that a row or a summary prints.

    Args:
        window: One that prints a rate.
    """
    assert window.printed_rate is not None
    return window.printed_rate


def _harmonic_mean(rates: Sequence[float], steps: Sequence[int]) -> float:
    """Return the harmonic mean of rates, weighted by steps: the rate over all steps, if they have equally many images.

    Args:
        rates: The rates, each above 0.
        steps: Number of steps for each rate.
    """
    steps_over_rates = math.fsum(count / rate for count, rate in zip(steps, rates, strict=True))
    return math.fsum(steps) / steps_over_rates


def _summaries_with_rates(record: Record) -> list[Window]:
    """Return the summaries that a log prints of its epochs, if they state seconds and a rate.

    Their seconds weight no mean, because in GluonCV's logs they include the evaluation of the epoch.

    Args:
        record: What the log says. Of several summaries of one epoch the last counts.
    """
    by_epoch = {summary.epoch: summary for summary in record.epochs if summary.seconds and summary.printed_rate}
    return list(by_epoch.values())


def _rows_with_rates(record: Record) -> list[Window]:
    """Return the rows that print a step and a rate, and whose number of steps is known.

    Args:
        record: What the log says. Rows that are whole epochs print no step and are left out.
    """
    rows = []
    for window in record.windows:
        if window.step is not None and window.steps and window.printed_rate:
            rows.append(window)
    return rows


def _check_counted_images(record: Record) -> Check | None:
    """Compare the images that this project's program counted in training with steps x batch size of all devices.

    Of other programs, nothing is compared: their images were worked out as steps x batch, or their steps as images /
    batch.

    Args:
        record: What the log says.

    Returns:
        The result. None if nothing can be compared, as in the log of another program.
    """
    # Some count of images could not be read: the reader of the log has added this check as one that cannot be made.
    was_noted_as_impossible = any(check.what == "images" and check.one_sided for check in record.checks)
    if was_noted_as_impossible:
        return None
    own_windows = [window for window in record.windows if window.phase is not None]  # only this project logs phases
    windows = [window for window in own_windows if window.images and window.steps]
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
    """Compare the mean of the printed images/s with the rate that the images and seconds of the same rows give.

    Args:
        record: What the log says. Its `windows` are the rows of training figures. Those without a rate, images or
            seconds are skipped.

    Returns:
        The result. None if no row is left, or if the printed rates are not of all devices together.
    """
    if record.rate_scope != "global":
        return None
    rows = [window for window in record.windows if window.printed_rate and window.images and window.seconds]
    if not rows:
        return None

    images = total(rows, "images")
    printed_rate = images / _seconds_at_printed_rates(rows)
    measured_rate = images / total(rows, "seconds")
    ratio = measured_rate / printed_rate
    lines = first_line_in_words([row.line for row in rows])
    return _check_of_ratio(
        "rate",
        f"{lines}: the printed rates, {six_digits(printed_rate)} images/s",
        f"images / time, {six_digits(measured_rate)} images/s, {four_digits(ratio)} times the printed ones",
        ratio=ratio,
    )


def check_rates_against_blocks(epochs: Sequence[Window], stretches: Sequence[Window]) -> Check | None:
    """Compare the mean of the images/s that epochs print with images / seconds of the log's stretches of training.

    The mean is the harmonic one: of epochs with equally many images, it is all images / all seconds.

    Args:
        epochs: The epochs. Those without a printed rate are left out of the mean.
        stretches: A window for each stretch of training between evaluations, of one epoch or several. Those without
            images or seconds are skipped.

    Returns:
        The result. None if no epoch has a rate, or if no stretch has both images and seconds.
    """
    rates = [window.printed_rate for window in epochs if window.printed_rate]
    timed_stretches = [stretch for stretch in stretches if stretch.images and stretch.seconds]
    if not rates or not timed_stretches:
        return None
    printed_rate = statistics.harmonic_mean(rates)
    measured_rate = rate_by_durations(timed_stretches)  # images / seconds, each summed over the stretches
    ratio = measured_rate / printed_rate
    return _check_of_ratio(
        "rates against the blocks' time",
        f"{lines_in_words(epochs)}: the printed rates, {six_digits(printed_rate)} images/s",
        f"{lines_in_words(timed_stretches)}: images / time of the blocks, {six_digits(measured_rate)} images/s, "
        f"{four_digits(ratio)} times the printed ones",
        ratio=ratio,
    )


def _seconds_at_printed_rates(rows: Sequence[Window]) -> float:
    """Return how many seconds the images of all rows take at the rates that the rows print.

    Args:
        rows: The rows. Each has images and a rate.
    """
    # The condition in the sum is for the type checker: all of these rows have both figures.
    return math.fsum(row.images / row.printed_rate for row in rows if row.images and row.printed_rate)


def _check_batch(record: Record) -> Check | None:
    """Compare the stated batch size of one device with the batch size that printed rates and step times imply.

    A row implies images/s x seconds per step, for one device. The median of all rows is compared.

    Args:
        record: What the log says.

    Returns:
        The result. None if one of the two is not known, or if the log states the batch size and the rows agree.
    """
    batch = record.batch_per_device
    rows = _rows_with_batch(record)  # none if the rates are of all devices
    if not rows or not batch:
        return None

    batch_by_rows = statistics.median(_batch_of_row(row) for row in rows)
    ratio = batch_by_rows / batch
    rows_agree = abs(ratio - 1) <= AGREES_WITHIN
    is_from_options = "batch_per_device" in record.from_options
    # A user who gave a batch size that the log does not state is told in any case how it compares with the rows.
    if rows_agree and not is_from_options:
        return None

    source = "the options" if is_from_options else f"line {record.field_lines['batch_per_device']}"
    return _check_of_ratio(
        "batch",
        f"{source}: {batch} a device",
        f"{lines_in_words(rows)}: rate x step time, {four_digits(batch_by_rows)} a device at the median",
        ratio=ratio,
    )


def _check_batches_of_rows(record: Record) -> Check | None:
    """Return a check that rows of a log are of another batch size than usual; None if at most 2 % of the rows are.

    A row of PaddleClas prints

        rate = size of the last batch that the row covers / mean time of a step.

    So its rate x step time is the size of that batch. Some batches have another size if the program changes the batch
    with the size of the images, or because an epoch's last batch is smaller. The rate of such a row is not a speed of
    training, because the other steps of the row may have batches of another size.

    The usual batch is the median of rate x step time over all rows. A row is of another batch if its rate x step time
    is over 10 % (OTHER_BATCH_FROM) off the usual batch.

    Args:
        record: What the log says.

    Returns:
        The first of these that holds:

        - None if no row implies a batch of one device: its rate is of all devices, or it prints no rate or no step
          time.
        - None if at most 2 % (FEW_OTHER_BATCHES) of the rows are of another batch.
        - Otherwise a check that does not agree (`agree=False`). If over 25 % (MAX_OTHER_BATCHES) of the rows are of
          another batch, the check also refuses the log (`refused=True`): no figure is right, as all are worked out with
          one batch size.
    """
    rows = _rows_with_batch(record)  # none if the rates are of all devices
    if not rows:
        return None
    usual_batch = statistics.median(_batch_of_row(row) for row in rows)
    others = [row for row in rows if abs(_batch_of_row(row) / usual_batch - 1) > OTHER_BATCH_FROM]
    if len(others) <= FEW_OTHER_BATCHES * len(rows):
        return None

    least = min(_batch_of_row(row) for row in others)
    most = max(_batch_of_row(row) for row in others)
    lines_of_others = first_line_in_words([row.line for row in others])
    return Check(
        what="batch",
        ways=(
            f"{lines_in_words(rows)}: rate x step time, {four_digits(usual_batch)} a device at the median",
            f"{lines_of_others}: {four_digits(least)} to {four_digits(most)} a device",
        ),
        agree=False,
        refused=len(others) > MAX_OTHER_BATCHES * len(rows),
    )


def _rows_with_batch(record: Record) -> list[Window]:
    """Return the rows that imply the batch size of one device; none if the rates are of all devices.

    Args:
        record: What the log says.
    """
    if record.rate_scope != "device":  # rates of all devices give the batch of all devices
        return []
    return [window for window in record.windows if _batch_of_row(window) > 0]


def _batch_of_row(row: Window) -> float:
    """Return the batch size of one device that a printed row implies: its rate x step time.

    Args:
        row: The row, whose rate must be of one device.

    Returns:
        The batch size, or 0 if the row does not print both.
    """
    return (row.printed_rate or 0.0) * (row.printed_step_time_s or 0.0)


def _check_summary_rate(record: Record) -> Check | None:
    """Compare the average rate that a log prints at its end with the average of the rates that its rows print.

    Logs do not say how they average. So the mean, harmonic mean or median is compared that is nearest to the printed
    average.

    Args:
        record: What the log says. Its `windows` are the rows of training figures.

    Returns:
        The result. None if the log prints no rate at its end, or has fewer than two rows with a rate.
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
    _check_evaluations_within_epochs,
    _check_epoch_summaries,
    _check_counted_images,
    _check_printed_rates,
    _check_batch,
    _check_batches_of_rows,
    _check_summary_rate,
)
