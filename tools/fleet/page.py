"""The report on a fleet as an HTML page: tables of nodes and links, and maps of the links."""

import bisect
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from runlog.digits import four_digits
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict
from scoring.report import brief, render
from scoring.report.blocks import Table
from scoring.report.text import number
from tools.fleet.facts import Difference
from tools.fleet.judged import BAD, Judged
from tools.fleet.record import EXCHANGE_MIB
from tools.fleet.verdicts import LINK_METRICS, links_of


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The unit in which a metric is shown."""

    name: str
    factor: float  # shown value = recorded value * factor


RATIO_UNIT = Unit(name="of the fleet's median", factor=1.0)  # of a check that has no unit
UNITS = {  # by the check of a verdict
    "step": Unit(name="ms", factor=1e3),
    "input": Unit(name="ms", factor=1e3),
    "transfer": Unit(name="ms", factor=1e3),
    "memory": Unit(name="s/GiB", factor=1.0),
    "disk": Unit(name="s/GiB", factor=1.0),
    "GPU clock": Unit(name="ns", factor=1.0),
    "latency": Unit(name="us", factor=1e6),
}
# The upper bounds of the map's shades. They are ratios: a link's time over the median time of links of its kind, which
# are inside a switch group or across groups.
SHADES = (1.05, 1.2, 1.5, 2.0)
MAX_NODES_SHOWN = 16  # in full: the cells of a larger map have a shade but no figure, and a line has no more names
MAP_TITLES = {"transfer_s": "bandwidth, MiB/s", "latency_s": "latency, us"}


def signed(share: float) -> str:
    """Return a share as percent with its sign: 0.05 -> "+5.0%"."""
    return f"{share:+.1%}"


def signed_interval(low: float, high: float) -> str:
    """Return the two ends of an interval of shares: -0.01 and 0.05 -> "-1.0% to +5.0%"."""
    return f"{signed(low)} to {signed(high)}"


class Cell(NamedTuple):
    """One pair of nodes on a map."""

    figure: str
    shade: int  # 0 for a ratio up to SHADES[0], 1 for one up to SHADES[1], and so on
    status: str  # of the verdict on the link; empty if there is none


def _slower(verdict: Verdict, *, missing: str) -> str:
    """Return how much slower than the fleet's median a node or link is: "+5.0%". `missing` if it was not compared."""
    if "slower" in verdict.figures:
        return signed(verdict.figures["slower"])
    return missing


def _figure_on_map(metric: str, time_s: float) -> str:
    """Return the figure of a link on a map of the network; from 1000 it is a whole number, else it has four digits.

    Args:
        metric: "transfer_s" for the bandwidth in MiB/s, or "latency_s" for the latency in microseconds.
        time_s: The link's time.
    """
    value = time_s * 1e6  # microseconds
    if metric == "transfer_s":
        value = EXCHANGE_MIB / time_s  # MiB/s
    return f"{value:,.0f}" if value >= 1000 else four_digits(value)


def _map_rows(judged: Judged, metric: str) -> list[dict[int, Cell]]:
    """Return the rows of a map of a fleet's network, one for each node.

    Args:
        judged: The verdicts on the fleet, with the record of its measurements.
        metric: "latency_s" or "transfer_s".

    Returns:
        For each node {number of another node: cell of the link between them}. Each link is in the rows of both its
        nodes.
    """
    cells = _cells_of_links(judged, metric)
    rows: list[dict[int, Cell]] = [{} for _ in judged.statuses]  # one for each node
    for name, link in links_of(judged.record).items():
        rows[link["a"]][link["b"]] = cells[name]
        rows[link["b"]][link["a"]] = cells[name]
    return rows


def _cells_of_links(judged: Judged, metric: str) -> dict[str, Cell]:
    """Return the cell of each link by name, for the map of a metric."""
    check = LINK_METRICS[metric]
    statuses = {verdict.where: verdict.status for verdict in judged.link_verdicts if verdict.check == check}
    links = links_of(judged.record)
    # Links across switch groups usually take longer, so the two kinds are shaded apart.
    inside = {name: link for name, link in links.items() if not link["across"]}
    across = {name: link for name, link in links.items() if link["across"]}
    return _cells_of_kind(inside, metric, statuses) | _cells_of_kind(across, metric, statuses)


def _cells_of_kind(links: Mapping[str, Mapping[str, Any]], metric: str, statuses: Mapping[str, str]) -> dict[str, Cell]:
    """Return a cell for each link, by the link's name: what a map of the network shows of the link.

    Args:
        links: The links by name, as fleet.json has them, with the seconds of each turn (repetition) of a metric:
            {"node0 - node1": {"latency_s": [2.1e-06, 2.0e-06], ...}}. All links are inside switch groups, or all lead
            across groups.
        metric: The metric to show: "latency_s" or "transfer_s".
        statuses: The status of each link that has a verdict, by name.

    Returns:
        Cells, which have:

            figure   the link's median time as text: a latency in microseconds, or turned into a bandwidth in MiB/s
            shade    0 to 4, by that time over the median of all `links`: 0 up to 1.05, 1 up to 1.2, and so on (SHADES)
            status   of the verdict on the link; empty if there is none
    """
    time_s_by_link = {name: statistics.median(link[metric]) for name, link in links.items()}  # over a link's turns
    if not time_s_by_link:  # the fleet has no links of this kind
        return {}
    usual_s = statistics.median(time_s_by_link.values())  # over all links of the kind
    cells = {}
    for name, time_s in time_s_by_link.items():
        ratio = time_s / usual_s
        shade = bisect.bisect_left(SHADES, ratio)  # how many of SHADES are below the ratio
        # `_figure_on_map` gives the number as text, such as "2.05" for a latency of 2.05e-06 s.
        cells[name] = Cell(figure=_figure_on_map(metric, time_s), shade=shade, status=statuses.get(name, ""))
    return cells


def _table_of_bad(verdicts: Sequence[Verdict]) -> Table:
    """Return the table of the bad nodes and links: a row for each of the verdicts."""
    head = ("node or link", "by", "slower", "95 % interval", "median", "verdict")
    rows = [_row_of_bad(verdict) for verdict in verdicts]
    return Table(caption="Against the fleet's median", head=head, rows=rows, numeric=(2, 3, 4))


def _row_of_bad(verdict: Verdict) -> list[str]:
    """Return the six cells of a table's row on a bad node or link.

    Args:
        verdict: The verdict that a node or link is slow or fails.

    Returns:
        The name, the check, the slowdown, the 95 % interval of the slowdown, the median of the times, and the status. A
        figure that the verdict lacks gives an empty cell:

            ["node3", "step", "+5.0%", "+4.0% to +6.0%", "312.00 ms", "warning"]
            ["node4", "doctor", "", "", "", "fatal: gpu.ecc: GPU3: 2 uncorrected"]
    """
    # Each of these three is an empty text if the verdict lacks the figure.
    slower = _slower(verdict, missing="")
    interval = _interval_or_empty(verdict)
    median = _median_or_empty(verdict)
    return [verdict.where, verdict.check, slower, interval, median, _status_in_words(verdict)]


def _interval_or_empty(verdict: Verdict) -> str:
    """Return the interval of how much slower a node or link is: "+4.0% to +6.0%"; empty if the verdict has none."""
    interval_95 = verdict.figures.get("interval_95")
    if interval_95 is None:
        return ""
    low, high = interval_95
    return signed_interval(low, high)


def _median_or_empty(verdict: Verdict) -> str:
    """Return the median of a node's or link's times with its unit: "312.00 ms"; empty if the verdict has none."""
    if "value" not in verdict.figures:
        return ""
    unit = UNITS.get(verdict.check, RATIO_UNIT)
    return f"{number(verdict.figures['value'] * unit.factor)} {unit.name}"


def _status_in_words(verdict: Verdict) -> str:
    """Return the status: "warning". If the verdict has no median to show, what was found follows: "fatal: no space"."""
    if "value" in verdict.figures:
        return verdict.status
    return f"{verdict.status}: {verdict.found}"


def _table_of_nodes(judged: Judged) -> Table:
    """Return the table of all nodes: a row for each, with its number, name and status, and a cell for each check.

    A row is ("3", "node3", "warning", "+5.0%", "unknown", ""), for example. The cell of a check has:

        "+5.0%"     how much slower than the fleet's median the node is
        "unknown"   the status of the check's verdict on the node, if the verdict has no such figure
        ""          nothing, if the check has no verdict on the node

    Args:
        judged: The verdicts on the fleet.
    """
    # The doctor has no column: only a node that fails has a verdict by the doctor, and its status shows that.
    verdicts = [verdict for verdict in judged.node_verdicts if verdict.check != "doctor"]
    checks = list(dict.fromkeys(verdict.check for verdict in verdicts))  # each once, in their order
    verdict_by_host_and_check = {(verdict.where, verdict.check): verdict for verdict in verdicts}
    rows = []
    for index, (host, status) in enumerate(judged.statuses.items()):
        # `get` gives None if the check has no verdict on the node.
        cells = [_cell_of_check(verdict_by_host_and_check.get((host, check))) for check in checks]
        rows.append((str(index), host, status, *cells))
    head = ("number", "node", "verdict", *checks)
    # numeric=(0,) sets only the first column, "number", flush right. The columns of checks may have words.
    return Table(caption="Each node's time beside the fleet's median", head=head, rows=rows, numeric=(0,))


def _cell_of_check(verdict: Verdict | None) -> str:
    """Return how much slower a node is by a check: "+5.0%"; the status if it was not compared; empty for no verdict."""
    return "" if verdict is None else _slower(verdict, missing=verdict.status)


def _table_of_differences(differences: Sequence[Difference]) -> Table:
    """Return the table of the facts in which the nodes differ: each with its usual value and the exceptions ("but")."""
    rows = [(difference.fact, difference.usual, difference.but) for difference in differences]
    return Table(caption="What is not alike, first what matters most", head=("fact", "usual", "but"), rows=rows)


def _conclusion(judged: Judged) -> tuple[str, str]:
    """Return the status of the whole fleet, and sentences that say it in words and name the doubts.

    Args:
        judged: The verdicts on the fleet.

    Returns:
        (status, sentences). The status is "fatal" if a node or a link is bad, even if only slow. Otherwise it is
        "unknown" if all nodes are, or if there is a doubt about the verdicts, else "ok".
    """
    nothing_named = "No node and no link is named."
    all_are_unknown = set(judged.statuses.values()) == {UNKNOWN}
    if judged.bad_verdicts:
        status, sentence = FATAL, _sentence_on_bad(judged)
    elif all_are_unknown:
        status, sentence = UNKNOWN, "Whether a node is slow could not be told."
    elif judged.doubts:
        status, sentence = UNKNOWN, nothing_named
    else:
        status, sentence = OK, nothing_named
    sentences_on_doubts = "".join(f" Doubt: {doubt}." for doubt in judged.doubts)
    return status, f"{sentence}{sentences_on_doubts}"


def _sentence_on_bad(judged: Judged) -> str:
    """Return the sentences that name the nodes left out and the bad links."""
    bad_places = [verdict.where for verdict in judged.bad_verdicts]
    # `statuses` has all nodes, so that any other place is a link. A link may have several bad verdicts.
    bad_links = dict.fromkeys(place for place in bad_places if place not in judged.statuses)
    left_out = ", ".join(judged.left_out_hosts) or "none"
    return f"Nodes left out: {left_out}. Links named: {', '.join(bad_links) or 'none'}."


def report_as_page(judged: Judged) -> str:
    """Return the report on a fleet as an HTML page, rendered from the template page.html.

    The page begins with the conclusion. It has tables of the bad nodes and links, of what differs between the nodes,
    and of all nodes, and a map of the links by bandwidth and one by latency. Empty tables and maps are left out.

    Args:
        judged: The verdicts on the fleet, with the record of its measurements.
    """
    status, sentence = _conclusion(judged)  # such as "ok" and "No node and no link is named."
    tables_of_bad = [_table_of_bad(judged.bad_verdicts)] if judged.bad_verdicts else []
    variables = {  # by the names that the template has for them
        "record": judged.record,  # its system, time and duration stand at the top, and without links there are no maps
        "sentence": sentence,  # the conclusion in words
        "state": status,  # of the whole fleet; it sets the colour of the sentence
        "mark": brief.STATUSES[status][0],  # the sign before the sentence, such as "✓"
        "named": tables_of_bad,  # at most one table, of the bad nodes and links; none if there are none
        "statuses": judged.statuses,  # {node: status}, for the heads of the maps' rows and columns
        "bad": BAD,  # warning and fatal, the statuses that are marked on the maps
        # {title: rows}. `_map_rows` gives a row for each node: {number of another node: cell of the link to it}.
        "maps": {title: _map_rows(judged, metric) for metric, title in MAP_TITLES.items()},
        "figures": len(judged.statuses) <= MAX_NODES_SHOWN,  # whether the maps' cells show numbers
        "shades": SHADES,  # the upper bounds of the shades, for the legend
        "tables": [_table_of_differences(judged.differences), _table_of_nodes(judged)],
    }
    return render.html_by_template(variables, Path(__file__).with_name("page.html"))
