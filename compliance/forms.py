"""The forms of reports: text, JSON and annotations for GitHub."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compliance.check import Report
from compliance.rules import Finding, verdict

_NOT_APPLIED = "not applied: "  # begins the note on a rule that was not applied


def check_replaceable(path: Path, start: str) -> None:
    """Check that an output file may be written: it is new, empty, or was written by this command.

    Args:
        path: The path of the file.
        start: The text with which the files of this command begin.

    Raises:
        ValueError: The path is a folder, or a file that this command did not write.
    """
    if path.is_dir():
        raise ValueError(f"{path}: is a folder: name a file")
    if path.is_file():
        wanted_start = start.encode()
        with path.open("rb") as stream:
            actual_start = stream.read(len(wanted_start))
        is_empty_or_of_command = actual_start in (b"", wanted_start)
        if not is_empty_or_of_command:
            raise ValueError(f"{path}: exists, and this command did not write it; name another file")


# --- text ---


def as_text(reports: Iterable[Report]) -> str:
    """Return the reports as lines for a terminal.

    Args:
        reports: The reports on the logs, in the order of the output.
    """
    lines: list[str] = []
    for report in reports:
        lines += _lines_of(report)
    return "\n".join(lines) + "\n"


def _lines_of(report: Report) -> list[str]:
    """Return the lines of one report: its verdicts, findings and notes, and the answer of mlperf-logging's checker.

    Notes without a line of the log come after the other findings, and those with the same text share one line.

    Args:
        report: The report on a log. The answer of mlperf-logging's checker is left out if it was not run.
    """
    rules_by_note: dict[str, list[str]] = {}  # the rules that each note is about
    lines = _lines_of_verdicts(report)
    for finding in report.findings:
        is_note_without_line = finding.severity == "info" and finding.line is None
        if is_note_without_line:
            rules_by_note.setdefault(finding.actual, []).append(finding.rule)
        else:
            lines += _lines_of_finding(finding)
    lines += _lines_of_notes(rules_by_note)
    if report.mlperf_logging:
        lines.append(f"  mlperf-logging's checker: {report.mlperf_logging['verdict']}")
        lines += [f"      {message}" for message in report.mlperf_logging["messages"]]
    return lines


def _lines_of_verdicts(report: Report) -> list[str]:
    """Return the line of a report's result, by the rules that count, and the line of both verdicts.

    Args:
        report: The report on a log.
    """
    errors = sum(report.fails(finding) for finding in report.findings)
    plural = "" if errors == 1 else "s"
    result = f"FAIL, {errors} error{plural} by the {report.deciding_rules} rules" if errors else "PASS"
    both_verdicts = f"official {verdict(report.passes_official)}, strict {verdict(report.passes_strict)}"
    return [f"{report.file}: {result}", f"  {both_verdicts}; {report.deciding_rules} counts"]


def _lines_of_notes(rules_by_note: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a report's notes: one for each note, but a common last one for all rules not applied.

    For instance:

        info: target-status: epoch 35 reached 0.7601 already and the run went on, as it may
        info: not applied: rcp-convergence (not a closed run); run-mode (the log has no run_summary that says so)

    Args:
        rules_by_note: The rules that each note is about, by the text of the note.
    """
    lines = []
    not_applied = []
    for note, rules in rules_by_note.items():
        if note.startswith(_NOT_APPLIED):
            not_applied.append(f"{', '.join(rules)} ({note.removeprefix(_NOT_APPLIED)})")
        else:
            lines.append(f"  info: {', '.join(rules)}: {note}")
    if not_applied:
        lines.append(f"  info: {_NOT_APPLIED}{'; '.join(not_applied)}")
    return lines


def _lines_of_finding(finding: Finding) -> list[str]:
    where = f" line {finding.line}" if finding.line else ""
    lines = [f"  {finding.severity}: {finding.rule}{where}: {finding.actual}"]
    if finding.severity != "info":
        lines += [f"      expected: {finding.expected}", f"      do: {finding.fix}"]
    return lines


# --- for programs ---


def as_json(reports: Iterable[Report]) -> str:
    """Return the reports as JSON, in the form that findings.schema.json describes.

    Args:
        reports: The reports on the logs.
    """
    return json.dumps({"files": [report.as_dict() for report in reports]}, indent=2) + "\n"


def as_github(reports: Iterable[Report]) -> str:
    """Return the reports as annotations for GitHub's workflow log: a line for each finding, then the verdict.

    For instance:

        ::error file=result_0.txt,line=7,title=run-status::status aborted; train until the target is reached
        result_0.txt: FAIL

    Args:
        reports: The reports on the logs.
    """
    lines = []
    for report in reports:
        file = _escaped_for_github(report.file).replace(":", "%3A").replace(",", "%2C")
        for finding in report.findings:
            where = f",line={finding.line}" if finding.line else ""
            text = f"{finding.actual}; {finding.fix}" if finding.fix else finding.actual
            level = _github_level(report, finding)
            lines.append(f"::{level} file={file}{where},title={finding.rule}::{_escaped_for_github(text)}")
        lines.append(f"{report.file}: {verdict(report.passed).upper()}")
    return "\n".join(lines) + "\n"


def _github_level(report: Report, finding: Finding) -> str:
    """Return GitHub's level of a finding: `error` if it fails the log, else `notice` for a note, `warning` for others.

    Args:
        report: The report, which says by which rules the log passes or fails.
        finding: A finding of the report.
    """
    if report.fails(finding):
        return "error"
    return "notice" if finding.severity == "info" else "warning"


def _escaped_for_github(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
