"""The batch, worked out from the rates and step times of a log's rows."""

import math
from typing import NamedTuple

from scoring.importers.evidence import Fact
from scoring.importers.text import positive
from scoring.record import Check

OTHER_SLACK = 1e-4  # share of rate x time by which the batch may lie beyond the rounding of the two printed figures


class PrintedFigure(NamedTuple):
    """A rate or a time as a row prints it."""

    value: float
    rounding: float  # by how much the true value may differ, as its digits end there


class RowBatch:
    """The batch, of one device or of all, as rate x step time. The printed digits of each row leave a range for it."""

    def __init__(self) -> None:
        self._least = 1.0  # a step has an image or more
        self._greatest = 1e12
        self._first_line: int | None = None  # of the rows that narrow the range

    @property
    def batch(self) -> int | None:
        """The batch: the only whole number in the range that all rows so far leave.

        None if the range holds several whole numbers, or none.
        """
        lowest = math.ceil(self._least)
        highest = math.floor(self._greatest)
        return lowest if lowest == highest else None

    def narrow(self, line: int, printed_rate: str | None, printed_time: str | None) -> None:
        """Narrow the range of possible batch sizes by the speed and the step time that one log row prints.

        The batch is images/s times seconds per step, but the printed figures are rounded, so that each row only gives a
        range: "160.0" and "0.100" leave 15.91 to 16.09. Several rows together may leave a single whole number.

        Args:
            line: Line of the log that prints the row.
            printed_rate: Images/s, as printed, or None. If it is missing or unusable, nothing changes.
            printed_time: Seconds of a step, as printed, or None. If it is missing or unusable, nothing changes.
        """
        rate = _figure(printed_rate)
        time_s = _figure(printed_time)
        if rate is None or time_s is None:
            return

        batch = rate.value * time_s.value
        slack = _slack_of_product(rate, time_s)
        self._least = max(self._least, batch - slack)
        self._greatest = min(self._greatest, batch + slack)
        if self._first_line is None:
            self._first_line = line

    def set_batch(self, field: str, facts_by_name: dict[str, Fact], checks: list[Check]) -> None:
        """Set the batch size of a log to the one that its rows imply, and check whether a configured size is the same.

        - The rows leave several possible sizes, or none: nothing changes.
        - No size is configured: that of the rows is set.
        - The configured size is that of the rows: it stays, and a check that agrees is added.
        - It is another one: that of the rows replaces it, and a check that does not agree is added.

        Args:
            field: "batch_per_device" if the rates are of one device, "batch_of_all" if the rates are of all devices.
            facts_by_name: Values that the log states, each with its line. Only the value of the key `field` may change.
            checks: The checks of the log.
        """
        batch_by_rows = self.batch  # the only whole number that rate x step time of all rows leaves, such as 16
        if batch_by_rows is None:
            return
        assert self._first_line is not None  # the first row that narrowed the range has set it
        fact_by_rows = Fact(batch_by_rows, self._first_line)
        configured = facts_by_name.get(field)
        if configured is None:
            facts_by_name[field] = fact_by_rows
            return

        sizes_agree = configured.value == batch_by_rows
        of = "a device" if field == "batch_per_device" else "over all devices"
        devices = facts_by_name.get("devices")
        if field == "batch_per_device" and devices is not None and not sizes_agree:
            of += _if_rate_is_of_all(configured.value, batch_by_rows, devices)
        ways = (
            f"line {configured.line}: the configuration, {configured.value}",
            f"line {self._first_line} and the other rows: rate x step time, {batch_by_rows} {of}",
        )
        checks.append(Check(what="batch", ways=ways, agree=sizes_agree))
        if not sizes_agree:
            facts_by_name[field] = fact_by_rows


def _if_rate_is_of_all(configured_batch: int, batch_by_rows: int, devices: Fact) -> str:
    """Return the words to add on a batch by the rows that is exactly the configured one of all devices, else "".

    A program made of the trainer whose logs the format is of may print the rate of all devices in the same words.

    Args:
        configured_batch: Images of a step on one device, by the configuration.
        batch_by_rows: The same by the rows, if their rate is that of one device.
        devices: Number of devices, with the line that states it.
    """
    if batch_by_rows != configured_batch * devices.value:
        return ""
    return (
        f"; or the rate is of all {devices.value} devices (line {devices.line}), and the figure {devices.value} times "
        "too high: see the program that printed it"
    )


def _slack_of_product(rate: PrintedFigure, time_s: PrintedFigure) -> float:
    """Return how many images the true rate x step time may lie above or below the product of the two printed figures.

    For 160.0 images/s and 0.100 s, the product is 16 images. Each figure may be off by half a step of its last digit:

        0.0005 s of the time            160 x 0.0005 = 0.08 images
        0.05 images/s of the rate       0.1 x 0.05 = 0.005 images
        OTHER_SLACK for other errors    16 x 0.0001 = 0.0016 images

    The result is the sum, 0.0866 images. What both roundings do together, 0.05 x 0.0005, is neglected.

    Args:
        rate: The printed images/s, and by how much they may be off.
        time_s: The printed seconds of a step, and by how much they may be off.
    """
    by_time = rate.value * time_s.rounding
    by_rate = time_s.value * rate.rounding
    by_other_errors = OTHER_SLACK * (rate.value * time_s.value)
    return by_time + by_rate + by_other_errors


def _figure(printed: str | None) -> PrintedFigure | None:
    """Return a printed rate or time with its rounding, which is half a step of its last digit: 1.25 and 0.005.

    Args:
        printed: The text, such as "1.25", or None if nothing is printed.

    Returns:
        The number and its rounding. None if nothing is printed, or if the text is not a positive number or has an
        exponent.
    """
    value = positive(printed)
    if printed is None or value is None:
        return None
    if "e" in printed.lower():  # with an exponent the last digit stands for another step
        return None
    decimals = len(printed.partition(".")[2])
    return PrintedFigure(value, rounding=0.5 * 10.0**-decimals)
