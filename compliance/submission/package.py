"""The submission package: the tree that is handed in, built from logs that were checked as they lie in it."""

import argparse
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from compliance.check import LoggedRun, Report, check_file
from compliance.rules import Ruleset, load, verdict
from compliance.submission.committed_code import LARGEST_BYTES, REPOSITORY, code_of
from compliance.submission.description import compare_description, read_description
from compliance.submission.group import SubmittedBenchmark, one_submission
from compliance.submission.official_answers import official_answers
from compliance.submission.runs import check_between_runs, logs_named_by, receipt_path, sha256
from compliance.submission.score import NOT_CONVERGED, Score, nearest_the_median, score_runs
from compliance.submission.system import FIELDS, NOT_STATED
from runlog import schema
from runlog.json_types import JsonObject
from runlog.text import called, printable
from runlog.verdict import FATAL, Verdict, as_text

HASHES = "SHA256SUMS"
MANIFEST = "submission.json"
REPORT = "README.md"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+.-]*")
FRAMEWORK_LOG = ".stderr"  # the launcher writes what the framework printed to result_N.stderr
_CUT = b"\n[cut here: the framework's log is longer than 50 MiB]\n"


class RefusedError(Exception):
    """The logs may not be published as they are; its arguments say why, a line each."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The account that a package gives of itself, computed from its logs and system description."""

    manifest: JsonObject
    report: str
    chosen: str = ""  # which of more runs than a submission has it holds: no log of it says so


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance package`. Returns 1 where the logs may not be published; then nothing is written."""
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
    """Return the answer of `package --json`: the package's folder, its manifest, and what the official tools say."""
    content = built.content
    fields = {"package": str(built.folder), "refused": [], "chosen": content.chosen, **content.manifest}
    return json.dumps(fields | {"official": [answer.as_dict() for answer in built.answers]}, indent=2)


def _summary(built: "Built") -> str:
    """Return what `package` prints: the package's report, remarks on its logs, the tools' answers and the package's id.

    The remarks name the runs that lack the log of the framework, and say which runs were chosen of more.
    """
    content = built.content
    lines = [content.report]
    without_framework_log = [run["file"] for run in content.manifest["runs"] if run["framework_log_sha256"] is None]
    if without_framework_log:
        files = ", ".join(without_framework_log)
        lines.append(f"without the framework's log (result_N{FRAMEWORK_LOG}, asked for since 2026-08): {files}")
    if content.chosen:
        lines.append(f"scored: {content.chosen}; keep the logs of the others, which a review may ask for")
    package_id = sha256(built.folder / HASHES)
    lines.append(f"{as_text(built.answers)}{built.folder}: built; its id is the SHA-256 of {HASHES}: {package_id}")
    return "\n".join(lines)


class Built(NamedTuple):
    """A package that was built: its folder, the account of its content, and the answers of mlperf-logging's tools."""

    folder: Path
    content: Content
    answers: list[Verdict]


def build(logs: Sequence[Path], *, org: str, system: str, out: Path, ruleset: Ruleset) -> Built:
    """Build the package of a submission's logs in the folder `out`/`org`, and return what was built.

    `system` is the name of a description in the repository's folder systems/, or the path of one that ends in .json.
    The package is made in a folder beside, and moved to `out`/`org` once mlperf-logging's tools accept it: a package
    that is refused leaves nothing.

    Raises ValueError for wrong use (a name with other letters, no such description, a folder that exists, too few
    logs), RefusedError for logs that may not be published, with the reasons.
    """
    for name in (org, Path(system).stem):
        if not NAME.fullmatch(name):
            raise ValueError(f"{printable(name)}: letters, digits and any of _ + . - only, as repo_checker asks")
    description_path = Path(system) if system.endswith(".json") else REPOSITORY / "systems" / f"{system}.json"
    if not description_path.is_file():
        raise ValueError(f"{description_path}: no system description; write it by `{called('compliance')} system`")
    target = out / org
    if target.exists() or target.is_symlink():
        raise ValueError(f"{target}: exists; packages are never overwritten, name another --out")

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix="building-") as scratch:
        stage = Path(scratch) / org
        stage.mkdir()
        content = _fill_package(stage, logs, description_path, ruleset)
        answers = official_answers(stage, content.manifest)
        refused = [f"{answer.check}: {answer.found}" for answer in answers if answer.status == FATAL]
        if refused:
            raise RefusedError(*refused)
        stage.rename(target)
    return Built(folder=target, content=content, answers=answers)


def _fill_package(stage: Path, logs: Sequence[Path], description_path: Path, ruleset: Ruleset) -> Content:
    """Write the files of a package into the empty folder `stage`, and return its account of itself.

    Where there are more logs than a submission has runs, only the scored ones are kept. Raises RefusedError for logs
    that may not be published, and ValueError for too few of them.
    """
    system = description_path.stem
    copies = _copy_and_check(stage / "incoming", logs, ruleset)
    try:
        benchmark = one_submission(copies.checked, ruleset, copies.original_of_copy.__getitem__)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    runs = benchmark.runs.runs
    if len(copies.checked) < runs:
        raise ValueError(f"{len(copies.checked)} logs given: a submission of {benchmark.name} has {runs}")

    scored, chosen = nearest_the_median(copies.checked, ruleset)
    results = stage / "results" / system / benchmark.name
    results.mkdir(parents=True)
    renamed: list[Report] = []
    log_by_name: dict[str, Path] = {}  # the user's log of each file
    for index, report in enumerate(scored):
        name = f"result_{index}.txt"
        log = copies.original_of_copy[report.path]
        log_by_name[name] = log
        renamed.append(replace(report, path=report.path.rename(results / name)))
        _copy_framework_log(log, results / name)
    shutil.rmtree(stage / "incoming")  # with the runs that are not scored
    (stage / "systems").mkdir()
    shutil.copyfile(description_path, stage / "systems" / f"{system}.json")

    content, against = contents_of(stage, renamed, system, benchmark, ruleset)
    # A reason about a log names the user's file in place of the copy.
    reasons = [*copies.reasons, *(f"{log_by_name.get(file, file)}: {text}" for file, text in against)]
    if reasons:
        raise RefusedError(*reasons)
    _write_code(stage / code_folder(benchmark.name), str(content.manifest["commit"]))
    (stage / MANIFEST).write_bytes(as_bytes(content.manifest))
    (stage / REPORT).write_text(content.report, encoding="utf-8")
    (stage / HASHES).write_text(hashes(stage), encoding="utf-8")  # the last file, as it has the hashes of all others
    return replace(content, chosen=chosen)


def _write_code(folder: Path, commit: str) -> None:
    """Write the files of a commit of this repository into a folder."""
    for name, code in code_of(commit).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code.content)
        path.chmod(0o755 if code.is_executable else 0o644)


class _Copies(NamedTuple):
    """The reports on the copies of logs, by their start; the original of each; and reasons against the package."""

    checked: list[Report]
    original_of_copy: dict[Path, Path]
    reasons: list[str]


def _copy_and_check(folder: Path, logs: Sequence[Path], ruleset: Ruleset) -> _Copies:
    """Copy the logs into a new folder, and check the copies, so that what is handed in is what was checked.

    An earlier `check --receipt` may have left a log's hash in a receipt beside it. A log that no longer has this hash
    is a reason against the package. Raises ValueError for a log that is a link or no file.
    """
    folder.mkdir()
    original_of_copy = {folder / f"{index}.txt": log for index, log in enumerate(logs)}
    reasons = []
    for copy, log in original_of_copy.items():
        if log.is_symlink() or not log.is_file():
            raise ValueError(f"{log}: not a regular file; copy the log itself there")
        shutil.copyfile(log, copy)
        receipt = receipt_path(log)
        if receipt.is_file() and not _has_hash_of(receipt, copy):
            changed = f"differs from what was checked ({receipt.name}): find out what changed it, or run again"
            reasons.append(f"{log}: {changed}")
    checked = [check_file(copy, ruleset) for copy in original_of_copy]
    # By their start, a run without one first; of one start by the name that the user knows.
    checked.sort(key=lambda report: (report.run.start_ms or 0, original_of_copy[report.path].name))
    return _Copies(checked, original_of_copy, reasons)


def _has_hash_of(receipt: Path, copy: Path) -> bool:
    """Return whether a receipt has the hash of a log's copy, in the words of `check --receipt`: `"sha256": "5d41..."`.

    The receipt is searched for these words and not parsed as JSON: one that was damaged simply lacks them.
    """
    return f'"sha256": "{sha256(copy)}"' in receipt.read_text(encoding="utf-8", errors="replace")


def _copy_framework_log(log: Path, copy: Path) -> None:
    """Copy the log of the framework that lies beside `log` to the side of its copy; do nothing where there is none.

    For `result_3.txt` it is `result_3.stderr`, in which the launcher keeps what the framework printed. A valid result
    must include it (training_rules.adoc, section Result files, of 2026-08: mlcommons/training_policies #588). One that
    is too large for a repository is cut, and says so at its end.
    """
    source = log.with_suffix(FRAMEWORK_LOG)
    if source.is_symlink() or not source.is_file():
        return
    with source.open("rb") as stream:
        text = stream.read(LARGEST_BYTES + 1)
    if len(text) > LARGEST_BYTES:
        text = text[: LARGEST_BYTES - len(_CUT)] + _CUT
    copy.with_suffix(FRAMEWORK_LOG).write_bytes(text)


def as_bytes(manifest: JsonObject) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()


def code_folder(benchmark: str) -> str:
    return f"benchmarks/{benchmark}/implementations/paddle"


class Reason(NamedTuple):
    """Why a package may not be published: the name of the file, or part, that is against it, and what it is."""

    file: str
    text: str


def contents_of(
    folder: Path, checked: Sequence[Report], system: str, benchmark: SubmittedBenchmark, ruleset: Ruleset
) -> tuple[Content, list[Reason]]:
    """Return the manifest and the report that the package at `folder` must have, and why it may not be published.

    Both are computed from its system description and its logs alone; `checked` has the reports on the logs. So `verify`
    can compute them again from a package that it is given. There are no reasons where it may be published.
    """
    description_file = folder / "systems" / f"{system}.json"
    description = read_description(description_file)
    reasons = list(_reasons_of_description(description_file.name, description))
    reasons += _reasons_of_runs(checked, description, ruleset)
    score = score_runs(checked, ruleset)
    if score.minutes is None and not reasons:  # else the reasons above are why there is no score
        reasons.append(Reason("score", score.problem))
    first_run = checked[0].run
    reasons += [Reason("logs", text) for text in _reasons_of_origin(first_run, folder.name)]
    manifest = {
        "organisation": first_run.first_event(schema.SUBMISSION_ORG).value,
        "system": system,
        "benchmark": benchmark.name,
        "division": score.division,
        "ruleset": ruleset.version,
        "commit": first_run.header_section(schema.SOURCE).get("commit"),
        "minutes": score.minutes,
        "unscaled_minutes": score.unscaled_minutes,
        "scaling": score.scaling,
        "convergence": score.convergence,
        "result": score.standing.as_dict(),
        "footnotes": score.standing.footnotes(),
        "runs": [_run_in_manifest(report, folder) for report in checked],
    }
    return Content(manifest=manifest, report=_report(manifest, score, first_run, description)), reasons


def _reasons_of_description(file: str, description: JsonObject) -> Iterator[Reason]:
    """Yield each field that the system description lacks, or has in another form than the text that the tools want."""
    for name in FIELDS:
        if not isinstance(description.get(name), str):
            problem = "no text" if name in description else "missing"
            yield Reason(file, f"{name} is {problem}")


def _reasons_of_runs(checked: Sequence[Report], description: JsonObject, ruleset: Ruleset) -> Iterator[Reason]:
    """Yield the reasons against a package that its logs give.

    These are the errors of each log, and where the logs contradict each other or the system description. Runs of
    different configurations are a reason too, although `check` only warns of them. One run may have failed to reach
    the target: if its log has no other error, that is no reason, but a second such run is.
    """
    not_converged: list[str] = []  # names of logs
    for report, compared_report in zip(checked, check_between_runs(checked, ruleset), strict=True):
        against = [finding for finding in report.findings if finding.severity == "error"]
        if against and all(finding.rule in NOT_CONVERGED for finding in against):
            not_converged.append(report.path.name)
            against = []

        findings_between_runs = compared_report.findings[len(report.findings) :]  # they follow the log's own
        contradictions = compare_description(report.run, description, ruleset.strict["system-description"])
        for finding in (*findings_between_runs, *contradictions):
            if finding.severity == "error" or finding.rule == "same-configuration":
                against.append(finding)
        for finding in against:
            where = f" line {finding.line}" if finding.line else ""
            yield Reason(report.path.name, f"{finding.rule}{where}: {finding.actual}; {finding.fix}")
    if len(not_converged) > 1:
        yield Reason(", ".join(not_converged), "did not reach the target; one run of a submission may fail to")


def _run_in_manifest(report: Report, folder: Path) -> JsonObject:
    """Return what the manifest of the package at `folder` says of a run: its file, hashes, verdict and figures.

    A figure that the log does not state is None. `epochs` and `quality` are those of the run's last evaluation.
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
    """Return the hash of the framework's log in the package; None where the run has none."""
    path = log.with_suffix(FRAMEWORK_LOG)
    return sha256(path) if path.is_file() else None


def _reasons_of_origin(run: LoggedRun, org: str) -> list[str]:
    """Return why the logs cannot be published as those of the organisation `org`; empty where nothing is against it.

    They must be of this project, name the organisation (in which a blank may stand for each `_` of `org`), and be of a
    commit without local changes, as a package holds the code of that commit. `run` is the first of the runs.
    """
    if not run.is_project_log:
        return ["they are not logs of this project, whose code a package holds"]
    reasons = []
    org_of_log = run.first_event(schema.SUBMISSION_ORG).value
    if org_of_log == NOT_STATED:
        reasons.append("they state no organisation: run with SUBMISSION_ORG set")
    elif str(org_of_log).replace(" ", "_") != org:
        reasons.append(f"they are of {printable(org_of_log)}, not of {printable(org)}")

    source = run.header_section(schema.SOURCE)
    commit = source.get("commit")
    is_commit = isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit)
    if not is_commit:
        reasons.append("they do not say of which commit they are (header `source`), so there is no code to hand in")
    elif source.get("dirty") is not False:
        reasons.append("the code differed from its commit when they were written: commit, and run again")
    return reasons


def _report(manifest: JsonObject, score: Score, run: LoggedRun, description: JsonObject) -> str:
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


def rendered(name: str, **values: Any) -> str:
    """Return the text of the template `name` in this folder, filled in with `values`.

    In a template of HTML the values are escaped. In one of Markdown the lines that hold a tag alone vanish, as an empty
    line would end a table. `values` must have each name that the template uses.
    """
    import jinja2

    html = name.endswith(".html")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=html, trim_blocks=not html, keep_trailing_newline=not html
    )
    environment.filters["shown"] = printable
    environment.filters["repr"] = lambda value: "not stated" if value is None else repr(value)
    environment.filters["rounded"] = lambda value: "not stated" if value is None else f"{value:.4f}"
    return environment.from_string(template_text(name)).render(style=template_text("page.css"), **values)


def template_text(name: str) -> str:
    """Return the text of a template, or of the style sheet, in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _settings_to_rerun(run: LoggedRun) -> str:
    """Return the settings that a user gave, such as `BATCHSIZE=256 PRECISION=amp_o2 `, by the log's header.

    Those of one run, and paths of the machine, are left out.
    """
    settings = ""
    for name, setting in run.header_section(schema.CONFIG).items():
        is_given = isinstance(setting, dict) and setting.get("origin") == "environment"
        if is_given and re.fullmatch(r"[A-Z_]+", name) and name not in ("SEED", "LOGDIR", "DATADIR", "RESULT_FILE"):
            settings += f"{name}={shlex.quote(str(setting['value']))} "
    return printable(settings, 2000)


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their names in it, such as `results/CPU/resnet/result_0.txt`, sorted."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path for path in files}


def hashes(folder: Path) -> str:
    """Return the SHA256SUMS of every file below `folder` but itself, as `sha256sum -c` reads it."""
    lines = []
    for name, path in files_below(folder).items():
        if name != HASHES:
            lines.append(f"{sha256(path)}  {name}\n")
    return "".join(lines)
