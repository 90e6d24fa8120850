"""Campaigns: each report's grid, what is skipped and resumed, and the table at the end."""

import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from program import strategy
from runlog import schema
from scoring.figure import protocols
from scoring.published import campaign as command_line
from scoring.published import campaign_plan, campaign_table
from scoring.published.campaign_plan import Machine, published_figures
from scoring.published.table import read_published, select
from scoring.record import InputError
from tests import make_log

ROWS = read_published()
NAMES = ["dlperf", "perf_rn50", "fleetx", "perf_hrnet", "oneflow"]
CLUSTER = Machine(
    gpus=8,
    gpu="V100",
    compute_capability=7.0,
    hosts=("a", "b", "c", "d"),
    in_container=False,
    system="DGX1",
)
NOTHING = Machine(gpus=0, gpu=None, compute_capability=None, hosts=(), in_container=False, system=None)


# ---------------------------------------------------------------------------------------------- the grids


def test_every_seed_has_its_campaign() -> None:
    assert sorted(path.stem for path in campaign_plan.CAMPAIGNS.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("name, cells", list(zip(NAMES, [6, 10, 60, 6, 12], strict=True)))
def test_a_campaign_has_a_cell_for_every_published_throughput_and_measures_as_its_protocol(
    name: str, cells: int
) -> None:
    campaign = campaign_plan.read_campaign(name)
    assert len(campaign.cells) == cells
    found = [published_figures(ROWS, campaign, cell, "throughput").values() for cell in campaign.cells]
    report = select(ROWS, table=campaign.published_table, metric="throughput")
    assert sorted(row.line for rows in found for row in rows if row) == [row.line for row in report]
    protocol = protocols.find(campaign.protocol)
    steps = {key: int(value) for key, value in campaign.environment.items() if key.endswith("_STEPS")}
    dropped = protocol.skip * (steps["PRINT_STEPS"] if protocol.skip_unit == "window" else 1)
    assert (campaign.repeats, steps["WARMUP_STEPS"]) == (protocol.runs, dropped)
    assert steps["MEASURED_STEPS"] % steps["PRINT_STEPS"] == 0
    assert protocol.take_steps in (None, steps["MEASURED_STEPS"]) and campaign.environment["DATA"] == "real"
    small = campaign_plan.read_campaign(name, shrink=True).cells
    assert [cell.asked for cell in small] == [cell.asked for cell in campaign.cells]
    for cell in small:
        assert (cell.run.nodes, cell.run.devices, cell.run.precision) == (1, min(cell.asked.devices, 2), "fp32")
        assert cell.run.strategy == cell.asked.strategy
    assert {cell.run.batch for cell in small} == ({2, 3} if name in ("fleetx", "oneflow") else {2})


@pytest.mark.parametrize(
    "name, framework, shape, printed",
    [
        ("fleetx", "Paddle (FleetX)", (32, 2), ["3982.28", "8524.23", "9466.25"]),  # FP32, AMP, automatic strategy
        ("perf_rn50", "NGC MXNet", (256, 1), ["2957.8", "10336", "7848.2", "22690"]),  # V100, then A100
    ],
)
def test_published_figures_are_matched_by_precision_strategy_and_accelerator(
    name: str, framework: str, shape: tuple[int, int], printed: list[str]
) -> None:
    campaign = campaign_plan.read_campaign(name)
    cells = [c for c in campaign.cells if (c.asked.batch, c.asked.nodes, c.asked.devices_per_node) == (*shape, 8)]
    found = [published_figures(ROWS, campaign, cell, "throughput")[framework] for cell in cells]
    assert [row and row.printed for row in found] == printed


@pytest.mark.parametrize(
    "change, text",
    [
        ({"tables": [{"title": "x", "batches": [1], "precision": "fp32", "shapes": ["8"]}]}, "NODESxDEVICES"),
        ({"tables": [{"title": "x", "batches": [1], "shapes": ["1x8"]}]}, "precision"),
        ({"steps": 3}, "steps"),
        ({"published": {}}, "table"),
    ],
)
def test_a_file_that_is_no_campaign_is_refused_with_what_is_wrong(tmp_path: Path, change: dict, text: str) -> None:
    raw = yaml.safe_load((campaign_plan.CAMPAIGNS / "dlperf.yaml").read_text(encoding="utf-8"))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw | change))
    with pytest.raises(InputError, match=r"mine\.yaml: not a campaign") as error:
        campaign_plan.read_campaign("mine", tmp_path)
    assert text in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["absent", "../campaigns/dlperf", ""])
def test_an_unknown_campaign_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match="choose one of dlperf, fleetx, oneflow, perf_hrnet, perf_rn50"):
        campaign_plan.read_campaign(name)


# ------------------------------------------------------------------------------------------------ the plan


NODES = "nodes needed, HOSTS or HOSTFILE names"


@pytest.mark.parametrize(
    "name, here, run, reason",
    [
        ("perf_rn50", CLUSTER, "4n8g_b256_amp_o2", ""),
        ("perf_rn50", CLUSTER, "1n8g_b256_tf32", "tf32 needs compute capability 8.0, V100 has 7.0"),
        ("perf_rn50", replace(CLUSTER, compute_capability=None), "1n8g_b256_tf32", ""),
        ("fleetx", CLUSTER, "8n8g_b32_fp32", f"8 {NODES} 4"),
        ("dlperf", replace(CLUSTER, gpus=4, hosts=()), "1n4g_b128_fp32", ""),
        ("dlperf", replace(CLUSTER, gpus=4, hosts=()), "1n8g_b128_fp32", "8 GPU(s) a node needed, 4 here"),
        ("oneflow", NOTHING, "1n1g_b128_fp32", "1 GPU(s) a node needed, 0 here"),
        ("fleetx", CLUSTER, "1n8g_b32_amp_o1_auto", ""),
        ("fleetx", CLUSTER, "2n8g_b32_amp_o1_auto", "Paddle 2.6.2's automatic mode shards over 8 ranks and refuses 16"),
        ("fleetx --shrink", NOTHING, "1n2g_b2_fp32_auto", "computes in FP16, for which a CPU has no kernels"),
        ("fleetx --shrink", NOTHING, "1n2g_b2_fp32", ""),
    ],
)
def test_what_the_machine_cannot_do_is_skipped_with_the_reason(
    tmp_path: Path, name: str, here: Machine, run: str, reason: str
) -> None:
    campaign = campaign_plan.read_campaign(name.split()[0], shrink="--shrink" in name)
    (job,) = (job for job in campaign_plan.plan(campaign, tmp_path, here, repeats=1) if job.run.name == run)
    assert job.state == ("skip" if reason else "run") and job.reason.endswith(reason)


def test_the_automatic_strategys_ranks_are_the_programs() -> None:
    assert campaign_plan.AUTO_RANKS == strategy.AUTO_RANKS  # scoring imports nothing of the program


@pytest.mark.parametrize("knows, capability", [(True, 8.0), (False, None)])
def test_the_machine_is_what_nvidia_smi_and_the_hosts_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool, capability: float | None
) -> None:
    """Written as nvidia-smi prints; a driver before 510 refuses the field compute_cap."""
    tool = tmp_path / "nvidia-smi"
    answer = "printf '8.0\\n8.0\\n'" if knows else "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2"
    name = "printf 'NVIDIA A100-SXM4-40GB\\nNVIDIA A100-SXM4-40GB\\n'"
    tool.write_text(f"#!/bin/sh\ncase $1 in *compute_cap) {answer};; *) {name};; esac\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", "a,b,c")
    here = campaign_plan.machine()
    assert (here.gpus, here.gpu, here.compute_capability) == (2, "NVIDIA A100-SXM4-40GB", capability)
    assert here.hosts == ("a", "b", "c")


def test_a_skipped_run_stands_beside_the_reports_nearest_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["plan", "perf_rn50", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("skip 1n8g_b256_amp_o2 "))
    assert lines[at + 1 : at + 3] == [
        "     nearest published: 17587.654 images/s, A100, batch 256 x 8 (PaddlePaddle/Perf ResNet50V1.5)",
        "     nearest published: 10936.815 images/s, V100, batch 256 x 8 (PaddlePaddle/Perf ResNet50V1.5)",
    ]


def test_a_job_exports_what_the_report_says_and_its_nodes_config(tmp_path: Path) -> None:
    (tmp_path / "config_2xDGX1.sh").touch()
    campaign = campaign_plan.read_campaign("fleetx")
    for nodes, system, config in ((2, None, None), (1, "DGX1", "DGX1"), (2, "DGX1", "2xDGX1"), (1, "4xDGX1", "DGX1")):
        run = campaign_plan.RunSpec(nodes, 8, 64, "amp_o1", "auto")
        exports = campaign_plan.environment(campaign, run, system=system, repository=tmp_path)
        wanted = {"DGXNNODES": str(nodes), "DGXNGPU": "8", "BATCHSIZE": "64", "PRECISION": "amp_o1", "STRATEGY": "auto"}
        wanted |= {"MODE": "throughput", "WARMUP_STEPS": "20", "MEASURED_STEPS": "100", "DEVICE": "gpu"}
        assert exports.items() >= wanted.items() and exports.get("DGXSYSTEM") == config
    small = campaign_plan.environment(campaign_plan.read_campaign("fleetx", shrink=True), run, system="DGX1")
    assert (small["DGXSYSTEM"], small["DEVICE"]) == ("CPU", "cpu")


def test_a_run_on_gpus_needs_the_name_of_its_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the CPU's config would be taken."""
    monkeypatch.setattr(command_line, "machine", lambda: replace(CLUSTER, system=None))
    arguments = ["plan", "dlperf", "--results", str(tmp_path), "--jobs"]
    assert command_line.main(arguments) == 2
    assert "DGXSYSTEM is not set" in capsys.readouterr().err
    monkeypatch.setattr(command_line, "machine", lambda: CLUSTER)
    assert command_line.main(arguments) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 36 and all("DGXSYSTEM=" in line[4] and "DEVICE=gpu" in line[4] for line in lines)


BOXED = replace(CLUSTER, in_container=True)


@pytest.mark.parametrize(
    "nodes, here, runner, command",
    [
        (1, CLUSTER, "", "./run_and_time.sh"),
        (4, CLUSTER, "", "launch/mpirun.sh --hosts a,b,c,d --no-container"),
        (1, BOXED, "", "launch/container_node.sh"),
        (2, BOXED, "", "launch/mpirun.sh --hosts a,b"),
        (4, CLUSTER, "my launcher", "my launcher"),
    ],
)
def test_the_command_of_a_job_is_the_launcher_that_reaches_its_nodes(
    nodes: int, here: Machine, runner: str, command: str
) -> None:
    assert campaign_plan.command(campaign_plan.RunSpec(nodes, 8, 128, "fp32"), here, runner) == command


# ----------------------------------------------------------------------------------------- logs and figures


def write_log(folder: Path, exports: dict[str, str], *, step_time_s: float, status: str | None = "success") -> Path:
    """A log as a job of `exports` would write it, every step of the same time."""
    devices = int(exports["DGXNNODES"]) * int(exports["DGXNGPU"])
    batch, every = int(exports["BATCHSIZE"]), int(exports["PRINT_STEPS"])
    log = make_log.Log(tick_ms=0)
    log.now_ms += 1000 * zlib.crc32(str(folder).encode())  # no two runs start at once
    config = {
        name: schema.Setting(value=int(value) if value.isdigit() else value, origin="environment")
        for name, value in exports.items()
    }
    log.section(schema.CONFIG, config)
    sizes = {"devices": devices, "nodes": int(exports["DGXNNODES"]), "batch_per_device": batch}
    summary = make_log.run_summary(**sizes, precision=exports["PRECISION"], mode="throughput")
    log.event(schema.RUN_SUMMARY, summary)
    log.mark(schema.RUN_START)
    warm_up = int(exports["WARMUP_STEPS"])
    for step in range(every, warm_up + int(exports["MEASURED_STEPS"]) + 1, every):
        phase = "warmup" if step <= warm_up else "measured"
        time_s = every * step_time_s * (3 if phase == "warmup" else 1)
        log.now_ms += round(1000 * time_s)
        window = make_log.window(steps=every, images=every * devices * batch, time_s=time_s, data_wait_s=0.0)
        log.window(replace(window, gpu_memory_mib=12000.0), step=step, epoch=1, phase=phase)
    if status:
        log.mark(schema.RUN_STOP, schema.Ended(status=status))
    path = folder / "X" / "rn50" / "result_0.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log.text.getvalue())
    return path


def measured(name: str, results: Path, times_s: dict[str, list[float]]) -> list[dict]:
    """The table of a campaign whose runs took these step times, one for each trial."""
    campaign = campaign_plan.read_campaign(name)
    jobs = campaign_plan.plan(campaign, results, CLUSTER, repeats=campaign.repeats)
    for job in jobs:
        steps = times_s.get(job.run.name, [])
        if job.trial <= len(steps):
            write_log(job.folder, job.exports, step_time_s=steps[job.trial - 1])
    jobs = campaign_plan.plan(campaign, results, CLUSTER, repeats=campaign.repeats)
    return campaign_table.table(campaign, campaign_table.figures(campaign, jobs, repeats=campaign.repeats), ROWS)


def test_the_table_sets_ours_beside_the_published(tmp_path: Path) -> None:
    one = [0.350, 0.352, 0.354, 0.350, 0.352, 0.354]
    eight = [0.400] * 6
    lines = measured("dlperf", tmp_path, {"1n1g_b128_fp32": one, "1n8g_b128_fp32": eight})
    first, last = lines[0], lines[3]
    rates = [128 / step for step in one]
    assert first["ours"] == pytest.approx(sum(rates) / 6, rel=1e-3)
    assert first["published"] == {"Paddle 1.8.3.post107": 352.23, "OneFlow v0.1.8": 383.76}
    assert first["ratio"] == pytest.approx(first["ours"] / 352.23)
    low, high = first["interval_95"]
    # t of 5 degrees of freedom is 2.571; the spread of the six rates over sqrt(6).
    deviation = (sum((rate - first["ours"]) ** 2 for rate in rates) / 5) ** 0.5
    assert (high - low) / 2 == pytest.approx(2.571 * deviation / 6**0.5, rel=0.02)
    assert first["ratio_95"] == [pytest.approx(low / 352.23), pytest.approx(high / 352.23)]
    assert last["speedup"] == pytest.approx(last["ours"] / first["ours"])
    assert last["speedup_published"] == {"Paddle 1.8.3.post107": 7.47, "OneFlow v0.1.8": 7.67}
    assert (first["runs"], lines[1]["runs"], lines[1]["ours"], lines[1]["ratio"]) == (6, 0, None, None)


def test_the_markdown_shows_each_row_and_says_what_was_not_measured(tmp_path: Path) -> None:
    """The warm-up steps are three times as slow: any of them left in would show in the figure."""
    campaign = campaign_plan.read_campaign("oneflow")
    lines = measured("oneflow", tmp_path, {"1n1g_b160_fp32": [0.4]})
    (line,) = [line for line in lines if line["runs"]]
    assert line["ours"] == pytest.approx(160 / 0.4)
    assert (line["gpu_memory_mib"], line["gpu_memory_mib_published"]) == (12000, 15509)
    text = campaign_table.markdown(campaign, lines, system="8 x Tesla V100")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "ratio" not in line]
    assert len(rows) == 12
    assert "400.00" in rows[6] and "382.324" in rows[6] and "1.046 (1.046 to 1.046)" in rows[6]
    assert "not measured" in rows[0] and "383.76" in rows[0]
    widths = {len(line) for line in text.split("## ")[1].splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_a_report_of_one_figure_a_cell_is_a_matrix_as_it_prints_it(tmp_path: Path) -> None:
    campaign = campaign_plan.read_campaign("fleetx")
    eight = [0.102, 0.110, 0.104, 0.106, 0.108, 0.107, 0.105]
    lines = measured("fleetx", tmp_path, {"1n8g_b32_fp32": eight, "2n8g_b64_fp32": [0.2, 0.2]})
    assert len(lines) == 60
    text = campaign_table.markdown(campaign, lines, system="8 x Tesla V100")
    fp32 = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.split("## ")[1].splitlines() if "|" in row]
    assert fp32[0] == ["batch/GPU", "nodes x GPUs", "1 x 1", "1 x 8", "2 x 8", "4 x 8", "8 x 8"]
    ours, interval, runs, published, ratio = fp32[2:7]
    heads = ["ours", "95 % interval", "runs", "Paddle (FleetX)", "ratio"]
    assert [row[:2] for row in fp32[2:7]] == [["32", head] for head in heads]
    assert ours[3].startswith(f"{256 / 0.106:.2f}") and published[3] == "2097.2"
    assert ratio[3].startswith(f"{256 / 0.106 / 2097.2:.3f} (") and " to " in interval[3] and interval[4] == "-"
    assert (runs[3], fp32[7][0], fp32[8][1], fp32[8][4]) == ("7", "64", "runs", "2")
    by_shape = {(line["table"], line["nodes"], line["batch_per_device"]): line for line in lines if line["runs"] < 7}
    assert any("asks for 7 runs, given 2" in note for note in by_shape["FP32", 2, 64]["notes"])
    skipped = f"skipped: 8 {NODES} 4"
    assert (by_shape["FP32", 8, 32]["ours"], by_shape["FP32", 8, 32]["notes"]) == (None, [skipped])
    mark = ours[6].removeprefix("not measured ")  # 8 nodes
    assert f"- {mark}: {skipped}" in text
    # 3 tables of 4 batches of at most 5 rows
    assert len(text.splitlines()) < 80


def test_no_interval_of_a_rate_reaches_zero(tmp_path: Path) -> None:
    (line,) = [line for line in measured("dlperf", tmp_path, {"1n1g_b128_fp32": [0.3, 3.0]}) if line["runs"]]
    assert 0 < line["interval_95"][0] < line["ours"] < line["interval_95"][1]


def test_a_dry_run_has_a_line_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "machine", lambda: CLUSTER)
    campaign = campaign_plan.read_campaign("fleetx")
    run = campaign_plan.RunSpec(1, 8, 32, "fp32")
    exports = campaign_plan.environment(campaign, run, system="DGX1")
    write_log(tmp_path / "fleetx" / run.name / "trial_1", exports, step_time_s=0.1)
    assert command_line.main(["plan", "fleetx", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 63  # 60 runs, one of them in two states; what all share, the sum
    assert "MEASURED_STEPS=100" in lines[0] and not any("MEASURED_STEPS" in line for line in lines[1:])
    assert "done 1n8g_b32_fp32 trial 1, " in lines[2] and "run  1n8g_b32_fp32 trials 2 to 7, " in lines[3]
    seconds = 60 + 120 * 32 * 8 / 2097.2  # start-up, and steps at the published rate of the same size
    assert f"about {seconds:.0f} s each" in lines[3]
    assert lines[3].endswith("DGXNNODES=1 DGXNGPU=8 BATCHSIZE=32 PRECISION=fp32 DGXSYSTEM=DGX1 ./run_and_time.sh")


@pytest.mark.parametrize(
    "change, status, text",
    [
        ({"BATCHSIZE": "64"}, "success", "BATCHSIZE=64, the campaign wants 128"),
        ({"PRECISION": "tf32"}, "success", "PRECISION=tf32"),
        ({}, "aborted", "run_stop says aborted"),
        ({}, None, "run_stop says nothing"),
    ],
)
def test_a_log_of_another_job_or_unfinished_does_not_count(
    tmp_path: Path, change: dict, status: str | None, text: str
) -> None:
    campaign = campaign_plan.read_campaign("dlperf")
    (job, *_) = campaign_plan.plan(campaign, tmp_path, CLUSTER, repeats=1)
    write_log(job.folder, job.exports | change, step_time_s=0.35, status=status)
    (job, *_) = campaign_plan.plan(campaign, tmp_path, CLUSTER, repeats=1)
    assert job.state == "run" and text in job.reason
