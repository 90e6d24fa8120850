"""Sections on where it all comes from: the check's findings, the runs' provenance, commands, quoted log lines."""

import functools
import io
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runlog import schema
from runlog.reader import open_log, table_of
from runlog.text import called, visible
from scoring.record import FACTS, Record, config_of, nodes_of, section
from scoring.report import blocks
from scoring.report.blocks import NOT_SAID, Column, Inline, Paragraph, Section, Table, Text, at_line, field, run_link
from scoring.report.content import NOT_MEASURED, Report, ReportedRun
from scoring.report.text import counted

LINE_BYTES = 8192  # of a line that is read to be quoted
QUOTED_CHARS = 600  # of a log line; a longer one is cut, and says so
MOST_DEVICES = 64  # of a topology that is shown
LINKS = "NV: NVLinks; PIX, PXB: PCIe switches; PHB: host bridge; NODE: within a socket; SYS: between sockets."
NEARNESS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")  # page.css shades each
HEADER_TABLES = {
    "hardware": "Hardware",
    "dataset": "Data set",
    "packages": "Packages",
    "config": "Configuration",
    "program": "Training program",
}
PASSPORTS = {  # fields of the header's `dataset`
    "train": "training data",
    "train_source": "training data before it was packed",
    "eval": "evaluation data",
    "eval_source": "evaluation data before it was packed",
}
NAME = re.compile(r"[A-Z][A-Z0-9_]*")  # of a variable; any other key of a log is no word for a shell
NOT_REPEATED = frozenset({"SEED", "RESULT_FILE", "DGXSYSTEM"})  # stated apart, or of the one run only


def compliance(report: Report) -> Section:
    """Show what `python -m compliance check` found."""
    parts: list[Any] = []
    found: list[tuple[ReportedRun, dict[str, Any]]] = []
    for run in report.runs:
        if run.findings is None:
            parts.append(Paragraph(text=["Not checked: ", run_link(run), "."], absent=True))
            continue
        entries, official = run.findings["findings"], run.findings.get("mlperf_logging")
        found += [(run, entry) for entry in entries]
        errors = sum(entry["severity"] == "error" for entry in entries)
        tool = f"; mlperf-logging: {official.get('verdict')}" if isinstance(official, dict) else ""
        text = f": {run.findings['verdict']}, {counted(errors, 'error')}{tool}"
        parts.append(Paragraph(text=["✓ " if run.findings["verdict"] == "pass" else "✕ ", run_link(run), text]))
    columns: list[Column[tuple[ReportedRun, dict[str, Any]]]] = [
        Column("run", lambda row: run_link(row[0])),
        Column("severity", lambda row: str(row[1]["severity"])),
        Column("rule", lambda row: Text(text=str(row[1]["rule"]), look="code")),
        Column("line", lambda row: at_line(row[0], row[1]["line"])),
        Column("expected", lambda row: str(row[1]["expected"])),
        Column("actual", lambda row: str(row[1]["actual"])),
        Column("what to do", lambda row: str(row[1]["fix"])),
    ]
    notes = [row for row in found if row[1]["severity"] == "info"]
    graver = [row for row in found if row[1]["severity"] != "info"]
    checked = any(run.findings is not None for run in report.runs)
    if graver:
        parts.append(blocks.table("Errors and warnings", graver, columns))
    elif checked:
        parts.append(Paragraph(text="No error and no warning."))
    if notes:
        parts.append(blocks.Fold(summary=f"{len(notes)} notes", blocks=[blocks.table("Notes", notes, columns[:-1])]))
    gist = f"{len(graver)} errors and warnings" if checked else "not checked"
    return Section(key="compliance", title="Compliance", gist=gist, blocks=parts)


def provenance(report: Report) -> Section:
    """Each run's log, code, machine and configuration; what two runs share stands once."""
    shown: dict[str, int] = {}  # header sections of earlier runs: their text and the run's number
    parts: list[Any] = []
    for run in report.runs:
        parts.append(blocks.Facts(items=_facts(run), run=run.number))
        for name, title in HEADER_TABLES.items():
            if not (content := run.record.header.get(name)):
                continue
            link = at_line(run, run.header_lines.get(name), "header")
            earlier = shown.setdefault(f"{name}{content!r}", run.number)
            if earlier != run.number:
                parts.append(Paragraph(text=[f"{title}: the same as of run {earlier} (", link, ")."]))
                continue
            if name == "hardware":
                parts += _topologies(run)
            table = [Paragraph(text=["From the ", link, "."]), _header_table(title, content)]
            parts.append(blocks.Fold(summary=f"{title} of run {run.number}", blocks=table))
    return Section(key="provenance", title="Provenance", gist=report.headline.runs[0].record.file, blocks=parts)


def _facts(run: ReportedRun) -> list[tuple[str, Inline]]:
    record = run.record
    facts: list[tuple[str, Inline]] = [
        ("log", Text(text=record.file, look="code")),
        ("SHA-256 of the log", Text(text=record.sha256, look="code")),
        ("read as", f"{record.format}, {record.lines:,} lines"),
        *((name.replace("_", " "), field(run, name)) for name in (*FACTS, "mode", "status")),
        ("seed", at_line(run, run.seed[1], str(run.seed[0])) if run.seed else NOT_SAID),
    ]
    if source := section(record, "source"):
        dirty = {True: "yes", False: "no"}.get(source.get("dirty"), "not said")  # type: ignore[arg-type]
        of_source = [
            ("commit", str(source.get("commit"))),
            ("uncommitted changes", dirty),
            ("lock file SHA-256", str(source.get("lock_sha256"))),
            ("image digest", str(source.get("image_digest") or "no image")),
        ]
        facts += [(name, at_line(run, run.header_lines.get("source"), value)) for name, value in of_source]
    facts += _passports(run)
    return facts + [("problem in the text", problem) for problem in record.problems]


def _passports(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Tell which bytes of its data set a run read, as far as its header says it."""
    dataset = section(run.record, "dataset")
    line = run.header_lines.get("dataset")
    facts: list[tuple[str, Inline]] = []
    for name, title in PASSPORTS.items():
        passport = table_of(schema.Passport, dataset.get(name))
        if passport is not None:
            files = "files" if passport.is_exact else "records with more in them than the images"
            shown = f"{passport.files:,} {files}, {passport.bytes:,} bytes, SHA-256 {passport.sha256}"
            facts.append((title, at_line(run, line, shown)))
    return facts


def _topologies(run: ReportedRun) -> list[Any]:
    """How the GPUs of each node are linked, near links darker; nodes that are alike have one table."""
    hosts: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for node in nodes_of(run.record):
        if rows := _links(node.get("topology")):
            hosts.setdefault(rows, []).append(str(node.get("host")))
    if not hosts:
        return [Paragraph(text=f"Topology of the GPUs: {NOT_MEASURED}.", absent=True)]
    tables = []
    for rows, alike in hosts.items():
        caption = f"Links between GPUs and network cards of {counted(len(alike), 'node')}: {', '.join(alike[:4])}"
        columns: list[Column[tuple[str, ...]]] = [Column("", lambda row: row[0])]
        for at, (name, *_) in enumerate(rows, 1):
            columns.append(Column(name, functools.partial(_link, at)))
        tables.append(blocks.table(caption, rows, columns))
    return [*tables, Paragraph(text=f"As nvidia-smi names them. {LINKS}")]


def _links(topology: Any) -> tuple[tuple[str, ...], ...]:
    """Each device's name and its links, of a matrix of a log; empty for anything else."""
    try:
        pairs = zip(topology["devices"], topology["links"], strict=True)
        rows = tuple((str(name), *map(str, links)) for name, links in pairs)
    except (TypeError, KeyError, ValueError):
        return ()
    return rows if len(rows) <= MOST_DEVICES and all(len(row) == len(rows) + 1 for row in rows) else ()


def _link(at: int, row: tuple[str, ...]) -> Text:
    kind = row[at].rstrip("0123456789")
    return Text(text=row[at], look=f"link {kind}" if kind in NEARNESS else "link")


def _header_table(title: str, content: Any) -> Table:
    """A section of the log's header."""
    rows: list[list[Inline]]
    if title == "Configuration" and isinstance(content, dict):
        entries = [(str(name), entry) for name, entry in content.items() if isinstance(entry, dict)]
        rows = [[Text(text=name, look="code"), str(e.get("value")), str(e.get("origin"))] for name, e in entries]
        return Table(caption="Resolved configuration", head=["name", "value", "set by"], rows=rows)
    rows = [[Text(text=name, look="code"), value] for name, value in _leaves(content)]
    return Table(caption=title, head=["name", "value"], rows=rows)


def _leaves(content: Any, path: str = "") -> list[tuple[str, str]]:
    """A nested value as (path, text) pairs."""
    if isinstance(content, dict) and content:
        parts = [(f"{path}.{key}" if path else str(key), value) for key, value in content.items()]
    elif isinstance(content, list) and any(isinstance(item, dict | list) for item in content):
        parts = [(f"{path}[{at}]", value) for at, value in enumerate(content)]
    else:
        return [(path, str(content))]
    return [pair for inner, value in parts for pair in _leaves(value, inner)]


def reproduce(report: Report, command: Sequence[str]) -> Section:
    """The commands that make runs, checks, figures and this report (of the words `command`) again."""
    shown = []
    folder = report.folder
    if folder:
        shown.append(Paragraph(text="Logs are named as seen from the folder that holds them all."))
    for run in report.runs:
        config = config_of(run.record)
        if "DGXSYSTEM" not in config:
            continue
        given = {"DGXSYSTEM": config["DGXSYSTEM"].get("value")} | {
            name: entry.get("value")
            for name, entry in config.items()
            if entry.get("origin") == "environment" and NAME.fullmatch(name) and name not in NOT_REPEATED
        }
        if run.seed:
            given["SEED"] = run.seed[0]
        exports = " ".join(f"{name}={shlex.quote(visible(value))}" for name, value in given.items())
        source = section(run.record, "source")
        checkout = f"git checkout {shlex.quote(visible(source['commit']))}\n" if source.get("commit") else ""
        dirty = " Its source tree had uncommitted changes, which the commit does not hold." * bool(source.get("dirty"))
        text = f"Run {run.number} again, with its seed.{dirty}"
        shown.append(Paragraph(text=text, code=f"{checkout}{exports} ./run_and_time.sh"))
    scoring = called("scoring")
    if any(run.record.format == "mllog" for run in report.runs):
        logs = _words(folder, (run.record.file for run in report.runs))
        shown.append(Paragraph(text="Check the logs.", code=f"{called('compliance')} check {logs}"))
    for group in report.groups:
        options = ["--protocol", report.protocol.name, *score_options(command, group.record)]
        logs = _words(folder, [*(run.record.file for run in group.runs), *options])
        shown.append(Paragraph(text=f"Score {group.name}.", code=f"{scoring} score {logs}"))
    shown.append(Paragraph(text="Write this report.", code=f"{scoring} report {_words(folder, command)}"))
    return Section(key="reproduce", title="Reproduce it", gist="the commands", blocks=shown)


def _words(folder: str, words: Iterable[str]) -> str:
    """Quote words for a shell; logs are named as seen from their folder, other files of this machine by their name."""
    names = (word.removeprefix(folder) for word in words)
    return shlex.join(visible(Path(name).name if Path(name).is_absolute() else name, 4096) for name in names)


def score_options(command: Sequence[str], record: Record) -> list[str]:
    """Return the report's options that `score` takes too, with the numbers of that system."""
    found: list[str] = []
    for at, word in enumerate(command):
        if word in ("--skip", "--runs", "--segment", "--format"):
            found += command[at : at + 2]
    if record.devices is not None and (record.described_by or "devices" in record.from_options):
        found += ["--devices", str(record.devices)]
    if "batch_per_device" in record.from_options:
        found += ["--batch", str(record.batch_per_device)]
    return found


def log_lines(report: Report, linked: Any) -> Section:
    """The lines of the logs that the blocks `linked` lead to."""
    wanted: dict[int, set[int]] = {}
    for number, line in blocks.quoted(linked):
        wanted.setdefault(number, set()).add(line)
    parts = []
    for run in report.runs:
        texts = _read_lines(report.logs.get(run.record.file, run.record.file), lines := wanted.get(run.number, set()))
        shown = [(line, visible(texts.get(line, ""), QUOTED_CHARS)) for line in sorted(lines)]
        parts.append(blocks.Lines(run=run.number, file=run.record.file, lines=shown))
    count = sum(map(len, wanted.values()))
    gist = f"{count} lines that the numbers above come from, as they stand in the logs"
    return Section(key="lines", title="Quoted log lines", gist=gist, blocks=parts)


def _read_lines(file: str | os.PathLike[str], wanted: set[int]) -> dict[int, str]:
    """The starts of those lines of a log, as text."""
    with io.BufferedReader(open_log(file)) as stream:  # type: ignore[type-var]
        return {
            number: line[:LINE_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")
            for number, line in enumerate(itertools.islice(stream, max(wanted, default=0)), 1)
            if number in wanted
        }
