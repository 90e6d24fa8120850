"""The checkpoints of a run: how long training waited for each, and whether they were due."""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from compliance.logged_run import EVENTS_KEPT, LoggedRun
from compliance.strict.possible_values import is_possible_checkpoint
from runlog import schema
from runlog.digits import counted, six_digits
from runlog.reader import Event, from_json
from runlog.text import printable

# A run may wait so long for all checkpoints within its epochs, and for so much of its time more, without a warning.
_MAX_WAITED_S = 1.0
_MAX_WAITED_SHARE = 0.05
_MAX_MS_BEFORE_INIT_START = 3_600_000.0  # from the first event on, for the nodes to flush their caches


class _Wait(NamedTuple):
    """How long training stood still for a checkpoint, and the line of the event that states it."""

    waited_ms: float
    line: int


class _EndsOfWindows:
    """The last steps of the windows of a log: a run begins checkpoints only after such steps.

    Attributes:
        steps: The last step of each window so far, at most EVENTS_KEPT.
        are_all_known: False once a window could not be read, or there were more than EVENTS_KEPT.
        steps_before_log: How many steps were done before the first window of the log; None if no window has come yet.
    """

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.are_all_known = True
        self.steps_before_log: int | None = None

    def add(self, last_step: int, steps: int) -> None:
        """Add the last step of the next window.

        Args:
            last_step: The number of the step.
            steps: How many steps the window has.
        """
        if self.steps_before_log is None:
            self.steps_before_log = last_step - steps
        if len(self.steps) < EVENTS_KEPT:
            self.steps.add(last_step)
        else:
            self.are_all_known = False


class Checkpoints:
    """Follows the checkpoints of a run in its log.

    A wait is the time that training stood still for a checkpoint, as the checkpoint's event states it. A window is the
    steps between two lines of progress. The methods that return a text say what a log of this project cannot hold; the
    text is empty if nothing is wrong.
    """

    def __init__(self, run: LoggedRun, tolerance_ms: Callable[[float], float]) -> None:
        """Prepare to check the checkpoints of a run, before the first event of its log.

        Args:
            run: The facts that the log states of the run.
            tolerance_ms: Gives the tolerance for a duration by the log's clock, such as 201 ms for 10,000 ms: by so
                much an event may state another duration.
        """
        self._run = run
        self._tolerance_ms = tolerance_ms
        self._wait_by_step: dict[int, _Wait] = {}  # by the step after which it was begun, in the log's order
        self._ends_of_windows = _EndsOfWindows()
        self._gap_ms_by_next_epoch: dict[int, float] = {}  # before each epoch, from what ended last to its epoch_start

    def epoch_starts(self, number: int | None, gap_ms: float) -> None:
        """Keep the gap before an epoch, in which training may have waited for a checkpoint of the epoch before.

        At most EVENTS_KEPT gaps are kept, and none below 0.

        Args:
            number: The number of the epoch. None: it is not known, and nothing is kept.
            gap_ms: The gap in milliseconds: the time since the last end of a block, epoch or evaluation, or since the
                last accuracy. Minus infinity if there was none.
        """
        if number is not None and gap_ms >= 0 and len(self._gap_ms_by_next_epoch) < EVENTS_KEPT:
            self._gap_ms_by_next_epoch[number] = gap_ms

    def window_ends(self, step: int, steps: int) -> None:
        """Note the last step of a window, because a run begins checkpoints only after such steps.

        Args:
            step: The number of the step.
            steps: How many steps the window has.
        """
        self._ends_of_windows.add(step, steps)

    def forget_windows(self) -> None:
        """Note that the last step of a window is not known."""
        self._ends_of_windows.are_all_known = False

    def take(self, event: Event, last_step: int | None) -> str:
        """Check the event of a checkpoint that was written; if it is right, keep how long training waited for it.

        Args:
            event: The event checkpoint, with the checkpoint's step, file name, size and times.
            last_step: The last step that was done. None if it is not known, as after a malformed window.

        Returns:
            What is wrong; an empty text if nothing is.
        """
        checkpoint = from_json(schema.Checkpoint, event.value)  # None if it does not fit the schema
        if checkpoint is None or not is_possible_checkpoint(checkpoint):
            return _no_possible_checkpoint(event)
        return self._take_wait(event, step=checkpoint.step, waited_s=checkpoint.blocked_s, last_step=last_step)

    def take_failed(self, event: Event, last_step: int | None) -> str:
        """Check the event of a checkpoint that could not be written; if it is right, keep how long training waited.

        Args:
            event: The event checkpoint_failed, with the checkpoint's step and the wait.
            last_step: The last step that was done. None if it is not known.

        Returns:
            What is wrong; an empty text if nothing is.
        """
        failed = from_json(schema.FailedCheckpoint, event.value)  # None if it does not fit the schema
        if failed is None or failed.blocked_s < 0:
            return _no_possible_checkpoint(event)
        return self._take_wait(event, step=failed.step, waited_s=failed.blocked_s, last_step=last_step)

    def _take_wait(self, event: Event, *, step: int, waited_s: float, last_step: int | None) -> str:
        """Keep the wait for a checkpoint, unless the checkpoint's step or the wait is impossible.

        At most EVENTS_KEPT waits are kept.

        Args:
            event: The event of the checkpoint.
            step: The step after which the checkpoint was begun.
            waited_s: The wait, in seconds.
            last_step: The last step that was done. None if it is not known.

        Returns:
            What is wrong; an empty text if nothing is.
        """
        if not self._may_follow(step, last_step):
            return _no_possible_checkpoint(event)
        complaint = self._wait_longer_than_run(event, waited_s)
        if complaint:
            return complaint
        if len(self._wait_by_step) < EVENTS_KEPT:
            self._wait_by_step[step] = _Wait(waited_ms=waited_s * 1000, line=event.line)
        return ""

    def _may_follow(self, step: int, last_step: int | None) -> bool:
        """Return whether a checkpoint may have been begun after a step: a run begins one only where a window ends.

        Args:
            step: The number of the step.
            last_step: The last step that was done. None if it is not known.
        """
        if self._ends_of_windows.are_all_known:
            return step in self._ends_of_windows.steps or self._may_be_before_log(step)
        is_ahead = last_step is not None and step > last_step
        return step > 0 and not is_ahead

    def _may_be_before_log(self, step: int) -> bool:
        """Return whether a step may be one that a resumed run did before this log began.

        A run that is resumed at the end of an epoch may write the checkpoint of this epoch once more.

        Args:
            step: The number of the step.
        """
        if not self._run.is_resumed or step < 1:
            return False
        steps_before_log = self._ends_of_windows.steps_before_log
        if steps_before_log is None:  # no window has come yet, so any step may be before the log
            return True
        return step <= steps_before_log

    def _wait_longer_than_run(self, event: Event, waited_s: float) -> str:
        """Return a complaint if a wait for a checkpoint is longer than the time since run_start; else an empty text.

        The event of a checkpoint is logged after the wait. So an event 5 s after run_start cannot state a wait of 9 s.

        Args:
            event: The event of the checkpoint.
            waited_s: The wait, in seconds.
        """
        if self._run.start_ms is None:
            return ""
        passed_ms = event.time_ms - self._run.start_ms
        if waited_s * 1000 <= passed_ms + self._tolerance_ms(passed_ms):
            return ""
        waited = f"a wait of {six_digits(waited_s)} s for a checkpoint"
        return f"{waited}, {six_digits(passed_ms / 1000)} s after run_start"

    def waits_within_epochs(self, epoch_steps: int) -> "Waits":
        """Return the waits that lie within the epochs of this log, and so lengthen these epochs by the log's clock.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        ends = self._ends_of_windows
        ms_by_step = {}
        for step, wait in self._wait_by_step.items():
            if self._is_due_after_epoch(step, epoch_steps):
                continue  # training waits between this epoch and the next one
            # A resumed run may write the checkpoint of a step before this log, at which no window of this log ends.
            is_before_log = ends.are_all_known and step not in ends.steps
            if not is_before_log:
                ms_by_step[step] = wait.waited_ms
        return Waits(ms_by_step)

    def _is_due_after_epoch(self, step: int, epoch_steps: int) -> bool:
        """Return whether an epoch ends with a step, and CHECKPOINT_EPOCHS asks for a checkpoint after this epoch.

        With epochs of 12 steps and CHECKPOINT_EPOCHS=2, it does so after the steps 24 and 48, with the epochs 2 and 4.

        Args:
            step: The number of the step, from 1.
            epoch_steps: The steps of an epoch; 0 if they are not known: then no step gives True.
        """
        every_epochs = self._run.whole_setting("CHECKPOINT_EPOCHS")
        if every_epochs is None:
            return False
        every_steps = every_epochs * epoch_steps
        return every_steps > 0 and step % every_steps == 0

    def wait_beyond_next_epoch(self, epoch_steps: int) -> str:
        """Return a complaint about the first wait after an epoch that would have lasted into the next epoch.

        Training waits for the checkpoint of an epoch before it starts the next epoch. For instance, a wait of 9 s
        contradicts the log's clock if the epoch 4 ends 5 s before the epoch 5 starts. If an evaluation lies between the
        two, only the time from its end to the start of epoch 5 counts.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Returns:
            The complaint; an empty text if there is none.
        """
        for step, wait in self._wait_by_step.items():
            if not self._is_due_after_epoch(step, epoch_steps):
                continue
            epoch = step // epoch_steps
            gap_ms = self._gap_ms_by_next_epoch.get(epoch + 1)
            if gap_ms is None:  # not known, for example if the log has no next epoch
                continue
            if wait.waited_ms > gap_ms + self._tolerance_ms(gap_ms):
                waited = f"a wait of {six_digits(wait.waited_ms / 1000)} s for the checkpoint after epoch {epoch}"
                return f"{waited}, and the next epoch starts {six_digits(gap_ms / 1000)} s after what was before it"
        return ""

    def waits_longer_than_possible(
        self, longest_ms_by_step: Mapping[int, float], epoch_steps: int
    ) -> Iterator[tuple[int, str]]:
        """Yield a complaint about each wait within an epoch that is longer than the log's clock allows.

        Args:
            longest_ms_by_step: The longest wait that is possible after a step, in milliseconds. A step that is missing
                here may have any wait.
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Yields:
            The line of the checkpoint's event, and what is wrong in words.
        """
        for step, wait in self._wait_by_step.items():
            if self._is_due_after_epoch(step, epoch_steps):
                continue  # `wait_beyond_next_epoch` checks it
            longest_ms = longest_ms_by_step.get(step, math.inf)
            if wait.waited_ms > longest_ms:
                # The longest is below 0 if the next window states too much time for the log's clock.
                possible_ms = max(longest_ms, 0.0)
                waited = f"a wait of {six_digits(wait.waited_ms / 1000)} s for the checkpoint of step {step}"
                yield wait.line, f"{waited}; what follows leaves {six_digits(possible_ms / 1000)} s at most"

    def more_than_due(self, epoch_steps: int) -> str:
        """Return a complaint if the run made more checkpoints by time than CHECKPOINT_MINUTES asks for.

        A checkpoint by time is any that CHECKPOINT_EPOCHS does not ask for.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Returns:
            The complaint, which names the first checkpoint too many. An empty text if there is none, if one of the two
            settings is not a whole number, or if the log has no run_stop.
        """
        every_epochs = self._run.whole_setting("CHECKPOINT_EPOCHS")
        every_minutes = self._run.whole_setting("CHECKPOINT_MINUTES")
        stop = self._run.stop
        if every_epochs is None or every_minutes is None or stop is None:
            return ""
        # In the order of the log.
        steps_of_checkpoints_by_time = [
            step for step in self._wait_by_step if not self._is_due_after_epoch(step, epoch_steps)
        ]
        minutes = self._most_minutes_of_run(stop)
        most = self._most_checkpoints_by_time(minutes, every_minutes)
        if len(steps_of_checkpoints_by_time) <= most:
            return ""
        first_too_many = steps_of_checkpoints_by_time[most]
        due = f"CHECKPOINT_MINUTES is {every_minutes}, CHECKPOINT_EPOCHS {every_epochs}"
        return f"a checkpoint of step {first_too_many}, the run took {six_digits(minutes)} minutes; {due}"

    def _most_checkpoints_by_time(self, minutes: float, every_minutes: int) -> int:
        """Return how many checkpoints by time a run may make: 3 in 35 minutes with CHECKPOINT_MINUTES=10.

        Args:
            minutes: How long the run took.
            every_minutes: The setting CHECKPOINT_MINUTES. With 0 or less, no checkpoint is due by time.
        """
        most = 0
        if every_minutes > 0:
            most = max(int(minutes / every_minutes), 0)
        if self._run.status != "success":
            most += 1  # the last one, made when a signal ends the run
        return most

    def _most_minutes_of_run(self, stop: Event) -> float:
        """Return an upper bound of the minutes from the first step of the run to its run_stop.

        No event states the time of the first step. But it comes after the first event of the log, submission_benchmark,
        and after init_start. So the minutes are counted from a time before the first step: that of
        submission_benchmark, or an hour before init_start if this is later. The hour is for nodes that flush their
        caches before init_start.

        Args:
            stop: The run_stop of the run.
        """
        first_event_ms = self._run.first_event(schema.SUBMISSION_BENCHMARK).time_ms
        init_start_ms = self._run.first_event(schema.INIT_START).time_ms
        hour_before_init_ms = init_start_ms - _MAX_MS_BEFORE_INIT_START
        # Both times are before the first step. The later one gives the closer bound.
        start_ms = max(first_event_ms, hour_before_init_ms)
        return (stop.time_ms - start_ms) / 60_000


class Waits:
    """How long training waited for checkpoints, by the step after which each was begun."""

    def __init__(self, ms_by_step: dict[int, float]) -> None:
        self._steps = sorted(ms_by_step)
        times_ms = (ms_by_step[step] for step in self._steps)
        self._sums_ms = [0.0, *itertools.accumulate(times_ms)]

    def long_waits(self, windows_s: float) -> str:
        """Return a warning if training waited long for checkpoints; an empty text if it did not.

        No rate of training counts the waits, so that a run with long waits looks faster than it was. The sum of all
        waits is long if it is above 1 s + 5 % of the whole time, which is the time of the windows plus the waits.

        Args:
            windows_s: The time of all windows, in seconds, which contains no wait.

        Returns:
            A text such as "training waited 9 s for 3 checkpoints, and for 60 s it trained: no rate counts the wait".
            The text is a warning and no error, because an honest run may wait for minutes on a machine without free
            memory.
        """
        waited_s = self._sums_ms[-1] / 1000  # `_sums_ms` has running sums, so the last one is the sum of all waits
        if waited_s <= _MAX_WAITED_S + _MAX_WAITED_SHARE * (windows_s + waited_s):
            return ""
        waited = f"training waited {six_digits(waited_s)} s for {counted(len(self._steps), 'checkpoint')}"
        return f"{waited}, and for {six_digits(windows_s)} s it trained: no rate counts the wait"

    def between(self, first: int, last: int) -> float:
        """Return how long training waited for the checkpoints of the steps from a first to a last one, in ms."""
        index_of_first = bisect.bisect_left(self._steps, first)
        index_after_last = bisect.bisect_right(self._steps, last)
        return max(0.0, self._sums_ms[index_after_last] - self._sums_ms[index_of_first])


def _no_possible_checkpoint(event: Event) -> str:
    """Return the complaint about an event whose checkpoint no run can have begun where a window ended."""
    return f"no possible checkpoint of a step that ended a window: {printable(event.value)}"
