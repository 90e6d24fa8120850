"""The logs of one submission taken together: what they are runs of, and the test of their convergence."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compliance import mlperf
from compliance.check import Report
from compliance.logged_run import NOTHING, LoggedRun, is_count, is_number
from compliance.mlperf import Standing
from compliance.official import convergence
from compliance.official.convergence import Convergence, NoReferenceError, ReferenceSet
from compliance.official.rounds import SubmissionRuns, round_of
from compliance.rules import Finding, Ruleset
from runlog import schema
from runlog.text import printable

PASSED = "pass"
FAILED = "fail"
NOT_APPLIED = "not applied"
NOT_KNOWN = "not known"

# what the runs of one submission have in common by name; the first two even where a folder says that they are one
_SUBMISSION = (
    schema.SUBMISSION_BENCHMARK,
    schema.SUBMISSION_DIVISION,
    schema.SUBMISSION_ORG,
    schema.SUBMISSION_PLATFORM,
)


class SubmittedBenchmark(NamedTuple):
    """The benchmark of all logs of a submission, and how many runs make a result of it."""

    name: str
    runs_of_result: SubmissionRuns


class BlamedRun(NamedTuple):
    """A breach of a rule between runs, or a note on such a rule, and the report of the run that it is about."""

    report: Report
    finding: Finding


class Comparison(NamedTuple):
    """The comparison of a submission's runs with the reference convergence points, and its outcome, the `result`."""

    reference: ReferenceSet
    batch: int
    epochs_to_target: tuple[float, ...]  # of each run; samples or steps if the reference counts these
    result: Convergence


class ConvergenceTest(NamedTuple):
    """The outcome of a submission's test against the reference convergence points.

    `scaling` multiplies the submission's minutes: 1 if the test was not applied or failed; None if it is unknown.
    """

    status: str  # PASSED, FAILED, NOT_APPLIED or NOT_KNOWN (no points, or a log that rcp_checker cannot read)
    reason: str
    scaling: float | None
    reference: ReferenceSet | None = None  # None: there are no points, or the test was not applied
    comparison: Comparison | None = None  # None: the runs could not be compared with the points

    def in_words(self) -> str:
        """Return the outcome of the convergence test in words, with the means that were compared, if any.

            passed: reference point; 41.0000 epochs, reference 40.5000 (least 38.1000)
            not applied: only closed runs are tested

        The first mean is the submission's; `least` is the smallest that passes.
        """
        status_in_words = {PASSED: "passed", FAILED: "failed"}.get(self.status, self.status)
        outcome = f"{status_in_words}: {self.reason}"
        if self.comparison is None:
            return outcome
        mean = self.comparison.result.mean
        point = self.comparison.result.point
        if mean is None or point is None:
            return outcome
        means = f"{mean:.4f} {self.comparison.reference.unit}, reference {point.mean:.4f}"
        return f"{outcome}; {means} (least {point.least:.4f})"


def names_of_submission(run: LoggedRun) -> tuple[str, ...]:
    """Return the benchmark, division, organisation and platform that a log states."""
    return tuple(str(run.first_event(event).value) for event in _SUBMISSION)


def one_submission(
    checked: Sequence[Report],
    ruleset: Ruleset,
    *,
    original_of_copy: Mapping[Path, Path] | None = None,
    by_folder: bool = False,
) -> SubmittedBenchmark:
    """Refuse logs that are not of one submission with a scored benchmark; return the benchmark and its runs per result.

    Logs are of one submission if they state the same benchmark, division, organisation and platform.

    Args:
        checked: The reports on the logs, at least one.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.
        original_of_copy: Only for the messages of errors: the path of each original log by the path of its checked
            copy. None if the logs themselves were checked.
        by_folder: Whether a folder of a results repository holds the logs. It makes them one submission even if they
            state different organisations or platforms, as mlperf-logging's result_summarizer takes them.

    Raises:
        ValueError: A log has no events, the first log's benchmark is not scored, or another log is of a different
            submission than the first log. The message names the log.
    """
    # A user knows the originals, and not the copies that were checked.
    paths_for_messages = [report.path for report in checked]
    if original_of_copy is not None:
        paths_for_messages = [original_of_copy[report.path] for report in checked]

    _refuse_logs_without_events(checked, paths_for_messages)  # first, because such a log states no benchmark
    benchmark = checked[0].run.stated_text(schema.SUBMISSION_BENCHMARK)
    # How many runs make a result, and how many of them are dropped at each end; None if the benchmark is not scored.
    runs_of_result = mlperf.submission_runs(benchmark, ruleset.version)
    if runs_of_result is None:
        raise ValueError(f"{paths_for_messages[0]}: {_why_not_scored(checked[0].run, ruleset)}")
    names_compared = 2 if by_folder else len(_SUBMISSION)  # 2: the benchmark and the division
    _refuse_different_submissions(checked, paths_for_messages, names_compared)  # all others are of `benchmark`
    return SubmittedBenchmark(name=benchmark, runs_of_result=runs_of_result)


def _why_not_scored(run: LoggedRun, ruleset: Ruleset) -> str:
    """Return a text that says that the benchmark of a run is not scored, and which benchmarks are.

    Args:
        run: The run, by its log.
        ruleset: Rules of the MLPerf round whose benchmarks are named.
    """
    stated = printable(run.first_event(schema.SUBMISSION_BENCHMARK).value)
    scored_benchmarks = ", ".join(mlperf.scored(ruleset.version)) or "none"
    return f"benchmark {stated}: not scored; round v{round_of(ruleset.version)} has {scored_benchmarks}"


def _refuse_logs_without_events(checked: Sequence[Report], paths_for_messages: Sequence[Path]) -> None:
    """Raise ValueError for the first log without events, such as a text file that no run has written.

    Args:
        checked: The reports on the logs.
        paths_for_messages: The path by which a message names each log.

    Raises:
        ValueError: Such as "notes.txt: no log of a run (MLLOG events: none)".
    """
    for report, path in zip(checked, paths_for_messages, strict=True):
        has_no_events = report.run is NOTHING  # as `check_file` reports such a log, together with a finding
        if has_no_events:
            raise ValueError(f"{path}: no log of a run ({report.why_no_run})")


def _refuse_different_submissions(
    checked: Sequence[Report], paths_for_messages: Sequence[Path], names_compared: int
) -> None:
    """Raise ValueError if a log states another benchmark, division, organisation or platform than the first log.

    Args:
        checked: The reports on the logs, at least one.
        paths_for_messages: The path by which a message names each log.
        names_compared: How many of the four are compared: 2 for the benchmark and the division alone.

    Raises:
        ValueError: One of the logs does. The message names both submissions.
    """
    wanted = names_of_submission(checked[0].run)
    for report, path in zip(checked, paths_for_messages, strict=True):
        stated_names = names_of_submission(report.run)
        if stated_names[:names_compared] != wanted[:names_compared]:
            raise ValueError(
                f"{path}: of another submission ({', '.join(stated_names)}) than {paths_for_messages[0]} "
                f"({', '.join(wanted)})"
            )


def standing_of(checked: Sequence[Report], ruleset: Ruleset) -> Standing:
    """Decide whether the result of some logs is an MLPerf result, and what it may be called.

    Args:
        checked: The reports on the logs.
        ruleset: The rules by which the logs are read.
    """
    facts = [mlperf.facts_of_run(one.run, ruleset.version) for one in checked]
    return mlperf.standing_of_all([mlperf.standing(each) for each in facts])


def convergence_test(checked: Sequence[Report], ruleset: Ruleset) -> ConvergenceTest:
    """Test whether the runs of a closed submission reached the target in suspiciously few epochs.

    Far fewer epochs than in the reference runs of MLPerf are a sign of another model or training. The test is that of
    rcp_checker, a tool of mlperf-logging. Here is settled whether it applies; `_test_against` compares the epochs.

    Args:
        checked: The reports on the logs of the submission, at least one. The first log tells the division and
            benchmark.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        `status`, the outcome; `reason`, a text on it; and `scaling`, a factor for the result's minutes. By `status`:

        - NOT_APPLIED: The division is not closed, or the benchmark is none of MLPerf. The factor is 1.
        - NOT_KNOWN: rcp_checker lacks reference points or a number of runs, or cannot read a log. The factor is None.
        - FAILED: Far too few epochs; or no comparison was possible, as of two batches, or if too many runs missed the
          target. The factor is 1, as only runs that pass are scaled.
        - PASSED: The factor is 1, or above 1 for a few epochs fewer than the reference: 42 / 40 for 40 against 42.
    """
    first_run = checked[0].run
    benchmark = first_run.stated_text(schema.SUBMISSION_BENCHMARK)  # as "resnet"
    if first_run.first_event(schema.SUBMISSION_DIVISION).value != "closed":
        return ConvergenceTest(status=NOT_APPLIED, reason="only closed runs are tested", scaling=1.0)
    if not mlperf.is_mlperf_benchmark(benchmark):
        name = mlperf.model_name(benchmark)
        return ConvergenceTest(status=NOT_APPLIED, reason=f"{name} is not an MLPerf benchmark", scaling=1.0)
    try:
        reference = convergence.reference_set(benchmark, ruleset.version)
    except NoReferenceError as error:
        # mlperf-logging lacks the reference points, or the number of runs that rcp_checker expects of a submission.
        return ConvergenceTest(status=NOT_KNOWN, reason=str(error), scaling=None)
    return _test_against(reference, checked)  # PASSED or FAILED, or NOT_KNOWN if rcp_checker cannot read a log


def _test_against(reference: ReferenceSet, checked: Sequence[Report]) -> ConvergenceTest:
    """Test by rcp_checker's rule whether closed runs took far fewer epochs to the target than the MLPerf reference.

    Args:
        reference: The reference points of the benchmark. A point says how many epochs the reference took at one global
            batch.
        checked: The reports on the logs of the submission, at least one.

    Returns:
        The outcome. NOT_KNOWN: rcp_checker cannot read a log. FAILED: the logs do not all state one and the same number
        as their batch, or the comparison of epochs fails. PASSED: that comparison passes.
    """
    why_unreadable = _why_unreadable(checked)  # as "rcp_checker cannot read result_2.txt (...)"; empty if it reads all
    if why_unreadable:
        return ConvergenceTest(status=NOT_KNOWN, reason=why_unreadable, scaling=None, reference=reference)

    batch = checked[0].run.as_tools_read.batch  # mostly a number, but a log may state any value of JSON
    texts_of_batches = _stated_batches(checked)  # such as ["256"], or ["256", "512"] for different ones
    is_of_all_runs = len(texts_of_batches) == 1
    if not (is_of_all_runs and is_number(batch)):
        reason = f"no one global_batch_size ({printable(', '.join(texts_of_batches))})"
        return ConvergenceTest(status=FAILED, reason=reason, scaling=1.0, reference=reference)

    epochs = _epochs_to_target(checked)  # of each run: (41.0, 40.0); a large number for one that missed the target
    result = convergence.against_reference(epochs, batch, reference, points=reference.points)  # those the tool keeps
    return ConvergenceTest(
        status=PASSED if result.passed else FAILED,
        reason=result.reason,
        scaling=result.scaling,  # 1, or above 1 for runs that pass with fewer epochs than the reference
        reference=reference,
        comparison=Comparison(reference=reference, batch=batch, epochs_to_target=epochs, result=result),
    )


def _why_unreadable(checked: Sequence[Report]) -> str:
    """Return a text that names the first log that rcp_checker cannot read, and says why; empty if it can read all.

    For instance: "rcp_checker cannot read result_2.txt (line 7: run_stop without 'status')".

    Args:
        checked: The reports on the logs of a submission. Each has the values that the tool reads from the log, or the
            error with which the tool ends.
    """
    for report in checked:
        reading = report.run.as_tools_read
        # A run that missed the target has a number, too: NOT_CONVERGED. None says that the tool ends with an error.
        ends_with_error = reading.to_target is None
        if ends_with_error:
            return f"rcp_checker cannot read {printable(report.path.name)} ({reading.problem})"
    return ""


def _epochs_to_target(checked: Sequence[Report]) -> tuple[float, ...]:
    """Return the epochs (or samples) to the target that rcp_checker reads from each log, without unreadable logs."""
    readings = [report.run.as_tools_read for report in checked]
    return tuple(reading.to_target for reading in readings if reading.to_target is not None)


def _stated_batches(checked: Sequence[Report]) -> list[str]:
    """Return the different global batch sizes that logs state, as JSON texts, because a value may not be a number.

    512.0 is not different from 512, as for rcp_checker.

    Args:
        checked: The reports on the logs of a submission.
    """
    batches = [report.run.as_tools_read.batch for report in checked]
    return sorted({json.dumps(int(batch) if is_count(batch) else batch) for batch in batches})
