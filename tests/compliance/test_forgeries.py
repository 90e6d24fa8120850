"""Forgeries such as a cheating submitter would make: which rule finds each, or why no log shows it."""

import gzip
import json
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compliance import rules
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog
from tests import make_log
from tests.compliance.altered import TOKEN, Altered, foreign

Fields = dict[str, Any]


class Forgery(NamedTuple):
    """`forge` alters a log, beside which another of its submission lies. `rule` finds it, or `hidden` says why none."""

    name: str
    forge: Callable[[Altered, Altered], Altered | bytes]
    rule: str = ""
    hidden: str = ""


# --- ways to alter: each returns the log ---


def _each(log: Altered, key: str, change: Callable[[Fields], object]) -> Altered:
    """Changes each event of `key`; of all keys where it is empty."""
    for index in log.events():
        fields = log.fields(index)
        if key in ("", fields["key"]):
            change(fields)
            log.write(index, fields)
    return log


def _clock(log: Altered, new_ms: Callable[[float], float], first: str = "run_start", number: int = 0) -> Altered:
    """Another time for each event from the one of a key on."""
    for index in log.events()[log.events().index(log.at(first, number)) :]:
        fields = log.fields(index)
        log.write(index, fields | {"time_ms": new_ms(fields["time_ms"])})
    return log


def _rates(log: Altered, factor: float) -> Altered:
    """Each figure but the clock that tells of time, for a run in so much of its time."""

    def change(fields: Fields) -> None:
        value = fields["value"]
        if fields["key"] == "throughput":
            fields["value"] /= factor
        for name, by in (
            ("time_s", factor),
            ("data_wait_s", factor),
            ("images_per_s", 1 / factor),
            ("imgs_sec", 1 / factor),
        ):
            if isinstance(value, dict) and name in value:
                value[name] *= by
        if fields["key"] == "telemetry_summary":
            value["samples"] = int(value["samples"] * factor)

    return _each(log, "", change)


def _scaled(log: Altered, factor: float) -> Altered:
    """The clock runs so much slower."""
    start = log.fields(log.at("run_start"))["time_ms"]
    return _clock(log, lambda ms: round(start + (ms - start) * factor))


def _by_clock(log: Altered) -> Altered:
    """The rates that others log, by the clock."""
    samples, start, took = log.fields(log.at("train_samples"))["value"], 0.0, 1.0
    for index in log.events():
        fields = log.fields(index)
        start = fields["time_ms"] if fields["key"] == "epoch_start" else start
        took = fields["time_ms"] - start if fields["key"] == "epoch_stop" else took
        if fields["key"] == "throughput":
            log.write(index, fields | {"value": samples / took * 1000})
        elif fields["key"] == "tracked_stats":
            log.write(index, fields | {"value": {"imgs_sec": samples / took * 1000}})
    return log


def _intervals(log: Altered, change: Callable[[list[float]], list[float]], kind: str = "epoch") -> Altered:
    """Other times of the epochs, or evaluations; what lies between keeps its own."""
    bounds = [log.fields(log.at(f"{kind}_{end}", n))["time_ms"]
              for n in range(log.text.count(f'"{kind}_start"')) for end in ("start", "stop")]  # fmt: skip
    took = [stop - start for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]
    moved = 0.0
    for number, (old, new) in enumerate(zip(took, change(took), strict=True)):
        moved = new - old
        _clock(log, lambda ms, by=moved: ms + by, f"{kind}_stop", number)
    return _by_clock(log)


def _accuracies(log: Altered) -> list[float]:
    return [log.fields(index)["value"] for index in log.events() if '"eval_accuracy"' in log.lines[index]]


def _curve(change: Callable[[list[float]], list[float]]) -> Callable[[Altered, Altered], Altered]:
    def forge(log: Altered, _: Altered) -> Altered:
        for number, value in enumerate(change(_accuracies(log))):
            log.value("eval_accuracy", value, number)
        return log

    return forge


def _images(added: Callable[[int], int]) -> Callable[[Altered, Altered], Altered]:
    """The other run's accuracies with some images more at each evaluation."""
    return lambda log, other: _curve(
        lambda _: [(round(value * 50_000) + added(i)) / 50_000 for i, value in enumerate(_accuracies(other))]
    )(log, other)


def _block(log: Altered, first: int) -> int:
    """Line of the block_start of an epoch."""
    return next(
        i for i in log.events() if '"block_start"' in log.lines[i] and f'"first_epoch_num": {first},' in log.lines[i]
    )


def _without(log: Altered, start: int, stop: int, *, renumbered: bool) -> Altered:
    """The run without the blocks from one to another; what follows moves up in time, and in number if asked."""
    lines = _block(log, start), _block(log, stop)
    first_ms, after_ms = (log.fields(line)["time_ms"] for line in lines)
    steps = [fields["metadata"]["step"] for line in log.lines[lines[0] : lines[1]] if '"step_window"' in line
             for fields in [json.loads(line.partition(TOKEN)[2])]]  # fmt: skip
    del log.lines[lines[0] : lines[1]]

    def change(fields: Fields) -> None:
        where = fields["metadata"]
        if fields["time_ms"] >= after_ms:
            fields["time_ms"] -= after_ms - first_ms
            for name in ("epoch_num", "first_epoch_num") if renumbered else ():
                where |= {name: where[name] - stop + start} if name in where else {}
            if renumbered and fields["key"] == "step_window":
                where["step"] -= len(steps) // 2 * 44

    return _each(log, "", change)


def _copy(change: Callable[[Altered], Altered]) -> Callable[[Altered, Altered], Altered]:
    """The other run a day later, by this one's seed and accuracies, and changed."""

    def forge(log: Altered, other: Altered) -> Altered:
        seed, accuracies = log.fields(log.at("seed"))["value"], _accuracies(log)
        log.lines = list(other.lines)
        _each(log, "", lambda fields: fields.update(time_ms=fields["time_ms"] + 86_400_000))
        return _curve(lambda _: accuracies)(change(log.seed(seed)), other)

    return forge


def _halves(log: Altered, other: Altered, block: int) -> Altered:
    """The start of the other run and the end of this one, as one."""
    lines = _block(other, block), _block(log, block)
    moved = other.fields(lines[0])["time_ms"] - log.fields(lines[1])["time_ms"]
    end = _each(log, "", lambda fields: fields.update(time_ms=fields["time_ms"] + moved)).lines[lines[1] :]
    seed = log.fields(log.at("seed"))["value"]
    log.lines = other.lines[: lines[0]] + end
    return _each(log, "", lambda fields: fields.update(time_ms=fields["time_ms"] + 86_400_000)).seed(seed)


def _replaced(log: Altered, *changes: tuple[str, str]) -> Altered:
    """Texts of the log replaced; each stands in it."""
    text = log.text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    log.lines = text.splitlines()
    return log


def _line(log: Altered, key: str, old: str, new: str, number: int = 0) -> Altered:
    assert old in log.lines[log.at(key, number)]
    return log.line(key, lambda line: line.replace(old, new), number)


def _setting(log: Altered, **values: Any) -> Altered:
    """Other values of the header's settings; a name's first _ is a dot."""
    at = next(i for i, line in enumerate(log.lines) if line.startswith('# {"config"'))
    section = json.loads(log.lines[at][2:])
    for name, value in values.items():
        section["config"][re.sub("^RECIPE_", "RECIPE.", name)] = {"value": value, "origin": "environment"}
    log.lines[at] = f"# {json.dumps(section)}"
    return log


def _summary(log: Altered, **fields: Any) -> Altered:
    return log.change("run_summary", lambda event: event["value"].update(fields))


# --- of a published log, and of ours ---


def _start_late(log: Altered, _: Altered) -> Altered:
    line = log.lines.pop(log.at("run_start"))
    stop = log.at("epoch_stop", 2)
    log.lines.insert(stop + 1, line)
    return log.change("run_start", lambda fields: fields.update(time_ms=log.fields(stop)["time_ms"]))


def _one_epoch_less(log: Altered, _: Altered) -> Altered:
    """The clock starts in the middle of the first epoch."""
    for key in ("run_start", "train_samples", "eval_samples", "block_start", "epoch_start"):
        log.later(key, 25_000)
    return _by_clock(log)


def _early(log: Altered, _: Altered) -> Altered:
    """The last block is cut off, and the evaluation before it reaches the target."""
    stop = log.fields(log.at("block_stop", -2))["time_ms"]
    end = log.lines[log.at("run_stop")]
    log.lines = [*log.lines[: log.at("block_stop", -2) + 1], end]
    log.change("run_stop", lambda fields: fields.update(time_ms=stop + 1))
    return log.value("eval_accuracy", 0.759, -1)


def _one_more_evaluation(log: Altered, _: Altered) -> Altered:
    lines = [log.lines[log.at(key, -2)] for key in ("eval_start", "eval_stop", "eval_accuracy")]
    epoch = log.at("epoch_stop", -3)
    number, ms = log.fields(epoch)["metadata"]["epoch_num"], log.fields(epoch)["time_ms"]
    log.lines[epoch + 1 : epoch + 1] = lines
    for offset in (1, 2, 3):
        fields = log.fields(epoch + offset)
        fields["metadata"]["epoch_num"] = number
        log.write(epoch + offset, fields | {"time_ms": ms + min(offset, 2) - 1})
    return log


def _ranks(log: Altered, _: Altered) -> Altered:
    """Each event of training stands there twice, as of two ranks of a launcher."""
    log.lines = [out for line in log.lines for out in ([f"0: {line}", f"1: {line}"] if '"epoch_' in line else [line])]
    return log


def _loss(number: int, loss: float | None) -> Callable[[Altered, Altered], Altered]:
    return lambda log, _: log.change("step_window", lambda fields: fields["value"].update(loss=loss), number)


def _rank_times(**changes: Any) -> Callable[[Altered, Altered], Altered]:
    """The ranks' times of a window, as a run of two ranks logs them."""
    value = {f"{kind}_{name}_s": s for kind in ("data_wait", "compute")
             for name, s in (("least", 0.01), ("median", 0.02), ("most", 0.03))}  # fmt: skip
    value |= {
        f"{kind}_{name}": at for kind in ("data_wait", "compute") for name, at in (("rank", 1), ("host", "node0"))
    }

    def forge(log: Altered, _: Altered) -> Altered:
        index = log.at("step_window")
        fields = log.fields(index) | {"key": "rank_times", "value": value | changes}
        log.lines.insert(index, TOKEN + json.dumps(fields | {"metadata": {"step": 22}}))
        return log

    return forge


def _summed(log: Altered, **fields: Any) -> Altered:
    return log.change("telemetry_summary", lambda event: event["value"].update(fields))


def _hidden_by_a_checkpoint(log: Altered, _: Altered) -> Altered:
    """Windows a sixth shorter, and in each epoch a checkpoint that took the rest."""
    _rates(log, 5 / 6)
    for number in range(3):
        stop = log.at("epoch_stop", number)
        fields = log.fields(stop) | {"key": "checkpoint", "metadata": {}, "event_type": "POINT_IN_TIME"}
        fields["value"] = {"step": number * 44 + 22, "file": "x", "mib": 100.0, "blocked_s": 6.0, "write_s": 1.0}
        log.lines.insert(stop, TOKEN + json.dumps(fields))
    return _summed(log, samples=114)


def _synthetic(log: Altered, _: Altered) -> Altered:
    log.lines = make_log.run(seed=2, summary={"data": "synthetic"}).splitlines()
    return _summary(log, data="real")


_WITHIN = "bounds lie a factor off: of 1,015 published runs the least and the most are so far from each other"
_ALONE = "of one run that is a matter of luck; five such are held against the reference points (rcp-convergence)"
_SAID = "only the header says so, in one voice; hardware, precision and data are what the submitter says"

PUBLISHED = [
    Forgery("run_start 10 s later", lambda log, _: log.later("run_start", 10_000), "time-order"),
    Forgery("run_start after three epochs", _start_late, "before-run-start"),
    Forgery("run_stop a minute earlier", lambda log, _: log.later("run_stop", -60_000), "time-order"),
    Forgery("run_stop before the last evaluation", lambda log, _: _replaced(
        log.move_after("run_stop", "epoch_stop")), "after-run-stop"),
    Forgery("every second epoch 10 times as fast", lambda log, _: _intervals(
        log, lambda took: [ms // 10 if n % 2 else ms for n, ms in enumerate(took)]), "epoch-time"),
    Forgery("three epochs 5 times as fast", lambda log, _: _intervals(
        log, lambda took: [ms // 5 if n % 9 == 8 else ms for n, ms in enumerate(took)]), "epoch-time"),
    Forgery("half the time, by the clock alone", lambda log, _: _scaled(log, 0.5), "throughput-agrees"),
    Forgery("a thousandth of the time, rates too", lambda log, _: _by_clock(_scaled(log, 1e-3)), "epoch-time"),
    Forgery("0.7 of the time, rates too", lambda log, _: _by_clock(_scaled(log, 0.7)), hidden=_WITHIN),
    Forgery("evaluations of 10 ms", lambda log, _: _intervals(
        log, lambda took: [10] * len(took), "eval"), "epoch-time"),
    Forgery("the clock set back between epochs", lambda log, _: _clock(
        log, lambda ms: ms - 100_000, "block_start", 4), "time-order"),
    Forgery("the clock set back within an epoch, its rate too", lambda log, _: _by_clock(_clock(
        log, lambda ms: ms - 20_000, "epoch_stop", 20)), hidden=_WITHIN),
    Forgery("the clock starts within the first epoch", _one_epoch_less, hidden=_WITHIN),
    Forgery("every accuracy the same but the last", _curve(lambda v: [0.3] * (len(v) - 1) + v[-1:]), "accuracy-curve"),
    Forgery("no rise before the last", _curve(lambda v: [0.75] * (len(v) - 1) + v[-1:]), "accuracy-curve"),
    Forgery("half the curve, and the target", _curve(lambda v: [round(x * 25_000) / 50_000 for x in v[:-1]] + v[-1:]),
            "accuracy-curve"),
    Forgery("the curve in reverse order", _curve(lambda v: v[-2::-1] + v[-1:]), "accuracy-curve"),
    Forgery("top-1 of 0.99", _curve(lambda v: [*v[:-1], 0.99]), "accuracy-curve"),
    Forgery("the target by no image more", _curve(lambda v: [*v[:-1], 0.759]), hidden=_ALONE),
    Forgery("the target a block earlier", _early, hidden=_ALONE),
    Forgery("half an image", _curve(lambda v: [*v[:-1], 0.75931]), "eval-samples"),
    Forgery("a straight line", _curve(lambda v: [
        (15_000 + i * 23_100 // (len(v) - 1)) / 50_000 for i, _ in enumerate(v)]),
            hidden="a curve of a training's form is made by whoever knows one"),
    Forgery("the other's curve and 30 images", _images(lambda _: 30), "runs-differ"),
    Forgery("the other's curve, an image more or less", _images(lambda i: (-1) ** i), "runs-differ"),
    Forgery("the other's curve, 40 images of noise", _images(lambda i: random.Random(i).randrange(-40, 40)),
            hidden="so far do two runs lie apart at a place"),
    Forgery("another weight decay", lambda log, _: log.value("lars_opt_weight_decay", 1e-4), "same-hyperparameters"),
    Forgery("another batch", lambda log, _: log.value("global_batch_size", 6528), "same-hyperparameters"),
    Forgery("another warm-up", lambda log, _: log.value(
        "lars_opt_learning_rate_warmup_epochs", 8), "same-hyperparameters"),
    Forgery("a momentum that is not allowed", lambda log, _: log.value(
        "lars_opt_momentum", 0.95), "lars_opt_momentum.value"),
    Forgery("four epochs cut out", lambda log, _: _without(log, 12, 16, renumbered=False), "epoch-order"),
    Forgery("four epochs cut out, numbers and times moved up", lambda log, _: _without(log, 12, 16, renumbered=True),
            hidden="it is the log of a shorter run: no line is signed"),
    Forgery("the other's seed, as a text", lambda log, other: log.value(
        "seed", str(other.fields(other.at("seed"))["value"])), "seeds-differ"),
    Forgery("a copy at another hour, other accuracies", _copy(lambda log: log), "runs-differ"),
    Forgery("that copy, its epochs and evaluations in another order", _copy(lambda log: _intervals(_intervals(
        log, lambda took: took[::-1]), lambda took: took[::-1], "eval")), "runs-differ"),
    Forgery("that copy, 3 % faster", _copy(lambda log: _by_clock(_scaled(log, 0.97))), "runs-differ"),
    Forgery("that copy, some milliseconds of noise", _copy(lambda log: _intervals(_intervals(
        log, lambda took: [ms + 7 * (n % 11) - 30 for n, ms in enumerate(took)]),
        lambda took: [ms + 7 * (n % 5) for n, ms in enumerate(took)], "eval")), hidden="the noise is that of a run"),
    Forgery("the halves of two runs", lambda log, other: _halves(log, other, 20), "runs-differ"),
    Forgery("another submitter's run, renamed", lambda log, _: log.value("submission_org", "Another"),
            hidden="`audit` of the whole round finds it (run-elsewhere), no log alone"),
    Forgery("status of a look-alike letter", lambda log, _: log.metadata(
        "run_stop", status="suc\u0441ess"), "run-status"),
    Forgery("a key of a look-alike letter", lambda log, _: _line(
        log, "eval_accuracy", "eval_accuracy", "eval_\u0430ccuracy", 3), "eval-order"),
    Forgery("time_ms twice in an event", lambda log, _: _line(
        log, "run_start", '"time_ms"', '"time_ms": 1, "time_ms"'), "line-duplicate-key"),
    Forgery("an accuracy as a text", lambda log, _: log.value("eval_accuracy", "0.7612", -1), "value-type"),
    Forgery("an accuracy that is NaN", lambda log, _: log.value("eval_accuracy", float("nan"), 2), "line-json"),
    Forgery("an accuracy beyond all numbers", lambda log, _: _line(log.value("eval_accuracy", 7, -1),
            "eval_accuracy", '"value": 7', '"value": 1e999', -1), "value-type"),
    Forgery("an epoch of 31 digits", lambda log, _: log.metadata("eval_accuracy", -1, epoch_num=10**30), "eval-order"),
    Forgery("samples of 400 digits", lambda log, _: log.value("train_samples", 10**400), "closed-data"),
    Forgery("gzip", lambda log, _: gzip.compress(log.text.encode()), "events.count"),
    Forgery("UTF-16", lambda log, _: log.text.encode("utf-16"), "events.count"),
    Forgery("an earlier run_stop behind a carriage return", lambda log, _: _line(
        log, "block_stop", "}}", "}}\r" + log.lines[log.at("run_stop")], -2), "after-run-stop"),
    Forgery("a token with a space of no width", lambda log, _: _line(
        log, "eval_accuracy", ":::ML", ":::M\u200bL", 3), "eval-order"),
    Forgery("an evaluation left out", lambda log, _: log.drop("eval_start", 3).drop("eval_stop", 3).drop(
        "eval_accuracy", 3), "eval-schedule"),
    Forgery("an evaluation put in", _one_more_evaluation, "eval-schedule"),
    Forgery("a page cache that was not cleared", lambda log, _: log.value("cache_clear", False), "cache-cleared"),
    Forgery("the events of two ranks", _ranks, "rank-zero"),
    Forgery("fewer images evaluated", lambda log, _: log.value("eval_samples", 10_000), "closed-data"),
]  # fmt: skip

OWN = [
    Forgery("run_start 10 s later", lambda log, _: log.later("run_start", 10_000), "time-order"),
    Forgery("run_stop 10 s earlier", lambda log, _: log.later("run_stop", -10_000), "time-order"),
    Forgery("half the time, by the clock alone", lambda log, _: _scaled(log, 0.5), "own-log"),
    Forgery("half the time, in all figures", lambda log, _: _rates(_scaled(log, 0.5), 0.5), hidden=_WITHIN),
    Forgery("a twentieth of the time, in all figures", lambda log, _: _rates(_scaled(log, 0.05), 0.05), "own-log"),
    Forgery("the same, and no image_size", lambda log, _: _replaced(
        _rates(_scaled(log, 0.05), 0.05), ("RECIPE.image_size", "RECIPE.size")), "own-log"),
    Forgery("windows a sixth shorter", lambda log, _: _rates(log, 5 / 6), "throughput-agrees"),
    Forgery("the same, and checkpoints that took the rest", _hidden_by_a_checkpoint,
            hidden="what training waits for a checkpoint nothing else says; the score in minutes keeps it"),
    Forgery("all losses null", lambda log, _: _each(
        log, "step_window", lambda fields: fields["value"].update(loss=None)), "own-log"),
    Forgery("one loss null", _loss(3, None), "own-log"),
    Forgery("a loss below 0", _loss(3, -0.1), "own-log"),
    Forgery("times of a rank that is not there", _rank_times(data_wait_rank=99), "own-log"),
    Forgery("the ranks' least above the median", _rank_times(compute_least_s=0.5), "own-log"),
    Forgery("made-up times of the ranks", _rank_times(),
            hidden="they must agree with themselves, and no figure rests on them"),
    Forgery("one sample of telemetry", lambda log, _: _summed(log, samples=1), "own-log"),
    Forgery("a tenth of the energy", lambda log, _: _summed(log, energy_j=422.4, joules_per_image=1.0), "own-log"),
    Forgery("made-up energy, an image's too", lambda log, _: _summed(log, energy_j=4224.0, joules_per_image=1.0),
            hidden="the job's own sampler is all that says it"),
    Forgery("ten times the samples of telemetry", lambda log, _: _summed(log, samples=1150),
            hidden="the sampler starts before run_start, and no event says when"),
    Forgery("64 cores", lambda log, _: _replaced(log, ('"cores": 2', '"cores": 64')), hidden=_SAID),
    Forgery("a GPU that is in no list", lambda log, _: _setting(_replaced(
        log, ('"device": "cpu"', '"device": "gpu"')), DEVICE="gpu"), "own-log"),
    Forgery("another precision, in the summary", lambda log, _: _summary(log, precision="amp_o2"), "own-log"),
    Forgery("another precision, everywhere", lambda log, _: _setting(_summary(_replaced(
        log, ('"math_mode": "fp32"', '"math_mode": "amp_o2"')), precision="amp_o2", math_mode="amp_o2"),
        PRECISION="amp_o2"), hidden=_SAID),
    Forgery("a commit of 39 digits", lambda log, _: _replaced(log, ("0" * 40, "0" * 39)), "own-log"),
    Forgery("another commit", lambda log, _: _replaced(log, ("0" * 40, "a" * 40)),
            hidden="`package` and `verify` compare the code with it, no log alone"),
    Forgery("a section named with a look-alike letter", lambda log, _: _replaced(
        log, ('# {"source"', '# {"s\u043eurce"')), "own-log"),
    Forgery("a section's key twice", lambda log, _: _replaced(
        log, ('"dirty": false', '"dirty": true, "dirty": false')), "own-log"),
    Forgery("synthetic data, called real in the summary", _synthetic, "own-log"),
    Forgery("synthetic data, called real everywhere", lambda log, _: _setting(_replaced(
        _synthetic(log, log), ('"synthetic": true', '"synthetic": false')), DATA="real"), hidden=_SAID),
    Forgery("a run of throughput, called a training", lambda log, _: _setting(log, MODE="throughput"), "own-log"),
    Forgery("the end of a resumed run", lambda log, _: _without(log, 1, 2, renumbered=False), "epoch-order"),
    Forgery("an epoch cut out", lambda log, _: _without(log, 2, 3, renumbered=False), "own-log"),
    Forgery("an epoch cut out, all numbers moved up", lambda log, _: _setting(_summed(
        _without(log, 2, 3, renumbered=True), samples=76), RECIPE_epochs=2), hidden="it is the log of a shorter run"),
    Forgery("aborted in the third of 9 epochs, without what says so", lambda log, _: _setting(_curve(
        lambda v: [round(x * 180) / 360 for x in v])(log, log), RECIPE_epochs=9), "own-log"),
    Forgery("another batch in the settings", lambda log, _: _setting(log, BATCHSIZE=8), "own-log"),
    Forgery("another warm-up than the recipe's", lambda log, _: log.value(
        "opt_learning_rate_warmup_epochs", 0), "own-log"),
    Forgery("another momentum than the recipe's", lambda log, _: log.value("sgd_opt_momentum", 0.5), "own-log"),
    Forgery("another rate than the recipe's", lambda log, _: log.value("sgd_opt_base_learning_rate", 9.0), "own-log"),
    Forgery("a lower target", lambda log, _: _setting(_curve(lambda v: [round(x * 180) / 360 for x in v])(
        log, log), RECIPE_target_top1=0.4), hidden="an open run chooses its target"),
    Forgery("the other's losses at another hour", _copy(lambda log: log), "runs-differ"),
    Forgery("as another system's log", lambda log, _: Altered(foreign(log.text)),
            hidden="then it is one, and its header vouches for nothing"),
    Forgery("the same, but for its telemetry", lambda log, _: Altered(
        foreign(log.text) + log.lines[log.at("telemetry_summary")]), "own-log"),
    Forgery("an epoch of twice the images", lambda log, _: log.change("epoch_throughput", lambda fields: fields[
        "value"].update(images=2816, images_per_s=2816 / 36)), "epoch-images"),
    Forgery("the windows of two ranks", lambda log, _: log.repeat("step_window").repeat("step_window", 2), "own-log"),
    Forgery("UTF-16", lambda log, _: log.text.encode("utf-16"), "events.count"),
]  # fmt: skip


@pytest.fixture(scope="module")
def published_runs(published_corpus: Path) -> list[str]:
    """Two runs of Baidu's submission of v1.1."""
    folder = "Baidu/results/1_node_8_A100_NGC21.05_MXNet/resnet"
    with tarfile.open(published_corpus / "mlperf_v1.1_baidu.tar.xz") as archive:
        members = [archive.extractfile(f"{folder}/result_{number}.txt") for number in (0, 1)]
        return [member.read().decode() for member in members if member]


def _broken(first: str, second: str | bytes, ruleset: str) -> tuple[list[str], list[str]]:
    """Rules that two logs of one submission break."""
    logs = [HeldLog("0/result_0.txt"), HeldLog("0/result_1.txt")]
    for log, text in zip(logs, (first, second), strict=True):
        log.data = text.encode() if isinstance(text, str) else text
    reports = check_logs(logs, rules.load(ruleset))
    one, two = (sorted({f.rule for f in report.findings if f.severity == "error"}) for report in reports)
    return one, two


def _judge(forgery: Forgery, other: str, text: str, ruleset: str) -> None:
    forged = forgery.forge(Altered(text), Altered(other))
    _, broken = _broken(other, forged if isinstance(forged, bytes) else forged.text, ruleset)
    assert forgery.rule in broken if forgery.rule else broken == [], broken


@pytest.mark.parametrize("forgery", PUBLISHED, ids=lambda forgery: forgery.name)
def test_forgeries_of_a_published_run(forgery: Forgery, published_runs: list[str]) -> None:
    assert _broken(*published_runs, "1.1.0") == ([], [])
    _judge(forgery, *published_runs, "1.1.0")


@pytest.mark.parametrize("forgery", OWN, ids=lambda forgery: forgery.name)
def test_forgeries_of_our_own_run(forgery: Forgery) -> None:
    runs = make_log.run(seed=1), make_log.run(seed=2)
    assert _broken(*runs, "4.0.0") == ([], [])
    _judge(forgery, *runs, "4.0.0")


def test_each_forgery_is_found_or_says_why_not() -> None:
    assert all(bool(forgery.rule) != bool(forgery.hidden) for forgery in (*PUBLISHED, *OWN))
