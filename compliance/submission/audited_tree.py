"""Reads a results repository: of each submission the logs, checked one by one, its description and its factor."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from compliance.check import Report, check_file
from compliance.logged_run import NOTHING, is_number
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

    @property
    def top_name(self) -> str:
        """Return the first name of the folder's path, which is the round in a tree of several rounds.

        Empty for logs that lie in the root of the tree.
        """
        return self.name.parts[0] if self.name.parts else ""


@dataclass
class Tree:
    """The files of a results repository: its logs by their folder, its descriptions by name, its factors by folder.

    A file that cannot be read is represented by a text that says why.
    """

    folders: dict[PurePosixPath, Folder] = field(default_factory=dict)
    descriptions: dict[PurePosixPath, JsonObject | str] = field(default_factory=dict)
    scalings: dict[PurePosixPath, float | str] = field(default_factory=dict)


def read_tree(path: Path, ruleset: str | None) -> Tree:
    """Read a results repository, a folder or a tar archive, and check each of its logs by itself.

    `ruleset` is the version of the rules for all logs. None: for each log, the ruleset of the round that a folder's
    name gives (`training_results_v4.0`), or NEWEST if no name gives one.

    Raises ValueError if an archive cannot be read, or if a log of another project is in no folder that names its round
    and `ruleset` is None.
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
            _add_log(tree.folders[folder_name], file, path, is_round_known=version is not None)
    return tree


def _read_or_reason(read: Callable[[Path], T], content: Path | str) -> T | str:
    """Return what `read` makes of a file, or a text that says why it cannot be read.

    `content` is the file. If the file could not be taken out of an archive, `content` already is such a text.
    """
    try:
        return content if isinstance(content, str) else read(content)
    except (ValueError, OSError) as error:
        return printable(str(error))


def _add_log(folder: Folder, file: TreeFile, root: Path, *, is_round_known: bool) -> None:
    """Check a log of the tree `root` by the ruleset of its folder, and add the report to `folder.logs`.

    - A log of v0.5 or v0.6, whose events cannot be read: its name is also added to `folder.other_form`.
    - A log of another project, and the round is not known: ValueError is raised, because the log's rules are unknown. A
      log of this project belongs to no round and needs none.

    `is_round_known` is true if the user or a folder's name gave the round.
    """
    report = _check_or_ask(file, folder.ruleset)
    has_events = report.run is not NOTHING
    if not has_events and results_tree.has_another_form(root, file):
        folder.other_form.add(report.path.name)
    is_of_other_project = has_events and not report.run.is_project_log
    if is_of_other_project and not is_round_known:
        raise ValueError(
            f"{root}: of which round is {file.name}? No folder above it names one that has rules; give --ruleset, "
            f"one of {', '.join(versions())}"
        )
    folder.logs.append(report)


def _check_or_ask(file: TreeFile, ruleset: Ruleset) -> Report:
    """Return the report on a log of the tree. The path in the report is only the log's name, without its folders.

    If the log cannot be read, the only finding is a question to the submitter.
    """

    def check(log: Path) -> Report:
        return check_file(log, ruleset)

    path = Path(file.name.name)
    # The content is a path whose bytes `check` reads: a file on disk, or one of an archive that is held in memory. If
    # it could not be taken out of the archive, it is a text that says why.
    report_or_problem = _read_or_reason(check, file.content)
    if isinstance(report_or_problem, str):
        question = question_for_submitter("log", report_or_problem, "ask for the log", severity="error")
        return Report(path=path, findings=(question,))
    return replace(report_or_problem, path=path)


def _read_scaling(path: Path) -> float:
    """Return the factor in a scaling.json. Raises ValueError if it has none above 0."""
    factor: Any = read_description(path).get("scaling_factor")
    if not is_number(factor) or factor <= 0:
        raise ValueError(f"{path.name}: no scaling_factor above 0")
    return float(factor)


def set_description_or_ask(folder: Folder, descriptions: Mapping[PurePosixPath, JsonObject | str]) -> Finding | None:
    """Set `folder.description` to the description of the submission's system; return a question if there is none.

    The path of a submission's folder gives the path of its description:

    - `v1.1/Dell/results/node_A100/resnet` -> `v1.1/Dell/systems/node_A100.json`
    - `results/node_A100/resnet` (the tree begins at Dell) -> `systems/node_A100.json`
    - `node_A100/resnet` (the tree begins at results) -> none: the description lies outside the tree

    A question asks for a description that is missing or cannot be read. Nothing is asked if it lies outside the tree,
    or if the tree has no descriptions at all.

    `descriptions` has all descriptions of the tree by their paths. A text stands for one that cannot be read.
    """
    is_results_in_tree = len(folder.name.parts) >= 3  # results, system and benchmark
    if not descriptions or not is_results_in_tree:
        return None  # the tree has no descriptions, or begins below their folder: nothing is asked
    *names_above_results, _results, system, _benchmark = folder.name.parts
    file = PurePosixPath(*names_above_results, "systems", f"{system}.json")
    description_or_problem = descriptions.get(file, f"{file}: missing")
    if isinstance(description_or_problem, str):
        return question_for_submitter("system-description", description_or_problem, "ask for the description")
    folder.description = description_or_problem
    return None


def set_scaling_or_ask(folder: Folder, scalings: Mapping[PurePosixPath, float | str]) -> Finding | None:
    """Set `folder.scaling` to the factor of the submission's scaling.json; return a question if it cannot be read.

    `scalings` has all factors of the tree by their folders. A text stands for one that cannot be read. Without a
    scaling.json the factor is None, and nothing is asked.
    """
    scaling_or_problem = scalings.get(folder.name)
    if isinstance(scaling_or_problem, str):
        fix = "ask for the factor that the review committee set"
        return question_for_submitter("scaling-file", scaling_or_problem, fix)
    folder.scaling = scaling_or_problem
    return None


def question_for_submitter(rule: str, actual: str, fix: str, *, severity: str = "warning") -> Finding:
    """Return a question to the submitter as a finding: what was seen (`actual`), and what to ask for (`fix`).

    With the severity `error` the finding also fails the official verdict.
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
