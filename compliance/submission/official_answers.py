"""The answers of mlperf-logging's own tools about a package."""

import shutil
import tempfile
from pathlib import Path

from compliance import mlperf
from compliance.official import tools as official
from runlog.json_types import JsonObject
from runlog.verdict import UNKNOWN, Verdict, judged


def official_answers(folder: Path, manifest: JsonObject) -> list[Verdict]:
    """Check an MLPerf-style submission package by the tools of mlperf-logging, and return their verdicts.

    Three of the five tools know only the benchmarks of MLPerf. For another benchmark their verdicts say "not applied",
    and each log is checked by itself instead. The tools run on a copy, because they write into the folder.

    Args:
        folder: Folder of the package.
        manifest: Content of the package's submission.json, such as its benchmark, ruleset, system and runs.

    Returns:
        A verdict for each of the five tools and, for a benchmark that is not one of MLPerf, for each log.

    Raises:
        ValueError: The required release of mlperf-logging, or a package that a tool imports, is not installed.
        KeyError: The tool that computes the score does not know the benchmark, or the manifest lacks an entry.
    """
    with tempfile.TemporaryDirectory() as scratch:  # the tools get a copy, because they write into the folder
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy)
        if mlperf.is_mlperf_benchmark(manifest["benchmark"]):
            return _answers_on_mlperf_benchmark(copy, manifest)
        return _answers_on_other_benchmark(copy, manifest)


def _answers_on_mlperf_benchmark(folder: Path, manifest: JsonObject) -> list[Verdict]:
    """Return the verdicts of five tools of mlperf-logging on a package of an MLPerf benchmark, in this order:

    1. package_checker
    2. system_desc_checker
    3. repo_checker
    4. rcp_checker
    5. result_summarizer

    Args:
        folder: Folder of a copy of the package, into which the tools may write.
        manifest: Content of the package's submission.json.
    """
    ruleset = manifest["ruleset"]
    # Two verdicts, of system_desc_checker and repo_checker.
    common_verdicts = _check_description_and_repository(folder, manifest)
    convergence_verdict = _check_convergence(folder, manifest)  # of rcp_checker, asked only about closed runs
    package_verdict = official.ask_tool("package_checker", str(folder), "training", ruleset)
    # result_summarizer is asked last: it leaves a file in the folder, which the other tools would find.
    score_verdict = official.ask_for_score(folder, ruleset, manifest["benchmark"], manifest["minutes"])
    return [package_verdict, *common_verdicts, convergence_verdict, score_verdict]


def _answers_on_other_benchmark(folder: Path, manifest: JsonObject) -> list[Verdict]:
    """Return the verdicts on a package of a benchmark that is not one of MLPerf, in this order:

    1. those of system_desc_checker and repo_checker, tools of mlperf-logging that take any benchmark
    2. for each log, that of mlperf-logging's checker of single logs
    3. "not applied" for package_checker, rcp_checker and result_summarizer, which know the benchmarks of MLPerf alone

    Args:
        folder: Folder of a copy of the package, into which the tools may write.
        manifest: Content of the package's submission.json.
    """
    ruleset = manifest["ruleset"]
    benchmark = manifest["benchmark"]
    common_verdicts = _check_description_and_repository(folder, manifest)
    log_verdicts = [_check_log(folder / run["file"], run, ruleset, benchmark) for run in manifest["runs"]]
    return [*common_verdicts, *log_verdicts, *_not_asked_about(benchmark)]


def _check_description_and_repository(folder: Path, manifest: JsonObject) -> list[Verdict]:
    """Return the verdicts of the two tools that take any benchmark: system_desc_checker and repo_checker."""
    ruleset = manifest["ruleset"]
    description = folder / "systems" / f"{manifest['system']}.json"
    return [
        official.ask_tool("system_desc_checker", str(description), "training", ruleset),
        official.ask_tool("repo_checker", str(folder), "training", ruleset),
    ]


def _not_asked_about(benchmark: str) -> list[Verdict]:
    """Return a verdict that says "not applied" for each of three tools, because the benchmark is not one of MLPerf.

    If these tools were run, they would ignore the benchmark's folder or end with an error.
    """
    not_applied = f"not applied: {benchmark} is not an MLPerf benchmark"
    tools = ("package_checker", "rcp_checker", "result_summarizer")
    return [Verdict(check=tool, status=UNKNOWN, found=not_applied) for tool in tools]


def _check_convergence(folder: Path, manifest: JsonObject) -> Verdict:
    """Return rcp_checker's verdict on how fast the runs of a package converged; unknown if they are not closed.

    Args:
        folder: Folder of a copy of the package.
        manifest: Content of the package's submission.json.
    """
    if manifest["division"] != "closed":
        return Verdict(check="rcp_checker", status=UNKNOWN, found="not applied: not a closed submission")
    results = folder / "results" / manifest["system"] / manifest["benchmark"]
    return official.ask_tool("rcp_checker", str(results), "--rcp_version", manifest["ruleset"])


def _check_log(log: Path, run: JsonObject, ruleset: str, benchmark: str) -> Verdict:
    """Return a verdict on one log of a package: good if mlperf-logging's checker passes it, or need not pass it.

    The checker need not pass a log whose run has the verdict "fail" in the manifest, because a package may hold a run
    that missed the target. Whatever the checker finds in such a log, the returned verdict is good.

    Args:
        log: Path of the log.
        run: The manifest's entry on the run. The verdict in it, "pass" or "fail", was found by this project's rules.
        ruleset: Version of the rules, such as 4.0.0.
        benchmark: Name of the benchmark, such as "hrnet".

    Returns:
        The verdict, with the text "SUCCESS" if the checker passes the log, and with at most two of its messages if not.
    """
    passed, messages = official.check_log(log, ruleset, benchmark)
    need_not_pass = run["verdict"] == "fail"
    answer = "SUCCESS" if passed else "; ".join(messages[:2])
    found = f"{log.parent.name}/{log.name}: {answer}"
    return judged("compliance_checker", passed or need_not_pass, found)
