"""What every test of a fault leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are run by .ci/run."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ci)


@pytest.fixture(autouse=True)
def nothing_runs_on(tmp_path: Path) -> Iterator[None]:
    """Ends the job of a test that failed before its job had ended."""
    yield
    jobs.kill_at_once(lambda: jobs.processes(tmp_path / "logs"))
