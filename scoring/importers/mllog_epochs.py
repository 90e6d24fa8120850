"""The epochs of an MLLOG log, put together from three kinds of events.

- Intervals: the starts and stops of epochs.
- Own rates: the events `epoch_throughput`, which our own program logs.
- Foreign rates: the events `throughput` and `tracked_stats`, which the programs of other submitters log.
"""

import bisect
from collections.abc import Sequence
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
    foreign_rate: Rate | None = None  # the first one that is positive

    @property
    def line(self) -> int:
        """The later line of its stop and its own rate. If it has neither, the line of its foreign rate."""
        lines = []
        if self.interval and self.interval.stop:
            lines.append(self.interval.stop.line)
        if self.own_rate:
            lines.append(self.own_rate.line)
        if not lines and self.foreign_rate:
            lines.append(self.foreign_rate.line)
        return max(lines)

    @property
    def marked_seconds(self) -> float | None:
        """Seconds from its start to its stop, or None if one of the two is missing."""
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
        """The images/s of its foreign rate, or None without one."""
        return positive_amount(self.foreign_rate.images_per_s) if self.foreign_rate else None


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

    Two kinds of rates may be logged for an epoch. This project's program logs an own rate, which has seconds, images
    and wait. The program of another submitter may log a foreign rate, which has images/s only. The figures are

    - seconds and wait: those of the own rate. Without an own rate, the seconds from the start to the stop of the epoch,
      and no wait.
    - images: those of the own rate. If these are not known, an epoch with a number and known seconds has `samples`
      images.
    - steps: the images divided by `batch`, rounded down.
    - printed images/s: those of the foreign rate.

    A figure that is not known is None. For example, only the start and the stop of epoch 3 are logged, 100 s apart.
    With 50,000 `samples` and a `batch` of 256, the figures are 100 s, 50,000 images and 195 steps.

    Args:
        number: Number of the epoch as it is logged, of any type; None if the program logs none.
        epoch: The start, the stop and the rates that are logged for the epoch.
        samples: Number of images in an epoch; None if not stated.
        batch: Images of a step over all devices; None if not stated.
    """
    images: float | None = None
    wait_s: float | None = None
    if epoch.own_rate:
        seconds = positive_amount(epoch.own_rate.time_s)
        images = positive_amount(epoch.own_rate.images)
        wait_s = real(epoch.own_rate.data_wait_s)
    else:
        seconds = epoch.marked_seconds  # from start to stop; None if one of the two is missing

    # A start and a stop without a number may be of a part: some programs count images in place of epochs.
    is_whole_epoch = number is not None
    if images is None and seconds and is_whole_epoch:
        images = samples
    steps: int | None = None
    if images and batch:
        steps = int(images // batch)

    return Window(
        line=epoch.line,
        epoch=epoch_number(number),  # None for anything but an int
        steps=steps,
        images=images,
        seconds=seconds,
        data_wait_s=wait_s,
        printed_rate=epoch.printed_rate,  # of the foreign rate
        end_s=epoch.end_s,
    )


def _epochs_by_number(events: Run) -> dict[Any, Epoch]:
    """Collect the logged start, stop and rates of each epoch that stopped or that has a rate.

    A rate is own if this project's program logged it, and foreign if another submitter's program did.

    Args:
        events: The events of the run.

    Returns:
        What is logged of each epoch, by the number of the epoch. A number may be any JSON value, as the program logged
        it, and is None if the program logged none.
    """
    interval_by_number = _intervals_by_number(events)
    rates_by_number = _rates_by_number(events)
    numbers = dict.fromkeys([*interval_by_number, *rates_by_number])  # each once, in this order
    epochs = {}
    for number in numbers:
        rates_of_epoch = rates_by_number.get(number, [])
        epochs[number] = Epoch(
            interval=interval_by_number.get(number),
            own_rate=_own_rate(rates_of_epoch),
            foreign_rate=_foreign_rate(rates_of_epoch),
        )
    return epochs


def _intervals_by_number(events: Run) -> dict[Any, Interval]:
    """Return one interval, a start and a stop, for each epoch that stopped, by the number of the epoch.

    Two ranks may log the same epoch, so several intervals may have the same number. From the four events "start, start,
    stop, stop" of epoch 1, `events.epochs` has three intervals, and the result is {1: B}:

        A: the first start, without a stop    skipped: it has no stop
        B: the second start, the first stop   taken
        C: the second stop, without a start   skipped: B has a start

    Of several intervals with a stop, the last one is taken. But an interval without a start never replaces an interval
    with a start.

    Args:
        events: The events of the run.

    Returns:
        The intervals by the number of their epoch as it is logged. Each interval has a stop. The start is None if the
        log has no start of the epoch before a stop.
    """
    interval_by_number: dict[Any, Interval] = {}
    for interval in events.epochs:
        if interval.stop is None:
            continue
        number = interval.stop.number
        earlier = interval_by_number.get(number)
        earlier_has_start = earlier is not None and earlier.start is not None
        if interval.start is None and earlier_has_start:
            continue  # as for C in the example: the earlier interval has more
        interval_by_number[number] = interval
    return interval_by_number


def _rates_by_number(events: Run) -> dict[Any, list[Rate]]:
    """Group the logged rates (images/s) of a run by the number of the epoch to which each rate belongs.

    This project's program logs own rates, with the number of an epoch. Other programs log foreign rates, with the
    number of an epoch or of a training step. `_foreign_numbers_are_epochs` decides for all foreign rates of the run
    together. In a run of 3 epochs, the foreign numbers 1, 2 and 3 are epochs. But if the foreign numbers are 1, 2 and
    500, all of them are steps, because there is no epoch 500. A rate belongs to

        own rate with a number                  the epoch with this number
        foreign rate with a number, if epochs   the epoch with this number
        foreign rate with a number, if steps    the epoch that started or stopped last before the rate
        any rate without a number               the epoch that started or stopped last before the rate

    Args:
        events: The events of the run.

    Returns:
        Rates by the number of their epoch, as it is logged. The rates of an epoch are in the order of `events.rates`.
        The key None has the rates without an epoch number that come before all epochs, or after an epoch that is logged
        without a number. Foreign rates that are not positive are left out.
    """
    marks = _marks_of_epochs(events)  # the starts and stops of the epochs
    usable = [rate for rate in events.rates if _is_usable(rate)]  # own, or positive images/s
    foreign_numbers_are_epochs = _foreign_numbers_are_epochs(usable, marks)
    rates_by_number: dict[Any, list[Rate]] = {}
    for rate in usable:
        number_is_epoch = _is_own(rate) or foreign_numbers_are_epochs
        if rate.number is not None and number_is_epoch:
            epoch_number_of_rate = rate.number
        else:
            epoch_number_of_rate = _number_of_last_mark(rate, marks)  # of the last start or stop before the rate
        rates_by_number.setdefault(epoch_number_of_rate, []).append(rate)
    return rates_by_number


def _marks_of_epochs(events: Run) -> list[Mark]:
    """Return the starts and the stops of all epochs, in the order of their lines.

    Args:
        events: The events of the run.
    """
    marks = []
    for interval in events.epochs:
        marks += [mark for mark in (interval.start, interval.stop) if mark is not None]
    return sorted(marks, key=_line_of)


def _foreign_numbers_are_epochs(rates: Sequence[Rate], marks: Sequence[Mark]) -> bool:
    """Return whether the numbers that stand with foreign rates are epochs (True) or training steps (False).

    A foreign rate is a rate (images/s) that was not logged by this project's program. With such a rate, a program may
    log the number of the epoch, or the number of training steps so far. If the log has the epochs 1 and 2,

        foreign rates with the numbers 1 and 2    -> True
        foreign rates with the numbers 1 and 500  -> False: there is no epoch 500

    Args:
        rates: The logged rates. Two kinds are ignored: rates without a number, and the rates of this project's program,
            whose numbers are always epochs.
        marks: The starts and stops of all epochs, each with the number of its epoch.

    Returns:
        True if each number of a foreign rate is that of an epoch in the log. Also True if no foreign rate has a number,
        or if the log has no starts and stops of epochs to compare with.
    """
    if not marks:
        return True  # without logged epochs, nothing can show that the numbers are steps
    epoch_numbers = {mark.number for mark in marks}
    foreign_numbers = {rate.number for rate in rates if rate.number is not None and not _is_own(rate)}
    return foreign_numbers <= epoch_numbers


def _is_usable(rate: Rate) -> bool:
    """Return whether a logged rate counts: it has positive images/s, or this project's program logged it.

    The event of this project's program also has the images and the time of the epoch.

    Args:
        rate: The rate.
    """
    return _is_own(rate) or positive_amount(rate.images_per_s) is not None


def _own_rate(rates_of_epoch: Sequence[Rate]) -> Rate | None:
    """Return the last rate of an epoch that this project's program logged, or None if there is none.

    Args:
        rates_of_epoch: All rates that are logged for the epoch.
    """
    own_rates = [rate for rate in rates_of_epoch if _is_own(rate)]
    return own_rates[-1] if own_rates else None


def _foreign_rate(rates_of_epoch: Sequence[Rate]) -> Rate | None:
    """Return the first rate of an epoch that another program than this project's logged, or None if there is none.

    Args:
        rates_of_epoch: All rates that are logged for the epoch.
    """
    foreign_rates = [rate for rate in rates_of_epoch if not _is_own(rate)]
    return foreign_rates[0] if foreign_rates else None


def _is_own(rate: Rate) -> bool:
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
        marks: The starts and stops of all epochs, in the order of their lines.

    Returns:
        The number as it is logged. None if the mark has no number, or if no mark comes before the rate.
    """
    count_of_marks_before = bisect.bisect(marks, rate.line, key=_line_of)
    if count_of_marks_before == 0:
        return None
    last_mark_before = marks[count_of_marks_before - 1]
    return last_mark_before.number


def _line_of(item: Mark | Window) -> int:
    """Return the line of a mark or a window."""
    return item.line
