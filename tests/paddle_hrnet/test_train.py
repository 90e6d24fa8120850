"""Real jobs of FCN-HRNetW18, by the user's command's own ranks."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import jobs

SIDE = 32
TRAINING = {
    "WORKLOAD": "hrnet",
    "IMAGE_SIZE": SIDE,
    "BATCHSIZE": 2,
    "PRINT_STEPS": 1,
    "MAX_EPOCHS": 2,
    "SEED": 7,
    "THREADS": 1,
    "CLEAR_CACHES": 0,
    "PROGRESS": "plain",
}


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """Eight training and three evaluation scenes of two colours, labelled 0 and 1."""
    rng = np.random.default_rng(0)
    root = tmp_path / "town"
    for part, count in (("train", 8), ("val", 3)):
        for i in range(count):
            label = np.zeros((SIDE, SIDE), dtype=np.uint8)
            label[:, rng.integers(8, 24) :] = 1
            image = (label[:, :, None] * 150 + rng.integers(0, 50, (SIDE, SIDE, 3))).astype(np.uint8)
            for kind, end, array in (
                ("leftImg8bit", "leftImg8bit", image),
                ("gtFine", "gtFine_labelTrainIds", label),
            ):
                path = root / kind / part / "a" / f"a_{i}_{end}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(path)
    return root


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_run_logs_what_the_checker_wants(tmp_path: Path, data_set: Path) -> None:
    """Two colours do not bring 11 classes to the target, so that the run ends in an honest failure."""
    log = tmp_path / "result_0.txt"
    done = jobs.on_ranks(2, "-m", "harness", RESULT_FILE=log, DATADIR=data_set, **TRAINING)
    assert done.returncode == 1
    assert "below the target 0.7000" in done.stderr
    windows = jobs.values(log, "step_window")
    assert len(windows) == 4
    assert all(np.isfinite(w["loss"]) and w["images"] == 4 for w in windows)
    quality = jobs.values(log, "eval_accuracy")
    assert len(quality) == 2
    assert all(0 <= q <= 2 / 11 for q in quality)  # nine classes are absent and count as 0
    (summary,) = jobs.values(log, "run_summary")
    assert (summary["model"], summary["devices"], summary["batch_per_device"]) == ("fcn_hrnetw18", 2, 2)
    assert jobs.values(log, "submission_benchmark") == ["hrnet"]


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_bad_file_ends_the_run_as_aborted_and_keeps_the_log(tmp_path: Path, data_set: Path) -> None:
    bad = data_set / "gtFine/train/a/a_3_gtFine_labelTrainIds.png"
    bad.write_bytes(bad.read_bytes()[:-20])
    log = tmp_path / "result_0.txt"
    done = jobs.on_ranks(1, "-m", "harness", RESULT_FILE=log, DATADIR=data_set, **TRAINING)
    assert done.returncode == 1
    said = f"{bad}: is truncated ("
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert [said in reason for reason in jobs.values(log, "abort_reason")] == [True]
    (stopped,) = (e for e in jobs.mllog(log) if e["key"] == "run_stop")
    assert stopped["metadata"]["status"] == "aborted"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RECIPE": "none"}, "RECIPE='none': must be one of scenes_small, cityscapes_80k"),
        ({"LAYOUT": "NHWC"}, "LAYOUT=NHWC: FCN-HRNetW18 is built in NCHW only"),
        ({"DATADIR": "/nowhere"}, "/nowhere: has neither train.txt nor images"),
    ],
)
def test_wrong_use_is_said_in_one_line_before_a_log_is_begun(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    log = tmp_path / "result_0.txt"
    settings = {**TRAINING, "DATADIR": "/nowhere", **variables}
    done = jobs.on_ranks(1, "-m", "harness", RESULT_FILE=log, **settings)
    assert done.returncode == 2
    assert f"error: {said}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not log.exists()
