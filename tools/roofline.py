"""Rooflines of a training step: the least time of its operators on a card, and of its all-reduces on a link.

Every figure here is an estimate at data-sheet peaks. Nothing is measured and nothing is fitted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from program.count import Work, buckets, works
from program.ops import MIB, OPTIMIZE
from runlog.json_types import JsonObject
from scoring.predict.loss import published_tables
from scoring.published.table import Card, figures_of

GPUS_OF_A_NODE = 8  # of the systems that published tables speak of
SCALED_GPUS = (8, 16, 32, 64)  # for which scaling is estimated


class Operation(NamedTuple):
    """An operator of a program, as a roofline sees it."""

    work: Work
    summed_bytes: float | None  # of a gradient all-reduce, the bytes that it sums; None of any other operator
    on_computing_stream: bool = False  # of an all-reduce that the operators after it wait for, as in a captured step


Operators = list[Operation]


def in_order(update: Sequence[Any]) -> Operators:
    """Return the operators of an update's programs, in the order in which they run.

    An update of the weights has a program for each part of its batch (micro-step). The last one is the main program,
    which sums the gradients over the ranks. Each of its all-reduces sums a bucket, some gradients side by side, and
    comes with the bucket's bytes.
    """
    main = update[-1]
    bucket_of_operator = {bucket["operator"]: bucket for bucket in buckets(main)}
    operators: Operators = []
    for program in update:
        for work in works(program):
            # `index` counts the operators of one program, and only the main program's buckets are looked up.
            bucket = bucket_of_operator.get(work.index) if program is main else None
            if bucket is None:
                operators.append(Operation(work, None))
            else:
                operators.append(Operation(work, bucket["mib"] * MIB, bucket["on_computing_stream"]))
    return operators


# ---- a step in time


class OperatorTime(NamedTuple):
    """The least time of an operator on a card, by each of its two limits: it takes the longer one."""

    flops_s: float
    bytes_s: float


class StepTime(NamedTuple):
    """The least time of a step, and what it is made of; seconds."""

    total_s: float  # computing, and the wait for all-reduces
    exposed_s: float  # of the total: nothing is computed, as an all-reduce is waited for
    all_reduce_s: float  # of all all-reduces, hidden or not
    operators: OperatorTime  # sums over the operators

    @property
    def computing_s(self) -> float:
        """Return the time without the wait for all-reduces."""
        return self.total_s - self.exposed_s

    @property
    def unhidden_s(self) -> float:
        """Return the time that the step would take if no all-reduce ran beside an operator."""
        return self.computing_s + self.all_reduce_s


def step_time(
    operators: Operators, arithmetic_of: dict[str, str], card: Card, *, ranks: int, link_bytes_per_s: float
) -> StepTime:
    """Return the least time of a step, with its operators one after the other at the card's peaks.

    An all-reduce runs beside them: it begins when its last gradient is made and the all-reduce before it is done. The
    optimizer waits for the last one, and this wait is exposed: nothing is computed in it. An all-reduce on the
    computing stream runs beside nothing, so all of it is exposed.

    Null GPUs show this order: an all-reduce waits for its own bucket of gradients, and the backward pass for none
    (tests/null_gpu/test_streams.py). Paddle's host issues all-reduces behind the backward pass; it is taken to be that
    far ahead of the GPU.
    """
    flops_s = 0.0
    bytes_s = 0.0
    now_s = 0.0  # when the operators so far are done
    link_free_s = 0.0  # when the all-reduces so far are done
    all_reduces_s = 0.0
    exposed_s = 0.0
    optimizer_has_begun = False
    for work, summed_bytes, on_computing_stream in operators:
        if summed_bytes is not None:
            takes_s = _all_reduce_s(summed_bytes, ranks, link_bytes_per_s)
            all_reduces_s += takes_s
            if on_computing_stream:
                now_s += takes_s
                exposed_s += takes_s
            else:  # in the program it stands behind the operator that makes its last gradient
                link_free_s = max(link_free_s, now_s) + takes_s
            continue
        if work.role & OPTIMIZE and not optimizer_has_begun:
            optimizer_has_begun = True
            wait_s = max(0.0, link_free_s - now_s)
            now_s += wait_s
            exposed_s += wait_s
        least = _operator_time(work, arithmetic_of, card)
        flops_s += least.flops_s
        bytes_s += least.bytes_s
        now_s += max(least.flops_s, least.bytes_s)
    return StepTime(now_s, exposed_s, all_reduces_s, OperatorTime(flops_s, bytes_s))


def _arithmetic_of_types(operators: Operators, card: Card, *, tf32: bool) -> dict[str, str] | None:
    """Return in which arithmetic of a card the products of each type are computed, as {"float32": "tf32"}.

    With `tf32` those of float32 are computed in TF32, else each type in its own arithmetic. Types without products are
    left out. Returns None if the card has no figure for one of the arithmetics.
    """
    arithmetic_of = {}
    for operation in operators:
        dtype = operation.work.dtype
        if operation.work.flops:
            arithmetic_of[dtype] = dtype
    if tf32 and "float32" in arithmetic_of:
        arithmetic_of["float32"] = "tf32"
    card_has_all = card.flops_per_s.keys() >= set(arithmetic_of.values())
    return arithmetic_of if card_has_all else None


def _operator_time(work: Work, arithmetic_of: dict[str, str], card: Card) -> OperatorTime:
    """Return the time of an operator by its FLOPs at the peak of their type, and by its bytes at the memory's peak.

    A normalization by the statistics of a batch reads its image twice if the chip cannot hold it.
    """
    flops_s = 0.0
    if work.flops:
        flops_s = work.flops / card.flops_per_s[arithmetic_of[work.dtype]]
    again_bytes = sum(size for size in work.twice_read_sizes if size > card.on_chip_bytes)
    return OperatorTime(flops_s, (work.moved_bytes + again_bytes) / card.memory_bytes_per_s)


def _all_reduce_s(summed_bytes: float, ranks: int, link_bytes_per_s: float) -> float:
    """Return the time of a ring all-reduce of b bytes over n ranks: 2 (n - 1) / n b over the narrowest link."""
    return 2 * (ranks - 1) / ranks * summed_bytes / link_bytes_per_s


# ---- what is said of it


def roofline(operators: Operators, *, tf32: bool, batch: int, ranks: int, card: Card) -> JsonObject | None:
    """Return a step's roofline on `card`: the images/s that it cannot exceed, and the times in s that they come from.

    `step_time` says how the times are found; all-reduces go over NVLink. `batch` is the images of a rank. With `tf32`
    FP32 products are computed in TF32. Returns None if the card lacks an arithmetic of the program, and for ranks of
    several nodes, whose network has no data sheet here.
    """
    arithmetic_of = _arithmetic_of_types(operators, card, tf32=tf32)
    if ranks > GPUS_OF_A_NODE or arithmetic_of is None:
        return None
    step = step_time(operators, arithmetic_of, card, ranks=ranks, link_bytes_per_s=card.link_bytes_per_s)
    return {
        "roofline_images_per_s": batch * ranks / step.total_s,
        "step_time_s": step.total_s,
        "flops_time_s": step.operators.flops_s,
        "bytes_time_s": step.operators.bytes_s,
        "exposed_all_reduce_s": step.exposed_s,
        "peaks": card.peaks(arithmetic_of.values()),
        "kind": "roofline at data-sheet peaks, an upper bound; not measured",
    }


def scaling(operators: Operators, *, tf32: bool, card: Card, network_bytes_per_s: float) -> list[JsonObject] | None:
    """Estimate what all-reduces cost at SCALED_GPUS, in nodes of 8; return a row for each, for JSON.

    `network_bytes_per_s` is what a node sends at its peak. A ring over several nodes is as fast as its narrowest link,
    which is the node's network or NVLink. `of_linear` compares with one node: 1 if 64 GPUs are 8 times as fast as 8.
    It is given with all-reduces hidden behind operators as they can be, and with none hidden. Returns None if the
    card lacks an arithmetic of the program.
    """
    arithmetic_of = _arithmetic_of_types(operators, card, tf32=tf32)
    if arithmetic_of is None:
        return None
    steps: dict[int, StepTime] = {}
    for gpus in SCALED_GPUS:
        link_bytes_per_s = card.link_bytes_per_s
        if gpus > GPUS_OF_A_NODE:
            link_bytes_per_s = min(link_bytes_per_s, network_bytes_per_s)
        steps[gpus] = step_time(operators, arithmetic_of, card, ranks=gpus, link_bytes_per_s=link_bytes_per_s)

    one_node = steps[GPUS_OF_A_NODE]
    rows = []
    for gpus, step in steps.items():
        row = {
            "gpus": gpus,
            "nodes": gpus // GPUS_OF_A_NODE,
            "step_time_s": step.total_s,
            "all_reduce_s": step.all_reduce_s,
            "exposed_all_reduce_s": step.exposed_s,
            "exposed_share": step.exposed_s / step.total_s,
            "of_linear": one_node.total_s / step.total_s,
            "of_linear_nothing_hidden": one_node.unhidden_s / step.unhidden_s,
        }
        rows.append(row)
    return rows


def published_scaling(card: Card, *, model: str, precision: str) -> list[JsonObject]:
    """Return how Paddle's published figures of this model, card and precision scale from one node, for JSON.

    There is an entry for each published table, as {"table": its name, "of_linear": {2: 0.97, 4: 0.95}}: the throughput
    of 2 nodes is 0.97 of twice one node's. Tables without a figure of one node are left out.
    """
    scaled = []
    # A table is one publication's images/s by the number of nodes, each with as many GPUs.
    for table in published_tables(figures_of(card, model=model, precision=precision)):
        one_node = table.images_per_s.get(1)
        if one_node is None:
            continue
        of_linear = {}
        for nodes, images_per_s in table.images_per_s.items():
            if nodes > 1:
                of_linear[nodes] = images_per_s / (nodes * one_node)
        scaled.append({"table": table.name, "of_linear": of_linear})
    return scaled
