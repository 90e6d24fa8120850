"""The step-time model: it recovers what made its data, says how wrong it is on published tables, and refuses."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runlog import schema
from scoring import scale, scale_model
from scoring.published import read_published
from scoring.record import InputError
from scoring.scale_model import NO_LOSS, Loss, Model, Network, Point
from tests import make_log

ROWS = read_published()
NETWORK = Network(bandwidth_bytes_per_s=12.5e9)
BYTES = 100e6


def made(shapes: list[tuple[int, int]], *, compute_s: float, node: float, net: float) -> list[Point]:
    """Points of a cluster that is exactly the hierarchical model."""
    points = []
    for nodes, g in shapes:
        step_s = compute_s + 2 * (g - 1) / g * BYTES / node + 2 * (nodes - 1) / nodes * BYTES / net
        step_s += 2 * (nodes - 1) * NETWORK.latency_s
        points.append(Point(nodes=nodes, devices_per_node=g, step_time_s=step_s))
    return points


def fitted(points: list[Point], topology: str = "hierarchical", loss: Loss = NO_LOSS) -> Model:
    return scale_model.fit(points, all_reduce_bytes=BYTES, network=NETWORK, topology=topology, loss=loss)


def test_it_recovers_compute_and_both_bandwidths() -> None:
    model = fitted(made([(1, 1), (1, 4), (1, 8), (2, 8), (4, 8)], compute_s=0.3, node=20e9, net=5e9))
    assert model.compute_s == pytest.approx(0.3)
    assert 1 / model.node_s_per_byte == pytest.approx(20e9)
    assert 1 / model.net_s_per_byte == pytest.approx(5e9)
    (expected,) = made([(64, 8)], compute_s=0.3, node=20e9, net=5e9)
    assert model.step_time_s(64, 8) == pytest.approx(expected.step_time_s)


def test_without_several_nodes_the_line_rate_stands_for_the_network() -> None:
    model = fitted(made([(1, 1), (1, 8)], compute_s=0.3, node=20e9, net=1.0))
    assert not model.net_fitted
    (expected,) = made([(4, 8)], compute_s=0.3, node=20e9, net=12.5e9)
    assert model.step_time_s(4, 8) == pytest.approx(expected.step_time_s)


def test_a_ring_runs_at_its_slowest_link() -> None:
    points = made([(1, 1), (1, 8)], compute_s=0.3, node=200e9, net=1.0)
    ring = fitted(points, "ring")
    n = 32
    expected = 0.3 + 2 * (n - 1) / n * BYTES / 12.5e9 + 2 * (n - 1) * NETWORK.latency_s
    assert ring.step_time_s(4, 8) == pytest.approx(expected)
    assert ring.step_time_s(1, 8) == pytest.approx(points[1].step_time_s)


def test_latency_grows_with_the_nodes_and_the_messages() -> None:
    points = made([(1, 1), (1, 8)], compute_s=0.3, node=20e9, net=1.0)
    many = Network(bandwidth_bytes_per_s=12.5e9, latency_s=5e-6, messages=20)
    few = fitted(points)
    more = scale_model.fit(points, all_reduce_bytes=BYTES, network=many, topology="hierarchical")
    assert more.step_time_s(64, 8) - few.step_time_s(64, 8) == pytest.approx(2 * 63 * 19 * 5e-6)


@pytest.mark.parametrize("shapes", [[], [(1, 8)], [(1, 8), (1, 8)], [(1, 8), (2, 4)]])
def test_it_refuses_to_extrapolate_from_one_point(shapes: list[tuple[int, int]]) -> None:
    with pytest.raises(InputError, match="refusing to extrapolate from one point"):
        fitted(made(shapes, compute_s=0.3, node=20e9, net=5e9))


def test_an_all_reduce_that_hides_costs_nothing_and_is_never_negative() -> None:
    faster = [
        Point(nodes=1, devices_per_node=1, step_time_s=0.31),
        Point(nodes=1, devices_per_node=8, step_time_s=0.30),
    ]
    model = fitted(faster)
    assert model.node_s_per_byte == 0
    assert 0.30 < model.compute_s < 0.31
    # What the two points disagree with the model is in its error.
    assert model.step_time_s(1, 8) == model.step_time_s(1, 1)


def test_the_interval_grows_with_the_distance_and_holds_the_figure() -> None:
    loss = Loss(mean=0.03, spread=0.03, tables=10)
    model = fitted(made([(1, 1), (1, 8)], compute_s=0.3, node=20e9, net=1.0), loss=loss)
    widths = []
    for nodes in (1, 2, 8, 64, 1024):
        low, high = model.relative_interval_95(nodes)
        assert low <= 1 <= high
        widths.append(high / low)
    assert widths == sorted(widths) and widths[0] == 1 and widths[-1] > 1.5


def test_scaling_time_scales_throughput_inversely() -> None:
    points = made([(1, 1), (1, 8)], compute_s=0.3, node=20e9, net=1.0)
    slow = [Point(nodes=p.nodes, devices_per_node=p.devices_per_node, step_time_s=3 * p.step_time_s) for p in points]
    slower_net = Network(bandwidth_bytes_per_s=12.5e9 / 3, latency_s=3 * NETWORK.latency_s)
    once = scale.predict(fitted(points), nodes=4, devices_per_node=8, batch_per_device=64)
    model = scale_model.fit(slow, all_reduce_bytes=BYTES, network=slower_net, topology="hierarchical")
    thrice = scale.predict(model, nodes=4, devices_per_node=8, batch_per_device=64)
    assert thrice["images_per_s"] == pytest.approx(once["images_per_s"] / 3)


def test_a_slow_input_bounds_the_throughput() -> None:
    model = fitted(made([(1, 1), (1, 8)], compute_s=0.3, node=20e9, net=1.0))
    found = scale.predict(model, nodes=4, devices_per_node=8, batch_per_device=64, input_images_per_s_node=1000)
    assert found["images_per_s"] == pytest.approx(4 * 1000)
    assert found["input_wait_s"] > 0


# ----------------------------------------------------------------------------------------------- back-test


def test_back_test_gives_16_to_64_gpus_within_five_percent() -> None:
    results, refused = scale_model.back_test(ROWS)
    assert {result.devices for result in results} == {16, 32}
    assert {result.report for result in results} == {"dlperf", "perf_rn50", "perf_hrnet", "oneflow"}
    assert len(results) == 16
    assert scale_model.median_error(results) < 0.05
    # FleetX prints no figure for one GPU: its tables have one point at most to fit, and are refused by name.
    assert len(refused) == 10 and all("fleetx" in line and "one point" in line for line in refused)


def test_back_test_intervals_hold_most_published_figures() -> None:
    results, _ = scale_model.back_test(ROWS)
    assert sum(result.covered for result in results) >= 0.9 * len(results)


def test_back_test_never_learns_from_the_report_that_it_predicts() -> None:
    """Doubling one report's multi-node figures leaves its own predictions as they were."""

    def doubled(row):  # type: ignore[no-untyped-def]
        inside = row.table == "oneflow" and row.metric == "throughput" and row.nodes > 1
        return replace(row, value=2 * row.value) if inside else row

    before = {(r.table, r.devices): r.predicted for r in scale_model.back_test(ROWS)[0] if r.report == "oneflow"}
    after = {
        (r.table, r.devices): r.predicted
        for r in scale_model.back_test([doubled(row) for row in ROWS])[0]
        if r.report == "oneflow"
    }
    assert before == after and len(before) == 4


def test_fleetx_is_back_tested_from_8_and_16_gpus() -> None:
    results, _ = scale_model.back_test(ROWS, fitted_on=(8, 16))
    amp = [result for result in results if "fleetx V100 amp" in result.table.replace("Paddle (FleetX) ", "")]
    assert len(amp) == 4 and all(abs(result.error) < 0.05 for result in amp)


def test_a_copy_of_another_report_counts_once() -> None:
    names = [table.name for table in scale_model.published_tables(ROWS)]
    assert len(names) == len(set(names))
    assert sum("OneFlow" in name for name in names) == 2


# ------------------------------------------------------------------------------------------- time to train


# Mean epochs of the reference convergence points, ruleset 4.0.0, as the MLPerf reference page lists them.
@pytest.mark.parametrize(
    "batch, epochs",
    [(1000, 35.0), (1632, 35.0), (3264, 35.15), (4096, 39.88), (32768, 56.0), (65536, 84.5), (67840, 85.85)],
)
def test_reference_epochs_are_mlperfs(batch: int, epochs: float) -> None:
    assert scale_model.reference_epochs(batch) == pytest.approx(epochs, abs=0.006)


def test_reference_epochs_are_not_invented_past_the_last_point() -> None:
    assert scale_model.reference_epochs(67841) is None
    halfway = scale_model.reference_epochs((1632 + 3264) // 2)
    assert halfway is not None and 35.0 < halfway < 35.16


def imagenet(**changes: object) -> scale_model.Training:
    values: dict = {
        "epochs": None,
        "train_samples": 1_281_167,
        "eval_samples": 50_000,
        "epochs_per_eval": 4,
        "eval_images_per_s_device": 3000.0,
        "imagenet": True,
    }
    return scale_model.Training(**(values | changes))


def test_time_to_train_is_steps_and_evaluations() -> None:
    seconds, epochs, _ = scale_model.time_to_train_s(imagenet(epochs=90), devices=8, global_batch=2048, step_time_s=0.1)
    steps = math.ceil(1_281_167 / 2048) * 90
    assert epochs == 90
    assert seconds == pytest.approx(steps * 0.1 + 23 * 6250 / 3000)


def test_time_to_train_says_when_it_is_not_known() -> None:
    seconds, _, why = scale_model.time_to_train_s(imagenet(), devices=8192, global_batch=2_097_152, step_time_s=0.1)
    assert seconds is None and "give --epochs" in why
    other = imagenet(imagenet=False)
    seconds, _, why = scale_model.time_to_train_s(other, devices=8, global_batch=256, step_time_s=0.1)
    assert seconds is None and "give --epochs" in why


# ------------------------------------------------------------------------------------------------- command


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scoring", "scale", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def write_log(path: Path, *, devices: int, nodes: int, step_time_s: float, batch: int = 64) -> Path:
    """A throughput log of this project, as long as the reader needs; the step time is the same in every window."""
    log = make_log.Log(tick_ms=0)
    log.section(schema.LOG, schema.Format())
    log.event(schema.SUBMISSION_BENCHMARK, "resnet")
    facts = {"mode": "throughput", "data": "synthetic"}
    summary = make_log.run_summary(devices=devices, nodes=nodes, batch_per_device=batch, **facts)
    log.event(schema.RUN_SUMMARY, summary)
    log.mark(schema.RUN_START)
    for number in range(1, 9):
        log.now_ms += round(10_000 * step_time_s)
        window = make_log.window(steps=10, images=devices * batch * 10, time_s=10 * step_time_s, data_wait_s=0.0)
        log.window(window, step=10 * number, epoch=1, phase="measured")
    log.mark(schema.RUN_STOP, schema.Ended(status="success"))
    path.write_text(log.text.getvalue())
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return [
        write_log(tmp_path / "one.txt", devices=1, nodes=1, step_time_s=0.20),
        write_log(tmp_path / "eight.txt", devices=8, nodes=1, step_time_s=0.21),
    ]


def test_the_command_plans_from_two_logs(logs: list[Path]) -> None:
    done = command("--measured", *logs, "--nodes", "1,2,1024", "--epochs", "90", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    one, two, many = found["predictions"]
    assert one["images_per_s"] == pytest.approx(8 * 64 / 0.21)
    assert one["measured_images_per_s"] == pytest.approx(one["images_per_s"])
    assert one["devices"] == 8 and many["devices"] == 8192
    low, high = two["interval_95"]
    assert low < two["images_per_s"] < 2 * one["images_per_s"] and high / low > 1.05
    assert many["time_to_train_min"] < two["time_to_train_min"] < one["time_to_train_min"]
    assert two["ring_images_per_s"] != two["hierarchical_images_per_s"]
    assert any("100 Gbit/s" in text for text in found["assumptions"])


def test_the_bytes_that_the_logs_program_sums_are_used(logs: list[Path]) -> None:
    """The header of the run on 8 devices says them; that of one device sums none, and the option overrides."""
    for log, mib in zip(logs, (0, 13.5), strict=True):
        log.write_text(
            f"# {json.dumps({'program': {'all_reduces': 3 if mib else 0, 'all_reduce_mib': mib}})}\n" + log.read_text()
        )
    model = json.loads(command("--measured", *logs, "--nodes", "2", "--json").stdout)["model"]
    assert (model["all_reduce_mib"], model["messages"]) == (13.5, 3)
    asked = command("--measured", *logs, "--nodes", "2", "--all-reduce-mib", "20", "--json")
    assert json.loads(asked.stdout)["model"]["all_reduce_mib"] == 20


def test_a_given_network_is_used_and_no_longer_assumed(logs: list[Path]) -> None:
    fast, slow = (
        json.loads(command("--measured", *logs, "--nodes", "8", "--network-gbit-s", rate, "--json").stdout)
        for rate in (200, 10)
    )
    assert fast["predictions"][0]["images_per_s"] > 1.2 * slow["predictions"][0]["images_per_s"]
    assert not any("Gbit/s" in text for text in fast["assumptions"])


def test_the_command_is_readable(logs: list[Path]) -> None:
    done = command("--measured", *logs)
    assert done.returncode == 0
    assert "nodes  devices" in done.stdout and "1024" in done.stdout and "assumed:" in done.stdout
    assert "past the largest reference convergence point" in done.stdout


def test_published_logs_can_be_planned_from(published_logs: Path) -> None:
    shapes = [published_logs / f"paddleclas_v100_gpu{count}_fp32_bs256.log" for count in (8, 32)]
    done = command("--measured", *shapes, "--nodes", "4,8", "--json")
    assert done.returncode == 0, done.stderr
    four, eight = json.loads(done.stdout)["predictions"]
    assert four["images_per_s"] == pytest.approx(four["measured_images_per_s"], rel=0.001)
    assert 1.9 < eight["images_per_s"] / four["images_per_s"] < 2.0


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--measured", "{one}"], "refusing to extrapolate from one point"),
        (["--measured", "{one}", "{one}", "--nodes", "2"], "the same log"),
        ([], "give --measured"),
        (["--measured", "{one}", "{eight}", "--nodes", "2,x"], "no node count"),
        (["--measured", "{one}", "{other}"], "different batch_per_device"),
        (["--measured", "{one}", "{absent}"], "absent"),
    ],
)
def test_wrong_use_is_told_in_one_line(logs: list[Path], tmp_path: Path, arguments: list[str], text: str) -> None:
    other = write_log(tmp_path / "other.txt", devices=8, nodes=1, step_time_s=0.21, batch=32)
    names = {"one": logs[0], "eight": logs[1], "other": other, "absent": tmp_path / "absent.txt"}
    done = command(*(argument.format(**names) for argument in arguments))
    assert done.returncode == 2 and text in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_the_back_test_is_printed_with_each_error() -> None:
    done = command("--back-test", "--json")
    first, second = json.loads(done.stdout)
    assert done.returncode == 0 and first["fitted_on"] == [1, 8] and second["fitted_on"] == [8, 16]
    assert first["median_error"] < 0.05 and len(first["results"]) == 16
    printed = command("--back-test").stdout
    assert printed.count("published ") >= 24 and "median error 3.94% over 16 figures of 13 tables" in printed


def test_the_documented_errors_are_those_of_the_back_test(repository: Path) -> None:
    text = (repository / "docs" / "scale-model.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (hierarchical|ring)(.*?) \| ([\d.]+) % \| ([\d.]+) % \| (\d+ of \d+|-) \|$", text, re.MULTILINE
    )
    assert len(rows) == 4
    for topology, kind, median, largest, held in rows:
        results, _ = scale_model.back_test(ROWS, topology=topology, loss="with loss" in kind)
        assert f"{100 * scale_model.median_error(results):.2f}" == median
        assert f"{100 * max(abs(result.error) for result in results):.1f}" == largest
        covered = f"{sum(result.covered for result in results)} of {len(results)}"
        assert held == (covered if "with loss" in kind else "-")
