"""Verdicts on made-up fleets: slow parts are named as what they are, healthy fleets give no name; rounds of pairs.

Their steps have correlated jitter, stalls and nodes that differ a little, as real ones do.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from runlog.verdict import WARNING
from tools.fleet import alone as fleet_alone
from tools.fleet import baseline as fleet_baseline
from tools.fleet import links as fleet_links
from tools.fleet import outliers
from tools.fleet import record as fleet_record
from tools.fleet import rounds as fleet_rounds
from tools.fleet import verdicts as fleet_verdicts

STEPS = 8  # of a turn


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Of times, on a scale of logarithms."""

    nodes_sd: float = 0.002  # by which healthy nodes differ for good
    step_sd: float = 0.01
    correlation: float = 0.6  # of a step with the one before it
    stalls: float = 0.01  # share of the steps that take 2 to 10 times as long
    turns_sd: float = 0.01  # what all nodes share in a turn


def times(
    rng: np.random.Generator, noise: Noise, *, count: int, turns: int, slower: dict[int, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Medians and means [count, turns] of the steps of each turn; those in `slower` take so much more time."""
    jitter = np.empty((count, turns * STEPS))
    fresh = rng.standard_normal(jitter.shape) * noise.step_sd
    jitter[:, 0] = fresh[:, 0]
    for step in range(1, jitter.shape[1]):
        jitter[:, step] = noise.correlation * jitter[:, step - 1] + np.sqrt(1 - noise.correlation**2) * fresh[:, step]
    stalled = np.log(rng.uniform(2, 10, jitter.shape)) * (rng.random(jitter.shape) < noise.stalls)
    level = noise.nodes_sd * rng.standard_normal(count)
    for node, share in slower.items():
        level[node] += np.log1p(share)
    common = noise.turns_sd * rng.standard_normal(turns)
    found = np.exp(level[:, None, None] + common[:, None] + (jitter + stalled).reshape(count, turns, STEPS))
    return np.median(found, axis=2), found.mean(axis=2)


USUAL = Noise()
USUAL_FACTS = {"kernel": "6.1", "driver": "535"}


def record(
    nodes: int = 8, seed: int = 1, *, noise: Noise = USUAL, groups: Any = None, facts: Any = None, **slow: Any
) -> dict[str, Any]:
    """What a fleet would measure, in the form that tools/fleet/measure.py keeps it.

    `slow` says by which share more time parts of it take: `step`, `disk` and `network` by node, `link` by two nodes;
    `facts` are what is other on some nodes.
    """
    rng = np.random.default_rng([nodes, seed])

    def series(slower: dict[int, float], *, count: int = nodes, turns: int = fleet_alone.TURNS) -> Any:
        return tuple(x.tolist() for x in times(rng, noise, count=count, turns=turns, slower=slower))

    step, disk, network, link = (slow.get(part, {}) for part in ("step", "disk", "network", "link"))
    median, mean = series(step)
    metrics = {"step_s": median, "step_mean_s": mean, "memory_s_per_gib": series({})[0], "input_s": series({})[0]}
    metrics["disk_s_per_gib"] = series(disk)[0]
    pairs = [pair for of_round in fleet_rounds.rounds(groups or [""] * nodes) for pair in of_round]
    slower = {
        i: (1 + link.get((pair.a, pair.b), 0.0))
        * max(1 + network.get(node, 0.0) for node in (pair.a, pair.b))
        * (1.6 if pair.across else 1.0)  # the way across switches is longer
        - 1
        for i, pair in enumerate(pairs)
    }
    sizes = {"count": len(pairs), "turns": fleet_links.LINK_TURNS}
    of_links = {name: series(slower, **sizes)[0] for name in fleet_verdicts.LINK_METRICS}
    found: dict[str, Any] = fleet_record.FORMAT | {
        **{"whole_s": [1.1, 1.2], "took_s": 100.0, "system": "64xCPU", "time": "2026-11-22T18:00:00Z"},
        "hosts": [f"node{i}" for i in range(nodes)],
        "nodes": [{"failed": [], "clock_offset_s": 0.0, "facts": dict(USUAL_FACTS)} for _ in range(nodes)],
        "metrics": {name: {"series": values, "reasons": {}} for name, values in metrics.items()},
        "links": [
            {"a": pair.a, "b": pair.b, "across": pair.across, **{name: of_links[name][i] for name in of_links}}
            for i, pair in enumerate(pairs)
        ],
    }
    for name, values in (facts or {}).items():
        for node, value in values.items():
            found["nodes"][node]["facts"][name] = value
    return found


def named(made: dict[str, Any]) -> list[tuple[str, str]]:
    """(node or link, metric) of each that is called slow."""
    by_node, by_link = fleet_verdicts.judge_links(made)
    verdicts = [*fleet_verdicts.judge_nodes(made), *by_node, *by_link]
    return [(verdict.where, verdict.check) for verdict in verdicts if verdict.status == WARNING]


KINDS = {
    "usual": Noise(),
    "jitter of 2 %": Noise(step_sd=0.02),
    "a stall in 20 steps": Noise(stalls=0.05),
    "steps alike for long": Noise(correlation=0.9),
    "turns that differ": Noise(turns_sd=0.1),
    "healthy nodes alike": Noise(nodes_sd=0.0),
    "a crowded machine": Noise(nodes_sd=0.1, step_sd=0.5, turns_sd=0.5, stalls=0.1),
}


def healthy_that_are_named(nodes: int, runs: int, noise: Noise) -> int:
    return sum(bool(named(record(nodes, 10_000 + seed, noise=noise))) for seed in range(runs))


def test_a_healthy_fleet_gives_no_name() -> None:
    assert healthy_that_are_named(8, 100, Noise()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_fleets_give_hardly_a_name_whatever_their_noise(kind: str) -> None:
    assert healthy_that_are_named(8, 100, KINDS[kind]) == 0
    assert healthy_that_are_named(4, 100, KINDS[kind]) == 0
    # A chance of 0.002 each: more than two of 100 in one of 1,000 such tests.
    assert healthy_that_are_named(64, 100, KINDS[kind]) <= 2


@pytest.mark.slow
def test_a_thousand_nodes_are_judged_too() -> None:
    assert named(record(1024, 1)) == []
    found = record(1024, 2, step={7: 0.05, 600: 0.05, 1023: 0.2}, disk={11: 1.0}, link={(0, 1): 0.0})
    assert named(found) == [("node7", "step"), ("node600", "step"), ("node1023", "step"), ("node11", "disk")]


NETWORK, LINK = [("node6", "network latency"), ("node6", "network transfer")], ["latency", "transfer"]
GROUPS = [f"leaf{node // 8}" for node in range(16)]


def link(nodes: int, seed: int, **kind: Any) -> tuple[int, int]:
    """A pair that a fleet measures, another for each seed."""
    links = record(nodes, seed, **kind)["links"]
    return links[seed % len(links)]["a"], links[seed % len(links)]["b"]


@pytest.mark.parametrize(
    ("nodes", "seed", "slower", "names"),
    [
        *((8, seed, {"step": {seed % 8: 0.05}}, [(f"node{seed % 8}", "step")]) for seed in range(20)),
        (16, 3, {"step": {2: -0.3}}, []),  # a faster one, which hides nobody
        (16, 3, {"step": {2: -0.3, 5: 0.1}}, [("node5", "step")]),
        (8, 3, {"step": {1: 0.2, 4: 0.2, 6: 0.21}}, [("node1", "step"), ("node4", "step"), ("node6", "step")]),
        (8, 3, {"disk": {5: 0.5}}, [("node5", "disk")]),
        (8, 3, {"network": {6: 2.0}}, NETWORK),
        *((4, seed, {"step": {2: 1.5}}, [("node2", "step")]) for seed in range(20)),  # over twice the time, of four
        *((4, seed, {"disk": {1: 1.5}}, [("node1", "disk")]) for seed in range(20)),
        (16, 6, {"groups": GROUPS}, []),  # the longer way across switches is not a fault
        (8, 4, {"link": 2.0}, LINK),
        *((4, seed, {"link": 50.0, "noise": KINDS["a crowded machine"]}, LINK) for seed in range(20)),
        (16, 6, {"groups": GROUPS, "link": 1.0}, LINK),
    ],
)
def test_slow_parts_are_named_as_what_they_are(nodes: int, seed: int, slower: dict[str, Any], names: list[Any]) -> None:
    if "link" in slower:
        a, b = link(nodes, seed, **{"groups": slower.get("groups")})
        slower = slower | {"link": {(a, b): slower["link"]}}
        names = [(f"node{a} - node{b}", metric) for metric in names]
    assert named(record(nodes, seed, **slower)) == names


def by_name(places: Sequence[float]) -> dict[str, float]:
    """The places of node0, node1 and so on."""
    return {f"node{number}": place for number, place in enumerate(places)}


@pytest.mark.parametrize(
    ("places", "noise", "alpha", "slow"),
    [
        ([0.0, 0.0, 0.3, 1.1], 0.02, 0.0, [3]),  # over twice the time, beyond the errors
        ([0.0, 0.0, 0.3, 1.1], 0.04, 0.0, []),
        ([0.0, 0.0, 1.0, 1.0], 0.0, 0.0, []),  # no minority
        ([0.0, 0.0, 0.0, 1.0, 3.0], 0.0, 0.0, [3, 4]),
        ([0.0, 1e-5, 2e-5, 3e-5, 0.0035], 0.0, 0.01, []),  # like hosts differ by so much
        ([0.0, 1e-5, 2e-5, 3e-5, 0.0045], 0.0, 0.01, [4]),
    ],
)
def test_who_is_slow_by_places(places: list[float], noise: float, alpha: float, slow: list[int]) -> None:
    found = outliers.find_slow(by_name(places), noise=noise, alpha=alpha)
    assert found == [f"node{number}" for number in slow]


def test_a_node_that_stalls_more_often_than_the_others_is_named() -> None:
    made = record(8, 7)
    means = made["metrics"]["step_mean_s"]["series"]
    means[2] = [2 * mean if turn % 4 else mean for turn, mean in enumerate(means[2])]
    assert named(made) == [("node2", "stalls")]
    (said,) = (v for v in fleet_verdicts.judge_nodes(made) if v.status == "warning")
    assert "of 16 turns have a stall" in said.found


def test_the_interval_of_how_much_slower_holds_the_truth() -> None:
    inside = 0
    for seed in range(100):
        made = record(16, seed, step={3: 0.05}, noise=Noise(nodes_sd=0.0, step_sd=0.02))
        verdict = fleet_verdicts.judge_nodes(made)[3]
        low, high = verdict.figures["interval_95"]
        inside += low <= 0.05 <= high
    assert 88 <= inside <= 100


def test_both_ends_of_the_interval_are_widened_by_the_error_of_the_fleets_median() -> None:
    """By hand: of five turns the least and the greatest, whose distances from the level grow by sqrt(1 + pi / 16)."""
    turns = [1.0, 1.01, 1.02, 1.03, 1.05]
    series = {"node0": turns} | {f"node{i}": [1.0] * 5 for i in range(1, 8)}
    logs = np.log(turns)
    level = outliers.level_of(logs.tolist())
    widening = math.sqrt(1 + math.pi / 16)
    expected = [math.expm1(level + (end - level) * widening) for end in (logs[0], logs[-1])]
    verdict = fleet_verdicts.judge_metric("step", series, alpha=0.001)[0]
    assert verdict.figures["interval_95"] == pytest.approx(expected, rel=1e-9)


def test_what_was_not_measured_says_why() -> None:
    turns, reasons = [1.0, 1.1, 1.2], {"c": "not possible here: no DATADIR", "d": "No space left"}
    series = {"a": turns, "b": turns, "c": None, "d": None, "e": turns, "f": [1.01, 1.1, 1.2]}
    found = fleet_verdicts.judge_metric("disk", series, alpha=0.001, reasons=reasons)
    assert [verdict.status for verdict in found] == ["ok", "ok", "unknown", "fatal", "ok", "ok"]
    assert (found[2].found, found[3].found) == ("no DATADIR", "No space left")
    assert (found[3].where, found[3].check, found[0].figures["value"]) == ("d", "disk", 1.1)


@pytest.mark.parametrize("measured", [0, 3, 4])
def test_what_has_neither_times_nor_a_reason_was_not_measured(measured: int) -> None:
    """However many others were measured: it was said to be of too few, even beside enough of them."""
    series = {"without": None} | {f"node{i}": [1.0, 1.1, 1.2] for i in range(measured)}
    without, *others = fleet_verdicts.judge_metric("disk", series)
    assert (without.status, without.found) == ("unknown", "not measured")
    assert all(verdict.found.startswith("3 measured: ") == (measured == 3) for verdict in others)


def test_the_chance_of_a_name_is_the_one_that_is_asked_for() -> None:
    """Rosner's limits, set aside by the distance from the median, hold for normal places of few nodes and of many."""
    rng = np.random.default_rng(11)
    for nodes, runs in ((4, 4000), (8, 4000), (64, 1000)):
        places = 0.1 * rng.standard_normal((runs, nodes))
        share = statistics.fmean(bool(outliers.find_slow(by_name(p), noise=0.0, alpha=0.05)) for p in places.tolist())
        assert 0.02 < share < 0.055 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_a_baseline_finds_what_the_nodes_make_hides() -> None:
    """One node of two makes, 20 % apart, loses 5 %: beside the others it is not seen, beside itself it is."""
    makes = {node: 0.2 * (node % 2) for node in range(8)}
    then, now = record(8, 21, step=makes), record(8, 21, step=makes | {5: 1.2 * 1.05 - 1})
    assert named(now) == []
    found = {change.metric: change for change in fleet_baseline.changes(now, then)}
    assert found["step"].slower == {"node5": pytest.approx(0.05, abs=0.01)}
    assert found["step"].nodes == 8 and abs(found["step"].fleet) < 0.01
    assert found["disk"].slower == {}
    then["hosts"] = [f"other{i}" for i in range(8)]
    assert fleet_baseline.changes(now, then) == []


def test_a_change_within_the_noise_of_either_record_names_nobody() -> None:
    quiet = {f"node{i}": [1.0] * 6 for i in range(8)}
    noisy = {f"node{i}": [0.8, 1.25] * 3 for i in range(8)}
    slower_by_5 = {"node5": [1.05] * 6}

    def slower(then: dict[str, list[float]], now: dict[str, list[float]]) -> dict[str, float]:
        earlier, later = record(8), record(8)
        for made, series in ((earlier, then), (later, now)):
            made["metrics"] = {"step_s": {"series": list(series.values()), "reasons": {}}}
        (change,) = fleet_baseline.changes(later, earlier)
        return change.slower

    assert slower(quiet, quiet | slower_by_5) == {"node5": pytest.approx(0.05)}
    all_slower_by_10 = {f"node{i}": [1.1] * 6 for i in range(8)}
    assert slower(quiet, all_slower_by_10 | {"node5": [1.155] * 6}) == {"node5": pytest.approx(0.05)}  # than the fleet
    assert slower(noisy, quiet | slower_by_5) == {}


# ---- rounds: every node in each, no pair twice, groups crossed


@pytest.mark.parametrize(
    ("nodes", "count"),
    [(1, 0), (2, 1), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (8, 3), (12, 4), (16, 4), (31, 5), (64, 6), (1024, 10)],
)
def test_each_node_meets_other_ones_in_each_round(nodes: int, count: int) -> None:
    found = fleet_rounds.rounds([""] * nodes)
    assert len(found) == fleet_rounds.round_count(nodes) == count
    pairs = [(pair.a, pair.b) for pairs in found for pair in pairs]
    assert len(pairs) == len(set(pairs)) and all(0 <= a < b < nodes for a, b in pairs)
    for of_round in found:
        busy = [node for pair in of_round for node in (pair.a, pair.b)]
        assert len(busy) == len(set(busy)) == nodes - nodes % 2
    partners = [sum(node in pair for pair in pairs) for node in range(nodes)]
    assert min(partners) >= min(len(found) - nodes % 2, nodes - 1)


@pytest.mark.parametrize(("nodes", "size"), [(4, 2), (16, 4), (64, 16), (64, 32), (60, 7), (1024, 32)])
@pytest.mark.parametrize("mixed", [False, True], ids=["in order", "mixed"])
def test_groups_are_measured_inside_and_across(nodes: int, size: int, mixed: bool) -> None:
    count = -(-nodes // size)
    groups = [f"leaf{node % count if mixed else node // size}" for node in range(nodes)]
    found = fleet_rounds.rounds(groups)
    assert len(found) <= fleet_rounds.round_count(nodes)
    pairs = [pair for of_round in found for pair in of_round]
    assert len({(pair.a, pair.b) for pair in pairs}) == len(pairs)
    assert all(pair.across == (groups[pair.a] != groups[pair.b]) for pair in pairs)
    for name in set(groups):
        met = {pair.across for pair in pairs if name in (groups[pair.a], groups[pair.b])}
        assert met == ({True, False} if groups.count(name) > 1 else {True}), name
    if nodes % (2 * size) == 0:  # then no round mixes the two kinds of way
        assert all(len({pair.across for pair in of_round}) == 1 for of_round in found)
        assert all(sum(node in (pair.a, pair.b) for pair in pairs) == len(found) for node in range(nodes))
        others = {groups[pair.b] for pair in pairs if pair.across and pair.a == 0}  # while there are any
        assert len(others) == min(sum(of_round[0].across for of_round in found), nodes // 2 // size)


@pytest.mark.parametrize("groups", ["aab", "aabbc", "abc", "aaabbbcc", "aaaabbbbccccd"])
def test_no_node_of_uneven_groups_is_left_out(groups: str) -> None:
    """A lone node of the last group was in no pair, and a round across groups came twice, so that one was left out."""
    found = fleet_rounds.rounds(list(groups))
    measured = {node for of_round in found for pair in of_round for node in (pair.a, pair.b)}
    assert measured == set(range(len(groups)))
    assert len(found) == fleet_rounds.round_count(len(groups)) - (groups in ("aab", "abc"))


def test_a_group_is_given_for_each_node() -> None:
    assert fleet_rounds.groups_of("", 3) == ["", "", ""]
    assert fleet_rounds.groups_of("s1,s1,s2", 3) == ["s1", "s1", "s2"]
    with pytest.raises(ValueError, match="names 2 groups: give one for each of the 3 HOSTS"):
        fleet_rounds.groups_of("s1,s2", 3)
