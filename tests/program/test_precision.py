"""Loss scaling, and the state that half precision leaves behind."""

import numpy as np
import paddle

from tests.program import programs


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
