"""The logs of several systems, with the devices of each: by its log, by an option, or by its system description."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scoring.importers import MOST, count, read_record
from scoring.record import InputError, Record


def _logs_of(place: str, pattern: str = "*") -> list[Path]:
    """The logs of one system: a file, or the `*.txt` and `*.log` files of a folder."""
    path = Path(place)
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob(pattern) if file.suffix in (".txt", ".log") and file.is_file())


def _systems_of(place: str) -> list[str]:
    """The place; of a folder without logs, as a submission's `results`, its SYSTEM or SYSTEM/BENCHMARK folders."""
    if _logs_of(place):
        return [place]
    found = sorted({str(log.parent) for pattern in ("*/*", "*/*/*") for log in _logs_of(place, pattern)})
    if not found:
        raise InputError(f"{place}: no *.txt or *.log in the folder, nor in its systems' folders")
    return found


def counts(text: str) -> list[int]:
    """`8` or `1,8,32`."""
    return [count(item) for item in text.split(",")]


def _for_each(systems: Sequence[str], values: Sequence[int] | None, option: str) -> Sequence[int | None]:
    """One number of an option for each system. Raises InputError where there are neither one nor as many."""
    if values is None or len(values) == 1:
        return [values[0] if values else None] * len(systems)
    if len(values) != len(systems):
        raise InputError(f"{option} gives {len(values)} numbers for {len(systems)} systems; give one, or one for each")
    return values


def read_systems(args: argparse.Namespace, places: Sequence[str]) -> list[tuple[str, list[Record]]]:
    """The runs of each system, which is a log or a folder of them, as the options of `add_log_options` say."""
    places = [system for place in places for system in _systems_of(place)]
    devices = _for_each(places, args.devices, "--devices")
    batches = _for_each(places, args.batch, "--batch")
    return [
        (
            place,
            [
                read_described(log, format=args.format, devices=count, batch_per_device=batch, segment=args.segment)
                for log in _logs_of(place)
            ],
        )
        for place, count, batch in zip(places, devices, batches, strict=True)
    ]


def read_described(log: str | Path, **options: Any) -> Record:
    """The record of a log; its devices, where neither it nor `options` say them, as its system's description has them.

    The description of SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt is SUBMITTER/systems/SYSTEM.json.
    """
    record = read_record(log, **options)
    parents = Path(log).absolute().parents
    if record.devices is not None or len(parents) < 4 or parents[2].name != "results":
        return record
    file = parents[3] / "systems" / f"{parents[1].name}.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        nodes, of_node = (int(description[name]) for name in ("number_of_nodes", "accelerators_per_node"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return record
    devices, batch = nodes * of_node, record.batch_of_all
    if not (0 < nodes < MOST and 0 < devices < MOST):
        return record
    return dataclasses.replace(
        record,
        nodes=nodes,
        devices=devices,
        batch_per_device=batch // devices if batch and batch % devices == 0 else record.batch_per_device,
        accelerator=str(description.get("accelerator_model_name") or "") or None,
        described_by=f"systems/{file.name}",
    )
