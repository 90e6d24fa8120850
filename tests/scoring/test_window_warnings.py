"""What the windows of one run are warned of: a change of level, outliers, slow windows, running averages."""

import dataclasses
import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from runlog import schema
from runlog.schema import RankTimes
from scoring.figure import stragglers, window_warnings
from scoring.importers import read_record
from scoring.record import Record, Window
from tests import make_log
from tests.scoring.samples import write


def record_of(times: list[float], **fields: Any) -> Record:
    waits = fields.pop("waits", [0.0] * len(times))
    powers = fields.pop("powers", [None] * len(times))
    windows = tuple(
        Window(line=at + 1, step=at + 1, steps=1, images=256, seconds=time, data_wait_s=wait, power_w=power)
        for at, (time, wait, power) in enumerate(zip(times, waits, powers, strict=True))
    )
    values: dict[str, Any] = {"devices": 8, "batch_per_device": 32, "rate_scope": "global", **fields}
    return Record(file="a.log", sha256="0", lines=len(times), format="mllog", windows=windows, **values)


def noise(count: int, level: float = 0.5, share: float = 0.01) -> list[float]:
    return [level * (1 + share * math.sin(at * at * 1.7)) for at in range(count)]


SLOWED, UNEVEN = noise(60) + noise(40, 0.56), noise(200, share=0.2)
RUNNING = [statistics.fmean(UNEVEN[: at + 1]) for at in range(200)]


@pytest.mark.parametrize(
    ("record", "averages_rates", "said"),
    [
        *((record_of(noise(count)), True, {}) for count in (6, 20, 100, 1000)),
        *((record_of(noise(n, 0.6) + noise(60)), False, {"warm_up_not_over": f"skip {n} more"}) for n in (1, 3, 15)),
        (record_of(noise(1, 0.6) + noise(60)), False, {"warm_up_not_over": "the first of 61 measured windows is"}),
        (record_of(noise(15, 0.502) + noise(60)), False, {}),  # less than the noise
        (record_of(noise(60, 0.56) + noise(40)), False, {"drift": ""}),  # the slow part ends in the second half
        (record_of(noise(600, 0.51, 0.02) + noise(400, share=0.02)), False, {"drift": ""}),  # likewise, in more noise
        (record_of(noise(520, 0.51, 0.02) + noise(480, share=0.02)), False, {}),
        (record_of(noise(9) + noise(91, 0.56)), False, {}),  # in the first tenth, which may be warm-up
        (record_of([*noise(20), 5.0, *noise(40)]), False, {"outlying_window": "1 of 61 windows"}),
        (record_of([time * (1 + at / 1000) for at, time in enumerate(noise(100))]), False, {"drift": "drifts by +"}),
        (record_of([0.4] * 8 + [0.41] * 4), False, {"drift": "by +2.5%"}),  # of a log that prints two digits
        (record_of(SLOWED), False, {"throttling": "from window 61 of 100 on"}),
        (record_of(SLOWED, powers=[300.0] * 60 + [210.0] * 40), False, {"throttling": "300 W before, 210 W after"}),
        (record_of(SLOWED, waits=[0.005] * 60 + [0.065] * 40), False, {"data_stall": "", "drift": ""}),
        (record_of(noise(50), waits=[0.05] * 50), False, {"data_stall": "10.0% of the step time"}),
        (record_of([0.5] * 50, waits=[0.02501] * 50), False, {"data_stall": "5.002% of the step time"}),
        (record_of(noise(50), waits=[0.01] * 50), False, {}),
        (record_of([0.5, 0.5, 0.5, 2.0] * 10), True, {"rates_averaged": "", "unsteady": "4 times as long"}),
        (record_of([0.5, 0.5, 0.5, 2.0] * 10), False, {"unsteady": ""}),
        (record_of(RUNNING), False, {"cumulative_windows": "look like", "warm_up_not_over": ""}),  # no format tells
        (record_of(UNEVEN), False, {"unsteady": ""}),
        (
            record_of(UNEVEN, cumulative=True),
            True,
            {"cumulative_windows": "are running", "unsteady": "", "rates_averaged": ""},
        ),
    ],
)
def test_what_is_wrong_with_windows_is_said(record: Record, averages_rates: bool, said: dict[str, str]) -> None:
    found = {one.check: one for one in window_warnings.warn_about_windows(record, record.windows, averages_rates)}
    assert found.keys() == said.keys()
    assert [words for rule, words in said.items() if words not in found[rule].found] == []
    assert "throttling" not in found or found["throttling"].where == "a.log:61"


@pytest.mark.parametrize(("count", "said"), [(32, []), (64, ["straggler"])])
def test_a_rank_is_blamed_only_if_chance_makes_none_of_all_ranks_so_often_the_slowest(
    count: int, said: list[str]
) -> None:
    """Of 8 ranks one is the slowest in 19 of 32 windows, which weigh as 8 independent ones.

    Chernoff's bound for it alone is exp(-8 D) = 0.7 % with D = 0.61, and for any of the 8 ranks 6 %. Of 64 windows it
    is 8 x 0.006 %.
    """
    waits: dict[str, Any] = {"data_wait_least_s": 0.0, "data_wait_median_s": 0.0, "data_wait_most_s": 0.0}
    computes: dict[str, Any] = {"compute_least_s": 0.4, "compute_median_s": 0.4, "compute_most_s": 0.5}
    plain = record_of([0.5] * count)
    windows = []
    for at, window in enumerate(plain.windows):
        rank = 3 if at % 32 < 19 else at % 3
        who: dict[str, Any] = {"data_wait_rank": 0, "data_wait_host": "a", "compute_rank": rank, "compute_host": "a"}
        windows.append(dataclasses.replace(window, rank_times=RankTimes(**waits, **computes, **who)))
    found = stragglers.warn_of_slow_rank(plain, windows, "compute", action="computes")
    assert [one.check for one in found] == said


@pytest.mark.parametrize("separate", [True, False])
def test_stamps_tell_windows_that_speed_up_smoothly_from_running_averages(separate: bool) -> None:
    """Another job on the machine that ends slowly gives such windows. The stamps are of the times that truly passed."""
    passed_s = RUNNING if separate else UNEVEN
    stamps = itertools.accumulate(passed_s)
    plain = record_of(RUNNING)
    windows = tuple(
        dataclasses.replace(window, end_s=stamp) for window, stamp in zip(plain.windows, stamps, strict=True)
    )
    found = {one.check for one in window_warnings.warn_about_windows(plain, windows, False)}
    assert found == ({"warm_up_not_over"} if separate else {"warm_up_not_over", "cumulative_windows"})


def test_an_epoch_with_a_rate_alone_is_compared_by_the_image(tmp_path: Path) -> None:
    """An MLPerf log whose last epoch but one has no start: no steps and no time are known of it, but its rate."""
    log = make_log.Log(tick_ms=0)
    log.facts({"submission_benchmark": "resnet", "global_batch_size": 256, "train_samples": 256_000})
    log.mark(schema.RUN_START)
    for number in range(1, 13):
        where = schema.InEpoch(epoch_num=number)
        if number != 11:
            log.mark(schema.EPOCH_START, where)
        log.now_ms += 100_000
        log.mllog.event("throughput", 2560, {"epoch_num": number}, time_ms=int(log.now_ms))
        log.mark(schema.EPOCH_STOP, where)
    log.mark(schema.RUN_STOP, schema.Ended(status="success"))
    record = read_record(write(tmp_path, "log.txt", log.text.getvalue()))
    assert [window.epoch for window in record.windows if window.steps is None] == [11]
    assert list(window_warnings.warn_about_windows(record, record.windows, averages_rates=True)) == []
