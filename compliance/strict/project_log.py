"""What a log that calls itself ours must hold: the sections, events and fields of runlog's schema, all in agreement."""

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any

from compliance.first_values import FirstValues
from compliance.strict.run_order import Course
from compliance.strict.windows import settings
from runlog import schema
from runlog.text import printable

_OF_A_RUN = (
    *(schema.SEED, schema.GLOBAL_BATCH_SIZE, schema.GRADIENT_ACCUMULATION_STEPS, schema.MODEL_BN_SPAN),
    schema.RUN_SUMMARY,
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
        *("SUBMISSION_ORG", "SUBMISSION_DIVISION", "SUBMISSION_STATUS", "SUBMISSION_PLATFORM"),
    }
)
_SOURCE = {"commit": "[0-9a-f]{40}", "lock_sha256": "[0-9a-f]{64}", "image_digest": "sha256:[0-9a-f]{64}"}


def is_own(headers: Mapping[str, Any], values: FirstValues, course: Course) -> bool:
    """Whether a log has anything that only this project writes."""
    return bool(
        not headers.keys().isdisjoint(schema.SECTIONS)
        or values.of(schema.RUN_SUMMARY).count
        or course.windows.seen
        or course.measured
    )


def lacks(headers: Mapping[str, Any], values: FirstValues, course: Course) -> Iterator[tuple[int | None, str]]:
    """What such a log lacks: line, or None, and what."""
    for name, section in schema.SECTIONS.items():
        if name not in headers:
            yield None, f"no header section {name}"
        elif not fits(section.value, headers[name]):
            yield None, f"the header section {name} is not as the schema has it: {printable(headers[name])}"
    summary = values.of(schema.RUN_SUMMARY)
    for once in (schema.RUN_SUMMARY, schema.SEED):
        if (state := values.of(once)).count > 1:
            yield state.line, f"{state.count} {once.key}; a run writes one"
    trained = course.status == "success" and isinstance(summary.value, dict) and summary.value.get("mode") == "train"
    for event in (*_OF_A_RUN, *(_OF_TRAINING if trained else ())):
        if not values.of(event).count:
            yield None, f"no {event.key}"
    if summary.count and not fits(schema.RunSummary, summary.value):
        yield summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}"
    elif summary.count and all(name in headers and fits(s.value, headers[name]) for name, s in schema.SECTIONS.items()):
        yield from _contradictions(headers, values, schema.RunSummary(**summary.value))
    yield from _recipe(values, auto=settings(headers).get("STRATEGY") == "auto")
    yield from _ending(values, course, settings(headers).get("TELEMETRY_S"))
    yield from course.windows.faults


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


def _ending(values: FirstValues, course: Course, telemetry_s: Any) -> Iterator[tuple[int | None, str]]:
    """What belongs to the status of a run that ended."""
    aborted, telemetry = values.of(schema.ABORT_REASON), values.of(schema.TELEMETRY_SUMMARY)
    if aborted.count and course.status == "success":
        yield aborted.line, "an abort_reason, and status success"
    wanted = 1 if telemetry_s and course.status == "success" else 0
    if telemetry.count != wanted and course.stop_line:
        yield telemetry.line or None, f"{telemetry.count} telemetry_summary, {wanted} by TELEMETRY_S and the status"
    elif telemetry.count and not fits(schema.TelemetrySummary, telemetry.value):
        yield telemetry.line, f"telemetry_summary is not as the schema has it: {printable(telemetry.value)}"
    elif telemetry.count and telemetry.line < (course.stop_line or 0):
        yield telemetry.line, "telemetry_summary before run_stop"


def _contradictions(
    headers: Mapping[str, Any], values: FirstValues, summary: schema.RunSummary
) -> Iterator[tuple[int | None, str]]:
    """What the log says in two places, and differently."""
    for name, form in _SOURCE.items():
        if (text := headers[schema.SOURCE.name][name]) is not None and not re.fullmatch(form, text):
            yield None, f"source's {name} is {printable(text)}"
    said, at_line = settings(headers), values.of(schema.RUN_SUMMARY).line
    if missing := sorted(_SETTINGS - said.keys()):
        yield None, f"the header section config lacks {', '.join(missing)}"
        return
    hosts = len(headers[schema.HARDWARE.name]["nodes"])
    if min(summary.devices, summary.batch_per_device, hosts) < 1 or hosts > summary.nodes:
        yield (
            at_line,
            f"{summary.devices} devices of {summary.batch_per_device} images, {summary.nodes} nodes, {hosts} hosts",
        )
    for where, found, by, wanted in _said_twice(headers, said, values, summary):
        line = at_line
        if isinstance(where, schema.Point):
            line, found, where = values.of(where).line, values.of(where).value, where.key
        if found != wanted:
            yield line, f"{where} is {printable(found)}; by {by} it is {printable(wanted)}"


def _said_twice(
    headers: Mapping[str, Any], said: Mapping[str, Any], values: FirstValues, summary: schema.RunSummary
) -> tuple[tuple[str | schema.Point[Any], Any, str, Any], ...]:
    """Where something stands, an event or a place with what it says; and by what it is known, and as what."""
    hardware, dataset = headers[schema.HARDWARE.name], headers[schema.DATASET.name]
    benchmark, model = _WORKLOADS.get(str(said["WORKLOAD"]), (None, None))
    ranks, seed = said["DGXNGPU"], said["SEED"]
    drawn = summary.resumed or seed == -1
    return (
        *((f"run_summary's {name}", getattr(summary, name), by, said[by]) for name, by in _OF_SUMMARY.items()),
        *((point, None, point.key.upper(), said[point.key.upper()]) for point in _OF_SUBMISSION),
        ("run_summary's model", summary.model, "WORKLOAD", model),
        ("run_summary's devices", summary.devices, "DGXNGPU", type(ranks) is int and ranks * summary.nodes),
        ("run_summary's profiled", summary.profiled, "PROFILE", said["PROFILE"] != ""),
        ("run_summary's resumed", summary.resumed, "RESUME", said["RESUME"] == "auto" and summary.resumed),
        ("hardware's math_mode", hardware["math_mode"], "PRECISION", said["PRECISION"]),
        ("hardware's device", hardware["device"], "DEVICE", said["DEVICE"]),
        ("dataset's synthetic", dataset["synthetic"], "DATA", said["DATA"] == "synthetic"),
        (schema.SUBMISSION_BENCHMARK, None, "WORKLOAD", benchmark),
        (schema.SUBMISSION_PLATFORM, None, "SUBMISSION_PLATFORM", said["SUBMISSION_PLATFORM"] or said["DGXSYSTEM"]),
        (schema.GLOBAL_BATCH_SIZE, None, "run_summary", summary.devices * summary.batch_per_device),
        (schema.TRAIN_SAMPLES, None, "dataset", dataset["train_samples"]),
        (schema.EVAL_SAMPLES, None, "dataset", dataset["eval_samples"]),
        (schema.SEED, None, "SEED", values.of(schema.SEED).value if drawn else seed),
    )


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is what the schema's type `kind` is in JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return fits(arguments[0], value)
    if origin in (typing.Union, UnionType):
        return any(fits(one, value) for one in arguments)
    if kind is type(None):
        return value is None
    if origin is list:
        return isinstance(value, list) and all(fits(arguments[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(arguments[1], item) for item in value.values())
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return isinstance(value, dict) and all(
            fits(hints[field.name], value[field.name]) if field.name in value else field.default is not MISSING
            for field in fields(kind)
        )
    return type(value) is kind or (kind is float and type(value) is int)
