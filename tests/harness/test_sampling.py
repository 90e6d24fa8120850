"""Which samples a step sees: at any rank count, in every epoch, each exactly once."""

import itertools

import numpy as np
import pytest

from harness import sampling


def epoch_of(samples: int, *, batch: int, ranks: int, seed: int, epoch: int) -> np.ndarray:
    """[steps, global batch] sample numbers of one epoch over all ranks."""
    steps = sampling.steps_per_epoch(samples, batch * ranks)
    plans = [
        sampling.training_plan(samples, batch=batch, rank=rank, ranks=ranks, seed=seed, epoch=epoch)
        for rank in range(ranks)
    ]
    return np.array([np.concatenate([next(plan)[1] for plan in plans]) for _ in range(steps)])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_step_sees_the_same_samples_at_any_rank_count(ranks: int) -> None:
    one = epoch_of(103, batch=16, ranks=1, seed=5, epoch=3)
    many = epoch_of(103, batch=16 // ranks, ranks=ranks, seed=5, epoch=3)
    assert np.array_equal(one, many)


def test_an_epoch_sees_no_sample_twice_and_drops_the_last_partial_batch() -> None:
    seen = epoch_of(103, batch=5, ranks=4, seed=1, epoch=1)
    assert seen.shape == (5, 20)
    assert len(np.unique(seen)) == 100


def test_order_depends_on_seed_and_epoch() -> None:
    orders = [epoch_of(64, batch=8, ranks=1, seed=s, epoch=e).ravel() for s, e in ((1, 1), (1, 2), (2, 1))]
    for a, b in itertools.combinations(orders, 2):
        assert not np.array_equal(a, b)


@pytest.mark.parametrize(("epoch", "first_step"), [(2, 3), (1, 6)], ids=["within an epoch", "after its last step"])
def test_a_plan_goes_on_where_another_stopped(epoch: int, first_step: int) -> None:
    whole = sampling.training_plan(50, batch=4, rank=1, ranks=2, seed=9)
    rest = sampling.training_plan(50, batch=4, rank=1, ranks=2, seed=9, epoch=epoch, first_step=first_step)
    done = 6 * (epoch - 1) + first_step
    skipped = itertools.islice(whole, done, done + 8)
    for (wanted, ids, _), (found, other_ids, _) in zip(skipped, rest, strict=False):
        assert wanted == found
        assert np.array_equal(ids, other_ids)


@pytest.mark.parametrize("samples", [1, 7, 360, 361])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("batch", [1, 7, 16])
def test_an_evaluation_sees_every_sample_exactly_once(samples: int, ranks: int, batch: int) -> None:
    steps = sampling.evaluation_steps(samples, batch * ranks)
    counts = np.zeros(samples, dtype=int)
    for rank in range(ranks):
        plan = sampling.evaluation_plan(samples, batch=batch, rank=rank, ranks=ranks)
        for _ in range(2):  # and again in the next evaluation
            for _, ids, valid in itertools.islice(plan, steps):
                assert ids.shape == valid.shape == (batch,)
                np.add.at(counts, ids[valid], 1)
    assert (counts == 2).all()


def test_random_numbers_are_uniform_and_belong_to_the_sample() -> None:
    ids = np.arange(4000)
    u = sampling.uniform(3, 1, ids, 5)
    assert u.shape == (4000, 5)
    assert u.min() >= 0
    assert u.max() < 1
    # 20,000 draws: each of ten bins holds 2,000 with a standard deviation of 42; five of these is one in 10^6.
    assert abs(np.histogram(u, bins=10, range=(0, 1))[0] - 2000).max() < 5 * 42
    assert abs(np.corrcoef(u.T)[np.triu_indices(5, 1)]).max() < 5 / np.sqrt(4000)
    assert np.array_equal(sampling.uniform(3, 1, ids[100:110], 5), u[100:110])
    assert not np.array_equal(sampling.uniform(3, 2, ids, 5), u)
