"""`python -m compliance check`, by its command: each rule has a log that breaks it, and one that does not."""

import hashlib
import importlib.metadata
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from compliance import rules
from compliance.__main__ import main
from compliance.official import tools as official
from tests import jobs, make_log
from tests.compliance.altered import Altered, write
from tests.compliance.breaches import OFFICIAL, ONLY_WARNS, OURS, checkpoint
from tests.compliance.forging import clock

STRICT = rules.load("4.0.0").strict


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and files of `check --json`."""
    status = main(["check", "--json", *map(str, arguments)])
    output = capsys.readouterr()
    assert not output.err
    return status, json.loads(output.out)["files"]


def errors(file: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(f["rule"], f["line"]) for f in file["findings"] if f["severity"] == "error"]


def rules_broken(file: dict[str, Any]) -> set[str]:
    return {rule for rule, _ in errors(file)}


@pytest.mark.parametrize(
    "text",
    [
        make_log.run(),
        make_log.run(epochs=1),
        make_log.run(benchmark="resnet", eval_every=2, epochs=5),
        make_log.closed_run(),
        make_log.closed_run(hyperparameters=make_log.SGD),
        make_log.hrnet_run(),
        make_log.closed_hrnet_run(),
        Altered(make_log.run()).inside("run_summary", of_a_later_schema=1).text,
    ],
    ids=["open", "one epoch", "blocks of two", "closed lars", "closed sgd", "hrnet", "hrnet closed", "a field more"],
)
def test_a_good_log_passes(text: str, tmp_path: Path, capsys) -> None:
    status, [file] = check(capsys, *write(tmp_path, text))
    assert (status, file["verdict"], errors(file)) == (0, "pass", [])


@pytest.mark.parametrize(
    ("rule", "start", "alter", "key"),
    OFFICIAL + OURS,
    ids=lambda v: v if isinstance(v, str) else getattr(v, "__name__", ""),
)
def test_a_log_that_breaks_a_rule_is_rejected_at_its_line(rule, start, alter, key, tmp_path: Path, capsys) -> None:
    log = alter(Altered(start()))
    path = tmp_path / "result_0.txt"
    path.write_text(log.text, encoding="utf-8", errors="surrogateescape")
    status, [file] = check(capsys, path)
    form = rule in STRICT and STRICT[rule].kind == "form"
    if rule in ONLY_WARNS:
        assert (status, file["verdict"], errors(file)) == (0, "pass", [])
    else:
        assert (status, file["verdict"]) == (1, "fail")
        assert file["official"] == ("fail" if (rule, start, alter, key) in OFFICIAL else file["official"])
        assert not form or "own-log" in rules_broken(file)  # what our writer never writes, others may
    wanted = "warning" if form else "error"
    lines = [f["line"] for f in file["findings"] if (f["rule"], f["severity"]) == (rule, wanted)]
    assert lines, f"{rule} is not among {errors(file)}"
    if key is None:
        assert lines == [None]
    elif key == "*":
        assert all(line and 1 <= line <= len(log.lines) for line in lines)
    else:
        blamed = log.lines[lines[0] - 1]
        assert f'"key": "{key}"' in blamed
    [finding, *_] = [f for f in file["findings"] if f["rule"] == rule]
    assert all(finding[name] for name in ("source", "expected", "actual", "fix"))


def test_every_strict_rule_has_a_log_that_breaks_it() -> None:
    between_runs_or_tools = {
        *("seeds-differ", "same-configuration", "rcp-convergence", "rcp-hyperparameters", "system-description"),
        *("official-disagrees", "benchmark-asked", "file-link", "runs-differ", "same-hyperparameters"),
    }
    in_force = {name for name, rule in STRICT.items() if rule.in_force}
    assert {rule for rule, *_ in OURS} == in_force - between_runs_or_tools


def test_rules_that_do_not_apply_say_so(tmp_path: Path, capsys) -> None:
    texts = make_log.run(target=None), make_log.closed_run(samples=(13_056, 50_000))
    files = [check(capsys, path)[1][0] for path in write(tmp_path, *texts)]
    notes, others = ({f["rule"]: f["actual"] for f in file["findings"] if f["severity"] == "info"} for file in files)
    assert notes["eval-schedule"] == "not applied: not a closed run"
    assert set(notes) >= {"rcp-convergence", "rcp-hyperparameters", "closed-data", "target-status"}
    assert others["eval-schedule"] == "not applied: not the benchmark's data set"
    assert rules_broken(files[1]) == {"closed-data"}


def test_an_aborted_log_of_the_training_side_names_its_reason(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.run(status="aborted"))
    log.add_after("run_start", ':::MLLOG {"namespace": "", "time_ms": 1700000020018, "event_type": "POINT_IN_TIME", '
                  '"key": "abort_reason", "value": "loss is nan\\u001b[2J", "metadata": {}}')  # fmt: skip
    del log.lines[log.at("epoch_start") : log.at("run_stop")]
    (tmp_path / "log").write_text(log.text)
    _, [file] = check(capsys, tmp_path / "log")
    [finding] = [f for f in file["findings"] if f["rule"] == "run-status"]
    assert finding["actual"] == "status aborted: loss is nan\\x1b[2J"


def test_a_checkpoint_within_an_epoch_is_no_time_of_its_windows(tmp_path: Path, capsys) -> None:
    log = clock(Altered(make_log.run()), lambda ms: ms + 1000, "step_window", 3)  # the second of epoch 2
    path = tmp_path / "result_0.txt"
    path.write_text(log.text)
    assert rules_broken(check(capsys, path)[1][0]) == {"throughput-agrees"}
    path.write_text(log.add_after("step_window", checkpoint(log, step=44, number=2), 2).text)  # of the end of epoch 1
    assert rules_broken(check(capsys, path)[1][0]) == {"throughput-agrees"}
    path.write_text(log.add_after("step_window", checkpoint(log, step=66, number=3), 3).text)  # it is told when written
    assert errors(check(capsys, path)[1][0]) == []


def test_a_flood_of_breaches_is_counted_not_listed(tmp_path: Path, capsys) -> None:
    log = Altered(make_log.run())
    for _ in range(200):
        log.repeat("epoch_stop")
    (tmp_path / "log").write_text(log.text)
    _, [file] = check(capsys, tmp_path / "log")
    assert sum(f["rule"] == "epoch-order" for f in file["findings"]) == 11
    assert any(f["actual"] == "190 more breaches of epoch-order, not listed" for f in file["findings"])


# --- the official checker beside ours ---


def test_official_verdicts_stand_beside_ours(tmp_path: Path, capsys) -> None:
    paths = write(
        tmp_path,
        make_log.run(seed=1),
        Altered(make_log.run(seed=2)).repeat("run_start").text,
        Altered(make_log.run(seed=3)).drop("init_start").text,
        make_log.closed_hrnet_run(seed=4),
    )
    status, files = check(capsys, *paths, "--official")
    assert status == 1
    assert [(file["verdict"], file["official"], file["mlperf_logging"]["verdict"]) for file in files] == [
        *(("pass", "pass", "pass"), ("fail", "pass", "pass"), ("fail", "fail", "fail"), ("pass", "pass", "pass"))
    ]
    assert not any(f["rule"] == "official-disagrees" for file in files for f in file["findings"])
    assert files[2]["mlperf_logging"]["messages"]


@pytest.mark.parametrize("by", ["strict", "official"])
def test_a_log_that_only_the_official_checker_rejects_fails(by: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(official, "check_log", lambda *_: (False, ["a rule that this checker has not"]))
    [path] = write(tmp_path, make_log.run())
    status, [file] = check(capsys, path, "--official", "--verdict", by)
    assert (status, file["official"], rules_broken(file)) == (1, "fail", {"official-disagrees"})


@pytest.mark.parametrize("installed", [None, "4.1.67"])
def test_the_official_tools_are_asked_only_in_the_release_whose_rules_we_have(
    installed: str | None, tmp_path: Path, capsys, monkeypatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    [path] = write(tmp_path, make_log.run())
    assert main(["check", str(path), "--official"]) == 2
    error = capsys.readouterr().err
    assert "pip install --no-deps mlperf-logging==4.1.68" in error and error.count("\n") == 1


# --- the command ---


def test_exit_status_and_text(tmp_path: Path) -> None:
    log = Altered(make_log.run()).repeat("run_start")
    paths = write(tmp_path, make_log.run(seed=2), log.text)
    done = jobs.run([sys.executable, "-m", "compliance", "check", *map(str, paths)])
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"{paths[0]}: PASS\n")
    line = log.at("run_start") + 1
    told = f"exactly-once line {line}: 2 run_start, all with the same value\n"
    head = "FAIL, 1 error by the strict rules\n  official pass, strict fail; strict counts\n"
    assert f"{head}  error: own-log line {line}: " in done.stdout
    assert f"  warning: {told}" in done.stdout
    assert "      do: log on rank 0 only, and each such key once\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check"], "no log given"),
        (["check", "absent.txt"], "absent.txt: no such file"),
        (["check", "folder"], "folder: no result_*.txt"),
        (["check", "log", "log"], "log: named twice"),
        (["check", "log", "--ruleset", "7.0.0"], "ruleset 7.0.0: no rules for it; take one of 0.7.0, 1.0.0,"),
        (["check", "log", "--benchmark", "vgg"], "benchmark vgg: ruleset 4.0.0 has no rules for it"),
        (["check", "log", "--system", "log"], "log: no system description"),
        (["check", "--explain", "run_strat"], "near it: run_start"),
        (["check", "pipe"], "not a regular file"),
        (["check", "log", "--junit", "absent/x.xml"], "absent/x.xml"),
        (["check", "log", "--junit", "log"], "log: exists, and this command did not write it"),
        (["check", "log", "--junit", "other.xml"], "other.xml: exists, and this command did not write it"),
        (["check", "log", "--explain", "all"], "--explain checks no log"),
        (["check", "log", "--json", "--format", "github"], "--json and --format github"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], says: str, tmp_path, monkeypatch, capsys) -> None:
    text = make_log.run()
    (tmp_path / "log").write_text(text)
    (tmp_path / "other.xml").write_text("<testsuites>of another tool</testsuites>")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert (tmp_path / "log").read_text() == text


@pytest.mark.parametrize("arguments", ["check log", "check log --json", "score log"])
def test_a_closed_output_is_no_traceback(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(make_log.run())
    shell = f'exec "$0" -m compliance {arguments} >&-'
    done = jobs.run(["sh", "-c", shell, sys.executable], cwd=tmp_path, PYTHONPATH=str(jobs.REPOSITORY))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_benchmark_asked_for_must_be_that_of_the_log(tmp_path: Path, capsys) -> None:
    [path] = write(tmp_path, make_log.hrnet_run())
    assert check(capsys, path, "--benchmark", "hrnet")[0] == 0
    status, [file] = check(capsys, path, "--benchmark", "resnet")
    assert (status, rules_broken(file)) == (1, {"benchmark-asked"})


def test_a_link_out_of_the_folder_fails_and_one_inside_it_does_not(tmp_path: Path, capsys) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "log.txt").write_text(make_log.run())
    (tmp_path / "a" / "result_0.txt").symlink_to("../log.txt")
    (tmp_path / "link.txt").symlink_to("log.txt")
    status, [file] = check(capsys, tmp_path / "a")
    assert (status, rules_broken(file)) == (1, {"file-link"})
    assert check(capsys, tmp_path / "link.txt")[0] == 0


def test_junit_has_a_failure_for_each_error(tmp_path: Path, capsys) -> None:
    paths = write(tmp_path, make_log.run(), Altered(make_log.run(seed=2)).value("eval_accuracy", "<\x00&\x1b>").text)
    for _ in range(2):  # it replaces a file that it wrote
        assert main(["check", *map(str, paths), "--junit", str(tmp_path / "junit.xml")]) == 1
    capsys.readouterr()
    good, bad = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (good.get("failures"), bad.get("failures")) == ("0", "3")
    cases = {case.get("name"): case for case in bad}
    assert cases["verdict"].find("failure") is not None
    assert cases["value-type"].find("failure").get("message") == r'eval_accuracy is "<\u0000&\u001b>"'
    assert int(bad.get("tests", "0")) == len(cases)


def test_every_rule_can_be_explained(capsys) -> None:
    for name in ("runs-differ", "run_stop", "run_stop.order", "lars_epsilon"):
        assert main(["check", "--explain", name]) == 0
        text = capsys.readouterr().out
        assert name.partition(".")[0] in text and "source: " in text
    assert main(["check", "--explain", "all"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in STRICT)


def test_a_receipt_names_what_was_checked(tmp_path: Path, capsys) -> None:
    [path] = write(tmp_path, make_log.run())
    _, [report] = check(capsys, path, "--receipt")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    receipt = json.loads((tmp_path / "result_0.txt.checked").read_text())
    assert receipt == {"sha256": digest, "verdict": "pass", "ruleset": "4.0.0"}
    assert report["sha256"] == digest


def test_no_heavy_import_is_on_the_way_to_a_verdict(tmp_path: Path) -> None:
    [path] = write(tmp_path, make_log.closed_run())
    code = (
        "import sys; from compliance.__main__ import main; status = main(['check', sys.argv[1]]);"
        "heavy = {'numpy', 'scipy', 'pandas', 'mlperf_logging', 'paddle', 'matplotlib', 'rich', 'tarfile',"
        "'compliance.submission.audit', 'compliance.submission.package', 'compliance.submission.system'}"
        " & set(sys.modules);"
        "print('heavy:', heavy); sys.exit(status)"
    )
    done = jobs.run([sys.executable, "-c", code, str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy: set()\n")
