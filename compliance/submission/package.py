"""The submission package: the tree that is handed in, built from logs that were checked as they lie in it."""

import argparse
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from compliance.check import Report
from compliance.logged_run import LoggedRun
from compliance.official import rounds
from compliance.rules import Ruleset, load, verdict
from compliance.submission.committed_code import REPOSITORY, code_of, committed_ms
from compliance.submission.description import read_description
from compliance.submission.group import SubmittedBenchmark, one_submission
from compliance.submission.logging_code import refusals_by_logging_code
from compliance.submission.official_answers import official_answers
from compliance.submission.package_files import new_folder, strange_files
from compliance.submission.package_logs import FRAMEWORK_LOG, CopiedLogs, PlacedLogs, copy_and_check, place_logs
from compliance.submission.refusals import (
    PackagedRun,
    Refusal,
    refusals_by_code,
    refusals_by_date,
    refusals_by_description,
    refusals_by_findings,
    refusals_by_missed_target,
    refusals_by_origin,
)
from compliance.submission.runs import findings_between_runs, logs_named_by, sha256
from compliance.submission.score import Score, choose_median_runs, refuse_mixed_batches, score_runs
from compliance.submission.system import FIELDS
from compliance.submission.templates import rendered
from runlog import schema
from runlog.digits import counted
from runlog.json_types import JsonObject
from runlog.text import called, printable
from runlog.verdict import FATAL, Verdict, as_text

HASHES = "SHA256SUMS"
MANIFEST = "submission.json"
REPORT = "README.md"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+.-]*")


class RefusedError(Exception):
    """The logs may not be published as they are. Each argument is a reason."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The manifest and the report of a package, computed from its logs and its system description."""

    manifest: JsonObject
    report_text: str
    chosen: str = ""  # how the runs were chosen, if more were given; the package's own logs do not show it


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance package`: build a submission package, and print what it holds.

    Args:
        options: Options of the command line: `logs`, `org`, `system`, `out`, `ruleset` and `json`.

    Returns:
        The exit status: 0, or 1 if the logs may not be published. Then the reasons are printed, and no package is left.

    Raises:
        ValueError: The command is used wrongly, as with a log that does not exist.
    """
    ruleset = load(options.ruleset)
    try:
        logs = logs_named_by(options.logs)
        built = build(logs, org=options.org, system=options.system, out=options.out, ruleset=ruleset)
    except RefusedError as error:
        refused = "\n".join(f"refused: {printable(reason, 5000)}" for reason in error.args)
        print(json.dumps({"package": None, "refused": error.args}, indent=2) if options.json else refused)
        return 1
    print(_as_json(built) if options.json else _summary(built))
    return 0


def _as_json(built: "Built") -> str:
    """Return what `package --json` prints: the package's folder, its manifest and the official tools' verdicts."""
    content = built.content
    fields = {"package": str(built.folder), "refused": [], "chosen": content.chosen, **content.manifest}
    return json.dumps(fields | {"official": [answer.as_dict() for answer in built.answers]}, indent=2)


def _summary(built: "Built") -> str:
    """Return what `python -m compliance package` prints about a package that was built.

    Args:
        built: The package.

    Returns:
        The report of the package, notes on the runs, the verdicts of MLCommons' tools, and the package's id.
    """
    content = built.content
    paragraphs = [content.report_text]
    files_without = [run["file"] for run in content.manifest["runs"] if run["framework_log_sha256"] is None]
    if files_without:
        # The rules ask for this log since August 2026 (training_rules.adoc, section Result files).
        name_of_log = f"result_N{FRAMEWORK_LOG}"
        names = ", ".join(files_without)
        paragraphs.append(f"without the framework's log ({name_of_log}, asked for since 2026-08): {names}")
    if content.chosen:  # how the scored runs were chosen, if more were given than a result takes
        paragraphs.append(f"scored: {content.chosen}; keep the logs of the others, which a review may ask for")
    verdict_lines = as_text(built.answers)  # ends with a line break, behind which the last line begins
    package_id = sha256(built.folder / HASHES)
    paragraphs.append(f"{verdict_lines}{built.folder}: built; its id is the SHA-256 of {HASHES}: {package_id}")
    return "\n".join(paragraphs)


class Built(NamedTuple):
    """A package that was built: its folder, its manifest and report, and the verdicts of mlperf-logging's tools."""

    folder: Path
    content: Content
    answers: list[Verdict]


def build(logs: Sequence[Path], *, org: str, system: str, out: Path, ruleset: Ruleset) -> Built:
    """Build the submission package of some logs in the folder `out`/`org`, and check it by mlperf-logging's tools.

    Args:
        logs: Paths of the logs of one submission.
        org: Name of the organisation, which becomes the name of the package's folder.
        system: Name of a system description in the folder systems/, without .json; or the path of one that ends in
            .json.
        out: Folder that gets the package.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        The package, with the verdicts of the tools.

    Raises:
        ValueError: The arguments cannot be used, as with an `out`/`org` that exists, or mlperf-logging is not
            installed.
        RefusedError: The logs may not be published, or a tool refuses the package. Then no package is left.
    """
    for option, name in (("--org", org), ("--system", Path(system).stem)):
        if not NAME.fullmatch(name):
            says = "letters, digits and any of _ + . - only, as repo_checker asks"
            raise ValueError(f"{option} {printable(name)}: {says}")
    description_path = _description_path(system)
    target = out / org
    if target.exists() or target.is_symlink():
        raise ValueError(f"{target}: exists; packages are never overwritten, name another --out")

    # The package is moved to its place when the tools have accepted it. So a refused one leaves nothing.
    with new_folder(out), tempfile.TemporaryDirectory(dir=out, prefix="building-") as scratch:
        stage = Path(scratch) / org
        stage.mkdir()
        content = _fill_package(stage, logs, description_path, ruleset)
        answers = official_answers(stage, content.manifest)
        failed_tools = [f"{answer.check}: {answer.found}" for answer in answers if answer.status == FATAL]
        if failed_tools:
            raise RefusedError(*failed_tools)
        stage.rename(target)
    return Built(folder=target, content=content, answers=answers)


def _description_path(system: str) -> Path:
    """Return the path of a system description.

    Args:
        system: Name of a description in the folder systems/, without .json; or a path that ends in .json.

    Raises:
        ValueError: There is no such file, or it is not a description.
    """
    path = Path(system) if system.endswith(".json") else REPOSITORY / "systems" / f"{system}.json"
    if not path.is_file():
        raise ValueError(f"{path}: no system description; write it by `{called('compliance')} system`")
    read_description(path)  # so that an error names this file, and not its copy
    return path


def _fill_package(stage: Path, logs: Sequence[Path], description_path: Path, ruleset: Ruleset) -> Content:
    """Write all files of a submission package into an empty folder, and end with an error if it may not be published.

    Args:
        stage: The empty folder.
        logs: Paths of the logs.
        description_path: Path of the system description.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        The manifest, the report, and how the scored runs were chosen.

    Raises:
        RefusedError: The package may not be published. Its later files are not written.
        ValueError: The logs, the description or the code in git cannot be used.
    """
    # The logs and the description, from whose copies the manifest and the report are computed.
    system = description_path.stem
    submitted = _place_scored_logs(stage, logs, system, ruleset)
    (stage / "systems").mkdir()
    shutil.copyfile(description_path, stage / "systems" / f"{system}.json")
    reports = submitted.placed.reports  # on the logs in the package
    # The user's log by the name in the package, as {"result_0.txt": Path("runs/a.log")}. Messages name the user's log.
    original_by_name = submitted.placed.original_by_name
    content, refusals_by_logs = contents_of(stage, reports, system, ruleset)
    _raise_if_refused([*submitted.changes_since_check, *_refusals_in_words(refusals_by_logs, original_by_name)])

    # The code of the commit that the logs name.
    commit = str(content.manifest["commit"])
    code = stage / code_folder(submitted.benchmark.name)
    _write_code(code, commit)
    _raise_if_refused([f"code: {strange.found}" for strange in strange_files(code)])  # which `verify` would refuse
    first_run = reports[0].run  # stands for all: runs of different code are refused above
    refusals_by_commit = [
        *refusals_by_code(first_run, code),
        *refusals_by_logging_code(reports, code),
        *refusals_by_date(reports, committed_ms(commit)),
    ]
    _raise_if_refused(_refusals_in_words(refusals_by_commit, original_by_name))

    (stage / MANIFEST).write_bytes(as_bytes(content.manifest))
    (stage / REPORT).write_text(content.report_text, encoding="utf-8")
    (stage / HASHES).write_text(hashes(stage), encoding="utf-8")  # the last file, as it has the hashes of all others
    return replace(content, chosen=submitted.how_chosen)


def _raise_if_refused(reasons: Sequence[str]) -> None:
    """Raise RefusedError with the reasons why the package may not be published, if there are any."""
    if reasons:
        raise RefusedError(*reasons)


class _SubmittedLogs(NamedTuple):
    """The logs of the scored runs at their places in a package, and what all logs showed.

    `how_chosen` says how the scored runs were chosen. `changes_since_check` are reasons to refuse the package.
    """

    benchmark: SubmittedBenchmark
    placed: PlacedLogs
    how_chosen: str
    changes_since_check: list[str]


def _place_scored_logs(stage: Path, logs: Sequence[Path], system: str, ruleset: Ruleset) -> _SubmittedLogs:
    """Copy and check all logs, choose the runs that are scored, and leave their logs at their places in the package.

    Args:
        stage: Folder in which the package is built.
        logs: Paths of the logs.
        system: Name of the system, a folder in the package.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Raises:
        RefusedError: The logs cannot be scored together.
        ValueError: There are too few logs, or one is not a regular file.
    """
    incoming = stage / "incoming"  # the copies of all logs
    copies = copy_and_check(incoming, logs, ruleset)
    benchmark = _benchmark_of_submission(copies, ruleset)
    scored_runs, how_chosen = choose_median_runs(copies.reports, ruleset)
    placed = place_logs(scored_runs, copies, stage / "results" / system / benchmark.name)
    shutil.rmtree(incoming)
    return _SubmittedLogs(benchmark, placed, how_chosen, copies.changes_since_check)


def _benchmark_of_submission(copies: CopiedLogs, ruleset: Ruleset) -> SubmittedBenchmark:
    """Return the benchmark of the copied logs, and how many runs make a result of it.

    Args:
        copies: The copies of the logs, with the reports on them.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Raises:
        RefusedError: The logs cannot be scored together, so they may not be published.
        ValueError: There are too few logs, which is wrong use.
    """
    try:
        benchmark = one_submission(copies.reports, ruleset, original_of_copy=copies.original_of_copy)
        first_log_of_user = copies.original_of_copy[copies.reports[0].path]  # for the message
        refuse_mixed_batches(copies.reports, shown_log=first_log_of_user)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    wanted_logs = benchmark.runs_of_result.runs
    given_logs = len(copies.reports)
    if given_logs < wanted_logs:
        raise ValueError(f"{counted(given_logs, 'log')} given: a submission of {benchmark.name} has {wanted_logs}")
    return benchmark


def _write_code(folder: Path, commit: str) -> None:
    """Write the files of a commit of this repository into a folder.

    Args:
        folder: The folder; subfolders are made as needed.
        commit: Hash of the commit.

    Raises:
        ValueError: Git does not give the commit, or the commit has a file that a package may not hold.
    """
    for name, code in code_of(commit).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code.content)
        path.chmod(0o755 if code.is_executable else 0o644)


def as_bytes(manifest: JsonObject) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()


def code_folder(benchmark: str) -> str:
    return f"benchmarks/{benchmark}/implementations/paddle"


def _refusals_in_words(refusals: Sequence[Refusal], original_by_name: Mapping[str, Path]) -> list[str]:
    """Return the reasons to refuse a package as text, with the user's log in place of its copy in the package.

    Args:
        refusals: The reasons, each with the name of a file or part of the package.
        original_by_name: The user's log by the name of its copy, such as result_0.txt.
    """
    reasons = []
    for refusal in refusals:
        name = original_by_name.get(refusal.file, refusal.file)  # a refusal may also be about another file or part
        reasons.append(f"{name}: {refusal.text}")
    return reasons


def contents_of(
    folder: Path, checked: Sequence[Report], system: str, ruleset: Ruleset
) -> tuple[Content, list[Refusal]]:
    """Return the manifest and the report of a package, and the reasons to refuse the package.

    Only files in the package's folder are read, so `python -m compliance verify` can compute the same again. The
    package's code is not looked at: the caller adds the reasons that the code gives.

    Args:
        folder: Folder of the package, named for the organisation that the logs must state.
        checked: The reports on the logs in the package, each checked by itself.
        system: Name of the system, and of the file in the package that describes the system.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        (content, refusals): the manifest and the report; and the reasons, empty if there are none.

    Raises:
        ValueError: The system description is not a JSON object, or the logs cannot be scored together.
        OSError: The system description cannot be opened.
    """
    description_file = folder / "systems" / f"{system}.json"
    description = read_description(description_file)
    runs = _packaged_runs(checked, ruleset)
    score = score_runs([run.compared_report for run in runs], ruleset)
    manifest = _manifest(folder, checked, system, score, ruleset)
    first_run = checked[0].run
    content = Content(manifest=manifest, report_text=_report_text(manifest, score, first_run, description))

    refusals = [
        *refusals_by_description(description_file.name, description),
        *refusals_by_findings(runs, description, ruleset),
        *refusals_by_missed_target(checked, rounds.dropped_runs(score.benchmark)),
    ]
    if score.minutes is None and not refusals:  # another refusal mostly explains why there is no score
        refusals.append(Refusal("score", score.problem))
    # The first run stands for all, because runs of different organisations or code are refused above.
    organisation_of_package = folder.name
    refusals += refusals_by_origin(first_run, organisation_of_package)
    return content, refusals


def _packaged_runs(checked: Sequence[Report], ruleset: Ruleset) -> list[PackagedRun]:
    """Compare the runs of a package with each other.

    Args:
        checked: The reports on the logs, each checked by itself.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        Each run's report, and apart from it the findings of the comparison.
    """
    findings_by_position = findings_between_runs(checked, ruleset)
    return [PackagedRun(report, findings) for report, findings in zip(checked, findings_by_position, strict=True)]


def _manifest(folder: Path, checked: Sequence[Report], system: str, score: Score, ruleset: Ruleset) -> JsonObject:
    """Return the manifest of a package, computed from the reports on its logs: names, score and runs.

    A manifest that the folder has already is not read, because it may have been altered.

    Args:
        folder: Folder of the package.
        checked: The reports on the logs in the package, at least one.
        system: Name of the system.
        score: Score of the runs.
        ruleset: The rules by which the logs were checked.
    """
    first_run = checked[0].run
    return {
        "organisation": first_run.first_event(schema.SUBMISSION_ORG).value,
        "system": system,
        "benchmark": score.benchmark,
        "division": score.division,
        "ruleset": ruleset.version,
        "commit": first_run.header_section(schema.SOURCE).get("commit"),
        **_score_in_manifest(score),
        "runs": [_run_in_manifest(report, folder) for report in checked],
    }


def _score_in_manifest(score: Score) -> JsonObject:
    """Return what the manifest of a package says of the score of all runs."""
    return {
        "minutes": score.minutes,
        "unscaled_minutes": score.unscaled_minutes,
        "scaling": score.scaling,
        "convergence": score.convergence,
        "result": score.standing.as_dict(),
        "footnotes": score.standing.footnotes(),
    }


def _run_in_manifest(report: Report, folder: Path) -> JsonObject:
    """Return what a package's manifest says of a run.

    Args:
        report: The report on the run's log in the package.
        folder: Folder of the package.

    Returns:
        The hashes, verdict, minutes, seeds, and the epochs and quality of the run's last evaluation. A figure that the
        log does not state is None.
    """
    epochs = None
    quality = None
    if report.run.evaluations:
        last = report.run.evaluations[-1]
        epochs = last.epoch
        quality = last.value
    return {
        "file": report.path.relative_to(folder).as_posix(),
        "sha256": sha256(report.path),
        "framework_log_sha256": _sha256_of_framework_log(report.path),
        "verdict": verdict(report.passes_strict),
        "minutes": report.run.minutes,
        "seed": [seed.value for seed in report.run.all_events[schema.SEED.key]],
        "epochs": epochs,
        "quality": quality,
    }


def _sha256_of_framework_log(log: Path) -> str | None:
    """Return the hash of the framework's log in the package; None if the run has no such log."""
    path = log.with_suffix(FRAMEWORK_LOG)
    return sha256(path) if path.is_file() else None


def _report_text(manifest: JsonObject, score: Score, run: LoggedRun, description: JsonObject) -> str:
    return rendered(
        "package.md",
        package=manifest,
        score=score,
        runs=[(Path(one["file"]).name, one, of.dropped) for one, of in zip(manifest["runs"], score.runs, strict=True)],
        description=dict.fromkeys(FIELDS, "") | {name: printable(value, 1000) for name, value in description.items()},
        standing=score.standing,
        code=code_folder(manifest["benchmark"]),
        settings=_settings_to_rerun(run),
    )


def _settings_to_rerun(run: LoggedRun) -> str:
    """Return the settings that a user gave for a run, as shell text such as `BATCHSIZE=256 PRECISION=amp_o2 `.

    Settings that belong to one run or one machine (SEED, LOGDIR, DATADIR, RESULT_FILE) are left out.

    Args:
        run: The run, whose log's header has the settings.
    """
    settings = ""
    for name, setting in run.header_section(schema.CONFIG).items():
        is_given = isinstance(setting, dict) and setting.get("origin") == "environment"
        is_variable = re.fullmatch(r"[A-Z_]+", name) is not None
        is_of_one_run = name in ("SEED", "LOGDIR", "DATADIR", "RESULT_FILE")
        if is_given and is_variable and not is_of_one_run:
            settings += f"{name}={shlex.quote(str(setting['value']))} "
    return printable(settings, 2000)


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files below a folder, sorted, by their paths in it, such as `results/CPU/resnet/result_0.txt`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path for path in files}


def hashes(folder: Path) -> str:
    """Return the text of SHA256SUMS, a file that `sha256sum -c` reads, for all files below a folder.

    Args:
        folder: Folder of a package, or a published folder. A file SHA256SUMS at its top is left out.
    """
    lines = []
    for name, path in files_below(folder).items():
        if name != HASHES:
            lines.append(f"{sha256(path)}  {name}\n")
    return "".join(lines)
