"""`python -m compliance verify`: re-check a package, its hashes, its logs and every figure that it states.

Of a published folder, every package is checked, and its table and page are made again from the packages in it.
"""

import argparse
import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from compliance import mlperf
from compliance.check import Report, check_file
from compliance.rules import Ruleset, load, verdict
from compliance.submission import committed_code, package
from compliance.submission.description import read_object
from compliance.submission.group import SubmittedBenchmark
from compliance.submission.logging_code import refusals_by_logging_code
from compliance.submission.official_answers import official_answers
from compliance.submission.package import HASHES, MANIFEST, REPORT, code_folder, hashes
from compliance.submission.package_files import Problems, hash_by_name, judge_differences, read_stated, strange_files
from compliance.submission.package_logs import FRAMEWORK_LOG
from compliance.submission.published_pages import PACKAGES, PAGE, TABLE, pages_of, published_name
from compliance.submission.refusals import Refusal, refusals_by_code, refusals_by_date
from compliance.submission.runs import sha256
from runlog.digits import counted
from runlog.json_types import JsonObject
from runlog.text import printable
from runlog.verdict import FATAL, UNKNOWN, WARNING, Verdict, as_text, judged, worst

SIGNATURE = f"{HASHES}.sig"
NAMESPACE = "paddle-reference"  # of the signatures: ssh-keygen(1), -n
_ANYBODY_MAY_EXECUTE = 0o111  # bits of a file's mode


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance verify` on a package or a published folder, and print the verdict of each check.

    Args:
        options: Options of the command line: `folder`, `signers`, `official` and `json`.

    Returns:
        The exit status: 1 if a check fails, else 0.

    Raises:
        ValueError: The folder is neither, `signers` are given for a package, or mlperf-logging's tools are asked for
            and not installed.
    """
    folder: Path = options.folder
    verdicts = _verify_package_or_site(folder, options.signers, ask_official=options.official)
    good = worst(verdicts) != FATAL
    if options.json:
        print(json.dumps({"verdict": verdict(good), "checks": [each.as_dict() for each in verdicts]}, indent=2))
    else:
        print(f"{as_text(verdicts)}{printable(str(folder), 1000)}: {verdict(good).upper()}")
    return 0 if good else 1


def _verify_package_or_site(folder: Path, signers: Path | None, *, ask_official: bool) -> list[Verdict]:
    """Check a published folder or a package again, and return the verdicts.

    - A published folder holds packages, and a page and a table of them. It is known by its TABLE.
    - A package holds the logs and the code of one submission. It is known by its MANIFEST.

    Args:
        folder: The folder, one of the two.
        signers: File of those who may sign a published folder (see ssh-keygen(1)); None accepts any signer.
        ask_official: Whether to run mlperf-logging's tools, too.

    Raises:
        ValueError: The folder is neither, `signers` are given for a package, or mlperf-logging's tools are asked for
            and not installed.
    """
    if (folder / TABLE).is_file():
        return verify_site(folder, signers, ask_official=ask_official)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no folder: give the folder ORG of a package, or a published folder")
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder}: no {MANIFEST} in it: give the folder ORG of a package, or a published folder")
    if signers:
        raise ValueError(f"{folder}: a package, which nobody signs: leave out --signers, or give the published folder")
    return verify(folder, ask_official=ask_official)


class _ManifestFacts(NamedTuple):
    """A package's manifest, and the facts in it that the other checks need."""

    manifest: JsonObject
    system: str
    benchmark: SubmittedBenchmark
    ruleset: Ruleset

    @property
    def logs(self) -> list[Path]:
        """Return the paths of the logs in the package."""
        folder = Path("results") / self.system / self.benchmark.name
        return [folder / f"result_{index}.txt" for index in range(self.benchmark.runs_of_result.runs)]


def verify(folder: Path, *, ask_official: bool = False) -> list[Verdict]:
    """Check a submission package again, and trust nothing that it states.

    The folder itself is only read. The checks end early if the folder has a file that may not be read, if its manifest
    is unreadable, or if a file is missing.

    Args:
        folder: Folder of the package.
        ask_official: Whether to run mlperf-logging's tools, too, on a copy of the package.

    Returns:
        The verdicts of the checks that were made.

    Raises:
        ValueError: mlperf-logging's tools are asked for, and not installed.
    """
    folder = folder.resolve()  # a package's folder has the organisation's name, which "." would not show
    strange = strange_files(folder)
    if strange:  # no other file may be read then
        return strange

    verdicts = _check_hashes(folder)
    try:
        facts = _read_manifest(folder)
    except (ValueError, KeyError, OSError) as error:
        message = f"not readable as a package's: {printable(str(error))}"
        return [*verdicts, judged(MANIFEST, good=False, found=message)]
    code = code_folder(facts.benchmark.name)
    verdicts += _check_code(folder / code, str(facts.manifest.get("commit")))
    verdicts += _check_contents(folder, code, facts)
    is_file_missing = any(not (folder / name).is_file() for name in _wanted_files(facts))
    if is_file_missing:  # `_check_contents` has a verdict on each
        return verdicts
    return verdicts + _check_figures(folder, facts, ask_official)


def _read_manifest(folder: Path) -> _ManifestFacts:
    """Return the manifest of a package, with the system, benchmark and ruleset that it names.

    The figures of the manifest are not checked.

    Args:
        folder: Folder of the package.

    Raises:
        ValueError: The manifest is not a JSON object, or its system, benchmark or ruleset is none that a package can
            have.
        KeyError: It does not state one of them.
        OSError: It cannot be opened.
    """
    manifest = read_object(folder / MANIFEST, "a manifest")
    system = str(manifest["system"])
    name = str(manifest["benchmark"])
    if not package.NAME.fullmatch(system):
        raise ValueError(f"{system} is not a name of a system")
    ruleset = load(str(manifest["ruleset"]))
    runs_of_result = mlperf.submission_runs(name, ruleset.version)
    if runs_of_result is None:
        raise ValueError(f"ruleset {ruleset.version} has no benchmark {name}")
    return _ManifestFacts(manifest, system, SubmittedBenchmark(name=name, runs_of_result=runs_of_result), ruleset)


def _wanted_files(facts: _ManifestFacts) -> set[str]:
    """Return the paths of the files that a package must have, without its code.

    Args:
        facts: Manifest of the package, which names the system and the benchmark.
    """
    description = f"systems/{facts.system}.json"
    logs = [str(log) for log in facts.logs]
    return {HASHES, MANIFEST, REPORT, description, *logs}


def _check_contents(folder: Path, code: str, facts: _ManifestFacts) -> list[Verdict]:
    """Return a failed verdict for each file that is missing from a package, and for each that no package has.

    Only names are compared.

    Args:
        folder: Folder of the package.
        code: Path of the folder in the package that has the code, whose files are not looked at.
        facts: Manifest of the package, which tells the files that it must have.
    """
    wanted = _wanted_files(facts)
    optional = {str(log.with_suffix(FRAMEWORK_LOG)) for log in facts.logs}  # such as result_0.stderr
    present: set[str] = set()
    for name in package.files_below(folder):
        is_code = name.startswith(f"{code}/")
        if not is_code and name not in optional:
            present.add(name)
    missing = wanted - present
    unwanted = present - wanted
    verdicts = []
    for name in sorted(missing | unwanted):
        what = "is missing" if name in missing else "is nothing that a package holds"
        verdicts.append(judged("contents", good=False, found=f"{printable(name)} {what}"))
    return verdicts


def _check_figures(folder: Path, facts: _ManifestFacts, ask_official: bool) -> list[Verdict]:
    """Check the logs of a package again, compute its manifest and report from them, and return the verdicts on all.

    Args:
        folder: Folder of the package.
        facts: Manifest of the package.
        ask_official: Whether to run mlperf-logging's tools, too.

    Returns:
        The verdicts on the logs, the manifest and the report, and those of mlperf-logging's tools if asked for. If
        manifest and report cannot be computed, the only verdict says why.

    Raises:
        ValueError: mlperf-logging's tools are asked for, and not installed.
    """
    reports = [check_file(folder / log, facts.ruleset) for log in facts.logs]
    try:
        computed, refusals = package.contents_of(folder, reports, facts.system, facts.ruleset)
    except (ValueError, KeyError, OSError) as error:
        return [judged("package", good=False, found=printable(str(error)))]
    refusals += _refusals_by_code_and_date(folder, facts, reports)
    verdicts = [judged(printable(refusal.file), good=False, found=refusal.text) for refusal in refusals]
    if not refusals:
        found = f"ruleset {facts.ruleset.version} met by {counted(len(reports), 'log')}"
        verdicts.append(judged("logs", good=True, found=found))
    verdicts.append(_check_manifest(folder, computed.manifest, facts.manifest))
    verdicts.append(_check_report(folder, computed.report_text))
    if ask_official:
        verdicts += official_answers(folder, computed.manifest)
    return verdicts


def _refusals_by_code_and_date(folder: Path, facts: _ManifestFacts, reports: Sequence[Report]) -> list[Refusal]:
    """Return the reasons to refuse a package that its code and the date of its commit give.

    Args:
        folder: Folder of the package.
        facts: Manifest of the package, which names the commit.
        reports: The reports on the logs in the package.
    """
    first_run = reports[0].run  # stands for all: `package.contents_of` refuses runs of different code
    code = folder / code_folder(facts.benchmark.name)
    refusals = [*refusals_by_code(first_run, code), *refusals_by_logging_code(reports, code)]
    try:
        commit_made_ms = committed_code.committed_ms(str(facts.manifest.get("commit")))
    except ValueError:  # git does not give the commit: `_check_code` has the verdict on that
        return refusals
    return [*refusals, *refusals_by_date(reports, commit_made_ms)]


def _check_report(folder: Path, wanted_text: str) -> Verdict:
    """Compare a package's report with the report that its logs give.

    Args:
        folder: Folder of the package.
        wanted_text: The report that the logs give.
    """
    if read_stated(folder / REPORT) == wanted_text.encode():
        return judged(REPORT, good=True, found="every figure is the logs'")
    return judged(REPORT, good=False, found="differs from the report that the logs give")


def _check_manifest(folder: Path, wanted: JsonObject, stated: JsonObject) -> Verdict:
    """Compare a package's manifest, byte by byte, with the manifest that its logs give.

    Args:
        folder: Folder of the package.
        wanted: The manifest that the logs give.
        stated: The manifest of the package, for the message on what differs.
    """
    if read_stated(folder / MANIFEST) == package.as_bytes(wanted):
        return judged(MANIFEST, good=True, found=f"score {wanted['minutes']!r} min, from the logs")
    return judged(MANIFEST, good=False, found=_difference(wanted, stated))


def _difference(wanted: Mapping[str, Any], stated: Mapping[str, Any]) -> str:
    """Return which fields of a manifest differ from what the logs say; if none do, that its form differs.

    Args:
        wanted: The manifest that the logs give.
        stated: The manifest of the package.
    """
    fields_of_both = {**wanted, **stated}
    differing = [name for name in fields_of_both if wanted.get(name) != stated.get(name)]
    if not differing:  # the bytes differ all the same
        return "not in the form of a package's"
    return f"differs from what the logs say in: {printable(', '.join(differing))}"


def _check_code(folder: Path, commit: str) -> list[Verdict]:
    """Compare a package's code with the commit that its manifest names, and return the verdicts.

    Args:
        folder: Folder of the code in the package.
        commit: Hash of the commit.

    Returns:
        A failed verdict for each file that differs between the two or that only one of them has; a good one if there is
        no such file, and a warning with it if files are no longer executable. If git does not give the commit's code,
        the only verdict is that of `_code_not_compared`.
    """
    try:
        code_of_commit = committed_code.code_of(commit)
    except ValueError as error:
        return [_code_not_compared(folder, error)]
    present_files = package.files_below(folder)
    wanted_hashes = {name: hashlib.sha256(file.content).hexdigest() for name, file in code_of_commit.items()}
    present_hashes = {name: sha256(path) for name, path in present_files.items()}
    problems = Problems(
        unwanted=f"is none of commit {commit}",  # of a file that only the package has
        missing=f"is missing; commit {commit} has it",  # of a file that only the commit has
        altered=f"differs from commit {commit}",
    )
    differences = judge_differences("code", wanted_hashes, present_hashes, problems)
    if differences:
        return differences
    verdict_on_files = judged(
        "code", good=True, found=f"{counted(len(present_hashes), 'file')}, those of commit {commit}"
    )
    executable = [path for name, path in present_files.items() if code_of_commit[name].is_executable]
    return [verdict_on_files, *_lost_permissions(executable)]


def _lost_permissions(executable: Sequence[Path]) -> list[Verdict]:
    """Return a warning if files of a package's code are no longer executable, else none.

    It is not a failure: a download from a web server, for example of a published folder, keeps no permissions.

    Args:
        executable: The files that are executable in their commit.
    """
    lost = [path for path in executable if not path.stat().st_mode & _ANYBODY_MAY_EXECUTE]
    if not lost:
        return []
    found = f"{counted(len(lost), 'file')} of the code cannot be executed, such as {printable(lost[0].name)}"
    fix = "allow it by `chmod +x`; their content is right, and a download keeps no permissions"
    return [judged("code", good=False, found=found, fix=fix, bad=WARNING)]


def _code_not_compared(folder: Path, error: ValueError) -> Verdict:
    """Return the verdict on code that was not compared, because its commit could not be read from git.

    It is fatal if this shows a fault of the package, and unknown if, for instance, there is no git or no checkout here.

    Args:
        folder: Folder of the code in the package. Without run_and_time.sh in it, the verdict is fatal.
        error: The error in reading the commit. An UnknownCommitError is a fault of the package.
    """
    if not (folder / "run_and_time.sh").is_file():
        return judged("code", good=False, found="there is no run_and_time.sh")
    is_commit_missing = isinstance(error, committed_code.UnknownCommitError)
    severity = FATAL if is_commit_missing else UNKNOWN  # any other error: no git or no whole checkout, mostly
    return judged("code", good=False, found=f"not compared: {printable(str(error), 500)}", bad=severity)


def _check_hashes(folder: Path) -> list[Verdict]:
    """Compare the hashes of a package's files with the hashes in its SHA256SUMS.

    - If SHA256SUMS is what these files give, byte by byte, the verdict is good and states the package's id.
    - If files were altered, are missing or are not listed, there is a failed verdict for each.
    - If all hashes are right, but in another order or form, there is one failed verdict: the id would be another.

    Args:
        folder: Folder of the package.
    """
    listed = read_stated(folder / HASHES)
    computed = hashes(folder).encode()
    if listed == computed:
        files = counted(computed.count(b"\n"), "file")  # one line for each file
        return [judged(HASHES, good=True, found=f"{files}; the id of the package is {sha256(folder / HASHES)}")]
    problems = Problems(unwanted="is not listed", missing="is missing", altered="was altered")
    differences = judge_differences(HASHES, hash_by_name(listed), hash_by_name(computed), problems)
    if differences:
        return differences
    return [judged(HASHES, good=False, found="not in the order or form that it was written in")]


# --- a published folder ---


def verify_site(folder: Path, signers: Path | None, *, ask_official: bool = False) -> list[Verdict]:
    """Check a published folder again: its signature, hashes, packages, table, page and other files.

    The table, the page and the other files are checked only if nothing before has failed.

    Args:
        folder: The published folder.
        signers: File of allowed signers (see ssh-keygen(1)); None accepts any signer.
        ask_official: Whether to run mlperf-logging's tools on each package, too.

    Returns:
        The verdicts. One on a package names the package's folder in `where`.

    Raises:
        ValueError: mlperf-logging's tools are asked for, and not installed.
    """
    folder = folder.resolve()
    strange = strange_files(folder)
    if strange:  # no other file may be read then
        return strange

    verdicts = [check_signature(folder, signers), _check_site_hashes(folder)]
    verdicts += _check_packages(folder, ask_official=ask_official)
    if worst(verdicts) == FATAL:  # table and page are made from the packages, so these must be good
        return verdicts
    return [*verdicts, *_check_pages(folder), *_check_published_names(folder)]


def _check_packages(folder: Path, *, ask_official: bool) -> list[Verdict]:
    """Check each package of a published folder again.

    A good package also fails if its folder is not named by its id: else one package could stand in the table twice.

    Args:
        folder: The published folder.
        ask_official: Whether to run mlperf-logging's tools on each package, too.

    Returns:
        The verdicts, each with the package's folder in `where`.

    Raises:
        ValueError: mlperf-logging's tools are asked for, and not installed.
    """
    verdicts = []
    for name in _published_packages(folder):
        verdicts_on_package = verify(folder / name, ask_official=ask_official)
        is_good = worst(verdicts_on_package) != FATAL
        if is_good:  # only then is its id worth anything
            verdicts_on_package += _check_place(folder, name)
        verdicts += [replace(each, where=name) for each in verdicts_on_package]
    return verdicts


def _check_place(folder: Path, name: str) -> list[Verdict]:
    """Return a failed verdict if a package of a published folder is not where its id places it, else none.

    Args:
        folder: The published folder.
        name: Path of the package in it, such as `packages/973b8c5d03dbf911/Example`.
    """
    wanted = f"{PACKAGES}/{published_name(folder / name)}"
    if name.startswith(f"{wanted}/"):
        return []
    return [judged("contents", good=False, found=f"not in {wanted}, the folder of its id")]


def _published_packages(folder: Path) -> list[str]:
    """Return the paths of the packages in a published folder, such as `packages/973b8c5d03dbf911/Example`, sorted."""
    manifests = sorted((folder / PACKAGES).glob(f"*/*/{MANIFEST}"))
    return [manifest.parent.relative_to(folder).as_posix() for manifest in manifests]


def _check_pages(folder: Path) -> list[Verdict]:
    """Make the table and the page of a published folder again, and compare them with those in the folder."""
    verdicts = []
    for file, text in pages_of(folder).items():
        is_same = read_stated(folder / file) == text.encode()
        message = "equal to what the packages say" if is_same else "differs from what the packages say"
        verdicts.append(judged(file, good=is_same, found=message))
    return verdicts


def _check_published_names(folder: Path) -> list[Verdict]:
    """Return a failed verdict for each strange file of a published folder: in no package, and none of its own.

    Its own files are those that the command `publish` writes: the table, the page, the hashes and their signature.

    Args:
        folder: The published folder.

    Returns:
        The verdicts. If the folder has no package, one failed verdict that says so.
    """
    packages = _published_packages(folder)
    if not packages:
        return [judged("contents", good=False, found="no package, so nothing was published")]
    verdicts = []
    for name in package.files_below(folder):
        is_own = name in (TABLE, PAGE, HASHES, SIGNATURE)
        folder_of_package = "/".join(name.split("/")[:3])  # packages/ID/ORG of packages/ID/ORG/systems/node.json
        if not is_own and folder_of_package not in packages:
            verdicts.append(judged("contents", good=False, found=f"{printable(name)} is nothing that was published"))
    return verdicts


def _check_site_hashes(folder: Path) -> Verdict:
    """Compare the hashes of a published folder's files with those in its SHA256SUMS."""
    lines = []  # each `HASH  NAME`
    for line in hashes(folder).splitlines(keepends=True):
        is_of_signature = line.endswith(f"  {SIGNATURE}\n")
        if not is_of_signature:  # the signature is made after the list, so it is not in it
            lines.append(line)
    computed = "".join(lines).encode()
    is_as_listed = read_stated(folder / HASHES) == computed
    files = counted(len(lines), "file")
    return judged(HASHES, good=is_as_listed, found=files if is_as_listed else f"{files}, not those that it lists")


def check_signature(folder: Path, signers: Path | None) -> Verdict:
    """Check the signature of a published folder's SHA256SUMS, and return a verdict that says who signed.

    Args:
        folder: The published folder.
        signers: File of allowed signers (see ssh-keygen(1)), of whom one must have signed. None: anyone may have.

    Returns:
        The verdict. It is fatal if the signature does not fit SHA256SUMS or is by none of the signers, if SHA256SUMS is
        missing, or if ssh-keygen is not installed. A missing signature is fatal if `signers` are given, else unknown.
    """
    signature = folder / SIGNATURE
    if not signature.is_file():
        message = "signed by nobody: anyone can have made or altered this folder"
        severity = FATAL if signers else UNKNOWN  # without `signers`, nobody asked for a signature
        return judged(SIGNATURE, good=False, found=message, wanted="a signature", bad=severity)
    if not (folder / HASHES).is_file():
        return judged(SIGNATURE, good=False, found=f"signs {HASHES}, which is missing")
    try:
        return judged(SIGNATURE, good=True, found=_who_signed((folder / HASHES).read_bytes(), signature, signers))
    except ValueError as error:  # ssh-keygen refuses the signature, or is not installed
        return judged(SIGNATURE, good=False, found=str(error))


def _who_signed(signed: bytes, signature: Path, signers: Path | None) -> str:
    """Return in the words of ssh-keygen who signed some bytes.

    Args:
        signed: The bytes.
        signature: File of the signature.
        signers: File of allowed signers; None: anyone may have signed.

    Raises:
        ValueError: ssh-keygen refuses the signature, or is not installed.
    """
    if signers is None:
        words = ssh_keygen("check-novalidate", "-n", NAMESPACE, "-s", str(signature), data=signed)
        return f"{printable(words, 500)} (nobody vouches for the key: give --signers)"
    by_signers = ("-s", str(signature), "-f", str(signers))
    names = ssh_keygen("find-principals", *by_signers).splitlines()  # a line for each name of the signer
    if not names:
        raise ValueError("ssh-keygen -Y find-principals: it names no signer")
    words = ssh_keygen("verify", "-n", NAMESPACE, *by_signers, "-I", names[0], data=signed)  # it asks for a name
    return printable(words, 500)


def ssh_keygen(*arguments: str, data: bytes = b"") -> str:
    """Run `ssh-keygen -Y`, and return what it prints.

    Args:
        arguments: Words after `-Y`, such as "sign", "-f", "key".
        data: Bytes on its standard input.

    Raises:
        ValueError: It refuses, or is not installed.
    """
    try:
        done = subprocess.run(["ssh-keygen", "-Y", *arguments], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise ValueError("ssh-keygen is not installed: apt-get install openssh-client") from None
    output = (done.stdout or done.stderr).decode("utf-8", "replace").strip()
    if done.returncode:
        raise ValueError(f"ssh-keygen -Y {arguments[0]}: {printable(output, 500)}")
    return output
