"""Text from logs and names of files, made safe for a terminal, and for a spreadsheet."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_OF_A_LINE = 10_000


def called(module: str) -> str:
    """How this project's commands are called here: `paddle-reference` where that was, else `python -m MODULE`."""
    name = Path(sys.argv[0]).name
    return name if name.startswith("paddle-reference") else f"python -m {module}"


def visible(value: object, limit: int = 600) -> str:
    """`value` as one line: what does not print (control characters, reversed writing) is escaped; cut at `limit`."""
    text = str(value)
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:limit])
    return escaped if len(text) <= limit else f"{escaped}… ({len(text) - limit:,} more characters)"


def printable(value: object, limit: int = 160) -> str:
    """A JSON value of a log, made visible: text without quotes, all else as JSON."""
    return visible(value if isinstance(value, str) else as_json(value), limit)


def as_json(value: object) -> str:
    """`value` as JSON, or what it is where JSON has no words for it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def safe_lines(lines: Iterable[str]) -> str:
    """Lines for a terminal; what they quote cannot break them or steer it."""
    return "\n".join(visible(line, MOST_OF_A_LINE) for line in lines)


def cell(value: object) -> object:
    """A value of a CSV file: text that a spreadsheet would take as a formula gets an apostrophe before it."""
    if not isinstance(value, str):
        return value
    text = visible(value, limit=4096)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A CSV file of rows, each a value for every column; an empty cell is None."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return stream.getvalue()
