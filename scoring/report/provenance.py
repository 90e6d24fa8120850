"""Sections on where it all comes from: the check's findings, the runs' provenance, commands, quoted log lines."""

import io
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runlog import schema
from runlog.reader import open_log, table_of
from runlog.text import called, visible
from scoring.record import FACTS, Record, config_of, nodes_of, section
from scoring.report import blocks
from scoring.report.blocks import (
    NOT_SAID,
    Block,
    Cell,
    Facts,
    Fold,
    Inline,
    Lines,
    Paragraph,
    Section,
    Table,
    Text,
    at_line,
    field,
    run_link,
)
from scoring.report.content import NOT_MEASURED, Report, ReportedRun
from scoring.report.text import counted

LINE_BYTES = 8192  # of a line that is read to be quoted
QUOTED_CHARS = 600  # of a log line; a longer one is cut, and says so
MOST_DEVICES = 64  # of a topology that is shown
NAMED_HOSTS = 4  # in the caption of a topology
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
SCORE_OPTIONS = ("--skip", "--runs", "--segment", "--format")  # of the report that `score` takes too

# A device's name, and what links it to each device.
_Links = tuple[str, ...]


# ---- compliance


def compliance(report: Report) -> Section:
    """Return the section on what the compliance check (`python -m compliance check`) found in the runs.

    It has the verdict on each run, or that it was not checked, then a table of errors and warnings, and last the notes
    (findings of severity `info`) in a part that the reader unfolds.
    """
    parts: list[Block] = []
    notes = []
    errors_and_warnings = []
    is_checked = False
    for run in report.runs:
        if run.findings is None:
            parts.append(Paragraph(text=["Not checked: ", run_link(run), "."], absent=True))
            continue
        is_checked = True
        parts.append(_verdict_of_check(run, run.findings))
        for finding in run.findings["findings"]:
            cells = _cells_of_finding(run, finding)
            if finding["severity"] == "info":
                without_what_to_do = cells[:-1]  # of a note there is nothing to do
                notes.append(without_what_to_do)
            else:
                errors_and_warnings.append(cells)

    if errors_and_warnings:
        parts.append(blocks.table("Errors and warnings", errors_and_warnings))
    elif is_checked:
        parts.append(Paragraph(text="No error and no warning."))
    if notes:
        parts.append(Fold(summary=f"{len(notes)} notes", blocks=[blocks.table("Notes", notes)]))
    gist = f"{len(errors_and_warnings)} errors and warnings" if is_checked else "not checked"
    return Section(key="compliance", title="Compliance", gist=gist, blocks=parts)


def _verdict_of_check(run: ReportedRun, findings: Mapping[str, Any]) -> Paragraph:
    """Return the checker's verdict on a run, with the one of mlperf-logging where it was asked."""
    errors = sum(finding["severity"] == "error" for finding in findings["findings"])
    official = findings.get("mlperf_logging")
    tool = f"; mlperf-logging: {official.get('verdict')}" if isinstance(official, dict) else ""
    verdict = findings["verdict"]
    mark = "✓ " if verdict == "pass" else "✕ "
    return Paragraph(text=[mark, run_link(run), f": {verdict}, {counted(errors, 'error')}{tool}"])


def _cells_of_finding(run: ReportedRun, finding: Mapping[str, Any]) -> list[Cell]:
    """Return the row of one finding; what to do is its last cell."""
    return [
        Cell("run", run_link(run)),
        Cell("severity", str(finding["severity"])),
        Cell("rule", Text(text=str(finding["rule"]), look="code")),
        Cell("line", at_line(run, finding["line"])),
        Cell("expected", str(finding["expected"])),
        Cell("actual", str(finding["actual"])),
        Cell("what to do", str(finding["fix"])),
    ]


# ---- provenance


def provenance(report: Report) -> Section:
    """Return the section on each run's log, code, machine and configuration, from the header of its log.

    A part of the header that several runs share is shown with the first of them; the others refer to it.
    """
    first_run_with: dict[str, int] = {}  # by name and content of a part: the number of the first run that has it
    parts: list[Block] = []
    for run in report.runs:
        parts.append(Facts(items=_facts(run), run=run.number))
        for name, title in HEADER_TABLES.items():
            content = run.record.header.get(name)
            if content:
                first = first_run_with.setdefault(f"{name}{content!r}", run.number)
                parts += _header_section(run, name, title, first)
    return Section(key="provenance", title="Provenance", gist=report.headline.runs[0].record.file, blocks=parts)


def _header_section(run: ReportedRun, name: str, title: str, first: int) -> list[Block]:
    """Return a section of a log's header; where the run `first` has the same one, a reference to it."""
    link = at_line(run, run.header_lines.get(name), "header")
    if first != run.number:
        return [Paragraph(text=[f"{title}: the same as of run {first} (", link, ")."])]
    table: list[Block] = [Paragraph(text=["From the ", link, "."]), _header_table(title, run.record.header[name])]
    fold = Fold(summary=f"{title} of run {run.number}", blocks=table)
    if name == "hardware":
        return [*_topologies(run), fold]
    return [fold]


def _facts(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return names and values of what is known of a run: its log, its settings, its code and its data.

    Each value is a link to the line of the log that says it, as far as one does.
    """
    record = run.record
    facts: list[tuple[str, Inline]] = [
        ("log", Text(text=record.file, look="code")),
        ("SHA-256 of the log", Text(text=record.sha256, look="code")),
        ("read as", f"{record.format}, {record.lines:,} lines"),
    ]
    for name in (*FACTS, "mode", "status"):
        facts.append((name.replace("_", " "), field(run, name)))
    seed = NOT_SAID if run.seed is None else at_line(run, run.seed.line, str(run.seed.value))
    facts.append(("seed", seed))
    facts += _source_tree(run)
    facts += _passports(run)
    facts += [("problem in the text", problem) for problem in record.problems]
    return facts


def _source_tree(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return names and values that say which code and image a run used; none where its header does not say.

    Each value is a link to the line of the header.
    """
    source = section(run.record, "source")
    if not source:
        return []
    changed = "not said"
    if source.get("dirty") in (True, False):
        changed = "yes" if source["dirty"] else "no"
    line = run.header_lines.get("source")
    return [
        ("commit", at_line(run, line, str(source.get("commit")))),
        ("uncommitted changes", at_line(run, line, changed)),
        ("lock file SHA-256", at_line(run, line, str(source.get("lock_sha256")))),
        ("image digest", at_line(run, line, str(source.get("image_digest") or "no image"))),
    ]


def _passports(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return names and values that say which bytes of its data set a run read: files, size and SHA-256.

    The header of the log has a passport, which is these three, for each part of the data set: the data for training and
    for evaluation, and what each was packed from. A part without one is left out.
    """
    dataset = section(run.record, "dataset")
    line = run.header_lines.get("dataset")
    facts: list[tuple[str, Inline]] = []
    for name, title in PASSPORTS.items():
        passport = table_of(schema.Passport, dataset.get(name))
        if passport is None:
            continue
        files = "files" if passport.is_exact else "records with more in them than the images"
        shown = f"{passport.files:,} {files}, {passport.bytes:,} bytes, SHA-256 {passport.sha256}"
        facts.append((title, at_line(run, line, shown)))
    return facts


def _topologies(run: ReportedRun) -> list[Block]:
    """Return tables of how the GPUs of a run's nodes are linked, one for all nodes whose links are equal.

    A cell is the link between two devices as nvidia-smi names it, and the nearer it is, the darker it is shown. Where
    no node's links are known, a sentence says so.
    """
    hosts_by_links: dict[tuple[_Links, ...], list[str]] = {}
    for node in nodes_of(run.record):
        matrix = _link_matrix(node.get("topology"))
        if matrix:
            hosts_by_links.setdefault(matrix, []).append(str(node.get("host")))
    if not hosts_by_links:
        return [Paragraph(text=f"Topology of the GPUs: {NOT_MEASURED}.", absent=True)]
    parts: list[Block] = []
    for matrix, hosts in hosts_by_links.items():
        nodes = counted(len(hosts), "node")
        caption = f"Links between GPUs and network cards of {nodes}: {', '.join(hosts[:NAMED_HOSTS])}"
        devices = [device for device, *_ in matrix]  # a row begins with the name of its device
        parts.append(blocks.table(caption, [_cells_of_links(row, devices) for row in matrix]))
    parts.append(Paragraph(text=f"As nvidia-smi names them. {LINKS}"))
    return parts


def _link_matrix(topology: Any) -> tuple[_Links, ...]:
    """Return each device's name and its links, from a log's matrix; empty for anything else."""
    rows = []
    try:
        for name, links in zip(topology["devices"], topology["links"], strict=True):
            rows.append((str(name), *map(str, links)))
    except (TypeError, KeyError, ValueError):
        return ()
    is_square = all(len(row) == len(rows) + 1 for row in rows)
    return tuple(rows) if is_square and len(rows) <= MOST_DEVICES else ()


def _cells_of_links(row: _Links, devices: Sequence[str]) -> list[Cell]:
    """Return the row of a device: what links it to each of the devices."""
    device, *links = row
    cells = [Cell("", device)]
    for other, link in zip(devices, links, strict=True):
        kind = link.rstrip("0123456789")
        look = f"link {kind}" if kind in NEARNESS else "link"
        cells.append(Cell(other, Text(text=link, look=look)))
    return cells


def _header_table(title: str, content: Any) -> Table:
    """Return a section of the log's header as a table; of the configuration, with what set each value."""
    rows: list[list[Inline]] = []
    if title == "Configuration" and isinstance(content, dict):
        for name, entry in content.items():
            if isinstance(entry, dict):
                rows.append([Text(text=str(name), look="code"), str(entry.get("value")), str(entry.get("origin"))])
        return Table(caption="Resolved configuration", head=["name", "value", "set by"], rows=rows)
    for path, text in _leaves(content):
        rows.append([Text(text=path, look="code"), text])
    return Table(caption=title, head=["name", "value"], rows=rows)


def _leaves(content: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the values within a nested JSON value, each as the path that leads to it and its text.

    {"gpus": [{"name": "A100"}], "cores": 64} is [("gpus[0].name", "A100"), ("cores", "64")]. A list of plain values
    is one value, as is an empty dict. `path` leads to `content` itself.
    """
    is_list_of_containers = isinstance(content, list) and any(isinstance(item, dict | list) for item in content)
    leaves: list[tuple[str, str]] = []
    if isinstance(content, dict) and content:
        for key, value in content.items():
            leaves += _leaves(value, f"{path}.{key}" if path else str(key))
    elif is_list_of_containers:
        for index, value in enumerate(content):
            leaves += _leaves(value, f"{path}[{index}]")
    else:
        leaves.append((path, str(content)))
    return leaves


# ---- reproduce it


def reproduce(report: Report, command: Sequence[str]) -> Section:
    """Return the section with the commands that repeat the runs, their check, the figures and this report.

    `command` has the words of the command line that asked for this report. A run can be repeated where its log has our
    configuration.
    """
    folder = report.folder
    files = [run.record.file for run in report.runs]
    shown = []
    if folder:
        shown.append(Paragraph(text="Logs are named as seen from the folder that holds them all."))
    for run in report.runs:
        has_our_configuration = "DGXSYSTEM" in config_of(run.record)
        if has_our_configuration:
            shown.append(_run_again(run))
    if any(run.record.format == "mllog" for run in report.runs):
        code = f"{called('compliance')} check {_words(folder, files)}"
        shown.append(Paragraph(text="Check the logs.", code=code))

    scoring = called("scoring")
    for group in report.groups:
        files_of_group = [run.record.file for run in group.runs]
        options = ["--protocol", report.protocol.name, *score_options(command, group.record)]
        code = f"{scoring} score {_words(folder, [*files_of_group, *options])}"
        shown.append(Paragraph(text=f"Score {group.name}.", code=code))
    shown.append(Paragraph(text="Write this report.", code=f"{scoring} report {_words(folder, command)}"))
    return Section(key="reproduce", title="Reproduce it", gist="the commands", blocks=shown)


def _run_again(run: ReportedRun) -> Paragraph:
    """Return the command that repeats a run: the commit to check out, its variables, and the script.

    The variables are those that the environment of the run had set, with the seed that it took. Values are quoted for
    the shell, as a log may hold anything.
    """
    config = config_of(run.record)
    variables = {"DGXSYSTEM": config["DGXSYSTEM"].get("value")}
    for name, entry in config.items():
        was_set_by_user = entry.get("origin") == "environment" and NAME.fullmatch(name)
        if was_set_by_user and name not in NOT_REPEATED:
            variables[name] = entry.get("value")
    if run.seed:
        variables["SEED"] = run.seed.value
    exports = " ".join(f"{name}={shlex.quote(visible(value))}" for name, value in variables.items())

    source = section(run.record, "source")
    checkout = ""
    if source.get("commit"):
        checkout = f"git checkout {shlex.quote(visible(source['commit']))}\n"
    text = f"Run {run.number} again, with its seed."
    if source.get("dirty"):
        text += " Its source tree had uncommitted changes, which the commit does not hold."
    return Paragraph(text=text, code=f"{checkout}{exports} ./run_and_time.sh")


def _words(folder: str, words: Iterable[str]) -> str:
    """Quote words for a shell; logs are named as seen from their folder, other files of this machine by their name."""
    shown = []
    for word in words:
        name = word.removeprefix(folder)
        path = Path(name)
        shown.append(visible(path.name if path.is_absolute() else name, 4096))
    return shlex.join(shown)


def score_options(command: Sequence[str], record: Record) -> list[str]:
    """Return the options for `score` that make the figure as this report made it.

    These are the options of the report's own `command` that `score` takes too, each with its value, and the numbers of
    devices and images of the group's `record` that its log does not say.
    """
    options: list[str] = []
    for at, word in enumerate(command):
        if word in SCORE_OPTIONS:
            options += command[at : at + 2]
    if record.devices is not None and (record.described_by or "devices" in record.from_options):
        options += ["--devices", str(record.devices)]
    if "batch_per_device" in record.from_options:
        options += ["--batch", str(record.batch_per_device)]
    return options


# ---- quoted log lines


def log_lines(report: Report, linked: object) -> Section:
    """Return the section that quotes the lines of the logs which the rest of the page links to.

    `linked` are the blocks of the page, or lists of them. A line longer than QUOTED_CHARS is cut, and says so.
    """
    wanted_lines: dict[int, set[int]] = {run.number: set() for run in report.runs}  # by the run's number
    for run_number, line in blocks.quoted(linked):
        wanted_lines[run_number].add(line)

    parts = []
    count = 0
    for run in report.runs:
        wanted = wanted_lines[run.number]
        texts = _read_lines(report.logs.get(run.record.file, run.record.file), wanted)
        shown = [(line, visible(texts.get(line, ""), QUOTED_CHARS)) for line in sorted(wanted)]
        parts.append(Lines(run=run.number, file=run.record.file, lines=shown))
        count += len(wanted)
    gist = f"{count} lines that the numbers above come from, as they stand in the logs"
    return Section(key="lines", title="Quoted log lines", gist=gist, blocks=parts)


def _read_lines(file: str | os.PathLike[str], wanted: set[int]) -> dict[int, str]:
    """Return the starts of the wanted lines of a log, as text by their numbers."""
    texts = {}
    with io.BufferedReader(open_log(file)) as stream:  # type: ignore[type-var]
        for number, line in enumerate(itertools.islice(stream, max(wanted, default=0)), 1):
            if number in wanted:
                texts[number] = line[:LINE_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")
    return texts
