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
from runlog.errors import message_of
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
        """Prepare the measurements of this rank: of steps, clock, memory, input and mostly of the disk.

        `step` takes a training step and returns its seconds; None where this machine cannot compute one. The disk is
        read by the first rank of each node only; in a job of one node by every rank, as its ranks are compared like
        nodes.
        """
        self.machine = machine
        self.job = machine.job
        self.step = step
        # Whether this rank is compared with those of other hosts: it reads the disk, and exchanges data in pairs.
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
        """Take each measurement once, and append its values to `self.values`, by metric.

        Where one fails, the reason is kept in `self.failed` for each of its metrics, and it is not tried again.
        """
        for measure in self.measures:
            if measure.metrics[0] in self.failed:  # then all its metrics are
                continue
            WATCHDOG.beat(f"measuring {measure.metrics[0]}")
            try:
                values = measure.take()
            except NotPossible as reason:
                self.failed |= dict.fromkeys(measure.metrics, f"{NOT_POSSIBLE}: {reason}")
            except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
                self.failed |= dict.fromkeys(measure.metrics, message_of(error))
            else:
                _append(self.values, dict(zip(measure.metrics, values, strict=True)))

    def _steps(self) -> tuple[float, float]:
        """Take training steps for STEP_S seconds, and return the median and the mean of their seconds.

        They are LEAST_STEPS at least and MOST_STEPS at most. Raises NotPossible where this machine cannot take one.
        """
        if self.step is None:
            raise NotPossible("this Paddle has no kernels for a GPU")
        times_s = [self.step() for _ in range(LEAST_STEPS)]
        until_s = time.perf_counter() + STEP_S
        while len(times_s) < MOST_STEPS:
            next_ends_s = time.perf_counter() + times_s[-1]  # if it takes as long as the last one
            if next_ends_s >= until_s:
                break
            times_s.append(self.step())
        self.steps += times_s
        return statistics.median(times_s), statistics.fmean(times_s)

    def _clock(self) -> tuple[float]:
        """Return the nanoseconds of a cycle of this rank's GPU, as a tuple of one.

        Raises NotPossible on a CPU, and where NVML does not tell the clock.
        """
        if self.job.cluster.device == "cpu":
            raise NotPossible("no GPU: DEVICE=cpu")
        mhz: float | None = None
        with nvidia.opened() as (handles, why):
            if handles:
                mhz = nvidia.sample(handles[self.machine.me.local_rank])["sm_clock_mhz"]
        if not mhz:
            raise NotPossible(why or "NVML does not tell it")
        return (1000 / mhz,)

    def _memory(self) -> tuple[float]:
        """Return the seconds that a copy of a GiB within memory takes, as a tuple of one; COPY_MIB are copied."""
        began = time.perf_counter()
        np.copyto(self.target, self.source)
        return ((time.perf_counter() - began) * 1024 / COPY_MIB,)

    def _disk(self) -> tuple[float]:
        """Return the seconds that reading a GiB from the disk takes, as a tuple of one.

        It is measured on files of DATADIR, each turn on those that follow the last turn's: DISK_MIB are read, or what
        DISK_S seconds allow. The kernel is asked to drop each file from its cache before, so that it is not memory that
        is measured. Raises NotPossible where there are no files, or all are empty.
        """
        read_bytes = 0
        took_s = 0.0
        for path in itertools.islice(self.files, FILES):  # which go round: each file once a turn at most
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
        """Return the seconds that a batch of the job's input pipeline takes where nothing else computes.

        It is a tuple of one: the mean of BATCHES batches after a first one, read from DATADIR, or from the embedded
        images where that is not set.
        """
        job = self.job
        me = self.machine.me
        model = ResNet50(job.hyperparameters, self.machine.plan(), batch=job.model.batchsize)
        root = Path(job.data.folder) if job.data.folder else self.machine.root
        images = model.DATA.find(root, "train", model.recipe.classes)
        batch = min(job.model.batchsize, len(images))
        # All images in an order of this rank's own, as if it were alone.
        order = sampling.training_plan(len(images), batch=batch, rank=0, ranks=1, seed=SEED + me.rank)
        reader = loader.ReaderConfig.of_rank(job.data, job.cluster, me.local_rank, model.image, batch=batch, seed=SEED)
        with contextlib.closing(model.batches(images, order, reader)) as batches:
            next(batches)  # waits for the pipeline's start
            began = time.perf_counter()
            count = 0
            for _ in itertools.islice(batches, BATCHES):
                count += 1
            return ((time.perf_counter() - began) / count,)


# ---- with other nodes: in pairs, and all together


def exchange(comm: MPI.Comm, other: int) -> dict[str, float]:
    """Exchange data with the rank `other`, which calls this at the same time; return the seconds that it took.

    They are {"latency_s": ..., "transfer_s": ...}. The latency is the median time of sending 8 bytes each way, over
    PINGS times. The transfer is the mean time of an all-reduce of EXCHANGE_MIB between the two, over EXCHANGES times:
    both send their array, and add the other's to it.
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
    """Measure the links between nodes, each LINK_TURNS times and once more before, to warm up.

    The nodes' leaders, one rank of each, call this together; `groups` has each node's switch group. Which nodes meet in
    which round is in rounds.py. In a round each node exchanges data with one other at most; both take part, and the
    first of the two keeps the times.

    Return on each leader a dict for each link of the fleet: {"a": 0, "b": 1, "across": False, "latency_s": [...],
    "transfer_s": [...]}, with the times of its turns.
    """
    my_links: dict[Pair, dict[str, list[float]]] = {}  # {link: {metric: a time for each turn}}
    my_number = comm.Get_rank()
    planned = rounds(groups)
    for turn, pairs_of_round in itertools.product(range(LINK_TURNS + 1), planned):
        WATCHDOG.beat("exchanging data in pairs")
        ranks.wait(comm)
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

    unit: int  # number of the host that it counts for: its node, or itself where the job has one node
    values: dict[str, list[float]]  # by metric, one a turn
    failed: dict[str, str]  # by metric: why it was not measured


def merge_by_host(hosts: list[str], of_ranks: Sequence[OfRank]) -> JsonObject:
    """Return what all ranks measured alone, by host, as the record keeps it: {metric: {"series": ..., "reasons": ...}}.

    `hosts` are the names of those that are compared. "series" has an entry for each: a list with the time of its
    slowest rank in each turn, as a node is as slow as that. The entry is None for a host one of whose ranks failed, or
    none of whose ranks measured the metric. "reasons" says why a host failed, by its number as text: {"3": "..."}. Of
    several ranks of a host that failed, the first one's reason stands.
    """
    names: dict[str, None] = {}  # of all metrics, in the order in which the ranks have them
    for rank in of_ranks:
        names |= dict.fromkeys((*rank.values, *rank.failed))

    metrics: JsonObject = {}
    for metric in names:
        reasons: dict[str, str] = {}
        turns_by_host: list[list[list[float]]] = [[] for _ in hosts]  # the turns of each of its ranks
        for rank in of_ranks:
            if metric in rank.failed:
                reasons.setdefault(str(rank.unit), rank.failed[metric])
            if metric in rank.values:
                turns_by_host[rank.unit].append(rank.values[metric])

        series: list[list[float] | None] = []
        for number, turns_of_ranks in enumerate(turns_by_host):
            has_failed = str(number) in reasons
            series.append(None if has_failed else _slowest_of_each_turn(turns_of_ranks))
        metrics[metric] = {"series": series, "reasons": reasons}
    return metrics


def _slowest_of_each_turn(turns_of_ranks: Sequence[Sequence[float]]) -> list[float] | None:
    """Return the longest time of each turn over several ranks, which took the same turns; None of no ranks."""
    if not turns_of_ranks:
        return None
    return [max(times_of_turn) for times_of_turn in zip(*turns_of_ranks, strict=True)]


def look_at_node(job: Job, me: ranks.Ranks) -> JsonObject:
    """Check this node by the doctor (tools/doctor), and return what was found, on each of the node's ranks.

    That is {"failed": ["gpu.ecc: GPU3: 2 uncorrected, ..."], "facts": {...}}: the fatal verdicts as texts, and the
    node's facts for the record. All ranks call this together, before they use their GPUs: the doctor would report a
    rank that has a GPU already as a foreign process on it. The first rank of each node looks, and the others wait.
    """
    WATCHDOG.beat("looking at the node", extra_s=DOCTOR_S)
    answer: JsonObject | None = None
    if me.local_rank == 0:
        probed = probe(job, node=me.rank // job.cluster.dgxngpu)
        failed = [f"{verdict.check}: {verdict.found}" for verdict in judge_node(probed, job) if verdict.status == FATAL]
        answer = {"failed": failed, "facts": facts_of_node(job, probed)}
    ranks.wait(me.comm)

    ranks_of_node = me.comm.Split_type(MPI.COMM_TYPE_SHARED, me.rank)
    answer = ranks_of_node.bcast(answer)  # of its first rank
    ranks_of_node.Free()
    assert answer is not None
    return answer


def gather_nodes(leaders: MPI.Comm, mine: JsonObject) -> list[JsonObject] | None:
    """Return what `look_at_node` found on each node on the first leader, and None on the others.

    Each node's entry gets as "clock_offset_s" the seconds by which its clock is ahead of the first node's. The
    `leaders`, one rank of each node, must all call this at once, for they exchange messages; `mine` is what was found
    on this leader's node.
    """
    offsets_s = [0.0]  # of the first node from itself
    for other in range(1, leaders.Get_size()):
        offsets_s.append(clock_offset_s(leaders, other))
    nodes = leaders.gather(mine)
    if nodes is None:
        return None
    return [node | {"clock_offset_s": offset_s} for node, offset_s in zip(nodes, offsets_s, strict=True)]


def time_steps_together(me: ranks.Ranks, alone: Alone, step_of_all: Callable[[], float] | None) -> list[float]:
    """Take training steps of all ranks together; return the seconds of each step, those of its slowest rank.

    All ranks call this, each with `step_of_all`, which takes its part of such a step and returns the seconds; None
    where no step can be taken. They take the same number of steps, as many as fill WHOLE_S seconds if each takes as
    long as the slowest rank's step alone. The list is empty where a rank has taken no step alone.
    """
    mine_s = statistics.median(alone.steps) if alone.steps else math.inf
    slowest_s = max(me.comm.allgather(mine_s))
    times_s = []
    if step_of_all is not None and not math.isinf(slowest_s):
        count = round(WHOLE_S / slowest_s)
        count = max(LEAST_STEPS, min(MOST_STEPS, count))
        for _ in range(count):
            WATCHDOG.beat("computing a step together")
            times_s.append(step_of_all())
    times_of_ranks = me.comm.allgather(times_s)
    return [max(times_of_step) for times_of_step in zip(*times_of_ranks, strict=True)]


def take_turns(me: ranks.Ranks, alone: Alone) -> None:
    """Take the measurements of each rank alone, turn by turn, and keep the values in `alone`.

    All ranks call this together. Each turn begins at the same time on all of them, so that what slows all alike can be
    told apart. The first turn only warms caches up, and its values are dropped. TURNS turns follow, or fewer where rank
    0 finds that TURNS times TURN_S seconds have passed, but no fewer than LEAST_TURNS.
    """
    until_s = time.monotonic() + TURNS * TURN_S
    for turn in range(TURNS + 1):
        ranks.wait(me.comm)
        alone.turn()
        is_warm_up = turn == 0
        if is_warm_up:
            alone.values = {}
            alone.steps = []
        is_late = me.comm.bcast(time.monotonic() > until_s)  # rank 0's answer, so that all ranks end together
        if is_late and turn >= LEAST_TURNS:
            break


def main(job: Job, origins: Origins) -> None:
    """Take this rank's part in a fleet's measurements; rank 0 writes the record of all beside RESULT_FILE, as JSON.

    Every rank of the job calls this. The node is looked at first, before a rank uses its GPU. Then each rank measures
    alone, in turns; digests are taken on all; the nodes' leaders measure their links; in the end all take steps
    together. Raises ValueError for a job of HRNet.
    """
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
    step_of_all = None
    carrier = None
    if all(me.comm.allgather(machine.kernels)):
        step, step_of_all, carrier = programs(machine)
        step()
        step_of_all()
    alone = Alone(machine, step)
    take_turns(me, alone)
    digests_of_all = digests.measured(job.cluster, me, carrier, unit=unit) if carrier else None
    metrics = merge_by_host(hosts, me.comm.allgather(OfRank(unit, alone.values, alone.failed)))
    leaders = me.comm.Split(0 if alone.leads else 1, me.rank)
    links = pairs(leaders, groups) if alone.leads else []
    ranks.wait(me.comm)
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
        "whole_s": time_steps_together(me, alone, step_of_all),
        "steps_s": me.comm.allgather(alone.steps),
        "nodes": gather_nodes(leaders, mine) if alone.leads else None,
        "took_s": round(time.monotonic() - began, 1),
    }
    if me.is_first:
        Path(job.trials.result_file).with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")
