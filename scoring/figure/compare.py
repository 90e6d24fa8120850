"""Systems side by side: ratio, speedup and efficiency against the first, and whether they really differ."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlog import stats
from runlog.text import safe_lines
from scoring.figure import spread
from scoring.figure import warnings as hazards
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, TooFewRunsError, add_score_options, once, protocol_of, score
from scoring.figure.warnings import Warning_
from scoring.importers import count, jsonable, read_record
from scoring.record import InputError


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


def compare(named: Sequence[tuple[str, Score]], known: BetweenRuns | None = None) -> Comparison:
    """Set scores of one protocol side by side. Raises InputError for scores that have no common unit.

    `known` says how far repeats of single runs lie apart; else the scores with repeats of the same system do.
    """
    units = {(result.unit, result.protocol) for _, result in named}
    if len(named) < 2:
        raise InputError("give two systems or more")
    if len(units) > 1:
        shown = ", ".join(f"{name}: {result.unit} by {result.protocol.name}" for name, result in named)
        raise InputError(f"figures of different unit or protocol cannot be compared ({shown})")
    once([record for _, result in named for record in result.records])
    base = named[0][1]
    base_devices = _devices(base)
    rows = []
    for index, (name, result) in enumerate(named):
        ratio = result.value / base.value
        interval, basis = None, "the base itself"
        if index:
            of_single = known or between_runs((base, result), [score for _, score in named])
            interval, basis = ratio_interval(base, result, of_single)
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
                if devices and base_devices and _same_work(base, result)
                else None,
            )
        )
    records = [record for _, result in named for record in result.records]
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(hazards.of_mixture(records)))


def _devices(result: Score) -> int | None:
    return result.records[0].devices if result.records else None


def _same_work(base: Score, other: Score) -> bool:
    """Whether the two differ in devices alone, as far as their logs say: else a quotient is no efficiency."""
    records = (*base.records, *other.records)
    others = {"mixed_model", "mixed_batch", "mixed_precision", "mixed_math_mode"}
    return (
        others.isdisjoint(warning.rule for warning in hazards.of_mixture(records))
        and len({record.framework_name for record in records if record.framework}) < 2
    )


@dataclass(frozen=True)
class BetweenRuns:
    """How far single runs of a system lie apart: what one run alone cannot tell."""

    relative_sd: float
    freedom: int
    source: str  # in words


# The quantile of t for them: no mean evens their skewness out, so t at 96.5 % is what holds 95 % of runs of skewness 1.
SINGLE_RUNS = 0.9825
UNKNOWN = "one run: how far its repeats lie apart is unknown (--between-runs-sd, or several runs of a system)"


def between_runs(pair: Sequence[Score], known: Sequence[Score]) -> BetweenRuns | None:
    """The relative standard deviation over those of `known` that have repeats and are the system of both of `pair`."""
    values = []
    for result in known:
        if len(result.runs) < 2 or not all(_same_system(result, one) for one in pair):
            continue
        found = [run.value for run in result.runs]
        if all(map(math.isfinite, found)):
            values.append(found)
    freedom = sum(len(finite) - 1 for finite in values)
    if not freedom:
        return None
    squares = sum((len(v) - 1) * (statistics.stdev(v) / statistics.fmean(v)) ** 2 for v in values)
    number = sum(map(len, values))
    return BetweenRuns(math.sqrt(squares / freedom), freedom, f"the spread of {number} runs of this system")


def _same_system(one: Score, other: Score) -> bool:
    """Whether repeats of the one tell of the other: both say the same devices and batch, and nothing else differs."""
    a, b = one.records[0], other.records[0]
    if a.devices is None or a.global_batch is None:
        return False
    if a.machine != b.machine or a.header.get("hardware") != b.header.get("hardware"):
        return False
    if (a.devices, a.global_batch) != (b.devices, b.global_batch):
        return False
    pairs = ((getattr(a, name), getattr(b, name)) for name in ("model", "mode", "nodes", "precision", "math_mode"))
    return all(x is None or y is None or x == y for x, y in pairs)


def ratio_interval(
    base: Score, other: Score, known: BetweenRuns | None = None
) -> tuple[tuple[float, float] | None, str]:
    """95 % interval of other / base, and what it is made of: the method of the protocol's mean, in spread.py.

    A single run's windows know nothing of how far repeats lie apart: without `known` there is no interval.
    """
    counts = len(base.runs), len(other.runs)
    if min(counts) < 2:
        finite = all(math.isfinite(run.value) for result in (base, other) for run in result.runs)
        if known is None or not finite or (base.protocol.over_runs != "mean" and max(counts) > 1):
            return None, UNKNOWN
        half = (
            stats.t_quantile(known.freedom, SINGLE_RUNS) * known.relative_sd * math.sqrt(1 / counts[0] + 1 / counts[1])
        )
        ratio = other.value / base.value
        return (ratio * math.exp(-half), ratio * math.exp(half)), f"one run against {max(counts)}: {known.source}"
    over = f"over {counts[0]} and {counts[1]} runs"
    a, b = ([run.value for run in result.runs] for result in (base, other))
    if base.protocol.over_runs == "median":
        found = spread.median_ratio_interval(a, b)
        return found, f"ordered quotients {over}" if found else f"too few runs {over} for ordered quotients"
    of = spread.mean_of if base.protocol.over_runs == "mean" else spread.olympic_mean_of
    of_base, of_other = of(a), of(b)
    if of_base is None or of_other is None:
        return None, f"too few runs {over} for an olympic mean's interval"
    return spread.ratio_interval(of_base, of_other), f"{'Welch' if of is spread.mean_of else 'Yuen'}'s t {over}"


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
    parser.add_argument(
        "--between-runs-sd",
        type=between_runs_sd,
        metavar="PERCENT/RUNS",
        help="standard deviation between runs, in percent of the figure, and over how many: judges single runs (0.8/5)",
    )
    parser.add_argument("--json", action="store_true")


def between_runs_sd(text: str) -> BetweenRuns:
    """`0.8/5`: 0.8 % over 5 runs."""
    percent, _, runs = text.partition("/")
    if not (0 < float(percent) < 100 and count(runs) > 1):
        raise ValueError(text)
    return BetweenRuns(float(percent) / 100, count(runs) - 1, f"a given {percent} % between {runs} runs")


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
            print(safe_lines([f"python -m scoring compare: {system}: {error}"]), file=sys.stderr)
            return 1
    result = compare(named, args.between_runs_sd)
    if args.json:
        print(json.dumps(jsonable(result.to_json()), indent=1))
    else:
        print(safe_lines(comparison_lines(result)))
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
