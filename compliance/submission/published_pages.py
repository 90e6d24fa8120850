"""The table and the page of a published folder, made from the packages in it."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compliance import mlperf
from compliance.submission.description import read_description
from compliance.submission.package import HASHES, MANIFEST
from compliance.submission.runs import sha256
from compliance.submission.templates import rendered
from runlog import schema
from runlog.json_types import JsonObject
from runlog.reader import Event, read_log
from runlog.text import printable

PAGE = "index.html"
TABLE = "results.json"
PACKAGES = "packages"
_SCORING_KEYS = (schema.RUN_START.key, schema.EVAL_ACCURACY.key, schema.RUN_STOP.key)
_MANIFEST_COLUMNS = (
    "organisation",
    "system",
    "benchmark",
    "division",
    "ruleset",
    "minutes",
    "scaling",
    "convergence",
    "commit",
)
_SYSTEM_COLUMNS = {  # column: field of the description
    "nodes": "number_of_nodes",
    "accelerators_per_node": "accelerators_per_node",
    "accelerator": "accelerator_model_name",
    "framework": "framework",
}


def published_name(package: Path) -> str:
    """Return the name in packages/ under which the package in a folder is published: the beginning of its id."""
    return sha256(package / HASHES)[:16]


def pages_of(root: Path) -> dict[str, str]:
    """Return the texts of two files that show the results of a published folder, results.json and index.html.

    results.json is a table with a row for each package in the folder. index.html is a page that shows the same rows and
    more of each package. In both files, the results that use the name MLPerf come first.

    Args:
        root: The published folder, which has the packages as packages/ID/ORG.

    Returns:
        The text of each file by the name of the file.

    Raises:
        ValueError: The manifest of a package is not JSON, or the system description is not a JSON object.
        OSError: A manifest, a system description, a list of hashes or a log cannot be opened.
    """
    manifests = sorted((root / PACKAGES).glob(f"*/*/{MANIFEST}"))  # packages/ID/ORG/submission.json
    results = [_result_of_package(root, manifest.parent) for manifest in manifests]
    results.sort(key=_place_in_table)
    notes_of_all = itertools.chain.from_iterable(result.footnotes for result in results)
    notes = mlperf.notes_in_order(notes_of_all)  # each note once
    page_rows = [result.row | result.of_page for result in results]  # the row of the table, and more for the page
    page = rendered("site.html", results=page_rows, footnotes=notes)
    table = {"results": [result.row for result in results], "footnotes": notes}
    return {TABLE: json.dumps(table, indent=2) + "\n", PAGE: page}


@dataclass(frozen=True, kw_only=True)
class _Published:
    """One result of a published folder."""

    row: JsonObject  # of the table, by its columns
    of_page: JsonObject  # what the page shows in addition to the row
    footnotes: list[str]


def _result_of_package(root: Path, folder: Path) -> _Published:
    """Return a package's row in the table of results, the details on the page, and the footnotes of both.

    All is read from the package's manifest, its list of hashes (for its id), the system description that the manifest
    names, and the logs of its runs.

    Args:
        root: The published folder.
        folder: Folder of the package in the published folder, packages/ID/ORG.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    description = read_description(folder / "systems" / f"{manifest['system']}.json")
    names_of_package = {"package": folder.relative_to(root).as_posix(), "id": sha256(folder / HASHES)}
    # The row is {"package": "packages/ID/ORG", "id": ..., then from the manifest "organisation": "Some Lab",
    # "minutes": 61.5, "runs": 5, ..., and from the system description "nodes": "2", "accelerator": "H200", ...}.
    row = names_of_package | _columns_of_manifest(manifest) | _columns_of_system(description)
    of_page = {
        # What the manifest says of each run, such as its "file" and "verdict", with the lines of its log from which
        # time and quality are computed.
        "shown_runs": [run | {"lines": _scoring_lines(folder / run["file"])} for run in manifest["runs"]],
        "description": {name: value for name, value in description.items() if value},  # without empty fields
    }
    return _Published(row=row, of_page=of_page, footnotes=manifest["footnotes"])


def _columns_of_manifest(manifest: JsonObject) -> JsonObject:
    result = manifest["result"]
    runs = manifest["runs"]
    return {name: manifest[name] for name in _MANIFEST_COLUMNS} | {
        "status": _status(manifest["footnotes"]),
        "result": result["name"],
        "is_mlperf": result["is_mlperf"],
        "dataset": result["dataset"],
        "target": result["target_in_words"],
        "runs": len(runs),
        "runs_that_count": sum(run["verdict"] == "pass" for run in runs),
    }


def _columns_of_system(description: JsonObject) -> JsonObject:
    return {column: description[field] for column, field in _SYSTEM_COLUMNS.items()}


def _status(footnotes: list[str]) -> str:
    """Return the status of a result: unverified if it uses the name MLPerf, as only such results have footnotes.

    The manifest's `is_mlperf` does not tell this: a result may also use the name where it is None.

    Args:
        footnotes: The notes that must stand with the result.
    """
    return mlperf.UNVERIFIED if footnotes else "no MLPerf result"


def _place_in_table(result: _Published) -> tuple[bool, list[Any]]:
    """Return the sort key of a result: MLPerf results first, then by benchmark, division and minutes."""
    row = result.row
    return not result.footnotes, [row[name] for name in ("benchmark", "division", "minutes")]


def _scoring_lines(log: Path) -> list[tuple[int, str]]:
    """Return the lines of a log with a run_start, eval_accuracy or run_stop, each with its number.

    The run's time to train and its quality are computed from these lines.

    Args:
        log: Path of the log.

    Returns:
        Pairs of the line number, counted from 1, and the text, cut to 300 characters.
    """
    scoring_events = [entry for entry in read_log(log) if isinstance(entry, Event) and entry.key in _SCORING_KEYS]
    wanted_numbers = {event.line for event in scoring_events}
    lines = []
    with log.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, 1):
            if number in wanted_numbers:
                lines.append((number, printable(line.rstrip("\n"), 300)))
    return lines
