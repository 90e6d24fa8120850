"""The losses of a log of this project: numbers that a training can have."""

from collections.abc import Iterator, Sequence

_LEAST_EQUAL_LOSSES = 10  # that are no accident
_REPEATED_LOSSES = 5  # in a row, each another one, that are no accident
_LEAST_SPREAD = 1e-3  # of such losses, as a share of the largest: far above the last digit of a 32-bit number, 6e-8


def faults_of_losses(losses: Sequence[float | None], not_read: int) -> Iterator[str]:
    """Yield in words what is wrong with losses that no training gives.

    These are losses that

    - are no numbers;
    - are all 0;
    - are all equal, if they are at least _LEAST_EQUAL_LOSSES;
    - repeat earlier ones in the same order, as in an epoch that was copied.

    No two steps see the same images with the same weights, so their losses differ.

    Args:
        losses: The losses of a run's first windows, in their order; None for a loss that is no number.
        not_read: How many of these windows could not be read. Their losses are None, and are reported already.
    """
    first = f"of the first {len(losses)} step_windows"
    missing_losses = losses.count(None) - not_read
    if missing_losses:
        yield f"{missing_losses} of the losses {first} are no numbers"
    elif losses and not any(losses):
        yield f"all losses {first} are 0"
    elif len(losses) >= _LEAST_EQUAL_LOSSES and len(set(losses)) == 1:
        yield f"all losses {first} are {losses[0]}"
    start = _start_of_repeated_losses(losses)
    if start is not None:
        last = losses[start + _REPEATED_LOSSES - 1]
        yield f"{_REPEATED_LOSSES} losses in a row, up to {last}, are those of {_REPEATED_LOSSES} windows before"


def _start_of_repeated_losses(losses: Sequence[float | None]) -> int | None:
    """Return the index at which _REPEATED_LOSSES successive losses begin that stand earlier, too, in the same order.

    Two kinds of successive losses may be repeated by an honest run, and do not count:

    - losses of which two are equal, as a run that learns nothing has them;
    - losses that differ by _LEAST_SPREAD or less, as a run has them that has learned its one synthetic batch by heart.

    Returns:
        The index. None if no losses are repeated.
    """
    seen = set()
    for start in range(len(losses) - _REPEATED_LOSSES + 1):
        in_a_row = tuple(losses[start : start + _REPEATED_LOSSES])
        if in_a_row in seen:
            return start
        numbers = {loss for loss in in_a_row if loss is not None}
        are_all_different = len(numbers) == _REPEATED_LOSSES
        if are_all_different and max(numbers) - min(numbers) > _LEAST_SPREAD * max(numbers):
            seen.add(in_a_row)
    return None
