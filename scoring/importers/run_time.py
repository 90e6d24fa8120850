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


def rate_by_durations(rows: Sequence[Window]) -> float:
    """Return the images/s of the epochs in `rows` by the durations that the log states: images / sum of durations."""
    return total(rows, "images") / total(rows, "seconds")


def training_rate_by_clock(record: Record, rows: Sequence[Window]) -> RunRate | None:
    """Return the images/s of the epochs in `rows` by the log's clock, less the time of evaluations if that is known.

    The time runs from the first epoch to the last one, by their time stamps. But if the stamps are wrong, it runs from
    run_start to run_stop. The stamps are taken to be wrong if the rate by durations is more than MAX_RATIO_BY_STARTUP
    times the rate over the run: the start and the end of a run, which the latter includes, explain no larger ratio.

    If the log lacks run_start or run_stop, the stamps are taken to be right. Returns None if no positive time is left,
    because the clock was set back.
    """
    rate_over_epochs = _training_rate_over(record, rows, EPOCHS_SPAN, _span_of_rows(rows))
    if record.run_span is None:
        return rate_over_epochs
    rate_over_run = _training_rate_over(record, rows, RUN_SPAN, record.run_span)
    if rate_over_run is None:
        return None
    # Wrong stamps make wrong durations too, which is what the ratio shows.
    has_wrong_stamps = rate_by_durations(rows) / rate_over_run.images_per_s > MAX_RATIO_BY_STARTUP
    return rate_over_run if has_wrong_stamps else rate_over_epochs


class LeftOut(NamedTuple):
    """The evaluations that are left out of a span of time."""

    seconds: float
    in_words: str  # stands behind the name of the span; empty if the span has no evaluations


def _training_rate_over(record: Record, rows: Sequence[Window], span_name: str, span: Span) -> RunRate | None:
    """Return the images/s of the epochs in `rows` over a time span, less the time of its evaluations if that is known.

    The text of the result names the span by `span_name` and says whether evaluations are left out. Returns None if no
    positive time is left, because the clock was set back.
    """
    left_out = _evaluations_left_out(record, rows, span)
    return _rate_over(record, rows, span_name + left_out.in_words, span.seconds - left_out.seconds)


def _evaluations_left_out(record: Record, rows: Sequence[Window], span: Span) -> LeftOut:
    """Return what is to be left out of a span as time of evaluations.

    - The log marks no evaluations: nothing.
    - It marks some, but does not state their number of images (eval_samples): nothing, and the words say what to log.
    - It states both: the time of the evaluations in the span (see `_evaluated_s`), which may be 0.
    """
    if not record.evaluations:
        return LeftOut(0.0, "")
    if not record.eval_samples:
        # The marked time may include a wait for unfinished training steps. Only the number of images shows how much.
        return LeftOut(
            0.0,
            " with evaluations (they cannot be left out, as the log does not say eval_samples, their number of images: "
            "log it, or score the time to train with --protocol mlperf)",
        )
    evaluated_s = _evaluated_s(record.evaluations, record.eval_samples, rows, span)
    return LeftOut(evaluated_s, " without evaluations" if evaluated_s > 0 else "")


def _evaluated_s(evaluations: Sequence[Span], images: int, rows: Sequence[Window], span: Span) -> float:
    """Return how many seconds of the time `span` are evaluations of so many images each.

    - An evaluation that begins outside `span` does not count.
    - An evaluation that begins within the duration of one of the epochs in `rows` does not count: it is part of it.
    - Any other evaluation counts for its marked time, but for at most MAX_EVALUATION_RATIO x the time to train as many
      images. The marked time may include a wait for unfinished training steps.
    """
    # The rows' seconds / the rows' images is the time to train one image.
    longest_s = MAX_EVALUATION_RATIO * images * total(rows, "seconds") / total(rows, "images")
    ends_s = [row.end_s or 0.0 for row in rows]
    evaluated_s = 0.0
    for evaluation in evaluations:
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

    `time_name` says in the text what the seconds are. Returns None if `seconds` are not positive, because the clock was
    set.
    """
    if seconds <= 0:
        return None
    rate = _images_of_epochs(record, rows) / seconds
    text = f"{lines_in_words(rows)}: {time_name}, {six_digits(seconds)} s, which is {six_digits(rate)} images/s"
    return RunRate(text, rate)


def _images_of_epochs(record: Record, rows: Sequence[Window]) -> float:
    """Return the images from the beginning of the first row to the end of the last one:

        images of the first row + (epoch of the last row - epoch of the first row) x images of an epoch

    A row may cover several epochs; its `epoch` is the last of them. The epochs after the first row are counted by their
    numbers, because some of them may have no row.
    """
    first, last = rows[0], rows[-1]
    # `rows_of_epochs` returns only rows that have these figures.
    assert first.images is not None and first.epoch is not None and last.epoch is not None
    assert record.train_samples is not None
    epochs_after_first = last.epoch - first.epoch
    return first.images + epochs_after_first * record.train_samples


def _span_of_rows(rows: Sequence[Window]) -> Span:
    """Return the time from the beginning of the first row to the end of the last one."""
    return Span(_begin_s(rows[0]), rows[-1].end_s or 0.0)


def _begin_s(row: Window) -> float:
    """Return when the epoch of a row began, in seconds since the origin of the time stamps."""
    return (row.end_s or 0.0) - (row.seconds or 0.0)
