"""`python -m scoring report`, through its command; the page also in a real headless Chromium (slow)."""

from __future__ import annotations

import base64
import csv
import fcntl
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness import nvidia
from scoring.__main__ import main
from scoring.report.text import markdown, number
from tests import jobs
from tests.needs import need
from tests.scoring import samples
from tests.scoring.test_fuzz import mutated

HOSTILE = "<script>window.pwned=1</script>\n\"'><img src=x onerror=window.pwned=1></style>]]>&lt;|`x`\u202e\x1b[31m=1+1"
VOID = {"meta", "br", "img", "link", "input", "hr"}


def event(key: str, value: Any, time_s: float, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    """One MLLOG line."""
    fields = {"namespace": "", "time_ms": int(time_s * 1000), "event_type": kind, "key": key, "value": value}
    return f":::MLLOG {json.dumps(fields | {'metadata': metadata})}"


STARTS = itertools.count(1000.0)  # no two logs are of the same run


def write_log(
    path: Path,
    *,
    devices: int = 2,
    step_s: float = 0.5,
    windows: int = 12,
    text: str = "resnet50_v1.5",
    device: str = "gpu",
    telemetry: bool = False,
    accuracy: float = 0.95,
    seed: int = 7,
    mode: str = "train",
    status: str | None = "success",
    topology: dict[str, Any] | None = None,
) -> Path:
    """A log of our own of `windows` windows of 5 steps; every second one is 2 % slower than `step_s`."""
    batch, start = 16, next(STARTS)
    config = {
        "DGXSYSTEM": {"value": "CPU", "origin": "environment"},
        "BATCHSIZE": {"value": batch, "origin": "environment"},
        "RECIPE.target_top1": {"value": 0.9, "origin": "paddle_rn50/config.py"},
        "SUBMISSION_ORG": {"value": text, "origin": "environment"},
    }
    summary = {"devices": devices, "nodes": 1, "batch_per_device": batch, "precision": "fp32", "math_mode": "fp32"}
    summary |= {"mode": mode, "framework": f"paddlepaddle {text}" if text != "resnet50_v1.5" else "paddlepaddle 2.6.2"}
    gpus = [{"name": text, "memory_gib": 32.0}] * devices if text != "resnet50_v1.5" else []
    nodes = [{"host": text, "cpu": text, "cores": 2, "gpus": gpus, "topology": topology}]
    lines = [
        '# {"log": {"format": "paddle-reference-log", "version": 1}}',
        f"# {json.dumps({'source': {'commit': 'abc', 'dirty': False, 'lock_sha256': 'd' * 64, 'image_digest': None}})}",
        f"# {json.dumps({'config': config})}",
        f"# {json.dumps({'packages': {'paddlepaddle-gpu': text}})}",
        f"# {json.dumps({'hardware': {'nodes': nodes, 'device': device}})}",
        event("submission_benchmark", text, start),
        event("submission_org", text, start),
        event("submission_platform", text, start),
        event("seed", seed, start),
        event("train_samples", 1000, start),
        event("global_batch_size", batch * devices, start),
        event("run_summary", summary | {"model": text}, start),
        event("run_start", None, start, "INTERVAL_START"),
        f"a line for people: {text}",
    ]
    now = start
    for window in range(1, windows + 1):
        seconds = 5 * step_s * (1.02 if window % 2 else 1.0)
        now += seconds
        value = {"steps": 5, "images": 5 * batch * devices, "time_s": seconds, "data_wait_s": 0.04 * seconds}
        value |= {"loss": 3.0 / window, "gpu_memory_mib": 1000.0 + window if telemetry else None}
        value |= {"power_w": 200.0 if telemetry else None}
        phase = "train" if mode == "train" else "warmup" if window <= 4 else "measured"
        lines.append(event("step_window", value, now, step=5 * window, epoch_num=1, phase=phase))
    if mode == "train":
        lines.append(event("eval_accuracy", accuracy, now + 1, epoch_num=1))
    if telemetry:
        lines.append(event("telemetry_summary", {"peak_gpu_temperature_c": 71}, now + 1))
    if status is not None:
        lines.append(event("run_stop", None, now + 2, "INTERVAL_END", status=status))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Parsed(HTMLParser):
    """What a page holds: elements with their attributes, ids, text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.by_id: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        self.hrefs = [attributes["href"] for name, attributes in self.elements if name == "a"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, attributes.get("id")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened = self._open.pop()[0]
        assert opened == tag, f"{opened} closed by {tag} at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        for _, identity in self._open:
            if identity:
                self.by_id[identity] = self.by_id.get(identity, "") + data


def page_of(tmp_path: Path, *arguments: object, code: int = 0) -> Parsed:
    page = tmp_path / "report.html"
    assert main(["report", *map(str, arguments), "--html", str(page)]) == code
    return Parsed(page.read_text(encoding="utf-8"))


def values_of(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["report", *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def assert_self_contained(page: Parsed) -> None:
    """Every link resolves within the page, ids are unique, and nothing is run or fetched."""
    twice = [identity for identity, count in Counter(page.ids).items() if count > 1]
    assert not twice
    assert page.hrefs
    for href in page.hrefs:
        assert href is not None
        assert href.startswith("#")
        assert href[1:] in set(page.ids), href
    names = {name for name, _ in page.elements}
    assert not names & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "foreignobject"}
    for name, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on")}
        for key in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(key)
            assert value is None or value.startswith("#"), (name, key, value)


# ------------------------------------------------------------------------------------------------ the page


def test_page_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "result_0.txt")
    page = page_of(tmp_path, log)
    first = (tmp_path / "report.html").read_bytes()
    page_of(tmp_path, log)
    assert (tmp_path / "report.html").read_bytes() == first  # the same runs give the same page
    assert_self_contained(page)
    text = "".join(page.text)
    # 12 windows of 5 steps, skip 20 steps: 8 windows of 160 images in 2.55 s and 2.5 s alternately.
    expected = 8 * 160 / (4 * 2.55 + 4 * 2.5)
    score = values_of(capsys, log)["groups"][0]["score"]
    assert score["value"] == pytest.approx(expected, rel=1e-9)
    assert number(expected) in page.by_id["verdict"]
    assert "0.95" in page.by_id["training"]
    assert "target 0.9" in page.by_id["training"]
    for title in ("Throughput over time", "Where a step's time goes", "Scaling and efficiency", "Variance"):
        assert title in text
    # The published curves stand beside; efficiency of one device count is none.
    assert "DLPerf" in page.by_id["scaling"]
    assert "not measured" in page.by_id["scaling"]


def test_numbers_link_to_the_lines_that_hold_them(tmp_path: Path) -> None:
    log = write_log(tmp_path / "result_0.txt")
    page = page_of(tmp_path, log)
    lines = log.read_text().splitlines()
    quoted = {int(i.rsplit("-", 1)[1]): i for i in page.ids if i and re.fullmatch(r"run-1-line-\d+", i)}
    assert quoted
    for line, identity in quoted.items():
        shown = page.by_id[identity].removeprefix(str(line))
        assert shown.split("… (")[0] == lines[line - 1][:600]
    # The figure's first and last window, the seed and the accuracy are among them.
    first = next(at for at, text in enumerate(lines, 1) if '"step": 25,' in text)
    wanted = [first, *(at for at, text in enumerate(lines, 1) if '"seed"' in text or "eval_accuracy" in text)]
    assert set(wanted) <= set(quoted)
    assert f"#run-1-line-{first}" in page.hrefs


def test_no_number_of_a_table_stands_without_its_lines(tmp_path: Path) -> None:
    """A row of windows has its lines in the first cell; published figures come from no log."""
    logs = [write_log(tmp_path / f"{at}.txt", devices=n, seed=at, telemetry=True) for at, n in enumerate((1, 2, 2))]
    page_of(tmp_path, *logs)
    text = (tmp_path / "report.html").read_text()
    tables = re.findall(r'aria-label="([^"]*)"><table>(.*?)</table>', text, re.DOTALL)
    ours = [body for label, body in tables if not label.startswith(("Windows of run", "Published", "Every evaluation"))]
    cells = [cell for body in ours for cell in re.findall(r'<td class="n">(.*?)</td>', body)]
    assert len(cells) > 40
    assert [cell for cell in cells if re.search(r"\d", cell) and "<a " not in cell] == []


def test_every_plot_has_a_text_alternative_and_units(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=0.5, telemetry=True) for n in (1, 2)]
    page = page_of(tmp_path, *logs)
    plots = [attributes for name, attributes in page.elements if name == "svg"]
    assert len(plots) >= 6
    for attributes in plots:
        assert attributes["role"] == "img"
        named = (attributes["aria-labelledby"] or "").split()
        assert len(named) == 2
        assert all(len(page.by_id[identity]) > 3 for identity in named)
    text = "".join(page.text)
    for axis in ("images/s", "time in s", "devices", "MiB", "epoch", "efficiency in %"):
        assert axis in text


def test_hostile_text_is_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "<b>x' onload=window.pwned=1"
    folder.mkdir()
    log = write_log(folder / "a&b.txt", text=HOSTILE)
    finding = {"rule": HOSTILE, "severity": "error", "line": 3, "expected": HOSTILE, "actual": HOSTILE, "fix": HOSTILE}
    findings = tmp_path / "findings.json"
    findings.write_text(json.dumps({"files": [{"file": str(log), "verdict": "fail", "findings": [finding]}]}))
    page = page_of(tmp_path, log, "--findings", findings)
    assert_self_contained(page)
    assert not {"b", "x"} & {name for name, _ in page.elements}
    text = "".join(page.text)
    assert "<script>window.pwned=1</script>" in text  # as text
    assert "\\u202e" in text
    assert not {"\u202e", "\x1b", "\0"} & set(text)
    assert main(["report", str(log), "--findings", str(findings)]) == 0
    out = capsys.readouterr().out
    outside_of_code = [line for line in out.splitlines() if not line.startswith("    ")]
    assert not re.search(r"(?<!\\)<(script|img)", "\n".join(outside_of_code))
    assert not re.search(r"(?<!\\)[`~]x", "\n".join(outside_of_code))
    assert "\x1b" not in out
    assert "&amp;" not in out  # escaped for Markdown, not for HTML
    columns = 0
    for line in out.splitlines():  # a `|` or an end of line in a log makes no cell and no row
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("| ") else 0
        assert cells in (0, columns or cells), line
        columns = cells or (columns if line.startswith("|--") else 0)
    assert main(["report", str(log), "--csv", "-"]) == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert row["file"] == str(log)


def test_address_in_a_log_is_no_link_in_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "a.txt", text="https://evil.example www.evil.example")
    assert main(["report", str(log)]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "evil" in line and not line.startswith("    ")]
    assert shown
    assert not [line for line in shown if re.search(r"https?://|www\.", line)]


def test_formulas_do_not_reach_a_spreadsheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "a.txt", text='=HYPERLINK("x")')
    assert main(["report", str(log), "--csv", "-"]) == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert row["model"] == '\'=HYPERLINK("x")'
    assert float(row["value"]) > 0


# ---------------------------------------------------------------------------------------------- the content


def test_scaling_against_the_smallest_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {1: 0.5, 2: 0.55, 4: 0.6}
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=step_s) for n, step_s in steps.items()]
    values = values_of(capsys, *logs)
    (rows,) = values["scaling"]
    assert [row["devices"] for row in rows] == [1, 2, 4]
    for row in rows:
        speedup = row["devices"] * steps[1] / steps[row["devices"]]
        assert row["speedup"] == pytest.approx(speedup, rel=1e-6)
        assert row["efficiency"] == pytest.approx(speedup / row["devices"], rel=1e-6)
    assert values["headline"] == 2
    page = page_of(tmp_path, *logs)
    assert_self_contained(page)
    assert "83.3%" in page.by_id["scaling"]


def test_different_systems_share_no_scaling_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [write_log(tmp_path / "1.txt", devices=1), write_log(tmp_path / "2.txt", devices=2, text="other")]
    assert values_of(capsys, *logs)["scaling"] == []


def test_all_reduce_is_estimated_from_two_device_counts_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ring traffic grows as (g-1)/g: t = 0.5 + 0.1 * (g-1)/g gives 0.05 s on 2 and 0.075 s on 4 devices.
    steps = {1: 0.5, 2: 0.55, 4: 0.575}
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=step_s) for n, step_s in steps.items()]
    got = {group["runs"][0]["devices"]: group["step_time"] for group in values_of(capsys, *logs)["groups"]}
    assert got[1]["all_reduce_s"] == 0
    assert got[2]["all_reduce_s"] == pytest.approx(0.05 * 1.01, rel=0.01)
    assert got[4]["all_reduce_s"] == pytest.approx(0.075 * 1.01, rel=0.01)
    for step in got.values():
        assert step["data_wait_s"] == pytest.approx(0.04 * step["total_s"], rel=1e-6)
        assert step["rest_s"] + step["data_wait_s"] + step["all_reduce_s"] == pytest.approx(step["total_s"])
    alone = values_of(capsys, logs[1])["groups"][0]["step_time"]
    assert alone["all_reduce_s"] is None
    assert "one device count" in alone["all_reduce_note"]
    on_cpu = [write_log(tmp_path / f"cpu{n}.txt", devices=n, device="cpu") for n in (1, 2)]
    assert values_of(capsys, *on_cpu)["groups"][1]["step_time"]["all_reduce_s"] is None


def test_what_was_not_measured_says_so(tmp_path: Path) -> None:
    bare = page_of(tmp_path, write_log(tmp_path / "bare.txt"))
    assert bare.by_id["telemetry"].count("not measured") == 4
    measured = page_of(tmp_path, write_log(tmp_path / "measured.txt", telemetry=True)).by_id["telemetry"]
    assert "1,012.0 MiB" in measured  # the most of 1001 .. 1012
    assert "200.00 W" in measured
    assert "3.156 J" in measured  # 200 W over 20.2 s of 8 windows, by 1280 images
    assert "71.00 °C" in measured
    assert "not measured" not in measured


DGX1 = """
        GPU0   GPU1   GPU2   GPU3   mlx5_0  CPU Affinity
GPU0     X     NV1    NV2    SYS    PIX     0-19
GPU1    NV1     X     NODE   NV2    PIX     0-19
GPU2    NV2    NODE    X     NV1    PHB     0-19
GPU3    SYS    NV2    NV1     X     PHB     20-39
mlx5_0  PIX    PIX    PHB    PHB     X
"""


def test_topology_is_drawn(tmp_path: Path) -> None:
    bare = page_of(tmp_path, write_log(tmp_path / "bare.txt"))
    assert "Topology of the GPUs: not measured" in bare.by_id["provenance"]
    found = json.loads(json.dumps(asdict(nvidia.parse_topology(DGX1))))
    drawn = page_of(tmp_path, write_log(tmp_path / "drawn.txt", topology=found)).by_id["provenance"]
    assert "GPU0 to GPU1 NV1, GPU2 NV2, GPU3 SYS, mlx5_0 PIX" in drawn and "not measured" not in drawn
    odd = found | {"links": [["X", "NV1"], ["NV1"]]}
    page = page_of(tmp_path, write_log(tmp_path / "odd.txt", topology=odd))
    assert "Topology of the GPUs: not measured" in page.by_id["provenance"]


def findings_of(path: Path, verdicts: dict[Path, str]) -> Path:
    error = {"rule": "r", "severity": "error", "line": 7, "expected": "e", "actual": "a", "fix": "f"}
    files = [
        {"file": str(log), "verdict": verdict, "findings": [error] if verdict == "fail" else []}
        for log, verdict in verdicts.items()
    ]
    path.write_text(json.dumps({"files": files}))
    return path


def test_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", seed=n, step_s=0.5 + n / 1e4) for n in (1, 2, 3)]
    passed = findings_of(tmp_path / "pass.json", dict.fromkeys(logs, "pass"))
    partly = findings_of(tmp_path / "part.json", {logs[0]: "pass"})
    failed = findings_of(tmp_path / "fail.json", {logs[0]: "pass", logs[1]: "fail", logs[2]: "pass"})
    assert values_of(capsys, *logs, "--findings", passed)["verdict"]["status"] == "ok"
    assert values_of(capsys, *logs, "--findings", partly)["verdict"]["status"] == "unknown"
    assert values_of(capsys, *logs)["verdict"]["status"] == "unknown"
    result = values_of(capsys, *logs, "--findings", failed)["verdict"]
    assert result["status"] == "fatal"
    assert "run 2 failed" in result["checks"][0]["found"]
    page = page_of(tmp_path, *logs, "--findings", failed)
    assert "#run-2-line-7" in page.hrefs
    below = write_log(tmp_path / "low.txt", accuracy=0.5)
    assert values_of(capsys, below, "--findings", findings_of(passed, {below: "pass"}))["verdict"]["status"] == "fatal"
    cut = write_log(tmp_path / "cut.txt", status=None)
    assert values_of(capsys, cut, "--findings", findings_of(passed, {cut: "pass"}))["verdict"]["status"] == "fatal"
    aborted = write_log(tmp_path / "aborted.txt", status="aborted")
    assert values_of(capsys, aborted)["verdict"]["status"] == "fatal"


def test_first_screen_says_what_ran(tmp_path: Path) -> None:
    page_of(tmp_path, write_log(tmp_path / "a.txt", text="Example Lab"))
    first_screen = (tmp_path / "report.html").read_text().partition("<body>")[2].partition("<nav")[0]
    head = Parsed(f"{first_screen}</main>")
    said = "".join(head.text)
    for fact in ("2 x Example Lab", "date1970-01-01", "organisationExample Lab", "commitabc", "window: skip 20 steps"):
        assert fact in said
    assert [name for name, _ in head.elements].count("svg") == 1


@pytest.mark.parametrize("nodes", [3, [3, None], [{"gpus": 3}, {"gpus": [3]}], [{"cpu": None}], {}])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_hardware_of_any_shape_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: Any, device: str
) -> None:
    log = write_log(tmp_path / "a.txt", device=device)
    head = f"# {json.dumps({'hardware': {'nodes': nodes, 'device': device}})}"
    lines = [head if line.startswith('# {"hardware"') else line for line in log.read_text().splitlines()]
    log.write_text("\n".join(lines))
    assert main(["report", str(log)]) == 0
    assert "- system: resnet50" in capsys.readouterr().out  # the platform


def test_unsteady_run_does_not_simply_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", seed=n, windows=30) for n in (1, 2)]
    text = logs[0].read_text()
    at = [line for line in text.splitlines() if "step_window" in line]
    for line in at[10::3]:  # a third of the windows takes twice as long
        slow = json.loads(line.removeprefix(":::MLLOG "))
        slow["value"]["time_s"] *= 2
        text = text.replace(line, f":::MLLOG {json.dumps(slow)}")
    logs[0].write_text(text)
    verdict = values_of(capsys, *logs, "--findings", findings_of(tmp_path / "f", dict.fromkeys(logs, "pass")))[
        "verdict"
    ]
    assert verdict["status"] == "warning"
    assert "not steady" in verdict["text"]
    assert "stands" not in verdict["text"]
    steadiness = next(check for check in verdict["checks"] if check["check"] == "steadiness")
    assert "the 95 % interval is" in steadiness["found"]
    doubts = " ".join(page_of(tmp_path, *logs).text)
    assert "the slow windows take 2.04 times as long as the fast ones" in doubts
    assert "measure again" in page_of(tmp_path, *logs).by_id["verdict"]


def test_a_folder_stands_for_its_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, devices in (("one.txt", 1), ("two.txt", 2)):
        write_log(tmp_path / name, devices=devices)
    assert values_of(capsys, tmp_path) == values_of(capsys, tmp_path / "one.txt", tmp_path / "two.txt")
    assert main(["report", str(tmp_path)]) == 0
    title = capsys.readouterr().out.partition("\n")[0]
    assert "1 device," in title and "2 devices," in title and title.count("images/s") == 2


def submission(folder: Path, systems: dict[str, int], *, described: bool) -> list[Path]:
    """MLPerf logs as a submitter's repository has them, each epoch twice as fast on twice the devices."""
    places = []
    for name, devices in systems.items():
        place = folder / "Lab" / "results" / name / "resnet"
        place.mkdir(parents=True)
        log, start = place / "result_0.txt", next(STARTS)
        lines = [event("submission_benchmark", "resnet", start), event("submission_platform", name, start)]
        lines += [event("train_samples", 1_281_167, start), event("global_batch_size", 4096, start)]
        lines.append(event("run_start", None, start, "INTERVAL_START"))
        for epoch in range(1, 9):
            lines.append(event("epoch_start", None, start, "INTERVAL_START", epoch_num=epoch))
            start += 480 / devices
            lines.append(event("epoch_stop", None, start, "INTERVAL_END", epoch_num=epoch))
        lines.append(event("run_stop", None, start, "INTERVAL_END", status="success"))
        log.write_text("\n".join(lines) + "\n")
        places.append(place)
        if described:
            (folder / "Lab" / "systems").mkdir(exist_ok=True)
            fields = {"number_of_nodes": devices // 8, "accelerators_per_node": "8", "accelerator_model_name": "A100"}
            (folder / "Lab" / "systems" / f"{name}.json").write_text(json.dumps(fields))
    return places


@pytest.mark.parametrize("described", [True, False])
def test_a_submission_s_systems_have_an_efficiency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], described: bool
) -> None:
    places = submission(tmp_path, {"a100_n1": 8, "a100_n4": 32}, described=described)
    options = [] if described else ["--devices", "8,32"]
    values = values_of(capsys, *places, *options)
    assert [row["efficiency"] for row in values["scaling"][0]] == pytest.approx([1, 1])
    assert [run["devices"] for group in values["groups"] for run in group["runs"]] == [8, 32]
    assert values_of(capsys, tmp_path / "Lab" / "results", *options)["scaling"] == values["scaling"]
    page = page_of(tmp_path, *places, *options)
    title, text = "".join(page.text).partition("Benchmark report")[2][:200], (tmp_path / "report.html").read_text()
    assert "8 devices" in title and "32 devices" in title and "a100_n1" in text and str(tmp_path) not in text
    assert "100.0% on 32 devices" in "".join(page.text)
    assert ("systems/a100_n4.json" in text) == described
    for broken in ("[]", "{", '{"number_of_nodes": Infinity, "accelerators_per_node": 8}'):
        if described:
            (tmp_path / "Lab" / "systems" / "a100_n1.json").write_text(broken)
            assert values_of(capsys, places[0])["groups"][0]["runs"][0]["devices"] is None
    if not described:  # one number for all is neither
        assert main(["report", *map(str, places), "--devices", "8,16,32"]) == 2
        assert "gives 3 numbers for 2 systems" in capsys.readouterr().err
        text = "".join(page_of(tmp_path, *places, "--devices", "8,16").text)  # four times the rate on twice of them
        assert "no figure: at most 100 % on 16 devices" in text and "2.00 times as much a device as the base" in text


def test_two_machines_are_two_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [write_log(tmp_path / f"{n}.txt") for n in range(4)]
    for log in logs[:2]:
        log.write_text(log.read_text().replace('"cpu": "resnet50_v1.5"', '"cpu": "EPYC"'))
    values = values_of(capsys, *logs)
    assert [len(group["runs"]) for group in values["groups"]] == [2, 2] and values["scaling"] == []
    assert [group["problem"] for group in values["groups"]] == [None, None]
    named = {group["name"].partition(", on ")[2] for group in values["groups"]}
    assert named == {"EPYC, 2 cores", "resnet50_v1.5, 2 cores"}


def test_cpu_runs_do_not_stand_beside_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = values_of(capsys, write_log(tmp_path / "a.txt", device="cpu"))
    assert values["published"] == []
    assert "CPU" in values["published_note"]


def test_throughput_runs_need_no_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "a.txt", mode="throughput")
    values = values_of(capsys, log)
    assert "not applicable" in values["verdict"]["checks"][0]["found"]
    assert values["groups"][0]["score"]["windows"] == 8  # the measured ones


def test_markdown_and_csv_agree_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", seed=n, step_s=0.5 + n / 100) for n in (1, 2, 3)]
    values = values_of(capsys, *logs)
    text, rows = tmp_path / "r.md", tmp_path / "r.csv"
    assert main(["report", *map(str, logs), "--markdown", str(text), "--csv", str(rows)]) == 0
    assert capsys.readouterr().out == ""
    score = values["groups"][0]["score"]
    assert f"# {number(score['value'])} images/s" in text.read_text()
    by_run = list(csv.DictReader(rows.open()))
    assert [float(row["value"]) for row in by_run] == [run["value"] for run in values["groups"][0]["runs"]]
    assert [int(row["seed"]) for row in by_run] == [1, 2, 3]
    for log in logs:
        assert markdown(log.name) in text.read_text() and str(log) not in text.read_text()


def test_commands_take_no_word_of_a_log_unquoted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt")
    log.write_text(log.read_text().replace('"BATCHSIZE"', '"A=1; touch pwned; B"').replace('"abc"', '"; touch pwned"'))
    part = page_of(tmp_path, log).by_id["reproduce"]
    assert "git checkout '; touch pwned'" in part
    assert part.count("touch pwned") == 1


def test_commands_to_reproduce(tmp_path: Path) -> None:
    log = write_log(tmp_path / "it's.txt", seed=42)
    part = page_of(tmp_path, log).by_id["reproduce"]
    assert "git checkout abc" in part
    assert "DGXSYSTEM=CPU BATCHSIZE=16 SUBMISSION_ORG=resnet50_v1.5 SEED=42 ./run_and_time.sh" in part
    command = next(line for line in part.splitlines() if "scoring score" in line)
    command = command[command.index("python -m scoring score") :].split("Write this")[0]
    done = jobs.run(["bash", "-c", command], cwd=tmp_path, PYTHONPATH=str(jobs.REPOSITORY))
    assert done.returncode == 0, done.stderr
    assert "images/s" in done.stdout


# --------------------------------------------------------------------------------------------- other people's


def test_a_segment_has_its_own_seed_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (write_log(tmp_path / f"{n}.txt", seed=n) for n in (1, 2))
    one.write_text(one.read_text() + two.read_text())
    assert [values_of(capsys, one, "--segment", n)["groups"][0]["runs"][0]["seed"] for n in (1, 2)] == [1, 2]
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


def test_a_figure_that_no_other_clock_confirms_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    text = samples.nvidia_tensorflow(samples.run_of(samples.steady(400)))
    for devices, said in (("Num GPUs 8", False), ("", True)):  # without devices no row's time is known
        log.write_text(text.replace("Num GPUs 8", devices))
        main(["report", str(log), "--markdown", "-"])
        assert ("One clock: nothing else" in capsys.readouterr().out) is said


def test_published_curves_have_names_of_their_own(published_logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for log in (
        "ngc_pytorch_v100_gpu1_amp_bs256.log",
        "paddleclas_a100_gpu1_fp32_bs256.log",
        "mmseg_v100_gpu8_fp32_bs8.log",
    ):
        told = ("--devices", 8) if log.startswith("paddleclas") else ()
        labels = [curve["label"] for curve in values_of(capsys, published_logs / log, *told)["published"]]
        assert len(labels) == len(set(labels))
        assert labels or log.startswith("mmseg")  # whose log does not name its model


def test_mlperf_submission(published_logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").glob("result_*.txt"))
    values = values_of(capsys, *runs, "--protocol", "mlperf")
    assert values["groups"][0]["score"]["value"] == pytest.approx(28.6854, abs=5e-5)
    quality = next(check for check in values["verdict"]["checks"] if check["check"] == "quality")
    assert quality["status"] == "warning"  # one aborted run of five is allowed
    page = page_of(tmp_path, *runs, "--protocol", "mlperf")
    assert_self_contained(page)
    assert "minutes (unverified)" in page.by_id["verdict"]
    assert main(["report", *map(str, runs), "--protocol", "mlperf"]) == 0
    for text in ("".join(page.text), capsys.readouterr().out):
        assert "Result not verified by MLCommons Association" in text


@pytest.mark.parametrize(
    "name", ['"RECIPE.target_top1": {"value"', '"epoch_num"', '"all_reduce_mib"', '"peak_gpu_temperature_c"']
)
def test_numbers_beyond_any_float(tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "a.txt", telemetry=True)
    text = f"# {json.dumps({'program': {'all_reduce_mib': 100}})}\n{log.read_text()}"
    log.write_text(re.sub(rf"{re.escape(name)}: [\d.]+", f"{name}: 1{'0' * 400}", text))
    assert main(["report", str(log)]) == 0


def test_values_beyond_any_axis_are_not_drawn(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt", telemetry=True)
    log.write_text(re.sub(r'("(?:loss|value)": )[\d.]+', r"\g<1>1e308", log.read_text()))
    assert_self_contained(page_of(tmp_path, log))


def test_damaged_logs_end_in_a_report_or_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(8)
    whole = write_log(tmp_path / "whole.txt", telemetry=True).read_bytes()
    seen = Counter[int]()
    for number_ in range(60):
        log = tmp_path / f"damaged_{number_}.txt"
        log.write_bytes(mutated(whole, draw, (b"<svg onload=alert(1)>", b": 1e400", b": null", whole[:500])))
        form = ["--html", str(tmp_path / "damaged.html")] if number_ % 10 == 0 else ["--json"]
        code = main(["report", str(log), *form])
        out, err = capsys.readouterr()
        seen[code] += 1
        assert code in (0, 1, 2)
        assert (code == 0) == (err == ""), err
        assert err.count("\n") <= 1
        if code != 2 and form[0] == "--json":
            json.loads(out, parse_constant=pytest.fail)
        elif code != 2:
            assert_self_contained(Parsed((tmp_path / "damaged.html").read_text(encoding="utf-8")))
    assert seen[0] > 10


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
    assert main(["report", str(log), "--protocol", protocol, "--html", str(tmp_path / "report.html")]) == code
    rows = re.findall(
        r'<tr><td><a href="#run-1-line-(\d+)"[^>]*>\d+</a></td>(?:<td[^>]*>[^<]*</td>){5}<td>(yes|no)</td></tr>',
        (tmp_path / "report.html").read_text(),
    )
    lines = [line for line, text in enumerate(log.read_text().splitlines(), 1) if "step_window" in text]
    assert [int(line) for line, _ in rows] == lines
    measured = [f"window {at}" for at, (_, is_measured) in enumerate(rows, 1) if is_measured == "yes"]
    assert (measured[0], measured[-1]) == (first, last)


def test_measured_epochs(published_logs: Path, tmp_path: Path) -> None:
    log = published_logs / "ngc_mxnet_v100_gpu1_fp32_bs128.log"
    page = page_of(tmp_path, log, "--protocol", "ngc-mxnet")
    assert "389.54" in page.by_id["verdict"]
    lines = log.read_text().splitlines()
    rows = re.findall(
        r'line-(\d+)"[^>]*>\d+</a></td>(?:<td[^>]*>[^<]*</td>){5}<td>(yes|no)', (tmp_path / "report.html").read_text()
    )
    assert {("Epoch: 0 " in lines[int(line) - 1], measured) for line, measured in rows} == {
        (True, "no"),
        (False, "yes"),
    }


# ------------------------------------------------------------------------------------------------- wrong use


def test_too_few_runs_is_exit_1_and_still_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of(tmp_path, write_log(tmp_path / "a.txt", windows=40), "--protocol", "fleetx", code=1)
    assert capsys.readouterr().err.count("\n") == 1
    assert "asks for 7 runs" in page.by_id["verdict"]


def test_nothing_to_measure_is_exit_1_and_shows_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of(tmp_path, write_log(tmp_path / "a.txt", windows=3), code=1)
    assert "warm-up" in capsys.readouterr().err
    assert "no figure" in page.by_id["verdict"]
    assert_self_contained(page)


@pytest.mark.parametrize("case", ["absent", "twice", "over a log", "findings", "deep", "other findings", "runs"])
def test_wrong_use_is_exit_2_with_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "a.txt")
    other = write_log(tmp_path / "b.txt", seed=8)
    broken = tmp_path / "broken.json"
    broken.write_text('{"files": [{"file": 1}]}')
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    arguments = {
        "absent": [tmp_path / "none.txt"],
        "twice": [log, log],
        "over a log": [log, other, "--html", other],
        "findings": [log, "--findings", broken],
        "deep": [log, "--findings", deep],
        "other findings": [log, "--findings", findings_of(tmp_path / "f.json", {other: "pass"})],
        "runs": [log, "--runs", "3"],
    }[case]
    before = other.read_bytes()
    assert main(["report", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("python -m scoring report: ")
    assert other.read_bytes() == before


def test_plots_are_paid_for_by_the_page_alone(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt")
    code = (
        f"import sys; from scoring.__main__ import main; main(['report', {str(log)!r}, '--json']); print(*sys.modules)"
    )
    done = jobs.run([sys.executable, "-c", code])
    modules = done.stdout.splitlines()[-1].split()
    assert "scoring.report" in modules
    assert "matplotlib" not in modules


def test_a_home_that_cannot_be_written_is_not_complained_of(tmp_path: Path) -> None:
    log, page = write_log(tmp_path / "a.txt"), tmp_path / "a.html"
    command = (sys.executable, "-m", "scoring", "report", str(log), "--html", str(page))
    done = jobs.run(command, HOME="/proc", MPLCONFIGDIR="")
    assert (done.returncode, done.stderr) == (0, "") and "<svg" in page.read_text()


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2.1."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_in_light_dark_and_print(tmp_path: Path) -> None:
    page_of(tmp_path, write_log(tmp_path / "a.txt"))
    css = (tmp_path / "report.html").read_text().partition("<style>")[2].partition("</style>")[0]
    palettes = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    assert len(palettes) == 2  # paper has the light one
    for palette in palettes:
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", palette))
        for ground in ("surface", "page"):
            for name, color in colors.items():
                least = 3.0 if name.startswith("series") else 4.5
                if name in ("grid", "line", "surface", "page"):
                    continue
                light, dark = sorted((luminance(color), luminance(colors[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (name, ground)


# ------------------------------------------------------------------------------------------------- a browser


class Browser:
    """A headless Chromium, spoken to over the pipe of its DevTools protocol."""

    def __init__(self, program: str, profile: Path) -> None:
        near_read, self._write = os.pipe()
        self._read, near_write = os.pipe()
        # Chromium reads from 3 and writes to 4: its ends must not lie there before they are put there.
        to_read, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (near_read, near_write))
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command += [f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-', "bash", *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (near_read, near_write, to_read, to_write):
            os.close(end)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method; events met on the way are kept."""
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, page: Path, *, width: int, height: int, scheme: str, phone: bool) -> None:
        """Load a page at that size (CSS pixels) and colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """A picture of what is seen, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=30)


@pytest.fixture
def browser(tmp_path: Path) -> Any:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    need(program is not None, "no Chromium: apt-get install chromium")
    started = Browser(program, tmp_path / "profile")
    yield started
    started.close()


BROKEN_LINKS = """[...document.querySelectorAll('a')].filter(a => {
  const target = document.getElementById(decodeURIComponent(a.hash.slice(1)));
  return a.origin + a.pathname !== location.origin + location.pathname || !target || !target.getClientRects().length;
}).map(a => a.outerHTML)"""
TOO_SMALL = """[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length &&
  t.getBoundingClientRect().height > 0 && parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a < 11)
  .map(t => t.textContent)"""
UNFOLD = "document.querySelectorAll('details').forEach(part => { part.open = true; })"
OUTSIDE = """[...document.querySelectorAll('svg.plot')].filter(s => s.getClientRects().length).flatMap(s => {
  const box = s.getBoundingClientRect();
  return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1; })
    .map(t => t.textContent); })"""


CUT_OFF = """[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth + 1)
  .map(s => s.getAttribute('aria-label'))"""


@pytest.mark.slow
@pytest.mark.ci
def test_in_chromium(browser: Browser, tmp_path: Path) -> None:
    found = json.loads(json.dumps(asdict(nvidia.parse_topology(DGX1))))
    logs = [write_log(tmp_path / "plain.txt", devices=1, telemetry=True, topology=found)]
    logs += [write_log(tmp_path / f"run {n}.txt", devices=2, seed=n, step_s=0.5 + n / 100) for n in (1, 2)]
    logs.append(write_log(tmp_path / "hostile<b>.txt", devices=4, text=HOSTILE))
    page = tmp_path / "report.html"
    assert main(["report", *map(str, logs), "--html", str(page)]) == 0
    shots = Path(os.environ.get("REPORT_SHOTS", tmp_path))
    for width, height, phone in ((1280, 900, False), (390, 844, True), (320, 600, True)):
        for scheme in ("light", "dark"):
            browser.open(page, width=width, height=height, scheme=scheme, phone=phone)
            where = f"{width} {scheme}"
            told = [
                e for e in browser.events if e["method"].startswith(("Log.", "Runtime.exception", "Runtime.console"))
            ]
            assert not told, where
            asked = [
                e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"
            ]
            assert asked == [page.as_uri()], where
            assert browser.value("window.pwned") is None, where
            assert browser.value("document.querySelectorAll('main > details[open]').length") == 0, where
            browser.value(UNFOLD)
            assert browser.value("document.documentElement.scrollWidth") <= width, where
            assert browser.value(BROKEN_LINKS) == [], where
            assert browser.value(OUTSIDE) == [], where
            if not phone:
                assert browser.value(CUT_OFF) == [], where
            if width > 320:
                assert browser.value(TOO_SMALL) == [], where
            dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 26)"
            assert dark == (scheme == "dark")
            browser.screenshot(shots / f"report-{width}-{scheme}.png", whole=True)
    # A followed link shows the quoted line, which is folded away until then.
    browser.open(page, width=1280, height=900, scheme="light", phone=False)
    first = browser.value("document.querySelector('#verdict td a[href*=line]').click(), location.hash")
    shown = f"document.querySelector('{first}')"
    assert browser.value(f"{shown}.matches(':target') && {shown}.checkVisibility({{contentVisibilityAuto: true}})")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    a4_width = 718  # CSS pixels between margins of 10 mm
    browser.call("Emulation.setDeviceMetricsOverride", width=a4_width, height=1000, deviceScaleFactor=1, mobile=False)
    assert browser.value(CUT_OFF) == []
    assert browser.value("document.documentElement.scrollWidth") <= a4_width
    for count, most in ((1, 4), (5, 8)):
        runs = [write_log(tmp_path / f"print {n}.txt", seed=n, telemetry=True, topology=found) for n in range(count)]
        assert main(["report", *map(str, runs), "--html", str(page)]) == 0
        browser.open(page, width=1280, height=900, scheme="dark", phone=False)
        pdf = base64.b64decode(browser.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])
        (shots / f"report-{count}.pdf").write_bytes(pdf)
        assert 1 < len(re.findall(rb"/Type\s*/Page[^s]", pdf)) <= most
