"""Asks CUDA's driver for a context on GPUs FIRST to END, END excluded: cuda.py starts `ask_cuda.py FIRST END`.

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


CONTEXT_CALLS = ContextCalls("cuCtxCreate_v2", "cuCtxDestroy_v2")
CONTEXT_CALLS_OF_OLD_DRIVER = ContextCalls("cuCtxCreate", "cuCtxDestroy")  # with the same arguments


def name_of(driver: ctypes.CDLL, code: int) -> str:
    """Return the driver's name of a result, such as CUDA_ERROR_NO_DEVICE; empty if the driver has no name for it.

    Args:
        driver: CUDA's driver, the loaded libcuda.so.1.
        code: The result of a call (cuda.h: CUresult).
    """
    name = ctypes.c_char_p()
    try:
        driver.cuGetErrorName(code, ctypes.byref(name))
    except AttributeError:
        return ""
    return (name.value or b"").decode(errors="replace")


def library_path() -> str:
    """Return the file that this process loaded as libcuda.so.1, by its memory maps; empty if none is listed."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        _, _, path = line.partition("/")
        if "libcuda.so" in path:
            return f"/{path}"
    return ""


def version_of(driver: ctypes.CDLL) -> int | None:
    """Return the version of CUDA that a driver supports, 12020 for 12.2; None if the driver does not report it.

    Args:
        driver: CUDA's driver, the loaded libcuda.so.1.
    """
    version = ctypes.c_int()
    if hasattr(driver, "cuDriverGetVersion") and driver.cuDriverGetVersion(ctypes.byref(version)) == CUDA_SUCCESS:
        return version.value
    return None


def print_line(**answer: object) -> None:
    """Print a JSON line and flush it, because the next call of the driver may never return."""
    print(json.dumps(answer), flush=True)


def call_and_print(driver: ctypes.CDLL, step: str, function: str, *arguments: object) -> bool:
    """Call a function of CUDA's driver, print a JSON line before and after it, and return whether it succeeded.

    Args:
        driver: CUDA's driver, the loaded libcuda.so.1.
        step: What the call is for, such as "gpu 0". Both lines have it.
        function: Name of the driver's function, such as "cuInit".
        *arguments: Arguments of the function, as ctypes takes them.

    Raises:
        AttributeError: The driver has no such function. The first line is printed by then.
    """
    print_line(begin=step, call=function)
    code = getattr(driver, function)(*arguments)
    print_line(end=step, code=code, name=name_of(driver, code))
    has_succeeded = code == CUDA_SUCCESS
    return bool(has_succeeded)


def try_gpu(driver: ctypes.CDLL, number: int) -> None:
    """Make a context on a GPU, and destroy it again. A process needs a context to compute on a GPU.

    A JSON line is printed before and after each call. If a call fails, the calls after it are left out.

    Args:
        driver: CUDA's driver, already started.
        number: The GPU, counted from 0 in CUDA's order.

    Raises:
        AttributeError: The driver lacks a function that is called.
    """
    step = f"gpu {number}"
    device = ctypes.c_int()
    if not call_and_print(driver, step, "cuDeviceGet", ctypes.byref(device), number):
        return

    has_new_calls = hasattr(driver, CONTEXT_CALLS.create)
    calls = CONTEXT_CALLS if has_new_calls else CONTEXT_CALLS_OF_OLD_DRIVER
    context = ctypes.c_void_p()
    flags = 0
    if call_and_print(driver, step, calls.create, ctypes.byref(context), flags, device):
        call_and_print(driver, step, calls.destroy, context)


def load_driver() -> ctypes.CDLL:
    """Load CUDA's driver, libcuda.so.1, and print a JSON line before that and one after.

    Raises:
        OSError: There is no driver.
    """
    print_line(begin="load", call="dlopen")
    driver = ctypes.CDLL("libcuda.so.1")
    print_line(end="load", code=CUDA_SUCCESS, path=library_path())
    return driver


def start_driver(driver: ctypes.CDLL) -> bool:
    """Start CUDA's driver, and return whether it started. Its version is printed as {"version": 12020}, for 12.2.

    Args:
        driver: CUDA's driver, the loaded libcuda.so.1.

    Raises:
        AttributeError: The driver has no function cuInit.
    """
    if not call_and_print(driver, "start", "cuInit", 0):
        return False
    version = version_of(driver)
    if version is not None:
        print_line(version=version)
    return True


def try_gpus(driver: ctypes.CDLL, first: int, end: int) -> None:
    """Try to make a context on each GPU of a range. If one GPU fails, the next is still tried.

    The number of GPUs that the driver has is printed as {"count": 8}. GPUs beyond it are left out.

    Args:
        driver: CUDA's driver, already started.
        first: The first GPU to try, counted from 0 in CUDA's order.
        end: The GPU after the last one to try.

    Raises:
        AttributeError: The driver lacks a function that is called.
    """
    count = ctypes.c_int()
    if not call_and_print(driver, "count", "cuDeviceGetCount", ctypes.byref(count)):
        return
    print_line(count=count.value)
    for number in range(first, min(end, count.value)):
        try_gpu(driver, number)


def main() -> None:
    """Load CUDA's driver, start it, and try to make a context on each GPU from FIRST to END, END excluded.

    The command line gives FIRST and END. The functions called here print a JSON line before and after each call of
    a step, so that the last line shows in which call this process hung or died:

        {"begin": "gpu 0", "call": "cuCtxCreate_v2"}
        {"end": "gpu 0", "code": 0, "name": "CUDA_SUCCESS"}

    If the driver or one of its functions is missing, the last line has the reason.
    """
    first = int(sys.argv[1])
    end = int(sys.argv[2])
    try:
        driver = load_driver()
        if start_driver(driver):
            try_gpus(driver, first, end)
    except (OSError, AttributeError) as error:  # OSError: no driver; AttributeError: it lacks a function
        print_line(end="load", code=None, reason=str(error))


if __name__ == "__main__":
    main()
