"""The figure of one run under a protocol, and the lines of its log that the figure comes from."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog.digits import counted, six_digits
from scoring.figure import series
from scoring.figure.protocols import OverSteps, Protocol
from scoring.figure.rates import (
    Work,
    devices_per_printed_rate,
    images_per_step,
    rate_or_refuse,
    seconds_per_image_by_printed_speed,
    seconds_per_image_by_rates,
    work_over_time,
)
from scoring.figure.selection import (
    nothing_left,
    refuse_marked_warm_up,
    row_too_long,
    select,
    steps_done_before_log,
    steps_done_by_window,
    too_short,
)
from scoring.importers.checks import AGREES_WITHIN, rows_with_clock_set_back
from scoring.importers.text import total
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
    """Return the throughput or the training time of one run, with the lines of its log that it comes from.

    Args:
        record: The run as read from its log.
        protocol: The rules by which the run becomes one figure, in images/s or in minutes, and the warm-up to drop.
        skip: The value of the option --skip, which replaces the protocol's warm-up. What it counts depends on the
            protocol, and is said in the code. None takes the protocol's warm-up.

    Returns:
        The figure; infinite minutes for a run that did not reach its target.

    Raises:
        InputError: The log lacks what the protocol needs, or contradicts itself, or `skip` does not suit the protocol.
    """
    if protocol.figure == "throughput":  # a training time is not made of the batches and rates that may contradict
        _refuse_contradictions(record)

    if protocol.over_steps == "between_stamps":
        # --skip 3: start at the third row that has a time stamp
        return _figure_between_stamps(record, protocol, start_number=skip)
    if protocol.over_steps == "run_time":
        _refuse_skip(protocol, skip, "measures whole runs")
        return _run_time_figure(record)
    if protocol.over_steps == "own_summary":
        _refuse_skip(protocol, skip, "reads the log's own figure")
        return _figure_of_own_summary(record)
    # --skip 3: drop the first three rows (windows), or the first three epochs
    measured_windows = select(record, protocol, skip=skip)
    return _figure_of_windows(record, measured_windows, protocol.over_steps)


def _refuse_skip(protocol: Protocol, skip: int | None, measures: str) -> None:
    """Raise an error if the user gives --skip with a protocol that has no warm-up to drop.

    Args:
        protocol: The rules of the measurement. Only its name is used, for the error.
        skip: The value of the option --skip. None and 0 ask for what is done anyway.
        measures: What the protocol does in words, such as "measures whole runs".

    Raises:
        InputError: The user gives a number above 0.
    """
    if skip:
        raise InputError(f"protocol {protocol.name} {measures}: --skip has nothing to drop")


def _refuse_contradictions(record: Record) -> None:
    """Raise an error if a log states one thing in two ways so far apart that no throughput can be trusted.

    For example, the log states a batch of 256, but its rates times its step times give 128. The importer has already
    made these comparisons, and has set `refused` in each that is too far apart.

    Args:
        record: The run as read from its log, with the comparisons in `checks`.

    Raises:
        InputError: At least one comparison is refused. The message shows the first one.
    """
    refused_checks = [check for check in record.checks if check.refused]
    if not refused_checks:
        return
    from_options = ""  # names the facts that the user gave, because one of them may be the mistake
    if record.from_options:
        from_options = f", {' and '.join(record.from_options)} from the options"
    says = f"no figure, as two ways to it contradict each other{from_options}: {refused_checks[0]}"
    raise InputError(f"{record.file}: {says}")


class _Average(NamedTuple):
    """The images/s of a run's windows, averaged."""

    value: float
    rates: Sequence[float]  # of each window
    interval_95: tuple[float, float] | None  # of the windows alone


def _figure_of_windows(record: Record, chosen: Sequence[Window], over_steps: OverSteps) -> RunFigure:
    """Return the images/s of a run as an average over its measured windows.

    Args:
        record: The run as read from its log.
        chosen: The rows to measure, at least one: what the log printed every few steps or, for "epoch_rates", after
            each epoch.
        over_steps: How to average, such as "mean_of_rates", or "images_over_time" for all images / all seconds.

    Returns:
        The figure, with the rate of each window, and the first and last line that it comes from.

    Raises:
        InputError: A row does not give its speed, or the batch or the number of devices is needed and not known.
    """
    average = _average_of_windows(record, chosen, over_steps)
    are_epochs = over_steps == "epoch_rates"
    return RunFigure(
        file=record.file,
        value=average.value,
        windows=len(chosen),
        first_line=chosen[0].line,
        last_line=chosen[-1].line,
        chosen=() if are_epochs else tuple(chosen),  # the warnings about windows are not for epochs
        rates=tuple(average.rates),
        windows_interval_95=average.interval_95,
    )


def _average_of_windows(record: Record, chosen: Sequence[Window], over_steps: OverSteps) -> _Average:
    """Return the average images/s of some windows, with the rate of each window and a 95 % interval.

    Args:
        record: The run as read from its log. It tells the batch and the number of devices.
        chosen: The printed rows, or summaries of epochs, to average.
        over_steps: How to average, such as "mean_of_rates". The comments in the code explain each way.

    Returns:
        The average. Its interval is None if the windows are too few or too uneven.

    Raises:
        InputError: A row does not give its speed, or the batch or the number of devices is needed and not known.
    """
    # The mean of the rates that the rows print; for a row without one, its images / its seconds
    if over_steps == "mean_of_printed_rates":
        return _mean_of_rates([rate_or_refuse(record, window, printed=True) for window in chosen])
    # The mean of images / seconds of each window; for a row without them, the rate that it prints (`rate_of`)
    if over_steps == "mean_of_rates":
        return _mean_of_rates([rate_or_refuse(record, window, printed=False) for window in chosen])
    # All images / all seconds, as measured or else by the printed speed
    if over_steps == "images_over_time":
        return _images_over_time(work_over_time(record, chosen))
    # 1 / the mean of the windows' seconds per image, which all weigh the same: by the printed step times or rates
    if over_steps == "mean_step_time":
        return _images_over_mean_time(seconds_per_image_by_printed_speed(record, chosen))
    # The same for epochs, which all print a rate. This is the harmonic mean of the rates.
    assert over_steps == "epoch_rates", over_steps
    return _images_over_mean_time(seconds_per_image_by_rates(record, chosen))


def _mean_of_rates(rates: Sequence[float]) -> _Average:
    """Return the mean of the windows' images/s."""
    return _Average(statistics.fmean(rates), rates, series.series_interval(rates))


def _images_over_time(work: Work) -> _Average:
    """Return all images / all seconds of the windows."""
    return _average_by_times(work.seconds_per_image, math.fsum(work.images) / math.fsum(work.seconds))


def _images_over_mean_time(seconds_per_image: Sequence[float]) -> _Average:
    """Return 1 / the mean of the windows' seconds per image. All windows weigh the same."""
    return _average_by_times(seconds_per_image, 1 / statistics.fmean(seconds_per_image))


def _average_by_times(seconds_per_image: Sequence[float], value: float) -> _Average:
    """Return an average of the windows' images/s, with each window's rate and an interval by their times.

    Args:
        seconds_per_image: How many seconds an image took in each window (what one printed row of the log covers).
        value: The average, in images/s.
    """
    rates = [1 / seconds for seconds in seconds_per_image]
    return _Average(value, rates, _interval_of_rate(seconds_per_image, value))


def _interval_of_rate(seconds_per_image: Sequence[float], value: float) -> tuple[float, float] | None:
    """Return the 95 % interval of an average throughput, from the interval of the mean time per image.

    If that interval is 9 to 11 ms about a mean of 10 ms, then the rate lies between 10/11 and 10/9 of `value`.

    Args:
        seconds_per_image: How many seconds an image took in each window of the run, in the order of the log.
        value: The average of the windows' images/s.

    Returns:
        The bounds (low, high) in images/s; None if the windows are too few or too uneven.
    """
    interval_of_mean_time = series.series_interval(seconds_per_image)
    if interval_of_mean_time is None:
        return None
    low_time, high_time = interval_of_mean_time
    mean_time = math.fsum(seconds_per_image) / len(seconds_per_image)
    # A long time is a low rate. `value` need not be 1 / mean_time, as its windows may weigh by their steps.
    return value * mean_time / high_time, value * mean_time / low_time


class StampedRow(NamedTuple):
    """A row of the log that has a time stamp and a known number of steps done."""

    window: Window
    end_s: float  # its time stamp
    steps_done: int  # of the run without those before this log, warm-up included; 1 after the first step


def _figure_between_stamps(record: Record, protocol: Protocol, start_number: int | None) -> RunFigure:
    """Return the images/s between the time stamps of two rows: batch of all devices * steps / seconds.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement: the warm-up in steps, and how many steps to take after it.
        start_number: Which row with a time stamp to start at, counted from 1 (the option --skip). None starts where the
            protocol's warm-up ends.

    Raises:
        InputError: The log is too short, lacks stamps, steps, batch or devices, marks a row between the two as warm-up,
            or has time stamps that do not advance. Also if `start_number` is 0.
    """
    stamped = _stamped_rows(record, protocol)
    start = _start_row(record, protocol, stamped, start_number)
    measured = _rows_after(record, protocol, stamped, start)
    end = measured[-1]
    _refuse_warm_up_between(record, protocol, start, end)
    seconds = _seconds_between(record, start, end)
    steps = end.steps_done - start.steps_done
    return RunFigure(
        file=record.file,
        value=images_per_step(record) * steps / seconds,
        windows=len(measured),
        first_line=start.window.line,
        last_line=end.window.line,
        chosen=tuple(row.window for row in measured),
    )


def _rows_after(
    record: Record, protocol: Protocol, stamped: Sequence[StampedRow], start: StampedRow
) -> list[StampedRow]:
    """Return the rows that a protocol measures: all after the start of the measurement, or those of so many steps.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement. `take_steps` is how many steps it takes; None takes all.
        stamped: The rows that have a time stamp and a known number of steps done, in the order of the log.
        start: The row at which the measurement starts. It is not returned.

    Raises:
        InputError: The log is too short.
    """
    if protocol.take_steps is None:
        return _all_rows_after(record, stamped, start)
    return _rows_of_next_steps(record, protocol.take_steps, stamped, start)


def _stamped_rows(record: Record, protocol: Protocol) -> list[StampedRow]:
    """Return the rows of a log that have a time stamp and a known number of steps done.

    Steps are counted from the start of the log. For a run that was resumed at step 1000, the row of step 1010 has 10.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement. Only its name is used, for the error.

    Returns:
        The rows in the order of the log, at least one.

    Raises:
        InputError: There is no such row. The message says whether the stamps or the steps are missing.
    """
    stamped = []
    done_before_log = steps_done_before_log(record)  # 1000 in the example
    for window, steps_done in zip(record.windows, steps_done_by_window(record), strict=True):
        if window.end_s is not None and steps_done is not None:
            stamped.append(StampedRow(window, window.end_s, steps_done - done_before_log))
    if stamped:
        return stamped
    has_stamps = any(window.end_s is not None for window in record.windows)
    if has_stamps:  # so the steps are missing
        says = "knows its rows by their steps; the log does not say how many steps were done at any of its time stamps"
    else:
        says = "needs time stamps on the rows; the log has none"
    raise InputError(f"{record.file}: protocol {protocol.name} {says}")


def _start_row(
    record: Record, protocol: Protocol, stamped: Sequence[StampedRow], start_number: int | None
) -> StampedRow:
    """Return the row at whose time stamp the measurement starts.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement. `skip` is the length of the warm-up in steps.
        stamped: The rows that have a time stamp and a known number of steps done, in the order of the log.
        start_number: Which of `stamped` to start at, counted from 1 (the option --skip). None starts where the
            protocol's warm-up ends.

    Raises:
        InputError: The log has no such row, or `start_number` is 0.
    """
    if start_number is None:
        return _row_ending_warm_up(record, protocol.skip, stamped)
    if start_number == 0:
        raise InputError(f"protocol {protocol.name} counts from the stamp of a row: give --skip 1 or more")
    return _row_of_number(record, start_number, stamped)


def _all_rows_after(record: Record, stamped: Sequence[StampedRow], start: StampedRow) -> list[StampedRow]:
    """Return all rows after the start of a measurement.

    Args:
        record: The run as read from its log, for the error.
        stamped: The rows that have a time stamp and a known number of steps done, in the order of the log.
        start: The row at which the measurement starts. It is not returned.

    Raises:
        InputError: There is no row after it.
    """
    steps_done_at_end = stamped[-1].steps_done
    rows = _rows_up_to(steps_done_at_end, stamped, start)
    if not rows:
        raise too_short(record, steps=1, total=0)
    return rows


def _rows_up_to(last_steps_done: int, stamped: Sequence[StampedRow], start: StampedRow) -> list[StampedRow]:
    """Return the rows after the start of a measurement, up to a number of steps done.

    Args:
        last_steps_done: The most steps done at the end of a row, as `StampedRow` counts them.
        stamped: The rows that have a time stamp and a known number of steps done, in the order of the log.
        start: The row at which the measurement starts. Only rows with more steps done are returned.
    """
    return [row for row in stamped if start.steps_done < row.steps_done <= last_steps_done]


def _rows_of_next_steps(
    record: Record, steps: int, stamped: Sequence[StampedRow], start: StampedRow
) -> list[StampedRow]:
    """Return the rows that are at most `steps` steps after the start of a measurement.

    For example, `start` is after 20 steps, `steps` is 100, and a row follows every 30 steps. The rows after 50, 80 and
    110 steps are returned.

    Args:
        record: The run as read from its log, for the error.
        steps: How many steps the protocol takes after the warm-up.
        stamped: The rows that have a time stamp and a known number of steps done, in the order of the log.
        start: The row at which the measurement starts. It is not returned.

    Raises:
        InputError: The log has fewer than `steps` - 1 steps after `start`, or its next row covers over `steps` steps.
    """
    rows = _rows_up_to(start.steps_done + steps, stamped, start)
    steps_left_in_log = max(0, stamped[-1].steps_done - start.steps_done)  # also those after the last of `rows`
    # One step may lack. For example, a log of 120 steps counts them from 0, and its warm-up ends at its row of step 20.
    # 21 steps are then done, so that 99 are left of 100.
    least_steps_left = max(1, steps - 1)
    if steps_left_in_log < least_steps_left:
        raise too_short(record, steps, steps_left_in_log)
    if not rows:
        next_row = next(row for row in stamped if row.steps_done > start.steps_done)
        raise row_too_long(record, steps, next_row.window, next_row.steps_done - start.steps_done)
    return rows


def _refuse_warm_up_between(record: Record, protocol: Protocol, start: StampedRow, end: StampedRow) -> None:
    """Raise an error if the log marks a window between the two rows of a measurement as warm-up.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement. Only its name is used, for the error.
        start: The row at which the measurement starts. Its own window may be warm-up.
        end: The row at which the measurement ends. Its own window counts.

    Raises:
        InputError: A window after `start`, up to `end`, is marked as warm-up.
    """
    between = [window for window in record.windows if start.window.line < window.line <= end.window.line]
    fix = "give --skip N, the number of the stamped row at which the warm-up ends"
    refuse_marked_warm_up(record, protocol, between, fix=fix)


def _seconds_between(record: Record, start: StampedRow, end: StampedRow) -> float:
    """Return the seconds from the time stamp of one row of a log to the time stamp of a later row.

    Args:
        record: The run as read from its log.
        start: The earlier row.
        end: The later row.

    Raises:
        InputError: The clock was set back between the two rows, or the seconds are not above 0.
    """
    first_line = start.window.line
    last_line = end.window.line
    windows_between = [window for window in record.windows if first_line <= window.line <= last_line]
    _refuse_clock_set_back(record, windows_between)  # the clock may go back in between, although the end is later
    seconds = end.end_s - start.end_s
    if seconds <= 0:
        says = "do not advance; they are too coarse, or the clock was set"
        raise InputError(f"{record.file}: the time stamps of lines {first_line} and {last_line} {says}")
    return seconds


def _row_of_number(record: Record, number: int, stamped: Sequence[StampedRow]) -> StampedRow:
    """Return the row at which to start, by the number that the user gave (--skip).

    Args:
        record: The run as read from its log, for the error.
        number: Which of `stamped`, counted from 1.
        stamped: The rows that have a time stamp and a known number of steps done, in the order of the log.

    Raises:
        InputError: The log has fewer such rows.
    """
    if number <= len(stamped):
        return stamped[number - 1]
    raise nothing_left(record, counted(number, "window"), _stamps_in_words(stamped))


def _row_ending_warm_up(record: Record, steps_to_skip: int, stamped: Sequence[StampedRow]) -> StampedRow:
    """Return the log row whose time stamp ends the warm-up, so that throughput is measured from there on.

    It is the row after exactly the steps of the warm-up. If there is none, it is the row that the log numbers so,
    counting from 0, or else the next row.

    Args:
        record: The run as read from its log. It tells whether the log numbers its first step 0 or 1.
        steps_to_skip: The length of the warm-up, such as 20.
        stamped: The rows that have a time stamp and a known number of steps done, in order. At least one.

    Raises:
        InputError: The warm-up is longer than the run.
    """
    after_these_steps = [row for row in stamped if row.steps_done == steps_to_skip]
    # In a log that counts its steps from 0, the row of step 20 mostly comes after 21 steps: those from 0 to 20.
    numbers_from_0 = record.first_step == 0
    of_this_number = [row for row in stamped if numbers_from_0 and row.window.step == steps_to_skip]
    later = [row for row in stamped if row.steps_done > steps_to_skip]
    candidates = [*after_these_steps, *of_this_number, *later]
    if not candidates:
        raise nothing_left(record, counted(steps_to_skip, "step"), _stamps_in_words(stamped))
    return candidates[0]


def _stamps_in_words(stamped: Sequence[StampedRow]) -> str:
    """Return how long a run is, for an error: `12 stamped rows, the last after 120 steps`."""
    return f"{counted(len(stamped), 'stamped row')}, the last after {counted(stamped[-1].steps_done, 'step')}"


def _refuse_clock_set_back(record: Record, windows: Sequence[Window]) -> None:
    """Raise an error if the clock was set back during some windows.

    Args:
        record: The run as read from its log, for the error.
        windows: The windows in the order of the log. A window is what one printed row covers.

    Raises:
        InputError: A window has an earlier time stamp than the window before it.
    """
    for before, row in rows_with_clock_set_back(windows):
        raise InputError(
            f"{record.file}: no figure, as the clock was set: the time stamp of line {row.line} lies before that of "
            f"line {before.line}; take a protocol that reads the rows' own times"
        )


def _figure_of_own_summary(record: Record) -> RunFigure:
    """Return the images/s that the log itself closes with, for all devices; for one if their number is not known.

    Args:
        record: The run as read from its log.

    Raises:
        InputError: The log closes with no figure of its own.
    """
    if record.summary_rate is None:
        says = "the log closes with no figure of its own; take a protocol that counts its rows"
        raise InputError(f"{record.file}: {says}")
    line = record.field_lines["summary_rate"]
    value = record.summary_rate * devices_per_printed_rate(record)  # times 1 if the log prints rates of all devices
    # The figure comes from one line. All windows are `chosen`, so that warnings can look in them for throttling.
    return RunFigure(file=record.file, value=value, first_line=line, last_line=line, chosen=record.windows)


# MLPerf benchmarks whose run_stop is the saving of the model that later proved good, while epochs went on.
TRAINING_ON_AFTER_STOP = ("minigo",)


def _run_time_figure(record: Record) -> RunFigure:
    """Return the minutes from the start of a run to its stop; infinite for a run that did not reach its target.

    A run has reached its target if the log has its stop, with the status "success".

    Args:
        record: The run as read from its log.

    Returns:
        The figure, with the lines of the start and of the stop. Without a stop, the last line of the log stands in.

    Raises:
        InputError: The log has no start, the run was resumed from a checkpoint (its log lacks the time before), or the
            clock was set during the run.
    """
    if record.run_start_s is None:
        raise InputError(f"{record.file}: no run_start in the log: the run's time is unknown")
    if record.is_resumed:
        why = "the run went on from a checkpoint, and this log lacks its time before"
        raise InputError(f"{record.file}: {why}: its time to train is unknown; give a run from the start")
    seconds = record.run_time_s  # None: the log has no run_stop
    if seconds is not None:
        _refuse_if_clock_was_set(record, seconds)
    did_not_converge = record.status != "success"
    minutes = math.inf if seconds is None or did_not_converge else seconds / 60
    return RunFigure(
        file=record.file,
        value=minutes,
        first_line=record.field_lines["run_start_s"],
        last_line=record.field_lines.get("run_stop_s", record.lines),
    )


def _refuse_if_clock_was_set(record: Record, run_s: float) -> None:
    """Raise an error if the times in a log show that the system's clock was set during the run.

    They show it in these cases:

    1. The stop is not after the start.
    2. The time stamp of a window is earlier than the one before it.
    3. All windows together take over 2 % (AGREES_WITHIN) longer than the run. This case is left out for the benchmarks
       of TRAINING_ON_AFTER_STOP, whose windows go on after their stop.

    Args:
        record: The run as read from its log. It has a start and a stop.
        run_s: The seconds from the run's start to its stop.

    Raises:
        InputError: One of these cases holds.
    """
    cause = "the clock was set, or the log edited"
    if run_s <= 0:
        raise InputError(f"{record.file}: run_stop is not after run_start: {cause}")
    _refuse_clock_set_back(record, record.windows)
    windows_s = total(record.windows, "seconds")
    take_longer_than_run = windows_s > run_s * (1 + AGREES_WITHIN)
    trains_on_after_its_stop = record.benchmark in TRAINING_ON_AFTER_STOP
    if take_longer_than_run and not trains_on_after_its_stop:
        raise InputError(
            f"{record.file}: run_start to run_stop are {six_digits(run_s)} s and the windows alone "
            f"{six_digits(windows_s)} s: {cause}"
        )
