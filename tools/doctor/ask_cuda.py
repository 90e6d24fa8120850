"""Asks CUDA's driver for a context on GPUs FIRST to LAST - 1: the doctor starts `ask_cuda.py FIRST LAST` (see cuda.py).

It prints a JSON line before and after each step, so that the doctor knows in which step this process hung or died. It
imports nothing of the project: it must start where the rest does not.
"""

import ctypes
import json
import sys
from pathlib import Path

# The calls that make a context and end it, newest first.
CONTEXT_CALLS = (("cuCtxCreate_v2", "cuCtxDestroy_v2"), ("cuCtxCreate", "cuCtxDestroy"))


def say(**answer: object) -> None:
    """Prints a line at once: the next call may never come back."""
    print(json.dumps(answer), flush=True)


def name_of(driver: ctypes.CDLL, code: int) -> str:
    """The driver's own name of a result, as CUDA_ERROR_NO_DEVICE; empty where it has none."""
    name = ctypes.c_char_p()
    try:
        driver.cuGetErrorName(code, ctypes.byref(name))
    except AttributeError:
        return ""
    return (name.value or b"").decode(errors="replace")


def ask(driver: ctypes.CDLL, step: str, function: str, *arguments: object) -> bool:
    """Calls a function of the driver and says what came of it; whether it succeeded."""
    say(begin=step, call=function)
    code = getattr(driver, function)(*arguments)
    say(end=step, code=code, name=name_of(driver, code))
    return bool(code == 0)


def library_path() -> str:
    """The file that was loaded as libcuda.so.1, by the list of this process's memory."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        _, _, path = line.partition("/")
        if "libcuda.so" in path:
            return f"/{path}"
    return ""


def ask_gpu(driver: ctypes.CDLL, number: int) -> None:
    """Makes a context on one GPU and ends it."""
    step = f"gpu {number}"
    device = ctypes.c_int()
    if not ask(driver, step, "cuDeviceGet", ctypes.byref(device), number):
        return

    create, destroy = CONTEXT_CALLS[0] if hasattr(driver, CONTEXT_CALLS[0][0]) else CONTEXT_CALLS[1]
    context = ctypes.c_void_p()
    if ask(driver, step, create, ctypes.byref(context), 0, device):
        ask(driver, step, destroy, context)


def main() -> None:
    """Starts the driver, counts its GPUs, and asks each of them in turn; ends at the first step without an answer."""
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
