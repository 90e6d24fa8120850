"""Figures as texts for messages and tables."""

from typing import Literal


def six_digits(value: float) -> str:
    """Return a figure as text with at most six significant digits: 1234.5678 -> `1234.57`, 0.5 -> `0.5`."""
    return significant(value, digits=6)


def four_digits(value: float) -> str:
    """Return a figure as text with at most four significant digits: 45.678 -> `45.68`, 0.45678 -> `0.4568`."""
    return significant(value, digits=4)


def significant(value: float, *, digits: int) -> str:
    """Return a figure as text with at most a given number of significant digits.

    Args:
        value: The figure, such as 1234.5678.
        digits: The most digits: 3 give "1.23e+03", 6 give "1234.57".
    """
    return format(value, f".{digits}g")


def percent(share: float, *, decimals: int = 1) -> str:
    """Return a share as text in percent, such as "3.1%".

    Args:
        share: The share, such as 0.0312.
        decimals: The number of digits behind the decimal point; 0 gives "3%".
    """
    return format(share, f".{decimals}%")


def percent_above(share: float, limit: float) -> str:
    """Return a share in percent, with enough decimals to show that it is above a limit.

    For the limit 0.02: 0.0312 -> "3.1%", and 0.020004 -> "2.0004%", because "2.0%" would look like the limit.

    Args:
        share: The share, such as 0.0312, above `limit`.
        limit: The limit as a share, such as 0.02.

    Returns:
        The text, with at least one decimal.
    """
    for decimals in range(1, 15):
        text = percent(share, decimals=decimals)
        if float(text.removesuffix("%")) > 100 * limit:
            return text
    return percent(share)  # share and limit differ by less than a rounding error


def beside_limit(value: float, limit: float | None, *, kind: Literal["f", "g"]) -> str:
    """Return a figure with four digits, or with as many more as show on which side of a limit it lies.

    For the limit 0.759: 0.7582 -> "0.7582", and 0.75898 -> "0.75898", because "0.759" would look like the limit.

    Args:
        value: The figure.
        limit: What it is compared with, such as a target; None for nothing.
        kind: "f" counts the digits behind the decimal point, such as "0.7600"; "g" the significant ones, such as
            "0.76".
    """
    text = format(value, f".4{kind}")
    if limit is None:
        return text
    for digits in range(4, 17):
        text = format(value, f".{digits}{kind}")
        looks_reached = float(text) >= limit
        if looks_reached == (value >= limit):
            return text
    return text


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 run` or `2 runs`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"
