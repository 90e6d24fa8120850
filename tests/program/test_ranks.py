"""Programs on several ranks: normalization over all of them, and strategies that must not change what is trained."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import jobs
from tests.jobs import need

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.xdist_group("ranks")]
NULL_GPU = str(jobs.REPOSITORY / "tests" / "null_gpu" / "run.sh")
RANK = str(Path(__file__).with_name("two_ranks.py"))
NORMALIZATIONS = 4  # of its `null_gpu`


@pytest.mark.parametrize("of", ["statistics", "merge"])
def test_two_ranks_train_as_the_whole_batch(of: str) -> None:
    """By parameters and running statistics, so the backward pass too; by the losses of gradient merge."""
    done = jobs.on_ranks(2, RANK, of, THREADS=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 agrees", "rank 1 agrees"]


def on_null_gpus(out: Path, **variables: Any) -> subprocess.CompletedProcess[str]:
    need(shutil.which("gcc") is not None, "gcc, which makes the libraries that answer")
    more: dict[str, Any] = {"PYTHONPATH": str(jobs.REPOSITORY), "DEVICE": "gpu", "WORKLOAD": "hrnet"}
    more |= {"DGXNGPU": "2", "THREADS": "1"}
    command = [NULL_GPU, *jobs.mpirun(2, RANK, "null_gpu")]
    return jobs.run(command, timeout_s=900, NULLGPU_OUT=str(out), **more, **variables)


def test_two_gpus_sum_each_normalization_forward_and_backward(tmp_path: Path) -> None:
    """In the last step, in one order and on one communicator, or the ranks would wait for each other without an end."""
    done = on_null_gpus(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"{NORMALIZATIONS} normalizations summed over 2 ranks, forward and backward") == 2
    found = []  # elements, type, communicator and stream of each sum
    for trace in tmp_path.glob("trace.*"):
        lines = [line.split("\t") for line in trace.read_text().splitlines()]
        last = max((n for n, line in enumerate(lines) if line[0] == "mark" and line[1].startswith("run ")), default=0)
        if sums := [line[2:6] for line in lines[last:] if line[:2] == ["nccl", "AllReduce"]]:
            found.append(sums)
    first, second = found
    assert first == second and len({communicator for _, _, communicator, _ in first}) == 1
    assert sum(stream == "stream 1" for *_, stream in first) == 2 * NORMALIZATIONS


def test_a_flag_with_which_no_normalization_is_summed_is_refused(tmp_path: Path) -> None:
    done = on_null_gpus(tmp_path, FLAGS_dynamic_static_unified_comm="1")
    assert done.returncode == 1
    said = "error: FLAGS_dynamic_static_unified_comm=1: Paddle 2.6.2 would then normalize over each GPU's own"
    assert said in done.stderr


# ---- losses of ten steps of the real job agree to 1e-5

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
