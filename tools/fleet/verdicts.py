"""Which nodes and links of a fleet are slower than the others, by how much, and whether that can be chance.

Every figure is a time, measured in turns that all nodes take at once. It is divided by the fleet's median of that turn,
so that what slows all nodes alike goes out, and the logarithm of this quotient is its log ratio: 0 is usual, 0.05 is
about 5 % slower. A node's place is the centre of its log ratios over the turns. Who is far above the others by its
place is named as slow (outliers.py).

Those of all nodes, links and metrics together that are named by chance are one in 1 / ALPHA healthy fleets, where the
nodes of a healthy fleet differ as a normal distribution does.
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
from scoring.figure import spread
from scoring.figure.calibration import smallest_difference
from tools.fleet import arithmetic
from tools.fleet.outliers import LEAST_NODES, error_of, place_of, slow

ALPHA = 0.002  # of all tests of a fleet together
STALLED = 1.1  # mean of a turn's steps over their median: one of eight took nearly twice as long
DOUBTFUL = 0.05  # between the fastest and the slowest step where nobody is named
BAD = (WARNING, FATAL)  # statuses that name a node or a link
NOT_POSSIBLE = "not possible here"  # begins a record's reason that is no failure
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
# Half of ALPHA is the step's, which decides what a job takes; the others, and links beside nodes, share the rest.
OTHERS_ALPHA = ALPHA / 2 / (len(NODE_METRICS) + 2 * len(LINK_METRICS))
ALPHAS = dict.fromkeys(NODE_METRICS, OTHERS_ALPHA) | {STEP: ALPHA / 2}

Record = Mapping[str, Any]  # fleet.json
Series = Mapping[str, Sequence[float] | None]  # by node or link: a value a turn; None: not measured


def of_hosts(record: Record, metric: str) -> Series:
    """Return what each node measured of a metric by itself."""
    return dict(zip(record["hosts"], record["metrics"][metric]["series"], strict=True))


def links_of(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the links by their names."""
    hosts = record["hosts"]
    return {f"{hosts[link['a']]} - {hosts[link['b']]}": link for link in record["links"]}


def judge_slowness(
    where: str, metric: str, slower: float, *, is_named: bool, also: str = "", **figures: Any
) -> Verdict:
    """Return the verdict on the node or link `where` by one metric: a warning if it `is_named` as slow, else ok.

    `slower` is the share of more time than the fleet's median: 0.05 is 5 %. `figures` must have its `interval_95`,
    which is None where there is none, and may have the `value` in the metric's unit. They all become figures of the
    verdict, and `also` the end of its text: "5.0% (4.0% to 6.0%) slower than the fleet's median".
    """
    interval = figures["interval_95"]
    within = ""
    if interval:
        within = f" ({percent(interval[0])} to {percent(interval[1])})"
    found = f"{percent(slower)}{within} slower than the fleet's median{also}"
    return judged(metric, not is_named, found, bad=WARNING, where=where, figures=figures | {"slower": slower})


# ---- places of nodes and links


def _log_ratios_to_median(series: Series, across: Container[str]) -> dict[str, list[float]]:
    """Return for each node or link the logarithm of its time over the median time of all, turn by turn.

    0.0 is as fast as the median of that turn. Nodes and links without a measurement are left out, here and of the
    median. Links in `across` lead from one switch group to another: they are compared with each other alone, and the
    other links with each other alone.
    """
    measured = {name: np.array(times) for name, times in series.items() if times}
    times_by_kind: dict[bool, list[Array]] = {}  # by whether a link is in `across`
    for name, times in measured.items():
        times_by_kind.setdefault(name in across, []).append(times)
    medians = {is_across: np.median(times_of_kind, axis=0) for is_across, times_of_kind in times_by_kind.items()}
    return {name: np.log(times / medians[name in across]).tolist() for name, times in measured.items()}


def judge_metric(
    metric: str,
    series: Series,
    *,
    alpha: float = OTHERS_ALPHA,
    across: Container[str] = (),
    reasons: Mapping[str, str] = {},
) -> list[Verdict]:
    """Return a verdict on each node or link by one metric, in the order of `series`.

    `series` has the times of each by turn, None for one that measured nothing. A warning names one that takes more
    time than the others; `alpha` is the chance that a healthy fleet has one named. One that measured nothing is
    unknown, or fatal where `reasons` has an error for its name. All are unknown where fewer than LEAST_NODES were
    measured. Links in `across` lead from one switch group to another, and are compared with each other alone.
    """
    log_ratios = _log_ratios_to_median(series, across)
    verdicts: dict[str, Verdict] = {}
    if len(log_ratios) >= LEAST_NODES:
        verdicts = _judge_by_place(metric, series, log_ratios, alpha)

    too_few = f"{len(log_ratios)} measured: of fewer than {LEAST_NODES} nobody is told from the others"
    for name in series:
        if name not in verdicts:
            verdicts[name] = _judge_not_compared(metric, name, reasons.get(name), too_few)
    return [verdicts[name] for name in series]


def _judge_not_compared(metric: str, name: str, reason: str | None, too_few: str) -> Verdict:
    """Return the verdict on a node or link that cannot be compared.

    `reason` says why it measured nothing: an error is fatal, what is not possible here is unknown. It is None for one
    that was measured as one of `too_few`.
    """
    status = UNKNOWN
    if reason is not None and not reason.startswith(NOT_POSSIBLE):
        status = FATAL
    found = (reason or too_few).removeprefix(f"{NOT_POSSIBLE}: ")
    return Verdict(check=metric, where=name, status=status, found=found)


def _judge_by_place(
    metric: str, series: Series, log_ratios: Mapping[str, Sequence[float]], alpha: float
) -> dict[str, Verdict]:
    """Return the verdict on each node or link that was measured, by name; a warning if it is slow beside the others.

    `series` has the measured times, and `log_ratios` the logarithm of each over the fleet's median of its turn. The
    centre of a node's log ratios is its place. How much slower it is than the fleet follows from the distance between
    its place and the median place. `alpha` is the chance that a healthy fleet has one named.
    """
    places = {name: place_of(of_turns) for name, of_turns in log_ratios.items()}
    usual_error = statistics.median(error_of(of_turns) for of_turns in log_ratios.values())
    slow_ones = slow(places, noise=usual_error, alpha=alpha)
    median_place = statistics.median(places.values())
    verdicts = {}
    for name, of_turns in log_ratios.items():
        slower = math.expm1(places[name] - median_place)  # 0.05 is 5 % slower
        verdicts[name] = judge_slowness(
            name,
            metric,
            slower,
            is_named=name in slow_ones,
            value=statistics.median(series[name] or ()),  # not None: it has log ratios, so it was measured
            interval_95=_interval_of_slower(of_turns, places[name], median_place, nodes=len(log_ratios)),
        )
    return verdicts


def _interval_of_slower(
    log_ratios: Sequence[float], place: float, median_place: float, *, nodes: int
) -> tuple[float, ...] | None:
    """Return the 95 % interval of how much slower a node is than the fleet, (0.04, 0.06) for 4 to 6 %.

    It is that of the node's own `log_ratios`, one a turn, whose centre is its `place`. It is widened because the median
    of so many nodes has an error too: in normal noise its variance is pi / 2 times that of their mean. None where the
    turns are too few for an interval.
    """
    interval = spread.median_interval(log_ratios)
    if interval is None:
        return None
    factor = math.sqrt(1 + math.pi / 2 / nodes)
    widened = [place + (end - place) * factor for end in interval]
    return tuple(math.expm1(end - median_place) for end in widened)


# ---- what is judged


class LinkVerdicts(NamedTuple):
    """The verdicts on a fleet's network."""

    by_node: list[Verdict]  # on nodes, by all their links
    by_link: list[Verdict]  # on links


def judge_links(record: Record) -> LinkVerdicts:
    """Return the verdicts on a fleet's network, by latency and by transfer: on nodes, and on links between two nodes.

    First each node is judged by the median slowness of its links. Then the links are compared with each other, without
    those of a node that was named: that they are slow is the node's fault.
    """
    hosts = record["hosts"]
    links = links_of(record)  # by name
    hosts_by_link = {name: {hosts[link["a"]], hosts[link["b"]]} for name, link in links.items()}
    across = {name for name, link in links.items() if link["across"]}  # from one switch group to another

    by_node: list[Verdict] = []
    by_link: list[Verdict] = []
    for metric, title in LINK_METRICS.items():
        times_by_link = {name: link[metric] for name, link in links.items()}
        log_ratios = _log_ratios_to_median(times_by_link, across)
        slowness_by_host = _median_slowness_of_links(hosts, hosts_by_link, log_ratios)
        # Slowness is no time but a quotient of times, which `judge_metric` compares like times.
        node_verdicts = judge_metric(f"network {title}", slowness_by_host)
        by_node.extend(node_verdicts)

        slow_nodes = {verdict.where for verdict in node_verdicts if verdict.status == WARNING}
        times_of_others = {name: t for name, t in times_by_link.items() if hosts_by_link[name].isdisjoint(slow_nodes)}
        by_link.extend(judge_metric(title, times_of_others, across=across))
    return LinkVerdicts(by_node, by_link)


def _median_slowness_of_links(
    hosts: Sequence[str], hosts_by_link: Mapping[str, set[str]], log_ratios: Mapping[str, list[float]]
) -> dict[str, list[float] | None]:
    """Return for each host, turn by turn, how many times as long its links take as the fleet's: 1.0 is usual.

    `log_ratios` has for each link, by name, the logarithm of that quotient in each turn. A host's is the median over
    its links, so that one slow link does not speak for its host. None for a host whose links were not measured.
    """
    ratios_by_host: dict[str, list[list[float]]] = {host: [] for host in hosts}  # of each of its links
    for name, of_turns in log_ratios.items():
        for host in hosts_by_link[name]:
            ratios_by_host[host].append(of_turns)

    slowness: dict[str, list[float] | None] = {}
    for host, ratios_of_links in ratios_by_host.items():
        if not ratios_of_links:
            slowness[host] = None
            continue
        median_by_turn = np.median(ratios_of_links, axis=0)
        slowness[host] = np.exp(median_by_turn).tolist()
    return slowness


def judge_stalls(medians: Series, means: Series) -> list[Verdict]:
    """Return a verdict on each node by its stalls; a warning names one that has them more often than the others do.

    A stall is a training step that takes far longer than the others: it raises the mean of a turn's steps and leaves
    the median. `medians` and `means` have both for each turn, by node. A turn has a stall where its mean is over
    STALLED times its median. A node is named if so many turns with a stall are hardly chance, and if they make its
    steps longer by more than the smallest difference that counts. Nodes without measured steps get no verdict; nor does
    any node where fewer than LEAST_NODES were measured.
    """
    mean_over_median: dict[str, Array] = {}  # by node: of each turn
    for host, medians_of_host in medians.items():
        means_of_host = means[host]
        if medians_of_host and means_of_host:
            mean_over_median[host] = np.array(means_of_host) / np.array(medians_of_host)
    nodes = len(mean_over_median)
    if nodes < LEAST_NODES:
        return []

    stalls = {host: int((of_turns > STALLED).sum()) for host, of_turns in mean_over_median.items()}
    all_stalls = sum(stalls.values())
    all_turns = sum(len(of_turns) for of_turns in mean_over_median.values())
    usual = statistics.median(float(of_turns.mean()) for of_turns in mean_over_median.values())
    verdicts = []
    for host, of_turns in mean_over_median.items():
        turns = len(of_turns)
        chance = _chance_of_stalls(stalls[host], turns=turns, all_stalls=all_stalls, all_turns=all_turns)
        chance_of_any_node = chance * nodes  # at most: as many nodes are tested
        slower = float(of_turns.mean()) / usual - 1
        is_named = chance_of_any_node <= OTHERS_ALPHA and slower > smallest_difference()
        also = f"; {stalls[host]} of {turns} turns have a stall"
        verdicts.append(judge_slowness(host, "stalls", slower, is_named=is_named, also=also, interval_95=None))
    return verdicts


def _chance_of_stalls(stalls: int, *, turns: int, all_stalls: int, all_turns: int) -> float:
    """Return the chance that at least so many of all stalls fall to a node's turns, where all turns are alike.

    This is Fisher's exact test: it counts the ways to choose the turns with a stall, in whole numbers, however large.
    """
    turns_of_others = all_turns - turns
    ways = 0
    for at_node in range(stalls, min(turns, all_stalls) + 1):
        ways += math.comb(turns, at_node) * math.comb(turns_of_others, all_stalls - at_node)
    return ways / math.comb(all_turns, all_stalls)


def judge_nodes(record: Record) -> list[Verdict]:
    """Return the verdicts on the nodes by what each measured by itself: on each by each metric, and by its stalls."""
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
    verdicts: list[Verdict]  # on nodes
    by_link: list[Verdict]

    @property
    def bad(self) -> list[Verdict]:
        """The verdicts that name a node or a link."""
        return [verdict for verdict in (*self.verdicts, *self.by_link) if verdict.status in BAD]

    @property
    def good(self) -> list[str]:
        """Nodes to run on: those that are not known to be slow or to fail."""
        return [host for host, status in self.statuses.items() if status not in BAD]

    @property
    def left_out(self) -> list[str]:
        """Nodes that are known to be slow or to fail."""
        return [host for host, status in self.statuses.items() if status in BAD]

    @property
    def doubts(self) -> list[str]:
        """A warning that nodes may be slow although none is named, by the times of a training step alone.

        In a fleet of two speeds, for instance, there is no majority of equal nodes from which the others could be told.
        The list has one text at most. It is empty where a node is named by its steps, where none was measured, and
        where the slowest step takes at most DOUBTFUL longer than the fastest.
        """
        of_steps = [verdict for verdict in self.verdicts if verdict.check == NODE_METRICS[STEP]]
        is_one_named = any(verdict.status == WARNING for verdict in of_steps)
        times = {verdict.where: 1 + verdict.figures["slower"] for verdict in of_steps if "slower" in verdict.figures}
        if is_one_named or not times:
            return []
        fastest = min(times, key=lambda host: times[host])
        slowest = max(reversed(times), key=lambda host: times[host])  # of equal ones the last, so not the fastest
        difference = times[slowest] / times[fastest] - 1
        if difference <= DOUBTFUL:
            return []
        return [
            f"a step of {slowest} takes {percent(difference)} longer than one of {fastest}, and nobody is told from "
            "the others: too few are alike, or too many are slow; look at the nodes' figures, or compare with a "
            "--baseline"
        ]


def _counts_for_status(verdict: Verdict) -> bool:
    """Tell whether a verdict counts for the status of its node.

    What could not be measured says nothing against a node, and right arithmetic does not say that it is fast.
    """
    says_nothing_of_speed = verdict.check == arithmetic.CHECK and verdict.status == OK
    return verdict.status != UNKNOWN and not says_nothing_of_speed


def judge_record(record: Record) -> Judged:
    """Return a fleet's record with the verdicts on its nodes and links, and the status of each node.

    A node is as bad as its worst verdict: by its own times, its network, its arithmetic, or the doctor's check of it
    (tools/doctor). It is unknown where no verdict says anything about it.
    """
    links = judge_links(record)
    verdicts = judge_nodes(record) + links.by_node + arithmetic.judge(record)
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        for failure in node["failed"]:
            verdicts.append(Verdict(check="doctor", where=host, status=FATAL, found=failure))

    statuses = {}
    for host in record["hosts"]:
        counting = [verdict for verdict in verdicts if verdict.where == host and _counts_for_status(verdict)]
        statuses[host] = worst(counting) if counting else UNKNOWN
    return Judged(record=record, statuses=statuses, verdicts=verdicts, by_link=links.by_link)
