"""Campaigns: each report's grid, what is skipped and resumed, and the table at the end."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from program import strategy
from scoring.figure import protocols
from scoring.published import campaign as command_line
from scoring.published import campaign_plan
from scoring.published.campaign import published_figures
from scoring.published.campaign_plan import Machine, Run
from scoring.published.table import select
from scoring.record import InputError
from tests.scoring import sample_run

NAMES = ["dlperf", "perf_rn50", "fleetx", "perf_hrnet", "oneflow"]
CLUSTER = Machine(
    gpus=["V100"] * 8, compute_capability=7.0, hosts=["a", "b", "c", "d"], in_container=False, system="DGX1"
)
NOTHING = Machine(gpus=[], compute_capability=None, hosts=[], in_container=False, system=None)


# ---------------------------------------------------------------------------------------------- the grids


@pytest.mark.parametrize("name, cells", list(zip(NAMES, [6, 10, 60, 6, 12], strict=True)))
def test_a_campaign_has_a_cell_for_every_published_throughput_and_measures_as_its_protocol(
    name: str, cells: int
) -> None:
    campaign = campaign_plan.read_campaign(name)
    assert len(campaign.cells) == cells
    found = [published_figures(campaign, cell, "throughput").values() for cell in campaign.cells]
    report = [row.value for row in select(campaign.published, metric="throughput")]
    assert sorted(figure for figures in found for figure in figures if figure) == sorted(report)
    protocol = protocols.find(campaign.protocol)
    steps = {key: int(value) for key, value in campaign.environment.items() if key.endswith("_STEPS")}
    dropped = protocol.skip * (steps["PRINT_STEPS"] if protocol.skip_unit == "window" else 1)
    assert (campaign.repeats, steps["WARMUP_STEPS"]) == (protocol.runs, dropped)
    assert steps["MEASURED_STEPS"] % steps["PRINT_STEPS"] == 0
    assert protocol.take_steps in (None, steps["MEASURED_STEPS"]) and campaign.environment["DATA"] == "real"
    small = campaign_plan.read_campaign(name, shrink=True).cells
    assert [cell.asked for cell in small] == [cell.asked for cell in campaign.cells]
    for cell in small:
        assert cell.run == Run(1, min(cell.asked.devices, 2), 2, "fp32", cell.asked.strategy)


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


# ------------------------------------------------------------------------------------------------ the plan


NODES = "nodes needed, HOSTS or HOSTFILE names"


@pytest.mark.parametrize(
    "name, here, run, reason",
    [
        ("perf_rn50", CLUSTER, "4n8g_b256_amp_o2", ""),
        ("perf_rn50", CLUSTER, "1n8g_b256_tf32", "tf32 needs compute capability 8.0, V100 has 7.0"),
        ("perf_rn50", replace(CLUSTER, compute_capability=None), "1n8g_b256_tf32", ""),
        ("fleetx", CLUSTER, "8n8g_b32_fp32", f"8 {NODES} 4"),
        ("dlperf", replace(CLUSTER, gpus=["V100"] * 4, hosts=[]), "1n4g_b128_fp32", ""),
        ("dlperf", replace(CLUSTER, gpus=["V100"] * 4, hosts=[]), "1n8g_b128_fp32", "8 GPU(s) a node needed, 4 here"),
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
    assert job.skipped.endswith(reason) and bool(job.skipped) == bool(reason) and job.missing == {1: ""}


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
    assert (here.gpus, here.compute_capability) == (["NVIDIA A100-SXM4-40GB"] * 2, capability)
    assert here.hosts == ["a", "b", "c"]


def jobs_of(here: Machine, results: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, list[str]]:
    """What `plan fleetx --jobs` says of the first trial of each run: its command and its exports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "machine", lambda: here)
        patch.setattr(campaign_plan, "REPOSITORY", results)
        assert command_line.main(["plan", "fleetx", "--results", str(results), "--jobs", *options]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert all(Path(folder).parts[-2:] == (name, f"trial_{trial}") for name, trial, folder, _, _ in lines)
    return {name: [command, *exports.split()] for name, trial, _, command, exports in lines if trial == "1"}


def test_a_job_exports_what_the_report_says_and_is_started_where_its_nodes_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config_2xDGX1.sh").touch()
    here = jobs_of(CLUSTER, tmp_path, capsys)
    said = (
        "WORKLOAD=rn50 MODE=throughput NEXP=1 DGXNNODES=1 DGXNGPU=8 BATCHSIZE=64 PRECISION=amp_o1 DEVICE=gpu DATA=real"
    )
    steps = "RECIPE=paddleclas_piecewise PRINT_STEPS=10 WARMUP_STEPS=20 MEASURED_STEPS=100"
    auto = here["1n8g_b64_amp_o1_auto"]
    assert auto == ["./run_and_time.sh", *said.split(), *steps.split(), "DGXSYSTEM=DGX1", "STRATEGY=auto"]
    two, four = here["2n8g_b32_fp32"], here["4n8g_b32_fp32"]
    assert two[0] == "launch/mpirun.sh --hosts a,b --no-container" and two[-1] == "DGXSYSTEM=2xDGX1"
    assert four[0] == "launch/mpirun.sh --hosts a,b,c,d --no-container" and four[-1] == "DGXSYSTEM=DGX1"
    boxed = jobs_of(replace(CLUSTER, in_container=True, system="4xDGX1"), tmp_path, capsys)
    one = boxed["1n8g_b32_fp32"]
    assert (one[0], one[-1]) == ("launch/container_node.sh", "DGXSYSTEM=DGX1")
    assert boxed["2n8g_b32_fp32"][0] == "launch/mpirun.sh --hosts a,b"
    small = jobs_of(replace(NOTHING, system="DGX1"), tmp_path, capsys, "--shrink", "--runner", "mine")["1n2g_b2_fp32"]
    assert small[0] == "mine" and {"DGXSYSTEM=CPU", "DEVICE=cpu"} <= set(small)


def test_a_run_on_gpus_needs_the_name_of_its_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the CPU's config would be taken."""
    monkeypatch.setattr(command_line, "machine", lambda: replace(CLUSTER, system=None))
    assert command_line.main(["plan", "dlperf", "--results", str(tmp_path), "--jobs"]) == 2
    assert "DGXSYSTEM is not set" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------- logs and figures


def write_log(folder: Path, exports: dict[str, str], *, step_time_s: float, status: str | None = "success") -> Path:
    """A log as a job of `exports` would write it, every step of the same time, and thrice that in the warm-up."""
    said = {name: int(value) if value.isdigit() else value for name, value in exports.items()}
    nodes, warm_up = said["DGXNNODES"], said["WARMUP_STEPS"]
    times = [3 * step_time_s] * warm_up + [step_time_s] * said["MEASURED_STEPS"]
    size = {"devices": nodes * said["DGXNGPU"], "batch": said["BATCHSIZE"], "every": said["PRINT_STEPS"]}
    of_log = {"mode": "throughput", "warm_up": warm_up, "nodes": nodes, "precision": said["PRECISION"]}
    text = sample_run.mllog(sample_run.run_of(times, share=0, **size), status=status or "", **of_log)
    config = {name: {"value": value, "origin": "environment"} for name, value in said.items()}
    text = f"# {json.dumps({'config': config})}\n{text}".replace('"gpu_memory_mib": null', '"gpu_memory_mib": 12000')
    if status is None:
        text = text[: text.rindex("\n", 0, text.index('"run_stop"')) + 1]
    path = folder / "X" / "rn50" / "result_0.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def measured(name: str, results: Path, times_s: dict[str, list[float]]) -> list[dict]:
    """The table of a campaign whose runs took these step times, one for each trial."""
    campaign = campaign_plan.read_campaign(name)
    for job in campaign_plan.plan(campaign, results, CLUSTER, repeats=campaign.repeats):
        for trial, step_time_s in enumerate(times_s.get(job.run.name, []), 1):
            write_log(job.folder / f"trial_{trial}", job.exports, step_time_s=step_time_s)
    jobs = campaign_plan.plan(campaign, results, CLUSTER, repeats=campaign.repeats)
    return command_line.table(campaign, command_line.figures(campaign, jobs))


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
    text = command_line.markdown(campaign, lines, system="8 x Tesla V100")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "ratio" not in line and "--" not in line]
    assert len(rows) == 12 and len({len(line) for line in text.split("## ")[1].splitlines() if "|" in line}) == 1
    cells = [cell.strip() for cell in rows[6].split("|")]
    assert cells[1:10] == ["1", "1", "160", "400", "400 to 400", "1", "382.324", "1.04623", "1.04623 to 1.04623"]
    assert "- [1]: not run yet" in text and [cell.strip() for cell in rows[0].split("|")][4:8] == [
        "not measured",
        "-",
        "0",
        "383.760",
    ]


def test_a_cell_says_why_it_has_no_figure_or_not_the_protocols(tmp_path: Path) -> None:
    lines = measured("fleetx", tmp_path, {"2n8g_b64_fp32": [0.2, 0.2]})
    assert len(lines) == 60
    by_shape = {(line["table"], line["nodes"], line["batch_per_device"]): line for line in lines}
    two, eight = by_shape["FP32", 2, 64], by_shape["FP32", 8, 32]
    assert two["runs"] == 2 and any("asks for 7 runs, given 2" in note for note in two["notes"])
    assert (eight["ours"], eight["notes"]) == (None, [f"skipped: 8 {NODES} 4"])


def test_a_dry_run_has_a_line_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "machine", lambda: CLUSTER)
    campaign = campaign_plan.read_campaign("fleetx")
    run = Run(1, 8, 32, "fp32")
    exports = campaign_plan.environment(campaign, run, "DGX1")
    write_log(tmp_path / "fleetx" / run.name / "trial_1", exports, step_time_s=0.1)
    assert command_line.main(["plan", "fleetx", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 60 + 60 + 1  # each run with its command or why it is skipped; the sum
    (at,) = (at for at, line in enumerate(lines) if f" {run.name}:" in line)
    seconds = 60 + 120 * 32 * 8 / 2097.2  # start-up, and steps at the published rate of the same size
    by = "2097.20 images/s of batch 32 x 8 V100 (FleetX ResNet50 benchmark)"
    assert lines[at] == f"run  {run.name}: 1 done, 6 missing, about {seconds:.0f} s each by {by}"
    assert "DGXNGPU=8 BATCHSIZE=32" in lines[at + 1] and lines[at + 1].endswith("/trial_N ./run_and_time.sh")
    assert "skip 8n8g_b32_fp32: 0 done, 7 missing, " in lines[8] and lines[9].strip() == f"8 {NODES} 4"
    assert lines[-1].startswith("fleetx: 420 jobs, 1 done, ")
    assert command_line.main(["plan", "fleetx", "--results", str(tmp_path), "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"done {run.name}: 1 done, 0 missing") for line in lines)
    assert lines[-1].startswith("fleetx: 60 jobs, 1 done, ")


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
    folder = job.folder / "trial_1"
    log = write_log(folder, job.exports | change, step_time_s=0.35, status=status)
    (job, *_) = campaign_plan.plan(campaign, tmp_path, CLUSTER, repeats=1)
    assert not job.done and text in job.missing[1]
    log.with_name("result_1.txt").write_text(log.read_text())
    assert campaign_plan.result(folder, job.exports) == "2 log(s), a trial has one"
    log.with_name("result_1.txt").unlink()
    log.rename(log.with_name("out.txt"))
    assert campaign_plan.result(folder, job.exports) == "no log(s), a trial has one"
