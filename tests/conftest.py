"""Fixtures that every folder of tests shares."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs

REPOSITORY = Path(__file__).resolve().parents[1]


def _folder(variable: str, default: Path) -> Path:
    """The folder that `variable` names; which must be there."""
    folder = Path(os.environ.get(variable, default))
    jobs.need(folder.is_dir(), f"{folder} is absent: set {variable} to the folder")
    return folder


@pytest.fixture(autouse=True)
def no_watchdog_is_left() -> Iterator[None]:
    """A rank's watchdog, started in the tests' own process, would end it some minutes and tests later."""
    yield
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}, "set HANG_TIMEOUT_S=0 here"


@pytest.fixture(autouse=True)
def recorded_gpus_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this machine's user chose some of its GPUs, the recorded machines have other ones."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


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
