"""The verdict: what is checked of a result, what the checks say together, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scoring.figure.protocols import Protocol
from scoring.report.content import Check, Group, ReportedRun, section


def verdict(checks: Sequence[Check]) -> tuple[str, str]:
    """The worst state of the checks, and what it means."""
    states = {check.state for check in checks}
    doubts = [check.subject.lower() for check in checks if check.state == "doubt"]
    about = f", with doubts about {' and '.join(doubts)}" if doubts else ""
    if "bad" in states:
        return "bad", "This result does not stand"
    if "unknown" in states:
        return "unknown", "Not yet shown to be publishable" + about
    if "steadiness" in doubts:
        return "doubt", "The figure is not steady: measure again before it is used"
    return ("doubt", f"The result stands{about}") if doubts else ("good", "The result stands")


def checks(groups: Sequence[Group], protocol: Protocol) -> Iterator[Check]:
    """One line for each thing that a result can fail at."""
    runs = [run for group in groups for run in group.runs]
    yield _compliance(runs)
    yield from _training(runs, protocol)
    yield _measurement(groups)
    yield from _steadiness(groups)
    dirty = [run for run in runs if section(run.record, "source").get("dirty") is True]
    if dirty:
        text = f"{_of(dirty, runs)} came from a source tree with uncommitted changes: the commit does not say what ran"
        yield Check(state="doubt", subject="Provenance", text=text, todo="Commit the changes and run again.")


def _of(some: Sequence[ReportedRun], runs: Sequence[ReportedRun]) -> str:
    if len(some) == len(runs):
        return "the run" if len(runs) == 1 else f"all {len(runs)} runs"
    return f"run{'s' * (len(some) > 1)} {', '.join(str(run.number) for run in some)}"


def _compliance(runs: Sequence[ReportedRun]) -> Check:
    checked = [run for run in runs if run.findings is not None]
    failed = [run for run in checked if run.findings and run.findings["verdict"] == "fail"]
    if failed:
        errors = sum(finding["severity"] == "error" for run in failed for finding in (run.findings or {})["findings"])
        text = f"{_of(failed, runs)} failed the check, {errors} error{'s' * (errors != 1)}"
        todo = "Do what section Compliance says of each error, and run again."
        return Check(state="bad", subject="Compliance", text=text, todo=todo)
    owed = [run for run in runs if run.record.format == "mllog" and run.record.mode != "throughput"]
    missing = [run for run in owed if run.findings is None]
    if missing:
        text = f"not checked: {_of(missing, runs)}; give what `python -m compliance check --json` finds by --findings"
        todo = "Check the logs, and write this report with --findings."
        return Check(state="unknown", subject="Compliance", text=text, todo=todo)
    if checked:
        return Check(state="good", subject="Compliance", text=f"{_of(checked, runs)} passed the check")
    text = "runs that measure throughput are no training results; there is no MLPerf log to check"
    return Check(state="none", subject="Compliance", text=text)


def _training(runs: Sequence[ReportedRun], protocol: Protocol) -> Iterator[Check]:
    trained = [run for run in runs if run.record.status is not None and run.record.mode != "throughput"]
    stopped = [run for run in trained if run.record.status != "success"]
    cut = [run for run in runs if run.record.truncated and run.record.format == "mllog"]  # others: a doubt of the score
    if cut:
        text = f"truncated: {_of(cut, runs)}; the log ends before the run does"
        yield Check(state="bad", subject="Run", text=text, todo="Resume the run, or run it again.")
    if stopped:
        text = f"{_of(stopped, runs)} ended without success ({stopped[0].record.status})"
        allowed = 1 if protocol.over_runs == "olympic_mean" and len(trained) >= protocol.runs else 0
        state = "doubt" if len(stopped) <= allowed else "bad"
        yield Check(state=state, subject="Quality", text=text, todo="Read the ends of their logs for why they stopped.")
    elif trained and all(run.record.quality for run in trained):
        last = [run.record.quality[-1] for run in trained]
        worst = min(last, key=lambda quality: quality.value)
        targets = {run.target for run in trained}
        target = targets.pop() if len(targets) == 1 else None
        reached = f", target {target:g}" if target is not None else ""
        text = f"{_of(trained, runs)} ended with success; lowest final {worst.name} {worst.value:.4g}{reached}"
        below = target is not None and worst.value < target
        todo = "Train to the target, or measure throughput alone (MODE=throughput)." if below else ""
        yield Check(state="bad" if below else "good", subject="Quality", text=text, todo=todo)


def _measurement(groups: Sequence[Group]) -> Check:
    problems = [group.problem for group in groups if group.problem]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        todo = "Give what the protocol asks for, or take a protocol that these logs can serve."
        return Check(state="bad", subject="Measurement", text=problems[0] + more, todo=todo)
    rules = sorted({warning.rule for group in groups if group.score for warning in group.score.warnings} - {"unsteady"})
    if rules:
        text = f"{len(rules)} kind{'s' * (len(rules) > 1)} of doubt: {', '.join(rules).replace('_', ' ')}"
        todo = "Run it again, with other seeds." if "too_few_runs" in rules else "Read the doubts below the figures."
        return Check(state="doubt", subject="Measurement", text=text, todo=todo)
    return Check(state="good", subject="Measurement", text="no doubt found")


def _steadiness(groups: Sequence[Group]) -> Iterator[Check]:
    """Figures that the rule `unsteady` warns of."""
    unsteady = [w for group in groups if group.score for w in group.score.warnings if w.rule == "unsteady"]
    if unsteady:
        more = f" (and {len(unsteady) - 1} more)" if len(unsteady) > 1 else ""
        todo = "Look for other load on the machine, waits for data and throttling; then measure again."
        yield Check(state="doubt", subject="Steadiness", text=unsteady[0].message + more, todo=todo)
