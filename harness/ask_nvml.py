"""Finds the call of NVML that hangs, in a process of its own, because a driver that hangs never answers.

`harness/child.py` starts it: the call that hangs is the last one that was announced. It imports nothing of the project.
"""

import contextlib
import json


def announce(call: str) -> None:
    """Print which function of NVML is called next, as {"call": "nvmlInit"}; at once: it may never return."""
    print(json.dumps({"call": call}), flush=True)


def main() -> None:
    """Make the calls of NVML that a driver may hang in, and announce each one before it is made.

    If a call hangs, the parent process sees it as the last one announced.
    """
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):  # an error is an answer, too: the parent gets it by its own call
        announce("nvmlInit")
        pynvml.nvmlInit()
        announce("nvmlDeviceGetCount")
        for number in range(pynvml.nvmlDeviceGetCount()):
            announce(f"nvmlDeviceGetHandleByIndex({number})")
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            announce(f"nvmlDeviceGetMemoryInfo of GPU{number}")
            pynvml.nvmlDeviceGetMemoryInfo(handle)


if __name__ == "__main__":
    main()
