"""The estimate of a step and its baselines on reports that they have not seen: each is predicted by the others alone.

    python benchmarks/estimate_baselines.py [--rows]     the judgement; --rows: each figure, as docs/estimate.md has it
    python benchmarks/estimate_baselines.py --write      counts the programs anew: scoring/predict/estimate_demands.csv

`--write` builds each program without a GPU (10 minutes, most of them HRNet's).
"""

import argparse
import csv
import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import env  # noqa: E402
from scoring.predict import estimate  # noqa: E402
from scoring.predict.estimate import Row  # noqa: E402
from scoring.published.table import read_published  # noqa: E402
from tools import inspect  # noqa: E402

COLUMNS = ("model", "accelerator", "accelerator_memory_gib", "precision", "batch_per_device", "devices")
WORKLOADS = {model: workload for workload, model in env.MODELS.items()}
RECIPES = {"hrnet": {"RECIPE": "cityscapes_benchmark"}}
Way = Callable[[Row, Sequence[Row]], float | None]  # images/s of a row, from rows that it may learn of


def mean_of_others(row: Row, others: Sequence[Row]) -> float | None:
    """Baseline: the mean figure of a device of that card, arithmetic and model; it knows no batch."""
    rates = [other.published.value / other.images * _batch(other) for other in _alike(row, others)]
    return statistics.fmean(rates) * row.images / _batch(row) if rates else None


def roofline(row: Row, others: Sequence[Row]) -> float | None:
    """Baseline: the greater of products and traffic at their peaks, times a constant of card and arithmetic."""
    ratios = [math.log(other.step_time_s / _least_s(other)) for other in _alike(row, others, of_model=False)]
    return row.images / (_least_s(row) * math.exp(statistics.fmean(ratios))) if ratios else None


def _batch(row: Row) -> int:
    assert row.published.batch_per_device
    return row.published.batch_per_device


def _least_s(row: Row) -> float:
    return max(row.demand.product_s, row.demand.traffic_s) + row.demand.all_reduce_s


def _alike(row: Row, others: Sequence[Row], *, of_model: bool = True) -> list[Row]:
    return [
        other
        for other in others
        if other.card == row.card
        and other.demand.arithmetic == row.demand.arithmetic
        and (not of_model or estimate.key(other.published)[0] == estimate.key(row.published)[0])
    ]


WAYS = {
    "products, traffic, launches, all-reduce": estimate.model,
    "mean of the other reports' figures": mean_of_others,
    "roofline times a constant": roofline,
}


def left_out(rows: Sequence[Row], way: Way) -> list[float | None]:
    """images/s of each row, learned of the other reports alone."""
    return [way(row, estimate.without(row.published.table, rows)) for row in rows]


def pairs(rows: Sequence[Row], predicted: Sequence[float | None]) -> list[tuple[str, Row, Row, bool]]:
    """(what differs, slower, faster, whether the prediction says so too) of figures that differ in one thing alone.

    That is the batch, or the precision, of one report; and of O1 against O2, which no report has both of, any report.
    """
    found = []
    known = [(row, value) for row, value in zip(rows, predicted, strict=True) if value is not None]
    for row, value in known:
        for other, other_value in known:
            one, two = row.published, other.published
            if one.value >= two.value or (estimate.key(one)[0], row.card, one.devices) != (
                estimate.key(two)[0],
                other.card,
                two.devices,
            ):
                continue
            of_one_report = (one.table, one.framework) == (two.table, two.framework)
            levels = {one.precision, two.precision} == {"amp_o1", "amp_o2"}
            same_batch = one.batch_per_device == two.batch_per_device
            if of_one_report and one.precision == two.precision and not same_batch:
                what = "batch"
            elif same_batch and one.precision != two.precision and (of_one_report or levels):
                what = "precision"
            else:
                continue
            found.append((what, row, other, value < other_value))
    return found


def demand_of(configuration: Sequence[str]) -> estimate.Demand:
    """Counted in the program of one configuration, as estimate_demands.csv names it."""
    model, card, memory, precision, batch, devices = configuration
    workload = WORKLOADS[model]
    sizes = {"PRECISION": precision, "BATCHSIZE": batch, "DGXNNODES": "1", "DGXNGPU": devices}
    job = env.of_system(
        DGXSYSTEM=f"DGX{card[0]}100".replace("DGXV100", "DGX1"), WORKLOAD=workload, **sizes, **RECIPES.get(workload, {})
    )
    (device,) = (d for d in inspect.DEVICES if d.name == card and d.memory_gib == int(memory))
    operators = inspect.in_order(inspect.build(job).update)
    found = inspect.demand(operators, tf32=precision == "tf32", ranks=int(devices), device=device)
    assert found
    return dataclasses.replace(
        found, **{name: float(f"{getattr(found, name):.5g}") for name in ("product_s", "traffic_s", "all_reduce_s")}
    )


def write() -> None:
    """Counts every program of the published rows."""
    configurations = sorted({estimate.key(row) for row in estimate.one_node(read_published())})
    with estimate.DEMANDS_CSV.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*COLUMNS, *(field.name for field in dataclasses.fields(estimate.Demand))])
        for configuration in configurations:
            writer.writerow([*configuration, *dataclasses.astuple(demand_of(configuration))])
            text.flush()


def row_lines(rows: Sequence[Row]) -> list[str]:
    """The table of docs/estimate.md: each figure with what the model and its baselines say."""
    found = {name: left_out(rows, way) for name, way in WAYS.items()}
    lines = []
    for i, row in enumerate(rows):
        p, predicted = row.published, [found[name][i] for name in WAYS]
        errors = [f"{100 * (value / p.value - 1):+.1f}" if value else "none" for value in predicted]
        shown = f"{predicted[0]:.4g}" if predicted[0] else "none"
        lines.append(
            f"| {p.table}, {p.framework} | {p.accelerator} | {p.model.partition('_')[0]} {p.precision}, "
            f"{p.batch_per_device} x {p.devices} | {p.printed} | {shown} | {' | '.join(errors)} |"
        )
    return lines


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Errors, pairs and intervals: of Paddle's figures and of all."""
    lines = []
    for of, judged in (("Paddle's", [row.is_paddles for row in rows]), ("all", [True] * len(rows))):
        for name, way in WAYS.items():
            predicted = [value if yes else None for value, yes in zip(left_out(rows, way), judged, strict=True)]
            errors = [abs(value / row.published.value - 1) for row, value in zip(rows, predicted, strict=True) if value]
            ordered = [right for *_, right in pairs(rows, predicted)]
            lines.append(
                f"| {of} | {name} | {len(errors)} of {sum(judged)} | {statistics.median(errors):.1%} | "
                f"{max(errors):.1%} | {sum(error > 0.3 for error in errors)} | {sum(ordered)} of {len(ordered)} |"
            )
    held = [
        low <= row.published.value <= high
        for row in rows
        if row.is_paddles
        for others in [estimate.without(row.published.table, rows)]
        for value in [estimate.model(row, others)]
        if value
        for low, high in [estimate.interval_95(value, others)]
    ]
    width, _ = estimate.scatter(rows)
    lines.append(
        f"The interval, of the other reports alone, holds {sum(held)} of {len(held)} of Paddle's figures; "
        f"spread of the logarithms {width:.3f}."
    )
    alike: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        alike.setdefault(estimate.key(row.published), []).append(row.published.value)
    most = max(max(values) / min(values) for values in alike.values())
    lines.append(
        f"Published figures of one configuration differ by up to a factor of {most:.2f}: what knows no framework is "
        f"off by at least {(most - 1) / (most + 1):.1%} on one of them."
    )
    return lines


def factor_lines(rows: Sequence[Row]) -> list[str]:
    """The factors of each card, of all reports and without each."""
    lines = []
    for card in sorted({row.card for row in rows}):
        of_card = [row for row in rows if row.card == card]
        for report in (None, *sorted({row.published.table for row in of_card})):
            factors = estimate.fit(estimate.without(report or "", of_card))
            shown = ", ".join(
                f"{name} {1e6 * value:.0f} us" if name == "launch" else f"{name} {value:.2f}"
                for name, value in factors.items()
            )
            lines.append(f"{card} {f'without {report}' if report else 'all reports'}: {shown}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print each figure")
    parser.add_argument("--write", action="store_true", help="count the programs anew")
    args = parser.parse_args()
    if args.write:
        write()
        return 0
    rows = estimate.published_rows()
    print("\n".join([*(row_lines(rows) if args.rows else []), *summary_lines(rows), *factor_lines(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
