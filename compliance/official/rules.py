"""The official verdict by rulesets that this project has no rows for: 4.1.0 to 6.1.0.

The rules are read out of mlperf-logging's own files; what is found in a log, and what a later file takes back, is as
in its mlp_compliance.py.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from compliance.findings import FINDINGS_PER_RULE, Collected, Finding, breach_of_row, printable
from compliance.official.convergence import official_folder
from compliance.official.language import Code, State, UnknownFormError, expression, statements
from compliance.rules import Row
from runlog.reader import Event

EVENTS_HELD = 20_000  # before submission_division and submission_benchmark are known
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
# SHA-256 of stable_diffusion's BEGIN, less comments: _Applied.aggregate does what it says
_AGGREGATES = "dc24773a5251c8c730432b0e964c1c45737c6697eb06c693de197b7c4958c06b"
_ACCURACY, _AGGREGATED = "eval_accuracy", "aggregated_eval_accuracy"
_FIELDS = {"NAME", "REQ", "CHECK", "FIRST_CHECK", "ATLEAST_ONE_CHECK", "POST"}
_COUNTS = re.compile(r"EXACTLY_ONE|OPTIONAL|AT_LEAST_ONE|AT_LEAST\((\d+)\)|AT_LEAST_ONE_OR\((\w+)\)")


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A KEY of a file. Checks are with their text."""

    key: str
    count: str
    least: int
    other: str | None  # of AT_LEAST_ONE_OR
    checks: Sequence[tuple[str, Code]]
    first_check: tuple[str, Code] | None
    any_check: tuple[str, Code] | None
    post: Sequence[Code]
    enqueues: bool

    def describe(self) -> str:
        texts = [*self.checks, *([self.first_check] if self.first_check else ())]
        any_check = [f"one event with {self.any_check[0]}"] if self.any_check else []
        return "; ".join([self.count, *(text for text, _ in texts), *any_check])


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    rules: dict[str, _Rule]
    begin: Sequence[Code]
    aggregates: bool


@functools.cache
def keys(version: str) -> tuple[str, ...]:
    """The keys that the rules of `version` name, for any benchmark."""
    return tuple(sorted({key for name in _names(version) for key in _load(name).rules}))


def benchmarks(version: str) -> list[str]:
    """The benchmarks that `version` has rules for."""
    stems = (name.partition("/closed_")[2].removesuffix(".yaml") for name in _names(version))
    return [stem for stem in stems if stem not in ("", "common")]


def rules_in_words(version: str, key: str) -> list[tuple[str, str]]:
    """File and rule, in words, of what `version` says of `key`."""
    files = [_load(name) for name in _names(version)]
    return [(file.name, file.rules[key].describe()) for file in files if key in file.rules]


def _names(version: str) -> list[str]:
    folder = official_folder() / "compliance_checker"
    return [str(path.relative_to(folder)) for path in sorted((folder / f"training_{version}").glob("*.yaml"))]


@functools.cache
def _load(name: str) -> _File:
    """The rules of the file `name`. Raises ValueError for a form that is not known."""
    text = (official_folder() / "compliance_checker" / name).read_text(encoding="utf-8")
    rules: dict[str, _Rule] = {}
    begin: Sequence[Code] = ()
    aggregates = False
    for block in yaml.load(text, Loader=_LOADER) or ():  # noqa: S506  it makes texts, lists and tables alone
        [(kind, fields)] = block.items()
        key = fields.get("NAME", kind)
        if kind == "KEY" and fields.keys() <= _FIELDS:
            rules[key] = _rule(name, fields)
        elif kind == "BEGIN" and fields.keys() == {"CODE"}:
            aggregates = _digest(fields["CODE"]) == _AGGREGATES
            begin = () if aggregates else _known(name, key, fields["CODE"], statements)
        else:
            raise ValueError(f"{name}: {key}: no meaning for {printable(fields)}")
    unknown = [rule.other for rule in rules.values() if rule.other and rule.other not in rules]
    if unknown:
        raise ValueError(f"{name}: AT_LEAST_ONE_OR of {unknown[0]}, which the file does not name")
    return _File(name=name, rules=rules, begin=begin, aggregates=aggregates)


def _digest(code: str) -> str:
    lines = (line.partition("#")[0].rstrip() for line in code.splitlines())
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()


def _known(name: str, key: str, text: str, read: Any) -> Any:
    try:
        return read(text)
    except UnknownFormError:
        raise ValueError(
            f"{name}: {key}: no meaning for {text.strip()!r}; mlperf-logging 4.1.68 has no such form"
        ) from None


def _rule(name: str, fields: dict[str, Any]) -> _Rule:
    key, wanted = fields["NAME"], fields.get("REQ", "OPTIONAL")
    count = _COUNTS.fullmatch(wanted)
    if not count:
        raise ValueError(f"{name}: {key}: no meaning for {wanted!r}")

    def check(text: str) -> tuple[str, Code]:
        return text.strip(), _known(name, key, text, expression)

    checks = fields.get("CHECK", [])
    post = fields.get("POST", "")
    return _Rule(
        key=key,
        count=wanted,
        least=int(count[1] or wanted in ("EXACTLY_ONE", "AT_LEAST_ONE")),
        other=count[2],
        checks=[check(text) for text in (checks if isinstance(checks, list) else [checks])],
        first_check=check(fields["FIRST_CHECK"]) if "FIRST_CHECK" in fields else None,
        any_check=check(fields["ATLEAST_ONE_CHECK"]) if "ATLEAST_ONE_CHECK" in fields else None,
        post=_known(name, key, post, statements),
        enqueues="enqueue_config" in post,
    )


def _shown(event: Event, wanted: str) -> str:
    """What `wanted` speaks of."""
    return printable(event.metadata if "metadata" in wanted else event.value)


class _Key:
    """What a log says of the key of a rule, and what the rule has against it."""

    def __init__(self, rule: _Rule, file: "_Applied") -> None:
        self.rule, self._file, self._once = rule, file, "submission_" in rule.key
        self.count, self.line, self.any_met, self.differs = 0, 0, False, False
        self.value: Any = None
        self.failed = 0
        self.retractable: list[Finding] = []

    def take(self, event: Event) -> None:
        """The next event of the key."""
        rule, state, value = self.rule, self._file.state, event.value
        self.count += 1
        if self.count == 1:
            self.value, self.line = value, event.line
        elif not self.differs:
            self.differs = not (value is self.value or value == self.value)
        if self.count == 1 or not self._once:
            for check in rule.checks:
                self._check(check, event)
            try:
                for step in rule.post:
                    step(event, state)
            except Exception:  # noqa: BLE001  as the official checker takes it
                self._fail(event, "a value that the later rules can be computed from")
        if rule.first_check and self.count == 1:
            self._check(rule.first_check, event)
        if rule.any_check:
            try:
                self.any_met = bool(rule.any_check[1](event, state)) or self.any_met
            except Exception:  # noqa: BLE001  the official checker ends here
                self._file.ends(self, event, rule.any_check[0])

    def _check(self, check: tuple[str, Code], event: Event) -> None:
        text, code = check
        try:
            met = code(event, self._file.state)
        except Exception:  # noqa: BLE001  as the official checker takes it
            met = False
        if not met:
            self._fail(event, text)

    def _fail(self, event: Event, wanted: str) -> None:
        self.failed += 1
        if self.failed <= FINDINGS_PER_RULE:
            self.retractable.append(self.finding("check", event.line, wanted, _shown(event, wanted)))

    def finding(self, aspect: str, line: int | None, wanted: str, actual: str) -> Finding:
        key, source = self.rule.key, f"mlperf-logging 4.1.68, {self._file.name}"
        return breach_of_row(Row(key=key, source=source), aspect, line, wanted, actual, f"log {key} as its rule asks")

    def finish(self, collected: Collected) -> None:
        """Collects what no later file takes back."""
        rule = self.rule
        if rule.other and not self.count and not self._file.keys[rule.other].count:
            collected.found.append(self.finding("count", None, rule.count, "none"))
        if rule.any_check and self.count and not self.any_met:
            wanted = f"one event with {rule.any_check[0]}"
            collected.found.append(self.finding("value", self.line, wanted, f"none of {self.count}"))

    def finish_last(self, collected: Collected) -> None:
        """Collects the rest, unless a later file names the key, too."""
        rule, count, found = self.rule, self.count, self.retractable
        collected.found += found
        if self.failed > len(found):
            collected.more(found[-1], self.failed - len(found))
        if rule.count == "EXACTLY_ONE" and count > 1 and not self.differs:
            collected.breach("exactly-once", self.line, f"{count} {rule.key}, all with the same value")
        elif count < rule.least or (rule.count == "EXACTLY_ONE" and count > 1):
            said = f"{count}, with different values" if self.differs else str(count or "none")
            collected.found.append(self.finding("count", self.line or None, rule.count, said))


class _Applied:
    """The rules of one file, applied to a log."""

    def __init__(self, file: _File) -> None:
        self.name, self.aggregates, self.state = file.name, file.aggregates, State()
        self.keys = {key: _Key(rule, self) for key, rule in file.rules.items()}
        self.ended: Finding | None = None
        self._aggregates: dict[Any, tuple[int, dict[Any, Any]]] = {}
        for step in file.begin:
            step(None, self.state)

    def ends(self, key: _Key, event: Event, wanted: str) -> None:
        """The official checker ends at `event` with a traceback."""
        self.ended = self.ended or key.finding("check", event.line, wanted, _shown(event, wanted))

    def aggregate(self, event: Event) -> None:
        """Joins the metrics of one evaluation, as stable_diffusion's BEGIN does."""
        try:
            if "metric" in event.metadata:
                samples = event.metadata["samples_count"]
                _, joined = self._aggregates.setdefault(samples, (event.line, {"samples_count": samples}))
                joined[event.metadata["metric"]] = event.value
        except (KeyError, TypeError):
            self.ends(self.keys[_AGGREGATED], event, "samples_count and a metric in the metadata")

    def finish(self, collected: Collected) -> None:
        for line, joined in self._aggregates.values():
            self.keys[_AGGREGATED].take(Event(_AGGREGATED, joined, {}, 0, "POINT_IN_TIME", line, 0))
        for key in self.keys.values():
            key.finish(collected)
        if self.ended:
            collected.found.append(self.ended)


class Judge:
    """Takes the events of one log; `finish` collects what the official rules of `version` have against it."""

    def __init__(self, version: str, collected: Collected) -> None:
        self._collected = collected
        self._files: dict[str, _Applied] = {}
        self._of_key: dict[str, list[_Key]] = {}
        self._held: list[Event] = []
        self._to_come: set[str] = set()  # keys whose first event enqueues a file
        self._aggregating: _Applied | None = None
        self._known = set(_names(version))
        self._apply(f"training_{version}/common.yaml", None)

    def take(self, event: Event) -> None:
        """The next event, of any key."""
        if self._to_come and len(self._held) < EVENTS_HELD:
            self._held.append(event)
        of_key = self._of_key.get(event.key)
        if of_key is not None:
            for key in of_key:
                key.take(event)
            if event.key == _ACCURACY and self._aggregating:
                self._aggregating.aggregate(event)
            if event.key in self._to_come:
                self._enqueued(event)

    def _enqueued(self, event: Event) -> None:
        """Applies the files that `event` names to the events so far."""
        self._to_come.discard(event.key)
        for file in list(self._files.values()):
            while file.state.enqueued:
                self._apply(file.state.enqueued.pop(0), event)
        if not self._to_come:
            self._held = []

    def _apply(self, name: str, by: Event | None) -> None:
        too_late = len(self._held) >= EVENTS_HELD
        if by is not None and (too_late or name not in self._known or name in self._files):
            # the official checker ends, or never does
            why = f"after {EVENTS_HELD} events" if too_late else f"mlperf-logging 4.1.68 has no {printable(name)}"
            self._collected.breach("known-benchmark", by.line, f"{by.key} {printable(by.value, 60)}: {why}")
            return
        file = self._files[name] = _Applied(_load(name))
        self._to_come |= {key for key, state in file.keys.items() if state.rule.enqueues}
        if file.aggregates:
            self._aggregating = file
        for event in self._held:
            if event.key in file.keys:
                file.keys[event.key].take(event)
            if file.aggregates and event.key == _ACCURACY:
                file.aggregate(event)
        for key, state in file.keys.items():
            self._of_key.setdefault(key, []).append(state)
            if state.count and state.rule.enqueues:
                self._enqueued(next(event for event in self._held if event.key == key))

    def finish(self) -> None:
        """Collects what was found."""
        collected = self._collected
        last: dict[str, _Key] = {}
        collected.found = [replace(f, official=f.official or f.rule == "known-benchmark") for f in collected.found]
        for file in self._files.values():
            file.finish(collected)
            last |= file.keys
        for key in last.values():
            key.finish_last(collected)
