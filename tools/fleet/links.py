"""The measurements of the links between the nodes of a fleet: pairs of nodes exchange data."""

import itertools
import statistics
import time
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from harness import ranks
from harness.hooks.watchdog import WATCHDOG
from runlog.json_types import JsonObject
from tools.fleet.record import EXCHANGE_MIB
from tools.fleet.rounds import Pair, rounds

PINGS = 50  # in each measurement of a pair
ALL_REDUCES = 2  # in each measurement of a pair
LINK_TURNS = 5  # measurements of each pair


class ExchangeTimes(NamedTuple):
    """The seconds of an exchange of data between two ranks."""

    latency_s: float  # of a few bytes
    transfer_s: float  # of an all-reduce


def exchange(comm: MPI.Comm, other: int) -> ExchangeTimes:
    """Exchange data with another rank, which must call this at the same time; return the times.

    Args:
        comm: An MPI communicator with both ranks.
        other: The number of the other rank in it.
    """
    return ExchangeTimes(latency_s=_latency_s(comm, other), transfer_s=_transfer_s(comm, other))


def _latency_s(comm: MPI.Comm, other: int) -> float:
    """Return the median seconds of PINGS exchanges, in which this rank and `other` send 8 bytes to each other."""
    small = np.zeros(1)
    answer = np.zeros(1)
    pings_s = []
    for _ in range(PINGS):
        began = time.perf_counter()
        comm.Sendrecv(small, other, recvbuf=answer, source=other)
        pings_s.append(time.perf_counter() - began)
    return statistics.median(pings_s)


def _transfer_s(comm: MPI.Comm, other: int) -> float:
    """Return the mean seconds of ALL_REDUCES all-reduces of EXCHANGE_MIB between this rank and `other`."""
    mine = np.ones(EXCHANGE_MIB * 2**18, np.float32)
    theirs = np.empty_like(mine)
    began = time.perf_counter()
    for _ in range(ALL_REDUCES):
        comm.Sendrecv(mine, other, recvbuf=theirs, source=other)
        mine += theirs
    return (time.perf_counter() - began) / ALL_REDUCES


def measure_links(comm: MPI.Comm, groups: list[str]) -> list[JsonObject]:
    """Measure the links between nodes, each LINK_TURNS (5) times, and return the same list of links on each rank.

    A link is a pair of nodes that exchange data. In a large fleet each node meets only about log2(nodes) others. A turn
    measures each link once, in several rounds, so that a node has at most one partner at a time. All ranks of `comm`
    must call this together.

    Args:
        comm: An MPI communicator with one rank of each node. The number of a rank in `comm` is the number of its node.
        groups: The switch group of each node (the nodes at one network switch), such as ["s1", "s1", "s2"].

    Returns:
        An entry for each measured link: the numbers of its two nodes, whether their groups differ, and the seconds of
        the latency and of the transfer in each turn:

            {"a": 0, "b": 1, "across": False, "latency_s": [...], "transfer_s": [...]}
    """
    planned_rounds = rounds(groups)  # for each round the pairs of nodes that exchange data at the same time
    _take_turn(comm, planned_rounds)  # the warm-up, whose times are not kept
    # `_take_turn` gives {pair: times of its exchange}. It takes part in all pairs of this rank, but gives only those in
    # which this rank has the lower number. The other rank of a pair leaves it out, so that no pair comes twice.
    my_turns = [_take_turn(comm, planned_rounds) for _ in range(LINK_TURNS)]
    my_pairs = list(my_turns[0])  # each turn has the same pairs
    my_links = []
    for pair in my_pairs:
        times_in_each_turn = [times_by_pair[pair] for times_by_pair in my_turns]  # LINK_TURNS of them
        my_links.append(_link_entry(pair, times_in_each_turn))
    links_by_rank = comm.allgather(my_links)  # a list for each rank
    return list(itertools.chain.from_iterable(links_by_rank))


def _take_turn(comm: MPI.Comm, planned_rounds: list[list[Pair]]) -> dict[Pair, ExchangeTimes]:
    """Exchange data once with this rank's partner in each round, and return how long each exchange took.

    All ranks of `comm` must call this together and with the same rounds. If this rank has no partner in a round, it
    only waits for the other ranks at the start of the round.

    Args:
        comm: An MPI communicator with one rank of each node. A rank has the number of its node.
        planned_rounds: For each round, the pairs of nodes that exchange data at the same time. A node is in at most one
            pair of a round, and no pair occurs in two rounds.

    Returns:
        The times in seconds, by pair, of the pairs in which this rank has the lower number (`pair.a`). The other rank
        of a pair returns no times for it, so that each pair is reported once.
    """
    my_number = comm.Get_rank()
    my_times: dict[Pair, ExchangeTimes] = {}
    for pairs_of_round in planned_rounds:
        WATCHDOG.beat("exchanging data in pairs")  # the watchdog ends a process that reports no progress for too long
        ranks.wait(comm)  # all pairs of the round start at the same time
        for pair in pairs_of_round:  # this rank is in at most one of them
            if my_number == pair.a:
                my_times[pair] = exchange(comm, pair.b)
            elif my_number == pair.b:
                exchange(comm, pair.a)
    return my_times


def _link_entry(pair: Pair, times_of_turns: list[ExchangeTimes]) -> JsonObject:
    """Return a link as the fleet's record has it, with its times in each turn."""
    return {
        "a": pair.a,
        "b": pair.b,
        "across": pair.across,
        "latency_s": [times.latency_s for times in times_of_turns],
        "transfer_s": [times.transfer_s for times in times_of_turns],
    }
