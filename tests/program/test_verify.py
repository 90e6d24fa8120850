"""Each reason to refuse a program: a sound one passes, and fails when that one thing in it is broken."""

from collections.abc import Callable
from functools import partial
from typing import Any

import paddle
import pytest

from program import capture
from program.ops import BACKWARD, FACTORS, FORWARD, LOSS, OPTIMIZE, Refused, is_merge, operands
from program.optimizers import KINDS, Kind, OptimizerConfig
from program.passes import edit, updates
from program.proof import kernels, verify
from program.proof.gradients import check_gradients
from program.proof.values import check_values
from runlog import schema
from tests.program import programs
from tests.program.programs import proved

RANKS = 8
UPDATE, LARS, CHECK, CONV = "merged_momentum", "lars_momentum", "check_finite_and_unscale", "conv2d_grad"
REDUCE, MOVE = "c_allreduce_sum", "update_loss_scaling"
WIDE = "in float32, and it is declared float16"
HALF: dict[str, Any] = {"name": "amp_o2", "device": "gpu", "ranks": RANKS}
FULL = HALF | {"name": "fp32"}
BY_LARS = HALF | {"recipe": programs.replace(programs.RECIPE, optimizer=programs.LARS)}
UNITS = HALF | {"stages": ((32, 2), (64, 2))}  # whole tiles of channels
PROGRAMS = {
    "half": HALF,
    "full": FULL,
    "merged_lars": BY_LARS | {"knobs": "merged_lars=1"},
    "units": UNITS | {"knobs": "resnet_unit=1"},
    "captured": HALF | {"knobs": "resnet_unit=1,cuda_graph=1"},
    **dict.fromkeys(("micro", "last", "both"), HALF | {"knobs": "gradient_merge=2"}),  # by where something is broken
}


def persistent(built: programs.Built) -> list[str]:
    flag = "FLAGS_cudnn_batchnorm_spatial_persistent"
    return proved(built.main, f"{flag.removeprefix('FLAGS_')}={paddle.get_flags(flag)[flag]:d}", name="fp32")


PROOFS: dict[str, Callable[[programs.Built], Any]] = {
    "gradients": lambda built: check_gradients(built.update, ranks=RANKS),
    "sgd": lambda built: verify.check_optimizer(built.main, programs.SGD),
    "lars": lambda built: verify.check_optimizer(built.main, programs.LARS),
    "communicator": lambda built: verify.check_communicator(built.startup, built.main, ranks=RANKS),
    "mode": lambda built: verify.check_training_mode(built.main),
    "loss scale": lambda built: verify.check_loss_scaling(built.main),
    "rate": lambda built: verify.check_learning_rate(built.main, built.schedule._var_name),
    "values": lambda built: check_values(built.main),
    "arithmetic": lambda built: verify.check_compute_types(built.main, "float16"),
    "wide arithmetic": lambda built: verify.check_compute_types(built.main, "float32"),
    "kernels": lambda built: kernels.check(built.main, "gpu"),
    "capture": lambda built: capture.check(built.main),
    "knobs": lambda built: proved(built.main, "enable_addto=1,enable_inplace=1"),
    "flags": persistent,
}


# ---- what is broken in it


def ops(block: Any, kind: str) -> list[Any]:
    return [op for op in block.ops if op.type == kind]


def remove(block: Any, *unwanted: Any) -> None:
    for op in unwanted:
        block._remove_op(block.ops.index(op))


def lose(block: Any, kind: str, slot: str) -> None:
    """Has the operators of a kind read or write what nobody else does."""
    for op in ops(block, kind):
        change = op.desc.set_input if slot in op.input_names else op.desc.set_output
        change(slot, [f"{name}.lost" for name in operands(op, slot)])


def in_place(block: Any, at: int, kind: str, name: list[str], role: int = BACKWARD, **attrs: Any) -> None:
    """A new operator that changes a variable."""
    edit.insert(block, at, kind, {"X": name}, {"Out": name}, op_role=role, **attrs)


def change(block: Any, kind: str, method: str, *arguments: Any) -> None:
    """Calls this of the descriptor of each operator of a kind."""
    for op in ops(block, kind):
        getattr(op.desc, method)(*arguments)


def compute_as_in_evaluation(block: Any, kind: str) -> None:
    change(block, kind, "_set_bool_attr", "is_test", True)


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


def lay_after_sum(block: Any) -> None:
    """Makes the first buffer only after its all-reduce."""
    reduce = ops(block, "c_allreduce_sum")[0]
    lay = next(op for op in ops(block, "coalesce_tensor") if op.output("FusedOutput") == reduce.input("X"))
    inputs, outputs = {"Input": lay.input("Input")}, {slot: lay.output(slot) for slot in ("Output", "FusedOutput")}
    at, dtype = block.ops.index(reduce) + 1, lay.attr("dtype")
    edit.insert(block, at, lay.type, inputs, outputs, dtype=dtype, op_role=BACKWARD)
    remove(block, lay)


def sum_merged(block: Any) -> None:
    """Sums a gradient in a micro-step too, after it was added to its accumulator."""
    merge = merge_of(block)
    in_place(block, block.ops.index(merge) + 1, "c_allreduce_sum", merge.input("X"), ring_id=0)


def sum_twice(block: Any) -> None:
    reduce = ops(block, "c_allreduce_sum")[0]
    in_place(block, block.ops.index(reduce), reduce.type, reduce.input("X"), ring_id=0)


def start(block: Any) -> Any:
    return next(op for op in block.ops if op.attr("op_role") == BACKWARD | LOSS)


def clip(block: Any, role: int = BACKWARD) -> None:
    """Clips the first gradient of a filter, once it is computed."""
    op = ops(block, CONV)[0]
    in_place(block, block.ops.index(op) + 1, "clip", op.output("Filter@GRAD"), role, min=-1.0, max=1.0)


def halve(block: Any, slot: str) -> None:
    """Halves what an update changes, in each step."""
    in_place(block, len(block.ops), "scale", ops(block, UPDATE)[0].input(slot)[:1], OPTIMIZE, scale=0.5)


def exchange(block: Any) -> None:
    """Has a batch norm's gradients by its scale and its offset change places."""
    op = ops(block, "fused_batch_norm_act_grad")[0]
    by_scale, by_offset = op.output("Scale@GRAD"), op.output("Bias@GRAD")
    op.desc.set_output("Scale@GRAD", by_offset)
    op.desc.set_output("Bias@GRAD", by_scale)


def decay_by_a_sum(block: Any) -> None:
    """Adds the last layer's weights to their gradient."""
    op = ops(block, "mul_grad")[0]
    add_again(block, block.ops.index(op) + 1, op.output("Y@GRAD"), op.input("Y"))


def add_to_nothing(block: Any) -> None:
    """Takes away the operator that lays a gradient where a convolution adds to it."""
    added_to = next(name for op in ops(block, CONV) for name in op.output("Input@GRAD") if op.attr("use_addto"))
    remove(block, next(op for op in ops(block, "share_buffer") if op.output("Out") == [added_to]))


def scale_of_ranks(block: Any) -> Any:
    return next(op for op in ops(block, "scale") if op.attr("op_role") == BACKWARD)


def join_two_scales(block: Any) -> None:
    gradients = ops(block, "conv2d_grad")[0].output("Filter@GRAD")
    at = block.ops.index(ops(block, "conv2d_grad")[0]) + 1
    half = [block.create_var(name="half", dtype="float16").name]
    edit.insert(block, at, "sum", {"X": gradients + half}, {"Out": gradients}, op_role=BACKWARD)
    edit.insert(block, at, "scale", {"X": gradients}, {"Out": half}, scale=0.5, op_role=BACKWARD)


def narrow(block: Any, kind: str, slot: str) -> None:
    """Declares an operand in half precision."""
    block.var(operands(ops(block, kind)[-1], slot)[0]).desc.set_dtype(paddle.float16)


def cast_to_half(block: Any) -> None:
    half = [block.create_var(name="half", dtype="float16").name]
    edit.insert(block, 1, "cast", {"X": ["image"]}, {"Out": half}, in_dtype=5, out_dtype=4, op_role=0)


def multiply_wide(block: Any, kind: str, end: str) -> None:
    """A product in FP32."""
    wide = [block.create_var(name="wide", dtype="float32").name]
    for _, slot, _ in FACTORS[kind]:
        edit.insert(block, len(block.ops), "assign", {slot: wide}, {}, op_role=0)
        block.ops[-1].desc.set_type(f"{kind}{end}")


def mix_up(block: Any, kind: str = LARS, *, read: str = "", written: str = "") -> None:
    """Turns lists of an operator, as of an update by LARS with FP32 masters."""
    op = next(op for op in ops(block, kind) if kind == "coalesce_tensor" or op.attr("multi_precision"))
    if read:
        op.desc.set_input(read, op.input(read)[::-1])
    if written:
        op.desc.set_output(f"{written}Out", op.output(f"{written}Out")[::-1])


def mix_up_decays(block: Any) -> None:
    for op in ops(block, LARS):
        op.desc._set_attr("lars_weight_decay", op.attr("lars_weight_decay")[::-1])


def travel_alone(block: Any) -> None:
    gradients = ops(block, "coalesce_tensor")[0].output("Output")
    ops(block, "c_allreduce_sum")[0].desc.set_input("X", gradients[:1])


def append(block: Any, kind: str, **attrs: Any) -> None:
    block.append_op(type=kind, inputs={"X": ["train.loss"]}, outputs={"Out": ["train.loss"]}, attrs=attrs)


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


BROKEN: dict[tuple[str, str], list[tuple[str, Callable[[Any], Any]]]] = {
    ("gradients", "half"): [
        ("no optimizer updates", lambda b: remove(b, ops(b, UPDATE)[-1])),
        ("is updated twice", lambda b: update(b, ops(b, UPDATE)[0].input("Grad")[:1])),
        ("which no gradient of the loss reaches", lambda b: lose(b, UPDATE, "Grad")),
        ("is unscaled but no gradient reaches it", lambda b: lose(b, CHECK, "X")),
        ("is written by elementwise_add after its sum over the ranks", write_after_sum),
        ("before it is computed", lambda b: sum_anew(b, "c_allreduce_sum", after="coalesce_tensor")),
        ("goes through c_reduce_sum: this is not an all-reduce", lambda b: sum_anew(b, "c_reduce_sum", root_id=0)),
        ("goes through c_broadcast: this is not an all-reduce", lambda b: sum_anew(b, "c_broadcast", root=0)),
        ("start at 2, not at the loss scale 1", lambda b: start(b).desc._set_float32_attr("value", 2.0)),
        ("start at 2, not at the loss scale 1", lambda b: start(b).desc._set_attr("str_value", "2.0")),
        (r"by 0\.0625, not by 1/8", lambda b: ops(b, UPDATE)[0].desc._set_float32_attr("rescale_grad", 0.5)),
        ("constant factor: bias 1", lambda b: scale_of_ranks(b).desc._set_float32_attr("bias", 1.0)),
        ("than a constant factor", lambda b: scale_of_ranks(b).desc.set_input("ScaleTensor", ["loss_scaling_0"])),
        (r"still has the loss scale on it \(\+1\)", lambda b: lose(b, CHECK, "Out")),
        (r"still has the loss scale on it \(\+1\)", lambda b: remove(b, *ops(b, CHECK))),
        ("looked at for infinities before its sum", lambda b: remove(b, ops(b, "c_allreduce_sum")[0])),
        ("looked at for infinities before its sum", lay_after_sum),
        ("before its sum|summed over the ranks 2 times|different sums", sum_twice),
        (r"by 0\.0\d*, not by 1/8", lambda b: scale_of_ranks(b).desc._set_float32_attr("scale", 1 / 64)),
        ("sum joins gradients of different sums or scales", join_two_scales),
        ("an infinite gradient of .* no update_loss", lambda b: remove(b, ops(b, "update_loss_scaling")[0])),
        ("by the flags of all", lambda b: change(b, "concat", "set_input", "X", ["find_infinite_scale_fp16.tmp_0"])),
        (r"_grad writes the gradient of .*\.b to .*\.w@GRAD", exchange),
        ("a share_buffer takes .* for a sum, but no", lambda b: change(b, CONV, "_set_bool_attr", "use_addto", False)),
        ("clip reads .*: it is not known to keep", partial(clip, role=FORWARD)),
        ("by fc.b, which is not the loss scale", lambda b: change(b, CHECK, "set_input", "Scale", ["fc.b"])),
        ("is updated by .*, which is not a gradient of it", partial(mix_up, kind=UPDATE, read="Grad")),
        ("clip reads .*: it is not known to keep gradients in proportion", clip),
        ("elementwise_add adds fc.w to fc.w@GRAD, which is not a gradient", decay_by_a_sum),
        ("conv2d_grad adds to .*, in whose buffer no gradient lies", add_to_nothing),
        ("gets the place of a gradient of", partial(mix_up, kind="coalesce_tensor", read="Input")),
        ("looked at for infinities before its sum", lambda b: remove(b, *ops(b, "depend"))),
    ],
    ("gradients", "full"): [
        ("is summed over the ranks 0 times, not 1", lambda b: remove(b, *ops(b, "depend"))),
        ("is summed over the ranks before it is computed", lambda b: remove(b, ops(b, "relu_grad")[0])),
        ("is summed over the ranks 0 times, not 1", lambda b: remove(b, ops(b, "c_allreduce_sum")[0])),
    ],
    ("gradients", "micro"): [
        ("is merged of 1 micro-steps, not 2", lambda b: remove(b, merge_of(b))),
        ("is merged of 1 micro-steps", lambda b: merge_of(b).desc.set_output("Out", merge_of(b).input("X"))),
        ("fc.b is updated twice", lambda b: update(b, merge_of(b).input("X"))),
        ("is written by .*_grad after its sum over the ranks", sum_merged),
    ],
    ("gradients", "last"): [
        ("is merged of 1 micro-steps, not 2", lambda b: remove(b, merge_of(b))),
        ("is merged of 3 micro-steps, not 2", lambda b: merge_at(b, merge_of(b), move=False)),
        ("is merged with an accumulator at another scale", at_another_scale),
        ("is merged after its sum over the ranks", after_the_sum),
        ("or before it is computed", lambda b: merge_at(b, ops(b, "coalesce_tensor")[-1])),
        ("is not cleared after the update", never_cleared),
    ],
    ("gradients", "both"): [
        ("is merged of 1 micro-steps, not 2", lambda b: remove(b, merge_of(b))),
        (r"is scaled by 0\.125, not by 1/16", not_divided),
    ],
    ("sgd", "half"): [
        ("half precision and has no FP32 master", lambda b: change(b, UPDATE, "set_input", "MasterParam", [])),
        ("has no FP32 master", lambda b: change(b, UPDATE, "_set_bool_attr", "multi_precision", False)),
        ("by Nesterov's momentum", lambda b: change(b, UPDATE, "_set_bool_attr", "use_nesterov", True)),
        ("by the Velocity of another parameter", partial(mix_up, kind=UPDATE, read="Velocity", written="Velocity")),
        *(("scale changes .*, which only the optimizer", partial(halve, slot=slot)) for slot in ("Param", "Velocity")),
    ],
    ("rate", "half"): [
        ("takes its learning rate from fc.b, not", lambda b: change(b, UPDATE, "set_input", "LearningRate", ["fc.b"])),
        ("scale changes the learning rate", lambda b: in_place(b, 0, "scale", ["learning_rate_0"], scale=2.0)),
    ],
    ("communicator", "half"): [
        ("over ring 1, all ranks are joined by ring 0", lambda b: change(b, REDUCE, "_set_attr", "ring_id", 1)),
    ],
    ("mode", "half"): [
        (f"{kind}, .* computes as in an eval", partial(compute_as_in_evaluation, kind=kind))
        for kind in ("batch_norm", "fused_batch_norm_act", "fused_bn_add_activation_grad")
    ],
    ("loss scale", "half"): [
        ("moves 2 times a step, not once", lambda b: change(b, MOVE, "_set_bool_attr", "stop_update", False)),
        ("moves 0 times a step, not once", lambda b: change(b, MOVE, "_set_bool_attr", "stop_update", True)),
        ("incr_every_n_steps of .* is 10, not 1000", lambda b: change(b, MOVE, "_set_attr", "incr_every_n_steps", 10)),
        ("decr_ratio of .* is 0.5, not 0.8", lambda b: change(b, MOVE, "_set_float32_attr", "decr_ratio", 0.5)),
    ],
    ("values", "full"): [  # what is read then lies in the buffer of another variable, or is of the step before
        ("pool2d reads .*, which no operator before it computes", lambda b: remove(b, ops(b, "relu")[0])),
        ("batch_norm_grad reads .*, which no operator before", lambda b: remove(b, ops(b, "relu_grad")[0])),
        ("depend reads stem.conv.w@GRAD, which no operator before", lambda b: remove(b, ops(b, CONV)[-1])),
        ("no operator computes train.loss", lambda b: remove(b, ops(b, "reduce_mean")[0])),
    ],
    ("lars", "merged_lars"): [
        ("by the Velocity of another parameter", partial(mix_up, read="Velocity", written="Velocity")),
        ("by the MasterParam of another parameter", partial(mix_up, read="MasterParam", written="MasterParam")),
        ("lars_momentum of .* writes another Param than it reads", partial(mix_up, written="Param")),
        ("lars_coefficient of .* is 0.5, not 0.001", lambda b: change(b, LARS, "_set_float32_attr", "lars_coeff", 0.5)),
        ("epsilon of .* is 0.5, not 0", lambda b: change(b, LARS, "_set_float32_attr", "epsilon", 0.5)),
        ("epsilon of .* is 1e-09, not 0", lambda b: change(b, LARS, "_set_float32_attr", "epsilon", 1e-9)),
        ("weight decay of .* is 0.01, not 0", mix_up_decays),
    ],
    ("arithmetic", "half"): [
        ("the loss is not computed in float32", lambda b: narrow(b, "softmax_with_cross_entropy", "Logits")),
        *(
            (f"^{kind}{end} of wide is not in float16", partial(multiply_wide, kind=kind, end=end))
            for kind in sorted(FACTORS)
            for end in ("", "_grad")
        ),
    ],
    ("wide arithmetic", "full"): [
        ("half is in half precision, the job is in float32", cast_to_half),
    ],
    ("kernels", "half"): [
        *((WIDE, partial(narrow, kind="fused_batch_norm_act", slot=s)) for s in ("Scale", "Bias", "Mean", "Variance")),
        *((WIDE, partial(narrow, kind=UPDATE, slot=s)) for s in ("Velocity", "MasterParam")),
    ],
    ("kernels", "units"): [
        (WIDE, partial(narrow, kind="resnet_unit", slot=slot)) for slot in ("ScaleX", "SavedMeanX", "VarX")
    ],
    ("capture", "captured"): [
        ("memcpy_d2h: nothing is known", lambda b: append(b, "memcpy_d2h", dst_place_type=0)),
        ("c_sync_comm_stream: nothing is known", lambda b: append(b, "c_sync_comm_stream", ring_id=0)),
        ("sums on a stream of its own", lambda b: append(b, "c_allreduce_sum", use_calc_stream=False)),
        ("image is fed", lambda b: setattr(b.var("image"), "persistable", False)),
        ("computes on the host", lambda b: change(b, "fill_constant", "_set_bool_attr", "force_cpu", True)),
    ],
    ("knobs", "half"): [
        ("program has no gradient of a convolution", lambda b: change(b, CONV, "_set_bool_attr", "use_addto", False)),
        ("fuse_grad_size_in_MB: .* travels by itself, in no bucket", travel_alone),
    ],
    ("flags", "full"): [
        ("no normalization here is cuDNN's", lambda b: change(b, "batch_norm", "set_type", "sync_batch_norm")),
    ],
}


@pytest.mark.parametrize(
    ("proof", "of", "reason", "broken"), [(*key, *row) for key, rows in BROKEN.items() for row in rows]
)
def test_what_is_broken_is_refused(proof: str, of: str, reason: str, broken: Callable[[Any], Any]) -> None:
    built = programs.build(**PROGRAMS[of])
    PROOFS[proof](built)
    for program in {"micro": built.update[:1], "both": built.update}.get(of, built.update[-1:]):
        broken(program.global_block())
    with pytest.raises(Refused, match=reason):
        PROOFS[proof](built)


# ---- what was asked for is another program


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
    with pytest.raises(Refused, match=reason):
        verify.check_optimizer(programs.build().main, programs.replace(programs.SGD, **change))


def adamw(config: OptimizerConfig, rate: Any, _program: Any, _merged: bool) -> Any:
    decays = {"weight_decay": config.weight_decay, "apply_decay_param_fun": config.decays}
    return paddle.optimizer.AdamW(learning_rate=rate, beta1=config.momentum, **decays)


@pytest.mark.parametrize("of", [{}, HALF])
def test_an_optimizer_is_built_and_proved_by_its_row(of: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No other table has to know it, its FP32 states in half precision included."""
    kind = Kind(
        build=adamw,
        logged=schema.Optimizer(
            operators=frozenset({"adamw"}), hyperparameters={}, warmup_epochs=schema.OPTIMIZERS["sgd"].warmup_epochs
        ),
        read_decay=lambda op, _: float(op.attr("coeff")) if op.attr("with_decay") else 0.0,
        attributes={"beta1": "momentum"},
        further_points={},
    )
    monkeypatch.setitem(KINDS, "adamw", kind)
    asked = OptimizerConfig(kind="adamw", momentum=0.9, weight_decay=0.01)
    main = programs.fresh(**of, recipe=programs.replace(programs.RECIPE, optimizer=asked)).main
    assert verify.check_optimizer(main, asked) == {"adamw": 47}
    for change in ({"momentum": 0.8}, {"weight_decay": 0.02}, {"decay_bn_and_bias": True}, {"kind": "sgd"}):
        with pytest.raises(Refused):
            verify.check_optimizer(main, programs.replace(asked, **change))


def test_a_fixed_loss_scale_is_refused_where_the_update_cannot_take_it_off() -> None:
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        loss = paddle.static.nn.fc(paddle.static.data("x", [2, 3]), 1).mean()
        paddle.optimizer.AdamW().minimize(loss)
    with pytest.raises(Refused, match="adamw cannot take a fixed loss scale off its gradients"):
        updates.scale_loss(main, 4096.0)


def test_another_device_or_communicator_is_refused() -> None:
    half = programs.build(**HALF)
    with pytest.raises(Refused, match="no cpu kernel of"):
        kernels.check(half.main, "cpu")
    verify.check_communicator(half.startup, half.main, ranks=RANKS)
    with pytest.raises(Refused, match=r"the communicators join \[8\] ranks, not one all 16"):
        verify.check_communicator(half.startup, half.main, ranks=16)
    with pytest.raises(Refused, match="the communicators join no ranks, not one all 8"):
        verify.check_communicator(half.main, half.main, ranks=RANKS)
