"""One rank of a job: `python -m harness`, started by mpirun on every rank (see launch/trials.sh)."""

import importlib
import math
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from harness import child, env, memory, network, nvidia
from harness.processes import send_native_output_to_stderr
from runlog.digits import counted
from runlog.errors import INTERRUPTED, INTERRUPTED_STATUS, RunError, message_of

MPIRUN_READS_S = 0.2  # an abort may overtake what its rank has just written
LOG_CLOSES_S = 1.0  # an error of all ranks is rank 0's to end with: it closes the log first


def main() -> int:
    """Train or measure the job of this environment on this rank, and return the exit status, as `run_module` does."""
    return run_module("harness.train", checks_precision=True)


def run_module(module: str, *, checks_precision: bool, **options: Any) -> int:
    """Run the `main` of a module on this rank, for the job that the environment describes; return the exit status.

    It is called as `main(job, origins, **options)`, where `origins` tells who set each value of the job. An error is
    printed and ends all other ranks, too.

    Args:
        module: Dotted name of the module, as "harness.train". It may load Paddle, which needs the settings that are put
            into the environment here.
        checks_precision: Whether to refuse a GPU that cannot compute in the job's precision.
        options: Further arguments for `main`.

    Returns:
        0; 2 for a ValueError, which is for what a user did wrong; 130 after SIGINT; 1 for any other error.
    """
    try:
        job, origins = env.read()
        _prepare_process(job, checks_precision=checks_precision)
        loaded = _load_with_paddle(module)
        loaded.main(job, origins, **options)
    except ValueError as error:
        return _abort(error, 2)
    except RunError as error:
        return _abort(error, 1)
    except KeyboardInterrupt:
        # This rank cannot simply exit: at exit Python calls MPI_Finalize, which waits for the other ranks.
        return _abort(RunError(INTERRUPTED), INTERRUPTED_STATUS)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: reported whole, then ended
        traceback.print_exc()
        return _abort(error, 1)
    return 0


def _load_with_paddle(module: str) -> ModuleType:
    """Load a module, which loads Paddle, and keep SIGTERM ending this process at once, as without Paddle.

    Paddle reads its settings from the environment while it is loaded, so they must be there by now.

    Args:
        module: Dotted name of the module.
    """
    loaded = importlib.import_module(module)
    # Paddle's handler would print a C++ stack when mpirun sends SIGTERM to this rank because another one failed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return loaded


def _prepare_process(job: env.Job, *, checks_precision: bool) -> None:
    """Prepare this process to load Paddle: set the environment of the libraries, and check this node's GPUs.

    What libraries print on stdout goes to stderr from then on, if mpirun started this process.

    Args:
        job: The settings of the job.
        checks_precision: Whether to refuse a GPU that cannot compute in the job's precision.

    Raises:
        ValueError: A GPU is missing, or cannot compute in the job's precision.
        RunError: NVML, the library that tells of the GPUs, hangs.
    """
    env.export(env.runtime(job))
    if env.is_rank():
        network.export_for_mpi(job.cluster)
    if job.cluster.on_gpu:
        gpus = _usable_gpus(job, checks_precision=checks_precision)
        limit_mib = memory.workspace_limit_mib(_smallest_memory_gib(gpus))
        env.export({memory.WORKSPACE_LIMIT: str(limit_mib)})
    if env.is_rank():  # mpirun shows on the terminal what a rank prints on stdout
        send_native_output_to_stderr()


DRIVER_HANGS = "look for NVRM and Xid in the host's dmesg; where nvidia-smi hangs too restart the host"


def _usable_gpus(job: env.Job, *, checks_precision: bool) -> list[nvidia.Gpu]:
    """Return the GPUs of this node that the job computes on: the first DGXNGPU that CUDA shows this process.

    Args:
        job: The settings of the job.
        checks_precision: Whether to refuse a GPU that cannot compute in the job's precision. CUDA's libraries would
            silently compute in another one.

    Raises:
        ValueError: A GPU is missing, or cannot compute in the job's precision.
        RunError: NVML, the library that tells of the GPUs, hangs.
    """
    host = socket.gethostname()
    gpus_wanted = job.cluster.dgxngpu
    # If the driver hangs, a call of NVML never returns. So a child process makes the first calls. The text says which
    # call has hung, and is empty if none has.
    hanging_call = child.hanging_call_of_nvml()
    if hanging_call:
        raise RunError(f"{host}: {hanging_call}: {DRIVER_HANGS}")

    with nvidia.opened() as (handles, why_some_are_missing):
        if len(handles) < gpus_wanted:
            reason = f" ({why_some_are_missing})" if why_some_are_missing else ""
            has = f"{host} has {counted(len(handles), 'GPU')}{reason}"
            raise ValueError(f"DGXNGPU={gpus_wanted}: {has}: set it to fewer, or DEVICE=cpu")
        gpus = [nvidia.gpu_of(handle) for handle in handles[:gpus_wanted]]
    if checks_precision:  # CUDA's libraries would silently compute in another one
        for gpu in gpus:
            _check_precision(gpu, job, host)
    return gpus


def _smallest_memory_gib(gpus: Sequence[nvidia.Gpu]) -> float:
    """Return the memory of the smallest of some GPUs in GiB; infinite if none of them tells it."""
    known_memories_gib = [gpu.memory_gib for gpu in gpus if gpu.memory_gib]
    return min(known_memories_gib, default=math.inf)


def _check_precision(gpu: nvidia.Gpu, job: env.Job, host: str) -> None:
    """Make sure that a GPU has what the job's settings ask for: TF32, or the kernel of the option `resnet_unit`.

    `resnet_unit` runs a fused kernel of cuDNN for compute capabilities 8.0 to 8.9. TF32 needs 8.0 or higher. A GPU
    whose capability is not known is taken to have both.

    Args:
        gpu: The GPU.
        job: The settings of the job.
        host: Name of this machine, for the message.

    Raises:
        ValueError: The job asks for one that the GPU does not have.
    """
    if gpu.capability is None:  # NVML does not tell it: the GPU is taken to have both
        return
    has_unit = gpu.capability in nvidia.UNIT_CAPABILITIES
    has_tf32 = gpu.capability >= nvidia.TF32_CAPABILITY
    if job.model.knobs.resnet_unit and not has_unit:
        raise ValueError(
            f"STRATEGY: resnet_unit=1: {gpu.name} of {host} has compute capability {gpu.capability / 10:.1f}, "
            "its kernel takes 8.0 to 8.9: leave it out"
        )
    if job.model.precision == "tf32" and not has_tf32:
        raise ValueError(f"PRECISION=tf32: {gpu.name} of {host} does not have it: set fp32, amp_o1 or amp_o2")


def _abort(error: Exception, code: int) -> int:
    """Print an error as one line on stderr, have MPI end all other ranks, and return an exit status.

    Rank 0 waits MPIRUN_READS_S (0.2 s) before it ends the others, so that mpirun can pass on the line. Any other rank
    waits LOG_CLOSES_S (1 s): if the same error is on all ranks, rank 0 closes the log and ends the job meanwhile.

    Args:
        error: The error that ends this rank.
        code: The exit status. The other ranks end with it, too.
    """
    from mpi4py import MPI

    sys.stderr.write(f"error: {message_of(error)}\n")  # one call for the whole line: all ranks write into one file
    sys.stderr.flush()
    is_rank_0 = MPI.COMM_WORLD.Get_rank() == 0
    time.sleep(MPIRUN_READS_S if is_rank_0 else LOG_CLOSES_S)
    has_other_ranks = MPI.COMM_WORLD.Get_size() > 1
    if has_other_ranks:
        MPI.COMM_WORLD.Abort(code)  # ends this rank, too; the others may wait for this rank in a collective
    return code


if __name__ == "__main__":
    sys.exit(main())
