"""The whole report as data: the first screen, then the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scoring.report import brief, course, provenance, speed
from scoring.report.commands import reproduce
from scoring.report.content import Report


def page(
    report: Report, command: Sequence[str], read_lines: Callable[[str, set[int]], dict[int, str]]
) -> dict[str, Any]:
    """What the templates show of the report that `command` (the words after `report`) asked for.

    `read_lines` gives the text of a log's lines. No form shows `folder`, which the logs have on this machine.
    """
    status, verdict = report.verdict
    steps = dict.fromkeys(check.fix for check in report.checks if check.fix)
    footnotes = dict.fromkeys(text for group in report.groups if group.score for text in group.score.footnotes)
    evidence = {
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
    return evidence | {
        "title": brief.of_all([group.name for group in report.groups]),
        "headline": brief.of_all([brief.figure_of(group) for group in report.groups]),
        "status": status,
        "verdict": f"{verdict}.",
        "checks": report.checks,
        "statuses": brief.STATUSES,
        "steps": list(steps) or ["Nothing is open: package it, or compare it with others."],
        "lines": provenance.log_lines(report, list(evidence.values()), read_lines),  # which HTML alone shows
        "footnotes": list(footnotes),
        "folder": report.folder,
    }
