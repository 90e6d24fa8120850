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
from collections.abc import Iterable, Mapping, Sequence
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
    """A summary of the measured ranks of one class."""

    rank_count: int
    majority_table: str | None  # name of the table that more than half of the ranks usually give; None: no majority
    agreeing_ranks: int  # how many usually give the majority's table
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


def check(record: Record) -> None:
    """Raise an error if the digests of a fleet's record are incomplete or inconsistent.

    A record without digests passes. The error is ValueError for a wrong value. It is LookupError, TypeError or
    AttributeError if a field is missing or of another type.
    """
    if record.get("digests") is None:
        return
    _check_tables(record["digests"])
    _check_ranks(record["digests"]["ranks"], record["hosts"])
    for rank in ranks_of(record):
        _check_repetitions(rank)


def _check_repetitions(rank: Rank) -> None:
    """Raise ValueError unless a rank has either positive counts of repetitions or a failure.

    Raises TypeError if one of its texts is not a text.
    """
    raise_unless_texts((rank.node, rank.device, rank.class_name or "", rank.failure or ""))
    for count in rank.count_by_table.values():
        if type(count) is not int or count < 1:
            raise ValueError(f"rank {rank.rank} has {count} repetitions of a table")
    has_failed = rank.failure is not None
    has_repetitions = bool(rank.count_by_table)
    if has_failed == has_repetitions:
        raise ValueError(f"rank {rank.rank} has neither repetitions nor a failure, or both")


def raise_unless_texts(values: Iterable[Any]) -> None:
    """Raise TypeError if one of the values is not a text."""
    "".join(values)


def _check_ranks(entries: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> None:
    """Raise ValueError unless the ranks are numbered from 0 on, and each host has a rank.

    `entries` are the ranks as the record has them. The "unit" of an entry is the index of its host in `hosts`; another
    index raises ValueError too.
    """
    rank_numbers = [entry["rank"] for entry in entries]
    if rank_numbers != list(range(len(entries))):
        raise ValueError(f"the digests' ranks are not numbered from 0 to {len(entries) - 1}")
    indices_with_a_rank = {entry["unit"] for entry in entries}
    for host_index, host in enumerate(hosts):
        if host_index not in indices_with_a_rank:
            raise ValueError(f"no rank of {host} has digests or a failure")
    unknown_indices = indices_with_a_rank - set(range(len(hosts)))
    if unknown_indices:
        raise ValueError(f"the digests have a rank of host {min(unknown_indices)}, of {len(hosts)} hosts")


def _check_tables(digests: Digests) -> None:
    """Raise ValueError unless each table has a row for each step, and each row a digest of each tensor.

    Raises TypeError if the name of a tensor or a digest is not a text.
    """
    steps = digests["steps"]
    tensors = digests["tensors"]
    raise_unless_texts(tensors)
    for table_name, table in digests["tables"].items():
        row_lengths = set(map(len, table))
        for row in table:
            raise_unless_texts(row)
        if len(table) != steps or row_lengths != {len(tensors)}:
            raise ValueError(f"table {table_name} has not {len(tensors)} digests in each of {steps} steps")


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
    - Most of the measured ranks, at least two, gave different digests from repetition to repetition: unknown, because
      the kernels sum in a random order then.
    - No majority of the ranks gave the same digests: the rank is judged by its own repetitions.
    - Otherwise: the rank is judged by the digests of the majority.
    """
    measured = [rank for rank in ranks_of_class if rank.failure is None]
    self_contradicting = [rank for rank in measured if not rank.is_steady]  # their repetitions gave different digests
    # A single such rank proves no random order: the rank itself may compute wrongly.
    has_random_order = len(measured) > 1 and 2 * len(self_contradicting) > len(measured)
    summary_of_class = _summarize_class(measured)

    judgement_by_rank: dict[int, Judgement] = {}
    for rank in ranks_of_class:
        if rank.failure is not None:
            judgement = Judgement(FATAL, f"{rank.title} failed: {rank.failure}")
        elif has_random_order:
            differing = f"{len(self_contradicting)} of {len(measured)} ranks of a class differ from themselves"
            found = f"{NOT_REPEATABLE}: {differing}"
            judgement = Judgement(UNKNOWN, found)
        elif summary_of_class.majority_table is None:
            judgement = _judge_by_own_repetitions(rank, digests, summary_of_class)
        else:
            judgement = _judge_by_majority(rank, digests, summary_of_class, summary_of_class.majority_table)
        judgement_by_rank[rank.rank] = judgement
    return judgement_by_rank


def _summarize_class(measured: Sequence[Rank]) -> ClassSummary:
    """Return a summary of the measured ranks of a class.

    A table has the digests of one repetition. The summary has the number of ranks, the name of the majority's table,
    how many ranks usually give that table, and which hosts gave each table. Without a majority its table is None, and
    no rank agrees with it.
    """
    hosts_by_table: dict[str, set[str]] = {}
    for rank in measured:
        for table_name in rank.count_by_table:
            hosts_by_table.setdefault(table_name, set()).add(rank.host)
    majority_table = _majority_table(measured)
    agreeing = [rank for rank in measured if majority_table is not None and rank.usual_table == majority_table]
    return ClassSummary(
        rank_count=len(measured),
        majority_table=majority_table,
        agreeing_ranks=len(agreeing),
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

    - No digests came out in more than half of its repetitions: unknown.
    - Some repetitions gave other digests than most of its repetitions: fatal if no other host gave these other digests.
      If several hosts gave them, the order of computation is taken to be random, so the rank is unknown.
    - All its repetitions agree: unknown, because no majority confirms them.
    """
    if rank.usual_table is None:
        return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: no table came out in more than half of a rank's repetitions")
    if not rank.is_steady:
        host_count = _count_hosts_with_same_fault(rank, summary_of_class, right_table=rank.usual_table)
        # `host_count` counts the rank's own host, too. Broken hardware does not give the same fault on several hosts.
        is_on_its_host_alone = host_count == 1
        if is_on_its_host_alone:
            # The text becomes "1 of 20 repetitions differ from the others of its own".
            return Judgement(FATAL, _describe_fault(rank, digests, rank.usual_table, "the others of its own"))
        return _judge_random_order(host_count)
    # All repetitions agree, but no majority confirms them.
    if summary_of_class.rank_count < LEAST_RANKS:
        size = summary_of_class.rank_count
        return Judgement(UNKNOWN, f"not decided: {size} of its class, {LEAST_RANKS} are needed to tell who is wrong")
    found = f"not decided: no majority of the {summary_of_class.rank_count} ranks of its class agrees"
    return Judgement(UNKNOWN, found)


def _judge_by_majority(rank: Rank, digests: Digests, summary_of_class: ClassSummary, majority_table: str) -> Judgement:
    """Judge a rank by the digests that most ranks of its class gave: the table of digests named `majority_table`.

    - All its repetitions gave that table: ok.
    - It gave a wrong table that no other host gave: fatal.
    - It usually gives a wrong table, and other hosts gave the same one: unknown, because a library or a setting of
      these hosts may be the cause.
    - Its repetitions differ, and other hosts gave the same wrong table: unknown, because the order of sums seems to be
      random.
    """
    majority_text = f"{summary_of_class.agreeing_ranks} of {summary_of_class.rank_count} ranks of its class"
    if rank.usual_table == majority_table and rank.is_steady:
        return Judgement(OK, f"the same bits as {majority_text}")

    host_count = _count_hosts_with_same_fault(rank, summary_of_class, right_table=majority_table)
    is_on_its_host_alone = host_count == 1
    if is_on_its_host_alone:  # corruption differs from host to host
        return Judgement(FATAL, _describe_fault(rank, digests, majority_table, majority_text))
    is_usually_wrong = rank.usual_table is not None and rank.usual_table != majority_table
    if is_usually_wrong:  # another library or setting of these hosts may be the cause
        found = f"not decided: {host_count} hosts agree on other bits than {majority_text}: see what differs there"
        return Judgement(UNKNOWN, found)
    # Its repetitions differ, and other hosts have the same wrong digests: the order of sums seems to be random.
    return _judge_random_order(host_count)


def _count_hosts_with_same_fault(rank: Rank, summary_of_class: ClassSummary, *, right_table: str) -> int:
    """Return how many hosts gave the same wrong table as a rank, its own host included: 1 if no other host did.

    A table has the digests of one repetition. The rank must have given another one than `right_table` at least once.
    """
    wrong_tables = [table_name for table_name in rank.count_by_table if table_name != right_table]
    if rank.usual_table in wrong_tables:
        wrong_tables = [rank.usual_table]  # what the rank usually computes counts more than a single repetition
    # Of several wrong tables the rarest counts: it speaks most against the rank.
    return min(len(summary_of_class.hosts_by_table[table_name]) for table_name in wrong_tables)


def _judge_random_order(host_count: int) -> Judgement:
    """Return the judgement on a rank whose kernels sum in a random order: `host_count` hosts gave its other bits."""
    return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: {host_count} hosts have the same other bits in some repetitions")


def _describe_fault(rank: Rank, digests: Digests, right_table: str, right_ranks: str) -> str:
    """Return a message on a rank that computes wrongly: how often, and in which tensor of which step first.

    A table has the digests of one repetition. `right_table` is the name of the right one, and `right_ranks` says in
    words who gave it. The record holds the digests of a few tables only. If it lacks the right table or all wrong
    tables of the rank, the message says so in place of the step and the tensor.
    """
    wrong_tables = [table_name for table_name in rank.count_by_table if table_name != right_table]
    wrong_count = sum(rank.count_by_table[table_name] for table_name in wrong_tables)
    share = f"{wrong_count} of {rank.repetition_count} repetitions"
    message = f"{rank.title} computes wrongly: {share} differ from {right_ranks}"

    kept_tables = digests["tables"]  # the record holds a few tables only
    positions = []
    for table_name in wrong_tables:
        if table_name in kept_tables and right_table in kept_tables:
            positions.append(_first_difference(kept_tables[table_name], kept_tables[right_table]))
    if not positions:
        return f"{message}; the record does not keep where"
    first = min(positions)
    return f"{message}, first in step {first.step} in {described(digests['tensors'][first.tensor])}"


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
