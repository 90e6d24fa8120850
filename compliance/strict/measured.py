"""Step windows, throughputs and checkpoints must add up: to each other, to their epoch and to the log's clock."""

import math
from collections.abc import Callable
from typing import NamedTuple

from compliance.logged_run import EVENTS_KEPT, LoggedRun, is_number
from compliance.rules import FINDINGS_PER_RULE, FindingCollector
from compliance.strict.checkpoints import Checkpoints, Waits
from compliance.strict.clocked_windows import ClockedWindows, WindowSums, most_wait_for_ranks_ms
from compliance.strict.losses import describe_late_loss, faults_of_losses
from compliance.strict.planned_steps import Plan, plan_of_run
from compliance.strict.possible_values import (
    ROUNDING_ERROR_S,
    has_impossible_time,
    images_per_s_of_foreign,
    is_positive_throughput,
    is_possible_window,
)
from compliance.strict.rank_times import RankTimesOfWindows
from compliance.strict.sensors import Sensors
from compliance.strict.set_clock import SetClock
from runlog import schema
from runlog.digits import counted, significant, six_digits
from runlog.reader import Event, from_json
from runlog.text import printable

_QUOTIENT_ERROR = 1e-6  # as a share; a log may write the quotient with seven digits
LOSSES_KEPT = 1000  # of a run, to compare it with others
THROUGHPUT_RULE = "throughput-agrees"


class Fault(NamedTuple):
    """Something that a log of this project cannot hold, and the line to blame; None if it is not a single line."""

    line: int | None
    what: str


class Fastest(NamedTuple):
    """The window with the highest rate."""

    images_per_s: float
    line: int


class _TrainedEpoch(NamedTuple):
    """An epoch that has ended, and how long it trained by the log's clock."""

    number: int | None  # None: its epoch_start states none
    training_ms: float  # from epoch_start to epoch_stop, without the evaluations between them


class _StatedTime(NamedTuple):
    """The time of an epoch as an event epoch_throughput states it, and the line of the event."""

    line: int
    epoch: int
    time_s: float


class _ShortThroughput(NamedTuple):
    """An epoch_throughput that states too little time for its epoch, unless waits for checkpoints explain it."""

    line: int
    epoch: int
    missing_ms: float  # from the stated time to the least that agrees with the log's clock
    breach: str  # what to report unless checkpoints explain the missing time


class Measured:
    """Follows the windows, throughputs and checkpoints of a run in their order, and each epoch's start and stop.

    A window, logged as a step_window, is the steps between two lines of progress. `faults` are contradictions that a
    log of this project cannot hold, but a log of another project may. The first FINDINGS_PER_RULE are kept.
    """

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.faults: list[Fault] = []
        self.fastest = Fastest(images_per_s=0.0, line=0)
        self.all_images: int | None = 0  # None: not known, because a window could not be read
        self.all_windows_s = 0.0  # seconds of all windows that could be read
        self.sensors = Sensors()
        self._run = run
        self._collector = collector
        self._plan = Plan()
        self._rank_times = RankTimesOfWindows(run)
        self._epoch_sums = WindowSums()
        self._clocked_windows = ClockedWindows(self._tolerance_ms)
        self._set_clock = SetClock(run)
        self._has_plan = False  # True from the first step_window on, also if this is malformed
        self._losses_not_read = 0  # of the first LOSSES_KEPT windows, those of malformed ones
        self._last_step: int | None = 0  # where the last window ended; None: not known, because it could not be read
        self._open_epoch: int | None = None
        self._last_epoch_trained: _TrainedEpoch | None = None  # None until the first epoch_stop
        self._stated_times_of_open_epoch: list[_StatedTime] = []
        self._checkpoints = Checkpoints(run, self._tolerance_ms)
        self._short_throughputs: list[_ShortThroughput] = []
        self._last_epoch_of_throughput: int | None = None  # that the epoch_throughput before stated
        self._handlers: dict[str, Callable[[Event], None]] = {
            schema.STEP_WINDOW.key: self._take_step_window,
            schema.RANK_TIMES.key: self._take_rank_times,
            schema.CHECKPOINT.key: self._take_checkpoint,
            schema.CHECKPOINT_FAILED.key: self._take_failed_checkpoint,
            schema.CLOCK_SET.key: self._take_clock_set,
            # Other projects log these two after an epoch.
            "throughput": self._check_foreign_throughput,
            "tracked_stats": self._check_foreign_throughput,
        }

    def take(self, event: Event) -> None:
        """Take the next event of the log. Events of no interest are ignored.

        Args:
            event: Any event but an epoch_throughput, which goes to `check_epoch_throughput`.
        """
        handle = self._handlers.get(event.key)
        if handle is not None:
            handle(event)

    def report_if_project_log(self, line: int | None, what: str) -> None:
        """Keep a fault, to be reported if the log turns out to be one of this project. Other projects may log such.

        Only the first FINDINGS_PER_RULE faults are kept.

        Args:
            line: The line to blame. None if it is not a single line.
            what: What the log has that a log of this project cannot hold.
        """
        if len(self.faults) < FINDINGS_PER_RULE:
            self.faults.append(Fault(line, what))

    def _report_if_any(self, line: int | None, what: str) -> None:
        if what:
            self.report_if_project_log(line, what)

    # --- the run and its epochs ---

    def begin_window_sums(self, start: Event) -> None:
        """Begin the sums over the step windows anew, and note the time from which they count.

        Args:
            start: The event from which they count: a run_start or an epoch_start.
        """
        self._epoch_sums = WindowSums(since_ms=start.time_ms)
        self._rank_times.begin_window(start.time_ms)

    def epoch_starts(self, start: Event, number: int | None, *, gap_ms: float) -> None:
        """Begin an epoch: from here on its windows are summed and held against the log's clock.

        Args:
            start: The epoch_start.
            number: The number of the epoch. None if the event states none.
            gap_ms: The time since the last event that ended a block, epoch or evaluation, or that was an accuracy, in
                milliseconds. Minus infinity if there was no such event.
        """
        self._open_epoch = number
        self.begin_window_sums(start)
        self._clocked_windows.epoch_starts(number, start.time_ms)
        self._checkpoints.epoch_starts(number, gap_ms)  # training may have waited for a checkpoint in the gap

    def epoch_stops(self, number: int | None, training_ms: float) -> None:
        """End an epoch, and compare the times that events epoch_throughput have stated for it so far.

        Args:
            number: The number that the epoch stated at its start; None if it stated none.
            training_ms: The time from epoch_start to epoch_stop by the log's clock, without evaluations, in
                milliseconds.
        """
        self._open_epoch = None
        self._clocked_windows.epoch_stops(training_ms)
        trained = _TrainedEpoch(number, training_ms)
        for stated in self._stated_times_of_open_epoch:
            self._compare_time(stated, trained)
        self._stated_times_of_open_epoch.clear()
        self._last_epoch_trained = trained  # for times of this epoch that are stated later

    def _take_clock_set(self, event: Event) -> None:
        """Report an impossible clock_set, and note by how much the clock was set ahead since the last epoch_start.

        Args:
            event: A clock_set, such as one of 60 s, which a run logs once it sees that its clock was set.
        """
        self._report_if_any(event.line, self._set_clock.take(event, self._last_step))
        was_set_ahead = is_number(event.value) and event.value > 0
        if was_set_ahead:
            # The epoch seems longer by the log's clock than its throughput and its windows state.
            ahead_ms = 1000 * event.value
            self._epoch_sums.add_leap(ahead_ms)
            self._clocked_windows.clock_was_set_ahead(ahead_ms)

    def check_losses_and_last_step(self, line: int) -> None:
        """Report impossible losses and an unplanned last step, if the log is of this project.

        Call it at the end of a run that succeeded. Losses are impossible if all are 0, for instance, or if 10 or more
        are all equal (see `faults_of_losses`), or if those of the last epoch are too high (`describe_late_loss`). The
        last step is checked only in a run that measures throughput instead of training to a target, because only the
        plan of such a run has one.

        Args:
            line: The line of the run_stop, which is blamed.
        """
        for what in faults_of_losses(self._run.first_losses, self._losses_not_read):
            self.report_if_project_log(line, what)
        last_epoch = self._epoch_sums
        self._report_if_any(line, describe_late_loss(self._run, last_epoch.windows, last_epoch.least_loss))
        planned_last_step = self._plan.measured_end  # above 0 only in a run that measures throughput
        if planned_last_step > 0 and self._is_not_at_step(planned_last_step):
            self.report_if_project_log(line, f"the run ends with step {self._last_step}, not {planned_last_step}")

    def _is_not_at_step(self, step: int) -> bool:
        """Return whether the windows so far are known to end at another step than this one."""
        return self._last_step is not None and self._last_step != step

    def judge_waits_for_checkpoints(self) -> None:
        """Report stated times that are too short even with the waits for checkpoints, and impossible checkpoints.

        A wait is the time that training stood still for a checkpoint, as the checkpoint's event states it. No window or
        epoch states it, so their stated times may be shorter than those by the log's clock.

        Call this after the last event of the log, because a checkpoint is logged once it is written, maybe after its
        epoch.
        """
        epoch_steps = self._plan.epoch_steps
        waits = self._checkpoints.waits_within_epochs(epoch_steps)
        self._report_short_throughputs(waits)
        for window in self._clocked_windows.unexplained(waits, epoch_steps):
            self.report_if_project_log(window.line, window.words)
        if self._run.is_project_log:
            self._warn_of_long_waits(waits)
        self._report_impossible_checkpoints(epoch_steps)

    def _report_impossible_checkpoints(self, epoch_steps: int) -> None:
        """Report waits that are longer than the log's clock allows, and more checkpoints than the settings ask for.

        It is only reported if the log is of this project.

        Args:
            epoch_steps: The steps of an epoch; 0 if they are not known.
        """
        longest_wait_ms = self._clocked_windows.longest_wait_ms
        for line, what in self._checkpoints.waits_longer_than_possible(longest_wait_ms, epoch_steps):
            self.report_if_project_log(line, what)
        self._report_if_any(None, self._checkpoints.more_than_due(epoch_steps))
        self._report_if_any(None, self._checkpoints.wait_beyond_next_epoch(epoch_steps))

    def _report_short_throughputs(self, waits: Waits) -> None:
        """Report, in any log, each epoch_throughput whose missing time is longer than the waits within its epoch.

        Args:
            waits: How long training waited for the checkpoint of each step.
        """
        for short in self._short_throughputs:
            first_step, last_step = self._steps_of_epoch(short.epoch)
            if short.missing_ms > waits.between(first_step, last_step):
                self._collector.add_breach(THROUGHPUT_RULE, short.line, short.breach)

    def _warn_of_long_waits(self, waits: Waits) -> None:
        """Warn if training waited for checkpoints for much of its time.

        Args:
            waits: How long training waited for the checkpoint of each step.
        """
        long_waits = waits.long_waits(self.all_windows_s)
        if long_waits:
            self._collector.add_breach(THROUGHPUT_RULE, None, long_waits, severity="warning")

    def _steps_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the first and the last step of an epoch.

        Args:
            epoch: The number of the epoch, from 1.
        """
        return (epoch - 1) * self._plan.epoch_steps + 1, epoch * self._plan.epoch_steps

    # --- step windows ---

    def _make_plan(self) -> None:
        """Make the plan of the steps at the first window: the settings are known by then.

        A resumed run begins after a later step than 0, which only its first window tells.
        """
        self._has_plan = True
        self._plan = plan_of_run(self._run)
        summary = self._run.summary
        if summary is not None and summary.resumed:
            self._last_step = None

    def _take_step_window(self, event: Event) -> None:
        """Check an event step_window, which has the figures of the steps between two lines of progress.

        Args:
            event: The step_window.
        """
        if not self._has_plan:
            self._make_plan()
        window = from_json(schema.StepWindow, event.value)  # None if it does not fit the schema
        position = from_json(schema.InWindow, event.metadata)  # None if it does not fit the schema
        self._keep_loss_and_time(window)
        if window is not None and position is not None and is_possible_window(window, position.step):
            self._take_possible_window(event, window, position)
        else:
            what = f"a step_window is not as the schema has it: {printable(event.value)}"
            self.report_if_project_log(event.line, what)
            self._note_unknown_window()

    def _take_possible_window(self, event: Event, window: schema.StepWindow, position: schema.InWindow) -> None:
        """Add a window to all sums, and report where it disagrees with the plan, the log's clock or the ranks' times.

        It is only reported if the log is of this project.

        Args:
            event: The event step_window.
            window: Its value: steps, images, times and figures of the GPUs.
            position: Its metadata: the step at which the window ends, the epoch and the phase.
        """
        previous_step = self._last_step
        if previous_step is None:  # not known: this window is believed
            previous_step = position.step - window.steps
        self._last_step = position.step
        # In this order: the checks need the sums with this window, and the end of the window before it.
        self._add_to_sums(event.line, window)
        self._check_window(event, window, position, previous_step)
        self._begin_next_window(event.time_ms, window, position.step)

    def _check_window(
        self, event: Event, window: schema.StepWindow, position: schema.InWindow, previous_step: int
    ) -> None:
        """Compare a window with the plan of the steps, the log's clock and the ranks' times.

        Call this when the sums contain the window, and before `_begin_next_window`.

        Args:
            event: The event step_window.
            window: Its value.
            position: Its metadata: the step at which the window ends, the epoch and the phase.
            previous_step: The step at which the window before it ended.
        """
        self._compare_with_plan(event.line, window, position, previous_step)
        self._compare_sum_with_clock(event)
        self._clocked_windows.take(
            event.line, last_step=position.step, time_s=window.time_s, end_ms=self._end_of_window_ms(event)
        )
        self._report_if_any(event.line, self._rank_times.compare_with_window(event, window, position.step))

    def _begin_next_window(self, time_ms: float, window: schema.StepWindow, step: int) -> None:
        """Note where a window ended, for the rank_times, checkpoints and settings of the clock that follow it.

        Args:
            time_ms: The time of the window's event.
            window: The window.
            step: The step at which it ended.
        """
        self._rank_times.window_ends(time_ms)
        self._checkpoints.window_ends(step, window.steps)
        self._set_clock.window_ends(time_ms, window.time_s)

    def _end_of_window_ms(self, event: Event) -> float:
        """Return when a window ended: the time of its first event, its rank_times, or without one its step_window.

        Args:
            event: The step_window.
        """
        return event.time_ms if self._rank_times.logged_ms is None else self._rank_times.logged_ms

    def _add_to_sums(self, line: int, window: schema.StepWindow) -> None:
        """Add a window to the sums over the run and over the epoch, and note its sensors and its rate.

        Args:
            line: The line of the event step_window.
            window: The figures of the window.
        """
        if self.all_images is not None:
            self.all_images += window.images
        self.all_windows_s += window.time_s
        self._epoch_sums.add(window)
        self.sensors.take(line, window)
        if window.time_s > 0:
            rate_of_window = Fastest(images_per_s=window.images / window.time_s, line=line)
            self.fastest = max(self.fastest, rate_of_window)  # by images/s, the first field

    def _note_unknown_window(self) -> None:
        """Note that the steps, images and times of a window are not known: the window is malformed or impossible."""
        self._last_step = None
        self._checkpoints.forget_windows()
        self.all_images = None
        self._epoch_sums.are_complete = False
        self._clocked_windows.stop_following()
        self._set_clock.forget()
        self._rank_times.forget()

    def _keep_loss_and_time(self, window: schema.StepWindow | None) -> None:
        """Keep a window's loss and time for the comparison with other runs, up to LOSSES_KEPT windows.

        The n-th windows of two runs are compared. So a window that does not fit the schema keeps its place, with a loss
        of None and a time of 0.

        Args:
            window: The window. None if it does not fit the schema.
        """
        if len(self._run.first_losses) >= LOSSES_KEPT:
            return
        if window is None:
            self._losses_not_read += 1
            loss, time_s = None, 0.0
        else:
            loss, time_s = window.loss, window.time_s
        self._run.first_losses.append(loss)
        self._run.keep_interval(schema.STEP_WINDOW.key, time_s)

    def _compare_with_plan(
        self, line: int, window: schema.StepWindow, position: schema.InWindow, previous_step: int
    ) -> None:
        """Report at most one fault of a window by the planned steps or by its own times, if the log is of this project.

        The fault is a wrong last step or a wrong number of steps or images, or else a wrong phase or epoch, or else a
        time that no window has. With epochs of 12 steps and windows of 5, the windows of an epoch must have 5, 5 and 2
        steps.

        Args:
            line: The line of the event step_window.
            window: Its value: how many steps and images, and its times.
            position: Its metadata: the step at which the window ends, its phase and its epoch.
            previous_step: The step at which the window before it ended.
        """
        planned = self._plan.next_window(previous_step, position.epoch_num)
        if not _has_planned_size(window, position.step, previous_step, planned.steps, self._plan.batch):
            done = f"{counted(window.steps, 'step')}, {counted(window.images, 'image')}"
            what = f"a window of {done}, to step {position.step}; {previous_step} was the last"
            self.report_if_project_log(line, what)
        elif position.phase != planned.phase or position.epoch_num != self._epoch_of_windows:
            what = f"a window of phase {printable(position.phase)} and epoch {position.epoch_num} here"
            self.report_if_project_log(line, what)
        elif has_impossible_time(window):
            waited = f"{window.data_wait_s} s waited for data"
            self.report_if_project_log(line, f"a window of {window.time_s} s, of which {waited}")

    @property
    def _epoch_of_windows(self) -> int | None:
        """The epoch that a window must state now: the open one, or 1 in a run that only measures throughput."""
        return 1 if self._plan.only_measures_throughput else self._open_epoch

    def _compare_sum_with_clock(self, event: Event) -> None:
        """Report that the windows state more time in sum than has passed, if the log is of this project.

        Both times count from the latest epoch_start or run_start to this window.

        Args:
            event: The latest step_window, up to which the time passed.
        """
        passed_ms = event.time_ms - self._epoch_sums.since_ms
        windows_s = self._epoch_sums.time_s
        most_ms = passed_ms * (1 + self._tolerance_share) + self._run.clock_tolerance_ms
        if windows_s * 1000 > most_ms:
            passed = f"the {six_digits(passed_ms / 1000)} s up to here"
            what = f"windows of {six_digits(windows_s)} s in {passed}"
            self.report_if_project_log(event.line, f"{what}; the clock was set back, or a time is wrong")

    @property
    def _tolerance_share(self) -> float:
        """The largest share by which a time may differ from the log's clock; 0.01 is 1 %."""
        return self._collector.strict_rules[THROUGHPUT_RULE].bounds["share"]

    def _tolerance_ms(self, clock_ms: float) -> float:
        """Return how far a stated time may differ from the time by the log's clock, in milliseconds.

        Args:
            clock_ms: The time by the log's clock, in milliseconds.
        """
        return self._tolerance_share * clock_ms + self._run.clock_tolerance_ms

    def _take_rank_times(self, event: Event) -> None:
        self._report_if_any(event.line, self._rank_times.take(event))

    def _take_checkpoint(self, event: Event) -> None:
        self._report_if_any(event.line, self._checkpoints.take(event, self._last_step))

    def _take_failed_checkpoint(self, event: Event) -> None:
        self._report_if_any(event.line, self._checkpoints.take_failed(event, self._last_step))

    # --- throughputs ---

    def check_epoch_throughput(self, event: Event, epoch: int | None) -> None:
        """Report what is wrong with an event epoch_throughput, which has the images, seconds and images/s of an epoch.

        Args:
            event: The event epoch_throughput.
            epoch: The number of the epoch that the event states. None if it states none, which the caller has reported:
                only the images/s are checked then.
        """
        line = event.line
        stated = from_json(schema.EpochThroughput, event.value)
        if stated is None or not is_positive_throughput(stated):
            wanted = "epoch_throughput has images, time_s and images_per_s, numbers above 0"
            self._collector.add_breach(THROUGHPUT_RULE, line, f"epoch_throughput is {printable(event.value)}", wanted)
            return
        self._compare_rate(stated, line)
        if epoch is None:
            return
        # These three are faults in a log of this project alone.
        self._report_second_throughput(line, epoch)
        self._compare_with_windows(line, epoch, stated)
        self._check_last_step(line, epoch)
        # These two are breaches in any log.
        self._compare_time_after_epoch(_StatedTime(line=line, epoch=epoch, time_s=stated.time_s))
        self._compare_with_data_set(stated, line)

    def _report_second_throughput(self, line: int, epoch: int) -> None:
        """Report an epoch_throughput of the same epoch as the one before, if the log is of this project.

        Args:
            line: The line of the event epoch_throughput.
            epoch: The number of the epoch that the event states.
        """
        if epoch == self._last_epoch_of_throughput:
            self.report_if_project_log(line, f"a second epoch_throughput of epoch {epoch}")
        self._last_epoch_of_throughput = epoch

    def _compare_time_after_epoch(self, stated: _StatedTime) -> None:
        """Compare the stated time of an epoch with the log's clock: at its epoch_stop if it is open, otherwise now.

        Args:
            stated: The time that an event epoch_throughput states, with its epoch and its line.
        """
        is_epoch_open = self._open_epoch == stated.epoch
        if not is_epoch_open:
            self._compare_time(stated, self._last_epoch_trained)
        elif len(self._stated_times_of_open_epoch) < FINDINGS_PER_RULE:  # others of this epoch are reported anyway
            self._stated_times_of_open_epoch.append(stated)  # `epoch_stops` will compare it

    def _compare_rate(self, stated: schema.EpochThroughput, line: int) -> None:
        """Report a breach if the images/s of an epoch are not its images over its seconds, but for rounding.

        Args:
            stated: The images, seconds and images/s, all above 0.
            line: The line of the event epoch_throughput.
        """
        rate = stated.images / stated.time_s
        share_by_rounded_time = ROUNDING_ERROR_S / stated.time_s
        most_difference = rate * (share_by_rounded_time + _QUOTIENT_ERROR)  # the rate in the log is rounded, too
        if abs(stated.images_per_s - rate) > most_difference:
            actual = f"{six_digits(stated.images_per_s)} images/s; its images over its time are {six_digits(rate)}"
            self._collector.add_breach(THROUGHPUT_RULE, line, actual)

    def _compare_with_data_set(self, stated: schema.EpochThroughput, line: int) -> None:
        """Report a breach if the images of an epoch differ from the training samples by more than a global batch.

        Nothing is compared if the log does not state both sizes, or if the run was resumed, so that the log may have
        only a part of the epoch.

        Args:
            stated: The figures of the epoch, with its number of images.
            line: The line of the event epoch_throughput.
        """
        samples = self._run.stated_count(schema.TRAIN_SAMPLES)  # 0 if it is not stated
        batch = self._run.stated_count(schema.GLOBAL_BATCH_SIZE)  # 0 if it is not stated
        if self._run.is_resumed or samples == 0 or batch == 0:
            return
        if abs(stated.images - samples) > batch:
            images = significant(stated.images, digits=10)
            actual = f"{images} images in an epoch; train_samples is {samples}, the global batch {batch}"
            self._collector.add_breach(THROUGHPUT_RULE, line, actual)

    def _compare_with_windows(self, line: int, epoch: int, stated: schema.EpochThroughput) -> None:
        """Report each total of an epoch that is not the sum over its step windows.

        `_compare_total` does so only if the log is of this project. The images must be equal. The seconds may differ a
        little, because they are rounded in the event and in each window. Nothing is compared if a window could not be
        read.

        Args:
            line: The line of the event epoch_throughput.
            epoch: The number of the epoch that the event states.
            stated: The totals of the event: images, seconds and seconds of waiting for data.
        """
        sums = self._epoch_sums
        if not sums.are_complete:
            return
        rounded_times = sums.windows + 1  # that of each window, and that of the epoch_throughput
        rounding_s = ROUNDING_ERROR_S * rounded_times
        waiting = f"s of waiting for data in epoch {epoch}"
        self._compare_total(line, f"images in epoch {epoch}", stated.images, sums.images, allowed=0.0)
        self._compare_total(line, f"s in epoch {epoch}", stated.time_s, sums.time_s, allowed=rounding_s)
        self._compare_total(line, waiting, stated.data_wait_s, sums.wait_s, allowed=rounding_s)

    def _compare_total(self, line: int, what: str, total: float, sum_of_windows: float, *, allowed: float) -> None:
        """Report, if the log is of this project, a total of an epoch that is too far from the sum over its windows.

        Args:
            line: The line of the event epoch_throughput.
            what: Unit and name of the total, such as "images in epoch 3".
            total: The total that the event states.
            sum_of_windows: The sum over the windows since the start of the epoch.
            allowed: How far the two may differ.
        """
        if abs(total - sum_of_windows) > allowed:
            other_total = f"{significant(sum_of_windows, digits=10)} in its step_windows"
            self.report_if_project_log(line, f"{significant(total, digits=10)} {what}, {other_total}")

    def _check_last_step(self, line: int, epoch: int) -> None:
        """Report, if the log is of this project, that the windows up to now do not end at the last step of an epoch.

        Nothing is checked if the number of steps per epoch or the last step is not known.

        Args:
            line: The line to blame, which is that of the event epoch_throughput.
            epoch: The number of the epoch, from 1.
        """
        planned_last_step = epoch * self._plan.epoch_steps  # 0 if the steps per epoch are not known
        if planned_last_step > 0 and self._is_not_at_step(planned_last_step):
            self.report_if_project_log(line, f"epoch {epoch} ends with step {self._last_step}, not {planned_last_step}")

    def _compare_time(self, stated: _StatedTime, trained: _TrainedEpoch | None) -> None:
        """Report a time stated for an epoch that is longer than the epoch was by the log's clock.

        A stated time that is shorter is kept for the end of the log, because waits for checkpoints may explain it.

        Args:
            stated: The time that an event epoch_throughput states, with its epoch and its line.
            trained: The last epoch that was trained, by the log's clock. None if there is none.
        """
        if trained is None or stated.epoch != trained.number:
            actual = f"a throughput of epoch {stated.epoch}, which is not the last one trained"
            self._collector.add_breach(THROUGHPUT_RULE, stated.line, actual)
            return
        stated_ms = stated.time_s * 1000
        # What a setting of the clock ahead added to the training time is subtracted, in favour of the stated time.
        clock_ms = self._epoch_sums.ms_without_leaps(trained.training_ms, stated_ms)
        tolerance_ms = self._tolerance_ms(clock_ms)
        # At the end of the epoch rank 0 may wait for the other ranks, which no stated time contains.
        most_wait_ms = most_wait_for_ranks_ms(self._run)
        missing_ms = clock_ms - tolerance_ms - most_wait_ms - stated_ms  # above 0 if the stated time is too short

        between = f"{trained.training_ms / 1000:.3f} s lie between its epoch_start and epoch_stop"
        both_times = f"{stated.time_s:.3f} s for epoch {stated.epoch}; {between}"
        if stated_ms > clock_ms + tolerance_ms:
            breach = f"{both_times}; the clock was set back, or the throughput is wrong"
            self._collector.add_breach(THROUGHPUT_RULE, stated.line, breach)
        elif missing_ms > 0 and len(self._short_throughputs) < EVENTS_KEPT:
            breach = f"{both_times}; the clock was set ahead, the run stood still, or the throughput is wrong"
            self._short_throughputs.append(_ShortThroughput(stated.line, stated.epoch, missing_ms, breach))

    def _check_foreign_throughput(self, event: Event) -> None:
        """Report a throughput in another project's log that does not fit the time of the epoch that has just ended.

        For instance, 1,000,000 images at 20,000 images/s take 50 s, so the epoch must have taken about as long.

        Args:
            event: An event "throughput" or "tracked_stats", which other projects log after an epoch.
        """
        images_per_s = images_per_s_of_foreign(event.value)
        images = self._run.stated_count(schema.TRAIN_SAMPLES)  # 0 if it is not stated
        clock_ms = self._ms_of_epoch_just_ended
        if images_per_s is None or images == 0 or clock_ms is None:
            return
        ms_by_rate = math.inf  # no epoch ends at a rate of 0
        if images_per_s > 0:
            ms_by_rate = images / images_per_s * 1000
        difference_ms = abs(ms_by_rate - clock_ms)
        if difference_ms > self._tolerance_ms(clock_ms):
            rate_by_clock = images / clock_ms * 1000  # images/s, for the message
            actual = f"{images_per_s:.6g} images/s; {images} images in {clock_ms / 1000:.3f} s are {rate_by_clock:.6g}"
            self._collector.add_breach(THROUGHPUT_RULE, event.line, actual)

    @property
    def _ms_of_epoch_just_ended(self) -> float | None:
        """The training time of the last epoch; None while an epoch is open, or if the last one took no time above 0."""
        trained = self._last_epoch_trained
        if self._open_epoch is not None or trained is None or trained.training_ms <= 0:
            return None
        return trained.training_ms


def _has_planned_size(
    window: schema.StepWindow, last_step: int, previous_step: int, planned_steps: int, images_of_step: int
) -> bool:
    """Return whether a window goes on where the one before ended, with the planned steps and all of their images.

    Args:
        window: The window, with its numbers of steps and images.
        last_step: The step at which the window ends.
        previous_step: The step at which the window before it ended.
        planned_steps: How many steps the window must have.
        images_of_step: Images of a step on all devices.
    """
    begins_at_previous = last_step - window.steps == previous_step
    has_all_images = window.images == window.steps * images_of_step
    return begins_at_previous and window.steps == planned_steps and has_all_images
