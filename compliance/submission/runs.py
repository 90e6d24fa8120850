"""Several logs together: which files, the rules between runs, the system description, the official checker."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from compliance.check import Report, check_file
from compliance.logged_run import LoggedRun, is_number
from compliance.official.rule_files import benchmarks
from compliance.rules import FINDINGS_PER_RULE, Finding, Ruleset, StrictRule, breach, verdict
from compliance.strict.copies import (
    describe_equal_mark,
    describe_near_accuracies,
    describe_near_losses,
    describe_resemblance,
    describe_same_run,
    seed_key,
    shared_last_accuracy,
)
from compliance.submission.description import compare_description, hardware_nodes, read_description
from compliance.submission.group import BlamedRun, names_of_submission
from compliance.submission.reference_points import findings_by_reference_points
from compliance.submission.trials import gaps_between_trials
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Event, open_log
from runlog.text import printable

# mlperf-logging's checker on a log, by its path, ruleset and benchmark: whether it passes, and the tool's messages
OfficialChecker: TypeAlias = Callable[[Path, str, str], tuple[bool, list[str]]]

# Sections of the header that must be the same in all runs of a submission.
_SAME_SECTIONS = tuple(
    s.name for s in (schema.SOURCE, schema.PACKAGES, schema.HARDWARE, schema.DATASET, schema.PROGRAM)
)
_SETTINGS_THAT_MAY_DIFFER = (
    *("SEED", "RESULT_FILE", "NEXP", "ON_FAILURE", "LOGDIR", "PROGRESS"),
    *("NODE_RANK", "HOSTS", "GLOO_PORT"),
    *("KEEP_TRIALS", "JOB_KEY", "SSH_PORT"),  # which a launcher sets: where it goes on, and for each job
)
# Variables that decide how a run computes begin so. Others may be of a node, such as those of its network and its GPUs.
_PREFIXES_OF_COMPUTING = ("FLAGS_", "OMP_", "MKL_", "CUBLAS_", "CUDNN_", "DALI_", "NVIDIA_TF32_")
_KEYS_THAT_MUST_AGREE = {event.key for event in (schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES, schema.RUN_SUMMARY)}
_MAX_MEMORY_DIFFERENCE = 0.01  # of two nodes of the same kind, as a share
_DIFFERENCES_SHOWN = 3  # of the configuration of a run


def logs_named_by(paths: Sequence[Path]) -> list[Path]:
    """Return the logs that some paths name: each file itself, and all result_*.txt of each folder, sorted by number.

    [old.txt, runs/] gives [old.txt, runs/result_0.txt, runs/result_1.txt].

    Args:
        paths: Logs, and folders of logs.

    Raises:
        ValueError: A path does not exist, a folder has no logs, or a log is named twice.
    """
    logs: list[Path] = []
    resolved_logs: set[str] = set()
    for path in paths:
        is_anything_there = path.exists() or path.is_symlink()  # a link that leads nowhere gives its error when read
        if not is_anything_there:
            raise ValueError(f"{path}: no such file: check the path")
        named_logs = [path]
        if path.is_dir():
            named_logs = sorted(path.glob("result_*.txt"), key=by_number)
        if not named_logs:
            raise ValueError(f"{path}: no result_*.txt in this folder; name its logs, or give `audit` the tree")
        for log in named_logs:
            resolved_log = os.path.realpath(log)  # Path.resolve() raises an error of its own for a loop of links
            if resolved_log in resolved_logs:
                raise ValueError(f"{log}: named twice")
            resolved_logs.add(resolved_log)
            logs.append(log)
    return logs


def by_number(log: Path) -> tuple[int, str]:
    """Return a sort key that puts result_10.txt after result_9.txt: shorter names come first."""
    return len(log.name), log.name


def check_logs(
    logs: Sequence[Path],
    ruleset: Ruleset,
    *,
    benchmark: str | None = None,  # that all logs must be of; None: any
    system: Path | None = None,  # the file of a system description that the logs must not contradict
    official: OfficialChecker | None = None,  # also ask mlperf-logging's checker about each log
    receipt: bool = False,  # write the verdict and the SHA-256 of each log into a file next to it
    hashed: bool = False,  # add the SHA-256 of each log to its report; `receipt` does so as well
    by: str | None = None,  # the verdict that counts; None: strict for logs of this project, official for others
) -> list[Report]:
    """Check training logs by the rules of MLPerf, and compare the runs of each submission with each other.

    Args:
        logs: Paths of the logs.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own ("strict") rules for
            it.
        benchmark: Name of the benchmark that all logs must be of, such as "resnet". None: any.
        system: File of a system description, which the logs must not contradict. None: there is none.
        official: Asks mlperf-logging, MLCommons' own checker, about a log as well. None: it is not asked.
        receipt: Whether to write the verdict and the SHA-256 of each log into a file next to the log.
        hashed: Whether each report states the SHA-256 of its log. It always does with `receipt`.
        by: The verdict that counts, "official" or "strict". None: strict for logs of this project, official for others.

    Returns:
        A report for each log, in the order of `logs`: its findings and the facts of its run.

    Raises:
        ValueError: The ruleset has no rules for `benchmark`, or `system` is not a system description.
        OSError: `system` cannot be opened, or a receipt cannot be written.
    """
    _refuse_unknown_benchmark(benchmark, ruleset)
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


def _refuse_unknown_benchmark(benchmark: str | None, ruleset: Ruleset) -> None:
    """Raise ValueError if the ruleset has no rules for a benchmark.

    Args:
        benchmark: Name of the benchmark; None stands for any, which is accepted.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Raises:
        ValueError: The ruleset has no rules for it. The message names the benchmarks that have rules.
    """
    if benchmark is not None and benchmark not in benchmarks(ruleset.version):
        having_rules = ", ".join(benchmarks(ruleset.version))
        raise ValueError(f"benchmark {benchmark}: ruleset {ruleset.version} has no rules for it; it has {having_rules}")


def _write_receipt(report: Report, ruleset: Ruleset) -> None:
    """Write a log's verdict and hash into a file next to it, so that `package` can tell if the log changed since.

    Args:
        report: The report on the log, with its hash.
        ruleset: The rules by which the log was checked; their version is written, too.
    """
    content = {"sha256": report.sha256, "verdict": verdict(report.passed), "ruleset": ruleset.version}
    receipt_path(report.path).write_text(json.dumps(content) + "\n", encoding="utf-8")


# --- rules between runs ---


def check_between_runs(checked: Sequence[Report], ruleset: Ruleset) -> list[Report]:
    """Compare the runs of each submission with each other, and return their reports with what was found.

    Args:
        checked: The report of each log, which was checked by itself. Logs of several submissions may be mixed.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        The reports in the same order. The new findings follow each report's own.
    """
    compared = []
    for report, new_findings in zip(checked, findings_between_runs(checked, ruleset), strict=True):
        compared.append(report.with_findings(new_findings))
    return compared


def findings_between_runs(checked: Sequence[Report], ruleset: Ruleset) -> list[list[Finding]]:
    """Compare the runs of each submission with each other, and return the new findings on each run.

    Two runs may not share a seed, nor look like copies of one run. All must have the same configuration. Closed runs
    are also compared with the reference runs of MLPerf (see `findings_by_reference_points`).

    Args:
        checked: The report of each log, which was checked by itself. Logs of several submissions may be mixed.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        A list of findings for each report, in the order of `checked`.
    """
    # The key is id(report), because two reports may have the same path.
    new_findings_by_id: dict[int, list[Finding]] = {id(report): [] for report in checked}
    for members in _group_by_submission(checked):
        blamed_runs = [
            *_shared_seeds(members, ruleset),
            *_copies_of_earlier_runs(members, ruleset),
            *_runs_at_one_accuracy(members, ruleset),
            *_differing_configurations(members, ruleset),
            *gaps_between_trials(members, ruleset),
            *findings_by_reference_points(members, ruleset),
        ]
        for blamed in blamed_runs:
            new_findings_by_id[id(blamed.report)].append(blamed.finding)
    return [new_findings_by_id[id(report)] for report in checked]


def _group_by_submission(checked: Sequence[Report]) -> list[list[Report]]:
    """Return the reports on logs in groups, one for each submission, in the order of the submissions' first logs.

    The names of a submission are its benchmark, division, organisation and platform, but for case and blanks.

    Args:
        checked: The report of each log.
    """
    groups: list[list[Report]] = []
    group_by_names: dict[tuple[str, ...], list[Report]] = {}
    group_by_folder: dict[tuple[str, Path], list[Report]] = {}  # the key is the benchmark and the folder
    for report in checked:
        names = _comparable_names(report.run)
        benchmark = names[0]  # `names_of_submission` has it first
        folder = (benchmark, report.path.parent)
        group = group_by_names.get(names)
        if group is None:  # names may vary in one folder, where one log says `Dell Inc.` instead of `Dell`
            group = group_by_folder.get(folder)
        if group is None:  # this log begins a new submission
            group = []
            groups.append(group)
        group.append(report)
        group_by_names.setdefault(names, group)
        group_by_folder.setdefault(folder, group)  # the first log's submission stays that of the folder
    return groups


def _comparable_names(run: LoggedRun) -> tuple[str, ...]:
    """Return the names of a run's submission without differences in case or blanks: `Some  Lab` gives `some lab`."""
    return tuple(" ".join(name.casefold().split()) for name in names_of_submission(run))


def _shared_seeds(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each seed of a run that an earlier run of the submission also has.

    Args:
        members: The reports on the logs of one submission.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Yields:
        The report of a run and the breach of the rule `seeds-differ`; at most FINDINGS_PER_RULE (ten) for each run.
    """
    rule = ruleset.strict["seeds-differ"]
    first_run_by_seed: dict[tuple[str, ...], Report] = {}
    # A run that went on from a checkpoint keeps the seed that it began with. Another rule refuses it.
    runs_from_their_start = [report for report in members if not report.run.is_resumed]
    for report in runs_from_their_start:
        shared_seeds: list[tuple[Event, Report]] = []  # each with the earlier run that has it
        for seed in _seeds_that_must_differ(report.run, ruleset):
            first_run = first_run_by_seed.get(seed.key)
            if first_run is None:
                first_run_by_seed[seed.key] = report
            elif first_run is not report:  # a run may repeat its own seed
                shared_seeds.append((seed.event, first_run))
        for event, first_run in shared_seeds[:FINDINGS_PER_RULE]:
            actual = f"seed {printable(event.value, 60)} is that of {printable(first_run.path.name)} too"
            yield BlamedRun(report, breach(rule, actual, line=event.line))


class _Seed(NamedTuple):
    """An event that logs a seed, and the key under which other runs' seeds are compared with it."""

    event: Event
    key: tuple[str, ...]


def _seeds_that_must_differ(run: LoggedRun, ruleset: Ruleset) -> Iterator[_Seed]:
    """Yield the seeds of a run that must differ from the seeds of the submission's other runs.

    Open runs of benchmarks that this project does not train may have any seeds. In other runs some seeds are exempt,
    such as those that were logged without a value.

    Args:
        run: The run, by its log.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it. Its
            `benchmarks` are those that this project trains.

    Yields:
        The event that logs a seed, and the key by which seeds of two runs are compared.
    """
    benchmark = run.stated_text(schema.SUBMISSION_BENCHMARK)
    is_closed = run.stated_text(schema.SUBMISSION_DIVISION) == "closed"
    is_benchmark_of_ours = benchmark in ruleset.benchmarks
    must_seeds_differ = is_closed or is_benchmark_of_ours
    if not must_seeds_differ:
        return
    for event in run.all_events[schema.SEED.key]:
        key = seed_key(event, ruleset, benchmark)
        if key is not None:  # None: this seed need not differ
            yield _Seed(event, key)


def _copies_of_earlier_runs(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each run of a submission that looks like a copy of an earlier run.

    Args:
        members: The reports on the logs of one submission.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Yields:
        The report of a run and the breach of the rule `runs-differ`, which says what the runs share, such as `its times
        and accuracies are those of result_0.txt`.
    """
    rule = ruleset.strict["runs-differ"]
    for position, report in enumerate(members):
        earlier_runs = members[:position]
        what_is_shared = _first_shared(report.run, earlier_runs, ruleset)
        if what_is_shared:
            first_accuracy = report.run.first_events.get(schema.EVAL_ACCURACY.key)
            line = None if first_accuracy is None else first_accuracy.line
            yield BlamedRun(report, breach(rule, what_is_shared, line=line))


def _first_shared(run: LoggedRun, earlier_runs: Sequence[Report], ruleset: Ruleset) -> str:
    """Return what a run shares with the first earlier run that it looks like a copy of.

    Args:
        run: The run, by its log.
        earlier_runs: The reports on the earlier runs of the submission.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        A sentence such as `its times and accuracies are those of result_0.txt`; empty if the run looks like no copy.
    """
    for earlier in earlier_runs:
        what_is_shared = _what_is_shared(run, earlier.run, printable(earlier.path.name), ruleset)
        if what_is_shared:
            return what_is_shared
    return ""


def _what_is_shared(run: LoggedRun, other: LoggedRun, name_of_other: str, ruleset: Ruleset) -> str:
    """Return a sentence on what shows that two logs are of the same run; empty if nothing does.

    Several signs together show it in any benchmark, and in this project's benchmarks one sign is enough.

    Args:
        run: A run, by its log.
        other: The run to compare it with.
        name_of_other: Name of the other log, for the sentence.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        A sentence such as `its times and accuracies are those of result_0.txt`.
    """
    several_signs = describe_same_run(run, other, name_of_other)
    if several_signs:
        return several_signs
    # Only in this project's benchmarks was it measured how likely one sign is by chance.
    is_benchmark_of_ours = run.stated_text(schema.SUBMISSION_BENCHMARK) in ruleset.benchmarks
    if not is_benchmark_of_ours:
        return ""
    bounds = ruleset.strict["runs-differ"].bounds
    most_chance = 10 ** -bounds["equal_intervals"]  # 20 decimal places: a chance of 1e-20
    return (
        describe_equal_mark(run, other, name_of_other)  # start, durations or accuracies are equal
        or describe_resemblance(run, other, name_of_other, most_chance=most_chance)  # so alike that it is not chance
        or describe_near_accuracies(
            run,
            other,
            name_of_other,
            most_difference=bounds["near_accuracies"],
            least_evaluations=int(bounds["near_evaluations"]),
        )
        or describe_near_losses(run, other, name_of_other, most_share=bounds["near_losses"])
        or _hosts_at_once(run, other, name_of_other)  # both trained on one host at the same time
    )


def _runs_at_one_accuracy(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each ResNet run but the first that ends at an accuracy which too many runs share.

    Exactly the same last accuracy in many runs of a submission is a sign of copied logs. The first of these runs gets
    no breach, because it is not a copy of an earlier one.

    Args:
        members: The reports on the logs of one submission, at least one.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Yields:
        The report of a run and the breach of the rule `runs-differ`.
    """
    is_resnet = members[0].run.stated_text(schema.SUBMISSION_BENCHMARK) == "resnet"
    if not is_resnet:
        return
    rule = ruleset.strict["runs-differ"]
    too_many_runs = int(rule.bounds["runs_at_one_accuracy"])
    shared_accuracy = shared_last_accuracy([report.run for report in members], too_many_runs)
    if shared_accuracy is None:  # fewer runs share one, or all are rounded to four digits, and may be equal by chance
        return
    evaluated = [report for report in members if report.run.evaluations]
    sharing = [report for report in evaluated if report.run.evaluations[-1].value == shared_accuracy]
    for report in sharing[1:]:
        actual = f"several runs end at an accuracy of {shared_accuracy!r}"
        yield BlamedRun(report, breach(rule, actual, line=report.run.evaluations[-1].line))


def _hosts_at_once(run: LoggedRun, other: LoggedRun, name_of_other: str) -> str:
    """Return a sentence on a host on which two runs trained at the same time; empty if there is none.

    The hosts are those in the headers of the logs. Logs of other projects name none.

    Args:
        run: A run, by its log.
        other: The run to compare it with.
        name_of_other: Name of the other log, for the sentence.
    """
    hosts = {str(node.get("host")) for node in hardware_nodes(run)}
    hosts_of_other = {str(node.get("host")) for node in hardware_nodes(other)}
    hosts_of_both = hosts & hosts_of_other
    do_overlap = _start_before_end(run, other) and _start_before_end(other, run)
    if hosts_of_both and do_overlap:
        return f"its host {printable(min(hosts_of_both))} and hours are those of {name_of_other}"
    return ""


def _start_before_end(run: LoggedRun, other: LoggedRun) -> bool:
    """Return whether a run started before another one ended; False if one of the times is not known."""
    if run.start_ms is None or other.stop_ms is None:
        return False
    return run.start_ms < other.stop_ms


# --- one configuration ---


def _differing_configurations(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a breach for each run whose configuration differs from the configuration of the submission's first run.

    Args:
        members: The reports on the logs of one submission, at least one.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Yields:
        The report of a run and the breach of `same-hyperparameters`, or else of `same-configuration`, which only warns.
        Its line is that of the first value that differs.
    """
    first = members[0]
    wanted = _configuration(first.run)
    for report in members[1:]:
        actual = _configuration(report.run)
        names_of_both = wanted | actual  # hyperparameters of the first run first; names that only this run has last
        differing = [name for name in names_of_both if not _is_same(name, actual.get(name), wanted.get(name))]
        if differing:
            rule = _rule_on_differences(differing, first.run, report.run, ruleset)
            shown = _differences_in_words(differing, actual, wanted, first.path.name)
            key = differing[0].partition(".")[0]  # "run_summary" of "run_summary.devices"
            line = report.run.first_lines.get(key)  # None if no event of this run states it
            yield BlamedRun(report, breach(rule, shown, line=line))


def _rule_on_differences(names: Sequence[str], first: LoggedRun, run: LoggedRun, ruleset: Ruleset) -> StrictRule:
    """Return the rule that a run breaks whose configuration differs from that of the submission's first run.

    Args:
        names: Names of the values that differ. Names of hyperparameters begin with `opt_`, for example.
        first: The first run, by its log.
        run: The run that differs.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        `same-hyperparameters` if a hyperparameter differs and that rule holds for both runs, else `same-configuration`.
    """
    rule = ruleset.strict["same-hyperparameters"]
    has_other_hyperparameter = any(_is_hyperparameter(name) for name in names)
    holds_for_both = _holds_for(rule, first) and _holds_for(rule, run)
    if has_other_hyperparameter and holds_for_both:
        return rule
    return ruleset.strict["same-configuration"]


def _differences_in_words(names: Sequence[str], actual: JsonObject, wanted: JsonObject, name_of_first: str) -> str:
    """Return in words the first three values that differ from the first run's, and how many more do.

    Args:
        names: Names of the values that differ, at least one.
        actual: Values of the run, by name.
        wanted: Values of the submission's first run, by name.
        name_of_first: Name of the first run's log.
    """
    shown = []
    for name in names[:_DIFFERENCES_SHOWN]:
        value = _shown_setting(actual.get(name))
        value_of_first = _shown_setting(wanted.get(name))
        shown.append(f"{printable(name)} is {value}, in {printable(name_of_first)} {value_of_first}")
    if len(names) > _DIFFERENCES_SHOWN:
        shown.append(f"and {len(names) - _DIFFERENCES_SHOWN} more")
    return "; ".join(shown)


def _shown_setting(value: object) -> str:
    """Return a value as JSON, cut to 60 characters; its quotation marks show blanks around a text: `"O2 "`."""
    return printable(json.dumps(value), 60)


def _configuration(run: LoggedRun) -> JsonObject:
    """Return the values that must be the same in all runs of a submission, by name.

    They are hyperparameters, and facts about the code, machine, settings and data set. What belongs to one run, such as
    SEED, is left out.

    Args:
        run: The run, by its log.

    Returns:
        The values, hyperparameters first, such as {"opt_name": "lars", "config PRECISION": "amp_o2"}.
    """
    hyperparameters: JsonObject = {}
    other_values: JsonObject = {}
    for key, value in run.first_values.items():
        if _is_hyperparameter(key):
            hyperparameters[key] = value
        elif key.startswith("submission_") or key in _KEYS_THAT_MUST_AGREE:
            other_values |= _flat(key, value)
    # In this order, because a message shows only the first differences.
    return hyperparameters | _fields_of_header(run) | _settings(run) | _variables(run) | other_values


def _fields_of_header(run: LoggedRun) -> JsonObject:
    """Return the fields of a log's header that must be the same in all runs of a submission, by their full names.

    For instance, {"header source.commit": "1f72...", "header node 0.cores": 64}. The list of nodes is replaced by
    fields of each node, without the name of its host: the runs may be on different nodes of the same kind.
    """
    fields: JsonObject = {}
    for section in _SAME_SECTIONS:
        fields |= _flat(f"header {section}", run.headers.get(section))
    nodes = hardware_nodes(run)
    if not nodes:
        return fields
    del fields[f"header {schema.HARDWARE.name}.nodes"]  # the list, which `_flat` has left whole
    for number, node in enumerate(nodes):
        without_name = {name: value for name, value in node.items() if name != "host"}
        fields |= _flat(f"header node {number}", without_name)
    return fields


def _flat(name: str, value: Any) -> JsonObject:
    """Return a value of JSON by its name, or each value in a table by the names of both, such as "header
    source.commit".

    A list is one value, and so is an empty table.
    """
    if not isinstance(value, dict) or not value:
        return {name: value}
    fields: JsonObject = {}
    for inner_name, inner_value in value.items():
        fields |= _flat(f"{name}.{inner_name}", inner_value)
    return fields


def _settings(run: LoggedRun) -> JsonObject:
    """Return the settings of a run, by its log's header, that must be the same in all runs of a submission."""
    settings: JsonObject = {}
    for name, setting in run.header_section(schema.CONFIG).items():
        may_differ = name in _SETTINGS_THAT_MAY_DIFFER
        if may_differ:
            continue
        has_origin = isinstance(setting, dict)  # a setting is usually a table with its value and its origin
        settings[f"config {name}"] = setting.get("value") if has_origin else setting
    return settings


def _variables(run: LoggedRun) -> JsonObject:
    """Return the variables of libraries, by a run's header, that must be the same in all runs of a submission."""
    environment = run.header_section(schema.ENVIRONMENT)
    return {f"environment {name}": environment[name] for name in environment if name.startswith(_PREFIXES_OF_COMPUTING)}


def _is_same(name: str, value: Any, wanted: Any) -> bool:
    """Return whether a value of a run's configuration is the same as in the submission's first run.

    Args:
        name: The name of the value. The memory of equal nodes differs a little, as kernels keep some of it.
        value: The value of the run.
        wanted: The value of the first run.
    """
    is_memory = name.endswith(".memory_gib") and is_number(value) and is_number(wanted)
    if is_memory:
        return bool(abs(value - wanted) <= _MAX_MEMORY_DIFFERENCE * wanted)
    return bool(value == wanted)


def _is_hyperparameter(name: str) -> bool:
    whole_names = (schema.GLOBAL_BATCH_SIZE.key, schema.GRADIENT_ACCUMULATION_STEPS.key)
    return name.startswith(("sgd_", "lars_", "opt_", "model_")) or name in whole_names


def _holds_for(rule: StrictRule, run: LoggedRun) -> bool:
    benchmark = run.stated_text(schema.SUBMISSION_BENCHMARK)
    division = run.stated_text(schema.SUBMISSION_DIVISION)
    return not rule.why_not_applied(benchmark, division)


# --- the official checker ---


def _with_official_verdict(report: Report, ruleset: Ruleset, official: OfficialChecker) -> Report:
    """Return the report on a log with the verdict and messages of the tool mlperf-logging, MLCommons' own checker.

    This project also judges the log by the tool's rules, without running the tool: `passes_official` of the report.
    If the two verdicts differ, one more finding says so.

    Args:
        report: The report on the log.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        official: Runs the tool on a log. It returns whether the log passes, and the tool's messages.
    """
    benchmark = report.run.stated_text(schema.SUBMISSION_BENCHMARK)
    passes_tool, messages = official(report.path, ruleset.version, benchmark)
    with_answer = replace(report, mlperf_logging={"verdict": verdict(passes_tool), "messages": messages})
    rule = ruleset.strict["official-disagrees"]
    passes_ours = report.passes_official
    if passes_tool == passes_ours:
        return with_answer
    if passes_tool:
        return with_answer.with_findings([_finding_on_pass_by_tool_alone(report, rule)])
    return with_answer.with_findings([_finding_on_rejection_by_tool_alone(messages, rule)])


def _finding_on_rejection_by_tool_alone(messages: Sequence[str], rule: StrictRule) -> Finding:
    """Return the finding that mlperf-logging's checker rejects a log that passes this project's official verdict.

    The finding has `official` set, so that the log then fails this verdict, too.

    Args:
        messages: What that checker printed; the first two are shown.
        rule: The rule on such a disagreement.
    """
    first_messages = "; ".join(messages[:2]) or "no message"
    return replace(breach(rule, f"it rejects the log: {first_messages}"), official=True)


def _finding_on_pass_by_tool_alone(report: Report, rule: StrictRule) -> Finding:
    """Return the finding that mlperf-logging's checker passes a log which fails this project's official verdict.

    Args:
        report: This project's report on the log. Its official findings make the log fail, and stay in spite of the
            tool.
        rule: The rule on such a disagreement.
    """
    refusing_rules = ", ".join(sorted({finding.rule for finding in report.findings if finding.official}))
    # In the message, "this checker" is this project's checker, which prints the message.
    actual = f"mlperf-logging's checker passes the log; this checker says that it does not, by {refusing_rules}"
    return breach(rule, actual)


def receipt_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.checked")


def sha256(path: Path) -> str:
    import hashlib  # loads OpenSSL, which most checks do without

    digest = hashlib.sha256()
    with open_log(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
