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
        self._window_ms: float | None = None  # when the last window was logged; None: not known
        self._window_before_ms: float | None = None  # when the window before it was logged; None: not known
        self._window_s = 0.0  # how long the last window took, as it states
        self._leaps_s = 0.0  # the sum of the leaps that the events clock_set since the last window state

    def window_ends(self, time_ms: float, time_s: float) -> None:
        """Take the next window: the events clock_set that follow are held against its time.

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
        """Return in words why an event clock_set is impossible, empty if it is possible; add a leap to `_leaps_s`.

        A run logs a clock_set when somebody has set the system's clock by 1 s or more. The value is 60.0 if the clock
        was set ahead by a minute, which is called a leap, and -60.0 if the clock was set back by a minute. The first
        case that holds decides:

        - Impossible: the value is no number or is less than 1 s ahead or back, or the event states no step.
        - Impossible: the step is not `last_step`.
        - Possible: the clock was set back.
        - A leap: the value is added to `_leaps_s`, the sum of the leaps since the last window of steps. The event is
          impossible if the times in the log did not jump ahead by this sum (`_leap_without_time`).

        Args:
            event: The event clock_set.
            last_step: The last step that was done. None if this step is not known: any step is right then.
        """
        position = from_json(schema.AtStep, event.metadata)
        if not is_number(event.value) or abs(event.value) < _LEAST_S or position is None:
            return f"no clock_set of a run: {printable(event.value)} s"
        if last_step is not None and position.step != last_step:
            return f"a clock_set of step {position.step}; {last_step} was the last"
        if event.value < 0:  # the clock was set back, which `Policy` reports
            return ""
        self._leaps_s += event.value  # `window_ends` sets the sum to 0 at the next window
        return self._leap_without_time(event.time_ms)

    def _leap_without_time(self, now_ms: float) -> str:
        """Return a complaint if the log's clock did not jump ahead as the log states; an empty text if it did.

        A leap is a setting of the clock ahead, which the log states as a clock_set. In this log, the clock was set
        ahead by 60 s during the window W2, which took 5 s:

            10:00:00  step_window of W1    `_window_before_ms`, the time of this line
            10:01:05  step_window of W2    `_window_s`, 5 s by a clock that nobody sets
            10:01:05  clock_set of 60 s    `now_ms`, the time of this line; `_leaps_s`, 60 s, all leaps since W2

        `needed_ms` is 5 s + 60 s = 65 s. `passed_ms` is the time from the line of W1 to that of the clock_set, 65 s,
        which is enough. If the clock_set were logged at 10:00:20, only 20 s would have passed, and a complaint would be
        returned.

        Args:
            now_ms: The time of the event clock_set by the log's clock, in milliseconds.

        Returns:
            The complaint; an empty text if enough time has passed, or if the time of W1 is not known.
        """
        if self._window_before_ms is None:
            return ""
        needed_ms = 1000 * (self._window_s + self._leaps_s)
        passed_ms = now_ms - self._window_before_ms
        # In favour of the run, because times are rounded and lines are logged late: 1 % more, 1 s and the tolerance.
        most_passed_ms = passed_ms * (1 + _MOST_ROUNDING) + MOST_DELAY_MS + self._run.clock_tolerance_ms
        if needed_ms <= most_passed_ms:
            return ""
        passed = f"{six_digits(passed_ms / 1000)} s have passed since the window before"
        return f"a clock that was set ahead by {six_digits(self._leaps_s)} s; {passed}"
