"""Training input on a CPU, 2048 x 1024 PNG to crops of 1024 x 512: data.py against PaddleSeg's dataset and transforms.

PaddleSeg's own classes run in Paddle's DataLoader with 2 workers, as in its recipe for Cityscapes; it needs the locked
packages of locks/bench.lock. Its OpenCV must be loaded before Paddle, so each way runs in its own process.
    python benchmarks/hrnet_input_pipeline.py [--repeats N] [--short]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import ratios
from PIL import Image

BATCH, WORKERS, FILES = 8, 2, 24
WIDTH, HEIGHT = 2048, 1024  # pixels
ROOT = Path(__file__).parents[1]

PADDLESEG = """
import sys, time
import cv2, paddle
from paddleseg import transforms as T
from paddleseg.datasets import Cityscapes
folder, batch, workers, batches = sys.argv[1], *(int(a) for a in sys.argv[2:])
paddle.set_device("cpu")
dataset = Cityscapes(
    transforms=[
        T.ResizeStepScaling(0.5, 2.0, 0.25), T.RandomPaddingCrop(crop_size=[1024, 512]), T.RandomHorizontalFlip(),
        T.RandomDistort(brightness_range=0.4, contrast_range=0.4, saturation_range=0.4), T.Normalize(),
    ],
    dataset_root=folder, mode="train")
dataset.file_list *= 40
loader = iter(paddle.io.DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=True, num_workers=workers))
for _ in range(workers * 2 + 1):  # beyond what the workers hold ready
    next(loader)
start = time.perf_counter()
for _ in range(batches):
    next(loader)
print(batch * batches / (time.perf_counter() - start), flush=True)
import os, signal; os.killpg(0, signal.SIGKILL)  # the workers too: they would hold the pipe, and may never end
"""


def write_pairs(folder: Path, count: int) -> None:
    """Smooth colours with noise, 3.6 MB each, and labels in blocks; Cityscapes' images have on average 2.3 MB."""
    rng = np.random.default_rng(0)
    for i in range(count):
        smooth = Image.fromarray(rng.integers(0, 255, (16, 32, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
        noisy = np.asarray(smooth, dtype=int) + rng.integers(-2, 3, (HEIGHT, WIDTH, 3))
        label = Image.fromarray(rng.integers(0, 19, (16, 32), dtype=np.uint8)).resize(
            (WIDTH, HEIGHT), Image.Resampling.NEAREST
        )
        for kind, end, picture in (
            ("leftImg8bit", "leftImg8bit", Image.fromarray(noisy.clip(0, 255).astype(np.uint8))),
            ("gtFine", "gtFine_labelTrainIds", label),
        ):
            path = folder / kind / "train" / "town" / f"town_{i:06d}_{end}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)


def ours(folder: Path, batches: int) -> float:
    """Samples/s of our loader, in this process."""
    sys.path.insert(0, str(ROOT))
    from harness import sampling
    from harness.loader import ReaderConfig
    from paddle_hrnet import data
    from paddle_hrnet.config import CITYSCAPES_CLASSES, Augmentation

    pairs = data.find(folder, "train", CITYSCAPES_CLASSES)
    plan = sampling.training_plan(len(pairs), batch=BATCH, rank=0, ranks=1, seed=1)
    image, cores = data.ImageFormat(height=512, width=1024), len(os.sched_getaffinity(0))
    reader = ReaderConfig(batch=BATCH, image=image, device="cpu", device_id=None, threads=cores, seed=1)
    loader = data.Loader(pairs, plan, reader, augment=Augmentation())
    with contextlib.closing(loader):
        return ratios.rate_of(loader, batches, batch=BATCH)


def main() -> None:
    """Takes turns and prints the ratio."""
    args = ratios.parser(__doc__).parse_args()
    batches = 1 if args.short else 8
    with tempfile.TemporaryDirectory() as folder:
        write_pairs(Path(folder), BATCH if args.short else FILES)

        def paddleseg() -> float:
            command = [sys.executable, "-c", PADDLESEG, folder, *(str(n) for n in (BATCH, WORKERS, batches))]
            done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
            assert done.stdout, done.stderr
            return float(done.stdout.splitlines()[-1])

        rates = ratios.take_turns(
            {"ours": lambda: ours(Path(folder), batches), "PaddleSeg": paddleseg},
            1 if args.short else args.repeats,
        )
    ratios.report(rates, "ours", {"PaddleSeg": 2.0}, "samples/s")


if __name__ == "__main__":
    main()
