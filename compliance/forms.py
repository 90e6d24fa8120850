"""The forms of reports: text, JSON, annotations for GitHub, JUnit XML; and a rule in words."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from html import escape
from pathlib import Path

from compliance.check import Report
from compliance.official.checks import read_check
from compliance.official.rule_files import VERSION, files, keys, load
from compliance.rules import Finding, Ruleset, StrictRule, verdict
from runlog.digits import six_digits

START_OF_JUNIT = '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'  # of each JUnit file that is written
_NOT_APPLIED = "not applied: "  # begins the note on a rule that was not applied


def check_replaceable(path: Path, start: str) -> None:
    """Raise ValueError if `path` is a folder, or a file that this command did not write.

    Files of this command begin with the text `start`. Such a file may be replaced, and so may an empty one.
    """
    if path.is_dir():
        raise ValueError(f"{path}: is a folder: name a file")
    if path.is_file():
        wanted_start = start.encode()
        with path.open("rb") as stream:
            actual_start = stream.read(len(wanted_start))
        is_empty_or_of_command = actual_start in (b"", wanted_start)
        if not is_empty_or_of_command:
            raise ValueError(f"{path}: exists, and this command did not write it; name another file")


# --- text ---


def as_text(reports: Iterable[Report]) -> str:
    """Return the reports as lines for a terminal."""
    lines: list[str] = []
    for report in reports:
        lines += _lines_of(report)
    return "\n".join(lines) + "\n"


def _lines_of(report: Report) -> list[str]:
    """Return the lines of one report: its verdicts, findings and notes, and the answer of mlperf-logging's checker.

    Notes without a line of the log come after the other findings, and those with the same text share one line. The
    checker's answer is left out if it was not run.
    """
    rules_by_note: dict[str, list[str]] = {}  # the rules that each note is about
    lines = _lines_of_verdicts(report)
    for finding in report.findings:
        is_note_without_line = finding.severity == "info" and finding.line is None
        if is_note_without_line:
            rules_by_note.setdefault(finding.actual, []).append(finding.rule)
        else:
            lines += _lines_of_finding(finding)
    lines += _lines_of_notes(rules_by_note)
    if report.mlperf_logging:
        lines.append(f"  mlperf-logging's checker: {report.mlperf_logging['verdict']}")
        lines += [f"      {message}" for message in report.mlperf_logging["messages"]]
    return lines


def _lines_of_verdicts(report: Report) -> list[str]:
    """Return the line of a report's result, by the rules that count, and the line of both verdicts."""
    errors = sum(report.fails(finding) for finding in report.findings)
    plural = "" if errors == 1 else "s"
    result = f"FAIL, {errors} error{plural} by the {report.deciding_rules} rules" if errors else "PASS"
    both_verdicts = f"official {verdict(report.passes_official)}, strict {verdict(report.passes_strict)}"
    return [f"{report.file}: {result}", f"  {both_verdicts}; {report.deciding_rules} counts"]


def _lines_of_notes(rules_by_note: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a report's notes. `rules_by_note` has the rules that each note is about.

    All notes that rules were not applied share the last line:

          info: target-status: epoch 35 reached 0.7601 already and the run went on, as it may
          info: not applied: rcp-convergence (not a closed run); run-mode (the log has no run_summary that says so)
    """
    lines = []
    not_applied = []
    for note, rules in rules_by_note.items():
        if note.startswith(_NOT_APPLIED):
            not_applied.append(f"{', '.join(rules)} ({note.removeprefix(_NOT_APPLIED)})")
        else:
            lines.append(f"  info: {', '.join(rules)}: {note}")
    if not_applied:
        lines.append(f"  info: {_NOT_APPLIED}{'; '.join(not_applied)}")
    return lines


def _lines_of_finding(finding: Finding) -> list[str]:
    where = f" line {finding.line}" if finding.line else ""
    lines = [f"  {finding.severity}: {finding.rule}{where}: {finding.actual}"]
    if finding.severity != "info":
        lines += [f"      expected: {finding.expected}", f"      do: {finding.fix}"]
    return lines


# --- for programs ---


def as_json(reports: Iterable[Report]) -> str:
    """Return the reports as JSON, in the form that findings.schema.json describes."""
    return json.dumps({"files": [report.as_dict() for report in reports]}, indent=2) + "\n"


def as_github(reports: Iterable[Report]) -> str:
    """Return the reports as annotations for GitHub's workflow log: a line for each finding, then the report's verdict.

    For instance:

        ::error file=result_0.txt,line=7,title=run-status::status aborted; train until the target is reached
        result_0.txt: FAIL
    """
    lines = []
    for report in reports:
        file = _escaped_for_github(report.file).replace(":", "%3A").replace(",", "%2C")
        for finding in report.findings:
            where = f",line={finding.line}" if finding.line else ""
            text = f"{finding.actual}; {finding.fix}" if finding.fix else finding.actual
            level = _github_level(report, finding)
            lines.append(f"::{level} file={file}{where},title={finding.rule}::{_escaped_for_github(text)}")
        lines.append(f"{report.file}: {verdict(report.passed).upper()}")
    return "\n".join(lines) + "\n"


def _github_level(report: Report, finding: Finding) -> str:
    """Return GitHub's level of a finding: `error` if it fails the verdict that counts, else `notice` or `warning`."""
    if report.fails(finding):
        return "error"
    return "notice" if finding.severity == "info" else "warning"


def _escaped_for_github(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_junit(reports: Iterable[Report]) -> str:
    """Return the reports as JUnit XML: a test suite for each log."""
    lines = []
    for report in reports:
        lines += _junit_suite(report)
    return START_OF_JUNIT + "\n".join([*lines, "</testsuites>"]) + "\n"


def _junit_suite(report: Report) -> list[str]:
    """Return the lines of a report's test suite: a test case for the verdict, and one for each finding.

    Findings that fail the verdict come first, as failures. The others are test cases with output.
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
    text = escape(f"line {finding.line}: {finding.actual}; expected: {finding.expected}; do: {finding.fix}")
    return f'<failure message="{escape(finding.actual)}">{text}</failure>'


def _junit_output(finding: Finding) -> str:
    text = escape(f"{finding.severity}: line {finding.line}: {finding.actual}")
    return f"<system-out>{text}</system-out>"


# --- rules in words ---


def explain(name: str, ruleset: Ruleset) -> str:
    """Return a text on the rule `name`: what it asks for, why, what to do, and its source.

    `name` is a strict rule (`seed-present`), a key of events (`run_stop`), a rule about one (`run_stop.order`), or
    `all`. Raises ValueError for any other.
    """
    known_keys = keys(ruleset.version)
    if name == "all":
        return "\n".join(explain(one, ruleset) for one in [*sorted(known_keys), *sorted(ruleset.strict)])
    if name in ruleset.strict:
        return _explain_strict(ruleset.strict[name])
    key = name.partition(".")[0]  # `run_stop` of `run_stop.order`
    if key == "events":  # of the rule `events.count`, which is about no key
        return f"events.count\n  expects: at least one event\n  source: mlperf-logging {VERSION}, mlp_compliance\n"
    if key in known_keys:
        return _explain_key(key, ruleset)
    similar = get_close_matches(name, [*known_keys, *ruleset.strict], n=3, cutoff=0.4)
    hint = f"; near it: {', '.join(similar)}" if similar else ""
    raise ValueError(f"no rule {name}{hint}; `--explain all` lists them")


def _explain_strict(rule: StrictRule) -> str:
    """Return a text on a strict rule, which mlperf-logging's checker does not have.

    The bounds of a rule are the numbers that it compares a log with.
    """
    lines = [
        f"{rule.name} ({rule.severity}, class {rule.kind}; stricter than the official checker)",
        f"  expects: {rule.expected}",
        f"  why: {rule.why}",
        f"  do: {rule.fix}",
        f"  applies to: {rule.scope}",
    ]
    if rule.bounds:
        bounds = [f"{name} {six_digits(bound)}" for name, bound in rule.bounds.items()]
        lines.append(f"  bounds: {', '.join(bounds)}")
        lines.append(f"  bounds from: {rule.bound_from}")
    lines.append(f"  source: {rule.source}")
    return "\n".join(lines) + "\n"


def _explain_key(key: str, ruleset: Ruleset) -> str:
    """Return a text on what the rules ask of the events of a key, such as `seed`, with the source of each rule."""
    lines = [f"{key} (ruleset {ruleset.version})"]
    for name in files(ruleset.version):
        rule_file = load(name)
        if key in rule_file.rules:
            lines.append(f"  {rule_file.rules[key].describe()} (official)")
            lines.append(f"      source: {rule_file.source}")
    # The texts of MLPerf ask for these checks as well, but mlperf-logging's checker does not make them.
    written_rules = [rule for rule in ruleset.written if rule.key == key]
    for rule in written_rules:
        words = read_check(rule.check).words
        optimizer = f", {rule.opt_name}" if rule.opt_name else ""
        lines.append(f"  {words} (closed resnet{optimizer}; stricter than the official checker)")
        lines.append(f"      source: {rule.source}")
    return "\n".join(lines) + "\n"
