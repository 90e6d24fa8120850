"""The throughputs of a run: what its step windows and epochs say of images and time, beside its clock."""

import math
from collections.abc import Callable
from typing import Any

from compliance.findings import FINDINGS_PER_RULE, Collected
from compliance.first_values import COUNT, FirstValues, has_type, is_number
from compliance.strict.windows import CLOCK_MS, TIME_TOLERANCE, Windows
from runlog import schema
from runlog.reader import Event, table_of
from runlog.text import printable

EVENTS_KEPT = 100_000  # of a kind of them: 15 MB


class Throughputs:
    """Takes them in their order, and each epoch's start and stop."""

    def __init__(self, values: FirstValues, collected: Collected, windows: Windows) -> None:
        self.values, self.collected, self.windows = values, collected, windows
        self._epoch: int | None = None  # the open one
        self._last_epoch: int | None = None
        self._last_epoch_ms: float | None = None  # its time less evaluation
        self._of_open: list[tuple[Event, int, float]] = []  # throughputs, their epoch and seconds
        self._measured = 0  # epoch_throughput, which only we log
        self._measured_before = 0  # the last epoch_start
        self._ended: tuple[int, int] | None = None  # the last epoch that ended, and the line of its start
        self._checkpoints: dict[int, float] = {}  # step, and what training waited for it in ms
        self._short: list[tuple[int, int, float, str]] = []  # line, epoch, ms no window has, words

    def _breach(self, rule: str, event: Event, actual: str, *parts: Any) -> None:
        self.collected.breach(rule, event.line, actual.format(*parts))

    def epoch_starts(self, event: Event, number: int) -> None:
        """An epoch starts."""
        self.was_measured()
        self._epoch, self._measured_before = number, self._measured
        self.windows.start(event)

    def epoch_stops(self, number: int, start_line: int, trained_ms: float) -> None:
        """It stops, after so much time less evaluation."""
        self._epoch, self._last_epoch, self._last_epoch_ms = None, number, trained_ms
        self._ended = number, start_line
        for throughput in self._of_open:
            self._compare_throughput(*throughput)
        self._of_open.clear()

    def was_measured(self) -> None:
        """The epoch that ended has its epoch_throughput, before or after its epoch_stop."""
        if self._ended and self._measured == self._measured_before:
            number, line = self._ended
            self.windows.fault(line, f"no epoch_throughput of epoch {number}")
        self._ended = None

    def _step_window(self, event: Event) -> None:
        self.windows.take(event, self._epoch)

    def _rank_times(self, event: Event) -> None:
        self.windows.ranks(event)

    def _checkpoint(self, event: Event) -> None:
        checkpoint = table_of(schema.Checkpoint, event.value)
        if checkpoint is None or not 0 < checkpoint.step <= self.windows.step:
            self.windows.fault(event.line, f"no checkpoint of a step that was done: {printable(event.value)}")
        elif len(self._checkpoints) < EVENTS_KEPT:
            self._checkpoints[checkpoint.step] = checkpoint.blocked_s * 1000

    def _epoch_throughput(self, event: Event) -> None:
        self._measured += 1
        number = number_of_epochs("throughput-agrees", event, "epoch_num", self.collected)
        if number is None:
            return
        throughput = table_of(schema.EpochThroughput, event.value)
        if throughput is None or not all(
            is_number(n) and n > 0 for n in (throughput.images, throughput.time_s, throughput.images_per_s)
        ):
            wanted = "epoch_throughput has images, time_s and images_per_s, numbers above 0"
            self.collected.breach(
                "throughput-agrees", event.line, f"epoch_throughput is {printable(event.value)}", wanted
            )
            return
        rate = throughput.images / throughput.time_s
        if abs(throughput.images_per_s - rate) > TIME_TOLERANCE * rate:
            actual = "{:.6g} images/s; its images over its time are {:.6g}"
            self._breach("throughput-agrees", event, actual, throughput.images_per_s, rate)
        self.windows.compare(event, number, throughput)
        if self._epoch == number:
            if len(self._of_open) < FINDINGS_PER_RULE:
                self._of_open.append((event, number, throughput.time_s))
        else:
            self._compare_throughput(event, number, throughput.time_s)
        self._check_images(event, throughput.images)

    def _compare_throughput(self, event: Event, number: int, time_s: float) -> None:
        if number != self._last_epoch or self._last_epoch_ms is None:
            self._breach(
                "throughput-agrees", event, "a throughput of epoch {}, which is not the last one trained", number
            )
            return
        missing_ms = self._last_epoch_ms - time_s * 1000
        if abs(missing_ms) > (allowed_ms := TIME_TOLERANCE * self._last_epoch_ms + CLOCK_MS):
            between = f"{self._last_epoch_ms / 1000:.3f} s lie between its epoch_start and epoch_stop"
            actual = f"{time_s:.3f} s for epoch {number}; {between}"
            if missing_ms < 0:
                self._breach("throughput-agrees", event, actual)
            elif len(self._short) < EVENTS_KEPT:
                self._short.append((event.line, number, missing_ms - allowed_ms, actual))

    def finish(self) -> None:
        """The log has ended: a checkpoint within an epoch, whose event may come later, is no time of its windows."""
        steps = self.windows.epoch_steps
        for line, epoch, missing_ms, actual in self._short:
            inside = range((epoch - 1) * steps + 1, epoch * steps)
            if missing_ms > sum(ms for step, ms in self._checkpoints.items() if step in inside):
                self.collected.breach("throughput-agrees", line, actual)

    def _check_images(self, event: Event, images: float) -> None:
        samples, batch = (self.values.of(point).value for point in (schema.TRAIN_SAMPLES, schema.GLOBAL_BATCH_SIZE))
        if has_type(samples, COUNT) and has_type(batch, COUNT) and abs(images - samples) > batch:
            actual = "{:.10g} images in an epoch; train_samples is {}, the global batch {}"
            self._breach("epoch-images", event, actual, images, samples, batch)

    def _throughput(self, event: Event) -> None:
        """Other submitters' throughput of the epoch that just ended: images/s over the whole data set."""
        value = event.value
        if isinstance(value, dict):
            value = value.get("throughput", value.get("imgs_sec"))
        samples = self.values.of(schema.TRAIN_SAMPLES).value
        if not is_number(value) or not has_type(samples, COUNT) or self._epoch is not None or not self._last_epoch_ms:
            return
        rate = samples / self._last_epoch_ms * 1000
        off_ms = abs(samples / value * 1000 - self._last_epoch_ms) if value > 0 else math.inf
        tick_ms = CLOCK_MS if self._last_epoch_ms % 1000 else 1000  # some log whole seconds
        if self._last_epoch_ms > 0 and off_ms > TIME_TOLERANCE * self._last_epoch_ms + tick_ms:
            actual = "{:.6g} images/s; {} images in {:.3f} s are {:.6g}"
            self._breach("throughput-agrees", event, actual, value, samples, self._last_epoch_ms / 1000, rate)


def number_of_epochs(rule: str, event: Event, name: str, collected: Collected) -> int | None:
    """A number of epochs in the metadata of `event`; None, and a breach of `rule`, where it is none."""
    value: Any = event.metadata.get(name)
    if is_number(value) and 0 <= value < 2**31 and value == int(value):  # others write 39.0
        return int(value)
    wanted = f"{event.key} has {name}, a whole number"
    collected.breach(rule, event.line, f"{event.key} has {name} {printable(value)}", wanted)
    return None


HANDLERS: dict[str, Callable[[Throughputs, Event], None]] = {
    "throughput": Throughputs._throughput,
    "tracked_stats": Throughputs._throughput,
    schema.STEP_WINDOW.key: Throughputs._step_window,
    schema.RANK_TIMES.key: Throughputs._rank_times,
    schema.CHECKPOINT.key: Throughputs._checkpoint,
    schema.EPOCH_THROUGHPUT.key: Throughputs._epoch_throughput,
}
