"""Systems side by side: ratio, speedup and efficiency against the first, and whether they really differ."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring import hazards, spread
from scoring.hazards import Warning_
from scoring.importers import count, jsonable, read_record
from scoring.protocols import Protocol
from scoring.record import InputError
from scoring.score import Score, TooFewRunsError, add_score_options, protocol_of, score


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system beside the base, which is the first."""

    name: str
    devices: int | None
    score: Score
    ratio: float  # figure / figure of the base
    ratio_interval_95: tuple[float, float] | None
    basis: str  # what the interval is made of
    different: bool | None  # None: nothing says how far repeats lie apart
    speedup: float  # over 1 is faster than the base, for times too
    efficiency: float | None  # speedup / (devices / devices of the base), at the same precision

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        return {
            "name": self.name,
            "devices": self.devices,
            "score": self.score.to_json(),
            "ratio": self.ratio,
            "ratio_interval_95": None if self.ratio_interval_95 is None else list(self.ratio_interval_95),
            "basis": self.basis,
            "different": self.different,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Systems under one protocol; the first row is the base."""

    protocol: Protocol
    rows: tuple[Row, ...]
    warnings: tuple[Warning_, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "protocol": self.protocol.name,
            "base": self.rows[0].name,
            "rows": [row.to_json() for row in self.rows],
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }


def compare(named: Sequence[tuple[str, Score]]) -> Comparison:
    """Set scores of one protocol side by side. Raises InputError for scores that have no common unit."""
    units = {(result.unit, result.protocol) for _, result in named}
    if len(named) < 2:
        raise InputError("give two systems or more")
    if len(units) > 1:
        shown = ", ".join(f"{name}: {result.unit} by {result.protocol.name}" for name, result in named)
        raise InputError(f"figures of different unit or protocol cannot be compared ({shown})")
    base = named[0][1]
    base_devices = _devices(base)
    rows = []
    for index, (name, result) in enumerate(named):
        ratio = result.value / base.value
        interval, basis = (None, "the base itself") if index == 0 else ratio_interval(base, result)
        devices = _devices(result)
        speedup = 1 / ratio if result.protocol.figure == "run_time" else ratio
        rows.append(
            Row(
                name=name,
                devices=devices,
                score=result,
                ratio=ratio,
                ratio_interval_95=interval,
                basis=basis,
                different=None if interval is None else not interval[0] <= 1 <= interval[1],
                speedup=speedup,
                efficiency=speedup * base_devices / devices
                if devices and base_devices and _same_arithmetic(base, result)
                else None,
            )
        )
    records = [record for _, result in named for record in result.records]
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(hazards.of_mixture(records)))


def _devices(result: Score) -> int | None:
    return result.records[0].devices if result.records else None


def _same_arithmetic(base: Score, other: Score) -> bool:
    """Whether the two do not differ in precision, as far as their logs say: else a quotient is no efficiency."""
    return all(
        len({said for record in (*base.records, *other.records) if (said := getattr(record, name))}) < 2
        for name in ("precision", "math_mode")
    )


def ratio_interval(base: Score, other: Score) -> tuple[tuple[float, float] | None, str]:
    """95 % interval of other / base, and what it is made of.

    Means: Welch's t on the logarithms, by the delta method. Medians and olympic means: bootstrap of the ratio.
    One run each: its windows, which know nothing of how far repeats lie apart; the basis says so.
    """
    if len(base.runs) == 1 and len(other.runs) == 1:
        if base.interval_95 is None or other.interval_95 is None:
            return None, f"one run each, and of its windows {base.interval_method}"
        a, b = _times(base), _times(other)  # windows average in time
        interval = _welch_ratio(b, a)
        scale = (other.value / base.value) / (statistics.fmean(a) / statistics.fmean(b))
        shown = (interval[0] * scale, interval[1] * scale) if interval else None
        return shown, "windows of one run each: repeats were not measured"
    values_a = [run.value for run in base.runs if math.isfinite(run.value)]
    values_b = [run.value for run in other.runs if math.isfinite(run.value)]
    if min(len(values_a), len(values_b)) < 2:
        return None, "one of the two has one run: how far its repeats lie apart is unknown"
    if base.protocol.over_runs == "mean":
        return _welch_ratio(values_a, values_b), f"t over {len(values_a)} and {len(values_b)} runs"
    reduce = statistics.median if base.protocol.over_runs == "median" else spread.olympic_mean
    if min(len(values_a), len(values_b)) < 3:
        return None, "fewer than three runs are no ground for a bootstrap"
    return _bootstrap_ratio(values_a, values_b, reduce), f"bootstrap over {len(values_a)} and {len(values_b)} runs"


def _times(result: Score) -> list[float]:
    return [1 / rate for rate in result.runs[0].rates]


def _welch_ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of mean(b) / mean(a)."""
    deviation_a, deviation_b = spread.sd(a), spread.sd(b)
    if deviation_a is None or deviation_b is None:
        return None
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    part_a, part_b = (deviation_a / mean_a) ** 2 / len(a), (deviation_b / mean_b) ** 2 / len(b)
    variance = part_a + part_b
    if variance == 0:
        return mean_b / mean_a, mean_b / mean_a
    freedom = variance**2 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    half = spread.t_quantile(freedom) * math.sqrt(variance)
    return mean_b / mean_a * math.exp(-half), mean_b / mean_a * math.exp(half)


def _bootstrap_ratio(
    a: Sequence[float], b: Sequence[float], reduce: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    draw = random.Random(0)
    ratios = sorted(
        reduce(draw.choices(b, k=len(b))) / reduce(draw.choices(a, k=len(a))) for _ in range(spread.RESAMPLES)
    )
    tail = (1 - spread.CONFIDENCE) / 2
    return ratios[round(tail * (spread.RESAMPLES - 1))], ratios[round((1 - tail) * (spread.RESAMPLES - 1))]


def logs_of(place: str) -> list[Path]:
    """The logs of one system: a file, or the `*.txt` and `*.log` files of a folder."""
    path = Path(place)
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in (".txt", ".log") and file.is_file())
    if not found:
        raise InputError(f"{place}: no *.txt or *.log in the folder")
    return found


def counts(text: str) -> list[int]:
    """`8` or `1,8,32`."""
    return [count(item) for item in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring compare`."""
    parser.add_argument(
        "systems", nargs="+", metavar="SYSTEM", help="a log, or the folder of one system's logs; the first is the base"
    )
    add_score_options(parser, kind=counts)
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> int:
    """Print the comparison."""
    protocol = protocol_of(args)
    devices = _for_each(args.systems, args.devices, "--devices")
    batches = _for_each(args.systems, args.batch, "--batch")
    named = []
    for system, device_count, batch in zip(args.systems, devices, batches, strict=True):
        records = [
            read_record(log, format=args.format, devices=device_count, batch_per_device=batch, segment=args.segment)
            for log in logs_of(system)
        ]
        try:
            named.append((system, score(records, protocol, skip=args.skip)))
        except TooFewRunsError as error:
            print(f"python -m scoring compare: {system}: {error}", file=sys.stderr)
            return 1
    result = compare(named)
    if args.json:
        print(json.dumps(jsonable(result.to_json()), indent=1))
    else:
        print("\n".join(comparison_lines(result)))
    return 0


def _for_each(systems: Sequence[str], values: Sequence[int] | None, option: str) -> Sequence[int | None]:
    if values is None or len(values) == 1:
        return [values[0] if values else None] * len(systems)
    if len(values) != len(systems):
        raise InputError(f"{option} gives {len(values)} numbers for {len(systems)} systems; give one, or one for each")
    return values


_VERDICTS = {True: "different", False: "not shown to differ", None: "cannot be told apart or alike"}


def comparison_lines(result: Comparison) -> list[str]:
    """The comparison in lines for a reader."""
    lines = [f"protocol {result.protocol.name}: {result.protocol.describe()}"]
    for index, row in enumerate(result.rows):
        size = f"{row.devices} devices" if row.devices else "devices not said"
        lines.append(f"{row.name}  ({size}, runs: {len(row.score.runs)})")
        lines.append(f"  figure      {row.score.value:.3f} {row.score.unit}")
        if index == 0:
            continue
        verdict = _VERDICTS[row.different]
        shown = row.ratio_interval_95
        interval = f", 95 % {shown[0]:.4f} to {shown[1]:.4f}" if shown else ""
        lines.append(f"  ratio       {row.ratio:.4f}{interval}   {verdict} ({row.basis})")
        efficiency = f"   efficiency {row.efficiency:.1%}" if row.efficiency is not None else ""
        lines.append(f"  speedup     {row.speedup:.2f}{efficiency}")
    for warning in result.warnings:
        lines.append(f"  warning     {warning.rule}: {warning.message!a}")
    for row in result.rows:
        for warning in row.score.warnings:
            lines.append(f"  warning     {row.name}: {warning.rule}: {warning.message!a}")
    return lines
