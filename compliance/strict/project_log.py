"""What a log that calls itself ours must hold: the sections, events and fields of runlog's schema, all in agreement."""

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any

from compliance.first_values import FirstValues, is_number
from compliance.strict.machine import most_images_per_s
from compliance.strict.run_order import RunOrder
from compliance.strict.windows import TIME_TOLERANCE
from runlog import schema
from runlog.reader import hints_of, settings_of
from runlog.text import printable

_OF_A_RUN = (
    *(schema.SEED, schema.GLOBAL_BATCH_SIZE, schema.GRADIENT_ACCUMULATION_STEPS, schema.MODEL_BN_SPAN),
    schema.RUN_SUMMARY,
)
_OURS = (  # only this project writes them
    *(schema.RUN_SUMMARY, schema.STEP_WINDOW, schema.RANK_TIMES, schema.EPOCH_THROUGHPUT, schema.TELEMETRY_SUMMARY),
    schema.CLOCK_SET,
)
_OF_TRAINING = (
    *(schema.BLOCK_START, schema.BLOCK_STOP, schema.EPOCH_START, schema.EPOCH_STOP, schema.EVAL_START),
    *(schema.EVAL_STOP, schema.EVAL_ACCURACY),
)
_WORKLOADS = {"rn50": ("resnet", "resnet50_v1.5"), "hrnet": ("hrnet", "fcn_hrnetw18")}  # benchmark and model
_OF_SUMMARY = {  # the setting that a field of it repeats
    **{"mode": "MODE", "data": "DATA", "precision": "PRECISION", "math_mode": "PRECISION"},
    **{"batch_per_device": "BATCHSIZE", "nodes": "DGXNNODES"},
}
_OF_SUBMISSION = (schema.SUBMISSION_ORG, schema.SUBMISSION_DIVISION, schema.SUBMISSION_STATUS)
_SETTINGS = frozenset(
    {
        *("WORKLOAD", "MODE", "DATA", "PRECISION", "DEVICE", "BATCHSIZE", "DGXNNODES", "DGXNGPU", "DGXSYSTEM", "SEED"),
        *("STRATEGY", "PROFILE", "RESUME", "TELEMETRY_S", "PRINT_STEPS", "WARMUP_STEPS", "MEASURED_STEPS"),
        *("SUBMISSION_ORG", "SUBMISSION_DIVISION", "SUBMISSION_STATUS", "SUBMISSION_PLATFORM", "RECIPE.epochs"),
    }
)
_SOURCE = {"commit": "[0-9a-f]{40}", "lock_sha256": "[0-9a-f]{64}", "image_digest": "sha256:[0-9a-f]{64}"}


def is_project_log(headers: Mapping[str, Any], values: FirstValues) -> bool:
    """Whether a log has anything that only this project writes."""
    return not headers.keys().isdisjoint(schema.SECTIONS) or any(values.of(event).count for event in _OURS)


def lacks(headers: Mapping[str, Any], values: FirstValues, order: RunOrder) -> Iterator[tuple[int | None, str]]:
    """What such a log lacks: line, or None, and what."""
    for name, section in schema.SECTIONS.items():
        if name not in headers:
            yield None, f"no header section {name}"
        elif not fits(section.value, headers[name]):
            yield None, f"the header section {name} is not as the schema has it: {printable(headers[name])}"
    configured, summary = settings_of(headers.get(schema.CONFIG.name)), values.of(schema.RUN_SUMMARY)
    for once in (schema.RUN_SUMMARY, schema.SEED):
        if (state := values.of(once)).count > 1:
            yield state.line, f"{state.count} {once.key}; a run writes one"
    trained = order.status == "success" and isinstance(summary.value, dict) and summary.value.get("mode") == "train"
    for event in (*_OF_A_RUN, *(_OF_TRAINING if trained else ())):
        if not values.of(event).count:
            yield None, f"no {event.key}"
    if summary.count and not fits(schema.RunSummary, summary.value):
        yield summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}"
    elif summary.count and all(name in headers and fits(s.value, headers[name]) for name, s in schema.SECTIONS.items()):
        yield from _contradictions(headers, configured, values, schema.RunSummary(**summary.value))
    yield from _recipe(values, auto=configured.get("STRATEGY") == "auto")
    yield from _ending(values, order, configured.get("TELEMETRY_S"))
    yield from order.windows.faults
    yield from _impossible(headers, configured, values, order)


def _impossible(
    headers: Mapping[str, Any], configured: Mapping[str, Any], values: FirstValues, order: RunOrder
) -> Iterator[tuple[int | None, str]]:
    """What the machine, the recipe or the sampler of such a run cannot give."""
    hardware = headers.get(schema.HARDWARE.name)
    rate, line = order.windows.fastest
    pixels = configured.get("RECIPE.image_size")
    nodes = hardware["nodes"] if isinstance(hardware, dict) and fits(schema.Hardware, hardware) else []
    if values.text(schema.SUBMISSION_BENCHMARK) == "resnet" and type(pixels) is int and pixels > 0 and nodes:
        cards = (
            [str(gpu["name"]) for node in nodes for gpu in node["gpus"]]
            if headers[schema.HARDWARE.name]["device"] == "gpu"
            else []
        )
        most = most_images_per_s(cards, sum(node["cores"] for node in nodes), pixels)
        if most is not None and rate > most:
            what = f"{len(cards)} cards" if cards else f"{sum(node['cores'] for node in nodes)} cores"
            yield line, f"a window of {rate:.6g} images/s; the peak of its {what} is below {most:.6g} at {pixels} px"
    epochs, target = configured.get("RECIPE.epochs"), recipe_target(headers)
    reached = target is None or any(one.value >= target for one in order.evaluations)
    short = is_number(epochs) and (order.last_epoch or 0) < float(str(epochs)) and not configured.get("MAX_EPOCHS")
    if order.status == "success" and short and not reached:
        yield order.stop_line, f"it ends in epoch {order.last_epoch} of {epochs}, and did not reach its target"
    summary, every_s = values.of(schema.TELEMETRY_SUMMARY), configured.get("TELEMETRY_S")
    if (
        summary.count
        and isinstance(every_s, int | float)
        and every_s > 0
        and None not in (order.start_ms, order.stop_ms)
    ):
        due = (order.stop_ms - order.start_ms) / 1000 / every_s * max(len(nodes), 1)  # type: ignore[operator]
        samples = summary.value.get("samples") if isinstance(summary.value, dict) else None
        if samples is not None and is_number(samples) and samples < due / 2:
            yield summary.line, f"{samples} samples of telemetry; {due:.0f} were due, by TELEMETRY_S and the run's time"


def recipe_target(headers: Mapping[str, Any]) -> float | None:
    """The target of the recipe that the header's `config` names; an open run may choose it."""
    configured = settings_of(headers.get(schema.CONFIG.name))
    named = (value for name, value in configured.items() if name.startswith("RECIPE.target_"))
    return next((float(value) for value in named if is_number(value)), None)


def _recipe(values: FirstValues, *, auto: bool) -> Iterator[tuple[int | None, str]]:
    """The optimizer is Paddle's choice with STRATEGY=auto, and else logged whole."""
    kind = values.text(schema.OPT_NAME)
    if auto or kind not in schema.OPTIMIZER:
        if not auto:
            yield values.of(schema.OPT_NAME).line or None, f"opt_name is {printable(kind) or 'absent'}"
        return
    points = [schema.WARMUP_EPOCHS[kind], *schema.OPTIMIZER[kind].values()]
    if missing := [point.key for point in points if not values.of(point).count]:
        yield None, f"no {', '.join(missing)} beside the rest of the recipe"


def _ending(values: FirstValues, order: RunOrder, telemetry_s: Any) -> Iterator[tuple[int | None, str]]:
    """What belongs to the status of a run that ended."""
    aborted, telemetry = values.of(schema.ABORT_REASON), values.of(schema.TELEMETRY_SUMMARY)
    if aborted.count and order.status == "success":
        yield aborted.line, "an abort_reason, and status success"
    wanted = 1 if telemetry_s and order.status == "success" else 0
    if telemetry.count != wanted and order.stop_line:
        yield telemetry.line or None, f"{telemetry.count} telemetry_summary, {wanted} by TELEMETRY_S and the status"
    elif telemetry.count and not fits(schema.TelemetrySummary, telemetry.value):
        yield telemetry.line, f"telemetry_summary is not as the schema has it: {printable(telemetry.value)}"
    elif telemetry.count and telemetry.line < (order.stop_line or 0):
        yield telemetry.line, "telemetry_summary before run_stop"
    elif telemetry.count:
        energy_j = telemetry.value["energy_j"] or 0
        joules = (telemetry.value["joules_per_image"] or 0) * order.windows.all_images
        if not abs(joules - energy_j) <= TIME_TOLERANCE * joules:
            yield telemetry.line, f"{energy_j:.6g} J; by joules_per_image it is {joules:.6g} J"


def _contradictions(
    headers: Mapping[str, Any], configured: Mapping[str, Any], values: FirstValues, summary: schema.RunSummary
) -> Iterator[tuple[int | None, str]]:
    """What the log says in two places, and differently."""
    for name, form in _SOURCE.items():
        if (text := headers[schema.SOURCE.name][name]) is not None and not re.fullmatch(form, text):
            yield None, f"source's {name} is {printable(text)}"
    at_line = values.of(schema.RUN_SUMMARY).line
    wanted = _SETTINGS | ({"RECIPE.image_size"} if configured.get("WORKLOAD") == "rn50" else set())
    if missing := sorted(wanted - configured.keys()):
        yield None, f"the header section config lacks {', '.join(missing)}"
        return
    hosts = len(headers[schema.HARDWARE.name]["nodes"])
    if min(summary.devices, summary.batch_per_device, hosts) < 1 or hosts > summary.nodes:
        yield (
            at_line,
            f"{summary.devices} devices of {summary.batch_per_device} images, {summary.nodes} nodes, {hosts} hosts",
        )
    for node in headers[schema.HARDWARE.name]["nodes"] if configured["DEVICE"] == "gpu" else []:
        if len(node["gpus"]) < summary.devices / summary.nodes:
            yield None, f"{summary.devices} ranks on {summary.nodes} nodes, and {len(node['gpus'])} GPUs in one of them"
    for where, found, by, wanted in _said_twice(headers, configured, values, summary):
        line = at_line
        if isinstance(where, schema.Point):
            line, found, where = values.of(where).line, values.of(where).value, where.key
        if found != wanted:
            yield line, f"{where} is {printable(found)}; by {by} it is {printable(wanted)}"


def _said_twice(
    headers: Mapping[str, Any], configured: Mapping[str, Any], values: FirstValues, summary: schema.RunSummary
) -> tuple[tuple[str | schema.Point[Any], Any, str, Any], ...]:
    """Where something stands, an event or a place with what it says; and by what it is known, and as what."""
    hardware, dataset = headers[schema.HARDWARE.name], headers[schema.DATASET.name]
    benchmark, model = _WORKLOADS.get(str(configured["WORKLOAD"]), (None, None))
    ranks, seed = configured["DGXNGPU"], configured["SEED"]
    drawn = summary.resumed or seed == -1
    return (
        *((f"run_summary's {name}", getattr(summary, name), by, configured[by]) for name, by in _OF_SUMMARY.items()),
        *((point, None, point.key.upper(), configured[point.key.upper()]) for point in _OF_SUBMISSION),
        ("run_summary's model", summary.model, "WORKLOAD", model),
        ("run_summary's devices", summary.devices, "DGXNGPU", type(ranks) is int and ranks * summary.nodes),
        ("run_summary's profiled", summary.profiled, "PROFILE", configured["PROFILE"] != ""),
        ("run_summary's resumed", summary.resumed, "RESUME", configured["RESUME"] == "auto" and summary.resumed),
        ("hardware's math_mode", hardware["math_mode"], "PRECISION", configured["PRECISION"]),
        *([("PRECISION", configured["PRECISION"], "DEVICE", "fp32")] if configured["DEVICE"] == "cpu" else []),
        ("hardware's device", hardware["device"], "DEVICE", configured["DEVICE"]),
        ("dataset's synthetic", dataset["synthetic"], "DATA", configured["DATA"] == "synthetic"),
        (schema.SUBMISSION_BENCHMARK, None, "WORKLOAD", benchmark),
        (
            schema.SUBMISSION_PLATFORM,
            None,
            "SUBMISSION_PLATFORM",
            configured["SUBMISSION_PLATFORM"] or configured["DGXSYSTEM"],
        ),
        (schema.GLOBAL_BATCH_SIZE, None, "run_summary", summary.devices * summary.batch_per_device),
        (schema.TRAIN_SAMPLES, None, "dataset", dataset["train_samples"]),
        (schema.EVAL_SAMPLES, None, "dataset", dataset["eval_samples"]),
        *(
            (point, None, f"RECIPE.{name}", configured[f"RECIPE.{name}"])
            for point, name in _of_recipe(values.text(schema.OPT_NAME))
            if f"RECIPE.{name}" in configured
        ),
        *(
            (schema.OPTIMIZER[kind]["base_learning_rate"], None, "the recipe and the batch", rate)
            for kind in schema.OPTIMIZER
            if kind == values.text(schema.OPT_NAME) and (rate := _learning_rate(configured, summary)) is not None
        ),
        (schema.SEED, None, "SEED", values.of(schema.SEED).value if drawn else seed),
    )


def _of_recipe(kind: str) -> Iterator[tuple[schema.Point[Any], str]]:
    """The events of an optimizer of this kind that repeat the recipe, and their names there."""
    if kind in schema.OPTIMIZER:
        yield schema.OPT_NAME, "optimizer.kind"
        yield schema.WARMUP_EPOCHS[kind], "warmup_epochs"
        yield schema.OPTIMIZER[kind]["end_learning_rate"], "end_learning_rate"
        for name in ("momentum", "weight_decay"):
            yield schema.OPTIMIZER[kind][name], f"optimizer.{name}"


def _learning_rate(configured: Mapping[str, Any], summary: schema.RunSummary) -> float | None:
    """The base rate of the recipe at the run's global batch; None where the header does not say it."""
    rate: Any = configured.get("RECIPE.base_learning_rate")
    of_batch: Any = configured.get("RECIPE.base_batch")
    if not (is_number(rate) and (of_batch is None or (is_number(of_batch) and of_batch > 0))):
        return None
    return float(rate) * (summary.devices * summary.batch_per_device / of_batch if of_batch else 1.0)


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is what the schema's type `kind` is in JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, UnionType):
        return any(fits(one, value) for one in arguments)
    if kind is type(None):
        return value is None
    if origin is list:
        return isinstance(value, list) and all(fits(arguments[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(arguments[1], item) for item in value.values())
    if is_dataclass(kind):
        hints = hints_of(kind)  # type: ignore[arg-type]
        return isinstance(value, dict) and all(
            fits(hints[field.name], value[field.name]) if field.name in value else field.default is not MISSING
            for field in fields(kind)
        )
    return type(value) is kind or (kind is float and type(value) is int)
