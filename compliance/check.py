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
from compliance.rules import Finding, FindingCollector, Ruleset, breach, verdict
from compliance.strict.policy import Policy
from compliance.strict.run_order import KEYS_OF_EVERY_RANK, RunOrder
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Entry, Event, Header, Problem, read_log
from runlog.text import as_json, printable, visible

SECTIONS_KEPT = 100
MOST_REFUSED_LINES = 10_000  # lines that the official parser refuses, until reading is given up
_DAMAGED = "line-damaged"
_FORM = "log-form"
_READABLE_PROBLEMS = frozenset({"encoding", "nul", "event-type"})  # kinds of problems that leave an event readable
_OFFICIALLY_REFUSED_PROBLEMS = frozenset({"json", "fields", "trailing-text"})
_NULL_GPU = re.compile("Null GPU|NULL_GPU")  # as tests/null_gpu names its devices and its variable
# Keys that a score or a rate is computed from; other names and numbers are labels.
_KEYS_OF_FIGURES = frozenset(
    {schema.TRAIN_SAMPLES.key, schema.EVAL_SAMPLES.key, schema.GLOBAL_BATCH_SIZE.key}
    | {schema.EVAL_ACCURACY.key, schema.GRADIENT_ACCUMULATION_STEPS.key}
)


def _value_type(event: schema.Point[Any] | schema.Mark) -> str | None:
    """Return the type that an event's value must have: TEXT, NUMBER or COUNT. None if it may be anything."""
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
    sha256: str | None = None  # of the file, if it was asked for
    mlperf_logging: JsonObject | None = None  # verdict and messages of its own checker, if it was run

    @property
    def file(self) -> str:
        return printable(str(self.path), 4096)

    @property
    def deciding_rules(self) -> str:
        """The rules by which the log passes or fails: official or strict."""
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
        """Whether a finding makes the log fail by the deciding rules."""
        return finding.official if self.deciding_rules == "official" else finding.severity == "error"

    def with_findings(self, findings: Iterable[Finding]) -> "Report":
        """Return a copy of the report with further findings after its own."""
        return replace(self, findings=(*self.findings, *findings))

    def as_dict(self) -> JsonObject:
        """Return the report for JSON: the file, both verdicts, which of them counts, and the findings.

        `sha256` is None if it was not asked for. The key `mlperf_logging`, the answer of mlperf-logging's own checker,
        is left out if that checker was not run.
        """
        fields: JsonObject = {
            "file": self.file,
            "sha256": self.sha256,
            "official": verdict(self.passes_official),
            "strict": verdict(self.passes_strict),
            "by": self.deciding_rules,
            "verdict": verdict(self.passed),
            "findings": [finding.as_dict() for finding in self.findings],
        }
        if self.mlperf_logging is not None:
            fields["mlperf_logging"] = self.mlperf_logging
        return fields


class Checker:
    """Checks one log: `feed` takes its entries, then `finish` gives the findings and the facts of the run."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        # The keys that the rules or the schema name, in the order in which messages list them.
        self._known_keys = dict.fromkeys([*sorted(keys(ruleset.version)), *schema.EVENTS])
        self._collector = FindingCollector(ruleset.strict)
        self._run = LoggedRun()
        self._order = RunOrder(self._run, self._collector)
        self._judge = Judge(ruleset.version, self._collector)
        self._tool_reader = ToolReader(ruleset.version)
        self._has_no_events = True
        self._refused_line_count = 0  # of the lines that the official parser refuses
        self.parsers_may_differ = False  # whether the official parser may read a line differently from our reader

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take the events, damaged lines and header sections of the log in their order.

        Once too many lines are damaged, reading stops at the first entry that is not an event. Events skip this test,
        for speed: nearly all entries of a log are events.
        """
        for entry in entries:
            if type(entry) is Event:
                self._take_event(entry)
                continue
            if self._has_too_many_refused_lines:
                return
            if type(entry) is Problem:
                self._take_problem(entry)
            elif type(entry) is Header:
                self._take_header(entry)

    @property
    def _has_too_many_refused_lines(self) -> bool:
        """Whether so many lines are damaged that reading is given up, and the log is judged by its damage alone."""
        return self._refused_line_count >= MOST_REFUSED_LINES

    def _take_problem(self, problem: Problem) -> None:
        """Report a damaged line. A problem that leaves the event readable only breaks the form of a log."""
        if problem.kind != "event-type":
            self.parsers_may_differ = True
        if problem.kind in _OFFICIALLY_REFUSED_PROBLEMS:
            self._refused_line_count += 1
        actual = printable(problem.message)
        if problem.text:
            actual += f": {printable(problem.text)}"
        rule = _FORM if problem.kind in _READABLE_PROBLEMS else _DAMAGED
        self._collector.add_breach(rule, problem.line, actual)

    def _take_header(self, header: Header) -> None:
        """Keep a section of the header. Report a second section of the same name, and a null GPU.

        Sections beyond the first SECTIONS_KEPT are ignored.
        """
        section, value, line = header
        if len(self._run.headers) >= SECTIONS_KEPT:
            return
        if section in self._run.headers:
            self._order.measured.keep_fault(line, f"a second header section {printable(section)}")
        else:
            self._run.headers[section] = value
        if section in (schema.HARDWARE.name, schema.ENVIRONMENT.name) and _NULL_GPU.search(str(value)):
            self._collector.add_breach("run-mode", line, f"{section} names a null GPU, which computes nothing")

    def _take_event(self, event: Event) -> None:
        """Pass an event on to the checks.

        - An event with an unknown key goes only to the official judge, the tool reader and the check of the order. It
          is not kept among the facts of the run, and its type is not checked.
        - If its time is not a whole second, the clock of the run counts milliseconds (`tick_ms`).
        - If a rank other than 0 logged it, report a breach. Each rank may log the start of its initialisation and the
          clearing of its cache.
        """
        self._has_no_events = False
        if event.time_ms % 1000:  # then the log's clock counts milliseconds, not only seconds
            self._run.tick_ms = 1
        rank = event.rank or event.metadata.get("rank")  # by the launcher's prefix, else by the event itself
        if rank and event.key not in KEYS_OF_EVERY_RANK:
            self._collector.add_breach(_FORM, event.line, f"{printable(event.key)} of rank {printable(rank, 20)}")
        if event.key in self._known_keys:
            self._run.take(event)
            self._check_types(event)
        self._judge.take(event)
        self._tool_reader.take(event)
        self._order.take(event)

    def _check_types(self, event: Event) -> None:
        """Report an event whose value or event type is not the one that the schema has for its key.

        - A wrong value is a breach of `value-type` if a score or a rate is computed from it.
        - Any other wrong value is a breach of form, which only warns.
        - A wrong event type, such as INTERVAL_START in place of POINT_IN_TIME, is a breach of form, too.

        An event of a key outside the schema may have any value. Its event type must be POINT_IN_TIME.
        """
        key = event.key
        line = event.line
        schema_event = schema.EVENTS.get(key)
        wanted_value_type = None if schema_event is None else _value_type(schema_event)
        if wanted_value_type is not None and not has_type(event.value, wanted_value_type):
            rule = "value-type" if key in _KEYS_OF_FIGURES else _FORM
            actual = f"{key} is {visible(as_json(event.value), 160)}"
            self._collector.add_breach(rule, line, actual, f"{key} is {wanted_value_type}")
        wanted_event_type = "POINT_IN_TIME" if schema_event is None else schema_event.event_type
        if event.event_type not in ("", wanted_event_type):  # empty: no known type, which the reader has reported
            actual = f"{key} is of type {event.event_type}"
            self._collector.add_breach(_FORM, line, actual, f"{key} is of type {wanted_event_type}")

    def finish(self, benchmark_asked: str | None) -> tuple[tuple[Finding, ...], LoggedRun]:
        """Judge the log after its last entry. Return the findings, errors first and then by line, and the run's facts.

        `benchmark_asked` is the benchmark that the log must be of; None allows any. Three faults make all other
        findings meaningless, so each is returned without them:

        - The log has no events.
        - The official rules do not know the log's benchmark.
        - Too many lines are damaged, so that reading was given up. The damaged lines are the findings.
        """
        if self._has_no_events:
            return (self._finding_of_no_events(),), NOTHING
        run = self._run
        self._judge.finish()  # adds the breaches of the official rules
        run.as_tools_read = self._tool_reader.result()  # the time and the convergence, as the official tools read them
        # Put the keys into the order of the rules, so that messages list them in the same order for each log.
        run.first_events = {key: run.first_events[key] for key in self._known_keys if key in run.first_events}
        policy = Policy(ruleset=self._ruleset, run=run, order=self._order, collector=self._collector)
        policy.check(benchmark_asked)  # adds the breaches of the rules about the run as a whole

        unknown_benchmark = self._finding_of_unknown_benchmark()
        if unknown_benchmark is not None:
            return (unknown_benchmark,), run
        findings = self._collector.sorted_findings()
        if self._has_too_many_refused_lines:  # events that other findings call missing may be in the part not read
            findings = tuple(finding for finding in findings if finding.rule == _DAMAGED)
        return findings, run

    def _finding_of_unknown_benchmark(self) -> Finding | None:
        """Return the finding that the official rules do not know the log's benchmark; None if they know it.

        The rule is a strict one, but the official checker ends with an error there, so the finding is official.
        """
        for finding in self._collector.findings:
            if finding.rule == "known-benchmark":
                return replace(finding, official=True)
        return None

    def _finding_of_no_events(self) -> Finding:
        """Return the finding that the log has no events. It quotes the first damaged line if there is one."""
        actual = "none"
        if self._collector.findings:
            first = self._collector.findings[0]
            actual = f"none can be read; line {first.line}: {first.actual}"
        return Finding(
            rule="events.count",
            expected="MLLOG events",
            actual=actual,
            fix="give the log of a run",
            source=f"mlperf-logging {VERSION}, mlp_compliance.py",
            official=True,
        )


def check_file(path: Path, ruleset: Ruleset, benchmark: str | None = None) -> Report:
    """Check one log by the rules of `ruleset`. Return the report, with its findings and the facts of its run.

    `benchmark` is the benchmark that the log must be of; None allows any. A link to a file in another folder is
    reported as the first finding.

    Our reader and mlperf-logging's parser read some damaged lines differently. The official verdict on such a log comes
    from a second reading, in the way of mlperf-logging's parser. If such a log is of another project and of a
    benchmark that we do not have, errors that only our reader finds are excused: dropped, or turned into warnings.

    Raises OSError if the log cannot be read, and ValueError if it is not a regular file.
    """
    checker = Checker(ruleset)
    checker.feed(read_log(path))
    findings, run = checker.finish(benchmark)

    has_damaged_lines = any(finding.rule == _DAMAGED for finding in findings)
    if checker.parsers_may_differ and has_damaged_lines:  # such as a line with text after its event
        findings = official_findings(path, findings, ruleset)
        is_benchmark_of_ours = run.stated_text(schema.SUBMISSION_BENCHMARK) in ruleset.benchmarks
        is_foreign_log = not run.is_project_log and not is_benchmark_of_ours
        if is_foreign_log:  # it need only be readable for mlperf-logging's parser
            findings = _excuse_errors_of_our_reader(findings)

    is_link_elsewhere = path.is_symlink() and path.resolve().parent != path.parent.resolve()
    if is_link_elsewhere:
        actual = f"a link to {printable(str(path.resolve()))}"
        findings = (breach(ruleset.strict["file-link"], actual), *findings)
    return Report(path=path, findings=findings, run=run)


def _excuse_errors_of_our_reader(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Excuse the errors in a log with damaged lines that come only from our reader, which is stricter.

    Of the errors that the official checker does not report (`official` is False),

    - a damaged line becomes a warning, because the official parser can read it, and
    - a breach of the rule of a key is dropped: it was found only because our reader skipped a damaged line.

    All other findings are returned as they are.
    """
    kept = []
    for finding in findings:
        is_error_of_ours_only = finding.severity == "error" and not finding.official
        if is_error_of_ours_only and finding.rule == _DAMAGED:
            kept.append(replace(finding, severity="warning"))  # the official parser can read the line
        elif is_error_of_ours_only and finding.is_about_key:
            continue  # found only because our reader skipped a damaged line
        else:
            kept.append(finding)
    return tuple(kept)
