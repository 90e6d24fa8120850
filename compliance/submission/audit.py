"""`python -m compliance audit`: a whole results repository, a row a submission."""

import argparse
import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from compliance.check import NOTHING, Report, check_file
from compliance.forms import check_replaceable
from compliance.logged_run import is_number
from compliance.mlperf import Standing
from compliance.official import convergence
from compliance.official.rule_files import versions
from compliance.rules import Finding, Ruleset, load
from compliance.strict.copies import marks
from compliance.submission import audit_forms, results_tree
from compliance.submission.audit_forms import Envelope, Question, Submission
from compliance.submission.description import over_peak, read_description
from compliance.submission.group import ConvergenceTest, convergence_test, standing_of
from compliance.submission.package import template_text
from compliance.submission.results_tree import Owner, TreeFile
from compliance.submission.runs import check_between
from compliance.submission.score import Score, score_runs
from compliance.submission.selection import Candidate, unusual
from runlog import schema
from runlog.text import printable

NEWEST = "4.0.0"  # with rules of ResNet
SCORE_DIGITS = 1e-9  # a relative difference of two factors that is none
T = TypeVar("T")


@dataclass
class _Folder:
    """The logs of one SUBMITTER/results/SYSTEM/BENCHMARK, with what the tree holds of them."""

    name: PurePosixPath
    ruleset: Ruleset
    logs: list[Report] = field(default_factory=list)
    description: dict[str, Any] = field(default_factory=dict)
    scaling: float | None = None  # of scaling.json
    owner: Owner = field(default_factory=lambda: Owner(round="", submitter="", system="", benchmark=""))
    other_form: set[str] = field(default_factory=set)  # logs of v0.5 and v0.6, which are not judged


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a run, or its times or accuracies alone, stood first."""

    folder: _Folder
    file: str
    what: str


def command(options: argparse.Namespace) -> int:
    """`python -m compliance audit`; 0 whatever it finds, as a finding is no failure of the audit."""
    page_start = template_text("audit.html").partition("{{")[0]
    forms: list[tuple[Path | None, Callable[[Sequence[Submission]], str], str]] = [
        (options.html, audit_forms.as_html, page_start),
        (options.csv, audit_forms.as_csv, audit_forms.as_csv([])),
    ]
    for path, _, start in forms:
        if path:
            check_replaceable(path, start)
    submissions = audit(options.path, options.ruleset, envelope=options.envelope)
    if not submissions:
        raise ValueError(f"{options.path}: no result_*.txt in it; give a results repository, or an archive of one")
    for path, write, _ in forms:
        if path:
            path.write_text(write(submissions), encoding="utf-8")
    if options.json:
        print(json.dumps({"submissions": [one.as_dict() for one in submissions]}, indent=2))
    else:
        print(audit_forms.as_text(submissions), end="")
    return 0


def audit(path: Path, ruleset: str | None = None, *, envelope: bool = False) -> list[Submission]:
    """The submissions below the folder, or in the tar archive, `path`.

    `ruleset` None: that of the round which a folder's name says; logs of this project, which are of no round, are of
    NEWEST. `envelope` asks for the second reading of the reference points. Raises ValueError for an archive that
    cannot be read, and for others' logs of a round that no name says.
    """
    folders: dict[PurePosixPath, _Folder] = {}
    described: dict[PurePosixPath, dict[str, Any] | str] = {}  # or why it cannot be read
    scalings: dict[PurePosixPath, float | str] = {}
    rules = functools.cache(load)
    for file in results_tree.files_of(path):
        if file.name.match(results_tree.SYSTEM):
            described[file.name] = _tried(read_description, file.content)
        elif file.name.match(results_tree.SCALING):
            scalings[file.name.parent] = _tried(_read_scaling, file.content)
        else:
            version = ruleset or results_tree.ruleset_named(path, file.name.parent)
            folder = folders.setdefault(file.name.parent, _Folder(file.name.parent, rules(version or NEWEST)))
            _add_log(folder, file, path, known_round=version is not None)

    seen: dict[tuple[object, ...], _Place] = {}
    submissions = []
    candidates = []
    for name, folder in sorted(folders.items()):
        folder.owner = results_tree.owner_of(path, name, _organisation(folder.logs))
        of_all = [*_described(folder, described), *_scaled(folder, scalings)]
        asked = _elsewhere(folder, seen)
        for one in folder.logs:
            peak = over_peak(one.run, folder.description, folder.ruleset.strict["system-description"])
            asked.setdefault(one.path.name, []).extend((*of_all, *peak))
        submissions.append(_submission(folder, asked, envelope=envelope))
        candidates.append(_candidate(folder))
    return _screened(submissions, candidates)


# --- what the tree holds of a submission ---


def _tried(read: Callable[[Path], T], content: Path | str) -> T | str:
    """Return what `read` makes of a file, or why it cannot be read."""
    try:
        return content if isinstance(content, str) else read(content)
    except (ValueError, OSError) as error:
        return printable(str(error))


def _add_log(folder: _Folder, file: TreeFile, root: Path, *, known_round: bool) -> None:
    """Check a log into its folder. Raises ValueError for one of others whose round no name says."""
    report = _tried(lambda path: check_file(path, folder.ruleset), file.content)
    if isinstance(report, str):
        report = Report(path=Path(), findings=(_asked("log", report, "ask for the log", severity="error"),))
    report = replace(report, path=Path(file.name.name))
    if report.run is NOTHING and results_tree.has_another_form(root, file):
        folder.other_form.add(file.name.name)
    elif not known_round and report.run is not NOTHING and not report.run.is_project_log:
        raise ValueError(
            f"{root}: of which round is {file.name}? No folder above it names one that has rules; give --ruleset, "
            f"one of {', '.join(versions())}"
        )
    folder.logs.append(report)


def _read_scaling(path: Path) -> float:
    """The factor in a scaling.json. Raises ValueError where it holds none."""
    factor: Any = read_description(path).get("scaling_factor")
    if not is_number(factor) or factor <= 0:
        raise ValueError(f"{path.name}: no scaling_factor above 0")
    return float(factor)


def _organisation(logs: Sequence[Report]) -> str:
    stated = (one.run.text(schema.SUBMISSION_ORG) for one in logs)
    return next(filter(None, stated), "")


def _described(folder: _Folder, described: Mapping[PurePosixPath, dict[str, Any] | str]) -> Iterator[Finding]:
    """Find the folder's system description; a question where the tree has some and lacks or garbles this one."""
    if not described or len(folder.name.parts) < 3:  # a tree without any, or one that begins below SUBMITTER
        return
    file = folder.name.parents[2] / "systems" / f"{folder.name.parent.name}.json"
    description = described.get(file, f"{file}: missing")
    if isinstance(description, str):
        yield _asked("system-description", description, "ask for the description")
    else:
        folder.description = description


def _scaled(folder: _Folder, scalings: Mapping[PurePosixPath, float | str]) -> Iterator[Finding]:
    """Find the folder's scaling.json; a question where it cannot be read."""
    scaling = scalings.get(folder.name)
    if isinstance(scaling, str):
        yield _asked("scaling-file", scaling, "ask for the factor that the review committee set")
    else:
        folder.scaling = scaling


def _asked(rule: str, actual: str, fix: str, *, severity: str = "warning") -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        actual=actual,
        fix=fix,
        kind="plausibility",
        source="this project",
        official=severity == "error",
    )


# --- runs that stand in two submissions ---


def _elsewhere(folder: _Folder, seen: dict[tuple[object, ...], _Place]) -> dict[str, list[Finding]]:
    """By log: that its run, or its times or accuracies alone, stand in a submission before this one, too.

    A submission with power logs holds the runs of one without them by intent. Those of an earlier round may be
    submitted again: training_rules.adoc, section Results Resubmission.
    """
    found: dict[str, list[Finding]] = {}
    for one in folder.logs:
        places = [
            seen.setdefault(mark, _Place(folder=folder, file=one.path.name, what=mark.what)) for mark in marks(one.run)
        ]
        elsewhere = next((place for place in places if place.folder is not folder), None)
        if elsewhere is not None:
            found[one.path.name] = [_of_two_places(one, folder, elsewhere)]
    return found


def _of_two_places(one: Report, folder: _Folder, place: _Place) -> Finding:
    """The question about a run that stands in `folder` and in the submission of `place`."""
    other = place.folder
    actual = f"the {place.what} of {printable(place.file)} of {printable(str(other.name))}"
    severity = "warning"
    submitter = folder.owner.submitter
    same_owner = submitter.partition("-")[0] == other.owner.submitter.partition("-")[0]
    if submitter != other.owner.submitter and same_owner and "power" in submitter:
        actual = f"{actual}: this is its submission with power logs"
        severity = "info"
    elif folder.name.parts[0] != other.name.parts[0]:
        same = "identical" if folder.description == other.description else "not identical"
        if not folder.description or not other.description:
            same = "missing"
        passes = "passes" if one.official else "does not pass"
        actual += (
            f": a resubmission is allowed where system.json is identical (here: {same}) and the log passes the "
            f"new round's checker (it {passes}); training_rules.adoc, section Results Resubmission"
        )
    return _asked("run-elsewhere", actual, "ask which system ran it", severity=severity)


# --- runs that were selected ---


def _candidate(folder: _Folder) -> Candidate:
    """The folder's runs for the screen; none where one did not converge, or rcp_checker cannot read it."""
    first = folder.logs[0].run
    group = (folder.owner.round, first.text(schema.SUBMISSION_BENCHMARK), first.global_batch)
    to_target: list[float] = []
    for one in folder.logs:
        samples = one.run.as_tools_read.to_target
        closed = one.run.text(schema.SUBMISSION_DIVISION) == "closed"
        if closed and one.official and samples is not None and math.isfinite(samples):
            to_target.append(samples)
    organisation = folder.owner.submitter.partition("-")[0]
    return Candidate(organisation=organisation, group=group, to_target=tuple(to_target))


def _screened(submissions: Sequence[Submission], candidates: Sequence[Candidate]) -> list[Submission]:
    """The submissions, those that converged unusually soon with a question about it."""
    chances = unusual(candidates)
    screened = []
    for place, submission in enumerate(submissions):
        if place in chances:
            actual = (
                f"unusual (p = {chances[place]:.2g}): its runs converged sooner than those of all others at its batch"
            )
            question = Question(
                rule="selected-runs",
                kind="plausibility",
                official=False,
                severity="warning",
                logs=submission.logs,
                file="",
                line=None,
                actual=actual,
            )
            submission = replace(submission, questions=(*submission.questions, question))
        screened.append(submission)
    return screened


# --- a row ---


def _submission(folder: _Folder, asked: Mapping[str, list[Finding]], *, envelope: bool) -> Submission:
    ruleset = folder.ruleset
    checked = sorted(folder.logs, key=lambda one: (len(one.path.name), one.path.name))
    compared = check_between(checked, ruleset)
    reports = [replace(one, findings=(*one.findings, *asked[one.path.name])) for one in compared]
    judged = [one for one in reports if one.path.name not in folder.other_form]
    first = next((one.run for one in checked if one.run is not NOTHING), NOTHING)
    official, official_problem = _scored(checked, ruleset, "official")
    strict, strict_problem = _scored(checked, ruleset, "strict")
    problem = strict_problem or official_problem or _of_number(checked, official)
    if not judged:
        problem = "logs of v0.5 and v0.6 have another form"

    standing: Standing | None = None
    test: ConvergenceTest | None = None
    if first is not NOTHING:
        of_runs = [one for one in checked if one.run is not NOTHING]
        standing = standing_of(of_runs, ruleset)
        test = convergence_test(of_runs, ruleset) if len(of_runs) == len(checked) and official else None
    scaling = test.scaling if test else None
    official_minutes = _official_minutes(official, folder.scaling)
    if folder.scaling is not None and scaling is not None and abs(folder.scaling / scaling - 1) > SCORE_DIGITS:
        actual = f"scaling.json says {folder.scaling!r}, the test gives {scaling!r}; the file's factor is applied"
        judged = [_with(judged[0], _asked("scaling-file", actual, "ask who set it")), *judged[1:]] if judged else []
    return Submission(
        round=printable(folder.owner.round),
        submitter=printable(folder.owner.submitter),
        system=printable(folder.owner.system),
        benchmark=printable(folder.owner.benchmark),
        division=printable(first.values.get(schema.SUBMISSION_DIVISION.key, "")),
        ruleset=ruleset.version,
        logs=len(checked),
        not_judged=sum(one.path.name in folder.other_form or _is_unknown_benchmark(one) for one in reports),
        global_batch=first.global_batch,
        official_passes=sum(report.official for report in judged),
        strict_passes=sum(report.strict for report in judged),
        official_minutes=official_minutes,
        strict_minutes=None if strict is None else strict.minutes,
        rcp=test.status if test else "not known",
        scaling=scaling,
        scaling_file=folder.scaling,
        convergence=test.in_words() if test else "",
        standing=standing,
        envelope=_envelope(test) if envelope and test else None,
        problem=problem,
        questions=tuple(_questions(judged)),
    )


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
    if scored is None or len(checked) == scored.runs_wanted:
        return ""
    return f"{len(checked)} logs; a submission has {scored.runs_wanted}"


def _is_unknown_benchmark(report: Report) -> bool:
    return any(finding.rule == "known-benchmark" for finding in report.findings)


def _with(report: Report, finding: Finding) -> Report:
    return replace(report, findings=(*report.findings, finding))


def _envelope(test: ConvergenceTest) -> Envelope | None:
    """The test once more, against the lower convex envelope of the reference points; None where there was no test."""
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
    """Each rule that a log breaks once, errors first."""
    found: defaultdict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for report in reports:
        for finding in report.findings:
            if finding.severity != "info":
                found[finding.rule].append((printable(str(report.path)), finding))
    for rule, breaches in sorted(found.items(), key=lambda item: (item[1][0][1].severity, item[0])):
        file, first = breaches[0]
        yield Question(
            rule=rule,
            kind=first.kind,
            official=first.official,
            severity=first.severity,
            logs=len({name for name, _ in breaches}),
            file=file,
            line=first.line,
            actual=printable(first.actual, 1000),
        )
