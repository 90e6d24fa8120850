"""`python -m compliance check`, by its command: verdicts, forms, several logs together, wrong use."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from compliance import rules
from compliance.official import rule_files
from compliance.official import tools as official
from tests import jobs, json_schema, make_log
from tests.compliance.altered import Altered, answer, compliance, foreign, write

STRICT = rules.load("4.0.0").strict


def check(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and files of `check --json`."""
    status, out, err = compliance("check", "--json", *arguments)
    assert not err
    return status, json.loads(out)["files"]


def errors(file: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(f["rule"], f["line"]) for f in file["findings"] if f["severity"] == "error"]


def rules_broken(file: dict[str, Any]) -> set[str]:
    return {rule for rule, _ in errors(file)}


def test_an_aborted_log_of_the_training_side_names_its_reason(tmp_path: Path) -> None:
    log = Altered(make_log.run(status="aborted")).value("abort_reason", "loss is nan\x1b[2J")
    _, [file] = check(*write(tmp_path, log.text))
    [finding] = [f for f in file["findings"] if f["rule"] == "run-status"]
    assert finding["actual"] == "status aborted: loss is nan\\x1b[2J"


# --- numbers of epochs ---


@pytest.mark.parametrize(
    ("start", "stop", "number", "wanted"),
    [
        ("epoch_start", "epoch_stop", 3, "epoch_stop of epoch 99; 4 is due"),
        ("epoch_start", "epoch_stop", 0, "epoch_stop of epoch 99; 0 or 1 is due"),
        ("eval_start", "eval_stop", 3, "eval_stop of epoch 99; 16 is due"),
    ],
)
def test_a_stop_is_told_the_epoch_that_was_due_at_a_start_without_one(
    start: str, stop: str, number: int, wanted: str, tmp_path: Path
) -> None:
    log = Altered(foreign(make_log.closed_run())).without_metadata(start, "epoch_num", number)
    right = [f["actual"] for f in check(*write(tmp_path, log.text))[1][0]["findings"]]
    assert not [actual for actual in right if "is due" in actual]
    wrong = check(*write(tmp_path, log.metadata(stop, number, epoch_num=99).text))[1][0]["findings"]
    assert wanted in [f["actual"] for f in wrong]


def test_a_block_stop_is_told_the_epoch_that_was_due_at_a_block_start_without_one(tmp_path: Path) -> None:
    log = Altered(foreign(make_log.closed_run())).without_metadata("block_start", "first_epoch_num", 2)
    log.metadata("block_stop", 2, first_epoch_num=99)
    _, [file] = check(*write(tmp_path, log.text))
    assert "block_stop of epoch 99; 9 is due" in [f["actual"] for f in file["findings"]]


@pytest.mark.parametrize("number", [2, -1])
def test_an_accuracy_without_an_epoch_is_one_finding(number: int, tmp_path: Path) -> None:
    """It is of the evaluation that waits for it, and so of the schedule: only the number is missing."""
    log = Altered(make_log.closed_run()).without_metadata("eval_accuracy", "epoch_num", number)
    _, [file] = check(*write(tmp_path, log.text))
    line = log.at("eval_accuracy", number) + 1
    found = [(f["rule"], f["line"]) for f in file["findings"] if f["severity"] != "info"]
    assert found == [("eval_accuracy.metadata", line)]


def test_an_evaluation_without_an_epoch_is_not_told_the_last_one_trained(tmp_path: Path) -> None:
    log = Altered(foreign(make_log.closed_run())).without_metadata("eval_start", "epoch_num", 3)
    _, [file] = check(*write(tmp_path, log.text))
    line = log.at("eval_start", 3) + 1
    found = {f["actual"] for f in file["findings"] if f["line"] == line}
    assert found == {"metadata {}", "eval_start has epoch_num null"}  # by the official checker's rule and by ours


def test_an_evaluation_before_the_first_epoch_is_told_that_none_was_trained(tmp_path: Path) -> None:
    log = Altered(foreign(make_log.closed_run()))
    index = log.at("eval_start")
    moved = log.lines.pop(index)
    log.lines.insert(log.at("block_start"), moved)
    _, [file] = check(*write(tmp_path, log.text))
    found = [f["actual"] for f in file["findings"]]
    assert "evaluation of epoch 4; no epoch was trained before it" in found
    assert not [actual for actual in found if "None" in actual]


@pytest.mark.parametrize(
    ("event", "field", "number"), [("block_start", "first_epoch_num", 2), ("epoch_start", "epoch_num", 11)]
)
def test_a_block_whose_last_epoch_is_not_known_is_held_to_none(
    event: str, field: str, number: int, tmp_path: Path
) -> None:
    """An epoch that is still open at its stop is reported all the same."""
    log = Altered(foreign(make_log.closed_run())).without_metadata(event, field, number)
    _, [file] = check(*write(tmp_path, log.text))
    missing = [f["line"] for f in file["findings"] if f["actual"] == f"{event} has {field} null"]
    assert missing == [log.at(event, number) + 1]
    assert not [f["actual"] for f in file["findings"] if "announces" in f["actual"] or "None" in f["actual"]]
    log.lines.pop(log.at("epoch_stop", 11))
    _, [file] = check(*write(tmp_path, log.text))
    found = [f["actual"] for f in file["findings"]]
    assert [actual for actual in found if "the epoch of line" in actual and actual.endswith("is still open")]
    assert not [actual for actual in found if "None" in actual]


# --- the two verdicts ---


def test_form_fails_neither_verdict_of_others_logs_and_plausibility_only_the_strict_one(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    others = foreign(make_log.run())
    for text, strict in (
        (others, "pass"),
        (Altered(others).repeat("submission_org").drop("block_stop").text, "pass"),
        (Altered(others).later("run_stop", -1e7).text, "fail"),
        (Altered(others).repeat("run_start").later("run_start", 5000, 1).text, "fail"),
    ):
        path.write_text(text)
        status, [file] = check(path)
        assert (status, file["by"], file["official"], file["strict"]) == (0, "official", "pass", strict)
        status, [file] = check(path, "--verdict", "strict")
        assert (status, file["verdict"]) == (strict == "fail", strict)
    path.write_text(make_log.run(status="aborted"))
    assert check(path)[0] == 1
    status, [file] = check(path, "--verdict", "official")
    assert (status, file["verdict"], file["official"], file["strict"]) == (0, "pass", "pass", "fail")


def test_one_line_for_a_log_of_another_benchmark_and_for_no_log(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    for text, rule in (
        (foreign(make_log.run()).replace('"value": "resnet"', '"value": "vgg"'), "known-benchmark"),
        ("a text\nthat is not a log\n", "events.count"),
        ("\0\0\x7fELF", "events.count"),
    ):
        path.write_text(text)
        status, [file] = check(path)
        assert (status, [f["rule"] for f in file["findings"]]) == (1, [rule])


def test_of_a_log_without_events_the_damaged_line_is_quoted(tmp_path: Path) -> None:
    """Not another finding, such as that of a header that names a null GPU."""
    path = tmp_path / "result_0.txt"
    header = '# {"hardware": {"nodes": [{"gpus": [{"name": "Null GPU"}]}]}}\n'
    for text, quoted in ((header, "none"), (f"{header}:::MLLOG {{\n", "none can be read; line 2: ")):
        path.write_text(text)
        _, [file] = check(path)
        [finding] = file["findings"]
        assert (finding["rule"], finding["actual"][: len(quoted)]) == ("events.count", quoted)
        assert "null GPU" not in finding["actual"]


# --- the official checker beside ours ---


def test_official_verdicts_stand_beside_ours(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        make_log.run(seed=1),
        Altered(make_log.run(seed=2)).repeat("run_start").text,
        Altered(make_log.run(seed=3)).drop("init_start").text,
        make_log.closed_hrnet_run(seed=4),
    )
    status, files = check(*paths, "--official")
    assert status == 1
    assert [(file["verdict"], file["official"], file["mlperf_logging"]["verdict"]) for file in files] == [
        *(("pass", "pass", "pass"), ("fail", "pass", "pass"), ("fail", "fail", "fail"), ("pass", "pass", "pass"))
    ]
    assert not any(f["rule"] == "official-disagrees" for file in files for f in file["findings"])
    assert files[2]["mlperf_logging"]["messages"]


@pytest.mark.parametrize("by", ["strict", "official"])
def test_a_log_that_only_the_official_checker_rejects_fails(by: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(official, "check_log", lambda *_: (False, ["a rule that this checker has not"]))
    [path] = write(tmp_path, make_log.run())
    status, [file] = check(path, "--official", "--verdict", by)
    assert (status, file["official"], rules_broken(file)) == (1, "fail", {"official-disagrees"})


@pytest.mark.parametrize("said", [{"side_effect": importlib.metadata.PackageNotFoundError}, {"return_value": "4.1.67"}])
def test_the_official_tools_are_asked_only_in_the_release_of_our_rules(said, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", Mock(**said))
    [path] = write(tmp_path, make_log.run())
    jobs.refused(compliance("check", path, "--official"), "pip install --no-deps mlperf-logging==4.1.68")


def test_an_official_tool_without_its_packages_names_the_lock_that_has_them(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", Mock(return_value=None))
    with pytest.raises(ValueError, match=r"imports pandas and scipy, .*launch/setup\.sh official"):
        official.run_tool("result_summarizer", [])


# --- several logs, and logs beside their system description ---


def _closed(folder: Path, *last_epochs: int, **changes: Any) -> None:
    texts = []
    for seed, epochs in enumerate(last_epochs):
        rising = [round(2.8 * (i + 1) / epochs + seed / 1000, 4) for i in range(epochs // 4)]
        rising[0] = round(rising[0] - seed / 100, 4)
        text = make_log.closed_run(seed=seed, epochs=epochs, accuracies=(*rising[:-1], 0.7604), **changes)
        texts.append(text)
    write(folder, *texts)


@pytest.mark.parametrize(
    ("epochs", "batch", "broken"),
    [
        ((36, 36, 36, 36, 36), 408, False),
        ((32, 36, 36, 36, 36), 408, False),  # the best is dropped
        ((32, 32, 36, 36, 36), 408, False),  # 34.67 of 34.31
        ((32, 32, 32, 36, 36), 408, True),  # 33.33
        ((36, 36, 36, 36, 36), 4, False),  # below the least point: as long as the reference
        ((32, 32, 32, 32, 36), 4, True),
        ((36, 36, 36, 36, 36), 9000, True),  # above the largest point
        ((36, 36, 36, 36, 36), 2000, True),  # between two points
        ((48, 48, 48, 48, 48), 2000, False),
    ],
)
def test_convergence_against_the_reference_points(epochs, batch: int, broken: bool, tmp_path: Path) -> None:
    _closed(tmp_path, *epochs, batch=batch, epoch_ms=72_000)  # no step of a batch of 32 in 1 ms
    status, files = check(tmp_path)
    assert status == broken
    assert [rules_broken(file) for file in files] == [{"rcp-convergence"} if broken else set()] * 5


def test_four_runs_or_six_get_no_convergence_test_and_say_so(tmp_path: Path) -> None:
    for count in (4, 6):
        _closed(tmp_path / str(count), *[32] * count)
        status, files = check(tmp_path / str(count))
        notes = [f["actual"] for file in files for f in file["findings"] if f["rule"] == "rcp-convergence"]
        assert status == 0 and notes == [f"not applied: it takes 5 runs of one submission, {count} given"] * count


def test_hyperparameters_that_differ_from_the_reference_point_are_warned_of(tmp_path: Path) -> None:
    log = Altered(make_log.closed_run(hyperparameters=make_log.LARS | {"lars_opt_base_learning_rate": 11}))
    write(tmp_path, log.text)
    status, [file] = check(tmp_path)
    [warning] = [f for f in file["findings"] if f["severity"] == "warning"]
    assert (status, warning["rule"], warning["line"]) == (
        *(0, "rcp-hyperparameters", log.at("lars_opt_base_learning_rate") + 1),
    )
    assert warning["actual"] == "lars_opt_base_learning_rate is 11; the reference point has 10.5"


def test_steps_of_decay_are_not_compared_with_the_reference_point(tmp_path: Path) -> None:
    """A log may count them in epochs."""
    recipe = make_log.LARS | {"lars_opt_learning_rate_decay_steps": 37}
    [path] = write(tmp_path, make_log.closed_run(hyperparameters=recipe))
    _, [file] = check(path)
    assert not any(f["rule"] == "rcp-hyperparameters" for f in file["findings"])


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
        (["check", "log", "--system", "log"], "log: cannot be read as a system description"),
        (["check", "--explain", "run_strat"], "near it: run_start"),
        (["check", "pipe"], "is a pipe, a socket or a device"),
        (["check", "loop"], "loop/result_0.txt: is a link that leads back to itself"),
        (["check", "log", "--junit", "absent/x.xml"], "absent/x.xml"),
        (["check", "log", "--junit", "log"], "log: exists, and this command did not write it"),
        (["check", "log", "--junit", "other.xml"], "other.xml: exists, and this command did not write it"),
        (["check", "log", "--explain", "all"], "--explain checks no log"),
        (["check", "log", "--json", "--format", "github"], "--json and --format github"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], says: str, tmp_path, monkeypatch) -> None:
    (tmp_path / "log").write_text(text := make_log.run())
    (tmp_path / "other.xml").write_text("<testsuites>of another tool</testsuites>")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop/result_0.txt").symlink_to("result_0.txt")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    jobs.refused(compliance(*arguments), says)
    assert (tmp_path / "log").read_text() == text


@pytest.mark.parametrize("arguments", ["check log", "check log --json", "score log"])
def test_a_closed_output_is_no_traceback(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(make_log.run())
    shell = f'exec "$0" -m compliance {arguments} >&-'
    done = jobs.run(["sh", "-c", shell, sys.executable], cwd=tmp_path, PYTHONPATH=str(jobs.REPOSITORY))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_benchmark_asked_for_must_be_that_of_the_log(tmp_path: Path) -> None:
    [path] = write(tmp_path, make_log.hrnet_run())
    assert check(path, "--benchmark", "hrnet")[0] == 0
    status, [file] = check(path, "--benchmark", "resnet")
    assert (status, rules_broken(file)) == (1, {"benchmark-asked"})


def test_a_link_out_of_the_folder_fails_and_one_inside_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "log.txt").write_text(make_log.run())
    (tmp_path / "a" / "result_0.txt").symlink_to("../log.txt")
    (tmp_path / "link.txt").symlink_to("log.txt")
    status, [file] = check(tmp_path / "a")
    assert (status, rules_broken(file)) == (1, {"file-link"})
    assert check(tmp_path / "link.txt")[0] == 0


def test_junit_has_a_failure_for_each_error(tmp_path: Path) -> None:
    paths = write(tmp_path, make_log.run(), Altered(make_log.run(seed=2)).value("eval_accuracy", "<\x00&\x1b>").text)
    for _ in range(2):  # it replaces a file that it wrote
        assert compliance("check", *paths, "--junit", tmp_path / "junit.xml").returncode == 1
    good, bad = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (good.get("failures"), bad.get("failures")) == ("0", "3")
    cases = {case.get("name"): case for case in bad}
    assert cases["verdict"].find("failure") is not None
    failure = cases["value-type"].find("failure")
    assert failure is not None and failure.get("message") == r'eval_accuracy is "<\u0000&\u001b>"'
    assert int(bad.get("tests", "0")) == len(cases)
    assert failure.text is not None and failure.text.startswith("line ")
    (lacking,) = write(tmp_path, Altered(make_log.run()).drop_all("eval_accuracy").text)
    compliance("check", lacking, "--junit", tmp_path / "lacking.xml")
    said = (tmp_path / "lacking.xml").read_text()
    assert 'name="eval_accuracy.count"><failure message="none">none; expected: ' in said and "None" not in said


def test_every_rule_can_be_explained() -> None:
    for name in ("runs-differ", "run_stop", "run_stop.order", "lars_epsilon", "lr_rates"):
        status, text, _ = compliance("check", "--explain", name)
        assert status == 0 and name.partition(".")[0] in text and "source: " in text
    status, text, _ = compliance("check", "--explain", "all")
    assert status == 0 and all(name in text for name in STRICT)
    own_log = compliance("check", "--explain", "own-log")[1]
    assert "applies to: logs that this project wrote" in own_log


def test_a_receipt_names_what_was_checked(tmp_path: Path) -> None:
    [path] = write(tmp_path, make_log.run())
    _, [report] = check(path, "--receipt")
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


def test_annotations_of_github(tmp_path: Path) -> None:
    path = tmp_path / "a,b.txt"
    path.write_text(Altered(make_log.run()).value("submission_org", "100%").drop("run_summary").text)
    status, out, _ = compliance("check", "--format", "github", path)
    lines = out.splitlines()
    place = f"file={tmp_path}/a%2Cb.txt"
    assert f"::error {place},title=own-log::no run_summary; hand in the log as the run wrote it, or run again" in lines
    assert any(line.startswith(f"::notice {place},title=run-mode::") for line in lines)
    assert (status, lines[-1]) == (1, f"{path}: FAIL")


def test_the_findings_are_as_their_schema_says(tmp_path: Path) -> None:
    schema = json.loads((rule_files.RULES.parent / "findings.schema.json").read_text())
    texts = Altered(make_log.run(seed=1)).drop("init_start").text, make_log.closed_run(seed=2), "\0"
    said = answer("check", "--official", *write(tmp_path, *texts), status=1)
    json_schema.validate(said, schema)
    said["files"][0]["findings"][0]["class"] = "other"
    with pytest.raises(json_schema.ValidationError):
        json_schema.validate(said, schema)


def test_the_check_of_a_log_starts_without_what_only_others_need(tmp_path: Path) -> None:
    """Imports are most of its time: those of JUnit, --explain and Python's statistics are left out."""
    code = "import sys; from compliance.__main__ import main; main(); print(*sys.modules, file=sys.stderr)"
    [path] = write(tmp_path, make_log.run())
    done = jobs.run([sys.executable, "-c", code, "check", str(path)])
    assert "PASS" in done.stdout
    assert not {"difflib", "hashlib", "html", "jinja2", "statistics"} & set(done.stderr.split())
