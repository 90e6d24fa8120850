"""The system description of a submission, and where a log says otherwise."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compliance.check import LoggedRun
from compliance.logged_run import COUNT, NUMBER, has_type
from compliance.rules import Finding, StrictRule, breach, most_images_per_s
from runlog import schema
from runlog.reader import open_log, parse_json
from runlog.text import printable

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])i?B", re.IGNORECASE)
_ACCELERATORS = ("number_of_nodes", "accelerators_per_node")
_NO_LINUX = re.compile(r"\b(windows|mac ?os|\w*bsd)\b", re.IGNORECASE)
LARGEST_JSON_BYTES = 1 << 20
STATUS_WORDS = {
    "cloud": "Available cloud",
    "onprem": "Available on-premise",
    "preview": "Preview",
    "research": "Research, Development, or Internal (RDI)",
}


def read_description(path: Path) -> dict[str, Any]:
    """The JSON object of a system description. Raises ValueError if it is none."""
    try:
        with open_log(path) as stream:
            text = stream.read(LARGEST_JSON_BYTES + 1)
        if len(text) > LARGEST_JSON_BYTES:
            raise ValueError(f"over {LARGEST_JSON_BYTES >> 20} MiB")
        description = parse_json(text.decode())
    except ValueError as error:
        raise ValueError(f"{path}: no system description: {error}") from None
    if not isinstance(description, dict):
        raise ValueError(f"{path}: no system description: not a JSON object")
    return description


def compare_description(run: LoggedRun, description: dict[str, Any], rule: StrictRule) -> list[Finding]:
    values, found = run.values, over_peak(run, description, rule)

    def compare(key: str, name: str, logged: object) -> None:
        if logged is not None and str(description.get(name)).casefold() != str(logged).casefold():
            shown = f"{name} is {printable(description.get(name))}"
            actual = f"{shown}; by the log's {key} it is {printable(logged)}"
            found.append(breach(rule, actual, line=run.lines.get(key)))

    compare("submission_org", "submitter", values.get("submission_org"))
    compare("submission_division", "division", values.get("submission_division"))
    status = run.text(schema.SUBMISSION_STATUS)
    if description.get("status") != status:  # descriptions of the older rounds have the log's word
        compare("submission_status", "status", STATUS_WORDS.get(status))
    summary, key = run.summary, schema.RUN_SUMMARY.key
    nodes_of_log = hardware_nodes(run)
    if summary and 0 < summary.nodes < 2**63 and 0 <= summary.devices < 2**63:
        on_cpu = bool(nodes_of_log) and not any(gpu_names(node) for node in nodes_of_log)
        compare(key, "number_of_nodes", summary.nodes)
        compare(key, "accelerators_per_node", 0 if on_cpu else summary.devices // summary.nodes)
    if summary and summary.framework.casefold() not in str(description.get("framework")).casefold():
        compare(key, "framework", summary.framework)
    for name, logged in dict(pair for node in nodes_of_log for pair in _machine_differs(node, description)).items():
        compare(schema.HARDWARE.name, name, logged)
    model = str(description.get("accelerator_model_name")).casefold()
    if others := [name for node in nodes_of_log for name in gpu_names(node) if name.casefold() not in model]:
        compare(schema.HARDWARE.name, "accelerator_model_name", others[0])
    return found


def over_peak(run: LoggedRun, description: dict[str, Any], rule: StrictRule) -> list[Finding]:
    """Report a ResNet run that took less time for its epochs than the peak of the described accelerators allows."""
    samples, counts = run.count(schema.TRAIN_SAMPLES), [description.get(name) for name in _ACCELERATORS]
    known = run.text(schema.SUBMISSION_BENCHMARK) == "resnet" and samples
    if not (known and run.evaluations and (run.minutes or 0) > 0 and all(str(count).isdecimal() for count in counts)):
        return []
    number, model = math.prod(int(str(count)[:6]) for count in counts), str(description.get("accelerator_model_name"))
    most = most_images_per_s([model], 0) if number else None
    rate = samples * run.evaluations[-1].epoch / (run.minutes or 1) / 60
    if most is None or rate <= most * number:
        return []
    actual = f"{rate:.6g} images/s by its epochs and time; {number} {printable(model)} do {most * number:.6g} at most"
    return [breach(rule, actual, line=run.lines.get(schema.RUN_STOP.key))]


def _machine_differs(node: dict[str, Any], description: dict[str, Any]) -> Iterator[tuple[str, str]]:
    def number(name: str) -> int:
        text = str(description.get(name))
        return int(text) if text.isdecimal() else 0

    model, stated = str(node.get("cpu")).casefold(), str(description.get("host_processor_model_name", "")).casefold()
    models = [{word for word in re.findall(r"[\w-]{3,}", said) if re.search(r"\d", word)} for said in (model, stated)]
    if node.get("cpu") and stated.strip() and model not in stated and not models[0] & models[1]:
        yield "host_processor_model_name", str(node["cpu"])
    cores, logged = number("host_processors_per_node") * number("host_processor_core_count"), node.get("cores")
    threads = max(number("host_processor_vcpu_count"), 2 * cores)
    if cores and has_type(logged, COUNT) and not cores / 2 <= logged <= threads:  # type: ignore[operator]
        yield "host_processor_core_count", f"{logged} cores a node that the job may use"
    size, memory = _SIZE.search(str(description.get("host_memory_capacity"))), node.get("memory_gib")
    if size and has_type(memory, NUMBER) and memory:
        gib = float(size[1]) * {"M": 1 / 1024, "G": 1, "T": 1024}[size[2].upper()]
        if not 0.75 <= gib / memory <= 1.35:
            yield "host_memory_capacity", f"{memory} GiB"
    if _NO_LINUX.search(str(description.get("operating_system"))):
        yield "operating_system", f"Linux {node.get('kernel')}"


def gpu_names(node: dict[str, Any]) -> list[str]:
    gpus = node.get("gpus")
    names = [gpu.get("name") if isinstance(gpu, dict) else gpu for gpu in gpus] if isinstance(gpus, list) else []
    return [printable(name) for name in names]


def hardware_nodes(run: LoggedRun) -> list[dict[str, Any]]:
    nodes = run.section(schema.HARDWARE).get("nodes")
    return [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
