"""Runs that stand in two submissions of a results repository."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from compliance.check import Report
from compliance.rules import Finding
from compliance.strict.copies import Mark, marks
from compliance.submission.audited_tree import Folder, question_for_submitter
from runlog.text import printable

LogInTree: TypeAlias = tuple[PurePosixPath, str]  # the name of a folder, and that of a log in it


@dataclass(frozen=True, kw_only=True)
class _FirstSeen:
    """The submission and the log in which a mark of a run was seen first.

    `kind_of_mark` says what the mark is, as `Mark.what` does: the `run`, for instance, or its `accuracies`.
    """

    folder: Folder
    file: str
    kind_of_mark: str


def ask_about_repeated_runs(folders: Sequence[Folder]) -> dict[LogInTree, Finding]:
    """Return a question about each run of a results repository that an earlier submission has, too.

    A run is recognised by its marks: values that two different runs hardly have in common, such as all durations of its
    epochs.

    Args:
        folders: The submissions. One is earlier than another if it comes first in this order.

    Returns:
        The questions, by the name of the folder and the name of the log.
    """
    question_by_log: dict[LogInTree, Finding] = {}
    first_seen: dict[Mark, _FirstSeen] = {}
    for folder in folders:
        for report in folder.logs:
            marks_of_run = marks(report.run)
            earlier = _first_in_other_submission(marks_of_run, folder, first_seen)
            if earlier is not None:
                log = (folder.name, report.path.name)
                question_by_log[log] = _question_about_two_submissions(report, folder, earlier)
            _remember_new_marks(first_seen, marks_of_run, folder, report)
    return question_by_log


def _remember_new_marks(
    first_seen: dict[Mark, _FirstSeen], marks_of_run: Sequence[Mark], folder: Folder, report: Report
) -> None:
    """Add to the marks that were seen so far those marks of a run that are new.

    Args:
        first_seen: The submission and log in which each mark was seen first; it is changed.
        marks_of_run: Values by which the run is recognised.
        folder: The submission that has the run.
        report: The report on the run's log.
    """
    for mark in marks_of_run:
        if mark not in first_seen:
            first_seen[mark] = _FirstSeen(folder=folder, file=report.path.name, kind_of_mark=mark.what)


def _first_in_other_submission(
    marks_of_run: Sequence[Mark], folder: Folder, first_seen: Mapping[Mark, _FirstSeen]
) -> _FirstSeen | None:
    """Return the log of another submission that showed a run's mark first; None if no other did.

    The marks are tried in their order, which begins with the strongest evidence.

    Args:
        marks_of_run: Values by which the run is recognised.
        folder: The submission that has the run.
        first_seen: The submission and log in which each mark was seen first.

    Returns:
        The earlier submission and log; None if each mark was seen first in `folder`, or is new.
    """
    for mark in marks_of_run:
        seen = first_seen.get(mark)
        if seen is not None and seen.folder is not folder:
            return seen
    return None


def _question_about_two_submissions(report: Report, folder: Folder, earlier: _FirstSeen) -> Finding:
    """Return a reviewer's question to the submitter about a run that is in two submissions of a results repository.

    The question names the earlier log and what the run has in common with it. It is only for information if the run is
    handed in again with logs of its power. Else it is a warning, which names the conditions of a resubmission if the
    two submissions are of different rounds.

    Args:
        report: The report on the run's log in the later submission.
        folder: The later submission, which the question is about.
        earlier: The log of the run in the earlier submission, and what both logs have in common.
    """
    earlier_folder = earlier.folder
    # With "accuracies" as the kind of the mark: the accuracies of result_0.txt of Dell/results/node/resnet
    shared = f"the {earlier.kind_of_mark} of {printable(earlier.file)} of {printable(str(earlier_folder.name))}"
    fix = "ask which system ran it"
    # By the names of the submitters: `Dell-power` hands in runs of `Dell` with logs of their power.
    if _is_power_submission_of(folder.owner.submitter, earlier_folder.owner.submitter):  # which is as it should be
        actual = f"{shared}: this is its submission with power logs"
        return question_for_submitter("run-elsewhere", actual, fix, severity="info")
    if _are_of_different_rounds(folder, earlier_folder):
        actual = f"{shared}: {_conditions_of_resubmission(report, folder, earlier_folder)}"
        return question_for_submitter("run-elsewhere", actual, fix)
    return question_for_submitter("run-elsewhere", shared, fix)


def _are_of_different_rounds(folder: Folder, other: Folder) -> bool:
    """Return whether two submissions are of different MLPerf rounds, by the numbers that their paths name.

    Args:
        folder: A submission.
        other: Another submission.

    Returns:
        Whether the numbers differ. False if a path names none.
    """
    if folder.round_number == "" or other.round_number == "":
        return False
    return folder.round_number != other.round_number


def _is_power_submission_of(power_submitter: str, submitter: str) -> bool:
    """Return whether a submitter hands in another's runs with power logs: `Dell-power` for `Dell`.

    Args:
        power_submitter: Name of the submitter's folder.
        submitter: Name of the other submitter's folder.
    """
    is_same_organisation = organisation_of_submitter(power_submitter) == organisation_of_submitter(submitter)
    return is_same_organisation and power_submitter != submitter and "power" in power_submitter


def _conditions_of_resubmission(report: Report, folder: Folder, other: Folder) -> str:
    """Return the two conditions on which a run of an earlier round may be submitted again, and whether each is met.

    For instance: "a resubmission is allowed where system.json is identical (here: not identical) and the log passes the
    new round's checker (it passes); training_rules.adoc, section Results Resubmission".

    Args:
        report: The report on the run's log in the later submission, by the ruleset of that submission.
        folder: The later submission, which has the run again.
        other: The earlier submission, which had the run first.
    """
    passes = "passes" if report.passes_official else "does not pass"
    # `_likeness` compares the system descriptions: "identical", "not identical" or, if one is absent, "missing".
    return (
        f"a resubmission is allowed where system.json is identical (here: {_likeness(folder, other)}) and the "
        f"log passes the new round's checker (it {passes}); training_rules.adoc, section Results Resubmission"
    )


def _likeness(folder: Folder, other: Folder) -> str:
    """Compare the system descriptions of two submissions: `identical`, `not identical`, or `missing` if one is."""
    if not folder.description or not other.description:
        return "missing"
    return "identical" if folder.description == other.description else "not identical"


def organisation_of_submitter(submitter: str) -> str:
    """Return the organisation in the name of a submitter's folder: `Dell` of `Dell-power`."""
    return submitter.partition("-")[0]
