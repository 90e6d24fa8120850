"""Logs of mmcv and mmengine: who printed a row, and where an evaluation stands among the rows."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.scoring import samples
from tests.scoring.test_importers import read


@pytest.mark.parametrize("logger", ["mmedit - ", "mmseg.apis - ", ""])  # none: mmcv 0.x
@pytest.mark.parametrize("name", ["mmseg", "mm_epochs"])
def test_the_name_of_the_logger_is_any_or_none(tmp_path: Path, name: str, logger: str) -> None:
    text = samples.WRITERS[name](samples.run_of(samples.steady(240)))
    tool = "mmseg - " if name == "mmseg" else "mmcls - "
    stamps = [window.end_s for window in read(tmp_path, text).windows]
    assert None not in stamps
    assert [window.end_s for window in read(tmp_path, text.replace(tool, logger)).windows] == stamps


@pytest.mark.parametrize(
    ("version", "framework", "line"), [("PyTorch: 1.11", "PyTorch 1.11", 2), ("", "PyTorch", None)]
)
def test_the_version_of_pytorch_is_of_its_line(tmp_path: Path, version: str, framework: str, line: int | None) -> None:
    text = re.sub("PyTorch: .*", version, samples.mmseg(samples.run_of(samples.steady(240))))
    record = read(tmp_path, text)
    assert (record.framework, record.field_lines.get("framework")) == (framework, line)


RESULT = "aAcc: 0.9512, mIoU: 0.6721, mAcc: 0.7512, IoU.road: 0.9700"


def with_evaluations(text: str, line: str) -> str:
    """The log with an evaluation at each 60th step; `line` may hold the line of the row at that step."""

    def evaluated(row: re.Match[str]) -> str:
        return line.format(row=row[0], step=row["step"], start=row["start"], end=row["end"])

    every_60th = r"(?P<start>.*) Iter \[(?P<step>60|120|180|240)/240\](?P<end>.* memory: \d+,).*"
    text, count = re.subn(every_60th, evaluated, text)
    assert count == 4
    return text


@pytest.mark.parametrize(
    "line",
    [
        "{start} Iter(val) [{step}]\tmIoU: 0.6721, mAcc: 0.7512, aAcc: 0.9512",
        "{start} Iter(val) [{step}]\tmIoU: 0.6721\nINFO:mmseg:Iter(val) [{step}]\tmIoU: 0.6721",
        f"{{start}} Iter [63/240]{{end}} {RESULT}, decode.loss_seg: 0.5525, loss: 0.5525",
        f"{{start}} Iter [63/240]{{end}} {RESULT}, {'IoU.wall: 0.7016, ' * 200}loss: 0.5525",
    ],
    ids=["2020", "2020, twice", "2021", "2021, of many classes"],
)
def test_an_evaluation_in_place_of_a_row_makes_no_row_missing_and_no_other_run(tmp_path: Path, line: str) -> None:
    """mmsegmentation of 2020 and 2021 printed the result in place of the row (mmcv #1248, mmsegmentation #694)."""
    text = samples.mmseg(samples.run_of(samples.steady(240)))
    whole = read(tmp_path, text)
    record = read(tmp_path, with_evaluations(text, line))
    assert [window.step for window in record.windows] == [w.step for w in whole.windows if (w.step or 0) % 60]
    assert {window.steps for window in record.windows} == {10}
    assert [found.step for found in record.quality[:: len(record.quality) // 4]] == [60, 120, 180, 240]
    assert (record.problems, record.truncated) == ((), False)


def test_an_evaluation_behind_the_row_of_its_step_replaces_none(tmp_path: Path) -> None:
    """Its number counts the batches that were evaluated, and may be any."""
    text = samples.mmseg(samples.run_of(samples.steady(240)))
    record = read(tmp_path, with_evaluations(text, f"{{row}}\n{{start}} Iter(val) [63]\t{RESULT}"))
    assert [window.steps for window in record.windows] == [10] * 24
    assert [found.step for found in record.quality] == [60, 120, 180, 240]


@pytest.mark.parametrize(("evaluated_s", "agrees"), [(0.0, None), (1.2, True), (60.0, False)])
def test_a_row_that_takes_in_an_evaluation_is_told_and_does_not_wait_for_data(
    tmp_path: Path, evaluated_s: float, agrees: bool | None
) -> None:
    """mmcv counts from the end of one step to the next, also through an evaluation, as step time and as wait."""
    times, waits = [0.2] * 480, [0.004] * 480
    times[60] += evaluated_s
    waits[60] += evaluated_s
    made = dataclasses.replace(samples.run_of(times, batch=4, devices=2), waits=waits)
    at_step_60 = r"(?m)^(.* - )Iter \[60/480\].*"
    text = re.sub(at_step_60, rf"\g<0>\n\1Iter(val) [500]\t{RESULT}", samples.mmseg(made))

    record = read(tmp_path, text)
    checks = [check for check in record.checks if check.what == "evaluations within rows"]
    assert [check.agree for check in checks] == ([] if agrees is None else [agrees])
    told = "without the rows of line 13, whose times take in an evaluation, 0.2 s a step"
    assert all(check.ways[1].startswith(told) for check in checks)
    _, out, _ = samples.command("score", record.file, "--protocol", "window")
    assert "data_stall" not in [warned["rule"] for warned in out["warnings"]]
    assert out["value"] == pytest.approx(8 * 460 / (0.2 * 460 + evaluated_s), rel=0.005)


def test_a_slow_start_of_an_epoch_behind_an_evaluation_is_a_wait_for_data(tmp_path: Path) -> None:
    """mmcv's timer starts anew in each epoch, whose first rows are slow as the loader's processes start."""
    times, waits = [0.2] * 240, [0.004] * 240
    for first_of_epoch in range(0, 240, 60):
        times[first_of_epoch] += 3
        waits[first_of_epoch] += 3
    made = dataclasses.replace(samples.run_of(times, epoch_steps=60), waits=waits)
    record = read(tmp_path, samples.mm_epochs(made))
    assert len(record.quality) == 4
    assert not [check for check in record.checks if check.what == "evaluations within rows"]
    assert [window.data_wait_s for window in record.windows if window.step == 10][1:] == [pytest.approx(3.04)] * 3
