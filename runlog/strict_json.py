"""JSON that every reader takes in the same way: no key twice, no NaN, no Infinity, and no deep nesting."""

import json
import re
from typing import Any

from runlog.json_types import JsonObject

MAX_NESTING = 50  # well below the recursion limit at which the official parser of mlperf-logging dies


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKeyError(f"the JSON key {max(names, key=names.count)!r} is given twice")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_scan = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).raw_decode
_TOO_DEEP = f"nested more than {MAX_NESTING} deep"
_SPACES = re.compile(r"[ \t\n\r]*")  # JSON's


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, if every reader of JSON takes the text in the same way.

    Args:
        text: The JSON text.

    Raises:
        ValueError: The text is invalid JSON, has NaN, Infinity or a key given twice, is nested more than 50
            (MAX_NESTING) deep, or goes on after the value.
    """
    value, end = scan_value(text, 0)
    if text[end:].strip():
        raise ValueError(f"text after the JSON value, at character {end}")
    return value


def scan_value(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at an index of a text, and the index after its end.

    For example, `{"a": 1} more` from 0 on gives ({"a": 1}, 8).

    Args:
        text: The text. White space may stand before the value, and any text behind it.
        start: The index at which the value, or white space before it, begins.

    Raises:
        ValueError: The value is invalid JSON, has NaN, Infinity or a key given twice, or is nested more than 50
            (MAX_NESTING) deep.
    """
    spaces = _SPACES.match(text, start)
    assert spaces  # the pattern also matches where there is no space
    try:
        value, end = _scan(text, spaces.end())
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    has_many_brackets = text.count("{") + text.count("[") > MAX_NESTING  # cheap, and False for nearly every line
    if has_many_brackets and _nesting_of(value) > MAX_NESTING:
        raise ValueError(_TOO_DEEP)
    return value, end


def _nesting_of(value: Any) -> int:
    """Return how many levels of items lie below a JSON value.

    [[1], 5] has two levels: the items [1] and 5, then the item 1 of [1]. A number has none, and neither has an empty
    list or object: 1 -> 0, [] -> 0, [[]] -> 1.

    Args:
        value: The JSON value.
    """
    # `_items_of` gets a list of values and returns all that lies directly in them. For [[1], 5], `items` becomes:
    # [[1], 5] on the first level, [1] (the items of [1]; 5 has none) on the second one, and then [].
    levels = 0
    items = _items_of([value])
    # A loop, because a recursion would fail at the very depths that are looked for.
    while items:
        levels += 1
        items = _items_of(items)
    return levels


def _items_of(values: list[Any]) -> list[Any]:
    """Return the items of all lists and objects among JSON values. Other values have none."""
    items: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            items += value.values()
        elif isinstance(value, list):
            items += value
    return items
