"""What docs/security.md claims, where no other test holds it."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import jobs

RULES = "S102,S307,S506,S602,S604,TID251"  # of ruff; what the last one bans is in pyproject.toml
SAFE = {"BaseLoader", "CBaseLoader", "SafeLoader", "CSafeLoader"}  # of YAML: texts, numbers, lists and tables alone


def found(*paths: str) -> list[tuple[str, int]]:
    """File and line of each call or import by which data becomes code, whatever its `noqa` says."""
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--config", "pyproject.toml", "--ignore-noqa"]
    done = jobs.run([*ruff, "--extend-exclude", "tests", "--select", RULES, "--output-format", "json", *paths])
    return [(one["filename"], one["location"]["row"]) for one in json.loads(done.stdout)]


def test_no_data_becomes_code():
    texts = {Path(name).relative_to(jobs.REPOSITORY).as_posix(): Path(name).read_text() for name, _ in found(".")}
    assert {name for name, text in texts.items() if "yaml.load(" not in text} == {"paddle_hrnet/model.py"}
    assert len(found("paddle_hrnet/model.py")) == 1, "the one reader of a pickle takes arrays only"
    loaders = {word for text in texts.values() for word in re.findall(r"\b\w*Loader\b(?!=)", text)}
    assert loaders == SAFE
    unseen = r"\b(shell=(?!bash)|allow_pickle=)|(^|[^.\w])(compile|__import__)\("
    assert jobs.run(["git", "grep", "-nP", unseen, "--", "*.py", ":!tests"]).stdout == ""


def test_the_search_finds_it(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "import pickle, subprocess, numpy as np, paddle, yaml\nfrom joblib import load\neval('1')\nyaml.load(x)\n"
        "yaml.load(x, Loader=yaml.Loader)\nyaml.full_load(x)\nnp.load(f)\npaddle.load(f)\nexec('1')\n"
        "subprocess.run(x, shell=True)\n"
    )
    assert {row for _, row in found(str(path))} == set(range(1, 11))


def test_every_locked_package_has_a_hash():
    locks = sorted((jobs.REPOSITORY / "locks").glob("*.lock"))
    assert len(locks) >= 3
    package = re.compile(r"(#.*|[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+.* --hash=sha256:[0-9a-f]{64}.*)?")
    for lock in locks:
        lines = re.sub(r"\\\n\s*", " ", lock.read_text()).splitlines()
        assert [line for line in lines if not package.fullmatch(line.strip())] == []
    setup = (jobs.REPOSITORY / "launch" / "setup.sh").read_text()
    assert "--require-hashes" in setup and "--no-deps" in setup


@pytest.mark.slow
@pytest.mark.ci
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
@pytest.mark.ci
@pytest.mark.xdist_group("ranks")
def test_what_a_job_of_one_node_listens_on(tmp_path):
    job = jobs.run_and_time(start=jobs.begin, **{**jobs.TINY, "MEASURED_STEPS": 5000, "LOGDIR": tmp_path})
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
