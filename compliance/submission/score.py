"""The score of a submission: minutes to train, over its runs."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compliance import mlperf
from compliance.check import Report, check_file
from compliance.mlperf import Standing
from compliance.official import convergence
from compliance.official.rounds import SubmissionRuns
from compliance.rules import Ruleset, load
from compliance.submission.group import FAILED, ConvergenceTest, convergence_test, one_submission, standing_of
from compliance.submission.runs import check_between_runs, logs_named_by
from runlog import schema
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.stats import median_set
from runlog.text import printable

# errors of a run that only missed the target, which a submission may drop
NOT_CONVERGED = frozenset({"run-status", "eval_accuracy.value", "target-status"})


@dataclass(frozen=True, kw_only=True)
class ScoredRun:
    """One run: its minutes, the epoch (or samples) at which it reached the target, and why it does not count."""

    file: str
    minutes: float | None
    epochs: float | None
    broken_rules: tuple[str, ...]  # none if it counts

    @property
    def dropped(self) -> str:
        """Return why the run does not count; empty if it does."""
        return f"fails {', '.join(self.broken_rules)}" if self.broken_rules else ""

    def as_dict(self) -> JsonObject:
        """Return the run for JSON."""
        return {"file": self.file, "minutes": self.minutes, "epochs": self.epochs, "dropped": self.dropped}


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of a submission's runs.

    `minutes` is the olympic mean times `scaling`; None where there is no score, and then `problem` says why.
    """

    benchmark: str
    division: str
    by: str  # the verdict that drops runs: official or strict
    global_batch: int | None
    minutes: float | None
    unscaled_minutes: float | None
    scaling: float | None  # None: not known
    runs_wanted: int
    provisional: bool  # whether there are fewer or more runs than a submission has
    reduction: str
    olympic: bool  # whether the runs suffice for an olympic mean
    rcp: str  # pass, fail, not applied or not known
    convergence: str
    problem: str
    refused: tuple[str, ...]  # rules that leave no strict score; they must be read with an official one
    chosen: str = ""  # how these runs were chosen of more than a submission has; empty where there were no more
    runs: tuple[ScoredRun, ...]
    standing: Standing

    @property
    def scaled_minutes(self) -> float | None:
        """Return the minutes by result_summarizer, which ignores the convergence test; None without an olympic mean."""
        if self.unscaled_minutes is None or not self.olympic:
            return None
        return _scaled(self.unscaled_minutes, self.scaling)

    @property
    def figure(self) -> str:
        """Return the score with its unit, named as the result's standing asks; empty where there is none."""
        return "" if self.minutes is None else f"{self.minutes!r} {self.standing.unit('min')}"

    def as_dict(self) -> JsonObject:
        """Return the score's fields for JSON; its standing is `result`, with the footnotes that it asks for."""
        plain = dict(vars(self))
        del plain["runs"], plain["standing"]
        runs = [run.as_dict() for run in self.runs]
        return plain | {"runs": runs, "result": self.standing.as_dict(), "footnotes": self.standing.footnotes()}


@dataclass(frozen=True, kw_only=True)
class _Mean:
    """The mean of the runs that count, and how it was made."""

    minutes: float | None
    reduction: str
    olympic: bool


def _scaled(minutes: float, scaling: float | None) -> float:
    """Return minutes times the scaling by the reference convergence points; unscaled where that is not known."""
    if scaling is None:
        return minutes
    return minutes * scaling


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance score`. Returns 1 where there is no score."""
    ruleset = load(options.ruleset)
    checked = [check_file(log, ruleset) for log in logs_named_by(options.logs)]
    runs, chosen = nearest_the_median(checked, ruleset, options.verdict)
    scored = replace(score_runs(runs, ruleset, options.verdict), chosen=chosen)
    print(json.dumps(scored.as_dict(), indent=2) + "\n" if options.json else as_text(scored), end="")
    return 0 if scored.minutes is not None else 1


def nearest_the_median(
    checked: Sequence[Report], ruleset: Ruleset, by: str | None = None
) -> tuple[Sequence[Report], str]:
    """Return the runs that are scored, and a line that says how they were chosen, which is empty if all are scored.

    All are scored where there are no more than a submission of the benchmark has. Of more runs the rules score as many
    consecutive ones, by their start: of all such sets, the set whose score is the median. A set without a score counts
    as infinitely slow. `by` is the verdict that drops runs, as in `score_runs`.
    """
    benchmark = checked[0].run.stated_text(schema.SUBMISSION_BENCHMARK)
    wanted = mlperf.submission_runs(benchmark, ruleset.version)
    if wanted is None or len(checked) <= wanted.runs:
        return checked, ""

    def score_of_set(runs: Sequence[Report]) -> float:
        """Return the minutes of some of the runs; infinite where they have no score."""
        minutes = score_runs(runs, ruleset, by).minutes
        return math.inf if minutes is None else minutes

    ordered = sorted(checked, key=_start_and_name)
    return median_set(ordered, wanted.runs, score_of_set)


def _start_and_name(report: Report) -> tuple[float, str]:
    """Return the sort key that puts runs in the order of their start; those without one come first."""
    return report.run.start_ms or 0, report.path.name


def score_runs(checked: Sequence[Report], ruleset: Ruleset, by: str | None = None) -> Score:
    """Return the score of a submission: the mean minutes of its runs, scaled by the test of convergence.

    A submission may drop one run that did not converge, of unet3d four (training_rules.adoc, section Benchmark
    Results). `by` is the verdict that decides: "official" drops the runs that mlperf-logging's checker refuses, as its
    result_summarizer does; "strict" gives no score where a run has any other error. None stands for strict for logs of
    this project, and for official for others. Without a score `minutes` is None and `problem` says why.

    Raises ValueError if the logs are not of one submission of a benchmark that is scored.
    """
    first = checked[0]
    benchmark = one_submission(checked, ruleset)
    by = by or first.by
    _refuse_mixed_batches(checked, by)
    runs, faults = _judge_runs(checked, ruleset, by)
    kept = [run.minutes for run in runs if not run.dropped and run.minutes is not None]
    dropped = len(runs) - len(kept)
    mean = _mean_of_runs(kept, dropped, benchmark.runs)
    test = convergence_test(checked, ruleset)

    problem = _problem_of_runs(runs, dropped, mean, benchmark.runs)
    if not problem and by == "strict":
        problem = _problem_of_faults(faults, benchmark.runs)
    if not problem and test.status == FAILED:
        problem = _problem_of_convergence(test, len(runs) >= benchmark.runs.runs, by)
    minutes = None
    if mean.minutes is not None and not problem:
        minutes = _scaled(mean.minutes, test.scaling)
    return Score(
        benchmark=benchmark.name,
        division=printable(first.run.first_event(schema.SUBMISSION_DIVISION).value, 20),
        by=by,
        global_batch=first.run.global_batch,
        minutes=minutes,
        unscaled_minutes=mean.minutes,
        scaling=test.scaling,
        runs_wanted=benchmark.runs.runs,
        provisional=len(runs) != benchmark.runs.runs,
        reduction=mean.reduction,
        olympic=mean.olympic,
        rcp=test.status,
        convergence=test.in_words(),
        problem=problem,
        refused=tuple(sorted(faults)),
        runs=tuple(runs),
        standing=standing_of(checked, ruleset),
    )


def _refuse_mixed_batches(checked: Sequence[Report], by: str) -> None:
    """Raise ValueError where a strict score would be one of runs with different batches."""
    batches = set()
    for report in checked:
        batch = report.run.global_batch or report.run.first_event(schema.GLOBAL_BATCH_SIZE).value
        batches.add(json.dumps(batch))
    if by == "strict" and len(batches) > 1:
        shown = printable(", ".join(sorted(batches)))
        raise ValueError(
            f"{checked[0].path}: the runs have different global_batch_size ({shown}); score each by itself"
        )


class _Judged(NamedTuple):
    """The runs as they are scored, and the broken rules that forbid a strict score."""

    runs: list[ScoredRun]
    faults: set[str]


def _judge_runs(checked: Sequence[Report], ruleset: Ruleset, by: str) -> _Judged:
    """Return each run with the rules that drop it, and the broken rules that forbid a strict score.

    `by` is the verdict that drops a run: `strict` for any error, `official` for the errors of mlperf-logging's checker.
    The rules allow to drop a run only because it did not converge, so an error of any other kind forbids a strict
    score. The test of convergence (`rcp-convergence`) is about all runs together, and drops none.
    """
    runs = []
    faults: set[str] = set()
    for report in check_between_runs(checked, ruleset):
        broken_rules: set[str] = set()
        for finding in report.findings:
            if finding.severity != "error" or finding.rule == "rcp-convergence":
                continue
            if finding.rule not in NOT_CONVERGED:
                faults.add(finding.rule)
            if by == "strict" or finding.official:
                broken_rules.add(finding.rule)
        by_tools = report.run.as_tools_read  # its minutes are other ones where a log has more than one run_start
        run = ScoredRun(
            file=report.file,
            minutes=by_tools.minutes if by == "official" else report.run.minutes,
            epochs=None if by_tools.to_target == convergence.NOT_CONVERGED else by_tools.to_target,
            broken_rules=tuple(sorted(broken_rules)),
        )
        runs.append(run)
    return _Judged(runs, faults)


def _mean_of_runs(minutes: Sequence[float], dropped: int, runs: SubmissionRuns) -> _Mean:
    """Return the olympic mean, without the fastest and the slowest runs; the plain mean of too few runs.

    `minutes` are those of the runs that count. The `dropped` runs, which do not, are taken for the slowest ones. The
    mean is None where more are dropped than the benchmark allows, and where no run counts.
    """
    least = 2 * runs.dropped + 1
    olympic = len(minutes) + dropped >= least
    reduction = "olympic mean" if olympic else f"mean (an olympic mean takes {least} runs)"
    if dropped > runs.dropped or not minutes:
        return _Mean(minutes=None, reduction=reduction, olympic=olympic)
    averaged = sorted(minutes)
    if olympic:
        slowest_to_leave_out = runs.dropped - dropped
        averaged = averaged[runs.dropped : len(averaged) - slowest_to_leave_out]
    return _Mean(minutes=sum(averaged) / len(averaged), reduction=reduction, olympic=olympic)


def _problem_of_runs(runs: Sequence[ScoredRun], dropped: int, mean: _Mean, submission: SubmissionRuns) -> str:
    """Return why there is no mean of the runs: too many of them do not count, or none is left; empty if there is one.

    `dropped` is how many runs do not count, and `submission.dropped` how many may. The message names the rules that the
    runs break.
    """
    if dropped <= submission.dropped:
        return "no run is left" if mean.minutes is None else ""
    broken_rules: set[str] = set()
    for run in runs:
        broken_rules.update(run.broken_rules)
    shown_rules = ", ".join(sorted(broken_rules))
    allowed = _allowed_to_drop(submission)
    problem = f"{dropped} runs fail their check ({shown_rules}); a submission may drop {allowed}"
    if "weights_initialization" in shown_rules:
        problem += "; today's tool asks for MXNet's names of tensors, so the round may have published a score"
    return problem


def _problem_of_faults(faults: set[str], submission: SubmissionRuns) -> str:
    """Return why broken rules other than those of convergence forbid a strict score; empty if none is broken."""
    if not faults:
        return ""
    allowed = _allowed_to_drop(submission)
    return f"a run breaks {', '.join(sorted(faults))}; a submission may drop {allowed} that did not converge, no other"


def _allowed_to_drop(submission: SubmissionRuns) -> str:
    return "one" if submission.dropped == 1 else str(submission.dropped)


def _problem_of_convergence(test: ConvergenceTest, enough_runs: bool, by: str) -> str:
    """Return why a failed test of convergence forbids a score; empty where it does not.

    It does if the test was made and the submission has all of its runs. A test that could not be made, as the runs have
    different batches, forbids a strict score alone.
    """
    if test.result is None:
        return f"failed: {test.reason}" if by == "strict" else ""
    return "fails the test against the reference convergence points" if enough_runs else ""


def _run_in_words(run: ScoredRun, unit: str) -> str:
    """Return a line of a run: its minutes, how far it trained, and why it was dropped."""
    words = "no time"
    if run.minutes is not None:
        words = f"{run.minutes:.6f} min"
    if run.epochs is not None:
        words += f", {six_digits(run.epochs)} {unit}"
    if run.dropped:
        words += f" (dropped: {run.dropped})"
    return f"  {run.file}: {words}"


def as_text(score: Score) -> str:
    """Return the score as text: what was scored, a line for each run, how the score was made, and the score.

    Without a score the last line says why. With one, the notes follow that must be shown with it.
    """
    batch = score.global_batch or "not stated"
    lines = [f"{score.benchmark}, {score.division}, global batch {batch}, by the {score.by} rules"]
    lines.append(f"  result: {score.standing.name}")
    lines.append(f"  data set: {score.standing.dataset_in_words}; target: {score.standing.target_in_words}")
    unit = convergence.unit_of(score.benchmark, score.standing.facts.ruleset or "")
    lines += [_run_in_words(run, unit) for run in score.runs]
    lines.append(f"  reference convergence points: {score.convergence}")
    if score.unscaled_minutes is not None:
        scaling = "not known" if score.scaling is None else repr(score.scaling)
        lines.append(f"  {score.reduction}: {score.unscaled_minutes!r} min; scaling {scaling}")
    if score.chosen:
        lines.append(f"  scored: {score.chosen}")
    if score.provisional:
        lines.append(f"  provisional: {len(score.runs)} runs; a submission has {score.runs_wanted}")
    if score.minutes is None:
        lines.append(f"no score: {score.problem}")
        return "\n".join(lines) + "\n"
    refused = ""
    if score.refused:
        refused = f", refused by the strict rules: {', '.join(score.refused)}"
    lines.append(f"score: {score.figure}{refused}")
    lines += score.standing.footnotes()
    return "\n".join(lines) + "\n"
