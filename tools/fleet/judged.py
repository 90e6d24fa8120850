"""The verdicts on a whole fleet: the status of each node, which nodes to run on, whether to doubt it, differences."""

from collections.abc import Sequence
from dataclasses import dataclass

from runlog.digits import percent
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict, worst
from tools.fleet import arithmetic
from tools.fleet.facts import Difference, differences
from tools.fleet.verdicts import NODE_METRICS, STEP, Record, judge_links, judge_nodes

BAD = (WARNING, FATAL)  # statuses of a node or a link that is slow or fails
MAX_STEP_DIFFERENCE = 0.05  # of the slowest node's step over the fastest one's, if no node is slow


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A record, the verdicts on it, and in what its nodes differ."""

    record: Record
    statuses: dict[str, str]  # of each node
    node_verdicts: list[Verdict]
    link_verdicts: list[Verdict]
    differences: list[Difference]  # facts that are not the same on all nodes, first those that change speed most

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
        """Return a list of one doubt about the verdicts, in words, or an empty list.

        There is a doubt if the times of training steps differ much although no node is called slow. For example, if
        half of the fleet is slower, there is no majority to tell which half is the slow one.
        """
        verdicts_on_steps = [verdict for verdict in self.node_verdicts if verdict.check == NODE_METRICS[STEP]]
        if any(verdict.status == WARNING for verdict in verdicts_on_steps):  # a node is called slow
            return []
        doubt = _doubt_on_steps(verdicts_on_steps)
        return [doubt] if doubt else []


def _doubt_on_steps(verdicts_on_steps: Sequence[Verdict]) -> str:
    """Return a warning if a training step takes over 5 % longer on the slowest node than on the fastest node.

    For example, a step on the slowest node takes 4 % longer than the fleet's median, and a step on the fastest node 4 %
    less. Then a step takes 1.04 / 0.96 - 1 = 8.3 % longer on the slowest node than on the fastest node.

    Args:
        verdicts_on_steps: The verdicts on the nodes' training step times. No verdict may call a node slow, because the
            returned sentence says that no node is. `where` is the node. `figures["slower"]` is how much longer than the
            fleet's median a step takes on this node, as a share: 0.04 is 4 % longer, -0.04 is 4 % less. A verdict
            without this figure is passed over.

    Returns:
        A sentence that names both nodes, their difference and what to do. An empty string if the difference is at most
        5 % (MAX_STEP_DIFFERENCE), or if no verdict has the figure.
    """
    extra_time_by_node = {}  # as a share of the fleet's median: 0.04 is 4 % longer, -0.04 is 4 % less
    for verdict in verdicts_on_steps:
        if "slower" in verdict.figures:
            extra_time_by_node[verdict.where] = float(verdict.figures["slower"])
    if not extra_time_by_node:  # no node was compared with others
        return ""
    from_fast_to_slow = sorted(extra_time_by_node, key=lambda node: extra_time_by_node[node])
    fastest = from_fast_to_slow[0]
    slowest = from_fast_to_slow[-1]

    # A step's time over the fleet's median is 1 + the extra time. In the ratio of two such values the median cancels.
    slowest_over_fastest = (1 + extra_time_by_node[slowest]) / (1 + extra_time_by_node[fastest])
    difference = slowest_over_fastest - 1
    if difference <= MAX_STEP_DIFFERENCE:
        return ""
    return (
        f"a step of {slowest} takes {percent(difference)} longer than one of {fastest}, and no node is called slow: "
        "too few are alike, or too many are slow; look at the nodes' figures, or compare with a --baseline"
    )


def _counts_for_status(verdict: Verdict) -> bool:
    """Return whether a verdict counts for the status of its node.

    An unknown verdict does not count: what could not be measured says nothing against a node. The verdict that the
    arithmetic is ok does not count either, because it does not say that the node is fast.
    """
    is_right_arithmetic = verdict.check == arithmetic.CHECK and verdict.status == OK
    return verdict.status != UNKNOWN and not is_right_arithmetic


def _status_of_node(host: str, node_verdicts: Sequence[Verdict]) -> str:
    """Return the worst status of the verdicts on a node that count for its status; "unknown" if none counts."""
    counting = [verdict for verdict in node_verdicts if verdict.where == host and _counts_for_status(verdict)]
    return worst(counting) if counting else UNKNOWN


def _verdicts_of_doctor(record: Record) -> list[Verdict]:
    """Return a fatal verdict for each failure that the doctor found on a node."""
    verdicts = []
    for host, node in zip(record["hosts"], record["nodes"], strict=True):
        for failure in node["failed"]:
            verdicts.append(Verdict(check="doctor", where=host, status=FATAL, found=failure))
    return verdicts


def judge_record(record: Record) -> Judged:
    """Return which nodes and links of a fleet are slow or fail, and the facts that are not the same on all nodes.

    Args:
        record: What was measured on the fleet, as fleet.json holds it.

    Returns:
        The record, with

        - a status of each node: "ok", "warning", "fatal" or "unknown";
        - the verdicts on nodes, from which the statuses follow;
        - the verdicts on links between nodes;
        - the facts that differ between the nodes, such as the version of the GPUs' driver.
    """
    network = judge_links(record)
    node_verdicts = [
        *judge_nodes(record),  # by what each node measured by itself
        *network.on_nodes,  # by all links of a node together
        *arithmetic.judge(record),  # by whether the ranks of a node compute the same bits as others
        *_verdicts_of_doctor(record),  # by failures of the health check
    ]
    return Judged(
        record=record,
        statuses={host: _status_of_node(host, node_verdicts) for host in record["hosts"]},
        node_verdicts=node_verdicts,
        link_verdicts=network.on_links,
        differences=differences(record),
    )
