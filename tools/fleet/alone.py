"""The measurements that each rank of a fleet makes by itself, at the same time as all others: in turns.

A turn takes each measurement once. If the job has one node, its ranks are compared as if they were nodes, so that a
slow GPU of one machine is found.
"""

import contextlib
import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness import loader, nvidia, ranks, sampling
from harness.hooks.watchdog import WATCHDOG
from harness.memory import GIB, MIB
from paddle_rn50.train import ResNet50
from runlog.errors import message_of
from runlog.json_types import JsonObject
from tools.acceptance.machine import Machine, NotPossible
from tools.fleet.steps import SEED
from tools.fleet.verdicts import NOT_POSSIBLE

# In a turn a rank takes MIN_STEPS training steps, and then further ones for STEP_S seconds, up to MAX_STEPS in all.
STEP_S = 2.0
MIN_STEPS = 3
MAX_STEPS = 200
# The measurements end after TURNS turns, or after TURNS * TURN_S seconds, but not before MIN_TURNS turns.
TURNS = 16
TURN_S = 4.0
MIN_TURNS = 6  # a 95 % interval needs five
COPY_MIB = 128  # copied in memory, in a turn
DISK_MIB = 32  # read from DATADIR in a turn, or as much as DISK_S seconds allow
DISK_S = 1.0
MAX_FILES = 5000  # of DATADIR that are read
BATCHES = 6  # of the input pipeline, in a turn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One of the measurements that a rank makes by itself."""

    metrics: tuple[str, ...]  # of the record, one for each value that `take` returns
    take: Callable[[], tuple[float, ...]]  # raises NotPossible if it cannot be taken here


def of_one_metric(metric: str, take: Callable[[], float]) -> Measurement:
    """Return the measurement of one metric, of which `take` returns the value."""

    def take_as_tuple() -> tuple[float, ...]:
        return (take(),)

    return Measurement(metrics=(metric,), take=take_as_tuple)


def first_files(folder: str) -> list[Path]:
    """Return the first MAX_FILES (5000) files below a folder; an empty list if `folder` is "", which names none."""
    files: list[Path] = []
    for below, _, names in os.walk(folder):
        files.extend(Path(below, name) for name in sorted(names))
        if len(files) >= MAX_FILES:
            break
    return files[:MAX_FILES]


def refuse_step() -> float:
    """Raise NotPossible; this stands for a training step on a machine that cannot compute one."""
    raise NotPossible("this Paddle has no kernels for a GPU")


def reason_of(error: Exception) -> str:
    """Return why a measurement failed, as the record says it: "not possible here: no GPU", or what the error says."""
    return f"{NOT_POSSIBLE}: {error}" if isinstance(error, NotPossible) else message_of(error)


class Turn(NamedTuple):
    """The measurements of one rank in one turn."""

    values: dict[str, float]  # by metric
    failures: dict[str, str]  # {metric: why it was not measured}
    step_times_s: list[float]  # of each training step


class RankMeasurements:
    """The measurements that this rank makes by itself."""

    def __init__(self, machine: Machine, take_step: Callable[[], float], *, with_disk: bool) -> None:
        """Prepare the measurements of training steps, GPU clock, memory, disk and input pipeline.

        Args:
            machine: This rank's part of the machine, with the settings of the job.
            take_step: Takes a training step of this rank alone and returns its seconds, or raises NotPossible.
            with_disk: Whether this rank measures the disk, too. If it does not, another rank of its node does.
        """
        self.machine = machine
        self.job = machine.job
        self.take_step = take_step
        self.copied_from = np.ones(COPY_MIB * 2**18, np.float32)  # to measure the memory; 2**18 float32 are 1 MiB
        self.copied_to = np.ones_like(self.copied_from)
        self.files_in_a_cycle = itertools.cycle(first_files(self.job.data.folder))  # to measure the disk
        self.measurements = [
            Measurement(metrics=("step_s", "step_mean_s"), take=self._median_and_mean_step_s),
            of_one_metric("clock_ns", self._clock_cycle_ns),
            of_one_metric("memory_s_per_gib", self._memory_s_per_gib),
        ]
        if with_disk:
            self.measurements.append(of_one_metric("disk_s_per_gib", self._disk_s_per_gib))
        self.measurements.append(of_one_metric("input_s", self._input_s))
        self.step_times_s: list[float] = []  # of each step since the turn began

    def take_turn(self, failed_metrics: Container[str]) -> Turn:
        """Take each measurement once; return the values, and the reasons of those that failed.

        Args:
            failed_metrics: Names of the metrics that failed in an earlier turn, such as "disk_s_per_gib". Their
                measurements are left out.

        Returns:
            The value of each metric that was measured, the reason for each metric whose measurement failed now, and the
            seconds of each training step (an empty list if the steps failed or were left out).
        """
        values: dict[str, float] = {}
        failures: dict[str, str] = {}
        self.step_times_s = []  # `_median_and_mean_step_s`, the first measurement, puts the times there
        for measurement in self.measurements:
            first_metric = measurement.metrics[0]
            failed_before = first_metric in failed_metrics  # all metrics of a measurement fail together
            if failed_before:
                continue
            WATCHDOG.beat(f"measuring {first_metric}")
            try:
                values_of_metrics = measurement.take()
            except Exception as error:  # noqa: BLE001 - the boundary of a measurement: its verdict says what it was
                failures |= dict.fromkeys(measurement.metrics, reason_of(error))
            else:
                values |= dict(zip(measurement.metrics, values_of_metrics, strict=True))
        return Turn(values, failures, self.step_times_s)

    # The methods below each take one measurement.

    def _median_and_mean_step_s(self) -> tuple[float, float]:
        """Time several training steps of this rank alone.

        It takes MIN_STEPS (3) steps, and further ones for STEP_S (2) seconds, but at most MAX_STEPS (200) in all.
        The seconds of each step are kept in `self.step_times_s`.

        Returns:
            The median and the mean of the steps' seconds.

        Raises:
            NotPossible: This machine cannot compute a step.
        """
        times_s = [self.take_step() for _ in range(MIN_STEPS)]
        until_s = time.perf_counter() + STEP_S
        while len(times_s) < MAX_STEPS:
            expected_end_s = time.perf_counter() + times_s[-1]  # if the next step takes as long as the last one
            if expected_end_s >= until_s:
                break
            times_s.append(self.take_step())
        self.step_times_s = times_s
        return statistics.median(times_s), statistics.fmean(times_s)

    def _clock_cycle_ns(self) -> float:
        """Return the nanoseconds of one clock cycle of this rank's GPU.

        Raises:
            NotPossible: The job runs on a CPU, or NVML does not tell the clock rate.
        """
        if self.job.cluster.device == "cpu":
            raise NotPossible("no GPU: DEVICE=cpu")
        mhz: float | None = None
        with nvidia.opened() as (handles, why_not_opened):
            if handles:
                mhz = nvidia.sample(handles[self.machine.me.local_rank])["sm_clock_mhz"]
        if not mhz:
            raise NotPossible(why_not_opened or "NVML does not tell it")
        return 1000 / mhz

    def _memory_s_per_gib(self) -> float:
        """Copy COPY_MIB within memory; return the seconds that the copy of a GiB takes at that speed."""
        began = time.perf_counter()
        np.copyto(self.copied_to, self.copied_from)
        return (time.perf_counter() - began) * 1024 / COPY_MIB

    def _disk_s_per_gib(self) -> float:
        """Read files of the data set from the disk; return the seconds that reading a GiB takes at that speed.

        Each call goes on with the files after those of the last call; after the last file the first one follows. It
        stops once DISK_MIB (32) are read or DISK_S (1) seconds are over, or after MAX_FILES (5000) files.

        Raises:
            NotPossible: The setting DATADIR is empty, or the folder that it names holds no data.
        """
        enough_bytes = DISK_MIB * MIB
        read_bytes = 0
        took_s = 0.0
        for path in itertools.islice(self.files_in_a_cycle, MAX_FILES):  # the limit ends a cycle of empty files
            reading = read_uncached(path, enough_bytes)
            read_bytes += reading.read_bytes
            took_s += reading.took_s
            if read_bytes >= enough_bytes or took_s > DISK_S:
                break
        if read_bytes > 0:
            return took_s * GIB / read_bytes
        folder = self.job.data.folder
        if folder:
            raise NotPossible(f"DATADIR={folder} holds no data")
        raise NotPossible("no DATADIR")

    def _input_s(self) -> float:
        """Return the mean seconds that the job's input pipeline alone takes for a batch, over BATCHES batches."""
        with contextlib.closing(self._input_pipeline()) as batches:
            next(batches)  # waits for the pipeline to start, so it does not count
            began = time.perf_counter()
            counted_batches = sum(1 for _ in itertools.islice(batches, BATCHES))
            return (time.perf_counter() - began) / counted_batches

    def _input_pipeline(self) -> loader.Loader:
        """Build the job's input pipeline of training images; return the loader that yields its batches.

        Unlike in the job's training, this rank reads all images, in an order of its own. No batch is larger than the
        data set.
        """
        job = self.job
        this_rank = self.machine.me
        # The model is not trained. It is made because it knows where its images are and how they are read.
        model = ResNet50(job.hyperparameters, self.machine.plan(), batch=job.model.batchsize)
        images = model.DATA.find(self._data_folder(), "train", model.recipe.classes)
        batch = min(job.model.batchsize, len(images))
        order = order_of_all_images(len(images), batch, rank=this_rank.rank)
        reading = loader.ReaderConfig.of_rank(
            job.data, job.cluster, this_rank.local_rank, model.image, batch=batch, seed=SEED
        )
        return model.batches(images, order, reading)

    def _data_folder(self) -> Path:
        """Return the folder of the data set: that of the setting DATADIR, or of the embedded digits if it is empty."""
        if self.job.data.folder:
            return Path(self.job.data.folder)
        return self.machine.root  # `Machine` has written the digits, a small data set, into it


def order_of_all_images(count: int, batch: int, *, rank: int) -> sampling.Plan:
    """Return the batches of all images in an order of the rank's own.

    So the ranks of a node do not read the same file at the same time.

    Args:
        count: The number of images.
        batch: Images in a batch.
        rank: The number of this rank, which decides the order.
    """
    # With rank 0 of 1 the plan has all images, however many ranks there are.
    return sampling.training_plan(count, batch=batch, rank=0, ranks=1, seed=SEED + rank)


class Reading(NamedTuple):
    """How much was read of a file, and how long that took."""

    read_bytes: int
    took_s: float


def read_uncached(path: Path, most_bytes: int) -> Reading:
    """Read the beginning of a file from the disk; return how much was read and how long it took.

    The kernel is first told to drop the file from its cache, or it might take the content from there.

    Args:
        path: The file.
        most_bytes: How many bytes to read at most.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # the whole file leaves the kernel's cache
        began = time.perf_counter()
        content = file.read(most_bytes)
        return Reading(len(content), time.perf_counter() - began)


class RankTimes(NamedTuple):
    """The times that one rank measured by itself."""

    host_index: int  # of the compared host that it belongs to: its node, or the rank itself in a job of one node
    values: dict[str, list[float]]  # {metric: a value for each turn}
    failures: dict[str, str]  # {metric: why it was not measured}
    step_times_s: list[float]  # of each training step of all turns


def measure_in_turns(me: ranks.Ranks, measurements: RankMeasurements, *, host_index: int) -> RankTimes:
    """Measure on all ranks at once, in several turns; return what this rank measured.

    A turn takes each measurement once. All ranks must call this together.

    Args:
        me: This rank, with its MPI communicator of all ranks.
        measurements: The measurements that this rank makes by itself.
        host_index: The number of this rank's host among the compared hosts, from 0.

    Returns:
        For each metric a value of each turn in which it was measured: TURNS (16) turns, or fewer if they take too long,
        but at least MIN_TURNS (6). Also the reasons of failures, and the seconds of each training step.
    """
    until_s = time.monotonic() + TURNS * TURN_S
    warm_up = _take_turn_together(me, measurements, failed_metrics=())  # its values do not count
    failures = warm_up.failures  # what failed in any turn is not tried again
    turns: list[Turn] = []
    while len(turns) < TURNS:
        turn = _take_turn_together(me, measurements, failures)
        turns.append(turn)
        failures = failures | turn.failures
        is_late = me.comm.bcast(time.monotonic() > until_s)  # rank 0's answer, so that all ranks end together
        if is_late and len(turns) >= MIN_TURNS:
            break
    step_times_s = list(itertools.chain.from_iterable(turn.step_times_s for turn in turns))
    return RankTimes(host_index, _values_by_metric(turns), failures, step_times_s)


def _values_by_metric(turns: Sequence[Turn]) -> dict[str, list[float]]:
    """Return for each metric its values in the turns in which it was measured."""
    values_by_metric: dict[str, list[float]] = {}
    for turn in turns:
        for metric, value in turn.values.items():
            values_by_metric.setdefault(metric, []).append(value)
    return values_by_metric


def _take_turn_together(me: ranks.Ranks, measurements: RankMeasurements, failed_metrics: Container[str]) -> Turn:
    """Take this rank's measurements once, at the same time as all other ranks; return the results.

    All ranks must call this together. A comparison of their results cancels whatever slows them all at this time.

    Args:
        me: This rank, with its MPI communicator of all ranks.
        measurements: The measurements that this rank makes by itself.
        failed_metrics: Names of the metrics that failed in an earlier turn. Their measurements are left out.
    """
    ranks.wait(me.comm)  # for all other ranks
    return measurements.take_turn(failed_metrics)


def merge_by_host(hosts: list[str], times_by_rank: Sequence[RankTimes]) -> JsonObject:
    """Return the entry "metrics" of fleet.json: for each metric the times of each host, and why a host has none.

    Args:
        hosts: The names of the compared hosts.
        times_by_rank: What each rank measured, with the index of its host in `hosts`.

    Returns:
        For each metric what `_merge_metric` returns. For two turns and two hosts, of which the second host failed:

            {"disk_s_per_gib": {"series": [[0.21, 0.22], None], "reasons": {"1": "not possible here: no DATADIR"}}}
    """
    metric_names: list[str] = []  # in the order in which the ranks have them
    ranks_by_host: list[list[RankTimes]] = [[] for _ in hosts]
    for of_rank in times_by_rank:
        for metric in (*of_rank.values, *of_rank.failures):
            if metric not in metric_names:
                metric_names.append(metric)
        ranks_by_host[of_rank.host_index].append(of_rank)
    return {metric: _merge_metric(metric, ranks_by_host) for metric in metric_names}


def _merge_metric(metric: str, ranks_by_host: Sequence[Sequence[RankTimes]]) -> JsonObject:
    """Merge what the ranks measured of one metric into a series of times for each host, as fleet.json has it.

    Args:
        metric: The name of the metric, such as "disk_s_per_gib".
        ranks_by_host: For each host the times of its ranks.

    Returns:
        An object such as {"series": [[0.21, 0.22], None], "reasons": {"1": "no DATADIR"}}. "series" has for each host
        the time of its slowest rank in each turn; None if no rank of the host measured the metric, or one failed.
        "reasons" says, by the index of a host, why a rank of it failed.
    """
    series: list[list[float] | None] = []
    reasons: dict[str, str] = {}
    for host_index, ranks_of_host in enumerate(ranks_by_host):
        failures_of_ranks = [of_rank.failures[metric] for of_rank in ranks_of_host if metric in of_rank.failures]
        if failures_of_ranks:
            reasons[str(host_index)] = failures_of_ranks[0]
            series.append(None)
        else:
            series.append(_times_of_host(metric, ranks_of_host))
    return {"series": series, "reasons": reasons}


def _times_of_host(metric: str, ranks_of_host: Sequence[RankTimes]) -> list[float] | None:
    """Return the time of a host's slowest rank in each turn; None if none of its ranks measured the metric."""
    times_by_rank = [of_rank.values[metric] for of_rank in ranks_of_host if metric in of_rank.values]
    return slowest_of_each_turn(times_by_rank) if times_by_rank else None


def slowest_of_each_turn(times_by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the longest time of each turn over several ranks, because a node is as slow as its slowest rank."""
    return [max(times_of_turn) for times_of_turn in zip(*times_by_rank, strict=True)]
