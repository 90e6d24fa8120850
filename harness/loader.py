"""Reads the batches of a plan ahead and runs them through a DALI pipeline; what they hold is the workload's.

One pipeline function of a workload serves CPU and GPU, the device being its parameter. All randomness comes from
`harness.sampling`, so that a sample looks the same at any rank count, batch size and prefetch depth.
"""

import dataclasses
import socket
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
    node: str = ""  # name of this node for messages; empty in a job of one node, where it tells nothing

    @classmethod
    def of_rank(
        cls, data: DataSettings, cluster: ClusterSettings, local_rank: int, image: Any, *, batch: int, seed: int
    ) -> "ReaderConfig":
        """Return how a rank reads its images: batch size, format, device of the decoder, threads and seed.

        Args:
            data: Settings of the data. DATA_THREADS=0 stands for as many CPU threads as the rank computes with.
            cluster: Settings of the nodes and ranks, with the device of the job, which also decodes.
            local_rank: Number of the rank on its node, from 0. On GPUs it is also the number of the rank's GPU.
            image: The workload's format of the images.
            batch: Images at once.
            seed: Seed of the run.
        """
        return cls(
            batch=batch,
            image=image,
            device=cluster.device,
            device_id=local_rank if cluster.on_gpu else None,
            threads=data.threads or cluster.threads_per_rank,
            seed=seed,
            node=socket.gethostname() if cluster.dgxnnodes > 1 else "",
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
        """Build the DALI pipeline that decodes this rank's batches; no sample is read yet.

        Args:
            samples: The samples of a part of the data set.
            plan: Yields (epoch, ids, valid) for each batch of this rank, as harness/sampling.py makes it: the number of
                the epoch, the numbers of the samples, and for each sample whether it counts or only fills up the batch.
            make_pipeline: The workload's function that returns a DALI pipeline. The call below shows its arguments.
            reader: How this rank reads: batch size, image format, threads and device.
            settings: More keyword arguments for `make_pipeline`, of the workload's own.

        Raises:
            MemoryError: There is too little memory for the pipeline.
            RunError: DALI cannot build the pipeline.
        """
        self._samples = samples
        self._plan = plan
        self._reader = reader
        self._device_id = reader.device_id if reader.device == "gpu" else None  # to which batches go; None: the host
        self._pool = ThreadPoolExecutor(max_workers=PREFETCH_BATCHES, thread_name_prefix="read")
        # The threads of the pool read a batch, and then DALI decodes it. Each deque has the oldest batch first.
        self._being_read: deque[_BatchBeingRead] = deque()
        self._ids_being_decoded: deque[Array] = deque()  # the sample numbers of each batch
        # Tensors of Paddle by name, to which each batch is copied; set by `write_to`. Empty: a batch gets its own.
        self._targets: dict[str, Any] = {}
        self._pipeline = make_pipeline(
            source=self._next_inputs,  # DALI calls it for each batch
            device=reader.device,
            image=reader.image,
            **settings,  # such as whether to augment
            batch_size=reader.batch,
            num_threads=reader.threads,
            device_id=reader.device_id,
            prefetch_queue_depth=PREFETCH_BATCHES,
        )
        _build(self._pipeline)

    @abstractmethod
    def _read(self, epoch: int, ids: Array, valid: Array) -> tuple[Any, ...]:
        """Read some samples, and return what the pipeline's external source takes; this runs in a thread of its own.

        Args:
            epoch: Number of the epoch, or of the evaluation, from 1.
            ids: Sample numbers, shape [batch].
            valid: Whether each sample counts, bool, shape [batch]; False for one that only fills up the batch.
        """

    def _batch(self, outputs: Any, ids: Array) -> Batch:
        """Return a batch of the pipeline's outputs, copied to the device of the batches.

        Args:
            outputs: DALI's outputs in the order image, label and, in an evaluation, valid.
            ids: Sample numbers of the batch, shape [batch].
        """
        named_outputs = zip(("image", "label", "valid"), outputs, strict=False)  # a training has no valid
        fed = {name: to_feed(output, self._device_id, self._targets.get(name)) for name, output in named_outputs}
        return Batch(ids=ids, **fed)

    def write_to(self, tensors: dict[str, Any]) -> None:
        """Have all later batches copied to given tensors on the GPU; on a CPU this has no effect.

        Args:
            tensors: Paddle tensors by name, as {"image": ..., "label": ...}. Each batch overwrites the one before.
        """
        self._targets = tensors

    def _next_inputs(self) -> tuple[Any, ...]:
        """Wait until the next batch of the plan is read, and return it for DALI to decode; DALI calls this.

        Returns:
            What `_read` gave for the batch. An error of `_read` is raised here.

        Raises:
            StopIteration: The plan has ended, as DALI wants it.
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
        """Return the next batch; the batches behind it are read and decoded meanwhile.

        Raises:
            StopIteration: The plan has ended.
            RunError: A file cannot be read or decoded. The message names it, if it can be found, and in a job of
                several nodes the node, as each may have its own copy.
            MemoryError: Memory ran out.
        """
        try:
            return self._next_batch()
        except RunError as error:
            if not self._reader.node:
                raise
            raise RunError(f"{self._reader.node}: {error}") from error

    def _next_batch(self) -> Batch:
        """Return the next batch, and raise errors as `__next__` does but without the node's name."""
        try:
            outputs = self._pipeline.run()
        except OSError as error:  # a thread could not read a file, which was there when the run began
            # Worded for runs with and without checkpoints, as it is not known here which this is.
            fix = "restore the data set and start again; a run with checkpoints goes on by RESUME=auto"
            raise RunError(f"{named_files.explain(error)}; {fix}") from error
        except RuntimeError as error:
            if memory.DALI_ERROR.search(str(error)):  # out of memory
                raise MemoryError(str(error)) from error
            raise RunError(self._culprit(error)) from error
        return self._batch(outputs, self._ids_being_decoded.popleft())

    def _culprit(self, error: RuntimeError) -> str:
        """Return in one line why the pipeline failed: which file is at fault or, if none is, what DALI says.

        DALI does not name the file. So the files of all batches in the pipeline are checked, and decoded one by one, up
        to the first that is at fault.

        Args:
            error: The error that DALI raised.
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

    Args:
        pipeline: The pipeline, not built yet.

    Raises:
        MemoryError: There is too little memory.
        RunError: The pipeline cannot be built; the message has DALI's reason.
    """
    try:
        pipeline.build()
    except RuntimeError as error:
        if memory.DALI_START_ERROR.search(str(error)) or memory.DALI_ERROR.search(str(error)):
            raise MemoryError(str(error)) from error
        raise RunError(f"the input pipeline cannot be built: {decoder.reason(str(error))}") from error


def undecodable(name: str, fault: str) -> str:
    """Return in one line that a file cannot be decoded, and what to do.

    Args:
        name: Name of the file.
        fault: Why it cannot, such as "it is truncated".
    """
    return f"{name}: cannot be decoded ({fault}): replace the file or remove it from the list"


def require_whole(name: str, content: bytes) -> None:
    """Make sure that some bytes are a whole encoded image, as a decoder would make up what is absent.

    Args:
        name: Name of the file, for the message.
        content: The bytes of the file.

    Raises:
        RunError: The image is cut off or damaged.
    """
    fault = encoded.fault(content)
    if fault:
        raise RunError(undecodable(name, fault))


def inputs(source: Any, kinds: Sequence[tuple[Any, int]]) -> Any:
    """Return nodes of a DALI pipeline that take their data from a Python function.

    Args:
        source: Function without parameters that DALI calls for each batch. It returns one item for each output.
        kinds: For each output DALI's type and the number of dimensions of a sample.

    Returns:
        One node for each output.
    """
    from nvidia.dali import fn

    types, ndim = map(list, zip(*kinds, strict=True))
    return fn.external_source(source=source, num_outputs=len(kinds), batch=True, no_copy=True, dtype=types, ndim=ndim)


def noise(rng: np.random.Generator, shape: tuple[int, ...], *, half: bool) -> Array:
    """Return normally distributed random numbers, for the images of a synthetic batch.

    Args:
        rng: Gives the random numbers.
        shape: Shape of the result.
        half: Whether the result is float16, and not float32.
    """
    return rng.standard_normal(shape, dtype=np.float32).astype(np.float16 if half else np.float32)


def resident(batch: Batch, place: Any) -> Batch:
    """Return a synthetic batch whose image, label and valid are Paddle's tensors on a device.

    A run on synthetic data feeds this batch at every step, so it is copied to the device only once.

    Args:
        batch: The batch as NumPy arrays, with `valid`.
        place: Paddle's name of the device, a CPUPlace or a CUDAPlace.
    """
    import paddle

    tensors = {name: paddle.base.core.LoDTensor() for name in ("image", "label", "valid")}
    for name, tensor in tensors.items():
        tensor.set(getattr(batch, name), place)
    return dataclasses.replace(batch, **tensors)


def to_feed(output: Any, device_id: int | None, into: Any = None) -> Any:
    """Return an output of a DALI pipeline in the form that Paddle's executor takes.

    On a GPU the copy may still be under way when this returns; Paddle's stream waits for it.

    Args:
        output: One output of the pipeline: the images, labels or valid flags of a batch.
        device_id: Number of the GPU to which it is copied; None: it stays on the host.
        into: Paddle tensor on the GPU to copy to; None: a new one. On the host it has no use.

    Returns:
        On a GPU the Paddle tensor. On the host a NumPy array that is good only until the next batch.
    """
    dense = output.as_tensor()
    if device_id is None:
        return np.asarray(dense)
    import paddle

    tensor = paddle.base.core.LoDTensor() if into is None else into
    _start_copy(dense, tensor, device_id)
    return tensor


def _start_copy(dense: Any, tensor: Any, device_id: int) -> None:
    """Start to copy a DALI tensor to a Paddle tensor on a GPU, and return before the copy is done.

    The copy is queued on Paddle's stream, so a step that is launched later runs after it. The calls are those of DALI's
    own iterator for Paddle (nvidia/dali/plugin/paddle.py).

    Args:
        dense: DALI's tensor.
        tensor: Paddle's tensor. It gets the shape and type of `dense`, and memory on the GPU.
        device_id: Number of the GPU.
    """
    import paddle
    from nvidia.dali.plugin.paddle import feed_ndarray, to_paddle_type

    tensor._set_dims(dense.shape())  # first, because the next call allocates memory for this shape
    address = tensor._mutable_data(paddle.CUDAPlace(device_id), to_paddle_type(dense))
    paddle_stream = paddle.device.cuda.current_stream(device_id).cuda_stream
    feed_ndarray(dense, address, paddle_stream)
