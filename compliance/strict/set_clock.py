"""The events clock_set of a log of this project: was there room for so long a leap of the clock?"""

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.clocked_windows import MOST_DELAY_MS
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event, from_json
from runlog.text import printable

_LEAST_S = 1.0  # that a run calls a setting of the clock; less is the clock's own correction
_MOST_ROUNDING = 0.01  # of the times of windows and of the log's clock, as a share


class SetClock:
    """Follows the windows of a run and the events clock_set, which a run logs when its clock was set.

    A run compares its clock with a clock that nobody sets, after each window of steps, at the end of each epoch's
    training and after each evaluation. If they went apart by 1 s or more, it logs a clock_set with the seconds by which
    its clock was set: above 0 if ahead, below 0 if back. A leap is a setting ahead.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._last_window_ms: float | None = None  # when the last window was logged; None: not known
        self._previous_window_ms: float | None = None  # when the window before the last was logged; None: not known
        self._last_window_took_s = 0.0  # how long the last window took, as it states
        self._leaps_s = 0.0  # the sum of the leaps since the last window

    def window_ends(self, time_ms: float, time_s: float) -> None:
        """Take the next window: the events clock_set that follow are held against its time.

        Args:
            time_ms: The time of the window's event.
            time_s: How long the window took, as it states, in seconds.
        """
        self._previous_window_ms = self._last_window_ms
        self._last_window_ms = time_ms
        self._last_window_took_s = time_s
        self._leaps_s = 0.0

    def forget(self) -> None:
        """Note that a window could not be read."""
        self._last_window_ms = None

    def take(self, event: Event, last_step: int | None) -> str:
        """Take an event clock_set, such as one of 60 s, and return what is wrong with it.

        Args:
            event: The event clock_set.
            last_step: The last step that was done. None if this step is not known: any step is right then.

        Returns:
            What is wrong; an empty text if nothing is.
        """
        position = from_json(schema.AtStep, event.metadata)  # None if it states no step
        if not is_number(event.value) or abs(event.value) < _LEAST_S or position is None:
            return f"no clock_set of a run: {printable(event.value)} s"
        if last_step is not None and position.step != last_step:
            return f"a clock_set of step {position.step}; {last_step} was the last"
        was_set_back = event.value < 0
        if was_set_back:  # possible at any time; `Policy` reports it
            return ""
        self._leaps_s += event.value
        return self._leap_without_time(event.time_ms)

    def _leap_without_time(self, now_ms: float) -> str:
        """Return a complaint if too little time passed on the log's clock for a leap; an empty text if enough did.

        For instance, the clock was set ahead by 60 s during a window of 5 s. So at least 65 s must lie between the line
        of the window before and the line of the clock_set:

            10:00:00  step_window of the window before
            10:01:05  step_window of the last window, which took 5 s
            10:01:05  clock_set of 60 s

        Args:
            now_ms: The time of the event clock_set by the log's clock, in milliseconds.
        """
        if self._previous_window_ms is None:
            return ""
        needed_ms = 1000 * (self._last_window_took_s + self._leaps_s)
        passed_ms = now_ms - self._previous_window_ms
        # In favour of the run, because times are rounded and lines are logged late.
        allowed_ms = passed_ms * _MOST_ROUNDING + MOST_DELAY_MS + self._run.clock_tolerance_ms
        if needed_ms <= passed_ms + allowed_ms:
            return ""
        passed = f"{six_digits(passed_ms / 1000)} s have passed since the window before"
        return f"a clock that was set ahead by {six_digits(self._leaps_s)} s; {passed}"
