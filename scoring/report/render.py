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
from scoring.report import brief, course, performance, plots, provenance, speed
from scoring.report.blocks import Table
from scoring.report.content import Report
from scoring.report.text import markdown
from scoring.report.verdict import applies, next_steps

MOST_CHARS = 100_000  # of one text


class ShownCheck(NamedTuple):
    """A check as the page shows it; one that does not apply has a mark of its own."""

    check: str
    status: str
    found: str

    @classmethod
    def of(cls, verdict: Verdict) -> "ShownCheck":
        """Return the check of a verdict."""
        status = verdict.status if applies(verdict) else brief.NO_STATUS
        return cls(verdict.check, status, verdict.found)


def page(report: Report, command: Sequence[str]) -> dict[str, Any]:
    """Return what the templates show of the report that `command` (the words after `report`) asked for."""
    status, verdict = report.verdict
    notes = [group.score.footnotes for group in report.groups if group.score]
    evidence = {
        "facts": brief.facts(report),
        "tiles": brief.tiles(report),
        "plots": [brief.overlay(report), *brief.zoomed(report)],
        "performance": performance.performance(report),
        "tables": _tables(report),
        "sections": [
            speed.throughput(report),
            speed.step_time(report),
            speed.scaling(report),
            course.training(report),
            course.telemetry(report),
            course.variance(report),
            provenance.compliance(report),
            provenance.provenance(report),
            provenance.reproduce(report, command),
        ],
    }
    return evidence | {
        "title": brief.of_all([group.name for group in report.groups]),
        "headline": brief.of_all([brief.figure_of(group) for group in report.groups]),
        "status": status,
        "verdict": f"{verdict}.",
        "checks": [ShownCheck.of(check) for check in report.checks],
        "statuses": brief.STATUSES,
        "steps": next_steps(report.checks),
        "lines": provenance.log_lines(report, list(evidence.values())),  # which HTML alone shows
        "footnotes": notes_in_order(itertools.chain.from_iterable(notes)),
        "folder": report.folder,
    }


def _tables(report: Report) -> list[Table]:
    """Return the tables of the first screen below the performance: runs, systems, warnings, and the runs in order."""
    in_order = performance.runs_in_order(report)
    return [*brief.tables(report), *([in_order] if in_order else [])]


def _as_html(value: object) -> object:
    """Printable text, which jinja2 escapes then."""
    return value if isinstance(value, Markup) else visible(value, MOST_CHARS)


def _as_markdown(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(markdown(value))


def _code(value: object) -> Markup:
    """For an indented block of Markdown, in which nothing but the end of a line is syntax."""
    return Markup(visible(value, MOST_CHARS))


@functools.cache
def _templates(folder: str) -> jinja2.Environment:
    """Templates of that folder. `finalize` sees each value that a template shows, so that none is left unescaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("scoring.report", f"templates/{folder}"),
        autoescape=True,
        finalize=_as_html if folder == "html" else _as_markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = _code
    # matplotlib is half of an installation without Paddle's packages.
    environment.globals["drawn"] = plots.drawn if find_spec("matplotlib") else None
    return environment


def html(page: Mapping[str, Any], template: Path | None = None) -> str:
    """The page as one self-contained HTML file: no script, nothing fetched; `template` may use blocks and page.css."""
    templates = _templates("html")
    chosen = templates.from_string(template.read_text("utf-8")) if template else templates.get_template("page.html")
    return _without_folder(chosen.render(page=page), page, lambda folder: str(escape(visible(folder, MOST_CHARS))))


def markdown_text(page: Mapping[str, Any]) -> str:
    """The page as Markdown, without its plots and what is folded away."""
    return _without_folder(_templates("markdown").get_template("page.md").render(page=page), page, markdown)


def _without_folder(text: str, page: Mapping[str, Any], shown: Callable[[str], str]) -> str:
    """Return the rendered text without the folder that the logs have on this machine."""
    folder = page.get("folder")
    return text.replace(shown(folder), "") if folder else text
