"""A check by its row of checks.yaml, and those of a node but its GPUs: cores, memory, limits, disks, network, data."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harness import env
from runlog.verdict import FATAL, WARNING, Verdict, judged

SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
OPEN_FILES = 4096
CLOCK_S = 0.5  # between two nodes
CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image
ROWS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def row(job: env.Job, check: str, good: bool, found: str, *, bad: str = "", fix: str = "", **given: Any) -> Verdict:
    """A check's verdict by its row, or its group's; `bad` and `fix` where this fault has others."""
    of = ROWS.get(check) or ROWS[check.partition(".")[0]]
    wanted, advice = (text.format(job=job, **given) for text in (of["wanted"], fix or of["fix"]))
    return judged(check, good, found, wanted, advice, bad=bad or of["bad"])


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
    enough = free_gib >= MEMORY_PER_RANK_GIB * ranks
    yield row(job, "memory.free", enough, f"{free_gib:.1f} GiB", each=MEMORY_PER_RANK_GIB)
    enough, bad = shared_mib >= SHM_PER_RANK_MIB * ranks, FATAL if shared_mib < 16 * ranks else WARNING
    found = f"{shared_mib:.0f} MiB free in /dev/shm"
    yield row(job, "memory.shared", enough, found, bad=bad, each=SHM_PER_RANK_MIB)
    files, locked, unlimited = facts["open_files"], facts["locked_memory"], resource.RLIM_INFINITY
    enough, bad = files == unlimited or files >= OPEN_FILES, FATAL if files < 256 else WARNING
    yield row(job, "limits.open_files", enough, str(files), bad=bad, least=OPEN_FILES)
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
