"""Images/s by the time that a log's epochs took as a whole, with or without evaluations."""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from runlog.digits import six_digits
from scoring.importers.text import lines_in_words, total
from scoring.record import Record, TimeSpan, Window

# A run with its start and end may take so many times the time of its epochs, as public runs do.
MAX_RATIO_BY_STARTUP = 1.1
# Evaluating an image takes at most so many times as long as training it: start-up dominates a short evaluation.
MAX_EVALUATION_RATIO = 10
RUN_SPAN = "run_start to run_stop"  # the two spans of time, as texts name them
EPOCHS_SPAN = "first to last epoch"
_NOT_LEFT_OUT = (  # in words of a LeftOut
    " with evaluations (they cannot be left out, as the log does not say eval_samples, their number of images: "
    "log it, or score the time to train with --protocol mlperf)"
)


class RunRate(NamedTuple):
    """Images/s over a run's time."""

    text: str  # the lines, the time and the rate in words
    images_per_s: float


def rows_of_epochs(record: Record) -> list[Window]:
    """Return the rows of training figures of a log in which each row is a whole epoch.

    Args:
        record: What the log says.

    Returns:
        The rows in ascending order of their epochs. The list is empty in these cases:

        - The log does not state the images of an epoch.
        - There are fewer than two rows.
        - Some row is not a whole epoch, or has no images, seconds or time stamp.
        - An epoch repeats or is out of order.
    """
    rows = list(record.windows)
    are_whole_epochs = all(_is_whole_epoch(row) for row in rows)
    if not record.train_samples or len(rows) < 2 or not are_whole_epochs:
        return []
    epochs = [row.epoch or 0 for row in rows]  # `or` is for the types: all of these rows have an epoch
    is_each_once_and_ascending = epochs == sorted(set(epochs))
    return rows if is_each_once_and_ascending else []


def _is_whole_epoch(window: Window) -> bool:
    """Return whether a row of training figures is a whole epoch, with its images, seconds and time stamp.

    Args:
        window: The row. One that prints a step is not a whole epoch.
    """
    is_epoch = window.step is None and window.epoch is not None
    return is_epoch and bool(window.images and window.end_s and window.seconds)


def run_rate(record: Record) -> RunRate | None:
    """Return the images/s over the time of the whole run, evaluations included.

    Args:
        record: What the log says. Its `windows` may be epochs or rows of a few steps.

    Returns:
        The images/s from the start of the run to its stop, or over its epochs if the log does not state both. None if
        the windows are not whole epochs, or if no positive time is left, for example if the clock was set back.
    """
    rows = rows_of_epochs(record)  # none if the windows are not whole epochs
    if not rows:
        return None
    if record.run_span is not None:
        return _rate_over(record, rows, RUN_SPAN, record.run_span.seconds)
    return _rate_over(record, rows, EPOCHS_SPAN, _span_of_rows(rows).seconds)


def rate_by_durations(rows: Sequence[Window]) -> float:
    """Return the images/s of epochs by the durations that the log states: images / sum of durations.

    Args:
        rows: The epochs. Each has images and seconds.
    """
    return total(rows, "images") / total(rows, "seconds")


def training_rate_by_clock(record: Record, rows: Sequence[Window]) -> RunRate | None:
    """Return the images/s of training by the log's clock, over its epochs or, if these seem too short, over the run.

    The time of evaluations between epochs is left out, as far as the log allows it (`_training_rate_over`).

    Args:
        record: What the log says.
        rows: The epochs, as `rows_of_epochs` returns them. Each states its duration and when it ended.

    Returns:
        The rate. None if no positive time is left of the epochs or of the run, for example if the clock was set
        back.
    """
    rate_over_epochs = _training_rate_over(record, rows, EPOCHS_SPAN, _span_of_rows(rows))
    if record.run_span is None:  # the log does not state when the run started or stopped
        return rate_over_epochs

    rate_over_run = _training_rate_over(record, rows, RUN_SPAN, record.run_span)
    if rate_over_run is None:  # no positive time is left
        return None
    return rate_over_run if _are_durations_too_short(rows, rate_over_run) else rate_over_epochs


def _are_durations_too_short(rows: Sequence[Window], rate_over_run: RunRate) -> bool:
    """Return whether the durations that the epochs of a log state are too short to be right.

    The run takes longer than its epochs because it also starts up and ends. So images/s by the durations may be up to
    MAX_RATIO_BY_STARTUP x images/s over the run. If they are more, the durations are too short.

    Args:
        rows: The epochs.
        rate_over_run: The images/s over the time from the start to the stop of the run, without evaluations outside
            epochs if they can be left out.
    """
    return rate_by_durations(rows) / rate_over_run.images_per_s > MAX_RATIO_BY_STARTUP


def evaluated_within_epochs_s(record: Record, rows: Sequence[Window]) -> float:
    """Return how many seconds of a log's epochs had an evaluation going on.

    A second in which several evaluations went on counts once.

    Args:
        record: What the log says, with the times of the evaluations.
        rows: The epochs, as `rows_of_epochs` returns them.
    """
    evaluated_s = 0.0
    for row in rows:
        counted_up_to_s = _begin_s(row)
        for evaluation in sorted(record.evaluations):
            # What an earlier evaluation covers counts no second time.
            begin_s = max(evaluation.begin_s, counted_up_to_s)
            end_s = min(evaluation.end_s, _end_s(row))
            if end_s > begin_s:
                evaluated_s += end_s - begin_s
                counted_up_to_s = end_s
    return evaluated_s


class LeftOut(NamedTuple):
    """The evaluations that are left out of a span of time."""

    seconds: float
    in_words: str  # stands behind the name of the span; empty if the span has no evaluations to leave out


def _training_rate_over(record: Record, rows: Sequence[Window], span_name: str, span: TimeSpan) -> RunRate | None:
    """Return the images/s of training over a span of time: images / (seconds of the span - seconds of evaluations).

    Args:
        record: What the log says, such as the times of the evaluations.
        rows: The epochs, as `rows_of_epochs` returns them. Their images are counted.
        span_name: Name of the span in the text of the result, such as "run_start to run_stop".
        span: The span.

    Returns:
        The rate, and a text that also says whether evaluations are left out. None if no positive seconds are left, as
        where the clock was set back.
    """
    left_out = _evaluations_to_leave_out(record, rows, span)
    return _rate_over(record, rows, span_name + left_out.in_words, span.seconds - left_out.seconds)


def _evaluations_to_leave_out(record: Record, rows: Sequence[Window], span: TimeSpan) -> LeftOut:
    """Return how many seconds of evaluations between epochs to take off a span of time, and a phrase that says so.

    Args:
        record: What the log says. Its `evaluations` are the times of all evaluations, and `eval_samples` is the number
            of images of one.
        rows: The epochs. An evaluation that begins within an epoch counts as a part of it.
        span: The span.
    """
    nothing = LeftOut(0.0, "")
    if not record.evaluations:
        return nothing
    if not record.eval_samples:
        return LeftOut(0.0, _NOT_LEFT_OUT)  # words that say that evaluations are in the span, and why
    # The logged time of an evaluation may include a wait for training steps that were launched but not done. So it
    # counts for at most 10 times as long as training on as many images takes.
    longest_s = MAX_EVALUATION_RATIO * _training_seconds(record.eval_samples, rows)
    evaluated_s = _seconds_of_evaluations_between_epochs(record.evaluations, longest_s, rows, span)
    if evaluated_s == 0:  # all evaluations are outside of the span, or within epochs
        return nothing
    return LeftOut(evaluated_s, " without evaluations")


def _training_seconds(images: int, rows: Sequence[Window]) -> float:
    """Return how many seconds training a number of images takes at the rate of the log's epochs.

    Args:
        images: The number of images.
        rows: The epochs. Each has images and seconds.
    """
    return images * total(rows, "seconds") / total(rows, "images")


def _seconds_of_evaluations_between_epochs(
    evaluations: Sequence[TimeSpan], longest_s: float, rows: Sequence[Window], span: TimeSpan
) -> float:
    """Return the sum of the seconds of the evaluations that begin within a span of time but not within an epoch.

    An evaluation that goes on into the next epoch counts up to the beginning of this epoch.

    Args:
        evaluations: The times of all evaluations.
        longest_s: The most seconds for which an evaluation counts.
        rows: The epochs, in order. An evaluation that begins within one of them is a part of it.
        span: The span.
    """
    evaluated_s = 0.0
    for evaluation in evaluations:
        is_in_span = span.begin_s <= evaluation.begin_s < span.end_s
        if not is_in_span:
            continue
        next_epoch_s = _begin_of_next_epoch_s(evaluation.begin_s, rows, span)
        is_within_epoch = next_epoch_s <= evaluation.begin_s  # the first epoch that has not ended has begun already
        if not is_within_epoch:
            seconds = min(evaluation.end_s, next_epoch_s) - evaluation.begin_s
            evaluated_s += max(0.0, min(seconds, longest_s))
    return evaluated_s


def _begin_of_next_epoch_s(moment_s: float, rows: Sequence[Window], span: TimeSpan) -> float:
    """Return when the first epoch began that had not ended at a moment, in seconds since the origin of the time stamps.

    Args:
        moment_s: The moment. If it lies within an epoch, the result is not after it.
        rows: The epochs, in order. Each has seconds and the time stamp of its end.
        span: The span of time that has the moment. Its end is the result if all epochs had ended.
    """
    epochs_ended = bisect.bisect(rows, moment_s, key=_end_s)
    return span.end_s if epochs_ended == len(rows) else _begin_s(rows[epochs_ended])


def _rate_over(record: Record, rows: Sequence[Window], time_name: str, seconds: float) -> RunRate | None:
    """Return the images/s of the epochs over a number of seconds, with a text that says so.

    Args:
        record: What the log says, for the images of an epoch.
        rows: The epochs.
        time_name: What the seconds are, for the text.
        seconds: The seconds.

    Returns:
        The rate and the text, or None if the seconds are not positive, for example if the clock was set back.
    """
    if seconds <= 0:  # for example if the clock was set back
        return None
    rate = _images_of_epochs(record, rows) / seconds
    text = f"{lines_in_words(rows)}: {time_name}, {six_digits(seconds)} s, which is {six_digits(rate)} images/s"
    return RunRate(text, rate)


def _images_of_epochs(record: Record, rows: Sequence[Window]) -> float:
    """Return how many images were trained from the beginning of the first row to the end of the last one.

        images of the first row + (epoch of the last row - epoch of the first row) x images of an epoch

    This also holds where a row covers several epochs: it has the images of all of them, and the number of the last one.

    Args:
        record: What the log says, for the images of an epoch.
        rows: The rows, as `rows_of_epochs` returns them: at least two.
    """
    first = rows[0]
    last = rows[-1]
    # `rows_of_epochs` returns only rows that have these figures.
    assert first.images is not None and first.epoch is not None and last.epoch is not None
    assert record.train_samples is not None
    epochs_after_first = last.epoch - first.epoch  # by their numbers, because some of them may have no row
    return first.images + epochs_after_first * record.train_samples


def _span_of_rows(rows: Sequence[Window]) -> TimeSpan:
    """Return the time from the beginning of the first epoch to the end of the last one.

    Args:
        rows: The epochs, in order. Each has seconds and the time stamp of its end.
    """
    return TimeSpan(_begin_s(rows[0]), _end_s(rows[-1]))


def _begin_s(row: Window) -> float:
    """Return when an epoch began, in seconds since the origin of the time stamps.

    Args:
        row: The epoch. It has seconds and the time stamp of its end.
    """
    assert row.seconds is not None  # `rows_of_epochs` returns only rows that have it
    return _end_s(row) - row.seconds


def _end_s(row: Window) -> float:
    """Return when an epoch ended, in seconds since the origin of the time stamps.

    Args:
        row: The epoch, which has a time stamp.
    """
    assert row.end_s is not None  # `rows_of_epochs` returns only rows that have it
    return row.end_s
