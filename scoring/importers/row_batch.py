"""The batch of one device, worked out from the rates and step times of a log's rows."""

import math

from scoring.importers.evidence import Fact
from scoring.importers.text import positive
from scoring.record import Check

OTHER_SLACK = 1e-4  # share of rate x time that may be off beyond the rounding of the two


class RowBatch:
    """The batch of one device as rate x step time. The printed digits of each row leave a range for it."""

    def __init__(self) -> None:
        self._least = 0.0
        self._greatest = 1e12
        self._first_line = 0  # of the rows that narrow the range; 0 before the first one

    @property
    def batch(self) -> int | None:
        """The batch of one device: the only whole number in the range that all rows so far leave.

        None if the range holds several whole numbers, or none.
        """
        lowest = math.ceil(self._least)
        highest = math.floor(self._greatest)
        return lowest if lowest == highest else None

    def narrow(self, line: int, printed_rate: str | None, printed_time: str | None) -> None:
        """Narrow the range of possible batches by the rate and the step time of one row, as printed on `line`.

        The batch is rate x time, as exactly as the printed digits say: a time of `0.25` may be 0.245 to 0.255. A batch
        that one row excludes stays excluded. A row changes nothing if it lacks the rate or the time, or if one of them
        is printed with an exponent: its last digit then says nothing of its rounding.
        """
        if printed_rate is None or printed_time is None:
            return
        # The last digit of a figure with an exponent says nothing of its rounding.
        has_exponent = "e" in printed_rate or "e" in printed_time
        rate = positive(printed_rate)
        time_s = positive(printed_time)
        if has_exponent or rate is None or time_s is None:
            return

        product = rate * time_s
        rounding_of_time = rate * _half_of_last_digit(printed_time)
        rounding_of_rate = time_s * _half_of_last_digit(printed_rate)
        slack = rounding_of_time + rounding_of_rate + OTHER_SLACK * product
        self._least = max(self._least, product - slack)
        self._greatest = min(self._greatest, product + slack)
        self._first_line = self._first_line or line

    def set_batch(self, facts_by_name: dict[str, Fact], checks: list[Check]) -> None:
        """Set the fact `batch_per_device` in `facts_by_name` to the batch that the rows imply.

        The log's configuration may state a batch too. Then a check of whether the two agree is added to `checks`. If
        they differ, the rows' batch replaces the configured one. Nothing changes if the rows imply no single batch.
        """
        batch_by_rows = self.batch
        if batch_by_rows is None:
            return

        configured = facts_by_name.get("batch_per_device")
        if configured is not None:
            ways = (
                f"line {configured.line}: the configuration, {configured.value}",
                f"line {self._first_line} and the other rows: rate x step time, {batch_by_rows} a device",
            )
            checks.append(Check(what="batch", ways=ways, agree=configured.value == batch_by_rows))
        if configured is None or configured.value != batch_by_rows:
            facts_by_name["batch_per_device"] = Fact(batch_by_rows, self._first_line)


def _half_of_last_digit(printed: str) -> float:
    """Return half of what one step of the last printed digit is worth, which is the rounding error: `1.25` -> 0.005."""
    decimals = len(printed.partition(".")[2])
    return 0.5 * 10.0**-decimals
