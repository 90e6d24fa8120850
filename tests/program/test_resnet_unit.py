"""Blocks as `resnet_unit`: the same training as the plain network's, and the same weights outside the program."""

import functools
import re
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from paddle import static

from harness import state
from harness.hooks import checkpoint
from harness.ranks import Ranks
from paddle_rn50 import model
from program import count
from program.passes import resnet_unit
from tests.program import lower, programs

RANKS, STEPS = 8, 10
STAGES = ((32, 2), (64, 2))  # whole tiles of channels; a projection and an identity shortcut in each
PLAIN = "fuse_elewise_add_act_ops=0,merged_optimizer=0"


def units(name: str = "amp_o2", knobs: str = "resnet_unit=1") -> programs.Built:
    """A GPU's program of units, on rank 0 of 8."""
    return programs.build(name=name, device="gpu", ranks=RANKS, knobs=knobs, stages=STAGES)


def plain_name(name: str) -> str:
    """A variable's name in a program without masters."""
    return re.sub(r"_fp32_master_\d+", "", name)


def outside(built: programs.Built, name: str, value: np.ndarray) -> np.ndarray:
    """A value as the plain network on three channels has it."""
    value = resnet_unit.plain(value) if name in built.otherwise else value
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
    assert (last.moved_bytes, last.extra_bytes) == (normalized + convolved, out)  # two calls read the gradient
    shortcut, normalized_too = out + 2 * 4 * 8 * 8 * 128 * 2 + 2 * 128 * 256 * 2, 3 * out + 6 * 256 * 4
    assert joined.moved_bytes == normalized + convolved + normalized_too + shortcut and joined.extra_bytes == 2 * out


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
    mine = {f"rank0/{name}": value.copy() for name, value in state.values(main, own=True)}
    return mine | {name: value.copy() for name, value in state.values(main, own=False)}


def test_a_checkpoint_of_the_plain_network_goes_into_units_and_comes_out_again() -> None:
    ranks = Ranks(comm=MPI.COMM_SELF, rank=0, size=1, local_rank=0, node="here")
    position = checkpoint.Position(step=3, epoch=1, epoch_step=3, seed=1, global_batch=4, ranks=1)
    base, arrays, found = programs.build(name="amp_o2", device="gpu", ranks=RANKS, stages=STAGES), {}, {}
    assert len(state.own_names(base.main)) == 2 * 15
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
            checkpoint.restore(checkpoint.Start(position=position, path="a", arrays=arrays), program, ranks)
            found = kept(program.main)
    assert found.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_an_evaluation_has_units_on_the_training_programs_state() -> None:
    with mock.patch.object(model, "STAGES", STAGES):
        evaluation = one().evaluation()
    ops = [op for op in evaluation.global_block().ops if op.type == "resnet_unit"]
    assert len(ops) == 12 and all(op.attr("is_test") for op in ops)
