"""A long run keeps its memory and its file handles; by its own telemetry."""

from __future__ import annotations

import json

import pytest

from tests import jobs

STEPS = 400


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_memory_and_handles_stay_flat(tmp_path):
    settings = {**jobs.TINY, "MEASURED_STEPS": STEPS, "PRINT_STEPS": 10, "BATCHSIZE": 2, "LOGDIR": tmp_path}
    done = jobs.run_and_time(timeout_s=1500, **settings)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.rglob("*.telemetry.jsonl")
    samples = [json.loads(line)["process"] for line in path.read_text().splitlines()]
    settled = samples[len(samples) // 4 :]  # pools and caches are full
    assert len(settled) > 20
    third = len(settled) // 3
    first, last = settled[:third], settled[-third:]

    def mean(part: list[dict[str, float]], name: str) -> float:
        return sum(sample[name] for sample in part) / len(part)

    assert mean(last, "rss_mib") < mean(first, "rss_mib") + 20, "MiB grow"
    assert max(s["open_files"] for s in last) <= max(s["open_files"] for s in first)
    assert max(s["threads"] for s in last) <= max(s["threads"] for s in first)
