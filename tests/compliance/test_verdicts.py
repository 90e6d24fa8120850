"""Both verdicts of `python -m compliance check`, and forgeries that must not pass."""

import json
import random
import re
from pathlib import Path

import jsonschema
import pytest

from compliance import rules
from compliance.__main__ import main
from tests import make_log
from tests.compliance.altered import Altered, clock, foreign, intervals, write
from tests.compliance.test_check import check, rules_broken

# --- the two verdicts ---


def test_form_fails_neither_verdict_of_others_logs_and_plausibility_only_the_strict_one(tmp_path: Path, capsys) -> None:
    path = tmp_path / "result_0.txt"
    others = foreign(make_log.run())
    for text, strict in (
        (others, "pass"),
        (Altered(others).repeat("submission_org").drop("block_stop").text, "pass"),
        (Altered(others).later("run_stop", -1e7).text, "fail"),
        (Altered(others).repeat("run_start").later("run_start", 5, 1).text, "fail"),
    ):
        path.write_text(text)
        status, [file] = check(capsys, path)
        assert (status, file["by"], file["official"], file["strict"]) == (0, "official", "pass", strict)
        status, [file] = check(capsys, path, "--verdict", "strict")
        assert (status, file["verdict"]) == (strict == "fail", strict)
    path.write_text(make_log.run(status="aborted"))
    assert check(capsys, path)[0] == 1
    status, [file] = check(capsys, path, "--verdict", "official")
    assert (status, file["verdict"], file["official"], file["strict"]) == (0, "pass", "pass", "fail")


def test_one_line_for_a_log_of_another_benchmark_and_for_no_log(tmp_path: Path, capsys) -> None:
    path = tmp_path / "result_0.txt"
    for text, rule in (
        (foreign(make_log.run()).replace('"value": "resnet"', '"value": "vgg"'), "known-benchmark"),
        ("a text\nthat is no log\n", "events.count"),
        ("\0\0\x7fELF", "events.count"),
    ):
        path.write_text(text)
        status, [file] = check(capsys, path)
        assert (status, [f["rule"] for f in file["findings"]]) == (1, [rule])


def test_annotations_of_github(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a,b.txt"
    path.write_text(Altered(make_log.run()).value("submission_org", "100%").drop("run_summary").text)
    assert main(["check", "--format", "github", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = f"file={tmp_path}/a%2Cb.txt"
    assert f"::error {place},title=own-log::no run_summary; hand in the log as the run wrote it, or run again" in lines
    assert any(line.startswith(f"::notice {place},title=run-mode::") for line in lines)
    assert lines[-1] == f"{path}: FAIL"


# --- what must not pass ---


@pytest.mark.parametrize("without", [(), ("epoch_start", "epoch_stop")])
@pytest.mark.parametrize(("shorter", "broken"), [(120, set()), (180, {"epoch-time"})])
def test_training_cut_from_a_log_is_found(without, shorter: int, broken: set[str], tmp_path: Path, capsys) -> None:
    """The time between the first block's end and run_stop is squeezed."""
    log = Altered(foreign(make_log.closed_run())).drop_all(*without)
    first, last = (log.fields(log.at(key))["time_ms"] for key in ("block_stop", "run_stop"))
    kept_ms = (32 * 36_000 + 8 * 2_000) / shorter
    clock(log, lambda ms: first + min((ms - first) / (last - first), 1) * kept_ms, "block_stop")
    _, [file] = check(capsys, *write(tmp_path, log.text), "--verdict", "strict")
    assert (file["official"], rules_broken(file)) == ("pass", broken)


def test_two_runs_that_diverged_are_not_one(tmp_path: Path, capsys) -> None:
    diverged = [make_log.closed_run(seed=seed, accuracies=(*(0.001,) * 8, seed * 0.001)) for seed in (1, 2)]
    _, files = check(capsys, *write(tmp_path, *map(foreign, diverged)))
    assert not any(f["rule"] == "runs-differ" for file in files for f in file["findings"])


@pytest.mark.parametrize(("equal", "found"), [(36, True), (20, True), (4, False)])
def test_equal_intervals_are_more_than_chance_explains(equal: int, found: bool, tmp_path: Path, capsys) -> None:
    """One run packaged again: another start and seed, other accuracies; `equal` of 36 epochs took the same time."""
    chance, texts = random.Random(1), []
    took = [chance.gauss(36_000, 300) for _ in range(36)]
    for seed, same in ((1, 36), (2, equal)):
        log = Altered(foreign(make_log.closed_run(seed=seed)))
        new_ms = [int(took[n] if n < same else chance.gauss(36_000, 300)) for n in range(36)]
        texts.append(intervals(log, lambda _, new_ms=new_ms: new_ms).text)
    write(tmp_path, *texts)
    _, files = check(capsys, tmp_path, "--verdict", "strict")
    assert rules_broken(files[1]) == ({"runs-differ"} if found else set())
    if found:
        [one] = [f for f in files[1]["findings"] if f["rule"] == "runs-differ"]
        assert "intervals, to the clock's tick (by chance in 1 of 10^" in one["actual"]


def _closed_run_of_4_epochs(epochs: int) -> str:
    return make_log.closed_run(epochs=epochs, accuracies=(0.7604,))


@pytest.mark.parametrize("make", [make_log.run, _closed_run_of_4_epochs, make_log.hrnet_run])
def test_no_line_of_our_own_log_can_be_deleted(make, tmp_path: Path, capsys) -> None:
    log = Altered(make(epochs=4))
    for epoch in range(4):  # as a run writes it: after epoch_stop
        stop, measured = log.at("epoch_stop", epoch), log.at("epoch_throughput", epoch)
        fields = log.fields(stop), log.fields(measured)
        log.write(measured, fields[0] | {"time_ms": fields[1]["time_ms"]})
        log.write(stop, fields[1] | {"time_ms": fields[0]["time_ms"]})
    lines = log.lines
    path = tmp_path / "result_0.txt"
    path.write_text(log.text)
    assert check(capsys, path)[0] == 0
    passed = []
    for index, line in enumerate(lines):
        if line.startswith((":::MLLOG", "# {")):
            path.write_text("\n".join([*lines[:index], *lines[index + 1 :], ""]))
            if check(capsys, path)[0] == 0:
                passed.append(line)
    assert passed == []


@pytest.mark.parametrize(
    ("optimizer", "key", "value", "severity", "batch"),
    [
        ("lars", "lars_opt_base_learning_rate", 0, "error", 408),
        ("lars", "lars_opt_learning_rate_warmup_epochs", -1, "error", 408),
        ("lars", "model_bn_span", 0, "error", 408),
        ("sgd", "sgd_opt_base_learning_rate", -0.1, "error", 408),
        ("sgd", "opt_learning_rate_warmup_epochs", -1, "error", 408),
        # where verifier and table differ, the verifier is "the source of truth"
        ("lars", "lars_opt_momentum", 0.95, "warning", 408),
        ("lars", "lars_opt_momentum", 0.95, None, 4096),  # of 8 devices: from 32k on it may be another one
        ("sgd", "sgd_opt_momentum", 0.8, "warning", 408),
        ("sgd", "sgd_opt_learning_rate_decay_poly_power", 1, "warning", 408),
        ("sgd", "sgd_opt_learning_rate_decay_steps", 0.5, "warning", 408),
    ],
)
def test_the_written_rules_of_hyperparameters(optimizer, key: str, value, severity, batch, tmp_path, capsys) -> None:
    recipe = (make_log.LARS if optimizer == "lars" else make_log.SGD) | {key: value}
    of_closed, of_open = write(
        tmp_path, make_log.closed_run(hyperparameters=recipe, batch=batch), make_log.run(hyperparameters=recipe)
    )
    status, [file] = check(capsys, of_closed)
    found = [f for f in file["findings"] if f["rule"] == f"{key}.value"]
    assert [(f["class"], f["severity"]) for f in found] == ([("rule", severity)] if severity else [])
    if severity == "error":
        assert (status, file["official"]) == (1, "pass")
        assert f"|resnet |{optimizer if key != 'model_bn_span' else 'sgd'} |{key}" in found[0]["source"]
        assert check(capsys, of_open)[0] == 0  # the open division may
    elif severity:
        assert "read in: training_rules.adoc of version 0.7" in found[0]["source"]


def test_a_closed_run_numbers_its_epochs_from_1(tmp_path: Path, capsys) -> None:
    text = re.sub(r'(epoch_num": )(\d+)', lambda match: f"{match[1]}{int(match[2]) - 1}", make_log.closed_run())
    _, [file] = check(capsys, *write(tmp_path, text), "--verdict", "strict")
    assert {f["severity"] for f in file["findings"] if f["rule"] == "epoch_start.metadata"} == {"warning"}  # "should"


def test_the_findings_are_as_their_schema_says(tmp_path: Path, capsys) -> None:
    schema = json.loads((rules.RULES.parent / "findings.schema.json").read_text())
    texts = Altered(make_log.run(seed=1)).drop("init_start").text, make_log.closed_run(seed=2), "\0"
    main(["check", "--json", "--official", *map(str, write(tmp_path, *texts))])
    said = json.loads(capsys.readouterr().out)
    jsonschema.validate(said, schema)
    said["files"][0]["findings"][0]["class"] = "other"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(said, schema)
