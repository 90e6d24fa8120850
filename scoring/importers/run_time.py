"""Images/s by the time that a log's epochs took as a whole, with or without evaluations."""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from runlog.digits import six_digits
from scoring.importers.text import lines_in_words, total
from scoring.record import Record, Span, Window

# A run with its start and end may take so many times the time of its epochs, as public runs do.
MAX_RATIO_BY_STARTUP = 1.1
# Evaluating an image takes at most so many times as long as training it: start-up dominates a short evaluation.
MAX_EVALUATION_RATIO = 10
RUN_SPAN = "run_start to run_stop"  # the two spans of time, as texts name them
EPOCHS_SPAN = "first to last epoch"


class RunRate(NamedTuple):
    """Images/s over a run's time."""

    text: str  # the lines, the time and the rate in words
    images_per_s: float


def rows_of_epochs(record: Record) -> list[Window]:
    """Return the rows of a log in which each row is a whole epoch, or an empty list for any other log.

    Such a log meets all of these conditions:

    - It states how many images an epoch has.
    - It has at least two rows.
    - Every row has an epoch and no step, and has images, seconds and a time stamp.
    - The epochs are in ascending order, each of them once.
    """
    rows = []
    for window in record.windows:
        is_epoch = window.step is None and window.epoch is not None
        if is_epoch and window.images and window.end_s and window.seconds:
            rows.append(window)

    has_other_rows = len(rows) < len(record.windows)
    epochs = [row.epoch or 0 for row in rows]
    is_ascending = epochs == sorted(set(epochs))
    if not record.train_samples or len(rows) < 2 or has_other_rows or not is_ascending:
        return []
    return rows


def run_rate(record: Record) -> RunRate | None:
    """Return the images/s over the time of the whole run, evaluations included.

    The time is that from run_start to run_stop. If the log lacks one of the two, it is that from the first epoch to the
    last one. Returns None if the rows are not whole epochs, or if the time is not positive because the clock was set.
    """
    rows = rows_of_epochs(record)
    if not rows:
        return None
    run = record.run_span
    if run is not None:
        return _rate_over(record, rows, RUN_SPAN, run.seconds)
    return _rate_over(record, rows, EPOCHS_SPAN, _span_of_rows(rows).seconds)


def training_rate_by_clock(record: Record, rows: Sequence[Window], rate_by_durations: float) -> RunRate | None:
    """Return the images/s of the epochs in `rows` by the log's clock, less the time of evaluations if that is known.

    The whole run includes its start and its end. So its images/s may be lower than `rate_by_durations`, the images/s by
    the epochs' own durations, but by no larger factor than MAX_RATIO_BY_STARTUP.

    - The factor is larger: the epochs' durations and stamps are taken to be wrong. The time runs from run_start to
      run_stop.
    - Else, and if the log lacks run_start or run_stop: the time runs from the first epoch to the last one.

    Returns None if no positive time is left, because the clock was set back.
    """
    run = record.run_span
    if run is not None:
        rate_over_run = _training_rate_over(record, rows, RUN_SPAN, run)
        if rate_over_run is None:
            return None
        # The start and the end of a run do not explain a larger ratio. Then the stamps are as wrong as the durations.
        has_wrong_stamps = rate_by_durations / rate_over_run.images_per_s > MAX_RATIO_BY_STARTUP
        if has_wrong_stamps:
            return rate_over_run
    return _training_rate_over(record, rows, EPOCHS_SPAN, _span_of_rows(rows))


def _training_rate_over(record: Record, rows: Sequence[Window], span_name: str, span: Span) -> RunRate | None:
    """Return the images/s of the epochs in `rows` over a time span, less the time of its evaluations if that is known.

    The result has a text, which names the span by `span_name` and says whether evaluations are left out:

    - The log marks evaluations, but does not state their number of images: their time stays in, and the text says what
      to log.
    - The span has evaluations: their time is left out.
    - The span has no evaluations: the text does not mention them.

    Returns None if no positive time is left, because the clock was set back.
    """
    if record.evaluations and not record.eval_samples:
        # The marked time of an evaluation may include a wait for unfinished training steps. Only the number of its
        # images shows how much.
        evaluated_s = 0.0
        evaluations_in_words = (
            " with evaluations (they cannot be left out, as the log does not say eval_samples, their number of images: "
            "log it, or score the time to train with --protocol mlperf)"
        )
    else:
        evaluated_s = _evaluated_s(record, rows, span)
        evaluations_in_words = " without evaluations" if evaluated_s else ""
    return _rate_over(record, rows, span_name + evaluations_in_words, span.seconds - evaluated_s)


def _evaluated_s(record: Record, rows: Sequence[Window], span: Span) -> float:
    """Return how many seconds of a span are evaluations, by the evaluations that the log marks.

    - An evaluation that begins in the span and between the rows' own times counts for its marked time, but for at most
      MAX_EVALUATION_RATIO x the time to train as many images. The marked time may include a wait for unfinished
      training steps.
    - An evaluation that begins within a row's own time does not count: it is a part of that time.

    If the log does not state how many images an evaluation has, 0 is returned.
    """
    images_evaluated = record.eval_samples or 0  # 0 if not stated: no evaluation counts for any time
    # The rows' seconds / the rows' images is the time to train one image.
    longest_s = MAX_EVALUATION_RATIO * images_evaluated * total(rows, "seconds") / total(rows, "images")
    ends_s = [row.end_s or 0.0 for row in rows]
    evaluated_s = 0.0
    for evaluation in record.evaluations:
        is_in_span = span.begin_s <= evaluation.begin_s < span.end_s
        if is_in_span and not _is_within_a_row(evaluation.begin_s, rows, ends_s):
            evaluated_s += min(evaluation.seconds, longest_s)
    return evaluated_s


def _is_within_a_row(moment_s: float, rows: Sequence[Window], ends_s: Sequence[float]) -> bool:
    """Return whether a moment lies within the own time of one of the rows. `ends_s` are their ends, in order."""
    rows_ended = bisect.bisect(ends_s, moment_s)
    if rows_ended == len(rows):
        return False
    first_row_not_ended = rows[rows_ended]
    return _begin_s(first_row_not_ended) < moment_s


def _rate_over(record: Record, rows: Sequence[Window], time_name: str, seconds: float) -> RunRate | None:
    """Return the images/s of the epochs from the first row to the last one over `seconds`.

    `time_name` says in the text what the seconds are. The images are

        images of the first row + (epoch of the last row - epoch of the first row) * images of an epoch

    A row may cover several epochs; its `epoch` is the last of them. So the first row counts by its own images, and all
    later epochs by their numbers: some may have no row. Returns None if `seconds` are not positive, because the clock
    was set.
    """
    if seconds <= 0:
        return None
    # A row may cover several epochs; its `epoch` is the last of them. So the first row counts by its own images,
    # and the later epochs by their numbers: some may have no row.
    first, last = rows[0], rows[-1]
    epochs_after_first = (last.epoch or 0) - (first.epoch or 0)
    images = epochs_after_first * (record.train_samples or 0) + (first.images or 0.0)
    rate = images / seconds
    text = f"{lines_in_words(rows)}: {time_name}, {six_digits(seconds)} s, which is {six_digits(rate)} images/s"
    return RunRate(text, rate)


def _span_of_rows(rows: Sequence[Window]) -> Span:
    """Return the time from the beginning of the first row to the end of the last one."""
    return Span(_begin_s(rows[0]), rows[-1].end_s or 0.0)


def _begin_s(row: Window) -> float:
    """Return when the epoch of a row began, in seconds since the origin of the time stamps."""
    return (row.end_s or 0.0) - (row.seconds or 0.0)
