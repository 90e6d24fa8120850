"""`python -m scoring` and `python -m compliance` by a Python that cannot run them."""

import sys
from pathlib import Path

import pytest

from runlog import interpreter
from tests import jobs

LOG = "results/CPU/rn50/result_0.txt"


@pytest.mark.parametrize("words", [["scoring", "score", LOG, "--protocol", "window"], ["compliance", "check", LOG]])
def test_a_python_without_the_packages_is_told_which_one_has_them(words: list[str]) -> None:
    """Who typed the README's lines by the system's Python got a traceback, "No module named 'yaml'"."""
    done = jobs.run([sys.executable, "-S", "-m", *words])  # -S: without site-packages
    expected = f"python -m {words[0]}: {sys.executable} lacks the package yaml: {interpreter.WHAT_TO_DO}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("tool", ["doctor", "watch", "fleet"])
def test_a_tool_by_the_systems_python_is_named_with_the_package_that_is_missing(tool: str) -> None:
    """It ended in a traceback, "No module named 'psutil'", 'rich' or 'numpy'."""
    done = jobs.run([sys.executable, "-S", "-m", f"tools.{tool}", "results"])
    expected = f"python -m tools.{tool}: {sys.executable} lacks the package yaml: {interpreter.WHAT_TO_DO}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_a_command_whose_package_is_missing_says_so(tmp_path: Path) -> None:
    """`report` ended in a traceback where jinja2 alone was not installed."""
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')")
    done = jobs.run([sys.executable, "-m", "scoring", "report", LOG], PYTHONPATH=str(tmp_path))
    expected = f"python -m scoring report: needs the package jinja2: {interpreter.WHAT_TO_DO}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_an_old_python_is_told_its_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(interpreter, "OLDEST", (99, 0))
    interpreter.refuse_unfit("scoring")  # imported by a program, as here
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "scoring", "score"])
    with pytest.raises(SystemExit) as end:
        interpreter.refuse_unfit("scoring")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    expected = f"python -m scoring: {sys.executable} is Python {version}: {interpreter.WHAT_TO_DO}\n"
    assert (end.value.code, capsys.readouterr().err) == (2, expected)
