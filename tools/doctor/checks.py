"""The doctor's checks of a node but its GPUs: cores, memory, limits, disks, network, data; and what a check says."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import env

OK, WARNING, FATAL = "ok", "warning", "fatal"
SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
OPEN_FILES = 4096


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check."""

    check: str
    status: str  # ok | warning | fatal
    found: str
    wanted: str
    fix: str  # what to do; empty if ok


def verdict(check: str, good: bool, found: str, wanted: str, fix: str, *, bad: str = FATAL) -> Result:
    """Ok, or `bad` with what to do."""
    return Result(check=check, status=OK if good else bad, found=found, wanted=wanted, fix="" if good else fix)


def ranges(cores: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def judge_machine(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    """Whether the node has cores, memory, limits and disks for the job's ranks."""
    cores = len(facts["cores"])
    yield verdict(
        "cpu.cores",
        cores >= job.dgxngpu,
        f"{cores} ({ranges(facts['cores'])}; NUMA {', '.join(facts['numa'].values()) or 'unknown'})",
        f"one for each of {job.dgxngpu} ranks",
        "lower DGXNGPU, or give the job more cores",
        bad=WARNING,
    )
    yield verdict(
        "memory.free",
        facts["memory_gib"] >= MEMORY_PER_RANK_GIB * job.dgxngpu,
        f"{facts['memory_gib']:.1f} GiB",
        f"{MEMORY_PER_RANK_GIB} GiB for each of {job.dgxngpu} ranks",
        "end other work on the node, or lower DGXNGPU",
        bad=WARNING,
    )
    yield verdict(
        "memory.shared",
        facts["shm_mib"] >= SHM_PER_RANK_MIB * job.dgxngpu,
        f"{facts['shm_mib']:.0f} MiB free in /dev/shm",
        f"{SHM_PER_RANK_MIB} MiB for each of {job.dgxngpu} ranks",
        "docker run --ipc=host, or a larger --shm-size",
        bad=FATAL if facts["shm_mib"] < 16 * job.dgxngpu else WARNING,
    )
    files, locked = facts["open_files"], facts["locked_memory"]
    yield verdict(
        "limits.open_files",
        files == resource.RLIM_INFINITY or files >= OPEN_FILES,
        str(files),
        f"{OPEN_FILES} or more",
        f"ulimit -n {OPEN_FILES}, docker run --ulimit nofile={OPEN_FILES}",
        bad=FATAL if files < 256 else WARNING,
    )
    if facts["infiniband"]:
        yield verdict(
            "limits.locked_memory",
            locked == resource.RLIM_INFINITY,
            "unlimited" if locked == resource.RLIM_INFINITY else f"{locked // 1024} KiB",
            "unlimited, as InfiniBand pins its buffers",
            "ulimit -l unlimited, docker run --ulimit memlock=-1",
        )
    for name, need in (("logs", LOG_GIB), ("checkpoints", CHECKPOINT_GIB * (job.checkpoint_keep + 1))):
        disk = facts[name]
        yield verdict(
            f"disk.{name}",
            disk["writable"] and disk["free_gib"] >= need,
            f"{disk['folder']}: {disk['free_gib']:.1f} GiB free" + ("" if disk["writable"] else ", not writable"),
            f"writable, {need:.2g} GiB free",
            "set LOGDIR to a folder that this user may write, or free the disk"
            if name == "logs"
            else "set CHECKPOINT_DIR to a larger disk, or CHECKPOINT_KEEP to less",
            bad=FATAL if name == "logs" or not disk["writable"] else WARNING,
        )


def judge_network(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    """Whether the node reaches others, where the job has any."""
    interfaces, ports = facts["interfaces"], facts["infiniband"]
    yield verdict(
        "network.interfaces",
        bool(interfaces) or job.dgxnnodes == 1,
        ", ".join(f"{name} {what}" for name, what in interfaces.items()) or "none up",
        "one that the other nodes reach" if job.dgxnnodes > 1 else "none needed by one node",
        "bring an interface up, docker run --network=host",
    )
    down = [name for name, state in ports.items() if not state.startswith("ACTIVE")]
    many = job.dgxnnodes > 1
    yield verdict(
        "network.infiniband",
        not down and (bool(ports) or not many),
        ", ".join(f"{name} {state}" for name, state in ports.items()) or "none",
        "every port ACTIVE" if many or ports else "none needed by one node",
        f"bring {', '.join(down)} up (ibstat), or leave it out by NCCL_IB_HCA"
        if down
        else "without InfiniBand the all-reduce goes over TCP: expect another scaling",
        bad=WARNING,
    )


def judge_data(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    """Whether the data set is whole, and the page cache can be flushed."""
    flush = facts["drop_caches"] or bool(job.cache_cleared)
    yield verdict(
        "data.page_cache",
        flush or not job.clear_caches,
        job.cache_cleared or ("can be flushed" if flush else "cannot be flushed by this user"),
        "can be flushed before a timed run" if job.clear_caches else "not asked for: CLEAR_CACHES=0",
        "run as root, let the launcher flush it outside, or set CLEAR_CACHES=0 for a run that is not timed",
        bad=WARNING,
    )
    if facts["data"] is None:
        what = "synthetic" if job.data == "synthetic" else "the embedded digits, made at the first start"
        yield verdict("data.lists", True, what, "a data set", "")
        return
    for entry in facts["data"].values():
        if "error" in entry:
            yield verdict("data.lists", False, entry["error"], "a list of samples", "set DATADIR to a whole data set")
            continue
        checked = "" if entry["looked_at"] == entry["files"] else f", the first {entry['looked_at']} files looked at"
        absent = f", absent: {', '.join(entry['absent'])}" if entry["absent"] else ""
        yield verdict(
            "data.lists",
            not entry["absent"],
            f"{entry['name']}: {entry['samples']} samples{checked}{absent}",
            "every listed file is there",
            "restore the absent files or take them off the list",
        )
        yield verdict(
            "data.decode",
            not entry["undecodable"],
            f"{entry['name']}: {entry['undecodable'] or 'first, middle and last sample decoded'}",
            "samples that can be decoded",
            "replace the file",
        )
