"""`python -m compliance audit`: a whole results repository, a row a submission."""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from compliance.check import Report
from compliance.forms import check_replaceable
from compliance.logged_run import NOTHING
from compliance.official import convergence
from compliance.rules import Finding, Ruleset
from compliance.strict.copies import Mark, marks
from compliance.submission import audit_forms, results_tree
from compliance.submission.audit_forms import Envelope, Question, Submission
from compliance.submission.audited_tree import (
    Folder,
    Tree,
    question_for_submitter,
    read_tree,
    set_description_or_ask,
    set_scaling_or_ask,
)
from compliance.submission.description import findings_over_peak
from compliance.submission.group import ConvergenceTest, convergence_test, standing_of
from compliance.submission.runs import by_number, check_between_runs
from compliance.submission.score import Score, score_runs
from compliance.submission.selection import Candidate, find_unusually_early
from compliance.submission.templates import template_text
from runlog import schema
from runlog.digits import significant
from runlog.text import printable

MOST_ROUNDING = 1e-9  # the largest relative difference of two factors that are equal but for their rounding


@dataclass(frozen=True, kw_only=True)
class _FirstSeen:
    """The submission and the log in which a mark of a run was seen first.

    `kind_of_mark` says what the mark is: the `run` (its start, end and accuracies), its `times` or its `accuracies`.
    """

    folder: Folder
    file: str
    kind_of_mark: str


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance audit`: print the audit, and also write it as an HTML page and a CSV table if asked to.

    Returns 0, whatever the audit finds. Raises ValueError if the tree has no logs, or if the page or table would
    replace anything but an earlier audit's.
    """
    if options.html:
        # The template up to the first value that is filled in: every page of an earlier audit begins so.
        start_of_page = template_text("audit.html").partition("{{")[0]
        check_replaceable(options.html, start_of_page)
    if options.csv:
        head_of_table = audit_forms.as_csv([])  # the names of the columns
        check_replaceable(options.csv, head_of_table)
    submissions = audit(options.path, options.ruleset, envelope=options.envelope)
    if not submissions:
        raise ValueError(f"{options.path}: no result_*.txt in it; give a results repository, or an archive of one")
    if options.html:
        options.html.write_text(audit_forms.as_html(submissions), encoding="utf-8")
    if options.csv:
        options.csv.write_text(audit_forms.as_csv(submissions), encoding="utf-8")
    if options.json:
        print(json.dumps({"submissions": [submission.as_dict() for submission in submissions]}, indent=2))
    else:
        print(audit_forms.as_text(submissions), end="")
    return 0


def audit(path: Path, ruleset: str | None = None, *, envelope: bool = False) -> list[Submission]:
    """Check all logs below the folder, or in the tar archive, `path`. Return a row for each submission, by its folder.

    A row has the questions that a reviewer should ask about the submission. `ruleset` is for all logs. None: each
    folder takes the ruleset of the round that a folder's name gives. `envelope` adds a second test of the convergence.

    Raises ValueError as `read_tree` does.
    """
    tree = read_tree(path, ruleset)
    first_seen: dict[Mark, _FirstSeen] = {}  # where each mark of a run was seen first; each submission adds its own
    submissions = []
    candidates = []
    for name, folder in sorted(tree.folders.items()):
        folder.owner = results_tree.owner_of(path, name, _stated_organisation(folder.logs))
        questions_by_log = _ask_about_logs(folder, tree, first_seen)
        submissions.append(_row_of_submission(folder, questions_by_log, envelope=envelope))
        candidates.append(_candidate_for_screen(folder))
    # Runs are compared with those of all submissions, so this call comes last. It returns the same rows, and adds a
    # question to those whose runs converged unusually early.
    return _ask_about_unusually_early_runs(submissions, candidates)


def _ask_about_logs(folder: Folder, tree: Tree, first_seen: dict[Mark, _FirstSeen]) -> dict[str, list[Finding]]:
    """Return what a reviewer should ask about each log of a submission, as findings by the name of the log.

    The questions are about its description and its scaling.json, a run that an earlier submission has, and a speed
    above the peak of the hardware.

    Sets `folder.description` and `folder.scaling` by the files of the tree. Adds the new marks of the runs to
    `first_seen`. A mark is what shows that two logs are of the same run, such as equal times.
    """
    about_description = set_description_or_ask(folder, tree.descriptions)
    about_scaling = set_scaling_or_ask(folder, tree.scalings)
    about_files = [question for question in (about_description, about_scaling) if question is not None]

    questions_by_log: dict[str, list[Finding]] = {report.path.name: [] for report in folder.logs}
    for log, about_repeated_run in _ask_about_repeated_runs(folder, first_seen).items():
        questions_by_log[log].append(about_repeated_run)
    rule = folder.ruleset.strict["system-description"]
    for report in folder.logs:
        about_speed = findings_over_peak(report.run, folder.description, rule)
        questions_by_log[report.path.name] += [*about_files, *about_speed]
    return questions_by_log


def _stated_organisation(logs: Sequence[Report]) -> str:
    """Return the organisation in the first log that states one; empty if none does."""
    for report in logs:
        stated = report.run.stated_text(schema.SUBMISSION_ORG)
        if stated:
            return stated
    return ""


# --- runs that stand in two submissions ---


def _ask_about_repeated_runs(folder: Folder, first_seen: dict[Mark, _FirstSeen]) -> dict[str, Finding]:
    """Return a question for each run that an earlier submission of the tree also has, by the name of the run's log.

    Two logs are of the same run if they share one of these marks, which are compared in this order:

    - start, end and accuracies together
    - times: the durations of epochs, evaluations and other parts
    - accuracies

    `first_seen` has where each mark was seen first. New marks of this submission are added to it, for the next call.
    """
    question_by_log: dict[str, Finding] = {}
    for report in folder.logs:
        name = report.path.name
        marks_of_run = marks(report.run)
        earlier = _earlier_submission_with(marks_of_run, folder, first_seen)
        if earlier is not None:
            question_by_log[name] = _question_about_two_submissions(report, folder, earlier)
        for mark in marks_of_run:
            if mark not in first_seen:
                first_seen[mark] = _FirstSeen(folder=folder, file=name, kind_of_mark=mark.what)
    return question_by_log


def _earlier_submission_with(
    marks_of_run: Sequence[Mark], folder: Folder, first_seen: Mapping[Mark, _FirstSeen]
) -> _FirstSeen | None:
    """Return the earlier log, not of `folder`, that shares the first shared mark; None if no mark is shared."""
    for mark in marks_of_run:
        seen = first_seen.get(mark)
        if seen is not None and seen.folder is not folder:
            return seen
    return None


def _question_about_two_submissions(report: Report, folder: Folder, earlier: _FirstSeen) -> Finding:
    """Return the question about a run that is in the submission of `folder` and in an earlier one.

    - The submission of `folder` repeats the earlier one with power logs: only a note (severity `info`).
    - The two are of different rounds: a warning. It says which conditions of a resubmission are met.
    - Otherwise: a warning.
    """
    other = earlier.folder
    what_is_shared = earlier.kind_of_mark  # such as "times"
    actual = f"the {what_is_shared} of {printable(earlier.file)} of {printable(str(other.name))}"
    severity = "warning"
    # In a tree of several rounds, the topmost folder is the round's. Logs in the root of the tree have no such folder.
    is_other_round = bool(folder.top_name and other.top_name) and folder.top_name != other.top_name
    if _has_power_logs_of(folder.owner.submitter, other.owner.submitter):  # by the names: Dell-power and Dell
        actual += ": this is its submission with power logs"
        severity = "info"
    elif is_other_round:
        actual += f": {_conditions_of_resubmission(report, folder, other)}"
    return question_for_submitter("run-elsewhere", actual, "ask which system ran it", severity=severity)


def _has_power_logs_of(submitter: str, other_submitter: str) -> bool:
    """Return whether `submitter` has the runs of the other one with power logs, as `Dell-power` has those of `Dell`."""
    is_same_organisation = _organisation_of_submitter(submitter) == _organisation_of_submitter(other_submitter)
    return is_same_organisation and submitter != other_submitter and "power" in submitter


def _conditions_of_resubmission(report: Report, folder: Folder, other: Folder) -> str:
    """Return, in words, when a run of another round may be submitted again, and whether each condition is met."""
    passes = "passes" if report.passes_official else "does not pass"
    return (
        f"a resubmission is allowed where system.json is identical (here: {_likeness(folder, other)}) and the "
        f"log passes the new round's checker (it {passes}); training_rules.adoc, section Results Resubmission"
    )


def _likeness(folder: Folder, other: Folder) -> str:
    """Compare the system descriptions of two submissions: `identical`, `not identical`, or `missing` if one is."""
    if not folder.description or not other.description:
        return "missing"
    return "identical" if folder.description == other.description else "not identical"


def _organisation_of_submitter(submitter: str) -> str:
    """Return the organisation in the name of a submitter's folder: `Dell` of `Dell-power`."""
    return submitter.partition("-")[0]


# --- runs that may be cherry-picked ---


def _candidate_for_screen(folder: Folder) -> Candidate:
    """Return a submission in the form in which it is screened for cherry-picked runs.

    It has the epochs (or samples) that each run took to the target. Only closed runs that pass the official checker,
    and that mlperf-logging's rcp_checker can read, are included; there may be none. The submission is compared with
    those of its round, benchmark and global batch, which are its `group`.
    """
    first_run = folder.logs[0].run
    group = (folder.owner.round, first_run.stated_text(schema.SUBMISSION_BENCHMARK), first_run.global_batch)
    epochs_of_runs: list[float] = []
    for report in folder.logs:
        epochs = report.run.as_tools_read.to_target  # or samples, as rcp_checker reads them; None: it cannot
        is_closed = report.run.stated_text(schema.SUBMISSION_DIVISION) == "closed"
        if is_closed and report.passes_official and epochs is not None and math.isfinite(epochs):
            epochs_of_runs.append(epochs)
    organisation = _organisation_of_submitter(folder.owner.submitter)
    return Candidate(organisation=organisation, group=group, epochs_to_target=tuple(epochs_of_runs))


def _ask_about_unusually_early_runs(
    submissions: Sequence[Submission], candidates: Sequence[Candidate]
) -> list[Submission]:
    """Return the submissions. One whose runs converged unusually early has one more question.

    `candidates` has the runs of each submission, in the order of `submissions`.
    """
    chance_by_index = find_unusually_early(candidates)
    screened = []
    for index, submission in enumerate(submissions):
        if index in chance_by_index:
            chance = f"unusual (p = {significant(chance_by_index[index], digits=2)})"
            question = Question(
                rule="selected-runs",
                kind="plausibility",
                official=False,
                severity="warning",
                logs=submission.logs,
                file="",
                line=None,
                actual=f"{chance}: its runs converged sooner than those of all others at its batch",
            )
            submission = replace(submission, questions=(*submission.questions, question))
        screened.append(submission)
    return screened


# --- a row ---


def _row_of_submission(folder: Folder, questions_by_log: Mapping[str, list[Finding]], *, envelope: bool) -> Submission:
    """Return the row of one submission: its verdicts, both scores, the convergence test and the questions to ask.

    `questions_by_log` has what to ask beside the findings of the logs, by the name of the log. `envelope` adds the test
    of `_test_against_envelope`.
    """
    ruleset = folder.ruleset
    checked = sorted(folder.logs, key=lambda report: by_number(report.path))
    judged = _judged_reports(folder, checked, questions_by_log)
    unknown_benchmarks = sum(_is_unknown_benchmark(report) for report in judged)

    official, official_problem = _score_or_problem(checked, ruleset, "official")
    strict, strict_problem = _score_or_problem(checked, ruleset, "strict")
    problem = strict_problem or official_problem or _other_number_of_logs(checked, official)
    if not judged:
        problem = "logs of v0.5 and v0.6 have another form"

    readable = [report for report in checked if report.run is not NOTHING]
    first = readable[0].run if readable else NOTHING
    are_all_readable = len(readable) == len(checked)
    test: ConvergenceTest | None = None
    if official and are_all_readable:
        test = convergence_test(readable, ruleset)
    if test is not None and judged:
        judged[0] = judged[0].with_findings(_other_factor(folder.scaling, test.scaling))

    return Submission(
        round=printable(folder.owner.round),
        submitter=printable(folder.owner.submitter),
        system=printable(folder.owner.system),
        benchmark=printable(folder.owner.benchmark),
        division=printable(first.first_values.get(schema.SUBMISSION_DIVISION.key, "")),
        ruleset=ruleset.version,
        logs=len(checked),
        not_judged=len(checked) - len(judged) + unknown_benchmarks,
        global_batch=first.global_batch,
        official_passes=sum(report.passes_official for report in judged),
        strict_passes=sum(report.passes_strict for report in judged),
        official_minutes=_official_minutes(official, folder.scaling),
        strict_minutes=None if strict is None else strict.minutes,
        rcp=test.status if test else "not known",
        scaling=test.scaling if test else None,
        scaling_file=folder.scaling,
        convergence=test.in_words() if test else "",
        standing=standing_of(readable, ruleset) if readable else None,
        envelope=_test_against_envelope(test) if envelope and test else None,
        problem=problem,
        questions=tuple(_questions(judged)),
    )


def _judged_reports(
    folder: Folder, checked: Sequence[Report], questions_by_log: Mapping[str, list[Finding]]
) -> list[Report]:
    """Return the reports of a submission, each with the findings of the rules between runs and with its questions.

    `questions_by_log` has the questions by the name of the log. Logs of v0.5 and v0.6 are left out, because their
    events have a form that is not read.
    """
    judged = []
    for report in check_between_runs(checked, folder.ruleset):
        name = report.path.name
        if name not in folder.other_form:
            judged.append(report.with_findings(questions_by_log[name]))
    return judged


def _other_factor(scaling_file: float | None, scaling: float | None) -> Iterator[Finding]:
    """Yield a question if the factor of scaling.json is not the one that the convergence test gives.

    None stands for a missing file, or for a test without a factor: then there is nothing to compare.
    """
    if scaling_file is None or scaling is None:
        return
    if abs(scaling_file / scaling - 1) > MOST_ROUNDING:
        actual = f"scaling.json says {scaling_file!r}, the test gives {scaling!r}; the file's factor is applied"
        yield question_for_submitter("scaling-file", actual, "ask who set it")


def _score_or_problem(checked: Sequence[Report], ruleset: Ruleset, by: str) -> tuple[Score | None, str]:
    """Return the score by the verdict `by`, and why there are no minutes; the reason is empty if there are.

    The score is None if the logs cannot be scored at all. A score without minutes has its own reason.
    """
    try:
        scored = score_runs(checked, ruleset, by)
    except ValueError as error:
        return None, printable(str(error), 300)
    return scored, scored.problem


def _official_minutes(scored: Score | None, scaling_file: float | None) -> float | None:
    """Return the minutes that result_summarizer computes in the tree: it multiplies by the factor of a scaling.json.

    Without such a file, the factor is that of the convergence test. None if there is no score.
    """
    if scored is None:
        return None
    if scaling_file is not None and scored.unscaled_minutes is not None and scored.olympic:
        return scored.unscaled_minutes * scaling_file
    return scored.scaled_minutes


def _other_number_of_logs(checked: Sequence[Report], scored: Score | None) -> str:
    """Say that a submission has more or fewer logs than its benchmark has runs; empty if it has the right number."""
    if scored is None or len(checked) == scored.runs_wanted:
        return ""
    return f"{len(checked)} logs; a submission has {scored.runs_wanted}"


def _is_unknown_benchmark(report: Report) -> bool:
    return any(finding.rule == "known-benchmark" for finding in report.findings)


def _test_against_envelope(test: ConvergenceTest) -> Envelope | None:
    """Repeat a convergence test against the true lower convex envelope of the reference points.

    rcp_checker sometimes keeps points above this envelope (mlcommons/logging #368), and `test` does so, too. The
    returned Envelope is the outcome of the repeated test. It has the mean epochs of the reference point that the runs
    were held to: `held_to` in the repeated test, `held_to_by_tool` in `test`. If the two are equal, the points above
    the envelope do not matter for these runs.

    None if `test` could not compare the runs, or if one of the two tests has no reference point for their batch.
    """
    if test.reference is None or test.result is None or test.result.mean is None or test.batch is None:
        return None
    point_of_tool = test.result.point
    envelope = convergence.lower_envelope(test.reference)  # the points of the true envelope
    repeated = convergence.against_reference(test.epochs_to_target, test.batch, test.reference, points=envelope)
    if point_of_tool is None or repeated.point is None:
        return None
    return Envelope(
        passed=repeated.passed,
        scaling=repeated.scaling,
        held_to=repeated.point.mean,
        held_to_by_tool=point_of_tool.mean,
        unit=test.reference.unit,
        differs=repeated.point.mean != point_of_tool.mean,
    )


def _questions(reports: Sequence[Report]) -> list[Question]:
    """Return a question for each rule that the logs of a submission break.

    A question says how many logs break the rule, and shows the first breach. Notes (severity `info`) are left out.
    Errors come before warnings; the questions of one severity are sorted by the name of the rule.
    """
    breaches_by_rule: defaultdict[str, list[_Breach]] = defaultdict(list)
    for report in reports:
        for finding in report.findings:
            if finding.severity != "info":
                breaches_by_rule[finding.rule].append(_Breach(printable(str(report.path)), finding))
    questions = []
    for rule, breaches in breaches_by_rule.items():
        first = breaches[0]
        question = Question(
            rule=rule,
            kind=first.finding.kind,
            official=first.finding.official,
            severity=first.finding.severity,
            logs=len({breach.file for breach in breaches}),
            file=first.file,
            line=first.finding.line,
            actual=printable(first.finding.actual, 1000),
        )
        questions.append(question)
    return sorted(questions, key=lambda question: (question.severity, question.rule))  # "error" < "warning"


class _Breach(NamedTuple):
    """A finding, and the name of its log."""

    file: str
    finding: Finding
