"""The rows of compliance/rules/own_log.yaml: what a log of this project must hold beside the schema's fields."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compliance.logged_run import LoggedRun
from compliance.rules import read_rules
from runlog import schema


@dataclass(frozen=True, kw_only=True)
class OwnLogRules:
    """The rows of own_log.yaml, which explains them."""

    events_of_a_run: Sequence[str]
    events_of_a_training: Sequence[str]
    settings: Sequence[str]
    recipe_settings: Mapping[str, Sequence[str]]
    repeated: Mapping[str, str]
    repeated_of_optimizer: Mapping[str, str]
    source_forms: Mapping[str, str]


@functools.cache
def own_log_rules() -> OwnLogRules:
    """Read own_log.yaml, once."""
    return OwnLogRules(**read_rules("own_log.yaml"))


def recipe_settings_of_hyperparameters(run: LoggedRun) -> dict[str, str]:
    """Return for each hyperparameter of the run's optimizer, by its key, the setting of the recipe that repeats it.

    Empty if the log states no optimizer that is known.
    """
    optimizer = run.stated_text(schema.OPT_NAME)
    if optimizer not in schema.OPTIMIZER:
        return {}
    settings = {}
    for name, setting in own_log_rules().repeated_of_optimizer.items():
        settings[schema.OPTIMIZER[optimizer][name].key] = setting
    settings[schema.WARMUP_EPOCHS[optimizer].key] = "RECIPE.warmup_epochs"
    return settings
