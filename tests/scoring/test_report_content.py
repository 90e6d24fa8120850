"""What `python -m scoring report` says of runs, of other people's logs, and of damaged ones."""

import csv
import json
import math
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scoring.record import Record, Window
from scoring.report import content
from scoring.report.text import markdown, number
from tests import jobs, make_log
from tests.compliance.test_data_distributed import with_passports
from tests.scoring import pages, samples
from tests.scoring.pages import Parsed, assert_self_contained, findings_of, page_of, report, values_of, write_log
from tests.scoring.samples import scoring
from tests.scoring.test_importers_damage import mutated


def test_scaling_and_all_reduce_against_the_smallest_count(tmp_path: Path) -> None:
    # Ring traffic grows as (g-1)/g: t = 0.5 + 0.1 * (g-1)/g gives 0.05 s on 2 and 0.075 s on 4 devices.
    steps = {1: 0.5, 2: 0.55, 4: 0.575}
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=step_s) for n, step_s in steps.items()]
    values = values_of(*logs)
    (rows,) = values["scaling"]
    assert [row["devices"] for row in rows] == [1, 2, 4] and values["headline"] == 2
    for row in rows:
        speedup = row["devices"] * steps[1] / steps[row["devices"]]
        assert row["speedup"] == pytest.approx(speedup, rel=1e-6)
        assert row["efficiency"] == pytest.approx(speedup / row["devices"], rel=1e-6)
    page = page_of(tmp_path, *logs)
    assert_self_contained(page)
    assert "87.0%" in page.by_id["scaling"]
    for group, all_reduce_s in zip(values["groups"], (0, 0.05, 0.075), strict=True):
        step = group["step_time"]
        assert step["all_reduce_s"] == pytest.approx(all_reduce_s * 1.01, rel=0.01)
        assert step["data_wait_s"] == pytest.approx(0.04 * step["total_s"], rel=1e-6)
        assert step["rest_s"] + step["data_wait_s"] + step["all_reduce_s"] == pytest.approx(step["total_s"])
    alone = values_of(logs[1])["groups"][0]["step_time"]
    assert alone["all_reduce_s"] is None and "one device count" in alone["all_reduce_note"]


def test_only_the_smallest_count_is_the_base_of_a_scaling_table(tmp_path: Path) -> None:
    """Not one that is just as fast, whose interval is unknown because it ran once."""
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=0.5 * n) for n in (1, 2)]
    assert [row["speedup"] for row in values_of(*logs)["scaling"][0]] == [1, 1]
    shown = page_of(tmp_path, *logs).by_id["scaling"]
    assert shown.count("base") == 1 and "none" in shown


def test_runs_on_a_cpu_have_no_all_reduce_and_no_published_curves(tmp_path: Path) -> None:
    values = values_of(*(write_log(tmp_path / f"cpu{n}.txt", devices=n, device="cpu") for n in (1, 2)))
    assert values["groups"][1]["step_time"]["all_reduce_s"] is None
    assert values["published"] == [] and "CPU" in values["published_note"]


def test_what_was_not_measured_says_so(tmp_path: Path) -> None:
    bare = page_of(tmp_path, write_log(tmp_path / "bare.txt"))
    assert bare.by_id["telemetry"].count("not measured") == 4
    measured = page_of(tmp_path, write_log(tmp_path / "measured.txt", telemetry=True)).by_id["telemetry"]
    assert "1,012.0 MiB" in measured  # the most of 1001 .. 1012
    assert "200.00 W" in measured
    assert "3.156 J" in measured  # 200 W over 20.2 s of 8 windows, by 1280 images
    assert "71.00 °C" in measured
    assert "not measured" not in measured


def test_topology_is_shown(tmp_path: Path) -> None:
    bare = page_of(tmp_path, write_log(tmp_path / "bare.txt"))
    assert "Topology of the GPUs: not measured" in bare.by_id["provenance"]
    shown = page_of(tmp_path, write_log(tmp_path / "drawn.txt", topology=pages.TOPOLOGY)).by_id["provenance"]
    assert "GPU0XNV1NV2SYSPIX" in shown and "of 1 node: resnet50_v1.5" in shown and "not measured" not in shown
    text = (tmp_path / "report.html").read_text()
    for kind in {re.sub(r"\d+$", "", link) for row in pages.TOPOLOGY["links"] for link in row} - {"X"}:
        assert f'<span class="link {kind}">' in text and f"td:has(&gt; .{kind})" in text.replace(">", "&gt;")
    for odd in pages.ODD_LINKS:
        page = page_of(tmp_path, write_log(tmp_path / "odd.txt", topology=pages.TOPOLOGY | odd))
        assert "Topology of the GPUs: not measured" in page.by_id["provenance"]


def test_the_provenance_tells_which_bytes_were_read(tmp_path: Path) -> None:
    dataset = {
        "train": {"files": 1003, "bytes": 2_500_001, "sha256": "c0" * 32, "is_exact": False},
        "train_source": {"files": 1003, "bytes": 2_400_007, "sha256": "c1" * 32, "is_exact": True},
        "eval": {"files": 51, "bytes": 70_009, "sha256": "c2" * 32, "is_exact": True},
        "eval_source": {"files": "many"},
    }
    log = make_log.mllog(make_log.run_of(make_log.steady()), header={"dataset": dataset})
    path = tmp_path / "log.txt"
    path.write_text(log)
    page = page_of(tmp_path, path)
    assert_self_contained(page)
    shown = page.by_id["provenance"]
    records = "training data1,003 records with more in them than the images, 2,500,001 bytes"
    assert f"{records}, SHA-256 {'c0' * 32}" in shown
    assert f"training data before it was packed1,003 files, 2,400,007 bytes, SHA-256 {'c1' * 32}" in shown
    assert f"evaluation data51 files, 70,009 bytes, SHA-256 {'c2' * 32}" in shown
    assert "evaluation data before it was packed" not in shown


SHRUNK_BYTES = 48_000_000_000
ORIGINAL_BYTES = 146_900_000_000
IS_SHRUNK = "48,000,000,000 bytes of training data"


@pytest.mark.parametrize(
    ("bytes_of", "shown", "found"),
    [
        ({"train": ORIGINAL_BYTES}, "training data1,281,167 files, 146,900,000,000 bytes", ""),
        ({"train": SHRUNK_BYTES}, "training data1,281,167 files, 48,000,000,000 bytes", IS_SHRUNK),
        (
            {"train": ORIGINAL_BYTES, "train_source": ORIGINAL_BYTES},
            "training data before it was packed1,281,167 files, 146,900,000,000 bytes",
            "",
        ),
        (
            {"train": ORIGINAL_BYTES, "train_source": SHRUNK_BYTES},
            "training data before it was packed1,281,167 files, 48,000,000,000 bytes",
            IS_SHRUNK,
        ),
    ],
    ids=["original", "shrunk", "packed", "packed of shrunk"],
)
def test_the_passport_goes_from_the_log_to_the_check_the_score_and_the_report(
    tmp_path: Path, bytes_of: dict[str, Any], shown: str, found: str
) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(with_passports(make_log.closed_run(), **bytes_of).text)
    checked = jobs.run([sys.executable, "-m", "compliance", "check", str(log), "--format", "json"])
    findings = tmp_path / "findings.json"
    findings.write_text(checked.stdout)
    [file] = json.loads(checked.stdout)["files"]
    of_the_bytes = [one["actual"] for one in file["findings"] if one["rule"] == "data-distributed"]
    assert len(of_the_bytes) == bool(found) and found in "".join(of_the_bytes)
    status, scored, _ = samples.command("score", log, "--protocol", "window")
    assert status == 0 and scored["result"]["is_mlperf"] is (not found) and found in scored["result"]["name"]
    page = page_of(tmp_path, log, "--findings", findings)
    assert shown in page.by_id["provenance"] and found in "".join(page.text)


def test_verdict(tmp_path: Path) -> None:
    def status(*given: Path, **checked: Path) -> str:
        told = ("--findings", findings_of(tmp_path / "f.json", {log: verdict for verdict, log in checked.items()}))
        return values_of(*given, *(told if checked else ()))["verdict"]["status"]

    logs = [write_log(tmp_path / f"{n}.txt", seed=n, step_s=0.5 + n / 1e4) for n in (1, 2, 3)]
    passed = findings_of(tmp_path / "pass.json", dict.fromkeys(logs, "pass"))
    assert values_of(*logs, "--findings", passed)["verdict"]["status"] == "ok"
    failed = findings_of(tmp_path / "fail.json", {logs[0]: "pass", logs[1]: "fail", logs[2]: "pass"})
    result = values_of(*logs, "--findings", failed)["verdict"]
    assert result["status"] == "fatal" and "run 2 failed" in result["checks"][0]["found"]
    assert "#run-2-line-7" in page_of(tmp_path, *logs, "--findings", failed).hrefs
    assert status(*logs) == status(*logs, **{"pass": logs[0]}) == "unknown"
    low, cut = write_log(tmp_path / "low.txt", accuracy=0.5), write_log(tmp_path / "cut.txt", status=None)
    aborted = write_log(tmp_path / "aborted.txt", status="aborted")
    assert [status(log, **{"pass": log}) for log in (low, cut, aborted)] == ["fatal"] * 3


def test_first_screen_says_what_ran(tmp_path: Path) -> None:
    page_of(tmp_path, write_log(tmp_path / "a.txt", text="Example Lab"))
    first_screen = (tmp_path / "report.html").read_text().partition("<body>")[2].partition("<nav")[0]
    head = Parsed(f"{first_screen}</main>")
    said = "".join(head.text)
    for fact in ("2 x Example Lab", "date2023-", "organisationExample Lab", "commitabc", "window: skip 20 steps"):
        assert fact in said
    assert [name for name, _ in head.elements].count("svg") == 2  # from zero, and enlarged


@pytest.mark.parametrize("nodes", [3, [3, None], [{"gpus": 3}, {"gpus": [3]}], [{"cpu": None}], {}])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_hardware_of_any_shape_is_read(tmp_path: Path, nodes: Any, device: str) -> None:
    log = write_log(tmp_path / "a.txt", device=device)
    head = f"# {json.dumps({'hardware': {'nodes': nodes, 'device': device}})}"
    lines = [head if line.startswith('# {"hardware"') else line for line in log.read_text().splitlines()]
    log.write_text("\n".join(lines))
    assert "- system: resnet50" in report(log).stdout  # the platform


def test_the_first_screen_says_where_time_and_memory_go(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=0.4 + n / 10, telemetry=True) for n in (1, 2)]
    page_of(tmp_path, *logs)
    brief = (tmp_path / "report.html").read_text().partition("<nav")[0]
    table = brief.partition("Where time and memory go")[2].partition("</table>")[0]
    rows = [re.sub("<[^>]+>", " ", row).split() for row in re.findall("<tr>(.*?)</tr>", table)][1:]
    # The windows take 1.00 and 1.02 of 0.5 s and of 0.6 s; each rank has 16 images a step.
    for row, step_s, efficiency in zip(rows, (0.5, 0.6), ("100.0%", "83.3%"), strict=True):
        words = " ".join(row)
        assert f"{1010 * step_s:.2f} ms {1020 * step_s:.2f} ms 4.00% {16 / 1.01 / step_s:.2f} 1,012.0 MiB" in words
        assert words.endswith(efficiency)
    assert "measured windows enlarged" in brief and "on an axis that does not start at 0" in brief
    in_order = re.sub("<[^>]+>", " ", brief.partition("Runs in the order in which they started")[2])
    assert re.search(r"run 1 +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +resnet50_v1.5 ", in_order)


def test_hosts_that_differ_in_their_last_characters_can_be_told_apart(tmp_path: Path) -> None:
    """They were cut at 40 characters; Linux takes 64."""
    hosts = [f"gpu-node-of-the-cluster-{rack}.eu-west-1.compute.internal-{rack:03}" for rack in (1, 2)]
    log = write_log(tmp_path / "a.txt")
    log.write_text(f"# {json.dumps({'hardware': {'nodes': [{'host': host} for host in hosts]}})}\n{log.read_text()}")
    assert f"{hosts[0]}, {hosts[1]}" in report(log, write_log(tmp_path / "b.txt", seed=2)).stdout


def test_the_variance_is_shown_by_level_and_names_what_is_not_known(tmp_path: Path, published_logs: Path) -> None:
    """Windows of a run, runs of a host, and hosts; the deviations are those of the JSON."""
    logs = [write_log(tmp_path / f"{seed}.txt", step_s=step_s, seed=seed) for seed, step_s in ((1, 0.5), (2, 0.51))]
    section = page_of(tmp_path, *logs).by_id["variance"]
    text = report(*logs).stdout
    scored = json.loads(scoring("score", *logs, "--protocol", "window", "--json").stdout)
    window, run, host = scored["levels"]
    assert (host["count"], host["unknown"]) == (1, "one host")
    for shown in (section, text):
        assert f"{window['count']} windows +-{window['relative_sd']:.2%}" in shown
        assert f"2 runs +-{run['relative_sd']:.2%}" in shown
        assert "one host" in shown

    foreign = report(published_logs / "mmseg_v100_gpu8_fp32_bs8.log").stdout
    assert "| one run | hosts: the logs do not name their hosts |" in foreign
    # These windows are uneven, so images over time lie below the mean of the rates, of which the levels are a share.
    assert "22.41 (37.2% of the figure) over windows" in foreign and "40 windows +-30.23%" in foreign
    assert "by their standard deviation as a share of their mean" in foreign


def test_a_folder_stands_for_its_logs(tmp_path: Path) -> None:
    for name, devices in (("one.txt", 1), ("two.txt", 2)):
        write_log(tmp_path / name, devices=devices)
    assert values_of(tmp_path) == values_of(tmp_path / "one.txt", tmp_path / "two.txt")
    title = report(tmp_path).stdout.partition("\n")[0]
    assert "1 device," in title and "2 devices," in title and title.count("images/s") == 2


def submission(folder: Path, systems: dict[str, int], *, described: bool) -> list[Path]:
    """MLPerf logs as a submitter's repository has them, each epoch twice as fast on twice the devices."""
    places = []
    for name, devices in systems.items():
        size: dict[str, Any] = {"devices": devices, "batch": 4096 // devices, "epoch_ms": 480_000 // devices}
        text = make_log.run(platform=name, samples=(1_281_167, 50_000), epochs=8, eval_every=8, seed=devices, **size)
        kept = [line for line in text.splitlines() if re.search("submission_|samples|batch_size|run_st|epoch_st", line)]
        places.append(folder / "Lab" / "results" / name / "resnet")
        places[-1].mkdir(parents=True)
        (places[-1] / "result_0.txt").write_text("\n".join(line for line in kept if line.startswith(":::MLLOG")))
        if described:
            (folder / "Lab" / "systems").mkdir(exist_ok=True)
            fields = {"number_of_nodes": devices // 8, "accelerators_per_node": "8", "accelerator_model_name": "A100"}
            (folder / "Lab" / "systems" / f"{name}.json").write_text(json.dumps(fields))
    return places


@pytest.mark.parametrize("described", [True, False])
def test_a_submission_s_systems_have_an_efficiency(tmp_path: Path, described: bool) -> None:
    places = submission(tmp_path, {"a100_n1": 8, "a100_n4": 32}, described=described)
    options = [] if described else ["--devices", "8,32"]
    values = values_of(*places, *options)
    assert [row["efficiency"] for row in values["scaling"][0]] == pytest.approx([1, 1], rel=1e-3)  # stamps of 1 ms
    assert [run["devices"] for group in values["groups"] for run in group["runs"]] == [8, 32]
    assert values_of(tmp_path / "Lab" / "results", *options)["scaling"] == values["scaling"]
    page = page_of(tmp_path, *places, *options)
    title, text = "".join(page.text).partition("Benchmark report")[2][:200], (tmp_path / "report.html").read_text()
    assert "8 devices" in title and "32 devices" in title and "a100_n1" in text and str(tmp_path) not in text
    assert "100.0% on 32 devices" in "".join(page.text) and "--devices 32" in "".join(page.text)
    assert ("systems/a100_n4.json" in text) == described
    for broken in ("[]", "{", '{"number_of_nodes": Infinity, "accelerators_per_node": 8}'):
        if described:
            (tmp_path / "Lab" / "systems" / "a100_n1.json").write_text(broken)
            assert values_of(places[0])["groups"][0]["runs"][0]["devices"] is None
    if not described:  # one number for all is neither
        assert "gives 3 numbers for 2 systems" in report(*places, "--devices", "8,16,32", code=2).stderr
        assert "gives 2 numbers for 1 system;" in report(places[0], "--devices", "8,16", code=2).stderr
        text = "".join(page_of(tmp_path, *places, "--devices", "8,16").text)  # four times the rate on twice of them
        assert "no figure: at most 100 % on 16 devices" in text and "2.00 times as much a device as the base" in text


def test_two_machines_are_two_systems(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{n}.txt") for n in range(4)]
    for log in logs[:2]:
        log.write_text(log.read_text().replace('"cpu": "resnet50_v1.5"', '"cpu": "EPYC"'))
    values = values_of(*logs)
    assert [len(group["runs"]) for group in values["groups"]] == [2, 2] and values["scaling"] == []
    assert [group["problem"] for group in values["groups"]] == [None, None]
    other = write_log(tmp_path / "other.txt", devices=1, text="other")
    assert values_of(logs[0], other)["scaling"] == []
    named = {group["name"].partition(", on ")[2] for group in values["groups"]}
    assert named == {"EPYC, 2 cores", "resnet50_v1.5, 2 cores"}


def test_markdown_and_csv_agree_with_json(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", seed=n, step_s=0.5 + n / 100) for n in (1, 2, 3)]
    values = values_of(*logs)
    text, rows = tmp_path / "r.md", tmp_path / "r.csv"
    assert report(*logs, "--markdown", text, "--csv", rows).stdout == ""
    score = values["groups"][0]["score"]
    assert f"# {number(score['value'])} images/s" in text.read_text()
    by_run = list(csv.DictReader(rows.open()))
    assert [float(row["value"]) for row in by_run] == [run["value"] for run in values["groups"][0]["runs"]]
    assert [int(row["seed"]) for row in by_run] == [1, 2, 3]
    for log in logs:
        assert markdown(log.name) in text.read_text() and str(log) not in text.read_text()


def test_commands_to_reproduce_take_no_word_of_a_log_unquoted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "it's.txt", seed=42)
    part = page_of(tmp_path, log).by_id["reproduce"]
    assert "git checkout abc" in part
    assert "DGXSYSTEM=CPU BATCHSIZE=16 SUBMISSION_ORG=resnet50_v1.5 SEED=42 ./run_and_time.sh" in part
    command = next(line for line in part.splitlines() if "scoring score" in line)
    command = command[command.index("python -m scoring score") :].split("Write this")[0]
    done = jobs.run(["bash", "-c", command], cwd=tmp_path, PYTHONPATH=str(jobs.REPOSITORY))
    assert done.returncode == 0 and "images/s" in done.stdout, done.stderr
    log.write_text(log.read_text().replace('"BATCHSIZE"', '"A=1; touch pwned; B"').replace('"abc"', '"; touch pwned"'))
    part = page_of(tmp_path, log).by_id["reproduce"]
    assert "git checkout '; touch pwned'" in part and part.count("touch pwned") == 1


def test_a_run_without_a_seed_is_not_said_to_be_repeated_with_it(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt")
    assert "Run 1 again, with its seed." in page_of(tmp_path, log).by_id["reproduce"]
    log.write_text(log.read_text().replace('"key": "seed"', '"key": "no_seed"'))
    part = page_of(tmp_path, log).by_id["reproduce"]
    assert "Run 1 again, with a seed of its own: the log does not say which it had." in part and "SEED=" not in part


# ------------------------------------------------------------------------- other people's logs, and damaged ones


def test_a_segment_has_its_own_seed_and_commands(tmp_path: Path) -> None:
    one, two = (write_log(tmp_path / f"{n}.txt", seed=n) for n in (1, 2))
    one.write_text(one.read_text() + two.read_text())
    assert [values_of(one, "--segment", n)["groups"][0]["runs"][0]["seed"] for n in (1, 2)] == [1, 2]
    part = page_of(tmp_path, one, "--segment", "2").by_id["reproduce"]
    commands = [line for line in part.splitlines() if "scoring score" in line or "scoring report" in line]
    assert commands and all("--segment 2" in line for line in commands)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_narrow_terminal_gets_what_it_can_show(tmp_path: Path, encoding: str) -> None:
    log = write_log(tmp_path / "a.txt", text="モデル")
    done = jobs.run([sys.executable, "-m", "scoring", "report", str(log)], PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and r"\u30e2" in done.stdout, done.stderr


def test_other_peoples_logs(published_logs: Path, tmp_path: Path) -> None:
    logs = ["paddleclas_v100_gpu8_fp32_bs256.log", "paddleclas_v100_gpu32_fp32_bs256.log"]
    page = page_of(tmp_path, *(published_logs / log for log in logs), "--protocol", "perf")
    assert_self_contained(page)
    assert "10,984.4" in page.by_id["verdict"]  # the published figure of 32 devices, drop 10 windows
    assert "the log does not say a precision" in page.by_id["scaling"]  # no curve of FP32 stands beside it
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
    assert "Paddle mixed V100 bs256" in labels  # the published table mixes software versions
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


@pytest.mark.parametrize(("seconds", "start"), [(1.0004, 0.0), (1.0, 0.0), (0.9996, 0.0004), (4.0, -3.0)])
def test_a_window_starts_before_its_run_only_by_more_than_stamps_round_off(seconds: float, start: float) -> None:
    windows = tuple(Window(line=at, steps=1, images=8.0, seconds=seconds, end_s=100.0 + at) for at in (1, 2))
    record = Record(file="a", sha256="a", lines=2, format="mllog", run_start_s=100.0, windows=windows)
    first, _ = content.timeline(content.ReportedRun(number=1, record=record, path="a")).points
    assert first.start == pytest.approx(start) and math.copysign(1, first.start) == math.copysign(1, start)
