"""Figures, protocols, warnings and how near a figure is to its machine's limit, mostly through the command."""

import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runlog.workloads import WORKLOADS
from scoring.figure import protocols
from scoring.figure.limits import images_per_joule, utilization
from scoring.figure.repeats import refuse_unless_repeats
from scoring.record import InputError, Record
from tests import make_log
from tests.jobs import REPOSITORY
from tests.scoring import samples
from tests.scoring.samples import command, folder_of, scoring, steady_log, write


def test_published_time_to_train(published_logs: Path) -> None:
    logs = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").iterdir())
    code, result, _ = command("score", *logs, "--protocol", "mlperf")
    assert code == 0
    assert f"{result['value']:.4f} {result['unit']}" == "28.6854 minutes"
    assert result["runs"] == 5
    shown = [f"{source['value']:.3f}" if source["value"] != "inf" else "aborted" for source in result["sources"]]
    assert shown == ["28.410", "28.639", "aborted", "28.748", "28.669"]
    rules = {warning["rule"]: warning for warning in result["warnings"]}
    assert rules["not_converged"]["file"] == str(logs[2]) and rules["not_converged"]["line"] == 396
    assert "30.3419" in rules["outlying_run"]["message"]


def test_dlperf_table(tmp_path: Path) -> None:
    """Seed 000's images/s of runs on 32 devices, and the mean that it prints of them."""
    rates, logs = [9243.73, 9329.65, 9337.39, 9333.09, 9332.23, 9295.01], []
    for at, rate in enumerate(rates):  # its script reads the stamps of batches 19 and 119
        run = samples.run_of([32 * 128 / rate] * 130, devices=32, batch=128)
        logs.append(write(tmp_path, f"{at}.log", samples.paddle18(run)))
    code, result, _ = command("score", *logs, "--protocol", "dlperf", "--devices", 32, "--batch", 128)
    assert code == 0
    # The stamps hold milliseconds: a step of 0.36 s and 100 steps give 5 digits.
    assert [source["value"] for source in result["sources"]] == pytest.approx(rates, rel=3e-5)
    assert result["value"] == pytest.approx(9311.85, rel=3e-5)
    low, high = result["interval_95"]
    half = 2.5706 * statistics.stdev(rates) / math.sqrt(6)  # t of 5 degrees of freedom, from a printed table
    assert (high - low) / 2 == pytest.approx(half, rel=2e-3)
    assert result["interval_method"] == "t over 6 runs" and result["spread_over"] == "runs"


def test_dlperf_of_rows_every_twenty_batches(tmp_path: Path) -> None:
    """Batches 0, 20, 40, ...: the rows of number 20 and 120 stand for steps 20 and 120."""
    text = samples.paddle18(samples.run_of([0.3] * 20 + [0.5] * 121, devices=8, batch=32))
    kept = [line for line in text.splitlines() if "train batch" not in line or "0]" in line.split("train batch")[1]]
    log = write(tmp_path, "a.log", "\n".join(kept) + "\n")
    code, result, _ = command("score", log, "--protocol", "dlperf", "--runs", 1, "--devices", 8, "--batch", 32)
    assert code == 0 and result["value"] == pytest.approx(256 / 0.5, rel=1e-4)


def test_warm_up_that_a_run_set_apart_is_the_first_of_what_a_protocol_drops(tmp_path: Path) -> None:
    times = [2.0] * 20 + [0.5] * 100
    log = write(tmp_path, "a.txt", samples.mllog(samples.run_of(times), mode="throughput"))
    for name, skip, windows in (  # the run's own warm-up is two
        ("window", [], 10),
        ("perf-seg", [], 8),  # drops four
        ("perf", [], 2),  # ten
        ("perf-seg", ["--skip", 0], 10),
    ):
        _, result, _ = command("score", log, "--protocol", name, *skip)
        assert result["windows"] == windows and result["value"] == pytest.approx(512)


def test_fleetx_takes_steps_21_to_120(tmp_path: Path) -> None:
    times = [2.0] * 20 + [0.5] * 100 + [0.1] * 80
    factors = (1, 1.01, 0.99, 1.02, 0.98, 1.03, 5)
    texts = [samples.mllog(samples.run_of([time * factor for time in times])) for factor in factors]
    logs = [write(tmp_path, f"{at}.txt", text) for at, text in enumerate(texts)]
    code, result, _ = command("score", *logs, "--protocol", "fleetx")
    assert code == 0
    assert result["value"] == pytest.approx(512 / 1.01) and result["windows"] == 7 * 10  # the median of seven
    assert result["interval_method"] == "order statistics of 7 runs"
    low, high = result["interval_95"]  # seven reach 98.4 %: a little within the least and the greatest
    assert 512 / 5 < low < 512 / 1.03 and 512 / 0.99 < high < 512 / 0.98
    assert [warning["file"] for warning in result["warnings"] if warning["rule"] == "outlying_run"] == [str(logs[6])]


def test_too_few_runs_and_runs_that_did_not_converge_are_errors(tmp_path: Path, published_logs: Path) -> None:
    logs = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").iterdir())
    code, result, error = command("score", *logs[:2], "--protocol", "mlperf")
    assert code == 1 and result["value"] is None and "asks for 5 runs, given 2" in error
    code, result, error = command("score", *logs[:4], "--protocol", "mlperf")
    assert code == 1 and result["value"] > 28 and "asks for 5 runs, given 4" in error  # the figure so far
    assert command("score", *logs[:3], "--protocol", "mlperf", "--runs", "3")[0] == 0
    code, _, error = command("score", *logs[:2], "--protocol", "mlperf", "--runs", "2")
    assert code == 2 and "--runs must be 3 or more" in error
    assert "too_few_runs" in [warning["rule"] for warning in result["warnings"]]
    run, statuses = samples.run_of(samples.steady(40)), ["aborted"] * 2 + ["success"] * 3
    logs = [write(tmp_path, f"{at}.txt", samples.mllog(run, status=said)) for at, said in enumerate(statuses)]
    for given, says in ((logs, "2 of 5 runs did not converge"), (logs[:1], "given 1 (did not converge);")):
        code, _, error = command("score", *given, "--protocol", "mlperf")
        assert code == 1 and says in error


def test_runs_of_machines_that_no_log_names_are_put_together_with_a_warning(tmp_path: Path) -> None:
    """The logs may be of four kinds of card: `history add` refuses them, and `score` says what is not known."""
    run = samples.run_of(samples.steady(40))
    logs = [write(tmp_path, f"{at}.log", samples.paddleseg(run).replace("07:50", f"07:5{at}")) for at in range(4)]

    def unsaid(*words: object) -> list[dict[str, Any]]:
        _, result, _ = command("score", *words, "--protocol", "window")
        return [warning for warning in result["warnings"] if warning["rule"] == "system_unsaid"]

    [said] = unsaid(*logs)
    assert said["message"].startswith("4 of 4 logs do not say their hardware, ") and said["file"] == str(logs[0])
    assert not unsaid(*logs, "--system", "four nodes of one order")
    assert not unsaid(logs[0]), "one run is of one machine"
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    for at, log in enumerate(logs):
        log.rename(tmp_path / "ab"[at % 2] / log.name)
    assert scoring("compare", tmp_path / "a", tmp_path / "b", "--protocol", "window").stdout.count("system_unsaid") == 2


def test_one_run_says_so(tmp_path: Path) -> None:
    log = steady_log(tmp_path, "a.txt")
    code, result, _ = command("score", log, "--protocol", "window")
    assert code == 0
    assert [warning["rule"] for warning in result["warnings"]] == ["too_few_runs"]
    lines = log.read_text().splitlines()
    for line, step in (("first_line", 30), ("last_line", 200)):
        assert f'"step": {step},' in lines[result["sources"][0][line] - 1]
    assert result["spread_over"] == "windows"
    assert result["interval_method"] == "from 18 windows of one run"
    assert result["interval_95"] == result["run_interval_95"]
    shown = scoring("score", log, "--protocol", "window").stdout
    assert "  this run " in shown and "  another run " in shown
    _, few, _ = command("score", tmp_path / "a.txt", "--protocol", "window", "--skip", 11)
    assert (
        few["windows"] == 9
        and few["repeat_interval_95"] is None
        and few["interval_95"] is None
        and few["protocol_rule"].startswith("skip 11 windows, ")
    )
    assert few["interval_method"] == "none: fewer than 10 windows of one run"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--protocol", "perf-seg", "--skip", 26], "warm-up is 26 windows and the run has 26"),
        (["--protocol", "perf-seg", "--skip", 1000], "nothing is left to measure"),
        (["--protocol", "mlperf"], "no run_start in the log"),
        (["--protocol", "nonesuch"], "no protocol 'nonesuch'; known are window"),
        (["--protocol", "ngc-mxnet"], "warm-up is 1 epoch and the run has 0"),
        (["--protocol", "absent.yaml"], "absent.yaml: no such file"),
        (["--protocol", "perf", "--format", "oneflow"], "without one training row"),
    ],
)
def test_wrong_use_is_one_line(published_logs: Path, options: list[object], says: str) -> None:
    code, out, error = scoring("score", published_logs / "paddleseg_v100_gpu1_fp32_bs8.log", *options)
    assert code == 2 and out == "" and says in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("--runs", text) for text in ("0", "-1", "1.5", "1000000000", "1" + 400 * "0", 5001 * "1")),
        ("--skip", "-1"),
        *(("--between-runs-sd", text) for text in ("1", "1/1", "0/5", "x/5", "1/5/2", "101/5", f"0.8/{10**20}")),
    ],
    ids=lambda text: text[:16],
)
def test_numbers_are_bounded(option: str, given: str) -> None:
    code, out, error = scoring("compare", "a.log", "b.log", "--protocol", "window", f"{option}={given}")
    assert code == 2 and out == "" and re.match(f".*: argument {option}: .* must be .*\n$", error)


def test_a_finished_run_shorter_than_the_warm_up_has_no_figure(tmp_path: Path) -> None:
    """A resume near its end is no failure; a run from the start, or unfinished, or with too long a --skip, is one."""
    whole = write(tmp_path, "whole.txt", samples.mllog(samples.run_of([0.5] * 20)))
    assert command("score", whole, "--protocol", "window")[0] == 2
    text = whole.read_text().replace('"resumed": false', '"resumed": true')
    log = write(tmp_path, "a.txt", text)
    code, result, _ = command("score", log, "--protocol", "window")
    assert code == 0 and result["value"] is None
    long = steady_log(tmp_path, "long.txt")
    _, full, _ = command("score", long, "--protocol", "window")
    assert list(result) == list(full) and result["sources"][0].keys() == full["sources"][0].keys()
    assert result["checked"][0]["file"] == str(log) and result["protocol_rule"] == full["protocol_rule"]
    [warning] = result["warnings"]
    assert warning["rule"] == "nothing_measured" and "warm-up is 20 steps and the run has 20" in warning["message"]
    assert command("score", log, "--protocol", "window", "--skip", 2)[0] == 2
    _, _, error = scoring("score", log, "--protocol", "mlperf")
    assert "this log lacks its time before: its time to train is unknown; give a run from the start" in error
    unfinished = write(tmp_path, "b.txt", "\n".join(line for line in text.splitlines() if "run_stop" not in line))
    assert command("score", unfinished, "--protocol", "window")[0] == 2


def hardware(name: str, host: str = "a") -> str:
    """A header line of our own logs."""
    return f"# {json.dumps({'hardware': {'nodes': [{'host': host, 'cpu': name, 'cores': 4, 'gpus': []}]}})}\n"


def test_runs_of_two_systems_are_no_repeats_and_a_run_counts_once(tmp_path: Path) -> None:
    run = samples.run_of([0.5] * 400)
    torch = write(tmp_path, "torch.log", samples.nvidia_pytorch(run).replace(" amp : True ", " amp : False "))
    flow = write(tmp_path, "flow.log", samples.nvidia_tensorflow(run))
    code, _, error = command("score", torch, flow, "--protocol", "perf")
    assert code == 2 and "runs of different framework (PyTorch in " in error
    amd = write(tmp_path, "amd.txt", hardware("AMD") + samples.mllog(run))
    intel = write(tmp_path, "intel.txt", hardware("Intel") + samples.mllog(run))
    code, _, error = command("score", amd, intel, "--protocol", "window")
    assert code == 2 and "runs of different machine (AMD, 4 cores in " in error
    twin = write(tmp_path, "twin.txt", hardware("AMD", host="b") + samples.mllog(run))  # alike, of another version
    twin.write_text(twin.read_text().replace("paddlepaddle 2.6.2", "paddlepaddle 2.5.0"))
    unsaid = write(tmp_path, "unsaid.txt", samples.mllog(run))
    assert command("score", amd, twin, unsaid, "--protocol", "window")[0] == 0
    fewer = steady_log(tmp_path, "fewer.txt", devices=4)
    spread = write(tmp_path, "spread.txt", samples.mllog(run, nodes=2))  # its all-reduce crosses the network
    different = ((fewer, "runs of different devices"), (spread, "runs of different nodes (1 in "))
    for other, says in (*different, (unsaid, "the same run: one run counts once")):
        code, _, error = command("score", unsaid, other, "--protocol", "window")
        assert code == 2 and says in error


def test_logs_that_name_no_framework_are_repeats_where_they_are_of_one_format() -> None:
    one = Record(file="a", sha256="a", lines=1, format="mllog", framework="PyTorch 2.0")
    silent = Record(file="b", sha256="b", lines=1, format="mllog")
    refuse_unless_repeats([one, silent])
    with pytest.raises(InputError, match=r"runs of different format \(mllog in a, table in c\)"):
        refuse_unless_repeats([one, Record(file="c", sha256="c", lines=1, format="table")])


def test_unknown_devices_change_the_unit_and_an_unknown_batch_is_asked_for(
    tmp_path: Path, published_logs: Path
) -> None:
    code, result, _ = command("score", published_logs / "paddleclas_a100_gpu1_fp32_bs256.log", "--protocol", "perf")
    assert code == 0 and result["unit"] == "images/s per device"
    assert "devices_unknown" in [warning["rule"] for warning in result["warnings"]]
    text = "\n".join(line for line in samples.mmseg(samples.run_of([0.5] * 100)).splitlines() if "Iter [" in line)
    code, _, error = command("score", write(tmp_path, "a.log", text), "--protocol", "perf-seg")
    assert code == 2 and "give --batch" in error


def test_start_is_light() -> None:
    """What `score --help` loads: neither SciPy nor what reports need."""
    code = (
        "import sys; from scoring.__main__ import main\n"
        "try: main(['score', '--help'])\n"
        "except SystemExit: print({'scipy', 'numpy', 'pandas', 'matplotlib', 'paddle', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_own_protocol(tmp_path: Path) -> None:
    own = write(
        tmp_path,
        "own.yaml",
        "mine:\n  source: me\n  skip: 50 steps\n  take: 20 steps\n  over_steps: images_over_time\n  runs: 2\n"
        "  over_runs: mean\n",
    )
    times = [1.0] * 50 + [0.25] * 20 + [1.0] * 50
    logs = [write(tmp_path, f"{at}.txt", samples.mllog(samples.run_of(times))) for at in range(2)]
    code, result, _ = command("score", *logs, "--protocol", own)
    assert code == 0 and result["value"] == pytest.approx(1024) and result["protocol"] == "mine"


RIGHT = {"source": "a", "skip": "1 window", "over_steps": "images_over_time", "runs": 1, "over_runs": "mean"}


def changed(**fields: object) -> str:
    """A protocol's file with other fields; None leaves one out."""
    return json.dumps({"mine": {name: value for name, value in (RIGHT | fields).items() if value is not None}})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (changed(skip=10), "protocol mine: skip is 10; want an amount"),
        (changed(skip=f"{5001 * '1'} windows"), "want an amount"),
        (changed(over_steps="magic"), "protocol mine: over_steps is 'magic'"),
        (changed(runs=0), "runs is 0"),
        (changed(x=1), "no field x"),
        (changed(source=None), "the field source is missing"),
        (changed(runs=2, over_runs="olympic_mean"), "drops two"),
        (changed(over_steps="run_time"), "figure: run_time"),
        (changed(over_steps="between_stamps"), "counts from a step"),
        (changed(take="9 windows"), "take counts steps"),
        (changed(take="9 steps", skip="1 epochs", over_steps="epoch_rates"), "takes whole epochs"),
        (changed(take="9 steps", skip="0 windows", over_steps="run_time", figure="run_time"), "leaves no steps out"),
        (changed(over_steps="run_time", figure="run_time"), "leaves no steps out"),
        ("mine:", "want a table"),
        *((text, "own.yaml: want") for text in ("", "- 1")),
        *((text, "not YAML") for text in ("a: [", "\x00", f"a: {5001 * '1'}", "a: 2020-99-99")),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_wrong_protocol_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        protocols.load(write(tmp_path, "own.yaml", text))


def test_what_the_spread_of_runs_says(tmp_path: Path) -> None:
    """How many more make 1 %, by Stein's two stages, and whether runs are too unlike for a mean."""
    too_many = "too noisy for a goal of 1 %, as far as {} runs show"
    for name, step, shown in (("like", 0.015, " more runs, all of"), ("unlike", 0.1, too_many.format(3))):
        logs = sorted(folder_of(tmp_path, name, [1, 1 + step, 1 - step]).iterdir())
        _, result, _ = command("score", *logs, "--protocol", "window")
        low, high = result["interval_95"]
        needed = 3 * (math.log(high / low) / 2 / 0.01) ** 2
        assert needed - 3 <= result["more_runs_for_1_percent"] < needed - 2
        assert result["more_runs_for_1_percent"] == pytest.approx((4.303 * step / 0.01) ** 2 - 3, rel=0.03)
        assert ("rates_averaged" in [warning["rule"] for warning in result["warnings"]]) == (name == "unlike")
        assert shown in scoring("score", *logs, "--protocol", "window").stdout
    logs = sorted(folder_of(tmp_path, "two", [1, 1.01]).iterdir())  # runs with a deviation of 0.7 %: 4 would do
    assert too_many.format(2) in scoring("score", *logs, "--protocol", "window").stdout
    logs = sorted(folder_of(tmp_path, "near", [1, 1.0043, 0.9957]).iterdir())
    assert " 1 more run, counted in any case" in scoring("score", *logs, "--protocol", "window").stdout
    assert command("score", logs[0], "--protocol", "window")[1]["more_runs_for_1_percent"] is None


def test_runs_that_print_the_same_figure_have_no_interval_of_no_width(tmp_path: Path) -> None:
    """An interval of 512.000 to 512.000 would say that the figure is exact."""
    logs = sorted(folder_of(tmp_path, "like", [1, 1, 1]).iterdir())
    _, result, _ = command("score", *logs, "--protocol", "window")
    assert result["interval_95"] is None and result["spread"] == 0
    says = "print one and the same figure, in too few digits to tell how far they lie apart"
    assert result["interval_method"] == f"none: 3 runs {says}"


def test_scores_of_mlperf_benchmarks_alone_say_that_they_are_unverified(tmp_path: Path, published_logs: Path) -> None:
    mlperf = sorted((published_logs / "mlperf_v2.1_dgxa100_resnet").iterdir())
    for words in (
        ["score", *mlperf, "--protocol", "mlperf"],
        ["compare", mlperf[0], mlperf[1], "--protocol", "window"],
    ):
        out = scoring(*words).stdout
        assert " (unverified)" in out and "Result not verified by MLCommons Association." in out and "trademarks" in out
        assert ("images/s is derived" in out) == (words[0] == "compare")
        assert len(json.loads(scoring(*words, "--json").stdout)["footnotes"]) == 2
    # The form of MLPerf logs, and no MLPerf benchmark:
    header = {"dataset": {"name": "uci-digits-64", "train_samples": 1437, "synthetic": False}}
    digits = write(tmp_path, "digits.txt", f"# {json.dumps(header)}\n{mlperf[0].read_text()}")
    other = published_logs / "paddleseg_v100_gpu1_fp32_bs8.log"
    for words in ([other, "--protocol", "perf-seg"], [digits, "--protocol", "window"]):
        done = scoring("score", *words)
        assert done.returncode == 0 and "erified" not in done.stdout


@pytest.mark.parametrize("text", ["", None])
def test_the_name_of_a_log_breaks_no_line(tmp_path: Path, text: str | None) -> None:
    run = samples.mllog(samples.run_of(samples.steady()))
    logs = [write(tmp_path, f"{name}\n\x1b[31m.txt", run if text is None else text) for name in "ab"]
    code, out, error = scoring("score", logs[0], "--protocol", "window")
    assert "\x1b" not in out + error and "\\n\\x1b[31m.txt" in out + error
    assert (code, error.count("\n")) == ((0, 0) if text is None else (2, 1))
    done = scoring("compare", *logs, "--protocol", "window")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_gib": 39.6}


def record(*, gpus: Any = (A100,) * 8, sizes: dict[str, Any] | None = None, **fields: Any) -> Record:
    config = {f"RECIPE.image_{name}": {"value": value} for name, value in (sizes or {"size": 224}).items()}
    header = {"hardware": {"nodes": [{"gpus": list(gpus)}]}, "config": config}
    of_run: dict[str, Any] = {"model": "resnet50_v1.5", "devices": 8, "precision": "amp_o2", "header": header}
    return Record(file="a", sha256="", lines=1, format="mllog", **(of_run | fields))


def of_gpu(name: str, memory_gib: float | None) -> dict[str, Any]:
    """A run on eight of it."""
    return {"gpus": [{"name": name, "memory_gib": memory_gib}] * 8}


def test_the_flops_are_those_counted_of_the_fp32_programs() -> None:
    golden = json.loads((REPOSITORY / "tests/tools/golden/programs.json").read_text())
    for workload in WORKLOADS:
        names = [n for n in golden if n.startswith("hrnet_fp32" if workload.name == "hrnet" else "fp32_")]
        counted = {golden[name]["flops"] / int(name.split("_")[-2][1:]) for name in names}
        assert names and counted == {workload.training_flop}


@pytest.mark.parametrize(
    ("fields", "peak"),
    [
        ({}, 312e12),
        ({"precision": "fp32", "math_mode": "fp32"}, 19.5e12),
        ({"precision": "fp32", "math_mode": "tf32"}, 156e12),
        (of_gpu("Tesla V100-SXM2-32GB", 32.0), 125e12),
        (of_gpu("Tesla V100-SXM2-16GB", 15.8), 125e12),
        (of_gpu("NVIDIA A100-SXM4-80GB", 79.2), 312e12),
    ],
)
def test_a_figure_is_a_share_of_the_cards_peak(fields: dict[str, Any], peak: float) -> None:
    assert utilization([record(**fields)] * 2, 16_000.0) == pytest.approx(16_000 * 24_299_077_632 / (8 * peak))
    hrnet = record(model="fcn_hrnetw18", sizes={"height": 512, "width": 1024}, **fields)
    assert utilization([hrnet], 100.0) == pytest.approx(100 * 220_648_587_264 / (8 * peak))


NO_NODES: tuple[Any, ...] = (None, [], {"nodes": 1})


@pytest.mark.parametrize(
    "fields",
    [
        *(of_gpu(f"{name}GB", 39.6) for name in ("NVIDIA A100-PCIE-40", "Tesla V100S-SXM2-40", "NVIDIA A10-40")),
        of_gpu("NVIDIA A100 80GB PCIe", 79.2),
        of_gpu("NVIDIA A100-SXM4-40GB", None),
        *({"gpus": gpus} for gpus in ((), [A100, {"name": "H100"}], [{"name": [1], "memory_gib": "x"}], [3])),
        *({"sizes": {"size": size}} for size in (160, None, [224], "224", 1e400)),
        *({name: None} for name in ("devices", "precision", "model")),
        *({"header": {"hardware": hardware, "config": hardware}} for hardware in NO_NODES),
    ],
)
def test_what_a_log_does_not_say_gives_no_share(fields: dict[str, Any]) -> None:
    assert utilization([record(), record(**fields)], 16_000.0) is None


def test_images_a_joule_are_those_of_all_runs() -> None:
    runs = [record(telemetry={"joules_per_image": joules}) for joules in (0.5, 0.3)]
    assert images_per_joule(runs) == pytest.approx(2 / 0.8)
    for joules in (None, 0, "1", True):
        assert images_per_joule([*runs, record(telemetry={"joules_per_image": joules})]) is None


def test_score_and_report_say_it(tmp_path: Path) -> None:
    summary = {"devices": 8, "batch_per_device": 256, "precision": "amp_o2"}
    text = make_log.run(summary=summary, devices=8, batch=256, samples=(204_800, 2048))
    gpu = A100 | {"driver": "535", "topology": None}
    text = text.replace('"gpus": []', f'"gpus": {json.dumps([gpu] * 8)}')
    text = text.replace('"RECIPE.image_size": {"value": 64,', '"RECIPE.image_size": {"value": 224,')
    log, page = tmp_path / "result_0.txt", tmp_path / "report.html"
    log.write_text(text)
    words = ("score", log, "--protocol", "window", "--runs", "1")
    found = json.loads(scoring(*words, "--json").stdout)
    share = found["value"] * 24_299_077_632 / (8 * 312e12)
    assert found["flops_utilization"] == pytest.approx(share) and found["images_per_joule"] is None
    said = f"{share:.1%} of the cards' peak FLOP/s (MFU)"
    assert f"  limit          {said}\n" in scoring(*words).stdout
    assert scoring("report", log, "--html", page).returncode == 0
    assert said.replace("'", "&#39;") in page.read_text()
