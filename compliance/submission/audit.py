"""`python -m compliance audit`: a whole results repository, a row a submission, as text, HTML, CSV and JSON.

Of power logs, SUBMITTER/results/SYSTEM/BENCHMARK/power/RESULT/node_N.txt, is asked what power_measurement.adoc
(mlcommons/training_policies, 2ddbe8a) says of readings: of every node, one a second at least, 60 at least, over the
whole timed portion. mlperf-logging's power_checker asks for the files alone.
"""

import argparse
import bz2
import functools
import gzip
import itertools
import json
import lzma
import re
import statistics
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from compliance.check import NOTHING, LoggedRun, Report, check_file
from compliance.forms import check_replaceable
from compliance.official.rule_files import versions
from compliance.rules import Finding, Ruleset, load
from compliance.strict.copies import marks
from compliance.submission.description import over_peak, read_description
from compliance.submission.package import rendered, template_text
from compliance.submission.runs import check_between
from compliance.submission.score import score_runs
from runlog import schema
from runlog.reader import Event, HeldLog, read_log
from runlog.text import csv_text, printable

LARGEST_LOG_BYTES = 1 << 28  # a log in an archive is held in memory while it is read
SYSTEMS, POWER = "systems/*.json", "power/*/node_*.txt"
PATTERNS = ("result_*.txt", POWER, SYSTEMS)
NEWEST = "4.0.0"  # with rules of ResNet
LEAST_READINGS = 60  # of power
MOST_MEDIAN_MS = 1_100  # a second, and a meter's own jitter
MOST_GAP_MS = 2_200  # a reading that is missing
T = TypeVar("T")
Nodes = dict[str, list[float]]  # {node_N.txt: the times of its readings in ms}
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
    not_judged: int  # logs of a benchmark that the ruleset has no rules for
    global_batch: int | None = None
    official_passes: int
    strict_passes: int
    official_minutes: float | None
    strict_minutes: float | None
    rcp: str = "not applied"
    scaling: float = 1.0
    convergence: str = ""
    problem: str
    questions: tuple[Question, ...]


@dataclass
class _Folder:
    """The logs of SUBMITTER/results/SYSTEM/BENCHMARK, and its system's description; empty without one."""

    name: PurePosixPath
    ruleset: Ruleset
    logs: list[Report] = field(default_factory=list)
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def submitter(self) -> str:
        return "".join(self.name.parts[-4:-3])


def command(options: argparse.Namespace) -> int:
    """`python -m compliance audit`; 0 whatever it finds, as a finding is no failure of the audit."""
    for path, form in ((options.html, template_text("audit.html").partition("{{")[0]), (options.csv, as_csv([]))):
        if path:
            check_replaceable(path, form)
    submissions = audit(options.path, options.ruleset)
    if not submissions:
        raise ValueError(f"{options.path}: no result_*.txt in it; give a results repository, or an archive of one")
    for path, write in ((options.html, as_html), (options.csv, as_csv)):
        if path:
            path.write_text(write(submissions), encoding="utf-8")
    said = json.dumps({"submissions": [asdict(one) for one in submissions]}, indent=2) + "\n"
    print(said if options.json else as_text(submissions), end="")
    return 0


def audit(path: Path, ruleset: str | None = None) -> list[Submission]:
    """The submissions below the folder, or in the tar archive, `path`.

    `ruleset` None: that of the round which a folder's name says; logs of this project, which are of no round, are of
    NEWEST. Raises ValueError for an archive that cannot be read, and for others' logs of a round that no name says.
    """
    folders: dict[PurePosixPath, _Folder] = {}
    metered: defaultdict[PurePosixPath, defaultdict[str, Nodes]] = defaultdict(lambda: defaultdict(dict))
    described: dict[PurePosixPath, dict[str, Any] | str] = {}  # or why it cannot be read
    rules = functools.cache(load)
    for name, log in _logs(path):
        if name.match(POWER):
            times = _tried(_power_times, log)
            metered[name.parents[2]][name.parent.name][name.name] = [] if isinstance(times, str) else times
        elif name.match(SYSTEMS):
            described[name] = _tried(read_description, log)
        else:
            version = ruleset or _version(path, name.parent)
            one = _checked(name, log, rules(version or NEWEST))
            if not version and one.run is not NOTHING and not one.run.is_project_log:
                raise ValueError(
                    f"{path}: of which round is {name}? No folder above it names one that has rules; give --ruleset, "
                    f"one of {', '.join(versions())}"
                )
            folders.setdefault(name.parent, _Folder(name.parent, rules(version or NEWEST))).logs.append(one)
    seen: dict[tuple[object, ...], tuple[_Folder, str]] = {}
    submissions = []
    for name, folder in sorted(folders.items()):
        of_system: list[Finding] = []
        if folder.submitter and described:  # where there is none at all, the logs alone are audited
            file = name.parents[2] / "systems" / f"{name.parent.name}.json"
            said = described.get(file, f"{file}: missing")
            if isinstance(said, str):
                of_system = [_asked("system-description", said, "ask for the description")]
            else:
                folder.description = said
        asked = _elsewhere(folder, seen)
        for one in folder.logs:
            peak = over_peak(one.run, folder.description, folder.ruleset.strict["system-description"])
            asked.setdefault(one.path.name, []).extend((*of_system, *peak, *_of_power(one, metered[name])))
        submissions.append(_submission(folder, asked))
    return submissions


class _Header(tarfile.TarInfo):
    """A damaged header is an error: tarfile takes one that is not the first for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":  # Debian's 3.11.2 calls no frombuf
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise  # the regular end
            raise tarfile.ReadError(str(error)) from None


def _logs(path: Path) -> Iterator[tuple[PurePosixPath, Path | str]]:
    """Name and content of each file of PATTERNS; of one that cannot be read, why."""
    if path.is_dir():
        for log in sorted(log for pattern in PATTERNS for log in path.rglob(pattern)):
            yield PurePosixPath(log.relative_to(path)), log
        return
    with path.open("rb") as stream:
        try:
            start = stream.peek(6)
            # not unpacked by tarfile, which passes over a wrong checksum
            unpack = next((opened for magic, opened in _PACKED.items() if start.startswith(magic)), None)
            unpacked = unpack(stream) if unpack else stream
            with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as members:
                for member in members:
                    name = PurePosixPath(member.name)
                    if any(map(name.match, PATTERNS)):
                        yield name, _held(member, members)
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


def _version(root: Path, name: PurePosixPath) -> str | None:
    """The ruleset of the round that the innermost folder (or archive) above SUBMITTER/results names; None without."""
    parts = (*root.resolve().parts, *name.parts)
    below = parts[::-1].index("results") + 1 if "results" in parts else 0
    for part in parts[::-1][below:]:
        if rounds := {*re.findall(r"(?<![A-Za-z0-9])v(\d+\.\d+)(?!\d)", part)}:
            version = f"{rounds.pop()}.0"
            return version if not rounds and version in versions() else None
    return None


def _tried(read: Callable[[Path], T], file: Path | str) -> T | str:
    """What `read` makes of a file, or why it cannot be read."""
    try:
        return file if isinstance(file, str) else read(file)
    except (ValueError, OSError) as error:
        return printable(str(error))


def _checked(name: PurePosixPath, log: Path | str, ruleset: Ruleset) -> Report:
    report = _tried(lambda path: check_file(path, ruleset), log)
    if isinstance(report, str):
        report = Report(path=Path(), findings=(_asked("log", report, "ask for the log", severity="error"),))
    return replace(report, path=Path(name.name))


def _power_times(log: Path) -> list[float]:
    """The times of a power log's readings in ms, in its order."""
    return [entry.time_ms for entry in read_log(log) if isinstance(entry, Event) and entry.key == "power_reading"]


def _asked(rule: str, actual: str, fix: str, *, severity: str = "warning") -> Finding:
    bad = severity == "error"
    return Finding(
        rule=rule, severity=severity, actual=actual, fix=fix, kind="plausibility", source="this project", official=bad
    )


def _elsewhere(folder: _Folder, seen: dict[tuple[object, ...], tuple[_Folder, str]]) -> dict[str, list[Finding]]:
    """By log: that its run, or its times or accuracies alone, stand in a submission before this one, too.

    A submission with power logs holds the runs of one without them by intent. Those of an earlier round may be
    submitted again: training_rules.adoc, section Results Resubmission.
    """
    found: dict[str, list[Finding]] = {}
    for one in folder.logs:
        places = []
        for mark in marks(one.run):
            first_folder, first_file = seen.setdefault(mark, (folder, one.path.name))
            places.append((mark.what, first_folder, first_file))
        elsewhere = next((place for place in places if place[1] is not folder), None)
        if elsewhere is None:
            continue
        what, other, file = elsewhere
        actual, severity = f"the {what} of {printable(file)} of {printable(str(other.name))}", "warning"
        same_owner = folder.submitter.partition("-")[0] == other.submitter.partition("-")[0]
        if folder.submitter != other.submitter and same_owner and "power" in folder.submitter:
            actual, severity = f"{actual}: this is its submission with power logs", "info"
        elif folder.name.parts[0] != other.name.parts[0]:
            same = "identical" if folder.description == other.description else "not identical"
            same = same if folder.description and other.description else "missing"
            passes = "passes" if one.official else "does not pass"
            actual += (
                f": a resubmission is allowed where system.json is identical (here: {same}) and the log passes the "
                f"new round's checker (it {passes}); training_rules.adoc, section Results Resubmission"
            )
        found[one.path.name] = [_asked("run-elsewhere", actual, "ask which system ran it", severity=severity)]
    return found


def _of_power(one: Report, power: Mapping[str, Nodes]) -> Iterator[Finding]:
    """What the power logs of a run, by RESULT, are asked where its submission has any."""
    files = power.get(one.path.stem, {})
    wanted = max(map(len, power.values()), default=0)
    numbers = sorted(int(number[1]) for file in files if (number := re.fullmatch(r"node_(\d+)\.txt", file)))
    fix = "ask for the meter's own log"
    if numbers != list(range(wanted)):
        there = printable(", ".join(sorted(files)) or "none")
        actual = f"power logs: {there}; due are nodes 0 to {wanted - 1}, as of another run"
        yield _asked("power-nodes", actual, fix)
    for file, times in sorted(files.items()):
        yield from (_asked(rule, f"{file}: {what}", fix) for rule, what in _of_node(times, one.run))


def _of_node(times: Sequence[float], run: LoggedRun) -> Iterator[tuple[str, str]]:
    if len(times) < LEAST_READINGS:
        yield "power-readings", f"{len(times)} readings; the rules ask for {LEAST_READINGS}"
    if len(times) < 2:
        return
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    median, largest = statistics.median(gaps), max(gaps)
    if median > MOST_MEDIAN_MS or largest > MOST_GAP_MS:
        found = f"a reading every {median / 1000:.3g} s (median), the largest gap {largest / 1000:.3g} s"
        yield "power-interval", f"{found}; the rules ask for one a second"
    if min(gaps) < 0:
        yield "power-time", "its readings are not in the order of their time"
    if run.start_ms is not None and run.stop_ms is not None:
        late, early = times[0] - run.start_ms, run.stop_ms - times[-1]
        if max(late, early) > MOST_GAP_MS:
            found = f"readings from {late / 1000:.3g} s after run_start to {early / 1000:.3g} s before run_stop"
            yield "power-time", f"{found}; the rules ask for the whole timed portion"


_OF_SCORE = ("global_batch", "rcp", "scaling", "convergence")


def _submission(folder: _Folder, asked: Mapping[str, list[Finding]]) -> Submission:
    checked, ruleset = sorted(folder.logs, key=lambda one: (len(one.path.name), one.path.name)), folder.ruleset
    parts = folder.name.parts
    at = parts.index("results") if "results" in parts[1:] else 0
    names = (parts[at - 1], *parts[at + 1 :], "", "") if at else ("", "", folder.name.name)
    compared = check_between(checked, ruleset)
    reports = [replace(one, findings=(*one.findings, *asked[one.path.name])) for one in compared]
    first = next((one.run for one in checked if one.run is not NOTHING), NOTHING)
    minutes: dict[str, float | None] = {"strict": None, "official": None}
    problem, scored = "", None
    for by in minutes:
        try:
            scored = score_runs(checked, ruleset, by)
        except ValueError as error:
            problem = printable(str(error), 300)
            continue
        minutes[by], problem = scored.minutes, problem or scored.problem
        if by == "official":  # what result_summarizer prints, whatever rcp_checker says
            minutes[by] = None if scored.unscaled_minutes is None else scored.unscaled_minutes * scored.scaling
    of_score = {} if scored is None else {name: getattr(scored, name) for name in _OF_SCORE}
    benchmark = ruleset.benchmarks.get(first.text(schema.SUBMISSION_BENCHMARK))
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
        not_judged=sum(any(f.rule == "known-benchmark" for f in report.findings) for report in reports),
        official_passes=sum(report.official for report in reports),
        strict_passes=sum(report.strict for report in reports),
        official_minutes=minutes["official"],
        strict_minutes=minutes["strict"],
        problem=problem,
        questions=tuple(_questions(reports)),
        **of_score,
    )


def _questions(reports: Sequence[Report]) -> Iterator[Question]:
    """Each rule that a log breaks once, errors first."""
    found: defaultdict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for report in reports:
        for finding in report.findings:
            if finding.severity != "info":
                found[finding.rule].append((printable(str(report.path)), finding))
    for rule, breaches in sorted(found.items(), key=lambda item: (item[1][0][1].severity, item[0])):
        file, one = breaches[0]
        yield Question(
            rule=rule,
            kind=one.kind,
            official=one.official,
            severity=one.severity,
            logs=len({name for name, _ in breaches}),
            file=file,
            line=one.line,
            actual=printable(one.actual, 1000),
        )


# --- forms ---

_COLUMNS = [field.name for field in fields(Submission) if field.name != "questions"]


def as_csv(submissions: Sequence[Submission]) -> str:
    rows = []
    for one in submissions:
        asked = {of: " ".join(q.rule for q in one.questions if f"{q.severity}s" == of) for of in ("errors", "warnings")}
        rows.append({name: getattr(one, name) for name in _COLUMNS} | asked)
    return csv_text([*_COLUMNS, "errors", "warnings"], rows)


def as_text(submissions: Sequence[Submission]) -> str:
    lines = []
    for one in submissions:
        shown = [f"{m:.4f} min" if m is not None else "no score" for m in (one.official_minutes, one.strict_minutes)]
        name = f"{one.round or '-'} {one.submitter} {one.system} {one.benchmark}"
        verdicts = f"official {one.official_passes}/{one.logs}, {shown[0]}; strict {one.strict_passes}/{one.logs}"
        verdicts += f", {shown[1]}; RCP {one.rcp}, x {one.scaling:.6f}{f' ({one.problem})' if one.problem else ''}"
        lines.append(f"{name}: {'not judged' if one.not_judged == one.logs else verdicts}")
        for q in one.questions:
            lines.append(f"  {q.severity}: {q.rule}, {q.logs} log(s), {q.file}:{q.line or '-'}: {q.actual}")
    official, strict = (sum(getattr(s, f"{by}_passes") for s in submissions) for by in ("official", "strict"))
    count, unjudged = (sum(getattr(s, name) for s in submissions) for name in ("logs", "not_judged"))
    passes = f"official passes {official}, strict {strict}; {unjudged} not judged"
    lines.append(f"{len(submissions)} submissions, {count} logs: {passes}")
    return "\n".join(lines) + "\n"


def as_html(submissions: Sequence[Submission]) -> str:
    return rendered("audit.html", submissions=submissions)
