"""The rows of compliance/rules/own_log.yaml: what a log of this project must hold besides the schema's fields."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compliance.logged_run import LoggedRun
from compliance.rules import read_rules
from runlog import schema


class OwnLogRules(NamedTuple):
    """The rows of own_log.yaml, which explains them."""

    events_of_a_run: Sequence[str]
    events_of_a_training: Sequence[str]
    settings: Sequence[str]
    recipe_settings: Mapping[str, Sequence[str]]
    values_of_setting: Mapping[str, Sequence[str]]
    least_of_setting: Mapping[str, int]
    knobs_of_strategy: Mapping[str, str]
    least_of_knob: Mapping[str, float]
    setting_by_name: Mapping[str, str]
    setting_by_hyperparameter: Mapping[str, str]
    source_patterns: Mapping[str, str]


@functools.cache
def own_log_rules() -> OwnLogRules:
    """Read own_log.yaml, once."""
    return OwnLogRules(**read_rules("own_log.yaml"))


def recipe_settings_of_hyperparameters(run: LoggedRun) -> dict[str, str]:
    """Return the recipe settings that hyperparameters of a run's optimizer must equal, by the keys of their events.

    The result joins two tables by the name of a hyperparameter. For "momentum" and the optimizer lars:

        runlog's schema   "momentum": the event with the key "lars_opt_momentum"
        own_log.yaml      "momentum": "RECIPE.optimizer.momentum"
        the result        "lars_opt_momentum": "RECIPE.optimizer.momentum"

    The result also has the epochs of warm-up, for lars "lars_opt_learning_rate_warmup_epochs": "RECIPE.warmup_epochs".
    The result has neither the base learning rate nor the decay steps, because these depend on the batch, too.

    Args:
        run: The facts that the log states of the run, with its optimizer.

    Returns:
        The settings by the keys of the events. Empty if the log states no optimizer that runlog's schema has.
    """
    optimizer = run.stated_text(schema.OPT_NAME)
    if optimizer not in schema.OPTIMIZERS:
        return {}
    events_of_optimizer = schema.OPTIMIZERS[optimizer]
    setting_by_name = own_log_rules().setting_by_hyperparameter  # of own_log.yaml
    setting_by_event_key = {}
    for name, event in events_of_optimizer.hyperparameters.items():  # such as "momentum" and its event
        if name in setting_by_name:
            setting_by_event_key[event.key] = setting_by_name[name]
    setting_by_event_key[events_of_optimizer.warmup_epochs.key] = "RECIPE.warmup_epochs"
    return setting_by_event_key
