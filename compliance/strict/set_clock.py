"""The events clock_set of a log of this project: was there room for so long a leap of the clock?"""

from typing import NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.clocked_windows import MAX_DELAY_MS
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event, from_json
from runlog.text import printable

# What a run calls a setting of the clock; less is the clock's own correction.
_MIN_AHEAD_S = 0.1
_MIN_BACK_S = 1.0
_MAX_ROUNDING = 0.01  # of the times of windows and of the log's clock, as a share


class _LastWindow(NamedTuple):
    """The last window of steps, by what limits how far the clock can have leapt since the window before it."""

    logged_ms_of_previous: float | None  # when the window before it was logged; None: there is none, or it is not known
    took_s: float  # as the window states


class SetClock:
    """Follows the windows of a run and the events clock_set, which a run logs when its clock was set.

    A run compares its clock with a clock that nobody sets, after each window of steps, at the end of each epoch's
    training and after each evaluation. If they went apart by 0.1 s or more, or by 1 s if its clock was set back, it
    logs a clock_set with the seconds by which it was set: above 0 if ahead, below 0 if back. A leap is a setting
    ahead.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._last_window = _LastWindow(logged_ms_of_previous=None, took_s=0.0)
        self._logged_ms: float | None = None  # when the last window was logged; None: not known
        self._leaps_since_window_s = 0.0  # the sum of the leaps that were logged after the last window

    def window_ends(self, time_ms: float, time_s: float) -> None:
        """Take the next window: the events clock_set that follow are held against its time.

        Args:
            time_ms: The time of the window's event.
            time_s: How long the window took, as it states, in seconds.
        """
        self._last_window = _LastWindow(logged_ms_of_previous=self._logged_ms, took_s=time_s)
        self._logged_ms = time_ms
        self._leaps_since_window_s = 0.0

    def forget(self) -> None:
        """Note that a window could not be read, so that the time from it to the next one is not known."""
        self._logged_ms = None

    def take(self, event: Event, last_step: int | None) -> str:
        """Return how a clock_set is impossible, and add a setting ahead to the leaps since the last window.

        It is impossible if its value is not a number of 0.1 s or more ahead, or 1 s or more back, or if it states
        another step than the last one, or none. A leap is also impossible if the log's clock has advanced too little
        since the window before the last one: by less than the last window's time and the leaps logged after it, but for
        a tolerance.

        Args:
            event: The event clock_set, such as one of 60 s.
            last_step: The last step that was done. None if this step is not known: any step is right then.

        Returns:
            What is wrong; an empty text if nothing is.
        """
        position = from_json(schema.AtStep, event.metadata)  # None if it states no step
        is_no_setting = not is_number(event.value) or -_MIN_BACK_S < event.value < _MIN_AHEAD_S
        if is_no_setting or position is None:
            return f"no clock_set of a run: {printable(event.value)} s"
        if last_step is not None and position.step != last_step:
            return f"a clock_set of step {position.step}; {last_step} was the last"
        was_set_back = event.value < 0
        if was_set_back:  # possible at any time; `Policy` reports it
            return ""
        self._leaps_since_window_s += event.value  # several leaps after one window need the time of their sum
        since_ms = self._last_window.logged_ms_of_previous  # when the window before the last one was logged
        if since_ms is None:  # there is no time to compare the leaps with
            return ""
        return _leap_without_time(
            leaps_s=self._leaps_since_window_s,
            window_s=self._last_window.took_s,
            passed_ms=event.time_ms - since_ms,
            clock_tolerance_ms=self._run.clock_tolerance_ms,
        )


def _leap_without_time(*, leaps_s: float, window_s: float, passed_ms: float, clock_tolerance_ms: float) -> str:
    """Return a complaint if the log's clock advanced by less than the last window's time and the leaps together.

    For instance, the clock was set ahead by 60 s during a window of 5 s. So the clock must have advanced by 65 s from
    the line of the window before to the line of the clock_set, but for a tolerance:

        10:00:00  step_window of the window before
        10:01:05  step_window of the last window, which took 5 s
        10:01:05  clock_set of 60 s

    Args:
        leaps_s: By how much the clock was set ahead, in seconds.
        window_s: How long the last window took, as it states, in seconds.
        passed_ms: The time by the log's clock from the line of the window before to that of the clock_set.
        clock_tolerance_ms: How far two times of the log's clock may disagree with a duration.

    Returns:
        The complaint; an empty text if enough time passed.
    """
    needed_ms = 1000 * (window_s + leaps_s)
    # By how much `passed_ms` may fall short, because times are rounded (1 %) and lines are logged late (1 s).
    allowed_ms = passed_ms * _MAX_ROUNDING + MAX_DELAY_MS + clock_tolerance_ms
    if needed_ms <= passed_ms + allowed_ms:
        return ""
    passed = f"{six_digits(passed_ms / 1000)} s have passed since the window before"
    return f"a clock that was set ahead by {six_digits(leaps_s)} s; {passed}"
