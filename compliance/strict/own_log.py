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
    """Return which setting of the recipe an event about a hyperparameter must repeat, by the key of the event.

    An event and its setting must have the same value. For a run with the optimizer lars, the result is

        "lars_opt_end_learning_rate": "RECIPE.end_learning_rate"
        "lars_opt_learning_rate_decay_poly_power": "RECIPE.power"
        "lars_opt_momentum": "RECIPE.optimizer.momentum"
        "lars_opt_weight_decay": "RECIPE.optimizer.weight_decay"
        "lars_opt_learning_rate_warmup_epochs": "RECIPE.warmup_epochs"

    The base learning rate and the decay steps are left out, because their values depend on the batch, too. The event
    lars_epsilon is left out, because schema.OPTIMIZERS does not have it.

    Args:
        run: The facts that the log states of the run, with its optimizer.

    Returns:
        The names of the settings by the keys of the events. Empty if the log states no optimizer that runlog's schema
        has.
    """
    optimizer = run.stated_text(schema.OPT_NAME)
    if optimizer not in schema.OPTIMIZERS:
        return {}
    events_of_optimizer = schema.OPTIMIZERS[optimizer]
    setting_by_name = own_log_rules().setting_by_hyperparameter  # such as "momentum": "RECIPE.optimizer.momentum"
    setting_by_event_key = {}
    # Such as "momentum", and its event with the key "lars_opt_momentum".
    for name, event in events_of_optimizer.hyperparameters.items():
        if name in setting_by_name:  # not so the base learning rate and the decay steps
            setting_by_event_key[event.key] = setting_by_name[name]
    setting_by_event_key[events_of_optimizer.warmup_epochs.key] = "RECIPE.warmup_epochs"
    return setting_by_event_key
