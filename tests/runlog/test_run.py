"""A run made of events in any order: nothing is lost, and nothing is taken for what it is not."""

import json
from typing import Any

import pytest

from runlog.reader import read_text
from runlog.run import Run


def run_of(*events: tuple[str, Any, dict[str, Any]]) -> Run:
    """The run of these events, one a line and a second."""
    run, lines = Run(), []
    for at, (key, value, metadata) in enumerate(events, 1):
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.rpartition("_")[2], "POINT_IN_TIME")
        fields = {"namespace": "", "time_ms": 1000 * at, "event_type": kind, "key": key, "value": value}
        lines.append(f":::MLLOG {json.dumps(fields | {'metadata': metadata})}\n")
    for entry in read_text("".join(lines)):
        run.take(entry)
    return run


def test_a_stop_ends_the_interval_of_its_number() -> None:
    """Epochs of MLPerf's largest runs overlap; a stop without a start and an epoch without an end have their place."""
    run = run_of(
        ("epoch_stop", None, {"epoch_num": 7}),
        ("epoch_start", None, {"epoch_num": 1}),
        ("epoch_start", None, {"epoch_num": 2}),
        ("epoch_stop", None, {"epoch_num": 1}),
        ("epoch_stop", None, {"epoch_num": 2}),
        ("epoch_start", None, {"epoch_num": "three"}),
        ("block_start", None, {"first_epoch_num": 1, "epoch_count": 4}),
        ("eval_start", None, {}),
        ("eval_stop", None, {}),
    )
    lines = [(e.start.line if e.start else None, e.stop.line if e.stop else None) for e in run.epochs]
    assert lines == [(None, 1), (2, 4), (3, 5), (6, None)]
    assert [(epoch.start or epoch.stop).number for epoch in run.epochs] == [7, 1, 2, "three"]
    [block], [evaluation] = run.blocks, run.evaluations
    assert block.start and (block.start.number, block.start.count, block.stop) == (1, 4, None)
    assert evaluation.start and evaluation.stop and evaluation.stop.time_ms - evaluation.start.time_ms == 1000


@pytest.mark.parametrize("value", [None, 7, "text", [], {"images": {"deep": [1] * 1000}, "time_s": "x" * 1000}])
def test_values_of_any_kind_stay_small(value: Any) -> None:
    said = (("epoch_throughput", value), ("eval_accuracy", value), ("tracked_stats", {"imgs_sec": value}))
    run = run_of(*((key, what, {"epoch_num": [1] * 1000}) for key, what in said))
    assert all(len(str(item)) <= 200 for item in (*run.rates[0], *run.rates[1], *run.accuracies[0]))
    assert run.rates[1].images_per_s == run.accuracies[0].value


def test_what_goes_on_and_what_was_said_last() -> None:
    course = {
        ("init_start", None): "preparing",
        ("run_start", None): "training",
        ("train_samples", 100): "training",
        ("eval_start", None): "evaluating",
        ("train_samples", 200): "evaluating",
        ("eval_stop", None): "training",
        ("run_stop", None): "finished",
    }
    events = [(*event, {"status": "success", "epoch_num": 1}) for event in course]
    assert [run_of(*events[:count]).phase for count in range(1, 8)] == list(course.values())
    assert run_of().phase == "starting" and run_of(("run_stop", None, {})).phase == "aborted"
    run = run_of(*events)
    assert (run.first["train_samples"].value, run.last["train_samples"].value) == (100, 200)
    assert (run.starts[0].line, run.stops[0].line, run.last_ms) == (2, 7, 7000)
