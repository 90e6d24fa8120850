"""What a log that calls itself ours must hold: the sections, events and fields of runlog's schema."""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any

from compliance.course import Course
from compliance.findings import printable
from compliance.rows import Rows
from runlog import schema

_OF_A_RUN = (schema.SEED, schema.GLOBAL_BATCH_SIZE, schema.GRADIENT_ACCUMULATION_STEPS, schema.RUN_SUMMARY)
_OF_TRAINING = (
    *(schema.BLOCK_START, schema.BLOCK_STOP, schema.EPOCH_START, schema.EPOCH_STOP, schema.EVAL_START),
    *(schema.EVAL_STOP, schema.EVAL_ACCURACY),
)


def is_own(headers: Mapping[str, Any], rows: Rows, course: Course) -> bool:
    """Whether a log has anything that only this project writes."""
    return bool(
        not headers.keys().isdisjoint(schema.SECTIONS)
        or rows.of(schema.RUN_SUMMARY).count
        or course.windows_seen
        or course.measured
    )


def lacks(headers: Mapping[str, Any], rows: Rows, course: Course) -> Iterator[tuple[int | None, str]]:
    """What such a log lacks: line, or None, and what."""
    for name, section in schema.SECTIONS.items():
        if name not in headers:
            yield None, f"no header section {name}"
        elif not fits(section.value, headers[name]):
            yield None, f"the header section {name} is not as the schema has it: {printable(headers[name])}"
    summary = rows.of(schema.RUN_SUMMARY)
    for once in (schema.RUN_SUMMARY, schema.SEED):
        if (state := rows.of(once)).count > 1:
            yield state.line, f"{state.count} {once.key}; a run writes one"
    trained = course.status == "success" and isinstance(summary.value, dict) and summary.value.get("mode") == "train"
    for event in (*_OF_A_RUN, *(_OF_TRAINING if trained else ())):
        if not rows.of(event).count:
            yield None, f"no {event.key}"
    for points in schema.OPTIMIZER.values():
        recipe: list[schema.Point[Any]] = [schema.OPT_NAME, *points.values()]
        missing = [event.key for event in recipe if not rows.of(event).count]
        if missing and len(recipe) - len(missing) > 2:
            yield None, f"no {', '.join(missing)} beside the rest of the recipe"
    if summary.count and not fits(schema.RunSummary, summary.value):
        yield summary.line, f"run_summary is not as the schema has it: {printable(summary.value)}"
    yield from course.own_faults


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
