"""The estimate of a step and its baselines on reports that they have not seen: each is predicted by the others alone.

    python benchmarks/estimate_baselines.py [--rows]     the judgement; --rows: each figure, as docs/estimate.md has it
    python benchmarks/estimate_baselines.py --write      counts the programs anew: scoring/estimate_demands.csv

`--write` builds each program without a GPU (10 minutes, most of them HRNet's).
"""

import argparse
import csv
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import env  # noqa: E402
from scoring import estimate  # noqa: E402
from scoring.estimate import Row  # noqa: E402
from scoring.published import read_published  # noqa: E402
from tools import inspect  # noqa: E402

COLUMNS = ("model", "accelerator", "accelerator_memory_gib", "precision", "batch_per_device", "devices")
WORKLOADS = {model: workload for workload, model in env.MODELS.items()}
RECIPES = {"hrnet": {"RECIPE": "cityscapes_benchmark"}}
WAYS = {
    "products, traffic, launches, all-reduce": estimate.model,
    "mean of the other reports' figures": estimate.mean_of_others,
    "roofline times a constant": estimate.roofline,
}


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
    found = {name: estimate.left_out(rows, way) for name, way in WAYS.items()}
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
            predicted = [
                value if yes else None for value, yes in zip(estimate.left_out(rows, way), judged, strict=True)
            ]
            errors = [abs(value / row.published.value - 1) for row, value in zip(rows, predicted, strict=True) if value]
            ordered = [right for *_, right in estimate.pairs(rows, predicted)]
            lines.append(
                f"| {of} | {name} | {len(errors)} of {sum(judged)} | {statistics.median(errors):.1%} | "
                f"{max(errors):.1%} | {sum(error > 0.3 for error in errors)} | {sum(ordered)} of {len(ordered)} |"
            )
    held = [
        low <= row.published.value <= high
        for row in rows
        if row.is_paddles
        for others in [[other for other in rows if other.published.table != row.published.table]]
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
            factors = estimate.fit([row for row in of_card if row.published.table != report])
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
