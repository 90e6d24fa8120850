"""What docs/security.md claims, where no other test holds it."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import jobs

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_ATTRIBUTES = {"full_load", "unsafe_load", "load_all"}


def sources(repository: Path) -> list[Path]:
    """The project's Python files, without its tests."""
    done = subprocess.run(["git", "-C", repository, "ls-files", "*.py"], capture_output=True, text=True, check=True)
    files = [repository / line for line in done.stdout.split() if not line.startswith("tests/")]
    assert len(files) > 20
    return [file for file in files if file.exists()]


def _loader(call: ast.Call, text: str) -> str:
    """Source of a yaml.load's Loader, and of the line that defines it where it is a name."""
    source = "".join(ast.unparse(k.value) for k in call.keywords if k.arg == "Loader")
    return source + "".join(re.findall(rf"^{source} = .*$", text, re.MULTILINE) if source.isidentifier() else [])


def findings(path: Path) -> list[str]:
    """Calls by which data becomes code."""
    found, text = [], path.read_text()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module.partition(".")[0]]
        bad = [name for name in names if name in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
                bad.append(function.id)
            if isinstance(function, ast.Attribute):
                owner = function.value.id if isinstance(function.value, ast.Name) else ""
                safe = re.search(r"\bC?(Safe|Base)Loader\b", _loader(node, text))  # Base: texts, lists and tables alone
                unsafe = function.attr == "load" and not safe
                if owner == "yaml" and (function.attr in FORBIDDEN_ATTRIBUTES or unsafe):
                    bad.append(f"yaml.{function.attr}")
                if owner in ("np", "numpy") and function.attr == "load":
                    pickles = [k for k in node.keywords if k.arg == "allow_pickle"]
                    if any(not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in pickles):
                        bad.append("numpy.load with pickle")
                if owner == "paddle" and function.attr == "load":
                    bad.append("paddle.load, which unpickles")
            if any(
                k.arg == "shell" and not (isinstance(k.value, ast.Constant) and not k.value.value)
                for k in node.keywords
            ):
                bad.append("shell=True")
        found += [f"{path}:{getattr(node, 'lineno', 0)}: {name}" for name in bad]
    return found


def test_no_data_becomes_code(repository):
    found = [line for path in sources(repository) for line in findings(path)]
    # The one reader of a pickle takes arrays only: tests/program/test_weights.py.
    assert [line for line in found if not re.search(r"program/weights\.py:\d+: pickle$", line)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "yaml.load(x)",
        "yaml.load(x, Loader=yaml.Loader)",
        "L = yaml.Loader\nyaml.load(x, Loader=L)",
        "yaml.full_load(x)",
        "np.load(f, allow_pickle=True)",
        "paddle.load(f)",
        "subprocess.run(x, shell=True)",
    ],
)
def test_the_search_finds_it(tmp_path, text):
    path = tmp_path / "a.py"
    path.write_text(text)
    assert findings(path)


def test_every_locked_package_has_a_hash(repository):
    locks = sorted((repository / "locks").glob("*.lock"))
    assert len(locks) >= 3
    for lock in locks:
        text = re.sub(r"\\\n\s*", " ", lock.read_text())
        for line in filter(None, (line.split(" #")[0].strip() for line in text.splitlines())):
            if line.startswith("#"):
                continue
            assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+.* --hash=sha256:[0-9a-f]{64}", line), (
                f"{lock}: {line[:80]}"
            )
    setup = (repository / "launch" / "setup.sh").read_text()
    assert "--require-hashes" in setup and "--no-deps" in setup


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_no_secret_of_the_environment_is_left_anywhere(tmp_path):
    secrets = {"AWS_SECRET_ACCESS_KEY": "c2VjcmV0LWtleQ", "HF_TOKEN": "hf_zzTOPsecretzz", "PASSWORD": "pa55-w0rd-x"}
    done = jobs.run_and_time(**jobs.TINY, LOGDIR=tmp_path / "logs", **secrets)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert len(files) >= 3, "log, messages, telemetry"
    for path in files:
        content = path.read_bytes()
        for name, value in secrets.items():
            assert name.encode() not in content and value.encode() not in content, f"{path} holds {name}"


def listening(parent: psutil.Process) -> Iterator[tuple[str, str]]:
    """Name and address of each socket on which a process under `parent` listens now."""
    for process in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield process.name(), connection.laddr.ip


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_what_a_job_of_one_node_listens_on(tmp_path):
    job = subprocess.Popen(
        [str(jobs.REPOSITORY / "run_and_time.sh")],
        env=jobs.environment(**{**jobs.TINY, "MEASURED_STEPS": 5000, "LOGDIR": tmp_path}),
        cwd=jobs.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    listened = set()  # from set-up on: Paddle's rendezvous has a server of its own
    while not any("step_window" in log.read_text() for log in tmp_path.rglob("result_0.txt")):
        assert job.poll() is None
        listened |= set(listening(psutil.Process(job.pid)))
        time.sleep(0.05)
    training = set(listening(psutil.Process(job.pid)))
    family = psutil.Process(job.pid).children(recursive=True)
    job.terminate()
    assert job.wait(timeout=jobs.LIMIT_S) == 143
    of_ranks = {address for name, address in listened if "python" in name}
    assert of_ranks == {"127.0.0.1"}
    # mpirun opens the port of its daemons on every interface; it has no setting for loopback.
    assert {name for name, _ in training} == {"prterun"}, "the ranks have met and listen no more"
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
