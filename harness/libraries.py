"""Variables of the libraries below Paddle, which decide a run's speed or results and are no variable of a job."""

from __future__ import annotations

import re

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # 0: no library of CUDA's computes in TF32

# Those that go with the job to every node. Of NVIDIA_* only one does: the container runtime owns the others.
# CUDA_* stay, as CUDA_VISIBLE_DEVICES is each node's own.
FORWARDED = ("FLAGS_", "NCCL_", "NVIDIA_TF32_", "UCX_", "OMP_", "MKL_")
# NULL_GPU says that the libraries are stand-ins which compute nothing (tests/null_gpu/).
LIBRARIES = (*FORWARDED, "CUDA_", "CUBLAS_", "CUDNN_", "GLOO_", "DALI_", "NULL_GPU")

SECRET = re.compile("SECRET|TOKEN|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)  # no log has the value of one

MKL_AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}  # what its kernels for Skylake use


def mkl_settings(cpuinfo: str) -> dict[str, str]:
    """What MKL must be told on this CPU: on AMD it takes its slow path by itself (5 is its AVX2, 7 its AVX-512).

    `cpuinfo` is the text of /proc/cpuinfo.
    """
    if "AuthenticAMD" not in cpuinfo:
        return {}
    flags = cpuinfo.partition("\nflags")[2].partition("\n")[0].split()
    return {"MKL_DEBUG_CPU_TYPE": "7" if MKL_AVX512.issubset(flags) else "5"}
