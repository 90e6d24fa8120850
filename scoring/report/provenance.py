"""Sections on where it all comes from: the check's findings, the runs' provenance, commands, quoted log lines."""

import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runlog import schema
from runlog.digits import counted
from runlog.reader import from_json
from runlog.text import called, visible
from scoring.importers import open_unpacked
from scoring.importers.lines import Lines as LogLines
from scoring.importers.text import CUT
from scoring.record import FACTS, Record, config_of, section
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
from scoring.report.content import Group, Report, ReportedRun
from scoring.report.topology import tables_of_gpu_links

LINE_CHARS = 8192  # of a line that is read to be quoted
QUOTED_CHARS = 600  # of a log line; a longer one is cut, and says so
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
VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
# Variables that are not copied from the user: the command sets the seed and system itself, and the file is of one run.
NOT_REPEATED = frozenset({"SEED", "RESULT_FILE", "DGXSYSTEM"})
SCORE_OPTIONS = ("--skip", "--runs", "--segment", "--format")  # options of the report that `score` takes too


# ---- compliance


def compliance(report: Report) -> Section:
    """Return the section of the report on what `python -m compliance check` found in the runs.

    Args:
        report: The content of the report.

    Returns:
        The section: a sentence on each run, with its verdict or that it was not checked; then a table of the errors and
        warnings of all runs or, if a run was checked, a sentence that there are none; then a folded table of the notes,
        if there are any.
    """
    parts: list[Block] = []
    notes = []
    errors_and_warnings = []
    is_checked = False
    for run in report.runs:
        if run.findings is None:
            parts.append(Paragraph(text=["Not checked: ", run_link(run), "."], absent=True))
        else:
            is_checked = True
            parts.append(_verdict_of_check(run, run.findings))
            errors_and_warnings += _rows_of_errors_and_warnings(run, run.findings["findings"])
            notes += _rows_of_notes(run, run.findings["findings"])

    if errors_and_warnings:
        parts.append(blocks.table("Errors and warnings", errors_and_warnings))
    elif is_checked:
        parts.append(Paragraph(text="No error and no warning."))
    if notes:
        parts.append(Fold(summary=counted(len(notes), "note"), blocks=[blocks.table("Notes", notes)]))
    # The gist is shown next to the section's title.
    gist = "not checked"
    if is_checked:
        has_one = len(errors_and_warnings) == 1
        gist = "1 error or warning" if has_one else f"{len(errors_and_warnings)} errors and warnings"
    return Section(key="compliance", title="Compliance", gist=gist, blocks=parts)


def _verdict_of_check(run: ReportedRun, findings: Mapping[str, Any]) -> Paragraph:
    """Return the verdict of the compliance check on a run, and that of mlperf-logging if it was run too.

    Args:
        run: A run of the report.
        findings: Entry of `python -m compliance check --json` on the run's log.
    """
    errors = sum(finding["severity"] == "error" for finding in findings["findings"])
    official = findings.get("mlperf_logging")
    tool = f"; mlperf-logging: {official.get('verdict')}" if isinstance(official, dict) else ""
    verdict = findings["verdict"]
    mark = "✓ " if verdict == "pass" else "✕ "
    return Paragraph(text=[mark, run_link(run), f": {verdict}, {counted(errors, 'error')}{tool}"])


def _rows_of_errors_and_warnings(run: ReportedRun, findings: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
    """Return the rows of those findings of the compliance check that ask for something to be done.

    Args:
        run: A run of the report.
        findings: The findings on the run's log, as `python -m compliance check --json` printed them.
    """
    return [_cells_of_finding(run, finding) for finding in findings if finding["severity"] != "info"]


def _rows_of_notes(run: ReportedRun, findings: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
    """Return the rows of the notes of the compliance check, without the last cell: a note has nothing to be done.

    Args:
        run: A run of the report.
        findings: The findings on the run's log, as `python -m compliance check --json` printed them.
    """
    return [_cells_of_finding(run, finding)[:-1] for finding in findings if finding["severity"] == "info"]


def _cells_of_finding(run: ReportedRun, finding: Mapping[str, Any]) -> list[Cell]:
    """Return the row of one finding. Its last cell says what to do."""
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
    """Return the section on each run's log, code, machine and configuration, from the header of its log.

    Args:
        report: The content of the report.

    Returns:
        The section. If several runs have an equal part of the header, such as the hardware, it is shown for the first
        run only, and the others refer to that run.
    """
    first_run_by_content: dict[str, int] = {}
    parts: list[Block] = []
    for run in report.runs:
        parts.append(Facts(items=_facts_of_run(run), run=run.number))
        for name in TITLES_OF_SECTIONS:
            content = run.record.header.get(name)
            if content:
                first_run = first_run_by_content.setdefault(_as_key(name, content), run.number)
                parts += _header_section(run, name, first_run)
    return Section(key="provenance", title="Provenance", gist=report.headline.runs[0].record.file, blocks=parts)


def _as_key(name: str, content: Any) -> str:
    """Return the name and the content of a section as one text, because a dict cannot be a key."""
    return f"{name}{content!r}"


def _header_section(run: ReportedRun, name: str, first_run: int) -> list[Block]:
    """Return one section of a log's header as a folded table; for the hardware also tables of the links of the GPUs.

    Args:
        run: A run whose log has the section.
        name: Name of the section, such as "hardware" or "config".
        first_run: Number of the first run with an equal section.

    Returns:
        The parts of the page. For a run other than the first, only a sentence that refers to the first.
    """
    title = TITLES_OF_SECTIONS[name]
    link = link_to_line(run, run.header_lines.get(name), "header")
    if first_run != run.number:
        return [Paragraph(text=[f"{title}: the same as of run {first_run} (", link, ")."])]
    table: list[Block] = [Paragraph(text=["From the ", link, "."]), _header_table(name, run.record.header[name])]
    fold = Fold(summary=f"{title} of run {run.number}", blocks=table)
    if name == "hardware":
        return [*tables_of_gpu_links(run), fold]
    return [fold]


def _facts_of_run(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return what is known of a run as (name, value) pairs: its log, settings, seed, code and data.

    Args:
        run: A run of the report.

    Returns:
        The pairs, such as ("devices", "8"). A value that a line of the log says is a link to that line. What could not
        be read in the log stands at the end.
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
    """Return which code and container image a run used, as (name, value) pairs.

    Args:
        run: A run of the report.

    Returns:
        The commit, whether there were uncommitted changes, the hash of the lock file and the image digest. Each is a
        link to the line of the log's header that says it. Empty if the header does not describe the source.
    """
    source = section(run.record, "source")
    if not source:
        return []
    dirty = source.get("dirty")  # whether there were uncommitted changes; the log may hold anything else, too
    has_changes = "not said"
    if dirty in (True, False):
        has_changes = "yes" if dirty else "no"
    line = run.header_lines.get("source")
    return [
        ("commit", link_to_line(run, line, str(source.get("commit") or "not said"))),
        ("uncommitted changes", link_to_line(run, line, has_changes)),
        ("lock file SHA-256", link_to_line(run, line, str(source.get("lock_sha256")))),
        ("image digest", link_to_line(run, line, str(source.get("image_digest") or "no image"))),
    ]


def _data_facts(run: ReportedRun) -> list[tuple[str, Inline]]:
    """Return which files a run read its data from, as (title, value) pairs: a pair for each set of files.

    Args:
        run: A run of the report.

    Returns:
        Pairs such as ("training data", "50,000 files, 6,744,924,160 bytes, SHA-256 1f2e..."). A set that the log's
        header does not describe has no pair.
    """
    dataset = section(run.record, "dataset")
    line = run.header_lines.get("dataset")
    facts: list[tuple[str, Inline]] = []
    for name, title in TITLES_OF_PASSPORTS.items():
        passport = from_json(schema.Passport, dataset.get(name))
        if passport is not None:
            facts.append((title, link_to_line(run, line, _passport_in_words(passport))))
    return facts


def _passport_in_words(passport: schema.Passport) -> str:
    """Return the size and the hash of a set of files: "50,000 files, 6,744,924,160 bytes, SHA-256 1f2e..."

    Args:
        passport: Number, bytes and SHA-256 of the files, from the log. If it is exact, the bytes are of the images
            alone. Otherwise they are of packed records, which hold more than the images.
    """
    counted_things = "files" if passport.is_exact else "records with more in them than the images"
    return f"{passport.files:,} {counted_things}, {passport.bytes:,} bytes, SHA-256 {passport.sha256}"


def _header_table(section_name: str, content: Any) -> Table:
    """Return the content of a section of a log's header as a table of names and values.

    Args:
        section_name: Name of the section, such as "packages". The table of "config" also has what set each value, such
            as the environment.
        content: The section, as parsed from JSON.
    """
    rows: list[list[Inline]] = []
    if section_name == "config" and isinstance(content, dict):
        for name, entry in content.items():
            if isinstance(entry, dict):  # a log may hold anything
                rows.append([Text(text=str(name), look="code"), str(entry.get("value")), str(entry.get("origin"))])
        return Table(caption="Resolved configuration", head=["name", "value", "set by"], rows=rows)
    for path, text in _values_by_path(content):
        rows.append([Text(text=path, look="code"), text])
    return Table(caption=TITLES_OF_SECTIONS[section_name], head=["name", "value"], rows=rows)


def _values_by_path(content: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the plain values inside a nested JSON value, each with the path to it.

    {"gpus": [{"name": "A100"}], "cores": 64} gives [("gpus[0].name", "A100"), ("cores", "64")]. A list of plain values
    counts as one value, and so does an empty dict.

    Args:
        content: The JSON value.
        path: Path to `content` from the outermost value; empty for the outermost value itself.
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
    """Return the section of the report with the shell commands that reproduce what the report shows.

    The commands repeat runs of this project, check the logs if one of them is an MLPerf log, score each group of runs,
    and write the report. Logs below `report.folder` are named by their paths in it.

    Args:
        report: The content of the report.
        command: Words after `report` on the command line that wrote this report.
    """
    shown = []
    if report.folder:
        shown.append(Paragraph(text="Logs are named as seen from the folder that holds them all."))
    for run in report.runs:
        is_run_of_ours = "DGXSYSTEM" in config_of(run.record)  # run_and_time.sh needs this variable
        if is_run_of_ours:
            shown.append(_command_to_repeat(run))
    if any(run.record.format == "mllog" for run in report.runs):
        files = [run.record.file for run in report.runs]
        code = f"{called('compliance')} check {_quoted_without_folder(files, report.folder)}"
        shown.append(Paragraph(text="Check the logs.", code=code))
    shown += [_command_to_score(group, report, command) for group in report.groups]
    code = f"{called('scoring')} report {_quoted_without_folder(command, report.folder)}"
    shown.append(Paragraph(text="Write this report.", code=code))
    return Section(key="reproduce", title="Reproduce it", gist="the commands", blocks=shown)


def _command_to_repeat(run: ReportedRun) -> Paragraph:
    """Return a paragraph with the shell command that repeats a run of this project.

    The command checks out the run's commit first, if the log says it. A log may hold anything, so its values are quoted
    for the shell.

    Args:
        run: A run whose log has the setting DGXSYSTEM, which run_and_time.sh needs.
    """
    variables = _variables_to_repeat(run)
    exports = " ".join(f"{name}={shlex.quote(visible(value))}" for name, value in variables.items())
    source = section(run.record, "source")
    checkout = ""
    if source.get("commit"):
        checkout = f"git checkout {shlex.quote(visible(source['commit']))}\n"
    seed = "its seed" if run.seed else "a seed of its own: the log does not say which it had"
    text = f"Run {run.number} again, with {seed}."
    if source.get("dirty"):
        text += " Its source tree had uncommitted changes, which the commit does not hold."
    return Paragraph(text=text, code=f"{checkout}{exports} ./run_and_time.sh")


def _quoted_without_folder(words: Iterable[str], folder: str) -> str:
    """Return the words of a command, quoted for a shell and without the folders of this machine.

    Args:
        words: The words, some of which may be paths.
        folder: Folder of the logs, ending in `/`; may be empty. A path below it becomes relative to it. Of any other
            absolute path only the file's name is left.
    """
    shown = []
    for word in words:
        shown_word = word.removeprefix(folder)
        path = Path(shown_word)
        if path.is_absolute():  # it is not below the folder
            shown_word = path.name
        shown.append(visible(shown_word, 4096))
    return shlex.join(shown)


def _variables_to_repeat(run: ReportedRun) -> dict[str, object]:
    """Return the environment variables that repeat a run of this project, by name.

    They are DGXSYSTEM, the variables that the user had set in the environment, and SEED if the log says the seed. Some
    of the user's variables are left out, such as the name of the log file (see NOT_REPEATED).

    Args:
        run: A run whose log has the setting DGXSYSTEM, which run_and_time.sh needs.
    """
    config = config_of(run.record)
    variables: dict[str, object] = {"DGXSYSTEM": config["DGXSYSTEM"].get("value")}
    for name, entry in config.items():
        was_set_by_user = entry.get("origin") == "environment"
        is_valid_name = VARIABLE_NAME.fullmatch(name) is not None  # the shell command does not quote names
        if was_set_by_user and is_valid_name and name not in NOT_REPEATED:
            variables[name] = entry.get("value")
    if run.seed:
        variables["SEED"] = run.seed.value
    return variables


def _command_to_score(group: Group, report: Report, command: Sequence[str]) -> Paragraph:
    """Return a paragraph with the shell command that makes the figure of a group of repeated runs.

    Args:
        group: The repeated runs.
        report: The content of the report.
        command: Words of the report's own command line, of which some options are copied.
    """
    words = [run.record.file for run in group.runs]
    words += ["--protocol", report.protocol.name]
    words += _options_to_copy(command)
    words += _options_for_what_logs_do_not_say(group.record)
    code = f"{called('scoring')} score {_quoted_without_folder(words, report.folder)}"
    return Paragraph(text=f"Score {group.name}.", code=code)


def _options_to_copy(command: Sequence[str]) -> list[str]:
    """Return the options of the report's command line that the command `score` needs, too, each with its value.

    Args:
        command: Words of the report's command line, such as ["a.txt", "--skip", "2"].

    Returns:
        The words of the options of SCORE_OPTIONS, such as ["--skip", "2"].
    """
    options: list[str] = []
    for index, word in enumerate(command):
        if word in SCORE_OPTIONS:
            value = command[index + 1 : index + 2]  # the next word, or none at the end of the command
            options += [word, *value]
    return options


def _options_for_what_logs_do_not_say(record: Record) -> list[str]:
    """Return the options that tell the command `score` what a group's logs do not say, such as ["--devices", "16"].

    Args:
        record: First run of the group. `from_options` names the values that the options of the report set.
    """
    # The values are those of the record. The report's own options may list a number for each of several systems: of
    # `--devices 8,16`, one group needs 8 and another 16.
    options: list[str] = []
    are_from_option = "devices" in record.from_options
    are_from_description = bool(record.described_by)  # of a submission's system
    if (are_from_option or are_from_description) and record.devices is not None:
        options += ["--devices", str(record.devices)]
    if "batch_per_device" in record.from_options:
        options += ["--batch", str(record.batch_per_device)]
    return options


# ---- quoted log lines


def log_lines(report: Report, rest_of_page: Sequence[object]) -> Section:
    """Return the section that quotes, run by run, the lines of the logs that the rest of the page links to.

    The logs are read again.

    Args:
        report: The content of the report.
        rest_of_page: The other parts of the page: blocks, or lists of blocks.
    """
    lines_by_run: dict[int, set[int]] = {run.number: set() for run in report.runs}  # line numbers by the run's number
    for run_number, line in blocks.linked_lines(rest_of_page):
        lines_by_run[run_number].add(line)
    parts = [_quoted_lines(run, lines_by_run[run.number]) for run in report.runs]
    count = sum(len(lines) for lines in lines_by_run.values())
    gist = f"{counted(count, 'line')} that the numbers above come from, as the logs have them"
    return Section(key="lines", title="Quoted log lines", gist=gist, blocks=parts)


def _quoted_lines(run: ReportedRun, line_numbers: set[int]) -> Lines:
    """Read lines of a run's log, and return them as a part of the page.

    Args:
        run: A run of the report.
        line_numbers: Numbers of the lines, counted from 1. A line that is not there is shown as empty.
    """
    texts = _read_lines(run.path, line_numbers)
    shown = [(number, visible(texts.get(number, ""), QUOTED_CHARS)) for number in sorted(line_numbers)]
    return Lines(run=run.number, file=run.record.file, lines=shown)


def _read_lines(file: str | os.PathLike[str], wanted: set[int]) -> dict[int, str]:
    """Read the wanted lines of a log, and return their texts by line number, each cut after LINE_CHARS characters.

    Args:
        file: Path of the log, which may be a gzip file.
        wanted: Line numbers, counted from 1. A line that the log does not have is left out.
    """
    end_on_windows = "\r"  # of "\r\n", `LogLines` takes off only "\n"
    mark_of_missing_end = CUT  # `LogLines` puts it behind a last line that has no line end
    texts = {}
    last_wanted = max(wanted, default=0)  # no line after it is read
    with open_unpacked(file) as stream:
        for number, text in enumerate(itertools.islice(LogLines(stream).texts(), last_wanted), 1):
            if number in wanted:
                texts[number] = text[:LINE_CHARS].rstrip(end_on_windows + mark_of_missing_end)
    return texts
