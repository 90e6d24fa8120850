"""The batch of one device by a log's printed rows."""

import math

from scoring.importers.evidence import Fact
from scoring.importers.text import positive
from scoring.record import Check

OTHER_SLACK = 1e-4  # of the product, beyond what the rounding of its factors explains


class RowBatch:
    """The batch of one device as rate x step time, of which each row's printed digits leave a range."""

    def __init__(self) -> None:
        self._least = 0.0
        self._greatest = 1e12
        self._first_line = 0

    @property
    def images(self) -> int | None:
        """The only whole number that all rows so far leave; None where they leave several, or none."""
        low = math.ceil(self._least)
        return low if low == math.floor(self._greatest) else None

    def narrow(self, line: int, printed_rate: str | None, printed_time: str | None) -> None:
        """Narrow the range of possible batches by one row's rate and step time, both as printed on `line`.

        The batch is rate x time, as exact as the printed digits: a time of `0.25` may be 0.245 to 0.255. What lies
        outside of the range that a row leaves is excluded for good. A row that lacks one of the two changes nothing,
        and neither does one that prints an exponent, whose last digit is not that of the number.
        """
        rate = positive(printed_rate)
        time_s = positive(printed_time)
        has_exponent = "e" in f"{printed_rate}{printed_time}"
        if rate is None or time_s is None or has_exponent:
            return

        product = rate * time_s
        rounding_of_time = rate * _half_of_last_digit(printed_time)
        rounding_of_rate = time_s * _half_of_last_digit(printed_rate)
        slack = rounding_of_time + rounding_of_rate + OTHER_SLACK * product
        self._least = max(self._least, product - slack)
        self._greatest = min(self._greatest, product + slack)
        self._first_line = self._first_line or line  # of the rows that tell a range

    def set_batch(self, said: dict[str, Fact], checks: list[Check]) -> None:
        """Set `batch_per_device` in `said`, what the log states, to the batch that the rows tell, if they tell one.

        A configuration may state the batch too. Then a check of whether the two agree is added to `checks`, and where
        they do not, the rows' batch takes the place of the configured one.
        """
        from_rows = self.images
        if from_rows is None:
            return

        configured = said.get("batch_per_device")
        if configured is not None:
            ways = (
                f"line {configured.line}: the configuration, {configured.value}",
                f"line {self._first_line} and the other rows: rate x step time, {from_rows} a device",
            )
            checks.append(Check(what="batch", ways=ways, agree=configured.value == from_rows))
        if configured is None or configured.value != from_rows:
            said["batch_per_device"] = Fact(from_rows, self._first_line)


def _half_of_last_digit(printed: str | None) -> float:
    """Return half of the unit of the last printed digit: 0.005 of `1.25`."""
    digits = len(str(printed).partition(".")[2])
    return 0.5 * 10.0**-digits
