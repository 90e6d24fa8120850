"""Which nodes and links of a fleet are slower than the others, by how much, and whether that can be chance.

All figures are times. All nodes take a measurement at the same time, again and again: each such repetition is a turn.
Each time is divided by the fleet's median of its turn, so that what slows all nodes alike cancels. The logarithm of
this quotient is the log ratio: 0 is usual, 0.05 is about 5 % slower. A node is compared with the others by the centre
of its log ratios over the turns, and outliers.py finds the slow ones.

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
from tools.fleet.outliers import LEAST_NODES, centre_of, error_of_centre, find_slow

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
# Of one metric, by the name of a node or link: its time in each turn, in the order of the turns; None: not measured.
Series = Mapping[str, Sequence[float] | None]


def of_hosts(record: Record, metric: str) -> Series:
    """Return what each node measured of a metric by itself, by the node's name."""
    return dict(zip(record["hosts"], record["metrics"][metric]["series"], strict=True))


def links_of(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the links of a record by name: {"node0 - node1": the record's entry for the link}."""
    hosts = record["hosts"]
    return {f"{hosts[link['a']]} - {hosts[link['b']]}": link for link in record["links"]}


def judge_slowness(
    where: str,
    metric: str,
    slower: float,
    *,
    is_slow: bool,
    interval_95: tuple[float, ...] | None,
    value: float | None = None,
    also: str = "",
) -> Verdict:
    """Return the verdict on the node or link `where` by one metric: a warning if it `is_slow`, else ok.

    `slower` is its extra time over the fleet's median: 0.05 is 5 % slower. `interval_95` is the 95 % interval of
    `slower`; None if there is none. `value` is the median in the metric's unit; None leaves it out of the figures.

    The text is "5.0% (4.0% to 6.0%) slower than the fleet's median", followed by `also`.
    """
    interval_text = ""
    if interval_95:
        interval_text = f" ({percent(interval_95[0])} to {percent(interval_95[1])})"
    found = f"{percent(slower)}{interval_text} slower than the fleet's median{also}"
    figures: dict[str, Any] = {}
    if value is not None:
        figures["value"] = value
    figures["interval_95"] = interval_95
    figures["slower"] = slower
    return judged(metric, not is_slow, found, bad=WARNING, where=where, figures=figures)


# ---- log ratios of nodes and links


def _log_ratios_to_median(series: Series, across_links: Container[str]) -> dict[str, list[float]]:
    """Return for each measured node or link, in each turn, the logarithm of its time over the median time of that turn.

    Entry i of each list is turn i, which all nodes take at the same time. 0.0 is as fast as the median, and 0.05 is
    about 5 % slower. Nodes and links without a measurement are left out.

    The links of `across_links` lead from one switch group to another. They are compared with the median of such links
    only, because they are usually slower than the links inside a group.
    """
    inside: dict[str, Array] = {}  # times by turn, of each node, or of each link inside a switch group
    across: dict[str, Array] = {}
    for name, times in series.items():
        if not times:
            continue
        if name in across_links:
            across[name] = np.array(times)
        else:
            inside[name] = np.array(times)
    log_ratios = _log_ratios_among(inside) | _log_ratios_among(across)
    return {name: log_ratios[name] for name in series if name in log_ratios}  # in the order of `series`


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
    """Return a verdict on each node or link by one metric, in the order of `series`.

    `series` has for each name its time in each turn, or None if it measured nothing.

    - At least LEAST_NODES names were measured: a measured name has a warning if it is slow compared with the others,
      else it is ok.
    - Fewer were measured: all measured ones are unknown, because they do not show which time is usual.
    - A name that measured nothing: fatal if `reasons` has an error for it, else unknown.

    `alpha` is the chance of a false alarm in a healthy fleet. The links of `across_links` lead from one switch group to
    another, and have a median of their own.
    """
    log_ratios_by_name = _log_ratios_to_median(series, across_links)
    if len(log_ratios_by_name) >= LEAST_NODES:
        verdicts = _judge_measured(metric, series, log_ratios_by_name, alpha)
    else:
        verdicts = _leave_undecided(metric, log_ratios_by_name)
    for name in series:
        if name not in log_ratios_by_name:
            verdicts[name] = _judge_unmeasured(metric, name, reasons.get(name))
    return [verdicts[name] for name in series]


def _leave_undecided(metric: str, names: Collection[str]) -> dict[str, Verdict]:
    """Return the verdict "unknown" on each of `names`, the measured nodes or links, which are too few to compare."""
    found = f"{len(names)} measured: of fewer than {LEAST_NODES} nobody is told from the others"
    return {name: Verdict(check=metric, where=name, status=UNKNOWN, found=found) for name in names}


def _judge_unmeasured(metric: str, name: str, reason: str | None) -> Verdict:
    """Return the verdict on a node or link that measured nothing.

    `reason` is the record's reason:

    - None: unknown, with the text "not measured".
    - "not possible here: no DATADIR": unknown, with the text "no DATADIR".
    - An error's message: fatal, with this message.
    """
    if reason is None:
        return Verdict(check=metric, where=name, status=UNKNOWN, found=NOT_MEASURED)
    if reason.startswith(NOT_POSSIBLE):
        return Verdict(check=metric, where=name, status=UNKNOWN, found=reason.removeprefix(f"{NOT_POSSIBLE}: "))
    return Verdict(check=metric, where=name, status=FATAL, found=reason)


def _judge_measured(
    metric: str, series: Series, log_ratios_by_name: Mapping[str, Sequence[float]], alpha: float
) -> dict[str, Verdict]:
    """Return the verdict on each measured node or link by name: a warning if it is slow compared with the others.

    `series` has the measured times. `log_ratios_by_name` has for each of them the logarithm of that time over the
    fleet's median of the same turn. `alpha` is the chance of a false alarm in a healthy fleet.

    Each name is summed up by the centre of its log ratios over the turns, and the centres are compared. A name is
    slower than the fleet by the distance of its centre from the median of all centres.
    """
    centres = {name: centre_of(log_ratios) for name, log_ratios in log_ratios_by_name.items()}
    usual_error = statistics.median(error_of_centre(log_ratios) for log_ratios in log_ratios_by_name.values())
    slow_names = find_slow(centres, noise=usual_error, alpha=alpha)
    usual_centre = statistics.median(centres.values())
    verdicts = {}
    for name, log_ratios in log_ratios_by_name.items():
        times = series[name]
        assert times is not None  # a name with log ratios was measured
        interval = _interval_of_centre(log_ratios, centres[name], nodes=len(log_ratios_by_name))
        interval_95 = None
        if interval is not None:
            interval_95 = tuple(_extra_time(end, usual_centre) for end in interval)
        verdicts[name] = judge_slowness(
            name,
            metric,
            slower=_extra_time(centres[name], usual_centre),
            is_slow=name in slow_names,
            value=statistics.median(times),
            interval_95=interval_95,
        )
    return verdicts


def _extra_time(log_time: float, usual_log_time: float) -> float:
    """Return by which share a time exceeds the usual one, from the logarithms of both: 0.05 is 5 % slower."""
    return math.expm1(log_time - usual_log_time)


def _interval_of_centre(log_ratios: Sequence[float], centre: float, *, nodes: int) -> tuple[float, float] | None:
    """Return the 95 % interval of the centre of a node's log ratios, for comparing it with the usual centre of a fleet.

    `log_ratios` has one value for each turn: the logarithm of the node's time over the fleet's median time. `nodes` is
    the number of nodes. None if there are too few turns for an interval.

    Both ends of the interval of the node's own values are moved away from `centre`, because the usual centre has an
    error, too.
    """
    interval = medians.median_interval(log_ratios)
    if interval is None:
        return None
    low, high = interval
    widening = _widening_by_error_of_median(nodes)
    return centre + (low - centre) * widening, centre + (high - centre) * widening


def _widening_by_error_of_median(nodes: int) -> float:
    """Return sqrt(1 + pi / (2 n)): how much less certain a node's distance from the median of n nodes is than its time.

    In normal noise the variance of the median of n nodes is pi / (2 n) of the variance of one node. The variance of the
    distance is the sum of the two variances, and its error is the square root.
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


def _judge_links_by(metric: str, record: Record) -> NetworkVerdicts:
    """Return the verdicts on a fleet's nodes and links by one of LINK_METRICS.

    Each node is judged first, by the median slowness of its links. Then the links are compared with each other. Links
    of a slow node are left out there, because the node is to blame for them. Links from one switch group to another
    have a median of their own, because they are usually slower than links inside a group.
    """
    hosts = record["hosts"]
    links = links_of(record)  # by name
    hosts_by_link = {name: {hosts[link["a"]], hosts[link["b"]]} for name, link in links.items()}
    across_links = {name for name, link in links.items() if link["across"]}  # from one switch group to another
    times_by_link = {name: link[metric] for name, link in links.items()}

    log_ratios_by_link = _log_ratios_to_median(times_by_link, across_links)
    # The slowness of a node is no time, but a time over the usual one. The comparison with a median is the same.
    slowness_by_host = _median_slowness_of_links(hosts, hosts_by_link, log_ratios_by_link)
    title = LINK_METRICS[metric]
    on_nodes = judge_metric(f"network {title}", slowness_by_host)

    slow_hosts = {verdict.where for verdict in on_nodes if verdict.status == WARNING}
    times_between_others: dict[str, list[float]] = {}  # of the links between two nodes that are not slow
    for name, times in times_by_link.items():
        if hosts_by_link[name].isdisjoint(slow_hosts):
            times_between_others[name] = times
    on_links = judge_metric(title, times_between_others, across_links=across_links)
    return NetworkVerdicts(on_nodes, on_links)


def _median_slowness_of_links(
    hosts: Sequence[str], hosts_by_link: Mapping[str, set[str]], log_ratios_by_link: Mapping[str, list[float]]
) -> dict[str, list[float] | None]:
    """Return the slowness of each host's links in each turn: 1.0 is usual, 2.0 takes twice the usual time.

    `log_ratios_by_link` has for each link and turn the logarithm of its time over the median time of links. The result
    is the median over all links of the host, so that a single slow link does not count against it. None for a host
    whose links were not measured.
    """
    log_ratios_by_host: dict[str, list[list[float]]] = {host: [] for host in hosts}  # a list for each of its links
    for name, log_ratios in log_ratios_by_link.items():
        for host in hosts_by_link[name]:
            log_ratios_by_host[host].append(log_ratios)

    slowness: dict[str, list[float] | None] = {}
    for host, log_ratios_of_links in log_ratios_by_host.items():
        if not log_ratios_of_links:
            slowness[host] = None
            continue
        # The median over the host's links, so that a single slow link does not count against the host.
        median_by_turn = np.median(log_ratios_of_links, axis=0)
        slowness[host] = np.exp(median_by_turn).tolist()
    return slowness


class StallCount(NamedTuple):
    """In how many of some turns a training step stalled: it took far longer than the other steps of its turn."""

    stalled_turns: int
    turns: int


def judge_stalls(medians: Series, means: Series) -> list[Verdict]:
    """Return a verdict on each node by its stalls, which are training steps that take far longer than the others.

    A node takes several steps in each turn. `medians` has for each node the median time of these steps in each turn,
    and `means` has their mean time. A node without these times is left out.

    A node has a warning if both of these hold, else it is ok:

    - It has more turns with a stall than chance explains.
    - It loses noticeable time by them: its mean over its median is greater than is usual in the fleet.

    The list is empty if fewer than LEAST_NODES nodes have these times.
    """
    ratios_by_host = _mean_over_median(medians, means)
    if len(ratios_by_host) < LEAST_NODES:
        return []

    usual_ratio = statistics.median(float(ratios.mean()) for ratios in ratios_by_host.values())
    count_by_host = {host: _count_stalls(ratios) for host, ratios in ratios_by_host.items()}
    count_of_fleet = StallCount(
        stalled_turns=sum(count.stalled_turns for count in count_by_host.values()),
        turns=sum(count.turns for count in count_by_host.values()),
    )
    verdicts = []
    for host, count in count_by_host.items():
        # Each node is tested. The chance that any healthy node has so many is at most the sum over the nodes.
        chance_for_any_node = _chance_of_stalls(count, count_of_fleet) * len(count_by_host)
        is_more_than_chance = chance_for_any_node <= OTHERS_ALPHA
        lost_time = float(ratios_by_host[host].mean()) / usual_ratio - 1  # 0.05: 5 % more than is usual
        is_noticeable = lost_time > smallest_difference()
        also = f"; {count.stalled_turns} of {count.turns} turns have a stall"
        is_slow = is_more_than_chance and is_noticeable
        verdicts.append(judge_slowness(host, "stalls", lost_time, is_slow=is_slow, also=also, interval_95=None))
    return verdicts


def _count_stalls(mean_over_median: Array) -> StallCount:
    """Return in how many turns a step stalled, by the mean over the median of the steps of each turn.

    A stall raises the mean and hardly changes the median, so a large ratio shows it.
    """
    stalled = mean_over_median > STALLED_MEAN_OVER_MEDIAN
    return StallCount(stalled_turns=int(stalled.sum()), turns=len(mean_over_median))


def _mean_over_median(medians: Series, means: Series) -> dict[str, Array]:
    """Return mean / median of each turn, by node; a node without a measurement is left out."""
    ratios_by_host: dict[str, Array] = {}
    for host, medians_of_host in medians.items():
        means_of_host = means[host]
        if medians_of_host and means_of_host:
            ratios_by_host[host] = np.array(means_of_host) / np.array(medians_of_host)
    return ratios_by_host


def _chance_of_stalls(of_node: StallCount, of_fleet: StallCount) -> float:
    """Return the chance that a node gets at least so many of the fleet's stalls if all turns are equally likely.

    This is Fisher's exact test: it counts in exact integers the ways to distribute the stalls over the turns.
    """
    turns_of_others = of_fleet.turns - of_node.turns
    ways = 0
    for at_node in range(of_node.stalled_turns, min(of_node.turns, of_fleet.stalled_turns) + 1):
        ways += math.comb(of_node.turns, at_node) * math.comb(turns_of_others, of_fleet.stalled_turns - at_node)
    return ways / math.comb(of_fleet.turns, of_fleet.stalled_turns)


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
