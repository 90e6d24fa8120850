"""Warnings about a figure: what makes it less than it looks. Pure functions; thresholds stand above their use."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from runlog.verdict import WARNING, Verdict
from scoring.figure.spread import outlier
from scoring.importers.checks import CLOCK_AGREES, EPOCHS_AND_RUN, REFUSED, row_s, run_rate
from scoring.importers.text import weighted_mean, work
from scoring.record import Record, Window


def warning(rule: str, message: str, record: Record | None = None, line: int | None = None) -> Verdict:
    """A warning by its stable name, about a run where there is a `record`, about one of its lines where there is."""
    file = record.file if record else None
    where = (file or "") + (f":{line}" if line is not None else "")
    return Verdict(check=rule, status=WARNING, found=message, where=where, figures={"file": file, "line": line})


def as_json(warnings: Iterable[Verdict]) -> list[dict[str, Any]]:
    """A list of {rule, message, file, line}."""
    return [{"rule": one.check, "message": one.found, **one.figures} for one in warnings]


def change_point(values: Sequence[float], first: int, last: int) -> tuple[int, float, float] | None:
    """The best split of `values` into two levels with `first` <= index <= last, and both; None without a clear one.

    Least squares on values clipped at 8 deviations (one spike is no level). Noise is the scaled median absolute
    difference of neighbours, which a change of level or a slow drift hardly touches.
    """
    noise = 1.4826 * statistics.median([abs(b - a) for a, b in itertools.pairwise(values)]) / math.sqrt(2)
    middle = statistics.median(values)
    noise = max(noise, 1e-4 * abs(middle), 1e-12)  # printed digits hide smaller noise; all time may be waiting
    clipped = [min(max(value, middle - 8 * noise), middle + 8 * noise) for value in values]
    total, count = math.fsum(clipped), len(clipped)
    best, at = 0.0, 0  # in standard errors
    for index, left in enumerate(itertools.accumulate(clipped[:-1]), 1):
        gap = left / index - (total - left) / (count - index)
        strength = abs(gap) * math.sqrt(index * (count - index) / count) / noise
        if first <= index <= last and strength > best:
            best, at = strength, index
    if best <= CHANGE_STRENGTH:
        return None
    return at, statistics.median(values[:at]), statistics.median(values[at:])


# A split is searched over the whole series: its strength must pass what noise alone reaches (about
# sqrt(2 ln n), 3.7 for a thousand windows) by a margin, and the levels must differ by what a user cares for.
CHANGE_STRENGTH = 6.0
WARM_UP_SHARE = 0.01
THROTTLE_SHARE = 0.03
DRIFT_SHARE = 0.02
STALL_SHARE = 0.05
RATE_GAP_SHARE = 0.001
OUTLIER_SCORE = 3.5  # median absolute deviations: Iglewicz and Hoaglin's modified z-score
OUTLIER_SHARE = 0.01
OUTLYING_WINDOW_SHARE = 0.2
UNSTEADY_SHARE = 0.02
SWING = 1.25  # of the 95 % quantile of the step times to the 5 % one
SUMMARY_SHARE = 0.02
STRAGGLER_SHARE = 0.03  # of a window's time, over the median rank
STRAGGLER_CHANCE = 0.01  # that a run of ranks that are alike has such a warning
STRAGGLER_WINDOWS = 4  # windows that are worth one of independent ones: (1 + r) / (1 - r) at a correlation r of 0.6


def step_times(windows: Iterable[Window]) -> list[float]:
    """Seconds a step (or a printed unit of equal work) of each window, as far as the log has them."""
    times = []
    for window in windows:
        if window.seconds is not None and window.images and not window.steps:
            times.append(window.seconds / window.images)
        elif window.step_s is not None:
            times.append(window.step_s)
        elif window.printed_rate:
            times.append(1 / window.printed_rate)
    return times


def of_windows(record: Record, windows: Sequence[Window], averages_rates: bool) -> Iterator[Verdict]:
    """Warnings about the measured windows of one run."""
    if record.truncated:
        message = "the log ends before its run does: the figure is of the part that is there"
        yield warning("truncated", message, record, record.segment[1] if record.segment else record.lines)
    if record.cumulative and averages_rates:
        message = "the printed rates are running averages of the epoch: their mean counts early steps many times"
        yield warning("cumulative_windows", message, record)
    times = step_times(windows)
    if len(times) == len(windows) > 1:
        yield from _of_times(record, windows, times, averages_rates)
    waited = [(w.data_wait_s, w.seconds) for w in windows if w.data_wait_s is not None and w.seconds]
    share = math.fsum(wait for wait, _ in waited) / math.fsum(seconds for _, seconds in waited) if waited else 0.0
    if share > STALL_SHARE:
        message = f"{share:.1%} of the step time is waiting for data (over {STALL_SHARE:.0%})"
        yield warning("data_stall", message, record)
    for kind, what in (("data_wait", "waits for its input"), ("compute", "computes")):
        yield from _straggler(record, windows, kind, what)


def _of_times(
    record: Record, windows: Sequence[Window], times: Sequence[float], averages_rates: bool
) -> Iterator[Verdict]:
    """Warnings about the step times of all windows."""
    if not record.cumulative and _looks_cumulative(times):
        message = "the windows look like running averages: ever smaller changes from row to row"
        yield warning("cumulative_windows", message, record)
    if len(times) >= 6:
        moved = _change_of_level(record, windows, times) or _outlying_windows(record, windows, times)
        yield from [moved] if moved else []
    low, high = (sorted(times)[int(share * len(times))] for share in (0.05, 0.95))
    if high > SWING * low:
        message = f"the slow windows take {high / low:.3g} times as long as the fast ones, 5 to 95 % of them"
        yield warning("unsteady", message, record)
    gap = statistics.fmean(1 / time for time in times) * weighted_mean(times, work(windows)) - 1
    if averages_rates and gap > RATE_GAP_SHARE:
        message = f"the mean of rates is {gap:.2%} above images over time: windows of unequal speed"
        yield warning("rates_averaged", message, record)


def _straggler(record: Record, windows: Sequence[Window], kind: str, what: str) -> Iterator[Verdict]:
    """A rank that the others wait for: slowest by over 3 % of the time, and in more windows than chance gives.

    Of R ranks that are alike each is the slowest of a window with probability 1/R. That one, not named before, is the
    slowest in a share s of n windows has at most the probability R exp(-n KL(s, 1/R)), by Chernoff's bound. Windows are
    correlated, so that n is a fourth of them.
    """
    rows = [
        (getattr(w.rank_times, f"{kind}_rank"), getattr(w.rank_times, f"{kind}_host"), over, w.line)
        for w in windows
        if (over := over_median(w, kind)) is not None
    ]
    if not rows or not record.devices or record.devices < 2:
        return
    (rank, host), count = Counter((rank, host) for rank, host, _, _ in rows).most_common(1)[0]
    share, alike = count / len(rows), 1 / record.devices
    divergence = share * math.log(share / alike)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - alike))
    chance = record.devices * math.exp(-len(rows) / STRAGGLER_WINDOWS * divergence) if share > alike else 1.0
    over = statistics.median(value for at, _, value, _ in rows if at == rank)
    if chance < STRAGGLER_CHANCE and over > STRAGGLER_SHARE:
        message = (
            f"rank {rank} on {host} {what} {over:.1%} of the time longer than the median rank, and is the slowest in "
            f"{count} of {len(rows)} windows: all others wait for it"
        )
        yield warning("straggler", message, record, next(line for at, _, _, line in rows if at == rank))


def over_median(window: Window, kind: str) -> float | None:
    """How much longer the slowest rank takes than the median one, of the time; `kind`: compute or data_wait."""
    if window.rank_times is None or not window.seconds:
        return None
    most, median = (getattr(window.rank_times, f"{kind}_{name}_s") for name in ("most", "median"))
    return None if most is None or median is None else (most - median) / window.seconds


def _outlying_windows(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """A few windows that move the figure: far from the median step time, and over 1 % of the mean by themselves."""
    middle = statistics.median(times)
    scale = 1.4826 * statistics.median([abs(time - middle) for time in times])  # a normal one's standard deviation
    limit = max(OUTLIER_SCORE * scale, OUTLYING_WINDOW_SHARE * middle)
    far = [index for index, time in enumerate(times) if abs(time - middle) > limit]
    if not 0 < len(far) <= len(times) / 10:  # more of them are how the run goes: it is unsteady
        return None
    weights = work(windows)
    near = [(time, w) for time, w in zip(times, weights, strict=True) if abs(time - middle) <= limit]
    moved = weighted_mean(times, weights) / weighted_mean([t for t, _ in near], [w for _, w in near]) - 1
    if abs(moved) <= OUTLIER_SHARE:
        return None
    worst = max(far, key=lambda index: abs(times[index] - middle))
    message = (
        f"{len(far)} of {len(windows)} windows, far from the others, make the mean step time "
        f"{abs(moved):.1%} {'longer' if moved > 0 else 'shorter'}; the farthest takes {times[worst] / middle:.3g} "
        "times the median: see the median of the window rates"
    )
    return warning("outlying_window", message, record, windows[worst].line)


def of_summary(record: Record, value: float, lines: tuple[int, int]) -> Iterator[Verdict]:
    """A figure far off the rows that it is of, or off the run's time, or by over 2 % off the log's summary."""
    of_lines = f"the figure, of lines {lines[0]} to {lines[1]}, is"
    rows = [window for window in record.windows if lines[0] < window.line <= lines[1]]
    times = [time for window in rows if window.steps and (time := row_s(record, window))]
    batch = record.global_batch or (record.batch_per_device if record.rate_scope == "device" else None)
    if batch and rows and len(times) == len(rows):
        by_rows = sum(window.steps or 0 for window in rows) * batch / math.fsum(times)
        if not 1 / REFUSED <= value / by_rows <= REFUSED:
            message = (
                f"{of_lines} {value / by_rows:.3g} times what the same rows' own times make, {by_rows:.6g}: the clock "
                "was set, or the run stood still in between"
            )
            yield warning("rows_disagree", message, record, lines[1])
    run = run_rate(record)
    said = any(check.what == EPOCHS_AND_RUN and not check.agree for check in record.checks)
    if run is not None and not said and abs(value / run[1] - 1) > CLOCK_AGREES:
        message = (
            f"the figure, {value:.6g}, is {value / run[1] - 1:+.1%} off the whole run's: {run[0]}, warm-up included"
        )
        yield warning("ways_disagree", message, record, lines[1])
    summary = record.summary_rate if record.rate_scope == "global" else None
    if summary is not None and abs(value / summary - 1) > SUMMARY_SHARE:
        message = (
            f"{of_lines} {value / summary - 1:+.1%} off the log's own summary {summary:.6g}, which has a rule of its "
            "own: see the protocol summary"
        )
        yield warning("own_summary_differs", message, record, record.field_lines["summary_rate"])


def of_interval(value: float, interval: tuple[float, float] | None) -> Iterator[Verdict]:
    """Warn of a figure that its own interval leaves open by more than 2 %."""
    half = (interval[1] - interval[0]) / 2 / value if interval is not None else 0.0
    if half > UNSTEADY_SHARE:
        message = f"half the width of the 95 % interval is {half:.1%} of the figure (over {UNSTEADY_SHARE:.0%})"
        yield warning("wide_interval", message)


def of_efficiency(name: str, efficiency: float) -> Iterator[Verdict]:
    """A device that does more among many than among few, by more than clocks may differ."""
    if efficiency <= 1 + CLOCK_AGREES:
        return
    message = f"{name}: {efficiency:.2f} times as much a device as the base: a clock, a count of devices or the machine"
    bound = "; no efficiency is given, as it is 1 at most" if efficiency > REFUSED else ""
    yield warning("over_linear", f"{message} is another than it seems{bound}")


def _change_of_level(record: Record, windows: Sequence[Window], times: Sequence[float]) -> Verdict | None:
    """Warm-up not over, throttling or drift: at most one of them explains a series."""
    count = len(times)
    at, slow, usual = change_point(times, 1, count // 2) or (0, 0.0, 0.0)
    if slow > usual * (1 + WARM_UP_SHARE):
        message = (
            f"the first {at} of {count} measured windows are {slow / usual - 1:.1%} slower "
            f"than the rest: warm-up was not over at the cut; try to skip {at} more"
        )
        return warning("warm_up_not_over", message, record, windows[at].line)
    waits = (min(w.data_wait_s / w.seconds, 1.0) if w.data_wait_s and w.seconds else 0.0 for w in windows)
    compute = [time * (1 - share) for time, share in zip(times, waits, strict=True)]  # a stall is not throttling
    at, usual, slow = change_point(compute, max(1, count // 10), count - max(3, count // 5)) or (0, 0.0, 0.0)
    # A step rather than a ramp: the levels hold on both sides of it.
    if slow > usual * (1 + THROTTLE_SHARE) > 0 and max(_ramp(compute[:at]), _ramp(compute[at:])) < THROTTLE_SHARE / 2:
        message = (
            f"from window {at + 1} of {count} on steps take {slow / usual - 1:.1%} longer, to the end: "
            f"throttling, or another job on the machine{_power_note(windows, at)}"
        )
        return warning("throttling", message, record, windows[at].line)
    third = count // 3
    first, last = statistics.median(times[:third]), statistics.median(times[-third:])
    if abs(last / first - 1) > DRIFT_SHARE and _monotone(times):
        message = f"step time drifts by {last / first - 1:+.1%} from the first to the last third of the run"
        return warning("drift", message, record, windows[count - third].line)
    return None


def _ramp(values: Sequence[float]) -> float:
    """How much the second half of a stretch differs from the first, as a share."""
    if not (half := len(values) // 2):
        return 0.0
    first, second = statistics.median(values[:half]), statistics.median(values[half:])
    return abs(second / first - 1) if first else 0.0


def _monotone(values: Sequence[float]) -> bool:
    """Mann-Kendall's test on at most 200 evenly chosen values: a trend at 1 %."""
    chosen = values[:: max(1, len(values) // 200)]
    count = len(chosen)
    sign = sum((b > a) - (b < a) for i, a in enumerate(chosen) for b in chosen[i + 1 :])
    return abs(sign) > 2.576 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


def _looks_cumulative(times: Sequence[float]) -> bool:
    """Running averages change ever less, and little from row to row beside their whole range."""
    if len(times) < 20:
        return False
    differences = [abs(b - a) for a, b in itertools.pairwise(times)]
    quarter = len(differences) // 4
    early, late = statistics.fmean(differences[:quarter]), statistics.fmean(differences[-quarter:])
    variance = statistics.pvariance(times)
    if variance == 0 or early == 0:
        return False
    ratio = statistics.fmean([d * d for d in differences]) / variance  # von Neumann's; 2 for independent values
    return ratio < 0.3 and late < early / 3


def _power_note(windows: Sequence[Window], index: int) -> str:
    before, after = ([w.power_w for w in part if w.power_w is not None] for part in (windows[:index], windows[index:]))
    if not before or not after:
        return ""
    return f" (power {statistics.median(before):.0f} W before, {statistics.median(after):.0f} W after)"


def of_record(record: Record) -> Iterator[Verdict]:
    """Warnings about a run as a whole."""
    for problem in record.problems[:3]:
        yield warning("option_contradicts_log" if "the options" in problem else "log_problem", problem, record)
    for check in record.checks:
        if not check.agree and not check.one_sided:
            yield warning("ways_disagree", str(check), record)
    if record.math_mode == "tf32" and record.precision == "fp32":
        message = "FP32 here is TF32: not to be compared with FP32 of older devices"
        yield warning("tf32", message, record, record.field_lines.get("math_mode"))


def of_runs(records: Sequence[Record], values: Sequence[float], unit: str) -> Iterator[Verdict]:
    """The run that does not belong to the others by Grubbs' test, if it is over 1 % off the median too."""
    finite = [(record, value) for record, value in zip(records, values, strict=True) if math.isfinite(value)]
    at = outlier([value for _, value in finite])
    if at is None:
        return
    record, value = finite[at]
    middle = statistics.median(value for _, value in finite)
    if abs(value - middle) > OUTLIER_SHARE * abs(middle):
        yield warning("outlying_run", f"{value:.6g} {unit} lies far from the median {middle:.6g} of the runs", record)


def of_unsaid_machine(records: Sequence[Record]) -> Iterator[Verdict]:
    """Warn that runs are put together of which nothing says that they ran on one machine."""
    silent = [record for record in records if record.machine is None]
    if len(records) < 2 or not silent:
        return

    message = (
        f"{len(silent)} of {len(records)} logs do not say their hardware, so the runs may be of different machines; "
        "if they are of one, name it by `score --system NAME`"
    )
    yield warning("system_unsaid", message, silent[0])


def of_mean(rates: Sequence[float]) -> Iterator[Verdict]:
    """A mean of runs' rates that lies above their images over their time by more than 0.1 %."""
    gap = statistics.fmean(rates) * statistics.fmean(1 / rate for rate in rates) - 1
    if gap > RATE_GAP_SHARE:
        yield warning("rates_averaged", f"the mean of the runs' rates is {gap:.2%} above their images over their time")


def of_mixture(records: Sequence[Record]) -> Iterator[Verdict]:
    """Models, batches, software, math modes and precisions that differ between runs that are set side by side."""
    for rule, name, field in (
        ("mixed_model", "model", "model"),
        ("mixed_batch", "batch of one device", "batch_per_device"),
        ("mixed_precision", "precision", "precision"),
        ("mixed_math_mode", "math mode", "math_mode"),
    ):
        values = [value for record in records if (value := getattr(record, field))]
        spelled = {"".join(filter(str.isalnum, str(value).lower())): value for value in values}  # a model in many ways
        if field == "precision" and spelled and "fp32" not in values and len(values) < len(records):
            spelled["unsaid"] = "not said"  # it may be FP32 beside the half precision of the others
        if len(spelled) > 1:
            yield warning(rule, f"{name} differs: {', '.join(map(str, sorted(spelled.values())))}")
    versions: dict[str, set[str]] = {}
    for record in records:
        name, _, version = (record.framework or "").rpartition(" ")
        for package, text in [*record.software.items(), *([(name, version)] if name else [])]:
            versions.setdefault(package, set()).add(text)
    different = [f"{name} {' and '.join(sorted(given))}" for name, given in sorted(versions.items()) if len(given) > 1]
    if different:
        yield warning("mixed_software", f"software differs: {'; '.join(different[:5])}")
