"""Asks a driver or a library in a child process, which may hang or die without harm to the process that asks."""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlog.digits import six_digits

END_S = 2.0  # for a killed child to be gone; one that waits inside the kernel stays, and this process goes on
NVML_S = 30.0  # for a question to NVML, which loads the driver on a GPU in some seconds where persistence is off
NO_ANSWER = "no answer"  # how the phrase on a child that hung begins
ENDED_BY_SIGNAL = "ended by signal"  # how the phrase on a child that a signal ended begins


@dataclass(frozen=True, kw_only=True)
class Talk:
    """Everything that a child process printed, and why it did not end in order."""

    lines: tuple[str, ...]
    hang_or_death: str  # such as "no answer in 20 s"; empty: it ended by itself, with status 0

    @property
    def has_hung_or_crashed(self) -> bool:
        """Whether the child hung or was ended by a signal; an error of Python, with a status, is neither."""
        return self.hang_or_death.startswith((NO_ANSWER, ENDED_BY_SIGNAL))

    def answers(self) -> list[dict[str, Any]]:
        """Return the JSON objects among the lines, which are the child's own; a library may print other lines."""
        answers = []
        for line in self.lines:
            with contextlib.suppress(ValueError):  # no JSON: a library's line, or one cut off as the child died
                answer = json.loads(line)
                if isinstance(answer, dict):
                    answers.append(answer)
        return answers


def talk(script: Path, *arguments: str, environ: Mapping[str, str] | None, silent_s: float) -> Talk:
    """Run a Python script in a child process, kill the child if it hangs, and return its output and how it ended.

    The child hangs if it prints nothing for `silent_s` seconds, or does not end within `silent_s` seconds after it has
    closed its output. Python runs the script in isolated mode (-I), which ignores PYTHONPATH.

    Args:
        script: The script to run.
        arguments: The arguments of the script.
        environ: Environment of the child; None: the environment of this process.
        silent_s: Seconds to wait for the next output, and then for the end of a child that has closed its output.

    Returns:
        `lines`, all lines of the child's stdout and stderr; and `hang_or_death`, a phrase as "no answer in 20 s" or
        "ended by signal 11 (SIGSEGV)", which is empty if the child ended with status 0.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", str(script), *arguments],
        env=None if environ is None else dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None  # it is a pipe
    output, was_silent = _listen(process.stdout.fileno(), silent_s)
    # A silent child gets no more time. It may have ended even so: a process that it started can keep the pipe open.
    time_to_end_s = 0.0 if was_silent else silent_s
    status = _status_or_kill(process, time_to_end_s)
    process.stdout.close()

    lines = tuple(output.decode(errors="replace").splitlines())
    if status is None:  # the child hung: it did not end, and was killed
        return Talk(lines=lines, hang_or_death=f"{NO_ANSWER} in {six_digits(silent_s)} s")
    return Talk(lines=lines, hang_or_death=_death_in_words(status, lines))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child, and wait up to END_S for its end. One that is stuck in the kernel does not end."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)


def _status_or_kill(process: subprocess.Popen[bytes], wait_s: float) -> int | None:
    """Wait for a child process to end, and return its exit status; kill it and return None if it does not.

    Args:
        process: The child.
        wait_s: Seconds to wait.
    """
    try:
        return process.wait(wait_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        return None


def _death_in_words(status: int, lines: Sequence[str]) -> str:
    """Return how a child process died, such as "ended with status 1: no message"; empty if it ended with status 0.

    Args:
        status: Exit status as Python has it: below 0 it is minus the number of a signal.
        lines: What the child printed. The last line is taken as its message.
    """
    if status < 0:
        number = -status
        names = {known.value: known.name for known in signal.Signals}
        # Python has no name for most real-time signals, such as 40.
        return f"{ENDED_BY_SIGNAL} {number} ({names[number]})" if number in names else f"{ENDED_BY_SIGNAL} {number}"
    if status > 0:
        last_line = lines[-1] if lines else "no message"
        return f"ended with status {status}: {last_line}"
    return ""


def _listen(descriptor: int, silent_s: float) -> tuple[bytes, bool]:
    """Read a pipe until its other side is closed, or nothing comes for some time.

    Args:
        descriptor: File descriptor of the pipe's end to read from.
        silent_s: Seconds of silence after which the reading ends.

    Returns:
        (bytes that came, whether the reading ended by silence).
    """
    received = b""
    while True:
        readable, _, _ = select.select([descriptor], [], [], silent_s)
        if not readable:
            return received, True
        part = os.read(descriptor, 65536)
        is_closed = not part
        if is_closed:
            return received, False
        received += part


@functools.cache  # a node of a fleet asks twice, and NVML_S is long
def hanging_call_of_nvml() -> str:
    """Return which call of NVML hangs or crashes its process, such as "NVML has not answered nvmlInit: no answer in 30
    s".

    NVML is NVIDIA's library that tells of the GPUs. A child process tries the calls, so that this process neither hangs
    nor dies. The child is started only once: later calls of this function return the first result.

    Returns:
        The phrase; an empty text if no call hangs or crashes.
    """
    child = talk(Path(__file__).with_name("ask_nvml.py"), environ=None, silent_s=NVML_S)  # None: this environment
    if not child.has_hung_or_crashed:
        # NVML has answered, perhaps with an error, or Python failed in the child, as without the package pynvml.
        return ""
    # The child prints the name of each call just before the call, as {"call": "nvmlInit"}.
    printed_calls = [answer["call"] for answer in child.answers() if "call" in answer]
    if not printed_calls:  # the child came to no call
        return ""
    return f"NVML has not answered {printed_calls[-1]}: {child.hang_or_death}"
