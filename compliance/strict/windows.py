"""The step windows of a log of ours: they must add up, to each other, to their epoch and to the run's clock."""

from collections.abc import Mapping
from typing import Any

from compliance.findings import FINDINGS_PER_RULE
from compliance.first_values import COUNT, FirstValues, has_type, is_number
from runlog import schema
from runlog.reader import Event, settings_of, table_of
from runlog.text import printable

CLOCK_MS = 2  # two readings of a clock of 1 ms
TIME_TOLERANCE = 0.01  # of a time by the log's own clock
LOSSES_KEPT = 1000  # of a run, to compare it with others
_ROUNDED_S = 1e-6  # times are written with six digits


class Windows:
    """Takes the windows of a run in their order; `faults` is what a log of ours would not hold."""

    def __init__(self, values: FirstValues, headers: Mapping[str, Any]) -> None:
        self._values, self._headers = values, headers
        self.faults: list[tuple[int, str]] = []  # line, what
        self.losses: list[float | None] = []
        self.times_s: list[float] = []
        self.fastest = (0.0, 0)  # images/s of a window, and its line
        self.seen = 0
        self.step = 0  # the last one
        self.images = self.time_s = self.wait_s = 0.0  # since epoch_start, or run_start
        self._count = 0  # since then
        self._since_ms = 0.0
        self.all_images = 0
        self.epoch_steps = 0  # of a whole epoch; 0: the log does not say
        self._batch = self._most_steps = 0
        self._ends: tuple[int, ...] = ()  # steps where the phases of a measurement end

    def fault(self, line: int, what: str) -> None:
        """Keeps what would be wrong if this is a log of ours."""
        if len(self.faults) < FINDINGS_PER_RULE:
            self.faults.append((line, what))

    def start(self, event: Event) -> None:
        """run_start or epoch_start: sums and clock begin."""
        self.images = self.time_s = self.wait_s = 0.0
        self._count, self._since_ms = 0, event.time_ms

    def _begin(self, first_step: Any, steps: Any) -> None:
        configured = settings_of(self._headers.get(schema.CONFIG.name))
        samples, batch = (self._values.of(event).value for event in (schema.TRAIN_SAMPLES, schema.GLOBAL_BATCH_SIZE))
        if has_type(samples, COUNT) and has_type(batch, COUNT):
            self._batch, self.epoch_steps = int(batch), int(samples) // int(batch)
        names = ("PRINT_STEPS", "WARMUP_STEPS", "MEASURED_STEPS")
        self._most_steps, *ends = (configured[name] if type(configured.get(name)) is int else 0 for name in names)
        if configured.get("MODE") == "throughput":
            self._ends = (ends[0], sum(ends))
        summary = self._values.of(schema.RUN_SUMMARY).value
        if isinstance(summary, dict) and summary.get("resumed") and type(first_step) is type(steps) is int:
            self.step = first_step - steps

    def take(self, event: Event, epoch: int | None) -> None:
        """The next window; `epoch` is the one that is open. Where enough is found, no more is looked for."""
        value: Any = event.value if type(event.value) is dict else {}
        where, get = event.metadata, value.get
        steps, images, time_s, wait_s = get("steps"), get("images"), get("time_s"), get("data_wait_s")
        step, loss = where.get("step"), get("loss")
        if not self.seen:
            self._begin(step, steps)
        self.seen += 1
        if len(self.losses) < LOSSES_KEPT:
            self.losses.append(loss if is_number(loss) else None)
            self.times_s.append(time_s if is_number(time_s) else 0.0)
        if len(self.faults) >= FINDINGS_PER_RULE:
            return
        if (
            not (type(steps) is type(images) is type(step) is int and is_number(time_s) and is_number(wait_s))
            or not (loss is None or (is_number(loss) and loss >= 0))
            or table_of(schema.InWindow, where) is None
        ):
            self.fault(event.line, f"a step_window is not as the schema has it: {printable(event.value)}")
            return
        start, self.step = self.step, step
        self._count += 1
        self.images += images
        self.all_images += images
        self.time_s += time_s
        self.wait_s += wait_s
        wanted, phase = self._wanted(start, where["epoch_num"])
        if steps != wanted or step != start + steps or images != steps * self._batch:
            self.fault(event.line, f"a window of {steps} steps, {images} images, to step {step}; {start} was the last")
        elif where["phase"] != phase or where["epoch_num"] != (1 if self._ends else epoch):
            self.fault(event.line, f"a window of phase {printable(where['phase'])} and epoch {where['epoch_num']} here")
        elif not 0 <= wait_s <= time_s + _ROUNDED_S or not time_s > 0:
            self.fault(event.line, f"a window of {time_s} s, of which {wait_s} s waited for data")
        passed_ms = event.time_ms - self._since_ms
        if time_s > 0:
            self.fastest = max(self.fastest, (images / time_s, event.line))
        if self.time_s * 1000 > passed_ms * (1 + TIME_TOLERANCE) + CLOCK_MS:
            self.fault(event.line, f"windows of {self.time_s:.6g} s in the {passed_ms / 1000:.6g} s up to here")

    def ranks(self, event: Event) -> None:
        """The ranks' own times in the window that comes next: least, median and most, and who took most."""
        times = table_of(schema.RankTimes, event.value)
        summary = table_of(schema.RunSummary, self._values.of(schema.RUN_SUMMARY).value)
        if times and summary and max(times.data_wait_rank, times.compute_rank or 0) < summary.devices:
            spreads = (
                [0.0, times.data_wait_least_s, times.data_wait_median_s, times.data_wait_most_s],
                [0.0, times.compute_least_s or 0.0, times.compute_median_s or 0.0, times.compute_most_s or 0.0],
            )
            if all(spread == sorted(spread) for spread in spreads):
                return
        self.fault(event.line, f"no rank_times of this run: {printable(event.value)}")

    def _wanted(self, start: int, epoch: int) -> tuple[int, str]:
        """Steps and phase of the window that begins after step `start`."""
        phase, end = "train", epoch * self.epoch_steps
        if self._ends:
            phase, end = ("warmup", self._ends[0]) if start < self._ends[0] else ("measured", self._ends[1])
        return min(self._most_steps or end, end - start), phase

    def compare(self, event: Event, epoch: int, throughput: schema.EpochThroughput) -> None:
        """An epoch_throughput with the windows of its epoch."""
        for name, one, windows, digits in (
            ("images", throughput.images, self.images, 0.0),
            ("s", throughput.time_s, self.time_s, _ROUNDED_S),
            ("s of waiting for data", throughput.data_wait_s, self.wait_s, _ROUNDED_S),
        ):
            if abs(one - windows) > digits * (self._count + 1):
                self.fault(event.line, f"{one:.10g} {name} in epoch {epoch}, {windows:.10g} in its step_windows")
        if self.epoch_steps and self.step != epoch * self.epoch_steps:
            self.fault(event.line, f"epoch {epoch} ends with step {self.step}, not {epoch * self.epoch_steps}")

    def finish(self, line: int) -> None:
        """The run ended at `line`, with success."""
        if lost := self.losses.count(None):  # a run ends where its loss is no number
            self.fault(line, f"{lost} of the losses of the first {len(self.losses)} step_windows are no numbers")
        if self._ends and self.step != self._ends[1]:
            self.fault(line, f"the run ends with step {self.step}, not {self._ends[1]}")
