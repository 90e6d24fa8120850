"""This checker and the official one on thousands of altered logs: `official` is its verdict, strict never laxer."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compliance import rules
from compliance.check import check_file
from compliance.official.tools import config_of_ours
from tests import make_log
from tests.compliance import fuzz, official_checker
from tests.compliance.altered import TOKEN, Altered
from tests.compliance.forging import each

VALUES = (
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
        except (IndexError, KeyError, AttributeError):
            continue  # nothing of the kind left to alter
    return log.text


def _compare(seeds: dict[str, str], ruleset_name: str, folder: Path, count: int, start: int) -> Counter[str]:
    ruleset = rules.load(ruleset_name)
    path = folder / "log.txt"
    outcomes: Counter[str] = Counter()
    names = sorted(seeds)
    for number in range(start, start + count):
        name = names[number % len(names)]
        text = altered(seeds[name], random.Random(number))
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        report = check_file(path, ruleset)
        findings, run = report.findings, report.run
        errors = [finding for finding in findings if finding.severity == "error"]
        # A log of hrnet goes to the official checker with our rules for it, as --official does; so does one
        # whose benchmark stands on a line that is refused.
        benchmark = run.values.get("submission_benchmark", "hrnet" if name.startswith("hrnet") else None)
        config = str(config_of_ours("4.0.0", folder)) if benchmark == "hrnet" and ruleset_name == "4.0.0" else None
        official = official_checker.passes(path, ruleset_name, config)
        where = f"seed {name}, number {number}, ruleset {ruleset_name}"
        assert official or errors, f"{where}: the official checker rejects it, this one passes it"
        ours = [finding for finding in findings if finding.official]
        assert official == (not ours), f"{where}: official says {official}, this checker calls official {ours}"
        if official and errors:
            outcomes["only ours rejects"] += 1
            outcomes.update(f"by {finding.rule}" for finding in errors)
        else:
            outcomes["both pass" if official else "both reject"] += 1
    return outcomes


@pytest.fixture(scope="module")
def own_seeds() -> dict[str, str]:
    return {
        "open": make_log.run(),
        "closed lars": make_log.closed_run(),
        "closed sgd": make_log.closed_run(hyperparameters=make_log.SGD),
        "aborted": make_log.run(status="aborted"),
        "hrnet": make_log.hrnet_run(),
        "hrnet closed": make_log.closed_hrnet_run(),
    }


@pytest.fixture(scope="module")
def mlperf_seeds(published_logs: Path) -> dict[str, str]:
    """MLPerf v2.1 results of another submitter: one that converged, the one that did not."""
    folder = published_logs / "mlperf_v2.1_dgxa100_resnet"
    return {name: (folder / name).read_text() for name in ("result_0.txt", "result_2.txt")}


@pytest.mark.parametrize("metadata", [["status", "epoch_num"], "status epoch_num", "samples_count", [], "", None, 5])
def test_metadata_that_is_no_object_is_taken_as_the_official_checker_takes_it(own_seeds, metadata, tmp_path) -> None:
    path = tmp_path / "log.txt"
    for key in ("run_stop", "epoch_start", "block_start", "block_stop", "eval_accuracy", "epoch_stop"):
        log = each(Altered(own_seeds["closed lars"]), key, lambda fields: fields.update(metadata=metadata))
        path.write_text(log.text)
        findings = check_file(path, rules.load("4.0.0")).findings
        ours = [finding for finding in findings if finding.official]
        assert official_checker.passes(path) == (not ours), (key, ours)
        assert any(finding.severity == "error" for finding in findings)


_OLDER = ("0.7.0", "1.0.0", "1.1.0", "2.0.0", "3.0.0", "3.1.0")
_MLPERF = ("result_0.txt", "result_2.txt")
_OWN = ("open", "closed lars", "closed sgd")
_OF_4_0 = (*_OWN, "aborted", "hrnet", "hrnet closed")


@pytest.mark.parametrize(
    ("ruleset", "names", "count", "start"),
    [
        ("4.0.0", _OF_4_0, 250, 0),
        ("4.0.0", _MLPERF, 150, 10_000),
        ("2.1.0", _MLPERF, 100, 20_000),
        *((ruleset, (*_OWN, *_MLPERF), 60, 30_000) for ruleset in _OLDER),
        *(
            pytest.param(ruleset, (*names, *_MLPERF), 2_000, 100_000, marks=pytest.mark.slow)
            for ruleset, names in (("4.0.0", _OF_4_0), *((older, (*_OWN, "aborted")) for older in ("2.1.0", *_OLDER)))
        ),
    ],
)
def test_altered_logs(ruleset, names, count: int, start: int, own_seeds, mlperf_seeds, tmp_path) -> None:
    # the other rulesets know no weights_initialization, so its 161 lines would be altered to no effect
    dropped = () if "1.1.0" <= ruleset <= "2.1.0" else ("weights_initialization",)
    theirs = {name: Altered(text).drop_all(*dropped).text for name, text in mlperf_seeds.items()}
    outcomes = _compare({name: (own_seeds | theirs)[name] for name in names}, ruleset, tmp_path, count, start)
    assert outcomes["both reject"] + outcomes["only ours rejects"] > count / 5, outcomes
    kinds = ("both reject", "only ours rejects", *(("both pass",) if ruleset == "4.0.0" else ()))
    assert ruleset in _OLDER or min(outcomes[kind] for kind in kinds) > count / 15, outcomes


@pytest.mark.parametrize("ruleset", ["0.7.0", "1.1.0", "2.0.0", "3.0.0", "3.1.0"])
def test_the_time_before_the_run_is_limited_as_the_round_limits_it(tmp_path, ruleset: str) -> None:
    """The older rounds limit it whatever the division; the others take a division that is named late for none."""
    path, limit_ms = tmp_path / "log.txt", 60_000 * (20 if ruleset == "0.7.0" else 30)
    for minutes_ms in (0, limit_ms - 60_000, limit_ms + 60_000):
        for late in (False, True):
            log = Altered(make_log.run()).later("init_start", -minutes_ms)
            path.write_text((log.move_after("submission_division", "init_stop") if late else log).text)
            ours = [finding for finding in check_file(path, rules.load(ruleset)).findings if finding.official]
            assert official_checker.passes(path, ruleset) == (not ours), (minutes_ms, late, ours)


def test_a_log_of_damaged_lines_is_judged_by_these_and_refused_by_both(tmp_path: Path) -> None:
    damaged = ':::MLLOG {"time_ms": 1, "key": "a", "value": 1, "event_type": "POINT_IN_TIME"}\n'
    path = tmp_path / "result_0.txt"
    path.write_text(Altered(make_log.run()).drop("run_stop").text + 10_001 * damaged)  # it may be behind them
    findings = check_file(path, rules.load("4.0.0")).findings
    assert {finding.rule for finding in findings} == {"line-fields"}
    assert any(finding.official for finding in findings)
    assert not official_checker.passes(path)
