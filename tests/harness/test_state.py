"""The state of a training program: weights from outside, and what the ranks share."""

from __future__ import annotations

import re
from unittest import mock

import numpy as np
import paddle
import pytest
from mpi4py import MPI
from paddle import static

from harness import loader, state
from harness.ranks import Ranks
from paddle_rn50 import data
from tests.program import programs


def values(main: static.Program) -> dict[str, np.ndarray]:
    """The state as FP32."""
    return {name: np.array(tensor).astype(np.float32) for name, tensor in state.tensors(main)}


@pytest.mark.parametrize(("name", "rounding", "masters"), [("fp32", 0, 0), ("amp_o1", 0, 0), ("amp_o2", 2.0**-11, 17)])
def test_weights_from_outside_reach_each_parameter_and_its_master(name: str, rounding: float, masters: int) -> None:
    built = programs.build(name=name, device="cpu" if name == "fp32" else "gpu")
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(built.startup)
        rng = np.random.default_rng(0)
        before = values(built.main)
        weights = {
            p.name: rng.standard_normal(p.shape).astype(np.float32) for p in built.main.all_parameters() if p.trainable
        }
        state.set_weights(built.main, weights)
        after = values(built.main)
    seen = 0
    for entry, value in after.items():
        parameter = re.sub(r"_fp32_master_\d+$", "", entry)
        is_master = parameter != entry
        if parameter in weights:
            seen += is_master
            exact = is_master or parameter.endswith(("bn.w", "bn.b"))  # normalizations stay FP32
            np.testing.assert_allclose(value, weights[parameter], rtol=0 if exact else rounding, atol=1e-7)
        else:
            np.testing.assert_array_equal(value, before[entry])
    assert seen == masters
    with pytest.raises(AssertionError, match="no_such_layer"):
        state.set_weights(built.main, {"no_such_layer": np.zeros(1, np.float32)})


def test_ranks_share_the_state_that_each_of_them_has() -> None:
    """Paddle's automatic mode gives each rank a part of the state: a broadcast of the whole would never meet."""
    built = programs.build()
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(built.startup)
        mine = set(values(built.main))
        theirs = {name for name in mine if "stem" not in name}
        assert theirs < mine
        comm = mock.create_autospec(MPI.Comm, instance=True)
        comm.allgather.side_effect = lambda names: [names, theirs]
        ranks = Ranks(comm=comm, rank=0, size=2, local_rank=0, node="node0")
        state.broadcast_parameters(built.main, ranks)
        assert comm.Bcast.call_count == len(theirs)


def test_an_evaluation_is_of_the_mean_of_the_ranks_statistics() -> None:
    """Each follows its own rank's samples; nothing else of the state is another rank's."""
    built = programs.build()
    with static.scope_guard(static.Scope()):
        static.Executor(paddle.CPUPlace()).run(built.startup)
        before, own = values(built.main), state.own_names(built.main)
        assert len(own) == 2 * built.kinds("batch_norm")[0]
        comm = mock.create_autospec(MPI.Comm, instance=True)
        comm.allreduce.side_effect = lambda mine: mine + (mine + 3)  # the other rank's are greater by 3
        state.average_statistics(built.main, Ranks(comm=comm, rank=0, size=2, local_rank=0, node="node0"))
        for name, value in values(built.main).items():
            np.testing.assert_allclose(value, before[name] + (1.5 if name in own else 0), err_msg=name)


def test_a_synthetic_batch_lies_on_the_device() -> None:
    made = data.synthetic(data.ImageFormat(size=8), batch=2, classes=10, seed=1)
    kept = loader.resident(made, paddle.CPUPlace())
    for name in ("image", "label", "valid"):
        assert isinstance(getattr(kept, name), paddle.base.core.LoDTensor)
        np.testing.assert_array_equal(np.array(getattr(kept, name)), getattr(made, name))
