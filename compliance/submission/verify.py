"""`python -m compliance verify`: re-check of a package, its hashes, its logs and every figure that it states, and of a
published folder, whose table and page are made again of the packages in it.
"""

import argparse
import itertools
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compliance import mlperf
from compliance.check import check_file
from compliance.rules import load, verdict
from compliance.submission import package
from compliance.submission.description import LARGEST_JSON_BYTES, read_description
from compliance.submission.group import SubmittedBenchmark
from compliance.submission.package import FRAMEWORK_LOG, HASHES, LARGEST_BYTES, MANIFEST, REPORT, code_folder, hashes
from compliance.submission.runs import sha256
from runlog import schema
from runlog.reader import Event, read_log
from runlog.text import printable
from runlog.verdict import FATAL, UNKNOWN, Verdict, as_text, judged, worst

PAGE, TABLE, PACKAGES = "index.html", "results.json", "packages"
SIGNATURE = f"{HASHES}.sig"
NAMESPACE = "paddle-reference"  # of the signatures: ssh-keygen(1), -n
# The lines that a time to train is made of.
_QUOTED = (schema.RUN_START.key, schema.EVAL_ACCURACY.key, schema.RUN_STOP.key)
_OF_MANIFEST = (
    *("organisation", "system", "benchmark", "division", "ruleset", "minutes"),
    *("scaling", "convergence", "commit"),
)
_OF_SYSTEM = {  # column: field of the description
    **{"nodes": "number_of_nodes", "accelerators_per_node": "accelerators_per_node"},
    **{"accelerator": "accelerator_model_name", "framework": "framework"},
}
MOST_BYTES = 4 << 30  # of all files: more takes minutes to hash
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
    """Check the package at `folder` anew. Nothing in `folder` is written or trusted."""
    folder = folder.resolve()  # its name is the organisation's
    if strange := _strange_files(folder):
        return strange
    answers = _check_hashes(folder)
    try:
        manifest = read_description(folder / MANIFEST)
        system, name = str(manifest["system"]), str(manifest["benchmark"])
        if not package.NAME.fullmatch(system):
            raise ValueError(f"system {system}")
        ruleset = load(str(manifest["ruleset"]))
        runs = mlperf.submission_runs(name, ruleset.version)
        if runs is None:
            raise ValueError(f"benchmark {name} of ruleset {ruleset.version}")
        benchmark = SubmittedBenchmark(name=name, runs=runs)
    except (ValueError, KeyError, OSError) as error:
        message = f"not readable as a package's: {printable(str(error))}"
        return [*answers, judged(MANIFEST, False, message)]
    answers += _check_code(folder / code_folder(name), str(manifest.get("commit")))
    results = Path("results") / system / name
    logs = [folder / results / f"result_{index}.txt" for index in range(runs.runs)]
    wanted = {HASHES, MANIFEST, REPORT, f"systems/{system}.json", *(str(log.relative_to(folder)) for log in logs)}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    optional = {str(log.with_suffix(FRAMEWORK_LOG).relative_to(folder)) for log in logs}
    beside = {file for file in there if not file.startswith(f"{code_folder(name)}/")} - optional
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


def _strange_files(folder: Path) -> list[Verdict]:
    """Links, pipes, empty folders, names and sizes that no package has: nothing of such a package is read."""
    answers = []
    total_bytes = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            why = "is no regular file"
        elif path.is_dir() and not any(path.iterdir()):
            why = "is an empty folder"
        elif not _PATH.fullmatch(name):
            why = "is a name that no package holds"
        elif path.is_file() and path.stat().st_size > LARGEST_BYTES:
            why = f"is over {LARGEST_BYTES >> 20} MiB, which no file of a package is"
        else:
            total_bytes += path.stat().st_size if path.is_file() else 0
            continue
        answers.append(judged("files", False, f"{printable(name)} {why}"))
    if total_bytes > MOST_BYTES:
        answers.append(judged("files", False, f"{total_bytes} bytes in all; {MOST_BYTES} are the most that is read"))
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


# --- a published folder ---


def verify_site(folder: Path, signers: Path | None, *, ask_official: bool = False) -> list[Verdict]:
    """Check a published folder anew: its signature, hashes, each package, its table and its page.

    `signers` is a file of allowed signers (ssh-keygen(1)); without it the signature shows only that some key signed.
    """
    folder = folder.resolve()
    if strange := _strange_files(folder):
        return strange
    answers = [signed(folder, signers)]
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


def pages_of(root: Path) -> dict[str, str]:
    """The table of the packages in a published folder, and its page: self-contained, its script only sorts.

    MLPerf results and others are sorted apart, and stand in tables of their own: they must not be compared.
    """
    results = []
    for folder in sorted(path.parent for path in (root / PACKAGES).glob(f"*/*/{MANIFEST}")):
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        description = read_description(folder / "systems" / f"{manifest['system']}.json")
        results.append(_published(root, folder, manifest, description))
    results.sort(key=_place_in_table)
    notes = mlperf.notes_in_order(itertools.chain.from_iterable(result.footnotes for result in results))
    page = package.rendered(
        "site.html",
        results=[result.row | result.of_page for result in results],
        footnotes=notes,
    )
    table = {"results": [result.row for result in results], "footnotes": notes}
    return {TABLE: json.dumps(table, indent=2) + "\n", PAGE: page}


@dataclass(frozen=True, kw_only=True)
class _Published:
    """One result of a published folder."""

    row: dict[str, Any]  # of the table
    of_page: dict[str, Any]  # what the page says of it besides
    footnotes: list[str]


def _published(root: Path, folder: Path, manifest: dict[str, Any], description: dict[str, Any]) -> _Published:
    result = manifest["result"]
    runs = manifest["runs"]
    row = {
        "package": folder.relative_to(root).as_posix(),
        "id": sha256(folder / HASHES),
        **{name: manifest[name] for name in _OF_MANIFEST},
        "status": mlperf.UNVERIFIED if manifest["footnotes"] else "no MLPerf result",
        "result": result["name"],
        "is_mlperf": result["is_mlperf"],
        "dataset": result["dataset"],
        "target": result["target_in_words"],
        "runs": len(runs),
        "runs_that_count": sum(run["verdict"] == "pass" for run in runs),
        **{column: description[field] for column, field in _OF_SYSTEM.items()},
    }
    of_page = {
        "each": [run | {"lines": _lines(folder / run["file"])} for run in runs],
        "description": {name: value for name, value in description.items() if value},
    }
    return _Published(row=row, of_page=of_page, footnotes=manifest["footnotes"])


def _place_in_table(result: _Published) -> tuple[bool, list[Any]]:
    """MLPerf results first, then by benchmark, division and minutes."""
    row = result.row
    return not result.footnotes, [row[name] for name in ("benchmark", "division", "minutes")]


def _lines(log: Path) -> list[tuple[int, str]]:
    """Number and text of the log's lines that its time and its quality are made of."""
    wanted = {entry.line for entry in read_log(log) if isinstance(entry, Event) and entry.key in _QUOTED}
    with log.open(encoding="utf-8", errors="replace") as stream:
        lines = ((number, line.rstrip("\n")) for number, line in enumerate(stream, 1) if number in wanted)
        return [(number, printable(line, 300)) for number, line in lines]


def signed(folder: Path, signers: Path | None) -> Verdict:
    """Who signed the hashes of a published folder. Without `signers`, a folder may be signed by nobody: it says so."""
    signature = folder / SIGNATURE
    if not signature.is_file():
        found = "signed by nobody: anyone can have made or altered this folder"
        return judged(SIGNATURE, False, found, "a signature", bad=FATAL if signers else UNKNOWN)
    try:
        data = (folder / HASHES).read_bytes()
        if signers is None:
            found = ssh_keygen("check-novalidate", "-n", NAMESPACE, "-s", str(signature), data=data)
            return judged(SIGNATURE, True, f"{found} (nobody vouches for the key: give --signers)")
        who = ssh_keygen("find-principals", "-s", str(signature), "-f", str(signers)).splitlines()[0]
        found = ssh_keygen(*("verify", "-n", NAMESPACE, "-s", str(signature), "-f", str(signers), "-I", who), data=data)
    except ValueError as error:
        return judged(SIGNATURE, False, str(error))
    return judged(SIGNATURE, True, found)


def ssh_keygen(*arguments: str, data: bytes = b"") -> str:
    """Return what `ssh-keygen -Y` prints. Raises ValueError where it refuses."""
    try:
        done = subprocess.run(["ssh-keygen", "-Y", *arguments], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("ssh-keygen is not installed: apt-get install openssh-client") from None
    said = (done.stdout or done.stderr).decode("utf-8", "replace").strip()
    if done.returncode:
        raise ValueError(f"ssh-keygen -Y {arguments[0]}: {printable(said, 500)}")
    return printable(said, 500)
