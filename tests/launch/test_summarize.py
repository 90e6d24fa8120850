"""The table at the end of a job, from logs as the training side writes them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import jobs
from tests.compliance import make_log


def row(stdout: str, name: str) -> str:
    (found,) = re.findall(rf"^{name} {{2,}}(.*?) *$", stdout, re.M)
    return found


@pytest.mark.parametrize(
    ("benchmark", "model", "measure"), [("resnet", "resnet50_v1.5", "top-1"), ("hrnet", "fcn_hrnetw18", "mIoU")]
)
def test_quality_has_the_name_of_the_models_measure(tmp_path: Path, benchmark: str, model: str, measure: str) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(make_log.run(benchmark=benchmark, summary={"model": model}))
    done = jobs.run([sys.executable, "launch/summarize.py", str(log)])
    assert (done.returncode, done.stderr) == (0, "")
    assert row(done.stdout, "quality") == f"0.9611 {measure}"


def test_a_log_without_an_evaluation_is_named(tmp_path: Path) -> None:
    whole, cut = tmp_path / "result_0.txt", tmp_path / "result_1.txt"
    text = make_log.run()
    whole.write_text(text)
    cut.write_text(text[: text.index('"key": "eval_start"')].rpartition("\n")[0] + "\n")
    done = jobs.run([sys.executable, "launch/summarize.py", str(whole), str(cut)])
    assert (done.returncode, done.stderr) == (1, "")
    assert row(done.stdout, "quality") == f"no evaluation in {cut}"
    assert row(done.stdout, "time to train") == f"no end in {cut}"
    assert row(done.stdout, "check").startswith("pass, fail")
