"""Asks NVML for the node's GPUs, which a driver that hangs never answers: `harness/child.py` starts `ask_nvml.py`.

It prints a JSON line before each question and after the last one, and imports nothing of the project.
"""

import json


def say(**answer: object) -> None:
    """Print a JSON line at once: the next call may never come back."""
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Open NVML and each GPU as the process that asks will do itself, and print a JSON line before each call.

    The last line is thus the call that hangs, where one does. An error is printed too: it is an answer, and the
    process that asks will get it itself.
    """
    import pynvml

    say(call="nvmlInit")
    try:
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            say(call=f"nvmlDeviceGetHandleByIndex({number})")
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            say(call=f"nvmlDeviceGetMemoryInfo of GPU{number}")
            pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        say(error=str(error))


if __name__ == "__main__":
    main()
