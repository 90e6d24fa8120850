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
from typing import Any

from harness.child import Talk, talk
from runlog.json_types import JsonObject

ASK_CUDA = Path(__file__).with_name("ask_cuda.py")
SILENT_S = 20.0  # without persistence a driver loads in some seconds a GPU
ALL_S = 90.0  # after which no further GPU is asked
DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm")  # that every process with a context opens
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
FABRIC_MANAGER = ("nv-fabricmanager", "--version")
CUDA_SUCCESS = 0  # cuda.h: CUresult


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of CUDA's start and what came of it."""

    call: str  # the driver's function
    code: int | None = None  # its result (cuda.h: CUresult); None: there is none
    name: str = ""  # the driver's name of the result, or why nothing could be called
    ended: str = ""  # how the process ended within the step


@dataclass(frozen=True, kw_only=True)
class CudaStart:
    """The result of starting CUDA."""

    library: str = ""  # the file that was loaded as libcuda.so.1
    version: int | None = None  # of CUDA, as the driver has it: 12000 is 12.0
    count: int | None = None  # GPUs that CUDA shows
    fault: Step | None = None  # the step of the driver itself that failed, after which no GPU is asked
    gpus: Mapping[int, Step] = field(default_factory=dict)  # the last step on each GPU, by CUDA's number

    @property
    def faulty_gpus(self) -> dict[int, Step]:
        """Return the GPUs that gave no context, by CUDA's number, each with the step that failed."""
        return {number: step for number, step in self.gpus.items() if step.code != CUDA_SUCCESS}

    @property
    def is_sound(self) -> bool:
        """Return whether every GPU that was asked has given a context."""
        return self.fault is None and bool(self.gpus) and not self.faulty_gpus

    def runs(self, version: int) -> bool:
        """Return whether CUDA of at least this version, as 12000, has given a context on every GPU that was asked."""
        return self.is_sound and self.version is not None and self.version >= version

    @property
    def version_words(self) -> str:
        """Return CUDA's version as "12.4"."""
        return "unknown" if self.version is None else f"{self.version // 1000}.{self.version % 1000 // 10}"


@dataclass(frozen=True, kw_only=True)
class System:
    """The parts of a driver that decide whether CUDA starts and that NVML does not tell of."""

    devices: Mapping[str, str]  # why each of DEVICES cannot be opened; empty: it can
    kernel_module: str | None  # version of the loaded one
    fabric_manager: str | None  # version of the one installed here; a container mostly has none


def start(environ: Mapping[str, str], gpus: int) -> CudaStart:
    """Start CUDA in the environment of a rank, make a context on each of the first `gpus` GPUs, return what came of it.

    A child process asks the GPUs in turn, as a call of CUDA may hang or kill its process. If that happens on a GPU,
    the GPU has this as its fault, and a new child asks the GPUs after it, until ALL_S seconds have passed. If CUDA
    itself does not start, no GPU is asked. What is not of a single GPU is as the last child found it.
    """
    until_s = time.monotonic() + ALL_S
    gpu_steps: dict[int, Step] = {}
    first_gpu = 0
    while True:
        child = talk(ASK_CUDA, str(first_gpu), str(gpus), environ=environ, silent_s=SILENT_S)
        result = _read_answers(child)
        gpu_steps.update(result.gpus)
        has_hung_or_died = bool(child.failure)  # else the text is empty
        if not has_hung_or_died:
            break  # all GPUs were asked
        if result.fault is not None or not result.gpus:
            break  # CUDA itself does not start

        first_gpu = max(result.gpus) + 1  # behind the one on which the child hung or died
        gpus_there = min(gpus, result.count or 0)
        if first_gpu >= gpus_there or time.monotonic() > until_s:
            break
    return replace(result, gpus=dict(sorted(gpu_steps.items())))


def _read_answers(child: Talk) -> CudaStart:
    """Return what came of CUDA's start by the lines that the child, ask_cuda.py, printed.

    The child announces each step and reports its result:
        {"begin": "gpu 0", "call": "cuCtxCreate_v2"}
        {"end": "gpu 0", "code": 0, "name": "CUDA_SUCCESS"}
    Steps have the names "load", "start", "count" and "gpu 0", "gpu 1", ... A step that it began and did not end is
    where it hung or died.
    """
    answers = child.answers()
    steps = _ended_steps(answers)
    has_hung_or_died = bool(child.failure)  # how, in words
    if has_hung_or_died:
        name, call = _step_not_ended(answers)
        steps[name] = Step(call=call, ended=child.failure)

    gpus: dict[int, Step] = {}
    faults: list[Step] = []  # steps of the driver itself that failed
    for name, step in steps.items():
        if name.startswith("gpu "):
            gpus[int(name.removeprefix("gpu "))] = step
        elif step.code != CUDA_SUCCESS:
            faults.append(step)
    return CudaStart(
        library=_last_value(answers, "path") or "",
        version=_last_value(answers, "version"),
        count=_last_value(answers, "count"),
        fault=faults[-1] if faults else None,  # the child stops at the first; it may still die when it exits
        gpus=gpus,
    )


def _ended_steps(answers: list[JsonObject]) -> dict[str, Step]:
    """Return the steps that ended, by their names, with their results.

    A GPU's step has several calls, of which the last one's result stands: the child goes on only after a success.
    """
    call_of: dict[str, str] = {}
    steps: dict[str, Step] = {}
    for answer in answers:
        if "begin" in answer:
            call_of[answer["begin"]] = answer["call"]
        elif "end" in answer:
            name = answer["end"]
            steps[name] = Step(call=call_of[name], code=answer["code"], name=answer.get("name", ""))
    return steps


def _step_not_ended(answers: list[JsonObject]) -> tuple[str, str]:
    """Return name and call of the step that was begun and not ended, as ("gpu 0", "cuCtxCreate_v2").

    If all steps have ended it is ("end", "exit"): the process then died as it unloaded its libraries.
    """
    at_exit = ("end", "exit")
    running = at_exit
    for answer in answers:
        if "begin" in answer:
            running = (answer["begin"], answer["call"])
        elif "end" in answer:
            running = at_exit
    return running


def _last_value(answers: list[JsonObject], key: str) -> Any:
    """Return the value of a key in the last answer that has it; None if none has."""
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
    """Return why a device cannot be opened for reading and writing; empty if it can."""
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
    """Return the version of the driver's kernel module that is loaded, as "535.104.05"; None without one."""
    version = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", kernel_module_text())
    return version[0] if version else None


def _fabric_manager() -> str | None:
    """Return the version of the Fabric Manager on this machine; None if there is none to ask."""
    try:
        done = subprocess.run(FABRIC_MANAGER, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\d+\.\d+(?:\.\d+)?", done.stdout)
    return version[0] if version else None
