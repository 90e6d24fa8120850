"""Habits of MLPerf submitters' logs that must not change a figure in silence."""

from pathlib import Path

import pytest

from runlog import schema
from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import read_record
from tests import make_log
from tests.scoring.samples import write

EPOCHS = 6
IMAGES = 1_000_000


class Submission:
    """A log of ResNet: EPOCHS epochs of 100 s, each of IMAGES images, which are 10,000 images/s."""

    def __init__(self) -> None:
        self.log = make_log.Log(tick_ms=0)
        self.log.event(schema.SUBMISSION_BENCHMARK, "resnet")
        self.log.event(schema.GLOBAL_BATCH_SIZE, 5000)
        self.log.mark(schema.RUN_START)
        self.log.event(schema.TRAIN_SAMPLES, IMAGES)

    def wait(self, seconds: float) -> None:
        self.log.now_ms += 1000 * seconds

    def epoch(self, number: int, *, evaluated_s: float = 0.0) -> None:
        """Log an epoch, with an evaluation between its training and its stop if that takes any time."""
        where = schema.InEpoch(epoch_num=number)
        self.log.mark(schema.EPOCH_START, where)
        self.wait(100)
        if evaluated_s:
            self.log.mark(schema.EVAL_START, where)
            self.wait(evaluated_s)
            self.log.mark(schema.EVAL_STOP, where)
        self.log.mark(schema.EPOCH_STOP, where)

    def figure(self, folder: Path) -> Score:
        self.log.mark(schema.RUN_STOP, schema.Ended(status="success"))
        return score(
            [read_record(write(folder, "log.txt", self.log.text.getvalue()))], protocols.find("window").skipping(1)
        )


def said(figure: Score, check: str) -> list[str]:
    return [warning.found for warning in figure.warnings if warning.check == check]


@pytest.mark.parametrize(("evaluated_s", "rate"), [(25.0, 8000.0), (1.0, 9900.99)])
def test_evaluations_within_epochs_count_as_training_and_the_figure_says_so(
    tmp_path: Path, evaluated_s: float, rate: float
) -> None:
    log = Submission()
    for number in range(1, EPOCHS + 1):
        log.epoch(number, evaluated_s=evaluated_s)
    figure = log.figure(tmp_path)
    assert figure.value == pytest.approx(rate, rel=1e-5)
    warnings = said(figure, "ways_disagree")
    if evaluated_s < 2:  # a difference of 1 % is no matter
        assert warnings == []
    else:
        [warning] = warnings
        assert "without the 150 s of evaluations that are marked within epochs, 10000 images/s if" in warning
