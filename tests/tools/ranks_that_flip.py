"""Takes a fleet's digests on ranks of a small network, some of which flip bits: `python ranks_that_flip.py RESULT`.

RESULT gets {case: digests of the record}. Each case changes what one rank's steps compute, after the program did.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import static

from harness import env, ranks, state
from paddle_rn50 import model
from tools.acceptance.machine import Machine
from tools.fleet import digests, steps

model.STAGES = ((64, 1), (128, 1), (256, 1), (512, 1))
digests.ON_CPU = digests.Amount(steps_per_repetition=2, least_repetitions=3, least_s=0.0)


class Flip(NamedTuple):
    """A bit of one tensor that a rank flips after one of its six steps."""

    rank: int
    step: int  # from 0, over all repetitions
    tensor: str
    bit: int  # of a float32 in the middle of the tensor: 0 is the lowest, 30 the exponent's highest


CASES: dict[str, tuple[Flip, ...]] = {
    "healthy": (),
    "gradient, low, in one step": (Flip(1, 3, "fc.w@GRAD", 0),),
    "statistic, middle, in each repetition": tuple(Flip(2, step, "stem.bn.mean", 12) for step in (0, 2, 4)),
    "update, exponent, in one step": (Flip(3, 1, "stage1.0.1.conv.w", 30),),
    "random order": tuple(Flip(rank, step, "fc.b@GRAD", step) for rank in range(4) for step in range(6)),
}

take_step = digests.RepeatableTraining.step


def flipped(value: Any, bit: int) -> Any:
    """A copy of the tensor with the bit flipped."""
    changed = np.array(value)
    changed.reshape(-1).view(np.uint32)[changed.size // 2] ^= 1 << bit
    return changed


def stepping(flips: tuple[Flip, ...], rank: int) -> Callable[[digests.RepeatableTraining], Any]:
    """A step of the training that has these flips; those of what stays in the device go into the steps after it."""
    taken = 0

    def step(training: digests.RepeatableTraining) -> Any:
        nonlocal taken
        values = take_step(training)
        for flip in flips:
            if (flip.rank, flip.step) == (rank, taken):
                values[flip.tensor] = flipped(values[flip.tensor], flip.bit)
                held = static.global_scope().find_var(flip.tensor)
                if "@GRAD" not in flip.tensor:
                    state.assign(held.get_tensor(), values[flip.tensor])
        taken += 1
        return values

    return step


job, origins = env.read()
me = ranks.start(job.cluster)
ranks.connect(job.cluster, me)
paddle.enable_static()
training = steps.programs(Machine(job, origins, me, short=True)).repeatable_training
found = {}
for case, flips in CASES.items():
    digests.RepeatableTraining.step = stepping(flips, me.rank)  # type: ignore[method-assign,assignment] # a step in place of the class's own
    found[case] = digests.measure_all_ranks(job.cluster, me, training, host_index=me.rank)
if me.is_first:
    Path(sys.argv[1]).write_text(json.dumps(found))
