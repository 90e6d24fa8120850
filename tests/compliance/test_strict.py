"""Strict finds forgeries such as a cheating submitter would make, and refuses no honest log, published or odd.

docs/audit.md tells of more of both.
"""

import functools
import operator
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compliance import rules
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog
from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import TOKEN, Altered, foreign

# --- forgeries ---

# How a log is altered, beside which another of its submission lies, and the rule that finds it; "" where none does
Forgery = tuple[Callable[[Altered, Altered], Altered], str]

PUBLISHED: dict[str, Forgery] = {
    "every second epoch 10 times as fast": (lambda log, _: by.intervals(
        log, lambda took: [ms // 10 if n % 2 else ms for n, ms in enumerate(took)]), "epoch-time"),
    "a thousandth of the time, rates too": (lambda log, _: by.by_clock(by.scaled(log, 1e-3)), "epoch-time"),
    "0.7 of the time, rates too: within the bounds": (lambda log, _: by.by_clock(by.scaled(log, 0.7)), ""),
    "evaluations of 10 ms": (lambda log, _: by.intervals(log, lambda took: [10] * len(took), "eval"), "epoch-time"),
    "run_start 50 ms behind the first epoch": (lambda log, _: log.change("run_start", lambda fields: fields.update(
        time_ms=log.fields(log.at("epoch_start"))["time_ms"] + 50)), "before-run-start"),
    "all accuracies one but the last": (lambda log, _: by.curve(
        log, lambda v: [0.3] * (len(v) - 1) + v[-1:]), "accuracy-curve"),
    "every second accuracy a third lower": (lambda log, _: by.curve(
        log, lambda v: [x * 2 / 3 if (len(v) - n) % 2 == 0 else x for n, x in enumerate(v)]), "accuracy-curve"),
    "top-1 of 0.99": (lambda log, _: by.curve(log, lambda v: [*v[:-1], 0.99]), "accuracy-curve"),
    "the other's curve and 30 images": (lambda log, other: by.more_images(log, other, lambda _: 30), "runs-differ"),
    "the other's curve, an image more or less": (lambda log, other: by.more_images(
        log, other, lambda i: (-1) ** i), "runs-differ"),
    "the other's curve, 0.0034 more or less: as far apart as two trainings": (lambda log, other: by.more_images(
        log, other, lambda i: 170 * (-1) ** i), ""),
    "the other's curve but for one evaluation": (lambda log, other: by.more_images(
        log, other, lambda i: 900 * (i == 1)), "runs-differ"),
    "a throughput 2 % higher": (lambda log, _: log.change(
        "throughput", lambda fields: fields.update(value=fields["value"] * 1.02), 5), "throughput-agrees"),
    "tracked_stats 2 % lower": (lambda log, _: log.change(
        "tracked_stats", lambda fields: fields["value"].update(imgs_sec=fields["value"]["imgs_sec"] * 0.98), 5),
        "throughput-agrees"),
    "a batch that the ranks do not divide": (lambda log, _: log.value("global_batch_size", 3265),
                                             "model_bn_span.value"),
    "the other's seed, as a text": (lambda log, other: log.value(
        "seed", str(other.fields(other.at("seed"))["value"])), "seeds-differ"),
    "a copy at another hour, other accuracies": (by.copied, "runs-differ"),
    "that copy, 3 % faster: another factor tells nothing": (lambda log, other: by.by_clock(
        by.scaled(by.copied(log, other), 0.97)), ""),
    "an epoch of 31 digits": (lambda log, _: log.metadata("eval_accuracy", -1, epoch_num=10**30), "value-type"),
    "epochs that were never trained": (lambda log, _: by.numbered(log, lambda n: n + 8 * (n > 20)), "epochs-counted"),
    "a base learning rate of 1e9": (lambda log, _: log.value(
        "lars_opt_base_learning_rate", 1e9), "lars_opt_base_learning_rate.value"),
    "decay steps of 1": (lambda log, _: log.value(
        "lars_opt_learning_rate_decay_steps", 1), "lars_opt_learning_rate_decay_steps.value"),
    "the clock stopped before the last evaluation": (lambda log, _: log.change("run_stop", lambda fields: fields.update(
        time_ms=log.fields(log.at("eval_start", -1))["time_ms"])), "target-status"),
    "an evaluation twice": (lambda log, _: by.twice(log, "eval_start", "eval_accuracy", 4), "eval-schedule"),
    "an epoch of 1 ms before the first, to converge later": (lambda log, _: by.epochs_before(log, 1, 1), "epoch-time"),
    "an epoch of 2 s before the first: so begins a machine that throttles": (lambda log, _: by.epochs_before(
        log, 1, 2_000), ""),
    "the other's seed with a plus": (lambda log, other: log.value(
        "seed", f"+{other.fields(other.at('seed'))['value']}"), "seeds-differ"),
    "the other's seed with a zero and a low line": (lambda log, other: log.value(
        "seed", f"0_{other.fields(other.at('seed'))['value']}"), "seeds-differ"),
    "one evaluation image less, and the accuracies of all: it warns": (lambda log, _: log.value(
        "eval_samples", 49_999), ""),
    "a run_start that is repeated 0.9 s later": (lambda log, _: log.repeat("run_start").later(
        "run_start", 900, 1), "time-order"),
    "a run_stop that is repeated 0.9 s earlier": (lambda log, _: log.repeat("run_stop").later(
        "run_stop", -900, 1), "time-order"),
    "a run of another batch in the folder": (lambda log, _: log.value(
        "submission_platform", "another").value("global_batch_size", 1632), "same-hyperparameters"),
    "a run of another system in the folder, which only warns": (lambda log, _: log.value(
        "submission_platform", "another"), ""),
}  # fmt: skip

OWN: dict[str, Forgery] = {
    "a twentieth of the time, in all figures": (lambda log, _: by.rates(by.scaled(log, 0.05), 0.05), "own-log"),
    "the same, and no image_size": (lambda log, _: by.replaced(
        by.rates(by.scaled(log, 0.05), 0.05), ("RECIPE.image_size", "RECIPE.size")), "own-log"),
    "360 images in 20 ms": (lambda log, _: by.intervals(log, lambda took: [20, *took[1:]], "eval"), "own-log"),
    "all losses null": (lambda log, _: by.each(
        log, "step_window", lambda fields: fields["value"].update(loss=None)), "own-log"),
    "one sample of telemetry": (lambda log, _: log.inside("telemetry_summary", samples=1), "own-log"),
    "a tenth of the energy": (lambda log, _: log.inside(
        "telemetry_summary", energy_j=422.4, joules_per_image=1.0), "own-log"),
    "a GPU that is in no list": (lambda log, _: by.settings(by.replaced(
        log, ('"device": "cpu"', '"device": "gpu"')), DEVICE="gpu"), "own-log"),
    "another precision than a CPU has, everywhere": (lambda log, _: by.settings(by.replaced(
        log, ('"math_mode": "fp32"', '"math_mode": "amp_o2"')).inside(
        "run_summary", precision="amp_o2", math_mode="amp_o2"), PRECISION="amp_o2"), "own-log"),
    "a section's key twice": (lambda log, _: by.replaced(
        log, ('"dirty": false', '"dirty": true, "dirty": false')), "own-log"),
    "an epoch cut out": (lambda log, _: by.without_block(log, 1), "own-log"),
    "aborted in the third of 9 epochs, without what says so": (lambda log, _: by.settings(by.curve(
        log, lambda v: [round(x * 180) / 360 for x in v]), RECIPE_epochs=9), "own-log"),
    "another momentum than the recipe's": (lambda log, _: log.value("sgd_opt_momentum", 0.5), "own-log"),
    "another rate than the recipe's": (lambda log, _: log.value("sgd_opt_base_learning_rate", 9.0), "own-log"),
    "the other's losses at another hour": (by.copied, "runs-differ"),
    "a half of the time, with all samples of telemetry": (lambda log, _: by.rates(by.scaled(log, 0.5), 0.5).inside(
        "telemetry_summary", samples=log.fields(log.at("telemetry_summary"))["value"]["samples"] * 2), "own-log"),
    "a program of one convolution": (lambda log, _: by.replaced(log, ('"conv2d": 53', '"conv2d": 1')), "own-log"),
    "an accuracy that is not a number of images": (lambda log, _: log.value("eval_accuracy", 0.3125, 0), "own-log"),
    "another momentum, and no setting that says so": (lambda log, _: by.replaced(log.value(
        "sgd_opt_momentum", 0.5), ("RECIPE.optimizer.momentum", "RECIPE.optimizer.m")), "own-log"),
    "another rate, and a recipe whose rate is not a number": (lambda log, _: by.settings(log.value(
        "sgd_opt_base_learning_rate", 9.0), RECIPE_base_learning_rate="9.0"), "own-log"),
    "a twentieth of the time, of images whose size is a text": (lambda log, _: by.settings(
        by.rates(by.scaled(log, 0.05), 0.05), RECIPE_image_size="28"), "own-log"),
    "no target, so that any end is one": (lambda log, _: by.replaced(
        log, ("RECIPE.target_top1", "RECIPE.target")), "own-log"),
    "an easier target before the recipe's": (lambda log, _: by.replaced(
        log, ('{"config": {', '{"config": {"RECIPE.target_a": {"value": 0.1, "origin": "environment"}, ')), "own-log"),
    "a target of null, which any accuracy reaches": (lambda log, _: by.settings(
        by.curve(log, lambda v: v[:1] * len(v)), RECIPE_target_top1=None), "own-log"),
    "a target that is a text": (lambda log, _: by.settings(log, RECIPE_target_top1="0.99"), "own-log"),
    "an epoch's throughput in place of the next one's": (lambda log, _: log.drop("epoch_throughput", 2).repeat(
        "epoch_throughput", 1), "own-log"),
    "a seed that is not a whole number": (lambda log, _: by.settings(log.value("seed", 1.5), SEED=1.5), "own-log"),
    "a power that is a text": (lambda log, _: log.inside("step_window", power_w="x"), "own-log"),
    "more cores than there are, and a twentieth of the time": (lambda log, _: by.replaced(
        by.rates(by.scaled(log, 0.05), 0.05), ('"cores": ', '"cores": 100')), ""),
    "losses that are made up, on which no figure rests": (lambda log, _: by.each(
        log, "step_window", lambda fields: fields["value"].update(loss=1.0)), ""),
    "a run_stop an epoch earlier": (lambda log, _: log.later("run_stop", -38_000), "target-status"),
    "the other's seed among twenty": (lambda log, _: log.add_after("seed", "\n".join(
        log.lines[log.at("seed")].replace('"value": 2', f'"value": {seed}') for seed in (*range(100, 120), 1))),
        "seeds-differ"),
    "the other, a blank behind its organisation": (lambda _, other: Altered(
        other.text.replace('"Example"', '"Example "')), "runs-differ"),
    "while the other ran, on its host": (lambda log, _: by.each(
        log, "", lambda fields: fields.update(time_ms=fields["time_ms"] - 3_540_000)), "runs-differ"),
    "as another system's log, but for its telemetry": (lambda log, _: Altered(
        foreign(log.text) + log.lines[log.at("telemetry_summary")]), "own-log"),
}  # fmt: skip


@pytest.fixture(scope="module")
def published_runs(published_corpus: Path) -> list[str]:
    """Two runs of Baidu's submission of v1.1."""
    folder = "Baidu/results/1_node_8_A100_NGC21.05_MXNet/resnet"
    with tarfile.open(published_corpus / "mlperf_v1.1_baidu.tar.xz") as archive:
        members = [archive.extractfile(f"{folder}/result_{number}.txt") for number in (0, 1)]
        return [member.read().decode() for member in members if member]


def broken_rules(ruleset: str, *texts: str) -> tuple[dict[str, str], ...]:
    """What the logs of one submission break, each rule with how."""
    logs = [HeldLog(f"0/result_{number}.txt") for number in range(len(texts))]
    for log, text in zip(logs, texts, strict=True):
        log.data = text.encode()
    reports = check_logs(logs, rules.load(ruleset))
    return tuple({f.rule: f.actual for f in report.findings if f.severity == "error"} for report in reports)


def judge_forgery(forgery: Forgery, other: str, text: str, ruleset: str) -> None:
    forge, rule = forgery
    assert broken_rules(ruleset, other, text) == ({}, {})
    _, found = broken_rules(ruleset, other, forge(Altered(text), Altered(other)).text)
    assert rule in found if rule else not found, found


@pytest.mark.parametrize("name", PUBLISHED)
def test_forgeries_of_a_published_run(name: str, published_runs: list[str]) -> None:
    other, text = published_runs
    judge_forgery(PUBLISHED[name], other, text, "1.1.0")


@pytest.mark.parametrize("name", OWN)
def test_forgeries_of_our_own_run(name: str) -> None:
    judge_forgery(OWN[name], make_log.run(seed=1), make_log.run(seed=2), "4.0.0")


def test_another_runs_accuracies_are_found_where_they_are_enough_to_be_no_coincidence() -> None:
    """Of three evaluations of 360 images two runs have the same by chance."""
    for epochs, rule in ((3, set()), (5, {"runs-differ"})):
        one, other = (Altered(make_log.run(seed=seed, epochs=epochs)) for seed in (1, 2))
        values = by.accuracies(one)
        copied = by.curve(other, lambda _, values=values: values)  # type: ignore[misc]
        assert broken_rules("4.0.0", one.text, copied.text)[1].keys() == rule


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ((38_020,) * 5, [1, 2, 3, 4]),
        ((38_020,) * 4 + (38_071,), [1, 2, 3]),
        ((38_071, *(38_020,) * 4), [2, 3, 4]),  # the first of those at one accuracy is not a copy
        ((38_020,) * 3 + (38_071, 38_090), []),
    ],
)
def test_runs_that_end_at_one_accuracy_are_found(ends: tuple[int, ...], found: list[int]) -> None:
    texts = []
    for seed, images in enumerate(ends):
        log = Altered(foreign(make_log.closed_run(seed=seed))).value("eval_accuracy", (15_001 + 507 * seed) / 50_000)
        texts.append(log.value("eval_accuracy", images / 50_000, -1).text)
    broken = broken_rules("4.0.0", *texts)
    assert [index for index, one in enumerate(broken) if "runs-differ" in one] == found


# --- honest logs that others may write in another way than all published ones ---

Odd = Callable[[Altered], Altered]
SGD = make_log.SGD | {"opt_learning_rate_warmup_epochs": 2.5, "sgd_opt_learning_rate_decay_steps": 41.5}


def _text(change: Callable[[str], str]) -> Odd:
    """The log with another text of each event's line."""
    return lambda log: Altered("\n".join(change(line) if line.startswith(TOKEN) else line for line in log.lines))


def _values(change: Callable[[float], float]) -> Odd:
    return lambda log: by.curve(log, lambda values: [*map(change, values)])


def _numbers(change: Callable[[int], Any]) -> Odd:
    return lambda log: by.numbered(log, change)


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
        by.clock(log, lambda ms: ms + 290, "epoch_stop", number)
        line = log.lines[log.at("epoch_stop", number)]
        log.add_after("epoch_stop", line.replace('"epoch_stop", "value": null', '"throughput", "value": 1.0'), number)
    return by.by_clock(log)


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
    return log.change("cache_clear", lambda fields: fields.update(time_ms=start_ms + 30_000), 2)


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
    "padding that counts, and 3264.0 as the batch": lambda log: by.padded(log).value("global_batch_size", 3264.0),
    "accuracies of single precision": _values(lambda value: float(np.float32(value))),
    "accuracies of five digits": _values(lambda value: round(value, 5)),
    "means over 7 workers": _values(lambda value: round(value * 50_000 * 7 + 1) / 350_000),
    "a momentum of 0.94": lambda log: log.value("lars_opt_momentum", 0.94),
    "evaluations within epochs": _evaluated_in_epochs,
    "a fixed decay by name": lambda log: log.value("lars_opt_learning_rate_decay_steps", "pow_poly"),
    "labels at time 0": lambda log: log.change("submission_org", lambda fields: fields.update(time_ms=0)),
    "hyperparameters written at the end": lambda log: log.move_after("opt_name", "eval_stop").move_after(
        "lars_opt_momentum", "eval_stop"),
    "logged by the last rank": lambda log: by.each(
        log, "eval_accuracy", lambda fields: fields["metadata"].update(rank=7)),
    "keys of its own": lambda log: log.add_after("run_start", log.lines[log.at("seed")].replace('"seed"', '"gpu_w"')),
    "hyperparameters as texts": lambda log: log.value("model_bn_span", "408").value("lars_opt_momentum", "0.9"),
    "numbers that Composer's callback writes": lambda log: by.each(
        log, "epoch_stop", lambda fields: fields["metadata"].update(epoch_num=fields["metadata"]["epoch_num"] + 1)),
    "throttled after epoch 12": lambda log: by.intervals(log, lambda took: [*took[:12], *(6 * ms for ms in took[12:])]),
    "throttled for 10 epochs, 9 times": lambda log: by.intervals(
        log, lambda took: [*took[:10], *(9 * ms for ms in took[10:20]), *took[20:]]),
    "30 times as slow until the data are cached": lambda log: by.intervals(
        log, lambda took: [30 * took[0], *took[1:]]),
    "slower with each epoch": lambda log: by.intervals(log, lambda took: [ms * (1 + n) for n, ms in enumerate(took)]),
    "evaluations from slow storage": lambda log: by.intervals(log, lambda took: [20 * ms for ms in took], "eval"),
    "a last evaluation that stalls": lambda log: by.intervals(
        log, lambda took: [*took[:-1], took[-1] + 900_000], "eval"),
    "an epoch begun again after a breakdown": lambda log: by.restarted(log, 5),
    "three breakdowns": lambda log: by.restarted(by.restarted(by.restarted(log, 20), 9), 5),
    "a machine that was started again before": lambda log: log.repeat("init_start").later("init_start", -900_000),
    "a clock of whole seconds that rounds up, and epochs of 2 s": lambda log: by.each(
        by.scaled(log, 0.05), "", lambda fields: fields.update(time_ms=-(-fields["time_ms"] // 1000) * 1000)),
    "a clock set back by 90 ms": lambda log: by.clock(log, lambda ms: ms - 90, "epoch_start", 18),
    "a clock set ahead by an hour": lambda log: by.clock(log, lambda ms: ms + 3_600_000, "epoch_start", 18),
    "times with fractions of a millisecond": lambda log: by.each(
        log, "", lambda fields: fields.update(time_ms=fields["time_ms"] + 0.25)),
    "throttled after epoch 2, and 11 times": lambda log: by.intervals(
        log, lambda took: [*took[:2], *(11 * ms for ms in took[2:])]),
    "data read again in each 4th epoch": lambda log: by.intervals(
        log, lambda took: [ms * 9 if n % 4 == 0 else ms for n, ms in enumerate(took)]),
    "one stall of 10 minutes": lambda log: by.intervals(
        by.scaled(log, 0.03), lambda took: [*took[:9], took[9] + 600_000, *took[10:]]),
    "a clock set back by 30 ms": lambda log: by.clock(log, lambda ms: ms - 30, "epoch_start", 3),
    "run_stop of two nodes": lambda log: log.repeat("run_stop").later("run_stop", 700, -1),
    "whole seconds": lambda log: by.each(_with_rates(log), "", lambda fields: fields.update(
        time_ms=fields["time_ms"] // 1000 * 1000)),
    "events of another type": lambda log: log.line("run_start", lambda line: line.replace("INTERVAL_START", "START")),
    "sgd with half an epoch of warm-up": lambda _: Altered(foreign(make_log.closed_run(hyperparameters=SGD))),
    "init written afterwards": lambda log: log.later("init_start", 1e8).later("init_stop", 1e8),
    "accuracies alone, and the last behind its block": lambda log: log.drop_all("eval_start", "eval_stop")
    .move_after("eval_accuracy", "block_stop", -1).later("eval_accuracy", 1, -1),
    "the target reached, and lost again": lambda log: log.value("eval_accuracy", 0.7592, 7).value(
        "eval_accuracy", 0.7588, -1),
}  # fmt: skip


OWN_ODD: dict[str, Odd] = {
    "whole seconds, rounded up": lambda log: by.each(log, "", lambda fields: fields.update(
        time_ms=-(-fields["time_ms"] // 1000) * 1000)),
    "a clock set ahead by 2 s at an evaluation": lambda log: by.clock(log, lambda ms: ms + 2_000, "eval_stop", 1),
    "a sampler that lost 4 of 10 samples": lambda log: log.change("telemetry_summary", lambda fields: fields[
        "value"].update(samples=int(fields["value"]["samples"] * 0.6))),
    "whole seconds": lambda log: by.each(log, "", lambda fields: fields.update(
        time_ms=fields["time_ms"] // 1000 * 1000)),
    "a clock set back by 30 ms": lambda log: by.clock(log, lambda ms: ms - 30, "step_window", 2),
    "a clock set back by 30 ms at the start": lambda log: by.clock(log, lambda ms: ms - 30, "epoch_start"),
}  # fmt: skip


@pytest.mark.parametrize("epoch_ms", [400, 36_000])
@pytest.mark.parametrize("name", OWN_ODD)
def test_an_odd_log_of_our_own_that_is_honest_passes(name: str, epoch_ms: int) -> None:
    log = OWN_ODD[name](Altered(make_log.run(epoch_ms=epoch_ms, cores=32)))
    assert broken_rules("4.0.0", log.text) == ({},)


@pytest.mark.parametrize("epochs_ms", [
    [2_000] * 12 + [12_000] * 24, [18_000, *[2_000] * 3] * 9, [2_000] * 9 + [602_000] + [2_000] * 26,
], ids=["throttled", "data read again", "a stall"])  # fmt: skip
def test_a_slow_epoch_of_our_own_condemns_no_other(epochs_ms: list[int]) -> None:
    log = Altered(make_log.run(epochs=36, epoch_ms=2_000, target=0.96, cores=32))
    for number, took_ms in enumerate(epochs_ms):
        for window in (2 * number, 2 * number + 1):
            by.clock(log, functools.partial(operator.add, took_ms // 2 - 1_000), "step_window", window)
            log.inside("step_window", window, time_s=took_ms / 2000)
        rate = 1408 / took_ms * 1000
        log.inside("epoch_throughput", number, time_s=took_ms / 1000, images_per_s=rate)
    seconds = (log.fields(log.at("run_stop"))["time_ms"] - log.fields(log.at("run_start"))["time_ms"]) // 1000
    log.inside("telemetry_summary", samples=int(seconds))
    assert broken_rules("4.0.0", log.text) == ({},)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_log_that_is_honest_is_refused_by_no_strict_rule(name: str) -> None:
    log = ODD[name](Altered(foreign(make_log.closed_run())))
    assert broken_rules("4.0.0", log.text) == ({},)


def test_more_evaluations_than_the_schedule_asks_for_are_refused_from_version_1_0_on() -> None:
    """The text of 0.7 says "at least as frequently", that of 1.0 "at the same frequency"."""
    text = foreign(make_log.closed_run(eval_every=3, epochs=27))
    broken = {version: "eval-schedule" in broken_rules(version, text)[0] for version in ("0.7.0", "1.0.0", "4.0.0")}
    assert broken == {"0.7.0": False, "1.0.0": True, "4.0.0": True}


@pytest.mark.parametrize(("factor", "broken"), [(0.0095, {"epoch-time"}), (0.012, set())])
def test_a_step_takes_a_millisecond_by_the_runs_time(factor: float, broken: set[str]) -> None:
    """Of 92 ms a step: 0.9 ms and 1.1 ms."""
    log = by.scaled(Altered(foreign(make_log.closed_run())), factor)
    assert broken_rules("4.0.0", log.text)[0].keys() == broken


def test_fast_epochs_are_reported_with_the_bound_of_their_rule() -> None:
    log = by.intervals(
        Altered(foreign(make_log.closed_run())), lambda took: [ms // 10 if n % 2 else ms for n, ms in enumerate(took)]
    )
    [broken] = broken_rules("4.0.0", log.text)
    bound = rules.load("4.0.0").strict["epoch-time"].bounds["share_of_median"]
    assert f"take under {bound} of the median, 36" in broken["epoch-time"]
