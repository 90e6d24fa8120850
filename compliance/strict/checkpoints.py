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
            most_difference_ms: A function of a time by the log's clock: it returns how far a stated time may differ
                from that time. Both are in milliseconds.
        """
        self._run = run
        self._most_difference_ms = most_difference_ms
        # By the step after which a checkpoint was begun: how long training waited for it, and the line of its event.
        self._waited_ms_by_step: dict[int, float] = {}
        self._line_by_step: dict[int, int] = {}
        # The steps at which the windows so far ended, because a checkpoint is begun only after such a step. None: the
        # last step of a window could not be read or kept.
        self._ends_of_windows: set[int] | None = set()
        self._steps_before_log: int | None = None  # the steps before the first window; None: there is no window yet
        # By the number of an epoch: the time from the end of the epoch or evaluation before it to its start, in which
        # training may have waited for the checkpoint of the epoch before.
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

        If not all ends of windows are known (`_ends_of_windows` is None), it may be any step from 1 to `last_step`.
        Otherwise it may be

        - a step at which a window of the log ended;
        - in a resumed run, any step from 1 to `_steps_before_log`, the steps done before the first window of this log.
          A run that was resumed at the end of an epoch may write this epoch's checkpoint again. Until the log has a
          window, `_steps_before_log` is None, and there is no upper limit.

        Args:
            step: The number of the step.
            last_step: The last step that was done. None if it is not known: then there is no upper limit.
        """
        if self._ends_of_windows is None:
            is_not_ahead = last_step is None or step <= last_step
            return step > 0 and is_not_ahead
        if step in self._ends_of_windows:
            return True
        is_before_log = self._steps_before_log is None or step <= self._steps_before_log
        return self._run.is_resumed and step > 0 and is_before_log

    def _keep_wait(self, event: Event, *, step: int, waited_s: float) -> str:
        """Keep how long training waited for a checkpoint, unless that is longer than the run has lasted.

        The wait is too long if

            wait > time since run_start + `_most_difference_ms` of this time

        Before run_start nothing is compared. Only the first EVENTS_KEPT waits are kept.

        Args:
            event: The event of the checkpoint, which is logged after the wait.
            step: The step after which the checkpoint was begun.
            waited_s: The wait, in seconds.

        Returns:
            A complaint if the wait is too long. Otherwise an empty text.
        """
        if self._run.start_ms is not None:
            passed_ms = event.time_ms - self._run.start_ms
            if waited_s * 1000 > passed_ms + self._most_difference_ms(passed_ms):
                waited = f"a wait of {six_digits(waited_s)} s for a checkpoint"
                return f"{waited}, {six_digits(passed_ms / 1000)} s after run_start"
        if len(self._waited_ms_by_step) < EVENTS_KEPT:
            self._waited_ms_by_step[step] = waited_s * 1000
            self._line_by_step[step] = event.line
        return ""

    def waits(self, epoch_steps: int) -> "Waits":
        """Return the waits for the checkpoints that were begun within the epochs of this log.

        Two kinds are left out, because no time of an epoch in the log contains their waits:

        - checkpoints due after an epoch (see `_is_due_after_epoch`);
        - checkpoints of a step at which no window of this log ended: a resumed run may write the checkpoint of the last
          epoch before it once more. If not all ends of windows are known (`_ends_of_windows` is None), none of this
          kind is left out.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        within_epochs = {}
        for step, waited_ms in self._waited_ms_by_step.items():
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
            if not self._is_due_after_epoch(step, epoch_steps):  # none is due if `epoch_steps`, a divisor below, is 0
                continue
            epoch = step // epoch_steps
            gap_ms = self._ms_before_epoch.get(epoch + 1, math.inf)  # without a next epoch, any wait has time
            if waited_ms > gap_ms + self._most_difference_ms(gap_ms):
                waited = f"a wait of {six_digits(waited_ms / 1000)} s for the checkpoint after epoch {epoch}"
                return f"{waited}, and the next epoch starts {six_digits(gap_ms / 1000)} s after what was before it"
        return ""

    def waits_without_room(self, room_ms_by_step: Mapping[int, float], epoch_steps: int) -> Iterator[tuple[int, str]]:
        """Yield each checkpoint within an epoch whose stated wait is longer than the time that the log leaves for it.

        This time is called its room. It lies between the end of the window after which the checkpoint was begun and the
        start of the next window, or the end of the epoch. A checkpoint due after an epoch is left out: see
        `wait_beyond_next_epoch`.

        Args:
            room_ms_by_step: The most room that there can have been, in milliseconds, by the step of the checkpoint. A
                room below 0 leaves no time for any wait: the next window alone states more time than passed. The
                complaint calls it 0. A step that is not in the table has room for any wait.
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Yields:
            The line of the checkpoint's event, and what is wrong in words.
        """
        for step, waited_ms in self._waited_ms_by_step.items():
            room_ms = room_ms_by_step.get(step, math.inf)
            if waited_ms > room_ms and not self._is_due_after_epoch(step, epoch_steps):
                waited = f"a wait of {six_digits(waited_ms / 1000)} s for the checkpoint of step {step}"
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
        """Return an upper bound on the minutes of the run, in which it makes a checkpoint each CHECKPOINT_MINUTES.

        The run itself counts from its first step on, whose time no event states. The bound counts from an earlier time
        to run_stop:

            start = max(time of submission_benchmark, time of init_start - 1 h)

        Between submission_benchmark, the first event, and init_start the nodes flush their caches, for which an hour is
        allowed.

        Args:
            stop: The run_stop of the run.
        """
        init_start_ms = self._run.first_event(schema.INIT_START).time_ms
        first_ms = self._run.first_event(schema.SUBMISSION_BENCHMARK).time_ms
        start_ms = max(first_ms, init_start_ms - _MOST_MS_BEFORE_INIT_START)
        return (stop.time_ms - start_ms) / 60_000


class Waits:
    """How long training waited for checkpoints, by the step after which each was begun."""

    def __init__(self, ms_by_step: dict[int, float]) -> None:
        self._steps = sorted(ms_by_step)
        times_ms = (ms_by_step[step] for step in self._steps)
        self._sums_ms = [0.0, *itertools.accumulate(times_ms)]

    def long_waits(self, windows_s: float) -> str:
        """Return a warning if training waited long for checkpoints, as no rate counts that; otherwise an empty text.

        The sum of the waits is long if it is above 1 s + 5 % of the time of windows and waits together. An honest run
        may wait so long: copying a state takes seconds, but minutes on a machine without free memory. So it only warns.

        Args:
            windows_s: The time of all windows, in seconds, which has no wait in it.
        """
        waited_s = self._sums_ms[-1] / 1000
        if waited_s <= _MOST_WAITED_S + _MOST_WAITED_SHARE * (windows_s + waited_s):
            return ""
        waited = f"training waited {six_digits(waited_s)} s for {counted(len(self._steps), 'checkpoint')}"
        return f"{waited}, and for {six_digits(windows_s)} s it trained: no rate counts the wait"

    def between(self, first: int, last: int) -> float:
        """Return the time of the checkpoints after the steps from a first to a last one, in milliseconds."""
        index_of_first = bisect.bisect_left(self._steps, first)
        index_after_last = bisect.bisect_right(self._steps, last)
        return max(0.0, self._sums_ms[index_after_last] - self._sums_ms[index_of_first])
