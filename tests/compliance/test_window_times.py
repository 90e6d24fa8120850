"""A log of this project is held to the times of its windows: to the clock, the ranks' own times and the checkpoints."""

import pytest

from compliance import rules
from compliance.rules import Finding
from compliance.strict.losses import faults_of_losses
from compliance.submission.runs import check_logs
from runlog.reader import HeldLog
from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import Altered
from tests.compliance.test_strict import Forgery, broken_rules, judge_forgery


def _waiting_meanwhile(log: Altered, waited_s: float, *, room_ms: float = 0.0) -> Altered:
    """Half of a wait for a checkpoint in the second epoch was cut from each window's time, but for `room_ms` of it."""
    cut_s = (waited_s - room_ms / 1000) / 2
    for window in (2, 3):
        log.inside("step_window", window, time_s=18.0 - cut_s)
        log.inside("rank_times", window, compute_least_s=1.0, compute_median_s=1.0, compute_most_s=1.0)
    time_s = 36 - 2 * cut_s
    log.inside("epoch_throughput", 1, time_s=time_s, images_per_s=1408 / time_s)
    by.clock(log, lambda ms: ms + room_ms, "rank_times", 3)
    waited = by.checkpoint(log, step=66, number=3).replace('"blocked_s": 1.0', f'"blocked_s": {waited_s}')
    return log.add_after("step_window", waited, 3)


FORGERIES: dict[str, Forgery] = {
    "times of a rank that is not there": (lambda log, _: by.rank_times(log, data_wait_rank=99), "own-log"),
    "times of a rank of a negative number": (lambda log, _: by.rank_times(log, compute_rank=-1), "own-log"),
    "the ranks' least above the median": (lambda log, _: by.rank_times(log, compute_least_s=17.0), "own-log"),
    "made-up times of the ranks, on which no figure rests": (lambda log, _: by.rank_times(log), ""),
    "less waiting for data than any rank's": (lambda log, _: by.rank_times(log, data_wait_least_s=0.011), "own-log"),
    "more waiting for data than any rank's": (lambda log, _: by.rank_times(
        log, data_wait_least_s=0.001, data_wait_median_s=0.002, data_wait_most_s=0.009), "own-log"),
    "a rank that computes for longer than its window": (lambda log, _: by.rank_times(
        log, compute_most_s=23.6), "own-log"),
    "a rank that computed while another wrote a checkpoint": (lambda log, _: by.rank_times(
        log, compute_most_s=23.4), ""),
    "times of a rank on another host": (lambda log, _: by.rank_times(log, data_wait_host="node1"), "own-log"),
    "two ranks with a median that is not the lower one": (lambda log, _: by.rank_times(
        log, data_wait_median_s=0.011), "own-log"),
    "a rank that computed for an unknown time": (lambda log, _: by.rank_times(log, compute_least_s=None), "own-log"),
    "rank 0 that waited longest, and less than it did": (lambda log, _: by.rank_times(
        log, data_wait_rank=0), "own-log"),
    "rank 0 of two that waited less than the other, and not least": (lambda log, _: by.rank_times(
        log, data_wait_least_s=0.009, data_wait_median_s=0.009), "own-log"),
    "no times of the ranks": (lambda log, _: log.drop_all("rank_times"), "own-log"),
    "no times of the ranks in one window": (lambda log, _: log.drop("rank_times", 3), "own-log"),
    "times of the ranks twice in one window": (lambda log, _: log.repeat("rank_times", 3), "own-log"),
    "times of the ranks in no window": (lambda log, _: log.without_metadata("rank_times", "step"), "own-log"),
    "times of the ranks in another window": (lambda log, _: by.rank_times(log, step=23), "own-log"),
    "half of each epoch called waiting for checkpoints": (lambda log, _: by.waiting(log), "own-log"),
    "minutes within an epoch called waiting for a checkpoint: storage may be slow": (lambda log, _: by.stalled(
        log), ""),
    "that, and the disk did not take it": (lambda log, _: by.unwritten(by.stalled(log)), ""),
    "that, and no checkpoint due for a quarter of an hour": (lambda log, _: by.settings(
        by.stalled(log), CHECKPOINT_MINUTES=15), "own-log"),
    "the same of one that the disk did not take": (lambda log, _: by.settings(
        by.unwritten(by.stalled(log)), CHECKPOINT_MINUTES=15), "own-log"),
    "a wait below 0 for one that the disk did not take": (lambda log, _: by.unwritten(by.stalled(log)).inside(
        "checkpoint_failed", blocked_s=-1.0), "own-log"),
    "one of a step to come that the disk did not take": (lambda log, _: by.unwritten(by.stalled(log)).inside(
        "checkpoint_failed", step=89), "own-log"),
    "that, and checkpoints only after each epoch": (lambda log, _: by.settings(
        by.stalled(log), CHECKPOINT_MINUTES=0, CHECKPOINT_EPOCHS=1), "own-log"),
    "minutes between an epoch's last step and its end called so": (lambda log, _: by.stalled_at_the_end(log), ""),
    "that, and no checkpoint due so soon": (lambda log, _: by.settings(
        by.stalled_at_the_end(log), CHECKPOINT_MINUTES=15), "own-log"),
    "that of a checkpoint that is due after the epoch, and its evaluation": (lambda log, _: by.settings(
        by.stalled_at_the_end(log), CHECKPOINT_EPOCHS=2), "throughput-agrees"),
    "an eighth of an epoch called a wait for which no time passed": (lambda log, _: _waiting_meanwhile(
        log, 4.2), "own-log"),
    "that, and training waited for it within a window": (lambda log, _: _waiting_meanwhile(
        log, 4.2).inside("checkpoint", step=51, file="step_000000051.safetensors"), "own-log"),
    "a wait that took the time between two windows": (lambda log, _: _waiting_meanwhile(
        log, 4.2, room_ms=4200), ""),
    "the same of a step within a window": (lambda log, _: _waiting_meanwhile(
        log, 4.2, room_ms=4200).inside("checkpoint", step=51, file="step_000000051.safetensors"), "own-log"),
    "0.9 s between an epoch's last step and its end: a rank may have been late": (lambda log, _: by.clock(
        log, lambda ms: ms + 900, "epoch_stop", 1), ""),
    "2 s there": (lambda log, _: by.clock(log, lambda ms: ms + 2000, "epoch_stop", 1), "throughput-agrees"),
    "the first of each epoch's windows a third as long, the second as much longer": (lambda log, _: by.shifted(
        log, 12.0), "own-log"),
    "a second from a window to the next: a rank may have been late": (lambda log, _: by.shifted(log, 1.0), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_of_the_times_of_our_own_run(name: str) -> None:
    judge_forgery(FORGERIES[name], make_log.run(seed=1), make_log.run(seed=2), "4.0.0")


@pytest.mark.parametrize(
    ("losses", "passes"),
    [
        ([2.5, 2.25, 2.0, 1.75, 1.5, 1.25] * 2, False),  # an epoch that was copied
        ([3.0, 2.5, 2.25, 2.0, 1.75, 1.5, 2.75, 2.5, 2.25, 2.0, 1.75, 1.5], False),
        ([3.0, 2.5, 2.25, 2.0, 1.75, 1.25, 2.75, 2.5, 2.25, 2.0, 1.75, 1.5], True),  # four in a row
        ([2.5, 2.25] * 6, True),  # to and fro between two weights
        ([2.5] * 6 + [2.25] * 6, True),
        ([0.6675120, 0.6675123, 0.6675121, 0.6675122, 0.6675124, 0.6675125] * 2, True),  # in the last digits alone
    ],
)
def test_no_losses_of_a_run_stand_there_twice_in_a_row(losses: list[float], passes: bool) -> None:
    log = Altered(make_log.run(epochs=6))
    for number, loss in enumerate(losses):
        log.inside("step_window", number, loss=loss)
    [found] = broken_rules("4.0.0", log.text)
    assert ("own-log" not in found) is passes
    assert passes or "5 losses in a row, up to 1.5, are those of 5 windows before" in found["own-log"]


@pytest.mark.parametrize("windows", [3, 12])
def test_no_loss_is_called_0_or_none_if_no_window_could_be_read(windows: int) -> None:
    assert list(faults_of_losses([None] * windows, not_read=windows)) == []


@pytest.mark.parametrize(("room_ms", "passes"), [(0.0, False), (3500.0, True)])
def test_a_wait_for_a_checkpoint_after_the_last_window_of_an_epoch_is_a_time_of_the_epoch(
    room_ms: float, passes: bool
) -> None:
    """The second epoch has one window, of which a tenth is called a wait for the checkpoint after it."""
    log = by.clock(Altered(make_log.run(samples=(32, 40))), lambda ms: ms + room_ms, "epoch_stop", 1)
    time_s = 32.5 + room_ms / 1000
    log.inside("step_window", 1, time_s=time_s).inside("epoch_throughput", 1, time_s=time_s, images_per_s=32 / time_s)
    log.inside("rank_times", 1, compute_least_s=1.0, compute_median_s=1.0, compute_most_s=1.0)
    log.add_after("step_window", by.checkpoint(log, step=2, number=1), 1).inside("checkpoint", blocked_s=3.5)
    [found] = broken_rules("4.0.0", log.text)
    assert ("own-log" not in found) is passes


def _findings(text: str) -> list[Finding]:
    """All breaches and warnings of a log."""
    held = HeldLog("0/result_0.txt")
    held.data = text.encode()
    [report] = check_logs([held], rules.load("4.0.0"))
    return [finding for finding in report.findings if finding.severity != "info"]


@pytest.mark.parametrize(("wait_s", "warned"), [(2.5, False), (120.0, True)])
def test_a_run_that_waits_long_for_its_checkpoints_is_warned_of(wait_s: float, warned: bool) -> None:
    """Time that is called a wait is in no rate: of half of each window, a log stated twice the images/s."""
    log = by.stalled(Altered(make_log.run()))
    by.clock(log, lambda ms: ms - 240_000 + 1000 * wait_s, "rank_times", 3)
    log.inside("checkpoint", blocked_s=wait_s).inside("telemetry_summary", samples=114 + int(wait_s))
    found = [finding.actual for finding in _findings(log.text)]
    words = f"training waited {wait_s:g} s for 1 checkpoint, and for 108 s it trained: no rate counts the wait"
    assert found == ([words] if warned else [])


@pytest.mark.parametrize("step", [22, 51, 66, 100])
def test_a_resumed_run_waits_for_checkpoints_after_its_own_windows(step: int) -> None:
    """It waited for no time, and the windows lack as much. Of a step within a window that was believed."""
    log = _waiting_meanwhile(Altered(make_log.run(summary={"resumed": True})), 4.2)
    log.inside("checkpoint", step=step, file=f"step_{step:09d}.safetensors")
    [found] = broken_rules("4.0.0", log.text)
    assert "own-log" in found


@pytest.mark.parametrize("resumed", [True, False])
def test_a_run_resumed_at_the_end_of_an_epoch_may_write_its_checkpoint_again(resumed: bool) -> None:
    """The epoch was trained in another log, and is evaluated in this one."""
    log = Altered(make_log.run(summary={"resumed": resumed}))
    written = by.checkpoint(log, step=44, number=0)
    log.drop_all("step_window", "rank_times").add_after("eval_stop", written)
    found = [finding.actual for finding in _findings(log.text)]
    assert any("no possible checkpoint" in actual for actual in found) is not resumed
