"""Reports as JUnit XML."""

from collections.abc import Iterable
from html import escape

from compliance.check import Report
from compliance.rules import Finding

START_OF_JUNIT = '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'  # of each file that is written


def as_junit(reports: Iterable[Report]) -> str:
    """Return the reports as JUnit XML: a test suite for each log.

    Args:
        reports: The reports on the logs.
    """
    lines = []
    for report in reports:
        lines += _junit_suite(report)
    return START_OF_JUNIT + "\n".join([*lines, "</testsuites>"]) + "\n"


def _junit_suite(report: Report) -> list[str]:
    """Return the lines of a report's test suite: a test case for the verdict, and one for each finding.

    Findings that fail the verdict come first, as failures. The others are test cases with output.

    Args:
        report: The report on a log.
    """
    file = escape(report.file)
    failures = [finding for finding in report.findings if report.fails(finding)]
    others = [finding for finding in report.findings if not report.fails(finding)]
    body_of_verdict = "" if report.passed else '<failure message="fail"/>'
    named_bodies = [("verdict", body_of_verdict)]
    named_bodies += [(finding.rule, _junit_failure(finding)) for finding in failures]
    named_bodies += [(finding.rule, _junit_output(finding)) for finding in others]
    cases = [f'    <testcase classname="{file}" name="{escape(name)}">{body}</testcase>' for name, body in named_bodies]
    failure_count = len(failures) if report.passed else len(failures) + 1  # with the verdict
    start = f'  <testsuite name="{file}" tests="{len(cases)}" failures="{failure_count}">'
    return [start, *cases, "  </testsuite>"]


def _junit_failure(finding: Finding) -> str:
    actual = f"{_line_if_any(finding)}{finding.actual}"
    text = escape(f"{actual}; expected: {finding.expected}; do: {finding.fix}")
    return f'<failure message="{escape(finding.actual)}">{text}</failure>'


def _junit_output(finding: Finding) -> str:
    text = escape(f"{finding.severity}: {_line_if_any(finding)}{finding.actual}")
    return f"<system-out>{text}</system-out>"


def _line_if_any(finding: Finding) -> str:
    """Return "line 7: " for a finding on line 7 of a log; empty if it is on no line, as on an event that is absent."""
    return "" if finding.line is None else f"line {finding.line}: "
