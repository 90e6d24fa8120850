"""Which nodes of a fleet exchange data with which: rounds of pairs, no pair twice, each node once a round."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

LEAST_ROUNDS = 3  # below three partners a slow link cannot be told from a slow node


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two nodes, by number, that exchange data in a round."""

    a: int
    b: int
    across: bool  # of two switch groups


def round_count(nodes: int) -> int:
    """Return the number of rounds for so many nodes: their log2 rounded up, but at least LEAST_ROUNDS.

    They are fewer where all pairs have met before: of two nodes it is one round. One node has none.
    """
    if nodes < 2:
        return 0
    is_odd = nodes % 2 == 1  # then each round leaves one node out
    until_all_have_met = nodes if is_odd else nodes - 1
    return min(until_all_have_met, max(LEAST_ROUNDS, math.ceil(math.log2(nodes))))


def tournament(nodes: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """Return the pairs of nodes that meet in round `turn` (from 0) of a tournament, in which each meets each once.

    It has n - 1 rounds. Where n is odd it has n, each of which leaves one node out. After the last round there are no
    pairs. Of nodes 0 to 3 the rounds are (3, 2) (0, 1), then (3, 0) (1, 2), then (3, 1) (2, 0).

    This is the circle method: all sit on a ring of two facing rows. One stays, and the others move on by one a round.
    """
    seats: list[int | None] = [*nodes]
    if len(nodes) % 2 == 1:
        seats.append(None)  # nobody: who faces it is left out of the round
    last = len(seats) - 1
    if turn >= last:
        return []

    order = [seats[last]]  # the one that stays
    for index in range(last):
        order.append(seats[(turn + index) % last])
    # The first half of the order faces the second half, read from its end.
    half = len(order) // 2
    pairs_of_turn = []
    for index in range(half):
        first = order[index]
        second = order[-1 - index]
        if first is not None and second is not None:
            pairs_of_turn.append((first, second))
    return pairs_of_turn


def rounds(groups: Sequence[str]) -> list[list[Pair]]:
    """Return the rounds in which nodes exchange data in pairs: for each round its pairs, which do so at once.

    `groups` has for each node, by its number, the name of its switch group: the nodes at one switch. In a round each
    node is in one pair at most. No pair comes twice: one of an earlier round is left out, and so is a round that has no
    pair left.

    With one group all rounds pair nodes inside it. With several, the first half of the rounds, rounded down, pairs
    nodes inside each group. The others pair nodes across groups, so that the pairs of a round mostly go through as many
    switches, and load each group's uplink at once. A few pairs of these rounds may be inside a group that reaches over
    the middle of the nodes: each pair says by `across` which it is.
    """
    members: dict[str, list[int]] = {}  # of each group, the numbers of its nodes
    for node, group in enumerate(groups):
        members.setdefault(group, []).append(node)
    total = round_count(len(groups))  # about log2 of the nodes
    rounds_inside = total
    if len(members) > 1:
        rounds_inside = total // 2
    # Each function gives the pairs of one round. Those of its rounds may repeat each other's.
    planned = [_inside_groups(members, turn) for turn in range(rounds_inside)]
    planned += [_across_groups(members, turn) for turn in range(total - rounds_inside)]

    met: set[Pair] = set()
    without_repeats = []
    for nodes_in_pairs in planned:
        new_pairs = []
        for first, second in nodes_in_pairs:
            is_across = groups[first] != groups[second]
            # The lower number first, so that a pair equals itself whichever node was named first.
            pair = Pair(a=min(first, second), b=max(first, second), across=is_across)
            if pair not in met:
                new_pairs.append(pair)
        met.update(new_pairs)
        if new_pairs:
            without_repeats.append(new_pairs)
    return without_repeats


def _inside_groups(members: dict[str, list[int]], turn: int) -> list[tuple[int, int]]:
    """Return the pairs of a round in which each node meets one of its own group."""
    pairs_of_turn = []
    for nodes in members.values():
        pairs_of_turn += tournament(nodes, turn)
    return pairs_of_turn


def _across_groups(members: dict[str, list[int]], turn: int) -> list[tuple[int, int]]:
    """Return the pairs of a round in which the first half of the nodes, group by group, meets the second half.

    In each round the second half, as a ring, has moved on by the size of the largest group, so that other groups meet,
    and by one node more, so that other nodes of them do. Of an odd number of nodes the second half has one more, and
    each round leaves another one of them out.
    """
    ordered = list(itertools.chain.from_iterable(members.values()))
    middle = len(ordered) // 2
    ring = ordered[middle:]
    step = max(len(nodes) for nodes in members.values()) + 1
    while math.gcd(step, len(ring)) != 1:  # else the ring would be where it was before each node has met all of it
        step += 1
    pairs_of_turn = []
    for index in range(middle):
        partner = ring[(index + turn * step) % len(ring)]
        pairs_of_turn.append((ordered[index], partner))
    return pairs_of_turn


def groups_of(text: str, nodes: int) -> list[str]:
    """Return each node's switch group by SWITCH_GROUPS; if empty all are in one.

    Raises ValueError for a wrong number of groups.
    """
    groups = text.split(",") if text else [""] * nodes
    if len(groups) != nodes:
        raise ValueError(f"SWITCH_GROUPS={text}: names {len(groups)} groups: give one for each of the {nodes} HOSTS")
    return groups
