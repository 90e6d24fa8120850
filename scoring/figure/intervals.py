"""The 95 % intervals of a score: of one run by calibrated widths, of several runs by the spread between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scoring.figure import medians, spread
from scoring.figure.calibration import Width, calibration, kind_of, width_for
from scoring.figure.levels import hosts_of_runs, one_host_in_words, runs_or_host_means
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure
from scoring.record import Record

Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """The intervals of a figure. None: not known, and `method` says why."""

    deviation: float | None  # sample standard deviation in the score's unit
    interval_95: Bounds | None = None  # of the figure; for one run, where the mean of the whole run lies
    method: str  # how `interval_95` was made, or "none: " and why there is none
    repeat_95: Bounds | None = None  # of one run: where the figure of another run of the system lies


def intervals_of_one_run(run: RunFigure, record: Record, protocol: Protocol) -> Intervals:
    """Return the two 95 % intervals of a single run: of its own mean, and of another run of the same system.

    Half the width of each is calibrated: a rule that was fitted to published logs computes it from how much the windows
    of the run vary. There is one set of rules for windows that are whole epochs, and one for shorter windows
    (`kind_of`).

    Args:
        run: The figure of the run, with the rates of its windows (what one printed row of the log covers).
        record: The run as read from its log.
        protocol: The rules by which the run became one figure.

    Returns:
        The intervals, and the standard deviation of the windows' rates. Without an interval, `method` says why.
    """
    deviation = spread.sd(run.rates)  # there are no rates if the figure is not made of windows
    reason = _why_not_calibrated(record, protocol)
    if reason is not None:
        return Intervals(deviation=deviation, method=f"none: {reason}")
    return _intervals_by_calibrated_widths(run, kind_of(record), deviation)


def _why_not_calibrated(record: Record, protocol: Protocol) -> str | None:
    """Return why the figure of a single run can have no 95 % interval; None if it may have one.

    The width of such an interval says how far the mean of a run's separately measured windows may be off. So only a
    figure that is such a mean can have one.

    Args:
        record: The run as read from its log. It tells whether the printed rates are running averages.
        protocol: The rules by which the run became one figure. `over_steps` says how its steps were averaged.
    """
    over_steps = protocol.over_steps
    if over_steps == "own_summary":
        return "the log says one figure"
    if over_steps in ("run_time", "between_stamps"):
        return "one run, and the protocol takes one difference of time stamps"
    if over_steps == "epoch_rates":  # the mean of the rates that the log prints after each epoch
        return "widths are not calibrated for printed epochs"
    averages_printed_values = over_steps in ("mean_of_printed_rates", "mean_step_time")
    prints_running_averages = record.cumulative  # each printed value averages over earlier rows, too
    if averages_printed_values and prints_running_averages:
        return "running averages are not independent windows"
    return None


def _intervals_by_calibrated_widths(run: RunFigure, kind: str, deviation: float | None) -> Intervals:
    """Return two 95 % intervals of a single run: for the mean of the whole run, and for the figure of another run.

    The width of each comes from how much the windows of the run vary, by a rule that was fitted to published logs.

    Args:
        run: The figure of the run, with the rates of its windows (what one printed row of the log covers).
        kind: EPOCHS if the windows are whole epochs, else ROWS. Each kind has calibrated widths of its own.
        deviation: Standard deviation of the windows' rates in images/s, which is passed on; None for fewer than two.

    Returns:
        The intervals. Without any, `method` says why.
    """
    windows = len(run.rates)
    widths = calibration().run[kind]  # the rules for the run's own mean, each for a least number of windows
    width = width_for(widths, windows)
    if width is None:  # too few windows
        return Intervals(deviation=deviation, method=_why_no_width(widths, kind))

    half_width_share = width.half_width(_relative_sd_of_times(run))  # a share of the figure, such as 0.01
    is_wider_than_figure = half_width_share > 1
    # The interval that the windows give without a calibrated rule. That of another run is made from it. It is None if
    # the windows are too uneven, and then no calibrated width is trusted either.
    interval_by_windows_alone = run.windows_interval_95
    if is_wider_than_figure or interval_by_windows_alone is None:
        return Intervals(deviation=deviation, method="none: the windows are too uneven for one")
    return Intervals(
        deviation=deviation,
        interval_95=spread.around(run.value, half_width_share),
        method=f"from {windows} windows of one run",
        repeat_95=_interval_of_repeat(run, interval_by_windows_alone, kind),
    )


def _relative_sd_of_times(run: RunFigure) -> float:
    """Return the relative standard deviation of the windows' times per image.

    Times show a stall better than rates: it makes one time very long, but one rate only a little lower.

    Args:
        run: The figure of a run, with the rates of its windows, two or more.
    """
    return spread.relative_sd([1 / rate for rate in run.rates])


def _interval_of_repeat(run: RunFigure, windows_interval: Bounds, kind: str) -> Bounds | None:
    """Return the 95 % interval in which the figure of another run of the same system lies, predicted from a single run.

    The windows of one run show too little of how far runs lie apart. So the width that they give is replaced, by a rule
    that was fitted to published logs with several runs of a system.

    Args:
        run: The figure of the run, with the rates of its windows (what one printed row of the log covers).
        windows_interval: The 95 % interval of the run's mean that the windows alone give.
        kind: EPOCHS if the windows are whole epochs, else ROWS. Each kind has rules of its own.

    Returns:
        The bounds (low, high); None if the run has too few windows for a rule.
    """
    rule = width_for(calibration().repeat[kind], len(run.rates))
    if rule is None:
        return None
    share_by_windows = spread.half_width(windows_interval)  # half the width as a share of the figure, such as 0.002
    share_by_rule = rule.half_width(share_by_windows)  # such as 0.008
    return spread.around(run.value, share_by_rule)


def _why_no_width(widths: Sequence[Width], kind: str) -> str:
    """Return why no calibrated width holds for a run: there is none for this kind of windows, or it has too few.

    Args:
        widths: The calibrated widths for the kind of windows.
        kind: EPOCHS if the windows are whole epochs, else ROWS.
    """
    if not widths:
        return f"none: widths are not calibrated for {kind}"
    least = min(width.windows for width in widths)
    return f"none: fewer than {least} windows of one run"


def intervals_of_several_runs(runs: Sequence[RunFigure], records: Sequence[Record], protocol: Protocol) -> Intervals:
    """Return the 95 % interval of the figure of several runs, how it was made, and the runs' standard deviation.

    Args:
        runs: The figure of each run, two or more; infinite for one that did not converge, which only an olympic mean
            allows.
        records: The runs as read from their logs, in the same order. They tell the hosts.
        protocol: The rules by which the runs become one figure: mean, median or olympic mean (without best and worst).

    Returns:
        The interval of the figure, and the deviation of the converged runs. Without an interval, `method` says why.
    """
    values = [run.value for run in runs]
    deviation = spread.sd([value for value in values if math.isfinite(value)])
    hosts = hosts_of_runs(records)
    runs_in_words = f"{len(runs)} runs"
    if hosts is not None and len(set(hosts)) == 1:
        runs_in_words += f" of {one_host_in_words(hosts[0])}"

    interval = _interval_by_protocol(values, runs_in_words, hosts, protocol)
    if interval.bounds is not None and spread.has_no_width(interval.bounds):
        says = "print one and the same figure, in too few digits to tell how far they lie apart"
        return Intervals(deviation=deviation, method=f"none: {runs_in_words} {says}")
    return Intervals(deviation=deviation, interval_95=interval.bounds, method=interval.method)


class _IntervalOfRuns(NamedTuple):
    """The outcome of one method for the 95 % interval of several runs."""

    bounds: Bounds | None  # None: the runs are too few for the method
    method: str  # how the bounds were made, or "none: " and what the method needs


def _interval_by_protocol(
    values: Sequence[float], runs_in_words: str, hosts: Sequence[str] | None, protocol: Protocol
) -> _IntervalOfRuns:
    """Return the 95 % interval of several runs, by the method that suits their average.

    Args:
        values: The figure of each run, in images/s or minutes; infinite for a run that did not converge.
        runs_in_words: The runs in words, such as "7 runs of one host".
        hosts: Name of the host of each run; None if not known. Only the mean needs it.
        protocol: The rules by which the runs become one figure: mean, median or olympic mean (without best and worst).

    Returns:
        The bounds, with words that say how they were made. If the runs are too few, the bounds are None.
    """
    if protocol.over_runs == "median":
        return _interval_of_median(values, runs_in_words)
    if protocol.over_runs == "olympic_mean":
        return _interval_of_olympic_mean(values, runs_in_words, protocol.dropped_runs)
    return _interval_of_mean(values, runs_in_words, hosts)


def _interval_of_mean(values: Sequence[float], runs_in_words: str, hosts: Sequence[str] | None) -> _IntervalOfRuns:
    """Return the 95 % interval of the mean of several runs by Student's t, with words that say how it was made.

    Args:
        values: The figure of each run, two or more.
        runs_in_words: The runs in words, such as "7 runs of one host".
        hosts: Name of the host of each run; None if not known.
    """
    repeats = runs_or_host_means(values, hosts)
    mean = repeats.mean_of_runs  # of all runs, with a standard error by how far the repeats lie apart
    assert mean is not None, "there are two runs, or two hosts, or more"
    if repeats.are_hosts:
        return _IntervalOfRuns(mean.interval_95, f"t over the means of {len(repeats.values)} hosts, {runs_in_words}")
    return _IntervalOfRuns(mean.interval_95, f"t over {runs_in_words}")


def _interval_of_median(values: Sequence[float], runs_in_words: str) -> _IntervalOfRuns:
    """Return the interval of the median of runs, with bounds from the sorted runs, and words that say how it was made.

    - Fewer than five runs: there is no interval.
    - Five runs: from the least run to the greatest. This interval holds the median in 93.75 % of cases, and the words
      say so.
    - Six runs or more: the 95 % interval.

    Args:
        values: The figure of each run.
        runs_in_words: The runs in words, such as "7 runs of one host".

    Returns:
        The bounds and the words. Without an interval, the bounds are None.
    """
    bounds = medians.median_interval(values)
    if bounds is None:  # fewer than five runs
        return _IntervalOfRuns(None, f"none: {runs_in_words}, order statistics need 5")
    method = f"order statistics of {runs_in_words}"
    if len(values) == 5:
        method += ", least to greatest: 93.75 %"  # 1 - 2 / 2**5
    return _IntervalOfRuns(bounds, method)


def _interval_of_olympic_mean(values: Sequence[float], runs_in_words: str, dropped: int) -> _IntervalOfRuns:
    """Return the 95 % interval of the olympic mean of runs, with words that say how it was made.

    The olympic mean is the mean of the runs without the `dropped` best and the `dropped` worst runs. Yuen's t is
    Student's t with a standard error for such a mean.

    Args:
        values: The figure of each run. The figures that are left out may be infinite.
        runs_in_words: The runs in words, such as "7 runs of one host".
        dropped: How many runs are left out at each end.

    Returns:
        The bounds and the words. If fewer than two runs are left, the bounds are None, and the words say how many runs
        are needed.
    """
    mean = spread.olympic_mean_of(values, dropped=dropped)
    if mean is None:  # fewer than two runs are left
        # All that are left out, and two more: "none: 3 runs, an olympic mean's [interval] needs 4".
        return _IntervalOfRuns(None, f"none: {runs_in_words}, an olympic mean's needs {2 * dropped + 2}")
    return _IntervalOfRuns(mean.interval_95, f"Yuen's t of the olympic mean over {runs_in_words}")
