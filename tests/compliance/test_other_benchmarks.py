"""What strict says of logs of other benchmarks: of NaN, seeds and states that the official tools take, and of notes."""

import json
from pathlib import Path

import pytest

from compliance import rules
from compliance.check import Checker, check_file
from compliance.official import convergence, rule_files
from compliance.official.metrics import JoinedMetrics, join_metrics
from compliance.submission.refusals import refusals_by_missed_target
from runlog.reader import Event, read_log
from tests import make_log
from tests.compliance.altered import TOKEN, Altered, Writer, answer, compliance, each, foreign, write
from tests.compliance.test_check import check, rules_broken
from tests.compliance.test_official import agreed


def _log() -> Altered:
    return Altered(Writer("6.1.0", "closed", "flux1").text())


@pytest.mark.parametrize(
    ("key", "value", "errors"),
    [
        ("train_samples", float("nan"), set()),
        ("submission_org", float("inf"), set()),
        ("seed", float("nan"), {"seed-present"}),
        ("eval_accuracy", float("nan"), {"eval_accuracy.value"}),
    ],
)
def test_nan_refuses_a_log_of_another_benchmark_only_where_the_official_tools_do(
    key: str, value: float, errors: set[str], tmp_path: Path
) -> None:
    """JSON has no NaN, and the official parser takes it: the line warns, and is not a missing event."""
    report = agreed(tmp_path, _log().value(key, value).text, "6.1.0")
    assert errors <= {f.rule for f in report.findings if f.severity == "error"} and report.passes_strict == (not errors)
    assert "line-damaged" in {f.rule for f in report.findings if f.severity == "warning"}


@pytest.mark.parametrize(("key", "passes"), [("submission_division", False), ("submission_org", True)])
def test_damage_is_excused_only_if_it_hides_neither_benchmark_nor_division(key: str, passes: bool, tmp_path) -> None:
    """The official parser takes the last of two equal names. Without a division no rule of the closed one held."""
    log = _log().line(key, lambda line: line.replace('"value"', '"value": null, "value"'))
    report = agreed(tmp_path, log.text, "6.1.0")
    assert (report.passes_official, report.passes_strict) == (True, passes)


@pytest.mark.parametrize("samples", [10**400, -(10**400), "many"])
def test_samples_that_nothing_can_be_computed_with_leave_the_convergence_unknown(samples, tmp_path: Path) -> None:
    folder = tmp_path / "v6.1/Example/results/SYSTEM/flux1"
    write(folder, _log().metadata("eval_accuracy", -1, samples_count=samples).text)
    [row] = answer("audit", tmp_path)["submissions"]
    assert (row["logs"], row["rcp"]) == (1, "not known")
    done = compliance("score", "--ruleset", "6.1.0", folder)
    assert "usable number of epochs or samples" in done.stdout


@pytest.mark.parametrize(
    ("status", "passes"),
    [
        *(("converged", True), ("SUCCESS", True), (None, False), ("", False), (0, False)),
        *(("aborted", False), ("ABORTED ", False), ("Failed", False)),
    ],
)
def test_other_benchmarks_have_words_of_their_own_for_success(status, passes: bool, tmp_path: Path) -> None:
    others = agreed(tmp_path, _log().metadata("run_stop", status=status).text, "6.1.0")
    ours = agreed(tmp_path, Altered(make_log.closed_run()).metadata("run_stop", status=status).text)
    assert (others.passes_official, others.passes_strict, ours.passes_strict) == (True, passes, False)


@pytest.mark.parametrize(
    ("seed", "passes"),
    [("12", True), (" 7 ", True), (10**30, True), (-3, True), (None, False), ([], False), ("x", False), ("", False)],
)
def test_a_seed_is_one_that_seed_checker_reads(seed, passes: bool, tmp_path: Path) -> None:
    assert agreed(tmp_path, _log().value("seed", seed).text, "6.1.0").passes_strict == passes


@pytest.mark.parametrize(
    ("first", "second", "shared"), [("12", 12, True), (12.0, 12, True), (12, 13, False), (None, None, False)]
)
def test_a_seed_written_in_two_ways_is_one(first, second, shared: bool, tmp_path: Path) -> None:
    for index, seed in enumerate((first, second)):
        text = foreign(make_log.closed_run(seed=index))
        (tmp_path / f"result_{index}.txt").write_text(Altered(text).value("seed", seed).text)
    _, files = check(tmp_path, "--verdict", "strict")
    assert ("seeds-differ" in rules_broken(files[1])) == shared


@pytest.mark.parametrize(("first", "second", "shared"), [(7.5, 7.2, True), (7.5, 7, True), (7.5, 8.5, False)])
def test_fractions_are_the_seeds_that_seed_checker_makes_of_them(first, second, shared: bool, tmp_path: Path) -> None:
    texts = [_log().value("seed", seed).text for seed in (first, second)]
    found = answer("check", "--ruleset", "6.1.0", "--verdict", "strict", *write(tmp_path, *texts), status=1)
    assert ("seeds-differ" in rules_broken(found["files"][1])) == shared


def test_a_metric_whose_name_is_a_list_leaves_no_evaluation() -> None:
    event = Event("eval_accuracy", 88.1, {"metric": ["FID"], "samples_count": 512}, 0, "", 1, 0)
    assert join_metrics([event], "samples_count") == JoinedMetrics([], event)


@pytest.mark.parametrize(("failed", "most", "allowed"), [(1, 1, ""), (2, 1, "one run"), (4, 4, ""), (5, 4, "4 runs")])
def test_as_many_runs_may_miss_the_target_as_the_benchmark_drops(
    failed: int, most: int, allowed: str, tmp_path: Path
) -> None:
    """One of most benchmarks, 4 of unet3d."""
    path = tmp_path / "log"
    path.write_text(Altered(make_log.run()).aborted().text)
    report = check_file(path, rules.load("4.0.0"))
    refused = [refusal.text for refusal in refusals_by_missed_target([report] * failed, most)]
    assert refused == ([f"did not reach the target; {allowed} of a submission may fail to"] if allowed else [])


def test_a_log_of_another_benchmark_has_one_line_for_what_is_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(_log().text)
    lines = compliance("check", "--ruleset", "6.1.0", path).stdout.splitlines()
    [line] = [line for line in lines if "info:" in line]
    assert line.startswith("  info: not applied: run-mode (the log has no run_summary that says so); ")
    assert "rcp-convergence (it holds for resnet)" in line


def test_a_note_is_no_fault_of_our_own_log(tmp_path: Path) -> None:
    """Rules of form that were not applied, as to a benchmark without a row, and breaches that are counted alone."""
    path = tmp_path / "log"
    path.write_text(make_log.run())
    checker = Checker(rules.load("4.0.0"))
    checker._collector.add_note("event-order", "not applied: it holds for others")
    checker.feed(read_log(path))
    findings, run = checker.finish(None)
    assert run.is_project_log
    assert {f.severity for f in findings} == {"info"}


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.25, True), (0.001, False), (1e3, False), (1e6, False)])
def test_a_run_whose_times_are_not_in_milliseconds_has_no_score(factor: float, passes: bool, tmp_path: Path) -> None:
    """In seconds it would be scored a thousand times as fast."""
    log = each(_log(), "", lambda fields: fields.update(time_ms=fields["time_ms"] * factor))
    report = agreed(tmp_path, log.text, "6.1.0")
    breaches = [finding.actual for finding in report.findings if finding.rule == "run-time"]
    assert report.passes_strict == passes
    assert len(breaches) == (0 if passes else 2)
    assert all("which is not a date from 2018 to 2099" in actual for actual in breaches)


@pytest.mark.parametrize("key", ["run_start", "run_stop", "train_samples", ""])
def test_times_that_are_texts_are_numbers_to_both_verdicts_but_for_our_benchmarks(key: str, tmp_path: Path) -> None:
    """The official tools convert them. "" stands for each event: then no event was read, and both verdicts failed."""
    for whole, version, passes in ((_log().text, "6.1.0", True), (make_log.closed_run(), "4.0.0", False)):
        log = each(Altered(whole), key, lambda fields: fields.update(time_ms=str(fields["time_ms"])))
        report = agreed(tmp_path, log.text, version)
        assert (report.passes_official, report.passes_strict) == (True, passes)
        read = agreed(tmp_path, whole, version).run
        assert (report.run.as_tools_read, report.run.minutes) == (read.as_tools_read, read.minutes)


@pytest.mark.parametrize(
    ("batch", "passes"), [(64, True), (64.0, True), (0, False), (-4, False), (0.5, False), ("64", False), (True, False)]
)
def test_a_batch_that_no_training_has_is_refused_of_any_benchmark(batch, passes: bool, tmp_path: Path) -> None:
    log = Altered(Writer("5.1.0", "closed", "llama31_8b").text()).value("global_batch_size", batch)
    report = agreed(tmp_path, log.text, "5.1.0")
    assert report.passes_strict == passes
    assert ("global-batch" in rules_broken(report.as_dict())) == (report.passes_official and not passes)


@pytest.mark.parametrize(
    ("benchmark", "value", "passes"),
    [("unet3d", 0.95, True), ("unet3d", 90.8, False), ("gpt3", 2.69, True)],
)
def test_a_percentage_is_no_share(benchmark: str, value: float, passes: bool, tmp_path: Path) -> None:
    """Any of 1 or more met the target of 0.908."""
    log = Altered(Writer("4.0.0", "closed", benchmark).text()).value("eval_accuracy", value)
    report = agreed(tmp_path, log.text)
    assert (report.passes_official, report.passes_strict) == (True, passes)


@pytest.mark.parametrize(("early_ms", "passes"), [(0, True), (900, True), (5000, False)])
def test_a_clock_that_stops_before_the_target_is_reached_is_refused_of_any_benchmark(
    early_ms: int, passes: bool, tmp_path: Path
) -> None:
    """The time to evaluate counts: a run_stop halfway through the run halved the score."""
    log = _log()
    reached_ms = log.fields(log.at("eval_accuracy", -1))["time_ms"]
    log.change("run_stop", lambda fields: fields.update(time_ms=reached_ms - early_ms))
    assert agreed(tmp_path, log.text, "6.1.0").passes_strict == passes


def test_each_closed_benchmark_has_a_target_and_few_open_ones() -> None:
    """Version 6.1.0 asks dlrmv4 for 0.75, and has the target of its closed runs in the state of its rules."""
    without_target = set()
    for name in rule_files.names():
        rule = rule_files.load(name).rules.get("eval_accuracy")
        check = None if rule is None else rule.at_least_one_check
        if check is not None and not check.has_target:
            without_target.add(name)
    assert {name.split("/")[1].split("_")[0] for name in without_target} == {"open"}
    assert "training_4.0.0/open_bert.yaml" in without_target
    assert "training_6.1.0/open_dlrmv4.yaml" not in without_target


@pytest.mark.parametrize(
    ("division", "benchmark", "passes"), [("open", "bert", True), ("open", "gpt3", False), ("closed", "bert", False)]
)
def test_a_clock_may_stop_before_an_evaluation_where_there_is_no_target(
    division: str, benchmark: str, passes: bool, tmp_path: Path
) -> None:
    """Any accuracy below 1 meets the check for open runs of most benchmarks."""
    log = Altered(Writer("4.0.0", division, benchmark).text())
    stop_ms = log.fields(log.at("run_stop"))["time_ms"]
    log.change("eval_accuracy", lambda fields: fields.update(time_ms=stop_ms + 5000))
    report = agreed(tmp_path, log.text)
    late = [finding for finding in report.findings if "the first evaluation that reached the target" in finding.actual]
    assert (late == []) is passes


@pytest.mark.parametrize(("early_ms", "epoch", "passes"), [(900, 3, True), (2500, 3, False), (2500, 2, True)])
def test_an_accuracy_before_its_evaluation_is_no_time_of_the_run(
    early_ms: int, epoch: int, passes: bool, tmp_path: Path
) -> None:
    """So an earlier run_stop was no earlier than it. That of another epoch is of another evaluation."""
    log = _log().metadata("eval_start", epoch_num=3, samples_count=512)
    log.metadata("eval_accuracy", epoch_num=epoch, samples_count=512)
    early = log.fields(log.at("eval_start"))["time_ms"] - early_ms
    for key in ("eval_accuracy", "run_stop"):
        log.change(key, lambda fields: fields.update(time_ms=early))
    assert agreed(tmp_path, log.text, "6.1.0").passes_strict == passes


@pytest.mark.parametrize("value", [True, float("inf")])
def test_what_is_no_number_reaches_no_target(value: object, tmp_path: Path) -> None:
    """The official parser takes Infinity, and its checker takes true for 1."""
    log = Altered(Writer("4.0.0", "closed", "unet3d").text()).value("eval_accuracy", value)
    report = agreed(tmp_path, log.text)
    assert (report.passes_official, report.passes_strict) == (True, False)


@pytest.mark.parametrize(("seed", "accuracies", "refused"), [(2, 5, True), (1, 5, False), (2, 4, False)])
def test_a_copy_with_another_seed_and_another_time_is_told_by_its_accuracies(
    seed: int, accuracies: int, refused: bool, tmp_path: Path
) -> None:
    """A program may repeat the run of a seed to the digit, and few accuracies may be equal by chance."""
    log = _log()
    for number in range(1, accuracies):
        fields = log.fields(log.at("eval_accuracy"))
        fields["value"] += number / 7
        log.lines.insert(log.at("eval_accuracy"), TOKEN + json.dumps(fields))
    copy = Altered(log.text).value("seed", seed).later("eval_stop", 1).later("run_start", -1)
    found = answer("check", "--ruleset", "6.1.0", *write(tmp_path, log.text, copy.text))
    assert ("runs-differ" in rules_broken(found["files"][1])) == refused


def _evaluated(accuracies: list[object], every_ms: int, *, seed: int) -> Altered:
    """A run of retinanet that is evaluated every so many milliseconds."""
    log = Altered(Writer("5.1.0", "closed", "retinanet").text()).value("seed", seed)
    accuracy = log.at("eval_accuracy")
    fields = log.fields(accuracy)
    more = [
        fields | {"value": value, "time_ms": fields["time_ms"] + number * every_ms + number}
        for number, value in enumerate(accuracies, start=1)
    ]
    log.lines[accuracy : accuracy + 1] = [TOKEN + json.dumps(each_fields) for each_fields in more]
    return log.later("run_stop", len(accuracies) * every_ms + 7)


_CURVE: list[object] = [0.2412345678901234, 0.3123456789012345, 0.3412345678901234]
_CURVE_OF_MASKRCNN: list[object] = [{"BBOX": value, "SEGM": value} for value in _CURVE]


@pytest.mark.parametrize(
    ("accuracies", "of_copy", "every_ms", "every_ms_of_copy", "shared"),
    [
        (_CURVE, [0.24, 0.31, 0.341], 60_001, 60_001, "its times since run_start are those of result_0.txt"),
        (_CURVE, _CURVE, 60_001, 58_001, "its accuracies are those of result_0.txt, which has another seed"),
        (_CURVE_OF_MASKRCNN, _CURVE_OF_MASKRCNN, 60_001, 58_001, "its accuracies are those of result_0.txt"),
        (_CURVE[1:], _CURVE[1:], 60_001, 58_001, ""),  # two may be equal by chance
        ([0.24, 0.31, 0.341], [0.24, 0.31, 0.341], 60_001, 58_001, ""),  # and rounded ones
        (_CURVE, [0.24, 0.31, 0.341], 60_001, 58_001, ""),
        (_CURVE, [0.24, 0.31, 0.341], 100, 100, ""),  # short times may be equal by chance
    ],
)
def test_a_copy_of_few_evaluations_is_told_by_exact_times_or_accuracies(
    accuracies: list[object], of_copy: list[object], every_ms: int, every_ms_of_copy: int, shared: str, tmp_path: Path
) -> None:
    """Runs of ssd, retinanet, maskrcnn and llama31_405b have four: a copy moved by a day was a run."""
    log, copy = _evaluated(accuracies, every_ms, seed=1), _evaluated(of_copy, every_ms_of_copy, seed=2)
    each(copy, "", lambda fields: fields.update(time_ms=fields["time_ms"] + 86_400_000))
    done = compliance("check", "--ruleset", "5.1.0", "--json", *write(tmp_path, log.text, copy.text))
    findings = json.loads(done.stdout)["files"][1]["findings"]
    said = [finding["actual"] for finding in findings if finding["rule"] == "runs-differ"]
    assert (said == []) == (shared == "")
    assert all(shared in actual for actual in said)


def test_a_second_batch_which_is_the_one_that_the_reference_is_asked_for_is_refused(tmp_path: Path) -> None:
    """The rules of flux1 in v5.1 take any number of them."""
    log = Altered(Writer("5.1.0", "closed", "flux1").text()).repeat("global_batch_size")
    assert agreed(tmp_path, log.text, "5.1.0").passes_strict
    report = agreed(tmp_path, log.value("global_batch_size", 7, -1).text, "5.1.0")
    assert report.passes_official and "global-batch" in rules_broken(report.as_dict())


@pytest.mark.parametrize(
    ("name", "more", "broken"),
    [
        ("samples_count", 0, set()),
        ("samples_count", 1000, {"accuracy-ahead"}),
        ("samples_count", -1000, set()),
        ("epoch_num", 1, set()),  # of logs that number epochs from 0
        ("epoch_num", 2, {"accuracy-ahead"}),
    ],
)
def test_an_accuracy_states_no_more_training_than_its_evaluation_started_at(
    name: str, more: int, broken: set[str], tmp_path: Path
) -> None:
    """The reference convergence points are asked by what the last accuracy states."""
    log = _log().metadata("eval_start", -1, samples_count=262_144, epoch_num=3)
    log.metadata("eval_accuracy", -1, samples_count=262_144, epoch_num=3)
    stated = log.fields(log.at("eval_accuracy", -1))["metadata"][name]
    report = agreed(tmp_path, log.metadata("eval_accuracy", -1, **{name: stated + more}).text, "6.1.0")
    assert report.passes_official and rules_broken(report.as_dict()) == broken


@pytest.mark.parametrize(("more", "broken"), [(0, set()), (0.001, set()), (0.06, {"accuracy-ahead"})])
def test_an_accuracy_states_no_more_of_an_epoch_than_its_evaluation(more: float, broken: set[str], tmp_path) -> None:
    """An epoch is the whole run of dlrm_dcnv2: the bound of 1 for those who count from 0 hid any other figure."""
    log = Altered(Writer("5.1.0", "closed", "dlrm_dcnv2").text()).metadata("eval_start", -1, epoch_num=0.7)
    log.metadata("eval_accuracy", -1, epoch_num=0.7 + more)
    report = agreed(tmp_path, log.text, "5.1.0")
    assert report.passes_official and rules_broken(report.as_dict()) == broken


def test_where_a_rule_holds_for_many_other_benchmarks_they_are_counted() -> None:
    rule = rules.load("6.1.0").strict["accuracy-ahead"]
    assert rule.why_not_applied("resnet", "closed") == "it holds for 13 other benchmarks"


@pytest.mark.parametrize(("missed", "rcp"), [(0, "pass"), (1, "pass"), (2, "fail")])
def test_runs_of_gpt3_count_tokens_of_which_there_are_more_than_the_number_of_a_missed_target(
    missed: int, rcp: str, tmp_path: Path
) -> None:
    """rcp_checker writes 1e9 for a run without success; the reference of v4.1 takes 1.18e9 tokens."""
    slowest = convergence.reference_set("gpt3", "4.1.0").points[0]
    text = Writer("4.1.0", "closed", "gpt3").text()
    texts = []
    for run in range(3):
        log = Altered(text).value("seed", run).value("global_batch_size", slowest.global_batch)
        log.metadata("eval_accuracy", -1, epoch_num=round(slowest.mean) + 1 + run)
        texts.append(log.text if run >= missed else log.metadata("run_stop", status="aborted").text)
    write(tmp_path / "v4.1/Example/results/SYSTEM/gpt3", *texts)
    [row] = answer("audit", tmp_path)["submissions"]
    assert row["rcp"] == rcp
    assert missed or "tokens" in row["convergence"]
