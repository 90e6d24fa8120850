"""Figures as texts for messages and tables."""


def six_digits(value: float) -> str:
    """Return a figure with its six leading digits: `1234.57` of 1234.5678, `0.5` of 0.5."""
    return format(value, ".6g")


def percent(share: float) -> str:
    """Return a share in percent with one decimal: `3.1%` of 0.0312."""
    return format(share, ".1%")
