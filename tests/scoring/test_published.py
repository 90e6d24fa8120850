"""Each row of published.csv against its report, by a parse that shares nothing with the table, and against its log."""

import dataclasses
import functools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compliance import rules
from scoring.figure import protocols
from scoring.published import log_rules, reproduce
from scoring.published.table import Figure, Published, nearest, read_cards, read_published, read_rows, select
from scoring.record import InputError
from tests.scoring.samples import scoring

ROWS = read_published()
RULES = read_rows(log_rules.LOGS_CSV, log_rules.Rule)


def dlperf(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for nodes, gpus, runs in re.findall(r"/(\d)n(\d)g/r50_b128_fp32_\d\.log \{(.*)\}", text):
        run, value = runs.split(", ")[-1].split(": ")  # each line has the runs up to its own
        printed[int(nodes), int(nodes) * int(gpus), "throughput_run", int(run), "Paddle"] = value
    assert len(printed) == 36
    for nodes, gpus, speed, speedup in re.findall(
        r"'(\d)n(\d)g': \{'average_speed': ([\d.]+),\s+'batch_size_per_device': 128,\s+'speedup': ([\d.]+)\}", text
    ):
        for metric, value in (("throughput", speed), ("speedup", speedup)):
            printed[int(nodes), int(nodes) * int(gpus), metric, None, "Paddle"] = value
    for nodes, devices, speed, speedup, *own in _tables(text.split("### FP32 & Without XLA")[1], 6):
        for metric, value, second in (("throughput", speed, own[0]), ("speedup", speedup, own[1])):
            printed[int(nodes), int(devices), metric, None, "OneFlow"] = value
            # The second printing of Paddle's own figures must not differ from the first.
            assert float(printed[int(nodes), int(devices), metric, None, "Paddle"]) == float(second)
    return printed


def perf_rn50(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    parts = re.split(r"(V100|A100)-(FP32|AMP)测试", text)[1:]
    for card, precision, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        for gpus, cells in re.findall(r"GPU=(\d+),BS=256 ((?:(?!GPU=)\S+ ?)+)", body):
            frameworks = ("Paddle", "NGC TensorFlow", "NGC PyTorch", "NGC MXNet")
            for framework, value in zip(frameworks, cells.removesuffix("-").split()[:4], strict=True):
                if number := re.match(r"[\d.]+", value):
                    printed[card, precision == "FP32", int(gpus), framework] = number[0]
    for card, body in re.findall(r"(V100|A100)上训练吞吐率\(images/sec\)如下:(.*?)(?=\n- |\n以上)", text, re.DOTALL):
        for gpus, *values in re.findall(r"^(\d+) \| ([\d.]+) \| ([\d.]+) \|$", body, re.MULTILINE):
            assert [printed[card, fp32, int(gpus), "Paddle"] for fp32 in (True, False)] == values
    return printed


def fleetx(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for heading, body in re.findall(r"- 单位：(.*?)如下：(.*?)(?=- 单位|\Z)", text, re.DOTALL):
        mode = "auto" if "自动" in heading else re.search(r"FP32|AMP", heading)[0].lower()  # type: ignore[index]
        for batch, *values in _tables(body):
            for (nodes, devices), value in zip(((1, 1), (1, 8), (2, 16), (4, 32), (8, 64)), values, strict=False):
                if re.fullmatch(r"[\d.]+", value):
                    printed[mode, int(batch), nodes, devices] = value
    return printed


def perf_hrnet(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for precision, body in re.findall(r"- (FP32|AMP)测试\n(.*?)(?=\n- |\n## )", text, re.DOTALL):
        for gpus, *values in re.findall(r"GPU=(\d+),BS=8 \|\s*([\d.]+)\s*\|\s*([\d.]+)\s*\|", body):
            for framework, value in zip(("Paddle", "NGC PyTorch"), values, strict=True):
                printed[precision == "FP32", int(gpus), framework] = value
    for gpus, *values in re.findall(r"^\s+\|(\d+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE):
        assert [printed[fp32, int(gpus), "Paddle"] for fp32 in (True, False)] == values
    return printed


def oneflow(text: str) -> dict[tuple, str]:
    printed: dict[tuple, str] = {}
    for cells in _tables(text.split("## Test Results")[1], 7):
        nodes, gpus, devices, batch = map(int, cells[:4])
        assert nodes * gpus == devices
        for metric, value in zip(("gpu_memory", "throughput", "speedup"), cells[4:], strict=True):
            printed[nodes, devices, batch, metric] = value
    return printed


def _tables(text: str, columns: int | None = None) -> Iterator[list[str]]:
    """The rows of its tables that begin with a number."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit() and columns in (None, len(cells)):
            yield cells


def _framework(row: Published) -> str:
    words = row.framework.split()
    return " ".join(words[:2]) if words[0] == "NGC" else words[0]


def _fp32(row: Published) -> bool:
    return not (row.precision or "").startswith("amp")


@pytest.mark.parametrize(
    "parse, number, rows, key",
    [
        (dlperf, "000", 58, lambda row: (row.nodes, row.devices, row.metric, row.run, _framework(row))),
        (perf_rn50, "001", 36, lambda row: (row.accelerator, _fp32(row), row.devices, _framework(row))),
        (
            fleetx,
            "002",
            26,
            lambda row: (row.strategy or row.precision.split("_")[0], row.batch_per_device, row.nodes, row.devices),
        ),
        (perf_hrnet, "003", 12, lambda row: (_fp32(row), row.devices, _framework(row))),
        (oneflow, "004", 36, lambda row: (row.nodes, row.devices, row.batch_per_device, row.metric)),
    ],
)
def test_the_rows_are_those_of_the_report(
    published_reports: Path,
    parse: Callable[[str], dict[tuple, str]],
    number: str,
    rows: int,
    key: Callable[[Published], tuple],
) -> None:
    (path,) = published_reports.glob(f"{number}_*.txt")
    printed = parse(path.read_text(encoding="utf-8"))
    held = select(ROWS, table=parse.__name__)
    assert len(printed) == len(held) == rows
    assert {key(row): row.printed for row in held} == printed


# What the collection of other published results says, as a sentence with each figure at its place.
OTHERS = {
    ("nvidia_paddle", "throughput"): r"TF32 (1024) / (8013), AMP (2897) / (23874) images/s on 1 / 8 GPUs "
    r"\(their sparsity table gives (2711) / (20267) for the same AMP baseline\)",
    ("mlperf_v2.1", "throughput"): r"MLPerf v2\.1 MXNet on DGX A100 \(8 GPUs\): about (26,700) images/s",
    ("quality", "top1"): r"PaddleClas ResNet50 \|.*\| (76\.50) \|\n\| PaddleClas AMP O2 ultra \|.*\| (76\.23) \|\n"
    r"\| NVIDIA Paddle \|.*\| (76\.93) \+- 0\.14",
    ("quality", "miou"): r"mIoU (78\.97) \(flip (79\.49), multi-scale and flip (80\.04)\)",
}


@pytest.fixture
def reference(published_reports: Path) -> str:
    return (published_reports.parent / "reference" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table, metric", OTHERS)
def test_other_published_results_are_those_of_the_collection(reference: str, table: str, metric: str) -> None:
    found = re.search(OTHERS[table, metric], reference)
    assert found
    assert [row.printed for row in select(ROWS, table=table, metric=metric)] == [
        v.replace(",", "") for v in found.groups()
    ]


# Sentence of the collection -> the row that must carry the log's figure.
NOT_BORNE_OUT = [
    (r"A100 FP32 8 GPUs (5333\.558) \(log: about (4,390)", {}),
    (r"V100 pure FP16 1 GPU (1438\.518) \(log's maximum (1434\.8)\)", {}),
    (r"HRNet FP32 8 GPUs (117\.205) \(log (116\.7)\)", {}),
    (r"HRNet 32 GPUs (428) / 422 \(log about (431) / 427", {"precision": "fp32"}),
    (r"HRNet 32 GPUs 428 / (422) \(log about 431 / (427)", {"precision": "amp_o2"}),
    (r"mmseg FP16 1 GPU (17\.448) \(log (17\.488)\)", {}),
]


@pytest.mark.parametrize("sentence, more", NOT_BORNE_OUT)
def test_figures_their_logs_do_not_bear_out_carry_what_the_log_gives(reference: str, sentence: str, more: dict) -> None:
    found = re.search(sentence, reference)
    assert found
    (row,) = select(ROWS, printed=found[1], **more)
    assert row.log_value == float(found[2].replace(",", "")) and row.log_note


def test_only_the_listed_figures_are_doubted() -> None:
    doubted = Counter((row.table, row.metric) for row in ROWS if row.log_note)
    assert doubted == {
        ("dlperf", "speedup"): 3,
        ("perf_rn50", "throughput"): 5,  # of two batch 128 is the log's
        ("perf_hrnet", "throughput"): 4,
        ("mlperf_v2.1", "time_to_train"): 1,
    }


def test_tf32_is_never_called_fp32() -> None:
    assert not [row for row in ROWS if row.accelerator == "A100" and row.precision == "fp32"]


def test_every_protocol_named_is_one_of_the_protocols() -> None:
    named = {row.protocol for row in ROWS if row.protocol}
    assert named <= set(protocols.load())
    assert {"fleetx", "dlperf", "perf", "perf-seg", "oneflow", "mlperf"} <= named


# ----------------------------------------------------------------------------------------------- reproduce


command = functools.partial(scoring, "reproduce")


@pytest.fixture(scope="module")
def found(published_logs: Path) -> dict:
    done = command(published_logs, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figure(found: dict, log: str) -> dict:
    (row,) = [row for row in found["figures"] if any(log in name for name in row["logs"])]
    return row


def test_every_listed_log_gives_the_figure_of_the_logs_page(found: dict, published_logs: Path) -> None:
    """The logs page says in words what each must give; its table is read here."""
    checked = 0
    for line in (published_logs / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or not (published_logs / cells[0]).exists():
            continue
        parsed = cells[3].split()[0]
        row = figure(found, cells[0].rstrip("/"))
        factor = 1.0043956 if "mlperf" in cells[0] else 1.0
        digits = len(parsed.partition(".")[2])
        assert round(row["recomputed"] / factor, digits) == float(parsed), cells[0]
        checked += 1
    assert checked == 9


def test_verdicts(found: dict, published_logs: Path) -> None:
    mxnet = figure(found, "ngc_mxnet")
    assert mxnet["borne_out"] is False and mxnet["as_recorded"] is True
    assert any("batch_per_device 128, the report 256" in note for note in mxnet["notes"])
    assert all(row["borne_out"] for row in found["figures"] if row is not mxnet)
    mlperf = figure(found, "mlperf_v2.1")
    assert len(mlperf["logs"]) == 5 and mlperf["published"] == 28.8115
    a100 = figure(found, "paddleclas_a100")
    assert any("does not say devices" in note for note in a100["notes"])
    printed = command(published_logs).stdout
    assert "9 figures: 8 borne out, 1 not, 0 not decided, 0 not recomputed; 3 of 23 speedups do not follow" in printed
    assert "\n1 figure: 1 borne out, 0 not" in command(published_logs / "mlperf_v2.1_dgxa100_resnet").stdout
    assert "published 3019.361 images/s, recomputed 3019.3614 (+0.000%), protocol perf" in printed


def test_the_three_speedups_of_dlperf_that_do_not_follow(found: dict) -> None:
    wrong = [row for row in found["speedups"] if not row["follows"]]
    assert {(row["devices"], row["printed"], round(row["recomputed"], 2)) for row in wrong} == {
        (4, "3.87", 3.85),
        (8, "7.47", 7.44),
        (32, "26.55", 26.44),
    }
    for row in wrong:
        (held,) = select(ROWS, metric="speedup", devices=row["devices"], printed=row["printed"])
        assert (held.log_value, held.log_note) == (round(row["recomputed"], 2), row["note"]) and "350.77" in row["note"]
    right = {(r["framework"][:6], r["devices"], round(r["recomputed"], 2)) for r in found["speedups"] if r["follows"]}
    assert {("Paddle", 2, 1.80), ("Paddle", 16, 13.88), ("OneFlo", 32, 30.40)} <= right


@pytest.mark.parametrize("log", ["paddleclas_v100_gpu8_fp32_bs256.log", "ngc_mxnet_v100_gpu1_fp32_bs128.log"])
def test_a_log_that_was_changed_is_not_borne_out(published_logs: Path, tmp_path: Path, log: str) -> None:
    """Found by its name, as its content is another; slower windows make another figure and exit status 1.

    So they do where published.csv has a note on the figure that the log gave before.
    """
    text = (published_logs / log).read_text(encoding="utf-8", errors="replace")
    (tmp_path / log).write_text(re.sub("ips( ?): 3", r"ips\1: 2", text), encoding="utf-8")
    done = command(tmp_path, "--json")
    row = figure(json.loads(done.stdout), log)
    assert done.returncode == 1 and row["borne_out"] is False and row["difference"] < -0.2
    assert not row["as_recorded"] and not any(note.startswith("known: ") for note in row["notes"])


@pytest.mark.parametrize("kind", ["published", "assumed"])
@pytest.mark.parametrize("log", ["ngc_tensorflow_v100_gpu8_amp_bs256.log", "mmseg_v100_gpu8_fp32_bs8.log"])
def test_a_figure_that_is_wrong_by_up_to_1_percent_is_named(published_logs: Path, kind: str, log: str) -> None:
    path = published_logs / log
    rule = log_rules.find_rule(RULES, path, "")
    assert rule
    right = log_rules.published_of(rule, ROWS)
    # What another number of dropped windows gives is not an acquittal of a report that drops this one.
    other = reproduce.reproduction_of(dataclasses.replace(rule, skip=(rule.skip or 0) + 9), [path], right)["recomputed"]
    for value in (other, *(right.value * (1 + share) for share in (-0.003, 0.001, 0.01))):
        wrong = dataclasses.replace(right, value=Figure(f"{value:.{right.value.digits}f}"))
        found = reproduce.reproduction_of(dataclasses.replace(rule, rule=kind), [path], wrong)
        wanted = (False, "not borne out") if kind == "published" else (None, "not decided")
        assert (found["borne_out"], found["verdict"]) == wanted, (value, found["notes"])
        unsaid = [note for note in found["notes"] if note.startswith("the publisher does not say how many windows")]
        assert bool(unsaid) is (kind == "assumed")


def test_a_figure_that_is_the_logs_own_closing_line_is_borne_out(published_logs: Path) -> None:
    path = published_logs / "ngc_tensorflow_v100_gpu8_amp_bs256.log"
    rule = log_rules.find_rule(RULES, path, "")
    assert rule
    closing = re.search(r"train_throughput : ([\d.]+)", path.read_text())
    assert closing
    stated = dataclasses.replace(log_rules.published_of(rule, ROWS), value=Figure(f"{float(closing[1]):.2f}"))
    found = reproduce.reproduction_of(rule, [path], stated)
    assert found["verdict"] == "borne out" and "the log's own closing line" in found["notes"]
    assert round(found["recomputed"], 2) == stated.value


def test_a_figure_of_an_unsaid_rule_is_not_accused(published_logs: Path, tmp_path: Path) -> None:
    """Exit status 0: nothing is decided."""
    log = "paddleclas_v100_gpu8_fp32_bs256.log"
    text = (published_logs / log).read_text(encoding="utf-8", errors="replace")
    (tmp_path / log).write_text(text.replace("ips: 3", "ips: 2"), encoding="utf-8")
    rules = tmp_path / "map.csv"
    stated = log_rules.LOGS_CSV.read_text().splitlines(keepends=True)
    rule = next(line.replace(",published", ",assumed") for line in stated if log in line)
    rules.write_text(stated[0] + rule, encoding="utf-8-sig")  # with a byte-order mark, as spreadsheets write it
    done = command(tmp_path / log, "--map", rules, "--json")
    assert done.returncode == 2  # a file is not a folder
    (tmp_path / "logs").mkdir()
    (tmp_path / log).rename(tmp_path / "logs" / log)
    done = command(tmp_path / "logs", "--map", rules, "--json")
    [row] = json.loads(done.stdout)["figures"]
    assert (done.returncode, row["verdict"], row["borne_out"]) == (0, "not decided", None)


def test_a_truncated_log_is_not_recomputed_and_says_why(published_logs: Path, tmp_path: Path) -> None:
    log = "paddleclas_v100_gpu32_fp32_bs256.log"
    lines = (published_logs / log).read_bytes().splitlines(keepends=True)
    windows = [number for number, line in enumerate(lines) if b"train step:" in line]
    (tmp_path / log).write_bytes(b"".join(lines[: windows[5]]))
    done = command(tmp_path, "--json")
    row = figure(json.loads(done.stdout), log)
    assert done.returncode == 1 and row["recomputed"] is None and row["borne_out"] is None
    assert any("nothing is left to measure" in note for note in row["notes"])


def test_a_log_is_known_by_its_content_under_any_name(published_logs: Path, tmp_path: Path) -> None:
    shutil.copyfile(published_logs / "paddleseg_v100_gpu1_fp32_bs8.log", tmp_path / "gpu32_bs512.txt")
    [found], unknown = reproduce.reproduce(tmp_path, RULES, ROWS)
    assert not unknown and found["published"].printed == "19.428" and found["borne_out"]


def test_an_unknown_log_is_listed_and_nothing_is_guessed_from_its_name(published_logs: Path, tmp_path: Path) -> None:
    text = (published_logs / "paddleclas_v100_gpu8_fp32_bs256.log").read_bytes() + b"\n"
    (tmp_path / "my_gpu8_fp32_bs256.log").write_bytes(text)
    verdicts, unknown = reproduce.reproduce(tmp_path, RULES, ROWS)
    assert not verdicts and unknown == [str(tmp_path / "my_gpu8_fp32_bs256.log")]


def test_names_of_two_folders_are_told_apart() -> None:
    name = "PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log"
    v100 = log_rules.find_rule(RULES, Path("x/V100-LOG") / name, "")
    a100 = log_rules.find_rule(RULES, Path("x/A100-LOG") / name, "")
    assert v100 and a100 and (v100.accelerator, a100.accelerator) == ("V100", "A100")
    assert log_rules.find_rule(RULES, Path(name), "") is None
    short, long = (dataclasses.replace(RULES[0], names=(name,), sha256=()) for name in ("x.log", "A/x.log"))
    assert log_rules.find_rule([short, long], Path("B/A/x.log"), "") is long


def test_every_rule_stands_behind_one_published_figure_and_a_known_protocol() -> None:
    figures = [log_rules.published_of(rule, ROWS) for rule in RULES]
    assert len({row.line for row in figures}) == len(figures)
    assert {rule.protocol for rule in RULES} <= set(protocols.load())
    # A log that is published under a protocol was published so in the table of figures, too.
    assert all(rule.protocol == row.protocol for rule, row in zip(RULES, figures, strict=True))


def test_wrong_use_is_told_in_one_line(tmp_path: Path) -> None:
    report = tmp_path / "reports" / "report.md"
    report.parent.mkdir()
    report.write_text("| 1 | 1 | 352.23 |")
    for folder, text in (
        (tmp_path / "absent", "no folder with files"),
        (report, "no folder with files"),
        (report.parent, f"no log of a published figure among 1 file, such as {report}; give the folder"),
    ):
        done = command(folder)
        assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "") and text in done.stderr
    broken = tmp_path / "map.csv"
    for change in ((",fp32,1,", ",fp32,one,"), (",perf,10,", ",,10,")):
        broken.write_text(log_rules.LOGS_CSV.read_text().replace(*change, 1))
        with pytest.raises(InputError, match=r"map\.csv:2: "):
            read_rows(broken, log_rules.Rule)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"map\.csv:1: want the columns .*, separated by commas"):
        read_rows(broken, log_rules.Rule)


def test_each_card_of_the_table_has_a_peak_in_fp16() -> None:
    lacking = [card.name for card in read_cards() if card.name not in rules.peaks()]
    assert lacking == [], "the table has no column for FP16: give the card a row in compliance/rules/peaks.yaml"


def test_the_nearest_row_is_one_of_throughput() -> None:
    rows = read_published()
    others = [row for row in rows if row.metric != "throughput" and row.batch_per_device and row.devices]
    assert others
    for row in others:
        found = nearest(rows, batch=row.batch_per_device or 0, devices=row.devices or 0)
        assert found is not None and found.metric == "throughput"
    assert nearest(others, batch=128, devices=8) is None
