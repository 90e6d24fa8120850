"""Fills in the templates in this folder: the pages in HTML and the report of a package in Markdown."""

from pathlib import Path
from typing import Any

from runlog.text import printable


def rendered(name: str, **values: Any) -> str:
    """Return the text of a template in this folder, filled in with values.

    Args:
        name: File of the template, such as "package.md" or "audit.html".
        values: The values by the names that the template uses. It may also use `style`, the style sheet.

    Raises:
        jinja2.UndefinedError: The template uses a name without a value.
    """
    environment = _environment(is_html=name.endswith(".html"))
    text: str = environment.from_string(template_text(name)).render(style=template_text("page.css"), **values)
    return text


def _environment(*, is_html: bool) -> Any:
    """Return the jinja2.Environment that fills in templates of HTML, or else of Markdown.

    In HTML the values are escaped. In Markdown they are not, and a line break after a tag such as {% if %} is dropped,
    because an empty line would end a table. A template applies the filters as in {{ minutes | rounded }}.

    Args:
        is_html: Whether the templates are HTML.
    """
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=is_html,
        trim_blocks=not is_html,
        keep_trailing_newline=not is_html,
    )
    environment.filters |= {"shown": printable, "repr": _all_digits, "rounded": _four_digits}
    return environment


def _all_digits(value: Any) -> str:
    return "not stated" if value is None else repr(value)


def _four_digits(value: float | None) -> str:
    return "not stated" if value is None else f"{value:.4f}"


def template_text(name: str) -> str:
    """Return the text of a template, or of the style sheet, in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
