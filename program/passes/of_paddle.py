"""Paddle's own passes. Paddle rebuilds the program in Python after each; here that is done once, after the last."""

from contextlib import AbstractContextManager
from typing import Any

import paddle
from paddle import static
from paddle.distributed.fleet.meta_optimizers import raw_program_optimizer

from program import replaced
from program.strategy import Strategy

# The pass that each knob turns on, in the order in which Paddle applies them (apply_build_strategy).
FUSION_PASSES = {
    "fuse_bn_act_ops": "fuse_bn_act_pass",
    "fuse_bn_add_act_ops": "fuse_bn_add_act_pass",
    "fuse_elewise_add_act_ops": "fuse_elewise_add_act_pass",
    "enable_addto": "inplace_addto_op_pass",
}


def applying_only_fusions_of(knobs: Strategy) -> AbstractContextManager[None]:
    """Return a context in which fleet, Paddle's distributed library, applies only the passes that `knobs` chooses.

    By itself, fleet applies further passes of Paddle as well, by the function `apply_build_strategy`. While the context
    lasts, another function stands in its place; afterwards fleet has its own again.

    Args:
        knobs: The strategy with every knob decided. A knob that is on chooses its pass: `fuse_bn_act_ops`, for example,
            the pass "fuse_bn_act_pass".
    """
    chosen_passes = []  # Paddle's names
    for knob, pass_name in FUSION_PASSES.items():
        is_on = getattr(knobs, knob)
        if is_on:
            chosen_passes.append(pass_name)

    def apply_chosen_passes(main: static.Program, *unused: Any) -> None:
        """Take the place of `apply_build_strategy`, with the arguments that fleet passes to it.

        Args:
            main: Training program; changed in place.
            *unused: The start-up program, fleet's options, and attributes of passes. `_apply` makes its own in place of
                these.
        """
        if chosen_passes:
            _apply(main, chosen_passes)

    # This module of fleet is the one that calls `apply_build_strategy`: once, when the program has its gradients and
    # update, and not yet the all-reduces.
    return replaced(raw_program_optimizer, "apply_build_strategy", apply_chosen_passes)


def share_buffers(main: static.Program) -> None:
    """Let outputs take the buffers of inputs that nothing reads later.

    Args:
        main: Program to change in place, after all other passes, because the last reader of each variable decides.
    """
    _apply(main, ["buffer_shared_inplace_pass"])


def _apply(main: static.Program, passes: list[str]) -> None:
    """Apply passes of Paddle's C++ library to a program.

    The passes change a copy of the program's C++ description, from which the program in Python is then rebuilt. Paddle
    itself does so after each pass, here it is done once.

    Args:
        main: Paddle program; changed in place.
        passes: Paddle's names of the passes, such as "fuse_bn_act_pass", in the order in which they are applied.
    """
    inputs = [variable.name for variable in main.list_vars() if variable.is_data]
    attrs = {
        "use_cuda": True,  # also for a CPU: the same passes for every device
        "nranks": 1,  # of no effect on these passes
        # For "buffer_shared_inplace_pass": no output takes an input's buffer, because the batch may be fed again.
        "mem_opt_skip_vars": inputs,
    }
    # `apply_pass` wants to be told in which C++ type a pass reads each attribute.
    cpp_types_of_attrs = {"use_cuda": "bool", "nranks": "size_t", "mem_opt_skip_vars": "list[str]"}
    # A copy, because `_rebuild_from_desc` moves the blocks out of the description that it is given.
    cpp_program = paddle.base.core.ProgramDesc(main.desc)
    cpp_startup = static.Program().desc  # empty: `apply_pass` demands one, and these passes do not look at it
    for name in passes:
        paddle.base.core.apply_pass(cpp_program, cpp_startup, name, attrs, cpp_types_of_attrs)
    main._rebuild_from_desc(cpp_program)  # brings the changes into the program in Python
