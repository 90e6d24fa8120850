"""Re-check of a published package: its hashes, its logs, and every figure that it states."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from compliance.check import check_file
from compliance.findings import printable
from compliance.package import HASHES, MANIFEST, REPORT, describe, hashes, is_name, official_answers
from compliance.rules import load
from compliance.runs import Checked, expand, read_description, sha256


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One thing that was checked: `status` is ok, fail, or not applied."""

    check: str
    status: str
    message: str


def command(options: argparse.Namespace) -> int:
    """`python -m compliance verify`."""
    folder: Path = options.folder
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder}: no {MANIFEST} in it: give the folder ORG of a package")
    answers = verify(folder, ask_official=options.official)
    good = all(answer.status != "fail" for answer in answers)
    if options.json:
        print(json.dumps({"verdict": "pass" if good else "fail", "checks": [asdict(a) for a in answers]}, indent=2))
    else:
        for answer in answers:
            print(f"{answer.status}: {answer.check}: {answer.message}")
        print(f"{printable(str(folder), 1000)}: {'PASS' if good else 'FAIL'}")
    return 0 if good else 1


def verify(folder: Path, *, ask_official: bool = False) -> list[Answer]:
    """What a re-check of the package at `folder` finds. Nothing in `folder` is written or trusted."""
    if strange := _strange_files(folder):
        return strange
    answers = _check_hashes(folder)
    try:
        manifest = read_description(folder / MANIFEST)
        system, name = str(manifest["system"]), str(manifest["benchmark"])
        if not is_name(system):
            raise ValueError(f"system {system}")
        ruleset = load(str(manifest["ruleset"]))
        benchmark = ruleset.benchmarks[name]
        results = folder / "results" / system / name
        logs = expand([results]) if results.is_dir() else []
    except (ValueError, KeyError, OSError) as error:
        message = f"not readable as a package's: {printable(str(error))}"
        return [*answers, Answer(check=MANIFEST, status="fail", message=message)]
    wanted = [f"result_{index}.txt" for index in range(benchmark.runs)]
    if [log.name for log in logs] != wanted or any(log.is_symlink() for log in logs):
        found = ", ".join(printable(log.name) for log in logs) or "nothing"
        message = f"{results.relative_to(folder)} holds {found}; it must hold {wanted[0]} to {wanted[-1]}"
        return [*answers, Answer(check="results", status="fail", message=message)]
    checked = []
    for log in logs:
        findings, run = check_file(log, ruleset)
        checked.append(Checked(path=log, findings=findings, run=run))
    try:
        content, reasons = describe(folder, checked, system, benchmark, ruleset)
    except (ValueError, KeyError, OSError) as error:
        return [*answers, Answer(check="package", status="fail", message=printable(str(error)))]
    answers += [Answer(check=printable(name), status="fail", message=reason) for name, reason in reasons]
    if not reasons:
        answers.append(Answer(check="logs", status="ok", message=f"{len(logs)} logs meet ruleset {ruleset.version}"))
    same = content.manifest == manifest
    answers.append(
        Answer(
            check=MANIFEST,
            status="ok" if same else "fail",
            message=f"score {content.manifest['minutes']!r} min, from the logs"
            if same
            else f"differs from what the logs say in: {_difference(content.manifest, manifest)}",
        )
    )
    report = (folder / REPORT).read_bytes() if (folder / REPORT).is_file() else b""
    same = report == content.report.encode()
    message = "every figure is the logs'" if same else "differs from the report that the logs give"
    answers.append(Answer(check=REPORT, status="ok" if same else "fail", message=message))
    if ask_official:
        for said in official_answers(folder, content.manifest):
            status = {"yes": "ok", "no": "fail"}.get(said["accepted"], said["accepted"])
            answers.append(Answer(check=said["tool"], status=status, message=said["message"]))
    return answers


def _strange_files(folder: Path) -> list[Answer]:
    """Links, pipes and the like: nothing of such a package is read."""
    return [
        Answer(
            check="files", status="fail", message=f"{printable(path.relative_to(folder).as_posix())} is no regular file"
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]


def _check_hashes(folder: Path) -> list[Answer]:
    listed = (folder / HASHES).read_bytes() if (folder / HASHES).is_file() else b""
    there = hashes(folder).encode()
    if listed == there:
        message = f"{there.count(10)} files; the id of the package is {sha256(folder / HASHES)}"
        return [Answer(check=HASHES, status="ok", message=message)]
    answers = []
    said, found = ({line[66:]: line[:64] for line in text.split(b"\n") if line} for text in (listed, there))
    for file in sorted({*said, *found}):
        if said.get(file) != found.get(file):
            what = "is not listed" if file not in said else "is missing" if file not in found else "was altered"
            shown = printable(file.decode("utf-8", "replace"))
            answers.append(Answer(check=HASHES, status="fail", message=f"{shown} {what}"))
    return answers or [Answer(check=HASHES, status="fail", message="not in the order or form that it was written in")]


def _difference(one: dict[str, object], other: dict[str, object]) -> str:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return printable(", ".join(names))
