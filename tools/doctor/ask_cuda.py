"""Asks CUDA's driver for a context on GPUs FIRST to LAST - 1: the doctor starts `ask_cuda.py FIRST LAST` (see cuda.py).

It prints a JSON line before and after each step, so that the doctor knows in which step this process hung or died. It
imports nothing of the project: it must start where the rest does not.
"""

import ctypes
import json
import sys
from pathlib import Path
from typing import NamedTuple


class ContextCalls(NamedTuple):
    """The driver's functions that make a context and end it."""

    create: str
    destroy: str


# The newest first: an old driver has the others alone.
CONTEXT_CALLS = (
    ContextCalls("cuCtxCreate_v2", "cuCtxDestroy_v2"),
    ContextCalls("cuCtxCreate", "cuCtxDestroy"),
)


def say(**answer: object) -> None:
    """Print a JSON line at once: the next call may never come back."""
    print(json.dumps(answer), flush=True)


def name_of(driver: ctypes.CDLL, code: int) -> str:
    """Return the driver's own name of a result, as CUDA_ERROR_NO_DEVICE; empty where it has none."""
    name = ctypes.c_char_p()
    try:
        driver.cuGetErrorName(code, ctypes.byref(name))
    except AttributeError:
        return ""
    return (name.value or b"").decode(errors="replace")


def ask(driver: ctypes.CDLL, step: str, function: str, *arguments: object) -> bool:
    """Call a function of the driver, with a line before it and one about its result; return whether it succeeded."""
    say(begin=step, call=function)
    code = getattr(driver, function)(*arguments)
    say(end=step, code=code, name=name_of(driver, code))
    return bool(code == 0)


def library_path() -> str:
    """Return the file that was loaded as libcuda.so.1, by the list of this process's memory; empty if none was."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        _, _, path = line.partition("/")
        if "libcuda.so" in path:
            return f"/{path}"
    return ""


def ask_gpu(driver: ctypes.CDLL, number: int) -> None:
    """Make a CUDA context on a GPU and end it again; print a line before and after each of the driver's calls.

    `number` counts the GPUs as CUDA shows them. The calls end at the first that fails.
    """
    step = f"gpu {number}"
    device = ctypes.c_int()
    if not ask(driver, step, "cuDeviceGet", ctypes.byref(device), number):
        return

    newest, older = CONTEXT_CALLS
    calls = newest if hasattr(driver, newest.create) else older
    context = ctypes.c_void_p()
    flags = 0
    if ask(driver, step, calls.create, ctypes.byref(context), flags, device):
        ask(driver, step, calls.destroy, context)


def main() -> None:
    """Load CUDA's driver, start it, count its GPUs, and make a context on each of them in turn.

    Each step is printed as a JSON line before it, `{"begin": "gpu 0", "call": "cuCtxCreate_v2"}`, and one after it with
    the result. The process ends at the first step of the driver itself that fails; a GPU that fails is passed over.
    """
    first = int(sys.argv[1])
    last = int(sys.argv[2])
    say(begin="load", call="dlopen")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        say(end="load", code=0, path=library_path())
        if not ask(driver, "start", "cuInit", 0):
            return
        version = ctypes.c_int()
        if hasattr(driver, "cuDriverGetVersion") and driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
            say(version=version.value)
        count = ctypes.c_int()
        if not ask(driver, "count", "cuDeviceGetCount", ctypes.byref(count)):
            return
        say(count=count.value)
        for number in range(first, min(last, count.value)):
            ask_gpu(driver, number)
    except (OSError, AttributeError) as error:  # no such library, or no such function in it
        say(end="load", code=None, name=str(error))


if __name__ == "__main__":
    main()
