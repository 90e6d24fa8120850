"""The steps that a run must do by its settings: how many each of its windows has, and where its epochs end."""

from typing import NamedTuple

from compliance.logged_run import LoggedRun
from runlog import schema


class PlannedWindow(NamedTuple):
    """The number of steps and the phase that a window must have."""

    steps: int
    phase: str


class Plan(NamedTuple):
    """The sizes that the steps of a run must have by its settings; 0 for a size that the log does not state.

    A step is one update of the weights by a global batch of images. A window is the steps between two lines of
    progress.
    """

    batch: int = 0
    epoch_steps: int = 0
    most_window_steps: int = 0
    warmup_end: int = 0  # the last step of the phase "warmup", in a run that only measures throughput
    measured_end: int = 0  # the last step of its phase "measured"

    def next_window(self, steps_done: int, epoch: int) -> PlannedWindow:
        """Return the steps and the phase that the next window of steps must have.

        A window ends after `most_window_steps`, or earlier with its epoch. For instance, with epochs of 12 steps and
        windows of 5:

            next_window(steps_done=0, epoch=1)   -> 5 steps, "train"
            next_window(steps_done=10, epoch=1)  -> 2 steps, "train"

        Args:
            steps_done: The step at which the window before it ended; 0 at the start.
            epoch: The epoch in which it begins, from 1. A run that only measures throughput has two phases instead of
                epochs, "warmup" and "measured", and ignores it.
        """
        has_epochs = self.measured_end == 0
        if has_epochs:
            phase = "train"
            end = epoch * self.epoch_steps
        elif steps_done < self.warmup_end:
            phase = "warmup"
            end = self.warmup_end
        else:
            phase = "measured"
            end = self.measured_end
        steps_to_end = end - steps_done
        most_steps = self.most_window_steps or end  # 0: not limited, so the window goes on to `end`
        return PlannedWindow(steps=min(most_steps, steps_to_end), phase=phase)


def plan_of_run(run: LoggedRun) -> Plan:
    """Return the sizes that the steps of a run must have, by its settings and its numbers of samples.

    For instance, 1,000 training samples and a global batch of 64 give epochs of 15 steps.

    Args:
        run: The facts that the log states of the run: its settings, and the events train_samples and global_batch_size.

    Returns:
        The plan. Batch and epoch steps are 0 unless the log states both events. The ends of the phases are 0 unless the
        run only measures throughput.
    """
    plan = Plan(most_window_steps=run.whole_setting("PRINT_STEPS") or 0)

    samples = int(run.stated_count(schema.TRAIN_SAMPLES))  # 0 if it is not stated
    batch = int(run.stated_count(schema.GLOBAL_BATCH_SIZE))  # 0 if it is not stated
    if samples > 0 and batch > 0:
        plan = plan._replace(batch=batch, epoch_steps=samples // batch)

    only_measures_throughput = run.settings.get("MODE") == "throughput"
    if only_measures_throughput:
        warmup_steps = run.whole_setting("WARMUP_STEPS") or 0
        measured_steps = run.whole_setting("MEASURED_STEPS") or 0
        plan = plan._replace(warmup_end=warmup_steps, measured_end=warmup_steps + measured_steps)
    return plan
