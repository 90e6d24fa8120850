"""What a run measured: its step windows and throughputs must add up, to each other, their epoch and the log's clock."""

import math
from collections.abc import Iterator
from typing import Any

from compliance.logged_run import EVENTS_KEPT, LoggedRun, is_number
from compliance.rules import FINDINGS_PER_RULE, Collected
from runlog import schema
from runlog.reader import Event, table_of
from runlog.text import printable

CLOCK_MS = 2  # two readings of a clock of 1 ms
TIME_TOLERANCE = 0.01  # of a time by the log's own clock
LOSSES_KEPT = 1000  # of a run, to compare it with others
OWN = "own-log"  # broken only where the log has what only this project writes
Wrong = Iterator[tuple[str, ...]]  # the rule that an event breaks, and how; and what is expected, if not as ever
_ROUNDED_S = 1e-6  # times are written with six digits


class Measured:
    """Takes windows, throughputs and checkpoints in their order, and each epoch's start and stop.

    `faults` is what a log of ours would not hold. Where enough is found, no more is looked for.
    """

    def __init__(self, run: LoggedRun, collected: Collected) -> None:
        self._run, self._collected = run, collected
        self.faults: list[tuple[int, str]] = []  # line, what
        self.fastest = (0.0, 0)  # images/s of a window, and its line
        self.all_images = 0
        self._step = 0  # of the last window
        self._images = self._time_s = self._wait_s = 0.0  # of the windows since epoch_start, or run_start
        self._count = 0  # since then
        self._since_ms = 0.0
        self._epoch_steps = 0  # of a whole epoch; 0: the log does not say
        self._batch = self._most_steps = 0
        self._ends: tuple[int, ...] = ()  # steps where the phases of a measurement end
        self._epoch: int | None = None  # the open one
        self._last_epoch: int | None = None
        self._last_epoch_ms: float | None = None  # its time less evaluation
        self._of_open: list[tuple[int, int, float]] = []  # line, epoch and seconds of throughputs
        self._measured_before = 0  # epoch_throughput, which only we log, before the last epoch_start
        self._ended: tuple[int, int] | None = None  # the last epoch that ended, and the line of its start
        self._checkpoints: dict[int, float] = {}  # step, and what training waited for it in ms
        self._short: list[tuple[int, int, float, str]] = []  # line, epoch, ms no window has, words

    def fault(self, line: int, what: str) -> None:
        """Keeps what would be wrong if this is a log of ours."""
        if len(self.faults) < FINDINGS_PER_RULE:
            self.faults.append((line, what))

    # --- the run and its epochs ---

    def run_starts(self, event: Event) -> None:
        """Sums and clock begin, here and at an epoch's start."""
        self._images = self._time_s = self._wait_s = 0.0
        self._count, self._since_ms = 0, event.time_ms

    def epoch_starts(self, event: Event, number: int) -> None:
        self.was_measured()
        self._epoch, self._measured_before = number, self._run.number(schema.EPOCH_THROUGHPUT)
        self.run_starts(event)

    def epoch_stops(self, number: int, start_line: int, trained_ms: float) -> None:
        """It stops, after so much time less evaluation."""
        self._epoch, self._last_epoch, self._last_epoch_ms = None, number, trained_ms
        self._ended = number, start_line
        for throughput in self._of_open:
            self._compare_time(*throughput)
        self._of_open.clear()

    def was_measured(self) -> None:
        """The epoch that ended has its epoch_throughput, before or after its epoch_stop."""
        if self._ended and self._run.number(schema.EPOCH_THROUGHPUT) == self._measured_before:
            number, line = self._ended
            self.fault(line, f"no epoch_throughput of epoch {number}")
        self._ended = None

    def succeeds(self, line: int) -> None:
        """The run ended at `line`, with success."""
        if lost := self._run.losses.count(None):  # a run ends where its loss is no number
            self.fault(line, f"{lost} of the losses of the first {len(self._run.losses)} step_windows are no numbers")
        if self._ends and self._step != self._ends[1]:
            self.fault(line, f"the run ends with step {self._step}, not {self._ends[1]}")

    def finish(self) -> None:
        """The log has ended: a checkpoint within an epoch, whose event may come later, is no time of its windows."""
        for line, epoch, missing_ms, actual in self._short:
            inside = range((epoch - 1) * self._epoch_steps + 1, epoch * self._epoch_steps)
            if missing_ms > sum(ms for step, ms in self._checkpoints.items() if step in inside):
                self._collected.breach("throughput-agrees", line, actual)

    # --- step windows ---

    def _begin(self, first_step: Any, steps: Any) -> None:
        configured = self._run.settings
        samples, batch = map(self._run.count, (schema.TRAIN_SAMPLES, schema.GLOBAL_BATCH_SIZE))
        if samples and batch:
            self._batch, self._epoch_steps = int(batch), int(samples) // int(batch)
        names = ("PRINT_STEPS", "WARMUP_STEPS", "MEASURED_STEPS")
        self._most_steps, *ends = (configured[name] if type(configured.get(name)) is int else 0 for name in names)
        if configured.get("MODE") == "throughput":
            self._ends = (ends[0], sum(ends))
        summary = self._run.of(schema.RUN_SUMMARY).value
        if isinstance(summary, dict) and summary.get("resumed") and type(first_step) is type(steps) is int:
            self._step = first_step - steps

    def step_window(self, event: Event) -> Wrong:
        value: Any = event.value if type(event.value) is dict else {}
        where, get = event.metadata, value.get
        steps, images, time_s, wait_s = get("steps"), get("images"), get("time_s"), get("data_wait_s")
        step, loss = where.get("step"), get("loss")
        if self._run.number(schema.STEP_WINDOW) == 1:
            self._begin(step, steps)
        if len(self._run.losses) < LOSSES_KEPT:
            self._run.losses.append(loss if is_number(loss) else None)
            self._run.took(event.key, time_s if is_number(time_s) else 0.0)
        if len(self.faults) >= FINDINGS_PER_RULE:
            return
        if (
            not (type(steps) is type(images) is type(step) is int)
            or not all(map(is_number, (steps, images, step, time_s, wait_s)))
            or not (loss is None or (is_number(loss) and loss >= 0))
            or table_of(schema.InWindow, where) is None
        ):
            yield OWN, f"a step_window is not as the schema has it: {printable(event.value)}"
            return
        start, self._step = self._step, step
        self._count += 1
        self._images += images
        self.all_images += images
        self._time_s += time_s
        self._wait_s += wait_s
        wanted, phase = self._wanted(start, where["epoch_num"])
        if steps != wanted or step != start + steps or images != steps * self._batch:
            yield OWN, f"a window of {steps} steps, {images} images, to step {step}; {start} was the last"
        elif where["phase"] != phase or where["epoch_num"] != (1 if self._ends else self._epoch):
            yield OWN, f"a window of phase {printable(where['phase'])} and epoch {where['epoch_num']} here"
        elif not 0 <= wait_s <= time_s + _ROUNDED_S or not time_s > 0:
            yield OWN, f"a window of {time_s} s, of which {wait_s} s waited for data"
        passed_ms = event.time_ms - self._since_ms
        if time_s > 0:
            self.fastest = max(self.fastest, (images / time_s, event.line))
        if self._time_s * 1000 > passed_ms * (1 + TIME_TOLERANCE) + CLOCK_MS:
            yield OWN, f"windows of {self._time_s:.6g} s in the {passed_ms / 1000:.6g} s up to here"

    def _wanted(self, start: int, epoch: int) -> tuple[int, str]:
        """Steps and phase of the window that begins after step `start`."""
        phase, end = "train", epoch * self._epoch_steps
        if self._ends:
            phase, end = ("warmup", self._ends[0]) if start < self._ends[0] else ("measured", self._ends[1])
        return min(self._most_steps or end, end - start), phase

    def rank_times(self, event: Event) -> Wrong:
        """The ranks' own times in the window that comes next: least, median and most, and who took most."""
        times, summary = table_of(schema.RankTimes, event.value), self._run.summary
        if times and summary and max(times.data_wait_rank, times.compute_rank or 0) < summary.devices:
            waited = [0.0, times.data_wait_least_s, times.data_wait_median_s, times.data_wait_most_s]
            computed = [0.0, *(s or 0.0 for s in (times.compute_least_s, times.compute_median_s, times.compute_most_s))]
            if waited == sorted(waited) and computed == sorted(computed):
                return
        yield OWN, f"no rank_times of this run: {printable(event.value)}"

    def checkpoint(self, event: Event) -> Wrong:
        checkpoint = table_of(schema.Checkpoint, event.value)
        if checkpoint is None or not 0 < checkpoint.step <= self._step:
            yield OWN, f"no checkpoint of a step that was done: {printable(event.value)}"
        elif len(self._checkpoints) < EVENTS_KEPT:
            self._checkpoints[checkpoint.step] = checkpoint.blocked_s * 1000

    # --- throughputs ---

    def epoch_throughput(self, event: Event, number: int) -> Wrong:
        said = table_of(schema.EpochThroughput, event.value)
        if said is None or not all(is_number(n) and n > 0 for n in (said.images, said.time_s, said.images_per_s)):
            wanted = "epoch_throughput has images, time_s and images_per_s, numbers above 0"
            yield "throughput-agrees", f"epoch_throughput is {printable(event.value)}", wanted
            return
        rate = said.images / said.time_s
        if abs(said.images_per_s - rate) > TIME_TOLERANCE * rate:
            actual = f"{said.images_per_s:.6g} images/s; its images over its time are {rate:.6g}"
            yield "throughput-agrees", actual
        for name, one, windows, digits in (
            ("images", said.images, self._images, 0.0),
            ("s", said.time_s, self._time_s, _ROUNDED_S),
            ("s of waiting for data", said.data_wait_s, self._wait_s, _ROUNDED_S),
        ):
            if abs(one - windows) > digits * (self._count + 1):
                yield OWN, f"{one:.10g} {name} in epoch {number}, {windows:.10g} in its step_windows"
        if self._epoch_steps and self._step != number * self._epoch_steps:
            yield OWN, f"epoch {number} ends with step {self._step}, not {number * self._epoch_steps}"
        if self._epoch != number:
            self._compare_time(event.line, number, said.time_s)
        elif len(self._of_open) < FINDINGS_PER_RULE:
            self._of_open.append((event.line, number, said.time_s))
        samples, batch = map(self._run.count, (schema.TRAIN_SAMPLES, schema.GLOBAL_BATCH_SIZE))
        if samples and batch and abs(said.images - samples) > batch:
            actual = f"{said.images:.10g} images in an epoch; train_samples is {samples}, the global batch {batch}"
            yield "epoch-images", actual

    def _compare_time(self, line: int, number: int, time_s: float) -> None:
        if number != self._last_epoch or self._last_epoch_ms is None:
            actual = f"a throughput of epoch {number}, which is not the last one trained"
            self._collected.breach("throughput-agrees", line, actual)
            return
        missing_ms = self._last_epoch_ms - time_s * 1000
        if abs(missing_ms) > (allowed_ms := TIME_TOLERANCE * self._last_epoch_ms + CLOCK_MS):
            between = f"{self._last_epoch_ms / 1000:.3f} s lie between its epoch_start and epoch_stop"
            actual = f"{time_s:.3f} s for epoch {number}; {between}"
            if missing_ms < 0:
                self._collected.breach("throughput-agrees", line, actual)
            elif len(self._short) < EVENTS_KEPT:
                self._short.append((line, number, missing_ms - allowed_ms, actual))

    def throughput(self, event: Event) -> Wrong:
        """Other submitters' throughput of the epoch that just ended: images/s over the whole data set."""
        value = event.value
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        samples = self._run.count(schema.TRAIN_SAMPLES)
        if not is_number(value) or not samples or self._epoch is not None or not self._last_epoch_ms:
            return
        rate, took_s = samples / self._last_epoch_ms * 1000, self._last_epoch_ms / 1000
        off_ms = abs(samples / value * 1000 - self._last_epoch_ms) if value > 0 else math.inf
        tick_ms = CLOCK_MS if self._last_epoch_ms % 1000 else 1000  # some log whole seconds
        if self._last_epoch_ms > 0 and off_ms > TIME_TOLERANCE * self._last_epoch_ms + tick_ms:
            yield "throughput-agrees", f"{value:.6g} images/s; {samples} images in {took_s:.3f} s are {rate:.6g}"

    tracked_stats = throughput
