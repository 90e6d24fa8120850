"""The controls of tools/acceptance/fast.py: `fast_controls.py units|lars|lars-half`, on one rank of a CPU.

Each trains the first steps of the acceptance's job twice and prints a JSON list: how far each loss of the second
training is from the first one's, as a share of it. Programs of a GPU are lowered to a CPU, and round what they store in
FP16.

- `units`: the plain program of amp_o2, then the one by `resnet_unit`.
- `lars`: the plain update in FP32, then the same with the rate of each parameter moved by 8 roundings of FP32, up and
  down in turn: a norm of millions of elements, summed in another order, moves by less.
- `lars-half`: the same two updates in the program of amp_o2.
"""

import json
import sys
from typing import Any

import numpy as np

from harness import env

job, origins = env.read()
env.export(env.runtime(job))

import paddle  # noqa: E402 - reads the environment when it is loaded

from harness import ranks  # noqa: E402
from paddle_rn50 import config, model  # noqa: E402
from program.passes import edit  # noqa: E402
from tests.program import lower, programs  # noqa: E402
from tools.acceptance import fast  # noqa: E402
from tools.acceptance import machine as acceptance  # noqa: E402

ROUNDINGS = 8 * 2.0**-23  # relative
RECORDED = config.recipe("recorded", global_batch=acceptance.BATCH, image_size=acceptance.SIDE)


def losses(name: str, recipe: config.Recipe, *, knobs: str = "", moves_rates: bool = False) -> np.ndarray:
    """Train by the program of precision `name`; return the loss of each step."""
    _, images, schedule = machine.recorded_training(recipe)
    in_half = name != "fp32"
    built = programs.fresh(
        name=name,
        device="gpu" if in_half else "cpu",
        knobs=knobs,
        batch=acceptance.BATCH,
        recipe=recipe,
        stages=model.STAGES,
        loss_scale=acceptance.LOSS_SCALE if in_half else 0.0,
        schedule=schedule,
    )
    if in_half:
        edit.remove(built.main, lambda op: op.type == "depend")  # they order, and the program is run in order
        lower.lower(built.main, built.startup, ranks=1, rounded="values")
    if moves_rates:
        move_rates(built.main)
    run = programs.Run(built)
    programs.set_weights(built, run.scope, acceptance.first_weights(RECORDED))
    found = []
    for image, label in machine.batches(images, recipe, machine.steps):
        fed = programs.taken(built, image.transpose(0, 2, 3, 1))
        found.append(run.step({"image": fed, "label": label}))
    return np.array(found)


def move_rates(main: Any) -> None:
    """Move the coefficient of each update by LARS, which its rate is proportional to."""
    updates = [op for op in main.global_block().ops if op.type == "lars_momentum"]
    assert len(updates) == 161
    for number, op in enumerate(updates):
        factor = 1 + ROUNDINGS if number % 2 else 1 - ROUNDINGS
        op.desc._set_float32_attr("lars_coeff", op.attr("lars_coeff") * factor)


def change(control: str) -> np.ndarray:
    """Return how far a control moves each loss, as a share of it."""
    if control == "units":
        plain = losses("amp_o2", RECORDED)
        moved = losses("amp_o2", RECORDED, knobs="resnet_unit=1")
    else:
        name = "amp_o2" if control == "lars-half" else "fp32"
        plain = losses(name, fast.lars_recipe())
        moved = losses(name, fast.lars_recipe(), moves_rates=True)
    return np.abs(moved - plain) / plain


me = ranks.start(job.cluster)
ranks.connect(job.cluster, me)
paddle.enable_static()
paddle.set_flags({"FLAGS_new_executor_serial_run": True})  # a bucket and the gradients in it are one memory
machine = acceptance.Machine(job, origins, me, short=False)
print(json.dumps(change(sys.argv[1]).tolist()))
