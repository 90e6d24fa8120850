"""The measurements of a fleet's acceptance on each rank: by the rank alone, then by pairs of nodes, then by all ranks.

If the job has one node, its ranks are compared as if they were nodes, so that a slow GPU of one machine is found.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import paddle
from mpi4py import MPI

from harness import provenance, ranks
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins
from runlog.json_types import JsonObject
from runlog.schema import as_json
from runlog.verdict import FATAL
from tools.acceptance.machine import Machine
from tools.doctor.checks import clock_offset_s, judge_node
from tools.doctor.node import cores_by_launcher, probe
from tools.fleet import digests
from tools.fleet.alone import (
    LEAST_STEPS,
    MOST_STEPS,
    RankMeasurements,
    RankResult,
    measure_in_turns,
    merge_by_host,
    slowest_of_each_turn,
)
from tools.fleet.links import measure_links
from tools.fleet.record import FORMAT, facts_of_node
from tools.fleet.rounds import groups_of
from tools.fleet.steps import Programs, programs

DOCTOR_S = 180.0  # the most that the doctor takes: it ends each start of CUDA that hangs
TOGETHER_S = 5.0  # of training steps of all ranks together
# The settings of the job that decide how long a step and the input take. Records with other values are not comparable.
JOB_SETTINGS = ("workload", "recipe", "precision", "layout", "batchsize", "image_size", "device", "dgxngpu")


def examine_node(job: Job, me: ranks.Ranks) -> JsonObject:
    """Check this node by the doctor (tools/doctor); return the result on each rank of the node.

    The result is {"failed": ["gpu.ecc: GPU3: 2 uncorrected, ..."], "facts": {...}}: the fatal verdicts as texts, and
    the node's facts for the record.

    All ranks must call this together, before they use their GPUs: the doctor would report the process of a rank on a
    GPU as a foreign one. The first rank of each node runs the doctor, and the others wait.
    """
    WATCHDOG.beat("looking at the node", extra_s=DOCTOR_S)
    result: JsonObject | None = None
    is_first_of_node = me.local_rank == 0
    if is_first_of_node:
        probed = probe(job, rank_cores=cores_by_launcher(job), node=me.rank // job.cluster.dgxngpu)
        failed = [f"{verdict.check}: {verdict.found}" for verdict in judge_node(probed, job) if verdict.status == FATAL]
        result = {"failed": failed, "facts": facts_of_node(job, probed)}
    ranks.wait(me.comm)

    ranks_of_node = me.comm.Split_type(MPI.COMM_TYPE_SHARED, me.rank)
    result = ranks_of_node.bcast(result)  # from its first rank
    ranks_of_node.Free()
    assert result is not None
    return result


def gather_nodes(representatives: MPI.Comm, mine: JsonObject) -> list[JsonObject] | None:
    """Return the results of `examine_node` of all nodes on the first rank of `representatives`, and None on the others.

    `representatives` has one rank of each node, or all ranks if the job has one node. All of them must call this at the
    same time, because they exchange messages. `mine` is the result on this rank's node.

    "clock_offset_s" is added to each result: the seconds by which the node's clock is ahead of the first node's.
    """
    offsets_s = [0.0]  # of the first node from itself
    for other in range(1, representatives.Get_size()):
        offsets_s.append(clock_offset_s(representatives, other))
    nodes = representatives.gather(mine)
    if nodes is None:  # not the first rank
        return None
    return [node | {"clock_offset_s": offset_s} for node, offset_s in zip(nodes, offsets_s, strict=True)]


def time_steps_together(
    me: ranks.Ranks, measurements: RankMeasurements, take_step_of_all: Callable[[], float] | None
) -> list[float]:
    """Take training steps of all ranks together; return the seconds of each step on its slowest rank.

    All ranks must call this together. `take_step_of_all` takes this rank's part of a step and returns its seconds. It
    must be None on all ranks or on none, because a step needs all ranks.

    The number of steps is TOGETHER_S divided by the median time of a step of the slowest rank alone, but at least
    LEAST_STEPS and at most MOST_STEPS. The list is empty if no step can be taken, or if any rank has taken none alone.
    """
    times_alone_s = measurements.all_step_times_s
    mine_s = statistics.median(times_alone_s) if times_alone_s else math.inf
    slowest_s = max(me.comm.allgather(mine_s))  # infinite if any rank has taken no step
    times_s = []
    if take_step_of_all is not None and not math.isinf(slowest_s):
        count = round(TOGETHER_S / slowest_s)
        count = max(LEAST_STEPS, min(MOST_STEPS, count))
        for _ in range(count):
            WATCHDOG.beat("computing a step together")
            times_s.append(take_step_of_all())
    times_by_rank = me.comm.allgather(times_s)
    return slowest_of_each_turn(times_by_rank)


class ComparedHosts(NamedTuple):
    """The hosts of a job that are compared: its nodes, or its ranks if it has one node."""

    names: list[str]
    groups: list[str]  # the switch group of each host
    my_index: int  # of the host that this rank belongs to


def compared_hosts(job: Job, me: ranks.Ranks) -> ComparedHosts:
    """Return the hosts of the job that are compared: its nodes, or its ranks as "node:rank" if it has one node.

    Raises ValueError if SWITCH_GROUPS does not fit the nodes.
    """
    groups = groups_of(job.cluster.switch_groups, job.cluster.dgxnnodes)
    if job.cluster.dgxnnodes == 1:
        names = [f"{me.node}:{rank}" for rank in range(me.size)]
        return ComparedHosts(names, groups=[""] * me.size, my_index=me.rank)  # all ranks are in one group
    return ComparedHosts(job.cluster.hosts.split(","), groups, my_index=me.rank // job.cluster.dgxngpu)


def main(job: Job, origins: Origins) -> None:
    """Take this rank's part in a fleet's measurements; rank 0 writes the record of all beside RESULT_FILE, as JSON.

    Every rank of the job must call this. Raises ValueError for a job of HRNet, or if SWITCH_GROUPS does not fit the
    nodes.
    """
    if job.model.workload != "rn50":
        raise ValueError(f"WORKLOAD={job.model.workload}: a fleet's steps are ResNet-50's: set WORKLOAD=rn50")
    began = time.monotonic()
    me = ranks.start(job.cluster)
    hosts = compared_hosts(job, me)
    node_result = examine_node(job, me)  # before a rank uses its GPU
    ranks.connect(job.cluster, me)
    paddle.enable_static()
    record = measure(Machine(job, origins, me, short=True), hosts, node_result)
    record["took_s"] = round(time.monotonic() - began, 1)
    if me.is_first:
        Path(job.trials.result_file).with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")


def measure(machine: Machine, hosts: ComparedHosts, node_result: JsonObject) -> JsonObject:
    """Measure the hosts, their links, the digests of a repeatable training and steps of all ranks; return the record.

    All ranks must call this together. Only rank 0 gets the complete record of the fleet. `node_result` is the result of
    `examine_node` on this rank.

    If the Paddle of any rank has no kernels for its device, no training steps are taken: then "digests" is None, and
    "whole_s" is empty.
    """
    job = machine.job
    me = machine.me
    ready = _programs_if_possible(machine)  # the programs of the training steps; None if they cannot run here
    # `step_alone` takes a step of this rank without the others. `step_of_all` takes this rank's part of a common step.
    measurements = RankMeasurements(machine, ready.step_alone if ready else None)
    measure_in_turns(me, measurements)
    digests_of_all = None
    if ready:
        training = ready.repeatable_training
        digests_of_all = digests.measure_all_ranks(job.cluster, me, training, host_index=hosts.my_index)
    results = me.comm.allgather(RankResult(hosts.my_index, measurements.values, measurements.failures))
    represents_host = measurements.represents_host
    # One rank of each compared host measures the links; the others wait.
    representatives = me.comm.Split(0 if represents_host else 1, me.rank)
    links = measure_links(representatives, hosts.groups) if represents_host else []
    ranks.wait(me.comm)
    return _header(job) | {
        "hosts": hosts.names,
        "groups": hosts.groups,
        "metrics": merge_by_host(hosts.names, results),
        "links": links,
        "digests": digests_of_all,
        "whole_s": time_steps_together(me, measurements, ready.step_of_all if ready else None),
        "steps_s": me.comm.allgather(measurements.all_step_times_s),
        "nodes": gather_nodes(representatives, node_result) if represents_host else None,
    }


def _programs_if_possible(machine: Machine) -> Programs | None:
    """Return the programs that the fleet check runs, ready to be timed; None if any rank's Paddle has no kernels."""
    if not all(machine.me.comm.allgather(machine.has_kernels)):
        return None
    ready = programs(machine)
    ready.step_alone()  # the first run of each program builds it
    ready.step_of_all()
    return ready


def _header(job: Job) -> JsonObject:
    """Return the first fields of a fleet's record: its format, the time, and what was measured."""
    return FORMAT | {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": job.cluster.dgxsystem,
        "job": {name: job.value(name.upper()) for name in JOB_SETTINGS},
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
    }
