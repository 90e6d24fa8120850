"""Package and verify: what is built passes mlperf-logging's tools, what may not be published is refused."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compliance.submission import committed_code, package, package_logs
from compliance.submission.verify import verify
from tests import jobs, make_log
from tests.browser import UNFOLD, Opened, opened  # noqa: F401
from tests.compliance.altered import Altered, answer, compliance, foreign
from tests.compliance.packages import arguments, description, five, little, of_commit

CODE = "benchmarks/hrnet/implementations/paddle"
OF_BUILT = pytest.mark.xdist_group("package")  # one worker alone builds it


@OF_BUILT
def test_five_runs_of_the_default_are_accepted_by_the_official_tools(built) -> None:
    target, said = built
    answers = {answer.check: (answer.status, answer.found) for answer in said["official"]}
    assert answers["package_checker"] == ("ok", "PACKAGE CHECKER FOUND NO ERRORS")
    assert answers["system_desc_checker"][0] == "ok"
    assert answers["repo_checker"] == ("ok", "ALL CHECKS PASSED")
    assert answers["result_summarizer"] == ("ok", f"{said['minutes']!r} minutes; ours {said['minutes']!r}")
    assert answers["rcp_checker"] == ("unknown", "not applied: not a closed submission")
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names >= {
        *("README.md", "SHA256SUMS", "submission.json", "systems/CPU.json"),
        *(f"results/CPU/resnet/result_{index}.txt" for index in range(5)),
        "benchmarks/resnet/implementations/paddle/runlog/reader.py",
    }
    assert not list((target / "results").rglob("scaling.json"))
    for index in range(5):  # renamed in the order of their start, and unchanged
        copied = target / "results" / "CPU" / "resnet" / f"result_{index}.txt"
        assert copied.read_bytes() == (said["logs"] / f"result_{7 - index}.txt").read_bytes()
        framework_log = said["logs"] / f"result_{7 - index}.stderr"
        assert copied.with_suffix(".stderr").is_file() == framework_log.is_file() == (index < 4)
        if index < 4:
            assert copied.with_suffix(".stderr").read_bytes() == framework_log.read_bytes()
        assert (said["runs"][index]["framework_log_sha256"] is None) == (index == 4)
    report = (target / "README.md").read_text()
    assert "the code's `python -B -m compliance verify DIR`" in report, "without -B it writes into the package"
    assert f"Score: {said['minutes']!r} minutes: olympic mean" in report
    assert said["commit"] in report
    assert "| result_0.txt | " in report and "; 1 node(s), 0 accelerator(s) a node; host Example CPU 9000.\n" in report
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=target, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.usefixtures("little_repository")
def test_the_code_is_the_commits_bytes_whatever_the_users_git_is_set_to(
    little_code, tmp_path: Path, monkeypatch
) -> None:
    plain = committed_code.code_of(little_code[1])
    checkout = shutil.copytree(little_code[0], tmp_path / "checkout")
    replace_file = ["replace", f"{little_code[1]}:run_and_time.sh", f"{little_code[1]}:locks/run.lock"]
    subprocess.run(["git", "-C", str(checkout), *replace_file], check=True)
    monkeypatch.setattr(committed_code, "REPOSITORY", checkout)
    (tmp_path / "git").mkdir()
    (tmp_path / "git/config").write_text("[core]\n autocrlf = true\n eol = crlf\n[tar]\n umask = 0177\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "git/config"))
    for attributes in ("", "* text=auto\n", "*.py text eol=crlf\n", "*.py export-ignore\n"):
        (tmp_path / "git/attributes").write_text(attributes)
        (checkout / ".git/info/attributes").write_text(attributes)
        code = committed_code.code_of(little_code[1])
        assert not any(b"\r\n" in file.content for name, file in code.items() if name.endswith(".py"))
        assert code == plain


@OF_BUILT
def test_the_manifest_has_the_last_evaluation_of_each_run(built) -> None:
    target, _ = built
    runs = json.loads((target / "submission.json").read_text())["runs"]
    assert len(runs) == 5
    for run in runs:
        lines = (target / run["file"]).read_text().splitlines()
        evaluations = [line for line in lines if '"key": "eval_accuracy"' in line]
        last = json.loads(evaluations[-1].partition(":::MLLOG ")[2])
        assert (run["quality"], run["epochs"]) == (last["value"], last["metadata"]["epoch_num"])
        assert len(evaluations) > 1


@pytest.mark.parametrize("kind", ["link", "large file"])
def test_a_commit_with_what_the_official_tool_refuses_gives_no_code(tmp_path: Path, monkeypatch, kind: str) -> None:
    monkeypatch.setattr(committed_code, "REPOSITORY", tmp_path)
    monkeypatch.setattr(committed_code, "LARGEST_BYTES", 100)
    if kind == "link":
        (tmp_path / "refused").symlink_to("train.py")
    else:
        (tmp_path / "refused").write_bytes(bytes(101))
    (tmp_path / "train.py").write_bytes(bytes(100))
    git = ["git", "-c", "user.name=Example", "-c", "user.email=example@example.org", "-C", str(tmp_path)]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    with pytest.raises(ValueError, match="refused: a link or over 50 MB"):
        committed_code.code_of(commit)
    subprocess.run([*git, "rm", "--quiet", "refused"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=two"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert list(committed_code.code_of(commit)) == ["train.py"]
    blob = subprocess.run([*git, "rev-parse", "HEAD:train.py"], capture_output=True, text=True, check=True).stdout
    content = tmp_path / ".git/objects" / blob[:2] / blob[2:].strip()
    content.chmod(0o644)
    content.write_bytes(content.read_bytes()[:-4])
    with pytest.raises(ValueError, match="git cannot read the content of a file"):
        committed_code.code_of(commit)
    content.unlink()
    with pytest.raises(ValueError, match=r"git lacks the content of train\.py"):
        committed_code.code_of(commit)


@pytest.mark.parametrize("name", ["café.py", "caf\udce9.py", "two\nlines.py"])
def test_a_commit_with_a_name_that_verify_refuses_gives_no_package(name: str, tmp_path: Path, monkeypatch) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.setattr(committed_code, "REPOSITORY", repository)
    (repository / name).write_text("")
    logs = five(tmp_path, little(repository))
    said = answer(*arguments(description(tmp_path), tmp_path / "out", logs), status=1)
    assert [reason.endswith(".py is a name that no package holds") for reason in said["refused"]] == [True]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.ci
def test_a_closed_package_passes_the_convergence_test_of_the_official_tools(commit, tmp_path: Path) -> None:
    logs = five(tmp_path, commit, make_log.closed_run)
    said = answer(*arguments(description(tmp_path, division="closed"), tmp_path / "out", logs))
    assert {a["check"]: a["status"] for a in said["official"]} == dict.fromkeys(
        ["package_checker", "system_desc_checker", "repo_checker", "rcp_checker", "result_summarizer"], "ok"
    )


def test_hrnet_is_packaged_and_the_tools_that_do_not_know_it_are_named(commit, tmp_path: Path) -> None:
    """With all code of this commit."""
    logs = five(tmp_path, commit, make_log.hrnet_run)
    said = answer(*arguments(description(tmp_path), tmp_path / "out", logs))
    accepted = [(a["check"], a["status"]) for a in said["official"]]
    assert accepted == [
        *(("system_desc_checker", "ok"), ("repo_checker", "ok")),
        *[("compliance_checker", "ok")] * 5,
        *(("package_checker", "unknown"), ("rcp_checker", "unknown"), ("result_summarizer", "unknown")),
    ]
    target = tmp_path / "out" / "Example"
    assert {check.status for check in verify(target)} == {"ok"}
    names = {path.relative_to(target / CODE).as_posix() for path in (target / CODE).rglob("*") if path.is_file()}
    assert names == set(committed_code.code_of(commit)) >= {"run_and_time.sh", "tests/compliance/test_package.py"}
    assert not any(part.startswith(".") for name in names for part in name.split("/"))


def _replaced(old: str, new: str) -> Callable[[Path], None]:
    """Another text in each log."""

    def replace(logs: Path) -> None:
        for path in logs.iterdir():
            path.write_text(re.sub(old, new, path.read_text(), flags=re.M))

    return replace


def _edit(logs: Path, number: int, change: Callable[[Altered], object]) -> None:
    path = logs / f"result_{number}.txt"
    log = Altered(path.read_text())
    change(log)
    path.write_text(log.text)


def _batch_of_64(logs: Path) -> None:
    """In one of the logs, which began first."""
    (logs / "result_3.txt").write_text(make_log.run(seed=200, batch=32))


def _abort_two(logs: Path) -> None:
    for number in (3, 4):
        _edit(logs, number, lambda log: log.aborted())


def _forge_source(logs: Path) -> None:
    """Foreign logs that name our code."""
    for path in logs.iterdir():
        source = next(line for line in path.read_text().splitlines() if line.startswith('# {"source"'))
        path.write_text(f"{source}\n{foreign(path.read_text())}")


def _receipt_of_another(logs: Path) -> None:
    assert compliance("check", logs / "result_5.txt", "--receipt").returncode == 0
    _edit(logs, 5, lambda log: log.add_after("run_stop", "one more line for people"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda logs: _edit(logs, 4, lambda log: log.repeat("run_start")),
            "exactly-once: 2 run_start, all with the same value",
        ),
        (lambda logs: _edit(logs, 4, lambda log: log.value("seed", 100)), "seeds-differ"),
        (lambda logs: _edit(logs, 4, lambda log: log.value("sgd_opt_base_learning_rate", 0.2)), "same-configuration"),
        (lambda logs: _edit(logs, 4, lambda log: log.value("submission_org", "Other")), "of another submission"),
        (_batch_of_64, "results/result_3.txt: the runs have different global_batch_size (32, 64)"),
        (_replaced('"dirty": false', '"dirty": true'), "the code differed from its commit"),
        (_replaced('^# {"source".*\n', ""), "do not say of which commit"),
        (_replaced('"lock_sha256": "[0-9a-f]{8}', '"lock_sha256": "01234567'), "they ran with another locks/run.lock"),
        (_replaced(r'"gpus": \[\]', '"gpus": [{"name": "Null GPU (nothing is computed)"}]'), "run-mode line"),
        (
            _replaced('("run_start".*"lineno": )[0-9]+', r"\g<1>9"),
            "run_start was logged by line 9 of harness/header.py",
        ),
        (_replaced('("seed".*"file": ")[^"]+', r"\g<1>../seed.py"), "of ../seed.py, which does not log it"),
        (_replaced('"time_ms": 2..', '"time_ms": 174'), "days before the commit that it names was made"),
        (_forge_source, "own-log"),
        (_receipt_of_another, "differs from what was checked (result_5.txt.checked)"),
        (
            _abort_two,
            "did not reach the target; one run of a submission may fail to",
        ),
    ],
)
def test_what_may_not_be_published_is_refused(spoil, says: str, commit, tmp_path: Path) -> None:
    logs = five(tmp_path, commit)
    spoil(logs)
    (tmp_path / "kept").mkdir()
    status, out, _ = compliance(*arguments(description(tmp_path), tmp_path / "kept" / "some" / "out", logs))
    assert status == 1 and says in out
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.usefixtures("little_repository")
@pytest.mark.parametrize(
    ("lock_of_commit", "says"), [(None, ""), (b"a==1", ""), (b"b==1", "they ran with another locks/run12.lock")]
)
def test_runs_of_paddles_build_for_cuda_12_have_a_lock_of_their_own(
    lock_of_commit: bytes | None, says: str, little_code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user makes it (launch/lock.sh cuda12), and may commit it."""
    logs = five(tmp_path, little_code[1], make_log.hrnet_run)
    _replaced('"paddlepaddle-gpu": "2.6.2"', '"paddlepaddle-gpu": "2.6.2.post120"')(logs)
    _replaced('"lock_sha256": "[0-9a-f]{64}', f'"lock_sha256": "{hashlib.sha256(b"a==1").hexdigest()}')(logs)
    code = committed_code.code_of(little_code[1])
    if lock_of_commit is not None:
        code["locks/run12.lock"] = committed_code.CodeFile(lock_of_commit, is_executable=False)
    monkeypatch.setattr(package, "code_of", lambda _: code)
    status, out, _ = compliance(*arguments(description(tmp_path), tmp_path / "out", logs))
    assert (status, says in out) == (1 if says else 0, True)


@pytest.mark.usefixtures("little_repository")
def test_the_report_and_the_reasons_are_plain_text(little_code, tmp_path: Path) -> None:
    logs = five(tmp_path, little_code[1], make_log.hrnet_run)
    system = description(tmp_path, system_name="\x1b[2JCPU")
    status, out, _ = compliance(*arguments(system, tmp_path / "out", logs))
    shown = r"# hrnet on \x1b[2JCPU, Example"
    assert status == 0 and shown in out
    assert shown in (tmp_path / "out" / "Example" / "README.md").read_text()
    (logs / "result_7.txt").rename(logs / "result_\x1b[2J.txt")
    _edit(logs, 4, lambda log: log.value("submission_org", "Other"))
    status, out, _ = compliance(*arguments(system, tmp_path / "more", *sorted(logs.iterdir())))
    assert status == 1 and "\x1b" not in out and r"result_\x1b[2J.txt" in out


@pytest.mark.slow
def test_one_run_that_did_not_converge_is_packaged_and_said_not_to_count(commit, tmp_path: Path) -> None:
    logs = five(tmp_path, commit)
    _edit(logs, 7, lambda log: log.aborted())  # the slowest
    assert compliance(*arguments(description(tmp_path), tmp_path / "out", logs)).returncode == 0
    assert "| no: fails run-status, target-status |" in (tmp_path / "out" / "Example" / "README.md").read_text()
    assert compliance("verify", tmp_path / "out" / "Example").returncode == 0


@pytest.mark.slow
def test_a_score_that_the_official_summarizer_does_not_bear_out_is_refused(commit, tmp_path: Path) -> None:
    """It counts an aborted run of the open division: the score differs unless that run is the slowest."""
    logs = five(tmp_path, commit)
    _edit(logs, 4, lambda log: log.aborted())
    status, out, _ = compliance(*arguments(description(tmp_path), tmp_path / "out", logs))
    assert status == 1 and "refused: result_summarizer: " in out


def _tree() -> str:
    """The hash of a folder of the code: git has it, and archives it, too."""
    return jobs.run(["git", "rev-parse", "HEAD:compliance"]).stdout.strip()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a["logs"].pop(), "4 logs given: a submission of resnet has 5"),
        (lambda a: a.update(logs=a["logs"][:1]), ": 1 log given: a submission of resnet has 5"),
        (lambda a: a.update(org="Ex ample"), "letters, digits and any of"),
        (lambda a: a.update(org="../x"), "letters, digits and any of"),
        (lambda a: a.update(org=""), "an argument is empty"),
        (lambda a: a.update(system="ABSENT"), "no system description"),
        (lambda a: a["system"].write_text("{,}"), "CPU.json: cannot be read as a system description"),
        (lambda a: (a["out"] / "Example").mkdir(parents=True), "exists; packages are never overwritten"),
        (lambda a: a["logs"].append(a["logs"][0]), "named twice"),
        (lambda a: _replaced('"commit": "[0-9a-f]+"', f'"commit": "{"1" * 40}"')(a["logs"][0].parent), "no commit 111"),
        (
            lambda a: _replaced('"commit": "[0-9a-f]+"', f'"commit": "{_tree()}"')(a["logs"][0].parent),
            "git has no commit",
        ),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(change, says: str, commit, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "logs": sorted(five(tmp_path, commit).iterdir()),
        "org": "Example",
        "system": description(tmp_path),
        "out": tmp_path / "out",
    }
    change(given)
    options = ("--org", given["org"], "--system", given["system"], "--out", given["out"])
    done = compliance("package", *options, *given["logs"])
    jobs.refused(done, says)
    assert "building-" not in done.stderr, "the folder is gone by then"
    assert not list((tmp_path / "out").rglob("*.txt"))
    jobs.refused(compliance("verify", tmp_path), "no submission.json in it")


@pytest.mark.slow
@pytest.mark.ci
def test_of_more_runs_the_package_holds_those_that_are_scored(tmp_path: Path, commit: str) -> None:
    logs = five(tmp_path, commit)
    for index in (9, 10):
        text = of_commit(make_log.run(seed=100 + index, epoch_ms=50_000 + index), commit)
        (logs / f"result_{index}.txt").write_text(text.replace('"time_ms": 17', f'"time_ms": {30 + index}'))
    said = answer(*arguments(description(tmp_path), tmp_path / "out", logs))
    assert said["chosen"].startswith("runs 2 to 6 of 7 ") and len(said["runs"]) == 5
    assert verify(tmp_path / "out" / "Example")[-1].status == "ok"
    assert not list((tmp_path / "out").rglob("incoming"))


def test_the_log_of_a_framework_is_cut_at_the_size_of_a_repositorys_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(package_logs, "LARGEST_BYTES", 100)
    (tmp_path / "result_7.stderr").write_bytes(b"x" * 1000)
    package_logs._copy_framework_log(tmp_path / "result_7.txt", tmp_path / "copy_0.txt")
    copied = (tmp_path / "copy_0.stderr").read_bytes()
    assert len(copied) == 100 and copied.startswith(b"xxx") and b"cut here" in copied
