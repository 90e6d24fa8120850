"""The rounds of MLPerf Training: which benchmarks each has, how many runs a result takes, how many of them are dropped.

mlperf-logging keeps these tables in its source files, which lie unchanged in the archive of rules. They are read as
literals; nothing of those files is executed.
"""

import ast
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from compliance.official import rule_files

DROPPED_RUNS = {"unet3d": 4}  # result_summarizer.py and rcp_checker.py: max_dropped_scores, samples_rejected
DROPPED_RUNS_OF_OTHERS = 1


class SubmissionRuns(NamedTuple):
    """How many runs a result takes. `dropped` fastest and as many slowest runs do not count."""

    runs: int
    dropped: int


def submission_runs(benchmark: str, ruleset: str) -> SubmissionRuns | None:
    """Return how many runs a result of a benchmark takes in a round, and how many of them are dropped.

    Args:
        benchmark: The name of the benchmark, such as "resnet".
        ruleset: The version of the rules of the round, such as 5.1.0.

    Returns:
        The numbers; None if the round does not have the benchmark.
    """
    counts = _run_counts()
    if benchmark not in benchmarks(ruleset) or benchmark not in counts:
        return None
    return SubmissionRuns(runs=counts[benchmark], dropped=dropped_runs(benchmark))


def dropped_runs(benchmark: str) -> int:
    """Return how many of the fastest runs of a benchmark mlperf-logging drops; it drops as many of the slowest.

    Args:
        benchmark: The name of the benchmark, such as "unet3d". For an unknown one the number is 1.
    """
    return DROPPED_RUNS.get(benchmark, DROPPED_RUNS_OF_OTHERS)


def benchmarks(ruleset: str) -> Sequence[str]:
    """Return the benchmarks of a ruleset's round, in the order of mlperf-logging's table.

    Args:
        ruleset: The version of the rules of the round, such as 5.1.0. For an unknown round there are none.
    """
    by_round = _literal("benchmark_meta.py", "_ALL_ALLOWED_BENCHMARKS")["training"]
    listed: Sequence[str] = by_round.get(round_of(ruleset), ())
    return tuple(dict.fromkeys(listed))


def is_of_hpc(benchmark: str) -> bool:
    """Return whether a benchmark is one of MLPerf HPC, such as deepcam, and not of MLPerf Training."""
    by_round = _literal("benchmark_meta.py", "_ALL_ALLOWED_BENCHMARKS")["hpc"]
    return any(benchmark in listed for listed in by_round.values())


def rulesets() -> Sequence[str]:
    """Return the rulesets of all rounds in mlperf-logging's table, such as 0.6.0; older rounds it does not know."""
    return tuple(f"{name}.0" for name in _literal("benchmark_meta.py", "_ALL_ALLOWED_BENCHMARKS")["training"])


def round_of(ruleset: str) -> str:
    """Return the round as MLCommons names it: 5.1 for ruleset 5.1.0.

    Args:
        ruleset: The version of the rules, such as 5.1.0. Any other form than x.y.0 is returned as it is.
    """
    return ruleset.removesuffix(".0") if ruleset.count(".") == 2 else ruleset


def runs_in_convergence_test(benchmark: str) -> int | None:
    """Return how many runs rcp_checker wants of a benchmark; None if it does not know the benchmark.

    Args:
        benchmark: The name of the benchmark, such as "resnet".
    """
    counts: Mapping[str, int] = _literal("rcp_checker/rcp_checker.py", "submission_runs")["training"]
    return counts.get(benchmark)


def _run_counts() -> Mapping[str, int]:
    counts: Mapping[str, int] = _literal("benchmark_meta.py", "_ALL_RESULT_FILE_COUNTS")["training"]
    return counts


@functools.cache
def _literal(file: str, name: str) -> Mapping[str, Any]:
    """Return the table that a source file of mlperf-logging assigns to a name.

    Args:
        file: The path of the file in the package, such as "benchmark_meta.py".
        name: The name, such as "_ALL_RESULT_FILE_COUNTS".

    Raises:
        KeyError: The file assigns nothing to the name, or the archive has no such file.
    """
    for statement in ast.parse(rule_files.archived(file)).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            table: Mapping[str, Any] = ast.literal_eval(statement.value)
            return table
    raise KeyError(f"{file} of mlperf-logging {rule_files.VERSION} assigns nothing to {name}")
