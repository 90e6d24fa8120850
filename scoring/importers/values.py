"""JSON values of an MLLOG event as numbers and texts; None for what cannot be one."""

from typing import Any

from runlog.json_types import JsonObject
from runlog.run import real

MOST = 10**15  # no count, no time and no number of images lies beyond


def positive_amount(value: Any) -> float | None:
    """Return a time, a rate or a number of images; None for what cannot be one."""
    as_real = real(value)
    return as_real if as_real is not None and 1e-9 < as_real < MOST else None


def positive_whole(value: Any) -> int | None:
    """Return a whole number above 0; None for anything else."""
    return whole_or_zero(value) or None


def whole_or_zero(value: Any) -> int | None:
    """Return a whole number of 0 or more, as the number of a first epoch may be; None for anything else."""
    as_real = real(value)
    if as_real is None or as_real != int(as_real) or not 0 <= as_real < MOST:
        return None
    return int(as_real)


def text_or_none(value: Any) -> str | None:
    """Return a text; None for anything else."""
    return value if isinstance(value, str) else None


def table_or_none(value: Any) -> JsonObject | None:
    """Return a table; None for anything else."""
    return value if isinstance(value, dict) else None


def epoch_number(value: Any) -> int | None:
    """Return the number of an epoch; None for what cannot be one."""
    return value if isinstance(value, int) and abs(value) < MOST else None
