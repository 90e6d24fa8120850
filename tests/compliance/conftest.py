"""Fixtures that the tests of compliance share."""

from pathlib import Path
from typing import Any

import pytest

from compliance.submission import package
from tests import jobs
from tests.compliance.packages import description, five


@pytest.fixture(scope="session")
def commit() -> str:
    return jobs.run(["git", "rev-parse", "HEAD"]).stdout.strip()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, commit: str) -> tuple[Path, dict[str, Any]]:
    """A package of five runs on the embedded digits, and what the command printed."""
    folder = tmp_path_factory.mktemp("open")
    logs = five(folder, commit)
    for index in range(4, 8):  # one run has no log of its framework
        (logs / f"result_{index}.stderr").write_text(f"W1126 run {index}: paddle warns\n")
    target, content, answers = package.build(
        sorted(logs.glob("result_*.txt")),
        org="Example",
        system=str(description(folder)),
        out=folder / "out",
        ruleset=package.load("4.0.0"),
    )
    return target, content.manifest | {"official": answers, "logs": logs}
