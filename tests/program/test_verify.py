"""Each reason to refuse a program: a sound one passes, and fails when that one thing in it is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest

from program.ops import BACKWARD, FACTORS, LOSS, OPTIMIZE, is_merge, operands
from program.passes import edit
from program.proof import kernels, verify
from tests.program import programs
from tests.program.programs import proved

RANKS = 8
UPDATE, CHECK = "merged_momentum", "check_finite_and_unscale"
LARS = programs.replace(programs.RECIPE, optimizer=programs.LARS)
UNITS = {"stages": ((32, 2), (64, 2))}  # whole tiles of channels
FP32, UNFUSED = {"name": "fp32"}, "fuse_bn_add_act_ops=0,fuse_elewise_add_act_ops=0"


@pytest.fixture(scope="module")
def half() -> programs.Built:
    return programs.build(name="amp_o2", device="gpu", ranks=RANKS)


@pytest.fixture(scope="module")
def full() -> programs.Built:
    return programs.build(device="gpu", ranks=RANKS)


def ops(block: Any, kind: str) -> list[Any]:
    return [op for op in block.ops if op.type == kind]


def remove(block: Any, *unwanted: Any) -> None:
    for op in unwanted:
        block._remove_op(block.ops.index(op))


def lose(block: Any, kind: str, slot: str) -> None:
    """Has the operators of a kind read or write what nobody else does."""
    for op in ops(block, kind):
        change = op.desc.set_input if slot in op.input_names else op.desc.set_output
        change(slot, [f"{name}.lost" for name in (op.input if slot in op.input_names else op.output)(slot)])


def in_place(block: Any, at: int, kind: str, name: list[str], **attrs: Any) -> None:
    """A new operator that changes a variable."""
    edit.insert(block, at, kind, {"X": name}, {"Out": name}, op_role=BACKWARD, **attrs)


def add_again(block: Any, at: int, x: list[str], y: list[str]) -> None:
    edit.insert(block, at, "elementwise_add", {"X": x, "Y": y}, {"Out": x}, axis=-1, op_role=BACKWARD)


def update(block: Any, gradient: list[str]) -> None:
    edit.insert(block, len(block.ops), UPDATE, {"Param": ["fc.b"], "Grad": gradient}, {}, mu=0.9, op_role=OPTIMIZE)


def write_after_sum(block: Any) -> None:
    waits = ops(block, "depend")[0]
    add_again(block, block.ops.index(waits) + 1, waits.output("Out"), waits.output("Out"))


def sum_anew(block: Any, kind: str, after: str = "", **attrs: Any) -> None:
    """Replaces the first all-reduce by an operator in its place, or after the last one of another kind."""
    reduce = ops(block, "c_allreduce_sum")[0]
    at, buffer = block.ops.index(ops(block, after)[-1]) + 1 if after else block.ops.index(reduce), reduce.input("X")
    remove(block, reduce)
    in_place(block, at, kind, buffer, ring_id=0, **attrs)


def sum_twice(block: Any) -> None:
    reduce = ops(block, "c_allreduce_sum")[0]
    in_place(block, block.ops.index(reduce), reduce.type, reduce.input("X"), ring_id=0)


def start(block: Any) -> Any:
    return next(op for op in block.ops if op.attr("op_role") == BACKWARD | LOSS)


def scale_of_ranks(block: Any) -> Any:
    return next(op for op in ops(block, "scale") if op.attr("op_role") == BACKWARD)


def join_two_scales(block: Any) -> None:
    gradients = ops(block, "conv2d_grad")[0].output("Filter@GRAD")
    at = block.ops.index(ops(block, "conv2d_grad")[0]) + 1
    half = [block.create_var(name="half", dtype="float16").name]
    edit.insert(block, at, "sum", {"X": gradients + half}, {"Out": gradients}, op_role=BACKWARD)
    edit.insert(block, at, "scale", {"X": gradients}, {"Out": half}, scale=0.5, op_role=BACKWARD)


@pytest.mark.parametrize(
    ("reason", "broken"),
    [
        ("no optimizer updates", lambda b: remove(b, ops(b, UPDATE)[-1])),
        ("is updated twice", lambda b: update(b, ops(b, UPDATE)[0].input("Grad")[:1])),
        ("which no gradient of the loss reaches", lambda b: lose(b, UPDATE, "Grad")),
        ("is unscaled but no gradient reaches it", lambda b: lose(b, CHECK, "X")),
        ("is written by elementwise_add after its sum over the ranks", write_after_sum),
        ("before it is computed", lambda b: sum_anew(b, "c_allreduce_sum", after="coalesce_tensor")),
        ("goes through c_reduce_sum: this is not an all-reduce", lambda b: sum_anew(b, "c_reduce_sum", root_id=0)),
        ("goes through c_broadcast: this is not an all-reduce", lambda b: sum_anew(b, "c_broadcast", root=0)),
        ("start at 2, not at the loss scale 1", lambda b: start(b).desc._set_float32_attr("value", 2.0)),
        (r"by 0\.0625, not by 1/8", lambda b: ops(b, UPDATE)[0].desc._set_float32_attr("rescale_grad", 0.5)),
        ("constant factor: bias 1", lambda b: scale_of_ranks(b).desc._set_float32_attr("bias", 1.0)),
        ("than a constant factor", lambda b: scale_of_ranks(b).desc.set_input("ScaleTensor", ["loss_scaling_0"])),
        (r"still has the loss scale on it \(\+1\)", lambda b: lose(b, CHECK, "Out")),
        (r"still has the loss scale on it \(\+1\)", lambda b: remove(b, *ops(b, CHECK))),
        ("looked at for infinities before its sum", lambda b: remove(b, ops(b, "c_allreduce_sum")[0])),
        ("before its sum|summed over the ranks 2 times|different sums", sum_twice),
        (r"by 0\.0\d*, not by 1/8", lambda b: scale_of_ranks(b).desc._set_float32_attr("scale", 1 / 64)),
        ("sum joins gradients of different sums or scales", join_two_scales),
    ],
)
def test_a_gradient_that_does_not_reach_its_update_once_is_refused(
    reason: str, broken: Callable[[Any], None], half: programs.Built
) -> None:
    main = half.main.clone()
    verify.gradients([main], ranks=RANKS)
    broken(main.global_block())
    with pytest.raises(verify.Refused, match=reason):
        verify.gradients([main], ranks=RANKS)


def test_ranks_that_train_apart_are_refused(full: programs.Built) -> None:
    main = full.main.clone()
    remove(main.global_block(), ops(main.global_block(), "c_allreduce_sum")[0])
    with pytest.raises(verify.Refused, match="is summed over the ranks 0 times, not 1"):
        verify.gradients([main], ranks=RANKS)


def merge_of(block: Any) -> Any:
    return next(op for op in block.ops if is_merge(op))


def merge_at(block: Any, after: Any, *, move: bool = True) -> None:
    """Adds the first accumulator to its gradient again after an operator; with `move` no longer where it was."""
    merge = merge_of(block)
    add_again(block, block.ops.index(after) + 1, merge.input("X"), merge.input("Y"))
    if move:
        remove(block, merge)


def after_the_sum(block: Any) -> None:
    merge_at(block, next(op for op in ops(block, "depend") if op.input("X") == merge_of(block).input("X")))


def at_another_scale(block: Any) -> None:
    in_place(block, block.ops.index(merge_of(block)), "scale", merge_of(block).input("X"), scale=0.5)


def never_cleared(block: Any) -> None:
    remove(block, next(op for op in block.ops if op.output_arg_names == merge_of(block).input("Y")))


def not_divided(block: Any) -> None:
    (divided,) = (op for op in ops(block, "scale") if op.attr("op_role") == BACKWARD and op.attr("scale") == 0.5)
    divided.desc._set_float32_attr("scale", 1.0)


@pytest.mark.parametrize(
    ("reason", "where", "broken"),
    [
        ("is merged of 1 micro-steps, not 2", "micro", lambda b: remove(b, merge_of(b))),
        ("is merged of 1 micro-steps, not 2", "main", lambda b: remove(b, merge_of(b))),
        ("is merged of 1 micro-steps, not 2", "both", lambda b: remove(b, merge_of(b))),
        ("is merged of 1 micro-steps", "micro", lambda b: merge_of(b).desc.set_output("Out", merge_of(b).input("X"))),
        ("is merged of 3 micro-steps, not 2", "main", lambda b: merge_at(b, merge_of(b), move=False)),
        ("is merged with an accumulator at another scale", "main", at_another_scale),
        ("is merged after its sum over the ranks", "main", after_the_sum),
        ("or before it is computed", "main", lambda b: merge_at(b, ops(b, "coalesce_tensor")[-1])),
        ("is not cleared after the update", "main", never_cleared),
        ("fc.b is updated twice", "micro", lambda b: update(b, merge_of(b).input("X"))),
        (r"is scaled by 0\.125, not by 1/16", "both", not_divided),
    ],
)
def test_gradients_not_merged_once_are_refused(reason: str, where: str, broken: Callable[[Any], None]) -> None:
    micro, main = update = programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs="gradient_merge=2").update
    assert len(verify.gradients(update, ranks=RANKS)) == 47
    for program in {"micro": (micro,), "main": (main,), "both": (micro, main)}[where]:
        broken(program.global_block())
    with pytest.raises(verify.Refused, match=reason):
        verify.gradients(update, ranks=RANKS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"momentum": 0.8}, "momentum of .* is 0.9, not 0.8"),
        ({"weight_decay": 2e-4}, "weight decay of .* is 0.0001, not 0.0002"),
        ({"decay_bn_and_bias": True}, "weight decay of .* is 0, not 0.0001"),
        ({"kind": "lars"}, "asks for lars, the program updates .* by merged_momentum"),
    ],
)
def test_another_optimizer_momentum_or_decay_is_refused(change: dict[str, Any], reason: str) -> None:
    main = programs.build().main
    verify.optimizer(main, programs.SGD)
    with pytest.raises(verify.Refused, match=reason):
        verify.optimizer(main, programs.replace(programs.SGD, **change))


@pytest.mark.parametrize("lost", ["masters", "setting"])
def test_a_half_precision_parameter_without_a_master_is_refused(lost: str, half: programs.Built) -> None:
    main = half.main.clone()
    verify.optimizer(main, programs.SGD)
    for update in ops(main.global_block(), UPDATE):
        if lost == "masters":
            update.desc.set_input("MasterParam", [])
        else:
            update.desc._set_bool_attr("multi_precision", False)
    with pytest.raises(verify.Refused, match="is in half precision and has no FP32 master"):
        verify.optimizer(main, programs.SGD)


def test_half_precision_is_of_products_and_not_of_the_loss(half: programs.Built, full: programs.Built) -> None:
    main = half.main.clone()
    for sound in (main, programs.build(name="amp_o1", device="gpu", ranks=2).main):
        verify.arithmetic(sound, "float16")
    with pytest.raises(verify.Refused, match="is not in float16"):
        verify.arithmetic(full.main, "float16")
    (loss,) = ops(main.global_block(), "softmax_with_cross_entropy")
    main.global_block().var(loss.input("Logits")[0]).desc.set_dtype(paddle.float16)
    with pytest.raises(verify.Refused, match="the loss is not computed in float32"):
        verify.arithmetic(main, "float16")


@pytest.mark.parametrize(
    ("kind", "slot"),
    [
        *(("fused_batch_norm_act", s) for s in ("Scale", "Bias", "Mean", "Variance")),
        *((UPDATE, s) for s in ("Velocity", "MasterParam")),
        *(("resnet_unit", s) for s in ("ScaleX", "SavedMeanX", "VarX")),
    ],
)
def test_half_precision_where_it_loses_is_refused(kind: str, slot: str, half: programs.Built) -> None:
    units = {"name": "amp_o2", "device": "gpu", "ranks": RANKS, "knobs": "resnet_unit=1", **UNITS}
    main = (programs.build(**units) if kind == "resnet_unit" else half).main.clone()
    kernels.check(main, "gpu")
    block = main.global_block()
    name = next(iter(operands(ops(block, kind)[-1], slot)))
    block.var(name).desc.set_dtype(paddle.float16)
    with pytest.raises(verify.Refused, match=f"{name} in float32, and it is declared float16"):
        kernels.check(main, "gpu")


def test_an_operator_without_a_kernel_on_the_device_is_refused(half: programs.Built) -> None:
    with pytest.raises(verify.Refused, match="no cpu kernel of"):
        kernels.check(half.main, "cpu")


@pytest.mark.parametrize("kind", sorted(FACTORS))
@pytest.mark.parametrize("end", ["", "_grad"])
def test_a_product_in_another_type_is_refused(kind: str, end: str, half: programs.Built) -> None:
    main = half.main.clone()
    block = main.global_block()
    wide = [block.create_var(name="wide", dtype="float32").name]
    for _, slot, _ in FACTORS[kind]:
        edit.insert(block, len(block.ops), "assign", {slot: wide}, {}, op_role=0)
        block.ops[-1].desc.set_type(f"{kind}{end}")
    with pytest.raises(verify.Refused, match=f"^{kind}{end} of wide is not in float16"):
        verify.arithmetic(main, "float16")


def test_a_communicator_that_does_not_join_all_ranks_is_refused(half: programs.Built) -> None:
    verify.communicator(half.startup, ranks=RANKS)
    with pytest.raises(verify.Refused, match=r"the communicators join \[8\] ranks, not one all 16"):
        verify.communicator(half.startup, ranks=16)
    with pytest.raises(verify.Refused, match="the communicators join no ranks, not one all 8"):
        verify.communicator(half.main, ranks=RANKS)


# ---- knobs


def test_what_each_knob_changed_is_said(half: programs.Built) -> None:
    assert proved(half.main, "") == [
        "fuse_bn_act_ops made 9 fused_batch_norm_act",
        "fuse_bn_add_act_ops made 4 fused_bn_add_activation",
        "fuse_elewise_add_act_ops found nothing to change",
        "enable_addto made 4 gradient of a convolution that adds",
        "enable_inplace made 6 share_buffer",
        "merged_optimizer made 2 merged_momentum",
        "fuse_grad_size_in_MB=16: buckets 2",
    ]
    knobs = "perturb_input=1"
    said = proved(programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs=knobs).main, knobs)
    assert "perturb_input moved image by one rounding" in said


@pytest.mark.parametrize(
    ("knobs", "asked", "more", "reason"),
    [
        ("fuse_bn_act_ops=0", "", {}, "fuse_bn_act_ops is on and the program has 9 batch_norm before a relu"),
        ("fuse_bn_add_act_ops=0", "", {}, "fuse_bn_add_act_ops is on and the program has 6 batch_norm before an add"),
        (UNFUSED, "fuse_bn_add_act_ops=0", {}, "fuse_elewise_add_act_ops is on and the program has 4 elementwise_add"),
        ("enable_addto=0", "", {}, "enable_addto is on and the program has 4 sum of the gradient of a convolution's"),
        (
            "enable_inplace=0",
            "enable_inplace=1",
            {},
            "enable_inplace is on and the program has no share_buffer",
        ),
        ("merged_optimizer=0", "", {}, "merged_optimizer is on and the program has 47 momentum"),
        ("", "fuse_bn_act_ops=0", {}, "fuse_bn_act_ops is off and the program has 9 fused_batch_norm_act"),
        ("", "fuse_bn_add_act_ops=0", {}, "fuse_bn_add_act_ops is off and the program has 4 fused_bn_add_activation"),
        ("", "enable_addto=0", {}, "enable_addto is off and the program has 4 gradient of a convolution that adds"),
        ("", "enable_inplace=0", {}, "enable_inplace is off and the program has 6 share_buffer"),
        ("", "merged_optimizer=0", {}, "merged_optimizer is off and the program has 2 merged_momentum"),
        (
            "",
            "merged_lars=1",
            {},
            "merged_lars is on and the program has no lars_momentum of several",
        ),
        ("", "perturb_input=1", {}, "perturb_input is on and no input is moved"),
        ("", "fuse_grad_size_in_MB=0.001", {}, r"a bucket has .* MiB, fuse_grad_size_in_MB is 0\.001"),
        ("fuse_grad_size_in_MB=0.01", "", {}, r"a bucket is closed at 0\.\d\d MiB, .* fuse_grad_size_in_MB is 16"),
        ("", "fuse_elewise_add_act_ops=0", FP32, "fuse_elewise_add_act_ops is off and the program has 4 fused"),
        ("fuse_elewise_add_act_ops=0", "", FP32, "fuse_elewise_add_act_ops is on and the program has 4 elementwise"),
        ("", "merged_lars=1", {"recipe": LARS}, "merged_lars is on and the program has 47 lars_momentum of one param"),
        ("merged_lars=1", "", {"recipe": LARS}, "merged_lars is off and the program has 2 lars_momentum of several"),
        ("", "resnet_unit=1", UNITS, "resnet_unit is on and the program has 14 convolution that a unit takes"),
        ("resnet_unit=1", "", UNITS, "resnet_unit is off and the program has 12 resnet_unit"),
    ],
)
def test_a_knob_without_its_effect_is_refused(knobs: str, asked: str, more: dict[str, Any], reason: str) -> None:
    built = {"name": "amp_o2", "device": "gpu", "ranks": RANKS, "knobs": knobs} | more
    with pytest.raises(verify.Refused, match=f"^STRATEGY: {reason}"):
        proved(programs.build(**built).main, asked, name=built["name"])


def test_a_sum_of_gradients_that_no_convolution_makes_is_said(full: programs.Built) -> None:
    main = full.main.clone()
    block = main.global_block()
    gradient = ops(block, "relu_grad")[0].output("X@GRAD")
    edit.insert(block, len(block.ops), "grad_add", {"X": gradient, "Y": gradient}, {"Out": gradient}, op_role=1)
    assert "enable_addto left 1 sums of gradients that no convolution makes" in proved(main, "", name="fp32")


def test_an_addto_that_no_convolution_does_is_refused(half: programs.Built) -> None:
    main = half.main.clone()
    for op in ops(main.global_block(), "conv2d_grad"):
        op.desc._set_bool_attr("use_addto", False)
    reason = "enable_addto is on and the program has no gradient of a convolution"
    with pytest.raises(verify.Refused, match=reason):
        proved(main, "enable_addto=1,enable_inplace=1")


def test_a_gradient_outside_of_the_buckets_is_refused(half: programs.Built) -> None:
    main = half.main.clone()
    block = main.global_block()
    ops(block, "c_allreduce_sum")[0].desc.set_input("X", ops(block, "coalesce_tensor")[0].output("Output")[:1])
    with pytest.raises(verify.Refused, match=r"fuse_grad_size_in_MB: .* travels by itself, in no bucket"):
        proved(main, "")


def test_a_flag_that_is_not_as_asked_is_refused(full: programs.Built) -> None:
    before = paddle.get_flags(["FLAGS_conv_workspace_size_limit", "FLAGS_cudnn_exhaustive_search"])
    knobs = "conv_workspace_size_limit=77,cudnn_exhaustive_search=1"
    try:
        paddle.set_flags({"FLAGS_conv_workspace_size_limit": 77, "FLAGS_cudnn_exhaustive_search": True})
        proved(full.main, knobs, name="fp32")
        paddle.set_flags({"FLAGS_cudnn_exhaustive_search": False})
        with pytest.raises(verify.Refused, match=r"cudnn_exhaustive_search=1: Paddle has .*_search=False"):
            proved(full.main, knobs, name="fp32")
    finally:
        paddle.set_flags(before)


def test_cudnns_batch_norm_where_there_is_none_is_refused(full: programs.Built) -> None:
    main = full.main.clone()
    value = paddle.get_flags("FLAGS_cudnn_batchnorm_spatial_persistent")["FLAGS_cudnn_batchnorm_spatial_persistent"]
    knob = f"cudnn_batchnorm_spatial_persistent={value:d}"
    proved(main, knob, name="fp32")
    for op in ops(main.global_block(), "batch_norm"):
        op.desc.set_type("sync_batch_norm")
    with pytest.raises(verify.Refused, match="no normalization here is cuDNN's"):
        proved(main, knob, name="fp32")
