"""Says before a run what will fail in it: `python -m harness.doctor [--json]`, alone or by mpirun over all nodes.

Each node's first rank looks at its node (`probe`), rank 0 judges what all of them found (`judge`) and prints it.
The job is the environment's, as for a run.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import hashlib
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from harness import env, nvidia, provenance
from harness.caches import DROP

OK, WARNING, FATAL = "ok", "warning", "fatal"
GIB = 2**30

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86)
# CUDA 11.8 release notes, table 3: its own driver, and the oldest that runs it by minor-version compatibility.
DRIVER, DRIVER_LEAST = (520, 61, 5), (450, 80, 2)
NCCL_LEAST = 20800  # 2.8; locks/cuda.lock has 2.21.5
CUDA_LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.11.0",
    "libcublas.so.11",
    "libcublasLt.so.11",
    "libcudnn.so.8",
    "libnccl.so.2",
    "libcufft.so.10",
    "libcurand.so.10",
    "libcusolver.so.11",
    "libcusparse.so.11",
)
SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
OPEN_FILES = 4096
CLOCK_S = 0.5
LISTS = ("{}_list.txt", "{}.txt", "{}.list")  # ImageNet's, and those that PaddleSeg's tools write
LISTING_S = 2.0  # for comparing each list with the folders of a large data set: all is to be said within 10 s
FOREIGN_MIB = 500  # memory in use on a GPU before a run that somebody else must hold


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check."""

    check: str
    status: str  # ok | warning | fatal
    found: str
    wanted: str
    fix: str  # what to do; empty if ok


# ---- looking at a node


def probe(job: env.Job) -> dict[str, Any]:
    """Facts of this node, without judgement."""
    with nvidia.opened() as (handles, absence):
        gpus = [nvidia.describe(handle) for handle in handles]
    try:
        topology, topology_error = nvidia.topology(), ""
    except ValueError as error:
        topology, topology_error = None, str(error)
    source = provenance.source(job.source_commit, job.image_digest)
    return {
        "host": socket.gethostname(),
        "gpus": gpus,
        "gpu_absence": absence,
        "topology": topology,
        "topology_error": topology_error,
        "libraries": _libraries() if job.device == "gpu" else {},
        "source": source,
        "code_sha256": _code_hash(),
        "cores": sorted(os.sched_getaffinity(0)),
        "numa": _numa(),
        "memory_gib": psutil.virtual_memory().available / GIB,
        "shm_mib": psutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").is_dir() else 0.0,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "logs": _disk(Path(job.logdir)),
        "checkpoints": _disk(Path(job.checkpoint_dir or job.logdir)),
        "interfaces": _interfaces(),
        "infiniband": _infiniband(Path("/sys/class/infiniband")),
        "drop_caches": os.access(DROP, os.W_OK),
        "data": _data(Path(job.datadir)) if job.datadir and job.data == "real" else None,
    }


def _libraries() -> dict[str, str]:
    """What each CUDA library says when it is loaded: a version, "loads", or `error: ...`."""
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


def _code_hash() -> str:
    """SHA-256 of the code that ranks run, so that two nodes with one commit and other files are told apart."""
    digest = hashlib.sha256()
    root = provenance.REPOSITORY
    for path in sorted((*root.glob("harness/*.py"), *root.glob("paddle_*/*.py"))):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _numa() -> dict[str, str]:
    """Cores of each NUMA node."""
    files = sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"))
    return {file.parent.name: file.read_text().strip() for file in files}


def _disk(folder: Path) -> dict[str, Any]:
    """Free space where `folder` is or will be made, and whether this user may write there."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return {
        "folder": str(folder),
        "free_gib": shutil.disk_usage(there).free / GIB,
        "writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    }


def _interfaces() -> dict[str, str]:
    """Network interfaces that are up, with address and speed in Mbit/s where the driver says it."""
    up = {}
    stats = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        ips = [a.address for a in addresses if a.family == socket.AF_INET]
        if name != "lo" and ips and stats[name].isup:
            speed = f" {stats[name].speed} Mbit/s" if stats[name].speed else ""
            up[name] = f"{ips[0]}{speed}"
    return up


def _infiniband(root: Path) -> dict[str, str]:
    """State and rate of each port, as "ACTIVE 100 Gb/sec (4X EDR)"."""
    ports = {}
    for port in sorted(root.glob("*/ports/*")):
        try:
            state = (port / "state").read_text().partition(":")[2].strip()
            ports[f"{port.parts[-3]}:{port.name}"] = f"{state} {(port / 'rate').read_text().strip()}"
        except OSError as error:
            ports[f"{port.parts[-3]}:{port.name}"] = f"unreadable ({error.strerror})"
    return ports


def _data(root: Path) -> dict[str, Any]:
    """The lists of a data set against its folders, and samples decoded; without lists, Cityscapes' folders."""
    parts: dict[str, Any] = {}
    for part in ("train", "val"):
        found = [root / name.format(part) for name in LISTS if (root / name.format(part)).is_file()]
        if found:
            content = found[0].read_bytes()
            name, lines = found[0].name, [line.split() for line in content.decode(errors="replace").splitlines()]
        else:
            images = sorted((root / "leftImg8bit" / part).glob("*/*.png"))
            name, lines = f"leftImg8bit/{part}", [[image.relative_to(root).as_posix()] for image in images]
            content = "\n".join(line[0] for line in lines).encode()
        files = [word for line in lines for word in line if not word.isdecimal()]
        if not files:
            parts[part] = {
                "error": f"{root}: names no {part} sample: it has no {LISTS[0].format(part)} or an empty one"
            }
            continue
        absent, looked_at = _absent(root, files)
        samples = dict.fromkeys(files[i] for i in (0, len(files) // 2, -1))
        undecodable = [f"{root / file}: {error}" for file in samples if (error := _decode(root / file))]
        parts[part] = {
            "name": name,
            "samples": sum(bool(line) for line in lines),
            "files": len(files),
            "sha256": hashlib.sha256(content).hexdigest(),
            "looked_at": looked_at,
            "absent": absent,
            "undecodable": "; ".join(undecodable),
        }
    return parts


def _absent(root: Path, files: list[str]) -> tuple[list[str], int]:
    """The first listed files that are not there, and how many were looked at within LISTING_S."""
    present: dict[str, set[str]] = {}
    absent: list[str] = []
    until = time.monotonic() + LISTING_S
    for count, file in enumerate(files):
        folder, _, name = file.rpartition("/")
        if folder not in present:
            if time.monotonic() > until:
                return absent[:3], count
            directory = root / folder
            present[folder] = set(os.listdir(directory)) if directory.is_dir() else set()  # noqa: PTH208
        # Labels of Cityscapes are there in one of two numberings.
        if name not in present[folder] and _other_label(name) not in present[folder]:
            absent.append(file)
    return absent[:3], len(files)


def _other_label(name: str) -> str:
    return name.replace("_labelTrainIds.", "_labelIds.")


def _decode(path: Path) -> str:
    """Why an image cannot be decoded; empty if it can."""
    try:
        with Image.open(path if path.exists() else path.with_name(_other_label(path.name))) as image:
            image.load()
    except (OSError, SyntaxError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


# ---- judging


def _result(check: str, good: bool, found: str, wanted: str, fix: str, *, bad: str = FATAL) -> Result:
    return Result(check=check, status=OK if good else bad, found=found, wanted=wanted, fix="" if good else fix)


def judge_node(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    """Checks of one node."""
    if job.device == "gpu":
        yield from _judge_gpus(facts, job)
        yield from _judge_libraries(facts["libraries"])
    yield from _judge_machine(facts, job)
    yield from _judge_network(facts, job)
    yield from _judge_data(facts, job)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _judge_gpus(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    gpus = facts["gpus"]
    found = f"{len(gpus)}" + (f" ({facts['gpu_absence']})" if facts["gpu_absence"] else "")
    yield _result(
        "gpu.count",
        len(gpus) >= job.dgxngpu,
        found,
        f"at least DGXNGPU={job.dgxngpu}",
        "install the NVIDIA driver, start the container with --gpus all, or set DGXNGPU or CUDA_VISIBLE_DEVICES",
    )
    for gpu in gpus[: job.dgxngpu]:
        yield from _judge_gpu(f"GPU{gpu['index']}", gpu)
    topology = facts["topology"]
    if not gpus:
        return
    if topology is None:
        yield _result(
            "gpu.topology",
            False,
            facts["topology_error"] or "nvidia-smi topo -m gives none",
            "a matrix of links",
            "put nvidia-smi into the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
            bad=WARNING,
        )
        return
    yield from _judge_topology(topology, facts, job)


def _judge_gpu(name: str, gpu: dict[str, Any]) -> Iterator[Result]:
    cc = gpu["capability"]
    exact = cc in GPU_CODE
    runs = [code for code in GPU_CODE if cc is not None and code // 10 == cc // 10 and code <= cc]
    yield Result(
        check="gpu.compute_capability",
        status=OK if exact else WARNING if runs else FATAL,
        found=f"{name} {gpu['name']}: {'unknown' if cc is None else cc}",
        wanted="one of " + ", ".join(map(str, GPU_CODE)),
        fix=""
        if exact
        else f"it runs the code made for {max(runs)}: publish no figure as this GPU's best"
        if runs
        else "this Paddle has no code for it: use V100 (70), T4 (75) or A100 (80); H100 (90) needs another Paddle",
    )
    driver = _version(gpu["driver"] or "")
    yield Result(
        check="gpu.driver",
        status=OK if driver >= DRIVER else WARNING if driver >= DRIVER_LEAST else FATAL,
        found=gpu["driver"] or "unknown",
        wanted="520.61.05 (CUDA 11.8), at least 450.80.02",
        fix="" if driver >= DRIVER else "upgrade the driver to 520.61.05 or later",
    )
    errors, corrected = gpu["ecc_uncorrected"], gpu["ecc_corrected"]
    yield Result(
        check="gpu.ecc",
        status=OK if errors == 0 and not corrected else FATAL if errors else WARNING,
        found=f"{name}: " + ("unknown" if errors is None else f"{errors} uncorrected, {corrected} corrected"),
        wanted="ECC on, no errors since the driver was loaded",
        fix=""
        if errors == 0 and not corrected
        else "ECC is off or not there: nvidia-smi -e 1"
        if errors is None
        else "reset the GPU (nvidia-smi --gpu-reset) or replace it",
    )
    yield _result(
        "gpu.throttling",
        not gpu["throttle"],
        f"{name}: {', '.join(gpu['throttle']) or 'none'}",
        "none before the run",
        "look at power limit, cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
        bad=WARNING,
    )
    others, used = gpu["processes"], gpu["memory_used_mib"]
    # Inside a container NVML lists no processes of others: the memory tells.
    foreign = bool(others) or (used is not None and used > FOREIGN_MIB)
    yield _result(
        "gpu.processes",
        not foreign and others is not None,
        f"{name}: pids {', '.join(map(str, others)) or 'none' if others is not None else 'unknown'}, {used} MiB in use",
        f"no process, under {FOREIGN_MIB} MiB in use",
        "end the other processes on this GPU",
        bad=FATAL if foreign else WARNING,
    )
    yield _result(
        "gpu.persistence",
        gpu["persistence"] == 1,
        f"{name}: " + {1: "on", 0: "off"}.get(gpu["persistence"], "unknown"),
        "on",
        "nvidia-smi -pm 1, or start nvidia-persistenced: else the first step pays for loading the driver",
        bad=WARNING,
    )


def _judge_topology(topology: nvidia.Topology, facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    names = {f"GPU{gpu['index']}" for gpu in facts["gpus"][: job.dgxngpu]}
    rows = [row for row in topology.gpus if topology.devices[row] in names]
    pairs = [topology.links[a][b] for a in rows for b in rows if a < b]
    counts = ", ".join(f"{pairs.count(kind)} x {kind}" for kind in sorted(set(pairs))) or "one GPU"
    nvlinked = {a for a in rows for b in rows if topology.links[a][b].startswith("NV")}
    alone = [topology.devices[a] for a in rows if nvlinked and a not in nvlinked]
    yield _result(
        "gpu.topology",
        not alone,
        f"pairs: {counts}" + (f"; without NVLink: {', '.join(alone)}" if alone else ""),
        "NVLink to every GPU, or to none",
        "look at nvidia-smi nvlink --status: a link is down",
        bad=WARNING,
    )
    allowed = set(facts["cores"])
    far = [
        topology.devices[a]
        for a in rows
        if (cores := topology.cores.get(topology.devices[a])) and not nvidia.cpu_list(cores) & allowed
    ]
    yield _result(
        "cpu.binding",
        not far,
        f"this job may use {_ranges(facts['cores'])}" + (f"; none is next to {', '.join(far)}" if far else ""),
        "cores next to each GPU: " + ", ".join(f"{gpu} {cores}" for gpu, cores in topology.cores.items()),
        "start the job without a binding (docker --cpuset-cpus, srun --cpu-bind=none)",
        bad=WARNING,
    )


def _judge_libraries(libraries: dict[str, str]) -> Iterator[Result]:
    for name, answer in libraries.items():
        good = not answer.startswith("error: ")
        yield _result(
            f"cuda.{name.partition('.')[0]}",
            good,
            answer.removeprefix("error: "),
            "loads",
            "use the image, whose CUDA 11.8 libraries are locks/cuda.lock"
            if name != "libcuda.so.1"
            else "install the NVIDIA driver, or start the container with --gpus all",
        )
        if name.startswith("libnccl") and good:
            version = int(answer)
            yield _result(
                "nccl.version",
                version >= NCCL_LEAST,
                f"{version // 10000}.{version % 10000 // 100}.{version % 100}",
                "2.8 or later (locks/cuda.lock: 2.21.5)",
                "use the image's NCCL",
            )


def _ranges(cores: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _judge_machine(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    cores = len(facts["cores"])
    yield _result(
        "cpu.cores",
        cores >= job.dgxngpu,
        f"{cores} ({_ranges(facts['cores'])}; NUMA {', '.join(facts['numa'].values()) or 'unknown'})",
        f"one for each of {job.dgxngpu} ranks",
        "lower DGXNGPU, or give the job more cores",
        bad=WARNING,
    )
    yield _result(
        "memory.free",
        facts["memory_gib"] >= MEMORY_PER_RANK_GIB * job.dgxngpu,
        f"{facts['memory_gib']:.1f} GiB",
        f"{MEMORY_PER_RANK_GIB} GiB for each of {job.dgxngpu} ranks",
        "end other work on the node, or lower DGXNGPU",
        bad=WARNING,
    )
    yield _result(
        "memory.shared",
        facts["shm_mib"] >= SHM_PER_RANK_MIB * job.dgxngpu,
        f"{facts['shm_mib']:.0f} MiB free in /dev/shm",
        f"{SHM_PER_RANK_MIB} MiB for each of {job.dgxngpu} ranks",
        "docker run --ipc=host, or a larger --shm-size",
        bad=FATAL if facts["shm_mib"] < 16 * job.dgxngpu else WARNING,
    )
    files, locked = facts["open_files"], facts["locked_memory"]
    yield _result(
        "limits.open_files",
        files == resource.RLIM_INFINITY or files >= OPEN_FILES,
        str(files),
        f"{OPEN_FILES} or more",
        f"ulimit -n {OPEN_FILES}, docker run --ulimit nofile={OPEN_FILES}",
        bad=FATAL if files < 256 else WARNING,
    )
    if facts["infiniband"]:
        yield _result(
            "limits.locked_memory",
            locked == resource.RLIM_INFINITY,
            "unlimited" if locked == resource.RLIM_INFINITY else f"{locked // 1024} KiB",
            "unlimited, as InfiniBand pins its buffers",
            "ulimit -l unlimited, docker run --ulimit memlock=-1",
        )
    for name, need in (("logs", LOG_GIB), ("checkpoints", CHECKPOINT_GIB * (job.checkpoint_keep + 1))):
        disk = facts[name]
        yield _result(
            f"disk.{name}",
            disk["writable"] and disk["free_gib"] >= need,
            f"{disk['folder']}: {disk['free_gib']:.1f} GiB free" + ("" if disk["writable"] else ", not writable"),
            f"writable, {need:.2g} GiB free",
            "set LOGDIR to a folder that this user may write, or free the disk"
            if name == "logs"
            else "set CHECKPOINT_DIR to a larger disk, or CHECKPOINT_KEEP to less",
            bad=FATAL if name == "logs" or not disk["writable"] else WARNING,
        )


def _judge_network(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    interfaces, ports = facts["interfaces"], facts["infiniband"]
    yield _result(
        "network.interfaces",
        bool(interfaces) or job.dgxnnodes == 1,
        ", ".join(f"{name} {what}" for name, what in interfaces.items()) or "none up",
        "one that the other nodes reach" if job.dgxnnodes > 1 else "none needed by one node",
        "bring an interface up, docker run --network=host",
    )
    down = [name for name, state in ports.items() if not state.startswith("ACTIVE")]
    many = job.dgxnnodes > 1
    yield _result(
        "network.infiniband",
        not down and (bool(ports) or not many),
        ", ".join(f"{name} {state}" for name, state in ports.items()) or "none",
        "every port ACTIVE" if many or ports else "none needed by one node",
        f"bring {', '.join(down)} up (ibstat), or leave it out by NCCL_IB_HCA"
        if down
        else "without InfiniBand the all-reduce goes over TCP: expect another scaling",
        bad=WARNING,
    )


def _judge_data(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    flush = facts["drop_caches"] or bool(job.cache_cleared)
    yield _result(
        "data.page_cache",
        flush or not job.clear_caches,
        job.cache_cleared or ("can be flushed" if flush else "cannot be flushed by this user"),
        "can be flushed before a timed run" if job.clear_caches else "not asked for: CLEAR_CACHES=0",
        "run as root, let the launcher flush it outside, or set CLEAR_CACHES=0 for a run that is not timed",
        bad=WARNING,
    )
    if facts["data"] is None:
        what = "synthetic" if job.data == "synthetic" else "the embedded digits, made at the first start"
        yield _result("data.lists", True, what, "a data set", "")
        return
    for entry in facts["data"].values():
        if "error" in entry:
            yield _result("data.lists", False, entry["error"], "a list of samples", "set DATADIR to a whole data set")
            continue
        checked = "" if entry["looked_at"] == entry["files"] else f", the first {entry['looked_at']} files looked at"
        absent = f", absent: {', '.join(entry['absent'])}" if entry["absent"] else ""
        yield _result(
            "data.lists",
            not entry["absent"],
            f"{entry['name']}: {entry['samples']} samples{checked}{absent}",
            "every listed file is there",
            "restore the absent files or take them off the list",
        )
        yield _result(
            "data.decode",
            not entry["undecodable"],
            f"{entry['name']}: {entry['undecodable'] or 'first, middle and last sample decoded'}",
            "samples that can be decoded",
            "replace the file",
        )


def judge(nodes: list[dict[str, Any]], job: env.Job) -> list[Result]:
    """All checks: each node's, then what must be the same on all of them."""
    results: list[Result] = []
    for node in nodes:
        for result in judge_node(node, job):
            named = result
            if len(nodes) > 1:
                named = dataclasses.replace(result, found=f"{node['host']}: {result.found}")
            if named not in results:  # eight GPUs have one driver
                results.append(named)
    source = nodes[0]["source"]
    same = {
        "code.commit": ([n["source"]["commit"] for n in nodes], "check out the same commit on every node"),
        "code.files": ([n["code_sha256"][:12] for n in nodes], "copy the same files to every node, or use the image"),
        "code.lock": ([n["source"]["lock_sha256"][:12] for n in nodes], "use the same locks/run.lock on every node"),
        "code.image": ([n["source"]["image_digest"] for n in nodes], "pull the same image on every node"),
    }
    if any(node["data"] for node in nodes):
        lists = [[entry.get("sha256", "")[:12] for entry in (n["data"] or {}).values()] for n in nodes]
        same["data.same"] = ([" ".join(hashes) for hashes in lists], "copy the same list files to every node")
    for check, (values, fix) in same.items():
        distinct = sorted({str(value) for value in values})
        found = (
            distinct[0]
            if len(distinct) == 1
            else ", ".join(f"{n['host']} {v}" for n, v in zip(nodes, values, strict=True))
        )
        results.append(_result(check, len(distinct) == 1, found, f"the same on {len(nodes)} nodes", fix))
    results.append(
        _result(
            "code.clean",
            source["dirty"] is False,
            {True: "differs from the commit", False: "as committed", None: "unknown: no git and no image"}[
                source["dirty"]
            ],
            "as committed",
            "commit the changes: a log of changed code may not be published",
            bad=WARNING,
        )
    )
    return results


# ---- the nodes together


def _judge_mpi(hosts: list[str], offsets_s: list[float], job: env.Job) -> list[Result]:
    """MPI came up over `hosts` (one entry a rank); each node's clock is `offsets_s` ahead of the first one's."""
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    worst = max(offsets_s, key=abs)
    return [
        _result(
            "mpi.ranks",
            len(hosts) == job.world_size,
            ", ".join(f"{host} {count}" for host, count in counts.items()),
            f"DGXNNODES={job.dgxnnodes} x DGXNGPU={job.dgxngpu} ranks",
            "start it by ./run_and_time.sh --check on every node",
        ),
        _result(
            "clock.difference",
            abs(worst) <= CLOCK_S,
            f"at most {abs(worst):.4f} s",
            f"under {CLOCK_S} s between nodes",
            "let chrony or ntpd set the clocks",
            bad=WARNING,
        ),
    ]


def _clock_offset_s(comm: Any, other: int) -> float:
    """Seconds by which rank `other`'s clock is ahead of rank 0's, by the quickest of five questions."""
    best = (float("inf"), 0.0)
    for _ in range(5):
        if comm.Get_rank() == 0:
            before = time.time()
            comm.send(None, dest=other)
            theirs = comm.recv(source=other)
            after = time.time()
            best = min(best, (after - before, theirs - (before + after) / 2))
        elif comm.Get_rank() == other:
            comm.recv(source=0)
            comm.send(time.time(), dest=0)
    return best[1]


def over_mpi(job: env.Job) -> list[Result] | None:
    """Looks at every node of the job; the results on rank 0, None on the others."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.allgather(local.Get_rank() == 0)
    nodes = comm.gather(probe(job) if local.Get_rank() == 0 else None)
    hosts = comm.gather(socket.gethostname())
    offsets = [_clock_offset_s(comm, rank) for rank, leads in enumerate(leaders) if leads and rank]
    if nodes is None or hosts is None:
        return None
    return judge([node for node in nodes if node], job) + _judge_mpi(hosts, [0.0, *offsets], job)


def alone(job: env.Job) -> list[Result]:
    """Looks at this node, and whether mpirun starts ranks on it."""
    started = time.monotonic()
    mpirun = Path(sys.executable).with_name("mpirun")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    script = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2"
    command = [
        str(mpirun),
        *root,
        "-n",
        "2",
        "--map-by",
        ":OVERSUBSCRIBE",
        "--bind-to",
        "none",
        sys.executable,
        "-c",
        script,
    ]
    try:
        done = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        done, said = None, str(error)
    results = judge([probe(job)], job)
    if done is not None:
        try:
            said = done.communicate(timeout=max(1.0, 8 - (time.monotonic() - started)))[1]
        except subprocess.TimeoutExpired:
            done.terminate()
            said = "no answer in 8 s"
    good = done is not None and done.returncode == 0
    found = "2 ranks added a number" if good else " ".join(said.split())[:300]
    results.append(
        _result("mpi.start", good, found, "mpirun starts ranks here", "launch/setup.sh run installs Open MPI")
    )
    if job.dgxnnodes > 1:
        results.append(
            _result(
                "mpi.ranks",
                False,
                "this node alone was looked at",
                f"{job.dgxnnodes} nodes",
                "start it by ./run_and_time.sh --check on every node",
                bad=WARNING,
            )
        )
    return results


def main() -> int:
    """Prints the checks; 0 if none is fatal, 1 if one is, 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="python -m harness.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of {check, status, found, wanted, fix}")
    args = parser.parse_args()
    try:
        job, _ = env.read()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results = over_mpi(job) if env.is_rank() else alone(job)
    if results is None:
        return 0
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False))
    else:
        for result in results:
            line = f"{result.status:8}{result.check:24}{result.found}"
            print(line if result.status == OK else f"{line}\n{'':32}wanted: {result.wanted}\n{'':32}do: {result.fix}")
    return 1 if any(result.status == FATAL for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
