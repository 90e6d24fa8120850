"""Each case of the matrix starts by the user's command on null GPUs, takes its steps, is evaluated, saved and resumed;
and each recipe does so in FP32 on the CPU. What a step asks of a GPU is held against what the network needs."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import paddle_hrnet.config
from harness import nvidia
from tests import jobs
from tests.null_gpu import cases, door, expected
from tests.null_gpu.cases import Case
from tests.null_gpu.door import BLOCKING, Job, Process, Step

pytestmark = pytest.mark.null_gpu

MATRIX = cases.matrix()
SHORT = cases.pairwise(MATRIX)
GRADIENTS = ("cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter")


def program_section(job: Job) -> dict[str, Any]:
    """What the log's header says of the training program."""
    for line in job.log.read_text().splitlines():
        if line.startswith('# {"program": '):
            return dict(json.loads(line[2:])["program"])
    raise AssertionError(f"{job.log} has no section program\n{job.explained}")


def run(case: Case, folder: Path) -> list[Job]:
    """The job, and where it trains its resumption in the middle too; both have ended as they must."""
    data = case.write_data(folder / "data")
    settings = case.variables(data)
    if binds(case):  # from one core, as RANK_NUMA alone may widen it
        before, settings = ("taskset", "--cpu-list", str(min(node_cores()))), settings | {"RANK_NUMA": "0,0"}
    else:
        before = ()
    first = door.start(folder, *before, **settings)
    if case.mode == "throughput":
        assert first.done.returncode == 0, first.explained
        return [first]
    end = f"evaluation is 0.0000 after {case.epochs} epochs, below the target"  # nothing is computed
    assert first.error.startswith(end), first.explained
    (checkpoint,) = (first.log.parent / "result_0.checkpoints").iterdir()
    assert checkpoint.name == f"step_{cases.STEPS * (case.epochs - 1):09d}.safetensors"
    again = door.start(folder, timeout_s=600, trial="result_0.resumed_1", RESUME="auto", **settings)
    assert again.error.startswith(end), again.explained
    return [first, again]


def binds(case: Case) -> bool:
    """Whether the case's ranks are put on the cores of their GPU's NUMA node, here this machine's first."""
    return (case.mode, case.ranks) == ("throughput", 2) and door.NODE.exists()


def node_cores() -> set[int]:
    """Cores of the first NUMA node."""
    return nvidia.cpu_list(door.NODE.read_text())


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=[] if c in SHORT else [pytest.mark.slow]) for c in MATRIX]
)
def test_a_gpu_is_asked_for_what_the_network_needs(case: Case, tmp_path: Path) -> None:
    epochs = case.epochs if case.mode == "train" else 2  # warm-up and measured steps
    for job, left in zip(run(case, tmp_path), (epochs, 1), strict=False):
        assert [process.rank for process in job.ranks] == list(range(case.ranks)), job.explained
        for process in job.ranks:
            assert len(process.training) == 1 + cases.STEPS * left, "the warm-up and each step"
            assert len(process.evaluation) == ((1 + evaluations(case, left)) if case.mode == "train" else 0)
            assert not process.refused
            assert process.devices == {process.rank}, "each rank has a GPU of its own"
            assert process.communicators == (case.ranks > 1)
            assert not binds(case) or process.cores == node_cores()
            taken = [step.of("alloc") for step in process.training[1:]]
            assert not any(name.startswith("device") for names in taken for name in names), (
                "the warm-up took all memory"
            )
            steady = process.training[1]  # the warm-up has built the program, and the loss is read after the next one
            check_layers(case, steady)
            check_host(case, steady)
            check_collectives(case, job, process)
            for step in process.evaluation:
                wanted = Counter({("cudnnConvolutionForward", *type_and_layout(case)): evaluated_convolutions(case)})
                if case.strategy == "resnet_unit=1":
                    network = resnet50(case)
                    wanted = units("Inference", evaluated_convolutions(case) - 1, network)
                    assert Counter({key: n for key, n in step.work("cudnn").items() if "Fused" in key[0]}) == wanted
                    wanted = Counter({("cudnnConvolutionForward", *type_and_layout(case)): 1})  # the stem's
                assert convolutions(step) == wanted


def resnet50(case: Case, **ends: int) -> expected.Network:
    """The case's ResNet-50."""
    return expected.resnet50(small=case.is_small, **ends)


def hrnet_w18(case: Case) -> int:
    """Normalized convolutions of the case's HRNet-W18."""
    return expected.hrnet_w18_convolutions(small=case.is_small)


def units(statistics: str, count: int, network: expected.Network) -> Counter[tuple[str, ...]]:
    """Forward calls of ResNet-50's units with `count` convolutions, three a bottleneck, with statistics each."""
    normalized = 3 * network.add_relu
    images = {("cudnnFusedConvolution", "half", "NHWC"): count, ("cudnnFusedNormalize", "half", "NHWC"): normalized}
    return Counter({**images, (f"cudnnFused{statistics}",): count})


def evaluations(case: Case, left: int) -> int:
    """Batches that a rank evaluates in the last `left` epochs."""
    recipe = cases.RECIPES[case.workload][case.recipe](case.batch * case.ranks)
    epochs = sum(recipe.is_eval_epoch(e, case.epochs) for e in range(case.epochs - left + 1, case.epochs + 1))
    at_once = case.ranks * (case.batch if case.workload == "rn50" else recipe.eval_batch)
    return epochs * math.ceil(cases.EVALUATED / at_once)


def layout(case: Case) -> str:
    """Of the images in the program: without a word, NHWC where cuDNN is fastest with it."""
    fastest = "NHWC" if case.workload == "rn50" and expected.TYPES[case.precision] == "half" else "NCHW"
    return case.layout or fastest


def type_and_layout(case: Case) -> tuple[str, str]:
    """Of the images between convolutions, as cuDNN is told: Paddle transposes those of an NHWC program but in FP16."""
    kind = expected.TYPES[case.precision]
    return kind, layout(case) if kind == "half" else "NCHW"


def convolutions(step: Step) -> Counter[tuple[str, ...]]:
    """Calls of cuDNN's convolutions by name, type and layout."""
    return Counter({key: n for key, n in step.work("cudnn").items() if key[0] in GRADIENTS})


def evaluated_convolutions(case: Case) -> int:
    """Convolutions of an evaluation's batch: the network's, once for each size and mirror image."""
    if case.workload == "rn50":
        return resnet50(case).convolutions
    recipe = paddle_hrnet.config.RECIPES[case.recipe](case.batch * case.ranks)
    return (hrnet_w18(case) + 1) * len(recipe.eval_scales) * (2 if recipe.eval_flip else 1)


def merged_updates(case: Case, network: expected.Network) -> int:
    """Calls of LARS's kernel, each for up to 59 parameters of one type: normalizations stay in FP32."""
    norms = 2 * len(network.normalized)
    of_a_type = (parameters(network) - norms, norms) if case.precision == "amp_o2" else (parameters(network),)
    return sum(math.ceil(count / 59) for count in of_a_type)


def check_layers(case: Case, step: Step) -> None:
    """Convolutions, normalizations, poolings and products of a training step, by type and layout."""
    about = type_and_layout(case)
    work = step.work("cudnn")
    if case.strategy == "resnet_unit=1":
        check_units(work, resnet50(case))
        return
    if case.workload == "hrnet":
        normalized, count = hrnet_w18(case), hrnet_w18(case) + 1
    else:
        network = resnet50(case)
        normalized, count = len(network.normalized), network.convolutions
        # The mean at the end is a pooling or a reduction, as the program has it.
        pooled = {key[1:]: n for key, n in work.items() if key[0] == "cudnnPoolingForward"}
        assert set(pooled) == {(about[0], layout(case))} and sum(pooled.values()) in (1, 2)
        assert sum(step.of("cublas work").values()) == network.products
        updates = merged_updates(case, network) if case.strategy == "merged_lars=1" else parameters(network)
        assert step.of("kernel")["lars_momentum"] == (updates if case.recipe == "mlperf_lars" else 0)
    assert convolutions(step) == Counter(
        dict(zip(((n, *about) for n in GRADIENTS), (count, count - 1, count), strict=True))
    )
    norms = Counter({key: n for key, n in work.items() if "Normalization" in key[0]})
    if spans_ranks(case):
        assert not norms, "a normalization over all ranks is Paddle's own kernel"
        return
    assert {key[1:] for key in norms} == {about}
    for way in ("cudnnBatchNormalizationForwardTrainingEx", "cudnnBatchNormalizationBackwardEx"):
        assert sum(n for key, n in norms.items() if key[0].startswith(way)) == normalized
        if case.workload == "rn50" and about == ("half", "NHWC"):
            fused = {f"{way}Relu": network.relu, f"{way}AddRelu": network.add_relu}
            plain = normalized - network.relu - network.add_relu
            assert {name: norms[(name, *about)] for name in (*fused, way)} == {**fused, way: plain}


def check_units(work: Counter[tuple[str, ...]], network: expected.Network) -> None:
    """A training step of ResNet-50 whose every convolution but the stem's is a unit's."""
    about = ("half", "NHWC")
    inside = network.convolutions - 1
    fused = Counter({key: n for key, n in work.items() if key[0].startswith("cudnnFused")})
    backward = {("cudnnFusedWgrad", *about): inside, ("cudnnFusedBackward", *about): inside}
    assert fused == units("Statistics", inside, network) + Counter(backward)
    found = {name: work[(name, *about)] for name in GRADIENTS}
    assert found == dict(zip(GRADIENTS, (1, inside, 1), strict=True))
    norms = Counter({key: n for key, n in work.items() if "Normalization" in key[0]})
    ways = ("cudnnBatchNormalizationForwardTrainingExRelu", "cudnnBatchNormalizationBackwardExRelu")
    assert norms == dict.fromkeys(((way, *about) for way in ways), 1)  # the stem's


def parameters(network: expected.Network) -> int:
    """Tensors that an optimizer updates: filters, scales and biases of normalizations, matrix and bias."""
    return len(network.filters) + 2 * len(network.normalized) + len(network.dense)


def check_host(case: Case, step: Step) -> None:
    """Between two reads of the loss the host waits for nothing, reads nothing, and copies only what it must."""
    copies = step.of("copy")
    assert not {name for name in copies if name.startswith("device to host") or name.endswith(BLOCKING)}, copies
    tables = expected.copies_to_device(case.precision)
    assert copies["host to device"] in (tables, tables + 1), copies  # the rate, where it changes
    assert not step.of("sync")


def spans_ranks(case: Case) -> bool:
    """Whether batch normalizations take their statistics over all ranks."""
    if case.workload == "rn50" or case.ranks == 1:
        return False
    return bool(paddle_hrnet.config.RECIPES[case.recipe](case.batch * case.ranks).sync_bn)


def check_collectives(case: Case, job: Job, process: Process) -> None:
    """One sum of every gradient, the same on all ranks; and a normalization's two, where it spans them."""
    step = process.training[1]
    assert [s.collectives for s in process.steps] == [s.collectives for s in job.ranks[0].steps]
    if case.ranks == 1:
        assert not step.collectives
        return
    assert {name for name, *_ in step.collectives} == {"AllReduce"}
    gradients = program_section(job)["all_reduces"]
    statistics = 2 * hrnet_w18(case) if spans_ranks(case) else 0
    assert len(step.collectives) == gradients + statistics
    assert all(place == "in place" for *_, place in step.collectives)
    # A normalization sums on the stream that it computes on, gradients on one of their own; there is no third.
    assert sum(sum(s.of("stream").values()) for s in process.steps) == 2
    streams = Counter(stream for _, _, _, _, stream, _ in step.collectives)
    (computes,) = process.computes_on
    assert streams.pop(computes, 0) == statistics and list(streams.values()) == [gradients]
    if case.workload == "rn50":
        recipe = cases.RECIPES["rn50"][case.recipe](case.batch * case.ranks)
        channels = 4 if type_and_layout(case) == ("half", "NHWC") else 3
        network = resnet50(case, classes=recipe.classes, input_channels=channels)
        elements: Counter[str] = Counter()
        for _, count, kind, *_ in step.collectives:
            elements[kind] += int(count)
        assert elements == expected.summed(network, case.precision)


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
    case = Case(workload=workload, recipe=recipe, precision="fp32", layout="", mode=mode, ranks=2)
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
    jobs.run(["./run_and_time.sh"], timeout_s=1200, LOGDIR=str(tmp_path / "logs"), RESUME="auto", **settings)
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
    assert done.returncode == 2 and "a run on null GPUs computes nothing and is no result" in done.stderr
    assert not (jobs.REPOSITORY / "results" / "null" / "DGXA100" / "rn50" / "result_0.txt").exists()
