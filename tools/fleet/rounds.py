"""Which nodes of a fleet exchange data with which, in rounds of pairs: no pair twice, each node once a round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_ROUNDS = 3  # below three partners a slow link cannot be told from a slow node

# Measuring alone ends after so many turns, or so many times TURN_S seconds.
TURNS, TURN_S = 16, 4.0  # alone: steps, memory, disk, input
LINK_TURNS = 5  # each pair, in each round
EXCHANGE_MIB = 4  # of an all-reduce between two nodes


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two nodes, by number, that exchange data in a round."""

    a: int
    b: int
    across: bool  # of two switch groups


def count(nodes: int) -> int:
    """Rounds for so many nodes: log2 of them, and at least three where there are so many partners."""
    if nodes < 2:
        return 0
    most = nodes - 1 if nodes % 2 == 0 else nodes  # an odd fleet leaves one node out of each round
    return min(most, max(LEAST_ROUNDS, math.ceil(math.log2(nodes))))


def tournament(nodes: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """Round `turn` of the circle method, in which all meet once in n - 1 rounds (n odd: n, one is left out of each)."""
    seats: list[int | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    last = len(seats) - 1
    if turn >= last:
        return []
    order = [seats[last], *(seats[(turn + i) % last] for i in range(last))]
    pairs = zip(order[: len(order) // 2], reversed(order[len(order) // 2 :]), strict=True)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def rounds(groups: Sequence[str]) -> list[list[Pair]]:
    """The rounds for nodes of these switch groups, one name a node.

    With one group each node meets other nodes. With several, the first half of the rounds is inside the groups and the
    other half across them, so that all pairs of a round take the same kind of way and load each group's uplink at once.
    """
    names = list(dict.fromkeys(groups))
    ordered = sorted(range(len(groups)), key=lambda node: names.index(groups[node]))
    total = count(len(groups))
    members = [[node for node in ordered if groups[node] == name] for name in names]
    inside = total if len(names) == 1 else total // 2
    taken = [[pair for nodes in members for pair in tournament(nodes, turn)] for turn in range(inside)]
    half, largest = len(ordered) // 2, max(map(len, members), default=1)
    for turn in range(total - inside):  # the first half of the nodes with the second, shifted by a group and one
        shift = turn * (largest + 1)
        taken.append([(ordered[i], ordered[half + (i + shift) % half]) for i in range(half)])
    seen, found = set[Pair](), list[list[Pair]]()
    for pairs in taken:
        of_round = [Pair(a=min(p), b=max(p), across=groups[p[0]] != groups[p[1]]) for p in pairs]
        found.append([pair for pair in of_round if pair not in seen])
        seen.update(of_round)
    return [pairs for pairs in found if pairs]


def groups_of(text: str, nodes: int) -> list[str]:
    """The switch group of each node by SWITCH_GROUPS; empty: they are all in one.

    Raises ValueError where it names another number of nodes.
    """
    groups = text.split(",") if text else [""] * nodes
    if len(groups) != nodes:
        raise ValueError(f"SWITCH_GROUPS={text}: names {len(groups)} groups: give one for each of the {nodes} HOSTS")
    return groups
