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
    """Exchange data with the rank `other`, which must call this at the same time; return the seconds of it.

    The result is {"latency_s": ..., "transfer_s": ...}.

    - The latency is the median time of PINGS exchanges, in which both ranks send 8 bytes.
    - The transfer is the mean time of ALL_REDUCES all-reduces of EXCHANGE_MIB between the two ranks. In each of them
      both ranks send their array, and add the received one to it.
    """
    small = np.zeros(1)
    answer = np.zeros(1)
    pings_s = []
    for _ in range(PINGS):
        began = time.perf_counter()
        comm.Sendrecv(small, other, recvbuf=answer, source=other)
        pings_s.append(time.perf_counter() - began)

    mine = np.ones(EXCHANGE_MIB * 2**18, np.float32)
    theirs = np.empty_like(mine)
    began = time.perf_counter()
    for _ in range(ALL_REDUCES):
        comm.Sendrecv(mine, other, recvbuf=theirs, source=other)
        mine += theirs
    transfer_s = (time.perf_counter() - began) / ALL_REDUCES
    return {"latency_s": statistics.median(pings_s), "transfer_s": transfer_s}


def measure_links(comm: MPI.Comm, groups: list[str]) -> list[JsonObject]:
    """Measure the links between nodes, each LINK_TURNS times; return all links on each rank of `comm`.

    `comm` has one rank of each node, and all its ranks must call this together. `groups` has each node's switch group.
    If the job has one node, its ranks take the place of nodes.

    rounds.py decides which nodes form pairs. In a round a node is in at most one pair. All rounds are run once as a
    warm-up before they are measured.

    A link is {"a": 0, "b": 1, "across": False, "latency_s": [...], "transfer_s": [...]}: the numbers of its nodes,
    whether they are in different groups, and a time for each measurement.
    """
    my_links: dict[Pair, dict[str, list[float]]] = {}  # {link: {metric: its times}}
    my_number = comm.Get_rank()
    planned_rounds = rounds(groups)
    for turn in range(LINK_TURNS + 1):
        is_warm_up = turn == 0
        for pairs_of_round in planned_rounds:
            WATCHDOG.beat("exchanging data in pairs")
            ranks.wait(comm)
            for pair in pairs_of_round:
                if my_number == pair.b:
                    exchange(comm, pair.a)  # node `a` keeps the times
                elif my_number == pair.a:
                    times_s = exchange(comm, pair.b)
                    if not is_warm_up:
                        _append_each(my_links.setdefault(pair, {}), times_s)
    mine = [dataclasses.asdict(pair) | times_s for pair, times_s in my_links.items()]
    return list(itertools.chain.from_iterable(comm.allgather(mine)))


def _append_each(lists: dict[str, list[float]], values: dict[str, float]) -> None:
    """Append each value to the list of the same name; a list that is not there yet is added."""
    for name, value in values.items():
        lists.setdefault(name, []).append(value)
