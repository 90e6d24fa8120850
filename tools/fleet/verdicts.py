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
from typing import Any

import numpy as np

from runlog import stats
from runlog.verdict import FATAL, UNKNOWN, WARNING, Verdict, judged, worst
from scoring.figure import spread

ALPHA = 0.002  # of all tests of a fleet together
LEAST_NODES = 4  # of three the odd one cannot be told
STEPWISE = 2.0  # the chance of a name over one step's: up to 2.2 at 5 to 16 nodes, 1 at 64 (simulated, normal places)
STALLED = 1.1  # mean of a turn's steps over their median: one of eight took nearly twice as long
DOUBTFUL = 0.05  # between the fastest and the slowest step where nobody is named
LEAST_SLOWER = 0.01  # a difference below is no reason to leave a node out, certain as it may be
APART = 2.0  # times as slow as the slowest of the others, beyond errors: no difference between healthy machines
BAD = (WARNING, FATAL)  # statuses that name a node or a link
NOT_POSSIBLE = "not possible here"  # begins a record's reason that is no failure
STEP, STALLS = "step_s", "step_mean_s"
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
Taken = Mapping[str, Sequence[float] | None]  # of each node or link: a value a turn; None: not measured


def of_hosts(record: Record, metric: str) -> Taken:
    """What each node measured of a metric alone."""
    return dict(zip(record["hosts"], record["metrics"][metric]["series"], strict=True))


def links_of(record: Record) -> dict[str, Mapping[str, Any]]:
    """The links by their names."""
    hosts = record["hosts"]
    return {f"{hosts[link['a']]} - {hosts[link['b']]}": link for link in record["links"]}


def compared(where: str, metric: str, slower: float, *, named: bool, also: str = "", **figures: Any) -> Verdict:
    """The verdict on a node or link: a warning if it is `named` as slow; `slower` by 0.05 is 5 % more time.

    `figures` has the `interval_95` of it, and the `value` in the metric's unit where there is one.
    """
    between = " ({:.1%} to {:.1%})".format(*figures["interval_95"]) if figures["interval_95"] else ""
    found = f"{slower:.1%}{between} slower than the fleet's median{also}"
    return judged(metric, not named, found, bad=WARNING, where=where, figures=figures | {"slower": slower})


def slow(places: Mapping[str, float], *, noise: float, alpha: float) -> list[str]:
    """Those far above the others, by their places on a scale of logarithms; `noise` is the error of a place."""
    n = len(places)
    if n < LEAST_NODES:
        return []
    centre = statistics.median(places.values())
    off = {key: place - centre for key, place in places.items()}
    order = sorted(off, key=lambda key: abs(off[key]))
    nearest = np.array([off[key] for key in order])
    aside = 0
    for left in range(n - 1, n // 2, -1):
        others = nearest[:left]
        sd = max(float(others.std(ddof=1)), noise, 1e-9)
        t = float(nearest[left] - others.mean()) / (sd * math.sqrt(1 + 1 / left))
        if t > 3 and (1 - stats.t_cdf(t, left - 1)) * (left + 1) <= alpha / STEPWISE:
            aside = n - left
    unlike = {key for key in order[n - aside :] if off[key] > math.log1p(LEAST_SLOWER)}
    # And the largest minority whose fastest takes over APART times the slowest other's time, three errors granted.
    falling, gap = sorted(off, key=lambda key: -off[key]), math.log(APART) + 3 * noise
    minorities = (k for k in range(1, (n + 1) // 2) if off[falling[k - 1]] - off[falling[k]] > gap)
    unlike |= set(falling[: max(minorities, default=0)])
    return [key for key in places if key in unlike]


def _relative(series: Taken, across: Container[str]) -> dict[str, list[float]]:
    """Of each that was measured: logarithms of its values over the median of its kind, `across` or not, and turn."""
    there = {name: np.array(taken) for name, taken in series.items() if taken}
    kinds: dict[bool, list[np.ndarray]] = {}
    for name, taken in there.items():
        kinds.setdefault(name in across, []).append(taken)
    medians = {kind: np.median(of, axis=0) for kind, of in kinds.items()}
    return {name: np.log(taken / medians[name in across]).tolist() for name, taken in there.items()}


def _place(logs: Sequence[float]) -> float:
    """Hodges and Lehmann's estimate: the median of the means of two turns, which varies less than theirs."""
    return statistics.median((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))


def _error(logs: Sequence[float]) -> float:
    """Standard error of a place, by the MAD of the turns."""
    centre = statistics.median(logs)
    mad = statistics.median(abs(value - centre) for value in logs)
    return math.sqrt(math.pi / 3) * 1.4826 * mad / math.sqrt(len(logs))


def judge_metric(
    metric: str,
    series: Taken,
    *,
    alpha: float = OTHERS_ALPHA,
    across: Container[str] = (),
    reasons: Mapping[str, str] = {},
) -> list[Verdict]:
    """Each one's verdict by one metric; links `across` switch groups are of one kind, all others of another."""
    relative, found = _relative(series, across), dict[str, Verdict]()
    if len(relative) >= LEAST_NODES:
        places = {name: _place(logs) for name, logs in relative.items()}
        named = slow(places, noise=statistics.median(map(_error, relative.values())), alpha=alpha)
        centre = statistics.median(places.values())
        widened = math.sqrt(1 + math.pi / 2 / len(relative))  # the fleet's median has an error too
        for name, logs in relative.items():
            place, interval = places[name], spread.median_interval(logs)
            between = interval and tuple(math.expm1(place + (end - place) * widened - centre) for end in interval)
            value, slower = statistics.median(series[name] or ()), math.expm1(place - centre)
            found[name] = compared(name, metric, slower, named=name in named, value=value, interval_95=between)
    few = f"{len(relative)} measured: of fewer than {LEAST_NODES} nobody is told from the others"
    for name in series.keys() - found.keys():
        reason = reasons.get(name, few)
        status = FATAL if name in reasons and not reason.startswith(NOT_POSSIBLE) else UNKNOWN
        reason = reason.removeprefix(f"{NOT_POSSIBLE}: ")
        found[name] = Verdict(check=metric, where=name, status=status, found=reason)
    return [found[name] for name in series]


def judge_links(record: Record) -> tuple[list[Verdict], list[Verdict]]:
    """Verdicts on nodes by all their links, and on the links between the others: a slow node's are not at fault."""
    by_node, by_link = list[Verdict](), list[Verdict]()
    hosts, links = record["hosts"], links_of(record)
    ends = {name: {hosts[link["a"]], hosts[link["b"]]} for name, link in links.items()}
    across = {name for name, link in links.items() if link["across"]}
    for metric, title in LINK_METRICS.items():
        series = {name: link[metric] for name, link in links.items()}
        # What a node's links have in common: the median over them, turn by turn, as a quotient by the fleet's.
        of_node: dict[str, list[list[float]]] = {host: [] for host in hosts}
        for name, logs in _relative(series, across).items():
            for host in ends[name]:
                of_node[host].append(logs)
        common = {host: np.exp(np.median(of, axis=0)).tolist() if of else None for host, of in of_node.items()}
        nodes = judge_metric(f"network {title}", common)
        guilty = {verdict.where for verdict in nodes if verdict.status == WARNING}
        left = {name: taken for name, taken in series.items() if not guilty & ends[name]}
        by_node += nodes
        by_link += judge_metric(title, left, across=across)
    return by_node, by_link


def judge_stalls(medians: Taken, means: Taken) -> list[Verdict]:
    """Whether a node's turns have stalls more often than the others' do, by Fisher's exact test, and what they cost."""
    times = {host: np.array(means[host]) / np.array(taken) for host, taken in medians.items() if taken and means[host]}
    if len(times) < LEAST_NODES:
        return []
    stalled = {host: int((turns > STALLED).sum()) for host, turns in times.items()}
    usual, total = statistics.median(float(turns.mean()) for turns in times.values()), sum(stalled.values())
    everywhere = sum(map(len, times.values()))
    found = []
    for host, turns in times.items():
        ways = sum(
            math.comb(len(turns), k) * math.comb(everywhere - len(turns), total - k)
            for k in range(stalled[host], min(len(turns), total) + 1)
        )
        chance = ways / math.comb(everywhere, total)  # of whole numbers, however large
        slower = float(turns.mean()) / usual - 1
        named = chance * len(times) <= OTHERS_ALPHA and slower > LEAST_SLOWER
        also = f"; {stalled[host]} of {len(turns)} turns have a stall"
        found.append(compared(host, "stalls", slower, named=named, also=also, interval_95=None))
    return found


def judge_nodes(record: Record) -> list[Verdict]:
    """Verdicts on nodes by what each measured alone."""
    found: list[Verdict] = []
    for metric, title in NODE_METRICS.items():
        if metric in record["metrics"]:
            reasons = {record["hosts"][int(i)]: why for i, why in record["metrics"][metric]["reasons"].items()}
            found += judge_metric(title, of_hosts(record, metric), alpha=ALPHAS[metric], reasons=reasons)
    return found + judge_stalls(of_hosts(record, STEP), of_hosts(record, STALLS))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A record with the verdicts on it."""

    record: Record
    statuses: dict[str, str]  # of each node
    verdicts: list[Verdict]  # on nodes
    by_link: list[Verdict]

    @property
    def bad(self) -> list[Verdict]:
        """What names a node or a link."""
        return [v for v in (*self.verdicts, *self.by_link) if v.status in BAD]

    @property
    def good(self) -> list[str]:
        """Nodes to run on: those that are not known to be slow or to fail."""
        return [host for host, status in self.statuses.items() if status not in BAD]

    @property
    def left_out(self) -> list[str]:
        """The other nodes."""
        return [host for host, status in self.statuses.items() if status in BAD]

    @property
    def doubts(self) -> list[str]:
        """What may be slow though nobody is named: of a fleet whose nodes are of two speeds no majority is alike."""
        steps = [v for v in self.verdicts if v.check == NODE_METRICS[STEP] and "slower" in v.figures]
        if not steps or WARNING in (v.status for v in steps):
            return []
        slower = {v.where: 1 + v.figures["slower"] for v in steps}
        fastest, slowest = min(slower, key=slower.__getitem__), max(reversed(slower), key=slower.__getitem__)
        apart = slower[slowest] / slower[fastest] - 1
        few = "too few are alike, or too many are slow; look at the nodes' figures, or compare with a --baseline"
        what = f"a step of {slowest} takes {apart:.1%} longer than one of {fastest}"
        return [f"{what}, and nobody is told from the others: {few}"] if apart > DOUBTFUL else []


def judge_record(record: Record) -> Judged:
    """Each node's status, the verdicts on nodes, and those on links."""
    hosts = record["hosts"]
    by_node, by_link = judge_links(record)
    verdicts = judge_nodes(record) + by_node
    verdicts += [
        Verdict(check="doctor", where=host, status=FATAL, found=failure)
        for host, node in zip(hosts, record["nodes"], strict=True)
        for failure in node["failed"]
    ]
    statuses = {}
    for host in hosts:  # what could not be measured says nothing against a node
        known = [v for v in verdicts if v.where == host and v.status != UNKNOWN]
        statuses[host] = worst(known) if known else UNKNOWN
    return Judged(record=record, statuses=statuses, verdicts=verdicts, by_link=by_link)


@dataclass(frozen=True, kw_only=True)
class Change:
    """Of one metric since a baseline."""

    metric: str
    nodes: int  # in both
    fleet: float  # median over the nodes: 0.02 is 2 % more time than then
    interval_95: tuple[float, ...] | None
    slower: dict[str, float]  # nodes that lost more than the others did, and how much


def changes(now: Record, then: Record) -> list[Change]:
    """What became slower on the nodes of both records, each beside itself: how nodes differ by make goes out."""
    found = []
    for metric, title in NODE_METRICS.items():
        if metric not in now["metrics"].keys() & then["metrics"].keys():
            continue
        series = (of_hosts(record, metric).items() for record in (now, then))
        a, b = ({host: np.log(taken).tolist() for host, taken in of if taken} for of in series)
        moved = {host: _place(a[host]) - _place(b[host]) for host in a if host in b}
        if not moved:
            continue
        noise = statistics.median(math.hypot(_error(a[host]), _error(b[host])) for host in moved)
        centre, interval = statistics.median(moved.values()), spread.median_interval(list(moved.values()))
        between = interval and tuple(map(math.expm1, interval))
        slower = {host: math.expm1(moved[host] - centre) for host in slow(moved, noise=noise, alpha=ALPHAS[metric])}
        fleet = math.expm1(centre)
        found.append(Change(metric=title, nodes=len(moved), fleet=fleet, interval_95=between, slower=slower))
    return found
