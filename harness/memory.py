"""Estimates GPU memory before a run, and turns out-of-memory errors into one line that says what to lower."""

import contextlib
import json
import re
import resource
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, ModelSettings
from harness.traits import MIN_DEVICE_PADDING, MIN_HOST_PADDING, DecoderMemory, MemoryPeaks
from runlog.errors import RunError
from runlog.schema import HALF_PRECISIONS

GIB = 2**30
MIB = 2**20

# ---- what a run will take

WORKSPACE_LIMIT = "FLAGS_conv_workspace_size_limit"  # MiB; cuDNN's exhaustive search takes all that it may
SMALL_CARD_GIB = 20
WORKSPACE_MIB = 4000
SMALL_WORKSPACE_MIB = 1000
# CUDA's context, the code and handles of cuDNN and cuBLAS, the buffers of NCCL: assumed, as no vendor's figure was
# found for their sum, and no GPU has confirmed it.
BESIDE_MIB = 1280
MARGIN = 0.03  # of a card's memory that should be left, as it gets scattered

PREFETCH_BATCHES = 3  # batches that an input pipeline holds ready, and that are read ahead of it
PIPELINES = 2  # of training and of evaluation, both from the start
PINNED_BUFFERS = 2  # of the host for each thread of nvJPEG: DALI fills one while the other is copied
CHANNELS = 4  # of an image that is fed, at most


def workspace_limit_mib(card_gib: float) -> int:
    """Return the MiB of workspace that cuDNN may take for one convolution on a GPU.

    Args:
        card_gib: Memory of the GPU in GiB.
    """
    is_small_card = card_gib < SMALL_CARD_GIB
    return SMALL_WORKSPACE_MIB if is_small_card else WORKSPACE_MIB


def program_mib(job: Job) -> float | None:
    """Estimate the MiB that the job's training program takes on each GPU.

    The estimate is by the peaks of memory that were measured at several numbers of images.

    Args:
        job: The settings of the job.

    Returns:
        MiB, or None if this program was not measured: STRATEGY=auto, some recipes, and some workloads or precisions.
    """
    model = job.model
    measured = model.traits.memory
    if measured is None:  # no program of this workload was measured
        return None
    builds_other_program = model.knobs.auto or model.recipe in measured.other_recipes  # than the measured one
    if builds_other_program:
        return None

    precision = model.precision
    if precision == "tf32":
        precision = "fp32"  # the program is the same; only a GPU's kernels compute otherwise
    peak_by_images = measured.mib.get(precision)
    if peak_by_images is None:  # not measured in this precision
        return None
    images = _images_at_once_in_measured_size(model, measured)
    return _peak_mib(peak_by_images, images)


def _peak_mib(peak_by_images: Mapping[int, int], images: float) -> float:
    """Return the peak of memory in MiB at a number of images, by the peaks measured at other numbers.

    It is interpolated between the two nearest. Below the smallest number it is the peak of that one, and above the
    largest it grows in proportion.

    Args:
        peak_by_images: {images computed at once: measured peak in MiB}.
        images: The number of images, which need not be whole.
    """
    measured_images = sorted(peak_by_images)
    most_images = measured_images[-1]
    if images > most_images:
        growth = images / most_images
        return float(peak_by_images[most_images]) * growth
    peaks_mib = [peak_by_images[number] for number in measured_images]
    return float(np.interp(images, measured_images, peaks_mib))  # below the smallest number it keeps that one's peak


def _images_at_once_in_measured_size(model: ModelSettings, measured: MemoryPeaks) -> float:
    """Return how many images of the measured size have as many pixels as those that the model computes at once.

    For example, 64 images of twice the measured height and width have the pixels of 256.

    Args:
        model: Settings of the model, with its batch and image size.
        measured: The measured peaks of memory, with the size of the images.
    """
    parts_of_batch = model.knobs.gradient_merge  # the parts are computed one after the other
    images_at_once = model.batchsize / parts_of_batch
    # 0 stands for the crop of the recipe, which is the measured one: the caller makes no estimate for other crops.
    if model.image_size == 0:
        return images_at_once
    pixels_per_measured_pixel = model.image_size**2 / measured.crop_pixels
    return images_at_once * pixels_per_measured_pixel


@dataclass(frozen=True, kw_only=True)
class InputMemory:
    """Memory of the input pipelines of one rank on a GPU."""

    device_mib: float
    unit_mib: float  # more of the device, if it has a JPEG unit
    pinned_mib: float  # of the host, pinned: the GPU copies from there
    words: str  # what it is for, such as "2 pipelines of 4 threads"


NO_INPUT = InputMemory(device_mib=0.0, unit_mib=0.0, pinned_mib=0.0, words="no pipeline")


def input_memory(job: Job) -> InputMemory:
    """Estimate the memory that a rank's two input pipelines, for training and evaluation, take of its GPU and its host.

    Args:
        job: The settings of the job.

    Returns:
        Amounts in MiB, and words that say what they are for:

            device_mib:  memory of the GPU, for the decoder's threads and for batches that are ready
            unit_mib:    further memory of a GPU that has a unit for decoding JPEG
            pinned_mib:  memory of the host that the GPU copies from, for the decoder's threads
            words:       as "2 pipelines of 4 threads"

        The amounts are zero (NO_INPUT) on a CPU, for synthetic data, and for a workload whose memory was not measured.
    """
    measured = job.model.traits.memory
    has_pipelines_on_gpu = job.cluster.on_gpu and not job.data.is_synthetic
    if measured is None or not has_pipelines_on_gpu:
        return NO_INPUT
    threads = job.data.threads or job.cluster.threads_per_rank  # DATA_THREADS=0 stands for as many as the rank has
    buffers = _decoder_buffers(job)  # bytes of one buffer
    # Each thread of the decoder has one buffer on the GPU and two on the host: one is filled while the other is copied.
    decoder_bytes = threads * buffers.device_bytes
    batch_bytes = job.model.batchsize * _image_bytes(job.model, measured)
    device_bytes_of_pipeline = decoder_bytes + PREFETCH_BATCHES * batch_bytes
    pinned_bytes_of_pipeline = threads * PINNED_BUFFERS * buffers.pinned_bytes
    return InputMemory(
        device_mib=PIPELINES * device_bytes_of_pipeline / MIB,
        unit_mib=PIPELINES * buffers.unit_bytes / MIB,
        pinned_mib=PIPELINES * pinned_bytes_of_pipeline / MIB,
        words=f"{PIPELINES} pipelines of {threads} threads{buffers.images_in_words}",
    )


def _image_bytes(model: ModelSettings, measured: MemoryPeaks) -> int:
    """Return the most bytes that one image takes as an input pipeline feeds it to the program.

    An image has CHANNELS (4) channels at most. With the image size 0 it is counted with the measured crop.

    Args:
        model: Settings of the model, with its precision and its image size, 0 for that of the recipe.
        measured: The measured peaks of memory, with the size of the images.
    """
    is_recipes_crop = model.image_size == 0
    pixels = measured.crop_pixels if is_recipes_crop else model.image_size**2
    is_half = model.precision in HALF_PRECISIONS
    bytes_per_value = 2 if is_half else 4
    return pixels * CHANNELS * bytes_per_value


class _DecoderBuffers(NamedTuple):
    """Memory that DALI reserves for the decoder of one pipeline; of a thread DALI calls it padding."""

    device_bytes: int  # of a thread, on the GPU
    pinned_bytes: int  # of one of a thread's buffers in the host's pinned memory
    unit_bytes: int  # of a JPEG unit, on a GPU that has one
    images_in_words: str  # that the buffers are for; empty if no image is known


def _decoder_buffers(job: Job) -> _DecoderBuffers:
    """Return how much memory DALI reserves for a pipeline's decoder.

    Args:
        job: The settings of the job.

    Returns:
        device_bytes and pinned_bytes for each thread of the decoder, unit_bytes for a GPU's JPEG unit, and the largest
        images that fit, such as ", images to 500 x 375 pixels".
    """
    decoder = job.model.traits.decoder  # None: this workload decodes on the host
    has_small_images = not job.data.folder  # without DATADIR, those of the embedded data set
    if decoder is None or has_small_images:
        return _DecoderBuffers(
            device_bytes=MIN_DEVICE_PADDING, pinned_bytes=MIN_HOST_PADDING, unit_bytes=0, images_in_words=""
        )
    width, height = largest_image(job, decoder)  # in DATADIR; the usual largest if DATADIR does not tell
    return _DecoderBuffers(
        device_bytes=decoder.device_padding(width, height),
        pinned_bytes=decoder.host_padding(width, height),
        unit_bytes=decoder.unit_memory(width, height, batch=job.model.batchsize),
        images_in_words=f", images to {width} x {height} pixels",
    )


def largest_image(job: Job, decoder: DecoderMemory) -> tuple[int, int]:
    """Return the largest image width and height, in pixels, that are recorded for the data set.

    They determine how much memory a GPU's image decoder reserves. The width may come from the training images and the
    height from the validation images.

    Args:
        job: The settings of the job. Its data folder may hold train.sizes.json and val.sizes.json, each with the
            "width" and "height" of the largest image of that part of the data set.
        decoder: The memory needs of the workload's image decoder, with the usual largest image as a fallback.

    Returns:
        (width, height). If either file is missing or damaged, the decoder's `usual_largest`.
    """
    widths = []
    heights = []
    for part in ("train", "val"):
        file = Path(job.data.folder) / f"{part}.sizes.json"
        try:
            largest = json.loads(file.read_bytes())  # {"width": 500, "height": 375}, perhaps with more
            widths.append(int(largest["width"]))
            heights.append(int(largest["height"]))
        except (OSError, ValueError, KeyError, TypeError):
            # It is absent or damaged. Silent, because the data set's own check names a damaged file.
            return decoder.usual_largest
    return max(widths), max(heights)


# ---- what Paddle says when it ran out
# What Paddle 2.6.2 says of itself (as a MemoryError), and what it passes on of CUDA and its libraries (as an OSError).
_PADDLE_ON_CPU = re.compile(r"Fail to alloc memory of (?P<bytes>\d+) size")
_PADDLE_ON_GPU = re.compile(
    r"Out of memory error on GPU (?P<gpu>\d+)\. Cannot allocate (?P<asked>\S+) memory on GPU \d+, (?P<held>\S+) memory "
    r"has been allocated and available memory is only (?P<free>\S+)\.\s"
)
# DALI's words, within those of the operator that it passes on as a RuntimeError.
DALI_ERROR = re.compile(r"Can't allocate (?P<bytes>\d+) bytes on (host|device (?P<gpu>\d+))")
# DALI's words where it cannot reserve memory for its decoder, at the start of a pipeline: neither names an amount.
DALI_START_ERROR = re.compile(r"CUDA allocation failed|nvJPEG error \(6\)")
_CUDA_LIBRARY = re.compile(r"CUDA error\(2\), out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED")
# What C++ says where it cannot allocate: also for an amount that is wrong, however much memory is left.
_CPP_ERRORS = ("std::bad_alloc", "std::bad_array_new_length")


@contextlib.contextmanager
def explain_exhaustion(batchsize: int) -> Iterator[None]:
    """Turn an error of this context that says that memory ran out into one line for the user.

    Such an error is a MemoryError, or an OSError by which Paddle passes on that CUDA, cuDNN or cuBLAS had too little
    memory.

    Args:
        batchsize: Images on each device, for the advice in the line.

    Raises:
        RunError: Memory ran out. Any other error passes as it is.
    """
    try:
        yield
    except MemoryError as error:  # of Paddle, NumPy or the input pipeline
        raise RunError(_exhaustion_in_words(str(error), batchsize)) from error
    except OSError as error:  # of a library of CUDA, as Paddle passes it on
        is_out_of_memory = _CUDA_LIBRARY.search(str(error)) is not None
        if not is_out_of_memory:
            raise
        raise RunError(_exhaustion_in_words(str(error), batchsize)) from error


def _exhaustion_in_words(message: str, batchsize: int) -> str:
    """Return in one line what the run was doing, which memory ran out, and what to lower.

    Args:
        message: Text of the error.
        batchsize: Images on each device.
    """
    doing = WATCHDOG.doing  # what the run does now, as the watchdog was told
    memory_now = _exhausted_memory(message)
    is_bare_cpp_error = message in _CPP_ERRORS  # as "std::bad_alloc"
    if is_bare_cpp_error:  # the batch need not be the cause, so nothing is said of what to lower
        return f"{message} in a library while {doing}, which names no amount; {memory_now}"

    can_lower_batch = batchsize > 1
    if can_lower_batch:
        fix = "lower BATCHSIZE, or compute the update in parts: STRATEGY=gradient_merge=N, N a divisor of BATCHSIZE"
    else:
        fix = "lower IMAGE_SIZE or DGXNGPU"
    return f"out of memory at BATCHSIZE={batchsize} while {doing}: {memory_now}: {fix}"


def _exhausted_memory(text: str) -> str:
    """Return which memory ran out and what is known of it, by the message of an error.

    A message that is not about a GPU is about this host's memory. How much of it is left is read now.

    Args:
        text: Message of an error of Paddle, CUDA or DALI.
    """
    host = socket.gethostname()
    gpu_memory = _exhausted_gpu_memory(text, host)
    is_about_gpu = gpu_memory != ""
    if is_about_gpu:
        return gpu_memory

    host_memory = _host_memory(host)
    error_with_amount = _PADDLE_ON_CPU.search(text) or DALI_ERROR.search(text)
    if error_with_amount:
        more_gib = int(error_with_amount["bytes"]) / GIB
        host_memory += f" and asked for {more_gib:.3f} GiB more"
    return host_memory


def _exhausted_gpu_memory(message: str, host: str) -> str:
    """Return which GPU ran out of memory, and how much it was asked for, if the message tells.

    Args:
        message: Message of an error of Paddle, CUDA or DALI.
        host: Name of this machine, for the text.

    Returns:
        A part of a sentence. Empty if the message is not about a GPU.
    """
    paddle_error = _PADDLE_ON_GPU.search(message)
    if paddle_error:
        holds = f"this rank holds {paddle_error['held']} and asked for {paddle_error['asked']} more"
        return f"GPU {paddle_error['gpu']} of {host} has {paddle_error['free']} left, {holds}"

    dali_error = DALI_ERROR.search(message)
    if dali_error and dali_error["gpu"]:
        more_gib = int(dali_error["bytes"]) / GIB
        return f"the input pipeline asked for {more_gib:.3f} GiB more on GPU {dali_error['gpu']} of {host}"

    start_error = DALI_START_ERROR.search(message)
    if start_error:
        return f"a GPU of {host} has too little left for the input pipeline's decoder ({start_error[0]})"

    library_error = _CUDA_LIBRARY.search(message)
    if library_error:
        return f"a GPU of {host} has too little left for a library ({library_error[0]})"
    return ""


def _host_memory(host: str) -> str:
    """Return how much memory this machine has left, and how much of it this process holds.

    Args:
        host: Name of this machine, for the text.
    """
    of_host = psutil.virtual_memory()
    of_process = psutil.Process().memory_info()
    host_has_left = f"{host} has {of_host.available / GIB:.2f} of {of_host.total / GIB:.2f} GiB left"
    rank_holds = f"this rank holds {of_process.rss / GIB:.2f} GiB"
    address_limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # `ulimit -v`; it may run out before the memory does
    is_limited = address_limit != resource.RLIM_INFINITY
    if is_limited:
        rank_holds += f" ({of_process.vms / GIB:.2f} of {address_limit / GIB:.2f} GiB of addresses)"
    return f"{host_has_left}, {rank_holds}"
