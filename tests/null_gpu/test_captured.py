"""A training whose step is captured as a CUDA graph starts by the user's command on two null GPUs, is evaluated, saved
and resumed, and asks the host for little: what a step of the graph itself does is what was recorded at its capture."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.null_gpu import cases, door
from tests.null_gpu.door import Job, Process, Step

pytestmark = pytest.mark.null_gpu

CASE = cases.Case(workload="rn50", recipe="nvidia_cosine", precision="amp_o2", strategy="cuda_graph=1")


def captured_step(process: Process) -> Step:
    """The run that was captured: it waits for nothing, and its temporaries are of the graph's own pool."""
    *_, before, captured = (step for step in process.steps if not step.fed)  # a capture begins before its run
    assert before.counts["graph", "capture"] == 1 and not captured.of("sync") and not captured.of("graph")
    assert captured.of("cudnn work") and not captured.counts["copy", "host to device"]
    assert captured.counts["alloc", "device, of a graph"] > 0 and not captured.counts["alloc", "device"]
    return captured


def check_steps(job: Job, *, epochs: int) -> None:
    """Warm-ups, capture, and one launch a step."""
    for process in job.ranks:
        captured = captured_step(process)
        assert process.communicators == 1 and process.devices == {process.rank}
        assert [step.collectives for step in process.steps] == [step.collectives for step in job.ranks[0].steps]
        # Issued where the step computes.
        assert {stream for _, _, _, _, stream, _ in captured.collectives} == process.computes_on
        assert len(process.replayed) == cases.STEPS * epochs
        for number, step in enumerate(process.replayed):
            assert step.counts["graph", "launch"] == 1 and not step.counts["graph", "stale copy"]
            assert not step.of("cudnn work") or number % cases.STEPS, "an evaluation follows an epoch's last step alone"
            if number % cases.STEPS == 0:  # the loss is not read
                asked = {key: n for key, n in step.counts.items() if key[0] != "memory"}
                # The input is in its place: DALI has written it there, on a GPU by two copies.
                assert asked == {("graph", "launch"): 1}


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("amp_o1", "fp32")]


@pytest.mark.parametrize("precision", [CASE.precision, *OTHERS])
def test_a_training_is_captured_evaluated_saved_and_resumed(precision: str, tmp_path: Path) -> None:
    data = CASE.write_data(tmp_path / "data")
    with (data / "train_list.txt").open("a") as file:  # a part of a batch is left over
        file.write("0.jpeg 1\n")
    case = replace(CASE, precision=precision)
    first, again = door.trained_twice(case, tmp_path, **case.variables(data))
    check_steps(first, epochs=CASE.epochs)
    check_steps(again, epochs=1)
    assert any(line.startswith("cuda_graph: ") for line in first.program["verified"])
    content = next((first.log.parent / "result_0.checkpoints").iterdir()).read_bytes()
    names = list(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))
    given = ("image", "label", "captured.", "bucket_")
    assert not [name for name in names if name.startswith(given) or "@GRAD" in name]


@pytest.mark.parametrize(
    ("precision", "knobs"),
    [
        ("amp_o2", ""),
        pytest.param("amp_o1", "", marks=pytest.mark.slow),
        ("fp32", ""),
        pytest.param("amp_o2", "resnet_unit=1", marks=pytest.mark.slow),
        pytest.param("amp_o2", "perturb_input=1", marks=pytest.mark.slow),
    ],
)
def test_synthetic_batches_take_two_copies_and_a_launch_a_step(precision: str, knobs: str, tmp_path: Path) -> None:
    case = replace(CASE, mode="throughput", ranks=1, precision=precision, strategy=f"{CASE.strategy},{knobs}")
    job = door.start(tmp_path, **case.variables(tmp_path))
    assert job.done.returncode == 0, job.explained
    (process,) = job.ranks
    captured_step(process)
    asked = dict(process.replayed[0].counts)
    assert asked == {("copy", "device to device"): 2, ("graph", "launch"): 1}, "host operations of a step: 3"
