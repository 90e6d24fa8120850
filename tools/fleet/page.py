"""The page on a fleet: who is named, a map of bandwidth and latency from node to node, and what differs."""

import bisect
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from runlog.verdict import FATAL, OK, UNKNOWN, Verdict
from scoring.report import brief, render
from scoring.report.blocks import Table
from scoring.report.text import number
from tools.fleet.record import differences
from tools.fleet.rounds import EXCHANGE_MIB
from tools.fleet.verdicts import BAD, LINK_METRICS, Judged, links_of

UNITS = {  # of a verdict's figure, and how many make its own
    **dict.fromkeys(("step", "input", "transfer"), (1e3, "ms")),
    **dict.fromkeys(("memory", "disk"), (1.0, "s/GiB")),
    **{"GPU clock": (1.0, "ns"), "latency": (1e6, "us")},
}
SHADES = (1.05, 1.2, 1.5, 2.0)  # of a link's time over the median of its kind: inside a switch group, or across
MOST_WITH_FIGURES = 16  # nodes; the cells of a larger map are shaded only
MAPS: dict[str, tuple[str, Callable[[float], float]]] = {
    "transfer_s": ("bandwidth, MiB/s", lambda s: EXCHANGE_MIB / s),
    "latency_s": ("latency, us", lambda s: s * 1e6),
}


def _slower(verdict: Verdict, otherwise: str) -> str:
    return f"{verdict.figures['slower']:+.1%}" if "slower" in verdict.figures else otherwise


def _map(judged: Judged, metric: str) -> list[dict[int, tuple[str, int, str]]]:
    """Of each node, each other that it was measured with: the figure, the shade, and the verdict on a link."""
    links = links_of(judged.record)
    times = [(link["across"], statistics.median(link[metric])) for link in links.values()]
    usual_s = {across: statistics.median(s for of, s in times if of == across) for across, _ in times}
    status = {v.where: v.status for v in judged.by_link if v.check == LINK_METRICS[metric]}
    rows: list[dict[int, tuple[str, int, str]]] = [{} for _ in judged.statuses]
    for (name, link), (across, time_s) in zip(links.items(), times, strict=True):
        value = MAPS[metric][1](time_s)
        figure = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
        shade = bisect.bisect_left(SHADES, time_s / usual_s[across])
        rows[link["a"]][link["b"]] = rows[link["b"]][link["a"]] = figure, shade, status.get(name, "")
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


def _nodes(judged: Judged) -> Table:
    metrics = list(dict.fromkeys(v.check for v in judged.verdicts if v.check != "doctor"))
    of = {(v.where, v.check): _slower(v, v.status) for v in judged.verdicts}
    statuses = enumerate(judged.statuses.items())
    rows = [(str(i), host, status, *(of.get((host, m), "") for m in metrics)) for i, (host, status) in statuses]
    head = ("number", "node", "verdict", *metrics)
    return Table(caption="Each node's time beside the fleet's median", head=head, rows=rows, numeric=(0,))


def html(judged: Judged) -> str:
    """The page."""
    record, statuses, named = judged.record, judged.statuses, judged.bad
    state, sentence = OK, "No node and no link is named."
    if named:
        links = dict.fromkeys(v.where for v in named if v.where not in statuses)
        texts = (", ".join(names) or "none" for names in (judged.left_out, links))
        state, sentence = FATAL, "Nodes left out: {}. Links named: {}.".format(*texts)
    elif set(statuses.values()) == {UNKNOWN}:
        state, sentence = UNKNOWN, "Nobody could be told from the others here."
    for doubt in judged.doubts:
        state, sentence = state if named else UNKNOWN, f"{sentence} Doubt: {doubt}."
    differ = [(d.fact, d.usual, d.but) for d in differences(record)]
    alike = Table(caption="What is not alike, first what matters most", head=("fact", "usual", "but"), rows=differ)
    page = {
        "record": record,
        "sentence": sentence,
        "state": state,
        "mark": brief.STATUSES[state][0],
        "named": [_named(named)] if named else [],
        "statuses": statuses,
        "bad": BAD,
        "maps": {title: _map(judged, metric) for metric, (title, _) in MAPS.items()},
        "figures": len(statuses) <= MOST_WITH_FIGURES,
        "shades": SHADES,
        "tables": [alike, _nodes(judged)],
    }
    return render.html(page, Path(__file__).with_name("page.html"))
