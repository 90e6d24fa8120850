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
from scoring.record import InputError, Record, TooFewRunsError

# Two logs of one system agree in these facts, if both give them.
FACTS_OF_ONE_SYSTEM = ("model", "mode", "nodes", "precision", "math_mode")


@dataclass(frozen=True)
class BetweenRuns:
    """The spread between single runs of a system, which a single run does not show."""

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
        """Return the notes on all systems' scores, each once.

        If some scores are MLPerf results and others are not, a note is added that they are not comparable.
        """
        notes = []
        are_mlperf_results = []  # for each row
        for row in self.rows:
            notes += row.score.footnotes
            standing = row.score.standing
            are_mlperf_results.append(standing is not None and standing.uses_the_name)
        if any(are_mlperf_results) and not all(are_mlperf_results):
            notes.append(mlperf.NOT_COMPARABLE)
        return mlperf.notes_in_order(notes)  # without repeats

    def to_json(self) -> JsonObject:
        return {
            "protocol": self.protocol.name,
            "base": self.rows[0].name,
            "smallest_difference": smallest_difference(),
            "rows": [vars(row) | {"score": row.score.to_json()} for row in self.rows],
            "warnings": warnings.as_json(self.warnings),
            "footnotes": self.footnotes,
        }


def compare(named_scores: Sequence[tuple[str, Score]], given_spread: BetweenRuns | None = None) -> Comparison:
    """Return systems side by side, each with its ratio to the first one, which is the base.

    `named_scores` are pairs of a system's name and its score. `given_spread` is the spread between repeated runs; it is
    used for systems with a single run. None takes it from those of the scores that are repeats of the same system.

    If a system has another number of devices than the base, its efficiency should be 1 or less. A warning is added if
    it is above 1. If it is above MAX_PLAUSIBLE_RATIO, it is also left out.

    Raises InputError for fewer than two systems, for scores of different units or protocols, and if two systems share
    a run.
    """
    _refuse_other_kinds_of_figures(named_scores)
    scores = [result for _, result in named_scores]
    records = list(itertools.chain.from_iterable(result.records for result in scores))
    refuse_same_run_twice(records)

    base = scores[0]
    rows = []
    shown_warnings = list(warnings.warn_of_mixed_settings(records))
    for name, result in named_scores:
        between_runs = given_spread or spread_between_runs(base, result, scores)
        row = _row(name, base, result, between_runs)
        # With as many devices as the base, the efficiency is just the speedup, which has no upper limit.
        has_other_device_count = row.devices != base.records[0].devices
        if row.efficiency is not None and has_other_device_count:
            # An efficiency just above 1 only gets a warning. One above MAX_PLAUSIBLE_RATIO is left out, too.
            shown_warnings += warnings.warn_if_over_linear(name, row.efficiency)
            if row.efficiency > MAX_PLAUSIBLE_RATIO:
                row = dataclasses.replace(row, efficiency=None)
        rows.append(row)
    return Comparison(protocol=base.protocol, rows=tuple(rows), warnings=tuple(shown_warnings))


def _refuse_other_kinds_of_figures(named_scores: Sequence[tuple[str, Score]]) -> None:
    """Raise InputError for fewer than two systems, and if their scores differ in unit or protocol."""
    if len(named_scores) < 2:
        raise InputError("give two systems or more")
    kinds = {(result.unit, result.protocol) for _, result in named_scores}
    if len(kinds) > 1:
        shown = ", ".join(f"{name}: {result.unit} by {result.protocol.name}" for name, result in named_scores)
        raise InputError(f"figures of different unit or protocol cannot be compared ({shown})")


def _row(name: str, base: Score, result: Score, between_runs: BetweenRuns | None) -> Row:
    """Return a system's row beside the base.

    `between_runs` is the spread of single runs of the system; None if not known. The speedup is above 1 if the system
    is faster than the base: it is the ratio of two throughputs, or 1 / the ratio of two times to train.

    The base's own row has no interval.
    """
    ratio = result.value / base.value
    interval = RatioInterval(None, "the base itself")
    if result is not base:
        interval = ratio_interval(base, result, between_runs)
    speedup = 1 / ratio if result.protocol.figure == "run_time" else ratio  # above 1 is faster
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
    """Tell whether two figures of the given ratio differ; None without an interval of the ratio.

    They differ if the interval excludes 1, and if the ratio is off 1 by as much as like hosts differ, or more.
    """
    if interval is None:
        return None
    low, high = interval
    interval_holds_1 = low <= 1 <= high
    is_large_enough = abs(math.log(ratio)) >= smallest_difference()
    return is_large_enough and not interval_holds_1


def _efficiency(base: Score, other: Score, speedup: float) -> float | None:
    """Return the scaling efficiency: speedup / (devices / devices of the base).

    For example, 6 times as fast on 8 times as many devices is 0.75.

    Returns None if a log does not say its devices, or if the two systems are known to differ in more than devices. The
    speedup then has other causes too.
    """
    base_devices = base.records[0].devices
    devices = other.records[0].devices
    if not base_devices or not devices or _differ_in_more_than_devices(base, other):
        return None
    return speedup * base_devices / devices


def _differ_in_more_than_devices(base: Score, other: Score) -> bool:
    """Tell whether two systems differ in something else that changes the speed: the framework, or a setting.

    The settings are those of `warn_of_mixed_settings`, such as the precision. Versions of the same software may differ.
    """
    records = (*base.records, *other.records)
    mixed_settings = {warning.check for warning in warnings.warn_of_mixed_settings(records)}
    mixed_settings.discard("mixed_software")
    frameworks = {record.framework_name for record in records if record.framework}
    return bool(mixed_settings) or len(frameworks) > 1


def spread_between_runs(base: Score, other: Score, scores: Sequence[Score]) -> BetweenRuns | None:
    """Return the spread between single runs of the system of `base` and `other`.

    It is computed from those of `scores` that are repeats of that system. Returns None if there are none.
    """
    values_of_repeats = []
    for candidate in scores:
        values = _run_values(candidate)
        is_same_system = _are_of_one_system(candidate, base) and _are_of_one_system(candidate, other)
        all_converged = all(math.isfinite(value) for value in values)
        if is_same_system and all_converged and len(values) > 1:
            values_of_repeats.append(values)
    pooled = spread.pooled_sd(values_of_repeats)
    if pooled is None:
        return None
    runs = sum(len(values) for values in values_of_repeats)
    return BetweenRuns(pooled.relative_sd, pooled.freedom, f"the spread of {runs} runs of this system")


def _are_of_one_system(one: Score, other: Score) -> bool:
    """Tell whether the runs of two scores are repeats of one system, so that they have the same spread."""
    record = one.records[0]  # the runs of one score are repeats already
    other_record = other.records[0]
    if record.devices is None or record.devices != other_record.devices:
        return False
    if record.global_batch is None or record.global_batch != other_record.global_batch:
        return False
    if record.machine != other_record.machine:
        return False
    if record.header.get("hardware") != other_record.header.get("hardware"):
        return False
    return not any(_contradict(record, other_record, name) for name in FACTS_OF_ONE_SYSTEM)


def _contradict(record: Record, other_record: Record, name: str) -> bool:
    """Tell whether two logs both give the fact `name`, and differ in it."""
    value = getattr(record, name)
    other_value = getattr(other_record, name)
    return value is not None and other_value is not None and value != other_value


class RatioInterval(NamedTuple):
    """The 95 % interval of a ratio of two figures."""

    bounds: tuple[float, float] | None  # low, high; None if not known
    basis: str  # what the interval is made of, or why there is none


def ratio_interval(base: Score, other: Score, between_runs: BetweenRuns | None = None) -> RatioInterval:
    """Return the 95 % interval of the ratio other / base, by the method for the protocol's average of runs.

    `between_runs` is the spread of single runs. It is needed if one side is a single run, because the windows of one
    run do not show it. There is no interval, and `basis` says why, if

    - the method has too few runs, or a single run has no usable spread,
    - the interval would have no width, because the runs' figures have too few digits.
    """
    interval = _interval_by_protocol(base, other, between_runs)
    if interval.bounds is not None and spread.has_no_width(interval.bounds):
        return RatioInterval(None, "the runs' figures have too few digits to tell how far they lie apart")
    return interval


def _interval_by_protocol(base: Score, other: Score, between_runs: BetweenRuns | None) -> RatioInterval:
    """Return the 95 % interval of the ratio other / base, by the method for the protocol's average of runs.

    The interval may have no width; the caller refuses that.
    """
    if len(base.runs) < 2 or len(other.runs) < 2:
        return _interval_of_single_run(base, other, between_runs)
    if base.protocol.over_runs == "median":
        return _interval_of_medians(base, other)
    if base.protocol.over_runs == "olympic_mean":
        return _interval_of_olympic_means(base, other)
    return _interval_of_means(base, other)


def _interval_of_medians(base: Score, other: Score) -> RatioInterval:
    """Return the 95 % interval of the ratio of two medians of runs, by ordered quotients."""
    over = f"over {len(base.runs)} and {len(other.runs)} runs"
    bounds = spread.median_ratio_interval(_run_values(base), _run_values(other))
    if bounds is None:
        return RatioInterval(None, f"too few runs {over} for ordered quotients")
    return RatioInterval(bounds, f"ordered quotients {over}")


def _interval_of_olympic_means(base: Score, other: Score) -> RatioInterval:
    """Return the 95 % interval of the ratio of two olympic means of runs, by Yuen's t."""
    over = f"over {len(base.runs)} and {len(other.runs)} runs"
    dropped = base.protocol.dropped_runs
    base_mean = spread.mean_of(_run_values(base), dropped=dropped)
    other_mean = spread.mean_of(_run_values(other), dropped=dropped)
    if base_mean is None or other_mean is None:
        return RatioInterval(None, f"too few runs {over} for an olympic mean's interval")
    return RatioInterval(spread.ratio_interval(base_mean, other_mean), f"Yuen's t {over}")


def _interval_of_single_run(base: Score, other: Score, between_runs: BetweenRuns | None) -> RatioInterval:
    """Return the 95 % interval of the ratio other / base, if at least one side is a single run.

    Its width comes from `between_runs`, the spread of single runs. There is no interval if

    - `between_runs` is None,
    - a run did not converge,
    - one side has several runs, and the protocol does not average them by their mean.
    """
    counts = (len(base.runs), len(other.runs))
    runs_of_larger_side = max(counts)
    all_converged = all(math.isfinite(value) for value in [*_run_values(base), *_run_values(other)])
    # The spread of single runs gives that of their mean. It does not give that of a median or an olympic mean.
    spread_holds = runs_of_larger_side == 1 or base.protocol.over_runs == "mean"
    if between_runs is None or not all_converged or not spread_holds:
        # One text for all cases, because several runs of each system help in all of them.
        how = "--between-runs-sd, or several runs of a system"
        return RatioInterval(None, f"one run: how far its repeats lie apart is unknown ({how})")
    ratio = other.value / base.value
    bounds = spread.single_run_interval(ratio, between_runs.relative_sd, between_runs.freedom, counts)
    return RatioInterval(bounds, f"one run against {runs_of_larger_side}: {between_runs.source}")


def _interval_of_means(base: Score, other: Score) -> RatioInterval:
    """Return the 95 % interval of the ratio of two means of runs, by Welch's t.

    Each side has two runs or more. If its logs name several hosts, the mean of each host is one value.
    """
    base_values = independent_values(_run_values(base), hosts_of_runs(base.records))
    other_values = independent_values(_run_values(other), hosts_of_runs(other.records))
    are_means_of_hosts = len(base_values) < len(base.runs) or len(other_values) < len(other.runs)
    counted = "hosts" if are_means_of_hosts else "runs"
    basis = f"Welch's t over {len(base_values)} and {len(other_values)} {counted}"
    base_mean = spread.mean_of(base_values)
    other_mean = spread.mean_of(other_values)
    # Two runs or more make two values or more: they are either the runs, or the means of two hosts or more.
    assert base_mean is not None and other_mean is not None
    return RatioInterval(spread.ratio_interval(base_mean, other_mean), basis)


def _run_values(score: Score) -> list[float]:
    """Return the figure of each run of a score; infinite for a run that did not converge."""
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

    Raises ValueError for any other form, for a percentage that is not between 0 and 100, and for fewer than two runs.
    """
    deviation, _, runs = text.partition("/")
    if not (0 < float(deviation) < 100 and count(runs) > 1):
        raise ValueError(text)
    return BetweenRuns(float(deviation) / 100, count(runs) - 1, f"a given {deviation} % between {runs} runs")


def main(args: argparse.Namespace) -> int:
    """Print the systems that the command line names side by side, as lines or as JSON. Returns 0.

    Raises TooFewRunsError, with the system's name, if a system has fewer runs than the protocol asks for.
    """
    protocol = protocol_of(args)
    named_scores = []
    for system, records in read_systems(args, args.systems):
        try:
            named_scores.append((system, score(records, protocol, skip=args.skip)))
        except TooFewRunsError as error:
            raise TooFewRunsError(f"{system}: {error}") from None
    result = compare(named_scores, args.between_runs_sd)
    if args.json:
        print(json.dumps(jsonable(result.to_json()), indent=1))
    else:
        print(safe_lines(comparison_lines(result)))
    return 0


# By a row's `different`
_VERDICTS = {True: "different", False: "not shown to differ", None: "cannot be told apart or alike"}


def comparison_lines(result: Comparison) -> list[str]:
    """Return the lines that `compare` prints.

    These are the protocol, then for each system its figure, levels of repetition, MLPerf standing, ratio to the base
    and warnings, and at last the warnings and footnotes about all systems. The base itself has no ratio.
    """
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

    The interval of the ratio may exclude 1 although the system is not called different: the ratio is then too near to
    1, because two like hosts differ as much. The text says so.
    """
    if row.different is False and row.ratio_interval_95 is not None:
        low, high = row.ratio_interval_95
        interval_holds_1 = low <= 1 <= high
        if not interval_holds_1:
            return f"not called different: like hosts differ by up to {percent(smallest_difference())}"
    return _VERDICTS[row.different]


def _ratio_lines(row: Row) -> list[str]:
    """Return the two lines that compare a system with the base. An unknown interval or efficiency is left out.

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
