"""Asks a driver or a library in a process of its own, which may hang or die without harm to the one that asks."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

END_S = 2.0  # for a killed process to be gone; one that waits inside the kernel stays, and who asks goes on
NVML_S = 30.0  # for a question to NVML, which loads the driver on a GPU in some seconds where persistence is off


@dataclass(frozen=True, kw_only=True)
class Talk:
    """Everything a child said, and how it ended."""

    lines: tuple[str, ...]
    ended: str  # empty: by itself, with status 0

    def answers(self) -> list[dict[str, Any]]:
        """Return the child's own lines, which are JSON objects; a library's messages stand between them."""
        answers = []
        for line in self.lines:
            with contextlib.suppress(ValueError):  # a line that a dying process has not ended, or a library's
                answer = json.loads(line)
                if isinstance(answer, dict):
                    answers.append(answer)
        return answers


def talk(script: Path, *arguments: str, environ: Mapping[str, str] | None, silent_s: float) -> Talk:
    """Run a script in a process of its own; return the lines that it printed, and how it ended.

    A process that prints nothing for `silent_s` seconds, or that does not end so long after it closed its output, is
    killed: it then ended by "no answer in 20 s". Its environment is `environ`, or where that is None this process's.
    """
    command = [sys.executable, "-I", str(script), *arguments]
    process = subprocess.Popen(
        command,
        env=None if environ is None else dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    output, is_silent = _listen(process.stdout.fileno(), silent_s)
    if is_silent:
        process.kill()
    try:
        status = process.wait(END_S if is_silent else silent_s)
    except subprocess.TimeoutExpired:
        process.kill()
        is_silent = True
    process.stdout.close()

    lines = tuple(output.decode(errors="replace").splitlines())
    if is_silent:
        return Talk(lines=lines, ended=f"no answer in {silent_s:g} s")
    if status < 0:
        return Talk(lines=lines, ended=f"ended by signal {-status} ({signal.Signals(-status).name})")
    if status > 0:
        return Talk(lines=lines, ended=f"ended with status {status}: {lines[-1] if lines else 'no message'}")
    return Talk(lines=lines, ended="")


def _listen(descriptor: int, silent_s: float) -> tuple[bytes, bool]:
    """Read until the other side closes, or is silent for `silent_s` seconds.

    Returns what came, and whether it was the silence that ended it.
    """
    said = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], silent_s)
        if not ready:
            return said, True
        part = os.read(descriptor, 65536)
        if not part:
            return said, False
        said += part


def nvml_silence() -> str:
    """Say which question NVML did not answer in time; empty if it answers, with an error too."""
    said = talk(Path(__file__).with_name("ask_nvml.py"), environ=None, silent_s=NVML_S)
    calls = [answer["call"] for answer in said.answers() if "call" in answer]
    if not calls or not said.ended.startswith(("no answer", "ended by signal")):
        return ""
    return f"NVML has not answered {calls[-1]}: {said.ended}"
