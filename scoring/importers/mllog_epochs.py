"""The epochs of an MLLOG log, put together from three kinds of events.

They are the starts and stops of epochs, the rates of our own program (`epoch_throughput`), and foreign rates: those
that other submitters print (`throughput`, `tracked_stats`).
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
    own_rate: Rate | None = None  # our epoch_throughput, which also has the images and the time
    foreign_rate: Rate | None = None  # the first rate that another submitter prints of it

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
    """Return a window for each epoch that stopped or that has a rate, in the order of their lines.

    `samples` are the images of an epoch and `batch` those of a step; each is None if the log does not state it. Seconds
    and images come from the first of these that the log has:

    - the epoch's `epoch_throughput`, an event of our own logs;
    - the epoch's start and stop, which give the seconds.

    An epoch with seconds but without images of its own gets `samples` images. Steps = images / batch.
    """
    windows = []
    for number, epoch in _epochs_by_number(events).items():
        seconds = epoch.marked_seconds
        images: float | None = None
        wait_s: float | None = None
        if epoch.own_rate:
            seconds = positive_amount(epoch.own_rate.time_s)
            images = positive_amount(epoch.own_rate.images)
            wait_s = real(epoch.own_rate.data_wait_s)
        if images is None and seconds:
            images = samples
        steps: int | None = None
        if images and batch:
            steps = int(images // batch)

        windows.append(
            Window(
                line=epoch.line,
                epoch=epoch_number(number),
                steps=steps,
                images=images,
                seconds=seconds,
                data_wait_s=wait_s,
                printed_rate=epoch.printed_rate,
                end_s=epoch.end_s,
            )
        )
    return sorted(windows, key=_line_of)


def _epochs_by_number(events: Run) -> dict[Any, Epoch]:
    """Return what the log holds of each epoch, by the epoch's number as it is logged.

    - An epoch that started but did not stop, and has no rate, is left out.
    - A rate without an epoch number belongs to the last epoch that stopped before it.
    - If several foreign rates are of one epoch, the first counts. Foreign rates that are not positive numbers do not.
    - If several rates of our own are of one epoch, the last counts.
    """
    epochs: dict[Any, Epoch] = {}
    stops: list[Mark] = []
    for interval in events.epochs:
        if interval.stop:
            epochs.setdefault(interval.stop.number, Epoch()).interval = interval
            stops.append(interval.stop)
    stops.sort(key=_line_of)

    foreign_rates: list[tuple[Any, Rate]] = []
    for rate in events.rates:
        number = _stopped_before(rate, stops) if rate.number is None else rate.number
        if rate.key == schema.EPOCH_THROUGHPUT.key:
            epoch = epochs.setdefault(number, Epoch())
            epoch.own_rate = rate
        elif positive_amount(rate.images_per_s) is not None:
            foreign_rates.append((number, rate))

    for number, rate in foreign_rates:  # last, so that epochs that have only a foreign rate come after the others
        epoch = epochs.setdefault(number, Epoch())
        if epoch.foreign_rate is None:
            epoch.foreign_rate = rate
    return epochs


def _stopped_before(rate: Rate, stops: Sequence[Mark]) -> Any:
    """Return the number of the last epoch that stopped before a rate, or None if none did. `stops` are in order."""
    stops_before = bisect.bisect(stops, rate.line, key=_line_of)
    if stops_before == 0:
        return None
    return stops[stops_before - 1].number


def _line_of(item: Mark | Window) -> int:
    """Return the line of a mark or a window."""
    return item.line
