"""Wrong use by the user's own command: exit 2, one line on stderr, nothing written."""

from pathlib import Path

import pytest

from tests import jobs
from tests.jobs import printed, refused

NO_GPU = "has 0 GPUs (NVML Shared Library Not Found): set it to fewer, or DEVICE=cpu"
RANKS = pytest.mark.xdist_group("ranks")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DGXSYSTEM": "DGX9"}, "error: DGXSYSTEM=DGX9: there is no config_DGX9.sh; there are: "),
        ({"RECIPE": "adam"}, "error: RECIPE='adam': must be one of digits_small"),
        ({"PRECISION": "amp_o2"}, "error: PRECISION=amp_o2: a CPU has no kernels for it"),
        ({"STRATEGY": "fuse_all=1"}, "error: STRATEGY='fuse_all=1': no knob 'fuse_all': use auto alone, or knob="),
        ({"WORKLOAD": "bert"}, "error: WORKLOAD='bert': must be one of rn50"),
        ({"BATCHSIZE": 0}, "error: BATCHSIZE=0: must be at least 1"),
        ({"RECIPE": "mlperf_lars"}, "no reference convergence point for global batch 32"),
        ({"OSTYPE": "darwin22"}, "error: a job needs Linux with /proc, this is darwin22: "),  # as macOS' bash says it
        # Found by the ranks:
        pytest.param({"DATADIR": "/none"}, "/none/train_list.txt: no such file: DATADIR must hold train_", marks=RANKS),
        pytest.param({"DEVICE": "gpu", "DGXNGPU": 1}, NO_GPU, marks=RANKS),
        pytest.param({"DGXSYSTEM": "DGXA100", "DGXNGPU": 1}, NO_GPU, marks=RANKS),
        pytest.param({"BATCHSIZE": 800}, "1600 is larger than the training set of 1437 images: lower", marks=RANKS),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_wrong_use_is_one_line_and_makes_no_log(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    refused(jobs.run_and_time(LOGDIR=str(tmp_path), **{**jobs.TINY, **variables}), message)
    assert not list(tmp_path.rglob("result_*.txt"))


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    result = tmp_path / "CPU" / "rn50" / "result_1.txt"
    result.parent.mkdir(parents=True)
    result.write_text("mine")
    done = jobs.run_and_time(LOGDIR=str(tmp_path), **{**jobs.TINY, "NEXP": 2})
    refused(done, "result_1.txt exists, results are never overwritten")
    assert result.read_text() == "mine"
    assert not result.with_name("result_0.txt").exists()


def test_a_dry_run_writes_nothing_and_says_all(tmp_path: Path) -> None:
    stdout = printed("./run_and_time.sh", "--dry-run", LOGDIR=str(tmp_path), NEXP="2", BATCHSIZE="8")
    assert '"origin": "environment"' in stdout
    assert f"trial 1: RESULT_FILE={tmp_path}/CPU/rn50/result_1.txt" in stdout
    assert "mpirun" in stdout
    assert not list(tmp_path.iterdir())
