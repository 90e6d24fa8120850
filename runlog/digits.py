"""Figures as texts for messages and tables."""


def six_digits(value: float) -> str:
    """Return a figure with its six leading digits: `1234.57` of 1234.5678, `0.5` of 0.5."""
    return significant(value, digits=6)


def significant(value: float, *, digits: int) -> str:
    """Return a figure with this many leading digits: with three, `1.23e+03` of 1234.5678 and `0.5` of 0.5."""
    return format(value, f".{digits}g")


def percent(share: float, *, decimals: int = 1) -> str:
    """Return a share in percent: `3.1%` of 0.0312, `3%` with no decimals."""
    return format(share, f".{decimals}%")


def percent_above(share: float, limit: float) -> str:
    """Return a share in percent with as many decimals, at least one, as show that it lies above `limit`.

    With a limit of 2 % 0.0312 -> `3.1%`, and 0.020004 -> `2.0004%` rather than `2.0%`.
    """
    for decimals in range(1, 15):
        text = format(share, f".{decimals}%")
        if float(text.removesuffix("%")) > 100 * limit:
            return text
    return percent(share)  # the two are one number but for the computer's rounding
