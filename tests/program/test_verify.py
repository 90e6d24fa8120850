"""Each reason to refuse a program: a sound one passes, and fails when that one thing in it is broken.

More of them, and the merged gradients', are in test_build.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest

from program import precision, strategy
from program.ops import BACKWARD, CONVOLUTIONS, LOSS, PRODUCTS, is_merge
from program.passes import edit
from program.proof import kernels, verify
from program.proof import knobs as knobs_of
from tests.program import programs

RANKS = 8


@pytest.fixture(scope="module")
def half() -> programs.Built:
    return programs.build(name="amp_o2", device="gpu", ranks=RANKS)


@pytest.fixture(scope="module")
def full() -> programs.Built:
    return programs.build(device="gpu", ranks=RANKS)


def ops(block: Any, kind: str) -> list[Any]:
    return [op for op in block.ops if op.type == kind]


def remove(block: Any, op: Any) -> None:
    block._remove_op(block.ops.index(op))


def without_update(block: Any) -> None:
    remove(block, ops(block, "merged_momentum")[-1])


def update_twice(block: Any) -> None:
    update = ops(block, "merged_momentum")[0]
    inputs = {slot: update.input(slot) for slot in update.input_names}
    edit.insert(block, len(block.ops), update.type, inputs, {}, mu=update.attr("mu"), op_role=2)


def update_by_nothing(block: Any) -> None:
    update = ops(block, "merged_momentum")[0]
    update.desc.set_input("Grad", [f"{name}.lost" for name in update.input("Grad")])


def unscale_nothing(block: Any) -> None:
    check = ops(block, "check_finite_and_unscale")[0]
    check.desc.set_input("X", [f"{name}.lost" for name in check.input("X")])


def write_after_sum(block: Any) -> None:
    waits = ops(block, "depend")[0]
    gradient = waits.output("Out")
    at = block.ops.index(waits) + 1
    edit.insert(block, at, "elementwise_add", {"X": gradient, "Y": gradient}, {"Out": gradient}, axis=-1, op_role=1)


def _sum_anew(block: Any, kind: str, at: int, **attrs: Any) -> None:
    """Replaces the first all-reduce by an operator in place at `at`."""
    reduce = ops(block, "c_allreduce_sum")[0]
    buffer = reduce.input("X")
    remove(block, reduce)
    edit.insert(block, at, kind, {"X": buffer}, {"Out": buffer}, ring_id=0, op_role=1, **attrs)


def sum_too_early(block: Any) -> None:
    _sum_anew(block, "c_allreduce_sum", block.ops.index(ops(block, "coalesce_tensor")[-1]) + 1)


def reduce_to_one_rank(block: Any) -> None:
    _sum_anew(block, "c_reduce_sum", block.ops.index(ops(block, "c_allreduce_sum")[0]), root_id=0)


def broadcast_instead(block: Any) -> None:
    _sum_anew(block, "c_broadcast", block.ops.index(ops(block, "c_allreduce_sum")[0]), root=0)


def begin_with_two(block: Any) -> None:
    (start,) = (op for op in block.ops if op.attr("op_role") == BACKWARD | LOSS)
    start.desc._set_float32_attr("value", 2.0)


def rescale_once_more(block: Any) -> None:
    ops(block, "merged_momentum")[0].desc._set_float32_attr("rescale_grad", 0.5)


def _scale_of_ranks(block: Any) -> Any:
    (found,) = (op for op in ops(block, "scale") if op.attr("op_role") == BACKWARD)
    return found


def add_while_scaling(block: Any) -> None:
    _scale_of_ranks(block).desc._set_float32_attr("bias", 1.0)


def scale_by_a_variable(block: Any) -> None:
    _scale_of_ranks(block).desc.set_input("ScaleTensor", ["loss_scaling_0"])


def leave_the_loss_scale(block: Any) -> None:
    for check in ops(block, "check_finite_and_unscale"):
        check.desc.set_output("Out", [f"{name}.lost" for name in check.output("Out")])


def never_unscale(block: Any) -> None:
    for check in ops(block, "check_finite_and_unscale"):
        remove(block, check)


def miss_a_sum(block: Any) -> None:
    remove(block, ops(block, "c_allreduce_sum")[0])


def sum_twice(block: Any) -> None:
    reduce = ops(block, "c_allreduce_sum")[0]
    name = reduce.input("X")
    edit.insert(block, block.ops.index(reduce), reduce.type, {"X": name}, {"Out": name}, ring_id=0, op_role=1)


def scale_twice(block: Any) -> None:
    name = _scale_of_ranks(block).output("Out")
    at = block.ops.index(_scale_of_ranks(block)) + 1
    edit.insert(block, at, "scale", {"X": name}, {"Out": name}, scale=0.125, op_role=1)


def join_two_scales(block: Any) -> None:
    gradients = ops(block, "conv2d_grad")[0].output("Filter@GRAD")
    at = block.ops.index(ops(block, "conv2d_grad")[0]) + 1
    half = [block.create_var(name="half", dtype="float16").name]
    edit.insert(block, at, "sum", {"X": gradients + half}, {"Out": gradients}, op_role=1)
    edit.insert(block, at, "scale", {"X": gradients}, {"Out": half}, scale=0.5, op_role=1)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (without_update, "no optimizer updates"),
        (update_twice, "is updated twice"),
        (update_by_nothing, "which no gradient of the loss reaches"),
        (unscale_nothing, "is unscaled but no gradient reaches it"),
        (write_after_sum, "is written by elementwise_add after its sum over the ranks"),
        (sum_too_early, "is summed over the ranks before it is computed"),
        (reduce_to_one_rank, "goes through c_reduce_sum: this is not an all-reduce"),
        (broadcast_instead, "goes through c_broadcast: this is not an all-reduce"),
        (begin_with_two, "the gradients start at 2, not at the loss scale 1"),
        (rescale_once_more, r"is scaled by 0\.0625, not by 1/8"),
        (add_while_scaling, "scale of .* is more than a constant factor: bias 1"),
        (scale_by_a_variable, "scale of .* is more than a constant factor"),
        (leave_the_loss_scale, r"still has the loss scale on it \(\+1\)"),
        (never_unscale, r"still has the loss scale on it \(\+1\)"),
        (miss_a_sum, "looked at for infinities before its sum"),
        (sum_twice, "before its sum|summed over the ranks 2 times|different sums"),
        (scale_twice, "scaled by 0.015625, not by 1/8"),
        (join_two_scales, "sum joins gradients of different sums or scales"),
    ],
)
def test_a_gradient_that_does_not_reach_its_update_once_is_refused(
    broken: Callable[[Any], None], reason: str, half: programs.Built
) -> None:
    main = half.main.clone()
    verify.gradients(main, ranks=RANKS)
    broken(main.global_block())
    with pytest.raises(verify.Refused, match=reason):
        verify.gradients(main, ranks=RANKS)


def test_ranks_that_train_apart_are_refused(full: programs.Built) -> None:
    main = full.main.clone()
    verify.gradients(main, ranks=RANKS)
    miss_a_sum(main.global_block())
    with pytest.raises(verify.Refused, match="is summed over the ranks 0 times, not 1: the ranks would train apart"):
        verify.gradients(main, ranks=RANKS)


@pytest.mark.parametrize("lost", ["masters", "setting"])
def test_a_half_precision_parameter_without_a_master_is_refused(lost: str, half: programs.Built) -> None:
    main = half.main.clone()
    verify.optimizer(main, programs.SGD)
    for update in ops(main.global_block(), "merged_momentum"):
        if lost == "masters":
            update.desc.set_input("MasterParam", [])
        else:
            update.desc._set_bool_attr("multi_precision", False)
    with pytest.raises(verify.Refused, match="is in half precision and has no FP32 master"):
        verify.optimizer(main, programs.SGD)


def test_a_loss_in_half_precision_is_refused(half: programs.Built) -> None:
    main = half.main.clone()
    verify.arithmetic(main, "float16")
    (loss,) = ops(main.global_block(), "softmax_with_cross_entropy")
    main.global_block().var(loss.input("Logits")[0]).desc.set_dtype(paddle.float16)
    with pytest.raises(verify.Refused, match="the loss is not computed in float32"):
        verify.arithmetic(main, "float16")


@pytest.mark.parametrize(
    ("kind", "slot"),
    [
        *(("fused_batch_norm_act", s) for s in ("Scale", "Bias", "Mean", "Variance")),
        *(("merged_momentum", s) for s in ("Velocity", "MasterParam")),
    ],
)
def test_half_precision_where_it_loses_is_refused(kind: str, slot: str, half: programs.Built) -> None:
    main = half.main.clone()
    kernels.check(main, "gpu")
    block = main.global_block()
    name = next(op.input(slot)[0] for op in ops(block, kind) if op.input(slot))
    block.var(name).desc.set_dtype(paddle.float16)
    with pytest.raises(verify.Refused, match=f"{name} in float32, and it is declared float16"):
        kernels.check(main, "gpu")


@pytest.mark.parametrize("kind", sorted(CONVOLUTIONS | PRODUCTS))
@pytest.mark.parametrize("end", ["", "_grad"])
def test_a_product_in_another_type_is_refused(kind: str, end: str, half: programs.Built) -> None:
    main = half.main.clone()
    block = main.global_block()
    wide = [block.create_var(name="wide", dtype="float32").name]
    slot = "Filter" if kind in CONVOLUTIONS else "Y"
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


def verified(main: Any, knobs: str, *, name: str = "amp_o2", ranks: int = RANKS) -> list[str]:
    """What is proved of the program where these knobs were asked for."""
    asked, chosen = strategy.parse(knobs), precision.PRECISIONS[name]
    on = strategy.resolve(asked, dtype=chosen.dtype, layout=chosen.layout, device="gpu")
    return knobs_of.check(main, on, asked=asked, ranks=ranks)


def test_what_each_knob_changed_is_said(half: programs.Built) -> None:
    assert verified(half.main, "") == [
        "fuse_bn_act_ops made 9 fused_batch_norm_act",
        "fuse_bn_add_act_ops made 4 fused_bn_add_activation",
        "fuse_elewise_add_act_ops found nothing to change",
        "enable_addto made 4 gradient of a convolution that adds",
        "enable_inplace made 6 share_buffer",
        "merged_optimizer made 2 merged_momentum",
        "fuse_grad_size_in_MB=16: buckets 2",
    ]
    knobs = "perturb_input=1"
    said = verified(programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs=knobs).main, knobs)
    assert "perturb_input moved image by one rounding" in said


@pytest.mark.parametrize(
    ("built", "asked", "reason"),
    [
        ("fuse_bn_act_ops=0", "", "fuse_bn_act_ops is on and the program has 9 batch_norm before a relu"),
        ("fuse_bn_add_act_ops=0", "", "fuse_bn_add_act_ops is on and the program has 6 batch_norm before an add"),
        (
            "fuse_bn_add_act_ops=0,fuse_elewise_add_act_ops=0",
            "fuse_bn_add_act_ops=0",
            "fuse_elewise_add_act_ops is on and the program has 4 elementwise_add before a relu",
        ),
        ("enable_addto=0", "", "enable_addto is on and the program has 4 sum of the gradient of a convolution's input"),
        ("enable_inplace=0", "enable_inplace=1", "enable_inplace is on and the program has no share_buffer"),
        ("merged_optimizer=0", "", "merged_optimizer is on and the program has 47 momentum"),
        ("", "fuse_bn_act_ops=0", "fuse_bn_act_ops is off and the program has 9 fused_batch_norm_act"),
        ("", "fuse_bn_add_act_ops=0", "fuse_bn_add_act_ops is off and the program has 4 fused_bn_add_activation"),
        ("", "enable_addto=0", "enable_addto is off and the program has 4 gradient of a convolution that adds"),
        ("", "enable_inplace=0", "enable_inplace is off and the program has 6 share_buffer"),
        ("", "merged_optimizer=0", "merged_optimizer is off and the program has 2 merged_momentum"),
        ("", "merged_lars=1", "merged_lars is on and the program has no lars_momentum of several parameters"),
        ("", "perturb_input=1", "perturb_input is on and no input is moved"),
        ("", "fuse_grad_size_in_MB=0.001", r"a bucket has .* MiB, fuse_grad_size_in_MB is 0\.001"),
        ("fuse_grad_size_in_MB=0.01", "", r"a bucket is closed at 0\.\d\d MiB, .* fuse_grad_size_in_MB is 16"),
    ],
)
def test_a_knob_without_its_effect_is_refused(built: str, asked: str, reason: str) -> None:
    main = programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs=built).main
    with pytest.raises(verify.Refused, match=f"^STRATEGY: {reason}"):
        verified(main, asked)


def test_add_and_relu_left_apart_or_fused_unasked_are_refused(full: programs.Built) -> None:
    with pytest.raises(verify.Refused, match="fuse_elewise_add_act_ops is off and the program has 4 fused_elemwise"):
        verified(full.main, "fuse_elewise_add_act_ops=0", name="fp32")
    apart = programs.build(device="gpu", ranks=RANKS, knobs="fuse_elewise_add_act_ops=0").main
    with pytest.raises(verify.Refused, match="fuse_elewise_add_act_ops is on and the program has 4 elementwise_add"):
        verified(apart, "", name="fp32")


def test_a_sum_of_gradients_that_no_convolution_makes_is_said(full: programs.Built) -> None:
    main = full.main.clone()
    block = main.global_block()
    gradient = ops(block, "relu_grad")[0].output("X@GRAD")
    edit.insert(block, len(block.ops), "grad_add", {"X": gradient, "Y": gradient}, {"Out": gradient}, op_role=1)
    assert "enable_addto left 1 sums of gradients that no convolution makes" in verified(main, "", name="fp32")


def test_an_addto_that_no_convolution_does_is_refused(half: programs.Built) -> None:
    main = half.main.clone()
    for op in ops(main.global_block(), "conv2d_grad"):
        op.desc._set_bool_attr("use_addto", False)
    with pytest.raises(
        verify.Refused, match="enable_addto is on and the program has no gradient of a convolution that adds"
    ):
        verified(main, "enable_addto=1,enable_inplace=1")


def test_a_gradient_outside_of_the_buckets_is_refused(half: programs.Built) -> None:
    main = half.main.clone()
    block = main.global_block()
    gradient = ops(block, "coalesce_tensor")[0].output("Output")[:1]
    ops(block, "c_allreduce_sum")[0].desc.set_input("X", gradient)
    with pytest.raises(verify.Refused, match=r"fuse_grad_size_in_MB: .* travels by itself, in no bucket"):
        verified(main, "")


def test_a_flag_that_is_not_as_asked_is_refused(full: programs.Built) -> None:
    before = paddle.get_flags(["FLAGS_conv_workspace_size_limit", "FLAGS_cudnn_exhaustive_search"])
    knobs = "conv_workspace_size_limit=77,cudnn_exhaustive_search=1"
    try:
        paddle.set_flags({"FLAGS_conv_workspace_size_limit": 77, "FLAGS_cudnn_exhaustive_search": True})
        verified(full.main, knobs, name="fp32")
        paddle.set_flags({"FLAGS_cudnn_exhaustive_search": False})
        with pytest.raises(verify.Refused, match=r"cudnn_exhaustive_search=1: Paddle has .*_search=False"):
            verified(full.main, knobs, name="fp32")
    finally:
        paddle.set_flags(before)


def test_cudnns_batch_norm_where_there_is_none_is_refused(full: programs.Built) -> None:
    main = full.main.clone()
    value = paddle.get_flags("FLAGS_cudnn_batchnorm_spatial_persistent")["FLAGS_cudnn_batchnorm_spatial_persistent"]
    knob = f"cudnn_batchnorm_spatial_persistent={value:d}"
    verified(main, knob, name="fp32")
    for op in ops(main.global_block(), "batch_norm"):
        op.desc.set_type("sync_batch_norm")
    with pytest.raises(verify.Refused, match="no normalization of this program is cuDNN's"):
        verified(main, knob, name="fp32")


@pytest.mark.parametrize("change", ["twice", "before it is computed"])
def test_a_gradient_merged_twice_or_too_early_is_refused(change: str) -> None:
    built = programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs="gradient_merge=2")
    micro, main = built.update
    block = main.global_block()
    merge = next(op for op in block.ops if is_merge(op))
    name, total = merge.input("X"), merge.input("Y")
    where = block.ops.index(merge) + 1
    if change == "before it is computed":
        remove(block, merge)
        where = block.ops.index(ops(block, "coalesce_tensor")[-1]) + 1
    edit.insert(block, where, "elementwise_add", {"X": name, "Y": total}, {"Out": name}, axis=-1, op_role=1)
    with pytest.raises(verify.Refused, match="is merged twice, after its sum over the ranks, or before it is computed"):
        verify.merged(micro, main, ranks=RANKS, parts=2)


def test_gradients_merged_wrongly_in_all_parts_alike_are_refused() -> None:
    built = programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs="gradient_merge=2")
    for change, reason in (
        ("left out", "46 gradients are merged, 47 are used"),
        ("not divided", r"is merged after 0 sums at the factor 0\.125"),
    ):
        micro, main = (part.clone() for part in built.update)
        verify.merged(micro, main, ranks=RANKS, parts=2)
        for part in (micro, main):
            block = part.global_block()
            if change == "left out":
                remove(block, next(op for op in block.ops if is_merge(op)))
            else:
                (divided,) = (op for op in ops(block, "scale") if op.attr("op_role") == 1 and op.attr("scale") == 0.5)
                divided.desc._set_float32_attr("scale", 1.0)
        with pytest.raises(verify.Refused, match=reason):
            verify.merged(micro, main, ranks=RANKS, parts=2)
