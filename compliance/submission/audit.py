"""`python -m compliance audit`: a whole results repository, a row a submission."""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from compliance.check import NOTHING, Report
from compliance.forms import check_replaceable
from compliance.mlperf import Standing
from compliance.official import convergence
from compliance.rules import Finding, Ruleset
from compliance.strict.copies import marks
from compliance.submission import audit_forms, results_tree
from compliance.submission.audit_forms import Envelope, Question, Submission
from compliance.submission.audited_tree import Folder, find_description, find_scaling, question_for_submitter, read_tree
from compliance.submission.description import findings_over_peak
from compliance.submission.group import ConvergenceTest, convergence_test, standing_of
from compliance.submission.package import template_text
from compliance.submission.runs import by_number, check_between_runs
from compliance.submission.score import Score, score_runs
from compliance.submission.selection import Candidate, unusual
from runlog import schema
from runlog.digits import significant
from runlog.text import printable

SCORE_DIGITS = 1e-9  # a relative difference of two factors that is none


@dataclass(frozen=True, kw_only=True)
class _FirstSeen:
    """The submission and the log in which a run was seen first, and by what it is known again, such as `times`."""

    folder: Folder
    file: str
    what: str


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance audit`: print the audit, and write it as a page and a table where these are asked for.

    Returns 0 whatever it finds, as a finding is no failure of the audit. Raises ValueError for a tree without logs. A
    page or table of an earlier audit, known by how it begins, is replaced; for any other file there ValueError is
    raised.
    """
    if options.html:
        start_of_page = template_text("audit.html").partition("{{")[0]  # up to the first value that is filled in
        check_replaceable(options.html, start_of_page)
    if options.csv:
        head_of_table = audit_forms.as_csv([])
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

    Besides what the check of each log finds, a row has questions to the submitter: about the system description and the
    scaling.json beside the logs, about runs that an earlier submission of the tree has too, about throughput above the
    peak of the system, and about runs that converged unusually soon, which takes all submissions to tell.

    `ruleset` is that of all logs. None takes for each log the ruleset of the round that a folder's name says, and
    NEWEST for logs of this project, which are of no round. `envelope` asks for a second test of the convergence,
    against the lower convex envelope of the reference points. Raises ValueError for an archive that cannot be read, and
    for others' logs of a round that no name says.
    """
    tree = read_tree(path, ruleset)
    seen: dict[tuple[object, ...], _FirstSeen] = {}  # the runs of the submissions so far, by their marks
    submissions = []
    candidates = []
    for name, folder in sorted(tree.folders.items()):
        folder.owner = results_tree.owner_of(path, name, _stated_organisation(folder.logs))
        about_files = (find_description(folder, tree.descriptions), find_scaling(folder, tree.scalings))
        about_submission = [question for question in about_files if question is not None]
        questions = _runs_seen_before(folder, seen)
        for report in folder.logs:
            about_pace = findings_over_peak(report.run, folder.description, folder.ruleset.strict["system-description"])
            questions.setdefault(report.path.name, []).extend((*about_submission, *about_pace))
        submissions.append(_row_of_submission(folder, questions, envelope=envelope))
        candidates.append(_candidate_for_screen(folder))
    return _with_selection_questions(submissions, candidates)


def _stated_organisation(logs: Sequence[Report]) -> str:
    """Return the organisation that the first of the logs to state one states; empty if none does."""
    for report in logs:
        stated = report.run.stated_text(schema.SUBMISSION_ORG)
        if stated:
            return stated
    return ""


# --- runs that stand in two submissions ---


def _runs_seen_before(folder: Folder, seen: dict[tuple[object, ...], _FirstSeen]) -> dict[str, list[Finding]]:
    """Return a question about each run that is in an earlier submission of the tree, too, by the name of its log.

    A run is known again by its marks: its start, end and accuracies, or its times or accuracies alone. `seen` has the
    log in which each mark was seen first; the marks of this submission are added to it.
    """
    questions: dict[str, list[Finding]] = {}
    for report in folder.logs:
        earlier: _FirstSeen | None = None
        for mark in marks(report.run):
            here = _FirstSeen(folder=folder, file=report.path.name, what=mark.what)
            first = seen.setdefault(mark, here)
            if first.folder is not folder and earlier is None:
                earlier = first
        if earlier is not None:
            questions[report.path.name] = [_question_about_two_submissions(report, folder, earlier)]
    return questions


def _question_about_two_submissions(report: Report, folder: Folder, earlier: _FirstSeen) -> Finding:
    """Return the question about a run that is in the submission of `folder` and in an earlier one.

    A run may be in two submissions for two reasons:

    - A submitter hands in the runs once more with power logs, as `Dell-power` beside `Dell`. That is a note alone.
    - A run of another round is submitted again (training_rules.adoc, section Results Resubmission). Its system's
      description must then be the same, and it must pass the new round's checker: the question says whether that is so.

    Without either reason the question only names the log that has the run, too.
    """
    other = earlier.folder
    actual = f"the {earlier.what} of {printable(earlier.file)} of {printable(str(other.name))}"
    severity = "warning"
    submitter = folder.owner.submitter
    is_same_organisation = _organisation_of_submitter(submitter) == _organisation_of_submitter(other.owner.submitter)
    if submitter != other.owner.submitter and is_same_organisation and "power" in submitter:
        actual = f"{actual}: this is its submission with power logs"
        severity = "info"
    elif folder.name.parts[0] != other.name.parts[0]:  # the folders of two rounds
        passes = "passes" if report.passes_official else "does not pass"
        actual += (
            f": a resubmission is allowed where system.json is identical (here: {_likeness(folder, other)}) and the "
            f"log passes the new round's checker (it {passes}); training_rules.adoc, section Results Resubmission"
        )
    return question_for_submitter("run-elsewhere", actual, "ask which system ran it", severity=severity)


def _likeness(folder: Folder, other: Folder) -> str:
    """Say whether the system descriptions of two submissions are identical, not identical, or one is missing."""
    if not folder.description or not other.description:
        return "missing"
    return "identical" if folder.description == other.description else "not identical"


def _organisation_of_submitter(submitter: str) -> str:
    """Return the organisation in the name of a submitter's folder: `Dell` of `Dell-power`."""
    return submitter.partition("-")[0]


# --- runs that were selected ---


def _candidate_for_screen(folder: Folder) -> Candidate:
    """Return the runs of a submission, as the screen for selected runs compares them with others.

    Of each run it has the epochs (or samples) to the target. Only closed runs that pass the official checker and whose
    value mlperf-logging's rcp_checker can read are taken, which may be none. They are compared with runs of other
    organisations in the same round, of the same benchmark and global batch.
    """
    first_run = folder.logs[0].run
    group = (folder.owner.round, first_run.stated_text(schema.SUBMISSION_BENCHMARK), first_run.global_batch)
    to_target: list[float] = []
    for report in folder.logs:
        epochs = report.run.as_tools_read.to_target
        is_closed = report.run.stated_text(schema.SUBMISSION_DIVISION) == "closed"
        if is_closed and report.passes_official and epochs is not None and math.isfinite(epochs):
            to_target.append(epochs)
    organisation = _organisation_of_submitter(folder.owner.submitter)
    return Candidate(organisation=organisation, group=group, to_target=tuple(to_target))


def _with_selection_questions(submissions: Sequence[Submission], candidates: Sequence[Candidate]) -> list[Submission]:
    """Return the submissions; those whose runs converged unusually soon get one more question.

    `candidates` has the runs of each submission, in the same order.
    """
    chance_by_index = unusual(candidates)
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


def _row_of_submission(folder: Folder, asked: Mapping[str, list[Finding]], *, envelope: bool) -> Submission:
    """Return the row of one submission: its verdicts, both scores, the convergence test and the questions to ask.

    `asked` has the questions that the tree around it raises, by the name of the log. With `envelope` the row also has
    the second test of the convergence, against the lower convex envelope of the reference points.
    """
    ruleset = folder.ruleset
    checked = sorted(folder.logs, key=lambda report: by_number(report.path))
    judged = _judged_reports(folder, checked, asked)
    unknown_benchmarks = sum(_is_unknown_benchmark(report) for report in judged)

    official, official_problem = _score_or_problem(checked, ruleset, "official")
    strict, strict_problem = _score_or_problem(checked, ruleset, "strict")
    problem = strict_problem or official_problem or _other_number_of_logs(checked, official)
    if not judged:
        problem = "logs of v0.5 and v0.6 have another form"

    readable = [report for report in checked if report.run is not NOTHING]
    first = NOTHING
    standing: Standing | None = None
    test: ConvergenceTest | None = None
    if readable:
        first = readable[0].run
        standing = standing_of(readable, ruleset)
        if official and len(readable) == len(checked):
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
        standing=standing,
        envelope=_test_against_envelope(test) if envelope and test else None,
        problem=problem,
        questions=tuple(_questions(judged)),
    )


def _judged_reports(folder: Folder, checked: Sequence[Report], asked: Mapping[str, list[Finding]]) -> list[Report]:
    """Return the reports of a submission with what the rules between its runs and `asked` add to each.

    Logs of v0.5 and v0.6, whose events have another form, are left out.
    """
    judged = []
    for report in check_between_runs(checked, folder.ruleset):
        name = report.path.name
        if name not in folder.other_form:
            judged.append(report.with_findings(asked[name]))
    return judged


def _other_factor(scaling_file: float | None, scaling: float | None) -> Iterator[Finding]:
    """Yield a question where the factor of scaling.json is not the one that the convergence test gives."""
    if scaling_file is None or scaling is None:
        return
    if abs(scaling_file / scaling - 1) > SCORE_DIGITS:
        actual = f"scaling.json says {scaling_file!r}, the test gives {scaling!r}; the file's factor is applied"
        yield question_for_submitter("scaling-file", actual, "ask who set it")


def _score_or_problem(checked: Sequence[Report], ruleset: Ruleset, by: str) -> tuple[Score | None, str]:
    """Return the score by a verdict, which is None for logs that cannot be scored, and why there is no score."""
    try:
        scored = score_runs(checked, ruleset, by)
    except ValueError as error:
        return None, printable(str(error), 300)
    return scored, scored.problem


def _official_minutes(scored: Score | None, scaling_file: float | None) -> float | None:
    """Return result_summarizer's minutes of the tree: it applies the factor of scaling.json where there is one."""
    if scored is None:
        return None
    if scaling_file is not None and scored.unscaled_minutes is not None and scored.olympic:
        return scored.unscaled_minutes * scaling_file
    return scored.scaled_minutes


def _other_number_of_logs(checked: Sequence[Report], scored: Score | None) -> str:
    """Say that a submission has more or fewer logs than its benchmark has runs; empty where it has as many."""
    if scored is None or len(checked) == scored.runs_wanted:
        return ""
    return f"{len(checked)} logs; a submission has {scored.runs_wanted}"


def _is_unknown_benchmark(report: Report) -> bool:
    return any(finding.rule == "known-benchmark" for finding in report.findings)


def _test_against_envelope(test: ConvergenceTest) -> Envelope | None:
    """Test the runs of `test` again, against the lower convex envelope of the reference points; return both outcomes.

    rcp_checker leaves out reference points that lie above their neighbours. That is meant to leave the envelope and
    does not always, so the two tests may hold the runs to different points. None where the runs were not tested, or one
    of the tests has no point for their batch.
    """
    if test.reference is None or test.result is None or test.result.mean is None or test.batch is None:
        return None
    envelope = convergence.lower_envelope(test.reference)
    second = convergence.against_reference(test.to_target, test.batch, test.reference, envelope)
    if test.result.point is None or second.point is None:
        return None
    return Envelope(
        passed=second.passed,
        scaling=second.scaling,
        held_to=second.point.mean,
        held_to_by_tool=test.result.point.mean,
        unit=test.reference.unit,
        differs=second.point.mean != test.result.point.mean,
    )


def _questions(reports: Sequence[Report]) -> list[Question]:
    """Return a question for each rule that the logs of a submission break: in how many logs, and where first.

    Errors come before warnings, by the first breach of their rule, and then the rules are sorted by name. Notes
    (severity `info`) are no questions.
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
