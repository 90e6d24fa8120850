"""Reads the batches of a plan ahead and runs them through a DALI pipeline; what they hold is the workload's.

One pipeline function of a workload serves CPU and GPU, the device being its parameter. All randomness comes from
`harness.sampling`, so that a sample looks the same at any rank count, batch size and prefetch depth.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from harness import memory
from harness.errors import RunError
from harness.sampling import Plan

PREFETCH_BATCHES = 3


class Loader(ABC):
    """Iterates over the batches of a plan; nothing is read before the first `next`."""

    def __init__(self, plan: Plan, pipeline: Callable[..., Any], *, batch: int, threads: int, device_id: int | None):
        """`pipeline` is a DALI pipeline function with a parameter `source`; `device_id` is None on a CPU."""
        self._plan = plan
        self._ahead: deque[Any] = deque()  # batches being read
        self._fed: deque[tuple[np.ndarray, np.ndarray]] = deque()  # (ids, valid) of batches inside the pipeline
        self._pool = ThreadPoolExecutor(max_workers=PREFETCH_BATCHES, thread_name_prefix="read")
        self._pipeline = pipeline(
            source=self._feed,
            batch_size=batch,
            num_threads=threads,
            device_id=device_id,
            prefetch_queue_depth=PREFETCH_BATCHES,
        )
        self._pipeline.build()

    @abstractmethod
    def _read(self, epoch: int, ids: np.ndarray) -> tuple[Any, ...]:
        """What the pipeline's external source takes for these samples; runs in a thread of its own."""

    @abstractmethod
    def _batch(self, outputs: Any, ids: np.ndarray, valid: np.ndarray) -> Any:
        """What a step is fed, from the pipeline's outputs."""

    @abstractmethod
    def _files(self, ids: np.ndarray) -> list[Path]:
        """The files of these samples."""

    def _feed(self) -> tuple[Any, ...]:
        """The next batch for the pipeline; called by DALI."""
        while len(self._ahead) < PREFETCH_BATCHES:
            entry = next(self._plan, None)
            if entry is None:
                break
            epoch, ids, valid = entry
            self._ahead.append((ids, valid, self._pool.submit(self._read, epoch, ids)))
        if not self._ahead:
            raise StopIteration
        ids, valid, future = self._ahead.popleft()
        self._fed.append((ids, valid))
        inputs: tuple[Any, ...] = future.result()
        return inputs

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Any:
        try:
            outputs = self._pipeline.run()
        except RuntimeError as error:
            if memory.OF_DALI.search(str(error)):
                raise MemoryError(str(error)) from error
            raise RunError(self._culprit(error)) from error
        ids, valid = self._fed.popleft()
        return self._batch(outputs, ids, valid)

    def _culprit(self, error: RuntimeError) -> str:
        """One line that names the file which the pipeline could not decode."""
        for ids, _ in self._fed:
            for path in self._files(ids):
                reason = decode_error(path)
                if reason:
                    return f"{path}: cannot be decoded ({reason}): replace the file or remove it from the list"
        return f"input pipeline failed: {' '.join(str(error).split())}"

    def close(self) -> None:
        """Ends the reading threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def decode_error(path: Path) -> str:
    """Why a file is no whole image; empty if it is one."""
    try:
        with Image.open(path) as opened:
            opened.load()
    except (OSError, SyntaxError, ValueError) as error:
        return " ".join(str(error).split()).replace(f" '{path}'", "")
    return ""


def resident(batch: Any, place: Any) -> Any:
    """A synthetic batch with its images on the device, where a GPU's pipeline leaves them: fed again and again, they
    would otherwise be copied there at each step, which a real run does not wait for.
    """
    import paddle

    tensor = paddle.base.core.LoDTensor()
    tensor.set(batch.image, place)
    return dataclasses.replace(batch, image=tensor)


def to_feed(images: Any, device: str) -> Any:
    """DALI's batch as what an executor is fed: its own buffer on a CPU, good until the next batch; else on its GPU."""
    if device == "gpu":
        return _gpu_tensor(images)
    return np.asarray(images.as_tensor())


def _gpu_tensor(images: Any) -> Any:
    """DALI's GPU batch as a Paddle tensor on the same GPU (needs a GPU)."""
    import paddle
    from nvidia.dali.plugin.paddle import feed_ndarray, to_paddle_type

    dense = images.as_tensor()
    tensor = paddle.base.core.LoDTensor()
    tensor._set_dims(dense.shape())
    place = paddle.CUDAPlace(dense.device_id())
    # On Paddle's stream, as DALI's own iterator does: the copy does not wait, and the step must come after it.
    stream = paddle.device.cuda.current_stream(dense.device_id()).cuda_stream
    feed_ndarray(dense, tensor._mutable_data(place, to_paddle_type(dense)), stream)
    return tensor
