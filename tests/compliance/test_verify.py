"""Verify: a package as it was built passes; of one that was altered the check says what does not hold."""

import contextlib
import json
import os
import py_compile
import shutil
import subprocess
from pathlib import Path

import pytest

from compliance.submission import committed_code, package
from compliance.submission.verify import verify
from tests.compliance.altered import answer, compliance
from tests.compliance.packages import in_text

pytestmark = [pytest.mark.usefixtures("little_repository"), pytest.mark.xdist_group("package")]
CODE = "benchmarks/resnet/implementations/paddle"
LOG = "results/CPU/resnet/result_0.txt"


def test_a_published_package_verifies(built, tmp_path: Path, monkeypatch) -> None:
    """By a link or from within it, too; nothing of it is written. A commit that the checkout lacks fails."""
    copy, link = tmp_path / "Example", tmp_path / "link"
    shutil.copytree(built[0], copy)
    link.symlink_to(copy)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    monkeypatch.chdir(copy)
    for folder in (str(copy), str(link), "."):
        said = answer("verify", folder)
        assert (said["verdict"], {check["status"] for check in said["checks"]}) == ("pass", {"ok"})
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "other")], check=True)
    for repository, status in ((copy, "unknown"), (tmp_path / "other", "fatal")):
        monkeypatch.setattr(committed_code, "REPOSITORY", repository)
        [code] = [a for a in verify(copy) if a.check == "code"]
        assert (code.status, "git has no commit" in code.found) == (status, True)


def test_a_checkout_that_git_does_not_read_is_no_fault_of_the_package(built, monkeypatch) -> None:
    """As if another user owned it."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for name, value in (("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_CONFIG_NOSYSTEM", "1")):  # they may allow any owner
        monkeypatch.setenv(name, value)
    [code] = [a for a in verify(built[0]) if a.check == "code"]
    assert (code.status, "git does not read this checkout: fatal: detected dubious" in code.found) == ("unknown", True)


def test_what_was_altered_added_or_taken_away_is_named(built, tmp_path: Path) -> None:
    folder = tmp_path / "Example"
    shutil.copytree(built[0], folder)
    log = folder / LOG
    log.write_bytes(log.read_bytes()[:-2] + b" \n")
    (folder / "README.md").unlink()
    (folder / "results/CPU/resnet/note").write_text("x")
    found = [answer.found for answer in verify(folder) if answer.check == "SHA256SUMS"]
    assert found == ["README.md is missing", "results/CPU/resnet/note is not listed", f"{LOG} was altered"]
    (folder / "SHA256SUMS").write_text("".join(reversed(package.hashes(folder).splitlines(keepends=True))))
    assert verify(folder)[0].found == "not in the order or form that it was written in"


def test_code_that_cannot_be_executed_is_a_warning(built, tmp_path: Path) -> None:
    """As after a download, which keeps no permissions."""
    folder = tmp_path / "Example"
    shutil.copytree(built[0], folder)
    (folder / CODE / "run_and_time.sh").chmod(0o644)
    said = answer("verify", str(folder))
    [warning] = [check for check in said["checks"] if check["status"] != "ok"]
    assert (said["verdict"], warning["check"], warning["status"]) == ("pass", "code", "warning")
    assert warning["found"] == "1 file of the code cannot be executed, such as run_and_time.sh"


# --- gutted packages, their hashes made good ---


def _foreign_code(folder: Path) -> None:
    """Code of no commit: the logs and all that is said of them name none."""
    commit = json.loads((folder / "submission.json").read_text())["commit"]
    for path in (folder / "submission.json", folder / "README.md", *folder.rglob("result_*.txt")):
        path.write_text(path.read_text().replace(commit, "zzz"))
    (folder / CODE / "runlog/reader.py").write_text("# nothing\n")


def _of_another_benchmark(folder: Path) -> None:
    """The package says everywhere but in its logs that they are of SSD, which has as many runs as ResNet."""
    for parent in ("benchmarks", "results/CPU"):
        (folder / parent / "resnet").rename(folder / parent / "ssd")
    for name in ("submission.json", "README.md"):
        path = folder / name
        path.write_text(path.read_text().replace("resnet", "ssd"))


def _cached(folder: Path) -> None:
    """As by `python -m compliance verify` of the package's code."""
    py_compile.compile(str(folder / CODE / "runlog/reader.py"))


@pytest.mark.parametrize(
    ("gut", "says"),
    [
        (in_text("README.md", "Score: ", "Score: 1"), "differs from the report that the logs give"),
        (in_text("submission.json", '"minutes": ', '"minutes": 1'), "differs from what the logs say in: minutes"),
        (in_text("submission.json", '"ruleset": "4.0.0"', '"ruleset": "9.0.0"'), "ruleset 9.0.0: no rules for it"),
        (in_text("submission.json", '"system": "CPU"', '"system": "../.."'), "../.. is not a name of a system"),
        (in_text("systems/CPU.json", "Example", "Other"), "result_0.txt"),
        (in_text(LOG, '"status": "success"', '"status": "aborted"'), "differs from what the logs say in: "),
        (in_text(LOG, '"key": "epoch_stop"', '"key": "epoch_stopp"'), "result_0.txt"),
        (in_text(LOG, '"dirty": false', '"dirty": true'), "the code differed from its commit"),
        (in_text(LOG, '"lock_sha256": "', '"lock_sha256": "0'), "they ran with another locks/run.lock"),
        (
            in_text(LOG, '"file": "harness/header.py"', '"file": "harness/loop.py"'),
            "of harness/loop.py, which does not",
        ),
        (lambda p: (p / "results/CPU/resnet/note").symlink_to("/etc/passwd"), "note is not a regular file"),
        (lambda p: (p / "results/CPU/resnet/result_4.txt").unlink(), "result_4.txt is missing"),
        (lambda p: (p / CODE / "runlog/reader.py").write_text("# nothing\n"), "runlog/reader.py differs from commit"),
        (lambda p: (p / CODE / "runlog/reader.py").unlink(), "runlog/reader.py is missing; commit "),
        (lambda p: (p / CODE / "more.py").write_text("1\n"), "more.py is none of commit"),
        (lambda p: shutil.rmtree(p / "benchmarks"), "is missing; commit "),
        (_foreign_code, "they do not say of which commit they are"),
        (_of_another_benchmark, "differs from what the logs say in: benchmark"),
        # Equal values for Python, another one for who reads the file:
        (in_text("submission.json", '"scaling": 1.0', '"scaling": true'), "not in the form of a package's"),
        (lambda p: (p / "results/CPU/resnet/scaling.json").write_text("{}"), "scaling.json is nothing that a package"),
        (lambda p: (p / "results/CPU/.hidden").write_text("x"), ".hidden is a name that no package holds"),
        (lambda p: (p / "results/CPU/a\nb").write_text("x"), "results/CPU/a\\nb is a name that no package holds"),
        (lambda p: (p / "results/CPU" / os.fsdecode(b"\xff.txt")).write_text("x"), "is a name that no package holds"),
        (lambda p: (p / "results/CPU/empty").mkdir(), "results/CPU/empty is an empty folder"),
        (_cached, f"{CODE}/runlog/__pycache__ is what Python wrote as the package's code ran: remove the folder"),
        (lambda p: (p / "README.md").write_bytes(b" " * 2**21), "differs from the report that the logs give"),
        (lambda p: (p / "submission.json").write_bytes(b"[" * 2**21), "submission.json: cannot be read as a manifest"),
        (
            lambda p: (p / "systems/CPU.json").write_bytes(b"[" * 2**21),
            "CPU.json: cannot be read as a system description",
        ),
    ],
)
def test_a_gutted_package_fails(gut, says: str, built, tmp_path: Path) -> None:
    folder = tmp_path / "Example"
    shutil.copytree(built[0], folder)
    gut(folder)
    with contextlib.suppress(UnicodeEncodeError):
        (folder / "SHA256SUMS").write_text(package.hashes(folder))
    status, out, err = compliance("verify", folder)
    assert (status, err, says in out) == (1, "", True)


def test_a_file_beyond_any_packages_size_is_refused_unread(built, tmp_path: Path) -> None:
    copy = tmp_path / "Example"
    shutil.copytree(built[0], copy)
    with (copy / "results/CPU/resnet/result_0.stderr").open("r+b") as stream:
        stream.truncate(64 << 30)  # sparse: hashing it takes two minutes
    [check] = answer("verify", copy, status=1)["checks"]
    assert (check["check"], "over 50 MiB" in check["found"]) == ("files", True)
