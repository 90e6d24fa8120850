"""What every test of a fault leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs


@pytest.fixture(autouse=True)
def nothing_runs_on(tmp_path: Path) -> Iterator[None]:
    """Ends the job of a test that failed before its job had ended."""
    yield
    jobs.kill_at_once(lambda: jobs.processes(tmp_path / "logs"))
