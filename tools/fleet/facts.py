"""The facts that decide how fast a fleet's nodes are: what each node finds of itself, and in what the nodes differ."""

import itertools
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness import env, provenance
from harness.job import Job
from runlog.digits import six_digits
from tools.fleet.verdicts import Record

# The order of facts in the report, first what changes speed most. A fact is sorted by the entry that it begins with.
ORDER = (
    *("GPUs", "driver", "power limits", "persistence", "CPU", "cores", "CPU quota", "memory"),
    *("InfiniBand", "NIC", "MTU", "NCCL_", "UCX_", "OMPI_", "image", "lock", "code", "library", "kernel"),
    *("governor", "huge pages", "transparent huge pages", "data mount", "firmware", "BIOS"),
)
MAX_CLOCK_OFFSET_S = 0.5  # of a node's clock from the first node's, in either direction


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact that is not the same on all nodes."""

    fact: str
    usual: str  # on most of them
    others: dict[str, list[str]]  # other values, and the nodes that have them

    @property
    def but(self) -> str:
        """The other values and their nodes as text."""
        return "; ".join(f"{value}: {', '.join(hosts)}" for value, hosts in self.others.items())


def _read(path: str | Path) -> str:
    """Return a file's words on one line, or "not readable" if the file cannot be read."""
    try:
        return " ".join(Path(path).read_text(encoding="utf-8").split())
    except OSError:
        return "not readable"


def _cpu_quota(cpus: float | None) -> str:
    """Return the time of how many CPUs a node's cgroups give: "1.5 CPUs"; empty if they set no limit (None)."""
    return "" if cpus is None else f"{six_digits(cpus)} CPUs"


def _distinct_values(values: Iterable[Any]) -> str:
    """Return the distinct values as text, sorted and comma-separated: 9000, 1500, 1500 -> "1500, 9000".

    A value that is None is "unknown".
    """
    texts = {"unknown" if value is None else str(value) for value in values}
    return ", ".join(sorted(texts))


def _distinct_contents(files: Iterable[Path]) -> str:
    """Return the distinct contents of files as one text, sorted and comma-separated; empty without files."""
    return _distinct_values(_read(file) for file in files)


def _speeds_of_interfaces(descriptions: Iterable[str]) -> list[str]:
    """Return the speeds of network interfaces, sorted, without those of interfaces that report no speed.

    Args:
        descriptions: Address and speed of each interface, such as "10.0.0.1 10000 Mbit/s"; or its address alone.
    """
    speeds = []
    for description in descriptions:
        _, _, speed = description.partition(" ")
        if speed:
            speeds.append(speed)
    return sorted(speeds)


def _mount(folder: str) -> str:
    """Return file system and options of the mount that holds a folder, such as "ext4 rw,relatime"; else "unknown"."""
    path = Path(folder).resolve()
    deepest = ""  # the longest mount point above the folder is the one that holds it
    description = "unknown"
    for mount in psutil.disk_partitions(all=True):
        if path.is_relative_to(mount.mountpoint) and len(mount.mountpoint) > len(deepest):
            deepest = mount.mountpoint
            description = f"{mount.fstype} {mount.opts}"
    return description


def _gpus(gpus: Iterable[Any]) -> str:
    """Return how many GPUs of each name and memory there are, such as "8 x A100 40 GiB"; empty without GPUs."""
    counts = Counter(_name_and_memory(gpu) for gpu in gpus)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _name_and_memory(gpu: Any) -> str:
    """Return the name and the memory of a GPU: "A100 40 GiB"; "unknown GPU of unknown memory" if NVML tells neither."""
    name = "unknown GPU" if gpu.name is None else gpu.name
    memory = "of unknown memory" if gpu.memory_gib is None else f"{gpu.memory_gib} GiB"
    return f"{name} {memory}"


def _power_limit(gpu: Any) -> str | None:
    """Return the power limit of a GPU, such as "400.0 W"; None if it is unknown."""
    return None if gpu.power_limit_w is None else f"{gpu.power_limit_w} W"


def facts_of_node(job: Job, probed: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of this node that decide how fast it is: its machine, its libraries and their settings.

    Args:
        job: The settings of the job.
        probed: What the health check found on this node (tools/doctor/node.py).

    Returns:
        The facts by name: {"CPU": "AMD EPYC 7742", "MTU": "9000", ...}. An empty one has the value "none".
    """
    libraries = {f"library {name}": answer for name, answer in probed["libraries"].items()}
    # `env.libraries` returns the environment variables that libraries read.
    settings = {name: value for name, value in env.libraries().items() if name.startswith(("NCCL_", "UCX_", "OMPI_"))}
    facts = _facts_of_machine(job, probed) | libraries | settings
    return {name: value or "none" for name, value in facts.items()}


def _facts_of_machine(job: Job, probed: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about this node's hardware, system and code that may decide how fast the node is.

    Args:
        job: The settings of the job, for the folder of the data set, whose mount is a fact.
        probed: What the health check found on this node, by name: "gpus", "rank_cores", "interfaces" and more, as
            `probe` of tools/doctor/node.py returns it. Facts that `probed` lacks are read from /proc, from /sys or by
            libraries.

    Returns:
        The facts by name, such as {"CPU": "AMD EPYC 7742", "MTU": "9000"}. A fact is empty if there is nothing to tell,
        such as "GPUs" on a node without a GPU; only "data mount" then says "no DATADIR". Words such as "unknown" or
        "not readable" stand for a value that could not be found out.
    """
    gpus = probed["gpus"]
    source = probed["source"]  # which code runs, in which container image
    cores = set(itertools.chain.from_iterable(probed["rank_cores"]))  # a core that several ranks share counts once
    interfaces = probed["interfaces"]  # {"eth0": "10.0.0.1 10000 Mbit/s"}; without the speed if it is not reported
    governor_files = Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")  # one for each core
    firmware_files = Path("/sys/class/infiniband").glob("*/fw_ver")  # one for each network card
    return {
        "GPUs": _gpus(gpus),
        "driver": _distinct_values(gpu.driver for gpu in gpus),
        "power limits": _distinct_values(_power_limit(gpu) for gpu in gpus),
        "persistence": _distinct_values(gpu.persistence for gpu in gpus),
        "CPU": provenance.node().cpu,
        "cores": str(len(cores)),
        "CPU quota": _cpu_quota(probed["cgroup_cpus"]),
        "memory": f"{round(psutil.virtual_memory().total / 2**30)} GiB",
        "InfiniBand": ", ".join(probed["infiniband"].values()),
        "NIC speeds": ", ".join(_speeds_of_interfaces(interfaces.values())),
        "MTU": _distinct_values(stats.mtu for name, stats in psutil.net_if_stats().items() if name in interfaces),
        "image": source["image_digest"] or "",
        "lock": source["lock_sha256"][:12],
        "code": probed["code_sha256"][:12],
        "kernel": platform.release(),
        "governor": _distinct_contents(governor_files),
        "huge pages": _read("/proc/sys/vm/nr_hugepages"),
        "transparent huge pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "data mount": _mount(job.data.folder) if job.data.folder else "no DATADIR",
        "firmware of the NIC": _distinct_contents(firmware_files),
        "BIOS": f"{_read('/sys/class/dmi/id/bios_version')} {_read('/sys/class/dmi/id/bios_date')}",
    }


def _sort_key(fact: str) -> int:
    """Return the index of the longest entry of ORDER that a fact begins with; without one, an index after all."""
    sort_key = len(ORDER)
    longest = ""
    for index, beginning in enumerate(ORDER):
        if fact.startswith(beginning) and len(beginning) > len(longest):
            sort_key = index
            longest = beginning
    return sort_key


def differences(record: Record) -> list[Difference]:
    """Return the facts that differ between the nodes of a fleet, first those that change speed most (ORDER).

    Args:
        record: What was measured on the fleet, as fleet.json holds it. Its nodes have facts such as {"MTU": "9000"}.

    Returns:
        For each such fact the usual value, and the nodes with other values. A fact that a node does not have is "not
        set" there. One more fact is "clock": how far the node's clock is from the first node's.
    """
    facts_by_host = _facts_by_host(record)
    # A dict is an ordered set: it has each name once, in the order in which the nodes have them.
    names = dict.fromkeys(itertools.chain.from_iterable(facts_by_host.values()))
    differing = []
    for name in sorted(names, key=_sort_key):
        hosts_by_value = _hosts_by_value(name, facts_by_host)
        if len(hosts_by_value) > 1:
            differing.append(_difference(name, hosts_by_value))
    return differing


def _facts_by_host(record: Record) -> dict[str, dict[str, str]]:
    """Return the facts of each node by name, with one more: "clock", the offset of its clock from the first node's."""
    facts_by_host = {}
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        facts_by_host[host] = node["facts"] | {"clock": _clock_offset_text(node["clock_offset_s"])}
    return facts_by_host


def _hosts_by_value(name: str, facts_by_host: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the hosts that have each value of a fact; without the fact a host has the value "not set"."""
    hosts_by_value: dict[str, list[str]] = {}
    for host, facts_of_host in facts_by_host.items():
        value = facts_of_host.get(name, "not set")
        hosts_by_value.setdefault(value, []).append(host)
    return hosts_by_value


def _difference(fact: str, hosts_by_value: Mapping[str, list[str]]) -> Difference:
    """Return the usual value of a fact, and the hosts of each other value.

    Args:
        fact: The name of the fact, such as "MTU".
        hosts_by_value: The hosts that have each value. The most common one is the usual value; of several equally
            common ones, the first.
    """
    most_common_first = sorted(hosts_by_value, key=lambda value: len(hosts_by_value[value]), reverse=True)
    usual = most_common_first[0]
    others = {value: hosts_by_value[value] for value in most_common_first[1:]}
    return Difference(fact=fact, usual=usual, others=others)


def _clock_offset_text(offset_s: float) -> str:
    """Return by how many seconds a node's clock is ahead of the first node's: 2.5 -> "+2.500 s".

    Args:
        offset_s: The seconds. All offsets up to MAX_CLOCK_OFFSET_S (0.5) in either direction have the same text, so
            that they do not count as a difference.
    """
    if abs(offset_s) > MAX_CLOCK_OFFSET_S:
        return f"{offset_s:+.3f} s"
    return f"within {MAX_CLOCK_OFFSET_S} s of the first node's"
