"""The doctor's judgement of all nodes: each of them, what must be the same on all, and their ranks and clocks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from harness import env
from runlog.verdict import WARNING, Verdict
from tools.doctor.checks import CLOCK_S, judge_data, judge_machine, judge_network, row
from tools.doctor.gpu import judge_gpus, judge_libraries


def judge_node(facts: dict[str, Any], job: env.Job) -> Iterator[Verdict]:
    """Checks of one node."""
    if job.device == "gpu":
        yield from judge_gpus(facts, job)
        yield from judge_libraries(facts["libraries"], job)
    for name, (error, package) in facts["imports"].items():
        yield row(job, f"python.{name}", not error, error or "imported", package=package)
    yield from judge_machine(facts, job)
    yield from judge_network(facts, job)
    yield from judge_data(facts, job)


def judge_all(nodes: list[dict[str, Any]], job: env.Job) -> list[Verdict]:
    """All checks: each node's, then what must be the same on all of them."""
    verdicts: list[Verdict] = []
    for node in nodes:
        for verdict in judge_node(node, job):
            if len(nodes) > 1:
                verdict = dataclasses.replace(verdict, found=f"{node['host']}: {verdict.found}")
            if verdict not in verdicts:  # eight GPUs have one driver
                verdicts.append(verdict)
    same = {
        "code.commit": [node["source"]["commit"] for node in nodes],
        "code.files": [node["code_sha256"][:12] for node in nodes],
        "code.lock": [node["source"]["lock_sha256"][:12] for node in nodes],
        "code.image": [node["source"]["image_digest"] for node in nodes],
    }
    if any(node["data"] for node in nodes):
        lists = [[entry.get("sha256", "")[:12] for entry in (node["data"] or {}).values()] for node in nodes]
        same["data.same"] = [" ".join(hashes) for hashes in lists]
    for check, values in same.items():
        alike = len(set(values)) == 1
        each = ", ".join(f"{node['host']} {value}" for node, value in zip(nodes, values, strict=True))
        verdicts.append(row(job, check, alike, str(values[0]) if alike else each, nodes=len(nodes)))
    dirty = nodes[0]["source"]["dirty"]
    found = {True: "differs from the commit", False: "as committed", None: "unknown: no git and no image"}[dirty]
    return [*verdicts, row(job, "code.clean", dirty is False, found)]


def judge_ranks(hosts: list[str], offsets_s: list[float], job: env.Job) -> list[Verdict]:
    """MPI came up over `hosts` (one entry a rank); each node's clock is `offsets_s` ahead of the first one's."""
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    found, apart_s = ", ".join(f"{host} {count}" for host, count in counts.items()), max(map(abs, offsets_s))
    return [
        row(job, "mpi.ranks", len(hosts) == job.world_size, found),
        row(job, "clock.difference", apart_s <= CLOCK_S, f"at most {apart_s:.4f} s", most_s=CLOCK_S),
    ]


def judge_start(error: str, job: env.Job) -> list[Verdict]:
    """Of one node by itself: whether mpirun started ranks on it, or why not."""
    verdicts = [row(job, "mpi.start", not error, error or "2 ranks added a number")]
    if job.dgxnnodes > 1:
        verdicts.append(row(job, "mpi.ranks", False, "this node alone was looked at", bad=WARNING))
    return verdicts


def clock_offset_s(comm: Any, other: int) -> float:
    """Seconds by which rank `other`'s clock is ahead of rank 0's, by the quickest of five questions."""
    best = (float("inf"), 0.0)
    for _ in range(5):
        if comm.Get_rank() == 0:
            before = time.time()
            comm.send(None, dest=other)
            theirs = comm.recv(source=other)
            after = time.time()
            best = min(best, (after - before, theirs - (before + after) / 2))
        elif comm.Get_rank() == other:
            comm.recv(source=0)
            comm.send(time.time(), dest=0)
    return best[1]
