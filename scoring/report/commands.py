"""The commands that make a report's runs, checks and figures again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from runlog.text import visible
from scoring.report.content import Report, config_of, section

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
    logs = _words(run.record.file for run in report.runs)
    if any(run.record.format == "mllog" for run in report.runs):
        found.append(("Check the logs.", f"python -m compliance check {logs}"))
    options = _words(["--protocol", report.protocol.name, *score_options(command)])
    for group in report.groups:
        logs = _words(run.record.file for run in group.runs)
        found.append((f"Score {group.name}.", f"python -m scoring score {logs} {options}"))
    return [*found, ("Write this report.", f"python -m scoring report {_words(command)}")]


def _words(words: Iterable[str]) -> str:
    return shlex.join(visible(word, 4096) for word in words)


def score_options(command: Sequence[str]) -> list[str]:
    """Of the report's own options those that `score` takes too."""
    found: list[str] = []
    for at, word in enumerate(command):
        if word.partition("=")[0] in ("--skip", "--runs", "--devices", "--batch", "--segment", "--format"):
            found += [word] if "=" in word else list(command[at : at + 2])
    return found
