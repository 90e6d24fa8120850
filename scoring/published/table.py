"""Rows of `published.csv`, one for each figure that a report prints, and of `cards.csv`, data-sheet peaks of GPUs.

Every figure keeps its printed digits. Where the publisher's own logs do not bear a figure out, `log_value`
holds what they give and `log_note` says how. An empty field means that the source does not say.
"""

import csv
import dataclasses
import functools
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from compliance.rules import peaks
from scoring.record import InputError

NAMED_GIB = 1.5  # a GPU named 40 GB has 39.4 to 40 GiB for NVML
# A model in published tables that leaves its version open: the one that it is taken for, and what is noted.
UNVERSIONED = {"resnet50": ("resnet50_v1.5", "v1 or v1.5 not stated")}

# Of a precision's products.
ARITHMETIC = {"fp32": "float32", "tf32": "tf32", "amp_o1": "float16", "amp_o2": "float16"}

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


def read_published() -> list[Published]:
    """Rows of the table, in its order."""
    return read_rows(Path(__file__).with_name("published.csv"), Published)


def select(rows: Iterable[Published], **conditions: object) -> list[Published]:
    """Rows whose fields equal every one of `conditions`, e.g. `select(rows, table="oneflow", devices=8)`."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in conditions.items())]


def nearest(rows: Iterable[Published], *, batch: int, devices: int) -> Published | None:
    """Return the throughput row of the nearest batch a device, then of the nearest number of devices.

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


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU; products of each arithmetic in FLOP/s."""

    name: str
    memory_gib: int
    float32: float
    tf32: float | None
    memory_bytes_per_s: float
    # Registers, shared memory and L2 cache: by NVIDIA's white papers on V100 (WP-08608-001) and A100, the tables that
    # compare the GPUs of each generation; V100 80 x (256 + 96) + 6144, A100 108 x (256 + 164) + 40960.
    on_chip_kib: int
    link_bytes_per_s: float  # NVLink in one direction
    source: str
    line: int

    @property
    def float16(self) -> float:
        """Peak of the tensor cores in FP16, as the checker knows it."""
        return 1e12 * peaks()[self.name]

    @property
    def on_chip_bytes(self) -> int:
        """Bytes that the chip itself holds, which a kernel need not read again."""
        return self.on_chip_kib * 1024

    @property
    def flops_per_s(self) -> dict[str, float]:
        """Peak of each arithmetic that it has."""
        return {kind: peak for kind in ("float32", "tf32", "float16") if (peak := getattr(self, kind)) is not None}

    def peak(self, precision: str | None) -> float | None:
        """FLOP/s of the products of a precision; None where the card lacks it, or it is none."""
        return self.flops_per_s.get(ARITHMETIC.get(precision or "", ""))

    def peaks(self, arithmetics: Iterable[str]) -> dict[str, Any]:
        """Return the peaks of these arithmetics, for JSON."""
        names = ("name", "memory_gib", "memory_bytes_per_s", "on_chip_bytes", "link_bytes_per_s", "source")
        of_products = {kind: self.flops_per_s[kind] for kind in arithmetics}
        return {name: getattr(self, name) for name in names} | {"flops_per_s": of_products}


@functools.cache
def read_cards() -> list[Card]:
    """The rows of the table."""
    return read_rows(Path(__file__).with_name("cards.csv"), Card)


def card_of(name: str | None, memory_gib: float | None) -> Card | None:
    """The card that NVML calls so; None where the table lacks it, as the slower ones on PCIe, or V100S."""
    words = re.split(r"\W", (name or "").upper())
    fits = (c for c in read_cards() if c.name in words and abs(c.memory_gib - (memory_gib or 0)) <= NAMED_GIB)
    return None if "PCIE" in words else next(fits, None)


def figures_of(card: Card, *, model: str, precision: str) -> list[Published]:
    """Published throughput of the model by Paddle on the same card and precision.

    A table that does not say the card's memory, the model's version or the level of AMP is of any.
    """
    names = {precision, "amp"} if precision in ("amp_o1", "amp_o2") else {precision}
    return [
        row
        for row in select(read_published(), metric="throughput", accelerator=card.name)
        if model in (row.model, *UNVERSIONED.get(row.model, ())[:1])
        and row.precision in names
        and row.framework.startswith("Paddle")
        and row.accelerator_memory_gib in (None, card.memory_gib)
    ]


def note(figure: Published) -> str:
    """The caveats of a figure."""
    _, unsaid = UNVERSIONED.get(figure.model, (figure.model, None))
    return "; ".join(filter(None, (figure.note, unsaid)))
