"""The page on a fleet: its names, its map, and what hostile names do to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import TOO_SMALL, UNFOLD, Browser, browser  # noqa: F401
from tests.scoring.pages import HOSTILE
from tests.tools import fleet_simulation
from tests.tools.test_fleet import fleet_of, report, whole

SMALL = TOO_SMALL.replace("svg text", "body *").replace(" * t.getScreenCTM().a", "")


def page(folder: Path, record: dict[str, Any]) -> str:
    path = folder / "page.html"
    done = report(folder, record, "--html", str(path))
    assert done.returncode in (0, 1), done.stderr
    return path.read_text()


def slow_link(nodes: int, spared: int) -> tuple[int, int]:
    """A pair that is measured, without the node `spared`."""
    pairs = ((link["a"], link["b"]) for link in fleet_simulation.record(nodes, 1)["links"])
    return next(pair for pair in pairs if spared not in pair)


def rows_of(map_html: str) -> list[list[str]]:
    """The text of each place of a map's rows; None stands for no cell: those not measured are empty."""
    rows = []
    for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", map_html, flags=re.DOTALL):
        cells = re.findall(r"<td class=\"([^\"]*)\"(?: colspan=\"(\d+)\")?[^>]*>([^<]*)</td>", row)
        rows.append([text for _, span, text in cells for _ in range(int(span or 1))])
    return rows


def test_a_slow_node_and_a_slow_link_are_named_with_their_figures(tmp_path: Path) -> None:
    a, b = slow_link(8, spared=2)
    text = page(tmp_path, whole(fleet_simulation.record(8, 1, step={2: 0.5}, link={(a, b): 3.0}), driver={1: "470"}))
    assert f"Nodes left out: node2. Links named: node{a} - node{b}." in text
    assert re.search(
        r"<td>node2</td><td>step</td><td class=\"n\">\+50\.\d%</td><td class=\"n\">\+49\.\d% to \+51", text
    )
    assert re.search(rf"<td>node{a} - node{b}</td><td>transfer</td><td class=\"n\">\+\d+\.\d%</td>", text)
    assert "<td>driver</td><td>535</td><td>470: node1</td>" in text


@pytest.mark.parametrize("nodes", [5, 8])
def test_the_map_has_each_measured_pair_twice_and_leaves_the_others_blank(nodes: int, tmp_path: Path) -> None:
    pair = slow_link(nodes, spared=2)
    record = whole(fleet_simulation.record(nodes, 1, link={pair: 3.0}))
    record["links"][-1]["latency_s"] = [2e-5] * 5
    record["links"][-1]["transfer_s"] = [8e-5] * 5  # of 4 MiB
    maps = re.findall(r"<table class=\"map\">.*?</table>", page(tmp_path, record), flags=re.DOTALL)
    assert len(maps) == 2
    measured = {(link["a"], link["b"]) for link in record["links"]}
    for rows in map(rows_of, maps):
        assert [len(row) for row in rows] == [nodes] * nodes
        for i, row in enumerate(rows):
            for j, text in enumerate(row):
                assert bool(text) == ((i, j) in measured or (j, i) in measured), (i, j)
                assert text == rows[j][i]
                assert text.startswith("S ") == ((min(i, j), max(i, j)) == pair and nodes == 8)
    last = record["links"][-1]
    assert rows_of(maps[1])[last["a"]][last["b"]].endswith("20")
    assert rows_of(maps[0])[last["a"]][last["b"]].endswith("50,000")


def test_a_healthy_fleet_and_one_that_is_too_small_say_so(tmp_path: Path) -> None:
    assert "No node and no link is named." in page(tmp_path, fleet_of())
    for nodes in (1, 3):
        text = page(tmp_path, whole(fleet_simulation.record(nodes, 1)))
        assert "Nobody could be told from the others here." in text
        assert ('class="map"' in text) == (nodes > 1)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    record = whole(fleet_simulation.record(8, 1, step={2: 0.5}, network={5: 2.0}), driver={1: HOSTILE})
    record["hosts"] = [f"{HOSTILE}{i}" for i in range(8)]
    record |= {"system": HOSTILE, "time": HOSTILE}
    record["nodes"][3]["failed"] = [HOSTILE]
    text = page(tmp_path, record)
    assert "<script" not in text and "<img" not in text and "\u202e" not in text and "\x1b" not in text
    assert text.count("</style>") == 1
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in text


def test_a_page_that_cannot_be_written_is_told_after_the_verdicts(tmp_path: Path) -> None:
    done = report(tmp_path, fleet_of(), "--html", str(tmp_path / "no" / "page.html"))
    assert done.returncode == 2 and "good      node0," in done.stdout
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [4, 64])
def test_it_is_readable_in_chromium(nodes: int, browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    record = whole(fleet_simulation.record(nodes, 1, step={2: 2.0}, link={slow_link(nodes, spared=2): 3.0}))
    record["hosts"][1] = HOSTILE
    page(tmp_path, record)
    for width, phone in ((1280, False), (390, True)):
        browser.open(tmp_path / "page.html", width=width, height=844, scheme="light", phone=phone)
        browser.value(UNFOLD)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value(SMALL) == []
        assert browser.value("window.pwned") is None
        widths = "[...document.querySelectorAll('.map')].map(m => m.scrollWidth - m.parentElement.clientWidth)"
        assert phone or max(browser.value(widths)) <= 0
