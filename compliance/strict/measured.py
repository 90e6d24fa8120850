"""Step windows, throughputs and checkpoints must add up: to each other, to their epoch and to the log's clock."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from compliance.logged_run import EVENTS_KEPT, LoggedRun, is_number
from compliance.rules import FINDINGS_PER_RULE, FindingCollector
from runlog import schema
from runlog.digits import significant, six_digits
from runlog.reader import Event, dataclass_of
from runlog.text import printable

LOSSES_KEPT = 1000  # of a run, to compare it with others
AGREES = "throughput-agrees"
_ROUNDED_S = 1e-6  # times are written with six digits


class Fault(NamedTuple):
    """Something that a log of this project would not hold, and the line to blame; None: no single one."""

    line: int | None
    what: str


class Fastest(NamedTuple):
    """The window with the highest rate."""

    images_per_s: float
    line: int


class _Throughput(NamedTuple):
    """An epoch_throughput whose epoch is still open."""

    line: int
    epoch: int
    time_s: float


class _ShortTime(NamedTuple):
    """A throughput of less time than its epoch took; a checkpoint within the epoch may explain it."""

    line: int
    epoch: int
    missing_ms: float
    actual: str


@dataclass
class _Sums:
    """The windows since epoch_start, or run_start: their number and sums, and when they began."""

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


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The sizes that the steps of a run must have by its settings. 0: the log does not say.

    A step is one update of the weights, of a batch of images. A window is the steps between two lines of progress.
    """

    batch: int = 0
    epoch_steps: int = 0
    window_steps: int = 0  # at most
    warmup_end: int = 0  # the last step of the phase "warmup", in a run that measures the throughput alone
    measured_end: int = 0  # the last step of its phase "measured"

    def next_window(self, start: int, epoch: int) -> "_Window":
        """Return the steps and the phase that a window must have if it begins after step `start` in epoch `epoch`.

        It has `window_steps` steps (without these, all up to the end), unless the epoch ends before. A run that
        measures the throughput alone has two phases in place of epochs, "warmup" and "measured": a window ends where
        its phase does.
        """
        phase = "train"
        end = epoch * self.epoch_steps
        if self.measured_end and start < self.warmup_end:
            phase = "warmup"
            end = self.warmup_end
        elif self.measured_end:
            phase = "measured"
            end = self.measured_end
        most_steps = self.window_steps or end
        return _Window(steps=min(most_steps, end - start), phase=phase)


class _Window(NamedTuple):
    """The steps and the phase that a window must have."""

    steps: int
    phase: str


def _plan_of_run(run: LoggedRun) -> _Plan:
    """Return the plan of a run, by the settings in its log's header and the events train_samples and global_batch_size.

    Without both events the batch and the steps of an epoch are 0. Only a run of MODE=throughput has the two ends of
    its phases.
    """
    samples = int(run.stated_count(schema.TRAIN_SAMPLES))
    batch = int(run.stated_count(schema.GLOBAL_BATCH_SIZE))
    epoch_steps = 0
    if samples > 0 and batch > 0:
        epoch_steps = samples // batch
    else:
        batch = 0
    warmup_end = 0
    measured_end = 0
    if run.settings.get("MODE") == "throughput":
        warmup_end = _whole_number_or_0(run.settings.get("WARMUP_STEPS"))
        measured_end = warmup_end + _whole_number_or_0(run.settings.get("MEASURED_STEPS"))
    return _Plan(
        batch=batch,
        epoch_steps=epoch_steps,
        window_steps=_whole_number_or_0(run.settings.get("PRINT_STEPS")),
        warmup_end=warmup_end,
        measured_end=measured_end,
    )


class Measured:
    """Takes windows, throughputs and checkpoints in their order, and each epoch's start and stop.

    `faults` are contradictions that a log of this project cannot hold; it stops after FINDINGS_PER_RULE.
    """

    def __init__(self, run: LoggedRun, collector: FindingCollector) -> None:
        self.faults: list[Fault] = []
        self.fastest = Fastest(images_per_s=0.0, line=0)
        self.all_images = 0
        self._run = run
        self._collector = collector
        self._plan = _Plan()
        self._epoch_sums = _Sums()
        self._last_step = 0  # where the last window ended
        self._open_epoch: int | None = None
        self._last_epoch: int | None = None
        self._last_epoch_ms: float | None = None  # its time less evaluation
        self._throughputs_of_open_epoch: list[_Throughput] = []
        self._blocked_ms_by_step: dict[int, float] = {}  # step: what training waited for it in ms
        self._short_throughputs: list[_ShortTime] = []
        self._handlers: dict[str, Callable[[Event], None]] = {
            schema.STEP_WINDOW.key: self._check_step_window,
            schema.RANK_TIMES.key: self._check_rank_times,
            schema.CHECKPOINT.key: self._keep_checkpoint,
            "throughput": self._check_throughput_of_others,
            "tracked_stats": self._check_throughput_of_others,
        }

    def take(self, event: Event) -> None:
        """Take the next event, of any key but epoch_throughput."""
        handle = self._handlers.get(event.key)
        if handle is not None:
            handle(event)

    def keep_fault(self, line: int | None, what: str) -> None:
        """Keep what would be wrong if this is a log of this project."""
        if len(self.faults) < FINDINGS_PER_RULE:
            self.faults.append(Fault(line, what))

    # --- the run and its epochs ---

    def run_starts(self, event: Event) -> None:
        """Begin sums and clock at run_start, or at an epoch's start."""
        self._epoch_sums = _Sums(since_ms=event.time_ms)

    def epoch_starts(self, event: Event, number: int | None) -> None:
        """Begin an epoch."""
        self._open_epoch = number
        self.run_starts(event)

    def epoch_stops(self, number: int | None, trained_ms: float) -> None:
        """End an epoch that trained for so long, less evaluation."""
        self._open_epoch = None
        self._last_epoch = number
        self._last_epoch_ms = trained_ms
        for throughput in self._throughputs_of_open_epoch:
            self._compare_time(throughput)
        self._throughputs_of_open_epoch.clear()

    def check_success(self, line: int) -> None:
        """Check what a run that ended with success at `line` must have."""
        lost = self._run.losses.count(None)
        if lost:  # a run ends where its loss is no number
            first = f"of the first {len(self._run.losses)} step_windows"
            self.keep_fault(line, f"{lost} of the losses {first} are no numbers")
        end = self._plan.measured_end
        if end and self._last_step != end:
            self.keep_fault(line, f"the run ends with step {self._last_step}, not {end}")

    def judge_short_throughputs(self) -> None:
        """Collect the throughputs whose time is too short for their epoch. Call it once the log has ended.

        The time that training waited for a checkpoint within the epoch is no part of the throughput, so it may be
        missing. This can be judged at the end only, as the event of a checkpoint may come after that of the epoch's
        end.
        """
        for short in self._short_throughputs:
            step_before = (short.epoch - 1) * self._plan.epoch_steps
            last_step = short.epoch * self._plan.epoch_steps
            waited_ms = 0.0
            for step, blocked_ms in self._blocked_ms_by_step.items():
                if step_before < step < last_step:  # a checkpoint of the last step is written after the epoch
                    waited_ms += blocked_ms
            if short.missing_ms > waited_ms:
                self._collector.add_breach(AGREES, short.line, short.actual)

    # --- step windows ---

    def _make_plan(self, position: schema.InWindow, window: schema.StepWindow) -> None:
        """Make the plan at the first window, when the settings are known; a resumed run begins after another step."""
        self._plan = _plan_of_run(self._run)
        summary = self._run.summary
        if summary is not None and summary.resumed:
            self._last_step = position.step - window.steps

    def _check_step_window(self, event: Event) -> None:
        """Compare a window, the steps between two lines of progress, with the run's plan and with the log's clock.

        Its loss and its time are kept, to compare the run with others; its images and seconds are added to the sums of
        its epoch; and the window with the most images/s is remembered. The first window makes the plan. An event that
        is not as the schema has it is a fault. Nothing more is compared once there are as many faults as are kept.
        """
        window = dataclass_of(schema.StepWindow, event.value)
        position = dataclass_of(schema.InWindow, event.metadata)
        if len(self._run.losses) < LOSSES_KEPT:
            self._run.losses.append(window.loss if window else None)
            self._run.keep_interval(event.key, window.time_s if window else 0.0)
        if window is None or position is None or not _is_possible(window):
            self.keep_fault(event.line, f"a step_window is not as the schema has it: {printable(event.value)}")
            return
        if self._run.number_of_events(schema.STEP_WINDOW) == 1:  # the run has counted this one already
            self._make_plan(position, window)
        if len(self.faults) >= FINDINGS_PER_RULE:
            return
        previous_step = self._last_step
        self._last_step = position.step
        self.all_images += window.images
        self._epoch_sums.add(window)
        self._compare_window(event.line, window, position, previous_step)
        self._compare_clock(event)
        if window.time_s > 0:
            self.fastest = max(self.fastest, Fastest(images_per_s=window.images / window.time_s, line=event.line))

    def _compare_window(
        self, line: int, window: schema.StepWindow, position: schema.InWindow, previous_step: int
    ) -> None:
        """Compare the window of `line` with the one that the plan has after `previous_step`, where the last one ended.

        It must have the planned number of steps, a global batch of images in each, and the planned phase and epoch. It
        must have taken some time, and cannot have waited for data for longer. The first difference is kept as a fault.
        """
        steps = window.steps
        wait_s = window.data_wait_s
        wanted = self._plan.next_window(previous_step, position.epoch_num)
        wanted_epoch = self._open_epoch
        if self._plan.measured_end:
            wanted_epoch = 1  # as a run that measures the throughput alone has no epochs
        if steps != wanted.steps or position.step != previous_step + steps or window.images != steps * self._plan.batch:
            done = f"{steps} steps, {window.images} images"
            self.keep_fault(line, f"a window of {done}, to step {position.step}; {previous_step} was the last")
        elif position.phase != wanted.phase or position.epoch_num != wanted_epoch:
            self.keep_fault(line, f"a window of phase {printable(position.phase)} and epoch {position.epoch_num} here")
        elif not 0 <= wait_s <= window.time_s + _ROUNDED_S or not window.time_s > 0:
            self.keep_fault(line, f"a window of {window.time_s} s, of which {wait_s} s waited for data")

    def _compare_clock(self, event: Event) -> None:
        """Compare the sum of the windows' times with the time that has passed since the epoch's start."""
        passed_ms = event.time_ms - self._epoch_sums.since_ms
        windows_s = self._epoch_sums.time_s
        if windows_s * 1000 > passed_ms * (1 + self._clock_share) + self._run.clock_tolerance_ms:
            self.keep_fault(
                event.line, f"windows of {six_digits(windows_s)} s in the {six_digits(passed_ms / 1000)} s up to here"
            )

    @property
    def _clock_share(self) -> float:
        """The part of a time by which the log's clock may differ from it."""
        return self._collector.strict_rules[AGREES].bounds["share"]

    def _check_rank_times(self, event: Event) -> None:
        """Keep a fault if an event rank_times cannot be of this run.

        It has the least, the median and the most time that the ranks waited for data, and that they computed. These
        must be in that order, and the rank that took most must be one of the run's. Times of computing may be missing.
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

    def _keep_checkpoint(self, event: Event) -> None:
        """Keep how long training waited for a checkpoint; it must be of a step that was done."""
        checkpoint = dataclass_of(schema.Checkpoint, event.value)
        if checkpoint is None or not 0 < checkpoint.step <= self._last_step:
            self.keep_fault(event.line, f"no checkpoint of a step that was done: {printable(event.value)}")
        elif len(self._blocked_ms_by_step) < EVENTS_KEPT:
            self._blocked_ms_by_step[checkpoint.step] = checkpoint.blocked_s * 1000

    # --- throughputs ---

    def check_epoch_throughput(self, event: Event, number: int | None) -> None:
        """Collect what contradicts the images, seconds and images/s that a log of this project states of an epoch.

        They must agree with each other, with the sums of the epoch's windows, with the log's clock and with the size of
        the data set. `number` is the epoch's. None, where the log has no number, is a breach, and so are values that
        are not numbers above 0. An event before the epoch's end is compared with the clock when the epoch stops.
        """
        line = event.line
        stated = dataclass_of(schema.EpochThroughput, event.value)
        if number is None or stated is None or not _is_positive(stated):
            wanted = "epoch_throughput has images, time_s and images_per_s, numbers above 0"
            self._collector.add_breach(AGREES, line, f"epoch_throughput is {printable(event.value)}", wanted)
            return
        self._compare_rate(stated, line)
        self._compare_sums(line, number, stated)

        throughput = _Throughput(line=line, epoch=number, time_s=stated.time_s)
        is_epoch_open = self._open_epoch == number
        if not is_epoch_open:
            self._compare_time(throughput)
        elif len(self._throughputs_of_open_epoch) < FINDINGS_PER_RULE:
            self._throughputs_of_open_epoch.append(throughput)
        self._compare_with_data_set(stated, line)

    def _compare_rate(self, stated: schema.EpochThroughput, line: int) -> None:
        """Compare the images/s of an epoch with its images over its seconds."""
        rate = stated.images / stated.time_s
        if abs(stated.images_per_s - rate) > self._clock_share * rate:
            actual = f"{six_digits(stated.images_per_s)} images/s; its images over its time are {six_digits(rate)}"
            self._collector.add_breach(AGREES, line, actual)

    def _compare_with_data_set(self, stated: schema.EpochThroughput, line: int) -> None:
        """Compare the images of an epoch with the samples of the data set: less than a batch may be left over."""
        samples = self._run.stated_count(schema.TRAIN_SAMPLES)
        batch = self._run.stated_count(schema.GLOBAL_BATCH_SIZE)
        if samples and batch and abs(stated.images - samples) > batch:
            images = significant(stated.images, digits=10)
            actual = f"{images} images in an epoch; train_samples is {samples}, the global batch {batch}"
            self._collector.add_breach(AGREES, line, actual)

    def _compare_sums(self, line: int, number: int, stated: schema.EpochThroughput) -> None:
        """Compare what an event states of epoch `number` with the sums of its windows, and its last step with the plan.

        Each difference is kept as a fault. Seconds may differ by what rounding makes, as the event and each window have
        been rounded to six digits.
        """
        sums = self._epoch_sums
        rounding_s = _ROUNDED_S * (sums.windows + 1)
        for unit, value, sum_of_windows, tolerance in (
            ("images", stated.images, sums.images, 0.0),
            ("s", stated.time_s, sums.time_s, rounding_s),
            ("s of waiting for data", stated.data_wait_s, sums.wait_s, rounding_s),
        ):
            if abs(value - sum_of_windows) > tolerance:
                by_windows = f"{significant(sum_of_windows, digits=10)} in its step_windows"
                self.keep_fault(line, f"{significant(value, digits=10)} {unit} in epoch {number}, {by_windows}")
        planned_step = number * self._plan.epoch_steps
        if planned_step and self._last_step != planned_step:
            self.keep_fault(line, f"epoch {number} ends with step {self._last_step}, not {planned_step}")

    def _compare_time(self, throughput: _Throughput) -> None:
        """Compare the time of a throughput with that between its epoch's start and stop, less evaluation.

        A longer time is a breach, and so is a throughput of another epoch than the last one that ended. A shorter time
        is kept until the log's end, as a checkpoint may explain it.
        """
        epoch = throughput.epoch
        epoch_ms = self._last_epoch_ms
        if epoch != self._last_epoch or epoch_ms is None:
            actual = f"a throughput of epoch {epoch}, which is not the last one trained"
            self._collector.add_breach(AGREES, throughput.line, actual)
            return
        missing_ms = epoch_ms - throughput.time_s * 1000
        allowed_ms = self._clock_share * epoch_ms + self._run.clock_tolerance_ms
        if abs(missing_ms) <= allowed_ms:
            return
        between = f"{epoch_ms / 1000:.3f} s lie between its epoch_start and epoch_stop"
        actual = f"{throughput.time_s:.3f} s for epoch {epoch}; {between}"
        if missing_ms < 0:
            self._collector.add_breach(AGREES, throughput.line, actual)
        elif len(self._short_throughputs) < EVENTS_KEPT:
            self._short_throughputs.append(_ShortTime(throughput.line, epoch, missing_ms - allowed_ms, actual))

    def _check_throughput_of_others(self, event: Event) -> None:
        """Collect a throughput in another submitter's log that the time of the epoch before it contradicts.

        The event's value is taken as images/s over the whole data set: a number, or a table that has it as `throughput`
        or `imgs_sec`. At that rate the data set must take as long as the last epoch did by the log's clock, within a
        tolerance. Nothing is compared for a value of another form, for an event within an epoch or before the first one
        has ended, and where the log does not state the size of the data set.
        """
        images_per_s = event.value
        if isinstance(images_per_s, dict):
            images_per_s = images_per_s.get("throughput", images_per_s.get("imgs_sec"))
        images = self._run.stated_count(schema.TRAIN_SAMPLES)
        epoch_ms = self._last_epoch_ms
        is_within_epoch = self._open_epoch is not None
        if is_within_epoch or epoch_ms is None or epoch_ms <= 0:
            return
        if not is_number(images_per_s) or not images:
            return

        allowed_ms = self._clock_share * epoch_ms + self._run.clock_tolerance_ms
        if images_per_s <= 0 or abs(images / images_per_s * 1000 - epoch_ms) > allowed_ms:
            rate_by_clock = images / epoch_ms * 1000
            actual = f"{images_per_s:.6g} images/s; {images} images in {epoch_ms / 1000:.3f} s are {rate_by_clock:.6g}"
            self._collector.add_breach(AGREES, event.line, actual)


def _whole_number_or_0(setting: Any) -> int:
    """Return a setting that is a whole number; 0 for any other."""
    return setting if type(setting) is int else 0


def _is_positive(stated: schema.EpochThroughput) -> bool:
    """Return whether the images, the seconds and the images/s of a throughput are numbers above 0."""
    return all(is_number(value) and value > 0 for value in (stated.images, stated.time_s, stated.images_per_s))


def _is_possible(window: schema.StepWindow) -> bool:
    """Return whether a window's counts and loss are numbers that it can have; JSON's integers have no bound."""
    is_good_loss = window.loss is None or window.loss >= 0
    return is_good_loss and max(window.steps, window.images) < 2**63
