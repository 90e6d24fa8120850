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

from scoring import hazards, protocols, spread
from scoring.hazards import Warning_
from scoring.importers import add_log_options, count, jsonable, read_record
from scoring.protocols import Protocol
from scoring.record import Epoch, InputError, Record, Window


class TooFewRunsError(Exception):
    """Fewer runs than the protocol asks for, or too few of them converged. Commands exit 1 on it.

    `partial` is the figure of the runs that are there, if the protocol's reduction makes one of them.
    """

    def __init__(self, message: str, partial: Score | None = None) -> None:
        super().__init__(message)
        self.partial = partial


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """One run under the protocol, with the lines that it comes from."""

    file: str
    value: float  # in the score's unit; infinite for a run that did not converge
    windows: int  # printed rows that went in
    first_line: int
    last_line: int
    rates: tuple[float, ...] = dataclasses.field(default=(), repr=False)  # images/s of each window
    interval_95: tuple[float, float] | None = None  # from the windows


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

    def to_json(self) -> dict[str, Any]:
        """The score as JSON values."""
        return {
            "value": self.value,
            "unit": self.unit,
            "runs": len(self.runs),
            "windows": sum(run.windows for run in self.runs),
            "spread": self.spread,
            "spread_over": self.spread_over,
            "interval_95": None if self.interval_95 is None else list(self.interval_95),
            "interval_method": self.interval_method,
            "protocol": self.protocol.name,
            "protocol_rule": self.protocol.describe(),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
            "sources": [
                {"file": run.file, "first_line": run.first_line, "last_line": run.last_line, "value": run.value}
                for run in self.runs
            ],
        }


def score(records: Sequence[Record], protocol: Protocol, *, skip: int | None = None) -> Score:
    """The figure of runs of one system under `protocol`; `skip` overrides how many windows are dropped.

    Raises InputError where a run does not hold what the protocol asks for, TooFewRunsError for too few runs.
    """
    if not records:
        raise InputError("no runs to score; give the logs of one system")
    _same_system(records)
    runs = [run_figure(record, protocol, skip=skip) for record in records]
    values = [run.value for run in runs]
    unit = protocol.unit
    warnings = [warning for record in records for warning in hazards.of_record(record)]
    per_device = protocol.figure == "throughput" and any(_scale(record) is None for record in records)
    if per_device:
        unit += " per device"
        message = "the log does not say how many devices ran: the figure is of one; give --devices"
        warnings.append(Warning_(rule="devices_unknown", message=message))
    missing = None
    if len(runs) < protocol.runs:
        missing = (
            f"protocol {protocol.name} asks for {protocol.runs} runs, given {len(runs)} "
            f"({_listed(values, unit)}); give all of them, or take a protocol of one run, such as window"
        )
        if protocol.over_runs == "olympic_mean" and len(runs) < 3:
            raise TooFewRunsError(missing)
        warnings.append(Warning_(rule="too_few_runs", message=missing))
    failed = [run for run in runs if math.isinf(run.value)]
    allowed = 1 if protocol.over_runs == "olympic_mean" else 0
    if len(failed) > allowed:
        raise TooFewRunsError(
            f"{len(failed)} of {len(runs)} runs did not converge ({', '.join(run.file for run in failed)}); "
            f"protocol {protocol.name} allows {allowed}"
        )
    reduce: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "olympic_mean": spread.olympic_mean,
    }
    value = float(reduce[protocol.over_runs](values))
    finite = [v for v in values if math.isfinite(v)]
    if len(runs) == 1:
        deviation, interval, method = _of_one_run(runs[0], records[0], protocol)
        over = "windows"
        if protocol.figure == "throughput" and missing is None:
            warnings.append(Warning_(rule="too_few_runs", message="one run: nothing is known of the spread of runs"))
    else:
        over, deviation = "runs", spread.sd(finite)
        if protocol.over_runs == "mean":
            interval, method = spread.t_interval(values), f"t over {len(values)} runs"
        else:
            drawn = finite if protocol.over_runs == "median" or len(finite) >= 3 else []
            interval = spread.bootstrap_interval(drawn, reduce[protocol.over_runs])
            name = protocol.over_runs.replace("_", " ")
            method = f"bootstrap of the {name} over {len(drawn)} runs, {spread.RESAMPLES} resamples"
    for record, run in zip(records, runs, strict=True):
        if protocol.figure == "throughput":
            rates_are_averaged = protocol.over_steps in ("mean_of_printed_rates", "mean_of_rates")
            windows = select(record, protocol, skip=skip)
            if windows and isinstance(windows[0], Window):
                warnings.extend(hazards.of_windows(record, windows, rates_are_averaged))  # type: ignore[arg-type]
        elif math.isinf(run.value):
            message = f"run_stop says {record.status!r}: the run did not converge and counts as the worst"
            warnings.append(Warning_(rule="not_converged", message=message, file=run.file, line=run.last_line))
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
        spread_over=over,
        interval_95=interval,
        interval_method=method,
        warnings=tuple(warnings),
        records=tuple(records),
    )
    if missing is not None:
        raise TooFewRunsError(missing, result)
    return result


def _listed(values: Sequence[float], unit: str) -> str:
    return ", ".join(f"{value:.6g}" if math.isfinite(value) else "did not converge" for value in values) + f" {unit}"


def _same_system(records: Sequence[Record]) -> None:
    for name in ("devices", "batch_per_device", "precision", "mode", "model"):
        seen: dict[Any, str] = {}
        for record in records:
            value = getattr(record, name)
            if value is not None:
                seen.setdefault(value, record.file)
        if len(seen) > 1:
            where = ", ".join(f"{value} in {file}" for value, file in seen.items())
            raise InputError(
                f"runs of different {name} ({where}) are no repeats of one system; "
                "set them side by side with `python -m scoring compare`"
            )
    digests: dict[str, str] = {}
    for record in records:
        if record.sha256 in digests:
            raise InputError(f"{record.file} and {digests[record.sha256]} are the same log: one run counts once")
        digests[record.sha256] = record.file


def _of_one_run(
    run: RunFigure, record: Record, protocol: Protocol
) -> tuple[float | None, tuple[float, float] | None, str]:
    if protocol.over_steps in ("run_time", "between_stamps"):
        return None, None, "none: one run, and the protocol takes one difference of time stamps"
    if record.cumulative and protocol.over_steps in ("mean_of_printed_rates", "mean_step_time"):
        return spread.sd(run.rates), None, "none: running averages are no independent windows"
    if run.interval_95 is None:
        return spread.sd(run.rates), None, "none: fewer than two windows"
    return spread.sd(run.rates), run.interval_95, f"t over {len(run.rates)} windows of one run"


def run_figure(record: Record, protocol: Protocol, *, skip: int | None = None) -> RunFigure:
    """One run's figure. Raises InputError where the log does not hold what the protocol asks for."""
    if protocol.over_steps == "run_time":
        return _run_time(record, protocol, skip)
    if protocol.over_steps == "between_stamps":
        return _between_stamps(record, protocol, skip)
    chosen = select(record, protocol, skip=skip)
    scale = _scale(record) or 1
    kind = protocol.over_steps
    weights = [item.rows if isinstance(item, Window) else 1 for item in chosen]
    if kind == "mean_of_printed_rates" or kind == "mean_of_rates":
        rates = [_rate(record, item, scale, printed=kind == "mean_of_printed_rates") for item in chosen]
        value = math.fsum(r * w for r, w in zip(rates, weights, strict=True)) / sum(weights)
        interval = spread.t_interval(rates)
    else:
        images, seconds = _work(record, chosen, scale, kind)
        rates = [i / s for i, s in zip(images, seconds, strict=True)]
        if kind == "images_over_time":
            value = math.fsum(images) / math.fsum(seconds)
        else:  # mean of times: every printed row weighs the same
            value = sum(weights) / math.fsum(w / r for r, w in zip(rates, weights, strict=True))
        times = spread.t_interval([1 / rate for rate in rates])
        interval = (1 / times[1], 1 / times[0]) if times and times[0] > 0 else None
        if interval is not None:  # centred where the figure is: windows may hold unequal work
            centre = len(rates) / math.fsum(1 / rate for rate in rates)
            interval = (interval[0] * value / centre, interval[1] * value / centre)
    return RunFigure(
        file=record.file,
        value=value,
        windows=sum(weights),
        first_line=chosen[0].line,
        last_line=chosen[-1].line,
        rates=tuple(rates),
        interval_95=interval,
    )


def _scale(record: Record) -> int | None:
    """What a printed rate is multiplied by to be that of all devices; None if the log does not say."""
    return 1 if record.rate_scope == "global" else record.devices


def _rate(record: Record, item: Window | Epoch, scale: int, *, printed: bool) -> float:
    own = item.images / item.seconds if item.images is not None and item.seconds else None
    shown = item.printed_rate * scale if item.printed_rate is not None else None
    rate = (shown or own) if printed else (own or shown)
    if rate is None and isinstance(item, Window) and item.printed_step_time_s is not None:
        rate = _images_a_step(record) / item.printed_step_time_s
    if rate is None:
        raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")
    return rate


def _images_a_step(record: Record) -> int:
    """Of all devices; of one where the log does not say how many there are (the unit then says so)."""
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")
    return record.batch_per_device * (record.devices or 1)


def _work(record: Record, chosen: Sequence[Window | Epoch], scale: int, kind: str) -> tuple[list[float], list[float]]:
    """Images and seconds of each window; from the one kind of column that every chosen window has."""
    windows = [item for item in chosen if isinstance(item, Window)]
    if kind == "images_over_time" and len(windows) == len(chosen):
        own = [(w.images, w.seconds) for w in windows if w.images is not None and w.seconds]
        if len(own) == len(chosen):
            return [float(images) for images, _ in own], [float(seconds) for _, seconds in own]
        counted = [(w.steps, w.seconds) for w in windows if w.steps and w.seconds]
        if len(counted) == len(chosen):
            batch = _images_a_step(record)
            return [float(steps * batch) for steps, _ in counted], [float(seconds) for _, seconds in counted]
    told_by_rate = record.rate_scope == "global" and all(item.printed_rate is not None for item in chosen)
    if kind != "epoch_rates" and not told_by_rate:
        times = [w.printed_step_time_s for w in windows if w.printed_step_time_s is not None]
        if len(times) == len(chosen):
            return [float(_images_a_step(record))] * len(times), [float(time) for time in times]
    rates = [item.printed_rate for item in chosen if item.printed_rate is not None]
    if len(rates) == len(chosen):  # rows of equal work: the time of an image is 1 / rate
        return [float(scale)] * len(rates), [1 / rate for rate in rates]
    return [1.0] * len(chosen), [1 / _rate(record, item, scale, printed=False) for item in chosen]


def positions(record: Record) -> list[int | None]:
    """How many steps were done at the end of each window, warm-up included; None where the log cannot say."""
    done: list[int | None] = []
    base = 0
    last_epoch: int | None = None
    for window in record.windows:
        if window.step is None:  # rows of whole epochs
            base = base + window.steps if window.steps else 0
            done.append(base or None)
            continue
        if window.epoch != last_epoch and last_epoch is not None and done:
            previous = done[-1]
            restarted = previous is not None and window.step - record.first_step + 1 + base <= previous
            if restarted and previous is not None:  # counters that start anew in each epoch
                base = previous
        last_epoch = window.epoch
        done.append(base + window.step - record.first_step + 1)
    return done


def select(record: Record, protocol: Protocol, *, skip: int | None = None) -> Sequence[Window | Epoch]:
    """What the protocol measures of a run. Raises InputError if warm-up leaves nothing."""
    if protocol.skip_unit == "epoch":
        dropped = protocol.skip if skip is None else skip
        epochs = [epoch for epoch in record.epochs if epoch.printed_rate is not None]
        return _rest(record, epochs, dropped, "epochs")
    windows = [window for window in record.windows if window.phase != "warmup"]
    if not windows:
        what = "warm-up" if record.windows else "no"
        raise InputError(f"{record.file}: the log holds {what} windows only: nothing was measured")
    measured_only = any(window.phase == "measured" for window in windows)
    if skip is not None:
        chosen = _rest(record, windows, skip, "windows")
    elif protocol.skip_unit == "window":
        apart = len(record.windows) - len(windows)  # the run's own warm-up is the first of what the protocol drops
        chosen = _rest(record, windows, max(0, protocol.skip - apart), "windows")
    elif measured_only:
        chosen = windows  # the run itself has set its warm-up apart
    else:
        chosen = _after_steps(record, protocol)
    if protocol.take_steps is not None:
        chosen = _take(record, chosen, protocol.take_steps)
    return chosen


def _rest(record: Record, items: Sequence[Any], dropped: int, what: str) -> Sequence[Any]:
    if dropped >= len(items):
        raise InputError(
            f"{record.file}: warm-up is {dropped} {what} and the run has {len(items)}: nothing is left to measure; "
            f"take a longer run or a smaller --skip"
        )
    return items[dropped:]


def _after_steps(record: Record, protocol: Protocol) -> Sequence[Window]:
    done = positions(record)
    if any(position is None for position in done):
        raise InputError(
            f"{record.file}: protocol {protocol.name} skips {protocol.skip} steps and the log's rows carry no step; "
            "give --skip N windows"
        )
    chosen = [
        window
        for window, position in zip(record.windows, done, strict=True)
        if position is not None and position - (window.steps or 0) >= protocol.skip and window.steps
    ]
    if not chosen:
        raise InputError(
            f"{record.file}: warm-up is {protocol.skip} steps and the run has {done[-1]} printed: "
            "nothing is left to measure; take a longer run or a smaller --skip"
        )
    return chosen


def _take(record: Record, chosen: Sequence[Window], steps: int) -> Sequence[Window]:
    """Windows whose steps lie within the next `steps`. Raises InputError if the run is shorter."""
    taken: list[Window] = []
    total = 0
    for window in chosen:
        size = window.steps or 1
        if total + size > steps:
            return taken or _too_short(record, steps, total)
        taken.append(window)
        total += size
        if total == steps:
            return taken
    return _too_short(record, steps, total)


def _too_short(record: Record, steps: int, total: int) -> Sequence[Window]:
    raise InputError(
        f"{record.file}: the protocol takes {steps} steps after warm-up and the log has {total}; take a longer run"
    )


def _between_stamps(record: Record, protocol: Protocol, skip: int | None) -> RunFigure:
    """devices * batch * steps / (stamp at the end - stamp at the start), over the steps between two rows."""
    stamped = [
        (window, position)
        for window, position in zip(record.windows, positions(record), strict=True)
        if window.end_s is not None and position is not None
    ]
    if not stamped:
        raise InputError(f"{record.file}: protocol {protocol.name} needs time stamps on the rows; the log has none")
    first = record.first_step
    if skip is not None:
        start = stamped[skip - 1] if 0 < skip <= len(stamped) else None
    else:
        # The row of that many steps done; of logs that print every 10th row from 0, the row of that number.
        start = (
            next((row for row in stamped if row[1] == protocol.skip), None)
            or next((row for row in stamped if first == 0 and row[0].step == protocol.skip), None)
            or next((row for row in stamped if row[1] > protocol.skip), None)
        )
    if start is None:
        raise InputError(
            f"{record.file}: warm-up is {skip if skip is not None else protocol.skip} "
            f"{'windows' if skip is not None else 'steps'} and the run has {len(stamped)} stamped rows, the last after "
            f"{stamped[-1][1]} steps: nothing is left to measure"
        )
    later = [row for row in stamped if row[1] > start[1]]
    if protocol.take_steps is not None:
        if not later or later[-1][1] < start[1] + protocol.take_steps - 1:  # the last of N batches is N - 1
            _too_short(record, protocol.take_steps, later[-1][1] - start[1] if later else 0)
        later = [row for row in later if row[1] <= start[1] + protocol.take_steps]
    if not later:
        _too_short(record, protocol.take_steps or 1, 0)
    end = later[-1]
    assert start[0].end_s is not None and end[0].end_s is not None
    seconds, steps = end[0].end_s - start[0].end_s, end[1] - start[1]
    if seconds <= 0:
        raise InputError(
            f"{record.file}: the time stamps of lines {start[0].line} and {end[0].line} do not advance; "
            "they are too coarse, or the clock was set"
        )
    value = _images_a_step(record) * steps / seconds
    return RunFigure(file=record.file, value=value, windows=len(later), first_line=start[0].line, last_line=end[0].line)


def _run_time(record: Record, protocol: Protocol, skip: int | None) -> RunFigure:
    if skip:
        raise InputError(f"protocol {protocol.name} measures whole runs: --skip has nothing to drop")
    seconds = record.run_time_s
    if seconds is None:
        missing = "run_stop" if record.run_start_s is not None else "run_start"
        raise InputError(f"{record.file}: no {missing} in the log: the run's time is unknown")
    if seconds <= 0:
        raise InputError(f"{record.file}: run_stop is not after run_start: the clock was set, or the log edited")
    converged = record.status == "success"
    return RunFigure(
        file=record.file,
        value=seconds / 60 if converged else math.inf,
        windows=1,  # the run itself
        first_line=record.field_lines["run_start_s"],
        last_line=record.field_lines["run_stop_s"],
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m scoring score`."""
    parser.add_argument("logs", nargs="+", metavar="LOG", help="logs of repeated runs of one system")
    add_score_options(parser)
    parser.add_argument("--json", action="store_true")
    parser.epilog = "Protocols: " + "; ".join(
        f"{name}: {protocol.describe()}" for name, protocol in protocols.load().items()
    )


def add_score_options(parser: argparse.ArgumentParser, kind: Callable[[str], Any] = count) -> None:
    """Options that choose the protocol and say what logs do not; `kind` reads --devices and --batch."""
    parser.add_argument("--protocol", required=True, metavar="P", help="a name, or a YAML file of your own")
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
    records = [
        read_record(log, format=args.format, devices=args.devices, batch_per_device=args.batch) for log in args.logs
    ]
    try:
        result = score(records, protocol, skip=args.skip)
    except TooFewRunsError as error:
        print(f"python -m scoring score: {error}", file=sys.stderr)
        if args.json:
            print(json.dumps(jsonable(_unfinished(error, protocol, records)), indent=1))
        return 1
    if args.json:
        print(json.dumps(jsonable(result.to_json()), indent=1))
    else:
        print("\n".join(describe(result)))
    return 0


def _unfinished(error: TooFewRunsError, protocol: Protocol, records: Sequence[Record]) -> dict[str, Any]:
    """What `--json` shows beside exit code 1: the figure so far, or none."""
    if error.partial is not None:
        return error.partial.to_json()
    return {
        "value": None,
        "unit": protocol.unit,
        "runs": len(records),
        "windows": 0,
        "spread": None,
        "interval_95": None,
        "protocol": protocol.name,
        "warnings": [dataclasses.asdict(Warning_(rule="too_few_runs", message=str(error)))],
        "sources": [{"file": record.file, "first_line": 1, "last_line": record.lines} for record in records],
    }


def describe(result: Score) -> list[str]:
    """The score in lines for a reader."""
    lines = [f"{result.value:.3f} {result.unit}   protocol {result.protocol.name}: {result.protocol.describe()}"]
    if result.interval_95 is not None:
        low, high = result.interval_95
        lines.append(f"  95 % interval  {low:.3f} to {high:.3f}   ({result.interval_method})")
    else:
        lines.append(f"  95 % interval  {result.interval_method}")
    if result.spread is not None:
        lines.append(f"  spread         {result.spread:.3f} (standard deviation over {result.spread_over})")
    for run in result.runs:
        shown = f"{run.value:.3f}" if math.isfinite(run.value) else "did not converge"
        windows = f", {run.windows} windows" if run.windows else ""
        lines.append(f"  run            {shown}   {run.file}:{run.first_line}-{run.last_line}{windows}")
    for warning in result.warnings:
        where = f" [{warning.file}{f':{warning.line}' if warning.line else ''}]" if warning.file else ""
        lines.append(f"  warning        {warning.rule}: {warning.message!a}{where}")
    return lines
