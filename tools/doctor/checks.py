"""The doctor's checks as rows, and those of a node but its GPUs: cores, memory, limits, disks, network, data."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any, NamedTuple

from harness import env
from runlog.verdict import FATAL, WARNING, Verdict, judged

SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
OPEN_FILES = 4096
CLOCK_S = 0.5  # between two nodes
CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image
START = "start it by ./run_and_time.sh --check on every node"


class Row(NamedTuple):
    """What a check wants; `wanted` and `fix` may hold {job.FIELD} and what the check gives beside what it found."""

    bad: str  # the status where it is not so
    wanted: str
    fix: str


ROWS = {
    # ---- of a node's GPUs
    "gpu.count": Row(
        FATAL,
        "at least DGXNGPU={job.dgxngpu}",
        "install the NVIDIA driver, start the container with --gpus all, or set DGXNGPU or CUDA_VISIBLE_DEVICES",
    ),
    "gpu.compute_capability": Row(
        FATAL,
        "one of {codes}",
        "this Paddle has no code for it: use V100 (70), T4 (75) or A100 (80); H100 (90) needs "
        "Paddle's build for CUDA 12: launch/lock.sh cuda12 --index URL, then CUDA=12 launch/setup.sh",
    ),
    "gpu.driver": Row(FATAL, "520.61.05 (CUDA 11.8), at least 450.80.02", "upgrade the driver to 520.61.05 or later"),
    "gpu.ecc": Row(
        WARNING,
        "ECC on, no errors since the driver was loaded",
        "reset the GPU (nvidia-smi --gpu-reset) or replace it",
    ),
    "gpu.throttling": Row(
        WARNING,
        "none before the run",
        "look at power limit, cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
    ),
    "gpu.processes": Row(WARNING, "no process, under {most} MiB in use", "end the other processes on this GPU"),
    "gpu.persistence": Row(
        WARNING,
        "on",
        "nvidia-smi -pm 1, or start nvidia-persistenced: else the first step pays for loading the driver",
    ),
    "gpu.memory": Row(WARNING, "{need}", "lower BATCHSIZE, set {limit} to less MiB, or STRATEGY=gradient_merge=N"),
    "gpu.topology": Row(
        WARNING, "NVLink to every GPU, or to none", "look at nvidia-smi nvlink --status: a link is down"
    ),
    "cpu.binding": Row(
        WARNING,
        "cores next to each rank's GPU: {near}",
        "set RANK_NUMA={numa}, or to nothing and start the job without a binding (docker --cpuset-cpus, srun "
        "--cpu-bind=none)",
    ),
    # ---- libraries
    "cuda": Row(FATAL, "loads", "use the image, whose CUDA 11.8 libraries are locks/cuda.lock"),
    "nccl.version": Row(FATAL, "2.8 or later (locks/cuda.lock: 2.21.5)", "use the image's NCCL"),
    "python": Row(FATAL, "can be imported", "{package}"),
    # ---- of a node
    "cpu.cores": Row(WARNING, "one for each of {job.dgxngpu} ranks", "lower DGXNGPU, or give the job more cores"),
    "memory.free": Row(
        WARNING,
        f"{MEMORY_PER_RANK_GIB} GiB for each of {{job.dgxngpu}} ranks",
        "end other work on the node, or lower DGXNGPU",
    ),
    "memory.shared": Row(
        WARNING,
        f"{SHM_PER_RANK_MIB} MiB for each of {{job.dgxngpu}} ranks",
        "docker run --ipc=host, or a larger --shm-size",
    ),
    "limits.open_files": Row(
        WARNING, f"{OPEN_FILES} or more", f"ulimit -n {OPEN_FILES}, docker run --ulimit nofile={OPEN_FILES}"
    ),
    "limits.locked_memory": Row(
        FATAL, "unlimited, as InfiniBand pins its buffers", "ulimit -l unlimited, docker run --ulimit memlock=-1"
    ),
    "disk.logs": Row(
        FATAL,
        "writable, {need:.2g} GiB free",
        "set LOGDIR to a folder that this user may write, or free the disk",
    ),
    "disk.checkpoints": Row(
        WARNING,
        "writable, {need:.2g} GiB free",
        "set CHECKPOINT_DIR to a larger disk, or CHECKPOINT_KEEP to less",
    ),
    "network.interfaces": Row(FATAL, "{wanted}", "bring an interface up, docker run --network=host"),
    "network.name": Row(
        FATAL,
        "the host's own name resolves",
        "add it to /etc/hosts, with 127.0.0.1 if the job has one node (docker run --add-host)",
    ),
    "network.infiniband": Row(
        WARNING, "{wanted}", "without InfiniBand the all-reduce goes over TCP: expect another scaling"
    ),
    # ---- of the data set
    "data.page_cache": Row(
        WARNING,
        "{wanted}",
        "run as root, let the launcher flush it outside, or set CLEAR_CACHES=0 for a run that is not timed",
    ),
    "data.lists": Row(FATAL, "every listed file is there", "restore the absent files or take them off the list"),
    "data.decode": Row(FATAL, "samples that can be decoded", "replace the file"),
    # ---- between nodes
    "code.commit": Row(FATAL, "the same on {nodes} nodes", "check out the same commit on every node"),
    "code.files": Row(FATAL, "the same on {nodes} nodes", "copy the same files to every node, or use the image"),
    "code.lock": Row(FATAL, "the same on {nodes} nodes", "use the same locks/run.lock on every node"),
    "code.image": Row(FATAL, "the same on {nodes} nodes", "pull the same image on every node"),
    "code.clean": Row(WARNING, "as committed", "commit the changes: a log of changed code may not be published"),
    "data.same": Row(FATAL, "the same on {nodes} nodes", "copy the same list files to every node"),
    "mpi.ranks": Row(FATAL, "DGXNNODES={job.dgxnnodes} x DGXNGPU={job.dgxngpu} ranks", START),
    "mpi.start": Row(FATAL, "mpirun starts ranks here", "launch/setup.sh run installs Open MPI"),
    "clock.difference": Row(WARNING, f"under {CLOCK_S} s between nodes", "let chrony or ntpd set the clocks"),
}


def row(job: env.Job, check: str, good: bool, found: str, *, bad: str = "", fix: str = "", **given: Any) -> Verdict:
    """A check's verdict by its row, or its group's; `bad` and `fix` where this fault has others."""
    of = ROWS.get(check) or ROWS[check.partition(".")[0]]
    wanted, advice = (text.format(job=job, **given) for text in (of.wanted, fix or of.fix))
    return judged(check, good, found, wanted, advice, bad=bad or of.bad)


def ranges(cores: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def judge_machine(facts: dict[str, Any], job: env.Job) -> Iterator[Verdict]:
    """Whether the node has cores, memory, limits and disks for the job's ranks."""
    ranks, numa = job.dgxngpu, ", ".join(facts["numa"].values()) or "unknown"
    cores = sorted(set().union(*facts["rank_cores"]))
    yield row(job, "cpu.cores", len(cores) >= ranks, f"{len(cores)} ({ranges(cores)}; NUMA {numa})")
    free_gib, shared_mib = facts["memory_gib"], facts["shm_mib"]
    yield row(job, "memory.free", free_gib >= MEMORY_PER_RANK_GIB * ranks, f"{free_gib:.1f} GiB")
    enough, bad = shared_mib >= SHM_PER_RANK_MIB * ranks, FATAL if shared_mib < 16 * ranks else WARNING
    yield row(job, "memory.shared", enough, f"{shared_mib:.0f} MiB free in /dev/shm", bad=bad)
    files, locked, unlimited = facts["open_files"], facts["locked_memory"], resource.RLIM_INFINITY
    enough, bad = files == unlimited or files >= OPEN_FILES, FATAL if files < 256 else WARNING
    yield row(job, "limits.open_files", enough, str(files), bad=bad)
    if facts["infiniband"]:
        pinned = "unlimited" if locked == unlimited else f"{locked // 1024} KiB"
        yield row(job, "limits.locked_memory", locked == unlimited, pinned)
    for name, need in (("logs", LOG_GIB), ("checkpoints", CHECKPOINT_GIB * (job.checkpoint_keep + 1))):
        disk = facts[name]
        found = f"{disk['folder']}: {disk['free_gib']:.1f} GiB free" + ("" if disk["writable"] else ", not writable")
        good, bad = disk["writable"] and disk["free_gib"] >= need, "" if disk["writable"] else FATAL
        yield row(job, f"disk.{name}", good, found, bad=bad, need=need)


def judge_network(facts: dict[str, Any], job: env.Job) -> Iterator[Verdict]:
    """Whether the node reaches others, where the job has any."""
    interfaces, ports, many = facts["interfaces"], facts["infiniband"], job.dgxnnodes > 1
    found = ", ".join(f"{name} {what}" for name, what in interfaces.items()) or "none up"
    wanted = "one that the other nodes reach" if many else "none needed by one node"
    yield row(job, "network.interfaces", bool(interfaces) or not many, found, wanted=wanted)
    if job.device == "cpu" and job.world_size > 1:  # by gloo
        own = facts["own_addresses"]
        yield row(job, "network.name", bool(own), f"{facts['host']}: {own or 'no address'}")
    down = [name for name, state in ports.items() if not state.startswith("ACTIVE")]
    found = ", ".join(f"{name} {state}" for name, state in ports.items()) or "none"
    wanted = "every port ACTIVE" if many or ports else "none needed by one node"
    fix = f"bring {', '.join(down)} up (ibstat), or leave it out by NCCL_IB_HCA" if down else ""
    yield row(job, "network.infiniband", not down and (bool(ports) or not many), found, fix=fix, wanted=wanted)


def judge_data(facts: dict[str, Any], job: env.Job) -> Iterator[Verdict]:
    """Whether the data set is whole, and the page cache can be flushed."""
    flush = facts["drop_caches"] or bool(job.cache_cleared)
    found = job.cache_cleared or ("can be flushed" if flush else "cannot be flushed by this user")
    wanted = "can be flushed before a timed run" if job.clear_caches else "not asked for: CLEAR_CACHES=0"
    yield row(job, "data.page_cache", flush or not job.clear_caches, found, wanted=wanted)
    if facts["data"] is None:
        what = "synthetic" if job.data == "synthetic" else "the embedded digits, made at the first start"
        yield judged("data.lists", True, what, "a data set")
        return
    for entry in facts["data"].values():
        if "error" in entry:
            yield row(job, "data.lists", False, entry["error"], fix="set DATADIR to a whole data set")
            continue
        checked = "" if entry["looked_at"] == entry["files"] else f", the first {entry['looked_at']} files looked at"
        absent = f", absent: {', '.join(entry['absent'])}" if entry["absent"] else ""
        found = f"{entry['name']}: {entry['samples']} samples{checked}{absent}"
        yield row(job, "data.lists", not entry["absent"], found)
        decoded = entry["undecodable"] or "first, middle and last sample decoded"
        yield row(job, "data.decode", not entry["undecodable"], f"{entry['name']}: {decoded}")
