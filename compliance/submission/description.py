"""The system description of a submission, and where a log says otherwise."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from compliance.logged_run import LoggedRun, is_count, is_number
from compliance.rules import Finding, StrictRule, breach, most_images_per_s, training_flop
from runlog import schema, workloads
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.reader import open_log
from runlog.strict_json import parse_json
from runlog.text import printable

Description: TypeAlias = JsonObject  # the fields of a system description
Node: TypeAlias = JsonObject  # a machine as the header of a log describes it

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])i?B", re.IGNORECASE)
_GIB_OF_UNIT = {"M": 1 / 1024, "G": 1, "T": 1024}
_MAX_DEVICES = 2**63  # a log with this many devices or nodes, or more, holds garbage
# Bounds of described memory / memory in the log. The described one is rounded, and may be in GB or GiB; the one in the
# log is what the kernel, or the driver of a GPU, leaves of it.
_MIN_MEMORY_RATIO = 0.75
_MAX_MEMORY_RATIO = 1.35
MAX_DIGITS = 6  # of a described number are used: it may have thousands
# Numbers above 0 on any node; an empty text is not 0, but not stated.
_PARTS_OF_EACH_NODE = ("host_processors_per_node", "host_processor_core_count")
_NO_ACCELERATOR = ("", "-", "n/a", "na", "none", "not applicable")  # as a description may name none
_OTHER_SYSTEM_THAN_LINUX = re.compile(r"\b(windows|mac ?os|\w*bsd)\b", re.IGNORECASE)
LARGEST_JSON_BYTES = 1 << 20
STATUS_WORDS = {
    "cloud": "Available cloud",
    "onprem": "Available on-premise",
    "preview": "Preview",
    "research": "Research, Development, or Internal (RDI)",
}


def read_description(path: Path) -> Description:
    """Read a system description from a file. Raises what `read_object` raises."""
    return read_object(path, "a system description")


def read_object(path: Path, what: str) -> JsonObject:
    """Read a JSON object from a file.

    Args:
        path: The file.
        what: What the file should hold, for messages, such as "a manifest".

    Raises:
        ValueError: The file holds anything else, is over 1 MiB, or is not a regular file.
        OSError: The file cannot be opened.
    """
    try:
        with open_log(path) as stream:
            text = stream.read(LARGEST_JSON_BYTES + 1)  # one more byte shows that the file is too large
        if len(text) > LARGEST_JSON_BYTES:
            raise ValueError(f"over {LARGEST_JSON_BYTES >> 20} MiB")
        value = parse_json(text.decode())
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as {what}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: cannot be read as {what}: not a JSON object")
    return value


def compare_description(run: LoggedRun, description: Description, rule: StrictRule) -> list[Finding]:
    """Return a finding for each field of a system description that a log contradicts.

    A ResNet run that was faster than the described accelerators can be also contradicts the description; that finding
    comes first.

    Args:
        run: The run, by its log.
        description: Fields of the description by name, such as {"number_of_nodes": "2"}.
        rule: The rule that a contradiction breaks.

    Returns:
        The findings; empty if the description fits.
    """
    findings = findings_of_implausible_speed(run, description, rule)
    for logged in _contradicted_fields(run, description):
        stated = description.get(logged.field)
        value_of_log = f"by the log's {logged.key} it is {printable(logged.value)}"
        actual = f"{logged.field} is {printable(stated)}; {value_of_log}"
        findings.append(breach(rule, actual, line=run.first_lines.get(logged.key)))
    return findings


class _LoggedField(NamedTuple):
    """The value of a field of the description by a log, and the log's key that says it."""

    key: str
    field: str
    value: object


def _contradicted_fields(run: LoggedRun, description: Description) -> list[_LoggedField]:
    """Return the fields of a system description that a log contradicts, each with the log's value.

    Args:
        run: The run, by its log.
        description: Fields of the description by name, such as {"number_of_nodes": "2"}.
    """
    nodes = hardware_nodes(run)
    contradicted = []
    # The facts of the submission and its size must be equal in both, but for upper and lower case.
    for logged in (*_submission_fields(run, description), *_size_fields(run, nodes)):
        is_stated_by_log = logged.value is not None
        described = str(description.get(logged.field))  # "None" for a missing field, which any value contradicts
        if is_stated_by_log and described.casefold() != str(logged.value).casefold():
            contradicted.append(logged)
    # Names of hardware and software may be written differently in both, so they are compared by rules of their own.
    return [*contradicted, *_other_framework(run, description), *_other_hardware(nodes, description)]


def _submission_fields(run: LoggedRun, description: Description) -> list[_LoggedField]:
    """Return the submitter, division and status that a log states, as fields of a system description.

    Args:
        run: The run, by its log.
        description: Fields of the description by name.

    Returns:
        The fields, each with the key of the event, the name in the description and the value; None for a value that is
        not to be compared, such as a status in words that are not known.
    """
    status = run.stated_text(schema.SUBMISSION_STATUS)  # such as "onprem"
    # Descriptions of older rounds have the log's word. Others have "Available on-premise" for it.
    agrees_already = description.get("status") == status
    status_of_descriptions = None if agrees_already else STATUS_WORDS.get(status)
    return [
        _LoggedField("submission_org", "submitter", run.first_values.get("submission_org")),
        _LoggedField("submission_division", "division", run.first_values.get("submission_division")),
        _LoggedField("submission_status", "status", status_of_descriptions),
    ]


def plausible_summary(run: LoggedRun) -> schema.RunSummary | None:
    """Return the event run_summary of a log, which states the numbers of nodes and devices.

    Args:
        run: The run, by its log.

    Returns:
        The event; None if it is missing, or has impossible numbers, as in a damaged log.
    """
    summary = run.summary
    if summary is None:
        return None
    has_nodes = 0 < summary.nodes < _MAX_DEVICES
    has_devices = 0 <= summary.devices < _MAX_DEVICES
    return summary if has_nodes and has_devices else None


def _size_fields(run: LoggedRun, nodes: Sequence[Node]) -> list[_LoggedField]:
    """Return the numbers of nodes and of accelerators per node by a log, as fields of a system description.

    16 devices on 2 nodes give 8 accelerators per node. If the nodes have no GPUs, the job ran on CPUs, and its devices
    are not accelerators.

    Args:
        run: The run, by its log.
        nodes: The nodes that the header of the log describes.

    Returns:
        The fields; empty if the log has no event run_summary, or one with impossible numbers.
    """
    summary = plausible_summary(run)
    if summary is None:
        return []
    has_gpus = any(gpu_names(node) for node in nodes)
    is_on_cpu = bool(nodes) and not has_gpus  # without nodes, this is not known
    accelerators_per_node = 0 if is_on_cpu else summary.devices // summary.nodes
    return [
        _LoggedField(schema.RUN_SUMMARY.key, "number_of_nodes", summary.nodes),
        _LoggedField(schema.RUN_SUMMARY.key, "accelerators_per_node", accelerators_per_node),
    ]


def _other_framework(run: LoggedRun, description: Description) -> list[_LoggedField]:
    """Return the framework that a log states, if the framework of the system description does not contain it.

    With `paddle 3.0` in the log and `Paddle 3.0, CUDA 12` in the description, the list is empty.

    Args:
        run: The run, by its log.
        description: Fields of the description by name.

    Returns:
        One field; empty if the description fits, or if the log has no event run_summary, which states the framework.
    """
    summary = run.summary
    if summary is None:
        return []
    described = str(description.get("framework"))
    is_described = summary.framework.casefold() in described.casefold()
    if is_described:
        return []
    return [_LoggedField(schema.RUN_SUMMARY.key, "framework", summary.framework)]


def _other_hardware(nodes: Sequence[Node], description: Description) -> list[_LoggedField]:
    """Return the hardware fields of a system description that a node of the log contradicts, with the log's values.

    Args:
        nodes: The nodes that the header of the log describes.
        description: Fields of the description by name.

    Returns:
        The fields. If several nodes contradict one field, it has the value of the last of these nodes. The
        accelerator's name is the name of the first GPU that differs, or `none` (see `_other_gpu`).
    """
    contradicted: dict[str, str] = {}  # the log's value of each contradicted field; a later node replaces it
    for node in nodes:
        contradicted |= _contradictions_of_node(node, description)
    other_gpu = _other_gpu(nodes, description)
    if other_gpu is not None:
        contradicted["accelerator_model_name"] = other_gpu
    return [_LoggedField(schema.HARDWARE.name, name, value) for name, value in contradicted.items()]


def _other_gpu(nodes: Sequence[Node], description: Description) -> str | None:
    """Return the first GPU of a log whose name is not part of the described accelerator's, or "none" for missing GPUs.

    Args:
        nodes: The nodes that the header of the log describes.
        description: Fields of the description by name.

    Returns:
        The name of the GPU; "none" if the log says that no node has GPUs, and the description names one. None if the
        two agree, or if the log does not state the GPUs.
    """
    model = str(description.get("accelerator_model_name", "")).strip().casefold()
    have_no_gpus = bool(nodes) and all(node.get("gpus") == [] for node in nodes)  # not so if a log is silent on them
    if have_no_gpus:
        return None if model in _NO_ACCELERATOR else "none"
    for node in nodes:
        for name in gpu_names(node):
            if name.casefold() not in model:
                return name
    return None


def findings_of_implausible_speed(run: LoggedRun, description: Description, rule: StrictRule) -> list[Finding]:
    """Return a finding if a ResNet run trained faster than the described accelerators plausibly can.

    The speed is in images/s over the whole run. The bound is `most_images_per_s` of the accelerators: the speed at 60 %
    of their peak FLOP/s, which is twice the share that any published submission reached.

    Args:
        run: The run, by its log.
        description: Fields of the system description by name.
        rule: The rule that such a run breaks.

    Returns:
        A list with the finding. It is empty if the run was not faster or is of another benchmark, or if its speed, the
        number of accelerators or their peak is not known.
    """
    if run.stated_text(schema.SUBMISSION_BENCHMARK) != "resnet":
        return []
    images_per_s = _images_per_s(run)  # None if it is not known
    model = str(description.get("accelerator_model_name"))
    accelerators = _number_of_accelerators(description)  # 0 if it is not known
    flop_per_image = training_flop(workloads.named("rn50"), height=224, width=224)
    assert flop_per_image is not None, "its row has it"
    bound_of_one = most_images_per_s([model], cores=0, flop_per_image=flop_per_image)  # None if it is not known
    if images_per_s is None or accelerators == 0 or bound_of_one is None:
        return []
    bound_of_all = bound_of_one * accelerators
    if images_per_s <= bound_of_all:
        return []
    by_log = f"{six_digits(images_per_s)} images/s by its epochs and time"
    actual = f"{by_log}; {accelerators} {printable(model)} do {six_digits(bound_of_all)} at most"
    return [breach(rule, actual, line=run.first_lines.get(schema.RUN_STOP.key))]


def _images_per_s(run: LoggedRun) -> float | None:
    """Return the images per second over a whole run: samples of an epoch * epochs / seconds.

    The number of epochs is the epoch of the run's last evaluation.

    Args:
        run: The run, by its log.

    Returns:
        The speed; None if the samples, an evaluation or the time is not known.
    """
    samples = run.stated_count(schema.TRAIN_SAMPLES)
    minutes = run.minutes
    if not samples or not run.evaluations or minutes is None or minutes <= 0:
        return None
    images: float = samples * run.evaluations[-1].epoch
    return images / minutes / 60


def _number_of_accelerators(description: Description) -> int:
    """Return the number of accelerators on all nodes; 0 if the description does not state it in whole numbers."""
    nodes = _stated_number(description, "number_of_nodes")
    accelerators_per_node = _stated_number(description, "accelerators_per_node")
    return nodes * accelerators_per_node


def _contradictions_of_node(node: Node, description: Description) -> dict[str, str]:
    """Return the hardware fields of a system description that one node of a log contradicts, with the node's values.

    Args:
        node: A machine as the header of the log describes it.
        description: Fields of the description by name.

    Returns:
        The node's values as text by the name of the field, such as {"host_memory_capacity": "503 GiB"}.
    """
    contradicted = {}
    if _is_other_processor(node, description):
        contradicted["host_processor_model_name"] = str(node["cpu"])
    contradicted |= dict.fromkeys(_contradicted_counts(node, description), _cores_in_words(node))
    if _is_other_memory(node.get("memory_gib"), description, "host_memory_capacity"):
        contradicted["host_memory_capacity"] = f"{node['memory_gib']} GiB"
    for gpu in _described_gpus(node):
        if _is_other_memory(gpu.get("memory_gib"), description, "accelerator_memory_capacity"):
            contradicted["accelerator_memory_capacity"] = f"{gpu['memory_gib']} GiB"
    # Only this project's logs describe nodes, and it runs only on Linux.
    if _OTHER_SYSTEM_THAN_LINUX.search(str(description.get("operating_system"))):
        contradicted["operating_system"] = f"Linux {node.get('kernel') or ''}".rstrip()
    return contradicted


def _contradicted_counts(node: Node, description: Description) -> list[str]:
    """List the fields with a number of processors or cores that is 0, or that a node of a log contradicts.

    Args:
        node: A machine as the header of the log describes it.
        description: Fields of the description by name.
    """
    # The numbers of processors of a node and of cores of a processor. No node has 0 of them.
    fields = [name for name in _PARTS_OF_EACH_NODE if _is_zero(description.get(name))]
    if _are_cores_out_of_range(node, description):
        fields.append("host_processor_core_count")
    return fields


def _cores_in_words(node: Node) -> str:
    """Return the number of cores that a log states for a node, such as "64 cores a node that the job may use".

    Args:
        node: A machine as the header of the log describes it.
    """
    if node.get("cores") is None:
        return "cores, whose number the log does not state"
    return f"{node['cores']} cores a node that the job may use"


def _is_zero(described: Any) -> bool:
    """Return whether a field of a system description states a number of 0, such as `0` or `00`."""
    text = str(described)
    return text.isdecimal() and int(text[:MAX_DIGITS]) == 0


def _are_cores_out_of_range(node: Node, description: Description) -> bool:
    """Return whether the described processors cannot have the number of cores that a log states for a node.

    A job may be allowed to use only a part of the cores, and a log may count threads. So the log's number may be half
    of the described cores up to twice as many, or up to the described threads if these are more.

    Args:
        node: A machine as the header of the log describes it.
        description: Fields of the description by name.

    Returns:
        Whether the number is out of this range. False if the log does not state it, or if the description does not
        state its processors and their cores.
    """
    usable_cores: Any = node.get("cores")
    # Each of these numbers is 0 if the description does not state it.
    processors = _stated_number(description, "host_processors_per_node")
    cores = processors * _stated_number(description, "host_processor_core_count")
    threads = _stated_number(description, "host_processor_vcpu_count")  # of the whole node
    if cores == 0 or not is_count(usable_cores):
        return False
    fewest_cores = cores / 2  # a job may be allowed to use only a part of the cores
    most_threads = max(threads, 2 * cores)  # a log may count threads, up to two for each core
    is_possible = fewest_cores <= usable_cores <= most_threads
    return not is_possible


def _is_other_memory(logged_gib: Any, description: Description, field: str) -> bool:
    """Return whether a described memory is not 0.75 to 1.35 times the memory in the log.

    The described memory is rounded, and the one in the log is what the kernel or the driver leaves of it.

    Args:
        logged_gib: Memory by the log, in GiB; may be of any type.
        description: Fields of the system description by name.
        field: Name of the field with the memory, such as "host_memory_capacity".

    Returns:
        Whether the two differ so much. False if one of them is not stated, or if the log's is 0.
    """
    described_gib = _memory_gib(description, field)
    if described_gib is None or not is_number(logged_gib) or logged_gib == 0:
        return False
    ratio = described_gib / logged_gib
    does_agree = _MIN_MEMORY_RATIO <= ratio <= _MAX_MEMORY_RATIO
    return not does_agree


def _is_other_processor(node: Node, description: Description) -> bool:
    """Return whether a node's processor differs from the described one.

    Two processors agree if the described name contains the node's, or if both have a model number in common: `Intel(R)
    Xeon(R) Platinum 8480C` agrees with `Intel Xeon 8480C`.

    Args:
        node: A machine as the header of the log describes it.
        description: Fields of the system description by name.

    Returns:
        Whether they differ. False if the log or the description names none.
    """
    logged = str(node.get("cpu")).casefold()
    stated = str(description.get("host_processor_model_name", "")).casefold()
    are_both_named = bool(node.get("cpu")) and bool(stated.strip())
    if not are_both_named:
        return False
    have_number_in_common = bool(_model_numbers(logged) & _model_numbers(stated))
    do_agree = logged in stated or have_number_in_common
    return not do_agree


def _model_numbers(processor: str) -> set[str]:
    """Return the words of three or more characters that have a digit, such as `8480c` of `intel xeon 8480c`."""
    words = re.findall(r"[\w-]{3,}", processor)
    return {word for word in words if re.search(r"\d", word)}


def _stated_number(description: Description, field: str) -> int:
    """Return a whole number that a system description states.

    Args:
        description: Fields of the description by name.
        field: Name of the field, such as "number_of_nodes".

    Returns:
        The number; 0 if the field is missing or has another value. A number of more than six digits is cut to the first
        six.
    """
    text = str(description.get(field))
    return int(text[:MAX_DIGITS]) if text.isdecimal() else 0


def _memory_gib(description: Description, field: str) -> float | None:
    """Return the memory that a field of a system description states, in GiB.

    Args:
        description: Fields of the description by name.
        field: Name of the field, such as "host_memory_capacity".

    Returns:
        The memory: 0.5 for "512 MB". None if the field has no size with a unit. MB and MiB count as the same.
    """
    size = _SIZE.search(str(description.get(field)))
    if size is None:
        return None
    number, unit = size.groups()
    return float(number) * _GIB_OF_UNIT[unit.upper()]


def _described_gpus(node: Node) -> list[JsonObject]:
    """Return the GPUs of a node that the log describes; empty if it has no list of them."""
    gpus = node.get("gpus")
    if not isinstance(gpus, list):
        return []
    return [gpu for gpu in gpus if isinstance(gpu, dict)]


def gpu_names(node: Node) -> list[str]:
    """Return the names of a node's GPUs; empty if the log has no list of them.

    Args:
        node: A machine as the header of the log describes it.
    """
    gpus = node.get("gpus")
    if not isinstance(gpus, list):
        return []
    names = []
    for gpu in gpus:
        name = gpu.get("name") if isinstance(gpu, dict) else gpu
        names.append(printable(name))
    return names


def hardware_nodes(run: LoggedRun) -> list[Node]:
    """Return the nodes that the log's header describes; empty if it describes none."""
    nodes = run.header_section(schema.HARDWARE).get("nodes")
    if not isinstance(nodes, list):
        return []
    return [node for node in nodes if isinstance(node, dict)]
