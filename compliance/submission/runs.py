"""Several logs together: which files, the rules between runs, the system description, the official checker."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compliance.check import LoggedRun, Report, check_file
from compliance.official import convergence
from compliance.official.rule_files import benchmarks
from compliance.rules import FINDINGS_PER_RULE, Finding, Ruleset, StrictRule, breach, note, verdict
from compliance.strict.copies import accuracy_of_many, resemblance, seed_key, shared_mark
from compliance.submission.description import compare_description, hardware_nodes, read_description
from compliance.submission.group import NOT_KNOWN, PASSED, convergence_test, submission_of
from runlog import schema
from runlog.reader import open_log
from runlog.text import printable

# Fields of the header that must be the same in all runs of a submission.
SAME_SECTIONS = tuple(s.name for s in (schema.SOURCE, schema.PACKAGES, schema.HARDWARE, schema.DATASET))
OWN_OF_A_RUN = (
    *("SEED", "RESULT_FILE", "NEXP", "ON_FAILURE", "LOGDIR", "PROGRESS"),
    *("CACHE_CLEARED", "NODE_RANK", "HOSTS", "GLOO_PORT"),
)
_OF_A_CONFIGURATION = {event.key for event in (schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES, schema.RUN_SUMMARY)}


def expand(paths: Sequence[Path]) -> list[Path]:
    """The logs that `paths` name: files as they are, folders as their result_*.txt in the order of their numbers.

    Raises ValueError for a path that is not there, a folder without logs and a file named twice.
    """
    logs: dict[Path, Path] = {}
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise ValueError(f"{path}: no such file: check the path")
        inside = (
            sorted(path.glob("result_*.txt"), key=lambda log: (len(log.name), log.name)) if path.is_dir() else [path]
        )
        if not inside:
            raise ValueError(f"{path}: no result_*.txt in this folder; name its logs, or give `audit` the tree")
        for log in inside:
            if logs.setdefault(log.resolve(), log) is not log:
                raise ValueError(f"{log}: named twice")
    return list(logs.values())


def check_logs(
    logs: Sequence[Path],
    ruleset: Ruleset,
    *,
    benchmark: str | None = None,
    system: Path | None = None,
    official: Callable[[Path, str, str], tuple[bool, list[str]]] | None = None,
    receipt: bool = False,
    hashed: bool = False,
    by: str | None = None,
) -> list[Report]:
    """The report of each log, the rules between runs included. Raises ValueError for wrong use.

    `official` runs mlperf-logging's checker on a log, by ruleset and benchmark: its verdict and messages stand beside.
    `by` is the verdict that counts; None: strict for logs of this project, official for others.
    """
    if benchmark is not None and benchmark not in (known := benchmarks(ruleset.version)):
        raise ValueError(
            f"benchmark {benchmark}: ruleset {ruleset.version} has no rules for it; it has {', '.join(known)}"
        )
    description = read_description(system) if system else None
    checked = [replace(check_file(log, ruleset, benchmark), asked=by) for log in logs]
    reports = []
    for report in check_between(checked, ruleset):
        if description is not None:
            differs = compare_description(report.run, description, ruleset.strict["system-description"])
            report = replace(report, findings=(*report.findings, *differs))
        if official:
            report = _beside(report, ruleset, official)
        if receipt or hashed:
            report = replace(report, sha256=sha256(report.path))
        if receipt:  # `package` can tell by it a log that changed since
            said = {"sha256": report.sha256, "verdict": verdict(report.passed), "ruleset": ruleset.version}
            receipt_path(report.path).write_text(json.dumps(said) + "\n", encoding="utf-8")
        reports.append(report)
    return reports


# --- rules between runs ---

Found = Iterator[tuple[Report, Finding]]  # of the run to blame


def check_between(checked: Sequence[Report], ruleset: Ruleset) -> list[Report]:
    """The reports with the findings of the rules that compare runs, after their own.

    Compared are runs of one benchmark that lie in one folder or say the same of their submission, blanks and case left
    out: a text that differs makes no other submission of a run.
    """
    found: dict[int, list[Finding]] = {id(one): [] for one in checked}
    for members in _groups(checked):
        for compare in (_seeds, _copies, _configurations, _convergence):
            for one, finding in compare(members, ruleset):
                found[id(one)].append(finding)
    return [replace(one, findings=(*one.findings, *found[id(one)])) for one in checked]


def _groups(checked: Sequence[Report]) -> list[list[Report]]:
    """The runs of each submission, by its names or its folder."""
    groups: dict[int, list[Report]] = {}
    group_of: dict[tuple[Any, ...], int] = {}  # of a submission's names, and of a folder
    for index, one in enumerate(checked):
        names = tuple(" ".join(name.casefold().split()) for name in submission_of(one.run))
        folder = (names[0], one.path.parent)
        group = group_of.get(names, group_of.get(folder, index))
        group_of.setdefault(names, group)
        group_of.setdefault(folder, group)
        groups.setdefault(group, []).append(one)
    return list(groups.values())


def _seeds(members: Sequence[Report], ruleset: Ruleset) -> Found:
    """Find seeds that two runs share."""
    rule = ruleset.strict["seeds-differ"]
    first: dict[tuple[str, ...], Report] = {}
    for one in members:
        closed = one.run.text(schema.SUBMISSION_DIVISION) == "closed"
        benchmark = one.run.text(schema.SUBMISSION_BENCHMARK)
        if benchmark not in ruleset.benchmarks and not closed:
            continue  # "OPEN: ... The seed is not expected to be logged"
        shared = 0
        for seed in one.run.kept[schema.SEED.key]:
            key = seed_key(seed, ruleset, benchmark)
            other = one if key is None else first.setdefault(key, one)
            shared += other is not one
            if other is not one and shared <= FINDINGS_PER_RULE:
                actual = f"seed {printable(seed.value, 60)} is that of {printable(other.path.name)} too"
                yield one, breach(rule, actual, line=seed.line)


def _copies(members: Sequence[Report], ruleset: Ruleset) -> Found:
    """Find runs that are one, and many runs that end at one accuracy."""
    rule = ruleset.strict["runs-differ"]
    for position, one in enumerate(members):
        line = one.run.evaluations[0].line if one.run.evaluations else None
        for other in members[:position]:
            what = _what_is_shared(one.run, other.run, ruleset)
            if what:
                yield one, breach(rule, f"{what} those of {printable(other.path.name)}", line=line)
                break
    if members[0].run.text(schema.SUBMISSION_BENCHMARK) == "resnet":
        yield from _one_end(members, rule)


def _what_is_shared(run: LoggedRun, other: LoggedRun, ruleset: Ruleset) -> str:
    ours = run.text(schema.SUBMISSION_BENCHMARK) in ruleset.benchmarks
    shared = shared_mark(run, other, ours=ours)
    if shared or not ours:
        return shared
    least_power = ruleset.strict["runs-differ"].bounds["equal_intervals"]
    return resemblance(run, other, least_power) or _hosts_at_once(run, other)


def _one_end(members: Sequence[Report], rule: StrictRule) -> Found:
    value = accuracy_of_many([one.run for one in members], int(rule.bounds["runs_at_one_accuracy"]))
    for one in members[1:]:
        for last in one.run.evaluations[-1:]:
            if last.value == value:
                yield one, breach(rule, f"several runs end at an accuracy of {value!r}", line=last.line)


def _hosts_at_once(run: LoggedRun, other: LoggedRun) -> str:
    """Say on which host of their headers two runs trained at one time; others' logs name no host."""
    hosts = {str(node.get("host")) for node in hardware_nodes(run)}
    hosts &= {str(node.get("host")) for node in hardware_nodes(other)}
    if hosts and _start_before_end(run, other) and _start_before_end(other, run):
        return f"its host {printable(min(hosts))} and hours are"
    return ""


def _start_before_end(run: LoggedRun, other: LoggedRun) -> bool:
    return run.start_ms is not None and other.stop_ms is not None and run.start_ms < other.stop_ms


def configuration(run: LoggedRun) -> dict[str, Any]:
    """The values that must be the same in all runs of a submission, by name; hyperparameters first."""
    tuned: dict[str, Any] = {}
    others: dict[str, Any] = {f"header {section}": run.headers.get(section) for section in SAME_SECTIONS}
    nodes = hardware_nodes(run)
    if nodes:  # any nodes of the same kind will do
        others["header hardware"] = [_without_host(node) for node in nodes]
    for name, value in run.section(schema.CONFIG).items():
        if name not in OWN_OF_A_RUN:
            others[f"config {name}"] = value.get("value") if isinstance(value, dict) else value
    for key, value in run.values.items():
        if _is_hyperparameter(key):
            tuned[key] = value
        elif key.startswith("submission_") or key in _OF_A_CONFIGURATION:
            others[key] = value
    return tuned | others


def _without_host(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "host"}


def _is_hyperparameter(name: str) -> bool:
    whole = (schema.GLOBAL_BATCH_SIZE.key, schema.GRADIENT_ACCUMULATION_STEPS.key)
    return name.startswith(("sgd_", "lars_", "opt_", "model_")) or name in whole


def _configurations(members: Sequence[Report], ruleset: Ruleset) -> Found:
    """Find runs whose configuration is not that of the first one."""
    first = members[0]
    wanted = configuration(first.run)
    for one in members[1:]:
        actual = configuration(one.run)
        names = [name for name in wanted | actual if actual.get(name) != wanted.get(name)]
        if not names:
            continue
        shown = []
        for name in names[:3]:
            value = printable(json.dumps(actual.get(name)), 60)  # blanks show
            of_first = printable(json.dumps(wanted.get(name)), 60)
            shown.append(f"{printable(name)} is {value}, in {printable(first.path.name)} {of_first}")
        if len(names) > 3:
            shown.append(f"and {len(names) - 3} more")
        rule = ruleset.strict["same-configuration"]
        if any(map(_is_hyperparameter, names)) and _holds_for_both("same-hyperparameters", one.run, first.run, ruleset):
            rule = ruleset.strict["same-hyperparameters"]
        yield one, breach(rule, "; ".join(shown), line=one.run.lines.get(names[0]))


def _holds_for_both(rule: str, run: LoggedRun, other: LoggedRun, ruleset: Ruleset) -> bool:
    for one in (run, other):
        benchmark = one.text(schema.SUBMISSION_BENCHMARK)
        division = one.text(schema.SUBMISSION_DIVISION)
        if ruleset.strict[rule].why_not_applied(benchmark, division):
            return False
    return True


# --- reference convergence points ---


def _convergence(members: Sequence[Report], ruleset: Ruleset) -> Found:
    """Hold the runs of a submission against the reference convergence points, where strict knows their benchmark."""
    run = members[0].run
    benchmark = ruleset.benchmarks.get(run.text(schema.SUBMISSION_BENCHMARK))
    closed = run.of(schema.SUBMISSION_DIVISION).value == "closed"
    if benchmark is None or not benchmark.reference_points or not closed:
        return  # check says so for each log
    test = convergence_test(members, ruleset)
    if test.reference is not None:
        for one in members:
            for finding in _hyperparameters(one.run, test.reference.points, ruleset.strict["rcp-hyperparameters"]):
                yield one, finding

    rule = ruleset.strict["rcp-convergence"]
    batches = {one.run.global_batch for one in members}
    if len(batches) > 1:  # same-hyperparameters blames the run whose batch differs
        of_all = note(rule, "not applied: the runs have different global_batch_size")
    elif len(members) != benchmark.runs:
        of_all = note(rule, f"not applied: it takes {benchmark.runs} runs of one submission, {len(members)} given")
    elif test.status == NOT_KNOWN:
        of_all = note(rule, f"not applied: {test.reason}")
    elif test.status == PASSED:
        return
    else:
        of_all = breach(rule, test.in_words())
    for one in members:
        yield one, of_all


def _hyperparameters(run: LoggedRun, points: Sequence[convergence.ReferencePoint], rule: StrictRule) -> list[Finding]:
    """The hyperparameters that are not those of the reference point of the run's batch."""
    batch = run.values.get("global_batch_size")
    optimizer = run.values.get("opt_name")
    of_batch = [point.hyperparameters for point in points if point.global_batch == batch]
    if not of_batch:
        return [note(rule, f"not applied: no reference point at a global batch of {printable(batch, 30)}")]
    wanted = of_batch[0]
    if wanted["optimizer"] != optimizer:
        return [note(rule, f"not applied: the reference point is of {wanted['optimizer']}")]
    findings = []
    for name, value in wanted.items():
        key = f"{optimizer}_{name}"
        # the references count decay steps in iterations, logs in iterations or epochs
        if run.values.get(key, value) != value and not name.endswith("decay_steps"):
            actual = f"{key} is {printable(run.values[key], 30)}; the reference point has {value}"
            findings.append(breach(rule, actual, line=run.lines.get(key)))
    return findings


# --- the official checker ---


def _beside(report: Report, ruleset: Ruleset, official: Callable[[Path, str, str], tuple[bool, list[str]]]) -> Report:
    passed, messages = official(report.path, ruleset.version, report.run.text(schema.SUBMISSION_BENCHMARK))
    found = list(report.findings)
    if passed and not report.official:
        refused = ", ".join(sorted({f.rule for f in found if f.official}))
        actual = f"it passes the log; this one says that it does not, by {refused}"
        found.append(breach(ruleset.strict["official-disagrees"], actual))
    elif not passed and report.official:
        actual = f"it rejects the log: {'; '.join(messages[:2]) or 'no message'}"
        found.append(replace(breach(ruleset.strict["official-disagrees"], actual), official=True))
    answer = {"verdict": verdict(passed), "messages": messages}
    return replace(report, findings=tuple(found), mlperf_logging=answer)


def receipt_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.checked")


def sha256(path: Path) -> str:
    import hashlib  # loads OpenSSL, which most checks do without

    digest = hashlib.sha256()
    with open_log(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
