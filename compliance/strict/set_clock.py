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

    A run compares its clock with a clock that nobody sets, after each window of steps and after each evaluation. If
    they went apart, it logs a clock_set with the seconds by which its clock was set: above 0 if ahead, below 0 if back.
    A leap is a setting ahead.
    """

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._window_ms: float | None = None  # when the last window was logged; None: not known
        self._window_before_ms: float | None = None  # when the window before it was logged; None: not known
        self._window_s = 0.0  # how long the last window took, as it states
        self._leaps_s = 0.0  # the sum of the leaps that the events clock_set since the last window state

    def window_ends(self, time_ms: float, time_s: float) -> None:
        """Take the next window: the events clock_set that follow are about this window.

        Args:
            time_ms: The time of the window's event.
            time_s: How long the window took, as it states, in seconds.
        """
        self._window_before_ms = self._window_ms
        self._window_ms = time_ms
        self._window_s = time_s
        self._leaps_s = 0.0

    def forget(self) -> None:
        """Note that a window could not be read."""
        self._window_ms = None

    def note_and_check(self, event: Event, last_step: int | None) -> str:
        """Note the leap that an event clock_set states, and return why no run can have logged it.

        A leap is a setting of the clock ahead. It is added to the leaps since the last window, because the log's clock
        must have gone on by all of them. A clock that was set back needs no such room; `Policy` reports it.

        Args:
            event: The event clock_set.
            last_step: The last step that was done. None if it is not known.

        Returns:
            The first reason in words; an empty text if a run can have logged it. The reasons are:

            - the value is no number of seconds, is less than 1 s ahead or back, or the event states no step;
            - the step is not the last one;
            - the leaps since the last window are longer than there is time for (see `_leap_without_time`).
        """
        position = from_json(schema.AtStep, event.metadata)
        if not is_number(event.value) or abs(event.value) < _LEAST_S or position is None:
            return f"no clock_set of a run: {printable(event.value)} s"
        if last_step is not None and position.step != last_step:
            return f"a clock_set of step {position.step}; {last_step} was the last"
        if event.value < 0:  # set back: no leap
            return ""
        self._leaps_s += event.value
        return self._leap_without_time(event.time_ms)

    def _leap_without_time(self, now_ms: float) -> str:
        """Return a complaint if too little time has passed by the log's clock for the leaps that the log states.

        A leap is a setting of the clock ahead. A run looks at its clock after each window and each evaluation, so all
        leaps that it has logged since the last window were made since the window before it. This must hold, but for
        rounding and a delay:

            time by the log's clock since the window before >= stated time of the last window + leaps logged since it

        Args:
            now_ms: The time of the event clock_set by the log's clock.

        Returns:
            The complaint; an empty text if there is time enough, or if the time of the window before is not known.
        """
        if self._window_before_ms is None:
            return ""
        needed_ms = 1000 * (self._leaps_s + self._window_s)
        passed_ms = now_ms - self._window_before_ms
        allowed_ms = passed_ms * (1 + _MOST_ROUNDING) + MOST_DELAY_MS + self._run.clock_tolerance_ms
        if needed_ms <= allowed_ms:
            return ""
        passed = f"{six_digits(passed_ms / 1000)} s have passed since the window before"
        return f"a clock that was set ahead by {six_digits(self._leaps_s)} s; {passed}"
