"""Forgeries such as a cheating submitter would make: which rule finds each, or why no log shows it."""

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from compliance import rules
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog
from tests import make_log
from tests.compliance import forging as by
from tests.compliance.altered import Altered, foreign


class Forgery(NamedTuple):
    """`forge` alters a log, beside which another of its submission lies. `rule` finds it, or `hidden` says why none."""

    name: str
    forge: Callable[[Altered, Altered], Altered | bytes]
    rule: str = ""
    hidden: str = ""


_WITHIN = "bounds lie a factor off: of 1,015 published runs the least and the most are so far from each other"
_ALONE = "of one run that is a matter of luck; five such are held against the reference points (rcp-convergence)"
_SAID = "only the header says so, in one voice; hardware, precision and data are what the submitter says"

PUBLISHED = [
    Forgery("run_stop a minute earlier", lambda log, _: log.later("run_stop", -60_000), "time-order"),
    Forgery("run_stop before the last evaluation", lambda log, _: by.replaced(
        log.move_after("run_stop", "epoch_stop")), "after-run-stop"),
    Forgery("every second epoch 10 times as fast", lambda log, _: by.intervals(
        log, lambda took: [ms // 10 if n % 2 else ms for n, ms in enumerate(took)]), "epoch-time"),
    Forgery("three blocks without epochs 10 times as fast", by.fast_blocks, "epoch-time"),
    Forgery("half the time, by the clock alone", lambda log, _: by.scaled(log, 0.5), "throughput-agrees"),
    Forgery("a thousandth of the time, rates too", lambda log, _: by.by_clock(by.scaled(log, 1e-3)), "epoch-time"),
    Forgery("0.7 of the time, rates too", lambda log, _: by.by_clock(by.scaled(log, 0.7)), hidden=_WITHIN),
    Forgery("evaluations of 10 ms", lambda log, _: by.intervals(
        log, lambda took: [10] * len(took), "eval"), "epoch-time"),
    Forgery("the clock set back between epochs", lambda log, _: by.clock(
        log, lambda ms: ms - 100_000, "block_start", 4), "time-order"),
    Forgery("all accuracies one but the last", by.curve(lambda v: [0.3] * (len(v) - 1) + v[-1:]), "accuracy-curve"),
    Forgery("the curve in reverse order", by.curve(lambda v: v[-2::-1] + v[-1:]), "accuracy-curve"),
    Forgery("top-1 of 0.99", by.curve(lambda v: [*v[:-1], 0.99]), "accuracy-curve"),
    Forgery("half an image", by.curve(lambda v: [*v[:-1], 0.75931]),
            hidden="a mean over workers' shares is no whole number of images either, and ten logs of v0.7 have such"),
    Forgery("the other's curve and 30 images", by.more_images(lambda _: 30), "runs-differ"),
    Forgery("the other's curve, an image more or less", by.more_images(lambda i: (-1) ** i), "runs-differ"),
    Forgery("another batch", lambda log, _: log.value("global_batch_size", 6528), "same-hyperparameters"),
    Forgery("a batch that the ranks do not divide", lambda log, _: log.value(
        "global_batch_size", 3265), "model_bn_span.value"),
    Forgery("four epochs cut out", lambda log, _: by.without(log, 12, 16, renumbered=False), "epoch-order"),
    Forgery("four epochs cut out, numbers and times moved up", lambda log, _: by.without(log, 12, 16, renumbered=True),
            hidden="it is the log of a shorter run: no line is signed"),
    Forgery("the other's seed, as a text", lambda log, other: log.value(
        "seed", str(other.fields(other.at("seed"))["value"])), "seeds-differ"),
    Forgery("a copy at another hour, other accuracies", by.copied(lambda log: log), "runs-differ"),
    Forgery("that copy, its epochs and evaluations in another order", by.copied(lambda log: by.intervals(by.intervals(
        log, lambda took: took[::-1]), lambda took: took[::-1], "eval")), "runs-differ"),
    Forgery("that copy, 3 % faster", by.copied(lambda log: by.by_clock(by.scaled(log, 0.97))), "runs-differ"),
    Forgery("that copy, some milliseconds of noise", by.copied(lambda log: by.intervals(by.intervals(
        log, lambda took: [ms + 7 * (n % 11) - 30 for n, ms in enumerate(took)]),
        lambda took: [ms + 7 * (n % 5) for n, ms in enumerate(took)], "eval")), hidden="the noise is that of a run"),
    Forgery("another submitter's run, renamed", lambda log, _: log.value("submission_org", "Another"),
            hidden="`audit` of the whole round finds it (run-elsewhere), no log alone"),
    Forgery("status of a look-alike letter", lambda log, _: log.metadata(
        "run_stop", status="suc\u0441ess"), "run-status"),
    Forgery("an accuracy as a text", lambda log, _: log.value("eval_accuracy", "0.7612", -1), "value-type"),
    Forgery("an accuracy that is NaN", lambda log, _: log.value("eval_accuracy", float("nan"), 2), "line-json"),
    Forgery("an epoch of 31 digits", lambda log, _: log.metadata("eval_accuracy", -1, epoch_num=10**30), "eval-order"),
    Forgery("gzip", lambda log, _: gzip.compress(log.text.encode()), "events.count"),
    Forgery("an earlier run_stop behind a carriage return", lambda log, _: by.in_line(
        log, "block_stop", "}}", "}}\r" + log.lines[log.at("run_stop")], -2), "after-run-stop"),
    Forgery("a page cache that was not cleared", lambda log, _: log.value("cache_clear", False), "cache-cleared"),
    Forgery("the events of two ranks", by.two_ranks, "epoch-order"),
    Forgery("fewer images evaluated", lambda log, _: log.value("eval_samples", 10_000),
            hidden="only the label: the accuracies are whole numbers of 50,000 images"),
    Forgery("49,500 images evaluated, called 50,000", by.curve(
        lambda v: [(round(x * 49_500) + 1) / 49_500 for x in v]), "eval-samples"),
    Forgery("the clock of another host from the sixth block on", lambda log, _: by.clock(
        log, lambda ms: ms - 3_600_000, "block_start", 5), "time-order"),
    Forgery("an evaluation twice", lambda log, _: by.twice(log, "eval_start", "eval_accuracy", 4), "eval-schedule"),
    Forgery("warm-up epochs on data before run_start", by.warmed, "before-run-start"),
    Forgery("run_start 50 ms behind the first epoch", lambda log, _: log.change(
        "run_start", lambda fields: fields.update(time_ms=log.fields(log.at("epoch_start"))["time_ms"] + 50)),
            "time-order"),
    Forgery("a run of another batch in the folder", lambda log, _: log.value(
        "submission_platform", "another").value("global_batch_size", 1632), "same-hyperparameters"),
    Forgery("a run of another system in the folder", lambda log, _: log.value("submission_platform", "another"),
            hidden="the name is a label; `same-configuration` warns, and `package` refuses the mixture"),
    Forgery("a key with a space of no width", lambda log, _: by.in_line(
        log, "run_stop", "run_stop", "run_\u200bstop"), "run_stop.count"),
    Forgery("the key twice in an event", lambda log, _: by.in_line(
        log, "eval_accuracy", '"value"', '"value": 0.1, "value"', -1), "line-duplicate-key"),
    Forgery("a time of 400 digits", lambda log, _: by.in_line(
        log, "run_stop", '"time_ms": ', '"time_ms": ' + "9" * 400), "line-fields"),
    Forgery("the target not reached, by 0.0000001", by.curve(
        lambda v: [*(min(x, 0.75) for x in v[:-1]), 0.7589999]), "eval_accuracy.value"),
    Forgery("the batch changes in the run", lambda log, _: log.add_after("epoch_stop", log.lines[log.at(
        "global_batch_size")].replace('"value": 3264', '"value": 6528'), 5), "global_batch_size.count"),
    Forgery("an accuracy of epoch 0, from a trained model", lambda log, _: log.metadata(
        "eval_accuracy", 0, epoch_num=0), "eval-order"),
]  # fmt: skip

OWN = [
    Forgery("run_stop 10 s earlier", lambda log, _: log.later("run_stop", -10_000), "time-order"),
    Forgery("half the time, by the clock alone", lambda log, _: by.scaled(log, 0.5), "own-log"),
    Forgery("half the time, in all figures", lambda log, _: by.rates(by.scaled(log, 0.5), 0.5), hidden=_WITHIN),
    Forgery("a twentieth of the time, in all figures", lambda log, _: by.rates(by.scaled(log, 0.05), 0.05), "own-log"),
    Forgery("the same, and no image_size", lambda log, _: by.replaced(
        by.rates(by.scaled(log, 0.05), 0.05), ("RECIPE.image_size", "RECIPE.size")), "own-log"),
    Forgery("windows a sixth shorter", lambda log, _: by.rates(log, 5 / 6), "throughput-agrees"),
    Forgery("all losses null", lambda log, _: by.each(
        log, "step_window", lambda fields: fields["value"].update(loss=None)), "own-log"),
    Forgery("times of a rank that is not there", by.rank_times(data_wait_rank=99), "own-log"),
    Forgery("the ranks' least above the median", by.rank_times(compute_least_s=0.5), "own-log"),
    Forgery("made-up times of the ranks", by.rank_times(),
            hidden="they must agree with themselves, and no figure rests on them"),
    Forgery("one sample of telemetry", lambda log, _: by.summed(log, samples=1), "own-log"),
    Forgery("a tenth of the energy", lambda log, _: by.summed(log, energy_j=422.4, joules_per_image=1.0), "own-log"),
    Forgery("a GPU that is in no list", lambda log, _: by.settings(by.replaced(
        log, ('"device": "cpu"', '"device": "gpu"')), DEVICE="gpu"), "own-log"),
    Forgery("another precision than a CPU has, everywhere", lambda log, _: by.settings(by.summary(by.replaced(
        log, ('"math_mode": "fp32"', '"math_mode": "amp_o2"')), precision="amp_o2", math_mode="amp_o2"),
        PRECISION="amp_o2"), "own-log"),
    Forgery("another commit", lambda log, _: by.replaced(log, ("0" * 40, "a" * 40)),
            hidden="`package` and `verify` compare the code with it, no log alone"),
    Forgery("a section's key twice", lambda log, _: by.replaced(
        log, ('"dirty": false', '"dirty": true, "dirty": false')), "own-log"),
    Forgery("synthetic data, called real everywhere", lambda log, _: by.settings(by.replaced(
        by.synthetic(log, log), ('"synthetic": true', '"synthetic": false')), DATA="real"), hidden=_SAID),
    Forgery("the end of a resumed run", lambda log, _: by.without(log, 1, 2, renumbered=False), "epoch-order"),
    Forgery("an epoch cut out", lambda log, _: by.without(log, 2, 3, renumbered=False), "own-log"),
    Forgery("an epoch cut out, all numbers moved up", lambda log, _: by.settings(by.summed(
        by.without(log, 2, 3, renumbered=True), samples=76), RECIPE_epochs=2), hidden="it is the log of a shorter run"),
    Forgery("aborted in the third of 9 epochs, without what says so", lambda log, _: by.settings(by.curve(
        lambda v: [round(x * 180) / 360 for x in v])(log, log), RECIPE_epochs=9), "own-log"),
    Forgery("another momentum than the recipe's", lambda log, _: log.value("sgd_opt_momentum", 0.5), "own-log"),
    Forgery("another rate than the recipe's", lambda log, _: log.value("sgd_opt_base_learning_rate", 9.0), "own-log"),
    Forgery("a lower target", lambda log, _: by.settings(by.curve(lambda v: [round(x * 180) / 360 for x in v])(
        log, log), RECIPE_target_top1=0.4), hidden="an open run chooses its target"),
    Forgery("the other's losses at another hour", by.copied(lambda log: log), "runs-differ"),
    Forgery("as another system's log", lambda log, _: Altered(foreign(log.text)),
            hidden="then it is one, and its header vouches for nothing"),
    Forgery("the same, but for its telemetry", lambda log, _: Altered(
        foreign(log.text) + log.lines[log.at("telemetry_summary")]), "own-log"),
    Forgery("the windows of two ranks", lambda log, _: log.repeat("step_window").repeat("step_window", 2), "own-log"),
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
