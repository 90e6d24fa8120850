"""`tests/fetch_logs.sh` from a mirror on this disk, and what a run of the tests says of those it skipped."""

import csv
import hashlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import jobs
from tests.jobs import printed

SCRIPT = str(jobs.REPOSITORY / "tests/fetch_logs.sh")


@pytest.fixture
def mirror(tmp_path: Path, published_logs: Path) -> Path:
    """A folder with the paths of the public repositories."""
    for line in printed(SCRIPT, "--dry-run", "X", LOGS_MIRROR="M").splitlines():
        source, target = line.split(" -> ")
        path = tmp_path / "mirror" / source.removeprefix("M/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(published_logs / target.removeprefix("X/"), path)
    return tmp_path / "mirror"


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_each_log_is_fetched_once_and_has_its_digest(tmp_path: Path, mirror: Path, published_logs: Path) -> None:
    """Where one is another file and one is missing they are named, and not kept."""
    folder, command = tmp_path / "logs", [SCRIPT, str(tmp_path / "logs")]
    altered, *_, missing = sorted(path for path in mirror.rglob("*") if path.is_file())
    right = {path: path.read_bytes() for path in (altered, missing)}
    altered.write_bytes(right[altered] + b"\n")
    missing.unlink()
    done = jobs.run(command, LOGS_MIRROR=f"file://{mirror}")
    assert (done.returncode, len(files(folder))) == (1, 11)
    assert f"{altered.name} has another SHA-256 than " in done.stderr
    assert f"{missing.name} could not be fetched" in done.stderr
    for path, content in right.items():
        path.write_bytes(content)
    assert len(printed(*command, LOGS_MIRROR=f"file://{mirror}").splitlines()) == 2
    assert files(folder) == {name: digest for name, digest in files(published_logs).items() if name != "README.md"}
    shutil.rmtree(mirror)
    again = jobs.run(command, LOGS_MIRROR=f"file://{mirror}")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_the_urls_are_pinned_and_the_digests_are_those_of_the_scorers_table() -> None:
    urls = [line.split(" -> ")[0] for line in printed(SCRIPT, "--dry-run").splitlines()]
    assert len(urls) == 13
    for url in urls:
        *host, commit = url.split("/")[:6]
        assert host[2] == "raw.githubusercontent.com" and len(commit) == 40
    with (jobs.REPOSITORY / "scoring/published/published_logs.csv").open() as table:
        known = {digest for row in csv.DictReader(table) for digest in row["sha256"].split(";") if digest}
    fetched = re.findall(r"^[0-9a-f]{64}\b", Path(SCRIPT).read_text(), re.MULTILINE)
    assert len(set(fetched)) == len(urls)
    assert known.issuperset(fetched)  # it knows another log, too, which a user may have


def test_a_run_ends_with_what_was_skipped_and_how_to_have_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "1", "-k", "fetched_once", __file__]
    done = jobs.run(command, PUBLISHED_LOGS=str(tmp_path / "none"), TESTS_MUST_NOT_SKIP=0)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("skipped: ") and last.endswith("none is absent: tests/fetch_logs.sh fetches the logs)"), last
    assert int(last.split()[1]) > 0
