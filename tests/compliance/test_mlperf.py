"""Whether a result is an MLPerf result, the number of its runs, and the words that must stand with its figures."""

import pytest
from mlperf_logging import benchmark_meta
from mlperf_logging.rcp_checker import rcp_checker

from compliance import mlperf
from compliance.mlperf import ResultFacts, Standing, standing, submission_runs
from compliance.official import rounds
from compliance.passports import PartBytes

TRADEMARK_OWNER = "trademarks of MLCommons Association"


def _imagenet(**facts: object) -> ResultFacts:
    """A closed ResNet result of v4.0 on ImageNet, from a log of this project."""
    values = {
        "benchmark": "resnet",
        "division": "closed",
        "ruleset": "4.0.0",
        "train_samples": 1_281_167,
        "eval_samples": 50_000,
        "has_exact_counts": True,
    }
    return ResultFacts(**(values | facts))  # type: ignore[arg-type]


def test_each_round_has_the_benchmarks_and_runs_of_mlperf_logging() -> None:
    counts = benchmark_meta.get_result_file_counts("training")
    by_round = benchmark_meta._ALL_ALLOWED_BENCHMARKS["training"]
    assert [rounds.round_of(ruleset) for ruleset in rounds.rulesets()] == list(by_round)
    for ruleset in rounds.rulesets():
        for benchmark in benchmark_meta.get_allowed_benchmarks("training", ruleset):
            runs = submission_runs(benchmark, ruleset)
            assert runs is not None, (benchmark, ruleset)
            assert runs.runs == counts[benchmark]
            assert runs.dropped == (4 if benchmark == "unet3d" else 1)
    for benchmark in counts:
        assert rounds.runs_in_convergence_test(benchmark) == rcp_checker.submission_runs["training"].get(benchmark)


@pytest.mark.parametrize(
    ("benchmark", "ruleset"),
    [("resnet", "5.0.0"), ("bert", "5.1.0"), ("cosmoflow", "2.0.0"), ("resnet", "7.0.0"), ("hrnet", "3.1.0"), ("", "")],
)
def test_runs_of_a_benchmark_that_the_round_has_not_are_unknown(benchmark: str, ruleset: str) -> None:
    assert submission_runs(benchmark, ruleset) is None


def test_a_benchmark_of_this_project_has_its_own_number_of_runs() -> None:
    assert submission_runs("hrnet", "4.0.0") == rounds.SubmissionRuns(runs=5, dropped=1)


def test_a_closed_result_on_imagenet_is_named_as_the_guidelines_ask() -> None:
    result = standing(_imagenet())
    assert result.is_mlperf is True
    assert result.name == "Unverified MLPerf(R) v4.0 Training Closed ResNet"
    assert result.unit("minutes") == "minutes (unverified)"
    note, legend = result.footnotes(derived_metric="images/s", next_to_verified=True)
    assert note.startswith(
        f"{result.name}. images/s is derived from the logs and is not a metric of MLPerf. Result not ver"
    )
    assert note.endswith(mlperf.NEXT_TO_VERIFIED)
    assert TRADEMARK_OWNER in legend


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"benchmark": "hrnet"}, "FCN-HRNetW18 is not an MLPerf benchmark"),
        ({"benchmark": "vit", "division": "open"}, "vit is not an MLPerf benchmark"),
        ({"dataset": "uci-digits", "train_samples": 1437, "eval_samples": 360, "division": "open"}, "uci-digits"),
        ({"eval_samples": 49_999}, "49999 evaluation samples"),
        ({"train_samples": 12_000, "eval_samples": None, "has_exact_counts": False}, "12000 training samples"),
        ({"synthetic": True}, "synthetic data"),
        (
            {"dataset": "imagenet", "bytes_of_parts": (PartBytes("training", 48_000_000_000, is_exact=True),)},
            "data set imagenet: not ImageNet as distributed: 48,000,000,000 bytes of training data",
        ),
        ({"quality_target": 0.5}, "quality target 0.5, the benchmark's is 0.759"),
        ({"ruleset": "4.1.0"}, "round v4.1 has no benchmark resnet"),
        ({"division": "ajar"}, "division ajar"),
        ({"throughput_only": True}, "throughput run"),
    ],
)
def test_what_contradicts_a_benchmark_is_no_mlperf_result_and_has_no_legend(
    facts: dict[str, object], reason: str
) -> None:
    result = standing(_imagenet(**facts))
    assert result.is_mlperf is False
    assert result.name.startswith("in the form of MLPerf logs; no MLPerf result (")
    assert reason in result.name
    assert result.unit("minutes") == "minutes"
    assert result.footnotes(derived_metric="images/s") == []


@pytest.mark.parametrize("ruleset", ["3.0.0", None])
def test_a_benchmark_of_mlperf_hpc_is_neither_called_a_result_nor_none(ruleset: str | None) -> None:
    result = standing(ResultFacts(benchmark="openfold", division="closed", ruleset=ruleset))
    assert (result.is_mlperf, result.status, result.unit("minutes")) == (None, "not known", "minutes")
    assert result.name == "in the form of MLPerf logs; openfold is of MLPerf HPC, whose rules are not read"
    assert result.footnotes() == []


def test_bytes_say_nothing_where_the_numbers_of_samples_are_not_imagenets() -> None:
    small = (PartBytes("training", 4_000_000, is_exact=True),)
    assert standing(_imagenet(train_samples=None, bytes_of_parts=small)).is_mlperf is True
    [reason] = standing(_imagenet(eval_samples=360, bytes_of_parts=small)).contradictions
    assert reason.startswith("360 evaluation samples")


@pytest.mark.parametrize(
    ("facts", "shows_dataset"),
    [
        ({"train_samples": 1_277_952, "eval_samples": 57_344}, False),  # Google, v0.7
        ({"eval_samples": 390}, False),  # counted in batches
        ({"eval_samples": 50_016}, True),  # padded
    ],
)
def test_rounded_counts_of_others_logs_are_no_other_data_set(facts: dict[str, object], shows_dataset: bool) -> None:
    result = standing(_imagenet(has_exact_counts=False, **facts))
    assert result.is_mlperf is True
    assert ("data set" not in result.unknown) == shows_dataset


def test_an_open_result_may_have_a_target_of_its_own() -> None:
    assert standing(_imagenet(division="open", quality_target=0.5)).is_mlperf is True


def test_an_unknown_round_or_data_set_is_said() -> None:
    result = standing(ResultFacts(benchmark="flux1", division="closed", ruleset="6.0.0"))
    assert (result.is_mlperf, result.unknown) == (True, ("data set",))
    assert "Not stated by the logs: data set." in result.footnotes()[0]
    result = standing(_imagenet(ruleset=None))
    assert (result.is_mlperf, result.name) == (None, "Unverified MLPerf(R) Training Closed ResNet")
    result = standing(ResultFacts(benchmark=None, division=None, ruleset=None))
    assert (result.is_mlperf, result.status, result.footnotes()) == (None, "not known", [])


def test_one_run_that_is_none_makes_the_figure_none() -> None:
    good = standing(_imagenet())
    digits = standing(_imagenet(eval_samples=360))
    assert mlperf.standing_of_all([good, good]).is_mlperf is True
    assert mlperf.standing_of_all([good, digits]).is_mlperf is False
    undated: Standing = standing(_imagenet(ruleset=None))
    assert mlperf.standing_of_all([good, undated]).is_mlperf is None


def test_runs_of_both_divisions_have_the_name_of_none() -> None:
    """The name went by the first run, so that a set with an open one was called closed."""
    runs = [standing(_imagenet()), standing(_imagenet(division="open"))]
    for results in (runs, runs[::-1]):
        result = mlperf.standing_of_all(results)
        assert (result.is_mlperf, result.status, result.footnotes()) == (None, "not known", [])
        assert result.unknown == ("which division (closed, open)",) and result.unknown[0] in result.name


def test_synthetic_data_is_not_called_by_the_name_of_a_data_set() -> None:
    result = standing(_imagenet(dataset="uci-digits-64", eval_samples=360, synthetic=True))
    assert result.dataset_in_words == "synthetic, 1281167 samples an epoch"
    assert standing(_imagenet(dataset="x", synthetic=False)).dataset_in_words == "x, 1281167 + 50000 samples"
