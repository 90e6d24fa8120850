"""How a node's part in a job ends: by a line that says why, or as a signal asks. Called by launch/nodes.py."""

import signal
import sys
from typing import NoReturn

from harness.processes import on_signals


def say(text: str) -> None:
    """Print a line on stderr, with the name of launch/nodes.py before it.

    Args:
        text: The line.
    """
    print(f"nodes.py: {text}", file=sys.stderr, flush=True)


class NodeError(SystemExit):
    """The end of this node's part in a job: its exit status, and why in one line."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(status)
        self.text = text


def fail(text: str, status: int = 1) -> NoReturn:
    """End this process with a line on stderr.

    Args:
        text: The line.
        status: Exit status: 1 if the job cannot go on, 2 for wrong use.

    Raises:
        NodeError: Always. It is a SystemExit.
    """
    say(text)
    raise NodeError(text, status)


def stop(number: int, _frame: object) -> NoReturn:
    """End this process as a signal asks, and ignore all later signals; this is a handler of signals.

    Args:
        number: The signal, such as 15. The exit status is 128 more.
        _frame: As Python gives it to a handler; not used.

    Raises:
        SystemExit: Always.
    """
    on_signals(signal.SIG_IGN)
    raise SystemExit(128 + number)
