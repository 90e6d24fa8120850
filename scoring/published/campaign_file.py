"""A campaign's file, `campaigns/<name>.yaml`, read with each of its fields checked."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runlog import workloads
from runlog.json_types import JsonObject
from scoring.figure import protocols
from scoring.figure.protocols import Protocol
from scoring.record import InputError

NEEDED_FIELDS = ("workload", "protocol", "environment", "frameworks")
OPTIONAL_FIELDS = ("note",)
STEPS = ("PRINT_STEPS", "MEASURED_STEPS")  # variables that each campaign has
# Variables that a run gets by the report's figure or by the protocol. Another value would belie the name of the run.
DECIDED = frozenset(
    (
        *("WORKLOAD", "MODE", "NEXP", "DGXNNODES", "DGXNGPU", "BATCHSIZE", "PRECISION", "STRATEGY"),
        *("WARMUP_STEPS", "LOGDIR", "RESULT_FILE"),
    )
)


class CampaignFile(NamedTuple):
    """The fields of a campaign's file."""

    workload: str
    protocol: Protocol
    environment: dict[str, str]
    frameworks: list[str]
    note: str  # empty if there is none


class _LoaderOfUniqueKeys(yaml.SafeLoader):
    """A loader of YAML that refuses a table with the same key twice, of which the last would count without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a table of the file; raise an error if one of its keys is there twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):  # a list or a table, which the loader itself refuses
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read(path: Path) -> CampaignFile:
    """Return the fields of a campaign's file.

    Args:
        path: The file.

    Raises:
        InputError: The file is not YAML, or one of its fields is unknown, missing, given twice or wrong.
        OSError: The file, or that of its protocol, cannot be read.
    """
    try:
        return _checked(_table_of(path))
    except ValueError as error:
        text = " ".join(str(error).split())  # on one line
        raise InputError(f"{path}: not a campaign ({text}); see docs/campaigns.md for its fields") from error


def _table_of(path: Path) -> JsonObject:
    """Return the content of a YAML file that holds a table.

    Args:
        path: The file.

    Raises:
        ValueError: It is not YAML, or not a table.
        OSError: It cannot be read.
    """
    try:
        table = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=_LoaderOfUniqueKeys)  # noqa: S506  a safe loader
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"is not YAML: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(table, dict):
        raise ValueError("want lines such as `workload: rn50`")
    return table


def _checked(fields: JsonObject) -> CampaignFile:
    """Return the fields of a campaign's file after a check of each.

    Args:
        fields: The fields as YAML has them.

    Raises:
        ValueError: A field is unknown, missing or wrong.
        OSError: The file of the protocol cannot be read.
    """
    unknown = [str(name) for name in fields if name not in (*NEEDED_FIELDS, *OPTIONAL_FIELDS)]
    if unknown:
        raise ValueError(f"no field {', '.join(unknown)}; known are {', '.join((*NEEDED_FIELDS, *OPTIONAL_FIELDS))}")
    missing = [name for name in NEEDED_FIELDS if name not in fields]
    if missing:
        raise ValueError(f"the field {', '.join(missing)} is missing")

    workload = fields["workload"]
    if workload not in workloads.NAMES:
        raise ValueError(f"workload is {workload!r}; want one of {', '.join(workloads.NAMES)}")
    protocol = _protocol(fields["protocol"])
    environment = _environment(fields["environment"], protocol)
    note = fields.get("note", "")
    if not isinstance(note, str):
        raise ValueError(f"note is {note!r}; want a text")
    return CampaignFile(workload, protocol, environment, _frameworks(fields["frameworks"]), note)


def _protocol(name: object) -> Protocol:
    """Return the protocol that a campaign names, which must give a throughput by steps or printed rows.

    Args:
        name: The value of the field.

    Raises:
        ValueError: There is no such protocol, or it measures something else.
        OSError: Its file cannot be read.
    """
    if not isinstance(name, str):
        raise ValueError(f"protocol is {name!r}; want the name of one, such as dlperf")
    protocol = protocols.find(name)
    if protocol.figure != "throughput" or protocol.skip_unit == "epoch":
        raise ValueError(f"protocol {name} needs whole trainings; the runs of a campaign are a number of steps")
    return protocol


def _environment(table: object, protocol: Protocol) -> dict[str, str]:
    """Return the variables that a campaign gives each run, as texts.

    Args:
        table: The value of the field.
        protocol: The protocol of the campaign, which may take a number of steps.

    Raises:
        ValueError: It is not a table of variables, or one of them has a value that a run cannot be given.
    """
    if not isinstance(table, dict):
        raise ValueError(f"environment is {table!r}; want a table such as {{DATA: real, PRINT_STEPS: 10}}")
    environment = {str(name): _text_of_variable(str(name), value) for name, value in table.items()}
    for name in STEPS:
        if not re.fullmatch("[1-9][0-9]{0,8}", environment.get(name, "")):
            raise ValueError(f"environment: {name} is {environment.get(name)!r}; want a whole number over 0")
    measured = int(environment["MEASURED_STEPS"])
    if protocol.take_steps is not None and measured < protocol.take_steps:
        raise ValueError(
            f"environment: MEASURED_STEPS is {measured}; the protocol {protocol.name} takes {protocol.take_steps}"
        )
    return environment


def _text_of_variable(name: str, value: object) -> str:
    """Return the value of an environment variable as text.

    Args:
        name: Name of the variable.
        value: Its value as YAML has it: a text or a whole number.

    Raises:
        ValueError: The name is none, or of a variable that a campaign does not decide; or the value is of another type
            or has a space, at which launch/campaign.sh would split it.
    """
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"environment: {name} is not a name of a variable")
    if name in DECIDED:
        raise ValueError(f"environment: {name} follows from the report or the protocol: leave it out")
    is_number = isinstance(value, int) and not isinstance(value, bool)  # YAML's `yes` is True, which is an int
    if not isinstance(value, str) and not is_number:
        raise ValueError(f"environment: {name} is {value!r}; want a text or a whole number (in quotes if it is a word)")
    text = str(value)
    if re.search(r"\s", text) or not text.isprintable():
        raise ValueError(f"environment: {name} is {text!r}; want it without spaces")
    return text


def _frameworks(names: object) -> list[str]:
    """Return the frameworks whose figures a campaign shows.

    Args:
        names: The value of the field.

    Raises:
        ValueError: It is not a list of names, or has one twice.
    """
    if not isinstance(names, list) or not names:
        raise ValueError("frameworks is not a list of names")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"frameworks has {name!r}; want a list of names")
        if names.count(name) > 1:
            raise ValueError(f"frameworks has {name} twice")
    return names
