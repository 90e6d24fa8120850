"""Forgeries such as a cheating submitter would make, and which rule finds each; docs/audit.md tells of more."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from compliance import rules
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog
from tests import make_log
from tests.compliance import forging as by
from tests.compliance.altered import Altered, foreign

# How a log is altered, beside which another of its submission lies, and the rule that finds it; "" where none does
Forgery = tuple[Callable[[Altered, Altered], Altered], str]

PUBLISHED: dict[str, Forgery] = {
    "every second epoch 10 times as fast": (lambda log, _: by.intervals(
        log, lambda took: [ms // 10 if n % 2 else ms for n, ms in enumerate(took)]), "epoch-time"),
    "a thousandth of the time, rates too": (lambda log, _: by.by_clock(by.scaled(log, 1e-3)), "epoch-time"),
    "0.7 of the time, rates too: within the bounds": (lambda log, _: by.by_clock(by.scaled(log, 0.7)), ""),
    "evaluations of 10 ms": (lambda log, _: by.intervals(log, lambda took: [10] * len(took), "eval"), "epoch-time"),
    "run_start 50 ms behind the first epoch": (lambda log, _: log.change("run_start", lambda fields: fields.update(
        time_ms=log.fields(log.at("epoch_start"))["time_ms"] + 50)), "time-order"),
    "all accuracies one but the last": (by.curve(lambda v: [0.3] * (len(v) - 1) + v[-1:]), "accuracy-curve"),
    "top-1 of 0.99": (by.curve(lambda v: [*v[:-1], 0.99]), "accuracy-curve"),
    "the other's curve and 30 images": (by.more_images(lambda _: 30), "runs-differ"),
    "the other's curve, an image more or less": (by.more_images(lambda i: (-1) ** i), "runs-differ"),
    "the other's curve but for one evaluation": (by.more_images(lambda i: 900 * (i == 1)), "runs-differ"),
    "a throughput 2 % higher": (lambda log, _: log.change(
        "throughput", lambda fields: fields.update(value=fields["value"] * 1.02), 5), "throughput-agrees"),
    "tracked_stats 2 % lower": (lambda log, _: log.change(
        "tracked_stats", lambda fields: fields["value"].update(imgs_sec=fields["value"]["imgs_sec"] * 0.98), 5),
        "throughput-agrees"),
    "a batch that the ranks do not divide": (lambda log, _: log.value("global_batch_size", 3265),
                                             "model_bn_span.value"),
    "the other's seed, as a text": (lambda log, other: log.value(
        "seed", str(other.fields(other.at("seed"))["value"])), "seeds-differ"),
    "a copy at another hour, other accuracies": (by.copied(lambda log: log), "runs-differ"),
    "that copy, its epochs and evaluations in another order": (by.copied(lambda log: by.intervals(by.intervals(
        log, lambda took: took[::-1]), lambda took: took[::-1], "eval")), "runs-differ"),
    "that copy, 3 % faster": (by.copied(lambda log: by.by_clock(by.scaled(log, 0.97))), "runs-differ"),
    "an epoch of 31 digits": (lambda log, _: log.metadata("eval_accuracy", -1, epoch_num=10**30), "eval-order"),
    "an evaluation twice": (lambda log, _: by.twice(log, "eval_start", "eval_accuracy", 4), "eval-schedule"),
    "a run of another batch in the folder": (lambda log, _: log.value(
        "submission_platform", "another").value("global_batch_size", 1632), "same-hyperparameters"),
    "a run of another system in the folder, which only warns": (lambda log, _: log.value(
        "submission_platform", "another"), ""),
}  # fmt: skip

OWN: dict[str, Forgery] = {
    "a twentieth of the time, in all figures": (lambda log, _: by.rates(by.scaled(log, 0.05), 0.05), "own-log"),
    "the same, and no image_size": (lambda log, _: by.replaced(
        by.rates(by.scaled(log, 0.05), 0.05), ("RECIPE.image_size", "RECIPE.size")), "own-log"),
    "all losses null": (lambda log, _: by.each(
        log, "step_window", lambda fields: fields["value"].update(loss=None)), "own-log"),
    "times of a rank that is not there": (by.rank_times(data_wait_rank=99), "own-log"),
    "the ranks' least above the median": (by.rank_times(compute_least_s=0.5), "own-log"),
    "made-up times of the ranks, on which no figure rests": (by.rank_times(), ""),
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
        lambda v: [round(x * 180) / 360 for x in v])(log, log), RECIPE_epochs=9), "own-log"),
    "another momentum than the recipe's": (lambda log, _: log.value("sgd_opt_momentum", 0.5), "own-log"),
    "another rate than the recipe's": (lambda log, _: log.value("sgd_opt_base_learning_rate", 9.0), "own-log"),
    "the other's losses at another hour": (by.copied(lambda log: log), "runs-differ"),
    "the other's accuracies": (lambda log, other: by.curve(
        lambda _: by.accuracies(other))(log, other), "runs-differ"),
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


def _broken(first: str, second: str, ruleset: str) -> tuple[set[str], ...]:
    """Rules that two logs of one submission break."""
    logs = [HeldLog("0/result_0.txt"), HeldLog("0/result_1.txt")]
    for log, text in zip(logs, (first, second), strict=True):
        log.data = text.encode()
    reports = check_logs(logs, rules.load(ruleset))
    return tuple({f.rule for f in report.findings if f.severity == "error"} for report in reports)


def _judge(forgery: Forgery, other: str, text: str, ruleset: str) -> None:
    forge, rule = forgery
    assert _broken(other, text, ruleset) == (set(), set())
    _, broken = _broken(other, forge(Altered(text), Altered(other)).text, ruleset)
    assert rule in broken if rule else not broken, broken


@pytest.mark.parametrize("name", PUBLISHED)
def test_forgeries_of_a_published_run(name: str, published_runs: list[str]) -> None:
    _judge(PUBLISHED[name], *published_runs, "1.1.0")


@pytest.mark.parametrize("name", OWN)
def test_forgeries_of_our_own_run(name: str) -> None:
    _judge(OWN[name], make_log.run(seed=1), make_log.run(seed=2), "4.0.0")
