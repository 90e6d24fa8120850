"""The checkpoints of a run: how long training waited for each, and whether they were due."""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from compliance.logged_run import EVENTS_KEPT, LoggedRun
from compliance.strict.possible_values import is_possible_checkpoint
from runlog import schema
from runlog.digits import six_digits
from runlog.reader import Event, from_json
from runlog.text import printable

_MOST_MS_BEFORE_INIT_START = 3_600_000.0  # from the first event on, for the nodes to flush their caches


class Checkpoints:
    """Follows the checkpoints of a run. Its methods return what a log of this project cannot hold, "" if nothing."""

    def __init__(self, run: LoggedRun, most_difference_ms: Callable[[float], float]) -> None:
        """Prepare to follow the checkpoints.

        Args:
            run: The facts that the log states of the run.
            most_difference_ms: How far a stated time may differ from a time by the log's clock, both in milliseconds.
        """
        self._run = run
        self._most_difference_ms = most_difference_ms
        self._waited_ms_by_step: dict[int, float] = {}  # how long training waited for the checkpoint of a step
        self._line_by_step: dict[int, int] = {}  # of its event
        self._last_steps: set[int] | None = set()  # of the windows so far; None: not known of all
        self._ms_before_epoch: dict[int, float] = {}  # from the end of what was before it to its start

    def epoch_starts(self, number: int | None, after_ms: float) -> None:
        """Keep how long training may have waited before an epoch, for a checkpoint of the epoch before.

        Args:
            number: The number of the epoch. None: it is not known, and nothing is kept.
            after_ms: The time since the epoch or evaluation before it ended. Negative if there is none: it is not kept.
        """
        if number is not None and after_ms >= 0 and len(self._ms_before_epoch) < EVENTS_KEPT:
            self._ms_before_epoch[number] = after_ms

    def window_ends(self, step: int) -> None:
        """Note the last step of a window: a checkpoint is begun after such a step alone."""
        if self._last_steps is not None and len(self._last_steps) < EVENTS_KEPT:
            self._last_steps.add(step)
        else:
            self._last_steps = None

    def forget_windows(self) -> None:
        """Note that the last step of a window is not known."""
        self._last_steps = None

    def take(self, event: Event, last_step: int | None) -> str:
        """Keep how long training waited for a checkpoint; return that it is impossible, or that no window ended before.

        Args:
            event: The event checkpoint, with the step, file name, size and times of a checkpoint that was written. One
                that is impossible adds no waiting time.
            last_step: The last step that was done. None if it is not known, as after a malformed window.
        """
        checkpoint = from_json(schema.Checkpoint, event.value)  # None if it does not fit the schema
        is_possible = checkpoint is not None and is_possible_checkpoint(checkpoint)
        if checkpoint is None or not is_possible or not self._may_follow(checkpoint.step, last_step):
            return f"no possible checkpoint of a step that ended a window: {printable(event.value)}"
        return self._keep_wait(event, step=checkpoint.step, waited_s=checkpoint.blocked_s)

    def take_failed(self, event: Event, last_step: int | None) -> str:
        """Do the same for a checkpoint that could not be written, for which training waited all the same.

        Args:
            event: The event checkpoint_failed.
            last_step: The last step that was done. None if it is not known.
        """
        failed = from_json(schema.FailedCheckpoint, event.value)  # None if it does not fit the schema
        if failed is None or failed.blocked_s < 0 or not self._may_follow(failed.step, last_step):
            return f"no possible checkpoint of a step that ended a window: {printable(event.value)}"
        return self._keep_wait(event, step=failed.step, waited_s=failed.blocked_s)

    def _may_follow(self, step: int, last_step: int | None) -> bool:
        """Return whether a checkpoint may have been begun after a step: a window ends with it, as far as is known.

        Args:
            step: The number of the step, from 1.
            last_step: The last step that was done. None if it is not known.
        """
        if self._last_steps is not None and not self._run.is_resumed:  # else the window may be in another log
            return step in self._last_steps
        is_not_ahead = last_step is None or step <= last_step
        return step > 0 and is_not_ahead

    def _keep_wait(self, event: Event, *, step: int, waited_s: float) -> str:
        """Keep how long training waited for the checkpoint of a step; return that the run had not lasted so long.

        Args:
            event: The event of the checkpoint, which is logged after the wait.
            step: The step after which it was begun.
            waited_s: The wait, in seconds.
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
        """Return how long training waited within its epochs for the checkpoints so far.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        within_epochs = {}
        for step, waited_ms in self._waited_ms_by_step.items():
            if not self._is_due_after_epoch(step, epoch_steps):
                within_epochs[step] = waited_ms
        return Waits(within_epochs)

    def _is_due_after_epoch(self, step: int, epoch_steps: int) -> bool:
        """Return whether CHECKPOINT_EPOCHS asks for a checkpoint of a step: it is begun after an epoch, not within it.

        Args:
            step: The number of the step, from 1.
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        every_epochs: Any = self._run.settings.get("CHECKPOINT_EPOCHS")
        if type(every_epochs) is not int:
            return False
        steps_between = every_epochs * epoch_steps  # 0: none is due by epochs
        return steps_between > 0 and step % steps_between == 0

    def wait_without_time(self, epoch_steps: int) -> str:
        """Return that training waited longer for a checkpoint after an epoch than until the next epoch started.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        for step, waited_ms in self._waited_ms_by_step.items():
            if not self._is_due_after_epoch(step, epoch_steps):
                continue
            epoch = step // epoch_steps
            passed_ms = self._ms_before_epoch.get(epoch + 1, math.inf)
            if waited_ms > passed_ms + self._most_difference_ms(passed_ms):
                waited = f"a wait of {six_digits(waited_ms / 1000)} s for the checkpoint after epoch {epoch}"
                return f"{waited}, and the next epoch starts {six_digits(passed_ms / 1000)} s after what was before it"
        return ""

    def waits_without_room(self, room_ms_by_step: Mapping[int, float], epoch_steps: int) -> Iterator[tuple[int, str]]:
        """Yield each checkpoint for which training is said to have waited longer than there was time.

        There is time from the end of a window until the next one begins, or until the epoch ends. Checkpoints that are
        due after an epoch are left out: `wait_without_time` looks at them.

        Args:
            room_ms_by_step: That time at most, in milliseconds, by the last step of the window. A checkpoint of a step
                that is not in it is left out.
            epoch_steps: The steps of an epoch; 0 if they are not known.

        Yields:
            The line of the event, and what is wrong in words.
        """
        for step, waited_ms in self._waited_ms_by_step.items():
            room_ms = room_ms_by_step.get(step, math.inf)
            if waited_ms > room_ms and not self._is_due_after_epoch(step, epoch_steps):
                waited = f"a wait of {six_digits(waited_ms / 1000)} s for the checkpoint of step {step}"
                left = f"what follows leaves {six_digits(max(room_ms, 0.0) / 1000)} s at most"
                yield self._line_by_step[step], f"{waited}; {left}"

    def more_than_due(self, epoch_steps: int) -> str:
        """Return that the run has more checkpoints than CHECKPOINT_EPOCHS and CHECKPOINT_MINUTES ask for.

        A run without success may have written one more when a signal ended it. Nothing is checked if the settings are
        no whole numbers, or in a log without its end.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        every_epochs: Any = self._run.settings.get("CHECKPOINT_EPOCHS")
        every_minutes: Any = self._run.settings.get("CHECKPOINT_MINUTES")
        stop = self._run.stop
        if type(every_epochs) is not int or type(every_minutes) is not int or stop is None:
            return ""
        by_time = [step for step in self._waited_ms_by_step if not self._is_due_after_epoch(step, epoch_steps)]
        # Minutes count from the first step on, which comes after these events.
        init_start_ms = self._run.first_event(schema.INIT_START).time_ms
        first_ms = self._run.first_event(schema.SUBMISSION_BENCHMARK).time_ms
        minutes = (stop.time_ms - max(first_ms, init_start_ms - _MOST_MS_BEFORE_INIT_START)) / 60_000
        most = max(int(minutes / every_minutes), 0) if every_minutes > 0 else 0
        if self._run.status != "success":
            most += 1
        if len(by_time) <= most:
            return ""
        due = f"CHECKPOINT_MINUTES is {every_minutes}, CHECKPOINT_EPOCHS {every_epochs}"
        return f"a checkpoint of step {by_time[most]}, the run took {six_digits(minutes)} minutes; {due}"


class Waits:
    """How long training waited for checkpoints, by the step after which each was begun."""

    def __init__(self, ms_by_step: dict[int, float]) -> None:
        self._steps = sorted(ms_by_step)
        times_ms = (ms_by_step[step] for step in self._steps)
        self._sums_ms = [0.0, *itertools.accumulate(times_ms)]

    def between(self, first: int, last: int) -> float:
        """Return the time of the checkpoints after the steps from a first to a last one, in milliseconds."""
        index_of_first = bisect.bisect_left(self._steps, first)
        index_after_last = bisect.bisect_right(self._steps, last)
        return max(0.0, self._sums_ms[index_after_last] - self._sums_ms[index_of_first])
