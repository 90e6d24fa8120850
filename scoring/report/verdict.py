"""The verdict of a report: one line for each thing that a result can fail at, and their status together."""

from collections.abc import Iterator, Sequence

from compliance import mlperf
from runlog.digits import six_digits
from runlog.text import called
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure.protocols import Protocol
from scoring.figure.run_count import benchmark_of
from scoring.record import Quality, section
from scoring.report.brief import hardware
from scoring.report.content import Group, Overall, ReportedRun, runs_of
from scoring.report.text import counted, four_digits

UNSTEADY_WARNINGS = frozenset({"unsteady", "wide_interval"})  # warnings of a figure that its windows leave open
NOT_APPLICABLE = "not applicable"  # a check's text begins with it where there is nothing to check
LEAST_RUNS_WITH_A_DROP = 3  # of a result that drops its best and its worst run


def applies(check: Verdict) -> bool:
    """Tell whether there was anything to check."""
    return not check.found.startswith(NOT_APPLICABLE)


def overall(checks: Sequence[Verdict]) -> Overall:
    """Return the status of the whole report, the worst of the checks that apply, and a sentence for it.

    The sentence names the checks that warn, but not beside a fatal one. Where the worst is a warning that a figure is
    not steady, the sentence is to measure again.
    """
    statuses = {check.status for check in checks if applies(check)}
    warned = [check.check for check in checks if check.status == WARNING]
    about = f", with warnings about {' and '.join(warned)}" if warned else ""
    if FATAL in statuses:
        return Overall(FATAL, "This result does not stand")
    if UNKNOWN in statuses:
        return Overall(UNKNOWN, f"Not yet shown to be publishable{about}")
    if "steadiness" in warned:
        return Overall(WARNING, "The figure is not steady: measure again before it is used")
    return Overall(WARNING if warned else OK, f"The result stands{about}")


def next_steps(checks: Sequence[Verdict]) -> list[str]:
    """Return what to do about each check that is not ok; where none is open, what the result is good for."""
    steps = list(dict.fromkeys(check.fix for check in checks if check.fix))
    if steps:
        return steps
    checked = any(check.check == "compliance" and applies(check) for check in checks)
    if checked:
        return ["Nothing is open: package it, or compare it with others."]
    return ["Nothing is open: compare it with others. Only checked training runs can be packaged."]


def checks(groups: Sequence[Group], protocol: Protocol) -> Iterator[Verdict]:
    """Yield one verdict for each thing that a result can fail at."""
    runs = runs_of(groups)
    yield _compliance(runs)
    yield from _truncated(runs)
    yield from _training(groups, protocol)
    yield from _measurement(groups)
    yield from _provenance(runs)


def _numbers_in_words(some: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> str:
    """Return the numbers of some of the runs in words: "run 2", "runs 2, 3", "the run" or "all 3 runs"."""
    if len(some) == len(runs):
        return "the run" if len(runs) == 1 else f"all {len(runs)} runs"
    noun = "run" if len(some) == 1 else "runs"
    return f"{noun} {', '.join(str(run.number) for run in some)}"


def _compliance(runs: Sequence[ReportedRun]) -> Verdict:
    """Return the verdict on the runs' compliance with the rules, by what the compliance check found in each.

    The verdict is fatal where a run failed the check, else unknown where an MLPerf log of a training run was not
    checked, and ok where all such logs passed. Where there is no such log, it is unknown too, but its text begins with
    NOT_APPLICABLE, so that it does not count.
    """
    checked: list[ReportedRun] = []
    failed: list[ReportedRun] = []
    missing: list[ReportedRun] = []  # that should have been checked and were not
    for run in runs:
        if run.findings:
            checked.append(run)
            if run.findings["verdict"] == "fail":
                failed.append(run)
        elif run.record.format == "mllog" and run.record.mode != "throughput":
            missing.append(run)
    if failed:
        return Verdict(
            check="compliance",
            status=FATAL,
            found=f"{_numbers_in_words(failed, runs)} failed the check, {counted(_errors(checked), 'error')}",
            fix="Do what section Compliance says of each error, and run again.",
        )
    if missing:
        fix = f"Check the logs by {called('compliance')} check --json, and write this report with --findings."
        return Verdict(
            check="compliance", status=UNKNOWN, found=f"not checked: {_numbers_in_words(missing, runs)}", fix=fix
        )
    if checked:
        return Verdict(check="compliance", status=OK, found=f"{_numbers_in_words(checked, runs)} passed the check")
    text = f"{NOT_APPLICABLE}: there is no MLPerf log of a training run to check"
    return Verdict(check="compliance", status=UNKNOWN, found=text)


def _errors(checked: Sequence[ReportedRun]) -> int:
    """Return how many errors the checker found in all runs."""
    errors = 0
    for run in checked:
        findings = run.findings["findings"] if run.findings else []
        errors += sum(finding["severity"] == "error" for finding in findings)
    return errors


def _truncated(runs: Sequence[ReportedRun]) -> Iterator[Verdict]:
    """Yield a verdict on MLLOG logs that end before their run does; of other formats the score warns."""
    cut = [run for run in runs if run.record.truncated and run.record.format == "mllog"]
    if cut:
        text = f"truncated: {_numbers_in_words(cut, runs)}; the log ends before the run does"
        yield Verdict(check="run", status=FATAL, found=text, fix="Resume the run, or run it again.")


def _training(groups: Sequence[Group], protocol: Protocol) -> Iterator[Verdict]:
    """Yield a verdict on how the training runs ended whose logs say it; none where no log does.

    Runs that ended without success are judged by how many of them the benchmark's rules drop. Where all ended with
    success, their final quality is judged by its target; there is no verdict if one of the logs has no quality.
    """
    runs = runs_of(groups)
    trained = [run for run in runs if run.record.status is not None and run.record.mode != "throughput"]
    stopped = [run for run in trained if run.record.status != "success"]
    if stopped:
        text = f"{_numbers_in_words(stopped, runs)} ended without success ({stopped[0].record.status})"
        status = _status_of_failures(groups, protocol)
        if status == WARNING:
            text += "; the benchmark's rules drop as many of its runs"
        if status == UNKNOWN:
            text += "; how many may fail depends on the round of MLPerf, which the logs do not say"
        fix = "Read the ends of their logs for why they stopped."
        yield Verdict(check="quality", status=status, found=text, fix=fix)
    elif trained and all(run.record.quality for run in trained):
        yield _final_quality(trained, runs)


def _status_of_failures(groups: Sequence[Group], protocol: Protocol) -> str:
    """Return the status of a report that has runs which failed.

    It is FATAL where a group has more of them than the benchmark's rules drop. It is else UNKNOWN where a group has
    some and it is not known how many the rules drop, and WARNING where the rules drop them all.
    """
    is_unknown = False
    for group in groups:
        failures = _failures(group)
        allowed = allowed_failures(group, protocol)  # None where it is not known
        if allowed is None:
            is_unknown = is_unknown or failures > 0
        elif failures > allowed:
            return FATAL
    return UNKNOWN if is_unknown else WARNING


def _failures(group: Group) -> int:
    """Return how many training runs of a group ended without success."""
    statuses = [run.record.status for run in group.runs if run.record.mode != "throughput"]
    return sum(status not in (None, "success") for status in statuses)


def allowed_failures(group: Group, protocol: Protocol) -> int | None:
    """Return how many runs of a group may fail; None where that depends on the round of MLPerf, which logs do not say.

    MLPerf drops the slowest runs of a result, and a run that failed is the slowest. So as many may fail as are dropped,
    where the group has the runs that its benchmark asks for, and none where it has fewer. Where the runs are of no
    benchmark of MLPerf, one may fail if the protocol's mean drops the slowest, as the olympic mean does.
    """
    submission_by_round = mlperf.submission_runs_by_round(benchmark_of(group.record) or "")  # empty of no benchmark
    allowed_in_rounds: set[int] = set()
    for submission in submission_by_round.values():
        has_enough_runs = len(group.runs) >= submission.runs
        allowed_in_rounds.add(submission.dropped if has_enough_runs else 0)
    if len(allowed_in_rounds) == 1:
        return allowed_in_rounds.pop()
    if allowed_in_rounds:
        return None
    least_runs = max(protocol.runs, LEAST_RUNS_WITH_A_DROP)
    drops_slowest = protocol.over_runs == "olympic_mean" and len(group.runs) >= least_runs
    return 1 if drops_slowest else 0


def _final_quality(trained: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> Verdict:
    """Return the verdict on the quality with which training ended, by the lowest of the `trained` runs.

    Where all of them have the same target and the lowest quality is below it, the verdict is fatal. Else it is ok.
    Without a common target its text says the quality alone. `runs` are all runs of the report.
    """
    worst = min((run.record.quality[-1] for run in trained), key=_value_of)
    targets = {run.target for run in trained}
    target = targets.pop() if len(targets) == 1 else None
    text = (
        f"{_numbers_in_words(trained, runs)} ended with success; lowest final {worst.name} {four_digits(worst.value)}"
    )
    if target is not None:
        text += f", target {six_digits(target)}"
    if target is not None and worst.value < target:
        fix = "Train to the target, or measure throughput alone (MODE=throughput)."
        return Verdict(check="quality", status=FATAL, found=text, fix=fix)
    return Verdict(check="quality", status=OK, found=text)


def _value_of(quality: Quality) -> float:
    """Return the value of an evaluation."""
    return quality.value


def _measurement(groups: Sequence[Group]) -> Iterator[Verdict]:
    """Yield a verdict on the figures of all groups, and a second one, a warning, where a figure is unsteady.

    The first is fatal where a group lacks the figure that the protocol asks for. Else it is a warning that names what
    the scores warn of, or ok. A figure is unsteady where it has one of UNSTEADY_WARNINGS, as its windows scatter: it
    has to be measured again.
    """
    problems = [group.problem for group in groups if group.problem]  # why a group lacks its figure
    warnings = _warnings_of_scores(groups)
    unsteady = [warning.found for warning in warnings if warning.check in UNSTEADY_WARNINGS]
    other_warnings = {warning.check for warning in warnings if warning.check not in UNSTEADY_WARNINGS}
    if problems:
        fix = "Give what the protocol asks for, or take a protocol that these logs can serve."
        yield Verdict(check="measurement", status=FATAL, found=_first_and_count(problems), fix=fix)
    elif other_warnings:
        names = ", ".join(sorted(other_warnings)).replace("_", " ")
        text = f"{counted(len(other_warnings), 'kind')} of warning: {names}"
        fix = "Read the warnings below the figures."
        if "too_few_runs" in other_warnings:
            fix = "Run it again, with other seeds."
        yield Verdict(check="measurement", status=WARNING, found=text, fix=fix)
    else:
        yield Verdict(check="measurement", status=OK, found="no warning")

    if unsteady:
        fix = "Look for other load on the machine, waits for data and throttling; then measure again."
        yield Verdict(check="steadiness", status=WARNING, found=_first_and_count(unsteady), fix=fix)


def _warnings_of_scores(groups: Sequence[Group]) -> list[Verdict]:
    """Return the warnings of all groups' figures; a group without a figure has none."""
    warnings: list[Verdict] = []
    for group in groups:
        if group.score:
            warnings += group.score.warnings
    return warnings


def _provenance(runs: Sequence[ReportedRun]) -> Iterator[Verdict]:
    """Yield a verdict where a log does not say system or date, and one where a source tree had uncommitted changes.

    Figures without the first two cannot be published, so that their verdict is unknown, and its text names organisation
    and commit too where a log lacks them. The other verdict is a warning.
    """
    unsaid = [name for name in ("system", "date", "organisation", "commit") if _is_unsaid_by_any(name, runs)]
    if "system" in unsaid or "date" in unsaid:
        text = f"the logs do not say {' or '.join(unsaid)}"
        fix = "State what ran, where, when and by whom before these figures are published."
        yield Verdict(check="provenance", status=UNKNOWN, found=text, fix=fix)

    changed = [run for run in runs if section(run.record, "source").get("dirty") is True]
    if changed:
        what = "a source tree with uncommitted changes, which the commit does not hold"
        fix = "Commit the changes and run again."
        yield Verdict(
            check="provenance", status=WARNING, found=f"{_numbers_in_words(changed, runs)} came from {what}", fix=fix
        )


def _is_unsaid_by_any(name: str, runs: Sequence[ReportedRun]) -> bool:
    """Tell whether the log of any run does not say the fact `name`: "system", "date", "organisation" or "commit"."""
    for run in runs:
        facts = {
            "system": hardware(run) or run.record.accelerator,
            "date": run.preamble.get("start_s"),
            "organisation": run.preamble.get("submission_org"),
            "commit": section(run.record, "source").get("commit"),
        }
        if not facts[name]:
            return True
    return False


def _first_and_count(texts: Sequence[str]) -> str:
    """Return the first text, and how many more there are."""
    if len(texts) == 1:
        return texts[0]
    return f"{texts[0]} (and {len(texts) - 1} more)"
