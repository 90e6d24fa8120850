"""The measurements of a fleet's acceptance on each rank: alone and at once, then in pairs of nodes, then all together.

Where the job has one node its ranks take the nodes' place, so that the GPUs of one machine are compared.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import paddle
from mpi4py import MPI

from harness import loader, nvidia, provenance, ranks, sampling
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins
from paddle_rn50.train import ResNet50
from runlog.json_types import JsonObject
from runlog.schema import as_json
from runlog.verdict import FATAL
from tools.acceptance.machine import Machine, NotPossible
from tools.doctor.checks import clock_offset_s, judge_node
from tools.doctor.node import probe
from tools.fleet import digests
from tools.fleet.record import EXCHANGE_MIB, FORMAT, facts_of_node
from tools.fleet.rounds import Pair, groups_of, rounds
from tools.fleet.steps import SEED, programs
from tools.fleet.verdicts import NOT_POSSIBLE

# A turn of a rank alone takes steps for STEP_S seconds, but at least and at most so many.
STEP_S = 2.0
LEAST_STEPS = 3
MOST_STEPS = 200
# Measuring alone (steps, memory, disk, input) ends after so many turns, or after TURNS times TURN_S seconds.
TURNS = 16
TURN_S = 4.0
LEAST_TURNS = 6  # also where they take longer than they should: five have an interval
COPY_MIB = 128  # copied in memory, a turn
DISK_MIB = 32  # read from DATADIR, a turn, or as much as DISK_S seconds allow
DISK_S = 1.0
FILES = 5000  # of DATADIR that are looked at
BATCHES = 6  # of the input pipeline, a turn
PINGS = 50  # of a pair, a turn
EXCHANGES = 2
DOCTOR_S = 180.0  # the most that it takes: each start of CUDA that hangs is ended
LINK_TURNS = 5  # each pair, in each round
WHOLE_S = 5.0
# What decides how long a step and the input take: another record with other values is no baseline.
JOB = ("workload", "recipe", "precision", "layout", "batchsize", "image_size", "device", "dgxngpu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A measurement of a rank alone."""

    metrics: tuple[str, ...]  # of the record, one for each value
    take: Callable[[], tuple[float, ...]]  # raises NotPossible where it cannot be had here


def first_files(folder: str) -> list[Path]:
    """List the first FILES files below a folder; none where `folder` is empty."""
    files: list[Path] = []
    for below, _, names in os.walk(folder):
        files.extend(Path(below, name) for name in sorted(names))
        if len(files) >= FILES:
            break
    return files[:FILES]


class Alone:
    """The measurements of this rank that need no other rank."""

    def __init__(self, machine: Machine, step: Callable[[], float] | None) -> None:
        """Prepare the measurements of this rank: of steps, clock, memory and input, and of the disk.

        `step` takes a training step and returns its seconds; None where this machine cannot. One rank of each node
        reads from the disk. Of a job of one node all do, as its ranks are compared like nodes.
        """
        self.machine = machine
        self.job = machine.job
        self.step = step
        self.leads = machine.me.local_rank == 0 or machine.job.cluster.dgxnnodes == 1
        self.values: dict[str, list[float]] = {}  # by metric, one a turn
        self.failed: dict[str, str] = {}  # by metric: why it was not measured
        self.steps: list[float] = []  # seconds of each step, for the jitter
        self.source = np.ones(COPY_MIB * 2**18, np.float32)
        self.target = np.ones_like(self.source)
        self.files = itertools.cycle(first_files(self.job.data.folder))
        self.measures = [
            Measure(metrics=("step_s", "step_mean_s"), take=self._steps),
            Measure(metrics=("clock_ns",), take=self._clock),
            Measure(metrics=("memory_s_per_gib",), take=self._memory),
        ]
        if self.leads:
            self.measures.append(Measure(metrics=("disk_s_per_gib",), take=self._disk))
        self.measures.append(Measure(metrics=("input_s",), take=self._input))

    def turn(self) -> None:
        """Take each measurement once; one that has failed is not tried again."""
        for measure in self.measures:
            if measure.metrics[0] in self.failed:
                continue
            WATCHDOG.beat(f"measuring {measure.metrics[0]}")
            try:
                for metric, value in zip(measure.metrics, measure.take(), strict=True):
                    self.values.setdefault(metric, []).append(value)
            except NotPossible as reason:
                self.failed |= dict.fromkeys(measure.metrics, f"{NOT_POSSIBLE}: {reason}")
            except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
                reason_line = " ".join(str(error).split()) or type(error).__name__
                self.failed |= dict.fromkeys(measure.metrics, reason_line)

    def _steps(self) -> tuple[float, float]:
        """Return the median and the mean seconds of a turn's training steps."""
        if self.step is None:
            raise NotPossible("this Paddle has no kernels for a GPU")
        times_s = [self.step() for _ in range(LEAST_STEPS)]
        until = time.perf_counter() + STEP_S
        while time.perf_counter() + times_s[-1] < until and len(times_s) < MOST_STEPS:
            times_s.append(self.step())
        self.steps += times_s
        return statistics.median(times_s), statistics.fmean(times_s)

    def _clock(self) -> tuple[float]:
        """Return the nanoseconds of a cycle of this rank's GPU."""
        if self.job.cluster.device == "cpu":
            raise NotPossible("no GPU: DEVICE=cpu")
        mhz = None
        with nvidia.opened() as (handles, why):
            if handles:
                mhz = nvidia.sample(handles[self.machine.me.local_rank])["sm_clock_mhz"]
        if not mhz:
            raise NotPossible(why or "NVML does not tell it")
        return (1000 / mhz,)

    def _memory(self) -> tuple[float]:
        """Return the seconds that a copy of a GiB within memory takes."""
        began = time.perf_counter()
        np.copyto(self.target, self.source)
        return ((time.perf_counter() - began) * 1024 / COPY_MIB,)

    def _disk(self) -> tuple[float]:
        """Return the seconds of reading a GiB from the disk, as a tuple of one; measured on the next files of DATADIR.

        DISK_MIB are read, or what DISK_S seconds allow. The kernel is asked to drop each file from its cache before, so
        that it is not memory that is measured. Raises NotPossible where there are no files.
        """
        read_bytes = 0
        took_s = 0.0
        for path in itertools.islice(self.files, FILES):
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                began = time.perf_counter()
                read_bytes += len(file.read(DISK_MIB * 2**20))
                took_s += time.perf_counter() - began
            if read_bytes >= DISK_MIB * 2**20 or took_s > DISK_S:
                break
        if not read_bytes:
            folder = self.job.data.folder
            raise NotPossible(f"DATADIR={folder} holds no data" if folder else "no DATADIR")
        return (took_s * 2**30 / read_bytes,)

    def _input(self) -> tuple[float]:
        """Return the seconds that a batch of the job's input pipeline takes where nothing else computes."""
        job = self.job
        me = self.machine.me
        model = ResNet50(job.hyperparameters, self.machine.plan(), batch=job.model.batchsize)
        root = Path(job.data.folder) if job.data.folder else self.machine.root
        images = model.DATA.find(root, "train", model.recipe.classes)
        batch = min(job.model.batchsize, len(images))
        order = sampling.training_plan(len(images), batch=batch, rank=0, ranks=1, seed=SEED + me.rank)
        reader = loader.ReaderConfig.of_rank(job.data, job.cluster, me.local_rank, model.image, batch=batch, seed=SEED)
        with contextlib.closing(model.batches(images, order, reader)) as batches:
            next(batches)
            began = time.perf_counter()
            count = 0
            for _ in itertools.islice(batches, BATCHES):
                count += 1
            return ((time.perf_counter() - began) / count,)


# ---- with other nodes: in pairs, and all together


def wait(comm: MPI.Comm) -> None:
    """Wait for all ranks, and leave the cores to those that still measure."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def exchange(comm: MPI.Comm, other: int) -> dict[str, float]:
    """Exchange data with the rank `other`, which calls this at the same time; return the seconds that it took.

    `latency_s` is the median time of sending 8 bytes each way, over PINGS times. `transfer_s` is the mean time of an
    all-reduce of EXCHANGE_MIB between the two, over EXCHANGES times: both send their array and add the other's.
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
    for _ in range(EXCHANGES):
        comm.Sendrecv(mine, other, recvbuf=theirs, source=other)
        mine += theirs
    transfer_s = (time.perf_counter() - began) / EXCHANGES
    return {"latency_s": statistics.median(pings_s), "transfer_s": transfer_s}


def pairs(comm: MPI.Comm, groups: list[str]) -> list[JsonObject]:
    """Measure every link between two nodes, LINK_TURNS times and once to warm up; the nodes' leaders call it together.

    `groups` has each node's switch group. Return on each leader a dict for each link: the fields of its Pair, and the
    times of its turns by metric. In a round each node exchanges data with one other; both take part, and the first of
    the two keeps the times.
    """
    my_links: dict[Pair, dict[str, list[float]]] = {}
    my_number = comm.Get_rank()
    planned = rounds(groups)
    for turn, pairs_of_round in itertools.product(range(LINK_TURNS + 1), planned):
        WATCHDOG.beat("exchanging data in pairs")
        wait(comm)
        for pair in pairs_of_round:
            if my_number == pair.b:
                exchange(comm, pair.a)
            elif my_number == pair.a:
                times_s = exchange(comm, pair.b)
                is_warm_up = turn == 0
                if not is_warm_up:
                    _append(my_links.setdefault(pair, {}), times_s)
    mine = [dataclasses.asdict(pair) | times_s for pair, times_s in my_links.items()]
    return list(itertools.chain.from_iterable(comm.allgather(mine)))


def _append(series: dict[str, list[float]], values: dict[str, float]) -> None:
    """Append each value to the series of its name."""
    for name, value in values.items():
        series.setdefault(name, []).append(value)


class OfRank(NamedTuple):
    """The measurements of one rank alone."""

    unit: int  # number of its node, or of itself where the job has one node
    values: dict[str, list[float]]  # by metric, one a turn
    failed: dict[str, str]  # by metric: why it was not measured


def merge_by_host(hosts: list[str], of_ranks: Sequence[OfRank]) -> JsonObject:
    """Return what all ranks measured alone, by host: {metric: {"series", "reasons"}}, as the record keeps it.

    "series" has a list for each host: in each turn the time of its slowest rank, as a node is as slow as that. It is
    None for a host one of whose ranks failed, or none of whose ranks measured the metric. "reasons" has for a host
    that failed, by its number as text, why.
    """
    names: dict[str, None] = {}  # of all metrics, in the order in which the ranks have them
    for rank in of_ranks:
        names |= dict.fromkeys((*rank.values, *rank.failed))

    metrics: JsonObject = {}
    for metric in names:
        reasons: dict[str, str] = {}  # of a host's first rank that failed
        turns_by_host: list[list[list[float]]] = [[] for _ in hosts]  # the turns of each of its ranks
        for rank in of_ranks:
            if metric in rank.failed:
                reasons.setdefault(str(rank.unit), rank.failed[metric])
            if metric in rank.values:
                turns_by_host[rank.unit].append(rank.values[metric])

        series: list[list[float] | None] = []
        for number, turns_of_ranks in enumerate(turns_by_host):
            has_failed = str(number) in reasons
            series.append(None if has_failed else _slowest(turns_of_ranks))
        metrics[metric] = {"series": series, "reasons": reasons}
    return metrics


def _slowest(turns_of_ranks: Sequence[Sequence[float]]) -> list[float] | None:
    """Return the longest time of each turn over several ranks, which took the same turns; None of no ranks."""
    if not turns_of_ranks:
        return None
    return [max(times_of_turn) for times_of_turn in zip(*turns_of_ranks, strict=True)]


def look_at_node(job: Job, me: ranks.Ranks) -> JsonObject:
    """Look at this node as the doctor does, and return on each of its ranks what was found.

    That is {"failed": ["gpu.ecc: GPU3: 2 uncorrected, ..."], "facts": {...}}: the fatal verdicts as texts, and the
    node's facts for the record. All ranks call this together, before they use their GPUs. The first rank of each node
    looks, and the others wait: to the doctor a rank that has a GPU already would be a foreign process on it.
    """
    WATCHDOG.beat("looking at the node", extra_s=DOCTOR_S)
    answer: JsonObject | None = None
    if me.local_rank == 0:
        probed = probe(job, node=me.rank // job.cluster.dgxngpu)
        failed = [f"{verdict.check}: {verdict.found}" for verdict in judge_node(probed, job) if verdict.status == FATAL]
        answer = {"failed": failed, "facts": facts_of_node(job, probed)}
    wait(me.comm)

    ranks_of_node = me.comm.Split_type(MPI.COMM_TYPE_SHARED, me.rank)
    answer = ranks_of_node.bcast(answer)
    ranks_of_node.Free()
    assert answer is not None
    return answer


def gather_nodes(leaders: MPI.Comm, mine: JsonObject) -> list[JsonObject] | None:
    """Return what `look_at_node` found of each node, with `clock_offset_s`, on the first leader; None on the others.

    The `leaders`, one rank of each node, must all call this at once, for they exchange messages; `mine` is what was
    found of this leader's node. An offset is the seconds by which a node's clock is ahead of the first node's.
    """
    offsets_s = [0.0]  # of the first node from itself
    for other in range(1, leaders.Get_size()):
        offsets_s.append(clock_offset_s(leaders, other))
    nodes = leaders.gather(mine)
    if nodes is None:
        return None
    return [node | {"clock_offset_s": offset_s} for node, offset_s in zip(nodes, offsets_s, strict=True)]


def time_steps_together(me: ranks.Ranks, alone: Alone, whole: Callable[[], float] | None) -> list[float]:
    """Return the seconds of the training steps that all ranks take together, of each step those of its slowest rank.

    All ranks call this, each with `whole`, which takes such a step and returns its seconds. They take the same number
    of steps, about as many as fill WHOLE_S seconds, and none where a rank has taken no step alone.
    """
    mine_s = statistics.median(alone.steps) if alone.steps else math.inf
    slowest_s = max(me.comm.allgather(mine_s))
    times_s = []
    if whole and not math.isinf(slowest_s):
        count = max(LEAST_STEPS, min(MOST_STEPS, round(WHOLE_S / slowest_s)))
        for _ in range(count):
            WATCHDOG.beat("computing a step together")
            times_s.append(whole())
    return [max(step) for step in zip(*me.comm.allgather(times_s), strict=True)]


def take_turns(me: ranks.Ranks, alone: Alone) -> None:
    """Measure in turns what each rank measures alone, and keep the values in `alone`. All ranks call this together.

    Each turn begins at the same time on all ranks, so that what slows all of them alike can be told apart. The first
    turn only warms caches up, and its values are dropped. TURNS turns follow, or fewer where rank 0 finds that they
    take too long, but no fewer than LEAST_TURNS.
    """
    until_s = time.monotonic() + TURNS * TURN_S
    for turn in range(TURNS + 1):
        wait(me.comm)
        alone.turn()
        is_warm_up = turn == 0
        if is_warm_up:
            alone.values = {}
            alone.steps = []
        is_late = me.comm.bcast(time.monotonic() > until_s)  # rank 0's answer, so that all ranks end together
        if is_late and turn >= LEAST_TURNS:
            break


def main(job: Job, origins: Origins) -> None:
    """Measure on this rank; rank 0 writes the record next to RESULT_FILE. Raises ValueError for a job of HRNet."""
    if job.model.workload != "rn50":
        raise ValueError(f"WORKLOAD={job.model.workload}: a fleet's steps are ResNet-50's: set WORKLOAD=rn50")
    began = time.monotonic()
    me = ranks.start(job.cluster)
    groups = groups_of(job.cluster.switch_groups, job.cluster.dgxnnodes)
    mine = look_at_node(job, me)
    ranks.connect(job.cluster, me)
    paddle.enable_static()
    hosts = job.cluster.hosts.split(",")
    unit = me.rank // job.cluster.dgxngpu
    if job.cluster.dgxnnodes == 1:  # its ranks are compared
        hosts = [f"{me.node}:{rank}" for rank in range(me.size)]
        unit = me.rank
        groups = [""] * len(hosts)

    machine = Machine(job, origins, me, short=True)
    step = None
    whole = None
    carrier = None
    if all(me.comm.allgather(machine.kernels)):
        step, whole, carrier = programs(machine)
        step()
        whole()
    alone = Alone(machine, step)
    take_turns(me, alone)
    digests_of_all = digests.measured(job.cluster, me, carrier, unit=unit) if carrier else None
    metrics = merge_by_host(hosts, me.comm.allgather(OfRank(unit, alone.values, alone.failed)))
    leaders = me.comm.Split(0 if alone.leads else 1, me.rank)
    links = pairs(leaders, groups) if alone.leads else []
    wait(me.comm)
    record = FORMAT | {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": job.cluster.dgxsystem,
        "job": {name: job.value(name.upper()) for name in JOB},
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
        "hosts": hosts,
        "groups": groups,
        "metrics": metrics,
        "links": links,
        "digests": digests_of_all,
        "whole_s": time_steps_together(me, alone, whole),
        "steps_s": me.comm.allgather(alone.steps),
        "nodes": gather_nodes(leaders, mine) if alone.leads else None,
        "took_s": round(time.monotonic() - began, 1),
    }
    if me.is_first:
        Path(job.trials.result_file).with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")
