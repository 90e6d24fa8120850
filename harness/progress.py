"""Output that a person sees while a run goes on: a bar where there is a terminal, plain lines where there is none."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich import progress
from rich.console import Console, RenderableType

from harness import env
from runlog.text import MAX_LINE_CHARS, visible
from runlog.writer import RunLog


@dataclass(kw_only=True)
class Timing:
    """Work done over all ranks, and the time it took on rank 0."""

    steps: int = 0
    images: int = 0
    time_s: float = 0.0
    data_wait_s: float = 0.0

    def add(self, other: "Timing") -> None:
        """Add the work and the time of later steps to these.

        Args:
            other: The later steps.
        """
        self.steps += other.steps
        self.images += other.images
        self.time_s += other.time_s
        self.data_wait_s += other.data_wait_s


class _Bar(progress.Progress):
    """A bar and an empty line: mpirun passes on whole lines, so that the bar's must end."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        yield ""


WIDTH_WITHOUT_TERMINAL = 100  # characters of a bar that goes into a file


def usual_kind() -> str:
    """Return how a run shows its progress where the user has not said it: `bar` on a terminal, else `plain`."""
    return "plain" if env.terminal_columns() is None else "bar"


class Progress:
    """Rank 0's output; `kind` is `bar`, `plain`, or `none` on the other ranks."""

    def __init__(self, kind: str, total_steps: int) -> None:
        """Prepare the output of a run; nothing is shown before the context is entered.

        Args:
            kind: "bar", "plain", or "none" on the ranks other than 0.
            total_steps: Steps of the whole run.
        """
        self._kind = kind
        self._total_steps = total_steps
        self._bar: _Bar | None = None
        self._task: Any = None  # of the bar: rich's number of it
        self._warned: set[str] = set()  # lines that were shown already

    def __enter__(self) -> "Progress":
        if self._kind == "bar":
            self._bar = _make_bar()
            self._task = self._bar.add_task("starting", total=self._total_steps, rate="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def window(self, *, step: int, epoch: int, window: Timing, loss: float) -> None:
        """Show the loss, the throughput and the progress of a run after some training steps.

        The progress bar is updated if there is one. Otherwise a line is printed, with the wait for data and the time
        left, too. Ranks other than 0 show nothing.

        Args:
            step: Number of the last of these steps, out of all steps of the run.
            epoch: Number of the epoch that the steps belong to.
            window: The steps and images since the last call over all ranks, and the seconds that they took on rank 0.
            loss: The loss at `step`, as a mean over the ranks.
        """
        rate = window.images / window.time_s
        if self._bar:
            description = f"epoch {epoch} loss {loss:.4f}"
            self._bar.update(self._task, completed=step, description=description, rate=f"{rate:.1f} images/s")
            return
        wait_percent = 100 * window.data_wait_s / window.time_s
        left_s = (self._total_steps - step) * window.time_s / window.steps
        self.say(
            f"epoch {epoch} step {step}/{self._total_steps} loss {loss:.4f} {rate:.1f} images/s, "
            f"data wait {wait_percent:.1f} %, {left_s:.0f} s left"
        )

    def warn(self, log: RunLog, note: str) -> None:
        """Write a warning into the log and show it, once: the same warning again does nothing.

        Args:
            log: The log of the run.
            note: The warning. What does not print in it, as a line break in a file's name, is escaped.
        """
        line = f"warning: {visible(note, MAX_LINE_CHARS)}"
        if line in self._warned:
            return
        self._warned.add(line)
        log.text(line)
        self.say(line)

    def say(self, line: str) -> None:
        """Show a line above the progress bar or, if there is none, by itself; show nothing on ranks other than 0.

        Args:
            line: The line, without a line feed.
        """
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)  # a file's name may have brackets
        elif self._kind == "plain":
            print(line, flush=True)


def _make_bar() -> _Bar:
    """Return a progress bar that is not started, as wide as the user's terminal if there is one.

    Returns:
        A bar of rich. Each of its tasks shows a description, "steps done/all steps", its field `rate` and the time
        left.
    """
    # mpirun stands between this process and the terminal, so rich cannot see that there is one.
    width = env.terminal_columns() or WIDTH_WITHOUT_TERMINAL
    console = Console(file=sys.stdout, force_terminal=True, width=width)
    return _Bar(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
        redirect_stderr=False,  # what libraries say stays in its file
    )
