"""Our own rules, which are data in compliance/rules beside mlperf-logging's, what bounds a run, and findings."""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from compliance.official.rule_files import RULES, WORKLOAD_RULESET, versions
from runlog import workloads

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader halves the time of a small check
SEVERITIES = ("error", "warning", "info")
FINDINGS_PER_RULE = 10


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What a benchmark fixes beyond its rule files. `targets` is by division; `runs` are those of one submission."""

    name: str
    train_samples: int
    eval_samples: int
    targets: Mapping[str, float]
    runs: int
    evaluate_every_epochs: int | None = None
    reference_points: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrictRule:
    """A rule that the official checkers lack.

    Its class says what a breach is: `rule` of a written rule, `form` of how a log is written, which changes no figure
    and only warns, `plausibility` of what a run can be.
    """

    name: str
    kind: str  # "class" in JSON
    expected: str
    why: str
    fix: str
    source: str  # with the text that was read, its date and commit
    severity: str = "error"
    since: str = ""  # the first ruleset in which its text is in force; empty: a rule of form, in all
    in_force: bool = True
    when: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WrittenRule:
    """What the written rules ask of the first event of a key in a closed run, and the official checker does not."""

    key: str
    check: str  # in the language of the rule files
    source: str
    opt_name: str | None = None  # only with this optimizer
    severity: str = "error"  # warning: of a label, which changes no figure


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """Our rules beside the official ones of `version`. `benchmarks`: those whose runs they say more of."""

    version: str
    benchmarks: Mapping[str, Benchmark]
    strict: Mapping[str, StrictRule]
    written: tuple[WrittenRule, ...]


def read_rules(name: str) -> Any:
    with (RULES / name).open("rb") as stream:
        return yaml.load(stream, Loader=_LOADER)  # noqa: S506  both are safe loaders


def load(version: str) -> Ruleset:
    """Our rules for logs of ruleset `version`. Raises ValueError for an unknown one."""
    if version not in versions():
        raise ValueError(f"ruleset {version}: no rules for it; take one of {', '.join(versions())}")
    benchmarks = {}
    for name, fields in read_rules("benchmarks.yaml").items():
        if version in fields.pop("no_reference_points", ()):
            del fields["reference_points"]
        if version in fields.pop("rulesets"):
            benchmarks[name] = Benchmark(name=name, **fields)
    for workload in workloads.WORKLOADS:
        if version == WORKLOAD_RULESET and workload.benchmark not in benchmarks:
            benchmarks[workload.benchmark] = _benchmark_of(workload)
    texts = read_rules("texts.yaml")
    strict = {name: _strict(name, fields, version, texts) for name, fields in read_rules("strict.yaml").items()}
    written = [WrittenRule(**fields) for fields in read_rules("written.yaml")]
    read_in = f"read in: {texts['rules_0.7']}; in force from ruleset {versions()[0]} on"
    dated = tuple(replace(rule, source=f"{rule.source}; {read_in}") for rule in written)
    return Ruleset(version=version, benchmarks=benchmarks, strict=strict, written=dated)


def _benchmark_of(workload: workloads.Workload) -> Benchmark:
    """Return what is fixed of a workload of ours that `benchmarks.yaml` does not name: its recipe gives the target."""
    return Benchmark(
        name=workload.benchmark,
        train_samples=workload.train_samples,
        eval_samples=workload.eval_samples,
        targets={},
        runs=workload.runs,
    )


def _strict(name: str, fields: dict[str, Any], version: str, texts: Mapping[str, str]) -> StrictRule:
    kind, since = fields.pop("class"), fields.get("since", "")
    assert kind in ("rule", "form", "plausibility"), name
    # What refuses says since when, and by which text.
    assert ("text" in fields) == bool(since) == (kind != "form"), name
    severity = fields.pop("severity", "warning" if kind == "form" else "error")
    if since:
        fields["source"] += f"; read in: {texts[fields.pop('text')]}; in force from ruleset {since} on"
    return StrictRule(name=name, kind=kind, severity=severity, in_force=version >= since, **fields)


# --- what a check finds ---


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found in a log. `line` counts from 1; None where no line is to blame.

    `official`: mlperf-logging's checker refuses the log for it. `kind` is the class of its rule.
    """

    rule: str  # a strict rule, or KEY.ASPECT: its count, value, metadata, order or time
    severity: str = "error"
    line: int | None = None
    expected: str = ""
    actual: str
    fix: str = ""
    kind: str = "rule"
    source: str
    official: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"class" if name == "kind" else name: value for name, value in vars(self).items()}


def breach(rule: StrictRule, actual: str, *, line: int | None = None, expected: str | None = None) -> Finding:
    said = {name: getattr(rule, name) for name in ("severity", "kind", "fix", "source")}
    return Finding(rule=rule.name, line=line, expected=expected or rule.expected, actual=actual, **said)


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


# --- the most that a machine can train of ResNet-50, by the peak of its named devices: a bound, and no estimate ---

CORE_FLOP_PER_S = 384e9  # two AVX-512 multiply-adds of 16 numbers a cycle at 6 GHz: more than any core has
_SHARE = 0.6  # of the cards' peak: twice what any of 84 published submissions takes


@functools.cache
def peaks() -> dict[str, float]:
    """Dense peak in FP16 of each card that is known, in TFLOP/s."""
    return dict(read_rules("peaks.yaml"))


def most_images_per_s(cards: Sequence[str], cores: int, pixels: int = 224) -> float | None:
    """Images/s of ResNet-50 that these cards (without any: cores) cannot surpass; None for an unknown card."""
    resnet = workloads.named("rn50")
    assert resnet.training_flop is not None and resnet.flop_height is not None, "its row has both"
    flop = resnet.training_flop * (pixels / resnet.flop_height) ** 2
    if not cards:
        return cores * CORE_FLOP_PER_S / flop if cores else None
    found = [next((peak for name, peak in peaks().items() if name in card), None) for card in cards]
    return None if None in found else _SHARE * 1e12 * sum(peak or 0.0 for peak in found) / flop
