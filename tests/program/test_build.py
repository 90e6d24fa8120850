"""The training program: its losses are those of the plain program, what half precision and a captured step make of it,
and blocks as `resnet_unit`: the same training as the plain network's, and the same weights outside the program.
"""

import functools
import re
from dataclasses import replace
from typing import Any, Literal
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from paddle import static
from paddle.base import executor as base_executor

from harness import ranks, state
from harness.hooks import checkpoint_file, resume
from harness.job import job_of
from harness.ranks import Ranks
from paddle_rn50 import model
from program import build, capture, count, strategy
from program.ops import FORWARD
from program.optimizers import OptimizerConfig, Schedule
from program.passes import edit, gradients, resnet_unit
from tests.program import lower, programs, twin

PLAIN = "fuse_elewise_add_act_ops=0,merged_optimizer=0"
STEPS = 10
LARGE = ((256, 1), (512, 1))  # stages of 19 MB of gradients


@functools.cache
def plain_losses() -> tuple[float, ...]:
    """Losses of the program that fleet builds for one rank without any fusion, NCHW in FP32."""
    with mock.patch.object(gradients, "convolve_gradients", lambda main: 0):
        return tuple(programs.losses(programs.fresh(knobs=PLAIN), STEPS))


@pytest.mark.parametrize("name", ["fp32", "amp_o1", "amp_o2"])
def test_the_gpu_program_lowered_to_a_cpu_trains_as_the_plain_program_does(name: str) -> None:
    built = programs.build(name=name, device="gpu", ranks=8, knobs="fuse_grad_size_in_MB=0.01")
    half = name != "fp32"
    assert built.kinds("fused_batch_norm_act", "fused_bn_add_activation") == ([9, 4] if half else [0, 0])
    assert built.main.global_block().var("image").dtype == (paddle.float16 if half else paddle.float32)
    assert built.kinds("share_buffer")[0] > 0 and built.kinds("c_allreduce_sum")[0] > 4
    lower.lower(built.main, built.startup, ranks=8)
    assert np.allclose(programs.losses(built, STEPS), plain_losses(), rtol=1e-5, atol=0)


def test_another_jobs_rendezvous_of_paddles_ranks_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that had PADDLE_WITH_GLOO=1 ended all ranks: "gloo initialized error, please check arguments"."""
    monkeypatch.setenv("PADDLE_WITH_GLOO", "1")
    assert any("summed over 2 ranks" in proved for proved in programs.fresh(ranks=2).verified)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_fusions_and_input_gradients_by_convolution_change_no_loss(layout: str) -> None:
    built = programs.build(layout=layout)
    kinds = ("fused_elemwise_add_activation", "elementwise_add", "merged_momentum", "momentum")
    assert built.kinds(*kinds) == [4, 1, 1, 0] and (built.kinds("flip")[0] > 0) == (layout == "NCHW")
    assert np.allclose(programs.losses(built, STEPS), plain_losses(), rtol=1e-5, atol=0)


def test_a_sum_before_a_relu_is_written_where_an_operator_reads_it() -> None:
    with mock.patch.object(gradients, "simplify_sums"):
        built = programs.fresh()
    block = built.main.global_block()
    first, second, *_ = [op for op in block.ops if op.type == "fused_elemwise_add_activation"]
    first.desc._set_bool_attr("save_intermediate_out", True)
    slots = {"X": first.output("IntermediateOut")}, {"Out": first.output("Out")}
    edit.insert(block, block.ops.index(first) + 1, "relu", *slots, op_role=FORWARD)
    gradients.simplify_sums(built.main)
    assert not second.output("IntermediateOut")
    assert programs.losses(built, 1) == pytest.approx(plain_losses()[:1], rel=1e-5)


@pytest.mark.parametrize("merged", [0, 1])
def test_an_update_on_a_cpu_waits_for_each_bucket_by_the_fewest_operators(merged: int) -> None:
    """One for all parameters needs one `depend` a bucket; one a parameter, all of them. No reader loses its wait."""
    knobs = f"merged_optimizer={merged},fuse_grad_size_in_MB=1"
    gpu, cpu = (programs.build(ranks=2, device=device, knobs=knobs, stages=LARGE) for device in ("gpu", "cpu"))
    ops = cpu.main.global_block().ops
    buckets = [set(op.output("Output")) for op in ops if op.type == "coalesce_tensor"]
    assert len(buckets) > 1
    updates = [(i, op) for i, op in enumerate(ops) if op.type in ("momentum", "merged_momentum")]
    for bucket in buckets:
        reading = {i for i, op in updates if bucket.intersection(op.input("Grad"))}
        depends = [(i, set(op.input("X"))) for i, op in enumerate(ops) if op.type == "depend"]
        waiting = {
            i for i, op in updates if any(at < i and names & bucket & set(op.input("Grad")) for at, names in depends)
        }
        assert reading and waiting == reading
    assert cpu.kinds("depend")[0] == (len(buckets) if merged else gpu.kinds("depend")[0])


@pytest.mark.parametrize("knobs", ["", "enable_inplace=1"])
def test_the_program_that_runs_is_the_one_that_was_proved(knobs: str) -> None:
    """Paddle's executor would let buffers be shared in any program that it is given, as its own class here."""
    of_cache = base_executor._ExecutorCache._get_program_and_executor
    ran: list[list[str]] = []

    def recorded(cache: Any, data: Any) -> Any:
        found = of_cache(cache, data)
        ran.append([op.type for op in found[0].global_block().ops if op.type != "feed"])
        return found

    built = programs.build(knobs=knobs)
    with (
        mock.patch.object(base_executor._ExecutorCache, "_get_program_and_executor", recorded),
        static.scope_guard(static.Scope()),
    ):
        for kind in (build.Executor, static.Executor):
            executor = kind(paddle.CPUPlace())
            executor.run(built.startup)
            executor.run(built.main, feed=programs.images(0, built), fetch_list=[])
    proved = [op.type for op in built.main.global_block().ops]
    assert ran[1] == proved and ("share_buffer" in proved) == bool(knobs)
    assert knobs or ran[3] != proved


# ---- loss scaling, and the state that half precision leaves behind


def test_a_dynamic_loss_scale_moves_by_paddles_defaults() -> None:
    """Those of `paddle.static.amp.decorate` without a level."""
    block = programs.build(name="amp_o2", device="gpu", ranks=2).main.global_block()
    updates = [op for op in block.ops if op.type == "update_loss_scaling"]
    assert [op.attr("stop_update") for op in updates] == [False, True]  # two types of gradients, one state
    for op in updates:
        assert (op.attr("incr_every_n_steps"), op.attr("decr_every_n_nan_or_inf")) == (1000, 2)
        assert (op.attr("incr_ratio"), op.attr("decr_ratio")) == (2.0, np.float32(0.8))


def test_the_start_up_program_casts_parameters_after_their_masters_are_copied() -> None:
    built = programs.build(name="amp_o2", device="gpu")
    half = {p.name for p in built.main.all_parameters() if p.dtype == paddle.float16}
    assert "stem.conv.w" in half and "stem.bn.w" not in half
    seen: dict[str, list[str]] = {name: [] for name in half}
    for op in built.startup.global_block().ops:
        for name in half.intersection(op.input_arg_names):
            seen[name].append("master" if "_fp32_master_" in op.output_arg_names[0] else "cast")
    assert all(order == ["master", "cast"] for order in seen.values())


# ---- a step as a CUDA graph: its rates are the recipe's; what is refused of it is in test_verify.py


@functools.cache
def captured() -> programs.Built:
    """The program of one rank of 8 in FP16; who changes it clones it."""
    return programs.build(name="amp_o2", device="gpu", ranks=8, knobs="resnet_unit=1,cuda_graph=1")


def test_a_captured_step_has_a_fixed_loss_scale_without_an_operator_of_its_own() -> None:
    assert "a fixed loss scale of 32 taken off by the update" in captured().verified
    for knobs in ("cuda_graph=1,perturb_input=1", "cuda_graph=1,merged_optimizer=0"):
        scaled = programs.build(name="amp_o2", device="gpu", knobs=knobs)
        single = programs.build(name="fp32", device="gpu", knobs=knobs)  # which needs no scale
        kinds = ("check_finite_and_unscale", "update_loss_scaling", "scale", "elementwise_mul")
        assert scaled.kinds(*kinds) == single.kinds(*kinds)


def test_the_rates_that_the_program_looks_up_are_the_schedule_s() -> None:
    """Its first two operators have CPU kernels: in a program of their own they give each rate bit for bit."""
    schedule = captured().schedule
    rate = captured().main.global_block().ops[0].output("Out")[0]
    updates = [op for op in captured().main.global_block().ops if "LearningRate" in op.input_names]
    assert updates and all(set(op.input("LearningRate")) == {rate} for op in updates)
    alone = static.Program()
    alone.global_block().create_var(name="rate", shape=[], dtype="float32", persistable=True)
    capture.prepare(alone, "rate")
    schedule.step(3)
    expected = [np.float32(programs.SCHEDULE(step)).item() for step in range(3, 20)]
    with static.scope_guard(static.Scope()):
        executor, scope, cpu = static.Executor(paddle.CPUPlace()), static.global_scope(), paddle.CPUPlace()
        scope.var(capture.RATES).get_tensor().set(schedule.ahead(capture.RATES_AT_ONCE), cpu)
        scope.var(capture.STEP).get_tensor().set(np.zeros((), np.int64), cpu)
        rates = [executor.run(alone, fetch_list=["rate"])[0] for _ in expected]
    found = [value.item() for value in rates]
    assert {value.shape for value in rates} == {tuple(captured().main.global_block().var(rate).shape)}
    assert found == expected and len(set(found)) > 10


# ---- blocks as `resnet_unit`

RANKS = 8
STAGES = ((32, 2), (64, 2))  # whole tiles of channels; a projection and an identity shortcut in each


def units(name: str = "amp_o2", knobs: str = "resnet_unit=1") -> programs.Built:
    """A GPU's program of units, on rank 0 of 8."""
    return programs.build(name=name, device="gpu", ranks=RANKS, knobs=knobs, stages=STAGES)


def plain_name(name: str) -> str:
    """A variable's name in a program without masters."""
    return re.sub(r"_fp32_master_\d+", "", name)


def outside(built: programs.Built, name: str, value: np.ndarray) -> np.ndarray:
    """A value as the plain network on three channels has it."""
    value = resnet_unit.to_plain_layout(value) if name in built.otherwise else value
    return value[:, :3] if name.startswith("stem.conv") else value


@functools.cache
def one() -> programs.Built:
    """The one that nobody changes."""
    return units()


def test_bytes_of_units_are_those_counted_by_hand() -> None:
    """Of the first unit, and backward of the ends of the last block and of the last with a shortcut."""
    found = count.works(one().main)
    first = next(work for work in found if work.kind == "resnet_unit")
    image, out, mask = 4 * 8 * 8 * 64 * 2, 4 * 8 * 8 * 32 * 2, 4 * 8 * 8 * 2 * 4
    assert first.moved_bytes == image + 64 * 32 * 2 + 3 * out + mask + 8 * 32 * 4  # one of them is read again
    last, _, _, joined, *_ = (work for work in found if work.kind == "resnet_unit_grad")
    image, out, mask = 4 * 4 * 4 * 64 * 2, 4 * 4 * 4 * 256 * 2, 4 * 4 * 4 * 8 * 4
    normalized = 4 * out + mask + 6 * 256 * 4  # reads its gradient and ConvX, writes two
    convolved = out + 2 * image + 2 * 64 * 256 * 2
    assert (last.moved_bytes, last.reread_bytes) == (normalized + convolved, out)  # two calls read the gradient
    shortcut, normalized_too = out + 2 * 4 * 8 * 8 * 128 * 2 + 2 * 128 * 256 * 2, 3 * out + 6 * 256 * 4
    assert joined.moved_bytes == normalized + convolved + normalized_too + shortcut and joined.reread_bytes == 2 * out


@pytest.mark.parametrize("name", ["amp_o1", "amp_o2"])
def test_lowered_to_a_cpu_units_train_as_the_plain_program_does(name: str) -> None:
    built, base = units(name), programs.build(knobs=PLAIN, layout="NHWC", stages=STAGES)
    assert built.kinds("resnet_unit", "resnet_unit_grad", "conv2d", "batch_norm") == [12, 12, 1, 0]
    assert "enable_addto made 4 gradient of a convolution that adds" in built.verified
    names = [p.name for p in base.main.all_parameters()]
    assert set(names) == {p.name for p in built.main.all_parameters()}
    lower.lower(built.main, built.startup, ranks=RANKS)
    found = []
    for program in (built, base):
        kept = {v.name for v in program.main.list_vars() if v.persistable and v.name.startswith(tuple(names))}
        run = functools.partial(programs.losses, program, fetch=sorted(kept))
        (_, first), (losses, last) = run(1), run(STEPS)
        moved = [{n: v for n, v in values.items() if "velocity" in n or "mean" in n} for values in (first, last)]
        found.append((losses, *({plain_name(n): outside(program, n, v) for n, v in m.items()} for m in moved)))
    (losses, gradients, last), (expected, wanted, later) = found
    assert np.allclose(losses, expected, rtol=1e-5, atol=0), (losses, expected)
    assert gradients.keys() == wanted.keys() and len(gradients) == 47 + 15
    for name, value in wanted.items():  # velocities begin at zero: after a step they are gradients and decay
        np.testing.assert_allclose(gradients[name], value, rtol=0, atol=1e-6 * np.abs(value).max(), err_msg=name)
        np.testing.assert_allclose(last[name], later[name], rtol=0, atol=1e-4 * np.abs(later[name]).max(), err_msg=name)


def test_units_begin_with_the_weights_of_the_plain_network() -> None:
    built, base = units(), programs.build(name="amp_o2", device="gpu", ranks=RANKS, stages=STAGES)
    first = []
    for program in (built, base):
        lower.lower(program.main, program.startup, ranks=RANKS)
        with static.scope_guard(static.Scope()):
            static.Executor(paddle.CPUPlace()).run(program.startup)
            first.append({name: outside(program, name, np.array(tensor)) for name, tensor in state.tensors(base.main)})
    assert first[0].keys() == first[1].keys() and "stage1.0.2.conv.w_fp32_master_0" in first[0]
    for name, value in first[1].items():
        np.testing.assert_array_equal(first[0][name], value, err_msg=name)


def kept(main: static.Program) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint of one rank."""
    mine = {f"rank0/{name}": value.copy() for name, value in state.statistics(main)}
    return mine | {name: value.copy() for name, value in state.shared_values(main)}


def test_a_checkpoint_of_the_plain_network_goes_into_units_and_comes_out_again() -> None:
    ranks = Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")
    position = checkpoint_file.Position(step=3, epoch=1, epoch_step=3, seed=1, global_batch=4, ranks=1)
    base, arrays, found = programs.build(name="amp_o2", device="gpu", ranks=RANKS, stages=STAGES), {}, {}
    assert len(state.statistics_names(base.main)) == 2 * 15
    rng = np.random.default_rng(0)
    for program in (base, one()):
        with static.scope_guard(static.Scope()):
            for variable in program.main.list_vars():
                if variable.persistable and variable.shape:
                    value = rng.normal(size=variable.shape).astype(np.float32)
                    static.global_scope().var(variable.name).get_tensor().set(value, paddle.CPUPlace())
            if program is base:
                arrays = kept(base.main)
                continue
            resume.restore(resume.Start(position=position, path="a", arrays=arrays), program, ranks)
            found = kept(program.main)
    assert found.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_an_evaluation_has_units_on_the_training_programs_state() -> None:
    with mock.patch.object(model, "STAGES", STAGES):
        evaluation = one().evaluation()
    ops = [op for op in evaluation.global_block().ops if op.type == "resnet_unit"]
    assert len(ops) == 12 and all(op.attr("is_test") for op in ops)


# ---- gradients of ResNet-50 at the size that users train, in the types in which a GPU stores them (twin.py)


@pytest.mark.parametrize("name", ["float16", "tf32"])
def test_values_are_rounded_to_nearest(name: str) -> None:
    """By fractions and exponents: FP16's subnormals and infinities too, and FP32's to TF32 where products read them."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(50_000) * scale for scale in (1e-7, 1e-6, 6e-5, 1.0, 2e4)]
    x = np.concatenate([*parts, [0.0, 1e-8, 2.9e-8, -3.1e-8, 1 + 2**-12, 65519.0, -65520.0, 7e4]]).astype(np.float32)
    exponent = np.frexp(x.astype(np.float64))[1] - 11  # of the last bit
    least = np.maximum(exponent, -24) if name == "float16" else exponent
    expected = np.ldexp(np.round(np.ldexp(x.astype(np.float64), -least)), least)
    if name == "float16":
        expected[np.abs(expected) > 65504] *= np.inf
    found = lower.to_half(x) if name == "float16" else lower.to_bits(x, bits=11)
    assert np.array_equal(found, expected.astype(np.float32))


@pytest.mark.slow
@pytest.mark.ci
def test_gradients_of_a_captured_step_are_those_of_fp32() -> None:
    found = twin.row(twin.Case(precision="amp_o2", knobs="cuda_graph=1", images=2))
    assert found.is_sound, found


def test_the_page_has_each_row() -> None:
    page = twin.PAGE.read_text()
    for case in (*twin.CASES, *twin.SHOWN):
        assert case.cells in page, case


@pytest.mark.slow
@pytest.mark.xdist_group("twin")  # one at a time: of two, one took 12.6 GB and was killed
@pytest.mark.parametrize("case", twin.CASES, ids=lambda case: case.cells)
def test_gradients_of_every_job_are_those_of_fp32(case: twin.Case) -> None:
    found = twin.row(case)
    assert found.is_sound, found


@pytest.mark.slow
def test_without_a_scale_they_are_noise() -> None:
    """The door refuses LOSS_SCALE=1 (harness/env.py)."""
    assert min(twin.row(twin.Case(precision="amp_o2", loss_scale=1, images=2)).cosines.values()) < 0.9


# ---- SGD and LARS, as the training program runs them, against NumPy over twenty steps
#
# Of LARS the update of `lars_optimizer.py`, the MLPerf reference. Learning rates at every step are in
# tests/test_recipes.py.

UPDATES, ROWS, COLUMNS, CLASSES = 20, 8, 6, 4
SMOOTHING = 0.1
SCHEDULE = Schedule(kind="polynomial", base=0.5, warmup_steps=2, total_steps=20, end=1e-4)


def reference_step(weights: dict, velocity: dict, x: np.ndarray, y: np.ndarray, config: OptimizerConfig, rate: float):
    """One step of softmax regression x -> softmax(x * gamma @ w + b) with smoothed labels, in float64."""
    w, b, gamma = weights["fc.w"], weights["fc.b"], weights["scale.bn.w"]
    logits = (x * gamma) @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    target = np.eye(CLASSES)[y] * (1 - SMOOTHING) + SMOOTHING / CLASSES
    d = (p - target) / len(x)
    gradients = {"fc.w": (x * gamma).T @ d, "fc.b": d.sum(0), "scale.bn.w": ((d @ w.T) * x).sum(0)}
    for name, g in gradients.items():
        decays = name == "fc.w" or config.decay_bn_and_bias or (name == "fc.b" and config.decay_bias)
        decay = config.weight_decay if decays else 0.0
        value = weights[name]
        if config.kind == "lars":
            # You et al. 2017, algorithm 1, with the decay inside the trust ratio's norm
            norm = np.linalg.norm(value)
            trust = config.lars_coefficient * norm / (np.linalg.norm(g) + decay * norm + config.lars_epsilon)
            velocity[name] = config.momentum * velocity[name] + rate * (trust if decay else 1) * (g + decay * value)
            weights[name] = value - velocity[name]
        else:
            velocity[name] = config.momentum * velocity[name] + g + decay * value
            weights[name] = value - rate * velocity[name]
    return -(target * np.log(p)).sum(1).mean()


LARS = OptimizerConfig(kind="lars", momentum=0.9, weight_decay=0.02, lars_coefficient=0.1)


@pytest.mark.parametrize(
    ("config", "knobs"),
    [
        (OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.02), ""),
        (OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.02, decay_bn_and_bias=True), ""),
        (OptimizerConfig(kind="sgd", momentum=0.9, weight_decay=0.02, decay_bias=True), ""),
        (LARS, ""),
        (LARS, "merged_lars=1"),
    ],
    ids=["sgd", "sgd-decays-all", "sgd-decays-bias", "lars", "merged-lars"],
)
def test_twenty_steps(config: OptimizerConfig, knobs: str) -> None:
    paddle.enable_static()
    job = job_of(dgxngpu=1, hang_timeout_s=0)
    ranks.connect(job.cluster, ranks.start(job.cluster))
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [ROWS, COLUMNS], "float32")
        y = static.data("y", [ROWS, 1], "int64")
        gamma = static.create_parameter([COLUMNS], "float32", attr=paddle.ParamAttr(name="scale.bn.w"))
        logits = static.nn.fc(
            x * gamma, CLASSES, weight_attr=paddle.ParamAttr(name="fc.w"), bias_attr=paddle.ParamAttr(name="fc.b")
        )
        one_hot = paddle.nn.functional.one_hot(paddle.squeeze(y, 1), CLASSES)
        smooth = paddle.nn.functional.label_smooth(one_hot, epsilon=SMOOTHING)
        loss = paddle.nn.functional.cross_entropy(logits, smooth, soft_label=True)
        training = build.minimize(loss, config, SCHEDULE, plan=build.Plan(device="cpu", strategy=strategy.parse(knobs)))
    updates = [len(op.input("Param")) for op in main.global_block().ops if op.type == "lars_momentum"]
    assert updates == ([] if config.kind == "sgd" else [3] if knobs else [1, 1, 1])

    rng = np.random.default_rng(1)
    weights = {
        "fc.w": rng.normal(size=(COLUMNS, CLASSES)),
        "fc.b": rng.normal(size=CLASSES),
        "scale.bn.w": rng.uniform(0.5, 1.5, COLUMNS),
    }
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    run = programs.Run(training)
    for name, value in weights.items():
        run[name] = value.astype("float32")
    for step in range(UPDATES):
        features, labels = rng.normal(size=(ROWS, COLUMNS)), rng.integers(0, CLASSES, ROWS)
        actual = run.step({"x": features.astype("float32"), "y": labels[:, None]})
        expected = reference_step(weights, velocity, features, labels, config, SCHEDULE(step))
        assert actual == pytest.approx(expected, rel=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(run[name], value, rtol=2e-5, atol=1e-6)


def test_lars_of_resnet50_takes_at_most_four_operators() -> None:
    recipe = replace(programs.RECIPE, optimizer=programs.LARS)
    job = {"name": "amp_o2", "device": "gpu", "ranks": 8, "knobs": "merged_lars=1"}
    built = programs.build(**job, recipe=recipe, stages=model.STAGES)
    updates = [op for op in built.main.global_block().ops if op.type == "lars_momentum"]
    assert sorted(len(op.input("Param")) for op in updates) == [53, 53, 55]  # their decays are proved as it is built


def test_a_warm_up_as_long_as_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="warm-up of 9 steps in a schedule of 9"):
        Schedule(kind="cosine", base=0.4, warmup_steps=9, total_steps=9)


@pytest.mark.parametrize(
    ("kind", "from_zero", "decay_steps"),
    [("polynomial", True, 85), ("polynomial", False, 90), ("cosine", True, 90), ("cosine", False, 90)],
)
def test_decay_steps_leave_out_the_warm_up_as_in_the_mlperf_reference_alone(
    kind: Literal["polynomial", "cosine"], from_zero: bool, decay_steps: int
) -> None:
    schedule = Schedule(kind=kind, base=0.4, warmup_steps=5, total_steps=90, from_zero=from_zero)
    assert schedule.decay_steps == decay_steps
