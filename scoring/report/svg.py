"""matplotlib's SVG as a part of the page: its colours are the page's variables, and screen readers read its text."""

import html
import re

from runlog.text import visible

# Colours that stand for the page's variables (page.css); no two are equal, none is used otherwise.
INK = "#010101"
MUTED = "#010102"
GRID = "#010103"
SURFACE = "#010104"
SERIES_COLORS = ("#010201", "#010202", "#010203", "#010204", "#010205", "#010206", "#010207", "#010208")
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    SURFACE: "surface",
    **{color: f"series-{number}" for number, color in enumerate(SERIES_COLORS, 1)},
}

_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_START_OF_ID_OR_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_FONT = re.compile(r"font: (?P<size>[\d.]+px) [^;\"]*")
_UP_TO_END_OF_SVG_TAG = re.compile(r'.*?<svg[^>]*(?P<view_box>viewBox="[^"]*")[^>]*>', re.DOTALL)


def for_page(svg: str, name: str, title: str, *, description: str) -> str:
    """Return matplotlib's SVG of a plot, changed so that it can stand in the page.

    - Ids differ between the plots of a page: in the plot "loss", `url(#clip)` becomes `url(#loss-clip)`.
    - Colours are the page's variables: `#010101` becomes `var(--ink)`.
    - Text keeps its size, and takes the font of the page.
    - The `<svg>` tag is new, followed by the title and the description for screen readers.

    Args:
        svg: Text of matplotlib's SVG.
        name: Name of the plot, such as "loss", which no other plot of the page has.
        title: Title of the plot.
        description: The plot in words.
    """
    drawing = _METADATA.sub("", svg)
    drawing = _with_ids_of(name, drawing)
    drawing = _with_colors_of_page(drawing)
    drawing = _FONT.sub(r"font-size: \g<size>", drawing)

    old_opening = _UP_TO_END_OF_SVG_TAG.match(drawing)
    assert old_opening is not None, "matplotlib's SVG has a viewBox"
    rest = drawing[old_opening.end() :]
    return _svg_head(old_opening["view_box"], name, title, description) + rest


def _with_ids_of(name: str, svg: str) -> str:
    """Return the SVG with the name of its figure before each id and each reference to an id."""
    matched = r"\g<0>"  # such as `id="`
    return _START_OF_ID_OR_REFERENCE.sub(f"{matched}{name}-", svg)


def _with_colors_of_page(svg: str) -> str:
    """Return the SVG with the page's variables in place of the colours that stand for them."""
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg


def _svg_head(view_box: str, name: str, title: str, description: str) -> str:
    """Return the beginning of a plot's SVG: its opening `<svg>` tag, a `<title>` and a `<desc>` for screen readers.

    The tag replaces matplotlib's, which has a fixed size. Its closing `</svg>` is not part of the result.

    Args:
        view_box: The whole attribute viewBox of matplotlib's tag, such as `viewBox="0 0 317 187"`.
        name: Name of the plot, such as "loss", for the ids. It is not escaped, so it must be fit for an HTML id.
        title: Title of the plot, as plain text. It is escaped, and cut after 600 characters.
        description: The plot in words, as plain text. It is escaped, and cut after 10,000 characters.

    Returns:
        One line, such as `<svg class="plot" ... aria-labelledby="loss-title loss-description">` followed by
        `<title id="loss-title">Loss</title><desc id="loss-description">The loss falls ...</desc>`.
    """
    escaped_title = html.escape(visible(title))
    escaped_description = html.escape(visible(description, 10_000))
    # The namespace xlink is declared because matplotlib's drawing, which follows, has attributes xlink:href.
    return (
        f'<svg class="plot" xmlns:xlink="http://www.w3.org/1999/xlink" {view_box} role="img" '
        f'aria-labelledby="{name}-title {name}-description">'
        f'<title id="{name}-title">{escaped_title}</title>'
        f'<desc id="{name}-description">{escaped_description}</desc>'
    )
