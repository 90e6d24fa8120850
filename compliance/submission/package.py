"""The submission package: the tree that is handed in, built from logs that were checked as they lie in it."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from compliance import mlperf
from compliance.check import LoggedRun, Report, check_file
from compliance.official import tools as official
from compliance.rules import Ruleset, load, verdict
from compliance.submission.description import compare_description, read_description
from compliance.submission.group import SubmittedBenchmark, one_submission
from compliance.submission.runs import check_between, expand, receipt_path, sha256
from compliance.submission.score import NOT_CONVERGED, Score, nearest_the_median, score_runs
from compliance.submission.system import FIELDS, NOT_STATED
from runlog import schema
from runlog.text import called, printable
from runlog.verdict import FATAL, UNKNOWN, Verdict, as_text, judged

REPOSITORY = next((p for p in Path(__file__).resolve().parents[2:3] if (p / "systems").is_dir()), Path.cwd())  # a wheel
HASHES = "SHA256SUMS"
MANIFEST = "submission.json"
REPORT = "README.md"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+.-]*")
LARGEST_BYTES = 50 * 2**20  # of a file; repo_checker of mlperf-logging refuses a larger one
FRAMEWORK_LOG = ".stderr"  # the launcher writes what the framework printed to result_N.stderr
_CUT = b"\n[cut here: the framework's log is longer than 50 MiB]\n"


class RefusedError(Exception):
    """The logs may not be published as they are; its arguments say why, a line each."""


class UnknownCommitError(ValueError):
    """This checkout's history lacks the commit."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The account that a package gives of itself, computed from its logs and system description."""

    manifest: dict[str, Any]
    report: str
    chosen: str = ""  # which of more runs than a submission has it holds: no log of it says so


def command(options: argparse.Namespace) -> int:
    ruleset = load(options.ruleset)
    try:
        folder, content, answers = build(
            expand(options.logs), org=options.org, system=options.system, out=options.out, ruleset=ruleset
        )
    except RefusedError as error:
        refused = "\n".join(f"refused: {printable(reason, 5000)}" for reason in error.args)
        print(json.dumps({"package": None, "refused": error.args}, indent=2) if options.json else refused)
        return 1
    if options.json:
        built = {"package": str(folder), "refused": [], "chosen": content.chosen, **content.manifest}
        print(json.dumps(built | {"official": [answer.as_dict() for answer in answers]}, indent=2))
        return 0
    print(content.report)
    without = [run["file"] for run in content.manifest["runs"] if run["framework_log_sha256"] is None]
    if without:
        print(f"without the framework's log (result_N{FRAMEWORK_LOG}, asked for since 2026-08): {', '.join(without)}")
    if content.chosen:
        print(f"scored: {content.chosen}; keep the logs of the others, which a review may ask for")
    print(as_text(answers), end="")
    print(f"{folder}: built; its id is the SHA-256 of {HASHES}: {sha256(folder / HASHES)}")
    return 0


def build(
    logs: Sequence[Path], *, org: str, system: str, out: Path, ruleset: Ruleset
) -> tuple[Path, Content, list[Verdict]]:
    """Makes `out`/`org`.

    Raises ValueError for wrong use (a name, a number of runs, a folder that exists), RefusedError for logs that may
    not be published.
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
        content = _fill(stage, logs, description_path, ruleset)
        answers = official_answers(stage, content.manifest)
        if refused := [f"{answer.check}: {answer.found}" for answer in answers if answer.status == FATAL]:
            raise RefusedError(*refused)
        stage.rename(target)
    return target, content, answers


def _fill(stage: Path, logs: Sequence[Path], description_path: Path, ruleset: Ruleset) -> Content:
    system = description_path.stem
    checked, log_of, reasons = _copied(stage / "incoming", logs, ruleset)
    try:
        benchmark = one_submission(checked, ruleset, log_of.__getitem__)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if len(checked) < benchmark.runs.runs:
        raise ValueError(f"{len(checked)} logs given: a submission of {benchmark.name} has {benchmark.runs.runs}")
    scored, chosen = nearest_the_median(checked, ruleset)
    results = stage / "results" / system / benchmark.name
    results.mkdir(parents=True)
    names = {f"result_{index}.txt": one for index, one in enumerate(scored)}
    renamed = [replace(one, path=one.path.rename(results / name)) for name, one in names.items()]
    for name, one in names.items():
        _copy_framework_log(log_of[one.path], results / name)
    shutil.rmtree(stage / "incoming")  # with the runs that are not scored
    (stage / "systems").mkdir()
    shutil.copyfile(description_path, stage / "systems" / f"{system}.json")
    content, against = contents_of(stage, renamed, system, benchmark, ruleset)
    reasons += [f"{log_of[names[file].path] if file in names else file}: {reason}" for file, reason in against]
    if reasons:
        raise RefusedError(*reasons)
    for name, (code, executable) in code_of(str(content.manifest["commit"])).items():
        path = stage / code_folder(benchmark.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code)
        path.chmod(0o755 if executable else 0o644)
    (stage / MANIFEST).write_bytes(as_bytes(content.manifest))
    (stage / REPORT).write_text(content.report, encoding="utf-8")
    (stage / HASHES).write_text(hashes(stage), encoding="utf-8")
    return replace(content, chosen=chosen)


def _copied(folder: Path, logs: Sequence[Path], ruleset: Ruleset) -> tuple[list[Report], dict[Path, Path], list[str]]:
    """The logs by the time of their start, copied first and then checked: what is handed in is what was checked.

    With each copy's log, and how logs differ from what an earlier check saw.
    """
    folder.mkdir()
    log_of = {folder / f"{index}.txt": log for index, log in enumerate(logs)}
    reasons = []
    for copy, log in log_of.items():
        if log.is_symlink() or not log.is_file():
            raise ValueError(f"{log}: not a regular file; copy the log itself there")
        shutil.copyfile(log, copy)
        receipt = receipt_path(log)
        hashed = f'"sha256": "{sha256(copy)}"'
        if receipt.is_file() and hashed not in receipt.read_text(encoding="utf-8", errors="replace"):
            changed = f"differs from what was checked ({receipt.name}): find out what changed it, or run again"
            reasons.append(f"{log}: {changed}")
    checked = [check_file(copy, ruleset) for copy in log_of]
    checked.sort(key=lambda one: (one.run.start_ms or 0, log_of[one.path].name))
    return checked, log_of, reasons


def _copy_framework_log(log: Path, copy: Path) -> None:
    """Copy what the framework printed in the run of `log`, where the launcher kept it, to the side of `copy`.

    A valid result must include the full framework logs (training_rules.adoc, section Result files, of 2026-08:
    mlcommons/training_policies #588); one that is too large for a repository may be cut.
    """
    source = log.with_suffix(FRAMEWORK_LOG)
    if source.is_symlink() or not source.is_file():
        return
    with source.open("rb") as stream:
        text = stream.read(LARGEST_BYTES + 1)
    if len(text) > LARGEST_BYTES:
        text = text[: LARGEST_BYTES - len(_CUT)] + _CUT
    copy.with_suffix(FRAMEWORK_LOG).write_bytes(text)


def as_bytes(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2) + "\n").encode()


def code_folder(benchmark: str) -> str:
    return f"benchmarks/{benchmark}/implementations/paddle"


def contents_of(
    folder: Path, checked: Sequence[Report], system: str, benchmark: SubmittedBenchmark, ruleset: Ruleset
) -> tuple[Content, list[tuple[str, str]]]:
    """Return what the package at `folder` must say of itself, and why it may not be published: (file, reason) pairs."""
    description_file = folder / "systems" / f"{system}.json"
    description = read_description(description_file)
    wrong = [name for name in FIELDS if not isinstance(description.get(name), str)]  # the official checkers want text
    said = {name: "no text" if name in description else "missing" for name in wrong}
    reasons = [(description_file.name, f"{name} is {what}") for name, what in said.items()]
    rule = ruleset.strict["system-description"]
    lost = []
    runs: list[dict[str, Any]] = []
    for one, compared in zip(checked, check_between(checked, ruleset), strict=True):
        errors = [f for f in one.findings if f.severity == "error"]
        if errors and all(f.rule in NOT_CONVERGED for f in errors):
            lost.append(one.path.name)
            errors = []
        beside = (*compared.findings[len(one.findings) :], *compare_description(one.run, description, rule))
        errors += [f for f in beside if f.severity == "error" or f.rule == "same-configuration"]
        for found in errors:
            where = f" line {found.line}" if found.line else ""
            reasons.append((one.path.name, f"{found.rule}{where}: {found.actual}; {found.fix}"))
        last = one.run.evaluations[-1] if one.run.evaluations else None
        runs.append(
            {
                "file": one.path.relative_to(folder).as_posix(),
                "sha256": sha256(one.path),
                "framework_log_sha256": _sha256_of_framework_log(one.path),
                "verdict": verdict(one.strict),
                "minutes": one.run.minutes,
                "seed": [seed.value for seed in one.run.kept[schema.SEED.key]],
                "epochs": last and last.epoch,
                "quality": last and last.value,
            }
        )
    if len(lost) > 1:
        reasons.append((", ".join(lost), "did not reach the target; one run of a submission may fail to"))
    score = score_runs(checked, ruleset)
    if score.minutes is None and not reasons:
        reasons.append(("score", score.problem))
    first = checked[0].run
    reasons += [("logs", reason) for reason in _of_origin(first, folder.name)]
    manifest = {
        "organisation": first.of(schema.SUBMISSION_ORG).value,
        "system": system,
        "benchmark": benchmark.name,
        "division": score.division,
        "ruleset": ruleset.version,
        "commit": first.section(schema.SOURCE).get("commit"),
        "minutes": score.minutes,
        "unscaled_minutes": score.unscaled_minutes,
        "scaling": score.scaling,
        "convergence": score.convergence,
        "result": score.standing.as_dict(),
        "footnotes": score.standing.footnotes(),
        "runs": runs,
    }
    return Content(manifest=manifest, report=_report(manifest, score, first, description)), reasons


def _sha256_of_framework_log(log: Path) -> str | None:
    """The hash of the framework's log in the package; None where the run has none."""
    path = log.with_suffix(FRAMEWORK_LOG)
    return sha256(path) if path.is_file() else None


def _of_origin(run: LoggedRun, org: str) -> list[str]:
    """Why the logs cannot stand for the organisation, or for code that could be handed in."""
    if not run.is_project_log:
        return ["they are not logs of this project, whose code a package holds"]
    reasons = []
    org_of_log, source = run.of(schema.SUBMISSION_ORG).value, run.section(schema.SOURCE)
    if org_of_log == NOT_STATED:
        reasons.append("they state no organisation: run with SUBMISSION_ORG set")
    elif str(org_of_log).replace(" ", "_") != org:
        reasons.append(f"they are of {printable(org_of_log)}, not of {printable(org)}")
    commit = source.get("commit")
    if not (isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit)):
        reasons.append("they do not say of which commit they are (header `source`), so there is no code to hand in")
    elif source.get("dirty") is not False:
        reasons.append("the code differed from its commit when they were written: commit, and run again")
    return reasons


def _report(manifest: dict[str, Any], score: Score, run: LoggedRun, description: dict[str, Any]) -> str:
    return rendered(
        "package.md",
        package=manifest,
        score=score,
        runs=[(Path(one["file"]).name, one, of.dropped) for one, of in zip(manifest["runs"], score.runs, strict=True)],
        description=dict.fromkeys(FIELDS, "") | {name: printable(value, 1000) for name, value in description.items()},
        standing=score.standing,
        code=code_folder(manifest["benchmark"]),
        settings=_rerun(run),
    )


def rendered(name: str, **values: Any) -> str:
    """The template `name` of this folder with its values, which are escaped in HTML."""
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
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _rerun(run: LoggedRun) -> str:
    """The settings that a user gave, as the log's header names their origin."""
    settings = [
        f"{name}={shlex.quote(str(setting['value']))} "
        for name, setting in run.section(schema.CONFIG).items()
        if isinstance(setting, dict) and setting.get("origin") == "environment"
        if re.fullmatch(r"[A-Z_]+", name) and name not in ("SEED", "LOGDIR", "DATADIR", "RESULT_FILE")
    ]
    return printable("".join(settings), 2000)


def code_of(commit: str) -> dict[str, tuple[bytes, bool]]:
    """Name, content and whether it is executable of each file of `commit`, but for hidden ones, which repo_checker
    refuses.

    Raises UnknownCommitError if this checkout lacks the commit, ValueError if there is no git to ask, or a file is one
    that repo_checker refuses.
    """
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise ValueError(f"{printable(commit)}: no commit")
    command = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commit]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("git is not installed: package on a machine that has it, in a checkout of the code") from None
    if done.returncode:
        message = printable(done.stderr.decode("utf-8", "replace").strip())
        kind = UnknownCommitError if (REPOSITORY / ".git").exists() else ValueError
        raise kind(f"{REPOSITORY}: git has no commit {commit} ({message}); take a checkout that has it")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        files = {}
        for member in archive.getmembers():
            if member.isdir() or re.search(r"(^|/)\.| ", member.name):
                continue
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or member.size > LARGEST_BYTES:
                raise ValueError(f"{member.name}: a link or over 50 MB, which repo_checker refuses: leave it out")
            files[member.name] = (content.read(), bool(member.mode & 0o100))
        return files


def hashes(folder: Path) -> str:
    """SHA256SUMS of every file below `folder` but itself, as `sha256sum -c` reads it."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return "".join(f"{sha256(path)}  {name}\n" for name, path in files.items() if name != HASHES)


def official_answers(folder: Path, manifest: dict[str, Any]) -> list[Verdict]:
    """Ask mlperf-logging's tools about the package; they write into what they check, so they get a copy."""
    system, benchmark, ruleset = manifest["system"], manifest["benchmark"], manifest["ruleset"]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy)
        asked = ("training", ruleset)
        of_any = [
            official.ask("system_desc_checker", str(copy / "systems" / f"{system}.json"), *asked),
            official.ask("repo_checker", str(copy), *asked),
        ]
        if not mlperf.is_mlperf_benchmark(benchmark):  # the official package tools skip others, or die
            of_any += [_of_log(copy / run["file"], run, ruleset, benchmark) for run in manifest["runs"]]
            lacking = ("package_checker", "rcp_checker", "result_summarizer")
            none = f"not applied: {benchmark} is no MLPerf benchmark"
            return [*of_any, *(Verdict(check=tool, status=UNKNOWN, found=none) for tool in lacking)]
        convergence = Verdict(check="rcp_checker", status=UNKNOWN, found="not applied: not a closed submission")
        if manifest["division"] == "closed":  # its points are for that, and package_checker asks it for no other
            results = str(copy / "results" / system / benchmark)
            convergence = official.ask("rcp_checker", results, "--rcp_version", ruleset)
        packaged = official.ask("package_checker", str(copy), *asked)
        return [packaged, *of_any, convergence, official.summary(copy, ruleset, benchmark, manifest["minutes"])]


def _of_log(log: Path, run: dict[str, Any], ruleset: str, benchmark: str) -> Verdict:
    passed, messages = official.check_log(log, ruleset, benchmark)
    message = f"{log.parent.name}/{log.name}: {'SUCCESS' if passed else '; '.join(messages[:2])}"
    return judged("compliance_checker", passed or run["verdict"] == "fail", message)
