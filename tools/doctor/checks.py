"""The doctor's judgement of what it saw: each node, what must be the same on all, and their ranks and clocks."""

import dataclasses
import re
import resource
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from harness import env, memory, nvidia, provenance
from runlog.verdict import FATAL, WARNING, Verdict, judged

Facts = dict[str, Any]  # of a node, by node.probe

# GPU code inside paddlepaddle-gpu 2.6.2: it runs on the same major version at the same minor or a later one.
GPU_CODE = (61, 70, 75, 80, 86) + (90,) * provenance.is_for_cuda_12()
# CUDA's release notes, tables 2 and 3: its own driver, and the oldest that runs it by minor-version compatibility.
DRIVERS = ("530.30.02", "525.60.13") if provenance.is_for_cuda_12() else ("520.61.05", "450.80.02")
NCCL_LEAST = 20800  # 2.8; locks/cuda.lock has 2.21.5
CAPABILITIES = "compute,utility,video"  # of the driver that a container needs: NVIDIA_DRIVER_CAPABILITIES of the image
FOREIGN_MIB = 500  # memory in use on a GPU before a run that somebody else must hold
SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
OPEN_FILES = 4096
CLOCK_S = 0.5  # between two nodes
ROWS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def row(job: env.Job, check: str, good: bool, found: str, *, bad: str = "", fix: str = "", **given: Any) -> Verdict:
    """A check's verdict by its row of checks.yaml, or its group's; `bad` and `fix` where this fault has others."""
    of = ROWS.get(check) or ROWS[check.partition(".")[0]]
    wanted, advice = (text.format(job=job, **given) for text in (of["wanted"], fix or of["fix"]))
    return judged(check, good, found, wanted, advice, bad=bad or of["bad"])


def ranges(cores: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    runs = ([core for _, core in run] for _, run in groupby(enumerate(cores), lambda at: at[1] - at[0]))
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def judge_node(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Checks of one node."""
    if job.cluster.device == "gpu":
        yield from _judge_gpus(facts, job)
        yield from _judge_libraries(facts["libraries"], job)
    for name, (error, package) in facts["imports"].items():
        yield row(job, f"python.{name}", not error, error or "imported", package=package)
    yield from _judge_machine(facts, job)
    yield from _judge_network(facts, job)
    yield from judge_data(facts, job)


# ---- its GPUs


def code_for(capability: int | None) -> list[int]:
    """The GPU code of this Paddle that a GPU of this compute capability (as 80) runs."""
    return [code for code in GPU_CODE if capability and code // 10 == capability // 10 and code <= capability]


def _judge_gpus(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the node has the job's GPUs, each of them is fit for it, and they are linked alike."""
    gpus, topology = facts["gpus"], facts["topology"]
    found = f"{len(gpus)}" + (f" ({facts['gpu_absence']})" if facts["gpu_absence"] else "")
    yield row(job, "gpu.count", len(gpus) >= job.cluster.dgxngpu, found)
    for gpu in gpus[: job.cluster.dgxngpu]:
        yield from _judge_gpu(gpu, job)
        yield from _judge_health(gpu, job)
        yield from judge_memory(gpu, job)
    if gpus and topology:
        yield _judge_links(topology, [f"GPU{gpu.index}" for gpu in gpus[: job.cluster.dgxngpu]], job)
        yield _judge_binding(topology, facts, job)
    elif gpus:
        found = facts["topology_error"] or "nvidia-smi topo -m gives none"
        fix = f"put nvidia-smi into the container (NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES})"
        yield row(job, "gpu.topology", False, found, fix=fix)


def _judge_gpu(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    capability, runs = gpu.capability, code_for(gpu.capability)
    found = f"GPU{gpu.index} {gpu.name}: {capability or 'unknown'}"
    fix = f"it runs the code made for {max(runs)}: publish no figure as this GPU's best" if runs else ""
    good, codes = capability in GPU_CODE, ", ".join(map(str, GPU_CODE))
    yield row(job, "gpu.compute_capability", good, found, bad=WARNING if runs else "", fix=fix, codes=codes)
    driver, own, least = ([int(n) for n in re.findall(r"\d+", text or "")] for text in (gpu.driver, *DRIVERS))
    bad, found = WARNING if driver >= least else FATAL, gpu.driver or "unknown"
    yield row(job, "gpu.driver", driver >= own, found, bad=bad, own=DRIVERS[0], least=DRIVERS[1])


def _judge_health(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether it computes without errors, at full clocks, for this job alone."""
    name, errors, corrected = f"GPU{gpu.index}", gpu.ecc_uncorrected, gpu.ecc_corrected
    found, fix = f"{name}: {errors} uncorrected, {corrected} corrected", ""
    if errors is None:
        found, fix = f"{name}: unknown", "ECC is off or not there: nvidia-smi -e 1"
    yield row(job, "gpu.ecc", errors == 0 and not corrected, found, bad=FATAL if errors else "", fix=fix)
    yield row(job, "gpu.throttling", not gpu.throttle, f"{name}: {', '.join(gpu.throttle) or 'none'}")
    others, used = gpu.processes, gpu.memory_used_mib
    # Inside a container NVML lists no processes of others: the memory tells.
    foreign = bool(others) or (used is not None and used > FOREIGN_MIB)
    pids = "unknown" if others is None else ", ".join(map(str, others)) or "none"
    found, good = f"{name}: pids {pids}, {used} MiB in use", not foreign and others is not None
    yield row(job, "gpu.processes", good, found, bad=FATAL if foreign else "", most=FOREIGN_MIB)
    on = "unknown" if gpu.persistence is None else "on" if gpu.persistence else "off"
    yield row(job, "gpu.persistence", gpu.persistence == 1, f"{name}: {on}")


def judge_memory(gpu: nvidia.Gpu, job: env.Job) -> Iterator[Verdict]:
    """Whether training fits, where the card's memory and the job's peak are known."""
    if gpu.memory_gib is None:
        return
    set_mib = job.model.knobs.conv_workspace_size_limit
    if set_mib is None:
        set_mib = int(env.libraries().get(memory.WORKSPACE_LIMIT, memory.workspace_limit_mib(gpu.memory_gib)))
    program_mib = memory.program_mib(job)
    if program_mib is None:
        return
    need_gib = (program_mib + set_mib + memory.BESIDE_MIB) / 1024
    need = (
        f"{need_gib:.1f} GiB at BATCHSIZE={job.model.batchsize}: program {program_mib / 1024:.1f}, cuDNN's workspace "
        f"{set_mib / 1024:.1f}, context, libraries and DALI {memory.BESIDE_MIB / 1024:.1f} (assumed)"
    )
    found = f"GPU{gpu.index}: {gpu.memory_gib:g} GiB"
    yield row(job, "gpu.memory", need_gib <= gpu.memory_gib, found, need=need, limit=memory.WORKSPACE_LIMIT)


def _judge_links(topology: nvidia.Topology, names: list[str], job: env.Job) -> Verdict:
    rows = [i for i, device in enumerate(topology.devices) if device in names]
    pairs = [topology.links[a][b] for a in rows for b in rows if a < b]
    counts = ", ".join(f"{pairs.count(kind)} x {kind}" for kind in sorted(set(pairs))) or "one GPU"
    nvlinked = {a for a in rows for b in rows if topology.links[a][b].startswith("NV")}
    alone = [topology.devices[a] for a in rows if nvlinked and a not in nvlinked]
    found = f"pairs: {counts}" + (f"; without NVLink: {', '.join(alone)}" if alone else "")
    return row(job, "gpu.topology", not alone, found)


def _judge_binding(topology: nvidia.Topology, facts: Facts, job: env.Job) -> Verdict:
    """Whether each rank may use a core next to its own GPU: the first GPU that CUDA shows is local rank 0's."""
    numa = {number.removeprefix("node"): nvidia.cpu_list(cores) for number, cores in facts["numa"].items()}
    found, far, near, nodes = [], [], [], []
    for rank, (gpu, cores) in enumerate(zip(facts["gpus"], facts["rank_cores"], strict=False)):
        text = topology.cores.get(f"GPU{gpu.index}", "")
        beside = nvidia.cpu_list(text) if text else set()
        found.append(f"rank {rank} {ranges(cores) or 'none'}")
        near.append(f"GPU{gpu.index} {text or 'unknown'}")
        nodes.append(next((number for number, of in numa.items() if of & beside), "?"))
        if beside and not beside & set(cores):
            far.append(f"; rank {rank}'s far from GPU{gpu.index}")
    if len({tuple(cores) for cores in facts["rank_cores"]}) == 1:
        found = [f"all ranks {ranges(facts['rank_cores'][0])}"]
    bindings = "".join([", ".join(found), *far])
    return row(job, "cpu.binding", not far, bindings, near=", ".join(near), numa=",".join(nodes))


def _judge_libraries(libraries: dict[str, str], job: env.Job) -> Iterator[Verdict]:
    """Whether each CUDA library loads; `libraries` has what each of them said."""
    for name, answer in libraries.items():
        check, good = f"cuda.{name.partition('.')[0]}", not answer.startswith("error: ")
        yield row(job, check, good, answer.removeprefix("error: "), capabilities=CAPABILITIES)
        if name.startswith("libnccl") and good:
            version = int(answer)
            found = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
            yield row(job, "nccl.version", version >= NCCL_LEAST, found)


# ---- its cores, memory, limits, disks, network and data


def _judge_machine(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    ranks, numa = job.cluster.dgxngpu, ", ".join(facts["numa"].values()) or "unknown"
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
    for name, need in (("logs", LOG_GIB), ("checkpoints", CHECKPOINT_GIB * (job.checkpoints.keep + 1))):
        disk = facts[name]
        found = f"{disk['folder']}: {disk['free_gib']:.1f} GiB free" + ("" if disk["writable"] else ", not writable")
        good, bad = disk["writable"] and disk["free_gib"] >= need, "" if disk["writable"] else FATAL
        yield row(job, f"disk.{name}", good, found, bad=bad, need=need)


def _judge_network(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the node reaches others, where the job has any."""
    interfaces, ports, many = facts["interfaces"], facts["infiniband"], job.cluster.dgxnnodes > 1
    found = ", ".join(f"{name} {what}" for name, what in interfaces.items()) or "none up"
    wanted = "one that the other nodes reach" if many else "none needed by one node"
    yield row(job, "network.interfaces", bool(interfaces) or not many, found, wanted=wanted)
    down = [name for name, state in ports.items() if not state.startswith("ACTIVE")]
    found = ", ".join(f"{name} {state}" for name, state in ports.items()) or "none"
    wanted = "every port ACTIVE" if many or ports else "none needed by one node"
    fix = f"bring {', '.join(down)} up (ibstat), or leave it out by NCCL_IB_HCA" if down else ""
    yield row(job, "network.infiniband", not down and (bool(ports) or not many), found, fix=fix, wanted=wanted)


def judge_data(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Whether the data set is whole, and the page cache can be flushed."""
    flush = facts["drop_caches"] or bool(job.data.cache_cleared)
    found = job.data.cache_cleared or ("can be flushed" if flush else "cannot be flushed by this user")
    wanted = "can be flushed before a timed run" if job.data.clear_caches else "not asked for: CLEAR_CACHES=0"
    yield row(job, "data.page_cache", flush or not job.data.clear_caches, found, wanted=wanted)
    if facts["data"] is None:
        what = "synthetic" if job.data.kind == "synthetic" else "the embedded digits, made at the first start"
        yield judged("data.lists", True, what, "a data set")
        return
    for entry in facts["data"].values():
        if "error" in entry:
            yield row(job, "data.lists", False, entry["error"], fix="set DATADIR to a whole data set")
            continue
        checked = "" if entry["looked_at"] is None else f", the first {entry['looked_at']} files looked at"
        absent = f", absent: {', '.join(entry['absent'])}" if entry["absent"] else ""
        found = f"{entry['name']}: {entry['samples']} samples{checked}{absent}"
        yield row(job, "data.lists", not entry["absent"], found)
        decoded = entry["undecodable"] or "first, middle and last sample decoded"
        yield row(job, "data.decode", not entry["undecodable"], f"{entry['name']}: {decoded}")


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
    same = {
        "code.commit": [node["source"]["commit"] for node in nodes],
        "code.files": [node["code_sha256"][:12] for node in nodes],
        "code.lock": [node["source"]["lock_sha256"][:12] for node in nodes],
        "code.image": [node["source"]["image_digest"] for node in nodes],
    }
    if any(node["data"] for node in nodes):
        lists = [[entry.get("sha256", "")[:12] for entry in (node["data"] or {}).values()] for node in nodes]
        same["data.same"] = [" ".join(hashes) for hashes in lists]
    for check, values in same.items():
        alike = len(set(values)) == 1
        each = ", ".join(f"{node['host']} {value}" for node, value in zip(nodes, values, strict=True))
        verdicts.append(row(job, check, alike, str(values[0]) if alike else each, nodes=len(nodes)))
    dirty = nodes[0]["source"]["dirty"]
    found = {True: "differs from the commit", False: "as committed", None: "unknown: no git and no image"}[dirty]
    return [*verdicts, row(job, "code.clean", dirty is False, found)]


def judge_ranks(hosts: list[str], offsets_s: list[float], job: env.Job) -> list[Verdict]:
    """MPI came up over `hosts` (one entry a rank); each node's clock is `offsets_s` ahead of the first one's."""
    found = ", ".join(f"{host} {hosts.count(host)}" for host in dict.fromkeys(hosts))
    apart_s = max(map(abs, offsets_s))
    return [
        row(job, "mpi.ranks", len(hosts) == job.cluster.world_size, found),
        row(job, "clock.difference", apart_s <= CLOCK_S, f"at most {apart_s:.4f} s", most_s=CLOCK_S),
    ]


def judge_start(error: str, job: env.Job) -> list[Verdict]:
    """Of one node by itself: whether mpirun started ranks on it, or why not."""
    verdicts = [row(job, "mpi.start", not error, error or "2 ranks added a number")]
    if job.cluster.dgxnnodes > 1:
        verdicts.append(row(job, "mpi.ranks", False, "this node alone was looked at", bad=WARNING))
    return verdicts


def clock_offset_s(comm: Any, other: int) -> float:
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
