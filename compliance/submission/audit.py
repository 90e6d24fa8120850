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
from compliance.submission.description import over_peak
from compliance.submission.group import ConvergenceTest, convergence_test, standing_of
from compliance.submission.package import template_text
from compliance.submission.runs import by_number, check_between
from compliance.submission.score import Score, score_runs
from compliance.submission.selection import Candidate, unusual
from runlog import schema
from runlog.text import printable

SCORE_DIGITS = 1e-9  # a relative difference of two factors that is none


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a run, or its times or accuracies alone, stood first."""

    folder: Folder
    file: str
    what: str


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance audit`: print the audit, and write it as a page and a table where these are asked for.

    Returns 0 whatever it finds, as a finding is no failure of the audit. Raises ValueError for a tree without logs, and
    for a file to write that another command wrote.
    """
    if options.html:
        check_replaceable(options.html, template_text("audit.html").partition("{{")[0])
    if options.csv:
        check_replaceable(options.csv, audit_forms.as_csv([]))
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
    """Check all logs below the folder, or in the tar archive, `path`. Return a row a submission, sorted by its folder.

    `ruleset` is that of all logs. None takes for each log the ruleset of the round that a folder's name says, and
    NEWEST for logs of this project, which are of no round. `envelope` asks for the second reading of the reference
    points. Raises ValueError for an archive that cannot be read, and for others' logs of a round that no name says.
    """
    tree = read_tree(path, ruleset)
    seen: dict[tuple[object, ...], _Place] = {}  # the runs of the submissions so far
    submissions = []
    candidates = []
    for name, folder in sorted(tree.folders.items()):
        folder.owner = results_tree.owner_of(path, name, _organisation(folder.logs))
        of_files = (find_description(folder, tree.descriptions), find_scaling(folder, tree.scalings))
        of_all_logs = [asked for asked in of_files if asked is not None]
        asked = _elsewhere(folder, seen)
        for report in folder.logs:
            peak = over_peak(report.run, folder.description, folder.ruleset.strict["system-description"])
            asked.setdefault(report.path.name, []).extend((*of_all_logs, *peak))
        submissions.append(_submission(folder, asked, envelope=envelope))
        candidates.append(_candidate(folder))
    return _screened(submissions, candidates)


def _organisation(logs: Sequence[Report]) -> str:
    """Return the organisation that the first of the logs to state one states; empty if none does."""
    for report in logs:
        stated = report.run.text(schema.SUBMISSION_ORG)
        if stated:
            return stated
    return ""


# --- runs that stand in two submissions ---


def _elsewhere(folder: Folder, seen: dict[tuple[object, ...], _Place]) -> dict[str, list[Finding]]:
    """Return, by the name of its log, a question about each run that stands in a submission before this one, too.

    A run is known again by its marks: its start, end and accuracies, or its times or accuracies alone. `seen` has the
    place where each mark stood first, and gets those of this submission.
    """
    questions: dict[str, list[Finding]] = {}
    for report in folder.logs:
        elsewhere: _Place | None = None
        for mark in marks(report.run):
            here = _Place(folder=folder, file=report.path.name, what=mark.what)
            place = seen.setdefault(mark, here)
            if place.folder is not folder and elsewhere is None:
                elsewhere = place
        if elsewhere is not None:
            questions[report.path.name] = [_of_two_places(report, folder, elsewhere)]
    return questions


def _of_two_places(report: Report, folder: Folder, place: _Place) -> Finding:
    """Return the question about a run that stands in `folder` and, before that, in the submission of `place`.

    Two ways are allowed. A submission with power logs holds the runs of the one without them: that is a note alone. A
    run of an earlier round may be submitted again (training_rules.adoc, section Results Resubmission), if its system's
    description is the same and it passes the new round's checker: the question says how far that is so.
    """
    other = place.folder
    actual = f"the {place.what} of {printable(place.file)} of {printable(str(other.name))}"
    severity = "warning"
    submitter = folder.owner.submitter
    is_same_owner = submitter.partition("-")[0] == other.owner.submitter.partition("-")[0]
    if submitter != other.owner.submitter and is_same_owner and "power" in submitter:
        actual = f"{actual}: this is its submission with power logs"
        severity = "info"
    elif folder.name.parts[0] != other.name.parts[0]:
        same = "identical" if folder.description == other.description else "not identical"
        if not folder.description or not other.description:
            same = "missing"
        passes = "passes" if report.official else "does not pass"
        actual += (
            f": a resubmission is allowed where system.json is identical (here: {same}) and the log passes the "
            f"new round's checker (it {passes}); training_rules.adoc, section Results Resubmission"
        )
    return question_for_submitter("run-elsewhere", actual, "ask which system ran it", severity=severity)


# --- runs that were selected ---


def _candidate(folder: Folder) -> Candidate:
    """Return the runs of a submission for the screen of selected runs: how far each trained to the target.

    Only closed runs that pass the official checker and converged are screened. They are compared with others of the
    same round, benchmark and global batch. `Dell-power` and `Dell` are one organisation.
    """
    first = folder.logs[0].run
    group = (folder.owner.round, first.text(schema.SUBMISSION_BENCHMARK), first.global_batch)
    to_target: list[float] = []
    for report in folder.logs:
        samples = report.run.as_tools_read.to_target
        is_closed = report.run.text(schema.SUBMISSION_DIVISION) == "closed"
        if is_closed and report.official and samples is not None and math.isfinite(samples):
            to_target.append(samples)
    organisation = folder.owner.submitter.partition("-")[0]
    return Candidate(organisation=organisation, group=group, to_target=tuple(to_target))


def _screened(submissions: Sequence[Submission], candidates: Sequence[Candidate]) -> list[Submission]:
    """Return the submissions, with a question at those whose runs converged unusually soon.

    `candidates` has the runs of each submission, in the same order.
    """
    chances = unusual(candidates)
    screened = []
    for place, submission in enumerate(submissions):
        if place in chances:
            chance = f"unusual (p = {chances[place]:.2g})"
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


def _submission(folder: Folder, asked: Mapping[str, list[Finding]], *, envelope: bool) -> Submission:
    """Return the row of one submission: its verdicts, both scores, the convergence test and the questions to ask.

    `asked` has the questions that the tree around it raises, by the name of the log. With `envelope` the row also has
    the second reading of the reference points.
    """
    ruleset = folder.ruleset
    checked = sorted(folder.logs, key=lambda report: by_number(report.path))
    judged = _judged(folder, checked, asked)
    unknown_benchmarks = sum(_is_unknown_benchmark(report) for report in judged)

    official, official_problem = _scored(checked, ruleset, "official")
    strict, strict_problem = _scored(checked, ruleset, "strict")
    problem = strict_problem or official_problem or _of_number(checked, official)
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
        division=printable(first.values.get(schema.SUBMISSION_DIVISION.key, "")),
        ruleset=ruleset.version,
        logs=len(checked),
        not_judged=len(checked) - len(judged) + unknown_benchmarks,
        global_batch=first.global_batch,
        official_passes=sum(report.official for report in judged),
        strict_passes=sum(report.strict for report in judged),
        official_minutes=_official_minutes(official, folder.scaling),
        strict_minutes=None if strict is None else strict.minutes,
        rcp=test.status if test else "not known",
        scaling=test.scaling if test else None,
        scaling_file=folder.scaling,
        convergence=test.in_words() if test else "",
        standing=standing,
        envelope=_envelope(test) if envelope and test else None,
        problem=problem,
        questions=tuple(_questions(judged)),
    )


def _judged(folder: Folder, checked: Sequence[Report], asked: Mapping[str, list[Finding]]) -> list[Report]:
    """Return the reports of a submission with what the rules between its runs and `asked` add to each.

    Logs of v0.5 and v0.6, whose events have another form, are left out.
    """
    judged = []
    for report in check_between(checked, folder.ruleset):
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


def _scored(checked: Sequence[Report], ruleset: Ruleset, by: str) -> tuple[Score | None, str]:
    """The score by a verdict, and why there is none."""
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


def _of_number(checked: Sequence[Report], scored: Score | None) -> str:
    """Say that a submission has more or fewer logs than its benchmark has runs; empty where it has as many."""
    if scored is None or len(checked) == scored.runs_wanted:
        return ""
    return f"{len(checked)} logs; a submission has {scored.runs_wanted}"


def _is_unknown_benchmark(report: Report) -> bool:
    return any(finding.rule == "known-benchmark" for finding in report.findings)


def _envelope(test: ConvergenceTest) -> Envelope | None:
    """Return the test once more, against the lower convex envelope of the reference points, with both outcomes.

    rcp_checker prunes the points that lie above their neighbours, which is meant to leave that envelope and does not
    always. None where there was no test.
    """
    if test.reference is None or test.result is None or test.result.mean is None or test.batch is None:
        return None
    points = convergence.lower_envelope(test.reference)
    second = convergence.against_reference(test.to_target, test.batch, test.reference, points)
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


def _questions(reports: Sequence[Report]) -> Iterator[Question]:
    """Yield a question for each rule that the logs of a submission break: in how many logs, and where first.

    Errors come before warnings, then the rules are sorted by name. Notes are no questions.
    """
    breaches: defaultdict[str, list[_Breach]] = defaultdict(list)
    for report in reports:
        for finding in report.findings:
            if finding.severity != "info":
                breaches[finding.rule].append(_Breach(printable(str(report.path)), finding))
    for rule in sorted(breaches, key=lambda rule: (breaches[rule][0].finding.severity, rule)):
        first = breaches[rule][0]
        yield Question(
            rule=rule,
            kind=first.finding.kind,
            official=first.finding.official,
            severity=first.finding.severity,
            logs=len({breach.file for breach in breaches[rule]}),
            file=first.file,
            line=first.finding.line,
            actual=printable(first.finding.actual, 1000),
        )


class _Breach(NamedTuple):
    """A finding, and the name of its log."""

    file: str
    finding: Finding
