"""Which of more runs than MLPerf asks for are scored."""

from pathlib import Path

import pytest

from runlog import stats
from scoring.figure import protocols, run
from scoring.record import Record
from tests.scoring import samples
from tests.scoring.samples import command, scoring, write


def test_of_more_runs_than_five_the_median_set_is_scored(tmp_path: Path) -> None:
    texts = [samples.mllog(samples.run_of([s] * 40)) for s in (0.9, 0.55, 0.51, 0.52, 0.53, 0.5, 0.1)]
    logs = [write(tmp_path, f"{at}.txt", text) for at, text in enumerate(texts)]
    code, result, _ = command("score", *reversed(logs), "--protocol", "mlperf")
    assert code == 0 and result["runs"] == 5 and result["protocol_rule"].endswith("the median of 3 sets of 5")
    assert "runs 2 to 6 of 7 in the order of their start" in result["protocol_rule"]
    assert result["value"] == pytest.approx(0.52 * 40 / 60, rel=1e-3)  # the other sets: 0.533 and 0.51
    assert scoring("report", *logs, "--protocol", "mlperf").returncode == 0


def test_more_runs_for_1_percent_take_an_option_where_a_set_of_five_is_scored(tmp_path: Path) -> None:
    texts = [samples.mllog(samples.run_of([0.5 + at / 400] * 40)) for at in range(5)]
    logs = [write(tmp_path, f"{at}.txt", text) for at, text in enumerate(texts)]
    more = command("score", *logs, "--protocol", "mlperf")[1]["more_runs_for_1_percent"]
    shown = scoring("score", *logs, "--protocol", "mlperf").stdout
    assert f" {more} more runs with --runs {5 + more}, all of them counted" in shown


def test_the_figure_of_each_run_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is in several of the sets of which the median is scored."""
    logs = [write(tmp_path, f"{at}.txt", samples.mllog(samples.run_of([0.5 + at / 10] * 40))) for at in range(7)]
    measured = []

    def counted(record: Record, protocol: protocols.Protocol, *, skip: int | None = None) -> run.RunFigure:
        measured.append(record.file)
        return run.run_figure(record, protocol, skip=skip)

    monkeypatch.setattr("scoring.figure.score.run_figure", counted)
    code, _, _ = command("score", *logs, "--protocol", "mlperf")
    assert code == 0 and sorted(measured) == sorted(map(str, logs))


def test_of_two_sets_the_slower_one_is_scored() -> None:
    """The rules name none."""
    chosen, which = stats.median_set([5, 1, 1, 1, 1, 9], 5, sum)
    assert chosen == [1, 1, 1, 1, 9]
    assert which == "runs 2 to 6 of 6 in the order of their start, the median of 2 sets of 5"
