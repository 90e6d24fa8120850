"""The values of a log of this project that must agree: one follows from another, in its settings, header and events.

The log must have all settings that `missing_settings` looks for, and its header and run_summary must fit the schema.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.measured import Fault
from compliance.strict.own_log import own_log_rules, recipe_settings_of_hyperparameters
from compliance.strict.strategy import parts_of_batch
from runlog import schema, workloads
from runlog.json_types import JsonObject
from runlog.run import setting_of_epochs
from runlog.text import printable

_UNKNOWN_COMMIT = "unknown"  # the SOURCE_COMMIT of an image that was built without one, as the Dockerfile writes it
_DIRTY = "-dirty"  # the end of a SOURCE_COMMIT from which files differed
_SIDES_OF_IMAGES = ("RECIPE.image_size", "RECIPE.image_width", "RECIPE.image_height")


class _Expectation(NamedTuple):
    """The value that a log must state under a name, and the setting or part of the log that it follows from.

    The name is that of a setting, an event, or a field of either an event or the header: see `_stated_value`. If
    `expected` is None, no value that a run can state is right.
    """

    value_of: str
    follows_from: str
    expected: Any


class _StatedValue(NamedTuple):
    """A value that a log states, and its line; None if there is no line to blame."""

    line: int | None
    value: Any


def missing_settings(run: LoggedRun) -> list[str]:
    """Return the settings that the header must have and lacks, in alphabetical order.

    Args:
        run: The facts that the log states of the run, with its settings.
    """
    needed = set(own_log_rules().settings)  # those of every run
    needed_by_recipe = own_log_rules().recipe_settings.get(run.workload_name)
    if needed_by_recipe is not None:  # None: own_log.yaml does not have the workload
        needed.update(needed_by_recipe)
        needed.update(recipe_settings_of_hyperparameters(run).values())  # such as RECIPE.optimizer.momentum
    return sorted(needed - run.settings.keys())


def contradictory_values(run: LoggedRun, summary: schema.RunSummary) -> Iterator[Fault]:
    """Yield a fault for each value that is not the one that follows from another place in the log.

    An example is the fault "run_summary.devices is 8; by DGXNGPU it is 16", at the line of run_summary.

    Args:
        run: The facts that the log states of the run. It must have all settings that `missing_settings` looks for, and
            its header must fit the schema.
        summary: The value of the event run_summary.
    """
    for expectation in (
        *_copies_of_settings(run),
        *_consequences_of_workload(run),
        *_consequences_of_job_settings(run, summary),
        *_consequence_of_hosts(run.settings),
        *_consequences_of_image(run.settings),
        *_consequences_of_sizes(run, summary),
        *_consequences_of_data_folder(run),
        *_consequences_of_device_and_seed(run, summary),
        *_consequence_of_learning_rate(run, summary),
        *_consequences_of_image_size(run),
        *_consequences_of_recipe(run, summary),
        *_values_fixed_by_recipe(run),
    ):
        stated = _stated_value(run, expectation.value_of)
        if stated.value != expectation.expected:
            expected = f"by {expectation.follows_from} it is {printable(expectation.expected)}"
            yield Fault(stated.line, f"{expectation.value_of} is {printable(stated.value)}; {expected}")


def _stated_value(run: LoggedRun, name: str) -> _StatedValue:
    """Return the value that the log states under a name, and its line.

    There are four kinds of names:

        RECIPE.epochs            a setting
        dataset.train_samples    a field of a section of the header
        seed                     the value of an event
        run_summary.devices      a field of the value of an event

    Args:
        run: The facts that the log states of the run. Sections of the header and values of events must fit the schema,
            because the named field must be there.
        name: The name.

    Returns:
        Value and line; both are None if the log does not have the name.
    """
    line_for_header = run.first_event(schema.RUN_SUMMARY).line  # because the lines of the header are not kept
    if name in run.settings:
        return _StatedValue(line_for_header, run.settings[name])
    section_or_key, _, field = name.partition(".")  # "run_summary" and "devices"; "seed" and ""
    if section_or_key in run.headers:
        return _StatedValue(line_for_header, run.headers[section_or_key][field])
    event = run.first_events.get(section_or_key)
    if event is None:
        return _StatedValue(None, None)
    value = event.value[field] if field else event.value
    return _StatedValue(event.line, value)


def _copies_of_settings(run: LoggedRun) -> list[_Expectation]:
    """Return one expectation for each value in the log that repeats a setting: it must be equal to the setting.

    For instance, run_summary.mode must be the setting MODE, and lars_opt_momentum must be RECIPE.optimizer.momentum.

    Args:
        run: The facts that the log states of the run. A value is left out if the log does not have its setting.
    """
    expectations = []
    # By the name of the value, such as "run_summary.mode": "MODE".
    setting_by_name = {**own_log_rules().setting_by_name, **recipe_settings_of_hyperparameters(run)}
    for name, setting in setting_by_name.items():
        if setting in run.settings:
            expectations.append(_Expectation(name, follows_from=setting, expected=run.settings[setting]))
    return expectations


def _consequences_of_workload(run: LoggedRun) -> list[_Expectation]:
    """Return what the model and the benchmark in the log must be by the setting WORKLOAD.

    Args:
        run: The facts that the log states of the run. If its workload is unknown, None is expected for both.
    """
    workload = workloads.find(run.workload_name)
    model = workload.model if workload else None
    benchmark = workload.benchmark if workload else None
    return [
        _Expectation("run_summary.model", follows_from="WORKLOAD", expected=model),
        _Expectation("submission_benchmark", follows_from="WORKLOAD", expected=benchmark),
    ]


def _consequences_of_job_settings(run: LoggedRun, summary: schema.RunSummary) -> list[_Expectation]:
    """Return the values that the log must state because of the job's settings, each with the name of its setting.

    If STRATEGY or DGXNGPU is impossible, the value that follows from it is None, which no run states.

    Args:
        run: The facts that the log states of the run.
        summary: The value of the event run_summary, with the number of nodes.
    """
    settings = run.settings
    parts = parts_of_batch(str(settings["STRATEGY"]))  # None if its gradient_merge is impossible
    devices_per_node = settings["DGXNGPU"]
    is_whole_number = type(devices_per_node) is int  # not by isinstance, for which True is an int, too
    devices = devices_per_node * summary.nodes if is_whole_number else None
    is_profiled = settings["PROFILE"] != ""
    expectations = [
        _Expectation("gradient_accumulation_steps", follows_from="STRATEGY", expected=parts),
        _Expectation("run_summary.devices", follows_from="DGXNGPU", expected=devices),
        _Expectation("run_summary.profiled", follows_from="PROFILE", expected=is_profiled),
    ]
    must_begin_anew = settings["RESUME"] != "auto"  # with auto, a run may be resumed or not
    if must_begin_anew:
        expectations.append(_Expectation("run_summary.resumed", follows_from="RESUME", expected=False))
    is_synthetic = settings["DATA"] == "synthetic"
    platform = settings["SUBMISSION_PLATFORM"] or settings["DGXSYSTEM"]
    expectations += [
        _Expectation("dataset.synthetic", follows_from="DATA", expected=is_synthetic),
        _Expectation("submission_platform", follows_from="SUBMISSION_PLATFORM", expected=platform),
    ]
    return expectations


def _consequence_of_hosts(settings: JsonObject) -> list[_Expectation]:
    """Return how many nodes DGXNNODES must state by HOSTS, the nodes' names: 2 for "node1,node2".

    Args:
        settings: The settings of the run. HOSTS may be missing or empty, and nothing is expected then.
    """
    hosts = settings.get("HOSTS")
    if not isinstance(hosts, str) or hosts == "":
        return []
    return [_Expectation("DGXNNODES", follows_from="HOSTS", expected=len(hosts.split(",")))]


def _consequences_of_image(settings: JsonObject) -> list[_Expectation]:
    """Return what the header must state of the code that ran, by the two settings that a container's image gives.

    SOURCE_COMMIT is the commit that the image was built from, with "-dirty" behind it if files differed, or "unknown".
    Outside of an image both settings are empty, and the commit is git's.

    Args:
        settings: The settings of the run, with these two.
    """
    digest = settings["IMAGE_DIGEST"] or None
    expectations = [_Expectation("source.image_digest", follows_from="IMAGE_DIGEST", expected=digest)]
    commit_of_image = str(settings["SOURCE_COMMIT"])
    if commit_of_image == "":
        return expectations
    commit: str | None = commit_of_image.removesuffix(_DIRTY)
    is_dirty: bool | None = commit_of_image.endswith(_DIRTY)
    if commit_of_image == _UNKNOWN_COMMIT:
        commit, is_dirty = None, None
    expectations.append(_Expectation("source.commit", follows_from="SOURCE_COMMIT", expected=commit))
    expectations.append(_Expectation("source.dirty", follows_from="SOURCE_COMMIT", expected=is_dirty))
    return expectations


def _consequences_of_sizes(run: LoggedRun, summary: schema.RunSummary) -> list[_Expectation]:
    """Return the values that the log must state as its framework, numbers of samples and global batch.

    Args:
        run: The facts that the log states of the run.
        summary: The value of the event run_summary: the devices, and the images of a step on each.
    """
    dataset = run.header_section(schema.DATASET)
    release = _release_of_paddle(run.header_section(schema.PACKAGES))
    framework = None if release is None else f"paddlepaddle {release}"
    return [
        _Expectation("run_summary.framework", follows_from="packages", expected=framework),
        _Expectation("train_samples", follows_from="dataset", expected=dataset["train_samples"]),
        _Expectation("eval_samples", follows_from="dataset", expected=dataset["eval_samples"]),
        _Expectation("global_batch_size", follows_from="run_summary", expected=_global_batch(summary)),
    ]


def _consequences_of_data_folder(run: LoggedRun) -> list[_Expectation]:
    """Return what the name and the numbers of samples of the data set must be by DATADIR, the setting of its folder.

    A data set has the name of its folder, which paths as ".." do not say. Without DATADIR a run reads the embedded
    data set of its workload, whose numbers of samples are known: the 1,437 digits for training and 360 for evaluation,
    for instance.

    Args:
        run: The facts that the log states of the run.
    """
    folder = str(run.settings["DATADIR"])
    if folder != "":
        name = PurePosixPath(folder).name
        if name in ("", ".."):  # the name is empty for "."
            return []
        return [_Expectation("dataset.name", follows_from="DATADIR", expected=name)]
    workload = workloads.find(run.workload_name)
    embedded = workload.embedded if workload else None
    if embedded is None:
        return []
    follows_from = "DATADIR, which is empty,"
    expectations = [
        _Expectation("dataset.name", follows_from, embedded.name),
        _Expectation("dataset.eval_samples", follows_from, embedded.eval_samples),
    ]
    is_synthetic = run.settings["DATA"] == "synthetic"
    if not is_synthetic:  # an epoch of one made-up batch has a length of its own
        expectations.append(_Expectation("dataset.train_samples", follows_from, embedded.train_samples))
    return expectations


def _release_of_paddle(packages: JsonObject) -> str | None:
    """Return the release of Paddle, such as 2.6.2 of 2.6.2.post120; None if paddlepaddle-gpu is not listed.

    Args:
        packages: The header's section `packages`: the version of each package by its name.
    """
    version = packages.get("paddlepaddle-gpu")
    if version is None:
        return None
    release: str = re.split(r"\.post|\+", version)[0]
    return release


def _consequences_of_image_size(run: LoggedRun) -> list[_Expectation]:
    """Return what the recipe's settings of the image size must be: each side is IMAGE_SIZE, in pixels.

    Args:
        run: The facts that the log states of the run. If its IMAGE_SIZE is 0, the images have the recipe's own size,
            and the result is empty.
    """
    side = run.settings["IMAGE_SIZE"]
    if side == 0:
        return []
    names = [name for name in _SIDES_OF_IMAGES if name in run.settings]
    return [_Expectation(name, follows_from="IMAGE_SIZE", expected=side) for name in names]


def _consequences_of_device_and_seed(run: LoggedRun, summary: schema.RunSummary) -> list[_Expectation]:
    """Return what the precision must be in a run on the CPU, and what the seed must be by the setting SEED.

    No seed is expected if SEED is -1, which asks for any seed, or if the run was resumed, because it keeps its first
    seed.

    Args:
        run: The facts that the log states of the run.
        summary: The value of the event run_summary, which says whether the run was resumed.
    """
    settings = run.settings
    expectations = []
    if settings["DEVICE"] == "cpu":
        expectations.append(_Expectation("PRECISION", follows_from="DEVICE", expected="fp32"))
    asks_for_this_seed = settings["SEED"] != -1
    begins_anew = not summary.resumed
    if asks_for_this_seed and begins_anew:
        expectations.append(_Expectation("seed", follows_from="SEED", expected=settings["SEED"]))
    return expectations


def _consequence_of_learning_rate(run: LoggedRun, summary: schema.RunSummary) -> list[_Expectation]:
    """Return what the base learning rate in the log must be: the recipe's, scaled to the run's global batch.

    Args:
        run: The facts that the log states of the run.
        summary: The value of the event run_summary: the devices, and the images of a step on each.

    Returns:
        A list of one expectation; empty if the optimizer is not known, or if the recipe has no base learning rate.
    """
    optimizer = schema.OPTIMIZERS.get(run.stated_text(schema.OPT_NAME))  # None: not known
    if optimizer is None or "RECIPE.base_learning_rate" not in run.settings:
        return []
    key = optimizer.hyperparameters["base_learning_rate"].key  # such as lars_opt_base_learning_rate
    rate = _base_learning_rate(run, _global_batch(summary))
    return [_Expectation(key, follows_from="the recipe and the batch", expected=rate)]


def _consequences_of_recipe(run: LoggedRun, summary: schema.RunSummary) -> list[_Expectation]:
    """Return what the span of a batch normalization, the recipe's name and the decay steps in the log must be.

    Args:
        run: The facts that the log states of the run. Nothing is expected if own_log.yaml does not have its WORKLOAD,
            because it is not known what the settings of its recipe mean.
        summary: The value of the event run_summary: the devices, and the images of a step on each.
    """
    if run.workload_name not in own_log_rules().recipe_settings:
        return []
    span = _bn_span(run, summary)
    return [
        _Expectation("model_bn_span", follows_from="the batch, STRATEGY and the recipe", expected=span),
        *_consequence_of_recipe_name(run.settings),
        *_consequence_of_decay(run, summary),
    ]


def _consequence_of_recipe_name(settings: JsonObject) -> list[_Expectation]:
    """Return that RECIPE.name, which the log states, must be the recipe that the setting RECIPE names.

    Args:
        settings: The settings of the run. RECIPE may be missing or empty, for the default recipe of the workload.

    Returns:
        A list of one expectation. Empty for the default recipe.
    """
    recipe = settings.get("RECIPE")  # such as mlperf_lars
    if not recipe:
        return []
    return [_Expectation("RECIPE.name", follows_from="RECIPE", expected=recipe)]


def _consequence_of_decay(run: LoggedRun, summary: schema.RunSummary) -> list[_Expectation]:
    """Return what an event such as lars_opt_learning_rate_decay_steps must have as its value.

    Args:
        run: The facts that the log states of the run.
        summary: The value of the event run_summary: the devices, and the images of a step on each.

    Returns:
        A list of one expectation. Empty if the optimizer is not known.
    """
    optimizer = schema.OPTIMIZERS.get(run.stated_text(schema.OPT_NAME))
    if optimizer is None:
        return []
    key = optimizer.hyperparameters["learning_rate_decay_steps"].key
    steps = _decay_steps(run, summary)
    return [_Expectation(key, follows_from="the recipe, MAX_EPOCHS and the batch", expected=steps)]


def _values_fixed_by_recipe(run: LoggedRun) -> list[_Expectation]:
    """Return the values that settings must have by the recipe that the log names, such as 0.759 for RECIPE.target_top1.

    runlog/workloads.json has the values of each recipe: its target and its image size, for instance.

    Args:
        run: The facts that the log states of the run. The recipe is the one that its setting RECIPE.name names.

    Returns:
        The expected values. Empty if the WORKLOAD of the run has no recipe of this name.
    """
    settings = run.settings
    workload = workloads.find(run.workload_name)
    name = settings.get("RECIPE.name")
    if workload is None or not isinstance(name, str):
        return []
    is_size_set_by_job = settings["IMAGE_SIZE"] != 0  # with 0, the images have the recipe's own size
    expectations = []
    for field, value in workload.recipes.get(name, {}).items():
        setting = f"RECIPE.{field}"  # such as RECIPE.target_top1
        if setting in _SIDES_OF_IMAGES and is_size_set_by_job:
            continue
        expectations.append(_Expectation(setting, follows_from=f"the recipe {name}", expected=value))
    return expectations


def _bn_span(run: LoggedRun, summary: schema.RunSummary) -> int | None:
    """Return over how many images a batch normalization takes its statistics.

    A device computes its images of a step in parts, one after the other. The span is one part, or with the setting
    RECIPE.sync_bn the parts of all devices that are computed at the same time:

        span = batch_per_device / parts            without sync_bn
        span = batch_per_device / parts * devices  with sync_bn

    Args:
        run: The facts that the log states of the run. Its setting STRATEGY has the number of parts (gradient_merge).
        summary: The value of the event run_summary: the devices, and the images of a step on each.

    Returns:
        The number of images. None if no run can have these parts (see `parts_of_batch`), or if they do not divide
        batch_per_device.
    """
    parts = parts_of_batch(str(run.settings["STRATEGY"]))
    if parts is None or summary.batch_per_device % parts != 0:  # no run starts with such a STRATEGY
        return None
    images_at_once = summary.batch_per_device // parts
    are_statistics_of_all_devices = run.settings.get("RECIPE.sync_bn")
    if are_statistics_of_all_devices:
        return images_at_once * summary.devices
    return images_at_once


def _decay_steps(run: LoggedRun, summary: schema.RunSummary) -> float | None:
    """Return what a run must log as the decay steps of its learning rate, by the settings of its recipe.

    These are the steps up to the end of the decay, in some recipes without those of the warm-up. For instance, the
    decay ends with step 1000 after 2 epochs of warm-up with 100 steps each: 1000 steps, or 800 without the warm-up.

    Args:
        run: The facts that the log states of the run, with all settings that `missing_settings` looks for.
        summary: The value of the event run_summary: the devices, and the images of a step on each.

    Returns:
        The decay steps. None if the settings do not give them.
    """
    settings = run.settings
    global_batch = _global_batch(summary)
    if global_batch < 1:
        return None
    steps_of_epoch = run.stated_count(schema.TRAIN_SAMPLES) // global_batch
    last_step: Any = settings.get("RECIPE.decay_ends")
    if last_step is None:  # the decay ends with the training
        last_step = _steps_of_training(settings, steps_of_epoch)
    warmup_epochs: Any = settings["RECIPE.warmup_epochs"]
    if not is_number(last_step) or not is_number(warmup_epochs):
        return None
    # A polynomial schedule that warms up from zero counts from the end of the warm-up, as the MLPerf reference does.
    counts_from_warmup = settings["RECIPE.schedule"] == "polynomial" and settings.get("RECIPE.warmup_from_zero")
    if not counts_from_warmup:
        return float(last_step)
    warmup_steps: float = warmup_epochs * steps_of_epoch
    if not is_number(warmup_steps):  # the product of two large numbers may be infinite, which round() refuses
        return None
    return float(last_step) - round(warmup_steps)


def _steps_of_training(settings: JsonObject, steps_of_epoch: int) -> Any:
    """Return all steps of a training by its settings: those of its epochs, or without these RECIPE.iterations.

    Args:
        settings: The settings in the log's header.
        steps_of_epoch: How many steps an epoch has.

    Returns:
        The steps; None, or a value that is not a number, if the settings do not say them.
    """
    epochs: Any = settings[setting_of_epochs(settings)]
    if not epochs:
        return settings.get("RECIPE.iterations")
    if not is_number(epochs):
        return None
    return epochs * steps_of_epoch


def _global_batch(summary: schema.RunSummary) -> int:
    return summary.devices * summary.batch_per_device


def _base_learning_rate(run: LoggedRun, batch: int) -> float | None:
    """Return the base learning rate of the recipe, scaled to the global batch.

    RECIPE.base_learning_rate is for a batch of RECIPE.base_batch. It is not scaled if that is null or 0.

    Args:
        run: The facts that the log states of the run.
        batch: Images of a step on all devices.

    Returns:
        The rate; None if the recipe states no numbers.
    """
    rate: Any = run.settings["RECIPE.base_learning_rate"]
    batch_of_rate: Any = run.settings.get("RECIPE.base_batch") or batch  # null or 0: not scaled
    if not is_number(rate) or not is_number(batch_of_rate) or batch_of_rate <= 0:
        return None
    return float(rate) * (batch / float(batch_of_rate))
