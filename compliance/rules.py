"""This project's own rules, which are rows in compliance/rules, and the findings of a check."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

from compliance.official.rule_files import RULES, WORKLOAD_RULESET, numbers_of_version, versions
from compliance.passports import PublishedSizes
from runlog import workloads
from runlog.json_types import JsonObject

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader halves the time of a small check
_BENCHMARKS_NAMED = 3  # at most, where a rule holds for others
TRAINED_HERE = "trained_here"  # the benchmarks of a row that holds for those of this project's workloads
_WORKLOAD_BENCHMARKS = tuple(workload.benchmark for workload in workloads.WORKLOADS)
# Fields of rows that are not simply a field of Benchmark or StrictRule.
_FIELDS_OF_BENCHMARK_ROWS = ("rulesets", "no_reference_points", "published_sizes", "weights")
_FIELDS_OF_STRICT_ROWS = ("class", "text", "since", "source", "severity")
SEVERITIES = ("error", "warning", "info")
FINDINGS_PER_RULE = 10


class Weights(NamedTuple):
    """How many weights a model trains: its tensors, and the numbers in them without and for each class."""

    tensors: int
    without_classes: int
    of_class: int

    def numbers(self, classes: int) -> int:
        """Return how many numbers all tensors have together.

        Args:
            classes: How many classes the model tells apart.
        """
        return self.without_classes + self.of_class * classes


class Benchmark(NamedTuple):
    """Facts of a benchmark beyond its rule files. `targets` has its quality by division, `runs` those of a result."""

    name: str
    train_samples: int
    eval_samples: int
    targets: Mapping[str, float]
    runs: int
    convolutions: int | None = None
    weights: Weights | None = None
    published_sizes: PublishedSizes | None = None
    reference_points: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrictRule:
    """A rule that the official checkers do not have: a row of strict.yaml, whose head explains the fields."""

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
    logs: str = ""  # "project": it holds for logs that this project wrote; empty: for anybody's
    bounds: Mapping[str, float] = field(default_factory=dict)
    bound_from: str = ""
    found: int = 0  # accepted logs of the corpus that it refuses

    def why_not_applied(self, benchmark: str, division: str) -> str:
        """Return why the rule does not apply to a run; empty if it applies.

        Args:
            benchmark: The benchmark that the log states; "" if it states none.
            division: The division of MLPerf that the log states, such as "closed"; "" if it states none.
        """
        if self.benchmarks and benchmark not in self.benchmarks:
            is_long_list = len(self.benchmarks) > _BENCHMARKS_NAMED
            names = f"{len(self.benchmarks)} other benchmarks" if is_long_list else " and ".join(self.benchmarks)
            return f"it holds for {names}"
        if self.division and division != self.division:
            return f"not a {self.division} run"
        return ""

    @property
    def scope(self) -> str:
        """Return in words which logs the rule applies to, such as `closed logs of resnet` or `every log`."""
        if self.logs == "project":
            return "logs that this project wrote"
        division = f"{self.division} " if self.division else ""
        benchmarks = f" of {' and '.join(self.benchmarks)}" if self.benchmarks else ""
        return f"{division}logs{benchmarks}" if division or benchmarks else "every log"


class WrittenRule(NamedTuple):
    """A check from the written rules of MLPerf that the official checker does not make.

    A closed run must pass it with the first event of `key`.
    """

    key: str
    check: str  # in the language of the rule files
    source: str
    opt_name: str | None = None  # only with this optimizer
    severity: str = "error"  # warning: of a label, which changes no figure


class Ruleset(NamedTuple):
    """This project's rules for one `version`, which add to the official ones. `benchmarks` are this project's."""

    version: str
    benchmarks: Mapping[str, Benchmark]
    strict: Mapping[str, StrictRule]
    written: tuple[WrittenRule, ...]


def read_rules(name: str) -> Any:
    """Return the content of a YAML file of the folder compliance/rules.

    Args:
        name: The name of the file, such as "strict.yaml".
    """
    with (RULES / name).open("rb") as stream:
        return yaml.load(stream, Loader=_LOADER)  # noqa: S506  both are safe loaders


def load(version: str) -> Ruleset:
    """Return this project's rules for a version of the rules of MLPerf Training.

    All strict rules are included. One that comes into force in a later version has `in_force` false.

    Args:
        version: The version, such as 4.0.0.

    Raises:
        ValueError: There are no rule files for the version.
    """
    if version not in versions():
        raise ValueError(f"ruleset {version}: no rules for it; take one of {', '.join(versions())}")
    texts = read_rules("texts.yaml")
    benchmarks = _benchmarks(version)
    strict = {}
    for name, row in read_rules("strict.yaml").items():
        strict[name] = _strict_rule(name, _with_names_of_benchmarks(row, benchmarks), version, texts)
    return Ruleset(version=version, benchmarks=benchmarks, strict=strict, written=_written_rules(texts))


def _with_names_of_benchmarks(row: JsonObject, benchmarks: Iterable[str]) -> JsonObject:
    """Return a row of strict.yaml, with the names of this project's benchmarks in place of TRAINED_HERE.

    Args:
        row: The row, with the fields of one rule.
        benchmarks: The benchmarks that this project has in the ruleset. Those of its workloads are added.
    """
    if row.get("benchmarks") != TRAINED_HERE:
        return row
    each_once = dict.fromkeys([*_WORKLOAD_BENCHMARKS, *benchmarks])
    return {**row, "benchmarks": tuple(each_once)}


def _benchmarks(version: str) -> dict[str, Benchmark]:
    """Return the benchmarks that this project has in a ruleset version, by name.

    They are the rows of benchmarks.yaml that list the version. In WORKLOAD_RULESET, this project's workloads without
    such a row are benchmarks, too: no other version has rules for them.

    Args:
        version: The version, such as 4.0.0.
    """
    benchmarks = {}
    for name, row in read_rules("benchmarks.yaml").items():
        if version in row["rulesets"]:
            benchmarks[name] = _benchmark_of_row(name, row, version)
    if version == WORKLOAD_RULESET:
        for workload in workloads.WORKLOADS:
            if workload.benchmark not in benchmarks:
                benchmarks[workload.benchmark] = _benchmark_of(workload)
    return benchmarks


def _benchmark_of_row(name: str, row: JsonObject, version: str) -> Benchmark:
    """Return the benchmark of a row of benchmarks.yaml, as it is in a ruleset version.

    A field of the row is a field of the benchmark, except for _FIELDS_OF_BENCHMARK_ROWS, which are read one by one.

    Args:
        name: The name of the benchmark, such as "resnet".
        row: The row. If its field `no_reference_points` lists the version, the benchmark has no reference points.
        version: The version, such as 4.0.0.
    """
    sizes = row.get("published_sizes")
    published_sizes = None if sizes is None else PublishedSizes(**sizes)
    weights = Weights(**row["weights"]) if "weights" in row else None
    fields = _without(row, _FIELDS_OF_BENCHMARK_ROWS)
    benchmark = Benchmark(name=name, published_sizes=published_sizes, weights=weights, **fields)
    if version in row.get("no_reference_points", ()):
        return benchmark._replace(reference_points=None)
    return benchmark


def _without(row: JsonObject, names: Collection[str]) -> JsonObject:
    """Return a row of a rule file without some fields.

    Args:
        row: The row, by the names of its fields.
        names: The names of the fields to leave out.
    """
    return {field_name: value for field_name, value in row.items() if field_name not in names}


def _benchmark_of(workload: workloads.Workload) -> Benchmark:
    """Return the benchmark of a workload without a row in benchmarks.yaml; its recipe gives the target instead.

    Args:
        workload: The workload of this project, with its numbers of samples and runs.
    """
    return Benchmark(
        name=workload.benchmark,
        train_samples=workload.train_samples,
        eval_samples=workload.eval_samples,
        targets={},
        runs=workload.runs,
    )


def _written_rules(texts: Mapping[str, str]) -> tuple[WrittenRule, ...]:
    """Return the rules of written.yaml, with the document that they were read in added to the `source` of each.

    For instance, `training_rules.adoc: |resnet |sgd [...]` gets `; read in: TITLE; in force from ruleset 0.7.0 on`.

    Args:
        texts: The titles of the documents of rules, by short names such as "rules_0.7".
    """
    # All were read in the document of the oldest ruleset, and are taken to stand in all later documents.
    oldest_document = texts["rules_0.7"]
    oldest_ruleset = versions()[0]
    assert oldest_ruleset == "0.7.0", "the document belongs to another ruleset"
    read_in = f"read in: {oldest_document}; in force from ruleset {oldest_ruleset} on"
    rules = []
    for fields in read_rules("written.yaml"):
        rule = WrittenRule(**fields)
        rules.append(rule._replace(source=f"{rule.source}; {read_in}"))
    return tuple(rules)


def _strict_rule(name: str, row: JsonObject, version: str, texts: Mapping[str, str]) -> StrictRule:
    """Return a rule that the official checker does not have, made from the row of the rule in strict.yaml.

    Args:
        name: The name of the rule, such as "seed-present".
        row: The fields of the rule, as the head of strict.yaml explains them.
        version: The version of the rules by which logs are checked.
        texts: The titles of the documents that rules were read in, by the short names that rows have as `text`.
    """
    kind = row["class"]
    since = row.get("since", "")
    source = row["source"]
    if kind == "form":  # how a log is written
        assert "text" not in row and not since, f"{name}: a rule of form has no text, and is always in force"
        usual_severity = "warning"
        is_in_force = True
    else:
        assert kind in ("rule", "plausibility"), f"{name}: unknown class {kind}"
        assert row["text"] and since, f"{name}: it must name the text that it was read in, and the first ruleset"
        usual_severity = "error"
        is_in_force = numbers_of_version(version) >= numbers_of_version(since)
        source += f"; read in: {texts[row['text']]}; in force from ruleset {since} on"
    # All fields but class, text, since, source and severity, such as expected and fix: each is a field of StrictRule.
    other_fields = _without(row, _FIELDS_OF_STRICT_ROWS)
    return StrictRule(
        name=name,
        kind=kind,
        severity=row.get("severity", usual_severity),
        source=source,
        since=since,
        in_force=is_in_force,
        **other_fields,
    )


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

    @property
    def is_about_key(self) -> bool:
        """Whether the rule is about the events of a key, such as seed.count. No rule of strict.yaml has a dot."""
        return "." in self.rule

    def as_dict(self) -> JsonObject:
        """Return the finding as JSON has it."""
        return {"class" if name == "kind" else name: value for name, value in vars(self).items()}


def breach(
    rule: StrictRule, actual: str, *, line: int | None = None, expected: str | None = None, severity: str | None = None
) -> Finding:
    """Return the finding that a log breaks a rule.

    Args:
        rule: The rule that is broken.
        actual: What the log has instead of what is expected.
        line: The line to blame, counted from 1. None if no single line is to blame.
        expected: What is expected; None takes the rule's own words.
        severity: "error" or "warning"; None takes the rule's own.
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
    """Return a note on a rule, a finding of severity `info`. It mostly says why the rule was not applied.

    Args:
        rule: The rule.
        actual: What the note says.
    """
    return replace(breach(rule, actual), severity="info", fix="")


def verdict(passed: bool) -> str:
    return "pass" if passed else "fail"


class FindingCollector:
    """Collects the findings of one log. Of each strict rule it keeps the first FINDINGS_PER_RULE breaches."""

    def __init__(self, strict_rules: Mapping[str, StrictRule]) -> None:
        self.findings: list[Finding] = []
        self.strict_rules = strict_rules
        self._breach_counts = Counter[str]()  # by the name of the rule

    def add_breach(
        self, rule: str, line: int | None, actual: str, expected: str | None = None, severity: str | None = None
    ) -> None:
        """Add a finding that the log breaks a strict rule.

        If the rule is not in force in this ruleset, a note that says so is added instead. Of each rule the first
        FINDINGS_PER_RULE breaches are added, and later ones are only counted.

        Args:
            rule: The name of the rule, such as "seed-present".
            line: The line to blame, counted from 1. None if no single line is to blame.
            actual: What the log has instead of what is expected.
            expected: What is expected; None takes the rule's own words.
            severity: "error" or "warning"; None takes the rule's own.
        """
        self._breach_counts[rule] += 1
        if self._breach_counts[rule] > FINDINGS_PER_RULE:
            return
        strict_rule = self.strict_rules[rule]
        if strict_rule.in_force:
            self.findings.append(breach(strict_rule, actual, line=line, expected=expected, severity=severity))
        else:
            self.add_note(rule, f"not applied: in force from ruleset {strict_rule.since} on; {actual}")

    def drop_inapplicable_rules(self, benchmark: str, division: str) -> None:
        """Drop the findings of rules that do not apply to the run, and note each such rule.

        Args:
            benchmark: The benchmark that the log states; "" if it states none.
            division: The division of MLPerf that the log states, such as "closed"; "" if it states none.
        """
        for rule in self.strict_rules.values():
            reason = rule.why_not_applied(benchmark, division)
            if reason:
                self.drop_findings_of(rule.name)
                self.add_note(rule.name, f"not applied: {reason}")

    def drop_findings_of(self, rule: str) -> None:
        """Drop all findings of a rule, and forget how many breaches there were.

        Args:
            rule: The name of the rule.
        """
        self.findings = [finding for finding in self.findings if finding.rule != rule]
        del self._breach_counts[rule]

    def add_note(self, rule: str, actual: str) -> None:
        """Add a note on a strict rule, such as why it was not applied.

        Args:
            rule: The name of the rule.
            actual: What the note says.
        """
        self.findings.append(note(self.strict_rules[rule], actual))

    def add_unlisted(self, last: Finding, count: int) -> None:
        """Add a note that more breaches of a rule were found than are listed.

        Args:
            last: A finding by the rule, such as its last listed one.
            count: How many breaches are not listed.
        """
        breaches = "1 more breach" if count == 1 else f"{count} more breaches"
        actual = f"{breaches} of {last.rule}, not listed"
        unlisted = replace(last, severity="info", line=None, expected="", actual=actual, fix="", official=False)
        self.findings.append(unlisted)

    def sorted_findings(self) -> tuple[Finding, ...]:
        """Return all findings, errors first, then by line. Call it once: it adds how many breaches are not listed."""
        for rule, count in self._breach_counts.items():
            if count > FINDINGS_PER_RULE:
                self.add_unlisted(breach(self.strict_rules[rule], ""), count - FINDINGS_PER_RULE)
        return tuple(sorted(self.findings, key=_severity_and_line))


def _severity_and_line(finding: Finding) -> tuple[int, int]:
    return SEVERITIES.index(finding.severity), finding.line or 0


# --- the most that a machine can train, by the peak of its named devices: a bound, and no estimate ---

CORE_FLOP_PER_S = 384e9  # two AVX-512 multiply-adds of 16 numbers a cycle at 6 GHz: more than any core has
_SHARE_OF_PEAK = 0.6  # of the cards' peak: twice what any of 84 published submissions takes


@functools.cache
def peaks() -> dict[str, float]:
    """Return the dense peak in FP16 of each card that is known, in TFLOP/s."""
    return dict(read_rules("peaks.yaml"))


def most_images_per_s(cards: Sequence[str], cores: int, flop_per_image: float) -> float | None:
    """Return a rate of training in images/s that a machine cannot exceed.

    Args:
        cards: The names of its GPUs, such as "NVIDIA A100-SXM4-80GB". Empty for a machine without GPUs.
        cores: The number of its CPU cores, which only counts if it has no GPUs.
        flop_per_image: The work of training on one image, in FLOP.

    Returns:
        The rate. None if the peak of a card is not known, or if the machine has neither cards nor cores.
    """
    if cards:
        peak_flop_per_s = _peak_of_cards(cards)
        if peak_flop_per_s is None:
            return None
        return _SHARE_OF_PEAK * peak_flop_per_s / flop_per_image
    if cores:
        return cores * CORE_FLOP_PER_S / flop_per_image
    return None


def training_flop(workload: workloads.Workload, height: int, width: int) -> float | None:
    """Return the work of training on one image, in FLOP; None if it was not counted for the workload.

    The work was counted for images of one size. It grows with the area of the image.

    Args:
        workload: The workload, with its counted work and the size that this is of.
        height: The height of the image in pixels.
        width: The width of the image in pixels.
    """
    if workload.training_flop is None or workload.flop_height is None or workload.flop_width is None:
        return None
    return workload.training_flop * (height / workload.flop_height) * (width / workload.flop_width)


def _peak_of_cards(cards: Sequence[str]) -> float | None:
    """Return the sum of the cards' peaks in FLOP/s; None if a card is not in peaks.yaml.

    Args:
        cards: The full names of the cards, such as `NVIDIA A100-SXM4-80GB`.
    """
    peak_flop_per_s = 0.0
    for card in cards:
        card_tflop_per_s = _peak_of_card(card)
        if card_tflop_per_s is None:
            return None
        peak_flop_per_s += card_tflop_per_s * 1e12
    return peak_flop_per_s


def _peak_of_card(card: str) -> float | None:
    """Return the peak of a card in TFLOP/s; None if it is not in peaks.yaml.

    Args:
        card: The full name, such as `NVIDIA A100-SXM4-80GB`. It contains the name that peaks.yaml has.
    """
    for name, peak_tflop_per_s in peaks().items():
        if name in card:
            return peak_tflop_per_s
    return None
