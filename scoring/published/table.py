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
from scoring.record import InputError

MEMORY_TOLERANCE_GIB = 1.5  # the driver reports a little less than a card's name says: 39.4 to 40 GiB for 40 GB
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

    @property
    def digits(self) -> int:
        """Return how many digits are printed behind the decimal point."""
        return len(self.printed.partition(".")[2])


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
    log_value: Figure | None
    log_note: str | None
    note: str | None
    line: int

    @property
    def printed(self) -> str:
        """Return the value with its digits as printed."""
        return self.value.printed

    @property
    def devices_per_node(self) -> float | None:
        """Return how many devices each node had; None if the table does not say the nodes or the devices."""
        if not self.devices or not self.nodes:
            return None
        return self.devices / self.nodes

    @property
    def framework_name(self) -> str:
        """Return the framework without the release 2.5, which one report names with it."""
        return self.framework.split(" 2.5")[0]


def read_rows(path: Path, kind: type[_Row]) -> list[_Row]:
    """Return the rows of a CSV file as objects of a dataclass.

    Args:
        path: The file. Its first line has the names of the columns, in any order. A byte-order mark may stand before.
        kind: The dataclass. It has a field for each column, and a field `line` for the number of the row's line.

    Raises:
        InputError: The file has other columns, or a cell does not suit the type of its field.
        OSError: The file cannot be read.
    """
    types = typing.get_type_hints(kind)
    columns = [field.name for field in dataclasses.fields(kind) if field.name != "line"]  # type: ignore[arg-type]
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as text:
        reader = csv.DictReader(text)
        if set(reader.fieldnames or ()) != set(columns):
            raise InputError(f"{path}:1: want the columns {', '.join(sorted(columns))}, separated by commas")
        rows = []
        for cells in reader:
            try:
                fields = {name: _value_of_cell(name, cells[name], types[name]) for name in columns}
            except ValueError as error:
                raise InputError(f"{path}:{reader.line_num}: {error}; correct the row") from None
            fields["line"] = reader.line_num
            rows.append(kind(**fields))
    return rows


def _value_of_cell(name: str, text: str | None, field_type: Any) -> Any:
    """Return the text of a CSV cell, converted to the type of its field in a dataclass.

    The type of the field may be

    - a tuple of texts: `a;b` gives ("a", "b"), and an empty cell gives ().
    - a single type, such as `int`: `8` gives 8, and an empty cell raises ValueError.
    - a type or None, such as `int | None`: `8` gives 8, and an empty cell gives None.

    Args:
        name: Name of the field, for the error on an empty cell.
        text: Text of the cell. None, for a cell that a short row lacks, is the same as an empty text.
        field_type: Type of the field. In a type such as `int | None`, None comes last.

    Raises:
        ValueError: The text does not suit the type.
    """
    if typing.get_origin(field_type) is tuple:
        return tuple(item for item in (text or "").split(";") if item)

    types_of_union = typing.get_args(field_type)  # (int, NoneType) for `int | None`, and () for `int`
    may_be_empty = type(None) in types_of_union
    if text:
        convert = types_of_union[0] if types_of_union else field_type  # `int` for both
        return convert(text)
    if may_be_empty:
        return None
    raise ValueError(f"{name} is empty")


def read_published() -> list[Published]:
    """Return the rows of published.csv, in its order."""
    return read_rows(Path(__file__).with_name("published.csv"), Published)


def select(rows: Iterable[Published], **conditions: object) -> list[Published]:
    """Return the published figures that meet all conditions, as in `select(rows, table="oneflow", devices=8)`.

    Args:
        rows: The figures.
        **conditions: Wanted value of each field, by its name. None wants a field whose value is None.
    """
    selected = []
    for row in rows:
        if all(getattr(row, name) == value for name, value in conditions.items()):
            selected.append(row)
    return selected


def nearest(rows: Iterable[Published], *, batch: int, devices: int) -> Published | None:
    """Return the published throughput whose batch size per device is nearest to a wanted one.

    Ties go to the nearest number of devices, and then to the least throughput per device.

    Args:
        rows: Published figures. Those without a batch size or devices are left out, and so are other metrics.
        batch: Wanted images of a step on one device.
        devices: Wanted number of devices.

    Returns:
        The throughput, or None if there is none.
    """
    candidates = [row for row in rows if row.metric == "throughput" and row.batch_per_device and row.devices]
    return min(candidates, key=lambda row: _distance(row, batch, devices), default=None)


class _Distance(NamedTuple):
    """How far a row is from what is wanted. Distances are compared field by field, and the least is the nearest."""

    of_batch: int
    of_devices: int
    throughput_per_device: float


def _distance(row: Published, batch: int, devices: int) -> _Distance:
    """Return how far a published throughput is from a wanted batch size and number of devices.

    Args:
        row: The throughput. It must state its batch size and devices.
        batch: Wanted images of a step on one device.
        devices: Wanted number of devices.
    """
    assert row.batch_per_device and row.devices
    return _Distance(abs(row.batch_per_device - batch), abs(row.devices - devices), row.value / row.devices)


class _System(NamedTuple):
    """The columns that the rows of one system share in a published table, whatever their number of devices."""

    table: str
    framework: str
    accelerator: str | None
    precision: str | None
    strategy: str | None
    batch_per_device: int | None
    model: str


def _system_of(row: Published) -> _System:
    """Return the system of a row."""
    return _System(
        table=row.table,
        framework=row.framework_name,
        accelerator=row.accelerator,
        precision=row.precision,
        strategy=row.strategy,
        batch_per_device=row.batch_per_device,
        model=row.model,
    )


def systems_by_devices(rows: Iterable[Published]) -> list[list[Published]]:
    """Return the published throughputs of each system, by ascending number of devices.

    Rows are of one system if they agree in table, framework, accelerator, precision, strategy, batch size and model. Of
    several rows of a system with the same number of devices, the first counts. Figures that a report copied from
    another one are left out.

    Args:
        rows: Published figures. Other metrics than throughput are left out.

    Returns:
        A list for each system, such as its rows for 1, 8 and 32 devices.
    """
    rows_of_systems: dict[_System, dict[int, Published]] = {}  # {system: {number of devices: row}}
    for row in rows:
        is_copied = (row.note or "").startswith("copied")  # from another report
        if row.metric == "throughput" and row.devices and not is_copied:
            row_by_devices = rows_of_systems.setdefault(_system_of(row), {})
            row_by_devices.setdefault(row.devices, row)
    return [_sorted_by_devices(row_by_devices) for row_by_devices in rows_of_systems.values()]


def _sorted_by_devices(row_by_devices: Mapping[int, Published]) -> list[Published]:
    """Return published figures by ascending number of devices.

    Args:
        row_by_devices: The figures by their number of devices.
    """
    return [row_by_devices[devices] for devices in sorted(row_by_devices)]


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
        """Return the FLOP/s of the tensor cores in FP16, by compliance/rules/peaks.yaml, which the check uses too."""
        return 1e12 * peaks()[self.name]

    @property
    def on_chip_bytes(self) -> int:
        """Return how many bytes the chip itself holds, so that a kernel need not read them from memory again."""
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
        """Return the peak FLOP/s of the GPU at a precision of training.

        Args:
            precision: A key of ARITHMETIC, such as "amp_o1". None if it is not known.

        Returns:
            The peak. None if the precision is unknown or the GPU does not have its arithmetic.
        """
        return self.flops_per_s.get(ARITHMETIC.get(precision or "", ""))

    def peaks(self, arithmetics: Iterable[str]) -> dict[str, Any]:
        """Return the data of the GPU as plain values for JSON.

        Args:
            arithmetics: The arithmetics whose peaks are included, such as "float16". The GPU must have each of them.
        """
        names = ("name", "memory_gib", "memory_bytes_per_s", "on_chip_bytes", "link_bytes_per_s", "source")
        fields = {name: getattr(self, name) for name in names}
        return fields | {"flops_per_s": {kind: self.flops_per_s[kind] for kind in arithmetics}}


@functools.cache
def read_cards() -> list[Card]:
    """Return the rows of cards.csv."""
    return read_rows(Path(__file__).with_name("cards.csv"), Card)


def card_of(name: str | None, memory_gib: float | None) -> Card | None:
    """Return the data-sheet entry of a GPU: its memory, links and peaks.

    Args:
        name: Name of the GPU by NVIDIA's driver. "NVIDIA A100-SXM4-40GB" with 39.4 GiB gives the A100 of 40 GiB. None
            if it is not known.
        memory_gib: Memory of the GPU in GiB, or None if it is not known.

    Returns:
        The entry of cards.csv. None if no card fits, as for a GPU on PCIe, or if `name` or `memory_gib` is None.
    """
    words = re.split(r"\W", (name or "").upper())
    is_on_pcie = "PCIE" in words  # such cards are slower, and cards.csv does not have them
    if is_on_pcie or memory_gib is None:
        return None
    for card in read_cards():
        memory_fits = abs(card.memory_gib - memory_gib) <= MEMORY_TOLERANCE_GIB
        if card.name in words and memory_fits:  # a whole word: a V100S is not a V100
            return card
    return None


def figures_of(card: Card, *, model: str, precision: str) -> list[Published]:
    """Return the published throughputs with Paddle that match a GPU, a model and a precision, as far as is stated.

    A row that leaves the GPU's memory, the level of mixed precision or the model's version open is included, because it
    may match: "amp" may be "amp_o1", and "resnet50" may be "resnet50_v1.5".

    Args:
        card: The GPU with its memory size, such as the A100 of 40 GiB. A row must name the same GPU.
        model: Name of the model, such as "resnet50_v1.5".
        precision: "fp32", "tf32", "amp_o1" or "amp_o2". The last two are levels of mixed precision (AMP).

    Returns:
        The matching rows of published.csv, for any batch size and any number of devices; empty if there are none.
    """
    figures = []
    for row in select(read_published(), metric="throughput", accelerator=card.name):
        is_of_paddle = row.framework.startswith("Paddle")
        may_be_of_card = row.accelerator_memory_gib in (None, card.memory_gib)
        may_match = may_be_of_card and _may_be_of_model(row, model) and _may_have_precision(row, precision)
        if is_of_paddle and may_match:
            figures.append(row)
    return figures


def _may_be_of_model(row: Published, model: str) -> bool:
    """Return whether a published figure is of a model, or may be because it leaves the version of its model open.

    Args:
        row: The published figure. One of "resnet50" is taken to be of "resnet50_v1.5", for example.
        model: The model.
    """
    return row.model == model or _model_with_version(row.model) == model


def _may_have_precision(row: Published, precision: str) -> bool:
    """Return whether a published figure is of a precision, or may be because it leaves its level of AMP open.

    Args:
        row: The published figure. One of "amp" may be of "amp_o1", for example.
        precision: The precision.
    """
    if row.precision == "amp":
        return precision in ("amp", "amp_o1", "amp_o2")
    return row.precision == precision


def _model_with_version(model: str) -> str:
    """Return the version that a published model is taken for, or the model itself if it names its version.

    Args:
        model: Name of the model. "resnet50" gives "resnet50_v1.5".
    """
    if model not in UNVERSIONED:
        return model
    version, _ = UNVERSIONED[model]
    return version


def note(figure: Published) -> str:
    """Return the caveats of a published figure in one text, or an empty text if there are none.

    Args:
        figure: The published figure. Its own note counts, and that it leaves the version of its model open.
    """
    caveats = [figure.note] if figure.note else []
    if figure.model in UNVERSIONED:
        _, unsaid = UNVERSIONED[figure.model]
        caveats.append(unsaid)
    return "; ".join(caveats)
