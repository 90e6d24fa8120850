"""The training of an MLLOG log's blocks of epochs, between the evaluations that the log marks."""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runlog.run import Interval, Mark, Run
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


def stretches_of_blocks(events: Run) -> Iterator[Stretch]:
    """Yield each stretch of training without an evaluation in the blocks of a log, so that its time is all training.

    A block is a group of successive epochs. It ends at its stop. If the log has no stop of it, it ends at the next
    block's start, or at the end of the log. `_stretches_of_block` divides it by the evaluations that start before its
    end. Here are two stretches, of epochs 1 to 2 and of epochs 3 to 4:

        block_start  first epoch 1, 4 epochs
        eval_start   epoch 2                    -> end of the first stretch
        eval_stop    epoch 2                    -> start of the second one
        eval_start   epoch 4                    -> end of the second one
        eval_stop    epoch 4
        block_stop

    Args:
        events: The events of the run.

    Yields:
        The stretches in the order of the log. None of a block of which the log says too little.
    """
    starts = [block.start for block in events.blocks if block.start]
    stops = sorted((block.stop for block in events.blocks if block.stop), key=_line_of)
    evaluations = sorted((each for each in events.evaluations if each.start), key=_line_of_start)
    for start, next_start in itertools.zip_longest(starts, starts[1:]):  # the last block has no next start
        next_stop = _first_after(stops, start.line)  # of a later block, if this one's stop is not logged
        end_line = min((mark.line for mark in (next_stop, next_start) if mark is not None), default=math.inf)
        is_own_stop = next_stop is not None and next_stop.line == end_line  # not after the next block's start
        stop = next_stop if is_own_stop else None
        evaluations_of_block = _started_between(evaluations, start.line, end_line)
        yield from _stretches_of_block(start, stop, evaluations_of_block)


def _stretches_of_block(start: Mark, stop: Mark | None, evaluations: Sequence[Interval]) -> list[Stretch]:
    """Return the stretches of training in one block of epochs, each a part of the block without an evaluation in it.

    - Evaluations of several epochs: a stretch ends at each evaluation (`_stretches_between`).
    - Evaluations of one epoch, or all without a number: there is one stretch, which ends at the first evaluation. This
      evaluation is taken to follow all epochs of the block, and any further evaluation is taken to be that of another
      rank.
    - No evaluation: there is one stretch, which ends at the block's stop.

    Args:
        start: The start of the block, which states the block's first epoch and number of epochs.
        stop: The stop of the block, or None if the log has none.
        evaluations: The evaluations that start within the block, each with its start, in the order of their lines.

    Returns:
        The stretches. The list is empty if the log does not say the block's epochs, if the block has neither an
        evaluation nor a stop, or if `_stretches_between` returns none.
    """
    first_epoch = whole_or_zero(start.number)  # None if the log states no whole number of at least 0
    epochs = positive_whole(start.count)  # None if the log states no whole number above 0
    if first_epoch is None or epochs is None:
        return []

    evaluated_epochs = {evaluation.start.number for evaluation in evaluations if evaluation.start}
    if len(evaluated_epochs) > 1:
        return _stretches_between(start, first_epoch, epochs, evaluations)

    end = stop
    if evaluations:
        end = evaluations[0].start
    if end is None:
        return []
    return [Stretch(start, end, first_epoch, epochs)]


def _stretches_between(start: Mark, first_epoch: int, epochs: int, evaluations: Sequence[Interval]) -> list[Stretch]:
    """Return the stretches of training in a block of epochs, one before each evaluation of the block.

    The first stretch begins at the start of the block, and any other stretch at the stop of the evaluation before it.
    The number of an evaluation is that of the last epoch before it. In a block of epochs 1 to 4, evaluations with the
    numbers 2 and 4 give

        block start to start of evaluation 2              epochs 1 and 2
        stop of evaluation 2 to start of evaluation 4     epochs 3 and 4

    Args:
        start: The start of the block.
        first_epoch: Number of the first epoch of the block.
        epochs: How many epochs the block has.
        evaluations: The evaluations within the block, each with a start.

    Returns:
        The stretches. The list is empty in these cases:

        - An evaluation lacks its stop. Only the last one may lack it, because no stretch begins after it.
        - The number of an evaluation is missing or below the first epoch, or the numbers do not ascend.
        - The number of the last evaluation is not the last epoch of the block.
    """
    stretches: list[Stretch] = []
    begin: Mark | None = start  # of the next stretch; None if the evaluation before the stretch has no stop
    next_epoch = first_epoch
    for evaluation in evaluations:
        if begin is None or evaluation.start is None:
            return []
        last_epoch = whole_or_zero(evaluation.start.number)  # None if the log states no whole number of at least 0
        if last_epoch is None or last_epoch < next_epoch:
            return []
        stretches.append(Stretch(begin, evaluation.start, next_epoch, last_epoch - next_epoch + 1))
        begin = evaluation.stop
        next_epoch = last_epoch + 1
    reaches_end_of_block = next_epoch == first_epoch + epochs
    return stretches if reaches_end_of_block else []


def _started_between(evaluations: Sequence[Interval], first: int, last: float) -> Sequence[Interval]:
    """Return the evaluations that start on lines above the first of two and at most the second.

    Args:
        evaluations: Evaluations with a start, in the order of its lines.
        first: The first line.
        last: The second line, or infinity.
    """
    up_to_first = bisect.bisect(evaluations, first, key=_line_of_start)
    up_to_last = bisect.bisect(evaluations, last, key=_line_of_start)
    return evaluations[up_to_first:up_to_last]


def _first_after(marks: Sequence[Mark], line: int) -> Mark | None:
    """Return the first mark that comes after a line of the log, or None if there is none.

    Args:
        marks: Starts or stops in the log, in the order of their lines.
        line: Number of the line. A mark on the line itself does not count.
    """
    marks_up_to_line = bisect.bisect(marks, line, key=_line_of)
    return marks[marks_up_to_line] if marks_up_to_line < len(marks) else None


def _line_of(mark: Mark) -> int:
    """Return the line of a mark."""
    return mark.line


def _line_of_start(interval: Interval) -> int:
    """Return the line of an interval's start, which must be there."""
    assert interval.start is not None
    return interval.start.line
