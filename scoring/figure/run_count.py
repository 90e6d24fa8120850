"""How many runs a figure is made of: the number of the protocol, or the one that MLPerf sets for the benchmark."""

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
    """Return the benchmark that a log is of, such as "resnet".

    Args:
        record: The run as read from its log.

    Returns:
        The benchmark that the log names, or else the benchmark of its model; None if neither is known.
    """
    return record.benchmark or BENCHMARK_OF_MODEL.get(record.model or "")


def with_runs_of_benchmark(protocol: Protocol, records: Sequence[Record]) -> Protocol:
    """Return the protocol with the numbers of runs and of dropped runs that MLPerf sets for the logs' benchmark.

    For example, a result of the benchmark "resnet" takes 5 runs and drops 1 run at each end, the fastest and the
    slowest. If the user gave --runs, that number stays, and the benchmark decides only how many runs are dropped.

    Args:
        protocol: The rules of the score. It is returned as it is if it does not leave the numbers to the benchmark, or
            if the first log has no start of a run.
        records: The runs as read from their logs, at least one, all of one benchmark.

    Raises:
        InputError: The number of runs is not known, and the user did not give it by --runs. Also if all of the user's
            number of runs would be dropped.
    """
    if not protocol.by_benchmark:  # it has numbers of its own
        return protocol
    record = records[0]  # all logs are of one benchmark, because they are repeats of one system
    if record.run_start_s is None:
        # The caller refuses such a log when it measures the run's time. The message that the log has no start helps
        # more than one here, that the benchmark or the number of runs is not known.
        return protocol

    benchmark = benchmark_of(record)  # such as "resnet"; None if not known
    if protocol.runs_given:  # `protocol.runs` is the user's --runs
        return protocol.with_numbers_of_benchmark(protocol.runs, _dropped_runs_of(protocol, benchmark))
    submission = _runs_of_submission(record.file, benchmark)  # both numbers: runs 5 and dropped 1 for "resnet"
    return protocol.with_numbers_of_benchmark(submission.runs, submission.dropped)


def _runs_of_submission(file: str, benchmark: str | None) -> SubmissionRuns:
    """Return how many runs MLPerf asks for of a benchmark, and how many of them are dropped at each end.

    Args:
        file: Path of the log, for the error.
        benchmark: The benchmark as MLPerf names it, such as "resnet"; None if the log names none.

    Raises:
        InputError: The benchmark is not known, or the numbers differ between rounds of MLPerf. A log does not say which
            round it is of.
    """
    if benchmark is None:
        raise _unknown_run_count(file, "names no benchmark, so the number of runs is not known")
    numbers_by_round = submission_runs_by_round(benchmark)
    different_numbers = set(numbers_by_round.values())
    if not different_numbers:
        raise _unknown_run_count(file, f"names benchmark {benchmark!r}, of which the number of runs is not known")
    if len(different_numbers) > 1:
        listed = ", ".join(f"{numbers.runs} by {ruleset}" for ruleset, numbers in numbers_by_round.items())
        says = f"names benchmark {benchmark!r} and not its round, on which the number of runs depends ({listed})"
        raise _unknown_run_count(file, says)
    [numbers_of_all_rounds] = different_numbers
    return numbers_of_all_rounds


def _unknown_run_count(file: str, says: str) -> InputError:
    """Return, not raise, the error that a log does not tell how many runs MLPerf asks for."""
    return InputError(f"{file}: the log {says}; give --runs N")


def _dropped_runs_of(protocol: Protocol, benchmark: str | None) -> int:
    """Return how many of the fastest runs of a benchmark MLPerf drops; MLPerf drops as many of the slowest runs.

    Args:
        protocol: The rules of the score, with the number of runs that the user gave by --runs.
        benchmark: The benchmark as MLPerf names it, such as "unet3d"; None if not known.

    Raises:
        InputError: All of the user's number of runs would be dropped.
    """
    dropped = dropped_runs(benchmark or "")  # 1 for an unknown benchmark, as for most benchmarks
    dropped_in_all = 2 * dropped  # the fastest and the slowest
    if protocol.runs <= dropped_in_all:
        least_runs = dropped_in_all + 1
        says = f"drops {dropped_in_all} runs of {benchmark or 'a benchmark'}: --runs must be {least_runs} or more"
        raise InputError(f"protocol {protocol.name} {says}")
    return dropped


def refuse_if_no_mean(runs: Sequence[RunFigure], protocol: Protocol, unit: str) -> None:
    """Raise an error if an average of runs has too few of them, or if too many of them did not converge.

    Args:
        runs: The figure of each run; infinite for a run that did not converge.
        protocol: The rules of the score, with the average and the number of dropped runs.
        unit: Unit of the figures, for the error.

    Raises:
        TooFewRunsError: There are too few runs, or too many failed.
    """
    failures_allowed = 0
    if protocol.over_runs == "olympic_mean":
        dropped_at_each_end = protocol.dropped_runs
        if len(runs) <= 2 * dropped_at_each_end:
            raise TooFewRunsError(_message_that_runs_are_missing(runs, protocol, unit))
        failures_allowed = dropped_at_each_end  # a failed run counts as the worst, and the worst ones are dropped

    failed_files = [run.file for run in runs if math.isinf(run.value)]
    if len(failed_files) > failures_allowed:
        says = f"{len(failed_files)} of {len(runs)} runs did not converge ({', '.join(failed_files)})"
        raise TooFewRunsError(f"{says}; protocol {protocol.name} allows {failures_allowed}")


def message_of_missing_runs(runs: Sequence[RunFigure], protocol: Protocol, unit: str) -> str | None:
    """Return a message that the protocol asks for more runs than there are; None if there are enough.

    Args:
        runs: The figure of each run. The message lists them.
        protocol: The rules of the score. `runs` is the number of runs that it asks for.
        unit: Unit of the figures, such as "minutes".
    """
    if len(runs) >= protocol.runs:
        return None
    return _message_that_runs_are_missing(runs, protocol, unit)


def _message_that_runs_are_missing(runs: Sequence[RunFigure], protocol: Protocol, unit: str) -> str:
    """Return the message that the protocol asks for more runs than these, with their figures in `unit`."""
    return (
        f"protocol {protocol.name} asks for {protocol.runs} runs, given {len(runs)} "
        f"({_figures_in_words(runs, unit)}); give all of them, or take a protocol of one run, such as window"
    )


def _figures_in_words(runs: Sequence[RunFigure], unit: str) -> str:
    """Return the figures of the runs as one text: `28.5 minutes, did not converge`."""
    figures = []
    for run in runs:
        figures.append(f"{six_digits(run.value)} {unit}" if math.isfinite(run.value) else "did not converge")
    return ", ".join(figures)
