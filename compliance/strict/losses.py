"""The losses of a log of this project: numbers that a training can have."""

from collections.abc import Iterator, Sequence

_LEAST_EQUAL_LOSSES = 10  # that are no accident
_REPEATED_LOSSES = 5  # in a row, each another one, that are no accident
_LEAST_SPREAD = 1e-3  # of such losses, as a share of the largest: far above the last digit of a 32-bit number, 6e-8


def faults_of_losses(losses: Sequence[float | None], not_read: int) -> Iterator[str]:
    """Yield in words what is wrong with losses that no training gives.

    The first losses of a run are above 0. No two steps see the same images with the same weights, so many losses are
    not all equal. The first of these faults that is found is yielded:

    - a loss is no number, although its window could be read;
    - all losses that could be read are 0;
    - all losses are equal, if there are at least _LEAST_EQUAL_LOSSES (10).

    Whatever these find, one more fault is looked for, and yielded if found: _REPEATED_LOSSES (5) losses in a row repeat
    5 earlier ones in the same order, as in an epoch that was copied (see `_start_of_repeated_losses`).

    Args:
        losses: The losses of a run's first windows, in their order; None for a loss that is no number.
        not_read: How many of these windows could not be read, which is reported already. Their losses are None.
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
    """Return the index from which on a sequence of losses repeats an earlier one; None if none does.

    A sequence is 5 losses in a row (_REPEATED_LOSSES). It counts only if both are true, because an honest run may
    repeat any other:

    - All its losses are numbers, and different. A run that learns nothing repeats its loss.
    - Its largest and its least loss differ by more than a share of _LEAST_SPREAD. A run on synthetic data has only one
      batch, and once it has learned this batch by heart, its losses hardly change.
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
