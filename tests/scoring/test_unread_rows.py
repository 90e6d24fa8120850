"""Rows whose figures cannot be read are left out, and said; numbers in thousands are read."""

import re
from pathlib import Path

import pytest

from scoring.record import InputError
from tests.scoring import samples
from tests.scoring.test_importers import read, run, same_rows

FIGURE = {  # what stands before the figure that a row needs, where it is not a rate
    "paddle18": "elapse ",
    "paddleseg": "batch_cost: ",
    "mmseg": " time: ",
    "mm_epochs": " time: ",
    "keras": "TimeHistory: ",
    "paddleclas_static": "batch_cost: ",
    "paddleclas_dygraph": "batch_cost: ",
}
RATE = r"(?:(?:samples/s|Speed|\btotal_ips|train\.ips|train\.total_ips)\"? ?: ?)"


def with_figure(name: str, text: str, line: int, printed: str) -> str:
    """The log with another figure in the row of this line; of the row's two lines in NVLOG the second has it."""
    lines = text.splitlines(keepends=True)
    at = line - 1 + (name == "nvidia_nvlog")
    before = re.escape(FIGURE[name]) if name in FIGURE else RATE
    lines[at], count = re.subn(rf"({before})[\d.]+", rf"\g<1>{printed}", lines[at])
    assert count == 1
    return "".join(lines)


@pytest.mark.parametrize("name", sorted(set(samples.WRITERS) - {"mllog"}))
@pytest.mark.parametrize("printed", ["nan", "1,2345", "1,280"])
def test_a_row_that_cannot_be_read_is_left_out_and_said(tmp_path: Path, name: str, printed: str) -> None:
    text = samples.WRITERS[name](run())
    whole = read(tmp_path, text, name)
    assert not whole.problems
    third, fifth = (whole.windows[at].line for at in (2, 4))
    one = with_figure(name, text, third, printed)
    rows = len(whole.windows)
    record = read(tmp_path, one, name)
    assert len(record.windows) == rows - 1
    said = "left out, without a rate or time that can be read"
    assert record.problems == (f"line {third}: 1 of {rows} rows {said}",)
    record = read(tmp_path, with_figure(name, one, fifth, printed), name)
    assert record.problems == (f"line {third} and 1 more: 2 of {rows} rows {said}",)
    options = ("--devices", 8, "--batch", 32) if name in samples.OPTIONS else ()
    status, out, _ = samples.command("score", record.file, "--protocol", "window", *options)
    warned = [found["message"] for found in out["warnings"] if found["rule"] == "log_problem"]
    assert (status, warned) == (0, [*record.problems])


def test_a_row_that_cannot_be_read_is_said_beside_a_whole_row_of_its_line(tmp_path: Path) -> None:
    text = samples.mmseg(run())
    rows = len(read(tmp_path, text).windows)
    third = read(tmp_path, text).windows[2].line
    lines = with_figure("mmseg", text, third, "nan").splitlines(keepends=True)
    lines[third - 1] = lines[third - 1].replace("\n", " ")  # the next row stands on the same line
    record = read(tmp_path, "".join(lines))
    assert len(record.windows) == rows - 1
    assert record.problems == (f"line {third}: 1 of {rows} rows left out, without a rate or time that can be read",)


@pytest.mark.parametrize("name", sorted(set(samples.WRITERS) - {"mllog", "keras"}))
def test_rows_that_are_missing_are_said(tmp_path: Path, name: str) -> None:
    """A full disk took a piece of the log: one row's rate then stands for the steps of six. The others keep theirs."""
    text = samples.WRITERS[name](run())
    whole = read(tmp_path, text, name)
    fifth, tenth = (whole.windows[at].line for at in (4, 9))
    lines = text.splitlines(keepends=True)
    record = read(tmp_path, "".join(lines[: fifth - 1] + lines[tenth - 1 :]), name)
    steps = record.windows[4].steps
    assert record.windows[4].step == whole.windows[9].step
    assert record.problems == (
        f"line {fifth}: rows before it are missing, and its figures stand for up to {steps} steps",
    )


@pytest.mark.parametrize(
    "name",
    [
        *("gluoncv", "mm_epochs", "nvidia_mxnet", "nvidia_mxnet_speed", "nvidia_paddle", "paddle18"),
        *("paddleclas_dygraph", "paddleclas_static"),
    ],
)
def test_whole_epochs_that_are_missing_are_said(tmp_path: Path, name: str) -> None:
    """Without the epochs 1 and 6 of 8 a log of PaddleClas had 1.3 % more and 1.4 % less, and nothing was said."""
    text = samples.WRITERS[name](samples.run_of(samples.steady(480), epoch_steps=120))
    whole = read(tmp_path, text, name)
    assert not whole.problems
    epochs = [window.epoch for window in whole.windows]
    starts = [at for at in range(1, len(epochs)) if epochs[at] != epochs[at - 1]]
    first, after = (whole.windows[starts[at]].line for at in (0, 1))
    lines = text.splitlines(keepends=True)
    record = read(tmp_path, "".join(lines[: first - 1] + lines[after - 1 :]), name)
    [problem] = record.problems
    assert problem == f"line {first}: rows before it are missing, and so are whole epochs"


def test_rows_that_are_missing_are_said_where_no_epoch_has_two(tmp_path: Path) -> None:
    """Epochs of 7 steps with a row every 10: no two rows of one epoch show how many steps a row covers."""
    text = samples.paddleseg(run())
    text = re.sub(r"epoch: \d+, iter: (\d+)", lambda row: f"epoch: {int(row[1]) // 7 + 1}, iter: {row[1]}", text)
    whole = read(tmp_path, text, "paddleseg")
    assert not whole.problems and len({window.epoch for window in whole.windows}) == len(whole.windows)
    fifth, sixth = (whole.windows[at].line for at in (4, 5))
    lines = text.splitlines(keepends=True)
    record = read(tmp_path, "".join(lines[: fifth - 1] + lines[sixth - 1 :]), "paddleseg")
    assert record.problems == (f"line {fifth}: rows before it are missing, and its figures stand for up to 20 steps",)


@pytest.mark.parametrize(("name", "rows"), [("mllog", "step_windows"), ("keras", "rows")])
def test_rows_that_state_their_own_steps_are_missed(tmp_path: Path, name: str, rows: str) -> None:
    """Slow windows could be taken out, and the figure was higher without a word."""
    text = samples.WRITERS[name](run())
    whole = read(tmp_path, text, name)
    assert not whole.problems
    fifth, tenth = (whole.windows[at].line for at in (4, 9))
    lines = text.splitlines(keepends=True)
    record = read(tmp_path, "".join(lines[: fifth - 1] + lines[tenth - 1 :]), name)
    assert record.problems == (f"line {fifth}: {rows} before it are missing, with 50 steps",)


@pytest.mark.parametrize("name", sorted(set(samples.WRITERS) - {"mllog", *FIGURE}))
def test_rates_in_thousands_are_read(tmp_path: Path, name: str) -> None:
    """`1,280.00` can only be a number in thousands."""
    plain = samples.WRITERS[name](samples.run_of([0.064] * 240, epoch_steps=120))
    thousands = re.sub(rf"({RATE})(\d)(\d{{3}}\.\d)", r"\1\2,\3", plain)
    assert thousands != plain
    record = read(tmp_path, thousands, name)
    assert same_rows(record, read(tmp_path, plain, name)) and not record.problems


def test_a_log_of_which_no_row_can_be_read_says_so(tmp_path: Path) -> None:
    text = re.sub(r"samples/s: [\d.]+", "samples/s: -1", samples.oneflow(run()))
    with pytest.raises(InputError, match="nothing was measured; line 7 and 23 more: 24 of 24 rows left out"):
        read(tmp_path, text, format="oneflow")
