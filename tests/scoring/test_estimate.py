"""The estimate of a step: what it is fitted on, what it says of figures that it has not seen, and the page of both."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import estimate_baselines
from scoring.predict import estimate
from scoring.predict.estimate import Demand, Row
from scoring.published import campaign
from scoring.published.table import read_published

ROWS = estimate.published_rows()
V100 = [row for row in ROWS if row.card == "V100"]
FACTORS = {"float32": 1.3, "float16": 2.0, "traffic": 1.2, "launch": 3e-5}


def made(row: Row, factors: dict[str, float]) -> Row:
    """The row with the figure that a card of these factors would give."""
    parts = estimate.parts_s(factors, row.demand)
    assert parts
    return replace(row, published=replace(row.published, value=row.images / sum(parts.values())))


def test_every_published_row_of_one_node_that_says_its_precision_has_its_program() -> None:
    wanted = {estimate.key(row) for row in estimate.one_node(read_published())}
    assert set(estimate.read_demands()) == wanted
    assert len(ROWS) == 63 and sum(row.is_paddles for row in ROWS) == 29


def test_the_fit_finds_the_factors_that_made_the_figures() -> None:
    found = estimate.fit([made(row, FACTORS) for row in V100])
    assert found == {name: pytest.approx(value, rel=0.05) for name, value in FACTORS.items()}


def test_no_factor_is_faster_than_the_data_sheet() -> None:
    fast = [made(row, {"float32": 0.5, "float16": 0.5, "traffic": 0.5, "launch": 0.0}) for row in V100]
    assert estimate.fit(fast) == {"float32": 1, "float16": 1, "traffic": 1, "launch": 0}


@pytest.mark.parametrize("way", estimate_baselines.WAYS.values())
def test_a_report_says_nothing_of_its_own_prediction(way: estimate_baselines.Way) -> None:
    before = estimate_baselines.left_out(ROWS, way)
    doubled = [
        replace(row, published=replace(row.published, value=2 * row.published.value))
        if row.published.table == "fleetx"
        else row
        for row in ROWS
    ]
    after = estimate_baselines.left_out(doubled, way)
    kept = [row.published.table == "fleetx" for row in ROWS]
    assert [a for a, own in zip(after, kept, strict=True) if own] == [
        b for b, own in zip(before, kept, strict=True) if own
    ]
    assert after != before


def test_the_mean_of_others_knows_no_model_that_they_lack() -> None:
    for row, mean, roof in zip(
        ROWS,
        estimate_baselines.left_out(ROWS, estimate_baselines.mean_of_others),
        estimate_baselines.left_out(ROWS, estimate_baselines.roofline),
        strict=True,
    ):
        assert (mean is None) == (row.published.table == "perf_hrnet") and roof


def test_the_interval_is_wider_where_reports_differ_more() -> None:
    low, high = estimate.interval_95(1000.0, ROWS)
    assert low < 1000 < high and low * high == pytest.approx(1e6)
    exact = [made(row, FACTORS) if row.card == "V100" else row for row in ROWS]
    assert estimate.scatter(exact)[0] < estimate.scatter(ROWS)[0]


def test_nothing_is_predicted_of_an_arithmetic_that_nobody_published() -> None:
    asked = V100[0].demand
    assert estimate.predict("V100", asked, 256)
    assert estimate.predict("V100", replace(asked, arithmetic="bfloat16"), 256) is None
    assert estimate.predict("A100", replace(asked, arithmetic="float32"), 256) is None


def test_the_parts_are_the_step() -> None:
    asked = Demand(arithmetic="float16", product_s=0.1, traffic_s=0.2, launches=300, all_reduce_s=0.01)
    found = estimate.predict("V100", asked, 1000)
    assert found and found["images_per_s"] == pytest.approx(1000 / sum(found["parts_s"].values()))
    assert found["parts_s"]["products"] >= 0.1 and found["parts_s"]["traffic"] >= 0.2


def test_pairs_differ_in_one_thing() -> None:
    found = estimate_baselines.pairs(ROWS, [row.published.value for row in ROWS])
    assert found and all(right for *_, right in found)
    for what, slow, fast, _ in found:
        one, two = slow.published, fast.published
        assert one.value < two.value and one.devices == two.devices
        assert (one.batch_per_device != two.batch_per_device) == (what == "batch")
        assert (one.precision != two.precision) == (what == "precision")
    backwards = estimate_baselines.pairs(ROWS, [-row.published.value for row in ROWS])
    assert len(backwards) == len(found) and not any(right for *_, right in backwards)


def test_a_campaign_predicts_what_cannot_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["plan", "perf_rn50", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("skip 1n8g_b256_amp_o2 "))
    demand = estimate.read_demands()["resnet50_v1.5", "V100", "32", "amp_o2", "256", "8"]
    predicted = estimate.predict("V100", demand, 8 * 256)
    assert predicted
    said = [line for line in lines[at + 1 :] if line.startswith("     predicted images/s, not measured: ")]
    assert any(f"V100 32 GB {predicted['images_per_s']:.4g} (" in line for line in said)
    (several,) = (i for i, line in enumerate(lines) if line.startswith("skip 4n8g_b256_amp_o2 "))
    assert several + 1 == len(lines) or not lines[several + 1].startswith("     predicted")


def test_the_page_has_the_judgement_as_it_is(repository: Path) -> None:
    page = (repository / "docs" / "estimate.md").read_text(encoding="utf-8")
    for line in [
        *estimate_baselines.row_lines(ROWS),
        *estimate_baselines.summary_lines(ROWS),
        *estimate_baselines.factor_lines(ROWS),
    ]:
        assert line in page, line


def test_the_counts_name_each_configuration_once() -> None:
    with estimate.DEMANDS_CSV.open(newline="", encoding="utf-8") as text:
        names = [tuple(row[name] for name in estimate_baselines.COLUMNS) for row in csv.DictReader(text)]
    assert len(names) == len(set(names))
    for demand in estimate.read_demands().values():
        assert all(math.isfinite(value) and value >= 0 for value in demand.terms().values())
        assert re.fullmatch("float32|tf32|float16", demand.arithmetic)
