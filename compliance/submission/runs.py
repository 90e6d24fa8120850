"""Several logs together: which files, the rules between runs, the system description, the official checker."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from compliance.check import LoggedRun, Report, check_file
from compliance.logged_run import is_number
from compliance.official import convergence
from compliance.official.rule_files import benchmarks
from compliance.rules import FINDINGS_PER_RULE, Benchmark, Finding, Ruleset, StrictRule, breach, note, verdict
from compliance.strict.copies import accuracy_of_many, resemblance, seed_key, shared_mark
from compliance.submission.description import compare_description, hardware_nodes, read_description
from compliance.submission.group import NOT_KNOWN, PASSED, ConvergenceTest, convergence_test, names_of_submission
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import open_log
from runlog.text import printable

# mlperf-logging's checker on a log, by its path, ruleset and benchmark: whether it passes, and the tool's messages
OfficialChecker: TypeAlias = Callable[[Path, str, str], tuple[bool, list[str]]]

# Sections of the header that must be the same in all runs of a submission.
_SAME_SECTIONS = tuple(s.name for s in (schema.SOURCE, schema.PACKAGES, schema.HARDWARE, schema.DATASET))
_SETTINGS_OF_A_RUN = (
    *("SEED", "RESULT_FILE", "NEXP", "ON_FAILURE", "LOGDIR", "PROGRESS"),
    *("CACHE_CLEARED", "NODE_RANK", "HOSTS", "GLOO_PORT"),
)
_OF_A_CONFIGURATION = {event.key for event in (schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES, schema.RUN_SUMMARY)}
_DIFFERENCES_SHOWN = 3  # of the configuration of a run


def logs_named_by(paths: Sequence[Path]) -> list[Path]:
    """Return the logs that `paths` name: each file itself, and of a folder its result_*.txt, sorted by their numbers.

    `[old.txt, runs/]` -> `[old.txt, runs/result_0.txt, runs/result_1.txt]`

    Raises ValueError for a path that is not there, a folder without logs, and a log that is named twice, be it by a
    link. A link that leads nowhere is returned: reading it says so.
    """
    logs: list[Path] = []
    resolved_logs: set[Path] = set()
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise ValueError(f"{path}: no such file: check the path")
        named_logs = [path]
        if path.is_dir():
            named_logs = sorted(path.glob("result_*.txt"), key=by_number)
        if not named_logs:
            raise ValueError(f"{path}: no result_*.txt in this folder; name its logs, or give `audit` the tree")
        for log in named_logs:
            if log.resolve() in resolved_logs:
                raise ValueError(f"{log}: named twice")
            resolved_logs.add(log.resolve())
            logs.append(log)
    return logs


def by_number(log: Path) -> tuple[int, str]:
    """Return the sort key by which result_10.txt comes after result_9.txt: the shorter name first."""
    return len(log.name), log.name


def check_logs(
    logs: Sequence[Path],
    ruleset: Ruleset,
    *,
    benchmark: str | None = None,
    system: Path | None = None,
    official: OfficialChecker | None = None,
    receipt: bool = False,
    hashed: bool = False,
    by: str | None = None,
) -> list[Report]:
    """Check logs, and the runs of each submission against each other. Return a report for each log, in their order.

    - `benchmark` is the one that all logs must be of; None allows any.
    - `system` is the file of a system description that the logs must agree with.
    - `official` runs mlperf-logging's checker on a log; its verdict and messages are added to the report.
    - `receipt` writes each log's verdict and SHA-256 into a file beside it.
    - `hashed` adds the log's SHA-256 to its report, as `receipt` does.
    - `by` is the verdict that counts, official or strict. None is strict for logs of this project, official for others.

    Raises ValueError for a benchmark without rules and a file that is no system description.
    """
    if benchmark is not None and benchmark not in benchmarks(ruleset.version):
        having_rules = ", ".join(benchmarks(ruleset.version))
        raise ValueError(f"benchmark {benchmark}: ruleset {ruleset.version} has no rules for it; it has {having_rules}")
    description = read_description(system) if system else None
    checked = [replace(check_file(log, ruleset, benchmark), asked=by) for log in logs]
    reports = []
    for report in check_between_runs(checked, ruleset):
        if description is not None:
            contradictions = compare_description(report.run, description, ruleset.strict["system-description"])
            report = report.with_findings(contradictions)
        if official:
            report = _with_official_verdict(report, ruleset, official)
        if receipt or hashed:
            report = replace(report, sha256=sha256(report.path))
        if receipt:
            _write_receipt(report, ruleset)
        reports.append(report)
    return reports


def _write_receipt(report: Report, ruleset: Ruleset) -> None:
    """Write the verdict and the hash of a log beside it; `package` can tell by it a log that changed since."""
    content = {"sha256": report.sha256, "verdict": verdict(report.passed), "ruleset": ruleset.version}
    receipt_path(report.path).write_text(json.dumps(content) + "\n", encoding="utf-8")


# --- rules between runs ---


class BlamedRun(NamedTuple):
    """A breach of a rule between runs, or a note on one, and the report of the run that it is about."""

    report: Report
    finding: Finding


def check_between_runs(checked: Sequence[Report], ruleset: Ruleset) -> list[Report]:
    """Compare the runs of each submission, and return the reports with what that finds after their own findings.

    Compared are the seeds, the course of the runs (no two may be copies), their configurations and their convergence.
    """
    of_report: dict[int, list[Finding]] = {id(report): [] for report in checked}  # a path may name two of them
    for members in _group_by_submission(checked):
        for compare in (_shared_seeds, _equal_runs, _differing_configurations, _against_reference_points):
            for blamed in compare(members, ruleset):
                of_report[id(blamed.report)].append(blamed.finding)
    return [report.with_findings(of_report[id(report)]) for report in checked]


def _group_by_submission(checked: Sequence[Report]) -> list[list[Report]]:
    """Return the reports in groups, one for each submission, in the order of the submissions' first logs.

    A log joins the first of these groups that there is, and else begins a group:

    - that of an earlier log which states the same benchmark, division, organisation and platform, in upper or lower
      case and with any blanks
    - that of the first log of the same benchmark in its folder: one run of five that names the organisation `Dell Inc.`
      and not `Dell` stays with the others
    """
    groups: list[list[Report]] = []
    group_by_names: dict[tuple[str, ...], list[Report]] = {}
    group_by_folder: dict[tuple[str, Path], list[Report]] = {}
    for report in checked:
        names = tuple(" ".join(name.casefold().split()) for name in names_of_submission(report.run))
        benchmark = names[0]
        benchmark_in_folder = (benchmark, report.path.parent)
        group = group_by_names.get(names)
        if group is None:
            group = group_by_folder.get(benchmark_in_folder)
        if group is None:
            group = []
            groups.append(group)
        group.append(report)
        # Neither entry is replaced by a later log: the first log with these names, and the first one of the folder,
        # say which group is joined.
        group_by_names.setdefault(names, group)
        group_by_folder.setdefault(benchmark_in_folder, group)
    return groups


def _shared_seeds(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each seed of a run that an earlier run of the submission has, too; of one run the first ten.

    A run may repeat a seed of its own. Open runs of benchmarks that are none of this project's are passed over: the
    rules expect no seed of them. So are seeds that the texts of the round do not ask to differ.
    """
    rule = ruleset.strict["seeds-differ"]
    first_run_by_seed: dict[tuple[str, ...], Report] = {}
    for report in members:
        benchmark = report.run.stated_text(schema.SUBMISSION_BENCHMARK)
        is_closed = report.run.stated_text(schema.SUBMISSION_DIVISION) == "closed"
        if benchmark not in ruleset.benchmarks and not is_closed:
            continue
        shared_seeds = 0
        for seed in report.run.all_events[schema.SEED.key]:
            key = seed_key(seed, ruleset, benchmark)
            if key is None:
                continue
            first_run = first_run_by_seed.setdefault(key, report)
            if first_run is report:
                continue
            shared_seeds += 1
            if shared_seeds <= FINDINGS_PER_RULE:
                actual = f"seed {printable(seed.value, 60)} is that of {printable(first_run.path.name)} too"
                yield BlamedRun(report, breach(rule, actual, line=seed.line))


def _equal_runs(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each run of a submission that looks like a copy of an earlier one.

    It names the first such earlier run, and what the two have in common, as in `its times are those of result_0.txt`.
    Of ResNet, runs of which too many end at one accuracy are blamed as well.
    """
    rule = ruleset.strict["runs-differ"]
    for position, report in enumerate(members):
        line = report.run.evaluations[0].line if report.run.evaluations else None
        for earlier in members[:position]:
            shared = _what_is_shared(report.run, earlier.run, ruleset)
            if shared:
                actual = f"{shared} those of {printable(earlier.path.name)}"
                yield BlamedRun(report, breach(rule, actual, line=line))
                break  # one earlier run is enough
    if members[0].run.stated_text(schema.SUBMISSION_BENCHMARK) == "resnet":
        yield from _runs_at_one_accuracy(members, rule)


def _what_is_shared(run: LoggedRun, other: LoggedRun, ruleset: Ruleset) -> str:
    """Return what shows that two runs are the same one, such as `its times are`; empty where nothing does."""
    is_ours = run.stated_text(schema.SUBMISSION_BENCHMARK) in ruleset.benchmarks
    shared = shared_mark(run, other, ours=is_ours)
    if shared or not is_ours:
        return shared
    least_power = ruleset.strict["runs-differ"].bounds["equal_intervals"]
    return resemblance(run, other, least_power) or _hosts_at_once(run, other)


def _runs_at_one_accuracy(members: Sequence[Report], rule: StrictRule) -> Iterator[BlamedRun]:
    """Yield each run but the first that ends at the accuracy at which too many runs of the submission end."""
    value = accuracy_of_many([report.run for report in members], int(rule.bounds["runs_at_one_accuracy"]))
    for report in members[1:]:
        for last in report.run.evaluations[-1:]:
            if last.value == value:
                actual = f"several runs end at an accuracy of {value!r}"
                yield BlamedRun(report, breach(rule, actual, line=last.line))


def _hosts_at_once(run: LoggedRun, other: LoggedRun) -> str:
    """Say on which host of their headers two runs trained at one time; empty if on none. Others' logs name no host."""
    hosts = {str(node.get("host")) for node in hardware_nodes(run)}
    hosts &= {str(node.get("host")) for node in hardware_nodes(other)}
    if hosts and _start_before_end(run, other) and _start_before_end(other, run):
        return f"its host {printable(min(hosts))} and hours are"
    return ""


def _start_before_end(run: LoggedRun, other: LoggedRun) -> bool:
    return run.start_ms is not None and other.stop_ms is not None and run.start_ms < other.stop_ms


# --- one configuration ---


def _differing_configurations(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a finding for each run whose configuration is not that of the submission's first run.

    It says what differs, three values at most. If a hyperparameter is among them, the finding breaks the rule
    `same-hyperparameters`, provided that this rule holds for both runs. Otherwise it breaks `same-configuration`, which
    only warns.
    """
    first = members[0]
    wanted = _configuration(first.run)
    for report in members[1:]:
        actual = _configuration(report.run)
        differing = [name for name in wanted | actual if actual.get(name) != wanted.get(name)]
        if not differing:
            continue
        shown = []
        for name in differing[:_DIFFERENCES_SHOWN]:
            value = _shown_setting(actual.get(name))
            value_of_first = _shown_setting(wanted.get(name))
            shown.append(f"{printable(name)} is {value}, in {printable(first.path.name)} {value_of_first}")
        if len(differing) > _DIFFERENCES_SHOWN:
            shown.append(f"and {len(differing) - _DIFFERENCES_SHOWN} more")

        hyperparameters_differ = any(_is_hyperparameter(name) for name in differing)
        rule = ruleset.strict["same-hyperparameters"]
        if not hyperparameters_differ or not _holds_for(rule, report.run) or not _holds_for(rule, first.run):
            rule = ruleset.strict["same-configuration"]
        yield BlamedRun(report, breach(rule, "; ".join(shown), line=report.run.first_lines.get(differing[0])))


def _shown_setting(value: object) -> str:
    """Return a value as JSON of up to 60 characters, in which blanks around a text show: `"O2 "`."""
    return printable(json.dumps(value), 60)


def _configuration(run: LoggedRun) -> JsonObject:
    """Return the values that must be the same in all runs of a submission, by name.

    Hyperparameters come first, so that a message which shows only the first differences shows these.
    The others are sections of the header, its settings, and events of the submission and the data set. Left out are the
    names of the nodes and the settings that each run has of its own, such as SEED.
    """
    hyperparameters: JsonObject = {}
    others: JsonObject = {f"header {section}": run.headers.get(section) for section in _SAME_SECTIONS}
    nodes = hardware_nodes(run)
    if nodes:  # the runs may be on different nodes of the same kind
        others["header hardware"] = [_without_host(node) for node in nodes]
    for name, setting in run.header_section(schema.CONFIG).items():
        if name not in _SETTINGS_OF_A_RUN:
            others[f"config {name}"] = setting.get("value") if isinstance(setting, dict) else setting
    for key, value in run.first_values.items():
        if _is_hyperparameter(key):
            hyperparameters[key] = value
        elif key.startswith("submission_") or key in _OF_A_CONFIGURATION:
            others[key] = value
    return hyperparameters | others


def _without_host(node: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in node.items() if name != "host"}


def _is_hyperparameter(name: str) -> bool:
    whole_names = (schema.GLOBAL_BATCH_SIZE.key, schema.GRADIENT_ACCUMULATION_STEPS.key)
    return name.startswith(("sgd_", "lars_", "opt_", "model_")) or name in whole_names


def _holds_for(rule: StrictRule, run: LoggedRun) -> bool:
    benchmark = run.stated_text(schema.SUBMISSION_BENCHMARK)
    division = run.stated_text(schema.SUBMISSION_DIVISION)
    return not rule.why_not_applied(benchmark, division)


# --- reference convergence points ---


def _against_reference_points(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield what the reference convergence points say against the runs of one closed submission.

    Such a point has the hyperparameters with which the reference of MLPerf trained at one global batch, and the epochs
    that it took to the target. The hyperparameters of each run are compared with those of the point at its batch.
    Whether the runs converged too fast is tested over all of them together, so the finding of that test is yielded for
    each.

    An open submission, and one of a benchmark without such points, yields nothing: the check of each log has a note
    that these rules were not applied.
    """
    first_run = members[0].run  # all runs of a submission state the same benchmark and division
    benchmark = ruleset.benchmarks.get(first_run.stated_text(schema.SUBMISSION_BENCHMARK))
    is_closed = first_run.first_event(schema.SUBMISSION_DIVISION).value == "closed"
    if benchmark is None or not benchmark.reference_points or not is_closed:
        return
    test = convergence_test(members, ruleset)
    if test.reference is not None:
        rule = ruleset.strict["rcp-hyperparameters"]
        for report in members:
            for finding in _other_hyperparameters(report.run, test.reference.points, rule):
                yield BlamedRun(report, finding)

    finding_of_test = _finding_of_test(test, members, benchmark, ruleset.strict["rcp-convergence"])
    if finding_of_test is not None:
        for report in members:
            yield BlamedRun(report, finding_of_test)


def _finding_of_test(
    test: ConvergenceTest, members: Sequence[Report], benchmark: Benchmark, rule: StrictRule
) -> Finding | None:
    """Return the breach of a failed convergence test, or a note why it was not applied; None where the runs pass.

    It is not applied to runs of different global batches, to more or fewer runs than a submission of the benchmark has,
    and where the tool has no points or cannot read a log. The caller has made sure that it is a test of closed runs.
    """
    batches = {report.run.global_batch for report in members}
    if len(batches) > 1:  # same-hyperparameters blames the run whose batch differs
        return note(rule, "not applied: the runs have different global_batch_size")
    if len(members) != benchmark.runs:
        return note(rule, f"not applied: it takes {benchmark.runs} runs of one submission, {len(members)} given")
    if test.status == NOT_KNOWN:
        return note(rule, f"not applied: {test.reason}")
    return None if test.status == PASSED else breach(rule, test.in_words())


def _other_hyperparameters(
    run: LoggedRun, points: Sequence[convergence.ReferencePoint], rule: StrictRule
) -> list[Finding]:
    """Return a finding for each hyperparameter of a run that differs from the reference's at the same global batch.

    `points` are the reference's, at most one for a batch. Where none has the run's batch, or the one that does has
    another optimizer, the only finding is a note that says so. Hyperparameters that the log does not state are passed
    over.
    """
    batch = run.first_values.get("global_batch_size")
    optimizer = run.first_values.get("opt_name")
    hyperparameters_by_batch = {point.global_batch: point.hyperparameters for point in points}
    if not is_number(batch) or batch not in hyperparameters_by_batch:
        return [note(rule, f"not applied: no reference point at a global batch of {printable(batch, 30)}")]
    wanted = hyperparameters_by_batch[batch]
    if wanted["optimizer"] != optimizer:
        return [note(rule, f"not applied: the reference point is of {wanted['optimizer']}")]
    findings = []
    for name, value in wanted.items():
        key = f"{optimizer}_{name}"
        is_comparable = not name.endswith("decay_steps")  # in iterations; a log may count them in epochs
        if is_comparable and key in run.first_values and run.first_values[key] != value:
            actual = f"{key} is {printable(run.first_values[key], 30)}; the reference point has {value}"
            findings.append(breach(rule, actual, line=run.first_lines.get(key)))
    return findings


# --- the official checker ---


def _with_official_verdict(report: Report, ruleset: Ruleset, official: OfficialChecker) -> Report:
    """Run mlperf-logging's checker on a report's log, and return the report with that tool's verdict and messages.

    The report already has the verdict that the tool should come to by this project's reading of its rules. Where the
    tool comes to the other one, a breach of the rule `official-disagrees` is added. If the tool is the one that rejects
    the log, the log then fails the official verdict of this report, too.
    """
    passed, messages = official(report.path, ruleset.version, report.run.stated_text(schema.SUBMISSION_BENCHMARK))
    rule = ruleset.strict["official-disagrees"]
    findings = list(report.findings)
    if passed and not report.passes_official:
        refused = ", ".join(sorted({finding.rule for finding in findings if finding.official}))
        findings.append(breach(rule, f"it passes the log; this one says that it does not, by {refused}"))
    elif not passed and report.passes_official:
        actual = f"it rejects the log: {'; '.join(messages[:2]) or 'no message'}"
        findings.append(replace(breach(rule, actual), official=True))
    answer = {"verdict": verdict(passed), "messages": messages}
    return replace(report, findings=tuple(findings), mlperf_logging=answer)


def receipt_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.checked")


def sha256(path: Path) -> str:
    import hashlib  # loads OpenSSL, which most checks do without

    digest = hashlib.sha256()
    with open_log(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
