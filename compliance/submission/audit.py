"""`python -m compliance audit`: a whole results repository, a row a submission, as text, HTML, CSV and JSON."""

import argparse
import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from compliance.check import NOTHING, check_file
from compliance.findings import FileReport, Finding, check_replaceable
from compliance.official.rule_files import versions
from compliance.rules import Ruleset, load
from compliance.submission.runs import Checked, benchmark_of, check_between
from compliance.submission.score import score_runs
from runlog.reader import HeldLog
from runlog.text import cell, printable

LARGEST_LOG_BYTES = 1 << 28  # a log in an archive is held in memory while it is read
NEWEST = "4.0.0"  # with rules of ResNet
_PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a reviewer should ask about a submission: a rule that its logs break, and the first line that does."""

    rule: str
    kind: str  # class of the rule
    official: bool
    severity: str
    logs: int
    file: str
    line: int | None
    actual: str


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One system's runs of one benchmark. Minutes are None where there is no score, and `problem` says why."""

    round: str
    submitter: str
    system: str
    benchmark: str
    division: str
    ruleset: str
    logs: int
    global_batch: int | None
    official_passes: int
    strict_passes: int
    official_minutes: float | None
    strict_minutes: float | None
    rcp: str
    scaling: float
    convergence: str
    problem: str
    questions: tuple[Question, ...]


def command(options: argparse.Namespace) -> int:
    """`python -m compliance audit`; 0 whatever it finds, as a finding is no failure of the audit."""
    for path, form in ((options.html, _template().partition("{{")[0]), (options.csv, as_csv([]))):
        if path:
            check_replaceable(path, form)
    submissions = audit(options.path, options.ruleset)
    if not submissions:
        raise ValueError(f"{options.path}: no result_*.txt in it; give a results repository, or an archive of one")
    for path, write in ((options.html, as_html), (options.csv, as_csv)):
        if path:
            path.write_text(write(submissions), encoding="utf-8")
    print(as_json(submissions) if options.json else as_text(submissions), end="")
    return 0


def audit(path: Path, ruleset: str | None = None) -> list[Submission]:
    """The submissions below the folder, or in the tar archive, `path`.

    `ruleset` None: that of the round which a folder's name says, else the newest. Raises ValueError for an archive
    that cannot be read.
    """
    loaded: dict[str, Ruleset] = {}
    groups: dict[PurePosixPath, list[Checked]] = {}
    for count, (done, name, log) in enumerate(_logs(path), 1):
        _progress(done, count)
        version = ruleset or _version(name)
        if version not in loaded:
            loaded[version] = load(version)
        groups.setdefault(name.parent, []).append(_checked(name, log, loaded[version]))
    seen: dict[tuple[object, ...], tuple[PurePosixPath, str]] = {}
    return [_submission(folder, groups[folder], loaded[ruleset or _version(folder)], seen) for folder in sorted(groups)]


def _progress(done: float, logs: int) -> None:
    """A bar on a terminal, and nothing elsewhere."""
    if sys.stderr.isatty():
        bar = "#" * round(40 * done)
        print(f"\r[{bar:.<40}] {logs} logs", end="" if done < 1 else "\n", file=sys.stderr, flush=True)


class _Header(tarfile.TarInfo):
    """A damaged header is an error: tarfile takes one that is not the first for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf and not any(buf):
                raise  # the regular end
            raise tarfile.ReadError(str(error)) from None


def _logs(path: Path) -> Iterator[tuple[float, PurePosixPath, Path | str]]:
    """Share that is done, name and log of each result_*.txt; of a log that cannot be read, why."""
    if path.is_dir():
        logs = sorted(path.rglob("result_*.txt"))
        for count, log in enumerate(logs, 1):
            yield count / len(logs), PurePosixPath(log.relative_to(path)), log
        return
    size = path.stat().st_size
    with path.open("rb") as stream:
        try:
            start = stream.peek(6)
            # not unpacked by tarfile, which passes over a wrong checksum
            unpack = next((opened for magic, opened in _PACKED.items() if start.startswith(magic)), None)
            unpacked = unpack(stream) if unpack else stream
            with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as members:
                for member in members:
                    name = PurePosixPath(member.name)
                    if name.match("result_*.txt"):
                        yield stream.tell() / size, name, _held(member, members)
            while unpacked.read(1 << 20):
                pass  # the checksum comes last
        except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            raise ValueError(f"{path}: neither a folder nor a whole tar archive: {printable(str(error))}") from None


def _held(member: tarfile.TarInfo, members: tarfile.TarFile) -> Path | str:
    content = members.extractfile(member) if member.isfile() else None
    if content is None:
        return "no file but a link or folder in the archive"
    if member.size > LARGEST_LOG_BYTES:
        return f"over {LARGEST_LOG_BYTES >> 20} MiB"
    held = HeldLog(member.name)
    held.data = content.read()
    return held


def _version(name: PurePosixPath) -> str:
    found = re.search(r"v(\d+\.\d+)(?=$|/)", str(name))
    version = f"{found[1]}.0" if found else NEWEST
    return version if version in versions() else NEWEST


def _checked(name: PurePosixPath, log: Path | str, ruleset: Ruleset) -> Checked:
    try:
        if isinstance(log, str):
            raise ValueError(log)
        findings, run = check_file(log, ruleset)
    except (ValueError, OSError) as error:
        findings, run = (_asked("log", printable(str(error)), "ask for the log", severity="error"),), NOTHING
    return Checked(path=Path(name.name), findings=findings, run=run)


def _asked(rule: str, actual: str, fix: str, *, severity: str = "warning") -> Finding:
    """What only a whole repository shows."""
    return Finding(
        rule=rule,
        severity=severity,
        line=None,
        expected="",
        actual=actual,
        fix=fix,
        kind="plausibility",
        source="this project",
        official=severity == "error",
    )


def _elsewhere(
    folder: PurePosixPath, checked: Sequence[Checked], seen: dict[tuple[object, ...], tuple[PurePosixPath, str]]
) -> list[list[Finding]]:
    """Runs that stand in a submission before this one, too: one start, one stop, one series of accuracies."""
    found = []
    for one in checked:
        run = one.run
        itself = (run.start_ms, run.stop_ms, *(evaluation.value for evaluation in run.evaluations))
        where, file = seen.setdefault(itself, (folder, one.path.name)) if run.start_ms is not None else (folder, "")
        actual = f"the run of {printable(file)} of {printable(str(where))}"
        found.append([] if where == folder else [_asked("run-elsewhere", actual, "ask which system ran it")])
    return found


def _submission(
    folder: PurePosixPath,
    checked: Sequence[Checked],
    ruleset: Ruleset,
    seen: dict[tuple[object, ...], tuple[PurePosixPath, str]],
) -> Submission:
    checked = sorted(checked, key=lambda one: (len(one.path.name), one.path.name))
    parts = folder.parts
    at = parts.index("results") if "results" in parts[1:] else 0
    names = (parts[at - 1], *parts[at + 1 :], "", "") if at else ("", "", folder.name)
    between = check_between(checked, ruleset)
    reports = [
        FileReport(file=one.path.name, findings=(*one.findings, *others, *more))
        for one, others, more in zip(checked, between, _elsewhere(folder, checked, seen), strict=True)
    ]
    first = next((one.run for one in checked if one.run is not NOTHING), NOTHING)
    minutes: dict[str, float | None] = {}
    problem, batch, rcp, scaling, convergence = "", None, "not applied", 1.0, ""
    for by in ("strict", "official"):
        try:
            scored = score_runs(checked, ruleset, by)
        except ValueError as error:
            minutes[by], problem = None, printable(str(error), 300)
            continue
        minutes[by] = scored.minutes if by == "strict" else _scaled(scored.unscaled_minutes, scored.scaling)
        problem = problem or scored.problem
        batch, rcp, scaling, convergence = scored.global_batch, scored.rcp, scored.scaling, scored.convergence
    benchmark = benchmark_of(first, ruleset)
    if benchmark and len(checked) != benchmark.runs:
        problem = problem or f"{len(checked)} logs; a submission has {benchmark.runs}"
    return Submission(
        round=printable("/".join(parts[: max(at - 1, 0)])),
        submitter=printable(names[0]),
        system=printable(names[1]),
        benchmark=printable(names[2]),
        division=printable(first.values.get("submission_division", "")),
        ruleset=ruleset.version,
        logs=len(checked),
        global_batch=batch,
        official_passes=sum(report.official for report in reports),
        strict_passes=sum(report.strict for report in reports),
        official_minutes=minutes["official"],
        strict_minutes=minutes["strict"],
        rcp=rcp,
        scaling=scaling,
        convergence=convergence,
        problem=problem,
        questions=tuple(_questions(reports)),
    )


def _scaled(minutes: float | None, scaling: float) -> float | None:
    return None if minutes is None else minutes * scaling


def _questions(reports: Sequence[FileReport]) -> Iterator[Question]:
    """Each rule that a log breaks once, errors first."""
    found: dict[str, list[tuple[str, Finding]]] = {}
    for report in reports:
        for finding in report.findings:
            if finding.severity != "info":
                found.setdefault(finding.rule, []).append((report.file, finding))
    for rule, breaches in sorted(found.items(), key=lambda item: (item[1][0][1].severity, item[0])):
        file, one = breaches[0]
        yield Question(
            rule=rule,
            kind=one.kind,
            official=one.official,
            severity=one.severity,
            logs=len({name for name, _ in breaches}),
            file=printable(file),
            line=one.line,
            actual=printable(one.actual, 1000),
        )


# --- forms ---

_COLUMNS = [field.name for field in fields(Submission) if field.name != "questions"]


def as_json(submissions: Sequence[Submission]) -> str:
    return json.dumps({"submissions": [asdict(one) for one in submissions]}, indent=2) + "\n"


def as_csv(submissions: Sequence[Submission]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_COLUMNS, "errors", "warnings"])
    for one in submissions:
        by = {
            severity: " ".join(question.rule for question in one.questions if question.severity == severity)
            for severity in ("error", "warning")
        }
        cells = [asdict(one)[name] for name in _COLUMNS]
        writer.writerow([cell(value) for value in (*cells, by["error"], by["warning"])])
    return stream.getvalue()


def as_text(submissions: Sequence[Submission]) -> str:
    lines = []
    for one in submissions:
        shown = [f"{m:.4f}" if m is not None else "none" for m in (one.official_minutes, one.strict_minutes)]
        name = f"{one.round or '-'} {one.submitter} {one.system} {one.benchmark}"
        verdicts = f"official {one.official_passes}/{one.logs}, {shown[0]} min; strict {one.strict_passes}/{one.logs}"
        lines.append(f"{name}: {verdicts}, {shown[1]} min; RCP {one.rcp}, x {one.scaling:.6f}")
        lines += [
            f"  {q.severity}: {q.rule}, {q.logs} log(s), {q.file}:{q.line or '-'}: {q.actual}" for q in one.questions
        ]
    official, strict = (sum(getattr(s, f"{by}_passes") for s in submissions) for by in ("official", "strict"))
    count = sum(one.logs for one in submissions)
    lines.append(f"{len(submissions)} submissions, {count} logs: official passes {official}, strict {strict}")
    return "\n".join(lines) + "\n"


def as_html(submissions: Sequence[Submission]) -> str:
    """One self-contained page: no script, nothing fetched."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_template()).render(submissions=submissions)


def _template() -> str:
    return Path(__file__).with_name("audit.html").read_text(encoding="utf-8")
