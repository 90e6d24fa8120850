"""Whether a value that was read from JSON is of a type of runlog's schema."""

import typing
from types import UnionType
from typing import Any

from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import hints_of


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value that was read from JSON is of a type of runlog/schema.py.

        fits(list[int], [1, 2])  -> True, as all items fit int
        fits(int | None, None)   -> True
        fits(float, 3)           -> True, because JSON may write 3.0 as 3
        fits(int, True)          -> False

    A table fits a named tuple if it has the fields of the named tuple, each of its type. Integers of more than 63 bits,
    which JSON may have, fit neither int nor float.

    Args:
        kind: The type: a plain type, a union, a list or dict of some type, a named tuple, or Any.
        value: The value.
    """
    outer_type = typing.get_origin(kind)  # `list` for list[int]
    inner_types = typing.get_args(kind)  # (int,) for list[int]
    if kind is Any:
        return True
    if outer_type in (typing.Union, UnionType):
        return any(fits(alternative, value) for alternative in inner_types)
    if outer_type is list:
        [item_type] = inner_types
        return isinstance(value, list) and all(fits(item_type, item) for item in value)
    if outer_type is dict:
        [_, item_type] = inner_types  # the keys of a table of JSON are always texts
        return isinstance(value, dict) and all(fits(item_type, item) for item in value.values())
    if schema.is_table(kind):
        return isinstance(value, dict) and _has_fields(kind, value)
    if type(value) is int:
        return kind in (int, float) and abs(value) < 2**63
    return type(value) is kind


def _has_fields(kind: Any, value: JsonObject) -> bool:
    """Return whether a table has the fields of a named tuple, each of its type.

    A field with a default may be missing. Other fields of the table do not matter.

    Args:
        kind: The named tuple.
        value: The table.
    """
    hints = hints_of(kind)
    for name in kind._fields:
        if name not in value:
            if name not in kind._field_defaults:
                return False
        elif not fits(hints[name], value[name]):
            return False
    return True
