"""Paddle's parts of a zlib stay apart from the system's, whichever way our code is started."""

import ast
import sys
from pathlib import Path

import pytest

from tests import jobs
from tests.test_architecture import imports, tracked

FIRST, COMMAND = ("program", "harness", "tools"), 'if __name__ == "__main__"'
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


def test_every_command_has_the_harness_before_paddle(repository: Path) -> None:
    commands = [path for path in tracked(repository, ".py", but=("tests/",)) if COMMAND in path.read_text()]
    assert len(commands) > 10
    for path in commands:
        tree = ast.parse(path.read_text())
        top = [name.partition(".")[0] for node, name in imports(tree) if node in tree.body]
        if path.parent.name not in FIRST:  # `python -m harness.x` has the package first
            assert "paddle" not in top[: min(top.index(name) if name in top else len(top) for name in FIRST)], path
