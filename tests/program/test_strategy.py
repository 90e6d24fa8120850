"""Knobs of STRATEGY: each works and shows in the program, or is refused with its reason."""

import re
from dataclasses import fields
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import static
from paddle.distributed.fleet.base import distributed_strategy

from harness import loop, workload
from harness.job import job_of
from program import strategy
from program.optimizers import OptimizerConfig
from program.passes import resnet_unit
from tests.jobs import REPOSITORY
from tests.program import programs


@pytest.mark.parametrize("name", sorted(strategy.REFUSED))
def test_what_this_paddle_swallows_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is refused: .{{20}}"):
        strategy.parse(f"{name}=1")


def test_every_knob_of_fleetx_is_known() -> None:
    fleetx = """
    conv_workspace_size_limit cudnn_batchnorm_spatial_persistent fuse_grad_size_in_MB _fuse_grad_size_in_TFLOPS
    cudnn_exhaustive_search sync_nccl_allreduce num_threads num_iteration_per_drop_scope enable_inplace
    fuse_elewise_add_act_ops fuse_bn_act_ops nccl_comm_num amp auto
    """
    knobs = {f.name for f in fields(strategy.Strategy)}
    assert set(fleetx.split()) <= knobs | strategy.REFUSED.keys()
    assert not knobs & strategy.REFUSED.keys()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fuse_grad_size_in_MB=0", "must be 0.001 to 2147483647"),
        ("fuse_grad_size_in_MB=nan", "must be 0.001 to 2147483647"),
        ("fuse_grad_size_in_MB=big", "must be a number"),
        ("fuse_grad_size_in_MB=inf", "to 2147483647"),
        ("conv_workspace_size_limit=1000000000000000000000000000000", "to 2147483647"),
        ("gradient_merge=\N{ARABIC-INDIC DIGIT TWO}", "must be a whole number"),
        ("gradient_merge=1_6", "must be a whole number"),
        ("gradient_merge=1.5", "must be a whole number"),
        ("fuse_bn_act_ops=2", "must be 0 or 1"),
        ("auto=1", "use auto alone"),
        ("bogus=1", "no knob 'bogus'"),
        ("gradient_merge=0", "must be 1 to"),
    ],
)
def test_a_wrong_value_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        strategy.parse(text)


AUTO = {"strategy": "auto", "device": "gpu", "dgxngpu": 8, "precision": "amp_o1", "mode": "throughput"}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"strategy": "gradient_merge=3"}, "gradient_merge=3: must divide BATCHSIZE=16"),
        ({"strategy": "perturb_input=1"}, "perturb_input=1 is a control"),
        (AUTO | {"device": "cpu", "precision": "fp32"}, "over 8 GPUs, and a CPU cannot: set DEVICE=gpu"),
        (AUTO | {"dgxngpu": 4}, "divides the state over 8 GPUs"),
        (AUTO | {"dgxnnodes": 2}, "divides the state over 8 GPUs"),
        (AUTO | {"precision": "fp32"}, "trains in mixed precision: set PRECISION=amp_o1"),
        (AUTO | {"mode": "train"}, "trains by LARS, not by the recipe"),
        (AUTO | {"loss_scale": 2048}, "scales its loss by itself: set LOSS_SCALE=0"),
    ],
)
def test_what_does_not_go_with_the_job_is_refused(job: dict[str, Any], message: str) -> None:
    """The automatic mode is taken where the log can say what ran."""
    with pytest.raises(ValueError, match=f"^STRATEGY.* {message}"):
        workload.plan_of(job_of(**job))
    assert workload.plan_of(job_of(**AUTO)).strategy.auto
    assert workload.plan_of(job_of(strategy="gradient_merge=4")).micro_batch(16) == 4


def test_a_batch_is_split_without_a_copy() -> None:
    array = np.arange(12, dtype=np.float32).reshape(6, 2)
    tensor = paddle.base.core.LoDTensor()  # as the input pipeline of a GPU hands it over
    tensor.set(array, paddle.CPUPlace())
    parts = loop.parts({"image": tensor, "label": array}, 3)
    for number, part in enumerate(parts):
        assert part["image"]._ptr() == tensor._ptr() + number * array.nbytes // 3
        assert part["label"].base is not None
        for name in ("image", "label"):
            assert np.array_equal(np.array(part[name]), array[2 * number : 2 * number + 2])


def test_a_strategy_is_written_as_it_is_read() -> None:
    exact = "fuse_grad_size_in_MB=16.1234567,conv_workspace_size_limit=1234567"
    for text in ("", "auto", "fuse_grad_size_in_MB=4,fuse_bn_act_ops=0", "cudnn_exhaustive_search=0", exact):
        chosen = strategy.parse(text)
        assert strategy.parse(strategy.in_words(chosen)) == chosen
        assert strategy.parse(f" {text.replace(',', ' , ')} ") == chosen


def test_every_flag_exists_and_a_knob_wins_over_the_systems() -> None:
    of_systems = {
        name
        for config in (*REPOSITORY.glob("config_*.sh"), *REPOSITORY.glob("launch/dgx*.sh"))
        for name in re.findall(r"^export (FLAGS_\w+)=", config.read_text(), re.MULTILINE)
    }
    knobs = strategy.parse(
        "conv_workspace_size_limit=1234,cudnn_exhaustive_search=0,cudnn_batchnorm_spatial_persistent=0"
    )
    assert of_systems and knobs.flags.keys() == of_systems | {"FLAGS_conv_workspace_size_limit"}
    # Raises for one that does not exist.
    before = paddle.get_flags([*knobs.flags, "FLAGS_max_inplace_grad_add", "FLAGS_new_executor_serial_run"])
    try:
        paddle.set_flags({"FLAGS_conv_workspace_size_limit": 77, "FLAGS_cudnn_exhaustive_search": True})
        programs.fresh(knobs="cudnn_exhaustive_search=0", device="gpu")
        found = paddle.get_flags(list(knobs.flags))
    finally:
        paddle.set_flags(before)
    assert found["FLAGS_conv_workspace_size_limit"] == 77
    assert found["FLAGS_cudnn_exhaustive_search"] is False


FP32_CPU: dict[str, Any] = {"name": "fp32", "device": "cpu", "ranks": 1}


@pytest.mark.parametrize(
    ("knobs", "more", "reason"),
    [
        ("fuse_bn_add_act_ops=1", {"name": "tf32"}, "FP16 in NHWC only: leave it out, or .* without LAYOUT=NCHW$"),
        ("fuse_bn_act_ops=1", {"layout": "NCHW"}, "takes FP16 in NHWC only"),
        ("enable_addto=1", FP32_CPU, "the gradients would be wrong"),
        ("cuda_graph=1", FP32_CPU, "cuda_graph=1: a CPU has no CUDA graphs"),
        ("cuda_graph=1,gradient_merge=2", {}, "cuda_graph=1: .* gradient_merge has two"),
        ("resnet_unit=1", FP32_CPU, "resnet_unit=1: Paddle has its kernel for GPUs, in FP16 and NHWC"),
        ("resnet_unit=1", {"layout": "NCHW"}, "resnet_unit=1: Paddle has its kernel for GPUs"),
        ("resnet_unit=1", {"stages": ((4, 1),)}, "resnet_unit is on and .* no resnet_unit: leave it out"),
        ("cudnn_exhaustive_search=0", FP32_CPU, "cudnn_exhaustive_search: a CPU computes without cuDNN: leave it out"),
        ("fuse_grad_size_in_MB=1", {"ranks": 1}, "fuse_grad_size_in_MB: one rank has no all-reduce: leave it out, or"),
        ("fuse_elewise_add_act_ops=1", {}, "fuse_elewise_add_act_ops is on and .* has no"),  # batch norm took all
        ("fuse_bn_add_act_ops=1", {"stages": ()}, "fuse_bn_add_act_ops is on and the program has no .*: leave it out"),
        ("enable_addto=1", {"stages": ()}, "enable_addto is on and the program has no .*: leave it out"),
    ],
)
def test_a_knob_that_can_change_nothing_is_refused(knobs: str, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        programs.build(**({"name": "amp_o2", "device": "gpu", "ranks": 8, "knobs": knobs} | more))


def test_what_auto_chose_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # Paddle leaves its automatic mode for good once a process has set any other knob, as tests before this one did.
    monkeypatch.setattr(distributed_strategy, "non_auto_func_called", True)
    built = programs.fresh(device="gpu", ranks=8, knobs="auto")
    said = list(built.verified)
    assert said[0].startswith("STRATEGY=auto chose ")
    assert any("the program updates" in line and "lars_momentum" in line for line in said)


def test_an_optimizer_that_is_not_there_is_refused_where_it_is_said() -> None:
    """An unknown kind once built LARS without a word."""
    with pytest.raises(ValueError, match=r"^optimizer 'adamw': must be one of sgd, lars$"):
        OptimizerConfig(kind="adamw", momentum=0.9, weight_decay=1e-4)


@pytest.mark.parametrize(
    ("channels", "outputs", "is_taken"), [(8, 32, True), (16, 64, True), (4, 32, False), (8, 48, False)]
)
def test_a_unit_takes_channels_in_the_multiples_of_its_kernel(channels: int, outputs: int, is_taken: bool) -> None:
    paddle.enable_static()
    main = static.Program()
    with static.program_guard(main, static.Program()):
        image = static.data("image", [2, 4, 4, channels], "float32")
        static.nn.conv2d(image, outputs, 1, bias_attr=False, data_format="NHWC")
    block = main.global_block()
    convolution = next(op for op in block.ops if op.type == "conv2d")
    assert resnet_unit.takes_convolution(convolution, block) == is_taken
