"""mlperf-logging's own rule files, parsed: what each asks of the events of a key.

The files of its release 4.1.68 lie unchanged, with their licence, in one archive beside our rules, so that a verdict
needs no installed package and does not change with one. FCN-HRNetW18, which MLPerf lacks, has files of ours in the same
language.
"""

import ast
import functools
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from compliance.official.language import Code, expression, statements
from runlog.workloads import WORKLOADS

RULES = Path(__file__).parents[1] / "rules"
WORKLOAD_RULES = RULES / "open_workload.yaml"  # of a workload of ours that has no file
WORKLOAD_RULESET = "4.0.0"
VERSION = "4.1.68"  # of mlperf-logging
ARCHIVE = RULES / f"mlperf_logging_{VERSION}.zip"
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_FIELDS = {"NAME", "REQ", "CHECK", "FIRST_CHECK", "ATLEAST_ONE_CHECK", "POST"}
_COUNTS = re.compile(r"EXACTLY_ONE|OPTIONAL|AT_LEAST_ONE|AT_LEAST\((\d+)\)|AT_LEAST_ONE_OR\((\w+)\)")
# CRC-32 of stable_diffusion's BEGIN, less comments, and the metadata by which it joins metrics to one evaluation
_AGGREGATES = {0x9193B33E: "samples_count", 0x97C23FA3: "step_num"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """An expression that must hold.

    `aspect` is what it looks at: value, metadata, order or time. `other` is the key whose events make what it looks
    at; for `order` one that must have come, or, where `before`, must not.
    """

    node: ast.expr
    code: Code
    aspect: str
    other: str = ""
    before: bool = False

    @functools.cached_property
    def words(self) -> str:
        return f"{'before' if self.before else 'after'} {self.other}" if self.aspect == "order" else in_words(self.node)

    @functools.cached_property
    def sides(self) -> list[Code]:
        """Return the sides of a single comparison; of two lists that are sorted to be compared, the lists: a log's may
        not be sortable."""
        if not isinstance(self.node, ast.Compare):
            return []
        parts = map(ast.unparse, [self.node.left, *self.node.comparators])
        return [expression(re.sub(r"^sorted\((.*)\)$", r"\1", part)) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Rule:
    key: str
    count: str
    least: int
    other: str | None  # of AT_LEAST_ONE_OR
    checks: Sequence[Check]
    first_check: Check | None
    any_check: Check | None
    post: Sequence[Code]

    @property
    def count_in_words(self) -> str:
        """Say in words how many events there must be; empty where any number will do."""
        if self.count == "EXACTLY_ONE":
            return f"exactly one {self.key}"
        if self.other:
            return f"at least one {self.key} or {self.other}"
        return f"at least {'one' if self.least == 1 else self.least} {self.key}" if self.least else ""

    def describe(self) -> str:
        parts = [self.count_in_words, *(check.words for check in self.checks)]
        parts += [f"the first: {self.first_check.words}"] if self.first_check else []
        parts += [f"one of them: {self.any_check.words}"] if self.any_check else []
        return "; ".join(filter(None, parts)) or "may be there"


@dataclass(frozen=True, kw_only=True)
class RuleFile:
    name: str
    rules: Mapping[str, Rule]
    begin: Sequence[Code]
    end: Sequence[Check]
    aggregates: str  # metadata whose value names an evaluation of several metrics; empty without such

    @property
    def source(self) -> str:
        return f"{'this project' if (RULES / self.name).is_file() else f'mlperf-logging {VERSION}'}, {self.name}"


@functools.cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(ARCHIVE)


@functools.cache
def names() -> frozenset[str]:
    """The rule files, `training_<version>/<name>.yaml`."""
    theirs = (name.partition("/")[2] for name in _archive().namelist() if name.startswith("compliance_checker/"))
    ours = [str(path.relative_to(RULES)) for path in RULES.glob("training_*/*.yaml")]
    files_with_text = frozenset([*theirs, *ours])
    return files_with_text.union(_names_of_workloads() - files_with_text)


def _names_of_workloads() -> frozenset[str]:
    """The rule files that this project's workloads have in the open division: WORKLOAD_RULES where none is written."""
    return frozenset(f"training_{WORKLOAD_RULESET}/open_{workload.benchmark}.yaml" for workload in WORKLOADS)


def versions() -> list[str]:
    return sorted({name.partition("/")[0].removeprefix("training_") for name in names()})


def benchmarks(version: str) -> list[str]:
    """The benchmarks that have rules in both divisions."""
    closed, opened = (set(re.findall(rf"/{of}_(\w+)\.yaml", " ".join(files(version)))) for of in ("closed", "open"))
    return sorted((closed & opened) - {"common"})


@functools.cache
def keys(version: str) -> frozenset[str]:
    """The keys that the rules of `version` name, for any benchmark; those of older files, too, to which they point."""
    found = re.findall(r"NAME:\s*(\w+)|training_([\d.]+)/", "".join(map(text_of, files(version))))
    older = {other for _, other in found if other and other != version}
    return frozenset({key for key, _ in found if key}.union(*map(keys, older)))


def reference_points(file: str, version: str) -> dict[str, Any]:
    """The records of reference convergence points in `file` (rcps_BENCHMARK.json) of ruleset `version`, by name.

    Raises KeyError where mlperf-logging has no such file.
    """
    return dict(json.loads(_archive().read(f"rcp_checker/training_{version}/{file}")))


def archived_names() -> list[str]:
    """The places in mlperf-logging's package of the files that the archive holds."""
    return _archive().namelist()


def archived(name: str) -> str:
    """The text of a file of mlperf-logging by its place in the package. Raises KeyError if the archive has none."""
    return _archive().read(name).decode()


def text_of(name: str) -> str:
    """Return the text of a rule file: ours, mlperf-logging's, or the one that is made for a workload without any."""
    ours = RULES / name
    if ours.is_file():
        return ours.read_text("utf-8")
    theirs = f"compliance_checker/{name}"
    if theirs not in _archive().namelist() and name in _names_of_workloads():
        benchmark = name.partition("/open_")[2].removesuffix(".yaml")
        return WORKLOAD_RULES.read_text("utf-8").replace("BENCHMARK", benchmark)
    return _archive().read(theirs).decode()


def files(version: str) -> list[str]:
    """The names of its rule files."""
    return sorted(name for name in names() if name.startswith(f"training_{version}/"))


def _listed(checks: str | list[str]) -> list[str]:
    return checks if isinstance(checks, list) else [checks]


@functools.cache
def load(name: str) -> RuleFile:
    """The rules of the file `name`. Raises ValueError for a form that is not known."""
    rules: dict[str, Rule] = {}
    begin: Sequence[Code] = ()
    end: Sequence[Check] = ()
    aggregates = ""
    blocks = [next(iter(block.items())) for block in yaml.load(text_of(name), Loader=_LOADER) or ()]  # noqa: S506  it makes texts, lists and tables alone
    set_by = {
        state: fields["NAME"]
        for kind, fields in blocks
        for state in re.findall(r"s\['(\w+)'\]\s*(?:= True|\+=)", fields.get("POST", ""))
    }
    for kind, fields in blocks:
        key = fields.get("NAME", kind)
        if kind == "KEY" and fields.keys() <= _FIELDS:
            rules[key] = _rule(name, fields, set_by)
        elif kind == "BEGIN" and fields.keys() == {"CODE"}:
            lines = (line.partition("#")[0].rstrip() for line in fields["CODE"].splitlines())
            aggregates = _AGGREGATES.get(zlib.crc32("\n".join(filter(None, lines)).encode()), "")
            begin = () if aggregates else _known(name, key, fields["CODE"], statements)
        elif kind == "END" and fields.keys() == {"CHECK"}:
            end = [read_check(name, key, text, set_by) for text in _listed(fields["CHECK"])]
        else:
            raise ValueError(f"{name}: {key}: no meaning for {fields!r:.200}")
    if unknown := {rule.other for rule in rules.values() if rule.other} - rules.keys():
        raise ValueError(f"{name}: AT_LEAST_ONE_OR of {', '.join(unknown)}, which the file does not name")
    return RuleFile(name=name, rules=rules, begin=begin, end=end, aggregates=aggregates)


def _known(name: str, key: str, text: str, read: Any) -> Any:
    try:
        return read(text)
    except SyntaxError:
        known = f"mlperf-logging {VERSION} has no such form"
        raise ValueError(f"{name}: {key}: no meaning for {text.strip()!r}; {known}") from None


def _rule(name: str, fields: dict[str, Any], set_by: Mapping[str, str]) -> Rule:
    key, wanted = fields["NAME"], fields.get("REQ", "OPTIONAL")
    count = _COUNTS.fullmatch(wanted)
    if not count:
        raise ValueError(f"{name}: {key}: no meaning for {wanted!r}")
    checks, first, one = (
        [read_check(name, key, text, set_by) for text in _listed(fields.get(field, []))]
        for field in ("CHECK", "FIRST_CHECK", "ATLEAST_ONE_CHECK")
    )
    return Rule(
        key=key,
        count=wanted,
        least=int(count[1] or wanted in ("EXACTLY_ONE", "AT_LEAST_ONE")),
        other=count[2],
        checks=checks,
        first_check=first[0] if first else None,
        any_check=one[0] if one else None,
        post=_known(name, key, fields.get("POST", ""), statements),
    )


# --- checks in words ---


def read_check(name: str, key: str, text: str, set_by: Mapping[str, str] = MappingProxyType({})) -> Check:
    """The check `text` of `key` in the file `name`. `set_by`: the key whose events make a part of the state."""
    code = _known(name, key, text, expression)
    node = ast.parse(text.strip(), mode="eval").body
    plain = ast.unparse(node)
    states = [state for state in re.findall(r"s\['(\w+)'\]", plain) if state in set_by]
    other = set_by[states[0]] if states else ""
    if other and (flag := re.fullmatch(r"(not )?s\['\w+'\](?: == True)?", plain)):
        return Check(node=node, code=code, aspect="order", other=other, before=bool(flag[1]))
    aspect = "time" if "ll.timestamp" in plain else "metadata" if "v['metadata']" in plain else "value"
    return Check(node=node, code=code, aspect=aspect, other=other)


_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"v\['value'\] != ''", "not empty"),
        (r"'value' in v", "a value"),
        (r"'(\w+)' in v\['metadata'\]", r"metadata has \1"),
        (r"v\['metadata'\]\['(\w+)'\] > (\S+)", r"metadata has \1 above \2"),
        (r"v\['metadata'\]\['(\w+)'\] >= (\S+)", r"metadata has \1 of \2 at least"),
        (r"v\['value'\] in \[(.+)\]", r"one of \1"),
        (r"is_integer\(v\['value'\]\)", "a whole number"),
        (r"is_integer\(v\['value'\] / ([\d.e-]+)\)", r"a multiple of \1"),
        (r"is_integer\(math\.log2\(v\['value'\] / ([\d.e-]+)\)\)", r"\1 times a power of two"),
        (r"ll\.timestamp - s\['first_init_start'\] < .+", "soon enough after the first init_start"),
        (r"sorted\(s\['initialized_tensors'\]\) == .+", "each tensor of the reference model once"),
        (r"v\['value'\] == (.+)", r"equal to \1"),
        (r"v\['value'\] > (\S+)", r"above \1"),
        (r"v\['value'\] >= (\S+)", r"at least \1"),
        (r"v\['value'\] < (\S+)", r"below \1"),
        (r"v\['value'\] <= (\S+)", r"at most \1"),
    )
)


def in_words(node: ast.expr) -> str:
    """Say in words what an expression asks; return its text where there are no words for it."""
    match node:
        case ast.BoolOp(op=joined, values=values):
            return (" and " if isinstance(joined, ast.And) else " or ").join(map(in_words, values))
        case ast.BinOp(left=ast.Compare(), op=ast.BitOr(), right=ast.Compare()):
            return f"{in_words(node.left)} or {in_words(node.right).removeprefix('metadata has ')}"
        case ast.IfExp(test=test, body=body, orelse=ast.Constant(value=True)):
            return f"{in_words(body)}, where {in_words(test)}"
    text = ast.unparse(node)
    for pattern, words in _WORDS:
        if match := pattern.fullmatch(text):
            return match.expand(words).replace("'", "")
    return re.sub(r"\b[sv]\['(\w+)'\]|\['(\w+)'\]", lambda m: m[1] or f"'s {m[2]}", text)
