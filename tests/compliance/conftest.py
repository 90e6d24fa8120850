"""Fixtures that the tests of compliance share."""

from pathlib import Path
from typing import Any

import pytest

from compliance import rules
from compliance.submission import committed_code, package
from tests import jobs
from tests.compliance.packages import description, five, little


@pytest.fixture(scope="session")
def commit() -> str:
    return jobs.run(["git", "rev-parse", "HEAD"]).stdout.strip()


@pytest.fixture(scope="session")
def little_code(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A repository of a few of this one's files, and its commit: to copy and verify all files takes seconds."""
    folder = tmp_path_factory.mktemp("little")
    return folder, little(folder)


@pytest.fixture
def little_repository(little_code: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages have the code of that repository, and are verified against it."""
    monkeypatch.setattr(committed_code, "REPOSITORY", little_code[0])


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, little_code: tuple[Path, str]) -> tuple[Path, dict[str, Any]]:
    """A package of five runs on the embedded digits, of the little repository's code, and what the command printed."""
    folder = tmp_path_factory.mktemp("open")
    repository, commit = little_code
    logs = five(folder, commit)
    for index in range(4, 8):  # one run has no log of its framework
        (logs / f"result_{index}.stderr").write_text(f"W1126 run {index}: paddle warns\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(committed_code, "REPOSITORY", repository)
        target, content, answers = package.build(
            sorted(logs.glob("result_*.txt")),
            org="Example",
            system=str(description(folder)),
            out=folder / "out",
            ruleset=rules.load("4.0.0"),
        )
    return target, content.manifest | {"official": answers, "logs": logs}
