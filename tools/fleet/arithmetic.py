"""Whether each rank of a fleet computes the same bits as the others: verdicts on the digests of fleet.json.

Every rank takes the same training steps from the same weights on the same batch, again and again, and after each step
a digest of every gradient, batch-norm statistic and updated weight (tools/fleet/digests.py). All digests of one
repetition, step by step, are its table. A rank whose table differs computed wrongly, or its kernels add up in a random
order; this module tells the two apart. Ranks are compared within a class: the same model of GPU or CPU, driver, cuDNN
and Paddle, as others may round in another way.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlog.verdict import FATAL, OK, STATUSES, UNKNOWN, Verdict

CHECK = "arithmetic"
LEAST_RANKS = 3  # of a class: of two that differ nobody can say which one is wrong
NOT_REPEATABLE = "not repeatable here"
FIX = "keep the node out, and measure it again alone: a GPU that is named twice is for replacement"

Record = Mapping[str, Any]  # fleet.json
Digests = Mapping[str, Any]  # what it has under that name: docs/operations.md
Table = Sequence[Sequence[str]]  # of a repetition: a list for each step, with the digest of each tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """The digests of one rank."""

    rank: int
    host: str  # the compared node, or the rank itself where the job has one node
    node: str  # the machine's own name
    device: str  # the CPU's model, or the GPU's number, model, UUID and serial number
    kind: str | None  # class: model, driver, cuDNN, Paddle; its ranks compute the same bits; None: not known
    repetitions: Mapping[str, int]  # by table: how many repetitions gave it; empty where none was taken
    failure: str | None  # why it has no repetitions

    @property
    def total(self) -> int:
        """The number of the rank's repetitions."""
        return sum(self.repetitions.values())

    @property
    def usual(self) -> str | None:
        """The table that more than half of the repetitions gave; None where there is none."""
        for table, count in self.repetitions.items():
            if 2 * count > self.total:
                return table
        return None

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


class Class(NamedTuple):
    """The measured ranks of a class, summed up; a table is all digests of one repetition."""

    size: int  # its ranks
    majority: str | None  # the table that more than half of them usually give; None where there is none
    agreeing: int  # ranks that usually give the majority's table
    hosts_by_table: Mapping[str, set[str]]  # the hosts with a rank that gave the table at least once


class Place(NamedTuple):
    """Where two tables differ first; an earlier place is the smaller one."""

    step: int  # from 1
    tensor: int  # its number in the program's order, from 0


def ranks_of(record: Record) -> list[Rank]:
    """Return the ranks of a fleet's record (fleet.json) with their digests.

    The list is empty where the record has no digests: it is older than they are, or Paddle has no kernels for the GPUs.
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
            kind=entry["class"],
            repetitions=entry["repetitions"],
            failure=entry["failure"],
        )
        ranks.append(rank)
    return ranks


def check(record: Record) -> None:
    """Check that the digests of a fleet's record are as a fleet writes them; a record without digests passes.

    Raises ValueError where a table or a count cannot be one, and LookupError, TypeError or AttributeError where a field
    is missing or of another type.
    """
    if record.get("digests") is None:
        return
    _check_tables(record["digests"])
    _check_ranks(record["digests"]["ranks"], record["hosts"])
    for rank in ranks_of(record):
        "".join((rank.node, rank.device, rank.kind or "", rank.failure or ""))  # no error: they are texts
        for count in rank.repetitions.values():
            if type(count) is not int or count < 1:
                raise ValueError(f"rank {rank.rank} has {count} repetitions of a table")
        has_failed = rank.failure is not None
        has_digests = bool(rank.repetitions)
        if has_failed == has_digests:
            raise ValueError(f"rank {rank.rank} has neither repetitions nor a failure, or both")


def _check_ranks(entries: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> None:
    """Raise ValueError unless the ranks are numbered from 0 on, and each host has one at least."""
    numbers = [entry["rank"] for entry in entries]
    if numbers != list(range(len(entries))):
        raise ValueError(f"the digests' ranks are not numbered from 0 to {len(entries) - 1}")
    units = {entry["unit"] for entry in entries}
    for number, host in enumerate(hosts):
        if number not in units:
            raise ValueError(f"no rank of {host} has digests or a failure")
    strange = units - set(range(len(hosts)))
    if strange:
        raise ValueError(f"the digests have a rank of host {min(strange)}, of {len(hosts)} hosts")


def _check_tables(digests: Digests) -> None:
    """Raise ValueError unless each table has one digest of each tensor for each step."""
    steps = digests["steps"]
    tensors = digests["tensors"]
    "".join(tensors)  # no error: they are texts
    for name, table in digests["tables"].items():
        lengths = set(map(len, table))
        for of_step in table:
            "".join(of_step)  # no error: they are texts
        if len(table) != steps or lengths != {len(tensors)}:
            raise ValueError(f"table {name} has not {len(tensors)} digests in each of {steps} steps")


def judge(record: Record) -> list[Verdict]:
    """Return a verdict on each compared host by its ranks' digests, in the order of the record's hosts.

    A host is as bad as its worst rank, and its verdict names each rank that is as bad. A host without digests has none.
    """
    ranks = ranks_of(record)
    ranks_by_kind: dict[str | None, list[Rank]] = {}
    for rank in ranks:
        ranks_by_kind.setdefault(rank.kind, []).append(rank)

    judgements: dict[int, Judgement] = {}  # by the rank's number
    for kind, members in ranks_by_kind.items():
        if kind is not None:
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
    worst = max((judgement.status for judgement in of_host), key=STATUSES.index)
    reasons: list[str] = []
    for judgement in of_host:
        if judgement.status == worst and judgement.found not in reasons:
            reasons.append(judgement.found)
    fix = FIX if worst == FATAL else ""
    return Verdict(check=CHECK, where=host, status=worst, found="; ".join(reasons), fix=fix)


def _judge_class(members: Sequence[Rank], digests: Digests) -> dict[int, Judgement]:
    """Judge the ranks of one class; return {number of the rank: judgement}.

    Where most of them do not repeat their own digests the kernels add up in a random order, and nobody is accused. Else
    each is held against the table of the majority, or where there is no majority against itself.
    """
    measured = [rank for rank in members if rank.failure is None]
    unsteady = [rank for rank in measured if not rank.is_steady]
    is_random = len(measured) > 1 and 2 * len(unsteady) > len(measured)
    others = _class_of(measured)

    judgements: dict[int, Judgement] = {}
    for rank in members:
        if rank.failure is not None:
            judgement = Judgement(FATAL, f"{rank.title} failed: {rank.failure}")
        elif is_random:
            found = f"{NOT_REPEATABLE}: {len(unsteady)} of {len(measured)} ranks of a class differ from themselves"
            judgement = Judgement(UNKNOWN, found)
        elif others.majority is None:
            judgement = _against_itself(rank, digests, others)
        else:
            judgement = _against_majority(rank, digests, others, others.majority)
        judgements[rank.rank] = judgement
    return judgements


def _class_of(measured: Sequence[Rank]) -> Class:
    """Return what the measured ranks of a class have in common."""
    hosts_by_table: dict[str, set[str]] = {}
    for rank in measured:
        for table in rank.repetitions:
            hosts_by_table.setdefault(table, set()).add(rank.host)
    majority = _majority(measured)
    agreeing = [rank for rank in measured if majority is not None and rank.usual == majority]
    return Class(size=len(measured), majority=majority, agreeing=len(agreeing), hosts_by_table=hosts_by_table)


def _majority(measured: Sequence[Rank]) -> str | None:
    """Return the name of the table that more than half of a class's ranks usually give.

    A table is all digests of one repetition; a rank usually gives the one of more than half of its repetitions. None
    where there is no such table, or where the class has fewer than LEAST_RANKS ranks.
    """
    if len(measured) < LEAST_RANKS:
        return None
    ranks_by_table = Counter(rank.usual for rank in measured)
    for table, count in ranks_by_table.items():
        if table is not None and 2 * count > len(measured):
            return table
    return None


def _against_itself(rank: Rank, digests: Digests, others: Class) -> Judgement:
    """Judge a rank whose class has no majority by its own repetitions.

    It is fatal where the smaller part of them differs from the rest, in a way that no other host's do. It is unknown
    where no table came out in more than half, and where all are alike: nobody says that they are right.
    """
    if rank.usual is None:
        return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: no table came out in more than half of a rank's repetitions")
    if not rank.is_steady:
        hosts_alike = _hosts_alike(rank, others, rank.usual)
        if hosts_alike > 1:
            return _random(hosts_alike)
        return Judgement(FATAL, _off(rank, digests, rank.usual, "the others of its own"))
    if others.size < LEAST_RANKS:
        return Judgement(
            UNKNOWN, f"not decided: {others.size} of its class, {LEAST_RANKS} are needed to tell who is wrong"
        )
    return Judgement(UNKNOWN, f"not decided: no majority of the {others.size} ranks of its class agrees")


def _against_majority(rank: Rank, digests: Digests, others: Class, majority: str) -> Judgement:
    """Judge a rank by the bits that most ranks of its class compute.

    `majority` names their table, which is all digests of one repetition. The rank is ok where all its repetitions gave
    that table, else fatal. But nobody is accused where ranks of several hosts agree on another table: corruption gives
    each of them its own, another library or setting gives them the same, and so does a random order now and then.
    """
    of_class = f"{others.agreeing} of {others.size} ranks of its class"
    if rank.usual == majority and rank.is_steady:
        return Judgement(OK, f"the same bits as {of_class}")

    hosts_alike = _hosts_alike(rank, others, majority)
    if hosts_alike > 1 and rank.usual in (majority, None):
        return _random(hosts_alike)
    if hosts_alike > 1:
        found = f"not decided: {hosts_alike} hosts agree on other bits than {of_class}: see what differs there"
        return Judgement(UNKNOWN, found)
    return Judgement(FATAL, _off(rank, digests, majority, of_class))


def _hosts_alike(rank: Rank, others: Class, expected: str) -> int:
    """Return how many hosts gave the wrong table of a rank: 1 where only its own did.

    A table is wrong that is not `expected`. If the rank usually gives a wrong one, only that counts. Of several the one
    that the fewest hosts gave counts, as a table of its own speaks against the rank.
    """
    wrong_tables = [table for table in rank.repetitions if table != expected]
    if rank.usual in wrong_tables:
        wrong_tables = [rank.usual]
    return min(len(others.hosts_by_table[table]) for table in wrong_tables)


def _random(hosts_alike: int) -> Judgement:
    """Return that a rank now and then has other bits which other hosts have too."""
    return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: {hosts_alike} hosts have the same other bits in some repetitions")


def _off(rank: Rank, digests: Digests, expected: str, others: str) -> str:
    """Return a message on a rank that computes wrongly: how often, and in which tensor of which step first.

    A table is all digests of one repetition, and `expected` the name of the right one, which `others` gave (in words,
    for the message). The record keeps the digests of some tables only; without those of this rank's wrong tables the
    message says so.
    """
    wrong_tables = [table for table in rank.repetitions if table != expected]
    wrong_count = sum(rank.repetitions[table] for table in wrong_tables)
    message = f"{rank.title} computes wrongly: {wrong_count} of {rank.total} repetitions differ from {others}"

    tables = digests["tables"]
    places = []
    for table in wrong_tables:
        if table in tables and expected in tables:
            places.append(_first_difference(tables[table], tables[expected]))
    if not places:
        return f"{message}; the record does not keep where"
    first = min(places)
    return f"{message}, first in step {first.step} in {described(digests['tensors'][first.tensor])}"


def _first_difference(table: Table, expected: Table) -> Place:
    """Return the first step in which two tables differ, and the first tensor of that step.

    The first in the program's order is nearest to the fault: what is computed later from a wrong value is wrong too.
    """
    for step, expected_digests in enumerate(expected):
        for tensor, expected_digest in enumerate(expected_digests):
            if table[step][tensor] != expected_digest:
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
    """Return in one line what was compared: ranks, classes, digests; or that nothing was."""
    ranks = [rank for rank in ranks_of(record) if rank.failure is None]
    if not ranks:
        return "not measured"
    digests = record["digests"]
    classes = {rank.kind for rank in ranks}
    of_classes = "1 class" if len(classes) == 1 else f"{len(classes)} classes"
    fewest = min(rank.total for rank in ranks)
    return (
        f"{len(ranks)} ranks of {of_classes}, at least {fewest} repetitions of {digests['steps']} steps each, "
        f"{len(digests['tensors'])} digests a step"
    )
