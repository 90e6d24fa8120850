"""The digests that show whether a rank computes the same bits as the others, taken on each rank.

Silent data corruption is a wrong result without an error. To find it every rank takes the same training steps: the
program without its all-reduces, the same weights, the same batch. What may make healthy GPUs differ is left out:
weights drawn on the GPU, DALI's decoders, a dynamic loss scale, fused units, and cuDNN's search for algorithms and its
algorithms with atomic additions. tools/fleet/arithmetic.py judges what comes out.
"""

import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
import pynvml
from paddle import static

from harness import nvidia, provenance, ranks, state
from harness.hooks.watchdog import WATCHDOG
from harness.job import ClusterSettings
from harness.workload import Workload
from program import build, ops
from program.arrays import Array
from runlog.json_types import JsonObject

# Of Paddle: cuDNN's algorithms without atomic additions, chosen without a search and with one limit of workspace
# (MiB, Paddle's default), so that the choice depends on nothing but the GPU's model and the versions.
REPEATABLE = {
    "FLAGS_cudnn_deterministic": True,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_conv_workspace_size_limit": 512,
}
SEED = 1
RATE = 0.01  # learning rate of each step: small enough that no value overflows, whatever the job's optimizer
TABLES_OF_A_RANK = 4  # whose digests are kept, beside the counts of all
TABLES_OF_A_FLEET = 64  # of about 30 KB each for ten steps

Entry = JsonObject  # of JSON
Table = list[list[str]]  # of a repetition: a list for each step, with the digest of each tensor


@dataclass(frozen=True, kw_only=True)
class Course:
    """How long digests are taken."""

    steps: int  # of a repetition
    repetitions: int  # at least
    seconds: float  # also at least, so that a GPU is as hot as in training


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
        """Keep the state that the program has now, which is the same on all ranks, as the start of each repetition.

        `main` has no all-reduces, `model` is the workload that it was built from, `rate` names its learning rate.
        """
        self._executor = executor
        self._main = main
        batch = model.synthetic(model.image, batch=model.batch, seed=SEED)  # NumPy's, the same on every rank
        self._feed = {"image": batch.image, "label": batch.label}
        self._gradients = list(ops.parameters_by_gradient(main.global_block()))
        self.tensors = watched(main)
        self._start: dict[str, Array] = {}
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
    and in half precision their FP32 masters.
    """
    operators = main.global_block().ops
    wanted = {*ops.parameters_by_gradient(main.global_block()), *state.statistics_names(main)}
    for op in operators:
        if op.type in ops.ALL_UPDATES:
            wanted.update(ops.operands(op, "ParamOut", "MasterParamOut"))

    ordered: dict[str, None] = {}
    for op in operators:
        if op.type == "coalesce_tensor":  # names gradients, to lay them side by side, and computes none
            continue
        for name in op.output_arg_names:
            if name in wanted:
                ordered[name] = None  # keeps the place of the first operator that computes it
    return list(ordered)


def digest(value: Array) -> str:
    """Return the CRC-32 of a tensor's bytes as eight hexadecimal digits.

    A CRC-32 finds every change within 32 neighbouring bits for certain, and any other but for one in 2 ** 32. It is
    quick on every CPU: a training step has some 200 MB of tensors.
    """
    flat = np.ascontiguousarray(value).reshape(-1)
    return f"{zlib.crc32(flat.view(np.uint8).data):08x}"


def table_name(table: Table) -> str:
    """Return a short name of a table that no other table has: the beginning of its SHA-256."""
    import hashlib  # loads OpenSSL

    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def repetition(carrier: Carrier, steps: int) -> Table:
    """Take the steps from the carrier's start; return a list of digests for each, in the order of its tensors."""
    carrier.restart()
    table = []
    for _ in range(steps):
        WATCHDOG.beat("computing digests")
        values = carrier.step()
        table.append([digest(values[name]) for name in carrier.tensors])
    return table


def take(carrier: Carrier, course: Course) -> Taken:
    """Repeat the carrier's steps as long as the course says; return the tables that came out, and how often each did.

    An error ends it: the rank then has no digests, but its message.
    """
    taken = Taken(tensors=carrier.tensors)
    until = time.monotonic() + course.seconds
    try:
        with repeatable():
            while taken.counts.total() < course.repetitions or time.monotonic() < until:
                table = repetition(carrier, course.steps)
                name = table_name(table)
                taken.counts[name] += 1
                if len(taken.tables) < TABLES_OF_A_RANK:
                    taken.tables[name] = table
    except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
        return Taken(tensors=carrier.tensors, failure=" ".join(str(error).split()) or type(error).__name__)
    return taken


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Have Paddle compute the same bits each time, and reset its flags afterwards for what measures its speed."""
    before = paddle.get_flags(list(REPEATABLE))
    paddle.set_flags(REPEATABLE)
    try:
        yield
    finally:
        paddle.set_flags(before)


# ---- which ranks may be compared


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of a rank."""

    title: str  # with all by which a GPU is found: number, model, UUID, serial number
    kind: str | None  # its class, whose devices compute the same bits; None where some of it is not known


def device_of(cluster: ClusterSettings, local_rank: int) -> Device:
    """Return the device of the rank that is number `local_rank` on its node.

    A GPU's class is its model, driver, cuDNN and Paddle. A CPU's has the number of threads, as sums depend on it.
    """
    version = f"Paddle {paddle.__version__}"
    if not cluster.on_gpu:
        model = provenance.node().cpu
        return Device(title=model, kind=f"{model}, {cluster.threads_per_rank} threads, {version}")
    with nvidia.opened() as (handles, _):
        if local_rank >= len(handles):
            return Device(title=f"GPU {local_rank} of the job", kind=None)
        handle = handles[local_rank]
        gpu = nvidia.gpu_of(handle)
        known = [f"GPU{gpu.index}", gpu.name, _answer("nvmlDeviceGetUUID", handle), _serial(handle)]
    title = ", ".join(part for part in known if part)
    cudnn = paddle.get_cudnn_version()  # None or -1 where Paddle finds no library
    has_cudnn = cudnn is not None and cudnn > 0
    if gpu.name is None or gpu.driver is None or not has_cudnn:
        return Device(title=title, kind=None)
    return Device(title=title, kind=f"{gpu.name}, driver {gpu.driver}, cuDNN {cudnn}, {version}")


def _serial(handle: Any) -> str | None:
    """Return a GPU's serial number as `serial 032...`; None where NVML does not tell it."""
    number = _answer("nvmlDeviceGetSerial", handle)
    return f"serial {number}" if number else None


def _answer(question: str, handle: Any) -> str | None:
    """Return NVML's answer to a question about a GPU as text; None where it has none."""
    try:
        answer = getattr(pynvml, question)(handle)
    except nvidia.UNANSWERED:
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


# ---- the record of all ranks


def measured(cluster: ClusterSettings, me: ranks.Ranks, carrier: Carrier, *, unit: int) -> Entry:
    """Take digests on all ranks at once, and return those of all as the fleet's record keeps them.

    All ranks call this together. `unit` is the number of this rank's host among those that are compared.
    """
    course = ON_GPU if cluster.on_gpu else ON_CPU
    me.comm.Barrier()
    began = time.monotonic()
    taken = take(carrier, course)
    took_s = round(time.monotonic() - began, 1)
    of_all = gathered(me, unit, device_of(cluster, me.local_rank), taken, steps=course.steps)
    return of_all | {"took_s": took_s}


def gathered(me: ranks.Ranks, unit: int, device: Device, taken: Taken, *, steps: int) -> Entry:
    """Return the digests of all ranks as the fleet's record keeps them; all ranks call this together.

    A table is all digests of one repetition. The record has how often each rank gave each table, by its name, and the
    digests themselves of the TABLES_OF_A_FLEET commonest ones: each is sent by one of the ranks that hold it.
    """
    mine = {
        "rank": me.rank,
        "unit": unit,
        "node": me.node,
        "device": device.title,
        "class": device.kind,
        "repetitions": dict(taken.counts),
        "failure": taken.failure,
    }
    entries = me.comm.allgather(mine)
    held_names = me.comm.allgather(list(taken.tables))
    sender_by_table = _senders(entries, held_names)
    mine_to_send = {name: table for name, table in taken.tables.items() if sender_by_table.get(name) == me.rank}
    tables: dict[str, Table] = {}
    for tables_of_rank in me.comm.allgather(mine_to_send):
        tables |= tables_of_rank
    return {"steps": steps, "tensors": taken.tensors, "tables": tables, "ranks": entries}


def _senders(entries: Sequence[Entry], held_names: Sequence[list[str]]) -> dict[str, int]:
    """Return which rank sends which digests to the record: {name of a table: the first rank that holds it}.

    A table is all digests of one repetition. Only those that most ranks gave are sent, TABLES_OF_A_FLEET of them.
    `entries` has for each rank how often it gave which table, and `held_names` the tables that it still holds.
    """
    first_holder: dict[str, int] = {}
    for rank, names in enumerate(held_names):
        for name in names:
            first_holder.setdefault(name, rank)
    ranks_by_table: Counter[str] = Counter()
    for entry in entries:
        ranks_by_table.update(entry["repetitions"].keys())
    commonest_first = [name for name, _ in ranks_by_table.most_common() if name in first_holder]
    return {name: first_holder[name] for name in commonest_first[:TABLES_OF_A_FLEET]}
