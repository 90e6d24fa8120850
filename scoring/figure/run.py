"""One run's figure under a protocol, the windows that it is made of, and how near it is to the machine's limit."""

import bisect
import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runlog import workloads
from runlog.run import real
from scoring.figure import spread
from scoring.figure.protocols import Protocol
from scoring.importers.checks import AGREES, set_back
from scoring.importers.text import work
from scoring.published.table import Card, card_of
from scoring.record import InputError, NothingMeasuredError, Record, Window, config_of, nodes_of


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """One run under the protocol, with the lines that it comes from."""

    file: str
    value: float  # in the score's unit; infinite for a run that did not converge
    windows: int = 1  # printed rows that went in; 1 of a run as a whole
    first_line: int
    last_line: int
    chosen: tuple[Window, ...] = dataclasses.field(default=(), repr=False)  # the rows themselves
    rates: tuple[float, ...] = dataclasses.field(default=(), repr=False)  # images/s of each window
    windows_interval_95: tuple[float, float] | None = None  # of the windows alone, which say too little of a run


def run_figure(record: Record, protocol: Protocol, *, skip: int | None = None) -> RunFigure:
    """One run's figure. Raises InputError where the log does not hold what the protocol asks for."""
    for check in record.checks:
        if check.refused and protocol.figure == "throughput":
            given = ""
            if record.from_options:
                given = f", {' and '.join(record.from_options)} from the options"
            raise InputError(f"{record.file}: no figure, as two ways to it contradict each other{given}: {check}")

    kind = protocol.over_steps
    if kind == "between_stamps":
        return _between_stamps(record, protocol, skip)
    if skip and kind == "run_time":
        raise InputError(f"protocol {protocol.name} measures whole runs: --skip has nothing to drop")
    if skip and kind == "own_summary":
        raise InputError(f"protocol {protocol.name} reads the log's own figure: --skip has nothing to drop")
    if kind == "run_time":
        return _run_time(record)
    if kind == "own_summary":
        return _own_summary(record)

    chosen = select(record, protocol, skip=skip)
    if kind in ("mean_of_printed_rates", "mean_of_rates"):
        rates = [_rate(record, item, printed=kind == "mean_of_printed_rates") for item in chosen]
        value = statistics.fmean(rates)
        interval = spread.series_interval(rates)
    else:
        measured = work_of(record, chosen, kind)
        times = measured.times
        if kind == "images_over_time":
            value = math.fsum(measured.images) / math.fsum(measured.seconds)
        else:  # for the mean of times every printed row weighs the same
            value = 1 / statistics.fmean(times)
        rates = [1 / time for time in times]
        interval = _interval_of_rate(times, value)
    return RunFigure(
        file=record.file,
        value=value,
        windows=len(chosen),
        first_line=chosen[0].line,
        last_line=chosen[-1].line,
        chosen=() if kind == "epoch_rates" else tuple(chosen),
        rates=tuple(rates),
        windows_interval_95=interval,
    )


def _interval_of_rate(times: Sequence[float], value: float) -> tuple[float, float] | None:
    """The interval of the windows' mean time as one of a rate, centred where the figure is: work may be unequal."""
    interval = spread.series_interval(times)
    if interval is None:
        return None
    centred = value * math.fsum(times) / len(times)
    return centred / interval[1], centred / interval[0]


def devices_in_rate(record: Record) -> int | None:
    """Return the factor from a printed rate to that of all devices; None if the log does not say."""
    return 1 if record.rate_scope == "global" else record.devices


def rate_of(record: Record, item: Window, *, printed: bool = False) -> float | None:
    """images/s of all devices in a window or an epoch, by its images and time or as printed; None without either."""
    measured = item.images_per_s
    shown = None
    if item.printed_rate is not None:
        shown = item.printed_rate * (devices_in_rate(record) or 1)
    rate = measured or shown
    if printed:
        rate = shown or measured

    devices = record.devices
    if devices is None and record.rate_scope != "global":  # the figure is of one device then
        devices = 1
    if rate is None and item.printed_step_time_s and devices and record.batch_per_device:
        rate = record.batch_per_device * devices / item.printed_step_time_s
    return rate


def _rate(record: Record, item: Window, *, printed: bool) -> float:
    rate = rate_of(record, item, printed=printed)
    if rate is None and item.printed_step_time_s is not None:
        _images_a_step(record)  # says what is missing
    if rate is None:
        raise InputError(f"{record.file}: line {item.line} holds neither a rate nor images and time")
    return rate


def _images_a_step(record: Record) -> int:
    """Return the images of a step on all devices; on one where the log does not say how many, as the unit does."""
    if record.devices is None and record.rate_scope == "global":
        raise InputError(f"{record.file}: the log does not say how many devices ran; give --devices")
    if record.batch_per_device is None:
        raise InputError(f"{record.file}: the log does not say the batch of one device; give --batch")
    return record.batch_per_device * (record.devices or 1)


class Work(NamedTuple):
    """The images and seconds of each window, both to the same scale where the log says only one of them."""

    images: Sequence[float]
    seconds: Sequence[float]

    @property
    def times(self) -> list[float]:
        """Seconds an image of each window."""
        return [seconds / images for images, seconds in zip(self.images, self.seconds, strict=True)]


def work_of(record: Record, chosen: Sequence[Window], kind: str) -> Work:
    """The work of each window, from the one kind of column that every chosen window has.

    `kind` is a protocol's `over_steps`. Raises InputError where the log does not say what the columns need.
    """
    seconds = _column(chosen, "seconds")
    if kind == "images_over_time" and seconds:
        images = _column(chosen, "images")
        steps = _column(chosen, "steps")
        if images:
            return Work(images, seconds)
        if steps:
            batch = _images_a_step(record)
            return Work([count * batch for count in steps], seconds)

    rates = _column(chosen, "printed_rate")
    times = _column(chosen, "printed_step_time_s")
    if times and kind != "epoch_rates" and not (rates and record.rate_scope == "global"):
        images_a_time = _images_a_step(record)
    elif rates:
        images_a_time = devices_in_rate(record) or 1
        times = [1 / rate for rate in rates]
    else:
        images_a_time = 1
        times = [1 / _rate(record, window, printed=False) for window in chosen]
    weights: Sequence[float] = [1.0] * len(chosen)
    if kind != "epoch_rates":
        weights = work(chosen)
    weighted_times = [time * weight for time, weight in zip(times, weights, strict=True)]
    return Work([images_a_time * weight for weight in weights], weighted_times)


def _column(windows: Sequence[Window], name: str) -> list[float]:
    """A field of all windows; empty where one of them lacks it, or has 0."""
    values = [getattr(window, name) for window in windows]
    return values if all(values) else []


def positions(record: Record) -> list[int | None]:
    """How many steps were done at the end of each window, warm-up included; None where the log cannot say."""
    done: list[int | None] = []
    base = 0
    epoch: int | None = None
    for window in record.windows:
        if window.step is None:  # rows of whole epochs
            base = base + window.steps if window.steps else 0
            done.append(base or None)
            continue
        of_epoch = window.step - record.first_step + 1
        previous = None
        if done and epoch not in (None, window.epoch):
            previous = done[-1]
        if previous is not None and base + of_epoch <= previous:  # counters that start anew in each epoch
            base = previous
        epoch = window.epoch
        done.append(base + of_epoch)
    return done


def select(record: Record, protocol: Protocol, *, skip: int | None = None) -> Sequence[Window]:
    """Select the part of a run that the protocol measures. Raises InputError if warm-up leaves nothing."""
    if protocol.skip_unit == "epoch":
        epochs = [epoch for epoch in record.epochs if epoch.printed_rate is not None]
        return _rest(record, epochs, protocol.skip if skip is None else skip, "epochs")
    windows = [window for window in record.windows if window.phase != "warmup"]
    if not windows:
        what = "warm-up windows only" if record.windows else "no windows"
        raise InputError(f"{record.file}: the log holds {what}: nothing was measured")
    chosen: Sequence[Window] = windows
    if skip is not None:
        chosen = _rest(record, windows, skip, "windows")
    elif protocol.skip_unit == "window":
        apart = len(record.windows) - len(windows)  # the run's own warm-up is the first of what the protocol drops
        chosen = _rest(record, windows, max(0, protocol.skip - apart), "windows")
    elif not any(window.phase == "measured" for window in windows):  # else the run itself has set its warm-up apart
        chosen = _after_steps(record, protocol)
    return _take(record, chosen, protocol.take_steps) if protocol.take_steps is not None else chosen


def _rest(record: Record, items: Sequence[Window], dropped: int, what: str) -> Sequence[Window]:
    if dropped >= len(items):
        raise _nothing_left(record, f"{dropped} {what}", f"{len(items)}")
    return items[dropped:]


def _nothing_left(record: Record, warm_up: str, held: str) -> NothingMeasuredError:
    says = "nothing is left to measure; take a longer run or a smaller --skip"
    return NothingMeasuredError(f"{record.file}: warm-up is {warm_up} and the run has {held}: {says}")


def _after_steps(record: Record, protocol: Protocol) -> Sequence[Window]:
    done = positions(record)
    if any(position is None for position in done):
        says = f"skips {protocol.skip} steps and the log's rows carry no step; give --skip N windows"
        raise InputError(f"{record.file}: protocol {protocol.name} {says}")
    chosen = [
        window
        for window, position in zip(record.windows, done, strict=True)
        if window.steps and (position or 0) - window.steps >= protocol.skip
    ]
    if not chosen:
        raise _nothing_left(record, f"{protocol.skip} steps", f"{done[-1]} printed")
    return chosen


def _take(record: Record, chosen: Sequence[Window], steps: int) -> Sequence[Window]:
    """Windows whose steps lie within the next `steps`. Raises InputError if the run is shorter."""
    totals = list(itertools.accumulate(window.steps or 1 for window in chosen))
    if totals[0] > steps:
        holds = f"the row of line {chosen[0].line} holds {totals[0]} steps and the protocol takes {steps}"
        raise InputError(f"{record.file}: {holds}; take a protocol without `take`, such as window")
    if totals[-1] < steps:
        raise _too_short(record, steps, totals[-1])
    return chosen[: bisect.bisect(totals, steps)]


def _too_short(record: Record, steps: int, total: int) -> InputError:
    says = f"the protocol takes {steps} steps after warm-up and the log has {total}; take a longer run"
    return InputError(f"{record.file}: {says}")


def _between_stamps(record: Record, protocol: Protocol, skip: int | None) -> RunFigure:
    """devices * batch * steps / (stamp at the end - stamp at the start), over the steps between two rows."""
    stamped = [
        (window, window.end_s, position)
        for window, position in zip(record.windows, positions(record), strict=True)
        if window.end_s is not None and position is not None
    ]
    if not stamped:
        raise InputError(f"{record.file}: protocol {protocol.name} needs time stamps on the rows; the log has none")
    if skip == 0:
        raise InputError(f"protocol {protocol.name} counts from the stamp of a row: give --skip 1 or more")
    if skip is not None:
        starts = stamped[skip - 1 :]
    else:
        # The row of that many steps done; of logs that print every 10th row from 0, the row of that number; the next.
        starts = [row for row in stamped if row[2] == protocol.skip]
        starts += [row for row in stamped if record.first_step == 0 and row[0].step == protocol.skip]
        starts += [row for row in stamped if row[2] > protocol.skip]
    if not starts:
        warm_up = f"{protocol.skip} steps" if skip is None else f"{skip} windows"
        raise _nothing_left(record, warm_up, f"{len(stamped)} stamped rows, the last after {stamped[-1][2]} steps")
    start, start_s, first = starts[0]
    there = max(0, stamped[-1][2] - first)
    later = [row for row in stamped if first < row[2] <= first + (protocol.take_steps or there)]
    if not later or there < (protocol.take_steps or 1) - 1:  # the last of N batches is N - 1
        raise _too_short(record, protocol.take_steps or 1, there)
    end, end_s, last = later[-1]
    _refuse_set_back(record, [window for window in record.windows if start.line <= window.line <= end.line])
    if end_s <= start_s:
        says = "do not advance; they are too coarse, or the clock was set"
        raise InputError(f"{record.file}: the time stamps of lines {start.line} and {end.line} {says}")
    return RunFigure(
        file=record.file,
        value=_images_a_step(record) * (last - first) / (end_s - start_s),
        windows=len(later),
        first_line=start.line,
        last_line=end.line,
        chosen=tuple(window for window, _, _ in later),
    )


def _refuse_set_back(record: Record, windows: Sequence[Window]) -> None:
    for before, row in set_back(windows):
        raise InputError(
            f"{record.file}: no figure, as the clock was set: the time stamp of line {row.line} lies before that of "
            f"line {before.line}; take a protocol that reads the rows' own times"
        )


def _own_summary(record: Record) -> RunFigure:
    if record.summary_rate is None:
        says = "the log closes with no figure of its own; take a protocol that counts its rows"
        raise InputError(f"{record.file}: {says}")
    line = record.field_lines["summary_rate"]
    value = record.summary_rate * (devices_in_rate(record) or 1)
    return RunFigure(file=record.file, value=value, first_line=line, last_line=line, chosen=record.windows)


# MLPerf benchmarks whose run_stop is the saving of the model that later proved good, while epochs went on.
JUDGED_AFTER_TRAINING = ("minigo",)


def _run_time(record: Record) -> RunFigure:
    if record.run_start_s is None:
        raise InputError(f"{record.file}: no run_start in the log: the run's time is unknown")
    seconds = record.run_time_s  # None: it began and never stopped, so it did not converge
    if seconds is not None:
        if seconds <= 0:
            raise InputError(f"{record.file}: run_stop is not after run_start: the clock was set, or the log edited")
        _refuse_set_back(record, record.windows)
        windows_s = math.fsum(window.seconds or 0.0 for window in record.windows)
        if record.benchmark not in JUDGED_AFTER_TRAINING and seconds * (1 + AGREES) < windows_s:
            says = f"are {seconds:.6g} s and the windows alone {windows_s:.6g} s: the clock was set, or the log edited"
            raise InputError(f"{record.file}: run_start to run_stop {says}")
    return RunFigure(
        file=record.file,
        value=seconds / 60 if seconds is not None and record.status == "success" else math.inf,
        first_line=record.field_lines["run_start_s"],
        last_line=record.field_lines.get("run_stop_s", record.lines),
    )


def _card(record: Record) -> Card | None:
    """The card that all GPUs of a run are; None where the log does not say, or the table lacks it."""
    found = set()
    for node in nodes_of(record):
        gpus = node.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else []:
            if isinstance(gpu, dict):
                found.add(card_of(str(gpu.get("name")), real(gpu.get("memory_gib"))))
    return found.pop() if len(found) == 1 else None


def utilization(records: Sequence[Record], images_per_s: float) -> float | None:
    """Model FLOP/s utilization (MFU) of all devices' images/s; None where a log lacks model, size, card or devices."""
    shares = []
    for record in records:
        flops = _flop_of_an_image(record)
        card = _card(record)
        if not flops or card is None or not record.devices:
            return None
        tf32 = record.precision == "fp32" and record.math_mode == "tf32"
        peak = card.peak("tf32" if tf32 else record.precision)
        if not peak:
            return None
        shares.append(images_per_s * flops / (peak * record.devices))
    return math.fsum(shares) / len(shares) if shares else None


def _flop_of_an_image(record: Record) -> float | None:
    """The model's FLOP for an image of the size that the configuration says; None where either is unknown."""
    workload = workloads.of_model(record.model)
    if workload is None:
        return None
    config = config_of(record)
    sides = []
    for side in ("height", "width"):
        size = real(config.get("RECIPE.image_size", {}).get("value"))
        sides.append(int(size or real(config.get(f"RECIPE.image_{side}", {}).get("value")) or 0))
    height, width = sides
    return workload.flop_of(height, width)


def images_per_joule(records: Sequence[Record]) -> float | None:
    """Images for each joule of the GPUs from the first step to the end, evaluations included; None without it."""
    joules = [real(record.telemetry.get("joules_per_image")) or 0.0 for record in records]
    return len(joules) / math.fsum(joules) if joules and min(joules) > 0 else None
