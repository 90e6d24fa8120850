"""Gradient merge: one update of several micro-steps."""

from __future__ import annotations

from paddle import static

from program.ops import BACKWARD, LOSS, MERGED, is_clear, is_merge, is_optimizer, parameters_by_gradient, writers
from program.passes.edit import insert, remove

TRANSPORT = ("c_allreduce_sum", "c_sync_calc_stream", "c_sync_comm_stream")  # what fleet adds to carry gradients


def merge_gradients(main: static.Program, startup: static.Program, *, steps: int) -> static.Program:
    """Makes `main` the last of `steps` micro-steps of one update; returns the program of those before it.

    A micro-step adds each gradient to its accumulator, of the gradient's own type. The last one adds the accumulators
    to its own gradients before anything reads them, and clears them, so all-reduce, loss scaling and optimizer are as
    without it. The loss's gradient is divided by `steps`. Must run before the buckets are made.
    """
    block = main.global_block()
    gradients = parameters_by_gradient(block)
    start = next(i for i, op in enumerate(block.ops) if op.attr("op_role") == BACKWARD | LOSS)
    loss = block.ops[start].output("Out")
    insert(block, start + 1, "scale", {"X": loss}, {"Out": loss}, scale=1.0 / steps, op_role=BACKWARD)
    made = {
        name: max(i for i in places if not is_optimizer(block.ops[i]) and block.ops[i].type not in TRANSPORT)
        for name, places in writers(block).items()
        if name in gradients
    }
    for name, at in sorted(made.items(), key=lambda entry: -entry[1]):
        shape, dtype = block.var(gradients[name]).shape, block.var(name).dtype
        total = f"{name}{MERGED}"
        for owner in (block, startup.global_block()):
            owner.create_var(name=total, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
        zero = {"shape": list(shape), "dtype": dtype, "value": 0.0}
        insert(startup.global_block(), len(startup.global_block().ops), "fill_constant", {}, {"Out": [total]}, **zero)
        insert(block, at + 1, "fill_constant", {}, {"Out": [total]}, **zero, op_role=BACKWARD)
        insert(
            block, at + 1, "elementwise_add", {"X": [name], "Y": [total]}, {"Out": [name]}, axis=-1, op_role=BACKWARD
        )
    startup.global_block()._sync_with_cpp()
    block._sync_with_cpp()
    micro = main.clone()
    remove(micro, lambda op: is_optimizer(op) or is_clear(op) or op.type in TRANSPORT)
    for op in micro.global_block().ops:
        if is_merge(op):
            op.desc.set_output("Out", op.input("Y"))
    micro.global_block()._sync_with_cpp()
    return micro
