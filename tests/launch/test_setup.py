"""launch/setup.sh on machines that lack something, and on one that has all; the lock for each Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = ("bash", "dirname", "sha256sum", "uname", "df", "tail", "grep", "echo", "cat", "mkdir", "env", "rm")


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """A checkout that is not set up, and a PATH with the usual tools but no Python."""
    folder = tmp_path / "checkout"
    (folder / "launch").mkdir(parents=True)
    shutil.copy(repository / "launch/setup.sh", folder / "launch")
    shutil.copytree(repository / "locks", folder / "locks")
    (folder / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (folder / "bin" / tool).symlink_to(found)
    return folder


def program(checkout: Path, name: str, script: str) -> None:
    path = checkout / "bin" / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def setup(checkout: Path, *locks: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "launch/setup.sh", *locks],
        cwd=checkout,
        env={"PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr


def test_no_python(checkout: Path) -> None:
    refused(setup(checkout), "Python 3.10, 3.11 or 3.12 is needed, as Paddle 2.6.2 has wheels for these only")


def test_another_python(checkout: Path) -> None:
    program(checkout, "python3", "echo 3.13")
    refused(setup(checkout), "found: 3.13. Install one")


def test_no_venv_module(checkout: Path) -> None:
    program(checkout, "python3.11", f'[[ "$2" == *ensurepip* ]] && exit 1; exec {sys.executable} "$@"')
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    refused(setup(checkout), f"python3.11 has no venv module: apt install python{version}-venv")


def test_another_platform(checkout: Path) -> None:
    program(checkout, "uname", '[[ "$1" == -m ]] && echo aarch64 || echo Linux')
    refused(setup(checkout), "Linux on aarch64: Paddle's wheel exists for Linux on x86_64 only")


def test_a_full_disk(checkout: Path) -> None:
    program(checkout, "python3.11", f'exec {sys.executable} "$@"')
    program(checkout, "df", "echo Avail; echo 3000000")
    refused(setup(checkout), "3 GB free in")


def test_pip_that_fails_is_quoted(checkout: Path) -> None:
    program(
        checkout,
        "python3.11",
        f'[[ "$*" == "-m venv .venv" ]] || exec {sys.executable} "$@"\n'
        'mkdir -p .venv/bin; printf "#!/bin/bash\\necho ERROR: no wheel of x; exit 1" >.venv/bin/python\n'
        f"{shutil.which('chmod')} +x .venv/bin/python",
    )
    refused(setup(checkout), "pip could not install locks/run.lock: ERROR: no wheel of x; all of it is in")


def test_a_set_up_checkout_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    for lock in ("run", "dev"):
        stamp = subprocess.run(
            ["sha256sum"], stdin=(checkout / f"locks/{lock}.lock").open(), capture_output=True, check=True
        ).stdout
        (checkout / f".venv/{lock}.sha256").write_bytes(stamp)
    done = setup(checkout, "run", "dev")  # there is no Python: any work would fail
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (checkout / "locks/run.lock").open("a") as lock_file:
        lock_file.write("# another lock\n")
    assert setup(checkout, "run").returncode == 2


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12"])
def test_the_lock_has_a_wheel_of_everything_for(version: str, repository: Path, tmp_path: Path) -> None:
    """Needs the package index, as set-up does."""
    done = subprocess.run(
        [
            *("uv", "pip", "install", "--dry-run", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
            *("--target", str(tmp_path), "--python-version", version, "--requirement", "locks/run.lock"),
        ],
        cwd=repository,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "paddlepaddle-gpu==2.6.2" in done.stderr
