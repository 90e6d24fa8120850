"""How many runs a figure is made of: the number of the protocol, or the one that MLPerf sets for the benchmark."""

import dataclasses
import math
from collections.abc import Sequence

from compliance.mlperf import submission_runs_by_round
from compliance.official.rounds import SubmissionRuns, dropped_runs
from runlog.digits import six_digits
from scoring.figure.protocols import Protocol
from scoring.figure.run import RunFigure
from scoring.record import InputError, Record, TooFewRunsError

BENCHMARK_OF_MODEL = {"resnet50_v1.5": "resnet", "fcn_hrnetw18": "hrnet"}  # if a log of this project names no benchmark


def benchmark_of(record: Record) -> str | None:
    """Return the benchmark that a log names, or else the benchmark of its model; None if neither is known."""
    return record.benchmark or BENCHMARK_OF_MODEL.get(record.model or "")


def with_runs_of_benchmark(protocol: Protocol, records: Sequence[Record]) -> Protocol:
    """Return the protocol with the numbers of runs and of dropped runs that MLPerf sets for the logs' benchmark.

    - The protocol does not depend on the benchmark: it is returned as it is.
    - The first log has no run_start: it is returned as it is, and `run_figure` refuses the log later.
    - The user gave the number of runs (--runs): only the number of dropped runs is set. For an unknown benchmark it is
      the one that most benchmarks have.
    - Otherwise: both numbers are set.

    All logs are of one benchmark, because they are repeats of one system. Raises InputError if the benchmark does not
    determine the numbers, or if --runs is too few.
    """
    record = records[0]
    has_run_time = record.run_start_s is not None
    if not protocol.by_benchmark or not has_run_time:
        return protocol

    benchmark = benchmark_of(record)
    if protocol.runs_given:
        return _with_dropped_runs(protocol, benchmark)
    wanted = _runs_of_submission(record.file, benchmark)
    return dataclasses.replace(protocol, runs=wanted.runs, dropped_runs=wanted.dropped, by_benchmark=False)


def _runs_of_submission(file: str, benchmark: str | None) -> SubmissionRuns:
    """Return how many runs MLPerf asks for of a benchmark, and how many of them are dropped at each end.

    The numbers may differ between the rounds of MLPerf, and a log does not say its round. Raises InputError, about the
    log `file`, in each of these cases:

    - The log names no benchmark.
    - No round has the benchmark.
    - The rounds that have it ask for different numbers.
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
    [runs_of_all_rounds] = choices
    return runs_of_all_rounds


def _with_dropped_runs(protocol: Protocol, benchmark: str | None) -> Protocol:
    """Return a protocol with the number of runs that MLPerf drops of the benchmark at each end; its `runs` are kept.

    None is an unknown benchmark. Raises InputError if the protocol would drop all of its runs.
    """
    dropped = dropped_runs(benchmark or "")
    if protocol.runs <= 2 * dropped:
        says = f"drops {2 * dropped} runs of {benchmark or 'a benchmark'}: --runs must be {2 * dropped + 1} or more"
        raise InputError(f"protocol {protocol.name} {says}")
    return dataclasses.replace(protocol, dropped_runs=dropped, by_benchmark=False)


def missing_runs(runs: Sequence[RunFigure], protocol: Protocol, unit: str) -> str | None:
    """Return a message that the protocol asks for more runs than there are; None if there are enough.

    The message lists the figures of the runs, which are in `unit`.
    """
    if len(runs) >= protocol.runs:
        return None
    return (
        f"protocol {protocol.name} asks for {protocol.runs} runs, given {len(runs)} "
        f"({_figures_in_words(runs, unit)}); give all of them, or take a protocol of one run, such as window"
    )


def refuse_if_no_mean(runs: Sequence[RunFigure], protocol: Protocol, too_few: str | None) -> None:
    """Raise TooFewRunsError if the protocol cannot average the runs that there are, in two cases:

    - An olympic mean would drop all of them. The error has the message `too_few`.
    - Too many runs did not converge. An olympic mean counts them as the worst runs, so it allows as many as it drops at
      one end. Any other average allows none.

    `too_few` is the message that runs are missing, as `missing_runs` returns it; None if there are enough.
    """
    is_olympic = protocol.over_runs == "olympic_mean"
    would_drop_all = is_olympic and len(runs) <= 2 * protocol.dropped_runs
    if too_few is not None and would_drop_all:
        raise TooFewRunsError(too_few)

    failed_files = [run.file for run in runs if math.isinf(run.value)]  # a run that did not converge is infinite
    failures_allowed = protocol.dropped_runs if is_olympic else 0
    if len(failed_files) > failures_allowed:
        says = f"{len(failed_files)} of {len(runs)} runs did not converge ({', '.join(failed_files)})"
        raise TooFewRunsError(f"{says}; protocol {protocol.name} allows {failures_allowed}")


def _figures_in_words(runs: Sequence[RunFigure], unit: str) -> str:
    """Return the figures of the runs as one text: `28.5 minutes, did not converge`."""
    figures = []
    for run in runs:
        figures.append(f"{six_digits(run.value)} {unit}" if math.isfinite(run.value) else "did not converge")
    return ", ".join(figures)
