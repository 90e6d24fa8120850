"""Figures between two time stamps that lie off the rows' own times: at the end of an epoch, and by whole seconds."""

import dataclasses
from pathlib import Path

import pytest

from scoring.figure import protocols
from scoring.figure.score import Score, score
from scoring.importers import read_record
from scoring.record import InputError
from tests.scoring import samples

STAMPS = dataclasses.replace(protocols.find("dlperf"), runs=1)


def score_by_stamps(folder: Path, text: str) -> Score:
    return score([read_record(samples.write(folder, "run.log", text))], STAMPS)


@pytest.mark.parametrize("name", ["paddleclas_static", "mm_epochs"])
@pytest.mark.parametrize(("epoch_steps", "counted"), [(24, 20), (60, 60)])
def test_an_epoch_that_ends_between_two_stamps(tmp_path: Path, name: str, epoch_steps: int, counted: int) -> None:
    """Rows at steps 10 and 20 of 24: a program tells of no other step, and the stamps are of all of them."""
    text = samples.WRITERS[name](samples.run_of([0.5] * 240, epoch_steps=epoch_steps))
    by_stamps = score_by_stamps(tmp_path, text)
    told = ["an epoch ended in between" in warned.found for warned in by_stamps.warnings if "rows_" in warned.check]
    assert by_stamps.value == pytest.approx(512 * counted / epoch_steps, rel=1e-3)
    assert told == [True] * (counted < epoch_steps)


def test_stamps_of_whole_seconds_may_make_a_figure_higher_than_its_rows_do(tmp_path: Path) -> None:
    """100 steps of 0.0583 s take from 1.17 s to 7.00 s, which the stamps show as 1 s and 6 s."""
    by_stamps = score_by_stamps(tmp_path, samples.paddleseg(samples.run_of([0.0583] * 400)))
    assert by_stamps.value == pytest.approx(256 * 100 / 5) and by_stamps.value > 1.16 * 256 / 0.0583
    assert not [warning for warning in by_stamps.warnings if "rows_" in warning.check]


@pytest.mark.parametrize(
    ("name", "step_time", "share"),
    [
        ("paddleseg", 0.0583, "20.0%"),  # 1 s of the 5 s that the stamps show
        ("paddleseg", 0.4, "2.5%"),  # 1 s of 40 s
        ("paddleseg", 0.6, None),  # 1 s of 60 s is below 2 %
        ("paddle18", 0.0583, None),  # its stamps have milliseconds
    ],
)
def test_the_share_that_whole_seconds_leave_open_is_told(
    tmp_path: Path, name: str, step_time: float, share: str | None
) -> None:
    file = samples.write(tmp_path, "run.log", samples.WRITERS[name](samples.run_of([step_time] * 400)))
    options = ("--protocol", "dlperf", "--runs", 1, "--devices", 8, "--batch", 32)
    _, result, _ = samples.command("score", file, *options)
    told = [warned["message"] for warned in result["warnings"] if warned["rule"] == "coarse_stamps"]
    assert len(told) == (share is not None)
    if share is not None:
        assert f"rounding may put the figure off by up to {share} (over 2%)" in told[0]


def test_whole_seconds_of_many_short_epochs_contradict_no_row(tmp_path: Path) -> None:
    """The rows of each epoch lie half a second apart, and their stamps 0 s or 1 s; an epoch tells nothing of others."""
    text = samples.mm_epochs(samples.run_of([0.1] * 700, epoch_steps=10, every=5))
    record = read_record(samples.write(tmp_path, "run.log", text))
    assert [(check.what, check.agree) for check in record.checks] == [("time", True)]


def test_rows_that_hold_more_steps_than_a_protocol_takes_are_said_to(tmp_path: Path) -> None:
    text = samples.mmseg(samples.run_of([0.5] * 600, every=150))
    with pytest.raises(InputError, match=r"the row of line \d+ holds 150 steps and the protocol takes 100; take"):
        score_by_stamps(tmp_path, text)
    with pytest.raises(InputError, match="takes 100 steps after warm-up and the log has 0; take a longer run"):
        score_by_stamps(tmp_path, samples.mmseg(samples.run_of([0.5] * 150, every=150)))
