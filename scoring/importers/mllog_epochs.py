"""The epochs of an MLLOG log, put together from three kinds of events.

- Intervals: the starts and stops of epochs.
- Own rates: the events `epoch_throughput`, which this project's program logs.
- Others' rates: the events `throughput` and `tracked_stats`, which the programs of other submitters log.
"""

import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from runlog import schema
from runlog.run import Interval, Mark, Rate, Run, real
from scoring.importers.values import epoch_number, positive_amount
from scoring.record import Window


@dataclass(kw_only=True)
class Epoch:
    """All that the log holds of one epoch. At least one of the three is there."""

    interval: Interval | None = None  # its stop, and its start if that is logged
    own_rate: Rate | None = None  # the last one, which also has the images and the time
    others_rate: Rate | None = None  # the first one that is positive

    @property
    def line(self) -> int:
        """The later line of its stop and its own rate. If it has neither, the line of its other rate."""
        lines = []
        if self.interval and self.interval.stop:
            lines.append(self.interval.stop.line)
        if self.own_rate:
            lines.append(self.own_rate.line)
        if not lines and self.others_rate:
            lines.append(self.others_rate.line)
        return max(lines)

    @property
    def marked_seconds(self) -> float | None:
        """Seconds from its start to its stop. None if one of them is missing, or if the clock was set back between."""
        if self.interval is None or self.interval.start is None or self.interval.stop is None:
            return None
        return positive_amount((self.interval.stop.time_ms - self.interval.start.time_ms) / 1000)

    @property
    def end_s(self) -> float | None:
        """When it stopped, in seconds, or None if its stop is not logged."""
        if self.interval is None or self.interval.stop is None:
            return None
        return self.interval.stop.time_ms / 1000

    @property
    def printed_rate(self) -> float | None:
        """The images/s that another program than this project's logged, or None."""
        return positive_amount(self.others_rate.images_per_s) if self.others_rate else None


def read_epochs(events: Run, *, samples: int | None, batch: int | None) -> list[Window]:
    """Return the training figures of the epochs, in the order of their lines. An epoch needs an end or a logged rate.

    Args:
        events: The events of the run.
        samples: Number of images in an epoch, or None if the log does not state it.
        batch: Images of a step over all devices, or None if the log does not state it.
    """
    epochs = _epochs_by_number(events)
    windows = [_window_of_epoch(number, epoch, samples, batch) for number, epoch in epochs.items()]
    return sorted(windows, key=_line_of)


def _window_of_epoch(number: Any, epoch: Epoch, samples: int | None, batch: int | None) -> Window:
    """Return the training figures of one epoch: seconds, images, steps, wait for input and printed images/s.

    This project's program logs seconds, images and wait with its own rate. In logs of other programs, the seconds are
    those from start to stop, and the images are `samples`: a start and a stop 100 s apart, with 50,000 `samples` and a
    `batch` of 256, give 100 s, 50,000 images and 195 steps. A figure that is not known is None.

    Args:
        number: Number of the epoch as it is logged, of any type; None if the program logs none. Without a number,
            `samples` are not taken, because start and stop may be those of a part of an epoch.
        epoch: The start, the stop and the rates that are logged for the epoch.
        samples: Number of images in an epoch; None if not stated.
        batch: Images of a step over all devices; None if not stated.
    """
    images: float | None = None
    wait_s: float | None = None
    if epoch.own_rate is not None:  # this project's program logs all three with its rate
        # None for a value that is not a number, and of seconds and images also for 0 or less.
        seconds = positive_amount(epoch.own_rate.time_s)
        images = positive_amount(epoch.own_rate.images)
        wait_s = real(epoch.own_rate.data_wait_s)
    else:
        seconds = epoch.marked_seconds  # from start to stop; None if not known

    # Some programs count images in place of epochs. Their starts and stops, of parts of an epoch, have no number.
    is_whole_epoch = number is not None
    if images is None and seconds and is_whole_epoch:  # None: no own rate, or one without images
        images = samples
    steps = int(images // batch) if images and batch else None  # whole batches

    return Window(
        line=epoch.line,
        epoch=epoch_number(number),  # None for anything but an int
        steps=steps,
        images=images,
        seconds=seconds,
        data_wait_s=wait_s,
        printed_rate=epoch.printed_rate,  # by another program
        end_s=epoch.end_s,
    )


def _epochs_by_number(events: Run) -> dict[Any, Epoch]:
    """Return the start, the stop and the rates (images/s) of each epoch that stopped or that has a rate.

    Own rates are those that this project's program logs, such as `epoch_throughput`. Others' rates are those of other
    submitters' programs, such as `throughput` or `tracked_stats`.

    Args:
        events: The events of the run.

    Returns:
        The epochs by their number as the program logged it: any JSON value, or None if it logged none.
    """
    marks = _marks_of_epochs(events)  # all starts and stops: a rate without an epoch is of the last one before it
    interval_by_number = _intervals_by_number(events)  # start and stop
    own_rate_by_number = _own_rate_by_number(events.rates, marks)  # the last one of an epoch
    others_rate_by_number = _others_rate_by_number(events.rates, marks)  # the first positive one of an epoch
    # An epoch may be in one dictionary only. Each number once, in this order.
    numbers = dict.fromkeys([*interval_by_number, *own_rate_by_number, *others_rate_by_number])
    epochs = {}
    for number in numbers:
        epochs[number] = Epoch(
            interval=interval_by_number.get(number),
            own_rate=own_rate_by_number.get(number),
            others_rate=others_rate_by_number.get(number),
        )
    return epochs


def _intervals_by_number(events: Run) -> dict[Any, Interval]:
    """Return the start and the stop of each epoch that stopped, by the number of the epoch.

    Args:
        events: The events of the run. Two ranks may log one epoch as "start, start, stop, stop". Then `events.epochs`
            has three intervals of it: a start alone, a start with a stop, and a stop alone. The second one is returned.

    Returns:
        The intervals, each with a stop. Of several with one number, it is the last that also has a start. If none has
        a start, it is the last one.
    """
    interval_by_number: dict[Any, Interval] = {}
    for interval in events.epochs:
        if interval.stop is None:
            continue
        number = interval.stop.number
        found = interval_by_number.get(number)  # an earlier interval of this epoch; None: there is none
        only_found_has_start = found is not None and found.start is not None and interval.start is None
        if not only_found_has_start:
            interval_by_number[number] = interval
    return interval_by_number


def _own_rate_by_number(rates: Sequence[Rate], marks: Sequence[Mark]) -> dict[Any, Rate]:
    """Return the last rate of each epoch that this project's program logged, by the number of the epoch.

    Args:
        rates: All logged rates.
        marks: The starts and stops of all epochs, in the order of the log.

    Returns:
        The rates. A rate that states no number has that of the last start or stop before it.
    """
    rate_by_number: dict[Any, Rate] = {}
    for rate in rates:
        if not _is_of_this_project(rate):
            continue
        number = _number_of_last_mark(rate, marks) if rate.number is None else rate.number
        rate_by_number[number] = rate  # in place of an earlier one
    return rate_by_number


def _others_rate_by_number(rates: Sequence[Rate], marks: Sequence[Mark]) -> dict[Any, Rate]:
    """Return the first positive rate of each epoch that another submitter's program logged, by the number of the epoch.

    The number that a program logs with a rate may be that of an epoch or that of a training step. Some log none. A rate
    without its epoch's number is taken to be of the epoch that started or stopped last before it.

    Args:
        rates: All logged rates.
        marks: The starts and stops of all epochs, in the order of the log.

    Returns:
        The rates by the number of their epoch, which is any JSON value, as logged. It is None for a rate that does not
        state its epoch if the last start or stop before the rate has no number, or if there is none.
    """
    others = [
        rate for rate in rates if not _is_of_this_project(rate) and positive_amount(rate.images_per_s) is not None
    ]
    stated_numbers = {rate.number for rate in others if rate.number is not None}
    # A single number that is not an epoch of the log, such as 500, makes all of them steps.
    state_epochs = _are_epochs(stated_numbers, marks)  # False: they state training steps
    rate_by_number: dict[Any, Rate] = {}
    for rate in others:
        states_its_epoch = rate.number is not None and state_epochs
        number = rate.number if states_its_epoch else _number_of_last_mark(rate, marks)
        if number not in rate_by_number:  # the first rate of an epoch counts
            rate_by_number[number] = rate
    return rate_by_number


def _marks_of_epochs(events: Run) -> list[Mark]:
    """Return the starts and the stops of all epochs, in the order of the log.

    Args:
        events: The events of the run.
    """
    marks = []
    for interval in events.epochs:
        marks += [mark for mark in (interval.start, interval.stop) if mark is not None]
    return sorted(marks, key=_offset_of)


def _are_epochs(numbers: Collection[Any], marks: Sequence[Mark]) -> bool:
    """Return whether the numbers that a program logs with its rates are epochs (True) or training steps (False).

    If the log has the epochs 1 and 2, the numbers 1 and 2 are epochs. The numbers 1 and 500 are steps, because there is
    no epoch 500.

    Args:
        numbers: The numbers.
        marks: The starts and stops of all epochs. Without any, the numbers are taken for epochs.
    """
    epochs_of_log = {mark.number for mark in marks}
    return not marks or all(number in epochs_of_log for number in numbers)


def _is_of_this_project(rate: Rate) -> bool:
    """Return whether this project's program logged a rate, by the name of the event.

    Args:
        rate: The rate.
    """
    return rate.key == schema.EPOCH_THROUGHPUT.key


def _number_of_last_mark(rate: Rate, marks: Sequence[Mark]) -> Any:
    """Return the epoch number of the last mark before a logged rate. A mark is the start or the stop of an epoch.

    A stop counts, because a program may log the rate of an epoch right after the stop of the epoch:

        epoch_start 1
        epoch_stop 1
        a rate          -> 1
        epoch_start 2
        a rate          -> 2

    Args:
        rate: The rate. Its own number, if it has one, is not used.
        marks: The starts and stops of all epochs, in the order of the log.

    Returns:
        The number as it is logged. None if the mark has no number, or if no mark comes before the rate.
    """
    count_of_marks_before = bisect.bisect(marks, rate.offset, key=_offset_of)
    if count_of_marks_before == 0:
        return None
    last_mark_before = marks[count_of_marks_before - 1]
    return last_mark_before.number


def _line_of(window: Window) -> int:
    """Return the line of a window."""
    return window.line


def _offset_of(mark: Mark) -> int:
    """Return where in the log a mark's event starts, in bytes."""
    return mark.offset
