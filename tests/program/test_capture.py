"""A step as a CUDA graph: its rates are the recipe's; what is refused of it is in test_verify.py."""

from functools import cache

import numpy as np
import paddle
from paddle import static

from program import capture
from tests.program import programs


@cache
def built() -> programs.Built:
    """The program of one rank of 8 in FP16; who changes it clones it."""
    return programs.build(name="amp_o2", device="gpu", ranks=8, knobs="resnet_unit=1,cuda_graph=1")


def test_a_captured_step_has_a_fixed_loss_scale_without_an_operator_of_its_own() -> None:
    assert "a fixed loss scale of 32 taken off by the update" in built().verified
    for knobs in ("cuda_graph=1,perturb_input=1", "cuda_graph=1,merged_optimizer=0"):
        scaled = programs.build(name="amp_o2", device="gpu", knobs=knobs)
        single = programs.build(name="fp32", device="gpu", knobs=knobs)  # which needs no scale
        kinds = ("check_finite_and_unscale", "update_loss_scaling", "scale", "elementwise_mul")
        assert scaled.kinds(*kinds) == single.kinds(*kinds)


def test_the_rates_that_the_program_looks_up_are_the_schedule_s() -> None:
    """Its first two operators have CPU kernels: in a program of their own they give each rate bit for bit."""
    schedule = built().schedule
    rate = built().main.global_block().ops[0].output("Out")[0]
    updates = [op for op in built().main.global_block().ops if "LearningRate" in op.input_names]
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
    assert {value.shape for value in rates} == {tuple(built().main.global_block().var(rate).shape)}
    assert found == expected and len(set(found)) > 10
