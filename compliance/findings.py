"""A finding, and the findings of one log as they come."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from compliance.rules import StrictRule

SEVERITIES = ("error", "warning", "info")
FINDINGS_PER_RULE = 10


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found in a log. `line` counts from 1; None where no line is to blame.

    `official`: mlperf-logging's checker refuses the log for it. `kind` is the class of its rule.
    """

    rule: str  # a strict rule, or KEY.ASPECT: its count, value, metadata, order or time
    severity: str = "error"
    line: int | None = None
    expected: str
    actual: str
    fix: str = ""
    kind: str = "rule"
    source: str
    official: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"class" if name == "kind" else name: value for name, value in vars(self).items()}


def breach(rule: StrictRule, actual: str, *, line: int | None = None, expected: str | None = None) -> Finding:
    text: dict[str, Any] = {
        "expected": expected or rule.expected,
        "actual": actual,
        "fix": rule.fix,
        "source": rule.source,
    }
    return Finding(rule=rule.name, severity=rule.severity, line=line, kind=rule.kind, **text)


def note(rule: StrictRule, actual: str) -> Finding:
    """Says that `rule` was not applied, so that nobody takes it for met."""
    return replace(breach(rule, actual), severity="info", fix="")


def verdict(passed: bool) -> str:
    return "pass" if passed else "fail"


class Collected:
    """The findings of one log as they come: of each strict rule the first FINDINGS_PER_RULE breaches."""

    def __init__(self, strict: Mapping[str, StrictRule]) -> None:
        self.found: list[Finding] = []
        self._strict = strict
        self._counts = Counter[str]()

    def breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        """A breach of a strict rule; a note where its text is not in force."""
        text = self._strict[rule]
        self._counts[rule] += text.in_force
        if not text.in_force:
            self.note(rule, f"not applied: in force from ruleset {text.since} on; {actual}")
        elif self._counts[rule] <= FINDINGS_PER_RULE:
            self.found.append(breach(text, actual, line=line, expected=expected))

    def drop(self, rules: Collection[str]) -> None:
        self.found = [finding for finding in self.found if finding.rule not in rules]
        for rule in rules:
            del self._counts[rule]

    def note(self, rule: str, actual: str) -> None:
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
