"""The two intervals of one run: as wide as the calibration's file says, and how its widths are fitted."""

import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks import interval_widths, width_tables
from benchmarks.interval_widths import Case
from benchmarks.published_runs import PublishedRun, published_run
from scoring.figure import calibration, protocols
from scoring.figure.run import run_figure
from scoring.importers import read_record
from tests.scoring import samples
from tests.scoring.samples import command, steady_log, write


@pytest.fixture
def widths_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file in the place of calibration.yaml."""
    file = tmp_path / "calibration.yaml"
    monkeypatch.setattr(calibration, "FILE", file)
    calibration.calibration.cache_clear()
    yield file
    calibration.calibration.cache_clear()


@pytest.mark.parametrize("swing", [0.0, 0.2], ids=["even", "uneven"])
def test_the_two_intervals_of_one_run_are_as_wide_as_the_calibration_says(tmp_path: Path, swing: float) -> None:
    """The widths of the file, and at least its least shares where windows are even."""
    times = [0.5 * (1 + swing * math.sin(step * step)) for step in range(2000)]
    log = write(tmp_path, "a.txt", samples.mllog(samples.run_of(times)))
    _, result, _ = command("score", log, "--protocol", "window")
    figure = run_figure(read_record(log), protocols.find("window"))
    assert figure.windows_interval_95 is not None and len(figure.rates) >= 40
    windows = [1 / rate for rate in figure.rates]
    scales = {
        "run": statistics.stdev(windows) / statistics.fmean(windows),
        "repeat": math.log(figure.windows_interval_95[1] / figure.windows_interval_95[0]) / 2,
    }
    file = yaml.safe_load(calibration.FILE.read_text(encoding="utf-8"))
    for name, scale in scales.items():
        width = file[name]["rows"][-1]
        low, high = result[f"{name}_interval_95"]
        wanted = max(width["factor"] * scale ** width["power"], width["least_share"])
        assert math.log(high / low) / 2 == pytest.approx(wanted, rel=1e-4), name
        assert math.sqrt(low * high) == pytest.approx(result["value"], rel=1e-6)
        assert (wanted > width["least_share"]) == (swing > 0), "each part of the rule decides once"


def test_the_number_of_windows_and_their_kind_choose_the_width(tmp_path: Path, widths_file: Path) -> None:
    rows = [{"windows": count, "factor": 0.0, "power": 1.0, "least_share": count / 1000} for count in (12, 18)]
    epochs = [{"windows": 40, "factor": 0.0, "power": 1.0, "least_share": 0.5}]
    table = {"rows": rows, "epochs": epochs}
    widths_file.write_text(yaml.safe_dump({"run": table, "repeat": table, "smallest_difference": 0.004}))
    log = steady_log(tmp_path, "a.txt")
    for skip, share in ((0, 0.018), (3, 0.012)):
        _, result, _ = command("score", log, "--protocol", "window", "--skip", skip)
        for name in ("run", "repeat"):
            low, high = result[f"{name}_interval_95"]
            assert math.log(high / low) / 2 == pytest.approx(share, rel=1e-4)
    _, fewer, _ = command("score", log, "--protocol", "window", "--skip", 9)
    assert fewer["windows"] == 11 and fewer["interval_method"] == "none: fewer than 12 windows of one run"
    assert fewer["run_interval_95"] is None and fewer["repeat_interval_95"] is None


def normal_cases(draw: random.Random, systems: int, spread: float) -> list[Case]:
    """Cases whose errors are normal with a standard deviation of `spread` scales."""
    cases = []
    for number in range(systems):
        for _ in range(20):
            error = abs(draw.gauss(0, 0.01 * spread))
            name = f"machine {number}"
            cases.append(Case("a source", name, name, "rows", 10, 0.01, error))
    return cases


def test_fitted_widths_hold_on_systems_that_they_were_not_fitted_on() -> None:
    cases = normal_cases(random.Random(1), systems=200, spread=2.0)
    [width] = interval_widths.fitted(cases)["rows"]
    assert width.windows == 10
    assert width.half_width(0.01) == pytest.approx(0.01 * 2.0 * 2.05, rel=0.1)  # of a normal's 96 %
    coverage = interval_widths.held_out(cases)["a source"][10]
    assert coverage.systems == 200 and 0.94 < coverage.held < 0.98


def test_a_system_with_many_runs_counts_as_one_with_few() -> None:
    """Of 40 systems one has a hundred times as many cases, and errors that no width would hold otherwise."""
    cases = normal_cases(random.Random(2), systems=40, spread=1.0)
    wild = [Case("a source", "wild", "wild", "rows", 10, 0.01, 1.0)] * 2000
    [alone] = interval_widths.fitted(cases)["rows"]
    [beside] = interval_widths.fitted([*cases, *wild])["rows"]
    assert beside.factor < 3 * alone.factor


def test_few_systems_have_no_width_of_their_own() -> None:
    cases = normal_cases(random.Random(3), systems=interval_widths.MIN_SYSTEMS - 1, spread=1.0)
    assert interval_widths.fitted(cases) == {"rows": [], "epochs": []}


def made_run(system: str, seconds: float, like_hosts: str | None) -> PublishedRun:
    """A run of 30 even windows but for a swing of 1 %."""
    times = seconds * (1 + 0.01 * np.sin(np.arange(30.0) ** 2))
    return PublishedRun(
        source="a source",
        machine=system,
        system=system,
        repeats_of=system,
        like_hosts=like_hosts,
        kind="rows",
        images=np.full(30, 256.0),
        seconds=times,
    )


def test_the_file_that_the_calibration_writes_is_the_one_that_scoring_reads(widths_file: Path) -> None:
    draw = random.Random(4)
    runs = []
    for number in range(40):
        for _ in range(2):
            runs.append(made_run(f"host {number}", draw.gauss(0.5, 0.001), like_hosts="alike"))
    cases = {"run": list(interval_widths.run_cases(runs)), "repeat": list(interval_widths.repeat_cases(runs))}
    widths_file.write_text(width_tables.calibration_file(runs, cases))
    found = calibration.calibration()
    assert found.run["rows"] == interval_widths.fitted(cases["run"])["rows"]
    assert found.run["epochs"] == []
    # Means of two runs lie 0.2 % apart by the root of 2, of which 97.5 % of normal ones reach 2.24 times.
    assert 0.004 <= found.smallest_difference <= 0.006
    assert "| run, a source | " in width_tables.coverage_table(cases)


def test_the_calibrated_interval_holds_where_that_of_the_windows_alone_does_not(published_logs: Path) -> None:
    runs = [published_run(log.name, log) for log in sorted(published_logs.glob("*.log"))]
    scored = [run for run in runs if run is not None]
    cases = [case for case in interval_widths.run_cases(scored) if case.windows == 20]
    assert len({case.system for case in cases}) == 5
    width = calibration.width_for(calibration.calibration().run["rows"], 20)
    assert width is not None
    calibrated = [case.error <= width.half_width(case.scale) for case in cases]
    alone = [case.error <= 2.09 / math.sqrt(20) * case.scale for case in cases]  # Student's t, as if independent
    assert statistics.fmean(alone) < 0.9 < statistics.fmean(calibrated)
