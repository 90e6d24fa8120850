"""The table at the end of a job, from logs as the training side writes them."""

import functools
import re
import sys
from pathlib import Path

import pytest

from tests import jobs, make_log
from tools import summarize


def row(stdout: str, name: str) -> str:
    (found,) = re.findall(rf"^{name} {{2,}}(.*)$", stdout, re.M)
    return found


summarized = functools.partial(jobs.called, summarize.main)


def test_quality_has_the_name_of_the_models_measure(tmp_path: Path) -> None:
    logs = [tmp_path / f"result_{seed}.txt" for seed in (1, 2, 3)]
    for seed, log in enumerate(logs, 1):
        log.write_text(make_log.run(benchmark="hrnet", seed=seed, summary={"model": "fcn_hrnetw18"}))
    done = summarized(*logs)
    assert (done.returncode, done.stderr) == (0, "")
    assert row(done.stdout, "quality") == "0.9583 mIoU (median of 3; 0.9556 mIoU to 0.9611 mIoU)"


def test_a_log_without_an_evaluation_is_named(tmp_path: Path) -> None:
    whole, cut = tmp_path / "result_0.txt", tmp_path / "result_1.txt"
    whole.write_text(make_log.run())
    text = make_log.run(seed=2)
    cut.write_text(text[: text.index('"key": "eval_start"')].rpartition("\n")[0] + "\n")
    done = summarized(whole, cut)
    assert (done.returncode, done.stderr) == (1, "")
    assert row(done.stdout, "quality") == f"no evaluation in {cut}"
    assert row(done.stdout, "time to train") == f"no end in {cut}"
    assert row(done.stdout, "check").startswith("pass, fail")
    assert f"\nlog            {whole}\n               {cut}\n" in done.stdout  # whole, however long


COUNTED = """
import atexit, os, runpy, sys
log, opened, started = sys.argv.pop(1), [], []
def count(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and os.path.realpath(arguments[0]) == log:
        opened.append(arguments)
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        started.append(arguments)
sys.addaudithook(count)
atexit.register(lambda: print(len(opened), len(started), file=sys.stderr))
runpy.run_module("tools.summarize", run_name="__main__")
"""


@pytest.mark.parametrize("throughput", [False, True], ids=["train", "throughput"])
def test_check_score_and_report_read_the_log_once_in_one_process(tmp_path: Path, throughput: bool) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.run())
    options = ["--throughput"] if throughput else []
    done = jobs.run([sys.executable, "-c", COUNTED, str(log.resolve()), str(log), *options])
    assert (done.returncode, done.stderr) == (0, "1 0\n"), done.stderr
    assert row(done.stdout, "data wait") == "0.06 % of the step time"
    assert row(done.stdout, "report") == str(tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text()
    assert throughput or row(done.stdout, "quality") == "0.9611 top-1"
    assert (tmp_path / "findings.json").exists() != throughput
    assert bool(list(tmp_path.glob("*.checked"))) != throughput


def test_a_log_that_measured_nothing_is_named(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text("nothing\n")
    done = summarized(log)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {log}: ") and done.stderr.count("\n") == 1
