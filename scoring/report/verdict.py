"""The verdict: what is checked of a result, what the checks say together, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runlog.text import called
from runlog.verdict import FATAL, OK, UNKNOWN, WARNING, Verdict
from scoring.figure.protocols import Protocol
from scoring.record import section
from scoring.report.content import Group, ReportedRun
from scoring.report.text import counted


def overall(checks: Sequence[Verdict]) -> tuple[str, str]:
    """The status of all checks together, and what it means."""
    statuses = {check.status for check in checks}
    warned = [check.check for check in checks if check.status == WARNING]
    about = f", with warnings about {' and '.join(warned)}" if warned else ""
    if FATAL in statuses:
        return FATAL, "This result does not stand"
    if UNKNOWN in statuses:
        return UNKNOWN, "Not yet shown to be publishable" + about
    if "steadiness" in warned:
        return WARNING, "The figure is not steady: measure again before it is used"
    return (WARNING if warned else OK), "The result stands" + about


def checks(groups: Sequence[Group], protocol: Protocol) -> Iterator[Verdict]:
    """One line for each thing that a result can fail at."""
    runs = [run for group in groups for run in group.runs]
    yield _compliance(runs)
    yield from _training(groups, protocol)
    yield from _measurement(groups)
    dirty = [run for run in runs if section(run.record, "source").get("dirty") is True]
    if dirty:
        text = f"{_named(dirty, runs)} came from a source tree with uncommitted changes, which the commit does not hold"
        yield Verdict(check="provenance", status=WARNING, found=text, fix="Commit the changes and run again.")


def _named(some: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> str:
    if len(some) == len(runs):
        return "the run" if len(runs) == 1 else f"all {len(runs)} runs"
    return f"run{'s' * (len(some) > 1)} {', '.join(str(run.number) for run in some)}"


def _compliance(runs: Sequence[ReportedRun]) -> Verdict:
    checked = [run.findings for run in runs if run.findings]
    failed = [run for run in runs if run.findings and run.findings["verdict"] == "fail"]
    trained = (run for run in runs if run.record.format == "mllog" and run.record.mode != "throughput")
    missing = [run for run in trained if not run.findings]
    status, fix = OK, ""
    if failed:
        errors = sum(finding["severity"] == "error" for entry in checked for finding in entry["findings"])
        status, text = FATAL, f"{_named(failed, runs)} failed the check, {counted(errors, 'error')}"
        fix = "Do what section Compliance says of each error, and run again."
    elif missing:
        status, text = UNKNOWN, f"not checked: {_named(missing, runs)}"
        fix = f"Check the logs by {called('compliance')} check --json, and write this report with --findings."
    elif checked:
        text = f"{_named([run for run in runs if run.findings], runs)} passed the check"
    else:
        text = "not applicable: there is no MLPerf log of a training run to check"
    return Verdict(check="compliance", status=status, found=text, fix=fix)


def _training(groups: Sequence[Group], protocol: Protocol) -> Iterator[Verdict]:
    runs = [run for group in groups for run in group.runs]
    trained = [run for run in runs if run.record.status is not None and run.record.mode != "throughput"]
    stopped = [run for run in trained if run.record.status != "success"]
    # Other formats' truncated logs have a warning of the score.
    cut = [run for run in runs if run.record.truncated and run.record.format == "mllog"]
    if cut:
        text = f"truncated: {_named(cut, runs)}; the log ends before the run does"
        yield Verdict(check="run", status=FATAL, found=text, fix="Resume the run, or run it again.")
    if stopped:
        text = f"{_named(stopped, runs)} ended without success ({stopped[0].record.status})"
        # An olympic mean drops one of each system's runs.
        failing = [sum(run in stopped for run in g.runs) > (len(g.runs) >= protocol.runs > 2) for g in groups]
        status = FATAL if protocol.over_runs != "olympic_mean" or any(failing) else WARNING
        fix = "Read the ends of their logs for why they stopped."
        yield Verdict(check="quality", status=status, found=text, fix=fix)
    elif trained and all(run.record.quality for run in trained):
        worst = min((run.record.quality[-1] for run in trained), key=lambda quality: quality.value)
        targets = {run.target for run in trained}
        target = targets.pop() if len(targets) == 1 else None
        reached = f", target {target:g}" if target is not None else ""
        text = f"{_named(trained, runs)} ended with success; lowest final {worst.name} {worst.value:.4g}{reached}"
        below = target is not None and worst.value < target
        todo = "Train to the target, or measure throughput alone (MODE=throughput)." if below else ""
        yield Verdict(check="quality", status=FATAL if below else OK, found=text, fix=todo)


def _measurement(groups: Sequence[Group]) -> Iterator[Verdict]:
    problems = [group.problem for group in groups if group.problem]
    warnings = [warning for group in groups if group.score for warning in group.score.warnings]
    unsteady = [warning.found for warning in warnings if warning.check == "unsteady"]
    rules = sorted({warning.check for warning in warnings} - {"unsteady"})
    status, text, fix = OK, "no warning", ""
    if problems:
        status, text = FATAL, _first(problems)
        fix = "Give what the protocol asks for, or take a protocol that these logs can serve."
    elif rules:
        status, text = WARNING, f"{counted(len(rules), 'kind')} of warning: {', '.join(rules).replace('_', ' ')}"
        fix = "Run it again, with other seeds." if "too_few_runs" in rules else "Read the warnings below the figures."
    yield Verdict(check="measurement", status=status, found=text, fix=fix)
    if unsteady:
        fix = "Look for other load on the machine, waits for data and throttling; then measure again."
        yield Verdict(check="steadiness", status=WARNING, found=_first(unsteady), fix=fix)


def _first(texts: Sequence[str]) -> str:
    return texts[0] + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else "")
