"""Runs a training program over batches, timing what the log reports; nothing here knows a model or a data set."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.device.cuda.graphs import CUDAGraph

from harness import state
from harness.hooks import Hook
from harness.hooks.watchdog import WATCHDOG, Clock
from harness.loader import Batch
from harness.progress import Progress, Timing
from harness.ranks import Ranks
from program import build
from program.arrays import Array
from program.capture import FLAGS, RATES, RATES_AT_ONCE, STEP
from program.ops import LOSS_VALUE
from program.proof import kernels
from runlog import schema
from runlog.errors import RunError
from runlog.writer import RunLog

COUNTED = "eval.counted"  # an evaluation program's total of images

# A warm-up is where cuDNN searches all its algorithms for each convolution, on HRNet for over 300 of them and in an
# evaluation on whole images. No GPU has been timed: the search is given this much beyond HANG_TIMEOUT_S.
SEARCH_S = 1500.0

NOTHING_TO_LEARN = (
    "the loss is 0: all is learned, or the labels hold nothing to learn, as where all are ignored or of one class: "
    "look at the label files"
)

SCHEDULED = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds waiting for one, and how often


class NotFinite(RunError):
    """The loss is infinite or NaN."""


class LaunchedStep:
    """Runs the programs of a step operator by operator, each on what it is fed."""

    RUNS_BEFORE = 1  # of the program in a warm-up

    def __init__(self, executor: static.Executor, program: build.TrainingProgram) -> None:
        self.executor = executor
        self.program = program
        self.inputs: dict[str, Any] = {}  # tensors of the device that a loader writes its batches to
        self._sent = math.nan  # the rate that the device has

    def send_rates_ahead(self) -> None:
        """Send the device the learning rates of further steps; nothing is to be done here, without a table of them."""

    def ensure_rate(self, step: int) -> None:
        """Send the device the learning rate of a step, if the device has another one.

        Args:
            step: Number of the step within a call of `Trainer.run`, from 1. For the first one the rate is always sent.
        """
        schedule = self.program.schedule
        rate = schedule()
        if step == 1 or rate != self._sent:
            schedule.send(self.executor.place)
            self._sent = rate

    def run(self, main: static.Program, feed: dict[str, Any]) -> None:
        """Run a program of the step once.

        The loss stays in Paddle's scope and nothing is fetched: another list of fetches would be another program to the
        executor, built and held in addition to the first.

        Args:
            main: The program.
            feed: Its inputs by name: arrays, or tensors of Paddle.
        """
        self.executor.run(main, feed=feed, fetch_list=[])

    def capture(self) -> None:
        """Capture the step after the warm-up; nothing is to be done here."""


class CapturedStep(LaunchedStep):
    """Runs the step of a program that `program.capture` has prepared; from `capture` on by one launch of a CUDA graph.

    Nothing is fed and nothing fetched: a batch is copied to `inputs`, the variables that the program reads.
    """

    RUNS_BEFORE = 2  # of the program: Paddle builds it in the first, and its executor's threads in the second

    def __init__(self, executor: static.Executor, program: build.TrainingProgram) -> None:
        super().__init__(executor, program)
        paddle.set_flags(FLAGS)
        # Paddle's executor launches from threads of its own, which only a global capture records. Their temporaries
        # then come from memory of the graph, which is given to nothing else.
        self._graph = CUDAGraph(executor.place, mode="global")
        self._addresses: dict[str, int] = {}  # of the state as captured, by name; empty before
        scope = static.global_scope()
        names = [variable.name for variable in program.main.list_vars() if variable.is_data]
        self.inputs = {name: scope.var(name).get_tensor() for name in names}

    def ensure_rate(self, step: int) -> None:
        """Fill the device's table of learning rates with those of the next RATES_AT_ONCE steps, if all are used.

        Args:
            step: Number of the step within a call of `Trainer.run`, from 1. For step 1 the table is always filled.

        Raises:
            RunError: A tensor that the captured step uses has moved since the capture.
        """
        has_used_up_rates = step % RATES_AT_ONCE == 1  # steps 1, 4097, 8193, ...: the first step of each 4096
        if has_used_up_rates:
            self.send_rates_ahead()
            self._require_unmoved_tensors()

    def run(self, main: static.Program, feed: dict[str, Any]) -> None:
        """Copy a batch to the program's inputs, and run the step: by the CUDA graph once that is captured.

        Args:
            main: Not used: the step has only one program.
            feed: The batch by the names of the inputs. A tensor that is an input itself is not copied.
        """
        for name, tensor in self.inputs.items():
            if feed[name] is not tensor:  # a loader may have written it there
                tensor._copy_from(feed[name], self.executor.place)
        is_captured = bool(self._addresses)
        if is_captured:
            self._graph.replay()
        else:
            self.executor.run(self.program.main, fetch_list=[])

    def capture(self) -> None:
        """Record the step; nothing is computed. Memory that the warm-up has left is given back before."""
        WATCHDOG.beat("capturing the training step")
        paddle.device.cuda.empty_cache()
        self._graph.capture_begin()
        self.executor.run(self.program.main, fetch_list=[])
        self._graph.capture_end()
        self._addresses = self._where()

    def send_rates_ahead(self) -> None:
        """Fill the table RATES on the device with the learning rates of the next RATES_AT_ONCE steps.

        At each step, the program takes the rate at the index STEP of the table, and adds 1 to STEP, which begins at 0.
        """
        scope = static.global_scope()
        place = self.executor.place
        scope.var(RATES).get_tensor().set(self.program.schedule.ahead(RATES_AT_ONCE), place)
        scope.var(STEP).get_tensor().set(np.zeros((), np.int64), place)

    def _require_unmoved_tensors(self) -> None:
        """Raise an error if a tensor has moved since the capture, as the CUDA graph uses its address of then.

        Raises:
            RunError: A tensor of the state, an input, RATES or STEP has moved.
        """
        is_captured = bool(self._addresses)  # the address of each tensor at the capture, by name
        if not is_captured:
            return
        for name, address in self._where().items():
            if address != self._addresses[name]:
                raise RunError(f"{name} has moved since the step was captured: set STRATEGY without cuda_graph")

    def _where(self) -> dict[str, int]:
        """Return the address of each tensor that a replay reads and writes again, by name."""
        tensors = dict(state.tensors(self.program.main)) | self.inputs
        for name in (RATES, STEP):
            tensors[name] = static.global_scope().find_var(name).get_tensor()
        return {name: tensor._ptr() for name, tensor in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A training step with what a run of many needs."""

    step: LaunchedStep
    global_batch: int  # images
    print_steps: int  # steps of a window
    ranks: Ranks
    log: RunLog
    progress: Progress
    hooks: tuple[Hook, ...] = ()
    clock: Clock = field(default_factory=Clock)

    def warm_up(self, batch: Batch) -> None:
        """Run a training step on a synthetic batch, because the first run of a program is slow.

        It runs RUNS_BEFORE times: once, or twice if a CUDA graph is to be captured afterwards. The parameters are
        updated by noise, and mean nothing afterwards.

        Args:
            batch: Noise in the format of the training's batches.

        Raises:
            Refused: The batch does not have the shapes and types that the program takes. It is a ValueError.
        """
        WATCHDOG.beat("warming up the training program", extra_s=SEARCH_S)
        self.step.send_rates_ahead()
        for _ in range(self.step.RUNS_BEFORE):
            self._update(batch, read_loss=True, is_first=True)  # checks the batch's shapes and types each time

    def _update(self, batch: Batch, *, read_loss: bool, is_first: bool) -> float:
        """Update the parameters once by a batch of this rank; return its mean loss, or NaN if it is not read.

        An update is one run of the training program. With gradient accumulation it is several programs in turn, each on
        an equal part of the batch.

        Args:
            batch: The images and labels of this rank for one step.
            read_loss: Whether to read the loss. That makes the host wait for the device.
            is_first: Whether to check first that each part of the batch has the shapes and types that its program
                takes.

        Raises:
            Refused: The check found a difference. Refused is a kind of ValueError.
        """
        programs = self.step.program.update
        feed = {"image": batch.image, "label": batch.label}
        losses = []
        for program, feed_of_part in zip(programs, parts(feed, len(programs)), strict=True):
            if is_first:
                kernels.check_feed(program, feed_of_part)
            self.step.run(program, feed_of_part)
            if read_loss:  # from the variable in Paddle's scope in which the run has left its loss
                losses.append(loss_of_last_run())
        if not read_loss:
            return math.nan
        return float(np.mean(losses))

    def run(self, batches: Iterator[Batch], *, steps: int, epoch: int, done: int, phase: str) -> Timing:
        """Train a number of steps, log every `print_steps` steps as one window, and return the sum of the windows.

        The loss is read only at the end of a window, so that within a window the device does not wait for the host.
        Every rank must call this with the same numbers.

        Args:
            batches: Gives the batch of this rank for each step.
            steps: How many steps to train. The last window may be shorter than `print_steps`.
            epoch: Number of the epoch for the log, from 1.
            done: Steps that the run did before these, also before a restart. The log counts steps over the whole run.
            phase: Name of these steps in the log: "train", or "warmup" and "measured" in a measurement of throughput.

        Returns:
            Steps, images over all ranks, and seconds that the steps and the waits for input took on this rank. The time
            of a checkpoint between two windows is not in it.

        Raises:
            NotFinite: The mean loss over the ranks is infinite or NaN at the end of a window.
            Refused: The first batch does not have the shapes and types that the program takes. It is a ValueError.
            RunError: The input cannot be read, a signal asked the run to end, or a tensor of a captured step has moved.
        """
        for hook in self.hooks:
            hook.run_begins()
        total = Timing()
        window = Timing()
        window_began = time.perf_counter()
        busy_before_s = self._busy_s()
        for step in range(1, steps + 1):
            step_of_run = done + step
            WATCHDOG.beat(f"reading the input of step {step_of_run}")
            for hook in self.hooks:
                hook.step_begins(step_of_run)
            began = time.perf_counter()
            batch = next(batches)
            ready = time.perf_counter()
            window.data_wait_s += ready - began

            ends_window = step % self.print_steps == 0 or step == steps
            WATCHDOG.beat(f"computing step {step_of_run}")
            self.step.ensure_rate(step)
            loss = self._update(batch, read_loss=ends_window, is_first=step == 1)
            for hook in self.hooks:
                hook.step_ends(step_of_run, began, ready)
            self.step.program.schedule.step()  # to the learning rate of the next step
            window.steps += 1
            window.images += self.global_batch
            if not ends_window:
                continue

            busy_s = self._busy_s() - busy_before_s
            mean_loss = self.ranks.comm.allreduce(loss) / self.ranks.size  # waits for all ranks
            now = time.perf_counter()
            window.time_s = now - window_began
            window_began = now
            self._report_ranks(window.data_wait_s, busy_s, step=step_of_run)
            self._report(window, mean_loss, step=step_of_run, epoch=epoch, phase=phase)
            for hook in self.hooks:
                # It returns the seconds that the training waited for it. They are not the next window's.
                window_began += hook.window_ends(self.step.program.main, window, step=step_of_run, epoch=epoch)
            total.add(window)
            window = Timing()
            busy_before_s = self._busy_s()  # after the hooks, so that their work does not count
        return total

    def _report(self, window: Timing, loss: float, *, step: int, epoch: int, phase: str) -> None:
        """Log a window, which is some training steps in a row, and show it on the terminal.

        A loss of exactly 0 gives a warning that the labels may hold nothing to learn.

        Args:
            window: Steps, images over all ranks, and the seconds that the window took on this rank.
            loss: Loss of the last step, as a mean over the ranks.
            step: Number of the last step, counted from 1 over the whole run.
            epoch: Number of the epoch, from 1.
            phase: Name of these steps in the log, such as "train".

        Raises:
            NotFinite: The loss is infinite or NaN. The window is logged before.
        """
        readings_of_hooks: dict[str, Any] = {"power_w": None}  # None if no hook measures it
        for hook in self.hooks:
            readings_of_hooks.update(hook.readings())
        is_finite = math.isfinite(loss)
        value = schema.StepWindow(
            steps=window.steps,
            images=window.images,
            time_s=round(window.time_s, 6),
            data_wait_s=round(window.data_wait_s, 6),
            loss=loss if is_finite else None,  # JSON has no number for it
            gpu_memory_mib=gpu_memory_mib(self.step.executor.place),
            **readings_of_hooks,
        )
        self.log.event(schema.STEP_WINDOW, value, schema.InWindow(step=step, epoch_num=epoch, phase=phase))
        self.report_clock(step)
        self.progress.window(step=step, epoch=epoch, window=window, loss=loss)
        if loss == 0:
            self.progress.warn(self.log, NOTHING_TO_LEARN)
        if not is_finite:  # last, so that the log and the terminal have the window
            raise NotFinite(f"loss is {loss} at step {step}: lower the learning rate or look at the data")

    def report_clock(self, step: int) -> None:
        """Log by how many seconds the system's clock was set since the last call; do nothing if it was not set.

        Args:
            step: Number of the last step that was done, for the log.
        """
        moved_s = self.clock.set_by_s()
        if moved_s:
            self.log.event(schema.CLOCK_SET, round(moved_s, 3), schema.AtStep(step=step))

    def _report_ranks(self, data_wait_s: float, compute_s: float, *, step: int) -> None:
        """Log how far the ranks' times in a window of training steps lie apart; every rank must call this.

        The times show which rank is slow. The window's total time does not, because all ranks wait for the slowest. A
        single rank logs nothing.

        Args:
            data_wait_s: Seconds in the window that this rank waited for input.
            compute_s: Seconds in the window that this rank had work to do, by `_busy_s`; NaN if not measured.
            step: Number of the window's last step, counted from 1 over the whole run.
        """
        if self.ranks.size == 1:
            return
        times_by_rank = self.ranks.gather_on_first(data_wait_s, compute_s)
        if times_by_rank is None:  # on all ranks but 0
            return
        data_waits_s, compute_times_s = times_by_rank
        # Each gives five fields: data_wait_least_s, data_wait_median_s, ... and compute_least_s, ...
        fields = self._spread("data_wait", data_waits_s) | self._spread("compute", compute_times_s)
        self.log.event(schema.RANK_TIMES, schema.RankTimes(**fields), schema.AtStep(step=step))

    def _spread(self, kind: str, times_s: Array) -> dict[str, Any]:
        """Return how the ranks' times of one kind are spread, as fields of the log's `schema.RankTimes`.

        If ranks 0 and 1 on the host "n1" computed for 3 and 1 s, the result for the kind "compute" is:

            {"compute_least_s": 1.0, "compute_median_s": 1.0, "compute_most_s": 3.0,
             "compute_rank": 0, "compute_host": "n1"}

        Args:
            kind: Beginning of the fields' names: "data_wait" or "compute".
            times_s: Seconds of each rank, shape [ranks]; all NaN if they were not measured.

        Returns:
            Five fields. The rank and the host are those that took most; of two times in the middle the median is the
            lower. All five are None if the times are NaN.
        """
        spread: dict[str, Any] = dict.fromkeys(("least_s", "median_s", "most_s", "rank", "host"))
        is_measured = not math.isnan(times_s[0])  # every rank measures this kind, or none does
        if is_measured:
            ordered_s = [round(float(time_s), 6) for time_s in np.sort(times_s)]
            slowest_rank = int(times_s.argmax())
            spread = {
                "least_s": ordered_s[0],
                "median_s": ordered_s[(len(ordered_s) - 1) // 2],  # of two in the middle the lower
                "most_s": ordered_s[-1],
                "rank": slowest_rank,
                "host": self.ranks.nodes[slowest_rank],
            }
        return {f"{kind}_{name}": value for name, value in spread.items()}

    def _busy_s(self) -> float:
        """Return the seconds that this thread has spent so far with work to do: on a core, or waiting for a free one.

        A thread that waits for other ranks sleeps, which is not counted. So the rank for which most seconds are counted
        is the one that slows down the others.

        Returns:
            Seconds, counted from the start of the thread. NaN if they are not measured: for a single rank, on a GPU,
            and on a Linux kernel without schedstat.
        """
        is_alone = self.ranks.size == 1  # with no rank to compare with
        on_cpu = isinstance(self.step.executor.place, paddle.CPUPlace)
        if is_alone or not on_cpu:  # with a GPU the thread never sleeps: it spins while it waits
            return math.nan
        try:
            on_core_ns, waiting_for_core_ns, _ = SCHEDULED.read_text().split()
            return (int(on_core_ns) + int(waiting_for_core_ns)) / 1e9
        except (OSError, ValueError):  # no schedstat
            return math.nan


def loss_of_last_run() -> Array:
    """Return the loss that the last run of a training program left in Paddle's scope; this waits for the device."""
    return np.array(static.global_scope().find_var(LOSS_VALUE).get_tensor())


def parts(feed: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return a batch in `count` equal parts of its samples, in their order; nothing is copied.

    Args:
        feed: Arrays or Paddle tensors by name, as {"image": ..., "label": ...}, with the samples along the first axis.
        count: Number of parts. It must divide the number of samples.

    Returns:
        One dictionary with the same names for each part.
    """
    of_parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in feed.items():
        for part, values in zip(of_parts, _split(value, count), strict=True):
            part[name] = values
    return of_parts


def _split(value: Any, count: int) -> list[Any]:
    """Return an array or a Paddle tensor in equal parts along its first axis.

    Args:
        value: A NumPy array, or a tensor of Paddle.
        count: Number of parts. It must divide the first axis.
    """
    if count == 1:
        return [value]
    if isinstance(value, np.ndarray):
        return np.split(value, count)
    size = value.shape()[0] // count
    return [value._slice(number * size, (number + 1) * size) for number in range(count)]


def gpu_memory_mib(place: Any) -> float | None:
    """Return the most memory in MiB that Paddle's allocator of this rank has held on its GPU; None on a CPU.

    Args:
        place: Paddle's name of this rank's device: a CPUPlace, or a CUDAPlace with the GPU's number.
    """
    if isinstance(place, paddle.CPUPlace):
        return None
    held_bytes: int = paddle.device.cuda.max_memory_reserved(place.get_device_id())
    return round(held_bytes / 2**20, 1)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """An evaluation program that adds up per-sample results into persistable variables."""

    executor: static.Executor
    main: static.Program
    totals: tuple[str, ...]  # names of the variables that it adds to
    ranks: Ranks

    def warm_up(self, batch: Batch) -> None:
        """Run the evaluation program once on a synthetic batch, because the first run of a program is slow.

        On a GPU cuDNN searches for its fastest kernels in it, for which the watchdog allows SEARCH_S more. The totals
        then hold the results of noise; `run` sets them to zero before it evaluates.

        Args:
            batch: Noise in the format of the evaluation's batches.

        Raises:
            Refused: The batch does not have the shapes and types that the program takes. It is a ValueError.
        """
        WATCHDOG.beat("warming up the evaluation program", extra_s=SEARCH_S)
        self._reset()
        self._add(batch, is_first=True)

    def _add(self, batch: Batch, *, is_first: bool) -> None:
        """Evaluate a batch by one run of the program, which adds the results to its totals on the device.

        Args:
            batch: A batch of an evaluation, whose `valid` says which samples count.
            is_first: Whether to check first that it has the shapes and types that the program takes.

        Raises:
            Refused: The check found a difference.
        """
        feed = {"image": batch.image, "label": batch.label, "valid": batch.valid}
        if is_first:
            kernels.check_feed(self.main, feed)
        self.executor.run(self.main, feed=feed, fetch_list=[])

    def run(self, batches: Iterator[Batch], *, steps: int) -> dict[str, Any]:
        """Evaluate batches on this rank, and return the totals over all ranks; every rank must call this.

        The evaluation program adds the results of each batch to variables on the device, which are set to zero first.

        Args:
            batches: Gives this rank's batches, the same number on every rank.
            steps: How many of them to evaluate.

        Returns:
            The total of each variable by its name, summed over the ranks: a float64 array, or a plain number if it has
            one element.

        Raises:
            Refused: The first batch does not have the shapes and types that the program takes.
            RunError: The input cannot be read.
        """
        self._reset()
        for step in range(1, steps + 1):
            WATCHDOG.beat(f"evaluating batch {step} of {steps}")
            self._add(next(batches), is_first=step == 1)
        WATCHDOG.beat("adding up the evaluation over the ranks")
        totals = {}
        for name in self.totals:
            total_of_rank = np.array(static.global_scope().find_var(name).get_tensor(), dtype=np.float64)
            total = self.ranks.comm.allreduce(total_of_rank)
            totals[name] = np.squeeze(total)[()]  # `squeeze` drops axes of length 1; with none left, [()] is the number
        return totals

    def _reset(self) -> None:
        """Set the totals to zero."""
        for name in self.totals:
            variable = self.main.global_block().var(name)
            zeros = np.zeros(variable.shape, dtype=paddle.base.data_feeder.convert_dtype(variable.dtype))
            static.global_scope().var(name).get_tensor().set(zeros, self.executor.place)
