"""Variables of the libraries below Paddle, which decide a run's speed or results and are no variable of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.env import Job

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # 0: no library of CUDA's computes in TF32

# Those that go with the job to every node. Of NVIDIA_* only one does: the container runtime owns the others.
# CUDA_* stay, as CUDA_VISIBLE_DEVICES is each node's own.
FORWARDED = ("FLAGS_", "NCCL_", "NVIDIA_TF32_", "UCX_", "OMP_", "MKL_")
# NULL_GPU says that the libraries are stand-ins which compute nothing (tests/null_gpu/).
LIBRARIES = (*FORWARDED, "CUDA_", "CUBLAS_", "CUDNN_", "GLOO_", "DALI_", "NULL_GPU")

# No log and no other node has the value of one.
SECRET = re.compile("SECRET|TOKEN|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)

MKL_AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}  # what its kernels for Skylake use


def mkl_settings(cpuinfo: str) -> dict[str, str]:
    """What MKL must be told on this CPU: on AMD it takes its slow path by itself (5 is its AVX2, 7 its AVX-512).

    `cpuinfo` is the text of /proc/cpuinfo.
    """
    if "AuthenticAMD" not in cpuinfo:
        return {}
    flags = cpuinfo.partition("\nflags")[2].partition("\n")[0].split()
    return {"MKL_DEBUG_CPU_TYPE": "7" if MKL_AVX512.issubset(flags) else "5"}


def settings_of(job: Job, *, gpu: str) -> dict[str, str]:
    """What a rank's libraries are told before they are loaded; `gpu` is its number among those that CUDA shows."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads")
    settings = dict.fromkeys(threads, str(job.threads_per_rank))
    settings["GLOG_minloglevel"] = "2"  # Paddle's C++ chatter below errors
    if job.device == "cpu":
        # The parallel executor's scheduling costs more than it gains on a few cores.
        settings["FLAGS_new_executor_serial_run"] = "1"
        if job.workload == "hrnet":  # a sixth faster, having many small tensors; ResNet-50 gains nothing
            settings["FLAGS_eager_delete_tensor_gb"] = "1"
        return settings | mkl_settings(Path("/proc/cpuinfo").read_text())
    settings["CUDA_MODULE_LOADING"] = "LAZY"  # else the driver loads 1.8 GB of kernels, of which a run takes few
    settings["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi numbers them, and what is sampled of them
    settings["FLAGS_selected_gpus"] = gpu  # else GPU 0
    if job.precision == "fp32":
        settings[TF32_OVERRIDE] = "0"  # Ampere would compute "FP32" in TF32
    if job.workload == "hrnet":
        settings["FLAGS_dynamic_static_unified_comm"] = "0"  # passes/sync_bn.py says why, and refuses another value
    return settings


def handed_on(environ: Mapping[str, str], *more: str) -> list[str]:
    """Names of the variables, by these prefixes too, that go to other nodes and into containers; no secret does."""
    return [name for name in environ if name.startswith((*FORWARDED, *more)) and not SECRET.search(name)]


def secrets(environ: Mapping[str, str]) -> str:
    """Names of the secrets, which `load_job` of launch/common.sh unsets: no process of a job has them."""
    return " ".join(name for name in environ if SECRET.search(name) and name.isidentifier())
