"""Text from logs and names of files, made safe for a terminal, and for a spreadsheet."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_LINE_CHARS = 10_000


def called(module: str) -> str:
    """Return how the user called this command, for messages that name it.

    Args:
        module: The module that `python -m` runs, such as "scoring".

    Returns:
        The name of the program if it is `paddle-reference` or begins so, else "python -m " and the module.
    """
    name = Path(sys.argv[0]).name
    if name.startswith("paddle-reference"):
        return name
    return f"python -m {module}"


def visible(value: object, limit: int = 600) -> str:
    """Return a value as one line that is safe to print, cut at a number of characters.

    Characters that do not print, such as control characters and reversed writing, are escaped.

    Args:
        value: Anything. Its `str` is shown.
        limit: The most characters of it that are shown. A note tells of the others: "abc… (1,200 more characters)".
    """
    text = str(value)
    escaped = "".join(_escaped(character) for character in text[:limit])
    left_out = len(text) - limit
    if left_out <= 0:
        return escaped
    return f"{escaped}… ({left_out:,} more characters)"


def encodable(text: str) -> str:
    """Return a text in which escapes replace what UTF-8 cannot encode, such as `\\udcff` for a byte of Latin-1."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "replace").decode()


def printable(value: object, limit: int = 160) -> str:
    """Return a JSON value of a log as one line that is safe to print: text without quotes, all else as JSON.

    Args:
        value: The value.
        limit: The most characters of it that are shown.
    """
    if isinstance(value, str):
        return visible(value, limit)
    return visible(as_json(value), limit)


def as_json(value: object) -> str:
    """Return a value as JSON on one line, or the name of its type if JSON cannot hold it.

    Args:
        value: Anything.

    Returns:
        The JSON, or a text such as "a set".
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def safe_lines(lines: Iterable[str]) -> str:
    """Join lines for a terminal. Control characters in them are escaped, and each line is cut at MAX_LINE_CHARS."""
    return "\n".join(visible(line, MAX_LINE_CHARS) for line in lines)


def cell(value: object) -> object:
    """Return a value for a cell of a CSV file, so that a spreadsheet never takes it as a formula.

    Args:
        value: The value. All but text is unchanged.

    Returns:
        Text as `visible` shows it, cut at 4096 characters. If it begins with `=`, `+`, `-` or `@`, an apostrophe stands
        before it.
    """
    if not isinstance(value, str):
        return value
    text = visible(value, limit=4096)
    if text.startswith(("=", "+", "-", "@")):
        return f"'{text}"
    return text


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a CSV file, with a line of column names.

    Args:
        columns: The names of the columns, in order.
        rows: The rows. Each must have a value for every column and no others; None becomes an empty cell.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell(value) for name, value in row.items()})
    return stream.getvalue()
