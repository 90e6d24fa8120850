"""The windows of a run that a protocol measures: after its warm-up, and as many steps as it takes."""

import itertools
from collections.abc import Sequence

from runlog.digits import counted
from scoring.figure.protocols import Protocol
from scoring.importers.text import lines_in_words
from scoring.record import InputError, NothingMeasuredError, Record, Window


def select(record: Record, protocol: Protocol, *, skip: int | None = None) -> Sequence[Window]:
    """Return the rows of a log that a protocol measures.

    These are the rows after the warm-up. If the protocol takes a number of steps, they are only the first of these.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement: how much warm-up to skip, and how many steps to take.
        skip: How many windows or epochs to drop (the option --skip). None drops what the protocol says.

    Returns:
        The rows, at least one: windows (what one printed row covers) or, if the protocol skips epochs, the summaries of
        epochs.

    Raises:
        NothingMeasuredError: No row is left after the warm-up. This is a kind of InputError.
        InputError: The log has no windows to measure, does not say the steps that the protocol counts, has fewer steps
            than it takes, or marks a window that it would measure as warm-up.
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

    Args:
        record: The run as read from its log, which may mark windows as warm-up or as measured (`Window.phase`).
        protocol: The rules of the measurement, with the length of the warm-up in windows or steps.
        skip: The value of the option --skip; None if not given.

    Raises:
        NothingMeasuredError: No window is left after the warm-up, or after the resume of a run. This is a kind of
            InputError.
        InputError: The log has no windows to measure, or does not say its steps although the warm-up is counted in
            steps, or marks a window after so many steps as warm-up.
    """
    not_warm_up = _windows_not_marked_as_warm_up(record)
    # --skip 3: the first three windows are dropped that the log does not mark itself.
    if skip is not None:
        return _drop_first(record, not_warm_up, skip, "window")
    # The protocol skips 10 windows. If the log marks 4 as warm-up, only 6 more are dropped.
    if protocol.skip_unit == "window":
        marked_as_warm_up = len(record.windows) - len(not_warm_up)
        still_to_skip = max(0, protocol.skip - marked_as_warm_up)
        return _drop_first(record, not_warm_up, still_to_skip, "window")
    # The protocol skips steps, but a log that marks what was measured has its own end of the warm-up.
    log_marks_what_was_measured = any(window.phase == "measured" for window in not_warm_up)
    if log_marks_what_was_measured:
        return not_warm_up
    return _windows_after_skipped_steps(record, protocol)


def _windows_not_marked_as_warm_up(record: Record) -> list[Window]:
    """Return the windows of a run that its log does not mark as warm-up.

    Args:
        record: The run as read from its log.

    Returns:
        The windows, at least one.

    Raises:
        NothingMeasuredError: The run was resumed from a checkpoint, and the log has no windows. This is a kind of
            InputError.
        InputError: The log has no such windows.
    """
    if record.is_resumed and not record.windows:
        says = "the log has no windows after its resume: nothing was measured; take a longer run"
        raise NothingMeasuredError(f"{record.file}: {says}")
    not_warm_up = [window for window in record.windows if window.phase != "warmup"]
    if not not_warm_up:
        what = "warm-up windows only" if record.windows else "no windows"
        raise InputError(f"{record.file}: the log holds {what}: nothing was measured")
    return not_warm_up


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
    window of the steps 11 to 20. A window whose row does not say how many steps it covers is left out.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement. `skip` is the number of warm-up steps, such as 20.

    Returns:
        The windows, at least one.

    Raises:
        InputError: No window is left, the log marks one that is left as warm-up, or it does not say how many steps of
            the run were done at the end of every window.
    """
    steps_done = _steps_done_or_refuse(record, protocol)
    # A run that was resumed after 1000 steps warms up anew, so these do not count.
    done_before_log = steps_done_before_log(record)
    chosen = []
    for window, done_at_end in zip(record.windows, steps_done, strict=True):
        if window.steps:
            done_at_begin = done_at_end - window.steps
            if done_at_begin - done_before_log >= protocol.skip:
                chosen.append(window)
    if not chosen:
        held = f"{steps_done[-1] - done_before_log} printed"
        raise nothing_left(record, warm_up=counted(protocol.skip, "step"), held=held)
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


def _steps_done_or_refuse(record: Record, protocol: Protocol) -> list[int]:
    """Return for each window how many steps of the run were done at its end; raise InputError if one is not known.

    Args:
        record: The run as read from its log.
        protocol: The rules of the measurement, which skip steps, for the error.

    Raises:
        InputError: The number is not known for some window.
    """
    known = [done for done in steps_done_by_window(record) if done is not None]
    if len(known) < len(record.windows):
        raise InputError(
            f"{record.file}: protocol {protocol.name} skips {counted(protocol.skip, 'step')} and the log's rows carry "
            "no step; give --skip N windows"
        )
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


def steps_done_by_window(record: Record) -> list[int | None]:
    """Return for each window of a run how many steps of the run, warm-up included, were done at its end.

    Some logs begin their step numbers again in each epoch. For two epochs of 100 steps:

        the row prints     50  100   50  100
        the result         50  100  150  200

    Args:
        record: The run as read from its log. A window is what one printed row of it covers.

    Returns:
        A number for each window; None where it is not known.
    """
    steps_done: list[int | None] = []
    done: int | None = 0
    done_at_restart = 0  # the steps done when the printed numbers last began again: 100 in the second epoch
    epoch = None  # of the last row that printed a step number
    for window in record.windows:
        if window.step is None:  # the row prints no number, so the steps that it covers are added
            done = done + window.steps if done is not None and window.steps else None
        else:
            printed_steps = window.step - record.first_step + 1  # the printed number, as if the log counted from 1
            is_new_epoch = epoch is not None and window.epoch != epoch
            # Each row adds steps. If the number would lead to no more steps than before, the numbers begin again.
            if is_new_epoch and done is not None and done_at_restart + printed_steps <= done:
                done_at_restart = done
            done = done_at_restart + printed_steps
            epoch = window.epoch
        steps_done.append(done)
    return steps_done


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
        raise row_too_long(record, steps, chosen[0], totals[0])
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


def row_too_long(record: Record, steps: int, row: Window, held: int) -> InputError:
    """Return, not raise, the error that a row covers more steps than the protocol takes.

    Args:
        record: The run as read from its log.
        steps: How many steps the protocol takes after the warm-up.
        row: The first row after the warm-up.
        held: How many steps it covers.
    """
    holds = f"the row of line {row.line} holds {held} steps and the protocol takes {steps}"
    return InputError(f"{record.file}: {holds}; take a protocol without `take`, such as window")


def too_short(record: Record, steps: int, total: int) -> InputError:
    """Return, not raise, the error that the log has fewer steps than the protocol takes.

    Args:
        record: The run as read from its log.
        steps: How many steps the protocol takes after the warm-up.
        total: How many steps the log has after the warm-up.
    """
    says = f"the protocol takes {counted(steps, 'step')} after warm-up and the log has {total}; take a longer run"
    return InputError(f"{record.file}: {says}")
