"""The commit in a log's header is this checkout's, or unknown."""

import shutil
from pathlib import Path

import pytest

from harness import provenance
from tests import jobs
from tests.needs import need


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a repository that tracks run_and_time.sh, in place of this one."""
    need(shutil.which("git") is not None, "git")
    (tmp_path / "locks").mkdir()
    for name in ("run_and_time.sh", "locks/run.lock"):
        (tmp_path / name).write_text("")
    who = ("-c", "user.name=user", "-c", "user.email=user@example.com")
    for words in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "--message", "One")):
        assert jobs.run(["git", *words], cwd=tmp_path).returncode == 0
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    return jobs.run(["git", "rev-parse", "HEAD"], cwd=tmp_path).stdout.strip()


def test_a_shells_git_dir_is_of_another_repository(
    commit: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    source = provenance.source("", "")
    assert (source.commit, source.dirty) == (commit, False)


def test_a_checkout_of_another_user(commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own, for its tests
    assert provenance.source("", "").commit == commit


def test_an_archive_below_another_repository(commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "unpacked"
    shutil.copytree(tmp_path / "locks", unpacked / "locks")
    (unpacked / "run_and_time.sh").write_text("")
    monkeypatch.setattr(provenance, "REPOSITORY", unpacked)
    source = provenance.source("", "")
    assert (source.commit, source.dirty) == (None, None)
