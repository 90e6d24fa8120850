"""Fills in the templates in this folder: the pages in HTML and the report of a package in Markdown."""

from pathlib import Path
from typing import Any

from runlog.text import printable


def rendered(name: str, **values: Any) -> str:
    """Return the text of the template `name` in this folder, filled in with `values`.

    The template may also use `style`, the style sheet. In a template of HTML the values are escaped, in one of Markdown
    they are not. Raises jinja2.UndefinedError if the template uses a name that has no value.
    """
    import jinja2

    is_html = name.endswith(".html")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=is_html,
        # In Markdown, drop the line break after a tag such as {% if %}: an empty line would end a table.
        trim_blocks=not is_html,
        keep_trailing_newline=not is_html,
    )
    # A template applies these functions as in {{ minutes | rounded }}.
    environment.filters |= {"shown": printable, "repr": _all_digits, "rounded": _four_digits}
    return environment.from_string(template_text(name)).render(style=template_text("page.css"), **values)


def _all_digits(value: Any) -> str:
    return "not stated" if value is None else repr(value)


def _four_digits(value: float | None) -> str:
    return "not stated" if value is None else f"{value:.4f}"


def template_text(name: str) -> str:
    """Return the text of a template, or of the style sheet, in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
