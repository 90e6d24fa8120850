"""The values that a log of this project states in two places: in its settings, its header and its events.

The log must have all settings that `missing_settings` looks for, and its header and run_summary must fit the schema.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.measured import Fault
from compliance.strict.own_log import own_log_rules, recipe_settings_of_hyperparameters
from runlog import schema, workloads
from runlog.text import printable


class _Repetition(NamedTuple):
    """A value that a log states, by its name, and the value that it must have by another place in the log."""

    name: str
    other_place: str
    expected: Any


class _StatedValue(NamedTuple):
    """A value that a log states, and its line; None if there is no line to blame."""

    line: int | None
    value: Any


def missing_settings(run: LoggedRun) -> list[str]:
    """Return the settings that the header must have and lacks: those of each run, of its recipe and its optimizer."""
    settings = run.settings
    needed = set(own_log_rules().settings)
    needed_by_recipe = own_log_rules().recipe_settings.get(str(settings.get("WORKLOAD")))
    if needed_by_recipe is not None:
        needed.update(needed_by_recipe)
        needed.update(recipe_settings_of_hyperparameters(run).values())
    return sorted(needed - settings.keys())


def differing_repetitions(run: LoggedRun, summary: schema.RunSummary) -> Iterator[Fault]:
    """Yield a fault for each value that the log states in two places, and differently."""
    for repetition in (
        *_repeated_settings(run),
        *_consequences_of_settings(run, summary),
        *_conditional_repetitions(run, summary),
    ):
        stated = _stated_value(run, repetition.name)
        if stated.value != repetition.expected:
            other = f"by {repetition.other_place} it is {printable(repetition.expected)}"
            yield Fault(stated.line, f"{repetition.name} is {printable(stated.value)}; {other}")


def _stated_value(run: LoggedRun, name: str) -> _StatedValue:
    """Return a value that the log states, and its line. `name` is one of these, in this order:

        a setting                           BATCHSIZE
        a field of a section of the header  dataset.train_samples
        an event                            seed
        a field of an event's value         run_summary.devices

    Settings and the header have no line of their own; they get the line of run_summary. If the event is missing, both
    value and line are None.
    """
    line_of_summary = run.first_event(schema.RUN_SUMMARY).line
    if name in run.settings:
        return _StatedValue(line_of_summary, run.settings[name])
    section_or_key, _, field = name.partition(".")
    if section_or_key in run.headers:
        return _StatedValue(line_of_summary, run.headers[section_or_key][field])
    event = run.first_events.get(section_or_key)
    if event is None:
        return _StatedValue(None, None)
    if field:
        return _StatedValue(event.line, event.value[field])
    return _StatedValue(event.line, event.value)


def _repeated_settings(run: LoggedRun) -> list[_Repetition]:
    """Return the values that must be equal to a setting: those in own_log.yaml, and the hyperparameters.

    A setting that the log does not have is left out.
    """
    repetitions = []
    setting_by_name = {**own_log_rules().repeated, **recipe_settings_of_hyperparameters(run)}
    for name, setting in setting_by_name.items():
        if setting in run.settings:
            repetitions.append(_Repetition(name, other_place=setting, expected=run.settings[setting]))
    return repetitions


def _consequences_of_settings(run: LoggedRun, summary: schema.RunSummary) -> list[_Repetition]:
    """Return the values that follow from other values in any run, such as the number of devices from DGXNGPU.

    The expected value is None if it cannot be computed: for an unknown WORKLOAD, or a DGXNGPU that is not a number.
    """
    settings = run.settings
    dataset = run.header_section(schema.DATASET)
    workload = workloads.find(str(settings["WORKLOAD"]))
    model = workload.model if workload else None
    benchmark = workload.benchmark if workload else None
    devices_per_node = settings["DGXNGPU"]
    devices = devices_per_node * summary.nodes if type(devices_per_node) is int else None
    may_be_resumed = settings["RESUME"] == "auto"  # which does not demand it
    platform = settings["SUBMISSION_PLATFORM"] or settings["DGXSYSTEM"]
    return [
        _Repetition("run_summary.model", other_place="WORKLOAD", expected=model),
        _Repetition("submission_benchmark", other_place="WORKLOAD", expected=benchmark),
        _Repetition("run_summary.devices", other_place="DGXNGPU", expected=devices),
        _Repetition("run_summary.profiled", other_place="PROFILE", expected=settings["PROFILE"] != ""),
        _Repetition("run_summary.resumed", other_place="RESUME", expected=may_be_resumed and summary.resumed),
        _Repetition("dataset.synthetic", other_place="DATA", expected=settings["DATA"] == "synthetic"),
        _Repetition("submission_platform", other_place="SUBMISSION_PLATFORM", expected=platform),
        _Repetition("train_samples", other_place="dataset", expected=dataset["train_samples"]),
        _Repetition("eval_samples", other_place="dataset", expected=dataset["eval_samples"]),
        _Repetition("global_batch_size", other_place="run_summary", expected=_global_batch(summary)),
    ]


def _conditional_repetitions(run: LoggedRun, summary: schema.RunSummary) -> list[_Repetition]:
    """Return the values that follow from other values in some runs only.

    - PRECISION, on a CPU.
    - The seed, unless the run was resumed, which keeps its first seed, or SEED is -1, which asks for any seed.
    - The base learning rate, if the optimizer is known and the recipe has such a rate.
    """
    settings = run.settings
    repetitions = []
    if settings["DEVICE"] == "cpu":
        repetitions.append(_Repetition("PRECISION", other_place="DEVICE", expected="fp32"))
    if not summary.resumed and settings["SEED"] != -1:
        repetitions.append(_Repetition("seed", other_place="SEED", expected=settings["SEED"]))
    optimizer = schema.OPTIMIZER.get(run.stated_text(schema.OPT_NAME))
    if optimizer is not None and "RECIPE.base_learning_rate" in settings:
        key = optimizer["base_learning_rate"].key
        rate = _base_learning_rate(run, _global_batch(summary))
        repetitions.append(_Repetition(key, other_place="the recipe and the batch", expected=rate))
    return repetitions


def _global_batch(summary: schema.RunSummary) -> int:
    return summary.devices * summary.batch_per_device


def _base_learning_rate(run: LoggedRun, batch: int) -> float | None:
    """Return the base learning rate of the recipe, scaled to the global batch; None if the recipe states no numbers.

    RECIPE.base_learning_rate is for a batch of RECIPE.base_batch. It is not scaled if that is null.
    """
    rate: Any = run.settings["RECIPE.base_learning_rate"]
    batch_of_rate: Any = run.settings.get("RECIPE.base_batch") or batch
    if not is_number(rate) or not is_number(batch_of_rate) or batch_of_rate <= 0:
        return None
    return float(rate) * (batch / float(batch_of_rate))
