"""`python -m scoring compare`, and the intervals behind it: against published values, brute force, and simulation.

benchmarks/calibration.py measures more of how often intervals hold what they say.
"""

import json
import math
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from runlog.stats import olympic_mean, t_density, t_quantile
from scoring.figure import medians, series, spread
from scoring.figure.systems import read_described
from tests.scoring.samples import command, folder_of, scoring, steady_log
from tests.scoring.test_report_content import submission


def test_a_folders_logs_are_its_files_with_a_logs_ending(tmp_path: Path) -> None:
    base = folder_of(tmp_path, "base", [1.0, 1.01])
    other = folder_of(tmp_path, "other", [0.9, 0.91])
    (other / "notes.csv").write_text("no,log\n")
    (other / "old.txt").mkdir()
    code, result, _ = command("compare", base, other, "--protocol", "window")
    assert code == 0 and [row["score"]["runs"] for row in result["rows"]] == [2, 2]


def test_different_only_if_the_interval_says_so(tmp_path: Path) -> None:
    base, near, far = (
        folder_of(tmp_path, str(mean), [mean * by for by in (1, 1.01, 0.99, 1.005, 0.995)]) for mean in (1, 1.002, 0.95)
    )
    code, result, _ = command("compare", base, near, far, "--protocol", "window")
    assert code == 0 and not result["warnings"]
    _, a, b = result["rows"]
    assert a["different"] is False and b["different"] is True
    assert b["ratio"] == b["speedup"] == pytest.approx(1 / 0.95, rel=2e-3)
    assert b["ratio_interval_95"][0] > 1 and a["ratio_interval_95"][0] < 1 < a["ratio_interval_95"][1]
    assert a["basis"] == "Welch's t over 5 and 5 runs"
    _, result, _ = command("compare", base, far, "--protocol", "mlperf")  # faster to train is a speedup
    row = result["rows"][1]
    assert row["ratio"] == pytest.approx(0.95, rel=1e-3) and row["speedup"] == pytest.approx(1 / 0.95, rel=1e-3)
    assert row["different"] is True and row["basis"] == "Welch's t by Yuen's errors over 5 and 5 runs"


@pytest.mark.parametrize(("step_s", "given"), [(1.1, 1 / 1.1), (0.8, 1.25), (0.5, None)])
def test_efficiency_is_of_a_device(tmp_path: Path, step_s: float, given: float | None) -> None:
    """More a device among many is said; from a factor of 1.5 on there is no efficiency but the bound."""
    one, eight = folder_of(tmp_path, "one", [1], devices=1), folder_of(tmp_path, "eight", [step_s], devices=8)
    _, result, _ = command("compare", one, eight, "--protocol", "window")
    said = [warning["message"] for warning in result["warnings"] if warning["rule"] == "over_linear"]
    assert ["1 at most" in message for message in said] == [given is None] * (step_s < 1)
    assert all("times as much a device as the base" in message for message in said)
    row = result["rows"][1]
    assert row["speedup"] == pytest.approx(8 / step_s, rel=1e-3)
    assert row["efficiency"] == (given and pytest.approx(given, rel=1e-3))


def test_nothing_is_scaled_on_equal_devices(tmp_path: Path) -> None:
    """A faster system has a speedup, and no efficiency of the same number above 100 %."""
    slow, fast = folder_of(tmp_path, "slow", [1]), folder_of(tmp_path, "fast", [0.5])
    _, result, _ = command("compare", slow, fast, "--protocol", "window")
    assert [row["efficiency"] for row in result["rows"]] == [None, None]
    assert result["rows"][1]["speedup"] == pytest.approx(2, rel=1e-3)
    assert "efficiency" not in scoring("compare", slow, fast, "--protocol", "window").stdout


def test_single_runs_cannot_be_told(tmp_path: Path) -> None:
    """Whatever their windows say: two repeats of one system may lie further apart."""
    one, two = folder_of(tmp_path, "one", [1]), folder_of(tmp_path, "two", [1.1])
    _, result, _ = command("compare", one, two, "--protocol", "window")
    row = result["rows"][1]
    assert row["different"] is None and row["ratio_interval_95"] is None and "unknown" in row["basis"]
    assert "cannot be told" in scoring("compare", one, two, "--protocol", "window").stdout
    for given, different in (("1/5", True), ("4/5", False)):  # 10 % against 5.3 and 21.2 %
        _, result, _ = command("compare", one, two, "--protocol", "window", "--between-runs-sd", given)
        row = result["rows"][1]
        assert row["different"] is different
        half = 3.7469 * float(given[0]) / 100 * math.sqrt(2)
        assert row["ratio_interval_95"][1] / row["ratio"] == pytest.approx(math.exp(half), rel=1e-4)


def test_repeats_that_print_one_figure_judge_nothing(tmp_path: Path) -> None:
    """Logs of few digits print equal repeats, which does not say that a percent between two systems is real."""
    base, near = folder_of(tmp_path, "base", [1] * 5), folder_of(tmp_path, "near", [0.99] * 5)
    _, result, _ = command("compare", base, near, "--protocol", "window")
    row = result["rows"][1]
    assert row["different"] is None and row["ratio_interval_95"] is None and "too few digits" in row["basis"]


def test_repeats_of_the_same_system_judge_its_single_runs(tmp_path: Path) -> None:
    many, one = folder_of(tmp_path, "many", [1, 1.01, 0.99]), folder_of(tmp_path, "one", [2])
    near, other = folder_of(tmp_path, "near", [1.02]), folder_of(tmp_path, "other", [1], devices=4)
    _, result, _ = command("compare", many, one, near, other, "--protocol", "window")
    assert [row["different"] for row in result["rows"]] == [None, True, False, None]
    assert result["rows"][1]["basis"] == "one run against 3: the spread of 3 runs of this system"
    _, result, _ = command("compare", near, one, many, "--protocol", "window")  # a third that has repeats
    assert result["rows"][1]["different"] is True


def of_precision(place: Path, name: str, factors: list[float], precision: str) -> Path:
    """Logs of a system that say this precision; with "" they say none."""
    folder = folder_of(place, name, factors)
    for log in folder.iterdir():
        text = log.read_text()
        assert '"fp32"' in text
        log.write_text(text.replace('"fp32"', json.dumps(precision or None)))
    return folder


def test_repeats_of_unsaid_precision_do_not_judge_systems_of_two_precisions(tmp_path: Path) -> None:
    fp32, fp16 = of_precision(tmp_path, "fp32", [1], "fp32"), of_precision(tmp_path, "fp16", [2], "fp16")
    unsaid = of_precision(tmp_path, "unsaid", [1, 1.01, 0.99], "")
    _, result, _ = command("compare", fp32, fp16, unsaid, "--protocol", "window")
    assert [row["different"] for row in result["rows"]] == [None, None, False]
    assert "unknown" in result["rows"][1]["basis"]
    # Two sets of repeats of two precisions are not the spread of one system, either.
    unsaid_2, unsaid_3 = of_precision(tmp_path, "2", [1.02], ""), of_precision(tmp_path, "3", [1.03], "")
    many = of_precision(tmp_path, "many_16", [1.5, 1.51], "fp16"), of_precision(tmp_path, "many_32", [1.1, 1.2], "fp32")
    _, result, _ = command("compare", unsaid_2, unsaid_3, many[0], "--protocol", "window")
    assert result["rows"][1]["basis"] == "one run against 1: the spread of 2 runs of this system"
    _, result, _ = command("compare", unsaid_2, unsaid_3, *many, "--protocol", "window")
    assert "unknown" in result["rows"][1]["basis"]
    first = many[0] / "result_0.txt"
    first.write_text(first.read_text().replace('"fp16"', "null"))  # the second log still says it
    _, result, _ = command("compare", fp32, unsaid_2, many[0], "--protocol", "window")
    assert "unknown" in result["rows"][1]["basis"]


def test_the_spread_of_single_runs_does_not_judge_a_median_of_two(tmp_path: Path) -> None:
    two, one = folder_of(tmp_path, "two", [1, 1.01]), folder_of(tmp_path, "one", [2])
    given = ("--protocol", "dlperf-later", "--runs", "1", "--between-runs-sd", "0.8/5")
    _, result, _ = command("compare", two, one, *given)
    assert result["rows"][1]["ratio_interval_95"] is None and result["rows"][1]["different"] is None
    basis = "one run against 2: single runs do not show how far medians lie apart (give several runs of each system)"
    assert result["rows"][1]["basis"] == basis
    _, result, _ = command("compare", one, folder_of(tmp_path, "other", [1]), *given)
    assert result["rows"][1]["different"] is True


def on_host(folder: Path, host: str, logs: Sequence[Path]) -> list[Path]:
    """Copies of the logs, whose headers name `host`."""
    folder.mkdir(exist_ok=True)
    copies = []
    for number, log in enumerate(logs):
        nodes = [{"host": host, "cpu": "Example CPU", "cores": 4, "gpus": []}]
        header = json.dumps({"hardware": {"nodes": nodes}})
        copies.append(folder / f"{host}_{number}.txt")
        copies[-1].write_text(f"# {header}\n{log.read_text()}")
    return copies


def test_the_host_is_the_repeat_where_logs_name_it(tmp_path: Path) -> None:
    """Three runs on each of two hosts are two repeats, and runs of one host speak of that host alone."""
    near = sorted(folder_of(tmp_path, "near", [1, 1.0001, 0.9999]).iterdir())
    far = sorted(folder_of(tmp_path, "far", [1.01, 1.0101, 1.0099]).iterdir())
    logs = [*on_host(tmp_path / "a", "node1", near), *on_host(tmp_path / "a", "node2", far)]
    _, result, _ = command("score", *logs, "--protocol", "window")
    assert result["interval_method"] == "t over the means of 2 hosts, 6 runs"
    means = [statistics.fmean(source["value"] for source in result["sources"][at : at + 3]) for at in (0, 3)]
    half = 12.706 * statistics.stdev(means) / math.sqrt(2) / statistics.fmean(means)
    low, high = result["interval_95"]
    assert math.log(high / low) / 2 == pytest.approx(half, rel=1e-3)
    _, one_host, _ = command("score", *logs[:3], "--protocol", "window")
    assert one_host["interval_method"] == "t over 3 runs of one host"
    assert one_host["hosts"] == ["node1"] and result["hosts"] == ["node1", "node2"]


def test_the_ratio_says_of_each_side_whether_it_counts_hosts_or_runs(tmp_path: Path) -> None:
    base = folder_of(tmp_path, "base", [1, 1.01, 0.99])  # logs that name no host
    near = sorted(folder_of(tmp_path, "near", [1, 1.001, 0.999]).iterdir())
    far = sorted(folder_of(tmp_path, "far", [1.01, 1.011, 1.012]).iterdir())
    on_host(tmp_path / "hosted", "node1", near)
    on_host(tmp_path / "hosted", "node2", far)
    bases = []
    for one, other in ((base, "hosted"), ("hosted", base), (base, "near"), ("hosted", "again")):
        if other == "again":  # runs of two other hosts
            slow = sorted(folder_of(tmp_path, "slow", [1.02, 1.021, 1.022, 1.023]).iterdir())
            on_host(tmp_path / "again", "node3", slow[:2])
            on_host(tmp_path / "again", "node4", slow[2:])
        _, result, _ = command("compare", tmp_path / one, tmp_path / other, "--protocol", "window")
        bases.append(result["rows"][1]["basis"])
    assert bases == [
        "Welch's t over 3 runs and 2 hosts",
        "Welch's t over 2 hosts and 3 runs",
        "Welch's t over 3 and 3 runs",
        "Welch's t over 2 and 2 hosts",
    ]


def test_the_ratio_lies_in_its_interval_however_unequal_the_hosts_numbers_of_runs_are(tmp_path: Path) -> None:
    """Five runs of one host and one of another: the mean of six runs varies more than that of two hosts.

    By hand: weights 5/6 and 1/6 have the variance (25 + 1) / 36 of one host's, so as (36 / 26) hosts of equal weight.
    """
    near = sorted(folder_of(tmp_path, "near", [1, 1.0001, 0.9999, 1.0002, 0.9998]).iterdir())
    far = sorted(folder_of(tmp_path, "far", [1.01]).iterdir())
    on_host(tmp_path / "uneven", "node1", near)
    on_host(tmp_path / "uneven", "node2", far)
    base = folder_of(tmp_path, "base", [1, 1.00001, 0.99999])
    _, result, _ = command("compare", base, tmp_path / "uneven", "--protocol", "window")
    row = result["rows"][1]
    low, high = row["ratio_interval_95"]
    assert math.sqrt(low * high) == pytest.approx(row["ratio"], rel=1e-6)
    values = [source["value"] for source in row["score"]["sources"]]
    means = [statistics.fmean(values[:5]), values[5]]
    half = 12.706 * statistics.stdev(means) / statistics.fmean(means) / math.sqrt(36 / 26)
    assert math.log(high / low) / 2 == pytest.approx(half, rel=1e-3)
    _, alone, _ = command("score", *sorted((tmp_path / "uneven").iterdir()), "--protocol", "window")
    low, high = alone["interval_95"]
    assert math.log(high / low) / 2 == pytest.approx(half, rel=1e-3)


@pytest.mark.parametrize(("slower", "different"), [(1.003, False), (1.0075, True)])
def test_less_than_like_hosts_differ_by_is_not_called_different(tmp_path: Path, slower: float, different: bool) -> None:
    base = folder_of(tmp_path, "base", [1, 1.0001, 0.9999])
    other = folder_of(tmp_path, "other", [slower, slower * 1.0001, slower * 0.9999])
    _, result, _ = command("compare", base, other, "--protocol", "window")
    row = result["rows"][1]
    assert row["ratio_interval_95"][1] < 1 and row["different"] is different
    assert result["smallest_difference"] == 0.004
    shown = scoring("compare", base, other, "--protocol", "window").stdout
    assert ("like hosts differ by up to 0.4%" in shown) is not different


def test_systems_that_share_a_run_are_refused(tmp_path: Path) -> None:
    """Their means are not independent; a copy that was cut or commented on is the same run too."""
    many, one = folder_of(tmp_path, "many", [1, 1.01, 0.99]), folder_of(tmp_path, "one", [1.02])
    copy = one / "result_9.txt"
    copy.write_text((many / "result_1.txt").read_text() + "the operator's remark\n")
    code, _, err = command("compare", many, one, "--protocol", "window")
    assert code == 2 and str(copy) in err and str(many / "result_1.txt") in err and "same run" in err


def test_other_work_has_no_efficiency(tmp_path: Path, published_logs: Path) -> None:
    seg, clas = (
        published_logs / name for name in ("paddleseg_v100_gpu1_fp32_bs8.log", "paddleclas_v100_gpu8_fp32_bs256.log")
    )
    _, result, _ = command("compare", seg, clas, "--protocol", "window")
    said = {warning["rule"]: warning["message"] for warning in result["warnings"]}
    assert "ResNet50" in said["mixed_model"] and said["mixed_batch"] == "batch of one device differs: 8, 256"
    assert result["rows"][1]["efficiency"] is None
    one = steady_log(tmp_path, "1.log", 0.5, writer="nvidia_pytorch", devices=1)
    eight = steady_log(tmp_path, "8.log", 0.55, writer="nvidia_pytorch", devices=8)
    flow = steady_log(tmp_path, "flow.log", writer="nvidia_tensorflow", devices=8)
    flow.write_text(flow.read_text().replace(" amp : False ", " amp : True "))
    _, result, _ = command("compare", one, eight, flow, "--protocol", "perf")
    assert result["rows"][1]["efficiency"] is not None and result["rows"][2]["efficiency"] is None


def test_versions_of_the_software_may_differ_in_an_efficiency(tmp_path: Path) -> None:
    one, eight = folder_of(tmp_path, "one", [1], devices=1), folder_of(tmp_path, "eight", [1.1], devices=8)
    [log] = eight.iterdir()
    text = log.read_text()
    assert "paddlepaddle 2.6.2" in text
    log.write_text(text.replace("paddlepaddle 2.6.2", "paddlepaddle 2.5.0"))
    _, result, _ = command("compare", one, eight, "--protocol", "window")
    assert "mixed_software" in {warning["rule"] for warning in result["warnings"]}
    assert result["rows"][1]["efficiency"] == pytest.approx(1 / 1.1, rel=1e-3)


def test_the_spread_within_sets_has_one_degree_of_freedom_less_than_values_in_each_set() -> None:
    """By hand: relative deviations of 1 and 2 % with 2 and 1 degrees of freedom, and a single value, which has none."""
    sets = ([0.99, 1.0, 1.01], [1 - 0.02 / math.sqrt(2), 1 + 0.02 / math.sqrt(2)], [7.0])
    found = spread.pooled_sd(sets)
    assert found is not None and found.freedom == 3
    assert found.relative_sd == pytest.approx(math.sqrt((2 * 0.01**2 + 0.02**2) / 3))
    assert spread.pooled_sd([[7.0], [8.0]]) is None


def test_compare_of_nothing(tmp_path: Path) -> None:
    code, _, error = command("compare", tmp_path, tmp_path, "--protocol", "window")
    assert code == 2 and "no *.txt or *.log" in error


def test_devices_that_one_log_does_not_say_are_asked_for(tmp_path: Path) -> None:
    one = steady_log(tmp_path, "one.log", 0.5, writer="paddleclas_static", devices=1)
    one.write_text(one.read_text().replace(", replicas 1, status", ""))
    eight = steady_log(tmp_path, "eight.log", 0.55, writer="paddleclas_static", devices=8)
    code, _, error = command("compare", one, eight, "--protocol", "window")
    assert code == 2 and error.endswith("; give the devices that a log does not say, as --devices 1,8\n")
    _, result, _ = command("compare", one, eight, "--protocol", "window", "--devices", "1,8")
    assert result["rows"][1]["efficiency"] == pytest.approx(0.5 / 0.55, rel=1e-3)


def test_t_quantile_and_density() -> None:
    from scipy import stats

    for freedom in (1, 1.5, 2, 2.7, 7, 31.4, 1000, 1e6):
        for probability in (0.6, 0.75, 0.975, 0.9995):
            expected = float(stats.t.ppf(probability, freedom))
            assert t_quantile(freedom, probability) == pytest.approx(expected, rel=1e-9)
        assert t_density(-2.5, freedom) == pytest.approx(float(stats.t.pdf(-2.5, freedom)), rel=1e-9)


def test_interval_of_an_olympic_mean_is_yuens() -> None:
    assert olympic_mean([1, 2, 3, 4, math.inf]) == 3
    values = [28.410, 28.639, 30.342, 28.748, 28.669]
    found = spread.olympic_mean_of(values, dropped=1)
    # Winsorized: 28.639, 28.639, 28.669, 28.748, 28.748; 0.0556 is their deviation, times the root of (n-1)/(h(h-1)).
    assert found is not None and found.freedom == 2
    assert found.error == pytest.approx(
        statistics.stdev([28.639, 28.639, 28.669, 28.748, 28.748]) * math.sqrt(4 / 6), rel=1e-12
    )
    low, high = found.interval_95
    assert low * high == pytest.approx(found.value**2)  # even on the scale of logarithms
    assert math.log(high / found.value) == pytest.approx(4.3027 * found.error / found.value, rel=1e-4)
    failed = spread.olympic_mean_of([28.410, 28.639, math.inf, 28.748, 28.669], dropped=1)
    assert failed is not None and failed == found
    assert spread.olympic_mean_of([1, 2, 3], dropped=1) is None


def test_interval_of_a_median_is_of_order_statistics() -> None:
    values = [351.0, 352, 353, 354, 355, 356, 500]
    low, high = medians.median_interval(values) or (0, 0)
    # Between ranks 1 and 2: 98.44 and 87.5 %. Hettmansperger and Sheather's weight: I = 0.3143, 6 I / (1 + 5 I).
    weight = 6 * 0.31429 / (1 + 5 * 0.31429)
    assert low == pytest.approx(351 + weight, abs=1e-3) and high == pytest.approx(500 - 144 * weight, rel=1e-4)
    assert medians.median_interval(values[:5]) == (351, 355)
    assert medians.median_interval(values[:4]) is None
    low, high = medians.median_interval(range(1, 4097)) or (
        0,
        0,
    )  # as of a fleet; 1.96 * sqrt(n) / 2 each way
    assert low == pytest.approx(2048.5 - 1.96 * 32, abs=0.5) and high == pytest.approx(2048.5 + 1.96 * 32, abs=0.5)


def test_ratio_of_medians_is_mann_and_whitneys() -> None:
    # 5 and 5 runs: U of at most 2 has 2 x 4 / 252 = 3.2 %, of at most 3 already 5.6 %; so the third quotient bounds it.
    a, b = [100.0, 101, 102, 103, 104], [110.0, 111, 112, 113, 114]
    quotients = sorted(y / x for x in a for y in b)
    assert medians.median_ratio_interval(a, b) == (quotients[2], quotients[-3])
    assert medians.median_ratio_interval(a[:3], b[:3]) is None


@pytest.mark.parametrize(
    ("count", "other_count", "rank"), [(51, 51, 1008), (30, 90, 1027), (300, 300, 40840), (9, 2000, 5613)]
)
def test_ratio_of_medians_of_many_runs(count: int, other_count: int, rank: int) -> None:
    """The ranks are by a count of all rankings."""
    base = [100 + index / 7 for index in range(count)]
    other = [110 + index / 9 for index in range(other_count)]
    quotients = sorted(y / x for x in base for y in other)
    low, high = medians.median_ratio_interval(base, other) or (0, 0)
    assert quotients[rank - 3] <= low <= quotients[rank - 1]
    assert quotients[-rank] <= high <= quotients[2 - rank]


REPEATS = 400
# Three standard errors of a share of 400 about 95 %.
LEAST, MOST = 0.917, 0.983


def windows(draw: random.Random, correlation: float, count: int) -> list[float]:
    """Windows of one run of mean 100 and deviation 2, each like the last by `correlation`."""
    value, found = draw.gauss(0, 2), []
    for _ in range(count):
        found.append(100 + value)
        value = correlation * value + math.sqrt(1 - correlation**2) * draw.gauss(0, 2)
    return found


def share(intervals: Sequence[tuple[float, float] | None], truth: float = 100) -> float:
    return sum(found is not None and found[0] <= truth <= found[1] for found in intervals) / len(intervals)


@pytest.mark.parametrize(("count", "correlation", "most"), [(8, 0.6, 1), (20, 0.6, MOST), (90, 0.3, MOST)])
def test_the_interval_within_a_run_holds_at_any_correlation(count: int, correlation: float, most: float) -> None:
    """Student's t over these windows holds 86 % at 0.3 and 67 % at 0.6; a few are covered rather too often."""
    draw = random.Random(1)
    found = [series.series_interval(windows(draw, correlation, count)) for _ in range(REPEATS)]
    assert LEAST <= share(found) <= most


def test_only_equal_values_have_an_interval_without_width() -> None:
    """The means of pairs of 1, 2, 1, 2, ... are all equal."""
    for values in ([1.0, 2.0] * 30, [1.0, 2.0, 3.0] * 30, [1.0] * 59 + [2.0]):
        interval = series.series_interval(values)
        assert interval is not None
        low, high = interval
        assert low < 0.999 * statistics.fmean(values) and high > 1.001 * statistics.fmean(values)
    assert series.series_interval([0.1] * 90) == (pytest.approx(0.1), pytest.approx(0.1))


@pytest.mark.parametrize("count", [5, 7])
def test_equal_systems_are_rarely_called_different_and_healthy_sets_rarely_blamed(count: int) -> None:
    draw = random.Random(1)
    called = {"mean": 0, "median": 0, "olympic": 0, "outlier": 0}
    for _ in range(2 * REPEATS):
        a, b = ([draw.gauss(100, 1) for _ in range(count)] for _ in range(2))
        pairs = {
            "mean": [spread.mean_of(v) for v in (a, b)],
            "olympic": [spread.olympic_mean_of(v, dropped=1) for v in (a, b)],
        }
        intervals = {name: spread.mean_ratio_interval(*pair) for name, pair in pairs.items()}  # type: ignore[arg-type]
        median = medians.median_ratio_interval(a, b)
        assert median is not None
        for name, (low, high) in (intervals | {"median": median}).items():
            called[name] += not low <= 1 <= high
        called["outlier"] += spread.outlier(a) is not None
    # 5 % of 800 are 40; two deviations more are 52.
    assert all(count <= 52 for count in called.values()), called
    assert called["outlier"] <= 0.02 * 2 * REPEATS


def test_a_batch_that_the_described_devices_do_not_divide_is_not_known(tmp_path: Path) -> None:
    [folder] = submission(tmp_path, {"a100_n1": 8}, described=True)
    log = folder / "result_0.txt"
    assert read_described(log).batch_per_device == 4096 // 8
    description = tmp_path / "Lab" / "systems" / "a100_n1.json"
    description.write_text('{"number_of_nodes": 1, "accelerators_per_node": 6}')
    record = read_described(log)
    assert (record.devices, record.batch_per_device) == (6, None)


@pytest.mark.parametrize("is_base", [True, False])
def test_runs_of_one_host_are_one_repeat_beside_several_hosts_of_the_system(tmp_path: Path, is_base: bool) -> None:
    """Hosts lie 0.2 % apart. Another is 0.8 % slower: its own runs, however close, do not show the spread.

    By hand: t(2) of 98 % to both sides is 6.9646; 6.9646 * 0.2 % * sqrt(1 + 1 / 3) = 1.61 %.
    """
    for host, factor in (("node1", 1.0), ("node2", 1.002), ("node3", 0.998)):
        near = sorted(folder_of(tmp_path, host, [factor, factor * 1.00001]).iterdir())
        on_host(tmp_path / "several", host, near)
    slower = sorted(folder_of(tmp_path, "slower", [1.008, 1.00801, 1.00802]).iterdir())
    on_host(tmp_path / "one", "node4", slower)
    sides = [tmp_path / "one", tmp_path / "several"] if is_base else [tmp_path / "several", tmp_path / "one"]
    _, result, _ = command("compare", *sides, "--protocol", "window")
    row = result["rows"][1]
    assert row["different"] is False
    assert row["basis"] == "one host against 3: the spread of 3 hosts of this system"
    low, high = row["ratio_interval_95"]
    assert math.log(high / low) / 2 == pytest.approx(6.9646 * 0.002 * math.sqrt(4 / 3), rel=1e-3)
    assert math.sqrt(low * high) == pytest.approx(row["ratio"], rel=1e-6)


def test_no_interval_is_narrower_than_the_runs_of_one_host_justify(tmp_path: Path) -> None:
    """Three hosts agree to 0.001 %, the runs of another lie 4 % apart. Hosts of another system say nothing of it."""
    for host, factor in (("node1", 1.0), ("node2", 1.00001), ("node3", 0.99999)):
        on_host(tmp_path / "several", host, sorted(folder_of(tmp_path, host, [factor, factor]).iterdir()))
    uneven = sorted(folder_of(tmp_path, "uneven", [1.0, 1.04, 0.96]).iterdir())
    on_host(tmp_path / "one", "node4", uneven)
    other_system = sorted(folder_of(tmp_path, "few", [1.0, 1.001], devices=4).iterdir())
    on_host(tmp_path / "other", "node5", other_system)
    sides = (tmp_path / "several", tmp_path / "one", tmp_path / "other")
    _, result, _ = command("compare", *sides, "--protocol", "window")
    _, one, other = result["rows"]
    assert one["basis"] == "Welch's t over 3 hosts and 3 runs"
    assert other["basis"] == "Welch's t over 3 hosts and 2 runs"
    low, high = one["ratio_interval_95"]
    assert math.log(high / low) / 2 == pytest.approx(4.3027 * 0.04 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("batch", [64, 100])
def test_a_batch_that_the_description_contradicts_is_refused(tmp_path: Path, batch: int) -> None:
    """The log says 4096 images over all devices. They would be 64 devices of 64 images, the description has 8."""
    [folder] = submission(tmp_path, {"a100_n1": 8}, described=True)
    said = (
        rf"result_0\.txt: --batch says {batch} images .*"
        r"4096 images of a step over the 8 devices of .*a100_n1\.json are 512 each: leave out --batch"
    )
    status, _, error = scoring("compare", folder, folder, "--protocol", "mlperf", "--batch", batch)
    assert status == 2
    assert re.search(said, error)
    record = read_described(folder / "result_0.txt", batch_per_device=512)
    assert (record.devices, record.batch_per_device) == (8, 512)
