"""`program/` stands on the log's schema and on Paddle alone, and no product code takes a function's place by a mock."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PRODUCT = ("program", "harness", "paddle_rn50", "paddle_hrnet", "tools", "runlog", "compliance", "scoring")


def imported(path: Path) -> set[str]:
    """Packages that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_program_imports_nothing_above_it(repository: Path) -> None:
    for path in sorted((repository / "program").glob("*.py")):
        assert not imported(path) & (set(PRODUCT) - {"program", "runlog"}), path


@pytest.mark.parametrize("package", PRODUCT)
def test_no_product_code_imports_a_mock(repository: Path, package: str) -> None:
    for path in sorted((repository / package).rglob("*.py")):
        assert "unittest" not in imported(path), path
