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
from typing import Any

import numpy as np
import paddle
from mpi4py import MPI
from paddle import static

from harness import loader, nvidia, provenance, ranks, sampling, state
from harness.hooks.watchdog import WATCHDOG
from harness.job import Job, Origins
from paddle_rn50.train import ResNet50
from program.ops import LOSS_VALUE
from program.passes import edit
from runlog.schema import as_json
from runlog.verdict import FATAL
from tools.acceptance.machine import Machine, NotPossible
from tools.doctor.checks import clock_offset_s, judge_node
from tools.doctor.node import probe
from tools.fleet.record import EXCHANGE_MIB, FORMAT, facts
from tools.fleet.verdicts import NOT_POSSIBLE

SEED = 1
STEP_S, LEAST_STEPS, MOST_STEPS = 2.0, 3, 200  # of a turn
# Measuring alone ends after so many turns, or so many times TURN_S seconds.
TURNS, TURN_S = 16, 4.0  # alone: steps, memory, disk, input
LEAST_TURNS = 6  # also where they take longer than they should: five have an interval
COPY_MIB, DISK_MIB, DISK_S = 128, 32, 1.0
FILES = 5000  # of DATADIR that are looked at
BATCHES = 6  # of the input pipeline, a turn
PINGS, EXCHANGES = 50, 2  # of a pair, a turn
DOCTOR_S = 180.0  # the most that it takes: each start of CUDA that hangs is ended
LINK_TURNS = 5  # each pair, in each round
LEAST_ROUNDS = 3  # below three partners a slow link cannot be told from a slow node
WHOLE_S = 5.0
# What decides how long a step and the input take: another record with other values is no baseline.
JOB = ("workload", "recipe", "precision", "layout", "batchsize", "image_size", "device", "dgxngpu")


class Alone:
    """This rank's measurements that need no other rank; `step` takes one and says its seconds, where it can."""

    def __init__(self, machine: Machine, step: Callable[[], float] | None) -> None:
        self.machine, self.job, self.step = machine, machine.job, step
        self.leads = machine.me.local_rank == 0 or machine.job.cluster.dgxnnodes == 1
        self.values: dict[str, list[float]] = {}
        self.failed: dict[str, str] = {}  # metric: why
        self.steps: list[float] = []  # seconds of each, for the jitter
        self.copied = [np.ones(COPY_MIB * 2**18, np.float32) for _ in range(2)]
        walk = (Path(folder, name) for folder, _, names in os.walk(self.job.data.folder) for name in sorted(names))
        self.files = itertools.cycle(list(itertools.islice(walk, FILES)))
        self.measures: dict[tuple[str, ...], Callable[[], tuple[float, ...]]] = {
            ("step_s", "step_mean_s"): self._steps,
            ("clock_ns",): self._clock,
            ("memory_s_per_gib",): self._memory,
            **({("disk_s_per_gib",): self._disk} if self.leads else {}),
            ("input_s",): self._input,
        }

    def turn(self) -> None:
        """All measurements once; what failed once is not tried again."""
        for metrics, measure in self.measures.items():
            if metrics[0] in self.failed:
                continue
            WATCHDOG.beat(f"measuring {metrics[0]}")
            try:
                for metric, value in zip(metrics, measure(), strict=True):
                    self.values.setdefault(metric, []).append(value)
            except NotPossible as reason:
                self.failed |= dict.fromkeys(metrics, f"{NOT_POSSIBLE}: {reason}")
            except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
                self.failed |= dict.fromkeys(metrics, " ".join(str(error).split()) or type(error).__name__)

    def _steps(self) -> tuple[float, float]:
        if self.step is None:
            raise NotPossible("this Paddle has no kernels for a GPU")
        taken, until = [self.step() for _ in range(LEAST_STEPS)], time.perf_counter() + STEP_S
        while time.perf_counter() + taken[-1] < until and len(taken) < MOST_STEPS:
            taken.append(self.step())
        self.steps += taken
        return statistics.median(taken), statistics.fmean(taken)

    def _clock(self) -> tuple[float]:
        if self.job.cluster.device == "cpu":
            raise NotPossible("no GPU: DEVICE=cpu")
        with nvidia.opened() as (handles, why):
            mhz = nvidia.sample(handles[self.machine.me.local_rank])["sm_clock_mhz"] if handles else None
        if not mhz:
            raise NotPossible(why or "NVML does not tell it")
        return (1000 / mhz,)

    def _memory(self) -> tuple[float]:
        began = time.perf_counter()
        np.copyto(self.copied[1], self.copied[0])
        return ((time.perf_counter() - began) * 1024 / COPY_MIB,)

    def _disk(self) -> tuple[float]:
        """Files of DATADIR, which the page cache is asked to forget first."""
        read, took = 0, 0.0
        for path in itertools.islice(self.files, FILES):
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                began = time.perf_counter()
                read += len(file.read(DISK_MIB * 2**20))
                took += time.perf_counter() - began
            if read >= DISK_MIB * 2**20 or took > DISK_S:
                break
        if not read:
            raise NotPossible(f"DATADIR={self.job.data.folder} holds no data" if self.job.data.folder else "no DATADIR")
        return (took * 2**30 / read,)

    def _input(self) -> tuple[float]:
        """A batch of the job's own input pipeline, which a step would wait for if it took no time itself."""
        job, me = self.job, self.machine.me
        model = ResNet50(job.hyperparameters, self.machine.plan(), batch=job.model.batchsize)
        root = Path(job.data.folder) if job.data.folder else self.machine.root
        images = model.DATA.find(root, "train", model.recipe.classes)
        batch = min(job.model.batchsize, len(images))
        order = sampling.training_plan(len(images), batch=batch, rank=0, ranks=1, seed=SEED + me.rank)
        reader = loader.ReaderConfig.of_rank(job, me.local_rank, model.image, batch=batch, seed=SEED)
        with contextlib.closing(model.batches(images, order, reader)) as batches:
            next(batches)
            began = time.perf_counter()
            taken = sum(1 for _ in itertools.islice(batches, BATCHES))
            return ((time.perf_counter() - began) / taken,)


def programs(machine: Machine) -> tuple[Callable[[], float], Callable[[], float]]:
    """A step of the job's program by the default strategy, without its all-reduces and with them; its seconds."""
    job, me = machine.job, machine.me
    model = ResNet50(job.hyperparameters, machine.plan(), batch=job.model.batchsize)
    schedule = model.recipe.make_schedule(samples=job.global_batch, global_batch=job.global_batch)
    training = model.training_program(schedule, seed=SEED)
    machine.executor.run(training.startup)
    state.broadcast_parameters(training.main, me)
    training.schedule.send(machine.executor.place)
    alone = training.main.clone()
    edit.remove(alone, lambda op: op.type.startswith("c_allreduce"))
    made = model.synthetic(model.image, batch=job.model.batchsize, seed=SEED + me.rank)
    batch = loader.resident(made, machine.executor.place)

    def step(main: static.Program) -> float:
        began = time.perf_counter()
        machine.executor.run(main, feed={"image": batch.image, "label": batch.label}, fetch_list=[])
        np.array(static.global_scope().find_var(LOSS_VALUE).get_tensor())  # waits for the device
        return time.perf_counter() - began

    return lambda: step(alone), lambda: step(training.main)


# ---- which nodes exchange data with which: rounds of pairs, no pair twice, each node once a round


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two nodes, by number, that exchange data in a round."""

    a: int
    b: int
    across: bool  # of two switch groups


def round_count(nodes: int) -> int:
    """Rounds for so many nodes: log2 of them, and at least three where there are so many partners."""
    if nodes < 2:
        return 0
    most = nodes - 1 if nodes % 2 == 0 else nodes  # an odd fleet leaves one node out of each round
    return min(most, max(LEAST_ROUNDS, math.ceil(math.log2(nodes))))


def tournament(nodes: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """Round `turn` of the circle method, in which all meet once in n - 1 rounds (n odd: n, one is left out of each)."""
    seats: list[int | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    last = len(seats) - 1
    if turn >= last:
        return []
    order = [seats[last], *(seats[(turn + i) % last] for i in range(last))]
    seated = zip(order[: len(order) // 2], reversed(order[len(order) // 2 :]), strict=True)
    return [(a, b) for a, b in seated if a is not None and b is not None]


def rounds(groups: Sequence[str]) -> list[list[Pair]]:
    """The rounds for nodes of these switch groups, one name a node.

    With one group each node meets other nodes. With several, the first half of the rounds is inside the groups and the
    other half across them, so that all pairs of a round take the same kind of way and load each group's uplink at once.
    """
    names = list(dict.fromkeys(groups))
    ordered = sorted(range(len(groups)), key=lambda node: names.index(groups[node]))
    total = round_count(len(groups))
    members = [[node for node in ordered if groups[node] == name] for name in names]
    inside = total if len(names) == 1 else total // 2
    taken = [[pair for nodes in members for pair in tournament(nodes, turn)] for turn in range(inside)]
    half, largest = len(ordered) // 2, max(map(len, members), default=1)
    for turn in range(total - inside):  # the first half of the nodes with the second, shifted by a group and one
        shift = turn * (largest + 1)
        taken.append([(ordered[i], ordered[half + (i + shift) % half]) for i in range(half)])
    seen, found = set[Pair](), list[list[Pair]]()
    for of_turn in taken:
        of_round = [Pair(a=min(p), b=max(p), across=groups[p[0]] != groups[p[1]]) for p in of_turn]
        found.append([pair for pair in of_round if pair not in seen])
        seen.update(of_round)
    return [of_round for of_round in found if of_round]


def groups_of(text: str, nodes: int) -> list[str]:
    """Each node's switch group by SWITCH_GROUPS; if empty all are in one. Raises ValueError for a wrong number."""
    groups = text.split(",") if text else [""] * nodes
    if len(groups) != nodes:
        raise ValueError(f"SWITCH_GROUPS={text}: names {len(groups)} groups: give one for each of the {nodes} HOSTS")
    return groups


# ---- its measuring, and that of all together


def wait(comm: MPI.Comm) -> None:
    """A barrier that leaves the cores to those who still measure."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def exchange(comm: MPI.Comm, other: int) -> dict[str, float]:
    """Seconds of an exchange of 8 bytes (median), and of an all-reduce of EXCHANGE_MIB between two (mean)."""
    small, answer = np.zeros(1), np.zeros(1)
    mine = np.ones(EXCHANGE_MIB * 2**18, np.float32)
    theirs, pings = np.empty_like(mine), []
    for _ in range(PINGS):
        began = time.perf_counter()
        comm.Sendrecv(small, other, recvbuf=answer, source=other)
        pings.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(EXCHANGES):
        comm.Sendrecv(mine, other, recvbuf=theirs, source=other)
        mine += theirs
    return {"latency_s": statistics.median(pings), "transfer_s": (time.perf_counter() - began) / EXCHANGES}


def pairs(comm: MPI.Comm, groups: list[str]) -> list[dict[str, Any]]:
    """Every link of the rounds, LINK_TURNS times and once to warm up, as the first of its two leaders has it."""
    found: dict[Pair, dict[str, list[float]]] = {}
    me = comm.Get_rank()
    for turn, of_round in itertools.product(range(LINK_TURNS + 1), rounds(groups)):
        WATCHDOG.beat("exchanging data in pairs")
        wait(comm)
        for pair in of_round:
            if me in (pair.a, pair.b):
                for name, value in exchange(comm, pair.b if me == pair.a else pair.a).items():
                    if turn and me == pair.a:
                        found.setdefault(pair, {}).setdefault(name, []).append(value)
    mine = [dataclasses.asdict(pair) | values for pair, values in found.items()]
    return list(itertools.chain.from_iterable(comm.allgather(mine)))


def joined(hosts: list[str], found: list[tuple[int, dict[str, list[float]], dict[str, str]]]) -> dict[str, Any]:
    """{metric: {"series", "reasons"}} of what each rank measured; a node is as slow as the slowest of its ranks."""
    metrics: dict[str, Any] = {}
    for metric in dict.fromkeys(name for _, values, failed in found for name in (*values, *failed)):
        reasons = {str(unit): failed[metric] for unit, _, failed in reversed(found) if metric in failed}
        series: list[list[float] | None] = []
        for unit in range(len(hosts)):
            taken = [values[metric] for of, values, _ in found if of == unit and metric in values]
            known = taken and str(unit) not in reasons
            series.append([max(turn) for turn in zip(*taken, strict=True)] if known else None)
        metrics[metric] = {"series": series, "reasons": reasons}
    return metrics


def looked_at(job: Job, me: ranks.Ranks) -> dict[str, Any]:
    """Return what the doctor calls fatal on this node, and its facts, on each of its ranks.

    The node's first rank looks, and the others wait: a rank that had a GPU already would be a foreign process on it.
    """
    WATCHDOG.beat("looking at the node", extra_s=DOCTOR_S)
    found: dict[str, Any] | None = None
    if me.local_rank == 0:
        probed = probe(job, node=me.rank // job.cluster.dgxngpu)
        failed = [f"{verdict.check}: {verdict.found}" for verdict in judge_node(probed, job) if verdict.status == FATAL]
        found = {"failed": failed, "facts": facts(job, probed)}
    wait(me.comm)

    node = me.comm.Split_type(MPI.COMM_TYPE_SHARED, me.rank)
    found = node.bcast(found)
    node.Free()
    assert found is not None
    return found


def nodes_of(leaders: MPI.Comm, mine: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Each node as the doctor found it (`mine` is this one's) and how far its clock is ahead; on the first leader."""
    offsets_s = [0.0]
    for other in range(1, leaders.Get_size()):
        offsets_s.append(clock_offset_s(leaders, other))
    nodes = leaders.gather(mine)
    if nodes is None:
        return None
    return [node | {"clock_offset_s": offset_s} for node, offset_s in zip(nodes, offsets_s, strict=True)]


def together(me: ranks.Ranks, alone: Alone, whole: Callable[[], float] | None) -> list[float]:
    """Seconds of the steps that all ranks take together; nothing where a rank took none alone."""
    took = max(me.comm.allgather(statistics.median(alone.steps) if alone.steps else math.inf))
    taken = []
    if whole and not math.isinf(took):
        for _ in range(max(LEAST_STEPS, min(MOST_STEPS, round(WHOLE_S / took)))):
            WATCHDOG.beat("computing a step together")
            taken.append(whole())
    return [max(turn) for turn in zip(*me.comm.allgather(taken), strict=True)]


def main(job: Job, origins: Origins) -> None:
    """Measures on this rank; rank 0 writes the record beside RESULT_FILE."""
    began = time.monotonic()
    me = ranks.start(job)
    groups = groups_of(job.cluster.switch_groups, job.cluster.dgxnnodes)
    mine = looked_at(job, me)
    ranks.connect(job, me)
    paddle.enable_static()
    hosts, unit = job.cluster.hosts.split(","), me.rank // job.cluster.dgxngpu
    if job.cluster.dgxnnodes == 1:
        hosts, unit = [f"{me.node}:{rank}" for rank in range(me.size)], me.rank
        groups = [""] * len(hosts)
    machine = Machine(job, origins, me, short=True)
    step = whole = None
    if all(me.comm.allgather(machine.kernels)):
        step, whole = programs(machine)
        step(), whole()
    alone = Alone(machine, step)
    turns_began = time.monotonic()
    for turn in range(TURNS + 1):
        wait(me.comm)
        alone.turn()
        if turn == 0:  # warms caches up, and is no turn
            alone.values, alone.steps = {}, []
        late = time.monotonic() - turns_began > TURNS * TURN_S
        if me.comm.bcast(late) and turn >= LEAST_TURNS:
            break
    metrics = joined(hosts, me.comm.allgather((unit, alone.values, alone.failed)))
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
        "whole_s": together(me, alone, whole),
        "steps_s": me.comm.allgather(alone.steps),
        "nodes": nodes_of(leaders, mine) if alone.leads else None,
        "took_s": round(time.monotonic() - began, 1),
    }
    if me.is_first:
        Path(job.trials.result_file).with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")
