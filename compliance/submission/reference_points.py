"""The runs of one submission against the reference convergence points: their hyperparameters and their convergence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compliance.check import Report
from compliance.logged_run import LoggedRun, is_number
from compliance.official import convergence
from compliance.rules import Benchmark, Finding, Ruleset, StrictRule, breach, note
from compliance.submission.group import NOT_KNOWN, PASSED, BlamedRun, ConvergenceTest, convergence_test
from runlog import schema
from runlog.text import printable


def findings_by_reference_points(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Compare closed runs of one submission with the reference runs of MLPerf, and yield findings on each run.

    Args:
        members: The reports on the logs of the submission, at least one. The first log decides for all logs which
            benchmark and division the submission is of.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Yields:
        The report of a run with a finding on it: a breach of a rule, or a note on why the rule was not applied. First
        come the findings of `rcp-hyperparameters`, on hyperparameters that differ from the reference. Then comes that
        of `rcp-convergence`, the test of all runs together: each run gets the same one.
    """
    benchmark = _benchmark_of_closed_runs(members, ruleset)
    if benchmark is None:  # the runs are open, or of a benchmark that is not of this project
        return

    # A note on each run for each of the two rules that only a later version brings into force; mostly there is none.
    yield from _notes_on_rules_not_in_force(members, ruleset)
    # MLPerf has no points of the benchmark in this ruleset, as of resnet in 0.7.0, by this project's benchmarks.yaml.
    if not benchmark.reference_points:
        return

    test = convergence_test(members, ruleset)
    # None: mlperf-logging lacks the points or a number of runs. Then the finding on all, below, is only a note.
    if test.reference is not None:
        for report in members:
            # Such as: lars_epsilon is 1; the reference point has 0.
            for finding in _other_hyperparameters(report.run, test.reference.points, ruleset):
                yield BlamedRun(report, finding)

    finding_on_all = _finding_of_test(test, members, benchmark, ruleset)  # None: they pass
    if finding_on_all is not None:
        for report in members:
            yield BlamedRun(report, finding_on_all)


def _benchmark_of_closed_runs(members: Sequence[Report], ruleset: Ruleset) -> Benchmark | None:
    """Return the benchmark of a submission to the closed division; None for any other division.

    Args:
        members: The reports on the logs of the submission, at least one. The first log decides for all logs.
        ruleset: A version of the rules of MLPerf Training; its `benchmarks` are those of this project.

    Returns:
        The benchmark with its facts, such as its samples. Also None if the benchmark is not one of this project.
    """
    first_run = members[0].run
    is_closed = first_run.first_event(schema.SUBMISSION_DIVISION).value == "closed"
    if not is_closed:
        return None
    return ruleset.benchmarks.get(first_run.stated_text(schema.SUBMISSION_BENCHMARK))


def _notes_on_rules_not_in_force(members: Sequence[Report], ruleset: Ruleset) -> Iterator[BlamedRun]:
    """Yield a note for each run and each rule about reference points that is not yet in force.

    Args:
        members: The reports on the logs of a submission.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
    """
    for rule in (ruleset.strict["rcp-hyperparameters"], ruleset.strict["rcp-convergence"]):
        if not rule.in_force:
            for report in members:
                yield BlamedRun(report, note(rule, f"not applied: in force from ruleset {rule.since} on"))


def _finding_of_test(
    test: ConvergenceTest, members: Sequence[Report], benchmark: Benchmark, ruleset: Ruleset
) -> Finding | None:
    """Return the finding of the rule `rcp-convergence` on all runs of a submission; None if they pass its test.

    Args:
        test: The outcome of the test.
        members: The reports on the logs of the submission.
        benchmark: The benchmark, with the number of runs that it asks for.
        ruleset: A version of the rules of MLPerf Training, with this project's own rules for it.
    """
    rule = ruleset.strict["rcp-convergence"]
    batches = {report.run.global_batch for report in members}
    if len(batches) > 1:  # another rule, same-hyperparameters, has a breach for the run whose batch differs
        return note(rule, "not applied: the runs have different global_batch_size")
    if len(members) != benchmark.runs:
        return note(rule, f"not applied: it takes {benchmark.runs} runs of one submission, {len(members)} given")
    if test.status == NOT_KNOWN:
        return note(rule, f"not applied: {test.reason}")
    if test.status == PASSED:
        return None
    return breach(rule, test.in_words())  # they converged faster than chance explains, for instance


def _other_hyperparameters(
    run: LoggedRun, points: Sequence[convergence.ReferencePoint], ruleset: Ruleset
) -> list[Finding]:
    """Return a breach for each hyperparameter of a run that differs from the reference at the run's global batch.

    Args:
        run: The run, by its log.
        points: Reference points, at most one for each global batch, with their hyperparameters.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        The findings. If there is no point at the run's batch, or if the reference used another optimizer, the only one
        is a note that says so.
    """
    rule = ruleset.strict["rcp-hyperparameters"]
    batch = run.first_values.get(schema.GLOBAL_BATCH_SIZE.key)
    hyperparameters_by_batch = {point.global_batch: point.hyperparameters for point in points}
    if not is_number(batch) or batch not in hyperparameters_by_batch:
        return [note(rule, f"not applied: no reference point at a global batch of {printable(batch, 30)}")]
    wanted = hyperparameters_by_batch[batch]
    if run.first_values.get("opt_name") != wanted["optimizer"]:
        return [note(rule, f"not applied: the reference point is of {wanted['optimizer']}")]
    return _differences_from_reference(run, wanted, rule)


def _differences_from_reference(run: LoggedRun, wanted: Mapping[str, Any], rule: StrictRule) -> list[Finding]:
    """Return a breach for each hyperparameter that a run states with another value than the reference.

    Args:
        run: The run, by its log.
        wanted: Hyperparameters of the reference, such as {"optimizer": "lars", "epsilon": 0}. The steps of a decay are
            not compared.
        rule: The rule that a difference breaks.
    """
    findings = []
    for name, wanted_value in wanted.items():
        if name == "optimizer" or name.endswith("decay_steps"):
            continue  # the steps are in iterations, and a log may count them in epochs
        key = f"{wanted['optimizer']}_{name}"  # as logs name it: `lars_epsilon`
        if key in run.first_values and run.first_values[key] != wanted_value:
            actual = f"{key} is {printable(run.first_values[key], 30)}; the reference point has {wanted_value}"
            findings.append(breach(rule, actual, line=run.first_lines.get(key)))
    return findings
