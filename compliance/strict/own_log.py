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
    """Map each event that logs a hyperparameter to the setting of the recipe whose value it must repeat.

    For the optimizer lars, for example:

        "lars_opt_momentum": "RECIPE.optimizer.momentum"
        "lars_opt_learning_rate_warmup_epochs": "RECIPE.warmup_epochs"

    Args:
        run: The facts that the log states of the run, with its optimizer.

    Returns:
        The name of the setting by the key of the event. Empty if the log states no optimizer, or an unknown one.
    """
    optimizer = run.stated_text(schema.OPT_NAME)  # such as "lars"; empty if it is not stated
    if optimizer not in schema.OPTIMIZERS:
        return {}
    known_optimizer = schema.OPTIMIZERS[optimizer]
    setting_of = own_log_rules().setting_by_hyperparameter  # such as "momentum": "RECIPE.optimizer.momentum"
    setting_by_event_key = {known_optimizer.warmup_epochs.key: "RECIPE.warmup_epochs"}
    # Such as "momentum" with an event whose key is "lars_opt_momentum".
    for hyperparameter, event in known_optimizer.hyperparameters.items():
        # The base learning rate and the decay steps are not copies of a setting: they depend on the batch, too.
        if hyperparameter in setting_of:
            setting_by_event_key[event.key] = setting_of[hyperparameter]
    return setting_by_event_key
