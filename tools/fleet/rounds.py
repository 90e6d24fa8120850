"""The rounds in which the nodes of a fleet exchange data in pairs: no pair twice, and no node twice in a round."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

MIN_ROUNDS = 3  # below three partners a slow link cannot be told from a slow node


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two nodes that exchange data in a round."""

    a: int  # the lower number of the two nodes
    b: int
    across: bool  # whether the nodes are in different switch groups


def round_count(nodes: int) -> int:
    """Return the number of rounds of exchange in pairs: log2(nodes) rounded up, but at least MIN_ROUNDS (3).

    It is capped at the number of rounds in which every pair meets once. So two nodes have one round, and one node has
    none.

    Args:
        nodes: The number of nodes.
    """
    if nodes < 2:
        return 0
    is_odd = nodes % 2 == 1  # then each round leaves one node out, which costs one more round
    rounds_for_all_pairs = nodes if is_odd else nodes - 1
    wanted_rounds = max(MIN_ROUNDS, math.ceil(math.log2(nodes)))
    return min(rounds_for_all_pairs, wanted_rounds)


def tournament_pairs(nodes: Sequence[int], round_index: int) -> list[tuple[int, int]]:
    """Return the pairs of one round of a tournament in which each node meets each other node once.

    For the nodes 0 to 3 there are three rounds; after the last one the list is empty:

        0: (3, 2) (0, 1)
        1: (3, 0) (1, 2)
        2: (3, 1) (2, 0)

    Args:
        nodes: The numbers of the nodes. If there is an odd number of them, one has no pair in each round.
        round_index: Which round; counts from 0.
    """
    # The circle method: the nodes sit in two facing rows. One stays, and the others move on by one seat each round.
    seats: list[int | None] = [*nodes]
    if len(nodes) % 2 == 1:
        seats.append(None)  # an empty seat: the node that faces it is left out of the round
    round_count_of_tournament = len(seats) - 1
    if round_index >= round_count_of_tournament:
        return []
    *moving, staying = seats
    moved = moving[round_index:] + moving[:round_index]
    return _facing_pairs([staying, *moved])


def _facing_pairs(seats: Sequence[int | None]) -> list[tuple[int, int]]:
    """Pair the nodes that face each other: the first and the last, the second and the last but one, and so on.

    Args:
        seats: The number of the node on each seat. A node that faces an empty seat (None) has no pair. With an odd
            number of seats the middle one faces none.
    """
    pairs = []
    for index in range(len(seats) // 2):
        node = seats[index]
        facing = seats[-1 - index]
        if node is not None and facing is not None:
            pairs.append((node, facing))
    return pairs


def rounds(groups: Sequence[str]) -> list[list[Pair]]:
    """Return the pairs of nodes of a fleet that exchange data with each other, in a list for each round.

    In a round a node is in at most one pair. No pair comes twice, even in different rounds.

    Args:
        groups: The switch group of each node (the nodes at one network switch), such as ["s1", "s1", "s2"].

    Returns:
        The pairs of each round: first the rounds inside the groups, then the rounds across groups, where a pair may
        still be inside a group. No round is empty.
    """
    met: set[Pair] = set()
    rounds_without_repeats = []
    # In a planned round a node is in at most one pair, but a later round may repeat pairs of an earlier one.
    for planned_pairs in _plan_rounds(groups):
        pairs = [_pair_of(first, second, groups) for first, second in planned_pairs]
        new_pairs = [pair for pair in pairs if pair not in met]
        met.update(new_pairs)
        if new_pairs:  # a round without new pairs is left out
            rounds_without_repeats.append(new_pairs)
    return rounds_without_repeats


def _pair_of(first: int, second: int, groups: Sequence[str]) -> Pair:
    """Return the pair of two nodes, the lower number first, so that 2 and 5 are the same pair as 5 and 2."""
    return Pair(a=min(first, second), b=max(first, second), across=groups[first] != groups[second])


def _plan_rounds(groups: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return which nodes form pairs in each round: in half of the rounds inside the switch groups, then across them.

    The number of rounds is about log2 of the number of nodes. With one group, all rounds are inside it.

    Args:
        groups: The name of each node's switch group (the nodes at one network switch).

    Returns:
        For each round its pairs of numbers of nodes. The rounds across groups may repeat pairs of earlier rounds.
    """
    members: dict[str, list[int]] = {}  # {name of a group: numbers of its nodes}
    for node, group in enumerate(groups):
        members.setdefault(group, []).append(node)

    total = round_count(len(groups))  # about log2 of the number of nodes
    has_several_groups = len(members) > 1
    count_inside = total // 2 if has_several_groups else total
    count_across = total - count_inside

    rounds_inside = [_pairs_inside_groups(members, round_index) for round_index in range(count_inside)]
    # These load the uplinks of all groups at the same time.
    rounds_across = [_pairs_across_groups(members, round_index) for round_index in range(count_across)]
    return rounds_inside + rounds_across


def _pairs_inside_groups(members: dict[str, list[int]], round_index: int) -> list[tuple[int, int]]:
    """Return the pairs of a round in which each node meets one of its own group, of which `members` lists the nodes."""
    pairs_of_round = []
    for nodes in members.values():
        pairs_of_round += tournament_pairs(nodes, round_index)
    return pairs_of_round


def _pairs_across_groups(members: dict[str, list[int]], round_index: int) -> list[tuple[int, int]]:
    """Return the pairs of a round in which each node of the first half meets a node of the second half.

    All nodes are ordered by group and cut into two halves. So two nodes of one group can meet only if the cut goes
    through their group. From round to round the second half is rotated by some places, so that other nodes meet. With
    the groups 01 23 45 67 it is rotated by 3 places:

        round   first half   second half   pairs
        0       0 1 2 3      4 5 6 7       (0, 4) (1, 5) (2, 6) (3, 7)
        1       0 1 2 3      7 4 5 6       (0, 7) (1, 4) (2, 5) (3, 6)

    Args:
        members: The numbers of the nodes in each switch group, by the group's name. There are at least two nodes.
        round_index: Which of the rounds across groups; counts from 0.
    """
    ordered = list(itertools.chain.from_iterable(members.values()))  # by group
    middle = len(ordered) // 2
    first_half = ordered[:middle]
    second_half = ordered[middle:]
    largest_group = max(len(nodes) for nodes in members.values())
    # How many places more in each round: the least number that is larger than any group and has no common divisor with
    # the half's length. So a node's next partner is mostly in another group than the last, and a node meets each of the
    # other half before it meets one again.
    step = _rotation_step(len(second_half), largest_group)  # 3 in the example, for 4 places and groups of 2 nodes
    # In the rounds 0 to 3 these are 0, 3, 6 and 9 places. A rotation by all 4 places changes nothing, so that 0, 3, 2
    # and 1 are left.
    rotation = (round_index * step) % len(second_half)
    rotated = second_half[rotation:] + second_half[:rotation]  # from the place `rotation` on: [7, 4, 5, 6] for 3
    # If the number of nodes is odd, the second half has one more, which has no partner in this round.
    return list(zip(first_half, rotated, strict=False))


def _rotation_step(size: int, largest_group: int) -> int:
    """Return by how many places nodes, ordered by group, are rotated from round to round.

    Args:
        size: The number of nodes that are rotated.
        largest_group: The number of nodes in the largest switch group.
    """
    step = largest_group + 1  # more than any group: with many groups a node's next partner is mostly in another group
    while math.gcd(step, size) != 1:  # without a common divisor, no partner comes again before all have come once
        step += 1
    return step


def groups_of(text: str, nodes: int) -> list[str]:
    """Return the switch group of each node: the name of the network switch that it shares with others.

    Args:
        text: The setting SWITCH_GROUPS, such as "s1,s1,s2". If it is empty, all nodes are in one group.
        nodes: The number of nodes.

    Raises:
        ValueError: The number of groups is not `nodes`.
    """
    groups = text.split(",") if text else [""] * nodes
    if len(groups) != nodes:
        raise ValueError(f"SWITCH_GROUPS={text}: names {len(groups)} groups: give one for each of the {nodes} HOSTS")
    return groups
