"""Rounds of pairs: every node in each, no pair twice, groups crossed, few enough for three minutes."""

from __future__ import annotations

import pytest

from tools.fleet import rounds as fleet_rounds


@pytest.mark.parametrize(
    ("nodes", "count"),
    [(1, 0), (2, 1), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (8, 3), (12, 4), (16, 4), (31, 5), (64, 6), (1024, 10)],
)
def test_each_node_meets_other_ones_in_each_round(nodes: int, count: int) -> None:
    found = fleet_rounds.rounds([""] * nodes)
    assert len(found) == fleet_rounds.count(nodes) == count
    pairs = [(pair.a, pair.b) for pairs in found for pair in pairs]
    assert len(pairs) == len(set(pairs)) and all(0 <= a < b < nodes for a, b in pairs)
    for of_round in found:
        busy = [node for pair in of_round for node in (pair.a, pair.b)]
        assert len(busy) == len(set(busy)) == nodes - nodes % 2
    partners = [sum(node in pair for pair in pairs) for node in range(nodes)]
    assert min(partners) >= min(len(found) - nodes % 2, nodes - 1)


@pytest.mark.parametrize(("nodes", "size"), [(4, 2), (16, 4), (64, 16), (64, 32), (60, 7), (1024, 32)])
def test_groups_are_measured_inside_and_across(nodes: int, size: int) -> None:
    groups = [f"leaf{node // size}" for node in range(nodes)]
    found = fleet_rounds.rounds(groups)
    assert len(found) <= fleet_rounds.count(nodes)
    pairs = [pair for of_round in found for pair in of_round]
    assert len({(pair.a, pair.b) for pair in pairs}) == len(pairs)
    for pair in pairs:
        assert pair.across == (groups[pair.a] != groups[pair.b])
    for name in set(groups):
        members = [node for node in range(nodes) if groups[node] == name]
        met = {pair.across for pair in pairs if pair.a in members or pair.b in members}
        assert met == ({True, False} if len(members) > 1 else {True}), name
    if nodes % (2 * size) == 0:  # then no round mixes the two kinds of way
        assert all(len({pair.across for pair in of_round}) == 1 for of_round in found)
        assert all(sum(node in (pair.a, pair.b) for pair in pairs) == len(found) for node in range(nodes))
        met = {groups[pair.b] for pair in pairs if pair.across and pair.a == 0}  # other groups, while there are any
        assert len(met) == min(sum(of_round[0].across for of_round in found), nodes // 2 // size)


def test_the_order_of_the_hosts_is_not_that_of_the_groups() -> None:
    groups = [f"leaf{node % 4}" for node in range(16)]
    assert all(len({pair.across for pair in of_round}) == 1 for of_round in fleet_rounds.rounds(groups))


def test_a_group_is_given_for_each_node() -> None:
    assert fleet_rounds.groups_of("", 3) == ["", "", ""]
    assert fleet_rounds.groups_of("s1,s1,s2", 3) == ["s1", "s1", "s2"]
    with pytest.raises(ValueError, match="names 2 groups: give one for each of the 3 HOSTS"):
        fleet_rounds.groups_of("s1,s2", 3)
