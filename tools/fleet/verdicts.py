"""Which nodes and links of a fleet are slower than the others, by how much, and whether that can be chance.

Every figure is a time, measured in turns that all nodes take at once, and becomes the logarithm of its quotient by
the fleet's median of that turn: what slows all nodes alike goes out. A node's place is its median over the turns.
Who does not belong is found by Rosner's generalized test (Technometrics 25, 1983): the farthest from the median are
set aside one after the other, so that several do not hide each other, and each is held against mean and standard
deviation of those left. Three or five others tell little of how healthy ones differ, so that test is weak where few
are; hence a second way to be named: a minority that takes over twice the time of all others.

Those of all nodes, links and metrics together that are named by chance are one in 1 / ALPHA healthy fleets, where the
nodes of a healthy fleet differ as a normal distribution does.
"""

import itertools
import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from program.arrays import Array
from runlog import stats
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict, judged, worst
from scoring.figure import spread
from scoring.figure.calibration import smallest_difference
from tools.fleet import arithmetic

ALPHA = 0.002  # of all tests of a fleet together
LEAST_NODES = 4  # of three the odd one cannot be told
STEPWISE = 2.0  # the chance of a name over one step's: up to 2.2 at 5 to 16 nodes, 1 at 64 (simulated, normal places)
LEAST_DEVIATION = 1e-9  # of logarithms of times: equal ones have none to divide by
LEAST_T = 3.0  # standard errors that an outlier is away at least, whatever `alpha` would allow
STALLED = 1.1  # mean of a turn's steps over their median: one of eight took nearly twice as long
DOUBTFUL = 0.05  # between the fastest and the slowest step where nobody is named
APART = 2.0  # times as slow as the slowest of the others, beyond errors: no difference between healthy machines
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


def judge_slowness(where: str, metric: str, slower: float, *, named: bool, also: str = "", **figures: Any) -> Verdict:
    """Return the verdict on a node or link: a warning if it is `named` as slow.

    `slower` is the share of more time than the fleet's median: 0.05 is 5 %. `figures` has its `interval_95`, and the
    `value` in the metric's unit where there is one.
    """
    interval = figures["interval_95"]
    within = ""
    if interval:
        within = f" ({interval[0]:.1%} to {interval[1]:.1%})"
    found = f"{slower:.1%}{within} slower than the fleet's median{also}"
    return judged(metric, not named, found, bad=WARNING, where=where, figures=figures | {"slower": slower})


# ---- which of several are slow


def slow(places: Mapping[str, float], *, noise: float, alpha: float) -> list[str]:
    """Return those that are far above the others, by their places on a scale of logarithms.

    `noise` is the error of a place, `alpha` the chance that a healthy fleet has one named. There are two ways to be
    named: as an outlier, and as one of a minority that is more than APART times as slow as all others.
    """
    if len(places) < LEAST_NODES:
        return []
    centre = statistics.median(places.values())
    distances = {name: place - centre for name, place in places.items()}
    named = _outliers(distances, noise=noise, alpha=alpha) | _slow_minority(distances, noise=noise)
    return [name for name in places if name in named]


def _outliers(distances: Mapping[str, float], *, noise: float, alpha: float) -> set[str]:
    """Return the names of those above the centre that Rosner's test sets aside, by their distances from it.

    The farthest from the centre is held against mean and standard deviation of the nearer ones, then the next farthest
    against those nearer still, down to half of all. The last one that differs is set aside with all that are farther.
    `noise` is the least standard deviation that is believed, `alpha` the chance that one of healthy nodes is set aside.
    """
    from_near_to_far = sorted(distances, key=lambda name: abs(distances[name]))
    values = np.array([distances[name] for name in from_near_to_far])
    count = len(values)
    first_outlier = count
    for candidate in range(count - 1, count // 2, -1):
        nearer = values[:candidate]  # all that are nearer to the centre
        deviation = max(float(nearer.std(ddof=1)), noise, LEAST_DEVIATION)
        error_of_difference = deviation * math.sqrt(1 + 1 / candidate)  # of one value and a mean of `candidate`
        t = float(values[candidate] - nearer.mean()) / error_of_difference
        chance_of_any = (1 - stats.t_cdf(t, candidate - 1)) * (candidate + 1)  # of `candidate` + 1 healthy ones
        if t > LEAST_T and chance_of_any <= alpha / STEPWISE:
            first_outlier = candidate
    least_distance = smallest_difference()
    return {name for name in from_near_to_far[first_outlier:] if distances[name] > least_distance}


def _slow_minority(distances: Mapping[str, float], *, noise: float) -> set[str]:
    """Return the largest minority whose fastest takes over APART times as long as the slowest other, errors granted."""
    from_slow_to_fast = sorted(distances, key=lambda name: -distances[name])
    gap = math.log(APART) + 3 * noise
    largest = 0
    for size in range(1, (len(distances) + 1) // 2):
        fastest_inside = from_slow_to_fast[size - 1]
        slowest_outside = from_slow_to_fast[size]
        if distances[fastest_inside] - distances[slowest_outside] > gap:
            largest = size
    return set(from_slow_to_fast[:largest])


# ---- places of nodes and links


def _logs_over_median(series: Series, across: Container[str]) -> dict[str, list[float]]:
    """Return the logarithms of what was measured over the median of its kind and turn.

    Links `across` switch groups are of one kind, all others of another. Who has no measurement is left out.
    """
    measured = {name: np.array(values) for name, values in series.items() if values}
    kinds: dict[bool, list[Array]] = {}
    for name, values in measured.items():
        kinds.setdefault(name in across, []).append(values)
    medians = {kind: np.median(values_of_kind, axis=0) for kind, values_of_kind in kinds.items()}
    return {name: np.log(values / medians[name in across]).tolist() for name, values in measured.items()}


def place_of(logs: Sequence[float]) -> float:
    """Return Hodges and Lehmann's estimate: the median of the means of two turns, which varies less than theirs."""
    pairs = itertools.combinations_with_replacement(logs, 2)
    return statistics.median((first + second) / 2 for first, second in pairs)


def error_of(logs: Sequence[float]) -> float:
    """Return the standard error of a place, by the MAD of the turns."""
    centre = statistics.median(logs)
    mad = statistics.median(abs(value - centre) for value in logs)
    return math.sqrt(math.pi / 3) * 1.4826 * mad / math.sqrt(len(logs))


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
    unknown, or fatal where `reasons` tells of an error. All are unknown where fewer than LEAST_NODES were measured.
    Links in `across` lead from one switch group to another, and are compared with each other alone.
    """
    logs = _logs_over_median(series, across)
    verdicts: dict[str, Verdict] = {}
    if len(logs) >= LEAST_NODES:
        verdicts = _judge_by_place(metric, series, logs, alpha)

    too_few = f"{len(logs)} measured: of fewer than {LEAST_NODES} nobody is told from the others"
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
    metric: str, series: Series, logs_by_name: Mapping[str, Sequence[float]], alpha: float
) -> dict[str, Verdict]:
    """Return the verdict on each node or link that was measured, by name.

    `series` has the measured times, and `logs_by_name` the logarithm of each over the fleet's median of its turn. What
    is estimated from all turns of a node is its place. How much slower it is follows from the distance between its
    place and the median place.
    """
    places = {name: place_of(logs) for name, logs in logs_by_name.items()}
    usual_error = statistics.median(error_of(logs) for logs in logs_by_name.values())
    named = slow(places, noise=usual_error, alpha=alpha)
    median_place = statistics.median(places.values())
    verdicts = {}
    for name, logs in logs_by_name.items():
        verdicts[name] = judge_slowness(
            name,
            metric,
            math.expm1(places[name] - median_place),  # 0.05 is 5 % slower
            named=name in named,
            value=statistics.median(series[name] or ()),
            interval_95=_interval_of_slower(logs, places[name], median_place, nodes=len(logs_by_name)),
        )
    return verdicts


def _interval_of_slower(
    logs: Sequence[float], place: float, median_place: float, *, nodes: int
) -> tuple[float, ...] | None:
    """Return the 95 % interval of how much slower a node is than the fleet: 0.05 is 5 %; None of too few turns.

    It is that of the node's own turns (`logs`), widened because the median of so many nodes has an error too: in
    normal noise its variance is pi / 2 times that of their mean.
    """
    interval = spread.median_interval(logs)
    if interval is None:
        return None
    widened = math.sqrt(1 + math.pi / 2 / nodes)
    return tuple(math.expm1(place + (end - place) * widened - median_place) for end in interval)


# ---- what is judged


class LinkVerdicts(NamedTuple):
    """The verdicts on a fleet's network."""

    by_node: list[Verdict]  # on nodes, by all their links
    by_link: list[Verdict]  # on links


def judge_links(record: Record) -> LinkVerdicts:
    """Return the verdicts on a fleet's network, by latency and by transfer: on nodes, and on links between two nodes.

    First each node is judged by what its links have in common. Then the links are compared with each other, without
    those of a node that was named: that they are slow is the node's fault.
    """
    hosts = record["hosts"]
    links = links_of(record)
    across: set[str] = set()  # names of the links between two switch groups
    hosts_by_link: dict[str, set[str]] = {}
    for name, link in links.items():
        hosts_by_link[name] = {hosts[link["a"]], hosts[link["b"]]}
        if link["across"]:
            across.add(name)

    by_node: list[Verdict] = []
    by_link: list[Verdict] = []
    for metric, title in LINK_METRICS.items():
        series = {name: link[metric] for name, link in links.items()}
        series_by_host = _common_of_links(hosts, hosts_by_link, _logs_over_median(series, across))
        node_verdicts = judge_metric(f"network {title}", series_by_host)
        by_node.extend(node_verdicts)

        slow_nodes = {verdict.where for verdict in node_verdicts if verdict.status == WARNING}
        of_other_nodes = {name: times for name, times in series.items() if hosts_by_link[name].isdisjoint(slow_nodes)}
        by_link.extend(judge_metric(title, of_other_nodes, across=across))
    return LinkVerdicts(by_node, by_link)


def _common_of_links(
    hosts: Sequence[str], hosts_by_link: Mapping[str, set[str]], logs_by_link: Mapping[str, list[float]]
) -> dict[str, list[float] | None]:
    """Return for each host, turn by turn, how many times as long its links take as the fleet's: 1.0 is usual.

    `logs_by_link` has for each link the logarithm of that quotient in each turn. A host's is the median over its links,
    so that one slow link does not speak for its host. None for a host whose links were not measured.
    """
    logs_by_host: dict[str, list[list[float]]] = {host: [] for host in hosts}
    for name, logs in logs_by_link.items():
        for host in hosts_by_link[name]:
            logs_by_host[host].append(logs)

    common: dict[str, list[float] | None] = {}
    for host, logs_of_links in logs_by_host.items():
        if not logs_of_links:
            common[host] = None
            continue
        median_by_turn = np.median(logs_of_links, axis=0)
        common[host] = np.exp(median_by_turn).tolist()
    return common


def judge_stalls(medians: Series, means: Series) -> list[Verdict]:
    """Return a verdict on each node by its stalls; a warning names one that has them more often than the others do.

    A stall is a training step that takes far longer than the others: it raises the mean of a turn's steps and leaves
    the median. `medians` and `means` have both for each turn, by node. A turn has a stall where its mean is over
    STALLED times its median. A node is named if its number of stalls is hardly chance, and if they make its steps
    longer by more than the smallest difference that counts. Fewer than LEAST_NODES nodes give no verdicts.
    """
    mean_over_median: dict[str, Array] = {}  # of each turn
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
        verdicts.append(judge_slowness(host, "stalls", slower, named=is_named, also=also, interval_95=None))
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
    """Judge nodes by what each measured by itself."""
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
        """A warning that nodes may be slow although none is named; empty where their steps take about the same time.

        In a fleet of two speeds, for instance, there is no majority of equal nodes from which the others could be told.
        """
        steps = [verdict for verdict in self.verdicts if verdict.check == NODE_METRICS[STEP]]
        times = {verdict.where: 1 + verdict.figures["slower"] for verdict in steps if "slower" in verdict.figures}
        if not times or any(verdict.status == WARNING for verdict in steps):
            return []
        fastest = min(times, key=lambda host: times[host])
        slowest = max(reversed(times), key=lambda host: times[host])
        difference = times[slowest] / times[fastest] - 1
        if difference <= DOUBTFUL:
            return []
        return [
            f"a step of {slowest} takes {difference:.1%} longer than one of {fastest}, and nobody is told from the "
            "others: too few are alike, or too many are slow; look at the nodes' figures, or compare with a --baseline"
        ]


def _decides(verdict: Verdict) -> bool:
    """Tell whether a verdict counts for the status of its node.

    What could not be measured says nothing against a node, and right arithmetic does not say that it is fast.
    """
    says_nothing_of_speed = verdict.check == arithmetic.CHECK and verdict.status == OK
    return verdict.status != UNKNOWN and not says_nothing_of_speed


def judge_record(record: Record) -> Judged:
    """Return a fleet's record with the verdicts on its nodes and links, and the status of each node.

    A node is as bad as its worst verdict: by its own times, its network, its arithmetic, or the doctor.
    """
    links = judge_links(record)
    verdicts = judge_nodes(record) + links.by_node + arithmetic.judge(record)
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        for failure in node["failed"]:
            verdicts.append(Verdict(check="doctor", where=host, status=FATAL, found=failure))

    statuses = {}
    for host in record["hosts"]:
        deciding = [verdict for verdict in verdicts if verdict.where == host and _decides(verdict)]
        statuses[host] = worst(deciding) if deciding else UNKNOWN
    return Judged(record=record, statuses=statuses, verdicts=verdicts, by_link=links.by_link)
