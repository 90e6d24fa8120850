"""The digests that show whether a rank computes the same bits as the others, taken on each rank.

Silent data corruption is a wrong result without an error. To find it every rank takes the same training steps: the
program without its all-reduces, the same weights, the same batch. What may make healthy GPUs differ is left out:
weights drawn on the GPU, DALI's decoders, a dynamic loss scale, fused units, and cuDNN's search for algorithms and its
algorithms with atomic additions. tools/fleet/arithmetic.py judges what comes out.
"""

import hashlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import paddle
from paddle import static

from harness import nvidia, provenance, ranks, state
from harness.hooks.watchdog import WATCHDOG
from harness.job import ClusterSettings
from harness.workload import Workload
from program import build, ops
from program.arrays import Array
from runlog.errors import message_of
from runlog.json_types import JsonObject
from tools.acceptance.machine import repeatable
from tools.doctor.rows import gpu_name

# The MiB that cuDNN's convolutions may take, Paddle's default. With one limit for all, the choice of an algorithm
# depends on nothing but the GPU's model and the versions.
WORKSPACE_LIMIT_MIB = 512
SEED = 1
RATE = 0.01  # learning rate of each step: small enough that no value overflows, whatever the job's optimizer
TABLES_OF_A_RANK = 4  # whose digests are kept, beside the counts of all
TABLES_OF_A_FLEET = 64  # of about 30 KB each for ten steps

Table = list[list[str]]  # all digests of a repetition: a row for each step, with the digest of each tensor


@dataclass(frozen=True, kw_only=True)
class Course:
    """How long digests are taken: until both `repetitions` and `seconds` have passed."""

    steps: int  # in each repetition
    repetitions: int  # at least so many
    seconds: float  # at least so long, so that a GPU is as hot as in training


ON_GPU = Course(steps=10, repetitions=3, seconds=60.0)
ON_CPU = Course(steps=2, repetitions=3, seconds=0.0)


@dataclass(kw_only=True)
class Taken:
    """The digests of one rank."""

    tensors: list[str] = field(default_factory=list)  # in the program's order
    counts: Counter[str] = field(default_factory=Counter)  # by the name of a table: repetitions that gave it
    tables: dict[str, Table] = field(default_factory=dict)  # the first TABLES_OF_A_RANK, by name
    failure: str | None = None  # why there are none


class Carrier:
    """A training program that takes the same steps again and again."""

    def __init__(self, executor: build.Executor, main: static.Program, model: Workload, *, rate: str) -> None:
        """Copy the state that the program has now, which is the same on all ranks, as the start of each repetition.

        `main` is the program, without all-reduces; `model` is the workload that it was built from. `rate` is the name
        of its learning rate's variable, which is RATE in each step whatever the job's is.
        """
        self._executor = executor
        self._main = main
        batch = model.synthetic(model.image, batch=model.batch, seed=SEED)  # NumPy's, the same on every rank
        self._feed = {"image": batch.image, "label": batch.label}
        self._gradients = list(ops.parameters_by_gradient(main.global_block()))  # their names
        self.tensors = watched(main)  # the names of those that get a digest
        self._start: dict[str, Array] = {}  # the state by name
        for name, tensor in state.tensors(main):
            value = np.array(tensor)
            if name == rate:
                value = np.full_like(value, RATE)
            self._start[name] = value

    def restart(self) -> None:
        """Set weights, statistics, momenta and learning rate as they were at first."""
        for name, tensor in state.tensors(self._main):
            state.assign(tensor, self._start[name])

    def step(self) -> dict[str, Array]:
        """Take a training step; return the value of each gradient, statistic and updated weight after it."""
        fetched = self._executor.run(self._main, feed=self._feed, fetch_list=self._gradients)
        values = dict(zip(self._gradients, fetched, strict=True))
        scope = static.global_scope()
        for name in self.tensors:
            if name not in values:
                values[name] = np.asarray(scope.find_var(name).get_tensor())
        return values


def watched(main: static.Program) -> list[str]:
    """Return the names of a training program's tensors that get a digest, in the order in which it computes them.

    They are the gradient of each parameter, the statistics of batch norm, and what the optimizer writes: parameters,
    and in half precision their FP32 masters. One that several operators compute has the place of the first.
    """
    operators = main.global_block().ops
    gradients = ops.parameters_by_gradient(main.global_block())  # {name of a gradient: name of its parameter}
    wanted = {*gradients, *state.statistics_names(main)}
    for op in operators:
        if op.type in ops.ALL_UPDATES:  # an operator of an optimizer
            wanted.update(ops.operands(op, "ParamOut", "MasterParamOut"))

    ordered: list[str] = []
    for op in operators:
        if op.type == "coalesce_tensor":  # names gradients, to lay them side by side, and computes none
            continue
        for name in op.output_arg_names:
            if name in wanted and name not in ordered:
                ordered.append(name)
    return ordered


def digest(value: Array) -> str:
    """Return the CRC-32 of a tensor's bytes as eight hexadecimal digits.

    A CRC-32 finds every change within 32 neighbouring bits for certain, and any other but for one in 2 ** 32. It is
    quick on every CPU: a training step has some 200 MB of tensors.
    """
    flat = np.ascontiguousarray(value).reshape(-1)
    return f"{zlib.crc32(flat.view(np.uint8).data):08x}"


def table_name(table: Table) -> str:
    """Return a short name of a table that no other table has: the beginning of its SHA-256."""
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def repetition(carrier: Carrier, steps: int) -> Table:
    """Set the carrier back to its start, and take so many steps.

    Return the digests: a row for each step, in which each tensor of `carrier.tensors` has its digest, in their order.
    """
    carrier.restart()
    table = []
    for _ in range(steps):
        WATCHDOG.beat("computing digests")
        values = carrier.step()
        table.append([digest(values[name]) for name in carrier.tensors])
    return table


def take(carrier: Carrier, course: Course) -> Taken:
    """Repeat the carrier's steps as long as the course says, and return the digests.

    All digests of one repetition are a table. Returned are how many repetitions gave each table, and the digests
    themselves of the first TABLES_OF_A_RANK tables. Where any step raises an error, the digests taken so far are
    dropped, and only the error's message is returned, as `failure`.
    """
    taken = Taken(tensors=carrier.tensors)
    until_s = time.monotonic() + course.seconds
    try:
        with repeatable(FLAGS_conv_workspace_size_limit=WORKSPACE_LIMIT_MIB):
            while taken.counts.total() < course.repetitions or time.monotonic() < until_s:
                table = repetition(carrier, course.steps)
                name = table_name(table)
                taken.counts[name] += 1
                if len(taken.tables) < TABLES_OF_A_RANK:
                    taken.tables[name] = table
    except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
        return Taken(tensors=carrier.tensors, failure=message_of(error))
    return taken


# ---- which ranks may be compared


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of a rank."""

    title: str  # with all by which a GPU is found: number, model, UUID, serial number
    class_name: str | None  # devices of one class compute the same bits; None where some part of it is not known


def device_of(cluster: ClusterSettings, local_rank: int) -> Device:
    """Return the device of the rank that is number `local_rank` on its node: its title, and its class.

    A GPU's class is its model, driver, cuDNN and Paddle. A CPU's is its model, Paddle and the number of threads, as
    sums depend on that. It is None where NVML shows no such GPU, or one of these parts is unknown.
    """
    version = f"Paddle {paddle.__version__}"
    if not cluster.on_gpu:
        model = provenance.node().cpu
        return Device(title=model, class_name=f"{model}, {cluster.threads_per_rank} threads, {version}")
    with nvidia.opened() as (handles, _):
        if local_rank >= len(handles):
            return Device(title=f"GPU {local_rank} of the job", class_name=None)
        gpu = nvidia.gpu_of(handles[local_rank])
        uuid = nvidia.uuid_of(handles[local_rank])
        serial = nvidia.serial_of(handles[local_rank])
    known = [gpu_name(gpu), gpu.name, uuid]
    if serial:
        known.append(f"serial {serial}")
    title = ", ".join(part for part in known if part)
    cudnn = paddle.get_cudnn_version()  # None or -1 where Paddle finds no library
    has_cudnn = cudnn is not None and cudnn > 0
    if gpu.name is None or gpu.driver is None or not has_cudnn:
        return Device(title=title, class_name=None)
    return Device(title=title, class_name=f"{gpu.name}, driver {gpu.driver}, cuDNN {cudnn}, {version}")


# ---- the record of all ranks


def measured(cluster: ClusterSettings, me: ranks.Ranks, carrier: Carrier, *, unit: int) -> JsonObject:
    """Take digests on all ranks at once, and return those of all as the fleet's record keeps them.

    All ranks call this together, and each gets all digests. `unit` is the number of this rank's host among those that
    are compared. The result has the fields of `gathered`, and as `took_s` the seconds that it took on this rank.
    """
    course = ON_GPU if cluster.on_gpu else ON_CPU
    ranks.wait(me.comm)  # all begin at once
    began = time.monotonic()
    taken = take(carrier, course)
    took_s = round(time.monotonic() - began, 1)
    digests_of_all = gathered(me, unit, device_of(cluster, me.local_rank), taken, steps=course.steps)
    return digests_of_all | {"took_s": took_s}


def gathered(me: ranks.Ranks, unit: int, device: Device, taken: Taken, *, steps: int) -> JsonObject:
    """Return the digests of all ranks as the fleet's record keeps them; all ranks call this together.

    A table is all digests of one repetition. The record has how often each rank gave each table, by its name, and the
    digests themselves of the TABLES_OF_A_FLEET tables that most ranks gave: each is sent by one of the ranks that hold
    it. `unit` is the number of this rank's host, and `taken` are its own digests, of repetitions of `steps` steps.
    """
    mine = {
        "rank": me.rank,
        "unit": unit,
        "node": me.node,
        "device": device.title,
        "class": device.class_name,
        "repetitions": dict(taken.counts),
        "failure": taken.failure,
    }
    entries = me.comm.allgather(mine)
    held_by_rank = me.comm.allgather(list(taken.tables))  # of each rank the names of the tables that it holds
    sender_by_table = _senders(entries, held_by_rank)
    mine_to_send = {name: table for name, table in taken.tables.items() if sender_by_table.get(name) == me.rank}
    tables: dict[str, Table] = {}
    for tables_of_rank in me.comm.allgather(mine_to_send):
        tables |= tables_of_rank
    return {"steps": steps, "tensors": taken.tensors, "tables": tables, "ranks": entries}


def _senders(entries: Sequence[JsonObject], held_by_rank: Sequence[list[str]]) -> dict[str, int]:
    """Return which rank sends which table to the record: {name of the table: the first rank that holds it}.

    A table is all digests of one repetition. Sent are the TABLES_OF_A_FLEET tables that most ranks gave, of those that
    any rank holds. `entries` has for each rank under "repetitions" how often it gave which table, and `held_by_rank`
    the names of the tables that it still holds.
    """
    first_holder: dict[str, int] = {}
    for rank, names in enumerate(held_by_rank):
        for name in names:
            first_holder.setdefault(name, rank)
    ranks_by_table: Counter[str] = Counter()
    for entry in entries:
        ranks_by_table.update(entry["repetitions"].keys())
    commonest_first = [name for name, _ in ranks_by_table.most_common() if name in first_holder]
    return {name: first_holder[name] for name in commonest_first[:TABLES_OF_A_FLEET]}
