"""The page on a fleet: who is named, a map of bandwidth and latency from node to node, and what differs."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.report import brief, render
from scoring.report.blocks import Table
from scoring.report.text import number
from tools.fleet import drift as fleet_drift
from tools.fleet import rounds as fleet_rounds
from tools.fleet.verdicts import LINK_METRICS, Judged, doubts, names_of

UNITS = {  # of a verdict's figure, and how many make its own
    **dict.fromkeys(("step", "input", "transfer"), (1e3, "ms")),
    **dict.fromkeys(("memory", "disk"), (1.0, "s/GiB")),
    **{"GPU clock": (1.0, "ns"), "latency": (1e6, "us")},
}
SHADES = (1.05, 1.2, 1.5, 2.0)  # of a link's time over the median of its kind: inside a switch group, or across
MOST_WITH_FIGURES = 16  # nodes; the cells of a larger map are shaded only
MAPS: dict[str, tuple[str, Callable[[float], float]]] = {
    "transfer_s": ("bandwidth, MiB/s", lambda s: fleet_rounds.EXCHANGE_MIB / s),
    "latency_s": ("latency, us", lambda s: s * 1e6),
}


def _slower(verdict: Verdict, otherwise: str) -> str:
    return f"{verdict.figures['slower']:+.1%}" if "slower" in verdict.figures else otherwise


def _figures(links: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    values = [MAPS[metric][1](statistics.median(link[metric])) for link in links]
    return [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in values]


def _map(record: Mapping[str, Any], metric: str, by_link: Sequence[Verdict]) -> list[dict[int, tuple[str, int, str]]]:
    """Of each node, each other that it was measured with: the figure, the shade, and the verdict if it is a bad one."""
    hosts, links = record["hosts"], record["links"]
    times = [(link["across"], statistics.median(link[metric])) for link in links]
    usual = {across: statistics.median(t for of, t in times if of == across) for across, _ in times}
    named = {v.where: v.status for v in by_link if v.check == LINK_METRICS[metric]}
    rows: list[dict[int, tuple[str, int, str]]] = [{} for _ in hosts]
    columns = (links, names_of(hosts, links), times, _figures(links, metric))
    for link, name, (across, time_s), figure in zip(*columns, strict=True):
        shown = figure, bisect.bisect_left(SHADES, time_s / usual[across]), named.get(name, "")
        rows[link["a"]][link["b"]] = rows[link["b"]][link["a"]] = shown
    return rows


def _named(verdicts: Sequence[Verdict]) -> Table:
    rows = []
    for v in verdicts:
        scale, unit = UNITS.get(v.check, (1.0, "of the fleet's median"))
        value, interval = v.figures.get("value"), v.figures.get("interval_95")
        figure = "" if value is None else f"{number(value * scale)} {unit}"
        between = "{:+.1%} to {:+.1%}".format(*interval) if interval else ""
        verdict = v.status if "value" in v.figures else f"{v.status}: {v.found}"
        rows.append((v.where, v.check, _slower(v, ""), between, figure, verdict))
    head = ("node or link", "by", "slower", "95 % interval", "median", "verdict")
    return Table(caption="Against the fleet's median", head=head, rows=rows, numeric=(2, 3, 4))


def _nodes(statuses: Mapping[str, str], verdicts: Sequence[Verdict]) -> Table:
    metrics = list(dict.fromkeys(v.check for v in verdicts if v.check != "doctor"))
    of = {(v.where, v.check): _slower(v, v.status) for v in verdicts}
    rows = [(str(i), h, s, *(of.get((h, m), "") for m in metrics)) for i, (h, s) in enumerate(statuses.items())]
    head = ("number", "node", "verdict", *metrics)
    return Table(caption="Each node's time beside the fleet's median", head=head, rows=rows, numeric=(0,))


def _links(record: Mapping[str, Any]) -> Table:
    names = names_of(record["hosts"], record["links"])
    rows = list(zip(names, *(_figures(record["links"], metric) for metric in MAPS), strict=True))
    head = ("link", *(title for title, _ in MAPS.values()))
    return Table(caption="Each link's medians", head=head, rows=rows, numeric=(1, 2))


def _differences(record: Mapping[str, Any]) -> Table:
    found = fleet_drift.differences(record["hosts"], record["nodes"])
    rows = [(d.fact, d.usual, "; ".join(f"{v}: {', '.join(of)}" for v, of in d.others.items())) for d in found]
    return Table(caption="What is not alike, first what matters most", head=("fact", "usual", "but"), rows=rows)


def html(judged: Judged) -> str:
    """The page."""
    record, statuses, verdicts, named = judged.record, judged.statuses, judged.verdicts, judged.bad
    nodes, links = ([v.where for v in named if (v.where in statuses) == is_node] for is_node in (True, False))
    state, sentence = OK, "No node and no link is named."
    if named:
        texts = (", ".join(dict.fromkeys(names)) or "none" for names in (nodes, links))
        state, sentence = FATAL, "Nodes left out: {}. Links named: {}.".format(*texts)
    elif set(statuses.values()) == {UNKNOWN}:
        state, sentence = UNKNOWN, "Nobody could be told from the others here."
    doubtful = doubts(verdicts)
    if doubtful:
        state, sentence = state if named else UNKNOWN, " ".join([sentence, *(f"Doubt: {doubt}." for doubt in doubtful)])
    tables = [_differences(record), _nodes(statuses, verdicts), _links(record)]
    page = {
        "record": record,
        "sentence": sentence,
        "state": state,
        "mark": brief.STATUSES[state][0],
        "named": [_named(named)] if named else [],
        "statuses": statuses,
        "bad": (WARNING, FATAL),
        "maps": {title: _map(record, metric, judged.by_link) for metric, (title, _) in MAPS.items()},
        "figures": len(statuses) <= MOST_WITH_FIGURES,
        "shades": SHADES,
        "tables": [table for table in tables if table.rows],
    }
    return render.html(page, Path(__file__).with_name("page.html"))
