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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from harness import child, env, network, nvidia, nvidia_smi, provenance
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
NCCL_CONF = Path("/etc/nccl.conf")  # in which NCCL's variables may be set, as in the file of a user
DMA_BUF_KERNEL = (5, 12)  # NVIDIA's GPUDirect RDMA: the first Linux by which InfiniBand reads a GPU through DMA-BUF


def probe(job: env.Job, rank_cores: list[list[int]] | None = None, node: int | None = None) -> JsonObject:
    """Return the facts of this node that the doctor judges, by name.

    `rank_cores` are the cores that each of its ranks may use, if any run; `node` is its number in HOSTS, if that
    is not NODE_RANK. NVML is asked before anything here takes memory of a GPU. It stays open to the end: if
    persistence is off, closing it would unload the driver, and CUDA and nvidia-smi would wait for it anew.
    """
    on_gpu = job.cluster.device == "gpu"
    if node is None:
        node = job.cluster.node_rank
    with contextlib.ExitStack() as opened, ThreadPoolExecutor() as pool:
        handles: list[nvidia.Handle] = []
        absence = child.hanging_call_of_nvml() if on_gpu else ""
        if not absence:
            handles, absence = opened.enter_context(nvidia.opened())
        gpus = [nvidia.gpu_of(handle) for handle in handles]
        # What takes seconds is begun first and read last.
        import_errors = {name: pool.submit(_import_error, module) for name, module in IMPORTED.items()}
        starts = pool.submit(_start_cuda_and_nccl, job, node) if on_gpu else None
        facts = {
            "host": socket.gethostname(),
            "gpus": gpus,
            "gpu_absence": absence,
            **_topology(),
            "libraries": _libraries() if on_gpu else {},
            "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
            "code_sha256": provenance.code_sha256(),
            "rank_cores": rank_cores or _rank_cores(job),
            "numa": _numa(),
            "memory_gib": psutil.virtual_memory().available / GIB,
            "shm_mib": psutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").is_dir() else 0.0,
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            "logs": _disk(Path(job.trials.logdir)),
            "checkpoints": _disk(Path(job.checkpoints.folder or job.trials.logdir)),
            "interfaces": _interfaces(),
            "infiniband": _infiniband(Path("/sys/class/infiniband")),
            "verbs": _can_open_one(Path("/dev/infiniband").glob("uverbs*")),
            "peermem": _peermem(Path("/sys/module"), platform.release(), cuda.kernel_module_text()),
            "drop_caches": os.access(provenance.DROP_CACHES, os.W_OK),
        }
        errors = {name: error.result() for name, error in import_errors.items()}
        facts["data"] = data_facts(job, errors)
        facts["imports"] = {name: (error, package_of(error)) for name, error in errors.items()}
        if starts is not None:
            facts.update(starts.result())
        return facts


def _topology() -> JsonObject:
    """Return how the GPUs are linked, or why nvidia-smi does not say it: `topology` or `topology_error`."""
    try:
        return {"topology": nvidia_smi.topology(), "topology_error": ""}
    except ValueError as error:
        return {"topology": None, "topology_error": str(error)}


def _start_cuda_and_nccl(job: env.Job, node: int) -> JsonObject:
    """Start CUDA and NCCL in the environment that the ranks of this node will have, and return what came of it.

    `node` is this node's number in HOSTS. Beside the results stand NCCL's settings: its variables, the files that set
    more of them, and as "address" this node's address, by which NCCL should meet; empty if HOSTS does not say it.
    """
    environ = network.nccl_settings(job.cluster, node) | env.of_ranks(job)
    try:
        address = network.node_address(job.cluster, node)
    except (RunError, IndexError):  # HOSTS does not say it
        address = ""
    settings_files = (NCCL_CONF, Path("~/.nccl.conf").expanduser())
    return {
        "cuda_start": cuda.start(environ, job.cluster.dgxngpu),
        "cuda_system": cuda.system(),
        "nccl_start": nccl.start(environ),
        "nccl_settings": {name: environ[name] for name in of_network(environ)},
        "nccl_files": [str(path) for path in settings_files if path.is_file()],
        "address": address,
    }


def _peermem(modules: Path, kernel: str, driver: str) -> str:
    """Return what lets InfiniBand read a GPU's memory (GPUDirect RDMA), in words; empty if nothing does.

    That is one of two loaded kernel modules, or DMA-BUF, which takes both a Linux from DMA_BUF_KERNEL on and NVIDIA's
    open kernel module. `modules` is the folder of loaded kernel modules, /sys/module. `kernel` is Linux's release, as
    "5.15.0-91-generic". `driver` is what NVIDIA's kernel module says of itself in /proc.
    """
    for name in ("nvidia_peermem", "nv_peer_mem"):
        if (modules / name).is_dir():
            return name
    version = re.match(r"(\d+)\.(\d+)", kernel)
    has_dma_buf = version is not None and (int(version[1]), int(version[2])) >= DMA_BUF_KERNEL
    if version and has_dma_buf and "Open Kernel Module" in driver:
        return f"DMA-BUF of kernel {version[0]} and NVIDIA's open kernel module"
    return ""


def _can_open_one(paths: Iterable[Path]) -> bool:
    """Return whether this process may read and write one of these devices."""
    return any(os.access(path, os.R_OK | os.W_OK) for path in paths)


def _import_error(name: str) -> str:
    """Import a package in a process of its own, and return why that failed; empty if it did not.

    A library that is missing or broken may end the process by a signal, or hang it for IMPORT_S seconds. Of any other
    failure this is the last line of Python's traceback, as "ImportError: libGL.so.1: cannot open ...".
    """
    command = [sys.executable, "-c", f"import {name}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        return f"not done in {six_digits(IMPORT_S)} s"
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    if done.returncode > 0:
        _, _, last_line = done.stderr.strip().rpartition("\n")
        return last_line
    return ""


def package_of(error: str) -> str:
    """Return how to install what an import missed, by its error.

    "libGL.so.1: cannot open shared object file" names a library of the system. Debian's packages of libraries are named
    by its policy, section 8.1: the library's name, then its version, with a hyphen between if the name ends with a
    digit. So libGL.so.1 is in libgl1, and libfoo2.so.3 would be in libfoo2-3. An RPM provides its libraries by name.
    Any other error is taken for one of a missing Python package.
    """
    missing = re.search(r"(?P<library>(?P<name>lib[\w.+-]+?)\.so(?:\.(?P<version>\d+))?[\d.]*):", error)
    if missing is None:
        return "launch/setup.sh run installs the packages of locks/run.lock"
    debian_package = missing["name"].lower().replace("_", "-")
    if debian_package[-1].isdigit():
        debian_package += "-"
    debian_package += missing["version"] or ""
    return f"apt-get install {debian_package}, or by dnf, yum or zypper '{missing['library']}()(64bit)'"


def own_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def _rank_cores(job: env.Job) -> list[list[int]]:
    """Return the cores that launch/bind.sh would give each local rank; none if its NUMA node is not there."""
    if not job.cluster.rank_numa:
        return [own_cores()] * job.cluster.dgxngpu
    nodes = _numa()
    numbers = job.cluster.rank_numa.split(",")
    cores = []
    for number in numbers[: job.cluster.dgxngpu]:
        text = nodes.get(f"node{number}", "")
        cores.append(sorted(nvidia_smi.cpu_list(text)) if text else [])
    return cores


def _libraries() -> dict[str, str]:
    """Load each CUDA library, and return by its file name what came of it.

    That is the version of NCCL and of cuDNN, as "22105", "loads" of any other, and "error: " with the reason if a
    library does not load or lacks the function that tells its version.
    """
    answers = {}
    for name in CUDA_LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            answers[name] = "loads"
            if name.startswith("libnccl"):
                version = ctypes.c_int()
                library.ncclGetVersion(ctypes.byref(version))
                answers[name] = str(version.value)
            elif name.startswith("libcudnn"):
                library.cudnnGetVersion.restype = ctypes.c_size_t
                answers[name] = str(library.cudnnGetVersion())
        except (OSError, AttributeError) as error:
            answers[name] = f"error: {error}"
    return answers


def _numa() -> dict[str, str]:
    """Return the cores of each NUMA node as Linux lists them: {"node0": "0-15,32-47"}."""
    files = sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"))
    return {file.parent.name: file.read_text().strip() for file in files}


def _disk(folder: Path) -> JsonObject:
    """Return the free space where `folder` is or will be made, and whether this user may write there.

    That is {"folder": "results", "free_gib": 412.3, "writable": True}. A folder that does not exist will be made in the
    nearest of its parents that exists, so that one is looked at.
    """
    wanted = folder.absolute()
    existing = next(path for path in (wanted, *wanted.parents) if path.exists())
    return {
        "folder": str(folder),
        "free_gib": shutil.disk_usage(existing).free / GIB,
        "writable": existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
    }


def _interfaces() -> dict[str, str]:
    """Return the network interfaces that are up and have an IPv4 address, by name: {"eth0": "10.0.0.1 10000 Mbit/s"}.

    The loopback is left out. So is the speed if the driver does not say it: {"eth0": "10.0.0.1"}.
    """
    addresses = psutil.net_if_addrs()
    interfaces = {}
    for name, stats in psutil.net_if_stats().items():
        ipv4 = [entry.address for entry in addresses.get(name, ()) if entry.family == socket.AF_INET]
        if name == "lo" or not ipv4 or not stats.isup:
            continue
        interfaces[name] = ipv4[0]
        if stats.speed:
            interfaces[name] += f" {stats.speed} Mbit/s"
    return interfaces


def _infiniband(root: Path) -> dict[str, str]:
    """Return state and rate of each InfiniBand port under `root`: {"mlx5_0:1": "ACTIVE 100 Gb/sec (4X EDR)"}.

    `root` is /sys/class/infiniband. A port of Ethernet (RoCE) has ", Ethernet" in the end. One that cannot be read has
    the reason instead, as "unreadable (Permission denied)".
    """
    state_of_ports = {}
    for port in sorted(root.glob("*/ports/*")):
        device = port.parts[-3]
        name = f"{device}:{port.name}"
        try:
            _, _, state = (port / "state").read_text().partition(":")  # "4: ACTIVE"
            rate = (port / "rate").read_text()
            words = f"{state.strip()} {rate.strip()}"
            link_layer = port / "link_layer"
            if link_layer.is_file() and link_layer.read_text().strip() == "Ethernet":
                words += ETHERNET
            state_of_ports[name] = words
        except OSError as error:
            state_of_ports[name] = f"unreadable ({error.strerror})"
    return state_of_ports


def data_facts(job: env.Job, import_errors: dict[str, str]) -> JsonObject | None:
    """Return what harness/data_check.py finds of the job's data set, for each of its parts, as {"train": {...}}.

    None if the job reads no data set of the user's. `import_errors` has for each of IMPORTED why it cannot be
    imported, empty if it can: without them the data set is not looked at, and "train" has only an "error" that says so.
    """
    if not job.data.folder or job.data.is_synthetic:
        return None
    if any(import_errors.values()):
        return {"train": {"error": f"{job.data.folder}: is not looked at without Paddle and DALI"}}
    data_check = importlib.import_module("harness.data_check")
    facts: JsonObject = data_check.facts(job)
    return facts
