"""Filling in what the rows of a log do not say themselves, from the other rows and from the record."""

from scoring.record import Record, Window


def complete_windows(record: Record) -> None:
    """Derive what the windows of a record lack: the steps and seconds of the first window, and the images of each.

    A window is the steps of one printed row. Its images are its steps x the batch of all devices. What the log does not
    show stays None.
    """
    _complete_first_window(record)
    batch = record.global_batch
    if batch is None:
        return
    for window in record.windows:
        if window.images is None and window.steps is not None:
            window.images = window.steps * batch


def _complete_first_window(record: Record) -> None:
    """Set the steps and seconds of the first window if it has no steps and the second window shows them."""
    if len(record.windows) < 2:
        return
    first, second = record.windows[:2]
    if first.steps is not None:
        return
    first.steps = _steps_of_first_row(first, second, record.first_step)
    if first.steps is not None:
        first.seconds = _seconds_of_first_row(first, second, first.steps)


def _steps_of_first_row(first: Window, second: Window, first_step: int) -> int | None:
    """Return how many steps the first row of a log covers, or None if rows before it may be missing.

    It covers as many as the second row, if the run has done so many steps by then: so with rows at steps 10 and 20, but
    not at 510 and 520. `first_step` is the number of a run's first step.
    """
    if first.step is None or second.steps is None:
        return None
    steps_up_to_first = first.step - first_step + 1
    return steps_up_to_first if steps_up_to_first == second.steps else None


def _seconds_of_first_row(first: Window, second: Window, steps: int) -> float | None:
    """Return the seconds of a log's first row: printed step time x `steps`.

    None if no step time is printed, or if it is that of a row's last step only.
    """
    # A format sets the seconds of a row only if the printed time stands for all steps of the row.
    stands_for_all_steps = second.seconds is not None
    if first.printed_step_time_s is None or not stands_for_all_steps:
        return None
    return first.printed_step_time_s * steps
