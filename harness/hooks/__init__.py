"""Checkpoints, telemetry and the watchdog of a run; the loop calls each hook where its class says."""

from typing import Any, TypeVar

from harness.progress import Timing

H = TypeVar("H", bound="Hook")


class Hook:
    """Called by the loop on this rank; each hook overrides what it needs."""

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Called after the run, whatever ended it."""

    def run_begins(self) -> None:
        """Called before the first step of an epoch, or of a measurement."""

    def step_begins(self, step: int) -> None:
        """Called before a step of the run, counted from 1, and before its input is read."""

    def step_ends(self, step: int, began_s: float, ready_s: float) -> None:
        """Called after a step that began at `began_s` and had its input at `ready_s`, by time.perf_counter."""

    def readings(self) -> dict[str, Any]:
        """Return the fields of `schema.StepWindow` that this hook measures."""
        return {}

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Called after a window of steps of the program `main` is logged; return the seconds that the training lost."""
        return 0.0
