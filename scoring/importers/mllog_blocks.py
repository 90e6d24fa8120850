"""The training of an MLLOG log's blocks of epochs, between the evaluations that the log marks."""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runlog.run import Mark, Run
from scoring.importers.values import positive_whole, whole_or_zero


class Stretch(NamedTuple):
    """Training without an evaluation in between: a block of epochs, or a part of one."""

    start: Mark
    end: Mark
    first_epoch: int
    epochs: int

    @property
    def last_epoch(self) -> int:
        """The number of its last epoch."""
        return self.first_epoch + self.epochs - 1


class _Evaluation(NamedTuple):
    """The marks of an evaluation."""

    start: Mark
    stop: Mark | None


class _Block(NamedTuple):
    """A group of successive epochs that the log marks, with the evaluations that start within it."""

    start: Mark  # states the first epoch and how many there are
    stop: Mark | None  # None: not logged
    evaluations: Sequence[_Evaluation]  # in the order of the log


def stretches_of_blocks(events: Run) -> Iterator[Stretch]:
    """Yield the stretches of training between the evaluations of a log. The time of a stretch is training alone.

    A block is a group of successive epochs that the log marks. Its evaluations divide it into stretches:

        block_start  first epoch 1, 4 epochs    -> start of the first stretch, of epochs 1 and 2
        eval_start   epoch 2                    -> end of the first stretch
        eval_stop    epoch 2                    -> start of the second stretch, of epochs 3 and 4
        eval_start   epoch 4                    -> end of the second stretch
        eval_stop    epoch 4
        block_stop

    Args:
        events: The events of the run.

    Yields:
        The stretches in the order of the log. A block gives none if the log says too little of the block, or if the
        block's evaluations do not fit its epochs.
    """
    for block in _blocks(events):
        yield from _stretches_of_block(block)


def _blocks(events: Run) -> Iterator[_Block]:
    """Yield the blocks of epochs that start in a log, each with its stop and with the evaluations that start in it.

    The stop of a block is the first stop after its start, unless the next block starts before that. A block without a
    stop of its own ends at the start of the next block, or at the end of the log. Several of these events may stand on
    one line, where two ranks write at once.

    Args:
        events: The events of the run.
    """
    starts = sorted([block.start for block in events.blocks if block.start], key=_offset_of)
    stops = sorted([block.stop for block in events.blocks if block.stop], key=_offset_of)
    evaluations = [_Evaluation(each.start, each.stop) for each in events.evaluations if each.start]
    evaluations.sort(key=_offset_of_start)
    # Each start with the next one; the last start with None. Of two ranks that start the same block one after the
    # other, the first one's block ends at the second start, without a stop or an evaluation.
    for start, next_start in itertools.zip_longest(starts, starts[1:]):
        next_block = math.inf if next_start is None else next_start.offset  # infinity: up to the end of the log
        stop = _first_after(stops, start.offset)
        if stop is not None and stop.offset > next_block:
            stop = None  # it is of a later block: no stop of this one is logged
        end = next_block if stop is None else stop.offset
        yield _Block(start, stop, _started_between(evaluations, start.offset, end))


def _stretches_of_block(block: _Block) -> list[Stretch]:
    """Return the stretches of training in one block of epochs, by the evaluations of the block.

    - No evaluation: one stretch, up to the stop of the block; none without a stop.
    - Evaluations of different epochs: one stretch before each. There is none if they do not fit the epochs, or if one
      before the last lacks its stop.
    - Evaluations of one epoch, or of none that is stated: one stretch, up to the first evaluation. There is none
      if their epoch is one of the block other than its last.

    Args:
        block: The block. The number of an evaluation is that of the last epoch before it. A block whose start does not
            state its epochs gives none.
    """
    epochs = _epochs_of_block(block.start)  # range(1, 5) for 4 epochs from epoch 1 on
    if epochs is None:  # the log does not state them
        return []
    if not block.evaluations:
        return [] if block.stop is None else [Stretch(block.start, block.stop, epochs.start, len(epochs))]

    evaluated_epochs = {evaluation.start.number for evaluation in block.evaluations}
    if len(evaluated_epochs) > 1:
        return _stretches_between(block, epochs)

    # All are of one epoch, which several ranks log, or none states an epoch.
    evaluation_start = block.evaluations[0].start
    evaluated_epoch = whole_or_zero(evaluation_start.number)  # None, which is in no range: not known
    # In a block of epochs 1 to 4, an evaluation after epoch 2 leaves epochs 3 and 4 without an evaluation.
    has_later_epochs = evaluated_epoch in epochs and evaluated_epoch != epochs[-1]
    if has_later_epochs:  # no line says whether these came before the evaluation or after it
        return []
    return [Stretch(block.start, evaluation_start, epochs.start, len(epochs))]


def _epochs_of_block(start: Mark) -> range | None:
    """Return the numbers of the epochs of a block, or None if its start does not state them.

    Args:
        start: The start of the block, with its first epoch and its number of epochs.
    """
    first_epoch = whole_or_zero(start.number)  # None for all but whole numbers from 0 on
    count = positive_whole(start.count)  # None for all but whole numbers from 1 on
    if first_epoch is None or count is None:
        return None
    return range(first_epoch, first_epoch + count)


def _stretches_between(block: _Block, epochs: range) -> list[Stretch]:
    """Return the stretches of training in a block of epochs, one before each evaluation of the block.

    In a block of epochs 1 to 4, evaluations after the epochs 2 and 4 give two stretches:

        epochs 1 and 2    from the start of the block to the start of the first evaluation
        epochs 3 and 4    from the stop of the first evaluation to the start of the second

    Args:
        block: The block, with at least one evaluation.
        epochs: Numbers of the epochs of the block.

    Returns:
        The stretches. The list is empty if the numbers of the evaluations are not all known, do not ascend, do not
        begin with one of the epochs or do not end with the last one. It is also empty if an evaluation before the last
        lacks its stop.
    """
    numbers = [whole_or_zero(evaluation.start.number) for evaluation in block.evaluations]  # None: not known
    last_epochs = _last_epochs_of_parts(numbers, epochs)  # [2, 4] in the example
    if last_epochs is None:  # such as for evaluations after the epochs 2 and 3, which leave epoch 4 out
        return []
    # The first stretch begins with the block, each other one where the evaluation before it stops. No stretch follows
    # the last evaluation.
    stops = [evaluation.stop for evaluation in block.evaluations[:-1]]
    begins = [block.start, *[stop for stop in stops if stop is not None]]
    if len(begins) < len(block.evaluations):  # a stop is missing, so that a stretch has no begin
        return []

    stretches: list[Stretch] = []
    first_epoch = epochs.start
    for begin, evaluation, last_epoch in zip(begins, block.evaluations, last_epochs, strict=True):
        stretches.append(Stretch(begin, evaluation.start, first_epoch, epochs=last_epoch - first_epoch + 1))
        first_epoch = last_epoch + 1  # of the next stretch
    return stretches


def _last_epochs_of_parts(numbers: Sequence[int | None], epochs: range) -> list[int] | None:
    """Return the epochs after which evaluations come, or None if these do not cut the epochs into parts.

    Each part of the epochs ends with an evaluation. In epochs 1 to 4, evaluations after the epochs

        2 and 4    -> [2, 4]: the parts are 1 to 2 and 3 to 4
        2 and 3    -> None: epoch 4 would be in no part
        4 and 2    -> None: they do not ascend

    Args:
        numbers: The last epoch before each evaluation. With one that is not known (None), the result is None.
        epochs: The epochs that are cut.
    """
    last_epochs = [number for number in numbers if number is not None]
    ascend = last_epochs == sorted(set(last_epochs))  # also without repeats
    if not last_epochs or len(last_epochs) < len(numbers) or not ascend:
        return None
    # As they ascend, those in between are in `epochs` if the first and the last are.
    are_all_in_parts = last_epochs[0] in epochs and last_epochs[-1] == epochs[-1]
    return last_epochs if are_all_in_parts else None


def _started_between(evaluations: Sequence[_Evaluation], first: int, last: float) -> Sequence[_Evaluation]:
    """Return the evaluations that start between two places of a log.

    Args:
        evaluations: Evaluations in the order in which they start.
        first: The first place, as the number of bytes before it.
        last: The second place, or infinity.
    """
    up_to_first = bisect.bisect(evaluations, first, key=_offset_of_start)
    up_to_last = bisect.bisect(evaluations, last, key=_offset_of_start)
    return evaluations[up_to_first:up_to_last]


def _first_after(marks: Sequence[Mark], offset: int) -> Mark | None:
    """Return the first mark that comes after a place of the log, or None if there is none.

    Args:
        marks: The marks, in the order of the log.
        offset: The place, as the number of bytes before it. A mark at the place itself does not count.
    """
    marks_up_to_place = bisect.bisect(marks, offset, key=_offset_of)
    return marks[marks_up_to_place] if marks_up_to_place < len(marks) else None


def _offset_of(mark: Mark) -> int:
    """Return where in the log a mark's event starts, in bytes."""
    return mark.offset


def _offset_of_start(evaluation: _Evaluation) -> int:
    """Return where in the log an evaluation starts, in bytes."""
    return evaluation.start.offset
