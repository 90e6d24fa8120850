"""MLLOG logs: our own (`step_window`, `run_summary`) and those of any MLPerf submission.

A log without `step_window` gives one window per epoch, from epoch_start to epoch_stop, with `train_samples` images. If
it logs no epochs, it gives one window per block of epochs, from block_start to the block's evaluation or block_stop;
several evaluations divide a block into stretches of training.

No MLPerf rule asks for throughput: `throughput` and `tracked_stats` are what submitters print. Images are read only of
ResNet: samples of the other benchmarks are sentences, clicks or volumes, and SSD's `train_samples` counts batches.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from runlog import run, schema
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.reader import Entry, Event, Header, Problem, other_format, read_stream
from runlog.run import NO_DATE, Mark, Run, is_date_of_run, real
from runlog.text import printable
from scoring.importers.checks import check_rates_against_blocks
from scoring.importers.gaps import lost_steps
from scoring.importers.lines import Lines
from scoring.importers.mllog_blocks import stretches_of_blocks
from scoring.importers.mllog_epochs import read_epochs
from scoring.importers.mllog_writers import writer_of, writers_of_copies
from scoring.importers.table import FormatReader
from scoring.importers.text import RowPattern, first_line_in_words, lines_in_words, plausible_wait_s
from scoring.importers.values import (
    epoch_number,
    positive_amount,
    positive_whole,
    table_or_none,
    text_or_none,
    whole_or_zero,
)
from scoring.record import Check, Quality, TimeSpan, Window

T = TypeVar("T")
IMAGE_BENCHMARKS = frozenset({"resnet", "resnet50_v1.5"})  # of MLPerf Training, whose train_samples are images
# Each of these may be the first line of a run: events up to run_start, and the first header sections of our own logs.
_OPENING = ("cache_clear", "init_start", "submission_benchmark", schema.RUN_START.key, "log", "source")
# Each of these shows that a run has trained since its run_start, or has ended.
_TRAINING = (
    *("block_start", "epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "throughput", "tracked_stats"),
    *(schema.STEP_WINDOW.key, schema.RUN_STOP.key),
)


class MLLog(FormatReader):
    """Reads events; there are no printed rows."""

    row_marker = ":::MLLOG"
    row_pattern = RowPattern(re.compile(r":::MLLOG \{"), ())
    rate_scope = "global"

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self.events = Run()
        self._last_of_course = ""  # name of the last entry of _OPENING or _TRAINING; empty: there was none

    def read(self) -> None:
        """Read the events in this run's lines into windows, epochs, evaluations and other values. Call this once.

        The windows are the figures of the first of these that the log has:

        - some steps each, which only this project's program logs,
        - the epochs,
        - the stretches of training between evaluations.

        Raises:
            InputError: The run has over MAX_ROWS windows.
        """
        self._take_entries()  # adds a window for each event `step_window`, and keeps the other events
        self._note_lost_windows()
        self._report_unreadable_images()  # before epochs or stretches are added, as it is only about `step_window`
        self._read_facts()
        self.epochs = self._windows_of_epochs()  # after the facts, which show whether the samples are images
        if not self.windows:  # no `step_window`
            self._add_windows_of_epochs_or_stretches()
        self._read_evaluations()

    def _add_windows_of_epochs_or_stretches(self) -> None:
        """Add a window for each epoch with a time or a rate, or else for each stretch of training between evaluations.

        If the epochs have rates but no times, a check of these rates by the times of the stretches is added, too.

        Raises:
            InputError: There are over MAX_ROWS windows.
        """
        epochs = [epoch for epoch in self.epochs if epoch.seconds is not None or epoch.printed_rate is not None]
        if epochs:
            self._add_windows(epochs)
            have_no_times = all(epoch.seconds is None for epoch in epochs)
            if have_no_times:
                self._check_rates_by_stretches()
            return
        if self._is_own_resumed_run():
            return  # it may have trained only a part of its first stretch, so that the stretch's images are not known
        self._add_windows(self._windows_of_stretches())

    def _take_entries(self) -> None:
        """Read each entry in this run's lines, and add a window for each event `step_window`.

        Several ranks may each write the whole run into the log. Then the events of one of them are read.

        Raises:
            InputError: The run has over MAX_ROWS windows.
        """
        first, last = self.lines.span
        copies = writers_of_copies(self.lines.stream)
        for entry in read_stream(self.lines.stream):
            is_of_run = entry.line >= first and (last is None or entry.line <= last)
            is_repeated = isinstance(entry, Event) and writer_of(entry) in copies
            if is_of_run and not is_repeated:
                self._take_entry(entry)

    def _read_facts(self) -> None:
        """Read the header's sections and all events that state facts."""
        self._read_header()
        self._read_run_summary()
        self._read_start_and_stop()
        self._read_single_events()  # after the run's summary, whose model counts rather than the benchmark
        self.set_if_unset("rate_scope", self.rate_scope)  # no event states it, but the format

    def _check_rates_by_stretches(self) -> None:
        """Add a check of the rates that the log prints of its epochs, by the times of its stretches of training.

        The two disagree if the program prints the rate of one device, for example.
        """
        check = check_rates_against_blocks(self.windows, self._windows_of_stretches())
        if check is not None:
            self.checks.append(check)

    def _windows_of_epochs(self) -> list[Window]:
        """Return a window for each epoch of the log, without images and rate if the samples are not images.

        In the log of a resumed run of this project, only epochs that the run has trained in are counted.
        """
        images_of_epoch = self._images_of_epoch()  # None if the samples are not images
        epochs = read_epochs(self.events, samples=images_of_epoch, batch=self.value("batch_of_all"))
        if self._is_own_resumed_run():
            # A run resumed between the last step of an epoch and its evaluation logs this epoch without training it.
            trained = self._epochs_with_own_figures()
            epochs = [epoch for epoch in epochs if epoch.epoch in trained]
        if not self._samples_are_images():
            for epoch in epochs:
                epoch.printed_rate = None
        return epochs

    def _is_own_resumed_run(self) -> bool:
        """Return whether the log is of this project's program, and says that the run was resumed from a checkpoint."""
        summary = table_or_none(self.header.get("run_summary")) or {}
        return summary.get("resumed") is True

    def _epochs_with_own_figures(self) -> set[int | None]:
        """Return the numbers of the epochs with an event `step_window` or `epoch_throughput` of this project."""
        of_rates = {epoch_number(rate.number) for rate in self.events.rates if rate.key == schema.EPOCH_THROUGHPUT.key}
        return of_rates | {window.epoch for window in self.windows}

    def _add_windows(self, windows: Iterable[Window]) -> None:
        """Add windows to the windows of this run."""
        for window in windows:
            self.add_window(window)

    def _take_entry(self, entry: Entry) -> None:
        """Add one entry of the log to `windows` if it is a `step_window`, to `problems`, or else to `events`.

        Args:
            entry: An event, a section of the header, or a problem, which says what is wrong with a line.

        Raises:
            InputError: The run has over MAX_ROWS windows.
        """
        if isinstance(entry, Problem):
            self.unread_rows.note(entry.line)
            self.note_problem(f"line {entry.line}: {entry.message}")
            return

        self._note_start(entry)
        if isinstance(entry, Event) and entry.key == schema.STEP_WINDOW.key:
            self.lines.confirm_run()  # training shows that a run has begun, also if its `run_start` is not in the log
            rank_times = self._pop_rank_times(entry)  # which an earlier event has put into `events`
            self._add_step_window(entry, rank_times)
            return  # it does not go to `events`, so that a long run is in memory only once

        self.events.take(entry)
        if isinstance(entry, Event) and entry.key == schema.CLOCK_SET.key:
            self._note_clock_set_back(entry)

    def _note_clock_set_back(self, entry: Event) -> None:
        """Add a problem to the record if an event `clock_set` says that the computer's clock was set back.

        The run's time is then too short, because it is the difference of two time stamps.

        Args:
            entry: The event. Its value is by how many seconds the clock was set, below 0 if it was set back.
        """
        set_by_s = real(entry.value)
        if set_by_s is not None and set_by_s < 0:
            back = f"the clock was set back by {six_digits(-set_by_s)} s"
            self.note_problem(f"line {entry.line}: {back}: the time of the run is too short by as much")

    def _note_start(self, entry: Event | Header) -> None:
        """Note in `self.lines` where a run may begin, and at `run_start` that it has begun.

        A run logs opening entries (_OPENING), then `run_start`, then its training (_TRAINING):

            init_start   opening entry: the run may begin here
            run_start    it has begun
            run_start    of another rank that writes into this log, as the run has not trained since: ignored
            epoch_start  training
            init_start   opening entry: the next run may begin here

        Args:
            entry: An event or a section of the header.
        """
        name = entry.section if isinstance(entry, Header) else entry.key
        if name not in _OPENING and name not in _TRAINING:
            return
        is_run_start = name == schema.RUN_START.key
        is_of_other_rank = is_run_start and self._last_of_course == schema.RUN_START.key
        self._last_of_course = name
        if is_of_other_rank:
            return
        if name in _OPENING:  # `run_start` is one of them
            self.lines.note_possible_start(entry.line)  # ignored as long as an earlier one has not become a run
        if is_run_start:
            self.lines.confirm_run()

    def _pop_rank_times(self, window_event: Event) -> schema.RankTimes | None:
        """Remove and return what an event logged of the ranks' own times in a window of training steps.

        Args:
            window_event: The event `step_window`. The times were logged before it, with the same step.

        Returns:
            The least, median and greatest times of the ranks, or None if they are not logged.
        """
        step = run.scalar(window_event.metadata.get("step"))
        return self.events.rank_times.pop(step, None)

    def _read_header(self) -> None:
        """Set `header` and the versions in `software` from the header, which only logs of this project have.

        The record gets a problem if the run used null GPUs, which compute nothing, and if the log states another form
        or version than this reader knows.
        """
        self.header = {name: header.value for name, header in self.events.headers.items()}
        packages = table_or_none(self.header.get("packages")) or {}
        for name, version in packages.items():
            if isinstance(version, str):  # else it cannot be read
                self.software[name] = version
        self._note_null_gpus()
        self._note_other_format()

    def _note_null_gpus(self) -> None:
        """Note a problem if the run used null GPUs, which stand in for real ones in tests and compute nothing."""
        environment = self.events.headers.get(schema.ENVIRONMENT.name)
        if environment is None:
            return
        variables = table_or_none(environment.value) or {}
        if "NULL_GPU" in variables:
            self.note_problem(
                f"line {environment.line}: null GPUs, which compute nothing: no figure of this run means anything"
            )

    def _note_other_format(self) -> None:
        """Note a problem if a log of ours says that it is of another form or version than the one that is read here."""
        section = self.events.headers.get(schema.LOG.name)
        stated = other_format(section.value) if section else None
        if section is None or stated is None:
            return
        known = schema.Format()
        form = f"a log of the form {printable(stated.format)}, version {printable(stated.version)}"
        self.note_problem(f"line {section.line}: {form}; this reader knows {known.format}, version {known.version}")

    def _read_run_summary(self) -> None:
        """Set devices, batch size, precision, model and the like from `run_summary`, an event of this project's logs.

        Nodes, framework, the mode of the run and its math mode are set, too. The event's table of values also becomes
        the section `run_summary` of `header`, if the header has no such section. An event without a table becomes a
        problem of the record, and so does a value that cannot be read. Nothing happens without the event.
        """
        summary = self.events.first.get(schema.RUN_SUMMARY.key)
        if summary is None:  # another program's log
            return
        values = table_or_none(summary.value)
        if values is None:
            self.note_problem(f"line {summary.line}: run_summary without a table of values")
            return

        self.header.setdefault("run_summary", values)
        for name in ("devices", "nodes", "batch_per_device"):
            self.set_if_unset(name, self._readable(summary, name, values.get(name), positive_whole), summary.line)
        for name in ("precision", "math_mode", "mode", "framework", "model"):
            self.set_if_unset(name, self._readable(summary, name, values.get(name), text_or_none), summary.line)

    def _read_start_and_stop(self) -> None:
        """Set when the run started and stopped, and its status. A log without run_stop is truncated.

        The first start and the first stop count. Each further one becomes a problem of the record, and so does a start
        outside the years 2018 to 2099.
        """
        self._set_time_and_status("run_start_s", self.events.starts)
        self._set_time_and_status("run_stop_s", self.events.stops)
        self._note_further_marks("run_start", self.events.starts)
        self._note_further_marks("run_stop", self.events.stops)
        self.truncated = not self.events.stops
        self._note_impossible_date()

    def _note_impossible_date(self) -> None:
        """Note a problem if the run started outside the years 2018 to 2099: `time_ms` may not be in milliseconds."""
        start = self.facts_by_name.get("run_start_s")
        if start is None or is_date_of_run(start.value * 1000):
            return
        consequence = "all times are wrong if it does not count milliseconds"
        self.note_problem(f"line {start.line}: time_ms is {NO_DATE}: {consequence}")

    def _read_single_events(self) -> None:
        """Set the values that a log states in one event each, such as the batch size of all devices and the benchmark.

        If an event is logged several times, the first one counts, or the last one for the numbers of samples. A value
        that is set already is kept.
        """
        first = self.events.first  # the first event of each key
        self._set_from_event("telemetry", first.get(schema.TELEMETRY_SUMMARY.key), table_or_none)
        self._set_from_event("batch_of_all", first.get(schema.GLOBAL_BATCH_SIZE.key), positive_whole)
        self._set_from_event("platform", first.get(schema.SUBMISSION_PLATFORM.key), text_or_none)
        self._set_from_event("benchmark", first.get(schema.SUBMISSION_BENCHMARK.key), text_or_none)
        self.set_if_unset_from("model", "benchmark")

        last = self.events.last  # the last event of each key, which counts for the numbers of samples
        self._set_from_event("train_samples", last.get(schema.TRAIN_SAMPLES.key), positive_whole)
        self._set_from_event("eval_samples", last.get(schema.EVAL_SAMPLES.key), positive_whole)

        self._note_if_values_differ(schema.GLOBAL_BATCH_SIZE.key, which_counts="first")
        self._note_if_values_differ(schema.TRAIN_SAMPLES.key, which_counts="last")
        self._note_if_values_differ(schema.EVAL_SAMPLES.key, which_counts="last")

        self._set_from_event("division", first.get(schema.SUBMISSION_DIVISION.key), text_or_none)
        self._set_seed(first.get(schema.SEED.key))

    def _set_seed(self, event: Event | None) -> None:
        """Set the seed of the run, unless it cannot be read. That is not a problem, because no figure needs the seed.

        Args:
            event: The event that states the seed, or None.
        """
        if event is not None:
            self.set_if_unset("seed", whole_or_zero(event.value), event.line)  # None, for any other value, sets nothing

    def _note_if_values_differ(self, key: str, *, which_counts: str) -> None:
        """Note a problem if the first and the last event of a key state different values.

        Args:
            key: The key, such as "train_samples".
            which_counts: "first" or "last", for the text: the one whose value this reader uses.
        """
        first = self.events.first.get(key)
        last = self.events.last.get(key)
        if first is None or last is None or first.value == last.value:
            return
        values = f"{key} is {printable(last.value, 40)}, but {printable(first.value, 40)} on line {first.line}"
        self.note_problem(
            f"line {last.line}: {values}: the {which_counts} counts, and figures by the other would differ"
        )

    def _set_time_and_status(self, field: str, marks: Sequence[Mark]) -> None:
        """Set a time in seconds of Unix time, and the status of the run, from the first of some marks.

        A status that is set already is kept. Without a mark nothing is set.

        Args:
            field: Name of the time: "run_start_s" or "run_stop_s".
            marks: The logged starts or stops of the run, in the order of their lines.
        """
        if marks:
            first = marks[0]
            self.set_if_unset(field, first.time_ms / 1000, first.line)
            self.set_if_unset("status", text_or_none(first.status), first.line)

    def _note_further_marks(self, name: str, marks: Sequence[Mark]) -> None:
        """Note a problem for each start or stop of the run after the first one.

        Args:
            name: What the marks are of: "run_start" or "run_stop".
            marks: The logged starts or stops, in the order of their lines.
        """
        for mark in marks[1:]:
            self.note_problem(f"line {mark.line}: {name} again, first on line {marks[0].line}")

    def _set_from_event(self, name: str, event: Event | None, convert: Callable[[Any], object]) -> None:
        """Set a value of the run from an event of the log, unless it is set already or the event is missing.

        A value that is there but cannot be read becomes a problem of the record.

        Args:
            name: Name of the value, such as "train_samples".
            event: The event that states it, or None.
            convert: Function that returns the converted value, or None for a value that cannot be read.
        """
        if event:
            self.set_if_unset(name, self._readable(event, "value", event.value, convert), event.line)

    def _readable(self, event: Event, name: str, value: Any, convert: Callable[[Any], T | None]) -> T | None:
        """Return a converted value of an event. If it cannot be converted, add a problem to the record and return None.

        NaN gives None without a problem, because a loss may be NaN. So does a value of None.

        Args:
            event: The event.
            name: Name of the value in the problem, such as "data_wait_s".
            value: The value as it is logged. None if it is missing.
            convert: Function that returns the converted value, or None for a value that cannot be read.
        """
        result = convert(value)
        is_nan = isinstance(value, float) and math.isnan(value)
        may_give_none = value is None or is_nan
        if result is None and not may_give_none:
            shown = repr(value)
            if len(shown) > 40:
                shown = f"{shown[:40]}..."
            self.note_problem(f"line {event.line}: {event.key}: {name} is {shown}, which cannot be read")
        return result

    def _add_step_window(self, event: Event, rank_times: schema.RankTimes | None) -> None:
        """Add the training figures of one `step_window` event, which this project's runs log every so many steps.

        An event without a table of values, or without readable steps or time, becomes a problem of the record instead.

        Args:
            event: The event.
            rank_times: The least, median and greatest times of the ranks in these steps. None if they are not logged.

        Raises:
            InputError: The run has MAX_ROWS windows already.
        """
        values = table_or_none(event.value)
        if values is None:
            self.unread_rows.note(event.line)
            self.note_problem(f"line {event.line}: step_window without a table of values")
            return
        steps = positive_whole(values.get("steps"))
        seconds = positive_amount(values.get("time_s"))
        if steps is None or seconds is None:
            self.unread_rows.note(event.line)
            stated = f"steps {printable(values.get('steps'), 40)}, time_s {printable(values.get('time_s'), 40)}"
            self.note_problem(f"line {event.line}: step_window without steps or time ({stated})")
            return

        window = self._step_window(event, values, steps, seconds)
        window.rank_times = rank_times
        self.add_window(window)

    def _step_window(self, event: Event, values: JsonObject, steps: int, seconds: float) -> Window:
        """Return the training figures of one `step_window` event, which this project's runs log every so many steps.

        Args:
            event: The event. Its metadata have the step, the epoch and the phase.
            values: The table that is the event's value, such as {"steps": 10, "time_s": 3.5, "images": 2560, "loss":
                6.9}.
            steps: Number of steps, as the caller has read it from the table.
            seconds: Time of these steps, as the caller has read it from the table.

        Returns:
            A window in which a figure is None if it is missing or cannot be read. A figure that is there but cannot be
            read mostly becomes a problem of the record, too.
        """
        images = self._readable(event, "images", values.get("images"), positive_amount)
        return Window(
            line=event.line,
            step=self._readable(event, "step", event.metadata.get("step"), positive_whole),
            epoch=self._readable(event, "epoch_num", event.metadata.get("epoch_num"), positive_whole),
            steps=steps,
            images=images,
            seconds=seconds,
            data_wait_s=plausible_wait_s(
                self._readable(event, "data_wait_s", values.get("data_wait_s"), real), seconds
            ),
            printed_step_time_s=seconds / steps,  # so that the speed is known even without images
            end_s=event.time_ms / 1000,
            phase=text_or_none(event.metadata.get("phase")),
            loss=self._readable(event, "loss", values.get("loss"), real),
            gpu_memory_mib=self._readable(event, "gpu_memory_mib", values.get("gpu_memory_mib"), real),
            power_w=self._readable(event, "power_w", values.get("power_w"), real),
        )

    def _note_lost_windows(self) -> None:
        """Note as a problem that windows of this project's run seem to be missing, if steps of it are in none."""
        found = lost_steps(self.windows, self.unread_rows.lines)
        if found:
            where = first_line_in_words([window.line for window, _ in found])
            steps = sum(steps for _, steps in found)
            self.note_problem(f"{where}: step_windows before it are missing, with {counted(steps, 'step')}")

    def _report_unreadable_images(self) -> None:
        """Add the check `images` as not compared, if some step windows have no readable number of images.

        The sum of the images can be compared with steps x batch only if the images of all step windows are known.
        """
        without_images = [window for window in self.windows if window.images is None]
        if not without_images:
            return
        count = f"{len(without_images)} of {len(self.windows)} windows"
        counted = f"{lines_in_words(without_images)}: {count} count no images that can be read"
        self.checks.append(Check.not_compared("images", (counted, "their steps x batch")))

    def _samples_are_images(self) -> bool:
        """Return whether samples and rates count images: in our own logs, and in logs of an image benchmark."""
        is_own_log = "run_summary" in self.header
        return is_own_log or self.value("model") in IMAGE_BENCHMARKS

    def _images_of_epoch(self) -> int | None:
        """Return the number of images in an epoch, or None if it is not logged or the samples are not images."""
        return self.value("train_samples") if self._samples_are_images() else None

    def _read_evaluations(self) -> None:
        """Fill `evaluation_spans` with the times of the logged evaluations, and `qualities` with the logged accuracies.

        An evaluation is left out if its start or stop is missing or if its duration is not positive. An accuracy is
        left out if it is not a finite number, or repeats the one before it, for example if several ranks log it.
        """
        for evaluation in self.events.evaluations:
            start = evaluation.start
            stop = evaluation.stop
            if start and stop and stop.time_ms > start.time_ms:
                self.evaluation_spans.append(TimeSpan(start.time_ms / 1000, stop.time_ms / 1000))

        before: run.Accuracy | None = None
        for accuracy in self.events.accuracies:
            value = real(accuracy.value)
            is_repeated = before is not None and _is_same_evaluation(accuracy, before)
            before = accuracy
            if value is not None and not is_repeated:
                epoch = epoch_number(accuracy.number)
                self.qualities.append(Quality(line=accuracy.line, name=accuracy.key, value=value, epoch=epoch))

    def _windows_of_stretches(self) -> list[Window]:
        """Return a window for each stretch of training between evaluations, such as of epochs 1 to 4.

        `stretches_of_blocks` finds the stretches by the groups of epochs that the log marks.

        Returns:
            Windows with the seconds of a stretch, its images and steps as far as they are known, and its last epoch.
            A stretch within which the clock was set back has no window.
        """
        images_of_epoch = self._images_of_epoch()  # None if not known, or if the samples are not images
        batch = self.value("batch_of_all")
        windows: list[Window] = []
        for stretch in stretches_of_blocks(self.events):
            seconds = (stretch.end.time_ms - stretch.start.time_ms) / 1000
            if seconds <= 0:  # the clock was set back
                continue
            images = images_of_epoch * stretch.epochs if images_of_epoch else None
            whole_batches = int(images // batch) if images and batch else None
            windows.append(
                Window(
                    line=stretch.end.line,
                    epoch=stretch.last_epoch,
                    steps=whole_batches,
                    images=images,
                    seconds=seconds,
                    end_s=stretch.end.time_ms / 1000,
                )
            )
        return windows


def _is_same_evaluation(accuracy: run.Accuracy, before: run.Accuracy) -> bool:
    """Return whether two accuracies are equal, and of one epoch, which both state."""
    states_epoch = accuracy.number is not None
    return states_epoch and accuracy._replace(line=before.line) == before
