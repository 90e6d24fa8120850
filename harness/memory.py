"""Out of memory, told in one line: the batch, the memory, and what to lower."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
from collections.abc import Iterator

import psutil

from harness.env import Job
from harness.errors import RunError
from harness.watchdog import WATCHDOG

GIB = 2**30
# What Paddle 2.6.2 says of itself (as a MemoryError), and what it passes on of CUDA and its libraries (as an OSError).
_OF_A_CPU = re.compile(r"Fail to alloc memory of (?P<bytes>\d+) size")
_OF_A_GPU = re.compile(
    r"Out of memory error on GPU (?P<gpu>\d+)\. Cannot allocate (?P<asked>\S+) memory on GPU \d+, (?P<held>\S+) memory "
    r"has been allocated and available memory is only (?P<free>\S+)\.\s"
)
# DALI's words, within those of the operator that it passes on as a RuntimeError.
OF_DALI = re.compile(r"Can't allocate (?P<bytes>\d+) bytes on (?P<where>host|device \d+)")
_OF_A_LIBRARY = re.compile(r"CUDA error\(2\), out of memory|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED")


@contextlib.contextmanager
def explained(job: Job) -> Iterator[None]:
    """Turns what NumPy, Paddle and CUDA raise for want of memory into one line.

    Raises:
        RunError: memory ran out.
    """
    try:
        yield
    except (MemoryError, OSError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not _OF_A_LIBRARY.search(text):
            raise
        doing = WATCHDOG.doing
        raise RunError(
            f"out of memory at BATCHSIZE={job.batchsize} while {doing}: {_where(text)}: {_remedy(job)}"
        ) from error


def _where(text: str) -> str:
    """Which memory, how much of it is taken, and what more was asked for."""
    host = socket.gethostname()
    gpu, library, cpu = _OF_A_GPU.search(text), _OF_A_LIBRARY.search(text), _OF_A_CPU.search(text)
    if gpu:
        return (
            f"GPU {gpu['gpu']} of {host} has {gpu['free']} left, this rank holds {gpu['held']} and asked for "
            f"{gpu['asked']} more"
        )
    dali = OF_DALI.search(text)
    if dali and dali["where"] != "host":
        more_gib = int(dali["bytes"]) / GIB
        return f"the input pipeline asked for {more_gib:.3f} GiB more on GPU {dali['where'].split()[1]} of {host}"
    if library:
        return f"a GPU of {host} has too little left for a library ({library[0]})"
    node, own = psutil.virtual_memory(), psutil.Process().memory_info()
    said = (
        f"{host} has {node.available / GIB:.2f} of {node.total / GIB:.2f} GiB left, "
        f"this rank holds {own.rss / GIB:.2f} GiB"
    )
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        said += f" ({own.vms / GIB:.2f} of {limit / GIB:.2f} GiB of addresses)"
    asked = cpu or dali
    return said + (f" and asked for {int(asked['bytes']) / GIB:.3f} GiB more" if asked else "")


def _remedy(job: Job) -> str:
    if job.batchsize == 1:
        return "lower IMAGE_SIZE or DGXNGPU"
    return "lower BATCHSIZE, or compute the update in parts: STRATEGY=gradient_merge=N, N a divisor of BATCHSIZE"
