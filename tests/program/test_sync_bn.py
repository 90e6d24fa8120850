"""Batch normalization over all ranks: what GPUs are given, and its equivalent on two CPU ranks."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import jobs
from tests.needs import need

NULL_GPU = str(jobs.REPOSITORY / "tests" / "null_gpu" / "run.sh")
RANK = str(Path(__file__).with_name("two_ranks.py"))
NORMALIZATIONS = 4  # of its `null_gpu`


@pytest.mark.xdist_group("ranks")
def test_two_ranks_train_as_the_joined_batch() -> None:
    """Parameters and running statistics, so the backward pass too, after three steps."""
    done = jobs.on_ranks(2, RANK, "statistics", THREADS=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 agrees", "rank 1 agrees"]


def on_null_gpus(out: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    need(shutil.which("gcc") is not None, "gcc, which makes the libraries that answer")
    more = {"PYTHONPATH": str(jobs.REPOSITORY), "DEVICE": "gpu", "WORKLOAD": "hrnet", "DGXNGPU": "2", "THREADS": "1"}
    return jobs.run([NULL_GPU, *command], timeout_s=900, NULLGPU_OUT=str(out), **more, **variables)


def last_step(out: Path) -> list[str]:
    """The all-reduces of the last step in order, the same on both ranks or they would wait for each other without an
    end: elements, type, communicator and stream."""
    found = []
    for trace in out.glob("trace.*"):
        lines = [line.split("\t") for line in trace.read_text().splitlines()]
        last = max((n for n, line in enumerate(lines) if line[0] == "mark" and line[1].startswith("run ")), default=0)
        if sums := [", ".join(line[2:6]) for line in lines[last:] if line[:2] == ["nccl", "AllReduce"]]:
            found.append(sums)
    first, second = found
    assert first == second
    assert len({line.split(", ")[2] for line in first}) == 1, "one communicator"
    return first


@pytest.mark.xdist_group("ranks")
def test_two_gpus_sum_each_normalization_forward_and_backward(tmp_path: Path) -> None:
    done = on_null_gpus(tmp_path, *jobs.mpirun(2, RANK, "null_gpu"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"{NORMALIZATIONS} normalizations summed over 2 ranks, forward and backward") == 2
    assert sum(line.endswith(", stream 1") for line in last_step(tmp_path)) == 2 * NORMALIZATIONS


@pytest.mark.xdist_group("ranks")
def test_a_flag_with_which_no_normalization_is_summed_is_refused(tmp_path: Path) -> None:
    done = on_null_gpus(tmp_path, *jobs.mpirun(2, RANK, "null_gpu"), FLAGS_dynamic_static_unified_comm="1")
    assert done.returncode == 1
    said = "error: FLAGS_dynamic_static_unified_comm=1: Paddle 2.6.2 would then normalize over each GPU's own"
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_hrnet_on_two_gpus_adds_612_all_reduces_to_a_step(tmp_path: Path) -> None:
    settings = {"BATCHSIZE": "2", "PRECISION": "amp_o2", "RECIPE": "cityscapes_benchmark", "DATA": "synthetic"}
    done = on_null_gpus(tmp_path, "./run_and_time.sh", **jobs.TINY | settings | {"IMAGE_SIZE": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    sums = last_step(tmp_path)
    assert sum(line.endswith(", stream 1") for line in sums) == 2 * 306 and len(sums) == 2 * 306 + 5
    (log,) = tmp_path.glob("results/*/hrnet/result_0.txt")
    assert jobs.values(log, "model_bn_span") == [4]
