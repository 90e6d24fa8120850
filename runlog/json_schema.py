"""The schema as JSON Schema, and values of its types as JSON."""

import dataclasses
import types
import typing
from typing import Annotated, Any

from runlog.schema import EVENTS, SECTIONS, Format, Mark, Point, Table


def json_schema() -> Table:
    """Schema of one line of a log, less its token (`:::MLLOG ` or `# `)."""
    lines = {f"event {key}": _event(event) for key, event in EVENTS.items()}
    for name, section in SECTIONS.items():
        lines[f"section {name}"] = _object({name: _type(section.value)}, [name]) | {"description": section.meaning}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a {Format().format}, version {Format().version}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in lines],
        "$defs": lines,
    }


def _event(event: Point[Any] | Mark) -> Table:
    where = {"file": {"type": "string"}, "lineno": {"type": "integer"}}
    required = list(where)
    if event.metadata:
        beside = _type(event.metadata)
        where |= beside["properties"]
        required += beside["required"]
    value: Table = {"type": "null"}
    if isinstance(event, Point):
        value = _type(event.value) | ({"unit": event.unit} if event.unit else {})
        value |= {} if event.least is None else {"minimum": event.least}
    fields = {
        "namespace": {"const": ""},
        "time_ms": {"type": "integer", "unit": "ms", "description": "Unix time"},
        "event_type": {"const": event.event_type},
        "key": {"const": event.key},
        "value": value,
        "metadata": _object(where, required),
    }
    return _object(fields, list(fields)) | {"description": event.meaning}


def _object(properties: Table, required: list[str]) -> Table:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _type(kind: Any) -> Table:
    """A type as JSON Schema."""
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        unit, meaning = kind.__metadata__
        return _type(inner[0]) | ({"unit": unit} if unit else {}) | {"description": meaning}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_type(one) for one in inner]}
    if origin is list:
        return {"type": "array", "items": _type(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(inner[1])}
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    # A field with a default of None may be left out; one with another default is always written.
    return _object({f.name: _type(hints[f.name]) for f in fields}, [f.name for f in fields if f.default is not None])


def as_json(value: Any) -> Any:
    """A value of the types above as JSON holds it."""
    if dataclasses.is_dataclass(value):
        table = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if item is not None or f.default is not None:
                table[f.name] = as_json(item)
        return table
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
