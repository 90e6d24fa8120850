"""The official verdict beside mlperf-logging's own, on logs made from the rules and altered; strict is never laxer."""

import functools
import importlib.metadata
import json
import logging
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlperf_logging
import pytest
import yaml
from mlperf_logging.compliance_checker import mlp_compliance

from compliance import rules
from compliance.check import Report, check_file
from compliance.official import language, rule_files
from compliance.official.tools import config_of_ours
from runlog.reader import Event
from tests import make_log
from tests.compliance import fuzz
from tests.compliance.altered import TOKEN, Altered, Writer, each
from tests.compliance.test_check import check, rules_broken

_load = functools.cache(rules.load)


@functools.cache
def _rules(text: str) -> object:
    return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  as mlp_compliance does


class _Yaml:
    """What mlp_compliance asks of yaml, with each file read once (the checker changes no rule that it read)."""

    BaseLoader = yaml.BaseLoader

    @staticmethod
    def load(stream, Loader) -> object:
        assert Loader is yaml.BaseLoader
        return _rules(stream.read())


def _passes(path: Path, version: str, config: str | None) -> bool:
    """Whether the official checker passes the log; in this process, as thousands would be minutes of imports."""
    mlp_compliance.enqueued_configs.clear()
    original, mlp_compliance.yaml = mlp_compliance.yaml, _Yaml
    logging.disable(logging.CRITICAL)
    try:
        checker = mlp_compliance.make_checker("training", version, False, False)
        valid, *_ = mlp_compliance.main(str(path), config or f"training_{version}/common.yaml", checker)
    except Exception:  # noqa: BLE001  whatever ends it, ends it with a status other than 0
        return False
    finally:
        logging.disable(logging.NOTSET)
        mlp_compliance.yaml = original
    return bool(valid)


def agreed(folder: Path, text: str, version: str = "4.0.0", *, benchmark: str = "", why: object = "") -> Report:
    """What a check of the log finds; both checkers' official verdicts are one.

    A log of hrnet goes to the official checker with our rules for it, as --official does; `benchmark` is that of a log
    whose own stands on a line that is refused.
    """
    path = folder / "log"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    report = check_file(path, _load(version))
    ours = version == "4.0.0" and report.run.first_values.get("submission_benchmark", benchmark) == "hrnet"
    official = _passes(path, version, str(config_of_ours(version, folder)) if ours else None)
    blamed = [finding for finding in report.findings if finding.official]
    assert official == report.passes_official, f"{why}: the official checker says {official}, this one blames {blamed}"
    assert official or not report.passes_strict, f"{why}: the official checker rejects it, strict passes it"
    return report


# --- logs altered by chance ---

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, 0.759, 0.7591, 0.99, 1.0, 1e-4, 1e30, 2**70, "", "x", "1", [], {}, [1]),
    {"a": 1},
    *("open", "closed", "resnet", "hrnet", "bert", "sgd", "lars", "cloud", "aborted", "success", 1437, 1281167, 0.001),
)
KEYS = (*fuzz.KEYS, "weights_initialization", "unheard_of")


Alteration = Callable[[Altered, int, random.Random], object]


def _fields(change: Callable[[dict[str, Any], random.Random], object]) -> Alteration:
    """Changes the fields of an event."""

    def alter(log: Altered, index: int, chance: random.Random) -> None:
        fields = log.fields(index)
        change(fields, chance)
        log.write(index, fields)

    return alter


def _repeat_with_other_value(log: Altered, index: int, chance: random.Random) -> None:
    log.lines.insert(index + 1, TOKEN + json.dumps(log.fields(index) | {"value": chance.choice(VALUES)}))


def _metadata(fields: dict[str, Any], chance: random.Random) -> None:
    names = [name for name in fields["metadata"] if name not in ("file", "lineno")]
    if not names or chance.random() < 0.2:
        fields["metadata"][chance.choice(["epoch_num", "samples_count", "status"])] = chance.choice(VALUES)
    elif chance.random() < 0.5:
        del fields["metadata"][chance.choice(names)]
    else:
        fields["metadata"][chance.choice(names)] = chance.choice([*VALUES, 3, 4, 7])


def _time(fields: dict[str, Any], chance: random.Random) -> None:
    moved = fields["time_ms"] + chance.choice([-1e3, 1e3, 1e7, -1e7, 1e8])
    fields["time_ms"] = chance.choice([0, -1, 1e300, 2**64, "1", None, float("nan"), moved])


def _join_lines(log: Altered, index: int, chance: random.Random) -> None:
    if index + 1 < len(log.lines):
        log.lines[index] += log.lines.pop(index + 1)


def _damage(log: Altered, index: int, chance: random.Random) -> None:
    line = log.lines[index]
    at = chance.randrange(len(line))
    bit = chance.choice(['"', "}", "\x00", "\x1b[0m", "\r", "é", ":::MLLOG ", "\\", "\x85", "\udcff"])
    log.lines[index] = chance.choice([line[:at], line + bit, line + "  ", line[:at] + bit + line[at:], bit + line])


def _insert(log: Altered, chance: random.Random, line: str) -> None:
    log.lines.insert(chance.randrange(max(1, len(log.lines))), line)


ALTERATIONS: tuple[Alteration, ...] = (
    lambda log, index, chance: log.lines.pop(index),
    lambda log, index, chance: log.drop_all(log.fields(index)["key"]),
    lambda log, index, chance: log.lines.insert(index, log.lines[index]),
    lambda log, index, chance: _insert(log, chance, log.lines[index]),
    lambda log, index, chance: _insert(log, chance, log.lines.pop(index)),
    lambda log, index, chance: log.lines.__delitem__(slice(index, None)),
    *[_fields(lambda fields, chance: fields.update(value=chance.choice(VALUES)))] * 2,
    *[_fields(_metadata)] * 2,
    _fields(_time),
    _fields(lambda fields, chance: fields.update(key=chance.choice([*KEYS, *KEYS, None, 3, ["run_stop"]]))),
    _fields(lambda fields, chance: fields.pop(chance.choice(list(fields)))),
    *(_repeat_with_other_value, _join_lines, _damage),
)


def altered(text: str, chance: random.Random) -> str:
    """`text` with one to three alterations, most of them of events that the rules name."""
    log = Altered(text)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        whole = []
        for index in log.events():
            try:
                if isinstance(log.fields(index), dict):
                    whole.append(index)
            except ValueError:
                continue  # an earlier alteration broke it
        try:
            chance.choice(ALTERATIONS)(log, chance.choice(whole), chance)
        except (IndexError, KeyError, AttributeError, TypeError):
            continue  # nothing of the kind left to alter, or no number any more
    return log.text


SEEDS = {
    "open": make_log.run(),
    "closed lars": make_log.closed_run(),
    "closed sgd": make_log.closed_run(hyperparameters=make_log.SGD),
    "aborted": make_log.run(status="aborted"),
    "hrnet": make_log.hrnet_run(),
    "hrnet closed": make_log.closed_hrnet_run(),
}
_OLDER = ("0.7.0", "1.0.0", "1.1.0", "2.0.0", "3.0.0", "3.1.0")
_MLPERF = ("result_0.txt", "result_2.txt")  # of another submitter's v2.1: one that converged, the one that did not
_OWN = ("open", "closed lars", "closed sgd")


@pytest.mark.parametrize(
    ("version", "names", "count", "start"),
    [
        ("4.0.0", tuple(SEEDS), 120, 0),
        ("4.0.0", _MLPERF, 60, 10_000),
        ("2.1.0", _MLPERF, 40, 20_000),
        *((version, (*_OWN, *_MLPERF), 30, 30_000) for version in _OLDER),
        *(
            pytest.param(version, (*names, *_MLPERF), 2_000, 100_000, marks=pytest.mark.slow)
            for version, names in (("4.0.0", SEEDS), *((older, (*_OWN, "aborted")) for older in ("2.1.0", *_OLDER)))
        ),
    ],
)
def test_altered_logs_of_our_benchmarks(version, names, count: int, start: int, published_logs: Path, tmp_path) -> None:
    # the other rulesets know no weights_initialization, so its 161 lines would be altered to no effect
    dropped = () if "1.1.0" <= version <= "2.1.0" else ("weights_initialization",)
    published = {name: (published_logs / "mlperf_v2.1_dgxa100_resnet" / name).read_text() for name in _MLPERF}
    theirs = {name: Altered(text).drop_all(*dropped).text for name, text in published.items()}
    outcomes: Counter[str] = Counter()
    for number in range(start, start + count):
        name = sorted(names)[number % len(names)]
        text = altered((SEEDS | theirs)[name], random.Random(number))
        why = f"seed {name}, number {number}, ruleset {version}"
        report = agreed(tmp_path, text, version, benchmark="hrnet" if name.startswith("hrnet") else "", why=why)
        kind = (
            "both pass" if report.passes_strict else "only strict rejects" if report.passes_official else "both reject"
        )
        outcomes[kind] += 1
    assert outcomes["both reject"] + outcomes["only strict rejects"] > count / 5, outcomes
    kinds = ("both reject", "only strict rejects", *(("both pass",) if version == "4.0.0" else ()))
    assert version in _OLDER or min(outcomes[kind] for kind in kinds) > count / 15, outcomes


@pytest.mark.parametrize("metadata", [["status", "epoch_num"], "status epoch_num", "samples_count", [], "", None, 5])
def test_metadata_that_is_no_object_is_taken_as_the_official_checker_takes_it(metadata, tmp_path: Path) -> None:
    for key in ("run_stop", "epoch_start", "block_start", "block_stop", "eval_accuracy", "epoch_stop"):
        log = each(Altered(SEEDS["closed lars"]), key, lambda fields: fields.update(metadata=metadata))
        assert not agreed(tmp_path, log.text, why=key).passes_strict


@pytest.mark.parametrize("version", ["0.7.0", "1.1.0", "2.0.0", "3.0.0", "3.1.0"])
def test_the_time_before_the_run_is_limited_as_the_round_limits_it(version: str, tmp_path: Path) -> None:
    """The older rounds limit it whatever the division; the others take a division that is named late for none."""
    limit_ms = 60_000 * (20 if version == "0.7.0" else 30)
    for minutes_ms in (0, limit_ms - 60_000, limit_ms + 60_000):
        log = Altered(make_log.run()).later("init_start", -minutes_ms)
        agreed(tmp_path, log.text, version, why=minutes_ms)
        agreed(tmp_path, log.move_after("submission_division", "init_stop").text, version, why=minutes_ms)


def test_a_log_of_damaged_lines_is_judged_by_these_and_refused_by_both(tmp_path: Path) -> None:
    damaged = ':::MLLOG {"time_ms": 1, "key": "a", "value": 1, "event_type": "POINT_IN_TIME"}\n'
    log = Altered(make_log.run()).drop("run_stop")
    report = agreed(tmp_path, log.text + 10_001 * damaged)  # it may be behind them
    assert {finding.rule for finding in report.findings} == {"line-damaged"}
    assert not report.passes_official


def test_of_a_line_with_two_events_the_official_checker_reads_the_last(tmp_path: Path) -> None:
    """The first one is cut, as where two ranks write at once."""
    log = Altered(make_log.run()).line("seed", lambda line: ':::MLLOG {"key": "seed", "val' + line)
    report = agreed(tmp_path, log.text)
    assert report.passes_official and {f.rule for f in report.findings if f.severity == "error"} >= {"line-damaged"}


def test_carriage_returns_move_no_finding_on_a_line_that_both_refuse(tmp_path: Path) -> None:
    """Bars of progress write the carriage returns. The refused line has an event that a rule of both asks for."""
    text = Altered(make_log.run()).line("global_batch_size", lambda line: line[:40]).text
    found = agreed(tmp_path, f"1%|2%|3%\n{text}").findings
    for bar in ("1%\r2%\r3%\n", "1%\r2%\r3%\r\n"):
        assert agreed(tmp_path, bar + text).findings == found
    assert ("line-damaged", True) in {(finding.rule, finding.official) for finding in found}


# --- each benchmark of each ruleset ---

VERSIONS = [version for version in rule_files.versions() if version >= "4.0.0"]
# the package has a file for them, and its list of benchmarks lacks them
NOT_IN_THE_LIST = {
    ("4.0.0", "open llama2_70b_lora"),
    ("4.1.0", "open llama2_70b_lora"),
    ("5.1.0", "closed bert"),
    ("5.1.0", "open bert"),
}


def test_the_archive_holds_the_installed_packages_files_unchanged() -> None:
    package = importlib.metadata.distribution("mlperf-logging")
    assert package.version == rule_files.VERSION
    folder = Path(mlperf_logging.__file__).parent
    with zipfile.ZipFile(rule_files.ARCHIVE) as archive:
        [licence] = [file for file in package.files or () if file.name == "LICENSE.md"]
        assert archive.read("LICENSE.md") == Path(licence.locate()).read_bytes()
        names = [name for name in archive.namelist() if name != "LICENSE.md"]
        assert all(archive.read(name) == (folder / name).read_bytes() for name in names)
    versions = (folder / "compliance_checker").glob("training_[0-9].[0-9].[0-9]")
    theirs = {path.relative_to(folder.parent) for version in versions for path in version.glob("*.yaml")}
    oldest = {path for path in theirs if "training_0.6.0" in path.parts}  # no log of ours to compare
    rules = {name for name in names if name.startswith("compliance_checker/")}
    assert {str(path.relative_to("mlperf_logging")) for path in theirs - oldest} == rules
    points = {str(path.relative_to(folder)) for path in (folder / "rcp_checker").glob("training_*/*.json")}
    assert points <= set(names)


def test_every_file_is_read() -> None:
    assert sum(len(rule_files.load(name).rules) for name in rule_files.names()) > 1900


def _logs(version: str) -> dict[str, str]:
    known = [name for name in rule_files.benchmarks(version) if name not in ("resnet", "hrnet")]  # test_differential
    names = [(division, name) for division in ("closed", "open") for name in known]
    return {f"{division} {name}": Writer(version, division, name).text() for division, name in names}


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_made_from_the_rules_pass_both(version: str, tmp_path: Path) -> None:
    for name, text in _logs(version).items():
        findings = agreed(tmp_path, text, version, why=name).findings
        blamed = ["submission_benchmark.value"] if (version, name) in NOT_IN_THE_LIST else []
        assert [f.rule for f in findings if f.severity == "error"] == blamed, name


@pytest.mark.parametrize(("number", "seed"), [(10, 1), pytest.param(600, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", VERSIONS)
def test_altered_logs_of_each_benchmark(version: str, number: int, seed: int, tmp_path: Path) -> None:
    chance, outcomes = random.Random(seed), []
    for text in _logs(version).values():
        for _ in range(number):
            changed = altered(text, chance)
            outcomes.append(agreed(tmp_path, changed, version, why=changed).passes_official)
    assert min(outcomes.count(True), outcomes.count(False)) > len(outcomes) / 10


def _log() -> Altered:
    return Altered(Writer("6.1.0", "closed", "flux1").text())


def _late(log: Altered, *names: str) -> Altered:
    """The benchmark and the division come behind what their rules look at."""
    for name in names:
        log.move_after(f"submission_{name}", "train_samples")
    return log


@pytest.mark.parametrize(
    ("alter", "rules_of_both"),
    [
        (lambda log: _late(log, "division", "benchmark"), []),
        (lambda log: _late(log, "division", "benchmark").value("opt_name", "sgd"), ["opt_name.value"]),
        (lambda log: _late(log, "benchmark", "division"), []),
        (lambda log: _late(log, "benchmark", "division").value("opt_name", "sgd"), ["opt_name.value"]),
        *(
            (lambda log, value=value: log.value("submission_benchmark", value), ["known-benchmark"])
            for value in ("resnet", "../common", "", None, ["flux1"])
        ),
        # one NaN is another's equal, as the official checker takes it
        (lambda log: log.value("submission_org", float("nan")).repeat("submission_org"), []),
        (lambda log: log.value("submission_org", float("nan")).repeat("submission_org").value("submission_org", "x"),
         ["submission_org.count"]),
    ],
)  # fmt: skip
def test_both_checkers_say_the_same(alter, rules_of_both: list[str], tmp_path: Path) -> None:
    assert [f.rule for f in agreed(tmp_path, alter(_log()).text, "6.1.0").findings if f.official] == rules_of_both


def test_a_benchmark_whose_file_is_enqueued_for_ever_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(_log().value("submission_benchmark", "common").text)
    [finding] = check_file(tmp_path / "log", rules.load("6.1.0")).findings
    assert finding.rule == "known-benchmark"
    assert finding.actual.endswith("training_6.1.0/closed_common.yaml has no rules of a benchmark")


@pytest.mark.parametrize(
    ("version", "benchmark", "values", "best"),
    [
        ("6.1.0", "flux1", (0.9, 0.7, 0.8), 0.7),
        ("6.1.0", "llama31_8b", (5.0, 4.0), 4.0),
        ("4.0.0", "bert", (0.5, 0.3), 0.5),
    ],
)
def test_the_best_of_the_values_that_miss_the_target_is_the_nearest(version, benchmark, values, best, tmp_path) -> None:
    """The smallest of a loss, the largest of an accuracy."""
    log = Altered(Writer(version, "closed", benchmark).text())
    for _ in values[1:]:
        log.repeat("eval_accuracy")
    for number, value in enumerate(values):
        log.value("eval_accuracy", value, number)
    found = {finding.rule: finding for finding in agreed(tmp_path, log.text, version).findings if finding.official}
    line = log.at("eval_accuracy", values.index(best)) + 1
    assert (found["eval_accuracy.value"].actual, found["eval_accuracy.value"].line) == (f"the best is {best:g}", line)


def test_strict_adds_what_is_common_to_all_benchmarks(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(_log().drop("seed").later("run_stop", -1e8).value("cache_clear", False).text)
    status, [file] = check(path, "--ruleset", "6.1.0", "--verdict", "strict")
    assert (status, file["official"], file["strict"]) == (1, "pass", "fail")
    assert rules_broken(file) >= {"seed-present", "run-time", "cache-cleared"}
    for alter in (lambda log: log.value("seed", "x"), lambda log: log.without_metadata("seed", "lineno")):
        path.write_text(alter(_log()).text)
        _, [of_seed] = check(path, "--ruleset", "6.1.0", "--verdict", "strict")
        assert rules_broken(of_seed) == {"seed-present"}
    notes = {f["rule"]: f["actual"] for f in file["findings"] if f["severity"] == "info"}
    assert notes["rcp-convergence"].startswith("not applied: it holds for resnet")
    text = _log().text
    for seed in range(2):
        (tmp_path / f"result_{seed}.txt").write_text(Altered(text).value("seed", seed).text)
    _, files = check(tmp_path, "--ruleset", "6.1.0")
    assert rules_broken(files[1]) == {"runs-differ"}


def _rules_of_a_key(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rules that are read from a file of one key, which has this rule."""
    (tmp_path / "rules.yaml").write_text(f"- KEY:\n    NAME: some_key\n    {rule}\n")
    monkeypatch.setattr(rule_files, "RULES", tmp_path)
    return rule_files.load.__wrapped__("rules.yaml")


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("CHECK: \"__import__('os').system('true')\"", "__import__('os').system('true')"),
        ('CHECK: "v.__class__"', "v.__class__"),
        ("CHECK: \"[x for x in v['value']]\"", "[x for x in v['value']]"),
        ("CHECK: \"v['value'] ** v['value'] > 1\"", "v['value'] ** v['value'] > 1"),
        ("CHECK: \"v['value'] ==\"", "v['value'] =="),
        ('POST: "import os"', "import os"),
        ("POST: \"s['a']['b'] = 1\"", "s['a']['b'] = 1"),
        ("REQ: AT_MOST(3)", "AT_MOST(3)"),
        ("REQ: AT_LEAST_ONE_OR(absent)", "absent"),
        ('PRE: "1"', "PRE"),
    ],
)
def test_a_form_that_is_not_known_is_an_error_that_names_it(rule: str, named: str, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"rules\.yaml: ") as raised:
        _rules_of_a_key(rule, tmp_path, monkeypatch)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("('a' in v['metadata']) | ('b' in v['metadata'])", "metadata has a or b"),
        ("('a' in v['metadata']) | (v['value'] > 0)", "metadata has a or above 0"),
        ("(v['value'] > 0) | ('a' in v['metadata'])", "above 0 or metadata has a"),
    ],
)
def test_one_of_two_checks_in_words(check: str, words: str, tmp_path: Path, monkeypatch) -> None:
    [rule_check] = _rules_of_a_key(f'CHECK: "{check}"', tmp_path, monkeypatch).rules["some_key"].checks
    assert rule_check.words == words


@pytest.mark.parametrize("check", ["s['names'] == ['a']", "sorted(s['names']) == sorted([v])", "sorted(s['x']) == []"])
def test_a_check_at_the_end_is_of_names_alone(check: str, tmp_path: Path, monkeypatch) -> None:
    post = "s['names'] += [v['value']]"
    (tmp_path / "rules.yaml").write_text(f"- KEY:\n    NAME: some_key\n    POST: {post}\n- END:\n    CHECK: {check}\n")
    monkeypatch.setattr(rule_files, "RULES", tmp_path)
    with pytest.raises(ValueError, match=r"rules\.yaml: END: no meaning for "):
        rule_files.load.__wrapped__("rules.yaml")


def test_arithmetic_is_of_numbers_alone() -> None:
    event = Event("key", "%0999999999d", {}, 0, "POINT_IN_TIME", 1, 0)
    for text in ("v['value'] % 5 == 0", "v['value'] * 1152 == 1"):
        with pytest.raises(TypeError):
            language.compile_expression(language.parse_expression(text))(event, language.State())
