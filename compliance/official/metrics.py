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
    """Return one event for each evaluation, with all metrics that eval_accuracy events state for it.

    The eval_accuracy events of one evaluation have the same count in their metadata. With the field samples_count:

        88.1 with the metadata {"metric": "FID", "samples_count": 512}
        0.15 with the metadata {"metric": "CLIP", "samples_count": 512}
        -> an event with the value {"samples_count": 512, "FID": 88.1, "CLIP": 0.15}

    Args:
        events: All events of a log. An eval_accuracy whose metadata does not contain "metric" is ignored.
        count_field: The field of the metadata that has the count: "samples_count" or "step_num".

    Returns:
        The joined events, and the first eval_accuracy with unusable metadata (None if there is none). Metadata are
        unusable if `_add_metric` raises an error at them, as in these cases:

            {"metric": "FID"}                              no count
            {"metric": ["FID"], "samples_count": 512}      a list or a dict as the name of the metric or as the count
            7                                              a number, true, false or null in place of a dict
            ["metric"]                                     a list or a text that contains "metric", in place of a dict
    """
    evaluation_by_count: dict[Any, _Evaluation] = {}
    unusable_events = []
    for event in events:
        if event.key != schema.EVAL_ACCURACY.key:
            continue
        try:
            _add_metric(evaluation_by_count, event, count_field)
        except (KeyError, TypeError):
            unusable_events.append(event)
    joined = [_joined_event(evaluation) for evaluation in evaluation_by_count.values()]
    first_unusable = unusable_events[0] if unusable_events else None
    return JoinedMetrics(joined, first_unusable)


def _add_metric(evaluation_by_count: dict[Any, _Evaluation], event: Event, count_field: str) -> None:
    """Add the metric that an event states to the evaluation of the same count; make this evaluation if it is missing.

    The count is how many samples or steps were trained before the evaluation. For instance, an event with the value
    88.1 and the metadata {"metric": "FID", "samples_count": 512} adds 88.1 as "FID" to the evaluation of count 512.
    Metadata that do not contain "metric" add nothing.

    Args:
        evaluation_by_count: The evaluations so far, by their count. The metric is added here.
        event: An eval_accuracy.
        count_field: The field of the metadata that has the count, such as "samples_count".

    Raises:
        KeyError: The metadata have a metric, but no count. Nothing was added.
        TypeError: The count or the name of the metric is a list or a dict; or the metadata are no dict, but a number,
            true, false or null, or a list or text that contains "metric". Nothing was added.
    """
    metadata = event.metadata
    if "metric" not in metadata:  # TypeError for a number, true, false or null, which contain nothing
        return
    name = metadata["metric"]  # TypeError for a list or a text
    count = metadata[count_field]
    evaluation = evaluation_by_count.get(count)  # TypeError for a list or a dict
    if evaluation is None:
        evaluation = _Evaluation(line=event.line, values={count_field: count})
    evaluation.values[name] = event.value  # TypeError for a list or a dict
    evaluation_by_count[count] = evaluation  # last: an error above must leave no new evaluation


def _joined_event(evaluation: _Evaluation) -> Event:
    """Return the event of an evaluation. It has neither a time nor an offset, because no rule looks at them."""
    return Event(JOINED_METRICS_KEY, evaluation.values, {}, time_ms=0, event_type="", line=evaluation.line, offset=0)
