"""The sums over step windows, and the times that they state held against the log's clock: do they state too little?

A step window is the steps between two lines of progress.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from compliance.logged_run import EVENTS_KEPT, LoggedRun
from compliance.strict.checkpoints import Waits
from runlog import schema
from runlog.digits import six_digits

# From a window's last step to its first event rank 0 waits for the other ranks, and a busy machine may stop it. At a
# load of 4 on 2 cores 0.3 s were measured.
MAX_DELAY_MS = 1000.0
_MAX_DELAY_SHARE = 0.1  # of the time since the window before it: where many ranks share a core
_MAX_DELAY_ON_GPUS_MS = 250.0  # after an epoch, whose last step all GPUs end together: that of their hosts


@dataclass
class WindowSums:
    """The sums over the step windows since epoch_start, or since run_start; `since_ms` is the time of that event."""

    since_ms: float = 0.0
    are_complete: bool = True  # False if a window could not be read
    windows: int = 0
    images: float = 0.0
    time_s: float = 0.0
    wait_s: float = 0.0
    least_loss: float = math.inf  # infinite: no window states a loss
    first_leap_ms: float = 0.0  # by which the first clock_set of these windows says that the clock was set ahead
    further_leaps_ms: float = 0.0  # the sum of all others

    def add(self, window: schema.StepWindow) -> None:
        self.windows += 1
        self.images += window.images
        self.time_s += window.time_s
        self.wait_s += window.data_wait_s
        if window.loss is not None:
            self.least_loss = min(self.least_loss, window.loss)

    def add_leap(self, leap_ms: float) -> None:
        """Add a leap, a setting of the clock ahead by `leap_ms` milliseconds."""
        if self.first_leap_ms == 0:
            self.first_leap_ms = leap_ms
        else:
            self.further_leaps_ms += leap_ms

    def ms_without_leaps(self, training_ms: float, stated_ms: float) -> float:
        """Return the training time of an epoch by the log's clock, less the clock's leaps, in milliseconds.

        A leap is a setting of the clock ahead, which makes the epoch seem longer. All leaps but the first are surely of
        the epoch. The first may be older. For instance, the log's clock says 100 s, with leaps of 30 s and 10 s:

            100 - 10 = 90 s         if the first leap came before the epoch
            100 - 10 - 30 = 60 s    if it came in the epoch; a time between, if a part of it did

        The one of these times nearest to the stated time is returned: 60 s for 50 s, 70 s for 70 s, 90 s for 95 s.

        Args:
            training_ms: The time by the log's clock with all leaps, in milliseconds.
            stated_ms: The time that the event epoch_throughput states for the epoch, in milliseconds.
        """
        # The first may be older, because a run looks for leaps only after a window, after an epoch's training and after
        # an evaluation.
        ms_if_first_leap_is_older = training_ms - self.further_leaps_ms
        ms_if_first_leap_is_of_epoch = ms_if_first_leap_is_older - self.first_leap_ms
        return min(max(stated_ms, ms_if_first_leap_is_of_epoch), ms_if_first_leap_is_older)


@dataclass
class _EpochClock:
    """The times since an epoch's start: by the log's clock, and by its windows."""

    number: int
    start_ms: float
    last_window_ms: float  # when the latest window ended; before the first one, the epoch's start
    last_step: int | None = None  # at which the latest window ended; None before the first one
    windows_ms: float = 0.0  # stated by the windows so far
    set_ahead_ms: float = 0.0  # by which the system's clock was set ahead so far

    @property
    def passed_ms(self) -> float:
        """The time by the log's clock from the epoch's start to the end of its latest window."""
        return self.last_window_ms - self.start_ms

    def add_window(self, *, last_step: int, stated_ms: float, end_ms: float) -> None:
        self.last_step = last_step
        self.last_window_ms = end_ms
        self.windows_ms += stated_ms


class ShortWindow(NamedTuple):
    """A window at whose end the windows of its epoch state too little time in sum, unless something explains it.

    That may be waits for checkpoints, or settings of the clock ahead.
    """

    line: int
    epoch: int
    last_step: int  # at which the window ends
    windows_ms: float  # stated by the epoch's windows up to here
    passed_ms: float  # since the epoch's start, by the log's clock
    missing_ms: float  # of `passed_ms` in `windows_ms`, beyond what the two may differ by
    epoch_clock: _EpochClock  # kept, because its `set_ahead_ms` may still grow until the epoch ends

    @property
    def words(self) -> str:
        """Return what is wrong, for a report."""
        stated = f"the windows of epoch {self.epoch} state {six_digits(self.windows_ms / 1000)} s up to here"
        return f"{stated}; {six_digits(self.passed_ms / 1000)} s have passed"


class ClockedWindows:
    """Follows the windows of each epoch by the log's clock.

    Only waits for checkpoints lie between the windows of an epoch. No window states these waits, but the log's clock
    goes on. So at the end of each window, the times that the windows state so far must add up to the time since the
    epoch's start, but for these waits and for settings of the clock ahead.

    Attributes:
        short_windows: The windows at whose end this sum is too small, at most EVENTS_KEPT.
        longest_wait_ms: By the step at which a window ends, the longest that training can have waited for a checkpoint
            after the window, in milliseconds. At most EVENTS_KEPT.
    """

    def __init__(self, tolerance_ms: Callable[[float], float]) -> None:
        """Prepare to follow the windows.

        Args:
            tolerance_ms: Gives the tolerance for a time by the log's clock: how far a stated time may differ from it.
                Both are in milliseconds.
        """
        self.short_windows: list[ShortWindow] = []
        self.longest_wait_ms: dict[int, float] = {}
        self._tolerance_ms = tolerance_ms
        self._open_epoch: _EpochClock | None = None  # None: no epoch is open, or a window of it could not be read

    def epoch_starts(self, epoch: int | None, start_ms: float) -> None:
        """Begin an epoch: its windows count from here.

        Args:
            epoch: Its number. None if it states none: its windows are not followed.
            start_ms: The time of its epoch_start, in milliseconds.
        """
        if epoch is None:
            self._open_epoch = None
        else:
            self._open_epoch = _EpochClock(number=epoch, start_ms=start_ms, last_window_ms=start_ms)

    def epoch_stops(self, training_ms: float) -> None:
        """End the open epoch, and keep the longest possible wait for a checkpoint after its last window.

        The wait is kept in `longest_wait_ms` by the step of the last window. Nothing is kept without an open epoch, or
        without a window in it.

        Args:
            training_ms: How long the epoch took by the log's clock, in milliseconds, without evaluations.
        """
        epoch = self._open_epoch
        if epoch is not None:
            since_last_window_ms = epoch.start_ms + training_ms - epoch.last_window_ms
            # All of this time may be a wait, because no steps follow the last window. The event of this window may have
            # been late, so the wait may have begun up to MAX_DELAY_MS before the event.
            longest_ms = self._longest_possible_wait_ms(since_last_window_ms, steps_ms=0.0, most_delay_ms=MAX_DELAY_MS)
            self._keep_longest_wait(epoch.last_step, longest_ms)
        self._open_epoch = None

    def stop_following(self) -> None:
        """Follow no further windows of this epoch: the time of one is not known."""
        self._open_epoch = None

    def clock_was_set_ahead(self, ahead_ms: float) -> None:
        """Note that the clock was set ahead during the last window, by so many milliseconds."""
        if self._open_epoch is not None:
            self._open_epoch.set_ahead_ms += ahead_ms

    def take(self, line: int, *, last_step: int, time_s: float, end_ms: float) -> None:
        """Take the next window of the open epoch, and keep two things that are judged at the end of the log.

        - in `longest_wait_ms`: the longest that training can have waited for a checkpoint before this window
        - in `short_windows`: this window, if the epoch's windows up to it state too little time in sum

        Without an open epoch, nothing is done.

        Args:
            line: The line of the window's event.
            last_step: The step at which the window ends.
            time_s: The time that the window states, in seconds.
            end_ms: When the window ended by the log's clock, in milliseconds: the time of the first event about the
                window. No line is written between the last step and this event, so no slow disk delays the event.
        """
        epoch = self._open_epoch
        if epoch is None:
            return
        # First the wait, because `add_window` overwrites the end and the last step of the window before.
        since_window_before_ms = end_ms - epoch.last_window_ms
        steps_ms = 1000 * time_s
        most_delay_ms = max(MAX_DELAY_MS, _MAX_DELAY_SHARE * since_window_before_ms)  # from a last step to its event
        longest_ms = self._longest_possible_wait_ms(
            since_window_before_ms, steps_ms=steps_ms, most_delay_ms=most_delay_ms
        )
        self._keep_longest_wait(epoch.last_step, longest_ms)

        epoch.add_window(last_step=last_step, stated_ms=steps_ms, end_ms=end_ms)
        missing_ms = self._missing_ms(epoch, most_delay_ms)  # above 0 if time is missing
        if missing_ms > 0 and len(self.short_windows) < EVENTS_KEPT:
            short = ShortWindow(
                line=line,
                epoch=epoch.number,
                last_step=last_step,
                windows_ms=epoch.windows_ms,
                passed_ms=epoch.passed_ms,
                missing_ms=missing_ms,
                epoch_clock=epoch,
            )
            self.short_windows.append(short)

    def _missing_ms(self, epoch: _EpochClock, most_delay_ms: float) -> float:
        """Return the time that has passed in an epoch, less the time that its windows state and less what is allowed.

        For instance, 100 s have passed since the epoch's start, and its three windows state 80 s. With a tolerance of
        1 s and a delay of 1 s, 100 - 80 - 1 - 1 = 18 s are missing. The result is in milliseconds. It is 0 or less
        if no time is missing.

        Args:
            epoch: The times of the epoch up to the end of its latest window.
            most_delay_ms: How late the event of this window may be.
        """
        # The tolerance is for the clock. A late event makes the passed time seem longer.
        allowed_ms = self._tolerance_ms(epoch.passed_ms) + most_delay_ms
        return epoch.passed_ms - epoch.windows_ms - allowed_ms

    def _longest_possible_wait_ms(self, passed_ms: float, *, steps_ms: float, most_delay_ms: float) -> float:
        """Return the longest that training can have waited after a window, before the steps of the next, in ms.

        For instance, the next window's event came 10 s after this window's event, and states 8 s for the next window's
        steps. So 2 s are left for a wait, and 2.2 s with a tolerance of 0.2 s for the clock. If this window's event was
        1 s late, the window had ended 1 s before it, and training can have waited for 3.2 s. The result is below 0 if
        the next window states more time than can have passed.

        Args:
            passed_ms: The time from this window's event to the next one's, or to the end of the epoch.
            steps_ms: How much of this time the steps of the next window took; 0 without a next window.
            most_delay_ms: How late this window's event may be.
        """
        most_passed_ms = passed_ms + self._tolerance_ms(passed_ms) + most_delay_ms
        return most_passed_ms - steps_ms

    def _keep_longest_wait(self, step: int | None, longest_ms: float) -> None:
        """Keep how long training can have waited for the checkpoint of a step, unless EVENTS_KEPT waits are kept.

        Args:
            step: The step at which a window ended. None before the first window of an epoch: nothing is kept then.
            longest_ms: The longest wait, in milliseconds.
        """
        if step is not None and len(self.longest_wait_ms) < EVENTS_KEPT:
            self.longest_wait_ms[step] = longest_ms

    def unexplained(self, waits: Waits, epoch_steps: int) -> Iterator[ShortWindow]:
        """Yield the first short window of each epoch whose missing time the rest of the log does not explain.

        The missing time is what has passed in the epoch up to the window's end, less what its windows state, and less
        what the tolerances allow. Two things explain it: waits for checkpoints before the window's end, and settings of
        the clock ahead. For instance, waits of 12 s and a clock that was set ahead by 5 s explain 17 s. Then a window
        with 18 s missing is yielded, and one with 17 s is not.

        Call this after the last event of the log, because the events of waits and settings may follow the window.

        Args:
            waits: How long training waited for the checkpoint of each step.
            epoch_steps: The steps of an epoch; 0 if they are not known: then the waits in earlier epochs count, too.
        """
        blamed_epoch = None
        for window in self.short_windows:
            if window.epoch == blamed_epoch:
                continue  # missing time adds up within an epoch: this is the same fault again
            # Such as step 201 for epoch 3 with 100 steps in each epoch; step 1 if `epoch_steps` is 0.
            first_step = (window.epoch - 1) * epoch_steps + 1
            # The wait for the checkpoint of the window's last step comes after the window's end, so it is left out.
            waited_ms = waits.between(first_step, window.last_step - 1)
            explained_ms = waited_ms + window.epoch_clock.set_ahead_ms  # in all of the epoch
            if window.missing_ms > explained_ms:
                yield window
                blamed_epoch = window.epoch


def most_wait_for_ranks_ms(run: LoggedRun) -> float:
    """Return the longest that rank 0 may wait for the other ranks at the end of an epoch, in milliseconds.

    Neither the windows nor the throughput of the epoch contain this wait, but the log's clock goes on.

    Args:
        run: The facts that the log states of the run, with the device that it trained on.
    """
    device = run.header_section(schema.HARDWARE).get("device")
    if device == "cpu":
        return MAX_DELAY_MS
    if device == "gpu":
        return _MAX_DELAY_ON_GPUS_MS
    return 0.0  # the logs of other projects state no device: nothing is allowed
