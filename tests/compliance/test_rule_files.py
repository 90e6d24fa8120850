"""Every benchmark of each ruleset: our verdict from the package's rules, and the official checker's of the same log."""

import importlib.metadata
import random
import zipfile
from pathlib import Path

import mlperf_logging
import pytest

from compliance import rules
from compliance.check import check_file
from compliance.official import language, rule_files
from runlog.reader import Event
from tests.compliance import official_checker
from tests.compliance.altered import Altered
from tests.compliance.rule_logs import Writer
from tests.compliance.test_check import check, rules_broken
from tests.compliance.test_differential import altered

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
    assert {str(path.relative_to("mlperf_logging")) for path in theirs - oldest} == {n for n in names if "rcp" not in n}


def test_every_file_is_read() -> None:
    assert sum(len(rule_files.load(name).rules) for name in rule_files.names()) > 1900


def _logs(version: str) -> dict[str, str]:
    known = [name for name in rule_files.benchmarks(version) if name not in ("resnet", "hrnet")]  # test_differential
    names = [(division, name) for division in ("closed", "open") for name in known]
    return {f"{division} {name}": Writer(version, division, name).text() for division, name in names}


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_made_from_the_rules_pass_both(version: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for name, text in _logs(version).items():
        path.write_text(text)
        passes = (version, name) not in NOT_IN_THE_LIST
        assert official_checker.passes(path, version) == passes, name
        findings = check_file(path, rules.load(version)).findings
        assert [f.rule for f in findings if f.official] == ([] if passes else ["submission_benchmark.value"]), name
        assert [f for f in findings if f.severity == "error" and not f.official] == [], name


@pytest.mark.parametrize(("each", "seed"), [(10, 1), pytest.param(600, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", VERSIONS)
def test_altered_logs(version: str, each: int, seed: int, tmp_path: Path) -> None:
    chance, path, outcomes = random.Random(seed), tmp_path / "log", []
    for text in _logs(version).values():
        for _ in range(each):
            changed = altered(text, chance)
            path.write_bytes(changed.encode("utf-8", "surrogateescape"))
            if '"value": "hrnet"' in changed and version == "4.0.0":
                continue  # of this project: the tool has no file for it
            theirs = official_checker.passes(path, version)
            findings = check_file(path, rules.load(version)).findings
            assert theirs == (not any(finding.official for finding in findings)), changed
            outcomes.append(theirs)
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
    path = tmp_path / "log"
    path.write_text(alter(_log()).text)
    assert [f.rule for f in check_file(path, rules.load("6.1.0")).findings if f.official] == rules_of_both
    assert official_checker.passes(path, "6.1.0") == (not rules_of_both)


def test_a_benchmark_whose_file_is_enqueued_for_ever_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(_log().value("submission_benchmark", "common").text)
    assert [f.rule for f in check_file(tmp_path / "log", rules.load("6.1.0")).findings] == ["known-benchmark"]


def test_strict_adds_what_is_common_to_all_benchmarks(tmp_path: Path, capsys) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(_log().drop("seed").later("run_stop", -1e8).value("cache_clear", False).text)
    status, [file] = check(capsys, path, "--ruleset", "6.1.0", "--verdict", "strict")
    assert (status, file["official"], file["strict"]) == (1, "pass", "fail")
    assert rules_broken(file) >= {"seed-present", "run-time", "time-order", "cache-cleared"}
    for alter in (lambda log: log.value("seed", "x"), lambda log: log.without_metadata("seed", "lineno")):
        path.write_text(alter(_log()).text)
        _, [of_seed] = check(capsys, path, "--ruleset", "6.1.0", "--verdict", "strict")
        assert rules_broken(of_seed) == {"seed-present"}
    notes = {f["rule"]: f["actual"] for f in file["findings"] if f["severity"] == "info"}
    assert notes["rcp-convergence"].startswith("not applied: checked by the rules of 6.1.0")
    text = _log().text
    for seed in range(2):
        (tmp_path / f"result_{seed}.txt").write_text(Altered(text).value("seed", seed).text)
    _, files = check(capsys, tmp_path, "--ruleset", "6.1.0")
    assert rules_broken(files[1]) == {"runs-differ"}


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
    (tmp_path / "rules.yaml").write_text(f"- KEY:\n    NAME: some_key\n    {rule}\n")
    monkeypatch.setattr(rule_files, "RULES", tmp_path)
    with pytest.raises(ValueError, match=r"rules\.yaml: ") as raised:
        rule_files.load.__wrapped__("rules.yaml")
    assert named in str(raised.value)


def test_arithmetic_is_of_numbers_alone() -> None:
    event = Event("key", "%0999999999d", {}, 0, "POINT_IN_TIME", 1, 0)
    for text in ("v['value'] % 5 == 0", "v['value'] * 1152 == 1"):
        with pytest.raises(TypeError):
            language.expression(text)(event, language.State())
