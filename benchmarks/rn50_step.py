"""A training step of ResNet-50 on a CPU: the program of train.py against PyTorch, FP32, batch 8, 224 x 224.

Both use the same cores and the same SGD. Each way runs in its own process. `channels-last` is PyTorch's faster layout.
    python benchmarks/rn50_step.py [--repeats N] [--short]
"""

from __future__ import annotations

import os
import subprocess
import sys

import ratios
import training

BATCH, SIDE = 8, 224

TORCH = """
import sys, time, torch, torchvision
batch, side, steps, warm_up, threads, last = (int(a) for a in sys.argv[1:])
torch.set_num_threads(threads)
layout = torch.channels_last if last else torch.contiguous_format
model = torchvision.models.resnet50().to(memory_format=layout).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
x = torch.randn(batch, 3, side, side).to(memory_format=layout)
y = torch.randint(0, 1000, (batch,))
for step in range(warm_up + steps):
    if step == warm_up:
        start = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(batch * steps / (time.perf_counter() - start))
"""


def main() -> None:
    """Takes turns and prints the ratios."""
    args = ratios.parser(__doc__).parse_args()
    side, steps, warm_up = (64, 1, 1) if args.short else (SIDE, 6, 2)
    cores = len(os.sched_getaffinity(0))

    def ours() -> float:
        job = {"IMAGE_SIZE": side, "BATCHSIZE": BATCH, "THREADS": cores}
        return training.rate(steps=steps, warm_up=warm_up, RECIPE="nvidia_cosine", **job)

    def torch(channels_last: int) -> float:
        command = [sys.executable, "-c", TORCH, *(str(n) for n in (BATCH, side, steps, warm_up, cores, channels_last))]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    rates = ratios.take_turns(
        {"ours": ours, "torch": lambda: torch(0), "torch channels-last": lambda: torch(1)},
        1 if args.short else args.repeats,
    )
    ratios.report(rates, "ours", {"torch": 0.67, "torch channels-last": 0.67}, "images/s")


if __name__ == "__main__":
    main()
