"""`python -m scoring report` on other people's logs, and on damaged ones."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.scoring import samples
from tests.scoring.command import scoring
from tests.scoring.pages import Parsed, assert_self_contained, page_of, report, values_of, write_log
from tests.scoring.test_fuzz import mutated


def test_a_segment_has_its_own_seed_and_commands(tmp_path: Path) -> None:
    one, two = (write_log(tmp_path / f"{n}.txt", seed=n) for n in (1, 2))
    one.write_text(one.read_text() + two.read_text())
    assert [values_of(one, "--segment", n)["groups"][0]["runs"][0]["seed"] for n in (1, 2)] == [1, 2]
    part = page_of(tmp_path, one, "--segment", "2").by_id["reproduce"]
    commands = [line for line in part.splitlines() if "scoring score" in line or "scoring report" in line]
    assert commands and all("--segment 2" in line for line in commands)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_narrow_terminal_gets_what_it_can_show(tmp_path: Path, encoding: str) -> None:
    log = write_log(tmp_path / "a.txt", text="モデル é")
    done = subprocess.run(
        [sys.executable, "-m", "scoring", "report", log],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0 and rb"\u30e2" in done.stdout, done.stderr


def test_other_peoples_logs(published_logs: Path, tmp_path: Path) -> None:
    logs = ["paddleclas_v100_gpu8_fp32_bs256.log", "paddleclas_v100_gpu32_fp32_bs256.log"]
    page = page_of(tmp_path, *(published_logs / log for log in logs), "--protocol", "perf")
    assert_self_contained(page)
    assert "10,984.4" in page.by_id["verdict"]  # the published figure of 32 devices, drop 10 windows
    assert "Paddle mixed V100 bs256" in page.by_id["scaling"]  # the published table mixes software versions
    assert "not checked" not in page.by_id["verdict"]


def test_a_figure_that_no_other_clock_confirms_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    text = samples.nvidia_tensorflow(samples.run_of(samples.steady(400)))
    for devices, said in (("Num GPUs 8", False), ("", True)):  # without devices no row's time is known
        log.write_text(text.replace("Num GPUs 8", devices))
        assert ("One clock: nothing else" in report(log, "--markdown", "-").stdout) is said


def test_published_curves_have_names_of_their_own(published_logs: Path) -> None:
    values = values_of(published_logs / "ngc_pytorch_v100_gpu1_amp_bs256.log")
    labels = [curve["label"] for curve in values["published"]]
    assert len(labels) == len(set(labels)) == 8
    assert values_of(published_logs / "mmseg_v100_gpu8_fp32_bs8.log")["published"] == []  # it does not name its model


def test_mlperf_submission(published_logs: Path, tmp_path: Path) -> None:
    runs = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").glob("result_*.txt"))
    values = values_of(*runs, "--protocol", "mlperf")
    assert values["groups"][0]["score"]["value"] == pytest.approx(28.6854, abs=5e-5)
    quality = next(check for check in values["verdict"]["checks"] if check["check"] == "quality")
    assert quality["status"] == "warning"  # one aborted run of five is allowed
    page = page_of(tmp_path, *runs, "--protocol", "mlperf")
    assert_self_contained(page)
    assert "minutes (unverified)" in page.by_id["verdict"]
    for text in ("".join(page.text), report(*runs, "--protocol", "mlperf").stdout):
        assert "Result not verified by MLCommons Association" in text


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, f"1{'0' * 400}") for name in ('top1": {"value"', '"epoch_num"', '"all_reduce_mib"', 'temperature_c"')),
        *((name, "1e308") for name in ('"loss"', '"value"')),  # a float, and beyond any axis
    ],
)
def test_numbers_out_of_all_bounds(tmp_path: Path, name: str, value: str) -> None:
    log = write_log(tmp_path / "a.txt", telemetry=True)
    text = f"# {json.dumps({'program': {'all_reduce_mib': 100}})}\n{log.read_text()}"
    log.write_text(re.sub(rf"{re.escape(name)}: [\d.]+", f"{name}: {value}", text))
    assert_self_contained(page_of(tmp_path, log))


def test_damaged_logs_end_in_a_report_or_in_one_line(tmp_path: Path) -> None:
    draw = random.Random(8)
    whole = write_log(tmp_path / "whole.txt", telemetry=True).read_bytes()
    seen = Counter[int]()
    for number_ in range(60):
        log = tmp_path / f"damaged_{number_}.txt"
        log.write_bytes(mutated(whole, draw, (b"<svg onload=alert(1)>", b": 1e400", b": null", whole[:500])))
        form = ["--html", str(tmp_path / "damaged.html")] if number_ % 10 == 0 else ["--json"]
        code, out, err = scoring("report", log, *form)
        seen[code] += 1
        assert code in (0, 1, 2)
        assert (code == 0) == (err == ""), err
        assert err.count("\n") <= 1
        if code != 2 and form[0] == "--json":
            json.loads(out, parse_constant=pytest.fail)
        elif code != 2:
            assert_self_contained(Parsed((tmp_path / "damaged.html").read_text(encoding="utf-8")))
    assert seen[0] > 10


# The line of each row of a table of windows, and whether it is measured.
MEASURED = re.compile(r'line-(\d+)"[^>]*>\d+</a></td>(?:<td[^>]*>[^<]*</td>){5}<td>(yes|no)</td></tr>')


@pytest.mark.parametrize(
    ("protocol", "first", "last"),
    [
        ("window", "window 5", "window 30"),  # skips 20 steps of windows of 5
        ("dlperf", "window 5", "window 24"),  # between the stamps of step 20 and step 120
        ("perf", "window 11", "window 30"),  # skips 10 windows
    ],
)
def test_measured_part_of_the_curve(protocol: str, first: str, last: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt", windows=30)
    code = 1 if protocol == "dlperf" else 0  # it asks for six runs
    report(log, "--protocol", protocol, "--html", tmp_path / "report.html", code=code)
    rows = MEASURED.findall((tmp_path / "report.html").read_text())
    lines = [line for line, text in enumerate(log.read_text().splitlines(), 1) if "step_window" in text]
    assert [int(line) for line, _ in rows] == lines
    measured = [f"window {at}" for at, (_, is_measured) in enumerate(rows, 1) if is_measured == "yes"]
    assert (measured[0], measured[-1]) == (first, last)


def test_measured_epochs(published_logs: Path, tmp_path: Path) -> None:
    log = published_logs / "ngc_mxnet_v100_gpu1_fp32_bs128.log"
    assert "389.54" in page_of(tmp_path, log, "--protocol", "ngc-mxnet").by_id["verdict"]
    lines = log.read_text().splitlines()
    rows = MEASURED.findall((tmp_path / "report.html").read_text())
    measured = {("Epoch: 0 " in lines[int(line) - 1], measured) for line, measured in rows}
    assert measured == {(True, "no"), (False, "yes")}
