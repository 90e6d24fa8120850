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
    """Follows the windows of a run, after each of which it reads the clock, and the settings that it tells of."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._window_ms: float | None = None  # the time of the last window; None: not known
        self._window_before_ms: float | None = None  # of the one before it
        self._window_s = 0.0  # how long the last window took
        self._told_s = 0.0  # by how much the clock was set ahead since the window before, as events so far say

    def window_ends(self, time_ms: float, time_s: float) -> None:
        """Take the next window.

        Args:
            time_ms: The time of its event.
            time_s: How long it took, in seconds.
        """
        self._window_before_ms = self._window_ms
        self._window_ms = time_ms
        self._window_s = time_s
        self._told_s = 0.0

    def forget(self) -> None:
        """Note that a window could not be read."""
        self._window_ms = None

    def note_and_check(self, event: Event, last_step: int | None) -> str:
        """Note by how much an event clock_set says that the clock was set; return why no run can have logged it.

        Args:
            event: The event clock_set.
            last_step: The last step that was done. None if it is not known.

        Returns:
            The reason in words; an empty text if a run can have logged it.
        """
        position = from_json(schema.AtStep, event.metadata)
        if not is_number(event.value) or abs(event.value) < _LEAST_S or position is None:
            return f"no clock_set of a run: {printable(event.value)} s"
        if last_step is not None and position.step != last_step:
            return f"a clock_set of step {position.step}; {last_step} was the last"
        if event.value > 0:
            self._told_s += event.value
        return self._leap_without_time(event.time_ms)

    def _leap_without_time(self, now_ms: float) -> str:
        """Return that the clock was set ahead by more than it has gone on; an empty text if it was not.

        A run looks at its clock after each window, so the clock was set in the last window or just behind it. From the
        end of the window before, it must then have gone on by the last window's time and by all that it was set ahead.

        Args:
            now_ms: The time by the log's clock.
        """
        if self._window_before_ms is None:
            return ""
        needed_ms = 1000 * (self._told_s + self._window_s)
        passed_ms = now_ms - self._window_before_ms
        allowed_ms = passed_ms * (1 + _MOST_ROUNDING) + MOST_DELAY_MS + self._run.clock_tolerance_ms
        if needed_ms <= allowed_ms:
            return ""
        passed = f"{six_digits(passed_ms / 1000)} s have passed since the window before"
        return f"a clock that was set ahead by {six_digits(self._told_s)} s; {passed}"
