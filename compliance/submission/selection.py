"""A screen for cherry-picked runs: submissions that converged earlier than chance explains.

A submitter who makes many runs and hands in the fastest leaves logs that are all true. Only a comparison shows it: a
one-sided permutation test of the samples to convergence against the runs of all other organisations at the same batch,
corrected for the number of submissions that are screened (Bonferroni). A better recipe looks the same. So the result is
a line for a reviewer, who may ask for the other runs. Nothing is refused.
"""

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

UNUSUAL = 0.05  # the largest corrected chance that is reported: 5 rounds of 100 report a submission by coincidence
_FIRST_DRAWS = 200  # enough to see that runs are not unusually early
_ALL_DRAWS = 5_000  # for runs that may be
_SEED = 848  # mlcommons/training #848, which asks for such a screen; a report is the same each time


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A submission that is screened. `epochs_to_target` has the epochs (or samples) that each run took."""

    organisation: str
    group: Hashable  # round, benchmark and global batch: only runs of one group are compared
    epochs_to_target: tuple[float, ...]


def find_unusually_early(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return the submissions whose runs converged so early that chance hardly explains it.

    The more submissions are compared, the more likely one of them is early by coincidence. So each chance is multiplied
    by the number of submissions compared (Bonferroni's correction).

    Args:
        candidates: The submissions, with the epochs that each run took to the target.

    Returns:
        The corrected chance, at most UNUSUAL, by the index of the submission in `candidates`.
    """
    chance_by_index = _chances_of_early_runs(candidates)
    number_compared = len(chance_by_index)
    unusual_chances = {}
    for index, chance in chance_by_index.items():
        corrected = min(1.0, chance * number_compared)
        if corrected <= UNUSUAL:
            unusual_chances[index] = corrected
    return unusual_chances


def _chances_of_early_runs(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return how likely it is, for each submission, that its runs reach the target as early as they do by chance alone.

    The likelihood is by a permutation test against the runs of the other organisations in the same group, which is one
    round, benchmark and global batch. For instance, a submission's runs took 1 and 2 epochs, and the other runs 3 and
    4. Of the six pairs of these four runs, only (1, 2) has a sum as low as 1 + 2. So the chance is about 1/6.

    Args:
        candidates: The submissions, with the epochs (or samples) that each run took to the target.

    Returns:
        The chance by the index of the submission in `candidates`. A submission is left out if it has no runs, or if the
        other organisations have fewer runs in the group than the submission has.
    """
    groups: defaultdict[Hashable, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[candidate.group].append(candidate)

    chance_by_index: dict[int, float] = {}
    for index, candidate in enumerate(candidates):
        runs = candidate.epochs_to_target
        others = _runs_of_others(candidate, groups[candidate.group])
        are_enough_to_compare = len(others) >= len(runs) > 0
        if are_enough_to_compare:
            chance_by_index[index] = chance_of_sooner(runs, others)  # the permutation test
    return chance_by_index


def _runs_of_others(candidate: Candidate, group: Sequence[Candidate]) -> list[float]:
    """Return how long the runs of other organisations in a group took to the target.

    Args:
        candidate: The submission whose organisation is left out.
        group: Submissions of one round, benchmark and global batch.

    Returns:
        The epochs (or samples) of each run.
    """
    runs: list[float] = []
    for other in group:
        if other.organisation != candidate.organisation:
            runs += other.epochs_to_target
    return runs


def chance_of_sooner(runs: Sequence[float], others: Sequence[float]) -> float:
    """Estimate how likely it is that runs drawn at random are as early as given ones (a permutation test).

    A draw takes as many of all these runs as `runs` has. It is early if its sum is no larger than the sum of `runs`.
    The chance is the share of early draws. The runs (1, 2) and the others (3, 4) give about 1/6: of the six pairs that
    can be drawn, only (1, 2) is early.

    Args:
        runs: Epochs (or samples) that each run took to the target.
        others: Those of the runs to compare with.

    Returns:
        The chance. It is never 0, because the observed runs count as one of the draws. It is the same each time. A
        chance above UNUSUAL may come from fewer draws, and is then less exact.
    """
    generator = random.Random(_SEED)  # the same draws each time
    early_draws = _count_early_draws(_FIRST_DRAWS, runs, others, generator)
    rough_chance = _share_with_observed(early_draws, _FIRST_DRAWS)
    if rough_chance > UNUSUAL:  # these runs are not unusual: no exact chance is needed
        return rough_chance
    early_draws += _count_early_draws(_ALL_DRAWS - _FIRST_DRAWS, runs, others, generator)
    return _share_with_observed(early_draws, _ALL_DRAWS)


def _count_early_draws(draws: int, runs: Sequence[float], others: Sequence[float], generator: random.Random) -> int:
    """Return how many of some random draws are early: the sum of the drawn epochs is no larger than the sum of `runs`.

    Each draw takes as many values as `runs` has, from `runs` and `others` together (a permutation test).

    Args:
        draws: How many draws to make.
        runs: The epochs (or samples) that each run of a submission took to the target.
        others: The epochs (or samples) that each run of other organisations took to the target.
        generator: The source of randomness.
    """
    pool = [*runs, *others]
    observed = sum(runs)
    early_draws = 0
    for _ in range(draws):
        draw = generator.sample(pool, len(runs))
        is_early = sum(draw) <= observed
        if is_early:
            early_draws += 1
    return early_draws


def _share_with_observed(early_draws: int, draws: int) -> float:
    """Return the share of random draws that are early.

    The observed runs count as one more draw, which is early. So the share is never 0.

    Args:
        early_draws: How many of the draws are early.
        draws: How many draws were made.
    """
    return (early_draws + 1) / (draws + 1)
