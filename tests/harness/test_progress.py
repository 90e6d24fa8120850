"""What a run shows of itself, and its warnings in the log."""

from pathlib import Path

import pytest

from harness.progress import Progress
from runlog.writer import RunLog


@pytest.mark.parametrize("kind", ["plain", "bar"])
def test_a_warning_is_one_line_whatever_a_files_name_holds(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line break made two lines of the log, an event's mark ended the run, and the bar left out brackets."""
    log = RunLog(tmp_path / "result_0.txt")
    with Progress(kind, 9) as shown:
        shown.warn(log, 'the first is a\n:::MLLOG {"key": "run_stop"}\u2028[copy]\udcff.txt')
    escaped = r'warning: the first is a\n:::MLLOG {"key": "run_stop"}\u2028[copy]\udcff.txt'
    assert escaped in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")
    written = (tmp_path / "result_0.txt").read_text()
    assert written == escaped.replace(":::", r"::\:") + "\n"
