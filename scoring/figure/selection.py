"""The windows of a run that a protocol measures: after its warm-up, and as many steps as it takes."""

import bisect
import itertools
from collections.abc import Sequence

from scoring.figure.protocols import Protocol
from scoring.record import InputError, NothingMeasuredError, Record, Window


def select(record: Record, protocol: Protocol, *, skip: int | None = None) -> Sequence[Window]:
    """Return the part of a run's log that the protocol measures, without the warm-up.

    Most protocols measure windows, which are the rows that a log prints every few steps. One that skips epochs measures
    the summaries of the epochs, where they print a rate. `skip` is how many windows or epochs are dropped at the start,
    instead of the protocol's own number. Raises InputError if nothing is left, or fewer steps than the protocol takes.
    """
    if protocol.skip_unit == "epoch":
        epochs = [epoch for epoch in record.epochs if epoch.printed_rate is not None]
        return _drop_first(record, epochs, protocol.skip if skip is None else skip, "epochs")

    windows = _after_warm_up(record, protocol, skip)
    if protocol.take_steps is None:
        return windows
    return _first_windows(record, windows, protocol.take_steps)


def _after_warm_up(record: Record, protocol: Protocol, skip: int | None) -> Sequence[Window]:
    """Return the windows of a run without those of its warm-up. Raises InputError if nothing is left.

    A log may mark windows itself, as "warmup" or "measured". Those that it marks as warm-up never count. Which of the
    others are dropped depends on the first of these that applies:

    - `skip` is given: the first `skip` of them.
    - The protocol skips windows: as many as it skips, less those that the log marks as warm-up.
    - The log marks measured windows: none, as its own warm-up takes the place of the steps that the protocol skips.
    - Else: those that begin within the steps that the protocol skips.
    """
    windows = [window for window in record.windows if window.phase != "warmup"]
    if not windows:
        what = "warm-up windows only" if record.windows else "no windows"
        raise InputError(f"{record.file}: the log holds {what}: nothing was measured")

    if skip is not None:
        return _drop_first(record, windows, skip, "windows")
    if protocol.skip_unit == "window":
        marked_as_warm_up = len(record.windows) - len(windows)
        return _drop_first(record, windows, max(0, protocol.skip - marked_as_warm_up), "windows")
    log_marks_measured = any(window.phase == "measured" for window in windows)
    if log_marks_measured:
        return windows
    return _begun_after_steps(record, protocol)  # of all windows: a log that marks none as measured marks no warm-up


def _drop_first(record: Record, rows: Sequence[Window], number: int, unit: str) -> Sequence[Window]:
    """Return `rows` without the first `number` of them. Raises InputError if none is left.

    `unit` is what the error calls the rows: `windows` or `epochs`.
    """
    if number >= len(rows):
        raise nothing_left(record, f"{number} {unit}", f"{len(rows)}")
    return rows[number:]


def _begun_after_steps(record: Record, protocol: Protocol) -> Sequence[Window]:
    """Return the windows that began after the steps that a protocol skips; none of those that do not say their steps.

    Raises InputError if there are none, or if the log does not say how many steps were done at the end of some window.
    """
    steps_done = positions(record)
    chosen = []
    for window, done_at_end in zip(record.windows, steps_done, strict=True):
        if done_at_end is None:
            says = f"skips {protocol.skip} steps and the log's rows carry no step; give --skip N windows"
            raise InputError(f"{record.file}: protocol {protocol.name} {says}")
        if window.steps and done_at_end - window.steps >= protocol.skip:
            chosen.append(window)
    if not chosen:
        raise nothing_left(record, f"{protocol.skip} steps", f"{steps_done[-1]} printed")
    return chosen


def positions(record: Record) -> list[int | None]:
    """Return for each window how many steps of the run, warm-up included, were done at its end.

    A window's row prints the number of its last step. Formats that count anew in each epoch are added up: rows of the
    steps 50, 100, 50, 100 in two epochs give 50, 100, 150, 200.

    A row without that number, such as one of a whole epoch, adds its own steps to those of the row before. Where it
    does not say its steps either, the result is None for it, and for those after it until a row prints a step again.
    """
    steps_done: list[int | None] = []
    done: int | None = 0  # at the end of the row before
    done_at_restart = 0  # when the printed numbers last began anew
    last_epoch: int | None = None
    for window in record.windows:
        if window.step is None:
            if done is None or not window.steps:
                done = None
            else:
                done += window.steps
            steps_done.append(done)
            continue

        counted = window.step - record.first_step + 1  # a log may print 0 for its first step
        is_new_epoch = last_epoch is not None and window.epoch != last_epoch
        # A new epoch alone does not say so: other formats count on, and their sum lies above the row before.
        if is_new_epoch and done is not None and done_at_restart + counted <= done:
            done_at_restart = done
        last_epoch = window.epoch
        done = done_at_restart + counted
        steps_done.append(done)
    return steps_done


def _first_windows(record: Record, chosen: Sequence[Window], steps: int) -> Sequence[Window]:
    """Return the first windows whose steps add up to `steps` at most; a window that does not say its steps counts 1.

    Raises InputError if all of them have fewer steps, or if the first window alone has more.
    """
    totals = list(itertools.accumulate(window.steps or 1 for window in chosen))
    if totals[0] > steps:
        holds = f"the row of line {chosen[0].line} holds {totals[0]} steps and the protocol takes {steps}"
        raise InputError(f"{record.file}: {holds}; take a protocol without `take`, such as window")
    if totals[-1] < steps:
        raise too_short(record, steps, totals[-1])
    windows_within_steps = bisect.bisect(totals, steps)  # each of which ends with a total of `steps` at most
    return chosen[:windows_within_steps]


def nothing_left(record: Record, warm_up: str, held: str) -> NothingMeasuredError:
    """Return the error that a run is no longer than its warm-up; both lengths are texts such as `20 steps`."""
    says = "nothing is left to measure; take a longer run or a smaller --skip"
    return NothingMeasuredError(f"{record.file}: warm-up is {warm_up} and the run has {held}: {says}")


def too_short(record: Record, steps: int, total: int) -> InputError:
    """Return the error that a protocol takes `steps` after warm-up, of which the log has only `total`."""
    says = f"the protocol takes {steps} steps after warm-up and the log has {total}; take a longer run"
    return InputError(f"{record.file}: {says}")
