"""A rank of a job in which one thing is altered: `python altered.py CHANGE`, for the golden losses' controls and proof.

`rounding` moves every input pixel by one unit in the last place. `bits:N` rounds what each convolution and matrix
product reads, forward and backward, to N bits of mantissa: 11 are those of FP16 and TF32. The others are faults that
the test must see.
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

from harness import loader, program, schedules  # noqa: E402 - Paddle reads the environment when it is loaded
from paddle_rn50 import data  # noqa: E402

if CHANGE == "rounding":
    to_feed = loader.to_feed
    loader.to_feed = lambda images, device: np.nextafter(to_feed(images, device), np.float32(np.inf))
elif CHANGE.startswith("bits:"):
    import rounded

    minimize = program.minimize

    def and_round(loss: Any, *args: Any, **kwargs: Any) -> None:
        minimize(loss, *args, **kwargs)
        rounded.round_products(loss.block, bits=int(CHANGE.removeprefix("bits:")))

    program.minimize = and_round
elif CHANGE == "gradient":  # the all-reduce is lost: every rank follows its own gradient
    program.NCCL_ONLY = (*program.NCCL_ONLY, "c_allreduce_sum")
elif CHANGE == "schedule":  # the warm-up starts one step late
    rate = schedules.Schedule.__call__
    schedules.Schedule.__call__ = lambda self, step: rate(self, max(0, step - 1))
elif CHANGE == "reader":  # one label in each batch is wrong
    following = data.Loader.__next__

    def mislabelled(self: data.Loader) -> data.Batch:
        batch = following(self)
        batch.label[0] = (batch.label[0] + 1) % 10
        return batch

    data.Loader.__next__ = mislabelled
else:
    raise SystemExit(f"no such change: {CHANGE}")

sys.exit(rank.main())
