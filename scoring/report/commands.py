"""The commands that make a report's runs, checks and figures again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from runlog.text import called, visible
from scoring.record import Record, config_of, section
from scoring.report.content import Report

NAME = re.compile(r"[A-Z][A-Z0-9_]*")  # of a variable; any other key of a log is no word for a shell
NOT_REPEATED = frozenset({"SEED", "RESULT_FILE", "DGXSYSTEM"})  # stated apart, or of the one run only


def commands(report: Report, command: Sequence[str]) -> list[tuple[str, str]]:
    """(what it does, the command): to run it again, to check it, to score it, to write this report."""
    found: list[tuple[str, str]] = []
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
        found.append((f"Run {run.number} again, with its seed.{dirty}", f"{checkout}{exports} ./run_and_time.sh"))
    folder = report.folder
    logs = _words(folder, (run.record.file for run in report.runs))
    if any(run.record.format == "mllog" for run in report.runs):
        found.append(("Check the logs.", f"{called('compliance')} check {logs}"))
    for group in report.groups:
        options = ["--protocol", report.protocol.name, *score_options(command, group.record)]
        logs = _words(folder, [*(run.record.file for run in group.runs), *options])
        found.append((f"Score {group.name}.", f"{called('scoring')} score {logs}"))
    return [*found, ("Write this report.", f"{called('scoring')} report {_words(folder, command)}")]


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
