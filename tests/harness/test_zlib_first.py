"""Paddle's parts of a zlib stay apart from the system's, whichever way our code is started."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import jobs

USE = """
import io
import numpy
from PIL import Image
file = io.BytesIO()
Image.fromarray(numpy.zeros((40, 40), numpy.uint8)).save(file, "PNG")
Image.open(io.BytesIO(file.getvalue())).load()
from mpi4py import MPI
print("whole")
"""


@pytest.mark.parametrize("first", ["harness", "tools.inspect"])
def test_paddle_before_all_else_breaks_nothing(first: str) -> None:
    """In a process of its own, as pytest has zlib already; PNG and MPI were what crashed."""
    done = jobs.run([sys.executable, "-c", f"import {first}\nimport paddle\n{USE}"])
    assert done.stdout.endswith("whole\n"), done.stderr[-1500:]


def imported(path: Path) -> list[str]:
    """Packages that a module imports at its top, in order."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append((node.module or "").partition(".")[0])
    return names


def test_every_command_has_the_harness_before_paddle(repository: Path) -> None:
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=repository, capture_output=True, text=True, check=True)
    commands = [repository / name for name in files.stdout.split() if not name.startswith("tests/")]
    commands = [path for path in commands if path.exists() and 'if __name__ == "__main__"' in path.read_text()]
    assert len(commands) > 10
    for path in commands:
        names = imported(path)
        if path.parent.name in ("program", "harness", "tools"):  # `python -m harness.x` has the package first
            continue
        first = min(names.index(name) if name in names else len(names) for name in ("program", "harness", "tools"))
        assert "paddle" not in names[:first], path
