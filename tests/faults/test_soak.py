"""A long run keeps its memory, file handles and threads, by its own telemetry; SOAK_EPOCHS=1000 for a long one."""

import json
import os

import pytest

from tests import jobs
from tests.harness import small

EPOCHS = int(os.environ.get("SOAK_EPOCHS", "60"))  # with an evaluation and a checkpoint each; 0.6 to 3 seconds
GROWTH = {"rss_mib": 20, "open_files": 0, "threads": 0}


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_memory_and_handles_stay_flat(tmp_path):
    data = small.data_set(tmp_path / "data")
    settings = {"MAX_EPOCHS": EPOCHS, "CHECKPOINT_EPOCHS": 1, "PRINT_STEPS": 5, "DATADIR": data, "LOGDIR": tmp_path}
    done = jobs.run_and_time(timeout_s=60 + 30 * EPOCHS, cwd=small.checkout(), **{**small.TRAINING, **settings})
    log = tmp_path / "CPU/rn50/result_0.txt"
    assert done.returncode == 1 and "below the target" in jobs.abort_reason(log), done.stderr
    assert len(jobs.values(log, "eval_accuracy")) == EPOCHS and len(jobs.values(log, "checkpoint")) >= EPOCHS // 2
    (path,) = tmp_path.rglob("*.telemetry.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    # By epochs, not by time, of which the start takes another share on each machine: pools and caches are full then.
    begin_s = [event["time_ms"] for event in jobs.mllog(log) if event["key"] == "epoch_stop"][EPOCHS // 4 - 1] / 1000
    settled = [sample["process"] for sample in samples if sample["time_s"] > begin_s]
    third = len(settled) // 3
    assert third > 5
    for name, most in GROWTH.items():
        # The least of many: a checkpoint on its way holds memory, a file and a thread for a moment.
        first, last = (min(sample[name] for sample in part) for part in (settled[:third], settled[-third:]))
        assert last <= first + most, f"{name} grows from {first} to {last}"
