"""Each case of the matrix starts by the user's command on null GPUs, takes its steps, is evaluated, saved and resumed;
and each recipe does so in FP32 on the CPU. What a step asks of a GPU is held against what the network needs. A training
whose step is captured as a CUDA graph asks the host for little: what a step of the graph itself does is what was
recorded at its capture.
"""

import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from compliance.__main__ import main as compliance
from compliance.strict import measured
from harness import nvidia_smi
from tests import jobs
from tests.null_gpu import cases, door
from tests.null_gpu.cases import Case
from tests.null_gpu.door import BLOCKING, Job, Process, Step

pytestmark = pytest.mark.null_gpu

MATRIX = cases.matrix()
SHORT = cases.pairwise(MATRIX)
GRADIENTS = ("cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter")

# What the check of a log is right to find: each a rule, and how its finding begins.
Finding = tuple[str, str]
# Nothing is computed, and the log says so.
OF_NULL_GPU: list[Finding] = [("run-mode", "environment names a null GPU"), ("run-mode", "hardware names a null GPU")]
# It has no epochs and no target, its images are made up, and its losses were never computed.
OF_THROUGHPUT: list[Finding] = [
    *((f"{part}_{end}.count", "none") for part in ("block", "epoch", "eval") for end in ("start", "stop")),
    ("eval_accuracy.count", "none"),
    ("run-mode", "run_summary's mode is throughput"),
    ("run-mode", "run_summary's data is synthetic"),
    ("own-log", "all losses of the first "),
]
OF_TRAINING: list[Finding] = [("run-status", "status aborted: evaluation is 0.0000 after ")]  # so it misses its target
OF_RESUMED: list[Finding] = [("run-mode", "run_summary's resumed is true")]  # its first epochs are in another log


def run(case: Case, folder: Path) -> list[Job]:
    """The job, and where it trains its resumption in the middle too; both have ended as they must."""
    data = case.write_data(folder / "data")
    settings = case.variables(data)
    if case.mode == "train":
        return door.trained_twice(case, folder, **settings)
    if binds(case):
        settings |= {"RANK_NUMA": "0,0"}
    job = door.start(folder, **settings)
    assert job.done.returncode == 0, job.explained
    return [job]


def binds(case: Case) -> bool:
    """Whether the case's ranks are put on the cores of their GPU's NUMA node, here this machine's first."""
    return (case.mode, case.ranks) == ("throughput", 2) and door.NODE.exists()


def node_cores() -> set[int]:
    """Cores of the first NUMA node that this process may use."""
    return nvidia_smi.cpu_list(door.NODE.read_text()) & os.sched_getaffinity(0)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=[] if c in SHORT else [pytest.mark.slow]) for c in MATRIX]
)
def test_a_gpu_is_asked_for_what_the_network_needs(case: Case, tmp_path: Path) -> None:
    epochs = case.epochs if case.mode == "train" else 2  # warm-up and measured steps
    for job, left in zip(run(case, tmp_path), (epochs, 1), strict=False):
        assert [process.rank for process in job.ranks] == list(range(case.ranks)), job.explained
        check_findings(case, job.log)
        for process in job.ranks:
            assert len(process.training) == 1 + cases.STEPS * left, "the warm-up and each step"
            assert len(process.evaluation) == (1 + case.evaluations(left) if case.mode == "train" else 0)
            assert not process.refused
            assert process.devices == {process.rank}, "each rank has a GPU of its own"
            assert process.communicators == (case.ranks > 1)
            assert not binds(case) or process.cores == node_cores()
            taken = [name for step in process.training[1:] for name in step.of("alloc")]
            assert not any(name.startswith("device") for name in taken), "the warm-up took all memory"
            steady = process.training[1]  # the warm-up has built the program, and the loss is read after the next one
            check_layers(case, steady)
            check_host(case, steady)
            check_collectives(case, job, process)
            for step in process.evaluation:
                check_evaluation(case, step)


def right_findings(case: Case, *, resumed: bool) -> list[Finding]:
    """What the check must find of a case's log."""
    right = [*OF_NULL_GPU]
    if case.is_small:  # its network has fewer blocks than the benchmark's
        convolutions = case.convolutions
        if "resnet_unit=1" in case.strategy:
            convolutions -= 4  # each stage's projection is in the unit that adds it
        right.append(("own-log", f"a program of {convolutions} convolutions; the model has "))
        right.append(("own-log", f"a program of {case.gradients} gradients; its model has "))
        if case.ranks > 1:
            right.append(("own-log", "a program whose all-reduces sum "))
    right += OF_TRAINING if case.mode == "train" else OF_THROUGHPUT
    if resumed:
        right += OF_RESUMED
    return right


def check_findings(case: Case, log: Path) -> None:
    """The check accuses the log of what a null GPU must make of it, and of nothing else.

    The ranks compute on the cores of a busy machine, so one may be later at an epoch's end than on a GPU.
    """
    right = right_findings(case, resumed="resumed" in log.name)
    with mock.patch.object(measured, "most_wait_for_ranks_ms", autospec=True, return_value=5000.0):
        done = jobs.called(compliance, "check", log, "--json")
    [file] = json.loads(done.stdout)["files"]
    found = []
    for finding in file["findings"]:
        if finding["severity"] != "info":
            begins = [begin for rule, begin in right if rule == finding["rule"] and finding["actual"].startswith(begin)]
            found.append((finding["rule"], begins[0] if begins else finding["actual"]))
    assert sorted(found) == sorted(right)


def check_evaluation(case: Case, step: Step) -> None:
    """Convolutions of an evaluation's batch: the network's, once for each size and mirror image."""
    count, recipe = case.convolutions, case.hyperparameters
    if case.workload == "hrnet":
        count *= len(recipe.eval_scales) * (2 if recipe.eval_flip else 1)
    if case.strategy == "resnet_unit=1":
        assert named(step.work("cudnn"), "Fused") == units("Inference", count - 1, case.resnet50)
        count = 1  # the stem's
    assert named(step.work("cudnn"), *GRADIENTS) == {("cudnnConvolutionForward", *case.between): count}


def named(work: Counter[tuple[str, ...]], *parts: str) -> dict[tuple[str, ...], int]:
    """Calls in whose name one of these stands."""
    return {call: n for call, n in work.items() if any(part in call[0] for part in parts)}


def units(statistics: str, count: int, network: cases.Network) -> dict[tuple[str, ...], int]:
    """Forward calls of ResNet-50's units with `count` convolutions, three a bottleneck, with statistics each."""
    normalized = 3 * network.add_relu
    found: dict[tuple[str, ...], int] = {("cudnnFusedConvolution", "half", "NHWC"): count}
    found[("cudnnFusedNormalize", "half", "NHWC")] = normalized
    found[(f"cudnnFused{statistics}",)] = count
    return found


def updates(case: Case) -> int:
    """Calls of LARS's kernel: one a parameter, or one for up to 59 of one type; normalizations stay in FP32."""
    network = case.resnet50
    norms = 2 * len(network.normalized)
    others = len(network.filters) + len(network.dense)
    if case.strategy != "merged_lars=1":
        return norms + others
    of_a_type = (others, norms) if case.precision == "amp_o2" else (others + norms,)
    return sum(math.ceil(count / 59) for count in of_a_type)


def check_layers(case: Case, step: Step) -> None:
    """Convolutions, normalizations, poolings and products of a training step, by type and layout."""
    about, work, count = case.between, step.work("cudnn"), case.convolutions
    if case.strategy == "resnet_unit=1":
        check_units(work, case)
        return
    if case.workload == "rn50":
        # The mean at the end is a pooling or a reduction, as the program has it.
        pooled = {key[1:]: n for key, n in work.items() if key[0] == "cudnnPoolingForward"}
        assert set(pooled) == {(about[0], case.fed)} and sum(pooled.values()) in (1, 2)
        assert sum(step.of("cublas work").values()) == case.resnet50.products
        assert step.of("kernel")["lars_momentum"] == (case.recipe == "mlperf_lars") * updates(case)
    counts = zip(GRADIENTS, (count, count - 1, count), strict=True)
    assert named(work, *GRADIENTS) == {(name, *about): n for name, n in counts}
    norms = named(work, "Normalization")
    if case.spans_ranks:
        assert not norms, "a normalization over all ranks is Paddle's own kernel"
        return
    assert {key[1:] for key in norms} == {about}
    for way in ("cudnnBatchNormalizationForwardTrainingEx", "cudnnBatchNormalizationBackwardEx"):
        assert sum(n for key, n in norms.items() if key[0].startswith(way)) == case.normalizations
        if case.workload == "rn50" and about == ("half", "NHWC"):
            network = case.resnet50
            fused = {f"{way}Relu": network.relu, f"{way}AddRelu": network.add_relu}
            plain = case.normalizations - network.relu - network.add_relu
            keys = {name: (name, *about) for name in (*fused, way)}
            assert {name: norms[key] for name, key in keys.items()} == {**fused, way: plain}


def check_units(work: Counter[tuple[str, ...]], case: Case) -> None:
    """A training step of ResNet-50 whose every convolution but the stem's is a unit's."""
    about = ("half", "NHWC")
    inside = case.convolutions - 1
    backward = {("cudnnFusedWgrad", *about): inside, ("cudnnFusedBackward", *about): inside}
    assert named(work, "cudnnFused") == units("Statistics", inside, case.resnet50) | backward
    keys = {name: (name, *about) for name in GRADIENTS}
    found = {name: work[key] for name, key in keys.items()}
    assert found == dict(zip(GRADIENTS, (1, inside, 1), strict=True))
    ways = ("cudnnBatchNormalizationForwardTrainingExRelu", "cudnnBatchNormalizationBackwardExRelu")
    assert named(work, "Normalization") == dict.fromkeys(((way, *about) for way in ways), 1)  # the stem's


def check_host(case: Case, step: Step) -> None:
    """Between two reads of the loss the host waits for nothing, reads nothing, and copies only what it must."""
    copies = step.of("copy")
    assert not {name for name in copies if name.startswith("device to host") or name.endswith(BLOCKING)}, copies
    tables = cases.copies_to_device(case.precision)
    assert copies["host to device"] in (tables, tables + 1), copies  # the rate, where it changes
    assert not step.of("sync")


def check_collectives(case: Case, job: Job, process: Process) -> None:
    """One sum of every gradient, the same on all ranks; and a normalization's two, where it spans them."""
    step = process.training[1]
    assert [s.collectives for s in process.steps] == [s.collectives for s in job.ranks[0].steps]
    if case.ranks == 1:
        assert not step.collectives
        return
    assert {name for name, *_ in step.collectives} == {"AllReduce"}
    gradients = job.program["all_reduces"]
    statistics = 2 * case.normalizations if case.spans_ranks else 0
    assert len(step.collectives) == gradients + statistics
    assert all(place == "in place" for *_, place in step.collectives)
    # A normalization sums on the stream that it computes on, gradients on one of their own; there is no third.
    assert sum(sum(s.of("stream").values()) for s in process.steps) == 2
    streams = Counter(stream for _, _, _, _, stream, _ in step.collectives)
    (computes,) = process.computes_on
    assert streams.pop(computes, 0) == statistics and list(streams.values()) == [gradients]
    if case.workload == "rn50":
        elements: Counter[str] = Counter()
        for _, count, kind, *_ in step.collectives:
            elements[kind] += int(count)
        assert elements == cases.summed(case.resnet50, case.precision)


SLOW_ON_CPU = [recipe for recipe in cases.RECIPES["hrnet"] if recipe != "scenes_small"] + ["mlperf_lars"]


@pytest.mark.parametrize(
    ("workload", "recipe"),
    [
        pytest.param(workload, recipe, marks=[pytest.mark.slow] if recipe in SLOW_ON_CPU else [])
        for workload, of in cases.RECIPES.items()
        for recipe in of
    ],
)
def test_a_recipe_trains_on_the_cpu(workload: str, recipe: str, tmp_path: Path) -> None:
    mode = "throughput" if recipe == "mlperf_lars" else "train"  # whose smallest batch takes 20 s a step
    case = Case(workload=workload, recipe=recipe, precision="fp32", mode=mode, ranks=1)  # two take twice the work
    settings = {**door.FEW, "DGXSYSTEM": "CPU", "DEVICE": "cpu", **case.variables(case.write_data(tmp_path / "data"))}
    if mode == "throughput":
        settings |= {"WARMUP_STEPS": "1", "MEASURED_STEPS": "1"}
    log = tmp_path / "logs" / "CPU" / workload / "result_0.txt"
    done = jobs.run(["./run_and_time.sh"], timeout_s=1200, LOGDIR=str(tmp_path / "logs"), **settings)
    windows = jobs.values(log, "step_window")
    assert all(0 < window["loss"] < 20 for window in windows), windows
    if mode == "throughput":
        assert done.returncode == 0 and len(windows) == 2, done.stderr
        return
    assert f"after {case.epochs} epochs, below the target" in done.stderr and len(windows) == case.epochs
    done = jobs.run(["./run_and_time.sh"], timeout_s=1200, LOGDIR=str(tmp_path / "logs"), RESUME="auto", **settings)
    assert f"after {case.epochs} epochs, below the target" in done.stderr, done.stderr
    again = jobs.values(log.with_name("result_0.resumed_1.txt"), "step_window")
    losses = [window["loss"] for window in windows[case.epochs - 1 :]]
    assert [window["loss"] for window in again] == pytest.approx(losses, rel=1e-3)


def test_no_log_of_a_null_gpu_lies_among_results(tmp_path: Path) -> None:
    command = [str(door.RUN), "./run_and_time.sh"]
    for folder in ("results", "results/new"):
        done = jobs.run(command, LOGDIR=folder, NULLGPU_OUT=str(tmp_path), **door.FEW)
        assert done.returncode == 2 and f"error: LOGDIR={folder}" in done.stderr
    hidden = [str(door.RUN), "env", "LOGDIR=results/null", "./run_and_time.sh"]
    done = jobs.run(hidden, LOGDIR=str(tmp_path), NULLGPU_OUT=str(tmp_path), **door.FEW)
    assert done.returncode == 2 and "a run on null GPUs computes nothing and is not a result" in done.stderr
    assert not (jobs.REPOSITORY / "results" / "null" / "DGXA100" / "rn50" / "result_0.txt").exists()


# ---- a step captured as a CUDA graph

CAPTURED = cases.Case(workload="rn50", recipe="nvidia_cosine", precision="amp_o2", strategy="cuda_graph=1")
CAPTURED_HRNET = cases.Case(workload="hrnet", recipe="scenes_small", precision="fp32", strategy="cuda_graph=1")


def captured_step(process: Process) -> Step:
    """The run that was captured: it waits for nothing, and its temporaries are of the graph's own pool."""
    *_, before, captured = (step for step in process.steps if not step.fed)  # a capture begins before its run
    assert before.counts["graph", "capture"] == 1 and not captured.of("sync") and not captured.of("graph")
    assert captured.of("cudnn work") and not captured.counts["copy", "host to device"]
    assert captured.counts["alloc", "device, of a graph"] > 0 and not captured.counts["alloc", "device"]
    return captured


def check_captured_steps(job: Job, *, epochs: int) -> None:
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


@pytest.mark.parametrize(
    "case",
    [
        CAPTURED,
        pytest.param(replace(CAPTURED, precision="amp_o1"), marks=pytest.mark.slow),
        pytest.param(replace(CAPTURED, precision="fp32"), marks=pytest.mark.slow),
        pytest.param(CAPTURED_HRNET, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_training_is_captured_evaluated_saved_and_resumed(case: Case, tmp_path: Path) -> None:
    data = case.write_data(tmp_path / "data")
    is_hrnet = case.workload == "hrnet"
    images = data / ("train.txt" if is_hrnet else "train_list.txt")
    with images.open("a") as file:  # a part of a batch is left over
        file.write("0.png 1.png.label.png\n" if is_hrnet else "0.jpeg 1\n")
    first, again = door.trained_twice(case, tmp_path, **case.variables(data))
    check_captured_steps(first, epochs=case.epochs)
    check_captured_steps(again, epochs=1)
    check_findings(case, first.log)
    check_findings(case, again.log)
    assert any(line.startswith("cuda_graph: ") for line in first.program["verified"])
    content = next((first.log.parent / "result_0.checkpoints").iterdir()).read_bytes()
    names = list(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))
    given = ("image", "label", "captured.", "bucket_")
    assert not [name for name in names if name.startswith(given) or "@GRAD" in name]


def test_a_step_with_normalizations_over_two_ranks_is_captured(tmp_path: Path) -> None:
    """HRNet's: statistics and gradients are summed inside the graph, and a step asks the host for 3 things."""
    case = replace(CAPTURED_HRNET, recipe="cityscapes_benchmark", mode="throughput")
    job = door.start(tmp_path, **case.variables(tmp_path))
    assert job.done.returncode == 0, job.explained
    check_findings(case, job.log)
    for process in job.ranks:
        captured = captured_step(process)
        assert len(captured.collectives) == job.program["all_reduces"] + 2 * case.normalizations
        assert {stream for _, _, _, _, stream, _ in captured.collectives} == process.computes_on
        asked = dict(process.replayed[0].counts)
        assert asked == {("copy", "device to device"): 2, ("graph", "launch"): 1}


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
    case = replace(CAPTURED, mode="throughput", ranks=1, precision=precision, strategy=f"{CAPTURED.strategy},{knobs}")
    job = door.start(tmp_path, **case.variables(tmp_path))
    assert job.done.returncode == 0, job.explained
    check_findings(case, job.log)
    (process,) = job.ranks
    captured_step(process)
    asked = dict(process.replayed[0].counts)
    assert asked == {("copy", "device to device"): 2, ("graph", "launch"): 1}, "host operations of a step: 3"
