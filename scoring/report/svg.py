"""matplotlib's SVG as a part of the page: its colours are the page's variables, and screen readers read its text."""

import html
import re

from runlog.text import visible
from scoring.report.blocks import Figure

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


def for_page(svg: str, figure: Figure) -> str:
    """Return matplotlib's SVG of a figure, changed so that it can stand in the page.

    - Ids differ between the plots of a page: in the figure "loss", `url(#clip)` becomes `url(#loss-clip)`.
    - Colours are the page's variables: `#010101` becomes `var(--ink)`.
    - Text keeps its size, and takes the font of the page.
    - The `<svg>` tag is a new one, followed by a title and a description for screen readers.
    """
    drawing = _METADATA.sub("", svg)
    drawing = _with_ids_of(figure, drawing)
    drawing = _with_colors_of_page(drawing)
    drawing = _FONT.sub(r"font-size: \g<size>", drawing)
    return _with_words_for_screen_readers(figure, drawing)


def _with_ids_of(figure: Figure, svg: str) -> str:
    """Return the SVG with the name of its figure before each id and each reference to an id."""
    matched = r"\g<0>"  # such as `id="`
    return _START_OF_ID_OR_REFERENCE.sub(f"{matched}{figure.name}-", svg)


def _with_colors_of_page(svg: str) -> str:
    """Return the SVG with the page's variables in place of the colours that stand for them."""
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg


def _with_words_for_screen_readers(figure: Figure, svg: str) -> str:
    """Return the SVG with another opening: the tag, a title and a description in place of matplotlib's tag."""
    old_opening = _UP_TO_END_OF_SVG_TAG.match(svg)
    assert old_opening is not None, "matplotlib's SVG has a viewBox"
    drawing = svg[old_opening.end() :]
    return _svg_head(old_opening["view_box"], figure) + drawing


def _svg_head(view_box: str, figure: Figure) -> str:
    """Return the opening tag of a figure's SVG, with the title and the description that screen readers read."""
    words = html.escape(visible(figure.words or figure.caption, 10_000))
    return (
        f'<svg class="plot" xmlns:xlink="http://www.w3.org/1999/xlink" {view_box} role="img" '
        f'aria-labelledby="{figure.name}-title {figure.name}-description">'
        f'<title id="{figure.name}-title">{html.escape(visible(figure.title))}</title>'
        f'<desc id="{figure.name}-description">{words}</desc>'
    )
