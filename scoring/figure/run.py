"""The figure of one run under a protocol, and the lines of its log that the figure comes from."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scoring.figure import spread
from scoring.figure.protocols import Protocol
from scoring.figure.selection import nothing_left, positions, select, too_short
from scoring.importers.checks import AGREES, rows_with_clock_set_back
from scoring.importers.text import work
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

    The figure is images/s, or minutes for a protocol that times whole runs. `skip` is how many windows are dropped at
    the start, in the place of the protocol's own number. Raises InputError where the log does not hold what the
    protocol asks for, or where two ways to a throughput contradict each other.
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
    """Raise InputError where what the log says in two ways lies too far apart for any figure."""
    for check in record.checks:
        if check.refused:
            given = ""
            if record.from_options:
                given = f", {' and '.join(record.from_options)} from the options"
            raise InputError(f"{record.file}: no figure, as two ways to it contradict each other{given}: {check}")


def _over_windows(record: Record, chosen: Sequence[Window], kind: str) -> RunFigure:
    """Return the figure of the chosen windows (or epochs) of a run, averaged as a protocol's `over_steps` says.

    `kind` is that field: a mean of the windows' rates, images over time, or one over the mean time of an image. Raises
    InputError where a row does not say its speed.
    """
    if kind in ("mean_of_printed_rates", "mean_of_rates"):
        rates = [_rate(record, window, printed=kind == "mean_of_printed_rates") for window in chosen]
        value = statistics.fmean(rates)
        interval = spread.series_interval(rates)
    else:
        measured = work_of(record, chosen, kind)
        times = measured.times
        rates = [1 / time for time in times]
        if kind == "images_over_time":
            value = math.fsum(measured.images) / math.fsum(measured.seconds)
        else:  # for the mean of times every printed row weighs the same
            value = 1 / statistics.fmean(times)
        interval = _interval_of_rate(times, value)
    return RunFigure(
        file=record.file,
        value=value,
        windows=len(chosen),
        first_line=chosen[0].line,
        last_line=chosen[-1].line,
        chosen=() if kind == "epoch_rates" else tuple(chosen),
        rates=tuple(rates),
        windows_interval_95=interval,
    )


def _interval_of_rate(times: Sequence[float], value: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a rate by the windows' times, as (low, high); None where they make none.

    It is centred on the figure `value`, which is not one over the mean time where windows are of unequal work.
    """
    interval = spread.series_interval(times)
    if interval is None:
        return None
    centred = value * math.fsum(times) / len(times)
    return centred / interval[1], centred / interval[0]


def devices_in_rate(record: Record) -> int | None:
    """Return the factor from a printed rate to that of all devices; None if the log does not say."""
    return 1 if record.rate_scope == "global" else record.devices


def rate_of(record: Record, item: Window, *, printed: bool = False) -> float | None:
    """Return the images/s of all devices in a window or an epoch; None where its row says too little.

    A row may tell its rate in three ways, and the first one that it has is taken: its images over its seconds, the rate
    that it prints, the batch over the step time that it prints. With `printed` the printed rate comes first. Where the
    number of devices is not known, the result is the rate of one device.
    """
    ways = [item.images_per_s, _printed_rate_of_all(record, item)]
    if printed:
        ways.reverse()
    ways.append(_rate_by_step_time(record, item))
    for rate in ways:
        if rate:
            return rate
    return None


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


def _rate(record: Record, item: Window, *, printed: bool) -> float:
    rate = rate_of(record, item, printed=printed)
    if rate is None and item.printed_step_time_s is not None:
        _images_a_step(record)  # says what is missing
    if rate is None:
        raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")
    return rate


def _images_a_step(record: Record) -> int:
    """Return the images of a step on all devices; on one where the log does not say how many, as the unit does."""
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")
    return record.batch_per_device * (record.devices or 1)


class Work(NamedTuple):
    """The images of each window and their seconds.

    Where the log prints only a speed, they are any images and seconds of that speed, such as 1 image in 1 / rate s.
    """

    images: Sequence[float]
    seconds: Sequence[float]

    @property
    def times(self) -> list[float]:
        """Return the seconds of an image in each window."""
        return [seconds / images for images, seconds in zip(self.images, self.seconds, strict=True)]


def work_of(record: Record, chosen: Sequence[Window], kind: str) -> Work:
    """Return the images and seconds of each chosen window, made of the same columns of the log for all of them.

    `kind` is a protocol's `over_steps`. For `images_over_time` the images (or steps) and seconds that the rows say are
    taken, where all rows say them. Else each row prints only a speed: its images and seconds are those of one step at
    that speed, times the steps of the window. Epochs are not weighted by their steps. Raises InputError where the log
    does not say what is needed, such as the batch.
    """
    if kind == "images_over_time":
        measured = _measured_work(record, chosen)
        if measured is not None:
            return measured

    at_printed_speed = _work_at_printed_speed(record, chosen, kind)
    if kind == "epoch_rates":
        return at_printed_speed
    steps = work(chosen)
    images = [count * factor for count, factor in zip(at_printed_speed.images, steps, strict=True)]
    seconds = [time * factor for time, factor in zip(at_printed_speed.seconds, steps, strict=True)]
    return Work(images, seconds)


def _measured_work(record: Record, chosen: Sequence[Window]) -> Work | None:
    """Return the images and seconds that the windows' rows say; None where not all say them.

    Where not all rows say their images, the images are the steps of each times the batch of all devices.
    """
    seconds = _column(chosen, "seconds")
    images = _column(chosen, "images")
    steps = _column(chosen, "steps")
    if not seconds:
        return None
    if images:
        return Work(images, seconds)
    if steps:
        batch = _images_a_step(record)
        return Work([count * batch for count in steps], seconds)
    return None


def _work_at_printed_speed(record: Record, chosen: Sequence[Window], kind: str) -> Work:
    """Return for each window how many images take how many seconds at the speed that its row prints.

    A printed step time means a batch of images in that time. A printed rate means one image in 1 / rate seconds, on
    each device where it is the rate of one device. Where all rows print both, a rate of all devices comes before the
    step time, which comes before a rate of one device. `kind` is a protocol's `over_steps`: `epoch_rates` asks for the
    rates. Rows that print neither all alike have one image in 1 / rate seconds, by whatever way each tells its rate.
    """
    windows = len(chosen)
    rates = _column(chosen, "printed_rate")
    step_times = _column(chosen, "printed_step_time_s")
    prefers_rates = kind == "epoch_rates" or (rates and record.rate_scope == "global")
    if step_times and not prefers_rates:
        return Work([_images_a_step(record)] * windows, step_times)
    if rates:
        images = devices_in_rate(record) or 1
        return Work([images] * windows, [1 / rate for rate in rates])
    return Work([1] * windows, [1 / _rate(record, window, printed=False) for window in chosen])


def _column(windows: Sequence[Window], name: str) -> list[float]:
    """Return the field `name` of all windows; an empty list where one of them lacks it, or has 0."""
    values = [getattr(window, name) for window in windows]
    return values if all(values) else []


class StampedRow(NamedTuple):
    """A row of the log with a time stamp, of which the number of steps done is known."""

    window: Window
    end_s: float
    position: int  # steps done at its end


def _between_stamps(record: Record, protocol: Protocol, skip: int | None) -> RunFigure:
    """Return the images/s between the time stamps of two rows: the batch x steps between them, over the seconds.

    The first row is the end of warm-up. The second one is the last row within the steps that the protocol takes, or of
    the log where it takes all. Raises InputError where there are no such rows, or where the clock was set between them.
    """
    stamped = _stamped_rows(record)
    if not stamped:
        raise InputError(f"{record.file}: protocol {protocol.name} needs time stamps on the rows; the log has none")
    if skip == 0:
        raise InputError(f"protocol {protocol.name} counts from the stamp of a row: give --skip 1 or more")
    start = _end_of_warm_up(record, protocol, stamped, skip)

    steps_left = max(0, stamped[-1].position - start.position)
    last_position = start.position + (protocol.take_steps or steps_left)
    later = [row for row in stamped if start.position < row.position <= last_position]
    steps_needed = protocol.take_steps or 1
    if not later or steps_left < steps_needed - 1:  # one less suffices: where steps count from 0 the last of N is N - 1
        raise too_short(record, steps_needed, steps_left)
    end = later[-1]

    _refuse_set_back(record, [row for row in record.windows if start.window.line <= row.line <= end.window.line])
    seconds = end.end_s - start.end_s
    if seconds <= 0:
        says = "do not advance; they are too coarse, or the clock was set"
        raise InputError(f"{record.file}: the time stamps of lines {start.window.line} and {end.window.line} {says}")
    return RunFigure(
        file=record.file,
        value=_images_a_step(record) * (end.position - start.position) / seconds,
        windows=len(later),
        first_line=start.window.line,
        last_line=end.window.line,
        chosen=tuple(row.window for row in later),
    )


def _stamped_rows(record: Record) -> list[StampedRow]:
    """Return the rows of the log that have a time stamp and a known number of steps done."""
    rows = []
    for window, position in zip(record.windows, positions(record), strict=True):
        if window.end_s is not None and position is not None:
            rows.append(StampedRow(window, window.end_s, position))
    return rows


def _end_of_warm_up(record: Record, protocol: Protocol, stamped: Sequence[StampedRow], skip: int | None) -> StampedRow:
    """Return the row at whose stamp warm-up ends. Raises InputError where the log ends before.

    With `skip` it is the row of that number. Else it is the row at which the protocol's number of steps was done. In a
    log that prints every 10th row from step 0 no row has exactly 20 steps done: there it is the row that prints 20.
    Failing both it is the first row after so many steps.
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
    return f"{len(stamped)} stamped rows, the last after {stamped[-1].position} steps"


def _refuse_set_back(record: Record, windows: Sequence[Window]) -> None:
    for before, row in rows_with_clock_set_back(windows):
        raise InputError(
            f"{record.file}: no figure, as the clock was set: the time stamp of line {row.line} lies before that of "
            f"line {before.line}; take a protocol that reads the rows' own times"
        )


def _own_summary(record: Record) -> RunFigure:
    if record.summary_rate is None:
        says = "the log closes with no figure of its own; take a protocol that counts its rows"
        raise InputError(f"{record.file}: {says}")
    line = record.field_lines["summary_rate"]
    value = record.summary_rate * (devices_in_rate(record) or 1)
    return RunFigure(file=record.file, value=value, first_line=line, last_line=line, chosen=record.windows)


# MLPerf benchmarks whose run_stop is the saving of the model that later proved good, while epochs went on.
JUDGED_AFTER_TRAINING = ("minigo",)


def _run_time(record: Record) -> RunFigure:
    if record.run_start_s is None:
        raise InputError(f"{record.file}: no run_start in the log: the run's time is unknown")
    seconds = record.run_time_s  # None: it began and never stopped, so it did not converge
    if seconds is not None:
        if seconds <= 0:
            raise InputError(f"{record.file}: run_stop is not after run_start: the clock was set, or the log edited")
        _refuse_set_back(record, record.windows)
        windows_s = math.fsum(window.seconds or 0.0 for window in record.windows)
        if record.benchmark not in JUDGED_AFTER_TRAINING and seconds * (1 + AGREES) < windows_s:
            says = f"are {seconds:.6g} s and the windows alone {windows_s:.6g} s: the clock was set, or the log edited"
            raise InputError(f"{record.file}: run_start to run_stop {says}")
    return RunFigure(
        file=record.file,
        value=seconds / 60 if seconds is not None and record.status == "success" else math.inf,
        first_line=record.field_lines["run_start_s"],
        last_line=record.field_lines.get("run_stop_s", record.lines),
    )
