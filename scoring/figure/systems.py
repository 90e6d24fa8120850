"""The logs of systems that are set side by side: a log or a folder each, or the folders of a submission.

The devices of each are said by its log, by an option, or by its system description.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scoring.importers import MOST, read_record
from scoring.record import InputError, Record


def read_systems(args: argparse.Namespace, places: Sequence[str]) -> list[tuple[str, list[Record]]]:
    """Return each system that `places` name, as pairs of its own place and the records of its runs.

    A place is a log, a folder of one system's logs, or a folder of such folders. The options are those of
    `add_log_options`; --devices and --batch give one number for all systems, or one for each. Raises InputError where
    they give another count of them, and where a folder holds no logs.
    """
    systems = list(itertools.chain.from_iterable(_systems_of(place) for place in places))
    devices = _number_of_each(systems, args.devices, "--devices")
    batches = _number_of_each(systems, args.batch, "--batch")
    records_of_systems = []
    for system, devices_of_system, batch in zip(systems, devices, batches, strict=True):
        options = {
            "format": args.format,
            "devices": devices_of_system,
            "batch_per_device": batch,
            "segment": args.segment,
        }
        records_of_systems.append((system, [read_described(log, **options) for log in _logs_of(system)]))
    return records_of_systems


def _logs_of(place: str, pattern: str = "*") -> list[Path]:
    """Return the logs of one system: the file `place` itself, or the `*.txt` and `*.log` files of that folder.

    Of a folder only those that match `pattern` are taken: `*/*` finds the files in its folders.
    """
    path = Path(place)
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob(pattern) if file.suffix in (".txt", ".log") and file.is_file())


def _systems_of(place: str) -> list[str]:
    """Return the places of the systems that `place` names: `place` itself, where it is a log or a folder of logs.

    A folder without logs, such as `results` of a submission, names the folders of logs in it, which are its SYSTEM or
    SYSTEM/BENCHMARK folders. Raises InputError where they hold no logs either.
    """
    if _logs_of(place):
        return [place]
    logs = _logs_of(place, "*/*") + _logs_of(place, "*/*/*")  # of SYSTEM and of SYSTEM/BENCHMARK folders
    if not logs:
        raise InputError(f"{place}: no *.txt or *.log in the folder, nor in its systems' folders")
    return sorted({str(log.parent) for log in logs})


def _number_of_each(systems: Sequence[str], values: Sequence[int] | None, option: str) -> Sequence[int | None]:
    """Return the number that an option such as --devices gives for each system, in the order of `systems`.

    `values` are the numbers that the user gave: one for all systems, or one for each. Where the option was not given
    they are None, and so is the number of each system. Raises InputError, with the name `option`, for any other count.
    """
    if values is None:
        return [None] * len(systems)
    if len(values) == 1:
        return [values[0]] * len(systems)
    if len(values) != len(systems):
        raise InputError(f"{option} gives {len(values)} numbers for {len(systems)} systems; give one, or one for each")
    return values


class SystemDescription(NamedTuple):
    """The devices of a system as its description in an MLPerf submission has them."""

    file: Path
    nodes: int
    devices: int
    accelerator: str | None


def read_described(log: str | Path, **options: Any) -> Record:
    """Return the record of a log, with the devices of its system description where the log does not say them.

    A submission to MLPerf describes each of its systems in a JSON file, with nodes, devices and accelerator. The batch
    of one device then follows from that of all, if the log says it and it can be divided evenly. A log that says its
    devices, or has no such file, is returned as it was read. `options` are those of `read_record`.
    """
    record = read_record(log, **options)
    if record.devices is not None:
        return record
    description = _read_description(log)
    if description is None:
        return record

    batch_per_device = record.batch_per_device
    if record.batch_of_all and record.batch_of_all % description.devices == 0:
        batch_per_device = record.batch_of_all // description.devices
    return dataclasses.replace(
        record,
        nodes=description.nodes,
        devices=description.devices,
        batch_per_device=batch_per_device,
        accelerator=description.accelerator,
        described_by=f"systems/{description.file.name}",
    )


def _read_description(log: str | Path) -> SystemDescription | None:
    """Return the description of the system that a submission's log is of; None where there is none to be read.

    The description of SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt is SUBMITTER/systems/SYSTEM.json. None is
    returned as well where its numbers of nodes or devices are missing or impossible.
    """
    parents = Path(log).absolute().parents  # BENCHMARK, SYSTEM, results, SUBMITTER and so on
    if len(parents) < 4 or parents[2].name != "results":
        return None
    system_folder = parents[1]
    submitter_folder = parents[3]
    file = submitter_folder / "systems" / f"{system_folder.name}.json"
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        nodes = int(table["number_of_nodes"])
        devices = nodes * int(table["accelerators_per_node"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not (0 < nodes < MOST and 0 < devices < MOST):
        return None
    accelerator = str(table.get("accelerator_model_name") or "")
    return SystemDescription(file, nodes, devices, accelerator or None)
