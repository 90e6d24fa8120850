"""Fills in the templates in this folder: the pages in HTML and the report of a package in Markdown."""

from pathlib import Path
from typing import Any

from runlog.text import printable


def rendered(name: str, **values: Any) -> str:
    """Return the text of the template `name` in this folder, filled in with `values` and the style sheet (`style`).

    Values are escaped in HTML, and not in Markdown. Raises jinja2.UndefinedError if the template uses a name that has
    no value.
    """
    import jinja2

    is_html = name.endswith(".html")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=is_html,
        # Without the line break after a tag such as {% if %}: an empty line would end a table in Markdown.
        trim_blocks=not is_html,
        keep_trailing_newline=not is_html,
    )
    # A template applies these as {{ minutes | rounded }}; `repr` gives all digits.
    environment.filters["shown"] = printable
    environment.filters["repr"] = lambda value: "not stated" if value is None else repr(value)
    environment.filters["rounded"] = lambda value: "not stated" if value is None else f"{value:.4f}"
    return environment.from_string(template_text(name)).render(style=template_text("page.css"), **values)


def template_text(name: str) -> str:
    """Return the text of a template, or of the style sheet, in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
