"""The checker: the stream of one log in, findings and the facts of its run out. No I/O but `check_file`'s read.

Memory is bounded whatever the log's length: of each rule the first FINDINGS_PER_RULE breaches are kept and the
rest counted, of each key the first event.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compliance.logged_run import COUNT, NOTHING, NUMBER, TEXT, LoggedRun, has_type
from compliance.official.checker import Judge
from compliance.official.damaged_lines import official_findings
from compliance.official.rule_files import VERSION, keys
from compliance.official.tool_reading import ToolReader
from compliance.rules import Collected, Finding, Ruleset, breach, verdict
from compliance.strict.policy import Policy
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Entry, Event, Header, Problem, read_log
from runlog.text import as_json, printable, visible

SECTIONS_KEPT = 100
REFUSED_READ = 10_000  # damaged lines; a log with more is judged by these alone
_DAMAGED = "line-damaged"
_FORM = "log-form"
_OF_FORM = frozenset({"encoding", "nul", "event-type"})  # kinds of problems that leave an event readable
_OFFICIAL_REFUSES = frozenset({"json", "fields", "trailing-text"})
_NULL_GPU = re.compile("Null GPU|NULL_GPU")  # as tests/null_gpu names its devices and its variable
_OF_EVERY_RANK = frozenset({schema.INIT_START.key, schema.CACHE_CLEAR.key})
# Keys that a score or a rate is computed from; other names and numbers are labels.
_KEYS_OF_FIGURES = frozenset(
    {schema.TRAIN_SAMPLES.key, schema.EVAL_SAMPLES.key, schema.GLOBAL_BATCH_SIZE.key}
    | {schema.EVAL_ACCURACY.key, schema.GRADIENT_ACCUMULATION_STEPS.key}
)


def _value_type(event: schema.Point[Any] | schema.Mark) -> str | None:
    """Return the type that an event's value must have by its meaning; None where it may be anything."""
    if not isinstance(event, schema.Point) or event.key.endswith("learning_rate_decay_steps"):
        return None  # training_rules.adoc: the steps are "unconstrained"; some log the name of a schedule
    if event.value is str:
        return TEXT
    if event.value is float:
        return NUMBER
    return COUNT if event.least == 1 else None


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of a check of one log, and both verdicts."""

    path: Path
    findings: tuple[Finding, ...]
    run: LoggedRun = NOTHING
    asked: str | None = None  # the verdict that counts; None: strict for logs of this project, official for others
    sha256: str | None = None  # of the file, where it was asked
    mlperf_logging: JsonObject | None = None  # verdict and messages of the tool itself, where it was asked

    @property
    def file(self) -> str:
        return printable(str(self.path), 4096)

    @property
    def by(self) -> str:
        """The verdict that counts: official or strict."""
        return self.asked or ("strict" if self.run.is_project_log else "official")

    @property
    def passes_official(self) -> bool:
        """Whether mlperf-logging's checker accepts the log."""
        return not any(finding.official for finding in self.findings)

    @property
    def passes_strict(self) -> bool:
        """Whether no written rule and no plausibility is broken."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def passed(self) -> bool:
        return not any(map(self.fails, self.findings))

    def fails(self, finding: Finding) -> bool:
        """Whether a finding fails the verdict that counts."""
        return finding.official if self.by == "official" else finding.severity == "error"

    def with_findings(self, findings: Iterable[Finding]) -> "Report":
        """Return a copy of the report with further findings after its own."""
        return replace(self, findings=(*self.findings, *findings))

    def as_dict(self) -> JsonObject:
        """Return the report for JSON: the file, both verdicts, which of them counts, and the findings.

        The SHA-256 of the log is None unless it was asked for. The answer of mlperf-logging's own checker is in the
        dict only if that was run.
        """
        fields: JsonObject = {
            "file": self.file,
            "sha256": self.sha256,
            "official": verdict(self.passes_official),
            "strict": verdict(self.passes_strict),
            "by": self.by,
            "verdict": verdict(self.passed),
            "findings": [finding.as_dict() for finding in self.findings],
        }
        if self.mlperf_logging is not None:
            fields["mlperf_logging"] = self.mlperf_logging
        return fields


class Checker:
    """Takes the entries of one log; `finish` gives the findings and the run."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        self._known = dict.fromkeys([*sorted(keys(ruleset.version)), *schema.EVENTS])
        self._collected = Collected(ruleset.strict)
        self._run = LoggedRun()
        self._order = RunOrder(self._run, self._collected)
        self._judge = Judge(ruleset.version, self._collected)
        self._tool_reader = ToolReader(ruleset.version)
        self._empty = True
        self._refused = 0  # lines that the official parser refuses
        self.may_be_read_otherwise = False  # whether the official parser may read a line in another way

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take the entries of the log, until too many are damaged."""
        for entry in entries:
            if type(entry) is Event:
                self._event(entry)
            elif self._refused >= REFUSED_READ:
                return
            elif type(entry) is Problem:
                self._problem(entry)
            elif type(entry) is Header:
                self._header(entry)

    def _problem(self, problem: Problem) -> None:
        if problem.kind != "event-type":
            self.may_be_read_otherwise = True
        if problem.kind in _OFFICIAL_REFUSES:
            self._refused += 1
        actual = printable(problem.message)
        if problem.text:
            actual += f": {printable(problem.text)}"
        self._collected.breach(_FORM if problem.kind in _OF_FORM else _DAMAGED, problem.line, actual)

    def _header(self, header: Header) -> None:
        section, value, line = header
        if len(self._run.headers) >= SECTIONS_KEPT:
            return
        if section in self._run.headers:
            self._order.measured.keep_fault(line, f"a second header section {printable(section)}")
        else:
            self._run.headers[section] = value
        if section in (schema.HARDWARE.name, schema.ENVIRONMENT.name) and _NULL_GPU.search(str(value)):
            self._collected.breach("run-mode", line, f"{section} names a null GPU, which computes nothing")

    def _event(self, event: Event) -> None:
        self._empty = False
        if event.time_ms % 1000:
            self._run.tick_ms = 1
        rank = event.rank or event.metadata.get("rank")
        if rank and event.key not in _OF_EVERY_RANK:
            self._collected.breach(_FORM, event.line, f"{printable(event.key)} of rank {printable(rank, 20)}")
        if event.key in self._known:
            self._run.take(event)
            self._check_types(event)
        self._judge.take(event)
        self._tool_reader.take(event)
        self._order.take(event)

    def _check_types(self, event: Event) -> None:
        """Collect a value, or an event type such as INTERVAL_START, that is not the schema's for the event's key.

        A key that the schema does not name may have any value, and must be of the type POINT_IN_TIME. A wrong value is
        a breach of the rule `value-type` where a score or a rate is computed from it. Other wrong values, and a wrong
        event type, are breaches of form, which only warn.
        """
        key = event.key
        line = event.line
        known_event = schema.EVENTS.get(key)
        wanted = None if known_event is None else _value_type(known_event)
        if wanted is not None and not has_type(event.value, wanted):
            rule = "value-type" if key in _KEYS_OF_FIGURES else _FORM
            actual = f"{key} is {visible(as_json(event.value), 160)}"
            self._collected.breach(rule, line, actual, f"{key} is {wanted}")
        wanted_type = "POINT_IN_TIME" if known_event is None else known_event.event_type
        if event.event_type not in ("", wanted_type):  # empty: no known type, which the reader has reported
            actual = f"{key} is of type {event.event_type}"
            self._collected.breach(_FORM, line, actual, f"{key} is of type {wanted_type}")

    def finish(self, benchmark_asked: str | None) -> tuple[tuple[Finding, ...], LoggedRun]:
        """Judge the log after its last entry. Return the findings, errors first and then by line, and the run's facts.

        `benchmark_asked` is the benchmark that the log must be of; None for any. Each of three faults is the only
        finding of its log, as it makes all others meaningless: that the log has no events, that its benchmark has no
        rules, or that so many lines are damaged that reading was given up.
        """
        if self._empty:
            return (self._finding_of_no_events(),), NOTHING
        run = self._run
        collected = self._collected
        self._judge.finish()
        run.as_tools_read = self._tool_reader.result()
        # Put the keys into the order of the rules, so that messages list them in the same order for each log.
        run.first_events = {key: run.first_events[key] for key in self._known if key in run.first_events}
        Policy(ruleset=self._ruleset, run=run, order=self._order, collected=collected).check(benchmark_asked)
        for finding in collected.found:
            if finding.rule == "known-benchmark":  # a strict rule, but the official checker ends there with an error
                return (replace(finding, official=True),), run
        findings = collected.finish()
        if self._refused >= REFUSED_READ:  # what other findings miss may lie behind the place where reading ended
            findings = tuple(finding for finding in findings if finding.rule == _DAMAGED)
        return findings, run

    def _finding_of_no_events(self) -> Finding:
        """Return the finding that the log has no events, with the first damaged line if there is one."""
        why = "none"
        if self._collected.found:
            first = self._collected.found[0]
            why = f"none can be read; line {first.line}: {first.actual}"
        return Finding(
            rule="events.count",
            expected="MLLOG events",
            actual=why,
            fix="give the log of a run",
            source=f"mlperf-logging {VERSION}, mlp_compliance.py",
            official=True,
        )


def check_file(path: Path, ruleset: Ruleset, benchmark: str | None = None) -> Report:
    """Check one log by the rules of `ruleset`. Return the report, with its findings and the facts of its run.

    `benchmark` is the benchmark that the log must be of; None allows any. mlperf-logging's parser reads some damaged
    lines in another way than ours. A log with such lines is read once more in that way, for the official verdict. If it
    is neither of this project nor of a benchmark of ours, what only our reader objects to in these lines is no error.

    A log that is a link into another folder gets a finding of its own, the first.

    Raises OSError if the log cannot be read, ValueError if it is no regular file.
    """
    checker = Checker(ruleset)
    checker.feed(read_log(path))
    findings, run = checker.finish(benchmark)

    has_damaged_lines = any(finding.rule == _DAMAGED for finding in findings)
    if checker.may_be_read_otherwise and has_damaged_lines:
        findings = official_findings(path, findings, ruleset)
        is_benchmark_of_ours = run.stated_text(schema.SUBMISSION_BENCHMARK) in ruleset.benchmarks
        if not is_benchmark_of_ours and not run.is_project_log:
            findings = _trust_official_parser(findings)

    is_link_elsewhere = path.is_symlink() and path.resolve().parent != path.parent.resolve()
    if is_link_elsewhere:
        actual = f"a link to {printable(str(path.resolve()))}"
        findings = (breach(ruleset.strict["file-link"], actual), *findings)
    return Report(path=path, findings=findings, run=run)


def _trust_official_parser(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a log with damaged lines, without errors that only our reader's view of these lines makes.

    This is for logs of benchmarks that are not ours, which the official parser reads as they are meant. A damaged line
    that it can read is no error but a warning. An official rule that is broken only because our reader passed over such
    a line, so that the finding is not marked official, is dropped.
    """
    kept = []
    for finding in findings:
        is_error_for_us_alone = finding.severity == "error" and not finding.official
        is_official_rule = "." in finding.rule  # such as seed.count; a strict rule's name has no dot
        if finding.rule == _DAMAGED and is_error_for_us_alone:
            kept.append(replace(finding, severity="warning"))
        elif not (is_error_for_us_alone and is_official_rule):
            kept.append(finding)
    return tuple(kept)
