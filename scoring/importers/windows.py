"""Filling in what the rows of a log do not say themselves, from the other rows and from the record."""

from scoring.record import Record, Window


def complete_windows(record: Record) -> None:
    """Fill in what the rows themselves do not say, in the record's windows.

    - The steps of the first row, and its seconds, if the second row shows them (see `_steps_of_first_row`).
    - The images of every row: its steps x the batch of all devices, if both are known.
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
    """Return how many steps the first row of a log covers, in a format that counts a row's steps from the row before.

    `first_step` is the number of a run's first step. If the first row covers all steps of the run up to its own, and
    rows come at equal distances, it covers as many steps as the second row. So two cases are told apart:

    - If the steps of the run up to the first row are as many as those of the second row, the first row covers them.
      With rows at steps 10 and 20, counted from 1, these are 10.
    - If they are not as many, rows before the first one may be missing, and the result is None. With rows at steps 510
      and 520, these are 510 and 10.

    The result is also None if the step of the first row or the steps of the second row are not known.
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
