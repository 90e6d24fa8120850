"""Habits of MLPerf submitters' logs that must not change a figure in silence."""

import re
from pathlib import Path

import pytest

from runlog import schema
from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.record import InputError
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

    def evaluation(self, number: int) -> None:
        """Log an evaluation of 5 s."""
        where = schema.InEpoch(epoch_num=number)
        self.log.mark(schema.EVAL_START, where)
        self.wait(5)
        self.log.mark(schema.EVAL_STOP, where)

    def rate(self, images_per_s: float, step: int) -> None:
        """Log a rate as NVIDIA's programs do."""
        metadata = {"step": step}
        self.log.mllog.event("tracked_stats", {"throughput": images_per_s}, metadata, time_ms=int(self.log.now_ms))

    def block(self, first: int) -> None:
        """Log a block of two epochs without marks of their own, with a rate of one of eight devices for each."""
        where = {"first_epoch_num": first, "epoch_count": 2}
        self.log.mllog.start("block_start", None, where, time_ms=int(self.log.now_ms))
        for number in (first, first + 1):
            self.wait(100)
            self.rate(10_000 / 8, number)
        self.log.mllog.end("block_stop", None, {"first_epoch_num": first}, time_ms=int(self.log.now_ms))

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
    if evaluated_s < 2:  # a difference of 1 % does not matter
        assert warnings == []
    else:
        [warning] = warnings
        assert "without the 150 s of evaluations that are marked within epochs, 10000 images/s if" in warning


@pytest.mark.parametrize(("printed", "refused"), [(10_000.0, False), (10_000 / 8, True)])
def test_rates_that_are_numbered_by_steps_belong_to_the_epoch_that_goes_on(
    tmp_path: Path, printed: float, refused: bool
) -> None:
    """They are not epochs of their own; those of one device contradict the epochs' times."""
    log = Submission()
    for number in range(1, EPOCHS + 1):
        log.epoch(number)
        log.rate(printed, step=200 * number)
    if refused:
        with pytest.raises(InputError, match="8 times the printed ones"):
            log.figure(tmp_path)
        return
    figure = log.figure(tmp_path)
    assert figure.value == pytest.approx(10_000) and len(figure.records[0].windows) == EPOCHS
    assert said(figure, "ways_disagree") + said(figure, "unsteady") == []


def test_rates_of_one_device_contradict_blocks_without_epochs(tmp_path: Path) -> None:
    log = Submission()
    for first in (1, 3, 5):
        log.block(first)
    with pytest.raises(InputError, match="images / time of the blocks, 10000 images/s, 8 times the printed ones"):
        log.figure(tmp_path)


@pytest.mark.parametrize(
    ("evaluated", "rows"),
    [
        ((2, 4), 4),
        ((3, 4), 4),  # the block's images over the time up to its first evaluation were 13,333 images/s
        ((1, 2, 3, 4), 8),
        ((4,), 2),
    ],
)
@pytest.mark.parametrize("stops", [True, False])
def test_evaluations_within_a_block_without_epochs_divide_it(
    tmp_path: Path, evaluated: tuple[int, ...], rows: int, *, stops: bool
) -> None:
    log = Submission()
    log.log.event(schema.EVAL_SAMPLES, 50_000)
    for first in (1, 5):
        where = {"first_epoch_num": first, "epoch_count": 4}
        log.log.mllog.start("block_start", None, where, time_ms=int(log.log.now_ms))
        for number in range(first, first + 4):
            log.wait(100)
            if number - first + 1 in evaluated:
                log.evaluation(number)
        if stops:
            log.log.mllog.end("block_stop", None, {"first_epoch_num": first}, time_ms=int(log.log.now_ms))
    figure = log.figure(tmp_path)
    assert figure.value == pytest.approx(10_000) and len(figure.records[0].windows) == rows
    assert said(figure, "ways_disagree") == []


@pytest.mark.parametrize("numbers", [(0, 3), (2, 3), (2, 2, 5), (2,), (2, 2)])
def test_a_block_whose_evaluations_are_of_other_epochs_has_no_figure(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    """As where blocks count from 1 and evaluations from 0: nothing says what was trained between them."""
    log = Submission()
    log.log.mllog.start("block_start", None, {"first_epoch_num": 1, "epoch_count": 4}, time_ms=int(log.log.now_ms))
    for number in numbers:
        log.wait(200)
        log.evaluation(number)
    log.log.mllog.end("block_stop", None, {"first_epoch_num": 1}, time_ms=int(log.log.now_ms))
    assert read_record(write(tmp_path, "log.txt", log.log.text.getvalue())).windows == ()


def test_a_block_that_two_ranks_start_on_one_line_counts_once(tmp_path: Path) -> None:
    log = Submission()
    for first in (1, 3, 5):
        log.block(first)
    without_rates = [line for line in log.log.text.getvalue().splitlines() if "tracked_stats" not in line]
    text = "\n".join(line + line if "block_start" in line else line for line in without_rates)
    windows = read_record(write(tmp_path, "log.txt", text)).windows
    assert [(window.epoch, window.images, window.seconds) for window in windows] == [
        (last_epoch, 2 * IMAGES, 200.0) for last_epoch in (2, 4, 6)
    ]


def glued_behind(key: str, text: str) -> str:
    """The log without the line ends behind one kind of event, as where two writers wrote at once."""
    return re.sub(rf'(.*"key": "{key}".*)\n', r"\1", text)


@pytest.mark.parametrize("key", ["block_start", "block_stop", "eval_start", "eval_stop"])
@pytest.mark.parametrize("is_evaluated", [True, False])
def test_events_on_one_line_leave_the_blocks_as_they_are(tmp_path: Path, key: str, *, is_evaluated: bool) -> None:
    """A block whose start and stop shared a line took in the next block, and was half as fast."""
    log = Submission()
    for first in (1, 3, 5):
        log.block(first)
        if is_evaluated:
            log.evaluation(first + 1)
    without_rates = re.sub(r".*tracked_stats.*\n", "", log.log.text.getvalue())
    windows = read_record(write(tmp_path, "log.txt", glued_behind(key, without_rates))).windows
    assert [(window.epoch, window.images, window.seconds) for window in windows] == [
        (last_epoch, 2 * IMAGES, 200.0) for last_epoch in (2, 4, 6)
    ]


@pytest.mark.parametrize("key", ["epoch_start", "epoch_stop", "tracked_stats"])
def test_a_rate_belongs_to_the_epoch_before_it_on_its_own_line(tmp_path: Path, key: str) -> None:
    log = Submission()
    for number in range(1, EPOCHS + 1):
        log.epoch(number)
        log.rate(10_000 + number, step=200 * number)
    windows = read_record(write(tmp_path, "log.txt", glued_behind(key, log.log.text.getvalue()))).windows
    rates = [(window.epoch, window.printed_rate) for window in windows]
    assert rates == [(number, 10_000 + number) for number in range(1, EPOCHS + 1)]


@pytest.mark.parametrize("later_ms", [0, 3])
def test_ranks_without_labels_are_one_run(tmp_path: Path, later_ms: int) -> None:
    """Each of four ranks logs each line, at once or a little later."""
    log = Submission()
    for number in range(1, EPOCHS + 1):
        log.epoch(number)
        log.log.event(schema.EVAL_ACCURACY, 0.7, schema.InEpoch(epoch_num=number))
    lines = []
    for line in log.log.text.getvalue().splitlines():
        time_ms = re.search(r'"time_ms": (\d+)', line)
        assert time_ms is not None
        for rank in range(4):
            lines.append(line.replace(time_ms[1], str(int(time_ms[1]) + rank * later_ms)))
    record = read_record(write(tmp_path, "log.txt", "\n".join(lines)))
    figure = score([record], protocols.find("window").skipping(1))
    assert figure.value == pytest.approx(10_000, rel=1e-3) and len(record.windows) == EPOCHS
    assert [quality.epoch for quality in record.quality] == list(range(1, EPOCHS + 1))
    assert [problem.partition(",")[0] for problem in record.problems] == [
        f"line {at}: run_start again" for at in (10, 11, 12)
    ]


def test_a_run_that_starts_again_after_an_epoch_is_another_run(tmp_path: Path) -> None:
    log = Submission()
    log.epoch(1)
    log.log.mark(schema.RUN_START)
    log.epoch(1)
    with pytest.raises(InputError, match="2 runs in one log"):
        log.figure(tmp_path)


@pytest.mark.parametrize(("event", "value"), [(schema.TRAIN_SAMPLES, IMAGES), (schema.GLOBAL_BATCH_SIZE, 5000)])
def test_two_values_of_what_a_log_says_once_are_named(tmp_path: Path, event: schema.Point[int], value: int) -> None:
    for second, count in ((value, 0), (2 * value, 1)):
        log = Submission()
        log.log.event(event, second)
        for number in range(1, EPOCHS + 1):
            log.epoch(number)
        problems = said(log.figure(tmp_path), "log_problem")
        assert len(problems) == count
        assert all(f"{event.key} is {second}, but {value} on line" in problem for problem in problems)
