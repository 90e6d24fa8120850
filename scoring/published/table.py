"""Rows of `published.csv`, one for each figure that a report prints, and of `cards.csv`, data-sheet peaks of GPUs.

Every figure keeps its printed digits. Where the publisher's own logs do not bear a figure out, `log_value`
holds what they give and `log_note` says how. An empty field means that the source does not say.
"""

import csv
import dataclasses
import functools
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from compliance.rules import peaks
from runlog.json_types import JsonObject
from scoring.record import InputError

NAMED_GIB = 1.5  # a GPU named 40 GB has 39.4 to 40 GiB for NVML
# Models in published tables that leave their version open: the version that each is taken for, and what is noted.
UNVERSIONED = {"resnet50": ("resnet50_v1.5", "v1 or v1.5 not stated")}

# The arithmetic of the matrix products at each precision.
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
        """Return the value with its digits as printed."""
        return self.value.printed

    @property
    def devices_per_node(self) -> float | None:
        """Return how many devices each node had; None where the table does not say the nodes or the devices."""
        if not self.devices or not self.nodes:
            return None
        return self.devices / self.nodes

    @property
    def framework_name(self) -> str:
        """Return the framework without the release 2.5, which one report names with it."""
        return self.framework.split(" 2.5")[0]

    @property
    def digits(self) -> int:
        """Return how many digits are printed behind the decimal point."""
        return len(self.printed.partition(".")[2])


def read_rows(path: Path, kind: type[_Row]) -> list[_Row]:
    """Return the rows of a CSV file as objects of the dataclass `kind`, which has a field for each column.

    Each cell becomes a value of its field's type. An empty cell becomes None, and the items of a tuple are separated by
    `;`. The field `line` of `kind` is no column: it is the line of the row in the file. Raises InputError, with the
    file and line, where the columns are others, or where a cell does not suit its field.
    """
    types = typing.get_type_hints(kind)
    columns = [field.name for field in dataclasses.fields(kind) if field.name != "line"]  # type: ignore[arg-type]
    with path.open(newline="", encoding="utf-8", errors="replace") as text:
        reader = csv.DictReader(text)
        if set(reader.fieldnames or ()) != set(columns):
            raise InputError(f"{path}:1: want the columns {', '.join(sorted(columns))}")
        rows = []
        for cells in reader:
            fields: JsonObject = {"line": reader.line_num}
            try:
                for name in columns:
                    fields[name] = _value_of_cell(name, cells[name], types[name])
            except ValueError as error:
                raise InputError(f"{path}:{reader.line_num}: {error}; correct the row") from None
            rows.append(kind(**fields))
    return rows


def _value_of_cell(name: str, text: str | None, field_type: Any) -> Any:
    """Return the text of a cell as a value of the type of its field, which is called `name`.

    With `int` the text `8` becomes 8, and an empty one is refused. With `int | None` an empty one becomes None. With a
    tuple `a;b` becomes ("a", "b"), and an empty text (). Raises ValueError for an empty text that is refused, and for
    one of which the type cannot be made.
    """
    if typing.get_origin(field_type) is tuple:
        return tuple(item for item in (text or "").split(";") if item)

    union_members = typing.get_args(field_type)  # (int, NoneType) for `int | None`; () for `int`
    if text:
        kind = union_members[0] if union_members else field_type
        return kind(text)
    if type(None) not in union_members:
        raise ValueError(f"{name} is empty")
    return None


def read_published() -> list[Published]:
    """Return the rows of published.csv, in its order."""
    return read_rows(Path(__file__).with_name("published.csv"), Published)


def select(rows: Iterable[Published], **conditions: object) -> list[Published]:
    """Return rows whose fields equal every one of `conditions`, e.g. `select(rows, table="oneflow", devices=8)`."""
    selected = []
    for row in rows:
        if all(getattr(row, name) == value for name, value in conditions.items()):
            selected.append(row)
    return selected


def nearest(rows: Iterable[Published], *, batch: int, devices: int) -> Published | None:
    """Return the throughput row whose batch of one device is nearest to `batch`; None where there is no row.

    Of several such rows it is the one whose number of devices is nearest to `devices`. Of several of these it is the
    one with the least throughput for each device. Rows that do not say their batch or devices are left out.
    """
    nearest_row: Published | None = None
    least_distance: tuple[float, ...] = ()
    for row in rows:
        if row.metric != "throughput" or not row.batch_per_device or not row.devices:
            continue
        off_batch = abs(row.batch_per_device - batch)
        off_devices = abs(row.devices - devices)
        distance = (off_batch, off_devices, row.value / row.devices)  # compared one after the other
        if nearest_row is None or distance < least_distance:
            nearest_row = row
            least_distance = distance
    return nearest_row


class _System(NamedTuple):
    """The columns that the rows of one system share in a published table, whatever their number of devices."""

    table: str
    framework: str
    accelerator: str | None
    precision: str | None
    strategy: str | None
    batch_per_device: int | None
    model: str


def by_devices(rows: Iterable[Published]) -> list[list[Published]]:
    """Return the throughput rows of each published system, a list for each, in the order of their devices.

    A system is what a table measured on growing numbers of devices, all else equal: the rows that agree in the columns
    of `_System`. Figures that a report copied from another one are left out. Of several rows with the same number of
    devices the first one is kept.
    """
    rows_by_devices: dict[_System, dict[int, Published]] = {}
    for row in rows:
        is_copied = (row.note or "").startswith("copied")
        if row.metric == "throughput" and row.devices and not is_copied:
            system = _System(
                table=row.table,
                framework=row.framework_name,
                accelerator=row.accelerator,
                precision=row.precision,
                strategy=row.strategy,
                batch_per_device=row.batch_per_device,
                model=row.model,
            )
            rows_by_devices.setdefault(system, {}).setdefault(row.devices, row)
    return [_in_order(rows_of_system) for rows_of_system in rows_by_devices.values()]


def _in_order(rows: Mapping[int, Published]) -> list[Published]:
    """Return rows in the order of their devices, by which they are given."""
    return [rows[devices] for devices in sorted(rows)]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU: its memory and links, and its peak in FLOP/s for the matrix products of each arithmetic."""

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
        """Return the FLOP/s of the tensor cores in FP16, by the same figures as the checker's."""
        return 1e12 * peaks()[self.name]

    @property
    def on_chip_bytes(self) -> int:
        """Return how many bytes the chip itself holds, which a kernel need not read again."""
        return self.on_chip_kib * 1024

    @property
    def flops_per_s(self) -> dict[str, float]:
        """Return the peak FLOP/s of each arithmetic that the card has."""
        peaks_of_card = {"float32": self.float32}
        if self.tf32 is not None:
            peaks_of_card["tf32"] = self.tf32
        peaks_of_card["float16"] = self.float16
        return peaks_of_card

    def peak(self, precision: str | None) -> float | None:
        """Return the peak FLOP/s at a precision; None for an unknown one, or where the card has no such arithmetic."""
        return self.flops_per_s.get(ARITHMETIC.get(precision or "", ""))

    def peaks(self, arithmetics: Iterable[str]) -> dict[str, Any]:
        """Return the peaks of these arithmetics, for JSON."""
        names = ("name", "memory_gib", "memory_bytes_per_s", "on_chip_bytes", "link_bytes_per_s", "source")
        fields = {name: getattr(self, name) for name in names}
        return fields | {"flops_per_s": {kind: self.flops_per_s[kind] for kind in arithmetics}}


@functools.cache
def read_cards() -> list[Card]:
    """Return the rows of cards.csv."""
    return read_rows(Path(__file__).with_name("cards.csv"), Card)


def card_of(name: str | None, memory_gib: float | None) -> Card | None:
    """Return the card that NVIDIA's driver calls `name`, as `NVIDIA A100-SXM4-40GB`; None where cards.csv has none.

    Its memory must be that of the card, but for what the driver keeps; None is returned where it is not known, too. The
    slower cards with PCIe links are not in the table; nor is V100S, which has a name of its own.
    """
    words = re.split(r"\W", (name or "").upper())
    if "PCIE" in words:
        return None
    for card in read_cards():
        is_named = card.name in words
        has_its_memory = abs(card.memory_gib - (memory_gib or 0)) <= NAMED_GIB
        if is_named and has_its_memory:
            return card
    return None


def figures_of(card: Card, *, model: str, precision: str) -> list[Published]:
    """Return the published throughput of a model by Paddle on the same card at the same precision.

    A row that does not say the card's memory or the level of AMP suits any of them. A row that leaves the model's
    version open is taken for the version that UNVERSIONED names.
    """
    precisions = {precision}
    if precision in ("amp_o1", "amp_o2"):
        precisions.add("amp")
    figures = []
    for row in select(read_published(), metric="throughput", accelerator=card.name):
        is_of_paddle = row.framework.startswith("Paddle")
        is_of_model = model in (row.model, _model_with_version(row.model))
        is_of_memory = row.accelerator_memory_gib in (None, card.memory_gib)
        if is_of_paddle and is_of_model and is_of_memory and row.precision in precisions:
            figures.append(row)
    return figures


def _model_with_version(model: str) -> str:
    """Return the version that a published model is taken for; its own name where it says its version."""
    if model not in UNVERSIONED:
        return model
    version, _ = UNVERSIONED[model]
    return version


def note(figure: Published) -> str:
    """Return the caveats of a figure; empty where there is none."""
    caveats = [figure.note] if figure.note else []
    if figure.model in UNVERSIONED:
        _, unsaid = UNVERSIONED[figure.model]
        caveats.append(unsaid)
    return "; ".join(caveats)
