"""The schema holds the logs that a run really writes, and finds what is wrong in one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mlperf_logging.mllog import constants

import paddle_hrnet.config
import paddle_rn50.config
from compliance import rules
from compliance.check import check_file
from compliance.official import rule_files
from harness import header
from runlog import schema
from runlog.writer import RunLog
from tests import jobs, make_log
from tests.harness import small
from tests.json_schema import Draft202012Validator

OURS = {"rank_times", "run_summary", "step_window", "epoch_throughput", "telemetry_summary", "clock_set"}
OURS |= {"checkpoint", "checkpoint_failed"}


@pytest.fixture(scope="module")
def printed() -> Draft202012Validator:
    """Of what `python -m runlog schema` prints."""
    return Draft202012Validator(json.loads(jobs.run([sys.executable, "-m", "runlog", "schema"]).stdout))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a run of two epochs with checkpoints and telemetry, which ends below its target."""
    folder = tmp_path_factory.mktemp("log")
    small.train(folder / "result_0.txt", small.data_set(folder / "data"), CHECKPOINT_EPOCHS=1)
    return folder / "result_0.txt"


def values(log: Path) -> list[Any]:
    """The JSON of each line that holds some."""
    found = []
    for line in log.read_text().splitlines():
        for token in ("# ", ":::MLLOG "):
            if line.startswith(token):
                found.append(json.loads(line.removeprefix(token)))
    return found


@pytest.mark.xdist_group("ranks")
def test_every_line_of_a_training_run_meets_the_schema(log: Path, printed: Draft202012Validator) -> None:
    lines = values(log)
    assert [fault for line in lines for fault in printed.iter_errors(line)] == []
    sections = {name for line in lines if "key" not in line for name in line}
    assert sections == set(schema.SECTIONS)
    lars = {name for name in schema.EVENTS if name.startswith("lars_")}
    # A clock that was set, a run that succeeded, a disk that was full, an optimizer
    seldom = {"clock_set", "telemetry_summary", "checkpoint_failed", *lars}
    assert {line["key"] for line in lines if "key" in line} == set(schema.EVENTS) - seldom


@pytest.fixture(scope="module")
def throughput_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a run of a few steps."""
    log = tmp_path_factory.mktemp("throughput") / "log.txt"
    done = jobs.on_ranks(2, "-m", "harness", cwd=small.checkout(), RESULT_FILE=log, BATCHSIZE=2, **jobs.TINY)
    assert done.returncode == 0, done.stderr
    return log


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("mode", ["train", pytest.param("throughput", marks=[pytest.mark.slow, pytest.mark.ci])])
def test_the_stand_in_writes_the_trainers_log_but_for_what_paddle_knows(
    mode: str, standing_in: Path, tmp_path: Path, printed: Draft202012Validator, request: pytest.FixtureRequest
) -> None:
    """Each line of both meets the schema, and the trainer has the same ones in the same order, with others between."""
    settings = small.TRAINING if mode == "train" else jobs.TINY
    done = jobs.run_and_time(cwd=standing_in, LOGDIR=tmp_path, **settings)
    assert ("below the target" in done.stderr) == (mode == "train"), done.stderr
    lines = values(tmp_path / "CPU/rn50/result_0.txt")
    trained = values(request.getfixturevalue("log" if mode == "train" else "throughput_log"))
    assert [fault for line in (*lines, *trained) for fault in printed.iter_errors(line)] == []
    assert mode == "train" or "telemetry_summary" in {line.get("key") for line in trained}
    left = iter([name(line) for line in trained])
    assert [key for key in (name(line) for line in lines) if key not in left] == []
    for key in ("step_window", "epoch_start", "eval_accuracy", "run_stop"):
        assert sum(line.get("key") == key for line in lines) == sum(line.get("key") == key for line in trained)


def test_the_logs_that_tests_make_meet_it_too(tmp_path: Path, printed: Draft202012Validator) -> None:
    path = tmp_path / "result_0.txt"
    for text in (make_log.run(), make_log.closed_run(), make_log.closed_hrnet_run()):
        path.write_text(text)
        assert len(values(path)) > 40
        assert [fault for line in values(path) for fault in printed.iter_errors(line)] == []


def name(line: dict[str, Any]) -> str:
    """Of an event or a section."""
    return str(line.get("key", next(iter(line))))


def altered(line: dict[str, Any]) -> Iterator[str]:
    """Changes `line` in place and back: each field left out, or of another type, and one more. Says what it did."""
    parts = (line, line.get("value"), line.get("metadata"))
    tables = [part for part in parts if isinstance(part, dict)]
    for table in tables:
        for name, value in [*table.items()]:
            del table[name]
            yield f"{name} left out"
            table[name] = {"of": ["no", "type"]}
            yield f"{name} changed"
            table[name] = value
        if isinstance(table, dict):
            table["another"] = 1
            yield "another field"
            del table["another"]


@pytest.mark.xdist_group("ranks")
def test_a_field_that_is_missing_or_of_another_type_is_found(log: Path, printed: Draft202012Validator) -> None:
    tried = 0
    for line in {name(line): line for line in values(log)}.values():
        free = "config" in line or "environment" in line or "packages" in line  # tables of any names
        optional = line.get("key") == "cache_clear"
        own = printed.evolve(schema={"$ref": f"#/$defs/{'event' if 'key' in line else 'section'} {name(line)}"})
        assert own.is_valid(line)  # all others ask for another name: to try them takes a second a line
        for what in altered(line):
            if (free and what.endswith("changed")) or (optional and "reason" in what):
                continue
            tried += 1
            assert not own.is_valid(line), (line, what)
    assert tried > 400


def test_the_keys_are_mlperfs_or_our_own() -> None:
    official = {value for value in vars(constants).values() if isinstance(value, str)}
    official |= rule_files.keys("4.0.0")
    ours = set(schema.EVENTS) - official
    assert ours == OURS | {"abort_reason"}, "MLPerf has no such key: find one that it has, or name this one in OURS"


# ---- the optimizer of every recipe, under the names that the rules ask for

BATCHES = {"mlperf_lars": 1632}  # images; it takes only those of the reference points, of which this is the smallest
RECIPES = [(config, name) for config in (paddle_rn50.config, paddle_hrnet.config) for name in config.RECIPES]


def logged(path: Path, config: ModuleType, name: str, batch: int) -> dict[str, Any]:
    """The events of a recipe's optimizer, as a log has them."""
    recipe, log = config.recipe(name, global_batch=batch), RunLog(path)
    schedule = recipe.make_schedule(samples=recipe.train_samples, global_batch=batch)
    for event, value in header.optimizer_events(schedule, recipe.optimizer, warmup_epochs=recipe.warmup_epochs):
        log.event(event, value)
    log.close()
    return {event["key"]: event["value"] for event in jobs.mllog(path)}


@pytest.mark.parametrize(("config", "name"), RECIPES, ids=[name for _, name in RECIPES])
def test_the_checker_takes_the_optimizer_of_every_recipe(tmp_path: Path, config: ModuleType, name: str) -> None:
    """Closed where the recipe is one of the closed division: its rules ask for each hyperparameter."""
    events = logged(tmp_path / "optimizer.txt", config, name, BATCHES.get(name, 32))
    closed = {"mlperf_lars": make_log.closed_run, "cityscapes_80k": make_log.closed_hrnet_run}
    plain = make_log.run if config is paddle_rn50.config else make_log.hrnet_run
    path = tmp_path / "result_0.txt"
    path.write_text(closed.get(name, plain)(hyperparameters=events))
    findings = check_file(path, rules.load("4.0.0")).findings
    assert [finding for finding in findings if finding.severity != "info"] == []
    if name == "mlperf_lars":
        names = ("lars_epsilon", "lars_opt_learning_rate_warmup_epochs", "lars_opt_base_learning_rate")
        assert [events[one] for one in names] == [0.0, 2, 7.4]
