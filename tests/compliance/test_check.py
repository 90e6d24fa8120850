"""`python -m compliance check`, by its command: each rule has a log that breaks it, and one that does not."""

import hashlib
import importlib.metadata
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compliance import rules
from compliance.__main__ import main
from compliance.check import Checker
from compliance.official import tools as official
from compliance.submission.description import compare_description, over_peak
from runlog.reader import read_text
from tests import jobs, make_log
from tests.compliance.altered import TOKEN, Altered, foreign

Alter = Callable[[Altered], Altered]
STRICT = rules.load("4.0.0").strict


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and files of `check --json`."""
    status = main(["check", "--json", *map(str, arguments)])
    output = capsys.readouterr()
    assert not output.err
    return status, json.loads(output.out)["files"]


def errors(file: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(f["rule"], f["line"]) for f in file["findings"] if f["severity"] == "error"]


def rules_broken(file: dict[str, Any]) -> set[str]:
    return {rule for rule, _ in errors(file)}


@pytest.mark.parametrize(
    "text",
    [
        make_log.run(),
        make_log.run(epochs=1),
        make_log.run(benchmark="resnet", eval_every=2, epochs=5),
        make_log.closed_run(),
        make_log.closed_run(hyperparameters=make_log.SGD),
        make_log.hrnet_run(),
        make_log.closed_hrnet_run(),
    ],
    ids=["open", "one epoch", "blocks of two", "closed lars", "closed sgd", "hrnet", "hrnet closed"],
)
def test_a_good_log_passes(text: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "result_0.txt").write_text(text)
    status, [file] = check(capsys, tmp_path / "result_0.txt")
    assert (status, file["verdict"], errors(file)) == (0, "pass", [])


# What breaks a rule of the official checker too: rule, start, alteration, key of the blamed line (None: no line).
OFFICIAL: list[tuple[str, Callable[[], str], Alter, str | None]] = [
    ("submission_org.count", make_log.run, lambda log: log.drop("submission_org"), None),
    ("submission_org.value", make_log.run, lambda log: log.value("submission_org", ""), "submission_org"),
    (
        "submission_division.value",
        make_log.run,
        lambda log: log.value("submission_division", "x"),
        "submission_division",
    ),
    ("submission_status.value", make_log.run, lambda log: log.value("submission_status", "x"), "submission_status"),
    ("cache_clear.count", make_log.run, lambda log: log.drop("cache_clear"), None),
    ("init_start.order", make_log.run, lambda log: log.move_after("init_start", "run_start"), "init_start"),
    ("init_stop.order", make_log.run, lambda log: log.drop("init_start"), "init_stop"),
    ("init_stop.time", make_log.closed_run, lambda log: log.later("init_start", -1.8e6), "init_stop"),
    ("init_stop.time", make_log.run, lambda log: log.move_after("submission_division", "run_stop"), "init_stop"),
    ("run_start.order", make_log.run, lambda log: log.move_after("init_stop", "run_start"), "run_start"),
    ("run_stop.metadata", make_log.run, lambda log: log.without_metadata("run_stop", "status"), "run_stop"),
    ("run_stop.count", make_log.run, lambda log: log.drop("run_stop"), None),
    ("block_start.metadata", make_log.run, lambda log: log.metadata("block_start", epoch_count=0), "block_start"),
    ("epoch_stop.metadata", make_log.run, lambda log: log.without_metadata("epoch_stop", "epoch_num"), "epoch_stop"),
    ("epoch_start.count", make_log.run, lambda log: log.drop_all("epoch_start").drop_all("block_start"), None),
    ("eval_accuracy.count", make_log.run, lambda log: log.drop_all("eval_accuracy"), None),
    ("eval_accuracy.value", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.758, -1), "eval_accuracy"),
    ("train_samples.count", make_log.run, lambda log: log.repeat("train_samples").value("train_samples", 1438), "*"),
    ("global_batch_size.value", make_log.closed_run, lambda log: log.value("global_batch_size", 0), "*"),
    (
        "gradient_accumulation_steps.count",
        make_log.closed_run,
        lambda log: log.drop("gradient_accumulation_steps"),
        None,
    ),
    ("opt_name.value", make_log.closed_run, lambda log: log.value("opt_name", "adam"), "opt_name"),
    ("lars_epsilon.value", make_log.closed_run, lambda log: log.value("lars_epsilon", 1e-9), "lars_epsilon"),
    (
        "lars_opt_weight_decay.value",
        make_log.closed_run,
        lambda log: log.value("lars_opt_weight_decay", 6e-5),
        "lars_opt_weight_decay",
    ),
    (
        "sgd_opt_base_learning_rate.value",
        lambda: make_log.closed_run(hyperparameters=make_log.SGD),
        lambda log: log.value("sgd_opt_base_learning_rate", 0.1005),
        "sgd_opt_base_learning_rate",
    ),
    (
        "eval_accuracy.value",
        make_log.closed_hrnet_run,
        lambda log: log.value("eval_accuracy", 0.7896, -1),
        "eval_accuracy",
    ),
]

ONLY_WARNS = ("event-type", "line-encoding")
# What only this checker rejects, or warns of.
OURS: list[tuple[str, Callable[[], str], Alter, str | None]] = [
    ("line-json", make_log.run, lambda log: log.line("step_window", lambda line: line.replace("18.0", "NaN")), "*"),
    ("event-type", make_log.run, lambda log: log.line("seed", lambda line: line.replace("POINT", "point")), "*"),
    ("line-fields", make_log.run, lambda log: log.line("seed", lambda line: line.replace('"key"', '"no"')), "*"),
    ("line-duplicate-key", make_log.run, lambda log: log.line("seed", lambda s: s.replace("{", '{"key": 1, ', 1)), "*"),
    ("line-encoding", make_log.run, lambda log: log.line("seed", _latin_1), "*"),
    ("line-trailing-text", make_log.run, lambda log: log.line("seed", lambda line: line + "\x1b[0m"), "*"),
    ("line-several-events", make_log.run, lambda log: log.line("seed", lambda line: line * 2), "*"),
    ("line-oversized", make_log.run, lambda log: log.value("seed", "1" * 2**20), "*"),
    ("line-nul", make_log.run, lambda log: log.add_after("seed", "\0\0"), "*"),
    ("exactly-once", make_log.run, lambda log: log.repeat("run_start"), "run_start"),
    ("value-type", make_log.run, lambda log: log.value("train_samples", 1437.5), "train_samples"),
    ("label-type", make_log.run, lambda log: log.value("submission_org", None), "submission_org"),
    ("label-type", make_log.closed_run, lambda log: log.value("lars_epsilon", False), "lars_epsilon"),
    ("event-type", make_log.run, lambda log: log.change("run_start", _point_in_time), "run_start"),
    ("known-benchmark", make_log.run, lambda log: log.value("submission_benchmark", "vgg"), "submission_benchmark"),
    ("after-run-stop", make_log.run, lambda log: log.move_after("eval_accuracy", "run_stop", -1), "eval_accuracy"),
    ("after-run-stop", make_log.run, lambda log: log.move_after("run_stop", "eval_start"), "eval_accuracy"),
    ("open-at-stop", make_log.run, lambda log: log.move_after("run_stop", "eval_start"), "eval_stop"),
    ("line-order", make_log.run, lambda log: log.later("eval_accuracy", -50, 1), "eval_accuracy"),
    ("time-order", make_log.run, lambda log: log.later("epoch_start", -25_000, 1), "*"),
    ("label-time", make_log.run, lambda log: log.move_after("seed", "run_start"), "seed"),
    ("run-time", make_log.run, lambda log: log.later("run_stop", -1e6), "run_stop"),
    ("epoch-order", make_log.run, lambda log: log.metadata("epoch_start", 1, epoch_num=7), "*"),
    ("epoch-order", make_log.run, lambda log: log.metadata("epoch_stop", 1, epoch_num=1), "*"),
    ("open-at-stop", make_log.run, lambda log: log.drop("epoch_stop", -1), "run_stop"),
    ("epoch-order", make_log.run, lambda log: log.repeat("epoch_start", 1), "*"),
    ("epoch-order", make_log.run, lambda log: log.metadata("epoch_start", epoch_num="1"), "epoch_start"),
    ("block-order", make_log.run, lambda log: log.drop("block_stop", -1), "run_stop"),
    ("block-order", make_log.run, lambda log: log.metadata("block_start", 1, first_epoch_num=3), "*"),
    ("block-order", make_log.run, lambda log: log.metadata("block_start", 1, epoch_count=2), "*"),
    ("block-order", make_log.run, lambda log: log.drop("block_start", 1), "*"),
    ("eval-order", make_log.run, lambda log: log.metadata("eval_accuracy", 1, epoch_num=3), "*"),
    ("open-at-stop", make_log.run, lambda log: log.drop("eval_stop", -1), "run_stop"),
    ("eval-order", make_log.run, lambda log: log.drop("eval_accuracy"), "*"),
    ("eval-order", make_log.run, lambda log: log.repeat("eval_accuracy"), "*"),
    ("eval-order", make_log.run, lambda log: _without_evaluations_and_blocks(log), "*"),
    ("eval-schedule", make_log.closed_run, lambda log: _drop_evaluation(log, 2), "*"),
    ("eval-schedule", lambda: make_log.closed_run(epochs=35, eval_every=5), lambda log: log, "*"),
    ("eval-means", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.123456, 0), "eval_accuracy"),
    ("eval-means", make_log.run, lambda log: log.value("eval_accuracy", 0.3125, 0), "eval_accuracy"),
    ("eval-samples", make_log.closed_run, lambda log: _of_samples(log, 49_500), "eval_accuracy"),
    ("value-type", make_log.hrnet_run, lambda log: log.value("eval_accuracy", -0.1, 0), "eval_accuracy"),
    ("value-type", make_log.run, lambda log: log.value("eval_accuracy", 5.0, -1), "eval_accuracy"),
    ("eval-late", make_log.closed_run, lambda log: _of_epoch(log, 34), "eval_start"),
    ("accuracy-curve", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.4, 7), "eval_accuracy"),
    ("eval-padding", make_log.closed_run, lambda log: _padded(log), "eval_accuracy"),
    ("closed-data", lambda: make_log.closed_run(samples=(1281000, 50_000)), lambda log: log, "train_samples"),
    ("data-label", lambda: make_log.closed_run(samples=(1281167, 49_984)), lambda log: log, "eval_samples"),
    ("target-status", make_log.closed_run, lambda log: log.metadata("run_stop", status="aborted"), "*"),
    ("target-status", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.7, -1), "*"),
    ("target-status", lambda: make_log.run(target=0.97), lambda log: log, "*"),
    ("target-status", lambda: make_log.run(status="aborted"), lambda log: log, "*"),
    ("run-status", make_log.run, lambda log: log.metadata("run_stop", status="aborted"), "run_stop"),
    ("rank-zero", make_log.run, lambda log: log.line("epoch_stop", lambda line: f"[1,3]<stdout>:{line}"), "epoch_stop"),
    ("rank-zero", make_log.run, lambda log: log.metadata("epoch_stop", rank=1), "epoch_stop"),
    ("cache-cleared", make_log.closed_run, lambda log: log.metadata("cache_clear", status="skipped"), "cache_clear"),
    ("cache-cleared", make_log.closed_run, lambda log: log.value("cache_clear", False), "cache_clear"),
    ("throughput-agrees", make_log.run, lambda log: log.change("epoch_throughput", _more("images_per_s", 1.02)), "*"),
    ("throughput-agrees", make_log.run, lambda log: log.change("epoch_throughput", _both_faster), "*"),
    ("throughput-agrees", make_log.run, lambda log: log.value("epoch_throughput", {"images": 3}), "*"),
    ("epoch-images", make_log.run, lambda log: log.change("epoch_throughput", _fewer_images), "*"),
    ("before-run-start", make_log.run, lambda log: log.move_after("run_start", "epoch_start"), "*"),
    ("epoch-time", make_log.run, lambda log: _in_no_time(log), "*"),
    ("own-log", make_log.run, lambda log: log.drop("run_summary"), None),
    ("own-log", make_log.run, lambda log: _without_resumed(log), "run_summary"),
    *(
        ("own-log", make_log.run, lambda log, key=key, value=value: log.value(key, value), key)
        for key, value in (
            *(("submission_org", "Other"), ("submission_platform", "DGX"), ("submission_status", "cloud")),
            *(("submission_division", "closed"), ("global_batch_size", 64), ("train_samples", 1440), ("seed", 7)),
            *(("eval_samples", 720), ("opt_name", "adam"), ("telemetry_summary", {"samples": 1})),
        )
    ),
    *(
        ("own-log", make_log.run, lambda log, old=old, new=new: _header(log, old, new), key)
        for old, new, key in (
            ('"WORKLOAD": {"value": "rn50"', '"WORKLOAD": {"value": "hrnet"', "submission_benchmark"),
            ('"MODE": {"value": "train"', '"MODE": {"value": "throughput"', "run_summary"),
            ('"DATA": {"value": "real"', '"DATA": {"value": "synthetic"', "run_summary"),
            ('"PRECISION": {"value": "fp32"', '"PRECISION": {"value": "amp_o2"', "run_summary"),
            ('"BATCHSIZE": {"value": 16', '"BATCHSIZE": {"value": 8', "run_summary"),
            ('"DGXNNODES": {"value": 1', '"DGXNNODES": {"value": 2', "run_summary"),
            ('"DGXNGPU": {"value": 2', '"DGXNGPU": {"value": [2]', "run_summary"),
            ('"PROFILE": {"value": ""', '"PROFILE": {"value": "steps:1-2"', "run_summary"),
            ('"TELEMETRY_S": {"value": 1', '"TELEMETRY_S": {"value": 0', "telemetry_summary"),
            ('"PRINT_STEPS": {"value": 22', '"PRINT_STEPS": {"value": 11', "step_window"),
            ('"SEED": {"value": 1', '"SEED": {"value": 2', "seed"),
            ('"math_mode": "fp32"', '"math_mode": "tf32"', "run_summary"),
            ('"device": "cpu"', '"device": "gpu"', "run_summary"),
            ('"synthetic": false', '"synthetic": true', "run_summary"),
            ('"commit": "0', '"commit": "g', None),
            ('"image_digest": null', '"image_digest": "latest"', None),
            ('"DGXSYSTEM": {', '"SYSTEM": {', None),
        )
    ),
    *(
        ("own-log", make_log.run, alter, key)
        for alter, key in (
            (lambda log: log.move_after("telemetry_summary", "run_start"), "telemetry_summary"),
            (lambda log: log.change("run_summary", lambda fields: fields["value"].update(resumed=True)), "run_summary"),
            (lambda log: log.change("run_summary", lambda fields: fields["value"].update(devices=0)), "*"),
            (lambda log: _aborted_with_success(log), "abort_reason"),
            (lambda log: _window(log, steps=44), "step_window"),
            (lambda log: _window(log, images=700), "step_window"),
            (lambda log: _window(log, time_s=17.9), "epoch_throughput"),
            (lambda log: _window(log, time_s=-18.0), "step_window"),
            (lambda log: _window(log, data_wait_s=18.1), "step_window"),
            (lambda log: _window(log, data_wait_s=0.02), "epoch_throughput"),
            (lambda log: _window(log, loss="low"), "step_window"),
            (lambda log: log.metadata("step_window", 1, step=43), "step_window"),
            (lambda log: log.metadata("step_window", 1, step="44"), "step_window"),
            (lambda log: log.metadata("step_window", 1, epoch_num=2), "step_window"),
            (lambda log: log.metadata("step_window", 1, phase="measured"), "step_window"),
            (lambda log: log.later("step_window", -3000), "step_window"),
            (lambda log: log.add_after("step_window", _checkpoint(log, step=23), 0), "checkpoint"),
        )
    ),
    ("cache-cleared", make_log.closed_run, lambda log: log.value("cache_clear", "no"), "cache_clear"),
    ("cache-cleared", make_log.closed_run, lambda log: log.later("cache_clear", 3e4), "cache_clear"),
    ("cache-order", make_log.closed_run, lambda log: log.later("cache_clear", -3.7e6), "cache_clear"),
    ("cache-order", make_log.closed_run, lambda log: log.move_after("cache_clear", "run_start"), "cache_clear"),
    ("run-resumed", lambda: make_log.run(summary={"resumed": True}), lambda log: log, "run_summary"),
    ("run-profiled", lambda: make_log.run(summary={"profiled": True}), lambda log: log, "run_summary"),
    ("null-gpu", make_log.run, lambda log: _of_null_gpus(log), "*"),
    ("run-mode", lambda: make_log.run(summary={"mode": "throughput"}), lambda log: log, "run_summary"),
    ("run-mode", lambda: make_log.run(summary={"data": "synthetic"}), lambda log: log, "run_summary"),
]  # fmt: skip


def _of_epoch(log: Altered, epoch: int) -> Altered:
    """The last evaluation is of this epoch."""
    for key in ("eval_start", "eval_stop", "eval_accuracy"):
        log.metadata(key, -1, epoch_num=epoch)
    return log


def _of_samples(log: Altered, samples: int) -> Altered:
    """The accuracies are of fewer samples than the set has."""
    for number in range(9):
        log.change("eval_accuracy", lambda f: f.update(value=(round(f["value"] * samples) + 1) / samples), number)
    return log


def _padded(log: Altered) -> Altered:
    """1,200 images of padding count as right in each evaluation."""
    for number in range(9):
        log.change("eval_accuracy", lambda f: f.update(value=(round(f["value"] * 50_000) + 1200) / 51_200), number)
    return log


def _without_resumed(log: Altered) -> Altered:
    return log.change("run_summary", lambda fields: fields["value"].pop("resumed"))


def _header(log: Altered, old: str, new: str) -> Altered:
    [index] = [index for index, line in enumerate(log.lines) if line.startswith("# {") and old in line]
    log.lines[index] = log.lines[index].replace(old, new)
    return log


def _aborted_with_success(log: Altered) -> Altered:
    return log.repeat("seed").change("seed", lambda fields: fields.update(key="abort_reason", value="killed"))


def _window(log: Altered, **changed: Any) -> Altered:
    """The second window with another value."""
    return log.change("step_window", lambda fields: fields["value"].update(changed), 1)


def _checkpoint(log: Altered, *, step: int, number: int = 0) -> str:
    """The event of one that took 1 s of the training, with the time of a window."""
    value = {"step": step, "file": "x", "mib": 97.5, "blocked_s": 1.0, "write_s": 2.5}
    fields = log.fields(log.at("step_window", number))
    return TOKEN + json.dumps(fields | {"key": "checkpoint", "value": value})


def _in_no_time(log: Altered) -> Altered:
    """The first epoch ends when it starts; nothing else moves."""
    start_ms = log.fields(log.at("epoch_start"))["time_ms"]
    for index in log.events()[log.events().index(log.at("epoch_start")) : log.events().index(log.at("epoch_stop")) + 1]:
        log.write(index, log.fields(index) | {"time_ms": start_ms})
    return log


def _without_evaluations_and_blocks(log: Altered) -> Altered:
    for key in ("eval_start", "eval_stop", "block_start", "block_stop"):
        log.drop_all(key)
    return log


def _of_null_gpus(log: Altered) -> Altered:
    gpus = json.dumps([{"name": "Null GPU (nothing is computed)", "memory_gib": 40.0, "driver": "520.61.05"}])
    log.lines = [line.replace('"gpus": []', f'"gpus": {gpus}') for line in log.lines]
    return log


def _latin_1(line: str) -> str:
    return line.replace("make_log", "\udcff")  # the byte 0xff, by surrogateescape


def _point_in_time(fields: dict[str, Any]) -> None:
    fields["event_type"] = "POINT_IN_TIME"


def _more(name: str, factor: float) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        fields["value"][name] *= factor

    return change


def _both_faster(fields: dict[str, Any]) -> None:
    """A rate that agrees with its own time, which the clock of the log does not bear out."""
    fields["value"]["time_s"] /= 1.02
    fields["value"]["images_per_s"] *= 1.02


def _fewer_images(fields: dict[str, Any]) -> None:
    fields["value"]["images"] -= 64
    fields["value"]["images_per_s"] = fields["value"]["images"] / fields["value"]["time_s"]


def _drop_evaluation(log: Altered, number: int) -> Altered:
    return log.drop("eval_start", number).drop("eval_stop", number).drop("eval_accuracy", number)


@pytest.mark.parametrize(
    ("rule", "start", "alter", "key"),
    OFFICIAL + OURS,
    ids=lambda v: v if isinstance(v, str) else getattr(v, "__name__", ""),
)
def test_a_log_that_breaks_a_rule_is_rejected_at_its_line(rule, start, alter, key, tmp_path: Path, capsys) -> None:
    log = alter(Altered(start()))
    path = tmp_path / "result_0.txt"
    path.write_text(log.text, encoding="utf-8", errors="surrogateescape")
    status, [file] = check(capsys, path)
    form = rule in STRICT and STRICT[rule].kind == "form"
    if rule in ONLY_WARNS:
        assert (status, file["verdict"], errors(file)) == (0, "pass", [])
    else:
        assert (status, file["verdict"]) == (1, "fail")
        assert file["official"] == ("fail" if (rule, start, alter, key) in OFFICIAL else file["official"])
        assert not form or "own-log" in rules_broken(file)  # what our writer never writes, others may
    wanted = "warning" if form else "error"
    lines = [f["line"] for f in file["findings"] if (f["rule"], f["severity"]) == (rule, wanted)]
    assert lines, f"{rule} is not among {errors(file)}"
    if key is None:
        assert lines == [None]
    elif key == "*":
        assert all(line and 1 <= line <= len(log.lines) for line in lines)
    else:
        blamed = log.lines[lines[0] - 1]
        assert f'"key": "{key}"' in blamed
    [finding, *_] = [f for f in file["findings"] if f["rule"] == rule]
    names = {"rule", "severity", "line", "expected", "actual", "fix", "class", "source", "official"}
    assert set(finding) == names
    assert finding["class"] in ("rule", "form", "plausibility")
    assert finding["source"]
    assert finding["expected"]
    assert finding["actual"]
    assert finding["fix"]


def test_every_strict_rule_has_a_log_that_breaks_it() -> None:
    between_runs_or_tools = {
        *("seeds-differ", "same-configuration", "rcp-convergence", "rcp-hyperparameters", "system-description"),
        *("official-disagrees", "benchmark-asked", "file-link", "runs-differ", "same-hyperparameters"),
    }
    in_force = {name for name, rule in STRICT.items() if rule.in_force}
    assert {rule for rule, *_ in OURS} == in_force - between_runs_or_tools


def test_blanks_in_its_texts_make_no_other_submission_of_a_copied_run(tmp_path: Path, capsys) -> None:
    text = make_log.run()
    paths = write(tmp_path, *(text.replace('"Example"', f'"Example{" " * blanks}"') for blanks in range(3)))
    status, files = check(capsys, *paths)
    assert (status, rules_broken(files[0])) == (1, set())
    assert all(rules_broken(file) == {"seeds-differ", "runs-differ"} for file in files[1:])
    assert any(f["rule"] == "same-configuration" for f in files[1]["findings"])


@pytest.mark.parametrize(
    "alter",
    [
        lambda log: log.drop("seed"),  # "from v4.1 onwards"
        lambda log: log.value("lars_opt_learning_rate_decay_steps", 14523.5),  # "unconstrained"
        lambda log: log.drop_all("eval_start").drop_all("eval_stop"),  # AT_LEAST_ONE_OR(block_start)
        lambda log: log.line("eval_accuracy", lambda line: re.sub(r'("epoch_num": \d+)', r"\1.0", line)),
        lambda log: log.change("submission_org", lambda fields: fields.update(time_ms=0)),
        lambda log: log.later("opt_name", 1e9).value("lars_opt_learning_rate_decay_steps", "pow2"),
        lambda log: log.later("init_start", 1e8).later("init_stop", 1e8),  # written afterwards
        lambda log: log.value("eval_accuracy", 0.76, 3),  # "The clock may be stopped as soon as"
        lambda log: log.value("eval_accuracy", 0.77, 3).value("eval_accuracy", 0.7, -1),
        lambda log: (
            log.drop_all("eval_start")
            .drop_all("eval_stop")
            .move_after("eval_accuracy", "block_stop", -1)
            .later("eval_accuracy", 1, -1)
        ),
        lambda log: _padded(log),
        lambda log: log.change("init_start", lambda fields: fields.update(event_type="POINT")),
        lambda log: log.change("eval_accuracy", lambda fields: fields.update(value=round(fields["value"], 6)), 1),
    ],
)
def test_what_the_text_of_the_round_allows_is_no_error(alter: Alter, tmp_path: Path, capsys) -> None:
    [path] = write(tmp_path, alter(Altered(foreign(make_log.closed_run()))).text)
    _, [file] = check(capsys, path, "--verdict", "strict")
    assert (file["strict"], errors(file)) == ("pass", [])


def test_throughputs_of_other_submitters_are_compared_with_their_epochs(published_logs: Path, tmp_path, capsys) -> None:
    log = Altered((published_logs / "mlperf_v2.1_dgxa100_resnet" / "result_0.txt").read_text())
    path = tmp_path / "result_0.txt"
    path.write_text(log.text)
    assert check(capsys, path)[0] == 0
    for key, change in (
        ("throughput", lambda fields: fields.update(value=fields["value"] * 1.02)),
        ("tracked_stats", lambda fields: fields["value"].update(imgs_sec=fields["value"]["imgs_sec"] * 0.98)),
    ):
        altered = Altered(log.text).change(key, change, 5)
        path.write_text(altered.text)
        assert errors(check(capsys, path)[1][0]) == [("throughput-agrees", altered.at(key, 5) + 1)]


def test_rules_that_do_not_apply_say_so(tmp_path: Path, capsys) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(make_log.run(target=None))
    _, [file] = check(capsys, path)
    notes = {f["rule"]: f["actual"] for f in file["findings"] if f["severity"] == "info"}
    assert notes["eval-schedule"] == "not applied: not a closed run"
    assert set(notes) >= {"rcp-convergence", "rcp-hyperparameters", "closed-data", "target-status"}
    path.write_text(make_log.closed_run(samples=(13_056, 50_000)))
    _, [file] = check(capsys, path)
    notes = {f["rule"]: f["actual"] for f in file["findings"] if f["severity"] == "info"}
    assert notes["eval-schedule"] == "not applied: not the benchmark's data set"
    assert rules_broken(file) == {"closed-data"}


def test_an_aborted_log_of_the_training_side_names_its_reason(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.run(status="aborted"))
    log.add_after("run_start", ':::MLLOG {"namespace": "", "time_ms": 1700000020018, "event_type": "POINT_IN_TIME", '
                  '"key": "abort_reason", "value": "loss is nan\\u001b[2J", "metadata": {}}')  # fmt: skip
    del log.lines[log.at("epoch_start") : log.at("run_stop")]
    (tmp_path / "log").write_text(log.text)
    _, [file] = check(capsys, tmp_path / "log")
    [finding] = [f for f in file["findings"] if f["rule"] == "run-status"]
    assert finding["actual"] == "status aborted: loss is nan\\x1b[2J"


def test_a_checkpoint_within_an_epoch_is_no_time_of_its_windows(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.run())
    first = log.at("step_window")
    for index in log.events():
        if index > first:
            log.write(index, (fields := log.fields(index)) | {"time_ms": fields["time_ms"] + 1000})
    path = tmp_path / "result_0.txt"
    path.write_text(log.text)
    assert rules_broken(check(capsys, path)[1][0]) == {"throughput-agrees"}
    path.write_text(
        log.add_after("step_window", _checkpoint(log, step=22, number=3), 3).text
    )  # it is told when written
    assert errors(check(capsys, path)[1][0]) == []


def test_a_flood_of_breaches_is_counted_not_listed(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.run())
    for _ in range(200):
        log.repeat("epoch_stop")
    (tmp_path / "log").write_text(log.text)
    _, [file] = check(capsys, tmp_path / "log")
    assert sum(f["rule"] == "epoch-order" for f in file["findings"]) == 11
    assert any(f["actual"] == "190 more breaches of epoch-order, not listed" for f in file["findings"])


# --- several logs ---


def write(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"result_{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_runs_with_the_same_seed_fail(tmp_path: Path, capsys) -> None:
    write(tmp_path, make_log.run(seed=1), make_log.run(seed=2), make_log.run(seed=1))
    status, files = check(capsys, tmp_path)
    assert status == 1
    assert [rules_broken(file) for file in files] == [set(), set(), {"seeds-differ", "runs-differ"}]
    write(tmp_path, make_log.run(seed=1), make_log.run(seed=2), make_log.run(seed=3))
    assert check(capsys, tmp_path)[0] == 0


def test_another_configuration_is_warned_of_by_name(tmp_path: Path, capsys) -> None:
    other = make_log.run(seed=2, hyperparameters=make_log.SGD | {"sgd_opt_base_learning_rate": 0.2})
    write(tmp_path, make_log.run(seed=1), other)
    status, [_, file] = check(capsys, tmp_path)
    [warning] = [f for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warning["rule"]) == (0, "same-configuration")
    assert warning["actual"] == "; ".join(
        f"{name} is 0.2, in result_0.txt 0.1"
        for name in ("sgd_opt_base_learning_rate", "config RECIPE.base_learning_rate")
    )


def _closed(folder: Path, *last_epochs: int, status: str = "success", **changes: Any) -> None:
    texts = []
    for seed, epochs in enumerate(last_epochs):
        rising = [round(2.8 * (i + 1) / epochs, 4) + seed / 1000 for i in range(epochs // 4)]
        text = make_log.closed_run(seed=seed, epochs=epochs, accuracies=(*rising[:-1], 0.7604), **changes)
        texts.append(text)
    write(folder, *texts)


@pytest.mark.parametrize(
    ("epochs", "batch", "broken"),
    [
        ((36, 36, 36, 36, 36), 408, False),
        ((32, 36, 36, 36, 36), 408, False),  # the best is dropped
        ((32, 32, 36, 36, 36), 408, False),  # 34.67 of 34.31
        ((32, 32, 32, 36, 36), 408, True),  # 33.33
        ((36, 36, 36, 36, 36), 4, False),  # below the least point: as long as the reference
        ((32, 32, 32, 32, 36), 4, True),
        ((36, 36, 36, 36, 36), 9000, True),  # above the largest point
        ((36, 36, 36, 36, 36), 2000, True),  # between two points
        ((48, 48, 48, 48, 48), 2000, False),
    ],
)
def test_convergence_against_the_reference_points(epochs, batch: int, broken: bool, tmp_path: Path, capsys) -> None:
    _closed(tmp_path, *epochs, batch=batch, epoch_ms=72_000)  # no step of a batch of 32 in 1 ms
    status, files = check(capsys, tmp_path)
    assert status == broken
    assert [rules_broken(file) for file in files] == [{"rcp-convergence"} if broken else set()] * 5


def test_four_runs_get_no_convergence_test_and_say_so(tmp_path: Path, capsys) -> None:
    _closed(tmp_path, 32, 32, 32, 32)
    status, files = check(capsys, tmp_path)
    assert status == 0
    for file in files:
        [note] = [f for f in file["findings"] if f["rule"] == "rcp-convergence"]
        assert note["actual"] == "not applied: it takes 5 runs of one submission, 4 given"


def test_hyperparameters_that_differ_from_the_reference_point_are_warned_of(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.closed_run(hyperparameters=make_log.LARS | {"lars_opt_base_learning_rate": 11}))
    write(tmp_path, log.text)
    status, [file] = check(capsys, tmp_path)
    [warning] = [f for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warning["rule"], warning["line"]) == (
        *(0, "rcp-hyperparameters", log.at("lars_opt_base_learning_rate") + 1),
    )
    assert warning["actual"] == "lars_opt_base_learning_rate is 11; the reference point has 10.5"


def test_the_published_mlperf_runs(published_logs: Path, capsys) -> None:
    folder = published_logs / "mlperf_v2.1_dgxa100_resnet"
    for ruleset in ("4.0.0", "2.1.0"):
        status, files = check(capsys, folder, "--ruleset", ruleset)
        assert (status, [file["verdict"] for file in files]) == (1, ["pass", "pass", "fail", "pass", "pass"])
        assert errors(files[2]) == [("eval_accuracy.value", 385), ("run-status", 396)]


# --- the system description ---


def description(**changes: object) -> dict[str, object]:
    return {
        "submitter": "Example",
        "division": "open",
        "status": "Research, Development, or Internal (RDI)",
        "system_name": "CPU",
        "number_of_nodes": "1",
        "accelerators_per_node": "0",
        "accelerator_model_name": "",
        "framework": "PaddlePaddle 2.6.2",
    } | changes


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"submitter": "Other"}, False),
        ({"division": "closed"}, False),
        ({"status": "research"}, True),  # the log's own word
        ({"status": "research, development, or internal (RDI)"}, True),
        ({"status": "Preview"}, False),
        ({"status": "Available cloud"}, False),
        ({"number_of_nodes": "2"}, False),
        ({"accelerators_per_node": "8"}, False),
        ({"framework": "PaddlePaddle 3.0"}, False),
    ],
)
def test_log_and_system_description_must_agree(changes, good: bool, tmp_path: Path, capsys) -> None:
    [path] = write(tmp_path, make_log.run())
    (tmp_path / "system.json").write_text(json.dumps(description(**changes)))
    status, [file] = check(capsys, path, "--system", tmp_path / "system.json")
    assert (status, rules_broken(file)) == ((0, set()) if good else (1, {"system-description"}))


@pytest.mark.parametrize(("faster", "found"), [(1, False), (10, True)])
def test_no_run_is_faster_than_its_described_cards(faster: int, found: bool) -> None:
    """A published rate of 8 A100, 26,500 images/s, and ten times that; of a log without epochs, too."""
    checker = Checker(rules.load("4.0.0"))
    log = Altered(make_log.closed_run(epoch_ms=48_300 // faster)).drop_all("epoch_start").drop_all("epoch_stop")
    checker.feed(read_text(log.text))
    _, run = checker.finish()
    cards = {"number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": "NVIDIA A100-SXM4-80GB"}
    assert bool(over_peak(run, cards, STRICT["system-description"])) == found
    assert over_peak(run, cards | {"accelerator_model_name": "Other 9"}, STRICT["system-description"]) == []


@pytest.mark.parametrize(
    ("field", "value", "good"),
    [
        ("host_processor_core_count", "999", False),
        ("host_processor_core_count", "1", True),  # 2 threads
        ("host_memory_capacity", "9 TB", False),
        ("host_memory_capacity", "25 GB", True),
        ("operating_system", "Windows 3.1", False),
        ("operating_system", "Debian 12, Linux 6.1", True),
        ("host_processor_model_name", "Other CPU 80", False),
        ("host_processor_model_name", "Example(R) 9000 @ 3 GHz", True),
    ],
)
def test_the_machine_of_log_and_description_must_agree(field: str, value: str, good: bool) -> None:
    checker = Checker(rules.load("4.0.0"))
    checker.feed(read_text(make_log.run()))
    _, run = checker.finish()
    description = {"host_processors_per_node": "1", "framework": run.summary.framework} if run.summary else {}
    found = compare_description(run, description | {field: value}, STRICT["system-description"])
    assert any(one.actual.startswith(field) for one in found) != good


def test_accelerators_of_log_and_description_must_agree(tmp_path: Path, capsys) -> None:
    gpus = json.dumps([{"name": "NVIDIA A100-SXM4-80GB", "memory_gib": 80.0, "driver": "520.61.05"}] * 2)
    [path] = write(tmp_path, make_log.run().replace('"gpus": []', f'"gpus": {gpus}'))
    for model, count, good in (
        ("NVIDIA A100-SXM4-80GB (400 W)", "2", True),
        ("NVIDIA A100-SXM4-40GB", "2", False),
        ("NVIDIA A100-SXM4-80GB", "8", False),
    ):
        said = description(accelerator_model_name=model, accelerators_per_node=count)
        (tmp_path / "system.json").write_text(json.dumps(said))
        assert check(capsys, path, "--system", tmp_path / "system.json")[0] == (not good)


# --- the official checker beside ours ---


def test_official_verdicts_stand_beside_ours(tmp_path: Path, capsys) -> None:
    paths = write(
        tmp_path,
        make_log.run(seed=1),
        Altered(make_log.run(seed=2)).repeat("run_start").text,
        Altered(make_log.run(seed=3)).drop("init_start").text,
        make_log.closed_hrnet_run(seed=4),
    )
    status, files = check(capsys, *paths, "--official")
    assert status == 1
    assert [(file["verdict"], file["official"], file["mlperf_logging"]["verdict"]) for file in files] == [
        *(("pass", "pass", "pass"), ("fail", "pass", "pass"), ("fail", "fail", "fail"), ("pass", "pass", "pass"))
    ]
    assert not any(f["rule"] == "official-disagrees" for file in files for f in file["findings"])
    assert files[2]["mlperf_logging"]["messages"]


@pytest.mark.parametrize("by", ["strict", "official"])
def test_a_log_that_only_the_official_checker_rejects_fails(by: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(official, "check_log", lambda *_: (False, ["a rule that this checker has not"]))
    [path] = write(tmp_path, make_log.run())
    status, [file] = check(capsys, path, "--official", "--verdict", by)
    assert (status, file["official"], rules_broken(file)) == (1, "fail", {"official-disagrees"})


@pytest.mark.parametrize("installed", [None, "4.1.67"])
def test_the_official_tools_are_asked_only_in_the_release_whose_rules_we_have(
    installed: str | None, tmp_path: Path, capsys, monkeypatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    [path] = write(tmp_path, make_log.run())
    assert main(["check", str(path), "--official"]) == 2
    error = capsys.readouterr().err
    assert "pip install --no-deps mlperf-logging==4.1.68" in error and error.count("\n") == 1


# --- the command ---


def test_exit_status_and_text(tmp_path: Path) -> None:
    [path] = write(tmp_path, make_log.run())
    done = jobs.run([sys.executable, "-m", "compliance", "check", str(path)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{path}: PASS\n")
    log = Altered(make_log.run()).repeat("run_start")
    path.write_text(log.text)
    done = jobs.run([sys.executable, "-m", "compliance", "check", str(path)])
    assert (done.returncode, done.stderr) == (1, "")
    line = log.at("run_start") + 1
    told = f"exactly-once line {line}: 2 run_start, all with the same value\n"
    head = "FAIL, 1 error by the strict rules\n  official pass, strict fail; strict counts\n"
    assert f"{head}  error: own-log line {line}: " in done.stdout
    assert f"  warning: {told}" in done.stdout
    assert "      do: log on rank 0 only, and each such key once\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check"], "no log given"),
        (["check", "absent.txt"], "absent.txt: no such file"),
        (["check", "folder"], "folder: no result_*.txt"),
        (["check", "log", "log"], "log: named twice"),
        (["check", "log", "--ruleset", "7.0.0"], "ruleset 7.0.0: no rules for it; take one of 0.7.0, 1.0.0,"),
        (["check", "log", "--ruleset", "../rules"], "no rules for it"),
        (["check", "log", "--benchmark", "vgg"], "benchmark vgg: ruleset 4.0.0 has no rules for it"),
        (["check", "log", "--ruleset", "2.1.0", "--benchmark", "hrnet"], "has no rules for it"),
        (["check", "log", "--system", "log"], "log: no system description"),
        (["check", "--explain", "run_strat"], "near it: run_start"),
        (["check", "/dev/zero"], "not a regular file"),
        (["check", "pipe"], "not a regular file"),
        (["check", "log", "--junit", "absent/x.xml"], "absent/x.xml"),
        (["check", "log", "--junit", "log"], "log: exists, and this command did not write it"),
        (["check", "log", "--junit", "other.xml"], "other.xml: exists, and this command did not write it"),
        (["check", "log", "--explain", "all"], "--explain checks no log"),
        (["check", "log", "--json", "--format", "github"], "--json and --format github"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], says: str, tmp_path, monkeypatch, capsys) -> None:
    text = make_log.run()
    (tmp_path / "log").write_text(text)
    (tmp_path / "other.xml").write_text("<testsuites>of another tool</testsuites>")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert (tmp_path / "log").read_text() == text


@pytest.mark.parametrize("arguments", ["check log", "check log --json", "score log"])
def test_a_closed_output_is_no_traceback(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(make_log.run())
    shell = f'exec "$0" -m compliance {arguments} >&-'
    done = jobs.run(["sh", "-c", shell, sys.executable], cwd=tmp_path, PYTHONPATH=str(jobs.REPOSITORY))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_benchmark_asked_for_must_be_that_of_the_log(tmp_path: Path, capsys) -> None:
    [path] = write(tmp_path, make_log.hrnet_run())
    assert check(capsys, path, "--benchmark", "hrnet")[0] == 0
    status, [file] = check(capsys, path, "--benchmark", "resnet")
    assert (status, rules_broken(file)) == (1, {"benchmark-asked"})


def test_a_link_out_of_the_folder_fails_and_one_inside_it_does_not(tmp_path: Path, capsys) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "log.txt").write_text(make_log.run())
    (tmp_path / "a" / "result_0.txt").symlink_to("../log.txt")
    (tmp_path / "link.txt").symlink_to("log.txt")
    status, [file] = check(capsys, tmp_path / "a")
    assert (status, rules_broken(file)) == (1, {"file-link"})
    assert check(capsys, tmp_path / "link.txt")[0] == 0


def test_junit_has_a_failure_for_each_error(tmp_path: Path, capsys) -> None:
    paths = write(tmp_path, make_log.run(), Altered(make_log.run(seed=2)).value("eval_accuracy", "<\x00&\x1b>").text)
    for _ in range(2):  # it replaces a file that it wrote
        assert main(["check", *map(str, paths), "--junit", str(tmp_path / "junit.xml")]) == 1
    capsys.readouterr()
    good, bad = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (good.get("failures"), bad.get("failures")) == (
        "0",
        "3",
    )
    cases = {case.get("name"): case for case in bad}
    assert cases["verdict"].find("failure") is not None
    failure = cases["value-type"].find("failure")
    assert failure is not None
    assert failure.get("message") == r'eval_accuracy is "<\u0000&\u001b>"'
    assert int(bad.get("tests", "0")) == len(cases)


def test_every_rule_can_be_explained(capsys) -> None:
    for name in (*STRICT, "run_stop", "run_stop.order", "lars_epsilon"):
        assert main(["check", "--explain", name]) == 0
        text = capsys.readouterr().out
        assert name.partition(".")[0] in text
        assert "source: " in text
    assert main(["check", "--explain", "all"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in STRICT)


def test_a_receipt_names_what_was_checked(tmp_path: Path, capsys) -> None:
    [path] = write(tmp_path, make_log.run())
    _, [report] = check(capsys, path, "--receipt")
    receipt = json.loads((tmp_path / "result_0.txt.checked").read_text())
    assert receipt["verdict"] == "pass"
    assert receipt["ruleset"] == "4.0.0"
    assert receipt["sha256"] == report["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_heavy_import_is_on_the_way_to_a_verdict(tmp_path: Path) -> None:
    [path] = write(tmp_path, make_log.closed_run())
    code = (
        "import sys; from compliance.__main__ import main; status = main(['check', sys.argv[1]]);"
        "heavy = {'numpy', 'scipy', 'pandas', 'mlperf_logging', 'paddle', 'matplotlib', 'rich', 'tarfile',"
        "'compliance.submission.audit', 'compliance.submission.package', 'compliance.submission.system'}"
        " & set(sys.modules);"
        "print('heavy:', heavy); sys.exit(status)"
    )
    done = jobs.run([sys.executable, "-c", code, str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy: set()\n")
