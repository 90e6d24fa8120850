"""The doctor's judgement of whether a GPU is free for the job: the processes on it, and its memory in use."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from harness import env, nvidia
from runlog.verdict import FATAL, OK, WARNING, Verdict
from tools.doctor.rows import NOT_SAID, gpu_name, judge_check

FOREIGN_MIB = 500  # tolerated in use on a GPU before a run; somebody else must hold more
RESERVE_MIB = 1500  # the most that a driver may keep for itself, if NVML reports only a sum; up to 1000 was seen
END_DISPLAY = "the display takes this memory: end it (systemctl isolate multi-user.target), or leave this GPU out"
END_SERVICE = "a service holds the GPU, as nvidia-cuda-mps-server does: end it before a run that is published"


def judge_processes(gpu: nvidia.Gpu, job: env.Job) -> Verdict:
    """Return the verdict on whether the GPU is free for the job.

    The first of these that holds decides:

        fatal     a process computes on the GPU that is neither a service nor a display
        warning   too much memory is in use, and a display is there, which may hold it
        fatal     too much memory is in use, and no display is there
        warning   a service, such as nvidia-cuda-mps-server, is on the GPU
        warning   how much memory is in use is unknown
        ok        none of these

    Args:
        gpu: Properties of the GPU by NVML: its memory in use, and the ids of processes that compute (`processes`), of
            those among them that are only services (`services`), and of those that draw (`displays`).
        job: Settings of the training job, for the texts of the verdict.
    """
    # The memory in use shows a process even where none is listed: a container lists no process outside it.
    memory_in_use = _memory_in_use(gpu)  # `mib` is None if unknown, and `most_mib` is the most that is tolerated
    # NVML may list the processes of a display among those that compute, so displays are taken out.
    computing = [pid for pid in gpu.processes or () if pid not in gpu.displays]
    found = f"{gpu_name(gpu)}: {_processes_in_words(gpu, computing)}, {memory_in_use.words}"
    # `verdict(FATAL)` makes a fatal verdict of this check. `fix` is what to do, in place of the check's usual text, and
    # `most` fills the text on what is wanted, "no process, under 500 MiB in use".
    verdict = functools.partial(judge_check, job, "gpu.processes", found=found, most=memory_in_use.most_mib)

    # A process that computes counts as another job's if it is not a service, such as nvidia-cuda-mps-server.
    jobs = [pid for pid in computing if pid not in gpu.services]
    if jobs:
        return verdict(FATAL)
    if memory_in_use.is_too_much:
        if gpu.displays:  # which may explain it
            return verdict(WARNING, fix=END_DISPLAY)
        return verdict(FATAL)
    if computing:  # only services
        return verdict(WARNING, fix=END_SERVICE)
    if memory_in_use.mib is None:
        return verdict(WARNING, fix=NOT_SAID)
    return verdict(OK)


def _processes_in_words(gpu: nvidia.Gpu, computing: list[int]) -> str:
    """Return the processes on a GPU as text: "pids 4711, of a display 815".

    Args:
        gpu: Properties of the GPU by NVML. Its `processes` are None if unknown, and its `displays` are those that draw.
        computing: Ids of the processes that compute on the GPU and are not of a display.
    """
    words = "pids unknown" if gpu.processes is None else f"pids {_pids(computing)}"
    if gpu.displays:
        words += f", of a display {_pids(gpu.displays)}"
    return words


@dataclass(frozen=True, kw_only=True)
class _MemoryInUse:
    """The memory of a GPU that is in use before a run."""

    mib: int | None  # None: unknown
    most_mib: int  # the most that is tolerated
    words: str  # "1024 MiB in use"

    @property
    def is_too_much(self) -> bool:
        """Return whether so much is in use that somebody else must hold some of it; False if unknown."""
        return self.mib is not None and self.mib > self.most_mib


def _memory_in_use(gpu: nvidia.Gpu) -> _MemoryInUse:
    """Return how much of a GPU's memory is in use before a run, and the most that is tolerated: FOREIGN_MIB.

    Some drivers report only a sum that includes the memory that they keep for themselves. RESERVE_MIB more are then
    tolerated.

    Args:
        gpu: Properties of the GPU by NVML.

    Returns:
        The memory in MiB and in words. If the driver reports neither number, `mib` is None.
    """
    used_mib = gpu.memory_used_mib
    if used_mib is not None:
        return _MemoryInUse(mib=used_mib, most_mib=FOREIGN_MIB, words=f"{used_mib} MiB in use")
    most_mib_of_sum = FOREIGN_MIB + RESERVE_MIB
    sum_mib = gpu.memory_used_or_reserved_mib
    if sum_mib is not None:
        return _MemoryInUse(mib=sum_mib, most_mib=most_mib_of_sum, words=f"{sum_mib} MiB in use or kept by the driver")
    return _MemoryInUse(mib=None, most_mib=most_mib_of_sum, words="memory in use unknown")


def _pids(pids: Iterable[int]) -> str:
    """Return pids as text, comma-separated; "none" if there are none."""
    return ", ".join(str(pid) for pid in pids) or "none"
