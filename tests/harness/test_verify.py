"""Each reason to refuse a program: a sound one passes, and fails when that one thing in it is broken.

More of them, and the merged gradients', are in test_program.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import pytest

from harness import passes, program, strategy, verify
from tests.harness import programs

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
    passes.insert(block, len(block.ops), update.type, inputs, {}, mu=update.attr("mu"), op_role=2)


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
    passes.insert(block, at, "elementwise_add", {"X": gradient, "Y": gradient}, {"Out": gradient}, axis=-1, op_role=1)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (without_update, "no optimizer updates"),
        (update_twice, "is updated twice"),
        (update_by_nothing, "which no gradient of the loss reaches"),
        (unscale_nothing, "is unscaled but no gradient reaches it"),
        (write_after_sum, "is written by elementwise_add after its sum over the ranks"),
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
    remove(main.global_block(), ops(main.global_block(), "c_allreduce_sum")[0])
    with pytest.raises(verify.Refused, match="is summed over the ranks 0 times, not 1: the ranks would train apart"):
        verify.gradients(main, ranks=RANKS)


def test_a_half_precision_parameter_without_a_master_is_refused(half: programs.Built) -> None:
    main = half.main.clone()
    verify.optimizer(main, programs.SGD)
    for update in ops(main.global_block(), "merged_momentum"):
        update.desc.set_input("MasterParam", [])
    with pytest.raises(verify.Refused, match="is in half precision and has no FP32 master"):
        verify.optimizer(main, programs.SGD)


@pytest.mark.parametrize(
    ("kind", "slot", "reason"),
    [
        ("fused_batch_norm_act", "Scale", "of fused_batch_norm_act is not in float32"),
        ("softmax_with_cross_entropy", "Logits", "the loss is not computed in float32"),
        ("merged_momentum", "Velocity", "of merged_momentum is not in float32"),
    ],
)
def test_half_precision_where_it_loses_is_refused(kind: str, slot: str, reason: str, half: programs.Built) -> None:
    main = half.main.clone()
    verify.arithmetic(main, "float16")
    block = main.global_block()
    block.var(ops(block, kind)[0].input(slot)[0]).desc.set_dtype(paddle.float16)
    with pytest.raises(verify.Refused, match=reason):
        verify.arithmetic(main, "float16")


def test_a_ring_that_does_not_join_all_ranks_is_refused(half: programs.Built) -> None:
    verify.communicators(half.startup, ranks=RANKS, rings=1)
    with pytest.raises(verify.Refused, match="communicator 1 joins 0 ranks, not 8"):
        verify.communicators(half.startup, ranks=RANKS, rings=2)
    with pytest.raises(verify.Refused, match="communicator 0 joins 8 ranks, not 16"):
        verify.communicators(half.startup, ranks=16, rings=1)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ("fuse_grad_size_in_MB=0.001", "a bucket has .* MiB, fuse_grad_size_in_MB is 0.001"),
        ("perturb_input=1", "perturb_input is on and no input is moved"),
    ],
)
def test_a_knob_without_its_effect_is_refused(knobs: str, reason: str, half: programs.Built) -> None:
    asked = strategy.parse(knobs)
    on = strategy.resolve(asked, dtype="float16", layout="NHWC", device="gpu")
    with pytest.raises(verify.Refused, match=reason):
        verify.knobs(half.main, on, asked=asked)


def test_sums_that_addto_left_are_said() -> None:
    built = programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs="enable_addto=0")
    on = strategy.resolve(strategy.Strategy(), dtype="float16", layout="NHWC", device="gpu")
    sums = sum(built.kinds("sum", "grad_add"))
    assert sums
    assert f"enable_addto left {sums} sums of gradients" in verify.knobs(built.main, on, asked=strategy.Strategy())


def test_gradients_merged_wrongly_in_all_parts_alike_are_refused() -> None:
    built = programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs="gradient_merge=2")
    for change, reason in (
        ("left out", "46 gradients are merged, 47 are used"),
        ("not divided", r"is merged after 0 sums at the factor 0\.125"),
    ):
        micro, main = (part.clone() for part in program.of_update(built.main))
        verify.merged(micro, main, ranks=RANKS, parts=2)
        for part in (micro, main):
            block = part.global_block()
            if change == "left out":
                remove(block, next(op for op in block.ops if verify.is_merge(op)))
            else:
                (divided,) = (op for op in ops(block, "scale") if op.attr("op_role") == 1 and op.attr("scale") == 0.5)
                divided.desc._set_float32_attr("scale", 1.0)
        with pytest.raises(verify.Refused, match=reason):
            verify.merged(micro, main, ranks=RANKS, parts=2)
