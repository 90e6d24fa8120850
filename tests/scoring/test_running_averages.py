"""PaddleClas's dynamic graph: releases whose averages run on from row to row, and those that begin anew at each row."""

import datetime
import itertools
import random
import re
from pathlib import Path

import pytest

from scoring.importers import read_record
from scoring.importers.resets import Resets
from scoring.importers.running_averages import PrintedMean, are_running_averages
from scoring.importers.table import RowPosition
from scoring.record import Record
from tests.scoring import samples

BATCH = 64
EPOCH_STEPS = 304  # not a multiple of 10: steps after an epoch's last row are averaged in the next epoch's first one
START = datetime.datetime(2022, 3, 1, 10)


def epoch_times(seed: int, *, slow: float = 1.5) -> list[float]:
    """Step times of an epoch whose first 50 steps are slow."""
    drawn = random.Random(seed)
    return [0.35 * drawn.gauss(1, 0.02) * (slow if step < 50 else 1) for step in range(EPOCH_STEPS)]


def log(epochs: list[list[float]], *, anew_at_rows: bool, unit: str = "samples/s", stamps: bool = True) -> str:
    """A log as ppcls/engine/train/train.py and utils.py `log_info` print it: a row every 10 steps.

    The meters are reset at step 5 of an epoch and, in releases after 2.5, after each row; never between epochs.
    """
    lines = ["GPUs used: 4"]
    metered: list[float] = []
    elapsed = 0.0
    for epoch, times in enumerate(epochs, 1):
        for step, time in enumerate(times):
            metered = [time] if step == 5 else [*metered, time]
            elapsed += time
            if step % 10:
                continue
            mean = sum(metered) / len(metered)
            stamp = f"[{START + datetime.timedelta(seconds=int(elapsed)):%Y/%m/%d %H:%M:%S}] ppcls " if stamps else ""
            lines.append(
                f"{stamp}INFO: [Train][Epoch {epoch}/{len(epochs)}][Iter: {step}/{len(times)}]lr(Cosine): 0.10000000, "
                f"top1: 0.00391, CELoss: 6.99, loss: 6.99, batch_cost: {mean:.5f}s, reader_cost: {mean / 50:.5f}, "
                f"ips: {BATCH / mean:.5f} {unit}, eta: 0:04:20"
            )
            metered = [] if anew_at_rows else metered
        elapsed += 20  # an evaluation
    return "\n".join(lines) + "\n"


def read(folder: Path, text: str) -> Record:
    return read_record(samples.write(folder, "train.log", text))


@pytest.mark.parametrize(
    ("unit", "stamps", "seeds"), [("samples/s", True, 1), ("images/sec", False, 1), ("samples/s", False, 3)]
)
def test_averages_that_run_on_are_differenced(tmp_path: Path, unit: str, stamps: bool, seeds: int) -> None:
    """The stamps show it, or the release that printed `images/sec`, or else how the changes shrink."""
    epochs = [epoch_times(seed) for seed in range(seeds)]
    record = read(tmp_path, log(epochs, anew_at_rows=False, unit=unit, stamps=stamps))
    assert record.cumulative
    eleventh = record.windows[11]
    times = epochs[0][101:111]
    assert (eleventh.step, eleventh.steps) == (110, 10)
    assert eleventh.seconds == pytest.approx(sum(times), rel=1e-4)
    assert eleventh.data_wait_s == pytest.approx(sum(times) / 50, rel=0.05)


@pytest.mark.parametrize("anew_at_rows", [False, True])
def test_the_first_row_of_an_epoch_has_the_end_of_the_epoch_before(tmp_path: Path, anew_at_rows: bool) -> None:
    """Of a run of short epochs, a slow first step weighs as one step of the steps that its row averages."""
    epochs = [epoch_times(seed) for seed in range(2)]
    record = read(tmp_path, log(epochs, anew_at_rows=anew_at_rows))
    [first] = [window for window in record.windows if (window.epoch, window.step) == (2, 0)]
    times = [*epochs[0][301:], epochs[1][0]]
    assert first.steps == 4 and first.seconds == pytest.approx(sum(times), rel=1e-3)


@pytest.mark.parametrize(("anew_at_rows", "unit"), [(False, "images/sec"), (False, "samples/s"), (True, "samples/s")])
def test_epochs_whose_reset_lies_between_two_rows(tmp_path: Path, anew_at_rows: bool, unit: str) -> None:
    """Epochs of 8 steps print their step 0 alone. It averages steps 5 to 7 of the epoch before, and itself."""
    epochs = [epoch_times(seed)[46:54] for seed in range(20)]
    windows = read(tmp_path, log(epochs, anew_at_rows=anew_at_rows, unit=unit)).windows
    assert len(windows) == 20
    for before, times, window in zip(epochs, epochs[1:], windows[1:], strict=False):
        assert window.steps == 4 and window.seconds == pytest.approx(sum([*before[5:], times[0]]), rel=1e-3)


@pytest.mark.parametrize("anew_at_rows", [False, True])
def test_epochs_too_short_for_a_reset(tmp_path: Path, anew_at_rows: bool) -> None:
    """In epochs of 3 steps averages that run on do so through the whole run; its slow start weighed on all rows."""
    epochs = [epoch_times(seed)[30:33] if seed < 15 else epoch_times(seed)[60:63] for seed in range(60)]
    record = read(tmp_path, log(epochs, anew_at_rows=anew_at_rows))
    assert record.cumulative is not anew_at_rows
    for before, times, window in zip(epochs, epochs[1:], record.windows[1:], strict=False):
        assert window.steps == 3 and window.seconds == pytest.approx(sum([*before[1:], times[0]]), rel=5e-3)


@pytest.mark.parametrize("stamps", [True, False])
def test_averages_of_rows_are_taken_as_they_are(tmp_path: Path, stamps: bool) -> None:
    epochs = [epoch_times(seed) for seed in range(3)]
    record = read(tmp_path, log(epochs, anew_at_rows=True, stamps=stamps))
    assert not record.cumulative
    assert record.windows[11].seconds == pytest.approx(sum(epochs[0][101:111]), rel=1e-4)


@pytest.mark.parametrize("anew_at_rows", [False, True])
def test_steps_cannot_take_more_time_than_the_clock_shows(tmp_path: Path, anew_at_rows: bool) -> None:
    """In a run of 3.5 s no kind lies 1 s off the stamps at the mean, but the wrong one ends over 1 s too late."""
    times = [0.054] * 20 + [0.018] * 137
    record = read(tmp_path, log([times], anew_at_rows=anew_at_rows))
    assert record.cumulative is not anew_at_rows
    assert record.windows[3].seconds == pytest.approx(0.18, rel=1e-2)


@pytest.mark.parametrize("anew_at_rows", [False, True])
@pytest.mark.parametrize(("first_step_s", "is_noted"), [(2.0, True), (0.2, False)])
def test_a_kind_of_averages_that_nothing_shows_is_a_problem_where_it_matters(
    tmp_path: Path, anew_at_rows: bool, first_step_s: float, is_noted: bool
) -> None:
    """Epochs of 32 steps whose first step alone is slow, behind an evaluation that hides it from the stamps."""
    record = read(tmp_path, log([[first_step_s, *[0.2] * 31]] * 20, anew_at_rows=anew_at_rows))
    assert not record.cumulative
    assert [("nothing shows whether each row averages" in problem) for problem in record.problems] == [True] * is_noted


def test_score_of_averages_that_run_on(tmp_path: Path) -> None:
    """The mean of the running averages is 12 % lower than images over time, and its stamps contradict it."""
    times = epoch_times(1)
    text = log([times], anew_at_rows=False)
    status, score, error = samples.command("score", samples.write(tmp_path, "a.log", text), "--protocol", "window")
    truth = 4 * BATCH * 280 / sum(times[21:301])
    assert (status, error) == (0, "") and score["value"] == pytest.approx(truth, rel=1e-3)
    assert not {"ways_disagree", "cumulative_windows"} & {found["rule"] for found in score["warnings"]}


def test_a_log_without_its_first_rows(tmp_path: Path) -> None:
    """The averages before the first row are not in the log; those after it are differenced."""
    epochs = [epoch_times(seed) for seed in range(2)]
    text = re.sub(r".*\[Epoch 1/2\]\[Iter: (?:\d|[1-6]\d)/.*\n", "", log(epochs, anew_at_rows=False))
    record = read(tmp_path, text)
    first, second = record.windows[:2]
    assert (first.step, second.step, second.steps) == (70, 80, 10)
    assert second.seconds == pytest.approx(sum(epochs[0][71:81]), rel=1e-4)


def test_rows_that_decide_nothing() -> None:
    """Few rows of one mean without stamps: the release decides, or none does."""
    rows = [PrintedMean(0.35, 10, 6 + 10 * row, None) for row in range(5)]
    assert are_running_averages([rows], release_says=None) is None
    assert are_running_averages([rows], release_says=True)
    short_epochs = [[PrintedMean(0.35 + 0.01 * row * row, 10, 6 + 10 * row, None) for row in range(3)]] * 50
    assert are_running_averages(short_epochs, release_says=None) is None  # all changes are at one number of steps
    falling = [*itertools.chain(rows, [PrintedMean(0.1, 10, 56, None)])]  # 56 steps cannot take less than 46 did
    assert not are_running_averages([falling], release_says=True)


def test_the_averages_of_2020_begin_anew_at_step_5_of_each_epoch(tmp_path: Path) -> None:
    """As the END lines of public logs say: `elapse_sum` is the time of all steps from step 5 on."""
    epochs = [[4.0, *epoch_times(seed)[1:30]] for seed in range(2)]
    lines = []
    for epoch, times in enumerate(epochs):
        for step in range(len(times)):
            averaged = times[5 : step + 1] or times[: step + 1]
            mean = sum(averaged) / len(averaged)
            row = f"epoch:{epoch:<3d} train step:{step:<4d} loss:  7.0444 top1: 0.0000 lr: 0.100000"
            lines.append(f"2020-12-16 17:12:37 INFO: {row} elapse: {mean:.3f}s ips: {BATCH / mean:.5f} images/sec.")
    windows = read(tmp_path, "\n".join(lines)).windows
    assert [window.steps for window in windows] == [1] * 60
    printed = [window.seconds for window in windows if (window.step or 0) >= 5]
    assert printed == pytest.approx([*epochs[0][5:], *epochs[1][5:]], rel=1e-2)


def test_a_first_row_that_is_torn_before_its_rate_hides_no_running_averages(tmp_path: Path) -> None:
    rows = [
        f"epoch:0   train step:{step}   loss:  6.9 elapse: 0.100s ips: 2560.0 images/sec." for step in range(0, 200, 10)
    ]
    whole = "ImageNet\n" + "\n".join(f"2020-11-01 10:00:00 INFO: {row}" for row in rows) + "\n"
    torn = whole.replace("s ips: ", "s\nW1101 of another process\n ips: ", 1)
    records = [read_record(samples.write(tmp_path, "train.log", text)) for text in (whole, torn)]
    seconds = [[window.seconds for window in record.windows[1:]] for record in records]
    assert seconds[0] == seconds[1] and seconds[0][1] == pytest.approx(1.0)
    assert [record.cumulative for record in records] == [True, True]


def test_rows_of_2020_without_a_rate_print_the_time_of_their_last_step(tmp_path: Path) -> None:
    """As tools/program.py of release 1.x prints them: the first ten steps, then each tenth one."""
    epochs = [[4.0, *epoch_times(seed)[1:130]] for seed in range(2)]
    lines = ["2020-06-12 17:12:30 INFO: TRAIN :", "2020-06-12 17:12:30 INFO:     batch_size : 256"]
    lines.append("PADDLE_TRAINERS_NUM   4 |")
    elapsed = 0.0
    for epoch, times in enumerate(epochs):
        for step, time in enumerate(times):
            elapsed += time
            stamp = f"{START + datetime.timedelta(seconds=int(elapsed)):%Y-%m-%d %H:%M:%S} INFO: "
            if step % 10 == 0 or (epoch == 0 and step < 10):
                row = f"epoch:{epoch:<3d} \x1b[95mtrain step:{step:<4d}\x1b[0m loss:  7.0444 top1: 0.0000 lr: 0.100000"
                lines.append(f"{stamp}{row} elapse: {time:.3f}s\x1b[0m")
        lines.append(f"{stamp}END epoch:{epoch:<3d} valid loss:  3.1 top1: 0.71234 top5: 0.9 elapse_sum: 20.000ss")
    log = samples.write(tmp_path, "train.log", "\n".join(lines) + "\n")
    record = read_record(log)
    assert not record.cumulative and record.problems == ()
    assert [(quality.epoch, quality.value) for quality in record.quality] == [(0, 0.71234), (1, 0.71234)]
    third = record.windows[12]  # behind those of the steps 0 to 9, 10 and 20
    assert (third.step, third.steps, third.seconds) == (30, 10, None)
    assert third.printed_step_time_s == pytest.approx(epochs[0][30], abs=5e-4)
    _, score, _ = samples.command("score", log, "--protocol", "dlperf")
    assert score["value"] == pytest.approx(256 * 100 / sum(epochs[0][21:121]), rel=0.03)  # stamps of whole seconds


@pytest.mark.parametrize("steps_of_epoch", [3, 5, 6, 7, 26])
@pytest.mark.parametrize("steps_per_row", [1, 2, 3, 10])
def test_the_steps_of_an_average_are_those_that_a_meter_counts(steps_of_epoch: int, steps_per_row: int) -> None:
    """A meter that is reset at step 5 of each epoch, and one that is reset after each row, too."""
    resets = Resets(reset_step=5, steps_of_epoch=steps_of_epoch)
    last: RowPosition | None = None
    running_steps: int | None = 0
    counts = []
    expected = []
    running_meter = row_meter = 0
    for epoch, step in itertools.product(range(1, 5), range(steps_of_epoch)):
        running_meter = 1 if step == 5 else running_meter + 1
        row_meter = 1 if step == 5 else row_meter + 1
        if step % steps_per_row == 0:
            position = RowPosition(epoch, step)
            running_steps = resets.steps_of_running_average(last, running_steps, position)
            counts.append((running_steps, resets.steps_of_row_average(last, position)))
            expected.append((running_meter, row_meter))
            row_meter = 0
            last = position
    assert counts == expected


def test_rows_that_are_missing_leave_the_steps_of_a_running_average_unknown() -> None:
    resets = Resets(reset_step=5, steps_of_epoch=26)
    first, later = RowPosition(1, 20), RowPosition(3, 0)
    assert resets.steps_of_running_average(first, 16, later) is None
    assert resets.steps_of_running_average(first, 16, RowPosition(3, 10)) == 6
    assert resets.steps_of_row_average(None, first) is None
    for of_later_epoch in (RowPosition(2, 0), RowPosition(2, 3)):  # the averages may go on from the epoch before
        assert resets.steps_of_running_average(None, None, of_later_epoch) is None
        assert resets.steps_of_row_average(None, of_later_epoch) is None
    assert resets.had_reset_between(first, later) and not resets.had_reset_between(first, RowPosition(2, 0))
