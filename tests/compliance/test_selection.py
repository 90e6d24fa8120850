"""The screen for selected runs: it names selected ones, and few others."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compliance.submission.audit import audit
from compliance.submission.selection import UNUSUAL, Candidate, chance_of_sooner, find_unusually_early
from tests import make_log
from tests.compliance.altered import Altered, foreign, write


def _round(chance: random.Random, submissions: int, runs: int) -> list[Candidate]:
    """A round in which all submissions at a batch train alike."""
    return [
        Candidate(
            organisation=f"organisation {number % 9}",
            group=("v4.0", "resnet", 4096 * (1 + number % 2)),
            epochs_to_target=tuple(float(chance.choice((37, 39, 40, 40, 41, 43))) for _ in range(runs)),
        )
        for number in range(submissions)
    ]


def test_permuted_rounds_name_no_more_than_their_share() -> None:
    chance = random.Random(11)
    named = sum(bool(find_unusually_early(_round(chance, 12, 5))) for _ in range(25))
    assert named <= 5  # of 25 at 5 %, 1 by chance; 6 or more by 1 of 800


def _exchanged(candidates: list[Candidate], chance: random.Random) -> list[Candidate]:
    """The submissions, each with as many runs, drawn from those of all submissions at its batch."""
    pools: dict[object, list[float]] = {}
    for candidate in candidates:
        pools.setdefault(candidate.group, []).extend(candidate.epochs_to_target)
    for pool in pools.values():
        chance.shuffle(pool)
    return [
        replace(candidate, epochs_to_target=tuple(pools[candidate.group].pop() for _ in candidate.epochs_to_target))
        for candidate in candidates
    ]


@pytest.mark.slow
@pytest.mark.parametrize("archive", ["mlperf_resnet", "mlperf_v0.7_v1.0", "mlperf_other_benchmarks"])
def test_published_rounds_with_exchanged_runs_name_few(archive: str, published_corpus: Path, monkeypatch) -> None:
    """docs/audit.md has the shares of 200 exchanges of each round."""
    screened: list[Candidate] = []

    def keep(candidates: Sequence[Candidate]) -> dict[int, float]:
        screened.extend(candidates)
        return {}

    monkeypatch.setattr("compliance.submission.audit.find_unusually_early", keep)
    audit(published_corpus / f"{archive}.tar.xz")
    rounds: dict[object, list[Candidate]] = {}
    for candidate in screened:
        rounds.setdefault(candidate.group[0], []).append(candidate)  # type: ignore[index]
    chance = random.Random(13)
    named = 0
    for _ in range(20):
        named += sum(bool(find_unusually_early(_exchanged(candidates, chance))) for candidates in rounds.values())
    assert len(rounds) >= 2 and named <= 0.2 * 20 * len(rounds)  # 5 % by chance


def test_the_soonest_five_of_many_runs_are_named() -> None:
    chance = random.Random(12)
    candidates = _round(chance, 16, 5)
    many = sorted(chance.gauss(40, 1.5) for _ in range(40))
    selected = Candidate(organisation="selector", group=("v4.0", "resnet", 4096), epochs_to_target=tuple(many[:5]))
    found = find_unusually_early([*candidates, selected])
    assert found.keys() == {16} and 0 < found[16] < UNUSUAL


@pytest.mark.parametrize(
    ("runs", "others", "expected"),
    [((1.0, 2.0), (3.0, 4.0), 1 / 6), ((3.0, 4.0), (1.0, 2.0), 1.0), ((2.0, 2.0), (2.0, 2.0), 1.0)],
)
def test_the_chance_is_the_permutations(runs, others, expected: float) -> None:
    assert chance_of_sooner(runs, others) == pytest.approx(expected, abs=0.05)


def test_runs_of_ones_own_organisation_and_of_other_batches_are_not_compared() -> None:
    soon = Candidate(organisation="a", group=1, epochs_to_target=(1.0,) * 5)
    late = Candidate(organisation="a", group=1, epochs_to_target=(9.0,) * 40)
    elsewhere = Candidate(organisation="b", group=2, epochs_to_target=(9.0,) * 40)
    assert find_unusually_early([soon, late, elsewhere]) == {}
    assert find_unusually_early([soon, Candidate(organisation="b", group=1, epochs_to_target=(9.0,) * 40)]).keys() == {
        0
    }


def test_a_submission_is_not_compared_with_fewer_runs_of_others_than_it_has() -> None:
    soon = Candidate(organisation="a", group=1, epochs_to_target=(1.0,) * 5)
    for count, named in ((4, set()), (5, {0})):  # even 4 would give a chance of 2/126
        late = Candidate(organisation="b", group=1, epochs_to_target=(9.0,) * count)
        assert find_unusually_early([soon, late]).keys() == named


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log,
        lambda log: log.drop("global_batch_size"),
        lambda log: log.metadata("run_stop", status="aborted"),  # although it reached the target
    ],
)
def test_an_audit_says_unusual_and_refuses_nothing(spoil: Callable[[Altered], Altered], tmp_path: Path) -> None:
    """A first log that the screen cannot count hides none of the others."""
    for number in range(4):
        epochs = 36 if number == 0 else 44
        texts = []
        for seed in range(4):
            rising = (0.2 + 0.05 * place + seed / 1000 for place in range(epochs // 4 - 1))
            run = make_log.closed_run(seed=9 * number + seed, epochs=epochs, accuracies=(*rising, 0.7604))
            texts.append(foreign(run))
        if number == 0:
            texts[0] = spoil(Altered(texts[0])).text
        write(tmp_path / f"v4.0/Org{number}/results/system/resnet", *texts)
    said = {row.submitter: [q.actual for q in row.questions if q.rule == "selected-runs"] for row in audit(tmp_path)}
    assert [name for name, actual in said.items() if actual] == ["Org0"]
    assert re.fullmatch(
        r"unusual \(p = 0\.\d+\): its runs converged early; p is the chance that as many runs, drawn at random from "
        r"these and other organisations' runs in its round and at its batch, are as early, times the number of "
        r"submissions compared",
        said["Org0"][0],
    )
