"""The metrics of stable_diffusion: each is logged in an event of its own, and the rules look at those of an evaluation.

Before the rules are applied, the metrics of an evaluation are joined into one more event.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from runlog import schema
from runlog.reader import Event

JOINED_METRICS_KEY = "aggregated_eval_accuracy"  # of the events that are made here


class JoinedMetrics(NamedTuple):
    """One event for each evaluation, and the first event whose metric could not be joined; None if there is none."""

    events: list[Event]
    first_unusable: Event | None


class _Evaluation(NamedTuple):
    """The first line of an evaluation, and its metrics by their names, with the count by which they are joined."""

    line: int
    values: dict[Any, Any]


def join_metrics(events: Iterable[Event], count_field: str) -> JoinedMetrics:
    """Return one event for each evaluation, with all metrics that eval_accuracy events state for the evaluation.

    The eval_accuracy events of one evaluation have the same count in their metadata. With the field samples_count:

        88.1 with the metadata {"metric": "FID", "samples_count": 512}
        0.15 with the metadata {"metric": "CLIP", "samples_count": 512}
        -> an event with the value {"samples_count": 512, "FID": 88.1, "CLIP": 0.15}

    An eval_accuracy is left out if its metadata do not contain "metric", or are unusable. Unusable metadata are:

        {"metric": "FID"}                            The count is missing.
        {"metric": ["FID"], "samples_count": 512}    The name of the metric, or the count, is a list or a dict.
        7, or a list or a text with "metric" in it   The metadata are no dict.

    Args:
        events: All events of a log.
        count_field: The field of the metadata that has the count: "samples_count" or "step_num".

    Returns:
        The joined events; and the first eval_accuracy with unusable metadata, None if there is none.
    """
    evaluation_by_count: dict[Any, _Evaluation] = {}
    unusable_events = []
    for event in events:
        if event.key != schema.EVAL_ACCURACY.key:
            continue
        try:
            _add_metric(evaluation_by_count, event, count_field)  # adds the metric to the evaluation of its count
        except (KeyError, TypeError):  # a KeyError if the count is missing, a TypeError in the two other cases
            unusable_events.append(event)
    joined = [_joined_event(evaluation) for evaluation in evaluation_by_count.values()]
    first_unusable = unusable_events[0] if unusable_events else None
    return JoinedMetrics(joined, first_unusable)


def _add_metric(evaluation_by_count: dict[Any, _Evaluation], event: Event, count_field: str) -> None:
    """Add the metric that an eval_accuracy states to the evaluation of the same count; make this evaluation if missing.

    For instance, the value 88.1 with the metadata {"metric": "FID", "samples_count": 512} is added as the "FID" of the
    evaluation after 512 samples. Metadata that do not contain "metric" add nothing.

    The metadata are not checked first, though a log may hold anything: metadata that cannot be used lead to Python's
    own errors, before anything is added.

    Args:
        evaluation_by_count: The evaluations so far, by their count of samples or steps. The metric is added here.
        event: The eval_accuracy.
        count_field: The field of the metadata that has the count, such as "samples_count".

    Raises:
        KeyError: The metadata have a metric, but no count.
        TypeError: The name of the metric or the count is a list or a dict. Or the metadata are no dict: a number, true,
            false or null; or a list or a text with "metric" in it.
    """
    metadata = event.metadata
    if "metric" not in metadata:  # TypeError if the metadata are a number, true, false or null
        return
    name = metadata["metric"]  # TypeError if the metadata are a list or a text
    count = metadata[count_field]  # KeyError if the count is missing
    evaluation = evaluation_by_count.get(count)  # TypeError if the count is a list or a dict
    if evaluation is None:
        evaluation = _Evaluation(line=event.line, values={count_field: count})
    evaluation.values[name] = event.value  # TypeError if the name is a list or a dict
    evaluation_by_count[count] = evaluation  # after the lines that may raise, so that an error adds nothing


def _joined_event(evaluation: _Evaluation) -> Event:
    """Return the event of an evaluation. It has neither a time nor an offset, because no rule looks at them."""
    return Event(JOINED_METRICS_KEY, evaluation.values, {}, time_ms=0, event_type="", line=evaluation.line, offset=0)
