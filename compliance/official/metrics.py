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

    Args:
        events: All events of a log.
        count_field: The field of the metadata that has the count: "samples_count" or "step_num".

    Returns:
        The joined events; and the first eval_accuracy of a metric that cannot be joined, such as one without a count.
        The official checker joins the metrics before it applies the rules, and crashes at such an event.
    """
    evaluation_by_count: dict[Any, _Evaluation] = {}
    first_unusable = None
    for event in events:
        is_of_metric = event.key == schema.EVAL_ACCURACY.key and _is_taken_for_metric(event.metadata)
        if not is_of_metric:  # another event, or an accuracy such as 0.75 with the metadata {"epoch_num": 3}
            continue
        if _can_be_joined(event.metadata, count_field):  # a name and a count that can be keys of a dict
            _add_metric(evaluation_by_count, event, count_field)  # to the evaluation of this count
        elif first_unusable is None:
            first_unusable = event
    joined = [_joined_event(evaluation) for evaluation in evaluation_by_count.values()]
    return JoinedMetrics(joined, first_unusable)


def _is_taken_for_metric(metadata: Any) -> bool:
    """Return whether the official checker goes on to join an eval_accuracy: it asks `"metric" in metadata`.

    It crashes at this question if the metadata are a number, true, false or null. Then the result is True, too.

    Args:
        metadata: The metadata of the event, any JSON value.
    """
    can_contain = isinstance(metadata, dict | list | str)
    return not can_contain or "metric" in metadata


def _can_be_joined(metadata: Any, count_field: str) -> bool:
    """Return whether a metric can be put together with the others of its evaluation, by the count in its metadata.

    The metadata must be a dict with a count. Neither the count nor the metric's name may be a list or a dict, because
    both are keys of dicts, here and in the official checker: 512 and "FID" for the FID of 88.1 after 512 samples.

    Args:
        metadata: The metadata of an eval_accuracy, any JSON value. If they are a dict, it has the name, such as
            "metric".
        count_field: The field that has the count, such as "samples_count".
    """
    if not isinstance(metadata, dict) or count_field not in metadata:
        return False
    is_name_usable = not isinstance(metadata["metric"], list | dict)  # the caller has seen that there is a "metric"
    is_count_usable = not isinstance(metadata[count_field], list | dict)
    return is_name_usable and is_count_usable


def _add_metric(evaluation_by_count: dict[Any, _Evaluation], event: Event, count_field: str) -> None:
    """Add the metric that an eval_accuracy states to the evaluation of the same count; make this evaluation if missing.

    Args:
        evaluation_by_count: The evaluations so far, by their count of samples or steps. The metric is added here.
        event: The eval_accuracy, such as 88.1 with the metadata {"metric": "FID", "samples_count": 512}.
        count_field: The field of the metadata that has the count, such as "samples_count".
    """
    name = event.metadata["metric"]
    count = event.metadata[count_field]
    if count not in evaluation_by_count:
        evaluation_by_count[count] = _Evaluation(line=event.line, values={count_field: count})
    evaluation_by_count[count].values[name] = event.value


def _joined_event(evaluation: _Evaluation) -> Event:
    """Return the event of an evaluation. It has neither a time nor an offset, because no rule looks at them."""
    return Event(JOINED_METRICS_KEY, evaluation.values, {}, time_ms=0, event_type="", line=evaluation.line, offset=0)
