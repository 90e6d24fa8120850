"""The system description of MLPerf: 33 fields, by a log, and by this machine where the log was written on it.

The machine says what no log has. Fields that neither has must be given by `--set`.
"""

import argparse
import json
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compliance.check import check_file
from compliance.logged_run import NOTHING, LoggedRun
from compliance.rules import load, read_rules
from compliance.submission.description import STATUS_WORDS, Node, gpu_names, hardware_nodes, plausible_summary
from runlog import schema
from runlog.digits import six_digits
from runlog.text import printable

FIELDS = tuple(read_rules("system_description.yaml")["fields"])
NOTES = ("hw_notes", "sw_notes")  # free text: an empty note is valid too
# All fields about accelerators except their number, accelerators_per_node.
_FIELDS_OF_ONE_ACCELERATOR = tuple(name for name in FIELDS if name.startswith("accelerator_"))
NOT_STATED = "not stated"  # in a log whose SUBMISSION_ORG was left unset
CHOICES = {"status": tuple(STATUS_WORDS.values()), "division": ("closed", "open")}
# The official summarizer computes with these.
WHOLE_NUMBERS = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
_FIRST_CPU = "sys/devices/system/cpu/cpu0"
_SECTOR_BYTES = 512  # in which sys/block counts, whatever the sectors of the disk


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance system`: write a system description of MLPerf, and print its fields.

    A field given by --set replaces what was found.

    Args:
        options: Options of the command line: the file `out`, `log`, `set` (FIELD=VALUE texts), `force` and `json`.

    Returns:
        The exit status 0.

    Raises:
        ValueError: The file exists (without --force), a field is neither found nor given, or a value is invalid.
    """
    out: Path = options.out
    if out.exists() and not options.force:
        raise ValueError(f"{out}: exists; --force replaces it")
    given = _given_fields(options.set)
    fields = _found_fields(options.log, out.stem) | given
    _refuse_invalid(fields)
    description = {name: fields[name] for name in FIELDS}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(description, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.json:
        origins = {name: "given" if name in given else "found" for name in FIELDS}
        print(json.dumps({"file": str(out), "fields": description, "origins": origins}, indent=2))
        return 0
    print(f"{out}: {len(FIELDS)} fields, {len(given)} of them given")
    for name, value in description.items():
        print(f"  {name}: {printable(value, 1000)}")
    return 0


def _given_fields(settings: Sequence[str]) -> dict[str, str]:
    """Return the fields of a system description that the user gave, by name.

    Args:
        settings: Texts of the form FIELD=VALUE.

    Raises:
        ValueError: A text has another form, or names an unknown field.
    """
    given = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or name not in FIELDS:
            raise ValueError(f"--set {setting}: must be FIELD=VALUE with a field of the system description")
        given[name] = value
    return given


def _found_fields(log: Path, system_name: str) -> dict[str, str]:
    """Return the fields of a system description that a log states, and those that this machine knows, by name.

    The machine is asked only if the run was on it. If both know a field, the log's value is taken. A note that the log
    does not give is an empty text.

    Args:
        log: Path of the log.
        system_name: Name of the system, which is a field itself.

    Raises:
        ValueError: The log has no events.
    """
    any_ruleset = load("4.0.0")  # only the facts of the run are taken, which are the same by every ruleset
    checked = check_file(log, any_ruleset)
    if checked.run is NOTHING:  # the log has no events
        raise ValueError(f"{log}: no log of a run ({checked.why_no_run}): give the log of one")
    run = checked.run
    fields_of_machine: dict[str, str] = {}
    hosts_of_run = [node.get("host") for node in hardware_nodes(run)]
    if socket.gethostname() in hosts_of_run:
        fields_of_machine = from_machine(Path("/"))
    name_and_notes = {"system_name": system_name, **dict.fromkeys(NOTES, "")}
    return fields_of_machine | name_and_notes | from_log(run)  # a later source replaces a field of an earlier one


def _refuse_invalid(fields: Mapping[str, str]) -> None:
    """Raise ValueError if a field of a description is missing, or has a value that MLCommons' tools cannot take.

    Args:
        fields: Fields of the description by name.

    Raises:
        ValueError: A field is missing, a status or division is none of the allowed words, a count is not a whole
            number, or a text is not UTF-8.
    """
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        raise ValueError(
            f"cannot be found out here: {', '.join(missing)}; "
            "give each by --set FIELD=VALUE, or FIELD= where there is none"
        )
    for name, words in CHOICES.items():
        if fields[name] not in words:
            raise ValueError(f"{name} {fields[name]!r}: must be one of {', '.join(map(repr, words))}")
    for name in WHOLE_NUMBERS:
        if not fields[name].isdecimal():
            raise ValueError(f"{name} {fields[name]!r}: must be a whole number")
    for name in FIELDS:  # a text from bytes of another encoding may hold half of a surrogate pair
        if re.search("[\ud800-\udfff]", fields[name]):
            raise ValueError(f"{name} {printable(fields[name])}: is not text in UTF-8; give it by --set {name}=VALUE")


def from_log(run: LoggedRun) -> dict[str, str]:
    """Return the fields of a system description that a log states, by name.

    The hardware is that of the first node.

    Args:
        run: The run, by its log.

    Returns:
        The fields, such as {"number_of_nodes": "2"}. A field that the log does not have, or has as "not stated", is
        left out.
    """
    nodes = hardware_nodes(run)
    first_node: Node = nodes[0] if nodes else {}
    fields: dict[str, object] = {
        "submitter": run.first_event(schema.SUBMISSION_ORG).value,
        "division": run.first_event(schema.SUBMISSION_DIVISION).value,
        "status": STATUS_WORDS.get(run.stated_text(schema.SUBMISSION_STATUS)),
    }
    fields |= _software_of_run(run)
    if first_node.get("cpu"):
        fields["host_processor_model_name"] = str(first_node["cpu"])
    if first_node.get("memory_gib"):
        fields["host_memory_capacity"] = f"{first_node['memory_gib']} GiB"
    summary = plausible_summary(run)
    if summary is not None:
        fields["number_of_nodes"] = str(summary.nodes)
    fields |= _accelerators_of_node(first_node, summary)
    return {name: value for name, value in fields.items() if isinstance(value, str) and value != NOT_STATED}


def _software_of_run(run: LoggedRun) -> dict[str, str]:
    """Return the fields of a system description on the software that a log states.

    Args:
        run: The run, by its log.

    Returns:
        The framework, the packages and, as a note, the container image. What the log does not state is left out.
    """
    fields: dict[str, str] = {}
    if run.summary:
        fields["framework"] = run.summary.framework
    packages = [f"{name} {version}" for name, version in run.header_section(schema.PACKAGES).items()]
    if packages:
        fields["other_software_stack"] = "; ".join(packages)
    digest = run.header_section(schema.SOURCE).get("image_digest")
    if digest:
        fields["sw_notes"] = f"image {digest}"
    return fields


def _accelerators_of_node(node: Node, summary: schema.RunSummary | None) -> dict[str, str]:
    """Return the fields of a system description on a node's accelerators.

    Model and memory are those of the first GPU.

    Args:
        node: A machine as the header of the log describes it.
        summary: The log's event run_summary, which has the numbers of devices and nodes. None: the number of GPUs is
            left out.

    Returns:
        The fields; empty if the log does not say which GPUs the node has. If it has none, their number is 0, and the
        other fields are empty texts: they do not apply.
    """
    if "gpus" not in node:
        return {}
    names = gpu_names(node)
    if not names:
        return {"accelerators_per_node": "0", **dict.fromkeys(_FIELDS_OF_ONE_ACCELERATOR, "")}
    fields = {"accelerator_model_name": names[0]}
    if summary is not None:
        fields["accelerators_per_node"] = str(summary.devices // summary.nodes)
    first_gpu = node["gpus"][0]
    if isinstance(first_gpu, dict) and first_gpu.get("memory_gib"):
        fields["accelerator_memory_capacity"] = f"{first_gpu['memory_gib']} GiB"
    return fields


def from_machine(root: Path) -> dict[str, str]:
    """Return fields of a system description that logs do not state, from this machine and its GPU driver.

    Args:
        root: Folder with the machine's proc, sys and etc; `/` but in tests.

    Returns:
        The fields by name. Those that cannot be found out are left out.
    """
    fields = _processor(root) | _storage(root) | _network(root) | _accelerators()
    release = _text_of(root / "etc/os-release") or ""
    system = re.search(r'^PRETTY_NAME="?(.*?)"?$', release, re.MULTILINE)
    if system:
        fields["operating_system"] = f"{system[1]}, {os.uname().sysname} {platform.release()}"
    return {name: value for name, value in fields.items() if value is not None}


def _text_of(path: Path) -> str | None:
    """Return the text of a file without blanks around it; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _processor(root: Path) -> dict[str, str | None]:
    """Return the fields of a system description on the processors of this machine.

    Args:
        root: Folder with the machine's proc and sys.

    Returns:
        The fields by name. An empty text means that a field does not apply. A field that is None or left out is not
        known.
    """
    cpus = _cpus(root)  # what Linux calls a CPU is a hardware thread: two of them may share a core
    processors = {cpu.get("physical id") for cpu in cpus}
    if not cpus or None in processors:  # /proc/cpuinfo does not say of which processor each CPU is
        return {}
    cores = {(cpu.get("physical id"), cpu.get("core id")) for cpu in cpus}
    is_virtual = "hypervisor" in cpus[0].get("flags", "").split()
    fields: dict[str, str | None] = {
        "host_processors_per_node": str(len(processors)),
        "host_processor_core_count": str(len(cores) // len(processors)),  # of one processor
        "host_processor_vcpu_count": str(len(cpus)) if is_virtual else "",  # of the whole system
        "host_processor_caches": ", ".join(_caches(root)) or None,
    }
    highest_khz = _text_of(root / _FIRST_CPU / "cpufreq/cpuinfo_max_freq")
    if highest_khz:
        fields["host_processor_frequency"] = f"{int(highest_khz) / 1000:.0f} MHz (highest)"
    if len(processors) == 1:  # nothing to connect
        fields["host_processor_interconnect"] = ""
    return fields


def _cpus(root: Path) -> list[dict[str, str]]:
    """Return the CPUs of this machine by /proc/cpuinfo, each as a dict of its values.

    Args:
        root: Folder with the machine's proc; `/` but in tests.

    Returns:
        The CPUs, which are hardware threads; empty if the file cannot be read.
    """
    cpus = []
    for block in (_text_of(root / "proc/cpuinfo") or "").split("\n\n"):
        if block.strip():
            cpus.append(dict(re.findall(r"^(.+?)\s*:[ \t]*(.*)$", block, re.MULTILINE)))
    return cpus


def _caches(root: Path) -> list[str]:
    """Return the caches of the first CPU, such as `L1d 32KiB`."""
    caches = []
    for index in sorted((root / _FIRST_CPU / "cache").glob("index*")):
        level = _text_of(index / "level")
        kind = _text_of(index / "type")
        size = _text_of(index / "size")
        if level and kind and size:
            letter = "" if kind == "Unified" else kind[0].lower()
            caches.append(f"L{level}{letter} {size}iB")
    return caches


def _storage(root: Path) -> dict[str, str | None]:
    """Return the fields of a system description on this machine's built-in disks.

    Two NVMe disks of 480 GB give the type `NVMe SSD` and the capacity `480 GB, 480 GB`.

    Args:
        root: Folder with the machine's sys/block.

    Returns:
        The type and the capacity by the names of the fields; None for what is not known.
    """
    capacities = {}
    for disk in sorted((root / "sys/block").glob("*")):
        sectors = int(_text_of(disk / "size") or 0)
        is_device = (disk / "device").exists()  # a loop device, or another disk made by software, has none
        is_built_in = _text_of(disk / "removable") == "0"
        if is_device and is_built_in and sectors:
            capacities[disk.name] = f"{sectors * _SECTOR_BYTES / 1e9:.0f} GB"
    if not capacities:
        return {"host_storage_type": None, "host_storage_capacity": None}
    # No other type is told apart, because the file `rotational` of a virtual disk means nothing.
    are_nvme = all(name.startswith("nvme") for name in capacities)
    return {
        "host_storage_type": "NVMe SSD" if are_nvme else None,
        "host_storage_capacity": ", ".join(capacities.values()),
    }


def _network(root: Path) -> dict[str, str | None]:
    """Return the field of a system description with this machine's active InfiniBand ports and network cards.

    They are counted by kind and rate, such as `2x Ethernet 25 Gb/s`.

    Args:
        root: Folder with the machine's sys.

    Returns:
        The field `host_networking`; its value is None if there are none.
    """
    counts = Counter([*_active_infiniband_ports(root), *_network_cards(root)])
    if not counts:
        return {"host_networking": None}
    return {"host_networking": ", ".join(f"{count}x {name}" for name, count in sorted(counts.items()))}


def _active_infiniband_ports(root: Path) -> list[str]:
    """Return the kind and the rate of each active InfiniBand port, such as `InfiniBand or RoCE 100 Gb/sec (4X EDR)`."""
    ports = []
    for port in (root / "sys/class/infiniband").glob("*/ports/*"):
        rate = _text_of(port / "rate")
        state = _text_of(port / "state") or ""
        if rate and "ACTIVE" in state:
            ports.append(f"InfiniBand or RoCE {rate}")
    return ports


def _network_cards(root: Path) -> list[str]:
    """Return the kind and the rate of each network card that states its speed, such as `Ethernet 25 Gb/s`."""
    cards = []
    for card in (root / "sys/class/net").glob("*"):
        megabits_per_s = _text_of(card / "speed")
        is_device = (card / "device").exists()  # a bridge, or another card made by software, has none
        if is_device and megabits_per_s and megabits_per_s.isdecimal():
            cards.append(f"Ethernet {six_digits(int(megabits_per_s) / 1000)} Gb/s")
    return cards


def _accelerators() -> dict[str, str]:
    """Return the fields of a system description that the driver knows about this machine's first GPU.

    Returns:
        The fields by name. Empty without a GPU, a driver, or the package pynvml, which asks the driver.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return {}

    try:
        pynvml.nvmlInit()
    except _errors_of(pynvml):
        return {}
    try:
        return _fields_of_first_gpu(pynvml)
    finally:
        _answer_or_none(pynvml, pynvml.nvmlShutdown)


def _errors_of(pynvml: Any) -> tuple[type[Exception], ...]:
    """Return the errors that functions of `pynvml` raise: the second if the driver is older than pynvml."""
    return pynvml.NVMLError, pynvml.NVMLLibraryMismatchError


def _answer_or_none(pynvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the GPU driver's package returns; None if the driver has no answer.

    Args:
        pynvml: The package pynvml.
        function: The function of the package.
        arguments: Arguments of the function.
    """
    try:
        return function(*arguments)
    except _errors_of(pynvml):
        return None


def _fields_of_first_gpu(pynvml: Any) -> dict[str, str]:
    """Return the fields of a system description on the first GPU, as far as the driver knows them.

    Args:
        pynvml: The package pynvml, which was initialised.

    Returns:
        The fields, such as {"accelerator_host_interconnect": "PCIe gen 4 x16"}; empty if there is no GPU. An empty text
        means that a field does not apply.
    """

    def ask(function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer of the driver; None if it has none."""
        return _answer_or_none(pynvml, function, *arguments)

    gpu = ask(pynvml.nvmlDeviceGetHandleByIndex, 0)
    if gpu is None:
        return {}
    generation = ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu)
    width = ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, gpu)
    clock_mhz = ask(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_SM)
    fields: dict[str, str] = {}
    if generation is not None and width is not None:
        fields["accelerator_host_interconnect"] = f"PCIe gen {generation} x{width}"
    if clock_mhz is not None:
        fields["accelerator_frequency"] = f"{clock_mhz} MHz (highest)"
    if ask(pynvml.nvmlDeviceGetCount) == 1:  # there is no other GPU that it could be connected to
        fields |= {"accelerator_interconnect": "", "accelerator_interconnect_topology": ""}
    return fields
