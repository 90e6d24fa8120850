"""Step time of a training program on one node of V100 or A100, from the published figures of such programs.

    step = products * p + traffic * m + launches * l + all-reduce

Products and traffic are the program's FLOPs and bytes at the data sheet's peaks; p, of FP32 or TF32 and of FP16, and m
are factors of at least 1; l is what starting a kernel costs. All four are fitted, for each card, on published rows. The
all-reduce travels at the link's peak, unhidden. docs/estimate.md has how wrong it is, and its baselines.
"""

from __future__ import annotations

import csv
import functools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring.figure import spread
from scoring.published.table import Published, read_published

DEMANDS_CSV = Path(__file__).with_name("estimate_demands.csv")

# Weight of the pull towards the data sheet, beside each report's weight of 1 over the number of reports: it decides
# where the rows of a card are too alike to tell its factors apart. docs/estimate.md has its effect.
PULL = 1e-3


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a step asks of a card at the peaks of its data sheet."""

    arithmetic: str  # of the products: float32, tf32, float16 or bfloat16
    product_s: float
    traffic_s: float
    launches: int
    all_reduce_s: float

    def terms(self) -> dict[str, float]:
        """What each fitted factor multiplies."""
        return {self.arithmetic: self.product_s, "traffic": self.traffic_s, "launch": float(self.launches)}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published figure of one node with the demand of this project's program of the same configuration."""

    published: Published
    card: str
    demand: Demand

    @property
    def step_time_s(self) -> float:
        """As published."""
        return self.images / self.published.value

    @property
    def images(self) -> int:
        """Of a step."""
        assert self.published.batch_per_device and self.published.devices
        return self.published.batch_per_device * self.published.devices

    @property
    def is_paddles(self) -> bool:
        """Whether the published program was Paddle's, as this project's is."""
        return self.published.framework.startswith("Paddle")


# ---- the programs --------------------------------------------------------------------------------------------------


def key(row: Published) -> tuple[str, ...]:
    """The configuration of a published row, as estimate_demands.csv names it.

    AMP of no stated level has the program of O1. V100s differ in nothing that is counted, and ResNet-50 without a
    version is taken for v1.5.
    """
    model = "resnet50_v1.5" if row.model == "resnet50" else row.model
    memory = row.accelerator_memory_gib if row.accelerator == "A100" else 32
    precision = "amp_o1" if row.precision == "amp" else row.precision
    return tuple(map(str, (model, row.accelerator, memory, precision, row.batch_per_device, row.devices)))


@functools.cache
def read_demands(path: Path = DEMANDS_CSV) -> dict[tuple[str, ...], Demand]:
    """{configuration: demand}; `benchmarks/estimate_baselines.py --write` counts them anew."""
    with path.open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    return {
        tuple(list(row.values())[:-5]): Demand(
            arithmetic=row["arithmetic"],
            launches=int(row["launches"]),
            **{name: float(row[name]) for name in ("product_s", "traffic_s", "all_reduce_s")},
        )
        for row in rows
    }


def one_node(rows: Sequence[Published]) -> list[Published]:
    """The published throughput of one node that says its precision; a report's copy of another's is left out."""
    return [
        row
        for row in rows
        if row.metric == "throughput"
        and row.nodes == 1
        and row.precision
        and row.batch_per_device
        and not (row.note or "").startswith("copied")
    ]


@functools.cache
def published_rows() -> tuple[Row, ...]:
    """Every published row of one node that says its precision."""
    demands = read_demands()
    return tuple(
        Row(published=row, card=row.accelerator or "", demand=demands[key(row)]) for row in one_node(read_published())
    )


# ---- the model -----------------------------------------------------------------------------------------------------


def fit(rows: Sequence[Row]) -> dict[str, float]:
    """The factors of one card: least squares of the relative error of the step time, each report weighing the same.

    What a factor adds to its least value, the data sheet's 1 or no cost of a launch, is never below 0.
    """
    reports = Counter(row.published.table for row in rows)
    # A row's shares of its published step, each times the root of the row's weight.
    per_s = [1 / math.sqrt(len(reports) * reports[row.published.table]) / row.step_time_s for row in rows]
    left = [
        w * (row.step_time_s - row.demand.product_s - row.demand.traffic_s - row.demand.all_reduce_s)
        for w, row in zip(per_s, rows, strict=True)
    ]
    names = sorted({name for row in rows for name in row.demand.terms()})
    columns = {n: [w * row.demand.terms().get(n, 0.0) for w, row in zip(per_s, rows, strict=True)] for n in names}
    scale = {name: math.hypot(*column) for name, column in columns.items()}
    added = dict.fromkeys(names, 0.0)
    for _ in range(20_000):  # one at a time, which finds the one least value of a convex sum
        most = 0.0
        for name in names:
            column, was = columns[name], added[name]
            slope = sum(c * r for c, r in zip(column, left, strict=True)) / scale[name] + was * scale[name]
            added[name] = max(0.0, slope / (1 + PULL)) / scale[name]
            left = [r - c * (added[name] - was) for c, r in zip(column, left, strict=True)]
            most = max(most, abs(added[name] - was) * scale[name])
        if most < 1e-9:
            break
    return {name: (name != "launch") + added[name] for name in names}


def parts_s(factors: Mapping[str, float], demand: Demand) -> dict[str, float] | None:
    """Seconds of a step by what takes them; None where no published figure is of the card's arithmetic."""
    if demand.arithmetic not in factors:
        return None
    return {
        "products": demand.product_s * factors[demand.arithmetic],
        "traffic": demand.traffic_s * factors["traffic"],
        "launches": demand.launches * factors["launch"],
        "all-reduce": demand.all_reduce_s,
    }


def model(row: Row, others: Sequence[Row]) -> float | None:
    """images/s of a row by factors fitted on the others of its card."""
    parts = parts_s(_factors(tuple(other for other in others if other.card == row.card)), row.demand)
    return row.images / sum(parts.values()) if parts else None


@functools.cache
def _factors(rows: tuple[Row, ...]) -> dict[str, float]:
    return fit(rows) if rows else {}


def without(report: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of the other reports."""
    return [row for row in rows if row.published.table != report]


def scatter(rows: Sequence[Row]) -> tuple[float, int]:
    """Spread of Paddle's published logarithms about the model left-one-report-out, and the reports that it is of."""
    squares: dict[str, list[float]] = {}
    for row in rows:
        predicted = model(row, without(row.published.table, rows)) if row.is_paddles else None
        if predicted:
            squares.setdefault(row.published.table, []).append(math.log(predicted / row.published.value) ** 2)
    return math.sqrt(statistics.fmean(map(statistics.fmean, squares.values()))), len(squares)


def interval_95(images_per_s: float, rows: Sequence[Row]) -> tuple[float, float]:
    """Of a prediction learned of these rows."""
    width, reports = scatter(rows)
    half = spread.t_quantile(reports - 1) * width
    return images_per_s * math.exp(-half), images_per_s * math.exp(half)


def predict(card: str, demand: Demand, images: int) -> dict[str, Any] | None:
    """Images/s of a program on a card with its interval and parts, from all published rows; None without any."""
    rows = published_rows()
    parts = parts_s(_factors(tuple(row for row in rows if row.card == card)), demand)
    if parts is None:
        return None
    images_per_s = images / sum(parts.values())
    return {
        "images_per_s": images_per_s,
        "interval_95": list(interval_95(images_per_s, rows)),
        "parts_s": parts,
        "kind": "fitted on the published figures of others; not measured",
    }


def of_run(model: str, precision: str, batch: int, devices: int) -> list[str]:
    """What a run of one node is predicted to do on each card that such a figure was published of, in words."""
    found = []
    for (its_model, accelerator, memory, *sizes), demand in read_demands().items():
        if [its_model, *sizes] != [model, precision, str(batch), str(devices)]:
            continue
        if predicted := predict(accelerator, demand, batch * devices):
            low, high = predicted["interval_95"]
            found.append(f"{accelerator} {memory} GB {predicted['images_per_s']:.4g} ({low:.4g} to {high:.4g})")
    return found
