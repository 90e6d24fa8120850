"""The losses of a log of this project are those of a training that begins with random weights."""

from pathlib import Path
from typing import Any

import pytest

from runlog import workloads
from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import Altered, write
from tests.compliance.test_check import check

IMAGENET: dict[str, Any] = {"samples": (1281167, 50000), "batch": 32, "devices": 8, "epoch_ms": 500_000, "cores": 4096}


@pytest.mark.parametrize(
    ("made", "window", "is_refused"),
    [
        ({}, {"steps": 5, "images": 160, "loss": 1.3}, True),
        ({}, {"steps": 5, "images": 160, "loss": 1.4}, False),
        ({}, {"steps": 6, "images": 192, "loss": 0.1}, False),  # which PRINT_STEPS may ask for
        ({}, {"steps": 5, "images": 480, "loss": 0.1}, False),  # a third of the epoch
        ({}, {"steps": 5, "images": 40, "loss": 0.1}, False),  # 8 images, which may be easy ones
        ({}, {"steps": 5, "images": 160, "loss": None}, False),
        ({"status": "aborted"}, {"steps": 5, "images": 160, "loss": 0.1}, False),
        ({"summary": {"resumed": True}}, {"steps": 5, "images": 160, "loss": 0.1}, False),
        ({"summary": {"data": "synthetic"}}, {"steps": 5, "images": 160, "loss": 0.1}, False),
        ({"samples": (1437, 361)}, {"steps": 5, "images": 160, "loss": 0.1}, False),  # a user's own, and easy
        (IMAGENET, {"steps": 5, "images": 1280, "loss": 4.1}, True),
        (IMAGENET, {"steps": 100, "images": 25_600, "loss": 4.1}, True),
        (IMAGENET, {"steps": 100, "images": 25_600, "loss": 4.2}, False),
        (IMAGENET, {"steps": 101, "images": 25_856, "loss": 4.1}, False),
        ({"benchmark": "hrnet", "batch": 2}, {"steps": 5, "images": 160, "loss": 0.1}, False),  # maybe pretrained
    ],
)
def test_a_network_has_learned_nothing_after_its_first_steps(
    made: dict[str, Any], window: dict[str, Any], is_refused: bool, tmp_path: Path
) -> None:
    """An open log on the digits whose first epoch was cut off, and all that follows numbered anew, had passed."""
    log = Altered(make_log.run(**made)).inside("step_window", **window)
    _, [file] = check(*write(tmp_path, log.text))
    begins = [f["line"] for f in file["findings"] if "with random weights begins at about" in f["actual"]]
    assert begins == ([log.at("step_window") + 1] if is_refused else [])


def test_a_recipe_of_a_single_class_has_no_loss_to_begin_with(tmp_path: Path) -> None:
    log = by.settings(Altered(make_log.run()), RECIPE_classes=1).inside("step_window", steps=5, images=160, loss=0.0)
    _, [file] = check(*write(tmp_path, log.text))
    assert "begins at about" not in str(file)


def test_of_another_workload_with_a_resnet_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own may have made data that are learned in a few steps."""
    mine = workloads.named("rn50")._replace(name="mine", benchmark="mine", embedded=None)
    monkeypatch.setattr(workloads, "WORKLOADS", (*workloads.WORKLOADS, mine))
    log = Altered(make_log.run()).inside("step_window", steps=5, images=160, loss=0.1)
    _, [file] = check(*write(tmp_path, by.settings(log, WORKLOAD="mine").text))
    assert "begins at about" not in str(file)


@pytest.mark.parametrize(
    ("made", "added", "is_refused"),
    [
        ({}, 0.5, True),
        ({}, 0.1, False),
        ({"windows": 3}, 0.5, False),  # a few losses may be high by chance
        ({"batch": 7}, 0.5, False),  # as may those of few images
        ({"batch": 15}, 0.5, False),  # and those of few in each batch normalization, of which evaluations know nothing
        ({"target": 0.1, "accuracies": (0.05, 0.07, 0.25)}, 0.5, False),  # of a recipe that wants no more
        ({"status": "aborted"}, 0.5, False),
        ({"summary": {"data": "synthetic"}}, 0.5, False),
        ({"samples": (1437, 361)}, 0.5, False),  # a user's own
        (IMAGENET | {"accuracies": (0.1, 0.2, 0.76)}, 3.5, True),
        (IMAGENET | {"accuracies": (0.1, 0.2, 0.76)}, 3.2, False),
        ({"benchmark": "hrnet", "batch": 2}, 3.5, False),
    ],
)
def test_the_target_is_not_reached_after_an_epoch_that_still_guesses(
    made: dict[str, Any], added: float, is_refused: bool, tmp_path: Path
) -> None:
    """A run that ended with its first epoch, by the accuracy of a later one, had passed. Here losses end with 1.5."""
    log = Altered(make_log.run(**{"windows": 4} | made))
    by.each(log, "step_window", lambda fields: fields["value"].update(loss=fields["value"]["loss"] + added))
    _, [file] = check(*write(tmp_path, log.text))
    blamed = [f["line"] for f in file["findings"] if "target was reached after an epoch whose losses" in f["actual"]]
    assert blamed == ([log.at("run_stop") + 1] if is_refused else [])


@pytest.mark.parametrize("classes", [None, 1])
def test_without_classes_to_guess_among_no_last_loss_is_too_high(classes: int | None, tmp_path: Path) -> None:
    log = by.settings(Altered(make_log.run(windows=4)), RECIPE_classes=classes)
    by.each(log, "step_window", lambda fields: fields["value"].update(loss=fields["value"]["loss"] + 0.5))
    _, [file] = check(*write(tmp_path, log.text))
    assert "target was reached after" not in str(file)


def test_labels_that_are_smoothed_much_have_high_losses(tmp_path: Path) -> None:
    """As of a user's recipe."""
    log = by.settings(Altered(make_log.run(windows=4)), RECIPE_label_smoothing=0.5)
    by.each(log, "step_window", lambda fields: fields["value"].update(loss=fields["value"]["loss"] + 0.5))
    _, [file] = check(*write(tmp_path, log.text))
    assert "target was reached after" not in str(file)


def test_losses_that_are_no_numbers_are_low_enough(tmp_path: Path) -> None:
    log = by.each(Altered(make_log.run(windows=4)), "step_window", lambda fields: fields["value"].update(loss=None))
    _, [file] = check(*write(tmp_path, log.text))
    assert "target was reached after" not in str(file)
