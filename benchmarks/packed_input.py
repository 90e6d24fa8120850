"""Reading training images from a cold page cache: an image folder against RecordIO made of it by tools/pack.py.

It reads as the loader does, batch after batch in the order of an epoch, as many at once as it reads ahead; nothing is
decoded, so that the disk and not the CPU is measured. Both forms lie on a file system of their own, in a file, which is
unmounted before each turn: its pages, inodes and directories are cold, and nothing else is. A slow disk is that file
system with its reads held down by cgroup's blkio. There are 512 files in one folder; ImageNet's 1.28 million lie
further apart. Needs root, a loop device and, for a slow disk, cgroup version 1; what the machine lacks is not measured.
    python benchmarks/packed_input.py [--repeats N] [--short]
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import input_pipeline
import ratios

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import sampling
from harness.memory import PREFETCH_BATCHES
from paddle_rn50 import data
from tools import pack

BATCH, FILES = input_pipeline.BATCH, input_pipeline.FILES
BLKIO = Path("/sys/fs/cgroup/blkio")
LIMITS = {"this disk": {}, "20 MB/s": {"bps": 20_000_000}, "300 reads/s": {"iops": 300}}


def command(*words: object) -> str:
    """Output of a command that must succeed."""
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[tuple[str, Path]]:
    """A loop device with a file system, and where it is mounted."""
    image, mounted = folder / "disk", folder / "mounted"
    mounted.mkdir()
    image.touch()
    os.truncate(image, 600 << 20)
    command("mkfs.ext4", "-q", image)
    device = command("losetup", "--direct-io=on", "--show", "-f", image)
    try:
        command("mount", device, mounted)
        yield device, mounted
    finally:
        subprocess.run(["umount", mounted], check=False)
        command("losetup", "-d", device)


@contextlib.contextmanager
def held_down(device: str, limits: dict[str, int]) -> Iterator[None]:
    """This process reads from the device no faster than so."""
    group = BLKIO / f"packed_input_{os.getpid()}"
    if not limits:
        yield
        return
    group.mkdir()
    try:
        number = (Path("/sys/block") / Path(device).name / "dev").read_text().strip()
        for kind, most in limits.items():
            (group / f"blkio.throttle.read_{kind}_device").write_text(f"{number} {most}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (BLKIO / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def rate(root: Path, device: str, mounted: Path, limits: dict[str, int]) -> float:
    """Images/s of an epoch's reading."""
    command("umount", mounted)
    command("mount", device, mounted)
    images = data.find(root, "train", 1)
    plan = sampling.training_plan(len(images), batch=BATCH, rank=0, ranks=1, seed=1)
    epoch = [ids for _, ids, _ in itertools.islice(plan, len(images) // BATCH)]
    with held_down(device, limits), ThreadPoolExecutor(PREFETCH_BATCHES) as readers:
        start = time.perf_counter()
        for _ in readers.map(images.read, epoch):
            pass
        return len(images) / (time.perf_counter() - start)


def main() -> None:
    """Takes turns and prints the ratios."""
    args = ratios.parser(__doc__).parse_args()
    batches = 1 if args.short else FILES // BATCH
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            device, mounted = stack.enter_context(disk(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"not measured: this machine gives no file system of its own ({error})")
            return
        files, packed = mounted / "folder", mounted / "packed"
        files.mkdir()
        input_pipeline.write_images(files, BATCH * batches)
        pack.pack(files, packed, "train")
        for name, limits in LIMITS.items():
            if limits and not (BLKIO / "blkio.throttle.read_bps_device").exists():
                print(f"{name}: not measured: this machine has no blkio of cgroup version 1")
                continue

            def way(root: Path, limits: dict[str, int] = limits) -> Callable[[], float]:
                return lambda: rate(root, device, mounted, limits)

            ways = {f"record, {name}": way(packed), f"folder, {name}": way(files)}
            rates = ratios.take_turns(ways, 1 if args.short else args.repeats)
            ratios.report(rates, f"record, {name}", {f"folder, {name}": None}, "images/s")


if __name__ == "__main__":
    main()
