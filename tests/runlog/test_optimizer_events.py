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

BATCHES = {"mlperf_lars": 1632}  # images; it takes only those of the reference points, of which this is the smallest
RECIPES = [(config, name) for config in (paddle_rn50.config, paddle_hrnet.config) for name in config.RECIPES]


def logged(path: Path, config: ModuleType, name: str, batch: int) -> dict[str, Any]:
    """The events of a recipe's optimizer."""
    recipe, log = config.recipe(name, global_batch=batch), RunLog(path)
    schedule = recipe.make_schedule(samples=recipe.train_samples, global_batch=batch)
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
    if name == "mlperf_lars":
        names = ("lars_epsilon", "lars_opt_learning_rate_warmup_epochs", "lars_opt_base_learning_rate")
        assert [events[one] for one in names] == [0.0, 2, 7.4]
