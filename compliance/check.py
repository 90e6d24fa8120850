"""The checker: the stream of one log in, findings and the facts of its run out. No I/O but `check_file`'s read.

Memory is bounded whatever the log's length: of each rule the first FINDINGS_PER_RULE breaches are kept and the
rest counted, of each key the first event.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from compliance.logged_run import NOTHING, LoggedRun, is_count, is_name, is_number
from compliance.official.checker import Judge
from compliance.official.damaged_lines import official_findings, official_findings_without_infinities, reading_of_tools
from compliance.official.rule_files import VERSION, keys
from compliance.official.tool_reading import ToolReader
from compliance.rules import Finding, FindingCollector, Ruleset, breach, verdict
from compliance.strict.event_times import KEYS_OF_EVERY_RANK
from compliance.strict.policy import Policy
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Entry, Event, Header, Problem, ends_with_line_end, has_old_events, read_log
from runlog.text import as_json, printable, visible

MAX_REFUSED_LINES = 10_000  # lines that the official parser refuses, until reading is given up
_DAMAGED = "line-damaged"
_FORM = "log-form"
_FILE_LINK = "file-link"  # that a log is a link to a file in another folder
_NO_EVENTS = "events.count"
_READABLE_PROBLEMS = frozenset({"encoding", "nul", "event-type"})  # kinds of problems that leave an event readable
# Kinds of problems for which mlperf-logging's parser refuses most lines.
_OFFICIALLY_REFUSED_PROBLEMS = frozenset({"json", "fields", "trailing-text"})
_SECTIONS_WITH_DEVICES = (schema.HARDWARE.name, schema.ENVIRONMENT.name)
_NULL_GPU = re.compile("Null GPU|NULL_GPU")  # as tests/null_gpu names its devices and its variable
# Keys that a score or a rate is computed from; other names and numbers are labels.
_KEYS_OF_FIGURES = frozenset(
    {schema.TRAIN_SAMPLES.key, schema.EVAL_SAMPLES.key, schema.GLOBAL_BATCH_SIZE.key}
    | {schema.EVAL_ACCURACY.key, schema.GRADIENT_ACCUMULATION_STEPS.key}
)


class _ValueType(NamedTuple):
    """A type that the value of an event must have: its name in messages, and the test whether a value has it."""

    words: str
    has_value: Callable[[Any], bool]


_NAME = _ValueType("a name", is_name)
_NUMBER = _ValueType("a number", is_number)
_COUNT = _ValueType("a whole number above 0", is_count)


def _value_type(entry: schema.Point[Any] | schema.Mark) -> _ValueType | None:
    """Return the type that the values of a key must have in a log, such as a number; None if any value is allowed.

    Args:
        entry: The entry of the key in the schema, such as schema.EVAL_ACCURACY.
    """
    if not isinstance(entry, schema.Point):  # a Mark, the start or end of an interval, has no value
        return None
    if entry.key.endswith("learning_rate_decay_steps"):
        return None  # training_rules.adoc: the steps are "unconstrained"; some log the name of a schedule
    type_of_values = entry.value  # such as `float`
    if type_of_values is str:
        return _NAME
    if type_of_values is float:
        return _NUMBER
    is_count = entry.least == 1  # as of eval_samples; a seed, for instance, has no least value
    return _COUNT if is_count else None


def _is_possible_accuracy(value: Any, largest: float | None) -> bool:
    """Return whether the value of an eval_accuracy event is a number in range, or a table of such numbers.

    0.758 and {"AUC": 0.803} are possible, but not True or "75.8 %". With a largest value of 1, 75.8 is not possible.

    Args:
        value: The value as the log has it, of any type. A table has a number for each metric; an empty one is possible.
        largest: The largest value of the benchmark's metric, whose least value is then 0. None allows any number.
    """
    metrics = value.values() if isinstance(value, dict) else [value]
    if largest is None:
        return all(is_number(metric) for metric in metrics)
    return all(is_number(metric) and 0 <= metric <= largest for metric in metrics)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of a check of one log, and both verdicts."""

    path: Path
    findings: tuple[Finding, ...]
    run: LoggedRun = NOTHING
    asked: str | None = None  # the verdict that counts; None: strict for logs of this project, official for others
    sha256: str | None = None  # of the file; None: it was not computed
    mlperf_logging: JsonObject | None = None  # verdict and messages of its own checker, if it was run

    @property
    def file(self) -> str:
        return printable(str(self.path), 4096)

    @property
    def why_no_run(self) -> str:
        """The reason why the file is not a log of a run, if `run` is NOTHING, such as "MLLOG events: none"."""
        about_content = [finding for finding in self.findings if finding.rule != _FILE_LINK]
        first = about_content[0]
        return f"MLLOG events: {first.actual}" if first.rule == _NO_EVENTS else first.actual

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
        """Return whether a finding makes the log fail by the rules that count for it.

        Args:
            finding: A finding of this report. By the official rules it counts if the official checker has it, by the
                strict ones if it is an error.
        """
        return finding.official if self.deciding_rules == "official" else finding.severity == "error"

    def with_findings(self, findings: Iterable[Finding]) -> "Report":
        """Return a copy of the report with further findings after its own.

        Args:
            findings: The further findings.
        """
        return replace(self, findings=(*self.findings, *findings))

    def as_dict(self) -> JsonObject:
        """Return the report for JSON: the file, both verdicts, which of them counts, and the findings.

        Returns:
            The values by name. `sha256` is None if it was not computed. `mlperf_logging` is there only if the checker
            of mlperf-logging was run.
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

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take the events, header sections and damaged lines of a log, until too many lines are damaged.

        Args:
            entries: What the reader makes of the log, in the order of its lines.
        """
        for entry in entries:
            if type(entry) is Event:
                self._take_event(entry)
            elif type(entry) is Header:
                self._take_header(entry)
            elif type(entry) is Problem:
                self._take_problem(entry)
                if self._has_too_many_refused_lines:
                    return

    @property
    def _has_too_many_refused_lines(self) -> bool:
        """Whether so many lines are damaged that reading is given up, and the log is judged by its damage alone."""
        return self._refused_line_count >= MAX_REFUSED_LINES

    def _take_problem(self, problem: Problem) -> None:
        """Report a line with a problem, such as an event that is not JSON.

        Args:
            problem: What is wrong with the line, from the reader.
        """
        may_be_refused = problem.kind in _OFFICIALLY_REFUSED_PROBLEMS  # the parser takes a line with Infinity, though
        if may_be_refused:
            self._refused_line_count += 1  # reading is given up when this gets too high
        actual = printable(problem.message)
        if problem.text:
            actual += f": {printable(problem.text)}"
        is_only_of_form = problem.kind in _READABLE_PROBLEMS
        rule = _FORM if is_only_of_form else _DAMAGED
        self._collector.add_breach(rule, problem.line, actual)

    def _take_header(self, header: Header) -> None:
        """Keep the first header section of each name in the run's facts, and report what is wrong with the section.

        Args:
            header: A line `# {"<section>": value}` of the log.
        """
        is_line_of_user = header.section not in schema.SECTIONS
        if is_line_of_user:
            return
        self._check_devices(header)  # reports a null GPU
        sections = self._run.headers
        if header.section not in sections:
            sections[header.section] = header.value
            return
        what = f"a second header section {printable(header.section)}"
        # Only after the last line is it known whether this project wrote the log. Then `finish` reports the fault.
        self._order.measured.report_if_project_log(header.line, what)

    def _check_devices(self, header: Header) -> None:
        """Report a header's section on the run's devices that names a null GPU, a stand-in that computes nothing.

        Args:
            header: Any section of the header.
        """
        if header.section in _SECTIONS_WITH_DEVICES and _NULL_GPU.search(str(header.value)):
            actual = f"{header.section} names a null GPU, which computes nothing"
            self._collector.add_breach("run-mode", header.line, actual)

    def _take_event(self, event: Event) -> None:
        """Add an event to what is known of the run, and pass it on to each check of the log.

        An event whose key is neither in the rules nor in the schema is not kept in `_run`, and its types are not
        checked. The other checks get it, too.

        Args:
            event: The event, in the order of the log.
        """
        self._has_no_events = False
        is_whole_second = event.time_ms % 1000 == 0
        if not is_whole_second:
            self._run.tick_ms = 1  # the log's clock counts milliseconds, not only seconds
        self._check_rank(event)
        if event.key in self._known_keys:
            self._run.take(event)
            self._check_types(event)
        if event.key == schema.EVAL_ACCURACY.key:
            self._check_accuracy_of_other_benchmark(event)
        self._judge.take(event)  # for the official rules, which are applied after the last event
        self._tool_reader.take(event)  # for the time and the convergence as the official tools read them
        self._order.take(event)  # for the order of the run; it uses the counts of events, which now include this one

    def _check_rank(self, event: Event) -> None:
        """Report an event of another rank than 0, unless each rank may log it, as it may log init_start.

        Args:
            event: The event.
        """
        rank_of_prefix = event.rank  # in the prefix that the launcher puts before a line; None without one
        rank = rank_of_prefix or event.metadata.get("rank")
        is_of_other_rank = bool(rank)  # neither 0 nor missing
        may_each_rank_log_it = event.key in KEYS_OF_EVERY_RANK
        if is_of_other_rank and not may_each_rank_log_it:
            self._collector.add_breach(_FORM, event.line, f"{printable(event.key)} of rank {printable(rank, 20)}")

    def _check_types(self, event: Event) -> None:
        """Report an event whose value or event type is not what the schema has for its key.

        - The value must have the type of `_value_type`, if there is one. Any value is right for a key that is not in
          the schema, and for seeds, bools, tables, marks and the steps of a decay.
        - The event type must be the one in the schema; POINT_IN_TIME if the key is not in the schema.

        Args:
            event: An event whose key is in the rules or in the schema.
        """
        schema_event = schema.EVENTS.get(event.key)
        if schema_event is not None:
            self._check_value_type(event, _value_type(schema_event))
        wanted_event_type = "POINT_IN_TIME" if schema_event is None else schema_event.event_type
        is_type_known = event.event_type != ""  # "": the reader did not know the log's event type, and reported that
        if is_type_known and event.event_type != wanted_event_type:
            actual = f"{event.key} is of type {event.event_type}"
            self._collector.add_breach(_FORM, event.line, actual, f"{event.key} is of type {wanted_event_type}")

    def _check_value_type(self, event: Event, wanted: _ValueType | None) -> None:
        """Report an event whose value has another type than it should.

        It is an error only if a score or a rate is computed from this key; else the rule `log-form` only warns.

        Args:
            event: The event.
            wanted: The type that its value should have. None allows any value.
        """
        if wanted is None or wanted.has_value(event.value):
            return
        rule = "value-type" if event.key in _KEYS_OF_FIGURES else _FORM
        actual = f"{event.key} is {visible(as_json(event.value), 160)}"
        self._collector.add_breach(rule, event.line, actual, f"{event.key} is {wanted.words}")

    def take_open_end(self) -> None:
        """Report a last line without a line end, which a cut log leaves. Call it before `finish`."""
        actual = "the last line has no end, as where a log was cut"
        self._collector.add_breach(_DAMAGED, None, actual, "whole lines", severity="warning")

    def _check_accuracy_of_other_benchmark(self, event: Event) -> None:
        """Report an impossible accuracy, unless the log has stated a benchmark that this project trains.

        Args:
            event: An event of the key eval_accuracy.
        """
        benchmark = self._run.stated_text(schema.SUBMISSION_BENCHMARK)
        is_benchmark_of_ours = benchmark in self._ruleset.benchmarks
        if is_benchmark_of_ours:
            return  # `_check_types` and `Policy` check these
        rule = "metric-value"
        largest = self._ruleset.strict[rule].bounds.get(benchmark)  # None: no largest value is known
        if not _is_possible_accuracy(event.value, largest):
            actual = f"{event.key} is {visible(as_json(event.value), 160)}"
            self._collector.add_breach(rule, event.line, actual)

    def finish(self, wanted_benchmark: str | None) -> tuple[tuple[Finding, ...], LoggedRun]:
        """Judge the log after its last entry. Return the findings, and the facts that the log states of its run.

        Args:
            wanted_benchmark: The benchmark that the log must be of, such as "resnet"; None allows any.

        Returns:
            The findings, errors first and then by line, and the facts of the run. Without events, the facts are
            NOTHING.
        """
        if self._has_no_events:
            return (self._finding_of_no_events(),), NOTHING
        self._complete_facts()
        self._judge_whole_log(wanted_benchmark)
        return self._findings_that_mean_something(), self._run

    def _findings_that_mean_something(self) -> tuple[Finding, ...]:
        """Return the findings on the log, errors first and then by line, without those that lack a ground."""
        unknown_benchmark = self._finding_of_unknown_benchmark()
        if unknown_benchmark is not None:  # without rules for the benchmark, no other finding means anything
            return (unknown_benchmark,)
        findings = self._collector.sorted_findings()
        if self._has_too_many_refused_lines:
            # `feed` stopped before the end of the log. What other findings call missing may stand in the part not read.
            return tuple(finding for finding in findings if finding.rule == _DAMAGED)
        return findings

    def _complete_facts(self) -> None:
        """Add to the run's facts what is known only after the last entry."""
        run = self._run
        run.as_tools_read = self._tool_reader.result()
        # Put the keys into the order of the rules, so that messages list them in the same order for each log.
        run.first_events = {key: run.first_events[key] for key in self._known_keys if key in run.first_events}

    def _judge_whole_log(self, wanted_benchmark: str | None) -> None:
        """Collect the findings about the log as a whole: by the official rules, then by the strict ones.

        Args:
            wanted_benchmark: The benchmark that the log must be of; None allows any.
        """
        self._judge.finish()
        policy = Policy(ruleset=self._ruleset, run=self._run, order=self._order, collector=self._collector)
        policy.check(wanted_benchmark, self._judge.target_reached_ms)

    def _finding_of_unknown_benchmark(self) -> Finding | None:
        """Return the finding that the official rules do not know the log's benchmark; None if there is no such finding.

        The rule is a strict one, but the official checker ends with an error there, so the finding is official.
        """
        for finding in self._collector.findings:
            if finding.rule == "known-benchmark":
                return replace(finding, official=True)
        return None

    def _finding_of_no_events(self) -> Finding:
        """Return the finding that the log has no events. It quotes the first problem of its text, if any."""
        actual = "none"
        on_lines = [finding for finding in self._collector.findings if finding.line is not None]
        about_reading = [finding for finding in on_lines if finding.rule in (_DAMAGED, _FORM)]
        if about_reading:
            first = about_reading[0]
            actual = f"none can be read; line {first.line}: {first.actual}"
        return Finding(
            rule=_NO_EVENTS,
            expected="MLLOG events",
            actual=actual,
            fix="give the log of a run",
            source=f"mlperf-logging {VERSION}, mlp_compliance.py",
            official=True,
        )


def check_file(path: Path, ruleset: Ruleset, benchmark: str | None = None) -> Report:
    """Check one log. Return a report with the findings and with the facts of the run.

    Args:
        path: The path of the log.
        ruleset: The rules by which it is checked.
        benchmark: The benchmark that the log must be of, such as "resnet"; None allows any.

    Raises:
        OSError: The log cannot be read.
        ValueError: The path leads to something that is not a regular file, such as a folder.
    """
    checker = Checker(ruleset)
    checker.feed(read_log(path))
    if not ends_with_line_end(path):
        checker.take_open_end()
    findings, run = checker.finish(benchmark)
    has_damaged_lines = any(finding.rule == _DAMAGED and finding.line is not None for finding in findings)
    if has_damaged_lines:
        # mlperf-logging's tools read such lines in another way. So the log is read again, as they read it.
        findings = _findings_on_damaged_log(path, findings, run, ruleset)
        if run is not NOTHING:  # NOTHING, the facts of a log without events, is shared and must not change
            run.as_tools_read = reading_of_tools(path, ruleset)
    findings = _naming_old_events(path, findings)
    if _is_link_to_another_folder(path):
        actual = f"a link to {printable(str(path.resolve()))}"
        findings = (breach(ruleset.strict[_FILE_LINK], actual), *findings)
    return Report(path=path, findings=findings, run=run)


def _naming_old_events(path: Path, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings on a log; the one that there are no events names MLPerf v0.5 and v0.6 if they wrote the log.

    Args:
        path: The path of the log.
        findings: The findings on it.
    """
    has_no_events = any(finding.rule == _NO_EVENTS for finding in findings)
    if not (has_no_events and has_old_events(path)):
        return findings
    result = []
    for finding in findings:
        if finding.rule == _NO_EVENTS:
            actual = f"{finding.actual}: MLPerf v0.5 and v0.6 wrote events in forms that are not read"
            result.append(replace(finding, actual=actual))
        else:
            result.append(finding)
    return tuple(result)


def _findings_on_damaged_log(
    path: Path, findings: tuple[Finding, ...], run: LoggedRun, ruleset: Ruleset
) -> tuple[Finding, ...]:
    """Correct the findings on a log with damaged lines, some of which only the official checker reads.

    Our reader skips these lines. So our findings may lack what the official checker reports, and may call an event
    missing that stands on a skipped line.

    Args:
        path: The path of the log, which is read again.
        findings: The findings by our reader.
        run: The facts that the log states of the run.
        ruleset: The rules by which the log is checked, with this project's benchmarks.
    """
    with_official_ones = official_findings(path, findings, ruleset)
    benchmark = run.stated_text(schema.SUBMISSION_BENCHMARK)
    division = run.stated_text(schema.SUBMISSION_DIVISION)
    are_rules_known = benchmark != "" and division != ""  # not so if one of them stands on a damaged line
    if run.is_project_log or benchmark in ruleset.benchmarks or not are_rules_known:  # there, damage remains an error
        return with_official_ones
    excused = _excuse_errors_on_damaged_log(with_official_ones)
    on_infinities = _findings_on_infinities(path, excused, ruleset)
    result = (*on_infinities, *excused)
    has_no_error = all(finding.severity != "error" for finding in result)
    if has_no_error and run.minutes is None:  # without the time of the run, there is no score by the strict rules
        actual = "no time: run_start or run_stop stands on a damaged line"
        result = (breach(ruleset.strict["run-time"], actual), *result)
    return result


def _findings_on_infinities(path: Path, others: Sequence[Finding], ruleset: Ruleset) -> list[Finding]:
    """Return what is wrong with the accuracies of a log if those of Infinity and -Infinity do not count.

    For instance, no other accuracy reaches the target. The official checker accepts Infinity, which JSON does not have,
    and which reaches any target without an upper limit. So these findings are not official.

    Args:
        path: The path of the log, which has damaged lines.
        others: The other findings on the log. A rule that one of these findings is about is left out of the result.
        ruleset: The rules by which the log is checked.
    """
    rules_of_others = {finding.rule for finding in others}
    findings = []
    for finding in official_findings_without_infinities(path, ruleset):
        key = finding.rule.partition(".")[0]  # official rules are named KEY.ASPECT, such as eval_accuracy.value
        is_about_accuracy = key == schema.EVAL_ACCURACY.key
        if is_about_accuracy and finding.rule not in rules_of_others:
            findings.append(replace(finding, official=False))
    return findings


def _is_link_to_another_folder(path: Path) -> bool:
    return path.is_symlink() and path.resolve().parent != path.parent.resolve()


def _excuse_errors_on_damaged_log(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings on a damaged log without the errors that may come from lines which our reader skips.

    The official checker may read a line that our reader skips. So errors that it does not report are doubtful.

    Args:
        findings: The findings on the log. In each, `official` says whether the official checker reports the finding.
    """
    result = []
    for finding in findings:
        is_doubtful_error = finding.severity == "error" and not finding.official
        if is_doubtful_error and finding.rule == _DAMAGED:
            result.append(replace(finding, severity="warning"))
        elif is_doubtful_error and finding.is_about_key:  # such as seed.count: the event may stand on a skipped line
            continue
        else:
            result.append(finding)
    return tuple(result)
