"""This project's own rules, which are rows in compliance/rules, and the findings of a check."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from compliance.official.rule_files import RULES, WORKLOAD_RULESET, versions
from compliance.passports import Distributed
from runlog import workloads
from runlog.json_types import JsonObject

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader halves the time of a small check
OURS = "ours"  # the benchmarks of a row that holds for this project's, whatever their number
_WORKLOAD_BENCHMARKS = tuple(workload.benchmark for workload in workloads.WORKLOADS)
SEVERITIES = ("error", "warning", "info")
FINDINGS_PER_RULE = 10


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Facts of a benchmark beyond its rule files. `targets` is by division; `runs` are those of one submission."""

    name: str
    train_samples: int
    eval_samples: int
    targets: Mapping[str, float]
    runs: int
    convolutions: int | None = None
    distributed: Distributed | None = None
    reference_points: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrictRule:
    """A rule that the official checkers lack: a row of strict.yaml, whose head explains the fields."""

    name: str
    kind: str  # "class" in JSON
    expected: str
    why: str
    fix: str
    source: str  # with the text that was read, its date and commit
    severity: str = "error"
    since: str = ""  # the first ruleset in which its text is in force; empty: a rule of form, in all
    in_force: bool = True
    benchmarks: Sequence[str] = ()  # those that it holds for; empty: all
    division: str = ""  # the one that it holds for; empty: both
    bounds: Mapping[str, float] = field(default_factory=dict)
    bound_from: str = ""
    found: int = 0  # accepted logs of the corpus that it refuses

    def why_not_applied(self, benchmark: str, division: str) -> str:
        """Say why the rule does not hold for a run of this benchmark and division; empty where it does."""
        if self.benchmarks and benchmark not in self.benchmarks:
            return f"it holds for {' and '.join(self.benchmarks)}"
        if self.division and division != self.division:
            return f"not a {self.division} run"
        return ""

    @property
    def scope(self) -> str:
        """Return in words the logs that the rule holds for."""
        division = f"{self.division} " if self.division else ""
        benchmarks = f" of {' and '.join(self.benchmarks)}" if self.benchmarks else ""
        return f"{division}logs{benchmarks}" if division or benchmarks else "every log"


@dataclass(frozen=True, kw_only=True)
class WrittenRule:
    """A check that the written rules ask of the first event of a key in a closed run, and the official checker not."""

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
    """Read a YAML file of compliance/rules."""
    with (RULES / name).open("rb") as stream:
        return yaml.load(stream, Loader=_LOADER)  # noqa: S506  both are safe loaders


def load(version: str) -> Ruleset:
    """Return this project's rules for logs of an MLPerf Training round, by its ruleset `version` such as 4.0.0.

    They are read from the files in compliance/rules. All rules of strict.yaml are returned, each marked by whether it
    is in force in this version. One whose benchmarks are "ours" there gets the names of this project's benchmarks:
    those of its workloads, and those that benchmarks.yaml has for this version.

    Raises ValueError for a version that is not known.
    """
    if version not in versions():
        raise ValueError(f"ruleset {version}: no rules for it; take one of {', '.join(versions())}")
    texts = read_rules("texts.yaml")
    benchmarks = _benchmarks(version)
    names_of_ours = tuple(dict.fromkeys([*_WORKLOAD_BENCHMARKS, *benchmarks]))  # each once, in this order
    strict = {}
    for name, fields in read_rules("strict.yaml").items():
        if fields.get("benchmarks") == OURS:
            fields["benchmarks"] = names_of_ours
        strict[name] = _strict_rule(name, fields, version, texts)
    return Ruleset(version=version, benchmarks=benchmarks, strict=strict, written=_written_rules(texts))


def _benchmarks(version: str) -> dict[str, Benchmark]:
    """Return the benchmarks of which this project knows more than the official rules, by name.

    These are the rows of benchmarks.yaml whose `rulesets` have `version`. With WORKLOAD_RULESET, the one by which all
    workloads of ours are checked, also those workloads that have no such row.
    """
    benchmarks = {}
    for name, fields in read_rules("benchmarks.yaml").items():
        if version in fields.pop("no_reference_points", ()):
            del fields["reference_points"]
        if "distributed" in fields:
            fields["distributed"] = Distributed(**fields["distributed"])
        if version in fields.pop("rulesets"):
            benchmarks[name] = Benchmark(name=name, **fields)
    for workload in workloads.WORKLOADS:
        if version == WORKLOAD_RULESET and workload.benchmark not in benchmarks:
            benchmarks[workload.benchmark] = _benchmark_of(workload)
    return benchmarks


def _benchmark_of(workload: workloads.Workload) -> Benchmark:
    """Return what is fixed of a workload of ours that `benchmarks.yaml` does not name: its recipe gives the target."""
    return Benchmark(
        name=workload.benchmark,
        train_samples=workload.train_samples,
        eval_samples=workload.eval_samples,
        targets={},
        runs=workload.runs,
    )


def _written_rules(texts: Mapping[str, str]) -> tuple[WrittenRule, ...]:
    rows = []
    for fields in read_rules("written.yaml"):
        rule = WrittenRule(**fields)
        read_in = f"read in: {texts['rules_0.7']}; in force from ruleset {versions()[0]} on"
        rows.append(replace(rule, source=f"{rule.source}; {read_in}"))
    return tuple(rows)


def _strict_rule(name: str, fields: JsonObject, version: str, texts: Mapping[str, str]) -> StrictRule:
    kind = fields.pop("class")
    since = fields.get("since", "")
    assert kind in ("rule", "form", "plausibility"), name
    # A rule that refuses says since when, and by which text.
    assert ("text" in fields) == bool(since) == (kind != "form"), name

    default = "warning" if kind == "form" else "error"
    severity = fields.pop("severity", default)
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

    def as_dict(self) -> JsonObject:
        """Return the finding as JSON has it."""
        return {"class" if name == "kind" else name: value for name, value in vars(self).items()}


def breach(
    rule: StrictRule, actual: str, *, line: int | None = None, expected: str | None = None, severity: str | None = None
) -> Finding:
    """Return the finding that `rule` is broken: `actual` says what the log has instead, and `line` where.

    `expected` and `severity` take the place of the rule's own; None leaves these. A line of None blames no line.
    """
    return Finding(
        rule=rule.name,
        severity=severity or rule.severity,
        line=line,
        expected=expected or rule.expected,
        actual=actual,
        fix=rule.fix,
        kind=rule.kind,
        source=rule.source,
    )


def note(rule: StrictRule, actual: str) -> Finding:
    """Return the finding that `rule` was not applied, with the reason, so that its absence is not taken for a pass."""
    return replace(breach(rule, actual), severity="info", fix="")


def verdict(passed: bool) -> str:
    return "pass" if passed else "fail"


class Collected:
    """The findings of one log as they come: of each strict rule the first FINDINGS_PER_RULE breaches."""

    def __init__(self, strict: Mapping[str, StrictRule]) -> None:
        self.found: list[Finding] = []
        self.strict = strict
        self._counts = Counter[str]()

    def breach(
        self, rule: str, line: int | None, actual: str, expected: str | None = None, severity: str | None = None
    ) -> None:
        """Collect a breach of a strict rule; a note where its text is not in force."""
        row = self.strict[rule]
        if not row.in_force:
            self.note(rule, f"not applied: in force from ruleset {row.since} on; {actual}")
            return
        self._counts[rule] += 1
        if self._counts[rule] <= FINDINGS_PER_RULE:
            self.found.append(breach(row, actual, line=line, expected=expected, severity=severity))

    def keep_applicable(self, benchmark: str, division: str) -> None:
        """Drop the breaches of rules that do not hold for this benchmark and division, and note those rules."""
        for rule in self.strict.values():
            reason = rule.why_not_applied(benchmark, division)
            if reason:
                self.drop(rule.name)
                self.note(rule.name, f"not applied: {reason}")

    def drop(self, rule: str) -> None:
        """Forget what was collected of a rule."""
        self.found = [finding for finding in self.found if finding.rule != rule]
        del self._counts[rule]

    def note(self, rule: str, actual: str) -> None:
        """Collect a note of a strict rule."""
        self.found.append(note(self.strict[rule], actual))

    def more(self, last: Finding, count: int) -> None:
        """Collect that `count` breaches of the rule of `last` are not listed."""
        actual = f"{count} more breaches of {last.rule}, not listed"
        self.found.append(replace(last, severity="info", line=None, expected="", actual=actual, fix="", official=False))

    def finish(self) -> tuple[Finding, ...]:
        """Return all findings, errors first, then by line."""
        for rule, count in self._counts.items():
            if count > FINDINGS_PER_RULE:
                self.more(breach(self.strict[rule], ""), count - FINDINGS_PER_RULE)
        return tuple(sorted(self.found, key=_severity_and_line))


def _severity_and_line(finding: Finding) -> tuple[int, int]:
    return SEVERITIES.index(finding.severity), finding.line or 0


# --- the most that a machine can train of ResNet-50, by the peak of its named devices: a bound, and no estimate ---

CORE_FLOP_PER_S = 384e9  # two AVX-512 multiply-adds of 16 numbers a cycle at 6 GHz: more than any core has
_SHARE_OF_PEAK = 0.6  # of the cards' peak: twice what any of 84 published submissions takes


@functools.cache
def peaks() -> dict[str, float]:
    """Return the dense peak in FP16 of each card that is known, in TFLOP/s."""
    return dict(read_rules("peaks.yaml"))


def most_images_per_s(cards: Sequence[str], cores: int, pixels: int = 224) -> float | None:
    """Return the images/s of ResNet-50 that a machine cannot surpass in training; None where that is not known.

    `cards` are the names of its GPUs, and the bound is 60 % of their peaks together: no published run takes more. It is
    not known if one of them is not in peaks.yaml. A machine without GPUs has the whole peak of its CPU `cores`, which
    is higher than that of any real core; without cores nothing is known. The work of an image grows with its area,
    which is the square of its height of `pixels`.
    """
    resnet = workloads.named("rn50")
    assert resnet.training_flop is not None and resnet.flop_height is not None, "its row has both"
    flop_per_image = resnet.training_flop * (pixels / resnet.flop_height) ** 2
    if not cards:
        return cores * CORE_FLOP_PER_S / flop_per_image if cores else None
    flop_per_s = 0.0
    for card in cards:
        peak_tflop_per_s = _peak_of_card(card)
        if peak_tflop_per_s is None:
            return None
        flop_per_s += peak_tflop_per_s * 1e12
    return _SHARE_OF_PEAK * flop_per_s / flop_per_image


def _peak_of_card(card: str) -> float | None:
    """Return the peak in TFLOP/s of a card by its full name, such as `NVIDIA A100-SXM4-80GB`; None if not known."""
    for name, peak in peaks().items():
        if name in card:
            return peak
    return None
