"""What single cells, tiles and captions of a report say, and what they leave out."""

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scoring.figure import protocols
from scoring.importers import read_record
from scoring.published.table import read_published, select
from scoring.record import Record, Window
from scoring.report import course, overlay, plots, speed
from scoring.report.blocks import Figure, Fold, Table
from scoring.report.build import GivenLog, build
from scoring.report.content import Curve, Point
from scoring.report.scaling import published_curves
from scoring.report.text import time_unit
from tests import make_log
from tests.scoring.pages import page_of, report, values_of, write_log
from tests.scoring.samples import folder_of

LEAST = {"data_wait_least_s": 0.0, "data_wait_median_s": 0.0, "compute_least_s": 1.0, "compute_median_s": 1.0}


def with_rank_times(text: str) -> str:
    """The log with times of ranks in each window: rank 3 computes 10 % longer in most of them, 40 % in one.

    In every third window it is rank 1 that computes 90 % longer. Rank 2 waits 5 % longer in all of them.
    """
    lines: list[str] = []
    windows = 0
    for line in text.splitlines():
        if '"key": "step_window"' in line:
            event: dict[str, Any] = json.loads(line.removeprefix(":::MLLOG "))
            windows += 1
            rank, share = (1, 0.9) if windows % 3 == 0 else (3, 0.4 if windows == 11 else 0.1)
            seconds = event["value"]["time_s"]
            most = {"data_wait_most_s": 0.05 * seconds, "compute_most_s": 1.0 + share * seconds}
            who = {"data_wait_rank": 2, "data_wait_host": "node02", "compute_rank": rank, "compute_host": "node07"}
            event |= {"key": "rank_times", "value": LEAST | most | who, "metadata": {"step": event["metadata"]["step"]}}
            lines.append(f":::MLLOG {json.dumps(event)}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def test_the_slowest_rank_is_the_one_that_is_it_most_often(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.txt")
    log.write_text(with_rank_times(log.read_text()))
    assert "rank 3 on node07 computes 10.0% longer" in report(log).stdout


@pytest.mark.parametrize("windows", [12, 30])
def test_the_figure_stands_with_its_interval_or_with_why_there_is_none(tmp_path: Path, windows: int) -> None:
    log = write_log(tmp_path / "log.txt", windows=windows)
    score = values_of(log)["groups"][0]["score"]
    if score["interval_95"] is None:
        expected = f"95 % interval {score['interval_method']}."
    else:
        low, high = score["interval_95"]
        expected = f"95 % interval {low:.2f} to {high:.2f} ({score['interval_method']})."
    assert expected in report(log).stdout


def test_an_all_reduce_takes_no_more_than_the_wait_for_data_leaves(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{n}.txt", devices=n, step_s=step_s) for n, step_s in ((1, 0.001), (2, 0.5))]
    step = values_of(*logs)["groups"][1]["step_time"]
    assert step["all_reduce_s"] == pytest.approx(0.96 * step["total_s"])
    assert step["rest_s"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("statuses", "tile"),
    [
        (("success",), "run_start to run_stop."),
        (("resumed",), ""),  # the log lacks the time before
        (("success", "resumed"), "run_start to run_stop."),
        ((None,), "run_start to run_stop."),  # the log does not say
        (("aborted",), ""),
        (("success", "aborted"), "run_start to run_stop, 1 run that ended with success, of 2."),
        (("success", None, "aborted"), "run_start to run_stop, median of 2 runs that ended with success, of 3."),
    ],
)
def test_the_time_to_train_is_that_of_runs_that_were_not_aborted(tmp_path: Path, statuses: tuple, tile: str) -> None:
    logs = []
    for number, status in enumerate(statuses):
        log = write_log(tmp_path / f"{number}.txt", seed=number)
        if status == "resumed":
            log.write_text(log.read_text().replace('"resumed": false', '"resumed": true'))
        else:
            log.write_text(log.read_text().replace('"status": "success"', f'"status": {json.dumps(status)}'))
        logs.append(log)
    said = re.findall(r"time to train: (.*?\.)", report(*logs).stdout.replace("\\", ""))
    assert said == [tile] * bool(tile)


def test_windows_of_one_time_stamp_stand_one_after_the_other(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.txt", windows=3, step_s=1.0)
    stamp = re.search(r'"time_ms": (\d+)', log.read_text())
    assert stamp is not None
    log.write_text(re.sub(r'"time_ms": \d+', stamp[0], log.read_text()))
    page_of(tmp_path, log, code=1)
    table = (tmp_path / "report.html").read_text().partition("Windows of run 1")[2].partition("</table>")[0]
    rows = [re.sub("<[^>]+>", " ", row).split() for row in re.findall("<tr>(.*?)</tr>", table)][1:]
    assert [row[2:4] for row in rows] == [["0", "5.1"], ["5.1", "10.1"], ["10.1", "15.2"]]


@pytest.mark.parametrize(("target", "said"), [(0.9, "; target 0.9."), (0.8, "")])
def test_a_target_is_shown_if_all_runs_have_the_same(tmp_path: Path, target: float, said: str) -> None:
    logs = [write_log(tmp_path / f"{number}.txt", seed=number) for number in (1, 2)]
    logs[1].write_text(logs[1].read_text().replace('{"value": 0.9,', f'{{"value": {target},'))
    [caption] = re.findall(r"eval.accuracy, first and last: .*", report(*logs).stdout.replace("\\", ""))
    assert caption.endswith(said) and ("target" in caption) == bool(said)


def test_the_gist_of_the_throughput_has_the_unit_of_the_rates(tmp_path: Path, published_logs: Path) -> None:
    unknown_devices = published_logs / "paddleclas_a100_gpu1_fp32_bs256.log"
    text = "".join(page_of(tmp_path, unknown_devices).text)
    per_device = r"measured windows [\d.,]+ to [\d.,]+ images/s per device"
    assert re.search(per_device, text)
    text = "".join(page_of(tmp_path, unknown_devices, write_log(tmp_path / "log.txt")).text)
    assert re.search(rf"{per_device}, [\d.,]+ to [\d.,]+ images/s(?! per device)", text)


def test_an_unknown_memory_of_a_published_figure_is_a_question_mark() -> None:
    record = Record(file="a", sha256="a", lines=2, format="csv", windows=(Window(line=1, step=10),))
    made = build([GivenLog(record=record, path="a")], protocols.find("window"), skip=None)
    rows = select(read_published(), table="fleetx", metric="throughput")
    assert {row.accelerator_memory_gib for row in rows} == {None}
    section = speed.scaling(dataclasses.replace(made, curves=(Curve(label="FleetX", rows=tuple(rows)),)))
    [fold] = [block for block in section.blocks if isinstance(block, Fold)]
    [table] = fold.blocks
    assert isinstance(table, Table)
    at = table.head.index("accelerator")
    assert {row[at] for row in table.rows} == {"V100, ? GB"}


def test_the_median_step_is_the_same_in_all_tables(tmp_path: Path) -> None:
    """Twelve windows: the mean of the two in the middle, which take 500 and 510 ms a step."""
    text = report(write_log(tmp_path / "log.txt", step_s=0.5)).stdout
    assert "500.00 / 505.00 / 510.00" in text and "505.00 ms" in text


@pytest.mark.parametrize(
    ("second_step", "axis", "second_places"),
    [(4, "step", [2.0, 4.0]), (None, "printed row", [1.0, 2.0])],
)
def test_curves_share_an_axis_that_every_log_can_serve(
    second_step: int | None, axis: str, second_places: list[float]
) -> None:
    """A log that prints no loss has no say in what the axis of the losses counts."""

    def given(name: str, first: Window, second: Window) -> GivenLog:
        record = Record(file=name, sha256=name, lines=2, format="csv", windows=(first, second))
        return GivenLog(record=record, path=name)

    logs = [
        given("a", Window(line=1, step=10, loss=2.0), Window(line=2, step=20, loss=2.0)),
        given("b", Window(line=1, step=2, loss=1.0), Window(line=2, step=second_step, loss=1.0)),
        given("c", Window(line=1, epoch=7), Window(line=2, epoch=8)),
    ]
    figure = course.training(build(logs, protocols.find("window"), skip=None)).blocks[0]
    assert isinstance(figure, Figure)
    drawn = plots.drawn(figure)
    assert drawn.axes.get_xlabel() == axis
    first, second = (list(line.get_xdata()) for line in drawn.axes.lines)
    assert first == ([10.0, 20.0] if axis == "step" else [1.0, 2.0]) and second == second_places


def test_a_batch_that_the_log_says_is_linked_to_its_line_although_the_system_is_described(tmp_path: Path) -> None:
    folder = tmp_path / "Lab" / "results" / "node" / "resnet"
    folder.mkdir(parents=True)
    (tmp_path / "Lab" / "systems").mkdir()
    (tmp_path / "Lab" / "systems" / "node.json").write_text('{"number_of_nodes": 1, "accelerators_per_node": 2}')
    log = write_log(folder / "result_0.txt")
    with_batch_of_all = log.read_text().replace('"devices": 2, ', "")
    only_its_own = [line for line in with_batch_of_all.splitlines() if "global_batch_size" not in line]
    log.write_text("\n".join(only_its_own) + "\n")
    [line] = [number for number, text in enumerate(only_its_own, 1) if '"key": "run_summary"' in text]
    page_of(tmp_path, log)
    page = (tmp_path / "report.html").read_text()
    assert f'<dt>batch per device</dt><dd><a href="#run-1-line-{line}">16</a></dd>' in page
    assert '<dt>devices</dt><dd>2<span class="small"> (systems/node.json)' in page
    # From a batch of all devices that the log's own batch does not divide, the description's devices give another.
    log.write_text(with_batch_of_all.replace('"global_batch_size", "value": 32', '"global_batch_size", "value": 34'))
    page_of(tmp_path, log)
    page = (tmp_path / "report.html").read_text()
    assert '<dt>batch per device</dt><dd>17<span class="small"> (systems/node.json)' in page


@pytest.mark.parametrize("lowest", [1.0, 123.0, 922.0, 1000.0, 3_100_000.0])
@pytest.mark.parametrize("spans", [1.0, 1.1, 1.5, 2.5, 3.0, 9.7, 12.0, 127.0, 200.0, 1e6])
def test_an_axis_of_throughput_has_two_labels_or_more(lowest: float, spans: float) -> None:
    """Also if all systems are about as fast: 922 to 1,106 images/s had one label, 1,000."""
    ours = [("this report", [(1, lowest), (8, lowest * spans)])]
    draw = functools.partial(
        plots.scaling, ours=ours, published=[], y="images/s", is_logarithmic=True, first_published_style=1
    )
    axes = plots.drawn(Figure(name="scaling", title="", caption="", draw=draw)).axes
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    labels = [axes.yaxis.get_major_formatter()(tick) for tick in shown]
    assert 2 <= len(labels) == len(set(labels)) <= 9


@pytest.mark.parametrize("runs, left_out", [(16, []), (17, ["1 more not drawn"]), (50, ["34 more not drawn"])])
def test_no_two_runs_of_a_plot_have_one_mark_in_its_legend(runs: int, left_out: list[str]) -> None:
    series = [(f"run {number}", [(0.0, 1.0), (1.0, 2.0)]) for number in range(1, runs + 1)]
    draw = functools.partial(plots.lines, series=series, x="step", y="loss")
    legend = plots.drawn(Figure(name="loss", title="", caption="", draw=draw)).legend
    assert [entry.label for entry in legend] == [label for label, _ in series[:16]] + left_out
    assert len({(entry.mark, entry.variable) for entry in legend}) == len(legend)


@pytest.mark.parametrize("rate", [19.98, 2497.2, 19_981.0, 155_000.0, 1_057_103.0])
@pytest.mark.parametrize("deviation", [1e-5, 1e-4, 1e-3])
def test_the_labels_of_an_axis_that_spans_the_rates_differ_and_are_not_cut(rate: float, deviation: float) -> None:
    """1.055 M lost its first digit, and 1,000,200 and 1,000,400 images/s were both labelled 1 M."""
    windows = [Point(step, step + 1, rate * (1 + deviation * (step % 2)), True, ()) for step in range(20)]
    draw = functools.partial(
        plots.throughput,
        runs=[plots.RunOfPlot("run 1", windows)],
        axis_unit="s",
        rate_unit="images/s",
        score=None,
        starts_at_zero=False,
    )
    plot = plots.drawn(Figure(name="rates", title="", caption="", draw=draw))
    low, high = plot.axes.get_ylim()
    shown = [label for label in plot.axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert 2 <= len(shown) == len({label.get_text() for label in shown})
    assert all(label.get_window_extent().x0 >= 0 for label in shown)


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(299.9, "s"), (300.0, "min"), (10_799.0, "min"), (10_800.0, "h"), (0.0, "s")]
)
def test_times_are_in_minutes_from_5_minutes_and_in_hours_from_3_hours(longest_s: float, unit: str) -> None:
    assert time_unit(longest_s).name == unit


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"name": "ImageNet", "synthetic": False}, ""),
        ({"name": "noise", "synthetic": True}, "these runs on noise at 224 px: compare the efficiency, not images/s."),
        ({}, ""),  # the log does not say it
    ],
)
def test_runs_on_synthetic_images_are_told_apart_from_the_published_ones(dataset: dict[str, Any], said: str) -> None:
    header = {"config": {"RECIPE.image_size": {"value": 224}}, "dataset": dataset}
    fields: dict[str, Any] = {"model": "resnet50_v1.5", "precision": "fp32", "math_mode": "fp32", "header": header}
    record = Record(file="a", sha256="a", lines=2, format="mllog", windows=(), **fields)
    note = published_curves(record, read_published()).note
    assert note.endswith(said or "Published tables of ResNet-50 at fp32.")


@pytest.mark.parametrize(
    ("width", "is_synthetic", "said"),
    [
        (1024, False, "Published tables of FCN-HRNetW18 at fp32."),
        (1024, True, "these runs on cityscapes at 1024x512 px: compare the efficiency, not images/s."),
        (512, False, "these runs on cityscapes at 512 px: compare the efficiency, not images/s."),
    ],
)
def test_a_run_of_hrnet_on_full_crops_is_as_the_published_ones(width: int, is_synthetic: bool, said: str) -> None:
    config = {"RECIPE.image_height": {"value": 512}, "RECIPE.image_width": {"value": width}}
    header = {"config": config, "dataset": {"name": "cityscapes", "synthetic": is_synthetic}}
    fields: dict[str, Any] = {"model": "fcn_hrnetw18", "precision": "fp32", "math_mode": "fp32", "header": header}
    record = Record(file="a", sha256="a", lines=2, format="mllog", windows=(), **fields)
    assert published_curves(record, read_published()).note.endswith(said)


def test_a_model_and_precision_without_published_curves_says_so() -> None:
    fields: dict[str, Any] = {"model": "fcn_hrnetw18", "precision": "fp32", "math_mode": "tf32"}
    record = Record(file="a", sha256="a", lines=2, format="mllog", windows=(), **fields)
    published = published_curves(record, read_published())
    assert published.curves == []
    reason = "no published table of FCN-HRNetW18 at tf32 has figures of one device and of more."
    assert published.note == f"No published curves beside it: {reason}"


@pytest.mark.parametrize(("seconds", "more"), [((1.0, 2.0), ""), ((1.0, None), "; 1 more below")])
def test_a_run_that_is_not_in_the_plot_of_all_runs_is_counted(seconds: tuple[float | None, ...], more: str) -> None:
    """A log without seconds has no rate to draw."""
    logs = []
    for number, seconds_of_run in enumerate(seconds):
        windows = tuple(
            Window(line=at, step=10 * at, steps=10, images=320, seconds=seconds_of_run) for at in range(1, 9)
        )
        record = Record(file=f"{number}", sha256=f"{number}", lines=9, format="csv", devices=1, windows=windows)
        logs.append(GivenLog(record=record, path=record.file))
    from_zero, *_ = overlay.figures(build(logs, protocols.find("window"), skip=None))
    assert isinstance(from_zero, Figure)
    assert from_zero.caption.endswith(f"{' to '.join(['320.00' if more else '160.00'] * 2)}{more}.")


def test_the_caption_of_a_run_says_where_its_measured_windows_end(tmp_path: Path) -> None:
    """DLPerf measures from step 20 to 120 of 150, which take 0.5 and 0.51 s in turn."""
    log = write_log(tmp_path / "log.txt", windows=30)
    text = report(log, "--protocol", "dlperf", code=1).stdout.replace("\\", "")
    [span] = re.findall(r"over 30 windows; measured from ([\d.]+) to ([\d.]+) s", text)
    assert float(span[1]) - float(span[0]) == pytest.approx(50.5, abs=0.2)


def test_one_window_and_one_more_run_are_counted_as_one(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.txt", windows=1)
    assert "over 1 window;" in "".join(page_of(tmp_path, log, "--skip", 0).text)
    assert "the run has 1 stamped row, the last after 5 steps" in report(log, "--protocol", "dlperf", code=1).stderr
    seven = folder_of(tmp_path, "seven", [1, 1.01, 0.99, 1.02, 0.98, 1.03, 0.97])
    assert "1 more run" in page_of(tmp_path, seven).text


def test_systems_that_differ_in_their_framework_have_names_and_efficiencies_of_their_own(tmp_path: Path) -> None:
    step_s = {("paddlepaddle", 1): 0.5, ("paddlepaddle", 8): 0.55, ("pytorch", 1): 0.5, ("pytorch", 8): 0.9}
    logs: list[Path] = []
    for (framework, devices), seconds in step_s.items():
        log = tmp_path / f"{framework}-{devices}.txt"
        logs.append(write_log(log, devices=devices, step_s=seconds, seed=len(logs), framework=f"{framework} 2"))
    names = [group["name"] for group in values_of(*logs)["groups"]]
    assert len(set(names)) == 4 and all("paddlepaddle" in name or "pytorch" in name for name in names)
    performance = report(*logs).stdout.partition("Where time and memory go")[2].partition("Each run")[0]
    efficiencies = dict(re.findall(r"8 devices.*, (\w+) \|.* ([\d.]+%) \|", performance))
    assert efficiencies == {"paddlepaddle": "90.9%", "pytorch": "55.6%"}  # 0.5 / 0.55 and 0.5 / 0.9


def test_systems_that_differ_in_nothing_that_a_name_says_are_told_apart_by_their_runs(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{number}.txt", seed=number) for number in range(3)]
    logs[1].write_text(logs[1].read_text().replace('"nodes": 1', '"nodes": null'))
    names = [group["name"] for group in values_of(*logs)["groups"]]
    assert [name.rpartition("fp32, ")[2] for name in names] == ["run 1 and 1 more", "run 2"]


def test_two_folders_of_one_device_count_have_no_scaling_efficiency(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_log(folder / "log.txt", devices=8, seed=number, step_s=0.5 + number / 100)
    assert values_of(*folders)["scaling"] == []
    text = report(*folders).stdout
    assert "Efficiency of these runs: not measured" in text and "slowest rank | efficiency" not in text
    larger = write_log(tmp_path / "larger.txt", devices=16, seed=2)
    [table] = values_of(*folders, larger)["scaling"]
    assert [row["devices"] for row in table] == [8, 8, 16]
    assert "both axes logarithmic; dotted: published." in report(*folders, larger).stdout
    for log in (*(folder / "log.txt" for folder in folders), larger):
        log.write_text(log.read_text().replace('"device": "gpu"', '"device": "cpu"'))  # beside it no figure is drawn
    assert "both axes logarithmic." in report(*folders, larger).stdout


def test_a_device_that_does_more_among_many_does_not_stand(tmp_path: Path) -> None:
    """Twice the rate of a device cannot be; the verdict was that the result stands, without a warning."""
    for devices, step_s in ((8, 0.5), (16, 0.25)):
        folder = tmp_path / str(devices)
        folder.mkdir()
        for seed in range(4):
            write_log(
                folder / f"{seed}.txt", devices=devices, seed=seed, step_s=step_s + seed / 1000, mode="throughput"
            )
    folders = (tmp_path / "8", tmp_path / "16")
    values = values_of(*folders)
    [check] = [check for check in values["verdict"]["checks"] if check["check"] == "measurement"]
    assert (check["status"], check["found"]) == ("warning", "1 kind of warning: over linear")
    assert values["verdict"]["status"] == "warning"
    assert [warning["rule"] for warning in values["mixture"]] == ["over_linear"]
    assert [row["efficiency"] for row in values["scaling"][0]] == [1.0, None]
    text = "".join(page_of(tmp_path, *folders).text)
    assert "this report: 100.00 % on 8; " in text  # the plot of efficiency, without the point of 16


def test_an_aborted_run_has_no_time_to_train_in_the_table_of_times(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{number}.txt", seed=number) for number in range(7)]
    logs[1].write_text(logs[1].read_text().replace('"status": "success"', '"status": "aborted"'))
    page = page_of(tmp_path, *logs)
    assert "30.30 s, none, 30.30 s, 30.30 s, 30.30 s, and 2 more" in "".join(page.text)
    text = report(*logs).stdout.replace("\\", "")
    assert "| run 1 | 30.30 s, run_start to run_stop | 100.0% | success |" in text
    assert "| run 2 | none after 30.30 s, run_start to run_stop | 100.0% | aborted |" in text


def test_a_run_with_rates_of_one_device_is_not_drawn_beside_rates_of_all(tmp_path: Path, published_logs: Path) -> None:
    of_one_device = published_logs / "paddleclas_a100_gpu1_fp32_bs256.log"  # it does not say how many ran
    of_all_devices = published_logs / "paddleclas_v100_gpu8_fp32_bs256.log"
    text = "".join(page_of(tmp_path, of_one_device, of_all_devices).text)
    assert re.search(r"Throughput in images/s per device: run 1 [\d.]+ to [\d.]+; 1 more below\.", text)
    text = "".join(page_of(tmp_path, of_all_devices, of_one_device).text)
    assert re.search(r"Throughput in images/s: run 1 [\d.,]+ to [\d.,]+; 1 more below\.", text)


def test_a_warning_about_the_figure_of_one_of_several_systems_names_its_runs(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / f"{number}.txt", devices=1, seed=number) for number in (1, 2)]
    single = write_log(tmp_path / "single.txt", devices=2)
    warnings = report(*logs, single).stdout.partition("Warnings about the figures")[2].partition("##")[0]
    assert re.search(r"\| too few runs \| .* \| run 3 \|", warnings)
    alone = report(single).stdout.partition("Warnings about the figures")[2].partition("##")[0]
    assert re.search(r"\| too few runs \| .* \|  \|", alone)


def test_published_figures_are_those_of_the_systems_in_the_plots_of_scaling(
    tmp_path: Path, published_logs: Path
) -> None:
    """The systems of the plots do not say their precision; a third one, of one device count, has AMP."""
    paddle = [published_logs / f"paddleclas_v100_gpu{devices}_fp32_bs256.log" for devices in (8, 32)]
    alone = published_logs / "ngc_tensorflow_v100_gpu8_amp_bs256.log"
    values = values_of(*paddle, alone)
    assert [[row["devices"] for row in table] for table in values["scaling"]] == [[8, 32]]
    assert values["published"] == [] and "does not say a precision" in values["published_note"]
    assert values_of(alone)["published"]


def test_logs_whose_epochs_have_no_images_are_reported_by_their_time_to_train(tmp_path: Path) -> None:
    """As those of BERT and most other benchmarks of MLPerf, whose samples are not images."""
    logs = []
    for seed in range(1, 11):
        made = make_log.run(seed=seed, org="Lab", platform="node")
        lines = [line for line in made.splitlines() if line.startswith(":::MLLOG")]
        kept = [line for line in lines if not re.search("run_summary|step_window|epoch_throughput", line)]
        logs.append(tmp_path / f"result_{seed}.txt")
        logs[-1].write_text("\n".join(kept).replace('"resnet"', '"bert"') + "\n")
    [group] = values_of(*logs)["groups"]
    assert len(read_record(logs[0]).windows) > 0
    assert group["score"]["protocol"] == "mlperf" and group["score"]["unit"] == "minutes"
    assert group["problem"] is None


def test_a_long_framework_is_cut_on_the_first_screen_as_other_long_names_are(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.txt", text="w" * 3000)
    first_screen = report(log).stdout.partition("What to do next")[0]
    assert "w" * 200 not in first_screen.replace("\\", "")
    assert re.search(r"- framework: paddlepaddle w+… \(2,933 more characters\)\n", first_screen)


def test_a_run_has_one_marker_in_both_plots_of_all_runs(tmp_path: Path) -> None:
    """The first run has nothing but warm-up, so that the enlarged plot of measured windows lacks it."""
    logs = [write_log(tmp_path / "short.txt", devices=4, windows=3)]
    logs += [write_log(tmp_path / f"{number}.txt", devices=2, seed=number) for number in (1, 2)]
    page_of(tmp_path, *logs, code=1)
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', (tmp_path / "report.html").read_text())[:2]
    for run in ("run 2", "run 3"):
        marks = {re.search(rf"<li>(<span[^>]*>.</span>) {run} ", legend) for legend in legends}
        assert None not in marks and len({mark[1] for mark in marks if mark}) == 1


def _with_power_by_time(window: re.Match[str]) -> str:
    """A window that takes 100 W for each second of its length."""
    return f"{window[1]}{window[2]}{window[3]}{100 * float(window[2])}"


def test_the_mean_power_is_over_time(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt", telemetry=True, unsteady=True, windows=20)
    of_window = r'("time_s": )([0-9.]+)(.*?"power_w": )200.0'
    log.write_text(re.sub(of_window, _with_power_by_time, log.read_text()))
    seconds = [window.seconds or 0 for window in read_record(log).windows[4:]]
    watts = 100 * sum(time_s**2 for time_s in seconds) / sum(seconds)
    (run,) = values_of(log)["groups"][0]["runs"]
    assert run["mean_power_w"] == pytest.approx(watts)
    assert f"{watts:.2f} W" in page_of(tmp_path, log).by_id["telemetry"]


def test_a_tile_without_a_unit_has_no_space_before_its_colon_in_markdown(tmp_path: Path) -> None:
    text = report(write_log(tmp_path / "a.txt"), "--markdown", "-").stdout
    assert "\n- 1 run: standard deviation " in text and " :" not in text
