"""The figure of one run under a protocol, and the lines of its log that the figure comes from."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.digits import six_digits
from scoring.figure import spread
from scoring.figure.protocols import Protocol
from scoring.figure.selection import nothing_left, positions, select, too_short
from scoring.importers.checks import AGREES_WITHIN, rows_with_clock_set_back
from scoring.importers.text import steps_as_weights, total
from scoring.record import InputError, Record, Window


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """One run under the protocol, with the lines that it comes from."""

    file: str
    value: float  # in the score's unit; infinite for a run that did not converge
    windows: int = 1  # printed rows that went in; 1 of a run as a whole
    first_line: int
    last_line: int
    chosen: tuple[Window, ...] = dataclasses.field(default=(), repr=False)  # the rows themselves
    rates: tuple[float, ...] = dataclasses.field(default=(), repr=False)  # images/s of each window
    windows_interval_95: tuple[float, float] | None = None  # of the windows alone, which say too little of a run


def run_figure(record: Record, protocol: Protocol, *, skip: int | None = None) -> RunFigure:
    """Return the figure of one run under a protocol, with the rows of the log that it is made of.

    The figure is images/s, or minutes for a protocol that times whole runs. `skip` is how many windows (or epochs) are
    dropped at the start, instead of the protocol's own number; a protocol that counts from a time stamp takes that of
    the last one dropped. Raises InputError where the log does not hold what the protocol asks for, where it says its
    throughput in two ways that contradict each other, or where a `skip` above 0 has nothing to drop.
    """
    if protocol.figure == "throughput":
        _refuse_contradictions(record)

    if protocol.over_steps == "between_stamps":
        return _between_stamps(record, protocol, skip)
    if protocol.over_steps == "run_time":
        if skip:
            raise InputError(f"protocol {protocol.name} measures whole runs: --skip has nothing to drop")
        return _run_time(record)
    if protocol.over_steps == "own_summary":
        if skip:
            raise InputError(f"protocol {protocol.name} reads the log's own figure: --skip has nothing to drop")
        return _own_summary(record)
    return _over_windows(record, select(record, protocol, skip=skip), protocol.over_steps)


def _refuse_contradictions(record: Record) -> None:
    """Raise InputError where the log says something in two ways that lie too far apart for any figure.

    The importer has compared them: see `scoring.importers.checks`. The error names the facts that the command line
    gave, as one of these may be the mistake.
    """
    given = ""
    if record.from_options:
        given = f", {' and '.join(record.from_options)} from the options"
    for check in record.checks:
        if check.refused:
            raise InputError(f"{record.file}: no figure, as two ways to it contradict each other{given}: {check}")


def _over_windows(record: Record, chosen: Sequence[Window], kind: str) -> RunFigure:
    """Return the figure of the chosen windows of a run, averaged as `kind` says, which is a protocol's `over_steps`.

    - `mean_of_printed_rates` and `mean_of_rates`: the mean of the windows' images/s.
    - `images_over_time`: all images over all seconds.
    - `mean_step_time` and `epoch_rates`: one over the mean time of an image, in which each window weighs the same.

    For `epoch_rates` the windows are summaries of epochs. Raises InputError where a row does not say its speed, or
    where the batch or the number of devices would tell it and is not known.
    """
    if kind in ("mean_of_printed_rates", "mean_of_rates"):
        prefers_printed = kind == "mean_of_printed_rates"
        rates = [_rate_or_refuse(record, window, printed=prefers_printed) for window in chosen]
        value = statistics.fmean(rates)
        interval = spread.series_interval(rates)
    else:
        measured = work_of(record, chosen, kind)
        seconds_per_image = measured.seconds_per_image
        rates = [1 / seconds for seconds in seconds_per_image]
        if kind == "images_over_time":
            value = math.fsum(measured.images) / math.fsum(measured.seconds)
        else:
            value = 1 / statistics.fmean(seconds_per_image)
        interval = _interval_of_rate(seconds_per_image, value)
    return RunFigure(
        file=record.file,
        value=value,
        windows=len(chosen),
        first_line=chosen[0].line,
        last_line=chosen[-1].line,
        chosen=() if kind == "epoch_rates" else tuple(chosen),  # the warnings about windows are not for epochs
        rates=tuple(rates),
        windows_interval_95=interval,
    )


def _interval_of_rate(seconds_per_image: Sequence[float], value: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a rate in images/s, as (low, high), by how far the times of an image lie apart.

    `value` is the rate. The bounds are one over those of the mean time, scaled so that they lie around `value`. Returns
    None where the times make no interval.
    """
    interval = spread.series_interval(seconds_per_image)
    if interval is None:
        return None
    shortest, longest = interval
    scale = value * math.fsum(seconds_per_image) / len(seconds_per_image)  # 1, but where windows are of unequal work
    return scale / longest, scale / shortest


def devices_in_rate(record: Record) -> int | None:
    """Return by how much to multiply a printed rate to get that of all devices; None if the log does not say.

    It is 1 where the log prints the rate of all devices, and the number of devices where it prints that of one.
    """
    return 1 if record.rate_scope == "global" else record.devices


def rate_of(record: Record, item: Window, *, printed: bool = False) -> float | None:
    """Return the images/s of all devices in a window or an epoch; None where its row says too little.

    A row may tell its rate in three ways, and the first one that it has is taken: its images over its seconds, the rate
    that it prints, the batch over the step time that it prints. With `printed` the printed rate comes first. Where the
    log prints rates of one device, and does not say how many devices there are, the result is the rate of one.
    """
    measured_rate = item.images_per_s
    printed_rate = _printed_rate_of_all(record, item)
    if printed:
        return printed_rate or measured_rate or _rate_by_step_time(record, item)
    return measured_rate or printed_rate or _rate_by_step_time(record, item)


def _printed_rate_of_all(record: Record, item: Window) -> float | None:
    """Return the rate that a row prints, times the devices where it is that of one; None where it prints none."""
    if item.printed_rate is None:
        return None
    return item.printed_rate * (devices_in_rate(record) or 1)


def _rate_by_step_time(record: Record, item: Window) -> float | None:
    """Return the batch of all devices over the step time that a row prints; None where one of these is not known.

    Where the number of devices is not known and the log's rates are those of one device, so is this one.
    """
    devices = record.devices
    if devices is None and record.rate_scope != "global":
        devices = 1
    if item.printed_step_time_s and devices and record.batch_per_device:
        return record.batch_per_device * devices / item.printed_step_time_s
    return None


def _rate_or_refuse(record: Record, item: Window, *, printed: bool) -> float:
    """Return the images/s of a window or an epoch as `rate_of` does. Raises InputError where its row says too little.

    A row that prints a step time lacks only the batch or the number of devices: the error asks for that one.
    """
    rate = rate_of(record, item, printed=printed)
    if rate is None and item.printed_step_time_s is not None:
        _images_a_step(record)  # raises the error that says which of the two is missing
    if rate is None:
        raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")
    return rate


def _images_a_step(record: Record) -> int:
    """Return the images of a step on all devices, or on one where the log does not say how many devices ran.

    In the second case the unit of the figure says `per device`. Raises InputError where the batch is not known, or
    where the log prints rates of all devices and does not say how many they are.
    """
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")
    return record.batch_per_device * (record.devices or 1)


class Work(NamedTuple):
    """The images of each window, and the seconds that they took.

    Where the log prints only a speed, they are any images and seconds that make that speed, such as 1 image in
    1 / rate seconds: only their ratio means something.
    """

    images: Sequence[float]
    seconds: Sequence[float]

    @property
    def seconds_per_image(self) -> list[float]:
        """Return how many seconds an image took, in each window."""
        return [seconds / images for images, seconds in zip(self.images, self.seconds, strict=True)]


def work_of(record: Record, chosen: Sequence[Window], kind: str) -> Work:
    """Return the images and seconds of each chosen window, made of the same columns of the log for all of them.

    `kind` is a protocol's `over_steps`. For `images_over_time` they are what the rows themselves say, where all rows
    say it. Else they follow from the speed that each row prints, weighted by the steps of its window: a window of 20
    steps counts twice as much as one of 10. Epochs (`epoch_rates`) all count the same. Raises InputError where the log
    does not say what is needed, such as the batch.
    """
    if kind == "images_over_time":
        measured = _measured_work(record, chosen)
        if measured is not None:
            return measured

    at_printed_speed = _work_at_printed_speed(record, chosen, kind)
    if kind == "epoch_rates":
        return at_printed_speed
    weights = steps_as_weights(chosen)
    images = [count * weight for count, weight in zip(at_printed_speed.images, weights, strict=True)]
    seconds = [time * weight for time, weight in zip(at_printed_speed.seconds, weights, strict=True)]
    return Work(images, seconds)


def _measured_work(record: Record, chosen: Sequence[Window]) -> Work | None:
    """Return the images and seconds that the windows' rows say; None where they do not say both.

    All must say their seconds. Where one lacks its images but all say their steps, the images of each are its steps
    times the batch of all devices. Raises InputError where that batch is needed and not known.
    """
    seconds = _column_if_in_all(chosen, "seconds")
    if not seconds:
        return None
    images = _column_if_in_all(chosen, "images")
    if images:
        return Work(images, seconds)
    steps = _column_if_in_all(chosen, "steps")
    if steps:
        batch = _images_a_step(record)
        return Work([count * batch for count in steps], seconds)
    return None


def _work_at_printed_speed(record: Record, chosen: Sequence[Window], kind: str) -> Work:
    """Return for each window how many images take how many seconds at the speed that its row prints.

    All windows are read in the same way, the first of these that fits:

    - Where all rows print a step time: the batch of all devices in that time. A protocol of `epoch_rates` and a log
      that prints the rate of all devices pass this by, as their rates come first.
    - Where all rows print a rate: one image in 1 / rate seconds, on each device where it is the rate of one device.
    - Else: one image in 1 / rate seconds, where each row has its rate by any way that `rate_of` knows.

    `kind` is the protocol's `over_steps`. Raises InputError where a row has no rate, or the batch is not known.
    """
    windows = len(chosen)
    rates = _column_if_in_all(chosen, "printed_rate")
    step_times = _column_if_in_all(chosen, "printed_step_time_s")
    prefers_rates = kind == "epoch_rates" or (rates and record.rate_scope == "global")
    if step_times and not prefers_rates:
        return Work([_images_a_step(record)] * windows, step_times)
    if rates:
        images = devices_in_rate(record) or 1
        return Work([images] * windows, [1 / rate for rate in rates])
    return Work([1] * windows, [1 / _rate_or_refuse(record, window, printed=False) for window in chosen])


def _column_if_in_all(windows: Sequence[Window], name: str) -> list[float]:
    """Return the field `name` of all windows; an empty list where one of them lacks it, or has 0."""
    values = [getattr(window, name) for window in windows]
    return values if all(values) else []


class StampedRow(NamedTuple):
    """A row of the log with a time stamp, of which the number of steps done is known."""

    window: Window
    end_s: float  # its time stamp
    position: int  # steps of the run that were done at that moment


def _between_stamps(record: Record, protocol: Protocol, skip: int | None) -> RunFigure:
    """Return the images/s between the time stamps of two rows: the batch x steps between them, over the seconds.

    The first row is the one at which warm-up ends. The protocol says that in steps; `skip`, where it is given, says it
    in rows: it is the number of the row, from 1. The second row is the last one within the steps that the protocol
    takes, or the last of the log where it takes all. Raises InputError where there are no such rows, where the clock
    was set between them, or where the log does not say the batch.
    """
    stamped = _stamped_rows(record, protocol)
    if skip == 0:
        raise InputError(f"protocol {protocol.name} counts from the stamp of a row: give --skip 1 or more")
    start = _end_of_warm_up(record, protocol, stamped, skip)
    measured = _rows_to_measure(record, protocol, stamped, start)
    end = measured[-1]
    seconds = _seconds_between(record, start, end)
    steps = end.position - start.position  # a row's position is how many steps of the run were done at its stamp
    return RunFigure(
        file=record.file,
        value=_images_a_step(record) * steps / seconds,
        windows=len(measured),
        first_line=start.window.line,
        last_line=end.window.line,
        chosen=tuple(row.window for row in measured),
    )


def _stamped_rows(record: Record, protocol: Protocol) -> list[StampedRow]:
    """Return the rows of the log that have a time stamp and a known number of steps done.

    Raises InputError where there are none, and says whether the stamps or the steps are missing. It names `protocol`,
    which measures from one such row to another.
    """
    rows = []
    for window, position in zip(record.windows, positions(record), strict=True):
        if window.end_s is not None and position is not None:
            rows.append(StampedRow(window, window.end_s, position))
    if rows:
        return rows
    if any(window.end_s is not None for window in record.windows):
        lacks = "knows its rows by their steps; the log does not say how many steps were done at any of its time stamps"
    else:
        lacks = "needs time stamps on the rows; the log has none"
    raise InputError(f"{record.file}: protocol {protocol.name} {lacks}")


def _rows_to_measure(
    record: Record, protocol: Protocol, stamped: Sequence[StampedRow], start: StampedRow
) -> list[StampedRow]:
    """Return the rows after `start`, up to the last one within the steps that the protocol takes.

    A protocol that takes no number of steps takes all rows, which must be one at least. Raises InputError where the log
    ends before. It may have one step less than the protocol takes: in a log whose steps count from 0 the last one of N
    prints N - 1.
    """
    steps_left = max(0, stamped[-1].position - start.position)
    steps_needed = protocol.take_steps or 1
    last_position = start.position + (protocol.take_steps or steps_left)
    rows = [row for row in stamped if start.position < row.position <= last_position]
    if not rows or steps_left < steps_needed - 1:
        raise too_short(record, steps_needed, steps_left)
    return rows


def _seconds_between(record: Record, start: StampedRow, end: StampedRow) -> float:
    """Return the time from one row's stamp to another's. Raises InputError where the clock was set between them."""
    first_line = start.window.line
    last_line = end.window.line
    _refuse_set_back(record, [row for row in record.windows if first_line <= row.line <= last_line])
    seconds = end.end_s - start.end_s
    if seconds <= 0:
        says = "do not advance; they are too coarse, or the clock was set"
        raise InputError(f"{record.file}: the time stamps of lines {first_line} and {last_line} {says}")
    return seconds


def _end_of_warm_up(record: Record, protocol: Protocol, stamped: Sequence[StampedRow], skip: int | None) -> StampedRow:
    """Return the row at whose time stamp warm-up ends. Raises InputError where the log ends before.

    With `skip` it is the stamped row of that number, counted from 1. Else the protocol skips steps, and it is the first
    of these that the log has: the row at which exactly so many steps were done; in a log whose steps count from 0, the
    row that prints that number (rows of the steps 0, 10, 20 have 1, 11, 21 steps done); the first row after so many.
    """
    if skip is not None:
        if skip <= len(stamped):
            return stamped[skip - 1]
        raise nothing_left(record, f"{skip} windows", _stamps_in_words(stamped))

    for row in stamped:
        if row.position == protocol.skip:
            return row
    for row in stamped:
        if record.first_step == 0 and row.window.step == protocol.skip:
            return row
    for row in stamped:
        if row.position > protocol.skip:
            return row
    raise nothing_left(record, f"{protocol.skip} steps", _stamps_in_words(stamped))


def _stamps_in_words(stamped: Sequence[StampedRow]) -> str:
    """Return how many rows have a stamp, and how many steps were done at the last: what a log too short has."""
    return f"{len(stamped)} stamped rows, the last after {stamped[-1].position} steps"


def _refuse_set_back(record: Record, windows: Sequence[Window]) -> None:
    """Raise InputError where the time stamp of one of the windows lies before that of the one before it."""
    for before, row in rows_with_clock_set_back(windows):
        raise InputError(
            f"{record.file}: no figure, as the clock was set: the time stamp of line {row.line} lies before that of "
            f"line {before.line}; take a protocol that reads the rows' own times"
        )


def _own_summary(record: Record) -> RunFigure:
    """Return the images/s that the log itself closes with. Raises InputError where it closes with none."""
    if record.summary_rate is None:
        says = "the log closes with no figure of its own; take a protocol that counts its rows"
        raise InputError(f"{record.file}: {says}")
    line = record.field_lines["summary_rate"]
    value = record.summary_rate * (devices_in_rate(record) or 1)
    return RunFigure(file=record.file, value=value, first_line=line, last_line=line, chosen=record.windows)


# MLPerf benchmarks whose run_stop is the saving of the model that later proved good, while epochs went on.
JUDGED_AFTER_TRAINING = ("minigo",)


def _run_time(record: Record) -> RunFigure:
    """Return the minutes from a run's start to its stop; infinite where it did not reach the target, or never stopped.

    A run reached its target if its log says `success`. The figure's last line is that of the stop, or that of the log
    if it has none. Raises InputError where the log has no start, or where the clock was set in between.
    """
    if record.run_start_s is None:
        raise InputError(f"{record.file}: no run_start in the log: the run's time is unknown")
    seconds = record.run_time_s
    minutes = math.inf
    if seconds is not None:
        _refuse_set_clock(record, seconds)
        if record.status == "success":
            minutes = seconds / 60
    return RunFigure(
        file=record.file,
        value=minutes,
        first_line=record.field_lines["run_start_s"],
        last_line=record.field_lines.get("run_stop_s", record.lines),
    )


def _refuse_set_clock(record: Record, run_s: float) -> None:
    """Raise InputError where the clock was set in a run that takes `run_s` seconds from its start to its stop.

    It shows in three things: the stop does not lie after the start; a row's time stamp lies before that of the row
    above; or the windows together take longer than the run, by more than the share AGREES_WITHIN. The last is no sign
    of it in benchmarks of JUDGED_AFTER_TRAINING, which go on training after their stop.
    """
    if run_s <= 0:
        raise InputError(f"{record.file}: run_stop is not after run_start: the clock was set, or the log edited")
    _refuse_set_back(record, record.windows)
    windows_s = total(record.windows, "seconds")
    if record.benchmark not in JUDGED_AFTER_TRAINING and run_s * (1 + AGREES_WITHIN) < windows_s:
        times = f"are {six_digits(run_s)} s and the windows alone {six_digits(windows_s)} s"
        says = f"{times}: the clock was set, or the log edited"
        raise InputError(f"{record.file}: run_start to run_stop {says}")
