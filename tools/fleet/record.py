"""The record of a fleet's acceptance, fleet.json: whether it is whole, and in what its nodes differ."""

import json
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness import env, provenance
from harness.job import Job
from runlog import named_files
from tools.fleet import arithmetic
from tools.fleet.verdicts import LINK_METRICS, STALLS, STEP, Judged, Record, Series, judge_record, links_of, of_hosts

FORMAT = {"format": "paddle-reference-fleet", "version": 1}
# In the table's order: first what changes speed most; a fact that begins with one of these words has its place.
ORDER = (
    *("GPUs", "driver", "power limits", "persistence", "CPU", "cores", "CPU quota", "memory"),
    *("InfiniBand", "NIC", "MTU", "NCCL_", "UCX_", "OMPI_", "image", "lock", "code", "library", "kernel"),
    *("governor", "huge pages", "transparent huge pages", "data mount", "firmware", "BIOS"),
)
EXCHANGE_MIB = 4  # of an all-reduce between two nodes
CLOCK_S = 0.5  # between two nodes' clocks


def read(path: Path) -> Judged:
    """Read a fleet's record, the file fleet.json that --fleet wrote, and judge its nodes and links.

    Returns the record with the verdicts. Raises ValueError, whose message names the file and says what to do, for a
    file that cannot be read, is no record, or has a field that no record can have.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{named_files.explain(error)}; give the fleet.json of a --fleet") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: give the fleet.json of a --fleet") from error
    if not isinstance(record, dict) or {name: record.get(name) for name in FORMAT} != FORMAT:
        raise ValueError(f"{path}: no record of a --fleet in this version's form: give its fleet.json")
    try:
        _check(record)
        differences(record)  # for its errors alone, which a damaged record causes
        return judge_record(record)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        why = f"damaged ({type(error).__name__}: {error})"
        if type(error) is ValueError:  # from a check here, which says in words what is wrong
            why = str(error)
        raise ValueError(f"{path}: {why}: give the file as --fleet wrote it") from error


def _check(record: Record) -> None:
    """Check that a record is complete and consistent, as a fleet's acceptance writes it.

    Raises ValueError where a host stands twice, a list has no entry for each host, a link is of no two hosts, a time is
    not above 0, or the digests do not fit. A field that is missing or of another type raises what Python makes of it,
    as KeyError or TypeError.
    """
    hosts = record["hosts"]
    "".join((record["system"], record["time"], *hosts))  # raises TypeError where one is no text
    dict(record.get("job", {}))  # raises an error where it is no mapping
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"its hosts have {max(hosts, key=hosts.count)} more than once")

    metrics = (STEP, STALLS, *record["metrics"])
    _check_length("facts", record["nodes"], hosts)
    for metric in metrics:
        _check_length(metric, record["metrics"][metric]["series"], hosts)
    for link in record["links"]:
        if not 0 <= link["a"] < link["b"] < len(hosts):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")

    for metric in metrics:
        _check_series(metric, of_hosts(record, metric))
    links = links_of(record)
    for metric in LINK_METRICS:
        _check_series(metric, {name: link[metric] for name, link in links.items()})
    _check_series("whole_s", {"all": record["whole_s"] or None})
    _check_series("took_s", {"all": [record["took_s"]]})
    arithmetic.check(record)


def _check_length(what: str, entries: Sequence[Any], hosts: Sequence[str]) -> None:
    """Raise ValueError unless a list of the record has an entry for each host; `what` names the list."""
    if len(entries) != len(hosts):
        raise ValueError(f"it has {len(hosts)} hosts and {what} of {len(entries)}")


def _check_series(metric: str, series: Series) -> None:
    """Raise ValueError unless all nodes or links were measured in equally many turns, and each value is a time.

    A time is above 0 and finite. Nodes or links that measured nothing (None) are passed over.
    """
    measured = {name: values for name, values in series.items() if values is not None}
    turns = len(next(iter(measured.values()), ()))
    for name, values in measured.items():
        if len(values) != turns or turns == 0:
            has = f"{metric} of {name} has {len(values)} turns, another {turns}"
            raise ValueError(f"{has}: all are of the same turns")
        for value in values:
            if not 0 < value < math.inf:
                raise ValueError(f"{metric} of {name} is {value}: a time is above 0 and finite")


def why_no_baseline(now: Record, then: Record) -> str:
    """Return why the record `then` is no baseline for `now`; empty if it is one.

    It must have one of the same hosts at least, and be of a job with the same settings.
    """
    if not set(now["hosts"]) & set(then["hosts"]):
        return "has none of these hosts: give an earlier record of the same ones"
    job_now = now.get("job", {})
    job_then = then.get("job", {})
    changed = []
    for name in job_then | job_now:
        if job_then.get(name) != job_now.get(name):
            changed.append(f"{name} {job_then.get(name)} then, {job_now.get(name)} now")
    if not changed:
        return ""
    return f"is of another job ({', '.join(changed)}): give an earlier record of the same job"


# ---- what should be alike on the nodes


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
    """Return a file's words on one line, or that it is not readable."""
    try:
        return " ".join(Path(path).read_text(encoding="utf-8").split())
    except OSError:
        return "not readable"


def _cpu_quota(root: Path) -> str:
    """Return the CPU quota as cgroup v2 has it, microseconds or "max" and of how many; v1's in that form."""
    if (root / "cpu.max").exists():
        return _read(root / "cpu.max")
    quota_us = _read(root / "cpu/cpu.cfs_quota_us")
    period_us = _read(root / "cpu/cpu.cfs_period_us")
    if quota_us == "-1":
        quota_us = "max"
    return f"{quota_us} {period_us}"


def _distinct(values: Iterable[Any]) -> str:
    """Return the distinct values as text, sorted and comma-separated: of 9000, 1500 and 1500 it is "1500, 9000"."""
    return ", ".join(sorted(set(map(str, values))))


def _distinct_texts(paths: Iterable[Path]) -> str:
    """Return the distinct texts of files, as `_distinct` does."""
    return _distinct(_read(path) for path in paths)


def _without_first_word(text: str) -> str:
    """Return a text without its first word: "10000 Mbit/s" of "10.0.0.1 10000 Mbit/s"."""
    return " ".join(text.split()[1:])


def _mount(folder: str) -> str:
    """Return the file system and the options of the mount that a folder is on, as "ext4 rw,relatime"."""
    path = Path(folder).resolve()
    deepest = ""  # the longest mount point that the folder is below, so the one that it is on
    description = "unknown"
    for mount in psutil.disk_partitions(all=True):
        if path.is_relative_to(mount.mountpoint) and len(mount.mountpoint) > len(deepest):
            deepest = mount.mountpoint
            description = f"{mount.fstype} {mount.opts}"
    return description


def _gpus(gpus: Iterable[Any]) -> str:
    """Return how many GPUs of each name and memory there are, as `8 x A100 40 GiB`."""
    counts = Counter(f"{gpu.name} {gpu.memory_gib} GiB" for gpu in gpus)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def facts_of_node(job: Job, probed: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of this node that decide how fast it is, by name: {"CPU": "AMD EPYC 7742", "MTU": "9000", ...}.

    Facts that differ from node to node explain why one is slower. An empty fact is "none". `probed` is what the doctor
    found here (tools/doctor/node.py); what it does not look at is read from /proc and /sys, and the settings of
    NCCL, UCX and Open MPI from the environment.
    """
    gpus = probed["gpus"]
    source = probed["source"]
    interfaces = probed["interfaces"]  # {name: "<address> <speed>"}
    sys = Path("/sys")
    of_machine = {
        "GPUs": _gpus(gpus),
        "driver": _distinct(gpu.driver for gpu in gpus),
        "power limits": _distinct(f"{gpu.power_limit_w} W" for gpu in gpus),
        "persistence": _distinct(gpu.persistence for gpu in gpus),
        "CPU": provenance.node().cpu,
        "cores": str(len(set().union(*probed["rank_cores"]))),
        "CPU quota": _cpu_quota(Path("/sys/fs/cgroup")),
        "memory": f"{round(psutil.virtual_memory().total / 2**30)} GiB",
        "InfiniBand": ", ".join(probed["infiniband"].values()),
        "NIC speeds": ", ".join(_without_first_word(text) for text in interfaces.values()),  # without the address
        "MTU": _distinct(stats.mtu for name, stats in psutil.net_if_stats().items() if name in interfaces),
        "image": str(source["image_digest"]),
        "lock": source["lock_sha256"][:12],
        "code": probed["code_sha256"][:12],
        "kernel": platform.release(),
        "governor": _distinct_texts(sys.glob("devices/system/cpu/cpu*/cpufreq/scaling_governor")),
        "huge pages": _read("/proc/sys/vm/nr_hugepages"),
        "transparent huge pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "data mount": _mount(job.data.folder) if job.data.folder else "no DATADIR",
        "firmware of the NIC": _distinct_texts(sys.glob("class/infiniband/*/fw_ver")),
        "BIOS": f"{_read('/sys/class/dmi/id/bios_version')} {_read('/sys/class/dmi/id/bios_date')}",
    }
    libraries = {f"library {name}": answer for name, answer in probed["libraries"].items()}
    settings = {name: value for name, value in env.libraries().items() if name.startswith(("NCCL_", "UCX_", "OMPI_"))}
    return {name: value or "none" for name, value in (of_machine | libraries | settings).items()}


def _place(fact: str) -> int:
    """Return a fact's place in ORDER, by the longest entry that it begins with; behind all where it has none."""
    place = len(ORDER)
    longest = ""
    for index, beginning in enumerate(ORDER):
        if fact.startswith(beginning) and len(beginning) > len(longest):
            place = index
            longest = beginning
    return place


def differences(record: Record) -> list[Difference]:
    """Return the facts that are not the same on all nodes of a fleet, those first that change speed most (ORDER).

    A node's clock is one of the facts, by how far it is off the first node's. A fact that a node lacks counts as the
    value "not set".
    """
    facts_by_host = {}
    names: dict[str, None] = {}  # of all facts, each once, in the order in which the nodes have them
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        facts_by_host[host] = node["facts"] | {"clock": _clock(node["clock_offset_s"])}
        names |= dict.fromkeys(facts_by_host[host])

    differing = []
    for name in sorted(names, key=_place):
        hosts_by_value: dict[str, list[str]] = {}
        for host, facts_of_host in facts_by_host.items():
            value = facts_of_host.get(name, "not set")
            hosts_by_value.setdefault(value, []).append(host)
        if len(hosts_by_value) > 1:
            differing.append(_difference(name, hosts_by_value))
    return differing


def _difference(fact: str, hosts_by_value: Mapping[str, list[str]]) -> Difference:
    """Return a fact's most common value and the hosts of each other one; of equally common ones the first is usual."""
    commonest_first = sorted(hosts_by_value, key=lambda value: len(hosts_by_value[value]), reverse=True)
    usual = commonest_first[0]
    others = {value: hosts_by_value[value] for value in commonest_first[1:]}
    return Difference(fact=fact, usual=usual, others=others)


def _clock(offset_s: float) -> str:
    """Return how far a node's clock is off, as the same text for all that are near the first node's."""
    if abs(offset_s) > CLOCK_S:
        return f"{offset_s:+.3f} s"
    return f"within {CLOCK_S} s of the first node's"
