"""Values that stand exactly at the bound of a rule, and one step beyond it."""

from pathlib import Path

import pytest

from compliance.check import check_file
from compliance.rules import load
from compliance.strict.accuracies import StatedData, stated_data
from tests.compliance.altered import Altered, write
from tests.make_log import closed_hrnet_run, closed_run, hrnet_run

RULESET = load("4.0.0")


@pytest.mark.parametrize(
    ("excess", "data"),
    [
        (-1, StatedData.WRONG_EVAL_SAMPLES),
        (0, StatedData.BENCHMARK),
        (3263, StatedData.BENCHMARK),  # the padding of a last batch of 8 x 408
        (3264, StatedData.WRONG_EVAL_SAMPLES),
    ],
)
def test_stated_evaluation_samples_may_have_the_padding_of_less_than_a_batch(
    excess: int, data: StatedData, tmp_path: Path
) -> None:
    [log] = write(tmp_path, Altered(closed_run()).value("eval_samples", 50_000 + excess).text)
    assert stated_data(check_file(log, RULESET).run, RULESET.benchmarks["resnet"]) is data


@pytest.mark.parametrize(("epochs", "is_missing"), [(39, False), (40, True)])
def test_an_evaluation_is_missing_once_its_epoch_has_ended(epochs: int, is_missing: bool, tmp_path: Path) -> None:
    """After the evaluation of epoch 36 the next one is due after epoch 40."""
    log = Altered(closed_run(epochs=epochs, accuracies=(0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.72, 0.73, 0.7602)))
    if is_missing:
        for key in ("eval_start", "eval_accuracy", "eval_stop"):
            log = log.drop(key, -1)
    [path] = write(tmp_path, log.aborted().text)
    found = [finding.actual for finding in check_file(path, RULESET).findings if finding.rule == "eval-schedule"]
    assert found == ["the last evaluation is of epoch 36, the last epoch 40"] * is_missing


@pytest.mark.parametrize(("right", "passes"), [(37_950, True), (37_949, False)])
def test_a_run_that_reaches_exactly_the_target_has_reached_it(right: int, passes: bool, tmp_path: Path) -> None:
    """The target of ResNet is 0.759, which is 37,950 of 50,000 images."""
    [log] = write(tmp_path, Altered(closed_run()).value("eval_accuracy", right / 50_000, -1).text)
    report = check_file(log, RULESET)
    assert report.passes_official is passes
    broken = {finding.rule for finding in report.findings if finding.severity == "error"}
    assert ("target-status" in broken) is not passes


@pytest.mark.parametrize(("best", "passes"), [(0.79, True), (0.83, True), (0.85, True), (0.86, False), (0.99, False)])
def test_a_mean_iou_that_no_training_reaches_is_refused(best: float, passes: bool, tmp_path: Path) -> None:
    [path] = write(tmp_path, closed_hrnet_run(accuracies=(0.6, 0.7, max(best, 0.7897))))
    report = check_file(path, RULESET)
    assert report.passed is passes
    found = [finding.actual for finding in report.findings if finding.rule == "accuracy-curve"]
    assert found == ([] if passes else [f"an mIoU of {best}; none of FCN-HRNetW18's is over 0.85"])


def test_a_mean_iou_on_other_data_may_be_any(tmp_path: Path) -> None:
    [path] = write(tmp_path, hrnet_run(accuracies=(0.6, 0.7, 0.99)))
    assert check_file(path, RULESET).passed
