"""The logs of systems that are set side by side: a log or a folder each, or the folders of a submission.

The log, an option or the system description gives the devices of each.
"""

import argparse
import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runlog.digits import counted
from scoring.importers import MAX_NUMBER, read_record
from scoring.record import InputError, NoRunError, Record


class SystemLogs(NamedTuple):
    """The logs of a system that the user named."""

    path: str  # of the system: a log, or a folder of logs
    records: list[Record]  # what was read from each log
    left_out: list[str]  # the error about each file of the folder that holds no run


def read_systems(
    args: argparse.Namespace, paths: Sequence[str], *, leave_out_files_without_run: bool = False
) -> list[SystemLogs]:
    """Read the logs of each system that the user names.

    For example, the path "results" is a folder with the folders "a" and "b", which hold logs. The result has two
    systems, "results/a" and "results/b", each with a record for each of its logs.

    Args:
        args: The parsed options of `add_log_options`. --devices and --batch are lists: one number for all systems, or
            one for each system, in the order of the result. Each is None if the user did not give it.
        paths: Paths as the user gave them: a log, a folder of one system's logs, or a folder of such folders.
        leave_out_files_without_run: Whether files in a folder that hold no run are left out. Otherwise they raise an
            error. A system of only such files has no records.

    Raises:
        InputError: A folder has no logs, a log cannot be scored, --batch does not fit the description of a system, or
            --devices or --batch has several numbers, but not one for each system. A log that the user named, but that
            holds no run, raises a NoRunError.
        OSError: A log cannot be opened.
    """
    # Each path is one system, or several if the path is a folder of folders.
    systems = list(itertools.chain.from_iterable(_systems_of(path) for path in paths))
    # A number for each system: for two systems, [8, 8] by --devices 8, [1, 8] by --devices 1,8, [None, None] without it
    devices_by_system = _number_of_each(systems, args.devices, "--devices")
    batch_by_system = _number_of_each(systems, args.batch, "--batch")
    logs_of_systems = []
    for system, devices, batch in zip(systems, devices_by_system, batch_by_system, strict=True):
        options = {"format": args.format, "devices": devices, "batch_per_device": batch, "segment": args.segment}
        logs_of_systems.append(_read_system(system, options, leave_out_files_without_run=leave_out_files_without_run))
    return logs_of_systems


def _read_system(system: str, options: Mapping[str, Any], *, leave_out_files_without_run: bool) -> SystemLogs:
    """Read the logs of one system.

    Args:
        system: The path of the system: a log, or a folder of logs.
        options: The options of `read_described`.
        leave_out_files_without_run: Whether files in a folder that hold no run are left out.

    Raises:
        InputError: A log cannot be scored, or holds no run and must not be left out.
        OSError: A log cannot be opened.
    """
    records = []
    left_out = []
    for log in _logs_of(system):
        try:
            records.append(read_described(log, **options))
        except NoRunError as error:
            was_named_by_user = log == Path(system)  # False if `system` is a folder with the log in it
            if was_named_by_user or not leave_out_files_without_run:
                raise
            left_out.append(str(error))
    return SystemLogs(system, records, left_out)


def _logs_of(path: str, pattern: str = "*") -> list[Path]:
    """Return the logs at a path, sorted by the numbers in their names.

    Args:
        path: A folder, or a log.
        pattern: Which files of a folder to look at: "*" for its own, "*/*" for the files of its subfolders.

    Returns:
        The `*.txt` and `*.log` files of the folder, perhaps none. If the path is not a folder, it is only the path
        itself, even if nothing is there.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    logs = [file for file in folder.glob(pattern) if file.suffix in (".txt", ".log") and file.is_file()]
    return sorted(logs, key=_texts_and_numbers)


def _texts_and_numbers(path: Path) -> list[str | int]:
    """Return a sort key of a path that puts result_10.txt behind result_9.txt: its texts, each with a number behind."""
    parts: list[str | int] = [*re.split(r"([0-9]+)", str(path))]
    parts[1::2] = [int(number) for number in parts[1::2]]
    return parts


def _systems_of(path: str) -> list[str]:
    """Return the paths of the systems at a path; each is a log or a folder of logs.

    In a folder without logs of its own, such as `results` of an MLPerf submission, each folder SYSTEM or
    SYSTEM/BENCHMARK with logs is a system.

    Args:
        path: A log or a folder, as the user gave it.

    Returns:
        The paths, sorted; only `path` itself if it is one system or does not exist.

    Raises:
        InputError: The folder has no logs, nor do its subfolders.
    """
    is_folder = Path(path).is_dir()
    if not is_folder or _logs_of(path):  # a log (a path where nothing is counts as one), or a folder with logs in it
        return [path]
    logs = _logs_of(path, "*/*") + _logs_of(path, "*/*/*")  # in SYSTEM and in SYSTEM/BENCHMARK folders
    if not logs:
        raise InputError(f"{path}: no *.txt or *.log in the folder, nor in its systems' folders")
    return sorted({str(log.parent) for log in logs})


def _number_of_each(systems: Sequence[str], values: Sequence[int] | None, option: str) -> Sequence[int | None]:
    """Return the number that an option such as --devices gives for each system.

    Args:
        systems: The systems that are compared.
        values: The option's numbers: one for all systems, or one for each. None if the user did not give the option.
        option: Name of the option, such as "--devices", for the error.

    Returns:
        A number for each system, in the order of `systems`; None for each without the option.

    Raises:
        InputError: There are several numbers, but not as many as systems.
    """
    if values is None:  # the user did not give the option
        return [None] * len(systems)
    if len(values) == 1:
        return [values[0]] * len(systems)
    if len(values) != len(systems):
        given = f"{option} gives {len(values)} numbers for {counted(len(systems), 'system')}"
        raise InputError(f"{given}; give one, or one for each")
    return values


class SystemDescription(NamedTuple):
    """The devices of a system, as its JSON file in an MLPerf submission describes them."""

    file: Path
    nodes: int
    devices: int  # of all nodes
    accelerator: str | None


def read_described(log: str | Path, **options: Any) -> Record:
    """Read the log of a run, and take its number of devices from the system's description if the log lacks it.

    An MLPerf submission has such a description, a JSON file, for each system. The first case that fits decides:

    1. The log or --devices states the devices, or they follow from two batches that the log states: the description is
       not needed.
    2. There is no description: the devices may stay None.
    3. The devices were worked out as batch of all / --batch: the description only confirms them.
    4. The devices are not known: the description gives them, the nodes and the accelerator. The batch of one device
       follows from the batch of all, if the devices share it evenly.

    In cases 3 and 4, a batch of one device that the user gave (--batch) must fit the description.

    Args:
        log: Path of the log.
        **options: The options of `read_record`, such as `devices` and `batch_per_device`.

    Returns:
        What was read from the log; in case 4, completed by the description.

    Raises:
        InputError: The log cannot be scored, or the given batch of one device does not fit the description.
        OSError: The log cannot be opened.
    """
    record = read_record(log, **options)
    description = _read_description(log)
    if description is None:
        return record
    are_devices_stated = record.devices is not None and not _are_devices_from_batch(log, record, options)
    if are_devices_stated:
        return record
    is_batch_given = "batch_per_device" in record.from_options
    if is_batch_given:
        _refuse_other_batch(record, description)
    if record.devices is not None:  # worked out, and confirmed by the line above
        return record

    from_description: dict[str, Any] = {"nodes": description.nodes, "devices": description.devices}
    global_batch = record.batch_of_all
    if global_batch and global_batch % description.devices == 0:  # the devices share it evenly
        from_description["batch_per_device"] = global_batch // description.devices
    # No line of the log holds what comes from the description.
    lines_of_own_values = {name: line for name, line in record.field_lines.items() if name not in from_description}
    return dataclasses.replace(
        record,
        **from_description,
        accelerator=description.accelerator,
        described_by=f"systems/{description.file.name}",
        field_lines=lines_of_own_values,
    )


def _are_devices_from_batch(log: str | Path, record: Record, options: dict[str, Any]) -> bool:
    """Return whether a run's number of devices was worked out from the option --batch, the batch of one device.

    For example, a log states only the batch of all devices, 1024. With --batch 128, the record has 1024 / 128 = 8
    devices, a number that is wrong if --batch is wrong.

    Args:
        log: Path of the log.
        record: The run as read from the log. The number of devices is known.
        options: The options of `read_record` with which the log was read.
    """
    is_batch_given = "batch_per_device" in record.from_options
    if not is_batch_given:
        return False
    # The record does not say how its number was found, so the log is read again without --batch. If the log states the
    # number, or --devices gives it, it is the same again. If not, it is None, or follows from the log's own batch.
    devices_without_batch = read_record(log, **(options | {"batch_per_device": None})).devices
    return devices_without_batch != record.devices


def _refuse_other_batch(record: Record, description: SystemDescription) -> None:
    """Raise an error if the batch of one device that the user gave by --batch does not fit the system's description.

    For example, the log states a batch of 1024 images over all devices, and the description has 8 devices. Then --batch
    must be 128. If the log does not state the batch over all devices, nothing is checked.

    Args:
        record: The run as read from its log, with --batch as its `batch_per_device`.
        description: The devices of the system, from its JSON file.

    Raises:
        InputError: --batch times the number of described devices is not the batch over all devices.
    """
    if record.batch_of_all is None or record.batch_per_device is None:
        return
    if record.batch_per_device * description.devices == record.batch_of_all:
        return
    images_of_each = record.batch_of_all / description.devices
    devices = f"the {description.devices} devices of {description.file}"
    message = (
        f"{record.file}: --batch says {record.batch_per_device} images a step of one device, but the "
        f"{record.batch_of_all} images of a step over {devices} are {images_of_each:g} each: leave out --batch, or "
        "correct the description"
    )
    raise InputError(message)


def _read_description(log: str | Path) -> SystemDescription | None:
    """Return the description of the system that a submission's log was made on, from the submission's JSON file.

    Args:
        log: Path of the log, in the folders of an MLPerf submission: SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt.

    Returns:
        The description; None if the log does not lie in a submission, if the file cannot be read, or if its numbers of
        nodes or devices are missing or impossible.
    """
    file = _description_file(log)
    if file is None:
        return None
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        nodes = int(description["number_of_nodes"])
        devices = nodes * int(description["accelerators_per_node"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not (0 < nodes < MAX_NUMBER and 0 < devices < MAX_NUMBER):
        return None
    accelerator = str(description.get("accelerator_model_name") or "")
    return SystemDescription(file, nodes, devices, accelerator or None)


def _description_file(log: str | Path) -> Path | None:
    """Return the file that describes the system of a submission's log.

    For SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt it is SUBMITTER/systems/SYSTEM.json.

    Args:
        log: Path of the log.

    Returns:
        The path, at which no file need be; None if the log does not lie in a submission.
    """
    folders = Path(log).absolute().parents  # BENCHMARK, SYSTEM, results, SUBMITTER and so on
    if len(folders) < 4 or folders[2].name != "results":
        return None
    system_folder = folders[1]
    submitter_folder = folders[3]
    return submitter_folder / "systems" / f"{system_folder.name}.json"
