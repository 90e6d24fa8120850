"""What docs/security.md claims, where no other test holds it."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import jobs
from tests.test_architecture import tracked

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "paddle.load"}  # the last unpickles
FORBIDDEN_CALLS |= {"yaml.full_load", "yaml.unsafe_load", "yaml.load_all"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def is_given(call: ast.Call, name: str, *, but: object) -> bool:
    """Whether the call has this keyword with another value than `but`, or one that is not plain."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return any(not (isinstance(value, ast.Constant) and value.value is but) for value in values)


def dangers(node: ast.AST, text: str) -> list[str]:
    """What in a node makes data code; `text` is its file's."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        return [name for name in names if name.partition(".")[0] in FORBIDDEN_MODULES]
    if not isinstance(node, ast.Call):
        return []
    called = ast.unparse(node.func).replace("numpy.", "np.")
    loader = "".join(ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "Loader")
    loader += "".join(re.findall(rf"^{loader} = .*$", text, re.M) if loader.isidentifier() else [])
    found = {
        called: called in FORBIDDEN_CALLS,
        # Base: texts, lists and tables alone
        "yaml.load": called == "yaml.load" and not re.search(r"\bC?(Safe|Base)Loader\b", loader),
        "numpy.load with pickle": called == "np.load" and is_given(node, "allow_pickle", but=False),
        "shell=True": is_given(node, "shell", but=False),
    }
    return [name for name, is_there in found.items() if is_there]


def findings(path: Path) -> list[str]:
    """Calls by which data becomes code."""
    text = path.read_text()
    nodes = ast.walk(ast.parse(text))
    return [f"{path}:{getattr(node, 'lineno', 0)}: {name}" for node in nodes for name in dangers(node, text)]


def test_no_data_becomes_code(repository):
    files = tracked(repository, ".py", but=("tests/",))
    assert len(files) > 20
    found = [line for path in files for line in findings(path)]
    # The one reader of a pickle takes arrays only: tests/paddle_hrnet/test_model.py.
    assert [line for line in found if not re.search(r"paddle_hrnet/model\.py:\d+: pickle$", line)] == []


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
    package = re.compile(r"(#.*|[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+.* --hash=sha256:[0-9a-f]{64}.*)?")
    for lock in locks:
        lines = re.sub(r"\\\n\s*", " ", lock.read_text()).splitlines()
        assert [line for line in lines if not package.fullmatch(line.strip())] == []
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
    job = jobs.begin_run_and_time(**{**jobs.TINY, "MEASURED_STEPS": 5000, "LOGDIR": tmp_path})
    listened: set[tuple[str, str]] = set()  # from set-up on: Paddle's rendezvous has a server of its own

    def trains() -> bool:
        listened.update(listening(psutil.Process(job.pid)))
        return jobs.trains(tmp_path / "CPU/rn50/result_0.txt")

    jobs.until(trains, job)
    training = set(listening(psutil.Process(job.pid)))
    family = psutil.Process(job.pid).children(recursive=True)
    job.terminate()
    job.communicate(timeout=jobs.LIMIT_S)
    assert job.returncode == 143
    of_ranks = {address for name, address in listened if "python" in name}
    assert of_ranks == {"127.0.0.1"}
    # mpirun opens the port of its daemons on every interface; it has no setting for loopback.
    assert {name for name, _ in training} == {"prterun"}, "the ranks have met and listen no more"
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
