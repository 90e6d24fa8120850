"""Training input on a CPU, 500 x 375 JPEG to 224 x 224: data.py against torch's DataLoader and decoding alone.

Torch does the same with torchvision: decode, random resized crop with the same bounds, flip, normalize, one worker a
core. Decoding alone is DALI's decoder over whole images, the most that any pipeline here could reach.

The look at each file's end (`harness/encoded.py`) is measured as its share of the CPU time that an image takes, of all
threads, for baseline and for progressive files; wanted is less than 1 %.
    python benchmarks/input_pipeline.py [--repeats N] [--short]
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ratios
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import encoded, sampling
from harness.loader import ReaderConfig
from paddle_rn50 import data
from paddle_rn50 import folder as folder_of_files
from paddle_rn50.config import Augmentation
from paddle_rn50.folder import ImageList

BATCH, FILES = 64, 512
WARM_UP = 5  # batches: more than the pipeline holds ready


def write_images(folder: Path, count: int, *, progressive: bool = False) -> ImageList:
    """JPEG files of natural size: smooth colours with noise, about 110 kB each, as ImageNet's have on average."""
    (folder / "train").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        smooth = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        noisy = np.asarray(smooth, dtype=int) + rng.integers(-40, 40, (375, 500, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(
            folder / f"train/{i}.jpeg", quality=90, progressive=progressive
        )
    (folder / "train_list.txt").write_text("".join(f"train/{i}.jpeg 0\n" for i in range(count)))
    return folder_of_files.read_list(folder, "train", 1)


def loader_of(images: ImageList, cores: int) -> data.Loader:
    """Our loader of training images, one thread a core."""
    image = data.ImageFormat(size=224)
    reader = ReaderConfig(batch=BATCH, image=image, device="cpu", device_id=None, threads=cores, seed=1)
    plan = sampling.training_plan(len(images), batch=BATCH, rank=0, ranks=1, seed=1)
    return data.Loader(images, plan, reader, augment=Augmentation())


def ours(images: ImageList, cores: int, batches: int) -> float:
    """Images/s of our loader."""
    return ratios.rate_of(loader_of(images, cores), batches, batch=BATCH)


def decoding(images: ImageList, cores: int, batches: int) -> float:
    """Images/s of DALI's decoder alone."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def decode() -> object:
        encoded, _ = fn.readers.file(files=[str(images.root / p) for p in images.paths])
        return fn.decoders.image(encoded)

    pipeline = decode(batch_size=BATCH, num_threads=cores, device_id=None)
    pipeline.build()
    return ratios.rate_of(iter(pipeline.run, None), batches, batch=BATCH)


def share_of_looking(images: ImageList, cores: int, batches: int) -> float:
    """Share of the CPU time of an image that the look at its file's end takes."""
    loader = loader_of(images, cores)
    for _ in range(WARM_UP):
        next(loader)
    start_s = time.process_time()
    for _ in range(batches):
        next(loader)
    image_s = (time.process_time() - start_s) / (batches * BATCH)
    loader.close()

    contents, _ = images.read(np.arange(len(images)))
    start_s = time.thread_time()
    for content in contents:
        assert not encoded.fault(content)
    return (time.thread_time() - start_s) / len(contents) / image_s


def torch_loader(images: ImageList, cores: int, batches: int) -> float:
    """Images/s of torch's DataLoader."""
    import torch
    from torchvision import datasets, transforms

    gc.collect()  # a pipeline of DALI that waits to be freed would be freed in a forked worker, and crash it
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    loader: torch.utils.data.DataLoader[object] = torch.utils.data.DataLoader(
        torch.utils.data.ConcatDataset([datasets.ImageFolder(images.root, transform)] * 40),
        batch_size=BATCH,
        shuffle=True,
        num_workers=cores,
        drop_last=True,
    )
    return ratios.rate_of(loader, batches, batch=BATCH)


def main() -> None:
    """Takes turns and prints the ratios."""
    args = ratios.parser(__doc__).parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        files = BATCH if args.short else FILES
        images = write_images(Path(folder) / "baseline", files)
        progressive = write_images(Path(folder) / "progressive", files, progressive=True)
        count = 1 if args.short else 20
        turns = 1 if args.short else args.repeats
        rates = ratios.take_turns(
            {
                "ours": lambda: ours(images, cores, count),
                "torch DataLoader": lambda: torch_loader(images, cores, count),
                "decoding alone": lambda: decoding(images, cores, count),
            },
            turns,
        )
        shares = ratios.take_turns(
            {
                "baseline": lambda: share_of_looking(images, cores, count),
                "progressive": lambda: share_of_looking(progressive, cores, count),
            },
            turns,
        )
    ratios.report(rates, "ours", {"torch DataLoader": 1.6, "decoding alone": 0.5}, "images/s")
    for kind, values in shares.items():
        spread = f"{min(values):.2%} to {max(values):.2%}, {len(values)} turns"
        print(f"the look at the end of {kind} files: {statistics.median(values):.2%} of an image's CPU time ({spread})")


if __name__ == "__main__":
    main()
