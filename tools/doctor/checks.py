"""The doctor's judgement of what it saw: each node, what must be the same on all, and their ranks and clocks."""

import dataclasses
import resource
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness import env, memory
from runlog.verdict import FATAL, WARNING, Verdict, judged
from tools.doctor import nccl
from tools.doctor.gpu_checks import CAPABILITIES, DRIVERS, GPU_CODE, code_for, judge_gpus, judge_memory, ranges
from tools.doctor.rows import Facts, row
from tools.doctor.start_checks import judge_start as judge_libraries_start

if TYPE_CHECKING:  # a tool that starts no ranks must not start MPI
    from mpi4py import MPI

__all__ = ["CAPABILITIES", "DRIVERS", "GPU_CODE", "code_for", "judge_memory"]

NCCL_LEAST = 20800  # 2.8; locks/cuda.lock has 2.21.5
SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
LEAST_SHM_PER_RANK_MIB = 16
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
OPEN_FILES, LEAST_OPEN_FILES = 4096, 256
CLOCK_S = 0.5  # between two nodes
CLOCK_QUESTIONS = 5


def judge_node(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Checks of one node."""
    if job.cluster.device == "gpu":
        yield from judge_gpus(facts, job)
        yield from _judge_libraries(facts["libraries"], job)
        yield from judge_libraries_start(facts, job)
    for name, (error, package) in facts["imports"].items():
        yield row(job, f"python.{name}", not error, error or "imported", package=package)
    yield from _judge_machine(facts, job)
    yield from _judge_network(facts, job)
    yield from judge_data(facts, job)


def _judge_libraries(libraries: dict[str, str], job: env.Job) -> Iterator[Verdict]:
    """Whether each CUDA library loads; `libraries` has what each of them said."""
    for name, answer in libraries.items():
        short_name, _, _ = name.partition(".")
        loads = not answer.startswith("error: ")
        yield row(job, f"cuda.{short_name}", loads, answer.removeprefix("error: "), capabilities=CAPABILITIES)
        if short_name == "libnccl" and loads:
            version = int(answer)
            found = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
            yield row(job, "nccl.version", version >= NCCL_LEAST, found)


# ---- its cores, memory, limits, disks, network and data


def _judge_machine(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the node has the cores, memory and limits that the job's ranks need, and room for what they write."""
    ranks = job.cluster.dgxngpu
    numa = ", ".join(facts["numa"].values()) or "unknown"
    cores = sorted(set().union(*facts["rank_cores"]))
    yield row(job, "cpu.cores", len(cores) >= ranks, f"{len(cores)} ({ranges(cores)}; NUMA {numa})")

    pinned_gib = memory.input_memory(job).pinned_mib / 1024
    each_gib = MEMORY_PER_RANK_GIB + pinned_gib
    each = f"{each_gib:.1f} GiB"
    if pinned_gib:
        each += f" ({pinned_gib:.1f} pinned by the GPU's decoders)"
    free_gib = facts["memory_gib"]
    yield row(job, "memory.free", free_gib >= each_gib * ranks, f"{free_gib:.1f} GiB", each=each)
    shared_mib = facts["shm_mib"]
    bad = FATAL if shared_mib < LEAST_SHM_PER_RANK_MIB * ranks else WARNING
    found = f"{shared_mib:.0f} MiB free in /dev/shm"
    yield row(job, "memory.shared", shared_mib >= SHM_PER_RANK_MIB * ranks, found, bad=bad, each=SHM_PER_RANK_MIB)

    files = facts["open_files"]
    enough = files == resource.RLIM_INFINITY or files >= OPEN_FILES
    bad = FATAL if files < LEAST_OPEN_FILES else WARNING
    yield row(job, "limits.open_files", enough, str(files), bad=bad, least=OPEN_FILES)
    if facts["infiniband"]:
        locked = facts["locked_memory"]
        is_unlimited = locked == resource.RLIM_INFINITY
        found = "unlimited" if is_unlimited else f"{locked // 1024} KiB"
        bad = FATAL if job.cluster.dgxnnodes > 1 else WARNING  # ranks of one node need no InfiniBand
        yield row(job, "limits.locked_memory", is_unlimited, found, bad=bad)

    yield _judge_disk("disk.logs", facts["logs"], LOG_GIB, job)
    yield _judge_disk("disk.checkpoints", facts["checkpoints"], CHECKPOINT_GIB * (job.checkpoints.keep + 1), job)


def _judge_disk(check: str, disk: Facts, need_gib: float, job: env.Job) -> Verdict:
    """Whether a folder can be written and its disk has `need_gib` left."""
    found = f"{disk['folder']}: {disk['free_gib']:.1f} GiB free"
    if not disk["writable"]:
        return row(job, check, False, f"{found}, not writable", bad=FATAL, need=need_gib)
    return row(job, check, disk["free_gib"] >= need_gib, found, need=need_gib)


def _judge_network(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the node reaches others, where the job has any."""
    several = job.cluster.dgxnnodes > 1
    interfaces = facts["interfaces"]
    found = ", ".join(f"{name} {address}" for name, address in interfaces.items()) or "none up"
    wanted = "one that the other nodes reach" if several else "none needed by one node"
    yield row(job, "network.interfaces", bool(interfaces) or not several, found, wanted=wanted)

    ports: dict[str, str] = facts["infiniband"]
    found = ", ".join(f"{name} {state}" for name, state in ports.items()) or "none"
    if not several:
        yield row(job, "network.infiniband", True, found, wanted="none needed by one node")
        return
    taken = nccl.takes(facts.get("nccl_settings", {}).get("NCCL_IB_HCA", ""), list(ports))
    down = [name for name in taken if not ports[name].startswith("ACTIVE")]
    fix = ""
    if down:
        fix = f"bring {', '.join(down)} up (ibstat), or leave it out by NCCL_IB_HCA"
    elif ports and not facts.get("verbs", True):
        found += ", but no /dev/infiniband/uverbs* can be opened"
        fix = "start the container with --device /dev/infiniband: without it the all-reduce goes over TCP"
    wanted = "every port that NCCL_IB_HCA takes ACTIVE"
    yield row(job, "network.infiniband", bool(ports) and not fix, found, fix=fix, wanted=wanted)

    is_up = len(down) < len(taken)
    if is_up and job.cluster.device == "gpu" and "peermem" in facts:
        yield row(job, "network.peermem", bool(facts["peermem"]), facts["peermem"] or "no module is loaded")


def judge_data(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the data set is whole, and the page cache can be flushed."""
    can_flush = facts["drop_caches"] or bool(job.data.cache_cleared)
    found = job.data.cache_cleared
    if not found:
        found = "can be flushed" if can_flush else "cannot be flushed by this user"
    wanted = "can be flushed before a timed run" if job.data.clear_caches else "not asked for: CLEAR_CACHES=0"
    yield row(job, "data.page_cache", can_flush or not job.data.clear_caches, found, wanted=wanted)

    if facts["data"] is None:
        found = "synthetic" if job.data.kind == "synthetic" else "the embedded digits, made at the first start"
        yield judged("data.lists", True, found, "a data set")
        return
    for part in facts["data"].values():
        yield from _judge_part(part, job)


def _judge_part(part: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the files of `train` or `val` are whole as far as it shows, and some of them can be decoded."""
    if "error" in part:
        yield row(job, "data.lists", False, part["error"], fix="mend what is said, or set DATADIR to a whole data set")
        return
    size_gib = part["passport"]["bytes"] / 2**30
    found = f"{part['name']}: {part['samples']} samples, {size_gib:.3f} GiB"
    yield row(job, "data.lists", True, found)
    for note in part["notes"]:
        yield row(job, "data.content", False, note)
    decoded = part["undecodable"] or f"{part['decoded']} samples decoded"
    yield row(job, "data.decode", not part["undecodable"], f"{part['name']}: {decoded}")


# ---- all nodes


def judge_all(nodes: list[Facts], job: env.Job) -> list[Verdict]:
    """All checks: each node's, then what must be the same on all of them."""
    verdicts: list[Verdict] = []
    for node in nodes:
        for verdict in judge_node(node, job):
            if len(nodes) > 1:
                verdict = dataclasses.replace(verdict, found=f"{node['host']}: {verdict.found}")
            if verdict not in verdicts:  # eight GPUs have one driver
                verdicts.append(verdict)

    for check, values in _same_everywhere(nodes).items():
        alike = len(set(values)) == 1
        found = str(values[0])
        if not alike:
            found = ", ".join(f"{node['host']} {value}" for node, value in zip(nodes, values, strict=True))
        verdicts.append(row(job, check, alike, found, nodes=len(nodes)))

    dirty = nodes[0]["source"]["dirty"]
    found = {True: "differs from the commit", False: "as committed", None: "unknown: no git and no image"}[dirty]
    verdicts.append(row(job, "code.clean", dirty is False, found))
    return verdicts


def _same_everywhere(nodes: list[Facts]) -> dict[str, list[str | None]]:
    """Facts that must be the same on all nodes, by their check: a value for each node."""
    same: dict[str, list[str | None]] = {
        "code.commit": [node["source"]["commit"] for node in nodes],
        "code.files": [node["code_sha256"][:12] for node in nodes],
        "code.lock": [node["source"]["lock_sha256"][:12] for node in nodes],
        "code.image": [node["source"]["image_digest"] for node in nodes],
    }
    if any(node["data"] for node in nodes):
        same["data.same"] = [_digests(node) for node in nodes]
    return same


def _digests(node: Facts) -> str:
    """Digests of the passports of a node's data set, shortened."""
    parts = (node["data"] or {}).values()
    digests = [part["passport"]["sha256"] for part in parts if "passport" in part]
    return " ".join(digest[:12] for digest in digests)


def judge_ranks(hosts: list[str], offsets_s: list[float], job: env.Job) -> list[Verdict]:
    """MPI came up over `hosts` (one entry a rank); each node's clock is `offsets_s` ahead of the first one's."""
    found = ", ".join(f"{host} {hosts.count(host)}" for host in dict.fromkeys(hosts))
    apart_s = max(abs(offset_s) for offset_s in offsets_s)
    return [
        row(job, "mpi.ranks", len(hosts) == job.cluster.world_size, found),
        row(job, "clock.difference", apart_s <= CLOCK_S, f"at most {apart_s:.4f} s", most_s=CLOCK_S),
    ]


def judge_start(error: str, job: env.Job) -> list[Verdict]:
    """Whether mpirun started ranks on this node alone; `error` says why it did not."""
    verdicts = [row(job, "mpi.start", not error, error or "2 ranks added a number")]
    if job.cluster.dgxnnodes > 1:
        verdicts.append(row(job, "mpi.ranks", False, "this node alone was looked at", bad=WARNING))
    return verdicts


def clock_offset_s(comm: "MPI.Comm", other: int) -> float:
    """Seconds by which rank `other`'s clock is ahead of rank 0's, by the quickest of some questions."""
    quickest_s = float("inf")
    offset_s = 0.0
    for _ in range(CLOCK_QUESTIONS):
        if comm.Get_rank() == 0:
            before_s = time.time()
            comm.send(None, dest=other)
            theirs_s = comm.recv(source=other)
            after_s = time.time()
            if after_s - before_s < quickest_s:
                quickest_s = after_s - before_s
                offset_s = theirs_s - (before_s + after_s) / 2
        elif comm.Get_rank() == other:
            comm.recv(source=0)
            comm.send(time.time(), dest=0)
    return offset_s
