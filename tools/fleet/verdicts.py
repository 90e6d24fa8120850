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
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from program.arrays import Array
from runlog.digits import percent
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict, judged, worst
from scoring.figure import medians
from scoring.figure.calibration import smallest_difference
from tools.fleet import arithmetic
from tools.fleet.outliers import LEAST_NODES, centre_of, error_of_centre, find_slow

ALPHA = 0.002  # the chance of a false alarm in a healthy fleet, over all tests together
STALLED_MEAN_OVER_MEDIAN = 1.1  # of a turn's steps, with a stall: one of eight took nearly twice as long
MOST_STEP_DIFFERENCE = 0.05  # of the slowest node's step over the fastest one's, if no node is slow
BAD = (WARNING, FATAL)  # statuses of a node or a link that is slow or fails
NOT_POSSIBLE = "not possible here"  # the beginning of a record's reason that is not a failure
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

    Entry i of each list is turn i, which all nodes take at the same time. 0.0 is as fast as the median. Nodes and links
    without a measurement are left out. The links of `across_links` lead from one switch group to another. They have a
    median of their own, because they are usually slower than links inside a group.
    """
    measured = {name: np.array(times) for name, times in series.items() if times}
    times_by_is_across: dict[bool, list[Array]] = {}
    for name, times in measured.items():
        is_across = name in across_links  # such links are usually slower than links inside a group
        times_by_is_across.setdefault(is_across, []).append(times)
    # The median over the nodes or links, in each turn.
    medians = {is_across: np.median(times_of_kind, axis=0) for is_across, times_of_kind in times_by_is_across.items()}
    return {name: np.log(times / medians[name in across_links]).tolist() for name, times in measured.items()}


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

    - Fewer than LEAST_NODES names were measured: all measured ones are unknown.
    - Otherwise a measured name has a warning if it is slow compared with the others, else it is ok.
    - A name that measured nothing is fatal if `reasons` has an error for it, else unknown.

    `alpha` is the chance of a false alarm in a healthy fleet. The links of `across_links` lead from one switch group to
    another, and have a median of their own.
    """
    log_ratios_by_name = _log_ratios_to_median(series, across_links)
    verdicts: dict[str, Verdict] = {}
    if len(log_ratios_by_name) >= LEAST_NODES:
        verdicts = _judge_measured(metric, series, log_ratios_by_name, alpha)

    too_few = f"{len(log_ratios_by_name)} measured: of fewer than {LEAST_NODES} nobody is told from the others"
    for name in series:
        if name not in verdicts:
            verdicts[name] = _judge_not_compared(metric, name, reasons.get(name), too_few)
    return [verdicts[name] for name in series]


def _judge_not_compared(metric: str, name: str, reason: str | None, too_few: str) -> Verdict:
    """Return the verdict on a node or link that cannot be compared with others: fatal after an error, else unknown.

    `reason` says why it measured nothing. None means that too few were measured, and `too_few` says so.
    """
    is_error = reason is not None and not reason.startswith(NOT_POSSIBLE)
    status = FATAL if is_error else UNKNOWN
    found = (reason or too_few).removeprefix(f"{NOT_POSSIBLE}: ")
    return Verdict(check=metric, where=name, status=status, found=found)


def _judge_measured(
    metric: str, series: Series, log_ratios_by_name: Mapping[str, Sequence[float]], alpha: float
) -> dict[str, Verdict]:
    """Return the verdict on each measured node or link by name: a warning if it is slow compared with the others.

    `series` has the measured times. `log_ratios_by_name` has for each of them the logarithm of that time over the
    fleet's median of the same turn. `alpha` is the chance of a false alarm in a healthy fleet.

    Nodes or links are compared by the centre of their log ratios. The distance of a centre from the median centre says
    how much slower than the fleet the node or link is.
    """
    centres = {name: centre_of(log_ratios) for name, log_ratios in log_ratios_by_name.items()}
    usual_error = statistics.median(error_of_centre(log_ratios) for log_ratios in log_ratios_by_name.values())
    slow_names = find_slow(centres, noise=usual_error, alpha=alpha)
    median_centre = statistics.median(centres.values())
    verdicts = {}
    for name, log_ratios in log_ratios_by_name.items():
        times = series[name]
        assert times is not None  # a name with log ratios was measured
        interval = _interval_of_slower(log_ratios, centres[name], median_centre, nodes=len(log_ratios_by_name))
        verdicts[name] = judge_slowness(
            name,
            metric,
            slower=math.expm1(centres[name] - median_centre),  # 0.05 is 5 % slower
            is_slow=name in slow_names,
            value=statistics.median(times),
            interval_95=interval,
        )
    return verdicts


def _interval_of_slower(
    log_ratios: Sequence[float], centre: float, median_centre: float, *, nodes: int
) -> tuple[float, ...] | None:
    """Return the 95 % interval of how much slower a node is than the fleet: (0.04, 0.06) for 4 to 6 %.

    `log_ratios` has one value for each turn: the logarithm of the node's time over the fleet's median time. `centre` is
    the centre of these values, and `median_centre` is the median of the centres of all nodes; `nodes` is their number.

    The interval of the node's own values is widened, because the fleet's median has an error too. None if there are too
    few turns for an interval.
    """
    interval = medians.median_interval(log_ratios)
    if interval is None:
        return None
    # The interval is widened, because the fleet's median has an error too. In normal noise:
    # variance of the median of n nodes = pi / 2 / n * variance of one node. Variances add up.
    widening = math.sqrt(1 + math.pi / 2 / nodes)
    widened = [centre + (end - centre) * widening for end in interval]
    return tuple(math.expm1(end - median_centre) for end in widened)


# ---- what is judged


class NetworkVerdicts(NamedTuple):
    """The verdicts on a fleet's network."""

    on_nodes: list[Verdict]  # by all links of the node
    on_links: list[Verdict]


def judge_links(record: Record) -> NetworkVerdicts:
    """Return the verdicts on a fleet's network, by latency and by transfer: on nodes, and on links between two nodes.

    Each node is judged first, by the median slowness of its links. Then the links are compared with each other. Links
    of a slow node are left out there, because the node is to blame for them. Links from one switch group to another
    have a median of their own, because they are usually slower than links inside a group.
    """
    hosts = record["hosts"]
    links = links_of(record)  # by name
    hosts_by_link = {name: {hosts[link["a"]], hosts[link["b"]]} for name, link in links.items()}
    across_links = {name for name, link in links.items() if link["across"]}  # from one switch group to another

    on_nodes: list[Verdict] = []
    on_links: list[Verdict] = []
    for metric, title in LINK_METRICS.items():
        times_by_link = {name: link[metric] for name, link in links.items()}
        log_ratios_by_link = _log_ratios_to_median(times_by_link, across_links)
        # `judge_metric` only compares values with their median. So it takes the slowness of a node (time of its links
        # over the median time of links) as well as the times of a link.
        slowness_by_host = _median_slowness_of_links(hosts, hosts_by_link, log_ratios_by_link)
        node_verdicts = judge_metric(f"network {title}", slowness_by_host)
        on_nodes.extend(node_verdicts)

        slow_hosts = {verdict.where for verdict in node_verdicts if verdict.status == WARNING}
        times_of_others: dict[str, list[float]] = {}  # of the links between two nodes that are not slow
        for name, times in times_by_link.items():
            if hosts_by_link[name].isdisjoint(slow_hosts):
                times_of_others[name] = times
        on_links.extend(judge_metric(title, times_of_others, across_links=across_links))
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
    nodes = len(ratios_by_host)
    if nodes < LEAST_NODES:
        return []

    # A stall raises the mean of a turn's steps, and hardly changes their median.
    stalls = {host: int((ratios > STALLED_MEAN_OVER_MEDIAN).sum()) for host, ratios in ratios_by_host.items()}
    all_stalls = sum(stalls.values())
    all_turns = sum(len(ratios) for ratios in ratios_by_host.values())
    usual_ratio = statistics.median(float(ratios.mean()) for ratios in ratios_by_host.values())
    verdicts = []
    for host, ratios in ratios_by_host.items():
        turns = len(ratios)
        chance = _chance_of_stalls(stalls[host], turns=turns, all_stalls=all_stalls, all_turns=all_turns)
        chance_of_any_node = chance * nodes  # an upper bound: each node is tested
        slower = float(ratios.mean()) / usual_ratio - 1  # the time lost by stalls: 0.05 is 5 % more than is usual
        is_slow = chance_of_any_node <= OTHERS_ALPHA and slower > smallest_difference()
        also = f"; {stalls[host]} of {turns} turns have a stall"
        verdicts.append(judge_slowness(host, "stalls", slower, is_slow=is_slow, also=also, interval_95=None))
    return verdicts


def _mean_over_median(medians: Series, means: Series) -> dict[str, Array]:
    """Return mean / median of each turn, by node; a node without a measurement is left out."""
    ratios_by_host: dict[str, Array] = {}
    for host, medians_of_host in medians.items():
        means_of_host = means[host]
        if medians_of_host and means_of_host:
            ratios_by_host[host] = np.array(means_of_host) / np.array(medians_of_host)
    return ratios_by_host


def _chance_of_stalls(stalls: int, *, turns: int, all_stalls: int, all_turns: int) -> float:
    """Return the chance that a node gets at least `stalls` of the fleet's stalls if all turns are equally likely.

    The node has `turns` turns. The fleet has `all_turns` turns, `all_stalls` of which have a stall. This is Fisher's
    exact test: it counts in exact integers the ways to distribute the stalls over the turns.
    """
    # Fisher's exact test: counts in exact integers the ways to distribute the stalls over the turns.
    turns_of_others = all_turns - turns
    ways = 0
    for at_node in range(stalls, min(turns, all_stalls) + 1):
        ways += math.comb(turns, at_node) * math.comb(turns_of_others, all_stalls - at_node)
    return ways / math.comb(all_turns, all_stalls)


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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A record with the verdicts on it."""

    record: Record
    statuses: dict[str, str]  # of each node
    node_verdicts: list[Verdict]
    link_verdicts: list[Verdict]

    @property
    def bad_verdicts(self) -> list[Verdict]:
        """The verdicts that a node or a link is slow or fails."""
        return [verdict for verdict in (*self.node_verdicts, *self.link_verdicts) if verdict.status in BAD]

    @property
    def good_hosts(self) -> list[str]:
        """Nodes to run on: all that are not known to be slow or to fail."""
        return [host for host, status in self.statuses.items() if status not in BAD]

    @property
    def left_out_hosts(self) -> list[str]:
        """Nodes that are known to be slow or to fail."""
        return [host for host, status in self.statuses.items() if status in BAD]

    @property
    def doubts(self) -> list[str]:
        """At most one text: a doubt that nodes may be slow although no node is called slow.

        For example, if half of the fleet is slower, there is no majority to tell which half is the slow one. Only the
        times of training steps count here. The list is empty if:

        - a node is slow by its steps;
        - no steps were measured;
        - the slowest node's step takes at most MOST_STEP_DIFFERENCE longer than the fastest node's.
        """
        step_verdicts = [verdict for verdict in self.node_verdicts if verdict.check == NODE_METRICS[STEP]]
        is_any_slow = any(verdict.status == WARNING for verdict in step_verdicts)
        relative_times: dict[str, float] = {}  # of a step, by node: 1.05 is 5 % above the fleet's median
        for verdict in step_verdicts:
            if "slower" in verdict.figures:
                relative_times[verdict.where] = 1 + verdict.figures["slower"]
        if is_any_slow or not relative_times:  # slow nodes are named already, or no steps were measured
            return []
        fastest = min(relative_times, key=lambda host: relative_times[host])
        slowest = max(reversed(relative_times), key=lambda host: relative_times[host])  # the last of equally slow ones
        difference = relative_times[slowest] / relative_times[fastest] - 1
        if difference <= MOST_STEP_DIFFERENCE:
            return []
        # "nobody is told from the others": no node can be singled out as slow.
        return [
            f"a step of {slowest} takes {percent(difference)} longer than one of {fastest}, and nobody is told from "
            "the others: too few are alike, or too many are slow; look at the nodes' figures, or compare with a "
            "--baseline"
        ]


def _counts_for_status(verdict: Verdict) -> bool:
    """Return whether a verdict counts for the status of its node.

    An unknown verdict does not count: what could not be measured says nothing against a node. The verdict that the
    arithmetic is ok does not count either, because it does not say that the node is fast.
    """
    is_right_arithmetic = verdict.check == arithmetic.CHECK and verdict.status == OK
    return verdict.status != UNKNOWN and not is_right_arithmetic


def judge_record(record: Record) -> Judged:
    """Return a fleet's record with the verdicts on its nodes and links, and the status of each node.

    The status of a node is its worst verdict: by its own times, its network, its arithmetic, or the doctor
    (tools/doctor). It is unknown if no verdict counts for it.
    """
    network = judge_links(record)
    node_verdicts = judge_nodes(record) + network.on_nodes + arithmetic.judge(record)
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        for failure in node["failed"]:
            node_verdicts.append(Verdict(check="doctor", where=host, status=FATAL, found=failure))

    statuses = {}
    for host in record["hosts"]:
        counting = [verdict for verdict in node_verdicts if verdict.where == host and _counts_for_status(verdict)]
        statuses[host] = worst(counting) if counting else UNKNOWN
    return Judged(record=record, statuses=statuses, node_verdicts=node_verdicts, link_verdicts=network.on_links)
