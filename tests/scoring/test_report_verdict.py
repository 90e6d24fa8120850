"""What `python -m scoring report` says first: of runs that failed, are unsteady, or of unsaid or of several origins."""

import re
from pathlib import Path

import pytest

from compliance import mlperf
from compliance.official.rounds import SubmissionRuns
from runlog.verdict import UNKNOWN
from scoring.figure import protocols
from scoring.importers import read_record
from scoring.report.build import GivenLog, build
from tests import make_log
from tests.scoring.pages import findings_of, page_of, report, values_of, write_log


def test_a_run_that_the_benchmarks_rules_drop_is_no_end_of_the_result(published_logs: Path, tmp_path: Path) -> None:
    """Five runs of ResNet of which one was aborted; of four runs, or of two aborted ones, the result is none."""
    runs = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").glob("result_*.txt"))

    def quality(*logs: Path) -> str:
        verdict = values_of(*logs, "--protocol", "window")["verdict"]
        return next(check["status"] for check in verdict["checks"] if check["check"] == "quality")

    assert quality(*runs) == "warning"
    text = report(*runs, "--protocol", "window").stdout
    assert "ended without success (aborted); the rules of the result drop at least as many" in text
    assert r"28.65 min: time to train: run\_start to run\_stop, median of 4 runs that ended with success, of 5" in text
    assert "window: skip 20 steps or a marked warm-up, images over time; mean of 5 runs" in text
    assert "| devices not said |" in text  # the figure of a device, which was measured
    assert quality(*runs[:4]) == "fatal"
    second = tmp_path / "result_0.txt"
    second.write_text(runs[0].read_text().replace('"status": "success"', '"status": "failed"'))
    assert quality(second, *runs[1:]) == "fatal"
    assert "ended without success (failed, aborted)" in report(second, *runs[1:], "--protocol", "window").stdout


def test_how_many_runs_may_fail_is_open_where_rounds_ask_for_other_numbers(
    published_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs do not say their round, so the number of the newest one may be wrong."""

    def more_since_round_3(benchmark: str, ruleset: str) -> SubmissionRuns:
        return SubmissionRuns(runs=5 if ruleset < "3" else 10, dropped=1)

    monkeypatch.setattr(mlperf, "submission_runs", more_since_round_3)
    runs = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").glob("result_*.txt"))
    logs = [GivenLog(record=read_record(run), path=run) for run in runs]
    made = build(logs, protocols.find("window"), skip=None)
    [quality] = [check for check in made.checks if check.check == "quality"]
    assert quality.status == UNKNOWN
    assert "how many may fail depends on the round of MLPerf, which the logs do not say" in quality.found


def test_foreign_logs_of_unsaid_origin_do_not_stand(published_logs: Path, tmp_path: Path) -> None:
    log = published_logs / "mmseg_v100_gpu8_fp32_bs8.log"
    verdict = values_of(log)["verdict"]
    [origin] = [check for check in verdict["checks"] if check["check"] == "provenance"]
    assert verdict["status"] == origin["status"] == "unknown"
    assert origin["found"] == "the logs do not say system or date or organisation or commit"
    text = report(log).stdout
    assert "compliance (–): not applicable" in text and "Nothing is open" not in text and "package it" not in text
    assert "provenance (unknown): the logs do not say system" in text
    assert "Provenance: unknown The logs do not say system" in " ".join(" ".join(page_of(tmp_path, log).text).split())


def test_quality_just_below_its_target_is_not_shown_as_the_target(tmp_path: Path) -> None:
    """37,949 of 50,000 images are 0.75898. It was shown as 0.759, beside the target of 0.759."""
    log = tmp_path / "a.txt"
    log.write_text(make_log.run(accuracies=(0.5, 0.7, 0.75898), target=0.759, samples=(1437, 50_000)))
    text = report(log).stdout
    assert r"quality (fatal): the run ended with success; lowest final eval\_accuracy 0.75898, target 0.759" in text
    assert r"- 0.75898: eval\_accuracy, final" in text
    assert "run 1 0.5 to 0.75898; target 0.759." in text


def test_unsteady_run_does_not_simply_stand(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", seed=n, windows=30, unsteady=n == 1) for n in (1, 2)]
    findings = findings_of(tmp_path / "f", dict.fromkeys(logs, "pass"))
    verdict = values_of(*logs, "--findings", findings)["verdict"]
    assert verdict["status"] == "warning" and "not steady" in verdict["text"] and "stands" not in verdict["text"]
    steadiness = next(check for check in verdict["checks"] if check["check"] == "steadiness")
    assert "the 95 % interval is" in steadiness["found"]
    page = page_of(tmp_path, *logs)
    assert "the slow windows take 2.04 times as long as the fast ones" in " ".join(page.text)
    assert "measure again" in page.by_id["verdict"]


def test_throughput_runs_need_no_check(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt", mode="throughput")
    values = values_of(log)
    assert "not applicable" in values["verdict"]["checks"][0]["found"]
    assert values["groups"][0]["score"]["windows"] == 8  # the measured ones


def test_a_date_and_an_organisation_that_the_page_does_not_show_are_missing(tmp_path: Path) -> None:
    """The clock of the first event is beyond any date, and the organisation is empty."""
    log = write_log(tmp_path / "a.txt", mode="throughput")
    text = re.sub(r'"time_ms": \d+', f'"time_ms": {2**62}', log.read_text(), count=1)
    text = re.sub(r'("key": "submission_org", "value": )"[^"]*"', r'\1""', text)
    log.write_text(text)
    [origin] = [check for check in values_of(log)["verdict"]["checks"] if check["check"] == "provenance"]
    assert origin["found"] == "the logs do not say date or organisation"
    page = page_of(tmp_path, log)
    facts = " ".join(" ".join(page.text).split())
    assert "date not said organisation not said" in facts


def test_the_top_names_framework_commit_and_organisation_of_all_runs(tmp_path: Path) -> None:
    """A reader would take what stands there for that of each figure below it."""
    ours, theirs = tmp_path / "ours.txt", tmp_path / "theirs.txt"
    write_log(ours, devices=8, framework="paddlepaddle 2")
    write_log(theirs, devices=8, seed=8, framework="pytorch 2")
    changed = theirs.read_text().replace('"commit": "abc"', '"commit": "def"')
    theirs.write_text(
        changed.replace('"submission_org", "value": "resnet50_v1.5"', '"submission_org", "value": "Example Lab"')
    )
    top = report(ours, theirs).stdout.partition("What to do next")[0]
    assert re.findall("^- (?:organisation|commit|framework): (.*)", top, re.MULTILINE) == [
        "resnet50\\_v1.5; Example Lab",
        "abc; def",
        "paddlepaddle 2; pytorch 2",
    ]
    theirs.write_text("".join(line for line in theirs.read_text().splitlines(True) if '"source"' not in line))
    assert re.search("^- commit: abc; not said$", report(ours, theirs).stdout, re.MULTILINE)
