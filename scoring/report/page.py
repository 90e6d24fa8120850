"""The whole report as data: the brief, then the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scoring.report import course, provenance, speed
from scoring.report.blocks import Section
from scoring.report.brief import STATUSES, Brief, brief
from scoring.report.content import Report


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the templates render."""

    brief: Brief
    sections: Sequence[Section]
    lines: Section  # the quoted log lines, which HTML alone shows
    folder: str  # of the logs on this machine, which no form shows

    statuses = STATUSES


def page(report: Report, command: Sequence[str], read_lines: Callable[[str, set[int]], dict[int, str]]) -> Page:
    """The report that `command` (the words after `report`) asked for; `read_lines` gives the text of a log's lines."""
    first = brief(report)
    sections = [
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
    lines = provenance.log_lines(report, [first, sections], read_lines)
    return Page(brief=first, sections=sections, lines=lines, folder=report.folder)
