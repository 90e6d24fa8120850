"""Which nodes and links of a fleet are slower than the others, by how much, and whether that can be chance.

Every figure is a time, measured in turns that all nodes take at once, and becomes the logarithm of its quotient by
the fleet's median of that turn: what slows all nodes alike goes out. A node's place is its median over the turns.
Who does not belong is found by Rosner's generalized test (Technometrics 25, 1983): the farthest from the median are
set aside one after the other, so that several do not hide each other, and each is held against mean and standard
deviation of those left. A table in docs/scale.md has why it is not the MAD that gives the scale. Three or five others
tell little of how healthy ones differ, so that test is weak where few are; hence a second way to be named: a minority
that takes over twice the time of all others.

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


def compared(where: str, metric: str, slower: float, *, named: bool, also: str = "", **figures: Any) -> Verdict:
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
    """Return those above the centre that Rosner's test sets aside; `distances` are from the centre.

    The farthest from the centre is held against mean and standard deviation of the nearer ones, then the next farthest
    against those nearer still, down to half of all. The last one that differs is set aside with all that are farther.
    """
    from_near_to_far = sorted(distances, key=lambda name: abs(distances[name]))
    values = np.array([distances[name] for name in from_near_to_far])
    count = len(values)
    first_outlier = count
    for candidate in range(count - 1, count // 2, -1):
        nearer = values[:candidate]
        deviation = max(float(nearer.std(ddof=1)), noise, 1e-9)
        t = float(values[candidate] - nearer.mean()) / (deviation * math.sqrt(1 + 1 / candidate))
        chance = (1 - stats.t_cdf(t, candidate - 1)) * (candidate + 1)
        if t > 3 and chance <= alpha / STEPWISE:
            first_outlier = candidate
    least = smallest_difference()
    return {name for name in from_near_to_far[first_outlier:] if distances[name] > least}


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


def _relative(series: Series, across: Container[str]) -> dict[str, list[float]]:
    """Return the logarithms of what was measured over the median of its kind and turn.

    Links `across` switch groups are of one kind, all others of another. Who has no measurement is left out.
    """
    measured = {name: np.array(values) for name, values in series.items() if values}
    kinds: dict[bool, list[Array]] = {}
    for name, values in measured.items():
        kinds.setdefault(name in across, []).append(values)
    medians = {kind: np.median(values_of_kind, axis=0) for kind, values_of_kind in kinds.items()}
    return {name: np.log(values / medians[name in across]).tolist() for name, values in measured.items()}


def _place(logs: Sequence[float]) -> float:
    """Return Hodges and Lehmann's estimate: the median of the means of two turns, which varies less than theirs."""
    pairs = itertools.combinations_with_replacement(logs, 2)
    return statistics.median((first + second) / 2 for first, second in pairs)


def _error(logs: Sequence[float]) -> float:
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

    `reasons` say why a node measured nothing. Links `across` switch groups are compared with each other.
    """
    relative = _relative(series, across)
    verdicts: dict[str, Verdict] = {}
    if len(relative) >= LEAST_NODES:
        verdicts = _verdicts_by_place(metric, series, relative, alpha)

    too_few = f"{len(relative)} measured: of fewer than {LEAST_NODES} nobody is told from the others"
    for name in series.keys() - verdicts.keys():
        reason = reasons.get(name, too_few)
        is_failure = name in reasons and not reason.startswith(NOT_POSSIBLE)
        verdicts[name] = Verdict(
            check=metric,
            where=name,
            status=FATAL if is_failure else UNKNOWN,
            found=reason.removeprefix(f"{NOT_POSSIBLE}: "),
        )
    return [verdicts[name] for name in series]


def _verdicts_by_place(
    metric: str, series: Series, relative: Mapping[str, Sequence[float]], alpha: float
) -> dict[str, Verdict]:
    """Judge those that were measured by where they stand among the others."""
    places = {name: _place(logs) for name, logs in relative.items()}
    noise = statistics.median(_error(logs) for logs in relative.values())
    named = slow(places, noise=noise, alpha=alpha)
    centre = statistics.median(places.values())
    widened = math.sqrt(1 + math.pi / 2 / len(relative))  # the fleet's median has an error too
    verdicts = {}
    for name, logs in relative.items():
        place = places[name]
        interval = spread.median_interval(logs)
        interval_95 = None
        if interval is not None:
            interval_95 = tuple(math.expm1(place + (end - place) * widened - centre) for end in interval)
        verdicts[name] = compared(
            name,
            metric,
            math.expm1(place - centre),
            named=name in named,
            value=statistics.median(series[name] or ()),
            interval_95=interval_95,
        )
    return verdicts


# ---- what is judged


class LinkVerdicts(NamedTuple):
    """The verdicts on a fleet's network."""

    by_node: list[Verdict]  # on nodes, by all their links
    by_link: list[Verdict]  # on links


def judge_links(record: Record) -> LinkVerdicts:
    """Judge nodes by all their links, and the links between the other nodes: a slow node's links are not at fault."""
    judged_links = LinkVerdicts([], [])
    hosts = record["hosts"]
    links = links_of(record)
    ends = {name: {hosts[link["a"]], hosts[link["b"]]} for name, link in links.items()}
    across = {name for name, link in links.items() if link["across"]}
    for metric, title in LINK_METRICS.items():
        series = {name: link[metric] for name, link in links.items()}
        nodes = judge_metric(f"network {title}", _common_of_links(hosts, ends, _relative(series, across)))
        judged_links.by_node.extend(nodes)

        slow_nodes = {verdict.where for verdict in nodes if verdict.status == WARNING}
        others = {name: values for name, values in series.items() if not slow_nodes & ends[name]}
        judged_links.by_link.extend(judge_metric(title, others, across=across))
    return judged_links


def _common_of_links(
    hosts: Sequence[str], ends: Mapping[str, set[str]], relative: Mapping[str, list[float]]
) -> dict[str, list[float] | None]:
    """Return what a node's links have in common: the median over them, turn by turn, as a quotient by the fleet's."""
    of_node: dict[str, list[list[float]]] = {host: [] for host in hosts}
    for name, logs in relative.items():
        for host in ends[name]:
            of_node[host].append(logs)
    common: dict[str, list[float] | None] = {}
    for host, logs_of_links in of_node.items():
        common[host] = np.exp(np.median(logs_of_links, axis=0)).tolist() if logs_of_links else None
    return common


def judge_stalls(medians: Series, means: Series) -> list[Verdict]:
    """Judge whether a node's turns have stalls more often than the others' do, and what they cost.

    A turn has a stall where the mean of its steps is over STALLED times their median. By Fisher's exact test: the
    chance that so many of all stalls fall to this node's turns.
    """
    quotients: dict[str, Array] = {}  # of each turn: mean over median
    for host, of_steps in medians.items():
        if of_steps and means[host]:
            quotients[host] = np.array(means[host]) / np.array(of_steps)
    if len(quotients) < LEAST_NODES:
        return []

    stalled = {host: int((turns > STALLED).sum()) for host, turns in quotients.items()}
    all_stalled = sum(stalled.values())
    all_turns = sum(len(turns) for turns in quotients.values())
    usual = statistics.median(float(turns.mean()) for turns in quotients.values())
    verdicts = []
    for host, turns in quotients.items():
        others = all_turns - len(turns)
        most = min(len(turns), all_stalled)
        ways = 0  # whole numbers, however large
        for number in range(stalled[host], most + 1):
            ways += math.comb(len(turns), number) * math.comb(others, all_stalled - number)
        chance = ways / math.comb(all_turns, all_stalled)
        slower = float(turns.mean()) / usual - 1
        named = chance * len(quotients) <= OTHERS_ALPHA and slower > smallest_difference()
        also = f"; {stalled[host]} of {len(turns)} turns have a stall"
        verdicts.append(compared(host, "stalls", slower, named=named, also=also, interval_95=None))
    return verdicts


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
        """The warning that nodes may be slow though none is named: in a fleet of two speeds no majority is equal."""
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
    """Judge each node and each link of a fleet's record."""
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


# ---- since a baseline


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one metric changed since a baseline."""

    metric: str
    nodes: int  # in both
    fleet: float  # median over the nodes: 0.02 is 2 % more time than then
    interval_95: tuple[float, ...] | None
    slower: dict[str, float]  # nodes that lost more than the others did, and how much


def changes(now: Record, then: Record) -> list[Change]:
    """Return how each metric changed on the nodes of both records.

    Each node is compared with itself, so hardware differences cancel.
    """
    found = []
    for metric, title in NODE_METRICS.items():
        if metric not in now["metrics"] or metric not in then["metrics"]:
            continue
        logs_now = _logs(of_hosts(now, metric))
        logs_then = _logs(of_hosts(then, metric))
        in_both = [host for host in logs_now if host in logs_then]
        if not in_both:
            continue
        moved = {host: _place(logs_now[host]) - _place(logs_then[host]) for host in in_both}
        noise = statistics.median(math.hypot(_error(logs_now[host]), _error(logs_then[host])) for host in in_both)
        centre = statistics.median(moved.values())
        interval = spread.median_interval(list(moved.values()))
        named = slow(moved, noise=noise, alpha=ALPHAS[metric])
        found.append(
            Change(
                metric=title,
                nodes=len(moved),
                fleet=math.expm1(centre),
                interval_95=None if interval is None else tuple(math.expm1(end) for end in interval),
                slower={host: math.expm1(moved[host] - centre) for host in named},
            )
        )
    return found


def _logs(series: Series) -> dict[str, list[float]]:
    """Return the logarithms of what was measured; who has no measurement is left out."""
    return {host: np.log(values).tolist() for host, values in series.items() if values}
