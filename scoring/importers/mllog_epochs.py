"""The epochs of an MLLOG log: what their marks, our `epoch_throughput` and other submitters' rates say of each."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runlog import schema
from runlog.run import Interval, Mark, Rate, Run, real
from scoring.importers.values import amount, epoch_number
from scoring.record import Window


@dataclass(kw_only=True)
class Epoch:
    """All that the log holds of one epoch; at least one of the three."""

    interval: Interval | None = None  # that stopped
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
        return amount((self.interval.stop.time_ms - self.interval.start.time_ms) / 1000)


def read_epochs(events: Run, *, samples: int | None, batch: int | None) -> list[Window]:
    """Return a window of each epoch that stopped or was given a rate; one that only started is none.

    `samples` are the images of an epoch, `batch` those of a step; both are None where the log does not say. The images
    and seconds of our own `epoch_throughput` have the last word.
    """
    windows = []
    for number, epoch in _by_number(events).items():
        seconds = epoch.marked_seconds
        images: float | None = None
        if epoch.measured:
            seconds = amount(epoch.measured.time_s)
            images = amount(epoch.measured.images)
        if images is None and seconds:
            images = samples

        stop = epoch.interval.stop if epoch.interval else None
        windows.append(
            Window(
                line=epoch.line,
                epoch=epoch_number(number),
                steps=int(images // batch) if images and batch else None,
                images=images,
                seconds=seconds,
                data_wait_s=real(epoch.measured.data_wait_s) if epoch.measured else None,
                printed_rate=amount(epoch.printed.images_per_s) if epoch.printed else None,
                end_s=stop.time_ms / 1000 if stop else None,
            )
        )
    return sorted(windows, key=_line_of)


def _by_number(events: Run) -> dict[Any, Epoch]:
    """Return the epochs by their numbers: first those that stopped, then those of which only a rate is known."""
    epochs: dict[Any, Epoch] = {}
    stops: list[Mark] = []
    for interval in events.epochs:
        if interval.stop:
            epochs.setdefault(interval.stop.number, Epoch()).interval = interval
            stops.append(interval.stop)
    stops.sort(key=_line_of)

    only_printed: list[tuple[Any, Rate]] = []
    for rate in events.rates:
        number = _stopped_before(rate, stops) if rate.number is None else rate.number
        if rate.key == schema.EPOCH_THROUGHPUT.key:
            epochs.setdefault(number, Epoch()).measured = rate
        elif amount(rate.images_per_s) is not None:
            only_printed.append((number, rate))

    for number, rate in only_printed:
        epoch = epochs.setdefault(number, Epoch())
        if epoch.printed is None:
            epoch.printed = rate
    return epochs


def _stopped_before(rate: Rate, stops: Sequence[Mark]) -> Any:
    """Return the number of the epoch that stopped last before a rate; None where none did."""
    before = bisect.bisect(stops, rate.line, key=_line_of)
    return stops[before - 1].number if before else None


def _line_of(item: Mark | Window) -> int:
    """Return the line of a mark or a window."""
    return item.line
