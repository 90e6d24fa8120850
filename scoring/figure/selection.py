"""The windows of a run that a protocol measures: after its warm-up, and as many steps as it takes."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from runlog.digits import counted
from scoring.figure.protocols import Protocol
from scoring.importers.text import lines_in_words
from scoring.record import InputError, NothingMeasuredError, Record, Window


def select(record: Record, protocol: Protocol, *, skip: int | None = None) -> Sequence[Window]:
    """Return the rows of a log that a protocol measures, which are the rows after the warm-up.

    - If the protocol skips epochs as warm-up: the summaries of the later epochs that print a rate.
    - Otherwise: the later windows. A window is what one printed row covers. If the protocol takes a number of steps
      (`take_steps`), only the windows of so many steps.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement: how much warm-up to skip, and how many steps to take.
        skip: How many windows or epochs to drop (the option --skip). None drops what the protocol says.

    Returns:
        The rows, at least one.

    Raises:
        NothingMeasuredError: No row is left after the warm-up. Also if the run was resumed from a checkpoint and the
            log has no windows, unless the protocol skips epochs. This is a kind of InputError.
        InputError: The protocol does not skip epochs, and one of these cases holds:

            - The log has no windows, or only windows that it marks as warm-up.
            - The warm-up is counted in steps, and the log does not say its steps, or marks a later window as warm-up.
              The warm-up is not counted in steps if `skip` is given, or if the log marks windows as measured.
            - The log has fewer steps after the warm-up than the protocol takes, or the first row after the warm-up
              alone has more.
    """
    if protocol.skip_unit == "epoch":
        epochs = [epoch for epoch in record.epochs if epoch.printed_rate is not None]
        epochs_to_drop = protocol.skip if skip is None else skip
        return _drop_first(record, epochs, epochs_to_drop, "epoch")

    windows = _after_warm_up(record, protocol, skip)
    if protocol.take_steps is None:
        return windows
    return _first_windows(record, windows, protocol.take_steps)  # the first ones, with at most so many steps


def _after_warm_up(record: Record, protocol: Protocol, skip: int | None) -> Sequence[Window]:
    """Return the windows of a run after its warm-up; a window is what one printed row of the log covers.

    A log may mark windows as warm-up or as measured (`phase`). The first case that fits decides:

    1. `skip` is given: dropped are the windows marked as warm-up, and the first `skip` of the others.
    2. The protocol skips windows, such as 10: dropped are the windows marked as warm-up and, if these are fewer than
       10, as many of the others as make 10 in all. If 4 are marked, the first 6 of the others are dropped.
    3. The protocol skips steps, and the log marks windows as measured: dropped are the windows marked as warm-up.
    4. The protocol skips steps, such as 20, and the log marks no windows as measured: dropped are the windows that
       begin before 20 steps are done, and the windows that do not say how many steps they cover.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement, with the warm-up as `skip` and `skip_unit`.
        skip: The value of the option --skip; None if not given.

    Raises:
        NothingMeasuredError: No window is left because of the warm-up, or because the run was resumed from a checkpoint
            and the log has no windows. This is a kind of InputError.
        InputError: The log has no windows, or only windows that are marked as warm-up. In case 4 also if a window that
            is left is marked as warm-up, or if the steps are not known.
    """
    if record.is_resumed and not record.windows:
        says = "the log has no windows after its resume: nothing was measured; take a longer run"
        raise NothingMeasuredError(f"{record.file}: {says}")
    not_warm_up = [window for window in record.windows if window.phase != "warmup"]
    if not not_warm_up:
        what = "warm-up windows only" if record.windows else "no windows"
        raise InputError(f"{record.file}: the log holds {what}: nothing was measured")

    # `_drop_first(.., windows, number, ..)` returns the windows after the first `number` windows. If no window is left,
    # it raises NothingMeasuredError.
    if skip is not None:
        return _drop_first(record, not_warm_up, skip, "window")
    if protocol.skip_unit == "window":
        marked_as_warm_up = len(record.windows) - len(not_warm_up)
        still_to_skip = max(0, protocol.skip - marked_as_warm_up)
        return _drop_first(record, not_warm_up, still_to_skip, "window")
    log_marks_what_was_measured = any(window.phase == "measured" for window in not_warm_up)
    if log_marks_what_was_measured:
        return not_warm_up
    return _windows_after_skipped_steps(record, protocol)  # looks at all windows of the log, marked or not


def _drop_first(record: Record, rows: Sequence[Window], number: int, unit: str) -> Sequence[Window]:
    """Return the rows of a log without the first ones.

    Args:
        record: The run as read from its log, for the error.
        rows: The windows or the summaries of epochs.
        number: How many to drop.
        unit: What the error calls a row: "window" or "epoch".

    Raises:
        NothingMeasuredError: No row is left.
    """
    if number >= len(rows):
        raise nothing_left(record, warm_up=counted(number, unit), held=f"{len(rows)}")
    return rows[number:]


def _windows_after_skipped_steps(record: Record, protocol: Protocol) -> Sequence[Window]:
    """Return the windows of a run that begin after the warm-up, which is given in steps.

    For example, with a warm-up of 20 steps, the windows of the steps 21 to 30 and 31 to 40 are returned, but not the
    window of the steps 11 to 20. A run that was resumed warms up anew: if a run was resumed after 1000 steps, and the
    step numbers go on from there, the windows from step 1021 on are returned.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement. `skip` is the number of warm-up steps, such as 20.

    Returns:
        The windows, at least one. A window is left out, too, if its row does not say how many steps it covers, because
        the beginning of the window is then not known.

    Raises:
        InputError: No window is left, the log marks a window to be measured as warm-up, or it is not known for every
            window how many steps of the run were done at its end.
    """
    done_by_window = _known_steps_done(record, protocol)  # at the end of each window; an error if one is not known
    done_before_log = steps_done_before_log(record)  # such as 1000 for a run that was resumed there; mostly 0
    chosen = []
    for window, done_at_end in zip(record.windows, done_by_window, strict=True):
        if window.steps:  # the steps that the row covers; None if it does not say
            done_at_begin = done_at_end - window.steps
            if done_at_begin - done_before_log >= protocol.skip:
                chosen.append(window)
    if not chosen:
        held = f"{done_by_window[-1] - done_before_log} printed"
        raise nothing_left(record, warm_up=f"{protocol.skip} steps", held=held)
    refuse_marked_warm_up(record, protocol, chosen, fix="give --skip N: N windows after the marked ones, or 0")
    return chosen


def refuse_marked_warm_up(record: Record, protocol: Protocol, measured: Sequence[Window], *, fix: str) -> None:
    """Raise an error if the log marks a window as warm-up that would be measured.

    Args:
        record: The run as read from its log, for the error.
        protocol: The rules of the measurement. Only its name is used, for the error.
        measured: The windows that would be measured. A window is what one printed row of the log covers.
        fix: What the user can do, with which the error ends.

    Raises:
        InputError: A window is marked as warm-up.
    """
    marked = [window for window in measured if window.phase == "warmup"]
    if marked:
        says = f"would measure windows that the log marks as warm-up ({lines_in_words(marked)})"
        raise InputError(f"{record.file}: protocol {protocol.name} {says}; {fix}")


def _known_steps_done(record: Record, protocol: Protocol) -> list[int]:
    """Return for each window how many steps of the run were done at its end.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement, which skip steps, for the error.

    Raises:
        InputError: The log does not say it of all windows.
    """
    known = [done for done in steps_done_by_window(record) if done is not None]
    if len(known) < len(record.windows):
        says = f"skips {protocol.skip} steps and the log's rows carry no step; give --skip N windows"
        raise InputError(f"{record.file}: protocol {protocol.name} {says}")
    return known


def steps_done_before_log(record: Record) -> int:
    """Return how many steps a run had done before the first row of its log, such as 1000 for a run resumed there.

    The number is the step number that the first row prints, minus the number of steps that this row covers, such as
    1010 - 10. This is done for two kinds of logs: logs of a run that was resumed, and logs of keras, PaddleSeg and
    mmsegmentation. For all other logs the number is 0. Their programs may print no rows during the warm-up, or count
    the steps anew in each epoch, so a first row at step 1010 does not show that steps were done before the log.

    Args:
        record: The run as read from its log.

    Returns:
        The number of steps. It is also 0 if the log has no rows, if the first row prints no step number, or if neither
        the first row nor the second row says how many steps it covers.
    """
    prints_rows_from_its_start = record.format in ("keras", "paddleseg", "mmseg")
    first_row_tells = record.is_resumed or prints_rows_from_its_start
    if not first_row_tells or not record.windows:
        return 0
    first = record.windows[0]
    # If the first row does not say how many steps it covers, the number of the second row is taken, because rows are
    # mostly equally far apart.
    steps_of_first = next((window.steps for window in record.windows[:2] if window.steps is not None), None)
    if first.step is None or steps_of_first is None:
        return 0
    return max(0, first.step - steps_of_first)


class _Progress(NamedTuple):
    """How far a run is at the end of a row."""

    done: int | None  # steps of the run, warm-up included; None if not known
    done_at_restart: int  # steps done when the printed numbers last began again; 0 if they never did
    epoch: int | None  # of the last row that printed a step


def steps_done_by_window(record: Record) -> list[int | None]:
    """Return for each window of a run how many steps of the run, warm-up included, were done at its end.

    If the printed numbers start again in each epoch, the epochs are added up: 50, 100, 50, 100 -> 50, 100, 150, 200.

    Args:
        record: The run as read from its log. A window is what one printed row of it covers.

    Returns:
        A number for each window; None where it is not known.
    """
    steps_done = []
    progress = _Progress(done=0, done_at_restart=0, epoch=None)
    for window in record.windows:
        progress = _progress_after(window, progress, record.first_step)
        steps_done.append(progress.done)
    return steps_done


def _progress_after(window: Window, before: _Progress, first_step: int) -> _Progress:
    """Return how many steps a run has done at the end of a window, with what is needed to count on from there.

    If the row prints no step number, the steps that the row covers are added to the steps done before.

    If the row prints a step number, this number, counted from 1, is the number of steps done. But some logs begin their
    step numbers again in each epoch. Then the steps that were done before the epoch are added (`done_at_restart`). For
    two epochs of 100 steps:

        the row prints     50  100   50  100
        done_at_restart     0    0  100  100
        done               50  100  150  200

    Args:
        window: What one printed row of the log covers, with the step number that the row prints (`window.step`), if
            any.
        before: How far the run was at the end of the window before.
        first_step: The number that this log prints for the first step: 1 or 0.

    Returns:
        The progress. Its `done` is None if the number of steps is not known.
    """
    if window.step is None:  # only `done` changes
        return before._replace(done=_sum_if_known(before.done, window.steps))

    printed_steps = window.step - first_step + 1  # the printed number, as if the log counted from 1
    # `before.done` if the numbers begin again in this row: the row is of a new epoch, and its number is too low to go
    # on from the steps done before. Otherwise `before.done_at_restart`.
    done_at_restart = _done_at_last_restart(window, before, printed_steps)
    return _Progress(done=done_at_restart + printed_steps, done_at_restart=done_at_restart, epoch=window.epoch)


def _done_at_last_restart(window: Window, before: _Progress, printed_steps: int) -> int:
    """Return how many steps a run had done when the step numbers of its log last began again; 0 if they never did.

    Some logs begin their step numbers again in each epoch. For example, 100 steps are done at the end of the first
    epoch, and the first row of the second epoch prints

        50:    too low to go on from 100, so the numbers have begun again: the result is 100
        150:   the numbers go on: the result is 0, as before

    The caller adds the result to the printed number, and gets the steps that the run has done: 150 in both cases.

    Args:
        window: What the row covers, with its epoch.
        before: How far the run was at the end of the row before. `before.done_at_restart` is the result for the last
            row that printed a step number, and `before.epoch` is the epoch of that row.
        printed_steps: The step number that the row prints, plus 1 in a log that numbers the first step 0.
    """
    is_new_epoch = before.epoch is not None and window.epoch != before.epoch
    done_if_numbers_go_on = before.done_at_restart + printed_steps
    # Each row adds steps. So numbers that go on would lead to more steps than were done before.
    if is_new_epoch and before.done is not None and done_if_numbers_go_on <= before.done:
        return before.done  # the numbers begin again in this row
    return before.done_at_restart


def _sum_if_known(done: int | None, steps: int | None) -> int | None:
    """Return the steps done at the end of a window; None if they are not known.

    Args:
        done: The steps done before the window; None if not known.
        steps: The steps of the window; None or 0 if not known.
    """
    if done is None or not steps:
        return None
    return done + steps


def _first_windows(record: Record, chosen: Sequence[Window], steps: int) -> Sequence[Window]:
    """Return the first of some windows: as many as together have at most a given number of steps.

    A window that does not say its steps counts as one step.

    Args:
        record: The run as read from its log, for the error.
        chosen: The windows after the warm-up, at least one.
        steps: How many steps the protocol takes, such as 100.

    Returns:
        The windows, at least one. They may have fewer steps than `steps`, if the next window would exceed it.

    Raises:
        InputError: All windows together have fewer than `steps` steps, or the first one alone has more.
    """
    totals = list(itertools.accumulate(window.steps or 1 for window in chosen))  # of the first, of the first two, ...
    if totals[0] > steps:
        holds = f"the row of line {chosen[0].line} holds {totals[0]} steps and the protocol takes {steps}"
        raise InputError(f"{record.file}: {holds}; take a protocol without `take`, such as window")
    if totals[-1] < steps:
        raise too_short(record, steps, totals[-1])
    return [window for window, total in zip(chosen, totals, strict=True) if total <= steps]


def nothing_left(record: Record, warm_up: str, held: str) -> NothingMeasuredError:
    """Return, not raise, the error that nothing is left of the run after the warm-up.

    Args:
        record: The run as read from its log.
        warm_up: The length of the warm-up in words, such as "20 steps".
        held: The length of the run in words.
    """
    says = "nothing is left to measure; take a longer run or a smaller --skip"
    return NothingMeasuredError(f"{record.file}: warm-up is {warm_up} and the run has {held}: {says}")


def too_short(record: Record, steps: int, total: int) -> InputError:
    """Return, not raise, the error that the log has fewer steps than the protocol takes.

    Args:
        record: The run as read from its log.
        steps: How many steps the protocol takes after the warm-up.
        total: How many steps the log has after the warm-up.
    """
    says = f"the protocol takes {steps} steps after warm-up and the log has {total}; take a longer run"
    return InputError(f"{record.file}: {says}")
