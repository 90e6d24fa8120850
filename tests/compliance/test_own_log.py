"""A log of this project: its evaluations are those of its recipe and no training, and its telemetry is of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compliance.strict.own_log import own_log_rules
from runlog import schema
from tests.compliance import altered as by
from tests.compliance.altered import Altered, clock, foreign, write
from tests.compliance.test_check import check, errors, rules_broken
from tests.make_log import closed_hrnet_run, closed_run, hrnet_run, run


def _without_evaluation(log: Altered, number: int) -> Altered:
    """No line is left of an evaluation; the epochs before and after it are."""
    return log.drop("eval_start", number).drop("eval_stop", number).drop("eval_accuracy", number)


@pytest.mark.parametrize(
    ("key", "later_ms", "early"),
    [
        ("init_stop", -21_000, "init_stop"),  # so it is before init_start
        ("init_start", 60_000, "seed"),
        ("init_stop", 5_000, "run_summary"),
        ("cache_clear", 60_000, "init_start"),
        ("init_stop", 90, ""),
    ],
)
def test_marks_of_the_preparation_whose_times_go_back_are_told(
    key: str, later_ms: int, early: str, tmp_path: Path
) -> None:
    """They refuse nothing: no figure rests on them, and a machine's clock may be set while the run prepares."""
    log = Altered(run()).later(key, later_ms)
    status, [file] = check(*write(tmp_path, log.text))
    warned = [(f["rule"], f["line"]) for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warned) == (0, [("time-order", log.at(early) + 1)] if early else [])
    assert all(f["rule"] != "time-order" for f in check(*write(tmp_path, foreign(log.text)))[1][0]["findings"])


@pytest.mark.parametrize(
    ("interval_s", "samples", "passes"),
    [(-1, 1, False), ("1", 1, False), (True, 114, False), (0.5, 228, False), (1, 114, True), (10, 11, True)],
)
def test_telemetry_is_taken_every_so_many_whole_seconds(
    interval_s: object, samples: int, passes: bool, tmp_path: Path
) -> None:
    log = by.settings(Altered(run()).inside("telemetry_summary", samples=samples), TELEMETRY_S=interval_s)
    status, [file] = check(*write(tmp_path, log.text))
    assert (status == 0) is passes
    assert passes or "no whole number from 0 to 9" in str(file)


@pytest.mark.parametrize(("samples", "passes"), [(174, True), (300, False)])
def test_telemetry_is_also_taken_while_the_caches_are_flushed(samples: int, passes: bool, tmp_path: Path) -> None:
    """The flush takes a minute, which is before init_start."""
    log = clock(Altered(run()), lambda ms: ms + 60_000, "cache_clear")
    status, [file] = check(*write(tmp_path, log.inside("telemetry_summary", samples=samples).text))
    assert (status == 0) is passes
    assert passes or f"{samples} samples of telemetry" in str(file)


@pytest.mark.parametrize("evaluated", [{}, {"eval_every": 4}, {"eval_every": 4, "offset": 2}])
def test_a_run_is_held_to_the_evaluations_that_its_recipe_asks_for(evaluated: dict[str, int], tmp_path: Path) -> None:
    period, offset = evaluated.get("eval_every", 1), evaluated.get("offset", 0)
    log = by.settings(Altered(run(epochs=9)), RECIPE_eval_every_epochs=period, RECIPE_eval_offset_epochs=offset)
    due = [epoch for epoch in range(1, 10) if (epoch - offset) % period == 0]
    for number in reversed(range(9)):
        if number + 1 not in due:
            _without_evaluation(log, number)
    _, [file] = check(*write(tmp_path, log.text))
    unmet = {"target-status"} if 9 not in due else set()  # the last one would have reached the target
    assert rules_broken(file) == unmet and "was not evaluated" not in str(file)
    _without_evaluation(log, 1)
    _, [file] = check(*write(tmp_path, log.text))
    assert f"epoch {due[1]} was not evaluated" in str(file)
    if due[2:]:
        assert ("own-log", log.at("eval_accuracy", 1) + 1) in errors(file), "the accuracy after it is blamed"


def test_a_run_that_was_stopped_owes_no_evaluation_of_its_last_epoch(tmp_path: Path) -> None:
    log = _without_evaluation(Altered(run(status="aborted")), 2)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == {"run-status"}


def test_no_evaluation_within_an_epoch_counts_as_its_training(tmp_path: Path) -> None:
    """The epoch takes 38 s. It states 36 s, the time beside two evaluations of 1 s each."""
    log = Altered(run(epochs=1)).move_after("epoch_stop", "eval_accuracy").later("epoch_stop", 2000)
    for key in ("eval_start", "eval_accuracy", "eval_stop"):  # the last one first
        log.add_after("eval_start", log.lines[log.at(key, -1)])
    log.later("eval_stop", -1000).later("eval_accuracy", -1000).later("eval_start", 1000, 1)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == []


def _resumed(make: Callable[..., str], *, blocks: int) -> Altered:
    """A run that went on within the epoch after so many blocks: of that epoch the log has the last window alone."""
    log = Altered(make(summary={"resumed": True}))
    del log.lines[log.at("block_start") : log.at("block_stop", blocks - 1) + 1]
    log.drop("rank_times").drop("step_window")
    window = log.fields(log.at("step_window"))["value"]
    images, time_s, wait_s = window["images"], window["time_s"], window["data_wait_s"]
    log.later("epoch_start", 1000 * time_s)
    log.inside("epoch_throughput", images=images, time_s=time_s, images_per_s=images / time_s, data_wait_s=wait_s)
    return log


@pytest.mark.parametrize(("make", "blocks"), [(run, 1), (run, 2), (closed_run, 3), (closed_hrnet_run, 2)])
def test_a_resumed_run_is_refused_for_that_alone(make: Callable[..., str], blocks: int, tmp_path: Path) -> None:
    _, [file] = check(*write(tmp_path, _resumed(make, blocks=blocks).text))
    assert [(f["rule"], f["severity"]) for f in file["findings"] if f["severity"] != "info"] == [("run-mode", "error")]


@pytest.mark.parametrize(("make", "blocks"), [(run, 1), (run, 2), (closed_run, 3), (closed_hrnet_run, 2)])
def test_a_run_resumed_after_an_epochs_last_step_has_no_throughput_of_it(make, blocks: int, tmp_path: Path) -> None:
    log = _resumed(make, blocks=blocks).drop("epoch_throughput")
    _, [file] = check(*write(tmp_path, log.text))
    assert "epoch_throughput of" in str(file)
    window = log.fields(log.at("step_window"))["value"]
    log.drop("rank_times").drop("step_window").later("epoch_start", 1000 * window["time_s"])
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == {"run-mode"}
    _, [file] = check(*write(tmp_path, log.inside("run_summary", resumed=False).text))
    assert "epoch_throughput of" in str(file)


@pytest.mark.parametrize(("part", "passes"), [("epoch", True), ("block", True), ("eval", False)])
def test_only_training_without_a_step_after_a_resume_takes_no_time(part: str, passes: bool, tmp_path: Path) -> None:
    """A run that goes on after an epoch's last step logs the start and the stop of this epoch in one millisecond."""
    log = _resumed(run, blocks=1).drop("epoch_throughput").drop("rank_times").drop("step_window")
    moment_ms = log.fields(log.at(f"{part}_stop"))["time_ms"]
    if part == "block":  # one that ends without an evaluation
        log.drop("eval_start").drop("eval_stop").drop("eval_accuracy")
        log.change("epoch_start", lambda fields: fields.update(time_ms=moment_ms))
        log.change("epoch_stop", lambda fields: fields.update(time_ms=moment_ms))
    log.change(f"{part}_start", lambda fields: fields.update(time_ms=moment_ms))
    _, [file] = check(*write(tmp_path, log.text))
    assert ("epoch-time" in rules_broken(file)) is not passes
    _, [file] = check(*write(tmp_path, log.inside("run_summary", resumed=False).text))
    assert "epoch-time" in rules_broken(file)


def test_the_last_step_of_an_epoch_is_no_fast_epoch_of_a_resumed_run(tmp_path: Path) -> None:
    size: dict[str, Any] = {"samples": (1281167, 50000), "batch": 32, "devices": 8, "cores": 4096, "epoch_ms": 500_000}
    log = _resumed(lambda **changes: run(**size, **changes), blocks=1)
    log.later("epoch_start", 1000 * (log.fields(log.at("step_window"))["value"]["time_s"] - 0.1))
    log.inside("step_window", steps=1, images=256, time_s=0.1, data_wait_s=0.01)
    log.inside("rank_times", data_wait_most_s=0.015, compute_least_s=0.08, compute_median_s=0.08, compute_most_s=0.09)
    log.inside("epoch_throughput", images=256, time_s=0.1, images_per_s=2560.0, data_wait_s=0.01)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == {"run-mode"}


def test_the_epochs_of_a_resumed_run_are_still_numbered_without_a_gap(tmp_path: Path) -> None:
    log = _resumed(lambda **changes: run(epochs=5, **changes), blocks=1)
    del log.lines[log.at("block_start", 1) : log.at("block_stop", 1) + 1]
    _, [file] = check(*write(tmp_path, log.text))
    assert {"run-mode", "own-log"} <= rules_broken(file) and "epoch_start of epoch 4; 3 is due" in str(file)


@pytest.mark.parametrize(("status", "allowed"), [("aborted", True), ("success", False)])
def test_a_run_that_a_signal_ended_has_one_checkpoint_more(status: str, allowed: bool, tmp_path: Path) -> None:
    log = by.settings(Altered(run(status=status)), CHECKPOINT_MINUTES=15)
    log.add_after("step_window", by.checkpoint(log, step=132, number=-1), -1).inside("checkpoint", blocked_s=0.001)
    _, [file] = check(*write(tmp_path, log.text))
    assert ("a checkpoint of step 132" not in str(file)) == allowed


@pytest.mark.parametrize(("room_ms", "passes"), [(1000, True), (900, True), (500, False)])
def test_the_wait_for_a_checkpoint_after_an_epoch_is_a_time_of_the_run(
    room_ms: int, passes: bool, tmp_path: Path
) -> None:
    """It took 1 s, between the evaluation of the first epoch and the second epoch."""
    log = clock(by.settings(Altered(run()), CHECKPOINT_EPOCHS=1), lambda ms: ms + room_ms, "block_start", 1)
    log.add_after("step_window", by.checkpoint(log, step=44, number=2), 2)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == ([] if passes else [("own-log", None)])
    assert passes or "a wait of 1 s for the checkpoint after epoch 1" in str(file)


def test_a_throughput_run_owes_no_epochs_of_its_recipe(tmp_path: Path) -> None:
    kept = (
        "run_start",
        "run_stop",
        "init_start",
        "init_stop",
        "cache_clear",
        "seed",
        "run_summary",
        "submission",
        "opt",
    )
    log = by.settings(Altered(run(summary={"mode": "throughput"})), WARMUP_STEPS=0, MEASURED_STEPS=0)
    texts = [line for line in log.lines if by.TOKEN not in line or any(f'"key": "{key}' in line for key in kept)]
    _, [file] = check(*write(tmp_path, "\n".join(texts)))
    assert "run-mode" in rules_broken(file) and "it ends in epoch" not in str(file)


@pytest.mark.parametrize(
    ("forged", "passes"),
    [
        ({}, True),
        ({"mib": 0.0}, True),  # of a network of a few kB
        ({"file": "step_000000044.safetensors"}, False),
        ({"file": "22.safetensors"}, False),
        ({"mib": -1.0}, False),
        ({"blocked_s": -1.0}, False),
        ({"blocked_s": 0.0, "mib": 0.1}, True),  # of a network of a few kB
        ({"blocked_s": 0.0}, False),
        ({"write_s": 0.0}, False),
        ({"blocked_s": 0.002, "write_s": 0.02}, True),  # 50 GB/s, 5 GB/s
        ({"blocked_s": 1.9}, True),  # by which a window of 18 s may be late, a tenth, and a hundredth
        ({"blocked_s": 2.1}, False),
        ({"blocked_s": 20.0}, False),
    ],
)
def test_a_checkpoint_has_the_file_of_its_step(forged: dict[str, Any], passes: bool, tmp_path: Path) -> None:
    log = Altered(run())
    log.add_after("step_window", by.checkpoint(log, step=22), 0).inside("checkpoint", **forged)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == ([] if passes else [("own-log", log.at("checkpoint") + 1)])


@pytest.mark.parametrize(("commit", "passes"), [("1a2b3c4", True), ("a" * 64, True), ("1a2b3c", False)])
def test_a_commit_is_as_long_as_source_commit_may_be(commit: str, passes: bool, tmp_path: Path) -> None:
    """An image may have been built with a short one."""
    _, [file] = check(*write(tmp_path, run().replace("0" * 40, commit)))
    assert errors(file) == ([] if passes else [("own-log", None)])


def test_a_throughput_without_its_epoch_is_told_once(tmp_path: Path) -> None:
    log = Altered(run()).without_metadata("epoch_throughput", "epoch_num", 1)
    status, [file] = check(*write(tmp_path, log.text))
    line = log.at("epoch_throughput", 1) + 1
    [finding] = [finding for finding in file["findings"] if finding["line"] == line]
    assert status == 1 and finding["rule"] == "throughput-agrees" and "epoch_num" in finding["actual"]


def test_of_a_clock_that_was_set_ahead_within_an_epoch_the_message_speaks_of_the_clock(tmp_path: Path) -> None:
    log = Altered(run())
    for index in log.events()[log.events().index(log.at("epoch_stop")) :]:
        fields = log.fields(index)
        log.write(index, fields | {"time_ms": fields["time_ms"] + 3_600_000})
    status, [file] = check(*write(tmp_path, log.text))
    [finding] = [one for one in file["findings"] if one["rule"] == "throughput-agrees"]
    assert status == 1 and "the clock was set ahead" in finding["actual"]


@pytest.mark.parametrize(
    ("key", "setting", "value", "says"),
    [
        ("sgd_opt_momentum", "RECIPE_optimizer.momentum", 5.0, "5, not below 1"),
        ("sgd_opt_momentum", "RECIPE_optimizer.momentum", -0.5, "-0.5, below 0"),
        ("sgd_opt_momentum", "RECIPE_optimizer.momentum", 0.0, ""),
        ("sgd_opt_weight_decay", "RECIPE_optimizer.weight_decay", -1e-4, "-0.0001, below 0"),
        ("opt_learning_rate_warmup_epochs", "RECIPE_warmup_epochs", -3.0, "-3, below 0"),
        ("opt_learning_rate_warmup_epochs", "RECIPE_warmup_epochs", 0.0, ""),
    ],
)
def test_an_open_run_has_hyperparameters_with_which_one_can_train(
    key: str, setting: str, value: float, says: str, tmp_path: Path
) -> None:
    log = by.settings(Altered(run()).value(key, value), **{setting: value})
    status, [file] = check(*write(tmp_path, log.text))
    wanted = [("own-log", log.at(key) + 1)] if says else []
    assert (status, errors(file)) == (len(wanted), wanted)
    assert says in str(file)


def test_each_hyperparameter_of_an_optimizer_is_held_against_the_recipe() -> None:
    """By its row of own_log.yaml, or where the batch counts too by `repeated_values.py`."""
    of_the_batch = {"base_learning_rate", "learning_rate_decay_steps"}
    settings = own_log_rules().setting_by_hyperparameter
    for name, optimizer in schema.OPTIMIZERS.items():
        assert optimizer.hyperparameters.keys() - of_the_batch - settings.keys() == set(), name


@pytest.mark.parametrize(
    ("mious", "passes"),
    [
        ((0.8, 0.8, 0.8, 0.81), False),
        ((0.6, 0.8, 0.8, 0.81), True),
        ((0.05, 0.05, 0.05, 0.81), True),  # all pixels of one class
    ],
)
def test_no_mean_iou_stands_still_while_weights_train(mious: tuple[float, ...], passes: bool, tmp_path: Path) -> None:
    log = Altered(hrnet_run(epochs=4, accuracies=mious, target=0.81))
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == ([] if passes else [("own-log", log.at("eval_accuracy", 2) + 1)])


@pytest.mark.parametrize(
    ("accuracy", "passes"), [(271 / 360, True), (0.7527777777777778, True), (0.7528, False), (0.75278, False)]
)
def test_an_accuracy_has_all_digits_of_its_share(accuracy: float, passes: bool, tmp_path: Path) -> None:
    """0.7528 of 360 samples is 271.008."""
    log = Altered(run()).value("eval_accuracy", accuracy, 1)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == ([] if passes else [("own-log", log.at("eval_accuracy", 1) + 1)])


@pytest.mark.parametrize(
    ("settings", "too_many"),
    [
        ({"RECIPE_eval_every_epochs": 2}, 1),
        ({"RECIPE_eval_every_epochs": 2, "RECIPE_eval_offset_epochs": 1}, 2),
        ({"RECIPE_eval_every_epochs": 3, "MAX_EPOCHS": 3}, 1),
    ],
)
def test_an_evaluation_that_the_recipe_does_not_ask_for_is_refused(
    settings: dict[str, int], too_many: int, tmp_path: Path
) -> None:
    log = by.settings(Altered(run()), **settings)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == [("own-log", log.at("eval_accuracy", too_many - 1) + 1)]
    assert f"epoch {too_many} was evaluated, which RECIPE.eval_every_epochs" in str(file)


@pytest.mark.parametrize("settings", [{"RECIPE_epochs": 3}, {"MAX_EPOCHS": 3}, {"RECIPE_epochs": None}])
def test_the_last_epoch_is_evaluated_whatever_the_period(settings: dict[str, int | None], tmp_path: Path) -> None:
    """None: HRNet's plan may be a number of steps."""
    log = by.settings(Altered(run()), RECIPE_eval_every_epochs=2, **settings)
    _without_evaluation(log, 0)
    log.value("sgd_opt_learning_rate_decay_steps", 100)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == []


def test_training_ends_with_the_evaluation_that_reaches_the_target(tmp_path: Path) -> None:
    log = Altered(run()).value("eval_accuracy", 350 / 360, 1)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == [("own-log", log.at("eval_accuracy", 1) + 1)]
    assert "epoch 2 reached the target 0.9, and the run trained on to epoch 3" in str(file)


# What the recipe digits_small fixes, and a run of it with IMAGE_SIZE=0.
DIGITS_SMALL = {
    "RECIPE_name": "digits_small",
    "RECIPE_target_top1": 0.9,
    "RECIPE_epochs": 4,
    "RECIPE_eval_every_epochs": 1,
    "RECIPE_image_size": 64,
    "RECIPE_classes": 10,
}


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({}, ""),
        ({"RECIPE_target_top1": 0.89}, "RECIPE.target_top1 is 0.89; by the recipe digits_small it is 0.9"),
        ({"RECIPE_image_size": 32}, "RECIPE.image_size is 32; by the recipe digits_small it is 64"),
        ({"RECIPE_image_size": 32, "IMAGE_SIZE": 32}, ""),
        ({"RECIPE_target_top1": 0.89, "RECIPE_name": "digits_quick"}, ""),  # another recipe may have any target
    ],
)
def test_a_recipe_of_ours_has_its_own_target_and_image_size(
    changed: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    log = by.settings(Altered(run(epochs=4, eval_every=1)), **DIGITS_SMALL | changed)
    _, [file] = check(*write(tmp_path, log.text))
    found = [finding["actual"] for finding in file["findings"] if finding["severity"] == "error"]
    assert found == ([refused] if refused else [])
