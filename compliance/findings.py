"""A finding, and its forms: text, JSON, JUnit XML."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from compliance.rules import StrictRule

SEVERITIES = ("error", "warning", "info")
FINDINGS_PER_RULE = 10


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found in a log. `line` counts from 1; None where no line is to blame."""

    rule: str
    severity: str
    line: int | None
    expected: str
    actual: str
    fix: str


def breach(rule: StrictRule, actual: str, *, line: int | None = None, expected: str | None = None) -> Finding:
    """A breach of `rule`."""
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        line=line,
        expected=expected or rule.expected,
        actual=actual,
        fix=rule.fix,
    )


def note(rule: StrictRule, actual: str) -> Finding:
    """Says that `rule` was not applied, so that nobody takes it for met."""
    return Finding(rule=rule.name, severity="info", line=None, expected=rule.expected, actual=actual, fix="")


class Collected:
    """The findings of one log as they come: of each strict rule the first FINDINGS_PER_RULE breaches."""

    def __init__(self, strict: Mapping[str, StrictRule]) -> None:
        self.found: list[Finding] = []
        self._strict = strict
        self._counts: dict[str, int] = {}

    def breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        """A breach of a strict rule."""
        count = self._counts[rule] = self._counts.get(rule, 0) + 1
        if count <= FINDINGS_PER_RULE:
            self.found.append(breach(self._strict[rule], actual, line=line, expected=expected))

    def note(self, rule: str, actual: str) -> None:
        """A strict rule that was not applied."""
        self.found.append(note(self._strict[rule], actual))

    def error(self, rule: str, line: int | None, expected: str, actual: str, fix: str) -> None:
        """A breach of a row."""
        self.found.append(Finding(rule=rule, severity="error", line=line, expected=expected, actual=actual, fix=fix))

    def info(self, rule: str, actual: str) -> None:
        """How many breaches of a rule are not listed."""
        self.found.append(Finding(rule=rule, severity="info", line=None, expected="", actual=actual, fix=""))

    def finish(self) -> tuple[Finding, ...]:
        """All findings, errors first, then by line."""
        for rule, count in self._counts.items():
            if count > FINDINGS_PER_RULE:
                self.info(rule, f"{count - FINDINGS_PER_RULE} more breaches of {rule}, not listed")
        return tuple(sorted(self.found, key=lambda f: (SEVERITIES.index(f.severity), f.line or 0)))


@dataclass(frozen=True, kw_only=True)
class FileReport:
    """The findings of one log. It passes if none is an error."""

    file: str
    findings: tuple[Finding, ...]
    sha256: str | None = None  # of the file, where it was asked
    official: dict[str, Any] | None = None  # verdict and message of mlperf-logging's checker, where it was asked

    @property
    def passed(self) -> bool:
        return all(finding.severity != "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "file": printable(self.file, 4096),
            "sha256": self.sha256,
            "verdict": "pass" if self.passed else "fail",
            "findings": [vars(finding) for finding in self.findings],
        }
        if self.official is not None:
            fields["official"] = self.official
        return fields


def printable(value: object, limit: int = 160) -> str:
    """`value` as text that is safe for a terminal, XML and JSON: control characters escaped, cut at `limit`."""
    if isinstance(value, str):
        text = value[: limit + 1]
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = f"a {type(value).__name__}"
        text = text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
    return shown if len(text) <= limit else shown[:limit] + "..."


def as_text(reports: Iterable[FileReport]) -> str:
    lines: list[str] = []
    for report in reports:
        errors = sum(finding.severity == "error" for finding in report.findings)
        verdict = "PASS" if report.passed else f"FAIL, {errors} error{'s' * (errors != 1)}"
        lines.append(f"{printable(report.file, 4096)}: {verdict}")
        for finding in report.findings:
            where = f" line {finding.line}" if finding.line else ""
            lines.append(f"  {finding.severity}: {finding.rule}{where}: {finding.actual}")
            if finding.severity != "info":
                lines.append(f"      expected: {finding.expected}")
                lines.append(f"      do: {finding.fix}")
        if report.official is not None:
            lines.append(f"  official checker: {report.official['verdict']}")
            lines.extend(f"      {line}" for line in report.official["messages"])
    return "\n".join(lines) + "\n"


def as_json(reports: Iterable[FileReport]) -> str:
    return json.dumps({"files": [report.as_dict() for report in reports]}, indent=2) + "\n"


def as_junit(reports: Iterable[FileReport]) -> str:
    """JUnit XML: a suite for each log, a case for each rule that found something and one for the verdict."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for report in reports:
        name = quoteattr(printable(report.file, 4096))
        failed = [finding for finding in report.findings if finding.severity == "error"]
        others = [finding for finding in report.findings if finding.severity != "error"]
        tests = len(failed) + len(others) + 1
        lines.append(f'  <testsuite name={name} tests="{tests}" failures="{len(failed) + (not report.passed)}">')
        verdict = "" if report.passed else '<failure message="fail"/>'
        lines.append(f'    <testcase classname={name} name="verdict">{verdict}</testcase>')
        for finding in failed:
            text = f"line {finding.line}: {finding.actual}; expected: {finding.expected}; do: {finding.fix}"
            lines.append(
                f"    <testcase classname={name} name={quoteattr(finding.rule)}>"
                f"<failure message={quoteattr(finding.actual)}>{escape(text)}</failure></testcase>"
            )
        for finding in others:
            text = escape(f"{finding.severity}: line {finding.line}: {finding.actual}")
            lines.append(
                f"    <testcase classname={name} name={quoteattr(finding.rule)}>"
                f"<system-out>{text}</system-out></testcase>"
            )
        lines.append("  </testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"
