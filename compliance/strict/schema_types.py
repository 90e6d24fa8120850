"""Whether a value that was read from JSON is of a type of runlog's schema."""

import typing
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any

from runlog.json_types import JsonObject
from runlog.reader import hints_of


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value that was read from JSON is of the type `kind`, a type of runlog/schema.py.

        fits(list[int], [1, 2])  -> True, as all items fit int
        fits(int | None, None)   -> True
        fits(float, 3)           -> True, because JSON may write 3.0 as 3
        fits(int, True)          -> False

    A table fits a dataclass if it has the fields of the dataclass, each of its type. An integer of more than 63 bits
    only fits Any.
    """
    outer_type = typing.get_origin(kind)  # list, of list[int]
    inner_types = typing.get_args(kind)  # int, of list[int]
    if kind is Any:
        return True
    if outer_type in (typing.Union, UnionType):
        return any(fits(alternative, value) for alternative in inner_types)
    if outer_type in (list, dict):
        if not isinstance(value, outer_type):
            return False
        items = value.values() if isinstance(value, dict) else value
        item_type = inner_types[-1]  # X of list[X] and of dict[str, X]
        return all(fits(item_type, item) for item in items)
    if is_dataclass(kind):
        return isinstance(value, dict) and _has_fields(kind, value)
    if type(value) is int:  # an integer of JSON may have any number of digits
        return kind in (int, float) and abs(value) < 2**63
    return type(value) is kind


def _has_fields(kind: Any, value: JsonObject) -> bool:
    """Return whether a table has the fields of the dataclass `kind`, each of its type.

    A field with a default may be missing. Other fields of the table do not matter.
    """
    hints = hints_of(kind)
    for field in fields(kind):
        is_present = field.name in value
        if is_present and not fits(hints[field.name], value[field.name]):
            return False
        if not is_present and field.default is MISSING:
            return False
    return True
