"""Says before a run what will fail in it: `python -m tools.doctor [--json]`, alone or by mpirun over all nodes.

Each node's first rank looks at its node (`probe`), rank 0 judges what all of them found (`judge_all`) and prints it.
The job is the environment's, as for a run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import env
from tools.doctor.checks import FATAL, OK, WARNING, Result, judge_data, judge_machine, judge_network, verdict
from tools.doctor.gpu import judge_gpus, judge_libraries
from tools.doctor.node import probe

CLOCK_S = 0.5


def judge_node(facts: dict[str, Any], job: env.Job) -> Iterator[Result]:
    """Checks of one node."""
    if job.device == "gpu":
        yield from judge_gpus(facts, job)
        yield from judge_libraries(facts["libraries"])
    yield from judge_machine(facts, job)
    yield from judge_network(facts, job)
    yield from judge_data(facts, job)


def judge_all(nodes: list[dict[str, Any]], job: env.Job) -> list[Result]:
    """All checks: each node's, then what must be the same on all of them."""
    results: list[Result] = []
    for node in nodes:
        for result in judge_node(node, job):
            if len(nodes) > 1:
                result = dataclasses.replace(result, found=f"{node['host']}: {result.found}")
            if result not in results:  # eight GPUs have one driver
                results.append(result)
    same = {
        "code.commit": ([n["source"]["commit"] for n in nodes], "check out the same commit on every node"),
        "code.files": ([n["code_sha256"][:12] for n in nodes], "copy the same files to every node, or use the image"),
        "code.lock": ([n["source"]["lock_sha256"][:12] for n in nodes], "use the same locks/run.lock on every node"),
        "code.image": ([n["source"]["image_digest"] for n in nodes], "pull the same image on every node"),
    }
    if any(node["data"] for node in nodes):
        lists = [[entry.get("sha256", "")[:12] for entry in (n["data"] or {}).values()] for n in nodes]
        same["data.same"] = ([" ".join(hashes) for hashes in lists], "copy the same list files to every node")
    for check, (values, fix) in same.items():
        alike = len(set(values)) == 1
        each = ", ".join(f"{n['host']} {v}" for n, v in zip(nodes, values, strict=True))
        found = str(values[0]) if alike else each
        results.append(verdict(check, alike, found, f"the same on {len(nodes)} nodes", fix))
    dirty = nodes[0]["source"]["dirty"]
    found = {True: "differs from the commit", False: "as committed", None: "unknown: no git and no image"}[dirty]
    fix = "commit the changes: a log of changed code may not be published"
    return [*results, verdict("code.clean", dirty is False, found, "as committed", fix, bad=WARNING)]


def _judge_mpi(hosts: list[str], offsets_s: list[float], job: env.Job) -> list[Result]:
    """MPI came up over `hosts` (one entry a rank); each node's clock is `offsets_s` ahead of the first one's."""
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    worst = max(offsets_s, key=abs)
    return [
        verdict(
            "mpi.ranks",
            len(hosts) == job.world_size,
            ", ".join(f"{host} {count}" for host, count in counts.items()),
            f"DGXNNODES={job.dgxnnodes} x DGXNGPU={job.dgxngpu} ranks",
            "start it by ./run_and_time.sh --check on every node",
        ),
        verdict(
            "clock.difference",
            abs(worst) <= CLOCK_S,
            f"at most {abs(worst):.4f} s",
            f"under {CLOCK_S} s between nodes",
            "let chrony or ntpd set the clocks",
            bad=WARNING,
        ),
    ]


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


def over_mpi(job: env.Job) -> list[Result] | None:
    """Looks at every node of the job; the results on rank 0, None on the others."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = comm.allgather(local.Get_rank() == 0)
    nodes = comm.gather(probe(job) if local.Get_rank() == 0 else None)
    hosts = comm.gather(socket.gethostname())
    offsets = [clock_offset_s(comm, rank) for rank, leads in enumerate(leaders) if leads and rank]
    if nodes is None or hosts is None:
        return None
    return judge_all([node for node in nodes if node], job) + _judge_mpi(hosts, [0.0, *offsets], job)


def alone(job: env.Job) -> list[Result]:
    """Looks at this node, and whether mpirun starts ranks on it."""
    started = time.monotonic()
    mpirun = Path(sys.executable).with_name("mpirun")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    script = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2"
    options = ["-n", "2", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    command = [str(mpirun), *root, *options, sys.executable, "-c", script]
    try:
        done = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        done, said = None, str(error)
    results = judge_all([probe(job)], job)
    if done is not None:
        try:
            said = done.communicate(timeout=max(1.0, 8 - (time.monotonic() - started)))[1]
        except subprocess.TimeoutExpired:
            done.terminate()
            said = "no answer in 8 s"
    good = done is not None and done.returncode == 0
    found = "2 ranks added a number" if good else " ".join(said.split())[:300]
    results.append(
        verdict("mpi.start", good, found, "mpirun starts ranks here", "launch/setup.sh run installs Open MPI")
    )
    if job.dgxnnodes > 1:
        results.append(
            verdict(
                "mpi.ranks",
                False,
                "this node alone was looked at",
                f"{job.dgxnnodes} nodes",
                "start it by ./run_and_time.sh --check on every node",
                bad=WARNING,
            )
        )
    return results


def main() -> int:
    """Prints the checks; 0 if none is fatal, 1 if one is, 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="python -m tools.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of {check, status, found, wanted, fix}")
    args = parser.parse_args()
    try:
        job, _ = env.read()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results = over_mpi(job) if env.is_rank() else alone(job)
    if results is None:
        return 0
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False))
    else:
        for result in results:
            line = f"{result.status:8}{result.check:24}{result.found}"
            print(line if result.status == OK else f"{line}\n{'':32}wanted: {result.wanted}\n{'':32}do: {result.fix}")
    return 1 if any(result.status == FATAL for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
