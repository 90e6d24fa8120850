"""The losses of a log of this project: numbers that a training can have."""

from collections.abc import Iterator, Sequence

_LEAST_EQUAL_LOSSES = 10  # that are no accident
_REPEATED_LOSSES = 5  # in a row, each another one, that are no accident
_LEAST_SPREAD = 1e-3  # of such losses, as a share of the largest: far above the last digit of a 32-bit number, 6e-8


def faults_of_losses(losses: Sequence[float | None], not_read: int) -> Iterator[str]:
    """Yield in words why the losses of a run cannot be those of a training.

    Of these faults, only the first that the losses have is yielded:

    - a window that could be read has a loss that is no number;
    - all losses that are numbers are 0;
    - all losses are equal, and there are at least 10 (_LEAST_EQUAL_LOSSES). Weights change at each step, and so does
      the loss.

    In any case, one more fault is yielded if the losses have it: 5 losses in a row (_REPEATED_LOSSES) occurred before
    in the same order, as in an epoch that was copied (see `_start_of_repeated_losses`).

    Args:
        losses: The losses of a run's first windows, in their order. A loss is None if the window could not be read, or
            if the window has no number as its loss.
        not_read: How many of these windows could not be read. Such windows are no fault here: the caller reports them.
    """
    first = f"of the first {len(losses)} step_windows"
    numbers = [loss for loss in losses if loss is not None]
    missing_losses = losses.count(None) - not_read  # of windows that could be read
    are_all_zero = bool(numbers) and not any(numbers)
    are_all_equal = bool(numbers) and len(set(losses)) == 1  # None, if any, counts as another value
    if missing_losses:
        yield f"{missing_losses} of the losses {first} are no numbers"
    elif are_all_zero:
        yield f"all losses {first} are 0"
    elif are_all_equal and len(losses) >= _LEAST_EQUAL_LOSSES:
        yield f"all losses {first} are {losses[0]}"
    start = _start_of_repeated_losses(losses)  # None if no losses are repeated
    if start is not None:
        last = losses[start + _REPEATED_LOSSES - 1]
        yield f"{_REPEATED_LOSSES} losses in a row, up to {last}, are those of {_REPEATED_LOSSES} windows before"


def _start_of_repeated_losses(losses: Sequence[float | None]) -> int | None:
    """Return the index of the first 5 losses in a row that occurred before in the same order; None if there are none.

    For instance, the index is 6 in 9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5. The number of losses, 5, is _REPEATED_LOSSES.

    An honest run may repeat losses that hardly differ. So 5 losses are only searched for later in the run if both of
    these are true:

    - The 5 losses are numbers, and all different. A run that learns nothing has the same loss again and again.
    - The largest is above the least by more than 0.001 of the largest (_LEAST_SPREAD). A run on synthetic data has only
      one batch, and once the run has learned this batch by heart, its losses hardly change.
    """
    searched_for = set()  # 5 losses in a row that no honest run repeats
    for start in range(len(losses) - _REPEATED_LOSSES + 1):
        in_a_row = tuple(losses[start : start + _REPEATED_LOSSES])
        if in_a_row in searched_for:
            return start
        numbers = {loss for loss in in_a_row if loss is not None}
        are_all_different = len(numbers) == _REPEATED_LOSSES
        if are_all_different and max(numbers) - min(numbers) > _LEAST_SPREAD * max(numbers):
            searched_for.add(in_a_row)
    return None
