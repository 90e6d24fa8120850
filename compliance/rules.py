"""Rules as data: loads compliance/rules and says what a constraint of a row means."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parent / "rules"
KINDS = ("rule", "form", "plausibility")
_SHARED = ("common", "closed", "open")
NEWER = ("4.1.0", "5.0.0", "5.1.0", "6.0.0", "6.1.0")  # official rules of mlperf-logging's files, no rows of ours
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader halves the time of a small check
_METADATA = frozenset({"one_of", "all_of", "beside", "above", "at_least", "exactly"})


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the events of one key must be, where `when` holds; `official` if mlperf-logging's checker asks it, too."""

    key: str
    source: str
    official: bool = True
    when: Mapping[str, str] = field(default_factory=dict)
    count: str | None = None  # exactly_one | at_least_one
    one_or: tuple[str, ...] = ()
    value: Mapping[str, Any] = field(default_factory=dict)
    any_value: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    order: Mapping[str, Any] = field(default_factory=dict)
    minutes_since_first: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, facts: Mapping[str, object]) -> bool:
        return all(facts.get(name) == wanted for name, wanted in self.when.items())


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What a benchmark fixes beyond its rows. `targets` is by division; `runs` are those of one submission."""

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
    source: str
    severity: str = "error"
    when: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """The rules of one version, for every benchmark that it knows."""

    version: str
    rows: tuple[Row, ...]
    benchmarks: Mapping[str, Benchmark]
    strict: Mapping[str, StrictRule]

    @property
    def newer(self) -> bool:
        return self.version in NEWER


def versions() -> list[str]:
    return sorted([*NEWER, *(folder.name.removeprefix("training_") for folder in RULES.glob("training_*"))])


def load(version: str) -> Ruleset:
    """The rules of `version`. Raises ValueError for a version without rules and for a rule that means nothing."""
    folder = RULES / f"training_{version}"
    if version not in versions():
        raise ValueError(f"ruleset {version}: no rules for it; take one of {', '.join(versions())}")
    rows: list[Row] = []
    benchmarks: dict[str, Benchmark] = {}
    for path in sorted(folder.glob("*.yaml")):
        if path.stem.startswith("official_"):
            continue  # for mlperf-logging's checker
        table, table_rows = _table(path)
        rows += table_rows
        if path.stem not in _SHARED:
            benchmarks[path.stem] = Benchmark(
                name=path.stem,
                train_samples=table["data"]["train_samples"],
                eval_samples=table["data"]["eval_samples"],
                targets=table["target"],
                runs=table["runs"],
                evaluate_every_epochs=table.get("evaluate_every_epochs"),
                reference_points=table.get("reference_points"),
            )
    strict = {name: _strict(name, fields) for name, fields in read_rules("strict.yaml").items()}
    return Ruleset(version=version, rows=tuple(rows), benchmarks=benchmarks, strict=strict)


def _strict(name: str, fields: dict[str, Any]) -> StrictRule:
    kind = fields.pop("class")
    if kind not in KINDS:
        raise ValueError(f"strict.yaml: {name}: class {kind} is none of {', '.join(KINDS)}")
    severity = fields.pop("severity", "warning" if kind == "form" else "error")
    return StrictRule(name=name, kind=kind, severity=severity, **fields)


def read_rules(name: str) -> dict[str, Any]:
    """The table in compliance/rules/`name`."""
    return _read(RULES / name)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return yaml.load(stream, Loader=_LOADER)  # noqa: S506  both are safe loaders


def _table(path: Path) -> tuple[dict[str, Any], list[Row]]:
    table = _read(path)
    inherited: list[Row] = []
    if "extends" in table:
        base, inherited = _table(RULES / table.pop("extends"))
        table = base | table
    own = []
    written = [{"official": False, **fields} for fields in table.pop("written_rules", ())]
    for fields in [*table["rows"], *written]:
        fields = {"source": table["source"], **fields}
        fields["when"] = table.get("when", {}) | fields.get("when", {})
        fields["one_or"] = tuple(fields.get("one_or", ()))
        row = Row(**fields)
        unknown = {*row.value, *row.any_value} - _HOLDS.keys() | set(row.metadata) - _METADATA
        if unknown or row.count not in (None, "exactly_one", "at_least_one"):
            raise ValueError(f"{path}: row {row.key}: no meaning for {', '.join(unknown) or row.count}")
        own.append(row)
    replaced = {(row.key, tuple(row.when.items()), row.official) for row in own}
    kept = [row for row in inherited if (row.key, tuple(row.when.items()), row.official) not in replaced]
    return table, kept + own


def holds(constraint: Mapping[str, Any], value: Any) -> bool:
    """Whether `value` meets every part of `constraint`, compared as the official rules compare."""
    try:
        for name, wanted in constraint.items():  # a loop: all() of a generator takes twice its time
            if not _HOLDS[name](value, wanted):
                return False
    except (TypeError, ValueError, OverflowError):
        return False
    return True


_HOLDS: Mapping[str, Callable[[Any, Any], Any]] = {
    "not_empty": lambda value, wanted: value != "",
    "one_of": lambda value, wanted: value in wanted,
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "equals": operator.eq,
    "whole": lambda value, wanted: type(value) in (int, float) and value == int(value),
    "multiple_of": lambda value, wanted: is_whole(value / wanted),
    "power_of_two_times": lambda value, wanted: is_whole(math.log2(value / wanted)),
}


def is_whole(value: float) -> bool:
    return abs(round(value) - value) < 0.00001  # tolerance of mlperf-logging's is_integer


def constraint_in_words(constraint: Mapping[str, Any]) -> str:
    """`constraint` in words."""
    words = {
        "not_empty": "not empty",
        "one_of": "one of {}",
        "above": "above {}",
        "at_least": "at least {}",
        "below": "below {}",
        "equals": "equal to {}",
        "whole": "a whole number",
        "multiple_of": "a multiple of {}",
        "power_of_two_times": "{} times a power of two",
    }
    parts = []
    for name, wanted in constraint.items():
        shown = ", ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
        parts.append(words[name].format(shown))
    return " and ".join(parts)


def describe_row(row: Row) -> str:
    """A row in words, for --explain."""
    parts = []
    if row.count:
        parts.append(row.count.replace("_", " "))
    if row.one_or:
        parts.append(f"at least one, or one {' or '.join(row.one_or)}")
    if row.value:
        parts.append(f"value {constraint_in_words(row.value)}")
    if row.any_value:
        parts.append(f"one value {constraint_in_words(row.any_value)}")
    if row.metadata:
        parts.append(f"metadata {describe_metadata(row.metadata)}")
    for word, keys in row.order.items():
        parts.append(f"{word} {', '.join(keys)}")
    if row.minutes_since_first:
        limits = row.minutes_since_first
        words = "{any} min" if "any" in limits else "{closed} min (closed) or {open} min (open)"
        parts.append(f"under {words.format(**limits)} after the first {limits['key']}")
    when = ", ".join(f"{name} {wanted}" for name, wanted in row.when.items())
    return f"{row.key}{f' ({when})' if when else ''}: {'; '.join(parts) or 'may be there'}"


def describe_metadata(constraint: Mapping[str, Any]) -> str:
    parts = []
    for name, wanted in constraint.items():
        if name == "one_of":
            parts.append(f"has {' or '.join(wanted)}")
        elif name == "all_of":
            parts.append(f"has {' and '.join(wanted)}")
        elif name == "beside":
            parts += [f"has {other} beside {one}" for one, other in wanted.items()]
        elif name == "exactly":
            parts += [f"{one} over all events are the {len(names)} names" for one, names in wanted.items()]
        else:
            word = name.replace("_", " ")
            parts += [f"{one} {word} {limit}" for one, limit in wanted.items()]
    return ", ".join(parts)
