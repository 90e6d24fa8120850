"""The optimizer of every recipe is in the log, under the names that the rules ask for."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import paddle_hrnet.config
import paddle_rn50.config
from compliance import rules
from compliance.check import check_file
from harness import session
from runlog.writer import RunLog
from tests import jobs, make_log

BATCHES = {"mlperf_lars": 3264}  # images; it takes only those of the reference points
RECIPES = [(config, name) for config in (paddle_rn50.config, paddle_hrnet.config) for name in config.RECIPES]


def logged(path: Path, config: ModuleType, name: str, batch: int) -> dict[str, Any]:
    """The events of a recipe's optimizer."""
    recipe = config.recipe(name, global_batch=batch)
    schedule = recipe.make_schedule(samples=recipe.train_samples, global_batch=batch)
    log = RunLog(path)
    session.log_optimizer(log, schedule, recipe.optimizer, warmup_epochs=recipe.warmup_epochs)
    log.close()
    return {event["key"]: event["value"] for event in jobs.mllog(path)}


@pytest.mark.parametrize(("config", "name"), RECIPES, ids=[name for _, name in RECIPES])
def test_the_checker_takes_the_optimizer_of_every_recipe(tmp_path: Path, config: ModuleType, name: str) -> None:
    """Closed where the recipe is one of the closed division: its rules ask for each hyperparameter."""
    events = logged(tmp_path / "optimizer.txt", config, name, BATCHES.get(name, 32))
    closed = {"mlperf_lars": make_log.closed_run, "cityscapes_80k": make_log.closed_hrnet_run}
    plain = make_log.run if config is paddle_rn50.config else make_log.hrnet_run
    path = tmp_path / "result_0.txt"
    path.write_text(closed.get(name, plain)(hyperparameters=events | {"model_bn_span": 204}))
    findings = check_file(path, rules.load("4.0.0")).findings
    assert [finding for finding in findings if finding.severity != "info"] == []


@pytest.mark.xdist_group("ranks")
def test_a_run_with_lars_writes_its_hyperparameters(tmp_path: Path) -> None:
    """The smallest batch that has a reference point; the run is ended where its programs would be built."""
    log = tmp_path / "result_0.txt"
    settings = {"RESULT_FILE": str(log), "RECIPE": "mlperf_lars", "DATA": "synthetic"}
    process = jobs.begin_on_ranks(1, "-m", "harness", BATCHSIZE=1632, **(jobs.TINY | settings))
    jobs.until(lambda: '"key": "lars_epsilon"' in jobs.text(log), process)
    process.terminate()
    _, errors = process.communicate(timeout=jobs.LIMIT_S)
    assert jobs.values(log, "lars_epsilon") == [0.0], errors
    assert jobs.values(log, "lars_opt_learning_rate_warmup_epochs") == [2]
    assert jobs.values(log, "lars_opt_base_learning_rate") == [7.4]
