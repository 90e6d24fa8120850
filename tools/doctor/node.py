"""Facts of a node that the doctor judges."""

import contextlib
import ctypes
import importlib
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil

from harness import cgroup, child, env, network, nvidia, nvidia_smi, provenance
from harness.job import NUMA_NODES
from harness.libraries import of_network
from runlog.digits import six_digits
from runlog.errors import RunError
from runlog.json_types import JsonObject
from runlog.schema import as_json
from tools.doctor import cuda, nccl
from tools.doctor.nccl import ETHERNET

GIB = 2**30
_FOR_12 = provenance.is_for_cuda_12()
CUDA_LIBRARIES = (
    *("libcuda.so.1", f"libcudart.so.{'12' if _FOR_12 else '11.0'}"),
    *(f"lib{name}.so.{11 + _FOR_12}" for name in ("cublas", "cublasLt", "cusparse")),
    *(f"libcufft.so.{10 + _FOR_12}", "libcurand.so.10", "libcusolver.so.11", "libcudnn.so.8", "libnccl.so.2"),
    "libnvcuvid.so.1",
)
IMPORTED = {"paddle": "paddle", "dali": "nvidia.dali.fn"}  # by training, which ends without them
IMPORT_S = 60.0  # of a cold network disk
SET_CACHE = "set DATA_CACHE to a folder that this user may write"
NCCL_CONF = Path("/etc/nccl.conf")  # in which NCCL's variables may be set, as in the file of a user
DMA_BUF_KERNEL = (5, 12)  # NVIDIA's GPUDirect RDMA: the first Linux by which InfiniBand reads a GPU through DMA-BUF


class _ImportFailure(NamedTuple):
    """Why a package cannot be imported, and what to do; both are empty if it can be."""

    error: str
    fix: str


class _NvmlGpus(NamedTuple):
    """The GPUs that NVML shows, and why others are missing; the reason is empty if none is."""

    gpus: list[nvidia.Gpu]
    absence: str


@contextlib.contextmanager
def _gpus_of_open_nvml(job: env.Job) -> Iterator[_NvmlGpus]:
    """Give the GPUs that NVML, NVIDIA's library for monitoring, shows; keep NVML open until the context ends.

    A child process tries NVML first, because a call of NVML may hang. For a job on CPUs there are no GPUs, and NVML is
    not opened.

    Args:
        job: Settings of the training job, with the device ("gpu" or "cpu").

    Yields:
        (gpus, absence). `absence` says why GPUs are missing; it is empty if none are.
    """
    if job.cluster.device != "gpu":
        yield _NvmlGpus([], "")
        return
    hanging_call = child.hanging_call_of_nvml()  # a child process tries NVML first, because it may hang
    if hanging_call:  # says which call hangs; empty if none does
        yield _NvmlGpus([], hanging_call)
        return
    with nvidia.opened() as (handles, absence):
        yield _NvmlGpus([nvidia.gpu_of(handle) for handle in handles], absence)


def probe(job: env.Job, *, rank_cores: list[list[int]], node: int) -> JsonObject:
    """Return the facts of this node that the doctor, a check of the machine before a run, judges.

    Child processes import the packages Paddle and DALI, and start CUDA and NCCL. Meanwhile this process gathers the
    other facts.

    Args:
        job: Settings of the training job.
        rank_cores: For each rank of this node the numbers of the CPU cores that it may use, as [[0, 1], [2, 3]].
        node: Number of this node in HOSTS, from 0.

    Returns:
        Facts by name, such as "host", "gpus", "numa", "imports" and "data". For a job on CPUs, CUDA and NCCL are not
        started, and facts on their starts, such as "cuda_start", are missing.
    """
    # NVML, NVIDIA's library for monitoring, is read before CUDA starts, because a start takes memory of the GPUs. It is
    # closed after the start: on a driver without persistence, closing NVML unloads the driver.
    with _gpus_of_open_nvml(job) as nvml, ThreadPoolExecutor() as pool:
        # Child processes run for seconds, so threads wait for them.
        import_attempts = {name: pool.submit(_try_import, module) for name, module in IMPORTED.items()}
        library_starts = pool.submit(_start_cuda_and_nccl, job, node)
        facts: JsonObject = {"host": socket.gethostname(), "gpus": nvml.gpus, "gpu_absence": nvml.absence}
        facts |= _topology() | _software(job) | {"rank_cores": rank_cores, "numa": _numa()}
        facts |= _resources(job) | _network_devices()
        imports = {name: attempt.result() for name, attempt in import_attempts.items()}  # waits for the imports
        facts["imports"] = imports
        has_packages = not any(failure.error for failure in imports.values())
        facts["data"] = data_facts(job, has_packages=has_packages)
        return facts | library_starts.result()  # waits for the starts of CUDA and NCCL


def _software(job: env.Job) -> JsonObject:
    """Return how each CUDA library loads, and which code of this project runs, by the facts' names.

    Args:
        job: Settings of the training job. On CPUs no library is loaded, and "libraries" is empty.
    """
    return {
        "libraries": _libraries() if job.cluster.device == "gpu" else {},
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
        "code_sha256": provenance.code_sha256(),
    }


def _resources(job: env.Job) -> JsonObject:
    """Return which memory, CPU time, open files and disk space this process may still take.

    Args:
        job: Settings of the training job, with its folders of logs and checkpoints.

    Returns:
        Facts by name. "cgroup_memory_gib" and "cgroup_cpus" are None if no cgroup is known to set a limit; "open_files"
        and "locked_memory" are limits, -1 for none; "drop_caches" says whether this process may flush the page cache.
    """
    left_by_cgroup = cgroup.free_memory_bytes()
    shared_memory = Path("/dev/shm")
    free_shared_mib = 0.0  # without such a folder
    if shared_memory.is_dir():
        free_shared_mib = psutil.disk_usage(str(shared_memory)).free / 2**20
    return {
        "memory_gib": psutil.virtual_memory().available / GIB,  # of the machine, whatever this process may use
        "cgroup_memory_gib": None if left_by_cgroup is None else left_by_cgroup / GIB,
        "cgroup_cpus": cgroup.cpus(),
        "shm_mib": free_shared_mib,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "logs": _disk(Path(job.trials.logdir)),
        "checkpoints": _disk(Path(job.checkpoints.folder or job.trials.logdir)),
        "drop_caches": os.access(provenance.drop_caches_file(), os.W_OK),  # of Linux, for the page cache
    }


def _network_devices() -> JsonObject:
    """Return this node's network interfaces and InfiniBand ports, and what these can do, by the facts' names."""
    return {
        "interfaces": _interfaces(),
        "infiniband": _infiniband(Path("/sys/class/infiniband")),
        "can_open_infiniband": _can_open_one(Path("/dev/infiniband").glob("uverbs*")),
        "peermem": _peermem(Path("/sys/module"), platform.release(), cuda.kernel_module_text()),
    }


def _topology() -> JsonObject:
    """Return the links between the GPUs as "topology"; if nvidia-smi does not show them, None and "topology_error"."""
    try:
        return {"topology": nvidia_smi.topology(), "topology_error": ""}
    except ValueError as error:
        return {"topology": None, "topology_error": str(error)}


def _start_cuda_and_nccl(job: env.Job, node: int) -> JsonObject:
    """Start CUDA and NCCL in the environment that the ranks of this node will have; return facts on these starts.

    Args:
        job: Settings of the training job. On CPUs nothing is started.
        node: Number of this node in HOSTS, from 0.

    Returns:
        Facts by name: the results of both starts, and what may explain a failure, such as NCCL's settings. Empty for a
        job on CPUs.
    """
    if job.cluster.device != "gpu":
        return {}
    # An NCCL_SOCKET_IFNAME that the user has set comes before the launcher's.
    environ = network.nccl_settings(job.cluster, node) | env.of_ranks(job)
    settings_files = (NCCL_CONF, Path("~/.nccl.conf").expanduser())
    return {
        "cuda_start": cuda.try_start(environ, job.cluster.dgxngpu),
        "cuda_system": cuda.system(),
        "nccl_start": nccl.try_start(environ),
        "nccl_settings": {name: environ[name] for name in of_network(environ)},  # the variables that choose a network
        "nccl_files": [str(path) for path in settings_files if path.is_file()],
        "address": _address_for_other_nodes(job, node),  # of this node in the network between the nodes
    }


def _address_for_other_nodes(job: env.Job, node: int) -> str:
    """Return the address at which other nodes of the job reach this node; empty if it is unknown.

    Args:
        job: Settings of the training job. HOSTS has the names of its nodes.
        node: Number of this node in HOSTS, from 0.
    """
    try:
        return network.node_address(job.cluster, node)  # 127.0.0.1 for a job of one node
    except (RunError, IndexError):  # RunError: the name leads to no address
        return ""


def _peermem(modules: Path, kernel: str, driver: str) -> str:
    """Return in words what lets InfiniBand read a GPU's memory (GPUDirect RDMA); empty if nothing does.

    It is a kernel module, "nvidia_peermem" or "nv_peer_mem", or Linux's DMA-BUF together with NVIDIA's open kernel
    module.

    Args:
        modules: The folder /sys/module, with a folder for each loaded kernel module.
        kernel: Release of the Linux kernel, such as "5.15.0-91-generic".
        driver: What NVIDIA's kernel module says about itself; empty if it is not loaded.
    """
    for name in ("nvidia_peermem", "nv_peer_mem"):
        if (modules / name).is_dir():
            return name
    is_open_module = "Open Kernel Module" in driver
    version = re.match(r"(\d+)\.(\d+)", kernel)
    if is_open_module and version is not None:
        major, minor = int(version[1]), int(version[2])
        has_dma_buf = (major, minor) >= DMA_BUF_KERNEL
        if has_dma_buf:
            return f"DMA-BUF of kernel {version[0]} and NVIDIA's open kernel module"
    return ""


def _can_open_one(paths: Iterable[Path]) -> bool:
    """Return whether this process may read and write at least one of some devices; False if there are none.

    Args:
        paths: Paths of the device files.
    """
    return any(os.access(path, os.R_OK | os.W_OK) for path in paths)


def _try_import(name: str) -> _ImportFailure:
    """Import a package in a child process, and return why that failed and what to do.

    If the import raises an error, the advice says what to install. If a broken library kills or hangs the child, the
    advice is a command that shows where.

    Args:
        name: Name of the module, such as "nvidia.dali.fn".

    Returns:
        (error, fix), both texts; both are empty if the import worked.
    """
    command = [sys.executable, "-c", f"import {name}"]
    # If Python hangs, `timeout` ends it by ABRT. At this signal faulthandler prints the traceback, as at SEGV and ILL.
    show_where = f"timeout -s ABRT {six_digits(IMPORT_S)} python -X faulthandler -c 'import {name}' shows where"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        return _ImportFailure(f"not done in {six_digits(IMPORT_S)} s", show_where)
    if done.returncode < 0:
        return _ImportFailure(f"ended by signal {-done.returncode}", show_where)
    if done.returncode > 0:
        _, _, last_line = done.stderr.strip().rpartition("\n")  # the error, below the traceback
        return _ImportFailure(last_line, install_advice(last_line))
    return _ImportFailure("", "")


# A shared library in the error of an import: "libgcc_s.so.1: cannot open ..." has the name libgcc_s and the version 1.
_LIBRARY_IN_ERROR = re.compile(
    r"""
    (?P<file>
        (?P<name> lib [\w.+-]+? )
        \.so
        (?: \.(?P<version>\d+) )?  # only the first number after .so
        [\d.]*
    ):
    """,
    re.VERBOSE,
)


def install_advice(error: str) -> str:
    """Return a sentence on how to install what an import could not find.

    For "libGL.so.1: cannot open shared object file" it is "apt-get install libgl1, or by dnf, yum or zypper
    'libGL.so.1()(64bit)'".

    Args:
        error: The message of the import's error. If it names no shared library, the advice is to install the project's
            own packages.
    """
    library = _LIBRARY_IN_ERROR.search(error)
    if library is None:
        return "launch/setup.sh run installs the packages of locks/run.lock"
    debian_package = _debian_package(library["name"], library["version"] or "")
    return f"apt-get install {debian_package}, or by dnf, yum or zypper '{library['file']}()(64bit)'"


def _debian_package(library: str, version: str) -> str:
    """Return the Debian package that has a shared library, by Debian's policy, section 8.1.

    For libgcc_s.so.1 it is libgcc-s1. For libfoo2.so.3, whose name ends with a digit, it is libfoo2-3.

    Args:
        library: Name of the library without its version, such as "libgcc_s".
        version: First number after ".so", such as "1"; empty if there is none.
    """
    package = library.lower().replace("_", "-")
    if package[-1].isdigit():
        return f"{package}-{version}"
    return f"{package}{version}"


def cores_by_launcher(job: env.Job) -> list[list[int]]:
    """Return for each local rank the CPU cores that the launcher, launch/bind.sh, would give it.

    Call this in a process that is not bound to the cores of one rank: only cores that this process may use are
    returned.

    Args:
        job: Settings of the training job. RANK_NUMA has the number of a NUMA node for each rank, such as "0,0,1,1";
            without it each rank may use all cores of this process.

    Returns:
        A list of core numbers for each rank. If RANK_NUMA has too few numbers, the last ranks are missing.
    """
    own_cores = provenance.own_cores()
    if not job.cluster.rank_numa:
        return [own_cores] * job.cluster.dgxngpu
    cores_of_nodes = _numa()  # {"node0": "0-15,32-47"}
    numbers = job.cluster.rank_numa.split(",")[: job.cluster.dgxngpu]
    return [_cores_of_numa_node(number, cores_of_nodes, own_cores) for number in numbers]


def _cores_of_numa_node(number: str, cores_of_nodes: dict[str, str], own_cores: list[int]) -> list[int]:
    """Return those of some CPU cores that belong to a NUMA node, sorted.

    A container or a batch job may have been given only some of a node's cores.

    Args:
        number: Number of the NUMA node as text, such as "1".
        cores_of_nodes: Cores of each NUMA node as Linux lists them: {"node0": "0-15,32-47"}.
        own_cores: Numbers of the cores that this process may use.

    Returns:
        Core numbers; empty if there is no such NUMA node, or if this process may use none of its cores.
    """
    cpu_list = cores_of_nodes.get(f"node{number}", "")  # "0-15,32-47"
    if not cpu_list:  # there is no such NUMA node
        return []
    return sorted(nvidia_smi.cpu_list(cpu_list) & set(own_cores))


def _libraries() -> dict[str, str]:
    """Load each library in CUDA_LIBRARIES into this process, and return what came of it.

    Returns:
        "loads" or "error: REASON" by the library's file name. NCCL and cuDNN have their version in place of "loads", as
        in {"libnccl.so.2": "22105"}.
    """
    answers = {}
    for name in CUDA_LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            answers[name] = _version_if_known(name, library) or "loads"
        except (OSError, AttributeError) as error:
            answers[name] = f"error: {error}"
    return answers


def _version_if_known(name: str, library: ctypes.CDLL) -> str:
    """Return the version of NCCL or cuDNN as its own function gives it, such as "22105"; empty for another library.

    Args:
        name: File name of the library, such as "libnccl.so.2".
        library: The loaded library.

    Raises:
        AttributeError: The library lacks the function that gives its version.
    """
    if name.startswith("libnccl"):
        version = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(version))
        return str(version.value)
    if name.startswith("libcudnn"):
        library.cudnnGetVersion.restype = ctypes.c_size_t
        return str(library.cudnnGetVersion())
    return ""


def _numa() -> dict[str, str]:
    """Return the cores of each NUMA node as Linux lists them: {"node0": "0-15,32-47"}.

    Nodes without cores are left out. They have memory alone, as that of a GPU on POWER9.
    """
    files = sorted(NUMA_NODES.glob("node[0-9]*/cpulist"))
    cores_of_nodes = {file.parent.name: file.read_text().strip() for file in files}
    return {node: cores for node, cores in cores_of_nodes.items() if cores}


def _disk(folder: Path) -> JsonObject:
    """Return the free space for a folder, and whether this user may write there.

    If the folder does not exist yet, the nearest existing path above it is looked at.

    Args:
        folder: The folder, which need not exist.

    Returns:
        Facts such as {"folder": "results", "free_gib": 412.3, "writable": True}.
    """
    wanted = folder.absolute()
    nearest = next(path for path in (wanted, *wanted.parents) if path.exists())
    return {
        "folder": str(folder),
        "free_gib": shutil.disk_usage(nearest).free / GIB,
        "writable": nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
    }


def _interfaces() -> dict[str, str]:
    """Return the network interfaces that are up and have an IPv4 address, without the loopback.

    Returns:
        The first address and the speed by the interface's name, as {"eth0": "10.0.0.1 10000 Mbit/s"}. The speed is left
        out if the driver does not report one.
    """
    addresses_by_name = psutil.net_if_addrs()
    interfaces = {}
    for name, stats in psutil.net_if_stats().items():
        is_loopback = name == "lo"
        ipv4 = [entry.address for entry in addresses_by_name.get(name, ()) if entry.family == socket.AF_INET]
        if stats.isup and ipv4 and not is_loopback:
            speed = f" {stats.speed} Mbit/s" if stats.speed else ""  # 0: the driver does not report one
            interfaces[name] = f"{ipv4[0]}{speed}"
    return interfaces


def _infiniband(root: Path) -> dict[str, str]:
    """Return the state and the rate of each InfiniBand port of this node, by the port's name.

    Args:
        root: The folder in which Linux describes the ports, /sys/class/infiniband. It may be missing.

    Returns:
        States such as {"mlx5_0:1": "ACTIVE 100 Gb/sec (4X EDR)"}; empty without ports. A port of Ethernet (RoCE) has ",
        Ethernet" at the end. A port that cannot be read has the error: "unreadable (Permission denied)".
    """
    state_of_ports = {}
    for port in sorted(root.glob("*/ports/*")):  # folders such as mlx5_0/ports/1
        device = port.parts[-3]
        name = f"{device}:{port.name}"
        try:
            state_of_ports[name] = _state_of_port(port)
        except OSError as error:
            state_of_ports[name] = f"unreadable ({error.strerror})"
    return state_of_ports


def _state_of_port(port: Path) -> str:
    """Return the state and the rate of an InfiniBand port, such as "ACTIVE 100 Gb/sec (4X EDR)".

    A port of Ethernet (RoCE) has ", Ethernet" at the end.

    Args:
        port: Folder of the port, such as /sys/class/infiniband/mlx5_0/ports/1.

    Raises:
        OSError: A file of the folder cannot be read.
    """
    _, _, state = (port / "state").read_text().partition(":")  # the file has "4: ACTIVE"
    rate = (port / "rate").read_text()
    words = f"{state.strip()} {rate.strip()}"
    link_layer = port / "link_layer"
    if link_layer.is_file() and link_layer.read_text().strip() == "Ethernet":
        words += ETHERNET
    return words


def _can_have_embedded_set(cache: Path) -> bool:
    """Return whether a folder holds a data set already, or this user may make one in it.

    Args:
        cache: The folder of the embedded data sets, DATA_CACHE, which need not exist.
    """
    may_list = cache.is_dir() and os.access(cache, os.R_OK | os.X_OK)
    holds_a_set = may_list and any(entry.is_dir() for entry in cache.iterdir())
    may_write: bool = _disk(cache)["writable"]
    return holds_a_set or may_write


def data_facts(job: env.Job, *, has_packages: bool) -> JsonObject | None:
    """Return facts on the training and the validation part of the job's data set; None if there is none to examine.

    Facts are {"train": {"samples": 1281167, "notes": [...], ...}, "val": {...}}. A part that cannot be read has only an
    "error" that says why.

    Args:
        job: Settings of the training job: the folder of the data set (DATADIR), which may be empty, and whether the
            data is synthetic.
        has_packages: Whether Paddle and DALI, which read the data, can be imported on this machine.
    """
    if not job.data.folder:
        # A run without a folder makes a small data set of this project, the embedded set, unless it is there already.
        # Even a run on synthetic data does so.
        if _can_have_embedded_set(Path(job.data.embedded_in)):
            return None
        return {"train": {"error": f"{job.data.embedded_in}: the embedded data set cannot be made there: {SET_CACHE}"}}
    if job.data.is_synthetic:  # the folder is not read
        return None
    if not has_packages:
        return {"train": {"error": f"{job.data.folder}: is not looked at without Paddle and DALI"}}
    data_check = importlib.import_module("harness.data_check")  # not at the top, because it imports these packages
    facts: JsonObject = data_check.describe_data_set(job)
    return facts
