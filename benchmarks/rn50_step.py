"""A training step of ResNet-50 on a CPU: the program of train.py against PyTorch, FP32, batch 8, 224 x 224.

All use the same cores and the same SGD. `ours` shares the cores as the default job does, a rank each and the batch
split between them; `ours, one rank` gives one process all cores, as `torch` does. `channels-last` is PyTorch's faster
layout, `DDP` its way to give each core a process. Each way runs in its own processes.
    python benchmarks/rn50_step.py [--repeats N] [--short]
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import ratios
import training

BATCH, SIDE = 8, 224

TORCH = """
import os, sys, time, torch, torchvision
from torch import distributed
batch, side, steps, warm_up, threads, last, ranks = (int(a) for a in sys.argv[1:])
torch.set_num_threads(threads)
layout = torch.channels_last if last else torch.contiguous_format
model = torchvision.models.resnet50().to(memory_format=layout).train()
if ranks > 1:
    distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
x = torch.randn(batch, 3, side, side).to(memory_format=layout)
y = torch.randint(0, 1000, (batch,))
for step in range(warm_up + steps):
    if step == warm_up:
        start = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(ranks * batch * steps / (time.perf_counter() - start))
if ranks > 1:
    distributed.destroy_process_group()
"""


def main() -> None:
    """Takes turns and prints the ratios."""
    args = ratios.parser(__doc__).parse_args()
    side, steps, warm_up = (64, 1, 1) if args.short else (SIDE, 6, 2)
    cores = len(os.sched_getaffinity(0))

    def ours(ranks: int) -> float:
        job = {"IMAGE_SIZE": side, "BATCHSIZE": BATCH // ranks, "THREADS": cores // ranks}
        return training.rate(steps=steps, warm_up=warm_up, ranks=ranks, RECIPE="nvidia_cosine", **job)

    def torch(channels_last: int, ranks: int = 1) -> float:
        job = (BATCH // ranks, side, steps, warm_up, cores // ranks, channels_last, ranks)
        command = [sys.executable, "-c", TORCH, *map(str, job)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        processes = [
            subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        printed = [process.communicate()[0] for process in processes]
        assert not any(process.returncode for process in processes), "torch failed"
        return float(printed[0])

    per_core = max(n for n in range(1, cores + 1) if BATCH % n == 0)
    ways = {
        "ours": lambda: ours(per_core),
        "ours, one rank": lambda: ours(1),
        "torch": lambda: torch(0),
        "torch channels-last": lambda: torch(1),
        "torch channels-last DDP": lambda: torch(1, per_core),
    }
    rates = ratios.take_turns(ways, 1 if args.short else args.repeats)
    targets = {"torch": 0.67, "torch channels-last": 0.67, "torch channels-last DDP": None, "ours, one rank": None}
    ratios.report(rates, "ours", targets, "images/s")


if __name__ == "__main__":
    main()
