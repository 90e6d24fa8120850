"""Logs into which every rank writes: a way of logging, and no breach of a rule on what was trained."""

import json
from pathlib import Path

import pytest

from tests import make_log
from tests.compliance.altered import TOKEN, Altered, foreign
from tests.compliance.test_official import agreed


@pytest.mark.parametrize(
    ("label", "decay", "left_out"),
    [
        ("", 14523, ()),
        ("{rank}: ", 36, ()),  # of as many epochs as the run has: each counts once
        ("[1,{rank}]<stdout>:", 36, ("epoch_start", "epoch_stop")),
    ],
)
def test_lines_that_each_rank_repeats_only_warn(
    label: str, decay: int, left_out: tuple[str, ...], tmp_path: Path
) -> None:
    log = Altered(foreign(make_log.closed_run())).value("lars_opt_learning_rate_decay_steps", decay)
    lines = []
    for line in log.drop_all(*left_out).lines:
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


@pytest.mark.parametrize(("apart_ms", "passes"), [(0, True), (300, True), (900, True), (1500, False)])
def test_labelled_ranks_have_clocks_of_their_own(apart_ms: int, passes: bool, tmp_path: Path) -> None:
    """Each rank's clock is behind that of the rank above it; a second is what nodes that log one event may be apart."""
    lines = []
    for line in foreign(make_log.closed_run()).splitlines():
        if TOKEN in line:
            fields = json.loads(line.removeprefix(TOKEN))
            behind = fields | {"time_ms": fields["time_ms"] - apart_ms}
            lines += [f"0: {line}", f"1: {TOKEN}{json.dumps(behind)}"]
    report = agreed(tmp_path, "\n".join(lines) + "\n")
    assert report.passes_official and report.passes_strict == passes


def test_a_labelled_rank_whose_own_clock_steps_back_is_refused(tmp_path: Path) -> None:
    lines = [f"1: {line}" for line in foreign(make_log.closed_run()).splitlines() if TOKEN in line]
    [number, *_] = [number for number, line in enumerate(lines) if '"epoch_stop"' in line]
    fields = json.loads(lines[number].partition(TOKEN)[2])
    lines[number] = f"1: {TOKEN}{json.dumps(fields | {'time_ms': fields['time_ms'] + 500})}"
    report = agreed(tmp_path, "\n".join(lines) + "\n")
    assert "time-order" in {finding.rule for finding in report.findings if finding.severity == "error"}
