"""The system description of MLPerf: 33 fields, by a log, and by this machine where the log was written on it.

The machine says what no log has. What neither has is asked for.
"""

import argparse
import json
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compliance.check import LoggedRun, check_file
from compliance.rules import load, read_rules
from compliance.submission.description import STATUS_WORDS, gpu_names, hardware_nodes
from runlog import schema
from runlog.text import printable

FIELDS = tuple(read_rules("system_description.yaml")["fields"])
NOTES = ("hw_notes", "sw_notes")  # free text: no note is a fact too
NOT_STATED = "not stated"  # what a log says where SUBMISSION_ORG was left unset


def command(options: argparse.Namespace) -> int:
    """`python -m compliance system`. Raises ValueError if a field is unknown, naming all that are."""
    out: Path = options.out
    if out.exists() and not options.force:
        raise ValueError(f"{out}: exists; --force replaces it")
    given = {}
    for setting in options.set:
        name, separator, value = setting.partition("=")
        if not separator or name not in FIELDS:
            raise ValueError(f"--set {setting}: must be FIELD=VALUE with a field of the system description")
        given[name] = value
    found: dict[str, str] = {"system_name": out.stem, **dict.fromkeys(NOTES, "")}
    run = check_file(options.log, load("4.0.0")).run
    found |= from_log(run)
    if socket.gethostname() in [machine.get("host") for machine in hardware_nodes(run)]:  # it was written here
        found = from_machine(Path("/")) | found
    fields = found | given
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        raise ValueError(
            f"cannot be found out here: {', '.join(missing)}; "
            "give each by --set FIELD=VALUE, or FIELD= where there is none"
        )
    for name, words in (("status", STATUS_WORDS.values()), ("division", ("closed", "open"))):
        if fields[name] not in words:
            raise ValueError(f"{name} {fields[name]!r}: must be one of {', '.join(map(repr, words))}")
    for name in ("number_of_nodes", "host_processors_per_node", "accelerators_per_node"):
        if not fields[name].isdecimal():  # the official summarizer computes with them
            raise ValueError(f"{name} {fields[name]!r}: must be a whole number")
    description = {name: fields[name] for name in FIELDS}
    for name, value in description.items():
        if re.search("[\ud800-\udfff]", value):
            raise ValueError(f"{name} {printable(value)}: is no text in UTF-8; give it by --set {name}=VALUE")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(description, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.json:
        origins = {name: "given" if name in given else "found" for name in FIELDS}
        print(json.dumps({"file": str(out), "fields": description, "origins": origins}, indent=2))
    else:
        lines = [f"  {name}: {printable(value, 1000)}" for name, value in description.items()]
        print(f"{out}: {len(FIELDS)} fields, {len(given)} of them given", *lines, sep="\n")
    return 0


def from_log(run: LoggedRun) -> dict[str, str]:
    summary, machine = run.summary, next(iter(hardware_nodes(run)), {})
    gpus = gpu_names(machine)
    packages, digest = run.section(schema.PACKAGES), run.section(schema.SOURCE).get("image_digest")
    found = {
        "submitter": run.of(schema.SUBMISSION_ORG).value,
        "division": run.of(schema.SUBMISSION_DIVISION).value,
        "status": STATUS_WORDS.get(run.text(schema.SUBMISSION_STATUS)),
        "framework": summary.framework if summary else None,
        "host_processor_model_name": str(machine["cpu"]) if machine.get("cpu") else None,
        "host_memory_capacity": f"{machine['memory_gib']} GiB" if machine.get("memory_gib") else None,
        "other_software_stack": "; ".join(f"{name} {version}" for name, version in packages.items()) or None,
        "sw_notes": f"image {digest}" if digest else None,
    }
    if summary and 0 < summary.nodes < 2**63 and summary.devices < 2**63:
        found["number_of_nodes"] = str(summary.nodes)
        if gpus:
            found["accelerators_per_node"] = str(summary.devices // summary.nodes)
    if gpus:
        found["accelerator_model_name"] = gpus[0]
        card = machine["gpus"][0]
        if isinstance(card, dict) and card.get("memory_gib"):
            found["accelerator_memory_capacity"] = f"{card['memory_gib']} GiB"
    elif "gpus" in machine:
        found |= {"accelerators_per_node": "0"} | {name: "" for name in FIELDS if name.startswith("accelerator_")}
    return {name: value for name, value in found.items() if isinstance(value, str) and value != NOT_STATED}


def from_machine(root: Path) -> dict[str, str]:
    """The fields that no log has and this machine says: /proc, /sys and /etc below `root`, and the driver."""
    found = _processor(root) | _storage(root) | _network(root) | _accelerators()
    if system := re.search(r'^PRETTY_NAME="?(.*?)"?$', _read(root / "etc/os-release") or "", re.MULTILINE):
        found["operating_system"] = f"{system[1]}, {os.uname().sysname} {platform.release()}"
    return {name: value for name, value in found.items() if value is not None}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _processor(root: Path) -> dict[str, str | None]:
    blocks = (_read(root / "proc/cpuinfo") or "").split("\n\n")
    cpus = [dict(re.findall(r"^(.+?)\s*:[ \t]*(.*)$", block, re.MULTILINE)) for block in blocks if block.strip()]
    cores = {(cpu.get("physical id"), cpu.get("core id")) for cpu in cpus}
    sockets = {socket_ for socket_, _ in cores}
    if not cpus or None in sockets:
        return {}
    virtual = "hypervisor" in cpus[0].get("flags", "").split()
    first = root / "sys/devices/system/cpu/cpu0"
    highest = _read(first / "cpufreq/cpuinfo_max_freq")
    caches = []
    for index in sorted((first / "cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        if level and kind and size:
            caches.append(f"L{level}{'' if kind == 'Unified' else kind[0].lower()} {size}iB")
    return {
        "host_processors_per_node": str(len(sockets)),
        "host_processor_core_count": str(len(cores) // len(sockets)),
        "host_processor_vcpu_count": str(len(cpus)) if virtual else "",
        "host_processor_frequency": f"{int(highest) / 1000:.0f} MHz (highest)" if highest else None,
        "host_processor_caches": ", ".join(caches) or None,
        "host_processor_interconnect": "" if len(sockets) == 1 else None,
    }


def _storage(root: Path) -> dict[str, str | None]:
    disks = {}
    for disk in sorted((root / "sys/block").glob("*")):
        sectors = int(_read(disk / "size") or 0)
        if (disk / "device").exists() and sectors and _read(disk / "removable") == "0":
            disks[disk.name] = f"{sectors * 512 / 1e9:.0f} GB"
    # a virtual disk's `rotational` says nothing; NVMe names itself
    kind = "NVMe SSD" if disks and all(name.startswith("nvme") for name in disks) else None
    return {"host_storage_type": kind, "host_storage_capacity": ", ".join(disks.values()) or None}


def _network(root: Path) -> dict[str, str | None]:
    found: Counter[str] = Counter()
    for port in (root / "sys/class/infiniband").glob("*/ports/*"):
        rate = _read(port / "rate")
        if rate and "ACTIVE" in (_read(port / "state") or ""):
            found[f"InfiniBand or RoCE {rate}"] += 1
    for card in (root / "sys/class/net").glob("*"):
        speed = _read(card / "speed")
        if (card / "device").exists() and speed and speed.isdecimal():
            found[f"Ethernet {int(speed) / 1000:g} Gb/s"] += 1
    shown = ", ".join(f"{count}x {name}" for name, count in sorted(found.items()))
    return {"host_networking": shown or None}


def _accelerators() -> dict[str, str | None]:
    """Return what NVML says of this machine's first GPU; nothing where there is no driver, or no package to ask it by.

    A laptop has neither. What nobody answered is then asked for by `--set`.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return {}

    unanswered = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)  # the second where a driver is older than pynvml

    def ask(question: Callable[..., Any], *about: Any) -> Any:
        try:
            return question(*about)
        except unanswered:
            return None

    try:
        pynvml.nvmlInit()
    except unanswered:
        return {}
    try:
        card = ask(pynvml.nvmlDeviceGetHandleByIndex, 0)
        if card is None:
            return {}
        link = ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, card), ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, card)
        clock_mhz = ask(pynvml.nvmlDeviceGetMaxClockInfo, card, pynvml.NVML_CLOCK_SM)
        alone = {"accelerator_interconnect": "", "accelerator_interconnect_topology": ""}
        return {
            "accelerator_host_interconnect": None if None in link else "PCIe gen {} x{}".format(*link),
            "accelerator_frequency": None if clock_mhz is None else f"{clock_mhz} MHz (highest)",
            **(alone if ask(pynvml.nvmlDeviceGetCount) == 1 else {}),
        }
    finally:
        ask(pynvml.nvmlShutdown)
