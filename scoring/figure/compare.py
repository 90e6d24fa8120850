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
from scoring.figure import spread, warnings
from scoring.figure.calibration import smallest_difference
from scoring.figure.levels import hosts_of_runs, in_words, independent_values
from scoring.figure.protocols import Protocol
from scoring.figure.repeats import once
from scoring.figure.score import Score, add_score_options, counts, protocol_of, score
from scoring.importers import MOST, count, jsonable, read_record
from scoring.importers.checks import REFUSED
from scoring.record import InputError, Record, TooFewRunsError


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
        notes = []
        named = []
        for row in self.rows:
            notes += row.score.footnotes
            standing = row.score.standing
            named.append(standing is not None and standing.uses_the_name)
        if any(named) and not all(named):
            notes.append(mlperf.NOT_COMPARABLE)
        return mlperf.notes_in_order(notes)

    def to_json(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol.name,
            "base": self.rows[0].name,
            "smallest_difference": smallest_difference(),
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
    scores = [result for _, result in named]
    records = list(itertools.chain.from_iterable(result.records for result in scores))
    once(records)

    base = scores[0]
    rows = []
    warned = list(warnings.of_mixture(records))
    for name, result in named:
        row = _row(name, base, result, known or between_runs((base, result), scores))
        if row.efficiency is not None and row.devices != base.records[0].devices:
            warned += warnings.of_efficiency(name, row.efficiency)
            if row.efficiency > REFUSED:
                row = dataclasses.replace(row, efficiency=None)
        rows.append(row)
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(warned))


def _row(name: str, base: Score, result: Score, apart: BetweenRuns | None) -> Row:
    """The row of one system beside the base, its efficiency as it comes out."""
    ratio = result.value / base.value
    interval = None
    basis = "the base itself"
    if result is not base:
        interval, basis = ratio_interval(base, result, apart)
    speedup = 1 / ratio if result.protocol.figure == "run_time" else ratio
    return Row(
        name=name,
        devices=result.records[0].devices,
        score=result,
        ratio=ratio,
        ratio_interval_95=interval,
        basis=basis,
        different=_is_different(ratio, interval),
        speedup=speedup,
        efficiency=_efficiency(base, result, speedup),
    )


def _is_different(ratio: float, interval: tuple[float, float] | None) -> bool | None:
    """Whether two figures differ by more than like hosts do, and beyond the interval of their ratio; None unknown."""
    if interval is None:
        return None
    matters = abs(math.log(ratio)) >= smallest_difference()
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


def between_runs(pair: tuple[Score, Score], known: Sequence[Score]) -> BetweenRuns | None:
    """The relative standard deviation over those of `known` that have repeats and are the system of both of `pair`."""
    first, second = pair
    count = 0
    freedom = 0
    squares = 0.0
    for one in known:
        values = [run.value for run in one.runs]
        same = _same_system(one, first) and _same_system(one, second)
        if same and len(values) > 1 and all(math.isfinite(value) for value in values):
            count += len(values)
            freedom += len(values) - 1
            squares += (len(values) - 1) * (statistics.stdev(values) / statistics.fmean(values)) ** 2
    if not freedom:
        return None
    return BetweenRuns(math.sqrt(squares / freedom), freedom, f"the spread of {count} runs of this system")


def _same_system(one: Score, other: Score) -> bool:
    """Whether repeats of the one tell of the other: both say the same devices and batch, and nothing else differs."""
    a = one.records[0]
    b = other.records[0]
    if a.devices is None or a.global_batch is None:
        return False
    if (a.devices, a.global_batch, a.machine) != (b.devices, b.global_batch, b.machine):
        return False
    if a.header.get("hardware") != b.header.get("hardware"):
        return False
    for name in ("model", "mode", "nodes", "precision", "math_mode"):
        of_a = getattr(a, name)
        of_b = getattr(b, name)
        if of_a is not None and of_b is not None and of_a != of_b:
            return False
    return True


def ratio_interval(
    base: Score, other: Score, known: BetweenRuns | None = None
) -> tuple[tuple[float, float] | None, str]:
    """95 % interval of other / base, and what it is made of: the method of the protocol's mean, in spread.py.

    A single run's windows know nothing of how far repeats lie apart: without `known` there is no interval.
    """
    counts = (len(base.runs), len(other.runs))
    a = [run.value for run in base.runs]
    b = [run.value for run in other.runs]
    if min(counts) < 2:
        finite = all(math.isfinite(value) for value in [*a, *b])
        if known is None or not finite or (base.protocol.over_runs != "mean" and max(counts) > 1):
            how = "--between-runs-sd, or several runs of a system"
            return None, f"one run: how far its repeats lie apart is unknown ({how})"
        single = spread.single_run_interval(other.value / base.value, known.relative_sd, known.freedom, counts)
        return single, f"one run against {max(counts)}: {known.source}"
    over = f"over {counts[0]} and {counts[1]} runs"
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
    means_a = independent_values(a, hosts_of_runs(base.records))
    means_b = independent_values(b, hosts_of_runs(other.records))
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
    logs = _logs_of(place, "*/*") + _logs_of(place, "*/*/*")
    if not logs:
        raise InputError(f"{place}: no *.txt or *.log in the folder, nor in its systems' folders")
    return sorted({str(log.parent) for log in logs})


def _for_each(systems: Sequence[str], values: Sequence[int] | None, option: str) -> Sequence[int | None]:
    """One number of an option for each system. Raises InputError where there are neither one nor as many."""
    if values is None or len(values) == 1:
        return [values[0] if values else None] * len(systems)
    if len(values) != len(systems):
        raise InputError(f"{option} gives {len(values)} numbers for {len(systems)} systems; give one, or one for each")
    return values


def read_systems(args: argparse.Namespace, places: Sequence[str]) -> list[tuple[str, list[Record]]]:
    """The runs of each system, which is a log or a folder of them, as the options of `add_log_options` say."""
    folders = list(itertools.chain.from_iterable(_systems_of(place) for place in places))
    devices = _for_each(folders, args.devices, "--devices")
    batches = _for_each(folders, args.batch, "--batch")
    systems = []
    for place, number, batch in zip(folders, devices, batches, strict=True):
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
        nodes = int(description["number_of_nodes"])
        devices = nodes * int(description["accelerators_per_node"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return record
    if not (0 < nodes < MOST and 0 < devices < MOST):
        return record

    batch_per_device = record.batch_per_device
    if record.batch_of_all and record.batch_of_all % devices == 0:
        batch_per_device = record.batch_of_all // devices
    return dataclasses.replace(
        record,
        nodes=nodes,
        devices=devices,
        batch_per_device=batch_per_device,
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
    base = result.rows[0]
    for row in result.rows:
        lines.append(f"{row.name}  (devices: {row.devices or 'not said'}, runs: {len(row.score.runs)})")
        lines.append(f"  figure      {row.score.value:.3f} {row.score.shown_unit}")
        lines.append(f"  levels      {in_words(row.score.levels)}")
        if row.score.standing is not None:
            lines.append(f"  result      {row.score.standing.name}")
        if row is not base:
            lines += _ratio_lines(row)
        lines += [f"  {line}" for line in as_text(row.score.warnings).splitlines()]
    return [*lines, *as_text(result.warnings).splitlines(), *result.footnotes]


def _ratio_lines(row: Row) -> list[str]:
    """The ratio with its verdict, and the speedup with the efficiency."""
    verdict = _VERDICTS[row.different]
    interval = ""
    if row.ratio_interval_95 is not None:
        low, high = row.ratio_interval_95
        interval = f", 95 % {low:.4f} to {high:.4f}"
        if row.different is False and not low <= 1 <= high:
            verdict = f"not called different: like hosts differ by up to {smallest_difference():.1%}"
    efficiency = ""
    if row.efficiency is not None:
        efficiency = f"   efficiency {row.efficiency:.1%}"
    return [
        f"  ratio       {row.ratio:.4f}{interval}   {verdict} ({row.basis})",
        f"  speedup     {row.speedup:.2f}{efficiency}",
    ]
