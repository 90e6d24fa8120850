"""How many runs a figure is made of: as many as the protocol asks for, or MLPerf of the benchmark."""

import dataclasses
import math
from collections.abc import Sequence

from compliance.mlperf import submission_runs_by_round
from compliance.official.rounds import SubmissionRuns, dropped_runs
from runlog.digits import six_digits
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure
from scoring.record import InputError, Record, TooFewRunsError

BENCHMARK_OF_MODEL = {"resnet50_v1.5": "resnet", "fcn_hrnetw18": "hrnet"}  # where a log of ours names no benchmark


def benchmark_of(record: Record) -> str | None:
    """Return the benchmark that a log names, or whose rules its model has; None where it names neither."""
    return record.benchmark or BENCHMARK_OF_MODEL.get(record.model or "")


def with_runs_of_benchmark(protocol: Protocol, records: Sequence[Record]) -> Protocol:
    """Return the protocol with as many runs as MLPerf asks for of the logs' benchmark, and as many dropped at each end.

    Where the user has given the number of runs (--runs), only that of dropped ones follows from the benchmark. The logs
    are repeats, and so of one benchmark: the first of them tells which. A protocol whose number of runs does not depend
    on the benchmark is returned as it is, and so is one for logs without a run_start, which `run_figure` refuses.
    Raises InputError where the numbers cannot be told from the benchmark, or where --runs gives no more runs than are
    dropped.
    """
    record = records[0]
    has_run_time = record.run_start_s is not None
    if not protocol.by_benchmark or not has_run_time:
        return protocol

    benchmark = benchmark_of(record)
    if protocol.runs_given:
        return _with_dropped_runs(protocol, benchmark or "a benchmark")  # of an unknown one, what is usual is dropped
    wanted = _runs_of_submission(record.file, benchmark)
    return dataclasses.replace(protocol, runs=wanted.runs, dropped_runs=wanted.dropped, by_benchmark=False)


def _runs_of_submission(file: str, benchmark: str | None) -> SubmissionRuns:
    """Return how many runs MLPerf asks for of a benchmark, and how many of them are dropped at each end.

    The numbers may differ between rounds of MLPerf. A log does not say its round, so the numbers are known only where
    all rounds that have the benchmark agree. Raises InputError, about the log `file`, where they do not, or where no
    round has it.
    """
    if benchmark is None:
        says = "names no benchmark, so the number of runs is not known"
        raise InputError(f"{file}: the log {says}; give --runs N")

    by_round = submission_runs_by_round(benchmark)
    choices = set(by_round.values())
    if not choices:
        says = f"names benchmark {benchmark!r}, of which the number of runs is not known"
        raise InputError(f"{file}: the log {says}; give --runs N")
    if len(choices) > 1:
        listed = ", ".join(f"{wanted.runs} by {ruleset}" for ruleset, wanted in by_round.items())
        says = f"names benchmark {benchmark!r} and not its round, on which the number of runs depends ({listed})"
        raise InputError(f"{file}: the log {says}; give --runs N")
    [agreed] = choices
    return agreed


def _with_dropped_runs(protocol: Protocol, benchmark: str) -> Protocol:
    """Return a protocol of a given number of runs with as many dropped at each end as MLPerf drops of the benchmark."""
    dropped = dropped_runs(benchmark)
    if protocol.runs <= 2 * dropped:
        says = f"drops {2 * dropped} runs of {benchmark}: --runs must be {2 * dropped + 1} or more"
        raise InputError(f"protocol {protocol.name} {says}")
    return dataclasses.replace(protocol, dropped_runs=dropped, by_benchmark=False)


def missing_runs(runs: Sequence[RunFigure], protocol: Protocol, unit: str) -> str | None:
    """Return a message that the protocol asks for more runs than there are; None where there are enough.

    `unit` is that of the runs' figures, which the message lists.
    """
    if len(runs) >= protocol.runs:
        return None
    return (
        f"protocol {protocol.name} asks for {protocol.runs} runs, given {len(runs)} "
        f"({_figures_in_words(runs, unit)}); give all of them, or take a protocol of one run, such as window"
    )


def refuse_if_no_mean(runs: Sequence[RunFigure], protocol: Protocol, missing: str | None) -> None:
    """Raise TooFewRunsError where the protocol's mean cannot be made of the runs, not even of those that there are.

    An olympic mean drops the best and the worst runs. It cannot be made where it would drop all of them, which happens
    only where runs are missing: the error then says what `missing_runs` returned, which is `missing`. Runs that did not
    converge count as the worst, so it may have as many of them as it drops at that end. Any other mean may have none.
    """
    is_olympic = protocol.over_runs == "olympic_mean"
    would_drop_all = is_olympic and len(runs) <= 2 * protocol.dropped_runs
    if missing is not None and would_drop_all:
        raise TooFewRunsError(missing)

    failed_files = [run.file for run in runs if math.isinf(run.value)]
    failures_allowed = protocol.dropped_runs if is_olympic else 0
    if len(failed_files) > failures_allowed:
        says = f"{len(failed_files)} of {len(runs)} runs did not converge ({', '.join(failed_files)})"
        raise TooFewRunsError(f"{says}; protocol {protocol.name} allows {failures_allowed}")


def _figures_in_words(runs: Sequence[RunFigure], unit: str) -> str:
    """Return the figures of the runs as a list such as `28.5 minutes, did not converge`."""
    words = []
    for run in runs:
        words.append(f"{six_digits(run.value)} {unit}" if math.isfinite(run.value) else "did not converge")
    return ", ".join(words)
