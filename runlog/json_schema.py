"""The contents of a log of ours, which `schema.py` lists, as JSON Schema."""

import types
import typing
from typing import Annotated, Any

from runlog.json_types import JsonObject
from runlog.schema import EVENTS, SECTIONS, Format, Mark, Point, Section, is_optional

JsonSchema = JsonObject


def json_schema() -> JsonSchema:
    """Return the JSON Schema of one line of a log without its token (`:::MLLOG ` or `# `)."""
    lines = {f"event {key}": _schema_of_event(event) for key, event in EVENTS.items()}
    for name, section in SECTIONS.items():
        lines[f"section {name}"] = _schema_of_section(section)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a {Format().format}, version {Format().version}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in lines],
        "$defs": lines,
    }


def _schema_of_section(section: Section[Any]) -> JsonSchema:
    """Return the JSON Schema of the line of a header section: {"<section>": value}.

    Args:
        section: The header section as `runlog/schema.py` lists it, with the type of its value.
    """
    schema = _schema_of_object({section.name: _schema_of_type(section.value)}, [section.name])
    return schema | {"description": section.meaning}


def _schema_of_event(event: Point[Any] | Mark) -> JsonSchema:
    """Return the JSON Schema of the log line of an event.

    Args:
        event: The event as `runlog/schema.py` lists it: a Point, which has a value, or a Mark (start or end of an
            interval), which has none.
    """
    fields = {
        "namespace": {"const": ""},
        "time_ms": {"type": "integer", "unit": "ms", "description": "Unix time"},
        "event_type": {"const": event.event_type},
        "key": {"const": event.key},
        "value": _schema_of_value(event) if isinstance(event, Point) else {"type": "null"},
        "metadata": _schema_of_metadata(event.metadata),
    }
    schema = _schema_of_object(fields, required=list(fields))
    return schema | {"description": event.meaning}


def _schema_of_value(point: Point[Any]) -> JsonSchema:
    """Return the JSON Schema of the value of an event, with its unit and its least value if it has them.

    Args:
        point: The event as `runlog/schema.py` lists it.
    """
    schema = _schema_of_type(point.value)
    if point.unit:
        schema["unit"] = point.unit
    if point.least is not None:
        schema["minimum"] = point.least
    return schema


def _schema_of_metadata(kind: type | None) -> JsonSchema:
    """Return the JSON Schema of an event's metadata, the fields that stand next to the event's value.

    Each event has the fields "file" and "lineno", which the logger adds. Some events have further fields, such as
    "epoch_num".

    Args:
        kind: The class, a named tuple, whose fields are the further fields; None for an event without further fields.
    """
    # mlperf-logging's mllog adds these two to each event by itself.
    by_logger = {"file": {"type": "string"}, "lineno": {"type": "integer"}}
    if kind is None:
        return _schema_of_object(by_logger, required=list(by_logger))  # with these two fields and no others
    # For a named tuple: {"properties": {"epoch_num": {"type": "integer", ...}}, "required": ["epoch_num"], ...}
    own = _schema_of_type(kind)
    return _schema_of_object(by_logger | own["properties"], required=[*by_logger, *own["required"]])


def _schema_of_object(properties: JsonSchema, required: list[str]) -> JsonSchema:
    """Return the JSON Schema of an object with some properties and no others.

    Args:
        properties: The JSON Schema of each property, by its name.
        required: The names of those that must be there.
    """
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _schema_of_type(kind: Any) -> JsonSchema:
    """Return the JSON Schema of a Python type: `list[int]` -> {"type": "array", "items": {"type": "integer"}}.

    Args:
        kind: Any type of a value that a log holds: a plain type, a union, a list, a dict, a named tuple, `Any`, or one
            of them as `Annotated[type, unit, meaning]`.
    """
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Annotated:
        unit, meaning = kind.__metadata__
        schema = _schema_of_type(arguments[0])
        if unit:
            schema["unit"] = unit
        return schema | {"description": meaning}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema_of_type(member) for member in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema_of_type(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of_type(arguments[1])}
    return _schema_of_tuple(kind)  # a log holds no other types


def _schema_of_tuple(kind: Any) -> JsonSchema:
    """Return the JSON Schema of a named tuple, as an object with a property for each field.

    Args:
        kind: The named tuple. A field with the default None may be absent from a log, so it is not required.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    properties = {}
    required = []
    for name, hint in hints.items():
        properties[name] = _schema_of_type(hint)
        if not is_optional(kind, name):
            required.append(name)
    return _schema_of_object(properties, required)
