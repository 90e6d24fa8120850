"""What the tests of packages build them from."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compliance.submission.committed_code import REPOSITORY
from compliance.submission.system import FIELDS
from tests import make_log

LOGGING_CODE = "harness/header.py"


def description(folder: Path, **changes: str) -> Path:
    fields = dict.fromkeys(FIELDS, "") | {
        **{"submitter": "Example", "division": "open", "status": "Research, Development, or Internal (RDI)"},
        **{"system_name": "CPU", "number_of_nodes": "1", "host_processors_per_node": "1", "accelerators_per_node": "0"},
        **{"framework": "paddlepaddle 2.6.2", "host_processor_model_name": "Example CPU 9000"},
    }
    path = folder / "CPU.json"
    path.write_text(json.dumps(fields | changes))
    return path


def of_commit(log: str, commit: str) -> str:
    """The text of a log of `make_log`, as by the code and the lock of a commit."""
    code = (REPOSITORY / LOGGING_CODE).read_text().splitlines()
    line = 1 + next(index for index, text in enumerate(code) if "log.event(event, value)" in text)  # of any event
    log = re.sub(r'"file": "[^"]+/make_log.py", "lineno": \d+', f'"file": "{LOGGING_CODE}", "lineno": {line}', log)
    lock_sha256 = hashlib.sha256((REPOSITORY / "locks/run.lock").read_bytes()).hexdigest()
    return log.replace("0" * 40, commit).replace("1" * 64, lock_sha256)


def little(folder: Path) -> str:
    """Makes a repository of the package `runlog`, the lock, the job and the code that logs a header; its commit."""
    shutil.copytree(REPOSITORY / "runlog", folder / "runlog", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "run_and_time.sh", folder)
    for name in ("locks", "harness"):
        (folder / name).mkdir()
    shutil.copy(REPOSITORY / LOGGING_CODE, folder / LOGGING_CODE)
    shutil.copy(REPOSITORY / "locks/run.lock", folder / "locks")
    git = ["git", "-c", "user.name=Example", "-c", "user.email=example@example.org", "-C", str(folder)]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def five(folder: Path, commit: str, make: Callable[..., str] = make_log.run, **changes: Any) -> Path:
    """Five logs, which the trial loop numbered 3 to 7, the last of them written first."""
    logs = folder / "results"
    logs.mkdir()
    for index in range(5):
        text = of_commit(make(seed=100 + index, epoch_ms=36_000 + 500 * index, **changes), commit)
        text = text.replace('"time_ms": 17', f'"time_ms": {28 - index}')
        (logs / f"result_{index + 3}.txt").write_text(text)
    return logs


def arguments(system: Path, out: Path, *logs: Path) -> list[object]:
    return ["package", "--org", "Example", "--system", system, "--out", out, *logs]


def in_text(pattern: str, old: str, new: str) -> Callable[[Path], None]:
    def gut(folder: Path) -> None:
        [file] = folder.glob(pattern)
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return gut
