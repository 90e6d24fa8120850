"""A training step of FCN-HRNetW18 on a CPU: the program of train.py against PaddleSeg's own model in dygraph.

Both in FP32 with the same SGD on the same cores, batch 4, 128 x 128 crops, 11 classes. `ours` shares the cores as the
default job does, a rank each and the batch split between them; `ours, one rank` gives one process all cores, as
PaddleSeg has them. PaddleSeg needs the packages of locks/peers.lock. Each way runs in its own processes.
    python benchmarks/hrnet_step.py [--repeats N] [--short]
"""

from __future__ import annotations

import os
import subprocess
import sys

import ratios
import training

BATCH, SIDE = 4, 128

PADDLESEG = """
import sys, time
import cv2, numpy as np, paddle
from paddleseg.models import FCN
from paddleseg.models.backbones.hrnet import HRNet_W18
from paddleseg.models.losses import CrossEntropyLoss
batch, side, steps, warm_up = (int(a) for a in sys.argv[1:])
paddle.set_device("cpu")
model, criterion = FCN(num_classes=11, backbone=HRNet_W18()), CrossEntropyLoss()
model.train()
optimizer = paddle.optimizer.Momentum(0.01, 0.9, parameters=model.parameters(), weight_decay=5e-4)
x = paddle.to_tensor(np.random.randn(batch, 3, side, side).astype("float32"))
y = paddle.to_tensor(np.random.randint(0, 11, (batch, side, side)))
for step in range(warm_up + steps):
    if step == warm_up:
        start = time.perf_counter()
    loss = criterion(model(x)[0], y)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    float(loss)
print(batch * steps / (time.perf_counter() - start))
"""


def main() -> None:
    """Takes turns and prints the ratio."""
    args = ratios.parser(__doc__).parse_args()
    side, steps, warm_up = (64, 1, 1) if args.short else (SIDE, 6, 2)
    cores = len(os.sched_getaffinity(0))

    def ours(ranks: int) -> float:
        job = {"IMAGE_SIZE": side, "BATCHSIZE": BATCH // ranks, "THREADS": cores // ranks}
        return training.rate(steps=steps, warm_up=warm_up, ranks=ranks, WORKLOAD="hrnet", **job)

    def paddleseg() -> float:
        command = [sys.executable, "-c", PADDLESEG, *(str(n) for n in (BATCH, side, steps, warm_up))]
        threads = {"OMP_NUM_THREADS": str(cores), "MKL_NUM_THREADS": str(cores)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | threads)
        return float(done.stdout.splitlines()[-1])

    per_core = max(n for n in range(1, cores + 1) if BATCH % n == 0)
    ways = {"ours": lambda: ours(per_core), "ours, one rank": lambda: ours(1), "PaddleSeg": paddleseg}
    rates = ratios.take_turns(ways, 1 if args.short else args.repeats)
    ratios.report(rates, "ours", {"PaddleSeg": 2.0, "ours, one rank": None}, "samples/s")


if __name__ == "__main__":
    main()
