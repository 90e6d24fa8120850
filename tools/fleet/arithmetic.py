"""Whether each rank of a fleet computes the same bits as the others: verdicts on the digests of fleet.json.

Every rank takes the same training steps from the same weights on the same batch, again and again, and after each step
a digest of every gradient, batch-norm statistic and updated weight (tools/fleet/digests.py). All digests of one
repetition are its table: a row for each step, with a digest of each tensor. Equal tables have one name, a hash of their
content. A rank whose table differs computed wrongly, or its kernels add up in a random order; this module tells the two
apart. Ranks are compared within a class: the same model of GPU or CPU, driver, cuDNN and Paddle, as others may round in
another way.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, worst_status

CHECK = "arithmetic"
LEAST_RANKS = 3  # of a class: of two that differ nobody can say which one is wrong
NOT_REPEATABLE = "not repeatable here"
FIX = "keep the node out, and measure it again alone: a GPU that is named twice is for replacement"

Record = Mapping[str, Any]  # fleet.json
Digests = Mapping[str, Any]  # what it has under that name: docs/operations.md
Table = Sequence[Sequence[str]]  # of a repetition: a list for each step, with the digest of each tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """The digests of one rank. A table is all digests of one repetition; tables are told apart by their names."""

    rank: int
    host: str  # the compared node, or the rank itself where the job has one node
    node: str  # the machine's own name
    device: str  # the CPU's model, or the GPU's number, model, UUID and serial number
    class_name: str | None  # its model, driver, cuDNN, Paddle: ranks of one class compute the same bits; None: unknown
    repetitions: Mapping[str, int]  # {name of a table: how many repetitions gave it}; empty where none was taken
    failure: str | None  # why it has no repetitions

    @property
    def total(self) -> int:
        """The number of the rank's repetitions."""
        return sum(self.repetitions.values())

    @property
    def usual_table(self) -> str | None:
        """The name of the table that more than half of the repetitions gave; None where there is none."""
        return _given_by_most(self.repetitions, self.total)

    @property
    def is_steady(self) -> bool:
        """Whether all repetitions gave one table."""
        return len(self.repetitions) == 1

    @property
    def title(self) -> str:
        """The rank, its machine and its device, as a message names them."""
        return f"rank {self.rank} on {self.node} ({self.device})"


class Judgement(NamedTuple):
    """The status of one rank, and why."""

    status: str
    found: str


class RankClass(NamedTuple):
    """The measured ranks of one class, summed up."""

    size: int  # the number of its ranks
    majority_table: str | None  # the table that more than half of them usually give; None where there is none
    agreeing_ranks: int  # how many usually give the majority's table
    hosts_by_table: Mapping[str, set[str]]  # the hosts with a rank that gave the table at least once


class Place(NamedTuple):
    """Where two tables differ first; an earlier place is the smaller one."""

    step: int  # from 1
    tensor: int  # its number in the program's order, from 0


def _given_by_most(count_by_table: Mapping[str, int], total: int) -> str | None:
    """Return the table whose count is more than half of `total`; None where there is none."""
    for table, count in count_by_table.items():
        if 2 * count > total:
            return table
    return None


def ranks_of(record: Record) -> list[Rank]:
    """Return the ranks of a fleet's record (fleet.json) with their digests, in the record's order.

    The list is empty where the record has no digests: a program that took none yet wrote it, or Paddle has no kernels
    for the GPUs.
    """
    if record.get("digests") is None:
        return []
    ranks = []
    for entry in record["digests"]["ranks"]:
        rank = Rank(
            rank=entry["rank"],
            host=record["hosts"][entry["unit"]],
            node=entry["node"],
            device=entry["device"],
            class_name=entry["class"],
            repetitions=entry["repetitions"],
            failure=entry["failure"],
        )
        ranks.append(rank)
    return ranks


def check(record: Record) -> None:
    """Check that the digests of a fleet's record are as a fleet writes them; a record without digests passes.

    Each table must have a digest of each tensor for each step, each host must have a rank, and each rank must have
    either counts of repetitions or a failure. Raises ValueError where one of these does not hold, and LookupError,
    TypeError or AttributeError where a field is missing or of another type.
    """
    if record.get("digests") is None:
        return
    _check_tables(record["digests"])
    _check_ranks(record["digests"]["ranks"], record["hosts"])
    for rank in ranks_of(record):
        # Joining raises TypeError where one of these fields is no text.
        "".join((rank.node, rank.device, rank.class_name or "", rank.failure or ""))
        for count in rank.repetitions.values():
            if type(count) is not int or count < 1:
                raise ValueError(f"rank {rank.rank} has {count} repetitions of a table")
        has_failed = rank.failure is not None
        has_repetitions = bool(rank.repetitions)
        if has_failed == has_repetitions:
            raise ValueError(f"rank {rank.rank} has neither repetitions nor a failure, or both")


def _check_ranks(entries: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> None:
    """Raise ValueError unless the ranks are numbered from 0 on, each is of one of the hosts, and each host has one.

    `entries` are the ranks as the record has them. The "unit" of an entry is the number of its host in `hosts`.
    """
    numbers = [entry["rank"] for entry in entries]
    if numbers != list(range(len(entries))):
        raise ValueError(f"the digests' ranks are not numbered from 0 to {len(entries) - 1}")
    host_numbers = {entry["unit"] for entry in entries}
    for number, host in enumerate(hosts):
        if number not in host_numbers:
            raise ValueError(f"no rank of {host} has digests or a failure")
    unknown_hosts = host_numbers - set(range(len(hosts)))
    if unknown_hosts:
        raise ValueError(f"the digests have a rank of host {min(unknown_hosts)}, of {len(hosts)} hosts")


def _check_tables(digests: Digests) -> None:
    """Raise ValueError unless each table has a row for each step, and each row a digest of each tensor.

    Raises TypeError where a tensor's name or a digest is no text.
    """
    steps = digests["steps"]
    tensors = digests["tensors"]
    "".join(tensors)  # raises TypeError where one is no text
    for name, table in digests["tables"].items():
        row_lengths = set(map(len, table))
        for row in table:
            "".join(row)
        if len(table) != steps or row_lengths != {len(tensors)}:
            raise ValueError(f"table {name} has not {len(tensors)} digests in each of {steps} steps")


def judge(record: Record) -> list[Verdict]:
    """Return a verdict on each compared host by its ranks' digests, in the order of the record's hosts.

    A host is as bad as its worst rank, and its verdict names each rank that is as bad. Ranks of an unknown class cannot
    be compared, so they are unknown. A host without ranks gets no verdict, as in a record without digests.
    """
    ranks = ranks_of(record)
    ranks_by_class: dict[str | None, list[Rank]] = {}
    for rank in ranks:
        ranks_by_class.setdefault(rank.class_name, []).append(rank)

    judgements: dict[int, Judgement] = {}  # by the rank's number
    for class_name, members in ranks_by_class.items():
        if class_name is not None:
            judgements |= _judge_class(members, record["digests"])
            continue
        for rank in members:
            found = "not decided: its GPU's model, driver or cuDNN is not known, by which to compare"
            judgements[rank.rank] = Judgement(UNKNOWN, found)

    judgements_by_host: dict[str, list[Judgement]] = {host: [] for host in record["hosts"]}
    for rank in ranks:
        judgements_by_host[rank.host].append(judgements[rank.rank])
    return [_verdict(host, of_host) for host, of_host in judgements_by_host.items() if of_host]


def _verdict(host: str, of_host: Sequence[Judgement]) -> Verdict:
    """Return the verdict on a host by the judgements of its ranks: the worst status, with all that was found of it."""
    status = worst_status(judgement.status for judgement in of_host)
    reasons: list[str] = []
    for judgement in of_host:
        if judgement.status == status and judgement.found not in reasons:
            reasons.append(judgement.found)
    fix = FIX if status == FATAL else ""
    return Verdict(check=CHECK, where=host, status=status, found="; ".join(reasons), fix=fix)


def _judge_class(members: Sequence[Rank], digests: Digests) -> dict[int, Judgement]:
    """Judge the ranks of one class; return {number of the rank: judgement}.

    A rank that failed is fatal. Where most of the others give several tables each, their kernels add up in a random
    order, and nobody is accused. Else each is compared with the table of the class's majority, or where there is no
    majority with its own other repetitions.
    """
    measured = [rank for rank in members if rank.failure is None]
    unsteady = [rank for rank in measured if not rank.is_steady]
    # One rank alone does not show it: it may be the one that computes wrongly.
    are_random = len(measured) > 1 and 2 * len(unsteady) > len(measured)
    rank_class = _summed_up(measured)

    judgements: dict[int, Judgement] = {}
    for rank in members:
        if rank.failure is not None:
            judgement = Judgement(FATAL, f"{rank.title} failed: {rank.failure}")
        elif are_random:
            found = f"{NOT_REPEATABLE}: {len(unsteady)} of {len(measured)} ranks of a class differ from themselves"
            judgement = Judgement(UNKNOWN, found)
        elif rank_class.majority_table is None:
            judgement = _judge_by_own_repetitions(rank, digests, rank_class)
        else:
            judgement = _judge_by_majority(rank, digests, rank_class, rank_class.majority_table)
        judgements[rank.rank] = judgement
    return judgements


def _summed_up(measured: Sequence[Rank]) -> RankClass:
    """Return the measured ranks of a class as one record: how many, their majority's table, and who gave which one."""
    hosts_by_table: dict[str, set[str]] = {}
    for rank in measured:
        for table in rank.repetitions:
            hosts_by_table.setdefault(table, set()).add(rank.host)
    majority_table = _majority_table(measured)
    agreeing = [rank for rank in measured if majority_table is not None and rank.usual_table == majority_table]
    return RankClass(
        size=len(measured),
        majority_table=majority_table,
        agreeing_ranks=len(agreeing),
        hosts_by_table=hosts_by_table,
    )


def _majority_table(measured: Sequence[Rank]) -> str | None:
    """Return the name of the table that more than half of a class's measured ranks usually give.

    A table is all digests of one repetition; a rank usually gives the one of more than half of its repetitions. None
    where there is no such table, or where fewer than LEAST_RANKS ranks are measured.
    """
    if len(measured) < LEAST_RANKS:
        return None
    usual_tables = [rank.usual_table for rank in measured]
    ranks_by_table = Counter(table for table in usual_tables if table is not None)
    return _given_by_most(ranks_by_table, len(measured))


def _judge_by_own_repetitions(rank: Rank, digests: Digests, rank_class: RankClass) -> Judgement:
    """Judge a rank whose class has no majority by whether its own repetitions agree with each other.

    A table is all digests of one repetition. The rank is fatal where more than half of its repetitions gave one table,
    its usual one, and the others gave at least one that no other host gave. It is unknown:

    - where no table came out in more than half of its repetitions;
    - where other hosts gave each of its unusual tables too, as a random order of adding up does;
    - where all repetitions are alike, as nobody says that they are right.
    """
    if rank.usual_table is None:
        return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: no table came out in more than half of a rank's repetitions")
    if not rank.is_steady:
        hosts = _hosts_with_same_fault(rank, rank_class, rank.usual_table)
        if hosts > 1:
            return _random_order(hosts)
        return Judgement(FATAL, _fault_in_words(rank, digests, rank.usual_table, "the others of its own"))
    if rank_class.size < LEAST_RANKS:
        return Judgement(
            UNKNOWN, f"not decided: {rank_class.size} of its class, {LEAST_RANKS} are needed to tell who is wrong"
        )
    return Judgement(UNKNOWN, f"not decided: no majority of the {rank_class.size} ranks of its class agrees")


def _judge_by_majority(rank: Rank, digests: Digests, rank_class: RankClass, majority_table: str) -> Judgement:
    """Judge a rank by the bits that most ranks of its class compute.

    `majority_table` names their table: all digests of one repetition. The rank is ok where all its repetitions gave
    that table, else fatal. But it is unknown where ranks of several hosts gave the same wrong table: corruption gives
    each of them its own, another library or setting gives them the same, and so does a random order now and then.
    """
    of_class = f"{rank_class.agreeing_ranks} of {rank_class.size} ranks of its class"
    if rank.usual_table == majority_table and rank.is_steady:
        return Judgement(OK, f"the same bits as {of_class}")

    hosts = _hosts_with_same_fault(rank, rank_class, majority_table)
    if hosts == 1:
        return Judgement(FATAL, _fault_in_words(rank, digests, majority_table, of_class))
    usually_gives_a_wrong_table = rank.usual_table not in (majority_table, None)
    if usually_gives_a_wrong_table:
        found = f"not decided: {hosts} hosts agree on other bits than {of_class}: see what differs there"
        return Judgement(UNKNOWN, found)
    return _random_order(hosts)


def _hosts_with_same_fault(rank: Rank, rank_class: RankClass, right_table: str) -> int:
    """Return how many hosts gave the same wrong table as a rank: 1 where its own host alone did.

    Every table but `right_table` is wrong, and the rank has given one such at least. If it usually gives a wrong one,
    only that counts. Of several the one that the fewest hosts gave counts, as a table that no other host has speaks
    against the rank.
    """
    wrong_tables = [table for table in rank.repetitions if table != right_table]
    if rank.usual_table in wrong_tables:
        wrong_tables = [rank.usual_table]
    return min(len(rank_class.hosts_by_table[table]) for table in wrong_tables)


def _random_order(hosts: int) -> Judgement:
    """Return the judgement that a rank adds up in a random order, as so many hosts have the same other bits."""
    return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: {hosts} hosts have the same other bits in some repetitions")


def _fault_in_words(rank: Rank, digests: Digests, right_table: str, right_ones: str) -> str:
    """Return a message on a rank that computes wrongly: how often, and in which tensor of which step first.

    A table is all digests of one repetition. `right_table` is the name of the right one, and `right_ones` says in words
    who gave it. The record keeps the digests of some tables only; where it keeps none of the rank's wrong tables, or
    not the right one, the message says so instead of the step and the tensor.
    """
    wrong_tables = [table for table in rank.repetitions if table != right_table]
    wrong_count = sum(rank.repetitions[table] for table in wrong_tables)
    message = f"{rank.title} computes wrongly: {wrong_count} of {rank.total} repetitions differ from {right_ones}"

    kept_tables = digests["tables"]
    places = []
    for table in wrong_tables:
        if table in kept_tables and right_table in kept_tables:
            places.append(_first_difference(kept_tables[table], kept_tables[right_table]))
    if not places:
        return f"{message}; the record does not keep where"
    first = min(places)
    return f"{message}, first in step {first.step} in {described(digests['tensors'][first.tensor])}"


def _first_difference(table: Table, right_table: Table) -> Place:
    """Return the first step in which two tables differ, and the first tensor of that step.

    The first in the program's order is nearest to the fault: what is computed later from a wrong value is wrong too.
    """
    for step, right_digests in enumerate(right_table):
        for tensor, right_digest in enumerate(right_digests):
            if table[step][tensor] != right_digest:
                return Place(step + 1, tensor)
    raise ValueError("two tables of other names are the same")


def described(tensor: str) -> str:
    """Return a tensor's name with what it is, by the endings of the program's names: `the gradient fc.w@GRAD`."""
    if tensor.endswith("@GRAD"):
        return f"the gradient {tensor}"
    if tensor.endswith((".mean", ".variance")):
        return f"the batch-norm statistic {tensor}"
    return f"the updated weight {tensor}"


def summary(record: Record) -> str:
    """Return in one line how many ranks, classes, repetitions and digests were compared, or that nothing was measured.

    As "16 ranks of 1 class, at least 4 repetitions of 10 steps each, 428 digests a step". Ranks that failed are left
    out.
    """
    ranks = [rank for rank in ranks_of(record) if rank.failure is None]
    if not ranks:
        return "not measured"
    digests = record["digests"]
    class_names = {rank.class_name for rank in ranks}
    of_classes = "1 class" if len(class_names) == 1 else f"{len(class_names)} classes"
    fewest_repetitions = min(rank.total for rank in ranks)
    return (
        f"{len(ranks)} ranks of {of_classes}, at least {fewest_repetitions} repetitions of {digests['steps']} steps "
        f"each, {len(digests['tensors'])} digests a step"
    )
