"""The sums over step windows, and the times that they state held against the log's clock: do they state too little?

A step window is the steps between two lines of progress.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from compliance.logged_run import EVENTS_KEPT, LoggedRun
from compliance.strict.checkpoints import Waits
from runlog import schema
from runlog.digits import six_digits

# From a window's last step to its first event rank 0 waits for the other ranks, and a busy machine may stop it. At a
# load of 4 on 2 cores 0.3 s were measured.
MOST_DELAY_MS = 1000.0
_MOST_DELAY_SHARE = 0.1  # of the time since the window before it: where many ranks share a core
_MOST_DELAY_ON_GPUS_MS = 250.0  # after an epoch, whose last step all GPUs end together: that of their hosts


@dataclass
class WindowSums:
    """The sums over the step windows since epoch_start, or since run_start; `since_ms` is the time of that event."""

    since_ms: float = 0.0
    are_complete: bool = True  # False if a window could not be read
    windows: int = 0
    images: float = 0.0
    time_s: float = 0.0
    wait_s: float = 0.0
    first_leap_ms: float = 0.0  # by which the first clock_set of these windows says that the clock was set ahead
    further_leaps_ms: float = 0.0  # the sum of all others

    def add(self, window: schema.StepWindow) -> None:
        self.windows += 1
        self.images += window.images
        self.time_s += window.time_s
        self.wait_s += window.data_wait_s

    def add_leap(self, leap_ms: float) -> None:
        """Add a leap, a setting of the clock ahead by `leap_ms` milliseconds."""
        if self.first_leap_ms == 0:
            self.first_leap_ms = leap_ms
        else:
            self.further_leaps_ms += leap_ms

    def ms_without_leaps(self, training_ms: float, stated_ms: float) -> float:
        """Return the training time of an epoch by the log's clock, less the leaps of this clock in the epoch, in ms.

        A leap is a setting of the clock ahead. A leap within the epoch makes the epoch seem longer. The run looks for
        leaps after each window, at the end of an epoch's training and after each evaluation. So only the first leap
        that it logs in an epoch can be older than the epoch, as one between the last evaluation and the epoch's start.
        That first leap may also be older in part, if the clock was set twice before the run looked. So the time is
        known only to lie between two bounds:

            least    the time without all leaps
            most     the time without all leaps but the first

        Of the times from the one to the other, the one nearest to the time that the run states is returned. For
        instance, `training_ms` is 100 s with leaps of 30 s and 10 s, so the bounds are 60 s and 90 s. If the run states
        50 s, 60 s are returned. If the run states 70 s, 70 s are returned. If the run states 95 s, 90 s are returned.

        Args:
            training_ms: The time by the log's clock with all leaps, in milliseconds.
            stated_ms: The time that the event epoch_throughput states for the epoch, in milliseconds. The caller checks
                whether this time is too short or too long.
        """
        most_ms = training_ms - self.further_leaps_ms
        least_ms = most_ms - self.first_leap_ms
        return min(max(stated_ms, least_ms), most_ms)


class ShortWindow(NamedTuple):
    """A window at whose end the windows of its epoch state too little time in sum, unless something explains it.

    That may be waits for checkpoints, or settings of the clock ahead.
    """

    line: int
    epoch: int
    last_step: int
    windows_ms: float  # stated by the epoch's windows up to here
    passed_ms: float  # since the epoch's start, by the log's clock
    missing_ms: float  # of `passed_ms` in `windows_ms`, beyond what the two may differ by
    epoch_clock: "_EpochClock"  # kept, because its `set_ahead_ms` may still grow until the epoch ends

    @property
    def words(self) -> str:
        """Return what is wrong, for a report."""
        stated = f"the windows of epoch {self.epoch} state {six_digits(self.windows_ms / 1000)} s up to here"
        return f"{stated}; {six_digits(self.passed_ms / 1000)} s have passed"


@dataclass
class _EpochClock:
    """The times since an epoch's start: by the log's clock, and by its windows."""

    number: int
    start_ms: float
    last_window_ms: float  # when the window before ended, or the epoch started
    last_step: int | None = None  # at which the window before ended; None: there is none
    windows_ms: float = 0.0  # stated by the windows so far
    set_ahead_ms: float = 0.0  # by which the system's clock was set ahead so far


class ClockedWindows:
    """Follows the windows of each epoch by the log's clock.

    Only waits for checkpoints lie between the windows of an epoch. So at the end of each window, the times that the
    windows state so far must add up to the time since the epoch's start, but for these waits and for settings of the
    clock ahead.

    Attributes:
        short: The windows at whose end this sum is too small, at most EVENTS_KEPT.
        room_ms: By the step at which a window ends, the most time in milliseconds that may lie between that window and
            the next one, or the end of the epoch. At most EVENTS_KEPT.
    """

    def __init__(self, most_difference_ms: Callable[[float], float]) -> None:
        """Prepare to follow the windows.

        Args:
            most_difference_ms: How far a stated time may differ from a time by the log's clock, both in milliseconds.
        """
        self.short: list[ShortWindow] = []
        self.room_ms: dict[int, float] = {}
        self._most_difference_ms = most_difference_ms
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
        """End the epoch, and keep in `room_ms` the most time that can lie between its last window and its end.

        Args:
            training_ms: How long the epoch took by the log's clock, in milliseconds, without evaluations.
        """
        epoch = self._open_epoch
        if epoch is not None and epoch.last_step is not None:
            since_last_ms = epoch.start_ms + training_ms - epoch.last_window_ms
            self._keep_room(epoch.last_step, since_last_ms, stated_ms=0.0, most_delay_ms=MOST_DELAY_MS)
        self._open_epoch = None

    def stop_following(self) -> None:
        """Follow no further windows of this epoch: the time of one is not known."""
        self._open_epoch = None

    def clock_was_set_ahead(self, ahead_ms: float) -> None:
        """Note that the clock was set ahead during the last window, by so many milliseconds."""
        if self._open_epoch is not None:
            self._open_epoch.set_ahead_ms += ahead_ms

    def take(self, line: int, *, last_step: int, time_s: float, end_ms: float) -> None:
        """Compare the next window of the open epoch with the log's clock, and keep two results for the end of the log.

        A window is some training steps in a row, and states how long the steps took. Training may wait for a checkpoint
        between two windows. No window states this wait, but the log's clock goes on. The results:

        - In `room_ms`, by `_keep_room`: the most time that training can have waited between the window before and this
          window. The first window of an epoch has no window before it, so nothing is kept.
        - In `short`, by `_keep_if_short`: this window, if the epoch's windows up to this one state less time in sum
          than has passed since the epoch's start, by more than the tolerance and a late event explain.

        If no epoch is open, nothing is done.

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
        stated_ms = 1000 * time_s
        since_last_ms = end_ms - epoch.last_window_ms  # since the window before ended, or the epoch started
        # The most time from a window's last step to its first event: both helpers allow for this time.
        most_delay_ms = max(MOST_DELAY_MS, _MOST_DELAY_SHARE * since_last_ms)
        if epoch.last_step is not None:  # the step at which the window before ended
            self._keep_room(epoch.last_step, since_last_ms, stated_ms=stated_ms, most_delay_ms=most_delay_ms)

        epoch.last_window_ms = end_ms
        epoch.last_step = last_step
        epoch.windows_ms += stated_ms
        self._keep_if_short(line, last_step, epoch, most_delay_ms)

    def _keep_room(self, step: int, passed_ms: float, *, stated_ms: float, most_delay_ms: float) -> None:
        """Keep in `room_ms` the most time that training can have waited for a checkpoint after a window: the room.

        Training may wait for a checkpoint between a window and the next one. The log's clock goes on during the wait,
        but the time that the next window states does not contain the wait. So the room is the difference, at most:

            passed_ms        10 s     from the end of the window to the end of the next one, by the log's clock
            tolerance       + 0.2 s   by which the clock and a stated time may differ
            most_delay_ms   + 1 s     the window may have ended so long before its event, from which `passed_ms` counts
            stated_ms       - 8 s     in which the next window did its steps
            room            = 3.2 s   a checkpoint within the epoch that states a wait of 4 s after this step is wrong

        At most EVENTS_KEPT rooms are kept.

        Args:
            step: The step at which the window ends.
            passed_ms: The time in the example, in milliseconds; without a next window, the time to the epoch's end.
            stated_ms: The time that the next window states, in milliseconds; 0 without a next window.
            most_delay_ms: The most time from the end of the window to its event, in milliseconds.
        """
        if len(self.room_ms) < EVENTS_KEPT:
            most_passed_ms = passed_ms + self._most_difference_ms(passed_ms) + most_delay_ms
            self.room_ms[step] = most_passed_ms - stated_ms

    def _keep_if_short(self, line: int, last_step: int, epoch: _EpochClock, most_delay_ms: float) -> None:
        """Keep a window in `short` if the windows of its epoch, up to this one, state less time than has passed.

        For instance, at the end of the third window of an epoch:

            passed_ms           100 s    since the epoch's start, by the log's clock
            epoch.windows_ms    - 80 s   that the three windows state in sum
            tolerance           - 1 s    by which the clock and a stated time may differ
            most_delay_ms       - 1 s    by which the window's event may come late
            missing_ms          = 18 s   above 0, so the window is kept

        At the end of the log, `unexplained` tells whether waits for checkpoints, or settings of the clock ahead,
        explain the missing time. At most EVENTS_KEPT windows are kept.

        Args:
            line: The line of the window's event.
            last_step: The step at which the window ends.
            epoch: The times of the epoch up to the end of the window.
            most_delay_ms: How late the window's event may be, in milliseconds.
        """
        passed_ms = epoch.last_window_ms - epoch.start_ms
        allowed_ms = self._most_difference_ms(passed_ms) + most_delay_ms  # the tolerance and the delay
        missing_ms = passed_ms - epoch.windows_ms - allowed_ms
        if missing_ms > 0 and len(self.short) < EVENTS_KEPT:
            short = ShortWindow(
                line=line,
                epoch=epoch.number,
                last_step=last_step,
                windows_ms=epoch.windows_ms,
                passed_ms=passed_ms,
                missing_ms=missing_ms,
                epoch_clock=epoch,  # for `unexplained`: `epoch.set_ahead_ms` may still grow until the epoch ends
            )
            self.short.append(short)

    def unexplained(self, waits: Waits, epoch_steps: int) -> Iterator[ShortWindow]:
        """Yield the first window of each epoch at whose end more time is missing than can be explained.

        At the end of each window in `short`, time is missing: the epoch's windows so far state less time in sum than
        has passed since the epoch's start by the log's clock. `missing_ms` is the difference, beyond the tolerance and
        the most delay of the window's event. Two times together may explain the missing time:

        - the waits for the checkpoints of the epoch's earlier steps, which no window states;
        - the time by which the clock was set ahead in this epoch.

        For instance, 18 s are missing. With waits of 12 s and a clock that was set ahead by 5 s, only 17 s are
        explained, so the window is yielded.

        Call this after the last event of the log: the events of these checkpoints and settings may follow the window.

        Args:
            waits: How long training waited for the checkpoint of each step.
            epoch_steps: The steps of an epoch; 0 if they are not known: then the waits in earlier epochs count, too.
        """
        blamed_epoch = None
        for window in self.short:
            first_step = (window.epoch - 1) * epoch_steps + 1  # of the epoch; 1 if `epoch_steps` is 0
            # The wait for the checkpoint of the window's last step comes after the window's end, so it is left out.
            last_step_before_end = window.last_step - 1
            waited_ms = waits.between(first_step, last_step_before_end)
            explained_ms = waited_ms + window.epoch_clock.set_ahead_ms
            if window.missing_ms > explained_ms and window.epoch != blamed_epoch:
                yield window
                blamed_epoch = window.epoch  # at the end of its later windows, the same time is still missing


def most_delay_after_epoch_ms(run: LoggedRun) -> float:
    """Return how much longer, in ms, the wait after an epoch's last step may make the epoch by the log's clock.

    After the last step of an epoch, rank 0 may wait for the other ranks before the epoch ends in the log. The log's
    clock goes on during this wait, but neither the windows nor the throughput of the epoch contain the wait.

    Args:
        run: The facts that the log states of the run, with the device that it trained on.

    Returns:
        1000 on CPUs, where a busy machine may stop a rank; 250 on GPUs, which end a step together, so that only their
        hosts may be late; 0 if the log states neither device, as the logs of other projects.
    """
    device = run.header_section(schema.HARDWARE).get("device")
    if device == "cpu":
        return MOST_DELAY_MS
    if device == "gpu":
        return _MOST_DELAY_ON_GPUS_MS
    return 0.0
