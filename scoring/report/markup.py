"""HTML by construction: whatever is not `Html` already is escaped when it goes into a tag."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from scoring.report.text import visible


class Html(str):
    """Text that is HTML already; any other `str` is escaped when it goes into a tag."""


Child = Html | str | int | float | None | Sequence[Any]


def flat(children: Iterable[Child]) -> str:
    """Children as HTML: escaped, unless they are HTML."""
    out: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            out.append(child)
        elif isinstance(child, str | int | float):
            out.append(html.escape(visible(child, limit=100_000)))
        else:
            out.append(flat(child))
    return "".join(out)


def tag(name: str, *children: Child, **attributes: str | int | None) -> Html:
    """An element; `class_` is its class, a `_` within an attribute's name its `-`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{flat(children)}</{name}>")


def table(
    head: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    numeric: Iterable[int] = (),
    id: str | None = None,
) -> Html:
    """A table in a box of its own that scrolls sideways on a phone; columns `numeric` are set flush right."""
    right = set(numeric)
    cells = [
        tag("tr", [tag("td", cell, class_="n" if at in right else None) for at, cell in enumerate(row)]) for row in rows
    ]
    heads = tag(
        "tr", [tag("th", cell, scope="col", class_="n" if at in right else None) for at, cell in enumerate(head)]
    )
    inner = tag("table", tag("thead", heads), tag("tbody", cells))
    box = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("div", tag("p", caption, class_="caption"), box, id=id)


def figure(svg: str, caption: Child, data: Html | None = None) -> Html:
    """A plot, what it shows in words, and its numbers as a table."""
    folded = tag("details", tag("summary", "numbers of this plot"), data) if data else None
    return tag("figure", Html(svg), tag("figcaption", caption), folded)


def tile(value: str, unit: str, text: Child, *, main: bool = False) -> Html:
    """A figure set large, with its unit and what it is."""
    return tag(
        "div",
        tag("p", tag("span", value, class_="value"), " ", tag("span", unit, class_="unit")),
        tag("p", text, class_="what"),
        class_="tile main" if main else "tile",
    )
