"""The whole report as data: the first screen, then the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runlog.verdict import Verdict
from scoring.report import brief, course, provenance, speed
from scoring.report.blocks import Figure, Inline, Paragraph, Section, Table
from scoring.report.commands import reproduce
from scoring.report.content import Report


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the templates render."""

    title: str
    headline: str
    facts: Sequence[tuple[str, Inline]]
    status: str
    verdict: str
    tiles: Sequence[brief.Tile]
    checks: Sequence[Verdict]
    steps: Sequence[str]  # to take next
    plot: Figure | Paragraph
    tables: Sequence[Table]
    sections: Sequence[Section]
    lines: Section  # the quoted log lines, which HTML alone shows
    footnotes: Sequence[str]
    folder: str  # of the logs on this machine, which no form shows

    statuses = brief.STATUSES


def page(report: Report, command: Sequence[str], read_lines: Callable[[str, set[int]], dict[int, str]]) -> Page:
    """The report that `command` (the words after `report`) asked for; `read_lines` gives the text of a log's lines."""
    status, verdict = report.verdict
    steps = dict.fromkeys(check.fix for check in report.checks if check.fix)
    evidence: dict[str, Any] = {
        "facts": brief.facts(report),
        "tiles": brief.tiles(report),
        "plot": brief.overlay(report),
        "tables": brief.tables(report),
        "sections": [
            speed.throughput(report),
            speed.step_time(report),
            speed.scaling(report),
            course.training(report),
            course.telemetry(report),
            course.variance(report),
            provenance.compliance(report),
            provenance.provenance(report),
            reproduce(report, command),
        ],
    }
    return Page(
        title=brief.of_all([group.name for group in report.groups]),
        headline=brief.of_all([brief.figure_of(group) for group in report.groups]),
        status=status,
        verdict=f"{verdict}.",
        checks=report.checks,
        steps=list(steps) or ["Nothing is open: package it, or compare it with others."],
        lines=provenance.log_lines(report, list(evidence.values()), read_lines),
        footnotes=list(dict.fromkeys(text for group in report.groups if group.score for text in group.score.footnotes)),
        folder=report.folder,
        **evidence,
    )
