"""Comparisons of what a log says in two ways: each figure against a clock that it was not made of, or another print.

A row of `CHECKS` is a function that compares the two ways; it returns None where the log does not have both.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
    return [
        f"line {row.line}: its time stamp is {back_s:.6g} s before that of line {before.line}{more}: the clock was set"
    ]


def row_s(record: Record, window: Window) -> float | None:
    """Return a row's seconds by its own columns: its time, or its images / rate; None where it has neither."""
    if window.seconds:
        return window.seconds
    if not window.printed_rate:
        return None

    images = window.images
    if record.rate_scope != "global":  # the rate is that of one device
        has_both = window.steps and record.batch_per_device
        images = (window.steps or 0) * (record.batch_per_device or 0) if has_both else None
    return images / window.printed_rate if images else None


def _lines(windows: Sequence[Window]) -> str:
    """Return the first and the last line of rows, in words."""
    return f"lines {windows[0].line} to {windows[-1].line}"


def _gaps(record: Record) -> list[Gap]:
    """Return the gap before each row, but for those that a line or a counter explains.

    Gaps with an evaluation in them are left out, and those between two epochs: there the model is evaluated and saved.
    """
    evaluated = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        seconds = row_s(record, row)
        if before.end_s is None or row.end_s is None or not seconds:
            continue

        clock_s = row.end_s - before.end_s
        clock_was_set = clock_s < 0
        evaluations = bisect.bisect(evaluated, row.line) - bisect.bisect(evaluated, before.line)
        if not clock_was_set and not evaluations and before.epoch == row.epoch:
            gaps.append(Gap(clock_s, seconds, row))
    return gaps


def _stamps(record: Record) -> Check | None:
    """Compare time stamps with the rows' step times, or with steps x batch / rate. Pauses are left out."""
    gaps = _gaps(record)
    if len(gaps) < 2:
        return None

    whole_seconds = all(gap.clock_s == int(gap.clock_s) for gap in gaps)
    digit_s = 1.0 if whole_seconds else 0.01
    usual = _usual_ratio(gaps, digit_s)
    kept = [gap for gap in gaps if gap.clock_s <= PAUSE * max(1.0, usual) * gap.row_s + 2 * digit_s]
    if not kept:
        return None

    stamps_s = math.fsum(gap.clock_s for gap in kept)
    rows_s = math.fsum(gap.row_s for gap in kept)
    lines = _lines([gap.row for gap in kept])
    timed = record.windows[-1].seconds is not None
    return _check(
        "time" if timed else "steps, batch and rate against time",
        f"{lines}: time stamps, {stamps_s:.6g} s",
        f"{lines}: {'their step times' if timed else 'steps x batch / rate'}, {rows_s:.6g} s",
        stamps_s / rows_s,
        rounding=digit_s * (1 + len(gaps) - len(kept)) / rows_s,
    )


def _usual_ratio(gaps: Sequence[Gap], digit_s: float) -> float:
    """Return the usual ratio of clock and row: the median, or the shortest nine tenths' where stamps are coarse."""
    if statistics.median(gap.row_s for gap in gaps) >= 2 * digit_s:
        return statistics.median(gap.clock_s / gap.row_s for gap in gaps)

    # Single gaps are lost in the rounding of the stamps.
    shortest = sorted(gaps, key=_excess_s)[: math.ceil(0.9 * len(gaps))]
    return math.fsum(gap.clock_s for gap in shortest) / math.fsum(gap.row_s for gap in shortest)


def _excess_s(gap: Gap) -> float:
    """Return how much longer a gap is by the clock than by its row, in seconds."""
    return gap.clock_s - gap.row_s


def _pauses(record: Record) -> Check | None:
    """Compare time from stamp to stamp, pauses included, with the rows' own times, within epochs.

    Returns None where they agree. A figure of throughput leaves pauses out: they are said, and no reason to refuse it.
    """
    gaps = _gaps(record)
    rows_s = math.fsum(gap.row_s for gap in gaps)
    stamps_s = math.fsum(gap.clock_s for gap in gaps)
    if len(gaps) < 2 or stamps_s - STAMP_S <= (1 + CLOCK_AGREES) * rows_s:
        return None

    lines = _lines([gap.row for gap in gaps])
    return _check(
        "time with pauses",
        f"{lines}: time stamps, {stamps_s:.6g} s, with pauses of which no line tells",
        f"{lines}: the rows' own times, {rows_s:.6g} s",
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
    """Return images/s by the run's time: from run_start to run_stop, or from the first epoch to the last one.

    None for logs of other rows than epochs, and where the clock was set.
    """
    rows = _epoch_rows(record)
    if not rows:
        return None
    run = _span_of_run(record)
    if run is not None:
        return _rate_over(record, rows, "run_start to run_stop", run.seconds)
    return _rate_over(record, rows, "first to last epoch", _span_of_rows(rows).seconds)


def _span_of_run(record: Record) -> Span | None:
    """Return the time from run_start to run_stop; None where one of them is missing."""
    if record.run_start_s is None or record.run_stop_s is None:
        return None
    return Span(record.run_start_s, record.run_stop_s)


def _span_of_rows(rows: Sequence[Window]) -> Span:
    """Return the time from the begin of the first row to the end of the last one."""
    return Span(_begin_s(rows[0]), rows[-1].end_s or 0.0)


def _begin_s(row: Window) -> float:
    """Return when an epoch began."""
    return (row.end_s or 0.0) - (row.seconds or 0.0)


def _rate_over(record: Record, rows: Sequence[Window], what: str, seconds: float) -> RunRate | None:
    """Return images/s of the epochs from the first row to the last one, over so many seconds.

    A row may be of several epochs, and epochs between two rows may have none. None where the clock was set, which has
    its own message.
    """
    if seconds <= 0:
        return None
    first, last = rows[0], rows[-1]
    samples = record.train_samples or 0
    epochs = (last.epoch or 0) - (first.epoch or 0)
    images = epochs * samples + (first.images or 0.0)
    rate = images / seconds
    return RunRate(f"{_lines(rows)}: {what}, {seconds:.6g} s, which is {rate:.6g} images/s", rate)


def _evaluated_s(record: Record, rows: Sequence[Window], span: Span) -> float:
    """Return the seconds of a span that the log marks as evaluations between the rows.

    Where the program runs ahead of the devices, an evaluation waits for the training before it. So none counts for more
    than LONGEST_EVALUATION times what its images take at the rows' own rate.
    """
    seconds_an_image = _total(rows, "seconds") / _total(rows, "images")
    longest_s = LONGEST_EVALUATION * (record.eval_samples or 0) * seconds_an_image
    ends = [row.end_s or 0.0 for row in rows]
    evaluated_s = 0.0
    for evaluation in record.evaluations:
        following = bisect.bisect(ends, evaluation.begin_s)
        within_row = following < len(rows) and _begin_s(rows[following]) < evaluation.begin_s
        if span.begin_s <= evaluation.begin_s < span.end_s and not within_row:
            evaluated_s += min(evaluation.seconds, longest_s)
    return evaluated_s


def _run(record: Record) -> Check | None:
    """Compare rows of whole epochs with the time from the first to the last one, evaluations left out.

    Where the program runs ahead of the devices an epoch's own stamps are those of its launch, and the work is waited
    for at an evaluation: the largest MLPerf runs print 5.8 times the images/s that their time makes. A start and an end
    of the run beside which the rows are less than 1 / STARTS_AND_ENDS of it are compared too.
    """
    rows = _epoch_rows(record)
    if not rows:
        return None
    rows_s = _total(rows, "seconds")
    rate = _total(rows, "images") / rows_s
    second = f"{_lines(rows)}: the epochs' own times, {rows_s:.6g} s, which is {rate:.6g} images/s"

    compared = None
    run = _span_of_run(record)
    if run is not None:
        run_s = run.seconds - _evaluated_s(record, rows, run)
        compared = _rate_over(record, rows, "run_start to run_stop without evaluations", run_s)
        if compared is None:
            return None
    if compared is None or rate / compared.images_per_s <= STARTS_AND_ENDS:
        trained = _span_of_rows(rows)
        trained_s = trained.seconds - _evaluated_s(record, rows, trained)
        compared = _rate_over(record, rows, "first to last epoch without evaluations", trained_s)
    if compared is None:
        return None
    return _check(EPOCHS_AND_RUN, compared.text, second, rate / compared.images_per_s)


def _epoch_timer(record: Record) -> Check | None:
    """Compare the rates of the rows with those that the epochs' summaries make of their own seconds."""
    epochs = {epoch.epoch: epoch for epoch in record.epochs if epoch.seconds and epoch.printed_rate}
    rows = []
    for window in record.windows:
        if window.step is not None and window.steps and window.printed_rate and window.epoch in epochs:
            rows.append(window)
    if not rows:
        return None

    numbers = dict.fromkeys(row.epoch for row in rows)  # each once, in their order
    timed = [epochs[number] for number in numbers]
    seconds = _total(timed, "seconds")
    epochs_rate = math.fsum((epoch.seconds or 0.0) * (epoch.printed_rate or 0.0) for epoch in timed) / seconds
    rows_rate = _total(rows, "steps") / math.fsum((row.steps or 0) / (row.printed_rate or 1.0) for row in rows)
    return _check(
        "rates against the epochs' time",
        f"{_lines(timed)}: the epochs' own {seconds:.6g} s, {epochs_rate:.6g} images/s",
        f"{_lines(rows)}: their rates, {rows_rate:.6g} images/s",
        rows_rate / epochs_rate,
    )


def _counted(record: Record) -> Check | None:
    """Compare the images that our own windows count with steps x batch.

    Rows of other formats, and windows that count none that can be read, have the images of their steps: no two ways.
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
    """Compare the printed rates with images / time, where rows have both: epochs of an MLPerf log."""
    rows = [window for window in record.windows if window.printed_rate and window.images and window.seconds]
    if record.rate_scope != "global" or not rows:
        return None

    images = _total(rows, "images")
    printed = images / math.fsum((row.images or 0.0) / (row.printed_rate or 1.0) for row in rows)
    made = images / _total(rows, "seconds")
    return _check(
        "rate",
        f"line {rows[0].line} and {len(rows) - 1} more: the printed rates, {printed:.6g} images/s",
        f"images / time, {made:.6g} images/s, {made / printed:.4g} times the printed ones",
        made / printed,
    )


def _batch(record: Record) -> Check | None:
    """Compare the batch that the options say with rate x step time of the rows, where rates are of one device.

    The log's own batch was held against the rows as it was read: that it agrees is not said twice.
    """
    rows = [window for window in record.windows if window.printed_rate and window.printed_step_time_s]
    batch = record.batch_per_device
    if record.rate_scope != "device" or not rows or not batch:
        return None

    images = statistics.median((row.printed_rate or 0.0) * (row.printed_step_time_s or 0.0) for row in rows)
    from_options = "batch_per_device" in record.from_options
    if abs(images / batch - 1) <= AGREES and not from_options:
        return None
    where = "the options" if from_options else f"line {record.field_lines['batch_per_device']}"
    return _check(
        "batch",
        f"{where}: {batch} a device",
        f"{_lines(rows)}: rate x step time, {images:.4g} a device at the median",
        images / batch,
    )


def _summary(record: Record) -> Check | None:
    """Compare the log's closing figure with mean, harmonic mean and median of its rates: the nearest one counts."""
    rates = [window.printed_rate for window in record.windows if window.printed_rate]
    summary = record.summary_rate
    if summary is None or len(rates) < 2:
        return None

    nearest, value = "mean", statistics.fmean(rates)
    for name, average in (("harmonic mean", statistics.harmonic_mean(rates)), ("median", statistics.median(rates))):
        if abs(average - summary) < abs(value - summary):
            nearest, value = name, average
    return _check(
        "rate",
        f"line {record.field_lines['summary_rate']}: the log's own summary, {summary:.6g} images/s",
        f"{_lines(record.windows)}: {nearest} of the rates, {value:.6g} images/s",
        value / summary,
    )


CHECKS = (_stamps, _pauses, _run, _epoch_timer, _counted, _printed, _batch, _summary)
