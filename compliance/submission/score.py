"""Score of a submission: minutes to train, over its runs."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from compliance.check import Report, check_file
from compliance.official import convergence
from compliance.rules import Ruleset, load
from compliance.submission.runs import check_between, epochs_to_target, expand, one_submission, reference_points
from runlog import schema
from runlog.stats import median_set, olympic_mean
from runlog.text import printable

# errors of a run that trained as it should and did not reach the target: one such run may be dropped
NOT_CONVERGED = frozenset({"run-status", "eval_accuracy.value", "target-status"})


@dataclass(frozen=True, kw_only=True)
class ScoredRun:
    """One run: its minutes, the epoch of its last evaluation, and why it does not count (empty if it does)."""

    file: str
    minutes: float | None
    epochs: float | None
    dropped: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """`minutes` is the olympic mean times `scaling`; None where there is no score, and then `problem` says why."""

    benchmark: str
    division: str
    by: str  # the verdict that drops runs: official or strict
    global_batch: int | None
    minutes: float | None
    unscaled_minutes: float | None
    scaling: float
    runs_wanted: int
    provisional: bool  # not the number of runs that a submission has
    reduction: str
    rcp: str  # pass, fail or not applied
    convergence: str
    problem: str
    refused: tuple[str, ...]  # rules that leave no strict score; beside an official one they must be read
    chosen: str = ""  # which of more runs than a submission has these are; empty where there are no more
    runs: tuple[ScoredRun, ...]


def command(options: argparse.Namespace) -> int:
    ruleset = load(options.ruleset)
    checked = [check_file(log, ruleset) for log in expand(options.logs)]
    runs, chosen = nearest_the_median(checked, ruleset, options.verdict)
    scored = replace(score_runs(runs, ruleset, options.verdict), chosen=chosen)
    print(json.dumps(asdict(scored), indent=2) + "\n" if options.json else as_text(scored), end="")
    return 0 if scored.minutes is not None else 1


def nearest_the_median(
    checked: Sequence[Report], ruleset: Ruleset, by: str | None = None
) -> tuple[Sequence[Report], str]:
    """Of more runs than a submission has, those that are scored, and a line that says which they are."""
    benchmark = ruleset.benchmarks.get(checked[0].run.text(schema.SUBMISSION_BENCHMARK))
    if benchmark is None or len(checked) <= benchmark.runs:
        return checked, ""

    def minutes(runs: Sequence[Report]) -> float:
        scored = score_runs(runs, ruleset, by).minutes
        return math.inf if scored is None else scored

    ordered = sorted(checked, key=lambda one: (one.run.start_ms or 0, one.path.name))
    return median_set(ordered, benchmark.runs, minutes)


def score_runs(checked: Sequence[Report], ruleset: Ruleset, by: str | None = None) -> Score:
    """The score of a submission; `by` None is strict for our own logs and official for others.

    A submission may drop one run that did not converge (training_rules.adoc, section Benchmark Results). official drops
    what mlperf-logging's checker refuses, as its result_summarizer does; strict gives no score beside another fault.
    Raises ValueError if the logs are not of one submission of a benchmark that is scored.
    """
    first, benchmark = checked[0], one_submission(checked, ruleset)
    by, batch = by or first.by, first.run.global_batch
    # what is no global batch, as the log says it
    batches = {json.dumps(one.run.global_batch or one.run.of(schema.GLOBAL_BATCH_SIZE).value) for one in checked}
    if by == "strict" and len(batches) > 1:
        shown = printable(", ".join(sorted(batches)))
        raise ValueError(f"{first.path}: the runs have different global_batch_size ({shown}); score each by itself")
    runs, faults = _runs(checked, ruleset, by)
    minutes = [run.minutes for run in runs if not run.dropped and run.minutes is not None]
    dropped = len(runs) - len(minutes)
    mean, reduction = _reduce(minutes, dropped)
    problem = ""
    if dropped > 1:
        rules = ", ".join(sorted({rule for run in runs if run.dropped for rule in run.dropped[6:].split(", ")}))
        problem = f"{dropped} runs fail their check ({rules}); a submission may drop one"
        if "weights_initialization" in rules:
            problem += "; today's tool asks for MXNet's names of tensors, so the round may have published a score"
    elif mean is None:
        problem = "no run is left"
    elif faults and by == "strict":
        problem = f"a run breaks {', '.join(sorted(faults))}; a submission may drop one that did not converge, no other"
    scaling, rcp, verdict = 1.0, "not applied", "not applied: for closed runs"
    points = reference_points(first.run, ruleset)
    if points and (len(batches) > 1 or batch is None):
        rcp, verdict = "fail", f"failed: no one global_batch_size ({printable(', '.join(sorted(batches)))})"
        problem = problem or (verdict if by == "strict" else "")
    elif points and batch is not None:
        epochs = [epochs_to_target(one.run) for one in checked]
        judged = convergence.against_points(epochs, batch, points, benchmark.runs)
        scaling, rcp = judged.scaling, "pass" if judged.passed else "fail"
        verdict = f"{rcp}ed: {judged.reason}"
        if judged.point and judged.mean_epochs is not None:
            wanted = f"{judged.point.mean_epochs:.4f} (least {judged.point.least_epochs:.4f})"
            verdict += f"; {judged.mean_epochs:.4f} epochs, reference {wanted}"
        if not judged.passed and len(runs) >= benchmark.runs:
            problem = problem or "fails the test against the reference convergence points"
    return Score(
        benchmark=benchmark.name,
        division=printable(first.run.of(schema.SUBMISSION_DIVISION).value, 20),
        by=by,
        global_batch=batch,
        minutes=None if mean is None or problem else mean * scaling,
        unscaled_minutes=mean,
        scaling=scaling,
        runs_wanted=benchmark.runs,
        provisional=len(runs) != benchmark.runs,
        reduction=reduction,
        rcp=rcp,
        convergence=verdict,
        problem=problem,
        refused=tuple(sorted(faults)),
        runs=tuple(runs),
    )


def _runs(checked: Sequence[Report], ruleset: Ruleset, by: str) -> tuple[list[ScoredRun], set[str]]:
    """Each run with what drops it, and the rules that leave no strict score."""
    faults: set[str] = set()
    runs = []
    for one in check_between(checked, ruleset):
        errors = [f for f in one.findings if f.severity == "error" and f.rule != "rcp-convergence"]
        faults |= {f.rule for f in errors} - NOT_CONVERGED
        rules = sorted({f.rule for f in errors if by == "strict" or f.official})
        dropped = f"fails {', '.join(rules)}" if rules else ""
        epochs = None if (counted := epochs_to_target(one.run)) == convergence.NOT_CONVERGED else counted
        runs.append(ScoredRun(file=one.file, minutes=one.run.minutes, epochs=epochs, dropped=dropped))
    return runs, faults


def _reduce(minutes: Sequence[float], dropped: int) -> tuple[float | None, str]:
    few = len(minutes) + dropped < 3
    reduction = "mean (an olympic mean takes 3 runs)" if few else "olympic mean"
    if dropped > 1 or not minutes:
        return None, reduction
    return sum(minutes) / len(minutes) if few else olympic_mean([*minutes, *[math.inf] * dropped]), reduction


def as_text(score: Score) -> str:
    batch = score.global_batch or "not stated"
    lines = [f"{score.benchmark}, {score.division}, global batch {batch}, by the {score.by} rules"]
    for run in score.runs:
        shown = "no time" if run.minutes is None else f"{run.minutes:.6f} min"
        epochs = "" if run.epochs is None else f", {run.epochs:g} epochs"
        lines.append(f"  {run.file}: {shown}{epochs}{f' (dropped: {run.dropped})' if run.dropped else ''}")
    lines.append(f"  reference convergence points: {score.convergence}")
    if score.unscaled_minutes is not None:
        lines.append(f"  {score.reduction}: {score.unscaled_minutes!r} min; scaling {score.scaling!r}")
    if score.chosen:
        lines.append(f"  scored: {score.chosen}")
    if score.provisional:
        lines.append(f"  provisional: {len(score.runs)} runs; a submission has {score.runs_wanted}")
    but = f", refused by the strict rules: {', '.join(score.refused)}" if score.refused else ""
    lines.append(f"score: {score.minutes!r} min{but}" if score.minutes is not None else f"no score: {score.problem}")
    return "\n".join(lines) + "\n"
