"""Data-sheet peaks of GPUs, `cards.csv`, and the published figures of each."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compliance.rules import peaks
from scoring.published.table import Published, read_published, read_rows, select

NAMED_GIB = 1.5  # a GPU named 40 GB has 39.4 to 40 GiB for NVML
# A model in published tables that leaves its version open: the one that it is taken for, and what is noted.
UNVERSIONED = {"resnet50": ("resnet50_v1.5", "v1 or v1.5 not stated")}

# Of a precision's products.
ARITHMETIC = {"fp32": "float32", "tf32": "tf32", "amp_o1": "float16", "amp_o2": "float16"}


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
        """Of the tensor cores, as the checker knows them."""
        return 1e12 * peaks()[self.name]

    @property
    def on_chip_bytes(self) -> int:
        """What a kernel need not read again."""
        return self.on_chip_kib * 1024

    @property
    def flops_per_s(self) -> dict[str, float]:
        """Peak of each arithmetic that it has."""
        kinds = ("float32", "tf32", "float16")
        return {kind: peak for kind in kinds if (peak := getattr(self, kind)) is not None}

    def peak(self, precision: str | None) -> float | None:
        """FLOP/s of the products of a precision; None where the card lacks it, or it is none."""
        return self.flops_per_s.get(ARITHMETIC.get(precision or "", ""))

    def peaks(self, arithmetics: Iterable[str]) -> dict[str, Any]:
        """As JSON, of these arithmetics."""
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
    """What is to be known of a figure."""
    _, unsaid = UNVERSIONED.get(figure.model, (figure.model, None))
    return "; ".join(filter(None, (figure.note, unsaid)))
