"""Fixtures that every folder of tests shares."""

import os
from pathlib import Path

import pytest

from tests import jobs

REPOSITORY = Path(__file__).resolve().parents[1]


def _folder(variable: str, default: Path) -> Path:
    """The folder that `variable` names; which must be there."""
    folder = Path(os.environ.get(variable, default))
    jobs.need(folder.is_dir(), f"{folder} is absent: set {variable} to the folder")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def published_logs() -> Path:
    """Folder of logs that other systems published; they are read in place and never copied."""
    return _folder("PUBLISHED_LOGS", REPOSITORY.parent / "shared" / "logs")


@pytest.fixture(scope="session")
def published_reports() -> Path:
    """Folder of the texts of the five published reports."""
    return _folder("PUBLISHED_REPORTS", REPOSITORY.parent / "shared" / "seeds")
