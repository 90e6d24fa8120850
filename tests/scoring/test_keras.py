"""Keras logs of trainings with evaluations: a row's time may include one, and each epoch has an accuracy."""

import re
from pathlib import Path

import pytest

from scoring.importers import read_record
from tests.scoring import samples

STEP_S = 0.5
IMAGES_PER_S = 8 * 32 / STEP_S
EVALUATION_S = 20.0
OF_EVALUATION = " - val_loss: 6.4 - val_accuracy: 0.0213 - val_top_5_accuracy: 0.0689"


def log_text(steps_of_epoch: int, *, row_steps: int = 100, evaluates: bool = True, bar: str = "") -> str:
    """A log of four epochs as Keras's progress line and `TimeHistory` write it: a row's time begins with its steps."""
    head = samples.KERAS_CONFIG.format(gpus=8, batch=32).replace("{{", "{").replace("}}", "}")
    lines, now_s, row_begin_s, last_row, stamps = [head], 0.0, 0.0, 0, []
    for step in range(1, 4 * steps_of_epoch + 1):
        row_begin_s = now_s if step == last_row + 1 else row_begin_s
        now_s += STEP_S
        if step - last_row == row_steps:
            seconds = now_s - row_begin_s
            rate = row_steps * 256 / seconds
            times = f"{seconds:.2f} seconds, {rate:.2f} examples/second between steps {last_row} and {step}"
            lines.append(f"I0728 07:50:52.940788 140244211521280 keras_utils.py:145] TimeHistory: {times}")
            stamps.append(f"'BatchTimestamp<batch_index: {step}, timestamp: {1598435008 + now_s}>'")
            last_row = step
        if step % steps_of_epoch == 0:
            now_s += EVALUATION_S if evaluates else 0.0
            evaluation = OF_EVALUATION if evaluates else ""
            lines.append(f"{bar}{steps_of_epoch}/{steps_of_epoch} - 340s - loss: 6.6 - accuracy: 0.01{evaluation}")
    lines.append(f"{{'accuracy_top_1': 0.76, 'step_timestamp_log': [{', '.join(stamps)}]}}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("steps_of_epoch", "rows_left_out"),
    [
        (625, 3),  # the rows of steps 600 to 700, 1200 to 1300 and 1800 to 1900
        (100, 0),  # each row begins after an evaluation
        (1250, 2),  # rows of 1200 to 1300 and 3700 to 3800; the one of 2500 to 2600 begins after its evaluation
    ],
)
@pytest.mark.parametrize("bar", ["", "1/625 [....] - ETA: 1:00:00 - loss: 7.0\r"])
def test_rows_whose_time_includes_an_evaluation_are_left_out(
    tmp_path: Path, steps_of_epoch: int, rows_left_out: int, bar: str
) -> None:
    log = samples.write(tmp_path, "a.log", log_text(steps_of_epoch, bar=bar))
    record = read_record(log)
    rows = 4 * steps_of_epoch // 100
    assert len(record.windows) == rows - rows_left_out
    assert {round(window.printed_rate or 0) for window in record.windows} == {IMAGES_PER_S}
    found = [re.fullmatch(r"line \d+(?: and (\d+) more)?: an evaluation within .*", text) for text in record.problems]
    assert [1 + int(match[1] or 0) for match in found if match] == [rows_left_out] * (rows_left_out > 0)
    assert len(found) == len([match for match in found if match])  # no step is called missing


def test_the_accuracy_of_each_epoch_is_read_and_its_evaluation_is_no_unexplained_pause(tmp_path: Path) -> None:
    record = read_record(samples.write(tmp_path, "a.log", log_text(125, row_steps=50)))
    results = [(quality.name, quality.value) for quality in record.quality]
    assert results == [("val_accuracy", 0.0213)] * 4 + [("accuracy_top_1", 0.76)]
    assert "time with pauses" not in [check.what for check in record.checks]


def test_rows_over_the_end_of_an_epoch_without_an_evaluation_count(tmp_path: Path) -> None:
    record = read_record(samples.write(tmp_path, "a.log", log_text(625, evaluates=False)))
    assert len(record.windows) == 25 and not record.problems


def test_a_log_of_nothing_but_rows_with_evaluations_has_no_figure(tmp_path: Path) -> None:
    log = samples.write(tmp_path, "a.log", log_text(60))
    status, _, error = samples.scoring("score", log, "--protocol", "window")
    assert status == 2 and "nothing was measured; line 10 and 1 more: an evaluation within the time" in error


def test_a_log_that_was_cut_before_a_row_with_an_evaluation_is_in_parts(tmp_path: Path) -> None:
    lines = log_text(625).splitlines(keepends=True)
    [cut] = [place for place, line in enumerate(lines, 1) if line.endswith("and 600\n")]
    parts = []
    for name, part in (("log.1", lines[:cut]), ("log", lines[cut:])):
        path = samples.write(tmp_path, name, "".join(part) + "ImageNet\n")
        parts.append(read_record(path, devices=8, batch_per_device=32))
    earlier, later = parts
    assert later.windows[0].step == 800  # the row of steps 600 to 700 is left out
    assert later.is_continuation_of(earlier) and not earlier.is_continuation_of(later)
