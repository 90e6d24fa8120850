"""Reads a results repository: of each submission the logs, checked one by one, its description and its factor."""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from compliance.check import Report, check_file
from compliance.logged_run import NOTHING, is_number
from compliance.official.rule_files import versions
from compliance.rules import Finding, Ruleset, load
from compliance.submission import results_tree
from compliance.submission.description import read_description, read_object
from compliance.submission.results_tree import Owner, TreeFile, Unreadable
from runlog import schema
from runlog.json_types import JsonObject
from runlog.text import printable

NEWEST = "4.0.0"  # with rules of ResNet
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The logs of one SUBMITTER/results/SYSTEM/BENCHMARK, each checked by itself, with what the tree says of them."""

    name: PurePosixPath
    ruleset: Ruleset
    logs: Sequence[Report]
    logs_of_old_form: frozenset[str]  # names of the logs of v0.5 and v0.6, which are not judged
    owner: Owner
    round_number: str  # such as "4.0"; empty if no name above `results` has one
    description: JsonObject  # of the system; empty if there is none that can be read
    scaling: float | None  # of scaling.json; None if there is none that can be read
    questions: Sequence[Finding]  # about the description and the scaling.json


class _CheckedLog(NamedTuple):
    """The report on a log of the tree, and whether the log is of v0.5 or v0.6, whose events have another form."""

    report: Report
    is_of_old_form: bool


@dataclass(frozen=True, kw_only=True)
class _Files:
    """The files of a tree: its logs by their folder, its descriptions by their path, its factors by their folder."""

    logs: defaultdict[PurePosixPath, list[_CheckedLog]] = field(default_factory=lambda: defaultdict(list))
    rulesets: dict[PurePosixPath, Ruleset] = field(default_factory=dict)  # of the folders with logs
    descriptions: dict[PurePosixPath, JsonObject | Unreadable] = field(default_factory=dict)
    scalings: dict[PurePosixPath, float | Unreadable] = field(default_factory=dict)


def read_tree(path: Path, ruleset: str | None) -> list[Folder]:
    """Read a results repository of MLPerf, check each log by itself, and return its folders with logs.

    Args:
        path: Folder or tar archive of the repository.
        ruleset: Version of the rules for all logs, such as 4.0.0. None: that of the round in a folder's name, such as
            `training_results_v4.0`.

    Returns:
        The folders, sorted by name.

    Raises:
        ValueError: An archive is damaged, or the rules for a log are not known.
        OSError: `path` does not exist.
    """
    files = _read_files(path, ruleset)
    return [_complete_folder(name, files, path) for name in sorted(files.logs)]


def _read_files(root: Path, wanted_version: str | None) -> _Files:
    """Read the logs, system descriptions and scaling factors of a results repository, and check each log.

    Args:
        root: Folder or tar archive of the repository.
        wanted_version: Version of the rules for all logs, such as 4.0.0; None for that of each log's round.

    Returns:
        The checked logs and their rules by folder, the descriptions by path, and the factors by folder. A description
        or factor that cannot be read has the reason in its place.

    Raises:
        ValueError: An archive is damaged, there are no rules for the version, or the round of a log of another project
            is not known.
        OSError: `root` does not exist.
    """
    files = _Files()
    load_once = functools.cache(load)  # the rules of each round are read once for the whole tree
    for file in results_tree.files_of(root):
        folder = file.name.parent
        if file.name.match(results_tree.SYSTEM):
            files.descriptions[file.name] = _read(read_description, file.content)
        elif file.name.match(results_tree.SCALING):
            files.scalings[folder] = _read(_read_scaling, file.content)
        else:
            version_of_log = wanted_version or results_tree.ruleset_named(root, folder)  # None: neither is known
            ruleset = load_once(version_of_log or NEWEST)  # NEWEST is for logs of this project, which name no round
            log = _check_log(file, ruleset, root)
            if version_of_log is None and _is_of_other_project(log.report):
                raise ValueError(_question_about_round(file, root))
            files.rulesets[folder] = ruleset
            files.logs[folder].append(log)
    return files


def _complete_folder(name: PurePosixPath, files: _Files, root: Path) -> Folder:
    """Return a folder of logs of a results repository, with its owner, system description and scaling factor.

    Args:
        name: Path of the folder in the repository.
        files: The files of the repository.
        root: Folder or tar archive of the repository.

    Returns:
        The folder. If the description or the factor cannot be read, it has a question for the submitter instead.
    """
    logs = files.logs[name]
    reports = [log.report for log in logs]
    described = _describe(name, files.descriptions)
    scaled = _factor_or_question(files.scalings.get(name))
    questions = (described.question, scaled.question)
    return Folder(
        name=name,
        ruleset=files.rulesets[name],
        logs=reports,
        logs_of_old_form=frozenset(log.report.path.name for log in logs if log.is_of_old_form),
        owner=results_tree.owner_of(root, name, _stated_organisation(reports)),
        round_number=results_tree.round_named(root, name),
        description=described.description,
        scaling=scaled.factor,
        questions=[question for question in questions if question is not None],
    )


def _read(read: Callable[[Path], T], content: Path | Unreadable) -> T | Unreadable:
    """Return what a function makes of a file; if the file cannot be read, the reason.

    Args:
        read: Reads a file by its path. It raises ValueError or OSError if it cannot.
        content: Path of the file, or the reason why it could not be taken out of its archive.
    """
    if isinstance(content, Unreadable):  # it could not be taken out of its archive
        return content
    try:
        return read(content)
    except (ValueError, OSError) as error:
        return Unreadable(reason=printable(str(error)))


# --- logs ---


def _check_log(file: TreeFile, ruleset: Ruleset, root: Path) -> _CheckedLog:
    """Return the report on a log, and whether the log has the old form of MLPerf v0.5 and v0.6.

    Args:
        file: The log, by its path in the results repository.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        root: Folder or tar archive of the repository.

    Returns:
        The report, whose path is the name of the log without folders, and whether the log has the old form. If the log
        cannot be read, the only finding of the report is a question, which asks the submitter for the log.
    """
    name = Path(file.name.name)
    checked = _read(functools.partial(check_file, ruleset=ruleset), file.content)
    if isinstance(checked, Unreadable):
        question = question_for_submitter("log", checked.reason, "ask for the log", severity="error")
        report = Report(path=name, findings=(question,), run=NOTHING)
    else:
        report = replace(checked, path=name)
    has_no_events = report.run is NOTHING  # the events of a log of the old form are never read
    is_of_old_form = has_no_events and results_tree.is_of_old_form(root, file)
    return _CheckedLog(report, is_of_old_form)


def _is_of_other_project(report: Report) -> bool:
    """Return whether a log has events, and nothing in it shows that this project wrote it."""
    has_events = report.run is not NOTHING
    return has_events and not report.run.is_project_log


def _question_about_round(file: TreeFile, root: Path) -> str:
    """Return the message that the round of a log is not known, which asks for --ruleset.

    Args:
        file: The log, by its path in the repository.
        root: Folder or tar archive of the repository.
    """
    return (
        f"{root}: of which round is {file.name}? No folder above it names one that has rules; give --ruleset, "
        f"one of {', '.join(versions())}"
    )


def _stated_organisation(logs: Sequence[Report]) -> str:
    """Return the organisation in the first log that states one; empty if none does."""
    for report in logs:
        stated = report.run.stated_text(schema.SUBMISSION_ORG)
        if stated:
            return stated
    return ""


# --- the description of the system ---


class _Described(NamedTuple):
    """The description of a submission's system, or an empty one and the question that asks for it if there is one."""

    description: JsonObject
    question: Finding | None


def _describe(folder: PurePosixPath, descriptions: Mapping[PurePosixPath, JsonObject | Unreadable]) -> _Described:
    """Return the description of a submission's system; if it is missing or unreadable, the question to ask.

    Args:
        folder: Path of the submission's folder in the tree.
        descriptions: Each description in the tree, or the reason why it cannot be read, by its path.

    Returns:
        The description, empty if there is none; and the question, None if nothing is asked.
    """
    path = results_tree.path_of_description(folder)
    if not descriptions or path is None:  # the tree may be only a part of a repository, without this description
        return _Described(description={}, question=None)
    found = descriptions.get(path, Unreadable(reason=f"{path}: missing"))
    if isinstance(found, Unreadable):
        question = question_for_submitter("system-description", found.reason, "ask for the description")
        return _Described(description={}, question=question)
    return _Described(description=found, question=None)


# --- the factor of scaling.json ---


class _Scaled(NamedTuple):
    """The factor of a scaling.json, or None and, if the file cannot be read, the question about it."""

    factor: float | None
    question: Finding | None


def _factor_or_question(found: float | Unreadable | None) -> _Scaled:
    """Return the factor of a submission's scaling.json or, if the file cannot be read, a question for the submitter.

    The submission's minutes are multiplied by the factor.

    Args:
        found: The factor, or the reason why the file cannot be read; None if there is no such file.
    """
    if isinstance(found, Unreadable):
        fix = "ask for the factor that the review committee set"
        return _Scaled(None, question_for_submitter("scaling-file", found.reason, fix))
    return _Scaled(found, None)


def _read_scaling(path: Path) -> float:
    """Return the factor in a scaling.json.

    Args:
        path: Path of the file.

    Raises:
        ValueError: The file has no factor above 0, or cannot be read as a JSON object.
        OSError: The file cannot be opened.
    """
    factor: Any = read_object(path, "a factor file").get("scaling_factor")
    if not is_number(factor) or factor <= 0:
        raise ValueError(f"{path.name}: no scaling_factor above 0")
    return float(factor)


def question_for_submitter(rule: str, actual: str, fix: str, *, severity: str = "warning") -> Finding:
    """Return a question to the submitter of a result, in the form of a finding of the check of a log.

    Args:
        rule: Name of the rule, such as "system-description".
        actual: What was seen.
        fix: What to ask for.
        severity: "warning", "info" or "error". With "error", the log also fails the official verdict.
    """
    return Finding(
        rule=rule,
        severity=severity,
        actual=actual,
        fix=fix,
        kind="plausibility",
        source="this project",
        official=severity == "error",
    )
