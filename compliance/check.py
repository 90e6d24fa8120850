"""The checker: the stream of one log in, findings and the facts of its run out. No I/O but `check_file`'s read.

Memory is bounded whatever the log's length: of each rule the first FINDINGS_PER_RULE breaches are kept and the
rest counted, of each key the first event.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compliance.logged_run import COUNT, NOTHING, NUMBER, TEXT, LoggedRun, has_type
from compliance.official.checker import Judge, official_findings
from compliance.official.rule_files import VERSION, keys
from compliance.official.tool_reading import ToolReader
from compliance.rules import Collected, Finding, Ruleset, breach, verdict
from compliance.strict.policy import Policy
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.reader import Entry, Event, Header, Problem, read_log
from runlog.text import as_json, printable, visible

SECTIONS_KEPT = 100
REFUSED_READ = 10_000  # damaged lines; a log with more is judged by these alone


def _keys(*events: schema.Point[Any] | schema.Mark) -> frozenset[str]:
    return frozenset(event.key for event in events)


_OF_OTHER_RANKS = _keys(schema.INIT_START, schema.CACHE_CLEAR)  # may come from every rank, or node
_BEFORE = _keys(schema.INIT_START, schema.INIT_STOP)
_SAMPLES = _keys(schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES)
# what may stand below run_stop: it changes no figure
_CLOSING = _keys(schema.BLOCK_STOP, schema.EPOCH_STOP, schema.EVAL_STOP) | _SAMPLES | {"throughput", "tracked_stats"}
_OF_TRAINING = (
    _BEFORE
    | _keys(schema.RUN_START, schema.BLOCK_START, schema.EPOCH_START, schema.EVAL_START, schema.EVAL_ACCURACY)
    | _keys(schema.STEP_WINDOW, schema.EPOCH_THROUGHPUT)
    | _CLOSING
)
# whose times a score or a rate rests on; hyperparameters and submission_* are labels, which others log at any time
_OF_THE_CLOCK = (_OF_TRAINING | _keys(schema.RUN_STOP)) - _BEFORE - _SAMPLES
LINE_ORDER_MS = 100  # of threads or hosts that write side by side
_NULL_GPU = re.compile("Null GPU|NULL_GPU")  # as tests/null_gpu names its devices and its variable
# what a score or a rate is computed from; other names and numbers are labels
_OF_FIGURES = _SAMPLES | _keys(schema.GLOBAL_BATCH_SIZE, schema.EVAL_ACCURACY, schema.GRADIENT_ACCUMULATION_STEPS)


def _value_type(event: schema.Point[Any] | schema.Mark) -> str | None:
    """The type of an event's value by its meaning; None where it may be anything."""
    if not isinstance(event, schema.Point) or event.key.endswith("learning_rate_decay_steps"):
        return None  # training_rules.adoc: the steps are "unconstrained"; some log the name of a schedule
    return {str: TEXT, float: NUMBER}.get(event.value) or (COUNT if event.least == 1 else None)


_TYPES = {key: (event.event_type, _value_type(event)) for key, event in schema.EVENTS.items()}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found in one log, and both verdicts."""

    path: Path
    findings: tuple[Finding, ...]
    run: LoggedRun = NOTHING
    asked: str | None = None  # the verdict that counts; None: strict for logs of this project, official for others
    sha256: str | None = None  # of the file, where it was asked
    mlperf_logging: dict[str, Any] | None = None  # verdict and messages of the tool itself, where it was asked

    @property
    def file(self) -> str:
        return printable(str(self.path), 4096)

    @property
    def by(self) -> str:
        return self.asked or ("strict" if self.run.is_project_log else "official")

    @property
    def official(self) -> bool:
        return not any(finding.official for finding in self.findings)

    @property
    def strict(self) -> bool:
        """Whether no written rule and no plausibility is broken."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def passed(self) -> bool:
        return not any(map(self.fails, self.findings))

    def fails(self, finding: Finding) -> bool:
        return finding.official if self.by == "official" else finding.severity == "error"

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "sha256": self.sha256,
            "official": verdict(self.official),
            "strict": verdict(self.strict),
            "by": self.by,
            "verdict": verdict(self.passed),
            "findings": [finding.as_dict() for finding in self.findings],
        } | ({} if self.mlperf_logging is None else {"mlperf_logging": self.mlperf_logging})


class Checker:
    """Takes the entries of one log; `finish` gives the findings and the run."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        self._known = dict.fromkeys([*sorted(keys(ruleset.version)), *schema.EVENTS])
        self._collected = Collected(ruleset.strict)
        self._run = LoggedRun()
        self._order = RunOrder(run=self._run, collected=self._collected)
        self._judge = Judge(ruleset.version, self._collected)
        self._tool_reader = ToolReader(ruleset.version)
        self._empty = True
        self._last_ms = -math.inf
        self._refused = 0  # lines that the official parser refuses
        self.misread = False  # whether the official parser may read a line in another way

    def feed(self, entries: Iterable[Entry]) -> None:
        """The entries of the log, until too many are damaged."""
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
        is_type = problem.kind == "event-type"
        self.misread = self.misread or not is_type
        self._refused += problem.kind in ("json", "fields", "trailing-text")
        rule = "event-type" if is_type else f"line-{problem.kind}"
        text = f": {printable(problem.text)}" if problem.text else ""
        self._collected.breach(rule, problem.line, f"{printable(problem.message)}{text}")

    def _header(self, header: Header) -> None:
        section, value, line = header
        if len(self._run.headers) >= SECTIONS_KEPT:
            return
        if self._run.headers.setdefault(section, value) is not value:
            self._order.measured.fault(line, f"a second header section {printable(section)}")
        if section in (schema.HARDWARE.name, schema.ENVIRONMENT.name) and _NULL_GPU.search(str(value)):
            self._collected.breach("null-gpu", line, f"{section} names a null GPU")

    def _event(self, event: Event) -> None:
        key, _, metadata, time_ms, _, line, _, rank = event
        self._empty = False
        if key not in _OF_OTHER_RANKS:
            if time_ms < self._last_ms:
                start_ms = self._run.start_ms
                before_run = start_ms is not None and time_ms < start_ms
                rule = "time-order" if before_run or self._last_ms - time_ms > LINE_ORDER_MS else "line-order"
                rule = rule if key in _OF_THE_CLOCK else "label-time"
                actual = f"{printable(key)} at {time_ms} ms, {self._last_ms - time_ms} ms before an event above it"
                self._collected.breach(rule, line, actual)
            elif key in _OF_THE_CLOCK:
                self._last_ms = time_ms
            if rank := rank or metadata.get("rank"):
                self._collected.breach("rank-zero", line, f"{printable(key)} of rank {printable(rank, 20)}")
        if key in _OF_TRAINING and (stop := self._run.stop):
            rule = "open-at-stop" if key in _CLOSING else "after-run-stop"
            self._collected.breach(rule, line, f"{key} after the run_stop of line {stop.line}")
        if key in self._known:
            self._run.take(event)
            self._types(event)
        self._judge.take(event)
        self._tool_reader.take(event)
        self._order.take(event)

    def _types(self, event: Event) -> None:
        key, line = event.key, event.line
        kind, wanted = _TYPES.get(key, ("POINT_IN_TIME", None))
        if wanted is not None and not has_type(event.value, wanted):
            rule, actual = "value-type" if key in _OF_FIGURES else "label-type", visible(as_json(event.value), 160)
            self._collected.breach(rule, line, f"{key} is {actual}", f"{key} is {wanted}")
        if event.event_type not in ("", kind):  # the reader told of an unknown one
            self._collected.breach("event-type", line, f"{key} is of type {event.event_type}", f"{key}: {kind}")

    def finish(self, benchmark_asked: str | None) -> tuple[tuple[Finding, ...], LoggedRun]:
        """The findings, errors first, then by line; and the run."""
        run, collected = self._run, self._collected
        if self._empty:
            why = f"none can be read; line {found[0].line}: {found[0].actual}" if (found := collected.found) else "none"
            source, fix = f"mlperf-logging {VERSION}, mlp_compliance.py", "give the log of a run"
            none = Finding(
                rule="events.count", expected="MLLOG events", actual=why, fix=fix, source=source, official=True
            )
            return (none,), NOTHING
        self._judge.finish()
        run.as_tools_read = self._tool_reader.result()
        run.first = {key: run.first[key] for key in self._known if key in run.first}
        policy = Policy(ruleset=self._ruleset, run=run, order=self._order, collected=collected)
        for broken in policy.broken(benchmark_asked):
            collected.breach(*broken)
        if others := [found for found in collected.found if found.rule == "known-benchmark"]:
            return (replace(others[0], official=True),), run  # nothing else of it can be judged
        findings = collected.finish()
        if self._refused >= REFUSED_READ:  # what is missing may lie behind them
            findings = tuple(finding for finding in findings if finding.rule.startswith("line-"))
        return findings, run


def check_file(path: Path, ruleset: Ruleset, benchmark: str | None = None) -> Report:
    """The findings of the log at `path`, and its run.

    Raises OSError if it cannot be read, ValueError if it is no regular file.
    """
    checker = Checker(ruleset)
    checker.feed(read_log(path))
    findings, run = checker.finish(benchmark)
    if checker.misread and any(finding.rule.startswith("line-") for finding in findings):
        findings = official_findings(path, findings, ruleset)
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        actual = f"a link to {printable(str(path.resolve()))}"
        findings = (breach(ruleset.strict["file-link"], actual), *findings)
    return Report(path=path, findings=findings, run=run)
