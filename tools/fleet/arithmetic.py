"""Whether each rank of a fleet computes the same bits as the others: verdicts on the digests of fleet.json.

Every rank repeats the same training steps from the same weights on the same batch. After each step it takes a digest
of every gradient, batch-norm statistic and updated weight (tools/fleet/digests.py).

The digests of one repetition are its table: a row for each step, with a digest of each tensor. The name of a table is a
hash of its content, so equal tables have the same name. If a rank's table differs from those of other ranks, either the
rank computed wrongly, or its kernels sum in a random order. This module tells the two cases apart.

Ranks are compared within a class: the same model of GPU or CPU, driver, cuDNN and Paddle. Other classes may round
differently.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, worst_status

CHECK = "arithmetic"
LEAST_RANKS = 3  # in a class that has a majority: if two ranks differ, either may be wrong
NOT_REPEATABLE = "not repeatable here"
FIX = "keep the node out, and measure it again alone: a GPU that is named twice is for replacement"

Record = Mapping[str, Any]  # fleet.json
Digests = Mapping[str, Any]  # the entry "digests" of fleet.json: docs/operations.md
Table = Sequence[Sequence[str]]  # of a repetition: a list for each step, with the digest of each tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """The digests of one rank. A table has the digests of one repetition, and equal tables have the same name."""

    rank: int
    host: str  # the compared node, or the rank itself if the job has one node
    node: str  # the machine's own name
    device: str  # the CPU's model, or the GPU's number, model, UUID and serial number
    class_name: str | None  # its model, driver, cuDNN, Paddle: ranks of one class compute the same bits; None: unknown
    count_by_table: Mapping[str, int]  # {name of a table: how many repetitions gave it}; empty if the rank failed
    failure: str | None  # why it has no repetitions

    @property
    def repetition_count(self) -> int:
        """The number of the rank's repetitions."""
        return sum(self.count_by_table.values())

    @property
    def usual_table(self) -> str | None:
        """The name of the table that more than half of the repetitions gave; None if there is no such table."""
        return _given_by_most(self.count_by_table, self.repetition_count)

    @property
    def is_steady(self) -> bool:
        """Whether all repetitions gave the same table."""
        return len(self.count_by_table) == 1

    @property
    def title(self) -> str:
        """The rank, its machine and its device, as a message names them."""
        return f"rank {self.rank} on {self.node} ({self.device})"


class Judgement(NamedTuple):
    """The status of one rank, and why."""

    status: str
    found: str


class ClassSummary(NamedTuple):
    """A summary of what the measured ranks of one class gave. A table has the digests of one repetition."""

    rank_count: int
    majority_table: str | None  # name of the table that more than half of the ranks usually give; None: no majority
    agreeing_ranks: int  # how many ranks usually give the majority's table; 0 without a majority
    hosts_by_table: Mapping[str, set[str]]  # {name of a table: hosts with a rank that gave it at least once}


class Position(NamedTuple):
    """The first difference between two tables; an earlier position is the smaller one."""

    step: int  # from 1
    tensor: int  # its number in the program's order, from 0


def _given_by_most(count_by_table: Mapping[str, int], total: int) -> str | None:
    """Return the name of the table whose count is more than half of `total`; None if there is no such table."""
    for table_name, count in count_by_table.items():
        if 2 * count > total:
            return table_name
    return None


def ranks_of(record: Record) -> list[Rank]:
    """Return the ranks of a fleet's record (fleet.json) with their digests, in the record's order.

    The list is empty if the record has no digests. That is so if a version before digests wrote the record, or if
    Paddle has no kernels for the GPUs.
    """
    if record.get("digests") is None:
        return []
    ranks = []
    for entry in record["digests"]["ranks"]:
        rank = Rank(
            rank=entry["rank"],
            host=record["hosts"][entry["unit"]],  # "unit" is the index of the host
            node=entry["node"],
            device=entry["device"],
            class_name=entry["class"],
            count_by_table=entry["repetitions"],
            failure=entry["failure"],
        )
        ranks.append(rank)
    return ranks


def judge(record: Record) -> list[Verdict]:
    """Return a verdict on each host by the digests of its ranks, in the order of the record's hosts.

    The list is empty if the record has no digests.
    """
    ranks = ranks_of(record)
    if not ranks:
        return []
    judgement_by_rank = _judge_ranks(ranks, record["digests"])
    judgements_by_host: dict[str, list[Judgement]] = {host: [] for host in record["hosts"]}
    for rank in ranks:
        judgements_by_host[rank.host].append(judgement_by_rank[rank.rank])
    return [_verdict_on_host(host, judgements) for host, judgements in judgements_by_host.items() if judgements]


def _judge_ranks(ranks: Sequence[Rank], digests: Digests) -> dict[int, Judgement]:
    """Compare the digests of ranks of the same class; return {number of a rank: judgement}."""
    ranks_by_class: dict[str | None, list[Rank]] = {}
    for rank in ranks:
        ranks_by_class.setdefault(rank.class_name, []).append(rank)

    judgement_by_rank: dict[int, Judgement] = {}
    for class_name, ranks_of_class in ranks_by_class.items():
        if class_name is not None:
            judgement_by_rank |= _judge_class(ranks_of_class, digests)
            continue
        for rank in ranks_of_class:
            found = "not decided: its GPU's model, driver or cuDNN is not known, by which to compare"
            judgement_by_rank[rank.rank] = Judgement(UNKNOWN, found)
    return judgement_by_rank


def _verdict_on_host(host: str, judgements: Sequence[Judgement]) -> Verdict:
    """Return the verdict on a host by the judgements of its ranks: the worst status, with each reason for it once."""
    status = worst_status(judgement.status for judgement in judgements)
    reasons: list[str] = []
    for judgement in judgements:
        if judgement.status == status and judgement.found not in reasons:
            reasons.append(judgement.found)
    fix = FIX if status == FATAL else ""
    return Verdict(check=CHECK, where=host, status=status, found="; ".join(reasons), fix=fix)


def _judge_class(ranks_of_class: Sequence[Rank], digests: Digests) -> dict[int, Judgement]:
    """Judge the ranks of one class, whose digests must agree; return {number of a rank: judgement}.

    - The rank failed: fatal.
    - The kernels of the class sum in a random order: unknown.
    - No majority of the ranks gave the same digests: the rank is judged by its own repetitions.
    - Otherwise: the rank is judged by the digests of the majority.
    """
    measured = [rank for rank in ranks_of_class if rank.failure is None]
    unsteady = [rank for rank in measured if not rank.is_steady]
    has_random_order = _is_order_random(measured_ranks=len(measured), unsteady_ranks=len(unsteady))
    summary_of_class = _summarize_class(measured)

    judgement_by_rank: dict[int, Judgement] = {}
    for rank in ranks_of_class:
        if rank.failure is not None:
            judgement = Judgement(FATAL, f"{rank.title} failed: {rank.failure}")
        elif has_random_order:
            found = f"{NOT_REPEATABLE}: {len(unsteady)} of {len(measured)} ranks of a class differ from themselves"
            judgement = Judgement(UNKNOWN, found)
        elif summary_of_class.majority_table is None:
            judgement = _judge_by_own_repetitions(rank, digests, summary_of_class)
        else:
            judgement = _judge_by_majority(rank, digests, summary_of_class, summary_of_class.majority_table)
        judgement_by_rank[rank.rank] = judgement
    return judgement_by_rank


def _is_order_random(*, measured_ranks: int, unsteady_ranks: int) -> bool:
    """Return whether the kernels of a class of ranks sum in a random order: most of its measured ranks are unsteady.

    An unsteady rank gave different digests in different repetitions of the same steps. The only rank of a class proves
    no random order by that, because it may compute wrongly.
    """
    if measured_ranks < 2:
        return False
    return unsteady_ranks > measured_ranks / 2


def _summarize_class(measured: Sequence[Rank]) -> ClassSummary:
    """Return a summary of what the measured ranks of a class gave: the majority's digests, and which hosts gave which.

    A table has the digests of one repetition, and equal tables have the same name. A rank counts for the majority if
    more than half of its repetitions gave the majority's table.
    """
    hosts_by_table: dict[str, set[str]] = {}
    for rank in measured:
        for table_name in rank.count_by_table:
            hosts_by_table.setdefault(table_name, set()).add(rank.host)
    majority_table = _majority_table(measured)
    agreeing_ranks = 0
    if majority_table is not None:
        agreeing_ranks = sum(1 for rank in measured if rank.usual_table == majority_table)
    return ClassSummary(
        rank_count=len(measured),
        majority_table=majority_table,
        agreeing_ranks=agreeing_ranks,
        hosts_by_table=hosts_by_table,
    )


def _majority_table(measured: Sequence[Rank]) -> str | None:
    """Return the name of the table that more than half of a class's measured ranks usually give.

    A table has the digests of one repetition. A rank usually gives the table of more than half of its repetitions.
    None if there is no such majority, or if fewer than LEAST_RANKS ranks are measured.
    """
    if len(measured) < LEAST_RANKS:
        return None
    usual_tables = [rank.usual_table for rank in measured]
    ranks_by_table = Counter(table_name for table_name in usual_tables if table_name is not None)
    return _given_by_most(ranks_by_table, len(measured))


def _judge_by_own_repetitions(rank: Rank, digests: Digests, summary_of_class: ClassSummary) -> Judgement:
    """Judge a rank of a class without a majority by whether its own repetitions agree.

    - All its repetitions gave the same digests: unknown, because no majority confirms them.
    - No digests came out in more than half of its repetitions: unknown.
    - Some repetitions gave other digests than most of its repetitions, and no other host gave these: fatal.
    - Some gave other digests, and other hosts gave the same ones: unknown. Broken hardware does not give the same wrong
      digests on several hosts, so the order of sums seems to be random.
    """
    if rank.is_steady:
        return _judge_without_majority(summary_of_class.rank_count)
    if rank.usual_table is None:
        found = f"{NOT_REPEATABLE}: its repetitions differ, and no result came out in more than half of them"
        return Judgement(UNKNOWN, found)
    hosts_with_same_fault = _hosts_with_same_fault(rank, summary_of_class, right_table=rank.usual_table)
    if hosts_with_same_fault == {rank.host}:
        # The text becomes "1 of 20 repetitions differ from the others of its own".
        return Judgement(FATAL, _describe_fault(rank, digests, rank.usual_table, "the others of its own"))
    return _judge_random_order(len(hosts_with_same_fault))


def _judge_without_majority(rank_count: int) -> Judgement:
    """Return the judgement on a rank whose repetitions all agree, while no majority of its class confirms them.

    `rank_count` is the number of measured ranks of the class. There is no majority if they are too few for one, or if
    at most half of them gave the same digests.
    """
    if rank_count < LEAST_RANKS:
        found = f"not decided: {rank_count} of its class, {LEAST_RANKS} are needed to tell who is wrong"
    else:
        no_majority = f"no majority of the {rank_count} ranks of its class has the same bits"
        found = f"not decided: {no_majority}, and one is needed to tell who is wrong"
    return Judgement(UNKNOWN, found)


def _judge_by_majority(rank: Rank, digests: Digests, summary_of_class: ClassSummary, majority_table: str) -> Judgement:
    """Judge a rank by the digests that most ranks of its class gave: the table of digests named `majority_table`.

    - All its repetitions gave that table: ok.
    - It gave a wrong table that no other host gave: fatal, because corruption differs from host to host.
    - Other hosts gave the same wrong table, and the rank usually gives it: unknown, because another library or setting
      of these hosts may be the cause.
    - Other hosts gave the same wrong table, and the rank does not usually give it: unknown, because the order of sums
      seems to be random.
    """
    right_ranks = f"{summary_of_class.agreeing_ranks} of {summary_of_class.rank_count} ranks of its class"
    is_always_right = rank.count_by_table.keys() == {majority_table}
    if is_always_right:
        return Judgement(OK, f"the same bits as {right_ranks}")

    hosts_with_same_fault = _hosts_with_same_fault(rank, summary_of_class, right_table=majority_table)
    if hosts_with_same_fault == {rank.host}:
        return Judgement(FATAL, _describe_fault(rank, digests, majority_table, right_ranks))
    is_usually_wrong = rank.usual_table is not None and rank.usual_table != majority_table
    if is_usually_wrong:
        host_count = len(hosts_with_same_fault)
        found = f"not decided: {host_count} hosts agree on other bits than {right_ranks}: see what differs there"
        return Judgement(UNKNOWN, found)
    return _judge_random_order(len(hosts_with_same_fault))


def _hosts_with_same_fault(rank: Rank, summary_of_class: ClassSummary, *, right_table: str) -> set[str]:
    """Return the hosts that gave the same wrong table as a rank; its own host is always one of them.

    A table has the digests of one repetition. The rank must have given another one than `right_table` at least once.

    - The rank usually gives one wrong table: the hosts that gave this one.
    - Otherwise: the hosts that gave the rarest of its wrong tables, which speaks most against the rank.
    """
    if rank.usual_table is not None and rank.usual_table != right_table:
        return summary_of_class.hosts_by_table[rank.usual_table]
    wrong_tables = [table_name for table_name in rank.count_by_table if table_name != right_table]
    return min((summary_of_class.hosts_by_table[table_name] for table_name in wrong_tables), key=len)


def _judge_random_order(host_count: int) -> Judgement:
    """Return the judgement on a rank whose kernels sum in a random order: `host_count` hosts gave its other bits."""
    return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: {host_count} hosts have the same other bits in some repetitions")


def _describe_fault(rank: Rank, digests: Digests, right_table: str, right_ranks: str) -> str:
    """Return a message on a rank that computes wrongly: how often, and in which tensor of which step first.

    For example "rank 2 on n2 (GPU0, A100) computes wrongly: 1 of 20 repetitions differ from 3 of 4 ranks of its class,
    first in step 7 in the gradient fc.w@GRAD".

    `right_table` is the name of the right digests of a repetition, and `right_ranks` says in words who gave them. If
    the fleet's record does not hold the digests to compare, the message says so in place of the step and the tensor.
    """
    wrong_tables = [table_name for table_name in rank.count_by_table if table_name != right_table]
    wrong_count = sum(rank.count_by_table[table_name] for table_name in wrong_tables)
    share = f"{wrong_count} of {rank.repetition_count} repetitions"
    message = f"{rank.title} computes wrongly: {share} differ from {right_ranks}"
    first = _first_fault(wrong_tables, right_table, digests["tables"])
    if first is None:
        return f"{message}; the record does not keep where"
    return f"{message}, first in step {first.step} in {described(digests['tensors'][first.tensor])}"


def _first_fault(wrong_tables: Sequence[str], right_table: str, kept_tables: Mapping[str, Table]) -> Position | None:
    """Return the first position in which any of the wrong tables differs from the right one.

    A table has the digests of one repetition; `wrong_tables` and `right_table` are names. `kept_tables` has those that
    the record holds, which are a few only. None if it lacks the right table or all wrong ones.
    """
    if right_table not in kept_tables:
        return None
    positions = []
    for table_name in wrong_tables:
        if table_name in kept_tables:
            positions.append(_first_difference(kept_tables[table_name], kept_tables[right_table]))
    return min(positions, default=None)


def _first_difference(table: Table, right_table: Table) -> Position:
    """Return the first step in which two tables of digests differ, and the first tensor of that step that differs.

    The first tensor in the program's order is nearest to the fault: what is computed from a wrong value is wrong too.
    Raises ValueError if the tables are equal.
    """
    for step_index, right_digests in enumerate(right_table):
        for tensor_index, right_digest in enumerate(right_digests):
            if table[step_index][tensor_index] != right_digest:
                return Position(step=step_index + 1, tensor=tensor_index)
    raise ValueError("two tables of other names are the same")


def described(tensor: str) -> str:
    """Return a tensor's name with its kind: `fc.w@GRAD` -> `the gradient fc.w@GRAD`.

    The ending of the name shows the kind: a gradient, a batch-norm statistic, or otherwise an updated weight.
    """
    if tensor.endswith("@GRAD"):
        return f"the gradient {tensor}"
    if tensor.endswith((".mean", ".variance")):
        return f"the batch-norm statistic {tensor}"
    return f"the updated weight {tensor}"


def summary(record: Record) -> str:
    """Return in one line how many ranks, classes, repetitions and digests were compared.

    For example "16 ranks of 1 class, at least 4 repetitions of 10 steps each, 428 digests a step". Ranks that failed
    are not counted. If no rank is left, the line is "not measured".
    """
    ranks = [rank for rank in ranks_of(record) if rank.failure is None]
    if not ranks:
        return "not measured"
    digests = record["digests"]
    class_names = {rank.class_name for rank in ranks}
    of_classes = "1 class" if len(class_names) == 1 else f"{len(class_names)} classes"
    fewest_repetitions = min(rank.repetition_count for rank in ranks)
    return (
        f"{len(ranks)} ranks of {of_classes}, at least {fewest_repetitions} repetitions of {digests['steps']} steps "
        f"each, {len(digests['tensors'])} digests a step"
    )
