"""The training of an MLLOG log's blocks of epochs, between the evaluations that the log marks."""

import bisect
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
    """Yield the blocks of epochs that start in a log, each up to its stop.

    Without a logged stop, a block reaches up to the start of the next block, or up to the end of the log.

    Args:
        events: The events of the run.
    """
    starts = [block.start for block in events.blocks if block.start]
    stops = [block.stop for block in events.blocks if block.stop]
    lines_of_stops = {stop.line for stop in stops}
    marks = sorted([*starts, *stops], key=_line_of)
    evaluations = [_Evaluation(each.start, each.stop) for each in events.evaluations if each.start]
    evaluations.sort(key=_line_of_start)
    for start in starts:
        end = _first_after(marks, start.line)  # the block's own stop, or the start of the next block, or None
        stop = end if end is not None and end.line in lines_of_stops else None
        end_line = math.inf if end is None else end.line
        yield _Block(start, stop, _started_between(evaluations, start.line, end_line))


def _stretches_of_block(block: _Block) -> list[Stretch]:
    """Return the stretches of training in one block of epochs; none if the log says too little of the block.

    Args:
        block: The block. The number of an evaluation is that of the last epoch before it.
    """
    epochs = _epochs_of_block(block.start)
    if epochs is None:
        return []

    evaluated_epochs = {evaluation.start.number for evaluation in block.evaluations}  # {None} if none has a number
    if len(evaluated_epochs) > 1:
        return _stretches_between(block, epochs)

    # The evaluation of one epoch ends the block's only stretch. Further ones are repetitions of it by other ranks.
    end = block.evaluations[0].start if block.evaluations else block.stop
    if end is None:
        return []
    evaluated_epoch = whole_or_zero(end.number) if block.evaluations else None
    if evaluated_epoch in epochs[:-1]:
        return []  # no line says whether the later epochs came before this evaluation or after it
    return [Stretch(block.start, end, epochs.start, len(epochs))]


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
        The stretches. The list is empty if the evaluations do not divide the epochs (`_divide`), or if one before the
        last lacks its stop.
    """
    last_epochs = [whole_or_zero(evaluation.start.number) for evaluation in block.evaluations]
    if not _divide(last_epochs, epochs):
        return []
    stretches: list[Stretch] = []
    begin: Mark | None = block.start
    next_epoch = epochs.start
    for evaluation, last_epoch in zip(block.evaluations, last_epochs, strict=True):
        if begin is None or last_epoch is None:  # the latter is for the types
            return []
        stretches.append(Stretch(begin, evaluation.start, next_epoch, last_epoch - next_epoch + 1))
        begin = evaluation.stop
        next_epoch = last_epoch + 1
    return stretches


def _divide(last_epochs: Sequence[int | None], epochs: range) -> bool:
    """Return whether some epochs end the parts of a range of epochs: they ascend, up to the last epoch of the range.

    The epochs 2 and 4 divide the epochs 1 to 4, but neither 2 and 3 nor 4 and 2 do.

    Args:
        last_epochs: The last epoch of each part. None, for one that cannot be read, divides nothing.
        epochs: The epochs that are divided.
    """
    end_of_part = epochs.start - 1
    for last_epoch in last_epochs:
        if last_epoch is None or last_epoch <= end_of_part:
            return False
        end_of_part = last_epoch
    return end_of_part == epochs.stop - 1


def _started_between(evaluations: Sequence[_Evaluation], first: int, last: float) -> Sequence[_Evaluation]:
    """Return the evaluations that start on lines above the first of two and at most the second.

    Args:
        evaluations: Evaluations in the order of the lines on which they start.
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


def _line_of_start(evaluation: _Evaluation) -> int:
    """Return the line on which an evaluation starts."""
    return evaluation.start.line
