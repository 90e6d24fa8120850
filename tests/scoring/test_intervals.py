"""The two intervals of one run: as wide as the calibration's file says."""

import math
from pathlib import Path

import pytest
import yaml

from scoring.figure import intervals, protocols
from scoring.figure.run import run_figure
from scoring.importers import read_record
from tests.scoring import samples
from tests.scoring.samples import command, steady_log, write


@pytest.mark.parametrize("swing", [0.0, 0.2], ids=["even", "uneven"])
def test_the_two_intervals_of_one_run_are_as_wide_as_the_calibration_says(tmp_path: Path, swing: float) -> None:
    """The widths of the file, and at least its least shares where windows are even."""
    times = [0.5 * (1 + swing * math.sin(step * step)) for step in range(400)]
    log = write(tmp_path, "a.txt", samples.mllog(samples.run_of(times)))
    _, result, _ = command("score", log, "--protocol", "window")
    figure = run_figure(read_record(log), protocols.find("window"))
    assert figure.windows_interval_95 is not None
    half_of_windows = math.log(figure.windows_interval_95[1] / figure.windows_interval_95[0]) / 2
    widths = yaml.safe_load(intervals.CALIBRATION.read_text(encoding="utf-8"))
    for name in ("run", "repeat"):
        low, high = result[f"{name}_interval_95"]
        wanted = max(widths[name]["factor"] * half_of_windows, widths[name]["least_share"])
        assert math.log(high / low) / 2 == pytest.approx(wanted, rel=1e-4), name
        assert math.sqrt(low * high) == pytest.approx(result["value"], rel=1e-6)
        assert (wanted > widths[name]["least_share"]) == (swing > 0), "each part of the rule decides once"


def test_the_widths_come_from_the_calibrations_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = steady_log(tmp_path, "a.txt")
    table = {"run": (3.0, 0.01), "repeat": (2.0, 0.02)}
    widths = {name: {"factor": factor, "least_share": share} for name, (factor, share) in table.items()}
    file = tmp_path / "calibration.yaml"
    file.write_text(yaml.safe_dump(widths | {"least_windows": 18}))
    monkeypatch.setattr(intervals, "CALIBRATION", file)
    intervals.calibration.cache_clear()
    try:
        _, result, _ = command("score", log, "--protocol", "window")
        _, fewer, _ = command("score", log, "--protocol", "window", "--skip", 3)
    finally:
        intervals.calibration.cache_clear()
    for name, (_, share) in table.items():
        low, high = result[f"{name}_interval_95"]
        assert math.log(high / low) / 2 == pytest.approx(share, rel=1e-4)
    assert fewer["windows"] == 17 and fewer["interval_method"] == "none: fewer than 18 windows of one run"
