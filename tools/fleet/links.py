"""The measurements of the links between the nodes of a fleet: pairs of nodes exchange data."""

import dataclasses
import itertools
import statistics
import time

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


def exchange(comm: MPI.Comm, other: int) -> dict[str, float]:
    """Exchange data with the rank `other`, which must call this at the same time.

    Returns the seconds of an exchange: {"latency_s": of a few bytes, "transfer_s": of an all-reduce}.
    """
    return {"latency_s": _latency_s(comm, other), "transfer_s": _transfer_s(comm, other)}


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
    """Measure the links between nodes, each LINK_TURNS times; return all links on each rank of `comm`.

    `comm` has one rank of each node, and all its ranks must call this together. A link is
    {"a": 0, "b": 1, "across": False, "latency_s": [...], "transfer_s": [...]}, with a time for each turn.
    """
    my_links: dict[Pair, dict[str, list[float]]] = {}  # {link: {metric: its times}}
    planned_rounds = rounds(groups)
    for turn in range(LINK_TURNS + 1):
        is_warm_up = turn == 0
        for pairs_of_round in planned_rounds:
            WATCHDOG.beat("exchanging data in pairs")
            ranks.wait(comm)
            measured = _exchange_in_round(comm, pairs_of_round)
            if measured is not None and not is_warm_up:
                pair, times_s = measured
                _append_each(my_links.setdefault(pair, {}), times_s)
    mine = [dataclasses.asdict(pair) | times_s for pair, times_s in my_links.items()]
    return list(itertools.chain.from_iterable(comm.allgather(mine)))


def _exchange_in_round(comm: MPI.Comm, pairs_of_round: list[Pair]) -> tuple[Pair, dict[str, float]] | None:
    """Exchange data with this rank's partner of a round; return their pair, and the times of `exchange`.

    None if this rank has no partner, or if it is `b` of its pair, so that only rank `a` keeps the times.
    """
    my_number = comm.Get_rank()
    for pair in pairs_of_round:  # each rank is in at most one of them
        if my_number == pair.a:
            return pair, exchange(comm, pair.b)
        if my_number == pair.b:
            exchange(comm, pair.a)
    return None


def _append_each(lists: dict[str, list[float]], values: dict[str, float]) -> None:
    """Append each value to the list of the same name; a list that is not there yet is added."""
    for name, value in values.items():
        lists.setdefault(name, []).append(value)
