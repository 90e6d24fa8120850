"""The windows of a run that a protocol measures: after its warm-up, and as many steps as it takes."""

import bisect
import itertools
from collections.abc import Sequence

from scoring.figure.protocols import Protocol
from scoring.record import InputError, NothingMeasuredError, Record, Window


def select(record: Record, protocol: Protocol, *, skip: int | None = None) -> Sequence[Window]:
    """Return the windows of a run (or its epochs) that the protocol measures, without the warm-up.

    `skip` is how many of them are dropped, in the place of the protocol's own number. Raises InputError if nothing is
    left, or fewer steps than the protocol takes.
    """
    if protocol.skip_unit == "epoch":
        epochs = [epoch for epoch in record.epochs if epoch.printed_rate is not None]
        return _rest(record, epochs, protocol.skip if skip is None else skip, "epochs")

    windows = _after_warm_up(record, protocol, skip)
    if protocol.take_steps is None:
        return windows
    return _take(record, windows, protocol.take_steps)


def _after_warm_up(record: Record, protocol: Protocol, skip: int | None) -> Sequence[Window]:
    """Return the windows of a run without those of its warm-up.

    Windows that the log itself marks as warm-up never count. Of the others, `skip` are dropped where it is given, else
    as many windows or steps as the protocol skips. Where the protocol skips steps and the log marks its measured
    windows, the log's own warm-up takes the place of the protocol's. Raises InputError if nothing is left.
    """
    windows = [window for window in record.windows if window.phase != "warmup"]
    if not windows:
        what = "warm-up windows only" if record.windows else "no windows"
        raise InputError(f"{record.file}: the log holds {what}: nothing was measured")

    if skip is not None:
        return _rest(record, windows, skip, "windows")
    if protocol.skip_unit == "window":
        marked_as_warm_up = len(record.windows) - len(windows)  # these count among those that the protocol skips
        return _rest(record, windows, max(0, protocol.skip - marked_as_warm_up), "windows")
    log_marks_measured = any(window.phase == "measured" for window in windows)
    if log_marks_measured:
        return windows
    return _after_steps(record, protocol)


def _rest(record: Record, items: Sequence[Window], dropped: int, what: str) -> Sequence[Window]:
    if dropped >= len(items):
        raise nothing_left(record, f"{dropped} {what}", f"{len(items)}")
    return items[dropped:]


def _after_steps(record: Record, protocol: Protocol) -> Sequence[Window]:
    done = positions(record)
    if any(position is None for position in done):
        says = f"skips {protocol.skip} steps and the log's rows carry no step; give --skip N windows"
        raise InputError(f"{record.file}: protocol {protocol.name} {says}")
    chosen = [
        window
        for window, position in zip(record.windows, done, strict=True)
        if window.steps and (position or 0) - window.steps >= protocol.skip
    ]
    if not chosen:
        raise nothing_left(record, f"{protocol.skip} steps", f"{done[-1]} printed")
    return chosen


def positions(record: Record) -> list[int | None]:
    """Return how many steps of the run were done at the end of each window, warm-up included.

    An entry is None where the log cannot say it. Some formats count steps anew in each epoch: rows of the steps 50,
    100, 50 and 100 in two epochs have the positions 50, 100, 150 and 200. A row of a whole epoch carries no step; its
    position is the sum of the steps up to it.
    """
    done: list[int | None] = []
    steps_before = 0  # those before the counter last began anew
    last_epoch: int | None = None
    for window in record.windows:
        if window.step is None:  # a row of a whole epoch, or of several
            steps_before = steps_before + window.steps if window.steps else 0
            done.append(steps_before or None)
            continue

        counted = window.step - record.first_step + 1
        previous = done[-1] if done else None
        is_next_epoch = last_epoch is not None and window.epoch != last_epoch
        if is_next_epoch and previous is not None and steps_before + counted <= previous:  # it began anew
            steps_before = previous
        last_epoch = window.epoch
        done.append(steps_before + counted)
    return done


def _take(record: Record, chosen: Sequence[Window], steps: int) -> Sequence[Window]:
    """Return the first windows whose steps add up to `steps` at most. Raises InputError if the run is shorter."""
    totals = list(itertools.accumulate(window.steps or 1 for window in chosen))
    if totals[0] > steps:
        holds = f"the row of line {chosen[0].line} holds {totals[0]} steps and the protocol takes {steps}"
        raise InputError(f"{record.file}: {holds}; take a protocol without `take`, such as window")
    if totals[-1] < steps:
        raise too_short(record, steps, totals[-1])
    return chosen[: bisect.bisect(totals, steps)]


def nothing_left(record: Record, warm_up: str, held: str) -> NothingMeasuredError:
    says = "nothing is left to measure; take a longer run or a smaller --skip"
    return NothingMeasuredError(f"{record.file}: warm-up is {warm_up} and the run has {held}: {says}")


def too_short(record: Record, steps: int, total: int) -> InputError:
    says = f"the protocol takes {steps} steps after warm-up and the log has {total}; take a longer run"
    return InputError(f"{record.file}: {says}")
