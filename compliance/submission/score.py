"""Score of a submission: minutes to train, over its runs."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from compliance import mlperf
from compliance.check import Report, check_file
from compliance.mlperf import Standing
from compliance.official import convergence
from compliance.official.rounds import SubmissionRuns
from compliance.rules import Ruleset, load
from compliance.submission.group import FAILED, ConvergenceTest, convergence_test, one_submission, standing_of
from compliance.submission.runs import check_between, expand
from runlog import schema
from runlog.stats import median_set
from runlog.text import printable

# errors of a run that trained as it should and did not reach the target: so many runs may be dropped
NOT_CONVERGED = frozenset({"run-status", "eval_accuracy.value", "target-status"})


@dataclass(frozen=True, kw_only=True)
class ScoredRun:
    """One run: its minutes, the epoch (or samples) of its last evaluation, and why it does not count."""

    file: str
    minutes: float | None
    epochs: float | None
    dropped: str  # empty if it counts


@dataclass(frozen=True, kw_only=True)
class Score:
    """`minutes` is the olympic mean times `scaling`; None where there is no score, and then `problem` says why."""

    benchmark: str
    division: str
    by: str  # the verdict that drops runs: official or strict
    global_batch: int | None
    minutes: float | None
    unscaled_minutes: float | None
    scaling: float | None  # None: not known
    runs_wanted: int
    provisional: bool  # not the number of runs that a submission has
    reduction: str
    olympic: bool  # whether the runs suffice for an olympic mean
    rcp: str  # pass, fail, not applied or not known
    convergence: str
    problem: str
    refused: tuple[str, ...]  # rules that leave no strict score; they must be read with an official one
    chosen: str = ""  # which of more runs than a submission has these are; empty where there are no more
    runs: tuple[ScoredRun, ...]
    standing: Standing

    @property
    def scaled_minutes(self) -> float | None:
        """Minutes that result_summarizer prints whatever the test of convergence says; None without an olympic mean."""
        if self.unscaled_minutes is None or not self.olympic:
            return None
        return self.unscaled_minutes * (1.0 if self.scaling is None else self.scaling)

    @property
    def figure(self) -> str:
        """The score with its unit, named as the result's standing asks; empty where there is none."""
        return "" if self.minutes is None else f"{self.minutes!r} {self.standing.unit('min')}"

    def as_dict(self) -> dict[str, Any]:
        """The score as JSON has it."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("runs", "standing")}
        runs = [vars(run) for run in self.runs]
        return plain | {"runs": runs, "result": self.standing.as_dict(), "footnotes": self.standing.footnotes()}


@dataclass(frozen=True, kw_only=True)
class _Mean:
    """The mean of the runs that count, and how it was made."""

    minutes: float | None
    reduction: str
    olympic: bool


def command(options: argparse.Namespace) -> int:
    """`python -m compliance score`; 1 where there is no score."""
    ruleset = load(options.ruleset)
    checked = [check_file(log, ruleset) for log in expand(options.logs)]
    runs, chosen = nearest_the_median(checked, ruleset, options.verdict)
    scored = replace(score_runs(runs, ruleset, options.verdict), chosen=chosen)
    print(json.dumps(scored.as_dict(), indent=2) + "\n" if options.json else as_text(scored), end="")
    return 0 if scored.minutes is not None else 1


def nearest_the_median(
    checked: Sequence[Report], ruleset: Ruleset, by: str | None = None
) -> tuple[Sequence[Report], str]:
    """Choose the runs that are scored where there are more than a submission has; say in a line which they are."""
    benchmark = checked[0].run.text(schema.SUBMISSION_BENCHMARK)
    wanted = mlperf.submission_runs(benchmark, ruleset.version)
    if wanted is None or len(checked) <= wanted.runs:
        return checked, ""

    def minutes(runs: Sequence[Report]) -> float:
        scored = score_runs(runs, ruleset, by).minutes
        return math.inf if scored is None else scored

    ordered = sorted(checked, key=lambda one: (one.run.start_ms or 0, one.path.name))
    return median_set(ordered, wanted.runs, minutes)


def score_runs(checked: Sequence[Report], ruleset: Ruleset, by: str | None = None) -> Score:
    """The score of a submission; `by` None is strict for our own logs and official for others.

    A submission may drop a run that did not converge (training_rules.adoc, section Benchmark Results), of unet3d four.
    official drops what mlperf-logging's checker refuses, as its result_summarizer does; strict gives no score where a
    run has another fault. Raises ValueError if the logs are not of one submission of a benchmark that is scored.
    """
    first = checked[0]
    benchmark = one_submission(checked, ruleset)
    by = by or first.by
    _refuse_mixed_batches(checked, by)
    runs, faults = _runs(checked, ruleset, by)
    kept = [run.minutes for run in runs if not run.dropped and run.minutes is not None]
    dropped = len(runs) - len(kept)
    mean = _mean(kept, dropped, benchmark.runs)
    test = convergence_test(checked, ruleset)

    problem = _problem_of_runs(runs, dropped, mean, benchmark.runs, faults if by == "strict" else set())
    if not problem and test.status == FAILED:
        problem = _problem_of_convergence(test, len(runs) >= benchmark.runs.runs, by)
    minutes = None
    if mean.minutes is not None and not problem:
        minutes = mean.minutes * (1.0 if test.scaling is None else test.scaling)
    return Score(
        benchmark=benchmark.name,
        division=printable(first.run.of(schema.SUBMISSION_DIVISION).value, 20),
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
    stated = [one.run.global_batch or one.run.of(schema.GLOBAL_BATCH_SIZE).value for one in checked]
    batches = {json.dumps(batch) for batch in stated}
    if by == "strict" and len(batches) > 1:
        shown = printable(", ".join(sorted(batches)))
        raise ValueError(
            f"{checked[0].path}: the runs have different global_batch_size ({shown}); score each by itself"
        )


def _runs(checked: Sequence[Report], ruleset: Ruleset, by: str) -> tuple[list[ScoredRun], set[str]]:
    """Each run with what drops it, and the rules that leave no strict score."""
    faults: set[str] = set()
    runs = []
    for one in check_between(checked, ruleset):
        errors = [f for f in one.findings if f.severity == "error" and f.rule != "rcp-convergence"]
        faults |= {f.rule for f in errors} - NOT_CONVERGED
        rules = sorted({f.rule for f in errors if by == "strict" or f.official})
        read = one.run.as_tools_read
        to_target = None if read.to_target == convergence.NOT_CONVERGED else read.to_target
        runs.append(
            ScoredRun(
                file=one.file,
                minutes=read.minutes if by == "official" else one.run.minutes,
                epochs=to_target,
                dropped=f"fails {', '.join(rules)}" if rules else "",
            )
        )
    return runs, faults


def _mean(minutes: Sequence[float], dropped: int, runs: SubmissionRuns) -> _Mean:
    """The olympic mean, with runs that were dropped as the slowest; of too few runs the plain mean."""
    least = 2 * runs.dropped + 1
    olympic = len(minutes) + dropped >= least
    reduction = "olympic mean" if olympic else f"mean (an olympic mean takes {least} runs)"
    if dropped > runs.dropped or not minutes:
        return _Mean(minutes=None, reduction=reduction, olympic=olympic)
    counted = sorted(minutes)
    if olympic:
        counted = counted[runs.dropped : len(counted) - (runs.dropped - dropped)]
    return _Mean(minutes=sum(counted) / len(counted), reduction=reduction, olympic=olympic)


def _problem_of_runs(
    runs: Sequence[ScoredRun], dropped: int, mean: _Mean, wanted: SubmissionRuns, faults: set[str]
) -> str:
    """Why the runs leave no score; empty if they leave one. `faults` are rules that leave no strict score."""
    allowed = "one" if wanted.dropped == 1 else str(wanted.dropped)
    if dropped > wanted.dropped:
        broken = {rule for run in runs for rule in run.dropped.removeprefix("fails ").split(", ") if rule}
        rules = ", ".join(sorted(broken))
        problem = f"{dropped} runs fail their check ({rules}); a submission may drop {allowed}"
        if "weights_initialization" in rules:
            problem += "; today's tool asks for MXNet's names of tensors, so the round may have published a score"
        return problem
    if mean.minutes is None:
        return "no run is left"
    if faults:
        broken_rules = ", ".join(sorted(faults))
        return f"a run breaks {broken_rules}; a submission may drop {allowed} that did not converge, no other"
    return ""


def _problem_of_convergence(test: ConvergenceTest, enough_runs: bool, by: str) -> str:
    """Why a failed test of convergence leaves no score; empty where it leaves one."""
    if test.result is None:
        return f"failed: {test.reason}" if by == "strict" else ""
    return "fails the test against the reference convergence points" if enough_runs else ""


def as_text(score: Score) -> str:
    """The score with its runs, its name and the notes that must stand with it."""
    batch = score.global_batch or "not stated"
    lines = [f"{score.benchmark}, {score.division}, global batch {batch}, by the {score.by} rules"]
    lines.append(f"  result: {score.standing.name}")
    lines.append(f"  data set: {score.standing.dataset_in_words}; target: {score.standing.target_in_words}")
    unit = convergence.unit_of(score.benchmark, score.standing.facts.ruleset or "")
    for run in score.runs:
        shown = "no time" if run.minutes is None else f"{run.minutes:.6f} min"
        to_target = "" if run.epochs is None else f", {run.epochs:g} {unit}"
        dropped = f" (dropped: {run.dropped})" if run.dropped else ""
        lines.append(f"  {run.file}: {shown}{to_target}{dropped}")
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
    refused = f", refused by the strict rules: {', '.join(score.refused)}" if score.refused else ""
    lines.append(f"score: {score.figure}{refused}")
    lines += score.standing.footnotes()
    return "\n".join(lines) + "\n"
