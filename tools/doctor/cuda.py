"""Starts CUDA as a rank will: the driver, its GPUs, and a context on each, in processes that may hang or die.

NVML answers where CUDA does not: where Fabric Manager is missing, MIG is on, /dev/nvidia-uvm cannot be opened or a
library is of another driver.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.child import Talk, talk
from runlog.json_types import JsonObject

ASK_CUDA = Path(__file__).with_name("ask_cuda.py")
SILENT_S = 20.0  # without persistence a driver loads in some seconds a GPU
ALL_S = 90.0  # after which no further child process is started
DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm")  # that every process with a context opens
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
FABRIC_MANAGER = ("nv-fabricmanager", "--version")
CUDA_SUCCESS = 0  # cuda.h: CUresult


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of CUDA's start and what came of it."""

    call: str  # the driver's function
    code: int | None = None  # its result (cuda.h: CUresult); None: there is none
    code_name: str = ""  # the driver's name of the result; empty: it has none
    reason: str = ""  # why nothing could be called, such as a missing library; empty: the function was called
    hang_or_death: str = ""  # how the process hung or died within the step: "no answer in 20 s"; empty: it did not

    @property
    def has_hung(self) -> bool:
        """Return whether the process hung within the step, by the words of harness/child.py."""
        return self.hang_or_death.startswith("no answer")

    @property
    def has_died(self) -> bool:
        """Return whether the process died within the step."""
        return bool(self.hang_or_death) and not self.has_hung

    @property
    def could_not_call(self) -> bool:
        """Return whether there was nothing to call: the library or its function is missing."""
        return self.code is None and not self.hang_or_death


@dataclass(frozen=True, kw_only=True)
class CudaStart:
    """The result of starting CUDA. A GPU was tried if a context was to be made on it."""

    library: str = ""  # the file that was loaded as libcuda.so.1
    version: int | None = None  # of CUDA, as the driver has it: 12000 is 12.0
    shown_gpus: int | None = None  # how many GPUs CUDA shows; None: it did not say
    failed_driver_step: Step | None = None  # the step of the driver itself that failed
    step_by_gpu: Mapping[int, Step] = field(default_factory=dict)  # the last step on each GPU tried, by CUDA's number

    @property
    def failed_steps_of_gpus(self) -> dict[int, Step]:
        """Return the GPUs that gave no context, by CUDA's number, each with the step that failed."""
        return {number: step for number, step in self.step_by_gpu.items() if step.code != CUDA_SUCCESS}

    @property
    def is_sound(self) -> bool:
        """Return whether every GPU that was tried has given a context."""
        return self.failed_driver_step is None and bool(self.step_by_gpu) and not self.failed_steps_of_gpus

    def runs(self, version: int) -> bool:
        """Return whether CUDA of at least some version has given a context on every GPU that was tried.

        Args:
            version: The version as an integer, such as 12010 for 12.1.

        Returns:
            False also if no GPU was tried, or the version that started is unknown.
        """
        return self.is_sound and self.version is not None and self.version >= version

    @property
    def version_words(self) -> str:
        """Return CUDA's version as "12.4"."""
        return "unknown" if self.version is None else f"{self.version // 1000}.{self.version % 1000 // 10}"


@dataclass(frozen=True, kw_only=True)
class System:
    """The parts of a driver that decide whether CUDA starts, and about which NVML says nothing."""

    devices: Mapping[str, str]  # why each of DEVICES cannot be opened; empty: it can
    kernel_module: str | None  # version of the loaded one
    fabric_manager: str | None  # version of the one installed here; a container mostly has none


def try_start(environ: Mapping[str, str], gpu_count: int) -> CudaStart:
    """Try to start CUDA as a rank would, and to make a context on each of the first GPUs.

    A process needs a context to compute on a GPU. A call of CUDA may hang or kill its process, so a child process makes
    the calls. If the child hangs or dies on a GPU, another child goes on with the next GPU. No child is started after
    ALL_S (90) seconds.

    Args:
        environ: Environment variables of a rank.
        gpu_count: How many GPUs to try, in CUDA's order.

    Returns:
        What the last child found, but `step_by_gpu` has the GPUs of all children. If one child died on GPU 2 and
        another went on with GPU 3, for example, these are the GPUs 0 to 2 of the first and from 3 on of the second.
    """
    until_s = time.monotonic() + ALL_S
    step_by_gpu_of_all: dict[int, Step] = {}
    next_gpu: int | None = 0  # with which the next child begins; None: no further child is started
    while next_gpu is not None:
        child = _ask_cuda(environ, next_gpu, gpu_count)  # tries `next_gpu` and the GPUs after it
        start = _read_answers(child)
        step_by_gpu_of_all |= start.step_by_gpu
        is_out_of_time = time.monotonic() > until_s
        # `_next_gpu` gives the GPU after the one on which the child hung or died; None if another child is of no use.
        next_gpu = None if is_out_of_time else _next_gpu(child, start, gpu_count)
    return replace(start, step_by_gpu=dict(sorted(step_by_gpu_of_all.items())))


def _ask_cuda(environ: Mapping[str, str], first_gpu: int, gpu_count: int) -> Talk:
    """Try to start CUDA in a child process, and return what the child printed and how it hung or died.

    A library may end the child in the middle of a call, with status 0 as if all were well. This counts as a death, too:
    "ended with status 0".

    Args:
        environ: Environment variables of a rank.
        first_gpu: The first GPU to try, in CUDA's order.
        gpu_count: How many GPUs the job uses on a node.
    """
    # `hang_or_death` is empty if the child ended by itself with status 0.
    child = talk(ASK_CUDA, str(first_gpu), str(gpu_count), environ=environ, silent_s=SILENT_S)
    # `_running_call` returns a call that the child began and did not end; _EXIT stands for no such call.
    ended_in_a_call = _running_call(child.answers()) != _EXIT
    if ended_in_a_call and not child.hang_or_death:
        return replace(child, hang_or_death="ended with status 0")
    return child


def _next_gpu(child: Talk, start: CudaStart, gpu_count: int) -> int | None:
    """Return the GPU with which another child process should go on, after a child hung or died on a GPU.

    If a child was to try the GPUs 0 to 7 and died on GPU 2, for example, another child should go on with GPU 3.

    Args:
        child: The child process, which started CUDA and then tried the GPUs in ascending order.
        start: The result of this child. The keys of `step_by_gpu` are the GPUs that the child tried, such as 0, 1, 2.
        gpu_count: How many GPUs the job uses on a node.

    Returns:
        CUDA's number of the GPU. None if another child would come no further.
    """
    child_ended_by_itself = child.hang_or_death == ""
    if child_ended_by_itself:
        return None
    # A step that is not on a GPU failed, such as cuInit or the child's exit. It would fail in another child, too.
    if start.failed_driver_step is not None:
        return None
    # So the child hung or died on a GPU, which is the last one that it tried.
    next_gpu = max(start.step_by_gpu) + 1
    gpus_shown_by_cuda = start.shown_gpus or 0  # None: CUDA did not say
    is_left = next_gpu < min(gpu_count, gpus_shown_by_cuda)
    return next_gpu if is_left else None


def _read_answers(child: Talk) -> CudaStart:
    """Return what came of starting CUDA in a child process, from the lines that the child (ask_cuda.py) printed.

    CUDA starts in steps named "load", "start", "count", "gpu 0", "gpu 1" and so on. A step is one or more calls of
    functions: "gpu 0" calls cuDeviceGet, cuCtxCreate_v2 and cuCtxDestroy_v2, each only if the one before it succeeds.
    The last call decides what came of the step.

    Args:
        child: The lines that the child printed, and `hang_or_death`, which is empty if the child neither hung nor died.
    """
    answers = child.answers()  # JSON objects: {"begin": ...} before a call, {"end": ...} after it, and values
    step_by_name = _last_ended_calls(answers)  # each step's last ended call: {"load": Step(call="dlopen", code=0), ...}
    if child.hang_or_death:
        # ("gpu 0", "cuCtxCreate_v2") if the child hung or died in this call. The call is later than the ended calls of
        # its step, here cuDeviceGet, so it replaces them. If no call was running, it is ("end", "exit"): the child hung
        # or died at its exit, which then counts as a step named "end".
        running = _running_call(answers)
        step_by_name[running.step_name] = Step(call=running.function, hang_or_death=child.hang_or_death)
    return CudaStart(
        library=_last_value(answers, "path") or "",  # the value that the child printed under the key "path"
        version=_last_value(answers, "version"),
        shown_gpus=_last_value(answers, "count"),
        failed_driver_step=_failed_driver_step(step_by_name),  # of all steps but those on GPUs
        step_by_gpu=_step_by_gpu(step_by_name),  # {0: the step "gpu 0", ...}
    )


def _failed_driver_step(step_by_name: Mapping[str, Step]) -> Step | None:
    """Return the last step of the driver itself that failed; None if none did.

    Two may have failed: first a step such as "start" (the call of cuInit), then "end", the exit of the child process,
    if the driver crashed there. The exit is returned then, because a crash says more than a failed call.

    Args:
        step_by_name: The steps of CUDA's start in their order, by name: "load", "start", "count", "gpu 0" and so on.
            Those with "gpu" are not of the driver itself. The last one is "end" if the child hung or died at its exit.
    """
    last_failed = None
    for name, step in step_by_name.items():
        is_of_driver = _gpu_of_step(name) is None  # no step such as "gpu 0"
        if is_of_driver and step.code != CUDA_SUCCESS:
            last_failed = step
    return last_failed


def _step_by_gpu(step_by_name: Mapping[str, Step]) -> dict[int, Step]:
    """Return what came of each GPU when CUDA was started: {"load": a, "gpu 0": b, "gpu 1": c} -> {0: b, 1: c}.

    Args:
        step_by_name: The result of each step of the start, by the step's name. In the step "gpu 0" a context was to be
            made on CUDA's GPU 0. Steps with other names, such as "load", are on no GPU and are left out.
    """
    step_by_gpu = {}
    for name, step in step_by_name.items():
        gpu = _gpu_of_step(name)  # 3 for "gpu 3", None for "load"
        if gpu is not None:
            step_by_gpu[gpu] = step
    return step_by_gpu


def _gpu_of_step(step_name: str) -> int | None:
    """Return the GPU of a step of CUDA's start: "gpu 3" -> 3; None for a step of the driver itself.

    Args:
        step_name: Name of the step, such as "gpu 3" or "load".
    """
    if step_name.startswith("gpu "):
        return int(step_name.removeprefix("gpu "))
    return None


def _last_ended_calls(answers: list[JsonObject]) -> dict[str, Step]:
    """Return the last ended call of each step of CUDA's start, with the call's result, by the name of the step.

    A step, such as "gpu 0", is one or more calls of the driver's functions. Each call that has ended has two answers:

        {"begin": "gpu 0", "call": "cuCtxCreate_v2"}
        {"end": "gpu 0", "code": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"}

    These two give {"gpu 0": Step(call="cuCtxCreate_v2", code=2, code_name="CUDA_ERROR_OUT_OF_MEMORY")}. The last ended
    call is the one that counts, because the child leaves out the rest of a step after a call that fails.

    Args:
        answers: The JSON lines of the child process, in their order. The step "load" begins first.

    Returns:
        The calls. A step of which no call has ended is missing.
    """
    begun_call_by_step: dict[str, str] = {}
    ended_call_by_step: dict[str, Step] = {}
    for answer in answers:
        if "begin" in answer:
            step_name = answer["begin"]
            begun_call_by_step[step_name] = answer["call"]
        elif "end" in answer:
            # Usually the step of the call that has begun last. But if the driver lacks the function cuDeviceGet, for
            # example, {"begin": "gpu 0", ...} is followed by {"end": "load", "code": None, "reason": ...}. Then "load"
            # has failed, recorded with its own call, "dlopen", and this call of "gpu 0" is not recorded.
            step_name = answer["end"]
            ended_call_by_step[step_name] = Step(
                call=begun_call_by_step[step_name],
                code=answer["code"],
                code_name=answer.get("name", ""),
                reason=answer.get("reason", ""),
            )
    return ended_call_by_step


class _Call(NamedTuple):
    """A call of the child: the step that it is a part of, and the driver's function."""

    step_name: str
    function: str


_EXIT = _Call("end", "exit")  # of the child's process, which then unloads its libraries


def _running_call(answers: list[JsonObject]) -> _Call:
    """Return the call of CUDA that a child process has begun and not ended, by the lines that it printed.

    For example, {"begin": "gpu 0", "call": "cuCtxCreate_v2"} without an "end" after it gives ("gpu 0",
    "cuCtxCreate_v2"). If each begun call has ended, or none has begun, the result is _EXIT, which is ("end", "exit").

    Args:
        answers: The child's JSON lines in their order: one with "begin" before each call, and one with "end" after it.
    """
    running = _EXIT  # no call is running: if the process hangs or dies now, that counts as a fault of its exit
    for answer in answers:
        if "begin" in answer:
            running = _Call(answer["begin"], answer["call"])
        elif "end" in answer:  # it ends the call begun last, because the child makes one call at a time
            running = _EXIT
    return running


def _last_value(answers: list[JsonObject], key: str) -> Any:
    """Return the value of a key in the last answer that has the key; None if no answer has it.

    Args:
        answers: The JSON lines of the child process, in their order.
        key: The key, such as "version".
    """
    value = None
    for answer in answers:
        value = answer.get(key, value)
    return value


def system() -> System:
    """Return the driver's parts outside NVML, as this process sees them."""
    return System(
        devices={path: _cannot_open(path) for path in DEVICES},
        kernel_module=_kernel_module(),
        fabric_manager=_fabric_manager(),
    )


def _cannot_open(path: str) -> str:
    """Return why a device cannot be opened for reading and writing; empty if it can.

    Args:
        path: Path of the device file, such as /dev/nvidia-uvm.
    """
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def kernel_module_text() -> str:
    """Return the text of the driver's loaded kernel module about itself; empty without one."""
    try:
        return KERNEL_MODULE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kernel_module() -> str | None:
    """Return the version of the driver's kernel module that is loaded, such as "535.104.05"; None without one."""
    version = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", kernel_module_text())
    return version[0] if version else None


def _fabric_manager() -> str | None:
    """Return the version of the Fabric Manager installed here; None if none is installed or it does not answer."""
    try:
        done = subprocess.run(FABRIC_MANAGER, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\d+\.\d+(?:\.\d+)?", done.stdout)
    return version[0] if version else None
