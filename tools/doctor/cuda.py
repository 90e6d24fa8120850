"""Starts CUDA as a rank will: the driver, its GPUs, and a context on each, in processes that may hang or die.

NVML answers where CUDA does not: where Fabric Manager is missing, MIG is on, /dev/nvidia-uvm cannot be opened or a
library is of another driver.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.doctor.child import Talk, talk

SILENT_S = 20.0  # without persistence a driver loads in some seconds a GPU
ALL_S = 90.0  # after which no further GPU is asked
DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm")  # that every process with a context opens
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
FABRIC_MANAGER = ("nv-fabricmanager", "--version")


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
    fault: Step | None = None  # of the start itself, after which no GPU is asked
    gpus: Mapping[int, Step] = field(default_factory=dict)  # by CUDA's number

    @property
    def is_sound(self) -> bool:
        """Whether every GPU that was asked has given a context."""
        return self.fault is None and bool(self.gpus) and all(step.code == 0 for step in self.gpus.values())

    @property
    def version_words(self) -> str:
        """CUDA's version as "12.4"."""
        return "unknown" if self.version is None else f"{self.version // 1000}.{self.version % 1000 // 10}"


@dataclass(frozen=True, kw_only=True)
class System:
    """The parts of a driver that decide whether CUDA starts and that NVML does not tell of."""

    devices: Mapping[str, str]  # why each of DEVICES cannot be opened; empty: it can
    kernel_module: str | None  # version of the loaded one
    fabric_manager: str | None  # version of the one installed here; a container mostly has none


def start(environ: Mapping[str, str], gpus: int) -> CudaStart:
    """Starts CUDA in the environment of a rank and asks for a context on each of the first `gpus` GPUs.

    A GPU on which the process hangs or dies is left out, and a new process asks the ones behind it.
    """
    until_s = time.monotonic() + ALL_S
    steps: dict[int, Step] = {}
    first = 0
    while True:
        said = talk("ask_cuda.py", str(first), str(gpus), environ=environ, silent_s=SILENT_S)
        found = _read(said)
        steps |= found.gpus
        stopped_at = max(found.gpus, default=None)
        ended_in_a_gpu = bool(said.ended) and found.fault is None and stopped_at is not None
        if not ended_in_a_gpu:
            break
        assert stopped_at is not None
        first = stopped_at + 1
        if first >= min(gpus, found.count or 0) or time.monotonic() > until_s:
            break
    return CudaStart(
        library=found.library,
        version=found.version,
        count=found.count,
        fault=found.fault,
        gpus=dict(sorted(steps.items())),
    )


def _read(said: Talk) -> CudaStart:
    """A child's answers in the order in which they came; the step that it began and did not end is where it ended."""
    library, version, count = "", None, None
    steps: dict[str, Step] = {}
    calls: dict[str, str] = {}  # of the steps that were begun
    begun = ""
    for answer in said.answers():
        library = answer.get("path", library)
        version = answer.get("version", version)
        count = answer.get("count", count)
        if "begin" in answer:
            begun = answer["begin"]
            calls[begun] = answer["call"]
        elif "end" in answer:
            name = answer["end"]
            steps[name] = Step(call=calls[name], code=answer["code"], name=answer.get("name", ""))
            begun = ""
    if said.ended:
        begun = begun or "end"  # after its last step, as the library was unloaded
        steps[begun] = Step(call=calls.get(begun, "exit"), ended=said.ended)

    gpus = {}
    fault = None
    for name, step in steps.items():
        if name.startswith("gpu "):
            gpus[int(name.removeprefix("gpu "))] = step
        elif step.code != 0:
            fault = step
    return CudaStart(library=library, version=version, count=count, fault=fault, gpus=gpus)


def system() -> System:
    """The driver's parts outside NVML, as this process sees them."""
    return System(
        devices={path: _cannot_open(path) for path in DEVICES},
        kernel_module=_kernel_module(),
        fabric_manager=_fabric_manager(),
    )


def _cannot_open(path: str) -> str:
    """Why a device cannot be opened for reading and writing; empty if it can."""
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
    """Version of the driver's kernel module that is loaded; None without one."""
    version = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", kernel_module_text())
    return version[0] if version else None


def _fabric_manager() -> str | None:
    """Version of the Fabric Manager on this machine; None where there is none to ask."""
    try:
        done = subprocess.run(FABRIC_MANAGER, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\d+\.\d+(?:\.\d+)?", done.stdout)
    return version[0] if version else None
