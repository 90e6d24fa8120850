"""Systems side by side: ratio, speedup and efficiency against the first, and whether they really differ."""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compliance import mlperf
from runlog.digits import percent
from runlog.json_types import JsonObject
from runlog.text import safe_lines
from runlog.verdict import Verdict, as_text
from scoring.figure import spread, warnings
from scoring.figure.calibration import smallest_difference
from scoring.figure.levels import hosts_of_runs, in_words, independent_values
from scoring.figure.options import add_score_options, counts, protocol_of
from scoring.figure.protocols import Protocol
from scoring.figure.repeats import refuse_same_run_twice
from scoring.figure.score import Score, score
from scoring.figure.systems import read_systems
from scoring.importers import count, jsonable
from scoring.importers.checks import MAX_PLAUSIBLE_RATIO
from scoring.record import InputError, TooFewRunsError


@dataclass(frozen=True)
class BetweenRuns:
    """How far single runs of a system lie apart: what one run alone cannot tell."""

    relative_sd: float  # standard deviation as a share of the mean
    freedom: int  # degrees of freedom of that deviation
    source: str  # where it is known from, in words


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
        """Return the notes on all systems' scores, each once, and one that MLPerf results stand for no others."""
        notes = []
        named = []
        for row in self.rows:
            notes += row.score.footnotes
            standing = row.score.standing
            named.append(standing is not None and standing.uses_the_name)
        if any(named) and not all(named):
            notes.append(mlperf.NOT_COMPARABLE)
        return mlperf.notes_in_order(notes)

    def to_json(self) -> JsonObject:
        return {
            "protocol": self.protocol.name,
            "base": self.rows[0].name,
            "smallest_difference": smallest_difference(),
            "rows": [vars(row) | {"score": row.score.to_json()} for row in self.rows],
            "warnings": warnings.as_json(self.warnings),
            "footnotes": self.footnotes,
        }


def compare(named: Sequence[tuple[str, Score]], given: BetweenRuns | None = None) -> Comparison:
    """Return systems side by side, each with its ratio to the first one, which is the base.

    `named` are pairs of a system's name and its score. `given` says how far repeats lie apart, for systems of a single
    run; without it the scores that have repeats of the same system say it. An efficiency above
    MAX_PLAUSIBLE_RATIO is too high to be true: it is left out, with a warning. Raises InputError for fewer than two
    systems, for scores of different units or protocols, and where a run is in two of them.
    """
    _refuse_other_kinds_of_figures(named)
    scores = [result for _, result in named]
    records = list(itertools.chain.from_iterable(result.records for result in scores))
    refuse_same_run_twice(records)

    base = scores[0]
    rows = []
    shown_warnings = list(warnings.warn_of_mixed_settings(records))
    for name, result in named:
        between = given or spread_between_runs(base, result, scores)
        row = _row(name, base, result, between)
        scales = row.devices != base.records[0].devices  # else the efficiency is the speedup, which may be anything
        if row.efficiency is not None and scales:
            shown_warnings += warnings.warn_if_over_linear(name, row.efficiency)
            if row.efficiency > MAX_PLAUSIBLE_RATIO:
                row = dataclasses.replace(row, efficiency=None)
        rows.append(row)
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(shown_warnings))


def _refuse_other_kinds_of_figures(named: Sequence[tuple[str, Score]]) -> None:
    """Raise InputError for fewer than two systems, and where their scores differ in unit or protocol."""
    if len(named) < 2:
        raise InputError("give two systems or more")
    kinds = {(result.unit, result.protocol) for _, result in named}
    if len(kinds) > 1:
        shown = ", ".join(f"{name}: {result.unit} by {result.protocol.name}" for name, result in named)
        raise InputError(f"figures of different unit or protocol cannot be compared ({shown})")


def _row(name: str, base: Score, result: Score, between: BetweenRuns | None) -> Row:
    """Return a system's row beside the base; `between` says how far single runs of it lie apart, None if not known.

    The speedup is over 1 where the system is faster than the base: it is the ratio of two throughputs, and one over
    the ratio of two times to train. The base itself has no interval.
    """
    ratio = result.value / base.value
    interval = RatioInterval(None, "the base itself")
    if result is not base:
        interval = ratio_interval(base, result, between)
    speedup = 1 / ratio if result.protocol.figure == "run_time" else ratio
    return Row(
        name=name,
        devices=result.records[0].devices,
        score=result,
        ratio=ratio,
        ratio_interval_95=interval.bounds,
        basis=interval.basis,
        different=_is_different(ratio, interval.bounds),
        speedup=speedup,
        efficiency=_efficiency(base, result, speedup),
    )


def _is_different(ratio: float, interval: tuple[float, float] | None) -> bool | None:
    """Tell whether two figures differ: by more than like hosts do, and beyond the interval of their ratio.

    Returns None where there is no interval.
    """
    if interval is None:
        return None
    low, high = interval
    matters = abs(math.log(ratio)) >= smallest_difference()
    return matters and not low <= 1 <= high


def _efficiency(base: Score, other: Score, speedup: float) -> float | None:
    """Return the scaling efficiency: `speedup` over the factor in devices. 6 times as fast on 8 times as many is 0.75.

    Returns None where a log does not say its devices, or where the two systems differ in more than devices, as far as
    their logs say: then the speedup is not an effect of the devices alone.
    """
    base_devices = base.records[0].devices
    devices = other.records[0].devices
    if not base_devices or not devices or _differ_in_more_than_devices(base, other):
        return None
    return speedup * base_devices / devices


def _differ_in_more_than_devices(base: Score, other: Score) -> bool:
    """Tell whether two systems differ in something that changes the speed, such as the precision or the framework.

    Versions of the same software may differ.
    """
    records = (*base.records, *other.records)
    mixtures = {warning.check for warning in warnings.warn_of_mixed_settings(records)}
    mixtures.discard("mixed_software")
    frameworks = {record.framework_name for record in records if record.framework}
    return bool(mixtures) or len(frameworks) > 1


def spread_between_runs(base: Score, other: Score, scores: Sequence[Score]) -> BetweenRuns | None:
    """Return how far single runs of a system lie apart, where `base` and `other` are both of that system.

    It is learnt from those of `scores` that are of the same system, have two runs or more, and whose runs all
    converged; `base` and `other` may be among them. Returns None where there is no such score.
    """
    figures_of_repeats = []
    for candidate in scores:
        values = _run_values(candidate)
        is_same_system = _are_of_one_system(candidate, base) and _are_of_one_system(candidate, other)
        if is_same_system and len(values) > 1 and all(math.isfinite(value) for value in values):
            figures_of_repeats.append(values)
    pooled = spread.pooled_sd(figures_of_repeats)
    if pooled is None:
        return None
    runs = sum(len(values) for values in figures_of_repeats)
    return BetweenRuns(pooled.relative_sd, pooled.freedom, f"the spread of {runs} runs of this system")


def _are_of_one_system(one: Score, other: Score) -> bool:
    """Tell whether the runs of two scores are repeats of one system, so that the spread of one holds for the other.

    The first run stands for each score. Both logs must say the same number of devices and the same batch of all
    devices. They must agree on the machine and its hardware, or both say nothing of them. Model, mode, nodes, precision
    and math mode are taken to agree where only one of the logs says them.
    """
    record = one.records[0]
    other_record = other.records[0]
    if record.devices is None or record.devices != other_record.devices:
        return False
    if record.global_batch is None or record.global_batch != other_record.global_batch:
        return False
    if record.machine != other_record.machine:
        return False
    if record.header.get("hardware") != other_record.header.get("hardware"):
        return False

    for name in ("model", "mode", "nodes", "precision", "math_mode"):
        value = getattr(record, name)
        other_value = getattr(other_record, name)
        if value is not None and other_value is not None and value != other_value:
            return False
    return True


class RatioInterval(NamedTuple):
    """The 95 % interval of a ratio of two figures."""

    bounds: tuple[float, float] | None  # low, high; None where it is not known
    basis: str  # what it is made of, or why there is none


def ratio_interval(base: Score, other: Score, between: BetweenRuns | None = None) -> RatioInterval:
    """Return the 95 % interval of the ratio other / base, by the method that suits how the protocol averages runs.

    Where one side is a single run, `between` must say how far single runs lie apart: the run's own windows do not tell
    it. Without it there is no interval, nor where the runs print figures in so few digits that it would have no width.
    """
    made = _interval_by_protocol(base, other, between)
    if made.bounds is not None and spread.has_no_width(made.bounds):
        return RatioInterval(None, "the runs' figures have too few digits to tell how far they lie apart")
    return made


def _interval_by_protocol(base: Score, other: Score, between: BetweenRuns | None) -> RatioInterval:
    """Return the interval of the ratio other / base, as the method gives it: `ratio_interval` refuses one of no width.

    A single run on either side is judged by `between`. Of several runs on both, the method is that of the protocol's
    `over_runs`: ordered quotients for a median, Yuen's t for an olympic mean, Welch's t for a mean. There is none for
    too few runs.
    """
    runs = len(base.runs)
    other_runs = len(other.runs)
    if min(runs, other_runs) < 2:
        return _interval_of_single_run(base, other, between)

    over = f"over {runs} and {other_runs} runs"
    if base.protocol.over_runs == "median":
        bounds = spread.median_ratio_interval(_run_values(base), _run_values(other))
        if bounds is None:
            return RatioInterval(None, f"too few runs {over} for ordered quotients")
        return RatioInterval(bounds, f"ordered quotients {over}")
    if base.protocol.over_runs == "olympic_mean":
        dropped = base.protocol.dropped_runs
        olympic_base = spread.mean_of(_run_values(base), dropped=dropped)
        olympic_other = spread.mean_of(_run_values(other), dropped=dropped)
        if olympic_base is None or olympic_other is None:
            return RatioInterval(None, f"too few runs {over} for an olympic mean's interval")
        return RatioInterval(spread.ratio_interval(olympic_base, olympic_other), f"Yuen's t {over}")
    return _interval_of_means(base, other)


def _interval_of_single_run(base: Score, other: Score, between: BetweenRuns | None) -> RatioInterval:
    """Return the interval of a ratio of which one side or both are a single run, by the spread `between` runs.

    There is none without that spread, for runs that did not converge, nor for a single run against a median or an
    olympic mean of several: the spread is that of single runs and their plain means.
    """
    counts = (len(base.runs), len(other.runs))
    all_converged = all(math.isfinite(value) for value in [*_run_values(base), *_run_values(other)])
    is_against_other_mean = max(counts) > 1 and base.protocol.over_runs != "mean"
    if between is None or not all_converged or is_against_other_mean:
        how = "--between-runs-sd, or several runs of a system"
        return RatioInterval(None, f"one run: how far its repeats lie apart is unknown ({how})")
    bounds = spread.single_run_interval(other.value / base.value, between.relative_sd, between.freedom, counts)
    return RatioInterval(bounds, f"one run against {max(counts)}: {between.source}")


def _interval_of_means(base: Score, other: Score) -> RatioInterval:
    """Return the interval of a ratio of means of several runs each, by Welch's t.

    Runs on one host lie closer together than hosts do. So for a side whose logs name several hosts, the mean of each
    host counts as one value, rather than each run. Both sides must have two runs or more.
    """
    base_values = independent_values(_run_values(base), hosts_of_runs(base.records))
    other_values = independent_values(_run_values(other), hosts_of_runs(other.records))
    basis = f"Welch's t over {len(base.runs)} and {len(other.runs)} runs"
    if len(base_values) < len(base.runs) or len(other_values) < len(other.runs):
        basis = f"Welch's t over {len(base_values)} and {len(other_values)} hosts"
    base_mean = spread.mean_of(base_values)
    other_mean = spread.mean_of(other_values)
    assert base_mean is not None and other_mean is not None, "both sides have two values or more"
    return RatioInterval(spread.ratio_interval(base_mean, other_mean), basis)


def _run_values(score: Score) -> list[float]:
    """Return the figure of each run of a score; infinite for one that did not converge."""
    return [run.value for run in score.runs]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "systems", nargs="+", metavar="SYSTEM", help="a log, or the folder of one system's logs; the first is the base"
    )
    add_score_options(parser, convert=counts)
    parser.add_argument(
        "--between-runs-sd",
        type=between_runs_sd,
        metavar="PERCENT/RUNS",
        help="standard deviation between runs, in percent of the figure, and over how many: judges single runs (0.8/5)",
    )
    parser.add_argument("--json", action="store_true")


def between_runs_sd(text: str) -> BetweenRuns:
    """Return the spread that the option --between-runs-sd gives: `0.8/5` is 0.8 % over 5 runs.

    Raises ValueError for any other text.
    """
    deviation, _, runs = text.partition("/")
    if not (0 < float(deviation) < 100 and count(runs) > 1):
        raise ValueError(text)
    return BetweenRuns(float(deviation) / 100, count(runs) - 1, f"a given {deviation} % between {runs} runs")


def main(args: argparse.Namespace) -> int:
    """Print the systems that the options name side by side, as lines or as JSON. Returns 0.

    Raises TooFewRunsError, with the system's name, where one has fewer runs than the protocol asks for.
    """
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


# By a row's `different`
_VERDICTS = {True: "different", False: "not shown to differ", None: "cannot be told apart or alike"}


def comparison_lines(result: Comparison) -> list[str]:
    """Return the lines that `compare` prints: the protocol, some lines for each system, then warnings and notes."""
    counts = [len(row.score.runs) for row in result.rows]
    lines = [f"protocol {result.protocol.name}: {result.protocol.describe(counts)}"]
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


def _verdict_in_words(row: Row) -> str:
    """Return in words whether a system differs from the base.

    A ratio may lie off 1 with all of its interval and still be too near to it: two hosts of one kind differ as much.
    """
    if row.different is False and row.ratio_interval_95 is not None:
        low, high = row.ratio_interval_95
        interval_holds_1 = low <= 1 <= high
        if not interval_holds_1:
            return f"not called different: like hosts differ by up to {percent(smallest_difference())}"
    return _VERDICTS[row.different]


def _ratio_lines(row: Row) -> list[str]:
    """Return the two lines that compare a system with the base; what is not known is left out of them.

    ratio       1.9800, 95 % 1.9500 to 2.0100   different (Welch's t over 3 and 3 runs)
    speedup     1.98   efficiency 99.0%
    """
    interval = ""
    if row.ratio_interval_95 is not None:
        low, high = row.ratio_interval_95
        interval = f", 95 % {low:.4f} to {high:.4f}"
    efficiency = ""
    if row.efficiency is not None:
        efficiency = f"   efficiency {percent(row.efficiency)}"
    return [
        f"  ratio       {row.ratio:.4f}{interval}   {_verdict_in_words(row)} ({row.basis})",
        f"  speedup     {row.speedup:.2f}{efficiency}",
    ]
