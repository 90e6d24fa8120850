"""Minutes to the target on A100, beside MLPerf's logs."""

from __future__ import annotations

import json
import re
import statistics
import tarfile
from pathlib import Path

from scoring.published.table import read_published, select
from tests.scoring.command import scoring

ROWS = read_published()


def test_each_size_stands_beside_its_published_minutes(repository: Path) -> None:
    page = (repository / "docs" / "scale-model.md").read_text(encoding="utf-8")
    found = json.loads(scoring("time-to-train", "--json").stdout)
    assert [row["nodes"] for row in found] == [1, 2, 4, 8]
    assert found[0]["images_per_s"] == 26548, "the fastest published, the figure to beat"
    shown = [figure for row in found for figure in row["published"]]
    logged = [row for row in ROWS if row.metric == "time_to_train" and row.accelerator == "A100"]
    assert sorted(figure["line"] for figure in shown) == [row.line for row in logged] and len(logged) == 16
    for row in found:  # none of 95 % held the published times of several nodes
        assert row["interval_95"] is None and row["time_to_train_95_min"] is None
        steps = -(-1_281_167 // 3264) * row["epochs"]
        assert row["time_to_train_min"] > steps * row["step_time_s"] / 60  # and evaluations
        for figure in row["published"]:
            source = figure["source"].removeprefix("MLPerf Training ").removesuffix(" ResNet")
            figures = f"{row['time_to_train_min']:.2f} | {figure['minutes']:.3f} | {100 * figure['error']:+.1f}"
            assert f"| {source} | {row['nodes']} | {figures} |" in page


def test_the_text_has_each_error_and_says_that_nothing_was_measured() -> None:
    out = scoring("time-to-train", "--nodes", "1,2").stdout
    assert "Predicted, not measured" in out and len(re.findall(r"error +[+-][\d.]+%", out)) == 12


def test_nodes_that_do_not_divide_the_batch_are_refused() -> None:
    done = scoring("time-to-train", "--nodes", "5")
    assert done.returncode == 2 and "do not divide 3264" in done.stderr


def test_the_published_minutes_are_those_of_the_logs(published_corpus: Path) -> None:
    wanted = {row.system: row for row in select(ROWS, table="mlperf_a100")}
    minutes: dict[tuple[str, str], list[float]] = {}
    with tarfile.open(published_corpus / "mlperf_resnet.tar.xz") as archive:
        for member in archive:
            place, _, rest = member.name.partition("/results/")
            row = wanted.get(rest.partition("/")[0])
            if not member.isfile() or not row or not row.source.split()[2].startswith(place[:4]):
                continue
            stream = archive.extractfile(member)
            assert stream
            text = stream.read().decode(errors="replace")
            at = [int(re.search(rf'"time_ms": (\d+)[^\n]*"key": "run_{k}"', text)[1]) for k in ("start", "stop")]  # type: ignore[index]
            minutes.setdefault((place, str(row.system)), []).append((at[1] - at[0]) / 60_000)
            assert '"global_batch_size", "value": 3264' in text
    assert {system for _, system in minutes} == set(wanted)
    for (_, system), runs in minutes.items():
        assert len(runs) == 5 and f"{statistics.mean(sorted(runs)[1:-1]):.3f}" == wanted[system].printed
