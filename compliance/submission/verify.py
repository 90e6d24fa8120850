"""Re-check of a published package: its hashes, its logs, and every figure that it states."""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from compliance.check import check_file
from compliance.rules import load, verdict
from compliance.submission import package
from compliance.submission.description import LARGEST_JSON_BYTES, read_description
from compliance.submission.package import HASHES, MANIFEST, REPORT, code_folder, hashes
from compliance.submission.runs import sha256
from compliance.submission.site import PACKAGES, PAGE, SIGNATURE, TABLE, pages_of, signed
from runlog.text import printable
from runlog.verdict import FATAL, UNKNOWN, Verdict, as_text, judged, worst

_PATH = re.compile(r"(?!\.)[A-Za-z0-9_+.-]+(/(?!\.)[A-Za-z0-9_+.-]+)*")


def command(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    if (folder / TABLE).is_file():
        answers = verify_site(folder, options.signers, ask_official=options.official)
    elif (folder / MANIFEST).is_file() and not options.signers:
        answers = verify(folder, ask_official=options.official)
    else:
        raise ValueError(f"{folder}: no {MANIFEST} in it: give the folder ORG of a package, or a published folder")
    good = worst(answers) != FATAL
    if options.json:
        print(json.dumps({"verdict": verdict(good), "checks": [answer.as_dict() for answer in answers]}, indent=2))
    else:
        print(f"{as_text(answers)}{printable(str(folder), 1000)}: {verdict(good).upper()}")
    return 0 if good else 1


def verify(folder: Path, *, ask_official: bool = False) -> list[Verdict]:
    """What a re-check of the package at `folder` finds. Nothing in `folder` is written or trusted."""
    folder = folder.resolve()  # its name is the organisation's
    if strange := _strange_files(folder):
        return strange
    answers = _check_hashes(folder)
    try:
        manifest = read_description(folder / MANIFEST)
        system, name = str(manifest["system"]), str(manifest["benchmark"])
        if not package.is_name(system):
            raise ValueError(f"system {system}")
        ruleset = load(str(manifest["ruleset"]))
        benchmark = ruleset.benchmarks[name]
    except (ValueError, KeyError, OSError) as error:
        message = f"not readable as a package's: {printable(str(error))}"
        return [*answers, judged(MANIFEST, False, message)]
    answers += _check_code(folder / code_folder(name), str(manifest.get("commit")))
    results = Path("results") / system / name
    logs = [folder / results / f"result_{index}.txt" for index in range(benchmark.runs)]
    wanted = {HASHES, MANIFEST, REPORT, f"systems/{system}.json", *(str(log.relative_to(folder)) for log in logs)}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    beside = {file for file in there if not file.startswith(f"{code_folder(name)}/")}
    for file in sorted(beside ^ wanted):
        what = "is missing" if file in wanted else "is nothing that a package holds"
        answers.append(judged("contents", False, f"{file} {what}"))
    if not wanted <= there:
        return answers
    checked = [check_file(log, ruleset) for log in logs]
    try:
        content, reasons = package.contents_of(folder, checked, system, benchmark, ruleset)
    except (ValueError, KeyError, OSError) as error:
        return [*answers, judged("package", False, printable(str(error)))]
    answers += [judged(printable(name), False, reason) for name, reason in reasons]
    if not reasons:
        answers.append(judged("logs", True, f"{len(logs)} logs meet ruleset {ruleset.version}"))
    message = f"score {content.manifest['minutes']!r} min, from the logs"
    same = _read(folder / MANIFEST) == package.as_bytes(content.manifest)
    if not same:
        names = {**content.manifest, **manifest}
        differing = printable(", ".join(name for name in names if content.manifest.get(name) != manifest.get(name)))
        message = f"differs from what the logs say in: {differing}" if differing else "not in the form of a package's"
    answers.append(judged(MANIFEST, same, message))
    same = _read(folder / REPORT) == content.report.encode()
    answers.append(
        judged(REPORT, same, "every figure is the logs'" if same else "differs from the report that the logs give")
    )
    return [*answers, *(package.official_answers(folder, content.manifest) if ask_official else ())]


def verify_site(folder: Path, signers: Path | None, *, ask_official: bool = False) -> list[Verdict]:
    """What a re-check of a published folder finds: its signature, hashes, each package, its table and its page.

    `signers` is a file of allowed signers (ssh-keygen(1)); without it the signature shows only that some key signed.
    """
    folder = folder.resolve()
    if strange := _strange_files(folder):
        return strange
    answers = [signed(folder, signers)] if signers or (folder / SIGNATURE).is_file() else []
    there = "".join(line for line in hashes(folder).splitlines(True) if not line.endswith(f"  {SIGNATURE}\n"))
    listed = _read(folder / HASHES) == there.encode()
    count = f"{len(there.splitlines())} files"
    answers.append(judged(HASHES, listed, count if listed else f"{count}, not those that it lists"))
    places = sorted(path.parent.relative_to(folder) for path in (folder / PACKAGES).glob(f"*/*/{MANIFEST}"))
    for place in places:
        answers += [replace(answer, where=str(place)) for answer in verify(folder / place, ask_official=ask_official)]
    if worst(answers) == FATAL:
        return answers
    for file, text in pages_of(folder).items():
        same = _read(folder / file) == text.encode()
        answers.append(judged(file, same, f"{'equal to' if same else 'differs from'} what the packages say"))
    beside = {path.name for path in folder.iterdir()} - {TABLE, PAGE, HASHES, SIGNATURE, PACKAGES}
    return [*answers, *(judged("contents", False, f"{name} is nothing that was published") for name in sorted(beside))]


def _strange_files(folder: Path) -> list[Verdict]:
    """Links, pipes, empty folders and names that no package has: nothing of such a package is read."""
    answers = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            why = "is no regular file"
        elif path.is_dir() and not any(path.iterdir()):
            why = "is an empty folder"
        elif not _PATH.fullmatch(name):
            why = "is a name that no package holds"
        else:
            continue
        answers.append(judged("files", False, f"{printable(name)} {why}"))
    return answers


def _read(file: Path) -> bytes:
    """A file that a package states things in; empty where it is absent or larger than any of them."""
    return file.read_bytes() if file.is_file() and file.stat().st_size <= LARGEST_JSON_BYTES else b""


def _check_code(folder: Path, commit: str) -> list[Verdict]:
    """Compares the code with the commit that the logs name; a commit that this checkout lacks fails."""
    try:
        wanted = {name: content for name, (content, _) in package.code_of(commit).items()}
    except ValueError as error:
        if not (folder / "run_and_time.sh").is_file():
            return [judged("code", False, "there is no run_and_time.sh")]
        unknown = not isinstance(error, package.UnknownCommitError)  # there is no git here, or no checkout
        found = f"not compared: {printable(str(error), 500)}"
        return [judged("code", False, found, bad=UNKNOWN if unknown else FATAL)]
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    there = {name: path.read_bytes() if name in wanted else b"" for name, path in names.items()}
    words = (f"is none of commit {commit}", f"is missing from commit {commit}", f"differs from commit {commit}")
    good = judged("code", True, f"{len(there)} files, those of commit {commit}")
    return _compared("code", wanted, there, words) or [good]


def _check_hashes(folder: Path) -> list[Verdict]:
    text, there = _read(folder / HASHES), hashes(folder).encode()
    if text == there:
        message = f"{there.count(10)} files; the id of the package is {sha256(folder / HASHES)}"
        return [judged(HASHES, True, message)]
    listed, found = (
        {line[66:]: line[:64] for line in sums.decode("utf-8", "replace").split("\n") if line} for sums in (text, there)
    )
    form = judged(HASHES, False, "not in the order or form that it was written in")
    return _compared(HASHES, listed, found, ("is not listed", "is missing", "was altered")) or [form]


def _compared(
    check: str, wanted: Mapping[str, object], there: Mapping[str, object], words: tuple[str, str, str]
) -> list[Verdict]:
    """Names with another content, or in one of two places alone; `words`: only there, only wanted, another content."""
    differ = [name for name in sorted({*wanted, *there}) if wanted.get(name) != there.get(name)]
    what = {name: words[0 if name not in wanted else 1 if name not in there else 2] for name in differ}
    return [judged(check, False, f"{printable(name)} {said}") for name, said in what.items()]
