"""The section of commands that make a report's runs, checks and figures again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from runlog.text import called, visible
from scoring.record import Record, config_of, section
from scoring.report.blocks import Paragraph, Section
from scoring.report.content import Report

NAME = re.compile(r"[A-Z][A-Z0-9_]*")  # of a variable; any other key of a log is no word for a shell
NOT_REPEATED = frozenset({"SEED", "RESULT_FILE", "DGXSYSTEM"})  # stated apart, or of the one run only


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
    """As a shell takes them; logs are named as seen from their folder, other files of this machine by their name."""
    names = (word.removeprefix(folder) for word in words)
    return shlex.join(visible(Path(name).name if Path(name).is_absolute() else name, 4096) for name in names)


def score_options(command: Sequence[str], record: Record) -> list[str]:
    """Of the report's options those that `score` takes too, with the numbers of that system."""
    found: list[str] = []
    for at, word in enumerate(command):
        if word in ("--skip", "--runs", "--segment", "--format"):
            found += command[at : at + 2]
    if record.devices is not None and (record.described_by or "devices" in record.from_options):
        found += ["--devices", str(record.devices)]
    if "batch_per_device" in record.from_options:
        found += ["--batch", str(record.batch_per_device)]
    return found
