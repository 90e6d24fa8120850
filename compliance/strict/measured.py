"""Step windows, throughputs and checkpoints must add up: to each other, to their epoch and to the log's clock."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from compliance.logged_run import EVENTS_KEPT, LoggedRun, is_number
from compliance.rules import FINDINGS_PER_RULE, FindingCollector
from compliance.strict.planned_steps import Plan, plan_of_run
from runlog import schema
from runlog.digits import significant, six_digits
from runlog.reader import Event, dataclass_of
from runlog.text import printable

LOSSES_KEPT = 1000  # of a run, to compare it with others
THROUGHPUT_RULE = "throughput-agrees"
_ROUNDING_ERROR_S = 1e-6  # of a time that is written with six digits


class Fault(NamedTuple):
    """Something that a log of this project cannot hold, and the line to blame; None if it is not a single line."""

    line: int | None
    what: str


class Fastest(NamedTuple):
    """The window with the highest rate."""

    images_per_s: float
    line: int


class _StatedTime(NamedTuple):
    """The time of an epoch that an event epoch_throughput states, and the line of the event."""

    line: int
    epoch: int
    time_s: float


class _ShortThroughput(NamedTuple):
    """An epoch_throughput that states less time than its epoch took; checkpoints in the epoch may explain it."""

    line: int
    epoch: int
    unexplained_ms: float
    actual: str


@dataclass
class _WindowSums:
    """The sums over the step windows since epoch_start, or since run_start; `since_ms` is the time of that event."""

    since_ms: float = 0.0
    windows: int = 0
    images: float = 0.0
    time_s: float = 0.0
    wait_s: float = 0.0

    def add(self, window: schema.StepWindow) -> None:
        self.windows += 1
        self.images += window.images
        self.time_s += window.time_s
        self.wait_s += window.data_wait_s


class Measured:
    """Follows the windows, throughputs and checkpoints of a run in their order, and each epoch's start and stop.

    `faults` are contradictions that a log of this project cannot hold. The first FINDINGS_PER_RULE are kept.
    """

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.faults: list[Fault] = []
        self.fastest = Fastest(images_per_s=0.0, line=0)
        self.all_images = 0
        self._run = run
        self._collector = collector
        self._plan = Plan()
        self._epoch_sums = _WindowSums()
        self._last_step = 0  # where the last window ended
        self._open_epoch: int | None = None
        self._last_epoch: int | None = None
        self._last_epoch_training_ms: float | None = None  # without the evaluations in it
        self._stated_times_of_open_epoch: list[_StatedTime] = []
        self._blocked_ms_by_step: dict[int, float] = {}  # how long training waited for the checkpoint of a step
        self._short_throughputs: list[_ShortThroughput] = []
        self._handlers: dict[str, Callable[[Event], None]] = {
            schema.STEP_WINDOW.key: self._take_step_window,
            schema.RANK_TIMES.key: self._check_rank_times,
            schema.CHECKPOINT.key: self._take_checkpoint,
            # Other projects log these two after an epoch.
            "throughput": self._check_foreign_throughput,
            "tracked_stats": self._check_foreign_throughput,
        }

    def take(self, event: Event) -> None:
        """Take the next event. Keys of no interest are ignored; epoch_throughput goes to `check_epoch_throughput`."""
        handle = self._handlers.get(event.key)
        if handle is not None:
            handle(event)

    def keep_fault(self, line: int | None, what: str) -> None:
        """Keep a fault, which counts if this is a log of this project. Beyond FINDINGS_PER_RULE they are ignored."""
        if len(self.faults) < FINDINGS_PER_RULE:
            self.faults.append(Fault(line, what))

    # --- the run and its epochs ---

    def run_starts(self, event: Event) -> None:
        """Begin the sums and the clock of the windows at run_start."""
        self._epoch_sums = _WindowSums(since_ms=event.time_ms)

    def epoch_starts(self, event: Event, number: int | None) -> None:
        """Begin an epoch at its start event: the sums and the clock of its windows begin anew."""
        self._open_epoch = number
        self._epoch_sums = _WindowSums(since_ms=event.time_ms)

    def epoch_stops(self, number: int | None, training_ms: float) -> None:
        """End an epoch. `training_ms` is its time by the log's clock, without evaluations.

        The times that events epoch_throughput stated while the epoch was open are now compared with `training_ms`.
        """
        self._open_epoch = None
        self._last_epoch = number
        self._last_epoch_training_ms = training_ms
        for stated in self._stated_times_of_open_epoch:
            self._compare_time(stated)
        self._stated_times_of_open_epoch.clear()

    def check_losses_and_last_step(self, line: int) -> None:
        """Check the losses and the last step of a run that ended with success at `line`, the line of its run_stop.

        - A loss that is not a number is a fault.
        - Another last step than the planned one is a fault, if the run only measures throughput. The plan of any other
          run has no last step.
        """
        losses = self._run.losses
        lost = losses.count(None)
        if lost:  # a run of this project aborts at such a loss
            first = f"of the first {len(losses)} step_windows"
            self.keep_fault(line, f"{lost} of the losses {first} are no numbers")
        last_step = self._plan.measured_end
        if last_step and self._last_step != last_step:
            self.keep_fault(line, f"the run ends with step {self._last_step}, not {last_step}")

    def judge_short_throughputs(self) -> None:
        """Report each epoch_throughput that states too little time for its epoch. Call it after the last event.

        The stated time may be shorter than the epoch by the time that training waited for checkpoints in that epoch.
        This can only be judged at the end, because the event of a checkpoint may come after the end of the epoch.
        """
        for short in self._short_throughputs:
            last_step_before_epoch = (short.epoch - 1) * self._plan.epoch_steps
            last_step_of_epoch = short.epoch * self._plan.epoch_steps
            waited_ms = 0.0
            for step, blocked_ms in self._blocked_ms_by_step.items():
                # The checkpoint of an epoch's last step is written after the epoch.
                if last_step_before_epoch < step < last_step_of_epoch:
                    waited_ms += blocked_ms
            if short.unexplained_ms > waited_ms:
                self._collector.add_breach(THROUGHPUT_RULE, short.line, short.actual)

    # --- step windows ---

    def _make_plan(self, position: schema.InWindow, window: schema.StepWindow) -> None:
        """Make the plan of the steps at the first window: the settings are known by then.

        A resumed run begins after a later step than 0, which follows from its first window.
        """
        self._plan = plan_of_run(self._run)
        summary = self._run.summary
        if summary is not None and summary.resumed:
            self._last_step = position.step - window.steps

    def _take_step_window(self, event: Event) -> None:
        """Take an event step_window, about the steps between two lines of progress.

        - Its loss and its time are kept to compare the run with others. A malformed event leaves a gap in their places.
        - A malformed event is a fault, and nothing more is done with it.
        - The first step_window of a run begins the plan of the steps that are due in each window.
        - A window is added to the sums and compared, until there are FINDINGS_PER_RULE faults.
        """
        window = dataclass_of(schema.StepWindow, event.value)
        position = dataclass_of(schema.InWindow, event.metadata)
        self._keep_loss_and_time(window)  # of None, too, which leaves a gap
        if window is None or position is None or not _is_possible(window):
            self.keep_fault(event.line, f"a step_window is not as the schema has it: {printable(event.value)}")
            return
        is_first = self._run.number_of_events(schema.STEP_WINDOW) == 1  # the run has counted this one already
        if is_first:
            self._make_plan(position, window)
        if len(self.faults) < FINDINGS_PER_RULE:
            self._add_and_compare(event, window, position)

    def _add_and_compare(self, event: Event, window: schema.StepWindow, position: schema.InWindow) -> None:
        """Add a window to the sums, and compare it with the plan and with the log's clock."""
        previous_step = self._last_step
        self._last_step = position.step
        self.all_images += window.images
        self._epoch_sums.add(window)
        self._compare_with_plan(event.line, window, position, previous_step)
        self._compare_with_clock(event)
        if window.time_s > 0:
            self.fastest = max(self.fastest, Fastest(images_per_s=window.images / window.time_s, line=event.line))

    def _keep_loss_and_time(self, window: schema.StepWindow | None) -> None:
        """Keep a window's loss and time for the comparison with other runs, up to LOSSES_KEPT windows.

        None, a window that does not fit the schema, keeps its place: its loss is None, and its time is 0.
        """
        if len(self._run.losses) < LOSSES_KEPT:
            self._run.losses.append(window.loss if window else None)
            self._run.keep_interval(schema.STEP_WINDOW.key, window.time_s if window else 0.0)

    def _compare_with_plan(
        self, line: int, window: schema.StepWindow, position: schema.InWindow, previous_step: int
    ) -> None:
        """Compare the window of `line` with the one that the plan has after `previous_step`, where the last one ended.

        The first of these that does not hold is kept as a fault:

        - It has the planned number of steps, follows the last window, and has a global batch of images in each step.
        - It is of the planned phase and of the open epoch. A run that only measures throughput calls this epoch 1.
        - It took some time, and did not wait for data for longer than that.
        """
        steps = window.steps
        wait_s = window.data_wait_s
        planned = self._plan.next_window(previous_step, position.epoch_num)
        # A run that only measures throughput calls its only epoch 1.
        planned_epoch = 1 if self._plan.measured_end else self._open_epoch

        has_planned_steps = steps == planned.steps and window.images == steps * self._plan.batch
        follows_last_window = position.step == previous_step + steps
        has_planned_place = position.phase == planned.phase and position.epoch_num == planned_epoch
        is_time_possible = window.time_s > 0 and 0 <= wait_s <= window.time_s + _ROUNDING_ERROR_S
        if not (has_planned_steps and follows_last_window):
            done = f"{steps} steps, {window.images} images"
            self.keep_fault(line, f"a window of {done}, to step {position.step}; {previous_step} was the last")
        elif not has_planned_place:
            self.keep_fault(line, f"a window of phase {printable(position.phase)} and epoch {position.epoch_num} here")
        elif not is_time_possible:
            self.keep_fault(line, f"a window of {window.time_s} s, of which {wait_s} s waited for data")

    def _compare_with_clock(self, event: Event) -> None:
        """Keep a fault if the windows took longer in all than the time that has passed since the epoch's start."""
        passed_ms = event.time_ms - self._epoch_sums.since_ms
        windows_s = self._epoch_sums.time_s
        most_ms = passed_ms * (1 + self._most_clock_difference) + self._run.clock_tolerance_ms
        if windows_s * 1000 > most_ms:
            self.keep_fault(
                event.line, f"windows of {six_digits(windows_s)} s in the {six_digits(passed_ms / 1000)} s up to here"
            )

    @property
    def _most_clock_difference(self) -> float:
        """The largest share by which a time may differ from the log's clock; 0.01 is 1 %."""
        return self._collector.strict_rules[THROUGHPUT_RULE].bounds["share"]

    def _most_difference_ms(self, clock_ms: float) -> float:
        """Return how far a stated time may differ from `clock_ms`, the time by the log's clock."""
        return self._most_clock_difference * clock_ms + self._run.clock_tolerance_ms

    def _check_rank_times(self, event: Event) -> None:
        """Keep a fault if an event rank_times cannot be of this run.

        - The event must fit the schema, and the log must have a run_summary.
        - The least, the median and the most time that ranks waited for data must be in this order, from 0 on.
        - The times that ranks computed must be in this order, too. They may be missing.
        - The ranks that took most must be ranks of the run.
        """
        times = dataclass_of(schema.RankTimes, event.value)
        summary = self._run.summary
        is_possible = False
        if times is not None and summary is not None:
            waited = [0.0, times.data_wait_least_s, times.data_wait_median_s, times.data_wait_most_s]
            computed = [0.0, times.compute_least_s or 0.0, times.compute_median_s or 0.0, times.compute_most_s or 0.0]
            do_ranks_exist = max(times.data_wait_rank, times.compute_rank or 0) < summary.devices
            is_possible = do_ranks_exist and waited == sorted(waited) and computed == sorted(computed)
        if not is_possible:
            self.keep_fault(event.line, f"no rank_times of this run: {printable(event.value)}")

    def _take_checkpoint(self, event: Event) -> None:
        """Keep how long training waited for a checkpoint. Keep a fault if it is not of a step that was done."""
        checkpoint = dataclass_of(schema.Checkpoint, event.value)
        if checkpoint is None or not 0 < checkpoint.step <= self._last_step:
            self.keep_fault(event.line, f"no checkpoint of a step that was done: {printable(event.value)}")
        elif len(self._blocked_ms_by_step) < EVENTS_KEPT:
            self._blocked_ms_by_step[checkpoint.step] = checkpoint.blocked_s * 1000

    # --- throughputs ---

    def check_epoch_throughput(self, event: Event, epoch: int | None) -> None:
        """Report what is wrong with an event epoch_throughput: the images, seconds and images/s of an epoch.

        `epoch` is the epoch's number; None if the event states none. An event without this number, or with values that
        are not numbers above 0, is a breach and is not checked further. Otherwise the values must agree with

        - each other: images/s is images over seconds,
        - the sums of the epoch's windows,
        - the time of the epoch by the log's clock, which is compared once the epoch has stopped, and
        - the size of the data set.
        """
        line = event.line
        stated = dataclass_of(schema.EpochThroughput, event.value)
        if epoch is None or stated is None or not _is_positive(stated):
            wanted = "epoch_throughput has images, time_s and images_per_s, numbers above 0"
            self._collector.add_breach(THROUGHPUT_RULE, line, f"epoch_throughput is {printable(event.value)}", wanted)
            return
        self._compare_rate(stated, line)
        self._compare_with_windows(line, epoch, stated)
        self._compare_time_once_epoch_stops(_StatedTime(line=line, epoch=epoch, time_s=stated.time_s))
        self._compare_with_data_set(stated, line)

    def _compare_time_once_epoch_stops(self, stated: _StatedTime) -> None:
        """Compare the stated time of an epoch with the log's clock: now, or at its epoch_stop if the epoch is open.

        At most FINDINGS_PER_RULE times of an open epoch wait for its epoch_stop, because more would not be reported.
        """
        is_epoch_open = self._open_epoch == stated.epoch
        if not is_epoch_open:
            self._compare_time(stated)
        elif len(self._stated_times_of_open_epoch) < FINDINGS_PER_RULE:
            self._stated_times_of_open_epoch.append(stated)

    def _compare_rate(self, stated: schema.EpochThroughput, line: int) -> None:
        """Report a breach if the images/s of an epoch are not its images over its seconds."""
        rate = stated.images / stated.time_s
        if abs(stated.images_per_s - rate) > self._most_clock_difference * rate:
            actual = f"{six_digits(stated.images_per_s)} images/s; its images over its time are {six_digits(rate)}"
            self._collector.add_breach(THROUGHPUT_RULE, line, actual)

    def _compare_with_data_set(self, stated: schema.EpochThroughput, line: int) -> None:
        """Report a breach if the images of an epoch differ from the training samples by more than a global batch.

        Nothing is compared if the log does not state both sizes.
        """
        samples = self._run.stated_count(schema.TRAIN_SAMPLES)
        batch = self._run.stated_count(schema.GLOBAL_BATCH_SIZE)
        if samples and batch and abs(stated.images - samples) > batch:
            images = significant(stated.images, digits=10)
            actual = f"{images} images in an epoch; train_samples is {samples}, the global batch {batch}"
            self._collector.add_breach(THROUGHPUT_RULE, line, actual)

    def _compare_with_windows(self, line: int, epoch: int, stated: schema.EpochThroughput) -> None:
        """Keep a fault for each stated total of an epoch (images, time, waiting) that is not the sum of its windows.

        The seconds may differ by the rounding of the event and of each window.

        If the number of steps per epoch is known, keep a fault, too, if the epoch's last window ends at another step
        than epoch * steps per epoch.
        """
        sums = self._epoch_sums
        rounding_s = _ROUNDING_ERROR_S * (sums.windows + 1)  # of each window and of the event
        for unit, total, sum_of_windows, tolerance in (
            ("images", stated.images, sums.images, 0.0),
            ("s", stated.time_s, sums.time_s, rounding_s),
            ("s of waiting for data", stated.data_wait_s, sums.wait_s, rounding_s),
        ):
            if abs(total - sum_of_windows) > tolerance:
                other_total = f"{significant(sum_of_windows, digits=10)} in its step_windows"
                self.keep_fault(line, f"{significant(total, digits=10)} {unit} in epoch {epoch}, {other_total}")
        planned_last_step = epoch * self._plan.epoch_steps  # 0 if the steps per epoch are not known
        if planned_last_step and self._last_step != planned_last_step:
            self.keep_fault(line, f"epoch {epoch} ends with step {self._last_step}, not {planned_last_step}")

    def _compare_time(self, stated: _StatedTime) -> None:
        """Compare the time that an epoch_throughput states with the training time of its epoch by the log's clock.

        The training time is from epoch_start to epoch_stop, without evaluations.

        - The event is not of the last epoch that ended: a breach.
        - The times agree: nothing.
        - The stated time is longer: a breach.
        - The stated time is shorter: kept for `judge_short_throughputs`, because checkpoints may explain it.
        """
        epoch = stated.epoch
        training_ms = self._last_epoch_training_ms
        if epoch != self._last_epoch or training_ms is None:
            actual = f"a throughput of epoch {epoch}, which is not the last one trained"
            self._collector.add_breach(THROUGHPUT_RULE, stated.line, actual)
            return
        missing_ms = training_ms - stated.time_s * 1000  # below 0: the stated time is longer
        allowed_ms = self._most_difference_ms(training_ms)
        if abs(missing_ms) <= allowed_ms:
            return
        between = f"{training_ms / 1000:.3f} s lie between its epoch_start and epoch_stop"
        actual = f"{stated.time_s:.3f} s for epoch {epoch}; {between}"
        if missing_ms < 0:
            self._collector.add_breach(THROUGHPUT_RULE, stated.line, actual)
        elif len(self._short_throughputs) < EVENTS_KEPT:  # judged at the end: checkpoints may explain it
            unexplained_ms = missing_ms - allowed_ms
            self._short_throughputs.append(_ShortThroughput(stated.line, epoch, unexplained_ms, actual))

    def _check_foreign_throughput(self, event: Event) -> None:
        """Report a breach if a throughput in another submitter's log does not fit the duration of the epoch before it.

        The event's value is taken as images/s: a number, or a table that has it as `throughput` or `imgs_sec`. At that
        rate the data set must take as long as the last epoch trained by the log's clock. Nothing is checked if

        - the event is within an epoch, or no epoch of a time above 0 has ended,
        - the value has another form, or
        - the log does not state train_samples.
        """
        images_per_s = event.value
        if isinstance(images_per_s, dict):  # two forms are known
            images_per_s = images_per_s.get("throughput", images_per_s.get("imgs_sec"))
        images = self._run.stated_count(schema.TRAIN_SAMPLES)
        epoch_ms = self._last_epoch_training_ms
        is_within_epoch = self._open_epoch is not None
        if is_within_epoch or epoch_ms is None or epoch_ms <= 0:
            return
        if not is_number(images_per_s) or not images:
            return

        allowed_ms = self._most_difference_ms(epoch_ms)
        if images_per_s <= 0 or abs(images / images_per_s * 1000 - epoch_ms) > allowed_ms:
            rate_by_clock = images / epoch_ms * 1000
            actual = f"{images_per_s:.6g} images/s; {images} images in {epoch_ms / 1000:.3f} s are {rate_by_clock:.6g}"
            self._collector.add_breach(THROUGHPUT_RULE, event.line, actual)


def _is_positive(stated: schema.EpochThroughput) -> bool:
    """Return whether the images, the seconds and the images/s of a throughput are numbers above 0."""
    return all(is_number(value) and value > 0 for value in (stated.images, stated.time_s, stated.images_per_s))


def _is_possible(window: schema.StepWindow) -> bool:
    """Return whether a window's counts have 63 bits at most, and its loss is not below 0.

    A loss of None is possible: it was not a number.
    """
    is_good_loss = window.loss is None or window.loss >= 0
    return is_good_loss and max(window.steps, window.images) < 2**63
