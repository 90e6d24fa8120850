"""The logs of a package: copies that are checked, and then moved to their places in the package."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from compliance.check import Report, check_file
from compliance.rules import Ruleset
from compliance.submission.committed_code import LARGEST_BYTES
from compliance.submission.runs import receipt_path, sha256

# The launcher writes what the framework printed to result_N.stderr. A valid result must include it
# (training_rules.adoc, section Result files, of 2026-08: mlcommons/training_policies #588).
FRAMEWORK_LOG = ".stderr"
_CUT = b"\n[cut here: the framework's log is longer than 50 MiB]\n"


class CopiedLogs(NamedTuple):
    """The reports on the copies of logs in the order of their start, and the original of each copy.

    `changes_since_check` has a line for each log that changed since it was checked: a reason to refuse the package.
    """

    reports: list[Report]
    original_of_copy: dict[Path, Path]
    changes_since_check: list[str]


def copy_and_check(folder: Path, logs: Sequence[Path], ruleset: Ruleset) -> CopiedLogs:
    """Copy logs into a new folder and check the copies, so that exactly what was checked is handed in.

    Args:
        folder: The new folder, which must not exist yet.
        logs: Paths of the logs.
        ruleset: A version of the rules of MLPerf Training, such as 4.0.0, with this project's own rules for it.

    Returns:
        The reports on the copies in the order of their start, and the original of each copy. A log that was altered
        since `python -m compliance check --receipt` has a line in `changes_since_check`.

    Raises:
        ValueError: A log is not a regular file.
    """
    folder.mkdir()
    original_of_copy = {folder / f"{index}.txt": log for index, log in enumerate(logs)}
    changes_since_check = []
    for copy, original in original_of_copy.items():
        if original.is_symlink() or not original.is_file():
            raise ValueError(f"{original}: not a regular file; copy the log itself there")
        shutil.copyfile(original, copy)
        change = _change_since_check(original, copy)
        if change:
            changes_since_check.append(change)

    def start_and_name(report: Report) -> tuple[float, str]:
        """Return a sort key: the start of a run, or 0 without one, and the name of its log as the user knows it."""
        return report.run.start_ms or 0, original_of_copy[report.path].name

    reports = [check_file(copy, ruleset) for copy in original_of_copy]
    return CopiedLogs(sorted(reports, key=start_and_name), original_of_copy, changes_since_check)


def _change_since_check(log: Path, copy: Path) -> str:
    """Return a line that says that a log was changed after its check; an empty text if no change is known.

    `python -m compliance check --receipt` writes the hash of a log into a receipt, a file next to the log. Later the
    log is copied, and the copy goes into a package. If the receipt does not have the hash of the copy, the log was
    changed between the check and the copying, or the receipt is damaged. Without a receipt, no change is known.

    Args:
        log: The log, next to which the receipt may lie. The line names this file.
        copy: The copy of the log.
    """
    receipt = receipt_path(log)
    if not receipt.is_file():
        return ""
    if _has_hash_of(receipt, copy):
        return ""
    changed = f"differs from what was checked ({receipt.name}): find out what changed it, or run again"
    return f"{log}: {changed}"


def _has_hash_of(receipt: Path, copy: Path) -> bool:
    """Return whether a receipt of `check --receipt` has the hash of a log's copy, such as `"sha256": "5d41..."`."""
    # Not parsed as JSON: a receipt that is damaged does not have the hash, and needs no error of its own.
    return f'"sha256": "{sha256(copy)}"' in receipt.read_text(encoding="utf-8", errors="replace")


class PlacedLogs(NamedTuple):
    """The reports on the logs at their places in a package, and the user's original log by each name in the package."""

    reports: list[Report]
    original_by_name: dict[str, Path]


def place_logs(scored: Sequence[Report], copies: CopiedLogs, results: Path) -> PlacedLogs:
    """Move the copies of the scored logs into a new folder, as result_0.txt, result_1.txt and so on.

    What the framework printed in a run, if the user has a log of it, is copied next to them.

    Args:
        scored: The reports on the copies of the logs that are scored.
        copies: The copies of all logs, with the original of each.
        results: The new folder, which is made.

    Returns:
        The reports with the new paths, and the user's log for each result_N.txt, for use in messages.
    """
    results.mkdir(parents=True)
    reports: list[Report] = []
    original_by_name: dict[str, Path] = {}
    for index, report in enumerate(scored):
        original = copies.original_of_copy[report.path]
        placed = results / f"result_{index}.txt"
        report.path.rename(placed)  # moves the copy
        _copy_framework_log(original, placed)
        reports.append(replace(report, path=placed))
        original_by_name[placed.name] = original
    return PlacedLogs(reports, original_by_name)


def _copy_framework_log(log: Path, copy: Path) -> None:
    """Copy what the framework printed in a run, if there is a file of it next to the run's log.

    This file has the name of the log with the suffix `.stderr`. If it is larger than MLCommons' repo_checker allows, it
    is cut.

    Args:
        log: The user's log of the run.
        copy: Copy of the log in the package; the copied file goes next to it.
    """
    source = log.with_suffix(FRAMEWORK_LOG)
    if source.is_symlink() or not source.is_file():
        return
    with source.open("rb") as stream:
        text = stream.read(LARGEST_BYTES + 1)  # one more byte shows that it is too large
    if len(text) > LARGEST_BYTES:
        text = text[: LARGEST_BYTES - len(_CUT)] + _CUT
    copy.with_suffix(FRAMEWORK_LOG).write_bytes(text)
