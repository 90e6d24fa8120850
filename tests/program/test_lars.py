"""LARS of many parameters as few operators: each parameter's update stays its own."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from paddle_rn50 import model
from program.proof import verify
from tests.program import lower, programs

RANKS = 8
RECIPE = programs.replace(programs.RECIPE, optimizer=programs.LARS)


@cache
def merged() -> programs.Built:
    """The program in half precision with merged updates."""
    return programs.build(name="amp_o2", device="gpu", ranks=RANKS, knobs="merged_lars=1", recipe=RECIPE)


@pytest.mark.parametrize("name", ["fp32", "amp_o2"])
def test_merged_lars_updates_every_parameter_as_single_operators_do(name: str) -> None:
    found, layout = {}, "NHWC" if name == "amp_o2" else "NCHW"
    for knobs in ("merged_lars=1", ""):
        built = programs.build(name=name, device="gpu", ranks=8, knobs=knobs, recipe=RECIPE)
        updates = [op for op in built.main.global_block().ops if op.type == "lars_momentum"]
        assert [len(op.input("Param")) for op in updates] == (
            [1] * 47 if not knobs else [30, 17] if name == "amp_o2" else [47]
        )
        state = [n for op in updates for slot in ("Param", "Velocity", "MasterParam") for n in op.input(slot)]
        lower.lower(built.main, built.startup, ranks=8)
        channels = 4 if layout == "NHWC" else 3
        found[knobs] = programs.losses(built, 10, layout=layout, channels=channels, fetch=state)
    (losses, together), (expected, single) = found.values()
    assert losses == pytest.approx(expected, rel=1e-7)
    assert together.keys() == single.keys()
    for variable, value in single.items():
        np.testing.assert_allclose(together[variable], value, rtol=1e-7, atol=1e-9, err_msg=variable)


def test_lars_of_resnet50_takes_at_most_four_operators() -> None:
    built = programs.build(
        name="amp_o2", device="gpu", ranks=RANKS, knobs="merged_lars=1", recipe=RECIPE, stages=model.STAGES
    )
    updates = [op for op in built.main.global_block().ops if op.type == "lars_momentum"]
    assert sorted(len(op.input("Param")) for op in updates) == [53, 53, 55]  # their decays are proved as it is built


@pytest.mark.parametrize(
    ("slot", "attr", "reason"),
    [
        ("Velocity", "", "lars_momentum updates .* by the Velocity of another parameter"),
        ("MasterParam", "", "lars_momentum updates .* by the MasterParam of another parameter"),
        ("ParamOut", "", "lars_momentum of .* writes another Param than it reads"),
        ("", "lars_coeff", "lars_coeff of .* is 0.5, not 0.001"),
        ("", "epsilon", "epsilon of .* is 0.5, not 0"),
        ("", "lars_weight_decay", "weight decay of fc.b is 0.01, not 0"),
    ],
)
def test_a_merged_update_of_mixed_up_lists_is_refused(slot: str, attr: str, reason: str) -> None:
    main = merged().main.clone()
    op = next(op for op in main.global_block().ops if op.type == "lars_momentum" and op.attr("multi_precision"))
    if attr == "lars_weight_decay":
        op.desc._set_attr(attr, op.attr(attr)[::-1])
    elif attr:
        op.desc._set_float32_attr(attr, 0.5)
    elif slot.endswith("Out"):
        op.desc.set_output(slot, op.output(slot)[::-1])
    else:
        turned = op.input(slot)[::-1]
        op.desc.set_input(slot, turned)
        op.desc.set_output(f"{slot}Out", turned)
    with pytest.raises(verify.Refused, match=reason):
        verify.optimizer(main, programs.LARS)
