"""The checker: the stream of one log in, findings and the facts of its run out. No I/O but `check_file`'s read.

Memory is bounded whatever the log's length: of each rule the first FINDINGS_PER_RULE breaches are kept and the
rest counted, of each key the first event.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compliance.first_values import FirstValues
from compliance.official.checker import Judge, official_findings
from compliance.official.rule_files import VERSION, keys
from compliance.rules import Collected, Finding, Ruleset, breach, verdict
from compliance.strict import measured, project_log
from compliance.strict.policy import Policy
from compliance.strict.run_order import Evaluation, RunOrder
from runlog import schema
from runlog.reader import Entry, Event, Header, Problem, read_log, table_of
from runlog.text import printable

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


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """What a log says of its run; None where it does not say. Times are Unix milliseconds."""

    values: Mapping[str, Any] = field(default_factory=dict)  # first value of each key that a row or this checker names
    lines: Mapping[str, int] = field(default_factory=dict)  # and its line
    headers: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[tuple[Any, int], ...] = ()  # value, line
    evaluations: tuple[Evaluation, ...] = ()
    start_ms: float | None = None
    stop_ms: float | None = None
    status: str | None = None
    is_project_log: bool = False  # it has something that only this project writes
    losses: tuple[Any, ...] = ()  # of its first windows
    # by kind and place: epochs, blocks, evaluations, windows
    intervals: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def first_value(self, event: schema.Point[Any]) -> Any:
        """The first value of an event of our schema; None without one."""
        return self.values.get(event.key)

    def section(self, section: schema.Section[Any]) -> dict[str, Any]:
        """A section of the header that is a table; empty without one."""
        found = self.headers.get(section.name)
        return found if isinstance(found, dict) else {}

    @property
    def minutes(self) -> float | None:
        """Time to train, as mlperf-logging's result_summarizer computes it."""
        if self.start_ms is None or self.stop_ms is None:
            return None
        return (float(self.stop_ms) - float(self.start_ms)) / 60 / 1000

    @property
    def summary(self) -> schema.RunSummary | None:
        """The run_summary event; None without a whole one."""
        return table_of(schema.RunSummary, self.first_value(schema.RUN_SUMMARY))


NOTHING = LoggedRun()  # what no log says


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

    def __init__(self, ruleset: Ruleset, benchmark: str | None = None) -> None:
        self._ruleset, self._benchmark_asked = ruleset, benchmark
        self._collected = Collected(ruleset.strict)
        self._values = FirstValues(keys(ruleset.version), self._collected)
        self._headers: dict[str, Any] = {}
        figures = measured.Measured(self._values, self._headers, self._collected)
        self._order = RunOrder(values=self._values, collected=self._collected, measured=figures)
        self._judge = Judge(ruleset.version, self._collected)
        self._events = 0
        self._last_ms = -math.inf
        self._refused = 0  # lines that the official parser refuses
        self.misread = False  # whether the official parser may read a line in another way

    def feed(self, entries: Iterable[Entry]) -> None:
        """The entries of the log, until too many are damaged."""
        for entry in entries:
            if type(entry) is Event:
                self._event(entry)
            elif self._refused < REFUSED_READ:
                self._other(entry)
            else:
                return

    def _other(self, entry: Entry) -> None:
        if type(entry) is Problem:
            is_type = entry.kind == "event-type"
            self.misread = self.misread or not is_type
            self._refused += entry.kind in ("json", "fields", "trailing-text")
            rule = "event-type" if is_type else f"line-{entry.kind}"
            text = f": {printable(entry.text)}" if entry.text else ""
            self._collected.breach(rule, entry.line, f"{printable(entry.message)}{text}")
        elif type(entry) is Header and len(self._headers) < SECTIONS_KEPT:
            if self._headers.setdefault(entry.section, entry.value) is not entry.value:
                self._order.measured.fault(entry.line, f"a second header section {printable(entry.section)}")
            if entry.section in (schema.HARDWARE.name, schema.ENVIRONMENT.name) and _NULL_GPU.search(str(entry.value)):
                self._collected.breach("null-gpu", entry.line, f"{entry.section} names a null GPU")

    def _event(self, event: Event) -> None:
        key, _, metadata, time_ms, _, line, _, rank = event
        order = self._order
        self._events += 1
        if key not in _OF_OTHER_RANKS:
            if time_ms < self._last_ms:
                actual = f"{printable(key)} at {time_ms} ms, {self._last_ms - time_ms} ms before an event above it"
                self._collected.breach(self._out_of_order(key, time_ms), line, actual)
            elif key in _OF_THE_CLOCK:
                self._last_ms = time_ms
            if rank := rank or metadata.get("rank"):
                self._collected.breach("rank-zero", line, f"{printable(key)} of rank {printable(rank, 20)}")
        if order.stop_line is not None and key in _OF_TRAINING:
            rule = "open-at-stop" if key in _CLOSING else "after-run-stop"
            self._collected.breach(rule, line, f"{key} after the run_stop of line {order.stop_line}")
        self._values.take(event)
        self._judge.take(event)
        order.take(event)
        if measure := measured.HANDLERS.get(key):
            measure(order.measured, event)

    def _out_of_order(self, key: str, time_ms: float) -> str:
        """The rule that an event earlier than one above it breaks."""
        if key not in _OF_THE_CLOCK:
            return "label-time"
        before_run = self._order.start_ms is not None and time_ms < self._order.start_ms
        return "time-order" if before_run or self._last_ms - time_ms > LINE_ORDER_MS else "line-order"

    def finish(self) -> tuple[tuple[Finding, ...], LoggedRun]:
        """The findings, errors first, then by line; and the run."""
        values, order, collected = self._values, self._order, self._collected
        if not self._events:
            why = f"none can be read; line {found[0].line}: {found[0].actual}" if (found := collected.found) else "none"
            source, fix = f"mlperf-logging {VERSION}, mlp_compliance.py", "give the log of a run"
            none = Finding(
                rule="events.count", expected="MLLOG events", actual=why, fix=fix, source=source, official=True
            )
            return (none,), NOTHING
        self._judge.finish()
        policy = Policy(ruleset=self._ruleset, values=values, order=order, headers=self._headers, collected=collected)
        policy.finish(self._benchmark_asked)
        named = {key: state for key, state in values.keys.items() if state.count}
        run = LoggedRun(
            values={key: state.value for key, state in named.items()},
            lines={key: state.line for key, state in named.items()},
            headers=self._headers,
            seeds=tuple((value, line) for value, line, _ in order.seeds),
            evaluations=tuple(order.evaluations),
            start_ms=order.start_ms,
            stop_ms=order.stop_ms,
            status=order.status if isinstance(order.status, str) else None,
            is_project_log=project_log.is_project_log(self._headers, values),
            losses=tuple(order.measured.losses),
            intervals=order.intervals | {("step_window", i): s for i, s in enumerate(order.measured.times_s)},
        )
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
    checker = Checker(ruleset, benchmark)
    checker.feed(read_log(path))
    findings, run = checker.finish()
    if checker.misread and any(finding.rule.startswith("line-") for finding in findings):
        findings = official_findings(path, findings, ruleset)
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        actual = f"a link to {printable(str(path.resolve()))}"
        findings = (breach(ruleset.strict["file-link"], actual), *findings)
    return Report(path=path, findings=findings, run=run)
