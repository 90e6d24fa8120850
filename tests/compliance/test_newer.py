"""Rulesets 4.1.0 to 6.1.0: our verdict from the package's rules, and the official checker's on the same text."""

import random
from pathlib import Path

import pytest

from compliance import newer, rules
from compliance.check import check_file
from tests.compliance import official_checker
from tests.compliance.altered import Altered
from tests.compliance.newer_logs import Writer
from tests.compliance.test_differential import altered

# the package has a file for them, and its list of benchmarks lacks them
NOT_IN_THE_LIST = {("4.1.0", "open llama2_70b_lora"), ("5.1.0", "closed bert"), ("5.1.0", "open bert")}


def _logs(version: str) -> dict[str, str]:
    names = [(division, name) for division in ("closed", "open") for name in newer.benchmarks(version)]
    return {f"{division} {name}": Writer(version, division, name).text() for division, name in names}


def _official(path: Path, version: str) -> bool:
    findings, _ = check_file(path, rules.load(version))
    return not any(finding.official for finding in findings)


def _plain_alterations(text: str) -> list[str]:
    """Each event dropped, said twice, with wrong values, and in other places."""
    texts = []
    for number in range(len(text.splitlines())):
        key = Altered(text).fields(number)["key"]
        texts.append(Altered(text).drop(key).text)
        texts.append(Altered(text).repeat(key).text)
        texts += [Altered(text).value(key, value).text for value in (-1, 2, "no")]
        texts.append(Altered(text).repeat(key).value(key, 7, -1).text)
        texts.append(Altered(text).change(key, lambda fields: fields.update(metadata={})).text)
        for place in (0, len(text.splitlines()) - 1):
            log = Altered(text)
            log.lines.insert(place, log.lines.pop(number))
            texts.append(log.text)
    return texts


@pytest.mark.parametrize("version", rules.NEWER)
def test_logs_made_from_the_rules_pass_both(version: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for name, text in _logs(version).items():
        path.write_text(text)
        passes = (version, name) not in NOT_IN_THE_LIST
        assert official_checker.passes(path, version) == passes, name
        findings, _ = check_file(path, rules.load(version))
        assert [f.rule for f in findings if f.official] == ([] if passes else ["submission_benchmark.check"]), name
        assert [f for f in findings if f.severity == "error" and not f.official] == [], name


def _compare(version: str, folder: Path, each: int, seed: int) -> None:
    chance, path, outcomes = random.Random(seed), folder / "log", []
    for text in _logs(version).values():
        plain = _plain_alterations(text)
        for number in range(each):
            changed = chance.choice(plain) if number % 2 else altered(text, chance)
            path.write_bytes(changed.encode("utf-8", "surrogateescape"))
            theirs = official_checker.passes(path, version)
            assert _official(path, version) == theirs, changed
            outcomes.append(theirs)
    assert min(outcomes.count(True), outcomes.count(False)) > len(outcomes) / 10


@pytest.mark.parametrize("version", rules.NEWER)
def test_altered_logs(version: str, tmp_path: Path) -> None:
    _compare(version, tmp_path, 40, 1)
