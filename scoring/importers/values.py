"""Convert JSON values of an MLLOG event to numbers, texts and tables; None for a value of another kind."""

from typing import Any

from runlog.json_types import JsonObject
from runlog.run import real

MOST = 10**15  # every count, time and number of images is below this


def positive_amount(value: Any) -> float | None:
    """Return `value` as a time, a rate or a number of images, or None if it is not a number from 1e-9 to MOST."""
    as_real = real(value)
    return as_real if as_real is not None and 1e-9 < as_real < MOST else None


def positive_whole(value: Any) -> int | None:
    """Return `value` as a whole number above 0, or None if it is not one."""
    return whole_or_zero(value) or None


def whole_or_zero(value: Any) -> int | None:
    """Return `value` as a whole number from 0 to MOST, or None if it is not one.

    A float counts as whole if nothing is behind its point: 3.0 -> 3. The number of a first epoch may be 0.
    """
    as_real = real(value)
    if as_real is None or as_real != int(as_real) or not 0 <= as_real < MOST:
        return None
    return int(as_real)


def text_or_none(value: Any) -> str | None:
    """Return `value` if it is a text that says something, else None: an empty one states nothing."""
    return value if isinstance(value, str) and value.strip() else None


def table_or_none(value: Any) -> JsonObject | None:
    """Return `value` if it is a table, else None."""
    return value if isinstance(value, dict) else None


def epoch_number(value: Any) -> int | None:
    """Return `value` if it is a whole number that an epoch may have, else None."""
    return value if isinstance(value, int) and abs(value) < MOST else None
