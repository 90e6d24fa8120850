"""Paddle's own passes. Paddle rebuilds the program in Python after each; here that is done once, after the last."""

from contextlib import AbstractContextManager
from typing import Any

import paddle
from paddle import static
from paddle.distributed.fleet.meta_optimizers import raw_program_optimizer

from program import replaced
from program.strategy import Strategy

# By knob, in Paddle's order (apply_build_strategy).
FUSIONS = {
    "fuse_bn_act_ops": "fuse_bn_act_pass",
    "fuse_bn_add_act_ops": "fuse_bn_add_act_pass",
    "fuse_elewise_add_act_ops": "fuse_elewise_add_act_pass",
    "enable_addto": "inplace_addto_op_pass",
}


def chosen(knobs: Strategy) -> AbstractContextManager[None]:
    """Return a context in which fleet applies the fusion passes that the strategy's knobs ask for, and no others.

    Fleet applies fusion passes by a function of its own, `apply_build_strategy`. While the context lasts that function
    is replaced. Fleet calls it after adding the optimizer's update and before adding the all-reduces.
    """
    passes = [pass_name for knob, pass_name in FUSIONS.items() if getattr(knobs, knob)]

    def fuse(main: static.Program, *unused: Any) -> None:
        if passes:
            _apply(main, passes)

    return replaced(raw_program_optimizer, "apply_build_strategy", fuse)


def share_buffers(main: static.Program) -> None:
    """Let outputs take the buffers of inputs that nothing reads later.

    Must run after all other passes: it decides by the last reader of each variable.
    """
    _apply(main, ["buffer_shared_inplace_pass"])


def _apply(main: static.Program, passes: list[str]) -> None:
    fed = [variable.name for variable in main.list_vars() if variable.is_data]  # a batch may be fed again
    attrs: dict[str, Any] = {"use_cuda": True, "nranks": 1, "mem_opt_skip_vars": fed}
    types = {"use_cuda": "bool", "nranks": "size_t", "mem_opt_skip_vars": "list[str]"}
    changed = paddle.base.core.ProgramDesc(main.desc)
    no_startup = static.Program().desc  # none of these passes looks at the start-up program
    for name in passes:
        paddle.base.core.apply_pass(changed, no_startup, name, attrs, types)
    main._rebuild_from_desc(changed)
