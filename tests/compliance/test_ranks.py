"""Logs into which every rank writes: a way of logging, and no breach of a rule on what was trained."""

from pathlib import Path

import pytest

from tests import make_log
from tests.compliance.altered import TOKEN, foreign
from tests.compliance.test_official import agreed


@pytest.mark.parametrize("label", ["", "{rank}: ", "[1,{rank}]<stdout>:"])
def test_lines_that_each_rank_repeats_only_warn(label: str, tmp_path: Path) -> None:
    lines = []
    for line in foreign(make_log.closed_run()).splitlines():
        ranks = range(8) if TOKEN in line else range(1)
        lines += [label.format(rank=rank) + line for rank in ranks]
    report = agreed(tmp_path, "\n".join(lines) + "\n")
    assert report.passes_official and report.passes_strict


def test_another_accuracy_of_one_epoch_is_another_evaluation(tmp_path: Path) -> None:
    lines = foreign(make_log.closed_run()).splitlines()
    [first, *_] = [line for line in lines if '"eval_accuracy"' in line]
    lines.insert(lines.index(first), first.replace('"value": 0.', '"value": 0.0'))
    report = agreed(tmp_path, "\n".join(lines) + "\n")
    assert not report.passes_strict and "eval-schedule" in {finding.rule for finding in report.findings}
