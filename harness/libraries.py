"""Variables of the libraries below Paddle. They decide a run's speed or results and are not variables of a job."""

import re
from collections.abc import Mapping

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # 0: no library of CUDA's computes in TF32

# Those that go with the job to every node. Of NVIDIA_* only one does: the container runtime owns the others.
# CUDA_* stay, as CUDA_VISIBLE_DEVICES is each node's own, and GLOO_*, as a network's interface may be.
FORWARDED = ("FLAGS_", "NCCL_", "NVIDIA_TF32_", "UCX_", "OMP_", "MKL_", "CUBLAS_", "CUDNN_", "DALI_")
# NULL_GPU says that the libraries are stand-ins which compute nothing (tests/null_gpu/).
LIBRARIES = (*FORWARDED, "CUDA_", "GLOO_", "NULL_GPU")

# NCCL's settings of the network between nodes. One node has none to choose: its container has loopback alone, where
# NCCL finds no interface if NCCL_SOCKET_IFNAME leaves lo out.
NCCL_NETWORK = (
    *("NCCL_SOCKET_", "NCCL_NSOCKS_", "NCCL_IB_", "NCCL_NET", "NCCL_OOB_", "NCCL_COLLNET_"),
    *("NCCL_CROSS_NIC", "NCCL_COMM_ID"),
)

# No log and no other node has the value of one.
SECRET = re.compile("SECRET|TOKEN|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)

MKL_AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}  # what its kernels for Skylake use


def mkl_settings(proc_cpuinfo: str) -> dict[str, str]:
    """Return the variable that makes MKL take its fast path on an AMD CPU; none on any other CPU.

    Args:
        proc_cpuinfo: Text of /proc/cpuinfo.

    Returns:
        {"MKL_DEBUG_CPU_TYPE": "7"} if the CPU has AVX-512, {"MKL_DEBUG_CPU_TYPE": "5"} if not, or {}.
    """
    if "AuthenticAMD" not in proc_cpuinfo:
        return {}
    _, _, from_flags = proc_cpuinfo.partition("\nflags")
    flags, _, _ = from_flags.partition("\n")
    has_avx512 = MKL_AVX512.issubset(flags.split())
    return {"MKL_DEBUG_CPU_TYPE": "7" if has_avx512 else "5"}  # 7: AVX-512, 5: AVX2


def of_network(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables by which a user chooses NCCL's network between nodes.

    Args:
        environ: Environment variables.
    """
    return [name for name in environ if name.startswith(NCCL_NETWORK)]


def dropped(environ: Mapping[str, str], nodes: int) -> dict[str, str]:
    """Return the variable JOB_DROPPED, which names the variables that a shell must unset for a job of one node.

    The named variables are settings of NCCL's network between nodes, which a job of one node does not need. The shell
    function `load_job` of launch/common.sh unsets the named variables.

    Args:
        environ: Environment variables.
        nodes: Number of nodes of the job.

    Returns:
        {"JOB_DROPPED": "NCCL_IB_HCA NCCL_NET"}, for example; {} if the job has several nodes, or if `environ` has no
        setting of NCCL's network.
    """
    names_of_settings = of_network(environ)  # of NCCL's network between nodes
    if nodes > 1 or not names_of_settings:
        return {}
    return {"JOB_DROPPED": " ".join(names_of_settings)}


def names_to_forward(environ: Mapping[str, str], *more_prefixes: str, nodes: int) -> list[str]:
    """List the variables that set up libraries, and that a job hands to its nodes and into containers.

    Secrets are left out. If the job has one node, the settings of NCCL's network between nodes are left out, too: with
    them NCCL could find no interface there.

    Args:
        environ: Environment variables.
        more_prefixes: Beginnings of names that count as well as those in FORWARDED.
        nodes: Number of nodes of the job.
    """
    left_out = of_network(environ) if nodes == 1 else []
    names = []
    for name in environ:
        is_of_library = name.startswith((*FORWARDED, *more_prefixes))
        is_secret = SECRET.search(name) is not None
        if is_of_library and not is_secret and name not in left_out:
            names.append(name)
    return names


def secrets(environ: Mapping[str, str]) -> str:
    """Return the names of the variables that hold secrets, with spaces between.

    `load_job` of launch/common.sh unsets them, so that no process of a job has them.

    Args:
        environ: Environment variables. Those whose names have a word such as TOKEN or PASSW are taken for secrets.
    """
    return " ".join(name for name in environ if SECRET.search(name) and name.isidentifier())
