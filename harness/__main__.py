"""One rank of a job: `python -m harness`, started by mpirun on every rank (see launch/trials.sh)."""

import importlib
import math
import signal
import socket
import sys
import time
import traceback
from typing import Any

from harness import child, env, memory, nvidia
from harness.processes import send_native_output_to_stderr
from runlog.errors import RunError, message_of

MPIRUN_READS_S = 0.2  # an abort may overtake what its rank has just written
LOG_CLOSES_S = 1.0  # an error of all ranks is rank 0's to end with: it closes the log first


def main(module: str = "", **options: Any) -> int:
    """Run this rank's part of the job that the environment describes: training, or `main` of another module.

    Settings of Paddle and CUDA are put into the environment before they are loaded. `options` go to the module.

    Returns the exit status: 0; 2 for what a user did wrong (ValueError); 1 for any other error. An error is one line
    `error: ...` on stderr, and ends all other ranks, too.
    """
    try:
        job, origins = env.read()
        env.export(env.runtime(job))
        if job.cluster.device == "gpu":
            trains = not module  # any other module, as the acceptance, says itself what a GPU cannot do
            least_gib = _check_gpus(job, precision=trains)
            env.export({memory.WORKSPACE_LIMIT: str(memory.workspace_limit_mib(least_gib))})
        if env.is_rank():
            send_native_output_to_stderr()
        # Imported now: Paddle takes its settings from the environment when it is loaded.
        loaded = importlib.import_module(module or "harness.train")
        # mpirun sends SIGTERM to this rank where another one failed; Paddle's handler would print a C++ stack.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loaded.main(job, origins, **options)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: reported whole, then ended
        if not isinstance(error, ValueError | RunError):
            traceback.print_exc()
        return _abort(error, 2 if isinstance(error, ValueError) else 1)
    return 0


DRIVER_HANGS = "look for NVRM and Xid in the host's dmesg; where nvidia-smi hangs too restart the host"


def _check_gpus(job: env.Job, *, precision: bool) -> float:
    """Check that this node has the GPUs that the job wants; return the memory of the smallest of them in GiB.

    With `precision` each must be able to compute as the job says, too. Paddle would end the process without a word for
    a GPU that is not there, and CUDA's libraries would compute in another precision without one.

    Raises ValueError where GPUs are absent, or one lacks the job's precision or `resnet_unit`, and RunError where NVML
    does not answer. The memory is infinite where no GPU tells it.
    """
    host = socket.gethostname()
    silence = child.nvml_silence()  # this process would wait for it without an end
    if silence:
        raise RunError(f"{host}: {silence}: {DRIVER_HANGS}")
    with nvidia.opened() as (handles, absence):
        if len(handles) < job.cluster.dgxngpu:
            reason = f" ({absence})" if absence else ""
            has = f"{host} has {len(handles)} GPUs{reason}"
            raise ValueError(f"DGXNGPU={job.cluster.dgxngpu}: {has}: set it to fewer, or DEVICE=cpu")
        gpus = [nvidia.gpu_of(handle) for handle in handles[: job.cluster.dgxngpu]]
    if precision:
        for gpu in gpus:
            _check_precision(gpu, job, host)
    return min(gpu.memory_gib or math.inf for gpu in gpus)


def _check_precision(gpu: nvidia.Gpu, job: env.Job, host: str) -> None:
    """Raise ValueError where the job asks for TF32 or `resnet_unit`, and a GPU of this host cannot compute it.

    A GPU that does not tell its compute capability is taken to have both.
    """
    if gpu.capability is None:
        return
    capability = gpu.capability
    if job.model.knobs.resnet_unit and capability not in nvidia.UNIT_CAPABILITIES:
        raise ValueError(
            f"STRATEGY: resnet_unit=1: {gpu.name} of {host} has compute capability {capability / 10:.1f}, "
            "its kernel takes 8.0 to 8.9: leave it out"
        )
    if job.model.precision == "tf32" and capability < nvidia.TF32_CAPABILITY:
        raise ValueError(f"PRECISION=tf32: {gpu.name} of {host} does not have it: set fp32, amp_o1 or amp_o2")


def _abort(error: Exception, code: int) -> int:
    from mpi4py import MPI

    sys.stderr.write(f"error: {message_of(error)}\n")  # at once: two ranks write into one file
    sys.stderr.flush()
    time.sleep(MPIRUN_READS_S if MPI.COMM_WORLD.Get_rank() == 0 else LOG_CLOSES_S)
    if MPI.COMM_WORLD.Get_size() > 1:
        MPI.COMM_WORLD.Abort(code)  # the others may wait for this rank in a collective
    return code


if __name__ == "__main__":
    sys.exit(main())
