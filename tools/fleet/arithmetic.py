"""Whether each rank of a fleet computes the same bits as the others: verdicts on the digests of fleet.json.

Every rank repeats the same training steps from the same weights on the same batch. After each step it takes a digest
of every gradient, batch-norm statistic and updated weight (tools/fleet/digests.py). All digests of a repetition are its
result. The name of a result is a hash of it, so that equal results have the same name.

If a rank's result differs from those of other ranks, either the rank computed wrongly, or its kernels sum in a random
order. This module tells the two cases apart.

Ranks are compared within a class: the same model of GPU or CPU, driver, cuDNN and Paddle. Other classes may round
differently.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlog.digits import counted
from runlog.verdict import FATAL, OK, UNKNOWN, Verdict, worst_status

CHECK = "arithmetic"
MIN_RANKS = 3  # in a class that has a majority: if two ranks differ, either may be wrong
NOT_REPEATABLE = "not repeatable here"
FIX = "keep the node out, and measure it again alone: a GPU that is named twice is for replacement"

Record = Mapping[str, Any]  # fleet.json
Digests = Mapping[str, Any]  # the entry "digests" of fleet.json: docs/operations.md
ResultName = str  # a hash of all digests of a repetition
Table = Sequence[Sequence[str]]  # the digests of a result: a list for each step, with the digest of each tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """The results of one rank, which repeated the same training steps.

    The result of a repetition is all its digests. Results are given by their names, and equal ones have the same name.
    """

    rank: int
    host: str  # the compared node, or the rank itself if the job has one node
    node: str  # the machine's own name
    device: str  # the CPU's model, or the GPU's number, model, UUID and serial number
    class_name: str | None  # its model, driver, cuDNN, Paddle: ranks of one class compute the same bits; None: unknown
    count_by_result: Mapping[ResultName, int]  # how many repetitions gave each result; empty if the rank failed
    failure: str | None  # why it has no repetitions

    @property
    def repetition_count(self) -> int:
        """The number of the rank's repetitions."""
        return sum(self.count_by_result.values())

    @property
    def usual_result(self) -> ResultName | None:
        """The result that more than half of the repetitions gave; None if there is no such result."""
        return _given_by_most(self.count_by_result, self.repetition_count)

    @property
    def is_steady(self) -> bool:
        """Whether all repetitions gave the same result."""
        return len(self.count_by_result) == 1

    def results_other_than(self, right_result: ResultName) -> list[ResultName]:
        """Return the results that some repetitions gave and that are not the right one."""
        return [result for result in self.count_by_result if result != right_result]

    @property
    def title(self) -> str:
        """The rank, its machine and its device, as a message names them."""
        return f"rank {self.rank} on {self.node} ({self.device})"


class Judgement(NamedTuple):
    """The status of one rank, and why."""

    status: str
    found: str


class RightResult(NamedTuple):
    """The result that a rank should have given in each repetition."""

    name: ResultName
    given_by: str  # who gave it, in words: "3 of 4 ranks of its class"


class ClassSummary(NamedTuple):
    """The results of the measured ranks of one class, summed up."""

    rank_count: int
    majority: RightResult | None  # the usual result of more than half of the ranks; None if there is no such result
    host_count_by_result: Mapping[ResultName, int]  # how many hosts have a rank that gave a result at least once


class Position(NamedTuple):
    """The place of a digest in a table; an earlier place is the smaller one."""

    step: int  # from 1
    tensor: int  # its number in the program's order, from 0


def _given_by_most(count_by_result: Mapping[ResultName, int], total: int) -> ResultName | None:
    """Return the result whose count is more than half of a total; None if there is no such result.

    Args:
        count_by_result: How often each result came, by the result's name.
        total: What a count must be more than half of. It may be more than the sum of the counts.
    """
    for result, count in count_by_result.items():
        if 2 * count > total:
            return result
    return None


def ranks_of(record: Record) -> list[Rank]:
    """Return the ranks of a measured fleet, each with the results of the training steps that it repeated.

    Args:
        record: What was measured on the fleet, as fleet.json holds it.

    Returns:
        The ranks in the order of the record. The list is empty if the record has no digests (hashes of computed
        tensors): it is old, or the Paddle of a rank had no kernels for its device.
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
            count_by_result=entry["repetitions"],
            failure=entry["failure"],
        )
        ranks.append(rank)
    return ranks


def judge(record: Record) -> list[Verdict]:
    """Return a verdict on each host of a fleet: whether its ranks compute the same bits as other ranks.

    Each rank repeated the same training steps, and digests (hashes) of its tensors were recorded.

    Args:
        record: What was measured on the fleet, as fleet.json holds it.

    Returns:
        The verdicts in the order of the record's hosts; the status of a host is the worst of its ranks. A host without
        ranks in the digests is left out. Without digests the list is empty.
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
    """Judge each rank by comparing its results with those of the other ranks of its class.

    A class is a model of GPU or CPU with the same driver, cuDNN and Paddle. Its ranks should compute the same bits.

    Args:
        ranks: All ranks whose results were recorded.
        digests: The entry "digests" of fleet.json, which holds the digests (hashes of tensors) of the results.

    Returns:
        A judgement on each rank, by the rank's number. A rank whose class is not known is fatal if it failed, else
        unknown.
    """
    ranks_by_class: dict[str | None, list[Rank]] = {}
    for rank in ranks:
        ranks_by_class.setdefault(rank.class_name, []).append(rank)

    judgement_by_rank: dict[int, Judgement] = {}
    for class_name, ranks_of_class in ranks_by_class.items():
        if class_name is None:  # unknown, so that there are no ranks to compare these with
            judgement_by_rank |= {rank.rank: _judge_without_class(rank) for rank in ranks_of_class}
        else:
            judgement_by_rank |= _judge_class(ranks_of_class, digests)
    return judgement_by_rank


def _judge_without_class(rank: Rank) -> Judgement:
    """Judge a rank of unknown class: fatal if it failed, else unknown."""
    if rank.failure is not None:
        return _judge_failed(rank, rank.failure)
    found = "not decided: its GPU's model, driver or cuDNN is not known, by which to compare"
    return Judgement(UNKNOWN, found)


def _judge_failed(rank: Rank, failure: str) -> Judgement:
    """Return the fatal judgement on a rank that failed. `failure` says why."""
    return Judgement(FATAL, f"{rank.title} failed: {failure}")


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
    """Judge the ranks of one class, whose results must agree; return {number of a rank: judgement}."""
    failed = {rank.rank: _judge_failed(rank, rank.failure) for rank in ranks_of_class if rank.failure is not None}
    measured = [rank for rank in ranks_of_class if rank.failure is None]
    return failed | _judge_measured(measured, digests)


def _judge_measured(measured: Sequence[Rank], digests: Digests) -> dict[int, Judgement]:
    """Return a judgement on each rank of one class, by whether the ranks computed the same bits.

    Each rank has repeated the same training steps several times.

    Args:
        measured: The ranks of one class (same device model and libraries) that did not fail.
        digests: The entry "digests" of fleet.json, with the digests (hashes of tensors) of the results.

    Returns:
        The judgements by the number of the rank.
    """
    # A rank is unsteady if its repetitions gave different results.
    unsteady_count = sum(not rank.is_steady for rank in measured)
    if _is_order_random(measured_ranks=len(measured), unsteady_ranks=unsteady_count):
        # Kernels that sum in a random order give other bits each time, which says nothing about faults.
        found = f"{NOT_REPEATABLE}: {unsteady_count} of {len(measured)} ranks of a class differ from themselves"
        return {rank.rank: Judgement(UNKNOWN, found) for rank in measured}
    summary_of_class = _summarize_class(measured)
    majority = summary_of_class.majority  # the result that more than half of the ranks usually gave
    if majority is None:
        return {rank.rank: _judge_by_own_repetitions(rank, digests, summary_of_class) for rank in measured}
    return {rank.rank: _judge_by_majority(rank, digests, summary_of_class, majority) for rank in measured}


def _is_order_random(*, measured_ranks: int, unsteady_ranks: int) -> bool:
    """Return whether the kernels of a class of ranks sum in a random order: most of its measured ranks are unsteady.

    Args:
        measured_ranks: The number of ranks that did not fail. A single one may be unsteady because it computes wrongly,
            so the answer is then False.
        unsteady_ranks: How many of them gave different results in different repetitions of the same steps.
    """
    if measured_ranks < 2:
        return False  # a single rank may differ from itself because it computes wrongly
    return unsteady_ranks > measured_ranks / 2


def _summarize_class(measured: Sequence[Rank]) -> ClassSummary:
    """Sum up one class of ranks: how many there are, the majority's result, and how many hosts gave each result.

    Args:
        measured: The ranks of one class (same device model and libraries) that did not fail.
    """
    # Hosts are counted, not ranks, because a fault of hardware is not the same on two hosts.
    hosts_by_result: dict[ResultName, set[str]] = {}
    for rank in measured:
        for result in rank.count_by_result:
            hosts_by_result.setdefault(result, set()).add(rank.host)
    return ClassSummary(
        rank_count=len(measured),
        majority=_majority_of(measured),
        host_count_by_result={result: len(hosts) for result, hosts in hosts_by_result.items()},
    )


def _majority_of(measured: Sequence[Rank]) -> RightResult | None:
    """Return the result that more than half of a class's ranks usually give, and in words how many ranks do.

    The usual result of a rank is the one that more than half of its own repetitions gave.

    Args:
        measured: The ranks of one class (same device model and libraries) that did not fail.

    Returns:
        The result, with words such as "3 of 4 ranks of its class". None if there is no such majority, or if there are
        fewer than MIN_RANKS (3) ranks.
    """
    if len(measured) < MIN_RANKS:
        return None
    usual_results = [rank.usual_result for rank in measured]
    ranks_by_result = Counter(result for result in usual_results if result is not None)
    result = _given_by_most(ranks_by_result, len(measured))
    if result is None:
        return None
    return RightResult(result, given_by=f"{ranks_by_result[result]} of {len(measured)} ranks of its class")


def _judge_by_own_repetitions(rank: Rank, digests: Digests, summary_of_class: ClassSummary) -> Judgement:
    """Judge a rank by whether its own repetitions agree, because its class has no majority of ranks with one result.

    Args:
        rank: The rank, which did not fail.
        digests: The entry "digests" of fleet.json, with the digests (hashes of tensors) of the results.
        summary_of_class: How many hosts gave each result, in the rank's class (same device model and libraries).
    """
    if rank.is_steady:  # all repetitions agree, but no majority confirms their result
        return _judge_without_majority(summary_of_class.rank_count)
    if rank.usual_result is None:
        found = f"{NOT_REPEATABLE}: its repetitions differ, and no result came out in more than half of them"
        return Judgement(UNKNOWN, found)
    # The result of more than half of the repetitions counts as right. The words make "1 of 20 repetitions differ from
    # the others of its own".
    right = RightResult(rank.usual_result, given_by="the others of its own")
    return _judge_some_wrong_results(rank, digests, summary_of_class, right)


def _judge_without_majority(rank_count: int) -> Judgement:
    """Return the judgement "unknown" on a rank whose repetitions all agree, but which no majority confirms.

    Args:
        rank_count: The number of measured ranks of the class (same device model and libraries), for the reason.
    """
    if rank_count < MIN_RANKS:  # too few for a majority
        found = f"not decided: {rank_count} of its class, {MIN_RANKS} are needed to tell who is wrong"
    else:
        no_majority = f"no majority of the {rank_count} ranks of its class has the same bits"
        found = f"not decided: {no_majority}, and one is needed to tell who is wrong"
    return Judgement(UNKNOWN, found)


def _judge_by_majority(rank: Rank, digests: Digests, summary_of_class: ClassSummary, right: RightResult) -> Judgement:
    """Judge a rank by the result that most ranks of its class gave, which counts as right.

    A wrong result is fatal if no other host gave it. Several hosts with the same wrong bits have another cause than
    broken hardware, such as another library or setting. If more than half of the rank's repetitions gave the same wrong
    result, only this result counts.

    Args:
        rank: The rank, which did not fail.
        digests: The entry "digests" of fleet.json, with the digests (hashes of tensors) of the results.
        summary_of_class: How many hosts gave each result, in the rank's class (same device model and libraries).
        right: The result of the majority of ranks, and who gave it in words.
    """
    wrong_results = rank.results_other_than(right.name)
    if not wrong_results:
        return Judgement(OK, f"the same bits as {right.given_by}")
    usual_result = rank.usual_result  # of more than half of the rank's repetitions; None: there is none
    if usual_result is not None and usual_result != right.name:
        host_count = summary_of_class.host_count_by_result[usual_result]
        return _judge_usually_wrong(rank, digests, right, host_count=host_count)
    return _judge_some_wrong_results(rank, digests, summary_of_class, right)


def _judge_usually_wrong(rank: Rank, digests: Digests, right: RightResult, *, host_count: int) -> Judgement:
    """Judge a rank of which more than half of the repetitions gave the same wrong result.

    Args:
        rank: The rank.
        digests: The entry "digests" of fleet.json, with the digests (hashes of tensors) of the results.
        right: The result that counts as right, and who gave it in words.
        host_count: How many hosts gave that wrong result, including the rank's own host.

    Returns:
        Fatal if no other host gave the wrong result: broken hardware makes errors of its own. Unknown if several hosts
        did.
    """
    if host_count == 1:  # only this rank's host
        return Judgement(FATAL, _describe_fault(rank, digests, right))
    # Another library or setting of these hosts may be the cause.
    found = f"not decided: {host_count} hosts agree on other bits than {right.given_by}: see what differs there"
    return Judgement(UNKNOWN, found)


def _judge_some_wrong_results(
    rank: Rank, digests: Digests, summary_of_class: ClassSummary, right: RightResult
) -> Judgement:
    """Judge a rank that gave wrong results, but the same wrong result in at most half of its repetitions.

    Args:
        rank: The rank. At least one of its results is not the right one.
        digests: The entry "digests" of fleet.json, with the digests (hashes of tensors) of the results.
        summary_of_class: How many hosts gave each result, in the rank's class (same device model and libraries).
        right: The result that counts as right, and who gave it in words.

    Returns:
        Fatal if at least one wrong result came from the rank's host alone; else unknown.
    """
    wrong_results = rank.results_other_than(right.name)
    # How many hosts gave the rarest wrong result, the rank's own host included.
    fewest_hosts = min(summary_of_class.host_count_by_result[result] for result in wrong_results)
    only_this_host_gave_it = fewest_hosts == 1
    if only_this_host_gave_it:  # broken hardware makes errors of its own
        return Judgement(FATAL, _describe_fault(rank, digests, right))
    # If each wrong result came from several hosts, their kernels seem to sum in a random order.
    return Judgement(UNKNOWN, f"{NOT_REPEATABLE}: {fewest_hosts} hosts have the same other bits in some repetitions")


def _describe_fault(rank: Rank, digests: Digests, right: RightResult) -> str:
    """Return a message on a rank that computes wrongly: how often, and in which tensor of which step first.

    For example "rank 2 on n2 (GPU0, A100) computes wrongly: 1 of 20 repetitions differ from 3 of 4 ranks of its class,
    first in step 7 in the gradient fc.w@GRAD".

    Args:
        rank: The rank. At least one of its results is not the right one.
        digests: The entry "digests" of fleet.json. "tensors" has the names of tensors. "tables" has, for some results,
            the digest (hash) of each tensor in each step.
        right: The result that counts as right, and who gave it in words.
    """
    wrong_results = rank.results_other_than(right.name)
    wrong_count = sum(rank.count_by_result[result] for result in wrong_results)
    share = f"{wrong_count} of {rank.repetition_count} repetitions"
    message = f"{rank.title} computes wrongly: {share} differ from {right.given_by}"
    first = _first_fault(wrong_results, right.name, digests["tables"])
    if first is None:
        return f"{message}; the record does not keep where"
    return f"{message}, first in step {first.step} in {described(digests['tensors'][first.tensor])}"


def _first_fault(
    wrong_results: Sequence[ResultName], right_result: ResultName, table_by_result: Mapping[ResultName, Table]
) -> Position | None:
    """Return the first step, and the first tensor in it, in which a wrong result differs from the right one.

    Args:
        wrong_results: Names of the wrong results. The name of a result is a hash of all its digests.
        right_result: The name of the right result.
        table_by_result: The digests of the results that the record holds, by name: for each step a list with the digest
            (hash) of each tensor.

    Returns:
        The earliest position over all wrong results. None if the record lacks the right result or all wrong ones.
    """
    if right_result not in table_by_result:
        return None
    right_table = table_by_result[right_result]
    wrong_tables = [table_by_result[result] for result in wrong_results if result in table_by_result]
    positions = [_first_difference(table, right_table) for table in wrong_tables]
    return min(positions, default=None)


def _first_difference(table: Table, right_table: Table) -> Position:
    """Return the first step in which two tables of digests differ, and the first tensor of that step that differs.

    This tensor is nearest to the fault, because what is computed from a wrong value is wrong as well.

    Args:
        table: For each step a list with the digest (hash) of each tensor, of a wrong result.
        right_table: The digests of the right result, in the same form.

    Returns:
        The step, counted from 1, and the tensor's index in the list, from 0.

    Raises:
        ValueError: The tables are equal.
    """
    for step_index, right_digests in enumerate(right_table):
        for tensor_index, right_digest in enumerate(right_digests):
            if table[step_index][tensor_index] != right_digest:
                return Position(step=step_index + 1, tensor=tensor_index)
    raise ValueError("two results of different names have the same digests")


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
    """Return in one line what was compared to find ranks that compute wrongly.

    For example "16 ranks of 1 class, at least 4 repetitions of 10 steps each, 428 digests a step". A class is the ranks
    on the same device model with the same libraries, whose results are compared. A digest is a hash of a tensor.

    Args:
        record: What was measured on the fleet, as fleet.json holds it.

    Returns:
        The line, in which ranks that failed do not count; "not measured" if no rank is left.
    """
    ranks = [rank for rank in ranks_of(record) if rank.failure is None]
    if not ranks:
        return "not measured"
    digests = record["digests"]
    fewest_repetitions = min(rank.repetition_count for rank in ranks)
    return (
        f"{_ranks_and_classes(ranks)}, at least {counted(fewest_repetitions, 'repetition')} of "
        f"{counted(digests['steps'], 'step')} each, {counted(len(digests['tensors']), 'digest')} a step"
    )


def _ranks_and_classes(ranks: Sequence[Rank]) -> str:
    """Return how many ranks there are of how many classes: "16 ranks of 2 classes and 1 rank of unknown class".

    Args:
        ranks: At least one rank. A class is a device model with the same driver and libraries.
    """
    known_classes = [rank.class_name for rank in ranks if rank.class_name is not None]
    class_count = len(set(known_classes))
    unknown_count = len(ranks) - len(known_classes)
    parts = []
    if known_classes:
        of_classes = "1 class" if class_count == 1 else f"{class_count} classes"
        parts.append(f"{counted(len(known_classes), 'rank')} of {of_classes}")
    if unknown_count:
        parts.append(f"{counted(unknown_count, 'rank')} of unknown class")
    return " and ".join(parts)
