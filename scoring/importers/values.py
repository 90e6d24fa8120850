"""Convert JSON values of an MLLOG event to numbers, texts and tables; None for a value of another kind."""

from typing import Any

from runlog.json_types import JsonObject
from runlog.run import real

MAX_VALUE = 10**15  # every count, time and number of images is below this


def positive_amount(value: Any) -> float | None:
    """Return a logged value as a time, a rate or a number of images.

    Args:
        value: Any JSON value.

    Returns:
        The value as a float, or None if it is not a number between 1e-9 and MAX_VALUE.
    """
    as_real = real(value)
    return as_real if as_real is not None and 1e-9 < as_real < MAX_VALUE else None


def positive_whole(value: Any) -> int | None:
    """Return a logged value as a whole number above 0 and below MAX_VALUE, or None if it is not one.

    Args:
        value: Any JSON value. A float counts as whole if nothing is behind its point: 3.0 gives 3.
    """
    return whole_or_zero(value) or None


def whole_or_zero(value: Any) -> int | None:
    """Return a logged value as a whole number of at least 0 and below MAX_VALUE, or None if it is not one.

    This suits the number of an epoch: that of the first one may be 0.

    Args:
        value: Any JSON value. A float counts as whole if nothing is behind its point: 3.0 gives 3.
    """
    as_real = real(value)
    if as_real is None or as_real != int(as_real) or not 0 <= as_real < MAX_VALUE:
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
    return value if isinstance(value, int) and abs(value) < MAX_VALUE else None
