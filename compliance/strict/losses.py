"""The losses of a log of this project: numbers that a training can have."""

from collections.abc import Iterator, Sequence

_LEAST_EQUAL_LOSSES = 10  # that are no accident
_REPEATED_LOSSES = 5  # in a row, each another one, that are no accident
_LEAST_SPREAD = 1e-3  # of such losses, as a share of the largest: far above the last digit of a 32-bit number, 6e-8


def faults_of_losses(losses: Sequence[float | None], not_read: int) -> Iterator[str]:
    """Yield in words what no training gives: losses that are no numbers, all 0, all equal, or there twice.

    The first losses of a run are above 0. No two steps see the same images with the same weights, so many losses are
    not all equal, and some in a row do not stand there again, as in an epoch that was copied.

    Args:
        losses: The losses of a run's first windows, in their order; None for one that is no number.
        not_read: How many of these windows could not be read. They have been reported already.
    """
    first = f"of the first {len(losses)} step_windows"
    missing_losses = losses.count(None) - not_read
    if missing_losses:
        yield f"{missing_losses} of the losses {first} are no numbers"
    if losses and not any(losses) and not missing_losses:
        yield f"all losses {first} are 0"
    elif len(losses) >= _LEAST_EQUAL_LOSSES and len(set(losses)) == 1 and not missing_losses:
        yield f"all losses {first} are {losses[0]}"
    start = _start_of_repeated_losses(losses)
    if start is not None:
        last = losses[start + _REPEATED_LOSSES - 1]
        yield f"{_REPEATED_LOSSES} losses in a row, up to {last}, are those of {_REPEATED_LOSSES} windows before"


def _start_of_repeated_losses(losses: Sequence[float | None]) -> int | None:
    """Return the index of the first of _REPEATED_LOSSES in a row that stood in a row before; None if there are none.

    Only losses that differ from each other count: those of a run that learns nothing may repeat. So may those of a run
    that has learned its one synthetic batch by heart, which differ in their last digits alone.
    """
    seen = set()
    for start in range(len(losses) - _REPEATED_LOSSES + 1):
        in_a_row = tuple(losses[start : start + _REPEATED_LOSSES])
        if in_a_row in seen:
            return start
        numbers = {loss for loss in in_a_row if loss is not None}
        if len(numbers) == _REPEATED_LOSSES and max(numbers) - min(numbers) > _LEAST_SPREAD * max(numbers):
            seen.add(in_a_row)
    return None
