"""A finding, and its forms: text, JSON, JUnit XML."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from compliance.rules import StrictRule
from runlog.text import printable

SEVERITIES = ("error", "warning", "info")
FINDINGS_PER_RULE = 10


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found in a log. `line` counts from 1; None where no line is to blame.

    `official`: mlperf-logging's checker refuses the log for it. `kind` is the class of its rule.
    """

    rule: str
    severity: str
    line: int | None
    expected: str
    actual: str
    fix: str
    kind: str
    source: str
    official: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What JSON says of it."""
        return {"class" if name == "kind" else name: value for name, value in vars(self).items()}


def breach(rule: StrictRule, actual: str, *, line: int | None = None, expected: str | None = None) -> Finding:
    """A breach of `rule`."""
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        line=line,
        expected=expected or rule.expected,
        actual=actual,
        fix=rule.fix,
        kind=rule.kind,
        source=rule.source,
    )


def note(rule: StrictRule, actual: str) -> Finding:
    """Says that `rule` was not applied, so that nobody takes it for met."""
    return replace(breach(rule, actual), severity="info", fix="")


def breach_of_key(
    key: str,
    aspect: str,
    line: int | None,
    expected: str,
    actual: str,
    fix: str,
    *,
    source: str,
    official: bool = True,
    severity: str = "error",
) -> Finding:
    """A breach of a rule of one key in one `aspect`: count, value, metadata, order or time."""
    return Finding(
        rule=f"{key}.{aspect}",
        severity=severity,
        line=line,
        expected=expected,
        actual=actual,
        fix=fix,
        kind="rule",
        source=source,
        official=official,
    )


class Collected:
    """The findings of one log as they come: of each strict rule the first FINDINGS_PER_RULE breaches."""

    def __init__(self, strict: Mapping[str, StrictRule]) -> None:
        self.found: list[Finding] = []
        self._strict = strict
        self._counts: dict[str, int] = {}

    def breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        """A breach of a strict rule; a note where its text is not in force."""
        text = self._strict[rule]
        if not text.in_force:
            return self.note(rule, f"not applied: in force from ruleset {text.since} on; {actual}")
        count = self._counts[rule] = self._counts.get(rule, 0) + 1
        if count <= FINDINGS_PER_RULE:
            self.found.append(breach(text, actual, line=line, expected=expected))
        return None

    def drop(self, rules: Collection[str]) -> None:
        """Takes back the breaches of strict rules that turn out not to apply."""
        self.found = [finding for finding in self.found if finding.rule not in rules]
        self._counts = {rule: count for rule, count in self._counts.items() if rule not in rules}

    def note(self, rule: str, actual: str) -> None:
        """A strict rule that was not applied."""
        self.found.append(note(self._strict[rule], actual))

    def more(self, last: Finding, count: int) -> None:
        """`count` breaches of a rule are not listed; `last` is one that is."""
        actual = f"{count} more breaches of {last.rule}, not listed"
        self.found.append(replace(last, severity="info", line=None, expected="", actual=actual, fix="", official=False))

    def finish(self) -> tuple[Finding, ...]:
        """All findings, errors first, then by line."""
        for rule, count in self._counts.items():
            if count > FINDINGS_PER_RULE:
                self.more(breach(self._strict[rule], ""), count - FINDINGS_PER_RULE)
        return tuple(sorted(self.found, key=lambda f: (SEVERITIES.index(f.severity), f.line or 0)))


@dataclass(frozen=True, kw_only=True)
class FileReport:
    """The findings of one log, and both verdicts: `by` names the one that counts."""

    file: str
    findings: tuple[Finding, ...]
    by: str = "strict"
    sha256: str | None = None  # of the file, where it was asked
    mlperf_logging: dict[str, Any] | None = None  # verdict and messages of the tool itself, where it was asked

    @property
    def official(self) -> bool:
        """What mlperf-logging's checker would say."""
        return not any(finding.official for finding in self.findings)

    @property
    def strict(self) -> bool:
        """Whether no written rule and no plausibility is broken."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def passed(self) -> bool:
        return not any(map(self.fails, self.findings))

    def fails(self, finding: Finding) -> bool:
        """Whether `finding` fails the verdict that counts."""
        return finding.official if self.by == "official" else finding.severity == "error"

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "file": printable(self.file, 4096),
            "sha256": self.sha256,
            "official": _verdict(self.official),
            "strict": _verdict(self.strict),
            "by": self.by,
            "verdict": _verdict(self.passed),
            "findings": [finding.as_dict() for finding in self.findings],
        }
        if self.mlperf_logging is not None:
            fields["mlperf_logging"] = self.mlperf_logging
        return fields


def _verdict(passed: bool) -> str:
    return "pass" if passed else "fail"


def check_replaceable(path: Path, start: str) -> None:
    """Raises ValueError for a file that does not start as what will be written there: none is lost by mistake."""
    if path.is_file():
        head = start.encode()
        with path.open("rb") as stream:
            found = stream.read(len(head))
        if found not in (b"", head):
            raise ValueError(f"{path}: exists, and this command did not write it; name another file")


def as_text(reports: Iterable[FileReport]) -> str:
    lines: list[str] = []
    for report in reports:
        errors = sum(map(report.fails, report.findings))
        verdict = "PASS" if report.passed else f"FAIL, {errors} error{'s' * (errors != 1)} by the {report.by} rules"
        both = f"official {_verdict(report.official)}, strict {_verdict(report.strict)}"
        lines += [f"{printable(report.file, 4096)}: {verdict}", f"  {both}; {report.by} counts"]
        for finding in report.findings:
            where = f" line {finding.line}" if finding.line else ""
            lines.append(f"  {finding.severity}: {finding.rule}{where}: {finding.actual}")
            if finding.severity != "info":
                lines.append(f"      expected: {finding.expected}")
                lines.append(f"      do: {finding.fix}")
        if report.mlperf_logging is not None:
            lines.append(f"  mlperf-logging's checker: {report.mlperf_logging['verdict']}")
            lines.extend(f"      {line}" for line in report.mlperf_logging["messages"])
    return "\n".join(lines) + "\n"


def as_json(reports: Iterable[FileReport]) -> str:
    return json.dumps({"files": [report.as_dict() for report in reports]}, indent=2) + "\n"


def as_github(reports: Iterable[FileReport]) -> str:
    """Annotations of GitHub's workflow log: an error only where it fails the verdict that counts."""
    lines = []
    for report in reports:
        file = _escaped(printable(report.file, 4096)).replace(":", "%3A").replace(",", "%2C")
        for finding in report.findings:
            level = "error" if report.fails(finding) else "notice" if finding.severity == "info" else "warning"
            where = f",line={finding.line}" if finding.line else ""
            text = f"{finding.actual}; {finding.fix}" if finding.fix else finding.actual
            lines.append(f"::{level} file={file}{where},title={finding.rule}::{_escaped(text)}")
        lines.append(f"{printable(report.file, 4096)}: {_verdict(report.passed).upper()}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_junit(reports: Iterable[FileReport]) -> str:
    """JUnit XML: a suite for each log, a case for each rule that found something and one for the verdict."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for report in reports:
        name = escape(printable(report.file, 4096))
        failures = sum(map(report.fails, report.findings)) + (not report.passed)
        lines.append(f'  <testsuite name="{name}" tests="{len(report.findings) + 1}" failures="{failures}">')
        verdict = "" if report.passed else '<failure message="fail"/>'
        lines.append(f'    <testcase classname="{name}" name="verdict">{verdict}</testcase>')
        for finding in sorted(report.findings, key=report.fails, reverse=True):
            text = f"line {finding.line}: {finding.actual}"
            if report.fails(finding):
                text = escape(f"{text}; expected: {finding.expected}; do: {finding.fix}")
                inside = f'<failure message="{escape(finding.actual)}">{text}</failure>'
            else:
                inside = f"<system-out>{escape(f'{finding.severity}: {text}')}</system-out>"
            lines.append(f'    <testcase classname="{name}" name="{escape(finding.rule)}">{inside}</testcase>')
        lines.append("  </testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"
