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
    device: str  # cpu | gpu: which decodes
    # The rank's GPU; None in a job on CPUs. DALI is told of it where a CPU decodes, too: DALI 1.34 aborts a process
    # that has had both a pipeline for a GPU and one without a device, when the latter is deleted (seen on an H200).
    device_id: int | None
    threads: int  # CPU threads of the pipeline
    seed: int  # of the run

    @classmethod
    def of_rank(
        cls, data: DataSettings, cluster: ClusterSettings, local_rank: int, image: Any, *, batch: int, seed: int
    ) -> "ReaderConfig":
        """Return how a rank reads its images: `batch` of them at once, decoded on the job's device.

        A GPU is the one with number `local_rank` on its node. DATA_THREADS=0 stands for as many CPU threads as the rank
        computes with.
        """
        return cls(
            batch=batch,
            image=image,
            device=cluster.device,
            device_id=local_rank if cluster.on_gpu else None,
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
        """Build the DALI pipeline that decodes this rank's batches; nothing is read yet.

        `plan` says which of the `samples` each batch has. The pipeline is made by the workload's function
        `make_pipeline`, which gets the `settings` as well as what every workload needs. Raises as `_build` does.
        """
        self._samples = samples
        self._plan = plan
        self._reader = reader
        self._device_id = reader.device_id if reader.device == "gpu" else None  # to which batches go; None: the host
        self._pool = ThreadPoolExecutor(max_workers=PREFETCH_BATCHES, thread_name_prefix="read")
        # A thread reads a batch, then DALI decodes it. Both work ahead, so each has several batches, the oldest first.
        self._being_read: deque[_BatchBeingRead] = deque()
        self._ids_being_decoded: deque[Array] = deque()  # sample numbers of each batch
        # Tensors to which batches are copied, by name: those of `write_to`. Before, each batch gets tensors of its own.
        self._targets: dict[str, Any] = {}
        self._pipeline = make_pipeline(
            source=self._next_inputs,  # DALI calls it for each batch
            device=reader.device,
            image=reader.image,
            **settings,
            batch_size=reader.batch,
            num_threads=reader.threads,
            device_id=reader.device_id,
            prefetch_queue_depth=PREFETCH_BATCHES,
        )
        _build(self._pipeline)

    @abstractmethod
    def _read(self, epoch: int, ids: Array, valid: Array) -> tuple[Any, ...]:
        """Return what the pipeline's external source takes for these samples; runs in a thread of its own."""

    def _batch(self, outputs: Any, ids: Array) -> Batch:
        """Return a batch of the pipeline's outputs: image, label and, in an evaluation, valid."""
        named_outputs = zip(("image", "label", "valid"), outputs, strict=False)  # a training has no valid
        fed = {name: to_feed(output, self._device_id, self._targets.get(name)) for name, output in named_outputs}
        return Batch(ids=ids, **fed)

    def write_to(self, tensors: dict[str, Any]) -> None:
        """On a GPU, have all later batches copied to these tensors, by name."""
        self._targets = tensors

    def _next_inputs(self) -> tuple[Any, ...]:
        """Wait until the next batch of the plan is read, and return it for DALI to decode; DALI calls this.

        Raises StopIteration at the end of the plan, as DALI wants it, and the error if the batch could not be read.
        """
        self._read_ahead()
        if not self._being_read:
            raise StopIteration
        oldest = self._being_read.popleft()
        self._ids_being_decoded.append(oldest.ids)
        return oldest.inputs.result()  # waits for its thread

    def _read_ahead(self) -> None:
        """Have threads read the next batches of the plan: PREFETCH_BATCHES at once, and fewer where the plan ends."""
        while len(self._being_read) < PREFETCH_BATCHES:
            planned = next(self._plan, None)
            if planned is None:  # the plan has ended
                return
            epoch, ids, valid = planned
            inputs = self._pool.submit(self._read, epoch, ids, valid)
            self._being_read.append(_BatchBeingRead(ids, inputs))

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Batch:
        """Return the next batch. Raises RunError for a file that cannot be read or decoded.

        Raises MemoryError if memory ran out, and StopIteration at the end of the plan.
        """
        try:
            outputs = self._pipeline.run()
        except OSError as error:  # a thread could not read a file, which was there when the run began
            raise RunError(f"{named_files.explain(error)}; restore the data set, then RESUME=auto goes on") from error
        except RuntimeError as error:
            if memory.DALI_ERROR.search(str(error)):  # out of memory
                raise MemoryError(str(error)) from error
            raise RunError(self._culprit(error)) from error
        return self._batch(outputs, self._ids_being_decoded.popleft())

    def _culprit(self, error: RuntimeError) -> str:
        """Say in one line why the pipeline failed: which file is at fault or, if none is, what DALI's `error` says.

        DALI does not name the file. So the files of all batches in the pipeline are checked, and decoded one by one, up
        to the first that is at fault.
        """
        dali = decoder.Decoder(self._reader.device, self._reader.device_id)
        for ids in self._ids_being_decoded:
            for number in ids:
                for name, content in self._samples.encoded(int(number)):
                    fault = encoded.fault(content) or dali.fault(content)  # not whole, or refused by DALI
                    if fault:
                        return undecodable(name, fault)
        return f"the input pipeline failed: {decoder.reason(str(error))}"

    def close(self) -> None:
        """End the reading threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _build(pipeline: Any) -> None:
    """Build a DALI pipeline, which reserves memory for its decoder.

    Raises MemoryError where there is too little, and RunError with DALI's reason where it cannot be built.
    """
    try:
        pipeline.build()
    except RuntimeError as error:
        if memory.DALI_START_ERROR.search(str(error)) or memory.DALI_ERROR.search(str(error)):
            raise MemoryError(str(error)) from error
        raise RunError(f"the input pipeline cannot be built: {decoder.reason(str(error))}") from error


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

    A run on synthetic data feeds this batch at every step, so it is copied to the device only once.
    """
    import paddle

    tensors = {name: paddle.base.core.LoDTensor() for name in ("image", "label", "valid")}
    for name, tensor in tensors.items():
        tensor.set(getattr(batch, name), place)
    return dataclasses.replace(batch, **tensors)


def to_feed(output: Any, device_id: int | None, into: Any = None) -> Any:
    """Return an output of a DALI pipeline in the form that Paddle's executor takes.

    On a CPU (`device_id` is None) that is a NumPy array, good until the next batch. On a GPU it is a Paddle tensor:
    `into`, or a new one if that is None.
    """
    dense = output.as_tensor()
    if device_id is None:
        return np.asarray(dense)
    import paddle

    tensor = paddle.base.core.LoDTensor() if into is None else into
    _start_copy(dense, tensor, device_id)
    return tensor  # while the copy may still be under way: Paddle's stream waits for it


def _start_copy(dense: Any, tensor: Any, device_id: int) -> None:
    """Start to copy DALI's tensor `dense` to a Paddle tensor, which gets its shape and type, and memory on the GPU.

    The copy is queued on Paddle's stream, so a step that is launched later runs after it. The calls are those of DALI's
    own iterator for Paddle (nvidia/dali/plugin/paddle.py).
    """
    import paddle
    from nvidia.dali.plugin.paddle import feed_ndarray, to_paddle_type

    tensor._set_dims(dense.shape())  # first, because the next call allocates memory for this shape
    address = tensor._mutable_data(paddle.CUDAPlace(device_id), to_paddle_type(dense))
    paddle_stream = paddle.device.cuda.current_stream(device_id).cuda_stream
    feed_ndarray(dense, address, paddle_stream)
