"""Re-check of a published package: its hashes, its logs, and every figure that it states."""

import argparse
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from compliance.check import check_file
from compliance.findings import printable
from compliance.rules import load
from compliance.submission.package import (
    HASHES,
    MANIFEST,
    REPORT,
    UnknownCommitError,
    as_bytes,
    code_folder,
    code_of,
    contents_of,
    hashes,
    is_name,
    official_answers,
)
from compliance.submission.runs import LARGEST_JSON_BYTES, Checked, read_description, sha256

_PATH = re.compile(r"(?!\.)[A-Za-z0-9_+.-]+(/(?!\.)[A-Za-z0-9_+.-]+)*")


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
            print(printable(f"{answer.status}: {answer.check}: {answer.message}", 5000))
        print(f"{printable(str(folder), 1000)}: {'PASS' if good else 'FAIL'}")
    return 0 if good else 1


def verify(folder: Path, *, ask_official: bool = False) -> list[Answer]:
    """What a re-check of the package at `folder` finds. Nothing in `folder` is written or trusted."""
    folder = folder.resolve()  # its name is the organisation's
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
    except (ValueError, KeyError, OSError) as error:
        message = f"not readable as a package's: {printable(str(error))}"
        return [*answers, Answer(check=MANIFEST, status="fail", message=message)]
    answers += _check_code(folder / code_folder(name), str(manifest.get("commit")))
    results = Path("results") / system / name
    logs = [folder / results / f"result_{index}.txt" for index in range(benchmark.runs)]
    wanted = {HASHES, MANIFEST, REPORT, f"systems/{system}.json", *(str(log.relative_to(folder)) for log in logs)}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    beside = {file for file in there if not file.startswith(f"{code_folder(name)}/")}
    for file in sorted(beside ^ wanted):
        what = "is missing" if file in wanted else "is nothing that a package holds"
        answers.append(Answer(check="contents", status="fail", message=f"{file} {what}"))
    if not wanted <= there:
        return answers
    checked = []
    for log in logs:
        findings, run = check_file(log, ruleset)
        checked.append(Checked(path=log, findings=findings, run=run))
    try:
        content, reasons = contents_of(folder, checked, system, benchmark, ruleset)
    except (ValueError, KeyError, OSError) as error:
        return [*answers, Answer(check="package", status="fail", message=printable(str(error)))]
    answers += [Answer(check=printable(name), status="fail", message=reason) for name, reason in reasons]
    if not reasons:
        answers.append(Answer(check="logs", status="ok", message=f"{len(logs)} logs meet ruleset {ruleset.version}"))
    message = f"score {content.manifest['minutes']!r} min, from the logs"
    same = _read(folder / MANIFEST) == as_bytes(content.manifest)
    if not same:
        differing = _difference(content.manifest, manifest)
        message = f"differs from what the logs say in: {differing}" if differing else "not in the form of a package's"
    answers.append(Answer(check=MANIFEST, status="ok" if same else "fail", message=message))
    same = _read(folder / REPORT) == content.report.encode()
    message = "every figure is the logs'" if same else "differs from the report that the logs give"
    answers.append(Answer(check=REPORT, status="ok" if same else "fail", message=message))
    if ask_official:
        for said in official_answers(folder, content.manifest):
            status = {"yes": "ok", "no": "fail"}.get(said["accepted"], said["accepted"])
            answers.append(Answer(check=said["tool"], status=status, message=said["message"]))
    return answers


def _strange_files(folder: Path) -> list[Answer]:
    """Links, pipes, empty folders and names that no package has: nothing of such a package is read."""
    answers = []
    for path in sorted(folder.rglob("*")):
        name, why = path.relative_to(folder).as_posix(), ""
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            why = "is no regular file"
        elif path.is_dir() and not any(path.iterdir()):
            why = "is an empty folder"
        elif not _PATH.fullmatch(name):
            why = "is a name that no package holds"
        if why:
            answers.append(Answer(check="files", status="fail", message=f"{printable(name)} {why}"))
    return answers


def _read(file: Path) -> bytes:
    """A file that a package states things in; empty where it is absent or larger than any of them."""
    return file.read_bytes() if file.is_file() and file.stat().st_size <= LARGEST_JSON_BYTES else b""


def _check_code(folder: Path, commit: str) -> list[Answer]:
    """Compares the code with the commit that the logs name; a commit that this checkout lacks fails."""
    try:
        wanted = {name: content for name, (content, _) in code_of(commit).items()}
    except ValueError as error:
        if not (folder / "run_and_time.sh").is_file():
            return [Answer(check="code", status="fail", message="there is no run_and_time.sh")]
        status = "fail" if isinstance(error, UnknownCommitError) else "not applied"
        return [Answer(check="code", status=status, message=f"not compared: {printable(str(error), 500)}")]
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    answers = []
    for name in sorted({*wanted, *there}):
        if name not in wanted or name not in there or there[name].read_bytes() != wanted[name]:
            what = "is none of" if name not in wanted else "is missing from" if name not in there else "differs from"
            answers.append(Answer(check="code", status="fail", message=f"{printable(name)} {what} commit {commit}"))
    return answers or [Answer(check="code", status="ok", message=f"{len(there)} files, those of commit {commit}")]


def _check_hashes(folder: Path) -> list[Answer]:
    listed = _read(folder / HASHES)
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
