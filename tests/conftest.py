"""Fixtures that every folder of tests shares."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import jobs
from tests.jobs import need

OWN_LOGS = f"{jobs.REPOSITORY.name}/data/published_logs"  # of tests/fetch_logs.sh


def _published(what: str, fix: str, *defaults: str) -> Path:
    """The folder that PUBLISHED_`what` names, or the first of the defaults that is there; there must be one."""
    named = os.environ.get(f"PUBLISHED_{what}")
    candidates = [Path(named)] if named else [jobs.REPOSITORY.parent / default for default in defaults]
    folder = next((path for path in candidates if path.is_dir()), candidates[-1])
    need(folder.is_dir(), f"{folder} is absent: {fix}")
    return folder


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the run with one line that says what was skipped and how to have it; xdist's workers have no reporter."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = (report.longrepr for report in reporter.stats.get("skipped", [])) if reporter else ()
    if reasons := Counter(said[2].removeprefix("Skipped: ") for said in skipped if isinstance(said, tuple)):
        print(f"skipped: {reasons.total()} tests ({'; '.join(f'{n}: {why}' for why, n in reasons.most_common())})")


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
def published_logs() -> Path:
    """Folder of logs that other systems published; they are read in place and never copied."""
    return _published("LOGS", "tests/fetch_logs.sh fetches the logs", "shared/logs", OWN_LOGS)


@pytest.fixture(scope="session")
def published_reports() -> Path:
    """Folder of the texts of the five published reports."""
    return _published("REPORTS", "set PUBLISHED_REPORTS to the folder of the five reports' texts", "shared/seeds")


@pytest.fixture(scope="session")
def published_corpus() -> Path:
    """Folder of archives of the published MLPerf rounds, which are read in place."""
    return _published("CORPUS", "set PUBLISHED_CORPUS to the folder of the rounds' archives", "shared/corpus")


@pytest.fixture(scope="session")
def standing_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose ranks train nothing: `jobs.run_and_time(cwd=standing_in, ...)` takes 4 s."""
    return jobs.standing_in(tmp_path_factory.mktemp("checkouts") / "standing_in")
