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
from runlog.reader import dataclass_of, open_log
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
    field,
    link_to_line,
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
TITLES_OF_SECTIONS = {  # of the header of our own logs
    "hardware": "Hardware",
    "dataset": "Data set",
    "packages": "Packages",
    "config": "Configuration",
    "program": "Training program",
}
TITLES_OF_PASSPORTS = {  # by their names in the section `dataset` of the header
    "train": "training data",
    "train_source": "training data before it was packed",
    "eval": "evaluation data",
    "eval_source": "evaluation data before it was packed",
}
VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]*")  # of a variable; any other key of a log is no word for a shell
NOT_REPEATED = frozenset({"SEED", "RESULT_FILE", "DGXSYSTEM"})  # stated apart, or of the one run only
SCORE_OPTIONS = ("--skip", "--runs", "--segment", "--format")  # of the report that `score` takes too

# A row of the table that `nvidia-smi topo` prints: a device's name, and then what links it to each device.
_LinksOfDevice = tuple[str, ...]


# ---- compliance


def compliance(report: Report) -> Section:
    """Return the section on what the compliance check (`python -m compliance check`) found in the runs.

    First it has the verdict on each run, or that the run was not checked. Then comes a table of errors and warnings, or
    a sentence that there are none. Last come the notes, which are the findings of severity `info`, folded away.
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
                cells_without_what_to_do = cells[:-1]  # of a note there is nothing to do
                notes.append(cells_without_what_to_do)
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
        Cell("line", link_to_line(run, finding["line"])),
        Cell("expected", str(finding["expected"])),
        Cell("actual", str(finding["actual"])),
        Cell("what to do", str(finding["fix"])),
    ]


# ---- provenance


def provenance(report: Report) -> Section:
    """Return the section on each run's log, code, machine and configuration, as the header of its log says them.

    Where several runs have a section of the header in common, it is shown with the first of them, and the others refer
    to that run.
    """
    first_run_with: dict[str, int] = {}  # the number of the first run that has a section, by its name and content
    parts: list[Block] = []
    for run in report.runs:
        parts.append(Facts(items=_facts_of_run(run), run=run.number))
        for name, title in TITLES_OF_SECTIONS.items():
            content = run.record.header.get(name)
            if content:
                name_and_content = f"{name}{content!r}"  # as text, since tables are no keys of a dict
                first_run = first_run_with.setdefault(name_and_content, run.number)
                parts += _header_section(run, name, title, first_run)
    return Section(key="provenance", title="Provenance", gist=report.headline.runs[0].record.file, blocks=parts)


def _header_section(run: ReportedRun, name: str, title: str, first_run: int) -> list[Block]:
    """Return a section of the header of a run's log, `name`, as a folded table.

    `first_run` is the number of the first run with the same section. If that is another run, a reference to it takes
    the section's place, and nothing else is returned. Before the section `hardware` stand tables of how the GPUs of the
    nodes are linked.
    """
    link = link_to_line(run, run.header_lines.get(name), "header")
    if first_run != run.number:
        return [Paragraph(text=[f"{title}: the same as of run {first_run} (", link, ")."])]
    table: list[Block] = [Paragraph(text=["From the ", link, "."]), _header_table(title, run.record.header[name])]
    fold = Fold(summary=f"{title} of run {run.number}", blocks=table)
    if name == "hardware":
        return [*_tables_of_gpu_links(run), fold]
    return [fold]


def _facts_of_run(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return names and values of what is known of a run: its log, its settings, its code, its data and its problems.

    A value that a line of the log says is a link to that line. What could not be read in the log comes last, as facts
    named "problem in the text".
    """
    record = run.record
    facts: list[tuple[str, Inline]] = [
        ("log", Text(text=record.file, look="code")),
        ("SHA-256 of the log", Text(text=record.sha256, look="code")),
        ("read as", f"{record.format}, {record.lines:,} lines"),
    ]
    for name in (*FACTS, "mode", "status"):
        facts.append((name.replace("_", " "), field(run, name)))
    seed = NOT_SAID if run.seed is None else link_to_line(run, run.seed.line, str(run.seed.value))
    facts.append(("seed", seed))
    facts += _code_facts(run)
    facts += _data_facts(run)
    facts += [("problem in the text", problem) for problem in record.problems]
    return facts


def _code_facts(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return names and values that say which code and container image a run used; none where its log does not say.

    The log says it in the section `source` of its header. Each value is a link to that line.
    """
    source = section(run.record, "source")
    if not source:
        return []
    has_changes = "not said"
    if source.get("dirty") in (True, False):
        has_changes = "yes" if source["dirty"] else "no"
    line = run.header_lines.get("source")
    return [
        ("commit", link_to_line(run, line, str(source.get("commit")))),
        ("uncommitted changes", link_to_line(run, line, has_changes)),
        ("lock file SHA-256", link_to_line(run, line, str(source.get("lock_sha256")))),
        ("image digest", link_to_line(run, line, str(source.get("image_digest") or "no image"))),
    ]


def _data_facts(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return names and values that identify the data that a run read, by the number, size and SHA-256 of its files.

    These three are the passport that the header of the log has for a part of the data set: the data for training and
    for evaluation, and what each was packed from. A part without a passport is left out. Each value is a link to the
    line of the header.
    """
    dataset = section(run.record, "dataset")
    line = run.header_lines.get("dataset")
    facts: list[tuple[str, Inline]] = []
    for name, title in TITLES_OF_PASSPORTS.items():
        passport = dataclass_of(schema.Passport, dataset.get(name))
        if passport is None:
            continue
        what_was_read = "files" if passport.is_exact else "records with more in them than the images"
        shown = f"{passport.files:,} {what_was_read}, {passport.bytes:,} bytes, SHA-256 {passport.sha256}"
        facts.append((title, link_to_line(run, line, shown)))
    return facts


def _tables_of_gpu_links(run: ReportedRun) -> list[Block]:
    """Return tables of how the GPUs of a run's nodes are linked: one table for all nodes that are linked alike.

    A cell is the link between two devices as nvidia-smi names it: "NV12", "PIX", "SYS". A sentence below says what the
    names mean. Where no node's links are known, a sentence that says so is all.
    """
    hosts_by_links: dict[tuple[_LinksOfDevice, ...], list[str]] = {}
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
        devices = [row[0] for row in matrix]  # a row begins with the name of its device
        parts.append(blocks.table(caption, [_cells_of_links(row, devices) for row in matrix]))
    parts.append(Paragraph(text=f"As nvidia-smi names them. {LINKS}"))
    return parts


def _link_matrix(topology: Any) -> tuple[_LinksOfDevice, ...]:
    """Return a row for each device, its name and its links, from the `topology` of a node in a log.

    Empty for anything but a square table, and for one of more than MOST_DEVICES devices.
    """
    rows = []
    try:
        for name, links in zip(topology["devices"], topology["links"], strict=True):
            rows.append((str(name), *map(str, links)))
    except (TypeError, KeyError, ValueError):
        return ()
    is_square = all(len(row) == len(rows) + 1 for row in rows)
    return tuple(rows) if is_square and len(rows) <= MOST_DEVICES else ()


def _cells_of_links(row: _LinksOfDevice, devices: Sequence[str]) -> list[Cell]:
    """Return the row of a device: what links it to each of `devices`, each link in the look of its kind."""
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
    for path, text in _values_by_path(content):
        rows.append([Text(text=path, look="code"), text])
    return Table(caption=title, head=["name", "value"], rows=rows)


def _values_by_path(content: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the plain values within a nested JSON value, each as the path that leads to it and its text.

    {"gpus": [{"name": "A100"}], "cores": 64} -> [("gpus[0].name", "A100"), ("cores", "64")]

    A list of plain values is one value, as is an empty dict. `path` is the path that leads to `content` itself.
    """
    is_list_of_containers = isinstance(content, list) and any(isinstance(item, dict | list) for item in content)
    values: list[tuple[str, str]] = []
    if isinstance(content, dict) and content:
        for key, value in content.items():
            path_of_value = f"{path}.{key}" if path else str(key)
            values += _values_by_path(value, path_of_value)
    elif is_list_of_containers:
        for index, value in enumerate(content):
            values += _values_by_path(value, f"{path}[{index}]")
    else:
        values.append((path, str(content)))
    return values


# ---- reproduce it


def reproduce(report: Report, command: Sequence[str]) -> Section:
    """Return the section with the commands that repeat the runs, the check of their logs, the figures and this report.

    `command` has the words of the command line that asked for this report. Only a run whose log has our configuration
    can be repeated, and only logs in the form of MLPerf can be checked. There is a command for the figure of each group
    of repeated runs. Logs are named as seen from the folder that holds them all.
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
        code = f"{called('compliance')} check {_quoted_for_shell(folder, files)}"
        shown.append(Paragraph(text="Check the logs.", code=code))

    scoring = called("scoring")
    for group in report.groups:
        files_of_group = [run.record.file for run in group.runs]
        options = ["--protocol", report.protocol.name, *score_options(command, group.record)]
        code = f"{scoring} score {_quoted_for_shell(folder, [*files_of_group, *options])}"
        shown.append(Paragraph(text=f"Score {group.name}.", code=code))
    shown.append(Paragraph(text="Write this report.", code=f"{scoring} report {_quoted_for_shell(folder, command)}"))
    return Section(key="reproduce", title="Reproduce it", gist="the commands", blocks=shown)


def _run_again(run: ReportedRun) -> Paragraph:
    """Return a paragraph with the command that repeats a run: the commit to check out, its variables, and the script.

    The variables are the system (DGXSYSTEM), those that the user had set in the environment, and the seed that the run
    took. Of the user's those of NOT_REPEATED are left out, and names that are no variables. Values are quoted for the
    shell, as a log may hold anything. The commit is left out where the log does not say it. The text tells of changes
    in the source tree that the commit does not hold.
    """
    config = config_of(run.record)
    variables = {"DGXSYSTEM": config["DGXSYSTEM"].get("value")}
    for name, entry in config.items():
        was_set_by_user = entry.get("origin") == "environment"
        is_variable = VARIABLE_NAME.fullmatch(name) is not None  # any other key must not reach a shell
        if was_set_by_user and is_variable and name not in NOT_REPEATED:
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


def _quoted_for_shell(folder: str, words: Iterable[str]) -> str:
    """Return words quoted for a shell, without the paths of this machine.

    Logs are named as seen from `folder`, which holds them; any other absolute path is cut to the file's name.
    """
    shown = []
    for word in words:
        name = word.removeprefix(folder)
        path = Path(name)
        shown.append(visible(path.name if path.is_absolute() else name, 4096))
    return shlex.join(shown)


def score_options(command: Sequence[str], record: Record) -> list[str]:
    """Return the options for `python -m scoring score` that make a group's figure as this report made it.

    These are the options of SCORE_OPTIONS in the report's own `command`, each with its value. The number of devices and
    the batch of the group's `record` are added where they do not come from its log but from options, or, the devices,
    from a description of the system.
    """
    options: list[str] = []
    for index, word in enumerate(command):
        if word in SCORE_OPTIONS:
            option_and_value = command[index : index + 2]
            options += option_and_value
    if record.devices is not None and (record.described_by or "devices" in record.from_options):
        options += ["--devices", str(record.devices)]
    if "batch_per_device" in record.from_options:
        options += ["--batch", str(record.batch_per_device)]
    return options


# ---- quoted log lines


def log_lines(report: Report, linked: object) -> Section:
    """Return the section that quotes, run by run, the lines of the logs which the rest of the page links to.

    `linked` are the blocks of the page, or lists of them, whose links are searched for. The logs are read again for it.
    A line longer than QUOTED_CHARS is cut, and says so.
    """
    linked_lines: dict[int, set[int]] = {run.number: set() for run in report.runs}  # by the run's number
    for run_number, line in blocks.linked_lines(linked):
        linked_lines[run_number].add(line)

    parts = []
    count = 0
    for run in report.runs:
        numbers = linked_lines[run.number]
        path = report.logs.get(run.record.file, run.record.file)  # a log may lie elsewhere than its name says
        texts = _read_lines(path, numbers)
        shown = [(number, visible(texts.get(number, ""), QUOTED_CHARS)) for number in sorted(numbers)]
        parts.append(Lines(run=run.number, file=run.record.file, lines=shown))
        count += len(numbers)
    gist = f"{count} lines that the numbers above come from, as they stand in the logs"
    return Section(key="lines", title="Quoted log lines", gist=gist, blocks=parts)


def _read_lines(file: str | os.PathLike[str], wanted: set[int]) -> dict[int, str]:
    """Return the wanted lines of a log as text, by their numbers; of a long line the first LINE_BYTES bytes."""
    texts = {}
    last_wanted = max(wanted, default=0)
    with io.BufferedReader(open_log(file)) as stream:  # type: ignore[type-var]
        for number, line in enumerate(itertools.islice(stream, last_wanted), 1):
            if number in wanted:
                texts[number] = line[:LINE_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")
    return texts
