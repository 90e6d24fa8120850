"""The measurements of a fleet's acceptance on each rank: by the rank alone, then by pairs of nodes, then by all ranks.

If the job has one node, its ranks are compared as if they were nodes, so that a slow GPU of one machine is found.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
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
from tools.doctor.node import probe
from tools.fleet import digests
from tools.fleet.alone import (
    MAX_STEPS,
    MIN_STEPS,
    RankMeasurements,
    RankTimes,
    measure_in_turns,
    merge_by_host,
    refuse_step,
    slowest_of_each_turn,
)
from tools.fleet.facts import facts_of_node
from tools.fleet.links import measure_links
from tools.fleet.record import FORMAT
from tools.fleet.rounds import groups_of
from tools.fleet.steps import Programs, programs

DOCTOR_S = 180.0  # the most that the doctor takes: it ends each start of CUDA that hangs
TOGETHER_S = 5.0  # of training steps of all ranks together
# The settings of the job that decide how long a step and the input take. Records with other values are not comparable.
JOB_SETTINGS = ("workload", "recipe", "precision", "layout", "batchsize", "image_size", "device", "dgxngpu")


def examine_node(job: Job, me: ranks.Ranks) -> JsonObject:
    """Check the health of this node, and collect the facts that decide its speed; return both on each of its ranks.

    Only the first rank of the node runs the checks (tools/doctor). All ranks must call this together, before any of
    them uses its GPU, because a GPU in use is reported.

    Args:
        job: The settings of the job.
        me: This rank, with its MPI communicator of all ranks.

    Returns:
        {"failed": ["gpu.ecc: GPU3: 2 uncorrected, ..."], "facts": {"CPU": "AMD EPYC 7742", ...}}. "failed" has the
        checks of fatal status.
    """
    WATCHDOG.beat("looking at the node", extra_s=DOCTOR_S)
    ranks_of_node = me.comm.Split_type(MPI.COMM_TYPE_SHARED, me.rank)
    # `gather` gives the node's first rank the cores of each of its ranks, and the other ranks None.
    cores_of_ranks: list[list[int]] | None = ranks_of_node.gather(provenance.own_cores())
    result_of_first_rank: JsonObject | None = None
    if cores_of_ranks is not None:
        result_of_first_rank = _run_doctor(job, cores_of_ranks, node_number=me.rank // job.cluster.dgxngpu)
    ranks.wait(me.comm)  # so that no rank goes on before the doctor has ended on all nodes

    result: JsonObject | None = ranks_of_node.bcast(result_of_first_rank)  # the first rank sends it to the others
    ranks_of_node.Free()
    assert result is not None
    return result


def _run_doctor(job: Job, cores_of_ranks: list[list[int]], *, node_number: int) -> JsonObject:
    """Return what the health check (tools/doctor) finds on this node, and the node's facts.

    Args:
        job: The settings of the job.
        cores_of_ranks: For each rank of the node the cores that it may use.
        node_number: The number of this node in the job, from 0.

    Returns:
        {"failed": [...], "facts": {...}}. "failed" has the checks of fatal status, such as "gpu.ecc: GPU3: 2
        uncorrected".
    """
    probed = probe(job, rank_cores=cores_of_ranks, node=node_number)
    failed = [f"{verdict.check}: {verdict.found}" for verdict in judge_node(probed, job) if verdict.status == FATAL]
    return {"failed": failed, "facts": facts_of_node(job, probed)}


def gather_nodes(representatives: MPI.Comm, mine: JsonObject) -> list[JsonObject] | None:
    """Return on the first rank what `examine_node` found on each compared host, with the offset of the host's clock.

    The compared hosts are the nodes of the job or, if the job has only one node, its ranks. All ranks of
    `representatives` must call this together.

    Args:
        representatives: An MPI communicator with one rank of each compared host.
        mine: What `examine_node` found on this rank's node: {"failed": [...], "facts": {...}}.

    Returns:
        On the first rank a list with an item for each host, such as {"failed": [], "facts": {...}, "clock_offset_s":
        0.002}, if the host's clock is 2 ms ahead of the first host's. None on the other ranks.
    """
    offsets_s = [0.0]  # of the first host from itself; only the first rank uses this list
    for other in range(1, representatives.Get_size()):
        offsets_s.append(clock_offset_s(representatives, other))  # the first rank asks `other` for its clock
    nodes = representatives.gather(mine)  # `mine` of each compared host, in order; None on all ranks but the first
    if nodes is None:
        return None
    return [node | {"clock_offset_s": offset_s} for node, offset_s in zip(nodes, offsets_s, strict=True)]


def time_steps_together(
    me: ranks.Ranks, take_step_of_all: Callable[[], float], times_alone_by_rank: Sequence[Sequence[float]]
) -> list[float]:
    """Take training steps of all ranks together; return the seconds of each step on its slowest rank.

    About TOGETHER_S (5) seconds of steps are taken, at least MIN_STEPS (3) and at most MAX_STEPS (200). All ranks
    must call this together.

    Args:
        me: This rank, with its MPI communicator of all ranks.
        take_step_of_all: Takes one step with all ranks, and returns its seconds on this rank.
        times_alone_by_rank: For each rank the seconds of the steps that it took alone.

    Returns:
        The seconds of each step. If a rank took no step alone, none is taken, and the list is empty.
    """
    if not all(times_alone_by_rank):
        return []
    my_times_s = []
    for _ in range(_steps_in_time(times_alone_by_rank)):
        WATCHDOG.beat("computing a step together")
        my_times_s.append(take_step_of_all())
    times_by_rank = me.comm.allgather(my_times_s)
    return slowest_of_each_turn(times_by_rank)  # a step is a turn here


def _steps_in_time(times_alone_by_rank: Sequence[Sequence[float]]) -> int:
    """Return how many steps the slowest rank takes in TOGETHER_S seconds, but from MIN_STEPS to MAX_STEPS."""
    slowest_s = max(statistics.median(times_alone_s) for times_alone_s in times_alone_by_rank)
    steps = round(TOGETHER_S / slowest_s)
    return max(MIN_STEPS, min(MAX_STEPS, steps))


class ComparedHosts(NamedTuple):
    """The hosts of a job that are compared: its nodes, or its ranks if it has one node."""

    names: list[str]
    groups: list[str]  # the switch group of each host
    my_index: int  # of the host that this rank belongs to
    is_representative: bool  # whether this rank represents its host: one rank of each host does


def compared_hosts(job: Job, me: ranks.Ranks) -> ComparedHosts:
    """Return the hosts of a job whose speed is compared: its nodes or, if it has one node, its ranks.

    Args:
        job: The settings of the job.
        me: This rank.

    Returns:
        Their names (a rank's is "node:rank"), the switch group of each, which of them this rank belongs to, and whether
        this rank is the one that represents it.

    Raises:
        ValueError: SWITCH_GROUPS is set and does not name one group for each node.
    """
    groups_of_nodes = groups_of(job.cluster.switch_groups, job.cluster.dgxnnodes)  # refuses a wrong SWITCH_GROUPS
    if job.cluster.dgxnnodes == 1:
        names = [f"{me.node}:{rank}" for rank in range(me.size)]
        same_group = [""] * me.size
        return ComparedHosts(names, same_group, my_index=me.rank, is_representative=True)
    return ComparedHosts(
        names=job.cluster.hosts.split(","),
        groups=groups_of_nodes,
        my_index=me.rank // job.cluster.dgxngpu,
        is_representative=me.local_rank == 0,
    )


def main(job: Job, origins: Origins) -> None:
    """Take this rank's part in the measurements of a fleet; rank 0 writes the record of all ranks.

    Every rank of the job must call this.

    Args:
        job: The settings of the job. The record is written to its RESULT_FILE with the suffix .json.
        origins: Each setting's value with who set it.

    Raises:
        ValueError: The job is not one of ResNet-50, SWITCH_GROUPS is set and does not name one group for each node, or
            mpirun started another number of ranks than the settings say.
    """
    if job.model.workload != "rn50":
        raise ValueError(f"WORKLOAD={job.model.workload}: a fleet's steps are ResNet-50's: set WORKLOAD=rn50")
    began = time.monotonic()
    me = ranks.start(job.cluster)
    hosts = compared_hosts(job, me)  # refuses wrong settings, so it comes before what takes long
    node_result = examine_node(job, me)
    machine = _start_paddle(job, origins, me)  # uses the GPUs, which the doctor of `examine_node` must find unused
    record = measure(machine, hosts, node_result)
    record["took_s"] = round(time.monotonic() - began, 1)
    if me.is_first:
        Path(job.trials.result_file).with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")


def _start_paddle(job: Job, origins: Origins, me: ranks.Ranks) -> Machine:
    """Connect the ranks by Paddle, and return this rank's machine; all ranks must call this together."""
    ranks.connect(job.cluster, me)
    paddle.enable_static()
    return Machine(job, origins, me, short=True)  # `short` only concerns the checks of an acceptance


class NetworkResults(NamedTuple):
    """The results on the network. They are empty on a rank that represents no compared host."""

    links: list[JsonObject]
    nodes: list[JsonObject] | None  # of `gather_nodes`: None on all ranks but the first


class TrainingResults(NamedTuple):
    """Results of training on all ranks at the same time."""

    digests: JsonObject | None  # None: this Paddle has no kernels for a rank's device
    step_times_s: list[float]  # empty: no steps were taken


def measure(machine: Machine, hosts: ComparedHosts, node_result: JsonObject) -> JsonObject:
    """Measure a fleet: each rank alone, then the links between hosts, then a training of all ranks.

    All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        hosts: The hosts to compare: the job's nodes or, if it has one node, its ranks.
        node_result: What `examine_node` found on this rank's node: {"failed": [...], "facts": {...}}.

    Returns:
        The record (fleet.json) without "took_s", the seconds of the whole measurement. Only rank 0 has all of it.
    """
    training_programs = _programs_if_possible(machine)
    measured_by_rank = _measure_alone(machine, training_programs, hosts)
    step_times_alone_by_rank = [of_rank.step_times_s for of_rank in measured_by_rank]
    network = _measure_network(machine.me, hosts, node_result)
    training = TrainingResults(digests=None, step_times_s=[])  # if no training is possible
    if training_programs is not None:
        training = _measure_training(machine, training_programs, hosts, step_times_alone_by_rank)
    return _header(machine.job) | {
        "hosts": hosts.names,
        "groups": hosts.groups,  # the switch group of each host
        "metrics": merge_by_host(hosts.names, measured_by_rank),  # the times of each host alone
        "links": network.links,  # the times between two hosts
        "digests": training.digests,  # hashes of what each rank computes by itself
        "whole_s": training.step_times_s,  # of each training step of all ranks together
        "steps_s": step_times_alone_by_rank,
        "nodes": network.nodes,  # the findings on each host's health; None but on rank 0
    }


def _measure_alone(machine: Machine, training_programs: Programs | None, hosts: ComparedHosts) -> list[RankTimes]:
    """Measure on each rank what it does without the others; return what each rank measured, in the order of the ranks.

    Measured are training steps of the rank alone, the GPU's clock, copies in host memory, the input pipeline and, on
    one rank of each host, the disk. All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        training_programs: The programs of the training steps; None if Paddle has no kernels for a GPU. Then no step is
            timed, and the results say why.
        hosts: The compared hosts, among them the host of this rank.
    """
    # Without programs `refuse_step` raises NotPossible in place of a step, with the reason.
    take_step_alone = training_programs.step_alone if training_programs else refuse_step
    measurements = RankMeasurements(machine, take_step_alone, with_disk=hosts.is_representative)
    mine = measure_in_turns(machine.me, measurements, host_index=hosts.my_index)
    measured_by_rank: list[RankTimes] = machine.me.comm.allgather(mine)
    return measured_by_rank


def _measure_network(me: ranks.Ranks, hosts: ComparedHosts, node_result: JsonObject) -> NetworkResults:
    """Measure the network between the compared hosts of a job, and gather the results of each host's health check.

    One rank of each host, its representative, does this, while the others wait. All ranks must call this together.

    Args:
        me: This rank, with its MPI communicator of all ranks.
        hosts: The compared hosts: nodes or, if the job has only one node, ranks.
        node_result: What `examine_node` found on this rank's node: {"failed": [...], "facts": {...}}.

    Returns:
        The times of the links, on representatives only, and the health results, on the first rank only.
    """
    results = NetworkResults(links=[], nodes=None)
    # `Split` makes two communicators: one of the representatives, and one of the other ranks.
    representatives_or_others = me.comm.Split(0 if hosts.is_representative else 1, me.rank)
    if hosts.is_representative:
        links = measure_links(representatives_or_others, hosts.groups)
        nodes = gather_nodes(representatives_or_others, node_result)
        results = NetworkResults(links, nodes)
    ranks.wait(me.comm)
    return results


def _measure_training(
    machine: Machine,
    training_programs: Programs,
    hosts: ComparedHosts,
    times_alone_by_rank: Sequence[Sequence[float]],
) -> TrainingResults:
    """Train twice: first each rank by itself, for hashes of what it computes, then all together, for the step times.

    All ranks must call this together.

    Args:
        machine: This rank's part of the machine.
        training_programs: The programs of the two trainings.
        hosts: The compared hosts, among them the host of this rank.
        times_alone_by_rank: For each rank the seconds of the steps of `_measure_alone`, from which follows how many
            steps are taken together.
    """
    me = machine.me
    # Each rank repeats the same steps without all-reduces. Other hashes than those of the other ranks show a fault.
    repeated = training_programs.repeatable_training
    digests_of_all = digests.measure_all_ranks(machine.job.cluster, me, repeated, host_index=hosts.my_index)
    step_times_s = time_steps_together(me, training_programs.step_of_all, times_alone_by_rank)
    return TrainingResults(digests_of_all, step_times_s)


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
