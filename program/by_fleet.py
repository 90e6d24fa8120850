"""Paddle's fleet: the gradients, all-reduces and update that it adds, and the conditions under which it is called."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import static
from paddle.base.framework import Block
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_optimizers import common as meta_optimizers

from program import in_temporary_folder, replaced
from program.passes import of_paddle
from program.precision import fp32_statistics
from program.strategy import Strategy


def minimize(
    loss: static.Variable, startup: static.Program, optimizer: Any, knobs: Strategy, *, waits_for_ranks: bool
) -> None:
    """Make a forward program a training program by Paddle's distributed library, fleet.

    Fleet adds the gradients, their all-reduce and the optimizer's update.

    Args:
        loss: Loss of a forward program, which is changed in place.
        startup: Start-up program; gets the operators that initialize what is added.
        optimizer: Paddle's optimizer, wrapped for mixed precision if the job uses it.
        knobs: Which operators fleet fuses, or `auto`: fleet optimizes as it sees fit. Paddle's flags that they set stay
            set for the rest of the process.
        waits_for_ranks: Whether to wait until the other ranks listen on their ports.
    """
    _set_flags(knobs)  # not undone
    fleet_strategy = _fleet_strategy(auto=knobs.auto)
    # Each context changes one thing while fleet works, and undoes the change at its end. Their order does not matter.
    with (
        fp32_statistics(),  # mixed precision leaves the statistics of `sync_batch_norm` in FP32
        _without_prints_and_files(),  # prints go to standard error, files into a temporary folder
        _with_fast_insertions(),  # Paddle inserts operators without checks of the whole program
        _with_waiting(waits_for_ranks=waits_for_ranks),  # fleet waits for the other ranks, or does not
        _with_fusions_of(knobs),  # fleet applies only the fusions that are on; with `knobs.auto` fleet chooses
    ):
        fleet.init(is_collective=True, strategy=fleet_strategy, log_level="ERROR")
        fleet.distributed_optimizer(optimizer).minimize(loss, startup)


@contextlib.contextmanager
def _without_prints_and_files() -> Iterator[None]:
    """Keep fleet from printing to the user's screen, and its sharding from writing into the working directory."""
    with contextlib.redirect_stdout(sys.stderr), in_temporary_folder():
        yield


def _with_fast_insertions() -> contextlib.AbstractContextManager[None]:
    """Return a context in which Paddle inserts operators fast: it no longer compares the whole program with C++'s copy.

    The time of all these comparisons would grow with the square of the program's length.
    """
    return replaced(Block, "_insert_op", Block._insert_op_without_sync)


def _with_waiting(*, waits_for_ranks: bool) -> contextlib.AbstractContextManager[None]:
    """Return a context in which fleet waits until the other ranks listen on their ports, or does not wait."""
    if waits_for_ranks:
        return contextlib.nullcontext()  # fleet waits by itself
    return replaced(meta_optimizers, "wait_server_ready", lambda endpoints: None)


def _with_fusions_of(knobs: Strategy) -> contextlib.AbstractContextManager[None]:
    """Return a context in which fleet, Paddle's distributed library, applies only the fusions chosen in `knobs`.

    Args:
        knobs: The strategy with every knob decided. With its `auto`, fleet chooses by itself.
    """
    if knobs.auto:
        return contextlib.nullcontext()
    return of_paddle.applying_only_fusions_of(knobs)


def _set_flags(knobs: Strategy) -> None:
    """Set Paddle's global flags for `knobs`: those of cuDNN that the user chose, and how gradients are added up.

    Paddle reads the flag on gradients in fleet's `minimize`, and those of cuDNN when a program runs.

    Args:
        knobs: The options of the training strategy, each of them decided. Their `flags` are those of cuDNN that the
            user chose.
    """
    # If three operators read a variable, it gets three gradients, which Paddle adds up in one of two ways:
    #     sum(g1, g2, g3)                   one operator, for more gradients than the flag says
    #     grad_add(grad_add(g1, g2), g3)    a chain of operators, for at most as many
    # The knob `enable_addto` works on chains alone. 8 makes all of them chains, because no variable of our networks has
    # more than 8 readers. 0 makes none.
    most_gradients_in_chain = 8 if knobs.enable_addto else 0
    paddle.set_flags(knobs.flags | {"FLAGS_max_inplace_grad_add": most_gradients_in_chain})


def _fleet_strategy(*, auto: bool) -> Any:
    """Return fleet's own strategy object: Paddle's automatic mode, or no optimization by fleet.

    Args:
        auto: Whether it is the automatic mode (STRATEGY=auto).
    """
    strategy = fleet.DistributedStrategy()
    if auto:
        strategy.auto = True
    else:
        strategy.without_graph_optimization = True  # the program after `minimize` is the program that runs
        strategy.fuse_all_reduce_ops = False  # our own pass makes the buckets
    return strategy
