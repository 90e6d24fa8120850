"""The score of a submission: minutes to train, over its runs."""

import argparse
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from compliance import mlperf
from compliance.check import Report, check_file
from compliance.mlperf import Standing
from compliance.official import convergence
from compliance.official.rounds import SubmissionRuns
from compliance.rules import Finding, Ruleset, load
from compliance.submission.group import FAILED, ConvergenceTest, convergence_test, one_submission, standing_of
from compliance.submission.runs import check_between_runs, logs_named_by
from runlog import schema
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.stats import median_set
from runlog.text import printable

# The rules that a run breaks by missing the target. A submission may drop one run that breaks no other rule; four for
# unet3d (training_rules.adoc, section Benchmark Results).
RULES_ON_THE_TARGET = frozenset({"run-status", "eval_accuracy.value", "target-status"})
_TENSOR_NAMES_KEY = "weights_initialization"  # the names of the rules on it begin with this key of the log


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

    `minutes` is the olympic mean times `scaling`. If it is None, there is no score, and `problem` says why.
    """

    benchmark: str
    division: str
    by: str  # the verdict that drops runs: official (as result_summarizer does) or strict
    global_batch: int | None
    minutes: float | None
    unscaled_minutes: float | None
    scaling: float | None  # None: not known
    runs_wanted: int
    provisional: bool  # there are fewer or more runs than a submission has
    reduction: str
    olympic: bool  # the runs suffice for an olympic mean
    rcp: str  # pass, fail, not applied or not known
    convergence: str
    problem: str  # why there is no score; empty if there is one
    refused: tuple[str, ...]  # rules that leave no strict score; they must be read with an official one
    chosen: str = ""  # how these runs were chosen from more than a submission has; empty if there were no more
    runs: tuple[ScoredRun, ...]
    standing: Standing

    @property
    def scaled_minutes(self) -> float | None:
        """Return result_summarizer's minutes, even if the convergence test failed; None without an olympic mean."""
        return _scaled(self.unscaled_minutes, self.scaling) if self.olympic else None

    @property
    def figure(self) -> str:
        """Return the score with its unit, named as the result's standing asks; empty if there is no score."""
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

    minutes: float | None  # None: there is no mean
    reduction: str  # the kind of mean, in words
    olympic: bool  # the runs suffice for an olympic mean


def _scaled(minutes: float | None, scaling: float | None) -> float | None:
    """Return minutes times the factor of the convergence test.

    Args:
        minutes: The minutes. None: there is no mean, and None is returned.
        scaling: The factor. None: not known, and the minutes are returned as they are.
    """
    if minutes is None or scaling is None:
        return minutes
    return minutes * scaling


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance score`: print the score of the logs of one submission.

    If there are more logs than a result takes, `choose_median_runs` chooses which of them are scored.

    Args:
        options: Options of the command line: `logs`; `ruleset`; `verdict`, by which runs are dropped ("official" or
            "strict"; None lets the first log decide); and `json`.

    Returns:
        The exit status: 0, or 1 if there is no score.

    Raises:
        ValueError: A path does not exist or names no log, a log is named twice or is not a regular file, the logs
            cannot be scored together, or there are no rules for the ruleset.
        OSError: A log cannot be read.
    """
    ruleset = load(options.ruleset)
    checked = [check_file(log, ruleset) for log in logs_named_by(options.logs)]
    runs, chosen = choose_median_runs(checked, ruleset, options.verdict)
    scored = score_runs(check_between_runs(runs, ruleset), ruleset, options.verdict)
    scored = replace(scored, chosen=chosen)
    print(json.dumps(scored.as_dict(), indent=2) + "\n" if options.json else as_text(scored), end="")
    return 0 if scored.minutes is not None else 1


def choose_median_runs(
    checked: Sequence[Report], ruleset: Ruleset, by: str | None = None
) -> tuple[Sequence[Report], str]:
    """Return the runs to score, and a line on how they were chosen if more were made than a result takes.

    Of all sets of consecutive runs, the set with the median score is chosen. If a result takes 5 runs and 7 were made,
    the sets are runs 1 to 5, 2 to 6 and 3 to 7 in the order of their start.

    Args:
        checked: The reports on the logs of one submission, at least one.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        by: The verdict by which the sets are scored, "official" or "strict". None: for each set, the verdict that
            decides on the first report of the set.

    Returns:
        The reports on the runs to score, and the line; empty if these are all the runs.

    Raises:
        ValueError: There are more runs than a result takes, and the runs of a set cannot be scored together, because
            they are of different submissions, for example.
    """
    all_runs = (checked, "")
    benchmark = checked[0].run.stated_text(schema.SUBMISSION_BENCHMARK)
    runs_of_result = mlperf.submission_runs(benchmark, ruleset.version)
    if runs_of_result is None:  # the benchmark is not scored: `score_runs` will refuse it
        return all_runs
    if len(checked) <= runs_of_result.runs:
        return all_runs
    in_order_of_start = sorted(checked, key=_start_and_name)
    minutes_of_set = functools.partial(_minutes_or_infinity, ruleset=ruleset, by=by)
    return median_set(in_order_of_start, runs_of_result.runs, minutes_of_set)


def _minutes_or_infinity(runs: Sequence[Report], ruleset: Ruleset, by: str | None) -> float:
    """Return the minutes of the score of some runs; infinite if they have no score.

    Args:
        runs: The reports on the runs, each checked by itself.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        by: The verdict by which runs are dropped, "official" or "strict". None: "strict" if the first run is logged by
            this project, else "official", unless its report asks for one of them.

    Raises:
        ValueError: The runs cannot be scored together.
    """
    minutes = score_runs(check_between_runs(runs, ruleset), ruleset, by).minutes
    return math.inf if minutes is None else minutes


def _start_and_name(report: Report) -> tuple[float, str]:
    """Return a sort key that puts runs in the order of their start; runs without a start come first."""
    return report.run.start_ms or 0, report.path.name


def score_runs(
    compared: Sequence[Report], ruleset: Ruleset, by: str | None = None, *, by_folder: bool = False
) -> Score:
    """Return the score of a submission: the mean minutes of its runs, scaled by the test of their convergence.

    The test compares how many epochs the runs needed to the target with the reference runs of MLPerf.

    Args:
        compared: The reports of `check_between_runs` on the logs of one submission, at least one.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        by: The verdict whose failed runs do not count: "official", of MLCommons' checker, or "strict", also of this
            project's own rules. None: the verdict that decides on the first report.
        by_folder: Whether a folder of a results repository holds the logs, and so makes them one submission.

    Returns:
        The score. If something forbids a score, its `minutes` are None, and `problem` says why.

    Raises:
        ValueError: The logs cannot be scored together: one has no events, they are of different submissions, or their
            benchmark is not scored. By "strict" also if their global batches differ.
    """
    first_run = compared[0].run
    benchmark = one_submission(compared, ruleset, by_folder=by_folder)
    runs_of_result = benchmark.runs_of_result
    deciding_verdict = compared[0].deciding_rules if by is None else by
    if deciding_verdict == "strict":
        refuse_mixed_batches(compared, shown_log=compared[0].path)

    judged = _judge_runs(compared, deciding_verdict)
    mean = _mean_of_runs(judged.kept_minutes, judged.failed_runs, runs_of_result)
    test = convergence_test(compared, ruleset)
    problem = _problem_of_score(judged, mean, test, runs_of_result, deciding_verdict)
    return Score(
        benchmark=benchmark.name,
        division=printable(first_run.first_event(schema.SUBMISSION_DIVISION).value, 20),
        by=deciding_verdict,
        global_batch=first_run.global_batch,
        minutes=None if problem else _scaled(mean.minutes, test.scaling),
        unscaled_minutes=mean.minutes,
        scaling=test.scaling,
        runs_wanted=runs_of_result.runs,
        provisional=len(judged.runs) != runs_of_result.runs,
        reduction=mean.reduction,
        olympic=mean.olympic,
        rcp=test.status,
        convergence=test.in_words(),
        problem=problem,
        refused=tuple(sorted(judged.rules_forbidding_strict_score)),
        runs=tuple(judged.runs),
        standing=standing_of(compared, ruleset),
    )


def refuse_mixed_batches(compared: Sequence[Report], *, shown_log: Path) -> None:
    """Raise ValueError if the runs of a submission have different global batch sizes.

    A value that is not a whole number above 0, such as a text, is compared as the log has it.

    Args:
        compared: The reports on the logs of the submission.
        shown_log: Path by which the message names the first log.

    Raises:
        ValueError: The batch sizes differ.
    """
    batches = set()
    for report in compared:
        value_in_log = report.run.first_event(schema.GLOBAL_BATCH_SIZE).value  # of any type of JSON
        batch = report.run.global_batch or value_in_log
        batches.add(json.dumps(batch))
    if len(batches) > 1:
        shown = printable(", ".join(sorted(batches)))
        raise ValueError(f"{shown_log}: the runs have different global_batch_size ({shown}); score each by itself")


class _JudgedRuns(NamedTuple):
    """The runs as they are scored, and the broken rules that forbid a strict score."""

    runs: list[ScoredRun]
    rules_forbidding_strict_score: set[str]

    @property
    def kept_minutes(self) -> list[float]:
        """Return the minutes of the runs that count."""
        return [run.minutes for run in self.runs if not run.dropped and run.minutes is not None]

    @property
    def failed_runs(self) -> int:
        """Return the number of runs that do not count: they are dropped, or have no minutes."""
        return len(self.runs) - len(self.kept_minutes)


def _judge_runs(compared: Sequence[Report], by: str) -> _JudgedRuns:
    """Return the runs of a submission as they are scored, and the broken rules that forbid a strict score.

    Args:
        compared: The reports of `check_between_runs` on the logs of the submission.
        by: The verdict that gives each run its minutes, and whose errors drop it: "official" or "strict".
    """
    runs = []
    rules_forbidding_strict_score: set[str] = set()  # of all errors by either verdict: an official score shows them
    for report in compared:
        errors = _errors_of_run(report)
        rules_forbidding_strict_score |= _rules_forbidding_strict_score(errors)
        if by == "official":
            official_errors = [error for error in errors if error.official]
            run = _scored_run(report, report.run.as_tools_read.minutes, official_errors)
        else:
            run = _scored_run(report, report.run.minutes, errors)
        runs.append(run)
    return _JudgedRuns(runs, rules_forbidding_strict_score)


def _errors_of_run(report: Report) -> list[Finding]:
    """Return the errors of a run itself.

    An error of `rcp-convergence` is about all runs together, and left out: their test decides on it.

    Args:
        report: The report on the run's log.
    """
    errors = [finding for finding in report.findings if finding.severity == "error"]
    return [error for error in errors if error.rule != "rcp-convergence"]


def _rules_forbidding_strict_score(errors: Sequence[Finding]) -> set[str]:
    """Return the names of the rules of a run's errors that forbid a strict score of the submission.

    Those on the quality target are left out, because a submission may drop a run that missed it.

    Args:
        errors: The errors of the run.
    """
    return {error.rule for error in errors} - RULES_ON_THE_TARGET


def _scored_run(report: Report, minutes: float | None, errors_dropping_run: Sequence[Finding]) -> ScoredRun:
    """Return a run as it is scored: its minutes, its epochs (or samples) to the target, and the rules that drop it.

    Args:
        report: The report on the run's log.
        minutes: Time to train, by the rules of the score, official or strict; None if it is not known.
        errors_dropping_run: Findings for which the run does not count by these rules; none if it counts.
    """
    # The epochs are only shown, so they are those that mlperf-logging's tools read, also in a strict score.
    epochs = report.run.as_tools_read.to_target  # None if the tools cannot read the log
    if epochs == convergence.NOT_CONVERGED:  # a large number, which stands for a missed target
        epochs = None
    return ScoredRun(
        file=report.file,
        minutes=minutes,
        epochs=epochs,
        broken_rules=tuple(sorted({error.rule for error in errors_dropping_run})),
    )


def _mean_of_runs(minutes: Sequence[float], failed_runs: int, runs_of_result: SubmissionRuns) -> _Mean:
    """Return the mean minutes of a submission's runs: an olympic mean if the runs are enough, else a plain one.

    An olympic mean leaves out the fastest and the slowest run; for unet3d, four at each end. Failed runs count as the
    slowest: 10, 11, 12, 13 and one failed run give 12, the mean of 11, 12 and 13.

    Args:
        minutes: Minutes of the runs that count.
        failed_runs: Number of runs that failed, which have no minutes here.
        runs_of_result: How many runs a result takes, and how many of them are left out at each end.
    """
    left_out_at_each_end = runs_of_result.dropped
    least_runs = 2 * left_out_at_each_end + 1
    all_runs = len(minutes) + failed_runs
    is_olympic = all_runs >= least_runs
    kind = "olympic mean" if is_olympic else f"mean (an olympic mean takes {least_runs} runs)"
    have_too_many_failed = failed_runs > left_out_at_each_end  # no mean may hide so many
    if have_too_many_failed or not minutes:
        return _Mean(minutes=None, reduction=kind, olympic=is_olympic)
    averaged: Sequence[float] = sorted(minutes)
    if is_olympic:
        averaged = _without_fastest_and_slowest(averaged, failed_runs, left_out_at_each_end)
    return _Mean(minutes=sum(averaged) / len(averaged), reduction=kind, olympic=is_olympic)


def _without_fastest_and_slowest(
    sorted_minutes: Sequence[float], failed_runs: int, left_out_at_each_end: int
) -> Sequence[float]:
    """Return the minutes that an olympic mean averages. Failed runs, which have no minutes, count as the slowest.

    10, 11, 12, 13 and one failed run, if one is left out at each end, give 11, 12, 13.

    Args:
        sorted_minutes: Minutes of the runs that count, in ascending order.
        failed_runs: Number of runs that failed, at most `left_out_at_each_end`.
        left_out_at_each_end: How many of the fastest, and how many of the slowest runs the mean leaves out.
    """
    left_out_as_fastest = left_out_at_each_end
    left_out_as_slowest = left_out_at_each_end - failed_runs  # the failed runs are left out already
    end = len(sorted_minutes) - left_out_as_slowest
    return sorted_minutes[left_out_as_fastest:end]


def _problem_of_score(
    judged: _JudgedRuns, mean: _Mean, test: ConvergenceTest, runs_of_result: SubmissionRuns, by: str
) -> str:
    """Return the first reason why a submission has no score; empty if it has one.

    Args:
        judged: The runs as they are scored.
        mean: Mean of the runs.
        test: Outcome of the test of the runs' convergence.
        runs_of_result: How many runs a result takes, and how many of them may be dropped.
        by: The verdict by which the runs are scored, "official" or "strict".
    """
    problem_of_runs = _problem_of_runs(judged, mean, runs_of_result)
    if problem_of_runs:
        return problem_of_runs
    if by == "strict" and judged.rules_forbidding_strict_score:
        return _problem_of_other_rules(judged.rules_forbidding_strict_score, runs_of_result)
    if test.status == FAILED:
        has_all_runs = len(judged.runs) >= runs_of_result.runs
        return _problem_of_convergence(test, has_all_runs=has_all_runs, by=by)
    return ""


def _problem_of_runs(judged: _JudgedRuns, mean: _Mean, runs_of_result: SubmissionRuns) -> str:
    """Return why the runs have no mean: more failed than may be dropped, or none is left; empty if they have one.

    Args:
        judged: The runs as they are scored.
        mean: Mean of the runs.
        runs_of_result: How many runs a result takes, and how many of them may be dropped.
    """
    if judged.failed_runs > runs_of_result.dropped:
        return _problem_of_failed_runs(judged, _allowed_to_drop(runs_of_result))
    if mean.minutes is None:
        return "no run is left"
    return ""


def _problem_of_failed_runs(judged: _JudgedRuns, allowed: str) -> str:
    """Return a sentence saying that too many runs failed, with the rules they broke.

    Args:
        judged: The runs as they are scored.
        allowed: Number of runs that a submission may drop, in words, such as `one`.
    """
    broken_rules: set[str] = set()
    for run in judged.runs:
        broken_rules.update(run.broken_rules)
    shown_rules = ", ".join(sorted(broken_rules))
    problem = f"{counted(judged.failed_runs, 'failing run')} ({shown_rules}); a submission may drop {allowed}"
    # Today's official checker demands the names that MXNet gives to tensors. That of the MLPerf round in which the logs
    # were submitted may not have done so. Then a published result may fail only here.
    if any(_TENSOR_NAMES_KEY in rule for rule in broken_rules):
        problem += "; today's tool asks for MXNet's names of tensors, so the round may have published a score"
    return problem


def _problem_of_other_rules(broken_rules: set[str], runs_of_result: SubmissionRuns) -> str:
    """Return a sentence on why broken rules leave a submission without a strict score, for instance:

        a run breaks seeds-differ; a submission may drop one that did not converge, no other

    A single run that breaks such a rule is enough, even if that run missed the quality target, too.

    Args:
        broken_rules: Names of the rules that runs break, at least one, without the rules on the quality target.
        runs_of_result: How many runs a result takes, and how many of them may be dropped.
    """
    shown_rules = ", ".join(sorted(broken_rules))
    allowed = _allowed_to_drop(runs_of_result)  # "one", or a larger number such as "4"
    return f"a run breaks {shown_rules}; a submission may drop {allowed} that did not converge, no other"


def _allowed_to_drop(runs_of_result: SubmissionRuns) -> str:
    return "one" if runs_of_result.dropped == 1 else str(runs_of_result.dropped)


def _problem_of_convergence(test: ConvergenceTest, *, has_all_runs: bool, by: str) -> str:
    """Return why a failed test of convergence forbids a score; empty if it does not.

    Args:
        test: Outcome of the test, a failed one.
        has_all_runs: Whether there are at least as many runs as a result takes.
        by: The verdict by which the runs are scored, "official" or "strict".
    """
    were_compared = test.comparison is not None
    if were_compared and has_all_runs:
        return "fails the test against the reference convergence points"
    if were_compared:  # the test is made for all runs of a result: fewer may fail it and have a provisional score
        return ""
    if by == "strict":  # the runs do not state one batch, so that no reference could be chosen
        return f"failed: {test.reason}"
    return ""  # an official score asks for no one batch


def _run_in_words(run: ScoredRun, unit: str) -> str:
    """Return the line of a run: its minutes, how far it trained, and why it was dropped.

    Args:
        run: The run as it is scored.
        unit: What its training is counted in: epochs, samples or steps.
    """
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

    Args:
        score: The score of a submission.

    Returns:
        The lines of the text, of which `scored` and `provisional` may be missing. For instance:

            resnet, closed, global batch 3264, by the official rules
              result: Unverified MLPerf(R) v4.0 Training Closed ResNet
              data set: ImageNet, 1281167 + 50000 samples; target: 0.759
              result_0.txt: 28.300000 min, 41 epochs
              reference convergence points: passed: reference point; 41.0000 epochs, reference 40.5000 (least 38.1000)
              olympic mean: 28.3 min; scaling 1.0
              scored: ...
              provisional: 3 runs; a submission has 5
            score: 28.3 min (unverified)
            ...
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
        lines.append(f"  provisional: {counted(len(score.runs), 'run')}; a submission has {score.runs_wanted}")
    if score.minutes is None:
        lines.append(f"no score: {score.problem}")
        return "\n".join(lines) + "\n"
    refused = ""
    if score.refused:
        refused = f", refused by the strict rules: {', '.join(score.refused)}"
    lines.append(f"score: {score.figure}{refused}")
    lines += score.standing.footnotes()  # on the use of the name MLPerf
    return "\n".join(lines) + "\n"
