"""Traits of a workload's network and recipes, told before anything is built by `paddle_<workload>/traits.py`.

Nothing here needs a package: the host of a launcher refuses wrong settings too.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class MemoryPeaks:
    """Peaks of Paddle's allocator on one GPU while a workload trains on its usual crop."""

    crop_pixels: int
    mib: Mapping[str, Mapping[int, int]]  # PRECISION: {images computed at once: MiB}
    other_recipes: tuple[str, ...]  # names of recipes on other crops, of which no peak was taken; "" is the default one


MIN_DEVICE_PADDING = 16 << 20  # bytes: DALI's defaults
MIN_HOST_PADDING = 8 << 20


@dataclass(frozen=True, kw_only=True)
class DecoderMemory:
    """Memory that a GPU's image decoder takes at its start by the largest image, for each thread and a JPEG unit."""

    device_bytes: int  # of a pixel, on the GPU
    host_bytes: int  # of a pixel, pinned in the host's memory
    unit_bytes: int  # of a pixel, on a GPU with a JPEG unit (nvidia.JPEG_UNIT_CAPABILITIES), whatever the threads
    unit_bytes_of_batch: int  # of an image of the batch, likewise
    usual_largest: tuple[int, int]  # width and height in pixels, where the data set does not say its own

    def device_padding(self, width: int, height: int) -> int:
        """Return the bytes that one thread of the decoder takes on the GPU.

        Args:
            width: Width in pixels of the largest image.
            height: Height in pixels of the largest image.
        """
        return max(MIN_DEVICE_PADDING, self.device_bytes * width * height)

    def host_padding(self, width: int, height: int) -> int:
        """Return the bytes of one of the two pinned buffers that a thread of the decoder has in the host's memory.

        Args:
            width: Width in pixels of the largest image.
            height: Height in pixels of the largest image.
        """
        return max(MIN_HOST_PADDING, self.host_bytes * width * height)

    def unit_memory(self, width: int, height: int, *, batch: int) -> int:
        """Return the bytes on a GPU with a JPEG unit that the unit takes in addition to the threads.

        Args:
            width: Width in pixels of the largest image.
            height: Height in pixels of the largest image.
            batch: Images of a batch.
        """
        return self.unit_bytes * width * height + self.unit_bytes_of_batch * batch


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Abilities of a workload's network, and the flags that Paddle needs for it."""

    layouts: tuple[str, ...]  # that its network is built in, the usual one of FP32 first
    reads_pretrained: bool = False  # starts from the weights of PRETRAINED
    holds_fixed_loss_scale: bool = False  # FP16 was shown to hold its gradients at a fixed LOSS_SCALE
    most_half_pixels: int | None = None  # of a step, where the loss is a mean over pixels that FP16 must hold
    captures_steps: bool = False  # its step was shown to run as a CUDA graph; in FP16 it needs a fixed loss scale too
    only_measured: Mapping[str, str] = field(default_factory=dict)  # recipe that trains to no target: the one that does
    cpu_settings: Mapping[str, str] = field(default_factory=dict)  # flags of Paddle on a CPU
    gpu_settings: Mapping[str, str] = field(default_factory=dict)  # flags of Paddle on a GPU
    memory: MemoryPeaks | None = None  # None: not measured
    decoder: DecoderMemory | None = None  # None: its images are decoded on the host

    def captures(self, *, is_half: bool) -> bool:
        """Return whether a training step can be captured as a CUDA graph.

        In half precision it must have a fixed loss scale. Paddle's kernels of a dynamic one copy tables from memory of
        the host that a replay would not find.

        Args:
            is_half: Whether the step computes in half precision.
        """
        return self.captures_steps and (self.holds_fixed_loss_scale or not is_half)


def traits_of(workload: str) -> Traits:
    """Return the abilities and needs of a workload, as its folder states them.

    Args:
        workload: Name of the workload, such as "rn50".
    """
    traits: Traits = importlib.import_module(f"paddle_{workload}.traits").TRAITS
    return traits
