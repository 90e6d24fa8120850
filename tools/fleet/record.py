"""The record of a fleet's acceptance, fleet.json: whether it is whole, and in what its nodes differ."""

import json
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness import env, provenance
from harness.job import Job
from runlog import named_files
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
    """A record, judged. Raises ValueError where the file is none, or has a figure or a list that none can have."""
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
        differences(record)  # whose error, too, is one of a damaged record
        return judge_record(record)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        why = str(error) if type(error) is ValueError else f"damaged ({type(error).__name__}: {error})"
        raise ValueError(f"{path}: {why}: give the file as --fleet wrote it") from error


def _check(record: Record) -> None:
    """Raises the error of whatever is not as a fleet's acceptance writes it."""
    hosts, metrics = record["hosts"], (STEP, STALLS, *record["metrics"])
    "".join((record["system"], record["time"], *hosts))  # no error: they are texts
    dict(record.get("job", {}))
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"its hosts have {max(hosts, key=hosts.count)} more than once")
    for what, of in {"facts": record["nodes"], **{n: record["metrics"][n]["series"] for n in metrics}}.items():
        if len(of) != len(hosts):
            raise ValueError(f"it has {len(hosts)} hosts and {what} of {len(of)}")
    for link in record["links"]:
        if not 0 <= link["a"] < link["b"] < len(hosts):
            raise ValueError(f"a link of {link['a']} and {link['b']} is none of {len(hosts)} hosts")
    series: dict[str, Series] = {metric: of_hosts(record, metric) for metric in metrics}
    series |= {metric: {name: link[metric] for name, link in links_of(record).items()} for metric in LINK_METRICS}
    series |= {"whole_s": {"all": record["whole_s"] or None}, "took_s": {"all": [record["took_s"]]}}
    for metric, of_metric in series.items():
        measured = {name: taken for name, taken in of_metric.items() if taken is not None}
        turns = len(next(iter(measured.values()), ()))
        for name, taken in measured.items():
            if not len(taken) == turns > 0:
                has = f"{metric} of {name} has {len(taken)} turns, another {turns}"
                raise ValueError(f"{has}: all are of the same turns")
            if wrong := [value for value in taken if not 0 < value < math.inf]:
                raise ValueError(f"{metric} of {name} is {wrong[0]}: a time is above 0 and finite")


def unlike(now: Record, then: Record) -> str:
    """Why a record is no baseline: it has other hosts, or its job took other steps; empty if it is one."""
    if not set(now["hosts"]) & set(then["hosts"]):
        return "has none of these hosts: give an earlier record of the same ones"
    old, new = (record.get("job", {}) for record in (then, now))
    other = ", ".join(f"{n} {old.get(n)} then, {new.get(n)} now" for n in old | new if old.get(n) != new.get(n))
    return other and f"is of another job ({other}): give an earlier record of the same job"


# ---- what should be alike on the nodes


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact that is not the same on all nodes."""

    fact: str
    usual: str  # on most of them
    others: dict[str, list[str]]  # other values, and the nodes that have them

    @property
    def but(self) -> str:
        """The others as text."""
        return "; ".join(f"{value}: {', '.join(hosts)}" for value, hosts in self.others.items())


def _read(path: str | Path) -> str:
    try:
        return " ".join(Path(path).read_text(encoding="utf-8").split())
    except OSError:
        return "not readable"


def _cpu_quota(root: Path) -> str:
    """Return the CPU quota as cgroup v2 has it, microseconds or "max" and of how many; v1's in that form."""
    if (root / "cpu.max").exists():
        return _read(root / "cpu.max")
    quota, period = (_read(root / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    return f"{'max' if quota == '-1' else quota} {period}"


def _each(values: Iterable[Any]) -> str:
    """The different ones."""
    return ", ".join(sorted(set(map(str, values))))


def _mount(folder: str) -> str:
    """File system and options of the mount that a folder is on."""
    path = Path(folder).resolve()
    at = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    best = max(at, key=lambda mount: len(mount.mountpoint), default=None)
    return f"{best.fstype} {best.opts}" if best else "unknown"


def facts(job: Job, probed: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of this node; `probed` is what the doctor found."""
    gpus, source = probed["gpus"], probed["source"]
    found = {
        "GPUs": ", ".join(f"{n} x {name}" for name, n in Counter(f"{g.name} {g.memory_gib} GiB" for g in gpus).items()),
        "driver": _each(gpu.driver for gpu in gpus),
        "power limits": _each(f"{gpu.power_limit_w} W" for gpu in gpus),
        "persistence": _each(gpu.persistence for gpu in gpus),
        "CPU": provenance.node().cpu,
        "cores": str(len(set().union(*probed["rank_cores"]))),
        "CPU quota": _cpu_quota(Path("/sys/fs/cgroup")),
        "memory": f"{round(psutil.virtual_memory().total / 2**30)} GiB",
        "InfiniBand": ", ".join(probed["infiniband"].values()),
        "NIC speeds": ", ".join(" ".join(what.split()[1:]) for what in probed["interfaces"].values()),
        "MTU": _each(s.mtu for name, s in psutil.net_if_stats().items() if name in probed["interfaces"]),
        "image": str(source["image_digest"]),
        "lock": source["lock_sha256"][:12],
        "code": probed["code_sha256"][:12],
        "kernel": platform.release(),
        "governor": _each(map(_read, Path("/sys").glob("devices/system/cpu/cpu*/cpufreq/scaling_governor"))),
        "huge pages": _read("/proc/sys/vm/nr_hugepages"),
        "transparent huge pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "data mount": _mount(job.data.folder) if job.data.folder else "no DATADIR",
        "firmware of the NIC": _each(map(_read, Path("/sys").glob("class/infiniband/*/fw_ver"))),
        "BIOS": f"{_read('/sys/class/dmi/id/bios_version')} {_read('/sys/class/dmi/id/bios_date')}",
    }
    libraries = {f"library {name}": answer for name, answer in probed["libraries"].items()}
    settings = {n: v for n, v in env.libraries().items() if n.startswith(("NCCL_", "UCX_", "OMPI_"))}
    return {name: value or "none" for name, value in (found | libraries | settings).items()}


def _place(fact: str) -> int:
    places = [i for i, word in enumerate(ORDER) if fact.startswith(word)]
    return max(places, key=lambda i: len(ORDER[i]), default=len(ORDER))


def differences(record: Record) -> list[Difference]:
    """List what differs between the nodes of a fleet, what matters first."""
    facts_of = {}
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        late_s = node["clock_offset_s"]
        clock = f"{late_s:+.3f} s" if abs(late_s) > CLOCK_S else f"within {CLOCK_S} s of the first node's"
        facts_of[host] = node["facts"] | {"clock": clock}
    found = []
    for name in sorted(dict.fromkeys(name for of in facts_of.values() for name in of), key=_place):
        values = {host: of.get(name, "not set") for host, of in facts_of.items()}
        (usual, _), *rest = Counter(values.values()).most_common()
        if rest:
            others = {value: [host for host in values if values[host] == value] for value, _ in rest}
            found.append(Difference(fact=name, usual=usual, others=others))
    return found
