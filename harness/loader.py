"""Reads the batches of a plan ahead and runs them through a DALI pipeline; what they hold is the workload's.

One pipeline function of a workload serves CPU and GPU, the device being its parameter. All randomness comes from
`harness.sampling`, so that a sample looks the same at any rank count, batch size and prefetch depth.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness import decoder, encoded, memory
from harness.job import ClusterSettings, DataSettings
from harness.memory import PREFETCH_BATCHES
from harness.sampling import Plan
from program.arrays import Array
from runlog import named_files
from runlog.errors import RunError


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """How a rank reads."""

    batch: int  # images
    image: Any  # the workload's ImageFormat
    device: str  # cpu | gpu
    device_id: int
    threads: int  # CPU threads of the pipeline
    seed: int  # of the run

    @classmethod
    def of_rank(
        cls, data: DataSettings, cluster: ClusterSettings, local_rank: int, image: Any, *, batch: int, seed: int
    ) -> "ReaderConfig":
        """Return how a rank reads its images, by the job's settings.

        Each batch has `batch` images in the workload's format `image`. If the job has GPUs, the rank decodes on GPU
        number `local_rank` of its node. The CPU takes part with DATA_THREADS threads; if that is 0, with as many as the
        rank computes with. `seed` is the run's.
        """
        return cls(
            batch=batch,
            image=image,
            device=cluster.device,
            device_id=local_rank,
            threads=data.threads or cluster.threads_per_rank,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The feed of one step: Paddle tensors on the device, or numpy arrays that are good until the next batch."""

    image: Any  # image and label in the shapes of the workload (its Loader says them)
    label: Any
    valid: Any = None  # float32, of an evaluation: 0 where a sample only fills up the batch
    ids: Array  # [N] sample numbers


class _BatchBeingRead(NamedTuple):
    """A batch that a thread reads."""

    ids: Array  # [N] sample numbers
    inputs: "Future[tuple[Any, ...]]"  # what the thread gives the pipeline when it is done


class Loader(ABC):
    """Iterates over the batches of a plan; nothing is read before the first `next`."""

    def __init__(
        self, samples: Any, plan: Plan, make_pipeline: Callable[..., Any], reader: ReaderConfig, **settings: Any
    ) -> None:
        """Build the DALI pipeline that decodes the batches; nothing is read yet.

        `plan` says which of the `samples` are in each batch, and `reader` how the rank reads them. `make_pipeline` is
        the workload's function that makes the pipeline, and `settings` are the workload's own.

        A batch is read by a thread, decoded by DALI, then returned. Each of these stages works ahead of the next.
        """
        self._samples = samples
        self._plan = plan
        self._reader = reader
        self._device_id = reader.device_id if reader.device == "gpu" else None
        self._pool = ThreadPoolExecutor(max_workers=PREFETCH_BATCHES, thread_name_prefix="read")
        self._being_read: deque[_BatchBeingRead] = deque()  # the oldest first
        self._ids_in_pipeline: deque[Array] = deque()  # sample numbers of each batch, the oldest first
        self._written_to: dict[str, Any] = {}  # tensors of the device that batches are written to, by name
        self._pipeline = make_pipeline(
            source=self._next_inputs,
            device=reader.device,
            image=reader.image,
            **settings,
            batch_size=reader.batch,
            num_threads=reader.threads,
            device_id=self._device_id,
            prefetch_queue_depth=PREFETCH_BATCHES,
        )
        self._pipeline.build()

    @abstractmethod
    def _read(self, epoch: int, ids: Array, valid: Array) -> tuple[Any, ...]:
        """Return what the pipeline's external source takes for these samples; runs in a thread of its own."""

    def _batch(self, outputs: Any, ids: Array) -> Batch:
        """Return a batch of the pipeline's outputs: image, label and, in an evaluation, valid."""
        named_outputs = zip(("image", "label", "valid"), outputs, strict=False)  # a training has no valid
        fed = {name: to_feed(output, self._device_id, self._written_to.get(name)) for name, output in named_outputs}
        return Batch(ids=ids, **fed)

    def write_to(self, tensors: dict[str, Any]) -> None:
        """Have the batches that follow written to these tensors of the device, by name."""
        self._written_to = tensors

    def _next_inputs(self) -> tuple[Any, ...]:
        """Return what the pipeline is to decode for the next batch of the plan; DALI calls this.

        Threads read up to PREFETCH_BATCHES batches ahead, and this waits for the oldest of them. Raises StopIteration
        at the end of the plan, as DALI wants it.
        """
        while len(self._being_read) < PREFETCH_BATCHES:
            planned = next(self._plan, None)
            if planned is None:
                break
            epoch, ids, valid = planned
            inputs = self._pool.submit(self._read, epoch, ids, valid)
            self._being_read.append(_BatchBeingRead(ids, inputs))
        if not self._being_read:
            raise StopIteration
        oldest = self._being_read.popleft()
        self._ids_in_pipeline.append(oldest.ids)
        return oldest.inputs.result()

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Batch:
        try:
            outputs = self._pipeline.run()
        except OSError as error:  # of a file that was there when the run began
            raise RunError(f"{named_files.explain(error)}; restore the data set, then RESUME=auto goes on") from error
        except RuntimeError as error:
            if memory.DALI_ERROR.search(str(error)):  # out of memory
                raise MemoryError(str(error)) from error
            raise RunError(self._culprit(error)) from error
        return self._batch(outputs, self._ids_in_pipeline.popleft())

    def _culprit(self, error: RuntimeError) -> str:
        """Say in one line which file the pipeline could not decode; if none is found, what DALI says in its `error`.

        The files of all batches inside the pipeline are tried one by one. The line names the first file that is not a
        whole image (`encoded.fault`), or that DALI's decoder refuses on the device of this rank.
        """
        single = decoder.Decoder(self._reader.device, self._device_id)
        for ids in self._ids_in_pipeline:
            for number in ids:
                for name, content in self._samples.encoded(int(number)):
                    why_not_whole = encoded.fault(content)
                    fault = why_not_whole or single.fault(content)
                    if fault:
                        return undecodable(name, fault)
        return f"the input pipeline failed: {decoder.reason(str(error))}"

    def close(self) -> None:
        """End the reading threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def undecodable(name: str, fault: str) -> str:
    """Say in one line that a file cannot be decoded, and what to do."""
    return f"{name}: cannot be decoded ({fault}): replace the file or remove it from the list"


def require_whole(name: str, content: bytes) -> None:
    """Raise RunError unless `content` is a whole encoded image; a decoder would make up what is absent."""
    fault = encoded.fault(content)
    if fault:
        raise RunError(undecodable(name, fault))


def inputs(source: Any, kinds: Sequence[tuple[Any, int]]) -> Any:
    """Return the nodes of a DALI pipeline that a function `source` feeds, one for each of its outputs.

    `kinds` has DALI's type and the number of dimensions of each output.
    """
    from nvidia.dali import fn

    types, ndim = map(list, zip(*kinds, strict=True))
    return fn.external_source(source=source, num_outputs=len(kinds), batch=True, no_copy=True, dtype=types, ndim=ndim)


def noise(rng: np.random.Generator, shape: tuple[int, ...], *, half: bool) -> Array:
    """Return normally distributed random numbers, for the images of a synthetic batch: FP16 with `half`, else FP32."""
    return rng.standard_normal(shape, dtype=np.float32).astype(np.float16 if half else np.float32)


def resident(batch: Batch, place: Any) -> Batch:
    """Return a synthetic batch whose image, label and valid are Paddle's tensors on the device `place`.

    A run on synthetic data feeds this batch at every step. If it were in the host's memory, each step on a GPU would
    wait for a copy of it. A run on real data does not, because its batches are on the GPU before their steps.
    """
    import paddle

    tensors = {name: paddle.base.core.LoDTensor() for name in ("image", "label", "valid")}
    for name, tensor in tensors.items():
        tensor.set(getattr(batch, name), place)
    return dataclasses.replace(batch, **tensors)


def to_feed(output: Any, device_id: int | None, into: Any = None) -> Any:
    """Return an output of a DALI pipeline in the form that Paddle's executor takes.

    On a CPU (`device_id` is None) it is a NumPy array, good until the next batch. On a GPU it is a Paddle tensor, to
    which the copy may still be under way; Paddle's stream waits for it. It is `into` if given: a captured step reads at
    a fixed address.
    """
    dense = output.as_tensor()
    if device_id is None:
        return np.asarray(dense)
    import paddle

    tensor = paddle.base.core.LoDTensor() if into is None else into
    _start_copy(dense, tensor, device_id)
    return tensor


def _start_copy(dense: Any, tensor: Any, device_id: int) -> None:
    """Start a copy of DALI's tensor `dense` to a Paddle tensor, which gets its shape, its type and memory on a GPU.

    The copy is queued on Paddle's stream. A step that is launched later on this stream runs after the copy.
    DALI's iterator for Paddle (nvidia/dali/plugin/paddle.py) calls the same functions of Paddle in the same order.
    """
    import paddle
    from nvidia.dali.plugin.paddle import feed_ndarray, to_paddle_type

    # The shape comes first, because `_mutable_data` allocates memory for that shape. It returns the memory's address.
    tensor._set_dims(dense.shape())
    address = tensor._mutable_data(paddle.CUDAPlace(device_id), to_paddle_type(dense))
    paddle_stream = paddle.device.cuda.current_stream(device_id).cuda_stream
    feed_ndarray(dense, address, paddle_stream)
