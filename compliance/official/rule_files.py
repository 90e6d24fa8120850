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

from compliance.official.check_words import in_words
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
_REQUIRED_COUNT = re.compile(r"EXACTLY_ONE|OPTIONAL|AT_LEAST_ONE|AT_LEAST\((\d+)\)|AT_LEAST_ONE_OR\((\w+)\)")
# By the CRC-32 of a known BEGIN of stable_diffusion, without comments: the metadata by which it joins metrics.
_EVALUATION_FIELDS = {0x9193B33E: "samples_count", 0x97C23FA3: "step_num"}

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, kw_only=True)
class Check:
    """An expression of a rule that must hold for an event, or at the end of a log.

    `aspect` is the part of an event or log that it looks at: value, metadata, order or time. `other_key` is the key
    whose events set the state that it looks at; empty if it looks at no state. A check of order wants an event of
    `other_key` before this event. If `must_come_first` is true, it wants this event before all events of `other_key`.
    """

    node: ast.expr
    code: Code
    aspect: str
    other_key: str = ""
    must_come_first: bool = False

    @functools.cached_property
    def words(self) -> str:
        """Return in words what the check asks for, such as `above 0` or `after run_start`."""
        if self.aspect != "order":
            return in_words(self.node)
        return f"{'before' if self.must_come_first else 'after'} {self.other_key}"

    @functools.cached_property
    def sides(self) -> list[Code]:
        """Return functions that compute the sides of the check's comparison; empty if it is not a comparison.

            v['value'] == 5                   -> functions that return the event's value, and 5
            sorted(s['names']) == ['a', 'b']  -> functions that return s['names'] as it is, and ['a', 'b']

        `sorted` is dropped. It would raise an exception for a list of texts and numbers, and the caller only wants to
        show the list.
        """
        if not isinstance(self.node, ast.Compare):
            return []
        functions = []
        for side in (self.node.left, *self.node.comparators):
            # `sorted` would raise an exception for a list of texts and numbers, and the caller only shows the list.
            text_without_sorted = _SORTED_CALL.sub(r"\1", ast.unparse(side))
            functions.append(expression(text_without_sorted))
        return functions


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule of one key: how many events it must have, and what they must be.

    - `checks` must hold for each event, `first_check` for the first one, and `any_check` for at least one of them.
    - `code_after_checks` runs after the checks of each event, and changes the state.
    """

    key: str
    required: str  # the rule file's word for the number of events
    least: int  # number of events
    alternative_key: str | None  # the key that may take this one's place, by AT_LEAST_ONE_OR
    checks: Sequence[Check]
    first_check: Check | None
    any_check: Check | None
    code_after_checks: Sequence[Code]

    @property
    def count_in_words(self) -> str:
        """Return in words how many events there must be; empty if any number will do."""
        if self.required == "EXACTLY_ONE":
            return f"exactly one {self.key}"
        if self.alternative_key:
            return f"at least one {self.key} or {self.alternative_key}"
        if not self.least:
            return ""
        return f"at least {'one' if self.least == 1 else self.least} {self.key}"

    def describe(self) -> str:
        """Return in words what the rule asks for, such as `exactly one seed; a whole number`."""
        parts = [self.count_in_words, *(check.words for check in self.checks)]
        if self.first_check:
            parts.append(f"the first: {self.first_check.words}")
        if self.any_check:
            parts.append(f"one of them: {self.any_check.words}")
        asked = [part for part in parts if part]
        return "; ".join(asked) or "may be there"


@dataclass(frozen=True, kw_only=True)
class RuleFile:
    """The rules of one file by their keys. `begin` runs before the first event, `end` is checked after the last."""

    name: str
    rules: Mapping[str, Rule]
    begin: Sequence[Code]
    end: Sequence[Check]
    evaluation_field: str  # metadata that the metrics of one evaluation share; empty: metrics are not joined

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
    """Return the names of all rule files, `training_<version>/<name>.yaml`: mlperf-logging's and this project's."""
    theirs = []
    for path in _archive().namelist():
        folder, _, name = path.partition("/")
        if folder == "compliance_checker":
            theirs.append(name)
    ours = [str(path.relative_to(RULES)) for path in RULES.glob("training_*/*.yaml")]
    return frozenset([*theirs, *ours]) | _names_of_workloads()


def _names_of_workloads() -> frozenset[str]:
    """Return the names of our workloads' rule files for the open division, also of those made from WORKLOAD_RULES."""
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
    """Return the keys of events that the rules of `version` name for any benchmark.

    If a file of this version points to files of an older version, the keys of that version are included.
    """
    text = "".join(text_of(name) for name in files(version))
    named = set(re.findall(r"NAME:\s*(\w+)", text))
    older_versions = set(re.findall(r"training_([\d.]+)/", text)) - {version}
    for older in older_versions:
        named |= keys(older)
    return frozenset(named)


def reference_points(file: str, version: str) -> JsonObject:
    """Return the reference convergence points in `file` (rcps_BENCHMARK.json) of ruleset `version`, by name.

    Raises KeyError if mlperf-logging does not have such a file.
    """
    return dict(json.loads(_archive().read(f"rcp_checker/training_{version}/{file}")))


def archived_names() -> list[str]:
    """Return the paths within mlperf-logging's package of the files that the archive holds."""
    return _archive().namelist()


def archived(name: str) -> str:
    """Return the text of a file of mlperf-logging by its path in the package. Raises KeyError for another path."""
    return _archive().read(name).decode()


def text_of(name: str) -> str:
    """Return the text of a rule file. The first of these that exists is taken:

    - a file of this project
    - a file of mlperf-logging
    - for a workload of this project, WORKLOAD_RULES with the name of its benchmark filled in

    Raises KeyError if there is none.
    """
    ours = RULES / name
    if ours.is_file():
        return ours.read_text("utf-8")
    path_in_archive = f"compliance_checker/{name}"
    if path_in_archive not in _archive().namelist() and name in _names_of_workloads():
        benchmark = name.partition("/open_")[2].removesuffix(".yaml")
        return WORKLOAD_RULES.read_text("utf-8").replace("BENCHMARK", benchmark)
    return _archive().read(path_in_archive).decode()


def files(version: str) -> list[str]:
    """Return the names of the rule files of a ruleset's version."""
    return sorted(name for name in names() if name.startswith(f"training_{version}/"))


@functools.cache
def load(name: str) -> RuleFile:
    """Read the rule file `name`, such as training_4.0.0/common.yaml.

    KEY blocks are the rules of one key each. BEGIN is the code before the first event, and END has the checks after the
    last one. `evaluation_field` is the metadata field by whose values stable_diffusion joins its metrics; empty for
    other benchmarks.

    Raises ValueError for any other block or field, and if a rule refers to a key that has no rule.
    """
    rules: dict[str, Rule] = {}
    begin: Sequence[Code] = ()
    end: Sequence[Check] = ()
    evaluation_field = ""
    blocks = _blocks(name)
    key_by_state_name = _keys_that_set_state(blocks)
    for kind, fields in blocks:
        key = fields.get("NAME", kind)
        if kind == "KEY" and fields.keys() <= _FIELDS:
            rules[key] = _rule_of_block(name, fields, key_by_state_name)
        elif kind == "BEGIN" and fields.keys() == {"CODE"}:
            # We cannot run the BEGIN of stable_diffusion, which joins metrics. `evaluation_field` is kept in its place.
            evaluation_field = _field_that_joins_metrics(fields["CODE"])
            if not evaluation_field:
                begin = _parsed(statements, fields["CODE"], name, key)
        elif kind == "END" and fields.keys() == {"CHECK"}:
            end = _checks(name, key, fields["CHECK"], key_by_state_name)
        else:
            raise ValueError(f"{name}: {key}: no meaning for {fields!r:.200}")
    _check_alternative_keys(name, rules)
    return RuleFile(name=name, rules=rules, begin=begin, end=end, evaluation_field=evaluation_field)


def _check_alternative_keys(name: str, rules: Mapping[str, Rule]) -> None:
    """Raise ValueError if a rule of the file `name` has an alternative key without a rule."""
    unknown = {rule.alternative_key for rule in rules.values() if rule.alternative_key} - rules.keys()
    if unknown:
        raise ValueError(f"{name}: AT_LEAST_ONE_OR of {', '.join(unknown)}, which the file does not name")


def _blocks(name: str) -> list[tuple[str, JsonObject]]:
    """Return the blocks of a rule file, each as its kind and its fields."""
    blocks = yaml.load(text_of(name), Loader=_LOADER) or ()  # noqa: S506  it makes texts, lists and tables alone
    return [next(iter(block.items())) for block in blocks]


def _keys_that_set_state(blocks: Sequence[tuple[str, JsonObject]]) -> dict[str, str]:
    """Return for each name in the state, such as `run_started`, the key whose events set it or add to it.

    If the code of several keys sets a name, the last of these keys counts.
    """
    key_by_state_name = {}
    for _, fields in blocks:
        for state_name in re.findall(r"s\['(\w+)'\]\s*(?:= True|\+=)", fields.get("POST", "")):
            key_by_state_name[state_name] = fields["NAME"]
    return key_by_state_name


def _field_that_joins_metrics(code: str) -> str:
    """Return the metadata by which the code of a BEGIN joins the metrics of an evaluation; empty for other code."""
    lines = [line.partition("#")[0].rstrip() for line in code.splitlines()]
    text = "\n".join(line for line in lines if line)
    return _EVALUATION_FIELDS.get(zlib.crc32(text.encode()), "")


def _parsed(parse: Callable[[str], _Parsed], text: str, name: str, key: str) -> _Parsed:
    """Return the result of `parse`, called with a text in the block `key` of the rule file `name`.

    Raises ValueError if `parse` does not know the form of the text.
    """
    try:
        return parse(text)
    except SyntaxError:
        reason = f"mlperf-logging {VERSION} has no such form"
        raise ValueError(f"{name}: {key}: no meaning for {text.strip()!r}; {reason}") from None


def _rule_of_block(name: str, fields: JsonObject, key_by_state_name: Mapping[str, str]) -> Rule:
    """Return the rule in the `fields` of a KEY block of the rule file `name`:

    - NAME: the key.
    - REQ: the number of its events, as `_least_count` explains it. OPTIONAL if the field is missing.
    - CHECK: the checks of each event.
    - FIRST_CHECK: the check of the first event.
    - ATLEAST_ONE_CHECK: the check that at least one event must meet.
    - POST: the code that runs after the checks of an event.

    `key_by_state_name` has for each name in the state the key whose events set it. Raises ValueError for a text whose
    form is not known.
    """
    key = fields["NAME"]
    required = fields.get("REQ", "OPTIONAL")
    match = _REQUIRED_COUNT.fullmatch(required)
    if not match:
        raise ValueError(f"{name}: {key}: no meaning for {required!r}")
    number, alternative_key = match.groups()  # None if REQ does not have them
    checks = _checks(name, key, fields.get("CHECK", []), key_by_state_name)
    first_checks = _checks(name, key, fields.get("FIRST_CHECK", []), key_by_state_name)
    any_checks = _checks(name, key, fields.get("ATLEAST_ONE_CHECK", []), key_by_state_name)
    return Rule(
        key=key,
        required=required,
        least=_least_count(required, number),
        alternative_key=alternative_key,
        checks=checks,
        first_check=first_checks[0] if first_checks else None,  # no rule file has several of them
        any_check=any_checks[0] if any_checks else None,
        code_after_checks=_parsed(statements, fields.get("POST", ""), name, key),
    )


def _least_count(required: str, number: str | None) -> int:
    """Return the least number of events of a key. `required` is the REQ of its rule, and `number` the number in it.

    EXACTLY_ONE, AT_LEAST_ONE   -> 1
    AT_LEAST(3)                 -> 3
    OPTIONAL                    -> 0
    AT_LEAST_ONE_OR(other_key)  -> 0, because an event of the other key will do as well
    """
    if required in ("EXACTLY_ONE", "AT_LEAST_ONE"):
        return 1
    return int(number or 0)


def _checks(name: str, key: str, texts: str | list[str], key_by_state_name: Mapping[str, str]) -> list[Check]:
    """Return the checks of a field, which holds one text or a list of them. The arguments are as for `read_check`."""
    if isinstance(texts, str):
        texts = [texts]
    return [read_check(name, key, text, key_by_state_name) for text in texts]


# --- checks ---


def read_check(name: str, key: str, text: str, key_by_state_name: Mapping[str, str] = MappingProxyType({})) -> Check:
    """Parse `text`, the code of a check that the rule file `name` makes of the events of `key`.

    In the text, `v` is the event and `s` the state. `key_by_state_name` has for each name in the state the key
    whose events set it. For instance, if the events of run_start set `run_started`:

        s['run_started']      -> a check of order: this event comes after a run_start
        not s['run_started']  -> a check of order: this event comes before any run_start
        v['value'] > 0        -> a check of the value
        'file' in v['metadata'] -> a check of the metadata
        ll.timestamp < 9      -> a check of the time

    Raises ValueError if the form of the text is not known.
    """
    code = _parsed(expression, text, name, key)  # `expression` is the function that compiles the text
    node = ast.parse(text.strip(), mode="eval").body
    normal_text = ast.unparse(node)  # the expression with single quotes and normal blanks

    other_key = _key_that_sets_state(normal_text, key_by_state_name)
    order = re.fullmatch(r"(?P<negation>not )?s\['\w+'\](?: == True)?", normal_text)  # only a name of the state
    if other_key and order:
        must_come_first = order["negation"] is not None  # before the events of `other_key`
        return Check(node=node, code=code, aspect="order", other_key=other_key, must_come_first=must_come_first)
    return Check(node=node, code=code, aspect=_aspect(normal_text), other_key=other_key)


def _key_that_sets_state(expression_text: str, key_by_state_name: Mapping[str, str]) -> str:
    """Return the key whose events set the first known name of the state in an expression; empty if there is none."""
    for state_name in re.findall(r"s\['(\w+)'\]", expression_text):
        if state_name in key_by_state_name:
            return key_by_state_name[state_name]
    return ""


def _aspect(expression_text: str) -> str:
    """Return the part of an event that an expression looks at: time, metadata or value."""
    if "ll.timestamp" in expression_text:
        return "time"
    if "v['metadata']" in expression_text:
        return "metadata"
    return "value"
