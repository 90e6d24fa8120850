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
from tools.fleet.judged import Judged, judge_record
from tools.fleet.verdicts import LINK_METRICS, STALLS, STEP, Record, Series, links_of, of_hosts

FORMAT = {"format": "paddle-reference-fleet", "version": 1}
# The order of facts in the report, first what changes speed most. A fact is sorted by the entry that it begins with.
ORDER = (
    *("GPUs", "driver", "power limits", "persistence", "CPU", "cores", "CPU quota", "memory"),
    *("InfiniBand", "NIC", "MTU", "NCCL_", "UCX_", "OMPI_", "image", "lock", "code", "library", "kernel"),
    *("governor", "huge pages", "transparent huge pages", "data mount", "firmware", "BIOS"),
)
EXCHANGE_MIB = 4  # of an all-reduce between two nodes
MOST_CLOCK_OFFSET_S = 0.5  # of a node's clock from the first node's, in either direction


def read(path: Path) -> Judged:
    """Read a fleet's record, the file fleet.json that --fleet wrote; return it with the verdicts on nodes and links.

    Raises ValueError if the file is not a whole record of this version. The message names the file and says what to do.
    """
    record = _read_format(path)
    try:
        _check(record)
        return judge_record(record)
    except (LookupError, TypeError, AttributeError) as error:  # a field is missing, or of another type
        damage = f"damaged ({type(error).__name__}: {error})"
        raise ValueError(f"{path}: {damage}: give the file as --fleet wrote it") from error
    except ValueError as error:  # a wrong value, which the text names
        raise ValueError(f"{path}: {error}: give the file as --fleet wrote it") from error


def _read_format(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; ValueError if the file cannot be read, or is not a record of this version."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{named_files.explain(error)}; give the fleet.json of a --fleet") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: give the fleet.json of a --fleet") from error
    is_this_format = isinstance(record, dict) and all(record.get(name) == FORMAT[name] for name in FORMAT)
    if not is_this_format:
        raise ValueError(f"{path}: no record of a --fleet in this version's form: give its fleet.json")
    return record


def _check(record: Record) -> None:
    """Raise an error unless a record (fleet.json) is complete and its parts fit together.

    - A value is wrong: ValueError.
    - A field is missing or of another type: LookupError, TypeError or AttributeError, from the line that reads it.
    """
    hosts = record["hosts"]
    _raise_unless_texts((record["system"], record["time"], *hosts))
    _raise_unless_mapping(record.get("job", {}))
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"its hosts have {max(hosts, key=hosts.count)} more than once")
    metrics = (STEP, STALLS, *record["metrics"])  # without the first two the lookup raises KeyError
    _check_length("facts", record["nodes"], hosts)
    for metric in metrics:
        _check_length(metric, record["metrics"][metric]["series"], hosts)
    for link in record["links"]:
        if not 0 <= link["a"] < link["b"] < len(hosts):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")
    _check_times(record, metrics)
    if record.get("digests") is not None:
        _check_digests(record)
    differences(record)  # only to read each node's facts: the result is not needed here


def _check_times(record: Record, metrics: Iterable[str]) -> None:
    """Raise ValueError unless every series of times is right: of `metrics`, of the links and of the whole fleet."""
    for metric in metrics:
        _check_series(metric, of_hosts(record, metric))
    links = links_of(record)
    for metric in LINK_METRICS:
        _check_series(metric, {name: link[metric] for name, link in links.items()})
    # Both are of the whole fleet: "all" stands for the name of a node.
    whole_s = record["whole_s"] or None  # an empty list: not measured
    _check_series("whole_s", {"all": whole_s})
    _check_series("took_s", {"all": [record["took_s"]]})


def _raise_unless_mapping(value: Any) -> None:
    """Raise TypeError or ValueError if a value cannot be read as a mapping."""
    dict(value)


def _raise_unless_texts(values: Iterable[Any]) -> None:
    """Raise TypeError if one of the values is not a text."""
    "".join(values)


def _check_length(what: str, entries: Sequence[Any], hosts: Sequence[str]) -> None:
    """Raise ValueError unless a list of the record has one entry for each host; `what` names the list."""
    if len(entries) != len(hosts):
        raise ValueError(f"it has {len(hosts)} hosts and {what} of {len(entries)}")


def _check_series(metric: str, series: Series) -> None:
    """Raise ValueError unless all nodes or links have equally many values of a metric, and each value is a time.

    Each node or link has one value for each turn. All nodes take part in every turn, so all have the same number of
    values, at least one. A time is above 0 and finite. Nodes or links that measured nothing (None) are skipped.
    """
    measured = {name: values for name, values in series.items() if values is not None}
    turns = len(next(iter(measured.values()), ()))  # of the first one that was measured; the others must have as many
    for name, values in measured.items():
        if len(values) != turns or turns == 0:
            has = f"{metric} of {name} has {len(values)} turns, another {turns}"
            raise ValueError(f"{has}: all are of the same turns")
        for value in values:
            if not 0 < value < math.inf:
                raise ValueError(f"{metric} of {name} is {value}: a time is above 0 and finite")


def _check_digests(record: Record) -> None:
    """Raise an error if the digests of a record that has some are incomplete, or do not fit together.

    - A value is wrong: ValueError.
    - A field is missing or of another type: LookupError, TypeError or AttributeError.
    """
    _check_tables(record["digests"])
    _check_ranks(record["digests"]["ranks"], record["hosts"])
    for rank in arithmetic.ranks_of(record):
        _check_repetitions(rank)


def _check_repetitions(rank: arithmetic.Rank) -> None:
    """Raise ValueError unless a rank has either positive counts of repetitions or a failure.

    Raises TypeError if one of its texts is not a text.
    """
    _raise_unless_texts((rank.node, rank.device, rank.class_name or "", rank.failure or ""))
    for count in rank.count_by_table.values():
        if type(count) is not int or count < 1:
            raise ValueError(f"rank {rank.rank} has {count} repetitions of a table")
    has_failed = rank.failure is not None
    has_repetitions = bool(rank.count_by_table)
    if has_failed == has_repetitions:
        raise ValueError(f"rank {rank.rank} has neither repetitions nor a failure, or both")


def _check_ranks(entries: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> None:
    """Raise ValueError unless the ranks are numbered from 0 on, and each host has a rank.

    `entries` are the ranks as the record has them. The "unit" of an entry is the index of its host in `hosts`; another
    index raises ValueError too.
    """
    rank_numbers = [entry["rank"] for entry in entries]
    if rank_numbers != list(range(len(entries))):
        raise ValueError(f"the digests' ranks are not numbered from 0 to {len(entries) - 1}")
    indices_with_a_rank = {entry["unit"] for entry in entries}
    for host_index, host in enumerate(hosts):
        if host_index not in indices_with_a_rank:
            raise ValueError(f"no rank of {host} has digests or a failure")
    unknown_indices = indices_with_a_rank - set(range(len(hosts)))
    if unknown_indices:
        raise ValueError(f"the digests have a rank of host {min(unknown_indices)}, of {len(hosts)} hosts")


def _check_tables(digests: arithmetic.Digests) -> None:
    """Raise ValueError unless each table has a row for each step, and each row a digest of each tensor.

    Raises TypeError if the name of a tensor or a digest is not a text.
    """
    steps = digests["steps"]
    tensors = digests["tensors"]
    _raise_unless_texts(tensors)
    for table_name, table in digests["tables"].items():
        row_lengths = set(map(len, table))
        for row in table:
            _raise_unless_texts(row)
        if len(table) != steps or row_lengths != {len(tensors)}:
            raise ValueError(f"table {table_name} has not {len(tensors)} digests in each of {steps} steps")


def why_no_baseline(now: Record, then: Record) -> str:
    """Return why the earlier record `then` cannot be the baseline of the record `now`; empty if it can.

    The two must have at least one host in common, and their jobs must have the same settings.
    """
    if not set(now["hosts"]) & set(then["hosts"]):
        return "has none of these hosts: give an earlier record of the same ones"
    job_now = now.get("job", {})  # settings by name
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
    """Return a file's words on one line, or "not readable" if the file cannot be read."""
    try:
        return " ".join(Path(path).read_text(encoding="utf-8").split())
    except OSError:
        return "not readable"


def _cpu_quota(root: Path) -> str:
    """Return the CPU quota of this machine's cgroup: "<quota> <period>" in microseconds, or "max <period>" for none.

    `root` is the folder of the cgroup. Its files are those of cgroup v2 or v1.
    """
    is_v2 = (root / "cpu.max").exists()
    if is_v2:
        return _read(root / "cpu.max")
    quota_us = _read(root / "cpu/cpu.cfs_quota_us")
    period_us = _read(root / "cpu/cpu.cfs_period_us")
    if quota_us == "-1":
        quota_us = "max"
    return f"{quota_us} {period_us}"


def _distinct(values: Iterable[Any]) -> str:
    """Return the distinct values as text, sorted and comma-separated: 9000, 1500, 1500 -> "1500, 9000"."""
    return ", ".join(sorted(set(map(str, values))))


def _distinct_texts(paths: Iterable[Path]) -> str:
    """Return the distinct contents of files as one text, sorted and comma-separated."""
    return _distinct(_read(path) for path in paths)


def _without_first_word(text: str) -> str:
    """Return a text without its first word: "10.0.0.1 10000 Mbit/s" -> "10000 Mbit/s"."""
    return " ".join(text.split()[1:])


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
    counts = Counter(f"{gpu.name} {gpu.memory_gib} GiB" for gpu in gpus)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def facts_of_node(job: Job, probed: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of this node that decide how fast it is, by name: {"CPU": "AMD EPYC 7742", "MTU": "9000", ...}.

    `probed` is what the doctor found on this node (tools/doctor/node.py). An empty fact has the value "none".
    """
    libraries = {f"library {name}": answer for name, answer in probed["libraries"].items()}
    settings = {name: value for name, value in env.libraries().items() if name.startswith(("NCCL_", "UCX_", "OMPI_"))}
    facts = _facts_of_machine(job, probed) | libraries | settings
    return {name: value or "none" for name, value in facts.items()}


def _facts_of_machine(job: Job, probed: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of this node's hardware, system and code, from `probed` and from /proc and /sys.

    A fact may be empty.
    """
    gpus = probed["gpus"]
    source = probed["source"]
    interfaces = probed["interfaces"]  # {name: "<address> <speed>"}
    sys = Path("/sys")
    return {
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

    The offset of a node's clock from the first node's is a fact, too. If a node lacks a fact, its value is "not set".
    """
    facts_by_host = {}
    fact_names: dict[str, None] = {}  # an ordered set: each name once, in the order in which the nodes have them
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        facts_by_host[host] = node["facts"] | {"clock": _clock_offset_text(node["clock_offset_s"])}
        fact_names |= dict.fromkeys(facts_by_host[host])

    differing = []
    for name in sorted(fact_names, key=_sort_key):
        hosts_by_value: dict[str, list[str]] = {}
        for host, facts_of_host in facts_by_host.items():
            value = facts_of_host.get(name, "not set")
            hosts_by_value.setdefault(value, []).append(host)
        if len(hosts_by_value) > 1:
            differing.append(_difference(name, hosts_by_value))
    return differing


def _difference(fact: str, hosts_by_value: Mapping[str, list[str]]) -> Difference:
    """Return the usual value of a fact, and the hosts of each other value.

    The usual value is the most common one. If several are equally common, it is the first of them in `hosts_by_value`.
    """
    most_common_first = sorted(hosts_by_value, key=lambda value: len(hosts_by_value[value]), reverse=True)
    usual = most_common_first[0]
    others = {value: hosts_by_value[value] for value in most_common_first[1:]}
    return Difference(fact=fact, usual=usual, others=others)


def _clock_offset_text(offset_s: float) -> str:
    """Return by how many seconds a node's clock is ahead of the first node's: 2.5 -> "+2.500 s".

    All offsets up to MOST_CLOCK_OFFSET_S have the same text, so that they do not count as a difference.
    """
    if abs(offset_s) > MOST_CLOCK_OFFSET_S:
        return f"{offset_s:+.3f} s"
    return f"within {MOST_CLOCK_OFFSET_S} s of the first node's"
