"""Which nodes and links of a fleet are slower than the others, by how much, and whether that can be chance.

All figures are times. All nodes take a measurement at the same time, again and again: each such repetition is a turn.
Each time is divided by the fleet's median of its turn, so that what slows all nodes equally cancels. The logarithm of
this quotient is the log ratio: 0 is usual, 0.05 is about 5 % slower. The log ratios of a node over the turns are summed
up by their Hodges-Lehmann estimate, which is the level of the node. The nodes' levels are compared, and outliers.py
finds the slow ones.

In one of 1 / ALPHA healthy fleets any node or link is called slow by chance, over all metrics together. This holds if
healthy nodes differ as a normal distribution does.
"""

import math
import statistics
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from program.arrays import Array
from runlog.digits import percent
from runlog.verdict import FATAL, UNKNOWN, WARNING, Verdict, judged
from scoring.figure import medians
from scoring.figure.calibration import smallest_difference
from tools.fleet.outliers import MIN_NODES, error_of_level, find_slow, level_of

ALPHA = 0.002  # the chance of a false alarm in a healthy fleet, over all tests together
STALLED_MEAN_OVER_MEDIAN = 1.1  # of a turn's steps, with a stall: one of eight took nearly twice as long
NOT_POSSIBLE = "not possible here"  # the beginning of a record's reason that is not a failure
NOT_MEASURED = "not measured"  # what a verdict says if the record has neither times nor a reason
STEP = "step_s"
STALLS = "step_mean_s"
NODE_METRICS = {
    STEP: "step",
    "memory_s_per_gib": "memory",
    "disk_s_per_gib": "disk",
    "input_s": "input",
    "clock_ns": "GPU clock",
}
LINK_METRICS = {"latency_s": "latency", "transfer_s": "transfer"}
# The step has half of ALPHA, because it decides how long a job takes. The other metrics share the rest: those of nodes
# once, those of links twice, for nodes and for links.
OTHERS_ALPHA = ALPHA / 2 / (len(NODE_METRICS) + 2 * len(LINK_METRICS))
ALPHAS = dict.fromkeys(NODE_METRICS, OTHERS_ALPHA) | {STEP: ALPHA / 2}

Record = Mapping[str, Any]  # fleet.json
# Of one metric, by the name of a node or link: its time in each turn, in the order of the turns; None: not measured. In
# place of times there may be ratios of times.
Series = Mapping[str, Sequence[float] | None]


def of_hosts(record: Record, metric: str) -> Series:
    """Return what each node measured of a metric by itself, by the node's name."""
    return dict(zip(record["hosts"], record["metrics"][metric]["series"], strict=True))


def links_of(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the links of a record by name: {"node0 - node1": the record's entry for the link}."""
    hosts = record["hosts"]
    return {f"{hosts[link['a']]} - {hosts[link['b']]}": link for link in record["links"]}


class Slowness(NamedTuple):
    """How much slower than the fleet's median a node or link is."""

    extra_time: float  # as a share of the fleet's median: 0.05 is 5 % slower
    interval_95: tuple[float, float] | None  # of `extra_time`; None if there is none
    is_slow: bool  # whether it is called slow


def judge_slowness(
    where: str, metric: str, slowness: Slowness, *, value: float | None = None, suffix: str = ""
) -> Verdict:
    """Return the verdict on a node or link by one metric: a warning if it is called slow, else ok.

    Its text is "5.0% (4.0% to 6.0%) slower than the fleet's median", without the brackets if there is no interval.

    Args:
        where: The name of the node or link.
        metric: The name of the check, such as "step".
        slowness: How much slower it is than the fleet's median, and whether that counts as slow.
        value: The median of its times, for the verdict's figures. None leaves it out.
        suffix: Words to add at the end of the text.
    """
    interval_text = ""
    if slowness.interval_95 is not None:
        low, high = slowness.interval_95
        interval_text = f" ({percent(low)} to {percent(high)})"
    found = f"{percent(slowness.extra_time)}{interval_text} slower than the fleet's median{suffix}"
    figures: dict[str, Any] = {}
    if value is not None:
        figures["value"] = value
    figures |= {"interval_95": slowness.interval_95, "slower": slowness.extra_time}
    is_ok = not slowness.is_slow
    return judged(metric, is_ok, found, bad=WARNING, where=where, figures=figures)


# ---- log ratios of nodes and links


def _log_ratios_to_median(series: Series, across_links: Container[str]) -> dict[str, list[float]]:
    """Return for each measured node or link, in each turn, log(its time / the median time of that turn).

    Args:
        series: The times of each node or link in each turn; None: not measured.
        across_links: Names of the links between switch groups. They are usually slower, so they have their own median.

    Returns:
        The logarithms by name, in the order of `series`: 0.05 is about 5 % slower. What was not measured is left out.
    """
    measured = {name: np.array(times) for name, times in series.items() if times}
    across = {name: times for name, times in measured.items() if name in across_links}
    others = {name: times for name, times in measured.items() if name not in across_links}
    log_ratios = _log_ratios_among(others) | _log_ratios_among(across)
    return {name: log_ratios[name] for name in measured}  # in the order of `series`


def _log_ratios_among(times_by_name: Mapping[str, Array]) -> dict[str, list[float]]:
    """Return for each name, in each turn, log(its time / the median time of all names in that turn)."""
    if not times_by_name:
        return {}
    median_by_turn = np.median(list(times_by_name.values()), axis=0)
    return {name: np.log(times / median_by_turn).tolist() for name, times in times_by_name.items()}


def judge_metric(
    metric: str,
    series: Series,
    *,
    alpha: float = OTHERS_ALPHA,
    across_links: Container[str] = (),
    reasons: Mapping[str, str] = {},
) -> list[Verdict]:
    """Return a verdict on each node or link of a fleet by one metric: whether it is slower than the others.

    Args:
        metric: The name of the check, such as "step".
        series: The times of each node or link in each turn (a repetition on all together); None: not measured.
        alpha: The accepted chance of a false alarm in a healthy fleet.
        across_links: Names of the links between switch groups, which have their own median.
        reasons: Why a node or link was not measured, by its name.

    Returns:
        The verdicts in the order of `series`.
    """
    # Of those that were measured, log(time / the median of all in that turn) for each turn.
    log_ratios_by_name = _log_ratios_to_median(series, across_links)
    if len(log_ratios_by_name) < MIN_NODES:  # too few to tell which of them is slow
        verdicts = _leave_undecided(metric, log_ratios_by_name)
    else:
        slowness_by_name = _compare(log_ratios_by_name, alpha=alpha)
        verdicts = _judge_measured(metric, series, slowness_by_name)
    for name in series:
        was_measured = name in log_ratios_by_name
        if not was_measured:
            verdicts[name] = _judge_unmeasured(metric, name, reasons.get(name))
    return [verdicts[name] for name in series]


def _leave_undecided(metric: str, names: Collection[str]) -> dict[str, Verdict]:
    """Return the verdict "unknown" on each of `names`, the measured nodes or links, which are too few to compare."""
    found = f"{len(names)} measured: at least {MIN_NODES} are needed to tell which is slow"
    return {name: Verdict(check=metric, where=name, status=UNKNOWN, found=found) for name in names}


def _judge_unmeasured(metric: str, name: str, reason: str | None) -> Verdict:
    """Return the verdict on a node or link that measured nothing: fatal if an error is the reason, else unknown.

    Args:
        metric: The name of the check, such as "disk".
        name: The node or link.
        reason: Why, as the record says it. "not possible here: no DATADIR" is not an error. None if the record has no
            reason.
    """
    if reason is None:
        return Verdict(check=metric, where=name, status=UNKNOWN, found=NOT_MEASURED)
    if reason.startswith(NOT_POSSIBLE):
        return Verdict(check=metric, where=name, status=UNKNOWN, found=reason.removeprefix(f"{NOT_POSSIBLE}: "))
    return Verdict(check=metric, where=name, status=FATAL, found=reason)


def _judge_measured(metric: str, series: Series, slowness_by_name: Mapping[str, Slowness]) -> dict[str, Verdict]:
    """Return the verdict on each measured node or link by name: a warning if it is called slow, else ok.

    Args:
        metric: The name of the check, such as "disk".
        series: The times of each node or link in each turn. Their median is the figure `value` of the verdict.
        slowness_by_name: How much slower than the fleet's median each measured one is, and whether that counts as slow.
    """
    verdicts = {}
    for name, slowness in slowness_by_name.items():
        times = series[name]
        assert times is not None  # what was not measured has no slowness
        verdicts[name] = judge_slowness(name, metric, slowness, value=statistics.median(times))
    return verdicts


def _compare(log_ratios_by_name: Mapping[str, Sequence[float]], *, alpha: float) -> dict[str, Slowness]:
    """Return for each node (or link) of a fleet how much slower than the fleet it is, and whether it counts as slow.

    Args:
        log_ratios_by_name: For each node or link its log ratio in each turn: log(time / the fleet's median time of the
            turn), so 0.05 is about 5 % slower.
        alpha: The accepted chance of a false alarm in a healthy fleet.
    """
    levels = {name: level_of(log_ratios) for name, log_ratios in log_ratios_by_name.items()}  # robust means
    standard_errors = [error_of_level(log_ratios) for log_ratios in log_ratios_by_name.values()]
    typical_error = statistics.median(standard_errors)
    slow_names = find_slow(levels, noise=typical_error, alpha=alpha)

    level_of_fleet = statistics.median(levels.values())
    slowness_by_name = {}
    for name, level in levels.items():
        extra_time = extra_time_of(level - level_of_fleet)  # from a difference of logarithms to a share
        interval = _interval_of_extra_time(log_ratios_by_name[name], level, level_of_fleet, compared=len(levels))
        slowness_by_name[name] = Slowness(extra_time, interval, is_slow=name in slow_names)
    return slowness_by_name


def extra_time_of(log_ratio: float) -> float:
    """Return by what share one time is longer than another, from the logarithm of their ratio: log(1.05) -> 0.05."""
    return math.expm1(log_ratio)  # expm1(x) is exp(x) - 1


def _interval_of_extra_time(
    log_ratios: Sequence[float], level: float, level_of_fleet: float, *, compared: int
) -> tuple[float, float] | None:
    """Return the 95 % interval of how much slower than the fleet a node or link is: (0.04, 0.06) is 4 % to 6 % slower.

    Args:
        log_ratios: The log ratio of the node or link in each turn: log(time / the fleet's median time of the turn).
        level: The level of the node or link, a robust mean of `log_ratios`.
        level_of_fleet: The median of the levels of all compared nodes or links.
        compared: The number of compared nodes or links. The fewer they are, the larger is the error of their median.

    Returns:
        The bounds (low, high) as shares. None if there are fewer than five turns.
    """
    # In the example of the comments the level is 0.05 and the fleet's is 0.01. The level has no interval of its own, so
    # that of the median stands for it. It is rather too wide than too narrow, as the median varies more than the level.
    interval_of_median = medians.median_interval(log_ratios)  # 0.04 to 0.07
    if interval_of_median is None:
        return None
    low, high = interval_of_median
    # The fleet's level has an error, too, so both bounds are moved away from the level by a factor: 1.1, say.
    widening = _widening_by_error_of_median(compared)
    wide_low = level - (level - low) * widening  # 0.05 - 0.01 * 1.1 = 0.039
    wide_high = level + (high - level) * widening  # 0.05 + 0.02 * 1.1 = 0.072
    # The logarithms of the ratios to the fleet, 0.029 and 0.062, as shares: 2.9 % and 6.4 % slower
    return extra_time_of(wide_low - level_of_fleet), extra_time_of(wide_high - level_of_fleet)


def _widening_by_error_of_median(nodes: int) -> float:
    """Return how much less certain a node's distance from the median of n nodes is than its time.

    The factor is sqrt(1 + pi / (2 n)). In normal noise the variance of this median is pi / (2 n) of that of a node, and
    the two add up.

    Args:
        nodes: The number n of nodes.
    """
    return math.sqrt(1 + math.pi / 2 / nodes)


# ---- what is judged


class NetworkVerdicts(NamedTuple):
    """The verdicts on a fleet's network."""

    on_nodes: list[Verdict]  # by all links of the node
    on_links: list[Verdict]


def judge_links(record: Record) -> NetworkVerdicts:
    """Return the verdicts on a fleet's nodes and on the links between them, by latency and by transfer."""
    on_nodes: list[Verdict] = []
    on_links: list[Verdict] = []
    for metric in LINK_METRICS:
        verdicts = _judge_links_by(metric, record)
        on_nodes += verdicts.on_nodes
        on_links += verdicts.on_links
    return NetworkVerdicts(on_nodes, on_links)


class LinkTimes(NamedTuple):
    """The times of a link by one metric."""

    name: str  # "node0 - node1"
    hosts: tuple[str, str]  # the two nodes that it connects
    is_across: bool  # whether it leads from one switch group to another
    times: Sequence[float] | None  # in each turn; None: not measured


def _judge_links_by(metric: str, record: Record) -> NetworkVerdicts:
    """Return the verdicts on a fleet's nodes and links by one metric of the network.

    Args:
        metric: "latency_s" or "transfer_s".
        record: What was measured on the fleet, as fleet.json holds it.
    """
    title = LINK_METRICS[metric]
    links = _times_of_links(record, metric)
    # First each node is judged by the median slowness of its links.
    on_nodes = judge_metric(f"network {title}", _slowness_of_links(record["hosts"], links))
    slow_hosts = {verdict.where for verdict in on_nodes if verdict.status == WARNING}

    # Then the links are judged, but not those of slow nodes: they are slow because the node is.
    links_of_others = [link for link in links if slow_hosts.isdisjoint(link.hosts)]
    times_by_name = {link.name: link.times for link in links_of_others}
    on_links = judge_metric(title, times_by_name, across_links=_names_across(links_of_others))
    return NetworkVerdicts(on_nodes, on_links)


def _times_of_links(record: Record, metric: str) -> list[LinkTimes]:
    """Return the times of all links of a record by one of LINK_METRICS."""
    hosts = record["hosts"]
    times_of_links = []
    for name, link in links_of(record).items():
        hosts_of_link = (hosts[link["a"]], hosts[link["b"]])
        times_of_links.append(LinkTimes(name, hosts_of_link, is_across=link["across"], times=link[metric]))
    return times_of_links


def _names_across(links: Sequence[LinkTimes]) -> set[str]:
    """Return the names of the links from one switch group to another."""
    return {link.name for link in links if link.is_across}


def _slowness_of_links(hosts: Sequence[str], links: Sequence[LinkTimes]) -> dict[str, list[float] | None]:
    """Return for each host how slow its links are in each turn: 2.0 is twice the usual time.

    This is the median over the host's links, so that a single slow link does not count against the host. The usual time
    of a link is the median, in that turn, of all links of its kind: inside a switch group, or across.

    Args:
        hosts: The names of all compared hosts.
        links: The links between them, with their times.

    Returns:
        The ratios by host, a value for each turn. None if none of its links was measured.
    """
    slowness: dict[str, list[float] | None] = dict.fromkeys(hosts)
    for host, log_ratios_of_links in _log_ratios_of_links_by_host(links).items():
        median_by_turn = np.median(log_ratios_of_links, axis=0)
        slowness[host] = np.exp(median_by_turn).tolist()  # from logarithms back to ratios of times
    return slowness


def _log_ratios_of_links_by_host(links: Sequence[LinkTimes]) -> dict[str, list[list[float]]]:
    """Return for each host that has a measured link a list for each such link, with its log ratio in each turn."""
    times_by_link = {link.name: link.times for link in links}
    log_ratios_by_link = _log_ratios_to_median(times_by_link, _names_across(links))
    log_ratios_by_host: dict[str, list[list[float]]] = {}
    for link in links:
        if link.name in log_ratios_by_link:  # it was measured
            for host in link.hosts:
                log_ratios_by_host.setdefault(host, []).append(log_ratios_by_link[link.name])
    return log_ratios_by_host


class StallCount(NamedTuple):
    """How many of some turns have a stall: a training step that took far longer than the other steps of its turn."""

    stalled_turns: int
    turns: int


def judge_stalls(median_steps: Series, mean_steps: Series) -> list[Verdict]:
    """Return a verdict on each measured node: a warning if stalls cost the node noticeable time, and not by chance.

    A stall is a training step that takes far longer than the other steps of its turn. A turn is some steps that all
    nodes take at the same time.

    Args:
        median_steps: For each node the median seconds of a step in each turn; None: not measured.
        mean_steps: For each of these nodes the mean seconds of a step in each turn; None: not measured.

    Returns:
        The verdicts. The list is empty if fewer than MIN_NODES (4) nodes are measured.
    """
    # A stall raises the mean of a turn's steps and hardly the median: the mean divided by the median is 1.2, say.
    ratios_by_host = _mean_over_median(median_steps, mean_steps)
    if len(ratios_by_host) < MIN_NODES:
        return []
    count_by_host = {host: _count_stalls(ratios) for host, ratios in ratios_by_host.items()}
    stalling_hosts = _hosts_with_more_stalls_than_by_chance(count_by_host)
    # Stalls make the steps of a node with 0.05 take 5 % longer than stalls make those of a usual node.
    lost_time_by_host = _lost_time_by_host(ratios_by_host)

    verdicts = []
    for host, lost_time in lost_time_by_host.items():
        is_noticeable = lost_time > smallest_difference()  # the share by which hosts of one kind differ anyway
        loses_time_by_stalls = host in stalling_hosts and is_noticeable
        slowness = Slowness(lost_time, interval_95=None, is_slow=loses_time_by_stalls)
        count = count_by_host[host]
        suffix = f"; {count.stalled_turns} of {count.turns} turns have a stall"
        verdicts.append(judge_slowness(host, "stalls", slowness, suffix=suffix))
    return verdicts


def _lost_time_by_host(ratios_by_host: Mapping[str, Array]) -> dict[str, float]:
    """Return by what share each node's steps take longer by stalls than is usual: 0.05 is 5 %.

    Args:
        ratios_by_host: For each node the mean over the median of its steps' times in each turn. A stall raises it.
    """
    mean_ratio_by_host = {host: float(ratios.mean()) for host, ratios in ratios_by_host.items()}
    usual_ratio = statistics.median(mean_ratio_by_host.values())
    return {host: mean_ratio / usual_ratio - 1 for host, mean_ratio in mean_ratio_by_host.items()}


def _mean_over_median(median_steps: Series, mean_steps: Series) -> dict[str, Array]:
    """Return mean / median of each turn, by node; a node without a measurement is left out."""
    ratios_by_host: dict[str, Array] = {}
    for host, medians_of_host in median_steps.items():
        means_of_host = mean_steps[host]
        if medians_of_host and means_of_host:
            ratios_by_host[host] = np.array(means_of_host) / np.array(medians_of_host)
    return ratios_by_host


def _count_stalls(mean_over_median: Array) -> StallCount:
    """Return in how many turns a training step stalled, that is took far longer than the others.

    Args:
        mean_over_median: For each turn the mean over the median of its steps' times. A stall raises the mean and hardly
            changes the median, so more than STALLED_MEAN_OVER_MEDIAN (1.1) shows one.
    """
    stalled = mean_over_median > STALLED_MEAN_OVER_MEDIAN
    return StallCount(stalled_turns=int(stalled.sum()), turns=len(mean_over_median))


def _hosts_with_more_stalls_than_by_chance(count_by_host: Mapping[str, StallCount]) -> set[str]:
    """Return the hosts that have more stalled turns than chance explains.

    The chance that any host of a healthy fleet has so many of the fleet's stalls must be at most OTHERS_ALPHA.

    Args:
        count_by_host: For each host the number of its turns, and of those in which a training step took far longer than
            the others.
    """
    of_fleet = StallCount(
        stalled_turns=sum(count.stalled_turns for count in count_by_host.values()),
        turns=sum(count.turns for count in count_by_host.values()),
    )
    hosts = set()
    for host, count in count_by_host.items():
        # Bonferroni's bound: the chance that any of n hosts has so many is at most n times the chance of one host.
        chance_for_any_host = _chance_of_stalls(count, of_fleet) * len(count_by_host)
        if chance_for_any_host <= OTHERS_ALPHA:
            hosts.add(host)
    return hosts


def _chance_of_stalls(of_host: StallCount, of_fleet: StallCount) -> float:
    """Return the chance that a host gets at least so many of the fleet's stalls if all turns are equally likely.

    This is Fisher's exact test: it counts in exact integers the ways to distribute the stalls over the turns.

    Args:
        of_host: How many turns the host has, and how many of them have a stall.
        of_fleet: Turns and stalls of the whole fleet, with that host.
    """
    turns_of_others = of_fleet.turns - of_host.turns
    most_at_host = min(of_host.turns, of_fleet.stalled_turns)
    ways = 0  # to distribute the stalls so that the host has as many as it has, or more
    for at_host in range(of_host.stalled_turns, most_at_host + 1):
        at_others = of_fleet.stalled_turns - at_host
        ways += math.comb(of_host.turns, at_host) * math.comb(turns_of_others, at_others)
    all_ways = math.comb(of_fleet.turns, of_fleet.stalled_turns)
    return ways / all_ways


def judge_nodes(record: Record) -> list[Verdict]:
    """Return the verdicts on the nodes by what each measured by itself: by each metric of the record, and by stalls."""
    hosts = record["hosts"]
    verdicts: list[Verdict] = []
    for metric, title in NODE_METRICS.items():
        if metric not in record["metrics"]:
            continue
        reasons = {hosts[int(index)]: reason for index, reason in record["metrics"][metric]["reasons"].items()}
        verdicts += judge_metric(title, of_hosts(record, metric), alpha=ALPHAS[metric], reasons=reasons)
    return verdicts + judge_stalls(of_hosts(record, STEP), of_hosts(record, STALLS))
