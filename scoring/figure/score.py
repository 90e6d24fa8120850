"""From runs to one figure under a protocol: `score`, a pure function, and `python -m scoring score`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runlog.stats import olympic_mean
from runlog.text import safe_lines
from scoring.figure import protocols, spread
from scoring.figure import warnings as hazards
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure, devices_in_rate, run_figure, select
from scoring.figure.run import positions as positions
from scoring.figure.warnings import Warning_
from scoring.importers import add_log_options, count, jsonable, read_records
from scoring.importers.checks import SECOND_CLOCK
from scoring.record import InputError, NothingMeasuredError, Record, Window


class TooFewRunsError(Exception):
    """Fewer runs than the protocol asks for, or too few of them converged. Commands exit 1 on it.

    `partial` is the figure of the runs that are there, if the protocol's reduction makes one of them.
    """

    def __init__(self, message: str, partial: Score | None = None) -> None:
        super().__init__(message)
        self.partial = partial


@dataclass(frozen=True, kw_only=True)
class Score:
    """A figure, and how far to trust it."""

    value: float
    unit: str
    protocol: Protocol
    runs: tuple[RunFigure, ...]
    spread: float | None  # sample standard deviation, in the unit
    spread_over: str  # "runs", or "windows" where there is one run
    interval_95: tuple[float, float] | None
    interval_method: str
    warnings: tuple[Warning_, ...]
    records: tuple[Record, ...] = dataclasses.field(default=(), repr=False)

    @property
    def median_window_rate(self) -> float | None:
        """The figure with each run's median of window rates in the place of its own; None where rows have no rates."""
        rates = [run.median_window_rate for run in self.runs if run.median_window_rate is not None]
        return float(REDUCE[self.protocol.over_runs](rates)) if len(rates) == len(self.runs) else None

    @property
    def one_clock(self) -> list[str]:
        """The logs whose times nothing else in them confirms."""
        return [r.file for r in self.records if not any(check.what in SECOND_CLOCK for check in r.checks)]

    @property
    def rule(self) -> str:
        """The protocol in words, with the runs that went in where they are more than it asks for."""
        return dataclasses.replace(self.protocol, runs=max(self.protocol.runs, len(self.runs))).describe()

    def to_json(self) -> dict[str, Any]:
        """The score as JSON values."""
        return {
            "value": self.value,
            "unit": self.unit,
            "runs": len(self.runs),
            "windows": sum(run.windows for run in self.runs),
            "median_window_rate": self.median_window_rate,
            "spread": self.spread,
            "spread_over": self.spread_over,
            "interval_95": None if self.interval_95 is None else list(self.interval_95),
            "interval_method": self.interval_method,
            "protocol": self.protocol.name,
            "protocol_rule": self.rule,
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
            "sources": [
                {"file": run.file, "first_line": run.first_line, "last_line": run.last_line, "value": run.value}
                for run in self.runs
            ],
            "checked": _checked(self.records),
            "one_clock": self.one_clock,
        }


def _checked(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [{"file": record.file} | dataclasses.asdict(check) for record in records for check in record.checks]


def score(records: Sequence[Record], protocol: Protocol, *, skip: int | None = None) -> Score:
    """The figure of runs of one system under `protocol`; `skip` overrides how many windows are dropped.

    Raises InputError where a run does not hold what the protocol asks for, TooFewRunsError for too few runs.
    """
    if not records:
        raise InputError("no runs to score; give the logs of one system")
    _same_system(records)
    runs = [run_figure(record, protocol, skip=skip) for record in records]
    unit = protocol.unit
    warnings = [warning for record in records for warning in hazards.of_record(record)]
    if protocol.figure == "throughput" and any(devices_in_rate(record) is None for record in records):
        unit += " per device"
        message = "the log does not say how many devices ran: the figure is of one; give --devices"
        warnings.append(Warning_(rule="devices_unknown", message=message))
    missing = _missing_runs(runs, protocol, unit)
    if missing is not None:
        warnings.append(Warning_(rule="too_few_runs", message=missing))
    elif len(runs) == 1 and protocol.figure == "throughput":
        warnings.append(Warning_(rule="too_few_runs", message="one run: nothing is known of the spread of runs"))
    if len(runs) == 1:
        deviation, interval, method = _of_one_run(runs[0], records[0], protocol)
    else:
        deviation = spread.sd([run.value for run in runs if math.isfinite(run.value)])
        interval, method = _of_several_runs(runs, protocol)
    value = float(REDUCE[protocol.over_runs]([run.value for run in runs]))
    if protocol.figure == "throughput":
        warnings.extend(hazards.of_interval(value, interval))
    for record, run in zip(records, runs, strict=True):
        warnings.extend(_of_run(record, run, protocol, skip))
    measured = [
        record.run_time_s / 60 if record.run_time_s and math.isinf(run.value) else run.value
        for record, run in zip(records, runs, strict=True)
    ]
    warnings.extend(hazards.of_runs(records, measured, unit))
    warnings.extend(hazards.of_mixture(records))
    result = Score(
        value=value,
        unit=unit,
        protocol=protocol if skip is None else protocol.skipping(skip),
        runs=tuple(runs),
        spread=deviation,
        spread_over="windows" if len(runs) == 1 else "runs",
        interval_95=interval,
        interval_method=method,
        warnings=tuple(warnings),
        records=tuple(records),
    )
    if missing is not None:
        raise TooFewRunsError(missing, result)
    return result


REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "olympic_mean": olympic_mean,
}


def _missing_runs(runs: Sequence[RunFigure], protocol: Protocol, unit: str) -> str | None:
    """What is said of fewer runs than the protocol asks for; None where there are enough.

    Raises TooFewRunsError where no figure at all can be made of those that are there, or that converged.
    """
    missing = None
    if len(runs) < protocol.runs:
        listed = _listed([run.value for run in runs], unit)
        missing = (
            f"protocol {protocol.name} asks for {protocol.runs} runs, given {len(runs)} "
            f"({listed}); give all of them, or take a protocol of one run, such as window"
        )
        if protocol.over_runs == "olympic_mean" and len(runs) < 3:
            raise TooFewRunsError(missing)
    failed = [run for run in runs if math.isinf(run.value)]
    allowed = 1 if protocol.over_runs == "olympic_mean" else 0
    if len(failed) > allowed:
        raise TooFewRunsError(
            f"{len(failed)} of {len(runs)} runs did not converge ({', '.join(run.file for run in failed)}); "
            f"protocol {protocol.name} allows {allowed}"
        )
    return missing


def _of_several_runs(runs: Sequence[RunFigure], protocol: Protocol) -> tuple[tuple[float, float] | None, str]:
    """The 95 % interval over runs, and its method."""
    values = [run.value for run in runs]
    if protocol.over_runs == "median":
        found, method = spread.median_interval(values), f"order statistics of {len(values)} runs"
        if len(values) == 5:
            method += ", least to greatest: 93.75 %"
        return found, method if found else f"none: {len(values)} runs, order statistics need 5"
    if protocol.over_runs == "mean":
        estimate, method = spread.mean_of(values), f"t over {len(values)} runs"
    else:
        estimate, method = spread.olympic_mean_of(values), f"Yuen's t of the olympic mean over {len(values)} runs"
        method = method if estimate else f"none: {len(values)} runs, an olympic mean's needs 4"
    return estimate.interval_95 if estimate else None, method


def _of_run(record: Record, run: RunFigure, protocol: Protocol, skip: int | None) -> list[Warning_]:
    """Doubts about one run's own figure."""
    if protocol.figure == "throughput":
        chosen = select(record, protocol, skip=skip)
        windows = [item for item in chosen if isinstance(item, Window)]
        averages_rates = protocol.over_steps in ("mean_of_printed_rates", "mean_of_rates")
        found = hazards.of_summary(record, run.value, (run.first_line, run.last_line))
        return found + (hazards.of_windows(record, windows, averages_rates) if windows else [])
    if math.isfinite(run.value):
        return []
    said = "the log has no run_stop" if record.run_stop_s is None else f"run_stop says {record.status!r}"
    message = f"{said}: the run did not converge and counts as the worst"
    return [Warning_(rule="not_converged", message=message, file=run.file, line=run.last_line)]


def _listed(values: Sequence[float], unit: str) -> str:
    return ", ".join(f"{value:.6g} {unit}" if math.isfinite(value) else "did not converge" for value in values)


def _same_system(records: Sequence[Record]) -> None:
    names = ("devices", "batch_per_device", "global_batch", "precision", "mode", "model", "machine")
    said = {name: [(getattr(record, name), record.file) for record in records] for name in names}
    said["framework"] = [(record.framework and record.framework_name, record.file) for record in records]
    if None in (record.framework for record in records):  # what logs of one format do not say, they do not deny
        said["format"] = [(record.format, record.file) for record in records]
    for name, values in said.items():
        seen: dict[Any, str] = {}
        for value, file in values:
            if value is not None:
                seen.setdefault(value, file)
        if len(seen) > 1:
            where = ", ".join(f"{value} in {file}" for value, file in seen.items())
            raise InputError(
                f"runs of different {name} ({where}) are no repeats of one system; "
                "set them side by side with `python -m scoring compare`"
            )
    once(records)


def once(records: Sequence[Record]) -> None:
    """Raises InputError where two logs are of the same run."""
    files: dict[object, str] = {}
    for record in records:
        if record.run_id in files:
            raise InputError(f"{record.file} and {files[record.run_id]} are of the same run: one run counts once")
        files[record.run_id] = record.file


def _of_one_run(
    run: RunFigure, record: Record, protocol: Protocol
) -> tuple[float | None, tuple[float, float] | None, str]:
    if protocol.over_steps == "own_summary":
        return None, None, "none: the log says one figure"
    if protocol.over_steps in ("run_time", "between_stamps"):
        return None, None, "none: one run, and the protocol takes one difference of time stamps"
    deviation = spread.sd(run.rates)
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return deviation, None, "none: running averages are no independent windows"
    if run.interval_95 is None:
        few = len(run.rates) < spread.LEAST_WINDOWS
        why = f"fewer than {spread.LEAST_WINDOWS} windows of one run" if few else "the windows are too uneven for one"
        return deviation, None, f"none: {why}"
    return deviation, run.interval_95, f"within this run, of {len(run.rates)} windows; between runs: unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring score`."""
    parser.add_argument("logs", nargs="+", metavar="LOG", help="logs of repeated runs of one system")
    add_score_options(parser)
    parser.add_argument("--json", action="store_true")
    parser.epilog = "Protocols: " + "; ".join(
        f"{name}: {protocol.describe()}" for name, protocol in protocols.load().items()
    )


def add_score_options(
    parser: argparse.ArgumentParser, kind: Callable[[str], Any] = count, protocol: str | None = None
) -> None:
    """Options that choose the protocol and say what logs do not; `kind` reads --devices and --batch."""
    said = "a name, or a YAML file of your own" + (f" (default: {protocol})" if protocol else "")
    parser.add_argument("--protocol", required=protocol is None, default=protocol, metavar="P", help=said)
    parser.add_argument("--skip", type=whole, metavar="N", help="drop N windows (epochs), not the protocol's number")
    parser.add_argument("--runs", type=count, metavar="N", help="ask for N runs, not the protocol's number")
    add_log_options(parser, kind)


def whole(text: str) -> int:
    """A whole number from 0."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def protocol_of(args: argparse.Namespace) -> Protocol:
    """The protocol that the options choose."""
    protocol = protocols.find(args.protocol)
    if args.runs is not None:
        if protocol.over_runs == "olympic_mean" and args.runs < 3:
            raise InputError("an olympic mean drops two runs: --runs must be 3 or more")
        protocol = dataclasses.replace(protocol, runs=args.runs)
    return protocol


def main(args: argparse.Namespace) -> int:
    """Print the figure."""
    protocol = protocol_of(args)
    records = read_records(args)
    try:
        result = score(records, protocol, skip=args.skip)
    except TooFewRunsError as error:
        print(safe_lines([f"python -m scoring score: {error}"]), file=sys.stderr)
        if args.json:
            partial = error.partial.to_json() if error.partial else _no_figure("too_few_runs", error, protocol, records)
            print(json.dumps(jsonable(partial), indent=1))
        return 1
    except NothingMeasuredError as error:
        if args.skip is not None or not all(map(_finished_after_a_resume, records)):
            raise
        if args.json:
            print(json.dumps(_no_figure("nothing_measured", error, protocol, records), indent=1))
        else:
            print(f"no figure   protocol {protocol.name}\n  warning        nothing_measured: {str(error)!a}")
        return 0
    if args.json:
        print(json.dumps(jsonable(result.to_json()), indent=1))
    else:
        print(safe_lines(score_lines(result)))
    return 0


def _finished_after_a_resume(record: Record) -> bool:
    summary = record.header.get("run_summary")
    return record.status == "success" and isinstance(summary, dict) and summary.get("resumed") is True


def _no_figure(rule: str, error: Exception, protocol: Protocol, records: Sequence[Record]) -> dict[str, Any]:
    """What `--json` shows where no figure can be made, with the reason as a warning."""
    return {
        "value": None,
        "unit": protocol.unit,
        "runs": len(records),
        "windows": 0,
        "median_window_rate": None,
        "spread": None,
        "spread_over": "windows" if len(records) == 1 else "runs",
        "interval_95": None,
        "interval_method": "none: no figure",
        "protocol": protocol.name,
        "protocol_rule": protocol.describe(),
        "warnings": [dataclasses.asdict(Warning_(rule=rule, message=str(error)))],
        "sources": [
            {"file": record.file, "first_line": 1, "last_line": record.lines, "value": None} for record in records
        ],
        "checked": _checked(records),
        "one_clock": [],
    }


def score_lines(result: Score) -> list[str]:
    """The score in lines for a reader."""
    lines = [f"{result.value:.3f} {result.unit}   protocol {result.protocol.name}: {result.rule}"]
    if result.interval_95 is not None:
        low, high = result.interval_95
        lines.append(f"  95 % interval  {low:.3f} to {high:.3f}   ({result.interval_method})")
    else:
        lines.append(f"  95 % interval  {result.interval_method}")
    if result.median_window_rate is not None:
        lines.append(f"  median         {result.median_window_rate:.3f} (of the window rates)")
    if result.spread is not None:
        lines.append(f"  spread         {result.spread:.3f} (standard deviation over {result.spread_over})")
    for run in result.runs:
        shown = f"{run.value:.3f}" if math.isfinite(run.value) else "did not converge"
        windows = f", {run.windows} windows" if run.windows else ""
        lines.append(f"  run            {shown}   {run.file}:{run.first_line}-{run.last_line}{windows}")
    if result.one_clock and result.protocol.figure == "throughput":
        lines.append(f"  one clock      nothing else in {', '.join(result.one_clock)} confirms the times")
    for warning in result.warnings:
        where = f" [{warning.file}{f':{warning.line}' if warning.line else ''}]" if warning.file else ""
        lines.append(f"  warning        {warning.rule}: {warning.message!a}{where}")
    return lines
