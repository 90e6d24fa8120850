"""A screen for selected runs: whether a submission converged sooner than all others of its round explain.

A submitter who makes many runs and hands in the soonest leaves logs that are all true. What shows it is the group: a
one-sided permutation test of the samples to convergence against the runs of all other organisations at the same batch,
corrected for the number of submissions that are screened (Bonferroni). A better recipe shows so, too. So this is a line
for a reviewer who asks for the other runs, and refuses nothing.
"""

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

UNUSUAL = 0.05  # the chance, corrected, from which on a submission is named; so many rounds of 100 name one by chance
_FIRST_DRAWS = 200
_ALL_DRAWS = 5_000
_CLEAR = 0.05  # a chance of the first draws from which on no more are made
_SEED = 848  # mlcommons/training #848, which asks for such a screen; a report is the same each time


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A submission that is screened. `to_target` has the samples, or epochs, to convergence of each run."""

    organisation: str
    group: Hashable  # round, benchmark and global batch: only runs of one group are compared
    to_target: tuple[float, ...]


def unusual(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return the candidates that converged so soon that chance hardly explains it: their indices, with the chances.

    A candidate is compared with the runs of other organisations in its group, if these are as many as its own or more.
    Its chance is then multiplied by the number of candidates that are compared, as each of them could be unusual by
    accident (Bonferroni's correction). Chances above 5 % are left out.
    """
    groups: defaultdict[Hashable, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[candidate.group].append(candidate)
    chance_by_index: dict[int, float] = {}
    for index, candidate in enumerate(candidates):
        others = _runs_of_others(candidate, groups[candidate.group])
        if candidate.to_target and len(others) >= len(candidate.to_target):
            chance_by_index[index] = chance_of_sooner(candidate.to_target, others)

    unusual_chances = {}
    for index, chance in chance_by_index.items():
        corrected = min(1.0, chance * len(chance_by_index))
        if corrected <= UNUSUAL:
            unusual_chances[index] = corrected
    return unusual_chances


def _runs_of_others(candidate: Candidate, group: Sequence[Candidate]) -> list[float]:
    """Return the epochs (or samples) to the target of the runs of other organisations in a group."""
    runs: list[float] = []
    for other in group:
        if other.organisation != candidate.organisation:
            runs += other.to_target
    return runs


def chance_of_sooner(runs: Sequence[float], others: Sequence[float]) -> float:
    """Return the chance by which randomly chosen runs reach the target as soon as `runs` did, or sooner.

    Both arguments have the epochs (or samples) that each run took. This is a Monte Carlo permutation test: 5,000 times,
    as many runs as in `runs` are drawn from `runs` and `others` together. The chance is the share of the draws whose
    sum is no larger than that of `runs`.

    Only 200 draws are made where the chance is clearly large by then. `runs` themselves count as one draw, so that the
    chance is never 0 and the test is valid for any number of draws. The same runs always give the same chance.
    """
    generator = random.Random(_SEED)
    pool = [*runs, *others]
    observed = sum(runs)
    draws = 1  # `runs` themselves
    draws_as_soon = 1
    while draws <= _ALL_DRAWS:
        draws += 1
        if sum(generator.sample(pool, len(runs))) <= observed:
            draws_as_soon += 1
        is_clearly_large = draws_as_soon / draws > _CLEAR
        if draws == _FIRST_DRAWS + 1 and is_clearly_large:
            break
    return draws_as_soon / draws
