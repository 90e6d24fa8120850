"""Hyperparameters of MLPerf's published ResNet logs beside those that `mlperf_lars` logs at the same global batch."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.sampling import steps_per_epoch
from paddle_rn50 import config
from tests.runlog.test_optimizer_events import logged

ARCHIVES = ("mlperf_v0.7_v1.0.tar.xz", "mlperf_v1.1_baidu.tar.xz", "mlperf_resnet.tar.xz")
DECAY_STEPS = "lars_opt_learning_rate_decay_steps"
WANTED = (b'"global_batch_size"', b'"opt_name"', b'"lars_')

# Logs at a batch of ours: how many there are, and how many log our values.
LOGS = {1632: (95, 30), 3264: (300, 250), 4096: (10, 0), 8192: (25, 10), 13056: (15, 0), 32768: (25, 0), 65536: (10, 5)}
# The values that the others chose, as the rules leave them to the submitter, and in how many logs. docs/recipes.md says
# what they amount to.
CHOSEN: dict[tuple[int, str], dict[Any, int]] = {
    (1632, "base_learning_rate"): {6.0: 10, 6.32: 15, 7.3: 10, 7.5: 25, 10.5: 5},
    (3264, "base_learning_rate"): {11.0: 30, 12.5: 15},
    (3264, "learning_rate_warmup_epochs"): {3: 5},
    (3264, "learning_rate_decay_steps"): {40: 5},
    (4096, "base_learning_rate"): {13.0: 5},
    (4096, "learning_rate_warmup_epochs"): {2: 5},
    (4096, "learning_rate_decay_steps"): {"pow2": 5, 12169: 5},
    (8192, "learning_rate_decay_steps"): {5772: 5, 6720: 10},
    (13056, "base_learning_rate"): {20.0: 10},
    (13056, "momentum"): {0.94: 5},
    (32768, "base_learning_rate"): {20.81: 5, 24.952061: 5, 25.0: 5, 26.379: 5, 29.0: 5},
    (32768, "learning_rate_warmup_epochs"): {7.6: 5, 8: 5, 11: 5, 18: 5},
    (32768, "learning_rate_decay_steps"): {639.5999999999999: 5, 1872: 5, 2028: 5, 2067: 5},
    (32768, "momentum"): {0.9202: 5, 0.929: 5, 0.933205: 5, 0.9395: 5, 0.95: 5},
    (32768, "weight_decay"): {0.0001: 25},
    (65536, "base_learning_rate"): {23.080977304670448: 5},
    (65536, "learning_rate_warmup_epochs"): {33: 5},
    (65536, "learning_rate_decay_steps"): {1166.25: 5},
    (65536, "momentum"): {0.9537213777059405: 5},
}


def published(folder: Path) -> Iterator[dict[str, Any]]:
    """First values of the keys that matter, of each log whose optimizer is LARS."""
    for archive in ARCHIVES:
        with tarfile.open(folder / archive, "r|xz") as members:
            for member in members:
                content = members.extractfile(member) if "/result_" in member.name and member.isfile() else None
                if content is None:
                    continue
                said: dict[str, Any] = {}
                for line in content:
                    if b":::MLL" in line and any(key in line for key in WANTED):
                        event = json.loads(line[line.index(b"{") :])
                        said.setdefault(event["key"], event["value"])
                if said.get("opt_name") == "lars":
                    yield said


def decay_said(steps: Any, *, per_epoch: int, train_steps: int, warmup_steps: int) -> bool:
    """Whether decay steps are those of this training: in steps after the warm-up, or in epochs, of all or after it."""
    if isinstance(steps, str):
        return False
    epochs = steps * per_epoch if steps < 100 else steps
    return any(abs(epochs - wanted) <= per_epoch / 2 for wanted in (train_steps, train_steps - warmup_steps))


def test_published_logs_have_our_values_or_are_listed(published_corpus: Path, tmp_path: Path) -> None:
    logs, alike, chosen = Counter[int](), Counter[int](), dict[tuple[int, str], Counter[Any]]()
    ours = {batch: logged(tmp_path / f"{batch}.txt", config, "mlperf_lars", batch) for batch in config.MLPERF_POINTS}
    for said in published(published_corpus):
        batch = int(said["global_batch_size"])
        if batch not in ours:
            continue
        logs[batch] += 1
        per_epoch = steps_per_epoch(config.IMAGENET_TRAIN, batch)
        warmup_steps = ours[batch]["lars_opt_learning_rate_warmup_epochs"] * per_epoch
        train_steps = ours[batch][DECAY_STEPS] + warmup_steps
        decay = {"per_epoch": per_epoch, "train_steps": train_steps, "warmup_steps": warmup_steps}
        differ = [
            key
            for key, value in ours[batch].items()
            if (not decay_said(said[key], **decay) if key == DECAY_STEPS else said[key] != value)
        ]
        alike[batch] += not differ
        for key in differ:
            chosen.setdefault((batch, key.removeprefix("lars_opt_")), Counter())[said[key]] += 1
    assert {batch: (count, alike[batch]) for batch, count in logs.items()} == LOGS
    assert chosen == CHOSEN
