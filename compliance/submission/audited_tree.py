"""Reads a results repository: of each submission the logs, checked one by one, its description and its factor."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from compliance.check import NOTHING, Report, check_file
from compliance.logged_run import is_number
from compliance.official.rule_files import versions
from compliance.rules import Finding, Ruleset, load
from compliance.submission import results_tree
from compliance.submission.description import read_description
from compliance.submission.results_tree import Owner, TreeFile
from runlog.json_types import JsonObject
from runlog.text import printable

NEWEST = "4.0.0"  # with rules of ResNet
T = TypeVar("T")


@dataclass
class Folder:
    """The logs of one SUBMITTER/results/SYSTEM/BENCHMARK, with what the tree holds of them."""

    name: PurePosixPath
    ruleset: Ruleset
    logs: list[Report] = field(default_factory=list)
    description: JsonObject = field(default_factory=dict)
    scaling: float | None = None  # of scaling.json
    owner: Owner = field(default_factory=lambda: Owner(round="", submitter="", system="", benchmark=""))
    other_form: set[str] = field(default_factory=set)  # logs of v0.5 and v0.6, which are not judged


@dataclass
class Tree:
    """The files of a results repository: its logs by their folder, its descriptions by name, its factors by folder.

    In the place of a file that cannot be read stands a text that says why.
    """

    folders: dict[PurePosixPath, Folder] = field(default_factory=dict)
    descriptions: dict[PurePosixPath, JsonObject | str] = field(default_factory=dict)
    scalings: dict[PurePosixPath, float | str] = field(default_factory=dict)


def read_tree(path: Path, ruleset: str | None) -> Tree:
    """Read the files of a results repository, a folder or a tar archive, and check each log by itself.

    `ruleset` is that of all logs. None takes the one of the round that a folder's name says, else NEWEST. Raises
    ValueError for an archive that cannot be read, and for another project's log of a round that no name says.
    """
    tree = Tree()
    load_once = functools.cache(load)  # the rules of each round are read once for the whole tree
    for file in results_tree.files_of(path):
        folder_name = file.name.parent
        if file.name.match(results_tree.SYSTEM):
            tree.descriptions[file.name] = _read_or_reason(read_description, file.content)
        elif file.name.match(results_tree.SCALING):
            tree.scalings[folder_name] = _read_or_reason(_read_scaling, file.content)
        else:
            version = ruleset or results_tree.ruleset_named(path, folder_name)
            if folder_name not in tree.folders:
                tree.folders[folder_name] = Folder(folder_name, load_once(version or NEWEST))
            _add_log(tree.folders[folder_name], file, path, known_round=version is not None)
    return tree


def _read_or_reason(read: Callable[[Path], T], content: Path | str) -> T | str:
    """Return what `read` makes of a file, or a text that says why it cannot be read.

    `content` is such a text already where the file could not be taken out of an archive.
    """
    try:
        return content if isinstance(content, str) else read(content)
    except (ValueError, OSError) as error:
        return printable(str(error))


def _add_log(folder: Folder, file: TreeFile, root: Path, *, known_round: bool) -> None:
    """Check a log of the tree `root` by the rules of its folder's round, and add the report to the folder.

    A log that cannot be read gets a report with a question to the submitter. A log of v0.5 or v0.6 has events of
    another form, so nothing is found in it: its name is noted in `folder.other_form`.

    `known_round` says whether a folder's name, or the user, gave the round. Raises ValueError where nothing did and the
    log is of another project, as nobody knows then by which rules to read it. Logs of this project are of no round.
    """
    checked = _read_or_reason(lambda path: check_file(path, folder.ruleset), file.content)
    if isinstance(checked, str):  # it says why the log cannot be read
        asked = question_for_submitter("log", checked, "ask for the log", severity="error")
        checked = Report(path=Path(), findings=(asked,))
    report = replace(checked, path=Path(file.name.name))

    holds_events = report.run is not NOTHING
    if not holds_events and results_tree.has_another_form(root, file):
        folder.other_form.add(file.name.name)
    needs_a_round = holds_events and not report.run.is_project_log
    if needs_a_round and not known_round:
        raise ValueError(
            f"{root}: of which round is {file.name}? No folder above it names one that has rules; give --ruleset, "
            f"one of {', '.join(versions())}"
        )
    folder.logs.append(report)


def _read_scaling(path: Path) -> float:
    """Return the factor in a scaling.json. Raises ValueError where it holds none."""
    factor: Any = read_description(path).get("scaling_factor")
    if not is_number(factor) or factor <= 0:
        raise ValueError(f"{path.name}: no scaling_factor above 0")
    return float(factor)


def find_description(folder: Folder, descriptions: Mapping[PurePosixPath, JsonObject | str]) -> Finding | None:
    """Set `folder.description` to the description of the submission's SYSTEM; return a question if that fails.

    `Dell/results/node_A100/resnet` -> `Dell/systems/node_A100.json`

    `descriptions` has all descriptions of the tree by their files, and a text in place of one that cannot be read. The
    question asks the submitter for the description where it is missing or such a text.

    Return None where it was set. Nothing is set or asked, too, where the tree has no description at all, or begins
    below SUBMITTER, so that the descriptions lie outside it.
    """
    begins_below_submitter = len(folder.name.parts) < 3  # the name is `node_A100/resnet` or less
    if not descriptions or begins_below_submitter:
        return None
    submitter = folder.name.parents[2]
    system = folder.name.parent.name
    file = submitter / "systems" / f"{system}.json"
    description_or_problem = descriptions.get(file, f"{file}: missing")
    if isinstance(description_or_problem, str):
        return question_for_submitter("system-description", description_or_problem, "ask for the description")
    folder.description = description_or_problem
    return None


def find_scaling(folder: Folder, scalings: Mapping[PurePosixPath, float | str]) -> Finding | None:
    """Set `folder.scaling` to the factor of the submission's scaling.json; return a question if it cannot be read.

    Without such a file the factor is None, and nothing is asked.
    """
    scaling_or_problem = scalings.get(folder.name)
    if isinstance(scaling_or_problem, str):
        fix = "ask for the factor that the review committee set"
        return question_for_submitter("scaling-file", scaling_or_problem, fix)
    folder.scaling = scaling_or_problem
    return None


def question_for_submitter(rule: str, actual: str, fix: str, *, severity: str = "warning") -> Finding:
    """Return a question to the submitter as a finding: what was seen (`actual`), and what to ask for (`fix`)."""
    return Finding(
        rule=rule,
        severity=severity,
        actual=actual,
        fix=fix,
        kind="plausibility",
        source="this project",
        official=severity == "error",
    )
