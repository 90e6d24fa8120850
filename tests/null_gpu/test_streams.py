"""When all-reduces may run: what the streams of two null GPUs wait for in a training step.

Paddle issues every all-reduce behind the backward pass, but on a stream of its own. What counts in time is the events:
work on a stream begins when what was issued before it on that stream is done, and the events that it waits for are.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.null_gpu import cases, door
from tests.null_gpu.door import Process, Step

pytestmark = pytest.mark.null_gpu

CASE = cases.Case(workload="rn50", recipe="nvidia_cosine", precision="amp_o2", mode="throughput")
WAYS_BACK = ("cudnnConvolutionBackward", "cudnnBatchNormalizationBackward", "cudnnPoolingBackward")


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """A sum of gradients over the ranks, and the points of the computing stream that it waits for."""

    elements: int
    kind: str  # half or float
    waits_for: list[int]  # indices into the step's events: each is a record on the computing stream


def computing_stream(process: Process) -> str:
    """Return the stream of cuDNN's calls, as `stream 1`."""
    (stream,) = process.computes_on
    return stream


def all_reduces(step: Step, computes_on: str) -> list[AllReduce]:
    """Return the step's all-reduces in the order in which they are issued."""
    recorded_at: dict[str, int] = {}  # event: where the computing stream recorded it last
    waits_for: list[int] = []  # of the all-reduce to come
    found = []
    for index, event in enumerate(step.events):
        kind, *about = event
        if kind == "record" and about[0] == computes_on:
            recorded_at[about[1]] = index
        elif kind == "wait" and about[0] != computes_on:
            waits_for.append(recorded_at[about[1]])
        elif kind == "nccl" and len(about) > 1:
            found.append(AllReduce(elements=int(about[1]), kind=about[2], waits_for=waits_for))
            waits_for = []
    return found


def last_way_back(step: Step) -> int:
    """Return the index of the last event of the backward pass."""
    return max(i for i, event in enumerate(step.events) if event[0] == "cudnn" and event[1].startswith(WAYS_BACK))


def filter_elements(event: list[str]) -> int:
    """Return the elements that the gradient of a filter takes in its bucket, of `half NHWC 64x4x7x7` as 12,544."""
    _, _, _, filters = event
    elements = 1
    for size in filters.split()[-1].split("x"):
        elements *= int(size)
    return cases.padded(elements, cases.WIDTHS["half"])


def early_waits(step: Step, computes_on: str) -> int:
    """Return how often the computing stream waits for another one before the backward pass is over."""
    waits = [i for i, event in enumerate(step.events) if event[0] == "wait" and event[1] == computes_on]
    assert waits, "the updates wait for the all-reduces"
    return sum(index < last_way_back(step) for index in waits)


def elements_made(step: Step, start: int, end: int) -> int:
    """Return the elements of the filters' gradients that are issued between two events."""
    calls = [event for event in step.events[start:end] if event[:2] == ["cudnn", "cudnnConvolutionBackwardFilter"]]
    return sum(filter_elements(event) for event in calls)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> door.Job:
    """A job with the network of users, on small images."""
    folder = tmp_path_factory.mktemp("streams")
    done = door.start(folder, **CASE.variables(folder) | {"NULLGPU_NETWORK": ""})
    assert done.done.returncode == 0, done.explained
    return done


def test_each_all_reduce_waits_for_the_gradients_of_its_bucket_alone(job: door.Job) -> None:
    network = cases.resnet50_layers(input_channels=4)  # the fourth is of zeros
    dense = sum(cases.padded(size, cases.WIDTHS["half"]) for size in network.dense)
    for process in job.ranks:
        step = process.training[1]
        sums = all_reduces(step, computing_stream(process))
        assert len(sums) == job.program["all_reduces"] == 6
        assert all(len(each.waits_for) == 1 for each in sums)

        made = dense  # the classifier's gradients come first
        done_to = 0
        for each in (each for each in sums if each.kind == "half"):
            (point,) = each.waits_for
            made += elements_made(step, done_to, point)
            assert made == each.elements
            made, done_to = 0, point
        assert done_to > last_way_back(step), "the last bucket has the first convolution's filter"

        (norms,) = (each for each in sums if each.kind == "float")
        (point,) = norms.waits_for
        left = [event for event in step.events[point:] if event[0] == "cudnn" and "NormalizationBackward" in event[1]]
        assert not left and point < last_way_back(step)


def test_the_backward_pass_waits_for_no_all_reduce(job: door.Job) -> None:
    """Where Paddle's thread that lays out the buffers keeps up: on a busy machine it may be late in a step."""
    for process in job.ranks:
        computes_on = computing_stream(process)
        _, *steps = process.training
        undisturbed = [step for step in steps if early_waits(step, computes_on) == 0]
        assert len(undisturbed) > len(steps) / 2
        assert not any(step.of("sync") for step in steps), "the host waits for nothing"


def test_late_buffers_change_no_order_of_all_reduces(tmp_path: Path) -> None:
    """Two ranks that issued them in two orders would wait for each other for ever."""
    late = {"NULLGPU_NETWORK": "", "NULLGPU_LATE_BUFFERS_US": "40000"}
    job = door.start(tmp_path, **CASE.variables(tmp_path) | late)
    assert job.done.returncode == 0, job.explained
    orders = set()
    for process in job.ranks:
        computes_on = computing_stream(process)
        _, *steps = process.training
        assert any(early_waits(step, computes_on) for step in steps), "they were late"
        for step in steps:
            orders.add(tuple((each.kind, each.elements) for each in all_reduces(step, computes_on)))
    assert len(orders) == 1
