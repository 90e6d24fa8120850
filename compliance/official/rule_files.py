"""mlperf-logging's own rule files, parsed: what each asks of the events of a key.

The files of its release 4.1.68 lie unchanged, with their licence, in one archive in the folder of our rules: a verdict
needs no installed package and does not change with one. FCN-HRNetW18 is not a benchmark of MLPerf: it has files of ours
in the same language.
"""

import functools
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from compliance.official.checks import Check, KeyByStateName, WantedNames, read_check, read_wanted_names
from compliance.official.language import Statement, compile_statements
from runlog.json_types import JsonObject
from runlog.workloads import WORKLOADS

RULES = Path(__file__).parents[1] / "rules"
WORKLOAD_RULES = RULES / "open_workload.yaml"  # for a workload of ours that has no file
WORKLOAD_RULESET = "4.0.0"
VERSION = "4.1.68"  # of mlperf-logging
ARCHIVE = RULES / f"mlperf_logging_{VERSION}.zip"
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_FIELDS_OF_KEY = {"NAME", "REQ", "CHECK", "FIRST_CHECK", "ATLEAST_ONE_CHECK", "POST"}
# The BEGIN of stable_diffusion joins the metrics of an evaluation, in Python code that is not run here. Each known
# version of this code is told by its CRC-32, without comments. The name of the metadata by which it joins them:
_JOINING_FIELD_BY_CRC = {0x9193B33E: "samples_count", 0x97C23FA3: "step_num"}


class RequiredCount(NamedTuple):
    """The number of events that a key must have: at least `least`, or exactly as many if `is_exact`."""

    least: int
    is_exact: bool = False
    alternative_key: str | None = None  # an event of this key will do, too


class Rule(NamedTuple):
    """The rule of one key: how many events it must have, and what they must be.

    - `checks` must hold for each event, `first_check` for the first one, and `at_least_one_check` for any one of them.
    - `code_after_checks` runs after the checks of each event, and changes the state.
    """

    key: str
    required: RequiredCount
    checks: Sequence[Check]
    first_check: Check | None
    at_least_one_check: Check | None
    code_after_checks: Sequence[Statement]

    @property
    def count_in_words(self) -> str:
        """Return in words how many events there must be; empty if any number will do."""
        required = self.required
        if required.is_exact:
            return f"exactly one {self.key}"
        if required.alternative_key is not None:
            return f"at least one {self.key} or {required.alternative_key}"
        if required.least == 0:
            return ""
        if required.least == 1:
            return f"at least one {self.key}"
        return f"at least {required.least} {self.key}"

    def describe(self) -> str:
        """Return in words what the rule asks for, such as `exactly one seed; a whole number`."""
        parts = [self.count_in_words, *(check.words for check in self.checks)]
        if self.first_check:
            parts.append(f"the first: {self.first_check.words}")
        if self.at_least_one_check:
            parts.append(f"one of them: {self.at_least_one_check.words}")
        wanted = [part for part in parts if part]
        return "; ".join(wanted) or "may be there"


class RuleFile(NamedTuple):
    """The rules of one file by their keys.

    `begin` runs before the first event. `wanted_names` are looked at after the last one.
    """

    name: str
    rules: Mapping[str, Rule]
    begin: Sequence[Statement]
    wanted_names: Sequence[WantedNames]
    joining_field: str | None  # metadata by which the metrics of an evaluation are joined; None: they are not joined

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


def numbers_of_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, by which versions are ordered: 4.1.0 -> (4, 1, 0)."""
    return tuple(map(int, version.split(".")))


def benchmarks(version: str) -> list[str]:
    """Return the benchmarks that have rules in both divisions, closed and open.

    Args:
        version: The version of the ruleset, such as 4.0.0.
    """
    in_closed = _benchmarks_of(version, "closed")
    in_open = _benchmarks_of(version, "open")
    return sorted((in_closed & in_open) - {"common"})


def _benchmarks_of(version: str, division: str) -> set[str]:
    """Return the names of the benchmarks that have a rule file in a division; "common" is one of them.

    Args:
        version: The version of the ruleset, such as 4.0.0.
        division: "closed" or "open".
    """
    return set(re.findall(rf"/{division}_(\w+)\.yaml", " ".join(files(version))))


@functools.cache
def keys(version: str) -> frozenset[str]:
    """Return the keys of events that the rules of a version name for any benchmark.

    Files may point to files of an older version, whose keys are included.

    Args:
        version: The version of the ruleset, such as 4.0.0.
    """
    text = "".join(text_of(name) for name in files(version))
    named = set(re.findall(r"NAME:\s*(\w+)", text))
    older_versions = set(re.findall(r"training_([\d.]+)/", text)) - {version}
    for older in older_versions:
        named |= keys(older)
    return frozenset(named)


def reference_points(file: str, version: str) -> JsonObject:
    """Return the reference convergence points of a benchmark in a ruleset, by name.

    Args:
        file: The name of mlperf-logging's file, such as rcps_resnet.json.
        version: The version of the ruleset, such as 4.0.0.

    Raises:
        KeyError: mlperf-logging does not have such a file.
    """
    return dict(json.loads(_archive().read(f"rcp_checker/training_{version}/{file}")))


def archived(name: str) -> str:
    """Return the text of a file of mlperf-logging.

    Args:
        name: Its path in the package, such as "benchmark_meta.py".

    Raises:
        KeyError: The archive has no such file.
    """
    return _archive().read(name).decode()


def text_of(name: str) -> str:
    """Return the text of a rule file, from the first of these sources that has it:

    1. a file of this project
    2. a file of mlperf-logging
    3. WORKLOAD_RULES, for the open division of one of our workloads in WORKLOAD_RULESET. The name of its benchmark
       replaces the word BENCHMARK.

    Args:
        name: The name of the rule file, such as training_4.0.0/common.yaml.

    Raises:
        KeyError: There is no rule file of this name.
    """
    file_of_ours = RULES / name
    if file_of_ours.is_file():
        return file_of_ours.read_text("utf-8")
    path_in_archive = f"compliance_checker/{name}"
    if path_in_archive in _archive().namelist():
        return archived(path_in_archive)
    if name in _names_of_workloads():  # such as training_4.0.0/open_my_workload.yaml
        benchmark = name.partition("/open_")[2].removesuffix(".yaml")
        return WORKLOAD_RULES.read_text("utf-8").replace("BENCHMARK", benchmark)
    raise KeyError(name)


def files(version: str) -> list[str]:
    """Return the names of the rule files of a version, such as training_4.0.0/common.yaml.

    Args:
        version: The version of the ruleset, such as 4.0.0.
    """
    return sorted(name for name in names() if name.startswith(f"training_{version}/"))


# --- reading a file ---


@functools.cache
def load(name: str) -> RuleFile:
    """Return the rules in a rule file. The file is read once, then cached.

    A file is a list of blocks of three kinds. If several have the same key, or are BEGIN, or are END, the last counts:

        KEY      the rule for the events of one key
        BEGIN    code that runs before the first event
        END      the names that all events of a key together must list, such as those of a model's tensors

    Args:
        name: The name of the file, such as training_4.0.0/common.yaml.

    Raises:
        KeyError: There is no file of this name.
        ValueError: The file has an unknown form, or a rule names an alternative key that has no rule in the file.
    """
    rules: dict[str, Rule] = {}
    begin = _Begin(statements=(), joining_field=None)
    wanted_names: Sequence[WantedNames] = ()
    blocks = _blocks(name)
    # As {"run_started": "run_start"}. Of all blocks first, because a check may stand above the code that sets the name.
    key_by_state_name = _keys_that_set_state(blocks)
    for block in blocks:
        if block.kind == "KEY":
            rules[block.title] = _read_rule(block, key_by_state_name)
        elif block.kind == "BEGIN":
            begin = _read_begin(block)
        else:  # END
            wanted_names = _read_end(block, key_by_state_name)
    _check_alternative_keys(name, rules)
    return RuleFile(
        name=name,
        rules=rules,
        begin=begin.statements,
        wanted_names=wanted_names,
        joining_field=begin.joining_field,
    )


def _check_alternative_keys(name: str, rules: Mapping[str, Rule]) -> None:
    """Raise an error if a rule of a file names an alternative key that has no rule in the file.

    A rule with `REQ: AT_LEAST_ONE_OR(other_key)` asks for an event of its own key or of the other one. The events of
    the other key are only counted if it has a rule.

    Args:
        name: The name of the file, for the message.
        rules: The rules by their keys.

    Raises:
        ValueError: An alternative key has no rule.
    """
    alternative_keys = {rule.required.alternative_key for rule in rules.values()}
    unknown = [key for key in alternative_keys if key is not None and key not in rules]
    if unknown:
        raise ValueError(f"{name}: AT_LEAST_ONE_OR of {', '.join(unknown)}, which the file does not name")


class _Block(NamedTuple):
    """A block of a rule file: its kind (KEY, BEGIN or END) and its fields."""

    file: str
    kind: str
    fields: JsonObject

    @property
    def title(self) -> str:
        """Return the key that the block is about; its kind if it is about none."""
        return str(self.fields.get("NAME", self.kind))

    def error(self, text: object) -> ValueError:
        """Return the error that a text in the block, or the block itself, has no meaning that is known.

        Args:
            text: The text, or the fields of the block.
        """
        return ValueError(f"{self.file}: {self.title}: no meaning for {text!r:.200}")

    def unknown_form(self, text: str) -> ValueError:
        """Return the error that an expression or a statement in the block has a form that is not known.

        Args:
            text: The expression or the statement.
        """
        reason = f"mlperf-logging {VERSION} has no such form"
        return ValueError(f"{self.file}: {self.title}: no meaning for {text.strip()!r}; {reason}")


def _blocks(name: str) -> list[_Block]:
    """Return the blocks of a rule file in their order.

    Args:
        name: The name of the file, such as training_4.0.0/common.yaml.

    Raises:
        ValueError: A block is not of the kind KEY, BEGIN or END, has a field that its kind does not have, or lacks the
            one field of BEGIN or END.
    """
    blocks = []
    for table in yaml.load(text_of(name), Loader=_LOADER) or ():  # noqa: S506  it makes texts, lists and tables alone
        [(kind, fields)] = table.items()  # such as {"KEY": {"NAME": "run_start", ...}}
        block = _Block(name, kind, fields)
        if not _has_known_form(block):
            raise block.error(fields)
        blocks.append(block)
    return blocks


def _has_known_form(block: _Block) -> bool:
    """Return whether a block is of the kind KEY, BEGIN or END, and has the fields of its kind.

    Args:
        block: A block of a rule file.
    """
    names_of_fields = block.fields.keys()
    if block.kind == "KEY":
        return names_of_fields <= _FIELDS_OF_KEY
    if block.kind == "BEGIN":
        return names_of_fields == {"CODE"}
    return block.kind == "END" and names_of_fields == {"CHECK"}


def _keys_that_set_state(blocks: Sequence[_Block]) -> KeyByStateName:
    """Return for each name in the state `s` that a rule sets to True or adds to, the key of the rule's events.

    So a check of s['run_started'] is known to ask for an event run_start. For instance, two KEY blocks give:

        NAME: run_start                 POST: s['run_started'] = True
        NAME: weights_initialization    POST: s['initialized_tensors'] += [...]
        -> {"run_started": "run_start", "initialized_tensors": "weights_initialization"}

    Args:
        blocks: All blocks of a rule file. If several keys change the same name, the last one counts.
    """
    key_by_state_name = {}
    for block in blocks:
        code_after_checks = block.fields.get("POST", "")
        # Finds "run_started" in a code such as: s['run_started'] = True
        changed_names = re.findall(r"s\['(\w+)'\]\s*(?:= True|\+=)", code_after_checks)
        for state_name in changed_names:
            key_by_state_name[state_name] = block.title  # the title of a block is its key
    return key_by_state_name


class _Begin(NamedTuple):
    """The work before the first event: statements to run, or metrics to join by a field of their metadata.

    `joining_field` is None if no metrics are joined. If it is not, there are no statements.
    """

    statements: Sequence[Statement]
    joining_field: str | None


def _read_begin(block: _Block) -> _Begin:
    """Return what the BEGIN block of a rule file does before the first event: it sets values, or joins metrics.

    Args:
        block: The block.

    Raises:
        ValueError: The code does not join metrics, and has a statement of an unknown form.
    """
    code: str = block.fields["CODE"]
    # In the files of stable_diffusion, the code joins the metrics of each evaluation. This code is not run here, and
    # cannot be compiled: `join_metrics` does the same. It needs only the field by which the code joins.
    joining_field = _field_by_which_code_joins_metrics(code)
    if joining_field is not None:
        return _Begin(statements=(), joining_field=joining_field)
    statements = _compiled_code(block, code)
    return _Begin(statements=statements, joining_field=None)


def _field_by_which_code_joins_metrics(code: str) -> str | None:
    """Return the field of metadata by which the code of stable_diffusion joins metrics; None for any other code.

    Args:
        code: The code of a BEGIN block. It is known by the CRC-32 of its lines without comments.
    """
    lines = [line.partition("#")[0].rstrip() for line in code.splitlines()]
    code_without_comments = "\n".join(line for line in lines if line)
    checksum = zlib.crc32(code_without_comments.encode())
    return _JOINING_FIELD_BY_CRC.get(checksum)


def _read_end(block: _Block, key_by_state_name: KeyByStateName) -> list[WantedNames]:
    """Read the checks in the END block of a rule file: each says which names the events of a key must list.

    For instance, each event weights_initialization adds a name to a list in the state `s`, and this check is made after
    the last event:

        sorted(s['initialized_tensors']) == sorted(['conv0_weight', 'conv0_bias'])
        -> WantedNames("weights_initialization", "initialized_tensors", ["conv0_weight", "conv0_bias"])

    Args:
        block: The block.
        key_by_state_name: For each name in `s`, the key of the events that set it, such as
            {"initialized_tensors": "weights_initialization"}.

    Returns:
        The wanted names of each check.

    Raises:
        ValueError: A check has an unknown form, or is about a list that is missing in `key_by_state_name`.
    """
    wanted_names = []
    for text in _as_list(block.fields["CHECK"]):
        try:
            wanted_names.append(read_wanted_names(text, key_by_state_name))
        except SyntaxError:
            raise block.unknown_form(text) from None
    return wanted_names


def _read_rule(block: _Block, key_by_state_name: KeyByStateName) -> Rule:
    """Return the rule that a KEY block states, with its checks and its code compiled.

        NAME:  run_start                               the key
        REQ:   EXACTLY_ONE                             how many events there must be
        CHECK: " ( s['init_stopped'] == True ) "       must hold for each event: here, it comes after an init_stop
        POST:  " s['run_started'] = True "             code that runs after the checks

    Only NAME must be there.

    Args:
        block: The block.
        key_by_state_name: For each name in the state `s`, such as init_stopped, the key whose events set it, such as
            init_stop.

    Raises:
        ValueError: A text has a form that is not known. The message names the file and the block.
    """
    checks = [_check_in_block(block, text, key_by_state_name) for text in _as_list(block.fields.get("CHECK", []))]
    return Rule(
        key=block.title,
        required=_read_required_count(block),
        checks=checks,
        first_check=_check_or_none(block, "FIRST_CHECK", key_by_state_name),
        at_least_one_check=_check_or_none(block, "ATLEAST_ONE_CHECK", key_by_state_name),
        code_after_checks=_compiled_code(block, block.fields.get("POST", "")),
    )


def _check_or_none(block: _Block, field: str, key_by_state_name: KeyByStateName) -> Check | None:
    """Return the check in a field of a block; None if the block does not have the field.

    Args:
        block: The block.
        field: The field, such as "FIRST_CHECK", which has the text of one check.
        key_by_state_name: For each name in the state `s`, the key whose events set it.

    Raises:
        ValueError: The form of the check is not known.
    """
    if field not in block.fields:
        return None
    return _check_in_block(block, block.fields[field], key_by_state_name)


def _check_in_block(block: _Block, text: str, key_by_state_name: KeyByStateName) -> Check:
    """Return the check that a text of a block states.

    Args:
        block: The block, which the message of an error names.
        text: The text, such as "v['value'] > 0".
        key_by_state_name: For each name in the state `s`, the key whose events set it.

    Raises:
        ValueError: The form of the check is not known.
    """
    try:
        return read_check(text, key_by_state_name)
    except SyntaxError:
        raise block.unknown_form(text) from None


def _compiled_code(block: _Block, code: str) -> Sequence[Statement]:
    """Return the statements of a code in a block.

    Args:
        block: The block, which the message of an error names.
        code: The code, such as "s['run_started'] = True"; empty for no statements.

    Raises:
        ValueError: The form of a statement is not known.
    """
    try:
        return compile_statements(code)
    except SyntaxError:
        raise block.unknown_form(code) from None


def _as_list(texts: str | list[str]) -> list[str]:
    """Return the texts of a field, which holds one text or a list of them."""
    return [texts] if isinstance(texts, str) else texts


def _read_required_count(block: _Block) -> RequiredCount:
    """Return the number of events that the field REQ of a KEY block asks for; any number without the field.

    Args:
        block: The block, whose REQ is, for instance, EXACTLY_ONE or AT_LEAST(2).

    Raises:
        ValueError: The text of the field has no known meaning.
    """
    text = block.fields.get("REQ", "OPTIONAL")
    if text == "EXACTLY_ONE":
        return RequiredCount(least=1, is_exact=True)
    if text == "AT_LEAST_ONE":
        return RequiredCount(least=1)
    if text == "OPTIONAL":
        return RequiredCount(least=0)
    at_least = re.fullmatch(r"AT_LEAST\((?P<number>\d+)\)", text)
    if at_least:
        return RequiredCount(least=int(at_least["number"]))
    at_least_one_or = re.fullmatch(r"AT_LEAST_ONE_OR\((?P<other_key>\w+)\)", text)
    if at_least_one_or:  # none is needed if the other key has an event
        return RequiredCount(least=0, alternative_key=at_least_one_or["other_key"])
    raise block.error(text)
