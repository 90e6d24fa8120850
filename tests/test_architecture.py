"""The architecture page leads to files that there are, and to each room of the training half."""

from __future__ import annotations

import re
from pathlib import Path

# Named by their rooms' rows or by none: what no change begins with.
WITHOUT_A_ROW = {"program/contexts.py", "program/ops.py", "runlog/errors.py", "runlog/json_schema.py"}


def named(page: str) -> set[str]:
    """Paths that the page has in backticks, with a star for what it leaves open, as `config_<SYSTEM>.sh`."""
    words = {word for code in re.findall(r"`([^`\n]+)`", page) for word in code.split()}
    paths = {word for word in words if re.fullmatch(r"[\w<>*./-]+", word) and ("/" in word or word.endswith(".sh"))}
    return {re.sub(r"<\w+>", "*", path) for path in paths}


def test_each_path_that_the_page_names_is_there(repository: Path) -> None:
    paths = named((repository / "docs" / "architecture.md").read_text())
    assert len(paths) > 60
    there = {path for path in paths for place in (".", "launch", "tests") if list((repository / place).glob(path))}
    assert paths - there == set()


def test_each_module_of_the_training_half_is_named(repository: Path) -> None:
    page = (repository / "docs" / "architecture.md").read_text()
    for room in ("harness", "program", "runlog", "tools", "launch"):
        for path in sorted((repository / room).glob("*.py")):
            name = path.relative_to(repository).as_posix()
            found = re.search(rf"\b{re.escape(path.name)}\b", page)
            assert found or path.stem.startswith("__") or name in WITHOUT_A_ROW, name
