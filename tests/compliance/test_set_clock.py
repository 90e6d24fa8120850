"""The settings of the clock that a log of this project states: what they explain, and what refuses the log."""

import json
from pathlib import Path

import pytest

from tests.compliance import altered as by
from tests.compliance.altered import Altered, clock, write
from tests.compliance.test_check import check, errors, rules_broken
from tests.compliance.test_header_claims import on_gpus
from tests.make_log import run


def _with_clock_set(log: Altered, *, by_s: float) -> Altered:
    """The clock was set during the first evaluation, of 2 s, and the next window says so. No time goes back."""
    clock(log, lambda ms: ms + 1000 * by_s, "eval_stop")
    fields = log.fields(log.at("step_window", 2))
    fields |= {"key": "clock_set", "value": by_s, "metadata": {"step": 66}}
    return log.add_after("step_window", by.TOKEN + json.dumps(fields), 2)


def _leap(log: Altered, index: int, *, by_s: float) -> None:
    """Set the clock ahead, for the events from the line with this index on."""
    for later in log.events():
        if later >= index:
            fields = log.fields(later)
            fields["time_ms"] += 1000 * by_s
            log.write(later, fields)


def test_a_clock_that_was_set_back_is_refused_where_no_time_goes_back(tmp_path: Path) -> None:
    log = _with_clock_set(Altered(run()), by_s=-1.5)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == [("time-order", log.at("clock_set") + 1)]
    assert "set back by 1.5 s" in str(file)


def test_a_step_back_too_short_for_an_event_is_named_as_what_may_have_been(tmp_path: Path) -> None:
    """A time server sets the clock back by half a second during the third window, which is within the second epoch."""
    log = Altered(run())
    _leap(log, log.at("step_window", 2) - 1, by_s=-0.5)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == {"own-log", "throughput-agrees"}
    assert all("; the clock was set back, or " in f["actual"] for f in file["findings"] if f["severity"] == "error")


def test_a_clock_that_was_set_back_needs_no_room_in_the_log(tmp_path: Path) -> None:
    log = _with_clock_set(Altered(run()), by_s=-5.0)
    _, [file] = check(*write(tmp_path, log.text))
    assert "set back by 5 s" in str(file)
    assert "set ahead" not in str(file)


@pytest.mark.parametrize("by_s", [1.5, 3600.0])
def test_a_clock_that_was_set_ahead_makes_no_run_shorter(by_s: float, tmp_path: Path) -> None:
    status, [file] = check(*write(tmp_path, _with_clock_set(Altered(run()), by_s=by_s).text))
    assert (status, errors(file)) == (0, [])
    [warning] = [finding for finding in file["findings"] if finding["severity"] == "warning"]
    assert f"was set ahead 1 time, by {by_s:g} s in all" in warning["actual"]


@pytest.mark.parametrize(
    ("leap_s", "said_s", "broken"),
    [
        (3600, 3600.0, set()),
        (2, 2.0, set()),
        (3600, None, {"throughput-agrees", "own-log"}),
        (2, 3600.0, {"own-log"}),  # no time for such a leap has passed
        (3600, 3590.0, {"throughput-agrees"}),
    ],
)
def test_an_epoch_in_which_the_clock_was_set_ahead_is_as_long_as_its_windows(
    leap_s: int, said_s: float | None, broken: set[str], tmp_path: Path
) -> None:
    """The clock leaps during the third window, which is within the second epoch, and the line after it says so."""
    log = Altered(run())
    window = log.at("step_window", 2)
    _leap(log, window, by_s=leap_s)
    if said_s is not None:
        fields = log.fields(window) | {"key": "clock_set", "value": said_s, "metadata": {"step": 66}}
        log.add_after("step_window", by.TOKEN + json.dumps(fields), 2)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == broken


@pytest.mark.parametrize(("said_s", "broken"), [(0.5, set()), (None, {"throughput-agrees"})])
def test_a_short_leap_shows_in_a_short_epoch_on_gpus(said_s: float | None, broken: set[str], tmp_path: Path) -> None:
    """A time server sets the clock ahead by half a second in an epoch of 9 s, whose last step all GPUs end together."""
    log = on_gpus(epoch_s=9)
    window = log.at("step_window", 2)
    _leap(log, window - 1, by_s=0.5)
    if said_s is not None:
        step = log.fields(window)["metadata"]["step"]
        fields = log.fields(window) | {"key": "clock_set", "value": said_s, "metadata": {"step": step}}
        log.add_after("step_window", by.TOKEN + json.dumps(fields), 2)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == broken


@pytest.mark.parametrize(("said_s", "passes"), [(3600.0, True), (3530.0, False)])
def test_of_two_leaps_of_the_clock_the_first_may_be_before_the_epoch(
    said_s: float, passes: bool, tmp_path: Path
) -> None:
    """The clock leaps by 60 s during the first evaluation, and by 3600 s during the last window of the next epoch."""
    log = _with_clock_set(Altered(run()), by_s=60.0)
    window = log.at("step_window", 3)
    _leap(log, window, by_s=3600)
    fields = log.fields(window) | {"key": "clock_set", "value": said_s, "metadata": {"step": 88}}
    log.add_after("step_window", by.TOKEN + json.dumps(fields), 3)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == (set() if passes else {"throughput-agrees"})


@pytest.mark.parametrize(("said_s", "broken"), [(90.0, set()), (20.0, {"throughput-agrees", "own-log"})])
def test_a_leap_of_the_clock_may_be_before_the_epoch_in_part(said_s: float, broken: set[str], tmp_path: Path) -> None:
    """The clock leaps by 60 s during the first evaluation, and by 30 s before the run looks, after the next window."""
    log = _with_clock_set(Altered(run()), by_s=60.0).value("clock_set", said_s)
    _leap(log, log.at("step_window", 2), by_s=30)
    _, [file] = check(*write(tmp_path, log.text))
    assert rules_broken(file) == broken


@pytest.mark.parametrize(("samples", "passes"), [(1, False), (50, False), (60, True)])
def test_a_clock_that_was_set_ahead_excuses_no_samples_of_the_steps(samples: int, passes: bool, tmp_path: Path) -> None:
    log = _with_clock_set(Altered(run()), by_s=3600.0).inside("telemetry_summary", samples=samples)
    status, [file] = check(*write(tmp_path, log.text))
    assert (status == 0) is passes
    assert passes or f"{samples} samples of telemetry; 114 were due" in str(file)


@pytest.mark.parametrize(
    ("by_s", "step", "says"),
    [
        (0.05, 66, "no clock_set of a run: 0.05 s"),
        (0.0, 66, "no clock_set of a run: 0.0 s"),
        (9.0, 44, "a clock_set of step 44; 66 was the last"),
        (9.0, None, "no clock_set of a run: 9.0 s"),
        (9.0, 66, "set ahead by 9 s; 20.0"),
    ],
)
def test_a_clock_set_has_room_in_the_log(by_s: float, step: int | None, says: str, tmp_path: Path) -> None:
    """No clock was set. The third window takes 18 s, after an evaluation of 2 s."""
    log = Altered(run())
    fields = log.fields(log.at("step_window", 2)) | {"key": "clock_set", "value": by_s, "metadata": {"step": step}}
    log.add_after("step_window", by.TOKEN + json.dumps(fields), 2)
    _, [file] = check(*write(tmp_path, log.text))
    assert errors(file) == [("own-log", log.at("clock_set") + 1)]
    assert says in str(file)


@pytest.mark.parametrize(("samples", "passes"), [(114, True), (3700, False)])
def test_telemetry_takes_no_samples_of_a_time_that_the_clock_leapt_over(
    samples: int, passes: bool, tmp_path: Path
) -> None:
    log = _with_clock_set(Altered(run()), by_s=3600.0).inside("telemetry_summary", samples=samples)
    status, _ = check(*write(tmp_path, log.text))
    assert (status == 0) is passes
