"""Filling in what the rows of a log do not say themselves, from the other rows and from the record."""

from scoring.record import Record, Window


def complete_windows(record: Record) -> None:
    """Set what the windows of a record lack, where the other windows or the record's batch show it.

    A window is the steps that one row of the log covers; a row is a line that a program prints of its training steps.

    - The steps of the first window, if it lacks them: as many steps as the run has done when it prints the window's
      row. They are set only if the second window has equally many, because earlier windows may be missing otherwise.
    - The seconds of the first window, if its steps were set here: steps x the step time that its row prints. They are
      None if no step time is printed, or if it is that of the last step only.
    - The images of each window that lacks them: its steps x the batch of all devices, if both are known.
    """
    if len(record.windows) > 1:
        first, second = record.windows[:2]
        if first.steps is None:
            first.steps = _steps_of_first_row(first, second, record.first_step)
            if first.steps is not None:
                first.seconds = _seconds_of_first_row(first, second, first.steps)

    batch = record.global_batch
    if batch is None:
        return
    for window in record.windows:
        if window.images is None and window.steps is not None:
            window.images = window.steps * batch


def _steps_of_first_row(first: Window, second: Window, first_step: int) -> int | None:
    """Return how many steps the first row of a log covers, or None if the log does not show it.

    A row covers the steps since the row before it, and the first row has no row before it. But rows come at equal
    distances. So `first`, the window of the first row, is compared with `second`, that of the second row:

    - The steps of the run up to the first row are as many as the second row covers: the first row covers them. With
      rows at steps 10 and 20, counted from 1, both are 10.
    - They are not as many: None, because rows before the first one may be missing. With rows at steps 510 and 520,
      these are 510 and 10.
    - The step of the first row or the steps of the second row are not known: None.

    `first_step` is the number that the log's format gives to a run's first step.
    """
    if first.step is None or second.steps is None:
        return None
    steps_up_to_first = first.step - first_step + 1
    return steps_up_to_first if steps_up_to_first == second.steps else None


def _seconds_of_first_row(first: Window, second: Window, steps: int) -> float | None:
    """Return the seconds of a log's first row, which covers so many steps: printed step time x steps.

    None if no step time is printed, or if it is that of a row's last step only. The second row then has no seconds
    either: a format sets the seconds of a row only if the printed time stands for all steps of the row.
    """
    stands_for_all_steps = second.seconds is not None
    if first.printed_step_time_s is None or not stands_for_all_steps:
        return None
    return first.printed_step_time_s * steps
