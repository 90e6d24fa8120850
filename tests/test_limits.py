"""What keeps code readable: the length of files, tests too, and of functions; ruff limits statements and branches."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

MOST_LINES, MOST_LINES_OF_A_FUNCTION = 450, 60


def tracked(repository: Path, *suffixes: str, but: tuple[str, ...] = ()) -> list[Path]:
    """The tracked files of those suffixes, in none of the folders `but`."""
    listed = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, check=True).stdout
    names = (name for name in listed.splitlines() if name.endswith(suffixes) and not name.startswith(but))
    return [path for name in names if (path := repository / name).is_file()]


def test_no_file_is_long(repository: Path) -> None:
    files = tracked(repository, ".py", ".sh", ".sub", ".html", ".css", ".md.j2")
    lengths = {str(path.relative_to(repository)): len(path.read_text().splitlines()) for path in files}
    assert "launch/nodes.py" in lengths and "run_and_time.sh" in lengths
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_function_is_long(repository: Path) -> None:
    lengths = {
        f"{path.relative_to(repository)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in tracked(repository, ".py", but=("tests/", "benchmarks/"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert "launch/nodes.py:main" in lengths
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}
