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
    """Yield the stretches of training between the evaluations of a log. The time of a stretch is training alone.

    A block is a group of successive epochs. A block has a start in the log, and mostly a stop. The evaluations that
    start within a block divide the block into stretches, here of epochs 1 to 2 and of epochs 3 to 4:

        block_start  first epoch 1, 4 epochs    -> start of the first stretch
        eval_start   epoch 2                    -> end of the first stretch
        eval_stop    epoch 2                    -> start of the second stretch
        eval_start   epoch 4                    -> end of the second stretch
        eval_stop    epoch 4
        block_stop

    Without a logged stop, a block reaches up to the start of the next block, or up to the end of the log.

    Args:
        events: The events of the run.

    Yields:
        The stretches in the order of the log. A block gives none if the log says too little of the block, or if the
        block's evaluations do not fit its epochs.
    """
    starts = [block.start for block in events.blocks if block.start]
    stops = sorted((block.stop for block in events.blocks if block.stop), key=_line_of)
    evaluations = sorted((each for each in events.evaluations if each.start), key=_line_of_start)
    for start, next_start in itertools.zip_longest(starts, starts[1:]):  # `next_start` of the last block is None
        next_stop = _first_after(stops, start.line)  # the first stop after the start; perhaps of a later block
        # The block ends at the next stop or the next start, whichever comes first; without both, at the log's end.
        end_line = min((mark.line for mark in (next_stop, next_start) if mark is not None), default=math.inf)
        is_own_stop = next_stop is not None and next_stop.line == end_line  # the stop comes before the next start
        stop = next_stop if is_own_stop else None
        evaluations_of_block = _started_between(evaluations, start.line, end_line)
        yield from _stretches_of_block(start, stop, evaluations_of_block)


def _stretches_of_block(start: Mark, stop: Mark | None, evaluations: Sequence[Interval]) -> list[Stretch]:
    """Return the stretches of training in one block of epochs. A stretch is a part of the block without an evaluation.

    The evaluations that start within the block decide:

    - Evaluations after different epochs: `_stretches_between` returns one stretch before each evaluation.
    - Evaluations after one epoch only, or all without an epoch number: one stretch of all epochs of the block, from the
      start of the block to the start of the first evaluation. Any other evaluation is taken to be a repetition of the
      first one by another rank. There is no stretch if the epoch is an early one of the block, before its last one.
    - No evaluation: one stretch of all epochs of the block, from the start of the block to the stop of the block.

    Args:
        start: The start of the block, which states the block's first epoch and number of epochs.
        stop: The stop of the block, or None if the log has none.
        evaluations: The evaluations that start within the block, each with its start, in the order of their lines.

    Returns:
        The stretches. The list is empty if `start` does not state first epoch and number of epochs, if the block has
        neither an evaluation nor a stop, or if the evaluations do not fit the epochs of the block.
    """
    first_epoch = whole_or_zero(start.number)  # the whole number, which may be 0; None for any other value
    epochs = positive_whole(start.count)  # the whole number above 0; None for any other value
    if first_epoch is None or epochs is None:
        return []

    # Such as {2, 4}. Evaluations without a number all give None, so they count as evaluations after one epoch.
    evaluated_epochs = {evaluation.start.number for evaluation in evaluations if evaluation.start}
    if len(evaluated_epochs) > 1:
        return _stretches_between(start, first_epoch, epochs, evaluations)

    end = stop
    evaluated_epoch = None  # not known
    if evaluations:
        end = evaluations[0].start
        evaluated_epoch = whole_or_zero(end.number) if end else None  # each has a start; the test is for the types
    if end is None:
        return []
    last_epoch = first_epoch + epochs - 1
    if evaluated_epoch is not None and first_epoch <= evaluated_epoch < last_epoch:
        return []  # no line says whether the later epochs came before this evaluation or after it
    return [Stretch(start, end, first_epoch, epochs)]


def _stretches_between(start: Mark, first_epoch: int, epochs: int, evaluations: Sequence[Interval]) -> list[Stretch]:
    """Return the stretches of training in a block of epochs, one before each evaluation of the block.

    The number of an evaluation is the number of the last epoch before it. In a block of epochs 1 to 4, evaluations with
    the numbers 2 and 4 give two stretches:

        epochs 1 and 2    from the start of the block to the start of evaluation 2
        epochs 3 and 4    from the stop of evaluation 2 to the start of evaluation 4

    Args:
        start: The start of the block.
        first_epoch: Number of the first epoch of the block.
        epochs: How many epochs the block has.
        evaluations: The evaluations within the block, each with a start, in the order of their lines.

    Returns:
        The stretches. The list is empty if an evaluation before the last one lacks its stop, if a number is missing or
        not whole, if the numbers do not ascend, if the first number is below `first_epoch`, or if the last number is
        not the last epoch of the block.
    """
    stretches: list[Stretch] = []
    begin: Mark | None = start  # of the next stretch: the block's start, later an evaluation's stop (None: not logged)
    next_epoch = first_epoch
    for evaluation in evaluations:
        if begin is None or evaluation.start is None:
            return []  # the evaluation before has no stop (each has a start: the second test is for the type checker)
        last_epoch = whole_or_zero(evaluation.start.number)  # the whole number, perhaps 0; None for any other value
        if last_epoch is None or last_epoch < next_epoch:
            return []  # the number is missing or not whole, or it leaves no epoch for this stretch
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
