"""The digests that show whether a rank computes the same bits as the others, taken on each rank.

Silent data corruption is a wrong result without an error. To find it, every rank repeats the same training steps: the
program without its all-reduces, the same weights, the same batch. All digests of a repetition are its result. The name
of a result is a hash of it, so that equal results have the same name.

What may make healthy GPUs differ is left out: weights drawn on the GPU, DALI's decoders, a dynamic loss scale, fused
units, and cuDNN's search for algorithms and its algorithms with atomic additions. tools/fleet/arithmetic.py judges the
digests.
"""

import hashlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import paddle
from paddle import static
from paddle.base.framework import Block

from harness import nvidia, provenance, ranks, state
from harness.hooks.watchdog import WATCHDOG
from harness.job import ClusterSettings
from harness.workload import Workload
from program import build, ops
from program.arrays import Array
from runlog.errors import message_of
from runlog.json_types import JsonObject
from tools.acceptance.machine import repeatable_algorithms
from tools.doctor.rows import gpu_name

# The MiB that cuDNN's convolutions may take, Paddle's default. With one limit for all ranks, the choice of an algorithm
# depends on nothing but the GPU's model and the versions.
WORKSPACE_LIMIT_MIB = 512
SEED = 1
RATE = 0.01  # learning rate of each step: small enough that no value overflows, whatever the job's optimizer
MAX_TABLES_KEPT = 4  # on a rank: how often each result came is counted, but only of so many the digests are kept
MAX_TABLES_RECORDED = 64  # in the fleet's record, of about 30 KB each for ten steps

Table = list[list[str]]  # the digests of a result: a row for each step, with the digest of each tensor


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How many repetitions a rank takes: until both `least_repetitions` and `least_s` are reached."""

    steps_per_repetition: int
    least_repetitions: int
    least_s: float  # so that a GPU gets as hot as in training


ON_GPU = Amount(steps_per_repetition=10, least_repetitions=3, least_s=60.0)
ON_CPU = Amount(steps_per_repetition=2, least_repetitions=3, least_s=0.0)


@dataclass(kw_only=True)
class DigestsOfRank:
    """The digests of one rank. The result of a repetition is all its digests, and equal results have the same name."""

    tensors: list[str] = field(default_factory=list)  # their names, in the program's order
    count_by_result: Counter[str] = field(default_factory=Counter)  # {name of a result: repetitions that gave it}
    kept_tables: dict[str, Table] = field(default_factory=dict)  # {name of a result: its digests}, of the first few
    failure: str | None = None  # why there are no digests; None if there are


class RepeatableTraining:
    """A training program that can be set back to its start, and then takes the same steps again.

    Its results must be the same in each repetition and on each rank, so that a different one shows a fault.
    """

    def __init__(self, executor: build.Executor, main: static.Program, model: Workload, *, rate_variable: str) -> None:
        """Prepare a training that can be repeated: a batch for all steps, and a copy of the program's state now.

        The state is the weights and all other values that the program keeps from step to step. `restart` sets the
        program back to the copy, so that each repetition starts from the same state. No step is taken yet.

        Args:
            executor: Paddle's executor, which runs the program.
            main: The training program, without all-reduces, so that each rank computes by itself. Its variables must
                have values.
            model: The model of the program. It makes the batch.
            rate_variable: The name of the program's variable that holds the learning rate. All steps train at the rate
                RATE (0.01).
        """
        self._executor = executor
        self._main = main

        # Each step is fed this batch.
        batch = model.synthetic(model.image, batch=model.batch, seed=SEED)  # by NumPy, so the same on every rank
        self._feed = {"image": batch.image, "label": batch.label}

        # After a step, a hash (digest) is taken of each tensor in `tensors`: gradients, statistics, updated weights.
        # Paddle keeps no gradient after a step, so the step itself must return those of `_gradient_names`.
        self._gradient_names = list(ops.parameters_by_gradient(main.global_block()))  # ["fc.w@GRAD", ...]
        self.tensors = digested_tensors(main)  # names, in the order in which the program computes the tensors

        # What `restart` sets the program back to: the state now, but with the learning rate RATE.
        self._values_at_start = {name: np.array(tensor) for name, tensor in state.tensors(main)}  # copies
        self._values_at_start[rate_variable].fill(RATE)

    def restart(self) -> None:
        """Set weights, statistics, momenta and learning rate back to the start."""
        for name, tensor in state.tensors(self._main):
            state.assign(tensor, self._values_at_start[name])

    def step(self) -> dict[str, Array]:
        """Take a training step; return the value of each gradient, statistic and updated weight after it, by name."""
        gradients = self._executor.run(self._main, feed=self._feed, fetch_list=self._gradient_names)
        values = dict(zip(self._gradient_names, gradients, strict=True))
        scope = static.global_scope()
        for name in self.tensors:
            if name not in values:  # not a gradient, so it stays in the scope
                values[name] = np.asarray(scope.find_var(name).get_tensor())
        return values


def digested_tensors(main: static.Program) -> list[str]:
    """Return the names of a training program's tensors that get a digest, in the order in which it computes them.

    These are the gradients of parameters, the batch-norm statistics, the updated parameters and, in half precision,
    their FP32 masters.
    """
    block = main.global_block()
    gradients = ops.parameters_by_gradient(block)  # {name of a gradient: name of its parameter}
    digested = {*gradients, *state.statistics_names(main), *_names_updated(block)}
    computed_names = dict.fromkeys(_names_computed(block))  # each once, at its first place
    return [name for name in computed_names if name in digested]


def _names_updated(block: Block) -> set[str]:
    """Return the names of what the optimizer's operators write: the parameters, and their FP32 masters if any."""
    names: set[str] = set()
    for op in block.ops:
        is_optimizer = op.type in ops.ALL_UPDATES
        if is_optimizer:
            names.update(ops.operands(op, "ParamOut", "MasterParamOut"))
    return names


def _names_computed(block: Block) -> list[str]:
    """Return the names of the tensors that a block's operators compute, in their order; a name may come repeatedly."""
    names: list[str] = []
    for op in block.ops:
        only_lays_side_by_side = op.type == "coalesce_tensor"  # gradients are its outputs, but it computes none
        if not only_lays_side_by_side:
            names.extend(op.output_arg_names)
    return names


def digest(value: Array) -> str:
    """Return the CRC-32 of a tensor's bytes as eight hexadecimal digits.

    A CRC-32 detects every change within 32 neighbouring bits. Of other changes it misses one in 2 ** 32. It is fast on
    every CPU, which matters because a training step has about 200 MB of tensors.
    """
    flat = np.ascontiguousarray(value).reshape(-1)
    return f"{zlib.crc32(flat.view(np.uint8).data):08x}"


def result_name(table: Table) -> str:
    """Return the name of a result, so that different results have different names: the beginning of a SHA-256 of it."""
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def digest_one_repetition(training: RepeatableTraining, steps: int) -> Table:
    """Set a training back to its start, take some steps, and return the digests (hashes) of what they computed.

    Args:
        training: The training, which gives the same results in each repetition on a healthy device.
        steps: How many steps to take.

    Returns:
        A row for each step, with a digest of each tensor in the order of `training.tensors`.
    """
    training.restart()
    table = []
    for _ in range(steps):
        WATCHDOG.beat("computing digests")
        values = training.step()
        table.append([digest(values[name]) for name in training.tensors])
    return table


def digest_repetitions(training: RepeatableTraining, amount: Amount) -> DigestsOfRank:
    """Repeat a training with algorithms that compute the same bits each time; return digests of what was computed.

    All digests (hashes of tensors) of one repetition are a result. A healthy device gives the same result each time.

    Args:
        training: The training to repeat.
        amount: The number of steps in a repetition, and the least number of repetitions and of seconds. The training
            is repeated until both least numbers are reached.

    Returns:
        How often each result came, and the digests of the first few results. If a repetition raises an error, there are
        no results, and `failure` is the error's message.
    """
    try:
        # A fixed workspace limit lets cuDNN choose the same algorithms on all ranks.
        with repeatable_algorithms(FLAGS_conv_workspace_size_limit=WORKSPACE_LIMIT_MIB):
            return _repeat(training, amount)
    except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
        return DigestsOfRank(tensors=training.tensors, failure=message_of(error))


def _repeat(training: RepeatableTraining, amount: Amount) -> DigestsOfRank:
    """Repeat a training as often as asked for; return how often each result came, with the tables of the first few.

    The result of a repetition is a table of digests: a hash of each tensor in each step. Tables are large, so only the
    first MAX_TABLES_KEPT (4) are kept.

    Args:
        training: The training, which gives the same results in each repetition on a healthy device.
        amount: The steps of a repetition, and the least number of repetitions and seconds. Both are reached.
    """
    mine = DigestsOfRank(tensors=training.tensors)
    least_end_s = time.monotonic() + amount.least_s
    while mine.count_by_result.total() < amount.least_repetitions or time.monotonic() < least_end_s:
        table = digest_one_repetition(training, amount.steps_per_repetition)
        name = result_name(table)  # equal tables have the same name
        mine.count_by_result[name] += 1
        if len(mine.kept_tables) < MAX_TABLES_KEPT:
            mine.kept_tables[name] = table
    return mine


# ---- which ranks may be compared


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of a rank."""

    title: str  # with all by which a GPU is found: number, model, UUID, serial number
    class_name: str | None  # devices of one class compute the same bits; None if a part of the class is unknown


def device_of(cluster: ClusterSettings, local_rank: int) -> Device:
    """Return the title and the class of a rank's device; `local_rank` is the rank's number on its node."""
    if cluster.on_gpu:
        return _gpu_of(local_rank)
    cpu_model = provenance.node().cpu
    threads = f"{cluster.threads_per_rank} threads"  # sums depend on their number
    return Device(title=cpu_model, class_name=f"{cpu_model}, {threads}, Paddle {paddle.__version__}")


def _gpu_of(local_rank: int) -> Device:
    """Return the title of a rank's GPU, by which a person finds the GPU, and the class of GPUs that it belongs to.

    The title is, for example, "GPU3, NVIDIA H100 80GB HBM3, GPU-8d2f0000-..., serial 1650522000001": the number in
    nvidia-smi, the model, the UUID and the serial number.

    Args:
        local_rank: The rank's number on its node, which is also the index of the GPU among those that NVML shows.

    Returns:
        The title, without the parts that NVML does not know, and the class, which is None if a part of the class is
        unknown. If NVML does not show the GPU, the title is "GPU 3 of the job" for `local_rank` 3, and the class None.
    """
    with nvidia.opened() as (handles, _):  # NVML's handles of the GPUs that this process may use
        if local_rank >= len(handles):
            return Device(title=f"GPU {local_rank} of the job", class_name=None)
        handle = handles[local_rank]
        gpu = nvidia.gpu_of(handle)
        uuid = nvidia.uuid_of(handle)
        serial = nvidia.serial_of(handle)
    number_in_nvidia_smi = gpu_name(gpu)  # such as "GPU3"
    model = gpu.name
    title_parts = [number_in_nvidia_smi, model, uuid]  # the last two may be None
    if serial:
        title_parts.append(f"serial {serial}")
    title = ", ".join(part for part in title_parts if part)
    return Device(title=title, class_name=_class_of_gpu(gpu))


def _class_of_gpu(gpu: nvidia.Gpu) -> str | None:
    """Return the class of a GPU: its model, driver, cuDNN and Paddle as text; None if one of these is unknown.

    GPUs of one class should compute the same bits; those of different classes may round differently.
    """
    cudnn = paddle.get_cudnn_version()  # None or -1 if Paddle finds no library
    has_cudnn = cudnn is not None and cudnn > 0
    if gpu.name is None or gpu.driver is None or not has_cudnn:
        return None
    return f"{gpu.name}, driver {gpu.driver}, cuDNN {cudnn}, Paddle {paddle.__version__}"


# ---- the record of all ranks


def measure_all_ranks(
    cluster: ClusterSettings, me: ranks.Ranks, training: RepeatableTraining, *, host_index: int
) -> JsonObject:
    """Repeat the same training steps on all ranks at the same time; return the digests of all ranks' results.

    All ranks must call this together.

    Args:
        cluster: Settings of the nodes and ranks. On GPUs the repetitions take at least a minute.
        me: This rank, with its MPI communicator of all ranks.
        training: The training to repeat.
        host_index: The number of this rank's host among the compared hosts, from 0.

    Returns:
        The entry "digests" of fleet.json, as `gather_digests` makes it, with "took_s": the seconds of the repetitions
        on this rank.
    """
    amount = ON_GPU if cluster.on_gpu else ON_CPU
    ranks.wait(me.comm)  # so that all ranks begin at the same time
    began = time.monotonic()
    mine = digest_repetitions(training, amount)
    took_s = round(time.monotonic() - began, 1)
    device = device_of(cluster, me.local_rank)
    digests_of_all = gather_digests(me, host_index, device, mine, steps=amount.steps_per_repetition)
    return digests_of_all | {"took_s": took_s}


def gather_digests(me: ranks.Ranks, host_index: int, device: Device, mine: DigestsOfRank, *, steps: int) -> JsonObject:
    """Return on each rank the entry "digests" of fleet.json: the tables of hashes that ranks computed, and how often.

    Each rank has repeated the same training steps. A repetition gives a table with a hash (digest) of each tensor in
    each step. Equal tables have the same name, such as "a1b2". All ranks must call this together.

    Args:
        me: This rank, with its MPI communicator of all ranks.
        host_index: The index of this rank's host in the list "hosts" of fleet.json. In a job of one node each rank is
            a host of its own.
        device: The title and the class of this rank's device.
        mine: How often each table came on this rank, and the first few tables themselves.
        steps: The number of training steps in a repetition.
    """
    entry_of_this_rank = {
        "rank": me.rank,
        "unit": host_index,
        "node": me.node,
        "device": device.title,
        "class": device.class_name,  # devices of one class should compute the same bits
        "repetitions": dict(mine.count_by_result),  # {"a1b2": 2, "c3d4": 1}: how many repetitions gave each table
        "failure": mine.failure,  # the message of an error in a repetition; None if there was no error
    }
    entries = me.comm.allgather(entry_of_this_rank)
    results_to_send = _most_common_results(entries)  # names of all tables, first those that most ranks computed
    # `_gather_tables` takes the first 64 of these names of which a rank has kept the table.
    return {
        "steps": steps,
        "tensors": mine.tensors,  # names of the tensors, one for each column of a table
        "tables": _gather_tables(me, mine.kept_tables, results_to_send),  # {"a1b2": [[...], ...]}
        "ranks": entries,
    }


def _most_common_results(entries: Sequence[JsonObject]) -> list[str]:
    """Return the names of all results, first those that most ranks gave."""
    rank_count_by_result: Counter[str] = Counter()
    for entry in entries:
        results_of_rank = list(entry["repetitions"])  # each once, however many of the rank's repetitions gave it
        rank_count_by_result.update(results_of_rank)
    return [result for result, _ in rank_count_by_result.most_common()]


def _gather_tables(
    me: ranks.Ranks, my_tables: Mapping[str, Table], most_common_first: Sequence[str]
) -> dict[str, Table]:
    """Exchange the tables of all ranks, and return on each rank the same ones: {"a1b2": table, ...}, at most 64.

    Each rank has tables of hashes, by name. Equal tables have the same name on all ranks. All ranks must call this
    together.

    Args:
        me: This rank, with its MPI communicator of all ranks.
        my_tables: The tables of this rank, {name: table}.
        most_common_first: The names of the tables that ranks computed, the most common first. If there are more than
            MAX_TABLES_RECORDED (64), the last are left out. A name of which no rank has kept the table is skipped.
    """
    # Tables are large, and several ranks may have the same one. So the ranks first exchange only the names, and then
    # one rank sends each table.
    names_by_rank = me.comm.allgather(list(my_tables))  # [["a1b2"], ["a1b2", "c3d4"], ...], a list for each rank
    sender_by_name = _first_rank_by_result(names_by_rank)  # the first rank that has it: {"a1b2": 0, "c3d4": 1}
    names_with_table = [name for name in most_common_first if name in sender_by_name]
    names_to_send = names_with_table[:MAX_TABLES_RECORDED]  # the same list on all ranks

    tables_to_send: dict[str, Table] = {}
    for name in names_to_send:
        if sender_by_name[name] == me.rank:
            tables_to_send[name] = my_tables[name]
    gathered: dict[str, Table] = {}
    for tables_of_rank in me.comm.allgather(tables_to_send):  # all ranks get what each rank sends
        gathered |= tables_of_rank
    return gathered


def _first_rank_by_result(results_by_rank: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return for each result the first rank that has it: [["a", "b"], ["b", "c"]] -> {"a": 0, "b": 0, "c": 1}."""
    first_rank: dict[str, int] = {}
    for rank, results in enumerate(results_by_rank):
        for result in results:
            first_rank.setdefault(result, rank)
    return first_rank
