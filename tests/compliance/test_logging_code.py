"""A log names the lines of code that logged its events, and they are lines of the commit that it names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from compliance import rules
from compliance.check import check_file
from compliance.submission.logging_code import refusals_by_logging_code
from tests import jobs, make_log
from tests.compliance.altered import Altered, write

CODE = """\
log.mark(schema.RUN_START)
self.log.event(schema.SEED, seed)
log.event(event, value)
seed = run.seed
"""


@pytest.mark.parametrize(
    ("line", "refused"), [(1, True), (2, False), (3, False), (4, True), (5, True), (0, True), (1.5, True), ("2", True)]
)
def test_an_event_was_logged_by_a_line_that_logs_it(line: object, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.py").write_text(CODE)
    log = Altered(make_log.run())
    log.lines = [log.lines[log.at("seed")]]
    [path] = write(tmp_path, log.metadata("seed", file="run.py", lineno=line).text)
    refusals = list(refusals_by_logging_code([check_file(path, rules.load("4.0.0"))], tmp_path / "code"))
    assert [f"seed was logged by line {line} of run.py" in refusal.text for refusal in refusals] == [True] * refused


def _calls_that_log(path: Path) -> Iterator[tuple[str, str]]:
    """The first line of each call `log.event(schema.X, ...)` or `log.mark(schema.X, ...)`, and `schema.X`."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        named = ast.unparse(node.args[0])
        if node.func.attr in ("event", "mark") and named.startswith("schema."):
            yield text.splitlines()[node.lineno - 1], named


def test_each_call_that_logs_names_its_event_on_its_first_line() -> None:
    """Python takes this line for that of the call; so an honest log fits its code."""
    calls: list[tuple[str, str]] = []
    for room in ("harness", "runlog", "paddle_rn50", "paddle_hrnet"):
        for path in (jobs.REPOSITORY / room).rglob("*.py"):
            calls += _calls_that_log(path)
    assert len(calls) > 20
    for line, named in calls:
        assert f"({named}" in line
