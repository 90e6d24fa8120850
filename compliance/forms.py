"""The forms of reports: text, JSON, annotations of GitHub, JUnit XML."""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from compliance.check import Report
from compliance.findings import verdict


def check_replaceable(path: Path, start: str) -> None:
    """Raises ValueError for a file that does not start as what will be written there: none is lost by mistake."""
    if path.is_file():
        head = start.encode()
        with path.open("rb") as stream:
            found = stream.read(len(head))
        if found not in (b"", head):
            raise ValueError(f"{path}: exists, and this command did not write it; name another file")


def as_text(reports: Iterable[Report]) -> str:
    lines: list[str] = []
    for report in reports:
        errors = sum(map(report.fails, report.findings))
        said = "PASS" if report.passed else f"FAIL, {errors} error{'s' * (errors != 1)} by the {report.by} rules"
        both = f"official {verdict(report.official)}, strict {verdict(report.strict)}"
        lines += [f"{report.file}: {said}", f"  {both}; {report.by} counts"]
        for finding in report.findings:
            where = f" line {finding.line}" if finding.line else ""
            lines.append(f"  {finding.severity}: {finding.rule}{where}: {finding.actual}")
            if finding.severity != "info":
                lines += [f"      expected: {finding.expected}", f"      do: {finding.fix}"]
        if report.mlperf_logging is not None:
            lines.append(f"  mlperf-logging's checker: {report.mlperf_logging['verdict']}")
            lines.extend(f"      {line}" for line in report.mlperf_logging["messages"])
    return "\n".join(lines) + "\n"


def as_json(reports: Iterable[Report]) -> str:
    return json.dumps({"files": [report.as_dict() for report in reports]}, indent=2) + "\n"


def as_github(reports: Iterable[Report]) -> str:
    """Annotations of GitHub's workflow log: an error only where it fails the verdict that counts."""
    lines = []
    for report in reports:
        file = _escaped(report.file).replace(":", "%3A").replace(",", "%2C")
        for finding in report.findings:
            level = "error" if report.fails(finding) else "notice" if finding.severity == "info" else "warning"
            where = f",line={finding.line}" if finding.line else ""
            text = f"{finding.actual}; {finding.fix}" if finding.fix else finding.actual
            lines.append(f"::{level} file={file}{where},title={finding.rule}::{_escaped(text)}")
        lines.append(f"{report.file}: {verdict(report.passed).upper()}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_junit(reports: Iterable[Report]) -> str:
    """JUnit XML: a suite for each log, a case for each rule that found something and one for the verdict."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for report in reports:
        name = escape(report.file)
        failures = sum(map(report.fails, report.findings)) + (not report.passed)
        cases = [("verdict", "" if report.passed else '<failure message="fail"/>')]
        for finding in sorted(report.findings, key=report.fails, reverse=True):
            text = f"line {finding.line}: {finding.actual}"
            if report.fails(finding):
                text = escape(f"{text}; expected: {finding.expected}; do: {finding.fix}")
                cases.append((finding.rule, f'<failure message="{escape(finding.actual)}">{text}</failure>'))
            else:
                cases.append((finding.rule, f"<system-out>{escape(f'{finding.severity}: {text}')}</system-out>"))
        lines.append(f'  <testsuite name="{name}" tests="{len(cases)}" failures="{failures}">')
        lines += [f'    <testcase classname="{name}" name="{escape(rule)}">{what}</testcase>' for rule, what in cases]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"
