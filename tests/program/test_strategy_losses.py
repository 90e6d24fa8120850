"""Strategies that must not change what is trained: losses of ten steps of the real job agree to 1e-5."""

from pathlib import Path

import numpy as np
import pytest

from tests import jobs

pytestmark = pytest.mark.xdist_group("ranks")
STEPS = 10
JOB = {**jobs.TINY, "RECIPE": "recorded", "WARMUP_STEPS": 1, "MEASURED_STEPS": STEPS - 1, "THREADS": 1}


def losses(log: Path, ranks: int, batch: int, strategy: str) -> np.ndarray:
    variables = {**JOB, "BATCHSIZE": batch, "STRATEGY": strategy, "RESULT_FILE": log}
    done = jobs.on_ranks(ranks, "-m", "harness", **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.array(jobs.losses(log))
    assert len(found) == STEPS
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Losses of two ranks of 8 images with the default strategy: buckets of 16 MiB, add + relu fused."""
    return losses(tmp_path_factory.mktemp("base") / "result.txt", 2, 8, "fuse_grad_size_in_MB=16")


# Gradient merge: the parts of one rank's batch are normalized as the batches of two ranks are, each by itself.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "batch", "strategy"),
    [(2, 8, "fuse_grad_size_in_MB=1"), (2, 8, "fuse_elewise_add_act_ops=0"), (1, 16, "gradient_merge=2")],
)
def test_the_losses_are_those_of_the_default(
    ranks: int, batch: int, strategy: str, base: np.ndarray, tmp_path: Path
) -> None:
    found = losses(tmp_path / "result.txt", ranks, batch, strategy)
    assert np.abs(found / base - 1).max() <= 1e-5, (found / base - 1).tolist()


@pytest.mark.slow
def test_the_control_moves_the_losses_and_little(base: np.ndarray, tmp_path: Path) -> None:
    found = losses(tmp_path / "result.txt", 2, 8, "perturb_input=1")
    assert 0 < np.abs(found / base - 1).max() <= 1e-4


def test_gradient_merge_on_two_ranks_is_the_large_batch() -> None:
    done = jobs.on_ranks(2, str(Path(__file__).with_name("two_ranks.py")), "merge", THREADS=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 agrees", "rank 1 agrees"]
