"""The forms of reports: text, JSON, annotations of GitHub, JUnit XML; and a rule in words."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from html import escape
from pathlib import Path

from compliance.check import Report
from compliance.official.rule_files import VERSION, files, keys, load, read_check
from compliance.rules import Ruleset, verdict


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
        said = f"FAIL, {errors} error{'s' * (errors != 1)} by the {report.by} rules" if errors else "PASS"
        both = f"official {verdict(report.official)}, strict {verdict(report.strict)}"
        lines += [f"{report.file}: {said}", f"  {both}; {report.by} counts"]
        for finding in report.findings:
            where = f" line {finding.line}" if finding.line else ""
            lines.append(f"  {finding.severity}: {finding.rule}{where}: {finding.actual}")
            if finding.severity != "info":
                lines += [f"      expected: {finding.expected}", f"      do: {finding.fix}"]
        if theirs := report.mlperf_logging:
            lines += [f"  mlperf-logging's checker: {theirs['verdict']}", *(f"      {m}" for m in theirs["messages"])]
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
        name, cases = escape(report.file), [("verdict", "" if report.passed else '<failure message="fail"/>')]
        for finding in sorted(report.findings, key=report.fails, reverse=True):
            text = f"line {finding.line}: {finding.actual}"
            if report.fails(finding):
                text = escape(f"{text}; expected: {finding.expected}; do: {finding.fix}")
                cases.append((finding.rule, f'<failure message="{escape(finding.actual)}">{text}</failure>'))
            else:
                cases.append((finding.rule, f"<system-out>{escape(f'{finding.severity}: {text}')}</system-out>"))
        failures = sum("<failure" in what for _, what in cases)
        lines.append(f'  <testsuite name="{name}" tests="{len(cases)}" failures="{failures}">')
        lines += [f'    <testcase classname="{name}" name="{escape(rule)}">{what}</testcase>' for rule, what in cases]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def explain(name: str, ruleset: Ruleset) -> str:
    """What the rule `name` asks for, why, what to do and where it comes from; all rules for `all`.

    `name` is a strict rule, a key, or the rule of a finding (`run_stop.order`). Raises ValueError if unknown.
    """
    known = keys(ruleset.version)
    if name == "all":
        return "\n".join(explain(one, ruleset) for one in [*sorted(known), *sorted(ruleset.strict)])
    if name in ruleset.strict:
        rule = ruleset.strict[name]
        when = ", ".join(f"{key} {value}" for key, value in rule.when.items()) or "every log"
        return (
            f"{rule.name} ({rule.severity}, class {rule.kind}; stricter than the official checker)\n"
            f"  expects: {rule.expected}\n  why: {rule.why}\n  do: {rule.fix}\n"
            f"  applies to: {when}\n  source: {rule.source}\n"
        )
    key = name.partition(".")[0]
    if key == "events":
        return f"events.count\n  expects: at least one event\n  source: mlperf-logging {VERSION}, mlp_compliance\n"
    if key in known:
        named = [file for file in map(load, files(ruleset.version)) if key in file.rules]
        asked = [(f"{file.rules[key].describe()} (official)", file.source) for file in named]
        for written in (written for written in ruleset.written if written.key == key):
            where = f"closed resnet{f', {written.opt_name}' if written.opt_name else ''}"
            words = read_check("written.yaml", key, written.check).words
            asked.append((f"{words} ({where}; stricter than the official checker)", written.source))
        lines = [f"  {words}\n      source: {source}\n" for words, source in asked]
        return "".join([f"{key} (ruleset {ruleset.version})\n", *lines])
    near = get_close_matches(name, [*known, *ruleset.strict], n=3, cutoff=0.4)
    hint = f"; near it: {', '.join(near)}" if near else ""
    raise ValueError(f"no rule {name}{hint}; `--explain all` lists them")
