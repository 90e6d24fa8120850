"""The published figures: one row of `published.csv` for each figure that a report prints.

Every figure keeps its printed digits. Where the publisher's own logs do not bear a figure out, `log_value`
holds what they give and `log_note` says how. An empty field means that the source does not say.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from scoring.record import InputError

PUBLISHED_CSV = Path(__file__).with_name("published.csv")

_NUMBERS = {
    "accelerator_memory_gib": int,
    "nodes": int,
    "devices": int,
    "batch_per_device": int,
    "run": int,
    "log_value": float,
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published figure; `value` is in `unit`, `printed` its digits as printed."""

    value: float
    unit: str
    metric: str
    table: str
    source: str
    place: str
    framework: str
    model: str
    system: str | None
    accelerator: str | None
    accelerator_memory_gib: int | None
    nodes: int | None
    devices: int | None
    batch_per_device: int | None
    precision: str | None
    math_mode: str | None
    strategy: str | None
    run: int | None
    protocol: str | None
    date: str | None
    log_value: float | None
    log_note: str | None
    note: str | None
    printed: str
    line: int

    @property
    def digits(self) -> int:
        """Digits printed behind the decimal point."""
        return len(self.printed.partition(".")[2])


def read_published(path: Path = PUBLISHED_CSV) -> list[Published]:
    """Rows of the table, in its order.

    Raises InputError, with the file and line, for a missing column or a value that is no number.
    """
    columns = {field.name for field in fields(Published)} - {"printed", "line"}
    with path.open(newline="", encoding="utf-8") as text:
        reader = csv.DictReader(text)
        missing = columns.symmetric_difference(reader.fieldnames or [])
        if missing:
            raise InputError(
                f"{path}:1: columns {', '.join(sorted(missing))} are missing or unknown; wanted: {columns}"
            )
        rows = []
        for cells in reader:
            line = reader.line_num
            try:
                rows.append(_row(cells, line))
            except (ValueError, TypeError) as error:
                raise InputError(f"{path}:{line}: {error}; correct the row") from error
    return rows


def _row(cells: dict[str, str], line: int) -> Published:
    known: dict[str, object] = {name: text or None for name, text in cells.items()}
    for name, number in _NUMBERS.items():
        if cells[name]:
            known[name] = number(cells[name])
    for name in ("value", "unit", "metric", "table", "source", "place", "framework", "model"):
        if not cells[name]:
            raise ValueError(f"{name} is empty")
    known["value"] = float(cells["value"])
    return Published(**known, printed=cells["value"], line=line)  # type: ignore[arg-type]


def select(rows: Iterable[Published], **conditions: object) -> list[Published]:
    """Rows whose fields equal every one of `conditions`, e.g. `select(rows, table="oneflow", devices=8)`."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in conditions.items())]


def nearest(rows: Iterable[Published], *, batch: int, devices: int) -> Published | None:
    """Of the throughput in `rows` the one of the nearest batch a device, then of the nearest number of devices.

    Of several the least a device; None where there is none.
    """

    def distance(row: Published) -> tuple[float, ...]:
        assert row.batch_per_device and row.devices
        return abs(row.batch_per_device - batch), abs(row.devices - devices), row.value / row.devices

    of_a_size = (row for row in rows if row.metric == "throughput" and row.batch_per_device and row.devices)
    return min(of_a_size, key=distance, default=None)
