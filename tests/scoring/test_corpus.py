"""Logs that nobody here chose, read in place: devices, batch and figure are right or unknown, never wrong."""

import collections
import csv
import functools
import json
import os
import re
import statistics
import tarfile
from pathlib import Path

import pytest

from scoring.importers import read_record, recognise
from scoring.importers.checks import CLOCK_CHECKS
from scoring.published.table import read_published, select
from scoring.record import InputError
from tests.scoring.samples import command, scoring

CORPUS = Path(os.environ.get("PUBLISHED_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of public logs is not here")
PERF = "PaddlePaddle_Perf"
CLAS = f"{PERF}/ResNet50V1.5/logs"
NVLOG = f"{PERF}/ResNet50V1.5/OtherReports/TensorFlow/logs"


@functools.cache
def archive(name: str) -> tarfile.TarFile:
    return tarfile.open(CORPUS / f"{name}.tar.xz")


def log(folder: Path, path: str, name: str = "wild") -> Path:
    """One log of the corpus, unpacked to `folder`."""
    member = archive(name).extractfile(path)
    assert member is not None
    target = folder / path.replace("/", "_")
    target.write_bytes(member.read())
    return target


@pytest.mark.parametrize(
    ("path", "segment", "wanted"),  # devices, batch, rows, epochs
    [
        ("glu/resnet101_v1.log", None, (8, 128, 3000, 120)),  # `INFO:root:` before each line
        ("glu/mobilenetv2_0.75.log", None, (4, 64, 15_000, 150)),
        ("glu/xception.log", 2, (8, 32, 20_000, 200)),  # a seventh start, after 32 rows of the sixth
    ],
)
def test_gluoncv(tmp_path: Path, path: str, segment: int | None, wanted: tuple[int, ...]) -> None:
    record = read_record(log(tmp_path, path, "gluoncv"), segment=segment)
    found = (record.devices, record.batch_per_device, len(record.windows), len(record.epochs))
    assert found == wanted and record.truncated is False and record.windows[0].steps == 50 and not record.problems


def test_starts_that_came_to_nothing_are_no_runs(tmp_path: Path) -> None:
    """Nineteen starts of PaddleClas, of which five trained; two of them went on with the counters of the one before."""
    file = log(tmp_path, "robinbg_PaddleClas/output/train.log")
    code, _, error = command("import", file)
    assert code == 2 and "5 runs in one log (1: lines 623 to 2071; 2: lines 2072 to 2391; " in error
    assert "score one of them with --segment N" in error
    for number in (0, -1):
        with pytest.raises(InputError, match=f"no run {number}: the log holds 5"):
            read_record(file, segment=number)
    assert "no run 6: the log holds 5" in command("import", file, "--segment", 6)[2]
    assert [read_record(file, segment=n).windows[0].line for n in (1, 2, 3)] == [776, 2226, 2546]
    other = f"{NVLOG}/tf_gpu32_amp_bs128.txt"  # no header tells the two apart
    _, _, error = command("import", log(tmp_path, other))
    assert "1: lines 1 to 311; 2: lines 312 to " in error


def test_one_stalled_step_is_said(tmp_path: Path) -> None:
    """The last of 43 iterations takes 14 times as long as the others; the report prints 5889.05 images/s."""
    path = log(tmp_path, f"{PERF}/ResNet50V1.5/OtherReports/PyTorch/logs/V100-LOG/pytorch_gpu8_amp_bs256.txt~097aa7")
    code, result, _ = command("score", path, "--protocol", "window")
    said = {warning["rule"]: warning for warning in result["warnings"]}
    assert code == 0 and result["value"] < 0.8 * 5889.05
    assert result["median_window_rate"] == pytest.approx(5889.05, rel=0.03)
    assert said["outlying_window"]["line"] == 71 and "1 of 43 windows" in said["outlying_window"]["message"]
    assert (result["interval_95"], result["interval_method"]) == (None, "none: the windows are too uneven for one")
    own = said["own_summary_differs"]
    assert own["line"] == 75 and "of lines 29 to 71, is -20.8% off the log's own summary 5793.51" in own["message"]
    assert re.search(
        r"median +6005\.9\d\d \(of the window rates\)", scoring("score", path, "--protocol", "window").stdout
    )


def test_a_log_s_own_summary(tmp_path: Path) -> None:
    """The report prints 33317.67, which is the closing line: not the mean of the rows that it was taken for."""
    path = log(tmp_path, f"{PERF}/ResNet50V1.5/OtherReports/TensorFlow/logs/V100_LOG/tf_gpu32_amp_bs256.txt")
    code, result, _ = command("score", path, "--protocol", "summary")
    assert code == 0 and round(result["value"], 2) == 33317.67 and result["sources"][0]["first_line"] == 302
    bare = log(tmp_path, f"{CLAS}/paddle_gpu1_fp32_bs96.txt")
    code, _, error = command("score", bare, "--protocol", "summary")
    assert code == 2 and "closes with no figure of its own" in error


@pytest.mark.slow
@pytest.mark.ci
def test_no_log_of_the_corpus_gives_wrong_devices_or_batch(tmp_path: Path) -> None:
    """What its name says, which most logs say too, or unknown; every log of a known format says a thing in two ways."""
    right, seen, checked = collections.Counter[str](), 0, 0
    with (CORPUS / "wild.csv").open() as table:
        for row in csv.DictReader(table):
            path = log(tmp_path, row["path"])
            try:
                record = read_record(path)
            except InputError as error:
                refused = "runs in one log" in str(error) or "MedicalSeg" in row["path"]  # of volumes
                assert not row["format"] or refused, row["path"]
                continue
            seen, checked = seen + 1, checked + len(record.checks)
            for name, said in (("devices", record.devices), ("batch", record.batch_per_device)):
                named = row[f"{name}_by_name"]
                assert said is None or str(said) == (named or str(said)), (row["path"], name)
                right[name] += str(said) == named
    assert seen >= 105 and checked > 180 and right == {"devices": 82, "batch": 88}


def disagreements(path: Path) -> list[str]:
    return [str(check) for check in read_record(path).checks if not check.agree]


def test_two_ways_that_disagree_are_said(tmp_path: Path) -> None:
    """Each with both of its lines; those that no figure can be made of are refused."""
    seg = log(tmp_path, f"{PERF}/HRNetW18/logs/paddle/PaddleSeg_fcn_hrnetw18_bs8_fp32_DP_N1C8_log~a7bf37")
    good = seg.read_bytes()
    assert not disagreements(seg) and {check.what for check in read_record(seg).checks} == {"batch", "devices", "time"}
    for old, new, said in (
        (rb"(batch_size[:=] ?)8\b", rb"\g<1>4", r"batch: line \d+: the configuration, 4; line \d+ and .* 8 a device"),
        (rb"GPUs used: 8\b", b"GPUs used: 4", r"devices: line 33: replicas x nnodes, 8; line \d+: GPUs used, 4"),
    ):
        assert re.search(old, good), old
        seg.write_bytes(re.sub(old, new, good))
        [text] = disagreements(seg)
        assert re.fullmatch(said, text), text
        assert read_record(seg).batch_per_device == 8  # the rows have the last word
        code, result, _ = command("score", seg, "--protocol", "perf-seg")
        assert code == 0 and [w["message"] for w in result["warnings"] if w["rule"] == "ways_disagree"] == [text]
        assert [check["agree"] for check in result["checked"]].count(False) == 1
        assert (result["unit"] == "images/s per device") is new.startswith(b"GPUs")
    seg.write_bytes(re.sub(rb"(batch_cost: )(\d+\.\d+)", lambda m: m[1] + b"%.4f" % (float(m[2]) / 2), good))
    code, _, error = command("score", seg, "--protocol", "perf-seg")
    assert code == 2 and "two ways to it contradict each other: time: lines " in error and "time stamps" in error
    tf = log(tmp_path, f"{PERF}/ResNet50V1.5/OtherReports/TensorFlow/logs/V100_LOG/tf_gpu8_amp_bs256.txt")
    tf.write_bytes(tf.read_bytes().replace(b"train_throughput : 9421", b"train_throughput : 8421"))
    assert disagreements(tf)[0].startswith("rate: line 73: the log's own summary, 8421.36 images/s; lines 42 to 71: ")
    tf.write_bytes(tf.read_bytes().replace(b"Num GPUs 8", b"Num GPUs 1"))  # 2048 images a step ran, not 256
    code, _, error = command("score", tf, "--protocol", "perf")
    assert code == 2 and "steps, batch and rate against time: " in error
    seg.write_bytes(good)  # an option is held to the log as well
    code, result, _ = command("score", seg, "--protocol", "perf-seg", "--devices", 4)
    assert code == 0 and "option_contradicts_log" in [w["rule"] for w in result["warnings"]]


@pytest.mark.slow
def test_the_table_of_clocks_is_that_of_the_corpus(tmp_path: Path) -> None:
    """`docs/lab-notes.md`: of each importer's logs how many a second clock confirms. Reads all 1,200 logs in 14 s."""
    columns = ("logs", "within 5 %", "beyond, said", "refused by the clock", "not read", "one clock")
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for packed in sorted(CORPUS.glob("*.tar.xz")):
        name = packed.name.removesuffix(".tar.xz")
        for member in archive(name):
            if member.isfile() and not member.name.endswith((".json", ".csv", ".md")):
                path = log(tmp_path, member.name, name)
                importer, verdict = clocks(path)
                found[importer].update(["logs", verdict])
                path.unlink()
    rows = ["| importer | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    rows += [f"| {name} | " + " | ".join(str(found[name][one]) for one in columns) + " |" for name in sorted(found)]
    page = Path(__file__).parents[2] / "docs" / "lab-notes.md"
    assert "\n".join(rows) in page.read_text(encoding="utf-8"), "\n".join(rows)


def clocks(path: Path) -> tuple[str, str]:
    """The importer of a log, and what a second clock says of its figure."""
    try:
        record = read_record(path)
    except InputError as error:
        known = "no line of a known format" not in str(error)
        return recognise(path) if known else "no known format", "not read"
    checks = [check for check in record.checks if check.what in CLOCK_CHECKS]
    verdict = "one clock"
    if checks:
        verdict = "within 5 %" if all(check.agree for check in checks) else "beyond, said"
    if any(check.refused for check in checks):
        verdict = "refused by the clock"
    return record.format, verdict


def test_old_paddleclas_figure(tmp_path: Path) -> None:
    """Its rows average the epoch from step 5 on; the last line of the epoch says 1335.08 images/s over all of them."""
    path = log(tmp_path, f"{CLAS}/paddle_gpu1_amp_bs128.txt~def915")
    code, result, _ = command("score", path, "--protocol", "window")
    assert code == 0 and result["value"] == pytest.approx(1335.08, rel=1e-3)
    assert read_record(path).precision == "amp_o2"  # use_pure_fp16 : True


def mlperf(folder: Path, system: str) -> list[Path]:
    names = sorted(name for name in archive("mlperf_resnet").getnames() if name.startswith(system) and ".txt" in name)
    return [log(folder, name, "mlperf_resnet") for name in names]


def test_a_run_without_run_stop_counts_as_the_worst(tmp_path: Path) -> None:
    logs = mlperf(tmp_path, "v4.0/tinycorp/results/tinybox_green/resnet")
    code, result, _ = command("score", *logs, "--protocol", "mlperf")
    assert code == 0 and result["sources"][0]["value"] == "inf"
    said = {warning["rule"]: warning["message"] for warning in result["warnings"]}
    assert "the log has no run_stop" in said["not_converged"]
    finite = sorted(source["value"] for source in result["sources"][1:])
    assert len(finite) == 4 and result["value"] == pytest.approx(sum(finite[1:]) / 3)
    low, high = result["interval_95"]  # the worst is out already: of the others but the best
    assert low <= result["value"] <= high
    # One log ends with the first epoch_start.
    logs = mlperf(tmp_path, "v2.1/HPE/results/HPE-ProLiant-XL675d-Gen10-Plus_A100-SXM-80GB_16N_mxnet/resnet")
    code, result, _ = command("score", *logs, "--protocol", "mlperf")
    assert code == 0 and [source["value"] == "inf" for source in result["sources"]] == [False] * 4 + [True]


def test_runs_of_two_global_batches_are_no_repeats(tmp_path: Path) -> None:
    logs = mlperf(tmp_path, "v2.1/Dell/results/XE8545x4A100-SXM-40GB/resnet")
    code, _, error = command("score", *logs, "--protocol", "mlperf")
    assert code == 2 and "runs of different global_batch (1024 in " in error and ", 816 in " in error


@pytest.mark.parametrize("framework", ["Paddle", "MXNet"])
def test_baidus_figures_are_those_of_its_logs(tmp_path: Path, framework: str) -> None:
    rows = select(read_published(), table="mlperf_v1.1_baidu", framework=f"{framework} (Baidu)")
    held = {row.metric: row.printed for row in rows}
    names = [name for name in archive("mlperf_v1.1_baidu").getnames() if framework in name and "result_" in name]
    logs = [log(tmp_path, name, "mlperf_v1.1_baidu") for name in names]
    assert len(logs) == 5
    _, scored_as, _ = command("score", *logs, "--protocol", "mlperf")
    assert f"{scored_as['value']:.3f}" == held["time_to_train"]
    rates = []
    for path in logs:  # apart from the project's own reader
        events = [json.loads(line.split(":::MLLOG ")[1]) for line in path.read_text().splitlines() if "MLLOG" in line]
        times = {(e["key"], e["metadata"]["epoch_num"]): e["time_ms"] for e in events if e["key"].startswith("epoch_")}
        epochs = [epoch for key, epoch in times if key == "epoch_stop"]
        rates += [1281167 * 1000 / (times["epoch_stop", e] - times["epoch_start", e]) for e in epochs]
    assert len(rates) == 4 * 35 + 37
    assert f"{statistics.median(rates):.0f}" == held["throughput"]


def smallest_submissions() -> dict[str, list[tarfile.TarInfo]]:
    """The logs of each other MLPerf benchmark: of its submissions the one with the fewest bytes."""
    submissions: dict[str, list[tarfile.TarInfo]] = collections.defaultdict(list)
    for member in archive("mlperf_other_benchmarks"):
        if Path(member.name).name.startswith("result_"):
            submissions[str(Path(member.name).parent)].append(member)
    smallest: dict[str, list[tarfile.TarInfo]] = {}
    for folder in sorted(submissions, key=lambda folder: sum(member.size for member in submissions[folder])):
        smallest.setdefault(Path(folder).name, submissions[folder])
    return smallest


@pytest.mark.ci
@pytest.mark.slow
def test_times_to_train_are_those_of_result_summarizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission of each of 14 benchmarks, with its own number of runs. Takes 12 s.

    The tool's compliance check is left out, which says nothing of a score and takes minutes.
    """
    from mlperf_logging.compliance_checker.mlp_parser import parse_file
    from mlperf_logging.result_summarizer import result_summarizer

    def lines_of(path: str, usage: str, ruleset: str) -> object:
        return parse_file(path, ruleset=ruleset)[0]

    monkeypatch.setattr(result_summarizer, "_read_result_file", lines_of)
    differing = {}
    smallest = smallest_submissions()
    for benchmark, members in smallest.items():
        folder = tmp_path / benchmark
        folder.mkdir()
        for member in members:
            log(folder, member.name, "mlperf_other_benchmarks").rename(folder / Path(member.name).name)
        ruleset = f"{members[0].name.split('/')[0][1:]}.0"
        official, _, _ = result_summarizer._compute_strong_score_standalone(
            benchmark, "a system", False, str(folder), "training", ruleset
        )
        code, result, error = command("score", *sorted(folder.iterdir()), "--protocol", "mlperf")
        if code != 0 or result["value"] != pytest.approx(official, rel=1e-6):
            differing[benchmark] = (official, result.get("value"), error)
    assert len(smallest) == 14
    assert differing == {}


def test_the_report_of_mlperf_logs_without_windows_has_their_time_to_train(tmp_path: Path) -> None:
    folder = "v5.1/Krai/results/PowerEdge-XE9680-MI300X-192GB_n1_v5.0/llama2_70b_lora"
    names = [f"{folder}/result_{number}.txt" for number in range(10)]
    logs = [log(tmp_path, name, "mlperf_other_benchmarks") for name in names]
    done = scoring("report", *logs, "--json")
    [group] = json.loads(done.stdout)["groups"]
    assert group["score"]["protocol"] == "mlperf" and group["score"]["unit"] == "minutes"
    assert group["score"]["value"] == pytest.approx(28.2422688, rel=1e-6)  # result_summarizer's


def test_mxnet_figure_above_every_row_of_its_log(tmp_path: Path) -> None:
    """The report prints 1471.9 images/s; no row of the log that was published with it is above 1376.8."""
    path = "ResNet50V1.5/OtherReports/MxNet/logs/V100_LOG/mxnet_gpu1_amp_bs256.txt"
    file = log(tmp_path, f"{PERF}/{path}")
    record = read_record(file)
    assert max(window.printed_rate or 0 for window in record.windows) == pytest.approx(1376.81, abs=0.01)
    code, output, _ = command("reproduce", tmp_path)
    [figure] = output["figures"]
    assert code == 0 and figure["verdict"] == "not borne out" and figure["as_recorded"]
    assert figure["recomputed"] == pytest.approx(1363.4338, abs=1e-4)
    assert figure["notes"][-1].startswith("known: no row of its log of 2022-11-30 is above 1376.8")
