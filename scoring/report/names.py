"""The names of a report's groups of repeated runs: what they share, and what tells each group from the others."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from runlog.digits import counted
from runlog.text import visible
from scoring.record import Record
from scoring.report.content import Group


def name_of_group(record: Record, *, name_machine: bool) -> str:
    """Return the name of a group of repeated runs, from the record of one of them.

    For example "resnet50_v1.5, 16 devices, on 2 nodes, batch 256 a device, amp". What the record does not say is left
    out; if it says nothing of this, the name is the format of the log, such as "mllog".

    Args:
        record: One of the runs, as its log describes it.
        name_machine: Whether the name also says on which machine the runs were made.
    """
    parts = []
    if record.model:
        parts.append(visible(record.model, 80))
    if record.devices:
        parts.append(counted(record.devices, "device"))
    if record.nodes and record.nodes > 1:
        parts.append(f"on {record.nodes} nodes")
    if record.batch_per_device:
        parts.append(f"batch {record.batch_per_device} a device")
    if record.precision:
        parts.append(visible(record.precision, 40))
    if record.math_mode == "tf32" and record.precision == "fp32":
        parts.append("TF32")
    if name_machine:
        parts.append(f"on {visible(record.machine or 'a machine not said', 80)}")
    return ", ".join(parts) or record.format  # the log may say none of these


def with_own_names(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of repeated runs, each with a name that no other group has.

    Groups of equal names get more words, until they can be told apart: the framework, the data, the mode, the folder of
    their logs, and at last the numbers of their runs.

    Args:
        groups: The groups with their names so far.
    """
    named = list(groups)
    for describe in (_framework_of, _data_of, _mode_of, _folder_of, _numbers_of_runs):
        named = _with_more_in_equal_names(named, describe)
    return named


def _with_more_in_equal_names(groups: Sequence[Group], describe: Callable[[Group], str]) -> list[Group]:
    """Tell apart groups of equal names: add to each name a description of its group, such as the framework.

    A name stays as it is if only one group has it, or if all groups with this name have the same description. Two
    groups may both be named "8 devices", for example, and `describe` may return the framework:

        frameworks           new names
        Paddle and MXNet     "8 devices, Paddle" and "8 devices, MXNet"
        Paddle and Paddle    "8 devices" and "8 devices"

    Args:
        groups: Groups of repeated runs.
        describe: Returns the description of a group, such as "Paddle".

    Returns:
        The groups in their order, some of them with a longer name.
    """
    descriptions_of_name: dict[str, set[str]] = defaultdict(set)  # {"8 devices": {"Paddle", "MXNet"}}
    for group in groups:
        descriptions_of_name[group.name].add(describe(group))

    with_more = []
    for group in groups:
        descriptions_differ = len(descriptions_of_name[group.name]) > 1  # those of the groups with this name
        if descriptions_differ:
            group = replace(group, name=f"{group.name}, {describe(group)}")
        with_more.append(group)
    return with_more


def _framework_of(group: Group) -> str:
    """Return the framework of a group without its version; runs of other versions may be in one group."""
    framework = group.record.framework
    if not framework:
        return "framework not said"
    return visible(framework.split()[0], 40)


def _data_of(group: Group) -> str:
    """Return the images that a group's runs train on, "1437 images of 64 x 64"."""
    return visible(group.record.data or "data not said", 80)


def _mode_of(group: Group) -> str:
    """Return the mode of a group's runs, "mode train" or "mode throughput"."""
    return f"mode {visible(group.record.mode or 'not said', 40)}"


def _folder_of(group: Group) -> str:
    """Return the folder of a group's logs. There is only one: runs of different folders form different groups."""
    folder = group.runs[0].given_folder
    if not folder:
        return "logs given by themselves"
    return visible(folder, 80)


def _numbers_of_runs(group: Group) -> str:
    """Return the number of the first run of a group, which no other group has, and how many more runs there are."""
    words = f"run {group.runs[0].number}"
    if len(group.runs) > 1:
        words += f" and {len(group.runs) - 1} more"
    return words
