"""Honest logs that others may write in another way than all published ones: strict must refuse none of them."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compliance import rules
from compliance.check import check_file
from tests import make_log
from tests.compliance.altered import TOKEN, Altered, foreign
from tests.compliance.breaches import padded
from tests.compliance.forging import by_clock, clock, curve, each

Odd = Callable[[Altered], Altered]
SGD = make_log.SGD | {"opt_learning_rate_warmup_epochs": 2.5, "sgd_opt_learning_rate_decay_steps": 41.5}


def _text(change: Callable[[str], str]) -> Odd:
    """The log with another text of each event's line."""
    return lambda log: Altered("\n".join(change(line) if line.startswith(TOKEN) else line for line in log.lines))


def _values(change: Callable[[float], float]) -> Odd:
    return lambda log: curve(lambda values: [*map(change, values)])(log, log)


def _numbers(change: Callable[[int], Any]) -> Odd:
    """Epochs numbered in another way."""

    def number(fields: dict[str, Any]) -> None:
        where = fields["metadata"]
        where |= {name: change(where[name]) for name in ("epoch_num", "first_epoch_num") if name in where}

    return lambda log: each(log, "", number)


def _blocks_alone(log: Altered) -> Altered:
    return log.drop_all("epoch_start", "epoch_stop", "eval_start", "eval_stop")


def _block_an_epoch(log: Altered) -> Altered:
    """Each epoch starts a block with the number of the first of four, and the last of them stops it."""
    _blocks_alone(log)
    for number in range(9):
        start, stop = log.at("block_start", number * 4), log.at("block_stop", number)
        fields, end_ms = log.fields(start), log.fields(stop)["time_ms"]
        fields["metadata"]["epoch_count"] = 1
        quarter = (end_ms - fields["time_ms"]) // 4
        lines = [fields | {"time_ms": fields["time_ms"] + part * quarter} for part in range(4)]
        log.lines[start : start + 1] = [""] * 4
        for offset, line in enumerate(lines):
            log.write(start + offset, line)
    return log


def _from_zero_by_blocks(log: Altered) -> Altered:
    """As tensor processing units log it: evaluations within blocks that are numbered 0, 3, 7, and of epoch 3, 6, 10."""
    _blocks_alone(log)
    for number in range(9):
        log.metadata("block_start", number, first_epoch_num=float(max(number * 4 - 1, 0)))
        log.metadata("block_stop", number, first_epoch_num=float(max(number * 4 - 1, 0)))
        log.metadata("eval_accuracy", number, epoch_num=float(number * 4 + (3 if number == 0 else 2)))
    return log


def _with_rates(log: Altered) -> Altered:
    """Beside each epoch its images/s, of epochs that take some ms more than whole seconds."""
    for number in range(36):
        clock(log, lambda ms: ms + 290, "epoch_stop", number)
        line = log.lines[log.at("epoch_stop", number)]
        log.add_after("epoch_stop", line.replace('"epoch_stop", "value": null', '"throughput", "value": 1.0'), number)
    return by_clock(log)


def _evaluated_in_epochs(log: Altered) -> Altered:
    """Each evaluation lies in its epoch; the rates are those of the training alone."""
    _with_rates(log)
    for number in range(9):
        stop, scored = log.at("epoch_stop", number * 4 + 3), log.at("eval_accuracy", number)
        end_ms = log.fields(scored)["time_ms"]
        for index in (stop, stop + 1):
            log.write(index, log.fields(index) | {"time_ms": end_ms})
        log.lines[stop : scored + 1] = log.lines[stop + 2 : scored + 1] + log.lines[stop : stop + 2]
    return log


def _caches_of_nodes(log: Altered) -> Altered:
    """Of three nodes, one with a clock that is ahead."""
    log.repeat("cache_clear").repeat("cache_clear")
    start_ms = log.fields(log.at("run_start"))["time_ms"]
    return log.change("cache_clear", lambda fields: fields.update(time_ms=start_ms + 30), 2)


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


ODD: dict[str, Odd] = {
    "CRLF": _text(lambda line: line + "\r"),
    "a launcher's prefix": _text(lambda line: f"[1,0]<stdout>:{line}"),
    "a time before each line": _text(lambda line: f"2024-05-01 12:00:00.123 INFO {line}"),
    "a colour before each event": _text(lambda line: f"\x1b[32m{line}"),
    "bars of progress between": _text(lambda line: f"{line}\n 10%|###   | 3/30 [00:01<00:09]\r\nlr=0.1 NaN Infinity"),
    "no blank behind the token": _text(lambda line: line.replace(":::MLLOG {", ":::MLLOG   {")),
    "a byte order mark": lambda log: Altered("\ufeff" + log.text),
    "epochs as 4.0": _numbers(float),
    "epochs from 0": _numbers(lambda number: number - 1),
    "blocks alone": _blocks_alone,
    "a block_start for each epoch": _block_an_epoch,
    "blocks and accuracies numbered from 0": _from_zero_by_blocks,
    "no epochs": lambda log: log.drop_all("epoch_start", "epoch_stop"),
    "an accuracy 1 ms before its eval_stop": lambda log: log.later("eval_accuracy", -2, 3),
    "run_stop before the block is over": lambda log: log.move_after("block_stop", "run_stop", -1),
    "run_stop 50 ms earlier than the last accuracy": lambda log: log.later("run_stop", -50),
    "the run's last intervals left open": lambda log: log.drop("eval_stop", -1).drop("block_stop", -1),
    "throughput behind run_stop": lambda log: log.add_after("run_stop", log.lines[log.at("run_stop")].replace(
        '"run_stop", "value": null', '"tracked_stats", "value": {"throughput": 35588.0}')),
    "no seed": lambda log: log.drop("seed"),
    "the seed as a text": lambda log: log.value("seed", "1234"),
    "blanks and letters in names": lambda log: log.value("submission_org", " Société Générale\n"),
    "no platform": lambda log: log.value("submission_platform", None),
    "a cleared cache on each of three nodes": _caches_of_nodes,
    "caches cleared the day before": lambda log: log.later("cache_clear", -86_400_000),
    "the number of batches as eval_samples": lambda log: log.value("eval_samples", 3125),
    "eval_samples with padding": lambda log: log.value("eval_samples", 50_016),
    "padding that counts, and 3264.0 as the batch": lambda log: padded(log).value("global_batch_size", 3264.0),
    "accuracies of single precision": _values(_single),
    "accuracies of five digits": _values(lambda value: round(value, 5)),
    "means over 7 workers": _values(lambda value: round(value * 50_000 * 7 + 1) / 350_000),
    "a momentum of 0.94": lambda log: log.value("lars_opt_momentum", 0.94),
    "evaluations within epochs": _evaluated_in_epochs,
    "a fixed decay by name": lambda log: log.value("lars_opt_learning_rate_decay_steps", "pow_poly"),
    "labels at time 0": lambda log: log.change("submission_org", lambda fields: fields.update(time_ms=0)),
    "hyperparameters written at the end": lambda log: log.move_after("opt_name", "eval_stop").move_after(
        "lars_opt_momentum", "eval_stop"),
    "logged by the last rank": lambda log: each(log, "eval_accuracy", lambda fields: fields["metadata"].update(rank=7)),
    "keys of its own": lambda log: log.add_after("run_start", log.lines[log.at("seed")].replace('"seed"', '"gpu_w"')),
    "hyperparameters as texts": lambda log: log.value("model_bn_span", "408").value("lars_opt_momentum", "0.9"),
    "whole seconds": lambda log: each(_with_rates(log), "", lambda fields: fields.update(
        time_ms=fields["time_ms"] // 1000 * 1000)),
    "events of another type": lambda log: log.line("run_start", lambda line: line.replace("INTERVAL_START", "START")),
    "sgd with half an epoch of warm-up": lambda _: Altered(foreign(make_log.closed_run(hyperparameters=SGD))),
    "init written afterwards": lambda log: log.later("init_start", 1e8).later("init_stop", 1e8),
    "accuracies alone, and the last behind its block": lambda log: log.drop_all("eval_start", "eval_stop")
    .move_after("eval_accuracy", "block_stop", -1).later("eval_accuracy", 1, -1),
    "the target reached, and lost again": lambda log: log.value("eval_accuracy", 0.7592, 7).value(
        "eval_accuracy", 0.7588, -1),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_log_that_is_honest_is_refused_by_no_strict_rule(name: str, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    log = ODD[name](Altered(foreign(make_log.closed_run())))
    path.write_text(log.text, encoding="utf-8", newline="")
    found = check_file(path, rules.load("4.0.0")).findings
    assert [(f.rule, f.actual) for f in found if f.severity == "error"] == []


def test_more_evaluations_than_the_schedule_asks_for_are_refused_from_version_1_0_on(tmp_path: Path) -> None:
    """The text of 0.7 says "at least as frequently", that of 1.0 "at the same frequency"."""
    path = tmp_path / "result_0.txt"
    path.write_text(foreign(make_log.closed_run(eval_every=3, epochs=27)))
    refused = {
        version
        for version in ("0.7.0", "1.0.0", "4.0.0")
        if any(f.rule == "eval-schedule" for f in check_file(path, rules.load(version)).findings)
    }
    assert refused == {"1.0.0", "4.0.0"}
