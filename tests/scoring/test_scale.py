"""The scaling model on published tables, and predictions from logs."""

import functools
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scoring.predict.loss import ScalingLoss, back_test, fit_scaling_loss, median_errors, published_tables
from scoring.predict.measured import Point
from scoring.predict.scale import predict
from scoring.predict.training import Training
from scoring.published.table import Figure, read_published, systems_by_devices
from tests import make_log
from tests.jobs import REPOSITORY
from tests.scoring import samples
from tests.scoring.samples import scoring
from tests.scoring.test_report_content import submission

ROWS = read_published()
TABLES = published_tables(ROWS)


def test_the_interval_grows_with_the_distance_and_holds_the_figure() -> None:
    loss = ScalingLoss(loss=0.08, spread=0.03, tables=10)
    widths = []
    for nodes in (1, 2, 8, 64, 1024):
        low, high = loss.relative_interval_95(1, nodes)
        assert low <= 1 <= high
        widths.append(high / low)
    assert widths == sorted(widths) and widths[0] == 1 and widths[-1] > 1.5
    assert loss.relative_interval_95(2, 1) == loss.relative_interval_95(1, 2) == loss.relative_interval_95(4, 8)
    # t of 9 degrees of freedom is 2.262
    assert math.log(widths[1]) / 2 == pytest.approx(2.262 * 0.03 * math.sqrt(1.1), rel=1e-3)
    assert loss.relative_interval_95(4, 4, 0.01)[1] == pytest.approx(math.exp(0.01), rel=1e-12)
    half_width_of_both = math.hypot(0.01, math.log(widths[1]) / 2)
    assert loss.relative_interval_95(4, 8, 0.01)[1] == pytest.approx(math.exp(half_width_of_both), rel=1e-12)
    learnt = fit_scaling_loss(TABLES)  # as docs/scale-model.md has it
    assert (round(learnt.loss, 3), round(learnt.spread, 4), learnt.tables) == (0.081, 0.0343, 23)


# ----------------------------------------------------------------------------------------------- back-test


def test_a_table_of_an_unsaid_batch_names_none() -> None:
    figures = [row for row in ROWS if row.table == "oneflow" and row.nodes and row.metric == "throughput"]
    unsaid = published_tables([replace(row, batch_per_device=None) for row in figures])
    assert unsaid and not any("None" in table.name for table in unsaid)


def test_every_published_table_of_several_nodes_is_back_tested_once() -> None:
    results = back_test(TABLES)
    names, reports = [table.name for table in TABLES], Counter(table.report for table in TABLES)
    assert {result.table for result in results} == set(names) and len(names) == len(set(names))
    assert reports == {"dlperf": 1, "perf_rn50": 6, "fleetx": 10, "perf_hrnet": 4, "oneflow": 2}
    assert {result.nodes for result in results} == {2, 4, 8}
    assert sum("OneFlow" in name for name in names) == 2, "a copy of another report's figures counts once"


def test_the_model_beats_its_baselines_and_its_intervals_hold_on_reports_that_it_did_not_see() -> None:
    results = back_test(TABLES)
    errors = median_errors(results)
    assert errors["loss over (M-1)/M"] < errors["0.95 x linear"] < errors["linear"]
    held = sum(result.covered for result in results)
    assert held / len(results) >= 0.9
    assert all(result.high / result.low < 1.6 for result in results), "so wide that nothing could leave it"
    found = json.loads(command("--back-test", "--json").stdout)
    assert (found["median_errors"], found["covered"], len(found["results"])) == (errors, held, 31)
    printed = command("--back-test").stdout
    assert printed.count("published ") >= 31 and f"{held} within their 95 % interval" in printed
    text = (REPOSITORY / "docs" / "scale-model.md").read_text(encoding="utf-8").partition("`benchmarks/")[0]
    documented = dict(re.findall(r"^\| `?(.*?)`? \| ([\d.]+) % \| [\d.]+ % \|", text, re.MULTILINE))
    assert documented == {name: f"{100 * error:.2f}" for name, error in errors.items()}
    assert f"holds {held} of {len(results)}" in text


def test_back_test_never_learns_from_the_report_that_it_predicts() -> None:
    """Doubling one report's multi-node figures leaves its own predictions as they were."""
    doubled = [
        replace(table, images_per_s={n: r * (1 + (n > 1)) for n, r in table.images_per_s.items()})
        if table.report == "oneflow"
        else table
        for table in TABLES
    ]
    before, after = (
        [result.predicted for result in back_test(tables) if result.report == "oneflow"] for tables in (TABLES, doubled)
    )
    assert before == after and len(before) == 4


# ------------------------------------------------------------------------------------------------- command


command = functools.partial(scoring, "scale")


def write_log(path: Path, *, devices: int, nodes: int, step_time_s: float, batch: int = 64) -> Path:
    """A throughput log of this project, as long as the reader needs; the step time is the same in every window."""
    run = samples.run_of([step_time_s] * 100, share=0, devices=devices, batch=batch)
    return samples.write(path.parent, path.name, samples.mllog(run, mode="throughput", nodes=nodes, data="synthetic"))


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return [
        write_log(tmp_path / "one.txt", devices=1, nodes=1, step_time_s=0.20),
        write_log(tmp_path / "eight.txt", devices=8, nodes=1, step_time_s=0.21),
    ]


def test_the_command_plans_from_the_logs(logs: list[Path]) -> None:
    done = command("--measured", *logs, "--nodes", "1,2,1024", "--epochs", "90", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    one, two, many = found["predictions"]
    assert one["images_per_s"] == pytest.approx(8 * 64 / 0.21)
    assert one["measured_images_per_s"] == pytest.approx(one["images_per_s"])
    assert one["devices"] == 8 and many["devices"] == 8192
    low, high = two["interval_95"]
    assert low < two["images_per_s"] < 2 * one["images_per_s"] and high / low > 1.05
    assert one["interval_95"] is None and two["time_to_train_95_min"] is None, "nothing known, and none that held"
    assert many["time_to_train_min"] < two["time_to_train_min"]
    evaluations_s = 23 * math.ceil(50_000 / 8) / (3 * one["images_per_s"] / 8)
    training_s = math.ceil(1_281_167 / 512) * 90 * 0.21
    assert one["epochs"] == 90 and one["time_to_train_min"] * 60 == pytest.approx(training_s + evaluations_s)
    bound = command("--measured", *logs, "--nodes", "2", "--epochs", "90", "--input-images-per-s", "1000", "--json")
    [slow] = json.loads(bound.stdout)["predictions"]
    assert slow["images_per_s"] == pytest.approx(2000) and slow["input_wait_s"] > 0
    assert slow["interval_95"] == [2000, 2000]  # of 4,674 images/s without the limit, +-7 %
    assert any("published tables" in text for text in found["assumptions"])
    printed = command("--measured", *logs).stdout
    for text in ("nodes  devices", "1024", "assumed:", "past the largest reference convergence point"):
        assert text in printed


def test_each_prediction_starts_at_the_next_smaller_measured_count(logs: list[Path], tmp_path: Path) -> None:
    four = write_log(tmp_path / "four.txt", devices=32, nodes=4, step_time_s=0.30)
    found = json.loads(command("--measured", logs[1], four, "--nodes", "1,2,4,8", "--json").stdout)
    one, two, four_nodes, eight = (row["images_per_s"] for row in found["predictions"])
    assert one == pytest.approx(512 / 0.21) and four_nodes == pytest.approx(2048 / 0.30)
    loss = found["model"]["loss"]
    assert two == pytest.approx(one * 2 * math.exp(-loss / 2))
    assert eight == pytest.approx(four_nodes * 2 * math.exp(-loss / 8))


def test_the_efficiency_is_against_the_fewest_nodes_in_any_order(logs: list[Path]) -> None:
    """It was against the first of --nodes: 106.5 % on one node of 8,1."""

    def efficiency_by_nodes(nodes: str) -> dict[str, str]:
        lines = scoring("scale", "--measured", *logs, "--nodes", nodes).stdout.splitlines()
        rows = [line.split() for line in lines if "%" in line and line[:6].strip().isdigit()]
        return {row[0]: next(cell for cell in row if cell.endswith("%")) for row in rows}

    ascending = efficiency_by_nodes("1,8")
    assert efficiency_by_nodes("8,1") == ascending and ascending["1"] == "100.0%"


def test_a_single_run_is_said_not_to_show_how_far_runs_lie_apart(tmp_path: Path) -> None:
    """Also where its windows show how well its own mean is known."""
    logs = []
    for number, level_s in enumerate((0.2, 0.201)):
        times = [level_s * (1 + 0.01 * math.sin(at // 10 * at)) for at in range(400)]
        text = samples.mllog(samples.run_of(times, share=0, devices=8), mode="throughput", data="synthetic")
        logs.append(samples.write(tmp_path, f"{number}.txt", text))
    one = json.loads(command("--measured", logs[0], "--json").stdout)
    two = json.loads(command("--measured", *logs, "--json").stdout)
    assert one["measured"][0]["half_width_95"] > 0 and two["measured"][0]["half_width_95"] > 0
    assert one["warnings"] == ["1 x 8: the spread of runs is unknown, and not in the prediction's interval"]
    assert two["warnings"] == []
    for given, predicted in ((logs[:1], one), (logs, two)):  # on the measured nodes the interval is that of the score
        scored = json.loads(scoring("score", "--protocol", "window", *given, "--json").stdout)
        assert predicted["predictions"][0]["nodes"] == 1
        assert predicted["predictions"][0]["interval_95"] == pytest.approx(scored["interval_95"], rel=1e-12)


def test_no_end_of_an_interval_lies_above_the_limit_of_the_input() -> None:
    """A rate of 1,000 +-10 % is 909 to 1,050 where the input delivers at most 1,050."""
    loss = ScalingLoss(loss=0.08, spread=0.03, tables=10)
    base = Point(nodes=1, devices_per_node=8, images_per_s=1000, half_width_95=math.log(1.1))
    training = Training(
        epochs=90, train_samples=1000, eval_samples=8, eval_images_per_s_device=1, is_resnet_on_imagenet=False
    )
    rows = {}
    for limit in (math.inf, 1050, 950):
        rows[limit] = predict(base, loss, training, nodes=1, batch_per_device=32, input_limit=limit)
    assert rows[math.inf]["interval_95"] == pytest.approx([1000 / 1.1, 1100])
    assert rows[1050]["interval_95"] == pytest.approx([1000 / 1.1, 1050])
    assert rows[950]["interval_95"] == pytest.approx([1000 / 1.1, 950])
    assert rows[950]["time_to_train_95_min"][0] == rows[950]["time_to_train_min"]  # at the limit it is fastest


def test_a_batch_is_only_given_to_logs_that_do_not_say_it(tmp_path: Path) -> None:
    said = write_log(tmp_path / "said.txt", devices=8, nodes=1, step_time_s=0.2, batch=64)
    text = samples.WRITERS["mmseg"](samples.run_of([0.2] * 100, devices=8))
    unsaid = samples.write(tmp_path, "unsaid.log", text)
    for log, batch in ((said, 64), (unsaid, 32)):
        found = json.loads(command("--measured", log, "--batch", 32, "--nodes", "1", "--json").stdout)
        assert found["predictions"][0]["global_batch"] == 8 * batch
        other = [text for text in found["warnings"] if "--batch" in text]
        assert other == ([] if log is unsaid else ["--batch 32 is not taken: the logs say 64 images a device"])


def test_devices_are_those_of_the_log_of_its_description_or_of_the_option(tmp_path: Path) -> None:
    [folder] = submission(tmp_path, {"a100_n2": 16}, described=True)
    described = folder / "result_0.txt"
    said = write_log(tmp_path / "said.txt", devices=8, nodes=1, step_time_s=0.2)
    text = samples.WRITERS["paddleclas_dygraph"](samples.run_of([0.2] * 100, devices=8))
    unsaid = samples.write(tmp_path, "unsaid.log", "\n".join(line for line in text.splitlines() if "INFO:" in line))
    for log, shape, taken in ((described, (2, 8), False), (said, (1, 8), False), (unsaid, (4, 8), True)):
        done = command("--measured", log, "--devices", 32, "--nodes", "2", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        [measured] = found["measured"]
        assert (measured["nodes"], measured["devices_per_node"]) == shape
        assert (
            "--devices 32 is not taken: the logs or their systems' descriptions say it" in found["warnings"]
        ) is not taken
    assert (
        "unsaid.log: the log does not say how many devices ran; give --devices" in command("--measured", unsaid).stderr
    )


def test_options_that_contradict_the_batch_of_all_devices_are_told(tmp_path: Path) -> None:
    """The log says 3,264 images a step alone: 4 devices of 77 had another step time without a word."""
    log = tmp_path / "result_0.txt"
    of_ours = re.compile("^#|run_summary|step_window")  # which a log of somebody else does not have
    log.write_text("\n".join(line for line in make_log.closed_run().splitlines() if not of_ours.search(line)))
    contradicts = "3264 over all devices; the options: 4 devices x 77"
    for batch, times in (("77", 1), ("816", 0)):
        found = json.loads(command("--measured", log, "--devices", 4, "--batch", batch, "--json").stdout)
        assert len([text for text in found["warnings"] if contradicts in text and str(log) in text]) == times
    refused = command("--measured", log, "--devices", 5).stderr
    assert f"{log}: 5 devices cannot share a batch of 3264 evenly; check --devices" in refused


def test_of_two_figures_of_one_system_the_first_counts() -> None:
    [row, *_] = [row for row in ROWS if row.metric == "throughput" and row.devices]
    second = replace(row, value=Figure("1"))
    assert systems_by_devices([row, second]) == [[row]] and systems_by_devices([second, row]) == [[second]]


def test_only_resnet_has_resnets_epochs(published_logs: Path, tmp_path: Path) -> None:
    other = write_log(tmp_path / "other.txt", devices=8, nodes=1, step_time_s=0.2)
    other.write_text(other.read_text().replace("resnet50_v1.5", "other").replace('"resnet"', '"other"'))
    for log in (published_logs / "mmseg_v100_gpu8_fp32_bs8.log", other):
        found = json.loads(command("--measured", log, "--nodes", "2", "--json").stdout)
        [row] = found["predictions"]
        assert row["time_to_train_min"] is None and "give --epochs" in row["time_to_train_note"]
        assert not any("reference convergence points" in text for text in found["assumptions"])
        done = command("--measured", log, "--nodes", "2", "--epochs", "10", "--json")
        [given] = json.loads(done.stdout)["predictions"]
        steps = math.ceil((1_281_167 if log is other else 2_975) / given["global_batch"])
        assert steps * 10 * given["step_time_s"] < 60 * given["time_to_train_min"] < steps * 12 * given["step_time_s"]


def test_the_first_log_that_names_a_model_tells_the_epochs(logs: list[Path]) -> None:
    options = ("--nodes", "1", "--json")
    named = json.loads(command("--measured", *logs, *options).stdout)
    logs[0].write_text(logs[0].read_text().replace(', "model": "resnet50_v1.5"', ""))
    assert "resnet" not in logs[0].read_text()
    found = json.loads(command("--measured", *logs, *options).stdout)
    assert found["predictions"][0]["epochs"] is not None
    assert found == named


NO_SIZES = ('"train_samples": "many", "eval_samples": -1', '"train_samples": 0, "eval_samples": 0')


@pytest.mark.parametrize("dataset", ["[]", "null", *(f'{{"synthetic": false, {sizes}}}' for sizes in NO_SIZES)])
def test_a_data_set_that_says_no_numbers_says_nothing(logs: list[Path], dataset: str) -> None:
    options = ("--measured", logs[0], "--nodes", "2", "--epochs", "10", "--json")
    undescribed = json.loads(command(*options).stdout)
    logs[0].write_text(f'# {{"dataset": {dataset}}}\n{logs[0].read_text()}')
    assert json.loads(command(*options).stdout)["predictions"] == undescribed["predictions"]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--measured", "{one}", "--protocol", "mlperf"], "measures no throughput"),
        (["--measured", "{one}", "{one}", "--nodes", "2"], "the same run"),
        ([], "give --measured"),
        (["--back-test", "--measured", "{one}"], "--back-test predicts published figures alone: leave out --measured"),
        (["--back-test", "--nodes", "2"], "--back-test predicts published figures alone: leave out --nodes, or"),
        (["--back-test", "--json", "--devices-per-node", "8"], "leave out --devices-per-node, or --back-test"),
        (["--measured", "{one}", "{eight}", "--nodes", "2,x"], "--nodes: 'x': must be a whole number above 0; see "),
        (["--measured", "{one}", "{other}"], "batch of one device differs"),
        (["--measured", "{one}", "{absent}"], "absent"),
        (["--measured", "{one}", "--devices-per-node", "8"], "no node is predicted from a part of it"),
        (["--measured", "{one}", "--epochs", "1e308"], "--epochs: '1e308': must be a number above 0 and below 1e15"),
    ],
)
def test_wrong_use_is_told_in_one_line(logs: list[Path], tmp_path: Path, arguments: list[str], text: str) -> None:
    other = write_log(tmp_path / "other.txt", devices=8, nodes=1, step_time_s=0.21, batch=32)
    names = {"one": logs[0], "eight": logs[1], "other": other, "absent": tmp_path / "absent.txt"}
    done = command(*(argument.format(**names) for argument in arguments))
    assert done.returncode == 2 and text in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_the_lost_throughput_is_what_the_assumption_leaves(tmp_path: Path) -> None:
    log = samples.write(tmp_path, "log.txt", samples.mllog(samples.run_of([0.5] * 200, devices=8)))
    text = scoring("scale", "--measured", log, "--nodes", "1,64").stdout
    assert re.search(r"^ *1 +8 .* 500\.\d\d ", text, re.MULTILINE), "the step of one node takes 500 ms"
    [lost] = re.findall(r"throughput lost between many nodes ([\d.]+)%", text)
    [left] = re.findall(r"many nodes do ([\d.]+)% of", text)
    assert float(lost) + float(left) == pytest.approx(100)
