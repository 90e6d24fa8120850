"""A check that raises costs its own line, on all ranks together, and no rank is left waiting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import jobs

RANK = str(Path(__file__).with_name("ranks_that_fail.py"))


@pytest.mark.xdist_group("ranks")
def test_each_check_fails_by_itself(tmp_path: Path) -> None:
    done = jobs.on_ranks(2, RANK, str(tmp_path / "fp32.txt"), "alike")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "fp32.lines").read_text().splitlines()]
    assert [(line["check"], line["status"], line["found"]) for line in lines] == [
        ("passes", "ok", "sum 2"),
        ("raises-on-1", "fatal", "rank 1: no kernel for it"),
        ("lacks", "unknown", "no GPU"),
        ("raises", "fatal", "the same"),
        ("passes", "ok", "sum 2"),
    ]
    assert "OSError: no kernel" in done.stderr  # with its stack, for whoever mends it


@pytest.mark.xdist_group("ranks")
def test_a_rank_that_waits_for_one_that_failed_ends_with_the_job(tmp_path: Path) -> None:
    done = jobs.on_ranks(2, RANK, str(tmp_path / "fp32.txt"), "stuck")
    assert done.returncode != 0
    assert "error: rank 1: alone; another rank has not left this check 1 s later" in done.stderr
    assert not (tmp_path / "fp32.lines").exists()
