"""The page of a report as data, and as HTML and Markdown by the templates; whatever a template shows is escaped."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from compliance.mlperf import notes_in_order
from runlog.text import visible
from runlog.verdict import Verdict
from scoring.report import brief, course, overlay, performance, plots, provenance, speed
from scoring.report.blocks import Section, Table
from scoring.report.content import Report
from scoring.report.text import markdown
from scoring.report.verdict import applies, next_steps

MAX_CHARS = 100_000  # of one text


class ShownCheck(NamedTuple):
    """A check as the page shows it: a check that does not apply has the status NO_STATUS, with a mark of its own."""

    check: str
    status: str
    found: str

    @classmethod
    def of(cls, verdict: Verdict) -> "ShownCheck":
        """Return a verdict as the page shows it."""
        status = verdict.status if applies(verdict) else brief.NO_STATUS
        return cls(verdict.check, status, verdict.found)


def page(report: Report, command: Sequence[str]) -> dict[str, Any]:
    """Return the values of a report's page, by the names that the HTML and the Markdown template use.

    Args:
        report: The content of the report.
        command: Words after `report` on the command line, for the page to show.

    Returns:
        In this order: "title" and other words for the top of the page; the parts of the page, such as "tiles" and
        "plots"; "lines", the log lines to which the parts link; "footnotes"; and "folder", the path of the logs'
        folder.
    """
    # Numbers in these parts link to the log line that they come from: to line 12 of run 1, for example.
    parts_with_links = {
        "facts": brief.facts(report),
        "tiles": brief.tiles(report),
        "plots": overlay.figures(report),
        "performance": performance.performance(report),
        "tables": _tables(report),
        "sections": _sections(report, command),
    }
    # Collects these links, and quotes each linked line. So all parts must be made before. Only the HTML template shows
    # the quoted lines.
    quoted_lines = provenance.log_lines(report, list(parts_with_links.values()))
    footnotes = [group.score.footnotes for group in report.groups if group.score]
    return {
        **_summary(report),  # "title", "headline", "status", "verdict", "checks", "statuses", "steps"
        **parts_with_links,
        "lines": quoted_lines,
        "footnotes": notes_in_order(itertools.chain.from_iterable(footnotes)),
        "folder": report.folder,
    }


def _summary(report: Report) -> dict[str, Any]:
    """Return the words at the top of the page: the systems, their figures, the verdict, and what to do next."""
    return {
        "title": brief.first_ones_in_words([group.name for group in report.groups]),
        "headline": brief.first_ones_in_words([brief.figure_of(group) for group in report.groups]),
        "status": report.verdict.status,
        "verdict": f"{report.verdict.text}.",
        "checks": [ShownCheck.of(check) for check in report.checks],
        "statuses": brief.STATUSES,
        "steps": next_steps(report.checks),
    }


def _sections(report: Report, command: Sequence[str]) -> list[Section]:
    """Return the folded sections of the page, in their order.

    Args:
        report: The content of the report.
        command: Words after `report` on the command line, which the last section shows.
    """
    return [
        speed.throughput(report),
        speed.step_time(report),
        speed.scaling(report),
        course.training(report),
        course.telemetry(report),
        course.variance(report),
        provenance.compliance(report),
        provenance.provenance(report),
        provenance.reproduce(report, command),
    ]


def _tables(report: Report) -> list[Table]:
    """Return the tables below the performance: runs, systems, warnings, and the runs in order of their start."""
    tables = brief.tables(report)
    in_order = performance.runs_in_order(report)
    if in_order is not None:
        tables.append(in_order)
    return tables


def _as_html(value: object) -> object:
    """Return a value as printable text, which jinja2 then escapes. Markup is returned as it is."""
    if isinstance(value, Markup):
        return value
    return visible(value, MAX_CHARS)


def _as_markdown(value: object) -> Markup:
    """Return a value as Markdown that shows exactly its text. Markup is returned as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(markdown(value))


def _code(value: object) -> Markup:
    """Return a value as printable text for an indented block of Markdown, in which nothing needs to be escaped."""
    return Markup(visible(value, MAX_CHARS))


def _environment(folder: str, finalize: Callable[[object], object]) -> jinja2.Environment:
    """Return the jinja2 environment that renders the templates of a folder.

    Args:
        folder: Folder of the templates: "html" or "markdown".
        finalize: Called with each value that a template shows, to make it printable. What it returns is then escaped
            for HTML, unless it is Markup, the type of text that needs no escaping.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("scoring.report", f"templates/{folder}"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = _code
    # The templates call `drawn` to draw a plot. It is None without matplotlib, which is an optional package: they then
    # say in place of a plot that it is not drawn.
    environment.globals["drawn"] = plots.drawn if find_spec("matplotlib") else None
    return environment


@functools.cache
def _html_templates() -> jinja2.Environment:
    """Return the environment for the HTML templates, which make each value printable and then escape it."""
    return _environment("html", _as_html)


@functools.cache
def _markdown_templates() -> jinja2.Environment:
    """Return the environment for the Markdown templates. They escape each value for Markdown, and not for HTML."""
    return _environment("markdown", _as_markdown)  # which returns Markup


def html(page: Mapping[str, Any]) -> str:
    """Return the report's page as the text of one self-contained HTML file, which needs no scripts and no other files.

    The path of the logs' folder is removed from the text, so that the text does not show where on this machine the logs
    are: with the folder "/data/logs/", "/data/logs/run_0.txt" becomes "run_0.txt".

    Args:
        page: Content of the page, a result of the function `page`. Its value of "folder" is the path of the logs'
            folder. If the path is empty, nothing is removed.
    """
    text = _html_templates().get_template("page.html").render(page=page)
    # A path "/data/a&b/" stands in the text as "/data/a&amp;b/", and can only be found there in this form. jinja2 has
    # changed it in two steps, which are done again here: unprintable characters are replaced, then HTML is escaped.
    printable_folder = _as_html(page["folder"])  # "/data/a&b/", which is printable already
    folder_in_text = str(escape(printable_folder))  # "/data/a&amp;b/"
    return _without_folder(text, folder_in_text)


def html_by_template(page: Mapping[str, Any], template: Path) -> str:
    """Return another page than the report's as the text of one HTML file.

    Args:
        page: Values of the page. The template names them as `page.NAME`.
        template: File of the template. It may include the report's blocks.html and page.css.
    """
    return _html_templates().from_string(template.read_text("utf-8")).render(page=page)


def markdown_text(page: Mapping[str, Any]) -> str:
    """Return the report's page as the text of a Markdown file.

    The path of the logs' folder is removed from the text, so that the text does not show where on this machine the logs
    are: with the folder "/data/logs/", "/data/logs/run_0.txt" becomes "run_0.txt".

    Args:
        page: Content of the page, a result of the function `page`. Its value of "folder" is the path of the logs'
            folder. If the path is empty, nothing is removed.
    """
    # The template page.md leaves out the plots at the top of the page, most folded parts and the quoted log lines. Of a
    # plot in a section it shows only the caption.
    text = _markdown_templates().get_template("page.md").render(page=page)
    # Values outside of code are escaped: "/data/a_b/" stands there as "/data/a\_b/". In code it stands as it is.
    text = _without_folder(text, markdown(page["folder"]))
    return _without_folder(text, page["folder"])


def _without_folder(text: str, folder_in_text: str) -> str:
    """Remove the path of the logs' folder from the text of a page, which is made to be passed on to others.

    Args:
        text: The page.
        folder_in_text: The folder, a path that ends in `/`, as the text has it. If it is empty, the text is returned as
            it is.
    """
    if not folder_in_text:
        return text
    return text.replace(folder_in_text, "")
