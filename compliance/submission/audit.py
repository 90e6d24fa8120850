"""`python -m compliance audit`: a whole results repository, a row a submission."""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from compliance.check import Report
from compliance.forms import check_replaceable
from compliance.logged_run import NOTHING, LoggedRun
from compliance.official import convergence
from compliance.official.convergence import Convergence
from compliance.rules import Finding, Ruleset
from compliance.submission import audit_forms
from compliance.submission.audit_forms import EnvelopeTest, Question, Submission
from compliance.submission.audited_tree import Folder, question_for_submitter, read_tree
from compliance.submission.description import findings_of_implausible_speed
from compliance.submission.group import NOT_KNOWN, Comparison, ConvergenceTest, convergence_test, standing_of
from compliance.submission.repeated_runs import LogInTree, ask_about_repeated_runs, organisation_of_submitter
from compliance.submission.runs import by_number, check_between_runs
from compliance.submission.score import Score, score_runs
from compliance.submission.selection import Candidate, find_unusually_early
from compliance.submission.templates import template_text
from runlog import schema
from runlog.digits import counted, significant
from runlog.text import printable

MAX_ROUNDING = 1e-9  # the largest relative difference of two factors that are equal but for their rounding


def command(options: argparse.Namespace) -> int:
    """Print the audit of a results repository; write it as an HTML page or a CSV table too, if the options name one.

    Args:
        options: Options of the command line: `path` of the repository, `ruleset`, `envelope`, `html`, `csv` and `json`.

    Returns:
        The exit status 0, whatever the audit finds.

    Raises:
        ValueError: There are no logs, an archive is damaged, the rules for a log are not known, or the file to write is
            a folder or an existing file that is no earlier audit.
        OSError: `path` does not exist, or a file cannot be written.
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
    """Check all logs in a results repository of MLPerf, and return a row for each submission.

    Args:
        path: Folder or tar archive of the repository.
        ruleset: Version of the rules, such as 4.0.0. None: that of the MLPerf round that each folder's path names, such
            as `training_results_v4.0`.
        envelope: Whether to add a second test of convergence, for which some reference points may be left out (see
            `_test_against_envelope`).

    Returns:
        The rows: verdicts, scores and the questions that a reviewer should ask.

    Raises:
        ValueError: An archive is damaged, or the rules for a log are not known.
        OSError: `path` does not exist.
    """
    folders = read_tree(path, ruleset)
    question_by_repeated_run = ask_about_repeated_runs(folders)
    submissions = []
    for folder in folders:
        questions_by_log = _questions_by_log(folder, question_by_repeated_run)
        submissions.append(_row_of_submission(folder, questions_by_log, envelope=envelope))
    candidates = [_candidate_for_screen(folder) for folder in folders]
    return _ask_about_unusually_early_runs(submissions, candidates)


def _questions_by_log(
    folder: Folder, question_by_repeated_run: Mapping[LogInTree, Finding]
) -> dict[str, list[Finding]]:
    """Return a reviewer's questions about each log of a submission, by the name of the log.

    Args:
        folder: The logs of the submission.
        question_by_repeated_run: The question about each run that an earlier submission has too, by the names of the
            folder and the log.
    """
    questions_by_log: dict[str, list[Finding]] = {}
    for report in folder.logs:
        about_repeated_run = question_by_repeated_run.get((folder.name, report.path.name))
        questions_by_log[report.path.name] = _questions_about_log(report, folder, about_repeated_run)
    return questions_by_log


def _questions_about_log(report: Report, folder: Folder, about_repeated_run: Finding | None) -> list[Finding]:
    """Return what a reviewer should ask the submitter about a log, beyond the findings of its check.

    A question has the form of a finding. The questions are, in this order: about a run that an earlier submission has
    too, about the system description and the scaling.json, about a speed that the described system cannot reach.

    Args:
        report: The report on the log.
        folder: The submission that has the log.
        about_repeated_run: The first question; None if no earlier submission has the run.
    """
    about_repetition = [] if about_repeated_run is None else [about_repeated_run]
    rule_on_description = folder.ruleset.strict["system-description"]  # log and description must say the same
    about_speed = findings_of_implausible_speed(report.run, folder.description, rule_on_description)
    return [*about_repetition, *folder.questions, *about_speed]


# --- runs that may be cherry-picked ---


def _candidate_for_screen(folder: Folder) -> Candidate:
    """Return what the screen for cherry-picked runs compares of a submission: the epochs that its runs needed.

    Args:
        folder: The logs of the submission.

    Returns:
        The organisation, the epochs (or samples) of each run that is screened, and the `group`: the MLPerf round, and
        the benchmark and global batch of the first of these runs.
    """
    screened_runs: list[LoggedRun] = []
    epochs_of_runs: list[float] = []
    for report in folder.logs:
        epochs = _epochs_to_screen(report)
        if epochs is not None:
            screened_runs.append(report.run)
            epochs_of_runs.append(epochs)
    first_run = screened_runs[0] if screened_runs else NOTHING
    group = (folder.owner.round, first_run.stated_text(schema.SUBMISSION_BENCHMARK), first_run.global_batch)
    organisation = organisation_of_submitter(folder.owner.submitter)
    return Candidate(organisation=organisation, group=group, epochs_to_target=tuple(epochs_of_runs))


def _epochs_to_screen(report: Report) -> float | None:
    """Return the epochs (or samples) in which a closed run that passes the official checker reached its target.

    Args:
        report: The report on the log.

    Returns:
        The epochs, as rcp_checker, a tool of MLCommons, reads them. None if the run is not screened.
    """
    is_closed = report.run.stated_text(schema.SUBMISSION_DIVISION) == "closed"
    if not is_closed or not report.passes_official:
        return None
    epochs: float | None = report.run.as_tools_read.to_target
    if epochs is None:  # rcp_checker cannot read the log
        return None
    if epochs == convergence.NOT_CONVERGED or not math.isfinite(epochs):  # a damaged log may state Infinity or NaN
        return None
    return epochs


def _ask_about_unusually_early_runs(
    submissions: Sequence[Submission], candidates: Sequence[Candidate]
) -> list[Submission]:
    """Return the submissions, each with one more question if its runs converged unusually early.

    Such runs may be the fastest of many that were made.

    Args:
        submissions: Rows of the audit.
        candidates: The runs that are screened, of each submission, in the order of `submissions`.
    """
    chance_by_index = find_unusually_early(candidates)
    screened = []
    for index, submission in enumerate(submissions):
        if index in chance_by_index:
            question = _question_about_early_runs(submission, chance_by_index[index])
            submission = replace(submission, questions=(*submission.questions, question))
        screened.append(submission)
    return screened


def _question_about_early_runs(submission: Submission, chance: float) -> Question:
    """Return the question about a submission whose runs converged unusually early.

    The question is a warning. Its text states the corrected p-value and says what it is, the product of two figures:

    - the chance that as many runs are as early, if they are drawn at random from the runs of this submission and those
      of other organisations of the same round, benchmark and global batch;
    - the number of submissions compared.

    Args:
        submission: Row of the submission.
        chance: The p-value after Bonferroni's correction: how likely this is by coincidence, times the number of
            submissions compared. It is 0.05 at most.
    """
    p = significant(chance, digits=2)  # as a text, such as "0.012"
    # The last words of the text, "times the number of submissions compared", are a factor of p.
    actual = (
        f"unusual (p = {p}): its runs converged early; p is the chance that as many runs, drawn at random from these "
        "and other organisations' runs in its round and at its batch, are as early, times the number of submissions "
        "compared"
    )
    return Question(
        rule="selected-runs",
        kind="plausibility",
        official=False,
        severity="warning",
        logs=submission.logs,
        file="",
        line=None,
        actual=actual,
    )


# --- a row ---


def _row_of_submission(folder: Folder, questions_by_log: Mapping[str, list[Finding]], *, envelope: bool) -> Submission:
    """Return a submission's row in the audit: its verdicts, scores, convergence test and the questions to ask.

    Args:
        folder: The logs of the submission, each checked by itself.
        questions_by_log: Questions about each log, by the log's name.
        envelope: Whether to add a second test of convergence (see `_test_against_envelope`).
    """
    logs = sorted(folder.logs, key=lambda report: by_number(report.path))
    readable_logs = [report for report in logs if report.run is not NOTHING]
    first_run = readable_logs[0].run if readable_logs else NOTHING

    compared_logs = check_between_runs(logs, folder.ruleset)  # all logs, with findings from comparing the runs
    official = _score_if_possible(compared_logs, folder.ruleset, "official")
    strict = _score_if_possible(compared_logs, folder.ruleset, "strict")
    # The test asks for readable logs of one submission. An official score, even one without minutes, shows that they
    # are; a strict score would ask for more: that all runs have one batch.
    can_be_tested = official.score is not None
    test = convergence_test(logs, folder.ruleset) if can_be_tested else None
    # A question may fail a log, too. Logs of v0.5 and v0.6 are not judged.
    judged_logs = _reports_with_questions(folder, compared_logs, questions_by_log)
    return Submission(
        round=printable(folder.owner.round),
        submitter=printable(folder.owner.submitter),
        system=printable(folder.owner.system),
        benchmark=printable(folder.owner.benchmark),
        division=_division_stated_by(first_run),
        ruleset=folder.ruleset.version,
        logs=len(logs),
        global_batch=first_run.global_batch,
        not_judged=_count_not_judged(compared_logs, judged_logs),
        official_passes=sum(report.passes_official for report in judged_logs),
        strict_passes=sum(report.passes_strict for report in judged_logs),
        official_minutes=_official_minutes(official.score, folder.scaling),
        strict_minutes=None if strict.score is None else strict.score.minutes,
        rcp=NOT_KNOWN if test is None else test.status,
        scaling=None if test is None else test.scaling,
        scaling_file=folder.scaling,
        convergence="" if test is None else test.in_words(),
        standing=standing_of(readable_logs, folder.ruleset) if readable_logs else None,
        envelope=_test_against_envelope(test) if envelope else None,
        problem=_problem_of_submission(judged_logs, len(logs), official, strict),
        questions=tuple(_questions(_ask_who_set_factor(judged_logs, folder.scaling, test))),
    )


def _division_stated_by(run: LoggedRun) -> str:
    """Return the division that a run states, to be shown; empty if it states none."""
    return printable(run.first_values.get(schema.SUBMISSION_DIVISION.key, ""))


def _count_not_judged(all_reports: Sequence[Report], judged: Sequence[Report]) -> int:
    """Return how many logs the rules cannot judge: logs of v0.5 and v0.6, and logs of an unknown benchmark.

    Args:
        all_reports: Reports on all logs of a submission.
        judged: Reports on the logs that are not of v0.5 or v0.6.
    """
    of_old_form = len(all_reports) - len(judged)
    of_unknown_benchmark = sum(_is_of_unknown_benchmark(report) for report in judged)
    return of_old_form + of_unknown_benchmark


def _reports_with_questions(
    folder: Folder, compared: Sequence[Report], questions_by_log: Mapping[str, list[Finding]]
) -> list[Report]:
    """Return the reports on a submission's logs, each with the questions about its log as further findings.

    Logs of MLPerf v0.5 and v0.6 are left out. Their events have another form that is not read, so they cannot be
    judged.

    Args:
        folder: The submission, which says which logs are of these rounds.
        compared: The reports on its logs. They have the findings of the comparison of its runs with each other.
        questions_by_log: A reviewer's questions about each log, by the log's name.
    """
    reports = []
    for report in compared:
        name = report.path.name
        if name not in folder.logs_of_old_form:
            reports.append(report.with_findings(questions_by_log[name]))
    return reports


def _is_of_unknown_benchmark(report: Report) -> bool:
    """Return whether the rules have no benchmark of the name that the log states."""
    return any(finding.rule == "known-benchmark" for finding in report.findings)


class _Scored(NamedTuple):
    """The score of a submission by one verdict. It is None if the logs cannot be scored at all.

    `problem` says why there are no minutes; empty if there are. A score without minutes has its own reason.
    """

    score: Score | None
    problem: str


def _score_if_possible(compared: Sequence[Report], ruleset: Ruleset, by: str) -> _Scored:
    """Return the score of a submission's runs, or why there is none.

    Args:
        compared: The reports of `check_between_runs` on its logs.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        by: The verdict whose failed runs do not count, "official" or "strict".
    """
    try:
        score = score_runs(compared, ruleset, by, by_folder=True)
    except ValueError as error:  # the logs cannot be scored together
        return _Scored(score=None, problem=printable(str(error), 300))
    return _Scored(score=score, problem=score.problem)


def _problem_of_submission(judged: Sequence[Report], log_count: int, official: _Scored, strict: _Scored) -> str:
    """Return the first problem that a submission has as a whole; empty if it has none.

    Args:
        judged: Reports on the logs that are not of v0.5 or v0.6.
        log_count: Number of all logs.
        official: Score by the verdict of MLCommons' checker, or why there is none.
        strict: Score by this project's rules, or why there is none.
    """
    are_all_of_old_form = not judged
    if are_all_of_old_form:
        return "logs of v0.5 and v0.6 have another form"
    if strict.problem:
        return strict.problem
    if official.problem:
        return official.problem
    if official.score is not None and log_count != official.score.runs_wanted:
        return f"{counted(log_count, 'log')}; a submission has {official.score.runs_wanted}"
    return ""


def _ask_who_set_factor(
    judged: Sequence[Report], factor_of_file: float | None, test: ConvergenceTest | None
) -> Sequence[Report]:
    """Add a question to the first report if scaling.json has another factor than the convergence test gives.

    The minutes of a submission are multiplied by such a factor. The review committee may set it in scaling.json.

    Args:
        judged: The reports on the logs of a submission.
        factor_of_file: Factor of the file; None if there is no such file that can be read.
        test: Outcome of the convergence test; None if there was no test.

    Returns:
        The reports, with the question for the submitter if there is one.
    """
    factor_of_test = None if test is None else test.scaling
    if not judged or factor_of_file is None or factor_of_test is None:  # there is nothing to compare
        return judged
    is_same_but_for_rounding = abs(factor_of_file / factor_of_test - 1) <= MAX_ROUNDING
    if is_same_but_for_rounding:
        return judged
    actual = f"scaling.json says {factor_of_file!r}, the test gives {factor_of_test!r}; the file's factor is applied"
    first = judged[0].with_findings([question_for_submitter("scaling-file", actual, "ask who set it")])
    return [first, *judged[1:]]


def _official_minutes(scored: Score | None, factor_of_file: float | None) -> float | None:
    """Return the minutes that result_summarizer, a tool of MLCommons, computes for a submission.

    They are the olympic mean of the runs, which leaves out the fastest and slowest runs, times the factor of
    a scaling.json. Without this file, the factor is that of the convergence test.

    Args:
        scored: Score by the official verdict; None if there is none.
        factor_of_file: Factor of the scaling.json; None if there is no such file that can be read.

    Returns:
        The minutes. None if the tool computes none.
    """
    if scored is None or not scored.olympic:  # the tool takes no other mean
        return None
    if factor_of_file is None:
        return scored.scaled_minutes  # by the factor of the test; None if too many runs failed
    olympic_mean = scored.unscaled_minutes
    return None if olympic_mean is None else olympic_mean * factor_of_file


def _test_against_envelope(test: ConvergenceTest | None) -> EnvelopeTest | None:
    """Return the outcome of a second convergence test, for which some of the reference points are left out.

    They are those above the lower convex envelope of epochs over batch size. rcp_checker, a tool of MLCommons, is meant
    to leave them out, too, but may keep some (mlcommons/logging #368).

    Args:
        test: The outcome of the first test, by the points that rcp_checker keeps. None if there was no such test.

    Returns:
        The outcome. None if one of the tests compared the runs with no reference point.
    """
    if test is None or test.comparison is None:
        return None
    first = test.comparison.result
    second = _compare_with_envelope(test.comparison)
    # `point` is the reference point with which the runs were compared.
    if first.point is None or second.point is None:
        return None
    return EnvelopeTest(
        passed=second.passed,
        scaling=second.scaling,
        held_to=second.point.mean,
        held_to_by_tool=first.point.mean,
        unit=test.comparison.reference.unit,
        differs=second.point.mean != first.point.mean,
    )


def _compare_with_envelope(comparison: Comparison) -> Convergence:
    """Repeat a comparison of runs with reference points, with only those on the lower convex envelope.

    Args:
        comparison: The first comparison, with the points that MLCommons' rcp_checker uses.
    """
    reference = comparison.reference
    points = convergence.lower_envelope(reference)
    return convergence.against_reference(comparison.epochs_to_target, comparison.batch, reference, points)


def _questions(reports: Sequence[Report]) -> list[Question]:
    """Return one question for each rule that the logs of a submission break.

    A question shows the first breach of its rule, has the severity of this breach, and says how many logs break the
    rule. Findings of severity "info" are only notes, so they lead to no question.

    Args:
        reports: The reports on the logs. Their order, and the order of their findings, decide which breach is first.

    Returns:
        The questions of severity "error", then those of severity "warning", each group sorted by the name of the rule.
        Empty if no rule is broken.
    """
    breaches_by_rule: defaultdict[str, list[_Breach]] = defaultdict(list)
    for report in reports:
        log = printable(str(report.path))
        for finding in report.findings:
            if finding.severity != "info":
                breaches_by_rule[finding.rule].append(_Breach(log, finding))
    questions = [_question_about_rule(breaches) for breaches in breaches_by_rule.values()]
    # As texts, "error" sorts before "warning".
    return sorted(questions, key=lambda question: (question.severity, question.rule))


class _Breach(NamedTuple):
    """A finding, and the name of its log."""

    file: str
    finding: Finding


def _question_about_rule(breaches: Sequence[_Breach]) -> Question:
    """Return the question about all breaches of one rule. It shows the first, and says how many logs have one.

    Args:
        breaches: The findings, each with the name of its log, at least one.
    """
    first = breaches[0]
    return Question(
        rule=first.finding.rule,
        kind=first.finding.kind,
        official=first.finding.official,
        severity=first.finding.severity,
        logs=len({breach.file for breach in breaches}),
        file=first.file,
        line=first.finding.line,
        actual=printable(first.finding.actual, 1000),
    )
