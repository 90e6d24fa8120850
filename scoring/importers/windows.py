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
    """Set the steps of a log's first row, if they are not known and the second row shows them, and then its seconds.

    Rows at the steps 10 and 20 cover 10 steps each. If the first one prints 0.35 s as its mean step time, it took
    3.5 s. The seconds stay as they are if the row prints the time of its last step alone, or no time.

    Args:
        record: What the log says. Its first window is changed. A log with fewer than two windows stays as it is.
    """
    if len(record.windows) < 2:
        return
    first, second = record.windows[:2]
    if first.steps is not None:
        return
    # None if the first row is at step 510, say, but the second covers 10 steps: earlier rows may be missing.
    first.steps = _steps_of_first_row(first, second, record.first_step)
    # A program prints in each row either the mean time of the row's steps or the time of the last one alone. The reader
    # of the log has set the second row's seconds (mean x steps) only for a mean, or where the row is of one step.
    prints_mean_step_time = second.seconds is not None
    if first.steps is not None and first.printed_step_time_s is not None and prints_mean_step_time:
        first.seconds = first.printed_step_time_s * first.steps


def _steps_of_first_row(first: Window, second: Window, first_step: int) -> int | None:
    """Return how many training steps the first row of a log covers, or None if earlier rows may be missing.

    The first row is taken to cover all steps of the run up to this row, if the second row covers as many steps:

        rows at steps    steps up to the first row    steps of the second row    result
        10, 20           10                           10                         10
        510, 520         510                          10                         None: earlier rows may be missing

    Args:
        first: The first row. If the number of its step is not known, the result is None.
        second: The second row. If its number of steps is not known, the result is None.
        first_step: Number that the program gives the first step of a run, such as 1 in the examples.
    """
    if first.step is None or second.steps is None:
        return None
    steps_up_to_first = first.step - first_step + 1
    return steps_up_to_first if steps_up_to_first == second.steps else None
