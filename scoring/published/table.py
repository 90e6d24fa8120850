"""The published figures: one row of `published.csv` for each figure that a report prints.

Every figure keeps its printed digits. Where the publisher's own logs do not bear a figure out, `log_value`
holds what they give and `log_note` says how. An empty field means that the source does not say.
"""

import csv
import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scoring.record import InputError

PUBLISHED_CSV = Path(__file__).with_name("published.csv")

_Row = TypeVar("_Row")


class Figure(float):
    """A number with its digits as printed."""

    printed: str

    def __new__(cls, printed: str) -> "Figure":
        figure = super().__new__(cls, printed)
        figure.printed = printed
        return figure


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published figure; `value` is in `unit`."""

    value: Figure
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
    line: int

    @property
    def printed(self) -> str:
        """The figure as printed."""
        return self.value.printed

    @property
    def framework_name(self) -> str:
        """The framework without the release that one report's figures are of."""
        return self.framework.split(" 2.5")[0]

    @property
    def digits(self) -> int:
        """Digits printed behind the decimal point."""
        return len(self.printed.partition(".")[2])


def read_rows(path: Path, kind: type[_Row]) -> list[_Row]:
    """The rows of a CSV file with a column for each field of the dataclass `kind`, but `line`, the number of its line.

    An empty cell is None; a tuple's items are separated by `;`. Raises InputError, with the file and line, for other
    columns and for a cell that its field cannot be.
    """
    hints = typing.get_type_hints(kind)
    columns = [field.name for field in dataclasses.fields(kind) if field.name != "line"]  # type: ignore[arg-type]
    with path.open(newline="", encoding="utf-8", errors="replace") as text:
        reader = csv.DictReader(text)
        if set(reader.fieldnames or ()) != set(columns):
            raise InputError(f"{path}:1: want the columns {', '.join(sorted(columns))}")
        rows = []
        for cells in reader:
            try:
                found = {name: _typed(name, cells[name], hints[name]) for name in columns}
            except ValueError as error:
                raise InputError(f"{path}:{reader.line_num}: {error}; correct the row") from None
            rows.append(kind(**found | {"line": reader.line_num}))
    return rows


def _typed(name: str, text: str | None, hint: Any) -> Any:
    """A cell as its field has it: a tuple of texts, or a type that is made of text, or None."""
    kinds = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is tuple:
        return tuple(item for item in (text or "").split(";") if item)
    if not text and type(None) not in kinds:
        raise ValueError(f"{name} is empty")
    return kinds[0](text) if text else None


def read_published(path: Path = PUBLISHED_CSV) -> list[Published]:
    """Rows of the table, in its order. Raises InputError as `read_rows` does."""
    return read_rows(path, Published)


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


def by_devices(rows: Iterable[Published]) -> list[list[Published]]:
    """Throughput of each system in the order of its devices; a report's copy of another's figures is left out."""
    found: dict[tuple[object, ...], dict[int, Published]] = {}
    for row in rows:
        if row.metric == "throughput" and row.devices and not (row.note or "").startswith("copied"):
            what = (row.table, row.framework_name, row.accelerator, row.precision, row.strategy)
            found.setdefault((*what, row.batch_per_device, row.model), {}).setdefault(row.devices, row)
    return [[row for _, row in sorted(system.items())] for system in found.values()]
