"""Score of a submission, beside mlperf-logging's own tools."""

import csv
import itertools
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compliance import rules
from compliance.check import check_file
from compliance.official import convergence, rule_files
from compliance.official.tool_reading import ToolReader
from runlog.reader import Event
from tests import make_log
from tests.compliance.altered import TOKEN, Altered, answer, compliance, write
from tests.compliance.packages import description
from tests.jobs import refused


def score(*arguments: object) -> tuple[int, dict[str, Any]]:
    status, out, _ = compliance("score", "--json", *arguments)
    return status, json.loads(out)


def official_score(folder: Path, ruleset: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What result_summarizer prints in its first and in its second run (it writes the scaling between them)."""
    from mlperf_logging.result_summarizer import result_summarizer

    printed = []
    monkeypatch.chdir(folder.parent)
    for name in ("first.csv", "second.csv"):
        monkeypatch.setattr(sys, "argv", ["result_summarizer", str(folder), "training", ruleset, "-csv", name])
        result_summarizer.main()
        with (folder.parent / name).open(newline="") as stream:
            printed += [row["resnet"] for row in csv.DictReader(stream)]
    return printed


@pytest.mark.parametrize("ruleset", ["2.1.0", "4.0.0"])
def test_the_published_mlperf_runs_score_as_the_official_summarizer_says(
    ruleset: str, published_logs: Path, tmp_path: Path, monkeypatch
) -> None:
    logs = published_logs / "mlperf_v2.1_dgxa100_resnet"
    status, ours = score(logs, "--ruleset", ruleset)
    folder = tmp_path / "NVIDIA"
    shutil.copytree(logs, folder / "results" / "CPU" / "resnet")
    (folder / "systems").mkdir()
    description(folder / "systems", submitter="NVIDIA", division="closed", accelerators_per_node="8")
    unscaled, scaled = official_score(folder, ruleset, monkeypatch)
    assert (repr(ours["unscaled_minutes"]), repr(ours["minutes"])) == (unscaled, scaled)
    assert status == 0
    assert [bool(run["dropped"]) for run in ours["runs"]] == [False, False, True, False, False]
    # the figures that the publisher's README gives
    assert round(ours["unscaled_minutes"], 4) == 28.6854
    assert round(ours["scaling"], 7) == 1.0043956
    assert round(ours["minutes"], 4) == 28.8115


with zipfile.ZipFile(rule_files.ARCHIVE) as _archive:
    _NAMES = " ".join(_archive.namelist())
REFERENCES = sorted(re.findall(r"rcp_checker/training_(\S+)/rcps_(\w+)\.json", _NAMES))


def test_reference_points_of_every_round_are_those_of_the_official_checker() -> None:
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

    assert len(REFERENCES) == 90
    for ruleset, benchmark in REFERENCES:
        try:
            reference = convergence.reference_set(benchmark, ruleset)
        except convergence.NoReferenceError as error:
            assert "knows no number of runs" in str(error)
            with pytest.raises(KeyError):
                RCP_Checker("training", ruleset, benchmark, False)
            continue
        official = RCP_Checker("training", ruleset, benchmark, False)
        allowed = 46_080 if benchmark == "llama31_405b" else 0  # taken off in its _eval_submission_record
        for points, records in (
            (reference.all_points, official.rcp_data),
            (reference.points, official.pruned_rcp_data),
        ):
            ours = [(point.global_batch, point.mean, point.least) for point in points]
            theirs = [(r["BS"], r["RCP Mean"], r["Min Epochs"] - allowed) for r in records.values()]
            assert ours == theirs, (ruleset, benchmark)


@pytest.mark.parametrize(
    ("ruleset", "benchmark"), [("4.0.0", "resnet"), ("2.0.0", "unet3d"), ("5.1.0", "llama31_405b")]
)
def test_a_batch_between_two_points_is_held_to_their_line(ruleset: str, benchmark: str) -> None:
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

    official = RCP_Checker("training", ruleset, benchmark, False)
    reference = convergence.reference_set(benchmark, ruleset)
    for low, high in itertools.pairwise(reference.points):
        batch = (low.global_batch * 2 + high.global_batch) // 3
        records = [official._find_rcp(point.global_batch, "pruned_rcps") for point in (low, high)]
        _, record = official._create_interp_rcp(batch, *records)
        held_to = convergence.point_at(batch, reference.points, reference)
        assert held_to is not None
        allowed = 46_080 if benchmark == "llama31_405b" else 0
        assert (held_to.point.mean, held_to.point.least) == (record["RCP Mean"], record["Min Epochs"] - allowed)


def test_the_lower_envelope_lies_on_no_line_between_two_reference_points() -> None:
    """24 of 86 files keep points above it by rcp_checker's pruning; none of ResNet."""
    above = []
    for ruleset, benchmark in REFERENCES:
        try:
            reference = convergence.reference_set(benchmark, ruleset)
        except convergence.NoReferenceError:
            continue
        envelope = convergence.lower_envelope(reference)
        means = {point.global_batch: point.mean for point in envelope}
        for low, high in itertools.combinations(reference.points, 2):
            for batch, mean in means.items():
                if low.global_batch < batch < high.global_batch:
                    line = np.interp(batch, [low.global_batch, high.global_batch], [low.mean, high.mean])
                    assert mean <= line * (1 + 1e-12), (ruleset, benchmark, batch)
        if envelope != reference.points:
            above.append(benchmark)
    assert len(above) == 24
    assert "resnet" not in above


def test_sums_are_added_in_numpys_order() -> None:
    values = [0.1 * 7 ** (index % 5) / (index + 3) for index in range(40)]
    for count in range(1, 41):
        assert convergence._numpy_sum(values[:count]) == np.add.reduce(values[:count]), count


@pytest.mark.parametrize(
    ("marks", "minutes"),
    [
        ((("run_start", 1), ("run_start", 2), ("run_stop", 4), ("run_stop", 10)), 2.0),
        ((("run_stop", 1), ("run_stop", 4), ("run_start", 6), ("run_start", 7)), -2.0),  # as that tool has it
        ((("run_stop", 1), ("run_stop", 4)), None),
    ],
)
def test_of_two_starts_the_one_that_result_summarizer_takes_counts(
    marks: tuple[tuple[str, int], ...], minutes: float | None
) -> None:
    reader = ToolReader("4.0.0")
    for key, minute in marks:
        reader.take(Event(key, None, {"status": "aborted"}, 60_000 * minute, "", 1, 0))
    read = reader.result()
    assert (read.minutes, read.to_target) == (minutes, convergence.NOT_CONVERGED)


@pytest.mark.parametrize(("fid", "clip", "reached"), [(90.0, 0.15, True), (90.1, 0.15, False), (90.0, 0.149, False)])
def test_stable_diffusion_reaches_its_target_with_exactly_the_bounds(fid: float, clip: float, reached: bool) -> None:
    """rcp_checker asks for FID <= 90 and CLIP >= 0.15."""
    reader = ToolReader("4.0.0")
    reader.take(Event("submission_benchmark", "stable_diffusion", {}, 0, "", 1, 0))
    for metric, value in (("FID", fid), ("CLIP", clip)):
        reader.take(Event("eval_accuracy", value, {"metric": metric, "samples_count": 512}, 0, "", 1, 0))
    reader.take(Event("run_stop", None, {"status": "success"}, 0, "", 1, 0))
    assert reader.result().to_target == (512 if reached else None)
    problem = "" if reached else "line 1: run_stop: no evaluation before it reaches the target"
    assert reader.result().problem == problem


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "line 7: run_stop without 'status'"),
        ({"status": "success"}, "line 7: run_stop: no evaluation before it"),
        ({"status": "aborted"}, ""),
    ],
)
def test_the_error_at_which_rcp_checker_ends_names_what_the_line_lacks(metadata: dict[str, str], problem: str) -> None:
    reader = ToolReader("4.0.0")
    reader.take(Event("run_stop", None, metadata, 0, "", 7, 0))
    assert reader.result().problem == problem


@pytest.mark.parametrize("key", ["eval_global_batch_size", "target_eval_accuracy", "prerun_stop"])
def test_a_name_that_has_another_in_it_is_read_as_rcp_checker_reads_it(key: str, tmp_path: Path) -> None:
    """It looks for global_batch_size, for instance, anywhere in a line."""
    from mlperf_logging.rcp_checker.rcp_checker import read_submission_file

    log = Altered(make_log.closed_run())
    other = {"key": key, "value": 8, "metadata": {"epoch_num": 2, "status": "x"}}
    log.lines.insert(log.at("run_stop"), TOKEN + json.dumps(log.fields(log.at("seed")) | other))
    [path] = write(tmp_path, log.text)
    _, epochs, batch, _ = read_submission_file(path, "4.0.0", False)
    read = check_file(path, rules.load("4.0.0")).run.as_tools_read
    assert (read.to_target, read.batch) == (epochs, batch)


def test_a_batch_with_a_decimal_point_is_the_same_batch(tmp_path: Path) -> None:
    """rcp_checker compares numbers; 3264 and 3264.0 were two batches."""
    texts = [make_log.closed_run(seed=seed, epoch_ms=30_000 + 1_000 * seed) for seed in range(5)]
    texts[1] = Altered(texts[1]).value("global_batch_size", 3264.0).text
    _, scored = score(*write(tmp_path, *texts), "--verdict", "official")
    assert "no one global_batch_size" not in scored["convergence"]


def _runs(count: int) -> list[str]:
    return [make_log.run(seed=seed, epoch_ms=30_000 + 1_000 * seed) for seed in range(count)]


def test_one_run_that_fails_is_dropped_as_the_worst_and_two_leave_no_score(tmp_path: Path) -> None:
    texts = _runs(5)
    _, whole = score(*write(tmp_path, *texts))
    minutes = [run["minutes"] for run in whole["runs"]]
    assert whole["minutes"] == pytest.approx(sum(minutes[1:4]) / 3, rel=1e-15)
    texts[0] = make_log.run(seed=0, epoch_ms=30_000, status="aborted")
    status, one = score(*write(tmp_path, *texts))
    assert (status, one["runs"][0]["dropped"]) == (0, "fails run-status, target-status")
    assert one["minutes"] == pytest.approx(sum(minutes[2:5]) / 3, rel=1e-15)
    texts[1] = Altered(texts[1]).repeat("run_start").text
    status, two = score(*write(tmp_path, *texts))
    assert (status, two["minutes"]) == (1, None)
    assert two["problem"] == "2 failing runs (own-log, run-status, target-status); a submission may drop one"


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda texts: [Altered(texts[0]).repeat("run_start").text, *texts[1:]], "own-log"),
        (lambda texts: [make_log.run(seed=5, summary={"resumed": True}), *texts[1:]], "run-mode"),
        (lambda texts: [*texts[:4], Altered(texts[0]).seed(99).text], "runs-differ"),
        (lambda texts: [Altered(texts[0]).seed(1).text, *texts[1:]], "seeds-differ"),
    ],
)
def test_no_score_beside_a_run_that_a_rule_refuses(spoil, rule: str, tmp_path: Path) -> None:
    status, found = score(*write(tmp_path, *spoil(_runs(5))))
    assert (status, found["minutes"], found["by"]) == (1, None, "strict")
    assert rule in found["problem"]
    if rule != "run-mode":  # the official checker knows none of these rules
        status, out, _ = compliance("score", tmp_path, "--verdict", "official")
        assert status == 0 and f" min, refused by the strict rules: {rule}\n" in out


@pytest.mark.parametrize(("count", "reduction"), [(1, "mean"), (2, "mean"), (3, "olympic mean"), (4, "olympic mean")])
def test_fewer_runs_give_a_provisional_score(count: int, reduction: str, tmp_path: Path) -> None:
    status, found = score(*write(tmp_path, *_runs(count)))
    minutes = [run["minutes"] for run in found["runs"]]
    kept = minutes if count < 3 else sorted(minutes)[1:-1]
    assert (status, found["provisional"]) == (0, True)
    assert found["minutes"] == pytest.approx(sum(kept) / len(kept), rel=1e-15)
    assert found["reduction"].startswith(reduction)
    runs = "1 run" if count == 1 else f"{count} runs"
    assert f"  provisional: {runs}; a submission has 5\n" in compliance("score", tmp_path)[1]


def test_a_faster_convergence_than_the_reference_is_scaled(tmp_path: Path) -> None:
    texts = []
    for seed, epochs in enumerate((32, 36, 32, 36, 36)):
        accuracies = (*(0.5 + seed / 100 + i / 40 for i in range(epochs // 4 - 1)), 0.7604)
        texts.append(make_log.closed_run(seed=seed, epochs=epochs, accuracies=accuracies))
    _, found = score(*write(tmp_path, *texts))
    mean = (32 + 36 + 36) / 3
    reference = convergence.reference_set("resnet", "4.0.0").points[1].mean
    assert found["scaling"] == reference / mean > 1
    assert found["minutes"] == found["unscaled_minutes"] * found["scaling"]


@pytest.mark.parametrize(("said", "problem"), [(3264.0, "fails the test"), ("3264", "no one global_batch_size")])
def test_no_batch_escapes_the_reference_points(said: object, problem: str, tmp_path: Path) -> None:
    texts = []
    for seed in range(5):
        text = make_log.closed_run(
            seed=seed, epochs=24, accuracies=(*(0.5 + seed / 100 + i / 25 for i in range(5)), 0.7604)
        )
        texts.append(Altered(text).value("global_batch_size", said).text)
    write(tmp_path, *texts)
    for verdict in ("strict", *(("official",) if said == 3264.0 else ())):
        status, found = score(tmp_path, "--verdict", verdict)
        assert (status, found["minutes"], found["rcp"]) == (1, None, "fail")
    status, found = score(tmp_path, "--verdict", "strict")
    assert problem in found["convergence"] + found["problem"]
    for file in answer("check", "--verdict", "strict", tmp_path, status=1)["files"]:
        assert "rcp-convergence" in {f["rule"] for f in file["findings"] if f["severity"] == "error"}


def test_logs_of_two_submissions_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, make_log.run(seed=1), make_log.run(seed=2, org="Other"))
    refused(compliance("score", tmp_path), "of another submission")
    write(tmp_path, make_log.run(seed=1), make_log.run(seed=2, batch=32))
    refused(compliance("score", tmp_path), "different global_batch_size")


def test_an_empty_log_beside_one_without_a_submission_is_called_empty(tmp_path: Path) -> None:
    log = Altered(make_log.run())
    log.lines = [line for line in log.lines if '"submission_' not in line]
    (tmp_path / "result_0.txt").write_text(log.text)
    (tmp_path / "result_1.txt").write_text("")
    refused(compliance("score", tmp_path), "result_1.txt: no log of a run (MLLOG events: none)")


def test_of_more_runs_the_consecutive_ones_nearest_the_median_are_scored(tmp_path: Path) -> None:
    """The rules' own way of M > N: 8 runs make 4 sets of 5, and of these the third fastest is taken."""
    epochs_ms = [50_000, 60_000, 40_000, 45_000, 52_000, 70_000, 41_000, 43_000]

    def run(at: int, status: str = "success") -> str:
        text = make_log.run(seed=100 + at, epoch_ms=epochs_ms[at], status=status)
        return text.replace('"time_ms": 17', f'"time_ms": {20 + at}')

    texts = [run(at) for at in range(8)]
    alone = []
    for first in range(4):
        alone.append(score(*write(tmp_path / str(first), *texts[first : first + 5]))[1]["minutes"])
    everything = tmp_path / "all"
    for names in (texts, texts[::-1]):  # whatever their files are called
        status, answer = score(*write(everything, *names))
        assert status == 0
        assert answer["minutes"] == sorted(alone)[2]
        first = alone.index(answer["minutes"])
        assert answer["chosen"].startswith(f"runs {first + 1} to {first + 5} of 8 in the order of their start")
        assert not answer["provisional"]
    lost = [run(0, "aborted"), run(1, "aborted")]
    # the first set has none, the second drops one
    status, answer = score(*write(everything, *lost, *texts[2:]))
    assert status == 0 and answer["minutes"] > max(alone[2:])
    assert answer["chosen"].startswith("runs 2 to 6 of 8")
    lost += [run(2, "aborted"), run(3, "aborted")]
    assert score(*write(everything, *lost, *texts[4:]))[1]["minutes"] is None  # the median set is invalid
