"""Comparisons of what a log says in two ways: each figure against a clock that it was not made of, or another print.

A row of `CHECKS` is a function that compares the two ways; it returns None where the log does not have both.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scoring.digits import six_digits
from scoring.record import Check, Record, Span, Window

REFUSED = 1.5  # a factor that no pause explains: one of the two is wrong
AGREES = 0.02  # share by which two ways may differ beyond what their print rounds off
CLOCK_AGREES = 0.05  # share by which two clocks may differ: evaluations that no line marks lie between epochs
PAUSE = 1.5  # a gap between two rows longer than this factor is an evaluation, a checkpoint or a stall
STARTS_AND_ENDS = 1.1  # so many times its epochs' time a run may take with its start and its end, as public ones do
LONGEST_EVALUATION = 10  # times that an image is evaluated at most as long as trained: of few, start-up is most
STAMP_S = 2.0  # two stamps of whole seconds may be off by so much together
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
    row_s: float  # by the columns of the later row
    row: Window  # the later row


class RunRate(NamedTuple):
    """Images/s over a run's time."""

    text: str  # the lines, the time and the rate in words
    images_per_s: float


def of_record(record: Record) -> list[Check]:
    """Return every check that the log allows."""
    checks = []
    for compare in CHECKS:
        check = compare(record)
        if check is not None:
            checks.append(check)
    return checks


def has_second_clock(record: Record) -> bool:
    """Say whether something in the log confirms its times."""
    return any(check.what in CLOCKS for check in record.checks)


def _check(what: str, first: str, second: str, ratio: float, *, rounding: float = 0.0, refusable: bool = True) -> Check:
    """Return the check of two ways in words, whose `ratio` the printed digits leave open by `rounding`."""
    tolerance = CLOCK_AGREES if what in CLOCKS else AGREES
    agree = abs(ratio - 1) <= tolerance + rounding
    close = 1 / REFUSED - rounding <= ratio <= REFUSED + rounding
    return Check(what=what, ways=(first, second), agree=agree, refused=refusable and not close)


def _total(rows: Iterable[Window], name: str) -> float:
    """Return the sum of a field over rows; a row without it counts as 0."""
    return math.fsum(getattr(row, name) or 0.0 for row in rows)


def set_back(windows: Sequence[Window]) -> list[tuple[Window, Window]]:
    """Return each two successive stamped rows of which the later has the earlier stamp: the clock was set back."""
    stamped = [window for window in windows if window.end_s is not None]
    pairs = []
    for before, row in itertools.pairwise(stamped):
        if (row.end_s or 0.0) < (before.end_s or 0.0):
            pairs.append((before, row))
    return pairs


def problems(record: Record) -> list[str]:
    """Return what is impossible in the time stamps, in words; only the first of several is described."""
    pairs = set_back(record.windows)
    if not pairs:
        return []
    before, row = pairs[0]
    back_s = (before.end_s or 0.0) - (row.end_s or 0.0)
    more = f", and {len(pairs) - 1} more such rows" if len(pairs) > 1 else ""
    back = f"{six_digits(back_s)} s before that of line {before.line}{more}"
    return [f"line {row.line}: its time stamp is {back}: the clock was set"]


def row_s(record: Record, window: Window) -> float | None:
    """Return a row's seconds by its own columns: its time, or its images / rate; None where it has neither."""
    if window.seconds:
        return window.seconds
    if not window.printed_rate:
        return None

    images = window.images
    if record.rate_scope != "global":  # the rate is that of one device
        images = None
        if window.steps and record.batch_per_device:
            images = window.steps * record.batch_per_device
    return images / window.printed_rate if images else None


def _lines(windows: Sequence[Window]) -> str:
    """Return the first and the last line of rows, in words."""
    return f"lines {windows[0].line} to {windows[-1].line}"


def _gaps(record: Record) -> list[Gap]:
    """Return the gaps between successive rows in which nothing happened but the steps of the later row.

    Such a gap must be as long by the time stamps as by the later row's own time. Left out are gaps with an evaluation
    in them, those between two epochs, where the model is evaluated and saved, those in which the clock was set back,
    and those of rows that lack a stamp or a time.
    """
    evaluation_lines = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        seconds = row_s(record, row)
        if before.end_s is None or row.end_s is None or not seconds:
            continue

        clock_s = row.end_s - before.end_s
        has_evaluation = _has_line_between(evaluation_lines, before.line, row.line)
        is_within_epoch = before.epoch == row.epoch
        if clock_s >= 0 and is_within_epoch and not has_evaluation:
            gaps.append(Gap(clock_s, seconds, row))
    return gaps


def _has_line_between(ascending_lines: Sequence[int], first: int, last: int) -> bool:
    """Tell whether one of the lines, which are in ascending order, lies behind line `first` and not behind `last`."""
    count_up_to_first = bisect.bisect(ascending_lines, first)
    count_up_to_last = bisect.bisect(ascending_lines, last)
    return count_up_to_last > count_up_to_first


def _stamps(record: Record) -> Check | None:
    """Compare the time between the rows' stamps with the rows' own times, or with steps x batch / rate without those.

    Pauses are left out: gaps that are longer than PAUSE times what is usual. Each of them, and the stamps' last digit,
    leave some seconds open. Returns None for fewer than two gaps between rows.
    """
    gaps = _gaps(record)
    if len(gaps) < 2:
        return None

    whole_seconds = all(gap.clock_s == int(gap.clock_s) for gap in gaps)
    digit_s = 1.0 if whole_seconds else 0.01
    longest_ratio = PAUSE * max(1.0, _usual_ratio(gaps, digit_s))
    kept = [gap for gap in gaps if gap.clock_s <= longest_ratio * gap.row_s + 2 * digit_s]
    if not kept:
        return None

    stamps_s = math.fsum(gap.clock_s for gap in kept)
    rows_s = math.fsum(gap.row_s for gap in kept)
    lines = _lines([gap.row for gap in kept])
    pauses = len(gaps) - len(kept)
    rows_have_times = record.windows[-1].seconds is not None
    return _check(
        "time" if rows_have_times else "steps, batch and rate against time",
        f"{lines}: time stamps, {six_digits(stamps_s)} s",
        f"{lines}: {'their step times' if rows_have_times else 'steps x batch / rate'}, {six_digits(rows_s)} s",
        stamps_s / rows_s,
        rounding=digit_s * (1 + pauses) / rows_s,
    )


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


def _pauses(record: Record) -> Check | None:
    """Compare the time between the rows' stamps, pauses included, with the rows' own times, within epochs.

    Returns None where they agree, or for fewer than two gaps between rows. Pauses are shown but refuse no figure, as a
    figure of throughput leaves them out.
    """
    gaps = _gaps(record)
    rows_s = math.fsum(gap.row_s for gap in gaps)
    stamps_s = math.fsum(gap.clock_s for gap in gaps)
    if len(gaps) < 2 or stamps_s - STAMP_S <= (1 + CLOCK_AGREES) * rows_s:
        return None

    lines = _lines([gap.row for gap in gaps])
    return _check(
        "time with pauses",
        f"{lines}: time stamps, {six_digits(stamps_s)} s, with pauses of which no line tells",
        f"{lines}: the rows' own times, {six_digits(rows_s)} s",
        stamps_s / rows_s,
        refusable=False,
    )


def _epoch_rows(record: Record) -> list[Window]:
    """Return the rows of a log of whole epochs, each once and in order; none of any other log."""
    rows = []
    for window in record.windows:
        is_epoch = window.step is None and window.epoch is not None
        if is_epoch and window.images and window.end_s and window.seconds:
            rows.append(window)

    numbers = [row.epoch or 0 for row in rows]
    whole = len(rows) >= max(2, len(record.windows)) and numbers == sorted(set(numbers))
    return rows if whole and record.train_samples else []


def run_rate(record: Record) -> RunRate | None:
    """Return the images/s that the run's time makes, with the time in words.

    The time is that from run_start to run_stop, or from the first epoch to the last one where the log lacks the two.
    Returns None for logs whose rows are not whole epochs, and where the clock was set.
    """
    rows = _epoch_rows(record)
    if not rows:
        return None
    run = record.run_span
    if run is not None:
        return _rate_over(record, rows, "run_start to run_stop", run.seconds)
    return _rate_over(record, rows, "first to last epoch", _span_of_rows(rows).seconds)


def _span_of_rows(rows: Sequence[Window]) -> Span:
    """Return the time from the begin of the first row to the end of the last one."""
    return Span(_begin_s(rows[0]), rows[-1].end_s or 0.0)


def _begin_s(row: Window) -> float:
    """Return when an epoch began."""
    return (row.end_s or 0.0) - (row.seconds or 0.0)


def _rate_over(record: Record, rows: Sequence[Window], what: str, seconds: float) -> RunRate | None:
    """Return the images/s of the epochs from the first row to the last one, over so many seconds; `what` names these.

    The epochs are counted by their numbers: a row may be of several epochs, and epochs between two rows may have none.
    Returns None where the seconds are not above 0: the clock was set, which has its own message.
    """
    if seconds <= 0:
        return None
    first, last = rows[0], rows[-1]
    epochs_after_first = (last.epoch or 0) - (first.epoch or 0)
    images = epochs_after_first * (record.train_samples or 0) + (first.images or 0.0)
    rate = images / seconds
    return RunRate(f"{_lines(rows)}: {what}, {six_digits(seconds)} s, which is {six_digits(rate)} images/s", rate)


def _evaluated_s(record: Record, rows: Sequence[Window], span: Span) -> float:
    """Return how many seconds of a span are evaluations by the log's marks, but for those within a row's own time.

    Where the program runs ahead of the devices, an evaluation waits for the training before it. So none counts for more
    than LONGEST_EVALUATION times what its images take at the rows' own rate.
    """
    images_evaluated = LONGEST_EVALUATION * (record.eval_samples or 0)
    longest_s = images_evaluated * _total(rows, "seconds") / _total(rows, "images")
    ends = [row.end_s or 0.0 for row in rows]
    evaluated_s = 0.0
    for evaluation in record.evaluations:
        next_row = bisect.bisect(ends, evaluation.begin_s)  # the first one that ends later
        is_within_row = next_row < len(rows) and _begin_s(rows[next_row]) < evaluation.begin_s
        if span.begin_s <= evaluation.begin_s < span.end_s and not is_within_row:
            evaluated_s += min(evaluation.seconds, longest_s)
    return evaluated_s


def _training_rate(record: Record, rows: Sequence[Window], what: str, span: Span) -> RunRate | None:
    """Return the images/s of a span, without evaluations where they can be left out; `what` names the span."""
    evaluated_s = _evaluated_s(record, rows, span)
    left_out = " without evaluations" if evaluated_s else ""
    if record.evaluations and not record.eval_samples:
        left_out = " with evaluations (the log does not say eval_samples)"
    return _rate_over(record, rows, what + left_out, span.seconds - evaluated_s)


def _run(record: Record) -> Check | None:
    """Compare the images/s of the epochs' own times with those of the whole time that they took, without evaluations.

    Where the program runs ahead of the devices an epoch's own stamps are those of its launch, and the work is waited
    for at an evaluation: the largest MLPerf runs print 5.8 times the images/s that their time makes.

    The whole time is that from the first epoch to the last one. Where run_start to run_stop make a rate that is lower
    by more than a factor of STARTS_AND_ENDS, which the run's start and end do not explain, it is the time between them.
    Returns None for logs of other rows than epochs, and where the clock was set.
    """
    rows = _epoch_rows(record)
    if not rows:
        return None
    rows_s = _total(rows, "seconds")
    rate = _total(rows, "images") / rows_s
    own_times = f"{_lines(rows)}: the epochs' own times, {six_digits(rows_s)} s, which is {six_digits(rate)} images/s"

    run = record.run_span
    whole = _training_rate(record, rows, "run_start to run_stop", run) if run else None
    if run and not whole:
        return None
    if whole is None or rate / whole.images_per_s <= STARTS_AND_ENDS:
        whole = _training_rate(record, rows, "first to last epoch", _span_of_rows(rows))
    return _check(EPOCHS_AND_RUN, whole.text, own_times, rate / whole.images_per_s) if whole else None


def _epoch_timer(record: Record) -> Check | None:
    """Compare the rates that the rows print with those of the epochs' summaries, whose time is another clock.

    Each is averaged over time: the rows' by their steps, the summaries' by their seconds. Only epochs count that have
    both. Returns None where there are none.
    """
    summaries = {epoch.epoch: epoch for epoch in record.epochs if epoch.seconds and epoch.printed_rate}
    rows = []
    for window in record.windows:
        if window.step is not None and window.steps and window.printed_rate and window.epoch in summaries:
            rows.append(window)
    if not rows:
        return None

    epoch_numbers = dict.fromkeys(row.epoch for row in rows)  # each once, in their order
    epochs = [summaries[number] for number in epoch_numbers]
    epochs_s = _total(epochs, "seconds")
    epochs_rate = math.fsum((epoch.seconds or 0.0) * (epoch.printed_rate or 0.0) for epoch in epochs) / epochs_s
    steps_over_rates = math.fsum((row.steps or 0) / (row.printed_rate or 1.0) for row in rows)
    rows_rate = _total(rows, "steps") / steps_over_rates
    return _check(
        "rates against the epochs' time",
        f"{_lines(epochs)}: the epochs' own {six_digits(epochs_s)} s, {six_digits(epochs_rate)} images/s",
        f"{_lines(rows)}: their rates, {six_digits(rows_rate)} images/s",
        rows_rate / epochs_rate,
    )


def _counted(record: Record) -> Check | None:
    """Compare the images that the windows of our own logs count with steps x batch of all devices.

    Returns None for other logs: the images of their rows are made of the steps, so that there are no two ways. It
    returns None too where a window counts no images that can be read.
    """
    if any(check.what == "images" and check.one_sided for check in record.checks):
        return None
    rows = [window for window in record.windows if window.phase is not None and window.images and window.steps]
    batch = record.global_batch
    if not rows or not batch:
        return None

    images = _total(rows, "images")
    steps = int(_total(rows, "steps"))
    return _check(
        "images",
        f"{_lines(rows)}: counted, {images:.0f}",
        f"{_lines(rows)}: steps x batch of all devices, {steps} x {batch}",
        images / (steps * batch),
    )


def _printed(record: Record) -> Check | None:
    """Compare the rates that rows print with the rows' images over their time; None where no row has both.

    Epochs of an MLPerf log may have both. The printed rates are averaged over time, each by the images of its row.
    """
    rows = [window for window in record.windows if window.printed_rate and window.images and window.seconds]
    if record.rate_scope != "global" or not rows:
        return None

    images = _total(rows, "images")
    printed_rate = images / math.fsum((row.images or 0.0) / (row.printed_rate or 1.0) for row in rows)
    measured_rate = images / _total(rows, "seconds")
    ratio = measured_rate / printed_rate
    return _check(
        "rate",
        f"line {rows[0].line} and {len(rows) - 1} more: the printed rates, {six_digits(printed_rate)} images/s",
        f"images / time, {six_digits(measured_rate)} images/s, {ratio:.4g} times the printed ones",
        ratio,
    )


def _batch(record: Record) -> Check | None:
    """Compare the batch of one device with rate x step time of the rows, in formats whose rates are of one device.

    Returns None where the log's own batch agrees, which was said as the log was read. A batch by the options is always
    compared.
    """
    rows = [window for window in record.windows if window.printed_rate and window.printed_step_time_s]
    batch = record.batch_per_device
    if record.rate_scope != "device" or not rows or not batch:
        return None

    images = statistics.median((row.printed_rate or 0.0) * (row.printed_step_time_s or 0.0) for row in rows)
    is_from_options = "batch_per_device" in record.from_options
    if abs(images / batch - 1) <= AGREES and not is_from_options:
        return None
    where = "the options" if is_from_options else f"line {record.field_lines['batch_per_device']}"
    return _check(
        "batch",
        f"{where}: {batch} a device",
        f"{_lines(rows)}: rate x step time, {images:.4g} a device at the median",
        images / batch,
    )


def _summary(record: Record) -> Check | None:
    """Compare the log's closing figure with the average of its rates; None where it lacks the one or the other.

    Logs do not say which average theirs is. Mean, harmonic mean and median are tried, and the nearest one counts.
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
    return _check(
        "rate",
        f"line {record.field_lines['summary_rate']}: the log's own summary, {six_digits(summary)} images/s",
        f"{_lines(record.windows)}: {nearest} of the rates, {six_digits(averages[nearest])} images/s",
        averages[nearest] / summary,
    )


CHECKS = (_stamps, _pauses, _run, _epoch_timer, _counted, _printed, _batch, _summary)
