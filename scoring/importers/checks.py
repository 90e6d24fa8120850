"""What a log says in two ways: each figure against a clock that it was not made of, and against what else is printed.

A row of `CHECKS` is a function that compares the two ways; it gives None where the log has not both.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

from scoring.record import Check, Record, Window

REFUSED = 1.5  # a factor that no pause explains: one of the two is wrong
AGREES = 0.02  # share by which two ways may differ beyond what their print rounds off
CLOCK_AGREES = 0.05  # the same of two clocks: a run of whole epochs has its evaluations between them
PAUSE = 1.5  # a gap between two rows longer than this factor is an evaluation, a checkpoint or a stall
EPOCHS_AND_RUN = "epochs against the run's time"  # a check, of which a figure says nothing twice
CLOCKS = (  # checks that set a figure against another clock: a record with none of these has one
    "time",
    "steps, batch and rate against time",
    "time with pauses",
    EPOCHS_AND_RUN,
    "rates against the epochs' time",
)


def of_record(record: Record) -> list[Check]:
    """Every check that the log allows."""
    return [check for compare in CHECKS if (check := compare(record)) is not None]


def has_second_clock(record: Record) -> bool:
    """Whether something in the log confirms its times."""
    return any(check.what in CLOCKS for check in record.checks)


def _check(what: str, first: str, second: str, ratio: float, *, rounding: float = 0.0, refusable: bool = True) -> Check:
    """Two ways in words and their ratio; `rounding` is that of the ratio, by the digits that are printed."""
    agree = abs(ratio - 1) <= (CLOCK_AGREES if what in CLOCKS else AGREES) + rounding
    refused = refusable and not 1 / REFUSED - rounding <= ratio <= REFUSED + rounding
    return Check(what=what, ways=(first, second), agree=agree, refused=refused)


def _total(rows: Iterable[Window], name: str) -> float:
    return math.fsum(getattr(row, name) or 0.0 for row in rows)


def set_back(windows: Sequence[Window]) -> list[tuple[Window, Window]]:
    """Each two stamped rows that follow one another of which the later has the earlier stamp: the clock was set."""
    stamped = [(window.end_s, window) for window in windows if window.end_s is not None]
    return [(before, row) for (a, before), (b, row) in itertools.pairwise(stamped) if b < a]


def problems(record: Record) -> list[str]:
    """What is impossible in the time stamps."""
    back = set_back(record.windows)
    more = f", and {len(back) - 1} more such rows" if len(back) > 1 else ""
    return [
        f"line {row.line}: its time stamp is {(before.end_s or 0.0) - (row.end_s or 0.0):.6g} s before that of line "
        f"{before.line}{more}: the clock was set"
        for before, row in back[:1]
    ]


def row_s(record: Record, window: Window) -> float | None:
    """Seconds of a row by its own columns: its step time, or its images / rate."""
    if window.seconds:
        return window.seconds
    images = window.images
    if record.rate_scope != "global":
        images = window.steps * record.batch_per_device if window.steps and record.batch_per_device else None
    return images / window.printed_rate if images and window.printed_rate else None


def _lines(windows: Sequence[Window]) -> str:
    return f"lines {windows[0].line} to {windows[-1].line}"


def _gaps(record: Record, *, in_epochs: bool) -> list[tuple[float, float, Window]]:
    """(seconds by the clock, by the row, the row) of each row after another one, no evaluation between them."""
    evaluated = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        time_s = row_s(record, row)
        if before.end_s is None or row.end_s is None or not time_s:
            continue
        clock_s = row.end_s - before.end_s
        evaluations = bisect.bisect(evaluated, row.line) - bisect.bisect(evaluated, before.line)
        if clock_s >= 0 and not evaluations and (before.epoch == row.epoch or not in_epochs):  # below 0: it was set
            gaps.append((clock_s, time_s, row))
    return gaps


def _stamps(record: Record) -> Check | None:
    """Time stamps against the rows' step times, or against steps x batch / rate. Pauses are left out."""
    gaps = _gaps(record, in_epochs=True)
    if len(gaps) < 2:
        return None
    digit_s = 1.0 if all(clock_s == int(clock_s) for clock_s, _, _ in gaps) else 0.01
    if statistics.median(time_s for _, time_s, _ in gaps) >= 2 * digit_s:
        usual = statistics.median(clock_s / time_s for clock_s, time_s, _ in gaps)
    else:  # single gaps are lost in the rounding of the stamps
        most = sorted(gaps, key=lambda gap: gap[0] - gap[1])[: math.ceil(0.9 * len(gaps))]
        usual = math.fsum(clock_s for clock_s, _, _ in most) / math.fsum(time_s for _, time_s, _ in most)
    kept = [gap for gap in gaps if gap[0] <= PAUSE * max(1.0, usual) * gap[1] + 2 * digit_s]
    if not kept:
        return None
    stamps_s, rows_s = math.fsum(gap[0] for gap in kept), math.fsum(gap[1] for gap in kept)
    lines = _lines([row for _, _, row in kept])
    timed = record.windows[-1].seconds is not None
    return _check(
        "time" if timed else "steps, batch and rate against time",
        f"{lines}: time stamps, {stamps_s:.6g} s",
        f"{lines}: {'their step times' if timed else 'steps x batch / rate'}, {rows_s:.6g} s",
        stamps_s / rows_s,
        rounding=digit_s * (1 + len(gaps) - len(kept)) / rows_s,
    )


def _pauses(record: Record) -> Check | None:
    """From stamp to stamp, pauses included, against the rows' own times, where no evaluation tells what else was done.

    A figure of throughput leaves pauses out: they are said, and no reason to refuse it.
    """
    gaps = _gaps(record, in_epochs=False)
    rows_s, stamps_s = math.fsum(gap[1] for gap in gaps), math.fsum(gap[0] for gap in gaps)
    if len(gaps) < 2 or stamps_s - 2.0 <= (1 + CLOCK_AGREES) * rows_s:  # stamps may be of whole seconds
        return None
    lines = _lines([row for _, _, row in gaps])
    return _check(
        "time with pauses",
        f"{lines}: time stamps, {stamps_s:.6g} s, with evaluations, ends of epochs and pauses of which no line tells",
        f"{lines}: the rows' own times, {rows_s:.6g} s",
        stamps_s / rows_s,
        refusable=False,
    )


def _epoch_rows(record: Record) -> list[Window]:
    """The rows of a log of whole epochs, each once and in order; empty for any other log."""
    rows = [w for w in record.windows if w.step is None and w.images and w.end_s and w.seconds and w.epoch is not None]
    numbers = [row.epoch or 0 for row in rows]
    whole = len(rows) >= max(2, len(record.windows)) and numbers == sorted(set(numbers))
    return rows if whole and record.train_samples else []


def run_rate(record: Record) -> tuple[str, float] | None:
    """Images/s by the run's time, in words and as a number: from run_start to run_stop where the log has both.

    A row may be of several epochs, and epochs between two rows may have none.
    """
    rows, samples = _epoch_rows(record), record.train_samples
    if not rows or not samples:
        return None
    first, last = rows[0], rows[-1]
    what, run_s = "run_start to run_stop", record.run_time_s
    if run_s is None:
        what, run_s = "first to last epoch", (last.end_s or 0.0) - ((first.end_s or 0.0) - (first.seconds or 0.0))
    if run_s <= 0:  # the clock was set, which is said by itself
        return None
    rate = ((last.epoch or 0) - (first.epoch or 0) + (first.images or 0.0) / samples) * samples / run_s
    return f"{_lines(rows)}: {what}, {run_s:.6g} s, which is {rate:.6g} images/s", rate


def _run(record: Record) -> Check | None:
    """Rows of whole epochs against the run's time, evaluations included.

    Where the program runs ahead of the devices an epoch's own stamps are those of its launch, and the work is waited
    for at an evaluation: MLPerf's largest runs print 5.8 times the images/s that their time makes.
    """
    run, rows = run_rate(record), _epoch_rows(record)
    if run is None:
        return None
    rows_s = _total(rows, "seconds")
    rate = _total(rows, "images") / rows_s
    second = f"{_lines(rows)}: the epochs' own times, {rows_s:.6g} s, which is {rate:.6g} images/s"
    return _check(EPOCHS_AND_RUN, run[0], second, rate / run[1])


def _epoch_timer(record: Record) -> Check | None:
    """The rates of the rows against those that the epochs' summaries make of their own seconds."""
    epochs = {one.epoch: one for one in record.epochs if one.seconds and one.printed_rate}
    rows = [w for w in record.windows if w.step is not None and w.steps and w.printed_rate and w.epoch in epochs]
    if not rows:
        return None
    timed = [epochs[number] for number in dict.fromkeys(row.epoch for row in rows)]
    seconds = _total(timed, "seconds")
    epochs_rate = math.fsum((one.seconds or 0.0) * (one.printed_rate or 0.0) for one in timed) / seconds
    rows_rate = _total(rows, "steps") / math.fsum((w.steps or 0) / (w.printed_rate or 1.0) for w in rows)
    return _check(
        "rates against the epochs' time",
        f"{_lines(timed)}: the epochs' own {seconds:.6g} s, {epochs_rate:.6g} images/s",
        f"{_lines(rows)}: their rates, {rows_rate:.6g} images/s",
        rows_rate / epochs_rate,
    )


def _counted(record: Record) -> Check | None:
    """The images that our own windows count, against steps x batch. Elsewhere images are made from the steps."""
    rows = [w for w in record.windows if w.phase is not None and w.images and w.steps]
    batch = record.global_batch
    if not rows or not batch:
        return None
    images, steps = _total(rows, "images"), int(_total(rows, "steps"))
    return _check(
        "images",
        f"{_lines(rows)}: counted, {images:.0f}",
        f"{_lines(rows)}: steps x batch of all devices, {steps} x {batch}",
        images / (steps * batch),
    )


def _printed(record: Record) -> Check | None:
    """The printed rates against images / time, where rows have both: epochs of an MLPerf log."""
    rows = [w for w in record.windows if w.printed_rate and w.images and w.seconds]
    if record.rate_scope != "global" or not rows:
        return None
    images = _total(rows, "images")
    printed = images / math.fsum((w.images or 0.0) / (w.printed_rate or 1.0) for w in rows)
    made = images / _total(rows, "seconds")
    return _check(
        "rate",
        f"line {rows[0].line} and {len(rows) - 1} more: the printed rates, {printed:.6g} images/s",
        f"images / time, {made:.6g} images/s, {made / printed:.4g} times the printed ones",
        made / printed,
    )


def _batch(record: Record) -> Check | None:
    """The batch that the options say against rate x step time of the rows, where rates are of one device."""
    rows = [w for w in record.windows if w.printed_rate and w.printed_step_time_s]
    batch = record.batch_per_device
    if record.rate_scope != "device" or not rows or not batch:
        return None
    images = statistics.median((w.printed_rate or 0.0) * (w.printed_step_time_s or 0.0) for w in rows)
    given = "batch_per_device" in record.from_options
    if abs(images / batch - 1) <= AGREES and not given:  # the log's own was set against the rows as it was read
        return None
    where = "the options" if given else f"line {record.field_lines['batch_per_device']}"
    return _check(
        "batch",
        f"{where}: {batch} a device",
        f"{_lines(rows)}: rate x step time, {images:.4g} a device at the median",
        images / batch,
    )


def _summary(record: Record) -> Check | None:
    """The closing figure against the mean, the harmonic mean or the median of the rows' rates: it has its own rule."""
    rates = [window.printed_rate for window in record.windows if window.printed_rate]
    summary = record.summary_rate
    if summary is None or len(rates) < 2:
        return None
    ways = {
        "mean": statistics.fmean(rates),
        "harmonic mean": statistics.harmonic_mean(rates),
        "median": statistics.median(rates),
    }
    name = min(ways, key=lambda way: abs(ways[way] - summary))
    return _check(
        "rate",
        f"line {record.field_lines['summary_rate']}: the log's own summary, {summary:.6g} images/s",
        f"{_lines(record.windows)}: {name} of the rates, {ways[name]:.6g} images/s",
        ways[name] / summary,
    )


CHECKS = (_stamps, _pauses, _run, _epoch_timer, _counted, _printed, _batch, _summary)
