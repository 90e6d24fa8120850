"""The writer of a log: which line of code it says logged an event."""

from pathlib import Path

import pytest

from runlog import schema, writer
from runlog.reader import Event, read_log
from runlog.writer import RunLog


@pytest.mark.parametrize("folder", ["rn50", "c++ (1)", "a[b", "*"])
def test_the_path_of_the_code_is_that_in_the_repository(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mllog takes the repository's path for a regular expression: a run in "a[b" ended in a traceback."""
    monkeypatch.setattr(writer, "REPOSITORY", tmp_path / folder)
    code = "log.event(schema.SEED, 3)"
    log = RunLog(tmp_path / "result_0.txt")
    exec(compile(code, str(tmp_path / folder / "harness" / "header.py"), "exec"), {"log": log, "schema": schema})
    log.close()
    [event] = read_log(tmp_path / "result_0.txt")
    assert isinstance(event, Event)
    assert (event.metadata["file"], event.metadata["lineno"]) == ("harness/header.py", 1)
