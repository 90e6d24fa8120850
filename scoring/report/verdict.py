"""The verdict of a report: one line for each thing that a result can fail at, and their status together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compliance import mlperf
from runlog.digits import beside_limit, counted, six_digits
from runlog.text import called
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure.protocols import Protocol
from scoring.figure.run_count import benchmark_of
from scoring.record import Quality, section
from scoring.report.brief import day_of, hardware
from scoring.report.content import NOT_LOGGED, Group, Overall, ReportedRun, runs_of, shared_target, warnings_of_scores

UNSTEADY_WARNINGS = frozenset({"unsteady", "wide_interval"})  # the windows scatter too much to settle the figure
NOT_APPLICABLE = "not applicable"  # a check's text begins with it if there is nothing to check
MIN_RUNS_FOR_OLYMPIC_MEAN = 3  # it drops the best and the worst run, and one must be left


def applies(check: Verdict) -> bool:
    """Return whether there was anything for a check to look at.

    Args:
        check: Verdict of the check. Its text begins with "not applicable" if there was nothing.
    """
    return not check.found.startswith(NOT_APPLICABLE)


def overall(checks: Sequence[Verdict]) -> Overall:
    """Return the status of the whole report, the worst one of the checks that apply, and a sentence on it.

    Args:
        checks: The checks of the report. Those whose text begins with "not applicable" are ignored.

    Returns:
        The status, and a sentence such as "The result stands, with warnings about provenance".
    """
    applying = [check for check in checks if applies(check)]
    statuses = {check.status for check in applying}
    warning_checks = [check.check for check in applying if check.status == WARNING]
    with_warnings = f", with warnings about {' and '.join(warning_checks)}" if warning_checks else ""
    # The worst status that any of them has.
    if FATAL in statuses:
        return Overall(FATAL, "This result does not stand")
    if UNKNOWN in statuses:
        return Overall(UNKNOWN, f"Not yet shown to be publishable{with_warnings}")
    if "steadiness" in warning_checks:
        return Overall(WARNING, "The figure is not steady: measure again before it is used")
    if warning_checks:
        return Overall(WARNING, f"The result stands{with_warnings}")
    return Overall(OK, "The result stands")


def next_steps(checks: Sequence[Verdict]) -> list[str]:
    """Return what to do about the checks of a report, each step once.

    Args:
        checks: The checks of the report; each may have a text `fix` on what to do.

    Returns:
        The steps. If there is nothing to do, one sentence on what the result can be used for.
    """
    steps = list(dict.fromkeys(check.fix for check in checks if check.fix))
    if steps:
        return steps
    was_checked = any(check.check == "compliance" and applies(check) for check in checks)
    if was_checked:
        return ["Nothing is open: package it, or compare it with others."]
    return ["Nothing is open: compare it with others. Only checked training runs can be packaged."]


def checks(
    groups: Sequence[Group], protocol: Protocol, scaling_warnings: Sequence[Verdict] = (), *, files_left_out: int = 0
) -> Iterator[Verdict]:
    """Yield the verdicts on a report, from whether its runs passed the compliance check to where the runs come from.

    Args:
        groups: Groups of repeated runs, each with its figure or the problem that prevents it.
        protocol: Rules by which runs become a figure.
        scaling_warnings: Warnings about the scaling tables.
        files_left_out: Number of files in the given folders that hold no run.

    Yields:
        The verdicts by the names of their checks, in this order:

        - "compliance": always
        - "absent runs": if files were left out
        - "run": if the log of an MLPerf run ends before the run does
        - "quality": how the training runs ended, if the logs tell enough of it
        - "measurement": always; on the problems and warnings of the figures
        - "steadiness": if a figure is not steady
        - "provenance": up to two, if there is a doubt about where the runs come from
    """
    runs = runs_of(groups)
    yield _judge_compliance(runs)
    if files_left_out:
        found = f"{counted(files_left_out, 'file')} without one training row left out"
        fix = "Look whether a file that was left out is a run that failed at its start."
        yield Verdict(check="absent runs", status=WARNING, found=found, fix=fix)
    yield from _judge_cut_logs(runs)
    yield from _judge_ends_of_training(groups, protocol)
    yield from _judge_figures(groups, scaling_warnings)  # "measurement" and, if a figure is not steady, "steadiness"
    yield from _judge_provenance(runs)


def _numbers_in_words(some: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> str:
    """Return which runs of a report are meant, in words: "run 2", "runs 2, 3", "the run" or "all 3 runs".

    Args:
        some: The runs that are meant.
        runs: All runs of the report.
    """
    if len(some) == len(runs):
        return "the run" if len(runs) == 1 else f"all {len(runs)} runs"
    noun = "run" if len(some) == 1 else "runs"
    return f"{noun} {', '.join(str(run.number) for run in some)}"


def _verdict_that_does_not_apply(check: str, why: str) -> Verdict:
    """Return the verdict on a check that had nothing to look at.

    Args:
        check: Name of the check.
        why: Reason, the end of the verdict's text. The text begins with "not applicable", by which `applies` knows that
            the status does not count.
    """
    return Verdict(check=check, status=UNKNOWN, found=f"{NOT_APPLICABLE}: {why}")


def _judge_compliance(runs: Sequence[ReportedRun]) -> Verdict:
    """Return the verdict on whether the runs passed the compliance check, which compares their logs with the rules.

    - fatal: a run failed it
    - unknown: none failed, but a run that needs the check was not checked
    - ok: all runs that were checked passed, and no other run needs the check
    - not applicable: no run was checked, and none needs to be

    Args:
        runs: The runs of the report. Only MLPerf logs of training runs need the check.
    """
    checked = [run for run in runs if run.findings]
    failed = [run for run in runs if run.findings and run.findings["verdict"] == "fail"]
    unchecked = [run for run in runs if not run.findings and _needs_check(run)]
    if failed:
        found = f"{_numbers_in_words(failed, runs)} failed the check, {counted(_count_errors(checked), 'error')}"
        fix = "Do what section Compliance says of each error, and run again."
        return Verdict(check="compliance", status=FATAL, found=found, fix=fix)
    if unchecked:
        found = f"not checked: {_numbers_in_words(unchecked, runs)}"
        fix = f"Check the logs by {called('compliance')} check --json, and write this report with --findings."
        return Verdict(check="compliance", status=UNKNOWN, found=found, fix=fix)
    if checked:
        return Verdict(check="compliance", status=OK, found=f"{_numbers_in_words(checked, runs)} passed the check")
    return _verdict_that_does_not_apply("compliance", "there is no MLPerf log of a training run to check")


def _needs_check(run: ReportedRun) -> bool:
    """Return whether a run must have been checked: an MLPerf log of a training run."""
    return run.record.format == "mllog" and run.record.mode != "throughput"


def _count_errors(checked: Sequence[ReportedRun]) -> int:
    """Return how many errors the compliance check found in all of the runs."""
    errors = 0
    for run in checked:
        findings = run.findings["findings"] if run.findings else []
        errors += sum(finding["severity"] == "error" for finding in findings)
    return errors


def _judge_cut_logs(runs: Sequence[ReportedRun]) -> Iterator[Verdict]:
    """Yield a fatal verdict if an MLPerf log ends before its run does. For other formats the score has a warning.

    Args:
        runs: The runs of the report.
    """
    cut = [run for run in runs if run.record.truncated and run.record.format == "mllog"]
    if cut:
        text = f"truncated: {_numbers_in_words(cut, runs)}; the log ends before the run does"
        yield Verdict(check="run", status=FATAL, found=text, fix="Resume the run, or run it again.")


def _judge_ends_of_training(groups: Sequence[Group], protocol: Protocol) -> Iterator[Verdict]:
    """Yield a verdict on how the training runs ended: on the failed ones if there are any, else on final quality.

    A run counts if it trained and its log says how it ended.

    Args:
        groups: Groups of repeated runs.
        protocol: Rules by which runs become a figure; they may say how many runs are dropped.

    Yields:
        One verdict, or none: if no run counts, or if none failed but one of them has no evaluation.
    """
    runs = runs_of(groups)
    trained = [run for run in runs if run.record.status is not None and run.record.mode != "throughput"]
    failed = [run for run in trained if run.record.status != "success"]
    if failed:
        yield _judge_failed_runs(failed, groups, protocol)
    elif trained and all(run.record.quality for run in trained):
        yield _judge_final_quality(trained, runs)


class _Failures(NamedTuple):
    """How many runs of a group failed, and how many may fail."""

    failed: int
    allowed: int | None  # None: unknown

    @property
    def are_too_many(self) -> bool:
        """Return whether more runs failed than are allowed; false if that is unknown."""
        return self.allowed is not None and self.failed > self.allowed

    @property
    def may_be_too_many(self) -> bool:
        """Return whether runs failed, and it is not known how many may fail."""
        return self.allowed is None and self.failed > 0


def _judge_failed_runs(failed: Sequence[ReportedRun], groups: Sequence[Group], protocol: Protocol) -> Verdict:
    """Return the verdict on the runs that ended without success: fatal, unknown or a warning.

    A failed run counts as one of the slowest of its group, of which the group's result may drop some. So if the result
    of 5 runs drops 1, one failure is a warning, and two are fatal.

    Args:
        failed: Training runs that ended without success, at least one.
        groups: All groups of repeated runs of the report.
        protocol: Rules by which runs become a figure.
    """
    statuses = ", ".join(dict.fromkeys(str(run.record.status) for run in failed))  # as a rule "aborted" alone
    text = f"{_numbers_in_words(failed, runs_of(groups))} ended without success ({statuses})"
    fix = "Read the ends of their logs for why they stopped."
    failures_of_groups = []  # for each group: how many runs failed, and how many may fail (None: the rounds differ)
    for group in groups:
        failures_of_groups.append(_Failures(failed=_count_failures(group), allowed=_allowed_failures(group, protocol)))

    if any(failures.are_too_many for failures in failures_of_groups):
        return Verdict(check="quality", status=FATAL, found=text, fix=fix)
    if any(failures.may_be_too_many for failures in failures_of_groups):
        text += "; how many may fail depends on the round of MLPerf, which the logs do not say"
        return Verdict(check="quality", status=UNKNOWN, found=text, fix=fix)
    # The failed runs of each group are among the runs that its result drops.
    text += "; the rules of the result drop at least as many of the slowest runs"
    return Verdict(check="quality", status=WARNING, found=text, fix=fix)


def _count_failures(group: Group) -> int:
    """Return how many training runs of a group ended without success. A run without a status does not count."""
    statuses = [run.record.status for run in group.runs if run.record.mode != "throughput"]
    return sum(status not in (None, "success") for status in statuses)


def _allowed_failures(group: Group, protocol: Protocol) -> int | None:
    """Return how many runs of a group may fail without harm to its result: as many of the slowest as the result drops.

    Args:
        group: The repeated runs.
        protocol: Rules by which runs become a figure, which count if no round of MLPerf has the group's benchmark.

    Returns:
        The number of runs; None if the rounds of MLPerf disagree.
    """
    run_count = len(group.runs)
    benchmark = benchmark_of(group.record) or ""  # "": not known, so no round has it
    submission_by_round = mlperf.submission_runs_by_round(benchmark)
    if not submission_by_round:
        return _dropped_by_protocol(run_count, protocol)

    # Logs do not say their round, so all rounds with the benchmark must drop the same number.
    dropped_in_rounds: set[int] = set()
    for submission in submission_by_round.values():
        makes_a_result = run_count >= submission.runs
        dropped_in_rounds.add(submission.dropped if makes_a_result else 0)  # no result drops no runs
    all_agree = len(dropped_in_rounds) == 1
    return dropped_in_rounds.pop() if all_agree else None


def _judge_final_quality(trained: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> Verdict:
    """Return the verdict on the lowest final quality of the training runs: fatal if below their target, else ok.

    Args:
        trained: The training runs, which ended with success. Each has an evaluation.
        runs: All runs of the report.

    Returns:
        The verdict. If the runs do not share a known target, the quality is compared with none, and the verdict is ok.
    """
    lowest = min((run.record.quality[-1] for run in trained), key=_value_of)
    target = shared_target(trained)
    quality = beside_limit(lowest.value, target, kind="g")
    text = f"{_numbers_in_words(trained, runs)} ended with success; lowest final {lowest.name} {quality}"
    if target is None:
        return Verdict(check="quality", status=OK, found=text)
    text += f", target {six_digits(target)}"
    if lowest.value < target:
        fix = "Train to the target, or measure throughput alone (MODE=throughput)."
        return Verdict(check="quality", status=FATAL, found=text, fix=fix)
    return Verdict(check="quality", status=OK, found=text)


def _value_of(quality: Quality) -> float:
    """Return the value of an evaluation."""
    return quality.value


def _dropped_by_protocol(runs: int, protocol: Protocol) -> int:
    """Return how many of the slowest runs a protocol drops: 1 if it can take the olympic mean, else 0.

    An olympic mean leaves out the best and the worst run.

    Args:
        runs: Number of runs.
        protocol: Rules by which runs become a figure, with the number of runs that they ask for.
    """
    least_runs = max(protocol.runs, MIN_RUNS_FOR_OLYMPIC_MEAN)
    if protocol.over_runs == "olympic_mean" and runs >= least_runs:
        return 1
    return 0


def _judge_figures(groups: Sequence[Group], scaling_warnings: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield the verdict "measurement" on the problems and warnings of all figures, and maybe "steadiness".

    Args:
        groups: Groups of repeated runs, each with its figure or the problem that prevents it.
        scaling_warnings: Warnings about the scaling tables.

    Yields:
        The verdict "measurement". After it, only if a warning says that a figure is not steady, the verdict
        "steadiness".
    """
    problems = [group.problem for group in groups if group.problem]
    names_of_other_warnings: set[str] = set()
    unsteady: list[str] = []  # what the warnings of UNSTEADY_WARNINGS have found
    for warning in (*warnings_of_scores(groups), *scaling_warnings):
        if warning.check in UNSTEADY_WARNINGS:
            unsteady.append(warning.found)
        else:
            names_of_other_warnings.add(warning.check)

    yield _judge_measurement(problems, sorted(names_of_other_warnings))
    if unsteady:
        found = _first_and_count(unsteady)
        fix = "Look for other load on the machine, waits for data and throttling; then measure again."
        yield Verdict(check="steadiness", status=WARNING, found=found, fix=fix)


def _judge_measurement(problems: Sequence[str], warning_checks: Sequence[str]) -> Verdict:
    """Return the verdict on how the figures were measured: fatal with problems, a warning with warnings, else ok.

    Args:
        problems: Sentences on why a group of runs does not have the figure that the protocol asks for.
        warning_checks: Names of the warnings about the figures, such as "too_few_runs", each once.
    """
    if problems:
        fix = "Give what the protocol asks for, or take a protocol that these logs can serve."
        return Verdict(check="measurement", status=FATAL, found=_first_and_count(problems), fix=fix)
    if warning_checks:
        names = ", ".join(warning_checks).replace("_", " ")
        text = f"{counted(len(warning_checks), 'kind')} of warning: {names}"
        fix = "Read the warnings below the figures."
        if "too_few_runs" in warning_checks:
            fix = "Run it again, with other seeds."
        return Verdict(check="measurement", status=WARNING, found=text, fix=fix)
    return Verdict(check="measurement", status=OK, found="no warning")


def _judge_provenance(runs: Sequence[ReportedRun]) -> Iterator[Verdict]:
    """Yield a verdict for each doubt about where the runs come from; none if there is no doubt.

    - unknown: a log does not say its system or its date, so that the figures cannot be published. If a log also lacks
      its organisation or commit, the same verdict names these. They make no verdict alone.
    - a warning: the source tree of a run had uncommitted changes

    Args:
        runs: The runs of the report.
    """
    missing = [name for name in ("system", "date", "organisation", "commit") if _is_missing_in_a_log(name, runs)]
    if "system" in missing or "date" in missing:
        text = f"the logs do not say {' or '.join(missing)}"
        fix = "State what ran, where, when and by whom before these figures are published."
        yield Verdict(check="provenance", status=UNKNOWN, found=text, fix=fix)

    changed = [run for run in runs if section(run.record, "source").get("dirty") is True]
    if changed:
        what = "a source tree with uncommitted changes, which the commit does not hold"
        fix = "Commit the changes and run again."
        found = f"{_numbers_in_words(changed, runs)} came from {what}"
        yield Verdict(check="provenance", status=WARNING, found=found, fix=fix)


def _is_missing_in_a_log(name: str, runs: Sequence[ReportedRun]) -> bool:
    """Return whether the log of at least one run does not say a fact on where the run comes from.

    Args:
        name: The fact: "system", "date", "organisation" or "commit".
        runs: The runs of the report.
    """
    return any(not _origin_of(run)[name] for run in runs)


def _origin_of(run: ReportedRun) -> dict[str, object]:
    """Return where, when and by whom a run was made, by the names "system", "date", "organisation" and "commit".

    Args:
        run: A run of the report.

    Returns:
        The facts. One that the log does not say is None or another value that counts as false.
    """
    start_s = run.start.value  # None if the log does not say it
    day = day_of(start_s) if start_s else ""  # empty also for a number that is not a valid time
    return {
        "system": hardware(run) or run.record.accelerator,
        "date": day,
        "organisation": run.preamble.get("submission_org", NOT_LOGGED).value,
        "commit": section(run.record, "source").get("commit"),
    }


def _first_and_count(texts: Sequence[str]) -> str:
    """Return the first text, and how many more there are: `text (and 2 more)`."""
    if len(texts) == 1:
        return texts[0]
    return f"{texts[0]} (and {len(texts) - 1} more)"
