"""mlperf-logging's own rule files, parsed: what each asks of the events of a key.

The files of its release 4.1.68 lie unchanged, with their licence, in one archive in the folder of our rules: a verdict
needs no installed package and does not change with one. FCN-HRNetW18 is no benchmark of MLPerf: it has files of ours in
the same language.
"""

import ast
import functools
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import yaml

from compliance.official.language import Code, expression, statements
from runlog.json_types import JsonObject
from runlog.workloads import WORKLOADS

RULES = Path(__file__).parents[1] / "rules"
WORKLOAD_RULES = RULES / "open_workload.yaml"  # for a workload of ours that has no file
WORKLOAD_RULESET = "4.0.0"
VERSION = "4.1.68"  # of mlperf-logging
ARCHIVE = RULES / f"mlperf_logging_{VERSION}.zip"
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_FIELDS = {"NAME", "REQ", "CHECK", "FIRST_CHECK", "ATLEAST_ONE_CHECK", "POST"}
_SORTED_CALL = re.compile(r"^sorted\((.*)\)$")
_COUNTS = re.compile(r"EXACTLY_ONE|OPTIONAL|AT_LEAST_ONE|AT_LEAST\((\d+)\)|AT_LEAST_ONE_OR\((\w+)\)")
# CRC-32 of stable_diffusion's BEGIN, less comments, and the metadata by which it joins metrics to one evaluation
_EVALUATION_FIELDS = {0x9193B33E: "samples_count", 0x97C23FA3: "step_num"}

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, kw_only=True)
class Check:
    """An expression that must hold.

    `aspect` is the part of an event or log that it looks at: value, metadata, order or time. `other_key` is the key
    whose events set the state that it looks at. For `order`, an event of that key must have come before; if
    `must_come_before` is true, none may have come yet.
    """

    node: ast.expr
    code: Code
    aspect: str
    other_key: str = ""
    must_come_before: bool = False

    @functools.cached_property
    def words(self) -> str:
        """Return in words what the check asks."""
        if self.aspect != "order":
            return in_words(self.node)
        return f"{'before' if self.must_come_before else 'after'} {self.other_key}"

    @functools.cached_property
    def sides(self) -> list[Code]:
        """Return the functions that compute the two sides of the check's comparison; empty if it is none.

        `v['value'] == 5` -> functions that give the event's value, and 5. A call of `sorted` around a side is left out,
        so that a log's list can be shown that holds values of kinds which cannot be sorted together:
        `sorted(s['names']) == ['a', 'b']` -> functions that give the list `s['names']` as it is, and `['a', 'b']`.
        """
        if not isinstance(self.node, ast.Compare):
            return []
        functions = []
        for side in (self.node.left, *self.node.comparators):
            text_without_sorted = _SORTED_CALL.sub(r"\1", ast.unparse(side))
            functions.append(expression(text_without_sorted))
        return functions


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule of one key: how many events it must have, and the checks of them.

    `checks` are of each event, `first_check` is of the first one, and `any_check` must hold for one of them. The
    `code_after_checks` changes the state by each event.
    """

    key: str
    required: str  # the rule file's word for the number of events
    least: int
    alternative_key: str | None  # the key that may take this one's place, by AT_LEAST_ONE_OR
    checks: Sequence[Check]
    first_check: Check | None
    any_check: Check | None
    code_after_checks: Sequence[Code]

    @property
    def count_in_words(self) -> str:
        """Return in words how many events there must be; empty where any number is right."""
        if self.required == "EXACTLY_ONE":
            return f"exactly one {self.key}"
        if self.alternative_key:
            return f"at least one {self.key} or {self.alternative_key}"
        if not self.least:
            return ""
        return f"at least {'one' if self.least == 1 else self.least} {self.key}"

    def describe(self) -> str:
        """Return in words what the rule asks."""
        parts = [self.count_in_words, *(check.words for check in self.checks)]
        if self.first_check:
            parts.append(f"the first: {self.first_check.words}")
        if self.any_check:
            parts.append(f"one of them: {self.any_check.words}")
        asked = [part for part in parts if part]
        return "; ".join(asked) or "may be there"


@dataclass(frozen=True, kw_only=True)
class RuleFile:
    """The rules of one file, by their keys; the code before the first event, and the checks after the last."""

    name: str
    rules: Mapping[str, Rule]
    begin: Sequence[Code]
    end: Sequence[Check]
    evaluation_field: str  # metadata whose value names an evaluation of several metrics; empty without such

    @property
    def source(self) -> str:
        """Return where the file comes from: this project, or mlperf-logging's release."""
        is_ours = (RULES / self.name).is_file()
        origin = "this project" if is_ours else f"mlperf-logging {VERSION}"
        return f"{origin}, {self.name}"


@functools.cache
def _archive() -> zipfile.ZipFile:
    """Open the archive of mlperf-logging's files, once."""
    return zipfile.ZipFile(ARCHIVE)


@functools.cache
def names() -> frozenset[str]:
    """Return the names of all rule files, `training_<version>/<name>.yaml`."""
    theirs = []
    for path in _archive().namelist():
        folder, _, name = path.partition("/")
        if folder == "compliance_checker":
            theirs.append(name)
    ours = [str(path.relative_to(RULES)) for path in RULES.glob("training_*/*.yaml")]
    files_with_text = frozenset([*theirs, *ours])
    return files_with_text.union(_names_of_workloads() - files_with_text)


def _names_of_workloads() -> frozenset[str]:
    """Return the open division's rule files of our workloads: made of WORKLOAD_RULES where none is written."""
    return frozenset(f"training_{WORKLOAD_RULESET}/open_{workload.benchmark}.yaml" for workload in WORKLOADS)


def versions() -> list[str]:
    """Return the versions of the rulesets."""
    return sorted({name.partition("/")[0].removeprefix("training_") for name in names()})


def benchmarks(version: str) -> list[str]:
    """Return the benchmarks that have rules in both divisions."""
    in_closed = _benchmarks_of(version, "closed")
    in_open = _benchmarks_of(version, "open")
    return sorted((in_closed & in_open) - {"common"})


def _benchmarks_of(version: str, division: str) -> set[str]:
    """Return the benchmarks that have a rule file in a division."""
    return set(re.findall(rf"/{division}_(\w+)\.yaml", " ".join(files(version))))


@functools.cache
def keys(version: str) -> frozenset[str]:
    """Return the keys that the rules of `version` name for any benchmark.

    The files of a version may point to files of an older one, whose keys count too.
    """
    text = "".join(text_of(name) for name in files(version))
    named = set(re.findall(r"NAME:\s*(\w+)", text))
    older_versions = set(re.findall(r"training_([\d.]+)/", text)) - {version}
    for older in older_versions:
        named |= keys(older)
    return frozenset(named)


def reference_points(file: str, version: str) -> JsonObject:
    """Return the reference convergence points in `file` (rcps_BENCHMARK.json) of ruleset `version`, by name.

    Raises KeyError where mlperf-logging has no such file.
    """
    return dict(json.loads(_archive().read(f"rcp_checker/training_{version}/{file}")))


def archived_names() -> list[str]:
    """Return the paths within mlperf-logging's package of the files that the archive holds."""
    return _archive().namelist()


def archived(name: str) -> str:
    """Return the text of a file of mlperf-logging by its path in the package. Raises KeyError for another path."""
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
    """Return the names of the rule files of a ruleset's version."""
    return sorted(name for name in names() if name.startswith(f"training_{version}/"))


@functools.cache
def load(name: str) -> RuleFile:
    """Read the rules of the file `name`, such as training_4.0.0/common.yaml.

    A file is a list of blocks. A block KEY holds the rule of one key, BEGIN the code that runs before the first event,
    and END the checks after the last one. The BEGIN of stable_diffusion is not run, as it would join metrics to
    evaluations by code in a form that is not known; it is recognised, and `RuleFile.evaluation_field` set instead.

    Raises ValueError for a block or a field of another form, and for a rule that names a key without a rule.
    """
    rules: dict[str, Rule] = {}
    begin: Sequence[Code] = ()
    end: Sequence[Check] = ()
    evaluation_field = ""
    blocks = _blocks(name)
    set_by = _key_that_sets_each_name(blocks)
    for kind, fields in blocks:
        key = fields.get("NAME", kind)
        if kind == "KEY" and fields.keys() <= _FIELDS:
            rules[key] = _rule_of_block(name, fields, set_by)
        elif kind == "BEGIN" and fields.keys() == {"CODE"}:
            evaluation_field = _field_that_joins_metrics(fields["CODE"])
            if not evaluation_field:
                begin = _parsed(name, key, fields["CODE"], statements)
        elif kind == "END" and fields.keys() == {"CHECK"}:
            end = _checks(name, key, fields["CHECK"], set_by)
        else:
            raise ValueError(f"{name}: {key}: no meaning for {fields!r:.200}")
    unknown = {rule.alternative_key for rule in rules.values() if rule.alternative_key} - rules.keys()
    if unknown:
        raise ValueError(f"{name}: AT_LEAST_ONE_OR of {', '.join(unknown)}, which the file does not name")
    return RuleFile(name=name, rules=rules, begin=begin, end=end, evaluation_field=evaluation_field)


def _blocks(name: str) -> list[tuple[str, JsonObject]]:
    """Return the blocks of a rule file, each as its kind and its fields."""
    blocks = yaml.load(text_of(name), Loader=_LOADER) or ()  # noqa: S506  it makes texts, lists and tables alone
    return [next(iter(block.items())) for block in blocks]


def _key_that_sets_each_name(blocks: Sequence[tuple[str, JsonObject]]) -> dict[str, str]:
    """Return for each name in the state, such as `run_started`, the last key whose events set it or add to it."""
    key_by_name = {}
    for _, fields in blocks:
        for name in re.findall(r"s\['(\w+)'\]\s*(?:= True|\+=)", fields.get("POST", "")):
            key_by_name[name] = fields["NAME"]
    return key_by_name


def _field_that_joins_metrics(code: str) -> str:
    """Return the metadata by which a BEGIN's code joins metrics to one evaluation; empty where it does not."""
    lines = [line.partition("#")[0].rstrip() for line in code.splitlines()]
    text = "\n".join(line for line in lines if line)
    return _EVALUATION_FIELDS.get(zlib.crc32(text.encode()), "")


def _parsed(name: str, key: str, text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Parse a text of a rule file. Raises ValueError for a form that mlperf-logging does not have."""
    try:
        return parse(text)
    except SyntaxError:
        reason = f"mlperf-logging {VERSION} has no such form"
        raise ValueError(f"{name}: {key}: no meaning for {text.strip()!r}; {reason}") from None


def _rule_of_block(name: str, fields: JsonObject, set_by: Mapping[str, str]) -> Rule:
    """Return the rule for one key of events, by the fields of its KEY block in the rule file `name`.

    NAME is the key, and REQ the number of its events: OPTIONAL, EXACTLY_ONE, AT_LEAST_ONE, AT_LEAST(3), or
    AT_LEAST_ONE_OR(other_key), where an event of the other key will do as well. CHECK holds the checks of each event,
    FIRST_CHECK that of the first event, and ATLEAST_ONE_CHECK the one that at least one event must meet. POST holds the
    code that runs after the checks. `set_by` has the key by whose events each name in the state is set.

    Raises ValueError for a form that is not known.
    """
    key = fields["NAME"]
    required = fields.get("REQ", "OPTIONAL")
    match = _COUNTS.fullmatch(required)
    if not match:
        raise ValueError(f"{name}: {key}: no meaning for {required!r}")
    number, other_key = match.groups()  # in the brackets; None without
    least = int(number or 0)
    if required in ("EXACTLY_ONE", "AT_LEAST_ONE"):
        least = 1
    checks = _checks(name, key, fields.get("CHECK", []), set_by)
    first_checks = _checks(name, key, fields.get("FIRST_CHECK", []), set_by)
    any_checks = _checks(name, key, fields.get("ATLEAST_ONE_CHECK", []), set_by)
    return Rule(
        key=key,
        required=required,
        least=least,
        alternative_key=other_key,
        checks=checks,
        first_check=first_checks[0] if first_checks else None,
        any_check=any_checks[0] if any_checks else None,
        code_after_checks=_parsed(name, key, fields.get("POST", ""), statements),
    )


def _checks(name: str, key: str, texts: str | list[str], set_by: Mapping[str, str]) -> list[Check]:
    """Return the checks of a field, which holds one text or a list of them."""
    if isinstance(texts, str):
        texts = [texts]
    return [read_check(name, key, text, set_by) for text in texts]


# --- checks in words ---


def read_check(name: str, key: str, text: str, set_by: Mapping[str, str] = MappingProxyType({})) -> Check:
    """Return the check of the events of `key` that a rule file writes as an expression, such as `v['value'] > 0`.

    In it `v` is the event and `s` the state, in which events of other keys have set flags and lists. `set_by` has the
    key by whose events each name in the state is set. A check of nothing but such a name is about the order of two
    keys: `not s['run_started']` asks for an event before that of `set_by["run_started"]`. Any other check is about the
    event's value, metadata or time.

    Raises ValueError for a form that is not known; its message has `name`, which is that of the rule file.
    """
    code = _parsed(name, key, text, expression)
    node = ast.parse(text.strip(), mode="eval").body
    normal_text = ast.unparse(node)  # the expression with single quotes and normal blanks

    other_key = ""  # the key that sets the first name of the state in the expression
    for state_name in re.findall(r"s\['(\w+)'\]", normal_text):
        if state_name in set_by:
            other_key = set_by[state_name]
            break

    flag_alone = re.fullmatch(r"(?P<negation>not )?s\['\w+'\](?: == True)?", normal_text)
    if other_key and flag_alone:
        must_come_before = flag_alone["negation"] is not None
        return Check(node=node, code=code, aspect="order", other_key=other_key, must_come_before=must_come_before)
    return Check(node=node, code=code, aspect=_aspect(normal_text), other_key=other_key)


def _aspect(expression_text: str) -> str:
    """Return the part of an event that an expression looks at: time, metadata or value."""
    if "ll.timestamp" in expression_text:
        return "time"
    if "v['metadata']" in expression_text:
        return "metadata"
    return "value"


# Expressions of mlperf-logging's rules, as ast.unparse writes them, and the words for them.
_WORDS = (
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


def in_words(node: ast.expr) -> str:
    """Return in words what an expression of a rule file wants. For instance:

        v['value'] > 0                       -> above 0
        v['value'] >= 1 and v['value'] <= 9  -> at least 1 and at most 9
        v['value'] > 0 if s['x'] else True   -> above 0, where x
        v['value'] in s['names']             -> value in names
        ('step_num' in v['metadata']) | ('epoch_num' in v['metadata']) -> metadata has step_num or epoch_num

    An expression that joins others is put into words part by part. Any other gets the words of its pattern in _WORDS.
    For `v['value'] in s['names']` there is no pattern: it keeps its text, without the brackets around names.
    """
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return " and ".join(in_words(value) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return " or ".join(in_words(value) for value in values)
        case ast.BinOp(left=ast.Compare(), op=ast.BitOr(), right=ast.Compare()):  # `|`, which some files write for `or`
            # Where the words of both sides begin with "metadata has", it is said once.
            return f"{in_words(node.left)} or {in_words(node.right).removeprefix('metadata has ')}"
        case ast.IfExp(test=test, body=body, orelse=ast.Constant(value=True)):
            return f"{in_words(body)}, where {in_words(test)}"
    return _words_for_text(ast.unparse(node))


def _words_for_text(expression_text: str) -> str:
    for pattern, words in _WORDS:
        match = re.fullmatch(pattern, expression_text)
        if match:
            return match.expand(words).replace("'", "")
    text = re.sub(r"\b[sv]\['(\w+)'\]", r"\1", expression_text)  # v['value'] -> value
    return re.sub(r"\['(\w+)'\]", r"'s \1", text)  # metadata['file'] -> metadata's file
