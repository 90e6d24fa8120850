"""The doctor's judgement of what it saw: each node, what must be the same on all, and their ranks and clocks."""

import dataclasses
import functools
import resource
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from harness import env, memory
from runlog.digits import six_digits
from runlog.verdict import FATAL, OK, WARNING, Verdict, judged
from tools.doctor import nccl
from tools.doctor.gpu_checks import DRIVERS, GPU_CODE, code_for, judge_gpus, judge_memory
from tools.doctor.rows import CAPABILITIES, Facts, judge_check, ok_if
from tools.doctor.start_checks import judge_start as judge_libraries_start
from tools.doctor.topology_checks import ranges

if TYPE_CHECKING:  # a tool that starts no ranks must not start MPI
    from mpi4py import MPI

__all__ = ["CAPABILITIES", "DRIVERS", "GPU_CODE", "code_for", "judge_memory"]

NCCL_LEAST = 20800  # 2.8; locks/cuda.lock has 2.21.5
WANTED_SHM_PER_RANK_MIB = 64  # Open MPI's and NCCL's buffers between the ranks of a node; docker's default is 64 in all
FATAL_SHM_PER_RANK_MIB = 16
MEMORY_PER_RANK_GIB = 2  # a ResNet-50 rank on a CPU takes 1.5
CHECKPOINT_GIB = 0.25  # ResNet-50 with momentum: 205 MB
LOG_GIB = 0.1
WANTED_OPEN_FILES = 4096  # fewer are a warning
FATAL_OPEN_FILES = 256  # fewer are fatal
CLOCK_S = 0.5  # between two nodes
CLOCK_QUESTIONS = 5


def judge_node(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield the verdicts on one node: its packages, cores, memory, disks, network and data.

    For a job on GPUs the verdicts on the GPUs and on their libraries come first.

    Args:
        facts: What was seen of the node, as `node.probe` returns it.
        job: Settings of the training job, such as how many ranks run on a node.
    """
    if job.cluster.device == "gpu":
        yield from judge_gpus(facts, job)
        yield from _judge_libraries(facts["libraries"], job)
        yield from judge_libraries_start(facts, job)
    for name, (error, fix) in facts["imports"].items():
        yield judge_check(job, f"python.{name}", ok_if(not error, otherwise=FATAL), found=error or "imported", fix=fix)
    yield from _judge_machine(facts, job)
    yield from _judge_network(facts, job)
    yield from judge_data(facts, job)


def _judge_libraries(libraries: dict[str, str], job: env.Job) -> Iterator[Verdict]:
    """Yield a verdict on whether each CUDA library loads, and one on the version of NCCL if NCCL loads.

    A library that does not load is fatal; only libnvcuvid is optional and leads to a warning.

    Args:
        libraries: What came of loading each library, by file name: "loads" or "error: REASON". NCCL and cuDNN have
            their version in place of "loads", as in {"libnccl.so.2": "22105"}.
        job: Settings of the training job, for the texts of the verdicts.
    """
    for file_name, answer in libraries.items():
        name, _, _ = file_name.partition(".")  # "libnccl"
        loads = not answer.startswith("error: ")
        is_optional = name == "libnvcuvid"  # without it an A100 decodes JPEGs, but more slowly
        if_missing = WARNING if is_optional else FATAL
        status = ok_if(loads, otherwise=if_missing)
        found = answer.removeprefix("error: ")
        yield judge_check(job, f"cuda.{name}", status, found=found, capabilities=CAPABILITIES)
        if name == "libnccl" and loads:
            yield _judge_nccl_version(int(answer), job)


def _judge_nccl_version(version: int, job: env.Job) -> Verdict:
    """Return the verdict on whether the version of NCCL is at least NCCL_LEAST; if not, fatal.

    Args:
        version: The version as an integer, such as 22105 for 2.21.5.
        job: Settings of the training job, for the texts of the verdict.
    """
    shown_version = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
    return judge_check(job, "nccl.version", ok_if(version >= NCCL_LEAST, otherwise=FATAL), found=shown_version)


# ---- its cores, memory, limits, disks, network and data


def _judge_machine(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on whether a node has the cores, memory, limits and disk space that the job's ranks need.

    The limit on locked memory is judged only on a node with InfiniBand ports.

    Args:
        facts: What was seen of the node, as `node.probe` returns it.
        job: Settings of the training job, such as how many ranks run on a node and how many checkpoints are kept.
    """
    yield _judge_cores(facts, job)
    yield _judge_free_memory(facts, job)
    yield _judge_shared_memory(facts["shm_mib"], job)
    yield _judge_open_files(facts["open_files"], job)
    if facts["infiniband"]:
        yield _judge_locked_memory(facts["locked_memory"], job)

    checkpoints_gib = CHECKPOINT_GIB * (job.checkpoints.keep + 1)  # a new one is written before the oldest is removed
    yield _judge_disk("disk.logs", facts["logs"], LOG_GIB, job, if_too_small=FATAL)
    yield _judge_disk("disk.checkpoints", facts["checkpoints"], checkpoints_gib, job, if_too_small=WARNING)


def _judge_cores(facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether a node has at least one CPU core for each of its ranks; if not, a warning.

    Args:
        facts: What was seen of the node: "rank_cores" has the cores that each rank may use, "cgroup_cpus" the quota in
            CPUs (None: no quota is known), "numa" the cores of each NUMA node.
        job: Settings of the training job, with the number of ranks on a node (DGXNGPU).
    """
    cores = sorted(set().union(*facts["rank_cores"]))
    numa = ", ".join(facts["numa"].values()) or "unknown"
    found = f"{len(cores)} ({ranges(cores) or 'none'}; NUMA {numa})"
    usable_cores: float = len(cores)
    # A container or batch job may see all cores and still get only the CPU time of some, by its cgroup's quota.
    quota: float | None = facts["cgroup_cpus"]
    if quota is not None and quota < usable_cores:
        usable_cores = quota
        found += f", and by the cgroup's quota the time of {six_digits(quota)}"
    ranks = job.cluster.dgxngpu
    return judge_check(job, "cpu.cores", ok_if(usable_cores >= ranks, otherwise=WARNING), found=found)


def _judge_free_memory(facts: Facts, job: env.Job) -> Verdict:
    """Return the verdict on whether a node has enough free memory for all its ranks; if not, a warning.

    A rank needs MEMORY_PER_RANK_GIB, and more if a GPU decodes its images: the decoders pin memory of the host. Free is
    what the machine has available or, if that is less, what the limit of the job's cgroup leaves.

    Args:
        facts: What was seen of the node: "memory_gib" is available on the machine, "cgroup_memory_gib" is left by the
            cgroup (None: no limit is known).
        job: Settings of the training job, with the number of ranks on a node (DGXNGPU).
    """
    pinned_gib = memory.input_memory(job).pinned_mib / 1024
    rank_gib = MEMORY_PER_RANK_GIB + pinned_gib
    each = f"{rank_gib:.1f} GiB"
    if pinned_gib:
        each += f" ({pinned_gib:.1f} pinned by the GPU's decoders)"
    free_gib: float = facts["memory_gib"]
    found = f"{free_gib:.1f} GiB"
    fix = ""  # the usual one, of checks.yaml
    left_by_cgroup_gib: float | None = facts["cgroup_memory_gib"]
    if left_by_cgroup_gib is not None and left_by_cgroup_gib < free_gib:
        free_gib = left_by_cgroup_gib
        found = f"{free_gib:.1f} GiB left by the limit of the job's cgroup"
        fix = "start the container or the batch job with more memory (docker --memory, sbatch --mem), or lower DGXNGPU"
    is_enough = free_gib >= rank_gib * job.cluster.dgxngpu
    return judge_check(job, "memory.free", ok_if(is_enough, otherwise=WARNING), found=found, fix=fix, each=each)


def _judge_shared_memory(free_mib: float, job: env.Job) -> Verdict:
    """Return the verdict on the free space in /dev/shm, through which the ranks of a node exchange data.

    It is fatal below FATAL_SHM_PER_RANK_MIB for each rank, and a warning below WANTED_SHM_PER_RANK_MIB.

    Args:
        free_mib: Free space in /dev/shm in MiB; 0 if there is no such folder.
        job: Settings of the training job, with the number of ranks on a node (DGXNGPU).
    """
    ranks = job.cluster.dgxngpu
    if free_mib < FATAL_SHM_PER_RANK_MIB * ranks:
        status = FATAL
    elif free_mib < WANTED_SHM_PER_RANK_MIB * ranks:
        status = WARNING
    else:
        status = OK
    found = f"{free_mib:.0f} MiB free in /dev/shm"
    return judge_check(job, "memory.shared", status, found=found, each=WANTED_SHM_PER_RANK_MIB)


def _judge_open_files(limit: int, job: env.Job) -> Verdict:
    """Return the verdict on how many files a process may have open at a time.

    Fewer than FATAL_OPEN_FILES are fatal, and fewer than WANTED_OPEN_FILES are a warning.

    Args:
        limit: The soft limit of this process (ulimit -n); -1 means unlimited.
        job: Settings of the training job, for the texts of the verdict.
    """
    is_unlimited = limit == resource.RLIM_INFINITY  # -1, so it needs its own comparison
    if is_unlimited or limit >= WANTED_OPEN_FILES:
        status = OK
    elif limit >= FATAL_OPEN_FILES:
        status = WARNING
    else:
        status = FATAL
    return judge_check(job, "limits.open_files", status, found=str(limit), least=WANTED_OPEN_FILES)


def _judge_locked_memory(limit_bytes: int, job: env.Job) -> Verdict:
    """Return the verdict on how much memory a process may lock. It must be unlimited: InfiniBand locks its buffers.

    Args:
        limit_bytes: The soft limit of this process (ulimit -l) in bytes; -1 means unlimited.
        job: Settings of the training job. With one node, which does not use InfiniBand, a limit is only a warning; with
            several it is fatal.
    """
    is_unlimited = limit_bytes == resource.RLIM_INFINITY
    found = "unlimited" if is_unlimited else f"{limit_bytes // 1024} KiB"
    if_limited = FATAL if job.cluster.dgxnnodes > 1 else WARNING
    return judge_check(job, "limits.locked_memory", ok_if(is_unlimited, otherwise=if_limited), found=found)


def _judge_disk(check: str, disk: Facts, need_gib: float, job: env.Job, *, if_too_small: str) -> Verdict:
    """Return the verdict on whether a folder is writable and its disk has enough free space.

    A folder that is not writable is fatal.

    Args:
        check: Name of the check, "disk.logs" or "disk.checkpoints".
        disk: Facts of the folder, as {"folder": "results", "free_gib": 412.3, "writable": True}.
        need_gib: The space in GiB that must be free.
        job: Settings of the training job, for the texts of the verdict.
        if_too_small: The status if too little space is free: FATAL or WARNING.
    """
    found = f"{disk['folder']}: {disk['free_gib']:.1f} GiB free"
    if not disk["writable"]:
        return judge_check(job, check, FATAL, found=f"{found}, not writable", need=need_gib)
    has_space = disk["free_gib"] >= need_gib
    return judge_check(job, check, ok_if(has_space, otherwise=if_too_small), found=found, need=need_gib)


def _judge_network(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on what links this node to others: its network interfaces and its InfiniBand ports.

    For a job of several nodes it is fatal if no interface is up. A job of one node needs neither interfaces nor ports:
    both verdicts are then ok, and only say what is there.

    Args:
        facts: What was seen of the node: "interfaces" has the interfaces that are up, as
            {"eth0": "10.0.0.1 10000 Mbit/s"}; "infiniband" has the state of each port.
        job: Settings of the training job, with the number of nodes.
    """
    interfaces: dict[str, str] = facts["interfaces"]
    found = ", ".join(f"{name} {address}" for name, address in interfaces.items()) or "none up"
    has_several_nodes = job.cluster.dgxnnodes > 1
    if has_several_nodes:
        status = ok_if(bool(interfaces), otherwise=FATAL)
        yield judge_check(job, "network.interfaces", status, found=found, wanted="one that the other nodes reach")
        yield from _judge_infiniband(facts, job)
    else:
        wanted = "none needed by one node"
        yield judge_check(job, "network.interfaces", OK, found=found, wanted=wanted)
        yield judge_check(job, "network.infiniband", OK, found=_port_states(facts["infiniband"]), wanted=wanted)


def _port_states(ports: dict[str, str]) -> str:
    """Return InfiniBand ports with their states as text; "none" without any.

    Args:
        ports: The state of each port by its name: {"mlx5_0:1": "ACTIVE 200 Gb/sec (4X HDR)"}.
    """
    return ", ".join(f"{name} {state}" for name, state in ports.items()) or "none"


def _judge_infiniband_ports(
    ports: dict[str, str], inactive_ports: list[str], job: env.Job, *, can_open_devices: bool
) -> Verdict:
    """Return the verdict on a node's InfiniBand ports: a warning if it has none or some cannot be used, else ok.

    Whether NCCL uses any port at all is judged by another check, "nccl.ports".

    Args:
        ports: The state of each port by its name: {"mlx5_0:1": "ACTIVE 200 Gb/sec (4X HDR)"}.
        inactive_ports: Names of the ports that NCCL would use by its setting NCCL_IB_HCA, but that are not ACTIVE.
        job: Settings of the training job, for the texts of the verdict.
        can_open_devices: Whether this process can open at least one device file of InfiniBand. A container may lack
            them.
    """
    found = _port_states(ports)
    wanted = "every port that NCCL_IB_HCA takes ACTIVE"
    verdict = functools.partial(judge_check, job, "network.infiniband", wanted=wanted)
    if not ports:
        return verdict(WARNING, found=found)
    if inactive_ports:
        fix = f"bring {', '.join(inactive_ports)} up (ibstat), or leave it out by NCCL_IB_HCA"
        return verdict(WARNING, found=found, fix=fix)
    if not can_open_devices:
        fix = "start the container with --device /dev/infiniband: without it the all-reduce goes over TCP"
        return verdict(WARNING, found=f"{found}, but no /dev/infiniband/uverbs* can be opened", fix=fix)
    return verdict(OK, found=found)


def _judge_infiniband(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on a node's InfiniBand ports, and on whether they can read a GPU's memory.

    Args:
        facts: What was seen of the node: "infiniband", "nccl_settings", "can_open_infiniband" and "peermem".
        job: Settings of the training job, with the device ("gpu" or "cpu").
    """
    ports: dict[str, str] = facts["infiniband"]  # {"mlx5_0:1": "ACTIVE 200 Gb/sec (4X HDR)"}
    setting = facts.get("nccl_settings", {}).get("NCCL_IB_HCA", "")  # a job on CPUs has no settings of NCCL
    used_ports = nccl.names_taken(setting, list(ports))  # by NCCL
    active_ports = [name for name in used_ports if ports[name].startswith("ACTIVE")]
    inactive_ports = [name for name in used_ports if name not in active_ports]
    yield _judge_infiniband_ports(ports, inactive_ports, job, can_open_devices=facts["can_open_infiniband"])

    gpus_use_ports = active_ports != [] and job.cluster.device == "gpu"
    if gpus_use_ports:
        way_to_memory: str = facts["peermem"]  # what lets a port read a GPU's memory, in words; empty: nothing does
        found = way_to_memory or "no module is loaded"
        yield judge_check(job, "network.peermem", ok_if(way_to_memory != "", otherwise=WARNING), found=found)


def judge_data(facts: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on the page cache, which a timed run flushes, and on each part of the job's data set.

    If the job reads no data set of the user, one verdict takes the place of those on the parts: it is ok, and names the
    data that the job uses.

    Args:
        facts: What was seen of the node: "drop_caches" says whether this user can flush the page cache; "data"
            describes the parts "train" and "val" of the data set, and is None without a data set of the user.
        job: Settings of the training job.
    """
    yield _judge_page_cache(facts["drop_caches"], job)
    if facts["data"] is None:
        embedded = f"the embedded data set of {job.model.workload}, made at the first start"
        found = "synthetic" if job.data.is_synthetic else embedded
        yield judged("data.lists", True, found, "a data set")
        return
    for part in facts["data"].values():
        yield from _judge_part(part, job)


def _judge_page_cache(can_be_flushed_here: bool, job: env.Job) -> Verdict:
    """Return the verdict on whether the page cache of Linux can be flushed before a timed run.

    It is a warning if the job asks for a flush and this user cannot do it.

    Args:
        can_be_flushed_here: Whether this user may write to the file of Linux that flushes the cache.
        job: Settings of the training job: whether a flush is asked for (CLEAR_CACHES).
    """
    is_asked_for = job.data.clear_caches
    found = "can be flushed" if can_be_flushed_here else "cannot be flushed by this user"
    wanted = "can be flushed before a timed run" if is_asked_for else "not asked for: CLEAR_CACHES=0"
    status = ok_if(can_be_flushed_here or not is_asked_for, otherwise=WARNING)
    return judge_check(job, "data.page_cache", status, found=found, wanted=wanted)


def _judge_part(part: Facts, job: env.Job) -> Iterator[Verdict]:
    """Yield verdicts on one part of a data set, "train" or "val".

    A part that could not be read has only a fatal verdict on its list. The labels have a verdict only if one is wrong.

    Args:
        part: What `describe_data_set` of harness/data_check.py found in the part, or {"error": "why"} if the part could
            not be read.
        job: Settings of the training job, for the texts of the verdicts.
    """
    if "error" in part:
        fix = "mend what is said, or set DATADIR to a whole data set"
        yield judge_check(job, "data.lists", FATAL, found=part["error"], fix=fix)
        return
    size_gib = part["passport"]["bytes"] / 2**30
    found = f"{part['name']}: {part['samples']} samples, {size_gib:.3f} GiB"
    yield judge_check(job, "data.lists", OK, found=found)
    for note in part["notes"]:
        yield judge_check(job, "data.content", WARNING, found=note)
    fault = part["undecodable"]  # of the first sample that cannot be decoded; empty if all can be
    decoding = fault or f"{part['decoded']} samples decoded"
    yield judge_check(job, "data.decode", ok_if(not fault, otherwise=FATAL), found=f"{part['name']}: {decoding}")
    label_fault = part["label_fault"]  # of the first label that is not a class; empty if all are
    if label_fault:
        yield judge_check(job, "data.labels", FATAL, found=f"{part['name']}: {label_fault}")


# ---- all nodes


def judge_all(nodes: list[Facts], job: env.Job) -> list[Verdict]:
    """Return the verdicts on each node, on what must be equal on all nodes, and on whether the code is as committed.

    Equal verdicts on a node appear once: its eight GPUs have one driver. With several nodes, the text on what was found
    on a node begins with the host's name.

    Args:
        nodes: Facts of each node, as `node.probe` returns them; at least one.
        job: Settings of the training job.
    """
    verdicts: list[Verdict] = []
    for node in nodes:
        for verdict in judge_node(node, job):
            shown_verdict = verdict if len(nodes) == 1 else _with_host(verdict, node["host"])
            if shown_verdict not in verdicts:  # eight GPUs have one driver
                verdicts.append(shown_verdict)

    hosts = [node["host"] for node in nodes]
    for check, value_of_hosts in _facts_to_be_equal(nodes).items():
        verdicts.append(_judge_equality(check, value_of_hosts, hosts, job))
    verdicts.append(_judge_source(nodes, job))
    return verdicts


def _with_host(verdict: Verdict, host: str) -> Verdict:
    """Return a verdict whose text on what was found begins with the host's name.

    Args:
        verdict: The verdict on a node; it is not changed.
        host: Name of the node's host.
    """
    return dataclasses.replace(verdict, found=f"{host}: {verdict.found}")


def _judge_equality(check: str, value_of_hosts: list[str | None], hosts: list[str], job: env.Job) -> Verdict:
    """Return the verdict on whether a fact is the same on all hosts.

    If not, the verdict is fatal and shows the value of each host.

    Args:
        check: Name of the check, such as "code.commit".
        value_of_hosts: The fact's value on each host; None or empty: unknown. Hosts that all have None count as equal.
        hosts: Names of the hosts, in the same order.
        job: Settings of the training job, for the texts of the verdict.
    """
    are_equal = len(set(value_of_hosts)) == 1
    shown_values = [value or "unknown" for value in value_of_hosts]
    found = shown_values[0]
    if not are_equal:
        found = ", ".join(f"{host} {shown}" for host, shown in zip(hosts, shown_values, strict=True))
    return judge_check(job, check, ok_if(are_equal, otherwise=FATAL), found=found, nodes=len(hosts))


def _judge_source(nodes: list[Facts], job: env.Job) -> Verdict:
    """Return the verdict on whether the code is as committed on all nodes: a warning if not, or if one does not know.

    Args:
        nodes: Facts of each node. "dirty" of its "source" is None if it does not know: it has no git and no image.
        job: Settings of the training job, for the texts of the verdict.
    """
    changed_on = [node["host"] for node in nodes if node["source"]["dirty"]]
    if changed_on:
        return judge_check(job, "code.clean", WARNING, found=f"differs from the commit on {', '.join(changed_on)}")
    unknown_on = [node["host"] for node in nodes if node["source"]["dirty"] is None]
    if unknown_on:
        found = f"unknown on {', '.join(unknown_on)}: no git and no image"
        return judge_check(job, "code.clean", WARNING, found=found)
    return judge_check(job, "code.clean", OK, found="as committed")


def _facts_to_be_equal(nodes: list[Facts]) -> dict[str, list[str | None]]:
    """Return the facts that must be the same on all nodes: the code, its packages, its image and the data set.

    Args:
        nodes: Facts of each node, as `node.probe` returns them.

    Returns:
        A list with one value for each node, by the name of the check: {"code.commit": ["1a2b3c4", "1a2b3c4"], ...}. A
        value that a node does not know is None or empty. "data.same", the digests of the data set, is left out if no
        node has a data set.
    """
    values_by_check: dict[str, list[str | None]] = {
        "code.commit": [node["source"]["commit"] for node in nodes],
        "code.files": [node["code_sha256"][:12] for node in nodes],
        "code.lock": [node["source"]["lock_sha256"][:12] for node in nodes],
        "code.image": [node["source"]["image_digest"] for node in nodes],
    }
    if any(node["data"] for node in nodes):
        values_by_check["data.same"] = [_data_digests(node) for node in nodes]
    return values_by_check


def _data_digests(node: Facts) -> str:
    """Return the shortened digests of a node's data set, joined by spaces: two of each part that could be read.

    The first is over the files' names, sizes and labels, the second over the order in which the samples are numbered.

    Args:
        node: Facts of the node. Its "data" describes the parts "train" and "val", and may be None.

    Returns:
        Text such as "1f0c8a27be91/90d1c4e7b256 77d0a1c3e5f2/03ba8d55c1fe"; empty if there is no data set or no part
        could be read.
    """
    parts = (node["data"] or {}).values()
    digests = []
    for part in parts:
        if "passport" in part:
            digests.append(f"{part['passport']['sha256'][:12]}/{part['numbering'][:12]}")
    return " ".join(digests)


def judge_ranks(hosts: list[str], offsets_s: list[float], job: env.Job) -> list[Verdict]:
    """Return two verdicts: whether MPI started as many ranks as the job has, and whether the nodes' clocks agree.

    A wrong number of ranks is fatal. Clocks that are more than CLOCK_S seconds from that of the first node are a
    warning.

    Args:
        hosts: The host of each rank that was started, in the order of the ranks.
        offsets_s: For each node, by how many seconds its clock is ahead of the first node's. The first is 0.
        job: Settings of the training job, with the number of its ranks.
    """
    distinct_hosts = dict.fromkeys(hosts)  # in the order of their first rank
    ranks_of_hosts = ", ".join(f"{host} {hosts.count(host)}" for host in distinct_hosts)
    status_of_ranks = ok_if(len(hosts) == job.cluster.world_size, otherwise=FATAL)

    largest_offset_s = max(abs(offset_s) for offset_s in offsets_s)
    shown_offset = f"at most {largest_offset_s:.4f} s"
    status_of_clocks = ok_if(largest_offset_s <= CLOCK_S, otherwise=WARNING)
    return [
        judge_check(job, "mpi.ranks", status_of_ranks, found=ranks_of_hosts),
        judge_check(job, "clock.difference", status_of_clocks, found=shown_offset, most_s=CLOCK_S),
    ]


def judge_start(error: str, job: env.Job) -> list[Verdict]:
    """Return the verdicts on whether mpirun can start ranks on this node, the only node that was looked at.

    A job of several nodes also gets a warning that the other nodes were not looked at.

    Args:
        error: Why mpirun could not start two ranks that add a number; empty if it could.
        job: Settings of the training job, with the number of nodes.
    """
    status = ok_if(not error, otherwise=FATAL)
    verdicts = [judge_check(job, "mpi.start", status, found=error or "2 ranks added a number")]
    if job.cluster.dgxnnodes > 1:
        found = "this node alone was looked at"
        verdicts.append(judge_check(job, "mpi.ranks", WARNING, found=found))
    return verdicts


def clock_offset_s(comm: "MPI.Comm", other: int) -> float:
    """Return how many seconds another rank's clock is ahead of rank 0's. Only rank 0 gets the figure, the others get 0.

    Rank 0 and rank `other` must both call this, because they exchange messages. Rank 0 asks CLOCK_QUESTIONS times, and
    takes the answer that came back fastest as the most exact.

    Args:
        comm: MPI's communicator of all ranks.
        other: Number of the rank whose clock is asked for. It must not be 0.
    """
    if comm.Get_rank() == other:
        _answer_with_clock(comm)
    if comm.Get_rank() != 0:
        return 0.0
    answers = [_ask_for_clock(comm, other) for _ in range(CLOCK_QUESTIONS)]
    most_exact = min(answers, key=lambda answer: answer.took_s)
    return most_exact.offset_s


class _ClockAnswer(NamedTuple):
    """The clock of another rank, by its answer to a question."""

    took_s: float  # from the question to the answer
    offset_s: float  # by which the other clock is ahead


def _ask_for_clock(comm: "MPI.Comm", other: int) -> _ClockAnswer:
    """Ask another rank for its clock, which is taken to be read halfway between question and answer.

    Args:
        comm: MPI's communicator of all ranks.
        other: Number of the rank to ask. It must be in `_answer_with_clock` meanwhile.
    """
    asked_s = time.time()
    comm.send(None, dest=other)
    other_clock_s = comm.recv(source=other)
    answered_s = time.time()
    return _ClockAnswer(took_s=answered_s - asked_s, offset_s=other_clock_s - (asked_s + answered_s) / 2)


def _answer_with_clock(comm: "MPI.Comm") -> None:
    """Answer all questions of rank 0 for the clock of this rank. There are CLOCK_QUESTIONS of them.

    Args:
        comm: MPI's communicator of all ranks.
    """
    for _ in range(CLOCK_QUESTIONS):
        comm.recv(source=0)
        comm.send(time.time(), dest=0)
