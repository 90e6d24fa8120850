"""A rank of a job in which one thing is altered: `python altered.py CHANGE`, for the golden losses' controls and proof.

`rounding` moves every input pixel by one unit in the last place. `bits:N` rounds what each convolution and matrix
product reads, forward and backward, to N bits of mantissa: 11 are those of FP16 and TF32. `half` stores what each
operator leaves in FP16. The others are faults that the test must see.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from harness import __main__ as rank
from harness import env

CHANGE = sys.argv[1]
job, _ = env.read()
env.export(env.runtime(job))

from harness import loader  # noqa: E402 - Paddle reads the environment when it is loaded
from paddle_rn50 import data  # noqa: E402
from program import build, schedules  # noqa: E402 - Paddle reads the environment when it is loaded

if CHANGE == "rounding":
    to_feed = loader.to_feed

    def up(output: Any, device_id: int | None, into: Any) -> Any:
        fed = to_feed(output, device_id, into)
        return np.nextafter(fed, np.float32(np.inf)) if fed.ndim == 4 else fed

    loader.to_feed = up
elif CHANGE == "half" or CHANGE.startswith("bits:"):
    import rounded

    minimize = build.minimize

    def and_round(loss: Any, *args: Any, **kwargs: Any) -> build.TrainingProgram:
        built = minimize(loss, *args, **kwargs)
        if CHANGE == "half":
            rounded.store_half(loss.block, loss_scale=128.0)  # that of tools/acceptance/machine.py
        else:
            rounded.round_products(loss.block, bits=int(CHANGE.removeprefix("bits:")))
        return built

    build.minimize = and_round
elif CHANGE == "gradient":  # the all-reduce is lost: every rank follows its own gradient
    build.NCCL_ONLY = (*build.NCCL_ONLY, "c_allreduce_sum")
elif CHANGE == "schedule":  # the warm-up starts one step late
    rate = schedules.Schedule.__call__
    schedules.Schedule.__call__ = lambda self, step: rate(self, max(0, step - 1))
elif CHANGE == "reader":  # one label in each batch is wrong
    following = data.Loader.__next__

    def mislabelled(self: data.Loader) -> loader.Batch:
        batch = following(self)
        batch.label[0] = (batch.label[0] + 1) % 10
        return batch

    data.Loader.__next__ = mislabelled
else:
    raise SystemExit(f"no such change: {CHANGE}")

sys.exit(rank.main())
