"""Asks NVML for the node's GPUs in a process of its own, as a driver that hangs never answers.

`harness/child.py` starts it and reads which call hangs: the last that was announced by a line of JSON. It imports
nothing of the project.
"""

import contextlib
import json


def announce(call: str) -> None:
    """Print which function of NVML is called next, as {"call": "nvmlInit"}, at once: the call may never return."""
    print(json.dumps({"call": call}), flush=True)


def main() -> None:
    """Open NVML and each of the node's GPUs, and announce each call before it is made.

    An error of NVML ends this process in order: NVML has answered, and whoever started this process gets the same error
    by its own call.
    """
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        announce("nvmlInit")
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            announce(f"nvmlDeviceGetHandleByIndex({number})")
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            announce(f"nvmlDeviceGetMemoryInfo of GPU{number}")
            pynvml.nvmlDeviceGetMemoryInfo(handle)


if __name__ == "__main__":
    main()
