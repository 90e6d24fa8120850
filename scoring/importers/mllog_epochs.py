"""The epochs of an MLLOG log: what their marks, our `epoch_throughput` and other submitters' rates say of each."""

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
    """All that the log holds of one epoch; at least one of the three."""

    interval: Interval | None = None  # its start, if it is logged, and its stop
    measured: Rate | None = None  # our epoch_throughput
    printed: Rate | None = None  # the first rate of another submitter that says one

    @property
    def line(self) -> int:
        """The last line of its stop and its measurement, else that of its rate."""
        lines = []
        if self.interval and self.interval.stop:
            lines.append(self.interval.stop.line)
        if self.measured:
            lines.append(self.measured.line)
        if not lines and self.printed:
            lines.append(self.printed.line)
        return max(lines)

    @property
    def marked_seconds(self) -> float | None:
        """Seconds from its start to its stop; None where one of the two is missing."""
        if self.interval is None or self.interval.start is None or self.interval.stop is None:
            return None
        return positive_amount((self.interval.stop.time_ms - self.interval.start.time_ms) / 1000)

    @property
    def end_s(self) -> float | None:
        """When it stopped, in seconds; None where its stop is not logged."""
        if self.interval is None or self.interval.stop is None:
            return None
        return self.interval.stop.time_ms / 1000

    @property
    def printed_rate(self) -> float | None:
        """The images/s that another submitter prints of it; None where none does."""
        return positive_amount(self.printed.images_per_s) if self.printed else None


def read_epochs(events: Run, *, samples: int | None, batch: int | None) -> list[Window]:
    """Return a window for each epoch that stopped or of which a rate is logged, in the order of their lines.

    `samples` are the images of an epoch, `batch` those of a step; both are None where the log does not say. Where an
    epoch has an `epoch_throughput`, an event of our own logs, its time and images are those of the event. The time of
    any other epoch is that from its start to its stop. An epoch that has a time but no images is given `samples`.
    """
    windows = []
    for number, epoch in _epochs_by_number(events).items():
        seconds = epoch.marked_seconds
        images: float | None = None
        wait_s: float | None = None
        if epoch.measured:
            seconds = positive_amount(epoch.measured.time_s)
            images = positive_amount(epoch.measured.images)
            wait_s = real(epoch.measured.data_wait_s)
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

    Epochs that only started are left out. A rate that does not say its epoch is of the epoch that stopped last before
    it. Of several rates that another submitter prints for one epoch the first counts; those that are no numbers do not.
    """
    epochs: dict[Any, Epoch] = {}
    stops: list[Mark] = []
    for interval in events.epochs:
        if interval.stop:
            epochs.setdefault(interval.stop.number, Epoch()).interval = interval
            stops.append(interval.stop)
    stops.sort(key=_line_of)

    printed_rates: list[tuple[Any, Rate]] = []
    for rate in events.rates:
        number = _stopped_before(rate, stops) if rate.number is None else rate.number
        if rate.key == schema.EPOCH_THROUGHPUT.key:
            epochs.setdefault(number, Epoch()).measured = rate  # our own event: it has images and time
        elif positive_amount(rate.images_per_s) is not None:
            printed_rates.append((number, rate))

    for number, rate in printed_rates:  # last, so that an epoch of which only a rate is known comes after the others
        epoch = epochs.setdefault(number, Epoch())
        if epoch.printed is None:
            epoch.printed = rate
    return epochs


def _stopped_before(rate: Rate, stops: Sequence[Mark]) -> Any:
    """Return the number of the epoch that stopped last before a rate; None where none did."""
    stops_before = bisect.bisect(stops, rate.line, key=_line_of)
    if stops_before == 0:
        return None
    return stops[stops_before - 1].number


def _line_of(item: Mark | Window) -> int:
    """Return the line of a mark or a window."""
    return item.line
