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
        """Return in words why no run can have logged an event clock_set; an empty text if a run can have logged it.

        A run logs a clock_set if its clock was set by 1 s or more: a value of 60.0 if the clock was set ahead by a
        minute, and -60.0 if it was set back. The first of these faults is returned:

        - The value is no number, or is less than 1 s ahead or back, or the event states no step.
        - The step is not `last_step`.
        - The clock was set ahead, but the times in the log did not jump ahead by as much (`_leap_without_time`). Before
          this check, the value is added to `_leaps_s`, the sum of such values since the last window of steps.

        Args:
            event: The event clock_set.
            last_step: The last step that was done. None if this step is not known: any step is right then.
        """
        position = from_json(schema.AtStep, event.metadata)
        if not is_number(event.value) or abs(event.value) < _LEAST_S or position is None:
            return f"no clock_set of a run: {printable(event.value)} s"
        if last_step is not None and position.step != last_step:
            return f"a clock_set of step {position.step}; {last_step} was the last"
        if event.value < 0:  # the clock was set back, which makes no leap and is reported elsewhere, by `Policy`
            return ""
        self._leaps_s += event.value  # `window_ends` sets the sum back to 0
        return self._leap_without_time(event.time_ms)

    def _leap_without_time(self, now_ms: float) -> str:
        """Return a complaint if the log's times did not jump ahead by as much as the log says that the clock was set.

        In the following log, the window W2 took 5 s, during which the clock was set ahead by 60 s (a leap):

            10:00:00  step_window of W1    `_window_before_ms`, the time of this line
            10:01:05  step_window of W2    `_window_s`, 5 s by a clock that nobody sets
            10:01:05  clock_set of 60 s    `now_ms`, the time of this line; `_leaps_s`, the sum of all leaps since W2

        From the line of W1 to the clock_set, the log's clock must go on by 5 + 60 = 65 s or more. If the clock_set were
        logged at 10:00:20, only 20 s would have passed: too few for a leap of 60 s. Then there is a complaint.

        The passed time is first made 1 % longer, and longer by MOST_DELAY_MS (1 s) and the tolerance of the log's
        clock, because times are rounded, and lines are logged with a delay.

        Args:
            now_ms: The time of the event clock_set by the log's clock, in milliseconds.

        Returns:
            The complaint; an empty text if enough time has passed, or if the time of W1 is not known.
        """
        if self._window_before_ms is None:
            return ""
        needed_ms = 1000 * (self._window_s + self._leaps_s)
        passed_ms = now_ms - self._window_before_ms
        most_passed_ms = passed_ms * (1 + _MOST_ROUNDING) + MOST_DELAY_MS + self._run.clock_tolerance_ms
        if needed_ms <= most_passed_ms:
            return ""
        passed = f"{six_digits(passed_ms / 1000)} s have passed since the window before"
        return f"a clock that was set ahead by {six_digits(self._leaps_s)} s; {passed}"
