"""Fills in the templates in this folder: the pages in HTML and the report of a package in Markdown."""

from pathlib import Path
from typing import Any

from runlog.text import printable


def rendered(name: str, **values: Any) -> str:
    """Return the text of the template `name` in this folder, filled in with `values` and, as `style`, the style sheet.

    - HTML: the values are escaped.
    - Markdown: the values are not escaped. A line with only a tag leaves no line, and the text keeps its last line
      break.

    A template may apply three filters to a value: `shown` makes it printable, `repr` gives all its digits, and
    `rounded` gives four decimals. For None, the last two give `not stated`.

    Raises jinja2.UndefinedError if `values` lacks a name that the template uses.
    """
    import jinja2

    is_html = name.endswith(".html")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=is_html,
        trim_blocks=not is_html,  # in Markdown, the empty line that a tag leaves would end a table
        keep_trailing_newline=not is_html,
    )
    environment.filters["shown"] = printable
    environment.filters["repr"] = lambda value: "not stated" if value is None else repr(value)
    environment.filters["rounded"] = lambda value: "not stated" if value is None else f"{value:.4f}"
    return environment.from_string(template_text(name)).render(style=template_text("page.css"), **values)


def template_text(name: str) -> str:
    """Return the text of a template, or of the style sheet, in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
