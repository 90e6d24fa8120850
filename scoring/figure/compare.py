"""Systems side by side: ratio, speedup and efficiency against the first, and whether they really differ.

The devices of each are said by its log, by an option, or by its system description.
"""

import argparse
import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compliance import mlperf
from runlog.text import safe_lines
from runlog.verdict import Verdict, as_text
from scoring.figure import intervals, spread, warnings
from scoring.figure.protocols import Protocol
from scoring.figure.score import Score, add_score_options, counts, once, protocol_of, score
from scoring.importers import MOST, count, jsonable, read_record
from scoring.importers.checks import REFUSED
from scoring.record import InputError, Record, TooFewRunsError

# Share of a figure below which two systems are not called different: like hosts lie so far apart. With it 7 of 586
# pairs of like hosts with H100 were called different, without it 278.
SMALLEST_DIFFERENCE = 0.004


@dataclass(frozen=True)
class BetweenRuns:
    """How far single runs of a system lie apart: what one run alone cannot tell."""

    relative_sd: float
    freedom: int
    source: str  # in words


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


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Systems under one protocol; the first row is the base."""

    protocol: Protocol
    rows: tuple[Row, ...]
    warnings: tuple[Verdict, ...]

    @property
    def footnotes(self) -> list[str]:
        """The notes on all systems' scores, each once, and that MLPerf results stand for no others."""
        standings = [row.score.standing for row in self.rows]
        named = [standing is not None and standing.uses_the_name for standing in standings]
        notes = list(itertools.chain.from_iterable(row.score.footnotes for row in self.rows))
        if any(named) and not all(named):
            notes.append(mlperf.NOT_COMPARABLE)
        return mlperf.notes_in_order(notes)

    def to_json(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol.name,
            "base": self.rows[0].name,
            "smallest_difference": SMALLEST_DIFFERENCE,
            "rows": [vars(row) | {"score": row.score.to_json()} for row in self.rows],
            "warnings": warnings.as_json(self.warnings),
            "footnotes": self.footnotes,
        }


def compare(named: Sequence[tuple[str, Score]], known: BetweenRuns | None = None) -> Comparison:
    """Set scores of one protocol side by side. Raises InputError for scores that have no common unit.

    `known` says how far repeats of single runs lie apart; else the scores with repeats of the same system do.
    """
    if len(named) < 2:
        raise InputError("give two systems or more")
    if len({(result.unit, result.protocol) for _, result in named}) > 1:
        shown = ", ".join(f"{name}: {result.unit} by {result.protocol.name}" for name, result in named)
        raise InputError(f"figures of different unit or protocol cannot be compared ({shown})")
    records = [record for _, result in named for record in result.records]
    once(records)
    base, rows, warned = named[0][1], [], list(warnings.of_mixture(records))
    for name, result in named:
        ratio = result.value / base.value
        interval, basis = None, "the base itself"
        if result is not base:
            apart = known or between_runs((base, result), [one for _, one in named])
            interval, basis = ratio_interval(base, result, apart)
        speedup = 1 / ratio if result.protocol.figure == "run_time" else ratio
        efficiency = _efficiency(base, result, speedup)
        if efficiency and result.records[0].devices != base.records[0].devices:
            warned += warnings.of_efficiency(name, efficiency)
            efficiency = efficiency if efficiency <= REFUSED else None
        row = Row(
            name=name,
            devices=result.records[0].devices,
            score=result,
            ratio=ratio,
            ratio_interval_95=interval,
            basis=basis,
            different=_is_different(ratio, interval),
            speedup=speedup,
            efficiency=efficiency,
        )
        rows.append(row)
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(warned))


def _is_different(ratio: float, interval: tuple[float, float] | None) -> bool | None:
    """Whether two figures differ by more than like hosts do, and beyond the interval of their ratio; None unknown."""
    if interval is None:
        return None
    matters = abs(math.log(ratio)) >= SMALLEST_DIFFERENCE
    return matters and not interval[0] <= 1 <= interval[1]


def _efficiency(base: Score, other: Score, speedup: float) -> float | None:
    """Speedup a device; None where the two differ in more than devices, as far as their logs say."""
    records = (*base.records, *other.records)
    mixed = {warning.check for warning in warnings.of_mixture(records)} - {"mixed_software"}
    frameworks = {record.framework_name for record in records if record.framework}
    base_devices, devices = base.records[0].devices, other.records[0].devices
    if mixed or len(frameworks) > 1 or not base_devices or not devices:
        return None
    return speedup * base_devices / devices


def between_runs(pair: Sequence[Score], known: Sequence[Score]) -> BetweenRuns | None:
    """The relative standard deviation over those of `known` that have repeats and are the system of both of `pair`."""
    same = [one for one in known if len(one.runs) > 1 and all(_same_system(one, other) for other in pair)]
    sets = [values for one in same if all(map(math.isfinite, values := [run.value for run in one.runs]))]
    freedom = sum(len(values) - 1 for values in sets)
    if not freedom:
        return None
    squares = sum((len(values) - 1) * (statistics.stdev(values) / statistics.fmean(values)) ** 2 for values in sets)
    source = f"the spread of {sum(map(len, sets))} runs of this system"
    return BetweenRuns(math.sqrt(squares / freedom), freedom, source)


def _same_system(one: Score, other: Score) -> bool:
    """Whether repeats of the one tell of the other: both say the same devices and batch, and nothing else differs."""
    a, b = one.records[0], other.records[0]
    said = [(r.devices, r.global_batch, r.machine, r.header.get("hardware")) for r in (a, b)]
    if None in said[0][:2] or said[0] != said[1]:
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
            how = "--between-runs-sd, or several runs of a system"
            return None, f"one run: how far its repeats lie apart is unknown ({how})"
        single = spread.single_run_interval(other.value / base.value, known.relative_sd, known.freedom, counts)
        return single, f"one run against {max(counts)}: {known.source}"
    over = f"over {counts[0]} and {counts[1]} runs"
    a = [run.value for run in base.runs]
    b = [run.value for run in other.runs]
    if base.protocol.over_runs == "median":
        found = spread.median_ratio_interval(a, b)
        return found, f"ordered quotients {over}" if found else f"too few runs {over} for ordered quotients"
    if base.protocol.over_runs == "olympic_mean":
        dropped = base.protocol.dropped_runs
        olympic_base = spread.mean_of(a, dropped=dropped)
        olympic_other = spread.mean_of(b, dropped=dropped)
        if olympic_base is None or olympic_other is None:
            return None, f"too few runs {over} for an olympic mean's interval"
        return spread.ratio_interval(olympic_base, olympic_other), f"Yuen's t {over}"

    # Runs on one host lie closer together than hosts do: where both sides name several hosts, these are the repeats.
    means_a = intervals.independent_values(a, base.records)
    means_b = intervals.independent_values(b, other.records)
    basis = f"Welch's t {over}"
    if len(means_a) < len(a) or len(means_b) < len(b):
        basis = f"Welch's t over {len(means_a)} and {len(means_b)} hosts"
    mean_base = spread.mean_of(means_a)
    mean_other = spread.mean_of(means_b)
    assert mean_base is not None and mean_other is not None, "both sides have two values or more"
    return spread.ratio_interval(mean_base, mean_other), basis


def _logs_of(place: str, pattern: str = "*") -> list[Path]:
    """The logs of one system: a file, or the `*.txt` and `*.log` files of a folder."""
    path = Path(place)
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob(pattern) if file.suffix in (".txt", ".log") and file.is_file())


def _systems_of(place: str) -> list[str]:
    """The place; of a folder without logs, as a submission's `results`, its SYSTEM or SYSTEM/BENCHMARK folders."""
    if _logs_of(place):
        return [place]
    found = sorted({str(log.parent) for pattern in ("*/*", "*/*/*") for log in _logs_of(place, pattern)})
    if not found:
        raise InputError(f"{place}: no *.txt or *.log in the folder, nor in its systems' folders")
    return found


def _for_each(systems: Sequence[str], values: Sequence[int] | None, option: str) -> Sequence[int | None]:
    """One number of an option for each system. Raises InputError where there are neither one nor as many."""
    if values is None or len(values) == 1:
        return [values[0] if values else None] * len(systems)
    if len(values) != len(systems):
        raise InputError(f"{option} gives {len(values)} numbers for {len(systems)} systems; give one, or one for each")
    return values


def read_systems(args: argparse.Namespace, places: Sequence[str]) -> list[tuple[str, list[Record]]]:
    """The runs of each system, which is a log or a folder of them, as the options of `add_log_options` say."""
    places = [system for place in places for system in _systems_of(place)]
    devices = _for_each(places, args.devices, "--devices")
    batches = _for_each(places, args.batch, "--batch")
    systems = []
    for place, number, batch in zip(places, devices, batches, strict=True):
        told = {"format": args.format, "devices": number, "batch_per_device": batch, "segment": args.segment}
        systems.append((place, [read_described(log, **told) for log in _logs_of(place)]))
    return systems


def read_described(log: str | Path, **options: Any) -> Record:
    """The record of a log; its devices, where neither it nor `options` say them, as its system's description has them.

    The description of SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt is SUBMITTER/systems/SYSTEM.json.
    """
    record = read_record(log, **options)
    parents = Path(log).absolute().parents
    if record.devices is not None or len(parents) < 4 or parents[2].name != "results":
        return record
    file = parents[3] / "systems" / f"{parents[1].name}.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        nodes, of_node = (int(description[name]) for name in ("number_of_nodes", "accelerators_per_node"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return record
    devices, batch = nodes * of_node, record.batch_of_all
    if not (0 < nodes < MOST and 0 < devices < MOST):
        return record
    return dataclasses.replace(
        record,
        nodes=nodes,
        devices=devices,
        batch_per_device=batch // devices if batch and batch % devices == 0 else record.batch_per_device,
        accelerator=str(description.get("accelerator_model_name") or "") or None,
        described_by=f"systems/{file.name}",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    protocol = protocol_of(args)
    named = []
    for system, records in read_systems(args, args.systems):
        try:
            named.append((system, score(records, protocol, skip=args.skip)))
        except TooFewRunsError as error:
            raise TooFewRunsError(f"{system}: {error}") from None
    result = compare(named, args.between_runs_sd)
    if args.json:
        print(json.dumps(jsonable(result.to_json()), indent=1))
    else:
        print(safe_lines(comparison_lines(result)))
    return 0


_VERDICTS = {True: "different", False: "not shown to differ", None: "cannot be told apart or alike"}


def comparison_lines(result: Comparison) -> list[str]:
    lines = [f"protocol {result.protocol.name}: {result.protocol.describe()}"]
    for index, row in enumerate(result.rows):
        lines.append(f"{row.name}  (devices: {row.devices or 'not said'}, runs: {len(row.score.runs)})")
        lines.append(f"  figure      {row.score.value:.3f} {row.score.shown_unit}")
        if row.score.standing is not None:
            lines.append(f"  result      {row.score.standing.name}")
        if index:
            verdict = _VERDICTS[row.different]
            shown = row.ratio_interval_95
            interval = f", 95 % {shown[0]:.4f} to {shown[1]:.4f}" if shown else ""
            if row.different is False and shown and not shown[0] <= 1 <= shown[1]:
                verdict = f"not called different: like hosts differ by up to {SMALLEST_DIFFERENCE:.1%}"
            lines.append(f"  ratio       {row.ratio:.4f}{interval}   {verdict} ({row.basis})")
            efficiency = f"   efficiency {row.efficiency:.1%}" if row.efficiency is not None else ""
            lines.append(f"  speedup     {row.speedup:.2f}{efficiency}")
        lines += [f"  {line}" for line in as_text(row.score.warnings).splitlines()]
    return [*lines, *as_text(result.warnings).splitlines(), *result.footnotes]
