"""Checkpoints, telemetry and the watchdog of a run; the loop calls each hook where its class says."""

from typing import Any, TypeVar

from harness.progress import Timing

H = TypeVar("H", bound="Hook")


class Hook:
    """The loop calls its methods on this rank. Each does nothing here; a hook overrides those that it needs."""

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Do what is due after the run, whatever ended it; leaving the context calls this."""

    def run_begins(self) -> None:
        """Do what is due before the first step of an epoch, or of a measurement; the loop calls this."""

    def step_begins(self, step: int) -> None:
        """Do what is due before a training step, and before its input is read; the loop calls this.

        Args:
            step: Number of the step, counted from 1 over the whole run.
        """

    def step_ends(self, step: int, began_s: float, ready_s: float) -> None:
        """Do what is due after a training step; the loop calls this.

        Args:
            step: Number of the step, counted from 1 over the whole run.
            began_s: When the step began, by time.perf_counter.
            ready_s: When its input was there.
        """

    def readings(self) -> dict[str, Any]:
        """Return the fields of `schema.StepWindow` that this hook measures."""
        return {}

    def window_ends(self, main: Any, window: Timing, *, step: int, epoch: int) -> float:
        """Do nothing after a window of training steps is logged; a hook overrides this to do what is due then.

        Args:
            main: The training program.
            window: Steps, images over all ranks, and seconds of the window.
            step: Number of its last step, counted from 1 over the whole run.
            epoch: Number of the epoch, from 1.

        Returns:
            Seconds for which the training had to wait for the hook. They are not counted in the next window.
        """
        return 0.0
