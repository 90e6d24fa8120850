"""Filling in what the rows of a log do not say themselves, from the other rows and from the record."""

from scoring.record import Record, Window


def complete_windows(record: Record) -> None:
    """Fill in figures that a log does not print but that follow from its other figures.

    A window is what one printed row of the log covers: some training steps, or an epoch. Two things are filled in:

    - The steps and seconds of the first window, if it has no steps and the second window shows them.
    - The images of each window that has steps but no images: 10 steps of 256 images give 2560.

    What cannot be derived stays None. What the log states stays as it is.

    Args:
        record: What the log says. Its `windows` are changed in place.
    """
    _complete_first_window(record)
    images_per_step = record.global_batch  # over all devices; None if the log does not state it
    if images_per_step is None:
        return
    for window in record.windows:
        if window.images is None and window.steps is not None:
            window.images = window.steps * images_per_step


def _complete_first_window(record: Record) -> None:
    """Set the steps and seconds of the first row of a log, if it has no steps and the second row shows them.

    Args:
        record: What the log says. Its first window is changed.
    """
    if len(record.windows) < 2:
        return
    first, second = record.windows[:2]
    if first.steps is not None:
        return
    first.steps = _steps_of_first_row(first, second, record.first_step)
    if first.steps is not None:
        first.seconds = _seconds_of_first_row(first, second, first.steps)


def _steps_of_first_row(first: Window, second: Window, first_step: int) -> int | None:
    """Return how many training steps the first row of a log covers, or None if rows before it may be missing.

    If no row before it is missing, it covers all steps of the run up to it. That is taken as true if they are as many
    as the second row covers: with rows at steps 10 and 20, both are 10. With rows at steps 510 and 520, they are 510
    and 10, and the result is None.

    Args:
        first: The first row.
        second: The second row. If its number of steps is None, so is the result.
        first_step: Number of the first step of a run.
    """
    if first.step is None or second.steps is None:
        return None
    steps_up_to_first = first.step - first_step + 1
    return steps_up_to_first if steps_up_to_first == second.steps else None


def _seconds_of_first_row(first: Window, second: Window, steps: int) -> float | None:
    """Return the seconds of the first printed row of a log: printed step time x steps.

    This is right only if the printed step time is the mean over all steps of a row. Some programs print the time of the
    row's last step instead. `FormatReader.time_of_row` has then left the `seconds` of the second row None.

    Args:
        first: The first row.
        second: The second row, as evidence only.
        steps: Number of steps that the first row covers.

    Returns:
        The seconds. None if the first row prints no step time, or if it may be the time of the last step alone.
    """
    is_time_of_all_steps = second.seconds is not None
    if first.printed_step_time_s is None or not is_time_of_all_steps:
        return None
    return first.printed_step_time_s * steps
