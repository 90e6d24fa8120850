"""Asks CUDA's driver for a context on GPUs FIRST to LAST - 1: the doctor starts `ask_cuda.py FIRST LAST` (see cuda.py).

It prints a JSON line before and after each step, so that the doctor knows in which step this process hung or died. It
imports nothing of the project: it must start where the rest does not.
"""

import ctypes
import json
import sys
from pathlib import Path
from typing import NamedTuple

CUDA_SUCCESS = 0  # cuda.h: CUresult


class ContextCalls(NamedTuple):
    """The driver's functions that make a context and end it."""

    create: str
    destroy: str


# The newest first.
CONTEXT_CALLS = (
    ContextCalls("cuCtxCreate_v2", "cuCtxDestroy_v2"),
    ContextCalls("cuCtxCreate", "cuCtxDestroy"),
)


def say(**answer: object) -> None:
    """Print a JSON line at once: the next call may never come back."""
    print(json.dumps(answer), flush=True)


def name_of(driver: ctypes.CDLL, code: int) -> str:
    """Return the driver's own name of a result, as CUDA_ERROR_NO_DEVICE; empty if it has none."""
    name = ctypes.c_char_p()
    try:
        driver.cuGetErrorName(code, ctypes.byref(name))
    except AttributeError:
        return ""
    return (name.value or b"").decode(errors="replace")


def ask(driver: ctypes.CDLL, step: str, function: str, *arguments: object) -> bool:
    """Call a function of CUDA's driver, and print a JSON line before it and one with its result.

    `step` is what the function is called for, as "gpu 0". Return whether it succeeded. Raises AttributeError if the
    driver has no such function.
    """
    say(begin=step, call=function)
    code = getattr(driver, function)(*arguments)
    say(end=step, code=code, name=name_of(driver, code))
    has_succeeded = code == CUDA_SUCCESS
    return bool(has_succeeded)


def library_path() -> str:
    """Return the file that was loaded as libcuda.so.1, by the list of this process's memory; empty if none was."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        _, _, path = line.partition("/")
        if "libcuda.so" in path:
            return f"/{path}"
    return ""


def version_of(driver: ctypes.CDLL) -> int | None:
    """Return the version of CUDA that a driver runs, 12020 for 12.2; None if it does not tell it."""
    version = ctypes.c_int()
    if hasattr(driver, "cuDriverGetVersion") and driver.cuDriverGetVersion(ctypes.byref(version)) == CUDA_SUCCESS:
        return version.value
    return None


def ask_gpu(driver: ctypes.CDLL, number: int) -> None:
    """Make a context on a GPU and end it again: what a process needs before it can compute there.

    `number` counts the GPUs from 0 in CUDA's order. `ask` prints a JSON line before and after each call of the driver.
    After a call that fails no other is made.
    """
    step = f"gpu {number}"
    device = ctypes.c_int()
    if not ask(driver, step, "cuDeviceGet", ctypes.byref(device), number):
        return

    newest, older = CONTEXT_CALLS
    calls = newest if hasattr(driver, newest.create) else older  # an old driver has the older ones alone
    context = ctypes.c_void_p()
    flags = 0
    if ask(driver, step, calls.create, ctypes.byref(context), flags, device):
        ask(driver, step, calls.destroy, context)


def main() -> None:
    """Load CUDA's driver, start it, count its GPUs, and make a context on GPU FIRST and those after it, before LAST.

    A JSON line is printed before each step, `{"begin": "gpu 0", "call": "cuCtxCreate_v2"}`, and one after it with the
    result. Two more lines have the driver's `version`, if it tells one, and the `count` of GPUs.

    The process ends at the first step of the driver itself that fails; a GPU that fails is passed over. If the
    library or one of its functions is missing, the last line is the end of "load", with the code null and why.
    """
    first = int(sys.argv[1])
    last = int(sys.argv[2])  # one behind the last that is asked
    say(begin="load", call="dlopen")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        say(end="load", code=0, path=library_path())
        if not ask(driver, "start", "cuInit", 0):
            return
        version = version_of(driver)
        if version is not None:
            say(version=version)
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
