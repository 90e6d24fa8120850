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

    The call is `main(job, origins, **options)`, where `origins` tells who set each value of the job. If `main` or the
    preparation before it raises an error, the error is printed and all other ranks are ended with the same status.

    Args:
        module: Dotted name of the module, such as "harness.train". The module may load Paddle, for which this function
            first puts settings into the environment.
        checks_precision: Whether to refuse a GPU that cannot compute in the job's precision.
        options: Further arguments for `main`.

    Returns:
        The exit status:

            2      ValueError: the user did something wrong
            1      RunError: the run failed, for a reason that its message explains
            130    SIGINT (Ctrl-C)
            1      any other error, which is a fault of the program: its traceback is printed, too
            0      no error
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
    """Load a module, and with it Paddle; return the module.

    The caller must have put Paddle's settings into the environment, because Paddle reads these settings while it is
    loaded. After this call, SIGTERM ends this process at once, as it does in a process without Paddle.

    Args:
        module: Dotted name of the module, such as "harness.train", whose imports load Paddle.
    """
    loaded = importlib.import_module(module)
    # Paddle has installed a handler for SIGTERM, which mpirun sends to this rank if another rank fails. The handler
    # would print a stack of C++. The default action ends the process without a word.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return loaded


def _prepare_process(job: env.Job, *, checks_precision: bool) -> None:
    """Prepare this process to load Paddle: set the libraries' environment variables, and check this node's GPUs.

    On a rank that mpirun started, also choose Open MPI's network interface (only if the job has several nodes), and
    send to stderr what libraries print.

    Args:
        job: The settings of the job.
        checks_precision: Whether to refuse a GPU that cannot compute in the job's precision.

    Raises:
        ValueError: A GPU is missing, or lacks what the job's settings ask for (see `_check_precision`).
        RunError: NVML, the library that tells of the GPUs, hangs, or kills the process that asks.
    """
    is_started_by_mpirun = env.is_rank()  # by a variable of mpirun's, which nothing below changes
    # `export` leaves alone what the user has set. All of this must be set before Paddle and MPI start.
    env.export(env.runtime(job))  # threads, executor, GPU and arithmetic, as {"OMP_NUM_THREADS": "8", ...}
    if is_started_by_mpirun:
        network.export_for_mpi(job.cluster)
    if job.cluster.on_gpu:
        gpus = _usable_gpus(job, checks_precision=checks_precision)
        limit_mib = memory.workspace_limit_mib(_smallest_memory_gib(gpus))
        env.export({memory.WORKSPACE_LIMIT: str(limit_mib)})  # cuDNN's for one convolution, by the smallest GPU
    if is_started_by_mpirun:  # mpirun would show on the terminal what libraries print on a rank's stdout
        send_native_output_to_stderr()


DRIVER_HANGS = "look for NVRM and Xid in the host's dmesg; where nvidia-smi hangs too restart the host"


def _usable_gpus(job: env.Job, *, checks_precision: bool) -> list[nvidia.Gpu]:
    """Return the GPUs of this node that the job computes on; raise an error if they are missing or cannot be used.

    The GPUs are the first DGXNGPU (a setting) of those that CUDA shows this process.

    Args:
        job: The settings of the job.
        checks_precision: Whether to refuse a GPU that lacks what the job's settings ask for (see `_check_precision`).

    Raises:
        RunError: NVML, NVIDIA's library that tells of the GPUs, hangs, or kills the process that asks.
        ValueError: CUDA shows fewer GPUs than DGXNGPU, or a GPU lacks what the job's settings ask for.
    """
    host = socket.gethostname()
    gpus_wanted = job.cluster.dgxngpu
    # If the driver hangs, a call of NVML never returns. So a child process tries the calls before this process does.
    # A phrase on the call that hung or crashed, such as "NVML has not answered nvmlInit: no answer in 30 s"; else
    # empty.
    hanging_call = child.hanging_call_of_nvml()
    if hanging_call:
        raise RunError(f"{host}: {hanging_call}: {DRIVER_HANGS}")

    with nvidia.opened() as (handles, why_some_are_missing):  # of each whole GPU that CUDA shows this process
        if len(handles) < gpus_wanted:
            # "DGXNGPU=8: node1 has 7 GPUs (GPU3: GPU is lost): set it to fewer, or DEVICE=cpu"
            reason = f" ({why_some_are_missing})" if why_some_are_missing else ""
            has = f"{host} has {counted(len(handles), 'GPU')}{reason}"
            raise ValueError(f"DGXNGPU={gpus_wanted}: {has}: set it to fewer, or DEVICE=cpu")
        gpus = [nvidia.gpu_of(handle) for handle in handles[:gpus_wanted]]
    if checks_precision:  # on a GPU without TF32, CUDA's libraries would silently compute in another precision
        for gpu in gpus:
            _check_precision(gpu, job, host)  # raises ValueError
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
    """Print an error as one line on stderr, and end all ranks of the job; return the exit status if this rank is alone.

    Args:
        error: The error that ends this rank.
        code: The exit status, for all ranks.
    """
    from mpi4py import MPI

    sys.stderr.write(f"error: {message_of(error)}\n")  # one call for the whole line: all ranks write into one file
    sys.stderr.flush()
    is_rank_0 = MPI.COMM_WORLD.Get_rank() == 0
    if is_rank_0:
        time.sleep(MPIRUN_READS_S)  # for mpirun to pass on the line
    else:
        time.sleep(LOG_CLOSES_S)  # for rank 0, if it has the same error, to close the log of the run and end the job
    has_other_ranks = MPI.COMM_WORLD.Get_size() > 1
    if has_other_ranks:
        MPI.COMM_WORLD.Abort(code)  # ends this rank, too; the others may wait for this rank in a collective
    return code


if __name__ == "__main__":
    sys.exit(main())
