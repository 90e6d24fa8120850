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


def on_null_gpus(out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    need(shutil.which("gcc") is not None, "gcc, which makes the libraries that answer")
    more = {"PYTHONPATH": str(jobs.REPOSITORY), "DEVICE": "gpu", "WORKLOAD": "hrnet", "DGXNGPU": "2", "THREADS": "1"}
    command = [NULL_GPU, *jobs.mpirun(2, RANK, "null_gpu")]
    return jobs.run(command, timeout_s=900, NULLGPU_OUT=str(out), **more, **variables)


@pytest.mark.xdist_group("ranks")
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


@pytest.mark.xdist_group("ranks")
def test_a_flag_with_which_no_normalization_is_summed_is_refused(tmp_path: Path) -> None:
    done = on_null_gpus(tmp_path, FLAGS_dynamic_static_unified_comm="1")
    assert done.returncode == 1
    said = "error: FLAGS_dynamic_static_unified_comm=1: Paddle 2.6.2 would then normalize over each GPU's own"
    assert said in done.stderr
