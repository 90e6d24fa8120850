"""The checkpoints of a run: how long training waited for each, and whether they were due."""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping

from compliance.logged_run import EVENTS_KEPT, LoggedRun
from compliance.strict.possible_values import is_possible_checkpoint
from runlog import schema
from runlog.digits import counted, six_digits
from runlog.reader import Event, from_json
from runlog.text import printable

# A run may wait so long for all checkpoints within its epochs, and for so much of its time more, without a warning.
_MOST_WAITED_S = 1.0
_MOST_WAITED_SHARE = 0.05
_MOST_MS_BEFORE_INIT_START = 3_600_000.0  # from the first event on, for the nodes to flush their caches


class Checkpoints:
    """Follows the checkpoints of a run in its log.

    A wait is the time that training stood still for a checkpoint, as the checkpoint's event states it. A window is the
    steps between two lines of progress. The methods that return a text say what a log of this project cannot hold; the
    text is empty if nothing is wrong.
    """

    def __init__(self, run: LoggedRun, most_difference_ms: Callable[[float], float]) -> None:
        """Prepare to check the checkpoints of a run, before the first event of its log.

        Args:
            run: The facts that the log states of the run.
            most_difference_ms: A function that takes a duration by the log's clock. The function returns by how much
                the same duration may differ where an event states it. Both are in milliseconds.
        """
        self._run = run
        self._most_difference_ms = most_difference_ms
        # By the step after which a checkpoint was begun: how long training waited for it, and the line of its event.
        self._waited_ms_by_step: dict[int, float] = {}
        self._line_by_step: dict[int, int] = {}
        # The steps at which the windows so far ended: a checkpoint is begun only after such a step. Empty: no window
        # has ended yet. None: not all of these steps are known, because one could not be read, or there were too many.
        self._ends_of_windows: set[int] | None = set()
        self._steps_before_log: int | None = None  # the steps before the first window; None: there is no window yet
        # By the number of an epoch: the gap before its start, which is the time since the last end of a block, epoch or
        # evaluation, or since the last accuracy. In the gap before epoch 5, for instance, training may have waited for
        # the checkpoint of epoch 4.
        self._ms_before_epoch: dict[int, float] = {}

    def epoch_starts(self, number: int | None, after_ms: float) -> None:
        """Keep the time before an epoch, in which training may have waited for a checkpoint of the epoch before.

        Args:
            number: The number of the epoch. None: it is not known, and nothing is kept.
            after_ms: The time since the epoch or evaluation before it ended. Negative if there is none: it is not kept.
        """
        if number is not None and after_ms >= 0 and len(self._ms_before_epoch) < EVENTS_KEPT:
            self._ms_before_epoch[number] = after_ms

    def window_ends(self, step: int, steps: int) -> None:
        """Note the last step of a window, because a run begins checkpoints only after such steps.

        The first window also shows how many steps were done before the log. At most EVENTS_KEPT last steps are kept.
        With more, `_ends_of_windows` becomes None for good: not all of them are known then.

        Args:
            step: The number of the step.
            steps: How many steps the window has.
        """
        if self._steps_before_log is None:
            self._steps_before_log = step - steps
        if self._ends_of_windows is not None and len(self._ends_of_windows) < EVENTS_KEPT:
            self._ends_of_windows.add(step)
        else:
            self._ends_of_windows = None

    def forget_windows(self) -> None:
        """Note that the last step of a window is not known."""
        self._ends_of_windows = None

    def take(self, event: Event, last_step: int | None) -> str:
        """Check the event of a checkpoint that was written; if it is right, keep how long training waited for it.

        Args:
            event: The event checkpoint, with the checkpoint's step, file name, size and times.
            last_step: The last step that was done. None if it is not known, as after a malformed window.

        Returns:
            What is wrong; an empty text if nothing is. In the order of the checks, an event is wrong if

            - it does not fit the schema, or its values are impossible;
            - no window can have ended with its step (`_may_follow`);
            - training waited longer than the run has lasted (`_keep_wait`).
        """
        checkpoint = from_json(schema.Checkpoint, event.value)  # None if it does not fit the schema
        is_possible = checkpoint is not None and is_possible_checkpoint(checkpoint)
        if checkpoint is None or not is_possible or not self._may_follow(checkpoint.step, last_step):
            return f"no possible checkpoint of a step that ended a window: {printable(event.value)}"
        return self._keep_wait(event, step=checkpoint.step, waited_s=checkpoint.blocked_s)

    def take_failed(self, event: Event, last_step: int | None) -> str:
        """Return what is wrong with the event of a checkpoint that could not be written; if nothing is, keep its wait.

        Args:
            event: The event checkpoint_failed, with the checkpoint's step and the wait.
            last_step: The last step that was done. None if it is not known.

        Returns:
            An empty text if nothing is wrong. Otherwise what is: the event does not fit the schema, the wait is
            below 0, no window can have ended with its step, or the wait is longer than the run so far.
        """
        failed = from_json(schema.FailedCheckpoint, event.value)  # None if it does not fit the schema
        if failed is None or failed.blocked_s < 0 or not self._may_follow(failed.step, last_step):
            return f"no possible checkpoint of a step that ended a window: {printable(event.value)}"
        return self._keep_wait(event, step=failed.step, waited_s=failed.blocked_s)

    def _may_follow(self, step: int, last_step: int | None) -> bool:
        """Return whether a checkpoint may have been begun after a step: a run begins one only where a window ends.

        1. If not all steps at which windows ended are known, `step` may be any step from 1 to `last_step`.
        2. If all are known, `step` may be one of these steps.
        3. In a resumed run, `step` may also be a step that was done before this log, because a run that was resumed at
           the end of an epoch may write the checkpoint of this epoch once more. If the log has no window yet, it is not
           known how many steps were done before, and `step` may be any step from 1 on.

        Args:
            step: The number of the step.
            last_step: The last step that was done, which is only used in case 1. None if the last step is not known:
                then `step` may be any step from 1 on.
        """
        if self._ends_of_windows is None:  # not all are known
            is_not_ahead = last_step is None or step <= last_step
            return step > 0 and is_not_ahead
        if step in self._ends_of_windows:
            return True
        is_before_log = self._steps_before_log is None or step <= self._steps_before_log
        return self._run.is_resumed and step > 0 and is_before_log

    def _keep_wait(self, event: Event, *, step: int, waited_s: float) -> str:
        """Keep how long training waited for a checkpoint; or return a complaint if this wait is impossibly long.

        The event of the checkpoint is logged after the wait. So the wait cannot be longer than the time from run_start
        to the event: an event 5 s after run_start cannot state a wait of 9 s. As a tolerance, the wait may be longer by
        `_most_difference_ms` of the time. If the log has no run_start yet, the wait is kept without this check.

        At most EVENTS_KEPT waits are kept.

        Args:
            event: The event of the checkpoint.
            step: The step after which the checkpoint was begun.
            waited_s: The wait, in seconds.

        Returns:
            The complaint. An empty text if the wait is not too long.
        """
        if self._run.start_ms is not None:
            passed_ms = event.time_ms - self._run.start_ms
            # `_most_difference_ms` gives how far a stated time may differ from `passed_ms`, a time by the log's clock.
            if waited_s * 1000 > passed_ms + self._most_difference_ms(passed_ms):
                waited = f"a wait of {six_digits(waited_s)} s for a checkpoint"
                return f"{waited}, {six_digits(passed_ms / 1000)} s after run_start"
        if len(self._waited_ms_by_step) < EVENTS_KEPT:
            self._waited_ms_by_step[step] = waited_s * 1000
            self._line_by_step[step] = event.line
        return ""

    def waits(self, epoch_steps: int) -> "Waits":
        """Return the waits for the checkpoints that were begun within the epochs of this log.

        The wait for a checkpoint is left out in two cases, in which no epoch of this log contains the wait:

        - The checkpoint was due after an epoch, so training waited between two epochs.
        - No window of this log ended with the checkpoint's step. The checkpoint is then of a step before the log: a run
          that was resumed at the end of an epoch may write the checkpoint of this epoch once more.

        The second case is only looked for if all steps at which windows ended are known.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        within_epochs = {}
        for step, waited_ms in self._waited_ms_by_step.items():
            # None: not all ends of windows are known, so any step may be one.
            may_end_window = self._ends_of_windows is None or step in self._ends_of_windows
            if may_end_window and not self._is_due_after_epoch(step, epoch_steps):
                within_epochs[step] = waited_ms
        return Waits(within_epochs)

    def _is_due_after_epoch(self, step: int, epoch_steps: int) -> bool:
        """Return whether a step ends an epoch after which CHECKPOINT_EPOCHS asks for a checkpoint.

        The wait for such a checkpoint comes after the epoch, so it is no time of the epoch.

        Args:
            step: The number of the step, from 1.
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        every_epochs = self._run.whole_setting("CHECKPOINT_EPOCHS")
        if every_epochs is None:
            return False
        steps_between = every_epochs * epoch_steps  # 0: none is due by epochs
        return steps_between > 0 and step % steps_between == 0

    def wait_beyond_next_epoch(self, epoch_steps: int) -> str:
        """Return a complaint if a wait for a checkpoint after an epoch is longer than the gap before the next epoch.

        The gap is the time from the end of the epoch, or of the evaluation that follows it, to the start of the next
        epoch. Training waits for the checkpoint in this gap, so a longer wait contradicts the log's clock. Only
        checkpoints that CHECKPOINT_EPOCHS asks for come after an epoch.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Returns:
            The complaint, about the first such checkpoint. An empty text if there is none.
        """
        for step, waited_ms in self._waited_ms_by_step.items():
            if not self._is_due_after_epoch(step, epoch_steps):
                continue
            epoch = step // epoch_steps  # `epoch_steps` is above 0: with 0, no checkpoint is due after an epoch
            # If no gap is known, as without a next epoch, gap and tolerance are infinite: no wait is too long.
            gap_ms = self._ms_before_epoch.get(epoch + 1, math.inf)
            if waited_ms > gap_ms + self._most_difference_ms(gap_ms):
                waited = f"a wait of {six_digits(waited_ms / 1000)} s for the checkpoint after epoch {epoch}"
                return f"{waited}, and the next epoch starts {six_digits(gap_ms / 1000)} s after what was before it"
        return ""

    def waits_without_room(self, room_ms_by_step: Mapping[int, float], epoch_steps: int) -> Iterator[tuple[int, str]]:
        """Yield a complaint about each checkpoint within an epoch that states a longer wait than the log allows.

        Training waits for such a checkpoint between two windows, or between the last window and the end of the epoch.
        The most time that the log's clock leaves there for a wait is called the room. For instance, with a room of
        3.2 s a wait of 4 s is too long. Checkpoints due after an epoch are left out: `wait_beyond_next_epoch` checks
        these.

        Args:
            room_ms_by_step: The room in milliseconds, by the step after which the checkpoint was begun. If the step is
                missing here, no wait is too long. If the room is below 0, as when the next window states more time than
                passed by the log's clock, any wait is too long.
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Yields:
            The line of the checkpoint's event, and what is wrong in words.
        """
        for step, waited_ms in self._waited_ms_by_step.items():
            room_ms = room_ms_by_step.get(step, math.inf)
            if waited_ms > room_ms and not self._is_due_after_epoch(step, epoch_steps):
                waited = f"a wait of {six_digits(waited_ms / 1000)} s for the checkpoint of step {step}"
                # A room below 0 is shown as 0.
                left = f"what follows leaves {six_digits(max(room_ms, 0.0) / 1000)} s at most"
                yield self._line_by_step[step], f"{waited}; {left}"

    def more_than_due(self, epoch_steps: int) -> str:
        """Return a complaint if the run made more checkpoints by time than CHECKPOINT_MINUTES asks for.

        A checkpoint by time is any that CHECKPOINT_EPOCHS does not ask for. With CHECKPOINT_MINUTES=10, a run of 35
        minutes may make 3. A run without success may make one more, when a signal ends it.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Returns:
            The complaint. An empty text if there are not too many, if one of the two settings is no whole number of
            usable size, or if the log has no run_stop.
        """
        every_epochs = self._run.whole_setting("CHECKPOINT_EPOCHS")
        every_minutes = self._run.whole_setting("CHECKPOINT_MINUTES")
        stop = self._run.stop
        if every_epochs is None or every_minutes is None or stop is None:
            return ""
        by_time = [step for step in self._waited_ms_by_step if not self._is_due_after_epoch(step, epoch_steps)]
        minutes = self._most_minutes_of_run(stop)
        most = max(int(minutes / every_minutes), 0) if every_minutes > 0 else 0  # 0: none by time
        if self._run.status != "success":
            most += 1
        if len(by_time) <= most:
            return ""
        first_too_many = by_time[most]
        due = f"CHECKPOINT_MINUTES is {every_minutes}, CHECKPOINT_EPOCHS {every_epochs}"
        return f"a checkpoint of step {first_too_many}, the run took {six_digits(minutes)} minutes; {due}"

    def _most_minutes_of_run(self, stop: Event) -> float:
        """Return the most minutes that can have passed from the first step of the run to its run_stop.

        No event states the time of the first step. But the first step comes after submission_benchmark, the first event
        of the log, and after init_start. So the minutes are counted from submission_benchmark, which gives an upper
        bound. Up to an hour is allowed between submission_benchmark and init_start, because nodes flush their caches
        there. If more time passed, the minutes are counted from an hour before init_start.

        Args:
            stop: The run_stop of the run.
        """
        init_start_ms = self._run.first_event(schema.INIT_START).time_ms
        first_ms = self._run.first_event(schema.SUBMISSION_BENCHMARK).time_ms
        start_ms = max(first_ms, init_start_ms - _MOST_MS_BEFORE_INIT_START)  # the later of the two times
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
        if waited_s <= _MOST_WAITED_S + _MOST_WAITED_SHARE * (windows_s + waited_s):
            return ""
        waited = f"training waited {six_digits(waited_s)} s for {counted(len(self._steps), 'checkpoint')}"
        return f"{waited}, and for {six_digits(windows_s)} s it trained: no rate counts the wait"

    def between(self, first: int, last: int) -> float:
        """Return the time of the checkpoints after the steps from a first to a last one, in milliseconds."""
        index_of_first = bisect.bisect_left(self._steps, first)
        index_after_last = bisect.bisect_right(self._steps, last)
        return max(0.0, self._sums_ms[index_after_last] - self._sums_ms[index_of_first])
