"""Images/s by the time that a log's epochs took as a whole, with evaluations or without them."""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from runlog.digits import six_digits
from scoring.importers.text import lines_in_words, total
from scoring.record import Record, Span, Window

STARTS_AND_ENDS = 1.1  # so many times its epochs' time a run may take with its start and its end, as public ones do
LONGEST_EVALUATION = 10  # times that an image is evaluated at most as long as trained: of few, start-up is most


class RunRate(NamedTuple):
    """Images/s over a run's time."""

    text: str  # the lines, the time and the rate in words
    images_per_s: float


def rows_of_epochs(record: Record) -> list[Window]:
    """Return the rows of a log each of whose rows is a whole epoch; an empty list for any other log.

    Such a log says how many images an epoch has, and its epochs are in order, each of them once. It has two rows or
    more, all with images, time and a time stamp.
    """
    rows = []
    for window in record.windows:
        is_epoch = window.step is None and window.epoch is not None
        if is_epoch and window.images and window.end_s and window.seconds:
            rows.append(window)

    epochs = [row.epoch or 0 for row in rows]
    each_once_in_order = epochs == sorted(set(epochs))
    has_other_rows = len(rows) < len(record.windows)
    if not record.train_samples or len(rows) < 2 or has_other_rows or not each_once_in_order:
        return []
    return rows


def run_rate(record: Record) -> RunRate | None:
    """Return the images/s that a run's time makes, evaluations included, with that time in words.

    The time is that from run_start to run_stop, or from the first epoch to the last one where the log lacks the two.
    Returns None for logs whose rows are not whole epochs, and where the clock was set.
    """
    rows = rows_of_epochs(record)
    if not rows:
        return None
    run = record.run_span
    if run is not None:
        return _rate_over(record, rows, "run_start to run_stop", run.seconds)
    return _rate_over(record, rows, "first to last epoch", _span_of_rows(rows).seconds)


def rate_of_whole_time(record: Record, rows: Sequence[Window], own_rate: float) -> RunRate | None:
    """Return the images/s of epochs by the time that they took as a whole, without evaluations.

    `rows` are the epochs, `own_rate` the images/s by the epochs' own times. The whole time is that from the first epoch
    to the last one. But where run_start to run_stop make a rate that is lower than `own_rate` by more than a factor of
    STARTS_AND_ENDS, which the run's start and end do not explain, it is the time between these two. Returns None where
    the clock was set.
    """
    run = record.run_span
    if run is not None:
        by_run = _rate_of_training(record, rows, "run_start to run_stop", run)
        if by_run is None:
            return None
        if own_rate / by_run.images_per_s > STARTS_AND_ENDS:
            return by_run
    return _rate_of_training(record, rows, "first to last epoch", _span_of_rows(rows))


def _rate_of_training(record: Record, rows: Sequence[Window], what: str, span: Span) -> RunRate | None:
    """Return the images/s of a span, less its evaluations as far as the log tells them; None where the clock was set.

    `rows` are the epochs in the span, and `what` names it in the text. Evaluations that the log marks stay in where it
    does not say how many images they have: then no line tells how much of their time is training that they waited for.
    The text says so, and what to do.
    """
    evaluated_s = _evaluated_s(record, rows, span)
    left_out = " without evaluations" if evaluated_s else ""
    if record.evaluations and not record.eval_samples:
        left_out = (
            " with evaluations (they cannot be left out, as the log does not say eval_samples, their number of images: "
            "log it, or score the time to train with --protocol mlperf)"
        )
    return _rate_over(record, rows, what + left_out, span.seconds - evaluated_s)


def _evaluated_s(record: Record, rows: Sequence[Window], span: Span) -> float:
    """Return how many seconds of a span are evaluations by the log's marks; 0 where it does not say their images.

    Evaluations that begin within a row's own time are not counted. Where the program runs ahead of the devices, an
    evaluation waits for the training before it. So none counts for more than LONGEST_EVALUATION times what its images
    take at the rows' own rate.
    """
    images_evaluated = record.eval_samples or 0
    longest_s = LONGEST_EVALUATION * images_evaluated * total(rows, "seconds") / total(rows, "images")
    ends_s = [row.end_s or 0.0 for row in rows]
    evaluated_s = 0.0
    for evaluation in record.evaluations:
        is_in_span = span.begin_s <= evaluation.begin_s < span.end_s
        if is_in_span and not _is_within_a_row(evaluation.begin_s, rows, ends_s):
            evaluated_s += min(evaluation.seconds, longest_s)
    return evaluated_s


def _is_within_a_row(moment_s: float, rows: Sequence[Window], ends_s: Sequence[float]) -> bool:
    """Tell whether a moment lies within the own time of one of the rows, whose ends in order are `ends_s`."""
    first_ending_later = bisect.bisect(ends_s, moment_s)
    return first_ending_later < len(rows) and _begin_s(rows[first_ending_later]) < moment_s


def _rate_over(record: Record, rows: Sequence[Window], what: str, seconds: float) -> RunRate | None:
    """Return the images/s of the epochs from the first row to the last one over `seconds`, which `what` names.

    The epochs are counted by their numbers: a row may be of several epochs, and epochs between two rows may have none.
    Returns None where `seconds` are not above 0: the clock was set, which has its own message.
    """
    if seconds <= 0:
        return None
    first, last = rows[0], rows[-1]
    epochs_after_first = (last.epoch or 0) - (first.epoch or 0)
    images = epochs_after_first * (record.train_samples or 0) + (first.images or 0.0)
    rate = images / seconds
    text = f"{lines_in_words(rows)}: {what}, {six_digits(seconds)} s, which is {six_digits(rate)} images/s"
    return RunRate(text, rate)


def _span_of_rows(rows: Sequence[Window]) -> Span:
    """Return the time from the beginning of the first row to the end of the last one."""
    return Span(_begin_s(rows[0]), rows[-1].end_s or 0.0)


def _begin_s(row: Window) -> float:
    """Return when an epoch began."""
    return (row.end_s or 0.0) - (row.seconds or 0.0)
