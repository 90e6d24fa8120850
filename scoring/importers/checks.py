"""Two ways to a figure: the clock against the rows, the log's own summary against its rows."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence

from scoring.record import Check, Record, Window

# What a second clock was set against; a record with none of these checks has one clock.
TIME, RATE, EPOCHS = SECOND_CLOCK = ("time", "steps, batch and rate against time", "epochs against the run's time")

AGREES = 0.02  # share by which two ways may differ beyond what their print rounds off
REFUSED = 1.5  # a factor that no pause explains: one of the two is wrong
WITH_EVALUATIONS = 0.05  # share of a run of whole epochs that lies between them
PAUSE = 1.5  # a gap between two rows longer than this factor is an evaluation, a checkpoint or a stall


def of_record(record: Record) -> list[Check]:
    """What the rows say, against the stamps beside them and against the log's closing figure."""
    found = (_clock(record), _epochs(record), _counted(record), _printed(record), _batch(record), _summary(record))
    return [check for check in found if check is not None]


def set_back(windows: Sequence[Window]) -> list[tuple[Window, Window]]:
    """Each two stamped rows that follow one another of which the later has the earlier stamp: the clock was set."""
    stamped = [(window.end_s, window) for window in windows if window.end_s is not None]
    return [(before, row) for (a, before), (b, row) in itertools.pairwise(stamped) if b < a]


def problems(record: Record) -> list[str]:
    """What is impossible in the time stamps."""
    back = set_back(record.windows)
    if not back:
        return []
    before, row = back[0]
    gap_s = (before.end_s or 0.0) - (row.end_s or 0.0)
    more = f", and {len(back) - 1} more such rows" if len(back) > 1 else ""
    return [
        f"line {row.line}: its time stamp is {gap_s:.6g} s before that of line {before.line}{more}: the clock was set"
    ]


def _judged(what: str, ways: tuple[str, str], ratio: float, *, rounding: float = 0.0, agrees: float = AGREES) -> Check:
    """Whether the two ways agree, and whether no pause explains that they do not; `rounding`: of the ratio."""
    return Check(
        what=what,
        ways=ways,
        agree=abs(ratio - 1) <= agrees + rounding,
        refused=not 1 / REFUSED - rounding <= ratio <= REFUSED + rounding,
    )


def row_s(record: Record, window: Window) -> float | None:
    """Seconds of a row by its own columns: its step time, or its images / rate."""
    if window.seconds:
        return window.seconds
    images = window.images if record.rate_scope == "global" else _images(record, window)
    return images / window.printed_rate if images and window.printed_rate else None


def _images(record: Record, window: Window) -> int | None:
    return window.steps * record.batch_per_device if window.steps and record.batch_per_device else None


def _gaps(record: Record) -> list[tuple[float, float, int]]:
    """(seconds by the clock, by the row, its line) of each row that follows one of its epoch, no evaluation between."""
    evaluated = sorted(quality.line for quality in record.quality)
    gaps = []
    for before, row in itertools.pairwise(record.windows):
        own = row_s(record, row)
        if before.end_s is None or row.end_s is None or not own or before.epoch != row.epoch:
            continue
        clock = row.end_s - before.end_s
        evaluations = bisect.bisect(evaluated, row.line) - bisect.bisect(evaluated, before.line)
        if clock >= 0 and not evaluations:  # below 0 the clock was set
            gaps.append((clock, own, row.line))
    return gaps


def _clock(record: Record) -> Check | None:
    """Time stamps against the rows' step times, or against steps x batch / rate. Pauses are left out."""
    gaps = _gaps(record)
    if len(gaps) < 2:
        return None
    digit_s = 1.0 if all(clock == int(clock) for clock, _, _ in gaps) else 0.01
    if statistics.median(own for _, own, _ in gaps) >= 2 * digit_s:
        usual = statistics.median(clock / own for clock, own, _ in gaps)
    else:  # single gaps are lost in the rounding of the stamps
        most = sorted(gaps, key=lambda gap: gap[0] - gap[1])[: math.ceil(0.9 * len(gaps))]
        usual = math.fsum(clock for clock, _, _ in most) / math.fsum(own for _, own, _ in most)
    kept = [gap for gap in gaps if gap[0] <= PAUSE * max(1.0, usual) * gap[1] + 2 * digit_s]
    if not kept:
        return None
    clock_s, rows_s = math.fsum(gap[0] for gap in kept), math.fsum(gap[1] for gap in kept)
    rounding = digit_s * (1 + len(gaps) - len(kept)) / rows_s
    timed = record.windows[-1].seconds is not None
    by = "their step times" if timed else "steps x batch / rate"
    lines = f"lines {kept[0][2]} to {kept[-1][2]}"
    return _judged(
        TIME if timed else RATE,
        (f"{lines}: time stamps, {clock_s:.6g} s", f"{lines}: {by}, {rows_s:.6g} s"),
        clock_s / rows_s,
        rounding=rounding,
    )


def _epochs(record: Record) -> Check | None:
    """Rows of whole epochs against the time from the first's start to the last's end, evaluations included.

    Where the program runs ahead of the devices an epoch's own stamps are those of its launch, and the work is waited
    for at an evaluation: MLPerf's largest runs print 5.8 times the images/s that their time makes.
    """
    rows = [(w, w.end_s, w.seconds) for w in record.windows if w.step is None and w.images and w.end_s and w.seconds]
    if len(rows) < max(2, len(record.windows)):
        return None
    epoch_images = min(window.images or 0 for window, _, _ in rows)
    for (before, _, _), (row, _, _) in itertools.pairwise(rows):
        epochs = (row.images or 0) / epoch_images
        if before.epoch is None or row.epoch is None or row.epoch - before.epoch != round(epochs):
            return None  # epochs in between have no row, or rows are of several epochs each
    first, last = rows[0], rows[-1]
    own_s, run_s = math.fsum(seconds for _, _, seconds in rows), last[1] - (first[1] - first[2])
    if run_s <= 0:  # the clock was set, which is said by itself
        return None
    images = math.fsum(window.images or 0 for window, _, _ in rows)
    lines = f"lines {first[0].line} to {last[0].line}"
    return _judged(
        EPOCHS,
        (
            f"{lines}: first to last epoch, {run_s:.6g} s, which is {images / run_s:.6g} images/s",
            f"{lines}: the epochs' own times, {own_s:.6g} s, which is {images / own_s:.6g} images/s",
        ),
        run_s / own_s,
        agrees=WITH_EVALUATIONS,
    )


def _counted(record: Record) -> Check | None:
    """The images that our own windows count, against steps x batch. Elsewhere images are made from the steps."""
    windows = [w for w in record.windows if w.phase is not None and w.images and w.steps]
    batch = record.global_batch
    if not windows or not batch:
        return None
    images, steps = math.fsum(w.images or 0 for w in windows), sum(w.steps or 0 for w in windows)
    lines = f"lines {windows[0].line} to {windows[-1].line}"
    return _judged(
        "images",
        (f"{lines}: counted, {images:.0f}", f"{lines}: steps x batch of all devices, {steps} x {batch}"),
        images / (steps * batch),
    )


def _printed(record: Record) -> Check | None:
    """The printed rates against images / time, where rows have both: epochs of an MLPerf log."""
    both = [w for w in record.windows if w.printed_rate and w.images and w.seconds]
    if record.rate_scope != "global" or not both:
        return None
    ratio = statistics.median(w.images / w.seconds / w.printed_rate for w in both)  # type: ignore[operator]
    row = both[0]
    return _judged(
        "rate",
        (
            f"line {row.line} and {len(both) - 1} more: the printed rate, {row.printed_rate:.6g} images/s",
            f"images / time, {row.images_per_s:.6g} images/s; {ratio:.4g} times the printed ones at the median",
        ),
        ratio,
    )


def _batch(record: Record) -> Check | None:
    """The batch that the options say against rate x step time of the rows, where rates are of one device."""
    rows = [w for w in record.windows if w.printed_rate and w.printed_step_time_s]
    batch = record.batch_per_device
    if record.rate_scope != "device" or not rows or not batch:
        return None
    images = statistics.median(w.printed_rate * w.printed_step_time_s for w in rows)  # type: ignore[operator]
    ratio = images / batch
    given = "batch_per_device" in record.from_options
    if abs(ratio - 1) <= AGREES and not given:  # what the log itself says was set against the rows as it was read
        return None
    said = "the options" if given else f"line {record.field_lines['batch_per_device']}"
    return _judged(
        "batch",
        (
            f"{said}: {batch} a device",
            f"lines {rows[0].line} to {rows[-1].line}: rate x step time, {images:.4g} a device at the median",
        ),
        ratio,
    )


def _summary(record: Record) -> Check | None:
    """The closing figure against the mean, the harmonic mean or the median of the rows' rates: it has its own rule."""
    rated = [window for window in record.windows if window.printed_rate]
    rates = [window.printed_rate or 0.0 for window in rated]
    own = record.summary_rate
    if own is None or len(rates) < 2:
        return None
    ways = {
        "mean": statistics.fmean(rates),
        "harmonic mean": 1 / statistics.fmean(1 / rate for rate in rates),
        "median": statistics.median(rates),
    }
    name = min(ways, key=lambda way: abs(ways[way] - own))
    first, last = record.windows[0].line, record.windows[-1].line
    return _judged(
        "rate",
        (
            f"line {record.field_lines['summary_rate']}: the log's own summary, {own:.6g} images/s",
            f"lines {first} to {last}: {name} of the rates, {ways[name]:.6g} images/s",
        ),
        ways[name] / own,
    )
