"""Rooflines of a training step: the least time of its operators on a card, and of its all-reduces on a link.

Every figure here is an estimate at data-sheet peaks. Nothing is measured and nothing is fitted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from program.count import Work, buckets, works
from program.ops import MIB, OPTIMIZE
from runlog.json_types import JsonObject
from scoring.predict.loss import PublishedTable, published_tables
from scoring.published.table import Card, figures_of

GPUS_OF_A_NODE = 8  # of the systems that published tables speak of
SCALED_GPUS = (8, 16, 32, 64)  # for which scaling is estimated


class Operator(NamedTuple):
    """An operator of a program: its work, and for an all-reduce of gradients also what it sums and where it runs."""

    work: Work
    summed_bytes: float | None  # the bytes that an all-reduce of gradients sums; None: this is another operator
    on_computing_stream: bool = False  # True: the operators after this all-reduce wait for it, as in a captured step


Operators = list[Operator]


def operators_in_order(update_programs: Sequence[Any]) -> Operators:
    """Return all operators of one update of the weights, in the order they run in.

    Only the last program, the main one, sums gradients over the ranks. It does so in buckets of one gradient or more,
    each by one all-reduce operator.

    Args:
        update_programs: The Paddle programs whose runs, in this order, make one update; at least one.

    Returns:
        The operators of all programs. Each all-reduce of gradients also has the bytes that it sums.
    """
    *programs_before, main = update_programs
    operators: Operators = []
    for program in programs_before:
        operators += [Operator(work, summed_bytes=None) for work in works(program)]
    bucket_by_index = {bucket["operator"]: bucket for bucket in buckets(main)}  # by the index of its all-reduce
    for work in works(main):
        operators.append(_operator_of_main(work, bucket_by_index.get(work.index)))
    return operators


def _operator_of_main(work: Work, bucket: JsonObject | None) -> Operator:
    """Return an operator of the main program, with the bytes that it sums if it is an all-reduce of gradients.

    Args:
        work: The bytes that the operator moves and the FLOPs that it computes.
        bucket: The gradients that the operator sums, with "mib" and "on_computing_stream"; None: it is not an
            all-reduce of gradients.
    """
    if bucket is None:
        return Operator(work, summed_bytes=None)
    return Operator(work, bucket["mib"] * MIB, on_computing_stream=bucket["on_computing_stream"])


# ---- a step in time


class OperatorTime(NamedTuple):
    """The two lower bounds of an operator's time on a card, by its FLOPs and by its bytes. The larger one counts."""

    flops_s: float
    bytes_s: float


class StepTime(NamedTuple):
    """The least time of a step, and what it is made of; seconds."""

    total_s: float  # computing, and the wait for all-reduces
    exposed_s: float  # the part of the total in which the GPU computes nothing, because it waits for an all-reduce
    all_reduce_s: float  # the sum over all all-reduces, whether the GPU computes meanwhile or waits
    operators: OperatorTime  # sums over the operators

    @property
    def computing_s(self) -> float:
        """Return the time without the wait for all-reduces."""
        return self.total_s - self.exposed_s

    @property
    def without_overlap_s(self) -> float:
        """Return the time that the step would take if the GPU waited for every all-reduce."""
        return self.computing_s + self.all_reduce_s


class _Clocks:
    """A GPU, which computes, and a link, which sums gradients meanwhile, through a step; seconds from its start.

    tests/null_gpu/test_streams.py shows that Paddle waits as described here.
    """

    def __init__(self) -> None:
        """Begin a step, with all times at 0."""
        self.gpu_s = 0.0  # when the operators so far are done
        self.link_s = 0.0  # when the all-reduces that the GPU does not wait for are done
        self.exposed_s = 0.0  # the time in which the GPU only waited
        self.all_reduce_s = 0.0  # the sum over all all-reduces
        self.operators = OperatorTime(flops_s=0.0, bytes_s=0.0)  # sums over the operators
        self.optimizer_has_begun = False

    def compute(self, least: OperatorTime) -> None:
        """Let the GPU compute an operator, which takes the longer one of its two times.

        Args:
            least: The least seconds of the operator, by its FLOPs and by its bytes.
        """
        sums = self.operators
        self.operators = OperatorTime(sums.flops_s + least.flops_s, sums.bytes_s + least.bytes_s)
        self.gpu_s += max(least.flops_s, least.bytes_s)

    def all_reduce_while_waiting(self, takes_s: float) -> None:
        """Let the link sum gradients while the GPU waits.

        Args:
            takes_s: Seconds that the all-reduce takes.
        """
        self.all_reduce_s += takes_s
        self._wait(takes_s)

    def all_reduce_beside(self, takes_s: float) -> None:
        """Have the link sum gradients, which are ready now, while the GPU goes on.

        The link begins once it has done the all-reduces before.

        Args:
            takes_s: Seconds that the all-reduce takes.
        """
        self.all_reduce_s += takes_s
        self.link_s = max(self.link_s, self.gpu_s) + takes_s

    def begin_optimizer(self) -> None:
        """Let the GPU wait until all all-reduces are done; nothing if the optimizer has begun already."""
        if not self.optimizer_has_begun:
            self.optimizer_has_begun = True
            self._wait(max(0.0, self.link_s - self.gpu_s))

    def _wait(self, wait_s: float) -> None:
        """Let the GPU wait; the time counts as exposed.

        Args:
            wait_s: Seconds to wait.
        """
        self.gpu_s += wait_s
        self.exposed_s += wait_s


def step_time(
    operators: Operators, peak_names: dict[str, str], card: Card, *, ranks: int, link_bytes_per_s: float
) -> StepTime:
    """Return the least time of a training step on a card, by the roofline model.

    An operator takes the time of its FLOPs or of its bytes at peak, whichever is longer. An all-reduce takes the time
    of the link. The time in which the GPU waits for the link is called exposed.

    Args:
        operators: The operators of the step, in their order.
        peak_names: For each data type of the operators the name of the card's peak in FLOP/s: {"float32": "tf32"}.
        card: The data sheet of the GPU.
        ranks: How many ranks, each on one GPU, sum gradients.
        link_bytes_per_s: Peak of the link between the GPUs, in one direction.
    """
    clocks = _Clocks()  # when the GPU and the link are done with the operators so far
    for operator in operators:
        if operator.summed_bytes is not None:  # an all-reduce of gradients
            takes_s = _all_reduce_s(operator.summed_bytes, ranks, link_bytes_per_s)
            if operator.on_computing_stream:
                clocks.all_reduce_while_waiting(takes_s)
            else:  # the card computes the next operators meanwhile
                clocks.all_reduce_beside(takes_s)
        else:
            is_of_optimizer = bool(operator.work.role & OPTIMIZE)
            if is_of_optimizer:
                clocks.begin_optimizer()  # it needs all summed gradients, so it waits for them
            clocks.compute(_operator_time(operator.work, peak_names, card))
    return StepTime(
        total_s=clocks.gpu_s,
        exposed_s=clocks.exposed_s,
        all_reduce_s=clocks.all_reduce_s,
        operators=clocks.operators,
    )


def _peak_names_by_dtype(operators: Operators, card: Card, *, tf32: bool) -> dict[str, str] | None:
    """Return, for each data type in which the operators compute, the name of the card's peak in FLOP/s to use.

    Args:
        operators: The operators of a step. Those that compute no FLOPs do not count.
        card: The data sheet of the GPU.
        tf32: Whether products of "float32" are computed in TF32, at its peak.

    Returns:
        Names such as {"float16": "float16", "float32": "tf32"}. None if the data sheet lacks a peak that is needed.
    """
    dtypes = dict.fromkeys(operator.work.dtype for operator in operators if operator.work.flops)
    peak_names = {dtype: dtype for dtype in dtypes}
    if tf32 and "float32" in peak_names:
        peak_names["float32"] = "tf32"
    for peak_name in peak_names.values():
        if peak_name not in card.flops_per_s:
            return None
    return peak_names


def _operator_time(work: Work, peak_names: dict[str, str], card: Card) -> OperatorTime:
    """Return the least time of an operator on a card, by its FLOPs and by its bytes.

    The FLOPs are at the peak of their data type, and the bytes at that of the memory.

    Args:
        work: The bytes that the operator moves and the FLOPs that it computes.
        peak_names: For each data type the name of the card's peak in FLOP/s.
        card: The data sheet of the GPU.

    Returns:
        Both times in seconds. Each is a lower bound, so the larger one counts.
    """
    flops_s = 0.0
    if work.flops:
        flops_s = work.flops / card.flops_per_s[peak_names[work.dtype]]
    # A batch normalization reads its input twice, the second time from memory only if the chip cannot hold it.
    read_again_bytes = sum(size for size in work.twice_read_sizes if size > card.on_chip_bytes)
    bytes_s = (work.moved_bytes + read_again_bytes) / card.memory_bytes_per_s
    return OperatorTime(flops_s, bytes_s)


def _all_reduce_s(summed_bytes: float, ranks: int, link_bytes_per_s: float) -> float:
    """Return the seconds of a ring all-reduce of b bytes over n ranks: each link carries 2 (n - 1) / n b bytes.

    Args:
        summed_bytes: The bytes to sum, b.
        ranks: Number of ranks, n.
        link_bytes_per_s: Peak of the slowest link of the ring, in one direction.
    """
    return 2 * (ranks - 1) / ranks * summed_bytes / link_bytes_per_s


# ---- estimates of a step


def roofline(operators: Operators, *, tf32: bool, batch: int, ranks: int, card: Card) -> JsonObject | None:
    """Return an upper bound of the images/s of a training step on a card, and its times, for JSON.

    Args:
        operators: The operators of the step, in their order.
        tf32: Whether products of "float32" are computed in TF32.
        batch: Images of a step on one rank.
        ranks: How many ranks train, each on one GPU of one node.
        card: The data sheet of the GPU.

    Returns:
        The bound ("roofline_images_per_s"), its times in seconds and the peaks used. None if the data sheet lacks a
        peak that is needed, or if there are more ranks than GPUs of a node (8).
    """
    peak_names = _peak_names_by_dtype(operators, card, tf32=tf32)
    if ranks > GPUS_OF_A_NODE or peak_names is None:  # no data sheet has the speed of a network between nodes
        return None
    step = step_time(operators, peak_names, card, ranks=ranks, link_bytes_per_s=card.link_bytes_per_s)
    return {
        "roofline_images_per_s": batch * ranks / step.total_s,
        "step_time_s": step.total_s,
        "flops_time_s": step.operators.flops_s,
        "bytes_time_s": step.operators.bytes_s,
        "exposed_all_reduce_s": step.exposed_s,
        "peaks": card.peaks(peak_names.values()),
        "kind": "roofline at data-sheet peaks, an upper bound; not measured",
    }


def scaling(operators: Operators, *, tf32: bool, card: Card, network_bytes_per_s: float) -> list[JsonObject] | None:
    """Return an estimate of a training step at each number of GPUs in SCALED_GPUS, with its all-reduces, for JSON.

    Each GPU keeps its batch.

    Args:
        operators: The operators of the step, in their order.
        tf32: Whether products of "float32" are computed in TF32.
        card: The data sheet of the GPU, with the peak of the links within a node.
        network_bytes_per_s: What the network of a node sends at its peak; 12.5e9 for 100 Gb/s.

    Returns:
        A row for each number of GPUs, as `_scaling_row` describes it. None if the data sheet lacks a peak that is
        needed.
    """
    peak_names = _peak_names_by_dtype(operators, card, tf32=tf32)
    if peak_names is None:
        return None
    within_a_node = card.link_bytes_per_s
    over_several_nodes = min(within_a_node, network_bytes_per_s)  # a ring is as fast as its slowest link
    steps: dict[int, StepTime] = {}
    for gpus in SCALED_GPUS:
        link_bytes_per_s = within_a_node if gpus <= GPUS_OF_A_NODE else over_several_nodes
        steps[gpus] = step_time(operators, peak_names, card, ranks=gpus, link_bytes_per_s=link_bytes_per_s)

    one_node = steps[GPUS_OF_A_NODE]
    return [_scaling_row(gpus, step, one_node) for gpus, step in steps.items()]


def _scaling_row(gpus: int, step: StepTime, one_node: StepTime) -> JsonObject:
    """Return a row of the estimated scaling table: a training step on some GPUs, compared with one on one node.

    This is weak scaling: each GPU keeps its batch, so a step should ideally take as long as on one node.

    Args:
        gpus: The number of GPUs, such as 32.
        step: The estimated times of a step on that many GPUs, in seconds.
        one_node: The same for one node of 8 GPUs.

    Returns:
        A dict for JSON: the times in seconds, and the step time on one node over that on these GPUs (1.0 is perfect
        scaling).
    """
    return {
        "gpus": gpus,
        "nodes": gpus // GPUS_OF_A_NODE,
        "step_time_s": step.total_s,
        "all_reduce_s": step.all_reduce_s,
        "exposed_all_reduce_s": step.exposed_s,  # the time in which a GPU only waits for all-reduces
        "exposed_share": step.exposed_s / step.total_s,
        "of_linear": one_node.total_s / step.total_s,
        "of_linear_nothing_hidden": one_node.without_overlap_s / step.without_overlap_s,  # if nothing overlapped
    }


def published_scaling(card: Card, *, model: str, precision: str) -> list[JsonObject]:
    """Return how published throughputs with Paddle scale from one node to several, for JSON.

    A table with 1000 images/s on 1 node and 1940 on 2 nodes gives {"table": its name, "of_linear": {2: 0.97}}, because
    1940 is 0.97 times 2000.

    Args:
        card: The GPU of the published figures.
        model: Name of the model, such as "resnet50_v1.5".
        precision: Precision of the training, such as "tf32" or "amp_o2".

    Returns:
        An entry for each published table; empty if there are none. Tables without a figure for one node are left out.
    """
    scaled = []
    for table in published_tables(figures_of(card, model=model, precision=precision)):
        if 1 in table.images_per_s:
            scaled.append({"table": table.name, "of_linear": _shares_of_linear_scaling(table)})
    return scaled


def _shares_of_linear_scaling(table: PublishedTable) -> dict[int, float]:
    """Return how near to linear the images/s grow with the nodes, by the number of nodes.

        share = images/s on n nodes / (n * images/s on one node)

    Args:
        table: Published images/s by the number of nodes; it must have one for 1 node.

    Returns:
        Shares such as {2: 0.97, 4: 0.95}; 1.0 is perfect scaling.
    """
    on_one_node = table.images_per_s[1]
    of_linear = {}
    for nodes, images_per_s in table.images_per_s.items():
        if nodes > 1:
            of_linear[nodes] = images_per_s / (nodes * on_one_node)
    return of_linear
